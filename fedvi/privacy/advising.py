"""Explains in words what a plan means, and which change would help most.

Not named after its function: ``fedvi.privacy.advice`` could not be both.
"""

import dataclasses
import decimal
import math
import textwrap
from typing import Any, NamedTuple

from fedvi import errors
from fedvi.privacy import events, mechanisms
from fedvi.privacy.accountants import Accountant
from fedvi.privacy.delta_parts import with_tables
from fedvi.privacy.descent import Descent
from fedvi.privacy.ledger import TABLES_SHARE
from fedvi.privacy.sampling.feistel import Feistel, feistel
from fedvi.privacy.sampling.poisson import Poisson, poisson

__all__ = ["Lever", "advice", "levers", "power_bound", "signal_to_noise"]

# δ · max_records from which δ is too large, and from which it is small enough to say no more of it.
_DELTA_TOO_LARGE, _DELTA_SMALL = 1.0, 0.1
# How often the test of an adversary may raise a false alarm.
_FALSE_ALARMS = (0.01, 0.1)
# From this power on at the last of them, the guarantee is called weak.
_POWERFUL = 0.5
# At so many ε is the curve looked at that bounds an adversary's power; each gives a bound.
_POINTS = 32
# Levers are compared, not certified: the grid of an accountant's losses, and where a search ends.
_COARSE, _CLOSE, _TRIES = 0.01, 0.05, 6
_WIDTH = 100
_NEIGHBOURS = {
    "add_remove": "in the table or not",
    "substitute": "in the table, or another in its place",
}


class Lever(NamedTuple):
    """Something that could be changed, and by what factor a step's signal then gains on its noise.

    Attributes:
      name: what is done.
      step: the factor in one step.
      run: the factor over all steps of a run, whose noise averages out as the root of their number.
      keeps: whether the promise stays what it was.
    """

    name: str
    step: float
    run: float
    keeps: bool


def advice(
    plan: Descent,
    numbers: int | None = None,
    records: int | None = None,
    latents: int | None = None,
) -> str:
    """Says in plain sentences what a plan promises, what it costs, and what would help most.

    Guarantee: depends on the plan and on the other arguments alone, which are public; no record is
    looked at. Nothing is promised here that the plan does not promise.

    Args:
      numbers: how many numbers a step releases: the parameters of model and guide, or with aligned
        gradients the global latents' unconstrained coordinates. Left out, nothing is said of the
        noise of all of them together.
      records: how many records there are, if that is public; left out, ``max_records`` of the plan.
      latents: the global latents' unconstrained coordinates; left out, aligned gradients are judged
        for a guide with two numbers each, as ``AutoNormal`` has.

    Raises:
      ConfigError: a count is below 1, or ``records`` is above ``max_records``.

    >>> from fedvi.privacy.descent import sgd
    >>> plan = sgd(epsilon=1.0, delta=1e-6, steps=400, sampler="full", max_records=20_000)
    >>> print(advice(plan, numbers=6).splitlines()[0])
    This follows from the plan and from public counts alone: no record was looked at.
    """
    most = _max_records(plan)
    for name, count in (("numbers", numbers), ("records", records), ("latents", latents)):
        if count is not None and count < 1:
            raise errors.ConfigError(f"{name} is {count}, expected at least 1")
    if records is not None and records > most:
        raise errors.ConfigError(
            f"records is {records}, expected at most max_records, {most}",
            "plan for the largest number that there may be: fedvi.privacy.sgd(max_records=…)",
        )
    records = most if records is None else records
    parts = [
        ("", _opening(plan)),
        ("Promise", _promise(plan, numbers)),
        ("Delta", _delta(plan, most)),
        ("Noise", _noise(plan, numbers, records)),
        ("What would help", _help(plan, numbers, records, latents)),
        ("Clip norm", _clip(plan, numbers, records)),
    ]
    return "\n".join(
        line
        for title, sentences in parts
        if sentences
        for line in ([f"\n{title}"] if title else []) + textwrap.wrap(" ".join(sentences), _WIDTH)
    )


def power_bound(plan: Descent, false_positives: float, numbers: int | None = None) -> float:
    """Returns the largest power of any test that tells two neighbouring tables apart at this rate.

    Guarantee: whoever sees all that a plan's runs release, knows all other records, and raises a false
    alarm with probability ``false_positives`` at most, notices a record with at most this probability.
    1 where nothing is protected. Proof: for every ε at which the releases are (ε, δ(ε))-DP, the power is
    at most e^ε · α + δ and at most 1 − e^(−ε) · (1 − δ − α); the smallest over some ε is returned.

    Args:
      false_positives: α, in [0, 1].
      numbers: how many numbers a step releases, for what the tables of the noise take of δ; left out,
        the part that calibration leaves to them.

    Source: Kairouz, Oh and Viswanath (2015), arXiv:1311.0776, Theorem 2.1; of all ε together: Dong,
    Roth and Su (2022), arXiv:1905.02383, Proposition 2.12.
    """
    if not 0.0 <= false_positives <= 1.0:
        raise errors.ConfigError(
            f"false_positives is {false_positives}, expected a number from 0 to 1"
        )
    if not plan.protected:
        return 1.0
    accountant, spare = _priced(plan, plan.relation, numbers)
    event = _total(plan)
    # No larger ε: what the tables take of δ grows with it, and was checked at the promise's own.
    curve = [(plan.epsilon, plan.delta)]
    for point in range(_POINTS):
        epsilon = plan.epsilon * point / _POINTS
        curve.append((epsilon, accountant.delta(event, epsilon) + spare))
    alpha = false_positives
    return min(
        1.0,
        *(math.exp(min(epsilon, 700.0)) * alpha + delta for epsilon, delta in curve),
        *(1.0 - math.exp(-epsilon) * (1.0 - delta - alpha) for epsilon, delta in curve),
    )


def signal_to_noise(plan: Descent, numbers: int, records: int | None = None) -> float:
    """Returns the largest mean gradient of a step ÷ the noise on it: batch ÷ (σ · √numbers).

    The mean of clipped gradients is at most C long, and that only if all of them point the same way.
    The noise's length is about σ · C · √numbers ÷ batch, batch being the expected number of records.

    >>> from fedvi.privacy.descent import sgd
    >>> plan = sgd(noise_multiplier=2.0, delta=1e-6, steps=9, batch=400, max_records=20_000)
    >>> signal_to_noise(plan, numbers=10_000)
    2.0
    """
    noise = plan.mechanism.noise_multiplier * math.sqrt(numbers)
    return _batch(plan, records) / noise if noise else math.inf


def levers(
    plan: Descent, numbers: int | None = None, latents: int | None = None
) -> tuple[Lever, ...]:
    """Returns what could be changed with what it would bring, the most over a run first.

    Each keeps all else, and has the noise calibrated anew to the budget. What cannot be changed, or
    priced, is left out: a batch of all records cannot be doubled.
    """
    if not plan.protected:
        return ()
    noise, found = plan.mechanism.noise_multiplier, []

    def changed(name: str, other: Descent, signal: float, keeps: bool = True) -> None:
        try:
            needed = _needed(plan, other)
        except errors.FedviError:
            return
        step = signal * noise / needed
        found.append(Lever(name, step, step * math.sqrt(other.steps / plan.steps), keeps))

    sampler = _doubled(plan.sampler)
    if sampler is not None:
        changed("twice the records a batch", dataclasses.replace(plan, sampler=sampler), 2.0)
    if plan.steps > 1:
        halved = dataclasses.replace(plan, steps=plan.steps // 2)
        changed("half the steps", halved, 1.0)
    changed("twice the epsilon", dataclasses.replace(plan, epsilon=2.0 * plan.epsilon), 1.0, False)
    if latents is None:
        found.append(Lever("aligned gradients", math.sqrt(2.0), math.sqrt(2.0), True))
    elif numbers is not None and numbers > latents:
        gain = math.sqrt(numbers / latents)
        found.append(Lever("aligned gradients", gain, gain, True))
    return tuple(sorted(found, key=lambda lever: -lever.run))


def _opening(plan: Descent) -> list[str]:
    said = ["This follows from the plan and from public counts alone: no record was looked at."]
    if plan.mark:
        said.append(f"MARK: {plan.mark}.")
    return said


def _promise(plan: Descent, numbers: int | None) -> list[str]:
    if not plan.protected:
        return ["Nothing is promised: epsilon is infinite. Do not use it on records of people."]
    said = [
        f"Epsilon is {_up(plan.epsilon)} at delta {_up(plan.delta)} under {plan.relation}, by the "
        f"accountant {plan.accountant.name}, for "
        + (f"all {plan.runs} runs together." if plan.runs > 1 else "one run.")
    ]
    said.append(_other_relation(plan, numbers))
    said.append(
        f"In odds: what is seen makes it at most {_up(math.exp(min(plan.epsilon, 700.0)))} times as "
        f"likely that a certain record is {_NEIGHBOURS[plan.relation]}, but for a part delta of "
        "probability that nothing is said of."
    )
    powers = [power_bound(plan, rate, numbers) for rate in _FALSE_ALARMS]
    noticed = "; ".join(
        f"with false alarms in {rate:.0%} of cases, in at most {_up(100.0 * power)}% (even odds become "
        f"at most {_up(power / rate)} to 1)"
        for rate, power in zip(_FALSE_ALARMS, powers, strict=True)
    )
    said.append(
        f"Whoever knows all other records and tests for that one notices it, {noticed}. Guessing "
        "notices it as often as it raises false alarms."
    )
    if powers[-1] > _POWERFUL:
        said.append("WARNING: that is more often than not; such a guarantee is weak.")
    return said


def _other_relation(plan: Descent, numbers: int | None) -> str:
    other: events.Relation = "substitute" if plan.relation == "add_remove" else "add_remove"
    accountant, spare = _priced(plan, other, numbers)
    event = _total(plan)
    if not accountant.supports(event):
        return f"Under {other} this accountant has no price for such batches."
    try:
        epsilon = accountant.epsilon(event, plan.delta - spare)
    except errors.FedviError as error:
        return f"Under {other} it has none: {error.message}."
    return (
        f"Under {other}, where a record is {_NEIGHBOURS[other]}, epsilon is {_up(epsilon)} at the same "
        "delta; compare it with other people's numbers under their relation alone."
    )


def _delta(plan: Descent, most: int) -> list[str]:
    if not plan.protected:
        return []
    expected = plan.delta * most
    said = [
        f"Delta times max_records ({most}) is {expected:.3g}: a mechanism that published each record "
        "with probability delta, and nothing else, would pass, and publish so many."
    ]
    if expected >= _DELTA_TOO_LARGE:
        said.append(f"WARNING: delta is too large; take one below {0.1 / most:.1g}.")
    elif expected >= _DELTA_SMALL:
        said.append(f"NOTE: delta is borderline; below {0.1 / most:.1g} it would be small enough.")
    else:
        said.append("That is small enough.")
    return said


def _noise(plan: Descent, numbers: int | None, records: int) -> list[str]:
    sampler, noise = plan.sampler, plan.mechanism.noise_multiplier
    batch = _batch(plan, records)
    said = [
        f"A step sees each record with probability {sampler.rate:.3g}, {batch:.4g} of {records} records "
        f"on average; {plan.steps} steps pass over the data {plan.steps * sampler.rate:.3g} times a run."
    ]
    if noise == 0.0:
        return [*said, "There is no noise."]
    each = noise / batch
    said.append(
        f"The noise multiplier is {noise:.4g}: on the sum over a batch each number has noise of "
        f"{noise:.4g} clip norms, on the mean of a record {each:.3g} (standard deviation)."
    )
    if numbers is None:
        said.append("Give `numbers`, how many a step releases, to hear whether the signal drowns.")
        return said
    ratio = signal_to_noise(plan, numbers, records)
    over = ratio * math.sqrt(plan.steps)
    said.append(
        f"On {numbers} numbers together the noise on the mean is {1.0 / ratio:.3g} clip norms long, "
        f"where the signal is at most 1: signal to noise is at most {ratio:.3g} in a step and "
        f"{over:.3g} over a run, whose noise averages out."
    )
    if over < 1.0:
        said.append(
            "WARNING: the signal drowns, even over the whole run: the result would be noise."
        )
    elif ratio < 1.0:
        said.append(
            "WARNING: the signal drowns in a single step; only many steps bring it out, so keep the "
            "learning rate small and average the last parameters."
        )
    return said


def _help(plan: Descent, numbers: int | None, records: int, latents: int | None) -> list[str]:
    found = levers(plan, numbers, latents)
    if not found:
        return []
    said = [
        "At the same budget, calibrated anew, signal to noise changes by a factor of: "
        + "; ".join(
            f"{lever.run:.3g} over a run and {lever.step:.3g} in a step by {lever.name}"
            for lever in found
        )
        + "."
    ]
    kept = [lever for lever in found if lever.keeps and lever.run > 1.0]
    if kept:
        said.append(f"What helps most and promises the same is {kept[0].name}: {kept[0].run:.3g}.")
    else:
        said.append("Nothing that promises the same would help by itself.")
    if any(lever.name == "half the steps" for lever in found):
        said.append("Fewer steps are for a descent that would have arrived before its last step.")
    if latents is None:
        said.append(
            "The figure for aligned gradients is that of two numbers a latent, as AutoNormal has; give "
            "`latents` for another guide."
        )
    doubled = _doubled(plan.sampler)
    if doubled is not None:
        said.append(
            f"Twice the batch, {2.0 * _batch(plan, records):.4g} records, takes twice the time a step."
        )
    return said


def _clip(plan: Descent, numbers: int | None, records: int) -> list[str]:
    if not math.isfinite(plan.clip_norm):
        return ["Nothing is clipped."]
    noise, batch = plan.mechanism.noise_multiplier, _batch(plan, records)
    length = (
        ""
        if numbers is None
        else f", {noise * plan.clip_norm * math.sqrt(numbers) / batch:.3g} on all"
    )
    return [
        f"The clip norm is {plan.clip_norm:.4g}. A record whose gradient is longer is shortened to it, "
        "which biases the result towards what most records say. The noise grows in step with it: now "
        f"{noise * plan.clip_norm / batch:.3g} on each number of the mean{length}.",
        "A tenth of the median norm to the median is a good start. Take the norms from public or "
        "simulated records: those of these records are private, and so is a choice made by looking "
        "at them.",
    ]


def _priced(
    plan: Descent, relation: events.Relation, numbers: int | None
) -> tuple[Accountant, float]:
    """Returns what prices the plan under a relation, and what is kept of δ for tables beside it."""
    # Each accountant is a dataclass; the protocol need not say so.
    stated: Any = plan.accountant
    accountant = dataclasses.replace(stated, relation=relation)
    if numbers is None:
        return accountant, plan.delta * TABLES_SHARE
    distance = getattr(plan.fitted(numbers).mechanism, "distance", 0.0) * numbers
    return with_tables(accountant, distance), 0.0


def _total(plan: Descent) -> events.Event:
    return events.repeat(plan.step, plan.steps * plan.runs)


def _needed(plan: Descent, other: Descent) -> float:
    """Returns the noise multiplier at which ``other`` costs what ``plan`` does, to about a percent.

    For a comparison: both are priced on a coarse grid, where there is one, and nothing is certified.
    The price is nearly a power of the noise, so the secant's rule finds it in a few steps.
    """
    stated: Any = plan.accountant
    accountant = (
        stated if not hasattr(stated, "interval") else dataclasses.replace(stated, interval=_COARSE)
    )

    def price(plan: Descent, noise: float) -> float:
        noised = dataclasses.replace(plan, mechanism=mechanisms.gaussian(noise))
        return math.log(accountant.epsilon(_total(noised), plan.delta))

    start = plan.mechanism.noise_multiplier
    target = price(plan, start) + math.log(other.epsilon / plan.epsilon)
    here, found = math.log(start), price(other, start) - target
    there = here + found
    for _ in range(_TRIES):
        if abs(there - here) < _CLOSE:
            break
        last, before = here, found
        here, found = there, price(other, math.exp(there)) - target
        if found == before:
            break
        there = here - found * (here - last) / (found - before)
    return math.exp(there)


def _doubled(sampler: Any) -> Any:
    """Returns the sampler of twice the records a batch; None where that is more than there may be."""
    if isinstance(sampler, Poisson) and 2.0 * sampler.rate < 1.0:
        return poisson(2.0 * sampler.rate, sampler.max_records)
    if isinstance(sampler, Feistel) and 2 * sampler.batch <= sampler.max_records:
        return feistel(2 * sampler.batch, sampler.max_records)
    return None


def _batch(plan: Descent, records: int | None) -> float:
    return plan.sampler.rate * (_max_records(plan) if records is None else records)


def _max_records(plan: Descent) -> int:
    return int(getattr(plan.sampler, "max_records"))  # noqa: B009


def _up(value: float) -> str:
    """Writes an upper bound to three digits, rounded up."""
    if not math.isfinite(value):
        return f"{value:g}"
    up = decimal.Context(prec=3, rounding=decimal.ROUND_CEILING)
    return f"{float(up.create_decimal(repr(value))):g}"
