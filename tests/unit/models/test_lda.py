"""Latent Dirichlet allocation: steps against other implementations, and what one document can do."""

import dataclasses
import functools
import importlib
import json
import math
import subprocess
import sys
import threading

import jax
import jaxtyping
import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvi import errors
from fedvi.audit.recording import Recorder
from fedvi.expfam import tree
from fedvi.expfam.dirichlet import DirichletEta
from fedvi.inference.parallel_parts import striped
from fedvi.inference.solvers import vips
from fedvi.models.document_steps import extrapolated, topic_weights
from fedvi.models.lda import (
    LatentDirichlet,
    completion_perplexity,
    document_topics,
    top_words,
)
from fedvi.models.topic_signal import signal_to_noise
from fedvi.privacy import mechanisms, sampling
from fedvi.updates.base import Fold, Shard
from fedvi.updates.conjugate import from_table, to_table
from tests.vips import federate, first_task, shard_of, total

SOLVER = importlib.import_module("fedvi.inference.solvers.vips")
V, K, L, RECORDS = 70, 3, 50, 40
MODEL = LatentDirichlet(K, V, length=40.0, iterations=20, tolerance=0.0)


@functools.cache
def truth(seed=0):
    """Topics [K, V] and 300 documents [N, V] of 8 to 90 words: of one length class and of two."""
    generator = np.random.default_rng(seed)
    topics = generator.dirichlet(np.full(V, 0.1), K)
    shares = generator.dirichlet(np.full(K, 0.2), 300)
    lengths = np.where(np.arange(300) % 3 == 0, 90, 8)
    return topics, np.stack(
        [generator.multinomial(n, p @ topics) for n, p in zip(lengths, shares, strict=True)]
    )


def laid_out(counts, width=L):
    words, numbers = np.zeros((2, len(counts), width))
    for row, document in enumerate(counts):
        found = np.flatnonzero(document)
        words[row, : found.size], numbers[row, : found.size] = found, document[found]
    return {"words": words.astype(np.int32), "counts": numbers.astype(np.float32)}


def records(count=RECORDS):
    return laid_out(truth()[1][:count])


def by_hand(model, posterior, counts):
    """Statistics [N, K, V] of dense documents, in float64, with SciPy's digamma (updates.md §9)."""
    alpha = posterior.power + 1.0
    beta = np.exp(scipy.special.digamma(alpha) - scipy.special.digamma(alpha.sum(1))[:, None])
    gamma = np.ones((len(counts), model.topics))
    for _ in range(model.iterations):
        theta = np.exp(scipy.special.digamma(gamma))
        gamma = model.alpha + theta * ((counts / (theta @ beta)) @ beta.T)
    theta = np.exp(scipy.special.digamma(gamma))
    return theta[:, :, None] * beta * (counts / (theta @ beta))[:, None, :]


@functools.cache
def compiled(model):
    return jax.jit(model.expected)


def local_of(model, posterior, data):
    return jax.device_get(compiled(model)(model.messages(posterior), data))


def wide(columns):
    return {
        name: np.asarray(part, np.float64) if part.dtype == np.float32 else part
        for name, part in columns.items()
    }


def formed(model, posterior, local, data):
    """Statistics [N, V, K] of what is known of latents, in float64."""
    known = model.messages(posterior)["weights"].astype(np.float64)
    parts = wide(local)
    found = np.zeros((len(data["words"]), model.vocabulary, model.topics))
    for row, words in enumerate(data["words"]):
        added = parts["topics"][row] * known[words] * parts["rates"][row][:, None]
        np.add.at(found[row], words, added)
    return found


def test_steps_go_the_way_of_scikit_learn(references):
    """Batch learning, 50 steps a document, from one start; made as tests/references/README.md says."""
    known = json.loads((references / "lda_sklearn.json").read_text())
    counts, posterior = np.array(known["counts"]), DirichletEta(np.array(known["start"]) - 1.0)
    topics, vocabulary = posterior.power.shape
    model = LatentDirichlet(
        topics,
        vocabulary,
        concentration=known["concentration"],
        topic_concentration=known["topic_concentration"],
        iterations=known["iterations"],
        tolerance=0.0,
    )
    data = laid_out(counts, vocabulary)
    for wanted in known["components"]:
        local, messages = local_of(model, posterior, data), model.messages(posterior)
        with jax.enable_x64(True):
            everyone = np.ones(len(counts))
            sums = jax.jit(model.sums)(wide(messages), wide(local), wide(data), everyone)
        total_ = model.factor({"words": np.asarray(sums["words"])}, posterior)
        posterior = model.posterior(total_, {})
        np.testing.assert_allclose(posterior.power + 1.0, wanted, rtol=1e-4)


def test_statistics_are_those_of_steps_in_float64():
    counts = truth()[1][:RECORDS]
    for posterior in (MODEL.start, DirichletEta(100.0 * truth()[0] - 0.99)):
        found = formed(MODEL, posterior, local_of(MODEL, posterior, records()), records())
        wanted = by_hand(MODEL, posterior, counts).swapaxes(1, 2)
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4)
        # Each word is divided between topics, and no word is lost: rounding of float32.
        np.testing.assert_allclose(found.sum(axis=2), counts, rtol=2e-6)


def test_norms_and_sums_are_those_of_statistics_that_are_formed():
    posterior, data = DirichletEta(100.0 * truth()[0] - 0.99), records()
    local, messages = local_of(MODEL, posterior, data), MODEL.messages(posterior)
    statistics = formed(MODEL, posterior, local, data)
    with jax.enable_x64(True):
        arguments = wide(messages), wide(local), wide(data)
        norms = np.sqrt(jax.jit(MODEL.square_norms)(*arguments)["words"])
        wanted = np.sqrt((statistics**2).sum(axis=(1, 2)))
        # Within what the model promises of norms.
        np.testing.assert_allclose(norms, wanted, rtol=2.0 * MODEL.norm_error)
        summed = jax.jit(MODEL.sums)
        for place in (0, 1):  # one of the longer class and one of the shorter
            one = (np.arange(RECORDS) == place).astype(np.float64)
            sums = summed(*arguments, one)["words"]
            np.testing.assert_allclose(sums, statistics[place], rtol=1e-12, atol=1e-300)
            assert sums.dtype == np.float64


def test_documents_are_left_as_they_are_once_they_have_converged():
    loose = LatentDirichlet(K, V, iterations=500, tolerance=1e-4)
    tight = LatentDirichlet(K, V, iterations=500, tolerance=0.0)
    posterior = DirichletEta(100.0 * truth()[0] - 0.99)
    found, wanted = (local_of(m, posterior, records())["topics"] for m in (loose, tight))
    np.testing.assert_allclose(found, wanted, atol=0.01)
    # They stop before: else all bits were the same.
    assert (found != wanted).any(axis=1).mean() > 0.5


@pytest.mark.nightly(but=("24",))
@pytest.mark.parametrize("iterations", [23, 24, 25])
def test_extrapolated_steps_lead_to_the_same_answers_in_a_third(iterations):
    """Whatever the last of them is: a first of two, a second, or one behind a stage."""
    plain = LatentDirichlet(K, V, tolerance=0.0, iterations=3 * iterations)
    fast = LatentDirichlet(K, V, tolerance=0.0, iterations=iterations, accelerated=True)
    settled = LatentDirichlet(K, V, tolerance=0.0, iterations=3000)
    posterior = DirichletEta(30.0 * truth()[0] + truth(1)[0])
    found, slow, wanted = (
        np.asarray(local_of(model, posterior, laid_out(truth()[1]))["topics"], np.float64)
        for model in (fast, plain, settled)
    )
    left, left_slowly = (np.abs(each - wanted).mean() for each in (found, slow))
    assert left < left_slowly
    assert left < 2e-3


@pytest.mark.nightly
def test_a_single_step_is_the_published_one():
    posterior = DirichletEta(30.0 * truth()[0] + truth(1)[0])
    for iterations in (1, 2):
        models = (
            LatentDirichlet(K, V, tolerance=0.0, accelerated=fast, iterations=iterations)
            for fast in (True, False)
        )
        found, wanted = (local_of(model, posterior, records())["topics"] for model in models)
        np.testing.assert_array_equal(found, wanted)


def test_an_extrapolation_stays_in_the_cone_and_never_makes_what_is_no_number():
    three = np.array(
        [[[5.0, 1.0], [3e38, 1.0]], [[3.0, 1.0], [1.0, 3e38]], [[1.5, 1.0], [9.0, 9.0]]]
    )
    found = np.asarray(jax.jit(extrapolated)(*three.astype(np.float32), np.float32(0.5)))
    # r = −2, v = 0.5: four times as far, 5 − 16 + 8 = −3, which is held at the least.
    np.testing.assert_array_equal(found, [[0.5, 1.0], [9.0, 9.0]])


def test_topic_weights_are_exponentials_of_digammas():
    gamma = np.geomspace(1e-3, 1e5, 400, dtype=np.float32)
    logs = scipy.special.digamma(gamma.astype(np.float64))
    wanted = np.exp(logs - logs.max())
    found = np.asarray(topic_weights(gamma[None]))[0]
    told = wanted > 1e-10
    np.testing.assert_allclose(found[told], wanted[told], rtol=5e-6)
    assert (found[~told] <= 1.1e-10).all()
    assert (found > 0.0).all()


def test_a_document_has_the_same_bits_whatever_is_beside_it():
    model = LatentDirichlet(K, V, length=40.0, iterations=60, tolerance=1e-3)
    data, posterior = laid_out(truth()[1]), model.start
    posterior = DirichletEta(posterior.power + 20.0 * truth()[0])
    whole = local_of(model, posterior, data)
    order = np.random.default_rng(1).permutation(300)
    mixed = local_of(model, posterior, {name: part[order] for name, part in data.items()})
    other = {name: part.copy() for name, part in data.items()}
    others = np.arange(300) % 7 != 0
    changed = laid_out(truth(1)[1][:, ::-1])
    for name, part in other.items():
        part[others] = changed[name][others]
    beside = local_of(model, posterior, other)
    short = np.arange(300) % 3 != 0
    alone = local_of(model, posterior, {name: part[short] for name, part in data.items()})
    for name, part in whole.items():
        np.testing.assert_array_equal(mixed[name], part[order])
        np.testing.assert_array_equal(beside[name][~others], part[~others])
        np.testing.assert_array_equal(alone[name], part[short])


ODD_COUNTS = [0.0, 1.0, 3.0, -1.0, 0.5, math.nan, math.inf, 1e30, 3e38, 1e-40]
ODD_WORDS = [0, 1, 2, V - 1, V, -1, 2**31 - 1, -(2**31)]


@functools.cache
def recorded(clip_norm):
    recorder = Recorder(mechanisms.rounded_gaussian(2.0))
    solver = vips(
        MODEL.family, MODEL, sampling.full(RECORDS), recorder, clip_norm=clip_norm, rows_together=64
    )
    return solver, recorder


@pytest.mark.nightly(but=("0.3",))
@pytest.mark.parametrize("clip_norm", [0.3, 50.0])
@settings(max_examples=25)
@given(
    counts=st.lists(st.sampled_from(ODD_COUNTS), min_size=4, max_size=4),
    words=st.lists(st.sampled_from(ODD_WORDS), min_size=4, max_size=4),
    place=st.integers(0, RECORDS - 1),
)
def test_one_document_moves_a_total_by_at_most_the_clip_norm(clip_norm, counts, words, place):
    solver, recorder = recorded(clip_norm)
    task, everyone = first_task(solver), np.ones(RECORDS, bool)
    data = records()
    other = {name: part.copy() for name, part in data.items()}
    other["words"][place], other["counts"][place] = 0, 0.0
    other["words"][place, :4], other["counts"][place, :4] = words, counts
    without = everyone.copy()
    without[place] = False
    base, changed, gone = (
        total(solver, recorder, task, Shard(given_, mask))
        for given_, mask in ((data, everyone), (other, everyone), (data, without))
    )
    limit = clip_norm / base[1]
    assert np.linalg.norm(base[0] - gone[0]) <= limit
    assert np.linalg.norm(changed[0] - gone[0]) <= limit
    assert np.linalg.norm(base[0] - changed[0]) <= 2.0 * limit


class Watch:
    """Writes down what the parts of a sum are, while a solver adds them up."""

    def __init__(self, monkeypatch, threads, is_large=False):
        self.sums, self.bounds, self.rows, self.threads = [], [], [], set()
        monkeypatch.setattr(SOLVER, "thread_count", lambda: threads)
        monkeypatch.setattr(SOLVER, "is_large", lambda mask: is_large)
        honest = SOLVER.float_sum_of, SOLVER.on_devices

        def added(sums, blocks, block, clip_norm, rows, sampler, mechanism):
            self.sums = [np.asarray(part["words"]) for part in sums]
            self.bounds = [blocks, block, clip_norm, rows]
            taken = iter([{"words": part} for part in self.sums])
            return honest[0](taken, blocks, block, clip_norm, rows, sampler, mechanism)

        def beside(prepared, parts, threads):
            def noted(part):
                call = prepared(part)
                self.rows.append(np.array(part[1]))

                def computed():
                    self.threads.add(threading.current_thread().name)
                    return call()

                return computed

            return honest[1](noted, parts, threads)

        monkeypatch.setattr(SOLVER, "float_sum_of", added)
        monkeypatch.setattr(SOLVER, "on_devices", beside)


@functools.cache
def recorded_of_all(clip_norm, together=4096, model=MODEL):
    """Of all 300 documents."""
    recorder = Recorder(mechanisms.rounded_gaussian(2.0))
    sampler = sampling.full(300)
    solver = vips(
        model.family, model, sampler, recorder, clip_norm=clip_norm, rows_together=together
    )
    return solver, recorder


def total_of_all(monkeypatch, threads, clip_norm=0.3, together=4096, is_large=False):
    with monkeypatch.context() as patch:
        watch = Watch(patch, threads, is_large)
        solver, recorder = recorded_of_all(clip_norm, together)
        shard = shard_of(laid_out(truth()[1]))
        return *total(solver, recorder, first_task(solver), shard), watch


@pytest.mark.nightly
@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("clip_norm", [0.3, 50.0])
def test_the_number_of_processors_changes_no_bit(clip_norm, is_large, monkeypatch):
    alone, step, first = total_of_all(monkeypatch, 1, clip_norm, is_large=is_large)
    found, same, second = total_of_all(monkeypatch, 3, clip_norm, is_large=is_large)
    assert same == step
    np.testing.assert_array_equal(found, alone)
    # Before they are rounded to the grid, too.
    assert first.bounds == second.bounds
    for one, other in zip(first.sums, second.sums, strict=True):
        np.testing.assert_array_equal(one, other)
    assert first.threads == {threading.current_thread().name}
    assert all(name.startswith("part") for name in second.threads)
    assert np.abs(alone).max() > 1e4


@pytest.mark.nightly(but=("4096-True-3-128",))
@pytest.mark.parametrize(
    ("together", "is_large", "parts", "length"),
    [(4096, False, 4, 75), (50, False, 5, 60), (4096, True, 3, 128), (50, True, 5, 64)],
)
def test_parts_are_few_and_hold_as_many_rows_as_may_be_together(
    together, is_large, parts, length, monkeypatch
):
    _, _, watch = total_of_all(monkeypatch, 2, 0.3, together, is_large)
    assert [stands.shape for stands in watch.rows] == [(length,)] * parts
    assert sum(stands.sum() for stands in watch.rows) == 300
    # Eight roundings beside the sum: what float_sum's proof is told.
    assert watch.bounds == [parts, length + 8, 0.3, parts * length]


@pytest.mark.nightly
def test_an_accelerator_adds_up_in_one_program_what_parts_do(monkeypatch):
    parts, step, _ = total_of_all(monkeypatch, 2)
    with monkeypatch.context() as patch:
        watch = Watch(patch, 1)
        patch.setattr("jax.default_backend", lambda: "gpu")
        solver, recorder = recorded_of_all(0.3)
        shard = shard_of(laid_out(truth()[1]))
        whole, same = total(solver, recorder, first_task(solver), shard)
    assert same == step
    assert not watch.sums
    # In steps of the grid: another number of parts moves the limit that documents are clipped to by 1e-11.
    assert np.abs(whole - parts).max() <= 1.0
    assert np.abs(whole).max() > 1e4


def moved_in_parts(solver, recorder, place):
    """By how much a total moves when a document leaves, in the unit of the clip norm."""
    data, task = laid_out(truth()[1]), first_task(solver)
    everyone = np.ones(300, bool)
    without = everyone & (np.arange(300) != place)
    base, gone = (total(solver, recorder, task, Shard(data, mask)) for mask in (everyone, without))
    return np.linalg.norm(base[0] - gone[0]) * base[1]


@pytest.mark.parametrize("place", [0, 1, 150, 299])
def test_one_document_moves_a_total_of_parts_by_the_clip_norm(place):
    assert 0.28 < moved_in_parts(*recorded_of_all(0.3), place) <= 0.3


def test_it_is_found_when_parts_share_a_document(monkeypatch):
    honest = striped

    def sharing(indices, mask, parts):
        # The first document of all in each part.
        return [
            (np.append(rows[:-1], rows[:1] * 0), np.append(stands[:-1], mask[0]))
            for rows, stands in honest(indices, mask, parts)
        ]

    monkeypatch.setattr(SOLVER, "striped", sharing)
    assert moved_in_parts(*recorded_of_all(0.3), 0) > 1.1


@dataclasses.dataclass(frozen=True)
class Coarse(LatentDirichlet):
    """Says that its norms may be off by a twentieth."""

    @property
    def norm_error(self):
        return 0.05


@pytest.mark.nightly
def test_parts_are_clipped_to_less_where_norms_are_inexact():
    model = Coarse(K, V, length=40.0, iterations=20, tolerance=0.0)
    exact, coarse = (
        moved_in_parts(*recorded_of_all(0.3, 4096, kind), 150) for kind in (MODEL, model)
    )
    assert coarse == pytest.approx(0.95 * exact, rel=5e-3)


def test_one_word_written_many_times_or_an_unknown_one_is_no_document():
    """Its statistic would have up to √L times the norm that is computed of distinct words."""
    solver, recorder = recorded(50.0)
    twice = {"words": np.full((1, L), 5, np.int32), "counts": np.ones((1, L), np.float32)}
    falling = {"words": np.array([[6, 5] + [0] * (L - 2)], np.int32), "counts": twice["counts"]}
    gap = {"words": np.arange(L, dtype=np.int32)[None], "counts": np.ones((1, L), np.float32)}
    gap["counts"][0, 3] = 0.0
    beyond = {"words": np.arange(L, dtype=np.int32)[None] + V - L + 1, "counts": twice["counts"]}
    for odd in (twice, falling, gap, beyond):
        found, _ = total(solver, recorder, first_task(solver), shard_of(odd, RECORDS))
        assert not found.any()
    sound, step = total(solver, recorder, first_task(solver), shard_of(records(1), RECORDS))
    assert (sound * step).sum() * MODEL.blocks[0].typical == pytest.approx(90.0, rel=1e-3)


@pytest.mark.nightly
def test_words_may_be_written_as_floats_and_only_whole_ones_count():
    solver, recorder = recorded(50.0)
    wanted, _ = total(solver, recorder, first_task(solver), shard_of(records(2), RECORDS))
    floats = {name: part.astype(np.float64) for name, part in records(2).items()}
    found, _ = total(solver, recorder, first_task(solver), shard_of(floats, RECORDS))
    np.testing.assert_array_equal(found, wanted)
    floats["words"] += 0.5
    found, _ = total(solver, recorder, first_task(solver), shard_of(floats, RECORDS))
    assert not found.any()


def test_a_clipped_document_counts_with_the_clip_norm():
    solver, recorder = recorded(0.3)
    found, step = total(solver, recorder, first_task(solver), shard_of(records(1), RECORDS))
    # The rest is room for rounding 210 numbers to the grid.
    assert 0.285 < np.linalg.norm(found * step) <= 0.3


def noise_free(parts):
    size = max(len(part["words"]) for part in parts)
    solver = vips(
        MODEL.family, MODEL, sampling.full(size), mechanisms.gaussian(0.0), clip_norm=math.inf
    )
    return federate(solver, [shard_of(part, size) for part in parts], 3)[-1].reported


@pytest.mark.nightly
def test_holders_get_what_one_with_all_documents_gets():
    data = records()
    pooled = noise_free([data])
    parts = [slice(0, 0), slice(0, 27), slice(27, RECORDS)]
    cut = noise_free([{name: part[piece] for name, part in data.items()} for piece in parts])
    np.testing.assert_allclose(cut.power + 1.0, pooled.power + 1.0, rtol=1e-6)


@pytest.mark.parametrize("tidy", ["simplex", "relu", "threshold"])
@pytest.mark.parametrize("spread", [0.1, 1e3, 1e6])
def test_posteriors_are_proper_whatever_the_noise(tidy, spread):
    model = LatentDirichlet(K, V, tidy=tidy)
    noise = np.random.default_rng(0).normal(0.0, spread, (K, V))
    q = model.posterior(DirichletEta(truth()[0] * 100.0 + noise), {"words": spread})
    assert model.family.is_proper(q)
    assert tree.is_finite(q)
    again = model.posterior(DirichletEta(q.power - (model.eta - 1.0)), {"words": spread})
    np.testing.assert_allclose(again.power, q.power, rtol=1e-9, atol=1e-9 * spread)
    weights = model.messages(q)["weights"]
    assert np.isfinite(weights).all()
    assert (weights.max(axis=1) == 1.0).all()
    lost = model.posterior(DirichletEta(np.full((K, V), -spread)), {"words": spread})
    np.testing.assert_array_equal(lost.power, model.prior.power)


def test_a_public_mass_is_the_sum_of_the_concentrations():
    model = LatentDirichlet(K, V, mass=500.0)
    noise = np.random.default_rng(0).normal(0.0, 10.0, (K, V))
    q = model.posterior(DirichletEta(noise), {"words": 10.0})
    assert (q.power + 1.0 - model.eta).sum() == pytest.approx(500.0)


@pytest.mark.nightly
def test_topics_are_found_and_told():
    topics, counts = truth()
    model = LatentDirichlet(K, V, length=40.0, concentration=0.2, iterations=50, seed=3)
    size = 240
    solver = vips(
        model.family, model, sampling.full(size), mechanisms.gaussian(0.0), clip_norm=math.inf
    )
    q = federate(solver, [shard_of(laid_out(counts[:size]))], 25)[-1].reported
    unseen = laid_out(counts[size:])
    found = completion_perplexity(model, q, unseen, seed=1)
    best = completion_perplexity(model, DirichletEta(1e6 * topics + 1e-9 - 1.0), unseen, seed=1)
    frequencies = np.broadcast_to(counts[:size].sum(0) + 0.1, (K, V))
    flat = completion_perplexity(model, DirichletEta(frequencies - 1.0), unseen, seed=1)
    assert found < best + 0.25 * (flat - best)
    words = [f"w{index}" for index in range(V)]
    told = top_words(q, words, count=5)
    means = (q.power + 1.0) / (q.power + 1.0).sum(axis=1, keepdims=True)
    nearest = np.abs(topics[:, None] - means).sum(axis=2) / 2.0
    assert sorted(nearest.argmin(axis=1).tolist()) == [0, 1, 2]
    assert nearest.min(axis=1).max() < 0.25
    for topic, mean in zip(told, means, strict=True):
        assert [name for name, _ in topic] == [f"w{index}" for index in np.argsort(-mean)[:5]]
        assert [chance for _, chance in topic] == sorted(mean, reverse=True)[:5]
    shares = document_topics(model, q, unseen)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    empty = document_topics(model, q, laid_out(np.zeros((1, V))))
    np.testing.assert_allclose(empty, 1.0 / K)


def test_completion_predicts_hidden_words_with_known_topics():
    """Two topics without a common word: a document's topic is clear, and its words are even odds."""
    model = LatentDirichlet(2, 4, concentration=0.01)
    q = DirichletEta(1e6 * np.array([[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]]) - 1.0 + 1e-6)
    counts = np.array([[20, 20, 0, 0], [0, 0, 15, 25]] * 10)
    assert completion_perplexity(model, q, laid_out(counts, 4), seed=0) == pytest.approx(
        2.0, rel=0.01
    )
    # A document of one word is predicted from nothing: its word has not been seen.
    lone = laid_out(np.eye(4, dtype=int)[np.arange(40) % 4], 4)
    assert completion_perplexity(model, q, lone, seed=0) == pytest.approx(4.0, rel=1e-3)


def test_the_signal_is_measured_against_the_noise_that_the_server_knows():
    model = LatentDirichlet(K, V, length=40.0, iterations=2)
    rounds, sigma, clip = 6, 1.5, 0.4
    solver = vips(
        model.family,
        model,
        sampling.poisson(0.25, RECORDS),
        mechanisms.gaussian(sigma),
        clip_norm=clip,
        averaging=0.6,
    )
    prior, zeros, standing = model.prior, model.family.zeros(), None
    for _ in range(rounds):
        fold = Fold(prior, prior, prior, {"c": zeros}, {"c": prior}, 1.0)
        standing = solver.stand(model.family, fold, standing)
    spread = solver.stand.keywords["noise"]["words"] * math.sqrt(standing.squares)
    wanted = 1000 * 40.0 * clip / (K * V) / spread
    found = signal_to_noise(model, 1000, 0.25, rounds, sigma, clip, averaging=0.6)
    assert found.ratio == pytest.approx(wanted, rel=1e-9)
    assert found.warning == ""
    assert "exceeds" in signal_to_noise(model, 10, 0.25, rounds, sigma, clip).warning
    assert signal_to_noise(model, 10, 0.25, rounds, 0.0).ratio == math.inf


def test_a_server_makes_the_model_anew_from_its_table():
    model = LatentDirichlet(K, V, concentration=0.3, tidy="relu", seed=5)
    made = from_table(json.loads(json.dumps(to_table(model))))
    assert made == model
    assert tree.equal(made.start, model.start)
    assert len(model.names) == model.family.size


def test_the_module_needs_no_jax():
    code = (
        "import sys; from fedvi.models.lda import LatentDirichlet; m = LatentDirichlet(2, 5); "
        "m.messages(m.posterior(m.family.zeros(), {'words': 1.0})); m.start; "
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_counts_of_few_bits_are_judged_as_numbers() -> None:
    counts = np.array([[1, 2], [1, np.inf], [1, np.nan], [0, 1]], np.float16)
    words = np.tile(np.array([[0, 1]], np.int8), (4, 1))
    found = LatentDirichlet(2, 5).sound({"words": words, "counts": counts})
    np.testing.assert_array_equal(found, [True, False, False, False])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"topics": 0}, r"topics is 0, expected at least 1"),
        ({"vocabulary": 1}, r"vocabulary is 1, expected at least 2"),
        ({"topics": 6}, r"topics is 6, expected at most the 5 words of vocabulary"),
        ({"topics": 2.5}, r"topics is 2\.5, expected a whole number of at least 1"),
        ({"topics": True}, r"topics is True, expected a whole number"),
        ({"vocabulary": "5"}, r"vocabulary is '5', expected a whole number of at least 2"),
        ({"distinct": -3}, r"distinct is -3, expected at least 1"),
        ({"distinct": 0}, r"distinct is 0, expected at least 1"),
        ({"distinct": 1.5}, r"distinct is 1\.5, expected a whole number"),
        ({"distinct": 6}, r"distinct is 6, expected at most the 5 words of vocabulary"),
        ({"seed": -1}, r"seed is -1, expected at least 0"),
        ({"iterations": 0}, r"iterations is 0"),
        ({"iterations": 20.0}, r"iterations is 20\.0, expected a whole number"),
        ({"length": math.inf}, r"length is inf"),
        ({"concentration": 0.0}, r"concentration is 0.0"),
        ({"concentration": 1e-30}, r"^concentration is 1e-30, expected a number from 1e-06 to"),
        ({"topic_concentration": 1e30}, r"^topic_concentration is 1e\+30, expected a number from"),
        ({"tolerance": math.nan}, r"tolerance is nan"),
        ({"tidy": "clip"}, r"tidy is 'clip', expected one of 'simplex', 'relu', 'threshold'"),
        ({"tidy": "relu", "mass": 1.0}, r"mass is 1.0, which only"),
    ],
)
def test_fields_out_of_range_are_refused(monkeypatch, fields, message):
    # As at a user's, who has no checks of types at run time.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(errors.ModelError, match=message):
        LatentDirichlet(**{"topics": 2, "vocabulary": 5, **fields})


def test_as_many_topics_and_distinct_words_as_words_are_the_most():
    model = LatentDirichlet(5, 5, distinct=5)
    made = model.made_up(30, np.random.default_rng(0))
    assert {name: column.shape for name, column in made.items()} == dict.fromkeys(made, (30, 5))
    assert model.sound(made).all()


def test_only_words_of_the_vocabulary_and_counts_that_float32_holds_are_sound():
    model = LatentDirichlet(2, 5)
    words = np.array([[1.0, 3.0], [1.0, 2.5], [1.0, np.nan], [3.0, 1.0], [1.0, 5.0], [1.0, 3.0]])
    counts = np.array([[1.0, 2.0**24]] + [[1.0, 1.0]] * 4 + [[1.0, 2.0**24 + 2.0]])
    assert model.sound({"words": words, "counts": counts}).tolist() == [True] + [False] * 5


ODD_DOCUMENTS = {
    "a word of -1": ([[1, -1]], [[9, 1]]),
    "words that fall": ([[3, 1]], [[9, 1]]),
    "a word twice": ([[3, 3]], [[9, 1]]),
    "a gap": ([[1, 3]], [[0, 9]]),
    "an unknown word": ([[1, 4]], [[9, 1]]),
    "a word that wraps": ([[1, 2**32 + 2]], [[9, 1]]),
    "half a word": ([[1.0, 2.5]], [[9, 1]]),
    "a count of NaN": ([[1, 2]], [[9, np.nan]]),
    "an infinite count": ([[1, 2]], [[9, np.inf]]),
    "a vast count": ([[1, 2]], [[9, 1e39]]),
    "a negative count": ([[1, 2]], [[9, -1]]),
}


@pytest.mark.parametrize("document", ODD_DOCUMENTS.values(), ids=ODD_DOCUMENTS.keys())
def test_an_odd_document_is_refused_by_whatever_seed_its_words_are_parted(document):
    model = LatentDirichlet(2, 4)
    documents = dict(zip(("words", "counts"), map(np.array, document), strict=True))
    for seed in range(6):
        with pytest.raises(
            errors.ModelError, match=r"do not increase, or are outside the vocabulary"
        ):
            completion_perplexity(model, model.start, documents, seed)
    with pytest.raises(errors.ModelError, match=r"do not increase, or are outside the vocabulary"):
        document_topics(model, model.start, documents)


@pytest.mark.parametrize("helper", [document_topics, lambda *a: completion_perplexity(*a, seed=0)])
@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ({"words": np.array([[1, 2]])}, r"documents hold no array 'counts'"),
        ({"words": np.array([1, 2]), "counts": np.array([1, 1])}, r"expected numbers of one shape"),
        ({"words": np.array([[1, 2]]), "counts": np.array([[1]])}, r"of shape \(1, 2\) and counts"),
        ({"words": np.array([["a"]]), "counts": np.array([[1]])}, r"words are <U1"),
        ({"words": np.zeros((2, 0)), "counts": np.zeros((2, 0))}, r"of shape \(2, 0\)"),
    ],
)
def test_arrays_that_hold_no_documents_are_refused(helper, documents, message):
    with pytest.raises(errors.DataError, match=message):
        helper(LatentDirichlet(2, 4), LatentDirichlet(2, 4).start, documents)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"records": 0}, r"records is 0, expected a whole number of at least 1"),
        ({"rounds": 0}, r"rounds is 0, expected a whole number of at least 1"),
        ({"rounds": 2.5}, r"rounds is 2\.5, expected a whole number"),
        ({"rate": 0.0}, r"rate is 0\.0, expected a number above 0 and at most 1"),
        ({"rate": 1.5}, r"rate is 1\.5"),
        ({"rate": math.nan}, r"rate is nan"),
        ({"noise_multiplier": -1.0}, r"noise_multiplier is -1\.0, expected a number of at least 0"),
        ({"clip_norm": 0.0}, r"clip_norm is 0\.0, expected a finite number above 0"),
        ({"clip_norm": math.inf}, r"clip_norm is inf"),
        ({"averaging": 1.5}, r"averaging is 1\.5, expected a number from 0 to 1"),
        ({"delay": 0.5}, r"delay is 0\.5, expected a number of at least 1"),
    ],
)
def test_a_signal_of_numbers_out_of_range_is_refused(monkeypatch, changed, message):
    # As at a user's, who has no checks of types at run time.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    given_ = {"records": 100, "rate": 0.5, "rounds": 3, "noise_multiplier": 1.0} | changed
    with pytest.raises(errors.ConfigError, match=message):
        signal_to_noise(MODEL, **given_)


@pytest.mark.nightly
def test_what_helpers_cannot_read_is_refused():
    q = MODEL.start
    with pytest.raises(errors.ModelError, match=r"there are 2 words, expected the vocabulary's 70"):
        top_words(q, ["a", "b"])
    odd = records(2)
    odd["words"][0] = 0
    with pytest.raises(errors.ModelError, match=r"words do not increase"):
        document_topics(MODEL, q, odd)
    odd["counts"] *= 0.5
    with pytest.raises(errors.ModelError, match=r"not a whole number"):
        completion_perplexity(MODEL, q, odd, seed=0)
    with pytest.raises(errors.ModelError, match=r"no document has a word"):
        completion_perplexity(MODEL, q, laid_out(np.zeros((2, V))), seed=0)
