"""Runs the client's loop: fetch a task, charge it, solve it, seal the answer and send it.

    hello ─► compare the two ledgers

    offer ─► reserve ─► read records ─► note them ─► solve ─► seal ─► send ─► acknowledge
             charge        │                          │       bytes            forget the
             and secret    └ refused if they changed  └ noise under the secret   bytes
             in            since the first release       alone; erased at `seal`

A worker that is killed between two steps continues where it was: with the same charge, secret and
input it computes the same bytes. After an upgrade it might not; then a release that was charged and not
sealed is abandoned, and stays charged.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, NoReturn

import jax
import numpy as np

from fedvi import __version__, errors
from fedvi.client import inputs
from fedvi.data.stored import StoredColumn
from fedvi.federation.messages import (
    Done,
    Failure,
    Hello,
    NextTask,
    Offer,
    Payload,
    Receipt,
    Submit,
    Welcome,
)
from fedvi.privacy import events, random
from fedvi.privacy import ledger as ledgers
from fedvi.privacy.filter import RdpFilter
from fedvi.privacy.metrics import Metric, Private
from fedvi.privacy.owned import Unique, not_copied
from fedvi.store.base import ClientStore, Pending
from fedvi.transport import codec
from fedvi.transport.memory import Link
from fedvi.typing import Eta
from fedvi.updates.base import LocalSolver, Shard, Task

__all__ = ["ClientStore", "Means", "Outcome", "Visit", "Worker", "check_event"]

_GREETINGS = 100
"""How often a server may restart during one request of a worker, so that a broken server ends the loop."""

_CODES: tuple[tuple[type[errors.FedviError], str], ...] = (
    (errors.BudgetExceeded, "budget"),
    (errors.PolicyRefused, "policy"),
    (errors.DataError, "data"),
    (errors.SolverError, "solver"),
)
"""The word of ``messages.FAILURES`` for each kind of error; all others are "other"."""


Outcome = tuple[Any, Any, Mapping[str, Any]]
"""What a solver's ``update`` returns: its private state, the release, and its metrics."""


class Visit(NamedTuple):
    """A task that is charged and ready to be computed. Never leaves the client.

    Attributes:
      solver: computes the answer.
      release_id: its name in the ledger.
      secret: its random keys are derived from this.
      before: the solver's private state.
      task: the task.
      shard: the records.
    """

    solver: LocalSolver
    release_id: str
    secret: bytes
    before: Any
    task: Task
    shard: Shard

    def __repr__(self) -> str:
        return f"Visit({self.release_id!r})"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise not_copied(self)

    def computed(self) -> Outcome:
        """Returns the solver's outcome."""
        key_of = functools.partial(random.key, self.secret)
        return self.solver.update(key_of, self.before, self.task, self.shard)


class Means(NamedTuple):
    """The parts of a worker that has no policy, no mask and no private log of its own.

    Attributes:
      solver: computes its answers.
      budget: what it may spend.
      root: the source of its secrets.
      store: its ledger.
    """

    solver: LocalSolver
    budget: ledgers.Budget | RdpFilter | None
    root: random.Root
    store: ClientStore


def check_event(solver: LocalSolver, found: events.Event) -> None:
    """Checks that a release cost what was charged for it.

    Raises:
      PrivacyError: it cost something else.
    """
    if found != solver.cost:
        raise errors.PrivacyError(
            f"solver {solver.name!r} reserved {solver.cost} and released {found}",
            "a solver's cost must be the event of what it releases",
        )


class Worker(Unique):
    """Runs one client; refuses to be copied or pickled.

    Guarantee: at any moment, whatever was killed before,

    - the durable ledger has charged every release whose records were read, at its full price;
    - all that was sent for one entry of the ledger are the same bytes, whose digest it holds;
    - no secret serves two inputs: a release is computed again only from the same task, records and
      solver's state, by the same versions of fedvi and JAX, which HMACs under the secret verify; an
      interrupted release whose records were never read draws a new secret, so that a store restored from
      a backup draws other noise too;
    - a sealed release's secret is stored nowhere.

    This assumes that the store keeps its promises and that ``root`` is from the operating system. It also
    assumes that the store is not an old copy, which a client cannot see alone. So the server keeps the
    same ledger. Each party compares the other's ledger with its own at every Hello and after every answer,
    and refuses to continue if either was rolled back.

    Delivery: privacy is charged at least once and never less than was released.

    Args:
      study_digest: of the study that it read.
      shard: returns its records; a function, so that they are read only after the budget allowed it.
      root: the source of each release's secret.
      store: its ledger, secrets and outbox.
      budget: what it may spend; None only in a study without protection.
      admit: called with a task, its price and the price of all other releases of this ledger,
        before anything is charged; raises to refuse it.
      mask: masks a task's answer before it is sealed and sent; None in studies without masks.
      private_log: called with a release's name and its metrics once it is sealed. Most metrics are
        private: write them to a file of the client's own or nowhere. Off by default.
      layout: returns a shard in the form of ``shard``'s that follows from the study alone, or None if that
        is not known; compiled programs are checked on it before the first charge.
      is_proper: of the study's family: a task about another q is refused before it is charged.
    """

    _why = "both would answer the same tasks, with the same secrets"
    _instead = "make another one of the same store, and use one at a time"

    def __init__(
        self,
        client: str,
        study_digest: str,
        link: Link,
        solver: LocalSolver,
        shard: Callable[[], Shard],
        root: random.Root,
        store: ClientStore,
        budget: ledgers.Budget | RdpFilter | None,
        admit: Callable[[Task, events.Event, events.Event], None] | None = None,
        private_log: Callable[[str, Mapping[str, Metric]], None] | None = None,
        mask: Callable[[Task, Payload], Payload] | None = None,
        layout: Callable[[], Shard | None] = lambda: None,
        is_proper: Callable[[Eta], bool] = lambda eta: True,
    ) -> None:
        self.client = client
        self._study_digest = study_digest
        self._link = link
        self._solver = solver
        self._shard = shard
        self._root = root
        self._store = store
        self._budget = budget
        self._admit = admit
        self._private_log = private_log
        self._mask = mask
        self._layout = layout
        self._is_proper = is_proper
        self._greeted = False
        self._ended = ""
        self._info: Mapping[str, Metric] = {}
        self._digested: tuple[Shard, bytes] | None = None

    @property
    def ledger(self) -> ledgers.Ledger:
        """The ledger as last stored."""
        return self._store.ledger

    @property
    def anchor(self) -> ledgers.Anchor:
        """The ledger's length and last hash, for another party to keep; reveals nothing about records."""
        return ledgers.anchor(self.ledger)

    @property
    def info(self) -> Mapping[str, Metric]:
        """The solver's metrics of its last visit; private unless declared otherwise."""
        return self._info

    @property
    def ended(self) -> str:
        """The server's reason why there is no more work; empty before that."""
        return self._ended

    @property
    def means(self) -> Means | None:
        """The worker's parts, if its visits may be charged and computed with those of others; else None."""
        if self._admit is not None or self._mask is not None or self._private_log is not None:
            return None
        return Means(self._solver, self._budget, self._root, self._store)

    def records(self) -> tuple[Shard, bytes]:
        """Reads the records and returns them with their HMAC; call it only after the budget allowed it."""
        shard = self._shard()
        return shard, self._digest(shard)

    def tick(self) -> Literal["solved", "sent", "idle", "done"]:
        """Does one phase of work: sends a sealed answer if there is one, otherwise asks for a task.

        If a task cannot be answered, the server hears one word of ``messages.FAILURES``.

        Raises:
          BudgetExceeded: the next task would cost more than is left; the solver does not run.
          LedgerError: the server's ledger of this client contradicts its own, or the server has
            none although releases were charged.
          PrivacyError: the records changed since earlier releases, or the solver's release cost something
            else than was charged.
          ProtocolError: the server refuses the request, or its reply breaks the protocol.
        """
        found = self.begin()
        if not isinstance(found, Visit):
            return found
        try:
            outcome: Outcome | Exception = found.computed()
        except Exception as error:  # reported by `end`
            outcome = error
        self.end(found, outcome)
        return "solved"

    def begin(self) -> "Visit | Literal['sent', 'idle', 'done']":
        """Does what ``tick`` does except for the solving, which the caller may batch with other visits.

        Returns:
          A visit that is already charged: compute it and pass it to ``end`` before any other call to this
          worker. Or, if there is nothing to solve, what ``tick`` returns.

        Raises:
          FedviError: as in ``tick``.
        """
        for _ in range(_GREETINGS):
            if not self._greeted:
                self._greet()
            try:
                return self._begun()
            except errors.HelloNeeded as error:
                # The server restarted, perhaps from an older state.
                self._greeted, refused = False, error
        raise refused

    def end(self, visit: "Visit", outcome: Outcome | Exception) -> None:
        """Seals the outcome of a visit, or reports its failure to the server.

        Raises:
          FedviError: as in ``tick``; the outcome, if it is an error.
        """
        try:
            if isinstance(outcome, Exception):
                raise outcome
            self._seal(visit, *outcome)
        except Exception as error:  # any failure: the server must not wait in vain
            self._report(visit.task, error)
            raise

    def _begun(self) -> "Visit | Literal['sent', 'idle', 'done']":
        unsent = self._store.unsent()
        if unsent is not None:
            self._send(*unsent)
            return "sent"
        # Whether it comes by a network, a file or within a process: the same input, the same fingerprint.
        # Where answers are masked, all sites agree on a digest of the whole task.
        bare = self._solver.renews and self._mask is None
        reply = self._link.handle(NextTask(self.client, without_factor=bare))
        if isinstance(reply, Offer):
            try:
                return self._prepared(reply.task._replace(factor=None) if bare else reply.task)
            except Exception as error:  # any failure: the server must not wait in vain
                self._report(reply.task, error)
                raise
        if isinstance(reply, Done):
            if not reply.resumable:
                self._store.erase_state()
            self._ended = reply.reason
            return "done"
        return "idle"

    def _greet(self) -> None:
        self._greeted = False
        reply = self._link.handle(Hello(self.client, self._study_digest, self.anchor))
        if not isinstance(reply, Welcome):
            raise errors.ProtocolError(f"the server answered Hello with {type(reply).__name__}")
        ledgers.check_counterpart(self.ledger, reply.anchor, "client")
        self._greeted = True

    def _report(self, task: Task, error: Exception) -> None:
        """Tells the server that a task cannot be answered, without details that may depend on records."""
        code = next((code for kind, code in _CODES if isinstance(error, kind)), "other")
        # The caller must see the original error, even if the server cannot be reached.
        with contextlib.suppress(errors.FedviError, OSError):
            self._link.handle(Failure(self.client, task.task_id, code))

    def _prepared(self, task: Task) -> "Visit":
        if task.client != self.client:
            raise errors.ProtocolError(f"client {self.client!r} was offered {task.client!r}'s task")
        # No run hands out such a q, and a solver would fail on it after the charge.
        if not self._is_proper(task.posterior):
            raise errors.ProtocolError(
                f"task {task.task_id!r} has a posterior that is improper, expected a proper one",
                "the server is damaged or dishonest: ask the coordinator. Nothing was charged, and no "
                "record was read",
            )
        check = self._solver.check
        if check is not None and (layout := self._layout()) is not None:
            check(layout)
        before = self._state(task)
        # Charge before the solver sees a record: a failure from here on leaves the release charged.
        pending = self._taken_up(task, before) or self._reserved(task)
        release_id, secret = pending.release_id, pending.secret
        shard = self._shard()
        # Nothing is left to do if records have the form that was made up. Otherwise, where programs fail
        # their check, nothing is computed or sent, and this one release stays charged.
        if check is not None:
            check(shard)
        frozen = self._digest(shard)
        self._store.note_inputs(
            release_id,
            data=inputs.fingerprint(secret, "data", frozen),
            state=inputs.fingerprint(secret, "state", before),
            frozen=frozen,
        )
        return Visit(self._solver, release_id, secret, before, task, shard)

    def _seal(self, visit: "Visit", after: Any, released: Any, info: Mapping[str, Any]) -> None:
        check_event(self._solver, released.event)
        payload = codec.encode(released)
        if self._mask is not None:
            # From here on only the masked answer exists.
            payload = self._mask(visit.task, payload)
        ledger = ledgers.seal(self.ledger, visit.release_id, payload.sha256)
        self._store.seal(ledger, visit.release_id, payload, inputs.pack(after))
        # Metrics stay here: the message was encoded from the release alone.
        self._info = {name: _typed(value) for name, value in info.items()}
        if self._private_log is not None:
            self._private_log(visit.release_id, self._info)

    def _state(self, task: Task) -> Any:
        """Returns the solver's private state after the last sealed release."""
        initial = self._solver.init(task.posterior)
        packed = self._store.load_state()
        return initial if packed is None else inputs.unpack(packed, initial)

    def _taken_up(self, task: Task, state: Any) -> Pending | None:
        """Returns the interrupted release of this very task, if it may be continued.

        If it was begun from another input it stays charged, and the next attempt is a new release with
        its own secret and price.
        """
        pending = self._store.pending()
        if pending is None or _task_of(pending.release_id) != task.task_id:
            return None
        if pending.task != self._task_fingerprint(pending.secret, task):
            return None
        if pending.data is None:
            # Nothing was computed from this secret here. But this store may be a copy made at this
            # moment, whose original continued; later changes of records would go unnoticed. So draw a
            # new secret, and ask the policy again: the original may have sent its answer.
            self._ask(task, pending.release_id)
            return self._drawn(pending.release_id, task, self._store.renew)
        if pending.state != inputs.fingerprint(pending.secret, "state", state):
            return None
        return pending

    def _reserved(self, task: Task) -> Pending:
        """Charges a new release for a task and draws its secret."""
        attempt = 0
        while ledgers.state(self.ledger, release_id := f"{task.task_id}#{attempt}") is not None:
            attempt += 1
        ledger = ledgers.spend(self.ledger, release_id, self._solver.cost, self._budget)
        # Ask only once the study's own budget allows it: the policy may charge its own ledger for good.
        self._ask(task, release_id)
        return self._drawn(release_id, task, functools.partial(self._store.reserve, ledger))

    def _ask(self, task: Task, release_id: str) -> None:
        """Asks the site's policy, and passes the cost of all other releases of this study."""
        if self._admit is None:
            return
        entries = self.ledger.entries
        others = [e.event for e in entries if e.event is not None and e.release_id != release_id]
        self._admit(task, self._solver.cost, events.compose(*others))

    def _drawn(
        self, release_id: str, task: Task, store: Callable[[str, bytes, bytes], Pending]
    ) -> Pending:
        """Draws a release's secret and stores it with the task's fingerprint."""
        secret = self._root.secret(self.client, release_id)
        return store(release_id, secret, self._task_fingerprint(secret, task))

    def _task_fingerprint(self, secret: bytes, task: Task) -> bytes:
        cost = repr(self._solver.cost)
        # Other versions may draw other noise from the same secret, or round sums differently.
        made_by = f"fedvi {__version__}, jax {jax.__version__}, draws {random.DRAWS}"
        solver = self._solver.name
        return inputs.fingerprint(secret, "task", task, self._study_digest, solver, cost, made_by)

    def _digest(self, shard: Shard) -> bytes:
        """Returns the HMAC of the records under the store's local secret.

        Cached while the same shard is passed, if its memory is read-only.
        """
        if self._digested is not None and self._digested[0] is shard:
            return self._digested[1]
        digest = inputs.fingerprint(self._store.freeze.key, "records", shard)
        self._digested = (shard, digest) if _is_read_only(shard) else None
        return digest

    def _send(self, release_id: str, payload: Payload) -> None:
        # Send only the sealed bytes: this checks that the file was not changed in between.
        codec.decode(payload)
        ledger = ledgers.seal(self.ledger, release_id, payload.sha256)
        task_id, _, attempt = release_id.rpartition("#")
        reply = self._link.handle(Submit(self.client, task_id, payload, int(attempt)))
        if not isinstance(reply, Receipt) or reply.status == "conflict":
            raise errors.ProtocolError(
                f"the server holds another answer to task {task_id!r}",
                "was this client's state restored from a backup, or is it running twice?",
            )
        ledger = ledgers.mark_sent(ledger, release_id)
        if reply.anchor is not None:
            ledgers.check_counterpart(ledger, reply.anchor, "client")
        self._store.acknowledge(ledger, release_id)


def _task_of(release_id: str) -> str:
    """Returns the task that a release answers: ``TASK#ATTEMPT``."""
    return release_id.rpartition("#")[0]


def _typed(value: Any) -> Metric:
    """Marks an untyped metric as private, since the solver saw records."""
    return value if isinstance(value, Metric) else Private(value)


def _is_read_only(shard: Shard) -> bool:
    # The files of a stored column are unlinked, so that nobody can open and change them.
    kept = (jax.Array, StoredColumn)
    return all(isinstance(leaf, kept) or _frozen(leaf) for leaf in jax.tree.leaves(shard))


def _frozen(array: Any) -> bool:
    """Whether an array and all its bases are read-only: a view's base may be writable."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    return array is None or isinstance(array, bytes)
