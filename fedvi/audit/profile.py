"""The whole privacy profile against many trials of the shipped sampler, clip and noise.

A claim is a curve: for every ε and every set of outputs S, P[M(X) ∈ S] ≤ e^ε·P[M(X′) ∈ S] + δ(ε).
The audit runs the code on a worst-case pair of shards, scores every outcome by the log likelihood
ratio that the claim implies, takes {score above a threshold} as S, and asks whether what is counted
can be under the curve. It refutes, and never proves: a claim that passes may still be wrong.

A quarter of the trials chooses direction, ε and threshold; the rest alone decides, with
Clopper–Pearson's bounds, so that the choice costs nothing.

Trials may draw from any generator of JAX: they run the sampler, clip and noise code that ships, and
so test its arithmetic, not the generator under it.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
import scipy.stats

from fedvi import errors
from fedvi.audit.findings import Finding
from fedvi.privacy import events
from fedvi.privacy.accountants import Accountant
from fedvi.privacy.release import Batch, Mechanism, Sampler, clipped_sum, decoded, release
from fedvi.typing import Key

__all__ = [
    "Case",
    "Side",
    "Trials",
    "aggregate",
    "case",
    "check_sampler",
    "judge",
    "profile",
    "shipped",
    "worst_pairs",
]

Trials = Callable[[Key, Any, Any], Any]
"""(key, contributions [slots, d], valid [slots]) → one trial's noised totals, [steps].

Each is the total's projection on the direction of ``worst_pairs``, in clip norms.
"""

_BEYOND = 10.0
"""Contributions are so many clip norms long, so that the clip has work to do."""

_WIDTH = 3
_CHOOSING = 4
_CONFIDENCE = 0.99
_ERROR = (1.0 - _CONFIDENCE) / 2.0
"""Of each of the two bounds of a gap."""

_CONFIDENCE_EPSILON = 0.95
_THRESHOLDS = 200
_FEWEST = 5
_EPSILONS = 24
_FACTORS = (0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.03, 1.06, 1.1, 1.15, 1.25, 1.5, 2.0, 3.0)
_CHUNK = 2048
_HUGE = 1e300


class Side(NamedTuple):
    """One of two neighbouring shards of contributions: [slots, d], and which slots are filled."""

    contributions: np.ndarray
    valid: np.ndarray


class Mixture(NamedTuple):
    """A claimed law of one total: Σ wᵢ N(mᵢ, σ²), in clip norms, along the audit's direction."""

    weights: tuple[float, ...]
    means: tuple[float, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A pair of shards and the laws by which outcomes are scored.

    A score is any function of the outcome; a poor one costs power and never validity.
    """

    name: str
    left: Side
    right: Side
    left_law: Mixture
    right_law: Mixture

    def score(self, outcomes: np.ndarray, sigma: float) -> np.ndarray:
        """Returns Σ_t log p(x_t)/p′(x_t) for outcomes [trials, steps]."""
        return np.asarray(
            (_log_density(outcomes, self.left_law, sigma))
            - _log_density(outcomes, self.right_law, sigma)
        ).sum(axis=1)


def worst_pairs(step: events.Event, relation: events.Relation, slots: int) -> list[Case]:
    """Returns the pairs on which a release of this price does worst, and some that catch a wrong price.

    ``nothing else``: all other records contribute zero, the changed one +C, and in the other shard
    nothing (add_remove) or −C (substitute). ``the rest opposed``: all others contribute −C, so that
    a batch of fixed size tells by which record it left out (specs/accounting.md §0.1).

    Args:
      step: the event of one noised total.
      relation: that of the claim.
      slots: the number of slots of a shard; all are filled.

    Raises:
      UnsupportedEvent: if the event is not one noised sum, sampled or not.
    """
    up = np.full(_WIDTH, _BEYOND / math.sqrt(_WIDTH))
    others = np.zeros((slots, _WIDTH))
    changed = slots // 2
    full = np.ones(slots, bool)

    def side(rest: np.ndarray, sign: float) -> Side:
        contributions = rest.copy()
        contributions[changed] = sign * up
        valid = full.copy()
        valid[changed] = sign != 0.0
        return Side(contributions, valid)

    added = relation == "add_remove"
    other_sign = 0.0 if added else -1.0
    match step:
        case events.Gaussian() | events.DiscreteGaussian():
            rate, batch = 1.0, slots
        case events.PoissonSampled(rate, events.Gaussian() | events.DiscreteGaussian()):
            batch = round(rate * slots)
        case events.WithoutReplacement(batch, _, events.Gaussian() | events.DiscreteGaussian()):
            rate = step.rate
        case _:
            raise errors.UnsupportedEvent(
                f"the profile audit has no worst-case pair for {step}",
                "it knows one Gaussian sum of all records, of a Poisson batch, or of a fixed-size one",
            )
    inside = (1.0 - rate, rate)
    quiet = Case(
        "nothing else",
        side(others, 1.0),
        side(others, other_sign),
        Mixture(inside, (0.0, 1.0)),
        Mixture(inside, (0.0, other_sign)),
    )
    if isinstance(step, events.Gaussian | events.DiscreteGaussian):
        return [quiet]
    opposed = Case(
        "the rest opposed",
        side(np.broadcast_to(-up, others.shape), 1.0),
        side(np.broadcast_to(-up, others.shape), other_sign),
        Mixture(inside, (-float(batch), 2.0 - batch)),
        Mixture((1.0,), (-float(batch),)),
    )
    return [opposed] if isinstance(step, events.WithoutReplacement) else [quiet, opposed]


def case(name: str, left: Side, right: Side, left_law: Mixture, right_law: Mixture) -> Case:
    """Returns a pair of one's own, e.g. of clients instead of records."""
    return Case(name, left, right, left_law, right_law)


def shipped(sampler: Sampler, mechanism: Mechanism, clip_norm: float, steps: int) -> Trials:
    """Returns the trial that runs the product: draw, clip and sum, noise, ``steps`` times."""
    return functools.partial(_trial, sampler, mechanism, clip_norm, steps)


def aggregate(
    share: Mechanism, clip_norm: float, clients: int, view: str, reporting: int | None = None
) -> Trials:
    """Returns the trial of one round of ``clients``, each adding its share of the noise.

    Rows of ``contributions`` are clients, each with its clipped change. ``view`` is "aggregate",
    where only the sum of the reporting clients is seen, or "message", where that of the changed
    client (the middle one) is.
    """
    shown = range(clients if reporting is None else reporting)
    # The changed client reports, whoever else drops out.
    rows = sorted({clients // 2, *list(shown)[: len(shown) - 1]})

    def trial(key: Key, contributions: Any, valid: Any) -> Any:
        keys = jax.random.split(key, clients)
        total = jnp.zeros((1,))
        for row in [clients // 2] if view == "message" else rows:
            total = total + _trial(
                _whole(1),
                share,
                clip_norm,
                1,
                keys[row],
                contributions[row][None],
                valid[row][None],
            )
        return total

    return trial


def profile(
    trials: Trials,
    pair: Case,
    claim: events.Event,
    accountant: Accountant,
    delta: float,
    key: Key,
    count: int = 40_000,
) -> Finding:
    """Runs ``count`` trials on either side of a pair, and judges the claimed profile.

    Reports ε's certified lower bound at ``delta`` (95 %), the profile gap (99 %; a gap above zero
    refutes the claim) and by how much the noise could at most be larger than claimed.

    Args:
      trials: what runs; ``shipped(…)`` for the product.
      pair: from ``worst_pairs``.
      claim: the event of all steps together; the noise multiplier of its sums scores the outcomes.
      accountant: whose δ(ε) is the claim.
      delta: of the statement.
      key: for the audit's trials.
      count: trials a side.
    """
    left = run(trials, pair.left, jax.random.fold_in(key, 0), count)
    right = run(trials, pair.right, jax.random.fold_in(key, 1), count)
    sigma = _noise_multiplier(claim)
    return judge(
        pair.score(left, sigma), pair.score(right, sigma), pair.name, claim, accountant, delta
    )


def run(trials: Trials, side: Side, key: Key, count: int) -> np.ndarray:
    """Returns the outcomes of independent trials on one shard: float64 [count, steps]."""
    many = _compiled(trials)
    contributions = jnp.asarray(side.contributions, jnp.float32)
    valid = jnp.asarray(side.valid)
    parts, done = [], 0
    chunk = min(count, _CHUNK)
    while done < count:
        keys = jax.random.split(jax.random.fold_in(key, done), chunk)
        parts.append(np.asarray(many(keys, contributions, valid), np.float64))
        done += chunk
    return np.concatenate(parts)[:count]


def judge(
    left: np.ndarray,
    right: np.ndarray,
    name: str,
    claim: events.Event,
    accountant: Accountant,
    delta: float,
) -> Finding:
    """Judges a claim from scores of both shards, each [trials]."""
    # Any function of an outcome may score it. None is dropped: that one is not a number may tell.
    left, right = (
        np.nan_to_num(scores, nan=_HUGE, posinf=_HUGE, neginf=-_HUGE) for scores in (left, right)
    )
    chosen, decided = zip(
        *(np.split(part, [part.size // _CHOOSING]) for part in (left, right)), strict=True
    )
    stated = accountant.epsilon(claim, delta)
    grid = _epsilons(stated)

    tails = _tails(chosen)

    def choose(event: events.Event) -> "_Choice":
        curve = np.array([accountant.delta(event, float(epsilon)) for epsilon in grid])
        return _choose(tails, decided[0].size, grid, curve)

    choice = choose(claim)
    found, at = _gap(choice, decided), choice.epsilon
    certified = _epsilon_lower(chosen, decided, delta)
    below = _smallest_refuted(lambda factor: _gap(choose(_scaled(claim, factor)), decided) > 0.0)
    passed = not found > 0.0
    noise = _noise_multiplier(claim)
    smallest = "none" if below is None else f"{below:g} ×"
    return Finding(
        "profile",
        f"profile, {name}",
        passed,
        f"gap {found:+.4f} at ε {at:.3g}; ε ≥ {certified:.3g} shown of {stated:.4g} claimed; smallest "
        f"refuted noise: {smallest} the claimed",
        f"{left.size + right.size} trials are consistent with the claimed δ(ε)"
        if passed
        else "the claim is refuted: outputs tell the two shards apart better than it allows",
        {
            "gap": found,
            "at_epsilon": at,
            "epsilon_lower": certified,
            "epsilon_claimed": stated,
            "delta": delta,
            "noise_multiplier_claimed": noise,
            "refuted_factor": below,
            "trials": left.size + right.size,
        },
    )


def check_sampler(sampler: Sampler, step: events.Event, slots: int, key: Key) -> list[Finding]:
    """Tests a sampler's draws against its price: inclusion and the law of batch sizes.

    Each check fails by chance once in ten thousand.

    Args:
      sampler: as shipped.
      step: the event that one draw is charged as.
      slots: the number of slots of a shard; all filled.
      key: for the audit's draws.
    """
    draws = int(np.clip(2_000_000 // max(slots, sampler.capacity), 50, 4000))
    indices, mask = _draws(sampler, slots, jax.random.split(key, draws))
    sizes = mask.sum(axis=1)
    chosen = indices[mask]
    rate, poisson = 1.0, False
    match step:
        case events.PoissonSampled(rate):
            poisson = True
        case events.WithoutReplacement():
            rate = step.rate
    findings = []
    total, expected = int(sizes.sum()), rate * slots * draws
    law = scipy.stats.binom(slots * draws, rate)
    chance = 1.0 if total == expected else 2.0 * float(min(law.cdf(total), law.sf(total - 1)))
    twice = any(
        len(np.unique(row[kept])) != kept.sum() for row, kept in zip(indices, mask, strict=True)
    )
    findings.append(
        Finding(
            "sampler",
            "sampling rate",
            chance >= 1e-4 and not twice,
            f"{total} records in {draws} batches, priced {expected:.6g}",
            "records enter batches at the priced rate, none twice"
            if chance >= 1e-4 and not twice
            else "a record is in one batch twice"
            if twice
            else "records enter batches at another rate than the priced one",
            {"p_value": min(chance, 1.0)},
        )
    )
    if rate == 1.0:
        return findings
    counts = np.bincount(chosen, minlength=slots)
    spread = float(((counts - rate * draws) ** 2).sum() / (draws * rate * (1.0 - rate)))
    # Exactly χ² in the limit of many draws; with few, its tail is that of a sum of binomials.
    chance = 2.0 * float(min(_chi2_sf(spread, slots), scipy.stats.chi2.cdf(spread, slots)))
    passed = chance >= 1e-4
    findings.append(
        Finding(
            "sampler",
            "all slots alike",
            passed,
            f"a slot is in {counts.min()} to {counts.max()} of {draws} batches",
            "no slot is drawn more often than another"
            if passed
            else "some slots are drawn more often, or more evenly, than independent batches would",
            {"p_value": min(chance, 1.0)},
        )
    )
    if poisson:
        variance = float(sizes.var(ddof=1)) / (slots * rate * (1.0 - rate))
        # The variance of a binomial's sample variance, from its fourth cumulant.
        excess = (1.0 - 6.0 * rate * (1.0 - rate)) / (slots * rate * (1.0 - rate))
        deviation = math.sqrt((2.0 + excess) / (draws - 1))
        passed = abs(variance - 1.0) <= 4.5 * deviation
        findings.append(
            Finding(
                "sampler",
                "law of batch sizes",
                passed,
                f"variance {variance:.3g} × binomial; sizes {sizes.min()} to {sizes.max()}",
                "batch sizes vary as Poisson sampling says"
                if passed
                else "batch sizes do not vary as in Poisson sampling, whose price is charged: "
                "a fixed-size batch costs more",
                {"variance_ratio": variance},
            )
        )
    else:
        passed = bool((sizes == sizes[0]).all())
        findings.append(
            Finding(
                "sampler",
                "law of batch sizes",
                passed,
                f"sizes {sizes.min()} to {sizes.max()}",
                "every batch takes the same number of slots"
                if passed
                else "batch sizes vary, but are priced as fixed",
            )
        )
    return findings


def _trial(
    sampler: Sampler,
    mechanism: Mechanism,
    clip_norm: float,
    steps: int,
    key: Key,
    contributions: Any,
    valid: Any,
) -> Any:
    direction = jnp.full((_WIDTH,), 1.0 / (math.sqrt(_WIDTH) * clip_norm), jnp.float32)

    def step(nothing: Any, step_key: Any) -> Any:
        sampling_key, noise_key = jax.random.split(step_key)
        batch = sampler.draw(sampling_key, valid)
        rows = contributions[batch.indices] * jnp.float32(clip_norm)
        bounded = clipped_sum(rows, clip_norm, batch, mechanism)
        noised = decoded(release(noise_key, bounded, mechanism))
        return nothing, (noised.value * direction).sum()

    _, outcomes = jax.lax.scan(step, (), jax.random.split(key, steps))
    return outcomes


@dataclasses.dataclass(frozen=True)
class _Whole:
    """Takes every row; a sampler of the audit's own, so that one client can be a shard of one row."""

    capacity: int
    rate: float = 1.0

    def draw(self, key: Key, valid: Any) -> Any:
        """Returns all rows."""
        return Batch(jnp.arange(self.capacity), jnp.asarray(valid, bool), self)

    def event(self, inner: events.Event) -> events.Event:
        """Returns ``inner``."""
        return inner


def _whole(rows: int) -> _Whole:
    return _Whole(rows)


@functools.lru_cache(maxsize=16)
def _compiled(trials: Trials) -> Any:
    return jax.jit(jax.vmap(trials, in_axes=(0, None, None)))


def _draws(sampler: Sampler, slots: int, keys: Any) -> tuple[np.ndarray, np.ndarray]:
    valid = jnp.ones((slots,), bool)

    @jax.jit
    def many(keys: Any) -> Any:
        def one(key: Key) -> Any:
            batch = sampler.draw(key, valid)
            return batch.indices, batch.mask

        return jax.lax.map(one, keys)

    indices, mask = many(keys)
    return np.asarray(indices), np.asarray(mask)


def _chi2_sf(value: float, count: int) -> float:
    return float(scipy.stats.chi2.sf(value, count))


def _log_density(x: np.ndarray, law: Mixture, sigma: float) -> np.ndarray:
    """Σ over components of log w − (x − m)²/2σ², up to the constant that cancels in a ratio."""
    parts = [
        math.log(weight) - (x - mean) ** 2 / (2.0 * sigma**2)
        for weight, mean in zip(law.weights, law.means, strict=True)
        if weight > 0.0
    ]
    return np.asarray(scipy.special.logsumexp(np.stack(parts), axis=0))


def _epsilons(stated: float) -> np.ndarray:
    """Where the profile is compared: 0 and up to twice the stated ε, denser at small ones."""
    top = 2.0 * stated if math.isfinite(stated) else 10.0
    top = min(max(top, 0.1), 30.0)
    return np.concatenate([[0.0], np.geomspace(top / 100.0, top, _EPSILONS - 1)])


_Halves = Sequence[np.ndarray]


class _Tails(NamedTuple):
    """Sets {score above threshold} or {score at most threshold}, and their rates on both sides."""

    thresholds: np.ndarray
    hits: np.ndarray
    misses: np.ndarray
    above: bool
    trials: tuple[int, int]


class _Choice(NamedTuple):
    """What the first trials chose: a set, and where on the claimed curve it is judged."""

    threshold: float
    above: bool
    epsilon: float
    stated: float


def _tails(chosen: _Halves) -> list[_Tails]:
    """Takes quantiles of both sides' scores as thresholds, the far tails among them."""
    levels = scipy.special.expit(np.linspace(-8.0, 8.0, _THRESHOLDS))
    thresholds = np.unique(np.concatenate([np.quantile(scores, levels) for scores in chosen]))
    tails = []
    for above in (True, False):
        hit, miss = chosen if above else chosen[::-1]
        counts = _counts(hit, thresholds, above), _counts(miss, thresholds, above)
        tails.append(_Tails(thresholds, *counts, above, (hit.size, miss.size)))
    return tails


def _counts(scores: np.ndarray, thresholds: np.ndarray, above: bool) -> np.ndarray:
    ordered = np.sort(scores)
    below = np.searchsorted(ordered, thresholds, side="right")
    return np.asarray(scores.size - below if above else below)


def _lower(count: float | int, trials: int, error: float) -> float:
    """Clopper–Pearson's lower bound."""
    return 0.0 if count == 0 else float(scipy.special.betaincinv(count, trials - count + 1, error))


def _upper(count: float | int, trials: int, error: float) -> float:
    """Clopper–Pearson's upper bound."""
    if count == trials:
        return 1.0
    return float(scipy.special.betaincinv(count + 1, trials - count, 1.0 - error))


def _choose(tails: Sequence[_Tails], trials: int, grid: np.ndarray, curve: np.ndarray) -> _Choice:
    """Returns the set and ε of the largest gap that ``trials`` more would certify at these rates."""
    best, choice = -math.inf, _Choice(math.inf, True, 0.0, 1.0)
    ratios = np.exp(grid)[:, None]
    for sets in tails:
        # One miss more, so that a tail without any is not taken for a certain one.
        hits = sets.hits * (trials / sets.trials[0])
        misses = np.minimum((sets.misses + 1.0) * (trials / sets.trials[1]), trials - 1.0)
        low = scipy.special.betaincinv(np.maximum(hits, 1.0), trials - hits + 1.0, _ERROR)
        high = scipy.special.betaincinv(misses + 1.0, trials - misses, 1.0 - _ERROR)
        gaps = low[None, :] - ratios * high[None, :] - curve[:, None]
        gaps[:, sets.hits < _FEWEST] = -math.inf  # a set that is never met shows nothing
        at, which = np.unravel_index(int(gaps.argmax()), gaps.shape)
        if gaps[at, which] > best:
            best = float(gaps[at, which])
            choice = _Choice(
                float(sets.thresholds[which]), sets.above, float(grid[at]), float(curve[at])
            )
    return choice


def _gap(choice: _Choice, decided: _Halves) -> float:
    """Returns p_low − e^ε·p′_high − δ(ε) of the chosen set.

    Guarantee: if the claim holds it exceeds 0 with probability at most 1 %: p_low > p or
    p′_high < p′ would be needed, and each Clopper–Pearson bound fails with half of that at most.
    """
    hit, miss = decided if choice.above else decided[::-1]
    threshold = np.array([choice.threshold])
    hits, misses = (int(_counts(scores, threshold, choice.above)[0]) for scores in (hit, miss))
    attained = _lower(hits, hit.size, _ERROR)
    return attained - math.exp(choice.epsilon) * _upper(misses, miss.size, _ERROR) - choice.stated


def _epsilon_lower(chosen: _Halves, decided: _Halves, delta: float) -> float:
    """log((TPR_lo − δ)/FPR_up), at the threshold and direction that the first trials like best."""
    error = (1.0 - _CONFIDENCE_EPSILON) / 2.0

    def bound(hits: float, misses: float, trials: tuple[int, int]) -> float:
        attained = _lower(hits, trials[0], error) - delta
        return math.log(attained / _upper(misses, trials[1], error)) if attained > 0.0 else 0.0

    best, certified = 0.0, 0.0
    for sets in _tails(chosen):
        values = [
            bound(float(hits), float(misses), sets.trials)
            for hits, misses in zip(sets.hits, sets.misses, strict=True)
        ]
        if max(values) > best:
            best, place = max(values), values.index(max(values))
            hit, miss = decided if sets.above else decided[::-1]
            threshold = sets.thresholds[place : place + 1]
            counts = [float(_counts(scores, threshold, sets.above)[0]) for scores in (hit, miss)]
            certified = max(0.0, bound(counts[0], counts[1], (hit.size, miss.size)))
    return certified


def _smallest_refuted(refuted: Callable[[float], bool]) -> float | None:
    """Bisects the list of factors: a claim of more noise is refuted more easily."""
    low, high = 0, len(_FACTORS)
    while low < high:
        middle = (low + high) // 2
        if refuted(_FACTORS[middle]):
            high = middle
        else:
            low = middle + 1
    return _FACTORS[low] if low < len(_FACTORS) else None


def _noise_multiplier(event: events.Event) -> float:
    match event:
        case events.Gaussian(sigma) | events.DiscreteGaussian(sigma):
            return sigma
        case events.PoissonSampled(_, inner) | events.WithoutReplacement(_, _, inner):
            return _noise_multiplier(inner)
        case events.Repeated(inner):
            return _noise_multiplier(inner)
        case _:
            raise errors.UnsupportedEvent(
                f"the profile audit takes equal steps, found {event}", "audit its parts one by one"
            )


def _scaled(event: events.Event, factor: float) -> events.Event:
    """The same claim with ``factor`` times the noise."""
    match event:
        case events.Gaussian() | events.DiscreteGaussian():
            return dataclasses.replace(event, noise_multiplier=event.noise_multiplier * factor)
        case events.PoissonSampled() | events.WithoutReplacement() | events.Repeated():
            return dataclasses.replace(event, inner=_scaled(event.inner, factor))
        case _:
            return event
