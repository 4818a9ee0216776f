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

from fedvi.audit import draws, rates
from fedvi.audit import profile as audit
from fedvi.audit import trials as worst
from fedvi.audit.draws import check_sampler
from fedvi.privacy import events, mechanisms, sampling
from fedvi.privacy.accountants import pld
from fedvi.privacy.base import Batch, Shift
from fedvi.privacy.sums import in_sum

RATE, SIGMA, STEPS, SLOTS, DELTA, COUNT = 0.1, 1.0, 20, 40, 1e-5, 20_000
"""By the privacy loss distribution ε is 3.591 at δ 1e-5."""

STEP = events.PoissonSampled(RATE, events.Gaussian(SIGMA))
CLAIM = events.repeat(STEP, STEPS)


FACTORS = (1.0, 1.25)
"""What is asked of refuted noise here: each factor is one more composition of the claim."""


@pytest.fixture(autouse=True)
def few_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_FACTORS", FACTORS)


def outcome(trials: Any, seed: int = 0, claim: Any = CLAIM, which: int = 0) -> Any:
    step = claim.inner if isinstance(claim, events.Repeated) else claim
    pair = worst.worst_pairs(step, "add_remove", SLOTS)[which]
    key = jax.random.key(seed)
    return audit.profile(trials, pair, claim, pld("add_remove"), DELTA, key, COUNT)


@functools.cache
def product(factor: float = 1.0) -> Any:
    sampler = sampling.poisson(RATE, SLOTS)
    return worst.shipped(sampler, mechanisms.gaussian(SIGMA * factor), 1.0, STEPS)


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


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_product_is_consistent_with_its_claim(seed: int) -> None:
    finding = outcome(product(), seed)
    assert finding.passed
    # A lower bound above the claim would refute it; a fifth of it shows that the audit has power.
    assert 0.2 * 3.591 < finding.numbers["epsilon_lower"] < 3.591
    assert finding.numbers["refuted_factor"] == 1.25  # nor would a study's profile be NOT CHECKED


@pytest.mark.nightly(but=("0.0",))
@pytest.mark.parametrize("factor", [0.0, 0.5, 0.8])
def test_less_noise_than_claimed_is_refuted(factor: float) -> None:
    assert outcome(product(factor)).passed is False


@pytest.mark.nightly
def test_fixed_batches_at_the_poisson_price_are_refuted() -> None:
    trials = worst.shipped(FixedSize(), mechanisms.gaussian(SIGMA), 1.0, STEPS)
    assert outcome(trials, which=1).passed is False
    checks = check_sampler(FixedSize(), STEP, SLOTS, jax.random.key(0))
    assert {finding.check: finding.passed for finding in checks}["law of batch sizes"] is False


@pytest.mark.parametrize(("rate", "slots"), [(0.001, 20_000), (0.02, 500)])
def test_correct_batches_seldom_fail_however_small_the_rate(rate: float, slots: int) -> None:
    """Where a slot is drawn 0.1 times, χ² would fail one in eight of correct samplers."""
    generator = np.random.default_rng(0)
    low = sum(
        draws._spread_chance(generator.binomial(100, rate, slots), 100, rate, True) < 0.01
        for _ in range(100)
    )
    # One p-value in 100 is below 0.01; more than 6 are once in 15,000.
    assert low <= 6


def test_slots_that_are_drawn_too_often_are_found() -> None:
    """Also where slots are seldom drawn: the first hundred of 20,000 at 2 in 100, not 1 in 1,000."""
    counts = np.random.default_rng(0).binomial(100, np.repeat([0.02, 0.001], [100, 19_900]))
    assert draws._spread_chance(counts, 100, 0.001, True) < 1e-4


@pytest.mark.nightly
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


@pytest.mark.nightly
@pytest.mark.parametrize(("factor", "holds"), [(1.0, True), (0.8, False)])
def test_fixed_size_batches_at_their_own_price(factor: float, holds: bool) -> None:
    claim = events.repeat(events.WithoutReplacement(4, SLOTS, events.Gaussian(SIGMA)), 10)
    (pair,) = worst.worst_pairs(claim.inner, "substitute", SLOTS)
    trials = worst.shipped(sampling.feistel(4, SLOTS), mechanisms.gaussian(SIGMA * factor), 1.0, 10)
    key = jax.random.key(0)
    finding = audit.profile(trials, pair, claim, pld("substitute"), DELTA, key, COUNT)
    assert finding.passed is holds


@pytest.mark.nightly(but=("0.8-False",))
@pytest.mark.parametrize(("factor", "holds"), [(1.0, True), (0.8, False)])
def test_the_grid_mechanism_of_studies(factor: float, holds: bool) -> None:
    trials = worst.shipped(sampling.full(1), mechanisms.rounded_gaussian(SIGMA * factor), 1.0, 1)
    claim = events.Gaussian(SIGMA)
    pair = worst.worst_pairs(claim, "add_remove", 1)[0]
    key = jax.random.key(0)
    finding = audit.profile(trials, pair, claim, pld("add_remove"), DELTA, key, COUNT)
    assert finding.passed is holds


def one_round(share: Any, view: str, reporting: int) -> worst.Trials:
    """One round of ten clients, each adding its share of the noise; rows are clients, with their changes.

    ``view`` is "aggregate", where only the sum of the reporting clients is seen, or "message", where that
    of the changed client (the middle one) is: it reports, whoever else drops out.
    """
    one = worst.shipped(sampling.full(1), share, 1.0, 1)
    rows = [5] if view == "message" else sorted({5, *range(reporting - 1)})

    def trial(key: Any, contributions: Any, valid: Any) -> Any:
        keys, seen = jax.random.split(key, 10), jnp.asarray(rows)
        each = jax.vmap(lambda key, row, ok: one(key, row[None], ok[None]))
        return each(keys[seen], contributions[seen], valid[seen]).sum(axis=0)

    return trial


def clients(claimed: int, reporting: int, view: str) -> bool:
    """Audits one round of ten clients, of which some report, at the price for others."""
    share = mechanisms.gaussian(1.5 / math.sqrt(10))
    claim = in_sum(share.event(Shift(1.0, 1.0, 2.0)), claimed)
    pair = worst.worst_pairs(claim, "add_remove", 10)[0]
    trials = one_round(share, view, reporting)
    key = jax.random.key(0)
    passed = audit.profile(trials, pair, claim, pld("add_remove"), DELTA, key, COUNT).passed
    assert passed is not None
    return passed


@pytest.mark.nightly
def test_a_single_message_at_the_price_of_the_aggregate_is_refuted() -> None:
    assert clients(claimed=10, reporting=10, view="aggregate")
    assert not clients(claimed=10, reporting=10, view="message")


@pytest.mark.nightly
def test_dropouts_at_full_credit_are_refuted() -> None:
    assert clients(claimed=6, reporting=6, view="aggregate")
    assert not clients(claimed=10, reporting=6, view="aggregate")


def test_outputs_that_are_no_numbers_count() -> None:
    """A release that breaks when the record is there tells that it is there."""
    scores = np.zeros(4000)
    claim = events.Gaussian(1.0)
    finding = audit.judge(np.full(4000, np.nan), scores, "broken", claim, pld("add_remove"), DELTA)
    assert finding.passed is False


@pytest.mark.parametrize(("hits", "misses"), [(90, 20), (300, 100), (5, 0), (350, 150)])
def test_a_shown_excess_is_an_exact_test_of_the_difference(hits: int, misses: int) -> None:
    """Against the whole table of two binomials, at the worst pair of rates with no excess."""
    trials, ratio, by, error = 400, 1.5, 0.02, 0.01
    found = rates.excess(hits, trials, misses, trials, ratio, error)
    counts = np.arange(trials + 1)
    reached = counts[:, None] - ratio * counts[None, :] >= hits - ratio * misses - 1e-9

    def chance(rate: float, excess: float) -> float:
        first = scipy.stats.binom.pmf(counts, trials, min(max(ratio * rate + excess, 0.0), 1.0))
        return float(first @ reached @ scipy.stats.binom.pmf(counts, trials, rate))

    grid = np.linspace(0.0, 1.0, 400)
    if rates.exceeds(hits, trials, misses, trials, ratio, by, error):
        # Rates of the second count that are not ruled out by themselves.
        plausible = [r for r in grid if scipy.stats.binom.cdf(misses, trials, r) > 2.5e-4]
        plausible = [r for r in plausible if scipy.stats.binom.sf(misses - 1, trials, r) > 2.5e-4]
        assert max(chance(rate, by) for rate in plausible) <= error
        assert found >= by - 1e-3
    else:
        assert found <= by + 1e-3
    # No worse than one bound on either rate at a tenth of the error, and below the estimate.
    low = scipy.stats.binomtest(hits, trials).proportion_ci(1.0 - error / 10.0).low
    high = scipy.stats.binomtest(misses, trials).proportion_ci(1.0 - error / 10.0).high
    assert low - ratio * high - 1e-9 <= found <= (hits - ratio * misses) / trials


@pytest.mark.nightly
def test_an_excess_that_is_not_there_is_shown_once_in_a_hundred_at_most() -> None:
    """At p = ratio·p′ + by itself; 4000 tries of an error of 1 % stay below 60 but once in 400."""
    generator = np.random.default_rng(0)
    trials, ratio, by, rate = 500, 2.0, 0.01, 0.1
    pairs = zip(
        generator.binomial(trials, ratio * rate + by, 4000),
        generator.binomial(trials, rate, 4000),
        strict=True,
    )
    tried = functools.cache(
        lambda hits, misses: rates.exceeds(hits, trials, misses, trials, ratio, by, 0.01)
    )
    shown = sum(tried(int(hits), int(misses)) for hits, misses in pairs)
    assert 10 <= shown <= 60  # nor so seldom that the test had no power


def test_the_size_of_a_gap_agrees_with_its_verdict() -> None:
    left, right = np.repeat([1.0, 0.0], [3000, 1000]), np.repeat([1.0, 0.0], [100, 3900])
    order = np.random.default_rng(0).permutation(4000)
    claim = events.Gaussian(1.0)
    finding = audit.judge(left[order], right[order], "", claim, pld("add_remove"), DELTA)
    at, decided = finding.numbers["at_epsilon"], order[1000:]
    hits, misses = int(left[decided].sum()), int(right[decided].sum())
    stated = pld("add_remove").delta(claim, at) + finding.numbers["gap"]
    shown = functools.partial(rates.exceeds, hits, 3000, misses, 3000, math.exp(at), error=0.01)
    assert shown(by=stated - 1e-3)
    assert not shown(by=stated + 1e-3)
