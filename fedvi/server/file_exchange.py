"""Exchanges tasks and results as files, for clients without a network.

It uses the same coordinator as a server: a task is charged before it goes out, each answer counts once,
and everything is on the disk before a reply. No server may run on the same state meanwhile.
"""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from fedvi import errors
from fedvi.federation.messages import (
    Done,
    Hello,
    NextTask,
    Offer,
    Receipt,
    Reply,
    Request,
    Submit,
    Wait,
)
from fedvi.privacy import ledger as ledgers
from fedvi.server.app import payload_limit
from fedvi.server.coordinator import Coordinator
from fedvi.server.core import key_board, openings, protocol, run_events
from fedvi.server.core.protocol import ServerSpec, ServerState
from fedvi.server.core.run_events import RunEvent
from fedvi.transport import parcels
from fedvi.transport.parcels import ResultFile, TaskFile

__all__ = ["Exported", "Hand", "standing"]


class Exported(NamedTuple):
    """The result of an export for one client.

    Attributes:
      client: its name.
      status: "task", "keys" (its part of the keys is asked for), "end" (of the run for it) or "wait".
      task_id: of the task; empty without one.
      path: of the file; None if none was written.
    """

    client: str
    status: str
    task_id: str
    path: Path | None


class Hand:
    """Passes requests between a coordinator and the files of clients.

    Args:
      coordinator: answers the requests; its clock should stand still, since files have no deadline.
      tell: called with each event.
    """

    def __init__(
        self,
        spec: ServerSpec,
        coordinator: Coordinator,
        tell: Callable[[RunEvent], None] = lambda event: None,
    ) -> None:
        self.spec, self.coordinator, self.tell = spec, coordinator, tell
        self.payload_limit = payload_limit(spec)

    def revoke(self, names: Collection[str]) -> None:
        """Marks clients whose certificates are revoked; as at a server, the run does not wait for them."""
        before = self.coordinator.state
        self.coordinator.revoke(names)
        self._tell_of(before, None)

    def export(self, client: str, folder: Path, tls: Path) -> Exported:
        """Asks for a client's next task, and writes it to ``folder/CLIENT-VISIT.task``.

        The task stays the same until it is answered. The file holds the server's ledger of the client,
        and the client compares it with its own. The server compares them when the answer comes.

        Args:
          folder: an existing folder.
          tls: the server's folder of certificates, to sign with.

        Raises:
          ConfigError: answers are masked and rounds may miss some sites. Each round would then take three
            files from each site, in both directions.
          FedviError: the coordinator refuses, or the file cannot be written.
        """
        if openings.opens(self.spec):
            raise errors.ConfigError(
                "privacy.least_reporting is below the number of clients beside aggregation.secure = true: "
                "the sum of such a round takes two more messages of each site, which do not travel by hand",
                "leave least_reporting out, or let the sites call a server",
            )
        book = self.coordinator.state.ledgers[client]
        self._handle(Hello(client, self.spec.study_digest, ledgers.anchor(book)), quiet=True)
        reply = self._handle(NextTask(client))
        state = self.coordinator.state
        match reply, key_board.wanted(self.spec, state, client):
            case Offer(task), _:
                status, number, words = "task", str(task.visit), f"task {task.task_id}"
            case Done(), _:
                status, number, words = "end", "end", "the end of the run"
            case Wait(), int(stage):
                status, number = "keys", f"keys{stage}"
                words = f"the request for its keys, part {stage} of {len(key_board.STAGES)},"
            case _:
                return Exported(client, "wait", "", None)
        path = folder / f"{client}-{number}{parcels.TASK_SUFFIX}"
        parcel = TaskFile(
            client,
            self.spec.study_digest,
            state.version,
            state.ledgers[client],
            reply,
            self.payload_limit,
            key_board.boards(self.spec, state, client),
        )
        parcels.write_task(path, tls, parcel)
        task_id = reply.task.task_id if isinstance(reply, Offer) else ""
        self.tell(RunEvent("exported", client, f"{client}: {words} is in {path.name}"))
        return Exported(client, status, task_id, path)

    def take(self, parcel: ResultFile) -> str:
        """Hands a result to the coordinator.

        Returns:
          "accepted", "duplicate", "conflict", "noted" if the client says that it cannot answer, or "keys"
          if it sent its part of the keys.

        Raises:
          LedgerError: client or server was rolled back, or their ledgers differ.
          FedviError: the coordinator refuses; nothing changes.
        """
        client, answer, state = parcel.hello.client, parcel.answer, self.coordinator.state
        if isinstance(answer, NextTask):
            self._handle(parcel.hello, quiet=True)
            self._handle(answer)
            return "keys"
        task, only = state.tasks.get(client), protocol.answer_of(state, client, answer.task_id)
        is_other = isinstance(answer, Submit) and only not in (None, answer.payload.sha256)
        if task is None or task.task_id != answer.task_id or is_other:
            return self._known(parcel)
        self._check(parcel)
        self._handle(parcel.hello, quiet=True)
        reply = self._handle(answer)
        return reply.status if isinstance(reply, Receipt) else "noted"

    def _known(self, parcel: ResultFile) -> str:
        """Returns the status of an answer that came before; charges one with different bytes.

        An old file does not show that its client is at work now. Unlike a call, it does not end an
        absence.
        """
        hello, answer = parcel.hello, parcel.answer
        assert not isinstance(answer, NextTask)
        state, clock = self.coordinator.state, self.coordinator.clock()
        book = state.ledgers.get(hello.client)
        anchor = None if book is None else ledgers.anchor(book)
        protocol.step(self.spec, state, hello._replace(anchor=anchor), clock)
        only = protocol.answer_of(state, hello.client, answer.task_id)
        if only is None:
            held = state.tasks.get(hello.client)
            awaited = "no answer" if held is None else f"the answer to {held.task_id!r}"
            raise errors.ProtocolError(
                f"the result answers task {answer.task_id!r} of client {hello.client!r}, which it "
                f"does not hold: this run awaits {awaited} of it",
                "is --state the folder that the task was exported from? If the run was set back to an "
                "older state, what it asked for since is forgotten",
            )
        if not isinstance(answer, Submit):
            return "noted"
        if answer.payload.sha256 == only:
            return "duplicate"
        self._handle(answer)
        return "conflict"

    def _check(self, parcel: ResultFile) -> None:
        """Tries an answer without storing anything, so that a refused one changes nothing.

        Also checks that the client's ledger equals the server's as it will be with this answer. Over a
        network the client checks this when it gets the receipt.
        """
        hello, answer = parcel.hello, parcel.answer
        clock = self.coordinator.clock()
        spec = self.spec._replace(keep=lambda eta: eta)
        foreseen, _ = protocol.step(spec, self.coordinator.state, hello, clock)
        foreseen, _ = protocol.step(spec, foreseen, answer, clock)
        book = foreseen.ledgers.get(hello.client)
        if isinstance(answer, Submit) and book is not None and hello.anchor is not None:
            ledgers.check_counterpart(book, hello.anchor, "server")

    def _handle(self, request: Request, quiet: bool = False) -> Reply:
        """Answers a request and reports its events; ``quiet`` omits those of the request itself."""
        before = self.coordinator.state
        reply = self.coordinator.handle(request)
        self._tell_of(before, None if quiet else request)
        return reply

    def _tell_of(self, before: ServerState, request: Request | None) -> None:
        after = self.coordinator.state
        for event in run_events.between(self.spec, before, after, request):
            self.tell(event)


def standing(spec: ServerSpec, state: ServerState, client: str) -> str:
    """Describes a client's status in a few words, for the person who carries its files."""
    progress = protocol.progress_of(spec, state)
    if protocol.is_removed(state, client):
        return "removed"
    if client in state.away:
        return f"away: {state.away[client]}"
    if client in state.tasks:
        return f"has task {state.tasks[client].task_id}"
    if state.status == "running" and not key_board.is_ready(spec, state):
        wanted = key_board.wanted(spec, state, client)
        return (
            "its keys are in; waits for the others'" if wanted is None else "is asked for its keys"
        )
    if state.status in protocol.OVER:
        return "done"
    if state.status == "paused":
        return "waits: the run is paused"
    if client in progress.waiting:
        return "answered; waits for the others"
    if client in spec.schedule.select(progress):
        return "may have its next task"
    return "waits for its turn"
