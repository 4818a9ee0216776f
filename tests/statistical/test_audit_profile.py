"""The profile audit passes on the product and refutes each wrong price, at fixed seeds."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from fedvi.audit import profile as audit
from fedvi.privacy import events, mechanisms, sampling, views
from fedvi.privacy.accountants import pld
from fedvi.privacy.release import Batch

RATE, SIGMA, STEPS, SLOTS, DELTA, COUNT = 0.1, 1.0, 20, 40, 1e-5, 20_000
"""specs/accounting.md §4: ε is 3.591 at δ 1e-5."""

STEP = events.PoissonSampled(RATE, events.Gaussian(SIGMA))
CLAIM = events.repeat(STEP, STEPS)


def outcome(trials: Any, seed: int = 0, claim: Any = CLAIM, which: int = 0) -> Any:
    step = claim.inner if isinstance(claim, events.Repeated) else claim
    pair = audit.worst_pairs(step, "add_remove", SLOTS)[which]
    key = jax.random.key(seed)
    return audit.profile(trials, pair, claim, pld("add_remove"), DELTA, key, COUNT)


@functools.cache
def product(factor: float = 1.0) -> Any:
    sampler = sampling.poisson(RATE, SLOTS)
    return audit.shipped(sampler, mechanisms.gaussian(SIGMA * factor), 1.0, STEPS)


@dataclasses.dataclass(frozen=True)
class FixedSize:
    """A batch of the same size every time, drawn from the filled slots alone."""

    rate: float = RATE
    capacity: int = round(RATE * SLOTS)

    def draw(self, key: Any, valid: Any) -> Any:
        order = jnp.argsort(jnp.where(valid, jax.random.uniform(key, valid.shape), 2.0))
        indices = order[: self.capacity]
        return Batch(indices, valid[indices], self)

    def event(self, inner: Any) -> Any:
        return events.PoissonSampled(self.rate, inner)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_product_is_consistent_with_its_claim(seed: int) -> None:
    finding = outcome(product(), seed)
    assert finding.passed
    # A lower bound above the claim would refute it; a fifth of it shows that the audit has power.
    assert 0.2 * 3.591 < finding.numbers["epsilon_lower"] < 3.591


@pytest.mark.parametrize("factor", [0.0, 0.5, 0.8])
def test_less_noise_than_claimed_is_refuted(factor: float) -> None:
    assert outcome(product(factor)).passed is False


def test_fixed_batches_at_the_poisson_price_are_refuted() -> None:
    trials = audit.shipped(FixedSize(), mechanisms.gaussian(SIGMA), 1.0, STEPS)
    assert outcome(trials, which=1).passed is False
    checks = audit.check_sampler(FixedSize(), STEP, SLOTS, jax.random.key(0))
    assert {finding.check: finding.passed for finding in checks}["law of batch sizes"] is False


def test_shuffled_epochs_at_the_poisson_price_are_refuted() -> None:
    def trials(key: Any, contributions: Any, valid: Any) -> Any:
        order_key, noise_key = jax.random.split(key)
        changed = contributions[SLOTS // 2].sum() > 0.0
        batch = jax.random.randint(order_key, (), 0, 10)
        present = jnp.where(changed & valid[SLOTS // 2], 1.0, 0.0)
        return present * (jnp.arange(10) == batch).astype(jnp.float32) + 0.5 * jax.random.normal(
            noise_key, (10,)
        )

    claim = events.repeat(events.PoissonSampled(0.1, events.Gaussian(0.5)), 10)
    assert outcome(trials, claim=claim).passed is False


@pytest.mark.parametrize(("factor", "holds"), [(1.0, True), (0.8, False)])
def test_fixed_size_batches_at_their_own_price(factor: float, holds: bool) -> None:
    claim = events.repeat(events.WithoutReplacement(4, SLOTS, events.Gaussian(SIGMA)), 10)
    (pair,) = audit.worst_pairs(claim.inner, "substitute", SLOTS)
    trials = audit.shipped(sampling.feistel(4, SLOTS), mechanisms.gaussian(SIGMA * factor), 1.0, 10)
    key = jax.random.key(0)
    finding = audit.profile(trials, pair, claim, pld("substitute"), DELTA, key, COUNT)
    assert finding.passed is holds


@pytest.mark.parametrize(("factor", "holds"), [(1.0, True), (0.8, False)])
def test_the_grid_mechanism_of_studies(factor: float, holds: bool) -> None:
    trials = audit.shipped(sampling.full(1), mechanisms.rounded_gaussian(SIGMA * factor), 1.0, 1)
    claim = events.Gaussian(SIGMA)
    pair = audit.worst_pairs(claim, "add_remove", 1)[0]
    key = jax.random.key(0)
    finding = audit.profile(trials, pair, claim, pld("add_remove"), DELTA, key, COUNT)
    assert finding.passed is holds


def clients(claimed: int, reporting: int, view: str) -> bool:
    """Audits one round of ten clients, of which some report, at the price for others."""
    share = mechanisms.gaussian(views.share(1.5, 10))
    claim = views.view_event(1.5, "aggregate", 10, "client", reporting=claimed)
    pair = audit.worst_pairs(claim, "add_remove", 10)[0]
    trials = audit.aggregate(share, 1.0, 10, view, reporting)
    key = jax.random.key(0)
    passed = audit.profile(trials, pair, claim, pld("add_remove"), DELTA, key, COUNT).passed
    assert passed is not None
    return passed


def test_a_single_message_at_the_price_of_the_aggregate_is_refuted() -> None:
    assert clients(claimed=10, reporting=10, view="aggregate")
    assert not clients(claimed=10, reporting=10, view="message")


def test_dropouts_at_full_credit_are_refuted() -> None:
    assert clients(claimed=6, reporting=6, view="aggregate")
    assert not clients(claimed=10, reporting=6, view="aggregate")


def test_outputs_that_are_no_numbers_count() -> None:
    """A release that breaks when the record is there tells that it is there."""
    scores = np.zeros(4000)
    claim = events.Gaussian(1.0)
    finding = audit.judge(np.full(4000, np.nan), scores, "broken", claim, pld("add_remove"), DELTA)
    assert finding.passed is False


def test_a_gap_is_the_difference_of_two_clopper_pearson_bounds() -> None:
    left, right = np.repeat([1.0, 0.0], [3000, 1000]), np.repeat([1.0, 0.0], [100, 3900])
    order = np.random.default_rng(0).permutation(4000)
    claim = events.Gaussian(1.0)
    finding = audit.judge(left[order], right[order], "", claim, pld("add_remove"), DELTA)
    at = finding.numbers["at_epsilon"]
    decided = order[1000:]
    low = scipy.stats.binomtest(int(left[decided].sum()), 3000).proportion_ci(0.99).low
    high = scipy.stats.binomtest(int(right[decided].sum()), 3000).proportion_ci(0.99).high
    gap = low - math.exp(at) * high - pld("add_remove").delta(claim, at)
    assert finding.numbers["gap"] == pytest.approx(gap, abs=1e-9)
