"""What every local solver must satisfy; a solver listed in its folder is tested here at once."""

import inspect
from functools import partial

import numpy as np
import pytest

from fedvi import errors, expfam, models
from fedvi.expfam import tree
from fedvi.expfam.base import FactoredGaussian
from fedvi.inference import solvers
from fedvi.privacy import mechanisms, random, sampling
from fedvi.transport import codec
from fedvi.typing import IDS
from fedvi.updates import limits
from fedvi.updates.base import Fold, Shard, Task

NAMES = ("a", "b")
FAMILIES = {
    "full_gaussian": lambda: expfam.full_gaussian(2),
    "diagonal_gaussian": lambda: expfam.diagonal_gaussian(2),
    "low_rank_gaussian": lambda: expfam.low_rank_gaussian(2, rank=1),
}


def whole_changes():
    # So little noise that q stays proper; that it may not is the server's business.
    mechanism = mechanisms.rounded_gaussian(1.0)
    return {"sampler": sampling.full(16), "mechanism": mechanism, "clip_norm": 0.02}


ARGUMENTS = {
    "exact": lambda: {},
    "glm": lambda: {},
    "gradient": lambda: {"steps": 20},
    "dp_optimisation": lambda: {
        "steps": 5,
        "sampler": sampling.poisson(0.5, 16),
        "mechanism": mechanisms.rounded_gaussian(1.0),
    },
    "local_averaging": whole_changes,
    "perturbed_update": whole_changes,
    "site_release": lambda: {
        "sampler": sampling.poisson(0.5, 16),
        "mechanism": mechanisms.rounded_gaussian(1.0),
    },
    "vips": lambda: {
        "sampler": sampling.poisson(0.5, 16),
        "mechanism": mechanisms.rounded_gaussian(1.0),
    },
    "virtual_clients": whole_changes,
}
# Others take (h, J) alone, full and diagonal.
TAKEN = {
    "gradient": FAMILIES,
    "dp_optimisation": FAMILIES,
    "site_release": ("full_gaussian",),
    "vips": ("full_gaussian",),
}
CASES = [
    (name, kind)
    for name in solvers.__all__
    for kind in FAMILIES
    if kind in TAKEN.get(name, ("full_gaussian", "diagonal_gaussian"))
]


@pytest.fixture(params=CASES, ids=["-".join(named) for named in CASES])
def case(request):
    name, kind = request.param
    family = FAMILIES[kind]()
    solver = getattr(solvers, name)(family, models.linear(NAMES), **ARGUMENTS[name]())
    generator = np.random.default_rng(0)
    records = {"x": generator.normal(size=(16, 2)), "y": generator.normal(size=16)}
    if "parts" in inspect.signature(getattr(solvers, name)).parameters:
        records[IDS] = np.arange(16, dtype=np.uint64)
    shard = Shard(records, np.arange(16) < 12)
    task = Task("c/0", "c", 0, 0, tree.to_numpy(family.isotropic(1.0)), family.zeros(), 1.0)
    return family, solver, shard, task


def solve(solver, shard, task, seed=0):
    keys = partial(random.insecure_root(seed).key, "c", task.task_id)
    return solver.update(keys, solver.init(task.posterior), task, shard)[1]


def received(released):
    """What the server gets of an answer."""
    return dict(codec.decode(codec.encode(released))[0])


@pytest.mark.parametrize(
    "name",
    [name for name in solvers.__all__ if "low_rank_gaussian" not in TAKEN.get(name, ())],
)
def test_a_solver_that_takes_no_low_rank_family_says_so_in_words(name):
    with pytest.raises(errors.SolverError, match=r"LowRankGaussian|full Gaussian"):
        getattr(solvers, name)(
            FAMILIES["low_rank_gaussian"](), models.linear(NAMES), **ARGUMENTS[name]()
        )


@pytest.mark.nightly(
    only=("perturbed_update-full_gaussian", "site_release-full_gaussian", "gradient-full_gaussian")
)
def test_what_is_released_costs_what_was_announced(case):
    _, solver, shard, task = case
    assert solve(solver, shard, task).event == solver.cost


@pytest.mark.nightly(
    only=(
        "dp_optimisation-low_rank_gaussian",
        "dp_optimisation-full_gaussian",
        "local_averaging-full_gaussian",
        "dp_optimisation-diagonal_gaussian",
    )
)
def test_what_is_released_travels_and_becomes_a_change_of_the_family(case):
    family, solver, shard, task = case
    value, event = codec.decode(codec.encode(solve(solver, shard, task)))
    assert event == solver.cost
    change = solver.finish(value, task)
    family.check(change.delta)
    posterior = tree.add(task.posterior, change.delta)
    if solver.stand is not None:
        at = task.posterior
        fold = Fold(at, at, posterior, {"c": change.delta}, {"c": at}, 1.0)
        standing = solver.stand(family, fold, None)
        family.check(standing.reported)
        posterior = standing.handed_out
    assert family.is_proper(posterior)


def test_the_same_keys_give_the_same_bytes(case):
    _, solver, shard, task = case
    payloads = {codec.encode(solve(solver, shard, task)).sha256 for _ in range(2)}
    assert len(payloads) == 1


def test_no_key_serves_two_purposes(case):
    _, solver, shard, task = case
    keys = partial(random.insecure_root(0).key, task.client, task.task_id)
    asked = []

    def recorded(*purpose):
        asked.append(purpose)
        return keys(*purpose)

    solver.update(recorded, solver.init(task.posterior), task, shard)
    assert len(asked) == len(set(asked)), asked


def test_an_answer_of_another_shape_is_refused(case):
    _, solver, shard, task = case
    value = received(solve(solver, shard, task))
    name = next(iter(value))
    with pytest.raises(errors.ProtocolError, match="holds arrays"):
        solver.finish({**value, name: np.zeros(1)}, task)
    with pytest.raises(errors.ProtocolError, match="holds arrays"):
        solver.finish({**value, "more": np.zeros(1)}, task)


def test_an_empty_shard_gets_an_answer(case):
    family, solver, shard, task = case
    empty = Shard({key: np.zeros_like(a) for key, a in shard.records.items()}, np.zeros(16, bool))
    change = solver.finish(received(solve(solver, empty, task)), task)
    family.check(change.delta)


GARBAGE = (np.nan, np.inf, -np.inf, 1e300, -1e30, 1e-45, 0.5)


# They add up contributions of records or parts. Others promise nothing, or clip one change of all that they
# hold, whatever it is; sources of data fill rows without a record with zeros.
BY_RECORD = {"dp_optimisation", "local_averaging", "site_release", "vips", "virtual_clients"}


@pytest.mark.parametrize(
    "case", [one for one in CASES if one[0] in BY_RECORD], indirect=True, ids="-".join
)
def test_garbage_in_rows_that_hold_no_record_changes_no_byte(case):
    _, solver, shard, task = case
    generator, empty = np.random.default_rng(1), ~np.asarray(shard.mask)
    sent = {codec.encode(solve(solver, shard, task)).sha256}
    for number in range(4):
        records = {name: np.array(column) for name, column in shard.records.items()}
        for column in records.values():
            bad = generator.integers(2**63, size=column.shape).astype(column.dtype)
            if column.dtype.kind == "f":
                bad = generator.choice(GARBAGE, size=column.shape).astype(column.dtype)
                bad = np.full_like(column, GARBAGE[number]) if number < 2 else bad
            column[empty] = bad[empty]
        sent.add(codec.encode(solve(solver, shard._replace(records=records), task)).sha256)
    assert len(sent) == 1


@pytest.mark.nightly(
    only=(
        "local_averaging-full_gaussian",
        "site_release-full_gaussian",
        "vips-full_gaussian",
        "dp_optimisation-full_gaussian",
    )
)
def test_no_answer_is_longer_than_its_server_takes(case):
    family, solver, shard, task = case
    if solver.limit is None:
        # Without noise nothing is clipped. Of a low-rank answer the server does not know the units.
        is_low_rank = isinstance(family, FactoredGaussian)
        assert solver.name in ("exact", "glm", "gradient") or is_low_rank
        return
    # Alike, and as large as may be: their contributions point one way.
    records = {
        name: array if name == IDS else np.full_like(array, 1e6)
        for name, array in shard.records.items()
    }
    limit = solver.limit
    for seed in range(3):
        found = received(solve(solver, Shard(records, np.ones(16, bool)), task, seed))
        limits.check(limit, found, "an answer")
        far = {name: array + limit.of_sum(2) for name, array in found.items()}
        with pytest.raises(errors.ProtocolError, match=r"is larger than"):
            limits.check(limit, far, "an answer")


def test_the_broadcast_posterior_is_not_written_to(case):
    _, solver, shard, task = case
    before = [leaf.copy() for leaf in tree.leaves(task.posterior)]
    solver.finish(received(solve(solver, shard, task)), task)
    assert all(np.array_equal(a, b) for a, b in zip(before, task.posterior, strict=True))
