"""What `DPSVI` is handed: records that a guide cannot start on, types, scalars, and calls of NumPyro's."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro import handlers
from numpyro.infer import SVI, Trace_ELBO, autoguide, init_to_value

from fedvi import errors
from tests.unit.inference.test_svi_models import (
    N,
    descent,
    logistic,
    nothing,
    observed,
    private,
    rooted,
    shares,
    table,
    weights,
)

pytestmark = pytest.mark.numpyro


def narrow(x, y=None):
    """A root in one column and an outcome in (0, 1): finite in no one range for both."""
    mean = jax.nn.sigmoid(jnp.sqrt(x[:, 0] - 18.0) + x[:, 1:] @ weights(2))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Beta(5.0 * mean, 5.0 * (1.0 - mean)), obs=y)


def hand(x, *_, **__):
    loc = numpyro.param("loc", jnp.zeros(3))
    numpyro.sample("b", dist.Normal(loc, 1.0).to_event(1))


def adults():
    x, y = table()
    return x + 30.0, y


def both():
    x, y = inner()
    return x + np.array([30.0, 0.0, 0.0], np.float32), y


def inner():
    x, y = table()
    return x, (0.1 + 0.8 * y).astype(np.float32)


@pytest.mark.nightly(but=("rooted-adults",))
@pytest.mark.parametrize(("model", "data"), [(shares, inner), (rooted, adults), (narrow, both)])
def test_a_guide_starts_where_a_record_of_ones_has_no_density(model, data):
    """And where SVI starts it, on the records themselves."""
    x, y = data()
    made = autoguide.AutoNormal(model)
    fit = descent(model, made, nothing())
    theirs = SVI(model, autoguide.AutoNormal(model), numpyro.optim.SGD(0.1), Trace_ELBO())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = fit.get_params(fit.init(jax.random.key(1), x, y))
    expected = theirs.get_params(theirs.init(jax.random.key(1), x, y))
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
    # Only the start is not to see outcomes.
    assert made.model is model


def test_a_guide_starts_at_values_of_one_s_own():
    start = jnp.array([0.1, -0.2, 0.3])
    guide = autoguide.AutoNormal(shares, init_loc_fn=init_to_value(values={"b": start}))
    fit = descent(shares, guide)
    params = fit.get_params(fit.init(jax.random.key(1), *inner()))
    np.testing.assert_allclose(params["b_auto_loc"], start, rtol=1e-6)


def test_what_cannot_start_on_a_made_up_record_is_refused_with_a_way_out():
    def of_all(x, y=None):
        observed(x.reshape(N, 3) @ weights(3), y)

    for model in (of_all, prior_of_logarithms):
        guide = autoguide.AutoNormal(model)
        with pytest.raises(errors.ModelError, match=r"cannot be set up on a made-up") as raised:
            descent(model, guide).init(jax.random.key(0), *adults())
        assert "one record" in raised.value.hint
        assert guide.model is model


def standardised_logarithms(x, y=None):
    z = jnp.log(x - 5.0)
    observed((z - z.mean(axis=0)) / (z.std(axis=0) + 1e-6) @ weights(3), y)


def prior_of_logarithms(x, y=None):
    b = numpyro.sample("b", dist.Normal(jnp.log(x - 5.0).mean(axis=0), 1.0).to_event(1))
    observed(x @ b, y)


def centred_where_large(x, y=None):
    observed(jnp.where(x > 2.0, x - x.mean(axis=0), x) @ weights(3), y)


def of_a_seventh(x, y=None):
    group = y.astype(jnp.int32)
    with_seventh = jnp.bincount(group, length=50)[7] > 0
    observed(x @ weights(3) + jnp.where(with_seventh, 1.0, 0.0), y > 0)


def prior_of_the_number(x, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, x.shape[0] + 0.0).expand([3]).to_event(1))
    observed(x @ b, y)


MIXING = [
    (standardised_logarithms, adults, r"'model y' of a record changes when another record does"),
    (prior_of_logarithms, adults, r"'model b' outside of plate 'records' depends on the records"),
    (centred_where_large, table, r"'model y' of a record changes when another record does"),
    (
        of_a_seventh,
        lambda: (table()[0], np.arange(N)),
        r"'model y' of a record changes when another record does",
    ),
    (prior_of_the_number, table, r"'model b' outside of plate 'records' depends on how many"),
]


@pytest.mark.nightly(only=("of_a_seventh", "standardised_logarithms"))
@pytest.mark.parametrize(("model", "data", "said"), MIXING, ids=[m[0].__name__ for m in MIXING])
def test_records_that_are_mixed_only_beyond_the_usual_numbers_are_refused(model, data, said):
    """Where a term is nan, or a branch is not taken, at numbers between 0 and 1."""
    with pytest.raises(errors.ModelError, match=said):
        descent(model, hand).init(jax.random.key(0), *data())


def at_one_value(x, y=None):
    z = jnp.log(x - 123456.0) + jnp.log(123457.0 - x)
    observed(z @ weights(3), y)


def always_nan(x, y=None):
    numpyro.sample("c", dist.Normal(0.0, jnp.log(-1.0)), obs=None)
    logistic(x, y)


def always_nan_guide(x, y=None):
    hand(x)
    numpyro.sample("c", dist.Normal(0.0, 1.0))


def test_what_could_not_be_checked_is_told():
    with pytest.warns(UserWarning, match=r"model y is finite: whether records are kept apart was"):
        descent(at_one_value, hand).init(jax.random.key(0), *table())
    with pytest.raises(errors.ModelError, match=r"'model c' outside of plate 'records' is nan"):
        descent(always_nan, always_nan_guide).init(jax.random.key(0), *table())


@pytest.mark.nightly
@pytest.mark.parametrize("first", ["NumPy", "JAX"])
def test_numpy_s_64_bits_are_those_that_jax_takes(first):
    x, y = table()
    wide = x.astype(np.float64), y.astype(np.int64)
    single = jnp.asarray(x), jnp.asarray(y, jnp.int32)
    fit = descent(logistic, plan=private(runs=2))
    start, then = (wide, single) if first == "NumPy" else (single, wide)
    update = jax.jit(fit.update)
    ends = []
    for given in (start, then):
        end, _ = update(fit.init(jax.random.key(0), *start), *given)
        ends.append(end)
    assert [int(end.step) for end in ends] == [1, 1]
    assert int(fit.update(ends[0], *wide)[0].step) == 2


def test_arguments_that_are_no_arrays_of_numbers_are_refused_with_a_way_out():
    class Frame:
        shape = (N, 3)

    x, y = table()
    with pytest.raises(errors.ModelError, match=r"argument 1 is a Frame, expected an array") as no:
        descent(logistic).init(jax.random.key(0), Frame(), y)
    assert "to_numpy" in no.value.hint
    with pytest.raises(errors.ModelError, match=r"argument 2 holds <U1, expected floats") as no:
        descent(logistic).init(jax.random.key(0), x, np.array(list("abcdefgh")))
    assert "number the levels" in no.value.hint


def tempered(x, y=None, *, beta=1.0):
    with handlers.scale(scale=beta):
        logistic(x, y)


@pytest.mark.nightly
def test_arguments_are_named_where_they_are_not_those_of_init():
    fit, (x, y) = descent(tempered), table()
    state = fit.init(jax.random.key(0), x, y, beta=0.5)
    for call, said in (
        (
            lambda: fit.update(state, x, y, gamma=0.5),
            r"`gamma` a number with 8 rows, .*`beta` a nu",
        ),
        (lambda: fit.update(state, x, y=y, beta=0.5), r"3\], `beta` a number, `y` float32\[rows\]"),
        (lambda: fit.update(state, x, y, beta=0.6), r"no records is 0\.6, expected 0\.5"),
        (lambda: jax.jit(fit.update)(state, x, y, beta=0.5), r"expected 0\.5 as at `init`"),
    ):
        with pytest.raises(errors.ModelError, match=said) as raised:
            call()
        assert raised.value.hint
    end, _ = jax.jit(lambda state, x, y: fit.update(state, x, y, beta=0.5))(state, x, y)
    assert int(end.step) == 1


@pytest.mark.nightly
def test_the_keyword_of_numpyro_s_own_updates_is_taken():
    fit, (x, y) = descent(logistic, plan=private(runs=2)), table()
    state = fit.init(jax.random.key(0), x, y)
    calls = [
        lambda **mode: fit.update(state, x, y, **mode)[0],
        lambda **mode: fit.run(jax.random.key(0), 1, x, y, progress_bar=False, **mode).state,
    ]
    for call in [*calls, lambda **mode: fit.stable_update(state, x, y, **mode)[0]]:
        with pytest.raises(errors.ConfigError, match=r"forward_mode_differentiation is True") as no:
            call(forward_mode_differentiation=True)
        assert "while_loop" in no.value.hint
    for call in calls:
        assert int(call(forward_mode_differentiation=False).step) == 1


def test_a_run_inside_a_trace_is_refused_and_an_evaluation_reveals_itself_there():
    fit, (x, y) = descent(logistic), table()
    state = fit.init(jax.random.key(0), x, y)
    with pytest.raises(errors.PrivacyError, match=r"run was called under a JAX transform") as no:
        jax.jit(lambda s: fit.run(jax.random.key(0), 1, x, y, init_state=s))(state)
    assert "jax.lax.scan" in no.value.hint
    inside = jax.jit(lambda state, x, y: fit.evaluate(state, x, y).reveal())(state, x, y)
    np.testing.assert_allclose(inside, fit.evaluate(state, x, y).reveal(), rtol=1e-5)


def test_an_optimiser_that_evaluates_the_loss_again_is_refused_before_anything_is_charged():
    fit = descent(logistic, optim=optax.lbfgs())
    with pytest.raises(errors.ConfigError, match=r"optim cannot take a step with a gradient") as no:
        fit.init(jax.random.key(0), *table())
    assert "optax.adam" in no.value.hint
    with pytest.raises(errors.SolverError, match=r"no ledger before `init`"):
        _ = fit.ledger


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"batch": 100}, r"batch is 100, expected .* below max_records, 8"),
        ({"batch": 8}, r"batch is 8, expected .* below max_records, 8"),
        ({"batch": 9, "sampler": "feistel"}, r"batch is 9, expected .* at most max_records, 8"),
    ],
)
def test_a_batch_of_more_than_all_records_is_refused_by_name(settings, said):
    with pytest.raises(errors.ConfigError, match=said):
        private(**settings)


def own_latents(x, y=None):
    b = weights(3)
    with numpyro.plate("records", x.shape[0]):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(z + x @ b, 1.0), obs=y)


def under_another_name(x, y=None):
    hand(x)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("z", dist.Normal(numpyro.param("mean", 0.0), 1.0))


@pytest.mark.nightly
def test_a_guide_s_plate_under_another_name_is_refused_with_the_name_to_use():
    with pytest.raises(
        errors.ModelError, match=r"'records' in the model and 'rows' in the g"
    ) as no:
        descent(own_latents, under_another_name).init(jax.random.key(0), *table())
    assert 'numpyro.plate("records"' in no.value.hint
