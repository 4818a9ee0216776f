"""What every conjugate model must satisfy; each case brings its statistics computed in another way."""

import itertools
import json
import subprocess
import sys
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvi.expfam import tree
from fedvi.inference.solvers.vips import vips
from fedvi.models.factor_statistics import FactorAnalysis
from fedvi.models.markov_statistics import HiddenMarkov
from fedvi.models.mixture_statistics import GaussianMixture
from fedvi.models.network_statistics import DiscreteNetwork
from fedvi.models.unknown_noise import UnknownNoise
from fedvi.privacy import mechanisms, sampling
from fedvi.updates.base import LocalSolver, Task
from fedvi.updates.conjugate import ConjugateModel, FromFile, from_table, packed, to_table
from tests.vips import answer, federate, shard_of

COLUMNS = ("a", "b", "c")
ROWS = 12
SIZE = 64


class Case(NamedTuple):
    """A model, records for it, and what each record adds at q: of each block [N, …], NumPy, float64."""

    model: Any
    records: Any
    explicit: Any


def _points(seed: int, count: int = ROWS) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, len(COLUMNS)))


def _outer(left, right):
    return np.einsum("ni,nj->nij", left, right)


def _of_mixture(model, q, records):
    x, weights, pairs = records["x"], *q
    d = x.shape[1]
    m, scale, shape, rate = model.family.parts[1].parameters(pairs)
    logits = np.empty((len(x), model.components))
    for k in range(model.components):
        # Bishop (2006), equations 10.64 to 10.66, with ν = 2a and W = (2B)⁻¹.
        degrees, inverse = 2.0 * shape[k], np.linalg.inv(2.0 * rate[k])
        log_det = scipy.special.digamma(0.5 * (degrees - np.arange(d))).sum()
        log_det += d * np.log(2.0) + np.linalg.slogdet(inverse)[1]
        apart = x - m[k]
        square = d / scale[k] + degrees * np.einsum("ni,ij,nj->n", apart, inverse, apart)
        log_weight = scipy.special.digamma(weights.power[k] + 1.0)
        logits[:, k] = log_weight + 0.5 * (log_det - square)
    r = scipy.special.softmax(logits, axis=1)
    return {
        "count": r,
        "first": _outer(r, x),
        "second": r[:, :, None, None] * _outer(x, x)[:, None],
    }


def _of_regression(model, q, records):
    u = np.c_[records["x"], records["y"] / model.outcome_scale]
    return {"moments": _outer(u, u), "count": np.ones((len(u), 1))}


def _of_factors(model, q, records):
    """Solves for z record by record, from q's moments by the rules for a normal-gamma."""
    x = records["x"]
    m, scale, shape, rate = model.family.parameters(q)
    precision, linear = np.eye(model.factors), np.zeros((len(x), model.factors))
    for column in range(x.shape[1]):
        group, row = (0, column) if model.isotropic else (column, 0)
        tau, inverse = shape[group] / rate[group], np.linalg.inv(scale[group])
        w, b = m[group, row, :-1], m[group, row, -1]
        precision = precision + inverse[:-1, :-1] + tau * np.outer(w, w)
        linear = linear + tau * np.outer(x[:, column] - b, w) - inverse[-1, :-1]
    z = np.c_[linear @ np.linalg.inv(precision), np.ones(len(x))]
    squares = (x**2).sum(axis=1, keepdims=True) if model.isotropic else x**2
    return {"factors": _outer(z, z), "products": _outer(x, z), "squares": squares}


def _of_chain(model, q, records):
    """Adds up all paths of the hidden states."""
    starts, moves, emissions = (
        scipy.special.digamma(part.power + 1.0)
        - scipy.special.digamma((part.power + 1.0).sum(axis=1, keepdims=True))
        for part in q
    )
    states, count = model.states, len(records["length"])
    found = {
        "starts": np.zeros((count, states)),
        "moves": np.zeros((count, states, states)),
        "emissions": np.zeros((count, states, model.symbols)),
    }
    for record, length in enumerate(records["length"]):
        symbols = records["symbols"][record, :length]
        paths = list(itertools.product(range(states), repeat=int(length)))
        if not length:
            continue
        scores = []
        for path in paths:
            score = starts[0, path[0]] + sum(moves[a, b] for a, b in itertools.pairwise(path))
            seen = [(s, v) for s, v in zip(path, symbols, strict=True) if 0 <= v < model.symbols]
            scores.append(score + sum(emissions[s, v] for s, v in seen))
        for path, weight in zip(paths, scipy.special.softmax(scores), strict=True):
            found["starts"][record, path[0]] += weight
            for a, b in itertools.pairwise(path):
                found["moves"][record, a, b] += weight
            for s, v in zip(path, symbols, strict=True):
                if 0 <= v < model.symbols:
                    found["emissions"][record, s, v] += weight
    return found


def _of_network(model, q, records):
    rain, wet = records["levels"].T
    found = {"rain": np.zeros((len(rain), 1, 2)), "wet": np.zeros((len(rain), 2, 3))}
    for row in range(len(rain)):
        if 0 <= rain[row] < 2:
            found["rain"][row, 0, rain[row]] = 1.0
            if 0 <= wet[row] < 3:
                found["wet"][row, rain[row], wet[row]] = 1.0
    return found


def _symbols(seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    symbols = generator.integers(-1, 4, size=(ROWS, 5)).astype(np.int32)
    return {"symbols": symbols, "length": (np.arange(ROWS) % 6).astype(np.int32)}


def _levels(seed: int) -> dict[str, np.ndarray]:
    return {"levels": np.random.default_rng(seed).integers(-1, 3, size=(ROWS, 2)).astype(np.int32)}


_FACTORS = FactorAnalysis(COLUMNS, 2, (1.0, 1.5, 0.7), row_norm=1.7)
CASES = {
    "mixture": Case(
        GaussianMixture(COLUMNS, 2, (1.0, 1.5, 0.7), row_norm=1.7, spread=0.5),
        {"x": _points(0)},
        _of_mixture,
    ),
    "regression": Case(
        UnknownNoise(COLUMNS, (2.0, 1.0, 3.0), row_norm=1.7, outcome_scale=2.0),
        {"x": _points(1), "y": 2.0 * _points(2)[:, 0]},
        _of_regression,
    ),
    "factor analysis": Case(_FACTORS, {"x": _points(3)}, _of_factors),
    "principal components": Case(
        FactorAnalysis(COLUMNS, 1, (1.0, 1.5, 0.7), row_norm=1.7, isotropic=True),
        {"x": _points(4)},
        _of_factors,
    ),
    "hidden Markov": Case(HiddenMarkov(3, 4, 5), _symbols(5), _of_chain),
    "network": Case(
        DiscreteNetwork(("rain", "wet"), (2, 3), ((), ("rain",))), _levels(6), _of_network
    ),
}

pytestmark = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def exact(model: Any, clip_norm: float = np.inf) -> LocalSolver:
    """Returns the solver that takes all records and adds no noise."""
    mechanism = mechanisms.gaussian(0.0)
    return vips(model.family, model, sampling.full(SIZE), mechanism, clip_norm=clip_norm)


def moved(model: Any) -> Any:
    """Returns a q that is no longer where the model starts, and not its prior."""
    records = next(case.records for case in CASES.values() if case.model == model)
    return federate(exact(model), [shard_of(records, SIZE)], 2)[-1].handed_out


@pytest.fixture(scope="module")
def somewhere():
    """Returns such a q for a case, computed once."""
    found: dict[str, Any] = {}

    def of(case: Case) -> Any:
        name = repr(case.model)
        if name not in found:
            found[name] = moved(case.model)
        return found[name]

    return of


def double(columns):
    return jax.tree.map(
        lambda leaf: leaf.astype("float64") if leaf.dtype.kind == "f" else leaf, columns
    )


def single(records):
    return {
        name: jax.numpy.asarray(column, "float32" if column.dtype.kind == "f" else "int32")
        for name, column in records.items()
    }


def test_a_model_is_a_table_of_public_fields_with_a_proper_start(case):
    model = case.model
    assert isinstance(model, ConjugateModel)
    assert isinstance(model, FromFile)
    assert from_table(json.loads(json.dumps(to_table(model)))) == model
    assert len(model.names) == len(set(model.names)) == model.family.size
    assert sum(block.share for block in model.blocks) == pytest.approx(1.0)
    for eta in (model.prior, model.start):
        model.family.check(eta)
        assert model.family.is_proper(eta)
    assert {name: column.shape[1:] for name, column in case.records.items()} == model.layout
    made_up = model.made_up(50, np.random.default_rng(0))
    assert {name: column.shape[1:] for name, column in made_up.items()} == model.layout
    assert model.sound(made_up).all()


def test_a_server_that_makes_a_model_imports_no_jax(case):
    program = (
        "import sys, json\n"
        "from fedvi.updates.conjugate import from_table\n"
        f"model = from_table(json.loads({json.dumps(to_table(case.model))!r}))\n"
        "sums = {block.name: 0.0 * __import__('numpy').ones(block.shape) for block in model.blocks}\n"
        "model.posterior(model.factor(sums, model.start), {})\n"
        "assert 'jax' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.nightly(only=("hidden Markov",))
def test_what_a_record_adds_is_what_another_way_of_computing_finds(case, somewhere):
    model, records, q = case.model, single(case.records), somewhere(case)
    messages = model.messages(q)
    # The jitted form is what runs; float32 alone is what a client computes the latents in.
    local = jax.jit(model.expected)(messages, records)
    expected = case.explicit(model, q, case.records)
    with jax.enable_x64(True):
        wide = double(local), double(records)
        for row in range(ROWS):
            weights = np.eye(ROWS)[row]
            found = model.sums(messages, *wide, jax.numpy.asarray(weights))
            for name, array in found.items():
                # Latents are of order 1, and float32 leaves a few 1e-7 of them.
                np.testing.assert_allclose(array, expected[name][row], rtol=1e-4, atol=2e-5)


@pytest.mark.nightly(only=("hidden Markov",))
def test_norms_are_those_of_the_arrays_and_sums_are_weighted(case, somewhere):
    model, records = case.model, single(case.records)
    messages = model.messages(somewhere(case))
    local = jax.jit(model.expected)(messages, records)
    weights = np.random.default_rng(1).uniform(size=ROWS)
    with jax.enable_x64(True):
        wide = double(local), double(records)
        alone = [model.sums(messages, *wide, jax.numpy.asarray(row)) for row in np.eye(ROWS)]
        squares = model.square_norms(messages, *wide)
        total = model.sums(messages, *wide, jax.numpy.asarray(weights))
        for block in model.blocks:
            arrays = np.stack([np.asarray(found[block.name]) for found in alone])
            assert arrays.shape == (ROWS, *block.shape)
            norms = np.array([np.linalg.norm(packed(array, block)) for array in arrays])
            # float64 algebra.
            np.testing.assert_allclose(np.sqrt(squares[block.name]), norms, rtol=1e-12, atol=1e-300)
            together = np.tensordot(weights, arrays, axes=1)
            np.testing.assert_allclose(total[block.name], together, rtol=1e-12, atol=1e-12)


# Numbers that break arithmetic, in floats; or are levels and symbols that do not exist, in integers.
BAD = [np.nan, np.inf, -np.inf, 1e38, -1e30, 1e-38, 0.0, 1e4]
ODD = [-(2**31), -1, 0, 1, 7, 2**31 - 1]


@pytest.mark.nightly(only=("hidden Markov", "mixture"))
@settings(max_examples=12)
@given(
    bad=st.sampled_from(BAD),
    odd=st.sampled_from(ODD),
    part=st.integers(0, 7),
    place=st.integers(0, 5),
    clip_norm=st.sampled_from([1e-3, 0.3, 1.0, 20.0]),
)
def test_one_record_moves_the_total_by_at_most_the_clip_norm(
    case, somewhere, bad, odd, part, place, clip_norm
):
    model = case.model
    solver = exact(model, clip_norm)
    q = somewhere(case)
    task = Task("client/1", "client", 1, 1, q, model.family.zeros(), 1.0)
    added = {name: column[:1].copy() for name, column in case.records.items()}
    for column in added.values():
        flat = column.reshape(-1)
        flat[: 1 + part] = bad if column.dtype.kind == "f" else odd
        flat[place % flat.size] = bad if column.dtype.kind == "f" else odd
    with_it = {name: np.concatenate([case.records[name], added[name]]) for name in added}
    totals = [answer(solver, task, shard_of(records, SIZE)) for records in (case.records, with_it)]
    apart = np.sqrt(sum(((totals[0][name] - totals[1][name]) ** 2).sum() for name in totals[0]))
    # What is released without noise is rounded to float32, 13 records of at most C.
    assert apart <= clip_norm * (1.0 + 1e-5)
    assert all(np.isfinite(total).all() for total in totals[1].values())


@pytest.mark.parametrize("relative", [1e-3, 0.1, 1.0, 30.0, 1e3])
def test_a_posterior_is_proper_and_finite_whatever_the_noise(case, somewhere, relative):
    model, q = case.model, somewhere(case)
    generator = np.random.default_rng(7)
    explicit = case.explicit(model, q, case.records)
    sums = {name: np.sum(arrays, axis=0) for name, arrays in explicit.items()}
    for _ in range(20):
        sds, noisy = {}, {}
        for block in model.blocks:
            sds[block.name] = relative * float(np.linalg.norm(sums[block.name]))
            noise = sds[block.name] * generator.normal(size=block.shape)
            if block.symmetric:
                noise = (noise + noise.swapaxes(-1, -2)) / 2.0
            noisy[block.name] = sums[block.name] + noise
        found = model.posterior(model.factor(noisy, q), sds)
        model.family.check(found)
        assert model.family.is_proper(found)
        mean, _ = model.family.moments(found)
        assert np.isfinite(mean).all()
        # The next round's messages, at the client.
        assert all(np.isfinite(leaf).all() for leaf in model.messages(found).values())


def test_without_noise_the_posterior_is_the_prior_and_the_factors(case, somewhere):
    model, q = case.model, somewhere(case)
    explicit = case.explicit(model, q, case.records)
    total = model.factor({name: arrays.sum(axis=0) for name, arrays in explicit.items()}, q)
    found = model.posterior(total, {})
    expected = tree.add(model.prior, total)
    for left, right in zip(tree.leaves(found), tree.leaves(expected), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("cuts", [(0, 12), (5, 12), (1, 7)])
def test_clients_get_what_one_with_all_records_gets(case, cuts):
    solver, rounds = exact(case.model), 3
    pooled = federate(solver, [shard_of(case.records, SIZE)], rounds)
    edges = (0, *cuts, ROWS)
    shards = [
        shard_of({name: column[left:right] for name, column in case.records.items()}, SIZE)
        for left, right in itertools.pairwise(edges)
    ]
    for found, expected in zip(federate(solver, shards, rounds), pooled, strict=True):
        pairs = zip(tree.leaves(found.handed_out), tree.leaves(expected.handed_out), strict=True)
        for left, right in pairs:
            # Totals without noise are handed over in float32.
            assert np.abs(left - right).max() <= 1e-6 * np.abs(right).max()


@pytest.mark.parametrize("rolled", [1, 7, 64])
def test_what_is_known_of_a_record_does_not_depend_on_its_place(case, somewhere, rolled):
    model = case.model
    records = model.made_up(128, np.random.default_rng(2))
    messages, expected = model.messages(somewhere(case)), jax.jit(model.expected)
    found = expected(messages, single(records))
    turned = {name: np.roll(column, rolled, axis=0) for name, column in records.items()}
    elsewhere = expected(messages, single(turned))
    for name, leaf in found.items():
        np.testing.assert_array_equal(np.roll(leaf, rolled, axis=0), elsewhere[name])
