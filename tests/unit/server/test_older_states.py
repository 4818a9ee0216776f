"""States that earlier versions of fedvi stored: they are written here by hand, read, and gone on from."""

import contextlib
import hashlib
import json
import sqlite3

import numpy as np
import pytest

from fedvi.federation.messages import Hello, NextTask, Submit
from fedvi.privacy import ledger
from fedvi.server.coordinator import Coordinator
from fedvi.server.core.state import ServerState
from fedvi.server.store import schema
from fedvi.server.store.durable import SqliteServerStore
from fedvi.server.store.schema import read_state
from fedvi.store.memory import MemoryServerStore
from fedvi.updates.base import Standing
from tests.states import CLIENTS, answer, frozen, make_spec, play

SPEC = make_spec()


class Written:
    """A folder in the first layout, without any field that came later."""

    def __init__(self, folder, state: ServerState) -> None:
        (folder / schema.BLOBS).mkdir(parents=True)
        self._connection = sqlite3.connect(folder / schema.DATABASE)
        self._connection.executescript(schema.MIGRATIONS[0])
        self._connection.execute(f"PRAGMA application_id = {schema.APPLICATION}")
        self._connection.execute("PRAGMA user_version = 1")
        self.add("meta", "study_digest", SPEC.study_digest)
        for field in ("version", "status"):
            self.cell(field, "", getattr(state, field))
        self.cell("skipped", "", list(state.skipped))
        for field in ("posterior", "round_start"):
            self.cell(field, "", self.eta(getattr(state, field)))
        for client, factor in state.factors.items():
            self.cell("factors", client, self.eta(factor))
        for field in ("visits", "turns", "away"):
            for client, value in getattr(state, field).items():
                self.cell(field, client, value)
        for client, task in state.tasks.items():
            self.cell("tasks", client, self.task(task))
        for place, each in enumerate(state.answers):
            change = self.eta(each.change.delta)
            text = {"task": self.task(each.task), "change": change, "late": each.late}
            self.cell("answers", str(place), text)
        for group, memory in state.memory.items():
            update = None if memory.update is None else self.eta(memory.update)
            self.cell("memory", json.dumps(group), {"damping": memory.damping, "update": update})
        for place, pair in enumerate(state.accepted.items()):
            self.add("accepted", place, *pair)
        for place, fold in enumerate(state.history):
            self.fold(place, fold)
        for client, book in state.ledgers.items():
            for place, line in enumerate(ledger.to_lines(book)):
                self.add("chain", client, place, line)

    def close(self) -> None:
        self._connection.commit()
        self._connection.close()

    def add(self, table, *values):
        places = ", ".join("?" * len(values))
        self._connection.execute(f"INSERT INTO {table} VALUES ({places})", values)

    def cell(self, field, item, value):
        self.add("cells", None, field, item, json.dumps(value))

    def eta(self, eta):
        return [self.array(eta.h), self.array(eta.J)]

    def array(self, array):
        data = np.ascontiguousarray(array, "<f8").tobytes()
        digest = hashlib.sha256(data).hexdigest()
        self._connection.execute(
            "INSERT OR IGNORE INTO arrays VALUES (?, ?, ?)", (digest, len(data), data)
        )
        return [digest, "<f8", list(array.shape)]

    def task(self, task):
        return {
            "task_id": task.task_id,
            "client": task.client,
            "visit": task.visit,
            "version": task.version,
            "posterior": self.eta(task.posterior),
            "factor": self.eta(task.factor),
            "damping": task.damping,
        }

    def fold(self, place, update):
        gap = update.gap and {
            "mean_shift": update.gap.mean_shift,
            "sd_ratio": update.gap.sd_ratio,
        }
        line = {
            "version": update.version,
            "clients": list(update.clients),
            "staleness": list(update.staleness),
            "damping": update.damping,
            "rounds": update.rounds,
            "gap": gap,
            "missing": list(update.missing),
        }
        self.add("history", place, json.dumps(line))


def begun(store) -> Coordinator:
    """A run in its second round: one answer waits for others, and one task is out."""
    coordinator = Coordinator(SPEC, store)
    for name in CLIENTS:
        book = coordinator.state.ledgers[name]
        coordinator.handle(Hello(name, SPEC.study_digest, ledger.anchor(book)))
    first, second, _ = CLIENTS
    for name in (*CLIENTS, first):
        task = coordinator.handle(NextTask(name)).task
        coordinator.handle(Submit(name, task.task_id, answer(task)))
    coordinator.handle(NextTask(second))
    state = coordinator.state
    assert (len(state.history), len(state.answers), len(state.tasks)) == (1, 1, 1)
    return coordinator


def test_a_run_goes_on_from_a_state_of_the_first_layout(tmp_path):
    coordinator = begun(MemoryServerStore())
    state, folder = coordinator.state, tmp_path / "state"
    with contextlib.closing(Written(folder, state)):
        pass
    assert frozen(read_state(folder, SPEC.prior)) == frozen(state)
    with contextlib.closing(SqliteServerStore(folder, SPEC)) as store:
        assert frozen(store.load()) == frozen(state)
        again = Coordinator(SPEC, store)
        for each in (coordinator, again):
            play(SPEC, each)
            assert each.state.status == "completed"
        assert frozen(again.state) == frozen(coordinator.state)
    assert frozen(read_state(folder, SPEC.prior)) == frozen(coordinator.state)


@pytest.mark.parametrize("of_gradients", [False, True])
def test_a_standing_of_earlier_versions_has_what_it_lacks_by_default(tmp_path, of_gradients):
    state, folder = begun(MemoryServerStore()).state, tmp_path / "state"
    start, gradient = state.round_start, state.factors["north"]
    sites = {"north": gradient} if of_gradients else {}
    with contextlib.closing(Written(folder, state)) as written:
        standing = {
            "handed_out": written.eta(state.posterior),
            "reported": written.eta(start),
            "curvature": written.eta(gradient),
            "folds": 3,
            "squares": 0.25,
            "weights": {"north": [0.5, 1.0]},
            "sites": {name: written.eta(site) for name, site in sites.items()},
        }
        written.cell("standing", "", standing)
    weights = {"north": (0.5, 1.0)}
    expected = Standing(state.posterior, start, gradient, 3, 0.25, weights, sites)
    with contextlib.closing(SqliteServerStore(folder, SPEC)) as store:
        assert frozen(store.load()) == frozen(state._replace(standing=expected))
