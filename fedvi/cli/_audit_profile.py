"""The audit's layers of thousands of trials, at a study's rate and noise: sampler and profile."""

from typing import Any

import jax

from fedvi.audit import draws
from fedvi.audit import profile as profiles
from fedvi.audit import trials as worst
from fedvi.audit.findings import Finding
from fedvi.privacy import events
from fedvi.privacy.base import Mechanism
from fedvi.privacy.sums import in_sum, of_messages
from fedvi.study.build import Assembly
from fedvi.typing import Key

__all__ = ["TELLING", "profiled"]

TELLING = 1.3
"""A profile that would not refute so much more noise says nothing about the noise that is claimed."""

_ROWS = 1e8
"""Rows that the trials of one worst-case pair may clip: some ten seconds on two cores."""

_MOST_STEPS = 100

# Slots that the trials of a sampler have at most, where as many as one likes have the same chance each.
_SLOTS = 64

_GENERATOR = "the sampler, clip and noise code that ships, driven by another generator, Threefry"

_CLEAR = 0.05
"""A gap of which no second look is needed."""


def profiled(
    assembly: Assembly,
    mechanism: Mechanism,
    clip_norm: float,
    step: events.Event,
    planned: int,
    trials: int,
    key: Key,
) -> list[Finding]:
    """Returns what the sampler and profile layers find.

    Args:
      assembly: a study with a promise.
      step: the event of one release.
      planned: how many there are.
    """
    budget = assembly.budget
    assert budget is not None  # of a private study
    sampler: Any = assembly.sampler
    slots = assembly.study.data.max_records or sampler.capacity
    found = [
        finding._replace(meaning=f"{finding.meaning} (driven by Threefry)")
        for finding in draws.check_sampler(sampler, step, slots, jax.random.fold_in(key, 0))
    ]
    if hasattr(sampler, "resized"):
        # The changed record's chance is the same, and the trials that a batch of thousands would take go
        # into more steps, which tell more.
        slots = min(slots, _SLOTS)
        sampler = sampler.resized(slots)
        step = sampler.event(getattr(step, "inner", step))
    # A batch of everybody is the same in every trial, and is clipped once.
    rows = 1 if isinstance(step, events.Gaussian) else sampler.capacity
    sums = assembly.study.sums
    noises = 1 if sums is None else sums.honest
    steps = max(1, min(planned, _MOST_STEPS, int(_ROWS / (2 * trials * rows * noises))))
    claim = events.repeat(step, steps)
    accountant, what = of_messages(budget.accountant), ""
    shipped = worst.shipped(sampler, mechanism, clip_norm, steps)
    if sums is not None:
        # Whoever sees no message sees so many noises, or more.
        step, what = in_sum(step, noises), f", in sums of {noises} noises"
        claim = events.repeat(step, steps)
        shipped = worst.in_sums(sampler, mechanism, clip_norm, steps, noises)
    relation = accountant.relation
    looks: list[Finding] = []
    for index, pair in enumerate(worst.worst_pairs(step, relation, slots)):
        pair_key = jax.random.fold_in(key, 1 + index)

        def run(key: Key, count: int, pair: worst.Case = pair) -> Finding:
            return profiles.profile(shipped, pair, claim, accountant, budget.delta, key, count)

        finding = run(pair_key, trials)
        if not finding.passed and finding.numbers["gap"] < _CLEAR:
            # One correct study in a hundred gets here by chance.
            finding = run(jax.random.fold_in(pair_key, 1), 4 * trials)
        looks.append(
            finding._replace(
                figure=f"{finding.figure}; {steps} of {planned} releases{what}",
                meaning=f"{finding.meaning} ({_GENERATOR})",
                numbers={**finding.numbers, "steps": steps, "generator": "threefry"},
            )
        )
    return found + _telling(looks)


def _telling(profiled: list[Finding]) -> list[Finding]:
    """Takes the verdict from profiles of which none would refute much more noise than is claimed.

    One pair that tells is enough: the others are there for wrong prices, such as that of fixed
    batches, and need not be the worst ones of the right price.
    """
    factors = [finding.numbers["refuted_factor"] for finding in profiled]
    if any(factor is not None and factor <= TELLING for factor in factors):
        return profiled
    return [
        finding._replace(
            passed=None,
            meaning="these trials tell nothing: they would not refute a claim of "
            f"{TELLING:g} × the noise either; give more --trials",
        )
        if finding.passed
        else finding
        for finding in profiled
    ]
