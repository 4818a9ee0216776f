"""Says in words what a plan of `fedvi.DPSVI` means, and which change would help most.

A study is advised in ``fedvi.planning.advice``; docs/architecture.md says why there are two places. The
module is not called ``advice``, since that is the name of its function in ``fedvi.privacy``.
"""

import dataclasses
import decimal
import math
import textwrap
from typing import Any, NamedTuple

from fedvi import errors
from fedvi.privacy import events, mechanisms, statement
from fedvi.privacy.accountants import Accountant
from fedvi.privacy.delta_parts import with_tables
from fedvi.privacy.descent import Descent
from fedvi.privacy.ledger import TABLES_SHARE
from fedvi.privacy.sampling.feistel import Feistel, feistel
from fedvi.privacy.sampling.poisson import Poisson, poisson
from fedvi.privacy.suggesting import FIRST_RATE, STEPS

__all__ = ["Lever", "advice", "levers", "power_bound", "signal_to_noise"]

# δ · max_records below which δ is small enough; a gradient of a record is seldom so long.
_DELTA_SMALL, _LONG = 0.1, 1e4
# False-alarm rates of an adversary's test.
_FALSE_ALARMS = (0.01, 0.1)
# The guarantee is called weak from this power on, at the last of these rates.
_POWERFUL = 0.5
# The number of ε at which the privacy curve is evaluated to bound an adversary's power.
_POINTS = 32
# Levers are compared, not certified: a coarse grid of losses and a short search are enough.
_COARSE, _CLOSE, _TRIES = 0.01, 0.05, 6
_WIDTH = 100
_NEIGHBOURS = {
    "add_remove": "in the table or not in it",
    "substitute": "in the table or replaced by another",
}


class Lever(NamedTuple):
    """A possible change of a plan, and the factor by which it raises the ratio of signal to noise.

    Attributes:
      name: what is changed.
      step: the factor in one step.
      run: the factor over a run, whose noise averages out as the square root of the number of steps.
      keeps: whether the promise stays the same.
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

    Guarantee: the text depends only on the plan and the other arguments, which are public; no record is
    read. It promises nothing beyond the plan.

    Args:
      numbers: how many numbers a step releases: the parameters of model and guide or, with aligned
        gradients, the unconstrained coordinates of the global latents. If left out, the text does not
        compare signal and noise.
      records: how many records there are, if that is public; by default the plan's ``max_records``.
      latents: the number of unconstrained coordinates of the global latents; if left out, aligned
        gradients are judged for a guide with two numbers a coordinate, as ``AutoNormal`` has.

    Raises:
      ConfigError: a count is below 1, or ``records`` is above ``max_records``.

    >>> from fedvi.privacy.descent import sgd
    >>> plan = sgd(epsilon=1.0, delta=1e-6, steps=400, sampler="full", max_records=20_000)
    >>> print(advice(plan, numbers=6).splitlines()[0])
    This text follows from the plan and from public counts. No record was read.
    """
    most = _max_records(plan)
    for name, count in (("numbers", numbers), ("records", records), ("latents", latents)):
        if count is not None and count < 1:
            raise errors.ConfigError(f"{name} is {count}, expected at least 1")
    if records is not None and records > most:
        raise errors.ConfigError(
            f"records is {records}, expected at most max_records, {most}",
            "plan for the largest possible number: fedvi.privacy.sgd(max_records=…)",
        )
    records = most if records is None else records
    parts = [
        ("", _opening(plan)),
        ("Promise", _promise(plan, numbers)),
        ("Delta", _delta(plan, most)),
        ("Noise", _noise(plan, numbers, records)),
        ("What would help", _help(plan, numbers, records, latents)),
        ("Clip norm", _clip(plan, numbers, records, latents)),
    ]
    return "\n".join(
        line
        for title, sentences in parts
        if sentences
        for line in ([f"\n{title}"] if title else []) + textwrap.wrap(" ".join(sentences), _WIDTH)
    )


def power_bound(plan: Descent, false_positives: float, numbers: int | None = None) -> float:
    """Bounds the power of any test that tells two neighbouring tables apart at a false-alarm rate α.

    Guarantee: an adversary who sees everything that a plan's runs release, knows all other records, and
    raises a false alarm with probability at most ``false_positives`` detects a record with at most this
    probability. It is 1 where nothing is protected. The bounds of ``statement.detected`` are taken over a
    grid of ε.

    Args:
      false_positives: α, in [0, 1].
      numbers: how many numbers a step releases, which sets the share of δ for the tables of the noise;
        by default the share that calibration reserves.
    """
    if not 0.0 <= false_positives <= 1.0:
        raise errors.ConfigError(
            f"false_positives is {false_positives}, expected a number from 0 to 1"
        )
    if not plan.protected:
        return 1.0
    accountant, spare = _priced(plan, plan.relation, numbers)
    event = plan.total
    # No larger ε: what the tables take of δ grows with it, and was checked at the promise's own.
    curve = [(plan.epsilon, plan.delta)]
    for point in range(_POINTS):
        epsilon = plan.epsilon * point / _POINTS
        curve.append((epsilon, accountant.delta(event, epsilon) + spare))
    return statement.detected(curve, false_positives)


def signal_to_noise(plan: Descent, numbers: int, records: int | None = None) -> float:
    """Returns the largest possible mean gradient of a step ÷ its noise: batch ÷ (σ · √numbers).

    The mean of clipped gradients has at most the norm C, and only if all of them have one direction. The
    noise has a norm of about σ · C · √numbers ÷ batch, where batch is the expected number of records.

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
    """Returns possible changes of a plan, the one that helps a run most first.

    Each changes one thing and calibrates the noise again to the budget. A change that is impossible or
    has no price is left out: a batch of all records cannot be doubled.
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
    said = ["This text follows from the plan and from public counts. No record was read."]
    if plan.mark:
        said.append(f"MARK: {plan.mark}.")
    return said


def _promise(plan: Descent, numbers: int | None) -> list[str]:
    if not plan.protected:
        return [
            "Nothing is promised: epsilon is infinite. Do not use this plan on records of people."
        ]
    said = [
        f"Epsilon is {_up(plan.epsilon)} at delta {_up(plan.delta)} under {plan.relation}, by the "
        f"accountant {plan.accountant.name}, for "
        + (f"all {plan.runs} runs together." if plan.runs > 1 else "one run.")
    ]
    said.append(_other_relation(plan, numbers))
    said.append(
        f"In odds: the releases change the odds that a certain record is {_NEIGHBOURS[plan.relation]} by a "
        f"factor of at most {_up(math.exp(min(plan.epsilon, 700.0)))}, except with probability delta."
    )
    powers = [power_bound(plan, rate, numbers) for rate in _FALSE_ALARMS]
    noticed = "; ".join(
        f"in at most {_up(100.0 * power)}% of cases with false alarms in {rate:.0%} (even odds become at "
        f"most {_up(power / rate)} to 1)"
        for rate, power in zip(_FALSE_ALARMS, powers, strict=True)
    )
    said.append(
        f"An adversary who knows all other records and tests for this one detects it {noticed}. A guess "
        "detects it as often as it raises false alarms."
    )
    if plan.capped:
        said.append(f"NOTE: {plan.capped}.")
    if powers[-1] > _POWERFUL:
        said.append("WARNING: the last figure is more than a half; such a guarantee is weak.")
    return said


def _other_relation(plan: Descent, numbers: int | None) -> str:
    other: events.Relation = "substitute" if plan.relation == "add_remove" else "add_remove"
    accountant, spare = _priced(plan, other, numbers)
    event = plan.total
    if not accountant.supports(event):
        return f"Under {other} this accountant has no price for batches of this kind."
    try:
        epsilon = accountant.epsilon(event, plan.delta - spare)
    except errors.FedviError as error:
        return f"Under {other} there is no price: {error.message}."
    return (
        f"Under {other}, where a record is {_NEIGHBOURS[other]}, epsilon is {_up(epsilon)} at the same "
        "delta. Compare epsilons of two systems under the same relation only."
    )


def _delta(plan: Descent, most: int) -> list[str]:
    if not plan.protected:
        return []
    expected = plan.delta * most
    said = [
        f"Delta times max_records ({most}) is {expected:.3g}. A mechanism that publishes each record with "
        "probability delta satisfies this delta, and would publish that many records on average."
    ]
    if expected >= statement.DELTA_TOO_LARGE:
        said.append(f"WARNING: delta is too large; take one below {0.1 / most:.1g}.")
    elif expected >= _DELTA_SMALL:
        said.append(f"NOTE: delta is borderline; below {0.1 / most:.1g} it would be small enough.")
    else:
        said.append("This is small enough.")
    if most < statement.FEW_RECORDS:
        said.append(
            f"WARNING: max_records is {most}; no more are read, and the noise hides what so few say."
        )
    return said


def _noise(plan: Descent, numbers: int | None, records: int) -> list[str]:
    sampler, noise = plan.sampler, plan.mechanism.noise_multiplier
    batch = _batch(plan, records)
    said = [
        f"A step uses each record with probability {sampler.rate:.3g}: {batch:.4g} of {records} records on "
        f"average. The {plan.steps} steps of a run pass over the data {plan.steps * sampler.rate:.3g} "
        "times."
    ]
    if noise == 0.0:
        return [*said, "There is no noise."]
    each = noise / batch
    said.append(
        f"The noise multiplier is {noise:.4g}: the noise on each number has a standard deviation of "
        f"{noise:.4g} clip norms on the sum over a batch, and of {each:.3g} on the mean."
    )
    if numbers is None:
        said.append(
            "Give `numbers`, how many a step releases, to compare the signal with the noise."
        )
        return said
    ratio = signal_to_noise(plan, numbers, records)
    over = ratio * math.sqrt(plan.steps)
    said.append(
        f"For all {numbers} numbers together, the noise on the mean has a norm of {1.0 / ratio:.3g} clip "
        f"norms and the signal of at most 1. Signal to noise is at most {ratio:.3g} in a step and "
        f"{over:.3g} over a run, whose noise averages out."
    )
    if over < 1.0:
        said.append(
            "WARNING: the signal drowns even over the whole run: the result would be noise."
        )
    elif ratio < 1.0:
        said.append(
            "WARNING: the signal drowns in a single step. Only many steps bring it out: keep the learning "
            "rate small, and average the last parameters."
        )
    return said


def _help(plan: Descent, numbers: int | None, records: int, latents: int | None) -> list[str]:
    found = levers(plan, numbers, latents)
    if not found:
        return []
    said = [
        "With the noise calibrated again to the same budget, signal to noise changes by a factor of "
        + "; ".join(
            f"{lever.run:.3g} over a run and {lever.step:.3g} in a step by {lever.name}"
            for lever in found
        )
        + "."
    ]
    kept = [lever for lever in found if lever.keeps and lever.run > 1.0]
    if kept:
        said.append(
            f"Of the changes that keep the promise, {kept[0].name} helps most: {kept[0].run:.3g}."
        )
    else:
        said.append("No single change that keeps the promise would help.")
    if any(lever.name == "half the steps" for lever in found):
        said.append("Take fewer steps only if the descent would converge before its last step.")
    if latents is None:
        said.append(
            "The figure for aligned gradients holds for a guide with two numbers a latent coordinate, such "
            "as AutoNormal; give `latents` for another guide."
        )
    doubled = _doubled(plan.sampler)
    if doubled is not None:
        said.append(
            f"A batch of {2.0 * _batch(plan, records):.4g} records takes twice the time a step."
        )
    return said


def _clip(plan: Descent, numbers: int | None, records: int, latents: int | None) -> list[str]:
    if not math.isfinite(plan.clip_norm):
        return ["Nothing is clipped."]
    noise, batch = plan.mechanism.noise_multiplier, _batch(plan, records)
    length = (
        ""
        if numbers is None
        else f", and {noise * plan.clip_norm * math.sqrt(numbers) / batch:.3g} on all of them together"
    )
    long = (
        f"WARNING: clip_norm is {plan.clip_norm:.4g}; few gradients of a record come near, and the noise "
        "drowns the others. Begin with 1."
    )
    return [
        *([long] if plan.clip_norm >= _LONG and noise else []),
        f"The clip norm is {plan.clip_norm:.4g}. A longer gradient of a record is shortened to it, which "
        "biases the result towards the majority of records. The noise is proportional to it: now "
        f"{noise * plan.clip_norm / batch:.3g} on each number of the mean{length}.",
        "Start between a tenth of the median norm and the median. Take the norms from public or simulated "
        "records: the norms of these records are private, and so is a choice made by looking at them.",
        _suggested(latents),
    ]


def _suggested(latents: int | None) -> str:
    root = "the root of the number of latents" if latents is None else f"{math.sqrt(latents):.3g}"
    return (
        f"For columns of about size 1 and aligned gradients fedvi.privacy.suggest takes {root}, with "
        f"{STEPS} steps at learning rates of Adam that fall from {FIRST_RATE:g} to 0."
    )


def _priced(
    plan: Descent, relation: events.Relation, numbers: int | None
) -> tuple[Accountant, float]:
    """Returns the accountant under a relation, and the share of δ reserved for the tables of the noise."""
    # Each accountant is a dataclass, which the protocol does not say.
    stated: Any = plan.accountant
    accountant = dataclasses.replace(stated, relation=relation)
    if numbers is None:
        return accountant, plan.delta * TABLES_SHARE
    return with_tables(accountant, plan.fitted(numbers).distance(numbers)), 0.0


def _needed(plan: Descent, other: Descent) -> float:
    """Returns the noise multiplier at which ``other`` costs as much as ``plan``, to about 1 %.

    For comparisons only: both are priced on a coarse grid, where the accountant has one, and nothing is
    certified. The price is nearly a power of the noise, so a secant search needs a few steps.
    """
    stated: Any = plan.accountant
    accountant = (
        stated if not hasattr(stated, "interval") else dataclasses.replace(stated, interval=_COARSE)
    )

    def price(plan: Descent, noise: float) -> float:
        noised = dataclasses.replace(plan, mechanism=mechanisms.gaussian(noise))
        return math.log(accountant.epsilon(noised.total, plan.delta))

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
    """Returns the sampler with batches twice as large; None if that exceeds ``max_records``."""
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
