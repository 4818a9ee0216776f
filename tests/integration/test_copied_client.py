"""Two copies of one client's state at work at once: one goes on, and what the other releases is charged."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedvi import errors
from fedvi.cli.main import main
from fedvi.client.worker import Worker
from fedvi.privacy import ledger
from fedvi.run import site
from fedvi.server.store.durable import SqliteServerStore
from fedvi.server.store.schema import read_state
from fedvi.store.sqlite import SqliteClientStore
from fedvi.transport import bundle
from fedvi.transport.grpc import GrpcLink
from tests.integration.test_client_cli import write_study
from tests.servers import Running, running
from tests.sites import assembled

ROUNDS = 3


class Home:
    """A server, and the state folders of one client, whose noise is the operating system's."""

    def __init__(self, folder: Path, closing: contextlib.ExitStack) -> None:
        # Where noise drowns every step an answer is q as it was, in any release, and so the same twice.
        study = write_study(
            folder,
            lambda raw: (
                raw.pop("simulation"),
                raw["schedule"].update(rounds=ROUNDS),
                raw["privacy"].update(epsilon=100.0),
            ),
        )
        self.assembly = assembled(study)
        self.folder, self._closing = folder, closing
        store = closing.enter_context(
            contextlib.closing(SqliteServerStore(folder / "server", self.assembly.spec))
        )
        self.server: Running = closing.enter_context(
            running(self.assembly.spec, folder / "server", store)
        )

    @property
    def book(self) -> ledger.Ledger:
        return self.server.app._coordinator.state.ledgers["north"]

    def digests(self) -> list[str]:
        """What the server was sent, by what it charged."""
        return [entry.digest for entry in self.book.entries if entry.kind == "sealed"]

    def copy(self, source: str, target: str) -> None:
        shutil.copytree(self.folder / source, self.folder / target)

    def start(self, name: str) -> "Copy":
        """Starts a process on a state folder."""
        store = self._closing.enter_context(
            contextlib.closing(SqliteClientStore(self.folder / name, self.assembly.header("north")))
        )
        link = self.server.link(self.assembly.spec, "north")
        shard = site.file_shard(self.assembly, "north", self.folder / "north.csv")
        worker = site.client_worker(self.assembly, "north", link, store, shard)
        return Copy(worker, link, store)


class Copy:
    def __init__(self, worker: Worker, link: GrpcLink, store: SqliteClientStore) -> None:
        self.worker, self.link, self.store = worker, link, store

    def tick(self) -> str:
        return self.worker.tick()

    @property
    def sealed(self) -> str:
        return next(e.digest for e in reversed(self.worker.ledger.entries) if e.kind == "sealed")

    def before_sending(self, act: Callable[[], Any]) -> None:
        """Does something once the server let the next answer in, before a byte of it leaves."""
        link, stub = self.link, self.link._stub
        whole, in_parts = link._submit_whole, stub.SubmitResult

        def late(send: Callable[..., Any]) -> Callable[..., Any]:
            def sent(*arguments: Any, **options: Any) -> Any:
                link._submit_whole, stub.SubmitResult = whole, in_parts
                act()
                return send(*arguments, **options)

            return sent

        link._submit_whole, stub.SubmitResult = late(whole), late(in_parts)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with contextlib.ExitStack() as closing:
        yield Home(tmp_path, closing)


@pytest.fixture(params=["inline", "chunks"])
def size(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether an answer travels within its header or in chunks after it."""
    if request.param == "chunks":
        monkeypatch.setattr(bundle, "INLINE", 0)
    return str(request.param)


def two_that_solved_one_task(home: Home) -> tuple[Copy, Copy]:
    """An older and a newer copy, with other noise for the same task, neither sent."""
    first = home.start("state")
    assert [first.tick(), first.tick()] == ["solved", "sent"]
    first.store.close()
    home.copy("state", "copy")
    older, newer = home.start("state"), home.start("copy")
    assert [older.tick(), newer.tick()] == ["solved", "solved"]
    assert older.sealed != newer.sealed
    return older, newer


def check_fails_closed(home: Home, *copies: Copy) -> None:
    """Each copy is refused, whether it goes on or starts anew; nothing more is released."""
    known = home.digests()
    for each in copies:
        for _ in range(2):
            with pytest.raises(errors.LedgerError, match=r"rolled back|are not the same"):
                each.tick()
    assert home.digests() == known


def test_of_two_copies_the_older_is_refused_before_its_noised_bytes_leave(
    home: Home, size: str
) -> None:
    older, newer = two_that_solved_one_task(home)
    for _ in range(2):  # neither retried nor mended by a greeting of its own
        with pytest.raises(errors.Superseded, match=r"another process greeted as 'north' since"):
            older.tick()
    assert [newer.tick(), newer.tick(), newer.tick()] == ["sent", "solved", "sent"]
    with pytest.raises(errors.Superseded):
        older.tick()
    assert len(home.digests()) == 3
    assert home.book == newer.worker.ledger
    # What it holds is of no use any more, also to a process that greets.
    older.store.close()
    check_fails_closed(home, home.start("state"))
    assert newer.worker.ledger == home.book


def test_bytes_that_were_let_in_and_come_too_late_are_charged_and_both_copies_are_refused(
    home: Home, size: str
) -> None:
    first = home.start("state")
    assert [first.tick(), first.tick()] == ["solved", "sent"]
    first.store.close()
    home.copy("state", "copy")
    older, newer = home.start("state"), home.start("copy")
    assert older.tick() == "solved"
    older.before_sending(lambda: [newer.tick(), newer.tick()])
    with pytest.raises(errors.ProtocolError, match=r"holds another answer to task 'north/1'"):
        older.tick()
    assert home.digests()[1:] == [newer.sealed, older.sealed]
    assert ledger.reservations(home.book) == 3
    factors = home.server.app._coordinator.state.factors
    check_fails_closed(home, older, newer)
    # As much is on the disk.
    state = read_state(home.folder / "server", home.assembly.spec.prior)
    assert state is not None
    assert state.ledgers["north"] == home.book
    assert state.factors["north"].h.tolist() == factors["north"].h.tolist()


def test_the_server_s_ledger_shows_what_was_released_beyond_the_plan(home: Home) -> None:
    for _ in range(ROUNDS - 1):
        one = home.start("state")
        assert [one.tick(), one.tick()] == ["solved", "sent"]
        one.store.close()
    home.copy("state", "copy")
    older, newer = home.start("state"), home.start("copy")
    assert older.tick() == "solved"
    older.before_sending(lambda: [newer.tick(), newer.tick()])
    # The budget has no room for it, and it has left.
    with pytest.raises(errors.ProtocolError, match=r"holds another answer"):
        older.tick()
    found = CliRunner().invoke(
        main, ["ledger", "verify", str(home.folder / "server"), "--recompute"]
    )
    assert found.exit_code == 5, found.output
    assert "planned" in found.stdout
    assert "answered 2 times, by copies" in found.stdout + found.stderr


def test_bytes_of_an_older_copy_that_come_first_are_the_answer(home: Home) -> None:
    older, newer = two_that_solved_one_task(home)
    older.store.close()
    older = home.start("state")
    older.before_sending(newer.worker._greet)
    assert older.tick() == "sent"
    with pytest.raises(errors.ProtocolError, match=r"holds another answer to task 'north/1'"):
        newer.tick()
    assert home.digests()[1:] == [older.sealed]
    assert ledger.reservations(home.book) == 2


def test_the_same_sealed_bytes_from_both_copies_cost_nothing_more(home: Home) -> None:
    first = home.start("state")
    assert first.tick() == "solved"
    first.store.close()
    home.copy("state", "copy")
    older, newer = home.start("state"), home.start("copy")
    assert older.tick() == "sent"
    # A new process joins at once, and what it sends again is known.
    assert newer.tick() == "sent"
    assert home.book == newer.worker.ledger
    assert newer.tick() == "solved"
    with pytest.raises(errors.Superseded):
        older.tick()
    assert newer.tick() == "sent"
    assert ledger.reservations(home.book) == 2


def test_a_part_of_an_answer_fixes_it_so_that_no_other_is_taken_beside_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "INLINE", 0)
    older, newer = two_that_solved_one_task(home)
    older.store.close()
    older = home.start("state")
    pieces = bundle.pieces
    monkeypatch.setattr(bundle, "pieces", lambda *a: iter(()))
    older.link._give_up_after = 0.5
    with pytest.raises(errors.TransportError):
        older.tick()  # its connection broke after the header
    monkeypatch.setattr(bundle, "pieces", pieces)
    assert home.digests()[1:] == [older.sealed]
    with pytest.raises(errors.Superseded):
        newer.tick()
    newer.store.close()
    newer = home.start("copy")
    check_fails_closed(home, newer)
    older.store.close()
    older = home.start("state")
    assert [older.tick(), older.tick()] == ["sent", "solved"]
    assert ledger.reservations(home.book) == 3
