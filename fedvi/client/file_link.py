"""A client's link without a network: it answers requests from a task file, and writes result files.

    task file ─► Hello, NextTask ─► the worker ─► Submit ─► result file
    next task file ─► the server's ledger says that the answer arrived ─► acknowledged

A written file may never reach the server. So the answer stays in the outbox, and the same bytes are
written again, until a later task file shows that the server has them.
"""

from collections.abc import Callable

from fedvi import errors
from fedvi.federation.messages import (
    Begin,
    Done,
    Failure,
    Goodbye,
    Hello,
    NextTask,
    Noted,
    Offer,
    Receipt,
    Renew,
    Renewed,
    Reply,
    Request,
    Submit,
    Wait,
    Welcome,
)
from fedvi.privacy import ledger as ledgers
from fedvi.privacy.ledger import Ledger
from fedvi.transport import bundle
from fedvi.transport.parcels import ResultFile, TaskFile
from fedvi.updates.base import Task

__all__ = ["FileLink", "Written"]


class Written(BaseException):
    """The answer was written to its file; there is nothing to do until it arrives.

    Not an ``Exception``: it must leave the worker's tick before the tick acknowledges anything.
    """


class FileLink:
    """Answers a worker's requests from a task file; a ``transport.memory.Link``.

    Guarantee: the reply to Submit is a receipt only if the server's ledger in the task file holds
    these very bytes.

    Args:
      parcel: the task file, from ``parcels.read_task``.
      ledger: returns the client's own ledger as last stored.
      write: writes an answer to a file; returns once it is on the disk.
    """

    def __init__(
        self,
        parcel: TaskFile,
        ledger: Callable[[], Ledger],
        write: Callable[[ResultFile], None],
    ) -> None:
        self._parcel, self._ledger, self._write = parcel, ledger, write

    def handle(self, request: Request) -> Reply:
        """Answers a request as the server would have when it made the task file.

        Raises:
          Written: the answer is in its file.
          LedgerError: client or server was rolled back.
          ProtocolError: the task file is older than an answer that the server has; or it does not
            include an answer that is still on its way to the server.
          FedviError: what ``write`` raises.
        """
        match request:
            case Hello():
                return self._hello(request)
            case NextTask(part=None):
                return self._parcel.reply
            case NextTask():
                return self._keys(request)
            case Submit():
                return self._submit(request)
            case Failure():
                self._write(ResultFile(self._greeting(), request))
                return Noted()
            case Renew():
                return Renewed(True)
            case Goodbye() | Begin():
                return Noted()

    @property
    def _task(self) -> Task | None:
        reply = self._parcel.reply
        return reply.task if isinstance(reply, Offer) else None

    def _hello(self, request: Hello) -> Welcome:
        forgotten = _forgotten(self._ledger(), self._parcel.ledger)
        if forgotten is not None:
            raise errors.ProtocolError(
                f"task {forgotten!r} was answered, and the server has the answer: the task file does "
                "not know it, and is an old one",
                "ask for the newest task file; if this is the newest, the server was set back to "
                "an older state",
            )
        if request.anchor is not None:
            # The server's half of the check at Hello; the worker does the other half.
            ledgers.check_counterpart(self._parcel.ledger, request.anchor, "server")
        return Welcome(self._parcel.version, ledgers.anchor(self._parcel.ledger))

    def _keys(self, request: NextTask) -> Reply:
        """Returns the parts of all sites; while the server lacks some, writes this site's part."""
        assert request.part is not None
        parts = self._parcel.boards.get(request.part.stage, ())
        if not parts and not isinstance(self._parcel.reply, Done):
            self._write(ResultFile(self._greeting(), request))
            raise Written
        return Wait(parts) if parts else self._parcel.reply

    def _submit(self, request: Submit) -> Receipt:
        book, digest = self._parcel.ledger, request.payload.sha256
        arrived = _sealed(book, request.task_id)
        if arrived is not None:
            status = "accepted" if arrived == digest else "conflict"
            return Receipt(status, self._parcel.version, ledgers.anchor(book))
        if self._task is not None and self._task.task_id != request.task_id:
            raise errors.ProtocolError(
                f"the task file asks for {self._task.task_id!r}, and does not know the answer to "
                f"{request.task_id!r}, which is on its way",
                "import that answer at the server first, and ask for the task file that follows",
            )
        size = bundle.of_payload(request.payload).manifest.size
        bundle.check_size(request.task_id, size, self._parcel.payload_limit)
        self._write(ResultFile(self._greeting(), request))
        raise Written

    def _greeting(self) -> Hello:
        """The client's anchor, which the server compares with its ledger when the answer arrives."""
        parcel = self._parcel
        return Hello(parcel.client, parcel.study_digest, ledgers.anchor(self._ledger()))


def _forgotten(own: Ledger, server: Ledger) -> str | None:
    """Returns a task that the client's ledger records as sent and the server's ledger lacks, if any."""
    arrived = {entry.release_id for entry in server.entries if entry.kind == "sent"}
    sent = (entry.release_id for entry in own.entries if entry.kind == "sent")
    lacking = (release_id.rpartition("#")[0] for release_id in sent if release_id not in arrived)
    return next(lacking, None)


def _sealed(ledger: Ledger, task_id: str) -> str | None:
    """Returns the digest of a task's answer from a ledger that says it arrived; None if it has none."""
    found = (
        entry.digest
        for entry in ledger.entries
        if entry.kind == "sealed"
        and entry.release_id.rpartition("#")[0] == task_id
        # An entry that is only sealed at the server began to arrive over a connection that broke.
        and ledgers.state(ledger, entry.release_id) == "sent"
    )
    return next(found, None)
