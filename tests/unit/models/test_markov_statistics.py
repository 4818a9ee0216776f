"""Claims about hidden Markov models of discrete symbols."""

import jax
import numpy as np
import pytest
import scipy.special

from fedvi import VIPS, errors, privacy
from fedvi.models.markov_statistics import HiddenMarkov

MODEL = HiddenMarkov(3, 6, 40, seed=2)


def sequences(rows, length):
    """Returns rows of symbols as records, filled up with -1."""
    found = np.full((len(rows), length), -1, np.int32)
    for index, row in enumerate(rows):
        found[index, : len(row)] = row
    return {"symbols": found, "length": np.array([len(row) for row in rows], np.int32)}


def forward_backward(starts, moves, emissions, symbols):
    """Returns expected starts, moves and emissions of one sequence, by Rabiner's recursions in float64."""
    start, move, emit = (np.exp(part) for part in (starts, moves, emissions))
    likelihood = emit[:, symbols].T
    count = len(symbols)
    forward, backward = np.zeros((count, len(start))), np.ones((count, len(start)))
    forward[0] = start * likelihood[0]
    for t in range(1, count):
        forward[t] = forward[t - 1] @ move * likelihood[t]
    for t in range(count - 2, -1, -1):
        backward[t] = move @ (likelihood[t + 1] * backward[t + 1])
    whole = forward[-1].sum()
    states = forward * backward / whole
    pairs = sum(
        forward[t][:, None] * move * (likelihood[t + 1] * backward[t + 1])[None] / whole
        for t in range(count - 1)
    )
    counted = np.zeros_like(emit)
    for t, symbol in enumerate(symbols):
        counted[:, symbol] += states[t]
    return states[0], pairs, counted


def simulated(count: int, length: int, seed: int):
    generator = np.random.default_rng(seed)
    move = np.array([[0.9, 0.1], [0.2, 0.8]])
    emit = np.array([[0.5, 0.4, 0.05, 0.05], [0.05, 0.05, 0.4, 0.5]])
    rows = []
    for _ in range(count):
        state, row = generator.integers(2), []
        for _ in range(length):
            row.append(generator.choice(4, p=emit[state]))
            state = generator.choice(2, p=move[state])
        rows.append(row)
    return rows, move, emit


def test_derivatives_of_the_forward_algorithm_are_forward_backward():
    generator = np.random.default_rng(0)
    rows = [generator.integers(0, 6, size=length) for length in (40, 1, 17)]
    records = sequences(rows, 40)
    messages = MODEL.messages(MODEL.start)
    local = jax.jit(MODEL.expected)(messages, records)
    wide = {name: np.asarray(leaf, np.float64) for name, leaf in local.items()}
    parts = [messages[name].astype(np.float64) for name in ("starts", "moves", "emissions")]
    for index, row in enumerate(rows):
        starts, pairs, counted = forward_backward(parts[0], parts[1], parts[2].T, row)
        # float32 over 40 steps.
        np.testing.assert_allclose(wide["starts"][index], starts, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(wide["moves"][index], pairs, rtol=1e-4, atol=1e-5)
        found = np.zeros((6, 3))
        np.add.at(found, records["symbols"][index], wide["emissions"][index])
        np.testing.assert_allclose(found.T, counted, rtol=1e-4, atol=1e-5)


def test_in_double_precision_they_agree_to_rounding():
    generator = np.random.default_rng(1)
    symbols = generator.integers(0, 6, size=40)
    q = MODEL.start
    parts = [
        scipy.special.digamma(part.power + 1.0)
        - scipy.special.digamma((part.power + 1.0).sum(axis=1, keepdims=True))
        for part in q
    ]
    records = sequences([symbols], 40)
    with jax.enable_x64(True):
        messages = {"starts": parts[0][0], "moves": parts[1], "emissions": parts[2].T}
        local = MODEL.expected(messages, records)
    _, pairs, _ = forward_backward(parts[0][0], parts[1], parts[2], symbols)
    np.testing.assert_allclose(local["moves"][0], pairs, rtol=1e-11, atol=1e-13)


def test_each_number_of_the_emissions_comes_from_one_step():
    records = sequences([[0, 1, 0, 0, 1], [5, 5, -1, 5]], 40)
    local = MODEL.expected(MODEL.messages(MODEL.start), records)
    steps = np.asarray(local["emissions"]).any(axis=2)
    assert [np.flatnonzero(row).tolist() for row in steps] == [[0, 1], [0]]
    np.testing.assert_allclose(
        np.asarray(local["emissions"]).sum(axis=(1, 2)), [5.0, 3.0], rtol=1e-5
    )


@pytest.mark.nightly
def test_what_a_sequence_adds_is_bounded_by_its_length():
    records = MODEL.made_up(200, np.random.default_rng(3))
    local = MODEL.expected(MODEL.messages(MODEL.start), records)
    with jax.enable_x64(True):
        squares = MODEL.square_norms({}, jax.tree.map(lambda a: a.astype("float64"), local), {})
    length = np.maximum(records["length"], 1)
    seen = (np.arange(40) < records["length"][:, None]) & (records["symbols"] >= 0)
    for name, bound in (("starts", 1.0), ("moves", length - 1.0), ("emissions", seen.sum(axis=1))):
        assert (np.sqrt(squares[name]) <= bound + 1e-4).all()


def test_it_finds_the_states_that_sequences_came_from():
    rows, move, emit = simulated(400, 20, 5)
    model = HiddenMarkov(2, 4, 20)
    plan = privacy.sgd(
        noise_multiplier=0,
        steps=30,
        max_records=400,
        sampler="full",
        clip_norm=np.inf,
    )
    records = sequences(rows, 20)
    found = VIPS(model, plan).run(records, progress_bar=False).posterior
    moves, emissions = (
        (part.power + 1.0) / (part.power + 1.0).sum(axis=1, keepdims=True) for part in found[1:]
    )
    order = [0, 1] if emissions[0, 0] > emissions[1, 0] else [1, 0]
    # 4,000 steps of each state: some hundredths.
    assert np.abs(emissions[order] - emit).max() < 0.04
    assert np.abs(moves[order][:, order] - move).max() < 0.04


def test_noise_in_empty_cells_is_not_believed():
    counts = np.zeros((3, 6))
    counts[0] = 100.0
    noisy = counts + np.where(np.arange(18).reshape(3, 6) % 2, 9.0, -9.0)
    sums = {"starts": np.zeros(3), "moves": np.zeros((3, 3)), "emissions": noisy}
    posterior = MODEL.posterior(MODEL.factor(sums, None), {"emissions": 9.0})
    assert posterior[2].power.sum() == pytest.approx(noisy.sum())
    assert posterior[2].power.min() == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"states": 1}, "states is 1, expected at least 2"),
        ({"symbols": 1}, "symbols is 1"),
        ({"length": 0}, "length is 0"),
        ({"emit_concentration": 0.0}, "emit_concentration is 0.0, expected a number above 0"),
        ({"typical_length": 21.0}, "at most the largest length, 20"),
    ],
)
def test_what_cannot_be_is_refused(change, message):
    with pytest.raises(errors.ModelError, match=message):
        HiddenMarkov(**({"states": 2, "symbols": 4, "length": 20} | change))


def test_lengths_beyond_the_largest_and_broken_symbols_are_not_sound():
    symbols = np.array([[0.0, 9.0], [0.5, 0.0], [np.nan, 0.0], [0.0, 0.0]])
    model = HiddenMarkov(2, 4, 2)
    length = np.array([2, 2, 2, 3])
    assert model.sound({"symbols": symbols, "length": length}).tolist() == [
        True,
        False,
        False,
        False,
    ]
