"""Claims about `fedvi init`: what it writes can be run, what nobody stated cannot, nothing is lost."""

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml

from fedvi.cli import _questions as questions
from fedvi.cli import init as command
from fedvi.models.outcomes.accepted import ACCEPTED
from fedvi.study.drafts.drafting import offered
from tests.commands import invoked as fedvi
from tests.conftest import ROOT
from tests.plug_ins import declare

STUDY_FILES = {
    "study.toml",
    "study.schema.json",
    "policy.toml",
    "policy.schema.json",
    "compose.coordinator.yaml",
    "compose.site.yaml",
    "README.md",
}
# What a person says of each kind of model; every column stated.
FORMULAS = {
    "logistic": ("died ~ age + sex", ["died=binary"]),
    "linear": ("los ~ age + sex", ["los=number:0..90"]),
    "binomial": (
        "cbind(falls, steady) ~ age + sex",
        ["falls=count:0..20", "steady=count:0..200"],
    ),
    "poisson": ("falls ~ age + sex", ["falls=count:0..20"]),
    "negative_binomial": ("falls ~ age + sex", ["falls=count:0..20"]),
    "multinomial": ("outcome ~ age + sex", ["outcome=level:home,ward,died"]),
    "multivariate_linear": (
        "cbind(los, cost) ~ age + sex",
        ["los=number:0..90", "cost=number:0..100000"],
    ),
    "survival": (
        "Surv(time, event) ~ age + sex",
        ["time=number:0.5..3650", "event=binary:dead/alive"],
    ),
}
COVARIATES = ["age=number:18..100", "sex=binary:m/f"]
COMMON = ["--yes", "--clients", "north,south", "--max-records", "5000"]


def flags(kind: str, *more: str) -> list[str]:
    formula, columns = FORMULAS[kind]
    stated = [item for column in (*columns, *COVARIATES) for item in ("--column", column)]
    return [*COMMON, "--kind", kind, "--formula", formula, *stated, *more]


def checked(folder: Path, *more: object) -> str:
    done = fedvi("check", folder / "study.toml", *more)
    assert done.exit_code == 0, done.output
    return done.output


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def refused(*arguments: object, code: int = 2) -> str:
    done = fedvi("init", *arguments)
    assert done.exit_code == code, done.output
    return done.stderr


# With all answers given


@pytest.mark.parametrize("kind", ACCEPTED)
def test_what_is_written_passes_check_and_the_policy_admits_it(tmp_path: Path, kind: str) -> None:
    done = fedvi("init", tmp_path / "study", *flags(kind))
    assert done.exit_code == 0, done.output
    assert "still to be stated" not in done.output
    assert "concave" not in done.output  # it is, of each of them
    assert names(tmp_path / "study") == STUDY_FILES
    said = checked(tmp_path / "study", "--policy", tmp_path / "study" / "policy.toml")
    assert "admits this study" in said
    assert "recommended: site_release" in said or "site_release *" in said


@pytest.mark.parametrize("kind", ACCEPTED)
def test_a_study_that_promises_nothing_passes_too_and_has_no_policy(
    tmp_path: Path, kind: str
) -> None:
    done = fedvi("init", tmp_path / "study", *flags(kind, "--protection", "none"))
    assert done.exit_code == 0, done.output
    assert names(tmp_path / "study") == {n for n in STUDY_FILES if not n.startswith("policy")}
    assert "none: un-noised statistics leave every client" in checked(tmp_path / "study")


@pytest.mark.parametrize(
    ("private", "solver"),
    [(private, solver) for private in (True, False) for solver in offered(private)],
)
def test_every_solver_on_offer_passes(tmp_path: Path, private: bool, solver: str) -> None:
    more = ["--solver", solver] if private else ["--solver", solver, "--protection", "none"]
    assert fedvi("init", tmp_path / "study", *flags("linear", *more)).exit_code == 0
    assert solver in checked(tmp_path / "study")


def test_what_check_will_warn_of_is_said_at_once(tmp_path: Path) -> None:
    assert "warning" not in fedvi("init", tmp_path / "usual", *flags("logistic")).output
    few = fedvi("init", tmp_path / "few", *flags("logistic", "--max-records", "3"))
    assert (few.exit_code, "warning: data.max_records is 3: " in few.stderr) == (0, True)
    lax = fedvi("init", tmp_path / "lax", *flags("logistic", "--delta", "0.01"))
    assert (lax.exit_code, "warning: privacy.delta is 0.01, " in lax.stderr) == (0, True)


def test_a_formula_of_all_columns_is_to_be_thinned_by_a_person(tmp_path: Path) -> None:
    path = tmp_path / "north.csv"
    path.write_text("patient_id,hospital,Age (years),died\np1,H1,50,1\n")
    given = ["--from", path, "--clients", "a,b", "--yes", "--column", "Age (years)=number:18..100"]
    for folder, more, thinned in (
        ("all", ["--response", "died"], 1),
        ("one", ["--formula", "died ~ Age_years"], 0),
    ):
        done = fedvi("init", tmp_path / folder, *given, *more)
        assert done.exit_code == 0, done.output
        text = (tmp_path / folder / "study.toml").read_text()
        assert text.count("take out what is no covariate") == thinned
        assert 'column = "Age (years)"' in text
        assert "[18, 100]" in text


@pytest.mark.parametrize(("records", "rounds"), [("300", 6), ("5000", 12)])
def test_where_noise_is_large_beside_the_records_few_rounds_are_drafted(
    tmp_path: Path, records: str, rounds: int
) -> None:
    given = [*flags("logistic"), "--max-records", records]
    done = fedvi("init", tmp_path / "s", *given)
    assert done.exit_code == 0, done.output
    study = tomllib.loads((tmp_path / "s" / "study.toml").read_text())
    policy = tomllib.loads((tmp_path / "s" / "policy.toml").read_text())
    assert study["schedule"]["rounds"] == policy["run"]["rounds"] == rounds
    assert "rounds would cost time" not in checked(tmp_path / "s")


def test_a_patient_is_protected_with_all_rows(tmp_path: Path) -> None:
    more = ["--unit", "patient", "--unit-column", "nhs", "--relation", "add_remove"]
    assert fedvi("init", tmp_path / "study", *flags("logistic", *more)).exit_code == 0
    said = checked(tmp_path / "study", "--policy", tmp_path / "study" / "policy.toml")
    assert "patient: at most 20 rows of each, clipped together" in said
    assert "all rows of a patient count together" in " ".join(said.split())
    assert "(add_remove)" in said
    rows = ["--max-rows-per-unit", "3"]
    assert fedvi("init", tmp_path / "other", *flags("logistic", *more, *rows)).exit_code == 0
    assert "patient: at most 3 rows of each, clipped together" in checked(tmp_path / "other")
    said = refused(tmp_path / "third", *flags("logistic", *rows))
    assert "--max-rows-per-unit is 3 without --unit patient" in said


def test_a_column_that_is_declared_twice_is_refused(tmp_path: Path) -> None:
    """The second took the place of the first, without a word."""
    said = refused(tmp_path / "study", *flags("logistic", "--column", "age=number:0..120"))
    assert "--column age is given twice, as 'number:18..100' and as 'number:0..120'" in said
    (tmp_path / "north.csv").write_text("Age (years),died\n50,0\n")
    given = ["--from", tmp_path / "north.csv", "--response", "died", *COMMON]
    given += ["--column", "Age (years)=number:18..100", "--column", "Age_years=number:0..120"]
    assert "--column Age_years is given twice" in refused(tmp_path / "study", *given)


def test_the_drafted_study_runs_on_records(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    assert fedvi("init", folder, *flags("logistic")).exit_code == 0
    rows = "".join(f"{i % 2},{40 + i},{'mf'[i % 3 == 0]}\n" for i in range(30))
    for site in ("north", "south"):
        (folder / f"{site}.csv").write_text("died,age,sex\n" + rows)
    done = fedvi("simulate", folder / "study.toml", "--quiet", "--json")
    assert done.exit_code == 0, done.stderr
    rows = json.loads(done.stdout)["coefficients"]
    assert [row["name"] for row in rows] == ["(Intercept)", "age", "sex"]


def test_what_is_written_fits_its_own_schema_which_it_points_to(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    fedvi("init", folder, *flags("survival", "--setting", "cuts=30,90"))
    for name in ("study", "policy"):
        text = (folder / f"{name}.toml").read_text()
        assert text.startswith(f"#:schema ./{name}.schema.json\n")
        schema = json.loads((folder / f"{name}.schema.json").read_text())
        jsonschema.validate(tomllib.loads(text), schema, jsonschema.Draft7Validator)
        assert schema == json.loads(fedvi("init", "--json-schema", name).stdout)
    assert tomllib.loads((folder / "study.toml").read_text())["model"]["cuts"] == [30, 90]


def test_the_section_life_that_is_commented_out_can_be_used(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    fedvi("init", folder, *flags("logistic"))
    text = (folder / "policy.toml").read_text()
    begin, end = text.index("# [life]"), text.index("[allow]")
    life = "".join(line.removeprefix("# ") for line in text[begin:end].splitlines(keepends=True))
    (folder / "policy.toml").write_text(text[:begin] + life + text[end:])
    assert tomllib.loads((folder / "policy.toml").read_text())["life"]["epsilon"] == 4.0
    assert "admits" in checked(folder, "--policy", folder / "policy.toml")


# An outcome of one's own

OWN = """
import dataclasses
from typing import ClassVar
import jax.numpy as jnp
from fedvi.models.outcomes.accepted import Accepted

@dataclasses.dataclass(frozen=True)
class Waiting:
    shape: float
    conjugate: ClassVar[bool] = False
    accepts: ClassVar[Accepted] = Accepted(("number",), "a number above 0", ("number",), "time")

    def log_density(self, a, y):
        return self.derivatives(a, y)[0]

    def derivatives(self, a, y):
        a = jnp.asarray(a)
        ratio = self.shape * jnp.asarray(y).astype(a.dtype) * jnp.exp(-a)
        return -self.shape * a - ratio, ratio - self.shape, -ratio

    def steepest(self, a, y):
        return jnp.full_like(jnp.asarray(a), self.shape + 3.0 * self.shape**0.5)

class Mute:
    pass

def hospital(x, y=None):
    pass
"""


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "own_waiting.py").write_text(OWN)
    points = {"waiting": "Waiting", "mute": "Mute", "absent": "Wait"}
    outcomes = {name: f"own_waiting:{item}" for name, item in points.items()}
    declare(folder, outcomes=outcomes, models={"hospital": "own_waiting:hospital"})
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.parametrize("protection", ["dp", "none"])
def test_an_outcome_of_ones_own_is_drafted_as_a_built_in_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protection: str
) -> None:
    installed(tmp_path, monkeypatch)
    folder = tmp_path / "study"
    stated = [
        item for column in ("wait=number:0..60", *COVARIATES) for item in ("--column", column)
    ]
    given = [*COMMON, "--kind", "waiting", "--formula", "wait ~ age + sex", *stated]
    given += ["--protection", protection]
    assert "nobody allowed here" in refused(folder, *given)
    given += ["--allow-code", "waiting"]
    assert "model.shape is missing" in refused(folder, *given)
    assert "--setting scale is no setting" in refused(folder, *given, "--setting", "scale=2")
    done = fedvi("init", folder, *given, "--setting", "shape=1.5")
    assert done.exit_code == 0, done.output
    model = tomllib.loads((folder / "study.toml").read_text())["model"]
    assert model == {"kind": "waiting", "formula": "wait ~ age + sex", "shape": 1.5}
    # The drafted policy lists it; without a policy a flag does.
    policy = (
        ["--policy", folder / "policy.toml"] if protection == "dp" else ["--allow-code", "waiting"]
    )
    assert "waiting" in checked(folder, *policy)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("logistc", "did you mean `logistic`"),
        ("mute", "does not say what it is of, expected a class with `accepts`"),
        ("hospital", "write study.toml by hand"),
        ("absent", "the plug-in own_waiting:Wait cannot be imported: AttributeError"),
        ("own_waiting:Waiting", "names code by module and attribute: no file may"),
        ("latent_dirichlet", "expected a built-in one or an outcome of your own"),
    ],
)
def test_a_kind_that_nothing_can_be_drafted_for_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, said: str
) -> None:
    installed(tmp_path, monkeypatch)
    given = [*COMMON, "--kind", kind, "--formula", "wait ~ age", "--allow-code", kind]
    assert said in refused(tmp_path / "study", *given)
    assert not (tmp_path / "study").exists()


# What nobody has stated


def test_placeholders_are_refused_until_a_person_has_stated_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "records.csv"
    file.write_text("\ufeffdied;Blood pressure;sex\n1;73.190283;m\n", encoding="utf-8")
    folder = tmp_path / "study"
    given = ["--from", file, "--response", "died", "--clients", "a,b", "--yes"]
    monkeypatch.setattr(questions, "_looked_at", None)  # --yes looks at no record
    done = fedvi("init", folder, *given, "--column", "Blood pressure=number")
    assert done.exit_code == 0, done.output
    open_keys = [line.rpartition(": ")[2] for line in done.stdout.splitlines() if "stated" in line]
    assert open_keys == [
        "data.max_records",
        "data.schema.Blood_pressure.bounds",
        "data.schema.sex.type",
    ]
    study = folder / "study.toml"
    # Only the header was read: no cell of a record is in any file.
    assert not any("73.19" in path.read_text() for path in folder.iterdir())
    text = study.read_text()
    assert 'formula = "died ~ Blood_pressure + sex"' in text
    assert 'column = "Blood pressure"' in text
    assert 'separator = ";"' in text
    assert 'data = "../a.csv"' in text  # beside the file whose header was read
    for key, old, new in (
        ("data.max_records is 0", "max_records = 0", "max_records = 400"),
        ("data.schema.Blood_pressure.bounds: []", "bounds = []", "bounds = [80, 220]"),
        ('data.schema.sex.type: ""', 'type = ""', 'type = "binary"'),
    ):
        failed = fedvi("check", study)
        assert failed.exit_code == 2
        assert key in failed.stderr
        assert "hint: " in failed.stderr
        assert text.count(old) == 1
        text = text.replace(old, new)
        study.write_text(text)
    checked(folder)


def test_levels_that_nobody_stated_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    given = [*COMMON, "--formula", "y ~ stage", "--column", "stage=level"]
    assert fedvi("init", folder, *given).exit_code == 0
    failed = fedvi("check", folder / "study.toml")
    assert failed.exit_code == 2
    assert "data.schema.stage.levels: an empty list" in failed.stderr


@pytest.mark.parametrize(
    ("formula", "columns", "said"),
    [
        ("died ~ age +", [], "nothing after `+`"),
        ("died ~ age age", [], "stand side by side"),
        ("died ~ scale(age)", [], "would be fitted to the data"),
        ("died ~ bs(age, df=4)", [], "knots would be quantiles"),
        ("died ~ log(stage)", ["stage=level"], "`stage` in `log(stage)` is no number"),
        ("died ~ age^2", [], "I(age**2)"),
        ("died ~ age + died", [], "the response `died` is also on the right"),
        ("died ~ age", ["died=number"], "the response 'died' is a number"),
    ],
)
def test_a_broken_formula_is_refused_also_where_something_is_open(
    tmp_path: Path, formula: str, columns: list[str], said: str
) -> None:
    given = [item for column in columns for item in ("--column", column)]
    text = refused(tmp_path / "study", *COMMON, "--formula", formula, *given)
    assert said in text
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    "formula",
    [
        "died ~ bs(age, knots=[40, 60], lower_bound=18, upper_bound=100)",
        "died ~ log(age)*stage + offset(log(years))",
        "died ~ 0 + stage/age",
    ],
)
def test_a_formula_that_bounds_can_suit_is_no_broken_one(tmp_path: Path, formula: str) -> None:
    done = fedvi("init", tmp_path / "study", *COMMON, "--formula", formula)
    assert done.exit_code == 0, done.output


def test_the_names_that_a_first_line_gave_are_shown_and_records_are_no_names(
    tmp_path: Path,
) -> None:
    file = tmp_path / "records.csv"
    given = ["--from", file, "--clients", "a,b", "--yes"]
    file.write_text("died,age,stage\n1,50,II\n")
    done = fedvi("init", tmp_path / "one", *given, "--response", "died")
    assert f"columns, from the first line of {file}: died, age, stage" in done.stdout
    assert "warning" not in done.stderr
    # All of them words: what --column says, or dates, gives a record away; else a person must look.
    file.write_text("dead,smith,II\nalive,jones,I\n")
    said = refused(
        tmp_path / "two", *given, "--formula", "died ~ stage", "--column", "died=binary:dead/alive"
    )
    assert "1 of 3 cells of its first line are what --column says a record can hold" in said
    assert "smith" not in said
    file.write_text("dead,2024-01-31,II\nalive,2024-02-01,I\n")
    said = refused(tmp_path / "two", *given, "--response", "dead")
    assert "1 of 3 cells of its first line are dates" in said
    assert "--columns age,sex" in said
    assert not (tmp_path / "two").exists()
    file.write_text("dead,m,yes\nalive,f,no\n")
    done = fedvi("init", tmp_path / "two", *given, "--response", "dead")
    assert done.exit_code == 0
    assert "warning: 2 of these 3 could be cells of a record" in done.stderr
    # Nothing but words, and they stand again: they are cells.
    file.write_text("dead,II,smith\n" + "alive,I,jones\ndead,II,brown\nalive,III,hill\n" * 3)
    said = refused(tmp_path / "three", *given, "--response", "dead")
    assert "2 of the 3 cells of its first line stand again further down" in said
    assert "--columns age,sex" in said
    assert "smith" not in said
    assert "dead" not in said
    assert not (tmp_path / "three").exists()


def test_a_file_without_names_is_drafted_by_flags_and_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_on_terminal", lambda: True)
    file = tmp_path / "north.data"
    file.write_text("".join(f"{i % 2}|{['I', 'II, late'][i % 4 // 2]}|x{i}\n" for i in range(40)))
    given = ["--from", file, "--clients", "a,b", "--response", "died", "--protection", "none"]
    said = refused(tmp_path / "no", *given)
    assert "name them in their order: --columns age,sex,…" in said
    assert "--separator is 'ab', expected one character" in refused(
        tmp_path / "no", *given, "--separator", "ab"
    )
    given += ["--columns", "died, stage,note", "--separator", "|"]
    # Name, kind, the look; an identifier, gaps; died, stage; prior, server, review.
    answers = ["", "", "", "", "", "", 'level:I,"II, late"', "", "", ""]
    done = fedvi("init", tmp_path / "study", *given, input="\n".join(answers) + "\n")
    assert done.exit_code == 0, done.output
    raw = tomllib.loads((tmp_path / "study" / "study.toml").read_text())
    assert raw["data"]["columns"] == ["died", "stage", "note"]
    assert raw["data"]["separator"] == "|"
    assert raw["model"]["formula"] == "died ~ stage"
    assert raw["data"]["schema"]["stage"]["levels"] == ["I", "II, late"]
    assert raw["clients"][0]["data"] == "../a.data"


def test_a_column_whose_name_cannot_be_seen_leaves_the_formula_of_all(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, **{"a\u202eb": np.arange(9.0), "c\x7f": np.arange(9.0), "a": np.arange(9.0)})
    given = ["--from", path, *COMMON, "--response", "a", "--kind", "linear"]
    done = fedvi("init", tmp_path / "study", *given)
    assert done.exit_code == 0, done.output
    assert "'a\\u202eb' (no study may hold it: rename it)" in done.output
    assert "\u202e" not in done.output
    raw = tomllib.loads((tmp_path / "study" / "study.toml").read_text())
    assert raw["model"]["formula"] == "a ~ 1"


def test_the_sites_files_are_called_as_the_one_that_was_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "north.npz", died=np.ones(3), age=np.ones(3))
    with gzip.open(tmp_path / "north.csv.gz", "wt") as packed:
        packed.write("died,age\n1,50\n")
    for suffix in (".npz", ".csv.gz"):
        given = ["--from", tmp_path / f"north{suffix}", "--response", "died", *COMMON]
        folder = tmp_path / f"study{suffix}"
        assert fedvi("init", folder, *given).exit_code == 0
        clients = tomllib.loads((folder / "study.toml").read_text())["clients"]
        assert clients[0]["data"] == f"../north{suffix}"


# Asked on a terminal


def test_each_question_has_an_answer_by_default_and_a_wrong_one_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_on_terminal", lambda: True)
    answers = [
        "my study",  # a name that no file should have
        "",
        "logistc",  # kind, misspelt
        "logistic",
        "north,North",
        "north,south wing",
        "north,south",
        "nowhere.csv",  # no such file
        "",
        "died ~ age",
        "",  # protection
        "0",  # ε, out of range
        "2",
        "",  # unit
        "",  # relation
        "",  # whether nobody is at two sites
        "",  # a bound on records, which has no default
        "0",
        "3",
        "back",
        "900",
        "0.5",  # δ, out of range
        "",
        "",  # gaps
        "",  # died
        "number",  # age
        "skip",  # its bounds, to be stated later
        "-1",  # the prior
        "1",
        "fedvi.example.org:99999",  # no port
        "fedvi.example.org:7000",
        "99",  # the review: no such answer
        "1",
        "trial",
        "",
    ]
    done = fedvi("init", tmp_path / "my study", input="\n".join(answers) + "\n")
    assert done.exit_code == 0, done.output
    assert "Error: 'my study' is no name" in done.output
    assert "did you mean `logistic`?" in done.output
    assert "the name 'north' stands twice" in done.output
    assert "Error: 'south wing' is no name" in done.output
    assert "nowhere.csv cannot be read" in done.output
    assert "there is no default (type an answer, ? or back, or skip)" in done.output
    assert "'0' is no whole number above 0" in done.output
    # In the words of `fedvi check`, where it is said.
    assert "data.max_records is 3: no site may use more than its first 3 records" in done.output
    assert "2.5 says odds ratios of 0.0074 to 134 (95 %)" in done.output
    assert "that says odds ratios of 0.14 to 7.1 (95 %) for one unit" in done.output
    assert "Error: '0' is no number above 0" in done.output
    assert "Error: '0.5' is no number above 0 and below 0.5" in done.output
    assert "Error: 'fedvi.example.org:99999' is no HOST:PORT" in done.output
    assert "expected Enter, back, or a number from 1 to" in done.output
    assert "still to be stated in study.toml: data.schema.age.bounds" in done.output
    raw = tomllib.loads((tmp_path / "my study" / "study.toml").read_text())
    assert raw["study"]["name"] == "trial"
    assert raw["privacy"]["epsilon"] == 2.0
    assert raw["data"]["max_records"] == 900
    # A narrow prior of effects is none of how common the outcome is.
    assert raw["prior"] == {"scale": 1.0, "intercept_scale": 2.5}
    assert "fedvi.example.org:7000" in (tmp_path / "my study" / "README.md").read_text()


def test_what_check_would_refuse_leads_back_to_the_review(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_on_terminal", lambda: True)
    given = flags("logistic", "--column", "los=number:0..90", "--formula", "los ~ age + sex")
    given = [item for item in given if item not in ("--yes", "died=binary")]
    given.remove("--column")
    # Name, file, promise to δ; gaps, age's unit, prior, server; the review, and what is changed in it.
    answers = [*[""] * 12, "", "2", "linear", ""]
    done = fedvi("init", tmp_path / "study", *given, input="\n".join(answers) + "\n")
    assert done.exit_code == 0, done.output
    assert "Error: model.formula: the response 'los' is a number" in done.output
    assert "column age   number:18..100" in done.output
    assert 'kind = "linear"' in (tmp_path / "study" / "study.toml").read_text()


def test_a_raw_table_is_asked_about_as_a_person_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response of three values, codes, an identifier that repeats, and columns that are no covariates."""
    monkeypatch.setattr(command, "_on_terminal", lambda: True)
    back, weight, few = ("<30", ">30", "NO"), ("?", "?", "?", "50-75", "75-100"), "ABC"
    rows = "".join(
        f"{8_000_000 + i // 2},{i % 8},{40 + i % 50},{weight[i % 5]},{few[i % 3]},No,{back[i % 3]}\n"
        for i in range(200)
    )
    (tmp_path / "north.csv").write_text(
        f"patient_nbr,admission_type_id,age,weight,payer,examide,readmitted\n{rows}"
    )
    answers = [
        *["", "", "north,south", ""],  # name, kind, sites, the look
        *["", "readmitted", "", "", "", "", "", "", "", "900", "", ""],  # identifier to δ, gaps
        *["", "out", "binary:<30/>30,NO"],  # what is no answer is asked again
        *["", "none", "number:18..100", "20 years"],  # codes, no words for them, age, its unit
        *["out", "out"],  # weight, payer
        *["", "", ""],  # prior, server, review
    ]
    source = tmp_path / "north.csv"
    done = fedvi("init", tmp_path / "study", "--from", source, input="\n".join(answers) + "\n")
    assert done.exit_code == 0, done.output
    assert "left out as covariates: examide (the same in all records)" in done.output
    assert "patient_nbr repeats" in done.output
    assert "it is to be a yes or no, and looks like <30, >30, NO. Which" in done.output
    assert "level:0,1,2,3,4,5,6,7" in done.output
    assert "weight: what it may hold, as it looks (YES/NO); about 60 % of its cells" in done.output
    raw = tomllib.loads((tmp_path / "study" / "study.toml").read_text())
    assert raw["model"]["formula"] == "readmitted ~ admission_type_id + age"
    assert raw["data"]["unit_column"] == "patient_nbr"
    assert list(raw["data"]["schema"]) == ["readmitted", "admission_type_id", "age"]
    assert raw["data"]["schema"]["readmitted"]["true"] == ["<30"]
    # Where it starts follows from the bounds, where nobody says.
    age = raw["data"]["schema"]["age"]
    assert (age["center"], age["scale"], age["unit"]) == (60, 20, "years")


def test_a_number_of_a_sample_says_whose_a_row_is_and_the_review_shows_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_on_terminal", lambda: True)
    rows = "".join(
        f"{8_000 + i // 2},{1 + i % 9},{-9 if i % 9 == 3 else 1 + i % 10},{i % 2}\n"
        for i in range(200)
    )
    source = tmp_path / "north.csv"
    source.write_text(f"Sample code,Cell size,nuclei,malignant\n{rows}")
    answers = [
        *["", "", "", ""],  # the look, an identifier, the promise, ε
        *[
            "patient",
            "",
            "Sample_code",
            "1",
        ],  # no column is called patient_id, so that Enter is no answer
        *["", "", "900", "", "", ""],  # relation to δ, gaps, the outcome
        *["out", "1..10", "", "", ""],  # size, nuclei, its unit, -9, the rule
        *["", "", "6", "", ""],  # prior, server; the formula is asked again; Enter writes
    ]
    given = ["--name", "trial", "--kind", "logistic", "--clients", "a,b", "--response", "malignant"]
    folder = tmp_path / "study"
    done = fedvi("init", folder, *given, "--from", source, input="\n".join(answers) + "\n")
    assert done.exit_code == 0, done.output
    assert "Sample_code repeats, so that a patient may have several rows. Unit" in done.output
    assert "Column that says whose a row is: " in done.output
    assert "malignant ~ nuclei  (without Sample_code, Cell_size)" in done.output
    assert "missing-values nuclei   -9" in done.output
    assert (
        "(? lists the columns) [malignant]: " in done.output
    )  # what the flag said, not its review
    raw = tomllib.loads((folder / "study.toml").read_text())
    assert raw["data"]["unit_column"] == "Sample code"
    assert raw["data"]["max_rows_per_unit"] == 1
    assert raw["model"]["formula"] == "malignant ~ nuclei"


def test_whose_a_row_is_takes_either_name_of_a_column_and_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "north.csv").write_text("Sample code,age,died\n1,50,0\n")
    given = ["--from", tmp_path / "north.csv", "--yes", "--clients", "a,b", "--unit", "patient"]
    given += ["--response", "died", "--max-records", "900"]
    done = fedvi("init", tmp_path / "study", *given)
    assert done.exit_code == 2
    assert "--unit-column is missing" in done.output
    done = fedvi("init", tmp_path / "study", *given, "--unit-column", "Sample_code")
    assert done.exit_code == 0, done.output
    raw = tomllib.loads((tmp_path / "study" / "study.toml").read_text())
    assert raw["data"]["unit_column"] == "Sample code"
    assert raw["model"]["formula"] == "died ~ age"


def test_what_a_missing_cell_is_can_be_said_by_flags(tmp_path: Path) -> None:
    given = ["--yes", "--clients", "a,b", "--max-records", "900", "--formula", "died ~ age + sex"]
    given += ["--column", "age=number:18..100", "--column", "sex=binary:m/f"]
    rules = ["--missing", "age=impute 50", "--missing", "sex=indicator"]
    done = fedvi("init", tmp_path / "study", *given, *rules)
    assert done.exit_code == 0, done.output
    schema = tomllib.loads((tmp_path / "study" / "study.toml").read_text())["data"]["schema"]
    assert schema["age"]["missing"] == {"impute": 50}
    assert schema["sex"]["missing"] == "indicator"
    for rule, words in (
        ("died=drop", "of a covariate of the formula"),
        ("agee=drop", "did you mean `age`"),
        ("age=mean", "is no rule"),
        ("age=impute 5", "bounds"),  # as check refuses it
    ):
        assert words in refused(tmp_path / "other", *given, "--missing", rule)
    assert "has no type yet" in refused(
        tmp_path / "other", *given[:-2], "--missing", "sex=indicator"
    )


def test_no_word_of_the_file_is_written_where_a_flag_answers_the_question_that_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_on_terminal", lambda: True)
    rows = "".join(f"{'lost' if i % 20 == 0 else i % 9 + 0.5},{i % 2}\n" for i in range(100))
    (tmp_path / "north.csv").write_text(f"lactate,died\n{rows}")
    given = ["--from", tmp_path / "north.csv", "--missing", "lactate=indicator"]
    # Name, kind, sites, the look, formula, promise to δ; gaps, died, lactate; prior, server, review.
    answers = ["", "", "a,b", "", "died", *[""] * 5, "900", "", "", "", "number:0..20", *[""] * 4]
    done = fedvi("init", tmp_path / "study", *given, input="\n".join(answers) + "\n")
    assert done.exit_code == 0, done.output
    text = (tmp_path / "study" / "study.toml").read_text()
    assert tomllib.loads(text)["data"]["schema"]["lactate"]["missing"] == "indicator"
    assert "lost" not in text + done.output


def test_a_form_with_the_names_of_columns_alone_says_nothing_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_on_terminal", lambda: True)
    (tmp_path / "form.csv").write_text("age,died\n")
    # Name, kind, sites, the look, formula, promise to δ; gaps, died, age; prior, server, review.
    answers = ["", "", "a,b", "", "died", *[""] * 5, "skip", "", "", "", "18..100", *[""] * 4]
    given = ["--from", tmp_path / "form.csv"]
    done = fedvi("init", tmp_path / "study", *given, input="\n".join(answers) + "\n")
    assert done.exit_code == 0, done.output
    raw = tomllib.loads((tmp_path / "study" / "study.toml").read_text())
    assert raw["model"]["formula"] == "died ~ age"


def test_without_a_terminal_what_has_no_default_is_asked_for_by_its_flag(tmp_path: Path) -> None:
    said = refused(tmp_path / "study", "--formula", "y ~ x")
    assert "error: --clients is missing, and there is nobody to ask" in said
    assert not (tmp_path / "study").exists()


# All files or none, and none over another


def test_a_file_that_is_there_is_named_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("mine")
    said = refused(tmp_path, *flags("logistic"))
    assert f"{tmp_path} holds policy.toml already, and nothing is overwritten" in said
    assert names(tmp_path) == {"policy.toml"}
    assert (tmp_path / "policy.toml").read_text() == "mine"


def test_a_folder_with_other_files_keeps_them(tmp_path: Path) -> None:
    (tmp_path / "north.csv").write_text("died\n1\n")
    assert fedvi("init", tmp_path, *flags("logistic")).exit_code == 0
    assert names(tmp_path) == STUDY_FILES | {"north.csv"}


@pytest.mark.parametrize(
    ("failure", "code", "words"),
    [
        (OSError(28, "No space left on device"), 2, "cannot be written: No space left on device"),
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C"),
    ],
)
def test_a_failure_in_the_middle_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failure: BaseException,
    code: int,
    words: str,
) -> None:
    linked, link = [], os.link

    def failing(source: Path, target: Path) -> None:
        linked.append(target)
        if len(linked) == 4:
            raise failure
        link(source, target)

    monkeypatch.setattr(os, "link", failing)
    assert words in refused(tmp_path / "study", *flags("logistic"), code=code)
    assert len(linked) == 4
    assert not (tmp_path / "study").exists()


def test_an_answer_that_check_would_refuse_writes_nothing(tmp_path: Path) -> None:
    for more, said in (
        (["--clients", "north,North"], "--clients: the name 'north' stands twice"),
        (
            ["--column", "age=number:100..18"],
            "--column age: the lowest, 100, is not below the highest",
        ),
        (["--column", "died=number:0..1"], "the response 'died' is a number"),
        (["--epsilon", "0"], "privacy.epsilon is 0, expected greater than 0"),
        (["--solver", "glm"], "--solver is 'glm', expected one of site_release"),
        (["--setting", "dispersion=1"], "--setting dispersion is no setting of kind 'logistic'"),
        (["--server", 'a"}:7443'], "--server: 'a\"}:7443' is no HOST:PORT"),
        (["--server", "a:0"], "--server: 'a:0' is no HOST:PORT"),
        (["--kind", "logistc"], "--kind: 'logistc' is no kind of model"),
        (["--name", "my study"], "--name: 'my study' is no name"),
        (["--formula", "died"], "--formula: 'died' is no formula"),
        (["--column", "age=numbr"], "--column age: the type is 'numbr'"),
        (["--missing", "age=impute x"], "--missing age: 'impute x' is no rule"),
    ):
        given = flags("logistic")
        if more[0] == "--column":  # in the place of the one that is there
            name = more[1].partition("=")[0]
            at = next(i for i, item in enumerate(given) if item.startswith(f"{name}="))
            del given[at - 1 : at + 1]
        assert said in refused(tmp_path / "study", *given, *more)
        assert not (tmp_path / "study").exists()


# Beside the study


def services(text: str) -> dict[str, Any]:
    return yaml.safe_load(text)["services"]


def test_the_containers_are_those_of_the_docker_folder(tmp_path: Path) -> None:
    fedvi("init", tmp_path / "study", *flags("logistic"))
    for name, own, service in (
        ("coordinator", "compose.coordinator.yaml", "server"),
        ("site", "compose.site.yaml", "client"),
    ):
        written = services((tmp_path / "study" / own).read_text())[service]
        known = services((ROOT / "docker" / f"{name}.yaml").read_text())[service]
        # Where files stand differs; what a container may do, and how it is watched, does not.
        for key in known.keys() - {"command", "volumes"}:
            assert written[key] == known[key], (name, key)
        assert [part for part in written["command"] if part.startswith("--")] == [
            part for part in known["command"] if part.startswith("--")
        ]


def test_compose_reads_what_is_written(tmp_path: Path) -> None:
    ways = [["docker", "compose"], ["docker-compose"]]  # the plugin, and the program before it
    found = [
        way
        for way in ways
        if shutil.which(way[0])
        and not subprocess.run([*way, "version"], capture_output=True, check=False).returncode
    ]
    if not found:
        pytest.skip("needs docker compose")
    fedvi("init", tmp_path / "study", *flags("logistic"))
    given = {"FEDVI_NAME": "north", "FEDVI_DATA": "./north.csv", "FEDVI_POLICY": "./policy"}
    for name in ("compose.coordinator.yaml", "compose.site.yaml"):
        told = [*found[0], "-f", str(tmp_path / "study" / name), "config", "-q"]
        subprocess.run(told, check=True, env=os.environ | given)


def test_the_steps_can_be_followed_as_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "study"
    fedvi("init", folder, *flags("logistic"))
    steps = (folder / "README.md").read_text()
    monkeypatch.chdir(folder)
    commands = [
        line.partition("$ ")[2].partition("  #")[0].strip()
        for line in steps.replace("\\\n", " ").splitlines()
        if "$ " in line
    ]
    run = [
        line for line in commands if line.startswith(("fedvi ca", "fedvi enroll", "fedvi check"))
    ]
    assert len(run) >= 9
    fingerprint = ""
    for line in run:
        words = line.replace("--ca ca.pem", "--ca authority/ca.pem").replace("HEX", fingerprint)
        # One site stands for all: its folder is not the server's, and its request travels.
        if "south" in words:
            continue
        words = words.replace("--dir tls ", "--dir tls/north ")
        arguments = [word.strip('"') for word in words.split()[1:]]
        if arguments[:2] == ["enroll", "north"] and arguments[-1] == "tls":
            arguments[-1] = "tls/north"
        done = fedvi(*arguments)
        assert done.exit_code == 0, (line, done.output)
        assert "warning" not in done.output, line
        if arguments[:2] == ["enroll", "north"] and "--certificate" not in arguments:
            shutil.copy("tls/north/request.pem", "north-request.pem")
        if arguments[:2] == ["ca", "init"]:
            listed = fedvi("ca", "list", "--ca", "authority").output
            fingerprint = listed.partition("fingerprint: ")[2].split()[0]
    assert (folder / "tls/north/cert.pem").exists()
    # A site looks at its own file while the study can still be changed, and tries on no real table.
    assert "fedvi data inspect study.toml --data north.csv" in commands
    assert "a second run,\nand its price adds up" in steps
    # What is left names commands that there are, with options that they take.
    for line in set(commands) - set(run):
        words = line.split()
        if words[0] != "fedvi":
            continue
        known = fedvi(*words[1 : 3 if words[1] in ("data", "ledger") else 2], "--help").output
        for word in words:
            assert not word.startswith("--") or word in known, line


def test_a_draft_says_the_same_each_time(tmp_path: Path) -> None:
    digests = set()
    for name in ("one", "two"):
        fedvi("init", tmp_path / name, *flags("logistic", "--name", "trial"))
        content = b"".join(path.read_bytes() for path in sorted((tmp_path / name).iterdir()))
        digests.add(hashlib.sha256(content).hexdigest())
    assert len(digests) == 1


def test_a_flag_says_which_cells_mean_missing(tmp_path: Path) -> None:
    more = ["--missing-values", "age=999,-9, unknown", "--missing", "age=impute 50"]
    assert fedvi("init", tmp_path / "a", *flags("logistic", *more)).exit_code == 0
    age = tomllib.loads((tmp_path / "a" / "study.toml").read_text())["data"]["schema"]["age"]
    assert (age["missing_values"], age["missing"]) == ([999, -9, "unknown"], {"impute": 50})
    checked(tmp_path / "a")
    for wrong in ("agee=999", "age=", "age"):
        said = refused(tmp_path / "b", *flags("logistic", "--missing-values", wrong))
        assert f"--missing-values is {wrong!r}, expected NAME=… of a column" in said


def test_a_flag_says_the_unit_of_a_coefficient(tmp_path: Path) -> None:
    """Else it is half the width of the bounds, which a study need not say."""
    assert fedvi("init", tmp_path / "a", *flags("logistic")).exit_code == 0
    raw = tomllib.loads((tmp_path / "a" / "study.toml").read_text())
    age = raw["data"]["schema"]["age"]
    assert age == {"type": "number", "bounds": [18, 100]} | {
        key: age[key] for key in ("missing", "unit") if key in age
    }
    assert raw["prior"] == {"scale": 2.5}
    text = (tmp_path / "a" / "study.toml").read_text()
    assert "for one unit of its column: odds ratios of 0.0074 to 134" in text
    said = flags("logistic", "--per", "age=5 years from 70", "--prior-scale", "0.5")
    assert fedvi("init", tmp_path / "b", *said).exit_code == 0
    raw = tomllib.loads((tmp_path / "b" / "study.toml").read_text())
    age = raw["data"]["schema"]["age"]
    assert (age["center"], age["scale"], age["unit"]) == (70, 5, "years")
    assert raw["prior"] == {"scale": 0.5, "intercept_scale": 2.5}
    checked(tmp_path / "b")
    for wrong, words in (
        ("age=years", "no unit, expected STEP from START"),
        ("agee=5 from 70", "did you mean `age`"),
        ("sex=1 from 0", "no covariate of type number"),
        ("age=1,5 from 60", "such as 10 from 60; a number has a point, and no comma"),
        ("age=10 from nan", "--per age: '10 from nan' is no unit"),
        ("age=10 nan", "--per age: '10 nan' is no unit"),
        ("age=1e999 from 60", "--per age: '1e999 from 60' is no unit"),
        ("age=10 years from 60 from 30", "is no unit"),
        ("age=10 years from", "is no unit"),
        ("age=10 years 60", "is no unit"),
        ("age=10 years from 60 days", "is no unit"),
        ("age=10 from 101", "'10 from 101' starts outside of the bounds 18..100"),
        ("age=83 from 60", "'83 from 60' has a step above 82, the width of the bounds"),
    ):
        assert words in refused(tmp_path / "c", *flags("logistic", "--per", wrong))
    twice = ["--per", "age=10 from 60", "--per", "age=5 from 50"]
    said = refused(tmp_path / "c", *flags("logistic", *twice))
    assert "--per age is given twice, as '10 from 60' and as '5 from 50'" in said


def test_the_word_of_a_unit_may_stand_at_the_end(tmp_path: Path) -> None:
    for folder, said, unit in (
        ("a", "10 from 45 years", (45, 10, "years")),
        ("b", "10 % From 60", (60, 10, "%")),
        ("c", "5", (60, 5, None)),
    ):
        done = fedvi("init", tmp_path / folder, *flags("logistic", "--per", f"age={said}"))
        assert done.exit_code == 0, done.output
        text = (tmp_path / folder / "study.toml").read_text()
        age = tomllib.loads(text)["data"]["schema"]["age"]
        assert (age["center"], age["scale"], age.get("unit")) == unit


@pytest.mark.parametrize(
    ("kind", "right", "prior"),
    [
        ("logistic", "0 + age", {"scale": 0.5}),
        ("logistic", "age -1", {"scale": 0.5}),
        ("logistic", "1 + I(age**2)", {"scale": 0.5, "intercept_scale": 2.5}),
        # A baseline hazard has a wide prior of its own.
        ("survival", "age", {"scale": 0.5}),
    ],
)
def test_a_prior_of_the_intercept_is_written_where_there_is_one(
    tmp_path: Path, kind: str, right: str, prior: dict[str, float]
) -> None:
    left = FORMULAS[kind][0].partition("~")[0]
    given = [*COMMON, "--kind", kind, "--formula", f"{left}~ {right}", "--prior-scale", "0.5"]
    for column in (*FORMULAS[kind][1], COVARIATES[0]):
        given += ["--column", column]
    done = fedvi("init", tmp_path / "study", *given)
    assert done.exit_code == 0, done.output
    assert tomllib.loads((tmp_path / "study" / "study.toml").read_text())["prior"] == prior
    checked(tmp_path / "study")


@pytest.mark.parametrize("scale", ["-1e9", "0", "nan", "1e7"])
def test_a_prior_that_no_study_may_have_is_refused(tmp_path: Path, scale: str) -> None:
    said = refused(tmp_path / "a", *flags("logistic", "--prior-scale", scale))
    assert "--prior-scale: " in said
    assert "is no number from 1e-06 to 1e+06" in said


@pytest.mark.parametrize("open_column", [True, False])
def test_too_few_records_are_warned_of_as_by_check(tmp_path: Path, open_column: bool) -> None:
    given = ["--yes", "--clients", "a,b", "--max-records", "3", "--formula", "died ~ age"]
    given += [] if open_column else ["--column", "age=number:18..100"]
    done = fedvi("init", tmp_path / "study", *given)
    assert done.exit_code == 0, done.output
    words = "warning: data.max_records is 3: no site may use more than its first 3 records"
    assert done.stderr.count(words) == 1
    if not open_column:
        told = fedvi("check", tmp_path / "study" / "study.toml")
        assert words in told.stderr
        # What noise drowns is told, too.
        assert "the noise probably drowns" in done.stderr
        assert "the noise probably drowns" in " ".join(told.output.split())
