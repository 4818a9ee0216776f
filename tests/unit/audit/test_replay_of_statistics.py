"""The audit of VIPS: what it releases is as charged, and sensitivities that are not joint are found."""

import dataclasses
import importlib
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from fedvi import expfam
from fedvi.audit.findings import Finding
from fedvi.audit.recording import Recorder, SamplerRecorder
from fedvi.audit.replay import replay
from fedvi.expfam import tree
from fedvi.inference.solvers import vips
from fedvi.models.lda import LatentDirichlet
from fedvi.models.regression_statistics import PolyaGamma
from fedvi.privacy import accountants, events, mechanisms, sampling
from fedvi.privacy.random import insecure_root, key
from fedvi.updates.base import Fold, LocalSolver, Shard, Task
from tests.vips import answer, first_task, model_of

module = importlib.import_module("fedvi.inference.solvers.vips")

SIZE, SLOTS = 3, 32
FIELDS = (("a", "b", "c"), (2.5,) * SIZE, 2.0)
HONEST = PolyaGamma(*FIELDS)


@dataclasses.dataclass(frozen=True)
class BlockByBlock(PolyaGamma):
    """Every block's own bound, sold as that of both: the largest norm of any block."""

    def square_norms(self, messages: Any, local: Any, records: Any) -> Any:
        found = super().square_norms(messages, local, records)
        weigh = {block.name: block.share / block.typical**2 for block in self.blocks}
        first, second = (weigh[name] * found[name] for name in ("h", "J"))
        largest = jnp.maximum(first, second)
        return {"h": largest / weigh["h"], "J": jnp.zeros_like(largest)}


@dataclasses.dataclass(frozen=True)
class NumberByNumber(PolyaGamma):
    """The bound of one coordinate, sold as that of all: the largest number of each block."""

    def square_norms(self, messages: Any, local: Any, records: Any) -> Any:
        largest = (records["x"] ** 2).max(axis=1)
        return {"h": local["slope"] ** 2 * largest, "J": (local["bend"] * largest) ** 2}


@dataclasses.dataclass(frozen=True)
class Unclipped(PolyaGamma):
    """Norms that are always short."""

    def square_norms(self, messages: Any, local: Any, records: Any) -> Any:
        nothing = jnp.zeros_like(local["slope"])
        return {"h": nothing, "J": nothing}


def product_keys(client: str, name: str) -> Any:
    secret = insecure_root(1).secret(client, name)
    return lambda purpose: key(secret, purpose)


def audited(
    model: Any = HONEST,
    rate: float = 1.0,
    mechanism: Any = None,
    records: Any = None,
    changed: Callable[[LocalSolver], LocalSolver] = lambda solver: solver,
) -> list[Finding]:
    family = expfam.full_gaussian(SIZE) if records is None else model.family
    recorder = Recorder(mechanism or mechanisms.rounded_gaussian(2.0))
    whole = sampling.full(SLOTS)
    sampler = SamplerRecorder(whole if rate == 1.0 else sampling.poisson(rate, SLOTS))
    solver = changed(vips(family, model, sampler, recorder, clip_norm=0.7))
    generator = np.random.default_rng(0)
    mask = np.arange(SLOTS) < 12
    if records is None:
        records = {
            "x": 5.0 * generator.normal(size=(SLOTS, SIZE)) * mask[:, None],
            "y": generator.integers(0, 2, SLOTS) * mask.astype(float),
        }
    prior = tree.freeze(model_of(solver).prior)

    def advance(task: Task, answer: Any) -> Task:
        factor = tree.add(task.factor, answer.delta)
        fold = Fold(prior, prior, tree.add(prior, factor), {"a": factor}, {"a": prior}, 1.0)
        q = solver.stand(family, fold, None).handed_out
        visit = task.visit + 1
        return task._replace(posterior=q, factor=factor, visit=visit, version=visit)

    task, shard = first_task(solver, "a"), Shard(records, mask)
    return replay(solver, recorder, product_keys, task, shard, ("a", "b"), 2, advance, sampler)


def outcome(*arguments: Any) -> dict[str, bool | None]:
    return {finding.check: finding.passed for finding in audited(*arguments)}


@pytest.mark.nightly(but=("full",))
@pytest.mark.parametrize("rate", [1.0, 0.3], ids=["full", "poisson"])
def test_the_code_as_it_is_passes(rate: float) -> None:
    found = audited(HONEST, rate)
    assert all(finding.passed for finding in found), found
    (moved,) = (f for f in found if f.check == "one record added or removed")
    assert moved.numbers["exact"]
    # Hostile records are clipped, not lost; the rest is room for rounding to the grid.
    assert 0.98 < moved.numbers["largest"] <= 1.0


@pytest.mark.nightly(only=("model2",))
@pytest.mark.parametrize(
    "model", [BlockByBlock(*FIELDS), NumberByNumber(*FIELDS), Unclipped(*FIELDS)]
)
def test_a_sensitivity_that_is_not_joint_is_found(model: Any) -> None:
    found = outcome(model)
    assert found["one record added or removed"] is False
    # Curvatures are never negative, so that one block's bound is two blocks' where one of them swaps.
    assert found["one record substituted"] is isinstance(model, BlockByBlock)
    assert found["noise scale"] is True  # nothing else would tell


def test_off_diagonal_entries_that_weigh_too_much_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """× 2, as a matrix whose halves are both released, instead of √2."""
    honest = module.packed

    def heavy(array: Any, block: Any) -> Any:
        rows, columns = np.tril_indices(block.shape[-1])
        twice = jnp.asarray(np.where(rows == columns, 1.0, 2.0))
        return honest(array, block) if not block.symmetric else array[rows, columns] * twice

    monkeypatch.setattr(module, "packed", heavy)
    # A model of its own, so that no solver compiled elsewhere is met.
    assert outcome(PolyaGamma(*FIELDS, ridge=0.4))["one record added or removed"] is False


def test_noise_of_each_block_as_if_it_were_alone_is_found() -> None:
    """Noise for a shift of C/√2, sold as noise for C: two blocks, each with half of C²."""
    whole = mechanisms.rounded_gaussian(2.0)
    share = mechanisms.rounded_gaussian(2.0 / math.sqrt(2.0))

    class Sold(type(share)):  # type: ignore[misc]
        def event(self, shift: Any) -> Any:
            return whole.event(shift)

    assert (
        outcome(HONEST, 1.0, Sold(share.noise_multiplier, share.fineness))["noise scale"] is False
    )


TOPICS = LatentDirichlet(3, 20, length=9.0, distinct=6)


def documents() -> dict[str, np.ndarray]:
    made = TOPICS.made_up(SLOTS, np.random.default_rng(0))
    mask = (np.arange(SLOTS) < 12)[:, None]
    return {name: (column * mask).astype(np.float64) for name, column in made.items()}


@pytest.mark.nightly
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rate", [1.0, 0.3], ids=["full", "poisson"])
def test_topics_pass_on_one_processor_and_on_two(
    rate: float, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "thread_count", lambda: threads)
    found = audited(TOPICS, rate, None, documents())
    assert all(finding.passed for finding in found), found


@pytest.mark.nightly
def test_documents_that_are_drawn_and_noised_by_one_key_are_found() -> None:
    def reused(solver: LocalSolver) -> LocalSolver:
        def update(key_of: Any, *rest: Any) -> Any:
            return solver.update(lambda purpose: key_of("sampling"), *rest)

        return solver._replace(update=update)

    found = audited(TOPICS, 0.3, None, documents(), reused)
    assert [finding.check for finding in found if not finding.passed] == ["sampling keys"]


CANARIES, DELTA, NOISE = 160, 1e-5, 2.0


def guess_probability(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """Returns the bound on P[at least v of r guesses are right] for m records of which coins were tossed.

    With an (ε, δ)-DP release under add/remove it is f(v) + 2mδ · max_{1≤i≤v} (f(v−i) − f(v)) / i, where
    f(v) = P[Binomial(r, e^ε/(1+e^ε)) ≥ v].

    Source: Steinke, Nasr and Jagielski (2023), arXiv:2305.08846, Theorem 5.2 and Algorithm 1.

    >>> round(guess_probability(100, 10, 10, 0.0, 0.0) * 2**10, 6)
    1.0
    """
    tail = scipy.stats.binom.sf(np.arange(v, -1, -1) - 1, r, 1.0 / (1.0 + math.exp(-epsilon)))
    steepest = float(((tail[1:] - tail[0]) / np.arange(1, v + 1)).max()) if v else 0.0
    return min(1.0, float(tail[0]) + 2.0 * m * delta * steepest)


def epsilon_lower(m: int, r: int, v: int, delta: float, error: float) -> float:
    """Returns the largest ε that v right guesses of r refute at this error; 0 if none."""
    low, high = 0.0, 30.0
    if guess_probability(m, r, v, low, delta) > error:
        return 0.0
    while high - low > 1e-4:
        middle = (low + high) / 2.0
        if guess_probability(m, r, v, middle, delta) > error:
            high = middle
        else:
            low = middle
    return low


def epsilon_found(kind: type[PolyaGamma], noise: float) -> float:
    """Bounds ε from below (95 %) by one run with records along axes of their own, each in by a coin."""
    family = expfam.full_gaussian(CANARIES)
    names = tuple(f"x{index}" for index in range(CANARIES))
    model = kind(names, (2.5,) * CANARIES, 1.0)
    mechanism = mechanisms.rounded_gaussian(noise)
    solver = vips(family, model, sampling.full(CANARIES), mechanism, clip_norm=0.5)
    coins = np.random.default_rng(7).integers(0, 2, CANARIES).astype(bool)
    # Vast, so that every one of them is at the clip norm.
    x = 1e3 * np.eye(CANARIES, dtype=np.float32)
    shard = Shard({"x": x * coins[:, None], "y": coins.astype(np.float32)}, coins)
    task = first_task(solver)
    sums = answer(solver, task, shard)
    # A canary's own direction: what it adds to h and to its diagonal entry of J.
    one = {"x": x[:1], "y": np.ones(1, np.float32)}
    local = model.expected(model.messages(task.posterior), one)
    weigh = {block.name: math.sqrt(block.share) / block.typical for block in model.blocks}
    direction = np.array(
        [weigh["h"] * local["slope"][0] * 1e3, weigh["J"] * local["bend"][0] * 1e6]
    )
    direction /= np.linalg.norm(direction)
    diagonal = np.cumsum(np.arange(1, CANARIES + 1)) - 1
    seen = direction[0] * sums["h"] + direction[1] * sums["J"][diagonal]
    order = np.argsort(seen)
    best = 0.0
    for guesses in (16, 40, 120):
        half = guesses // 2
        right = int(coins[order[-half:]].sum() + (~coins[order[:half]]).sum())
        best = max(best, epsilon_lower(CANARIES, guesses, right, DELTA, 0.05 / 3.0))
    return best


@pytest.mark.nightly
def test_canaries_at_the_clip_norm_tell_no_more_than_what_is_charged() -> None:
    claimed = accountants.pld("add_remove").epsilon(events.Gaussian(NOISE), DELTA)
    assert epsilon_found(PolyaGamma, NOISE) <= claimed < 2.5
    # Where nothing is clipped, all are told apart, and ε is refuted.
    assert epsilon_found(Unclipped, NOISE) > claimed
