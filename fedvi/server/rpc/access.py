"""Access control: checks the caller's identity and rate at the start of every call."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from fedvi import errors
from fedvi.server.rpc.door import Door
from fedvi.transport.roster import Roster, holder
from fedvi.typing import PRIOR

__all__ = ["CALLS_AT_ONCE", "Access", "Bucket", "RateExceeded"]

# A round of a tiny model takes 20 ms and a handful of calls; a runaway loop makes thousands.
CALLS_A_SECOND = 100.0
BURST = 200.0

CALLS_AT_ONCE = 16
"""Open calls per certificate. A client waits for work in one call, answers in another and renews its
lease in a third; calls of a cut connection may linger. Certificates of one name that are revoked, or on no
roster, have as many together."""


class RateExceeded(errors.TransportError):
    """A client calls too often, or has too many calls open; it may try again soon."""


class Bucket:
    """A token bucket: ``rate`` calls a second in the long run, ``burst`` at once.

    Args:
      rate: tokens a second.
      burst: the most tokens that the bucket holds.
      clock: seconds, monotonic.
    """

    def __init__(
        self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rate, self._burst, self._clock = rate, burst, clock
        self._tokens, self._filled = burst, clock()

    def take(self) -> bool:
        """Takes a token, if there is one."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self.rate)
        self._filled = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


class Access:
    """Admits a call if its certificate belongs to the client or operator that it names.

    Without a roster identities are not checked: this is for loopback, or for an explicit choice.

    Args:
      names: the clients of the study; each has its own bucket, and all others share one.
      roster: the valid certificates; None for plaintext.
      rate: calls a second for each client.
      burst: calls at once.
      door: accepts the connections; it is told which of them are admitted.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        roster: Roster | None,
        rate: float = CALLS_A_SECOND,
        burst: float = BURST,
        door: Door | None = None,
    ) -> None:
        self._roster, self._door = roster, door
        self._buckets = {name: Bucket(rate, burst) for name in names}
        self._others = Bucket(rate, burst)
        # Certificate, or name for one that is not admitted → calls.
        self._open: Counter[str | tuple[str]] = Counter()
        # Of open calls: to ask gRPC takes as long as the check, and each call is checked several times.
        self._shown: dict[Any, bytes] = {}

    @contextlib.contextmanager
    def place(self, context: Any) -> Iterator[None]:
        """Counts an open call against the limit of its certificate.

        Without certificates callers cannot be told apart, so there is no such limit.

        Raises:
          RateExceeded: the certificate has ``CALLS_AT_ONCE`` calls open.
        """
        shown = _certificate(context) if self._roster is not None else None
        if shown is None:
            yield
            return
        name = holder(shown)
        counted = self._counted(shown, name)
        if self._open[counted] >= CALLS_AT_ONCE:
            raise RateExceeded(
                f"{name!r} has {CALLS_AT_ONCE} calls open, expected no more at once",
                "wait a moment",
            )
        self._open[counted] += 1
        self._shown[context] = shown
        try:
            yield
        finally:
            del self._shown[context]
            self._open[counted] -= 1
            if not self._open[counted]:
                del self._open[counted]

    def enter(self, context: Any, role: str | None) -> None:
        """Checks a call by its certificate alone, before anything that it sent is read.

        Args:
          context: of the call.
          role: the role that the service is for; None: it answers any certificate of the authority.

        Raises:
          IdentityError: the call has no certificate, or an invalid one.
          RateExceeded: too many calls, of this client or of all callers that are refused.
        """
        fingerprint = ""
        if self._roster is not None:
            try:
                found = self._identify(context, role, None)
            except (errors.IdentityError, errors.TransportError) as error:
                if role is None:
                    return
                if isinstance(error, errors.IdentityError):
                    # Not from a client's bucket: whoever calls with a revoked key is that client no more.
                    self._limit("")
                raise
            # Strangers must not use up what operators may call.
            if role == "client":
                self._limit(found.name)
            fingerprint = found.fingerprint
        if self._door is not None:
            self._door.admit(context.peer(), fingerprint)

    def admit(self, context: Any, client: str) -> None:
        """Checks that a call which has entered comes from the client that its message names.

        Without a roster this is the only check, and the named client's calls are limited here.

        Raises:
          IdentityError: the name is another than the certificate's, or is reserved.
          RateExceeded: too many calls.
        """
        if client == PRIOR:
            raise errors.IdentityError(
                f"the call says that it comes from {client!r}, a reserved name",
                "a client's name is that of its [[clients]] entry in the study",
            )
        if self._roster is None:
            self._limit(client)
        self._identify(context, "client", client)

    def check(self, context: Any, client: str) -> None:
        """Checks an admitted call again, since its certificate may have been revoked meanwhile.

        Raises:
          IdentityError: the certificate is no longer valid.
        """
        self._identify(context, "client", client)

    def admit_operator(self, context: Any) -> None:
        """Checks a call on the admin port; a Unix socket is guarded by its permissions instead.

        Raises:
          IdentityError: the call has no valid admin certificate.
        """
        self._identify(context, "admin", None)

    def _identify(self, context: Any, role: str | None, name: str | None) -> Any:
        if self._roster is None:
            return None
        shown = self._shown.get(context) or _certificate(context)
        if shown is None:
            raise errors.IdentityError(
                "the call came without a certificate",
                "give --tls, the folder of an enrolled identity",
            )
        try:
            return self._roster.check(shown, role, name)
        except errors.IdentityError:
            if self._door is not None:
                self._door.refuse(context.peer())
            raise

    def _counted(self, certificate: bytes, name: str) -> str | tuple[str]:
        """Returns what a call counts for: a stolen key takes no places of the new one after it.

        Those of certificates that are not admitted are few, however many there are.
        """
        assert self._roster is not None
        try:
            return self._roster.check(certificate).fingerprint
        except (errors.IdentityError, errors.TransportError):
            return (name,)

    def _limit(self, client: str) -> None:
        bucket = self._buckets.get(client, self._others)
        if not bucket.take():
            raise RateExceeded(
                f"client {client!r} calls too often, expected at most {bucket.rate:g} calls a second",
                "wait a moment",
            )


def _certificate(context: Any) -> bytes | None:
    """Returns the certificate that a call came with, as TLS received it; None if there is none."""
    shown = context.auth_context().get("x509_pem_cert")
    return bytes(shown[0]) if shown else None
