"""A site of secure sums killed with SIGKILL at each step of a round, while three others wait for it."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedvi.expfam import tree
from fedvi.server.core import protocol
from fedvi.transport.signers import Certified
from tests import pki
from tests.integration.test_secure_sums import AGGREGATE, FOUR, SECURE
from tests.servers import running
from tests.sites import assembled, sites_of, study_file, undisturbed, until

pytestmark = pytest.mark.nightly

# Before or after: a step of the site, a method of its store, or a request.
POINTS = [
    "after begun",
    "before seal",
    "after seal",
    "before submit",
    "after submit",
    "after signature",
    "before sign",
    "after sign",
    "after opened",
    "before open",
    "after open",
]

SITE = """
import os
import signal
import sys
from pathlib import Path

from fedvi.client import app, opening
from fedvi.run import site
from fedvi.store.sqlite import SqliteClientStore
from fedvi.transport.grpc import GrpcLink
from fedvi.transport.signers import Certified
from tests.masked import step_of
from tests.sites import assembled

point, study, name, address, folder = sys.argv[1:]
when, what = point.split()
folder, assembly = Path(folder), assembled(Path(study))


def killed(original, name_of):
    def function(*arguments, **named):
        hit = name_of(arguments) == what
        if hit and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **named)
        if hit and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return function




def sending(link, request):
    step = step_of(request)
    if step in ("submit", "sign", "open"):
        content = request.payload.sha256 if step == "submit" else request.part.content.hex()
        of = request.task_id if step == "submit" else link.masking._held.turn.visit
        with open(folder / "sent", "a") as file:
            file.write(f"{step} {of} {content}\\n")
    return handle(link, request)


for step in ("begun", "signature", "opened"):
    setattr(opening, step, killed(getattr(opening, step), lambda _, step=step: step))
SqliteClientStore.seal = killed(SqliteClientStore.seal, lambda _: "seal")
handle = GrpcLink.handle
GrpcLink.handle = killed(sending, lambda arguments: step_of(arguments[1]))
link = GrpcLink(address, name, assembly.family.zeros(), delays=(0.02, 0.5))
store = SqliteClientStore(folder / "state", assembly.header(name))
shard = site.file_shard(assembly, name, Path(study).parent / f"{name}.csv")
worker = site.client_worker(
    assembly, name, link, store, shard, signer=Certified(folder / "tls")
)
link.masking = worker._link._masking
app.run(worker)
"""


def test_a_site_killed_at_each_step_of_a_round_signs_and_opens_once(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        **SECURE,
        "names": FOUR,
        "privacy": {**AGGREGATE, "least_reporting": 3},
        # Nobody is skipped: the site is back each time.
        "schedule": {"kind": "synchronous", "rounds": 3, "deadline_seconds": 3600.0},
    }
    study = study_file(tmp_path, **given)
    assembly, root = assembled(study), pki.authority_in(tmp_path / "ca")
    signers = {}
    for name in FOUR:
        folder = tmp_path / "west" / "tls" if name == "west" else tmp_path / f"{name}-tls"
        signers[name] = Certified(pki.party(root, name, folder=folder))
    with (
        running(assembly.spec, tmp_path / "server") as server,
        sites_of(assembly, tmp_path, tmp_path / "sites") as sites,
    ):
        sites._signers = signers
        sites.start(server.addresses.listen, *FOUR[:3])
        for point in [*POINTS, "never killed"]:
            command = [sys.executable, "-c", SITE, point, study, "west"]
            done = subprocess.run(
                [*command, server.addresses.listen, tmp_path / "west"],
                capture_output=True,
                text=True,
                timeout=200.0,
                env={**os.environ, "JAX_PLATFORMS": "cpu"},
                check=False,
            )
            expected = 0 if point == "never killed" else -signal.SIGKILL
            assert done.returncode == expected, (point, done.stderr[-2000:])
        sites.join()
        state = until(server, lambda state: state.status in protocol.OVER)
    assert state.status == "completed"
    assert [len(update.clients) for update in state.history] == [4, 4, 4]
    reported = protocol.reported(assembly.spec, state)
    assert tree.equal(reported, undisturbed(assembly, tmp_path).posterior)
    # Three rounds, three messages in each, and however often each was sent, the same bytes.
    sent = set((tmp_path / "west" / "sent").read_text().splitlines())
    assert len(sent) == 9
    assert len({line.rpartition(" ")[0] for line in sent}) == 9
