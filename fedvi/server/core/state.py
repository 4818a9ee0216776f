"""Defines the server's constants of a run (``ServerSpec``) and its state (``ServerState``)."""

import itertools
import math
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.expfam import tree
from fedvi.federation import damping as damping_rules
from fedvi.federation import fold as folding
from fedvi.federation.messages import FAILURES
from fedvi.federation.progress import Patience, Progress, Schedule, StageEnd, StagePlace
from fedvi.privacy import events, ledger
from fedvi.server.core import kept
from fedvi.server.core.barrier import REMOVED, Round
from fedvi.server.core.fold_sizes import Weighed
from fedvi.server.core.sum_rounds import Gather
from fedvi.typing import Eta
from fedvi.updates.base import Change, Fold, Standing, Task
from fedvi.updates.limits import Limit

__all__ = [
    "EXHAUSTED",
    "IMPOSSIBLE",
    "LEFT",
    "OVER",
    "OVERDUE",
    "REMOVED",
    "REVOKED",
    "Answer",
    "Presence",
    "ServerSpec",
    "ServerState",
    "Update",
    "Waiting",
    "folded",
    "has_failed",
    "has_failed_for_good",
    "initial_state",
    "is_durably_equal",
    "is_removed",
    "present",
    "progress_of",
    "reported",
    "served",
    "sharing",
    "take_up",
]

OVER = ("stopped", "completed", "budget_exhausted", "failed")
"""The statuses of a run that has ended: clients get no more tasks."""

OVERDUE = "did not answer in time"
"""Why a client is away: its turn lasted longer than the deadline."""

LEFT = "left"
"""Why a client is away: it said goodbye."""

EXHAUSTED = "its budget is spent"
"""Why a client is away for good: its budget has no room for another release."""

IMPOSSIBLE = "its answer was refused as impossible"
"""Why a client is away: no declared records give what it sent. Its turn passes at once."""

REVOKED = "revoked"
"""Why a client is away: the roster admits none of its certificates, so that it cannot call."""

_FOR_GOOD = ("budget", "policy", EXHAUSTED, IMPOSSIBLE, REMOVED, REVOKED)

_NOTHING: Mapping[str, Any] = MappingProxyType({})

_MAPPINGS = ("factors", "visits", "turns", "tasks", "away", "ledgers")
_VOLATILE = ("greeted", "seen", "awaited")


class ServerSpec(NamedTuple):
    """What a run agrees on beforehand; public and constant.

    Attributes:
      study_digest: digest of the study, which a client's Hello must carry.
      clients: all clients, in the order of the study.
      family: the exponential family of q.
      prior: η_0, proper.
      schedule: who works when.
      step_rule: how the server chooses s.
      finish: client → (released value, task) → Change.
      costs: client → the event that one of its answers must cost.
      patience: how long a client is waited for.
      headers: client → the header of its ledger, the same at both ends. A client without one, such
        as the prior's worker, is charged nothing.
      budget: what each of these ledgers may spend; None only without protection.
      seeded_otherwise: the digest of the same study with its noise seed added or removed, whichever
        applies; empty if that is not known.
      keep: called with each new array of a fold that the state will hold; returns it, equal bit for bit,
        perhaps as a memory map, so that only one large array is in memory at a time.
      stand: computes, from noisy factors, the q that is handed out and the one that is reported; see
        ``LocalSolver.stand``. None: both are prior + Σ factors, projected if it is improper.
      renews: whether answers are folded with s = 1; see ``LocalSolver.renews``.
      limits: client → how large its answers may be by what the study declares; a client that is left out
        has no limit.
      gather: how the answers of a round are added up if only their sum is published; None if answers are
        folded individually.
      record: with ``gather``, called with the state before the sum of its answers is folded (True) or
        they are given up (False), even if there are none. It returns once its record is durable; see
        ``store.transcript``.
    """

    study_digest: str
    clients: tuple[str, ...]
    family: Any
    prior: Eta
    schedule: Schedule
    step_rule: damping_rules.StepRule
    finish: Mapping[str, Callable[[dict[str, np.ndarray], Task], Change]]
    costs: Mapping[str, events.Event]
    patience: Patience = Patience()
    headers: Mapping[str, ledger.Header] = _NOTHING
    budget: ledger.Budget | None = None
    seeded_otherwise: str = ""
    keep: Callable[[Eta], Eta] = lambda eta: eta
    stand: Callable[[Any, Fold, Standing | None], Standing] | None = None
    renews: bool = False
    limits: Mapping[str, Limit] = _NOTHING
    gather: Gather | None = None
    record: Callable[["ServerState", bool], None] = lambda state, is_folded: None

    @property
    def members(self) -> tuple[str, ...]:
        """The clients that a quorum counts: those that hold records."""
        return tuple(filter(self.headers.__contains__, self.clients)) or self.clients

    @property
    def is_masked(self) -> bool:
        """Whether the server sees only masked answers."""
        return self.gather is not None and self.gather.bits is not None

    @property
    def gathering(self) -> Gather:
        """``gather`` of a study that publishes only sums; there is none of another."""
        assert self.gather is not None
        return self.gather


class Answer(NamedTuple):
    """An answer that waits to be folded; with ``ServerSpec.gather``, in the form of ``sum_rounds.exact``.

    ``late`` says that its client's turn was skipped before it came: it is folded, but does not count as
    a turn.
    """

    task: Task
    change: Change
    late: bool = False


class Update(NamedTuple):
    """One entry of the history: a fold, or a change of the clients that take part; all of it public.

    Attributes:
      version: the version after it.
      clients: whose answers were folded, in order of arrival.
      staleness: for each answer, how many versions old the posterior was that it started from.
      damping: the step s.
      rounds: complete rounds after it, counted over the clients of the schedule's stage.
      gap: how far the posterior moved over the stage's round, if the fold completed one.
      missing: whose turns were skipped since the last fold, in the order of the study.
      removed: whose factors were divided out. No answer is folded then.
      added: who joined, with the factor 1. No answer is folded then, and the version stays.
      given_up: whose answers were dropped, since the round gave no sum that may be published. The
        version stays.
      dropped: whose answer came after the sum of its round was published. The version stays.
      stage: where the script was; None without a script.
    """

    version: int
    clients: tuple[str, ...]
    staleness: tuple[int, ...]
    damping: float
    rounds: int
    gap: folding.Gap | None
    missing: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    stage: StagePlace | None = None


class Waiting(NamedTuple):
    """Since when the server waits for a client, on its monotonic clock, and for which turn."""

    turn: int
    since: float


class Presence(NamedTuple):
    """Volatile state, lost when the server restarts: every wait then begins anew.

    Attributes:
      greeted: client → the session that sent Hello to this process last; clients with a ledger must.
      seen: client → when it was last heard of, in seconds of the server's monotonic clock.
      awaited: client → since when its answer is waited for.
      round: counts of the round, where the schedule has a barrier.
      weighed: how large the answers that wait are.
      due: the earliest time at which a client may be overdue.
    """

    greeted: Mapping[str, str] = _NOTHING
    seen: Mapping[str, float] = _NOTHING
    awaited: Mapping[str, Waiting] = _NOTHING
    round: Round | None = None
    weighed: Weighed | None = None
    due: float = -math.inf


class ServerState(NamedTuple):
    """All that the server must not lose, and ``presence``, which it may.

    Attributes:
      version: the number of folds and removals.
      posterior: η = prior + Σ factors, proper or not.
      factors: client → η_m; with ``ServerSpec.gather`` equal parts of the last sum.
      visits: client → how many of its answers were folded or, with ``gather``, dropped.
      turns: client → how many of its turns are over, answered or skipped.
      tasks: client → the task that it holds; kept beyond a skipped turn, since it was charged.
      answers: answers that are not folded yet, in order of arrival.
      accepted: task id → SHA-256 of the accepted payload.
      memory: group of clients folded together → what the step rule remembers.
      round_start: the reported posterior at the end of the last complete round, or of a later stage.
      history: all folds.
      status: "running" | "paused" | "stopped" | "completed" | "budget_exhausted" | "failed".
      away: client → why no answer is expected from it: ``OVERDUE``, ``LEFT``, ``EXHAUSTED``,
        ``IMPOSSIBLE``, ``REVOKED``, ``REMOVED`` or one of ``messages.FAILURES``.
      skipped: clients whose turns were skipped since the last fold, in order.
      stages: the ends of the script's completed stages, in order; empty without a script.
      ledgers: client → its ledger of charges, the same chain that the client keeps.
      keys: "STAGE/CLIENT" → its part of the keys for masks; see ``key_board`` and ``openings``. Empty
        without masks.
      standing: the result of ``ServerSpec.stand`` for the last fold; None if there is no such function,
        or before the first fold.
      presence: who is there; volatile.
    """

    version: int
    posterior: Eta
    factors: Mapping[str, Eta]
    visits: Mapping[str, int]
    turns: Mapping[str, int]
    tasks: Mapping[str, Task]
    answers: tuple[Answer, ...]
    accepted: Mapping[str, str]
    memory: Mapping[tuple[str, ...], damping_rules.Memory]
    round_start: Eta
    history: tuple[Update, ...]
    status: str = "running"
    away: Mapping[str, str] = _NOTHING
    skipped: tuple[str, ...] = ()
    stages: tuple[StageEnd, ...] = ()
    ledgers: Mapping[str, ledger.Ledger] = _NOTHING
    standing: Standing | None = None
    keys: Mapping[str, bytes] = _NOTHING
    presence: Presence = Presence()


def initial_state(spec: ServerSpec) -> ServerState:
    """Returns the state before the first task: q is the prior, every factor is 1.

    Raises:
      FamilyError: the prior does not fit the family, or is improper.
    """
    spec.family.check(spec.prior, "prior")
    if not spec.family.is_proper(spec.prior):
        raise errors.FamilyError("the prior is improper", "give it a finite scale")
    prior = tree.to_numpy(spec.prior)
    nothing = tree.freeze(spec.family.zeros())
    return sharing(
        spec,
        ServerState(
            version=0,
            posterior=prior,
            factors=dict.fromkeys(spec.clients, nothing),
            visits=dict.fromkeys(spec.clients, 0),
            turns=dict.fromkeys(spec.clients, 0),
            tasks={},
            answers=(),
            accepted={},
            memory={},
            round_start=prior,
            history=(),
            away={},
            ledgers=ledger.open_ledgers(spec.headers),
        ),
    )


def sharing(spec: ServerSpec, state: ServerState) -> ServerState:
    """Returns an equal state whose mappings share unchanged entries (``kept``)."""
    nothing = kept.ByClient.of({}, spec.clients)
    mappings: dict[str, Any] = {
        name: kept.put_all(nothing, getattr(state, name)) for name in _MAPPINGS
    }
    volatile: dict[str, Any] = {
        name: kept.put_all(nothing, getattr(state.presence, name)) for name in _VOLATILE
    }
    return state._replace(
        **mappings,
        accepted=kept.Appended(state.accepted),
        presence=state.presence._replace(**volatile),
    )


def take_up(spec: ServerSpec, state: ServerState) -> ServerState:
    """Returns a stored state, ready to continue, with an empty ``presence``.

    Raises:
      LedgerError: its ledgers are not those of this run.
    """
    found = {name: book.header for name, book in state.ledgers.items()}
    if found != dict(spec.headers):
        other = sorted(n for n in {*found, *spec.headers} if found.get(n) != spec.headers.get(n))
        raise errors.LedgerError(
            f"the stored ledger of {other[0]!r} has another header than this run's",
            "the state is of another study, or of another version of fedvi: use a new folder",
        )
    return sharing(spec, state._replace(presence=Presence()))


def is_durably_equal(before: ServerState, after: ServerState) -> bool:
    """Whether two states differ in nothing that must be saved; fields are compared by identity."""
    return all(
        getattr(before, field) is getattr(after, field)
        for field in ServerState._fields
        if field != "presence"
    )


def progress_of(spec: ServerSpec, state: ServerState) -> Progress:
    """Returns what the schedule may see; removed clients are left out."""
    begun = state.stages[-1].version if state.stages else 0
    gaps = (
        update.gap.largest
        for update in reversed(state.history)
        if update.gap is not None and update.version > begun
    )
    clients = present(spec, state)
    return Progress(
        clients=clients,
        visits=kept.in_order(state.visits, clients),
        turns=kept.in_order(state.turns, clients),
        open=tuple(filter(state.tasks.__contains__, clients)) if state.tasks else (),
        waiting=tuple(answer.task.client for answer in state.answers),
        version=state.version,
        gap=next(gaps, float("inf")),
        away=tuple(filter(state.away.__contains__, clients)) if state.away else (),
        started={name: task.version for name, task in state.tasks.items()},
        stages=state.stages,
        declared=spec.clients,
    )


def served(spec: ServerSpec, state: ServerState) -> Eta:
    """Returns the posterior that is handed out, projected if Σ factors made it improper.

    The projection is never written back into the factors.
    """
    if state.standing is not None:
        return state.standing.handed_out
    posterior = state.posterior
    if _needed_none.are(posterior):
        return posterior
    found = spec.family.project(posterior, spec.prior)
    if found is posterior:
        _needed_none.note(posterior)
    return found


class _Last:
    """Remembers the arrays of a posterior that needed no projection, since every task of a round asks.

    It keeps no array alive, and an array that is gone is never taken for another one in its place.
    """

    def __init__(self) -> None:
        self._arrays: tuple[weakref.ref[Any], ...] = ()

    def are(self, eta: Eta) -> bool:
        leaves, noted = tree.leaves(eta), self._arrays
        return len(leaves) == len(noted) and all(
            one() is leaf for one, leaf in zip(noted, leaves, strict=True)
        )

    def note(self, eta: Eta) -> None:
        leaves = tree.leaves(eta)
        if all(isinstance(leaf, np.ndarray) and not leaf.flags.writeable for leaf in leaves):
            self._arrays = tuple(map(weakref.ref, leaves))


_needed_none = _Last()


def reported(spec: ServerSpec, state: ServerState) -> Eta:
    """Returns the posterior to report so far: the one handed out, or a mean over folds."""
    return served(spec, state) if state.standing is None else state.standing.reported


def folded(state: ServerState) -> Mapping[str, int]:
    """Counts each client's answers that were folded; 0 for one without any.

    ``visits`` counts more where sums are folded: answers of rounds that were given up, and, where sites may
    drop out, rounds that a client missed, since all number a round alike.
    """
    return Counter(itertools.chain.from_iterable(update.clients for update in state.history))


def is_removed(state: ServerState, client: str) -> bool:
    """Whether an operator removed a client; its answers are no longer folded."""
    return state.away.get(client) == REMOVED


def present(spec: ServerSpec, state: ServerState) -> tuple[str, ...]:
    """Returns the clients that were not removed, in the order of the study."""
    if not state.away:
        return spec.clients
    return tuple(name for name in spec.clients if not is_removed(state, name))


def has_failed(state: ServerState, client: str) -> bool:
    """Whether a client cannot answer, by its report, its ledger, its answer, the roster or an operator."""
    return state.away.get(client) in (*FAILURES, *_FOR_GOOD)


def has_failed_for_good(state: ServerState, client: str) -> bool:
    """Whether more time would not help: the client is not allowed to answer."""
    return state.away.get(client) in _FOR_GOOD
