"""The replay passes on the code as it is, and fails on each fault that is planted."""

import dataclasses
import functools
import importlib
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from fedvi import expfam, models
from fedvi.audit.charges import charges
from fedvi.audit.compare import allowed
from fedvi.audit.findings import Finding
from fedvi.audit.inclusion import check_inclusion
from fedvi.audit.recording import Recorder, SamplerRecorder
from fedvi.audit.replay import replay
from fedvi.expfam import tree
from fedvi.expfam.low_rank_gaussian import LowRankEta
from fedvi.inference import solvers
from fedvi.privacy import base, events, mechanisms, release, sampling
from fedvi.privacy import bounded as bounds
from fedvi.privacy.metrics import Private, Public, ReleasedMetric
from fedvi.privacy.random import insecure_root, key
from fedvi.updates.base import Shard, Task

SIZE, SLOTS = 3, 32
FULL, LOW_RANK = expfam.full_gaussian(SIZE), expfam.low_rank_gaussian(SIZE, rank=1)

# The function of the same name hides the module as an attribute of its package.
module = importlib.import_module("fedvi.inference.solvers.dp_optimisation")
replaying = importlib.import_module("fedvi.audit.replay")

TICKS = itertools.count()


class Changed:
    """A mechanism whose noise is changed by ``fn(key, total, noised)``, at the price of the inner one."""

    def __init__(self, inner: Any, fn: Any) -> None:
        self._inner, self._fn = inner, fn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def perturb(self, key: Any, total: Any, clip_norm: float) -> Any:
        return self._fn(self._inner, key, total, clip_norm)


def scaled(factor: float) -> Any:
    def fn(inner: Any, key: Any, total: Any, clip_norm: float) -> Any:
        noised = inner.perturb(key, total, clip_norm)

        def less(new: Any, old: Any) -> Any:
            noise = factor * (new - old).astype(jnp.float32)
            return old + (jnp.round(noise) if new.dtype == jnp.int32 else noise).astype(new.dtype)

        return jax.tree.map(less, noised, total)

    return fn


def one_key(inner: Any, key: Any, total: Any, clip_norm: float) -> Any:
    return inner.perturb(jax.random.key(0), total, clip_norm)


def product_keys(client: str, name: str) -> Any:
    secret = insecure_root(1).secret(client, name)
    return lambda purpose: key(secret, purpose)


def found(
    change: Any = None,
    sampler: Any = None,
    keys: Any = product_keys,
    mechanism: Any = None,
    steps: int = 5,
    **options: Any,
) -> dict[str, bool | None]:
    findings = audited(change, sampler, keys, mechanism, steps, **options)
    return {finding.check: finding.passed for finding in findings}


@functools.lru_cache(maxsize=16)  # a solver is compiled anew for every recorder
def built(
    change: Any,
    sampler: Any,
    mechanism: Any,
    steps: int,
    slots: int,
    watch: bool,
    clip: Any,
    family: Any,
) -> Any:
    """``clip`` is what stands for ``clipped_sum``: a fault there must not meet a compiled solver."""
    recorder = Recorder(Changed(mechanism, change) if change else mechanism)
    watched = SamplerRecorder(sampler) if sampler and watch else None
    solver = solvers.dp_optimisation(
        family,
        models.logistic(["a", "b", "c"]),
        watched or sampler or sampling.full(slots),
        recorder,
        clip_norm=1.0,
        steps=steps,
        draws=2,
    )
    return solver, recorder, watched


def prior_of(family: Any) -> Any:
    """Returns normals of sd 2.5, independent of one another."""
    if family is LOW_RANK:
        return LowRankEta(np.zeros(SIZE), np.full(SIZE, 0.16), np.zeros((1, 1)))
    return family.from_moments(np.zeros(SIZE), 6.25 * np.eye(SIZE))


def audited(
    change: Any = None,
    sampler: Any = None,
    keys: Any = product_keys,
    mechanism: Any = None,
    steps: int = 5,
    slots: int = SLOTS,
    visits: int = 2,
    clients: Any = ("a", "b"),
    update: Any = None,
    watch: bool = True,
    family: Any = FULL,
) -> list[Finding]:
    """Replays a solver; ``update`` makes another of its update function."""
    solver, recorder, watched = built(
        change,
        sampler,
        mechanism or mechanisms.rounded_gaussian(2.0),
        steps,
        slots,
        watch,
        module.clipped_sum,
        family,
    )
    if update:
        solver = solver._replace(update=update(solver.update))
    generator = np.random.default_rng(0)
    mask = np.arange(slots) < 12
    records = {
        "x": generator.normal(size=(slots, SIZE)) * mask[:, None],
        "y": generator.integers(0, 2, slots) * mask.astype(float),
    }
    prior = prior_of(family)
    task = Task("t", "a", 0, 0, prior, family.zeros(), 1.0)
    shard = Shard(records, mask)

    def advance(task: Task, answer: Any) -> Task:
        factor = tree.add(task.factor, tree.scale(answer.delta, 0.1))
        return task._replace(posterior=tree.add(prior, factor), factor=factor)

    return replay(solver, recorder, keys, task, shard, clients, visits, advance, watched)


FLOAT, GRID = mechanisms.gaussian(2.0), mechanisms.rounded_gaussian(2.0)
POISSON, FEISTEL = sampling.poisson(0.2, SLOTS), sampling.feistel(6, SLOTS)


@pytest.mark.nightly(but=("full-float",))
@pytest.mark.parametrize("mechanism", [FLOAT, GRID], ids=["float", "grid"])
@pytest.mark.parametrize("sampler", [None, POISSON, FEISTEL], ids=["full", "poisson", "feistel"])
def test_the_code_as_it_is_passes(mechanism: Any, sampler: Any) -> None:
    outcome = found(mechanism=mechanism, sampler=sampler, steps=5 if sampler is None else 20)
    assert all(outcome.values()), outcome


@pytest.mark.nightly
def test_a_low_rank_family_is_charged_for_what_it_releases() -> None:
    assert all(found(family=LOW_RANK).values())
    less = found(scaled(0.8), family=LOW_RANK)
    assert less["noise scale"] is False


@pytest.mark.nightly
def test_totals_on_a_grid_are_compared_as_integers() -> None:
    for finding in audited(mechanism=GRID, steps=2):
        if finding.check.startswith("one record"):
            assert finding.numbers["exact"]
            assert 0.5 < finding.numbers["largest"] <= 1.0


def test_one_grid_step_too_far_is_found() -> None:
    bound = GRID.grid(1.0).bound
    assert [allowed(shift, bound) for shift in (1.0, 2.0)] == [bound, 4 * bound]
    # A surplus gives room for what it declares, and for no more.
    assert bound < allowed(1.001, bound) < 1.0021 * bound


@pytest.mark.nightly(but=("0.5",))
@pytest.mark.parametrize("factor", [0.0, 0.5, 0.8])
def test_less_noise_than_charged_is_found(factor: float) -> None:
    assert found(scaled(factor))["noise scale"] is False


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a function in the place of the solver's ``clipped_sum``, and of ``clipped``."""

    def planted(fault: Any) -> None:
        monkeypatch.setattr(module, "clipped_sum", fault)
        monkeypatch.setattr(
            module,
            "clipped",
            lambda parts, clip_norm, _, *rest: fault(parts.of(0).formed(), clip_norm, *rest),
        )

    return planted


@pytest.mark.nightly(but=("grid",))
@pytest.mark.parametrize("mechanism", [FLOAT, GRID], ids=["float", "grid"])
def test_clipping_that_is_off_is_found(plant: Any, mechanism: Any) -> None:
    def unclipped(contributions: Any, clip_norm: float, batch: Any, *rest: Any) -> Any:
        bounded = bounds.clipped_sum(contributions, clip_norm, batch, *rest)
        step = 1.0 if bounded.grid is None else bounded.grid.step

        def total(leaf: Any, like: Any) -> Any:
            kept = batch.mask.reshape(-1, *[1] * (leaf.ndim - 1))
            summed = jnp.where(kept, jnp.nan_to_num(leaf), 0.0).sum(axis=0) / step
            return (
                summed if bounded.grid is None else jnp.clip(summed, -2e9, 2e9).astype(like.dtype)
            )

        return dataclasses.replace(bounded, total=jax.tree.map(total, contributions, bounded.total))

    plant(unclipped)
    outcome = found(mechanism=mechanism)
    assert outcome["one record added or removed"] is False
    assert outcome["one record substituted"] is False


def clipped_after_the_sum(contributions: Any, clip_norm: float, batch: Any, mechanism: Any) -> Any:
    def summed(leaf: Any) -> Any:
        kept = batch.mask.reshape(-1, *[1] * (leaf.ndim - 1))
        return jnp.zeros_like(leaf).at[0].set(jnp.where(kept, leaf, 0.0).sum(axis=0))

    one = base.Batch(batch.indices, jnp.arange(batch.mask.shape[0]) == 0, batch.sampler)
    return bounds.clipped_sum(jax.tree.map(summed, contributions), clip_norm, one, mechanism)


def clipped_array_by_array(contributions: Any, clip_norm: float, batch: Any, mechanism: Any) -> Any:
    leaves, tree = jax.tree.flatten(contributions)
    sums = [bounds.clipped_sum([leaf], clip_norm, batch, mechanism) for leaf in leaves]
    return dataclasses.replace(sums[0], total=jax.tree.unflatten(tree, [s.total[0] for s in sums]))


def counted_twice(contributions: Any, clip_norm: float, batch: Any, mechanism: Any) -> Any:
    def doubled(array: Any) -> Any:
        return jnp.concatenate([array, array])

    twice = base.Batch(doubled(batch.indices), doubled(batch.mask), batch.sampler)
    rows = jax.tree.map(doubled, contributions)
    return bounds.clipped_sum(rows, clip_norm, twice, mechanism)


@pytest.mark.nightly(but=("clipped_array_by_array",))
@pytest.mark.parametrize(
    "fault",
    [clipped_after_the_sum, clipped_array_by_array, counted_twice],
    ids=lambda f: f.__name__,
)
def test_a_record_that_moves_a_total_too_far_is_found(plant: Any, fault: Any) -> None:
    plant(fault)
    assert found()["one record added or removed"] is False


@pytest.mark.nightly
def test_a_substitution_at_the_price_of_a_removal_is_found() -> None:
    class Cheap(type(GRID)):  # type: ignore[misc]
        def event(self, shift: Any) -> Any:
            return super().event(shift._replace(substitute=shift.add_remove))

    outcome = found(mechanism=Cheap(2.0, 1))
    assert outcome["one record substituted"] is False
    assert outcome["one record added or removed"] is True


@pytest.mark.nightly
def test_a_mask_that_is_ignored_is_found(plant: Any) -> None:
    def unmasked(contributions: Any, clip_norm: float, batch: Any, mechanism: Any) -> Any:
        everything = dataclasses.replace(batch, mask=jnp.ones_like(batch.mask))
        return bounds.clipped_sum(contributions, clip_norm, everything, mechanism)

    plant(unmasked)
    assert found()["empty slots count for nothing"] is False


def only_where_records_are_many(inner: Any, key: Any, total: Any, clip_norm: float) -> Any:
    """A small total gets half the noise."""
    noised = inner.perturb(key, total, clip_norm)
    less = scaled(0.5)(inner, key, total, clip_norm)
    size = sum((leaf.astype(jnp.float32) ** 2).sum() for leaf in jax.tree.leaves(total))
    few = size < (inner.grid(clip_norm).bound if inner.grid(clip_norm) else clip_norm**2)
    return jax.tree.map(lambda new, old: jnp.where(few, old, new), noised, less)


def only_where_there_is_a_record(inner: Any, key: Any, total: Any, clip_norm: float) -> Any:
    """A total of zero gets no noise."""
    noised = inner.perturb(key, total, clip_norm)
    empty = sum(jnp.abs(leaf).sum() for leaf in jax.tree.leaves(total)) == 0
    return jax.tree.map(lambda new, old: jnp.where(empty, old, new), noised, total)


def key_of_the_total(inner: Any, key: Any, total: Any, clip_norm: float) -> Any:
    """A key that the total is folded into."""
    word = (1000 * sum(leaf.sum() for leaf in jax.tree.leaves(total))).astype(jnp.int32)
    return inner.perturb(jax.random.fold_in(key, word.astype(jnp.uint32)), total, clip_norm)


@pytest.mark.nightly(but=("only_where_there_is_a_record-float",))
@pytest.mark.parametrize("mechanism", [FLOAT, GRID], ids=["float", "grid"])
@pytest.mark.parametrize(
    "fault",
    [only_where_records_are_many, only_where_there_is_a_record, key_of_the_total],
    ids=lambda fault: fault.__name__,
)
def test_noise_that_depends_on_records_is_found(fault: Any, mechanism: Any) -> None:
    outcome = found(fault, mechanism=mechanism)
    assert outcome["noise ignores records"] is False
    assert outcome["noise scale"] is not False  # nothing else would tell


@pytest.mark.nightly
def test_a_key_that_depends_on_records_is_found() -> None:
    """Seen by itself where the noise of a release cannot be compared, such as that of a batch."""

    def wrap(update: Any) -> Any:
        def own(key_of: Any, state: Any, task: Task, shard: Shard) -> Any:
            few = int(shard.mask.sum()) < 12

            def changed(purpose: str) -> Any:
                return key_of(f"{purpose}, few" if few and purpose == "sampling" else purpose)

            return update(changed, state, task, shard)

        return own

    assert found(update=wrap, sampler=POISSON, steps=20)["noise ignores records"] is False


def at_one_number(change: Any) -> Any:
    """Changes the noise of the first number of the first array alone."""

    def fn(inner: Any, key: Any, total: Any, clip_norm: float) -> Any:
        noised = inner.perturb(key, total, clip_norm)
        leaves, tree = jax.tree.flatten(noised)
        old = jax.tree.leaves(total)[0]
        first = change(old.ravel()[0], leaves[0].ravel()[0])
        leaves[0] = leaves[0].ravel().at[0].set(first).reshape(old.shape)
        return jax.tree.unflatten(tree, leaves)

    return fn


@pytest.mark.nightly(but=("the same noise at every step",))
@pytest.mark.parametrize(
    "change",
    [lambda old, new: old, lambda old, new: old + jnp.ones_like(old)],
    ids=["no noise", "the same noise at every step"],
)
def test_one_number_without_noise_of_its_own_is_found(change: Any) -> None:
    outcome = found(at_one_number(change))
    assert outcome["noise everywhere"] is False
    assert outcome["noise scale"] is True  # it drowns in the whole


def related(inner: Any, key: Any, total: Any, clip_norm: float) -> Any:
    """The last number of the last array gets half of the first number's noise, at the right std."""
    leaves, tree = jax.tree.flatten(inner.perturb(key, total, clip_norm))
    old = jax.tree.leaves(total)

    def noise(place: int, number: int) -> Any:
        return (leaves[place].ravel()[number] - old[place].ravel()[number]).astype(jnp.float32)

    mixed = 0.5 * noise(0, 0) + np.float32(np.sqrt(0.75)) * noise(-1, -1)
    last = old[-1].ravel()[-1] + jnp.round(mixed).astype(old[-1].dtype)
    leaves[-1] = leaves[-1].ravel().at[-1].set(last).reshape(old[-1].shape)
    return jax.tree.unflatten(tree, leaves)


@pytest.mark.nightly
def test_noise_of_two_numbers_that_is_related_is_found() -> None:
    outcome = found(related, steps=20)
    assert outcome["noise across numbers"] is False
    assert outcome["noise everywhere"] is True


@pytest.mark.nightly
def test_noise_that_is_missing_from_one_array_or_some_releases_is_found() -> None:
    def one_array(inner: Any, key: Any, total: Any, clip_norm: float) -> Any:
        noised = inner.perturb(key, total, clip_norm)
        quiet = scaled(0.8)(inner, key, total, clip_norm)
        (_, *rest), tree = jax.tree.flatten(noised)
        return jax.tree.unflatten(tree, [jax.tree.leaves(quiet)[0], *rest])

    def some_releases(inner: Any, key: Any, total: Any, clip_norm: float) -> Any:
        noised = inner.perturb(key, total, clip_norm)
        skip = jax.random.key_data(key).ravel()[0] % 20 == 0
        return jax.tree.map(lambda new, old: jnp.where(skip, old, new), noised, total)

    assert found(one_array, steps=20)["noise everywhere"] is False
    assert found(some_releases, steps=20)["noise everywhere"] is False


@pytest.mark.nightly
def test_a_grid_that_lets_longer_records_pass_is_found() -> None:
    class Wide(type(GRID)):  # type: ignore[misc]
        def grid(self, clip_norm: float) -> Any:
            inner = super().grid(clip_norm)
            return inner._replace(bound=int(1.44 * inner.bound))

    assert found(mechanism=Wide(2.0, 1))["grid's norm bound"] is False


@pytest.mark.nightly
def test_noise_used_again_in_every_step_is_found() -> None:
    outcome = found(one_key)
    assert outcome["noise is fresh"] is False


@pytest.mark.nightly
def test_noise_used_again_at_another_client_is_found() -> None:
    outcome = found(keys=lambda client, name: product_keys("everybody", name))
    assert outcome["noise keys"] is False
    assert outcome["noise is fresh"] is False


@dataclasses.dataclass(frozen=True)
class Planted:
    """Draws batches by ``pick(key)`` → which slots are in, at the price of Poisson batches."""

    pick: Any
    capacity: int = SLOTS
    rate: float = 0.2

    def draw(self, key: Any, valid: Any) -> Any:
        return base.Batch(jnp.arange(SLOTS), valid & self.pick(key), self)

    def event(self, inner: Any) -> Any:
        return POISSON.event(inner)


def always(key: Any) -> Any:
    return jnp.ones(SLOTS, bool)


def fixed_size(key: Any) -> Any:
    return jax.random.permutation(key, SLOTS) < round(0.2 * SLOTS)


@pytest.mark.nightly
def test_records_that_are_always_included_are_found() -> None:
    assert found(sampler=Planted(always))["records in batches"] is False


@pytest.mark.nightly
def test_fixed_batches_at_the_poisson_price_are_found() -> None:
    outcome = found(sampler=Planted(fixed_size), steps=15)
    assert outcome["batch sizes are random"] is False
    assert outcome["records in batches"] is not False


@pytest.mark.nightly
def test_shuffled_epochs_are_found() -> None:
    """Every record once in five steps: a permutation for each epoch, which the plant counts off."""
    steps, turn = 20, iter(range(10**6))

    def pick(key: Any) -> Any:
        def host(_: Any) -> np.ndarray:
            epoch, part = divmod(next(turn) % steps, 5)
            order = np.random.default_rng(epoch).permutation(SLOTS)
            return order % 5 == part

        shape = jax.ShapeDtypeStruct((SLOTS,), bool)
        return io_callback(host, shape, jax.random.key_data(key), ordered=True)

    outcome = found(sampler=Planted(pick), steps=steps)
    assert outcome["batches are independent"] is False


def test_batches_that_avoid_the_last_one_are_found() -> None:
    """Each record at the priced rate of 0.2, but never twice in a row; q = p(1 − q) at p = 1/4."""
    generator = np.random.default_rng(0)
    inside = np.zeros((SLOTS, 60), bool)
    for step in range(60):
        free = ~inside[:, step - 1] if step else np.ones(SLOTS, bool)
        inside[:, step] = free & (generator.random(SLOTS) < 0.25)
    charge = charges(POISSON.event(FLOAT.event(base.Shift(1.0, 1.0, 2.0))))
    groups = [np.array([slot]) for slot in range(SLOTS)]
    outcome = {f.check: f for f in check_inclusion(inside, groups, SLOTS, charge * 60)}
    assert outcome["batches do not repeat"].passed is False
    assert "left out 1 releases later" in outcome["batches do not repeat"].meaning


def leaking(leaves: Any) -> Any:
    """Makes a solver that keeps a clean sum, and adds it to its answer where ``leaves(visit, task)``."""

    def wrap(update: Any) -> Any:
        def leaky(key_of: Any, state: Any, task: Task, shard: Shard) -> Any:
            visit, kept = state or (0, 0.0)
            _, released, told = update(key_of, (), task, shard)
            clean = kept if leaves(visit, task) else 0.0
            released = release.post_process(
                lambda value: value | {"location": value["location"] + clean}, released
            )
            return (visit + 1, float(shard.records["y"].sum())), released, told

        return leaky

    return wrap


@pytest.mark.nightly
def test_data_kept_in_the_state_and_sent_at_a_late_visit_are_found() -> None:
    late = leaking(lambda visit, task: visit == 3)
    assert found(update=late, visits=5)["messages follow from noised totals"] is False
    # What is beyond the plan is never run.
    assert found(update=late, visits=3)["messages follow from noised totals"] is True


@pytest.mark.nightly
def test_a_leak_at_one_client_alone_is_found() -> None:
    third = leaking(lambda visit, task: visit == 1 and task.client == "c")
    clients = ("a", "b", "c", "d")
    assert found(update=third, clients=clients)["messages follow from noised totals"] is False
    assert found(update=third, clients=clients[:2])["messages follow from noised totals"] is True


@pytest.mark.nightly
def test_a_plan_too_long_to_replay_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "_MOST_RELEASES", 15)
    (told,) = (f for f in audited(visits=4) if f.check == "visits replayed")
    assert told.passed is None
    assert (told.numbers["visits"], told.numbers["planned"]) == (3, 4)


def test_randomness_from_elsewhere_is_found() -> None:
    generator = np.random.default_rng()

    def wrap(update: Any) -> Any:
        def own(key_of: Any, state: Any, task: Task, shard: Shard) -> Any:
            kept = shard.mask & (generator.random(SLOTS) < 0.5)
            return update(key_of, state, task, Shard(shard.records, kept))

        return own

    assert found(update=wrap)["equal input gives equal output"] is False


def test_a_client_that_falls_silent_over_a_record_is_found() -> None:
    def wrap(update: Any) -> Any:
        def picky(key_of: Any, state: Any, task: Task, shard: Shard) -> Any:
            if np.isnan(shard.records["x"]).any():
                raise ValueError("a value is missing")
            return update(key_of, state, task, shard)

        return picky

    assert found(update=wrap)["equal control flow"] is False


def telling(metric: Any) -> Any:
    """Makes a solver that tells ``metric(released, shard)``."""

    def wrap(update: Any) -> Any:
        def talkative(key_of: Any, state: Any, task: Task, shard: Shard) -> Any:
            after, released, told = update(key_of, state, task, shard)
            return after, released, told | {"told": metric(released, shard)}

        return talkative

    return wrap


def count(shard: Shard) -> int:
    return int(shard.mask.sum())


@pytest.mark.nightly(but=("released that counts records", "released at no price"))
@pytest.mark.parametrize(
    ("metric", "verdict"),
    [
        (lambda released, shard: Private(count(shard)), True),
        (lambda released, shard: count(shard), True),
        (lambda released, shard: Public(len(shard.mask)), True),
        (lambda released, shard: ReleasedMetric(released, lambda v: float(v["scale"].sum())), True),
        (lambda released, shard: Public(count(shard)), False),
        (lambda released, shard: ReleasedMetric(released, lambda _: count(shard)), False),
        (lambda released, shard: Public(1) if count(shard) > 11 else Private(1), False),
        (lambda released, shard: ReleasedMetric(release.disclose(3, "three")), False),
        (lambda released, shard: Public(next(TICKS)), None),
    ],
    ids=[
        "private",
        "untyped",
        "public",
        "released",
        "public that counts records",
        "released that counts records",
        "public by the records",
        "released at no price",
        "a clock",
    ],
)
def test_a_metric_that_may_leave_depends_on_no_record(metric: Any, verdict: bool | None) -> None:
    assert found(update=telling(metric), steps=2)["metrics that may leave"] is verdict


def periodic(period: int, number: slice) -> Any:
    """Noise that comes again after ``period`` releases, in some numbers, under fresh keys."""
    turn = iter(range(10**6))
    table = np.random.default_rng(0).normal(size=(period, 50))

    def fn(inner: Any, key: Any, total: Any, clip_norm: float) -> Any:
        leaves, tree = jax.tree.flatten(inner.perturb(key, total, clip_norm))
        old = jax.tree.leaves(total)

        def again(left: Any, *entered: Any) -> Any:
            noise = 2.0 * clip_norm * table[next(turn) % period]
            out, start = [np.array(leaf) for leaf in left], 0
            flat = np.concatenate([leaf.ravel() for leaf in out])
            plain = np.concatenate([np.asarray(leaf).ravel() for leaf in entered])
            flat[number] = plain[number] + noise[: flat.size][number].astype(flat.dtype)
            for place, leaf in enumerate(out):
                out[place] = flat[start : start + leaf.size].reshape(leaf.shape)
                start += leaf.size
            return out

        shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
        return jax.tree.unflatten(tree, io_callback(again, shapes, leaves, *old, ordered=True))

    return fn


@pytest.mark.nightly
@pytest.mark.parametrize("number", [slice(None), slice(0, 1)], ids=["all numbers", "one number"])
def test_noise_that_comes_again_after_many_releases_is_found(number: slice) -> None:
    outcome = found(periodic(130, number), steps=100, mechanism=FLOAT)
    assert outcome["noise is fresh"] is False
    assert outcome["noise keys"] is True


def one_sampling_key(period: int) -> Any:
    """Keys of which those of the sampler come again after ``period`` visits."""

    def keys(client: str, name: str) -> Any:
        visit = int(name.rpartition("/")[2])
        fresh = product_keys(client, name)
        used = product_keys(client, f"audit/{visit % period}")
        return lambda purpose: used(purpose) if purpose == "sampling" else fresh(purpose)

    return keys


@pytest.mark.nightly
@pytest.mark.parametrize("sampler", [POISSON, FEISTEL], ids=["poisson", "feistel"])
def test_a_sampling_key_used_in_two_visits_is_found(sampler: Any) -> None:
    outcome = found(keys=one_sampling_key(1), sampler=sampler, steps=20)
    assert outcome["sampling keys"] is False
    # Seen in the batches as well, for solvers that do not use the study's sampler.
    assert outcome["batches do not repeat"] is False


@pytest.mark.nightly
def test_a_sampling_key_used_again_after_three_visits_is_found() -> None:
    assert (
        found(keys=one_sampling_key(3), sampler=POISSON, steps=20, visits=5)["sampling keys"]
        is False
    )


@pytest.mark.nightly
def test_batches_drawn_with_a_key_of_noise_are_found() -> None:
    def keys(client: str, name: str) -> Any:
        fresh = product_keys(client, name)
        return lambda purpose: fresh("noise")

    assert found(keys=keys, sampler=POISSON, steps=20)["sampling keys"] is False


@pytest.mark.nightly
def test_batches_of_an_unwatched_sampler_are_no_pass() -> None:
    outcome = {f.check: f.passed for f in audited(sampler=POISSON, watch=False)}
    assert outcome["sampling keys"] is None


@pytest.mark.nightly
def test_a_late_slot_that_is_always_included_is_found() -> None:
    """The first 32 slots are drawn as they should be."""
    slots = 200
    fair = sampling.poisson(0.1, slots)

    class Late(Planted):
        def draw(self, key: Any, valid: Any) -> Any:
            coins = jax.random.bernoulli(key, 0.1, (slots,)).at[170].set(True)
            return base.Batch(jnp.arange(slots), valid & coins, self)

        def event(self, inner: Any) -> Any:
            return fair.event(inner)

    outcome = found(sampler=Late(None, slots, 0.1), steps=20, slots=slots)
    assert outcome["no slot is favoured"] is False


def two_phases(second: Any) -> Any:
    """Audits a solver that runs one phase after another, each with a sampler and rate of its own."""
    family, model = expfam.full_gaussian(SIZE), models.logistic(["a", "b", "c"])
    recorder = Recorder(GRID)
    watched = [SamplerRecorder(POISSON), SamplerRecorder(second)]
    parts = [
        solvers.dp_optimisation(family, model, sampler, recorder, steps=15, draws=2)
        for sampler in watched
    ]

    def update(key_of: Any, state: Any, task: Task, shard: Shard) -> Any:
        told = [
            part.update(lambda purpose, n=n: key_of(f"{purpose} {n}"), (), task, shard)[1]
            for n, part in enumerate(parts)
        ]
        return state, release.post_process(lambda one, _: one, *told), {}

    cost = events.compose(*(part.cost for part in parts))
    solver = parts[0]._replace(update=update, cost=cost)
    prior = family.from_moments(np.zeros(SIZE), 6.25 * np.eye(SIZE))
    task = Task("t", "a", 0, 0, prior, family.zeros(), 1.0)
    generator = np.random.default_rng(0)
    records = {
        "x": generator.normal(size=(SLOTS, SIZE)),
        "y": generator.integers(0, 2, SLOTS) * 1.0,
    }
    shard = Shard(records, np.ones(SLOTS, bool))
    found = replay(solver, recorder, product_keys, task, shard, sampler=watched[0])
    return {finding.check: finding.passed for finding in found}


@pytest.mark.nightly
def test_each_rate_of_a_study_with_several_is_checked() -> None:
    class Always(Planted):
        def event(self, inner: Any) -> Any:
            return sampling.poisson(0.4, SLOTS).event(inner)

    outcome = two_phases(Always(always, SLOTS, 0.4))
    assert outcome["records in batches, rate 0.2"] is True
    assert outcome["records in batches, rate 0.4"] is False


def test_batches_in_which_no_tried_record_shows_are_no_pass() -> None:
    never = np.zeros((4, 10), bool)
    charge = charges(POISSON.event(FLOAT.event(base.Shift(1.0, 1.0, 2.0))))
    groups = [np.array([slot]) for slot in range(4)]
    (finding,) = check_inclusion(never, groups, 4, charge * 10)
    assert finding.passed is None
    assert finding.figure == "not checked"
