"""The ledger of one data holder in a folder: no process forgets another's runs, and no damage is mended."""

import contextlib
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedvi
from fedvi import errors
from fedvi.privacy import accountants, events, ledger
from fedvi.privacy.runs import Runs
from fedvi.store import shared, sqlite
from fedvi.store.alone import LedgerFolder
from fedvi.store.sqlite import DATABASE, SqliteClientStore, read_ledger

RUN = events.Gaussian(200.0)
HINT = "plan more"


def header(planned=3, digest="ab12", **fields):
    usual = {
        "planned": events.repeat(RUN, planned),
        "epsilon": 1.0,
        "delta": 1e-5,
        "accountant": "pld",
    }
    return ledger.Header(
        "dpsvi", digest, "self", "record", "substitute", "message", True, **(usual | fields)
    )


def runs(folder, planned=3, **fields):
    budget = ledger.Budget(1.0, 1e-5, accountants.pld("substitute"))
    keeper = LedgerFolder(folder) if folder is not None else None
    return Runs(header(planned, **fields), RUN, planned, budget, keeper)


# What runs through ``program`` in another process is this, of a folder and a number of runs.
PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_alone import HINT, runs
from fedvi import errors
folder, planned = Path(sys.argv[1]), int(sys.argv[2])
"""


def program(code, *arguments):
    """Starts another process."""
    text = PROGRAM.format(tests=str(Path(__file__).parent)) + code
    return subprocess.Popen(
        [sys.executable, "-c", text, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# One process after the other.


def test_another_process_goes_on_counting(tmp_path):
    folder = tmp_path / "spent"
    assert [runs(folder).charge("init", HINT) for _ in range(2)] == [0, 1]
    code = "print(runs(folder, planned).charge('init', HINT))"
    said, wrong = program(code, folder, 3).communicate()
    assert said == "2\n", wrong
    with pytest.raises(
        errors.BudgetExceeded,
        match=r"init would be run 4 of the ledger in .*spent, expected at most 3, over all processes",
    ):
        runs(folder).charge("init", HINT)
    found = read_ledger(folder)
    assert [entry.release_id for entry in found.entries] == ["run/0", "run/1", "run/2"]
    ledger.verify(found)


def test_who_looks_sees_what_others_charged(tmp_path):
    mine, other = runs(tmp_path / "spent"), runs(tmp_path / "spent")
    other.charge("init", HINT)
    assert len(mine.ledger.entries) == 0
    assert mine.charge("init", HINT) == 1
    assert len(mine.ledger.entries) == 2


def test_without_a_folder_runs_are_counted_in_memory():
    for _ in range(2):
        mine = runs(None, planned=1)
        assert mine.charge("run", HINT) == 0
        with pytest.raises(errors.BudgetExceeded, match=r"run was called 2 times, expected at mo"):
            mine.charge("run", HINT)


def test_a_relative_name_stays_the_folder_that_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keeper = LedgerFolder("spent")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    keeper.opened(header())
    assert keeper.place == "spent"
    assert (tmp_path / "spent" / DATABASE).is_file()


def test_the_promise_holds_beside_the_count(tmp_path):
    # More runs than the budget pays for: the accountant refuses what the count would let through.
    budget = ledger.Budget(0.03, 1e-5, accountants.pld("substitute"))
    cap = Runs(header(100, epsilon=0.03), RUN, 100, budget, LedgerFolder(tmp_path / "spent"))
    charges = (cap.charge("init", HINT) for _ in range(100))
    with pytest.raises(errors.BudgetExceeded, match=r"would spend epsilon"):
        list(charges)
    assert 0 < len(read_ledger(tmp_path / "spent").entries) < 100


# Several at once.


def test_processes_at_once_charge_what_was_planned_and_no_more(tmp_path):
    planned, folder = 7, tmp_path / "spent"
    code = """
sys.stdin.readline()
while True:
    try:
        print(runs(folder, planned).charge("init", HINT))
    except errors.BudgetExceeded:
        break
"""
    started = [program(code, folder, planned) for _ in range(3)]
    for process in started:
        process.stdin.write("\n")
        process.stdin.flush()
    ended = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], ended
    charged = sorted(int(number) for said, _ in ended for number in said.split())
    assert charged == list(range(planned))
    assert ledger.reservations(read_ledger(folder)) == planned


def test_threads_at_once_get_runs_of_their_own(tmp_path):
    for mine in (runs(None, planned=8), runs(tmp_path / "spent", planned=8)):
        found = []
        threads = [
            threading.Thread(target=lambda: found.append(mine.charge("run", HINT)))  # noqa: B023
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == list(range(8))


def test_a_folder_that_somebody_holds_is_waited_for_and_then_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(shared, "_PATIENCE_SECONDS", 0.1)
    mine = runs(tmp_path / "spent")
    with (
        contextlib.closing(SqliteClientStore(tmp_path / "spent", header())),
        pytest.raises(errors.LedgerError, match=r"spent is in use: another process has held its"),
    ):
        mine.charge("init", HINT)
    assert mine.charge("init", HINT) == 0


# A crash anywhere.


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_crash_leaves_the_charge_or_none_and_never_less(tmp_path, moment):
    """Killed on either side of the commit; the next process goes on from what is there."""
    code = """
import os, signal
from fedvi.store.sqlite import SqliteClientStore
honest = SqliteClientStore.charge
def dying(self, *what):
    if sys.argv[3] == "after":
        honest(self, *what)
    os.kill(os.getpid(), signal.SIGKILL)
mine = runs(folder, planned)
SqliteClientStore.charge = dying
mine.charge("init", HINT)
"""
    folder = tmp_path / "spent"
    process = program(code, folder, 2, moment)
    process.communicate()
    assert process.returncode == -9
    left = 2 if moment == "before" else 1
    for run in range(2 - left, 2):
        assert runs(folder, planned=2).charge("init", HINT) == run
    with pytest.raises(errors.BudgetExceeded, match=r"run 3 of the ledger"):
        runs(folder, planned=2).charge("init", HINT)


def test_what_refuses_a_run_leaves_the_ledger_as_it_was(tmp_path):
    keeper = LedgerFolder(tmp_path / "spent")

    def broken(found):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keeper.extended(header(), broken)
    assert keeper.opened(header()).entries == ()


@given(
    planned=st.integers(1, 3),
    steps=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["charge", "crash", "start"]))),
)
def test_no_order_of_processes_and_crashes_charges_more_than_was_planned(
    planned, steps, tmp_path_factory
):
    """Every charge that anybody was told of is in the ledger, and there are never more than planned."""
    folder = tmp_path_factory.mktemp("ledger") / "spent"
    alive = [runs(folder, planned) for _ in range(3)]
    told = []
    for who, what in steps[:12]:
        if what == "start":
            alive[who] = runs(folder, planned)
            continue
        honest = SqliteClientStore.charge
        if what == "crash":

            def dying(self, *given, honest=honest):
                honest(self, *given)
                raise SystemExit

            SqliteClientStore.charge = dying
        try:
            told.append(alive[who].charge("init", HINT))
        except errors.BudgetExceeded:
            assert ledger.reservations(read_ledger(folder)) == planned
        except SystemExit:
            alive[who] = runs(folder, planned)
        finally:
            SqliteClientStore.charge = honest
    found = read_ledger(folder)
    assert ledger.reservations(found) <= planned
    assert len(set(told)) == len(told)
    assert {f"run/{run}" for run in told} <= {entry.release_id for entry in found.entries}
    shutil.rmtree(folder)


# What is refused.


def test_another_plan_is_refused_and_both_are_named(tmp_path):
    runs(tmp_path / "spent").charge("init", HINT)
    before = (tmp_path / "spent" / DATABASE).read_bytes()
    with pytest.raises(
        errors.LedgerError,
        match=r"'dpsvi' with digest ab12, expected that of 'dpsvi' with digest cd34; "
        r"`epsilon` is 1\.0, expected 0\.5\n",
    ) as refused:
        LedgerFolder(tmp_path / "spent").opened(header(digest="cd34", epsilon=0.5))
    assert "give another plan its own folder" in refused.value.hint
    assert (tmp_path / "spent" / DATABASE).read_bytes() == before


def test_the_ledger_for_life_of_a_site_is_no_plans(tmp_path):
    SqliteClientStore(
        tmp_path / "life", ledger.lifetime_header("north", "record", "substitute")
    ).close()
    with pytest.raises(errors.LedgerError, match=r"'all studies of a site' with digest lifetime"):
        runs(tmp_path / "life")


def damaged(folder, how):
    path = folder / DATABASE
    content = path.read_bytes()
    if how == "empty":
        path.write_bytes(b"")
    elif how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif how == "first page":
        path.write_bytes(content[:4096])
    elif how == "other bytes":
        path.write_bytes(b"no database at all" * 500)
    elif how == "another hash":
        (entry,) = read_ledger(folder).entries
        swapped = entry.hash[::-1].encode()
        path.write_bytes(content.replace(entry.hash.encode(), swapped))
    else:
        assert how == "another event"
        path.write_bytes(content.replace(b"200.0", b"900.0"))
    assert how == "gone" or path.read_bytes() != content


@pytest.mark.parametrize(
    "how",
    ["empty", "gone", "cut", "first page", "other bytes", "another hash", "another event"],
)
def test_what_is_damaged_is_refused_and_left_as_it_is(tmp_path, how):
    folder = tmp_path / "spent"
    mine = runs(folder)
    mine.charge("init", HINT)
    damaged(folder, how)
    path = folder / DATABASE
    before = path.read_bytes() if path.exists() else b""
    for attempt in (lambda: mine.charge("init", HINT), lambda: runs(folder)) * 2:
        with pytest.raises(errors.LedgerError):
            attempt()
        if before:
            assert path.read_bytes() == before
        else:
            # SQLite makes a file of its own again, in which nothing would pass for a ledger.
            with pytest.raises(errors.LedgerError, match=r"it is empty"):
                read_ledger(folder)
    assert len(mine.ledger.entries) == 1


@pytest.mark.parametrize("older", [False, True])
def test_a_ledger_that_forgot_what_was_seen_of_it_is_refused(tmp_path, older):
    """Deleted with its folder, or replaced by a copy from before: whoever saw more, notices."""
    folder = tmp_path / "spent"
    mine = runs(folder)
    mine.charge("init", HINT)
    shutil.copytree(folder, tmp_path / "copy")
    mine.charge("init", HINT)
    shutil.rmtree(folder)
    if older:
        (tmp_path / "copy").rename(folder)
    for _ in range(2):
        with pytest.raises(
            errors.LedgerError, match=rf"holds {int(older)} entries, and 2 were seen before"
        ):
            mine.charge("init", HINT)
    assert ledger.reservations(read_ledger(folder)) == int(older)


def test_a_folder_that_stands_nowhere_is_refused_in_words(tmp_path):
    with pytest.raises(errors.LedgerError, match=r"there is no folder '.*missing' to keep it in"):
        LedgerFolder(tmp_path / "missing" / "spent")
    assert not list(tmp_path.iterdir())
    (tmp_path / "there").mkdir()
    keeper = LedgerFolder(tmp_path / "there" / "spent")
    (tmp_path / "there").rmdir()
    with pytest.raises(errors.LedgerError, match=r"there is no folder '.*there' to keep it in"):
        keeper.opened(header())


def test_an_empty_name_is_not_the_working_folder():
    with pytest.raises(errors.ConfigError, match=r"ledger folder is '', expected a path"):
        LedgerFolder("")


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "spent").write_text("mine")
    with pytest.raises(errors.LedgerError, match=r"which is a file, expected a folder"):
        LedgerFolder(tmp_path / "spent")


def test_a_ledger_that_cannot_be_opened_starts_no_run(tmp_path):
    mine = runs(tmp_path / "spent")
    for file in (tmp_path / "spent").glob(f"{DATABASE}*"):
        file.unlink()
    (tmp_path / "spent" / DATABASE).mkdir()
    with pytest.raises(errors.LedgerError):
        mine.charge("init", HINT)
    assert mine.ledger.entries == ()


def test_a_full_disk_starts_no_run(tmp_path, monkeypatch):
    mine = runs(tmp_path / "spent")
    honest = sqlite.files.transaction

    @contextlib.contextmanager
    def full(connection, path):
        connection.execute(
            f"PRAGMA max_page_count = {connection.execute('PRAGMA page_count').fetchone()[0]}"
        )
        with honest(connection, path) as write:
            yield write
            write("CREATE TABLE ballast AS SELECT randomblob(100000)")

    monkeypatch.setattr(sqlite.files, "transaction", full)
    with pytest.raises(errors.LedgerError, match=r"full"):
        mine.charge("init", HINT)
    monkeypatch.undo()
    assert mine.ledger.entries == ()
    assert mine.charge("init", HINT) == 0


@pytest.mark.parametrize("given", ["spent", Path("spent"), 3])
def test_a_plan_is_given_a_folder_and_no_name(given):
    with pytest.raises(errors.ConfigError, match=r"expected a keeper such as") as no:
        fedvi.privacy.sgd(epsilon=1.0, delta=1e-5, steps=1, batch=1, max_records=9, ledger=given)
    assert "fedvi.LedgerFolder" in no.value.hint


def test_where_it_is_kept_is_no_part_of_the_plan(tmp_path):
    settings = {"noise_multiplier": 5.0, "delta": 1e-5, "steps": 2, "batch": 3, "max_records": 9}
    plans = [
        fedvi.privacy.sgd(**settings, ledger=keeper)
        for keeper in (None, LedgerFolder(tmp_path / "one"), LedgerFolder(tmp_path / "other"))
    ]
    opened = [plan.open_runs(4).ledger.header for plan in plans]
    assert plans[0] == plans[1] == plans[2]
    assert opened[0] == opened[1] == opened[2]
    assert [plan.kept for plan in plans] == ["", str(tmp_path / "one"), str(tmp_path / "other")]
