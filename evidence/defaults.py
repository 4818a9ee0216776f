"""What a study gets that `fedvi init --yes` drafted and nobody changed: how well it predicts, and how wide.

    python -m evidence.defaults adult --clients 1 --epsilon 0.5 1 2 4
    python -m evidence.defaults bank credit --splits 3        # read once, when nothing is chosen any more

Settings are chosen on Adult and on breast cancer; bank and credit are there to judge them, once.
"""

import argparse
import csv
import gzip
import io
import pathlib
import tempfile
from typing import Any, NamedTuple

import numpy as np
import scipy.special
import scipy.stats
from click.testing import CliRunner
from fedvi.cli.main import main as fedvi
from fedvi.run import loading, simulate
from fedvi.study import build
from fedvi.study.config import load_study, parse_study

DATA = pathlib.Path(__file__).resolve().parent.parent.parent / "shared" / "data"


class Table(NamedTuple):
    """A table as a consortium has it, and what is publicly known of its columns.

    Attributes:
      response: the binary outcome.
      columns: name → what `fedvi init --column` takes.
      rows: cells by name.
      tested: rows of an official test set; None: a fifth is drawn.
    """

    response: str
    columns: dict[str, str]
    rows: list[dict[str, str]]
    tested: list[dict[str, str]] | None = None


def adult() -> Table:
    """The census of 1994: five numbers by their bounds, seven columns of levels."""
    names = (
        *("age", "workclass", "fnlwgt", "education", "years", "marital", "occupation"),
        *("relationship", "race", "sex", "gain", "loss", "hours", "country", "income"),
    )

    def read(file: str) -> list[dict[str, str]]:
        text = gzip.decompress((DATA / "adult" / file).read_bytes()).decode()
        cells = csv.reader(io.StringIO(text), skipinitialspace=True)
        rows = [dict(zip(names, row, strict=True)) for row in cells if len(row) == 15]
        for row in rows:
            row["income"] = "yes" if row["income"].startswith(">50K") else "no"
        return rows

    train, test = read("adult.data.gz"), read("adult.test.gz")
    numbers = {
        "age": "17..90",
        "years": "1..16",
        "gain": "0..99999",
        "loss": "0..4356",
        "hours": "1..99",
    }
    columns = {name: f"number:{bounds}" for name, bounds in numbers.items()}
    kinds = ("workclass", "marital", "occupation", "relationship", "race", "sex")
    columns |= {name: _levels(train, name) for name in kinds}
    return Table("income", columns, train, test)


def breast_cancer() -> Table:
    """569 tumours: the ten measured means, by bounds that are wider than any tumour's."""
    names = {
        "radius": "5..30", "texture": "5..40", "perimeter": "40..190", "area": "100..2600",
        "smoothness": "0.05..0.17", "compactness": "0..0.4", "concavity": "0..0.5",
        "points": "0..0.25", "symmetry": "0.1..0.35", "dimension": "0.04..0.1",
    }  # fmt: skip
    with (DATA / "breast-cancer-wisconsin" / "wdbc.data").open() as file:
        cells = [row for row in csv.reader(file) if len(row) == 32]
    rows = [
        {**dict(zip(names, row[2:12], strict=True)), "malignant": "yes" if row[1] == "M" else "no"}
        for row in cells
    ]
    return Table("malignant", {name: f"number:{bounds}" for name, bounds in names.items()}, rows)


def bank() -> Table:
    """Calls of a bank: what is known before one is made."""
    text = gzip.decompress((DATA / "bank-marketing" / "bank-full.csv.gz").read_bytes()).decode()
    rows = list(csv.DictReader(io.StringIO(text), delimiter=";"))
    numbers = {"age": "18..95", "balance": "-8019..102127", "day": "1..31", "campaign": "1..63"}
    numbers |= {"pdays": "-1..871", "previous": "0..275"}
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
    columns = {name: f"number:{bounds}" for name, bounds in numbers.items()}
    return Table("y", columns | {name: _levels(rows, name) for name in kinds}, rows)


def credit() -> Table:
    """Holders of credit cards in Taiwan, and who did not pay."""
    text = gzip.decompress(
        (DATA / "credit-default" / "UCI_Credit_Card.csv.gz").read_bytes()
    ).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    for row in rows:
        row["unpaid"] = "yes" if row["default.payment.next.month"] == "1" else "no"
    columns = {"LIMIT_BAL": "number:10000..1000000", "AGE": "number:21..79"}
    columns |= {f"PAY_{month}": "number:-2..8" for month in (0, 2, 3, 4, 5, 6)}
    columns |= {f"BILL_AMT{month}": "number:-350000..1700000" for month in range(1, 7)}
    columns |= {f"PAY_AMT{month}": "number:0..1700000" for month in range(1, 7)}
    columns |= {name: _levels(rows, name) for name in ("SEX", "EDUCATION", "MARRIAGE")}
    return Table("unpaid", columns, rows)


def _levels(rows: list[dict[str, str]], name: str) -> str:
    return "level:" + ",".join(sorted({row[name] for row in rows}))


TABLES = {"adult": adult, "breast-cancer": breast_cancer, "bank": bank, "credit": credit}


class Outcome(NamedTuple):
    """What a posterior is worth on records that it has not seen.

    Attributes:
      auc: area under the receiver's curve.
      likelihood: mean log predictive density of an outcome.
      accuracy: share of outcomes that are the likelier one.
      width: geometric mean of posterior sd ÷ the pooled fit's.
      worst: largest |mean − pooled mean| ÷ posterior sd.
    """

    auc: float
    likelihood: float
    accuracy: float
    width: float
    worst: float


def drafted(table: Table, folder: pathlib.Path, clients: int, seed: int, **options: Any) -> dict:
    """Lets `fedvi init --yes` draft the study of a table, and writes the sites' files beside it."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(table.rows))
    train, test = [table.rows[i] for i in order], table.tested
    if test is None:
        cut = len(train) // 5
        test, train = train[:cut], train[cut:]
    parts = {f"c{index}": train[index::clients] for index in range(clients)}
    names = [*table.columns, table.response]
    for name, rows in {**parts, "test": test}.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, names, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
    most = max(map(len, parts.values()))
    arguments = [
        "init",
        folder / "study",
        "--yes",
        "--kind",
        "logistic",
        "--response",
        table.response,
    ]
    arguments += ["--from", folder / "c0.csv", "--clients", ",".join(parts)]
    arguments += ["--max-records", max(most, len(test))]
    arguments += ["--column", f"{table.response}=binary:yes/no"]
    for name, kind in table.columns.items():
        arguments += ["--column", f"{name}={kind}"]
    for name, value in options.items():
        arguments += [f"--{name}", value]
    done = CliRunner().invoke(fedvi, [str(argument) for argument in arguments])
    if done.exit_code:
        raise SystemExit(done.output)
    raw = load_study(folder / "study" / "study.toml").as_dict()
    for client in raw["clients"]:
        client["data"] = str(folder / f"{client['name']}.csv")
    return raw


def judged(
    mean: np.ndarray, sd_root: np.ndarray, x: np.ndarray, y: np.ndarray
) -> tuple[float, ...]:
    """Returns area, log likelihood and accuracy of the posterior predictive, by quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    spread = np.linalg.norm(x @ sd_root, axis=1)
    predictor = (x @ mean)[:, None] + spread[:, None] * nodes
    p = np.clip(scipy.special.expit(predictor) @ (weights / weights.sum()), 1e-12, 1.0 - 1e-12)
    ranks = scipy.stats.rankdata(p)
    ones = int(y.sum())
    auc = (ranks[y == 1.0].sum() - ones * (ones + 1) / 2) / (ones * (len(y) - ones))
    likelihood = np.where(y == 1.0, np.log(p), np.log1p(-p)).mean()
    return float(auc), float(likelihood), float(((p > 0.5) == y).mean())


def outcome_of(raw: dict, folder: pathlib.Path, pooled: Any) -> tuple[Outcome, tuple, Any]:
    """Runs a study; returns what it is worth, the pooled fit's three scores, and the pooled fit."""
    assembly = build.assemble(parse_study(raw))
    sources = loading.load_shards(assembly, folder)
    result = simulate.run(assembly, sources, pooled=pooled is None)
    pooled = result.pooled if pooled is None else pooled
    test = loading.load_shard(assembly, "c0", folder / "test.csv")
    x, y = (np.asarray(test.records[name][test.valid], float) for name in ("x", "y"))
    (mean, root), (best, best_root) = (
        assembly.family.location_root(eta) for eta in (result.posterior, pooled)
    )
    sd, best_sd = (np.linalg.norm(part, axis=1) for part in (root, best_root))
    width = float(np.exp(np.log(sd / best_sd).mean()))
    scores = judged(mean, root, x, y)
    return (
        Outcome(*scores, width, float((np.abs(mean - best) / sd).max())),
        judged(best, best_root, x, y),
        pooled,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="+", choices=TABLES)
    parser.add_argument("--clients", type=int, default=4, help="sites of equal size (4)")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 2.0, 4.0])
    parser.add_argument("--relation", nargs="+", default=["substitute", "add_remove"])
    parser.add_argument("--view", nargs="+", default=["message"])
    parser.add_argument("--splits", type=int, default=1, help="drawn anew, each (1)")
    given = parser.parse_args()
    for name in given.tables:
        table, pooled = TABLES[name](), {}
        print(
            f"{name}: {given.clients} sites; area, log likelihood, accuracy, width, worst |z|",
            flush=True,
        )
        for relation in given.relation:
            for view in given.view:
                for epsilon in given.epsilon:
                    found = []
                    for seed in range(given.splits):
                        with tempfile.TemporaryDirectory() as place:
                            folder = pathlib.Path(place)
                            raw = drafted(
                                table,
                                folder,
                                given.clients,
                                seed,
                                epsilon=epsilon,
                                relation=relation,
                            )
                            raw["privacy"]["view"] = view
                            one, best, pooled[seed] = outcome_of(raw, folder, pooled.get(seed))
                        found.append(one)
                    mean, error = np.mean(found, axis=0), np.std(found, axis=0)
                    print(
                        f"  {relation:10} {view:9} {epsilon:4g}: "
                        + "  ".join(f"{m:8.4f} ±{e:.4f}" for m, e in zip(mean, error, strict=True))
                        + f"   pooled {best[0]:.4f} {best[1]:.4f} {best[2]:.4f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
