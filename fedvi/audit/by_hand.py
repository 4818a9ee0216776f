"""Audits a client without a network whose task files arrive twice, late, or from another run."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fedvi import errors
from fedvi.audit.client_told import HAND
from fedvi.client.file_link import FileLink, Written
from fedvi.client.worker import Worker
from fedvi.federation.messages import Offer, Submit
from fedvi.privacy import events, ledger
from fedvi.transport.parcels import ResultFile, TaskFile
from fedvi.updates.base import Task

__all__ = ["play_by_hand"]


def play_by_hand(
    opened: Callable[[Any], AbstractContextManager[Worker]],
    tick: Callable[[Worker], str],
    tasks: Sequence[Task],
    cost: events.Event,
    header: ledger.Header,
    expect: Callable[[str, bool, str], None],
) -> None:
    """Lets a client answer a task file, read it again, and read files that it must refuse.

    Args:
      opened: opens a client, as in a new process, with a given link.
      tick: runs one phase of its work.
      tasks: at least two.
      cost: of an answer.
      header: of both ledgers.
      expect: called with the check, whether it holds, and the problem if it does not.
    """
    written: list[ResultFile] = []
    client = tasks[0].client

    def link_of(worker_ledger: Callable[[], ledger.Ledger], book: ledger.Ledger, task: Task) -> Any:
        parcel = TaskFile(client, "0", 0, book, Offer(task))
        return FileLink(parcel, worker_ledger, written.append)

    def read(book: ledger.Ledger, task: Task) -> tuple[str, ledger.Ledger]:
        """Lets a newly started client read one task file; returns the outcome and its ledger."""
        holder: list[Worker] = []
        link = link_of(lambda: holder[0].ledger, book, task)
        with opened(link) as worker:
            holder.append(worker)
            try:
                for _ in range(3):
                    tick(worker)
                return "went on", worker.ledger
            except Written:
                return "written", worker.ledger
            except errors.FedviError as error:
                return type(error).__name__, worker.ledger

    asked = ledger.charge(ledger.open_ledger(header), f"{tasks[0].task_id}#0", cost)
    first, own = read(asked, tasks[0])
    again, same = read(asked, tasks[0])
    expect(HAND, first == again == "written", f"a task file was {first}, then {again}")
    expect(HAND, own == same, "a task file that is read again is charged again")
    expect(
        HAND,
        ledger.state(own, f"{tasks[0].task_id}#0") == "sealed",
        "an answer counts as sent although nobody says that it arrived",
    )
    answers = [file.answer for file in written]
    digests = {answer.payload.sha256 for answer in answers if isinstance(answer, Submit)}
    expect(HAND, len(digests) == 1, f"{len(digests)} different answers to one task file")
    if len(digests) != 1:
        return
    (digest,) = digests
    begun = ledger.seal(asked, f"{tasks[0].task_id}#0", digest)
    ended, _ = read(begun, tasks[0])
    expect(HAND, ended == "written", f"an answer that only began to arrive: {ended}")
    strange = _arrived(asked, tasks[0], "f" * 64)
    ended, _ = read(strange, tasks[1])
    expect(HAND, ended in ("ProtocolError", "LedgerError"), f"a file with other bytes: {ended}")
    unknown = ledger.charge(asked, f"{tasks[1].task_id}#0", cost)
    ended, _ = read(unknown, tasks[1])
    expect(
        HAND, ended in ("ProtocolError", "LedgerError"), f"a file that lacks the answer: {ended}"
    )
    ended, _ = read(asked, tasks[1])
    expect(HAND, ended == "ProtocolError", f"a file that asks for more before it has this: {ended}")
    after = ledger.charge(_arrived(asked, tasks[0], digest), f"{tasks[1].task_id}#0", cost)
    ended, own = read(after, tasks[1])
    expect(HAND, ended == "written", f"the file that follows: {ended}")
    expect(
        HAND,
        ledger.state(own, f"{tasks[0].task_id}#0") == "sent",
        "an answer that arrived does not count as sent",
    )
    ended, _ = read(asked, tasks[0])
    expect(HAND, ended in ("ProtocolError", "LedgerError"), f"an old task file: {ended}")


def _arrived(book: ledger.Ledger, task: Task, digest: str) -> ledger.Ledger:
    name = f"{task.task_id}#0"
    return ledger.mark_sent(ledger.seal(book, name, digest), name)
