"""The messages between client and server; every request gets one reply.

A request's ``session`` (16 bytes, in hexadecimal) identifies the client process that asks; the link sets
it. It is empty within one process and in files, where no other process can act for the client.
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
"""The reasons that a client may give for not answering. An error's text could reveal something about
records, so only these words are sent."""

CLOSING = (3, 4)
"""The stages of a ``KeyPart`` that open the sum of a round: a signature of the set, and an opening."""


class Tensor(NamedTuple):
    """A named array: NumPy dtype string (little-endian), shape, and its bytes in C order.

    Large arrays use a memoryview of bytes, to avoid a copy; it is read-only, flat and never changes.
    ``scale`` is the public step of the grid of released integers; None for values without a grid.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview
    scale: float | None = None


class Payload(NamedTuple):
    """A client's released values; only ``transport.codec`` makes it, from a ``Released``.

    Attributes:
      tensors: the released numbers.
      event: the canonical JSON of the event that they cost.
      sha256: hex digest over event and tensors.
    """

    tensors: tuple[Tensor, ...]
    event: str
    sha256: str


class Hello(NamedTuple):
    """Client → server: the client's name, the digest of its study, and the anchor of its ledger.

    With a new ``session`` it replaces the session that greeted before; without one it only compares.
    """

    client: str
    study_digest: str
    anchor: Anchor | None = None
    session: str = ""


class Welcome(NamedTuple):
    """Server → client: the study agrees; the server is at ``version``.

    ``anchor`` is the end of the server's own ledger of this client. The two ledgers are the same chain,
    except for entries in transit, so each party sees if the other was rolled back.
    """

    version: int
    anchor: Anchor | None = None


class KeyPart(NamedTuple):
    """A site's part in agreeing on mask keys; the server passes it on, and need not be trusted.

    Attributes:
      stage: 1, a site's signed public keys; 2, its offers to each site after it. In a round that some
        sites may miss also 3, its signature of the set of sites that answered, and 4, its opening.
      content: of the part; empty if the site only asks for the parts of the others.
      epoch: how many times the sites agreed on keys before; they do so anew when a site joins.
    """

    stage: int
    content: bytes = b""
    epoch: int = 0


class NextTask(NamedTuple):
    """Client → server: is there work for me?

    Attributes:
      part: in a study with secure sums, this site's part; the request then asks for all others.
      without_factor: whether the task may come with None in place of the factor, because the answer does
        not depend on it. Over a network such a task has half the bytes.
    """

    client: str
    session: str = ""
    part: KeyPart | None = None
    without_factor: bool = False


class Offer(NamedTuple):
    """Server → client: here is a task. The same task is offered until its answer arrives."""

    task: Task


class Wait(NamedTuple):
    """Server → client: nothing now; ask again after the next update.

    Attributes:
      parts: the reply to a ``KeyPart``: the parts of all sites at that stage, in the order of the study;
        empty until all have arrived. At the stages ``CLOSING`` the set to sign; with all signatures, and
        the shares for this site, what to open.
      epoch: the number of a later epoch, for which this site is to make new keys, since a site joins;
        0 if there is none.
    """

    parts: tuple[bytes, ...] = ()
    epoch: int = 0


class Done(NamedTuple):
    """Server → client: the schedule has finished, or the run was ended.

    Attributes:
      reason: why, in a sentence.
      resumable: whether the run may be resumed, so that the client keeps the solver's private state.
    """

    reason: str
    resumable: bool = False


class Begin(NamedTuple):
    """Client → server: the bytes of this answer follow in pieces, and then Submit.

    From now on the task can have no other answer, and the client's ledger has it sealed. The reply is
    Noted, or directly the Receipt if the bytes are not needed. Fields as in Submit and its payload.
    """

    client: str
    task_id: str
    sha256: str
    event: str
    attempt: int = 0
    session: str = ""


class Submit(NamedTuple):
    """Client → server: the answer to a task. Sending it again has no further effect.

    ``attempt`` numbers the releases that were charged for this task, from 0; it is above 0 if a crash
    lost the input of an earlier attempt. The sender has greeted, but ``session`` may be an older one: the
    bytes have arrived, so they must be accepted or charged.
    """

    client: str
    task_id: str
    payload: Payload
    attempt: int = 0
    session: str = ""


class Receipt(NamedTuple):
    """Server → client: the status of an answer.

    ``status`` is "accepted", "duplicate" (the same bytes again) or "conflict" (other bytes for a
    task that was answered, which the server charged as one more release). ``anchor`` is the end of the
    server's ledger of this client.
    """

    status: str
    version: int
    anchor: Anchor | None = None


class Renew(NamedTuple):
    """Client → server: I am still working on this task."""

    client: str
    task_id: str
    session: str = ""


class Renewed(NamedTuple):
    """Server → client: whether the server still waits for the task."""

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
    """Server → client: acknowledged."""


Request = Hello | NextTask | Begin | Submit | Renew | Failure | Goodbye
Reply = Welcome | Offer | Wait | Done | Receipt | Renewed | Noted
