"""Claims about `fedvi report`: it says what the run released and its ledgers cost, or it is refused."""

import csv
import importlib.resources
import io
import itertools
import json
import math
import re
import shutil
import statistics
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from fedvi.cli import _results
from fedvi.cli.main import main
from fedvi.privacy import ledger
from fedvi.privacy.accountants.pld import pld
from fedvi.privacy.events import Gaussian, repeat
from fedvi.report import canvas
from fedvi.run import server_plan, simulate, site
from fedvi.server.coordinator import Coordinator
from fedvi.server.store.durable import SqliteServerStore
from fedvi.store.memory import MemoryClientStore
from fedvi.study.build import Assembly
from fedvi.transport.memory import MemoryLink
from tests import browser as browsers
from tests.commands import succeeded as fedvi
from tests.joint_price import joint_epsilon
from tests.sites import assembled, study_file

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

browser, page = browsers.browser, browsers.page

TRAUMA, HEART = "trauma/study.toml", "heart-disease/study-descent.toml"
SITES = ("cleveland", "budapest", "switzerland", "long-beach")


@pytest.fixture(scope="module")
def private(examples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished private study, with its report."""
    folder = tmp_path_factory.mktemp("private") / "run"
    fedvi("simulate", examples / HEART, "--quiet", "--out", folder)
    fedvi("report", folder)
    return folder


@pytest.fixture(scope="module")
def unprotected(examples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished study that promises nothing, with its report and public records."""
    folder = tmp_path_factory.mktemp("open") / "run"
    fedvi("simulate", examples / TRAUMA, "--quiet", "--out", folder)
    fedvi("report", folder, "--public", examples / "trauma" / "data" / "hospital-3.csv")
    return folder


@pytest.fixture
def copy(private: Path, tmp_path: Path) -> Path:
    """A copy of the private run, to be changed."""
    return Path(shutil.copytree(private, tmp_path / "copy"))


def told(folder: Path) -> Any:
    return json.loads((folder / "report" / "report.json").read_text(encoding="utf-8"))


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.nightly
def test_every_format_holds_the_posterior_of_the_run(private: Path) -> None:
    with np.load(private / "posterior.npz") as kept:
        names, mean, sd = kept["names"].tolist(), kept["mean"], kept["sd"]
    found = told(private)["coefficients"]
    assert [row["name"] for row in found] == names
    assert [row["mean"] for row in found] == mean.tolist()
    assert [row["sd"] for row in found] == sd.tolist()
    assert [row["prior_sd"] for row in found] == pytest.approx([2.5] * len(names))
    table = rows(private / "report" / "coefficients.csv")
    assert [float(row["mean"]) for row in table] == mean.tolist()
    assert [float(row["ratio"]) for row in table] == pytest.approx(np.exp(mean).tolist())
    for name in ("report.html", "report.md"):
        text = (private / "report" / name).read_text(encoding="utf-8")
        assert "restecg" in text
        for value in mean:
            assert f"{value:.3f}" in text


@pytest.mark.nightly
def test_epsilon_over_releases_is_that_of_the_ledgers_events(private: Path) -> None:
    book = ledger.from_lines((private / "ledger" / "budapest.jsonl").read_text().splitlines())
    (noise,) = {e.event.inner for e in book.entries if e.event is not None}
    assert isinstance(noise, Gaussian)
    found = {row["relation"]: row for row in told(private)["spending"]}
    assert set(found) == {"add_remove", "substitute"}
    for relation, row in found.items():
        assert row["sites"] == list(SITES)
        assert row["releases"] == [1, 2]
        accountant = pld(relation)
        # 50 steps a release; the tables of noise cost less than the last digits.
        expected = [accountant.epsilon(repeat(noise, 50 * count), 1e-5) for count in (1, 2)]
        assert row["epsilon"] == pytest.approx(expected, rel=1e-6)
        assert row["stated"] == row["epsilon"][-1]
    assert (found["substitute"]["promised"], found["add_remove"]["promised"]) == (4.0, None)
    assert found["substitute"]["stated"] <= 4.0


def test_a_statement_says_all_that_a_claim_depends_on(private: Path) -> None:
    statements = {row["site"]: row for row in told(private)["statements"]}
    assert tuple(statements) == SITES
    text = (private / "report" / "report.html").read_text(encoding="utf-8")
    verified = fedvi("ledger", "verify", private / "ledger").stdout
    for name, row in statements.items():
        assert f"{name}.jsonl: whole, anchor {row['head']}" in verified
        assert row["head"] in text
        assert (row["unit"], row["accountant"], row["releases"]) == ("record", "pld", 2)
        assert [claim["relation"] for claim in row["claims"]] == ["add_remove", "substitute"]
        assert "Gaussian noise" in dict(row["facts"])["answers allowed"]
        assert any("hyper-parameters" in line for line in row["excluded"])
        assert any("other runs on the same records" in line for line in row["excluded"])
        assert any("400 records" in line for line in row["declared"])
        assert any("ChaCha20" in line for line in row["assumed"])
    # Nobody signs for a simulation.
    assert "signature" not in text.partition('<h2 id="statements">')[2]
    assert "This was a simulation, so none is to be signed" in text
    # Whose promise it is, which relation has no limit of the study, and what to compare with others.
    assert text.count("nothing to sign: a real run has statements of its own") == len(SITES) + 1
    assert text.count(">none set<") == len(SITES) + 1
    assert "From ε and δ alone they would be" in text


def test_the_odds_of_a_guess_are_those_of_the_plans_noise_and_of_the_worst_at_that_price(
    private: Path,
) -> None:
    first = (private / "ledger" / "cleveland.jsonl").read_text().partition("\n")[0]
    planned = json.loads(first)["header"]["planned"]
    noise = planned["inner"]["noise_multiplier"]
    for claim in told(private)["statements"][0]["claims"]:
        epsilon, delta = claim["epsilon"], claim["delta"]
        # Randomised response that tells the truth outright with probability delta.
        worst = delta + (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon))
        assert claim["by_epsilon"] == pytest.approx(worst, rel=2 * delta)
        # Of two normal laws, the better guess is right with probability Φ(half their distance in sds).
        apart = {"add_remove": 1.0, "substitute": 2.0}[claim["relation"]]
        distance = apart * math.sqrt(planned["count"]) / noise
        assert claim["right"] == pytest.approx(statistics.NormalDist().cdf(distance / 2), rel=1e-3)
        assert claim["right"] < claim["by_epsilon"]


def test_a_statement_is_written_for_the_sites_that_are_named(private: Path, tmp_path: Path) -> None:
    fedvi("report", private, "--out", tmp_path, "--statement", "budapest", "--format", "json, html")
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["report.html", "report.json"]
    found = json.loads((tmp_path / "report.json").read_text())
    assert [row["site"] for row in found["statements"]] == ["budapest"]
    assert [row["name"] for row in found["sites"]] == list(SITES)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Privacy statement: budapest" in text
    assert "Privacy statement: cleveland" not in text
    done = fedvi("report", private, "--out", tmp_path, "--statement", "budapesd", code=2)
    assert "'budapesd', which is no client" in done.stderr
    assert "budapest" in done.stderr


@pytest.mark.nightly
def test_nothing_protected_is_said_loudly_and_nothing_is_claimed(
    unprotected: Path, tmp_path: Path
) -> None:
    text = (unprotected / "report" / "report.html").read_text(encoding="utf-8")
    assert "NO PRIVACY PROTECTION" in text
    assert text.count("NO GUARANTEE") == 3
    found = told(unprotected)
    assert all(row["claims"] == [] for row in found["statements"])
    assert (found["spending"], found["consortium"]) == ([], None)
    table = rows(unprotected / "report" / "privacy.csv")
    assert {row["epsilon"] for row in table} == {"inf"}
    done = fedvi("report", unprotected, "--out", tmp_path, "--format", "json")
    assert "NO PRIVACY PROTECTION" in done.stdout
    assert done.stdout.count("∞") == 1 + 2 * 3


def test_public_records_are_held_against_the_posterior_as_evaluate_does(
    unprotected: Path, examples: Path
) -> None:
    file = examples / "trauma" / "data" / "hospital-3.csv"
    expected = json.loads(fedvi("evaluate", unprotected, file, "--json").stdout)
    found = told(unprotected)["predictions"]
    assert found["classes"] == expected["classes"]
    assert found["mean_log_likelihood"] == expected["mean_log_likelihood"]
    text = (unprotected / "report" / "report.html").read_text(encoding="utf-8")
    assert "These figures are not protected" in text
    assert f"{100 * expected['classes']['accuracy']:.1f}\N{NO-BREAK SPACE}%" in text


def test_influence_is_that_of_the_result(unprotected: Path) -> None:
    result = json.loads((unprotected / "result.json").read_text())
    for row, site_row in zip(result["influence"], told(unprotected)["sites"], strict=True):
        assert site_row["share"] == row["precision_share"]
        assert site_row["shifts"] == list(row["shift_in_sds"].values())
    assert len(rows(unprotected / "report" / "shifts.csv")) == 15


def damage(copy: Path, name: str, old: str, new: str) -> None:
    path = copy / name
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_a_changed_ledger_gets_no_report(copy: Path) -> None:
    damage(copy, "ledger/budapest.jsonl", '"count":50', '"count":40')
    shutil.rmtree(copy / "report")
    done = fedvi("report", copy, code=5)
    assert "budapest.jsonl does not verify" in done.stderr
    assert not (copy / "report").exists()


def test_a_ledger_that_was_cut_gets_no_report(copy: Path) -> None:
    path = copy / "ledger" / "budapest.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    # Whole as a chain: only the run's result knows that there was more.
    path.write_text("".join(lines[:-1]))
    fedvi("ledger", "verify", path)
    done = fedvi("report", copy, code=5)
    assert "the ledger of 'budapest' ends at 5:" in done.stderr
    assert "the result of the run says 6:" in done.stderr


def test_a_ledger_that_is_missing_or_another_sites_gets_no_report(copy: Path) -> None:
    path = copy / "ledger" / "budapest.jsonl"
    kept = path.read_bytes()
    path.unlink()
    assert "holds no ledger of client 'budapest'" in fedvi("report", copy, code=5).stderr
    path.write_bytes((copy / "ledger" / "cleveland.jsonl").read_bytes())
    assert "expected the client of the file's name" in fedvi("report", copy, code=5).stderr
    path.write_bytes(kept)
    fedvi("report", copy, "--format", "csv")


def test_a_result_that_states_less_than_the_ledger_costs_gets_no_report(copy: Path) -> None:
    result = json.loads((copy / "result.json").read_text())
    result["privacy"][1]["epsilon"]["substitute"] *= 0.9
    (copy / "result.json").write_text(json.dumps(result))
    done = fedvi("report", copy, code=5)
    assert "the ledger of 'budapest' costs epsilon" in done.stderr


def changed(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the result of a run."""
    path = run / "result.json"
    result = json.loads(path.read_text(encoding="utf-8"))
    change(result)
    path.write_text(json.dumps(result), encoding="utf-8")


@pytest.mark.parametrize("key", ["mean", "sd", "lower", "upper", "odds_ratio", "odds_upper"])
def test_a_changed_number_of_the_posterior_gets_no_report(copy: Path, key: str) -> None:
    changed(copy, lambda result: result["coefficients"][3].update({key: 0.25}))
    done = fedvi("report", copy, "--format", "csv", code=2)
    assert "is not the posterior that result.json lists" in done.stderr


def test_a_mark_of_a_ledger_is_shown_whatever_the_result_says(tmp_path: Path) -> None:
    # Its noise follows from a seed.
    fedvi("simulate", study_file(tmp_path), "--quiet", "--out", tmp_path / "run")
    changed(tmp_path / "run", lambda result: result.update(mark=""))
    done = fedvi("report", tmp_path / "run", "--format", "md,csv")
    assert "! MARKED: " in done.stdout
    assert "MARKED" in (tmp_path / "run" / "report" / "report.md").read_text(encoding="utf-8")
    assert all(row["mark"] for row in rows(tmp_path / "run" / "report" / "privacy.csv"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda result: result["history"][0].pop("gap"), "history.0.gap: field required"),
        (lambda result: result.update(privacy=[1]), "privacy.0: "),
        (lambda result: result["privacy"][0].update(epsilon="1"), "privacy.0.epsilon: "),
        (lambda result: result["coefficients"][0].update(mean=None), "coefficients.0.mean: "),
        (lambda result: result["prior"].pop(), "14 rows of the prior, expected 15"),
        (
            lambda result: result["influence"][0]["shift_in_sds"].popitem(),
            "the influence of 'cleveland' is of other coefficients",
        ),
    ],
)
def test_a_result_of_another_shape_is_an_error_that_names_the_place(
    copy: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    changed(copy, change)
    assert said in fedvi("report", copy, "--format", "json", code=2).stderr


def test_a_posterior_that_is_cut_is_an_error(copy: Path) -> None:
    (copy / "posterior.npz").write_bytes((copy / "posterior.npz").read_bytes()[:200])
    assert "no posterior can be read" in fedvi("report", copy, code=2).stderr


def test_a_site_whose_persons_may_be_elsewhere_says_so_on_its_own_statement(
    private: Path, tmp_path: Path
) -> None:
    fedvi("simulate", study_file(tmp_path), "--quiet", "--out", tmp_path / "run")
    fedvi("report", tmp_path / "run", "--format", "json")
    found = told(tmp_path / "run")
    # Nobody declared that no record stands at two sites.
    one, three = found["statements"][0], found["consortium"]
    alone, whole = one["claims"][0], three["claims"][0]
    expected = joint_epsilon(alone["epsilon"], alone["delta"], 3)
    assert whole["epsilon"] == pytest.approx(expected, rel=1e-3)
    assert whole["delta"] == alone["delta"]
    for statement in found["statements"]:
        assert any("at another site" in line for line in statement["excluded"])
    for statement in told(private)["statements"]:
        assert not any("at another site" in line for line in statement["excluded"])


def test_what_a_site_spent_for_life_is_told_as_the_runs_own_word(copy: Path) -> None:
    spent = {"epsilon": 0.1, "cap": 8, "delta": 1e-6, "relation": "substitute", "releases": 9}
    changed(copy, lambda result: result["privacy"][0].update(lifetime=spent))
    fedvi("report", copy, "--format", "json")
    (found, *others) = told(copy)["statements"]
    assert "as the run wrote it" in found["lifetime"]
    assert not any(statement["lifetime"] for statement in others)


def test_a_pooled_fit_is_excluded_from_the_claim_and_shown_to_whoever_asks_alone(
    copy: Path,
) -> None:
    result = json.loads((copy / "result.json").read_text())
    result["pooled"] = "pooled_mean and pooled_sd: fitted to all records without privacy"
    for row in result["coefficients"]:
        row |= {"pooled_mean": 0.831415, "pooled_sd": 0.831415}
    (copy / "result.json").write_text(json.dumps(result))
    fedvi("report", copy, "--format", "json,csv")
    for path in (copy / "report").iterdir():
        if path.suffix in (".json", ".csv"):
            assert "0.831415" not in path.read_text(encoding="utf-8")
    found = told(copy)
    for statement in (*found["statements"], found["consortium"]):
        assert any("the fit of all records together" in line for line in statement["excluded"])
    assert "--pooled" not in fedvi("report", copy, "--pooled", "--format", "html,json").stderr
    assert {row["pooled_sd"] for row in told(copy)["coefficients"]} == {0.831415}
    text = (copy / "report" / "report.html").read_text(encoding="utf-8")
    assert "NOT PRIVATE: this report shows a pooled fit" in text
    assert text.index("NOT PRIVATE") < text.index("What was found")


def test_a_run_without_a_pooled_fit_shows_none(private: Path, tmp_path: Path) -> None:
    done = fedvi("report", private, "--pooled", "--out", tmp_path / "r", code=2)
    assert "the run holds no pooled fit" in done.stderr
    assert not (tmp_path / "r").exists()


def test_files_of_two_runs_get_no_report(copy: Path, unprotected: Path) -> None:
    shutil.copy(unprotected / "posterior.npz", copy)
    assert "is not the posterior that result.json lists" in fedvi("report", copy, code=2).stderr
    shutil.copy(unprotected / "result.json", copy)
    assert "the folder holds files of two runs" in fedvi("report", copy, code=2).stderr
    assert "expected the folder of a run" in fedvi("report", copy / "ledger", code=2).stderr


def test_a_result_of_an_earlier_version_is_reported_with_what_it_has(copy: Path) -> None:
    result = json.loads((copy / "result.json").read_text())
    del result["prior"], result["warnings"]
    for row in result["privacy"]:
        del row["ledger"]
    for update in result["history"]:
        del update["missing"]
    (copy / "result.json").write_text(json.dumps(result))
    fedvi("report", copy, "--format", "md,json")
    text = (copy / "report" / "report.md").read_text(encoding="utf-8")
    assert "kept no prior" in text
    assert "whether one was cut since cannot be told from this folder" in text
    assert told(copy)["coefficients"][0]["prior_sd"] is None


def test_a_report_is_replaced_as_a_whole_and_the_same_run_gives_the_same_bytes(copy: Path) -> None:
    before = {path.name: path.read_bytes() for path in (copy / "report").iterdir()}
    fedvi("report", copy, "--format", "md")
    assert {path.name for path in (copy / "report").glob("[!.]*")} == {"report.md"}
    fedvi("report", copy)
    after = {path.name: path.read_bytes() for path in (copy / "report").iterdir()}
    assert after == before


def test_a_page_that_was_signed_is_not_lost(copy: Path) -> None:
    signed = copy / "report" / "report.html"
    before = signed.read_bytes() + b"<!-- signed: the data protection officer -->"
    signed.write_bytes(before)
    done = fedvi("report", copy, "--statement", "budapest", code=2)
    assert f"{signed} is not as `fedvi report` left it, and is not overwritten" in done.stderr
    fedvi("report", copy, "--format", "json")
    assert signed.read_bytes() == before


def test_the_summary_fits_80_columns(private: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        main,
        ["report", str(private), "--out", str(tmp_path / "r"), "--format", "csv"],
        env={"COLUMNS": "80", "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"},
    )
    assert done.exit_code == 0, done.stderr
    plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    tables = [line for line in plain.splitlines() if line.startswith(" ")]
    assert len(tables) > 20
    assert max(map(len, tables)) <= 80
    assert "NOT CONVERGED" in plain or "no mean moved" not in plain


def test_json_is_printed_alone(private: Path, tmp_path: Path) -> None:
    done = fedvi("report", private, "--out", tmp_path, "--format", "csv", "--json")
    assert json.loads(done.stdout) == told(private)
    assert "'markdown'" in fedvi("report", private, "--format", "markdown", code=2).stderr


def test_without_its_packages_it_says_what_to_install(
    private: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for missing in ("jinja2", "matplotlib"):
        with monkeypatch.context() as without:
            without.setitem(sys.modules, missing, None)
            canvas.forget_figures()
            done = fedvi("report", private, "--out", tmp_path / missing, code=2)
            assert "pip install 'fedvi[report]'" in done.stderr
        assert not (tmp_path / missing).exists()
    fedvi("report", private, "--out", tmp_path / "csv", "--format", "csv,json")


@pytest.mark.nightly
def test_topics_are_told_in_the_words_of_a_public_vocabulary(tmp_path: Path) -> None:
    size = 6_000  # so that not all cells of both topics are among the coefficients that are listed
    raw = {
        "study": {"name": "archive"},
        "model": {"kind": "latent_dirichlet", "topics": 2, "vocabulary": size, "distinct": 2},
        "solver": {"kind": "vips", "noise_multiplier": 0.0},
        "schedule": {"kind": "sequential", "rounds": 3},
        "privacy": {"protection": "none"},
        "data": {"max_records": 40},
        "clients": [{"name": "north", "data": "north.npz"}],
    }
    pairs = np.array([[7, 11], [size - 9, size - 1]], np.int32)
    words, counts = np.repeat(pairs, 20, axis=0), np.tile(np.float32([[9, 5]]), (40, 1))
    np.savez(tmp_path / "north.npz", words=words, counts=counts)
    (tmp_path / "study.json").write_text(json.dumps(raw))
    run = tmp_path / "run"
    fedvi("simulate", tmp_path / "study.json", "--quiet", "--out", run)
    names = [f"word{number}" for number in range(size - 1)] + ["new york"]
    (tmp_path / "words.txt").write_text("\n".join(names))
    said = json.loads(fedvi("report", run, "--vocabulary", tmp_path / "words.txt", "--json").stdout)
    told = {tuple(topic["words"][:2]) for topic in said["topics"]}
    assert told == {("word7", "word11"), (f"word{size - 9}", "new york")}
    plain = json.loads(fedvi("report", run, "--json").stdout)
    assert {tuple(topic["words"][:2]) for topic in plain["topics"]} == {
        ("7", "11"), (str(size - 9), str(size - 1))
    }  # fmt: skip
    assert all(topic["shares"] == sorted(topic["shares"])[::-1] for topic in said["topics"])
    (tmp_path / "words.txt").write_text("\n".join(names[:-1] + names[:1]))
    done = fedvi("report", run, "--vocabulary", tmp_path / "words.txt", code=2)
    assert "6,000 words, 5,999 of them different" in done.stderr
    done = fedvi("report", run, "--vocabulary", tmp_path / "none.txt", code=2)
    assert "no words can be read" in done.stderr


def test_a_vocabulary_is_refused_where_there_are_no_topics(private: Path, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("one two")
    done = fedvi("report", private, "--vocabulary", tmp_path / "words.txt", code=2)
    assert "--vocabulary is given, and model.kind is 'logistic'" in done.stderr


def test_help_needs_none_of_its_packages() -> None:
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom fedvi.cli.main import main\n"
        "done = CliRunner().invoke(main, ['report', '--help'])\nassert done.exit_code == 0\n"
        "assert '--statement SITE' in done.output, done.output\n"
        "print([name for name in ('jax', 'matplotlib', 'jinja2', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_templates_are_packed(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=root, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = zipfile.ZipFile(wheel).namelist()
    for path in importlib.resources.files("fedvi.report").joinpath("templates").iterdir():
        assert f"fedvi/report/templates/{path.name}" in packed


@pytest.mark.nightly
def test_ratios_that_nobody_can_read_alone_are_nowhere(tmp_path: Path) -> None:
    number = {"type": "number", "bounds": [-9, 9], "center": 1, "scale": 2}
    schema = {"y": {"type": "binary"}, "x0": number, "x1": number}
    spline = "bs(x1, knots=[0], degree=1, lower_bound=-9, upper_bound=9)"
    study = study_file(
        tmp_path,
        model={"kind": "logistic", "formula": f"y ~ x0 * {spline}"},
        data={"schema": schema},
    )
    run, summary = tmp_path / "run", tmp_path / "summary.csv"
    printed = [fedvi("simulate", study, "--out", run).stdout]
    printed.append(fedvi("posterior", run, "--summary", summary).stdout)
    # Early versions gave a ratio to every coefficient.
    changed(run, lambda result: [row.pop("odds_note") for row in result["coefficients"]])
    changed(run, lambda result: result["coefficients"][2].update(odds_ratio=0.5))
    printed.append(fedvi("report", run).stdout)
    for text in printed:
        assert "* odds ratio of x0: where bs(x1) is 0" in text
        assert "no odds ratio of bs(x1)[1], bs(x1)[2], x0:bs(x1)[1], x0:bs(x1)[2]: a part" in text
    for path, key in (
        (summary, "odds_ratio"),
        (run / "report" / "coefficients.csv", "ratio"),
    ):
        assert [bool(row[key]) for row in rows(path)] == [True, True, False, False, False, False]
    found = told(run)["coefficients"]
    assert [row["ratio_note"] for row in found[:3]] == [
        "",
        "where bs(x1) is 0",
        "a part of the curve bs(x1)",
    ]
    for name in ("report.html", "report.md"):
        text = (run / "report" / name).read_text(encoding="utf-8")
        assert text.count("a part of the curve bs(x1)") == 4


# In a browser


@pytest.fixture(scope="module")
def demo(examples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo, with its report beside the pooled fit: statements as long as they get there."""
    folder = tmp_path_factory.mktemp("demo") / "run"
    study = examples / "heart-disease" / "study.toml"
    fedvi("simulate", study, "--pooled", "--quiet", "--out", folder)
    fedvi("report", folder, "--pooled")
    return folder


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of 22 sites and 14 coefficients, with its report: long tables and tall figures."""
    folder = tmp_path_factory.mktemp("many")
    names = [f"site-{number:02}" for number in range(1, 23)]
    covariates = [f"covariate_{letter}" for letter in "abcdefghijklm"]
    rng = np.random.default_rng(1)
    for name in names:
        x = rng.normal(size=(60, len(covariates)))
        y = rng.random(60) < 1.0 / (1.0 + np.exp(-x[:, 0]))
        lines = [",".join(["y", *covariates])]
        lines += [
            ",".join([str(int(one)), *map("{:.2f}".format, row)])
            for one, row in zip(y, x, strict=True)
        ]
        (folder / f"{name}.csv").write_text("\n".join(lines), encoding="utf-8")
    flags = [f"--column={name}=number:-4..4" for name in covariates]
    formula = " + ".join(covariates)
    fedvi(
        *("init", folder / "study", "--yes", "--kind", "logistic", "--formula", f"y ~ {formula}"),
        *("--clients", ",".join(names), "--max-records", "60", "--epsilon", "4"),
        *("--column=y=binary", *flags),
    )
    for name in names:
        (folder / f"{name}.csv").rename(folder / "study" / f"{name}.csv")
    fedvi("simulate", folder / "study" / "study.toml", "--quiet", "--out", folder / "run")
    fedvi("report", folder / "run", "--statement", "site-01")
    return folder / "run"


@pytest.fixture(
    params=["private", "unprotected", "demo", pytest.param("many", marks=pytest.mark.nightly)]
)
def file(request: pytest.FixtureRequest) -> Path:
    """The page of a run."""
    folder: Path = request.getfixturevalue(request.param)
    return folder / "report" / "report.html"


def test_the_page_opens_without_a_network_and_asks_for_nothing(
    browser: "Browser", file: Path
) -> None:
    context = browser.new_context(offline=True)
    sheet = context.new_page()
    seen = browsers.watch(sheet)
    sheet.goto(file.as_uri(), wait_until="load")
    assert [address for address in seen.requests if not address.startswith("data:")] == [
        file.as_uri()
    ]
    assert (seen.fetched, seen.complaints) == ([], [])
    drawn = "[...document.images].map(image => image.complete && image.naturalWidth > 100)"
    assert set(sheet.evaluate(drawn)) == {True}
    assert sheet.evaluate("document.scripts.length") == 0
    context.close()


def test_the_page_is_a_document_that_can_be_walked_through(page: "Page", file: Path) -> None:
    page.goto(file.as_uri())
    levels = page.evaluate(
        "[...document.querySelectorAll('h1,h2,h3,h4')].map(heading => +heading.tagName[1])"
    )
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert page.evaluate("document.documentElement.lang") == "en-GB"
    # Every figure has words, every table a caption, every head a scope, every link a target.
    figures = page.locator("figure")
    assert figures.count() >= 5
    for figure in figures.all():
        assert len(figure.locator("img.broad").get_attribute("alt") or "") > 40
        # Of its two drawings one is seen, and read aloud.
        assert figure.locator("img:visible").count() == 1
        assert figure.locator("figcaption").inner_text()
    assert page.locator("table:not(:has(caption))").count() == 0
    assert page.locator("th:not([scope])").count() == 0
    broken = (
        "[...document.links].map(link => link.getAttribute('href'))"
        ".filter(href => href[0] != '#' || !document.getElementById(href.slice(1)))"
    )
    assert page.evaluate(broken) == []
    twice = (
        "[...document.querySelectorAll('[id]')].map(element => element.id)"
        ".filter((id, place, all) => all.indexOf(id) != place)"
    )
    assert page.evaluate(twice) == []


@pytest.mark.parametrize("width", [390, 1280])
def test_nobody_scrolls_the_page_sideways(page: "Page", file: Path, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(file.as_uri())
    assert browsers.overflow(page) == 0
    # Nor anything on it: no column of a table and no part of a figure is out of sight.
    hidden = (
        "[...document.querySelectorAll('.scroll, figure, .shown')]"
        ".filter(box => box.scrollWidth > box.clientWidth + 1).map(box => box.innerText.slice(0, 60))"
    )
    assert page.evaluate(hidden) == []
    heads = "[...document.querySelectorAll('table.wide td')].filter(cell => cell.innerText)"
    names = f"{heads}.map(cell => getComputedStyle(cell, '::before').content)"
    # On a phone each cell of a wide table says which column it is of.
    assert ("none" in page.evaluate(names)) == (width == 1280)
    shot = page.screenshot(full_page=True, timeout=60_000)
    with Image.open(io.BytesIO(shot)) as picture:
        assert picture.size[0] == width
        grey = np.asarray(picture.convert("L"))
    # Neither blank nor black.
    assert 0.01 < (grey < 128).mean() < 0.25


def places_in(printed: bytes) -> tuple[dict[str, tuple[int, float]], int]:
    """Returns by heading its page and how high it stands there, and how many pages there are.

    Skia writes where a heading stands in points from below: that of an A4 page is 842 high.
    """
    found = {
        name.decode(): (int(number), float(top))
        for name, number, top in re.findall(
            rb"/([a-z]+(?:-\w+)?) \[(\d+) 0 R /XYZ \S+ (\S+) \S+\]", printed
        )
    }
    kids = re.findall(rb"/Kids\s*\[([^\]]*)\]", printed)
    order = [int(number) for part in kids for number in re.findall(rb"(\d+) 0 R", part)]
    leaves = {int(n) for n in re.findall(rb"(\d+) 0 obj\s*<<\s*/Type\s*/Page\b", printed)}
    pages = [number for number in order if number in leaves]
    return {name: (pages.index(at), top) for name, (at, top) in found.items()}, len(pages)


def test_the_first_page_stands_alone_and_each_statement_on_a_page_of_its_own(
    page: "Page", file: Path
) -> None:
    page.goto(file.as_uri())
    places, count = places_in(page.pdf(prefer_css_page_size=True))
    assert places["front"][0] == 0
    assert all(at > 0 for name, (at, _) in places.items() if name != "front")
    assert places["short"][0] == 1
    starts = sorted(at for name, (at, _) in places.items() if name.startswith("statement-"))
    assert len(starts) >= 2
    assert all(after - before == 1 for before, after in itertools.pairwise(starts))
    assert all(top > 780.0 for name, (_, top) in places.items() if name.startswith("statement-"))
    # Nothing comes after the last, and what leads to them stands before.
    assert starts[-1] == count - 1
    assert places["check"][0] < starts[0]
    # On a screen they have a heading together; in print it would have a page of its own.
    assert page.locator("#statements").is_visible()
    assert "statements" not in places
    # No heading stands at the foot of a page, without what it is of.
    assert all(top > 110.0 for _, top in places.values())


@pytest.mark.parametrize("lines", [4, 6])
def test_eight_effects_with_long_names_leave_the_first_page_whole(
    page: "Page", private: Path, lines: int
) -> None:
    page.goto((private / "report" / "report.html").as_uri())
    rows = page.locator(".effects tbody tr")
    assert rows.count() == 8
    # An answer as long as that of a study with many effects that noise alone moved.
    page.evaluate(
        """lines => {
        const answer = document.querySelector('.answer');
        answer.innerHTML = '';
        for (let at = 0; at < lines; at++) {
            const line = answer.appendChild(document.createElement('li'));
            line.innerText = 'a line of words '.repeat(18);
        }
        for (const cell of document.querySelectorAll('.effects tbody td:nth-child(2)'))
            cell.innerText = 'against African American';
        }""",
        lines,
    )
    places, _ = places_in(page.pdf(prefer_css_page_size=True))
    assert places["short"][0] == 1


@pytest.mark.nightly
@pytest.mark.parametrize("least", [4, 3], ids=["all", "some missing"])
def test_a_statement_of_masked_sums_is_one_page_too(
    page: "Page", examples: Path, tmp_path: Path, least: int
) -> None:
    # The longest ones: two views, and what masks rest on.
    shutil.copytree(examples / "heart-disease", tmp_path / "study")
    study = tmp_path / "study" / "study-sums.toml"
    text = re.sub(
        r"^\[privacy\]$", f"[privacy]\nleast_reporting = {least}", study.read_text(), flags=re.M
    )
    study.write_text(text)
    fedvi("simulate", study, "--quiet", "--out", tmp_path / "run")
    fedvi("report", tmp_path / "run")
    page.goto((tmp_path / "run" / "report" / "report.html").as_uri())
    places, count = places_in(page.pdf(prefer_css_page_size=True))
    starts = sorted(at for name, (at, _) in places.items() if name.startswith("statement-"))
    assert starts == [*range(count - 5, count)]


@pytest.mark.skipif(shutil.which("pdftoppm") is None, reason="needs poppler's pdftoppm")
def test_no_page_of_the_details_is_half_empty_but_the_last_and_most_are_full(
    page: "Page", file: Path, tmp_path: Path
) -> None:
    page.goto(file.as_uri())
    printed = page.pdf(prefer_css_page_size=True)
    (tmp_path / "report.pdf").write_bytes(printed)
    subprocess.run(
        ["pdftoppm", "-r", "30", "-gray", tmp_path / "report.pdf", tmp_path / "leaf"], check=True
    )
    last = min(at for name, (at, _) in places_in(printed)[0].items() if "statement-" in name) - 1
    filled = []
    for leaf in sorted(tmp_path.glob("leaf*.pgm")):
        with Image.open(leaf) as picture:
            inked = np.flatnonzero((np.asarray(picture) < 160).any(axis=1))
            filled.append(inked[-1] / picture.size[1])
    # The first page and the statements stand alone, however short. A page is at most 0.94 full.
    details = filled[1:last]
    assert len(details) >= 3
    assert min(details) > 0.55
    assert sum(details) / len(details) > 0.7


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="needs poppler's pdftotext")
def test_no_heading_is_printed_without_what_it_is_of_and_no_note_without_its_table(
    page: "Page", file: Path, tmp_path: Path
) -> None:
    page.goto(file.as_uri())
    (tmp_path / "report.pdf").write_bytes(page.pdf(prefer_css_page_size=True))
    text = subprocess.run(
        ["pdftotext", tmp_path / "report.pdf", "-"], check=True, capture_output=True, text=True
    ).stdout
    leaves = [" ".join(leaf.split()) for leaf in text.split("\f")]
    sections = page.locator("section:has(> .shown)").all()
    assert len(sections) >= 6
    for section in sections:
        heading = section.locator("h2").text_content()
        told = section.locator("caption, figcaption").all_text_contents()
        captions = [" ".join(caption.split()) for caption in told]
        # The list of contents is on the second page.
        at = [leaf for leaf in leaves[1:] if heading in leaf][-1]
        assert not captions or any(caption in at for caption in captions), heading
    for note in page.locator(".notes li").all_text_contents():
        start = " ".join(note.split())[:30]
        assert not any(leaf.lstrip("• ").startswith(start) for leaf in leaves), note


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="needs poppler's pdftotext")
def test_a_command_is_printed_beside_what_it_prints_wherever_it_comes_to_stand(
    page: "Page", private: Path, tmp_path: Path
) -> None:
    page.goto((private / "report" / "report.html").as_uri())
    lines = page.locator("section[aria-labelledby=check] p").all_text_contents()
    for _ in range(6):  # each time 4 cm further down: of a page that has 26, somewhere else
        page.evaluate(
            "document.querySelector('section[aria-labelledby=check]').insertAdjacentHTML("
            "'beforebegin', '<div style=\"height: 4cm; break-inside: avoid\"></div>')"
        )
        (tmp_path / "report.pdf").write_bytes(page.pdf(prefer_css_page_size=True))
        text = subprocess.run(
            ["pdftotext", tmp_path / "report.pdf", "-"], check=True, capture_output=True, text=True
        ).stdout
        leaves = [" ".join(leaf.split()) for leaf in text.split("\f")]
        assert any(lines[0][:40] in leaf and lines[-1][-40:] in leaf for leaf in leaves)


# A server's folder


def run_server(assembly: Assembly, study: Path, folder: Path) -> None:
    """Runs a server over the memory link, with the store and the files that `fedvi server` leaves."""
    plan = server_plan.make(assembly)
    spec = server_plan.to_spec(plan)
    sources = simulate.loading.load_shards(assembly, study.parent)
    clock = simulate.Clock()
    store = SqliteServerStore(folder, spec, ())
    server_plan.keep(plan, folder)
    coordinator = Coordinator(spec, store, lambda update: None, lambda: clock.now)
    link = MemoryLink(coordinator.handle)
    workers = {
        name: site.client_worker(
            assembly,
            name,
            link,
            MemoryClientStore(ledger.open_ledger(assembly.header(name))),
            site.shard_of(assembly, name, sources[name]),
        )
        for name in assembly.clients
    }
    latencies = {name: lambda: 1.0 for name in workers}
    simulate.drive(workers, coordinator, latencies, 3, clock)
    _results.write(plan, store.spec, coordinator.state, folder)
    store.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of a server's state and of a simulation, of one study with the same seeds."""
    base = tmp_path_factory.mktemp("served")
    study = study_file(base)
    run_server(assembled(study), study, base / "state")
    fedvi("simulate", study, "--quiet", "--out", base / "run")
    return base / "state", base / "run"


@pytest.mark.nightly
def test_a_servers_folder_gives_the_report_of_the_simulation(served: tuple[Path, Path]) -> None:
    fedvi("report", served[0], "--format", "html,json")
    fedvi("report", served[1], "--format", "json")
    state, run = map(told, served)
    assert (state["source"], run["source"]) == ("server", "simulation")
    assert (state["status"], run["status"]) == ("completed", "")
    for field in ("digest", "plan", "mark", "coefficients", "spending", "sites", "statements"):
        assert state[field] == run[field], field
    # The posterior of this solver follows from prior and factors, which the state holds.
    assert all(row["share"] is not None for row in state["sites"])
    text = (served[0] / "report" / "report.html").read_text(encoding="utf-8")
    assert "MARKED: " in text
    assert "no guarantee" in text
    assert text.count("Date and signature") == 2 * len(told(served[0])["sites"])
    assert "on a page of its own, to be signed" in text


@pytest.mark.nightly
def test_a_server_that_goes_on_gets_no_report(served: tuple[Path, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(served[0], tmp_path / "state"))
    path = folder / "result" / "result.json"
    result = json.loads(path.read_text())
    result["clients"][0]["ledger"] = result["clients"][1]["ledger"]
    path.write_text(json.dumps(result))
    done = fedvi("report", folder, code=5)
    assert "of a run that goes on, wait for its end" in done.stderr
    shutil.rmtree(folder / "result")
    assert "has the run ended?" in fedvi("report", folder, code=2).stderr


@pytest.mark.nightly
def test_where_only_sums_are_published_nothing_is_shown_of_one_site(tmp_path: Path) -> None:
    promise = {"epsilon": 4.0, "delta": 1e-5, "unit": "record", "relation": "substitute"}
    study = study_file(
        tmp_path,
        solver={"kind": "site_release", "clip_norm": 1.0},
        privacy={**promise, "view": "aggregate", "disjoint": True},
    )
    fedvi("simulate", study, "--quiet", "--out", tmp_path / "run")
    fedvi("report", tmp_path / "run", "--format", "json")
    found = told(tmp_path / "run")
    assert "the study's view is `aggregate`" in found["influence_note"]
    assert all((row["share"], row["shifts"]) == (None, None) for row in found["sites"])
    # Both views are claimed, and the running price is that of the study's own.
    for statement in found["statements"]:
        views = {(claim["view"], claim["relation"]): claim for claim in statement["claims"]}
        own, single = views["aggregate", "substitute"], views["message", "substitute"]
        assert own["epsilon"] <= own["promised"] == 4.0 < single["epsilon"]
    prices = {row["relation"]: row for row in found["spending"]}
    assert prices["substitute"]["epsilon"][-1] == prices["substitute"]["stated"] <= 4.0
