"""The real solver on neighbouring data, with the same randomness and the same past.

A step of a composed mechanism may use all that was released before, so its sensitivity is about two
runs that saw the same past. The recorder gives the second run the first one's noised outputs: what
then differs between the two comes from the changed record, in this step alone.

Source: Cebere et al., PETS 2026, arXiv:2602.17454 (replaying a record of what enters the noise).
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import scipy.stats

from fedvi import errors
from fedvi.audit.findings import Finding
from fedvi.audit.noise import check_noise
from fedvi.audit.recording import Call, Recorder
from fedvi.federation.messages import Payload
from fedvi.inference.base import LocalSolver, Shard, Task
from fedvi.privacy import events
from fedvi.transport import codec
from fedvi.typing import Key

__all__ = ["Keys", "charges", "replay", "replay_without_mechanism"]

Keys = Callable[[str, str], Callable[[str], Key]]
"""(client, release) → (purpose → key): how the product derives its keys."""

_VISITS = 2
_MOST_VISITS = 64
_NUMBERS = 4000
"""Numbers of noise that the tests of noise want: then a std of 0.93 is told from 1."""

_PROBES = 32
"""Slots whose record is taken away, one at a time."""

_DRAWS = 20_000
"""Simulated laws of a sampler; a check fails by chance twice in so many."""

_FLOAT_ROUNDING = 1e-3
"""Of one clip norm: what a float32 sum of the few records of an audit may be off. A grid has none."""


class Charge(NamedTuple):
    """What one release is charged for: noise and shifts in clip norms, and how records got in."""

    noise_multiplier: float
    add_remove: float
    substitute: float
    rate: float
    poisson: bool


class _Run(NamedTuple):
    calls: list[Call]
    payloads: list[Payload]
    events: list[events.Event]
    refusals: list[str]


def charges(event: events.Event) -> list[Charge | None]:
    """Lists what an event charges for, release by release; None where nothing is protected.

    >>> charges(events.Repeated(events.PoissonSampled(0.1, events.Gaussian(2.0)), 2))[1].rate
    0.1
    """
    match event:
        case events.Gaussian(sigma, add_remove, substitute):
            return [Charge(sigma, add_remove, substitute, 1.0, False)]
        case events.DiscreteGaussian(sigma, add_remove, substitute):
            return [Charge(sigma, add_remove, substitute, 1.0, False)]
        case events.PoissonSampled(rate, inner):
            return [part and part._replace(rate=rate, poisson=True) for part in charges(inner)]
        case events.WithoutReplacement(_, _, inner):
            return [part and part._replace(rate=event.rate) for part in charges(inner)]
        case events.Repeated(inner, count):
            return charges(inner) * count
        case events.Composed(parts):
            return [charge for part in parts for charge in charges(part)]
        case _:
            return [None]


def replay(
    solver: LocalSolver,
    recorder: Recorder,
    keys: Keys,
    task: Task,
    shard: Shard,
    clients: Sequence[str] = ("a", "b"),
) -> list[Finding]:
    """Runs a private solver's update on neighbouring shards and compares what entered the noise.

    Checks, for records taken away and records replaced by hostile ones (1e30, NaN, zeros, a copy,
    the opposite sign), and for an empty shard and a single record: how far the totals move, in
    exact integers where the mechanism has a grid; that the runs make the same releases, of the same
    arrays; that equal outputs give byte-equal messages; that the event is the price announced; that
    the noise is what is charged, and fresh; and that records get into batches at the priced rate.

    It sees the records that it tries, and no others: the proof is with the code that clips.

    Args:
      solver: built with ``recorder`` as its mechanism.
      recorder: around the mechanism under audit.
      keys: the product's derivation of keys.
      task: one to solve, e.g. with the prior as posterior.
      shard: synthetic records, the more valid ones the better; the declared capacity.
      clients: two names; noise is compared between them.

    Returns:
      The findings, none of which says anything of real data.
    """
    return _Replay(solver, recorder, keys, task, shard, tuple(clients)).findings()


def replay_without_mechanism(
    solver: LocalSolver, keys: Keys, task: Task, shard: Shard
) -> list[Finding]:
    """Says what can be told of a solver whose mechanism the audit cannot wrap: not its noise.

    Compares prices and layouts of messages on neighbouring data, with the same randomness.
    """
    recorder = _Silent()
    found = _Replay(solver, recorder, keys, task, shard, ("a", "b"))
    return found.outside()


class _Silent:
    """Stands in for a recorder where there is no mechanism to record."""

    def start(self, script: Sequence[Call] = ()) -> None:
        """Does nothing."""

    def stop(self) -> list[Call]:
        """Returns no calls."""
        return []


class _Replay:
    def __init__(
        self,
        solver: LocalSolver,
        recorder: Any,
        keys: Keys,
        task: Task,
        shard: Shard,
        clients: tuple[str, ...],
    ) -> None:
        self._solver, self._recorder, self._keys = solver, recorder, keys
        self._task, self._shard, self._clients = task, shard, clients
        self._charges = charges(solver.cost)

    def findings(self) -> list[Finding]:
        base = self._run(self._shard)
        charged = self._charge(base)
        if not charged.passed:
            return [charged]
        removed = [self._run(shard, base.calls) for shard in _without(self._shard)]
        slot = self._most_included(base, removed)
        substituted = {
            name: self._run(shard, base.calls) for name, shard in _hostile(self._shard, slot)
        }
        # A hostile record, against the shard without it: the contribution it makes by itself.
        gone = removed[slot].calls
        hostile = [(run.calls, gone) for run in substituted.values()]
        few = [self._run(shard, base.calls) for shard in _few(self._shard, slot)]
        everything = [*removed, *substituted.values(), *few]
        rates = {charge.rate for charge in self._charges if charge is not None}
        # Where every record is in every batch, a few show it.
        slots = len(self._shard.mask) if rates != {1.0} else 2
        probes = [self._run(shard, base.calls) for shard in _single(self._shard, slots)]
        return [
            charged,
            self._shift(
                "one record added or removed",
                "add_remove",
                [(base.calls, run.calls) for run in removed]
                + hostile
                + [(few[0].calls, few[1].calls)],
            ),
            self._shift(
                "one record substituted",
                "substitute",
                [(base.calls, run.calls) for run in substituted.values()]
                + [
                    (one.calls, other.calls)
                    for one in substituted.values()
                    for other in substituted.values()
                ],
            ),
            _flow(base, everything),
            _messages(base, everything),
            *self._noise(base),
            *self._inclusion(probes),
        ]

    def outside(self) -> list[Finding]:
        base = self._run(self._shard)
        others = [self._run(shard) for shard in _without(self._shard)[:4]]
        others += [self._run(shard) for _, shard in _hostile(self._shard, 0)]
        others += [self._run(shard) for shard in _few(self._shard, 0)]
        return [
            self._price(base),
            _flow(base, others),
            Finding(
                "replay",
                "noise and sensitivity",
                None,
                "not checked",
                "this solver takes no mechanism, so that what enters its noise cannot be seen; "
                "nothing is known of its clip, its noise and its sampling",
            ),
        ]

    def _run(self, shard: Shard, script: Sequence[Call] = ()) -> _Run:
        return self._visits(self._clients[0], range(_VISITS), shard, script)

    def _visits(
        self, client: str, visits: range, shard: Shard, script: Sequence[Call] = ()
    ) -> _Run:
        self._recorder.start(script)
        state = self._solver.init(self._task.posterior)
        payloads, found, refusals = [], [], []
        for visit in visits:
            task = self._task._replace(client=client, visit=visit, task_id=f"audit/{visit}")
            key_of = self._keys(client, task.task_id)
            state, released, _ = self._solver.update(key_of, state, task, shard)
            found.append(released.event)
            try:
                payloads.append(codec.encode(released))
            except errors.ProtocolError as error:
                refusals.append(error.message)
        return _Run(self._recorder.stop(), payloads, found, refusals)

    def _price(self, base: _Run) -> Finding:
        passed = all(event == self._solver.cost for event in base.events)
        return Finding(
            "replay",
            "price announced",
            passed,
            _shown(self._solver.cost),
            "every release carries the event that was announced before any record was read"
            if passed
            else "a release carries another event than the one that a ledger reserved",
        )

    def _charge(self, base: _Run) -> Finding:
        priced = self._price(base)
        expected = self._charges * _VISITS
        figure = f"{len(base.calls)} noised totals, {len(expected)} charged"
        if not priced.passed:
            return priced
        passed = len(base.calls) == len(expected) and None not in expected
        if passed:
            return Finding(
                "replay",
                "price announced",
                True,
                figure,
                "as many totals are noised as are charged for, at the event announced beforehand",
            )
        return Finding(
            "replay",
            "price announced",
            False,
            figure,
            "what is released is not what is charged for",
        )

    def _shift(
        self, check: str, relation: str, pairs: Sequence[tuple[list[Call], list[Call]]]
    ) -> Finding:
        expected = self._charges * _VISITS
        worst, moved, excess, exact, largest = 0.0, 0, False, True, 0
        for left, right in pairs:
            for one, other, charge in zip(left, right, expected, strict=False):
                if charge is None or one.total.shape != other.total.shape:
                    continue
                bound = getattr(charge, relation) * one.layout.clip_norm
                if one.layout.step is None:
                    exact = False
                    distance = float(np.sqrt(((one.total - other.total) ** 2).sum()))
                    over = not distance <= bound + _FLOAT_ROUNDING * one.layout.clip_norm
                    relative = distance / bound if bound else math.inf * (distance > 0)
                else:
                    # Python's integers: no square overflows and nothing is rounded.
                    square = sum(int(value) ** 2 for value in (one.total - other.total).tolist())
                    allowed = _allowed(getattr(charge, relation), one.layout.bound)
                    over = square > allowed
                    relative = math.sqrt(square / allowed) if allowed else math.inf * (square > 0)
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

    def _most_included(self, base: _Run, removed: Sequence[_Run]) -> int:
        def count(run: _Run) -> int:
            return sum(
                not np.array_equal(one.total, other.total)
                for one, other in zip(base.calls, run.calls, strict=False)
            )

        counts = [count(run) for run in removed]
        return counts.index(max(counts))

    def _noise(self, base: _Run) -> list[Finding]:
        """Visits of both clients until there is enough noise to judge."""
        numbers = sum(call.output.size for call in base.calls) // _VISITS
        visits = min(max(_VISITS, math.ceil(_NUMBERS / (2 * max(numbers, 1)))), _MOST_VISITS)
        calls: list[Call] = []
        for client in self._clients:
            calls += self._visits(client, range(visits), self._shard).calls
        count = len(self._charges)
        charged = self._charges * (visits * len(self._clients))
        multipliers = [charge.noise_multiplier if charge else 0.0 for charge in charged]
        runs = [index // count for index in range(len(calls))]
        return check_noise(calls, multipliers[: len(calls)], runs)

    def _inclusion(self, probes: Sequence[_Run]) -> list[Finding]:
        """Which single records were in which batch, as the solver itself used its sampler.

        A total of a shard with one record is not zero exactly when that record is in the batch.
        """
        charged = [charge for charge in self._charges * _VISITS if charge is not None]
        rates = {charge.rate for charge in charged}
        if len(rates) != 1:
            return []
        (rate,) = rates
        inside = np.array([[bool(call.total.any()) for call in run.calls] for run in probes])
        slots, steps = inside.shape
        count, expected = int(inside.sum()), rate * slots * steps
        figure = f"{count} of {slots * steps}, priced {expected:.4g}"
        if rate == 1.0:
            chance = 1.0
        else:
            law = scipy.stats.binom(slots * steps, rate)
            chance = 2.0 * min(float(law.sf(count - 1)), float(law.cdf(count)))
        passed = chance >= 1.0 / _DRAWS
        findings = [
            Finding(
                "replay",
                "records in batches",
                passed,
                figure,
                "records enter batches no oftener than is priced"
                if passed
                else "records enter batches at another rate than the priced one",
                {"count": count, "expected": expected, "p_value": min(chance, 1.0)},
            )
        ]
        if rate == 1.0:
            return findings
        generator = np.random.default_rng(0)
        simulated = generator.binomial(steps, rate, (_DRAWS, slots))
        chance = _outside(
            ((inside.sum(axis=1) - steps * rate) ** 2).sum(),
            ((simulated - steps * rate) ** 2).sum(axis=1),
        )
        findings.append(
            _judged(
                "batches are independent",
                chance,
                f"a record is in {inside.sum(axis=1).min()} to {inside.sum(axis=1).max()} of "
                f"{steps} batches",
                "how often a record is drawn varies as independent batches do",
                "how often a record is drawn varies otherwise than in independent batches: "
                "shuffled epochs do that",
            )
        )
        if any(charge.poisson for charge in charged) and slots > 1:
            sizes = inside.sum(axis=0)
            simulated = generator.binomial(slots, rate, (_DRAWS // 10, steps))
            chance = _outside(
                ((sizes - slots * rate) ** 2).sum(), ((simulated - slots * rate) ** 2).sum(axis=1)
            )
            findings.append(
                _judged(
                    "batch sizes are random",
                    chance,
                    f"{sizes.min()} to {sizes.max()} of {slots} probed records in a batch",
                    "batch sizes vary as Poisson batches do",
                    "batch sizes do not vary as Poisson batches do, whose price is charged",
                )
            )
        return findings


def _allowed(shift: float, bound: int) -> int:
    """The largest squared move in grid steps: ⌊K²⌋ for one record, 4·⌊K²⌋ for two of them.

    A surplus makes ``shift`` no whole number: then ⌊(shift · K)²⌋, of which K² < ⌊K²⌋ + 1 is known.
    """
    if shift == int(shift):
        return int(shift) ** 2 * bound
    return math.floor(Fraction(shift) ** 2 * (bound + 1))


def _judged(check: str, chance: float, figure: str, good: str, bad: str) -> Finding:
    passed = chance > 0.0
    return Finding("replay", check, passed, figure, good if passed else bad, {"p_value": chance})


def _outside(found: float, simulated: np.ndarray) -> float:
    """The share of simulated values at least as far out as ``found``, on its side, doubled."""
    return 2.0 * float(min((simulated <= found).mean(), (simulated >= found).mean()))


def _flow(base: _Run, others: Sequence[_Run]) -> Finding:
    layouts = [call.layout for call in base.calls]
    shapes = _shapes(base)
    passed = all(
        [call.layout for call in run.calls] == layouts
        and _shapes(run) == shapes
        and run.events == base.events
        and run.refusals == base.refusals
        for run in others
    )
    return Finding(
        "replay",
        "equal control flow",
        passed,
        f"{len(layouts)} noised totals, {len(base.payloads)} messages, in {len(others) + 1} runs",
        "number, order, shapes, dtypes and noise of releases, and the messages' layout and price, "
        "do not depend on records"
        if passed
        else "what is released, or the shape of a message, depends on records",
    )


def _messages(base: _Run, others: Sequence[_Run]) -> Finding:
    passed = not base.refusals and all(
        run.payloads == base.payloads
        for run in others
        if [call.layout for call in run.calls] == [call.layout for call in base.calls]
    )
    return Finding(
        "replay",
        "messages follow from noised totals",
        passed,
        f"{len(base.payloads)} messages, byte-equal in {len(others) + 1} runs"
        if passed
        else "messages differ, or cannot be encoded",
        "given the same noised totals the message is the same to the byte: nothing else of the "
        "records is in it"
        if passed
        else "a message holds something of the records that no noise covers",
    )


def _shapes(run: _Run) -> list[Any]:
    return [
        (payload.event, [(part.name, part.dtype, part.shape) for part in payload.tensors])
        for payload in run.payloads
    ]


def _shown(event: events.Event) -> str:
    text = json.dumps(events.to_json(event))
    return text if len(text) <= 80 else text[:79] + "…"


# Neighbours.


def _without(shard: Shard) -> list[Shard]:
    """The shard without one of its first records, each in turn."""
    return [
        _masked(shard, [index for index in np.flatnonzero(shard.mask) if index != slot])
        for slot in np.flatnonzero(shard.mask)[:_PROBES]
    ]


def _few(shard: Shard, slot: int) -> list[Shard]:
    """An empty shard, and one of a single record."""
    return [_masked(shard, []), _masked(shard, [np.flatnonzero(shard.mask)[slot]])]


def _single(shard: Shard, slots: int) -> list[Shard]:
    """Shards of the first record alone, in one slot after the other."""
    source = int(np.flatnonzero(shard.mask)[0])
    chosen = range(slots) if slots <= _PROBES else range(_PROBES)
    return [_masked(_copied(shard, source, slot), [slot]) for slot in chosen]


def _hostile(shard: Shard, slot: int) -> Iterator[tuple[str, Shard]]:
    """Shards in which one record became another, as bad as its dtype allows."""
    changed = int(np.flatnonzero(shard.mask)[slot])
    other = int(np.flatnonzero(shard.mask)[slot - 1])

    def edited(fn: Callable[[np.ndarray], Any]) -> Shard:
        records = {}
        for name, column in shard.records.items():
            column = np.array(column)
            column[changed] = fn(column[changed])
            records[name] = column
        return Shard(records, shard.mask)

    def filled(value: float) -> Callable[[np.ndarray], Any]:
        # Indices and flags stay in the range that the schema allows.
        return lambda old: np.full_like(old, value) if old.dtype.kind == "f" else old

    yield "1e30", edited(filled(1e30))
    yield "-1e30", edited(filled(-1e30))
    yield "NaN", edited(filled(math.nan))
    yield "infinity", edited(filled(math.inf))
    yield "zeros", edited(np.zeros_like)
    yield "opposite sign", edited(lambda old: -old if old.dtype.kind == "f" else old)
    yield "1e4 times", edited(lambda old: 1e4 * old if old.dtype.kind == "f" else old)
    yield "a copy", _copied(shard, other, changed)


def _copied(shard: Shard, source: int, target: int) -> Shard:
    records = {}
    for name, column in shard.records.items():
        column = np.array(column)
        column[target] = column[source]
        records[name] = column
    return Shard(records, shard.mask)


def _masked(shard: Shard, kept: Any) -> Shard:
    """Only the records in ``kept``; the rows of the others are zero, as a shard's padding is."""
    mask = np.zeros_like(np.asarray(shard.mask, bool))
    mask[np.asarray(kept, int)] = True
    records = {}
    for name, column in shard.records.items():
        column = np.array(column)
        column[~mask] = 0
        records[name] = column
    return Shard(records, mask)
