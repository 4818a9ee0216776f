"""What `DPSVI` takes: every guide with a density, local latents, modules, kwargs, and JAX's transforms.

`test_svi.py` has the five kinds of models, the options, the budget and the commonest refusals.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import linen, nnx
from numpyro import handlers
from numpyro.contrib.module import nnx_module, random_flax_module, random_nnx_module
from numpyro.infer import SVI, Trace_ELBO, autoguide

import fedvi
from fedvi import errors
from fedvi.inference.svi import DPSVI

pytestmark = pytest.mark.numpyro

N = 8


def nothing(**settings):
    """The plan of a descent that protects nothing, on all records."""
    plan = {"steps": 9, "max_records": N, "noise_multiplier": 0.0, "clip_norm": float("inf")}
    return fedvi.privacy.sgd(**{**plan, "sampler": "full", **settings})


def private(**settings):
    plan = {"steps": 9, "max_records": N, "noise_multiplier": 4.0, "delta": 1e-3, "batch": 4}
    return fedvi.privacy.sgd(**{**plan, "insecure_seed": 1, **settings})


def table(seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(N, 3)).astype(np.float32)
    return x, (x.sum(axis=1) + random.normal(size=N) > 0).astype(np.float32)


def descent(model, guide=autoguide.AutoNormal, plan=None, optim=None, **static):
    made = guide(model) if isinstance(guide, type) else guide
    optim = optim or numpyro.optim.SGD(0.1)
    return DPSVI(model, made, optim, Trace_ELBO(), plan or private(), **static)


def observed(logits, y, plate="records"):
    with numpyro.plate(plate, logits.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def weights(*shape):
    return numpyro.sample("b", dist.Normal(0.0, 2.0).expand(shape).to_event(1))


def logistic(x, y=None):
    observed(x @ weights(3), y)


def batched(x, y=None):
    observed(x @ weights(2, 3).sum(axis=0), y)


def regression(x, y=None):
    b, sd = weights(3), numpyro.sample("sd", dist.HalfNormal(1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ b, sd), obs=y)


def constrained(x, y=None):
    shift = numpyro.param("shift", 1.0, constraint=dist.constraints.interval(0.5, 2.0))
    part = numpyro.sample("part", dist.Uniform(0.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    sd = numpyro.sample("sd", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(part * x @ b + shift, sd), obs=y)


def constrained_guide(x, y=None):
    low, high = numpyro.param(
        "ends", jnp.array([0.5, 3.0]), constraint=dist.constraints.positive_ordered_vector
    )
    unit = dist.transforms.SigmoidTransform()
    numpyro.sample("part", dist.TransformedDistribution(dist.Normal(low, high), unit))
    centre = numpyro.param(
        "centre", jnp.array([0.2, 0.3, 0.5]), constraint=dist.constraints.simplex
    )
    root = dist.constraints.lower_cholesky
    scale = numpyro.param("scale", 0.1 * jnp.eye(3), constraint=root)
    numpyro.sample("b", dist.MultivariateNormal(centre, scale_tril=scale))
    sd = numpyro.param("sd_sd", 0.3, constraint=dist.constraints.positive)
    numpyro.sample("sd", dist.LogNormal(numpyro.param("sd_loc", 0.0), sd))


def by_group(x, *, y=None, group, seen, levels=4):
    with numpyro.plate("groups", levels):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    logits = level[group] + x @ weights(3)
    with numpyro.plate("records", x.shape[0]), handlers.mask(mask=seen), handlers.scale(scale=2.0):
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def in_two_plates(x):
    with numpyro.plate("columns", 3):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0], dim=-2), numpyro.plate("again", 3, dim=-1):
        numpyro.sample("x", dist.Normal(b, 1.0), obs=x)


def with_factor(x, y=None):
    b = weights(3)
    with numpyro.plate("records", x.shape[0]):
        numpyro.factor("penalty", -jnp.abs(x @ b))
        numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)


def shares(x, y=None):
    mean = jax.nn.sigmoid(x @ weights(3))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Beta(5.0 * mean, 5.0 * (1.0 - mean)), obs=y)


def rooted(x, y=None):
    observed(jnp.sqrt(x - 18.0) @ weights(3), y)


class Dense(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(1)(x)[..., 0]


class Linear(nnx.Module):
    def __init__(self, *last):
        self.layers = nnx.List([nnx.Linear(3, 1, rngs=nnx.Rngs(params=0)), *last])

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x[..., 0]


def module(declare, x, y=None):
    observed(declare()(x), y)


random_linen = functools.partial(
    module,
    lambda: random_flax_module(
        "net",
        Dense(),
        prior={"Dense_0.kernel": dist.Normal(), "Dense_0.bias": dist.Cauchy()},
        input_shape=(1, 3),
    ),
)
random_nnx = functools.partial(
    module, lambda: random_nnx_module("net", Linear(), prior=dist.Normal())
)


def plain_nnx(x, y=None):
    net, slope = nnx_module("net", Linear()), numpyro.sample("slope", dist.LogNormal(0.0, 1.0))
    observed(slope * net(x), y)


def in_parts(second, model=regression):
    """A guide made of others: one for "b", another for "sd"."""
    guide = autoguide.AutoGuideList(model)
    guide.append(autoguide.AutoNormal(handlers.block(model, hide=["sd"])))
    if isinstance(second, type):
        second = second(handlers.block(model, expose=["sd"]))
    guide.append(second)
    return guide


def by_hand(x, y=None):
    scale = numpyro.param("scale", 0.1, constraint=dist.constraints.positive)
    return {"sd": numpyro.sample("sd", dist.LogNormal(numpyro.param("loc", 0.0), scale))}


def grouped():
    x, y = table()
    group = (np.arange(N) % 4).astype(np.int8)
    return (x,), {"y": y, "group": group, "seen": np.arange(N) % 3 != 0}


def rows(count=2):
    return lambda: (table()[:count], {})


def between():
    x, y = table()
    return (x, (0.1 + 0.8 * y).astype(np.float32)), {}


def adults():
    x, y = table()
    return (x + 30.0, y), {}


TAKEN = {
    "an outcome that 1 is not in": (shares, autoguide.AutoNormal, between),
    "a covariate that 1 is not in": (rooted, autoguide.AutoNormal, adults),
    "block neural flow": (
        logistic,
        lambda model: autoguide.AutoBNAFNormal(model, num_flows=1, hidden_factors=[2]),
        rows(),
    ),
    "batched normal": (
        batched,
        lambda model: autoguide.AutoBatchedMultivariateNormal(model, batch_ndim=1),
        rows(),
    ),
    "batched low rank": (
        batched,
        lambda model: autoguide.AutoBatchedLowRankMultivariateNormal(model, batch_ndim=1, rank=1),
        rows(),
    ),
    "two guides": (regression, lambda _: in_parts(autoguide.AutoDiagonalNormal), rows()),
    "a guide and a function": (regression, lambda _: in_parts(by_hand), rows()),
    "constraints": (constrained, lambda _: constrained_guide, rows()),
    "groups, masks and scales": (by_group, autoguide.AutoNormal, grouped),
    "a plate inside the records'": (in_two_plates, autoguide.AutoNormal, rows(1)),
    "a factor": (with_factor, autoguide.AutoNormal, rows()),
    "nnx": (plain_nnx, autoguide.AutoNormal, rows()),
    "random linen": (random_linen, autoguide.AutoNormal, rows()),
    "random nnx": (random_nnx, autoguide.AutoNormal, rows()),
}


@pytest.mark.nightly(but=("a factor",))
@pytest.mark.parametrize("kind", TAKEN)
def test_without_noise_and_clipping_its_step_is_that_of_svi(kind):
    model, guide, data = TAKEN[kind]
    args, kwargs = data()
    ends = []
    for fit in (
        descent(model, guide(model), nothing()),
        SVI(model, guide(model), numpyro.optim.SGD(0.1), Trace_ELBO()),
    ):
        start = fit.init(jax.random.key(1), *args, **kwargs)
        end, _ = jax.jit(fit.update)(start, *args, **kwargs)
        ends.append((fit.get_params(start), fit.get_params(end)))
    (ours, moved), (theirs, expected) = ends
    for found, wanted in ((ours, theirs), (moved, expected)):
        assert jax.tree.structure(found) == jax.tree.structure(wanted)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    assert any(
        not np.allclose(a, b, atol=1e-3)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(moved), strict=True)
    )


def test_every_automatic_guide_is_taken_or_refused_here_or_beside():
    """So that one which NumPyro adds is looked at."""
    beside = {
        "AutoDAIS",
        "AutoDelta",
        "AutoDiagonalNormal",
        "AutoIAFNormal",
        "AutoLaplaceApproximation",
        "AutoLowRankMultivariateNormal",
        "AutoMultivariateNormal",
        "AutoNormal",
    }
    here = {
        "AutoBNAFNormal",
        "AutoBatchedLowRankMultivariateNormal",
        "AutoBatchedMultivariateNormal",
        "AutoGuideList",
        "AutoSemiDAIS",
        "AutoSurrogateLikelihoodDAIS",
    }
    assert set(autoguide.__all__) - {"AutoGuide", "AutoContinuous"} == beside | here


def encoded(x):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("x", dist.Normal(z[:, None] * w, 1.0).to_event(1), obs=x)


def encoder(x):
    loc = numpyro.param("loc", 0.5 * jnp.ones(3))
    numpyro.sample("w", dist.Normal(loc, 0.2).to_event(1))
    slope = numpyro.param("slope", 0.1 * jnp.ones(3))
    sd = numpyro.param("sd", 0.5, constraint=dist.constraints.positive)
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("z", dist.Normal(x @ slope, sd))


@pytest.mark.nightly
def test_local_latents_give_the_gradients_of_svi_and_are_drawn_for_each_record():
    """Over 4,000 keys means agree within 5 standard errors: false alarms below 1e-5 for 7 numbers.

    Variances are within 30 %, which is over 4 of theirs: with one draw for all records, which is
    the bug that means do not show, that of the scale would be several times as large.
    """
    x = np.ones((N, 3), np.float32) * np.array([1.0, -0.5, 0.3], np.float32)
    keys = jax.random.split(jax.random.key(3), 4000)
    gradients = []
    for fit in (
        descent(encoded, encoder, nothing(), numpyro.optim.SGD(1.0)),
        SVI(encoded, encoder, numpyro.optim.SGD(1.0), Trace_ELBO()),
    ):
        start = fit.init(jax.random.key(1), x)

        @jax.jit
        @functools.partial(jax.vmap, in_axes=(0, None))
        def step(key, start, fit=fit):
            end, _ = fit.update(start._replace(rng_key=key), x)
            before, after = (fit.optim.get_params(state.optim_state) for state in (start, end))
            return jax.flatten_util.ravel_pytree(jax.tree.map(jnp.subtract, before, after))[0]

        gradients.append(np.asarray(step(keys, start), np.float64))
    means, variances = ([f(g, axis=0) for g in gradients] for f in (np.mean, np.var))
    errors_ = np.sqrt((variances[0] + variances[1]) / len(keys))
    assert (np.abs(means[0] - means[1]) < 5.0 * errors_).all()
    np.testing.assert_allclose(variances[0], variances[1], rtol=0.3)


@pytest.mark.nightly
@pytest.mark.parametrize("loop", ["scan", "fori_loop"])
def test_updates_inside_ones_own_jit_vmap_and_loop_are_those_one_after_the_other(loop):
    x, y = table()

    def several(fit, state, x, y):
        if loop == "scan":
            return jax.lax.scan(lambda state, _: fit.update(state, x, y), state, length=3)[0]
        return jax.lax.fori_loop(0, 3, lambda _, state: fit.update(state, x, y)[0], state)

    fit, other = (descent(logistic, plan=private(runs=2)) for _ in range(2))
    starts = [fit.init(jax.random.key(run), x, y) for run in range(2)]
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts)
    inside = jax.jit(jax.vmap(functools.partial(several, fit), in_axes=(0, None, None)))
    ends = fit.get_params(inside(together, x, y))
    for run in range(2):
        state = other.init(jax.random.key(run), x, y)
        for _ in range(3):
            state, _ = other.update(state, x, y)
        for name, value in other.get_params(state).items():
            np.testing.assert_allclose(ends[name][run], value, rtol=1e-5, atol=1e-6)
    assert not np.allclose(ends["b_auto_loc"][0], ends["b_auto_loc"][1])


def test_no_noise_root_is_made_inside_a_trace():
    def inside(x):
        descent(logistic, plan=private(insecure_seed=None))
        return x

    with pytest.raises(errors.PrivacyError, match=r"expected outside of any"):
        jax.jit(inside)(1.0)
    fit = descent(logistic)
    with pytest.raises(errors.PrivacyError, match=r"a run was charged under a JAX transformation"):
        jax.jit(lambda key: fit.init(key, *table()))(jax.random.key(0))
    assert fit.privacy.runs == 1
    fit.init(jax.random.key(0), *table())  # the refused one was not charged


@pytest.mark.parametrize("sampler", ["poisson", "feistel"])
def test_more_records_than_batches_are_sized_for_are_refused(sampler):
    fit = descent(logistic, plan=private(max_records=N - 1, sampler=sampler))
    with pytest.raises(
        errors.PrivacyError, match=r"8 rows, expected at most the 7 of max_records"
    ) as raised:
        fit.run(jax.random.key(0), 1, *table(), progress_bar=False)
    assert "max_records" in raised.value.hint


def subsampled(x, y=None):
    b = weights(3)
    with numpyro.plate("records", x.shape[0], subsample_size=4) as chosen:
        numpyro.sample("y", dist.Bernoulli(logits=x[chosen] @ b), obs=y[chosen])


def of_fixed_size(x, y=None):
    b = weights(3)
    with numpyro.plate("records", N):
        numpyro.sample("y", dist.Bernoulli(logits=x @ b), obs=y)


def neighbour(x, y=None):
    observed(jnp.roll(x, 1, axis=0) @ weights(3), y)


def nested(x, y=None):
    b = weights(3)
    with numpyro.plate("groups", x.shape[0], dim=-2), numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ b), obs=y)


def discrete(x, y=None):
    flipped = numpyro.sample("flipped", dist.Bernoulli(0.5))
    observed(flipped * (x @ weights(3)), y)


def centred_guide(x, y=None):
    loc = numpyro.param("loc", jnp.zeros(3)) + x.mean(axis=0)
    numpyro.sample("b", dist.Normal(loc, 1.0).to_event(1))


def local(x, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        z = numpyro.sample("z", dist.Normal(b, 1.0))
        numpyro.sample("y", dist.Normal(z, 1.0), obs=y)


def surrogate(*_):
    numpyro.sample("b", dist.Normal(0.0, 2.0).expand([3]).to_event(1))


def with_statistics(*last):
    return functools.partial(module, lambda: nnx_module("net", Linear(*last)))


# NumPyro warns of two of them as well.
@pytest.mark.nightly(
    only=(
        "subsampled-AutoNormal-draws 4 records at random",
        "local-<lambda>-draws with gradients of the model on all records",
        "of_fixed_size-AutoNormal-no shape may be fixed to the size",
    )
)
@pytest.mark.filterwarnings("ignore:subsample_size does not match")
@pytest.mark.filterwarnings("ignore:Currently, SVI with Trace_ELBO loss does not support")
@pytest.mark.filterwarnings("ignore:Found vars in model but not guide")
@pytest.mark.parametrize(
    ("model", "guide", "said"),
    [
        (subsampled, autoguide.AutoNormal, r"draws 4 records at random"),
        (of_fixed_size, autoguide.AutoNormal, r"no shape may be fixed to the size"),
        (nested, autoguide.AutoNormal, r"2 plates follow the number of records"),
        (neighbour, autoguide.AutoNormal, r"'model y' of a record changes when another record"),
        (logistic, lambda _: centred_guide, r"'guide b' outside of plate|'model b' outside of"),
        (discrete, lambda _: centred_guide, r"discrete"),
        (
            local,
            lambda model: autoguide.AutoSemiDAIS(model, lambda *_: None, None),
            r"draws with gradients of the model on all records",
        ),
        (
            logistic,
            lambda model: autoguide.AutoSurrogateLikelihoodDAIS(model, surrogate),
            r"draws with gradients of the model on all records",
        ),
        (
            with_statistics(nnx.BatchNorm(1, rngs=nnx.Rngs(0))),
            lambda model: autoguide.AutoNormal(model),
            r"mutable state",
        ),
        (
            with_statistics(nnx.Dropout(0.5, rngs=nnx.Rngs(0))),
            lambda model: autoguide.AutoNormal(model),
            r"mutable state",
        ),
    ],
)
def test_what_cannot_be_taken_apart_is_refused_with_a_way_out(model, guide, said):
    fit = descent(model, guide(model))
    with pytest.raises(errors.ModelError, match=said) as raised:
        fit.init(jax.random.key(0), *table())
    assert raised.value.hint
    with pytest.raises(errors.SolverError, match=r"no ledger before `init`"):
        _ = fit.ledger  # nothing was charged


def point(x, y=None):
    loc = numpyro.param("loc", jnp.zeros(3))
    numpyro.sample("b", dist.Delta(loc).to_event(1))


def spread_point(x, y=None):
    numpyro.sample("b", dist.Delta(numpyro.param("loc", 0.0)).expand([3]).to_event(1))


def ranked(x, y=None):
    place = numpyro.deterministic("place", jnp.argsort(jnp.argsort(x[:, 0])) * 1.0)
    observed(place * numpyro.sample("b", dist.Normal(0.0, 1.0)), y)


def in_time(x, y=None):
    observed(jnp.arange(x.shape[0]) * numpyro.sample("b", dist.Normal(0.0, 1.0)), y)


def averaged(x, y=None):
    with handlers.scale(scale=1.0 / x.shape[0]):
        logistic(x, y)


@pytest.mark.parametrize("model", [ranked, in_time, averaged])
def test_a_record_that_uses_its_place_or_the_number_of_records_is_refused(model):
    """A step calls the model with single records: the place is then 0 and their number 1."""
    fit = descent(model)
    with pytest.raises(errors.ModelError, match="depends on its place or on how many records"):
        fit.init(jax.random.key(0), *table())


@pytest.mark.parametrize(
    ("model", "guide"),
    [
        (regression, lambda _: in_parts(autoguide.AutoDelta)),
        (regression, lambda _: in_parts(autoguide.AutoLaplaceApproximation)),
        (logistic, lambda _: point),
        (logistic, lambda _: spread_point),
    ],
)
def test_a_guide_without_a_density_is_refused_however_it_is_wrapped(model, guide):
    fit = descent(model, guide(model))
    with pytest.raises(errors.ModelError):
        fit.init(jax.random.key(0), *table())


@pytest.mark.nightly(only=("shape-update",))
@pytest.mark.parametrize("call", ["update", "run"])
@pytest.mark.parametrize("foreign", ["shape", "optimiser"])
def test_a_state_of_another_shape_is_refused_with_a_hint(foreign, call):
    def of_any_width(x, y=None):
        observed(x @ weights(x.shape[1]), y)

    x, y = table()
    fit, other = (
        descent(of_any_width),
        descent(of_any_width, optim=numpyro.optim.Adam(0.1) if foreign == "optimiser" else None),
    )
    fit.init(jax.random.key(0), x, y)
    state = other.init(jax.random.key(0), x[:, :2] if foreign == "shape" else x, y)
    take = {
        "update": lambda: fit.update(state, x, y),
        "run": lambda: fit.run(jax.random.key(0), 1, x, y, init_state=state, progress_bar=False),
    }
    with pytest.raises(errors.FedviError) as raised:
        take[call]()
    assert raised.value.hint


def test_a_state_that_a_jitted_function_closes_over_is_refused_with_a_hint():
    """Compiled in, its noise would be the same at every call."""
    fit, (x, y) = descent(logistic), table()
    state = fit.init(jax.random.key(0), x, y)
    with pytest.raises(errors.FedviError):
        jax.jit(lambda x: fit.update(state, x, y))(x)


def test_a_state_that_another_descent_paid_for_is_refused():
    free, paid = descent(logistic, plan=nothing()), descent(logistic)
    paid.init(jax.random.key(0), *table())
    state = free.init(jax.random.key(0), *table())
    with pytest.raises(errors.FedviError):
        paid.update(state, *table())


@pytest.mark.parametrize("sampler", ["full", "poisson"])
def test_too_many_records_are_refused_before_anything_is_charged(sampler):
    batch = None if sampler == "full" else 4
    fit = descent(logistic, plan=private(max_records=N - 1, sampler=sampler, batch=batch))
    with pytest.raises(errors.FedviError, match=r"max_records"):
        fit.init(jax.random.key(0), *table())


def test_epsilon_that_follows_from_the_noise_counts_the_tables_of_the_noise():
    """It cannot be told before the numbers of a step are known, and was refused then."""
    plan = fedvi.privacy.sgd(
        noise_multiplier=2.0, delta=1e-6, steps=10_000, max_records=60_000, batch=128
    )
    fitted = plan.fitted(688_884)
    assert plan.epsilon < fitted.epsilon < 1.01 * plan.epsilon
    assert fitted.open_runs(688_884).ledger.header.epsilon == fitted.epsilon
    promised = fedvi.privacy.sgd(
        epsilon=1.0, delta=1e-6, steps=10_000, max_records=60_000, batch=128
    )
    assert promised.fitted(100).epsilon == 1.0
