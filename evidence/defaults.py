"""Eight tables, what is publicly known of their columns, and studies that `fedvi init --yes` drafts."""

import csv
import gzip
import io
import pathlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import scipy.special
import scipy.stats
from click.testing import CliRunner
from fedvi.cli.main import main as fedvi
from fedvi.privacy import accountants, calibrate, events
from fedvi.run import loading, simulate
from fedvi.study import build
from fedvi.study.config import load_study, parse_study

from evidence.base import DATA

Rows = list[dict[str, str]]


class Table(NamedTuple):
    """A table as a consortium has it, and what is publicly known of its columns.

    Attributes:
      response: the binary outcome, yes or no.
      columns: name → what `fedvi init --column` takes.
      rows: cells by name.
      tested: rows of an official test set; None: a fifth is drawn.
      site: the column that names a record's site; empty: four sites of equal size.
      missing: what `fedvi init --missing` takes.
    """

    response: str
    columns: dict[str, str]
    rows: Rows
    tested: Rows | None = None
    site: str = ""
    missing: tuple[str, ...] = ()


def _read(path: str, **options: Any) -> Rows:
    text = (DATA / path).read_bytes()
    text = gzip.decompress(text) if path.endswith(".gz") else text
    return list(csv.DictReader(io.StringIO(text.decode()), **options))


def _numbers(bounds: dict[str, str]) -> dict[str, str]:
    return {name: f"number:{ends}" for name, ends in bounds.items()}


def _levels(rows: Rows, names: Iterable[str]) -> dict[str, str]:
    return {name: "level:" + ",".join(sorted({row[name] for row in rows})) for name in names}


def _answers(rows: Rows, response: str, is_yes: Any) -> Rows:
    return [{**row, response: "yes" if is_yes(row) else "no"} for row in rows]


def adult() -> Table:
    """The census of 1994: five numbers by their bounds, six columns of levels."""
    names = (
        *("age", "workclass", "fnlwgt", "education", "years", "marital", "occupation"),
        *("relationship", "race", "sex", "gain", "loss", "hours", "country", "income"),
    )

    def read(file: str) -> Rows:
        rows = _read(f"adult/{file}", fieldnames=names, skipinitialspace=True)
        rows = [row for row in rows if row["income"]]
        return _answers(rows, "income", lambda row: row["income"].startswith(">50K"))

    train, test = read("adult.data.gz"), read("adult.test.gz")
    columns = _numbers(
        {"age": "17..90", "years": "1..16", "gain": "0..99999", "loss": "0..4356", "hours": "1..99"}
    )
    kinds = ("workclass", "marital", "occupation", "relationship", "race", "sex")
    return Table("income", columns | _levels(train, kinds), train, test)


def breast_cancer() -> Table:
    """569 tumours: the ten measured means, by bounds that are wider than any tumour's."""
    bounds = {
        "radius": "5..30", "texture": "5..40", "perimeter": "40..190", "area": "100..2600",
        "smoothness": "0.05..0.17", "compactness": "0..0.4", "concavity": "0..0.5",
        "points": "0..0.25", "symmetry": "0.1..0.35", "dimension": "0.04..0.1",
    }  # fmt: skip
    rows = _read("breast-cancer-wisconsin/wdbc.data", fieldnames=("id", "kind", *bounds))
    rows = _answers(rows, "malignant", lambda row: row["kind"] == "M")
    return Table("malignant", _numbers(bounds), rows)


def heart() -> Table:
    """920 patients of four hospitals; columns that all four have."""
    names = (
        "age",
        "sex",
        "cp",
        "trestbps",
        "chol",
        "fbs",
        "restecg",
        "thalach",
        "exang",
        "oldpeak",
        "slope",
        "ca",
        "thal",
        "num",
    )
    rows = []
    for site in ("cleveland", "hungarian", "switzerland", "va"):
        own = _read(f"heart-disease/processed.{site}.data", fieldnames=names)
        rows += [{**row, "site": site} for row in own]
    rows = _answers(rows, "disease", lambda row: float(row["num"]) > 0.0)
    for row in rows:
        row["painless"] = "yes" if float(row["cp"]) == 4.0 else "no"
        row["male"] = "yes" if float(row["sex"]) == 1.0 else "no"
    columns = _numbers({"age": "18..100", "thalach": "60..220", "oldpeak": "-4..8"})
    columns |= {"painless": "binary:yes/no", "male": "binary:yes/no"}
    imputed = "thalach=impute 140", "oldpeak=impute 0"
    return Table("disease", columns, rows, site="site", missing=imputed)


def bank() -> Table:
    """Calls of a bank: what is known before one is made."""
    rows = _read("bank-marketing/bank-full.csv.gz", delimiter=";")
    bounds = {"age": "18..95", "balance": "-8019..102127", "day": "1..31", "campaign": "1..63"}
    bounds |= {"pdays": "-1..871", "previous": "0..275"}
    kinds = (
        "job",
        "marital",
        "education",
        "default",
        "housing",
        "loan",
        "contact",
        "month",
        "poutcome",
    )
    return Table("y", _numbers(bounds) | _levels(rows, kinds), rows)


def credit() -> Table:
    """Holders of credit cards in Taiwan, and who did not pay."""
    rows = _read("credit-default/UCI_Credit_Card.csv.gz")
    rows = _answers(rows, "unpaid", lambda row: row["default.payment.next.month"] == "1")
    bounds = {"LIMIT_BAL": "10000..1000000", "AGE": "21..79"}
    bounds |= {f"PAY_{month}": "-2..8" for month in (0, 2, 3, 4, 5, 6)}
    bounds |= {f"BILL_AMT{month}": "-350000..1700000" for month in range(1, 7)}
    bounds |= {f"PAY_AMT{month}": "0..1700000" for month in range(1, 7)}
    kinds = ("SEX", "EDUCATION", "MARRIAGE")
    return Table("unpaid", _numbers(bounds) | _levels(rows, kinds), rows)


def readmission() -> Table:
    """Diabetes in 130 hospitals: the first stay of each patient; back within 30 days?"""
    every = _read("diabetes-130-us/diabetic_data.csv.gz")
    every.sort(key=lambda row: -int(row["encounter_id"]))
    rows = list({row["patient_nbr"]: row for row in every}.values())
    rows = [row for row in rows if row["gender"] in ("Female", "Male")]
    rows = _answers(rows, "back", lambda row: row["readmitted"] == "<30")
    # Of the table's paper and its code book.
    bounds = {"time_in_hospital": "1..14", "num_lab_procedures": "1..132", "num_procedures": "0..6"}
    bounds |= {
        "num_medications": "1..81",
        "number_diagnoses": "1..16",
        "number_outpatient": "0..42",
    }
    bounds |= {"number_emergency": "0..76", "number_inpatient": "0..21"}
    kinds = (
        "age",
        "gender",
        "race",
        "admission_type_id",
        "A1Cresult",
        "max_glu_serum",
        "insulin",
        "change",
    )
    for row in rows:
        for name in ("age", "race"):
            row[name] = row[name].strip("[)?") or "unknown"
    return Table("back", _numbers(bounds) | _levels(rows, kinds), rows)


def eicu() -> Table:
    """Stays in intensive care in four regions: deaths in hospital, one stay of each patient."""
    first = sorted(
        _read("eicu-demo/patient_joined.csv.gz"), key=lambda row: row["patientunitstayid"]
    )
    rows = list({row["uniquepid"]: row for row in reversed(first)}.values())
    rows = [row for row in rows if row["region"] and row["actualhospitalmortality"]]
    rows = _answers(rows, "death", lambda row: row["actualhospitalmortality"] == "EXPIRED")
    columns = _numbers({"age": "15..90", "acutephysiologyscore": "0..252"})
    columns |= {"gender": "binary:Male/Female"}
    return Table("death", columns, rows, site="region", missing=("age=impute 65",))


def abalone() -> Table:
    """Shells of abalones: ten rings or more."""
    names = ("sex", "length", "diameter", "height", "whole", "shucked", "viscera", "shell", "rings")
    rows = _read("abalone/abalone.data", fieldnames=names)
    rows = _answers(rows, "old", lambda row: int(row["rings"]) >= 10)
    bounds = {"length": "0..1", "diameter": "0..0.8", "height": "0..1.2", "whole": "0..3"}
    bounds |= {"shucked": "0..1.5", "viscera": "0..0.8", "shell": "0..1.1"}
    return Table("old", _numbers(bounds) | {"sex": "level:F,I,M"}, rows)


TABLES = {
    "adult": adult,
    "breast-cancer": breast_cancer,
    "heart": heart,
    "bank": bank,
    "credit": credit,
    "readmission": readmission,
    "eicu": eicu,
    "abalone": abalone,
}


class Outcome(NamedTuple):
    """What a posterior is worth on records that it has not seen.

    Attributes:
      auc: area under the receiver's curve.
      likelihood: mean log predictive density of an outcome.
      width: geometric mean of posterior sd ÷ the pooled fit's.
      worst: largest |mean − pooled mean| ÷ posterior sd.
      covered: share of pooled means that 95 % intervals cover.
      once_auc, once_likelihood: of ``one_shot`` at the same price, whose answer has no uncertainty.
    """

    auc: float
    likelihood: float
    width: float
    worst: float
    covered: float
    once_auc: float
    once_likelihood: float


def drafted(table: Table, folder: pathlib.Path, seed: int, epsilon: float) -> dict[str, Any]:
    """Lets `fedvi init --yes` draft the study of a table, and writes the sites' files beside it."""
    order = np.random.default_rng(seed).permutation(len(table.rows))
    train, test = [table.rows[i] for i in order], table.tested
    if test is None:
        cut = len(train) // 5
        test, train = train[:cut], train[cut:]
    parts = {f"c{index}": train[index::4] for index in range(4)}
    if table.site:
        sites = sorted({row[table.site] for row in table.rows})
        parts = {name: [row for row in train if row[table.site] == name] for name in sites}
    first = folder / f"{next(iter(parts))}.csv"
    for name, rows in {**parts, "test": test}.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            names = [*table.columns, table.response]
            writer = csv.DictWriter(file, names, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
    most = max(map(len, [*parts.values(), test]))
    asked = ["init", folder / "study", "--yes", "--disjoint", "--response", table.response]
    asked += ["--from", first, "--clients", ",".join(parts), "--max-records", most]
    asked += ["--epsilon", epsilon, "--column", f"{table.response}=binary:yes/no"]
    for name, kind in table.columns.items():
        asked += ["--column", f"{name}={kind}"]
    for rule in table.missing:
        asked += ["--missing", rule]
    done = CliRunner().invoke(fedvi, list(map(str, asked)))
    if done.exit_code:
        raise SystemExit(done.output)
    raw = dict(load_study(folder / "study" / "study.toml").as_dict())
    for client in raw["clients"]:
        client["data"] = str(folder / f"{client['name']}.csv")
    return raw


def judged(mean: np.ndarray, root: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Returns area and log likelihood of the posterior predictive, by quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    spread = np.linalg.norm(x @ root, axis=1)
    predictor = (x @ mean)[:, None] + spread[:, None] * nodes
    p = np.clip(scipy.special.expit(predictor) @ (weights / weights.sum()), 1e-12, 1.0 - 1e-12)
    ranks, ones = scipy.stats.rankdata(p), int(y.sum())
    auc = (ranks[y == 1.0].sum() - ones * (ones + 1) / 2) / (ones * (len(y) - ones))
    return float(auc), float(np.where(y == 1.0, np.log(p), np.log1p(-p)).mean())


def one_shot(
    x: np.ndarray, y: np.ndarray, privacy: dict[str, Any], shares: float, seed: int
) -> np.ndarray:
    """Returns coefficients [D] from one noised sum of (y − ½)x and ¼xxᵀ: the baseline of ten lines.

    Rows are shortened to the length that columns which fill a third of their bounds have; both parts weigh
    alike; eigenvalues below the edge of the noise are lifted to it. Noise is for substituting a record, and
    ``shares`` times as large, for as many sites that each add their own.
    """
    generator, size = np.random.default_rng((seed, 9)), x.shape[1]
    length = np.sqrt(1.0 + 0.35 * (size - 1))
    x = x * np.minimum(1.0, length / np.linalg.norm(x, axis=1))[:, None]
    noise = shares * np.sqrt(2.0) * calibrate.calibrate(
        lambda multiplier: events.Gaussian(multiplier, add_remove=1.0, substitute=2.0),
        accountants.pld("substitute"), privacy["epsilon"], privacy["delta"],
    )  # fmt: skip
    score = x.T @ (y - 0.5) + noise * length / 2.0 * generator.normal(size=size)
    square = generator.normal(size=(size, size))
    sd = noise * length**2 / 4.0
    curvature = x.T @ x / 4.0 + sd * (square + square.T) / 2.0
    values, vectors = np.linalg.eigh(curvature)
    lifted = np.maximum(values, sd * np.sqrt(2.0 * size))
    return vectors @ ((vectors.T @ score) / lifted)


def base_rate(folder: pathlib.Path, raw: dict[str, Any], response: str) -> float:
    """Returns the mean log likelihood of the test records by the rate of the training records."""

    def answers(name: str) -> list[bool]:
        with (folder / f"{name}.csv").open(newline="") as file:
            return [row[response] == "yes" for row in csv.DictReader(file)]

    rate = np.mean([one for client in raw["clients"] for one in answers(client["name"])])
    return float(np.mean(np.where(answers("test"), np.log(rate), np.log1p(-rate))))


def outcome_of(
    raw: dict[str, Any], folder: pathlib.Path, pooled: Any, seed: int
) -> tuple[Outcome, tuple[float, float], Any, int]:
    """Runs a study; returns what it is worth, the pooled fit's scores, the pooled fit, and D.

    ``seed`` draws the noise of ``one_shot``, which sees the same records at the same price.
    """
    assembly = build.assemble(parse_study(raw))
    sources = loading.load_shards(assembly, folder)
    result = simulate.run(assembly, sources, pooled=pooled is None)
    pooled = result.pooled if pooled is None else pooled
    test = loading.load_shard(assembly, raw["clients"][0]["name"], folder / "test.csv")
    x, y = (np.asarray(test.records[name][test.valid], float) for name in ("x", "y"))
    (mean, root), (best, best_root) = (
        assembly.family.location_root(eta) for eta in (result.posterior, pooled)
    )
    sd, best_sd = (np.linalg.norm(part, axis=1) for part in (root, best_root))
    away = np.abs(mean - best) / sd
    train_x, train_y = (
        np.concatenate(
            [np.asarray(one.records[name][one.valid], float) for one in sources.values()]
        )
        for name in ("x", "y")
    )
    sites = len(sources)
    # Of sums that one site sees, it knows its own share of the noise.
    shares = sites if raw["privacy"]["view"] == "message" else sites / (sites - 1)
    once = one_shot(train_x, train_y, raw["privacy"], np.sqrt(shares), seed)
    told = (
        float(np.exp(np.log(sd / best_sd).mean())),
        float(away.max()),
        float(np.mean(away < 1.96)),
        *judged(once, np.zeros((len(once), 1)), x, y),
    )
    return (
        Outcome(*judged(mean, root, x, y), *told),
        judged(best, best_root, x, y),
        pooled,
        len(mean),
    )
