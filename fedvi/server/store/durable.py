"""Saves the server's state to disk, so that a restart continues where it stopped.

`save` is one transaction, on the disk before it returns (WAL, synchronous=FULL). The files that it
names are on the disk before it begins, and files that nothing names any more are deleted after it. So
after a power loss at any time, the disk holds the state before or the state after, bit for bit.
"""

import collections
import contextlib
import hashlib
import itertools
import os
import threading
import time
import weakref
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from fedvi import errors
from fedvi.expfam import tree
from fedvi.expfam.mapped_arrays import evict, windows
from fedvi.privacy import ledger as ledgers
from fedvi.server.core import kept
from fedvi.server.core.membership import extend
from fedvi.server.core.state import ServerSpec, ServerState, sharing
from fedvi.server.store import schema, state_cells
from fedvi.server.store.journal import Event
from fedvi.server.store.state_cells import Key, Reference
from fedvi.store import blobs, files
from fedvi.typing import Eta

__all__ = ["SqliteServerStore"]

_INLINE_BYTES = 1 << 20  # a larger array goes to a file of its own, outside database and memory
_PAGE_BYTES = 1 << 14  # four times SQLite's own: arrays of 100 KB take two thirds of the time
_LOG_BYTES = 64 << 20  # how far the log grows before it is copied into the database
_IN_USE = "a state has one server: stop the other one, or give this one another folder"


class _Cell(NamedTuple):
    value: Any
    text: str
    references: tuple[Reference, ...]

    @property
    def digests(self) -> list[str]:
        return [reference.sha256 for reference in self.references]


class SqliteServerStore:
    """A run's state in one folder; see ``coordinator.ServerStore``. Thread-safe.

    Guarantee: folds, accepted answers and ledgers only grow; a ledger that was tampered with and an array
    that differs from what was saved are refused when the folder is opened. Only the client can detect
    entries that are missing from the end of its ledger, by comparing the anchors of both.

    Args:
      folder: created, readable by its owner alone, if it does not exist.
      spec: of the run; a stored state must have the same study and ledger headers.
      earlier: digests of the study before clients were added to it. A run of one of them is continued
        with the new clients, see ``membership.extend``. The caller vouches that nothing else differs.

    Attributes:
      spec: the same, but large arrays of its prior and of folds are kept in this folder.

    Raises:
      LedgerError: the folder is in use, damaged, from another study, promise or version of fedvi, or
        cannot be written.
    """

    def __init__(self, folder: Path, spec: ServerSpec, earlier: Collection[str] = ()) -> None:
        self._folder = folder
        self._spec = spec
        self._guard = threading.RLock()
        self._known: dict[int, tuple[weakref.ref[np.ndarray], Reference]] = {}
        self._shelf: weakref.WeakValueDictionary[Reference, np.ndarray] = (
            weakref.WeakValueDictionary()
        )
        self._cells: dict[Key, _Cell] = {}
        self._counts: collections.Counter[str] = collections.Counter()
        self._files: set[str] = set()
        self._state: ServerState | None = None
        with contextlib.ExitStack() as undo:
            self._lock = files.lock_folder(folder, _IN_USE)
            undo.callback(os.close, self._lock)
            self._path = folder / schema.DATABASE
            with files.reported(self._path):
                self._blobs = blobs.Blobs(folder / schema.BLOBS)
                self._connection = files.connect(
                    self._path, secure_delete=False, page_bytes=_PAGE_BYTES
                )
                undo.callback(self._connection.close)
                (page,) = self._connection.execute("PRAGMA page_size").fetchone()
                self._connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_BYTES // page}")
                self._migrate()
                extends = self._check_study(earlier)
                self._state = self._take_up()
            self.spec = self._spec = spec._replace(prior=self.keep(spec.prior), keep=self.keep)
            if extends:
                self._extend()
            self._drop_unnamed()
            files.mark_created(self._lock)
            files.sync(folder)
            undo.pop_all()

    def load(self) -> ServerState | None:
        """Returns the state as last saved, or None; its large arrays are read-only memory maps."""
        return self._state

    def save(self, state: ServerState) -> ServerState:
        """Saves a state; writes only objects that are not the same as in the state saved before.

        Returns:
          The state, equal bit for bit, with its large arrays as memory maps of their files. Continue with
          it to free the memory of the arrays.

        Raises:
          LedgerError: the state does not extend the one before it, or the disk is full or fails. The
            stored state is unchanged.
        """
        return self._save(state)

    def _save(
        self, state: ServerState, beside: Collection[tuple[str, tuple[Any, ...]]] = ()
    ) -> ServerState:
        """Saves a state, and runs further statements in the same transaction."""
        with self._guard:
            arrays: dict[Reference, np.ndarray] = {}
            after, gone = self._encoded(state, arrays)
            written = {
                key: cell
                for key, cell in after.items()
                if key not in self._cells or self._cells[key].text != cell.text
            }
            # Only the changes of the counts of arrays: counting all would visit all clients.
            changed: collections.Counter[str] = collections.Counter()
            for key in (*gone, *(key for key in written if key in self._cells)):
                changed.subtract(self._cells[key].digests)
            for cell in written.values():
                changed.update(cell.digests)
            counts = {name: self._counts[name] + change for name, change in changed.items()}
            fresh = {
                reference: array
                for reference, array in arrays.items()
                if counts.get(reference.sha256) and not self._counts[reference.sha256]
            }
            dropped = [name for name, count in counts.items() if self._counts[name] and not count]
            self._write_blobs(fresh)
            with files.transaction(self._connection, self._path) as write:
                for key in gone:
                    write("DELETE FROM cells WHERE field = ? AND item = ?", *key)
                for sha256 in dropped:
                    write("DELETE FROM arrays WHERE sha256 = ?", sha256)
                for reference, array in fresh.items():
                    data = None if _has_file(reference) else _bytes_of(array).tobytes()
                    # The same bytes may have several shapes.
                    write(
                        "INSERT OR IGNORE INTO arrays VALUES (?, ?, ?)",
                        reference.sha256,
                        reference.size,
                        data,
                    )
                for key, cell in written.items():
                    write(
                        "INSERT INTO cells (field, item, text) VALUES (?, ?, ?)"
                        " ON CONFLICT DO UPDATE SET text = excluded.text",
                        *key,
                        cell.text,
                    )
                for statement, values in (*beside, *_news(self._state, state, self._path)):
                    write(statement, *values)
            for key in gone:
                del self._cells[key]
            self._cells.update(after)
            self._counts.update(changed)
            for name in dropped:
                del self._counts[name]
            # Includes files of an earlier save whose commit failed, though it may have reached the disk.
            self._drop_unnamed()
            self._state = self._settled(state, arrays)
            self._rest()
            return self._state

    def keep(self, eta: Eta) -> Eta:
        """Writes large arrays to their files now, for a later `save` to name.

        Returns:
          The tree, equal bit for bit, with large arrays as memory maps. The next `save` deletes the files
          that it does not name.

        Raises:
          LedgerError: the disk is full or fails; the stored state is unchanged.
        """

        def settle(array: Any) -> Any:
            if not isinstance(array, np.ndarray) or array.nbytes <= _INLINE_BYTES:
                return array
            reference = self._reference(array)
            mapped = self._shelf.get(reference)
            if mapped is None:
                self._put({reference: array})
                content = blobs.read(self._folder / schema.BLOBS, reference.sha256, reference.size)
                mapped = content.view(reference.dtype).reshape(reference.shape)
                self._shelf[reference] = mapped
                self._remember(mapped, reference)
            return mapped

        with self._guard:
            kept = tree.map_leaves(settle, eta)
            self._rest()
            return kept

    def record_event(self, kind: str, client: str, text: str) -> None:
        """Appends a line to the operational log; nothing in it may be private.

        The line reaches the disk with the next `save`; a power loss before that loses the line alone.

        Raises:
          LedgerError: the line cannot be written.
        """
        with (
            self._guard,
            files.without_sync(self._connection),
            files.transaction(self._connection, self._path) as write,
        ):
            write(
                "INSERT INTO events (at, kind, client, text) VALUES (?, ?, ?, ?)",
                time.time(),
                kind,
                client,
                text,
            )

    def events(self, after: int = 0, limit: int = 1000) -> list[Event]:
        """Returns the lines of the operational log after a number, at most ``limit`` of them."""
        with self._guard, files.reported(self._path):
            return schema.events_after(self._connection, after, limit)

    def close(self) -> None:
        """Closes the files and releases the folder; may be called again."""
        with self._guard:
            self._connection.close()
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    def _migrate(self) -> None:
        """Migrates the database to the current schema version, in one transaction."""
        found = files.check_schema(
            self._connection, self._path, schema.APPLICATION, schema.VERSIONS
        )
        if found == schema.VERSIONS[-1]:
            return
        if found == 0:
            files.check_fresh(self._path, self._lock)
        with files.transaction(self._connection, self._path) as write:
            for script in schema.MIGRATIONS[found:]:
                for statement in files.statements(script):
                    write(statement)
            if found == 0:
                write("INSERT INTO meta VALUES ('study_digest', ?)", self._spec.study_digest)
            write(f"PRAGMA application_id = {schema.APPLICATION}")
            write(f"PRAGMA user_version = {schema.VERSIONS[-1]}")
        # The names of new files must be on the disk before anything relies on them.
        files.sync(self._folder)

    def _check_study(self, earlier: Collection[str]) -> bool:
        """Whether the state belongs to an earlier form of the study, so that it must be extended."""
        found = dict(self._connection.execute("SELECT name, value FROM meta"))
        digest = found.get("study_digest", "")
        if digest == self._spec.study_digest:
            return False
        if digest not in earlier:
            raise errors.LedgerError(
                f"{self._folder} holds the state of another study: digest {digest[:12]}, expected "
                f"{self._spec.study_digest[:12]}",
                hint="give each study a folder of its own; a study that was changed is another one. If all "
                "that it has more are [[clients]] at its end with `added = true`, start with --extend",
            )
        return True

    def _extend(self) -> None:
        """Adds the study's new clients and its new digest, in one transaction."""
        digest = (
            "UPDATE meta SET value = ? WHERE name = 'study_digest'",
            (self._spec.study_digest,),
        )
        if self._state is not None:
            known = self._state.factors
            self._save(extend(self._spec, self._state), [digest])
            for name in self._spec.clients:
                if name not in known:
                    self.record_event("added", name, f"{name} was added to the run")
            return
        with files.transaction(self._connection, self._path) as write:
            write(digest[0], *digest[1])

    def _take_up(self) -> ServerState | None:
        """Reads and checks the whole state, and deletes files that nothing names."""
        self._files = set(schema.check_arrays(self._connection, self._folder))
        self._blobs.sweep(keep=self._files)
        texts = schema.read_cells(self._connection, self._path)
        appended = schema.read_appended(self._connection, self._path)
        for client, header in self._spec.headers.items():
            if client in appended["ledgers"]:
                files.check_header(appended["ledgers"][client].header, header, self._path)
        if not texts:
            return None
        with schema.damage_reported(self._path):
            self._cells = {key: self._decoded(key, text) for key, text in texts.items()}
            self._counts = collections.Counter(
                itertools.chain.from_iterable(cell.digests for cell in self._cells.values())
            )
            return state_cells.assemble(
                {k: cell.value for k, cell in self._cells.items()}, appended
            )

    def _encoded(
        self, state: ServerState, arrays: dict[Reference, np.ndarray]
    ) -> tuple[dict[Key, _Cell], set[Key]]:
        """Encodes the cells that changed, collects their arrays, and returns the keys of deleted cells."""
        after = {}
        changed, gone = state_cells.changes(self._state, state)
        for key, value in changed.items():
            references: list[Reference] = []

            def put(array: np.ndarray, references: list[Reference] = references) -> Reference:
                reference = self._reference(array)
                references.append(reference)
                arrays[reference] = array
                return reference

            text = state_cells.encode(key, value, put)
            after[key] = _Cell(value, text, tuple(references))
        return after, gone

    def _decoded(self, key: Key, text: str) -> _Cell:
        references: list[Reference] = []

        def get(reference: Reference) -> np.ndarray:
            references.append(reference)
            return self._array(reference)

        value = state_cells.decode(key, text, get, self._spec.prior)
        return _Cell(value, text, tuple(references))

    def _settled(self, state: ServerState, arrays: dict[Reference, np.ndarray]) -> ServerState:
        """Replaces large arrays by memory maps of their files, to free memory."""
        large = {reference for reference in arrays if _has_file(reference)}
        if not large:
            return state
        # The state is already saved, so a failure here is harmless.
        with contextlib.suppress(errors.LedgerError):
            settled = {
                key: self._decoded(key, cell.text) if large.intersection(cell.references) else cell
                for key, cell in self._cells.items()
            }
            others = {
                name: getattr(state, name)
                for name in (*state_cells.APPENDED, *state_cells.VOLATILE)
            }
            state = state_cells.assemble({key: cell.value for key, cell in settled.items()}, others)
            state = sharing(self._spec, state)
            self._cells = settled
        return state

    def _write_blobs(self, fresh: dict[Reference, np.ndarray]) -> None:
        """Writes the files that the next transaction will name."""
        self._put(fresh)

    def _put(self, fresh: dict[Reference, np.ndarray]) -> None:
        large = {
            name.sha256: _bytes_of(array)
            for name, array in fresh.items()
            if _has_file(name) and name.sha256 not in self._files
        }
        if large:
            with files.reported(self._folder / schema.BLOBS):
                self._blobs.put(large)
            self._files.update(large)

    def _drop_unnamed(self) -> None:
        """Deletes the files that the state does not name; maps of them stay readable."""
        unnamed = {name for name in self._files if not self._counts[name]}
        self._blobs.drop(unnamed)
        self._files -= unnamed

    def _reference(self, array: np.ndarray) -> Reference:
        """Returns the reference of an array; the hash is cached if the array is read-only."""
        known = self._known.get(id(array))
        if known is not None and known[0]() is array:
            return known[1]
        hasher = hashlib.sha256()
        for (piece,) in windows(_bytes_of(array)):
            hasher.update(piece)
        reference = Reference(hasher.hexdigest(), array.dtype.newbyteorder("<").str, array.shape)
        if not array.flags.writeable:
            self._remember(array, reference)
        return reference

    def _array(self, reference: Reference) -> np.ndarray:
        """Returns the array of a reference, shared as long as it is in use."""
        array = self._shelf.get(reference)
        if array is None:
            array = schema.array_of(self._connection, self._folder, reference)
            self._shelf[reference] = array
            self._remember(array, reference)
        return array

    def _rest(self) -> None:
        """Evicts the pages of all memory maps from the process's memory, until they are read again."""
        for array in self._shelf.values():
            evict(array)

    def _remember(self, array: np.ndarray, reference: Reference) -> None:
        name = id(array)

        def forget(_: Any) -> None:
            self._known.pop(name, None)

        self._known[name] = (weakref.ref(array, forget), reference)


def _news(
    before: ServerState | None, after: ServerState, path: Path
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yields the statements that append new rows, with their values.

    Raises:
      LedgerError: an append-only field does not extend what was saved.
    """
    for position, pair in _added_answers(before, after, path):
        yield "INSERT INTO accepted VALUES (?, ?, ?)", (position, *pair)
    history = () if before is None else before.history
    for position, update in _added(history, after.history, "history", path):
        yield "INSERT INTO history VALUES (?, ?)", (position, state_cells.line_of(update))
    books = {} if before is None else before.ledgers
    for client, known, book in kept.differences(books, after.ledgers):
        if book is None:
            _refuse_shrunk("ledgers", path)
        news = list(_added(() if known is None else known.entries, book.entries, "ledger", path))
        if known is not None and known.header != book.header:
            _refuse_shrunk("ledger", path)
        header, *lines = ledgers.to_lines(book._replace(entries=tuple(e for _, e in news)))
        if known is None:
            yield "INSERT INTO chain VALUES (?, 0, ?)", (client, header)
        for (position, _), line in zip(news, lines, strict=True):
            yield "INSERT INTO chain VALUES (?, ?, ?)", (client, position + 1, line)


def _added_answers(
    before: ServerState | None, after: ServerState, path: Path
) -> Iterator[tuple[int, tuple[str, str]]]:
    """Numbers the newly accepted answers, as ``_added`` does."""
    known = {} if before is None else before.accepted
    found = after.accepted
    if not (isinstance(known, kept.Appended) and isinstance(found, kept.Appended)):
        return _added(known.items(), found.items(), "accepted answers", path)
    count = len(known)
    if count and found.since(count - 1)[:1] != known.since(count - 1):
        _refuse_shrunk("accepted answers", path)
    return enumerate(found.since(count), count)


def _added(
    before: Collection[Any], after: Collection[Any], what: str, path: Path
) -> Iterator[tuple[int, Any]]:
    """Numbers the items after those that were saved; of the saved items, compares only the last."""
    count = len(before)
    rest = iter(after)
    if count:
        last = next(itertools.islice(before, count - 1, None))
        if next(itertools.islice(rest, count - 1, None), None) != last:
            _refuse_shrunk(what, path)
    return enumerate(rest, count)


def _refuse_shrunk(what: str, path: Path) -> NoReturn:
    raise errors.LedgerError(
        f"{path}: the {what} to be saved do not extend those that were saved",
        hint="nothing was stored: entries are never taken back; has the store two users?",
    )


def _has_file(reference: Reference) -> bool:
    return reference.size > _INLINE_BYTES


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """Returns an array's bytes as they are stored, little-endian and in C order: uint8 [size]."""
    plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return plain.reshape(-1).view(np.uint8)
