"""The replay passes on the code as it is, and fails on each fault that is planted."""

import dataclasses
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from fedvi import expfam, inference, models
from fedvi.audit.findings import Finding
from fedvi.audit.recording import Recorder
from fedvi.audit.replay import _allowed, replay
from fedvi.inference.base import Shard, Task
from fedvi.privacy import mechanisms, release, sampling
from fedvi.privacy.random import insecure_root, key

SIZE, SLOTS = 3, 32

# The function of the same name hides the module as an attribute of its package.
module = importlib.import_module("fedvi.inference.dp_optimisation")


class Changed:
    """A mechanism whose noise is changed by ``fn(key, total, noised)``, at the price of the inner one."""

    def __init__(self, inner: Any, fn: Any) -> None:
        self._inner, self._fn = inner, fn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def perturb(self, key: Any, total: Any, clip_norm: float) -> Any:
        return self._fn(self._inner, key, total, clip_norm)


def scaled(factor: float) -> Any:
    def fn(inner: Any, key: Any, total: Any, clip_norm: float) -> Any:
        noised = inner.perturb(key, total, clip_norm)

        def less(new: Any, old: Any) -> Any:
            noise = factor * (new - old).astype(jnp.float32)
            return old + (jnp.round(noise) if new.dtype == jnp.int32 else noise).astype(new.dtype)

        return jax.tree.map(less, noised, total)

    return fn


def one_key(inner: Any, key: Any, total: Any, clip_norm: float) -> Any:
    return inner.perturb(jax.random.key(0), total, clip_norm)


def product_keys(client: str, name: str) -> Any:
    secret = insecure_root(1).secret(client, name)
    return lambda purpose: key(secret, purpose)


def found(
    change: Any = None,
    sampler: Any = None,
    keys: Any = product_keys,
    mechanism: Any = None,
    steps: int = 5,
) -> dict[str, bool | None]:
    return {finding.check: finding.passed for finding in audited(**locals())}


def audited(change: Any, sampler: Any, keys: Any, mechanism: Any, steps: int) -> list[Finding]:
    model = models.logistic(["a", "b", "c"])
    family = expfam.full_gaussian(SIZE)
    inner = mechanism or mechanisms.rounded_gaussian(2.0)
    recorder = Recorder(Changed(inner, change) if change else inner)
    solver = inference.dp_optimisation(
        family,
        model,
        sampler or sampling.full(SLOTS),
        recorder,
        clip_norm=1.0,
        steps=steps,
        draws=2,
    )
    generator = np.random.default_rng(0)
    mask = np.arange(SLOTS) < 12
    records = {
        "x": generator.normal(size=(SLOTS, SIZE)) * mask[:, None],
        "y": generator.integers(0, 2, SLOTS) * mask.astype(float),
    }
    prior = family.from_moments(np.zeros(SIZE), 6.25 * np.eye(SIZE))
    task = Task("t", "a", 0, 0, prior, family.zeros(), 1.0)
    return replay(solver, recorder, keys, task, Shard(records, mask))


FLOAT, GRID = mechanisms.gaussian(2.0), mechanisms.rounded_gaussian(2.0)
POISSON, FEISTEL = sampling.poisson(0.2, SLOTS), sampling.feistel(6, SLOTS)


@pytest.mark.parametrize("mechanism", [FLOAT, GRID], ids=["float", "grid"])
@pytest.mark.parametrize("sampler", [None, POISSON, FEISTEL], ids=["full", "poisson", "feistel"])
def test_the_code_as_it_is_passes(mechanism: Any, sampler: Any) -> None:
    outcome = found(mechanism=mechanism, sampler=sampler, steps=5 if sampler is None else 15)
    assert all(outcome.values()), outcome


def test_totals_on_a_grid_are_compared_as_integers() -> None:
    for finding in audited(None, None, product_keys, GRID, 2):
        if finding.check.startswith("one record"):
            assert finding.numbers["exact"]
            assert 0.5 < finding.numbers["largest"] <= 1.0


def test_one_grid_step_too_far_is_found() -> None:
    bound = GRID.grid(1.0).bound
    assert [_allowed(shift, bound) for shift in (1.0, 2.0)] == [bound, 4 * bound]
    # A surplus gives room for what it declares, and for no more.
    assert bound < _allowed(1.001, bound) < 1.0021 * bound


@pytest.mark.parametrize("factor", [0.0, 0.5, 0.8])
def test_less_noise_than_charged_is_found(factor: float) -> None:
    assert found(scaled(factor))["noise scale"] is False


@pytest.mark.parametrize("mechanism", [FLOAT, GRID], ids=["float", "grid"])
def test_clipping_that_is_off_is_found(monkeypatch: pytest.MonkeyPatch, mechanism: Any) -> None:
    def unclipped(contributions: Any, clip_norm: float, batch: Any, *rest: Any) -> Any:
        bounded = release.clipped_sum(contributions, clip_norm, batch, *rest)
        step = 1.0 if bounded.grid is None else bounded.grid.step

        def total(leaf: Any, like: Any) -> Any:
            kept = batch.mask.reshape(-1, *[1] * (leaf.ndim - 1))
            summed = jnp.where(kept, jnp.nan_to_num(leaf), 0.0).sum(axis=0) / step
            return (
                summed if bounded.grid is None else jnp.clip(summed, -2e9, 2e9).astype(like.dtype)
            )

        return dataclasses.replace(bounded, total=jax.tree.map(total, contributions, bounded.total))

    monkeypatch.setattr(module, "clipped_sum", unclipped)
    outcome = found(mechanism=mechanism)
    assert outcome["one record added or removed"] is False
    assert outcome["one record substituted"] is False


def at_one_number(change: Any) -> Any:
    """Changes the noise of the first number of the first array alone."""

    def fn(inner: Any, key: Any, total: Any, clip_norm: float) -> Any:
        noised = inner.perturb(key, total, clip_norm)
        leaves, tree = jax.tree.flatten(noised)
        old = jax.tree.leaves(total)[0]
        first = change(old.ravel()[0], leaves[0].ravel()[0])
        leaves[0] = leaves[0].ravel().at[0].set(first).reshape(old.shape)
        return jax.tree.unflatten(tree, leaves)

    return fn


@pytest.mark.parametrize(
    "change",
    [lambda old, new: old, lambda old, new: old + jnp.ones_like(old)],
    ids=["no noise", "the same noise at every step"],
)
def test_one_number_without_noise_of_its_own_is_found(change: Any) -> None:
    outcome = found(at_one_number(change))
    assert outcome["noise everywhere"] is False
    assert outcome["noise scale"] is True  # it drowns in the whole


def test_noise_that_is_missing_from_one_array_or_some_releases_is_found() -> None:
    def one_array(inner: Any, key: Any, total: Any, clip_norm: float) -> Any:
        noised = inner.perturb(key, total, clip_norm)
        quiet = scaled(0.8)(inner, key, total, clip_norm)
        (_, *rest), tree = jax.tree.flatten(noised)
        return jax.tree.unflatten(tree, [jax.tree.leaves(quiet)[0], *rest])

    def some_releases(inner: Any, key: Any, total: Any, clip_norm: float) -> Any:
        noised = inner.perturb(key, total, clip_norm)
        skip = jax.random.key_data(key).ravel()[0] % 20 == 0
        return jax.tree.map(lambda new, old: jnp.where(skip, old, new), noised, total)

    assert found(one_array, steps=20)["noise everywhere"] is False
    assert found(some_releases, steps=20)["noise everywhere"] is False


def test_a_grid_that_lets_longer_records_pass_is_found() -> None:
    class Wide(type(GRID)):  # type: ignore[misc]
        def grid(self, clip_norm: float) -> Any:
            inner = super().grid(clip_norm)
            return inner._replace(bound=int(1.44 * inner.bound))

    assert found(mechanism=Wide(2.0, 1))["grid's norm bound"] is False


def test_noise_used_again_in_every_step_is_found() -> None:
    outcome = found(one_key)
    assert outcome["noise is fresh"] is False


def test_noise_used_again_at_another_client_is_found() -> None:
    outcome = found(keys=lambda client, name: product_keys("everybody", name))
    assert outcome["noise keys"] is False
    assert outcome["noise is fresh"] is False


@dataclasses.dataclass(frozen=True)
class Planted:
    """Draws batches by ``pick(key)`` → which slots are in, at the price of Poisson batches."""

    pick: Any
    capacity: int = SLOTS
    rate: float = 0.2

    def draw(self, key: Any, valid: Any) -> Any:
        return release.Batch(jnp.arange(SLOTS), valid & self.pick(key), self)

    def event(self, inner: Any) -> Any:
        return POISSON.event(inner)


def always(key: Any) -> Any:
    return jnp.ones(SLOTS, bool)


def fixed_size(key: Any) -> Any:
    return jax.random.permutation(key, SLOTS) < round(0.2 * SLOTS)


def test_records_that_are_always_included_are_found() -> None:
    assert found(sampler=Planted(always))["records in batches"] is False


def test_fixed_batches_at_the_poisson_price_are_found() -> None:
    outcome = found(sampler=Planted(fixed_size), steps=15)
    assert outcome["batch sizes are random"] is False
    assert outcome["records in batches"] is not False


def test_shuffled_epochs_are_found() -> None:
    """Every record once in five steps: a permutation for each epoch, which the plant counts off."""
    steps, turn = 20, iter(range(10**6))

    def pick(key: Any) -> Any:
        def host(_: Any) -> np.ndarray:
            epoch, part = divmod(next(turn) % steps, 5)
            order = np.random.default_rng(epoch).permutation(SLOTS)
            return order % 5 == part

        shape = jax.ShapeDtypeStruct((SLOTS,), bool)
        return io_callback(host, shape, jax.random.key_data(key), ordered=True)

    outcome = found(sampler=Planted(pick), steps=steps)
    assert outcome["batches are independent"] is False
