"""Over gRPC a run comes to what a simulation does, to the bit, also where calls meet every accident."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedvi.federation import schedules
from fedvi.server.core import protocol
from fedvi.server.core.protocol import ServerState
from fedvi.server.store.durable import SqliteServerStore
from fedvi.study.build import Assembly
from fedvi.transport import bundle
from tests.integration.test_federation import replayed
from tests.proxy import FAULTS, faulty
from tests.servers import running
from tests.sites import (
    NAMES,
    Expected,
    assembled,
    check_undisturbed,
    sites_of,
    study_file,
    undisturbed,
)

ROUNDS = 4


def over_grpc(
    assembly: Assembly,
    base: Path,
    folder: Path,
    between: Callable[[str], contextlib.AbstractContextManager[str]],
) -> None:
    """Runs a study with ``between`` before the server's address, and checks what comes of it."""
    listen = "127.0.0.1:0"
    with (
        contextlib.closing(SqliteServerStore(folder / "server", assembly.spec)) as store,
        sites_of(assembly, base, folder) as sites,
        contextlib.ExitStack() as closing,
    ):
        # A server whose last word was lost is gone, as far as it knows in agreement with all. It is
        # started again until everybody has heard it, as whoever runs it would.
        while not sites.ended:
            with running(assembly.spec, folder / "server", store, listen=listen) as server:
                if listen.endswith(":0"):
                    listen = server.addresses.listen
                    sites.start(closing.enter_context(between(listen)))
                while not (sites.ended or server.outcome):
                    time.sleep(0.01)
        state = store.load()
        assert state is not None
        check_undisturbed(sites, state, expected_of(assembly, base, state))


def expected_of(assembly: Assembly, base: Path, state: ServerState) -> Expected:
    """What a simulation comes to; without barriers, one whose answers arrive in the same order."""
    if not assembly.study.schedule.kind.endswith("asynchronous"):
        return undisturbed(assembly, base)
    found, books = replayed(assembly, base, state.history)
    assert found.history == state.history
    return Expected(protocol.served(assembly.spec, found), found.factors, books)


def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets answers of any size travel as large ones do: in several calls."""
    monkeypatch.setattr(bundle, "INLINE", 16)
    monkeypatch.setattr(bundle, "CHUNK", 24)
    monkeypatch.setattr(bundle, "LEAST_CHUNK", 1)


def test_a_run_over_a_sound_network_is_a_simulation_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_pieces(monkeypatch)
    assembly = assembled(study_file(tmp_path, rounds=2, names=NAMES[:2]))
    over_grpc(assembly, tmp_path, tmp_path / "sound", contextlib.nullcontext)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", schedules.__all__)
def test_a_run_over_any_network_is_a_simulation_to_the_bit(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assembly = assembled(study_file(tmp_path, kind, ROUNDS))
    over_grpc(assembly, tmp_path, tmp_path / "sound", contextlib.nullcontext)

    in_pieces(monkeypatch)
    proxies = []

    @contextlib.contextmanager
    def between(listen: str):
        with faulty(listen, seed=1) as (proxy, address):
            proxies.append(proxy)
            yield address

    over_grpc(assembly, tmp_path, tmp_path / "faulty", between)
    counts = proxies[0].counts
    assert counts["calls"] > 60
    for fault in FAULTS:
        assert 0.1 < counts[fault] / counts["calls"] < 0.3, counts
