"""Claims about the command line, end to end: what it prints, keeps, refuses, and never shows."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from fedvi.cli.main import main
from fedvi.privacy import accountants, events, ledger
from fedvi.study.config import load_study, parse_study
from tests import commands
from tests.commands import invoked as fedvi
from tests.joint_price import joint_epsilon
from tests.plug_ins import declare

MARK = "simulation: no guarantee"

# A cell and a number of records that stand in one private file and may be seen nowhere else.
SECRET = 73.190283
SECRET_COUNT = 13

STUDY = """
[study]
name = "small"
[model]
kind = "logistic"
formula = "y ~ age + cp"
[family]
kind = "full_gaussian"
[prior]
scale = 2.5
[solver]
kind = "dp_optimisation"
steps = 2
sampler = { kind = "full" }
[schedule]
kind = "synchronous"
rounds = 2
[privacy]
epsilon = 1.0
delta = 1e-5
unit = "record"
relation = "substitute"
mechanism = "gaussian"
[data]
max_records = 20
[data.schema.y]
type = "binary"
[data.schema.age]
type = "number"
bounds = [0, 100]
[data.schema.cp]
type = "level"
levels = ["a", "b"]
[[clients]]
name = "north"
data = "north.csv"
[[clients]]
name = "south"
data = "south.csv"
"""
# Float noise, which marks what it touches; what a study gets by default has a test of its own.
NOISE = 'mechanism = "gaussian"\n'
PROMISE = 'epsilon = 1.0\ndelta = 1e-5\nunit = "record"\nrelation = "substitute"\n' + NOISE
SOLVER = 'kind = "dp_optimisation"\nsteps = 2\nsampler = { kind = "full" }\n'
CLIENTS = STUDY[STUDY.index("[[clients]]") :]
OPEN = {PROMISE: 'protection = "none"\n', SOLVER: 'kind = "glm"\n'}
SEEDED = {"[data]\n": "[simulation]\ninsecure_seed = 5\n[data]\n"}
# At so large an epsilon the records are heard over the noise; at 1 these few leave q at the prior.
AUDIBLE = {"epsilon = 1.0\n": "epsilon = 200.0\n"}
RECORDS = "y,age,cp\n1,50,a\n0,20,b\n1,77,a\n0,61,b\n"
OTHERS = "y,age,cp\n1,33,b\n0,81,a\n"


def write(
    folder: Path,
    changes: Mapping[str, str] | None = None,
    north: str | None = RECORDS,
    south: str | None = OTHERS,
) -> Path:
    """Writes a study and its two files; ``changes`` are replacements in its text."""
    text = STUDY
    for old, new in (changes or {}).items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    folder.mkdir(exist_ok=True)
    for name, content in (("north", north), ("south", south)):
        if content is not None:
            (folder / f"{name}.csv").write_text(content)
    path = folder / "study.toml"
    path.write_text(text)
    return path


def simulated(folder: Path, changes: Mapping[str, str] | None = None, **files: Any) -> Any:
    """Runs a study with ``--json`` and returns what it printed."""
    done = fedvi("simulate", write(folder, changes, **files), "--quiet", "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout, parse_constant=pytest.fail)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def leaves(value: Any) -> Iterator[Any]:
    """All values in nested tables and lists."""
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            yield from leaves(item)
        else:
            yield item


def means(kept: Any) -> list[float]:
    return [value for row in kept["coefficients"] for value in (row["mean"], row["sd"])]


@pytest.fixture
def refused(tmp_path: Path) -> Callable[..., str]:
    """Runs a study that must be refused; returns standard error."""

    def refuse(
        changes: Mapping[str, str],
        code: int = 2,
        command: str = "simulate",
        out: str = "out",
        **content: str | None,
    ) -> str:
        path = write(tmp_path, changes, **content)
        before = files(tmp_path)
        options = ["--out", tmp_path / out] if command == "simulate" else []
        done = fedvi(command, path, *options)
        assert (done.exit_code, done.stdout) == (code, ""), done.output
        # Warnings of the study come first, a line each.
        assert re.fullmatch(r"(warning: .*\n)*error: \S.*\n\nhint: \S.*\n", done.stderr), (
            done.stderr
        )
        assert files(tmp_path) == before
        return done.stderr

    return refuse


# Bad input: the study


@pytest.mark.parametrize("command", ["check", "simulate"])
@pytest.mark.parametrize(
    ("old", "new", "words", "near"),
    [
        ("[model]", "[modle]", "modle: unknown key", "`model`"),
        ('name = "small"', 'name = "small"\nsed = 1', "study.sed: unknown key", "`seed`"),
        ("formula =", "fromula =", "model.formula is missing", "formula"),
        ("[family]", "[family]\nsize = 7", "family.size: not a key of a study", "leave it out"),
        ('"full_gaussian"', '"full_gausian"', "family.kind is", "`full_gaussian`"),
        ("scale = 2.5", "scle = 2.5", "prior.scle: unknown key", "`scale`"),
        ("steps = 2", "stpes = 2", "solver.stpes: unknown key", "`steps`"),
        ("steps = 2", 'steps = "2"', "solver.steps is '2'", "quotes"),
        ('{ kind = "full" }', '{ kind = "fool" }', "solver.sampler.kind is 'fool'", "`full`"),
        ('"full" }', '"poisson", rte = 0.1 }', "solver.sampler.rte: unknown key", "`rate`"),
        ('"synchronous"', '"synchronus"', "schedule.kind is", "`synchronous`"),
        ("rounds = 2", "round = 2", "schedule.round: unknown key", "`rounds`"),
        ("delta =", "detla =", "privacy.detla: unknown key", "`delta`"),
        ("[data]", "[simulation]\nsed = 1\n[data]", "simulation.sed: unknown key", "known"),
        ("max_records", "max_record", "data.max_record: unknown key", "`max_records`"),
        ("bounds =", "bouns =", "data.schema.age.bouns: unknown key", "`bounds`"),
        ('data = "north', 'dta = "north', "clients[0].dta: unknown key", "`data`"),
        ("max_records = 20", "max_records = 200000000", "data.max_records is 200000000", "largest"),
        ("[data]", '[data]\nseparator = ";;"', "data.separator is ';;'", "use"),
        ("[data]", '[data]\ncolumns = ["y", "agee", "cp"]', "data.columns: no `age`", "`agee`"),
        ("rounds = 2", "rounds = 2\ntolerance = -1.0", "schedule.tolerance is -1.0", "sds"),
        ("rounds = 2", "rounds = " + "9" * 5000, "too many digits", "whole numbers"),
        ("delta = 1e-5", "delta = 0.5", "privacy.delta is 0.5", "far below"),
        ('"dp_optimisation"\nsteps = 2', '"math:hypot"', "solver.kind is 'math:hypot'", "plug-in"),
        ('"full_gaussian"', '"os:getcwd"', "names code by module and attribute", "--allow-code"),
        ("max_records = 20\n", "", "data.max_records is missing", "largest number of records"),
        ("[privacy]\n" + PROMISE, "", "privacy is missing", 'protection = "none"'),
        ('"south"', '"north"', "the name 'north' stands twice", "own name"),
        ('"south"', '"prior"', "the name 'prior' is reserved", "another"),
        (CLIENTS, "", "clients is missing", "[[clients]]"),
        ("[study]", "[study", "is not valid TOML", "[section]"),
    ],
)
def test_a_wrong_study_is_refused_with_the_nearest_name_before_anything_is_written(
    refused: Callable[..., str], command: str, old: str, new: str, words: str, near: str
) -> None:
    error, _, hint = refused({old: new}, command=command).partition("hint: ")
    assert words in error
    assert near in hint


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("logistc", "model.kind is 'logistc', which is not in fedvi.models"),
        ("hospital", "no plug-in of that name is installed"),
        ("fedvi_absent.models:hospital", "names code by module and attribute"),
    ],
)
def test_an_unknown_kind_is_refused(refused: Callable[..., str], kind: str, words: str) -> None:
    assert words in refused({'"logistic"': f'"{kind}"'})


def test_a_given_noise_that_exceeds_the_budget_is_refused_by_the_budget_s_code(
    refused: Callable[..., str],
) -> None:
    for command in ("check", "simulate"):
        error = refused({"steps = 2": "steps = 2\nnoise_multiplier = 2.0"}, code=5, command=command)
        assert "2 rounds at noise_multiplier 2 spend epsilon" in error
        assert "of 1 (delta 1e-05, substitute)" in error


@pytest.mark.parametrize("solver", ["glm", "gradient"])
def test_a_solver_without_protection_answers_in_no_private_study(
    tmp_path: Path, solver: str
) -> None:
    path = write(tmp_path, {SOLVER: f'kind = "{solver}"\n'})
    before = files(tmp_path)
    for arguments in (["check", path], ["simulate", path, "--out", tmp_path / "out"]):
        done = fedvi(*arguments)
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith(f"error: solver.kind is {solver!r}, which releases without")
        assert "hint: " in done.stderr
    assert files(tmp_path) == before


def test_a_study_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = fedvi("check", tmp_path / "absent.toml")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: no study file at {tmp_path / 'absent.toml'}\n\nhint: ")


# Bad input: the data


@pytest.mark.parametrize(
    ("changes", "north", "words"),
    [
        ({}, "y,cp\n1,a-cell\n", "no column `age`"),
        (OPEN, "y,cp\n1,a\n", "no column `age`"),
        (OPEN, RECORDS + "1,50,c\n", "record 5: column `cp` holds 'c', which is no declared level"),
        (OPEN, RECORDS + "1,nan,a\n", "record 5: column `age` holds 'nan'"),
        (OPEN, RECORDS + "1,,a\n", "record 5: column `age` holds ''"),
        (OPEN, RECORDS + "1,old,a\n", "record 5: column `age` holds 'old', expected a number"),
        (OPEN, RECORDS + "2,50,a\n", "record 5: column `y` holds '2', which is no declared value"),
        (OPEN, "y,age,cp\n", "the shard is empty, expected at least one record"),
        (OPEN, "", "the file is empty"),
        ({}, "", "the file is empty"),
        (OPEN, RECORDS + "1,50\n", "line 6 has fewer cells than the 3 columns"),
        (OPEN, "y,age,cp\n" + "1,50,a\n" * 21, "more records than the study declares"),
        ({}, None, "cannot be read"),
    ],
)
def test_wrong_data_are_refused_before_anything_is_written(
    refused: Callable[..., str], changes: dict[str, str], north: str, words: str
) -> None:
    error = refused(changes, north=north)
    assert words in error
    if not changes:
        assert "a-cell" not in error  # a private study shows no cell


def test_a_client_without_a_file_is_refused(refused: Callable[..., str]) -> None:
    assert "'north' names no data file" in refused({'data = "north.csv"\n': ""})


@pytest.mark.nightly
def test_a_value_outside_its_bounds_is_clipped_dropped_or_refused_as_declared(
    tmp_path: Path, refused: Callable[..., str]
) -> None:
    def declared(outside: str) -> dict[str, str]:
        return OPEN | {"bounds = [0, 100]": f'bounds = [0, 100]\noutside = "{outside}"'}

    far = RECORDS + "1,1000,a\n"
    clipped = simulated(tmp_path / "1", declared("clip"), north=far)
    dropped = simulated(tmp_path / "2", declared("drop"), north=far)
    # The same numbers reach the same solver, so the answers are equal to the last bit.
    assert means(clipped) == means(simulated(tmp_path / "3", OPEN, north=RECORDS + "1,100,a\n"))
    assert means(dropped) == means(simulated(tmp_path / "4", OPEN))
    assert means(clipped) != means(dropped)
    error = refused(declared("refuse"), north=far)
    assert "column `age` holds '1000', outside the bounds [0, 100]" in error
    private = {"bounds = [0, 100]": 'bounds = [0, 100]\noutside = "refuse"'}
    assert "data.schema.age.outside" in refused(private)


@pytest.mark.nightly(but=("x,50,a", "1,,a"))
@pytest.mark.parametrize("row", ["1,nan,a", "1,50,c", "x,50,a", "1,,a"])
def test_a_record_that_does_not_fit_counts_as_zero_in_a_private_study(
    tmp_path: Path, row: str
) -> None:
    # Seeded noise is the same in both runs, so a record that counts as zero changes nothing.
    with_it = simulated(tmp_path / "with", SEEDED | AUDIBLE, north=RECORDS + row + "\n")
    without_it = simulated(tmp_path / "without", SEEDED | AUDIBLE)
    assert means(with_it) == means(without_it)
    assert any(mean != 0.0 for mean in means(with_it))


@pytest.mark.parametrize("north", ["y,age,cp\n", "y,age,cp\n1,50,a\n"], ids=["none", "one"])
def test_a_private_study_runs_whatever_number_of_records_a_client_has(
    tmp_path: Path, north: str
) -> None:
    kept = simulated(tmp_path, north=north)
    assert np.isfinite(means(kept)).all()


@pytest.mark.nightly
def test_one_record_a_client_is_enough(tmp_path: Path) -> None:
    kept = simulated(tmp_path, OPEN, north="y,age,cp\n1,50,a\n", south="y,age,cp\n0,50,a\n")
    # One success and one failure at the same covariates: by symmetry every mean is zero; the last
    # visit of a client ends within the solver's 1e-8 posterior sds, PVI's rounds within 1e-1.
    assert all(abs(row["mean"]) < 0.1 * row["sd"] for row in kept["coefficients"])


# Where results would go


@pytest.mark.parametrize(
    ("out", "words"),
    [("full", "is not an empty folder"), ("absent/out", "does not exist")],
)
def test_a_target_that_cannot_take_the_result_is_refused_before_the_run(
    tmp_path: Path, refused: Callable[..., str], out: str, words: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("x")
    # The data are not there either: the target was looked at before them.
    assert words in refused({}, out=out, north=None)


def test_a_file_is_no_target(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    done = fedvi("simulate", write(tmp_path), "--out", tmp_path / "file")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "is a file" in done.stderr


# A private run


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A private study whose first file holds a cell and a number of records of its own."""
    north = "y,age,cp\n" + f"1,{SECRET},a\n" * (SECRET_COUNT - 1) + "0,41.25,b\n"
    return write(tmp_path_factory.mktemp("secret"), north=north)


@pytest.fixture(scope="module")
def planned(secret: Path) -> Any:
    done = fedvi("check", secret, "--json")
    assert done.exit_code == 0
    return json.loads(done.stdout, parse_constant=pytest.fail)


@pytest.fixture(scope="module")
def private(secret: Path) -> tuple[Result, Path]:
    """What a private run printed, and the folder that it kept."""
    out = secret.parent / "out"
    done = fedvi("simulate", secret, "--out", out)
    assert done.exit_code == 0, done.stderr
    return done, out


def kept(folder: Path) -> Any:
    text = (folder / "result.json").read_text(encoding="utf-8")
    return json.loads(text, parse_constant=pytest.fail)


def books(folder: Path) -> dict[str, ledger.Ledger]:
    return {
        path.stem: ledger.from_lines(path.read_text().splitlines())
        for path in sorted((folder / "ledger").iterdir())
    }


def test_a_private_run_ends_with_two_tables_marked_as_a_simulation(
    private: tuple[Result, Path],
) -> None:
    text = private[0].stdout
    titles = [line.strip() for line in text.splitlines() if MARK in line]
    assert titles[0] == f"Posterior of small — {MARK}"
    assert titles[1] == f"Privacy per client, unit record — {MARK}"
    assert titles[2].startswith("consortium: ε ")
    for column in ("coefficient", "mean", "sd", "95 % interval", "odds ratio (95 %)"):
        assert column in text
    for column in ("client", "releases", "ε add/remove", "ε subst.", "δ", "view"):
        assert column in text
    for name in ("(Intercept)", "age", "cp[b]", "north", "south"):
        assert name in text
    assert "records" not in text.split("Privacy per client")[1].splitlines()[2].split()
    lines = text.splitlines()
    for what in ("excluded:", "declared, and checked by nobody:", "assumed:"):
        assert lines[lines.index(what) + 1].startswith("- ")
    assert "- when messages were sent, and how large they were" in lines


@pytest.mark.parametrize("row", ["1,50", "1,50,a,extra", '"1,50', "\x00"])
def test_a_line_that_cannot_be_read_counts_as_zero_in_a_private_study(
    tmp_path: Path, row: str
) -> None:
    seeded = SEEDED | AUDIBLE
    with_it = simulated(tmp_path / "1", seeded, north=RECORDS + row + "\n")
    assert means(with_it) == means(simulated(tmp_path / "2", seeded, north=RECORDS))


@pytest.mark.nightly
def test_by_default_noise_is_on_integers_and_nothing_needs_a_mark(tmp_path: Path) -> None:
    done = fedvi("simulate", write(tmp_path, {NOISE: ""}), "--quiet", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.stderr
    assert "no guarantee" not in done.stdout
    assert "ChaCha20" in done.stdout  # an assumption
    assert kept(tmp_path / "out")["mark"] == ""


def test_private_metrics_are_kept_for_the_client_alone_and_only_if_asked_for(
    tmp_path: Path,
) -> None:
    study = write(tmp_path, north=RECORDS + "1,nan,a\n")
    done = fedvi("simulate", study, "--quiet", "--json")
    assert "valid_units" not in done.output
    folder = tmp_path / "mine"
    done = fedvi("simulate", study, "--quiet", "--json", "--private-metrics", folder)
    assert "valid_units" not in done.output
    lines = (folder / "north.jsonl").read_text().splitlines()
    assert [json.loads(line)["private"] for line in lines] == [{"valid_units": 4}] * 2
    assert (folder / "north.jsonl").stat().st_mode & 0o077 == 0


def test_every_claim_that_is_kept_carries_the_mark(private: tuple[Result, Path]) -> None:
    content = kept(private[1])
    assert content["mark"] == MARK
    assert [claim["mark"] for claim in content["consortium"]] == [MARK, MARK]
    with np.load(private[1] / "posterior.npz", allow_pickle=False) as file:
        assert file["mark"] == MARK
    assert {book.header.note for book in books(private[1]).values()} == {MARK}


def test_progress_goes_to_standard_error_only(secret: Path, private: tuple[Result, Path]) -> None:
    assert private[0].stderr.count("round ") == 2
    assert private[0].stderr.count("  2 clients  ") == 2
    assert "ε charged" in private[0].stderr
    assert "round 1/2" not in private[0].stdout
    # Warnings are no progress.
    quiet = fedvi("simulate", secret, "--quiet").stderr.splitlines()
    assert all(line.startswith("warning: ") for line in quiet)


def test_what_is_kept_is_complete_and_nothing_else_is_written(
    secret: Path, private: tuple[Result, Path]
) -> None:
    assert files(private[1]) == [
        "ledger",
        "ledger/north.jsonl",
        "ledger/south.jsonl",
        "posterior.json",
        "posterior.npz",
        "result.json",
        "study.json",
    ]
    beside = sorted(path.name for path in secret.parent.iterdir())
    assert beside == ["north.csv", "out", "south.csv", "study.toml"]


def test_the_kept_posterior_is_the_printed_one(private: tuple[Result, Path]) -> None:
    rows = kept(private[1])["coefficients"]
    with np.load(private[1] / "posterior.npz", allow_pickle=False) as file:
        assert file["names"].tolist() == [row["name"] for row in rows]
        np.testing.assert_array_equal(file["mean"], [row["mean"] for row in rows])
        np.testing.assert_array_equal(file["sd"], [row["sd"] for row in rows])
        # float64 algebra
        np.testing.assert_allclose(file["J"] @ file["mean"], file["h"], rtol=1e-9, atol=1e-12)
    for row in rows:
        (line,) = [x for x in private[0].stdout.splitlines() if x.strip().startswith(row["name"])]
        assert f"{row['mean']:.3f}" in line.split()


def test_the_kept_study_says_what_ran_with_its_calibrated_noise(
    secret: Path, private: tuple[Result, Path], planned: Any
) -> None:
    raw = json.loads((private[1] / "study.json").read_text(), parse_constant=pytest.fail)
    assert parse_study(raw).solver.arguments["noise_multiplier"] == planned["noise_multiplier"]
    del raw["solver"]["noise_multiplier"]
    assert parse_study(raw).digest == load_study(secret).digest == planned["digest"]
    assert kept(private[1])["digest"] == planned["digest"]
    assert {book.header.study_digest for book in books(private[1]).values()} == {planned["digest"]}


def test_the_plan_is_what_the_ledgers_of_the_run_show(
    private: tuple[Result, Path], planned: Any
) -> None:
    rows = {row["client"]: row for row in kept(private[1])["privacy"]}
    assert list(rows) == planned["clients"] == ["north", "south"]
    for name, book in books(private[1]).items():
        kinds = [entry.kind for entry in book.entries]
        for kind in ("reserved", "sealed", "sent"):
            assert kinds.count(kind) == planned["messages_per_client"] == 2
        spent = ledger.spent(book)
        assert sum(events.counts(spent).values()) == 2 * planned["steps_per_message"] == 4
        for relation in events.RELATIONS:
            epsilon = accountants.pld(relation).epsilon(spent, planned["delta"])
            assert epsilon == planned["epsilon"][relation] == rows[name]["epsilon"][relation]
        assert rows[name]["releases"] == 2
        # D = 3: three means and six entries of a symmetric matrix.
        assert rows[name]["numbers"] == 2 * planned["numbers_per_message"] == 2 * 9


def test_the_promise_is_kept_and_not_by_far(planned: Any) -> None:
    # Calibration stops within a relative 1e-3 of the noise multiplier, on the safe side.
    assert 0.99 <= planned["epsilon"]["substitute"] <= planned["budget_epsilon"] == 1.0


def test_the_consortium_pays_for_one_sequence_unless_sites_are_declared_disjoint(
    tmp_path: Path, private: tuple[Result, Path], planned: Any, secret: Path
) -> None:
    def claimed(content: Any) -> tuple[dict[str, float], dict[str, list[float]]]:
        whole = {claim["relation"]: claim["epsilon"] for claim in content["consortium"]}
        sites = {name: [row["epsilon"][name] for row in content["privacy"]] for name in whole}
        return whole, sites

    whole, sites = claimed(kept(private[1]))
    delta = kept(private[1])["consortium"][0]["delta"]
    for name, values in sites.items():
        assert len(set(values)) == 1
        assert whole[name] == pytest.approx(joint_epsilon(values[0], delta, len(values)), rel=1e-3)
    # A plan says so before anything is paid.
    assert {row["relation"]: row["epsilon"] for row in planned["together"]} == whole
    assert "cost of all 2 clients" in fedvi("check", secret).stdout
    disjoint = {'relation = "substitute"': 'relation = "substitute"\ndisjoint = true'}
    whole, sites = claimed(simulated(tmp_path, disjoint))
    assert whole == {name: max(values) for name, values in sites.items()}
    path = write(tmp_path, disjoint)
    assert json.loads(fedvi("check", path, "--json").stdout)["together"] == []
    assert "cost of all" not in fedvi("check", path).stdout


def test_nothing_of_a_private_record_is_printed_or_kept(
    secret: Path, private: tuple[Result, Path], planned: Any
) -> None:
    # As written in the file, and as the schema scales it: bounds [0, 100] to [-1, 1].
    scaled = (SECRET - 50.0) / 50.0
    texts = [private[0].stdout, private[0].stderr, json.dumps(planned)]
    texts += [p.read_text(errors="replace") for p in private[1].rglob("*") if p.is_file()]
    for text in texts:
        for needle in ("73.19", f"{scaled:.4f}", "north.csv,", "41.25"):
            assert needle not in text
    with np.load(private[1] / "posterior.npz", allow_pickle=False) as file:
        numbers = np.concatenate([file[name].ravel() for name in ("h", "J", "mean", "sd")])
    for value in (SECRET, scaled):
        # No sum of clipped and noised gradients comes this close by chance: 24 numbers of order 1.
        assert np.abs(numbers - value).min() > 1e-6


def test_the_number_of_private_records_is_printed_and_kept_nowhere(
    private: tuple[Result, Path], planned: Any
) -> None:
    content = kept(private[1])
    assert [row["records"] for row in content["privacy"]] == [None, None]
    counts = {SECRET_COUNT, SECRET_COUNT - 1}
    found = [*leaves(content), *leaves(planned)]
    assert not [x for x in found if isinstance(x, int | float) and x in counts]
    # The folder's name has a number of pytest's own.
    said = private[0].stdout.partition("Privacy")[2].replace(str(private[1]), "")
    assert str(SECRET_COUNT) not in re.findall(r"\d+", said)


def test_a_published_number_of_records_is_shown_with_substitution_alone(tmp_path: Path) -> None:
    public = {'relation = "substitute"': 'relation = "substitute"\nrecords_public = true'}
    path = write(tmp_path, public)
    done = fedvi("simulate", path, "--quiet", "--out", tmp_path / "out")
    rows = kept(tmp_path / "out")["privacy"]
    assert [row["records"] for row in rows] == [4, 2]
    assert [list(row["epsilon"]) for row in rows] == [["substitute"]] * 2
    (line,) = [line for line in done.stdout.splitlines() if line.strip().startswith("north")]
    assert line.split()[:5] == ["north", "4", "2", "18", "–"]
    assert "add_remove" not in done.stdout
    checked = fedvi("check", path)
    assert "under substitute" in checked.stdout
    assert "add/remove" not in checked.stdout


@pytest.mark.nightly
def test_progress_counts_who_answered_in_each_round_and_names_a_single_client(
    tmp_path: Path,
) -> None:
    asynchronous = OPEN | {'"synchronous"': '"asynchronous"'}
    lines = fedvi("simulate", write(tmp_path, asynchronous)).stderr.splitlines()
    assert [line.split("  ")[:2] for line in lines] == [
        [f"round {number}/2", "2 clients"] for number in (1, 2)
    ]
    alone = OPEN | {CLIENTS: CLIENTS[: CLIENTS.index("[[clients]]", 1)]}
    lines = fedvi("simulate", write(tmp_path, alone)).stderr.splitlines()
    assert [line.split("  ")[1] for line in lines] == ["1 client: north"] * 2
    lines = fedvi("simulate", write(tmp_path, OPEN), "--pooled").stderr.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["round 1/2", "round 2/2", "pooled fit"]


# Seeds


def test_a_seeded_run_replays_to_the_last_bit_and_says_so(tmp_path: Path) -> None:
    first, second = (simulated(tmp_path, SEEDED | AUDIBLE) for _ in range(2))
    for content in (first, second):
        assert content["mark"] == f"{MARK}; seeded noise: no guarantee"
        del content["elapsed_seconds"]
    assert first == second
    path = write(tmp_path, SEEDED)
    for name in ("a", "b"):
        assert fedvi("simulate", path, "--quiet", "--out", tmp_path / name).exit_code == 0
    with np.load(tmp_path / "a" / "posterior.npz") as a, np.load(tmp_path / "b/posterior.npz") as b:
        for name in ("h", "J", "mean", "sd"):
            assert a[name].tobytes() == b[name].tobytes()
    assert books(tmp_path / "a") == books(tmp_path / "b")


def test_private_runs_differ_and_their_public_seed_changes_nothing_of_that(tmp_path: Path) -> None:
    first, second = (simulated(tmp_path, AUDIBLE) for _ in range(2))
    # Two draws of 2 × 2 × 2 noise vectors agree in a coordinate with probability below 2⁻²⁰.
    assert all(a != b for a, b in zip(means(first), means(second), strict=True))


def test_another_insecure_seed_draws_other_noise(tmp_path: Path) -> None:
    other = {"[data]\n": "[simulation]\ninsecure_seed = 6\n[data]\n"}
    seeded = means(simulated(tmp_path, SEEDED | AUDIBLE))
    assert seeded != means(simulated(tmp_path, other | AUDIBLE))


# check


def test_check_opens_no_data_file(tmp_path: Path, planned: Any) -> None:
    path = write(tmp_path, north=None, south=None)
    done = fedvi("check", path, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout) == planned
    assert files(tmp_path) == ["study.toml"]


def test_check_prints_what_leaves_and_what_it_costs(tmp_path: Path, planned: Any) -> None:
    done = fedvi("check", write(tmp_path, north=None, south=None))
    lines = {
        line.strip().partition("  ")[0]: line.strip().partition("  ")[2].strip()
        for line in done.stdout.splitlines()
    }
    assert f"Plan of small — {MARK}" in lines
    assert lines["digest"].startswith(planned["digest"][:16])
    assert lines["coefficients"] == "(Intercept), age, cp[b]"
    assert lines["schedule"] == "synchronous, 2 rounds"
    assert lines["clients"] == "north, south"
    assert lines["leaves each client"] == "9 numbers a message, at most 2 messages: 18 numbers"
    assert lines["noised sums"] == "2 a message, 4 in all"
    assert lines["noise"].startswith(f"multiplier {planned['noise_multiplier']:.4g} × clip norm 1")
    said = "records (data.max_records); of a site with more, only the first are used"
    assert said in " ".join(done.stdout.split())
    names = list(lines)
    assert names.index("promise") < names.index("leaves each client") < names.index("model")
    assert (
        lines["promise"] == "ε ≤ 1 at δ = 1e-05, if one record is replaced by another (substitute)"
    )
    cost = re.fullmatch(
        r"ε (\S+) under add/remove, (\S+) under substitute, at δ = 1e-05", lines["cost per client"]
    )
    assert cost is not None
    for text, relation in zip(cost.groups(), events.RELATIONS, strict=True):
        # Four digits, rounded up: what is printed still holds.
        assert 0.0 <= float(text) - planned["epsilon"][relation] < 1e-4


def test_check_lists_no_more_names_than_fit_on_a_screen(examples: Path) -> None:
    done = fedvi("check", examples / "topics" / "study.toml")
    assert "… and 4970 more (--json lists all)" in " ".join(done.stdout.split())
    whole = json.loads(fedvi("check", examples / "topics" / "study.toml", "--json").stdout)
    assert len(whole["coefficients"]) == 5000


def test_check_says_that_nothing_is_protected(tmp_path: Path) -> None:
    path = write(tmp_path, OPEN, north=None, south=None)
    done = fedvi("check", path)
    assert "none: un-noised statistics leave every client (ε = ∞)" in done.stdout
    assert MARK not in done.stdout
    content = json.loads(fedvi("check", path, "--json").stdout, parse_constant=pytest.fail)
    assert content["epsilon"] == {"add_remove": "inf", "substitute": "inf"}


# Custom code, and a study that is run again


CUSTOM = """
from fedvi.inference.solvers import dp_optimisation


def solver(family, model, sampler, mechanism, steps=1):
    return dp_optimisation(family, model, sampler, mechanism, steps=steps)
"""


def test_custom_code_is_marked_beside_every_claim_table_and_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fedvi_test_custom.py").write_text(CUSTOM)
    declare(tmp_path, solvers={"custom_descent": "fedvi_test_custom:solver"})
    path = write(tmp_path, {'"dp_optimisation"': '"custom_descent"'})
    fedvi = functools.partial(commands.invoked, "--allow-code", "custom_descent")
    mark = f"{MARK}; custom code: claim not vetted"
    assert json.loads(fedvi("check", path, "--json").stdout)["mark"] == mark
    assert mark in " ".join(fedvi("check", path).stdout.split())
    out = tmp_path / "out"
    done = fedvi("simulate", path, "--out", out, "--quiet")
    assert done.exit_code == 0, done.stderr
    # Both tables' titles, and the consortium's claim under each relation.
    assert " ".join(done.stdout.split()).count(mark) == 4
    content = kept(out)
    assert content["mark"] == mark
    assert [claim["mark"] for claim in content["consortium"]] == [mark, mark]
    assert {book.header.note for book in books(out).values()} == {mark}
    assert json.loads((out / "posterior.json").read_text())["mark"] == mark
    assert fedvi("report", out, "--format", "md,json").exit_code == 0
    stated = json.loads((out / "report" / "report.json").read_text())
    marks = [stated["mark"], *(one["mark"] for one in stated["statements"])]
    assert [*marks, stated["consortium"]["mark"]] == [mark] * 4
    # At the top, and on the statements of both sites and of all together.
    assert (out / "report" / "report.md").read_text().count(f"MARKED: {mark}") == 4


def test_a_kept_study_runs_again_beside_its_data_with_the_same_noise(tmp_path: Path) -> None:
    path = write(tmp_path, SEEDED)
    first = fedvi("simulate", path, "--quiet", "--json", "--out", tmp_path / "out")
    again = tmp_path / "again.json"
    (tmp_path / "out" / "study.json").rename(again)
    second = fedvi("simulate", again, "--quiet", "--json")
    assert second.exit_code == 0, second.stderr
    # The resolved study states its noise, so its digest is its own; everything else is the same.
    assert means(json.loads(first.stdout)) == means(json.loads(second.stdout))
    assert "keeps the data paths as" in " ".join(fedvi("simulate", "--help").stdout.split())


# A run without protection


@pytest.fixture(scope="module")
def trauma(examples: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """What the trauma example printed with the pooled fit beside it, and the folder it kept."""
    before = files(examples)
    out = tmp_path_factory.mktemp("trauma") / "out"
    done = fedvi("simulate", examples / "trauma" / "study.toml", "--pooled", "--out", out)
    assert done.exit_code == 0, done.stderr
    assert files(examples) == before
    return done, out


@pytest.mark.nightly
def test_the_trauma_example_shows_both_tables_and_the_pooled_answer(
    trauma: tuple[Result, Path],
) -> None:
    text = trauma[0].stdout
    assert "Posterior of trauma (pooled columns: not private)" in text
    assert "Privacy per client — none: un-noised statistics left every client" in text
    assert "pooled mean" in text
    assert MARK not in text
    for row in kept(trauma[1])["coefficients"]:
        # Two sequential passes reach the pooled posterior to 0.005 sds (the bound).
        assert abs(row["mean"] - row["pooled_mean"]) < 0.005 * row["pooled_sd"]


@pytest.mark.nightly
def test_a_run_without_protection_says_so_in_all_that_it_keeps(trauma: tuple[Result, Path]) -> None:
    content = kept(trauma[1])
    assert (content["protection"], content["mark"], content["consortium"]) == ("none", "", [])
    assert "without privacy" in content["pooled"]
    for row in content["privacy"]:
        assert row["epsilon"] == {"add_remove": "inf", "substitute": "inf"}
        assert row["records"] is None
    for book in books(trauma[1]).values():
        assert not book.header.protected
        assert isinstance(book.entries[0].event, events.Unprotected)


def test_json_on_standard_output_is_what_is_kept_and_nothing_else(
    examples: Path, trauma: tuple[Result, Path]
) -> None:
    done = fedvi("simulate", examples / "trauma" / "study.toml", "--json")
    content = json.loads(done.stdout, parse_constant=pytest.fail)
    saved = kept(trauma[1])
    for row in saved["coefficients"]:
        del row["pooled_mean"], row["pooled_sd"]
    del saved["pooled"], saved["elapsed_seconds"], content["elapsed_seconds"]
    assert saved["residuals"].pop("pooled") < 1e-6
    assert content == saved
    assert done.stderr.count("round ") == 2


def test_the_pooled_columns_of_a_private_run_are_called_what_they_are(tmp_path: Path) -> None:
    done = fedvi("simulate", write(tmp_path), "--quiet", "--pooled")
    assert f"Posterior of small — {MARK} (pooled columns: not private)" in done.stdout


def test_a_folder_with_brackets_is_printed_as_it_is_called(tmp_path: Path) -> None:
    out = tmp_path / "runs[bold]"
    done = fedvi("simulate", write(tmp_path, OPEN), "--quiet", "--out", out)
    assert f"kept in {out}" in done.stdout


# The command as a process


def process(*arguments: object, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", "from fedvi.cli.main import main; main()", *map(str, arguments)],
        capture_output=True,
        env={**os.environ, **environment},
        timeout=120,
        check=False,
    )


@pytest.mark.nightly
def test_a_refusal_is_an_exit_code_and_two_lines_without_a_traceback(tmp_path: Path) -> None:
    path = write(tmp_path, north="y,age\n1,50\n")
    before = files(tmp_path)
    done = process("simulate", path, "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, b"")
    told = rb"(warning: [^\n]+\n)*error: [^\n]+no column `cp`[^\n]+\n\nhint: [^\n]+\n"
    assert re.fullmatch(told, done.stderr)
    assert files(tmp_path) == before


@pytest.mark.nightly
def test_an_encoding_without_greek_loses_no_result(tmp_path: Path) -> None:
    path = write(tmp_path, OPEN)
    done = process("simulate", path, "--out", tmp_path / "out", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert b"Posterior of small" in done.stdout
    assert (tmp_path / "out" / "result.json").is_file()


def test_a_published_count_does_not_tell_what_a_record_holds(tmp_path: Path) -> None:
    """Replacing a record by one that the schema drops leaves the printed number as it is."""
    counts = []
    for cell in ("1", "unheard-of"):
        folder = tmp_path / cell
        folder.mkdir()
        (folder / "north.csv").write_text(f"y,x\n1,0.5\n0,-0.5\n{cell},0.1\n0,0.2\n")
        (folder / "study.toml").write_text(
            """
            [study]
            name = "count"
            [model]
            kind = "logistic"
            formula = "y ~ x"
            [solver]
            kind = "dp_optimisation"
            steps = 2
            [schedule]
            kind = "sequential"
            rounds = 1
            [privacy]
            epsilon = 1.0
            delta = 1e-5
            unit = "record"
            relation = "substitute"
            records_public = true
            [data]
            max_records = 10
            [data.schema.y]
            type = "binary"
            [data.schema.x]
            type = "number"
            bounds = [-1, 1]
            [[clients]]
            name = "north"
            data = "north.csv"
            """
        )
        done = fedvi("simulate", folder / "study.toml", "--json", "--quiet")
        counts.append(json.loads(done.stdout)["privacy"][0]["records"])
    assert counts == [4, 4]


@pytest.mark.nightly
def test_a_solver_that_did_not_converge_says_so(tmp_path: Path, examples: Path) -> None:
    text = (examples / "trauma" / "study.toml").read_text()
    folder = tmp_path / "trauma"
    shutil.copytree(examples / "trauma", folder)
    # So few evaluations that the first hospital's search cannot end.
    changed = text.replace('kind = "glm"', 'kind = "glm"\nevaluations = 1')
    (folder / "study.toml").write_text(changed)
    done = fedvi("simulate", folder / "study.toml", "--quiet")
    assert done.exit_code == 0
    assert "not converged: hospital-" in done.stdout


@pytest.mark.parametrize("group", ["ca", "data", "ledger"])
def test_the_list_of_a_groups_commands_has_whole_sentences(group: str) -> None:
    done = CliRunner().invoke(main, [group, "--help"], env={"COLUMNS": "80"})
    listed = done.stdout.partition("Commands:\n")[2].splitlines()
    assert len(listed) > 1
    for line in listed:
        assert line.endswith("."), line
        assert not line.endswith("..."), line
