"""Rows that a model does not take reach no sum: padding changes nothing, and what is lost is told."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Trace_ELBO, autoguide

import fedvi
from fedvi import errors, expfam
from fedvi.expfam import tree
from fedvi.inference import solvers
from fedvi.models.numpyro import numpyro_model
from fedvi.privacy import mechanisms, random, sampling
from fedvi.updates.base import Shard, Task

ROWS = 24
FAMILY = expfam.full_gaussian(2)
PRIOR = tree.to_numpy(FAMILY.isotropic(1.0))
GENERATOR = np.random.default_rng(7)
X = GENERATOR.uniform(0.5, 2.0, ROWS)

# Distributions of y by the logarithm of a mean, outcomes that they can draw, and some that they cannot.
LAWS: dict[str, tuple[Any, Any, list[float]]] = {
    "Gamma": (lambda a: dist.Gamma(2.0, 2.0 * jnp.exp(-a)), GENERATOR.gamma(2.0, 0.5, ROWS), [0.0]),
    "LogNormal": (lambda a: dist.LogNormal(a, 1.0), GENERATOR.lognormal(size=ROWS), [0.0, -1.0]),
    "Poisson": (lambda a: dist.Poisson(jnp.exp(a)), GENERATOR.poisson(1.0, ROWS), [-1.0, 0.5]),
    "Exponential": (lambda a: dist.Exponential(jnp.exp(-a)), GENERATOR.exponential(size=ROWS), [-1.0]),
    "Weibull": (lambda a: dist.Weibull(jnp.exp(a), 1.5), GENERATOR.weibull(1.5, ROWS), [0.0]),
    "Beta": (lambda a: dist.Beta(jnp.exp(a), 2.0), GENERATOR.beta(1.0, 2.0, ROWS), [-0.5, 1.5]),
    "Bernoulli": (lambda a: dist.Bernoulli(logits=a), GENERATOR.integers(0, 2, ROWS), [-1.0, 2.0]),
}  # fmt: skip
# How many rows of zeros there are, and where: after the records, or between them, as unreadable lines are.
PADDINGS = [(8, ROWS), (40, 3)]


def model_of(law: Any) -> Any:
    """log(x) enters, so that a padded row of zeros is infinite for each law."""

    def model(x: Any, y: Any) -> None:
        b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", law(b[0] + b[1] * jnp.log(x)), obs=y)

    return numpyro_model(model, {"x": 1.0, "y": 1.0})


def solver_of(kind: str, model: Any, capacity: int) -> Any:
    if kind == "gradient":
        return solvers.gradient(FAMILY, model, steps=30)
    everything, silent = sampling.full(capacity), mechanisms.gaussian(0.0)
    if kind == "dp_optimisation":
        return solvers.dp_optimisation(FAMILY, model, everything, silent, clip_norm=50.0, steps=20)
    if kind == "site_release":
        return solvers.site_release(FAMILY, model, everything, silent, clip_norm=50.0)
    if kind == "local_averaging":
        return solvers.local_averaging(
            FAMILY, model, everything, silent, clip_norm=50.0, parts=2, steps=30, by_place=True
        )
    return solvers.perturbed_update(FAMILY, model, everything, silent, clip_norm=50.0, steps=30)


def visit(kind: str, model: Any, x: Any, y: Any, valid: Any) -> tuple[Any, dict[str, Any]]:
    """One visit without noise: the posterior's mean and sd, and what the site is told."""
    solver = solver_of(kind, model, len(x))
    task = Task("a/0", "a", 0, 0, PRIOR, FAMILY.zeros(), 1.0)
    root = random.insecure_root(0)
    shard = Shard({"x": np.asarray(x, float), "y": np.asarray(y, float)}, np.asarray(valid, bool))
    _, released, told = solver.update(
        lambda purpose: root.key("a", "a/0", purpose), solver.init(PRIOR), task, shard
    )
    value = {name: np.asarray(array) for name, array in released.value.items()}
    moments = FAMILY.moments(tree.add(PRIOR, solver.finish(value, task).delta))
    return np.concatenate(moments), told


@pytest.mark.parametrize("kind", ["gradient", "dp_optimisation", "perturbed_update"])
@pytest.mark.parametrize("law", ["Gamma", "LogNormal", "Poisson"])
def test_padding_changes_nothing(law: str, kind: str) -> None:
    of, y, _ = LAWS[law]
    model = model_of(of)
    expected, _ = visit(kind, model, X, y, np.ones(ROWS))
    assert np.abs(expected[:2]).max() > 0.02, "the posterior is not the prior"
    for count, where in PADDINGS:
        x, outcome, valid = (
            np.concatenate([column[:where], np.zeros(count), column[where:]])
            for column in (X, np.asarray(y, float), np.ones(ROWS))
        )
        found, _ = visit(kind, model, x, outcome, valid)
        # Sums of float32 in another order, through 30 steps of Adam.
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("law", LAWS)
def test_what_a_model_does_not_take_is_refused_without_a_promise(law: str) -> None:
    of, y, impossible = LAWS[law]
    model = model_of(of)
    for value in impossible:
        outcome = np.array(y, float)
        outcome[[4, 9]] = value
        with pytest.raises(errors.DataError) as caught:
            visit("gradient", model, X, outcome, np.ones(ROWS))
        said = caught.value.message
        assert said.startswith(f"2 of {ROWS} records"), said
        named = re.search(r"record 5 `y` is (\S+) under (\w+)", said)
        if named is None:  # in the support, with an infinite density
            assert f"record 5 has x = {X[4]:.6g}"[:20] in said
        else:
            assert float(named[1]) == value
            assert named[2].startswith(law)


def test_an_objective_that_overflows_is_refused_and_says_from_which_step() -> None:
    def model(x: Any, y: Any) -> None:
        b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Poisson(jnp.exp(b[0] + b[1] * x)), obs=y)

    years = np.arange(2000.0, 2000.0 + ROWS)
    made = numpyro_model(model, {"x": 1.0, "y": 1.0})
    with pytest.raises(errors.SolverError, match=r"not finite from step 1 of 30 on"):
        visit("gradient", made, years, LAWS["Poisson"][1], np.ones(ROWS))
    # Where the change is clipped and noised, nothing may be refused: it counts as none.
    found, _ = visit("perturbed_update", made, years, LAWS["Poisson"][1], np.ones(ROWS))
    np.testing.assert_allclose(found, np.concatenate(FAMILY.moments(PRIOR)), rtol=1e-6)


PRIVATE = ["dp_optimisation", "perturbed_update", "site_release", "local_averaging"]


@pytest.mark.nightly(
    but=("Gamma-dp_optimisation", "Bernoulli-perturbed_update", "Gamma-site_release")
)
@pytest.mark.parametrize("kind", PRIVATE)
@pytest.mark.parametrize("law", ["Gamma", "Bernoulli"])
def test_what_a_model_does_not_take_counts_as_zero_in_a_private_mode(law: str, kind: str) -> None:
    of, y, impossible = LAWS[law]
    model, outcome, kept = model_of(of), np.array(y, float), np.ones(ROWS, bool)
    kept[[4, 9]] = False
    outcome[[4, 9]] = impossible[0]
    found, told = visit(kind, model, X, outcome, np.ones(ROWS))
    expected, _ = visit(kind, model, X, np.array(y, float), kept)
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)
    # On the site's own screen, whichever the solver.
    assert (told["valid_units"], told["counted_units"]) == (ROWS, ROWS - 2)


def test_visits_of_many_sites_tell_each_what_counts() -> None:
    of, y, impossible = LAWS["Gamma"]
    model, outcome = model_of(of), np.stack([np.array(y, float)] * 3)
    outcome[1, [4, 9]], outcome[2, 0] = impossible[0], impossible[0]
    solver = solver_of("site_release", model, ROWS)
    tasks = [Task(f"{n}/0", str(n), 0, 0, PRIOR, FAMILY.zeros(), 1.0) for n in range(3)]
    root = random.insecure_root(0)
    found = solver.update_many(
        lambda purpose: jnp.stack([root.key(task.client, task.task_id, purpose) for task in tasks]),
        [()] * 3,
        tasks,
        Shard({"x": np.stack([X] * 3), "y": outcome}, np.ones((3, ROWS), bool)),
    )
    told = found()[2]
    np.testing.assert_array_equal(told["counted_units"], [ROWS, ROWS - 2, ROWS - 1])
    np.testing.assert_array_equal(told["valid_units"], [ROWS] * 3)


def test_a_site_without_records_answers_with_its_cavity() -> None:
    model = model_of(LAWS["Gamma"][0])
    found, _ = visit("gradient", model, np.zeros(8), np.zeros(8), np.zeros(8))
    np.testing.assert_allclose(found, np.concatenate(FAMILY.moments(PRIOR)), rtol=1e-12)


def test_what_a_mask_hides_may_lie_outside_of_the_support() -> None:
    def model(x: Any, y: Any) -> None:
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with (
            numpyro.plate("records", x.shape[0]),
            numpyro.handlers.mask(mask=~jnp.isnan(y).any(axis=-1)),
        ):
            numpyro.sample("y", dist.Gamma(2.0, jnp.exp(b)).expand([2]).to_event(1), obs=y)

    made = numpyro_model(model, {"x": 0.0, "y": np.ones(2)})
    at = jnp.zeros(1)
    assert made.log_likelihood(at, {"x": 0.0, "y": np.array([np.nan, 1.0])}) == 0.0
    assert np.isfinite(made.log_likelihood(at, {"x": 0.0, "y": np.array([2.0, 1.0])}))
    assert made.log_likelihood(at, {"x": 0.0, "y": np.array([2.0, 0.0])}) == -np.inf


# DPSVI: model, columns, and what is said of them.

YEARS = np.arange(2000.0, 2020.0).repeat(2)
COUNT = len(YEARS)


def counts(x: Any, y: Any = None) -> None:
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(b * x)), obs=y)


def signs(x: Any, y: Any = None) -> None:
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=b * x), obs=y)


def levels(x: Any, y: Any = None) -> None:
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=b * x[:, None]), obs=y)


def times(x: Any, y: Any = None) -> None:
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(b * (x - 1.7e9) / 100.0, 1.0), obs=y)


UNIT = np.linspace(-1.0, 1.0, COUNT)
LOST: dict[str, tuple[Any, Any, Any, str]] = {
    "overflow": (counts, YEARS, np.ones(COUNT, int), f"{COUNT} of {COUNT} records are not finite"),
    # As for NumPyro itself: its density of a soft label is 0.
    "soft labels": (signs, UNIT, np.tile([0.5, 1.0], COUNT // 2), "20 of 40 .* support of B"),
    "two signs": (signs, UNIT, np.tile([-1, 1], COUNT // 2), "20 of 40 .* outside of the support of B"),
    "from one": (levels, UNIT, np.tile([1, 2, 2, 3], 10), "10 of 40 .* outside of the support of C"),
    "large integers": (times, np.arange(COUNT) + 3_000_000_000, UNIT, r"argument 1 \(int64\) holds"),
    "seconds": (times, 1.7e9 + 50.0 * UNIT, UNIT, r"argument 1 \(float64\) holds"),
}  # fmt: skip


def descent(model: Any, noise: float) -> Any:
    plan = fedvi.privacy.sgd(
        noise_multiplier=noise, delta=1e-6, steps=3, batch=10, max_records=100, runs=2
    )
    return fedvi.DPSVI(
        model, autoguide.AutoNormal(model), numpyro.optim.Adam(0.01), Trace_ELBO(), plan
    )


@pytest.mark.parametrize("case", LOST)
def test_dpsvi_refuses_without_a_promise_and_tells_the_holder_alone_with_one(
    case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model, x, y, said = LOST[case]
    fit = descent(model, 0.0)
    with pytest.raises(errors.DataError, match=said):
        fit.init(jax.random.key(0), x, y)
    fit = descent(model, 1.0)
    fit.init(jax.random.key(0), x, y)
    told = capsys.readouterr().err
    assert re.search(f"^Private, for the holder of the records alone: {said}", told, re.MULTILINE)
    assert "Private" not in str(fit.summary()) + repr(fit), "nothing that is shared has it"


def test_numpyros_own_density_of_a_soft_label_is_zero() -> None:
    rules = jax.numpy_dtype_promotion("standard")
    with rules, pytest.warns(UserWarning, match="Out-of-support"):
        assert dist.Bernoulli(logits=0.3).log_prob(jnp.asarray(0.5)) == -jnp.inf


def test_dpsvi_says_nothing_of_records_that_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    descent(signs, 1.0).init(jax.random.key(0), UNIT, (UNIT > 0.0).astype(np.int64))
    # Wider than the steps of a 32-bit float by far.
    descent(times, 0.0).init(jax.random.key(0), 1.7e9 + 1e6 * UNIT, UNIT)
    assert "Private" not in capsys.readouterr().err


def test_in_dpsvi_a_record_outside_of_the_support_counts_as_zero() -> None:
    fit = descent(signs, 0.0)
    fit.init(jax.random.key(0), UNIT, (UNIT > 0.0).astype(int))
    found, params = fit._taken_apart, {"b_auto_loc": 0.3, "b_auto_scale": 0.1}
    terms = [
        found.record_term(params, jax.random.key(1), [jnp.asarray(0.5), jnp.asarray(value)], 0)
        for value in (1, -1)
    ]
    assert np.isfinite(terms[0])
    assert np.isnan(terms[1])


def flat_at_zero(x: Any, y: Any = None) -> None:
    """A record of x = 0 has a finite log density, whose gradient is 0 · ∞ in reverse."""
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        mean = jnp.where(x > 0.0, jnp.sqrt(x * b**2), 0.0)
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def growing(x: Any, y: Any = None) -> None:
    """Finite near b = 0, and beyond 32 bits where b is about 2."""
    b = numpyro.sample("b", dist.Normal(0.0, 10.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(b * x)), obs=y)


def test_dpsvi_tells_a_gradient_that_is_not_finite(capsys: pytest.CaptureFixture[str]) -> None:
    x = np.abs(UNIT).astype(np.float32)
    x[[3, 7]] = 0.0
    with pytest.raises(errors.DataError, match=r"2 of 40 records .* row 3 .* or its gradient"):
        descent(flat_at_zero, 0.0).init(jax.random.key(0), x, UNIT)
    descent(flat_at_zero, 1.0).init(jax.random.key(0), x, UNIT)
    assert "2 of 40 records are not finite at the start" in capsys.readouterr().err


@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.parametrize("rate", [1e-3, 3.0])
def test_dpsvi_tells_at_the_end_of_a_run_what_has_left_the_floats(
    noise: float, rate: float, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = fedvi.privacy.sgd(
        noise_multiplier=noise, delta=1e-6, steps=3, max_records=COUNT, sampler="full"
    )
    optim = numpyro.optim.Adam(rate)
    guide = autoguide.AutoNormal(
        growing, init_loc_fn=numpyro.infer.init_to_value(values={"b": 0.0})
    )
    fit = fedvi.DPSVI(growing, guide, optim, Trace_ELBO(), plan)
    x = np.full(COUNT, 30.0, np.float32)
    # Large counts, so that b grows.
    result = fit.run(jax.random.key(0), 3, x, np.full(COUNT, 10_000), progress_bar=False)
    said = capsys.readouterr().err
    assert ("are not finite at the end and count as zero" in said) == (rate == 3.0)
    assert said.count("\n") == said.count("Private, for the holder")
    assert "Private" not in str(result.summary()) + repr(result)
