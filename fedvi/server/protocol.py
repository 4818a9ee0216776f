"""The whole server as one pure function: (spec, state, request) → (state, reply)."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.expfam import tree
from fedvi.federation import damping as damping_rules
from fedvi.federation import fold as folding
from fedvi.federation.messages import (
    Done,
    Hello,
    NextTask,
    Offer,
    Payload,
    Receipt,
    Reply,
    Request,
    Submit,
    Wait,
    Welcome,
)
from fedvi.federation.progress import Progress, Schedule
from fedvi.inference.base import Change, Task
from fedvi.privacy import events
from fedvi.transport import codec
from fedvi.typing import Eta

__all__ = ["ServerSpec", "ServerState", "Update", "initial_state", "progress_of", "served", "step"]


class ServerSpec(NamedTuple):
    """What a run agrees on beforehand; public and constant.

    Attributes:
      study_digest: what a client's Hello must carry.
      clients: all clients, in the order of the study.
      family: the exponential family of q.
      prior: η_0, proper.
      schedule: who works when.
      step_rule: how the server chooses s.
      finish: client → (released value, task) → Change.
      costs: client → the event that one of its answers must cost.
    """

    study_digest: str
    clients: tuple[str, ...]
    family: Any
    prior: Eta
    schedule: Schedule
    step_rule: damping_rules.StepRule
    finish: Mapping[str, Callable[[dict[str, np.ndarray], Task], Change]]
    costs: Mapping[str, events.Event]


class Answer(NamedTuple):
    """An answer that arrived and is not folded yet."""

    task: Task
    change: Change


class Update(NamedTuple):
    """One fold, as the history keeps it; all of it public.

    Attributes:
      version: the version that it made.
      clients: whose answers were folded, in order of arrival.
      staleness: how many versions old the posterior was that each answer started from.
      damping: the step s.
      rounds: complete rounds after it.
      gap: how far the posterior moved over the round, if it completed one.
    """

    version: int
    clients: tuple[str, ...]
    staleness: tuple[int, ...]
    damping: float
    rounds: int
    gap: folding.Gap | None


class ServerState(NamedTuple):
    """All that the server must not lose.

    Attributes:
      version: the number of folds.
      posterior: η = prior + Σ factors, as it is, proper or not.
      factors: client → η_m.
      visits: client → how many of its answers were folded.
      tasks: client → the task that it holds.
      answers: answers that are not folded yet, in order of arrival.
      accepted: task id → sha256 of the accepted payload.
      memory: group of clients folded together → what the step rule remembers.
      round_start: the served posterior at the end of the last complete round.
      history: all folds.
    """

    version: int
    posterior: Eta
    factors: Mapping[str, Eta]
    visits: Mapping[str, int]
    tasks: Mapping[str, Task]
    answers: tuple[Answer, ...]
    accepted: Mapping[str, str]
    memory: Mapping[tuple[str, ...], damping_rules.Memory]
    round_start: Eta
    history: tuple[Update, ...]


def initial_state(spec: ServerSpec) -> ServerState:
    """Returns the state before the first task: q is the prior, every factor is 1.

    Raises:
      FamilyError: if the prior does not fit the family, or is improper.
    """
    spec.family.check(spec.prior, "prior")
    if not spec.family.is_proper(spec.prior):
        raise errors.FamilyError("the prior is improper", "give it a finite scale")
    prior = tree.to_numpy(spec.prior)
    nothing = tree.to_numpy(spec.family.zeros())
    return ServerState(
        version=0,
        posterior=prior,
        factors=dict.fromkeys(spec.clients, nothing),
        visits=dict.fromkeys(spec.clients, 0),
        tasks={},
        answers=(),
        accepted={},
        memory={},
        round_start=prior,
        history=(),
    )


def progress_of(spec: ServerSpec, state: ServerState) -> Progress:
    """Returns what the schedule may see."""
    gaps = [update.gap.mean_shift for update in state.history if update.gap is not None]
    return Progress(
        clients=spec.clients,
        visits=tuple(state.visits[name] for name in spec.clients),
        open=tuple(name for name in spec.clients if name in state.tasks),
        waiting=tuple(answer.task.client for answer in state.answers),
        version=state.version,
        gap=gaps[-1] if gaps else float("inf"),
    )


def served(spec: ServerSpec, state: ServerState) -> Eta:
    """Returns the posterior that is handed out: projected if Σ factors made it improper.

    The projection is never written back into the factors.
    """
    return spec.family.project(state.posterior, spec.prior)


def step(spec: ServerSpec, state: ServerState, request: Request) -> tuple[ServerState, Reply]:
    """Answers one request.

    Raises:
      ProtocolError: if the request breaks the protocol; the state is unchanged.
    """
    if request.client not in spec.clients:
        raise errors.ProtocolError(
            f"client {request.client!r} is not in the study",
            errors.did_you_mean(request.client, spec.clients),
        )
    match request:
        case Hello():
            return _hello(spec, state, request)
        case NextTask():
            return _next_task(spec, state, request)
        case Submit():
            return _submit(spec, state, request)
    raise errors.ProtocolError(f"unknown request {type(request).__name__}")


def _hello(spec: ServerSpec, state: ServerState, request: Hello) -> tuple[ServerState, Reply]:
    if request.study_digest != spec.study_digest:
        raise errors.ProtocolError(
            f"client {request.client!r} read another study: digest {request.study_digest[:12]}, "
            f"expected {spec.study_digest[:12]}",
            "give all sites the same study file",
        )
    return state, Welcome(state.version)


def _next_task(
    spec: ServerSpec, state: ServerState, request: NextTask
) -> tuple[ServerState, Reply]:
    name = request.client
    if name in state.tasks:
        return state, Offer(state.tasks[name])
    progress = progress_of(spec, state)
    if spec.schedule.finished(progress):
        return state, Done("the schedule has finished")
    if name not in spec.schedule.select(progress):
        return state, Wait()
    visit = state.visits[name]
    task = Task(
        task_id=f"{name}/{visit}",
        client=name,
        visit=visit,
        version=state.version,
        posterior=tree.to_numpy(served(spec, state)),
        factor=state.factors[name],
        damping=_last_damping(state, name),
    )
    return state._replace(tasks={**state.tasks, name: task}), Offer(task)


def _last_damping(state: ServerState, client: str) -> float:
    used = [update.damping for update in state.history if client in update.clients]
    return used[-1] if used else 1.0


def _submit(spec: ServerSpec, state: ServerState, request: Submit) -> tuple[ServerState, Reply]:
    before = state.accepted.get(request.task_id)
    if before is not None:
        same = before == request.payload.sha256
        return state, Receipt("duplicate" if same else "conflict", state.version)
    task = state.tasks.get(request.client)
    if task is None or task.task_id != request.task_id:
        raise errors.ProtocolError(
            f"client {request.client!r} answered task {request.task_id!r}, which it does not hold"
        )
    change = _read(spec, task, request.payload)
    tasks = {name: held for name, held in state.tasks.items() if name != request.client}
    state = state._replace(
        tasks=tasks,
        answers=(*state.answers, Answer(task, change)),
        accepted={**state.accepted, request.task_id: request.payload.sha256},
    )
    if spec.schedule.ready(progress_of(spec, state)):
        state = _fold(spec, state)
    return state, Receipt("accepted", state.version)


def _read(spec: ServerSpec, task: Task, payload: Payload) -> Change:
    """Decodes an answer and checks that it is what the task asked for, at the agreed price."""
    value, event = codec.decode(payload)
    if event != spec.costs[task.client]:
        raise errors.ProtocolError(
            f"the answer to task {task.task_id!r} cost {event}, expected {spec.costs[task.client]}"
        )
    change = spec.finish[task.client](value, task)
    spec.family.check(change.delta, f"the answer to task {task.task_id!r}")
    return change


def _fold(spec: ServerSpec, state: ServerState) -> ServerState:
    group = tuple(sorted(answer.task.client for answer in state.answers))
    changes = {answer.task.client: answer.change for answer in state.answers}
    staleness = tuple(state.version - answer.task.version for answer in state.answers)
    total = tree.total((changes[name].delta for name in group), spec.family.zeros())
    memory = state.memory.get(group, damping_rules.Memory())
    floor = 1.0 / len(spec.clients)
    damping = spec.step_rule.choose(
        spec.family, served(spec, state), state.posterior, total, memory, floor
    )
    factors = folding.fold(state.factors, changes, damping)
    visits = {name: count + (name in changes) for name, count in state.visits.items()}
    rounds = min(visits.values())
    state = state._replace(
        version=state.version + 1,
        posterior=tree.to_numpy(folding.posterior_of(spec.prior, factors)),
        factors=factors,
        visits=visits,
        answers=(),
        memory={**state.memory, group: damping_rules.Memory(damping, tree.to_numpy(total))},
    )
    gap = None
    if rounds > (state.history[-1].rounds if state.history else 0):
        now = served(spec, state)
        gap = folding.gap(spec.family, state.round_start, now)
        state = state._replace(round_start=now)
    update = Update(
        version=state.version,
        clients=tuple(changes),
        staleness=staleness,
        damping=damping,
        rounds=rounds,
        gap=gap,
    )
    return state._replace(history=(*state.history, update))
