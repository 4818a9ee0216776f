"""Runs the real solver on neighbouring data, with the same randomness and the same past.

A step of a composed mechanism may use all earlier releases, so its sensitivity compares two runs with the
same past. The recorder gives the second run the first run's noised outputs. Any remaining difference then
comes from the changed record in this step alone.

Source: Cebere et al., PETS 2026, arXiv:2602.17454 (replaying a record of what enters the noise).
"""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedvi.audit import compare, neighbours
from fedvi.audit.charges import charges
from fedvi.audit.findings import Finding, judged, not_checked
from fedvi.audit.inclusion import check_inclusion, check_sampling_keys
from fedvi.audit.noise import check_noise
from fedvi.audit.recording import Recorder, SamplerRecorder
from fedvi.audit.runs import Advance, Keys, Run, Runner, Silent
from fedvi.privacy import events
from fedvi.updates.base import LocalSolver, Shard, Task

__all__ = ["replay", "replay_without_mechanism"]

_VISITS = 2
"""Number of visits in most runs; a few run the whole plan."""

_MOST_VISITS = 64
_NUMBERS = 8000
"""How many noised numbers the noise tests need to tell a std of 0.95 from 1, and to see a cut at 3 sds."""

_MOST_RELEASES = 20_000
"""The most releases in one run of the plan, which takes some ten seconds."""

_LONG = ("1e30", "opposite sign")
"""Hostile records that are replayed through the whole plan."""


def replay(
    solver: LocalSolver,
    recorder: Recorder,
    keys: Keys,
    task: Task,
    shard: Shard,
    clients: Sequence[str] = ("a", "b"),
    visits: int = _VISITS,
    advance: Advance | None = None,
    sampler: SamplerRecorder | None = None,
    in_sums: bool = False,
    unit: str = "record",
) -> list[Finding]:
    """Runs a private solver's updates on neighbouring shards, and compares the totals before noise.

    Neighbours are shards with a record removed, with a record replaced by a hostile one (1e30, NaN, zeros,
    a copy, the opposite sign), an empty shard, and a single record. The checks:

    - how far the totals move, in exact integers where the mechanism has a grid;
    - the runs make the same releases, of the same arrays;
    - equal outputs give byte-equal messages and equal public metrics;
    - the event is the announced price;
    - the noise is as charged, fresh, and independent of the records;
    - records enter batches at the priced rate, by keys of their own;
    - with ``in_sums``, no total depends on noise that the client drew before.

    It covers only the records that it tries: the proof of a clip is in the clip's code.

    Args:
      solver: built with ``recorder`` as its mechanism.
      task: a task to solve, e.g. with the prior as posterior.
      shard: synthetic records at the declared capacity, as many valid ones as possible.
      clients: at least two names. Each client is replayed, and noise is compared between them; the
        first runs the whole plan.
      visits: of the plan; all are replayed, since a solver may keep something and release it late.
      advance: returns the next task after an answer; without it every visit gets the same posterior.
      sampler: wraps the solver's sampler, if batches are random.
      in_sums: whether answers are visible only in sums over clients (view = "aggregate").
      unit: the protected unit. For "client", neighbours are a shard and an empty one, or any two shards.

    Returns:
      The findings, which contain nothing about real data.
    """
    found = _Replay(solver, recorder, keys, task, shard, clients, visits, advance, sampler, unit)
    return [*found.findings(), *([found.memory()] if in_sums else [])]


def replay_without_mechanism(
    solver: LocalSolver,
    keys: Keys,
    task: Task,
    shard: Shard,
    visits: int = _VISITS,
    advance: Advance | None = None,
) -> list[Finding]:
    """Audits a solver whose mechanism cannot be wrapped, except for its noise and sensitivity.

    Compares prices, layouts of messages and public metrics on neighbouring data, with the same
    randomness.
    """
    clients = (task.client,)
    return _Replay(solver, Silent(), keys, task, shard, clients, visits, advance, None).outside()


class _Replay:
    def __init__(
        self,
        solver: LocalSolver,
        recorder: Any,
        keys: Keys,
        task: Task,
        shard: Shard,
        clients: Sequence[str],
        visits: int,
        advance: Advance | None,
        sampler: SamplerRecorder | None,
        unit: str = "record",
    ) -> None:
        self._whole = unit == "client"
        self._solver, self._clients, self._sampler = solver, clients, sampler
        self._shard = neighbours.spread(shard)
        self._runner = Runner(solver, recorder, keys, task, visits, advance, sampler)
        self._like = self._runner.like
        self._charges = charges(solver.cost)
        self._wanted = visits
        most = max(_VISITS, _MOST_RELEASES // max(1, len(self._charges)))
        self._visits = min(max(visits, _VISITS), most)

    def findings(self) -> list[Finding]:
        base = self._runner.first(self._clients[0], self._visits, self._shard)
        price = self._charge(base)
        if not price.passed:
            return [price]
        again = self._like(base, self._shard)
        tried = neighbours.tried(self._shard)
        removed = [self._like(base, shard, _VISITS) for shard in neighbours.without(self._shard)]
        moved = [sum(base.moved(run)) for run in removed]
        place = moved.index(max(moved))
        changed = int(tried[place])
        hostile = dict(neighbours.hostile(self._shard, changed))
        substituted = {name: self._like(base, one, _VISITS) for name, one in hostile.items()}
        few = [self._like(base, shard, _VISITS) for shard in neighbours.few(self._shard, changed)]
        # Each run is paired with the run that it is compared with.
        pairs = [(base, run) for run in (*removed, *substituted.values(), *few)]
        added = [(base, run) for run in removed]
        # A hostile record against the shard without it shows the record's own contribution.
        added += [(run, removed[place]) for run in substituted.values()]
        added.append((few[0], few[1]))
        swapped = [(base, run) for run in substituted.values()]
        swapped += [(one, other) for one in substituted.values() for other in substituted.values()]
        if self._whole:
            # For the unit "client" all of a client's data is added, removed or replaced at once.
            empty, several = few[0], [base, *removed, *substituted.values(), few[1]]
            added = [(run, empty) for run in several]
            swapped += [(base, run) for run in (*removed, *few)]
        if self._visits > _VISITS:
            gone = self._like(base, neighbours.without(self._shard)[place])
            long = [self._like(base, hostile[name]) for name in _LONG]
            pairs += [(base, run) for run in (gone, *long)]
            (swapped if self._whole else added).append((base, gone))
            swapped += [(base, run) for run in long]
            if self._whole:
                nothing = self._like(base, neighbours.few(self._shard, changed)[0])
                pairs.append((base, nothing))
                added.append((base, nothing))
        wanted = self._enough(base)
        full = (
            base
            if wanted <= self._visits
            else self._runner.first(self._clients[0], wanted, self._shard)
        )
        noisy = [full]
        for client in self._clients[1:]:
            own = self._runner.first(client, wanted, self._shard, full.tasks)
            other = self._like(own, hostile[_LONG[0]], _VISITS)
            gone = self._like(own, neighbours.without(self._shard)[place], _VISITS)
            noisy.append(own)
            pairs += [(own, other), (own, gone)]
            swapped.append((own, other))
            (swapped if self._whole else added).append((own, gone))
        charged = self._charges * self._visits
        one = "one client's data" if self._whole else "one record"
        return [
            price,
            self._covered(),
            compare.repeats(base, again),
            compare.shift(f"{one} added or removed", "add_remove", added, charged),
            compare.shift(f"{one} substituted", "substitute", swapped, charged),
            compare.padding(
                base, self._like(base, neighbours.stained(self._shard, changed), _VISITS)
            ),
            compare.flow(pairs),
            compare.noise(pairs),
            compare.messages(pairs),
            compare.metrics((base, again), pairs, self._charges),
            *self._noise(noisy),
            *self._inclusion(base, few[0], changed, noisy),
        ]

    def memory(self) -> Finding:
        base = self._runner.first(self._clients[0], self._visits, self._shard)
        return compare.without_earlier_noise(base, self._runner.renoised(base, self._shard))

    def outside(self) -> list[Finding]:
        base = self._runner.first(self._clients[0], self._visits, self._shard)
        again = self._like(base, self._shard)
        shards = neighbours.without(self._shard)[:4]
        changed = int(neighbours.tried(self._shard)[0])
        shards += [shard for _, shard in neighbours.hostile(self._shard, changed)]
        shards += neighbours.few(self._shard, changed)
        pairs = [(base, self._like(base, shard)) for shard in shards]
        return [
            self._price(base),
            self._covered(),
            compare.repeats(base, again),
            compare.flow(pairs),
            compare.metrics((base, again), pairs, self._charges),
            not_checked(
                "replay",
                "noise and sensitivity",
                "this solver takes no mechanism, so that what enters its noise cannot be seen; "
                "nothing is known of its clip, its noise and its sampling",
            ),
        ]

    def _price(self, base: Run) -> Finding:
        passed = all(event == self._solver.cost for event in base.events)
        return judged(
            "replay",
            "price announced",
            passed,
            _shown(self._solver.cost),
            "every release carries the event that was announced before any record was read",
            "a release carries another event than the one that a ledger reserved",
        )

    def _charge(self, base: Run) -> Finding:
        priced = self._price(base)
        expected = self._charges * len(base.tasks)
        figure = f"{len(base.calls)} noised totals, {len(expected)} charged"
        if not priced.passed:
            return priced
        passed = len(base.calls) == len(expected) and None not in expected
        return judged(
            "replay",
            "price announced",
            passed,
            figure,
            "as many totals are noised as are charged for, at the event announced beforehand",
            "what is released is not what is charged for",
        )

    def _covered(self) -> Finding:
        """Reports how much of the plan was replayed; an incomplete replay is not a pass."""
        whole = self._visits >= self._wanted
        return Finding(
            "replay",
            "visits replayed",
            True if whole else None,
            f"{self._visits} visits of {self._wanted} planned, of {len(self._clients)} clients",
            "each planned visit was replayed for the first client, the first two for the others"
            if whole
            else "later visits were not replayed: what a solver keeps until then is not seen",
            {"visits": self._visits, "planned": self._wanted, "clients": len(self._clients)},
        )

    def _enough(self, base: Run) -> int:
        """Returns how many visits of each client give enough noise to judge."""
        numbers = sum(call.output.size for call in base.calls) // len(base.tasks)
        visits = math.ceil(_NUMBERS / (len(self._clients) * max(numbers, 1)))
        return min(max(_VISITS, visits), _MOST_VISITS)

    def _noise(self, runs: Sequence[Run]) -> list[Finding]:
        calls = [call for run in runs for call in run.calls]
        count = len(self._charges)
        charged = self._charges * sum(len(run.tasks) for run in runs)
        multipliers = [charge.noise_multiplier if charge else 0.0 for charge in charged]
        places = [index // count for index in range(len(calls))]
        return check_noise(calls, multipliers[: len(calls)], places)

    def _inclusion(self, base: Run, empty: Run, changed: int, runs: Sequence[Run]) -> list[Finding]:
        charged = [charge for charge in self._charges * _VISITS if charge is not None]
        slots = len(self._shard.mask)
        rates = [charge.rate for charge in charged if charge.rate < 1.0]
        # If every record is in every batch, two groups suffice.
        groups = neighbours.groups(slots, max(rates, default=1.0))[: None if rates else 2]
        probes = [
            self._like(base, neighbours.filled(self._shard, changed, group), _VISITS)
            for group in groups
        ]
        shown = len(empty.calls)
        if any(len(run.calls) != shown for run in probes) or shown != len(charged):
            return [
                not_checked(
                    "replay",
                    "records in batches",
                    "the solver's releases depend on its records, so that batches cannot be compared",
                )
            ]
        inside = np.array([run.moved(empty) for run in probes])
        found = check_inclusion(inside, groups, slots, charged)
        if not rates:
            return found
        draws = None if self._sampler is None else [key for run in runs for key in run.draws]
        noise = [call.key for run in runs for call in run.calls]
        return [*found, check_sampling_keys(draws, noise)]


def _shown(event: events.Event) -> str:
    text = json.dumps(events.to_json(event))
    return text if len(text) <= 80 else text[:79] + "…"
