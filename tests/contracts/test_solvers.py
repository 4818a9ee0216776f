"""What every local solver must satisfy; a solver listed in its folder is tested here at once."""

from functools import partial

import numpy as np
import pytest

from fedvi import errors, expfam, models
from fedvi.expfam import tree
from fedvi.inference import solvers
from fedvi.inference.base import Shard, Task
from fedvi.privacy import mechanisms, random, sampling
from fedvi.transport import codec

NAMES = ("a", "b")
ARGUMENTS = {
    "exact": lambda: {},
    "glm": lambda: {},
    "gradient": lambda: {"steps": 20},
    "dp_optimisation": lambda: {
        "steps": 5,
        "sampler": sampling.poisson(0.5, 16),
        "mechanism": mechanisms.rounded_gaussian(1.0),
    },
}


@pytest.fixture(params=[(name, kind) for name in solvers.__all__ for kind in expfam.__all__])
def case(request):
    name, kind = request.param
    family = getattr(expfam, kind)(2)
    solver = getattr(solvers, name)(family, models.linear(NAMES), **ARGUMENTS[name]())
    generator = np.random.default_rng(0)
    records = {"x": generator.normal(size=(16, 2)), "y": generator.normal(size=16)}
    shard = Shard(records, np.arange(16) < 12)
    task = Task("c/0", "c", 0, 0, tree.to_numpy(family.isotropic(1.0)), family.zeros(), 1.0)
    return family, solver, shard, task


def solve(solver, shard, task, seed=0):
    keys = partial(random.insecure_root(seed).key, "c", task.task_id)
    return solver.update(keys, solver.init(task.posterior), task, shard)[1]


def test_what_is_released_costs_what_was_announced(case):
    _, solver, shard, task = case
    assert solve(solver, shard, task).event == solver.cost


def test_what_is_released_travels_and_becomes_a_change_of_the_family(case):
    family, solver, shard, task = case
    value, event = codec.decode(codec.encode(solve(solver, shard, task)))
    assert event == solver.cost
    change = solver.finish(value, task)
    family.check(change.delta)
    assert family.is_proper(tree.add(task.posterior, change.delta))


def test_the_same_keys_give_the_same_bytes(case):
    _, solver, shard, task = case
    payloads = {codec.encode(solve(solver, shard, task)).sha256 for _ in range(2)}
    assert len(payloads) == 1


def test_an_answer_of_another_shape_is_refused(case):
    _, solver, shard, task = case
    value = dict(solve(solver, shard, task).value)
    name = next(iter(value))
    with pytest.raises(errors.ProtocolError, match="holds arrays"):
        solver.finish({**value, name: np.zeros(1)}, task)
    with pytest.raises(errors.ProtocolError, match="holds arrays"):
        solver.finish({**value, "more": np.zeros(1)}, task)


def test_an_empty_shard_gets_an_answer(case):
    family, solver, shard, task = case
    empty = Shard({key: np.zeros_like(a) for key, a in shard.records.items()}, np.zeros(16, bool))
    change = solver.finish(dict(solve(solver, empty, task).value), task)
    family.check(change.delta)


def test_the_broadcast_posterior_is_not_written_to(case):
    _, solver, shard, task = case
    before = [leaf.copy() for leaf in tree.leaves(task.posterior)]
    solver.finish(dict(solve(solver, shard, task).value), task)
    assert all(np.array_equal(a, b) for a, b in zip(before, task.posterior, strict=True))
