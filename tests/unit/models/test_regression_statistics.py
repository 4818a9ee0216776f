"""Regressions with Pólya-Gamma latents and with known noise: E and M steps, against other derivations."""

import json
import math
import subprocess
import sys

import jax
import numpy as np
import pytest
import scipy.optimize

from fedvi import errors, expfam, models
from fedvi.expfam.gaussian import GaussianEta
from fedvi.inference.solvers import vips
from fedvi.models.regression_statistics import KnownNoise, PolyaGamma
from fedvi.privacy import mechanisms, sampling
from fedvi.updates.conjugate import from_table, positive_part, to_table
from tests.studies import random_eta
from tests.vips import federate, shard_of

SIZE, RECORDS = 3, 64
NAMES = ("a", "b", "c")
FAMILY = expfam.full_gaussian(SIZE)
SCALES = (1.0, 2.0, 0.5)
MODELS = {
    "logistic": PolyaGamma(NAMES, SCALES, 1.5),
    "binomial": PolyaGamma(NAMES, SCALES, 1.5, trials=4.0),
    "counts": PolyaGamma(NAMES, SCALES, 1.5, trials=2.0, counts=True, offset=math.log(0.5)),
    "paired": PolyaGamma(NAMES, SCALES, 1.5, trials=3.0, paired=True),
}


def trials_and_kappa(model, data):
    """b and κ of each record, float64."""
    y = data["y"].astype(np.float64)
    if model.paired:
        return y.sum(axis=1), (y[:, 0] - y[:, 1]) / 2.0
    if model.counts:
        return y + model.trials, (y - model.trials) / 2.0
    return np.full_like(y, model.trials), y - model.trials / 2.0


def records(kind="logistic", seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(RECORDS, SIZE)).astype(np.float32)
    x[:, 0] = 1.0
    odds = 1.0 / (1.0 + np.exp(-x @ [0.3, -1.0, 0.8]))
    y = {
        "logistic": lambda: generator.random(RECORDS) < odds,
        "binomial": lambda: generator.binomial(4, odds),
        "counts": lambda: generator.negative_binomial(2, 1.0 / (1.0 + 0.5 * np.exp(x[:, 1]))),
        "paired": lambda: pairs(generator, odds),
        "linear": lambda: x @ [0.3, -1.0, 0.8] + generator.normal(size=RECORDS),
    }[kind]()
    return {"x": x, "y": np.asarray(y).astype(np.float32)}


def pairs(generator, chance):
    """Events and non-events of as many trials as each record happens to have; of some, none."""
    trials = generator.integers(0, 8, RECORDS)
    events = generator.binomial(trials, chance)
    return np.stack([events, trials - events], axis=1)


def rounds_of(model, data, count):
    """q after each round of a holder of all records, without noise."""
    whole = sampling.full(RECORDS)
    solver = vips(model.family, model, whole, mechanisms.gaussian(0.0), clip_norm=math.inf)
    return [s.reported for s in federate(solver, [shard_of(data)], count)]


def elbo(model, data, mean, covariance):
    """The bound with the latents' best q, in closed form (updates.md §8), and q's own covariance.

    KL(PG(b, c) ‖ PG(b, 0)) = b·log cosh(c/2) − c²·E[ω]/2, so that E[ω]·c² cancels.
    """
    x = data["x"].astype(np.float64)
    centre = x @ mean + model.offset
    c = np.sqrt(centre**2 + np.einsum("nd,de,ne->n", x, covariance, x))
    trials, kappa = trials_and_kappa(model, data)
    told = kappa * centre - trials * (np.logaddexp(c / 2.0, -c / 2.0))
    precision = np.asarray(model.prior_scales) ** -2.0
    size = len(mean)
    kl = 0.5 * (
        precision @ (np.diagonal(covariance) + mean**2)
        - size
        - np.linalg.slogdet(covariance)[1]
        - np.log(precision).sum()
    )
    return told.sum() - kl


def moments(q):
    covariance = np.linalg.inv(q.J)
    return covariance @ q.h, covariance


@pytest.mark.parametrize("kind", MODELS)
def test_the_elbo_rises_to_a_point_where_its_gradient_is_zero(kind):
    model, data = MODELS[kind], records(kind)
    found = [moments(q) for q in rounds_of(model, data, 40)]
    bounds = [elbo(model, data, *at) for at in found]
    # Sums travel as float32: 1e-7 of some hundreds.
    assert np.diff(bounds).min() > -1e-5
    assert bounds[-1] - bounds[0] > 0.1
    mean, covariance = found[-1]
    root = np.linalg.cholesky(covariance)
    rows, columns = np.tril_indices(SIZE)

    def bound(point):
        spread = np.zeros((SIZE, SIZE))
        spread[rows, columns] = point[SIZE:]
        return elbo(model, data, mean + root @ point[:SIZE], root @ spread @ spread.T @ root.T)

    # In units of q's sds, around the root of its covariance.
    at = np.concatenate([np.zeros(SIZE), np.eye(SIZE)[rows, columns]])
    gradient = scipy.optimize.approx_fprime(at, bound, 1e-5)
    curved = scipy.optimize.approx_fprime(at, lambda p: -bound(2.0 * at - p), 1e-5)
    assert np.abs((gradient + curved) / 2.0).max() < 1e-3


def test_learnt_precisions_are_where_their_updates_stand_still():
    """α ~ Gamma(½, ½): E[α] = (1 + D) / (1 + Σ E[θ²]/scale²), and one of each has D = 1."""
    total = GaussianEta(np.array([3.0, -20.0, 15.0]), 10.0 * np.eye(SIZE))
    squares = np.asarray(SCALES) ** -2.0
    for learnt in ("shared", "each"):
        model = PolyaGamma(NAMES, SCALES, 1.5, learnt)
        q = model.posterior(total, {})
        mean, covariance = moments(q)
        found = np.diagonal(q.J - total.J) / squares
        effect = (mean**2 + np.diagonal(covariance)) * squares
        wanted = (
            np.full(SIZE, (1.0 + SIZE) / (1.0 + effect.sum()))
            if learnt == "shared"
            else 2.0 / (1.0 + effect)
        )
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("learnt", ["shared", "each"])
def test_learnt_precisions_have_a_public_floor(learnt):
    """Noise in the mean would feed back until nothing is left of the prior."""
    model = PolyaGamma(NAMES, SCALES, 1.5, learnt)
    q = model.posterior(GaussianEta(np.full(SIZE, 1e8), np.zeros((SIZE, SIZE))), {})
    np.testing.assert_allclose(np.diagonal(q.J), 1e-2 * np.asarray(SCALES) ** -2.0, rtol=1e-12)


def explicit(model, local, data):
    x = data["x"].astype(np.float64)
    slope, bend = (np.asarray(local[name], np.float64) for name in ("slope", "bend"))
    return {"h": slope[:, None] * x, "J": bend[:, None, None] * x[:, :, None] * x[:, None, :]}


ALL = MODELS | {"linear": KnownNoise(NAMES, SCALES, 1.5, noise_scale=0.7)}


@pytest.mark.parametrize("kind", ALL)
def test_norms_and_sums_are_those_of_statistics_that_are_formed(kind):
    model, data = ALL[kind], records(kind)
    messages = model.messages(random_eta(FAMILY, 1))
    local = jax.jit(model.expected)(messages, data)
    formed = explicit(model, local, data)
    with jax.enable_x64(True):
        wide = {name: np.asarray(part, np.float64) for name, part in data.items()}
        known = {name: np.asarray(part, np.float64) for name, part in local.items()}
        squares = model.square_norms(messages, known, wide)
        for block in model.blocks:
            axes = tuple(range(1, 1 + len(block.shape)))
            wanted = (formed[block.name] ** 2).sum(axis=axes)
            # Within what the model promises of norms.
            np.testing.assert_allclose(
                np.sqrt(squares[block.name]), np.sqrt(wanted), rtol=2.0 * model.norm_error
            )
            assert formed[block.name].shape[1:] == block.shape
        for place in (0, 5):
            one = (np.arange(RECORDS) == place).astype(np.float64)
            sums = model.sums(messages, known, wide, one)
            for block in model.blocks:
                np.testing.assert_allclose(
                    sums[block.name], formed[block.name][place], rtol=1e-12, atol=1e-300
                )
                assert sums[block.name].dtype == np.float64


@pytest.mark.parametrize("kind", MODELS)
def test_expected_latents_are_derivatives_of_their_cumulant(kind):
    """−∂/∂(c²/2) of log E[e^{−ωc²/2}] = −b·log cosh(c/2); near zero it is b/4."""
    model, data = MODELS[kind], records(kind)
    data["x"][:8] *= np.float32(1e-4)  # where a series takes over
    sharp = FAMILY.from_moments(np.array([0.4, -0.3, 0.2]), 1e-10 * np.eye(SIZE))
    local = model.expected(model.messages(sharp), data)
    x = data["x"].astype(np.float64)
    centre = x @ [0.4, -0.3, 0.2] + model.offset
    trials, kappa = trials_and_kappa(model, data)
    step = 1e-6
    square = centre**2

    def cumulant(square):
        c = np.sqrt(np.abs(square))
        return trials * np.log(np.cosh(c / 2.0))

    wanted = np.where(
        square > 1e-4, (cumulant(square + step) - cumulant(square - step)) / step, trials / 4.0
    )
    np.testing.assert_allclose(local["bend"], wanted, rtol=2e-4)
    np.testing.assert_allclose(local["slope"], kappa - wanted * model.offset, rtol=2e-4, atol=2e-4)


def test_counts_have_the_likelihood_of_the_negative_binomial_model():
    """At a sharp q the total's gradient in θ is that of log p(y | θ): h − J·m = Σ ∂ log p."""
    data = records("counts")
    regression = models.negative_binomial(NAMES, dispersion=0.5)
    mean = np.array([0.4, -0.3, 0.2])
    sharp = FAMILY.from_moments(mean, 1e-10 * np.eye(SIZE))
    model = MODELS["counts"]
    formed = explicit(model, model.expected(model.messages(sharp), data), data)
    found = formed["h"].sum(0) - formed["J"].sum(0) @ mean
    slope = regression.derivatives(data["x"] @ mean.astype(np.float32), data["y"])[1]
    np.testing.assert_allclose(found, np.asarray(slope) @ data["x"], rtol=1e-4, atol=1e-3)


def test_linear_regression_is_exact_after_one_round():
    model, data = ALL["linear"], records("linear")
    (q,) = rounds_of(model, data, 1)
    x, y = data["x"].astype(np.float64), data["y"].astype(np.float64)
    precision = np.diag(np.asarray(SCALES) ** -2.0) + x.T @ x / 0.49
    np.testing.assert_allclose(q.J, precision, rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(moments(q)[0], np.linalg.solve(precision, x.T @ y / 0.49), rtol=1e-5)


def test_means_go_with_those_of_the_exact_posterior(shared, references):
    """Breast cancer, D = 31; the sds are too small by √(c / sinh c), as said in the docstring."""
    nuts = json.loads((references / "breast_cancer_nuts.json").read_text())
    rows = [
        line.split(",")
        for line in (shared / "data/breast-cancer-wisconsin/wdbc.data").read_text().split()
    ]
    x = np.array([[float(cell) for cell in row[2:]] for row in rows])
    x = np.column_stack([np.ones(len(x)), (x - x.mean(0)) / x.std(0)]).astype(np.float32)
    y = np.array([row[1] == "M" for row in rows]).astype(np.float32)
    size = x.shape[1]
    model = PolyaGamma(tuple(f"x{d}" for d in range(size)), (1.0,) * size, math.sqrt(size))
    whole = sampling.full(len(x))
    solver = vips(model.family, model, whole, mechanisms.gaussian(0.0), clip_norm=math.inf)
    standing = federate(solver, [shard_of({"x": x, "y": y})], 60)[-1]
    mean, sd = model.family.moments(standing.reported)
    assert np.corrcoef(mean, nuts["mean"])[0, 1] > 0.99
    assert np.abs(mean - nuts["mean"]).max() < 0.3 * np.max(nuts["sd"])
    share = sd / nuts["sd"]
    assert share.min() > 0.35
    assert share.max() < 1.0
    assert 0.68 < share.mean() < 0.78


def test_projection_happens_once_and_lifts_by_the_edge_of_the_noise():
    generator = np.random.default_rng(0)
    noise = generator.normal(size=(200, 200))
    noise = (noise + noise.T) / 2.0  # sd 1 in each number that is released
    once = positive_part(noise, 1.0, 0.0)
    np.testing.assert_allclose(positive_part(once, 1.0, 0.0), once, atol=1e-10)
    assert np.linalg.eigvalsh(once).min() > -1e-10
    # Wigner: √(2·200) = 20 for such noise, reached to about 1 in 200^(2/3).
    assert np.linalg.eigvalsh(noise).max() == pytest.approx(20.0, rel=0.05)
    lifted = positive_part(noise, 1.0, 0.5)
    np.testing.assert_allclose(lifted, once + 10.0 * np.eye(200), atol=1e-9)
    assert positive_part(noise, 0.0, 0.5) is noise


@pytest.mark.parametrize("kind", ALL)
def test_a_server_makes_the_model_anew_from_its_table(kind):
    model = ALL[kind]
    made = from_table(json.loads(json.dumps(to_table(model))))
    assert made == model
    assert made.blocks == model.blocks


def test_the_module_needs_no_jax():
    code = (
        "import sys; import fedvi.models.regression_statistics as m; "
        "m.PolyaGamma(('a',), (1.0,), 1.0).posterior(m.PolyaGamma(('a',), (1.0,), 1.0).prior, {}); "
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"coefficients": ()}, r"0 coefficients and 3 prior scales"),
        ({"coefficients": ("a",)}, r"1 coefficients and 3 prior scales"),
        ({"row_norm": math.inf}, r"row_norm is inf"),
        ({"learn_prior": "yes"}, r"learn_prior is 'yes'"),
        ({"ridge": math.nan}, r"ridge is nan"),
        ({"trials": 0.0}, r"trials is 0.0"),
    ],
)
def test_fields_out_of_range_are_refused(fields, message):
    given = {"coefficients": NAMES, "prior_scales": SCALES, "row_norm": 1.0, **fields}
    with pytest.raises(errors.ModelError, match=message):
        PolyaGamma(**given)
