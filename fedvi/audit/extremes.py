"""Searches for the records that stress a solver's clips the most.

A clip must hold for every record. A fault counts even if it shows only in columns unlike the study's own,
which may never make a gradient and a curvature matter at once. So each candidate record is placed alone in
a shard, and compared with an empty shard and with other records, at several posteriors.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedvi.audit import ascent, compare
from fedvi.audit.charges import charges
from fedvi.audit.findings import Finding, judged, not_checked
from fedvi.audit.recording import Call, Recorder
from fedvi.audit.runs import Keys, Run, Runner
from fedvi.typing import IDS
from fedvi.updates.base import LocalSolver, Shard, Task

__all__ = ["SLOTS", "Search", "Sized", "check_extremes"]

SLOTS = 8
"""Slots of the tried shards: few, so that many records can be tried."""

_CORNERS = 12
"""How many of the given records are tried unchanged; all of them may be stretched."""

_FACTORS = (1.0, 1e-3, 30.0, -1e3, 1e6, 1e15, 1e30)
_KEPT = 24
"""The most records kept; all pairs of them are compared."""

_HALVES = 2
"""Number of random halves of a total's numbers that are maximised."""

_FOLLOWED = 6
"""Records of each posterior that are also tried in a batch of the study's size."""

_PUT_TO_THE_TEST = 0.9
"""The share of the charged shift that a search must reach; below it, the clip was hardly tested."""


@dataclasses.dataclass
class Search:
    """The effort of a search.

    Attributes:
      climbs: changes of the worst records that are tried at each posterior.
      until: deadline on ``time.monotonic``'s clock; None for no limit.
      seed: of the changes.
      by_gradient: the share of the changes that follow a gradient.
    """

    climbs: int = 60
    until: float | None = None
    seed: int = 0
    by_gradient: float = 0.75

    def is_over(self) -> bool:
        """Whether no time is left."""
        return self.until is not None and time.monotonic() > self.until


class Sized(NamedTuple):
    """A solver for so many records, all of which are in every batch.

    Attributes:
      solver: built with ``recorder``, and a sampler that takes all of ``slots``.
      recorder: wraps the mechanism.
      slots: of a shard.
    """

    solver: LocalSolver
    recorder: Recorder
    slots: int


class _Tried(NamedTuple):
    ratio: float
    row: Mapping[str, np.ndarray]
    run: Run


def check_extremes(
    small: Sized,
    keys: Keys,
    tasks: Mapping[str, Task],
    rows: Mapping[str, np.ndarray],
    search: Search,
    own: Sized | None = None,
) -> list[Finding]:
    """Looks for records that move a total as far as possible, and compares that with the charged shift.

    The given records are scaled by array, up to 1e30, and set to zero. The worst of them are then changed,
    along a gradient and at random, as long as that makes them worse. If a clip holds, many totals have
    exactly the clip norm, where the norm has no gradient. So the search also maximises parts of a total:
    single arrays and random halves. A faulty clip that omits or miscounts a part lets most through where
    that part has the whole norm.

    Args:
      small: the solver, for few records.
      tasks: one task for each posterior, by the posterior's name.
      rows: records to begin with, [n, …] each: corners of the schema's bounds, rare levels, all outcomes.
      search: the effort.
      own: the same solver at the study's batch size, where sums may be computed in another way.
    """
    hunts = [_Hunt(name, small, keys, task, rows, search) for name, task in tasks.items()]
    # Each hunt gets an equal share of the time left, so that unused time goes to the later ones.
    for index, hunt in enumerate(hunts):
        hunt.run(_share(search.until, len(hunts) - index))
    untried = [hunt.name for hunt in hunts if not hunt.finished]
    count, moved = sum(hunt.count for hunt in hunts), sum(hunt.moved for hunt in hunts)
    names = ", ".join(hunt.name for hunt in hunts)
    found = _moves(hunts, small.solver, "")
    reached = max(finding.numbers["largest"] for finding in found)
    tested = reached >= _PUT_TO_THE_TEST and not untried
    silent = sorted({name for hunt in hunts for name in hunt.refused})
    found.append(
        Finding(
            "worst",
            "clips are put to the test",
            True if tested else None,
            f"{moved} of {count} records move a total, by up to {reached:.4g} of what is charged; "
            f"posteriors: {names}",
            "records were found that only the clip holds back"
            if tested
            else f"no time was left for: {', '.join(untried)}"
            if untried
            else "no record was found that needs the clip: what it does was not seen",
            {"reached": reached, "tried": count, "moved": moved, "untried": untried},
        )
    )
    if own is not None:
        found += _at_own_size(hunts, own, keys, search)
    found.append(
        judged(
            "worst",
            "extreme records are answered",
            not silent,
            "each was answered" if not silent else f"not answered: {', '.join(silent)}",
            "no record makes a client fall silent",
            "a client that falls silent reveals something about its records",
        )
    )
    return found


def _moves(hunts: "Sequence[_Hunt]", solver: LocalSolver, where: str) -> list[Finding]:
    """Compares how far the worst records of all posteriors move totals with the charged shifts."""
    charged, count = charges(solver.cost), sum(hunt.count for hunt in hunts)
    added = [pair for hunt in hunts for pair in hunt.added]
    swapped = [pair for hunt in hunts for pair in hunt.swapped()]
    return [
        finding._replace(
            layer="worst",
            figure=f"{finding.figure}; of {count} records tried at {len(hunts)} posteriors",
            numbers={
                **finding.numbers, "tried": count, "posteriors": [hunt.name for hunt in hunts]
            },
        )
        for finding in (
            compare.shift(f"worst record added or removed{where}", "add_remove", added, charged),
            compare.shift(f"worst record substituted{where}", "substitute", swapped, charged),
        )
    ]  # fmt: skip


def _at_own_size(hunts: "Sequence[_Hunt]", own: Sized, keys: Keys, search: Search) -> list[Finding]:
    """Tries some of the worst records again in batches of the study's size."""
    again, where = [], ", in a whole batch"
    for hunt in hunts:
        if search.is_over():
            return [
                not_checked("worst", f"worst records{where}", f"no time was left for: {hunt.name}")
            ]
        again.append(hunt.of(own, keys))
        again[-1].follow(hunt.worst_rows())
    return _moves(again, own.solver, where)


def _share(until: float | None, parts: int) -> float | None:
    if until is None:
        return None
    now = time.monotonic()
    return now + max(0.0, until - now) / parts


class _Hunt:
    """The search at one posterior."""

    def __init__(
        self,
        name: str,
        of: Sized,
        keys: Keys,
        task: Task,
        rows: Mapping[str, np.ndarray],
        search: Search,
    ) -> None:
        self.name, self.count, self.moved, self.finished = name, 0, 0, False
        self.refused: set[str] = set()
        self._rows, self._search, self._slots = rows, search, of.slots
        self._runner = Runner(of.solver, of.recorder, keys, task, 1, None, None)
        self._task, self._charged = task, charges(of.solver.cost)
        self._best: list[_Tried] = []
        self._generator = np.random.default_rng((search.seed, len(name)))

    def run(self, until: float | None) -> None:
        if until is not None and time.monotonic() > until:
            return
        self._base = self._runner.first(self._task.client, 1, self._shard(None))
        for row in self._stretched():
            self._try(row)
            if until is not None and time.monotonic() > until:
                return
        self.finished = True
        first, climbs = self.count, self._search.climbs
        steep = round(self._search.by_gradient * climbs)

        def may_go_on(climbed: int) -> bool:
            over = until is not None and time.monotonic() > until
            return self.count - first < climbed and not over

        # Gradients start from the results of random changes, which also get the climbs left over.
        self._change(functools.partial(may_go_on, climbs - steep))
        for part in _parts(self._base, self._generator):
            self._ascend(part, functools.partial(may_go_on, climbs))
        self._change(functools.partial(may_go_on, climbs))

    def _change(self, may_go_on: Callable[[], bool]) -> None:
        """Changes the worst records at random."""
        while self._best and may_go_on():
            start = self._best[int(self._generator.integers(min(3, len(self._best))))]
            self._try(self._changed(start.row))

    def _ascend(self, part: "_Part", may_go_on: Callable[[], bool]) -> None:
        """Climbs from the record that moves this part of a total the furthest."""
        free = [name for name, column in self._rows.items() if _is_free(name, column)]
        if not free or not self._best:
            return
        start = max(self._best, key=lambda tried: self._ratio(tried.run, part))
        numbers = ascent.Numbers(start.row, free)

        def value(at: np.ndarray) -> float:
            return self._ratio(self._try({**start.row, **numbers.arrays(at)}), part)

        found = self._ratio(start.run, part)
        ascent.ascend(value, numbers.at, found, may_go_on, self._generator)

    def of(self, own: Sized, keys: Keys) -> "_Hunt":
        """Returns a search at the same posterior with another solver and size."""
        return _Hunt(self.name, own, keys, self._task, self._rows, self._search)

    def worst_rows(self) -> list[Mapping[str, np.ndarray]]:
        """Returns some of the worst records, the worst first."""
        return [tried.row for tried in self._best[:: _KEPT // _FOLLOWED]]

    def follow(self, rows: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Tries only these records."""
        self._base = self._runner.first(self._task.client, 1, self._shard(None))
        for row in rows:
            self._try(row)
        self.finished = True

    @property
    def added(self) -> list[tuple[Run, Run]]:
        """Pairs of an empty shard with each of the worst records, even if the search was cut short."""
        return [(self._base, tried.run) for tried in self._best]

    def swapped(self) -> list[tuple[Run, Run]]:
        """Returns all pairs of the worst records."""
        runs = [tried.run for tried in self._best]
        return [(one, other) for at, one in enumerate(runs) for other in runs[:at]]

    def _try(self, row: Mapping[str, np.ndarray]) -> Run:
        run = self._runner.like(self._base, self._shard(row))
        self.count += 1
        if run.refusals:
            self.refused.add(run.refusals[0][1])
            return run
        ratio = self._ratio(run)
        self.moved += ratio > 0.0
        self._best.append(_Tried(ratio, row, run))
        # Records with equal ratios are kept too: they move totals in different directions, as pairs need.
        self._best.sort(key=lambda tried: -tried.ratio)
        if len(self._best) > _KEPT:
            self._drop()
        return run

    def _drop(self) -> None:
        """Drops the record that moves totals least, or one that moves them almost as another does."""
        last = self._best[-1]
        if last.ratio <= 0.5 * self._best[0].ratio:
            self._best.pop()
            return
        firsts = np.stack([_direction(tried.run, self._base) for tried in self._best])
        alike = firsts @ firsts.T
        np.fill_diagonal(alike, -np.inf)
        # The worse-ranked of the two most similar records.
        self._best.pop(max(np.unravel_index(int(alike.argmax()), alike.shape)))

    def _ratio(self, run: Run, part: "_Part | None" = None) -> float:
        """Returns how far a record moves a total, or a part of it, in units of the charged shift."""
        worst = 0.0
        for one, other, charge in zip(self._base.calls, run.calls, self._charged, strict=False):
            if charge is None or one.total.shape != other.total.shape:
                continue
            unit = one.layout.clip_norm / (one.layout.step or 1.0)
            moved = (one.total - other.total).astype(np.float64)
            distance = np.linalg.norm(moved if part is None else moved[part(one)])
            # `maximum` keeps NaN, so that such a record does not rank as harmless.
            worst = float(np.maximum(worst, distance / (unit * charge.add_remove)))
        return worst if np.isfinite(worst) else float(np.finfo(np.float64).max)

    def _shard(self, row: Mapping[str, np.ndarray] | None) -> Shard:
        records = {}
        for name, column in self._rows.items():
            whole = np.zeros((self._slots, *column.shape[1:]), column.dtype)
            if row is not None:
                whole[0] = row[name]
            records[name] = whole
        mask = np.zeros(self._slots, bool)
        mask[0] = row is not None
        return Shard(records, mask)

    def _stretched(self) -> list[dict[str, np.ndarray]]:
        """Returns some rows unchanged, and rows scaled by array, with and without their other arrays."""
        count = len(next(iter(self._rows.values())))
        whole = [{name: column[at] for name, column in self._rows.items()} for at in range(count)]
        wide = [name for name, column in self._rows.items() if _is_free(name, column)]
        found = whole[:_CORNERS]
        picked = self._generator.permutation(count)
        for at, factor in enumerate(_FACTORS):
            row = whole[picked[at % count]]
            found.append({**row, **{name: _times(row[name], factor) for name in wide}})
            for name in wide:
                found.append({**row, name: _times(row[name], factor)})
                others = {o: np.zeros_like(row[o]) for o in wide if o != name}
                found.append({**row, **others, name: _times(row[name], factor)})
        return found

    def _changed(self, row: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns a random change of a row: some numbers grow, shrink, change sign or become zero."""
        draw = self._generator
        changed = {}
        for name, value in row.items():
            value = np.array(value)
            if _is_free(name, self._rows[name]):
                some = draw.random(value.shape) < draw.choice((0.2, 0.7, 1.0))
                factors = np.exp(draw.normal(scale=draw.choice((0.1, 1.0, 4.0)), size=value.shape))
                factors *= draw.choice((1.0, 1.0, 1.0, -1.0, 0.0), size=value.shape)
                value = np.where(some, _times(value, factors), value).astype(value.dtype)
            changed[name] = value
        return changed


_Part = Callable[[Call], Any]
"""Selects some numbers of a release's total."""


def _parts(base: Run, generator: np.random.Generator) -> list[_Part]:
    """Returns the parts to maximise: the whole total, its arrays if there are several, random halves."""
    count = len(base.calls[0].layout.leaves) if base.calls else 1

    def half(seed: int, call: Call) -> Any:
        return np.random.default_rng(seed).random(call.total.size) < 0.5

    def array(place: int, call: Call) -> Any:
        sizes = [int(np.prod(shape, dtype=np.int64)) for _, shape, _ in call.layout.leaves]
        return np.repeat(np.arange(len(sizes)), sizes) == place

    arrays = [functools.partial(array, place) for place in range(count)] if count > 1 else []
    halves = [functools.partial(half, seed) for seed in generator.integers(2**32, size=_HALVES)]
    if not base.calls or base.calls[0].total.size < 2 * _HALVES:
        halves = []
    return [lambda call: slice(None), *arrays, *halves]


def _is_free(name: str, column: np.ndarray) -> bool:
    """Whether an array may hold any number; indices and flags must stay in the schema's range."""
    return name != IDS and np.asarray(column).dtype.kind == "f"


def _times(value: Any, factor: Any) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.asarray(value) * np.asarray(factor, value.dtype), value.dtype)


def _direction(run: Run, base: Run) -> np.ndarray:
    """Returns the unit vector in which a record moves the totals of the first two releases."""
    parts = [
        (other.total - one.total).astype(np.float64)
        for one, other in zip(base.calls[:2], run.calls[:2], strict=False)
    ]
    whole = np.concatenate(parts) if parts else np.zeros(1)
    norm = float(np.linalg.norm(whole))
    return whole / norm if norm > 0.0 and np.isfinite(norm) else np.zeros_like(whole)
