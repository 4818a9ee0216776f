"""Claims about linear regression with an unknown noise."""

import itertools

import numpy as np
import pytest

from fedvi import errors
from fedvi.inference.solvers.vips import vips
from fedvi.models.unknown_noise import UnknownNoise
from fedvi.privacy import mechanisms, sampling
from tests.vips import federate, shard_of

MODEL = UnknownNoise(
    ("one", "a", "b"),
    (2.0, 1.0, 3.0),
    row_norm=1.7,
    outcome_scale=4.0,
    noise_scale=0.5,
    noise_shape=2.0,
)


def simulated() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(3)
    x = np.c_[np.ones(200), generator.normal(size=(200, 2))]
    return {"x": x, "y": x @ [3.0, 1.0, -2.0] + 0.7 * generator.normal(size=200)}


def solver_of(model, size: int, clip_norm: float = np.inf):
    mechanism = mechanisms.gaussian(0.0)
    return vips(model.family, model, sampling.full(size), mechanism, clip_norm=clip_norm)


@pytest.mark.parametrize("cuts", [(), (0, 30), (30, 31, 150)])
def test_one_round_is_the_exact_posterior_of_all_clients_together(cuts):
    records = simulated()
    edges = (0, *cuts, 200)
    shards = [
        shard_of({name: column[left:right] for name, column in records.items()}, 256)
        for left, right in itertools.pairwise(edges)
    ]
    found = federate(solver_of(MODEL, 256), shards, 1)[-1].handed_out
    m, scale, shape, rate = MODEL.family.parameters(found)
    # Normal-inverse-gamma: Gelman et al. (2013), BDA3, §14.8, with the prior of the docstring.
    x, y = records["x"], records["y"]
    prior = 0.25 * np.diag(np.array([2.0, 1.0, 3.0]) ** -2.0)
    precision = prior + x.T @ x
    mean = np.linalg.solve(precision, x.T @ y)
    left = y @ y - mean @ precision @ mean
    # Totals of y² are 13 times what is left of them, and are handed over in float32.
    np.testing.assert_allclose(m[0, 0], mean, rtol=1e-6)
    np.testing.assert_allclose(scale[0], precision, rtol=1e-6, atol=1e-5)
    assert shape[0] == pytest.approx(2.0 + 100.0)
    assert rate[0] == pytest.approx(0.5 + 0.5 * left, rel=1e-5)


def test_further_rounds_without_noise_change_nothing():
    steps = federate(solver_of(MODEL, 200), [shard_of(simulated())], 3)
    for found, first in zip(steps[-1].handed_out, steps[0].handed_out, strict=True):
        np.testing.assert_array_equal(found, first)


def test_noise_in_the_moments_never_makes_the_noise_of_outcomes_negative():
    total = MODEL.factor(
        {"moments": np.diag([9.0, 9.0, 9.0, -50.0]), "count": np.array([-4.0])}, None
    )
    m, _, shape, rate = MODEL.family.parameters(MODEL.posterior(total, {"moments": 10.0}))
    assert shape[0] == 2.0
    assert rate[0] == pytest.approx(0.5)
    assert np.abs(m).max() == 0.0


def test_the_ridge_is_not_taken_for_noise_of_outcomes():
    sums = {"moments": 100.0 * np.eye(4), "count": np.array([100.0])}
    total = MODEL.factor(sums, None)
    quiet, noisy = (MODEL.posterior(total, {"moments": sd}) for sd in (0.0, 5.0))
    assert noisy.rate[0] == pytest.approx(quiet.rate[0])
    edge = 0.5 * 5.0 * np.sqrt(2.0 * 4.0)
    np.testing.assert_allclose(noisy.J - quiet.J, edge * np.eye(3)[None], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prior_scales": (1.0,)}, "2 coefficients and 1 prior scales"),
        ({"prior_scales": (1.0, 0.0)}, "prior_scales is"),
        ({"outcome_scale": 0.0}, "outcome_scale is 0.0, expected a number above 0"),
        ({"noise_shape": float("nan")}, "noise_shape is nan"),
        ({"ridge": float("inf")}, "ridge is inf"),
    ],
)
def test_what_cannot_be_is_refused(change, message):
    arguments = {"coefficients": ("a", "b"), "prior_scales": (1.0, 1.0), "row_norm": 1.0}
    with pytest.raises(errors.ModelError, match=message):
        UnknownNoise(**(arguments | change))


def test_rows_and_outcomes_with_missing_numbers_are_not_sound():
    records = {"x": np.array([[0.0], [np.nan], [0.0]]), "y": np.array([1.0, 0.0, np.inf])}
    model = UnknownNoise(("a",), (1.0,), row_norm=1.0)
    assert model.sound(records).tolist() == [True, False, False]
