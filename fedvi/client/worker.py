"""The client's loop: pull, guard, solve, record, push; one phase a tick."""

from collections.abc import Callable
from typing import Any, Literal, Protocol, runtime_checkable

from fedvi import errors
from fedvi.federation.messages import (
    Done,
    Hello,
    NextTask,
    Offer,
    Payload,
    Receipt,
    Submit,
    Welcome,
)
from fedvi.inference.base import LocalSolver, Shard, Task
from fedvi.privacy import ledger as ledgers
from fedvi.privacy.random import Root
from fedvi.transport import codec
from fedvi.transport.memory import Link

__all__ = ["ClientStore", "Worker"]


@runtime_checkable
class ClientStore(Protocol):
    """A client's ledger and outbox; each method returns once its change is durable."""

    @property
    def ledger(self) -> ledgers.Ledger:
        """The ledger as last saved."""

    def save(self, ledger: ledgers.Ledger) -> None:
        """Saves a ledger that extends the one before it."""

    def seal(self, ledger: ledgers.Ledger, release_id: str, payload: Payload) -> None:
        """Saves sealed bytes and the ledger that says so, together."""

    def unsent(self) -> tuple[str, Payload] | None:
        """Returns a release that is sealed and not yet acknowledged."""

    def acknowledge(self, ledger: ledgers.Ledger, release_id: str) -> None:
        """Saves the ledger and forgets the bytes."""


class Worker:
    """One client at work.

    Delivery: the cost of a task is reserved in the ledger before the solver gets a record; the noised bytes
    are sealed before they are sent; sending again sends the same bytes. So privacy is charged at
    least once and never less than was released.

    Args:
      client: its name in the study.
      study_digest: of the study that it read.
      link: to the coordinator.
      solver: how it answers tasks.
      shard: its records; a function, so that they are read only after the budget allowed it.
      root: its secret randomness.
      store: its ledger and outbox.
      budget: what it may spend; None only in a study without protection.
    """

    def __init__(
        self,
        client: str,
        study_digest: str,
        link: Link,
        solver: LocalSolver,
        shard: Callable[[], Shard],
        root: Root,
        store: ClientStore,
        budget: ledgers.Budget | None,
    ) -> None:
        self.client = client
        self._study_digest = study_digest
        self._link = link
        self._solver = solver
        self._shard = shard
        self._root = root
        self._store = store
        self._budget = budget
        self._state: Any = None
        self._greeted = False
        self._info: dict[str, Any] = {}

    @property
    def ledger(self) -> ledgers.Ledger:
        """The ledger as last saved."""
        return self._store.ledger

    @property
    def info(self) -> dict[str, Any]:
        """What the solver told of its last visit: about private records, and never to leave."""
        return self._info

    def tick(self) -> Literal["solved", "sent", "idle", "done"]:
        """Does one phase of work: sends a sealed answer if there is one, else asks for a task.

        Raises:
          BudgetExceeded: if the next task would cost more than is left; the solver is given nothing.
          ProtocolError: if the server refuses, or answers what it must not.
        """
        if not self._greeted:
            self._greet()
        unsent = self._store.unsent()
        if unsent is not None:
            self._send(*unsent)
            return "sent"
        reply = self._link.handle(NextTask(self.client))
        if isinstance(reply, Offer):
            self._solve(reply.task)
            return "solved"
        return "done" if isinstance(reply, Done) else "idle"

    def _greet(self) -> None:
        reply = self._link.handle(Hello(self.client, self._study_digest))
        if not isinstance(reply, Welcome):
            raise errors.ProtocolError(f"the server answered Hello with {type(reply).__name__}")
        self._greeted = True

    def _solve(self, task: Task) -> None:
        if task.client != self.client:
            raise errors.ProtocolError(f"client {self.client!r} was offered {task.client!r}'s task")
        # Charged before the solver sees a record: a failure from here on leaves the slot charged,
        # and another attempt is another release, at its own price and with its own noise.
        attempt = 0
        while ledgers.state(self.ledger, release_id := f"{task.task_id}#{attempt}") is not None:
            attempt += 1
        self._store.save(ledgers.spend(self.ledger, release_id, self._solver.cost, self._budget))
        if self._state is None:
            self._state = self._solver.init(task.posterior)
        self._state, released, self._info = self._solver.update(
            lambda purpose: self._root.key(self.client, release_id, purpose),
            self._state,
            task,
            self._shard(),
        )
        if released.event != self._solver.cost:
            raise errors.PrivacyError(
                f"solver {self._solver.name!r} reserved {self._solver.cost} and released "
                f"{released.event}",
                "a solver's cost must be the event of what it releases",
            )
        payload = codec.encode(released)
        ledger = ledgers.seal(self.ledger, release_id, payload.sha256)
        self._store.seal(ledger, release_id, payload)

    def _send(self, release_id: str, payload: Payload) -> None:
        task_id = release_id.rpartition("#")[0]
        reply = self._link.handle(Submit(self.client, task_id, payload))
        if not isinstance(reply, Receipt) or reply.status == "conflict":
            raise errors.ProtocolError(
                f"the server holds another answer to task {task_id!r}",
                "was this client's state restored from a backup, or is it running twice?",
            )
        self._store.acknowledge(ledgers.mark_sent(self.ledger, release_id), release_id)
