"""Runs a solver's visits, and repeats them on other records with the same randomness, for the replay."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.audit.recording import Call, SamplerRecorder
from fedvi.federation.messages import Payload
from fedvi.privacy import events
from fedvi.privacy.metrics import Public, ReleasedMetric
from fedvi.transport import codec
from fedvi.typing import Key
from fedvi.updates.base import Change, LocalSolver, Shard, Task

__all__ = ["Advance", "Keys", "Run", "Runner", "Silent", "same_answer"]

Keys = Callable[[str, str], Callable[[str], Key]]
"""(client, release) → (purpose → key), as fedvi derives its keys."""

Advance = Callable[[Task, Change], Task]
"""(task, answer) → the client's next task, with the answer folded in, as a server does it."""


class Run(NamedTuple):
    """One client's visits. Computed from records: never leaves the audit.

    Attributes:
      visits: how many were requested.
      tasks: the tasks that were begun.
      calls: the releases, in order.
      payloads: the messages that could be encoded.
      events: the event of each answer.
      refusals: (visit, reason) of each missing answer.
      told: for each visit, the part of the solver's info that a log or report would use.
      draws: the key of each draw of a batch.
    """

    visits: int
    tasks: list[Task]
    calls: list[Call]
    payloads: list[Payload]
    events: list[events.Event]
    refusals: list[tuple[int, str]]
    told: list[dict[str, Any]]
    draws: list[bytes]

    def moved(self, other: "Run") -> list[bool]:
        """Says of each release that both runs have whether its totals differ."""
        return [
            not np.array_equal(one.total, two.total)
            for one, two in zip(self.calls, other.calls, strict=False)
        ]


def same_answer(one: LocalSolver, other: LocalSolver, keys: Keys, task: Task, shard: Shard) -> bool:
    """Whether two solvers give the same answer to a task under the same keys, up to rounding.

    A solver built for the audit is compiled anew, and may round differently from the shipped one.
    """
    values = []
    for solver in (one, other):
        key_of = keys(task.client, task.task_id)
        _, released, _ = solver.update(key_of, solver.init(task.posterior), task, shard)
        values.append(codec.decode(codec.encode(released)))
    (left, event), (right, other_event) = values
    return (
        event == other_event
        and left.keys() == right.keys()
        and all(np.allclose(left[name], right[name], rtol=1e-3, atol=1e-3) for name in left)
    )


class Silent:
    """Replaces a recorder if there is no mechanism to record."""

    def start(self, script: Sequence[Call] = ()) -> None:
        """Does nothing."""

    def stop(self) -> list[Call]:
        """Returns no calls."""
        return []


class Runner:
    """Runs one solver; see ``replay`` for the arguments."""

    def __init__(
        self,
        solver: LocalSolver,
        recorder: Any,
        keys: Keys,
        task: Task,
        planned: int,
        advance: Advance | None,
        sampler: SamplerRecorder | None,
    ) -> None:
        self._solver, self._recorder, self._keys = solver, recorder, keys
        self._task, self._planned = task, planned
        self._advance, self._sampler = advance, sampler

    def first(self, client: str, visits: int, shard: Shard, tasks: Sequence[Task] = ()) -> Run:
        """Makes a run with its own noise; derives its tasks on the way unless ``tasks`` are given."""
        return self._run(client, visits, shard, tasks, None)

    def like(self, base: Run, shard: Shard, visits: int | None = None) -> Run:
        """Makes a run with the keys, tasks and noised outputs of another."""
        visits = len(base.tasks) if visits is None else min(visits, len(base.tasks))
        return self._run(base.tasks[0].client, visits, shard, base.tasks, base.calls)

    def renoised(self, base: Run, shard: Shard) -> Run:
        """Makes a run with the keys and tasks of another, and with its noise negated."""
        script = [call._replace(output=2 * call.total - call.output) for call in base.calls]
        return self._run(base.tasks[0].client, len(base.tasks), shard, base.tasks, script)

    def _run(
        self,
        client: str,
        visits: int,
        shard: Shard,
        tasks: Sequence[Task],
        script: Sequence[Call] | None,
    ) -> Run:
        self._recorder.start(script or ())
        if self._sampler is not None:
            self._sampler.stop()
        task = self._task._replace(client=client)
        state = self._solver.init(task.posterior)
        run = Run(visits, [], [], [], [], [], [], [])
        for visit in range(visits):
            if tasks:
                task = tasks[visit]
            task = task._replace(client=client, visit=visit, task_id=f"audit/{visit}")
            run.tasks.append(task)
            key_of = self._keys(client, task.task_id)
            try:
                state, released, info = self._solver.update(key_of, state, task, shard)
            except Exception as error:
                if script is None:
                    raise
                # A missing answer reveals something about the records.
                run.refusals.append((visit, type(error).__name__))
                break
            run.events.append(released.event)
            run.told.append(_exported(info))
            try:
                run.payloads.append(codec.encode(released))
            except errors.ProtocolError as error:
                run.refusals.append((visit, error.message))
                continue
            if not tasks and self._advance is not None and visit < self._planned:
                value, _ = codec.decode(run.payloads[-1])
                task = self._advance(task, self._solver.finish(value, task))
        draws = [] if self._sampler is None else self._sampler.stop()
        return run._replace(calls=self._recorder.stop(), draws=draws)


def _exported(info: dict[str, Any]) -> dict[str, tuple[Any, events.Event | None]]:
    """Returns the part of a solver's info that may leave the client, in comparable form."""
    return {
        name: (_comparable(value.value), value.event if isinstance(value, ReleasedMetric) else None)
        for name, value in info.items()
        if isinstance(value, Public | ReleasedMetric)
    }


def _comparable(value: Any) -> Any:
    array = np.asarray(value)
    if array.dtype.kind == "O":
        return repr(value)
    return str(array.dtype), array.shape, array.tobytes()
