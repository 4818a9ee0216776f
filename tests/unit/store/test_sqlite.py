"""The store on disk: what other hands changed is refused, what is erased is gone, all or nothing."""

import contextlib
import itertools
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedvi import errors
from fedvi.federation.messages import Payload, Tensor
from fedvi.privacy import accountants, events, ledger
from fedvi.store import files, sqlite
from fedvi.store.sqlite import DATABASE, SqliteClientStore, read_ledger

HEADER = ledger.Header("s", "d", "north", "record", "substitute", "message", True)
BUDGET = ledger.Budget(1.0, 1e-5, accountants.pld("substitute"))
NOISE = events.Gaussian(50.0)
# Random, so that no run of equal bytes elsewhere is mistaken for a piece of it.
GENERATOR = np.random.default_rng(1)
SECRETS = [GENERATOR.bytes(32) for _ in range(4)]
FACTORS = GENERATOR.bytes(9000)  # several pages
TASK, DATA, STATE, FROZEN = (GENERATOR.bytes(32) for _ in range(4))


def payload(name: str, size: int = 3) -> Payload:
    return Payload((Tensor("h", "<f8", (size,), bytes(8 * size)),), "{}", f"digest of {name}")


def reserve(store, name: str, secret: bytes) -> None:
    store.reserve(ledger.spend(store.ledger, name, NOISE, BUDGET), name, secret, TASK)


def seal(store, name: str, state: bytes | None = None, **options) -> None:
    sent = payload(name, **options)
    store.seal(ledger.seal(store.ledger, name, sent.sha256), name, sent, state)


def solve(store, name: str, secret: bytes, state: bytes | None = None) -> None:
    reserve(store, name, secret)
    store.note_inputs(name, DATA, STATE, FROZEN)
    seal(store, name, state)


def send(store, name: str) -> None:
    store.acknowledge(ledger.mark_sent(store.ledger, name), name)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A store with one release sent, one sealed and one reserved, closed."""
    with contextlib.closing(SqliteClientStore(tmp_path / "state", HEADER)) as store:
        solve(store, "a#0", SECRETS[0])
        send(store, "a#0")
        solve(store, "b#0", SECRETS[1], FACTORS)
        reserve(store, "c#0", SECRETS[2])
        store.note_inputs("c#0", DATA, STATE, FROZEN)
    return tmp_path / "state"


def reopened(folder: Path) -> contextlib.closing:
    return contextlib.closing(SqliteClientStore(folder, HEADER))


def holds(folder: Path, secret: bytes) -> bool:
    """Whether any eight bytes in a row of a secret stand in any file of a folder."""
    files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    pieces = [secret[start : start + 8] for start in range(len(secret) - 7)]
    return any(piece in content for piece in pieces for content in files)


# What is there after closing and opening again.


def test_everything_survives_closing(folder):
    with reopened(folder) as store:
        kinds = [entry.kind for entry in store.ledger.entries]
        assert kinds == ["reserved", "sealed", "sent", "reserved", "sealed", "reserved"]
        assert store.unsent() == ("b#0", payload("b#0"))
        assert (store.pending().release_id, store.pending().secret) == ("c#0", SECRETS[2])
        assert (store.pending().data, store.pending().state) == (DATA, STATE)
        assert store.load_state() == FACTORS
        assert store.freeze.digest == FROZEN
        seal(store, "c#0")
    with reopened(folder) as store:
        assert (store.pending(), store.load_state()) == (None, None)
        assert store.unsent()[0] == "b#0"
        ledger.verify(store.ledger)


def test_the_local_secret_is_drawn_once_and_differs_between_stores(tmp_path):
    keys = []
    for name in ("one", "one", "two"):
        with reopened(tmp_path / name) as store:
            keys.append(store.freeze.key)
    assert keys[0] == keys[1] != keys[2]


def test_only_the_owner_may_read_whatever_the_mask_says(tmp_path):
    before = os.umask(0)
    try:
        with reopened(tmp_path / "deep" / "state") as store:
            solve(store, "a#0", SECRETS[0])
            files = list((tmp_path / "deep" / "state").iterdir())
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in files}
    finally:
        os.umask(before)
    assert set(modes) >= {DATABASE, "lock"}
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE((tmp_path / "deep" / "state").stat().st_mode) == 0o700


def test_commits_reach_the_disk_and_deletions_overwrite(tmp_path):
    with reopened(tmp_path / "state") as store:
        ask = store._connection.execute
        names = ("journal_mode", "synchronous", "secure_delete", "foreign_keys")
        found = [ask(f"PRAGMA {name}").fetchone()[0] for name in names]
    assert found == ["wal", 2, 1, 1]


# Erasure.


def test_a_secret_is_on_the_disk_before_it_is_used_and_nowhere_once_sealed(tmp_path):
    folder = tmp_path / "state"
    with reopened(folder) as store:
        reserve(store, "a#0", SECRETS[0])
        assert holds(folder, SECRETS[0])
        store.note_inputs("a#0", DATA, STATE, FROZEN)
        assert holds(folder, SECRETS[0])
        assert holds(folder, DATA)
        seal(store, "a#0", FACTORS)
        assert not holds(folder, SECRETS[0])
        assert not holds(folder, DATA)
        assert holds(folder, FACTORS)


def test_a_secret_that_is_given_up_or_drawn_anew_is_nowhere(tmp_path):
    folder = tmp_path / "state"
    with reopened(folder) as store:
        reserve(store, "a#0", SECRETS[0])
        store.renew("a#0", SECRETS[1], TASK)
        assert not holds(folder, SECRETS[0])
        reserve(store, "a#1", SECRETS[2])
        assert not holds(folder, SECRETS[1])
        assert holds(folder, SECRETS[2])


def test_private_state_is_erased_when_it_changes_and_when_the_study_is_done(tmp_path):
    folder, later = tmp_path / "state", GENERATOR.bytes(5000)
    with reopened(folder) as store:
        solve(store, "a#0", SECRETS[0], FACTORS)
        solve(store, "b#0", SECRETS[1], later)
        assert not holds(folder, FACTORS)
        reserve(store, "c#0", SECRETS[2])
        store.erase_state()
        assert not holds(folder, later)
        assert not holds(folder, SECRETS[2])


def test_keys_for_masks_are_kept_and_those_before_are_erased(tmp_path):
    folder, first, second = tmp_path / "state", GENERATOR.bytes(3000), GENERATOR.bytes(3000)
    with reopened(folder) as store:
        assert store.load_keys() is None
        store.save_keys(first)
        store.save_keys(second)
        assert not holds(folder, first)
    with reopened(folder) as store:
        assert store.load_keys() == second
        store.erase_state()
        assert store.load_keys() is None
        assert not holds(folder, second)


def test_what_a_crash_left_of_a_secret_is_erased_on_opening(tmp_path, monkeypatch):
    folder = tmp_path / "state"
    store = SqliteClientStore(folder, HEADER)
    monkeypatch.setattr(SqliteClientStore, "_overwrite_erased", lambda self: None)
    solve(store, "a#0", SECRETS[0])
    # As a crash would leave it: the log still holds pages from before the erasure.
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    store.close()
    assert holds(copy, SECRETS[0])
    monkeypatch.undo()
    with reopened(copy) as store:
        assert not holds(copy, SECRETS[0])
        assert store.unsent()[0] == "a#0"


def _keep_log(monkeypatch):
    monkeypatch.setattr(SqliteClientStore, "_overwrite_erased", lambda self: None)


def _keep_bytes(monkeypatch):
    connect = files.connect

    def careless(path, secure_delete):
        connection = connect(path, secure_delete)
        connection.execute("PRAGMA secure_delete = 0")
        return connection

    monkeypatch.setattr(files, "connect", careless)


def _keep_row(monkeypatch):
    transaction = SqliteClientStore._transaction

    @contextlib.contextmanager
    def forgetful(self, *arguments):
        with transaction(self, *arguments) as write:

            def keeping(statement, *values):
                if statement == "DELETE FROM pending":
                    statement = "SELECT 1"
                return write(statement, *values)

            yield keeping

    monkeypatch.setattr(SqliteClientStore, "_transaction", forgetful)


@pytest.mark.parametrize("bug", [_keep_log, _keep_bytes, _keep_row])
def test_a_secret_that_is_not_erased_is_found(tmp_path, monkeypatch, bug):
    bug(monkeypatch)
    folder = tmp_path / "state"
    with reopened(folder) as store:
        solve(store, "a#0", SECRETS[0])
        assert holds(folder, SECRETS[0])


def test_a_reader_that_keeps_the_log_from_being_emptied_is_reported(tmp_path):
    folder = tmp_path / "state"
    with reopened(folder) as store:
        store._connection.execute("PRAGMA busy_timeout = 0")
        reserve(store, "a#0", SECRETS[0])
        store.note_inputs("a#0", DATA, STATE, FROZEN)
        with contextlib.closing(sqlite3.connect(folder / DATABASE)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM chain").fetchall()
            with pytest.raises(
                errors.LedgerError, match="cannot be emptied while it is being read"
            ):
                seal(store, "a#0")
        assert store.unsent()[0] == "a#0"
        assert store.ledger.entries[-1].kind == "sealed"
    with reopened(folder):
        assert not holds(folder, SECRETS[0])


# Other hands.


def edited(folder: Path, *statements: str) -> None:
    """Changes the database as somebody who knows SQLite would, triggers or not."""
    with contextlib.closing(sqlite3.connect(folder / DATABASE)) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        for (name,) in names.fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement)
        connection.commit()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE chain SET line = '' WHERE position = 0",
        "DELETE FROM chain",
        "INSERT INTO chain SELECT position + 2, line FROM chain WHERE position = 0",
    ],
)
def test_the_chain_takes_no_change_from_a_careless_hand(folder, statement):
    with (
        contextlib.closing(sqlite3.connect(folder / DATABASE)) as connection,
        pytest.raises(sqlite3.IntegrityError),
    ):
        connection.execute(statement)


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        (["UPDATE chain SET line = replace(line, '50.0', '90.0') WHERE position = 1"], "entry 0"),
        (["DELETE FROM chain WHERE position = 3"], "a line of the ledger is missing"),
        (
            [
                "DELETE FROM chain WHERE position = 3",
                "UPDATE chain SET position = position - 1 WHERE position > 3",
            ],
            "entry 2",
        ),
        (
            [
                "UPDATE chain SET position = -4 WHERE position = 4",
                "UPDATE chain SET position = 4 WHERE position = 5",
                "UPDATE chain SET position = 5 WHERE position = -4",
            ],
            "entry 3",
        ),
        (["DELETE FROM chain"], "is empty"),
        (["DELETE FROM chain WHERE position = 6"], "'c#0' is unknown in the ledger"),
        (["DELETE FROM chain WHERE position >= 5"], "'c#0' is unknown in the ledger"),
        (["DELETE FROM pending", "DELETE FROM chain WHERE position >= 5"], "'b#0' is reserved"),
        (["UPDATE outbox SET sha256 = 'other'"], "other bytes of 'b#0'"),
        (["UPDATE pending SET release_id = 'b#0'"], "'b#0' is sealed in the ledger"),
    ],
)
def test_what_was_changed_is_refused_on_opening(folder, statements, message):
    edited(folder, *statements)
    with pytest.raises(errors.LedgerError) as caught:
        SqliteClientStore(folder, HEADER)
    assert message in caught.value.message
    assert str(folder) in caught.value.message


def test_a_change_of_any_byte_of_a_line_is_refused(folder):
    path = folder / DATABASE
    whole = path.read_bytes()
    lines = ledger.to_lines(read_ledger(folder))
    for number, line in enumerate(lines):
        start = whole.index(line.encode())
        for offset in range(0, len(line), 7):
            changed = bytearray(whole)
            changed[start + offset] ^= 1
            path.write_bytes(changed)
            with pytest.raises(errors.LedgerError):
                SqliteClientStore(folder, HEADER)
        assert number < len(lines)
    path.write_bytes(whole)
    SqliteClientStore(folder, HEADER).close()


def test_a_file_cut_short_or_overwritten_is_refused(folder):
    path = folder / DATABASE
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:5000], b"no database" * 500, b""):
        path.write_bytes(damaged)
        with pytest.raises(errors.LedgerError):
            SqliteClientStore(folder, HEADER)
    path.unlink()
    with pytest.raises(errors.LedgerError, match="a fresh ledger would forget"):
        SqliteClientStore(folder, HEADER)
    path.write_bytes(whole)
    SqliteClientStore(folder, HEADER).close()


def test_entries_missing_from_the_end_are_told_only_by_an_anchor(folder):
    with reopened(folder) as store:
        anchor = ledger.anchor(store.ledger)
    edited(folder, "DELETE FROM pending", "DELETE FROM chain WHERE position = 6")
    with reopened(folder) as store, pytest.raises(errors.LedgerError):
        ledger.check_anchor(store.ledger, anchor)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"client": "south"}, "`client` is 'north', expected 'south'"),
        ({"study_digest": "e"}, "`study_digest` is 'd', expected 'e'"),
        ({"relation": "add_remove"}, "`relation` is 'substitute', expected 'add_remove'"),
        ({"protected": False}, "`protected` is True, expected False"),
    ],
)
def test_a_ledger_of_something_else_is_refused_naming_what_differs(folder, change, message):
    with pytest.raises(errors.LedgerError) as caught:
        SqliteClientStore(folder, HEADER._replace(**change))
    assert message in caught.value.message
    (name,) = change
    assert caught.value.message.count("expected") == 1, name
    reopened(folder).__exit__(None, None, None)


def test_a_file_of_another_version_or_another_program_is_refused(folder, tmp_path):
    for pragma, message in (
        ("user_version = 2", "schema version 2, expected 1"),
        ("application_id = 7", "not one of fedvi"),
    ):
        edited(folder, f"PRAGMA {pragma}")
        with pytest.raises(errors.LedgerError, match=message):
            SqliteClientStore(folder, HEADER)
        with pytest.raises(errors.LedgerError, match=message):
            read_ledger(folder)
    other = tmp_path / "other"
    other.mkdir()
    with contextlib.closing(sqlite3.connect(other / DATABASE)) as connection:
        connection.execute("CREATE TABLE notes (text)")
    with pytest.raises(errors.LedgerError, match="not one of fedvi"):
        SqliteClientStore(other, HEADER)


# One writer.


def test_a_second_opener_is_refused_until_the_first_has_closed(folder):
    with reopened(folder):
        with pytest.raises(errors.LedgerError, match="is in use") as caught:
            SqliteClientStore(folder, HEADER)
        assert "stop the other one" in caught.value.hint
    with reopened(folder) as store:
        store.close()
        with reopened(folder):
            store.close()  # must not take the lock from its new holder
            with pytest.raises(errors.LedgerError, match="is in use"):
                SqliteClientStore(folder, HEADER)


def test_another_process_is_refused_too_and_a_dead_one_leaves_no_lock(folder):
    script = f"""
import os, pathlib, sys
from fedvi.privacy.ledger import Header
from fedvi.store.sqlite import SqliteClientStore
store = SqliteClientStore(pathlib.Path({str(folder)!r}), Header(*{tuple(HEADER)!r}))
print("open", flush=True)
sys.stdin.read()
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as other:
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(errors.LedgerError, match="is in use"):
            SqliteClientStore(folder, HEADER)
        assert len(read_ledger(folder).entries) == 6
        other.kill()
    reopened(folder).__exit__(None, None, None)


def test_reading_needs_no_lock_and_writes_nothing(folder, tmp_path):
    with reopened(folder) as store:
        assert read_ledger(folder) == store.ledger
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert len(read_ledger(folder).entries) == 6
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.name in before}
    assert before == after
    with pytest.raises(errors.LedgerError, match="holds no ledger"):
        read_ledger(tmp_path)


# All or nothing.


def snapshot(store) -> tuple:
    kept = store.load_state(), store.load_keys(), store.freeze.digest
    return store.ledger, store.pending(), store.unsent(), *kept


def test_a_full_disk_leaves_nothing_half_written(tmp_path):
    folder = tmp_path / "state"
    with reopened(folder) as store:
        reserve(store, "a#0", SECRETS[0])
        store.note_inputs("a#0", DATA, STATE, FROZEN)
        before = snapshot(store)
        (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(errors.LedgerError, match="full") as caught:
            seal(store, "a#0", size=10_000)
        assert "nothing was stored" in caught.value.hint
        assert snapshot(store) == before
    with reopened(folder) as store:
        assert snapshot(store) == before
        seal(store, "a#0", size=10_000)
        assert store.unsent() == ("a#0", payload("a#0", 10_000))


def test_an_error_at_any_statement_leaves_everything_as_it_was(tmp_path, monkeypatch):
    class Cut(Exception):
        pass

    folder, failing = tmp_path / "state", {"at": None}
    transaction = SqliteClientStore._transaction

    @contextlib.contextmanager
    def cut(self, *arguments):
        with transaction(self, *arguments) as write:
            count = itertools.count()

            def failing_write(*statement):
                if next(count) == failing["at"]:
                    raise Cut
                return write(*statement)

            yield failing_write
            if next(count) == failing["at"]:
                raise Cut

    monkeypatch.setattr(SqliteClientStore, "_transaction", cut)
    with reopened(folder) as store:
        steps = [
            lambda: reserve(store, "a#0", SECRETS[0]),
            lambda: store.renew("a#0", SECRETS[1], TASK),
            lambda: store.note_inputs("a#0", DATA, STATE, FROZEN),
            lambda: seal(store, "a#0", FACTORS),
            lambda: send(store, "a#0"),
            lambda: reserve(store, "b#0", SECRETS[2]),
            lambda: store.save_keys(b"keys"),
            store.erase_state,
        ]
        cuts = 0
        for step in steps:
            before = snapshot(store)
            for failing["at"] in itertools.count():
                try:
                    step()
                except Cut:
                    cuts += 1
                    assert snapshot(store) == before
                    assert read_ledger(folder) == store.ledger
                else:
                    break
            failing["at"] = None
        assert cuts == 3 + 2 + 3 + 6 + 2 + 3 + 2 + 4  # each statement, and before the commit


def test_a_folder_that_cannot_be_used_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.LedgerError, match="cannot be used as a store"):
        SqliteClientStore(tmp_path / "file", HEADER)


def test_a_creation_that_was_cut_short_is_begun_again(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite.ledgers, "open_ledger", lambda header: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        SqliteClientStore(tmp_path / "state", HEADER)
    monkeypatch.undo()
    with reopened(tmp_path / "state") as store:
        assert store.ledger == ledger.open_ledger(HEADER)
