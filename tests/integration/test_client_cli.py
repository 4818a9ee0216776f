"""`fedvi client`: what it needs before it begins, what it does, and with which code it ends."""

import json
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from click.testing import CliRunner, Result

from fedvi import errors
from fedvi.cli import client as command
from fedvi.cli.main import main
from fedvi.expfam import tree
from fedvi.privacy import ledger
from fedvi.run import loading, site
from fedvi.server.coordinator import Coordinator
from fedvi.server.core.state import ServerState
from fedvi.store.life import folder_name
from fedvi.store.memory import MemoryClientStore, MemoryServerStore
from fedvi.store.sqlite import read_ledger
from fedvi.study import build
from fedvi.study.config import load_study
from fedvi.transport import probe
from fedvi.transport.memory import MemoryLink
from tests.pki import DAY, NOW, authority_in, party
from tests.servers import running
from tests.studies import raw_study

ALLOWED = ["--allow-unprotected", "--allow-simulated-noise"]
PROMISE = {"epsilon": 4.0, "delta": 1e-5, "unit": "record", "relation": "substitute"}
POLICY = """
[run]
epsilon = {run}
delta = 1e-5
[life]
epsilon = 10.0
delta = 1e-5
relation = "substitute"
[allow]
simulated_noise = true
"""


def write_study(
    folder: Path, change: Callable[[dict[str, Any]], object] = lambda raw: None
) -> Path:
    """A private study of one client, with its records beside it."""
    raw = raw_study(
        ["north"],
        2,
        solver={"kind": "dp_optimisation", "steps": 2, "clip_norm": 1.0},
        schedule={"kind": "sequential", "rounds": 2},
        privacy=PROMISE,
        simulation={"insecure_seed": 3},
    )
    raw["data"]["max_records"] = 30
    change(raw)
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(20, 3)).tolist()
    lines = ["y,x0,x1", *(",".join(map(repr, row)) for row in rows)]
    (folder / "north.csv").write_text("\n".join(lines) + "\n")
    path = folder / "study.json"
    path.write_text(json.dumps(raw))
    return path


def client(study: Path, server: str, *arguments: object, data: str = "north.csv") -> Result:
    given = ["client", study, "--as", "north", "--server", server, "--give-up-after", 2]
    if data:
        given += ["--data", study.parent / data]
    given += ["--state", study.parent / "state", *arguments]
    # A policy decides alone.
    given += [] if "--policy" in arguments else ALLOWED
    return CliRunner().invoke(main, [str(item) for item in given], catch_exceptions=False)


def refusal(result: Result, code: int) -> str:
    assert result.exit_code == code, result.output
    return result.stderr.partition("error: ")[2]


def alone(study: Path) -> tuple[ServerState, ledger.Ledger]:
    """The same run without a network."""
    assembly = build.assemble(load_study(study))
    coordinator = Coordinator(assembly.spec, MemoryServerStore())
    store = MemoryClientStore(ledger.open_ledger(assembly.header("north")))
    shard = site.file_shard(assembly, "north", study.parent / "north.csv")
    link = MemoryLink(coordinator.handle)
    worker = site.client_worker(assembly, "north", link, store, shard)
    while worker.tick() != "done":
        pass
    return coordinator.state, worker.ledger


def serve(study: Path, **settings: Any) -> Any:
    folder = study.parent / "server"
    folder.mkdir(exist_ok=True)
    return running(build.assemble(load_study(study)).spec, folder, **settings)


def test_a_client_takes_part_to_the_end_and_says_what_it_cost(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    expected, book = alone(study)
    metrics = tmp_path / "metrics"
    with serve(study) as server:
        result = client(
            study, server.addresses.listen, "--log-format", "json", "--private-metrics", metrics
        )
    assert result.exit_code == 0, result.output
    assert f"`fedvi ledger show {tmp_path / 'state'}` prints the ledger" in result.stderr
    assert server.outcome is not None
    assert tree.equal(server.outcome.state.posterior, expected.posterior)
    assert read_ledger(tmp_path / "state") == book == server.outcome.state.ledgers["north"]
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    kinds = [line["kind"] for line in lines]
    # Its noise follows from a seed, which is told before anything is sent.
    assert "NOTHING IS PROTECTED" in lines[0]["message"]
    assert kinds == ["warning", "started", "joined", *("task", "answer") * 2, "done", "privacy"]
    assert 0.0 < lines[-1]["epsilon"] <= 4.0
    # Only what is named in advance is logged; what the solver told stays in its file.
    known = {"time", "kind", "message", "client", "version", "task", "visit", "rounds", "status"}
    known |= {"epsilon", "delta", "relation", "server_says"}
    assert {name for line in lines for name in line} == known
    assert "valid_units" in (metrics / "north.jsonl").read_text()
    assert "valid_units" not in result.output
    health = CliRunner().invoke(main, ["health", "--client", str(tmp_path / "state")])
    assert health.exit_code == 0, health.output


def test_a_client_with_another_idea_of_the_noise_is_refused_at_hello(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    with serve(study) as server:
        write_study(tmp_path, lambda raw: raw.pop("simulation"))
        result = client(study, server.addresses.listen)
    assert 'says: "`simulation.insecure_seed` is set at one side only' in refusal(result, 1)
    assert len(read_ledger(tmp_path / "state").entries) == 0


def test_a_policy_refuses_noise_from_a_seed(tmp_path: Path) -> None:
    study, policy = write_study(tmp_path), tmp_path / "policy.toml"
    policy.write_text(POLICY.format(run=10.0).partition("[allow]")[0])
    result = client(study, "127.0.0.1:1", "--policy", policy)
    assert "from a known seed" in refusal(result, 5)


def test_an_error_that_nobody_foresaw_tells_where_and_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = "Jane Doe"

    def broken(*_: object, **__: object) -> None:
        raise ValueError(patient)

    study = write_study(tmp_path)
    monkeypatch.setattr(loading, "load_shard", broken)
    with serve(study) as server:
        result = client(study, server.addresses.listen)
    said = refusal(result, 1)
    assert patient not in result.output
    assert said.startswith("the client failed with ValueError")
    assert "load_shard" in said


def test_a_client_whose_run_is_over_hears_so_again(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    with serve(study, linger_seconds=30.0) as server:
        assert client(study, server.addresses.listen).exit_code == 0
    assert server.outcome is not None
    assert server.outcome.status == "completed"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--as", "nroth"), "did you mean `north`?"),
        (("--server", "hospital.example:7443"), "another machine, and --tls is not given"),
        (("--tls", "tls", "--insecure"), "--insecure is given beside --tls"),
        (("--data", "missing.csv"), "no file of records at missing.csv"),
        (("--policy", "missing.toml"), "cannot read the policy"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_done(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    result = client(write_study(tmp_path), "127.0.0.1:1", *arguments)
    assert words in refusal(result, 2)
    assert not (tmp_path / "state").exists()


def test_a_client_without_a_file_is_told_how_to_name_it(tmp_path: Path) -> None:
    result = client(write_study(tmp_path), "127.0.0.1:1", data="")
    assert "--data is missing" in refusal(result, 2)


def test_the_file_that_the_study_names_is_found_beside_it(tmp_path: Path) -> None:
    study = write_study(tmp_path, lambda raw: raw["clients"][0].update(data="north.csv"))
    with serve(study) as server:
        assert client(study, server.addresses.listen, data="").exit_code == 0


def test_a_server_that_is_not_there_ends_with_code_3_and_charges_nothing(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    result = client(study, "127.0.0.1:1")
    assert refusal(result, 3)
    assert "waiting for 127.0.0.1:1" in result.stderr
    assert read_ledger(tmp_path / "state").entries == ()


def test_a_policy_that_refuses_the_study_ends_with_code_5_before_a_connection(
    tmp_path: Path,
) -> None:
    study = write_study(tmp_path)
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY.format(run=0.5))
    result = client(study, "127.0.0.1:1", "--policy", policy)
    assert "expected at most 0.5" in refusal(result, 5)
    assert "waiting" not in result.stderr


def test_what_a_policy_charges_for_life_is_kept_at_a_place_that_is_named(
    tmp_path: Path, life: Path
) -> None:
    study = write_study(tmp_path)
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY.format(run=4.5))
    with serve(study) as server:
        result = client(study, server.addresses.listen, "--policy", policy)
    assert result.exit_code == 0, result.output
    assert "of 10 spent for life" in result.stderr
    place = life / folder_name("this site")
    assert ledger.reservations(read_ledger(place)) == 2
    assert f"warning: begins a ledger for life of 'this site', with nothing spent, in {place}" in (
        result.stderr
    )
    assert f"charges for life: {place}\n" in result.stderr
    assert f"`fedvi ledger show {place}` prints the ledger" in result.stderr


def test_records_are_read_after_their_price_was_charged_and_nobody_hears_what_was_wrong(
    tmp_path: Path,
) -> None:
    study = write_study(tmp_path)
    (tmp_path / "north.csv").write_text("y,x0\nquux,1\n")  # no column x1
    with serve(study) as server:
        result = client(study, server.addresses.listen)
    assert "x1" in refusal(result, 2)
    entries = read_ledger(tmp_path / "state").entries
    assert [entry.kind for entry in entries] == ["reserved"]
    assert server.outcome is not None
    assert server.outcome.status == "failed"
    state = repr(server.outcome.state)
    assert "quux" not in state
    assert "x1" not in state


def test_an_open_study_says_that_nothing_is_protected(tmp_path: Path) -> None:
    def change(raw: dict[str, Any]) -> None:
        raw.update(privacy={"protection": "none"}, solver={"kind": "exact"})

    study = write_study(tmp_path, change)
    with serve(study) as server:
        result = client(study, server.addresses.listen)
    assert result.exit_code == 0, result.output
    assert "no protection was promised" in result.stderr


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return authority_in(tmp_path / "ca")


def test_a_client_takes_part_under_its_certificate(tmp_path: Path, root: Path) -> None:
    study = write_study(tmp_path)
    folder = party(root, "server", "server", ("localhost",))
    north = party(root, "north")
    with serve(study, tls=folder, roster=root / "roster.json") as server:
        address = server.addresses.listen.replace("127.0.0.1", "localhost")
        result = client(study, address, "--tls", north)
    assert result.exit_code == 0, result.output


def test_a_client_without_tls_is_told_that_the_server_has_it(tmp_path: Path, root: Path) -> None:
    study = write_study(tmp_path)
    folder = party(root, "server", "server", ("localhost",))
    with serve(study, tls=folder, roster=root / "roster.json") as server:
        address = server.addresses.listen
        said = refusal(client(study, address), code=2)
    assert f"the server at {address} speaks TLS alone, and --tls is not given" in said
    assert "name the folder that `fedvi enroll` made with --tls" in said


def test_a_client_with_tls_is_told_that_the_server_has_none(tmp_path: Path, root: Path) -> None:
    study = write_study(tmp_path)
    with serve(study) as server:
        address = server.addresses.listen.replace("127.0.0.1", "localhost")
        result = client(study, address, "--tls", party(root, "north"))
    assert refusal(result, code=3)
    said = f"waiting for {address}: the server speaks no TLS on this port, and --tls is given: start it"
    assert said in result.stderr
    assert "gives --tls at neither end" in result.stderr


def test_a_server_whose_certificate_is_for_other_hosts_is_not_waited_for(
    tmp_path: Path, root: Path
) -> None:
    study = write_study(tmp_path)
    folder = party(root, "server", "server", ("localhost", "fedvi.example.org"))
    with serve(study, tls=folder, roster=root / "roster.json") as server:
        # Without --give-up-after, as a site starts it.
        given = ["client", study, "--as", "north", "--data", tmp_path / "north.csv"]
        given += ["--server", server.addresses.listen, "--tls", party(root, "north")]
        given += ["--state", tmp_path / "state", *ALLOWED]
        result = CliRunner().invoke(main, [str(item) for item in given])
    said = refusal(result, code=4)
    assert "is for localhost, fedvi.example.org, and 127.0.0.1 was dialled" in said
    assert "dial one of its names" in said


def test_a_server_of_another_authority_is_not_waited_for(tmp_path: Path, root: Path) -> None:
    study = write_study(tmp_path)
    other = party(authority_in(tmp_path / "other" / "ca", "Cancer consortium"), "north")
    folder = party(root, "server", "server", ("localhost",))
    with serve(study, tls=folder, roster=root / "roster.json") as server:
        address = server.addresses.listen.replace("127.0.0.1", "localhost")
        result = client(study, address, "--tls", other)
    said = refusal(result, code=4)
    assert "the server's certificate was signed by another authority" in said
    assert str(other / "ca.pem") in said
    assert "ask the coordinator for ca.pem and its fingerprint" in said
    assert read_ledger(tmp_path / "state").entries == ()


def test_a_certificate_that_cannot_be_believed_is_refused_by_its_file(
    tmp_path: Path, root: Path
) -> None:
    study = write_study(tmp_path)
    strange = party(authority_in(tmp_path / "other" / "ca"), "north")
    (strange / "ca.pem").write_bytes((root / "ca.pem").read_bytes())
    said = refusal(client(study, "127.0.0.1:1", "--tls", strange), code=4)
    assert f"{strange / 'cert.pem'}: the certificate of 'north' was signed by another" in said
    old = authority_in(tmp_path / "old" / "ca", at=NOW - 60 * DAY)
    expired = party(old, "north", days=10, at=NOW - 50 * DAY)
    said = refusal(client(study, "127.0.0.1:1", "--tls", expired), code=4)
    assert f"{expired / 'cert.pem'}: the certificate of 'north' expired on" in said
    assert "ask the authority for `fedvi ca renew`" in said
    # One that expires while the client waits is told then.
    waiting = command._Waiting("127.0.0.1:1", expired, lambda *_, **__: None)
    with pytest.raises(errors.IdentityError, match=r"expired on"):
        waiting.say(errors.TransportError("away"))


def test_a_server_that_trusts_another_authority_is_not_waited_for(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_WAITING_SECONDS", 0.0)
    folder, other = (
        party(root, "server", "server", ("localhost",)),
        authority_in(tmp_path / "b" / "ca"),
    )
    # It shows a certificate of ours and asks callers for one of the other authority.
    pair = ((folder / "key.pem").read_bytes(), (folder / "cert.pem").read_bytes())
    credentials = grpc.ssl_server_credentials([pair], (other / "ca.pem").read_bytes(), True)
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    given = ("--tls", party(root, "north"), "--give-up-after", 30)
    result = client(write_study(tmp_path), f"localhost:{port}", *given)
    server.stop(None).wait()
    assert "its ca.pem is of another authority" in refusal(result, code=4)
    # Once is not enough: a server that stops hangs up as well.
    assert result.stderr.count("waiting for") == 2


def test_a_server_that_hangs_up_now_and_then_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_WAITING_SECONDS", 0.0)
    hangs_up = probe.Finding("tls", "fail", "the server hung up", "", 4, passes=True)
    restarts = probe.Finding("tls", "fail", "it broke off", "", 3, passes=True)
    fine = probe.Finding("tls", "ok", "both sides showed certificates")
    found: list[probe.Finding] = []
    monkeypatch.setattr(probe, "believed", lambda *_: found.pop(0))
    waiting = command._Waiting("localhost:1", tmp_path, lambda *_, **__: None)
    for between in (fine, restarts):
        found[:] = [hangs_up, hangs_up, between] * 3
        while found:
            waiting.say(errors.TransportError("away"))
    found[:] = [hangs_up] * 3
    waiting.say(errors.TransportError("away"))
    waiting.say(errors.TransportError("away"))
    with pytest.raises(errors.IdentityError, match=r"the server hung up"):
        waiting.say(errors.TransportError("away"))


def test_a_server_whose_certificate_is_expired_is_waited_for_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_WAITING_SECONDS", 0.0)
    root = authority_in(tmp_path / "ca", at=NOW - 60 * DAY)
    folder = party(root, "server", "server", ("localhost",), 10, NOW - 50 * DAY)
    pair = ((folder / "key.pem").read_bytes(), (folder / "cert.pem").read_bytes())
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    server.start()
    result = client(write_study(tmp_path), f"localhost:{port}", "--tls", party(root, "north"))
    server.stop(None).wait()
    assert refusal(result, code=3)
    assert f"waiting for localhost:{port}: the server's certificate expired on" in result.stderr
    # So is one that is not there.
    result = client(write_study(tmp_path), "localhost:1", "--tls", tmp_path / "north")
    assert refusal(result, code=3)


def test_anothers_certificate_is_refused_here_already(tmp_path: Path, root: Path) -> None:
    result = client(write_study(tmp_path), "127.0.0.1:1", "--tls", party(root, "south"))
    assert "is of 'south', expected 'north'" in refusal(result, 4)
    server = party(root, "server", "server", ("localhost",))
    result = client(write_study(tmp_path), "127.0.0.1:1", "--tls", server)
    assert "expected client" in refusal(result, 4)


def test_a_client_that_the_roster_does_not_know_ends_with_code_4(
    tmp_path: Path, root: Path
) -> None:
    study = write_study(tmp_path)
    folder = party(root, "server", "server", ("localhost",))
    roster = root / "roster.json"
    known = roster.read_bytes()
    north = party(root, "north")
    roster.write_bytes(known)
    with serve(study, tls=folder, roster=roster) as server:
        address = server.addresses.listen.replace("127.0.0.1", "localhost")
        result = client(study, address, "--tls", north)
    assert "roster" in refusal(result, 4)


@pytest.mark.parametrize("form", ["plain", "json"])
def test_a_log_line_stays_one_line(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    from fedvi.cli.client import _reporter

    _reporter(form)("done", "over\nFAKE  all is well")
    assert capsys.readouterr().err.count("\n") == 1
