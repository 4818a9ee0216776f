"""Interrupts a client's loop, restores its old copies, and checks that no noise is used twice.

Runs a ``Worker`` with a store, a scripted server, and a solver whose mechanism is recorded. For any client
these must hold: a release has one message; two releases have independent noise; records are read only after
the charge; a secret does not outlive its release.
"""

import functools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedvi import errors
from fedvi.audit.by_hand import play_by_hand
from fedvi.audit.client_places import Clerk, InMemory, Killed, OnDisk, Place, Secrets
from fedvi.audit.client_told import (
    COPY,
    GONE,
    HAND,
    KEYS,
    ONE,
    OTHER,
    PAID,
    RECORDS,
    SENT,
    Release,
    Told,
    findings,
)
from fedvi.audit.findings import Finding
from fedvi.audit.recording import Recorder
from fedvi.client import inputs
from fedvi.client.worker import Worker
from fedvi.expfam import tree
from fedvi.privacy import accountants, ledger, random
from fedvi.updates.base import LocalSolver, Shard, Task

__all__ = ["check_client"]

_NAME = "audit"


_PLAYS = {
    "two_tasks": SENT,
    "lost_answer": ONE,
    "killed_before_records": COPY,
    "killed_after_records": ONE,
    "other_task": OTHER,
    "other_state": OTHER,
    "other_records": RECORDS,
    "no_budget": PAID,
    "copied": COPY,
    "by_hand": HAND,
}
"""Method of ``_Player`` → the check that fails if the play cannot be finished."""


def check_client(
    solver: LocalSolver,
    recorder: Recorder | None,
    task: Task,
    shard: Shard,
    seed: int = 0,
) -> list[Finding]:
    """Plays the client with a store in memory and one on disk; see the module's docstring.

    Args:
      solver: of the study; built with ``recorder`` as its mechanism, if there is one.
      recorder: wraps the mechanism; None if the solver takes no mechanism: then noise is not checked.
      task: a task to solve.
      shard: made-up records.
      seed: of the secrets, which are drawn here instead of by the operating system.
    """
    told = Told()
    with tempfile.TemporaryDirectory() as folder:
        places: list[Place] = [
            InMemory(_header(task)),
            OnDisk(Path(folder) / "store", _header(task)),
        ]
        for number, place in enumerate(places):
            secrets = Secrets(seed + number)
            player = _Player(_tagged(solver), recorder, task, shard, secrets, told, number)
            for play, check in _PLAYS.items():
                player.begin()
                try:
                    getattr(player, play)(place.new())
                except errors.FedviError as error:
                    # The plays are all legitimate, so no client may refuse them.
                    told.expect(check, False, f"{play}: {error.message}")
                except Killed:
                    told.expect(check, False, f"{play}: records are read out of turn")
    _root(told)
    _keys(told)
    return findings(told, recorder is not None)


def _root(told: Told) -> None:
    """Checks that the root draws new secrets for the same label; otherwise a copy would repeat itself."""
    root = random.secure_root()
    drawn = {root.secret(_NAME, "audit/0#0") for _ in range(4)}
    told.expect(
        COPY,
        len(drawn) == 4 and all(len(secret) == 32 for secret in drawn),
        "the secure root draws one secret twice",
    )


def _keys(told: Told) -> None:
    """Checks that every byte of a secret changes the key, so that guessing a key takes all 32 bytes."""
    secret = bytes(range(32))
    changed = [secret[:at] + bytes([secret[at] ^ 1]) + secret[at + 1 :] for at in range(32)]
    keys = [random.key(of, "noise") for of in (secret, *changed)]
    keys.append(random.key(secret, "sampling"))
    words = np.stack([np.asarray(jax.random.key_data(key)) for key in keys])
    # Among 272 random 32-bit words two are equal with probability 1e-5; the secret is fixed.
    told.expect(KEYS, len(np.unique(words)) == words.size, "words of keys are alike")


def _header(task: Task) -> ledger.Header:
    return ledger.Header(_NAME, "0", task.client, "record", "substitute", "message", True)


def _tagged(solver: LocalSolver) -> LocalSolver:
    """Gives a solver a private state, so that clients of every solver have one to test."""

    def update(key_of: Any, state: Any, task: Task, shard: Shard) -> Any:
        after, released, info = solver.update(key_of, state[0], task, shard)
        return (after, np.asarray(state[1]) + 1.0), released, info

    return solver._replace(init=lambda eta: (solver.init(eta), np.zeros(1)), update=update)


class _Player:
    """Plays clients with one solver on stores of one kind."""

    def __init__(
        self,
        solver: LocalSolver,
        recorder: Recorder | None,
        task: Task,
        shard: Shard,
        secrets: Secrets,
        told: Told,
        number: int,
    ) -> None:
        self._solver, self._recorder, self._shard = solver, recorder, shard
        self._secrets, self._told = secrets, told
        self._tasks = [task._replace(task_id=f"audit/{visit}", visit=visit) for visit in range(3)]
        self._number, self._play = 0, 100 * number
        self._budget = ledger.Budget(1e12, 1e-5, accountants.zcdp("substitute"))

    def begin(self) -> None:
        """Starts a new client: later releases belong to no earlier one."""
        self._play += 1

    def two_tasks(self, place: Place) -> None:
        clerk = Clerk(self._tasks[:2])
        with self._open(place, clerk) as worker:
            self._finish(worker)
            self._complete(worker, clerk, 2)
            self._is_gone(place)
        self._is_gone(place)

    def lost_answer(self, place: Place) -> None:
        clerk = Clerk(self._tasks[:1], lost=1)
        with self._open(place, clerk) as worker:
            self._tick(worker)
            with _stopped(ConnectionError):
                self._tick(worker)
        with self._open(place, clerk) as worker:
            self._finish(worker)
            sent = {submit.payload.sha256 for submit in clerk.received}
            self._told.expect(ONE, len(sent) == 1, "a retry sends other bytes")
            self._complete(worker, clerk, 1)

    def killed_before_records(self, place: Place) -> None:
        clerk = Clerk(self._tasks[:1])
        with self._open(place, clerk, shard=_kill) as worker, _stopped(Killed):
            self._tick(worker)
        held = self._held(place)
        before = len(self._told.releases)
        with self._open(place, clerk) as worker:
            self._finish(worker)
            self._complete(worker, clerk, 1)
        used = [release.secret for release in self._told.releases[before:]]
        self._told.expect(
            COPY,
            held is not None and len(used) == 1 and held not in used,
            "a secret that met no record is used again after a crash, as by a copy of the store",
        )

    def killed_after_records(self, place: Place) -> None:
        clerk, before = Clerk(self._tasks[:1]), len(self._told.releases)
        with self._open(place, clerk, solver=_dying(self._solver)) as worker, _stopped(Killed):
            self._tick(worker)
        with self._open(place, clerk) as worker:
            self._finish(worker)
            self._complete(worker, clerk, 1)
        self._same_noise(
            self._told.releases[before:],
            "a release that was killed and begun again has other noise",
        )

    def _same_noise(self, begun: list[Release], problem: str) -> None:
        if len(begun) >= 2 and begun[0].calls:
            one, other = begun[0].calls, begun[1].calls
            self._told.expect(
                ONE,
                len(one) == len(other)
                and all(
                    a.key == b.key and np.array_equal(a.output, b.output)
                    for a, b in zip(one, other, strict=False)
                ),
                problem,
            )

    def other_task(self, place: Place) -> None:
        """Changes each part of a task in turn, since a solver's answer may depend on any of them."""
        task = self._tasks[0]
        changed: dict[str, Task] = {
            "posterior": task._replace(posterior=tree.scale(task.posterior, 2.0)),
            "factor": task._replace(factor=tree.scale(task.posterior, 0.125)),
            "damping": task._replace(damping=0.5 * task.damping + 0.125),
            "version": task._replace(version=task.version + 1),
            "visit": task._replace(visit=task.visit + 1),
        }
        if task.coordinates is not None:
            moved = task.coordinates._replace(scale=2.0 * task.coordinates.scale)
            changed["coordinates"] = task._replace(coordinates=moved)
        for part, other in changed.items():
            self.begin()
            # An answer that replaces the factor does not depend on it: the client leaves it out.
            same = part == "factor" and self._solver.renews
            self._interrupted(place.new(), f"task ({part})", task=other, releases=1 if same else 2)

    def other_state(self, place: Place) -> None:
        clerk = Clerk(self._tasks[:1])
        with self._open(place, clerk) as worker:
            self._finish(worker)
        kept = place.open()
        state = inputs.unpack(kept.load_state() or b"", self._solver.init(self._tasks[0].posterior))
        place.close()
        other = inputs.pack((state[0], state[1] + 7.0))
        self._interrupted(place, "state", state=other, tasks=self._tasks[1:2])

    def other_records(self, place: Place) -> None:
        changed = {
            "a record fewer": _without_one(self._shard),
            "another record": _with_another(self._shard),
        }
        clerk = Clerk(self._tasks[:1])
        with self._open(place, clerk, solver=_dying(self._solver)) as worker, _stopped(Killed):
            self._tick(worker)
        for when in ("an interrupted release", "the next release"):
            for what, shard in changed.items():
                with self._open(
                    place, clerk, shard=functools.partial(lambda same: same, shard)
                ) as worker:
                    refused = self._refuses(worker, errors.PrivacyError)
                    self._told.expect(RECORDS, refused, f"{when} takes {what}")
            with self._open(place, clerk) as worker:
                self._finish(worker)
            clerk.tasks = self._tasks[1:2]

    def no_budget(self, place: Place) -> None:
        read: list[int] = []
        least = ledger.Budget(1e-9, 1e-9, accountants.zcdp("substitute"))

        def shard() -> Shard:
            read.append(1)
            return self._shard

        clerk = Clerk(self._tasks[:1])
        with self._open(place, clerk, shard=shard, budget=least) as worker:
            refused = self._refuses(worker, errors.BudgetExceeded)
            self._told.expect(PAID, refused, "a release goes out that no budget pays for")
            self._told.expect(PAID, not read, "records are read although no budget is left")

        def charged() -> Shard:
            self._told.expect(
                PAID,
                ledger.state(place.open().ledger, "audit/0#0") == "reserved",
                "records are read before their release is reserved",
            )
            return self._shard

        with self._open(place, clerk, shard=charged) as worker:
            self._finish(worker)

    def copied(self, place: Place) -> None:
        """Copies a client before a task, and again when the task's release is reserved."""
        clerk = Clerk(self._tasks[:1])
        with self._open(place, clerk) as worker:
            self._finish(worker)
        earlier = place.copy()
        later = Clerk(self._tasks[1:2])
        with self._open(place, later, shard=_kill) as worker, _stopped(Killed):
            self._tick(worker)
        held = self._held(place)
        reserved = place.copy()
        before = len(self._told.releases)
        with self._open(place, later) as worker:
            self._finish(worker)
            book = worker.ledger
        for copy in (earlier, reserved):
            with self._open(copy, Clerk(self._tasks[1:2], book=book)) as worker:
                refused = self._refuses(worker, errors.LedgerError)
                self._told.expect(COPY, refused, "a server that saw more goes on with a copy")
        older = book._replace(entries=book.entries[:1])
        with self._open(place, Clerk(self._tasks[2:3], book=older)) as worker:
            refused = self._refuses(worker, errors.LedgerError)
            self._told.expect(COPY, refused, "a client goes on with a server that was set back")
        for copy in (earlier, reserved):
            with self._open(copy, Clerk(self._tasks[1:2])) as worker:
                self._finish(worker)
        used = [held, *(release.secret for release in self._told.releases[before:])]
        self._told.expect(
            COPY, len(set(used)) == len(used) >= 4, "a copy uses a secret that was used before"
        )

    def _held(self, place: Place) -> bytes | None:
        """Returns the secret of a store's pending release."""
        pending = place.open().pending()
        place.close()
        return None if pending is None else bytes(pending.secret)

    def by_hand(self, place: Place) -> None:
        play_by_hand(
            functools.partial(self._open, place),
            self._tick,
            self._tasks,
            self._solver.cost,
            _header(self._tasks[0]),
            self._told.expect,
        )

    def _interrupted(
        self,
        place: Place,
        what: str,
        task: Task | None = None,
        state: bytes | None = None,
        tasks: list[Task] | None = None,
        releases: int = 2,
    ) -> None:
        """Kills a release, and continues with another task or another state, as so many releases."""
        clerk, before = Clerk(tasks or self._tasks[:1]), len(self._told.releases)
        charges = ledger.reservations(place.open().ledger)
        place.close()
        with self._open(place, clerk, solver=_dying(self._solver)) as worker, _stopped(Killed):
            self._tick(worker)
        if task is not None:
            clerk.tasks = [task]
        with self._open(place, clerk, state=state) as worker:
            self._finish(worker)
            charged = ledger.reservations(worker.ledger) - charges
        begun = self._told.releases[before:]
        self._told.expect(
            OTHER,
            charged == releases,
            f"another {what} costs {charged} charges, expected {releases}",
        )
        secrets = {release.secret for release in begun}
        self._told.expect(
            OTHER,
            len(begun) == 2 and len(secrets) == releases,
            f"another {what} is answered under the secret of the one before"
            if releases == 2
            else f"another {what} is answered under another secret, for one charge",
        )
        if releases == 1:
            self._same_noise(begun, f"a release begun again for another {what} has other noise")

    @contextmanager
    def _open(
        self,
        place: Place,
        link: Any,
        *,
        solver: LocalSolver | None = None,
        shard: Callable[[], Shard] | None = None,
        budget: ledger.Budget | None = None,
        state: bytes | None = None,
    ) -> Iterator[Worker]:
        """Opens the store and a client on it; opening again stands for a restarted client."""
        store = place.open()
        worker = Worker(
            client=self._tasks[0].client,
            study_digest="0",
            link=link,
            solver=solver or self._solver,
            shard=shard or (lambda: self._shard),
            root=self._secrets,  # type: ignore[arg-type]
            store=store if state is None else _OtherState(store, state),
            budget=budget or self._budget,
        )
        self._place, self._store = place, store
        try:
            yield worker
        finally:
            place.close()

    def _tick(self, worker: Worker) -> str:
        """Runs one phase of a client's work; records a release's noise and the secret behind it."""
        self._number += 1
        if self._recorder is not None:
            self._recorder.start()
        seen = _Seen()
        try:
            with seen.secrets(self._store):
                return worker.tick()
        finally:
            calls = [] if self._recorder is None else self._recorder.stop()
            if seen.used is not None:
                name = f"{seen.name} ({self._place.name}, {self._number})"
                identity = (self._play, seen.name)
                self._told.releases.append(Release(name, identity, seen.used, calls))

    def _finish(self, worker: Worker) -> None:
        for _ in range(8):
            if self._tick(worker) == "done":
                return

    def _refuses(self, worker: Worker, kind: type[Exception]) -> bool:
        try:
            for _ in range(3):
                self._tick(worker)
        except kind:
            return True
        except errors.FedviError:
            return False
        return False

    def _complete(self, worker: Worker, clerk: Clerk, count: int) -> None:
        """Checks that each release was reserved once, and that sent bytes have the sealed digest."""
        kinds = [entry.kind for entry in worker.ledger.entries]
        self._told.expect(
            ONE,
            kinds.count("reserved") == count,
            f"{kinds.count('reserved')} charges for {count} tasks",
        )
        for submit in clerk.received:
            known = ledger.digest(worker.ledger, f"{submit.task_id}#{submit.attempt}")
            self._told.expect(
                SENT,
                known == submit.payload.sha256,
                "bytes were sent that the ledger does not hold",
            )

    def _is_gone(self, place: Place) -> None:
        for secret in set(self._secrets.drawn):
            self._told.expect(GONE, not place.holds(secret), f"{place.name} holds a secret")


class _Seen:
    """Notes the secret that a release began with: the store's pending one when inputs are noted."""

    def __init__(self) -> None:
        self.used: bytes | None = None
        self.name = ""

    @contextmanager
    def secrets(self, store: Any) -> Iterator[None]:
        original = store.note_inputs

        def note(release_id: str, **what: bytes) -> None:
            original(release_id, **what)
            pending = store.pending()
            self.used, self.name = pending.secret, release_id

        store.note_inputs = note
        try:
            yield
        finally:
            del store.note_inputs


class _OtherState:
    """A store that returns another private state of the solver."""

    def __init__(self, store: Any, state: bytes) -> None:
        self._store, self._state = store, state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def load_state(self) -> bytes:
        return self._state


def _dying(solver: LocalSolver) -> LocalSolver:
    """Returns a solver that computes an answer, and is killed before the seal."""

    def update(key_of: Any, state: Any, task: Task, shard: Shard) -> Any:
        found = solver.update(key_of, state, task, shard)
        jax.block_until_ready(jax.tree.leaves(found[0]))
        raise Killed

    return solver._replace(update=update)


def _kill() -> Shard:
    raise Killed


@contextmanager
def _stopped(kind: type[BaseException]) -> Iterator[None]:
    try:
        yield
    except kind:
        return


def _without_one(shard: Shard) -> Shard:
    mask = np.array(shard.mask)
    mask[np.flatnonzero(mask)[0]] = False
    return Shard(shard.records, mask)


def _with_another(shard: Shard) -> Shard:
    """Returns a shard with the same slots in use, one of which holds other numbers."""
    at = np.flatnonzero(shard.mask)[0]
    records = {name: np.array(column) for name, column in shard.records.items()}
    for column in records.values():
        if column.dtype.kind == "f":
            column[at] += 1.0
    return Shard(records, shard.mask)
