"""Records that are searched for: they reach the clip, and what was not searched is no pass."""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedvi import expfam, models
from fedvi.audit import extremes
from fedvi.audit.extremes import SLOTS, Search, Sized, check_extremes
from fedvi.audit.faults import FAULTS, planted
from fedvi.audit.findings import Finding
from fedvi.audit.recording import Recorder
from fedvi.expfam import tree
from fedvi.inference import solvers
from fedvi.privacy import base, bounded, mechanisms, random, release, sampling
from fedvi.updates.base import LocalSolver, Shard, Task, finish_natural

NAMES = ("a", "b", "c")
FAMILY = expfam.full_gaussian(len(NAMES))
# Columns that a study's own records would have: short, so that no clip is needed.
ROWS = {
    "x": np.float32([[0.1, 0.1, 0.0], [-0.1, 0.0, 0.1], [0.1, -0.1, 0.1]]),
    "y": np.float32([0.1, -0.1, 0.0]),
}


TASK = Task("audit", "a", 0, 0, tree.to_numpy(FAMILY.isotropic(1.0)), FAMILY.zeros(), 1.0)
# Of the records of ``sloping``.
TOWARDS = np.float32([1, -1, 1, 1, -1, 1, -1, -1]) / np.sqrt(np.float32(8))


def keys(client: str, release: str) -> Any:
    return functools.partial(random.insecure_root(0).key, client, release)


def searched(make: Any = solvers.site_release, search: Search | None = None) -> dict[str, Finding]:
    recorder = Recorder(mechanisms.rounded_gaussian(2.0))
    model = models.linear(NAMES, noise_scale=1.0)
    solver = make(FAMILY, model, sampling.full(SLOTS), recorder, clip_norm=1.0)
    small = Sized(solver, recorder, SLOTS)
    found = check_extremes(small, keys, {"the prior": TASK}, ROWS, search or Search(climbs=10))
    return {finding.check: finding for finding in found}


def test_short_columns_are_stretched_until_the_clip_is_needed():
    found = searched()
    assert [finding.passed for finding in found.values()] == [True] * 4
    reached = found["clips are put to the test"].numbers["reached"]
    assert 0.99 < reached <= 1.0


@pytest.mark.parametrize(
    "name", ["curvature-left-out-of-the-norm", "off-diagonal-curvature-doubled"]
)
def test_what_the_studys_own_columns_would_not_show_is_found(name: str):
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    with planted(fault):
        found = searched()
    assert found["worst record added or removed"].passed is False
    # With an outcome at its mean, a record's gradient is zero and its curvature alone is long.
    assert found["worst record added or removed"].numbers["largest"] > 1.2


def sloping(mechanism: Any) -> LocalSolver:
    """Is charged for a norm of 1, and clips at 2: records of a narrow cone add more, others nearly 0."""
    sampler = sampling.full(SLOTS)

    @jax.jit
    def noised(key: Any, x: Any, mask: Any) -> Any:
        along = x @ TOWARDS / jnp.maximum(jnp.linalg.norm(x, axis=1), 1e-30)
        rows = jnp.outer(1.1 * jnp.maximum(along, 0.0) ** 8, jnp.float32([0.6, 0.8]))
        batch = sampler.draw(key, mask)
        return release.release(
            key, bounded.clipped_sum(rows[batch.indices], 2.0, batch, mechanism), mechanism
        )

    def update(key_of: Any, state: Any, task: Task, shard: Shard) -> Any:
        found = release.decoded(noised(key_of("noise"), shard.records["x"], shard.mask))
        return (
            state,
            release.post_process(lambda v: {"h": np.asarray(v), "J": np.ones(2)}, found),
            {},
        )

    cost = mechanism.event(base.Shift(2.0, 1.0, 2.0))
    return LocalSolver("sloping", lambda eta: (), update, finish_natural, cost, 4)


@pytest.mark.nightly
def test_a_climb_by_gradient_comes_where_changes_at_random_do_not():
    def largest(by_gradient: float) -> float:
        recorder = Recorder(mechanisms.rounded_gaussian(2.0))
        rows = {"x": np.random.default_rng(5).normal(size=(3, len(TOWARDS))).astype(np.float32)}
        search = Search(climbs=96, by_gradient=by_gradient)
        small = Sized(sloping(recorder), recorder, SLOTS)
        found = check_extremes(small, keys, {"the prior": TASK}, rows, search)
        return found[0].numbers["largest"]

    assert largest(by_gradient=0.0) < 0.5
    assert largest(by_gradient=0.75) > 1.05


@pytest.mark.nightly
def test_a_record_that_makes_a_total_no_number_is_found():
    mechanism, sampler = Recorder(mechanisms.gaussian(2.0)), sampling.full(SLOTS)

    def update(key_of: Any, state: Any, task: Task, shard: Shard) -> Any:
        x = jnp.asarray(shard.records["x"])
        rows = x / jnp.maximum(jnp.abs(x).max(axis=1, keepdims=True), 1e-30) / len(NAMES)
        batch = sampler.draw(key_of("sampling"), shard.mask)
        bound = bounded.clipped_sum(rows[batch.indices], 1.0, batch, mechanism)
        far = jnp.where(jnp.abs(x).max() > 1e20, jnp.nan, 0.0)
        bound = type(bound)(bound.total + far, bound.shift, bound.sampler, bound.grid)
        found = release.decoded(release.release(key_of("noise"), bound, mechanism))
        value = release.post_process(lambda v: {"h": np.asarray(v), "J": np.ones(2)}, found)
        return state, value, {}

    cost = mechanism.event(base.Shift(1.0, 1.0, 2.0))
    solver = LocalSolver("no number", lambda eta: (), update, finish_natural, cost, 4)
    small = Sized(solver, mechanism, SLOTS)
    found = check_extremes(small, keys, {"the prior": TASK}, ROWS, Search(climbs=96))
    assert found[0].passed is False


def test_without_time_nothing_is_said_to_be_tested():
    found = searched(search=Search(until=time.monotonic() - 1.0))
    assert found["clips are put to the test"].passed is None
    assert found["worst record added or removed"].passed is None
    assert "no time was left" in found["clips are put to the test"].meaning


@pytest.mark.nightly
def test_what_was_found_before_time_was_over_still_counts(monkeypatch: pytest.MonkeyPatch):
    """A search that is cut short keeps the records that it came to."""
    (fault,) = (fault for fault in FAULTS if fault.name == "curvature-left-out-of-the-norm")
    clock = iter(range(10**6))
    monkeypatch.setattr(extremes, "_CORNERS", 0)
    monkeypatch.setattr(extremes.time, "monotonic", lambda: float(next(clock)))
    with planted(fault):
        found = searched(search=Search(until=30.0))
    assert found["clips are put to the test"].passed is None
    assert found["worst record added or removed"].passed is False


def test_a_client_that_falls_silent_at_a_record_is_found():
    def silent(*arguments: Any, **options: Any) -> Any:
        solver = solvers.site_release(*arguments, **options)

        def update(key_of: Any, state: Any, task: Task, shard: Shard) -> Any:
            if float(jnp.abs(jnp.asarray(shard.records["x"])).max()) > 1e20:
                raise ValueError
            return solver.update(key_of, state, task, shard)

        return solver._replace(update=update)

    found = searched(silent)["extreme records are answered"]
    assert found.passed is False
    assert "ValueError" in found.figure
