"""What users of NumPyro write that `DPSVI` cannot take: it says so before anything is charged."""

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import Trace_ELBO, TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoNormal

import fedvi
from fedvi import errors

pytestmark = pytest.mark.numpyro

N = 12
KEY = jax.random.key(0)


def table():
    random = np.random.default_rng(0)
    x = random.normal(size=(N, 2)).astype(np.float32)
    return x, (x.sum(axis=1) + random.normal(size=N)).astype(np.float32)


def descent(model, guide=AutoNormal, loss=None, optim=None, **options):
    plan = fedvi.privacy.sgd(
        steps=9, max_records=N, noise_multiplier=4.0, delta=1e-3, batch=4, insecure_seed=1
    )
    made = guide(model) if guide in (AutoNormal, AutoDiagonalNormal) else guide
    optim = optim or numpyro.optim.SGD(0.01)
    return fedvi.DPSVI(model, made, optim, loss or Trace_ELBO(), plan, **options)


def refused(fit, kind, said, hint, *args, call="init"):
    """Checks message and hint of a refusal, and that nothing was charged."""
    with pytest.raises(kind, match=said) as raised:
        getattr(fit, call)(*args)
    assert re.search(hint, raised.value.hint)
    with pytest.raises(errors.SolverError, match=r"no ledger before `init`"):
        _ = fit.ledger


def linear(x, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    sd = numpyro.sample("sd", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ b, sd), obs=y)


def drawn_from(size, x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("records", size or x.shape[0], subsample_size=4) as rows:
        if size is None:
            x, y = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        else:
            x, y = jnp.asarray(x)[rows], jnp.asarray(y)[rows]
        numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)


def partly_observed(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y, obs_mask=y > 0.0)


def binary(x, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ b), obs=y)


@pytest.mark.parametrize(
    ("model", "said", "hint"),
    [
        (
            lambda x, y: drawn_from(None, x, y),
            r"'records' draws 4 records",
            r"leave subsample_size",
        ),
        (lambda x, y: drawn_from(N, x, y), r"'records' draws 4 records", r"leave subsample_size"),
        (partly_observed, r"'y_unobserved' is a latent of each", r"handlers\.mask"),
        (
            lambda x, y: handlers.condition(linear, {"sd": 1.0})(x, y),
            r"'sd' is observed outside of plate",
            r"handlers\.substitute in place of handlers\.condition",
        ),
        (
            handlers.condition(linear, {"y": table()[1]}),
            r"density of the model or its guide fails on made-up records",
            r"none by handlers\.condition",
        ),
        (lambda x, y: linear(x, y[:, None]), r"changes when another record does", r"no column \[n"),
        (
            lambda x: linear(x, None),
            r"unexpected|takes 1 positional",
            r"arguments that follow the k",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:subsample_size does not match")
@pytest.mark.filterwarnings("ignore:Missing a plate statement")
def test_a_model_that_svi_takes_is_refused_with_what_to_write(model, said, hint):
    refused(descent(model), errors.ModelError, said, hint, KEY, *table())


@pytest.mark.filterwarnings("ignore:Some algorithms will automatically enumerate")
def test_an_outcome_that_is_not_passed_is_called_a_discrete_latent():
    refused(descent(binary), errors.ModelError, r"discrete", r"sum it out", KEY, table()[0], None)


def of_another_event(x, y=None):
    numpyro.sample("b", dist.Normal(jnp.zeros(2), 1.0))
    numpyro.sample("sd", dist.LogNormal(0.0, 1.0))


def of_another_shape(x, y=None):
    numpyro.sample("b", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    numpyro.sample("sd", dist.LogNormal(jnp.zeros(3), 1.0))


def inside(x, y=None):
    numpyro.sample("b", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    numpyro.sample("sd", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.param("slope", 0.5)


@pytest.mark.parametrize(
    ("guide", "said", "hint"),
    [
        (of_another_event, r"event_dims disagree at site 'b': 1 vs 0", r"in both"),
        (of_another_shape, r"shapes disagree at site 'sd': \(\) vs \(3,\)", r"in both"),
        (inside, r"the parameter 'slope' is made inside the plate", r"before the `with`"),
    ],
)
def test_a_guide_that_does_not_match_its_model_is_refused(guide, said, hint):
    refused(descent(linear, guide), errors.ModelError, said, hint, KEY, *table())


def amortised(start, x):
    numpyro.sample("b", dist.Normal(numpyro.param("loc", jnp.zeros(2)), 1.0).to_event(1))
    each = numpyro.param("each", start)
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("z", dist.Normal(each, 1.0))


def encoded(x):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("x", dist.Normal(z[:, None] * b, 1.0).to_event(1), obs=x)


@pytest.mark.parametrize(
    "guide",
    [
        lambda x: amortised(jnp.zeros(x.shape[0]), x),
        lambda x: amortised(lambda _: jnp.zeros(x.shape[0]), x),
    ],
)
def test_a_parameter_as_long_as_the_table_is_refused_outside_of_the_plate_too(guide):
    """It would be set up for one made-up record, and shared by all then."""
    said = r"'each' belongs to the plate 'records' or grows with the records"
    refused(descent(encoded, guide), errors.ModelError, said, r"amortis", KEY, table()[0])
    descent(encoded, lambda x: amortised(lambda _: jnp.zeros(()), x)).init(KEY, table()[0])


def misspelt(x, y=None):
    numpyro.sample("b", dist.Normal(numpyro.param("loc", jnp.zeros(2)), 1.0).to_event(1))
    numpyro.sample("sigma", dist.LogNormal(0.0, 1.0))


def test_a_latent_that_the_guide_leaves_out_is_told_as_by_svi():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        descent(linear, misspelt).init(KEY, *table())
    said = " ".join(str(warning.message) for warning in told)
    assert "Found vars in model but not guide: {'sd'}" in said
    assert "Found non-auxiliary vars in guide but not model" in said


@pytest.mark.filterwarnings("ignore:Found vars in model but not guide")
@pytest.mark.parametrize("guide", [AutoNormal, AutoDiagonalNormal])
def test_an_automatic_guide_may_leave_a_latent_out_and_has_no_intervals_then(guide):
    fit = descent(linear, guide(handlers.block(linear, hide=["sd"])))
    result = fit.run(KEY, 2, *table(), progress_bar=False)
    assert set(result.params) < {"b_auto_loc", "b_auto_scale", "auto_loc", "auto_scale"}
    with pytest.raises(errors.SolverError, match=r"the guide leaves out sd, drawn from the prior"):
        result.noise_aware()


@pytest.mark.parametrize("loss", [Trace_ELBO, TraceMeanField_ELBO])
def test_a_class_in_place_of_an_instance_is_told(loss):
    said = f"loss is the class {loss.__name__}"
    refused(descent(linear, loss=loss), errors.ModelError, said, r"write Trace", KEY, *table())
    fit = fedvi.DPSVI(linear, AutoNormal, numpyro.optim.SGD(0.1), loss(), descent(linear).privacy)
    refused(
        fit, errors.ModelError, r"guide is the class AutoNormal", r"AutoNormal\(m", KEY, *table()
    )


def test_a_loss_of_many_samples_is_told_before_the_guide_is_called():
    fit = descent(linear, loss=Trace_ELBO(num_particles=2, multi_sample_guide=True))
    refused(fit, errors.ModelError, r"loss has multi_sample_guide", r"", KEY, *table())


@pytest.mark.parametrize("key", [0, None, jax.random.split(KEY), np.zeros((2, 2), np.uint32), KEY])
def test_a_key_is_one_key(key):
    if key is KEY:
        for one in (KEY, jax.random.PRNGKey(0), np.array([0, 1], np.uint32)):
            descent(linear).init(one, *table())
        return
    refused(descent(linear), errors.ConfigError, r"expected one key", r"split", key, *table())


def test_records_in_the_place_of_a_key_are_not_printed():
    pandas = pytest.importorskip("pandas")
    records = pandas.DataFrame({"age": [41.5], "dtype": [2.5], "shape": [3.5]})
    sexes = pandas.Series(["male"]).astype("category")
    for table, said in ((records, "DataFrame"), ([41.5, 2.5], "list"), (sexes, "Series")):
        with pytest.raises(errors.ConfigError) as raised:
            descent(linear).init(table, table)
        assert raised.value.message == f"rng_key is a {said}, expected one key"


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (3.0, r"num_steps is 3\.0"),
        (table()[0], r"num_steps is a ndarray"),
        (KEY, r"num_steps is a "),
    ],
)
def test_a_number_of_steps_is_an_integer_before_anything_is_charged(steps, said):
    refused(
        descent(linear), errors.ConfigError, said, r"rng_key, num_steps", KEY, steps, *table(),
        call="run",
    )  # fmt: skip


def test_arrays_that_jax_does_not_take_are_refused_before_anything_is_charged():
    pandas = pytest.importorskip("pandas")
    x, y = table()
    levels = pandas.Series((y > 0.0).astype(int))
    for outcome, said, hint in (
        (np.ma.masked_invalid(y), r"argument 2 is a masked array", r"handlers\.mask"),
        (levels.astype("category"), r"argument 2 holds category", r"to_numpy"),
        (levels.astype("Int64"), r"argument 2 holds Int64", r"to_numpy"),
    ):
        refused(descent(linear), errors.ModelError, said, hint, KEY, x, outcome)
    lists = x.tolist(), y.tolist()
    refused(
        descent(linear), errors.ModelError, r"no argument holds", r"a list is none", KEY, *lists
    )


def test_an_optimiser_that_cannot_be_compiled_is_told_before_anything_is_charged():
    fit = descent(linear, optim=numpyro.optim.SM3(0.1))
    refused(fit, errors.ConfigError, r"optim cannot be compiled by JAX", r"Adam", KEY, *table())


def test_a_state_of_another_object_is_refused_where_nothing_was_started():
    fit = descent(linear)
    state = fit.init(KEY, *table())
    new = descent(linear)
    for call in (
        lambda: new.get_params(state),
        lambda: new.evaluate(state, *table()),
        lambda: new.update(state, *table()),
        lambda: new.run(KEY, 1, *table(), init_state=state, progress_bar=False),
    ):
        with pytest.raises(errors.SolverError, match="before `init`") as raised:
            call()
        assert "its own states only" in raised.value.hint


def test_starts_side_by_side_are_runs_of_their_own():
    fit, keys = descent(linear), jax.random.split(KEY, 2)
    with pytest.raises(errors.PrivacyError, match="a run was charged under a JAX") as raised:
        jax.vmap(lambda key: fit.init(key, *table()).rng_key)(keys)
    assert "call `init` outside" in raised.value.hint
    assert "runs=" in raised.value.hint


def test_the_loss_on_records_says_how_to_see_it():
    fit = descent(linear)
    loss = fit.evaluate(fit.init(KEY, *table()), *table())
    with pytest.raises(errors.PrivacyError, match="a private metric was used as a value") as raised:
        float(loss)
    assert "`.reveal()` returns the number" in raised.value.hint
    assert loss.reveal() > 0.0


def test_a_record_that_is_not_finite_adds_nothing():
    x, y = table()
    plan = fedvi.privacy.sgd(
        steps=1, max_records=N, noise_multiplier=0.0, clip_norm=1.0, sampler="full", runs=3
    )
    fit = fedvi.DPSVI(binary, AutoNormal(binary), numpyro.optim.SGD(0.1), Trace_ELBO(), plan)
    ends = []
    for gap in (np.nan, np.inf, 0.0):
        rows = x.copy()
        rows[3] = gap  # a gradient of b at x = 0 is zero as well
        labels = (y > 0.0).astype(np.float32)
        # Without noise a run refuses what is not finite at its start.
        start = fit.init(KEY, x, labels)
        result = fit.run(KEY, 1, rows, labels, init_state=start, progress_bar=False)
        ends.append(result.params["b_auto_loc"])
    np.testing.assert_allclose(ends[0], ends[2], rtol=1e-6)
    np.testing.assert_allclose(ends[1], ends[2], rtol=1e-6)


def test_a_plan_with_too_little_noise_for_its_batches_says_what_to_change():
    """Batches overflow with probability 4e-12, but at an epsilon that takes more of delta."""
    with pytest.raises(errors.PrivacyError, match="no finite epsilon holds") as raised:
        fedvi.privacy.sgd(steps=1500, max_records=40, noise_multiplier=4.0, delta=1e-3, batch=10)
    assert "add noise, or plan fewer steps or runs" in raised.value.hint


@pytest.mark.parametrize(
    ("settings", "said", "hint"),
    [
        ({"delta": 1.0}, r"delta is 1\.0, expected at least 0 and below 1", r"well below 1"),
        ({"delta": -1e-5}, r"delta is -1e-05", r"well below 1"),
        ({"steps": np.int64(10)}, r"steps is .*10.*, expected an integer", r"int\("),
        ({"max_records": 1e3}, r"max_records is 1000\.0, expected an integer", r"int\("),
    ],
)
def test_a_plan_s_numbers_are_told_by_their_names(settings, said, hint):
    plan = {"epsilon": 1.0, "delta": 1e-5, "steps": 10, "batch": 5, "max_records": 100}
    with pytest.raises(errors.ConfigError, match=said) as raised:
        fedvi.privacy.sgd(**{**plan, **settings})
    assert re.search(hint, raised.value.hint)
