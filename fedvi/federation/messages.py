"""The messages between client and server; every request gets one reply. Change the protocol here."""

from typing import NamedTuple

from fedvi.inference.base import Task

__all__ = [
    "Done",
    "Hello",
    "NextTask",
    "Offer",
    "Payload",
    "Receipt",
    "Reply",
    "Request",
    "Submit",
    "Tensor",
    "Wait",
    "Welcome",
]


class Tensor(NamedTuple):
    """A named array: NumPy dtype string (little-endian), shape, and its bytes in C order.

    ``scale`` is what one unit of released integers is worth, a public number; None for values that
    stand as they are.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes
    scale: float | None = None


class Payload(NamedTuple):
    """What a client sends of its data: encoded from a ``Released`` by ``transport.codec`` alone.

    Attributes:
      tensors: the released numbers.
      event: the canonical JSON of the event that they cost.
      sha256: hex digest over event and tensors.
    """

    tensors: tuple[Tensor, ...]
    event: str
    sha256: str


class Hello(NamedTuple):
    """Client → server: who I am, and the digest of the study that I read."""

    client: str
    study_digest: str


class Welcome(NamedTuple):
    """Server → client: the study agrees; the server stands at ``version``."""

    version: int


class NextTask(NamedTuple):
    """Client → server: is there work for me?"""

    client: str


class Offer(NamedTuple):
    """Server → client: here is a task. The same task is offered until its answer arrives."""

    task: Task


class Wait(NamedTuple):
    """Server → client: nothing now; ask again after the next update."""


class Done(NamedTuple):
    """Server → client: the schedule has finished."""

    reason: str


class Submit(NamedTuple):
    """Client → server: the answer to a task. Sending it again has no further effect."""

    client: str
    task_id: str
    payload: Payload


class Receipt(NamedTuple):
    """Server → client: what became of an answer.

    ``status`` is "accepted", "duplicate" (the same bytes again) or "conflict" (other bytes for a
    task that was answered).
    """

    status: str
    version: int


Request = Hello | NextTask | Submit
Reply = Welcome | Offer | Wait | Done | Receipt
