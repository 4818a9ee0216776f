"""A worker as a process: it ticks until the server says that the run is over, or somebody stops it.

What it tells of itself are names, counts and public prices; nothing that was computed from records.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType

from fedvi.client.worker import Worker
from fedvi.federation.messages import (
    Hello,
    Offer,
    Receipt,
    Reply,
    Request,
    Submit,
    Welcome,
)
from fedvi.transport.memory import Link
from fedvi.updates.base import Task

__all__ = ["HEARD", "Report", "Stopped", "Watched", "run", "stop_on_signals"]

HEARD = "heard"
"""An empty file in the state folder, touched whenever the server answered: what `fedvi health` reads."""

Report = Callable[..., None]
"""Called with a kind, a sentence and named public values: ``report("task", "…", visit=3)``."""

# A server that has nothing to do holds the call for a while; one that does not is asked this often.
_PAUSE_SECONDS = 0.2


class Stopped(BaseException):
    """The process was asked to end. No ``Exception``: nothing may take it for a failure."""


class Watched:
    """A link that reports what passes through.

    Args:
      link: carries requests.
      rounds: how many answers are planned, for the reports.
      report: where to.
      epsilon: what was spent so far, if that can be said; asked after each answer.
    """

    def __init__(
        self,
        link: Link,
        rounds: int,
        report: Report,
        epsilon: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._link = link
        self._rounds = rounds
        self._report = report
        self._epsilon = epsilon

    def handle(self, request: Request) -> Reply:
        """Passes a request on."""
        reply = self._link.handle(request)
        match request, reply:
            case Hello(), Welcome():
                self._report("joined", f"joined at version {reply.version}", version=reply.version)
            case _, Offer():
                self._take(reply.task)
            case Submit(), Receipt():
                self._answered(request, reply)
        return reply

    def _take(self, task: Task) -> None:
        self._report(
            "task",
            f"visit {task.visit + 1} of {self._rounds}: solving task {task.task_id}",
            task=task.task_id,
            visit=task.visit + 1,
            rounds=self._rounds,
            version=task.version,
        )

    def _answered(self, request: Submit, reply: Receipt) -> None:
        spent = self._epsilon()
        self._report(
            "answer",
            f"answer to task {request.task_id} {reply.status}, server at version {reply.version}"
            + ("" if spent is None else f", ε charged {spent:.4g}"),
            task=request.task_id,
            status=reply.status,
            version=reply.version,
            epsilon=spent,
        )


def run(worker: Worker, pause: Callable[[float], None] = time.sleep) -> str:
    """Lets a worker tick until the run is over, and returns why it is.

    Args:
      worker: over a link that waits until the server has an answer, however long it takes.
      pause: waits, in seconds, after a quick reply that there is nothing to do.

    Raises:
      FedviError: whatever the worker raises; its store is as it was left, and may be taken up again.
    """
    while True:
        began = time.monotonic()
        outcome = worker.tick()
        if outcome == "done":
            return worker.ended
        if outcome == "idle" and time.monotonic() - began < _PAUSE_SECONDS:
            pause(_PAUSE_SECONDS)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[None]:
    """Turns the first SIGTERM or SIGINT into ``Stopped``, wherever the main thread is.

    That is as safe as losing power there, which the store is made for. A second signal ends the
    process at once.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        for known in before:
            signal.signal(known, signal.SIG_DFL)
        raise Stopped(signal.Signals(number).name)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for number in before:
            signal.signal(number, stop)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
