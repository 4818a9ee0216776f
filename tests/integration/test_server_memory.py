"""What large factors cost a server in memory, as the kernel counts it: mapped files and all."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedvi import expfam
from fedvi.federation.messages import NextTask, Offer, Receipt, Submit
from fedvi.privacy.release import disclose
from fedvi.transport import codec
from fedvi.transport.grpc import GrpcLink
from tests.servers import greeting, make_spec

SIZE, ROUNDS = 1_000_000, 3
PAYLOAD = 16 * SIZE

# A process of its own, without JAX, as a server has it; it runs until its input ends.
SERVER = """
import asyncio, os, pathlib, sys, threading

from fedvi import expfam
from fedvi.federation import damping, schedules
from fedvi.updates.base import finish_natural
from fedvi.privacy import events, ledger
from fedvi.server import app as apps
from fedvi.server.store.durable import SqliteServerStore
from fedvi.server.core.state import ServerSpec

folder, size, rounds = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
header = ledger.Header("test", "ab12", "north", "record", "substitute", "message", False)
family = expfam.diagonal_gaussian(size)
spec = ServerSpec(
    "ab12", ("north",), family, family.isotropic(2.0), schedules.synchronous(rounds),
    damping.adaptive(), {"north": finish_natural}, {"north": events.Unprotected("q")},
    headers={"north": header},
)
store = SqliteServerStore(folder, spec)
del spec
settings = apps.Settings(folder, "test", "127.0.0.1:0", None, insecure=True)
ready = lambda addresses: os.write(1, addresses.listen.encode())
app = apps.App(store.spec, store, settings, journal=store, on_ready=ready)
threading.Thread(target=lambda: (sys.stdin.read(), app.stop()), daemon=True).start()
asyncio.run(app.run())
"""


def memory(pid: int, name: str) -> int:
    """Bytes, from a line of the kernel's account of a process."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_a_server_holds_no_more_than_two_and_a_half_factors_at_any_moment(tmp_path: Path) -> None:
    family = expfam.diagonal_gaussian(SIZE)
    spec = make_spec(("north",))._replace(family=family, prior=family.isotropic(2.0))
    command = [sys.executable, "-c", SERVER, str(tmp_path), str(SIZE), str(ROUNDS)]
    # What is freed goes back to the system at this size already, as it does above 32 MB.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        address = os.read(server.stdout.fileno(), 100).decode()
        # The peak of starting, when the prior is made, is forgotten.
        Path(f"/proc/{server.pid}/clear_refs").write_text("5")
        before = memory(server.pid, "VmRSS")
        link = GrpcLink(address, "north", spec.prior, delays=(0.01, 0.1), give_up_after=20.0)
        link.handle(greeting(spec, "north"))
        for _ in range(ROUNDS):
            offer = link.handle(NextTask("north"))
            assert isinstance(offer, Offer)
            posterior = offer.task.posterior
            value = disclose({"h": posterior.h, "J": posterior.J * 1.01}, "q")
            sent = link.handle(Submit("north", offer.task.task_id, codec.encode(value)))
            assert isinstance(sent, Receipt)
            assert sent.status == "accepted"
        grown = memory(server.pid, "VmHWM") - before
        link.close()
        server.communicate()
    assert grown < 2.5 * PAYLOAD, f"{grown / PAYLOAD:.1f} times the payload"
