"""Shares the training records of Adult out over ten clients, and keeps its official test set beside them.

    python examples/adult/prepare.py --data FOLDER

FOLDER holds `adult.data` and `adult.test` of the UCI repository, as they are or packed (.gz). Written are
`clients/client-0.csv` … and `test.csv`, which `study.toml` reads.
"""

import argparse
import csv
import gzip
import math
from pathlib import Path

import numpy as np

from fedvi.data.splits import balanced, skewed

HERE = Path(__file__).resolve().parent
CLIENTS = 10
NAMES = (
    "age", "workclass", "fnlwgt", "education", "education_num", "marital", "occupation",
    "relationship", "race", "sex", "gain", "loss", "hours", "country", "income",
)  # fmt: skip
# Gains and losses are zero for most and huge for some: their logarithm suits a linear predictor. That
# looks at one record at a time, so that it is no release.
LOGARITHMS = ("gain", "loss")


def read(folder, name):
    """Reads one of the two files as a list of rows by name."""
    path = next((p for p in (folder / name, folder / f"{name}.gz") if p.exists()), None)
    if path is None:
        raise SystemExit(
            f"{folder} holds neither {name} nor {name}.gz: see README.md for its origin"
        )
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        cells = [row for row in csv.reader(file, skipinitialspace=True) if len(row) == len(NAMES)]
    rows = [dict(zip(NAMES, row, strict=True)) for row in cells]
    for row in rows:
        row["income"] = row["income"].removesuffix(".")  # so written in the test set
        for column in LOGARITHMS:
            row[column] = f"{math.log1p(float(row[column])):.6f}"
    return rows


def write(path, rows):
    """Writes rows as a CSV file with a header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, NAMES)
        writer.writeheader()
        writer.writerows(rows)


def main():
    """Reads, shares out, writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--data", type=Path, default=HERE / "data", help="where the files are (default %(default)s)"
    )
    add("--out", type=Path, default=HERE, help="where to write (default: beside this script)")
    add("--records", type=int, help="take the first only")
    add("--seed", type=int, default=0, help="of the shares (default %(default)d)")
    add(
        "--unequal",
        action="store_true",
        help="half of the clients hold a quarter of an equal share, and hardly any high income",
    )
    args = parser.parse_args()

    rows = read(args.data, "adult.data")[: args.records]
    generator = np.random.default_rng(args.seed)
    if args.unequal:
        positive = np.array([row["income"] == ">50K" for row in rows])
        client = skewed(generator, positive, CLIENTS, 0.75, 0.95)
    else:
        client = balanced(generator, len(rows), CLIENTS)
    for number in range(CLIENTS):
        mine = [rows[index] for index in np.flatnonzero(client == number)]
        write(args.out / "clients" / f"client-{number}.csv", mine)
    test = read(args.data, "adult.test")
    write(args.out / "test.csv", test)
    sizes = np.bincount(client, minlength=CLIENTS)
    print(f"{len(rows):,} records over {CLIENTS} clients of {sizes.min():,} to {sizes.max():,}")
    print(f"{len(test):,} records for testing")


if __name__ == "__main__":
    main()
