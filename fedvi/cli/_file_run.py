"""What `fedvi export` and `fedvi import` share: a server's run, opened while no server runs on it."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fedvi import errors
from fedvi.cli import _remote
from fedvi.run import server_plan
from fedvi.run.server_plan import ServerPlan
from fedvi.server import logs
from fedvi.server.coordinator import Coordinator
from fedvi.server.core import protocol
from fedvi.server.core.protocol import ServerState
from fedvi.server.core.run_events import RunEvent
from fedvi.server.file_exchange import Hand, standing
from fedvi.server.rpc.sockets import SOCKET
from fedvi.server.store.durable import SqliteServerStore
from fedvi.server.store.schema import DATABASE
from fedvi.server.watch.run_log import KEPT
from fedvi.study.config import load_study
from fedvi.transport import identity
from fedvi.transport.memory import MemoryLink
from fedvi.transport.roster import Roster

__all__ = ["Run", "opened", "rows"]


class Run(NamedTuple):
    """A run whose clients come by hand."""

    study: Path
    plan: ServerPlan
    folder: Path
    hand: Hand
    roster: Roster

    @property
    def state(self) -> ServerState:
        """The state as last saved."""
        return self.hand.coordinator.state

    @property
    def is_over(self) -> bool:
        """Whether no client gets a task any more."""
        return self.state.status in protocol.OVER

    def settle(self) -> None:
        """Does what the server's own worker can do now, if the prior is a factor of its own."""
        if not self.plan.has_prior_worker:
            return
        # The one part that needs JAX.
        from fedvi.run.site import prior_worker
        from fedvi.study import build

        link = MemoryLink(self.hand.coordinator.handle)
        worker = prior_worker(build.assemble(load_study(self.study)), link)
        while worker.tick() in ("solved", "sent"):
            pass


@contextlib.contextmanager
def opened(
    study: Path, state: Path | None, tls: Path, roster: Path | None, begins: bool
) -> Iterator[Run]:
    """Opens a server's state, as `fedvi server` would: a run found there is taken up.

    Whose certificate was revoked since is waited for no more, as with a server.

    Args:
      state: the folder; `.fedvi/STUDY/server` if None.
      roster: the file of who is let in; the one in `tls` if None.
      begins: whether a run may begin here, where none is found.

    Raises:
      IdentityError: the certificate cannot be used.
      LedgerError: a server runs on this state, or the state is damaged or of another study.
      ConfigError: the study cannot be carried out, the roster cannot be read, or there is no run.
    """
    logs.set_up("plain")
    warning = identity.expiry_warning(identity.holding(tls, "server").identity)
    if warning is not None:
        logs.log("warning", warning, logging.WARNING)
    folder = state
    if folder is None:
        folder = Path(".fedvi") / load_study(study).study.name / "server"
    let_in = Roster(roster or tls / identity.ROSTER)
    _check_no_server(folder)
    if not (begins or (folder / DATABASE).is_file()):
        raise errors.ConfigError(
            f"{folder} holds no run that could take a result",
            "give --state the folder that the tasks were exported from",
        )
    plan = server_plan.prepare(study, folder)
    for line in plan.warnings:
        logs.log("warning", line, logging.WARNING)
    with contextlib.closing(SqliteServerStore(folder, server_plan.to_spec(plan))) as store:
        spec = store.spec
        server_plan.keep(plan, folder)

        def tell(event: RunEvent) -> None:
            if event.kind in KEPT:
                store.record_event(event.kind, event.client, event.text)
            logs.log(event.kind, event.text, client=event.client)

        # Time stands still: a client whose files are carried by hand is not late.
        coordinator = Coordinator(spec, store, clock=lambda: 0.0)
        hand = Hand(spec, coordinator, tell)
        hand.revoke(let_in.revoked())
        yield Run(study, plan, folder, hand, let_in)


def rows(run: Run) -> list[dict[str, object]]:
    """Lists for each client how many answers came, and where it stands."""
    state, counts = run.state, protocol.folded(run.state)
    return [
        {
            "name": name,
            "answers": counts[name],
            "missed": sum(name in update.missing for update in state.history),
            "stands": standing(run.hand.spec, state, name),
        }
        for name in run.plan.clients
    ]


def _check_no_server(folder: Path) -> None:
    """Names a running server, which holds the lock of the state."""
    if _remote.runs(folder):
        raise errors.LedgerError(
            f"a server runs on {folder} (it answers at {folder / SOCKET}), and only one process may use "
            "a state",
            hint="stop it with SIGTERM, export or import, and start it again: it goes on where it was",
        )
