"""Compares runs on neighbouring data: some parts must be equal, others close."""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from fedvi.audit.charges import Charge, charges
from fedvi.audit.findings import Finding, judged
from fedvi.audit.runs import Run

__all__ = [
    "Pairs",
    "allowed",
    "flow",
    "messages",
    "metrics",
    "noise",
    "padding",
    "repeats",
    "shift",
    "without_earlier_noise",
]

Pairs: TypeAlias = Sequence[tuple[Run, Run]]
"""Pairs (base, run) to compare; the base run is at least as long."""

_FLOAT_ROUNDING = 1e-3
"""Rounding error, in clip norms, of a float32 sum of an audit's few records. Grid sums are exact."""

_FLOAT_NOISE = 0.01
"""Tolerance, in stds of the noise, for floating-point noise on other records. Grid noise must be equal."""


def shift(check: str, relation: str, pairs: Pairs, charged: Sequence[Charge | None]) -> Finding:
    """Compares how far totals move with the shift charged for each release."""
    worst, moved, excess, exact, largest = 0.0, 0, False, True, 0
    for left, right in pairs:
        for one, other, charge in zip(left.calls, right.calls, charged, strict=False):
            if charge is None or one.total.shape != other.total.shape:
                continue
            bound = getattr(charge, relation) * one.layout.clip_norm
            if one.layout.step is None:
                exact = False
                distance = float(np.sqrt(((one.total - other.total) ** 2).sum()))
                over = not distance <= bound + _FLOAT_ROUNDING * one.layout.clip_norm
                relative = distance / bound if bound else math.inf * (distance > 0)
            else:
                # Python integers: no square overflows, and nothing is rounded.
                square = sum(int(value) ** 2 for value in (one.total - other.total).tolist())
                most = allowed(getattr(charge, relation), one.layout.bound)
                over = square > most
                relative = math.sqrt(square / most) if most else math.inf * (square > 0)
                largest = max(largest, math.isqrt(square))
            excess |= over
            moved += relative > 0.0
            worst = max(worst, relative)
    units = f", {largest} grid steps, compared as integers" if exact else " (float totals)"
    return Finding(
        "replay",
        check,
        None if not moved and not excess else not excess,
        f"moves a total by at most {worst:.6g} of the charged shift{units}; "
        f"{moved} totals moved in {len(pairs)} pairs",
        "no total moves further than is charged"
        if moved and not excess
        else "a total moves further than is charged: the contribution of a record is not bounded"
        if excess
        else "no tried record was ever in a batch: nothing is shown",
        {"largest": worst, "moved": moved, "pairs": len(pairs), "exact": exact},
    )


def allowed(shift: float, bound: int) -> int:
    """Returns the largest squared move in grid steps: ⌊K²⌋ for one record, 4·⌊K²⌋ for two.

    With a surplus ``shift`` is not whole. The result is then a bound on ⌊(shift · K)²⌋, by K² < ⌊K²⌋ + 1.
    """
    if shift == int(shift):
        return int(shift) ** 2 * bound
    return math.floor(Fraction(shift) ** 2 * (bound + 1))


def flow(pairs: Pairs) -> Finding:
    """Checks that runs make the same releases, of the same arrays, and answers of the same layout."""

    def same(one: Run, run: Run) -> bool:
        base = _upto(one, run)
        return (
            [call.layout for call in run.calls] == [call.layout for call in base.calls]
            and _shapes(run) == _shapes(base)
            and run.events == base.events
            and run.refusals == base.refusals
        )

    base = pairs[0][0]
    passed = all(same(one, run) for one, run in pairs)
    return judged(
        "replay",
        "equal control flow",
        passed,
        f"{len(base.calls)} noised totals, {len(base.payloads)} messages, in {len(pairs)} pairs "
        "of runs",
        "number, order, shapes, dtypes and noise of releases, and the messages' layout and price, "
        "do not depend on records",
        "what is released, or the shape of a message, depends on records",
    )


def messages(pairs: Pairs) -> Finding:
    """Checks that equal outputs give byte-equal messages."""

    def same(one: Run, run: Run) -> bool:
        base = _upto(one, run)
        if [call.layout for call in run.calls] != [call.layout for call in base.calls]:
            return True  # reported by `flow`
        return run.payloads == base.payloads

    base = pairs[0][0]
    passed = not base.refusals and all(same(one, run) for one, run in pairs)
    return judged(
        "replay",
        "messages follow from noised totals",
        passed,
        f"{len(base.payloads)} messages, byte-equal in {len(pairs)} pairs of runs"
        if passed
        else "messages differ, or cannot be encoded",
        "given the same noised totals the message is the same to the byte: nothing else of the "
        "records is in it",
        "a message holds something of the records that no noise covers",
    )


def noise(pairs: Pairs) -> Finding:
    """Checks that the noise, and the keys of noise and batches, are the same on other records."""
    keys, differing, largest, compared = 0, 0, 0.0, 0
    for left, right in pairs:
        # Draws have no layout: if one run has fewer, compare those.
        keys += sum(one != other for one, other in zip(left.draws, right.draws, strict=False))
        for one, other in zip(left.calls, right.calls, strict=False):
            if one.layout != other.layout:
                continue  # reported by `flow`
            compared += 1
            keys += one.key != other.key
            apart = float(np.abs(one.residual - other.residual).max(initial=0.0))
            largest = max(largest, apart)
            if one.layout.step is None:
                room = max(_FLOAT_ROUNDING, _FLOAT_NOISE * one.layout.noise_multiplier)
                differing += not apart <= room
            else:
                differing += not np.array_equal(one.output - one.total, other.output - other.total)
    passed = not keys and not differing
    return judged(
        "replay",
        "noise ignores records",
        passed,
        f"differs in {differing} of {compared} releases, by at most {largest:.3g} clip norms; "
        f"{keys} keys differ",
        "on other records the same noise is added, from the same key",
        "the key of noise or of a batch depends on records"
        if keys
        else "how much noise is added depends on records: it reveals something about them, and no "
        "test of its scale holds",
        {"differ": differing, "releases": compared, "keys": keys},
    )


def repeats(base: Run, again: Run) -> Finding:
    """Checks that equal keys, tasks, outputs and records give equal totals, as all comparisons assume."""
    passed = (
        len(base.calls) == len(again.calls)
        and all(
            np.array_equal(one.total, other.total, equal_nan=one.total.dtype.kind == "f")
            for one, other in zip(base.calls, again.calls, strict=False)
        )
        and base.refusals == again.refusals
        # Without a recorder messages contain their noise, which comes from the same keys.
        and base.payloads == again.payloads
    )
    return judged(
        "replay",
        "equal input gives equal output",
        passed,
        f"{len(base.calls)} totals and {len(base.payloads)} messages twice",
        "all randomness comes from the release's own keys, so that a retry repeats itself",
        "the solver takes randomness from elsewhere, or keeps something between runs: a retry "
        "would release a second draw, and no comparison here is sure",
    )


def padding(base: Run, stained: Run) -> Finding:
    """Checks that the contents of empty slots do not matter."""
    moved = base.moved(stained)
    return judged(
        "replay",
        "empty slots count for nothing",
        not any(moved),
        f"{sum(moved)} of {len(moved)} totals moved",
        "the contents of a slot without a record enter no total",
        "a slot without a record enters the totals: the mask of the records is ignored",
        {"moved": sum(moved)},
    )


def without_earlier_noise(base: Run, other: Run) -> Finding:
    """Checks that totals, given the tasks, do not depend on the client's earlier noise.

    The price of sums over clients assumes this: it does not cover noise that a client keeps and uses in a
    later answer.
    """
    moved = base.moved(other)
    # Messages show whether other noise was indeed used; calls record the noise before replacement.
    drawn = sum(one != two for one, two in zip(base.payloads, other.payloads, strict=False))
    passed = not any(moved) and len(base.calls) == len(other.calls)
    return Finding(
        "replay",
        "answers depend on no noise before",
        passed if drawn else None,
        f"{sum(moved)} of {len(moved)} totals moved, with other noise in {drawn} messages and the "
        "same tasks",
        "given what was broadcast, no total depends on noise that its client drew: sums hide it all"
        if passed
        else "a client keeps noise of its own and answers by it, which sums over clients do not hide",
        {"moved": sum(moved), "releases": len(moved)},
    )


def metrics(again: tuple[Run, Run], pairs: Pairs, charged: Sequence[Any]) -> Finding:
    """Checks that metrics typed public or released are the same on neighbouring data."""
    everything = [again, *pairs]
    names = sorted(
        {name for pair in everything for run in pair for told in run.told for name in told}
    )
    # A metric that varies on the same data, such as a running time, shows nothing either way.
    unsteady = _differing([again])
    wrong = _differing(pairs) - unsteady
    priced = {event for told in again[0].told for _, event in told.values() if event is not None}
    unpaid = any(part not in charged for event in priced for part in charges(event))
    passed = False if wrong or unpaid else None if unsteady else True
    meaning = "they do not depend on records, given the noised totals"
    if wrong:
        meaning = (
            f"differs between neighbouring data, but is declared fit to leave: {_listed(wrong)}"
        )
    elif unpaid:
        meaning = "a metric is declared released at a price that is not charged"
    elif unsteady:
        meaning = f"not the same twice on the same data, so not checked: {_listed(unsteady)}"
    return Finding(
        "replay",
        "metrics that may leave",
        passed,
        _listed(names) or "none is typed public or released",
        meaning,
        {"metrics": names, "differ": sorted(wrong), "unsteady": sorted(unsteady)},
    )


def _differing(pairs: Pairs) -> set[str]:
    return {
        name
        for one, run in pairs
        for left, right in zip(one.told, run.told, strict=False)
        for name in left.keys() | right.keys()
        if left.get(name) != right.get(name)
    }


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _upto(base: Run, run: Run) -> Run:
    """Returns the part of ``base`` that covers the visits of ``run``."""
    visits = run.visits
    return base._replace(
        calls=base.calls[: visits * (len(base.calls) // max(1, len(base.tasks)))],
        payloads=base.payloads[:visits],
        events=base.events[:visits],
        refusals=[refusal for refusal in base.refusals if refusal[0] < visits],
    )


def _shapes(run: Run) -> list[Any]:
    return [
        (payload.event, [(part.name, part.dtype, part.shape) for part in payload.tensors])
        for payload in run.payloads
    ]
