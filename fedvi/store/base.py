"""The interface of a client's store, and the checks that all stores share.

    reserve ─► note_inputs ─► seal ─► acknowledge
       │                       │
       └ stores a secret       └ erases it

A reservation and the secret of its noise are stored together, before any record is read. The noised bytes
are stored, and the secret erased, together, before anything is sent. So a crash never leaves a charge
without its secret, nor sent bytes beside a secret that could remove their noise.
"""

import dataclasses
import hmac
from typing import Protocol, runtime_checkable

from fedvi import errors
from fedvi.federation.messages import Payload
from fedvi.privacy import ledger as ledgers

__all__ = [
    "BOARD",
    "SECRET_BYTES",
    "TASK",
    "ClientStore",
    "Freeze",
    "Pending",
    "board_of",
    "check_inputs",
    "check_renewal",
    "check_reservation",
    "check_seal",
    "check_sent",
]

SECRET_BYTES = 32
"""The length of a release's secret: 256 bits."""

BOARD = "board"
"""The name under which a site keeps all sites' signed mask keys; see ``board_of``."""

TASK = "task/"
"""Before a visit: the name under which a site keeps which task it answered then."""


def board_of(epoch: int) -> str:
    """Returns the name under which a site keeps the signed keys of an epoch, the first being 0."""
    return f"{BOARD}/{epoch}" if epoch else BOARD


@dataclasses.dataclass(frozen=True, repr=False)
class Pending:
    """A release that is reserved but not sealed; ``repr`` shows only its name.

    Attributes:
      release_id: its name in the ledger.
      secret: the source of its noise, sampling and guide; 32 bytes.
      task: fingerprint of the task that it answers, keyed by the secret.
      data: fingerprint of the records, keyed by the secret; None until they are read.
      state: fingerprint of the solver's earlier private state, keyed by the secret; None until then.
    """

    release_id: str
    secret: bytes
    task: bytes
    data: bytes | None = None
    state: bytes | None = None

    def __repr__(self) -> str:
        return f"Pending({self.release_id!r})"


@dataclasses.dataclass(frozen=True, repr=False)
class Freeze:
    """Identifies the records that all releases of one ledger must use; never exported, never shown.

    Attributes:
      key: a local secret of 32 bytes with no other use.
      digest: HMAC-SHA256 of the records under it; None until they are first read.
    """

    key: bytes
    digest: bytes | None = None

    def __repr__(self) -> str:
        return "Freeze()"


@runtime_checkable
class ClientStore(Protocol):
    """A client's ledger, secrets and outbox.

    Each method is one transaction: it returns once its change is durable, and an error before the
    commit changes nothing. Erased bytes may be overwritten only after the commit. If that fails, the
    method raises although its change is stored, and the next opening of the store overwrites again, or
    refuses. Only one worker of one process uses a store at a time.
    """

    @property
    def ledger(self) -> ledgers.Ledger:
        """The ledger as last stored."""

    @property
    def freeze(self) -> Freeze:
        """The identity of the records that this ledger's releases use."""

    def reserve(
        self, ledger: ledgers.Ledger, release_id: str, secret: bytes, task: bytes
    ) -> Pending:
        """Stores the ledger that charges a release, and the release's secret.

        An earlier pending release is abandoned: its secret is erased, and its charge stays.

        Raises:
          LedgerError: the ledger does not extend the one before it by this reservation.
        """

    def charge(self, ledger: ledgers.Ledger, release_id: str) -> None:
        """Stores a ledger that charges a release whose secret is in another store.

        For the lifetime ledger of a site, which alone permits no read of records.

        Raises:
          LedgerError: the ledger does not extend the one before it by this reservation.
        """

    def renew(self, release_id: str, secret: bytes, task: bytes) -> Pending:
        """Replaces the secret of a pending release for which no record was read; costs nothing.

        Raises:
          LedgerError: the release is not pending, or its inputs were noted.
        """

    def pending(self) -> Pending | None:
        """Returns the release that is reserved and not sealed, if there is one."""

    def note_inputs(self, release_id: str, data: bytes, state: bytes, frozen: bytes) -> None:
        """Stores fingerprints of the inputs that a pending release is about to use.

        Args:
          data: fingerprint of the records under the release's secret.
          state: fingerprint of the solver's private state under the release's secret.
          frozen: digest of the records under ``freeze.key``.

        Raises:
          PrivacyError: the records differ from those of earlier releases.
          LedgerError: the release is not pending, or other inputs were noted for it. Using the same
            secret with two inputs would reveal both.
        """

    def seal(
        self, ledger: ledgers.Ledger, release_id: str, payload: Payload, state: bytes | None
    ) -> None:
        """Stores the noised bytes, the ledger that seals them and the solver's new private state.

        Guarantee: when it returns, the release's secret and fingerprints are erased.

        Raises:
          LedgerError: the ledger does not extend the one before it by these sealed bytes.
        """

    def unsent(self) -> tuple[str, Payload] | None:
        """Returns the oldest release that is sealed but not acknowledged, if there is one."""

    def acknowledge(self, ledger: ledgers.Ledger, release_id: str) -> None:
        """Stores the ledger and deletes the bytes, which the server has received.

        Raises:
          LedgerError: the ledger does not extend the one before it.
        """

    def load_state(self) -> bytes | None:
        """Returns the solver's private state after the last sealed release, if it keeps one."""

    def load_keys(self) -> bytes | None:
        """Returns the mask keys last saved, if there are any."""

    def save_keys(self, keys: bytes, kept: tuple[str, bytes] | None = None) -> None:
        """Stores the mask keys, and erases earlier ones.

        Args:
          kept: evidence under its name: of a round its visit, with the certificate of the sum that was
            opened; after ``TASK`` its visit, with digests of the keys and the task; or ``board_of`` an
            epoch, with all sites' signed keys. It stays when keys are erased; a store
            without files need not keep it.
        """

    def erase_state(self) -> None:
        """Erases the solver's state, a pending secret and the mask keys, once the study is finally over.

        A pending release stays charged.
        """

    def close(self) -> None:
        """Closes the store; stored data stay."""


def check_reservation(
    before: ledgers.Ledger, after: ledgers.Ledger, release_id: str, secret: bytes | None
) -> None:
    """Checks the arguments of ``reserve``, or of ``charge``, which has no secret.

    Raises:
      LedgerError: the ledger does not extend the one before it by this reservation, or the secret
        has another length.
    """
    check_extends(before, after)
    _check_state(before, release_id, None)
    _check_state(after, release_id, "reserved")
    if secret is not None:
        _check_secret(release_id, secret)


def check_renewal(pending: Pending | None, release_id: str, secret: bytes) -> None:
    """Checks that a release may get a new secret, because nothing was computed from its current one.

    Raises:
      LedgerError: the release is not pending, or its inputs were noted.
    """
    found = _check_pending(pending, release_id)
    if found.data is not None:
        raise errors.LedgerError(
            f"release {release_id!r} cannot draw another secret: its records were read",
            hint="compute it again from the same input, or reserve a new release",
        )
    _check_secret(release_id, secret)


def check_inputs(
    pending: Pending | None,
    freeze: Freeze,
    release_id: str,
    data: bytes,
    state: bytes,
    frozen: bytes,
) -> Pending:
    """Checks that a release may be computed from these inputs; returns it with them noted.

    Raises:
      PrivacyError: the records differ from those of earlier releases.
      LedgerError: the release is not pending, or was begun with other inputs.
    """
    found = _check_pending(pending, release_id)
    check_records(freeze, release_id, frozen)
    noted = dataclasses.replace(found, data=data, state=state)
    if found.data is not None and _inputs(found) != _inputs(noted):
        raise errors.LedgerError(
            f"release {release_id!r} was begun with other input: a second draw from the same "
            "secret is refused",
            hint="reserve a new release for the new input",
        )
    return noted


def check_records(freeze: Freeze, release_id: str, frozen: bytes) -> None:
    """Checks that the records of a release are those of all earlier releases.

    Raises:
      PrivacyError: they are not.
    """
    if freeze.digest is not None and not hmac.compare_digest(freeze.digest, frozen):
        raise errors.PrivacyError(
            f"release {release_id!r}: the records are not those that this study's releases so far "
            "were computed from",
            hint="the data set of a study is frozen: restore the file that the first release was "
            "made of, or start a new study, whose cost adds to this one's",
        )


def check_seal(
    before: ledgers.Ledger,
    after: ledgers.Ledger,
    pending: Pending | None,
    release_id: str,
    payload: Payload,
) -> None:
    """Checks the arguments of ``seal``.

    Raises:
      LedgerError: the release is not pending, or the ledger does not extend the one before it by
        these sealed bytes.
    """
    found = _check_pending(pending, release_id)
    check_extends(before, after)
    _check_state(after, release_id, "sealed")
    if found.data is None:
        raise errors.LedgerError(f"release {release_id!r} cannot be sealed: its inputs are unknown")
    if after.entries[-1].digest != payload.sha256:
        raise errors.LedgerError(
            f"release {release_id!r} is sealed with digest {after.entries[-1].digest}, and its "
            f"bytes have {payload.sha256}"
        )


def check_sent(before: ledgers.Ledger, after: ledgers.Ledger, release_id: str) -> None:
    """Checks the arguments of ``acknowledge``.

    Raises:
      LedgerError: the ledger does not extend the one before it, or the release is not sent.
    """
    check_extends(before, after)
    _check_state(after, release_id, "sent")


def check_extends(before: ledgers.Ledger, after: ledgers.Ledger) -> None:
    """Checks that a ledger to be stored extends the stored one.

    Raises:
      LedgerError: it does not.
    """
    if after.header != before.header or after.entries[: len(before.entries)] != before.entries:
        raise errors.LedgerError(
            "a ledger was to be stored that does not extend the one before it",
            hint="entries are never taken back; is this client running twice?",
        )


def _check_state(ledger: ledgers.Ledger, release_id: str, expected: ledgers.State | None) -> None:
    found = ledgers.state(ledger, release_id)
    if found != expected:
        raise errors.LedgerError(
            f"release {release_id!r} is {found or 'unknown'}, expected {expected or 'a new name'}"
        )


def _check_secret(release_id: str, secret: bytes) -> None:
    if len(secret) != SECRET_BYTES:
        raise errors.LedgerError(
            f"release {release_id!r}: the secret has {len(secret)} bytes, expected {SECRET_BYTES}"
        )


def _check_pending(pending: Pending | None, release_id: str) -> Pending:
    if pending is None or pending.release_id != release_id:
        other = f"; {pending.release_id!r} is" if pending is not None else ""
        raise errors.LedgerError(
            f"release {release_id!r} is not pending{other}",
            hint="reserve it before records are read",
        )
    return pending


def _inputs(pending: Pending) -> tuple[bytes | None, bytes | None]:
    return pending.data, pending.state
