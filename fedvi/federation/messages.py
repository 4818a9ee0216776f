"""The messages between client and server; every request gets one reply.

A request's ``session`` (16 bytes, in hexadecimal) says which process of its client asks; the link fills
it in. It is empty within one process and in files, where no other can stand in for the client.
"""

from typing import NamedTuple

from fedvi.privacy.ledger import Anchor
from fedvi.updates.base import Task

__all__ = [
    "CLOSING",
    "FAILURES",
    "Begin",
    "Done",
    "Failure",
    "Goodbye",
    "Hello",
    "KeyPart",
    "NextTask",
    "Noted",
    "Offer",
    "Payload",
    "Receipt",
    "Renew",
    "Renewed",
    "Reply",
    "Request",
    "Submit",
    "Tensor",
    "Wait",
    "Welcome",
]

FAILURES = ("budget", "policy", "data", "solver", "other")
"""Why a client may say that it cannot answer: a word of this list, since an error's text may tell of
records."""

CLOSING = (3, 4)
"""The stages of a ``KeyPart`` that opens the sum of a round: a signature of the set, and an opening."""


class Tensor(NamedTuple):
    """A named array: NumPy dtype string (little-endian), shape, and its bytes in C order.

    A memoryview of bytes stands for large arrays that need not be copied; it is read-only, flat and
    never changes.
    ``scale`` is what one unit of released integers is worth, a public number; None for values that
    stand as they are.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview
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
    """Client → server: who I am, the digest of the study that I read, and how far my ledger is.

    With a new ``session`` it takes the place of whichever had greeted before; without one it only
    compares.
    """

    client: str
    study_digest: str
    anchor: Anchor | None = None
    session: str = ""


class Welcome(NamedTuple):
    """Server → client: the study agrees; the server stands at ``version``.

    ``anchor`` is how far the server's own ledger of this client is: the two ledgers are the same
    chain, but for what is in flight, so that each party sees if the other was rolled back.
    """

    version: int
    anchor: Anchor | None = None


class KeyPart(NamedTuple):
    """A site's part of the keys that masks are made with; the server passes it on, and believes nothing.

    Attributes:
      stage: 1, a site's signed public keys; 2, what it offers to each site behind it; of a round that some
        sites may miss also 3, its signature of the set of those that answered, and 4, what it opens.
      content: of the part; empty from a site that only asks for those of the others.
    """

    stage: int
    content: bytes = b""


class NextTask(NamedTuple):
    """Client → server: is there work for me?

    With a ``part``, in a study of secure sums: here is mine, and I want those of all others.
    """

    client: str
    session: str = ""
    part: KeyPart | None = None


class Offer(NamedTuple):
    """Server → client: here is a task. The same task is offered until its answer arrives."""

    task: Task


class Wait(NamedTuple):
    """Server → client: nothing now; ask again after the next update.

    Attributes:
      parts: to who asked with a ``KeyPart``, those of all sites at that stage, in the order of the study;
        empty until all are there. At the stages ``CLOSING`` the set that is to be signed; with all
        signatures, and the shares for this site, what is to be opened.
    """

    parts: tuple[bytes, ...] = ()


class Done(NamedTuple):
    """Server → client: the schedule has finished, or the run was ended.

    Attributes:
      reason: why, in a sentence.
      resumable: whether the run may go on after all, so that the solver's private state is kept.
    """

    reason: str
    resumable: bool = False


class Begin(NamedTuple):
    """Client → server: the bytes of this answer are on their way, in pieces; Submit follows.

    From here on it is the only answer that the task may have, and what its ledger says is sealed.
    The reply is Noted, or at once the Receipt if the bytes are not needed. Fields as in Submit and
    its payload.
    """

    client: str
    task_id: str
    sha256: str
    event: str
    attempt: int = 0
    session: str = ""


class Submit(NamedTuple):
    """Client → server: the answer to a task. Sending it again has no further effect.

    ``attempt`` numbers the releases that were charged for this task, from 0: after a crash whose
    input could not be had again, the answer is that of a later one.
    Whoever sends it has greeted, but ``session`` may be an older one: the bytes are there, so they
    are taken or charged.
    """

    client: str
    task_id: str
    payload: Payload
    attempt: int = 0
    session: str = ""


class Receipt(NamedTuple):
    """Server → client: what became of an answer.

    ``status`` is "accepted", "duplicate" (the same bytes again) or "conflict" (other bytes for a
    task that was answered, which the server charged as one more release). ``anchor`` is how far the
    server's ledger of this client is.
    """

    status: str
    version: int
    anchor: Anchor | None = None


class Renew(NamedTuple):
    """Client → server: I am still at work on this task."""

    client: str
    task_id: str
    session: str = ""


class Renewed(NamedTuple):
    """Server → client: whether the task is still waited for."""

    held: bool


class Failure(NamedTuple):
    """Client → server: I cannot answer this task; ``code`` is one of ``FAILURES``."""

    client: str
    task_id: str
    code: str
    session: str = ""


class Goodbye(NamedTuple):
    """Client → server: I am leaving, and may come back."""

    client: str
    session: str = ""


class Noted(NamedTuple):
    """Server → client: heard."""


Request = Hello | NextTask | Begin | Submit | Renew | Failure | Goodbye
Reply = Welcome | Offer | Wait | Done | Receipt | Renewed | Noted
