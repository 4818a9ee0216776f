"""What `fedvi server` says before it serves, what it leaves alone, and what `fedvi status` knows of it
once it is stopped; all in this process."""

import contextlib
import json
import logging
from pathlib import Path

import pytest

from fedvi import errors
from fedvi.cli import server as server_command
from fedvi.federation.messages import Hello, NextTask, Offer
from fedvi.privacy import events
from fedvi.privacy import ledger as ledgers
from fedvi.run import server_plan
from fedvi.server import logs
from fedvi.server.coordinator import Coordinator
from fedvi.server.store.durable import SqliteServerStore
from fedvi.study import build
from fedvi.study.spec import shared_parts
from tests.commands import succeeded as fedvi
from tests.studies import raw_study

SESSION = "5" * 32


@pytest.fixture(autouse=True)
def plans_in_this_process(monkeypatch):
    """Computes plans here, without the seconds that another process takes; restores the log."""
    monkeypatch.setattr(
        server_plan,
        "_computed",
        lambda path, study: server_plan.make(build.assemble(study)),
    )
    logger = logging.getLogger(logs.LOGGER)
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.level, logger.propagate = before


def study_file(folder: Path, **sections) -> Path:
    raw = raw_study(
        ["south", "north"],
        2,
        solver={"kind": "dp_optimisation", "steps": 2, "clip_norm": 1.0},
        privacy={"epsilon": 4.0, "delta": 1e-5, "unit": "record", "relation": "substitute"},
        **sections,
    )
    raw["data"]["max_records"] = 20
    path = folder / "study.json"
    path.write_text(json.dumps(raw))
    return path


def started(study: Path, state: Path, *options: str) -> str:
    """What a server says until it would open its ports."""
    with pytest.MonkeyPatch.context() as patch:

        def serve(app):
            raise errors.RunFailed("nothing is served here")

        patch.setattr(server_command, "serve", serve)
        return fedvi("server", study, "--state", state, *options, code=6).stderr


def charged(study: Path, state: Path) -> server_plan.ServerPlan:
    """Leaves a state in which south was charged for one task, as a server would."""
    started(study, state)
    plan = server_plan.read(state / server_plan.FILE)
    spec = server_plan.to_spec(plan)
    with contextlib.closing(SqliteServerStore(state, spec)) as store:
        coordinator = Coordinator(store.spec, store)
        anchor = ledgers.anchor(ledgers.open_ledger(spec.headers["south"]))
        coordinator.handle(Hello("south", plan.digest, anchor, session=SESSION))
        assert isinstance(coordinator.handle(NextTask("south", session=SESSION)), Offer)
    return plan


def test_noise_from_a_known_seed_is_warned_of_as_at_the_sites(tmp_path):
    seeded = study_file(tmp_path, simulation={"insecure_seed": 5})
    words = "NOTHING IS PROTECTED: the noise follows from `simulation.insecure_seed`"
    assert words in started(seeded, tmp_path / "seeded")
    assert words not in started(study_file(tmp_path), tmp_path / "state")


def test_an_operators_port_without_certificates_is_warned_of(tmp_path):
    study = study_file(tmp_path)
    options = ("--admin", "127.0.0.1:0")
    told = started(study, tmp_path / "state", *options)
    assert "--admin 127.0.0.1:0 is in clear text: every user of this machine can pause" in told
    assert "in clear text" not in started(study, tmp_path / "state")
    text = " ".join(fedvi("server", "--help").stdout.split())
    assert "every account on it can then stop the run" in text


@pytest.mark.parametrize("refusal", ["another study", "in use"])
def test_a_folder_that_refuses_a_changed_study_keeps_its_plan(tmp_path, refusal):
    state = tmp_path / "state"
    started(study_file(tmp_path), state)
    before = (state / server_plan.FILE).read_bytes()
    spec = server_plan.to_spec(server_plan.read(state / server_plan.FILE))
    changed = study_file(tmp_path, prior={"scale": 3.0})
    with contextlib.ExitStack() as using:
        if refusal == "in use":
            using.enter_context(contextlib.closing(SqliteServerStore(state, spec)))
        assert refusal in fedvi("server", changed, "--state", state, code=5).stderr
    assert (state / server_plan.FILE).read_bytes() == before


def test_a_plan_that_cannot_be_kept_is_told_in_a_sentence(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(server_plan, "put", full)
    told = fedvi("server", study_file(tmp_path), "--state", tmp_path / "state", code=5).stderr
    assert "plan.json: [Errno 28] No space left on device" in told
    assert "is the disk full" in told


def test_a_stopped_server_tells_what_was_charged_in_epsilon(tmp_path):
    state = tmp_path / "state"
    plan = charged(study_file(tmp_path), state)
    run = json.loads(fedvi("status", state, "--json").stdout)
    budget = shared_parts.budget(plan.study, plan.table_distance)
    once = budget.accountant.epsilon(events.Composed((plan.workers["south"].cost,)), budget.delta)
    assert run["unpriced"] is None
    assert {row["name"]: (row["charged"], row["epsilon"]) for row in run["clients"]} == {
        "south": (1, pytest.approx(once, rel=1e-12)),
        "north": (0, 0.0),
    }
    assert {row["delta"] for row in run["clients"]} == {1e-5}
    assert 0.1 < once < 4.0


@pytest.mark.parametrize("case", ["no plan", "another study's", "no protection"])
def test_a_stopped_server_says_why_there_is_no_epsilon(tmp_path, case):
    state = tmp_path / "state"
    charged(study_file(tmp_path), state)
    if case == "no plan":
        (state / server_plan.FILE).unlink()
        words = "no plan of a run can be read"
    elif case == "another study's":
        started(study_file(tmp_path, prior={"scale": 3.0}), tmp_path / "other")
        content = (tmp_path / "other" / server_plan.FILE).read_bytes()
        (state / server_plan.FILE).write_bytes(content)
        words = "is of another study than the ledgers"
    else:
        raw = raw_study(["south", "north"], 2)
        (tmp_path / "study.json").write_text(json.dumps(raw))
        state = tmp_path / "bare"
        charged(tmp_path / "study.json", state)
        words = "the study protects nothing"
    run = json.loads(fedvi("status", state, "--json").stdout)
    assert words in run["unpriced"]
    assert {row["epsilon"] for row in run["clients"]} == {None}
    assert f"ε charged is not known: {run['unpriced']}" in fedvi("status", state).stdout


def test_where_several_runs_are_each_gets_a_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = study_file(tmp_path)
    for name in ("first", "second"):
        charged(path, tmp_path / ".fedvi" / name / "server")
    said = fedvi("status").stdout
    assert all(f".fedvi/{name}/server" in said for name in ("first", "second"))
    assert said.count("stopped") == 2
    told = json.loads(fedvi("status", "--json").stdout)
    assert [len(run["clients"]) for run in told.values()] == [2, 2]
    # Other commands act on one run, and ask which.
    assert "2 are found" in fedvi("pause", code=2).stderr
