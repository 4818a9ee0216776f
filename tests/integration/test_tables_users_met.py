"""Tables as users have them, from the draft of a study to its result by the command line.

Every table is made up, with effects that are known. A result is within 4 of its sds of them, and whatever
was not read, or not as it is written, is named on the site's own screen.
"""

import csv
import json
import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.commands import invoked
from tests.commands import succeeded as fedvi

Make = Callable[[np.random.Generator, int, str], dict[str, Sequence[Any]]]


def logit(share: float) -> float:
    return math.log(share / (1.0 - share))


def happened(random: np.random.Generator, eta: np.ndarray) -> np.ndarray:
    return (random.random(len(eta)) < 1 / (1 + np.exp(-eta))) * 1


def person_time(random: np.random.Generator, count: int, _: str) -> dict[str, Any]:
    """A follow-up that ends at the event."""
    arm = random.integers(0, 2, count)
    time = random.exponential(4.0 * np.exp(-0.6 * arm))
    return {"years": time.clip(0.001, 3).round(4), "event": (time <= 3) * 1, "arm": arm}


def fixed_time(random: np.random.Generator, count: int, _: str) -> dict[str, Any]:
    arm, time = random.integers(0, 2, count), random.uniform(0.1, 3, count).round(3)
    return {"years": time, "event": random.poisson(0.25 * np.exp(0.6 * arm) * time), "arm": arm}


def days(random: np.random.Generator, count: int, _: str) -> dict[str, Any]:
    age, arm = random.normal(58, 12, count).clip(20, 95).round(), random.integers(0, 2, count)
    grade = random.choice(["I", "II", "III"], count, p=[0.15, 0.6, 0.25])
    eta = 0.15 * (age - 60) / 10 - 0.5 * arm + 0.5 * (grade == "II") + 1.1 * (grade == "III")
    time, end = random.exponential(2600 * np.exp(-eta)), random.uniform(300, 2800, count)
    seen = {"days": np.minimum(time, end).clip(1).round(), "event": (time <= end) * 1}
    return seen | {"age": age, "arm": arm, "grade": grade}


def last_visit(random: np.random.Generator, count: int, _: str) -> dict[str, Any]:
    """Yearly visits 1 to 5: the events of year 5 are at the upper bound of the column."""
    arm = random.integers(0, 2, count)
    year = 1 + np.floor(random.exponential(4.0 * np.exp(0.5 * arm))).astype(int)
    return {"years": np.minimum(year, 5), "died": (year <= 5) * 1, "arm": arm}


def pressure(random: np.random.Generator, count: int, _: str) -> dict[str, Any]:
    age, dose = random.normal(62, 12, count).clip(20, 95).round(), random.uniform(0, 10, count)
    sex = random.choice(["f", "m"], count)
    mean = 128 + 4 * (age - 60) / 10 + 8.6 * (sex == "m") - 0.35 * dose
    sbp = (mean + random.normal(0, 11, count)).clip(60, 220).round(1)
    return {"age": age, "sex": sex, "dose": dose.round(2), "sbp": sbp}


RISKS = {"3601": 0.3, "0117": 0.1, "117": 0.7}


def codes(random: np.random.Generator, count: int, _: str) -> dict[str, Any]:
    code = random.choice(list(RISKS), count)
    return {"code": code, "died": [int(random.random() < RISKS[each]) for each in code]}


def notes(random: np.random.Generator, count: int, _: str) -> dict[str, Any]:
    """A note with a line break, which nobody uses, where the outcome is 1."""
    age, sex = random.integers(30, 90, count), random.choice(["f", "m"], count)
    died = happened(random, -0.5 + 0.6 * (age - 60) / 10 + 0.5 * (sex == "m"))
    note = ["fell,\nat home" if each and random.random() < 0.6 else "well" for each in died]
    return {"age": age, "sex": sex, "note": note, "died": died}


def letters(random: np.random.Generator, count: int, site: str) -> dict[str, Any]:
    """One site decomposes its letters, and another one's file is in Latin-1 (see ``write``)."""
    sex, age = random.choice(["weiblich", "männlich"], count), random.integers(30, 90, count)
    died = happened(random, -1 + 0.5 * (age - 60) / 10 + 1.0 * (sex == "männlich"))
    spelt = [unicodedata.normalize("NFD", each) if site == "b" else each for each in sex]
    return {"alter": age, "geschlecht": spelt, "tod": died}


def populations(random: np.random.Generator, count: int, _: str) -> dict[str, Any]:
    """A third of the populations are above the bound that is declared."""
    pop, old = np.exp(random.uniform(np.log(2e3), np.log(1e7), count)), random.uniform(8, 30, count)
    deaths = random.poisson(pop.round() * np.exp(-6 + 0.3 * (old.round(1) - 20) / 5))
    return {"deaths": deaths, "pop": pop.astype(int), "old": old.round(1)}


def row_names(random: np.random.Generator, count: int, _: str) -> dict[str, Any]:
    """As R's write.csv and pandas' to_csv write tables: the first column has no name."""
    sbp, dbp = random.normal(130, 15, count).round(), random.normal(80, 10, count).round()
    died = happened(random, 1.2 * (sbp - 130) / 15)
    return {"": range(1, count + 1), "dbp": dbp, "sbp": sbp, "died": died}


class Case(NamedTuple):
    """One table, and the study that a user drafts of it.

    Attributes:
      make: draws the columns of a site.
      flags: of `fedvi init`, beside the columns.
      columns: of `fedvi init --column`.
      truth: coefficient → its true value, in the unit of the file.
      told: a part of the sentence that each site is told; nothing if empty.
      when: the promises under which it is told.
      records: of the three sites together, about.
    """

    make: Make
    flags: Sequence[str]
    columns: Mapping[str, str]
    truth: Mapping[str, float]
    told: str = ""
    when: tuple[str, ...] = ("none", "dp")
    records: int = 4500


RATE = {"(Intercept)": math.log(0.25), "arm": 0.6}
YEARS = {"event": "count:0..5", "years": "number:0.001..3", "arm": "binary:1/0"}
RATES = ("--kind", "poisson", "--formula", "event ~ arm + offset(log(years))")
HAZARD = math.log(1.0 - math.exp(-0.25))
CASES = {
    "person_time": Case(person_time, RATES, YEARS, RATE),
    "person_time_fixed": Case(fixed_time, RATES, YEARS, RATE),
    "days": Case(
        days,
        ("--kind", "survival", "--formula", "Surv(days, event) ~ age + arm + grade"),
        {
            **{"days": "number:1..3000", "event": "binary:1/0", "age": "number:18..100"},
            **{"arm": "binary:1/0", "grade": "level:I,II,III"},
        },
        {
            **{"baseline (0, ∞)": -math.log(2600) - 0.015, "age": 0.15 * 4.1},
            **{"arm": -0.5, "grade[II]": 0.5, "grade[III]": 1.1},
        },
    ),
    "end_of_follow_up": Case(
        last_visit,
        ("--kind", "survival", "--formula", "Surv(years, died) ~ arm", "--setting", "cuts=1,2,3,4"),
        {"years": "number:0.5..5", "died": "binary:1/0", "arm": "binary:1/0"},
        {
            **{f"baseline ({low}, {low + 1}]": HAZARD for low in range(4)},
            "baseline (4, ∞)": HAZARD,
            "arm": math.log(1.0 - math.exp(-0.25 * math.exp(-0.5))) - HAZARD,
        },
    ),
    "outcome_units": Case(
        pressure,
        ("--kind", "linear", "--formula", "sbp ~ age + sex + dose"),
        {
            **{"sbp": "number:60..220", "age": "number:20..95"},
            **{"sex": "level:f,m", "dose": "number:0..10"},
        },
        {"(Intercept)": 128 - 1 - 1.75, "age": 4 * 3.75, "sex[m]": 8.6, "dose": -1.75},
        # With privacy it is learnt.
        "half of model.noise_scale, which is taken for known, is more than the sd of `sbp`",
        ("none",),
    ),
    "codes": Case(
        codes,
        ("--kind", "logistic", "--formula", "died ~ code"),
        {"died": "binary:1/0", "code": f"level:{','.join(RISKS)}"},
        {
            "(Intercept)": logit(0.3),
            **{f"code[{code}]": logit(RISKS[code]) - logit(0.3) for code in ("0117", "117")},
        },
    ),
    "broken_lines": Case(
        notes,
        ("--kind", "logistic", "--formula", "died ~ age + sex"),
        {"died": "binary:1/0", "age": "number:20..100", "sex": "level:f,m"},
        {"(Intercept)": -0.5, "age": 0.6 * 4, "sex[m]": 0.5},
        "records have a cell with a line break, and a private study reads line by line",
        ("dp",),
    ),
    "encodings": Case(
        letters,
        ("--kind", "logistic", "--formula", "tod ~ alter + geschlecht"),
        {"tod": "binary:1/0", "alter": "number:20..100", "geschlecht": "level:weiblich,männlich"},
        {"(Intercept)": -1.0, "alter": 0.5 * 4, "geschlecht[männlich]": 1.0},
    ),
    "exposure_bound": Case(
        populations,
        ("--kind", "poisson", "--formula", "deaths ~ old + offset(log(pop))"),
        {"deaths": "count:0..100000", "pop": "number:1..1000000", "old": "number:5..35"},
        {"(Intercept)": -6.0, "old": 0.3 * 3},
        "most of all because of the column `pop`: numbers are outside the bounds",
        records=900,
    ),
    "row_names": Case(
        row_names,
        ("--kind", "logistic", "--formula", "died ~ dbp + sbp"),
        {"died": "binary:1/0", "dbp": "number:40..120", "sbp": "number:80..180"},
        {"(Intercept)": 0.0, "dbp": 0.0, "sbp": 1.2 / 15 * 50},
    ),
}
SHARES, NEW = {"a": 0.4, "b": 0.35, "c": 0.25}, 0.1


def write(folder: Path, case: Case) -> None:
    random = np.random.default_rng(15)
    for site, share in {**SHARES, "new": NEW}.items():
        table = case.make(random, int(case.records * share), site)
        is_latin = case.make is letters and site == "a"
        with (folder / f"{site}.csv").open(
            "w", newline="", encoding="latin-1" if is_latin else "utf-8"
        ) as file:
            csv.writer(file).writerows([list(table), *zip(*table.values(), strict=True)])


def draft(folder: Path, case: Case, protection: str) -> Path:
    """Drafts the study as a user would, beside its tables."""
    promise = ("--epsilon", 4, "--relation", "substitute") if protection == "dp" else ()
    columns = [
        item for name, said in case.columns.items() for item in ("--column", f"{name}={said}")
    ]
    fedvi(
        *("init", folder, "--yes", *case.flags, *columns, "--clients", ",".join(SHARES)),
        *("--protection", protection, *promise, "--max-records", int(case.records * 0.4) + 1),
    )
    write(folder, case)
    return folder / "study.toml"


@pytest.mark.nightly(but=("none-codes", "none-broken_lines", "none-encodings"))
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("protection", ["none", "dp"])
def test_a_drafted_study_finds_what_the_table_says(
    name: str, protection: str, tmp_path: Path
) -> None:
    case = CASES[name]
    study = draft(tmp_path, case, protection)
    fedvi("check", study)
    done = fedvi("simulate", study, "--pooled", "--quiet", "--out", tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    found = {row["name"]: row for row in result["coefficients"]}
    told = case.told if protection in case.when else ""
    for site in SHARES:
        looked = fedvi("data", "inspect", study, "--data", tmp_path / f"{site}.csv").output
        assert (f"warning: {site}: " in done.stderr) == bool(told) == ("warning" in looked)
        assert told in done.stderr
        assert told in looked
    assert set(found) == set(case.truth)
    # Records that a private study cannot read are those with the event: it is warned of, and wrong.
    lost = name == "broken_lines" and protection == "dp"
    for coefficient, truth in case.truth.items():
        row = found[coefficient]
        if not lost:
            assert abs(row["mean"] - truth) < 4.0 * row["sd"], coefficient
            assert abs(row["pooled_mean"] - truth) < 4.0 * row["pooled_sd"], coefficient
    if lost:
        # The control reads as the run does, so that the two can be compared.
        assert found["(Intercept)"]["pooled_mean"] < -0.5 - 4.0 * found["(Intercept)"]["pooled_sd"]
    for command in ("report", "posterior"):
        fedvi(
            command, tmp_path / "run", *(("--out", tmp_path / "r") if command == "report" else ())
        )
    fedvi("evaluate", tmp_path / "run", tmp_path / "new.csv")
    fedvi("predict", tmp_path / "run", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    with (tmp_path / "p.csv").open() as file:
        # Public records are read whole, so that each has one line.
        assert len(list(csv.reader(file))) == 1 + int(case.records * NEW)


def test_a_table_with_row_names_is_drafted_and_its_names_are_not_given_again(
    tmp_path: Path,
) -> None:
    write(tmp_path, CASES["row_names"])
    looked = fedvi("data", "inspect", tmp_path / "a.csv")
    assert "column 1 has no name: left out" in looked.stderr
    given = ("--yes", "--response", "died", "--clients", "a,b,c")
    fedvi("init", tmp_path / "new", "--from", tmp_path / "a.csv", *given)
    assert 'formula = "died ~ dbp + sbp"' in (tmp_path / "new" / "study.toml").read_text()
    for command in (("data", "inspect"), ("init", tmp_path / "other", *given, "--from")):
        refused = invoked(*command, tmp_path / "a.csv", "--columns", "id,sbp,dbp,died")
        assert refused.exit_code == 2
        assert "begins with names of columns, which would be read as a record" in refused.stderr


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (("1.234", "987", "1.002", "450"), "points may stand between thousands"),
        (
            ("1.024,1", "87,5", "1.901,0", "3,2"),
            "numbers have decimal commas, which no study reads",
        ),
    ],
)
def test_european_numbers_are_told_at_the_first_look(
    cells: Sequence[str], said: str, tmp_path: Path
) -> None:
    rows = "".join(f"{cell};{index % 2}\n" for index, cell in enumerate(cells * 10))
    (tmp_path / "a.csv").write_text("crp;died\n" + rows)
    assert f"crp: {said}" in fedvi("data", "inspect", tmp_path / "a.csv").output


HEAD, LINES = ("age", "sex", "died"), [("63", "f", "1"), ("50", "m", "0"), ("71", "f", "0")] * 20


def joined(separator: str = ",", quote: str = "", more: str = "", numbers: bool = False) -> str:
    """Returns a table as text, with cells of text in quotes, and with row numbers under no name."""
    rows = [
        ([f"{quote}{index}{quote}"] if numbers else [])
        + [cell if cell.isdigit() else f"{quote}{cell}{quote}" for cell in row]
        for index, row in enumerate([HEAD, *LINES])
    ]
    rows[0] = rows[0][numbers:]
    return "".join(separator.join(row) + more + "\n" for row in rows)


# What a program writes, and a part of the sentence that a study answers with; "" if it is read.
WRITTEN = {
    "plain": (joined(), ""),
    "blanks before quotes": (joined(", ", '"'), ""),
    "windows": (joined().replace("\n", "\r\n"), ""),
    "a mark before the names": ("\ufeff" + joined(), ""),
    "an invisible letter": (joined().replace("sex", "sex\u200b", 1), ""),
    "a hard blank": (joined().replace("age", "age\u00a0", 1), ""),
    "separators at the ends": (joined(more=","), ""),
    "Excel's sep": ("sep=,\n" + joined(), "the first line says what the separator is (sep=)"),
    "a comment": ("# of 2024\n" + joined(), "the first line begins with #, as a comment does"),
    "comments": (joined().replace("50,m,0", "# seen again"), "a comment among the records?"),
    "capitals": (joined().replace("age", "Age", 1), 'if "Age" is meant, write it so'),
    "semicolons": (joined(";"), "has semicolons between the names"),
    "quotes and semicolons": (joined(";", '"'), "has semicolons between the names"),
    "tabs": (joined("\t"), "has tabs between the names"),
    "write.table": (joined(" ", '"', numbers=True), "as R's write.table writes them"),
    "write.table, bare": (joined(" ", numbers=True), "as R's write.table writes them"),
    "write.table, row.names = FALSE": (joined(" ", '"'), "as R's write.table writes them"),
    "write.table, commas": (joined(",", '"', numbers=True), "no name over the names of rows"),
    "capital letters": (
        joined().replace(",f,", ",F,"),
        "of the column `sex`: cells are none of those",
    ),
    "words": (joined().replace(",0\n", ",no\n"), "of the column `died`: cells are none of those"),
}


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for protection in ("none", "dp"):
        folder = tmp_path_factory.mktemp(protection)
        columns = ("--column", "age=number:18..100", "--column", "sex=level:f,m")
        fedvi(
            *("init", folder, "--yes", "--protection", protection, "--clients", "a,b"),
            *("--formula", "died ~ age + sex", *columns, "--column", "died=binary:1/0"),
            *("--max-records", 100),
        )
        found[protection] = folder / "study.toml"
    return found


@pytest.mark.parametrize("protection", ["none", "dp"])
@pytest.mark.parametrize("written", WRITTEN)
def test_what_programs_write_around_a_table_is_read_or_named(
    written: str, protection: str, studies: dict[str, Path], tmp_path: Path
) -> None:
    text, said = WRITTEN[written]
    (tmp_path / "a.csv").write_text(text, encoding="utf-8", newline="")
    looked = invoked("data", "inspect", studies[protection], "--data", tmp_path / "a.csv")
    shown = looked.output + looked.stderr
    counted = re.search(r"(\d+) rows, of which (\d+) count", shown)
    if said:
        assert said in shown
        assert counted is None or int(counted[2]) < int(counted[1])
    else:
        assert "warning" not in shown
        assert counted is not None
        assert counted[1] == counted[2] == str(len(LINES))
