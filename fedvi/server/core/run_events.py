"""Run events: describes what changed between two server states, in sentences.

For the log, the event table and the terminal. Everything here is public: names, counts, versions, and
how far the posterior moved.
"""

from collections.abc import Mapping
from typing import NamedTuple

from fedvi import errors
from fedvi.federation.messages import Begin, Failure, Goodbye, Hello, Request, Submit
from fedvi.server.core import kept, key_board
from fedvi.server.core.protocol import (
    EXHAUSTED,
    OVERDUE,
    REMOVED,
    REVOKED,
    ServerSpec,
    ServerState,
    Update,
    answer_of,
)

__all__ = ["RunEvent", "between", "folded", "given_up", "refused", "silent"]

_LONGEST_REASON = 300


class RunEvent(NamedTuple):
    """An event of the run.

    Attributes:
      kind: one word: joined, left, failed, away, back, silent, offered, exported, answered, folded, added,
        given_up, dropped, removed, status, refused.
      client: the client concerned; empty for the run as a whole.
      text: a sentence.
      update: the fold, for kind "folded".
      at_will: whether a client can cause it with every call; such events need a limit.
    """

    kind: str
    client: str
    text: str
    update: Update | None = None
    at_will: bool = False


def refused(what: str, client: str, error: errors.FedviError) -> RunEvent:
    """Reports a refused call, with only the first line of the reason and no hint."""
    who = f"{client}: " if client else ""
    # A message may quote outside input of any length, and this is written to disk.
    reason = error.message.partition("\n")[0][:_LONGEST_REASON]
    return RunEvent("refused", client, f"{who}{what} refused: {reason}", at_will=True)


def silent(client: str) -> RunEvent:
    """Reports that a client has been quiet for much longer than usual."""
    return RunEvent("silent", client, f"{client} has not been heard of for longer than usual")


def between(
    spec: ServerSpec, before: ServerState, after: ServerState, request: Request | None
) -> list[RunEvent]:
    """Lists what changed from one state to the next.

    Args:
      request: the cause; None for a tick or an operator's action.
    """
    found: list[RunEvent] = []
    match request:
        case Hello() if _has_joined(before, after, request.client):
            text = f"{request.client} joined"
            found.append(RunEvent("joined", request.client, text, at_will=True))
        case Goodbye():
            text = f"{request.client} left"
            found.append(RunEvent("left", request.client, text, at_will=True))
        case Failure():
            text = f"{request.client} cannot answer {request.task_id}: {request.code}"
            found.append(RunEvent("failed", request.client, text, at_will=True))
        case Begin() | Submit() if _is_charged_beside(before, after, request):
            text = (
                f"{request.client} sent other bytes for {request.task_id}, charged once more: is its "
                "state in use twice?"
            )
            found.append(RunEvent("refused", request.client, text))
    if before is after:
        return found
    if before.tasks is not after.tasks or before.accepted is not after.accepted:
        found += _tasks(before, after)
    if before.away is not after.away:
        found += _presence(spec, before, after)
    for update in after.history[len(before.history) :]:
        for name in update.added:
            text = f"{name} was added to the run"
            if spec.gather is not None:
                text = f"{name} joins: first all sites agree on keys anew"
            found.append(RunEvent("added", name, text))
        for name in update.removed:
            text = f"{name} was removed: version {update.version} is without its factor"
            if spec.gather is not None:  # nothing else can be removed from sums
                verb = "goes on" if key_board.epoch(after) else "begins"
                text = f"{name} was removed: the study {verb} without it"
            found.append(RunEvent("removed", name, text))
        if update.given_up:
            found.append(RunEvent("given_up", "", given_up(spec, update)))
        for name in update.dropped:
            text = f"{name} answered after the sum of its round was published: dropped, and stays charged"
            found.append(RunEvent("dropped", name, text))
        if update.clients:
            found.append(RunEvent("folded", "", folded(spec, update, after.away), update))
    if after.status != before.status:
        found.append(RunEvent("status", "", f"the run is {after.status.replace('_', ' ')}"))
    return found


def _has_joined(before: ServerState, after: ServerState, client: str) -> bool:
    """Whether a Hello is news: it starts another session, or ends an absence."""
    was, now = before.presence.greeted.get(client), after.presence.greeted.get(client)
    return was != now or (client in before.away) != (client in after.away)


def _is_charged_beside(before: ServerState, after: ServerState, request: Begin | Submit) -> bool:
    """Whether an answer was charged that differs from the one the task already has."""
    digest = request.sha256 if isinstance(request, Begin) else request.payload.sha256
    only = answer_of(before, request.client, request.task_id)
    return before.ledgers is not after.ledgers and only not in (None, digest)


def given_up(spec: ServerSpec, update: Update) -> str:
    """Describes a round that was given up: who answered, and why that is not enough."""
    least = 0 if spec.gather is None else spec.gather.sums.least_reporting
    enough = len(update.given_up) >= least
    why = "whose sum gives no posterior" if enough else f"expected {least} or more"
    return (
        f"{_round(spec, update)} was given up: answered: "
        f"{', '.join(update.given_up)}, {why}; they stay charged"
    )


def folded(spec: ServerSpec, update: Update, away: Mapping[str, str]) -> str:
    """Describes a fold: who answered, who was missing, the step, and how far the posterior moved.

    Args:
      away: client → why it is away; revoked clients are marked.
    """
    parts = [
        f"version {update.version}",
        _round(spec, update),
        f"answered: {', '.join(update.clients)}" if update.clients else "nobody answered",
    ]
    late = [name for name in update.missing if name in update.clients]
    missing = [name for name in update.missing if name not in late]
    if late:
        parts.append(f"late, for an earlier turn: {', '.join(late)}")
    if missing:
        words = [f"{n} (revoked)" if away.get(n) == REVOKED else n for n in missing]
        parts.append(f"MISSING: {', '.join(words)}")
    parts.append(f"damping {update.damping:.3g}")
    if update.gap is not None:
        parts.append(f"gap {update.gap.largest:.3g} sd")
    return "  ".join(parts)


def _round(spec: ServerSpec, update: Update) -> str:
    """Describes how far the run was; with a script, within its stage."""
    if update.stage is not None:
        return update.stage.words
    return f"round {update.rounds}/{spec.schedule.rounds}"


def _tasks(before: ServerState, after: ServerState) -> list[RunEvent]:
    found = [
        RunEvent("offered", name, f"{name} works on {task.task_id}")
        for name, was, task in kept.differences(before.tasks, after.tasks)
        if task is not None and (was is None or was.task_id != task.task_id)
    ]
    if len(after.accepted) != len(before.accepted):
        for task_id, _ in kept.since(after.accepted, len(before.accepted)):
            name = task_id.rpartition("/")[0]
            found.append(RunEvent("answered", name, f"{name} answered {task_id}"))
    return found


def _presence(spec: ServerSpec, before: ServerState, after: ServerState) -> list[RunEvent]:
    found: list[RunEvent] = []
    for name in spec.clients:
        was, now = before.away.get(name), after.away.get(name)
        # A client that was away already is reported again if it is now revoked, since it cannot come back
        # by itself. A removal is reported from the history.
        if now not in (None, REMOVED) and (was is None or now == REVOKED != was):
            # These three come from the server's clock, budget and roster, not from the client.
            at_will = now not in (OVERDUE, EXHAUSTED, REVOKED)
            found.append(RunEvent("away", name, f"{name} is away: {now}", at_will=at_will))
        if was is not None and now is None:
            found.append(RunEvent("back", name, f"{name} is back", at_will=True))
    return found
