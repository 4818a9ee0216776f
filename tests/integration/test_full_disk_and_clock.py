"""A disk that is full for a while, and clocks that jump: a run goes on as if nothing had been."""

import contextlib
import datetime
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedvi import errors
from fedvi.federation.messages import Done, NextTask
from fedvi.run import server_plan
from fedvi.server.store import schema
from fedvi.server.store.durable import SqliteServerStore
from fedvi.store.sqlite import read_ledger
from fedvi.transport import certificates, identity
from tests.pki import authority_in, party
from tests.servers import greeting, make_spec, running
from tests.sites import (
    PATIENCE_SECONDS,
    assembled,
    check_undisturbed,
    sites_of,
    study_file,
    undisturbed,
)

HOUR = datetime.timedelta(hours=1)
COMMAND = "from fedvi.cli.main import main; main()"


def wait_for(wanted, what: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not wanted():
        assert time.monotonic() < end, what
        time.sleep(0.01)


@pytest.mark.nightly
def test_a_server_whose_disk_is_full_loses_nothing_and_goes_on(tmp_path: Path) -> None:
    study = study_file(tmp_path, rounds=8)
    assembly = assembled(study)
    expected = undisturbed(assembly, tmp_path)
    state, log = tmp_path / "server", tmp_path / "log"
    state.mkdir()
    server_plan._write(state / server_plan.FILE, server_plan.to_json(server_plan.make(assembly)))

    def lines(kind: str) -> list[dict]:
        # The last line may be half written.
        found = [json.loads(line) for line in log.read_text().split("\n")[:-1]]
        return [line for line in found if line["kind"] == kind]

    with log.open("wb") as file, sites_of(assembly, tmp_path, tmp_path) as sites:
        server = subprocess.Popen(
            [
                *(sys.executable, "-c", COMMAND, "server", str(study), "--state", str(state)),
                *("--listen", "127.0.0.1:0", "--log-format", "json", "--linger", "20"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=file,
        )
        try:
            wait_for(lambda: lines("ready"), "ready")
            listen = lines("ready")[0]["listen"]
            # Two clients: what the third will send meets a full disk.
            sites.start(listen, "north", "east")
            wait_for(lambda: len(sites.sent) == 2, "two answers")
            wait_for(
                lambda: len(schema.read_state(state, assembly.spec.prior).accepted) == 2, "saved"
            )
            # No file may grow any more: EFBIG where a full disk says ENOSPC.
            (log_file,) = state.glob("*.sqlite-wal")
            full = (log_file.stat().st_size, resource.RLIM_INFINITY)
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, full)
            before = schema.read_state(state, assembly.spec.prior)
            sites.start(listen, "south")
            wait_for(lambda: len(lines("refused")) >= 3, "refused")
            assert server.poll() is None
            after = schema.read_state(state, assembly.spec.prior)
            assert after.ledgers == before.ledgers
            assert after.accepted == before.accepted
            assert after.tasks.keys() == before.tasks.keys()
            # What was not saved was told to nobody: nothing was offered, so nothing was charged.
            assert read_ledger(tmp_path / "south").entries == ()
            assert sites.working
            free = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, free)
            sites.join()
            assert server.wait(PATIENCE_SECONDS) == 0
        finally:
            server.kill()
            server.wait()
        assert f"{state / schema.DATABASE}: disk I/O error" in lines("store")[0]["message"]
        assert "could not save its state" in lines("refused")[0]["message"]
        assert str(state) not in lines("refused")[0]["message"]
        check_undisturbed(sites, schema.read_state(state, assembly.spec.prior), expected)


# The disk fills up within a method of the store: no file of the process may grow from then on.
CLIENT = """
import resource, sys
from fedvi.cli.main import main
from fedvi.store.sqlite import SqliteClientStore

method, wal = sys.argv.pop(1), sys.argv.pop(1)
original = getattr(SqliteClientStore, method)

def full(self, *arguments, **named):
    import os
    limit = (os.stat(wal).st_size, resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    return original(self, *arguments, **named)

setattr(SqliteClientStore, method, full)
main()
"""


@pytest.mark.nightly
def test_a_client_whose_disk_is_full_says_so_and_goes_on_where_it_was(tmp_path: Path) -> None:
    study = study_file(tmp_path, rounds=3)
    assembly = assembled(study)
    expected = undisturbed(assembly, tmp_path)
    folder, own = tmp_path / "server", tmp_path / "south"
    with (
        contextlib.closing(SqliteServerStore(folder, assembly.spec)) as store,
        sites_of(assembly, tmp_path, tmp_path) as sites,
        running(assembly.spec, folder, store) as server,
    ):
        listen = server.addresses.listen
        sites.start(listen, "north", "east")
        for method in ("reserve", "seal"):
            done = subprocess.run(
                [
                    *(sys.executable, "-c", CLIENT, method, str(own / "ledger.sqlite-wal")),
                    *("client", str(study), "--as", "south", "--state", str(own)),
                    *("--data", str(tmp_path / "south.csv"), "--server", listen),
                    "--allow-simulated-noise",
                ],
                capture_output=True,
                text=True,
                check=False,
                timeout=PATIENCE_SECONDS,
                env={**os.environ, "JAX_PLATFORMS": "cpu"},
            )
            assert done.returncode == errors.LedgerError.exit_code == 5, done.stderr
            assert f"error: {own}" in done.stderr, done.stderr
            kinds = [entry.kind for entry in sites.ledger("south").entries]
            assert kinds == {"reserve": [], "seal": ["reserved"]}[method]
        # There is space again.
        sites.start(listen, "south")
        sites.join()
    state = store.load()
    assert state is not None
    # The interrupted release kept the secret of the process that began it: nothing was drawn here.
    interrupted = ("south", "south/0#0")
    assert interrupted not in sites.root.draws
    sites.root.draws[interrupted] = 1
    check_undisturbed(sites, state, expected)


def test_a_clock_that_jumps_changes_nothing(tmp_path: Path, monkeypatch) -> None:
    study = study_file(
        tmp_path, schedule={"kind": "synchronous", "rounds": 3, "deadline_seconds": 60.0}
    )
    assembly = assembled(study)
    expected = undisturbed(assembly, tmp_path)
    real, calls = time.time, 0

    def jumping() -> float:
        nonlocal calls
        calls += 1
        return real() + (0.0, 3600.0, -3600.0)[calls % 3]

    folder = tmp_path / "server"
    with (
        contextlib.closing(SqliteServerStore(folder, assembly.spec)) as store,
        sites_of(assembly, tmp_path, tmp_path) as sites,
        monkeypatch.context() as patching,
    ):
        patching.setattr(time, "time", jumping)
        with running(assembly.spec, folder, store) as server:
            sites.start(server.addresses.listen)
            sites.join()
        events = store.events()
        state = store.load()
    assert calls > 10
    times = [event.at for event in events]
    assert times != sorted(times), "the clock was not looked at"
    assert not [event for event in events if event.kind in ("away", "refused")]
    assert state is not None
    assert not any(update.missing for update in state.history)
    check_undisturbed(sites, state, expected)


@pytest.mark.parametrize(
    ("jump", "words"), [(HOUR, "expired on"), (-HOUR, "begins on")], ids=["later", "earlier"]
)
def test_a_clock_that_jumps_decides_who_is_let_in_and_no_more(
    jump: datetime.timedelta, words: str, tmp_path: Path, monkeypatch
) -> None:
    spec = make_spec(("south",), rounds=1)
    # Not the hour at which the tests began: a slow machine may be at them for longer than half of one.
    now = certificates.now().replace(microsecond=0)
    root = authority_in(tmp_path / "ca", at=now - 48 * HOUR)
    hosts = party(root, "server", "server", ("127.0.0.1",), at=now - 24 * HOUR)
    # Valid from half an hour ago, or for half an hour more.
    signed = now + HOUR / 2 if jump < 0 * HOUR else now - 23.5 * HOUR
    south = party(root, "south", days=1, at=signed)
    real = certificates.now
    with running(
        spec, tmp_path / "state", tls=hosts, roster=root / identity.ROSTER, linger_seconds=0.0
    ) as server:
        credentials = identity.channel_credentials(south)
        link = server.link(spec, "south", credentials=credentials)
        link.handle(greeting(spec, "south"))
        monkeypatch.setattr(certificates, "now", lambda: real() + jump)
        with pytest.raises(errors.IdentityError, match=words):
            link.handle(NextTask("south"))
        monkeypatch.undo()
        # The same connection, and no Hello: nothing of the run was touched.
        assert not isinstance(link.handle(NextTask("south")), Done)
