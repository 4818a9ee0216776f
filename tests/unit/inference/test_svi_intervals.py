"""Intervals of `DPSVI`: told the noise where they can be, and where not, said to be none."""

import copy
import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Predictive, Trace_ELBO, autoguide
from numpyro.infer.svi import SVIRunResult

import fedvi
from fedvi import errors
from fedvi.inference import noise_told, response
from fedvi.inference.noise_told import DPSVIRunResult
from fedvi.models.guided_terms import Guided
from fedvi.models.layout import layout
from fedvi.models.made_up import ONE
from fedvi.models.plates import numpyro_rules, transform_of
from tests.unit.inference.test_svi import KINDS

pytestmark = pytest.mark.numpyro

N, STEPS = 60, 60
ADAM = numpyro.optim.Adam(0.05)


def linear(x, y=None):
    b = numpyro.sample("b", dist.Normal(1.0, 2.0).expand([2]).to_event(1))
    a = numpyro.sample("a", dist.Normal(0.0, 0.5))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(a + x @ b, 1.0), obs=y)


def records():
    random = np.random.default_rng(0)
    x = random.normal(size=(N, 2)).astype(np.float32)
    return x, (x.sum(axis=1) + random.normal(size=N)).astype(np.float32)


def exact(x, y):
    """The posterior of (a, b) in closed form."""
    full = np.column_stack([np.ones(N), x]).astype(float)
    prior = np.diag([4.0, 0.25, 0.25])
    covariance = np.linalg.inv(prior + full.T @ full)
    return covariance @ (full.T @ y + prior @ [0.0, 1.0, 1.0]), covariance


def fitted(model=linear, guide=autoguide.AutoDiagonalNormal, data=None, noise=0.0, **options):
    settings = {"delta": 1e-3, "insecure_seed": 0} if noise else {"clip_norm": float("inf")}
    data = data or records()
    plan = fedvi.privacy.sgd(
        steps=STEPS,
        max_records=len(data[0]),
        sampler="full",
        noise_multiplier=noise,
        **settings,
    )
    svi = fedvi.DPSVI(model, guide(model), ADAM, Trace_ELBO(), plan, **options)
    return svi, svi.run(jax.random.key(0), STEPS, *data, progress_bar=False)


@pytest.mark.nightly(but=("AutoDiagonalNormal-full",))
@pytest.mark.parametrize("gradients", ["full", "aligned"])
@pytest.mark.parametrize(
    "guide",
    [
        autoguide.AutoNormal,
        autoguide.AutoDiagonalNormal,
        autoguide.AutoMultivariateNormal,
        autoguide.AutoLowRankMultivariateNormal,
    ],
    ids=lambda guide: guide.__name__,
)
def test_without_noise_intervals_are_those_of_the_exact_posterior(guide, gradients):
    # Sixty steps from a random start: none of these guides has converged.
    _, result = fitted(guide=guide, gradients=gradients)
    mean, covariance = exact(*records())
    found = result.noise_aware()
    np.testing.assert_allclose(found.mean, mean, atol=2e-3)
    np.testing.assert_allclose(found.covariance, covariance, rtol=2e-2, atol=1e-4)
    assert result.remark == ""


@functools.cache
def noisy():
    """One noised run, which several tests look at."""
    return fitted(noise=6.0)


def test_noise_is_told_and_the_result_says_that_the_guide_does_not_hold_it():
    _, plain = fitted()
    _, result = noisy()
    for name, interval in result.intervals().items():
        assert (np.diff(interval, axis=0) > 1.5 * np.diff(plain.intervals()[name], axis=0)).all()
    assert "do not include the noise of the gradients" in repr(result)
    assert "no interval accounts for clipping" in str(result.noise_aware())


def test_draws_and_quantiles_are_of_one_law():
    found = noisy()[1].noise_aware()
    draws = found.sample(jax.random.key(1), (4000,))
    assert {name: value.shape for name, value in draws.items()} == {"a": (4000,), "b": (4000, 2)}
    for name, ends in found.intervals(0.5).items():
        inside = (draws[name] > ends[0]) & (draws[name] < ends[1])
        # A share of 4,000 at one half has a standard error of 0.008.
        np.testing.assert_allclose(inside.mean(axis=0), 0.5, atol=0.04)
    outcomes = Predictive(linear, posterior_samples=draws)(jax.random.key(2), records()[0])["y"]
    assert outcomes.shape == (4000, N)
    with pytest.raises(errors.ConfigError, match="level is 95, expected a number between 0 and 1"):
        found.intervals(95)


def test_a_result_is_numpyros_and_loses_the_fit_in_a_copy():
    svi, result = noisy()
    assert isinstance(result, SVIRunResult)
    params, state, losses = result
    assert params is result.params
    assert losses.shape == (STEPS,)
    for again in (copy.deepcopy(result._replace(state=0)), jax.tree.map(jnp.asarray, result)):
        with pytest.raises(errors.SolverError, match="lost the fit"):
            again.noise_aware()
    np.testing.assert_array_equal(svi.noise_aware(state).mean, result.noise_aware().mean)


@pytest.mark.nightly
def test_sums_are_the_same_step_by_step_and_in_two_runs():
    x, y = records()
    _, once = noisy()
    plan = fedvi.privacy.sgd(
        steps=STEPS,
        max_records=N,
        sampler="full",
        noise_multiplier=6.0,
        delta=1e-3,
        insecure_seed=0,
    )
    svi = fedvi.DPSVI(linear, autoguide.AutoDiagonalNormal(linear), ADAM, Trace_ELBO(), plan)
    part = svi.run(jax.random.key(0), STEPS - 2, x, y, progress_bar=False).state
    for _ in range(2):
        part, _ = svi.update(part, x, y)
    for a, b in zip(part.seen, once.state.seen, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3 * float(jnp.abs(b).max()))


REFUSED = {
    "flow": ({}, "AutoIAFNormal is not one of NumPyro's automatic Gaussian guides"),
    "network": ({}, r"parameters beside its latents: net\$params"),
    "logistic": ({"clipping": "normalised"}, "clipping='normalised' rescales"),
    "hierarchical": ({"clip": "elbo"}, "clip='elbo' clips the prior"),
}


@pytest.mark.nightly(but=("network", "logistic"))
@pytest.mark.parametrize("kind", REFUSED)
def test_where_no_interval_is_honest_there_is_none(kind):
    options, reason = REFUSED[kind]
    model, guide, data = KINDS[kind]
    plan = fedvi.privacy.sgd(
        steps=5, max_records=24, sampler="full", noise_multiplier=6.0, delta=1e-3, insecure_seed=0
    )
    svi = fedvi.DPSVI(model, guide(model), ADAM, Trace_ELBO(), plan, **options)
    state = svi.init(jax.random.key(0), *data())
    assert state.seen is None
    with pytest.raises(errors.SolverError, match=reason):
        svi.noise_aware(state)
    said = DPSVIRunResult.of(svi, None, state, None).remark
    assert "no others are honest" in said
    assert "do not include the noise of the gradients" in said


def normal(name, *shape, scale=1.0):
    return numpyro.sample(name, dist.Normal(0.0, scale).expand(shape).to_event(len(shape)))


def positive(name):
    return numpyro.sample(name, dist.HalfNormal(1.0))


def of_predictors(outcome, count=1, **more):
    """A regression: ``outcome`` of (predictors [N, count], other latents, y)."""

    def model(x, y=None):
        predictors = x @ normal("b", x.shape[1], count)
        others = {name: make(name) for name, make in more.items()}
        with numpyro.plate("records", x.shape[0]):
            outcome(predictors, others, y)

    return model


def of_a_network(outcome, units, count=1, bend=jnp.tanh):
    """As ``of_predictors``, of one layer of units."""

    def model(x, y=None):
        hidden = bend(x @ normal("first", x.shape[1], units) + normal("shift", units))
        predictors = hidden @ normal("last", units, count) + normal("level", count)
        with numpyro.plate("records", x.shape[0]):
            outcome(predictors, {}, y)

    return model


def observed(law):
    return lambda eta, others, y: numpyro.sample("y", law(eta, others), obs=y)


def weibull(eta, others, y):
    rate = (y / jnp.exp(eta[:, 0])) ** others["shape"]
    numpyro.factor("y", jnp.log(others["shape"]) - eta[:, 0] - rate)


def two_layers(x, y=None):
    low = x @ normal("first", x.shape[1], 2) @ normal("last", 2)
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(low, 1.0), obs=y)


def scaled_effects(x, y=None):
    level = normal("b", x.shape[1]) * positive("spread")
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ level, 1.0), obs=y)


def two_groups(x, y=None):
    levels, share = normal("levels", 2), numpyro.sample("share", dist.Dirichlet(jnp.ones(2)))
    parts = dist.Normal(levels, 1.0)
    slope = x @ normal("b", x.shape[1])
    with numpyro.plate("records", x.shape[0]):
        mixed = dist.MixtureSameFamily(dist.Categorical(share), parts)
        numpyro.sample("y", mixed, obs=y - slope)


LAWS = {
    "gaussian": (1, lambda eta, _: dist.Normal(eta[:, 0], 0.5)),
    "binary": (1, lambda eta, _: dist.Bernoulli(logits=eta[:, 0])),
    "count": (1, lambda eta, _: dist.Poisson(jnp.exp(eta[:, 0]))),
    "three classes": (3, lambda eta, _: dist.Categorical(logits=eta)),
    "shares": (3, lambda eta, _: dist.Categorical(probs=jax.nn.softmax(eta))),
    "mean and scale": (2, lambda eta, _: dist.Normal(eta[:, 0], jnp.exp(eta[:, 1]))),
    "log normal": (1, lambda eta, _: dist.LogNormal(eta[:, 0], 1.0)),
}
LIKE = {name: of_predictors(observed(law), count) for name, (count, law) in LAWS.items()} | {
    "its own scale": of_predictors(
        observed(lambda eta, more: dist.StudentT(4.0, eta[:, 0], more["sd"])), sd=positive
    ),
    "gamma": of_predictors(
        observed(lambda eta, more: dist.Gamma(more["k"], more["k"] * jnp.exp(-eta[:, 0]))),
        k=positive,
    ),
    "zeros": of_predictors(
        observed(lambda eta, more: dist.ZeroInflatedPoisson(more["none"], jnp.exp(eta[:, 0]))),
        none=lambda name: numpyro.sample(name, dist.Beta(2.0, 2.0)),
    ),
    "levels": of_predictors(
        observed(lambda eta, more: dist.OrderedLogistic(eta[:, 0], more["cuts"])),
        cuts=lambda name: numpyro.sample(
            name,
            dist.TransformedDistribution(
                dist.Normal(0.0, 1.0).expand([3]).to_event(1),
                dist.transforms.OrderedTransform(),
            ),
        ),
    ),
    "survival as a factor": of_predictors(weibull, shape=positive),
}
COUNTS = ("count", "three classes", "shares", "zeros", "levels")
UNLIKE = {
    f"{name} of {units} {bend.__name__}": of_a_network(observed(law), units, count, bend)
    for name, (count, law) in LAWS.items()
    for units, bend in ((1, jnp.tanh), (4, jnp.tanh), (9, jax.nn.relu))
} | {"two linear layers": two_layers, "scaled": scaled_effects, "mixture": two_groups}


def judged(model, columns, is_count):
    """What is said of a model on so many columns, from no record."""
    x = np.zeros((N, columns), np.float32)
    table = layout((x, np.ones(N, int if is_count else np.float32)), {})
    found = Guided(model, model, {}, "records", table, particles=1, analytic=False)
    seeded = numpyro.handlers.seed(model, 0)
    with numpyro_rules():
        sites = numpyro.handlers.trace(seeded).get_trace(*table.call(table.made_up(ONE))[0])
        sites = {
            name: site
            for name, site in sites.items()
            if site["type"] == "sample" and not site["is_observed"]
        }
        ways = {name: transform_of(site) for name, site in sites.items()}
        like = {name: ways[name].inv(site["value"]) for name, site in sites.items()}
    return noise_told.unlike_a_regression(found, noise_told.Latents(ways, like))


@pytest.mark.nightly(but=("binary-2", "its own scale-8"))
@pytest.mark.parametrize("columns", [2, 8])
@pytest.mark.parametrize("name", LIKE)
def test_regressions_of_every_outcome_have_intervals(name, columns):
    assert judged(LIKE[name], columns, name in COUNTS) == ""


# With many columns a network has many more latents than its record's gradients span: a limit that is a
# share of the latents lets it through.
@pytest.mark.nightly(but=("gaussian of 4 tanh-16", "scaled-2"))
@pytest.mark.parametrize("columns", [2, 16])
@pytest.mark.parametrize("name", UNLIKE)
def test_networks_products_and_mixtures_have_no_intervals(name, columns):
    assert "as those of networks" in judged(
        UNLIKE[name], columns, any(map(name.startswith, COUNTS))
    )


@pytest.mark.parametrize("directions", [0, 1, 2])
def test_intervals_say_when_they_are_of_no_use(directions):
    latents = noise_told.Latents({"b": lambda value: value}, {"b": np.zeros(2)})
    found = noise_told.NoiseAware(latents, response.Told(np.zeros(2), np.eye(2), directions))
    assert ("of no use" in found.remark) == (directions == 2)
    assert ("1 of 2 directions" in found.remark) == (directions == 1)


# What a fit and its result say of themselves


def test_a_fit_and_its_result_say_what_they_are_and_nothing_private():
    svi, result = noisy()
    assert repr(svi) == (f"DPSVI(linear; {svi.privacy.promised}; 1 of 1 run charged)")
    assert "losses" in str(svi.summary())
    said = [
        repr(result),
        str(result.summary()),
        result._repr_html_(),
        repr(result.state),
        repr(svi),
    ]
    said += [svi._repr_html_(), repr(result.noise_aware())]
    secrets = [jax.random.key_data(result.state.noise_key), *records(), result.losses]
    for text in said:
        assert len(text) < 3000
        assert "rray" not in text
        for secret in secrets:
            for number in np.asarray(secret).ravel()[:50]:
                assert len(str(number)) < 5 or str(number) not in text
    assert "step=60" in repr(result.state)
    assert "losses withheld" in repr(result)
    # The promise's mark, and what intervals are worth, go wherever the numbers go.
    assert result.warnings[0] == "simulation: no guarantee"
    assert "do not include the noise of the gradients" in result.warnings[1]
    for warning in result.warnings:
        assert warning.split(";")[0][:50] in str(result.summary()).replace("\n  ", " ")
    rows = {row[0]: row[1:] for row in result.noise_aware().rows()}
    assert set(rows) == {"a", "b[0]", "b[1]"}
    assert f"{rows['a'][0]:.4g}" in str(result.summary())


def test_a_copy_of_a_result_says_what_it_still_knows():
    _, result = noisy()
    left = copy.copy(result)
    left._fit = None
    assert left.warnings == ()
    assert "auto_loc" in str(left.summary())


def test_a_fit_that_was_not_started_says_so():
    plan = fedvi.privacy.sgd(
        steps=5, runs=2, max_records=9, sampler="full", noise_multiplier=3.0, delta=1e-3
    )
    svi = fedvi.DPSVI(
        linear, autoguide.AutoNormal(linear), ADAM, Trace_ELBO(), plan, loss_bound=3.0
    )
    assert "0 of 2 runs charged" in repr(svi)
    assert "released, up to 3" in str(svi.summary())
