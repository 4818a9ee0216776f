"""Coordinates of a regression's columns: what they preserve, and what a survey makes of them, and when."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvi import expfam
from fedvi.expfam.gaussian import GaussianEta
from fedvi.updates.base import Fold, Standing
from fedvi.updates.coordinates import (
    EMPHASIS,
    Coordinates,
    Foreseen,
    OutcomeSurvey,
    Survey,
    fold_inward,
    length_for,
    of_sizes,
    of_survey,
    planned_survey,
    root_mean_square,
    standing_inward,
    standing_outward,
)
from tests.studies import random_eta

NAMES = ("(Intercept)", "a", "b", "c")
SIZE = len(NAMES)
FAMILY = expfam.full_gaussian(SIZE)


def some(seed: int) -> Coordinates:
    generator = np.random.default_rng(seed)
    blocks, baselines = [(1, 1), (2, 1), (1, 2)][generator.integers(3)]
    constant = int(generator.integers(SIZE // blocks + 1 - baselines))
    at = Coordinates(generator.normal(size=SIZE), np.exp(generator.normal(size=SIZE)), constant)
    at = at._replace(blocks=blocks, baselines=baselines)
    at.centre[at.constants] = 0.0
    return at


def rows(seed: int, constant: int, count: int = 50) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=(count, SIZE)) * [1.0, 0.1, 3.0, 1.0] + 2.0
    x[:, constant] = 1.0
    return x


def designs(seed: int, at: Coordinates) -> np.ndarray:
    """Rows of the design: of one of the blocks' coefficients each."""
    x = rows(seed, at.constants)
    # Each row is in one of the intervals.
    x[:, at.constants] = np.arange(len(x))[:, None] % at.baselines == np.tile(
        np.arange(at.baselines), at.blocks
    )
    block = np.arange(len(x))[:, None] % at.blocks == np.arange(SIZE) // (SIZE // at.blocks)
    return x * block


@given(seed=st.integers(0, 10_000))
def test_predictors_gradients_and_curvatures_are_those_of_theta(seed):
    at, generator = some(seed), np.random.default_rng(seed)
    x, theta = designs(seed, at), generator.normal(size=SIZE)
    inside = at.columns(x.T).T
    np.testing.assert_allclose(inside @ at.coefficients(theta), x @ theta, atol=1e-10)
    np.testing.assert_allclose(at.coefficients_back(at.coefficients(theta)), theta, atol=1e-12)
    # A site that was summed in coordinates is the site of the columns as they are.
    slope, bend = generator.normal(size=(2, len(x)))
    summed = GaussianEta(slope @ inside, (bend * inside.T) @ inside)
    found = at.outward(summed)
    np.testing.assert_allclose(found.h, slope @ x, atol=1e-9)
    np.testing.assert_allclose(found.J, (bend * x.T) @ x, atol=1e-9)


@given(seed=st.integers(0, 10_000))
def test_a_gaussian_is_the_same_law_inside(seed):
    at, eta = some(seed), random_eta(FAMILY, seed)
    mean, _ = FAMILY.moments(eta)
    inside = at.inward(eta)
    np.testing.assert_allclose(
        FAMILY.moments(inside)[0], at.coefficients(mean), rtol=1e-7, atol=1e-9
    )
    back = at.outward(inside)
    np.testing.assert_allclose(back.h, eta.h, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(back.J, eta.J, rtol=1e-9, atol=1e-9)


def test_folds_and_standings_go_in_and_come_back():
    at, etas = some(3), [random_eta(FAMILY, seed) for seed in range(8)]
    place = np.arange(SIZE, dtype=float)
    standing = Standing(
        etas[0],
        etas[1],
        GaussianEta(place, etas[2].J),
        folds=3,
        squares=0.5,
        sites={"a": GaussianEta(etas[3].h, place + 1.0)},
        reference=etas[4],
        gradient=GaussianEta(etas[5].h, place - 1.0),
        coordinates=at,
    )
    back = standing_outward(at, standing_inward(at, standing))
    for was, now in zip(
        _arrays(standing),
        _arrays(back),
        strict=True,
    ):
        np.testing.assert_allclose(now, was, rtol=1e-9, atol=1e-9)
    shared = etas[6]
    fold = Fold(etas[0], etas[1], etas[2], {"a": etas[3], "b": shared}, {"a": shared}, 1.0)
    inside = fold_inward(at, fold)
    assert inside.factors["b"] is inside.asked["a"]  # what is shared stays shared
    np.testing.assert_allclose(inside.known.h, at.columns(etas[1].h))


def _arrays(standing: Standing) -> list[np.ndarray]:
    etas = [standing.handed_out, standing.reported, standing.curvature, standing.sites["a"]]
    etas += [standing.reference, standing.gradient]
    return [part for eta in etas for part in eta]


LENGTH = 1.5
SIZES = OutcomeSurvey(
    kind="number",
    most=1.0,
    exposed=None,
    dispersion=0.0,
    sizes=[2.0 * 1000.0 ** (-k / 13) for k in range(13, 0, -1)],
    after=8,
)


def counted(plan: OutcomeSurvey, sizes: np.ndarray) -> np.ndarray:
    return np.bincount(np.searchsorted(plan["sizes"], sizes), minlength=len(plan["sizes"]) + 1)


@pytest.mark.parametrize(
    ("law", "sd"),
    [*itertools.product(["normal", "laplace"], [0.01, 0.05, 0.164]), ("normal", 0.6)],
)
def test_counts_by_size_say_how_large_residuals_are(law, sd):
    """For 3,000 records, with a count's noise as at an epsilon of 2 or so."""
    random = np.random.default_rng(int(1e3 * sd))
    residuals = getattr(random, law)(
        scale=sd / (math.sqrt(2.0) if law == "laplace" else 1.0), size=3000
    )
    counts = counted(SIZES, np.abs(residuals))
    assert root_mean_square(SIZES, counts, 0.0) == pytest.approx(sd, rel=0.06)
    found = [
        root_mean_square(SIZES, counts + random.normal(0.0, 25.0, 14), 25.0) for _ in range(40)
    ]
    assert np.mean(found) == pytest.approx(sd, rel=0.1)
    assert np.std(found) < 0.25 * sd


def test_counts_that_noise_hides_say_nothing():
    random = np.random.default_rng(5)
    found = [root_mean_square(SIZES, random.normal(0.0, 50.0, 14), 50.0) for _ in range(200)]
    # One of 14 normal numbers exceeds 3 sds in 2 % of draws; more than 14 of 200 has probability 1e-5.
    assert sum(value is not None for value in found) <= 14
    survey: Survey = {**SURVEY, "curvature": 4.0, "outcome": SIZES}
    at = Coordinates(np.zeros(SIZE), np.ones(SIZE), 0, sizes=True)
    kept, _ = of_sizes(survey, at, np.zeros(14), 50.0)
    assert kept == at._replace(spread=0.5, sizes=False, scale=kept.scale)
    np.testing.assert_array_equal(kept.scale, 1.0)


def test_rows_grow_with_the_noise_that_is_learnt_and_the_last_count_moves_no_coordinate():
    survey: Survey = {**SURVEY, "curvature": 4.0, "outcome": SIZES}
    at = Coordinates(np.zeros(SIZE), np.ones(SIZE), 0, sizes=True)
    random = np.random.default_rng(8)
    first, _ = of_sizes(survey, at, counted(SIZES, np.abs(random.normal(0.0, 0.1, 10**5))), 10.0)
    assert first.spread == pytest.approx(0.1, rel=0.05)
    np.testing.assert_allclose(first.scale, first.spread / 0.5)
    counts = counted(SIZES, np.abs(random.normal(0.0, 0.06, 10**5)))
    last, clipped = of_sizes(survey, first, counts, 10.0)
    assert clipped == 0.0
    assert last.residual == pytest.approx(0.06, rel=0.05)
    np.testing.assert_array_equal(last.scale, first.scale)
    assert last.spread == first.spread


def test_weights_expect_longer_slopes_where_counts_scatter_more():
    plan: OutcomeSurvey = {
        **SIZES, "kind": "count", "sizes": [10.0 * 100.0 ** (-k / 13) for k in range(13, 0, -1)],
    }  # fmt: skip
    survey: Survey = {**SURVEY, "outcome": plan}
    at = Coordinates(np.zeros(SIZE), np.ones(SIZE), 0, sizes=True)
    random = np.random.default_rng(2)
    found = [
        of_sizes(survey, at, counted(plan, np.abs(random.normal(0.0, sd, 50_000))), 10.0)[0].spread
        for sd in (0.3, 1.0, 2.5)
    ]
    assert found[0] == found[1] == 1.0
    assert 1.5 < found[2] < 4.0


def test_a_survey_finds_where_outcomes_are():
    x = rows(1, 0, 5_000)
    plan: OutcomeSurvey = {**SIZES, "kind": "count", "most": 30.0, "exposed": math.log(3.0)}
    survey: Survey = {**SURVEY, "outcome": plan}
    told = sums(x)
    told.J[0, 0] = EMPHASIS * 5_000 * math.log1p(2.0) / math.log1p(30.0)
    exposures = 0.25 * 5_000
    told.J[0, 0] += exposures
    told.J[1, 1] += exposures
    told.J[0, 1] = told.J[1, 0] = exposures
    at, _, start = of_survey(survey, told, 0.0, prior(1e-9))
    # Two events in a quarter of three years; weights expect half as much again.
    assert start == pytest.approx([math.log(2.0 / 0.75)])
    assert at.level == pytest.approx(math.log(3.0 * 0.25 * 1.5))
    assert not at.sizes
    plain = of_survey(SURVEY, sums(x), 0.0, prior(1e-9))[0]
    np.testing.assert_allclose(at.centre, plain.centre)
    np.testing.assert_allclose(at.scale / at.scale[0], plain.scale / plain.scale[0])
    number: OutcomeSurvey = {**SIZES, "most": 2.0}
    told = sums(x)
    told.J[0, 0] = EMPHASIS * 5_000 * 0.4
    at, _, start = of_survey({**SURVEY, "outcome": number}, told, 0.0, prior(1e-9))
    assert start == pytest.approx([-0.4])
    assert at.sizes


SURVEY = Survey(
    constant=0, unit=4.0, emphasis=1.5, length=LENGTH, noise=1e9, curvature=0.1, outcome=None,
    by_bounds=[], blocks=[1.0], several=[], baselines=1,
)  # fmt: skip


def prior(*precision: float) -> GaussianEta:
    return GaussianEta(np.zeros(SIZE), np.diag(np.broadcast_to(precision, SIZE)))


def sums(x: np.ndarray) -> GaussianEta:
    weight = np.where(np.arange(SIZE) == SURVEY["constant"], SURVEY["emphasis"], 1.0)
    return GaussianEta(x.sum(0) * weight, np.diag((x**2).sum(0) * weight))


def test_without_noise_columns_become_centred_and_alike():
    x = rows(1, 0, 5_000)
    at = of_survey(SURVEY, sums(x), 0.0, prior(1e-9))[0]
    inside = at.columns(x.T).T
    np.testing.assert_allclose(inside[:, 1:].mean(0), 0.0, atol=1e-9)
    np.testing.assert_allclose((inside**2).mean(0), LENGTH**2 / SIZE, rtol=1e-6)
    assert np.mean((inside**2).sum(1)) == pytest.approx(LENGTH**2)


@pytest.mark.parametrize("there", [50, 5_000])
def test_rows_are_as_long_as_the_records_that_are_there_ask_for(there):
    """Fewer than declared: longer, up to 1.5."""
    x = rows(1, 0, there)
    survey = {**SURVEY, "noise": 30.0}
    inside = of_survey(survey, sums(x), 0.0, prior(1e-9))[0].columns(x.T)
    length = math.sqrt((inside**2).sum(0).mean())
    foreseen = Foreseen(rounds=40, clients=1, records=there)
    assert length == pytest.approx(length_for(SIZE, foreseen, 30.0, 1.0, 0.1), rel=1e-6)
    assert (length == pytest.approx(LENGTH)) == (there == 50)


def test_blocks_have_the_same_columns_and_slopes_of_one_size():
    x = np.random.default_rng(1).normal(size=(5_000, 2)) * [1.0, 3.0] + 2.0
    x[:, 0] = 1.0
    survey: Survey = {**SURVEY, "blocks": [0.5, 2.0], "several": [1.0, 4.0], "by_bounds": [1]}
    weight = np.array([SURVEY["emphasis"], 1.0])
    share = np.array([0.3, 0.75])  # of outcomes in their ranges
    h = np.concatenate([x.sum(0) * weight, EMPHASIS * share * len(x)])
    squares = np.diag(np.append((x**2).sum(0) * weight, [0.0, 0.0]))
    at, wide, starts = of_survey(survey, GaussianEta(h, squares), 0.0, prior(1e-9))
    assert at.blocks == 2
    np.testing.assert_allclose(starts, [-0.4, 2.0])
    np.testing.assert_allclose(at.centre, [0.0, x[:, 1].mean()] * 2)
    np.testing.assert_allclose(at.scale[2:] / at.scale[:2], 4.0)
    # With slopes ÷ 2 and × 2 the vectors of both are equally long, and all of the expected length.
    inside = at.columns(np.concatenate([x, x], axis=1).T).T / np.repeat([0.5, 2.0], 2)
    assert np.mean((inside**2).sum(1)) == pytest.approx(LENGTH**2)
    np.testing.assert_allclose(np.linalg.solve(wide.J, wide.h)[[0, 2]], starts)


def test_a_prior_is_in_units_of_the_spread_where_bounds_are_much_too_wide():
    x = rows(1, 0, 5_000)  # of sds 0.1, 3 and 1 around 2
    given = GaussianEta(np.array([0.3, 0.0, 0.0, 0.0]), np.diag([0.16, 0.25, 0.25, 0.25]))
    survey: Survey = {**SURVEY, "by_bounds": [1, 2]}
    at, wide, _ = of_survey(survey, sums(x), 0.0, given)
    covariance = np.linalg.inv(wide.J)
    np.testing.assert_allclose(
        np.sqrt(np.diagonal(covariance))[1:], [2.0 / (2.0 * x[:, 1].std()), 2.0, 2.0], rtol=1e-6
    )
    # The intercept at the columns' means is as before, and does not depend on the effects.
    usual = np.where([True, True, True, False], at.centre, 0.0)
    usual[0] = 1.0
    np.testing.assert_allclose(usual @ covariance @ usual, 1.0 / 0.16)
    np.testing.assert_allclose((covariance @ usual)[1:], 0.0, atol=1e-9)
    assert usual @ covariance @ wide.h == pytest.approx(0.3 / 0.16)
    # What noise hides counts as a quarter of its sd; a survey of other columns changes nothing.
    hidden = of_survey(survey, sums(x), 4_000.0, given)[1]
    assert np.linalg.inv(hidden.J)[1, 1] == pytest.approx(4.0 / (4.0 * 0.2))
    # As uncertain as the start is, as much wider is the intercept's prior; a narrow one stays.
    number: Survey = {**SURVEY, "outcome": {**SIZES, "most": 2.0}}
    told = sums(x)
    told.J[0, 0] = EMPHASIS * 5_000 * 0.4
    for precision, middle in ((0.16, -0.4), (4.0, 0.0)):
        stated = prior(precision, 0.25, 0.25, 0.25)
        moved = of_survey(number, told, 500.0, stated)[1]
        more = (2.0 * 2.0 * 500.0 / EMPHASIS / 5_000) ** 2 if middle else 0.0
        assert 1.0 / moved.J[0, 0] == pytest.approx(1.0 / precision + more)
        assert moved.h[0] / moved.J[0, 0] == pytest.approx(middle)
    same = of_survey(SURVEY, sums(x), 0.0, given)[1]
    np.testing.assert_array_equal(same.J, given.J)
    np.testing.assert_array_equal(same.h, given.h)


@pytest.mark.parametrize("law", ["normal", "exponential", "lognormal", "outliers"])
def test_rows_are_shorter_where_residuals_are_long_and_what_clipping_takes_is_told(law):
    """Residuals are clipped as a site clips those of rows of usual length."""
    random, count = np.random.default_rng(4), 30_000
    drawn = {
        "normal": random.normal(size=count),
        "exponential": random.exponential(size=count) - 1.0,
        "lognormal": random.lognormal(size=count) - math.exp(0.5),
        "outliers": random.normal(size=count) + 100.0 * (random.random(count) < 0.004),
    }[law]
    sd = drawn.std()
    plan: OutcomeSurvey = {
        **SIZES,
        "sizes": [400.0 * 1000.0 ** (-k / 13) for k in range(13, 0, -1)],
    }
    survey: Survey = {**SURVEY, "curvature": sd**-2.0, "outcome": plan, "noise": 400.0}
    scale = length_for(SIZE, Foreseen(40, 1, count), 100.0 * math.sqrt(3.0), 1.0, sd**-2.0) / 2.0
    at = Coordinates(np.zeros(SIZE), np.full(SIZE, scale), 0, sizes=True)
    counts = counted(plan, np.abs(drawn)) + random.normal(0.0, 20.0, 14)
    shorter, _ = of_sizes(survey, at, counts, 20.0)
    _, clipped = of_sizes(survey, shorter, counts, 20.0)

    def taken(coordinates: Coordinates) -> float:
        reach = coordinates.spread * max(3.0, coordinates.spread / (coordinates.scale[0] * 2.0))
        return float((drawn - np.clip(drawn, -reach, reach)).mean())

    noised = math.sqrt(sd**2 + 400.0 * (sd**2 / shorter.scale[0]) ** 2 / count) / math.sqrt(count)
    if law in ("normal", "exponential"):
        assert abs(taken(shorter)) < 1.5 * noised
        assert clipped < 1.5 * noised
    # What is left, since noise would hide curvatures of shorter rows, is told.
    assert clipped == pytest.approx(taken(shorter), rel=0.35, abs=noised)
    assert (shorter.scale[0] < 0.95 * at.scale[0]) == (law != "normal")


def test_a_strong_prior_keeps_its_column_short():
    x = rows(1, 0, 500)
    at = of_survey(SURVEY, sums(x), 0.0, prior(1e-9, 1e4, 1e-9, 1e-9))[0]
    inside = (at.columns(x.T) ** 2).mean(1)
    assert inside[1] < 0.01 * inside[2]


@pytest.mark.parametrize("column", ["constant", "zero", "twice"])
def test_columns_that_say_nothing_leave_coordinates_finite(column):
    """A column that is 0 throughout, or constant, or another's double."""
    x = rows(1, 0, 500)
    x[:, 2] = {"constant": 1.0, "zero": 0.0, "twice": 2.0 * x[:, 3]}[column]
    generator = np.random.default_rng(0)
    for noise in (0.0, 30.0, 1e6):
        told = sums(x)
        noisy = GaussianEta(
            told.h + noise * generator.normal(size=SIZE),
            told.J + np.diag(noise * generator.normal(size=SIZE)),
        )
        at = of_survey(SURVEY, noisy, noise, prior(0.16))[0]
        assert np.isfinite(at.centre).all()
        assert (at.scale > 0.0).all()
        assert at.centre[0] == 0.0
        # No column is blown up: the noise, and the prior, bound its scale.
        assert at.scale.max() <= 1.1 * LENGTH * math.sqrt(max(500.0, 4.0 * noise) / 1.6)


def test_a_length_suits_how_much_a_record_tells():
    """A known noise of 0.1 makes slopes 10 √10 times as steep as those of a yes or no."""
    lengths = [length_for(4, Foreseen(), 1.0, 1.0, curvature) for curvature in (0.1, 100.0)]
    assert lengths[0] / lengths[1] == pytest.approx(math.sqrt(1000.0))


def test_rows_are_shorter_where_there_is_less_noise_or_more_records():
    def length(noise: float, size: int = 10, rate: float = 1.0, clients: int = 2, **more: int):
        foreseen = Foreseen(**{"rounds": 12, "records": 50_000, "clients": clients} | more)
        return length_for(size, foreseen, noise, rate, 0.1)

    # 4/3 · 2 · 75² / 12 = 1,250 of noise beside 2 · 50,000 · 0.1 / 10 of records, at most.
    assert length(75.0) == pytest.approx(0.25 ** (1.0 / 6.0))
    for same in (length(37.5, rounds=3), length(37.5, rate=0.5), length(150.0, records=100_000)):
        assert same == pytest.approx(length(75.0))
    assert length(75.0, clients=4) == pytest.approx(length(75.0) / 2.0 ** (1.0 / 6.0))
    # With 20 coefficients noise of sd √1,250 in a curvature has eigenvalues of up to √40 as much.
    hidden = math.sqrt(40.0 * 1_250.0) / (2.0 * 500.0)
    assert length(75.0, size=20) == pytest.approx(math.sqrt(hidden / 0.15))
    assert length(1e9) == 1.5


def planned(noise=10.0, names=NAMES, rate=1.0, **foreseen):
    foreseen = {"rounds": 20, "clients": 4, "records": 1_000} | foreseen
    return planned_survey(names, Foreseen(**foreseen), noise, rate, 0.1)


def test_a_survey_is_planned_where_it_pays_and_nowhere_else():
    found = planned()
    assert found is not None
    # √(2·(D + √D − 1)) with D = 4: the norm of (x, x²) of a row of ones, ×1/√2 of it.
    assert found["unit"] == pytest.approx(math.sqrt(2.0 * (4.0 + 2.0 - 1.0)))
    assert found["constant"] == 0
    assert found["emphasis"] == pytest.approx(math.sqrt(2.0))
    assert planned(names=NAMES[1:]) is None
    assert planned(rounds=4) is None
    assert planned(rounds=5) is not None
    assert planned(noise=0.0) is None
    # The noise of a sum, z·unit·√M / rate, against half of M·N_max.
    most = 0.5 * 4_000 / (math.sqrt(10.0) * 2.0)
    assert planned(noise=0.999 * most) is not None
    assert planned(noise=1.001 * most) is None
    assert planned(noise=0.999 * most / 4.0, rate=0.25) is not None
    assert planned(noise=1.001 * most / 4.0, rate=0.25) is None
    # Shorter rows are told better.
    assert planned(noise=1.2 * most, typical_norm=1.2) is not None
