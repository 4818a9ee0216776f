"""Claims about Gaussian mixtures as a conjugate model."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from fedvi import VIPS, errors, privacy
from fedvi.inference.solvers.vips import vips
from fedvi.models.mixture_statistics import GaussianMixture
from fedvi.privacy import mechanisms, sampling
from tests.vips import federate, shard_of


@pytest.fixture(scope="module")
def reference(references):
    return json.loads((references / "scikit_learn_latents.json").read_text())["mixture"]


def model_of(reference) -> GaussianMixture:
    return GaussianMixture(
        ("a", "b"),
        3,
        tuple(reference["scales"]),
        row_norm=3.0,
        concentration=reference["concentration"],
        centre=tuple(reference["centre"]),
        strength=reference["strength"],
        degrees=reference["degrees"],
        start_means=tuple(map(tuple, reference["start_means"])),
    )


def test_it_takes_the_steps_of_scikit_learn(reference):
    model = model_of(reference)
    records = {"x": np.array(reference["x"])}
    solver = vips(
        model.family, model, sampling.full(80), mechanisms.gaussian(0.0), clip_norm=np.inf
    )
    steps = federate(solver, [shard_of(records)], 60)
    for step, expected in reference["path"].items():
        weights, pairs = steps[int(step) - 1].handed_out
        m, scale, shape, rate = model.family.parts[1].parameters(pairs)
        # float32 in responsibilities and in totals, which are then differences of squares.
        close = {"rtol": 1e-5, "atol": 1e-5}
        np.testing.assert_allclose(weights.power + 1.0, expected["concentrations"], **close)
        np.testing.assert_allclose(scale, expected["strengths"], **close)
        np.testing.assert_allclose(m, expected["means"], **close)
        np.testing.assert_allclose(2.0 * shape, expected["degrees"], **close)
        covariances = rate / shape[:, None, None]
        np.testing.assert_allclose(covariances, expected["covariances"], **close)


def test_a_user_and_a_client_assign_alike(reference):
    model = model_of(reference)
    x = np.array(reference["x"])
    found = model.expected(model.messages(model.start), {"x": jnp.asarray(x, jnp.float32)})["r"]
    np.testing.assert_allclose(model.responsibilities(model.start, x), found, atol=2e-6)


def test_private_means_are_near_the_clusters():
    generator = np.random.default_rng(1)
    centres = np.array([[3.0, 0.0], [-3.0, 1.0], [0.0, 4.0]])
    x = (centres[:, None] + generator.normal(size=(3, 1500, 2))).reshape(-1, 2)
    model = GaussianMixture(
        ("a", "b"),
        3,
        (1.0, 1.0),
        row_norm=6.0,
        start_means=((1.0, 0.0), (-1.0, 0.0), (0.0, 1.0)),
    )
    plan = privacy.sgd(
        epsilon=2.0, delta=1e-5, steps=20, max_records=4500, sampler="full", insecure_seed=3
    )
    result = VIPS(model, plan).run({"x": x}, progress_bar=False)
    means = model.family.parts[1].parameters(result.posterior[1])[0]
    # The noise of a mean is some hundredths; the clusters are 4 apart and more.
    assert np.abs(means - centres).max() < 0.4


def test_components_without_records_fall_back_to_the_prior():
    model = GaussianMixture(("a",), 2, (1.0,), row_norm=1.0)
    sums = {"count": np.array([-3.0, 50.0]), "first": np.array([[40.0], [100.0]])}
    sums["second"] = np.array([[[7.0]], [[300.0]]])
    noise = {"count": 5.0, "first": 5.0, "second": 5.0}
    weights, pairs = model.posterior(model.factor(sums, model.start), noise)
    prior_weights, prior_pairs = model.prior
    assert weights.power[0] == prior_weights.power[0]
    for found, prior in zip(pairs, prior_pairs, strict=True):
        np.testing.assert_array_equal(found[0], prior[0])
    assert pairs.J[1] == pytest.approx(50.0 + model.strength)


def test_the_start_is_a_draw_of_the_seed_alone():
    starts = [
        GaussianMixture(("a", "b"), 3, (1.0, 2.0), 1.0, seed=seed).start for seed in (1, 1, 2)
    ]
    first, again, other = (start[1].h for start in starts)
    assert np.array_equal(first, again)
    assert not np.isclose(first, other).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"components": 1}, "components is 1, expected at least 2"),
        ({"scales": (1.0,)}, "2 columns and 1 scales"),
        ({"scales": (1.0, -1.0)}, r"scales is \(1.0, -1.0\), expected numbers above 0"),
        ({"centre": (1.0,)}, "centre has 1 numbers, expected one of each of the 2"),
        (
            {"start_means": ((0.0, 0.0),)},
            r"start_means are 1 points of \[2\] numbers, expected 3 of 2",
        ),
        ({"degrees": 1.0}, "degrees is 1.0, expected more than 1"),
        ({"row_norm": float("inf")}, "row_norm"),
        ({"ridge": -1.0}, "ridge is -1.0"),
    ],
)
def test_what_cannot_be_is_refused(change, message):
    arguments = {"columns": ("a", "b"), "components": 3, "scales": (1.0, 1.0), "row_norm": 1.0}
    with pytest.raises(errors.ModelError, match=message):
        GaussianMixture(**(arguments | change))


def test_points_with_missing_numbers_are_not_sound():
    model = GaussianMixture(("a", "b"), 2, (1.0, 1.0), row_norm=1.0)
    x = np.array([[0.0, 1.0], [np.nan, 0.0], [0.0, np.inf]])
    assert model.sound({"x": x}).tolist() == [True, False, False]
