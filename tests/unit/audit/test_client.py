"""The client as it is played: what a store or a worker does wrong shows, whatever the solver."""

from typing import Any

import numpy as np
import pytest

from fedvi import expfam
from fedvi.audit import client
from fedvi.audit.client_told import Release, Told, findings
from fedvi.audit.findings import Finding
from fedvi.audit.recording import Call, Layout, Recorder
from fedvi.expfam import tree
from fedvi.privacy import bounded as bounds
from fedvi.privacy import events, mechanisms, random, release, sampling
from fedvi.store.memory import MemoryClientStore
from fedvi.updates.base import LocalSolver, Shard, Task, finish_natural

FAMILY = expfam.diagonal_gaussian(2)
SHARD = Shard({"x": np.ones((4, 2), np.float32)}, np.ones(4, bool))
TASK = Task("t", "north", 0, 0, tree.to_numpy(FAMILY.isotropic(1.0)), FAMILY.zeros(), 1.0)


def noisy(mechanism: Any, key_of_all: Any = None) -> LocalSolver:
    """A solver that releases the noised sum of its records."""
    sampler = sampling.full(4)

    def update(key_of: Any, state: Any, task: Task, shard: Shard) -> Any:
        batch = sampler.draw(key_of("sampling"), shard.mask)
        bounded = bounds.clipped_sum(shard.records["x"][batch.indices], 1.0, batch, mechanism)
        key = key_of("noise") if key_of_all is None else key_of_all
        noised = release.decoded(release.release(key, bounded, mechanism))
        found = release.post_process(lambda v: {"h": np.asarray(v), "J": np.ones(2)}, noised)
        return state, found, {}

    cost = events.Gaussian(20.0)
    return LocalSolver("noisy", lambda eta: (), update, finish_natural, cost, 4)


def played(key_of_all: Any = None, renews: bool = False) -> dict[str, Finding]:
    recorder = Recorder(mechanisms.rounded_gaussian(20.0))
    solver = noisy(recorder, key_of_all)._replace(renews=renews)
    found = client.check_client(solver, recorder, TASK, SHARD)
    return {finding.check: finding for finding in found}


@pytest.mark.parametrize("renews", [False, True])
def test_the_client_as_it_is_passes(renews: bool):
    found = played(renews=renews)
    assert [check for check, finding in found.items() if finding.passed is not True] == []


def test_of_a_solver_without_a_mechanism_noise_is_not_checked():
    found = client.check_client(noisy(mechanisms.rounded_gaussian(20.0)), None, TASK, SHARD)
    unchecked = [finding.check for finding in found if finding.passed is None]
    assert unchecked == ["noise of two releases is independent"]
    assert all(finding.passed for finding in found if finding.passed is not None)


def test_noise_from_a_key_of_the_solvers_own_is_found():
    found = played(random.insecure_root(0).key("always"))
    assert found["noise of two releases is independent"].passed is False


def test_single_numbers_that_are_equal_by_chance_are_no_finding():
    # On a grid of 4,096 steps a std two of fifty are, once in a dozen audits.
    layout = Layout((("", (1,), "int32"),), 1.0, 1.0 / 4096, 4096**2, 1.0)
    drawn = np.rint(np.random.default_rng(0).normal(scale=4096.0, size=50)).astype(np.int64)
    drawn[1] = drawn[0]
    releases = [
        Release(
            str(at), (0, str(at)), bytes([at]), [Call(layout, b"k%d" % at, np.zeros(1, int), one)]
        )
        for at, one in enumerate(drawn[:, None])
    ]
    found = {finding.check: finding for finding in findings(Told(releases), True)}
    assert found["noise of two releases is independent"].passed is True


def test_a_check_that_was_never_played_is_no_pass():
    assert {finding.passed for finding in findings(Told(), with_noise=True)} == {None}


def test_a_store_that_forgets_what_a_release_was_begun_with_is_found(
    monkeypatch: pytest.MonkeyPatch,
):
    """A killed release is then begun again under another secret, and charged once."""
    original = MemoryClientStore.pending

    def forgetful(self: MemoryClientStore) -> Any:
        found = original(self)
        return (
            found
            if found is None or found.data is None
            else found.__class__(found.release_id, found.secret, found.task)
        )

    monkeypatch.setattr(MemoryClientStore, "pending", forgetful)
    found = played()
    assert any(finding.passed is False for finding in found.values())
