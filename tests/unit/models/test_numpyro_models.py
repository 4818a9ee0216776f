"""NumPyro models taken apart, against NumPyro's own potential energy on all records at once."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import potential_energy

from fedvi.errors import ModelError
from fedvi.models.base import Model
from fedvi.models.numpyro import numpyro_model
from tests.forward_models import unconstrained

pytestmark = pytest.mark.filterwarnings("error")

COUNT = 7  # records of the made-up data sets


@pytest.fixture(autouse=True)
def strict_promotion():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


def logistic(x, y):
    b = numpyro.sample("b", dist.Normal(0.3, 2.5).expand([3]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ b), obs=y)


def hierarchical(x, g, y):
    centre = numpyro.sample("centre", dist.Normal(0.0, 1.0))
    spread = numpyro.sample("spread", dist.HalfNormal(0.7))
    with numpyro.plate("groups", 4):
        offset = numpyro.sample("offset", dist.Normal(centre, spread))
    noise = numpyro.sample("noise", dist.Exponential(1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(offset[g] * x, noise), obs=y)


def simplex(y):
    p = numpyro.sample("p", dist.Dirichlet(jnp.array([1.0, 2.0, 3.5])))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Categorical(p), obs=y)


def correlated(x):
    root = numpyro.sample("L", dist.LKJCholesky(3, 1.5))
    with numpyro.plate("axes", 3):
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("x", dist.MultivariateNormal(0.0, scale_tril=scale[:, None] * root), obs=x)


def beta_bernoulli(y):
    p = numpyro.sample("p", dist.Beta(2.0, 5.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(p), obs=y)


def subsampled(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", COUNT, subsample_size=y.shape[0]) as rows:
        numpyro.sample("y", dist.Normal(b * x[rows], 0.5), obs=y[rows])


def subsampled_and_scaled(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with handlers.scale(scale=0.3), numpyro.plate("records", COUNT, subsample_size=y.shape[0]):
        numpyro.sample("y", dist.Normal(b * x, 0.5), obs=y)


def two_outcomes(x, y, count):
    a = numpyro.sample("a", dist.StudentT(4.0, 0.0, 1.0))
    b = numpyro.sample("b", dist.Laplace(0.0, 2.0))
    noise = numpyro.sample("noise", dist.InverseGamma(3.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        mean = numpyro.deterministic("mean", a + b * x)
        numpyro.sample("y", dist.Normal(mean, noise), obs=y)
        numpyro.sample("count", dist.Poisson(jnp.exp(b)), obs=count)


def repeated_measures(x, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    noise = numpyro.sample("noise", dist.Gamma(2.0, 2.0))
    with numpyro.plate("records", x.shape[0], dim=-2), numpyro.plate("visits", 3, dim=-1):
        numpyro.sample("y", dist.Normal(slope * x, noise), obs=y)


def scaled_and_masked(x, y, seen):
    with handlers.scale(scale=0.5):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0), sample_shape=(2,))
    with handlers.mask(mask=jnp.array([True, False])):
        c = numpyro.sample("c", dist.Normal(jnp.zeros(2), 1.0))
    with numpyro.plate("records", x.shape[0]), handlers.scale(scale=3.0), handlers.mask(mask=seen):
        numpyro.sample("y", dist.Normal(b.sum() * x + c[0], 1.0), obs=y)


def factors(x, y):
    b = numpyro.sample("b", dist.ImproperUniform(dist.constraints.real_vector, (), (2,)))
    numpyro.factor("ridge", -0.5 * jnp.sum(b**2))
    with numpyro.plate("records", x.shape[0]):
        numpyro.factor("hinge", -jnp.maximum(0.0, 1.0 - y * (x @ b)))


def ordinal(x, y):
    slope = numpyro.sample("slope", dist.Uniform(0.1, 0.7))
    cut = numpyro.sample(
        "cut",
        dist.TransformedDistribution(
            dist.Normal(0.0, 1.0).expand([3]), dist.transforms.OrderedTransform()
        ),
    )
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.OrderedLogistic(slope * x, cut), obs=y)


def decentred(g, y):
    spread = numpyro.sample("spread", dist.HalfCauchy(1.0))
    with numpyro.plate("groups", 4), handlers.reparam(config={"u": LocScaleReparam(0.0)}):
        u = numpyro.sample("u", dist.Normal(0.2, spread))
    with numpyro.plate("records", g.shape[0]):
        numpyro.sample("y", dist.Normal(u[g], 1.0), obs=y)


def covariance(x):
    precision = numpyro.sample("precision", dist.Wishart(4.0, jnp.eye(2)))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("x", dist.MultivariateNormal(0.0, precision_matrix=precision), obs=x)


def mixture(y):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("components", 2):
        mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample(
            "y",
            dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(mean, 1.0)),
            obs=y,
        )


# name: (model, {argument: record shape, or the number of levels of an integer}, coordinates of θ)
MODELS = {
    "logistic": (logistic, {"x": (3,), "y": 2}, "b[0] b[1] b[2]"),
    "hierarchical": (
        hierarchical,
        {"x": (), "g": 4, "y": ()},
        "centre spread offset[0] offset[1] offset[2] offset[3] noise",
    ),
    "simplex": (simplex, {"y": 3}, "p[0] p[1]"),
    "correlated": (
        correlated,
        {"x": (3,)},
        "L[1,0] L[2,0] L[2,1] scale[0] scale[1] scale[2]",
    ),
    "beta_bernoulli": (beta_bernoulli, {"y": 2}, "p"),
    "subsampled": (subsampled, {"x": (), "y": ()}, "b"),
    "subsampled_and_scaled": (subsampled_and_scaled, {"x": (), "y": ()}, "b"),
    "two_outcomes": (two_outcomes, {"x": (), "y": (), "count": 9}, "a b noise"),
    "repeated_measures": (repeated_measures, {"x": (3,), "y": (3,)}, "slope noise"),
    "scaled_and_masked": (
        scaled_and_masked,
        {"x": (), "y": (), "seen": bool},
        "b[0] b[1] c[0] c[1]",
    ),
    "factors": (factors, {"x": (2,), "y": ()}, "b[0] b[1]"),
    "ordinal": (ordinal, {"x": (), "y": 4}, "slope cut[0] cut[1] cut[2]"),
    "decentred": (
        decentred,
        {"g": 4, "y": ()},
        "spread u_decentered[0] u_decentered[1] u_decentered[2] u_decentered[3]",
    ),
    "covariance": (covariance, {"x": (2,)}, "precision[0] precision[1] precision[2]"),
    "mixture": (mixture, {"y": ()}, "weights[0] mean[0] mean[1]"),
}


def data(name):
    """COUNT records for one of MODELS, in NumPy float64, int32 and bool."""
    random = np.random.default_rng(11)
    records = {}
    for argument, kind in MODELS[name][1].items():
        if kind is bool:
            records[argument] = np.arange(COUNT) % 3 > 0
        elif isinstance(kind, int):
            records[argument] = random.integers(0, kind, size=COUNT, dtype=np.int32)
        else:
            records[argument] = random.normal(size=(COUNT, *kind))
    return records


@functools.cache
def split(name):
    """The fedvi model, made with JAX's default precision."""
    records = data(name)
    example = {
        key: jax.ShapeDtypeStruct(value.shape[1:], value.dtype) for key, value in records.items()
    }
    return numpyro_model(MODELS[name][0], example)


def unconstrained_sites(model, theta):
    """θ cut into NumPyro's unconstrained sites by hand, from the coordinates' names."""
    sites = {}
    for coordinate, value in zip(model.names, theta, strict=True):
        sites.setdefault(coordinate.split("[")[0], []).append((coordinate, value))
    return {
        site: pairs[0][1] if "[" not in pairs[0][0] else jnp.stack([value for _, value in pairs])
        for site, pairs in sites.items()
    }


def whole_density(name, model, theta):
    """Minus NumPyro's potential energy of all records at once: the independent computation."""
    sites = unconstrained_sites(model, theta)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        seeded = handlers.seed(MODELS[name][0], 0)
        records = {key: jnp.asarray(value) for key, value in data(name).items()}
        return -potential_energy(seeded, (), records, sites)


@functools.partial(jax.jit, static_argnums=(0, 1))
def summed_density(name, model, theta):
    """log p₀(θ) + Σ_n log p(record n | θ), one record at a time."""
    terms = jax.vmap(model.log_likelihood, in_axes=(None, 0))(
        theta, {key: jnp.asarray(value) for key, value in data(name).items()}
    )
    return model.log_prior(theta) + jnp.sum(terms)


@pytest.mark.nightly(but=("repeated_measures", "logistic", "subsampled_and_scaled", "subsampled"))
@pytest.mark.parametrize("name", MODELS)
def test_prior_plus_record_terms_is_the_density_of_all_records_with_gradient(name):
    model = split(name)
    random = np.random.default_rng(3)
    with jax.enable_x64(True):
        whole = jax.jit(jax.value_and_grad(lambda theta: whole_density(name, model, theta)))
        summed = jax.jit(jax.value_and_grad(lambda theta: summed_density(name, model, theta)))
        for _ in range(3):
            theta = jnp.asarray(random.normal(size=model.size))
            (expected, expected_gradient), (found, gradient) = whole(theta), summed(theta)
            assert found.dtype == jnp.float64
            # rtol 1e-10: float64 sums of some tens of terms, in another order.
            np.testing.assert_allclose(found, expected, rtol=1e-10)
            size = np.max(np.abs(expected_gradient))
            np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-10, atol=1e-10 * size)


@pytest.mark.nightly(
    only=("two_outcomes", "hierarchical", "simplex", "correlated", "ordinal", "covariance")
)
@pytest.mark.parametrize("name", MODELS)
def test_coordinates_are_counted_and_named_in_trace_order(name):
    model = split(name)
    assert model.names == tuple(MODELS[name][2].split())
    assert model.size == len(model.names)
    assert isinstance(model, Model)


@pytest.mark.parametrize("name", MODELS)
def test_constrain_and_unconstrain_are_inverse(name):
    model = split(name)
    with jax.enable_x64(True):
        theta = jnp.asarray(np.random.default_rng(4).normal(size=model.size))
        # rtol 1e-8: inverting a simplex or a Cholesky factor loses some of float64's 16 digits.
        np.testing.assert_allclose(
            jax.jit(lambda theta: unconstrained(model, model.constrain(theta)))(theta),
            theta,
            rtol=1e-8,
            atol=1e-10,
        )


def test_constrained_values_lie_in_their_supports():
    values = split("correlated").constrain(jnp.array([0.5, -1.0, 2.0, -3.0, 0.0, 3.0]))
    # The rows of the Cholesky factor of a correlation matrix have length 1; float32.
    np.testing.assert_allclose(jnp.linalg.norm(values["L"], axis=1), np.ones(3), rtol=1e-6)
    np.testing.assert_allclose(values["scale"], np.exp([-3.0, 0.0, 3.0]), rtol=1e-6)
    np.testing.assert_allclose(
        split("simplex").constrain(jnp.array([0.3, -2.0]))["p"].sum(), 1.0, rtol=1e-6
    )


@pytest.mark.nightly(but=("True",))
@pytest.mark.parametrize("diagonal", [False, True])
def test_a_coordinate_of_a_cholesky_factor_moves_the_entry_that_it_is_named_after(diagonal):
    def model(x):
        if diagonal:
            root = numpyro.sample(
                "L", dist.ImproperUniform(dist.constraints.lower_cholesky, (), (3, 3))
            )
        else:
            root = numpyro.sample("L", dist.LKJCholesky(3))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("x", dist.MultivariateNormal(0.0, scale_tril=root), obs=x)

    split_model = numpyro_model(model, {"x": np.zeros(3)})
    assert split_model.size == (6 if diagonal else 3)
    jacobian = jax.jit(jax.jacobian(lambda theta: split_model.constrain(theta)["L"]))(
        jnp.linspace(0.2, 0.8, split_model.size)
    )
    for k, name in enumerate(split_model.names):
        row, column = map(int, re.fullmatch(r"L\[(\d),(\d)\]", name).groups())
        moved = np.argwhere(np.asarray(jacobian[:, :, k]) != 0.0)
        assert [row, column] in moved.tolist()
        # Nothing in other rows, and nothing left of the entry.
        assert np.all(moved[:, 0] == row)
        assert np.all(moved[:, 1] >= column)


@pytest.mark.nightly(only=("False-correlated",))
@pytest.mark.parametrize("name", ["hierarchical", "correlated", "subsampled", "ordinal"])
@pytest.mark.parametrize("x64", [False, True])
def test_answers_come_in_the_dtype_of_theta(name, x64):
    model = split(name)
    with jax.enable_x64(True):
        theta = jnp.asarray(np.random.default_rng(4).normal(size=model.size))
        expected = summed_density(name, model, theta)
    with jax.enable_x64(x64):
        theta = jnp.asarray(np.asarray(theta), jnp.float32)
        record = {key: value[0] for key, value in data(name).items()}
        answers = jax.eval_shape(
            lambda theta: (
                model.log_prior(theta),
                jax.value_and_grad(model.log_likelihood)(theta, record),
                model.constrain(theta),
            ),
            theta,
        )
        assert {leaf.dtype for leaf in jax.tree.leaves(answers)} == {jnp.dtype("float32")}
        # rtol 1e-4: float32 sums of some tens of terms.
        np.testing.assert_allclose(summed_density(name, model, theta), expected, rtol=1e-4)


@pytest.mark.nightly(only=("correlated",))
@pytest.mark.parametrize("name", ["hierarchical", "correlated", "subsampled", "decentred"])
def test_no_tracer_leaks_out_of_jit_vmap_and_grad(name):
    model = split(name)
    theta = jnp.linspace(-0.5, 0.5, model.size)
    with jax.checking_leaks():
        jax.jit(jax.grad(lambda theta: summed_density(name, model, theta)))(theta)
        jax.jit(jax.hessian(model.log_prior))(theta)
    # And eagerly, after tracing: a leaked tracer would be used here.
    assert np.isfinite(summed_density(name, model, theta))


def test_a_plate_of_known_size_counts_a_record_once():
    def model(x, y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("records", 5000, subsample_size=x.shape[0]):
            numpyro.sample("y", dist.Normal(b * x, 1.0), obs=y)

    found = numpyro_model(model, {"x": 0.0, "y": 0.0}).log_likelihood(
        jnp.array([0.5]), {"x": 2.0, "y": 3.0}
    )
    # log N(3; 1, 1), once; float32.
    np.testing.assert_allclose(found, -0.5 * np.log(2.0 * np.pi) - 2.0, rtol=1e-6)


def test_a_users_own_scale_is_kept_inside_a_subsampled_plate():
    with jax.enable_x64(True):
        model = split("subsampled_and_scaled")
        found = model.log_likelihood(jnp.array([0.5]), {"x": 2.0, "y": 3.0})
        density = -0.5 * np.log(2.0 * np.pi) - np.log(0.5) - 0.5 * (2.0 / 0.5) ** 2
        np.testing.assert_allclose(found, 0.3 * density, rtol=1e-12)


@pytest.mark.parametrize("weight", [0.5, 1.0, 3.0])
def test_a_scaled_latent_has_the_scaled_density_of_its_constrained_value(weight):
    def model(y):
        with handlers.scale(scale=weight):
            rate = numpyro.sample("rate", dist.Gamma(3.0, 2.0))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", dist.Exponential(rate), obs=y)

    with jax.enable_x64(True):
        split_model = numpyro_model(model, {"y": 0.0})
        grid = np.linspace(-12.0, 5.0, 4001)
        log_density = jax.vmap(split_model.log_prior)(jnp.asarray(grid)[:, None])
    # ∫ Gamma(r; 3, 2)^w dr in closed form; a trapezoid in log r is exact to 1e-10 here: the
    # integrand is smooth and below 1e-12 at both ends.
    shape = weight * 2.0 + 1.0
    log_gamma = np.vectorize(math.lgamma)
    closed = weight * (3.0 * np.log(2.0) - log_gamma(3.0)) + log_gamma(shape)
    closed -= shape * np.log(2.0 * weight)
    integral = np.trapezoid(np.exp(log_density), grid)
    np.testing.assert_allclose(np.log(integral), closed, atol=1e-9)


def test_another_plate_name_can_be_given():
    def model(y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("patients", y.shape[0]):
            numpyro.sample("y", dist.Normal(b, 1.0), obs=y)

    assert numpyro_model(model, {"y": 0.0}, plate="patients").names == ("b",)


def test_values_of_the_example_are_never_read():
    def found(example):
        model = numpyro_model(hierarchical, example)
        theta = jnp.linspace(-1.0, 1.0, model.size)
        return model.log_prior(theta), model.names

    shapes = {"x": (), "g": (), "y": ()}
    abstract = {
        name: jax.ShapeDtypeStruct(shape, np.int32 if name == "g" else np.float32)
        for name, shape in shapes.items()
    }
    nonsense = {"x": np.float32(np.nan), "g": np.int32(-7), "y": np.float32(np.inf)}
    assert found(abstract) == found(nonsense)


def test_a_model_that_draws_without_using_it_needs_no_key():
    def model(y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        numpyro.deterministic("noise", jax.random.normal(numpyro.prng_key()))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", dist.Normal(b, 1.0), obs=y)

    found = numpyro_model(model, {"y": 0.0})
    assert jax.jit(found.log_prior)(jnp.zeros(1)) == found.log_prior(jnp.zeros(1))


def test_a_model_equals_itself_alone_so_jit_can_hold_it():
    model, other = (numpyro_model(logistic, {"x": np.zeros(3), "y": 0}) for _ in range(2))
    assert hash(model) == hash(model)
    assert model != other
    traces = []

    def prior(model, theta):
        traces.append(model)
        return model.log_prior(theta)

    compiled = jax.jit(prior, static_argnums=0)
    compiled(model, jnp.zeros(3))
    compiled(model, jnp.ones(3))
    assert len(traces) == 1


def check_refused(call, message, hint):
    with pytest.raises(ModelError) as found:
        call()
    assert re.search(message, found.value.message), found.value.message
    assert re.search(hint, found.value.hint), found.value.hint


def no_plate(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(b * x, 1.0).to_event(1), obs=y)


def other_plate(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("patients", x.shape[0]):
        numpyro.sample("y", dist.Normal(b * x, 1.0), obs=y)


def fixed_plate(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", 500):
        numpyro.sample("y", dist.Normal(b * x, 1.0), obs=y)


def fixed_subsample(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", 500, subsample_size=1) as rows:
        numpyro.sample("y", dist.Normal(b * x[rows], 1.0), obs=y[rows])


def own_subsample(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0], subsample_size=1) as rows:
        numpyro.sample("y", dist.Normal(b * x[rows], 1.0), obs=y[rows])


def two_sizes(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", 500, subsample_size=x.shape[0]):
        numpyro.sample("x", dist.Normal(b, 1.0), obs=x)
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(b, 1.0), obs=y)


def random_groups(x, y):
    with numpyro.plate("groups", 4, subsample_size=2):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(b.sum() * x, 1.0), obs=y)


def discrete(x, y):
    b = numpyro.sample("b", dist.Bernoulli(0.5))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(b * x, 1.0), obs=y)


def directional(x, y):
    b = numpyro.sample("b", dist.ProjectedNormal(jnp.ones(3)))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(b[0] * x, 1.0), obs=y)


def local(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        z = numpyro.sample("z", dist.Normal(b, 1.0))
        numpyro.sample("y", dist.Normal(z * x, 1.0), obs=y)


def local_by_shape(x, y):
    z = numpyro.sample("z", dist.Normal(0.0, 1.0), sample_shape=(x.shape[0],))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(z * x, 1.0), obs=y)


def imputed(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(b, 1.0), obs=y, obs_mask=x > 0.0)


def observed_outside(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    numpyro.sample("mean", dist.Normal(b, 1.0), obs=x.mean())
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(b, 1.0), obs=y)


def factor_of_records(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    numpyro.factor("penalty", -b * x.sum())
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(b, 1.0), obs=y)


def factor_of_the_count(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    numpyro.factor("penalty", -(b**2) * x.shape[0])
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(b, 1.0), obs=y)


def prior_of_records(x, y):
    b = numpyro.sample("b", dist.Normal(y.mean(), 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(b * x, 1.0), obs=y)


def support_of_records(x, y):
    # In the unconstrained coordinate the density does not see the bounds; the value does.
    b = numpyro.sample("b", dist.Uniform(0.0, 1.0 + x.max()))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(b, 1.0), obs=y)


def moving_support(x, y):
    a = numpyro.sample("a", dist.HalfNormal(1.0))
    b = numpyro.sample("b", dist.Uniform(0.0, a))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(b * x, 1.0), obs=y)


def no_latents(x, y):
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)


def nothing_observed(x, y):
    numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        pass


def parameter(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    noise = numpyro.param("noise", 1.0)
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(b * x, noise), obs=y)


def mutable(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    numpyro.primitives.mutable("calls", {"value": 0.0})
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(b * x, 1.0), obs=y)


def scanned(x, y):
    def walk(state, _):
        return numpyro.sample("b", dist.Normal(state, 1.0)), None

    b, _ = scan(walk, 0.0, jnp.arange(3))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(b * x, 1.0), obs=y)


def standardised(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    x = x - x.mean()
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(b * x, 1.0), obs=y)


def divided_by_spread(x, y):
    # One record alone has no spread and gives NaN, two together do not.
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    x = (x - x.mean()) / x.std()
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(b * x, 1.0), obs=y)


def joint_event(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(b * x, 1.0).to_event(1), obs=y)


def outer_product(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(b * x, 1.0), obs=y[:, None])


def branching(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    sign = 1.0 if b > 0.0 else -1.0
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(sign * b * x, 1.0), obs=y)


def raising(x, y):
    raise KeyError("age")


def broken_prior(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, jnp.sqrt(-1.0)))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(b * x, 1.0), obs=y)


PLATE = r'`with numpyro\.plate\("records", x\.shape\[0\]\):`'
REFUSED = [
    (no_plate, "`no_plate` has no plate `records`.*plates found: none", PLATE),
    (other_plate, r"plates found: `patients` \(size 1\)", PLATE + r'.*`plate="patients"`'),
    (
        fixed_plate,
        "`records` holds 500 records when the model is called with 1;",
        r'`numpyro\.plate\("records", x\.shape\[0\]\)`, or .*500, subsample_size=x\.shape\[0\]',
    ),
    (fixed_subsample, "holds 1 records when the model is called with 2", "subsample_size=x.shape"),
    (own_subsample, "holds 1 records when the model is called with 2", "N, subsample_size=x.shape"),
    (two_sizes, "plate `records` is made with the sizes 1 and 500", "x.shape"),
    (random_groups, "plate `groups` draws 2 of 4 at random", r'numpyro.plate\("groups", 4\)'),
    (discrete, r"latent `b` is discrete \(BernoulliProbs\)", "sum it out"),
    (directional, r"support of the latent `b` \(ProjectedNormal\) has no map", "Reparam"),
    (local, "`z` is a latent of each record", "marginalise it.*DPSVI"),
    (local_by_shape, r"`z` has shape \(1,\) with one record and \(2,\) with two", "marginalise"),
    (imputed, "`y_unobserved` is a latent of each record", "numpyro.handlers.mask"),
    (observed_outside, "`mean` is observed outside plate `records`", PLATE),
    (factor_of_records, "the term `penalty` outside plate `records` depends on the", PLATE),
    (factor_of_the_count, "`penalty` outside .* or on how many there are", "public"),
    (prior_of_records, "the term `b` outside plate `records` depends on the records", "public"),
    (support_of_records, "the term `b` outside plate `records` depends on the", "public"),
    (moving_support, "the support of `b` depends on another latent", "deterministic"),
    (no_latents, "has no global latents", "numpyro.sample"),
    (nothing_observed, "nothing is observed inside plate `records`", PLATE),
    (parameter, "`noise` is a numpyro.param site, and it has no prior", "numpyro.sample"),
    (mutable, "`calls` is a numpyro.mutable site", "running statistics"),
    (scanned, "`scanned`: numpyro.contrib.control_flow is used", "Python loop"),
    (standardised, "two made-up records have the log likelihood", "no mean over records"),
    (divided_by_spread, "two made-up records .* nan and nan alone", "no mean over records"),
    (joint_event, "two made-up records have the log likelihood", "to_event"),
    (outer_product, "two made-up records have the log likelihood", "one shape for an outcome"),
    (branching, "cannot be compiled and differentiated by JAX: Tracer", "jnp.where"),
    (raising, r"fails on placeholder records.*`x` \(1,\), `y` \(1,\): KeyError: 'age'", "raising"),
    (broken_prior, "log density of `b` is nan", "parameters"),
]


@pytest.mark.nightly(
    only=(
        "random_groups",
        "fixed_subsample",
        "divided_by_spread",
        "support_of_records",
        "directional",
    )
)
@pytest.mark.parametrize(
    ("function", "message", "hint"), REFUSED, ids=[case[0].__name__ for case in REFUSED]
)
def test_a_model_that_cannot_be_split_is_refused_with_a_way_out(function, message, hint):
    check_refused(
        lambda: numpyro_model(function, {"x": np.zeros(()), "y": np.zeros(())}), message, hint
    )


def test_the_given_name_is_what_messages_call_the_model():
    check_refused(
        lambda: numpyro_model(no_plate, {"x": 0.0, "y": 0.0}, name="survival"), "`survival`", "."
    )


def test_an_example_that_does_not_fit_the_model_is_refused():
    check_refused(lambda: numpyro_model(logistic, {}), "example is empty", "np.zeros")
    check_refused(
        lambda: numpyro_model(logistic, {"x": np.zeros(3), "z": 0}),
        "TypeError: .*unexpected keyword argument 'z'",
        "`logistic\\(x=x, z=z\\)`",
    )


@pytest.mark.parametrize("value", ["north", None, np.zeros(2, complex)])
def test_an_example_that_is_no_number_is_refused(value):
    check_refused(
        lambda: numpyro_model(logistic, {"x": np.zeros(3), "y": value}),
        "`y` of the example is (<U5|object|complex128), expected floats, integers or booleans",
        "number the levels",
    )


def test_a_record_that_does_not_fit_the_example_is_refused():
    model = split("hierarchical")
    theta = jnp.zeros(model.size)
    record = {"x": 0.5, "g": np.int32(1), "y": 0.5}
    assert np.isfinite(model.log_likelihood(theta, record))
    check_refused(
        lambda: model.log_likelihood(theta, {"x": 0.5, "y": 0.5}),
        "the record has `x`, `y`, expected `x`, `g`, `y`",
        "example",
    )
    check_refused(
        lambda: model.log_likelihood(theta, record | {"x": np.zeros(1)}),
        r"`x` of the record has shape \(1,\), expected \(\)",
        "jax.vmap",
    )
    check_refused(
        lambda: model.log_likelihood(theta, record | {"g": 1.0}),
        "`g` of the record is float32, expected int32",
        "floating",
    )


def test_integer_values_of_a_floating_column_are_converted():
    model = split("hierarchical")
    theta = jnp.zeros(model.size)
    record = {"x": 2.0, "g": np.int32(1), "y": 3.0}
    assert model.log_likelihood(theta, record) == model.log_likelihood(
        theta, record | {"x": 2, "y": 3}
    )


def test_theta_of_the_wrong_size_is_refused():
    check_refused(
        lambda: split("logistic").log_prior(jnp.zeros(4)),
        r"shape \(4,\), expected .*\(3,\)",
        "vmap",
    )


def standardised_logarithms(x, y):
    b, z = numpyro.sample("b", dist.Normal(0.0, 1.0)), jnp.log(x - 5.0)
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(b * (z - z.mean()), 1.0), obs=y)


def centred_where_large(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        mean = b * jnp.where(x > 2.0, x - x.mean(), x)
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def prior_of_logarithms(x, y):
    b = numpyro.sample("b", dist.Normal(jnp.where((x > 2.0).any(), 1.0, 0.0), 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(b * x, 1.0), obs=y)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (standardised_logarithms, "two made-up records have the log likelihood"),
        (centred_where_large, "two made-up records have the log likelihood"),
        (prior_of_logarithms, "the term `b` outside plate `records` depends on the records"),
    ],
)
def test_records_mixed_beyond_the_usual_made_up_numbers_are_refused(function, message):
    check_refused(
        lambda: numpyro_model(function, {"x": np.zeros(()), "y": np.zeros(())}), message, "public"
    )


def test_a_likelihood_that_is_finite_only_far_from_1_is_compared_there():
    def rooted(x, y):
        mean = jax.nn.sigmoid(numpyro.sample("b", dist.Normal(0.0, 1.0)) * jnp.sqrt(x - 18.0))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Beta(5.0 * mean, 5.0 * (1.0 - mean)), obs=y)

    def nowhere(x, y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Normal(b * jnp.log(x - 123456.0), 1.0), obs=y)

    example = {"x": np.zeros(()), "y": np.zeros(())}
    assert numpyro_model(rooted, example).names == ("b",)
    with pytest.warns(UserWarning, match="whether records are kept apart was not checked"):
        numpyro_model(nowhere, example)
