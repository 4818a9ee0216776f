"""What a server makes of noisy sums of statistics: running means, how much noise is left, and q."""

import math
from functools import partial

import numpy as np
import pytest

from fedvi import errors, expfam
from fedvi.expfam import tree
from fedvi.expfam.gaussian import GaussianEta
from fedvi.models.regression_statistics import KnownNoise, PolyaGamma
from fedvi.updates.base import Fold, Task
from fedvi.updates.conjugate import packed
from fedvi.updates.noise_aware import anew
from fedvi.updates.running_means import step_of
from fedvi.updates.statistics import broadcast, finish_statistics, stand_statistics

SIZE = 2
FAMILY = expfam.full_gaussian(SIZE)
MODEL = PolyaGamma(("a", "b"), (2.0, 1.0), 1.5)
WEIGHTS = {"h": 2.0, "J": 0.5}
PRIOR = tree.freeze(MODEL.prior)


def settings(averaging=1.0, delay=1.0, model=MODEL):
    return {"model": model, "averaging": averaging, "delay": delay}


def task(visit=0, factor=None, version=0):
    return Task("c/0", "c", visit, version, PRIOR, factor or FAMILY.zeros(), 1.0)


def noisy(generator, sd):
    """Numbers of an answer without records, in the unit of the sums times the weights."""
    return {
        "h": generator.normal(0.0, sd["h"] * WEIGHTS["h"], 2),
        "J": generator.normal(0.0, sd["J"] * WEIGHTS["J"], 3),
    }


def fold_of(factors, asked):
    return Fold(
        PRIOR, PRIOR, tree.total(factors.values(), PRIOR), factors, dict.fromkeys(asked, PRIOR), 1.0
    )


def test_sums_are_scaled_by_public_numbers_alone():
    J = np.array([[2.0, 0.5], [0.5, 1.0]])
    value = {
        "h": 2.0 * np.array([1.0, -3.0]),
        "J": 0.5 * packed(J, MODEL.blocks[1]),
    }
    delta = finish_statistics(value, task(), weights=WEIGHTS, rate=0.1, **settings()).delta
    np.testing.assert_allclose(delta.h, [10.0, -30.0], rtol=1e-14)
    np.testing.assert_allclose(delta.J, 10.0 * J, rtol=1e-14)


@pytest.mark.parametrize(
    "changed", [{"h": np.zeros(3)}, {"J": np.zeros((2, 2))}, {"more": np.zeros(1)}]
)
def test_an_answer_of_other_arrays_is_refused(changed):
    value = {"h": np.zeros(2), "J": np.zeros(3), **changed}
    with pytest.raises(errors.ProtocolError, match=r"holds arrays"):
        finish_statistics(value, task(), weights=WEIGHTS, rate=1.0, **settings())


@pytest.mark.parametrize(("averaging", "weights"), [(1.0, [0.25] * 4), (0.0, [0.0, 0.0, 0.0, 1.0])])
def test_a_factor_is_the_running_mean_of_fresh_ones(averaging, weights):
    generator = np.random.default_rng(0)
    factor, fresh = FAMILY.zeros(), []
    for visit in range(4):
        value = noisy(generator, {"h": 1.0, "J": 1.0})
        finish = partial(finish_statistics, weights=WEIGHTS, rate=1.0, **settings(averaging))
        fresh.append(finish(value, task()).delta)
        factor = tree.add(factor, finish(value, task(visit, factor)).delta)
    for name in ("h", "J"):
        mean = sum(w * getattr(eta, name) for w, eta in zip(weights, fresh, strict=True))
        np.testing.assert_allclose(getattr(factor, name), mean, rtol=1e-12, atol=1e-14)


class Told(KnownNoise):
    """Notes what noise the server tells it of."""

    heard: list[dict[str, float]] = []  # noqa: RUF012

    def posterior(self, total, noise):
        self.heard.append(dict(noise))
        return super().posterior(total, noise)


@pytest.mark.parametrize("averaging", [0.0, 0.6, 1.0])
def test_the_noise_that_a_model_is_told_is_what_its_total_has(averaging):
    """Three clients with 5, 2 and 1 answers; the sd of 4,000 totals of noise, by Monte Carlo."""
    one, model = {"h": 3.0, "J": 0.7}, Told(("a", "b"), (2.0, 1.0), 1.5)
    generator = np.random.default_rng(1)
    visits = {"c0": 5, "c1": 2, "c2": 1}
    standing = None
    for turn in range(5):
        asked = [name for name, count in visits.items() if turn >= 5 - count]
        factors = dict.fromkeys(asked, FAMILY.zeros())  # all that have answered go on answering
        standing = stand_statistics(
            FAMILY, fold_of(factors, asked), standing, noise=one, **settings(averaging, model=model)
        )
    told = Told.heard[-1]
    totals = []
    for _ in range(4000):
        parts = []
        for count in visits.values():
            factor = np.zeros(5)
            for visit in range(count):
                fresh = np.concatenate(list(noisy(generator, one).values()))
                factor += step_of(visit, averaging, 1.0) * (fresh - factor)
            parts.append(factor)
        totals.append(np.sum(parts, axis=0))
    sd = np.std(totals, axis=0) / np.repeat([WEIGHTS["h"], WEIGHTS["J"]], [2, 3])
    # 8,000 and 12,000 numbers: within 4 % at 4.5 of the estimate's own sds; the seed is fixed.
    assert np.sqrt((sd[:2] ** 2).mean()) == pytest.approx(told["h"], rel=0.04)
    assert np.sqrt((sd[2:] ** 2).mean()) == pytest.approx(told["J"], rel=0.04)
    assert standing.folds == 5


def test_a_client_that_was_divided_out_leaves_no_noise_and_the_others_keep_theirs():
    one = {"h": 3.0, "J": 0.7}
    stand = partial(stand_statistics, FAMILY, noise=one, **settings())
    factors = dict.fromkeys(("c0", "c1"), FAMILY.zeros())
    standing = None
    for _ in range(4):
        standing = stand(fold_of(factors, factors), standing)
    assert standing.squares == pytest.approx(2 * 0.25)
    left = {"c0": factors["c0"]}
    after = stand(fold_of(left, ()), anew(standing, left, 4.0))
    assert after.squares == pytest.approx(0.25)
    assert after.weights == {"c0": standing.weights["c0"]}
    later = stand(fold_of(left, left), after)
    assert later.squares == pytest.approx(0.2)
    # Also where nobody began anew.
    assert stand(fold_of(left, left), standing).squares == pytest.approx(0.2)


def test_the_first_tasks_are_answered_at_the_public_start():
    class Starting(KnownNoise):
        @property
        def start(self):
            return GaussianEta(np.ones(2), np.eye(2))

    model = Starting(("a", "b"), (2.0, 1.0), 1.5)
    assert broadcast(model, task(version=0)).h.tolist() == [1.0, 1.0]
    later = task(version=1)._replace(posterior=tree.scale(PRIOR, 2.0))
    assert broadcast(model, later) is later.posterior
    # A client was removed, and nobody has answered: topics that are all alike would stay so.
    assert broadcast(model, task(version=1)).h.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("learn_prior", ["no", "shared", "each"])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e3, 1e8])
def test_q_is_proper_and_finite_whatever_the_noise(learn_prior, scale):
    """Up to 10⁸ times the signal of a record: hyper-parameters have public floors and ceilings."""
    size = 30
    family = expfam.full_gaussian(size)
    names = tuple(f"x{index}" for index in range(size))
    model = PolyaGamma(names, (2.5,) * size, math.sqrt(size), learn_prior)
    generator = np.random.default_rng(2)
    prior = tree.freeze(model.prior)
    stand = partial(
        stand_statistics, family, noise={"h": scale, "J": scale}, **settings(model=model)
    )
    for _ in range(5):
        noise = (
            generator.normal(0.0, scale, (size, size)) / 2.0 if scale else np.zeros((size, size))
        )
        factor = GaussianEta(generator.normal(0.0, scale, size), noise + noise.T)
        fold = Fold(prior, prior, tree.add(prior, factor), {"c": factor}, {"c": prior}, 1.0)
        standing = stand(fold, None)
        mean, sd = family.moments(standing.reported)
        assert family.is_proper(standing.reported)
        assert np.isfinite(mean).all()
        assert np.isfinite(sd).all()
        # Ten times what the widest prior that may be learnt has.
        assert sd.max() <= 10.0 * 2.5 * 10.0
