"""Keeps the ledger of a single data holder in a folder, so that all processes count the same runs."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from fedvi import errors
from fedvi.privacy import ledger as ledgers
from fedvi.privacy.advisories import advisory
from fedvi.privacy.ledger import Header, Ledger
from fedvi.privacy.runs import Extend
from fedvi.store import shared
from fedvi.store.sqlite import SqliteClientStore, read_ledger

__all__ = ["LedgerFolder"]

# Enough characters of a digest to distinguish any two that were not forged to collide.
_DIGEST_SHOWN = 16


class LedgerFolder:
    """Keeps the ledger of one plan of ``fedvi.DPSVI`` or ``fedvi.VIPS`` in a folder, for all processes.

    Pass it to the plan: ``fedvi.privacy.sgd(…, runs=3, ledger=fedvi.LedgerFolder("spent"))``. Each run is
    then charged there, durably, before any record is read, and every process that opens the folder for
    the same plan continues the count. The format is that of a federation's client, so ``fedvi ledger
    show`` and ``verify`` read it.

    Guarantee: over all processes that use this folder on one machine, no more runs are charged than were
    planned: each charge reads the ledger, checks its hashes and writes the longer one in one transaction
    under a lock, on the disk before it returns. A run that was charged and never took place, after a
    crash say, stays charged. What is damaged, or gone though it was there, is refused and never replaced.
    No file can show that it was deleted with its folder, that the folder was emptied, lock and all, that
    an older copy was put back, or that two copies are in use. So never restore it from a backup, and keep
    the anchor that ``fedvi ledger verify`` prints. A relative name is taken from the working folder: from
    another folder, or spelt otherwise, it is a fresh ledger.

    Args:
      folder: for this plan only. It is created, readable only by its owner, if missing; its parent must
        exist. Use an absolute path, or one beside the script: ``Path(__file__).with_name("spent")``.

    Raises:
      LedgerError: the parent folder is missing, or ``folder`` is a file.
      ConfigError: ``folder`` is not a path.

    Attributes:
      place: the folder as given, for errors and statements.

    >>> LedgerFolder("spent").place
    'spent'
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        if not os.fspath(folder):
            raise errors.ConfigError(
                f"ledger folder is {folder!r}, expected a path",
                'such as fedvi.LedgerFolder("spent")',
            )
        self.place = str(os.fspath(folder))
        # Absolute, so that it does not change if the process changes its working directory.
        self._folder = Path(folder).absolute()
        self._check_place()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.place!r})"

    def opened(self, header: Header) -> Ledger:
        """Returns the stored ledger; starts one if there never was any.

        Raises:
          LedgerError: the ledger is lost, damaged, or belongs to another plan; or another process holds
            it.
        """
        with self._store(header) as store:
            return store.ledger

    def extended(self, header: Header, extend: Extend) -> Ledger:
        """Reads the ledger, extends it by one entry and stores it, before any other process reads it.

        Raises:
          LedgerError: as ``opened``, or the disk is full.
        """
        with self._store(header) as store:
            return shared.extended(store, extend)

    @contextlib.contextmanager
    def _store(self, header: Header) -> Iterator[SqliteClientStore]:
        self._check_place()
        with contextlib.closing(self._locked(header)) as store:
            yield store

    def _locked(self, header: Header) -> SqliteClientStore:
        try:
            return self._opened(header)
        except errors.LedgerError as error:
            if isinstance(error.__cause__, BlockingIOError):
                raise
            earlier = self._check_plan(header)
            if earlier is None or earlier == header:
                raise
        return self._opened(earlier)

    def _opened(self, header: Header) -> SqliteClientStore:
        return shared.patiently(lambda: SqliteClientStore(self._folder, header), self.place)

    def _check_place(self) -> None:
        if not self._folder.parent.is_dir():
            raise errors.LedgerError(
                f"ledger is {self.place!r}, and there is no folder {str(self._folder.parent)!r} to keep "
                "it in",
                hint="make that folder, or correct the name: a fresh ledger would forget what was spent",
            )
        if self._folder.exists() and not self._folder.is_dir():
            raise errors.LedgerError(
                f"ledger is {self.place!r}, which is a file, expected a folder or a new name",
                hint="give each plan a folder of its own",
            )

    def _check_plan(self, header: Header) -> Header | None:
        """Checks whether the store was refused because of its header, and explains that in terms of plans.

        Returns:
          The ledger's own header, if an earlier version wrote it for this plan and it has no known fault,
          as one that promises nothing; None if no ledger can be read.

        Raises:
          LedgerError: the ledger belongs to another plan, or the promise of an earlier version may not
            hold.
        """
        try:
            found = read_ledger(self._folder).header
        except errors.LedgerError:
            return None
        if (found.study, found.study_digest) != (header.study, header.study_digest):
            differing = [
                f"`{name}` is {value!r}, expected {wanted!r}"
                for (name, value), wanted in zip(found._asdict().items(), header, strict=True)
                if value != wanted and name not in ("study", "study_digest", "planned")
            ]
            raise errors.LedgerError(
                f"{self.place} is the ledger of {_name(found)}, expected that of {_name(header)}"
                + "".join(f"; {text}" for text in differing),
                hint="to continue a plan, use the same settings, seed and numbers a step included; give "
                "another plan its own folder, and add up the costs of both",
            )
        if fault := advisory(found, found.relation):
            raise errors.LedgerError(
                f"{self.place} is not continued: {fault}",
                hint="keep it as the record of what was released; give a plan of the runs that are left a "
                "new folder, and add up the costs of both",
            )
        # The header of a ledger never changes.
        as_now = found._replace(fixed_sizes=header.fixed_sizes, rows_checked=header.rows_checked)
        return found if as_now == header else header


def _name(header: Header) -> str:
    study = "all studies of a site" if ledgers.is_lifetime(header) else header.study
    return f"{study!r} with digest {header.study_digest[:_DIGEST_SHOWN]}"
