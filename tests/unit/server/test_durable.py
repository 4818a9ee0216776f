"""The server's state on disk: all of it comes back, all or nothing, and what others changed is refused."""

import contextlib
import errno
import itertools
import os
import resource
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from fedvi import errors
from fedvi.expfam import tree
from fedvi.federation import schedules
from fedvi.federation.damping import Memory
from fedvi.federation.fold import Gap
from fedvi.federation.messages import Hello, NextTask
from fedvi.privacy import ledger
from fedvi.server.coordinator import Coordinator, ServerStore
from fedvi.server.core.state import Answer, Presence, ServerState, Update, initial_state
from fedvi.server.store import durable, schema, state_cells
from fedvi.server.store.durable import SqliteServerStore
from fedvi.server.store.journal import Journal
from fedvi.server.store.schema import BLOBS, DATABASE, read_ledgers, read_state
from fedvi.store import blobs, files
from fedvi.store.memory import MemoryServerStore
from tests.states import (
    CLIENTS,
    FILED,
    INLINE,
    LIMIT,
    frozen,
    header,
    make_spec,
    play,
)

SPEC = make_spec(FILED)


@pytest.fixture(autouse=True)
def small_limits(monkeypatch):
    monkeypatch.setattr(durable, *LIMIT)


def opened(folder: Path, spec=SPEC) -> contextlib.closing:
    return contextlib.closing(SqliteServerStore(folder, spec))


def finished(spec, store) -> ServerState:
    coordinator = Coordinator(spec, store)
    play(spec, coordinator)
    assert coordinator.state.status == "completed"
    return coordinator.state


@pytest.fixture
def folder(tmp_path) -> Path:
    """The state of a finished run, closed."""
    with opened(tmp_path / "state") as store:
        finished(SPEC, store)
        store.record_event("joined", "north", "north joined")
    return tmp_path / "state"


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / BLOBS).rglob("*") if path.is_file()}


def named(folder: Path) -> set[str]:
    """The files that the database names."""
    with contextlib.closing(sqlite3.connect(folder / DATABASE)) as connection:
        return {
            row[0] for row in connection.execute("SELECT sha256 FROM arrays WHERE data IS NULL")
        }


def edited(folder: Path, *statements: str) -> None:
    """Changes the database as somebody who knows SQLite would, triggers or not."""
    with contextlib.closing(sqlite3.connect(folder / DATABASE)) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        for (name,) in names.fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement)
        connection.commit()


# What is there after closing and opening again.


@pytest.mark.parametrize("size", [INLINE, FILED])
@pytest.mark.parametrize("kind", schedules.__all__)
def test_every_saved_state_comes_back_bit_for_bit(tmp_path, kind, size):
    spec = make_spec(size, kind)
    expected = finished(spec, MemoryServerStore())

    class Watched(SqliteServerStore):
        count = 0

        def save(self, state: ServerState) -> ServerState:
            kept = super().save(state)
            assert frozen(kept) == frozen(state)
            assert frozen(read_state(tmp_path, spec.prior)) == frozen(state)
            self.count += 1
            return kept

    with contextlib.closing(Watched(tmp_path, spec)) as store:
        assert store.load() is None
        assert frozen(finished(spec, store)) == frozen(expected)
        assert store.count >= 2 * len(CLIENTS) * 2  # offers and answers, of two rounds
    with opened(tmp_path, spec) as store:
        assert frozen(store.load()) == frozen(expected)
        assert frozen(finished(spec, store)) == frozen(expected)


def test_every_field_of_the_state_is_kept_or_declared_volatile():
    assert {*state_cells.CELLS, *state_cells.APPENDED, *state_cells.VOLATILE} == set(
        ServerState._fields
    )


def test_what_a_short_run_does_not_show_comes_back_too(tmp_path):
    spec = make_spec(INLINE)
    start = initial_state(spec)
    with opened(tmp_path, spec) as store:
        coordinator = Coordinator(spec, store)
        coordinator.handle(Hello("north", "d", ledger.anchor(start.ledgers["north"])))
        task = coordinator.handle(NextTask("north")).task
        state = coordinator.state._replace(
            version=7,
            answers=(
                Answer(task, state_cells.Change(start.posterior), late=True),
                *[Answer(task, state_cells.Change(start.round_start))] * 11,
            ),
            memory={
                ("north",): Memory(0.1, None),
                ("east", "north"): Memory(1 / 3, start.posterior),
            },
            history=(
                Update(1, ("north",), (0,), 1 / 3, 0, None, ("east", "south")),
                Update(2, (), (), 1e-300, 1, Gap(float("inf"), float("nan")), ()),
            ),
            status="paused",
            away={"east": "left"},
            skipped=("east", "east"),
            turns={"north": 3, "east": 2, "south": 1},
            presence=Presence(seen={"north": 3.0}),
        )
        kept = store.save(state)
        assert kept.presence == state.presence
    with opened(tmp_path, spec) as store:
        found = store.load()
    # NaN equals nothing, itself included, unless it is the same object.
    gap, again = state.history[1].gap, found.history[1].gap
    assert (again.mean_shift, str(again.sd_ratio)) == (gap.mean_shift, "nan")
    same = found.history[1]._replace(gap=gap)
    assert frozen(found._replace(history=(found.history[0], same))) == frozen(state)
    assert found.presence == Presence()


def test_it_is_what_the_coordinator_and_the_journal_want(tmp_path):
    with opened(tmp_path) as store:
        assert isinstance(store, ServerStore)
        assert isinstance(store, Journal)


def test_large_arrays_leave_the_memory_for_their_files(tmp_path):
    spec = make_spec(FILED)
    with opened(tmp_path, spec) as store:
        kept = finished(spec, store)
        for eta in (kept.posterior, kept.round_start, *kept.factors.values()):
            assert not eta.J.flags.owndata
            assert not eta.J.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                eta.J[0, 0] = 1.0
        mapped = Path("/proc/self/maps")
        if mapped.exists():
            names = {line.split("/")[-1] for line in mapped.read_text().splitlines()}
            assert named(tmp_path) <= names
    # A map outlives the store, and the file.
    before = kept.posterior.J.sum()
    for path in (tmp_path / BLOBS).glob("??/*"):
        path.unlink()
    assert kept.posterior.J.sum() == before


@pytest.mark.parametrize("kind", schedules.__all__)
def test_what_is_kept_as_soon_as_it_is_made_is_the_same_bit_for_bit(tmp_path, kind):
    spec = make_spec(FILED, kind)
    with opened(tmp_path / "kept", spec) as store:
        assert store.spec.keep == store.keep
        kept = finished(store.spec, store)
        assert files_of(tmp_path / "kept").keys() == named(tmp_path / "kept")
    with opened(tmp_path / "plain", spec) as store:
        plain = finished(spec, store)
    assert frozen(kept) == frozen(plain) == frozen(finished(spec, MemoryServerStore()))
    with opened(tmp_path / "kept", spec) as store:
        assert frozen(store.load()) == frozen(plain)


def test_what_is_kept_leaves_the_memory_at_once_and_is_written_once(tmp_path, monkeypatch):
    written: list[str] = []
    put = blobs.Blobs.put
    monkeypatch.setattr(
        blobs.Blobs, "put", lambda self, news: (written.extend(news), put(self, news))[1]
    )
    with opened(tmp_path) as store:
        state = finished(SPEC, store)
        written.clear()
        eta = tree.to_numpy(tree.scale(state.factors["north"], 0.5))
        mapped = store.keep(eta)
        assert frozen(mapped.J) == frozen(eta.J)
        assert not mapped.J.flags.owndata
        assert mapped.h is eta.h  # small ones stay
        saved = store.save(state._replace(factors={**state.factors, "north": mapped}))
        assert len(written) == 1
        assert saved.factors["north"].J is mapped.J
        assert files_of(tmp_path).keys() == named(tmp_path)


def test_what_was_kept_and_is_named_by_no_save_is_deleted_with_the_next(tmp_path):
    with opened(tmp_path) as store:
        state = finished(SPEC, store)
        before = files_of(tmp_path)
        mapped = store.keep(tree.to_numpy(tree.scale(state.posterior, 0.3)))
        assert len(files_of(tmp_path)) == len(before) + 1
        store.save(state._replace(status="stopped"))
        assert files_of(tmp_path) == before
        # The map is still good, and what is saved after all is written again.
        store.save(state._replace(posterior=mapped))
        assert frozen(mapped) == frozen(store.load().posterior)
        assert files_of(tmp_path).keys() == named(tmp_path)


def test_a_full_disk_refuses_to_keep_and_the_store_goes_on(tmp_path, monkeypatch):
    with opened(tmp_path) as store:
        state = finished(SPEC, store)

        def full(self, contents):
            raise OSError(errno.ENOSPC, "no space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(blobs.Blobs, "put", full)
            with pytest.raises(errors.LedgerError, match="no space left"):
                store.keep(tree.to_numpy(tree.scale(state.posterior, 0.3)))
        kept = store.keep(tree.to_numpy(tree.scale(state.posterior, 0.3)))
        assert frozen(store.save(state._replace(posterior=kept)).posterior) == frozen(kept)


def test_only_what_changed_is_written(tmp_path):
    with opened(tmp_path) as store:
        state = finished(SPEC, store)
        inodes = {path: path.stat().st_ino for path in (tmp_path / BLOBS).glob("??/*")}
        done: list[str] = []
        store._connection.set_trace_callback(done.append)
        eta = tree.to_numpy(tree.scale(state.factors["north"], 0.5))
        store.save(state._replace(factors={**state.factors, "north": eta}))
        store._connection.set_trace_callback(None)
    lines = [line.replace("OR IGNORE ", "").split() for line in done]
    writes = [(words[0], words[2]) for words in lines if words[0] in ("INSERT", "DELETE", "UPDATE")]
    assert sorted(" ".join(words) for words in writes) == [
        "DELETE arrays",  # h and J of the factor before
        "DELETE arrays",
        "INSERT arrays",
        "INSERT arrays",
        "INSERT cells",
    ]
    kept = {path: path.stat().st_ino for path in (tmp_path / BLOBS).glob("??/*")}
    assert len(inodes.items() & kept.items()) == len(inodes) - 1
    assert len(kept) == len(inodes)


def test_files_that_nothing_names_are_deleted(folder, tmp_path):
    assert files_of(folder).keys() == named(folder)
    assert named(folder)
    (folder / BLOBS / "ab").mkdir(exist_ok=True)
    (folder / BLOBS / "ab" / ("ab" * 32)).write_bytes(b"of a save that was cut short")
    (folder / BLOBS / ("cd" * 32 + ".part")).write_bytes(b"half")
    with opened(folder):
        assert files_of(folder).keys() == named(folder)


def test_a_reader_keeps_the_files_of_what_it_reads(tmp_path):
    with opened(tmp_path) as store:
        state = finished(SPEC, store)
        before = named(tmp_path)
        with blobs.held(tmp_path / BLOBS):
            state = store.save(state._replace(memory={}))
            gone = before - named(tmp_path)
            assert gone
            assert gone <= files_of(tmp_path).keys()
        store.save(state._replace(version=99))
        assert files_of(tmp_path).keys() == named(tmp_path)


def test_only_the_owner_may_read_whatever_the_mask_says(tmp_path):
    before = os.umask(0)
    try:
        with opened(tmp_path / "state") as store:
            finished(SPEC, store)
            modes = {
                path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "state").rglob("*")
            }
    finally:
        os.umask(before)
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}


def test_commits_reach_the_disk(tmp_path):
    with opened(tmp_path) as store:
        ask = store._connection.execute
        found = [ask(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    assert found == ["wal", 2]


def test_a_line_of_the_log_does_not_wait_for_the_disk_and_the_commit_after_it_does(tmp_path):
    with opened(tmp_path) as store:
        done: list[str] = []
        store._connection.set_trace_callback(done.append)
        store.record_event("joined", "north", "north joined")
        settings = [line for line in done if line.startswith("PRAGMA")]
        assert settings == ["PRAGMA synchronous = 1", "PRAGMA synchronous = 2"]
        assert "COMMIT" in done[done.index(settings[0]) : done.index(settings[1])]
        store._connection.execute("DROP TABLE events")
        with pytest.raises(errors.LedgerError, match="events"):
            store.record_event("left", "north", "north left")
        assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_arrays_above_1_mib_get_files_and_leave_the_memory(tmp_path, monkeypatch):
    monkeypatch.undo()
    for size, count, stays in ((362, 0, True), (363, 2, False)):  # 8·D² bytes
        spec = make_spec(size)
        state = initial_state(spec)
        with opened(tmp_path / str(size), spec) as store:
            kept = store.save(state)
            assert len(files_of(tmp_path / str(size))) == count
            assert (kept.posterior.J is state.posterior.J) == stays
            assert frozen(kept) == frozen(state)


# All or nothing.


def test_a_file_is_on_the_disk_before_the_commit_that_names_it(tmp_path, monkeypatch):
    done: list[str] = []
    for module, name in ((os, "fsync"), (os, "rename")):
        original = getattr(module, name)

        def noted(*arguments, name=name, original=original):
            done.append(name)
            return original(*arguments)

        monkeypatch.setattr(module, name, noted)
    with opened(tmp_path) as store:
        store._connection.set_trace_callback(lambda line: done.append(line.split()[0]))
        done.clear()
        store.save(initial_state(SPEC))
    steps = [step for step in done if step in ("fsync", "rename", "BEGIN", "COMMIT")]
    # The posterior and round_start are one file; the factors, zero, are another.
    begin, first = steps.index("BEGIN"), steps.index("rename")
    assert steps[:begin].count("rename") == 2
    assert steps[first - 2 : first] == ["fsync", "fsync"], "the bytes"
    assert steps[first + 2 : begin] == ["fsync", "fsync"], "the names, in two folders"
    assert steps[begin:] == ["BEGIN", "COMMIT"]


@pytest.mark.parametrize("how", ["database", "file"])
def test_a_full_disk_leaves_the_state_before_and_the_store_goes_on(tmp_path, monkeypatch, how):
    with opened(tmp_path) as store:
        finished(SPEC, store)
        state, before = store.load(), files_of(tmp_path)
        etas = {name: tree.to_numpy(tree.scale(eta, 0.5)) for name, eta in state.factors.items()}
        later = state._replace(factors=etas)
        with contextlib.ExitStack() as undo:
            if how == "database":
                (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
                store._connection.execute(f"PRAGMA max_page_count = {pages}")
                undo.callback(store._connection.execute, "PRAGMA max_page_count = 1000000")
                later = later._replace(away={"north": "x" * 200_000})
            else:
                soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
                resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
                undo.callback(resource.setrlimit, resource.RLIMIT_FSIZE, (soft, hard))
            with pytest.raises(errors.LedgerError, match=r"full|too large") as caught:
                store.save(later)
        assert "nothing was stored" in caught.value.hint
        assert store.load() is state
        assert frozen(read_state(tmp_path, SPEC.prior)) == frozen(state)
        if how == "file":
            assert files_of(tmp_path) == before
        assert frozen(store.save(later)) == frozen(later)
        assert files_of(tmp_path).keys() == named(tmp_path)
    with opened(tmp_path) as store:
        assert frozen(store.load()) == frozen(later)


def test_the_files_of_a_save_that_failed_halfway_are_deleted_at_once(tmp_path, monkeypatch):
    with opened(tmp_path) as store:
        state = finished(SPEC, store)
        before = files_of(tmp_path)
        etas = {
            name: tree.to_numpy(tree.scale(eta, 0.1 * n))
            for n, (name, eta) in enumerate(state.factors.items(), 1)
        }
        later, sync = state._replace(factors=etas), files.sync
        for fails in itertools.count():
            count = itertools.count()

            def failing(path, count=count, fails=fails):
                if next(count) == fails:
                    raise OSError(errno.ENOSPC, "no space left on device")
                sync(path)

            monkeypatch.setattr(files, "sync", failing)
            try:
                kept = store.save(later)
            except errors.LedgerError:
                assert files_of(tmp_path) == before
            else:
                break
        assert fails >= 6  # of three files and their folders
        assert frozen(kept) == frozen(later)


def test_an_error_at_any_statement_leaves_everything_as_it_was(tmp_path, monkeypatch):
    class Cut(Exception):
        pass

    failing: dict[str, int | None] = {"at": None}
    transaction = files.transaction

    @contextlib.contextmanager
    def cut(*arguments):
        with transaction(*arguments) as write:
            count = itertools.count()

            def failing_write(*statement):
                if next(count) == failing["at"]:
                    raise Cut
                return write(*statement)

            yield failing_write
            if next(count) == failing["at"]:
                raise Cut

    monkeypatch.setattr(files, "transaction", cut)
    cuts = []

    class Cutting(SqliteServerStore):
        def save(self, state: ServerState) -> ServerState:
            before = self.load()
            for failing["at"] in itertools.count():
                try:
                    kept = super().save(state)
                except Cut:
                    cuts.append(failing["at"])
                    assert self.load() is before
                    assert frozen(read_state(tmp_path, SPEC.prior)) == frozen(before)
                else:
                    failing["at"] = None
                    return kept

    with contextlib.closing(Cutting(tmp_path, SPEC)) as store:
        state = finished(SPEC, store)
        assert files_of(tmp_path).keys() == named(tmp_path)
    assert len(cuts) > 60
    assert frozen(state) == frozen(finished(SPEC, MemoryServerStore()))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda s: {"history": s.history[:-1]}, "history"),
        (lambda s: {"history": (*s.history[:-1], s.history[-1]._replace(damping=0.1))}, "history"),
        (lambda s: {"accepted": dict(list(s.accepted.items())[:-1])}, "accepted answers"),
        (lambda s: {"accepted": dict.fromkeys(s.accepted, "other")}, "accepted answers"),
        (lambda s: {"ledgers": {}}, "ledgers"),
        (
            lambda s: {"ledgers": {**s.ledgers, "north": ledger.open_ledger(header("north"))}},
            "ledger",
        ),
    ],
)
def test_what_only_grows_is_never_taken_back(tmp_path, change, what):
    with opened(tmp_path) as store:
        state = finished(SPEC, store)
        with pytest.raises(errors.LedgerError, match=rf"the {what} to be saved do not extend"):
            store.save(state._replace(**change(state)))
        assert frozen(read_state(tmp_path, SPEC.prior)) == frozen(state)


# Other hands.


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE chain SET line = '' WHERE position = 0",
        "DELETE FROM chain WHERE position = 5",
        "INSERT INTO chain SELECT client, position + 2, line FROM chain WHERE position = 6",
        "UPDATE accepted SET sha256 = ''",
        "DELETE FROM accepted",
        "UPDATE history SET line = ''",
        "DELETE FROM history",
        "UPDATE events SET text = ''",
        "DELETE FROM events",
    ],
)
def test_what_only_grows_takes_no_change_from_a_careless_hand(folder, statement):
    with (
        contextlib.closing(sqlite3.connect(folder / DATABASE)) as connection,
        pytest.raises(sqlite3.IntegrityError, match="append-only"),
    ):
        connection.execute(statement)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            "UPDATE chain SET line = replace(line, 'reserved', 'sent') WHERE position = 1"
            " AND client = 'north'",
            "the ledger of 'north': entry 0",
        ),
        ("DELETE FROM chain WHERE position = 2 AND client = 'east'", "ledger of 'east' is missing"),
        ("UPDATE chain SET client = 'west' WHERE client = 'east'", "that of another client"),
        ("DELETE FROM history WHERE position = 0", "a line of the history is missing"),
        ("DELETE FROM accepted WHERE position = 1", "a line of the accepted answers is missing"),
        ("UPDATE history SET line = 'x' WHERE position = 0", "something else than was saved"),
        ("UPDATE cells SET text = '[[]]' WHERE field = 'posterior'", "something else than was"),
        ("DELETE FROM cells WHERE field = 'version'", "something else than was saved"),
        ("UPDATE cells SET field = 'other' WHERE field = 'status'", "holds `other` of a run"),
        ("UPDATE arrays SET data = zeroblob(size) WHERE data IS NOT NULL", "holds other bytes"),
        ("DELETE FROM arrays WHERE data IS NOT NULL", "is missing, or not of its size"),
        ("UPDATE arrays SET size = size + 1 WHERE data IS NULL", "bytes, expected"),
    ],
)
def test_what_was_changed_is_refused_on_opening(folder, statement, message):
    edited(folder, statement)
    for reading in (lambda: SqliteServerStore(folder, SPEC), lambda: read_state(folder)):
        with pytest.raises(errors.LedgerError) as caught:
            reading()
        assert message in caught.value.message
        assert str(folder) in caught.value.message


def test_a_file_that_lacks_or_holds_other_bytes_is_refused(folder):
    path = next((folder / BLOBS).glob("??/*"))
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[len(changed) // 2] ^= 1
    for content, message in ((bytes(changed), "have digest"), (whole[:-1], "bytes, expected")):
        path.write_bytes(content)
        with pytest.raises(errors.LedgerError, match=message):
            SqliteServerStore(folder, SPEC)
    path.unlink()
    with pytest.raises(errors.LedgerError, match="cannot be read"):
        SqliteServerStore(folder, SPEC)
    path.write_bytes(whole)
    SqliteServerStore(folder, SPEC).close()


def test_a_database_that_went_missing_is_not_begun_anew(folder):
    (folder / DATABASE).unlink()
    with pytest.raises(errors.LedgerError, match="a fresh ledger would forget"):
        SqliteServerStore(folder, SPEC)


def test_the_state_of_another_study_or_promise_is_refused(folder):
    with pytest.raises(errors.LedgerError, match=r"another study: digest d, expected other"):
        SqliteServerStore(folder, SPEC._replace(study_digest="other"))
    headers = {**SPEC.headers, "north": SPEC.headers["north"]._replace(view="aggregate")}
    with pytest.raises(errors.LedgerError, match="`view` is 'message', expected 'aggregate'"):
        SqliteServerStore(folder, SPEC._replace(headers=headers))


def test_a_second_server_is_refused_until_the_first_has_closed(folder):
    with opened(folder) as store:
        with pytest.raises(errors.LedgerError, match="is in use") as caught:
            SqliteServerStore(folder, SPEC)
        assert "one server" in caught.value.hint
        assert frozen(read_state(folder, SPEC.prior)) == frozen(store.load())
        store.close()
        with opened(folder):
            store.close()  # must not take the lock from its new holder
            with pytest.raises(errors.LedgerError, match="is in use"):
                SqliteServerStore(folder, SPEC)


# Versions.


def test_a_state_of_the_version_before_is_brought_up_to_date(folder, monkeypatch):
    with opened(folder) as store:
        before = frozen(store.load())
    extra = "CREATE TABLE notes (text TEXT);\nINSERT INTO notes VALUES ('a; b');\n"
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, extra))
    monkeypatch.setattr(schema, "VERSIONS", range(1, 3))
    with pytest.raises(errors.LedgerError, match="schema version 1, expected 2") as caught:
        read_state(folder)
    assert "start the server once" in caught.value.hint
    for _ in range(2):
        with opened(folder) as store:
            assert frozen(store.load()) == before
            ask = store._connection.execute
            assert ask("PRAGMA user_version").fetchone() == (2,)
            assert ask("SELECT text FROM notes").fetchall() == [("a; b",)]
    monkeypatch.undo()
    with pytest.raises(errors.LedgerError, match="schema version 2, expected 1"):
        SqliteServerStore(folder, SPEC)


def test_a_state_that_a_newer_version_wrote_is_refused_and_stays_as_it_is(folder):
    path = folder / schema.DATABASE
    # Of another schema, which is told by its number alone; and of the same, with a field more.
    for planted, undone, said in (
        ("PRAGMA user_version = 7", "PRAGMA user_version = 1", "schema version 7, expected 1"),
        (
            "INSERT INTO cells (field, item, text) VALUES ('lanes', '', '[]')",
            "DELETE FROM cells WHERE field = 'lanes'",
            "holds `lanes` of a run, which this version of fedvi does not know",
        ),
    ):
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(planted)
        for ask in (lambda: SqliteServerStore(folder, SPEC), lambda: read_state(folder)):
            with pytest.raises(errors.LedgerError, match=said) as caught:
                ask()
            assert "version of fedvi" in caught.value.hint
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(undone)
        with opened(folder) as store:
            assert store.load() is not None


def test_a_migration_that_fails_leaves_the_version_before(folder, monkeypatch):
    broken = "CREATE TABLE notes (text TEXT);\nINSERT INTO nowhere VALUES (1);\n"
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, broken))
    monkeypatch.setattr(schema, "VERSIONS", range(1, 3))
    with pytest.raises(errors.LedgerError, match="nowhere"):
        SqliteServerStore(folder, SPEC)
    monkeypatch.undo()
    with opened(folder) as store:
        tables = store._connection.execute("SELECT name FROM sqlite_master").fetchall()
        assert ("notes",) not in tables
        assert store.load() is not None


# Events and reading.


def test_events_are_numbered_and_kept(tmp_path):
    with opened(tmp_path) as store:
        store.record_event("joined", "north", "north joined")
        store.record_event("paused", "", "the run is paused")
        first, second = store.events()
        assert (first.number, first.kind, first.client, first.text) == (
            1,
            "joined",
            "north",
            "north joined",
        )
        assert store.events(after=1) == [second]
        assert 0 <= second.at - first.at < 60
    with opened(tmp_path) as store:
        assert store.events() == [first, second]
        assert store.events(limit=1) == [first]


def test_events_of_other_threads_do_not_mix_with_a_save(tmp_path):
    with opened(tmp_path) as store:
        coordinator = Coordinator(SPEC, store)
        failed: list[BaseException] = []

        def log() -> None:
            try:
                for number in range(30):
                    store.record_event("tick", "", str(number))
                    store.events(after=number)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=log) for _ in range(3)]
        for thread in threads:
            thread.start()
        play(SPEC, coordinator)
        for thread in threads:
            thread.join()
        assert failed == []
        assert len(store.events()) == 90
        assert frozen(read_state(tmp_path, SPEC.prior)) == frozen(coordinator.state)


def test_ledgers_are_read_from_a_folder_in_use(tmp_path):
    with pytest.raises(errors.LedgerError, match=r"holds no server's state"):
        read_ledgers(tmp_path)
    with opened(tmp_path) as store:
        state = finished(SPEC, store)
        assert read_ledgers(tmp_path) == state.ledgers
        assert [len(book.entries) for book in state.ledgers.values()] == [6, 6, 6]
        read = read_state(tmp_path)
        np.testing.assert_array_equal(read.posterior[1], state.posterior.J)


def test_the_store_needs_no_jax(tmp_path):
    script = "import sys, fedvi.server.store.durable; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
