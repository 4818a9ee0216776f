"""Slow and silent clients in a simulated federation: what the others wait for, and what comes of it."""

import numpy as np
import pytest

from fedvi.federation import schedules
from fedvi.privacy import ledger
from fedvi.run import simulate, site
from fedvi.server.coordinator import Coordinator
from fedvi.store.memory import MemoryClientStore, MemoryServerStore
from fedvi.study import build
from fedvi.study.config import parse_study
from fedvi.transport.memory import MemoryLink
from tests.studies import linear_regression, raw_study

# No two answers come at once: the run's seed would order them, and sums in another order round otherwise.
APART = {f"c{index}": 1.0 + index / 64 for index in range(7)}


def run(kind, latencies, rounds=3, deadline=5.0, clients=8, seed=0):
    """Simulates the conjugate problem; returns the coordinator, its clock and the clients' stores."""
    reference, sources = linear_regression()
    names = [f"c{index}" for index in range(clients)]
    raw = raw_study(
        names,
        reference["x"].shape[1],
        schedule={"kind": kind, "rounds": rounds, "deadline_seconds": deadline},
        latencies=[latencies.get(name, 1.0) for name in names],
    )
    assembly = build.assemble(parse_study(raw))
    clock = simulate.Clock()
    server = Coordinator(assembly.spec, MemoryServerStore(), clock=lambda: clock.now)
    stores = {name: MemoryClientStore(ledger.open_ledger(assembly.header(name))) for name in names}
    workers = {
        name: site.client_worker(
            assembly,
            name,
            MemoryLink(server.handle),
            stores[name],
            site.shard_of(assembly, name, sources[name]),
        )
        for name in names
    }
    folded = []
    server.add_listener(lambda: folded.append((clock.now, server.state.version)))
    laws = {name: lambda name=name: latencies.get(name, 1.0) for name in names}
    simulate.drive(workers, server, laws, seed, clock)
    return server, folded, stores


@pytest.mark.parametrize("kind", schedules.__all__)
def test_a_client_that_never_answers_in_time_leaves_the_posterior_of_the_others(kind):
    server, _, stores = run(kind, {**APART, "c7": 1e6})
    alone, _, _ = run(kind, APART, clients=7, seed=1)
    assert server.state.status == "completed"
    # Sums of seven factors in the same order, and nothing of the eighth.
    for field in ("h", "J"):
        np.testing.assert_array_equal(
            getattr(server.state.posterior, field), getattr(alone.state.posterior, field)
        )
    assert not server.state.factors["c7"].J.any()
    # Its answer came after the end: charged at both ends, and folded by nobody.
    assert server.state.visits["c7"] == 0
    assert {name: store.ledger for name, store in stores.items()} == server.state.ledgers
    assert ledger.reservations(stores["c7"].ledger) == 1


def test_synchronous_rounds_wait_for_a_silent_client_once():
    server, folded, _ = run("synchronous", {"c7": 1e6})
    ends = {version: seconds for seconds, version in reversed(folded) if version}
    # The deadline, then a second for each of the next two rounds.
    assert ends == {1: 5.0, 2: 6.0, 3: 7.0}
    assert [update.missing for update in server.state.history] == [("c7",)] * 3


def test_sequential_turns_of_a_silent_client_are_waited_for_once():
    server, folded, _ = run("sequential", {"c7": 1e6})
    assert [update.missing for update in server.state.history if update.missing] == [("c7",)] * 2
    # 21 visits of a second and one deadline; the last round's missing turn has no fold after it.
    assert min(seconds for seconds, version in folded if version == 21) == 26.0


@pytest.mark.parametrize("kind", ["sequential", "synchronous"])
def test_a_slow_client_s_late_answers_are_in_the_posterior(kind):
    server, _, stores = run(kind, {"c7": 7.0}, rounds=4)
    prompt, _, _ = run(kind, {}, rounds=4)
    assert any(update.missing for update in server.state.history)
    assert 0 < server.state.visits["c7"] < 4
    # Each client's exact factor does not depend on the others: one answer, however stale, is enough.
    for field in ("h", "J"):
        np.testing.assert_allclose(
            getattr(server.state.posterior, field),
            getattr(prompt.state.posterior, field),
            rtol=1e-10,  # float64 sums in another order
            atol=1e-10,
        )
    assert {name: store.ledger for name, store in stores.items()} == server.state.ledgers
