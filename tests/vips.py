"""A federation without a server, for tests of conjugate models: visits, folds and what stands of them."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fedvi.audit.recording import Recorder
from fedvi.expfam import tree
from fedvi.privacy import random
from fedvi.privacy.release import decoded
from fedvi.updates.base import Fold, LocalSolver, Shard, Standing, Task


def model_of(solver: LocalSolver) -> Any:
    """The conjugate model of a solver's server."""
    return solver.stand.keywords["model"]


def first_task(solver: LocalSolver, client: str = "c", version: int = 0) -> Task:
    model = model_of(solver)
    prior = tree.freeze(model.prior)
    return Task(f"{client}/0", client, 0, version, prior, model.family.zeros(), 1.0)


def shard_of(records: Mapping[str, np.ndarray], capacity: int | None = None) -> Shard:
    """Pads records, which may be none, to a capacity."""
    count = len(next(iter(records.values())))
    room = 0 if capacity is None else capacity - count
    padded = {
        name: np.pad(column, [(0, room)] + [(0, 0)] * (column.ndim - 1))
        for name, column in records.items()
    }
    return Shard(padded, np.arange(count + room) < count)


def answer(solver: LocalSolver, task: Task, shard: Shard, seed: int = 0) -> dict[str, np.ndarray]:
    """What the server gets of a visit, as float64."""
    keys = partial(random.insecure_root(seed).key, task.client, task.task_id)
    value = decoded(solver.update(keys, (), task, shard)[1]).value
    return {name: np.asarray(part, np.float64) for name, part in value.items()}


def total(solver: LocalSolver, recorder: Recorder, task: Task, shard: Shard, seed: int = 0) -> Any:
    """What entered the noise, in whole steps of the grid; all blocks side by side. And the step."""
    recorder.start()
    answer(solver, task, shard, seed)
    (call,) = recorder.stop()
    return call.total, call.layout.step


def federate(
    solver: LocalSolver, shards: Sequence[Shard], rounds: int, seed: int = 0
) -> list[Standing]:
    """Synchronous rounds: what stands after each."""
    model = model_of(solver)
    family, prior = model.family, tree.freeze(model.prior)
    names = [f"c{index}" for index in range(len(shards))]
    factors = dict.fromkeys(names, family.zeros())
    posterior, standings = prior, []
    for turn in range(rounds):
        asked = dict.fromkeys(names, posterior)
        for name, shard in zip(names, shards, strict=True):
            task = Task(f"{name}/{turn}", name, turn, turn, posterior, factors[name], 1.0)
            change = solver.finish(answer(solver, task, shard, seed), task)
            factors[name] = tree.add(factors[name], change.delta)
        fold = Fold(prior, prior, tree.total(factors.values(), prior), factors, asked, 1.0)
        before = standings[-1] if standings else None
        standings.append(solver.stand(family, fold, before))
        posterior = standings[-1].handed_out
    return standings
