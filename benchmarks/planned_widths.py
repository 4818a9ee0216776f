"""How near do planned widths come to simulated ones, on six real data sets?

    python benchmarks/planned_widths.py                       # all six, five runs each
    python benchmarks/planned_widths.py eicu --epsilon 1 4 --runs 3
    python benchmarks/planned_widths.py --silent              # nothing is declared of the columns

A plan is given what a published table of a cohort would state: means and sds of numbers, shares of
levels, how often the outcome comes, the AUC that a model of it had, correlations of 0.2 and more, and how
many records each site has. They are taken from the files, which a study could not do. A run's width
differs from run to run, since noise does: the plan is held against the median of several.
"""

import argparse
import csv
import gzip
import io
import pathlib
import re
import sys
import tempfile
import time
from typing import Any, NamedTuple

import numpy as np
import scipy.stats

from fedvi.planning.widths import widths
from fedvi.run import loading, simulate
from fedvi.study import build
from fedvi.study.config import parse_study

DATA = pathlib.Path(__file__).resolve().parent.parent.parent / "shared" / "data"
NEAR = 0.25
# Correlations that a paper would mention.
STATED = 0.2


class Cohort(NamedTuple):
    """A table as a consortium has it.

    Attributes:
      formula: with the outcome, which is binary but in a linear model.
      columns: name → its table of the schema.
      sites: site → rows.
      model, prior: tables of the study.
    """

    formula: str
    columns: dict[str, dict[str, Any]]
    sites: dict[str, list[dict[str, str]]]
    model: tuple[tuple[str, Any], ...] = (("kind", "logistic"),)
    prior: float = 1.0


def number(low: float, high: float, center: float, scale: float, missing: Any = "drop") -> dict:
    bounds = {"type": "number", "bounds": [low, high], "center": center, "scale": scale}
    return {**bounds, "missing": {"impute": center} if missing == "impute" else missing}


def yes(true: str, *false: str) -> dict:
    return {"type": "binary", "true": [true], "false": list(false), "missing": "drop"}


def read_rows(
    path: pathlib.Path, names: list[str] | None = None, separator: str = ","
) -> list[dict]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        text = io.StringIO(file.read())
    return list(csv.DictReader(text, names, delimiter=separator, skipinitialspace=True))


def dealt(rows: list[dict], count: int) -> dict[str, list[dict]]:
    """Shares rows out over sites, at random."""
    order = np.random.default_rng(1).permutation(len(rows))
    return {f"s{site}": [rows[i] for i in order[site::count]] for site in range(count)}


def heart() -> Cohort:
    names = [
        "age",
        "sex",
        "cp",
        "bps",
        "chol",
        "fbs",
        "ecg",
        "rate",
        "exang",
        "oldpeak",
        "slope",
        "ca",
        "thal",
        "num",
    ]
    places = {
        "cleveland": "cleveland",
        "budapest": "hungarian",
        "zurich": "switzerland",
        "va": "va",
    }
    sites = {
        site: read_rows(DATA / "heart-disease" / f"processed.{file}.data", names)
        for site, file in places.items()
    }
    for rows in sites.values():
        for row in rows:
            row["disease"] = str(int(float(row["num"]) > 0))
            row["painless"] = str(int(float(row["cp"]) == 4))
    columns = {
        "disease": yes("1", "0"),
        "age": number(18, 100, 55, 10, "impute"),
        "sex": yes("1", "0"),
        "painless": yes("1", "0"),
        "rate": number(60, 220, 140, 25, "impute"),
        "exang": {**yes("1", "0"), "missing": {"impute": False}},
        "oldpeak": number(-4, 8, 1, 1, "impute"),
    }
    return Cohort("disease ~ age + sex + painless + rate + exang + oldpeak", columns, sites)


def eicu() -> Cohort:
    first: dict[str, tuple] = {}
    for row in read_rows(DATA / "eicu-demo" / "patient_joined.csv.gz"):
        order = int(row["patienthealthsystemstayid"]), int(row["unitvisitnumber"])
        if row["uniquepid"] not in first or order < first[row["uniquepid"]][0]:
            first[row["uniquepid"]] = order, row
    regions = ("Midwest", "Northeast", "South", "West")
    sites = {
        region: [row for _, row in first.values() if row["region"] == region] for region in regions
    }
    columns = {
        "death": {"column": "actualhospitalmortality", **yes("EXPIRED", "ALIVE")},
        "age": number(18, 90, 65, 10, "impute"),
        "sex": {"column": "gender", **yes("Male", "Female")},
        "aps": {
            "column": "acutephysiologyscore",
            **number(0, 160, 40, 20),
            "missing_values": [-1],
        },
    }
    return Cohort("death ~ age + sex + aps", columns, sites)


def adult() -> Cohort:
    names = "age work fnlwgt education years marital job relation race sex gain loss hours country income"
    rows = [
        row for row in read_rows(DATA / "adult" / "adult.data.gz", names.split()) if row["income"]
    ]
    columns = {
        "income": yes(">50K", "<=50K"),
        "age": number(17, 90, 40, 15),
        "years": number(1, 16, 10, 3),
        "hours": number(1, 99, 40, 12),
        "sex": yes("Female", "Male"),
        "marital": {
            "type": "level",
            "levels": ["married", "never", "formerly"],
            "codes": {
                **dict.fromkeys(("Married-civ-spouse", "Married-AF-spouse"), "married"),
                "Never-married": "never",
                **dict.fromkeys(
                    ("Divorced", "Separated", "Widowed", "Married-spouse-absent"), "formerly"
                ),
            },
        },
    }
    return Cohort("income ~ age + years + hours + sex + marital", columns, dealt(rows, 10))


def diabetes() -> Cohort:
    first: dict[str, dict] = {}
    for row in read_rows(DATA / "diabetes-130-us" / "diabetic_data.csv.gz"):
        first.setdefault(row["patient_nbr"], row)
    rows = list(first.values())
    for row in rows:
        row["back"] = str(int(row["readmitted"] != "NO"))
        row["years"] = str(int(row["age"].strip("[").partition("-")[0]) + 5)
        row["before"] = str(np.log1p(float(row["number_inpatient"])))
    columns = {
        "back": yes("1", "0"),
        "years": number(0, 100, 65, 15),
        "sex": {"column": "gender", **yes("Male", "Female")},
        "time_in_hospital": number(1, 14, 4, 3),
        "num_lab_procedures": number(1, 132, 45, 20),
        "num_medications": number(1, 81, 15, 8),
        "before": number(0, 3.2, 0, 1),
        "number_diagnoses": number(1, 16, 7, 2),
        "insulin": {"type": "level", "levels": ["No", "Steady", "Up", "Down"]},
    }
    formula = "back ~ " + " + ".join(list(columns)[1:])
    return Cohort(formula, columns, dealt(rows, 8))


def credit() -> Cohort:
    rows = read_rows(DATA / "credit-default" / "UCI_Credit_Card.csv.gz")
    for row in rows:
        row["unpaid"] = row["default.payment.next.month"]
        row["limit"] = str(np.log10(float(row["LIMIT_BAL"])))
    columns = {
        "unpaid": yes("1", "0"),
        "limit": number(4, 6, 5, 0.5),
        "AGE": number(18, 90, 35, 10),
        "PAY_0": number(-2, 8, 0, 1),
        "PAY_2": number(-2, 8, 0, 1),
        "SEX": yes("2", "1"),
    }
    return Cohort("unpaid ~ limit + AGE + PAY_0 + PAY_2 + SEX", columns, dealt(rows, 6))


def wine() -> Cohort:
    rows = []
    for kind in ("red", "white"):
        part = read_rows(DATA / "wine-quality" / f"winequality-{kind}.csv", None, ";")
        rows += [
            {name.replace(" ", "_"): value for name, value in row.items()}
            | {"red": str(int(kind == "red"))}
            for row in part
        ]
    columns = {
        "quality": number(0, 10, 6, 1),
        "alcohol": number(8, 15, 10.5, 1),
        "volatile_acidity": number(0, 2, 0.35, 0.15),
        "sulphates": number(0, 2, 0.5, 0.15),
        "red": yes("1", "0"),
    }
    formula = "quality ~ alcohol + volatile_acidity + sulphates + red"
    return Cohort(formula, columns, dealt(rows, 5), (("kind", "linear"), ("noise_scale", 0.8)))


COHORTS = {
    "heart-disease": heart,
    "eicu": eicu,
    "adult": adult,
    "diabetes": diabetes,
    "credit": credit,
    "wine": wine,
}


def study(cohort: Cohort, epsilon: float, folder: pathlib.Path, view: str) -> dict[str, Any]:
    """Returns the tables of a cohort's study, with a file for each site in a folder."""
    names = [str(table.get("column", name)) for name, table in cohort.columns.items()]
    clients = []
    for site, rows in cohort.sites.items():
        path = folder / f"{site}.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, names, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        clients.append({"name": site, "data": str(path), "expected_records": len(rows)})
    most = max(len(rows) for rows in cohort.sites.values())
    return {
        "study": {"name": "planned", "seed": 1},
        "model": {**dict(cohort.model), "formula": cohort.formula},
        "prior": {"scale": cohort.prior, "intercept_scale": 2.5},
        "solver": {"kind": "site_release"},
        "schedule": {"kind": "synchronous", "rounds": 20},
        "privacy": {
            "epsilon": epsilon,
            "delta": 1e-6,
            "unit": "record",
            "relation": "add_remove",
            "disjoint": True,
            "view": view,
        },
        "data": {"max_records": most, "schema": dict(cohort.columns)},
        "clients": clients,
    }


def declared(cohort: Cohort, auc: float) -> dict[str, dict[str, Any]]:
    """Returns the columns with what a table of the cohort would state of each."""
    rows = [row for part in cohort.sites.values() for row in part]
    outcome = cohort.formula.partition("~")[0].strip()
    left = re.findall(r"\w+", outcome)
    found: dict[str, dict[str, Any]] = {}
    before: dict[str, np.ndarray] = {}
    for name, table in cohort.columns.items():
        cells = np.array([row[str(table.get("column", name))] for row in rows])
        if table["type"] == "binary":
            spelt = [*table["true"], *table["false"]]
            cells = np.array(
                [c if c in spelt else f"{float(c):g}" if c[:1].isdigit() else "" for c in cells]
            )
            values = np.where(np.isin(cells, spelt), np.isin(cells, table["true"]), np.nan)
            said: dict[str, Any] = {"share": round(float(np.nanmean(values)), 3)}
            said |= {"auc": round(auc, 2)} if name == outcome else {}
        elif table["type"] == "level":
            codes = table.get("codes", {level: level for level in table["levels"]})
            levels = [codes.get(cell) for cell in cells]
            said = {
                "shares": [
                    levels.count(level) / sum(map(bool, levels)) for level in table["levels"]
                ]
            }
        else:
            wrong = {"?", "", *map(str, table.get("missing_values", ()))}
            values = np.array([np.nan if cell in wrong else float(cell) for cell in cells])
            values = np.clip(values, *table["bounds"])
            said = {
                "mean": float(f"{np.nanmean(values):.3g}"),
                "sd": float(f"{np.nanstd(values):.3g}"),
            }
        if table["type"] != "level" and name not in left:
            said["correlations"] = {
                other: round(float(np.clip(value, -0.98, 0.98)), 2)
                for other, column in before.items()
                if abs(value := _correlation(values, column)) >= STATED
            }
            before[name] = values
        found[name] = {**table, "expected": said}
    return found


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    known = ~np.isnan(one) & ~np.isnan(other)
    return float(np.corrcoef(one[known], other[known])[0, 1])


def auc_of(assembly: Any, sources: Any, pooled: Any) -> float:
    """Returns the AUC of the pooled fit, as a paper on a model of these columns would state it."""
    x, y = (
        np.concatenate([source.records[name][source.valid] for source in sources.values()])
        for name in ("x", "y")
    )
    mean, _ = assembly.family.moments(pooled)
    if not 0 < y.sum() < len(y) or set(np.unique(y)) - {0.0, 1.0}:
        return 0.75
    ranks = scipy.stats.rankdata(x @ mean)
    ones = y.sum()
    return float((ranks[y == 1.0].sum() - ones * (ones + 1) / 2) / (ones * (len(y) - ones)))


def compared(
    name: str, epsilon: float, runs: int, silent: bool, view: str
) -> tuple[np.ndarray, ...]:
    """Returns planned ÷ simulated sds, of the study's intervals and of those without noise, and the same of
    the smallest effects; and what of a run is within reach of another run."""
    cohort = COHORTS[name]()
    with tempfile.TemporaryDirectory() as place:
        raw = study(cohort, epsilon, pathlib.Path(place), view)
        assembly = build.assemble(parse_study(raw))
        sources = loading.load_shards(assembly, pathlib.Path(place))
        results = [simulate.run(assembly, sources, pooled=run == 0) for run in range(runs)]
        pooled = results[0].pooled
        sds = np.array([assembly.family.moments(result.posterior)[1] for result in results])
        if not silent:
            raw["data"]["schema"] = declared(cohort, auc_of(assembly, sources, pooled))
        started = time.monotonic()
        planned = widths(build.assemble(parse_study(raw)))
        elapsed = time.monotonic() - started
    exact = assembly.family.moments(pooled)[1]
    mine = np.array([row.sd for row in planned.rows])
    own = np.array([row.open_sd for row in planned.rows])
    typical = np.median(sds, axis=0)
    print(
        f"\n{name}, ε = {epsilon:g}, view {view}: {planned.records:,} records, planned in {elapsed:.1f} s"
    )
    print(
        f"{'coefficient':22}{'planned':>9}{'run':>9}{'ratio':>7}   {'without noise':>15}{'ratio':>7}"
    )
    for row, sd, best, each in zip(planned.rows, typical, exact, sds.T, strict=True):
        print(
            f"{row.name:22}{row.sd:9.4f}{sd:9.4f}{row.sd / sd:7.2f}   {row.open_sd:7.4f} {best:7.4f}"
            f"{row.open_sd / best:7.2f}   runs {each.min():.4f} to {each.max():.4f}"
        )
    sys.stdout.flush()
    return mine / typical, own / exact, (sds / typical).ravel()


def near(ratios: np.ndarray) -> str:
    """Says which share of ratios is within a quarter."""
    within = (ratios > 1.0 / (1.0 + NEAR)) & (ratios < 1.0 + NEAR)
    said = f"{within.sum()} of {len(ratios)} ({within.mean():.0%}) within {NEAR:.0%}"
    return f"{said}, median {np.median(ratios):.2f}"


def main() -> None:
    """Prints each coefficient, and how many came near."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cohorts", nargs="*", metavar="COHORT", help=", ".join(COHORTS))
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument("--runs", type=int, default=5, help="simulations of each study (5)")
    parser.add_argument("--view", default="message", choices=("message", "aggregate"))
    parser.add_argument("--silent", action="store_true", help="nothing is declared of the columns")
    given = parser.parse_args()
    found: list[tuple[np.ndarray, ...]] = []
    for name in given.cohorts or COHORTS:
        for epsilon in given.epsilon:
            found.append(compared(name, epsilon, given.runs, given.silent, given.view))
            print(f"{name}, ε = {epsilon:g}: {near(found[-1][0])}", flush=True)
    private, open_, again = (np.concatenate(part) for part in zip(*found, strict=True))
    print(f"\nall: private {near(private)}")
    print(f"all: without noise {near(open_)}")
    print(f"single runs beside the median of runs: {near(again)}")


if __name__ == "__main__":
    main()
