"""Keeps a site's ledger for life, one for each site and machine account, at a place of its own.

    PLACE/lock                        held while a ledger is looked for or begun
    PLACE/north-hospital-1f0c…/       the ledger of the site "north hospital"

The place does not follow from the policy's file: a copied, renamed or moved policy is charged to the same
ledger as before.
"""

import contextlib
import hashlib
import json
import os
import re
import shlex
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

from fedvi import errors
from fedvi.privacy import ledger as ledgers
from fedvi.privacy.ledger import Header, Ledger
from fedvi.privacy.runs import Extend
from fedvi.store import files, shared
from fedvi.store.sqlite import DATABASE, SqliteClientStore, is_unbegun, read_ledger

__all__ = ["LifeLedger", "folder_name", "place_of"]

_HINT = "name another place with --life FOLDER or FEDVI_LIFE"
_OLD_SUFFIX = ".life"


def place_of(given: Path | None = None) -> Path:
    """Returns the folder of the ledgers for life; creates nothing.

    Args:
      given: the folder that was named; None: that of FEDVI_LIFE, or ``$XDG_STATE_HOME/fedvi/life``, or
        ``~/.local/state/fedvi/life``.

    Raises:
      ConfigError: it is relative; or none of these is set, and this account has no home folder.
    """
    if named := given or os.environ.get("FEDVI_LIFE"):
        if not Path(named).is_absolute():
            whole = Path(os.path.expanduser(named)).absolute()
            raise errors.ConfigError(
                f"the folder of the ledgers for life is {str(named)!r}, expected an absolute path: a "
                "client started in another folder would begin another ledger, with nothing spent",
                f"write it in full, such as --life {shlex.quote(str(whole))}",
            )
        return Path(named)
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    # The XDG specification ignores a relative path.
    if not base.is_absolute():
        with contextlib.suppress(RuntimeError):
            base = Path.home() / ".local" / "state"
    if not base.is_absolute():
        raise errors.ConfigError(
            "this account has no home folder to keep the ledger for life in", _HINT
        )
    return base / "fedvi" / "life"


def folder_name(site: str) -> str:
    """Returns the name of a site's folder within the place; two sites never share one.

    >>> folder_name("North Hospital")
    'north-hospital-85f9ddc73e169ec2f6a79a592e4014c7'
    """
    readable = re.sub("[^a-z0-9]+", "-", site.lower()).strip("-")[:40]
    digest = hashlib.sha256(site.encode()).hexdigest()[:32]
    return f"{readable}-{digest}".lstrip("-")


class LifeLedger:
    """A site's ledger for life, which several studies may charge at once.

    Guarantee: each charge reads, checks and extends the ledger in one transaction under its lock, so that
    two processes never both spend what is left. A ledger is begun only where the place never had one, or
    where ``begin`` says so; one that is lost is never begun again. No file can show that the whole place
    was deleted or restored from a backup, or that another one was named.

    Args:
      place: from ``place_of``; created, accessible only to its owner, if missing.
      header: from ``Policy.lifetime_header``. An existing ledger keeps its own ``table_distance``.
      policy: the file with this [life]. Earlier versions kept the ledger beside it.
      begin: whether a ledger may be begun in a place that had one.
      tell: takes a sentence if a ledger is begun.

    Raises:
      LedgerError: the ledger has another cap, unit or relation, is damaged or lost, or is still beside the
        policy; a fresh one would begin in a used place without ``begin``; or others can reach the folder.
    """

    def __init__(
        self,
        place: Path,
        header: Header,
        *,
        policy: Path | None = None,
        begin: bool = False,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._folder = place.absolute() / folder_name(header.client)
        self._seen: ledgers.Anchor | None = None
        with _locked(place.absolute()) as lock:
            for old in _kept_beside(policy, header.client):
                _check_moved(old, place.absolute())
            if self._is_there() and not is_unbegun(self._folder):
                distance = read_ledger(self._folder).header.table_distance
                header = header._replace(table_distance=distance)
                self._check_header(header, policy)
            else:
                self._check_fresh(header.client, lock, begin)
                tell(
                    f"begins a ledger for life of {header.client!r}, with nothing spent, in "
                    f"{self._folder}. If this site has one elsewhere, under another account or in another "
                    f"folder, stop, remove this one, and name the folder of that one with --life FOLDER or "
                    "FEDVI_LIFE"
                )
            self._header = header
            with self._opened():
                pass
            files.mark_created(lock)

    @property
    def place(self) -> str:
        """The ledger's folder."""
        return str(self._folder)

    @property
    def ledger(self) -> Ledger:
        """The ledger as last stored, by whatever process."""
        with self._opened() as store:
            return store.ledger

    def extended(self, extend: Extend) -> Ledger:
        """Reads the ledger, extends it by one entry and stores it, before any other process reads it.

        Raises:
          LedgerError: the ledger is lost, damaged or rolled back since it was opened, or the disk is full.
        """
        with self._opened() as store:
            return shared.extended(store, extend)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[SqliteClientStore]:
        """Opens the ledger for a moment, and checks that nothing was lost since the last time."""
        if self._seen is not None and not self._is_there():
            files.refuse(self._folder, "the ledger for life is gone")
        with contextlib.closing(
            shared.patiently(lambda: SqliteClientStore(self._folder, self._header), self.place)
        ) as store:
            if self._seen is not None:
                ledgers.check_anchor(store.ledger, self._seen)
            yield store
            self._seen = ledgers.anchor(store.ledger)

    def _is_there(self) -> bool:
        path = self._folder / DATABASE
        return path.is_file() and path.stat().st_size > 0

    def _check_header(self, expected: Header, policy: Path | None) -> None:
        found = read_ledger(self._folder).header
        if found != expected:
            raise errors.LedgerError(
                f"the ledger for life of {expected.client!r} in {self._folder} was begun with "
                f"{_cap(found)}; {policy or 'the policy'} has {_cap(expected)} in [life]",
                hint="all policies of a site must have the same [life]: write that of the ledger into the "
                "policy",
            )

    def _check_fresh(self, site: str, lock: int, begin: bool) -> None:
        """Checks that this site never had a ledger here, and that nobody else has unless ``begin``."""
        folder, place = self._folder, self._folder.parent
        if folder.exists() and not is_unbegun(folder):
            raise errors.LedgerError(
                f"{folder} was the ledger for life of {site!r}, and {DATABASE} is missing or empty",
                hint="put the file back: a fresh ledger would forget what was spent",
            )
        others = [item for item in sorted(place.iterdir()) if item != folder and _had_ledger(item)]
        for item in others:
            if (name := _site_of(item)) is not None and _spelled(name) == _spelled(site):
                raise errors.LedgerError(
                    f"{item} is the ledger for life of {name!a}; the policy has {site!a}, which differs "
                    "only in capitals, blanks or the form of its letters",
                    hint=f"copy the name from the ledger, site = {json.dumps(name)}, into [life]",
                )
        if begin or not (others or files.was_created(lock)):
            return
        names = [(_site_of(item), item) for item in others]
        held = (
            ", ".join(str(item) if name is None else repr(name) for name, item in names)
            or "one that is no longer there"
        )
        raise errors.LedgerError(
            f"{place} has no ledger for life of the site {site!r}, but that of {held}",
            hint="a site that was renamed keeps its old name as `site` in [life]; if this is another site, "
            "--begin-life begins a ledger for it, with nothing spent",
        )


@contextlib.contextmanager
def _locked(place: Path) -> Iterator[int]:
    """Holds the lock of a place."""
    if (place / DATABASE).exists():
        raise errors.LedgerError(
            f"{place} is a ledger, expected the folder that holds one for each site",
            hint="name the folder above it",
        )
    try:
        lock = shared.patiently(lambda: files.lock_folder(place, ""), str(place))
    except errors.LedgerError as error:
        raise errors.LedgerError(error.message, error.hint or _HINT) from error
    try:
        yield lock
    finally:
        os.close(lock)


def _kept_beside(policy: Path | None, site: str) -> list[Path]:
    """Returns the folders of ledgers beside a policy that are this file's or this site's."""
    if policy is None:
        return []
    own = {policy.absolute().with_suffix(_OLD_SUFFIX), policy.resolve().with_suffix(_OLD_SUFFIX)}
    near = {item for path in own for item in path.parent.glob(f"*{_OLD_SUFFIX}")} - own
    found = []
    for path in (*sorted(own), *sorted(near)):
        try:
            if not _had_ledger(path):
                continue
            header = read_ledger(path).header
        except (errors.LedgerError, PermissionError) as error:
            if isinstance(error, PermissionError) and path in near:
                continue  # another account's, which has a ledger of its own
            why = error.strerror if isinstance(error, PermissionError) else error.message
            raise errors.LedgerError(
                f"{path} is beside {policy} and may hold what {site!r} spent for life, but cannot be "
                f"read: {why}",
                hint="look at it with `fedvi ledger show`, as the user who owns it and in a folder that "
                "can be written; if it is another site's, move it to another folder",
            ) from error
        # That of another site is of no concern: its own policy will ask for it.
        if path in own or (ledgers.is_lifetime(header) and header.client == site):
            found.append(path)
    return found


def _check_moved(old: Path, place: Path) -> None:
    """Checks that a ledger beside a policy is in the place already, with all that it charged."""
    kept = read_ledger(old)
    new = place / folder_name(kept.header.client)
    if not new.exists():
        raise errors.LedgerError(
            f"{old} holds what {kept.header.client!r} spent for life, and ledgers for life are kept in "
            f"{place}, which has none of it",
            hint=f"move it, with no client running: mv {shlex.quote(str(old))} {shlex.quote(str(new))}",
        )
    found = read_ledger(new)
    begun = found._replace(entries=found.entries[: len(kept.entries)])
    if ledgers.anchor(begun) != ledgers.anchor(kept):
        raise errors.LedgerError(
            f"{old} and {new} both hold what {kept.header.client!r} spent for life, and neither holds all "
            "of it",
            hint="`fedvi ledger show` prints both: at most their sum was spent. Move "
            f"{shlex.quote(str(old))} to another folder, and begin a third ledger: --begin-life, and in "
            "[life] another `site`, with what is left as the cap",
        )


def _had_ledger(folder: Path) -> bool:
    return (folder / "lock").exists() or (folder / DATABASE).exists()


def _site_of(folder: Path) -> str | None:
    try:
        return read_ledger(folder).header.client
    except errors.LedgerError:
        return None


def _spelled(site: str) -> str:
    """Returns what two spellings of one name have in common."""
    return " ".join(unicodedata.normalize("NFKC", site).casefold().split())


def _cap(header: Header) -> str:
    return (
        f"epsilon = {header.epsilon}, delta = {header.delta}, unit = {header.unit!r}, "
        f"relation = {header.relation!r}"
    )
