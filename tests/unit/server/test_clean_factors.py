"""Whether what clients remember without noise is what the server committed, whatever happened between.

Plays a study's own server, and its own solver with the noise taken out of the mechanism, so that the two
sides of the bookkeeping can be compared at every moment.
"""

import dataclasses
import functools

import numpy as np
import pytest

from fedvi.client import inputs
from fedvi.expfam import tree
from fedvi.federation.damping import StepRule
from fedvi.federation.messages import Failure, Hello, NextTask, Offer, Submit
from fedvi.federation.progress import Patience
from fedvi.inference.solvers import _clipped_changes
from fedvi.privacy import random
from fedvi.privacy.mechanisms.rounded_gaussian import RoundedGaussian
from fedvi.server.core import protocol
from fedvi.server.store.durable import SqliteServerStore
from fedvi.study import build
from fedvi.study.config import parse_study
from fedvi.transport import codec
from fedvi.typing import IDS
from fedvi.updates.base import Shard, Task
from tests.studies import raw_study

NAMES, PARTS, ROOM = ["north", "east", "south", "west"], 2, 16
PROMISE = {"epsilon": 20.0, "delta": 1e-5, "unit": "record", "relation": "substitute"}
SOLVERS = {
    "virtual_clients": {"parts": PARTS, "by_place": True},
    "perturbed_update": {"clean_factor": True, "alpha": 0.5},
}
SCHEDULES = {
    "aggregate": {"kind": "synchronous", "rounds": 6, "deadline_seconds": 5.0},
    "message": {"kind": "buffered_asynchronous", "rounds": 6, "deadline_seconds": 5.0},
}


class Noiseless(RoundedGaussian):
    """On the grid of the noise that is charged, without it."""

    def perturb(self, key, total, clip_norm):
        return total


@functools.cache
def assembled(name, view):
    sums = {"least_reporting": 2, "colluding": 1} if view == "aggregate" else {}
    raw = raw_study(
        NAMES,
        2,
        solver={"kind": name, "clip_norm": 4.0, "noise_multiplier": 4.0, **SOLVERS[name]},
        schedule=SCHEDULES[view],
        privacy={**PROMISE, "view": view, "records_public": True, **sums},
    )
    raw["data"]["max_records"] = ROOM
    return build.assemble(parse_study(raw))


def shards():
    """Sites that differ: what one remembers is not what another does."""
    generator = np.random.default_rng(3)
    found = {}
    for place, name in enumerate(NAMES):
        count = 4 + 3 * place
        x, y = np.zeros((ROOM, 2)), np.zeros(ROOM)
        x[:count] = 0.5 * generator.normal(size=(count, 2))
        y[:count] = x[:count] @ np.array([1.0, -2.0]) + place + generator.normal(size=count)
        ids = np.arange(ROOM, dtype=np.uint64)
        found[name] = Shard({"x": x, "y": y, IDS: ids}, np.arange(ROOM) < count)
    return found


class Played:
    """A run at which anything may happen; client → its stored state, and what it has not sent yet."""

    def __init__(self, name, view, seed, folder):
        assembly, self.chance = assembled(name, view), np.random.default_rng(seed)
        # Whatever step a rule takes, both sides commit the same.
        steps = StepRule("any", lambda *_: float(self.chance.choice([1.0, 0.5, 0.25])))
        self.folder, self.spec = (
            folder,
            assembly.spec._replace(
                headers={}, budget=None, patience=Patience(5.0, 1), step_rule=steps
            ),
        )
        spec = self.spec
        self.solver = assembly.solver_with(
            lambda mechanism: Noiseless(**dataclasses.asdict(mechanism))
        )
        self.parts = PARTS if name == "virtual_clients" else 1
        self.like = self.solver.init(spec.prior)
        self.kept = {client: inputs.pack(self.like) for client in NAMES}
        self.unsent, self.shards, self.now = {}, shards(), 0.0
        self.state = protocol.initial_state(spec)

    def step(self, request):
        self.state, reply = protocol.step(self.spec, self.state, request, self.now)
        return reply

    def event(self):
        client = NAMES[self.chance.integers(len(NAMES))]
        happens = self.chance.uniform()
        if happens < 0.45:
            self.solve(client)
        elif happens < 0.8:
            self.send(client)
        elif happens < 0.93:
            self.now += float(self.chance.uniform(0.0, 4.0))
            self.state = protocol.tick(self.spec, self.state, self.now)
        elif happens < 0.97:
            self.restart()
        elif client in self.state.tasks:
            self.step(Failure(client, self.state.tasks[client].task_id, "other"))
        if self.state.status == "failed":
            self.state = protocol.control(self.spec, self.state, "resume", self.now)

    def solve(self, client):
        self.step(Hello(client, self.spec.study_digest))
        reply = self.step(NextTask(client))
        # An answer that was sealed is sent; it is computed but once.
        if not isinstance(reply, Offer) or client in self.unsent:
            return
        task = reply.task
        state = inputs.unpack(self.kept[client], self.like)
        key_of = functools.partial(random.insecure_root(1).key, task.task_id)
        after, released, _ = self.solver.update(key_of, state, task, self.shards[client])
        self.kept[client] = inputs.pack(after)
        self.unsent[client] = task.task_id, codec.encode(released)

    def send(self, client):
        if client not in self.unsent:
            return
        self.step(Hello(client, self.spec.study_digest))
        request = Submit(client, *self.unsent.pop(client))
        assert self.step(request).status == "accepted"
        if self.chance.uniform() < 0.2:
            assert self.step(request).status == "duplicate"

    def restart(self):
        """The server is killed; what is on its disk is all that it knows."""
        store = SqliteServerStore(self.folder, self.spec)
        store.save(self.state)
        store.close()
        store = SqliteServerStore(self.folder, self.spec)
        found = store.load()
        store.close()
        self.state = protocol.take_up(self.spec, found)

    def remembered(self, client):
        """The clean factor that a client would take for its own, were it given a task now."""
        task = Task(
            "",
            client,
            self.state.visits[client],
            self.state.version,
            self.spec.prior,
            self.state.factors[client],
            protocol._last_damping(self.state, client),
        )
        factors = _clipped_changes.committed(
            inputs.unpack(self.kept[client], self.like), task, self.parts
        )
        return np.concatenate([leaf.sum(axis=0).ravel() for leaf in factors])

    def committed(self, client):
        return np.concatenate([leaf.ravel() for leaf in tree.leaves(self.state.factors[client])])


# Of changes of norm 4, rounded to a grid of 1/1024 in each of five coordinates, 24 of which add up.
ROUNDING = 0.05


@pytest.mark.parametrize("name", SOLVERS)
def test_clean_factors_add_up_to_the_server_s_total_at_every_moment(name, tmp_path):
    """Under the view `aggregate`, where the server knows of no client's factor but the total."""
    fates = set()
    for seed in range(3):
        run = Played(name, "aggregate", seed, tmp_path / str(seed))
        for _ in range(400):
            run.event()
            found = sum(run.remembered(client) for client in NAMES)
            expected = sum(run.committed(client) for client in NAMES)
            np.testing.assert_allclose(found, expected, rtol=0.0, atol=ROUNDING)
            if run.state.status in protocol.OVER:
                break
        assert np.abs(expected).max() > 1.0
        for update in run.state.history:
            fates |= {(bool(update.clients), bool(update.given_up), bool(update.dropped))}
        # Somebody's first answer was to a posterior that others had moved.
        first = next(update for update in run.state.history if update.clients)
        fates |= {"late to the first sum"} if len(first.clients) < len(NAMES) else set()
    assert len(fates) == 4


@pytest.mark.parametrize("name", SOLVERS)
def test_a_clean_factor_is_the_client_s_own_at_every_moment(name, tmp_path):
    """Under the view `message`, also while another's answer waits, and after a late one."""
    run = Played(name, "message", 1, tmp_path)
    for _ in range(400):
        run.event()
        for client in NAMES:
            np.testing.assert_allclose(
                run.remembered(client), run.committed(client), rtol=0.0, atol=ROUNDING
            )
        if run.state.status in protocol.OVER:
            break
    assert min(run.state.visits.values()) > 1
