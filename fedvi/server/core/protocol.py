"""The whole server as one pure function: (spec, state, request, now) → (state, reply)."""

import itertools
from collections.abc import Collection
from typing import Literal

from fedvi import errors
from fedvi.expfam import tree
from fedvi.federation.messages import (
    CLOSING,
    FAILURES,
    Begin,
    Done,
    Failure,
    Goodbye,
    Hello,
    NextTask,
    Noted,
    Offer,
    Payload,
    Receipt,
    Renew,
    Renewed,
    Reply,
    Request,
    Submit,
    Wait,
    Welcome,
)
from fedvi.privacy import events
from fedvi.privacy import ledger as ledgers
from fedvi.server.core import fold_sizes, kept, key_board, openings, sum_rounds
from fedvi.server.core.fold_sizes import check_size, strictly
from fedvi.server.core.membership import admit, extend, remove
from fedvi.server.core.state import (
    EXHAUSTED,
    IMPOSSIBLE,
    LEFT,
    OVER,
    OVERDUE,
    REMOVED,
    REVOKED,
    Answer,
    Presence,
    ServerSpec,
    ServerState,
    Update,
    Waiting,
    folded,
    initial_state,
    is_durably_equal,
    is_removed,
    present,
    progress_of,
    reported,
    served,
    take_up,
)
from fedvi.server.core.turns import (
    brings_work,
    check_fold,
    dropped,
    is_in_turn,
    is_selected,
    keyed,
    next_deadline,
    settle,
    tick,
)
from fedvi.transport import codec
from fedvi.updates import limits
from fedvi.updates.base import Change, Task

__all__ = [
    "EXHAUSTED",
    "IMPOSSIBLE",
    "LEFT",
    "OVER",
    "OVERDUE",
    "REMOVED",
    "REVOKED",
    "Action",
    "Answer",
    "Presence",
    "ServerSpec",
    "ServerState",
    "Update",
    "Waiting",
    "admit",
    "answer_of",
    "brings_work",
    "check_newest",
    "check_session",
    "control",
    "ending",
    "extend",
    "folded",
    "initial_state",
    "is_durably_equal",
    "is_removed",
    "leave_out",
    "next_deadline",
    "present",
    "progress_of",
    "remove",
    "reported",
    "revoke",
    "served",
    "step",
    "take_up",
    "task_of",
    "tick",
]

Action = Literal["pause", "resume", "stop"]

# A client away for one of these stays away: no call brings it back, and no other reason replaces it.
_STAYS = (EXHAUSTED, REMOVED)
# Attempts at one task that a client may have made before the server hears of them.
_MOST_MISSED = 64
# Conflicting answers to one task that are charged; two copies of a client's state cause one.
_MOST_CONFLICTS = 8


def step(
    spec: ServerSpec, state: ServerState, request: Request, now: float
) -> tuple[ServerState, Reply]:
    """Answers one request.

    Args:
      request: from a client whose name was checked against its certificate.
      now: seconds of a monotonic clock, the same in all calls.

    Raises:
      HelloNeeded: the client did not send Hello since this server started, or sent one without its
        ledger's anchor.
      Superseded: another process of the client sent Hello since.
      LedgerError: Hello shows that client or server was rolled back.
      BudgetExceeded: an answer took more attempts than the budget has room for.
      ImpossibleAnswer: the study bounds answers, and this one is outside; see ``leave_out``.
      ProtocolError: the request breaks the protocol. In any case the state is unchanged.
    """
    name = request.client
    if name not in spec.clients:
        raise errors.ProtocolError(
            f"client {name!r} is not in the study", errors.did_you_mean(name, spec.clients)
        )
    state = tick(spec, state, now)
    # Hello starts a session. Begin and Submit carry a release: it is accepted or charged whoever sends it.
    if not isinstance(request, Hello | Begin | Submit):
        check_newest(state, name, request.session)
    seen = kept.put(state.presence.seen, name, now)
    state = state._replace(presence=state.presence._replace(seen=seen))
    match request:
        case Hello():
            return _hello(spec, state, request, now)
        case NextTask():
            check_session(spec, state, name, request.session)
            return _next_task(spec, settle(spec, _back(spec, state, name), now), request, now)
        case Begin():
            return _begin(spec, state, request)
        case Submit():
            return _submit(spec, state, request, now)
        case Renew():
            # A hanging client may still renew, so Renew does not end an absence.
            task = state.tasks.get(name)
            held = task is not None and task.task_id == request.task_id
            awaited = held and state.status not in OVER and not is_removed(state, name)
            return state, Renewed(awaited)
        case Failure():
            return _failure(spec, state, request, now), Noted()
        case Goodbye():
            return _gone(spec, state, name, LEFT, now), Noted()
    raise errors.ProtocolError(f"unknown request {type(request).__name__}")


def control(spec: ServerSpec, state: ServerState, action: Action, now: float) -> ServerState:
    """Pauses, resumes or stops a run; an action that is already in effect changes nothing.

    A paused run hands out no task and skips no turn, but still accepts and folds answers. A failed run
    can be resumed once its cause is fixed: all clients except removed ones are then awaited again. It can
    also be stopped for good: until clients hear of that, they keep what they need to continue.

    Raises:
      RunFailed: the run is over.
    """
    wanted = {"pause": "paused", "resume": "running", "stop": "stopped"}[action]
    state = tick(spec, state, now)
    if state.status == wanted:
        return state
    if state.status == "failed" and action == "resume":
        gone = {name: reason for name, reason in state.away.items() if reason == REMOVED}
        state = state._replace(away=gone)
    elif state.status in OVER and (state.status, action) != ("failed", "stop"):
        raise errors.RunFailed(
            f"the run is {state.status.replace('_', ' ')} and cannot be {wanted}",
            "start a new study, whose cost adds to this one's",
        )
    return settle(spec, state._replace(status=wanted), now)


def revoke(spec: ServerSpec, state: ServerState, names: Collection[str], now: float) -> ServerState:
    """Marks clients whose certificates are revoked as away; the run waits for none of them any more.

    Their earlier answers still count. A client that is enrolled again is back with its next call.

    Args:
      names: clients that the roster no longer admits; names that are not in the study change nothing.
    """
    for name in spec.clients:
        if name in names:
            state = _gone(spec, state, name, REVOKED, now)
    begun = key_board.settled(spec, state)
    return state if begun is state else settle(spec, begun, now)


def leave_out(spec: ServerSpec, state: ServerState, name: str, now: float) -> ServerState:
    """Marks a client whose answer was refused as impossible as away: its turn passes without a deadline.

    Its next call ends the absence. It still holds the task, which is charged and has that one answer.
    """
    return _gone(spec, state, name, IMPOSSIBLE, now)


def check_session(spec: ServerSpec, state: ServerState, client: str, session: str) -> None:
    """Checks that a client's process sent the latest Hello, and so may receive tasks and release.

    Raises:
      HelloNeeded: it sent no Hello to this server.
      Superseded: another process of the client sent Hello since.
    """
    check_newest(state, client, session)
    if client in spec.headers and state.presence.greeted.get(client) != session:
        raise _hello_needed(client)


def check_newest(state: ServerState, client: str, session: str) -> None:
    """Refuses an outdated session; a caller without one only asks questions, as `fedvi doctor` does.

    Raises:
      Superseded: another process of the client sent Hello since.
    """
    newest = state.presence.greeted.get(client)
    if newest and session and newest != session:
        raise errors.Superseded(
            f"another process greeted as {client!r} since: is its state in use twice?",
            "stop one of the two, and keep only the state that is newest",
        )


def _hello_needed(client: str) -> errors.HelloNeeded:
    return errors.HelloNeeded(
        f"client {client!r} did not greet this server since it started",
        "say Hello first: the two ledgers are compared there",
    )


def answer_of(state: ServerState, client: str, task_id: str) -> str | None:
    """Returns the digest of the one answer that a task may have, which has arrived or begun to.

    None if there is no such answer yet, or the task is not this client's.
    """
    if task_id.rpartition("/")[0] != client:
        return None
    if task_id in state.accepted:
        return state.accepted[task_id]
    book = state.ledgers.get(client)
    return None if book is None else next(iter(_sealed(book, task_id)), None)


def _sealed(book: ledgers.Ledger, task_id: str) -> list[str]:
    """Lists the digests sealed for a task, by attempt."""
    found = (ledgers.digest(book, name) for name in _attempts(book, task_id))
    return [digest for digest in found if digest is not None]


def _attempts(book: ledgers.Ledger, task_id: str) -> list[str]:
    """Lists the releases that were charged for a task."""
    names = (f"{task_id}#{attempt}" for attempt in itertools.count())
    return list(itertools.takewhile(lambda name: ledgers.state(book, name) is not None, names))


def _hello(
    spec: ServerSpec, state: ServerState, request: Hello, now: float
) -> tuple[ServerState, Reply]:
    name, book = request.client, state.ledgers.get(request.client)
    if request.study_digest == spec.seeded_otherwise != "":
        raise errors.ProtocolError(
            f"`simulation.insecure_seed` is set at one side only, client {name!r} or this server",
            "take it out of the study file at all sites: noise from a known seed protects nothing",
        )
    if request.study_digest != spec.study_digest:
        raise errors.ProtocolError(
            f"client {name!r} read another study: digest {request.study_digest[:12]}, "
            f"expected {spec.study_digest[:12]}",
            "give all sites the same study file",
        )
    if book is not None:
        if request.anchor is None:
            raise errors.HelloNeeded(
                f"client {name!r} did not say how far its ledger is, expected an anchor in Hello",
                "use the same version of fedvi at all sites",
            )
        ledgers.check_counterpart(book, request.anchor, "server")
    presence = state.presence
    if request.session or name not in presence.greeted:
        presence = presence._replace(greeted=kept.put(presence.greeted, name, request.session))
    state = settle(spec, _back(spec, state._replace(presence=presence), name), now)
    return state, Welcome(state.version, _anchor(state, name))


def _next_task(
    spec: ServerSpec, state: ServerState, request: NextTask, now: float
) -> tuple[ServerState, Reply]:
    name = request.client
    if is_removed(state, name):
        # One that may be admitted later needs the keys that it has.
        return state, Done(f"client {name!r} was removed from the run", openings.opens(spec))
    if state.status in OVER:
        return state, Done(ending(state), resumable=state.status == "failed")
    if state.away.get(name) == EXHAUSTED:
        return state, Done(_exhausted(name))
    if request.part is not None:
        if request.part.stage not in CLOSING:
            return keyed(spec, state, name, request.part, now)
        state = settle(spec, openings.post(spec, state, name, request.part), now)
        if parts := openings.parts(spec, state, name):
            return state, Wait(parts)
        # There is nothing to open: treat it as a plain request for a task.
        return _next_task(spec, state, request._replace(part=None), now)
    if state.status == "paused" or not key_board.is_ready(spec, state):
        return state, key_board.told_to_wait(state, name)
    if name in state.tasks:
        return state, Offer(state.tasks[name])
    if not is_selected(spec, state, name):
        return state, Wait()
    if openings.opens(spec):
        # All sites must number a round alike, even those that missed the previous one.
        state = state._replace(visits=kept.put(state.visits, name, state.turns[name]))
    task = task_of(spec, state, name)
    if name in state.ledgers:
        # Charge before handing out the task, whether or not it will be answered.
        try:
            book = ledgers.spend(
                state.ledgers[name], f"{task.task_id}#0", spec.costs[name], spec.budget
            )
        except errors.BudgetExceeded:
            return _gone(spec, state, name, EXHAUSTED, now), Done(_exhausted(name))
        state = state._replace(ledgers=kept.put(state.ledgers, name, book))
    return state._replace(tasks=kept.put(state.tasks, name, task)), Offer(task)


def task_of(spec: ServerSpec, state: ServerState, client: str) -> Task:
    """Returns the task that a client would be given now."""
    visit = state.visits[client]
    return Task(
        task_id=f"{client}/{visit}",
        client=client,
        visit=visit,
        version=state.version,
        posterior=tree.to_numpy(served(spec, state)),
        factor=state.factors[client],
        damping=_last_damping(state, None if openings.opens(spec) else client),
        coordinates=None if state.standing is None else state.standing.coordinates,
    )


def _last_damping(state: ServerState, client: str | None) -> float:
    """Returns the step of the fold of a client's last answer; with None, the step of the last fold."""
    for update in reversed(state.history):
        if client in kept.members(update.clients) or (client is None and update.clients):
            return update.damping
        if client in (*update.given_up, *update.dropped):
            return 0.0
    return 1.0


def _begin(spec: ServerSpec, state: ServerState, request: Begin) -> tuple[ServerState, Reply]:
    """Fixes a task's answer before its bytes arrive, so that no partial answer is seen without a charge."""
    name, digest = request.client, request.sha256
    only = answer_of(state, name, request.task_id)
    event = codec.event_from(request.event)
    if only not in (None, digest):
        return _conflict(spec, state, request, digest, event)
    if only is None:
        _check_greeted(spec, state, name)
    elif request.task_id in state.accepted:
        return state, Receipt("duplicate", state.version, _anchor(state, name))
    _check_cost(spec, name, _held(state, request).task_id, event)
    if name in state.ledgers:
        _, book = _seal(spec, state.ledgers[name], request, digest)
        if book is not state.ledgers[name]:
            state = state._replace(ledgers=kept.put(state.ledgers, name, book))
    return state, Noted()


def _held(state: ServerState, request: Begin | Submit) -> Task:
    task = state.tasks.get(request.client)
    if task is None or task.task_id != request.task_id:
        raise errors.ProtocolError(
            f"client {request.client!r} answered task {request.task_id!r}, which it does not hold"
        )
    return task


def _submit(
    spec: ServerSpec, state: ServerState, request: Submit, now: float
) -> tuple[ServerState, Reply]:
    name, digest = request.client, request.payload.sha256
    only = answer_of(state, name, request.task_id)
    if only not in (None, digest):
        _, event = codec.decode(request.payload)
        return _conflict(spec, state, request, digest, event)
    # The rest of an answer that began to arrive is accepted without a Hello: if another copy of the
    # client's state was charged meanwhile, no copy can send a valid one.
    if only is None or name in state.presence.greeted:
        state = _back(spec, state, name)
    if request.task_id in state.accepted:
        state = settle(spec, state, now)
        return state, Receipt("duplicate", state.version, _anchor(state, name))
    task = _held(state, request)
    change = _read(spec, task, request.payload)
    if name in state.ledgers:
        release_id, book = _seal(spec, state.ledgers[name], request, digest)
        book = ledgers.mark_sent(book, release_id)
        state = state._replace(ledgers=kept.put(state.ledgers, name, book))
    state = state._replace(
        tasks=kept.without(state.tasks, name),
        accepted=kept.appended(state.accepted, {request.task_id: digest}),
    )
    if is_removed(state, name):
        # The answer is charged, but a factor that was divided out does not come back.
        return state, Receipt("accepted", state.version, _anchor(state, name))
    if state.status not in OVER or state.status == "failed":
        # After the end an answer is only charged. A failed run may be resumed, so it keeps the answer.
        late = not is_in_turn(spec, state, name)
        if spec.gather is not None:
            state = openings.taken(spec, state, name, task.visit, request.payload)
            return _gathered(spec, state, Answer(task, change, late), now)
        what = f"the answer to task {task.task_id!r}"
        size = fold_sizes.with_answer(state, change.delta)
        if not fold_sizes.cannot_fail(spec, state, size):
            check_fold(spec, _with(state, Answer(task, change, late)), what)
        # Written only once accepted: a refused answer leaves nothing on the disk. From here on nothing
        # refers to the copy in memory, so that a fold has room for its own arrays.
        change = change._replace(delta=spec.keep(change.delta))
        state = fold_sizes.noted(_with(state, Answer(task, change, late)), size)
        state = settle(spec, state, now)
    return state, Receipt("accepted", state.version, _anchor(state, name))


def _gathered(
    spec: ServerSpec, state: ServerState, answer: Answer, now: float
) -> tuple[ServerState, Reply]:
    """Accepts an answer of which only a sum is published; drops one that is too late for its sum.

    No trial fold is made: a sum over fewer answers must not be computed. An answer that started from an
    older posterior belongs to a round whose sum is already published. If it were folded later, the
    difference of two sums would reveal it.
    """
    name = answer.task.client
    late = openings.is_late(spec, state, name, answer.task.visit)
    if late or answer.task.version != state.version:
        state = dropped(spec, state, name)
    else:
        change = answer.change._replace(delta=spec.keep(answer.change.delta))
        state = _with(state, answer._replace(change=change))
    state = settle(spec, state, now)
    return state, Receipt("accepted", state.version, _anchor(state, name))


def _with(state: ServerState, answer: Answer) -> ServerState:
    return state._replace(answers=(*state.answers, answer))


def _read(spec: ServerSpec, task: Task, payload: Payload) -> Change:
    """Decodes an answer and checks its form and its cost."""
    value, event = codec.decode(payload)
    _check_cost(spec, task.client, task.task_id, event)
    what = f"the answer to task {task.task_id!r}"
    limit = spec.limits.get(task.client)
    # Of a masked answer only the sum can be checked.
    if limit is not None and not spec.is_masked:
        limits.check(limit, value, what)
    if spec.gather is not None:
        with strictly(f"{what} cannot be read"):
            return sum_rounds.exact(spec.gather, value, spec.prior, len(spec.clients))
    with strictly(f"{what} cannot be read"):
        change = spec.finish[task.client](value, task)
        # For a survey ``delta`` is zero, whatever the client sent: check the survey as well.
        for told in (change.delta, *(() if change.survey is None else (change.survey,))):
            spec.family.check(told, what)
            check_size(told, what)
    # In its stored form, so that sums of it have the same bits after a restart.
    return change._replace(delta=tree.freeze(change.delta))


def _check_cost(spec: ServerSpec, client: str, task_id: str, event: events.Event) -> None:
    if event != spec.costs[client]:
        raise errors.ProtocolError(
            f"the answer to task {task_id!r} cost {event}, expected {spec.costs[client]}"
        )


def _seal(
    spec: ServerSpec, book: ledgers.Ledger, request: Begin | Submit, digest: str
) -> tuple[str, ledgers.Ledger]:
    """Records an answer's missed attempts and its seal in the ledger; returns the release's name too."""
    known = len(_attempts(book, request.task_id))
    if not 0 <= request.attempt < known + _MOST_MISSED:
        raise errors.ProtocolError(
            f"attempt is {request.attempt}, expected at least 0 and below {known + _MOST_MISSED}"
        )
    cost, release_id = spec.costs[request.client], f"{request.task_id}#{request.attempt}"
    if request.attempt >= known:
        # Pricing is slow: check the budget once, with the last attempt, which covers all of them.
        for missed in range(known, request.attempt):
            book = ledgers.charge(book, f"{request.task_id}#{missed}", cost)
        book = ledgers.spend(book, release_id, cost, spec.budget)
    return release_id, ledgers.seal(book, release_id, digest)


def _conflict(
    spec: ServerSpec, state: ServerState, request: Begin | Submit, digest: str, event: events.Event
) -> tuple[ServerState, Reply]:
    """Charges a second, different answer to a task.

    Its bytes have left the site, so it is charged without a Hello and without a check of the budget, and
    it does not end an absence. From here on the server's ledger matches no copy of the client's state:
    each copy must send Hello again, and is refused there.
    """
    name, task_id = request.client, request.task_id
    _check_cost(spec, name, task_id, event)
    book = state.ledgers.get(name)
    # Repeated bytes are not charged again.
    if book is not None and digest not in (sealed := _sealed(book, task_id)):
        if len(sealed) > _MOST_CONFLICTS:
            raise errors.ProtocolError(
                f"task {task_id!r} was answered in {len(sealed)} ways, expected one",
                "was this client's state copied?",
            )
        book = _with_one_more(book, task_id, digest, event)
        greeted = kept.without(state.presence.greeted, name)
        state = state._replace(
            ledgers=kept.put(state.ledgers, name, book),
            presence=state.presence._replace(greeted=greeted),
        )
    return state, Receipt("conflict", state.version, _anchor(state, name))


def _with_one_more(
    book: ledgers.Ledger, task_id: str, digest: str, event: events.Event
) -> ledgers.Ledger:
    """Charges one more attempt at a task in full, even beyond the budget."""
    free = f"{task_id}#{len(_attempts(book, task_id))}"
    return ledgers.mark_sent(ledgers.seal(ledgers.charge(book, free, event), free, digest), free)


def _failure(spec: ServerSpec, state: ServerState, request: Failure, now: float) -> ServerState:
    if request.code not in FAILURES:
        raise errors.ProtocolError(
            f"code is {request.code!r}, expected one of {', '.join(FAILURES)}"
        )
    task = state.tasks.get(request.client)
    # A failure of a task that was answered since no longer matters.
    if task is None or task.task_id != request.task_id:
        return state
    return _gone(spec, state, request.client, request.code, now)


def _back(spec: ServerSpec, state: ServerState, name: str) -> ServerState:
    """Marks a client as back.

    The caller must process the client's message before it settles the state: now that the client is
    back, the run may skip the others and end.
    """
    _check_greeted(spec, state, name)
    if state.away.get(name, EXHAUSTED) in _STAYS:
        return state
    return state._replace(away=kept.without(state.away, name))


def _check_greeted(spec: ServerSpec, state: ServerState, name: str) -> None:
    if name in spec.headers and name not in state.presence.greeted:
        raise _hello_needed(name)


def _gone(spec: ServerSpec, state: ServerState, name: str, reason: str, now: float) -> ServerState:
    if state.away.get(name) in (reason, *_STAYS) or state.status in OVER:
        return state
    return settle(spec, state._replace(away=kept.put(state.away, name, reason)), now)


def _anchor(state: ServerState, name: str) -> ledgers.Anchor | None:
    book = state.ledgers.get(name)
    return None if book is None else ledgers.anchor(book)


def _exhausted(name: str) -> str:
    return f"the budget of client {name!r} has no room for another release"


def ending(state: ServerState) -> str:
    """Returns a sentence that says why the run ended."""
    return {
        "completed": "the schedule has finished",
        "stopped": "the run was stopped",
        "budget_exhausted": "the budget is spent",
        "failed": "the run failed: too few clients are left that can answer",
    }[state.status]
