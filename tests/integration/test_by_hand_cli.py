"""`fedvi export`, `fedvi client --task` and `fedvi import`: a round that travels by hand, as commands."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from fedvi import plugins
from fedvi.cli.main import main
from fedvi.report import tables
from fedvi.results import outcome
from fedvi.results.one_shot import estimated_gap
from fedvi.run import server_plan, simulate
from fedvi.server.coordinator import Coordinator
from fedvi.server.core.state import ServerState
from fedvi.server.store.durable import SqliteServerStore
from fedvi.server.store.journal import Event
from fedvi.store.sqlite import read_ledger
from fedvi.study.config import load_study
from fedvi.transport import authority
from tests.hand import CLIENTS, PRIVATE
from tests.pki import authority_in, party
from tests.plug_ins import declare
from tests.servers import running
from tests.studies import raw_study


class Places:
    """A study on disk, a server's folder, and a folder for each hospital."""

    def __init__(
        self,
        folder: Path,
        rounds: int = 2,
        change: Callable[[dict[str, Any]], object] = lambda raw: None,
    ) -> None:
        self.folder, self.out = folder, folder / "out"
        raw = raw_study(
            list(CLIENTS),
            2,
            solver={"kind": "dp_optimisation", "steps": 2, "clip_norm": 1.0},
            schedule={"kind": "synchronous", "rounds": rounds},
            privacy=PRIVATE,
            simulation={"insecure_seed": 3},
        )
        raw["data"]["max_records"] = 30
        generator = np.random.default_rng(0)
        for client in raw["clients"]:
            client["data"] = f"{client['name']}.csv"
            rows = generator.normal(size=(20, 3)).tolist()
            lines = ["y,x0,x1", *(",".join(map(repr, row)) for row in rows)]
            (folder / client["data"]).write_text("\n".join(lines) + "\n")
        self.study = folder / "study.json"
        change(raw)
        self.study.write_text(json.dumps(raw))
        self.root = authority_in(folder / "ca")
        party(self.root, "server", "server", ("localhost",))
        for name in CLIENTS:
            party(self.root, name)
        self.listed = self.root / "roster.json"

    allowed: tuple[str, ...] = ()

    def fedvi(self, *arguments: object, expect: int = 0) -> Result:
        given = [str(item) for item in arguments]
        result = CliRunner().invoke(main, [*self.allowed, *given], catch_exceptions=False)
        assert result.exit_code == expect, result.output
        return result

    def export(self, *options: object, expect: int = 0) -> Result:
        given = ("--to", self.out, "--tls", self.folder / "server", "--roster", self.listed)
        state = ("--state", self.folder / "run")
        return self.fedvi("export", self.study, *given, *state, *options, expect=expect)

    def take(self, *results: Path, options: tuple[object, ...] = (), expect: int = 0) -> Result:
        given = ("--tls", self.folder / "server", "--roster", self.listed, *options)
        state = ("--state", self.folder / "run")
        return self.fedvi("import", self.study, *results, *given, *state, expect=expect)

    def client_arguments(self, name: str, task: Path) -> list[str]:
        given = ["client", self.study, "--as", name, "--task", task, "--tls", self.folder / name]
        given += ["--allow-unprotected", "--allow-simulated-noise"]
        return [str(item) for item in (*given, "--state", self.folder / "states" / name)]

    def client(self, name: str, task: Path, *options: object, expect: int = 0) -> Result:
        return self.fedvi(*self.client_arguments(name, task), *options, expect=expect)

    def state(self) -> ServerState:
        folder = self.folder / "run"
        spec = server_plan.to_spec(server_plan.read(folder / server_plan.FILE))
        store = SqliteServerStore(folder, spec)
        try:
            found = store.load()
        finally:
            store.close()
        assert found is not None
        return found

    def events(self) -> list[Event]:
        """What the operators may read of the run."""
        spec = server_plan.to_spec(server_plan.read(self.folder / "run" / server_plan.FILE))
        store = SqliteServerStore(self.folder / "run", spec)
        try:
            return store.events()
        finally:
            store.close()

    def check_as_simulated(self) -> None:
        """Posterior and ledgers at both ends are those of `fedvi simulate`."""
        expected = simulate.simulate(load_study(self.study), self.folder)
        with np.load(self.folder / "run" / "result" / "posterior.npz") as kept:
            np.testing.assert_array_equal(kept["h"], expected.posterior.h)
            np.testing.assert_array_equal(kept["J"], expected.posterior.J)
        found = self.state()
        assert found.status == "completed"
        for name in CLIENTS:
            own = read_ledger(self.folder / "states" / name)
            assert own == expected.ledgers[name] == found.ledgers[name]


def test_a_round_travels_by_files_and_ends_as_simulated(tmp_path: Path) -> None:
    places = Places(tmp_path, rounds=1)
    places.export()
    for name in CLIENTS:
        places.client(name, places.out / f"{name}-0.task")
    places.take(*(places.out / f"{name}-0.result" for name in CLIENTS))
    expected = simulate.simulate(load_study(places.study), tmp_path)
    with np.load(tmp_path / "run" / "result" / "posterior.npz") as kept:
        np.testing.assert_array_equal(kept["h"], expected.posterior.h)
        np.testing.assert_array_equal(kept["J"], expected.posterior.J)
    assert places.state().status == "completed"


@pytest.mark.nightly
def test_a_study_of_two_rounds_travels_by_files_and_ends_as_simulated(tmp_path: Path) -> None:
    places = Places(tmp_path)
    for visit in range(2):
        made = json.loads(places.export("--json").stdout)
        tasks = [Path(row["file"]) for row in made["clients"]]
        assert [path.name for path in tasks] == [f"{name}-{visit}.task" for name in CLIENTS]
        for name, task in zip(CLIENTS, tasks, strict=True):
            said = places.client(name, task).stderr
            assert f"{name}-{visit}.result holds the answer to task {name}/{visit}" in said
            assert "joined" not in said
        results = [task.with_suffix(".result") for task in tasks]
        if visit == 0:
            # In two parts, and one of them twice; who is waited for is shown.
            first = places.take(results[0])
            assert "accepted" in first.stdout
            assert "has task c1/0" in first.stdout
            places.export()
            taken = json.loads(places.take(*results, options=("--json",)).stdout)
            statuses = [row["status"] for row in taken["results"]]
            assert statuses == ["duplicate", "accepted", "accepted"]
            assert (taken["rounds"], taken["status"], taken["run"]) == (1, "running", None)
        else:
            done = places.take(*results)
            assert "Posterior of test" in done.stdout
            assert "2 of 2 rounds complete" in done.stdout
    made = json.loads(places.export("--json").stdout)
    for row in made["clients"]:
        assert row["status"] == "end"
        said = places.client(row["client"], Path(row["file"])).stderr
        assert "the schedule has finished" in said
        assert "accepted" in said
    places.check_as_simulated()
    # What an import left unwritten that was killed, the next export writes.
    shutil.rmtree(tmp_path / "run" / "result")
    places.export()
    places.check_as_simulated()
    assert not (tmp_path / "run" / ".result").exists()
    # An import of what is long known changes nothing, and says where the result is.
    again = json.loads(places.take(results[0], options=("--json",)).stdout)
    assert again["run"]["status"] == "completed"


@pytest.mark.nightly
def test_a_run_of_one_visit_ends_with_how_far_more_rounds_would_move_it(tmp_path: Path) -> None:
    def counted(raw: dict[str, Any]) -> None:
        raw["model"] = {"kind": "poisson", "formula": "y ~ x0 + x1"}
        raw["data"]["schema"]["y"] = {"type": "count", "bounds": [0, 50], "outside": "clip"}
        raw["solver"], raw["privacy"] = {"kind": "glm"}, {"protection": "none"}

    places = Places(tmp_path, rounds=1, change=counted)
    generator = np.random.default_rng(7)
    for name in CLIENTS:
        lines = [",".join(map(repr, row)) for row in generator.normal(size=(20, 2)).tolist()]
        counts = generator.poisson(1.0, 20)
        rows = [f"{count},{line}" for count, line in zip(counts, lines, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["y,x0,x1", *rows]) + "\n")
    tasks = [Path(row["file"]) for row in json.loads(places.export("--json").stdout)["clients"]]
    for name, task in zip(CLIENTS, tasks, strict=True):
        places.client(name, task)
    said = places.take(*(task.with_suffix(".result") for task in tasks)).stdout
    expected = estimated_gap(outcome.record(simulate.simulate(load_study(places.study), tmp_path)))
    assert expected is not None
    assert (
        f"estimated largest move by more rounds: about {tables.number(expected, 1)} posterior sds"
        in said
    )
    told = json.loads((tmp_path / "run" / "result" / "result.json").read_text())
    assert told["one_shot_gap"] == pytest.approx(expected, rel=1e-6)


MODELS = """
import numpyro
import numpyro.distributions as dist


def noisy(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ b, sigma), obs=y)
"""


@pytest.mark.nightly
@pytest.mark.numpyro
def test_a_prior_that_is_a_factor_is_refined_between_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "by_hand_test_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(tmp_path)
    declare(tmp_path, models={"noisy": "by_hand_test_models:noisy"})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    def change(raw: dict[str, Any]) -> None:
        raw["model"]["kind"] = "noisy"
        raw["solver"] = {"kind": "gradient", "steps": 20, "draws": 2}
        raw["privacy"] = {"protection": "none"}
        del raw["prior"], raw["simulation"]

    places = Places(tmp_path, 1, change)
    places.allowed = ("--allow-code", "noisy")
    places.export()
    tasks = {name: places.out / f"{name}-0.task" for name in CLIENTS}
    for name, task in tasks.items():
        places.client(name, task)
    places.take(*(task.with_suffix(".result") for task in tasks.values()))
    places.export()
    for name in CLIENTS:
        places.client(name, places.out / f"{name}-end.task")
    with plugins.allowing(plugins.OutsideCode(names={"noisy": None})):
        places.check_as_simulated()


@pytest.mark.nightly
def test_what_is_wrong_with_one_result_stops_no_other(tmp_path: Path) -> None:
    places = Places(tmp_path, rounds=1)
    places.export()
    results = {}
    for name in CLIENTS:
        places.client(name, places.out / f"{name}-0.task")
        results[name] = places.out / f"{name}-0.result"
    bad = tmp_path / "bad.result"
    whole = bytearray(results["c0"].read_bytes())
    whole[60] ^= 1
    bad.write_bytes(bytes(whole))
    listed = places.listed.read_text()
    places.listed.write_text(listed.replace('"c1"', '"c9"'))
    refused = places.take(bad, results["c1"], results["c2"], expect=4)
    places.listed.write_text(listed)
    assert refused.stdout.count("refused") == 2
    assert refused.stdout.count("accepted") == 1
    assert "is not of this file" in refused.stderr
    assert "the certificate of 'c1'" in refused.stderr
    assert "is not on the server's roster" in refused.stderr
    assert list(places.state().accepted) == ["c2/0"]
    # The task file in place of the result, and a file that is not there.
    assert "expected a result file" in places.take(places.out / "c0-0.task", expect=1).stderr
    assert "cannot be read" in places.take(tmp_path / "nowhere", expect=2).stderr
    # A site set back, whose second answer is other bytes.
    places.take(results["c0"])
    shutil.rmtree(tmp_path / "states" / "c0")
    (tmp_path / "c0.csv").write_text("y,x0,x1\n1,2,3\n")
    places.client("c0", places.out / "c0-0.task")
    found = places.take(results["c0"], options=("--json",), expect=1)
    assert json.loads(found.stdout)["results"][0]["status"] == "conflict"
    assert "holds another answer to task 'c0/0'" in found.stderr
    # What the operators' log keeps of it.
    assert len(places.state().accepted) == 2
    told = [event.text for event in places.events() if event.kind in ("exported", "refused")]
    assert told[:3] == [f"{name}: task {name}/0 is in {name}-0.task" for name in CLIENTS]
    assert "import of bad.result refused: the signature of 'c0' is not of this file" in told
    assert told[-1].startswith("c0: import of c0-0.result refused: the server holds another answer")


@pytest.mark.nightly
def test_what_a_site_gives_wrongly_is_refused_with_its_own_code(tmp_path: Path) -> None:
    places = Places(tmp_path, rounds=1)
    places.export()
    task = places.out / "c0-0.task"
    wrong = places.client("c1", task, expect=1).stderr
    assert "for another client, expected 'c1'; the server says: \"c0\"" in wrong
    assert (
        "is of 'c1', expected 'c0'"
        in places.client("c0", task, "--tls", tmp_path / "c1", expect=4).stderr
    )
    strange = authority_in(tmp_path / "else" / "ca", "Somebody else")
    other = party(strange, "c0")
    assert "another authority" in places.client("c0", task, "--tls", other, expect=4).stderr
    both = places.client("c0", task, "--server", "127.0.0.1:1", expect=2).stderr
    assert "--server is given beside --task" in both
    assert "--insecure is given" in places.client("c0", task, "--insecure", expect=2).stderr
    given = ("client", places.study, "--as", "c0")
    assert "--tls is missing" in places.fedvi(*given, "--task", task, expect=2).stderr
    assert "--server and --task are missing" in places.fedvi(*given, expect=2).stderr
    lone = places.fedvi(*given, "--server", "127.0.0.1:1", "--result", task, expect=2).stderr
    assert "--result is without --task" in lone
    records = tmp_path / "c0.csv"
    kept = records.read_bytes()
    assert "is no result file" in places.client("c0", task, "--result", records, expect=2).stderr
    assert records.read_bytes() == kept
    # Another study: one round more.
    raw = json.loads(places.study.read_text())
    raw["schedule"]["rounds"] = 2
    places.study.write_text(json.dumps(raw))
    assert "of another study" in places.client("c0", task, expect=1).stderr


@pytest.mark.nightly
def test_a_site_that_may_not_answer_tells_so_in_its_result(tmp_path: Path) -> None:
    places = Places(tmp_path, rounds=1)
    places.export()
    (tmp_path / "c0.csv").write_text("y,x0\n4711,1\n")  # no column x1
    refused = places.client("c0", places.out / "c0-0.task", expect=2)
    assert "cannot be answered, with one word: data" in refused.stderr
    result = places.out / "c0-0.result"
    assert b"4711" not in result.read_bytes()
    taken = json.loads(places.take(result, options=("--json",)).stdout)
    assert taken["results"][0]["status"] == "noted"
    assert taken["clients"][0]["stands"] == "away: data"
    # Who is away is asked again only by name.
    assert json.loads(places.export("--json").stdout)["clients"][0]["status"] == "away"
    assert "is asked again with --client NAME" in places.export().stdout
    named = json.loads(places.export("--json", "--client", "c0").stdout)["clients"]
    assert [(row["client"], row["task"]) for row in named] == [("c0", "c0/0")]
    assert "did you mean `c0`" in places.export("--client", "c00", expect=2).stderr
    # At the end it is told like the others: its last answer may be on its way.
    places.take(result)
    spec = server_plan.to_spec(server_plan.read(tmp_path / "run" / server_plan.FILE))
    with contextlib.closing(SqliteServerStore(tmp_path / "run", spec)) as store:
        Coordinator(spec, store).control("stop")
    assert places.state().away == {"c0": "data"}
    made = json.loads(places.export("--json").stdout)
    assert [row["status"] for row in made["clients"]] == ["end"] * 3


@pytest.mark.nightly
def test_a_site_that_is_not_let_in_is_given_no_task_and_not_waited_for(tmp_path: Path) -> None:
    places = Places(tmp_path, rounds=1)
    listed = places.listed.read_text()
    places.listed.write_text(listed.replace('"c1"', '"c9"'))
    authority.revoke(places.root, "c0")
    made = json.loads(places.export("--json").stdout)["clients"]
    assert [row["status"] for row in made] == ["barred", "barred", "task"]
    assert [row["stands"] for row in made[:2]] == ["revoked", "not on the roster"]
    assert [path.name for path in places.out.iterdir()] == ["c2-0.task"]
    refused = places.export("--client", "c0", expect=4)
    assert "--client is 'c0', which is revoked" in refused.stderr
    assert places.state().away == {"c0": "revoked"}


@pytest.mark.nightly
def test_a_result_for_a_run_that_is_not_there_begins_none(tmp_path: Path) -> None:
    places = Places(tmp_path, rounds=1)
    assert "holds no run" in places.take(tmp_path / "c0-0.result", expect=2).stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.nightly
def test_a_running_server_is_named_and_not_disturbed(tmp_path: Path) -> None:
    places = Places(tmp_path, rounds=1)
    places.export()
    spec = server_plan.to_spec(server_plan.read(tmp_path / "run" / server_plan.FILE))
    with running(spec, tmp_path / "run"):
        refused = places.export(expect=5)
        assert "a server runs on" in refused.stderr
        assert "it goes on where it was" in refused.stderr
        assert "a server runs on" in places.take(places.study, expect=5).stderr
    store = SqliteServerStore(tmp_path / "run", spec)
    try:
        assert "another process holds its lock" in places.export(expect=5).stderr
    finally:
        store.close()
    places.export()
    client = places.fedvi(
        "export", places.study, "--to", places.out, "--tls", tmp_path / "c0", expect=4
    )
    assert "expected server" in client.stderr


KILLED = """
import os
import signal
import sys

from fedvi.cli.main import main
from fedvi.server.coordinator import Coordinator
from fedvi.store.sqlite import SqliteClientStore
from fedvi.transport import files, parcels

when, what = sys.argv.pop(1).split()
places = {
    "reserve": (SqliteClientStore, "reserve"),
    "seal": (SqliteClientStore, "seal"),
    "result": (parcels, "write_result"),
    "task": (parcels, "write_task"),
    "handle": (Coordinator, "handle"),
}
owner, name = places[what]
original = getattr(owner, name)


def killed(*arguments, **named):
    request = type(arguments[1]).__name__ if what == "handle" else ""
    hit = request in ("", "NextTask", "Submit")
    if when == "before" and hit:
        os.kill(os.getpid(), signal.SIGKILL)
    result = original(*arguments, **named)
    if when == "after" and hit:
        os.kill(os.getpid(), signal.SIGKILL)
    return result


setattr(owner, name, killed)
main()
"""


def killed_at(point: str, arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, point, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=240.0,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == -signal.SIGKILL, (point, done.stderr)


@pytest.mark.nightly
def test_killed_at_any_point_the_round_by_hand_is_the_undisturbed_one(tmp_path: Path) -> None:
    places = Places(tmp_path, rounds=1)
    server = ["--tls", str(tmp_path / "server"), "--state", str(tmp_path / "run")]
    server += ["--roster", str(places.listed)]
    export = ["export", str(places.study), "--to", str(places.out), *server]
    places.fedvi("check", places.study)
    for point in ("after handle", "before task", "after task"):
        killed_at(point, export)
    places.export()
    tasks = {name: places.out / f"{name}-0.task" for name in CLIENTS}
    for point in ("after reserve", "after seal", "before result", "after result"):
        killed_at(point, places.client_arguments("c0", tasks["c0"]))
    for name, task in tasks.items():
        places.client(name, task)
    results = [task.with_suffix(".result") for task in tasks.values()]
    taking = ["import", str(places.study), *map(str, results), *server]
    killed_at("after handle", taking)
    places.take(*results)
    places.export()
    for name in CLIENTS:
        places.client(name, places.out / f"{name}-end.task")
    with plugins.allowing(plugins.OutsideCode(names={"noisy": None})):
        places.check_as_simulated()


@pytest.mark.nightly
def test_the_commands_at_the_server_import_no_jax() -> None:
    code = "import sys, fedvi.cli.export, fedvi.cli.import_; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"jax", "jaxlib", "numpyro"} & set(done.stdout.split())
