"""The ledger for life: one for a site and account, whatever becomes of the policy's file."""

import itertools
import re
import shutil
import sqlite3
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedvi import errors
from fedvi.client.guard import Keeper, Lifetime
from fedvi.client.policy import parse_policy
from fedvi.privacy import ledger as ledgers
from fedvi.privacy.events import Gaussian
from fedvi.store import life as module
from fedvi.store.life import LifeLedger, folder_name, place_of
from fedvi.store.sqlite import DATABASE, SqliteClientStore, read_ledger

ROUND = Gaussian(30.0)


def policy(site="north", epsilon=1.0, **more):
    section = {"site": site, "epsilon": epsilon, "delta": 1e-5, "relation": "substitute", **more}
    return parse_policy({"run": {"epsilon": 1.0, "delta": 1e-5}, "life": section})


def opened(place, site="north", **given):
    given = {"tell": lambda line: None, **given}
    return LifeLedger(place, policy(site).lifetime_header(1e-15), **given)


def charge(keeper, name, site="north"):
    Lifetime(policy(site), keeper).admit(name, ROUND)


def charges(folder):
    return ledgers.reservations(read_ledger(folder))


# Where it is.


def test_the_place_is_named_or_follows_the_account_and_never_the_policy(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FEDVI_LIFE")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert place_of() == tmp_path / "home" / ".local" / "state" / "fedvi" / "life"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert place_of() == tmp_path / "home" / ".local" / "state" / "fedvi" / "life"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert place_of() == tmp_path / "xdg" / "fedvi" / "life"
    monkeypatch.setenv("FEDVI_LIFE", str(tmp_path / "env"))
    assert place_of() == tmp_path / "env"
    assert place_of(tmp_path / "flag") == tmp_path / "flag"


@pytest.mark.parametrize("home", [None, "relative"])
def test_an_account_without_a_home_is_told_to_name_a_place(monkeypatch, home):
    def homeless():
        if home is None:
            raise RuntimeError
        return Path(home)

    monkeypatch.delenv("FEDVI_LIFE")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(module.Path, "home", homeless)
    with pytest.raises(errors.ConfigError, match="no home folder") as caught:
        place_of()
    assert "--life FOLDER" in caught.value.hint


def test_a_place_that_depends_on_the_working_folder_is_refused(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/of the site")
    with pytest.raises(errors.ConfigError, match="is 'life', expected an absolute path") as caught:
        place_of(Path("life"))
    assert caught.value.hint.endswith(f"--life {tmp_path}/life")
    # No shell has written a home here, as in a file of Compose.
    monkeypatch.setenv("FEDVI_LIFE", "~/life")
    with pytest.raises(errors.ConfigError, match="is '~/life', expected an absolute") as caught:
        place_of()
    assert caught.value.hint.endswith("--life '/home/of the site/life'")


def test_no_two_sites_share_a_folder_and_no_name_leaves_the_place():
    sites = [
        "north",
        "North",
        "n\u00f6rth",
        "no\u0308rth",
        "n/rth",
        "../north",
        "..",
        " ",
        "n" * 300,
        "–",
    ]
    names = [folder_name(site) for site in sites]
    assert len({name.casefold() for name in names}) == len(sites)
    assert all(name.replace("-", "").isalnum() and name.isascii() for name in names)
    assert max(map(len, names)) < 100


# When one may begin.

CRASH = """
import os, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_life import opened
from fedvi.store import files
from fedvi.store.sqlite import SqliteClientStore
where = files if {until!r} == "connect" else SqliteClientStore
setattr(where, {until!r}, lambda *given, **more: os._exit(9))
opened(Path(sys.argv[1]))
"""


def test_the_first_is_begun_aloud_and_later_ones_are_found(tmp_path):
    said = []
    keeper = opened(tmp_path / "life", tell=said.append)
    assert isinstance(keeper, Keeper)
    (line,) = said
    assert f"begins a ledger for life of 'north', with nothing spent, in {keeper.place}" in line
    assert "name the folder of that one with --life FOLDER or FEDVI_LIFE" in line
    charge(keeper, "a")
    again = opened(tmp_path / "life", tell=said.append)
    charge(again, "b")
    assert len(said) == 1
    assert charges(Path(keeper.place)) == 2
    # The one that was open before goes on from there.
    charge(keeper, "c")
    assert charges(Path(keeper.place)) == 3


def test_a_site_that_was_renamed_does_not_start_from_0(tmp_path):
    charge(opened(tmp_path), "a")
    with pytest.raises(
        errors.LedgerError, match=r"no ledger for life of the site 'south', but that of 'north'"
    ) as (caught):
        opened(tmp_path, "south")
    assert "--begin-life" in caught.value.hint
    assert "keeps its old name" in caught.value.hint
    assert not (tmp_path / folder_name("south")).exists()
    said = []
    charge(opened(tmp_path, "south", begin=True, tell=said.append), "a", "south")
    assert len(said) == 1
    opened(tmp_path, "south")
    opened(tmp_path)


@pytest.mark.parametrize("begin", [False, True])
@pytest.mark.parametrize("other", ["N\u00f6rth", "no\u0308rth", " n\u00f6rth", "n\u00f6rth\u00a0"])
def test_another_spelling_of_a_site_is_no_other_site(tmp_path, other, begin):
    keeper = opened(tmp_path, "n\u00f6rth")
    with pytest.raises(
        errors.LedgerError, match="which differs only in capitals, blanks"
    ) as caught:
        opened(tmp_path, other, begin=begin)
    assert f"{keeper.place} is the ledger for life of 'n\\xf6rth'" in caught.value.message
    (line,) = re.findall("site = .*(?=, into)", caught.value.hint)
    assert tomllib.loads(line) == {"site": "n\u00f6rth"}


def test_a_place_whose_ledgers_are_gone_does_not_start_from_0(tmp_path):
    shutil.rmtree(opened(tmp_path).place)
    with pytest.raises(errors.LedgerError, match="but that of one that is no longer there"):
        opened(tmp_path)
    opened(tmp_path, begin=True)


@pytest.mark.parametrize("begin", [False, True])
@pytest.mark.parametrize(
    "left", [{"lock"}, {f"{DATABASE}-wal"}, {"lock", f"{DATABASE}-wal"}, set()]
)
def test_what_lost_its_ledger_is_refused_even_if_one_may_begin(tmp_path, left, begin):
    folder = Path(opened(tmp_path).place)
    for item in folder.iterdir():
        if item.name not in left:
            item.unlink()
    for name in left:
        (folder / name).touch()
    with pytest.raises(errors.LedgerError, match=f"{DATABASE} is missing or empty"):
        opened(tmp_path, begin=begin)
    # Emptied in place, it is not begun anew either.
    (folder / DATABASE).touch()
    if left:
        with pytest.raises(errors.LedgerError, match="is missing or empty"):
            opened(tmp_path, begin=begin)


@pytest.mark.parametrize("until", ["connect", "_create"])
def test_a_crash_before_anything_was_stored_locks_nobody_out(tmp_path, until):
    code = CRASH.format(tests=str(Path(__file__).parent), until=until)
    assert subprocess.run([sys.executable, "-c", code, tmp_path], check=False).returncode == 9
    (folder,) = (item for item in tmp_path.iterdir() if item.is_dir())
    found = (folder / DATABASE).stat().st_size if (folder / DATABASE).exists() else 0
    assert (found > 0) == (until == "_create")
    charge(opened(tmp_path), "a")
    assert charges(folder) == 1


def test_an_empty_database_in_the_place_of_one_that_was_stored_is_refused(tmp_path):
    folder = Path(opened(tmp_path).place)
    (folder / DATABASE).unlink()
    connection = sqlite3.connect(folder / DATABASE)
    connection.execute("PRAGMA journal_mode = wal")
    connection.close()
    for begin in (False, True):
        with pytest.raises(errors.LedgerError, match="it is empty"):
            opened(tmp_path, begin=begin)


def test_what_goes_or_is_put_back_while_it_is_in_use_is_refused(tmp_path):
    keeper = opened(tmp_path / "life")
    shutil.copytree(keeper.place, tmp_path / "copy")
    charge(keeper, "a")
    shutil.rmtree(keeper.place)
    with pytest.raises(errors.LedgerError, match="the ledger for life is gone"):
        charge(keeper, "b")
    assert not Path(keeper.place).exists()
    shutil.move(tmp_path / "copy", keeper.place)
    with pytest.raises(errors.LedgerError, match="holds 0 entries, and 1 were seen"):
        charge(keeper, "b")


def test_a_ledger_s_own_folder_is_no_place(tmp_path):
    folder = Path(opened(tmp_path).place)
    with pytest.raises(errors.LedgerError, match="is a ledger, expected the folder that holds one"):
        opened(folder)


def test_two_caps_of_one_site_are_named_and_refused(tmp_path):
    keeper = opened(tmp_path)
    file = tmp_path / "policy.toml"
    for change in (
        {"epsilon": 2.0},
        {"delta": 1e-6},
        {"unit": "patient"},
        {"relation": "add_remove"},
    ):
        header = policy(**change).lifetime_header(1e-15)
        with pytest.raises(errors.LedgerError) as caught:
            LifeLedger(tmp_path, header, policy=file, begin=True)
        said = caught.value.message
        assert f"'north' in {keeper.place} was begun with epsilon = 1.0, delta = 1e-05" in said
        assert f"{file} has epsilon = {header.epsilon}, delta = {header.delta}, unit =" in said
        assert "write that of the ledger into the policy" in caught.value.hint
    assert opened(tmp_path).ledger.header.epsilon == 1.0


# What an earlier version kept beside the policy.


def beside(path, site="north", names=("a",)):
    """A ledger that an earlier version made beside a policy."""
    store = SqliteClientStore(path.with_suffix(".life"), policy(site).lifetime_header(2e-15))
    cap = policy(site).lifetime_filter()
    for name in names:
        store.charge(ledgers.spend(store.ledger, f"{name}!0", ROUND, cap), f"{name}!0")
    store.close()
    return path.with_suffix(".life")


@pytest.mark.parametrize("begin", [False, True])
@pytest.mark.parametrize("renamed", [False, True])
def test_a_ledger_beside_the_policy_is_moved_by_the_line_that_is_printed(tmp_path, begin, renamed):
    folder = tmp_path / "of the site"
    folder.mkdir()
    old, file = (
        beside(folder / "policy.toml"),
        folder / ("other.toml" if renamed else "policy.toml"),
    )
    place = tmp_path / "life"
    with pytest.raises(errors.LedgerError, match="holds what 'north' spent for life") as caught:
        opened(place, policy=file, begin=begin)
    assert not (place / folder_name("north")).exists()
    line = caught.value.hint.partition(": ")[2]
    assert line == f"mv '{old}' {place / folder_name('north')}"
    subprocess.run(["sh", "-c", line], check=True)
    charge(opened(place, policy=file), "b")
    assert charges(place / folder_name("north")) == 2
    assert not old.exists()


def test_a_ledger_beside_the_policy_that_is_of_another_site_is_of_no_concern(tmp_path):
    beside(tmp_path / "south.toml", "south")
    opened(tmp_path / "life", policy=tmp_path / "north.toml")


def test_a_ledger_beside_the_policy_that_cannot_be_read_is_not_taken_for_another_site_s(tmp_path):
    old = beside(tmp_path / "policy.toml")
    content = (old / DATABASE).read_bytes()
    (old / DATABASE).write_bytes(content[: len(content) // 2])
    with pytest.raises(errors.LedgerError, match="may hold what 'north' spent for life") as caught:
        opened(tmp_path / "life", policy=tmp_path / "copy.toml")
    assert "move it to another folder" in caught.value.hint
    assert not (tmp_path / "life" / folder_name("north")).exists()


def test_a_ledger_of_another_account_is_of_concern_only_if_it_is_the_policy_s(
    tmp_path, monkeypatch
):
    def closed(folder):
        if folder.name == "policy.life":
            raise PermissionError(13, "Permission denied", str(folder))
        return False

    beside(tmp_path / "policy.toml")
    monkeypatch.setattr(module, "_had_ledger", closed)
    with pytest.raises(errors.LedgerError, match="cannot be read: Permission denied"):
        opened(tmp_path / "life", policy=tmp_path / "policy.toml")
    opened(tmp_path / "life", policy=tmp_path / "copy.toml")


def test_a_copy_beside_the_policy_passes_only_if_the_place_holds_all_of_it(tmp_path):
    file, place = tmp_path / "policy.toml", tmp_path / "life"
    old = beside(file)
    opened(place)  # begun at the place, before anybody looked beside the policy
    with pytest.raises(errors.LedgerError, match="both hold what 'north' spent"):
        opened(place, policy=file)
    shutil.rmtree(place / folder_name("north"))
    shutil.copytree(old, place / folder_name("north"))
    charge(opened(place, policy=file), "b")
    opened(place, policy=file)


def test_a_ledger_beside_the_policy_that_is_lost_is_refused(tmp_path):
    old = beside(tmp_path / "policy.toml")
    (old / DATABASE).unlink()
    with pytest.raises(errors.LedgerError, match="holds no ledger"):
        opened(tmp_path / "life", policy=tmp_path / "policy.toml")


# Several processes.

RACE = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_life import charge, opened
from fedvi import errors
keeper = opened(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
done = 0
try:
    for number in range(1000):
        charge(keeper, f"{{sys.argv[2]}}/{{number}}")
        done += 1
except errors.BudgetExceeded:
    print(done)
"""


def test_processes_at_once_spend_what_one_would_and_no_more(tmp_path):
    alone = opened(tmp_path / "alone")
    for most in itertools.count():
        try:
            charge(alone, f"{most}")
        except errors.BudgetExceeded:
            break
    opened(tmp_path / "life")
    code = RACE.format(tests=str(Path(__file__).parent))
    racing = [
        subprocess.Popen(
            [sys.executable, "-c", code, tmp_path / "life", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("a", "b")
    ]
    for process in racing:
        assert process.stdout.readline() == "ready\n"
    for process in racing:
        process.stdin.write("\n")
        process.stdin.flush()
    done = [int(process.communicate(timeout=120)[0]) for process in racing]
    assert sum(done) == most > 5
    assert charges(tmp_path / "life" / folder_name("north")) == most


def test_two_that_hold_the_ledger_never_both_get_the_last_of_it(tmp_path):
    first, second = opened(tmp_path), opened(tmp_path)
    with pytest.raises(errors.BudgetExceeded):  # noqa: PT012
        for number in range(1000):
            charge(first, f"a/{number}")
    before = charges(Path(first.place))
    with pytest.raises(errors.BudgetExceeded):
        charge(second, "b/0")
    assert charges(Path(first.place)) == before
