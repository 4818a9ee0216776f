"""Is the verdict right on ten studies of real tables that should go well, and on thirteen that should not?

    python benchmarks/verdicts.py                              # all, three runs each
    python benchmarks/verdicts.py heart "too many columns" --runs 5
    python benchmarks/verdicts.py adult --levers               # pulls the levers that the verdict names

What a statistician would say of each study stands here: no alarm, or an alarm with certain words. But for
five studies (README.md) it was written down before they ran. Numbers are held against the same model
fitted to all records pooled, without noise. A verdict is right if such an alarm is there, none is of a
site that is well, no run that should go well has another, its multiple of widths is within 25 %, and
effects that stand out have the pooled fit's sign, but for those that it says chance may explain.
"""

import argparse
import pathlib
import re
import tempfile
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import planned_widths as tables
from planned_widths import Cohort, number, yes

from fedvi.planning import scenarios
from fedvi.results import verdict as verdicts
from fedvi.results.outcome import verdict_of
from fedvi.run import loading, simulate
from fedvi.study import build
from fedvi.study.config import parse_study

NEAR = 1.25
OPEN: dict[str, Any] = {"solver": {"kind": "glm"}, "privacy": {"protection": "none"}}
NOTHING: Mapping[str, Any] = MappingProxyType({})
# Alarms of one site.
OF_SITES = "share of the precision|never answered"


class Case(NamedTuple):
    """A study, and what should be said of its run.

    Attributes:
      cohort: makes its table.
      wrong: what is wrong with it; "" of one that should go well.
      alarms: a pattern that an alarm must match; "" where there should be none.
      epsilon: of the promise; None for a study without noise.
      change: section → its keys that differ.
      dead: a site that never answers.
      auc: of the outcome, as a paper would state it.
    """

    cohort: Callable[[], Cohort]
    wrong: str = ""
    alarms: str = ""
    epsilon: float | None = 4.0
    change: Mapping[str, Any] = NOTHING
    dead: str = ""
    auc: float = 0.75


def of(
    make: Callable[[], Cohort],
    formula: str = "",
    columns: dict[str, dict[str, Any]] | None = None,
    rows: Callable[[dict[str, str]], dict[str, str]] | None = None,
    most: int | None = None,
    prior: float | None = None,
    **model: Any,
) -> Callable[[], Cohort]:
    """Returns a maker of a cohort with other columns, another model or fewer records a site."""

    def made() -> Cohort:
        found = make()
        sites = {
            site: [row | (rows(row) if rows else {}) for row in held[:most]]
            for site, held in found.sites.items()
        }
        formula_ = formula or found.formula
        words = set(re.findall(r"\w+", formula_))
        schema = {k: v for k, v in (found.columns | (columns or {})).items() if k in words}
        outcome = re.findall(r"\w+", formula_.partition("~")[0])[-1]
        schema = {outcome: schema.pop(outcome)} | schema
        kinds = tuple(model.items()) or found.model
        return Cohort(formula_, schema, sites, kinds, prior or found.prior)

    return made


def trauma() -> Cohort:
    rows = tables.read_rows(tables.DATA / "bfi-trauma" / "trauma_scaled.csv")
    sites = {f"h{n}": [row for row in rows if row["hospital"] == str(n)] for n in (1, 2, 3)}
    columns = {"mortality": yes("1", "0"), "sex": yes("1", "0")}
    columns |= {name: number(-10, 10, 0, 1) for name in ("age", "ISS", "GCS")}
    return Cohort("mortality ~ sex + age + ISS + GCS", columns, sites)


def bank() -> Cohort:
    rows = tables.read_rows(tables.DATA / "bank-marketing" / "bank-full.csv.gz", None, ";")
    columns = {
        "y": yes("yes", "no"),
        "age": number(18, 95, 40, 10),
        "housing": yes("yes", "no"),
        "loan": yes("yes", "no"),
        "campaign": number(1, 10, 3, 3),
        "marital": {"type": "level", "levels": ["married", "single", "divorced"]},
    }
    return Cohort("y ~ age + housing + loan + campaign + marital", columns, tables.dealt(rows, 6))


def breast() -> Cohort:
    names = ["id", "kind", *(f"f{n}" for n in range(30))]
    rows = tables.read_rows(tables.DATA / "breast-cancer-wisconsin" / "wdbc.data", names)
    columns = {"kind": yes("M", "B")}
    for name in names[2:]:
        cells = np.array([float(row[name]) for row in rows])
        low, high = float(cells.min()), float(cells.max())
        columns[name] = number(low, high, (low + high) / 2, (high - low) / 4)
    return Cohort("kind ~ " + " + ".join(names[2:]), columns, tables.dealt(rows, 3))


def home() -> Cohort:
    """Returns stays of diabetics until they go home, and other ends of a stay as censored."""
    found = tables.diabetes()
    for row in (row for rows in found.sites.values() for row in rows):
        row["home"] = str(int(row["discharge_disposition_id"] == "1"))
    days = {"days": {"column": "time_in_hospital", **number(0.5, 14, 4, 3)}, "home": yes("1", "0")}
    formula = "Surv(days, home) ~ years + sex + num_medications + before"
    kept = {
        name: found.columns[name] for name in re.findall(r"\w+", formula) if name in found.columns
    }
    kind = (("kind", "survival"), ("cuts", [2.5, 5.5]))
    return Cohort(formula, days | kept, found.sites, kind)


adult, heart, wine, credit = tables.adult, tables.heart, tables.wine, tables.credit
STAY = {"time_in_hospital": {"type": "count", "bounds": [0, 14], "missing": "drop"}}
MARITAL = {"formula": "marital ~ age + years + hours + sex", "kind": "multinomial"}
TWINS = {
    "proof": number(8, 15, 10.5, 1) | {"expected": {"mean": 10.5, "sd": 1.2}},
    "lot": number(0, 10, 5, 1) | {"expected": {"mean": 5, "sd": 1}},
}
YOUNG = number(17, 25, 21, 4)
DESCENT = {"kind": "dp_optimisation", "clip_norm": 2.0, "steps": 50, "learning_rate": 0.1}
UNHELD = "intervals leave out"
# A long tail, clipped, put means of these two 4 to 6 sds off: that is to be said.
LONG = "num_medications: clipping is expected"

CASES = {
    "heart": Case(heart, auc=0.88),
    "heart, masked sums": Case(
        heart, change={"privacy": {"view": "aggregate"}, "aggregation": {"secure": True}}, auc=0.88
    ),
    "trauma, no noise": Case(trauma, epsilon=None, change={"schedule": {"rounds": 10}}),
    "adult": Case(adult, epsilon=1.0, auc=0.88),
    "diabetes, counts": Case(
        of(
            tables.diabetes,
            "time_in_hospital ~ years + sex + num_medications + number_diagnoses",
            STAY,
            kind="negative_binomial",
            dispersion=0.2,
        ),
        alarms=LONG,
        epsilon=2.0,
    ),
    "wine, linear": Case(wine, epsilon=1.0),
    "diabetes, survival": Case(home, alarms=LONG),
    "adult, multinomial": Case(of(adult, **MARITAL)),
    "bank, vips": Case(
        bank,
        alarms=UNHELD,
        change={
            "solver": {"kind": "vips", "clip_norm": 2.0},
            "privacy": {"view": "aggregate"},
            "schedule": {"rounds": 60},
        },
    ),
    "credit default": Case(credit, epsilon=1.0),
    "too many columns": Case(
        breast,
        "30 columns, 569 records, ε = 1",
        "wider than before|added next",
        epsilon=1.0,
        auc=0.99,
    ),
    "ε too small": Case(
        heart, "ε = 0.05 for 920 records", "wider than before|added next", 0.05, auc=0.88
    ),
    "DP-SVI": Case(
        adult,
        "noise moves each round by many posterior sds",
        "did not settle",
        change={"solver": DESCENT, "schedule": {"rounds": 3}},
    ),
    "swinging": Case(
        heart,
        "DP-SVI with steps of 10 posterior sds",
        "did not settle",
        change={"solver": DESCENT | {"learning_rate": 10.0}, "schedule": {"rounds": 5}},
    ),
    "too few rounds": Case(
        credit,
        "two rounds",
        "did not settle",
        1.0,
        {"schedule": {"rounds": 2}},
    ),
    "dead site": Case(
        tables.eicu,
        "one of four sites never answers",
        "South never answered",
        change={"schedule": {"deadline_seconds": 60, "quorum": 2}},
        dead="South",
    ),
    "separation": Case(
        of(
            heart,
            "disease ~ age + sex + painless + vessels",
            {"vessels": yes("1", "0")},
            lambda row: {"vessels": row["disease"]},
        ),
        "a column that is the outcome",
        "vessels",
        8.0,
    ),
    "twin columns": Case(
        of(
            wine,
            "quality ~ alcohol + proof + volatile_acidity + sulphates + lot",
            TWINS,
            lambda row: {"proof": row["alcohol"], "lot": "5"},
            kind="linear",
            noise_scale=0.8,
        ),
        "a column twice, and a constant one",
        "alcohol and proof|lot",
    ),
    "cut off": Case(
        of(adult, columns={"age": YOUNG | {"expected": {"mean": 23, "sd": 3}}}),
        "bounds of age end at 25",
        "age",
        1.0,
        auc=0.88,
    ),
    "clip norm": Case(
        adult,
        "clip norm 0.002 for rows of norm 2",
        "clipping is expected",
        1.0,
        {"solver": {"clip_norm": 0.002}},
        auc=0.88,
    ),
    "tight prior": Case(
        of(adult, prior=0.05), "prior sd of 0.05", "than the prior takes", auc=0.88
    ),
    "five records": Case(
        of(heart, most=5), "five records a site", "wider than before|added next", auc=0.88
    ),
    "all alike": Case(
        of(
            credit,
            columns={"unpaid": yes("1", "0") | {"expected": {"share": 0.22}}},
            rows=lambda _: {"unpaid": "0"},
        ),
        "nobody has the outcome",
        "unpaid would be|not as declared",
        1.0,
    ),
}


def study(case: Case, cohort: Cohort, folder: pathlib.Path) -> dict[str, Any]:
    """Returns a case's study, with what a published table would state of its columns."""
    raw = tables.study(cohort, case.epsilon or 1.0, folder, "message")
    said = tables.declared(cohort, case.auc)
    raw["data"]["schema"] = {name: said[name] | cohort.columns[name] for name in said}
    if case.epsilon is None:
        raw |= OPEN
    for section, keys in case.change.items():
        raw[section] = ({} if "kind" in keys else raw.get(section, {})) | keys
    for client in raw["clients"]:
        client["latency_seconds"] = 1e6 if client["name"] == case.dead else 1.0
    return raw


def built(raw: dict[str, Any], folder: pathlib.Path) -> tuple[Any, Any]:
    """Returns a study, and its records."""
    assembly = build.assemble(parse_study(raw))
    return assembly, loading.load_shards(assembly, folder)


class Run(NamedTuple):
    """One run beside the pooled fit.

    Attributes:
      verdict: on it.
      multiple: its median width as a multiple of the pooled fit's, of the coefficients that it is said of.
      opposite: effects that stand out, beyond chance, with the other sign than the pooled fit's.
      farthest: the largest distance of a mean from the pooled one, in sds of the run.
    """

    verdict: verdicts.Verdict
    multiple: float
    opposite: tuple[str, ...]
    farthest: float

    def faults(self, case: Case) -> list[str]:
        """Says what is wrong with the verdict."""
        said, alarms = self.verdict, self.verdict.alarms
        right = [alarm for alarm in alarms if case.alarms and re.search(case.alarms, alarm)]
        found = [
            f"needless alarm: {alarm}"
            for alarm in alarms
            if alarm not in right and (not case.wrong or re.search(OF_SITES, alarm))
        ]
        if case.alarms and not right:
            found.append("no alarm of what is wrong")
        if said.multiple and not 1.0 / NEAR < said.multiple / self.multiple < NEAR:
            found.append(f"widths are {self.multiple:.2g} times as wide, {said.multiple:.2g} said")
        if said.settled is not False:
            found += [f"sign: {name}" for name in self.opposite]
        return found


def judged(case: Case, count: int) -> list[Run]:
    """Runs a study, and judges each run."""
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        raw = study(case, case.cohort(), folder)
        assembly, sources = built(raw, folder)
        there = [client for client in raw["clients"] if client["name"] != case.dead]
        whole = built(raw | {"clients": there}, folder) if case.dead else (assembly, sources)
    family, found = assembly.family, []
    true, exact = family.moments(simulate.run(*whole, pooled=True).pooled)
    for _ in range(count):
        result = simulate.run(assembly, sources)
        mean, sd = family.moments(result.posterior)
        said = verdict_of(result, advise=not found)
        signs = dict(zip(assembly.model.names, mean * true, strict=True))
        told = [name for name in said.stand_out if name not in said.by_chance]
        opposite = tuple(name for name in told if signs[name] < 0.0)
        farthest = float((np.abs(mean - true) / sd).max())
        names = [name in said.multiples or not said.multiples for name in assembly.model.names]
        multiple = float(np.median((sd / exact)[names]))
        found.append(Run(said, multiple, opposite, farthest))
    return found


def pulled(case: Case, count: int) -> None:
    """Pulls each lever that a verdict would name, on half of the records, and prints the widths then."""
    cohort = case.cohort()
    half = cohort._replace(sites={site: rows[::2] for site, rows in cohort.sites.items()})

    def sds(raw: dict[str, Any], folder: pathlib.Path) -> tuple[Any, dict[str, float]]:
        assembly, sources = built(raw, folder)
        found = [simulate.run(assembly, sources).posterior for _ in range(count)]
        each = np.median([assembly.family.moments(eta)[1] for eta in found], axis=0)
        return assembly, dict(zip(assembly.model.names, each, strict=True))

    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        raw = study(case, half, folder)
        assembly, before = sds(raw, folder)
        for lever in scenarios.levers(assembly):
            if "sites" in lever.change:
                continue
            if "times" in lever.change:
                with tempfile.TemporaryDirectory() as other:
                    _, after = sds(study(case, cohort, pathlib.Path(other)), pathlib.Path(other))
            else:
                changed = scenarios.changed(assembly.study, **lever.change).as_written()
                _, after = sds(changed, folder)
            effects = [name for name in after if name in before and "(Intercept)" not in name]
            narrower = 1.0 - np.median([after[name] / before[name] for name in effects])
            print(f"- {lever.what}: {lever.narrower:.0%} said, {narrower:.0%} found", flush=True)


def main() -> None:
    """Prints each verdict beside the truth, and the rows of a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--runs", type=int, default=3, help="simulations of each study (3)")
    parser.add_argument("--levers", action="store_true", help="pull the levers, and judge nothing")
    given = parser.parse_args()
    rows = []
    for name in given.cases or CASES:
        case = CASES[name]
        print(f"\n{name}: {case.wrong or 'should go well'}")
        if given.levers:
            pulled(case, given.runs)
            continue
        found = judged(case, given.runs)
        faults = [run.faults(case) for run in found]
        for run, wrong in zip(found, faults, strict=True):
            print(
                f"- widths {run.multiple:.2f} of the pooled fit's, means up to {run.farthest:.1f} sd off"
            )
            print("".join(f"    {line}\n" for line in verdicts.lines(run.verdict)), end="")
            print("".join(f"  ! {line}\n" for line in wrong), end="", flush=True)
        said = [run.verdict.multiple for run in found if run.verdict.multiple]
        wide = np.median([run.multiple for run in found])
        rows.append(
            f"| {name} | {case.wrong or '–'} | {f'{np.median(said):.2g}' if said else '–'}, {wide:.2g} "
            f"| {sum(not wrong for wrong in faults)} of {len(found)} |"
        )
    print("\n" + "\n".join(rows))


if __name__ == "__main__":
    main()
