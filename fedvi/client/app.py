"""Runs a worker as a process, until the server says that the run is over or a signal stops it.

It reports only names, counts and public prices, nothing that was computed from records.
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
"""An empty file in the state folder, touched whenever the server answers; `fedvi health` reads its time."""

Report = Callable[..., None]
"""Called with a kind, a sentence and named public values: ``report("task", "…", visit=3)``."""

# A server without work usually holds the call for a while. If it does not, it is asked this often.
_PAUSE_SECONDS = 0.2


class Stopped(BaseException):
    """The process was asked to end. Not an ``Exception``, so that no handler takes it for a failure."""


class Watched:
    """A link that reports the tasks and answers that pass through.

    Args:
      rounds: how many answers are planned, for the reports.
      report: receives the reports.
      epsilon: returns the ε spent so far, or None if unknown; called after each answer.
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
    """Lets a worker tick until the run is over, and returns the reason for its end.

    Args:
      worker: its link must wait for the server's reply, however long that takes.
      pause: sleeps for some seconds, after a quick reply that there is nothing to do.

    Raises:
      FedviError: whatever the worker raises; its store stays valid, and another run can continue from it.
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

    This is as safe as a power loss at that point, which the store survives. A second signal ends the
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
