"""A state that was set back is found out when the two meet again; a budget holds at both ends."""

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedvi import errors
from fedvi.expfam import tree
from fedvi.federation import schedules
from fedvi.privacy import ledger
from fedvi.run import site
from fedvi.server.core.protocol import ServerSpec, ServerState
from fedvi.server.store.durable import SqliteServerStore
from fedvi.server.store.schema import read_state
from fedvi.store.sqlite import SqliteClientStore, read_ledger
from fedvi.study.build import Assembly
from tests.integration.test_client_cli import alone, client, refusal, write_study
from tests.servers import Running, running
from tests.sites import Sites, assembled, sites_of, study_file, until

ROUNDS = 4
EPSILON = 4.0
PATIENT = ("--give-up-after", 60)


@contextlib.contextmanager
def serving(spec: ServerSpec, folder: Path) -> Iterator[Running]:
    with (
        contextlib.closing(SqliteServerStore(folder, spec)) as store,
        running(spec, folder, store) as server,
    ):
        yield server


def work(assembly: Assembly, base: Path, visits: int) -> None:
    """Lets the one client answer some tasks, then stops both."""
    header = assembly.header("north")
    with (
        serving(assembly.spec, base / "server") as server,
        contextlib.closing(SqliteClientStore(base / "state", header)) as store,
    ):
        link = server.link(assembly.spec, "north")
        shard = site.file_shard(assembly, "north", base / "north.csv")
        worker = site.client_worker(assembly, "north", link, store, shard)
        outcomes = [worker.tick() for _ in range(2 * visits)]
    assert outcomes == ["solved", "sent"] * visits


def test_whoever_was_rolled_back_is_told_and_the_other_goes_on_from_the_right_copy(
    tmp_path: Path,
) -> None:
    study = write_study(tmp_path, lambda raw: raw["schedule"].update(rounds=ROUNDS))
    expected, book = alone(study)
    assembly = assembled(study)
    work(assembly, tmp_path, 1)
    for name in ("server", "state"):
        shutil.copytree(tmp_path / name, tmp_path / f"{name}-old")
    work(assembly, tmp_path, 2)

    def met_by_old(name: str) -> tuple[str, ServerState | None, ledger.Ledger]:
        """Puts an old copy in the place of one side's state; returns what the client says, and both."""
        kept = (tmp_path / name).rename(tmp_path / f"{name}-new")
        shutil.copytree(tmp_path / f"{name}-old", tmp_path / name)
        try:
            with serving(assembly.spec, tmp_path / "server") as server:
                told = refusal(client(study, server.addresses.listen, *PATIENT), 5)
            state = read_state(tmp_path / "server", assembly.spec.prior)
            return told, state, read_ledger(tmp_path / "state")
        finally:
            shutil.rmtree(tmp_path / name)
            kept.rename(tmp_path / name)

    told, state, own = met_by_old("server")
    assert "the server's ledger of 'north' was rolled back: it ends after 3 entries" in told
    assert state is not None
    assert len(state.ledgers["north"].entries) == 3, "the old server took something"
    assert len(own.entries) == 9, "the client was charged"
    told, state, own = met_by_old("state")
    assert "the client's ledger of 'north' was rolled back: it ends after 3 entries" in told
    assert state is not None
    assert (state.visits["north"], len(own.entries)) == (3, 3)

    # With nobody rolled back they agree, and the run is the undisturbed one.
    with serving(assembly.spec, tmp_path / "server") as server:
        assert client(study, server.addresses.listen, *PATIENT).exit_code == 0
    assert server.outcome is not None
    state = server.outcome.state
    assert state.status == "completed"
    assert tree.equal(state.posterior, expected.posterior)
    assert read_ledger(tmp_path / "state") == book == state.ledgers["north"]


# A schedule that asks for one round more than was paid for.


def epsilon(assembly: Assembly, book: ledger.Ledger) -> float:
    assert assembly.budget is not None
    return assembly.budget.accountant.epsilon(ledger.spent(book), assembly.budget.delta)


@pytest.fixture
def greedy(tmp_path: Path) -> Assembly:
    """A study whose noise is for two rounds, and whose schedule has three."""
    assembly = assembled(study_file(tmp_path, rounds=2))
    return dataclasses.replace(assembly, schedule=schedules.synchronous(3))


def check_within_budget(sites: Sites, state: ServerState) -> None:
    assembly = sites.assembly
    assert state.status == "budget_exhausted"
    for name in assembly.clients:
        assert state.visits[name] == 2
        for book in (sites.ledger(name), state.ledgers[name]):
            assert 0.9 * EPSILON < epsilon(assembly, book) <= EPSILON
        assert sites.ledger(name) == state.ledgers[name]


def test_a_round_beyond_the_budget_is_not_begun(greedy: Assembly, tmp_path: Path) -> None:
    with sites_of(greedy, tmp_path, tmp_path) as sites:
        with serving(greedy.spec, tmp_path / "server") as server:
            sites.start(server.addresses.listen)
            sites.join()
        assert server.outcome is not None
        check_within_budget(sites, server.outcome.state)


def test_a_client_does_not_rely_on_the_server_s_budget(greedy: Assembly, tmp_path: Path) -> None:
    # It keeps no ledgers: it asks for whatever its schedule has.
    generous = greedy.spec._replace(headers={}, budget=None)
    with sites_of(greedy, tmp_path, tmp_path) as sites:
        with serving(generous, tmp_path / "server") as server:
            sites.start(server.addresses.listen)
            with pytest.raises(errors.BudgetExceeded, match=r"of 4 "):
                sites.join()
            # Those that cannot go on say so, and nobody is left.
            until(server, lambda state: state.status == "budget_exhausted")
        for name in greedy.clients:
            book = sites.ledger(name)
            assert ledger.reservations(book) == 2
            assert epsilon(greedy, book) <= EPSILON


def test_a_study_that_asks_for_more_than_its_budget_pays_for_is_refused_beforehand(
    tmp_path: Path,
) -> None:
    noise = assembled(study_file(tmp_path, rounds=2)).noise_multiplier
    solver = {"kind": "dp_optimisation", "steps": 2, "clip_norm": 1.0, "noise_multiplier": noise}
    assembled(study_file(tmp_path, rounds=2, solver=solver))
    with pytest.raises(errors.BudgetExceeded, match=r"3 rounds at noise_multiplier .* of 4 "):
        assembled(study_file(tmp_path, rounds=3, solver=solver))
