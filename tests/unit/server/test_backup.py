"""A copy of a server's state: whole, verified, of one moment, and never of a client's secrets."""

import contextlib
import hashlib
import json
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedvi import errors
from fedvi.cli.main import main
from fedvi.privacy import ledger
from fedvi.results import ledger_files
from fedvi.server.coordinator import Coordinator
from fedvi.server.store import durable
from fedvi.server.store.backup import back_up
from fedvi.server.store.durable import SqliteServerStore
from fedvi.server.store.schema import BLOBS, DATABASE, read_state
from fedvi.store import blobs
from fedvi.store.sqlite import SqliteClientStore
from tests.states import CLIENTS, FILED, LIMIT, frozen, header, make_spec, play

SPEC = make_spec(FILED, rounds=4)


@pytest.fixture(autouse=True)
def small_limits(monkeypatch):
    monkeypatch.setattr(durable, *LIMIT)


def opened(folder: Path, spec=SPEC) -> contextlib.closing:
    return contextlib.closing(SqliteServerStore(folder, spec))


@pytest.fixture
def state(tmp_path) -> Path:
    with opened(tmp_path / "state") as store:
        play(SPEC, Coordinator(SPEC, store), passes=2)
    return tmp_path / "state"


def with_plan(state: Path) -> str:
    """Puts a plan beside a state, with one large array, whose name is returned."""
    name = hashlib.sha256(b"12345678").hexdigest()
    plan = {"prior": [{"sha256": name}], "sha256": hashlib.sha256(b"plan").hexdigest()}
    (state / "plan.json").write_text(json.dumps(plan))
    (state / "plan" / name[:2]).mkdir(parents=True)
    (state / "plan" / name[:2] / name).write_bytes(b"12345678")
    return name


def test_a_copy_is_the_state_and_a_server_goes_on_from_it(state, tmp_path):
    name = with_plan(state)
    found = back_up(state, tmp_path / "copies" / "one")
    with opened(state) as store:
        original = frozen(store.load())
        assert found.version == store.load().version == 2
        assert (found.status, found.rounds) == ("running", 2)
        assert found.anchors == {n: ledger.anchor(b) for n, b in store.load().ledgers.items()}
        play(SPEC, Coordinator(SPEC, store))
        end = frozen(store.load())
    with opened(tmp_path / "copies" / "one") as copy:
        assert frozen(copy.load()) == original != end
        play(SPEC, Coordinator(SPEC, copy))
        assert frozen(copy.load()) == end
    names = {path.name for path in (tmp_path / "copies").iterdir()}
    assert names == {"one"}, "what it worked with lies about"
    plan = (state / "plan.json").read_bytes()
    assert (tmp_path / "copies" / "one" / "plan.json").read_bytes() == plan
    copied = tmp_path / "copies" / "one" / "plan" / name[:2] / name
    assert copied.read_bytes() == b"12345678"


def test_a_copy_made_while_the_server_works_is_of_one_moment(tmp_path):
    seen = []

    class Noting(SqliteServerStore):
        def save(self, state):
            seen.append(frozen(state))
            return super().save(state)

    spec = make_spec(FILED, rounds=20)
    with contextlib.closing(Noting(tmp_path / "state", spec)) as store:
        coordinator = Coordinator(spec, store)
        play(spec, coordinator, passes=1)
        working = threading.Thread(target=play, args=(spec, coordinator))
        working.start()
        copies = []
        while working.is_alive() or not copies:
            copies.append(tmp_path / f"copy {len(copies)}")
            back_up(tmp_path / "state", copies[-1])
        working.join()
    assert len(copies) > 1
    for copy in copies:
        assert frozen(read_state(copy, SPEC.prior)) in seen


def test_what_the_plan_does_not_name_is_not_copied(state, tmp_path):
    name = with_plan(state)
    other = name[:2] + "0" * 62
    for stray in (".DS_Store", other):
        (state / "plan" / name[:2] / stray).write_bytes(b"stray")
    back_up(state, tmp_path / "copy")
    found = [path.name for path in (tmp_path / "copy" / "plan").rglob("*") if path.is_file()]
    assert found == [name]


@pytest.mark.parametrize("plant", ["blob", "cut", "plan"])
def test_a_copy_that_is_not_whole_is_no_copy(state, tmp_path, monkeypatch, plant):
    if plant == "blob":
        path = next((state / BLOBS).glob("??/*"))
        changed = bytearray(path.read_bytes())
        changed[0] ^= 1
        path.write_bytes(changed)
    elif plant == "plan":
        name = with_plan(state)
        (state / "plan" / name[:2] / name).write_bytes(b"87654321")
    else:
        put = blobs.Blobs.put

        def cut(self, contents):
            put(self, {name: data[1:] for name, data in contents.items()})

        monkeypatch.setattr(blobs.Blobs, "put", cut)
    with pytest.raises(errors.LedgerError, match=r"have digest|bytes, expected"):
        back_up(state, tmp_path / "copies" / "one")
    assert list((tmp_path / "copies").iterdir()) == []


def test_nothing_is_overwritten(state, tmp_path):
    back_up(state, tmp_path / "copy")
    before = (tmp_path / "copy" / DATABASE).read_bytes()
    for to in (tmp_path / "copy", tmp_path / "copy" / DATABASE):
        with pytest.raises(errors.ConfigError, match="is not empty"):
            back_up(state, to)
    assert (tmp_path / "copy" / DATABASE).read_bytes() == before


def test_a_clients_state_is_not_copied(tmp_path):
    SqliteClientStore(tmp_path / "north", header("north")).close()
    with pytest.raises(errors.ConfigError, match="would keep the secrets") as caught:
        back_up(tmp_path / "north", tmp_path / "copy")
    assert "server's state" in caught.value.hint
    with pytest.raises(errors.ConfigError, match=r"holds no server's state"):
        back_up(tmp_path, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_the_command_says_what_it_copied(state, tmp_path):
    run = CliRunner().invoke(main, ["backup", str(state), "--to", str(tmp_path / "copy")])
    assert run.exit_code == 0, run.output
    assert "version 2, 2 rounds complete, running" in run.output
    assert run.output.count("anchor 6:") == 3
    again = ["backup", str(state), "--to", str(tmp_path / "second"), "--json"]
    found = json.loads(CliRunner().invoke(main, again).stdout)
    assert (found["version"], found["status"]) == (2, "running")
    assert found["anchors"].keys() == set(CLIENTS)
    refused = CliRunner().invoke(main, ["backup", str(state), "--to", str(tmp_path / "copy")])
    assert refused.exit_code == 2
    assert "is not empty" in refused.stderr


# The server's ledgers, as an auditor reads them.


def test_the_ledgers_of_a_servers_state_are_shown_and_verified(state, tmp_path):
    for path in (state, state / DATABASE, state.parent):
        books = ledger_files.read(path)
        assert [book.path for book in books] == [state / DATABASE / n for n in sorted(CLIENTS)]
        assert all(book.ledger is not None and book.part_of is None for book in books)
    (only,) = ledger_files.read(state / DATABASE / "north")
    assert only.ledger.header.client == "north"
    with pytest.raises(errors.ConfigError, match="no ledger of 'west'"):
        ledger_files.read(state / DATABASE / "west")
    run = CliRunner().invoke(main, ["ledger", "verify", str(state)])
    assert run.exit_code == 0
    assert run.output.count("whole, anchor 6:") == 3
    shown = CliRunner().invoke(main, ["ledger", "show", str(state / DATABASE / "east"), "--json"])
    (content,) = json.loads(shown.stdout)
    assert content["header"]["client"] == "east"
    assert [row["state"] for row in content["releases"]] == ["sent", "sent"]
    anchor = content["anchor"]
    check = ["ledger", "verify", str(state / DATABASE / "east"), "--anchor", anchor]
    assert CliRunner().invoke(main, check).exit_code == 0


def test_a_clients_ledger_beside_the_servers_is_counted_once(state):
    with opened(state) as store:
        book = store.load().ledgers["north"]
    lines = "".join(
        line + "\n" for line in ledger.to_lines(book._replace(entries=book.entries[:4]))
    )
    (state / "north.jsonl").write_text(lines)
    found = {book.path.name: book for book in ledger_files.read(state)}
    assert found["north.jsonl"].part_of == state / DATABASE / "north"
    assert found["north"].part_of is None


def test_a_damaged_or_empty_state_is_told(state, tmp_path):
    with opened(tmp_path / "empty"):
        pass
    with pytest.raises(errors.ConfigError, match="holds no ledger yet"):
        ledger_files.read(tmp_path / "empty")
    (state / DATABASE).write_bytes(b"SQLite format 3\x00" + b"x" * 5000)
    (book,) = ledger_files.read(state)
    assert book.ledger is None
    assert "database" in book.problem
