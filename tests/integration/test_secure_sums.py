"""Claims about secure sums end to end: over real gRPC, in files by hand, and what is claimed of them."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedvi import errors
from fedvi.cli import _results
from fedvi.client import policy as policies
from fedvi.expfam import tree
from fedvi.federation.messages import NextTask, Reply, Request
from fedvi.run import server_plan, simulate
from fedvi.server.core import protocol
from fedvi.store.memory import MemoryServerStore
from fedvi.transport import parcels
from fedvi.transport.grpc import GrpcLink
from tests import hand, pki
from tests.commands import invoked as fedvi
from tests.masked import assembled as built
from tests.masked import raw, step_of
from tests.servers import running
from tests.sites import NAMES, assembled, sites_of, study_file, undisturbed, until

AGGREGATE = {
    "epsilon": 2.0,
    "delta": 1e-5,
    "unit": "record",
    "relation": "substitute",
    "view": "aggregate",
    "disjoint": True,
}
SECURE: dict[str, Any] = {
    "privacy": AGGREGATE,
    "solver": {"kind": "site_release", "clip_norm": 2.0},
    "aggregation": {"secure": True},
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return study_file(tmp_path_factory.mktemp("secure"), **SECURE)


def test_a_federation_over_grpc_computes_what_a_simulation_does(
    study: Path, tmp_path: Path
) -> None:
    assembly, base = assembled(study), study.parent
    expected = undisturbed(assembly, base)
    with (
        running(assembly.spec, tmp_path / "server") as server,
        sites_of(assembly, base, tmp_path / "sites") as sites,
    ):
        sites.start(server.addresses.listen, "north")
        until(server, lambda state: "1/north" in state.keys)
        sites.start(server.addresses.listen, "east", "south")
        sites.join()
        state = until(server, lambda state: state.status in protocol.OVER)
    assert state.status == "completed"
    assert tree.equal(protocol.reported(assembly.spec, state), expected.posterior)
    for name in assembly.clients:
        assert state.ledgers[name] == sites.ledger(name)
        # The masks are others in each run, and so is what the ledger seals.
        assert state.ledgers[name] != expected.ledgers[name]


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "lost"])
def test_a_server_that_starts_again_has_the_keys_or_is_shown_them(
    study: Path, tmp_path: Path, kept: bool
) -> None:
    assembly, base = assembled(study), study.parent
    memory = MemoryServerStore()
    with sites_of(assembly, base, tmp_path / "sites") as sites:
        with running(assembly.spec, tmp_path / "server", memory) as server:
            sites.start(server.addresses.listen, "north", "east")
            until(server, lambda state: len(state.keys) == 2)
            listen = server.addresses.listen
        store = memory if kept else MemoryServerStore()
        with running(assembly.spec, tmp_path / "server", store, listen=listen) as server:
            sites.start(server.addresses.listen, "south")
            sites.join()
            state = until(server, lambda state: state.status in protocol.OVER)
    assert tree.equal(
        protocol.reported(assembly.spec, state), undisturbed(assembly, base).posterior
    )


# By hand.


@pytest.fixture
def consortium(tmp_path: Path) -> hand.Consortium:
    return hand.Consortium(tmp_path, raw(names=hand.CLIENTS))


def test_files_that_travel_by_hand_come_to_the_same(consortium: hand.Consortium) -> None:
    sites = {name: consortium.site(name) for name in hand.CLIENTS}
    names = []
    for _ in range(4):
        for name, site in sites.items():
            exported = consortium.export(name)
            assert exported.path is not None
            names.append(exported.path.name)
            consortium.take(site.answer(exported.path))
            # Each site before it has sent its part; nothing but a wait is left for it.
            if name != hand.CLIENTS[-1]:
                assert consortium.export(name).status == "wait"
    assert names[::3] == ["c0-keys1.task", "c0-keys2.task", "c0-0.task", "c0-1.task"]
    assert [site.end(consortium.task(name)) for name, site in sites.items()]
    state = consortium.hand.coordinator.state
    assert state.status == "completed"
    expected = simulate.run(consortium.assembly, hand.records())
    reported = protocol.reported(consortium.spec, state)
    assert tree.equal(reported, expected.posterior)


def test_keys_in_files_are_written_again_and_taken_once(consortium: hand.Consortium) -> None:
    site = consortium.site("c0")
    task = consortium.task("c0")
    read = [
        parcels.read_result(site.answer(task), consortium.authority, consortium.roster).answer
        for _ in range(2)
    ]
    assert read[0] == read[1]
    assert isinstance(read[0], NextTask)
    again = site.answer(task)
    assert consortium.take(again) == "keys"
    assert consortium.take(again) == "keys"
    # A site whose state is gone makes other keys, and is told so.
    with pytest.raises(errors.ProtocolError, match="sent other keys than before"):
        consortium.take(consortium.site("c0").answer(task))


def test_keys_of_another_authority_are_refused(tmp_path: Path) -> None:
    consortium = hand.Consortium(tmp_path / "one", raw(names=hand.CLIENTS))
    stranger = hand.Consortium(tmp_path / "other", raw(names=hand.CLIENTS))
    sites = {name: consortium.site(name) for name in hand.CLIENTS}
    for name in ("c0", "c1"):
        consortium.take(sites[name].answer(consortium.task(name)))
    # The server enrols a third site by an authority of its own.
    alien = stranger.site("c2")
    stranger.take(alien.answer(stranger.task("c2")))
    state = consortium.hand.coordinator.state
    part = stranger.hand.coordinator.state.keys["1/c2"]
    consortium.hand.coordinator._state = state._replace(keys={**state.keys, "1/c2": part})
    with pytest.raises(errors.IdentityError) as caught:
        sites["c0"].answer(consortium.task("c0"))
    assert caught.value.message.startswith(
        "the keys of 'c2': the certificate of 'c2' was signed by another authority"
    )


def test_a_policy_learns_the_digest_by_a_refusal_before_anything_is_charged(
    study: Path, tmp_path: Path
) -> None:
    root = pki.authority_in(tmp_path / "authority")
    tls = {name: pki.party(root, name) for name in NAMES}
    server = pki.party(root, "server", "server", ("localhost",))
    out, policy = tmp_path / "out", tmp_path / "policy.toml"
    at_server = ("--tls", server, "--roster", root / "roster.json", "--state", tmp_path / "at")

    def answered(name: str, digest: str) -> Any:
        policy.write_text(
            "[run]\nepsilon = 2.0\ndelta = 1e-5\n[allow]\nviews = ['aggregate']\n"
            f"simulated_noise = true\nroster = '{digest}'\n"
        )
        part = f"{name}-keys{2 if (out / f'{name}-keys2.task').exists() else 1}.task"
        where = (
            "--data",
            study.parent / f"{name}.csv",
            "--tls",
            tls[name],
            "--state",
            tmp_path / name / "state",
        )
        return fedvi(
            "client", study, "--as", name, *where, "--policy", policy, "--task", out / part
        )

    assert fedvi("export", study, "--to", out, *at_server).exit_code == 0
    for name in NAMES:
        assert answered(name, "0" * 64).exit_code == 0
    results = [out / f"{name}-keys1.result" for name in NAMES]
    assert fedvi("import", study, *results, *at_server).exit_code == 0
    assert fedvi("export", study, "--to", out, *at_server).exit_code == 0
    refused = answered("north", "0" * 64)
    assert refused.exit_code == 5
    found = re.search("has the digest ([0-9a-f]{64}), and the policy names 000", refused.stderr)
    assert found
    taken = answered("north", found[1])
    assert taken.exit_code == 0, taken.output
    said = " ".join(taken.output.split())
    assert f"the sites of the roster {found[1]}: the policy names it" in said
    assert "ε 0 of 2 spent" in said


# What is claimed.


@pytest.fixture(scope="module")
def run(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "out"
    done = fedvi("simulate", study, "--quiet", "--out", folder)
    assert done.exit_code == 0, done.stderr
    (folder / "printed.txt").write_text(" ".join(done.stdout.split()))
    return folder


def test_the_statement_says_that_no_server_is_trusted_and_of_whom_it_is_assumed(run: Path) -> None:
    printed = (run / "printed.txt").read_text()
    assert "no server is trusted" in printed
    assert "the server is trusted" not in printed
    assert "view message" in printed
    result = json.loads((run / "result.json").read_text())
    claims = {(row["view"], row["relation"]): row for row in result["consortium"]}
    claim = claims["aggregate", "substitute"]
    assert claim["epsilon"] <= 2.0 < claims["message", "substitute"]["epsilon"]
    assert any("no server is trusted" in line for line in claim["declarations"])
    assert any("X25519 with ML-KEM-768" in line for line in claim["assumptions"])
    assert not any("X25519" in line for line in claims["message", "substitute"]["assumptions"])


def test_a_check_says_who_enforces_the_view(study: Path) -> None:
    checked = " ".join(fedvi("check", study).stdout.split())
    assert "anybody who sees all that leaves a site, the server too, and works with at" in checked
    assert (
        "at most 1 of the sites; masks hide all but one sum of a round (view aggregate)" in checked
    )
    assert "may be guessed from its digest" not in checked


def test_ledgers_verify_and_name_what_is_sealed(run: Path) -> None:
    done = fedvi("ledger", "verify", run, "--recompute")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("allowed", "refused"),
    [("", True), (f'roster = "{"0" * 64}"', False), ("trusts_server = true", False)],
)
def test_a_policy_judges_masked_sums_where_it_names_the_roster(allowed: str, refused: bool) -> None:
    text = f"[run]\nepsilon = 1e9\ndelta = 1e-5\n[allow]\nviews = ['aggregate']\n{allowed}\n"
    raw_policy = tomllib.loads(text)
    raw_policy["allow"]["simulated_noise"] = True
    policy = policies.parse_policy(raw_policy)
    if refused:
        with pytest.raises(errors.PolicyRefused, match="view 'message' is not allowed") as caught:
            policy.check(built().request)
        why = "masks count where allow.roster names the sites that mask their answers"
        assert caught.value.message.count(why) == 1
    else:
        policy.check(built().request)


# Sites that drop out.

FOUR = ("north", "east", "south", "west")
MISSING: dict[str, Any] = {
    **SECURE,
    "names": FOUR,
    "privacy": {**AGGREGATE, "least_reporting": 3},
    "schedule": {"kind": "synchronous", "rounds": 3, "deadline_seconds": 6.0},
}


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    study = study_file(tmp_path_factory.mktemp("four"), **MISSING)
    # What is compiled here is not compiled within a deadline.
    undisturbed(assembled(study), study.parent)
    return study


def test_sums_that_are_opened_over_grpc_are_those_of_a_simulation(
    four: Path, tmp_path: Path
) -> None:
    assembly, base = assembled(four), four.parent
    with (
        running(assembly.spec, tmp_path / "server") as server,
        sites_of(assembly, base, tmp_path / "sites") as sites,
    ):
        sites.start(server.addresses.listen)
        sites.join()
        state = until(server, lambda state: state.status in protocol.OVER)
    assert [len(update.clients) for update in state.history] == [4, 4, 4]
    expected = undisturbed(assembly, base)
    assert tree.equal(protocol.reported(assembly.spec, state), expected.posterior)


class Gone(BaseException):
    """The process of a site is gone: no exception that it could handle."""


@pytest.mark.parametrize("step", ["submit", "sign", "open"])
def test_a_site_that_is_gone_in_the_middle_of_a_round_does_not_stop_the_study(
    four: Path, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assembly, base = assembled(four), four.parent
    handle = GrpcLink.handle

    def cut(link: GrpcLink, request: Request) -> Reply:
        if request.client == "west" and step_of(request) == step:
            raise Gone
        return handle(link, request)

    monkeypatch.setattr(GrpcLink, "handle", cut)
    with (
        running(assembly.spec, tmp_path / "server") as server,
        sites_of(assembly, base, tmp_path / "sites") as sites,
    ):
        sites.start(server.addresses.listen)
        state = until(server, lambda state: state.status in protocol.OVER)
        assert [type(error) for error in sites.failures] == [Gone]
    assert state.status == "completed"
    first = 3 if step == "submit" else 4
    assert [len(update.clients) for update in state.history] == [first, 3, 3]


@pytest.mark.parametrize(("floor", "refused"), [(2, False), (3, False), (4, True)])
def test_a_policy_has_a_floor_of_its_own(four: Path, floor: int, refused: bool) -> None:
    text = f'[run]\nepsilon = 1e9\ndelta = 1e-5\n[allow]\nroster = "{"0" * 64}"\n'
    raw_policy = tomllib.loads(text)
    raw_policy["allow"] |= {"simulated_noise": True, "least_reporting": floor}
    policy, request = policies.parse_policy(raw_policy), assembled(four).request
    if refused:
        with pytest.raises(
            errors.PolicyRefused, match="sums of 3 sites are not allowed, expected 4"
        ):
            policy.check(request)
    else:
        policy.check(request)


def test_a_claim_says_what_holds_where_sites_may_be_missing(four: Path, tmp_path: Path) -> None:
    done = fedvi("simulate", four, "--quiet", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.stderr
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    claims = {(row["view"], row["relation"]): row for row in result["consortium"]}
    said = " ".join(claims["aggregate", "substitute"]["declarations"])
    assert "each sum holds the answers of 3 or more clients" in said
    assert "all but 1 of them sign one set of sites a round" in said
    assert fedvi("ledger", "verify", tmp_path / "out", "--recompute").exit_code == 0


def test_a_site_joins_over_grpc(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = study_file(tmp_path, **{**MISSING, "schedule": {**MISSING["schedule"], "rounds": 12}})
    assembly, folder = assembled(study), tmp_path / "server"
    undisturbed(assembly, study.parent)
    with (
        running(assembly.spec, folder) as server,
        sites_of(assembly, study.parent, tmp_path / "sites") as sites,
    ):
        removed = fedvi("remove", folder, "--client", "west", "--yes", "--json")
        assert removed.exit_code == 0, removed.output
        sites.start(server.addresses.listen, "north", "east")
        # Of four, three: the run waits for the keys of `south`, and says so.
        until(server, lambda state: len(state.keys) == 2)
        told = json.loads(fedvi("status", folder, "--json").stdout)
        assert told["awaited"] == ["south"]
        sites.start(server.addresses.listen, "south")
        until(server, lambda state: state.version >= 2)
        wrong = fedvi("admit", folder, "--client", "wes", "--yes")
        assert wrong.exit_code == 2
        assert "client 'wes' is not in the study" in wrong.stderr
        admitted = fedvi("admit", folder, "--client", "west", "--yes")
        assert admitted.exit_code == 0, admitted.output
        until(server, lambda state: any(update.added for update in state.history))
        sites.start(server.addresses.listen, "west")
        sites.join()
        state = until(server, lambda state: state.status in protocol.OVER)
    assert state.status == "completed"
    sizes = [len(update.clients) for update in state.history if update.clients]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1], len(sizes)) == (3, 4, 12)
    joined = next(update.version for update in state.history if update.added)
    _results.show(server_plan.make(assembly), assembly.spec, state, folder)
    said = " ".join(capsys.readouterr().out.split())
    assert f"sums after version 0 are without west, until version {joined}" in said
    assert f"west was added at version {joined}" in said
    for name in FOUR:
        assert state.ledgers[name] == sites.ledger(name)
