"""Takes one stay of each patient of the eICU demo, and gives every region of the country its own file.

    python examples/eicu/prepare.py --data FOLDER

FOLDER holds `patient_joined.csv`, as it is or packed (.gz): the tables patient, hospital and
apachePatientResult of the demo, joined by stay. Written are `clients/midwest.csv` and its like, which the
studies of this folder read.
"""

import argparse
import csv
import gzip
from pathlib import Path

HERE = Path(__file__).resolve().parent
REGIONS = ("Midwest", "Northeast", "South", "West")
COLUMNS = ("age", "gender", "acutephysiologyscore", "actualhospitalmortality")


def stays(folder):
    """Reads all stays as a list of rows by name."""
    name = "patient_joined.csv"
    path = next((p for p in (folder / name, folder / f"{name}.gz") if p.exists()), None)
    if path is None:
        raise SystemExit(
            f"{folder} holds neither {name} nor {name}.gz: see README.md for its origin"
        )
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def first_stays(rows):
    """Keeps of each patient the first unit visit of the hospital stay with the lowest number.

    A patient with several stays would otherwise be several records. The rule may not look at the outcome:
    who left hospital alive had more chances to come back.
    """
    first = {}
    for row in rows:
        order = int(row["patienthealthsystemstayid"]), int(row["unitvisitnumber"])
        patient = row["uniquepid"]
        if patient not in first or order < first[patient][0]:
            first[patient] = order, row
    return [row for _, row in first.values()]


def main():
    """Reads, chooses, writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, default=HERE / "data", help="where the file is (default %(default)s)")
    add("--out", type=Path, default=HERE, help="where to write (default: beside this script)")
    args = parser.parse_args()

    rows = stays(args.data)
    patients = first_stays(rows)
    print(f"{len(rows):,} stays of {len(patients):,} patients")
    (args.out / "clients").mkdir(parents=True, exist_ok=True)
    for region in REGIONS:
        mine = [row for row in patients if row["region"] == region]
        path = args.out / "clients" / f"{region.lower()}.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(mine)
        known = [row for row in mine if row["actualhospitalmortality"]]
        died = sum(row["actualhospitalmortality"] == "EXPIRED" for row in known)
        print(f"{region:9} {len(mine):4} patients, {len(known):3} with an outcome, {died:2} died")
    nowhere = sum(row["region"] not in REGIONS for row in patients)
    print(f"{nowhere} patients of hospitals without a region are left out")


if __name__ == "__main__":
    main()
