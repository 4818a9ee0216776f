"""Local averaging, virtual clients and perturbed updates: what one record moves, and what it costs.

In these problems x is 0.01 and y = 100·v, so that a record adds v to h and 1e-4 to J: a part's change is
the sum of its v, clipped to ±C, and nothing else to speak of.
"""

import json
import math
from functools import partial

import numpy as np
import pytest

from fedvi import errors, expfam, models
from fedvi.client import inputs
from fedvi.expfam import tree
from fedvi.expfam.gaussian import GaussianEta
from fedvi.inference import solvers
from fedvi.inference.prior_frame import prior_frame
from fedvi.inference.solvers import _clipped_changes
from fedvi.privacy import events, mechanisms, random, sampling
from fedvi.transport import codec
from fedvi.typing import IDS
from fedvi.updates.base import Shard, Task
from fedvi.updates.whitened_changes import to_vector

PARTS, ROOM, CLIP = 4, 16, 0.5
FAMILY, MODEL = expfam.full_gaussian(1), models.linear(["a"])
FRAME = prior_frame(FAMILY, MODEL)
WEIGHTS = {"local_averaging": 1.0 / PARTS, "virtual_clients": 1.0, "perturbed_update": 0.5}
MODES = tuple(WEIGHTS)
DIVIDING = MODES[:2]


def keys(seed: int = 0):
    return partial(random.insecure_root(seed).key, "test")


def made(name, noise=1.0, clip_norm=CLIP, family=FAMILY, model=MODEL, **options):
    if name == "perturbed_update":
        options.setdefault("alpha", WEIGHTS[name])
    else:
        options.setdefault("parts", PARTS)
    return getattr(solvers, name)(
        family,
        model,
        sampling.full(ROOM),
        mechanisms.rounded_gaussian(noise),
        clip_norm=clip_norm,
        **options,
    )


def task(visit=0, posterior=None, factor=None, damping=1.0) -> Task:
    posterior = FAMILY.isotropic(1.0) if posterior is None else posterior
    factor = FAMILY.zeros() if factor is None else factor
    return Task(f"c/{visit}", "c", visit, visit, posterior, factor, damping)


def shard_of(values, ids, x=0.01) -> Shard:
    """One record a value v, in this order, with these ids."""
    count, records = len(values), {"x": np.zeros((ROOM, 1)), "y": np.zeros(ROOM)}
    records["x"][:count] = x
    records["y"][:count] = np.asarray(values) / 0.01
    records[IDS] = np.zeros(ROOM, np.uint64)
    records[IDS][:count] = ids
    return Shard(records, np.arange(ROOM) < count)


def without(values, ids, row) -> Shard:
    """The shard of the file without a line: all that come after it move up."""
    return shard_of(np.delete(values, row), np.delete(ids, row))


def received(released):
    """What the server reads of it."""
    return codec.decode(codec.encode(released))[0]


def total(solver, shard, at=None, state=None):
    """Returns what left, in clip norms of the sum over parts; noise of equal keys is equal."""
    at = task() if at is None else at
    state = solver.init(at.posterior) if state is None else state
    _, released, _ = solver.update(keys(), state, at, shard)
    vector = to_vector(FRAME, solver.finish(received(released), at).delta)
    return vector / (WEIGHTS[solver.name] * CLIP)


def moves(solver, shard, others):
    base = total(solver, shard)
    return [float(np.linalg.norm(total(solver, other) - base)) for other in others]


# Part k holds an early record p_k and a late one: +10 together, and −10 with the next part's late one.
EARLY = [-30.0, -10.0, 10.0, 30.0]
LATE = [20.0, 0.0, -20.0, -40.0]
VALUES = np.array([*EARLY, 0.0, *LATE])
IDENTITIES = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8], np.uint64)  # part k: k mod 4, as by place


# 1e-9: what the way to η and back rounds; totals themselves are whole numbers of the grid's steps.
ROUNDING = 1e-9


@pytest.mark.nightly(only=("virtual_clients",))
@pytest.mark.parametrize("name", MODES)
def test_a_record_that_is_removed_moves_the_sum_by_two_clip_norms_at_most(name):
    solver, shard = made(name), shard_of(VALUES, IDENTITIES)
    found = moves(solver, shard, [without(VALUES, IDENTITIES, row) for row in range(9)])
    assert solver.cost.add_remove == 2.0
    assert max(found) <= 2.0 + ROUNDING
    # Two, not one: a record may turn a whole part around.
    assert name == "perturbed_update" or max(found) > 1.99


@pytest.mark.parametrize("name", DIVIDING)
def test_by_place_a_removed_record_may_turn_every_part_around_and_is_charged_for_it(name):
    """The positional parts of the literature, on the very file on which ids keep to 2 clip norms."""
    solver, shard = made(name, by_place=True), shard_of(VALUES, IDENTITIES)
    (moved,) = moves(solver, shard, [without(VALUES, IDENTITIES, 4)])
    assert moved > 5.9
    assert moved <= solver.cost.add_remove == 2.0 * PARTS


def substituted(values, ids, row, value, identity) -> Shard:
    values, ids = values.copy(), ids.copy()
    values[row], ids[row] = value, identity
    return shard_of(values, ids)


@pytest.mark.parametrize("name", MODES)
def test_a_record_that_is_substituted_moves_the_sum_by_what_is_charged(name):
    solver, shard = made(name), shard_of(VALUES, IDENTITIES)
    hostile = (-1e3, 1e3, 1e30, -1e300, np.nan, np.inf, 0.0)
    kept = [
        substituted(VALUES, IDENTITIES, row, v, IDENTITIES[row]) for row in (3, 4) for v in hostile
    ]
    assert 1.99 < max(moves(solver, shard, kept)) <= 2.0 + ROUNDING
    # One who leaves part 3 turns it around, and so does who enters part 1 in his place.
    (other,) = moves(solver, shard, [substituted(VALUES, IDENTITIES, 3, -1e3, 1)])
    assert other <= solver.cost.substitute + ROUNDING
    if name == "perturbed_update":
        assert solver.cost.substitute == 2.0
    else:
        assert solver.cost.substitute == 4.0
        assert other > 3.99


@pytest.mark.parametrize("name", DIVIDING)
def test_by_place_a_substitution_costs_two_clip_norms(name):
    solver, shard = made(name, by_place=True), shard_of(VALUES, IDENTITIES)
    found = moves(
        solver,
        shard,
        [substituted(VALUES, IDENTITIES, row, -1e3, 17) for row in range(9)],
    )
    assert 1.99 < max(found) <= solver.cost.substitute + ROUNDING == 2.0 + ROUNDING


def two_visits(solver, values):
    """Two visits with the second task given: all that was released is the same for all records."""
    shard = shard_of(values, IDENTITIES)
    state, _, _ = solver.update(keys(), solver.init(task().posterior), task(), shard)
    posterior = tree.add(FAMILY.isotropic(1.0), GaussianEta(np.array([0.1]), np.array([[0.2]])))
    later = task(1, posterior, GaussianEta(np.array([0.1]), np.array([[0.2]])), 1.0)
    after, _, _ = solver.update(keys(), state, later, shard)
    return total(solver, shard, later, state), state, after


def test_at_a_later_visit_a_part_depends_on_its_own_clean_factor_alone():
    # Only part 0 says something, ±C. Were the clean total the cavity of all, the others would answer.
    values = np.zeros(9)
    values[0] = 30.0
    solver = made("virtual_clients")
    one, first, last = two_visits(solver, values)
    other, first_too, last_too = two_visits(solver, -values)
    assert np.linalg.norm(one - other) <= 2.0 + ROUNDING
    for left, right in ((first, first_too), (last, last_too)):
        for a, b in zip(
            (*left.factors, *left.proposed), (*right.factors, *right.proposed), strict=True
        ):
            assert np.array_equal(a[1:], b[1:])
    assert not np.array_equal(first.proposed.h[0], first_too.proposed.h[0])


@pytest.mark.parametrize("name", DIVIDING)
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
@pytest.mark.parametrize(
    ("steps", "left"),
    [(None, [1, 2, 3, 5, 6, 7]), (3, [1, 2, 3, 4, 5, 6, 7, 8])],
    ids=["glm", "gradient"],
)
def test_a_part_that_cannot_be_fitted_counts_as_no_change(name, bad, steps, left):
    """By Newton steps the whole part of the bad record; by gradients that record alone."""
    solver = made(name, steps=steps)
    broken = substituted(VALUES, IDENTITIES, 0, bad, 0)
    broken.records["x"][0] = bad
    silent = shard_of(VALUES[left], IDENTITIES[left])
    np.testing.assert_allclose(total(solver, broken), total(solver, silent), atol=ROUNDING)


def test_a_fit_that_is_improper_counts_as_no_change():
    def improper(key_of, state, at, shard):
        value = {"h": np.ones(1), "J": -np.ones((1, 1))}
        return state, type("Found", (), {"value": value})(), {}

    fit = solvers.exact(FAMILY, MODEL)._replace(update=improper)
    change = _clipped_changes.change_of(fit, FAMILY, keys(), task(), shard_of([], []))
    assert tree.equal(change, FAMILY.zeros())


@pytest.mark.parametrize("name", MODES)
def test_every_part_has_randomness_of_its_own_and_none_of_the_noise(name):
    asked: list[str] = []

    def key_of(purpose):
        asked.append(purpose)
        return keys()(purpose)

    solver = made(name, steps=2)
    solver.update(key_of, solver.init(task().posterior), task(), shard_of(VALUES, IDENTITIES))
    assert asked.count("noise") == 1
    assert len(set(asked)) == len(asked) == 1 + (1 if name == "perturbed_update" else PARTS)


def test_the_event_is_the_price_of_one_message_and_sampling_is_refused():
    found = made("perturbed_update", noise=3.0 / np.sqrt(8))
    assert found.cost == events.Gaussian(3.0 / math.sqrt(8), add_remove=2.0, substitute=2.0)
    assert isinstance(made("virtual_clients").cost, events.Gaussian)
    for name in MODES:
        with pytest.raises(errors.SolverError, match="expected full"):
            getattr(solvers, name)(
                FAMILY, MODEL, sampling.poisson(0.5, ROOM), mechanisms.rounded_gaussian(1.0)
            )
    for wrong, message in (
        ({"parts": 0}, "parts is 0"),
        ({"clip_norm": 0.0}, "clip_norm is 0"),
    ):
        with pytest.raises(errors.SolverError, match=message):
            made("local_averaging", **wrong)
    with pytest.raises(errors.SolverError, match="alpha is 2"):
        made("perturbed_update", alpha=2.0)


def federation(solver, seed, visits=16):
    """Visits whose answers are folded with any s, dropped, or lost; yields (state, factor) at each task."""
    chance = np.random.default_rng(seed)
    prior, factor, visit, damping = FAMILY.isotropic(1.0), FAMILY.zeros(), 0, 1.0
    state, shard = solver.init(prior), shard_of(VALUES / 100.0, IDENTITIES)
    for attempt in range(visits):
        at = task(visit, tree.add(prior, factor), factor, damping)
        state, released, _ = solver.update(keys(attempt), state, at, shard)
        # As a client stores it.
        state = inputs.unpack(inputs.pack(state), solver.init(prior))
        yield state, factor
        fate = chance.uniform()
        if fate < 0.2:
            damping, visit = 0.0, visit + 1
        elif fate < 0.7:
            damping = float(chance.choice([1.0, 0.5, 0.25]))
            change = solver.finish(received(released), at).delta
            factor, visit = tree.add_scaled(factor, change, damping), visit + 1


CLEAN = {"virtual_clients": {}, "perturbed_update": {"clean_factor": True}}


@pytest.mark.parametrize("name", CLEAN)
@pytest.mark.parametrize("seed", range(4))
def test_clean_factors_follow_what_the_server_folded_with_any_damping_dropped_or_lost(name, seed):
    """Without noise the parts' factors add up to the server's, whichever answers it took."""
    solver = made(name, noise=0.0, clip_norm=100.0, **CLEAN[name])
    for state, factor in federation(solver, seed):
        for parts, whole in zip(state.factors, factor, strict=True):
            # Totals are float32 where there is no grid.
            np.testing.assert_allclose(parts.sum(axis=0), whole, atol=1e-6)
    assert np.abs(factor.h).max() > 0.1


@pytest.mark.parametrize("name", CLEAN)
def test_with_clean_factors_no_answer_depends_on_noise_that_the_client_drew_before(name):
    """Given what is broadcast: what is added up, before its noise, and what is kept have the same bits."""
    solver, shard = made(name, noise=3.0, **CLEAN[name]), shard_of(VALUES / 100.0, IDENTITIES)

    def kept(seed):
        state = solver.init(task().posterior)
        for visit in range(4):
            noise, others = random.insecure_root(seed), random.insecure_root(visit)
            broadcast = tree.add(FAMILY.isotropic(1.0), GaussianEta(np.ones(1), np.eye(1) * visit))
            state, released, _ = solver.update(
                lambda purpose, noise=noise, others=others: (
                    noise if purpose == "noise" else others
                ).key("test", purpose),
                state,
                task(visit, broadcast, damping=0.5),
                shard,
            )
            yield received(released)["change"], *tree.leaves(state)

    for (sent, *one), (other_sent, *other) in zip(kept(1), kept(2), strict=True):
        assert not np.array_equal(sent, other_sent)
        for left, right in zip(one, other, strict=True):
            np.testing.assert_array_equal(left, right)
    assert np.abs(one[1]).max() > 0.0


@pytest.mark.parametrize("name", MODES)
def test_sums_over_clients_are_taken_of_answers_that_keep_no_noise(name):
    assert (made(name).adds_up is None) == (name not in ("virtual_clients",))
    assert made("perturbed_update", clean_factor=True).adds_up == {"change": (2,)}


def test_a_state_that_is_not_of_the_last_answer_begins_anew_from_what_was_released():
    solver, shard = made("virtual_clients"), shard_of(VALUES, IDENTITIES)
    state, _, _ = solver.update(keys(), solver.init(task().posterior), task(), shard)
    factor = GaussianEta(np.array([0.4]), np.array([[0.8]]))
    for visit, old in ((3, state), (1, solver.init(task().posterior))):
        at = task(visit, tree.add(FAMILY.isotropic(1.0), factor), factor)
        after, _, _ = solver.update(keys(), old, at, shard)
        assert np.array_equal(after.factors.h, np.full((PARTS, 1), 0.1))
        assert np.array_equal(after.factors.J, np.full((PARTS, 1, 1), 0.2))


@pytest.mark.parametrize("name", CLEAN)
def test_a_client_s_first_answer_takes_nothing_of_what_others_added_up_for_its_own(name):
    """A client that missed the first sums: the factor of its task is an equal part of them."""
    solver, shard = made(name, **CLEAN[name]), shard_of(VALUES / 100.0, IDENTITIES)
    others = GaussianEta(np.array([0.4]), np.array([[0.8]]))
    posterior = tree.add(FAMILY.isotropic(1.0), others)
    found = [
        total(solver, shard, task(0, posterior, factor)) for factor in (others, FAMILY.zeros())
    ]
    np.testing.assert_array_equal(*found)


@pytest.mark.nightly(only=("full_gaussian-local_averaging",))
@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("kind", ["full_gaussian", "diagonal_gaussian"])
def test_without_noise_and_clip_the_answer_is_that_of_the_whole_shard(name, kind):
    """Of a linear model: the sum of the parts' changes, or the mean of their changes times K."""
    family, model = getattr(expfam, kind)(2), models.linear(["a", "b"], prior_scale=3.0)
    generator = np.random.default_rng(5)
    # Orthogonal columns: else the parts' optima of the diagonal family add up to another one.
    x = np.zeros((ROOM, 2))
    x[np.arange(ROOM), np.arange(ROOM) % 2] = generator.normal(size=ROOM)
    y = x @ np.array([1.0, -2.0]) + generator.normal(size=ROOM)
    ids = np.arange(ROOM, dtype=np.uint64) // np.uint64(2)
    shard = Shard({"x": x, "y": y, IDS: ids}, np.ones(ROOM, bool))
    at = Task("c/0", "c", 0, 0, family.isotropic(2.0), family.zeros(), 1.0)
    solver = made(name, noise=0.0, clip_norm=1e6, family=family, model=model)
    found = solver.finish(
        received(solver.update(keys(), solver.init(at.posterior), at, shard)[1]), at
    )
    exact = solvers.exact(family, model)
    expected = exact.finish(exact.update(keys(), (), at, shard)[1].value, at).delta
    scale = WEIGHTS[name] if name == "perturbed_update" else 1.0
    for left, right in zip(found.delta, tree.scale(expected, scale), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-5)


@pytest.mark.nightly(but=("virtual_clients",))
@pytest.mark.parametrize("name", MODES)
def test_noise_has_the_std_that_is_charged_in_the_priors_coordinates(name):
    size, noise, clip_norm = 30, 2.0, 3.0
    family = expfam.full_gaussian(size)
    model = models.linear([f"x{index}" for index in range(size)], prior_scale=5.0)
    solver = made(name, noise, clip_norm, family, model)
    at = Task("c/0", "c", 0, 0, family.isotropic(5.0), family.zeros(), 1.0)
    records = {"x": np.zeros((ROOM, size)), "y": np.zeros(ROOM), IDS: np.zeros(ROOM, np.uint64)}
    empty = Shard(records, np.zeros(ROOM, bool))
    released = solver.update(keys(9), solver.init(at.posterior), at, empty)[1]
    drawn = to_vector(prior_frame(family, model), solver.finish(received(released), at).delta)
    assert drawn.size == solver.number_count == 495
    # The std of 495 numbers is known to 1 / √990 = 3.2 %; six of these: once in 5e8.
    ratio = drawn.std() / (WEIGHTS[name] * noise * clip_norm)
    assert abs(ratio - 1.0) < 0.19


def literal_update(change, clip_norm, sigma, clients, alpha, noise):
    """The poster's Δλ̃ = α [Δλ / max(1, ‖Δλ‖ / C) + (σC / √M) z], literally."""
    scale = max(1.0, float(np.linalg.norm(change)) / clip_norm)
    return alpha * (change / scale + sigma * clip_norm / np.sqrt(clients) * noise)


def test_the_posters_literal_formula_gives_its_reference_run(references):
    """Six rounds over 8 shards with the noise that was saved; λ = (h, −j / 2), as the poster has it."""
    told = json.loads((references / "linreg_conjugate_8clients.json").read_text())["poster"]
    with np.load(references / "linreg_conjugate_8clients.npz") as file:
        saved = dict(file)
    family = expfam.diagonal_gaussian(5)
    model = models.linear(list("abcde"), noise_scale=float(np.sqrt(saved["noise_var"])))
    exact, room, clients = solvers.exact(family, model), 205, range(8)
    halves = np.array([1.0] * 5 + [-0.5] * 5)
    posterior, factors = family.isotropic(1.0), dict.fromkeys(clients, family.zeros())
    for turn in range(told["rounds"]):
        changes = {}
        for client in clients:
            own = saved["client"] == client
            records = {"x": np.zeros((room, 5)), "y": np.zeros(room)}
            records["x"][: own.sum()], records["y"][: own.sum()] = saved["x"][own], saved["y"][own]
            at = Task("c/0", "c", turn, turn, posterior, factors[client], 1.0)
            shard = Shard(records, np.arange(room) < own.sum())
            clean = exact.finish(exact.update(keys(), (), at, shard)[1].value, at).delta
            change = halves * np.concatenate(clean)
            norm = saved["poster_norms"][turn, client]
            np.testing.assert_allclose(np.linalg.norm(change), norm, rtol=1e-8)
            noise = saved["poster_z"][turn, client]
            perturbed = literal_update(
                change, told["C"], told["sigma"], len(clients), told["alpha"], noise
            )
            changes[client] = GaussianEta(*np.split(perturbed / halves, 2))
        # Each factor keeps its own noise, and q their sum.
        factors = {name: tree.add(factors[name], changes[name]) for name in clients}
        posterior = tree.total(changes.values(), posterior)
        found = halves * np.concatenate(posterior)
        # float64; the exact solver adds records up in another order.
        np.testing.assert_allclose(found, saved["poster_lambda"][turn], rtol=1e-9)


def test_a_perturbed_update_is_the_posters_in_the_priors_coordinates():
    solver, shard = made("perturbed_update", noise=0.0), shard_of(VALUES + 1.0, IDENTITIES)
    optimum = solvers.exact(FAMILY, MODEL).update(keys(), (), task(), shard)[1].value
    change = to_vector(FRAME, tree.subtract(GaussianEta(**optimum), task().posterior))
    expected = literal_update(change, CLIP, 0.0, 8, 0.5, np.zeros(2))
    # float32 where there is no grid.
    np.testing.assert_allclose(total(solver, shard) * CLIP * 0.5, expected, rtol=1e-6, atol=1e-7)
