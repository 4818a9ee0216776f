"""d3p's own test cases, and what stands for each of them here; those that were missing are below.

Read in the public repository DPBayes/d3p, folder tests; facts only. Files are named without their
folder: they are in tests/unit/inference, tests/unit/privacy, tests/unit/models, tests/contracts or
tests/statistical.

====================================  ===========================================================
d3p, family of cases                  here
====================================  ===========================================================
test_clip, gradient_manipulators:
  norm over a tree of parts           test_per_record::test_they_are_those_that_vmap_forms,
                                      test_release::test_the_norm_is_joint_over_all_leaves
  norm of nothing is 0                below: …clipped_gradient_keeps_its_direction… (zeros)
  threshold below, at, above the      below: …clipped_gradient_keeps_its_direction…
  norm; infinite; normalised
  a threshold of 0 is refused         test_release::test_a_clip_norm_that_bounds_nothing_is_refused
test_dpsvi:
  init as SVI's                       test_svi::test_without_noise_and_clipping_it_is_svi_step_…
  per-example norms after clipping    test_per_record::test_no_record_counts_for_more_than_the_…
  mean of per-example gradients       below: …a_step_takes_whole_rows_at_the_stated_rate…, which
                                      holds it against the public rate, not the realised size
  std of the noise; noise differs     below: …a_step_has_the_stated_noise…, test_noise (statistical)
  between steps and between sites
  both random suites                  noise from the system: test_random; seeded: test_svi
test_minibatch:
  each record once in a batch, from   test_samplers (contracts, statistical)
  the data; batches differ
  shape of a batch; several columns   below: …a_step_takes_whole_rows_at_the_stated_rate…
  an epoch by split and shuffle;      not offered: no accountant prices them. What they would
  with replacement                    break: test_samplers::test_planted_shuffled_epochs_are_seen,
                                      test_audit_profile::test_shuffled_epochs_at_the_poisson_…
test_numpyro_primitives (masks):
  masked rows count for nothing       test_per_record::test_an_empty_place_of_a_batch_counts_…,
                                      test_svi_models::…step_is_that_of_svi[groups, masks and scales]
  all rows masked                     below: …a_step_takes_whole_rows… (batches without a record)
  latents of each record, an          below: …latents_of_each_record_are_scaled_with_their_records,
  expected failure in d3p             test_svi_models::test_local_latents_give_the_gradients_of_…
test_gmm:
  log density by explicit sum         test_mixture::test_a_tables_likelihood_is_the_sum_over_all_…
  shapes of draws                     test_mixture::test_draws_of_the_prior_are_shaped_as_said_…
  draws per component                 below: …a_mixture_draws_each_component_by_its_weight…
  weights off the simplex             below: …weights_off_the_simplex_are_refused…
test_modelling, test_svi:
  prior and posterior predictive      test_arviz, through numpyro's Predictive
  draws, their shapes and means
  substitutes and intermediates       numpyro's own: Predictive(posterior_samples=…), deterministic
testing_per_sample_log_density        test_svi::…step_for_step; test_numpyro_models::
                                      test_prior_plus_record_terms_is_the_density_of_all_records_…
test_dputil: the search for sigma     test_calibrate, all of it; test_pld, test_rdp
recovers from a failing accountant
test_random: bits, uniform, normal    test_random, test_alias, test_mechanisms
test_util: sampling from an array     test_feistel, test_poisson; its shape helpers have no
                                      counterpart, as nothing here guesses what is an array
test_adadp_optimizer                  none: ADADP is not offered; any optimiser of gradients is
test_examples                         examples are run by tests/integration
  simple_gaussian_posterior           below: …the_mean_of_normal_records_has_its_closed_form…
====================================  ===========================================================
"""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from mixtures import gaussian_mixture
from numpyro.infer import SVI, Trace_ELBO, autoguide

import fedvi
from fedvi.inference import clipping, per_record
from fedvi.inference.svi import DPSVI
from fedvi.privacy import base, mechanisms, sampling

pytestmark = pytest.mark.numpyro

N = 40
# False alarms of each statistical test are below this; seeds are fixed besides.
RARE = 1e-4


def plan(**settings):
    given = {"max_records": N, "noise_multiplier": 0.0, "clip_norm": float("inf")}
    return fedvi.privacy.sgd(**{**given, "insecure_seed": 5, **settings})


def flat(tree):
    return jax.flatten_util.ravel_pytree(tree)[0]


def clipped(gradient, clip_norm, kind):
    """One record's gradient, a tree of arrays, after clipping."""

    def loss(params, row):
        return sum(jnp.vdot(params[name], row[name]) for name in params)

    params = jax.tree.map(jnp.zeros_like, gradient)
    records = per_record.gradients(loss, params, jax.tree.map(lambda leaf: leaf[None], gradient))
    batch = base.Batch(jnp.arange(1), jnp.ones(1, bool), sampling.full(1))
    parts = clipping.Parts(lambda _: records, 1, 1)
    return clipping.clipped(parts, clip_norm, kind, batch, mechanisms.gaussian(0.0)).total


@pytest.mark.nightly
@given(
    shapes=st.sampled_from([((),), ((2, 5), (6, 4, 2)), ((3,), (1, 4), (2, 2), ())]),
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 1e4]),
    factor=st.sampled_from([1e-3, 0.1, 1.0, 2.0, float("inf")]),
)
@settings(max_examples=15)
def test_a_clipped_gradient_keeps_its_direction_and_gets_the_norm_it_should(
    shapes, seed, scale, factor
):
    """In float32: to 1e-5 of the norm, over at most 256 numbers."""
    random = np.random.default_rng(seed)
    gradient = {
        str(index): scale * jnp.asarray(random.normal(size=shape), jnp.float32)
        for index, shape in enumerate(shapes)
    }
    norm = float(np.linalg.norm(np.asarray(flat(gradient), np.float64)))
    clip_norm = factor * (norm or 1.0)
    wanted = {"flat": min(1.0, factor) if norm else 1.0}
    if np.isfinite(clip_norm):
        wanted["automatic"] = clip_norm / (norm + 0.01)
        wanted["normalised"] = clip_norm / norm if norm else 1.0
    for kind, weight in wanted.items():
        # A gradient of automatic weight above 1 is scaled up to, and not beyond, the clip norm.
        found = np.asarray(flat(clipped(gradient, clip_norm, kind)))
        np.testing.assert_allclose(
            found, weight * np.asarray(flat(gradient)), rtol=1e-5, atol=1e-5 * weight * norm
        )
        assert np.linalg.norm(found) <= clip_norm * (1.0 + 1e-5)
    parts = clipped(gradient, clip_norm, "per_site")
    for name, leaf in gradient.items():
        length, most = float(jnp.linalg.norm(leaf)), clip_norm / np.sqrt(len(shapes))
        weight = min(1.0, most / length) if length else 1.0
        np.testing.assert_allclose(parts[name], weight * leaf, rtol=1e-5, atol=1e-5 * norm)


def flat_prior(size):
    return numpyro.sample(
        "b", dist.ImproperUniform(dist.constraints.real_vector, (), event_shape=(size,))
    )


def one_hot(x, place):
    """Record i says of coordinate i alone, and says i + 1: a step shows which records it took."""
    b = flat_prior(N)
    with numpyro.plate("records", x.shape[0]):
        numpyro.factor("says", (x @ b) * (place + 1))


def located(*_):
    loc = numpyro.param("loc", jnp.zeros(N))
    numpyro.sample("b", dist.Normal(loc, 1.0).to_event(1))


def steps_of(model, guide, chosen, count, *data):
    """Parameters before each step and after the last, [count + 1, …]; a step is the gradient."""
    fit = DPSVI(model, guide, numpyro.optim.SGD(1.0), Trace_ELBO(), chosen)
    start = fit.init(jax.random.key(0), *data)

    def step(state, _):
        after, _ = fit.update(state, *data)
        return after, fit.get_params(after)

    _, after = jax.jit(lambda state: jax.lax.scan(step, state, length=count))(start)
    return jax.tree.map(
        lambda first, others: np.concatenate([np.asarray(first)[None], np.asarray(others)]),
        fit.get_params(start),
        after,
    )


@pytest.mark.nightly(but=("poisson-0.8",))
@pytest.mark.parametrize(("sampler", "batch"), [("poisson", 8), ("poisson", 0.8), ("feistel", 8)])
def test_a_step_takes_whole_rows_at_the_stated_rate_and_divides_by_that_rate(sampler, batch):
    """Inclusion by χ², sizes by χ² or exactly, steps by the overlap of one with the next (5 sds)."""
    count, rate = 1500, batch / N
    chosen = plan(steps=count, sampler=sampler, batch=batch)
    x, place = np.eye(N, dtype=np.float32), np.arange(N, dtype=np.int32)
    moves = np.diff(steps_of(one_hot, located, chosen, count, x, place)["loc"], axis=0)
    # Whole multiples of one record's own number over the rate, whoever else is in the batch. Sums
    # of up to 1,500 · 40 / rate in float32 are good to some hundredths.
    hits = moves * rate / (place + 1)
    included = np.rint(hits)
    assert set(np.unique(included)) <= {0.0, 1.0}
    np.testing.assert_allclose(hits, included, atol=0.02)
    sizes = included.sum(axis=1)
    free = N - (sampler == "feistel")
    spread = count * rate * (1.0 - rate) * N / free
    statistic = ((included.sum(axis=0) - count * rate) ** 2).sum() / spread
    assert scipy.stats.chi2(free).sf(statistic) > RARE
    if sampler == "feistel":
        assert (sizes == batch).all()
    else:
        found = np.array([(sizes <= size).mean() for size in range(N)])
        # Kolmogorov and Smirnov's bound, by Massart's inequality; it holds for discrete laws too.
        bound = np.sqrt(np.log(2.0 / RARE) / (2.0 * count))
        assert np.abs(found - scipy.stats.binom(N, rate).cdf(range(N))).max() < bound
    if batch < 1:
        empty = sizes == 0
        assert empty.sum() > 100  # of 1,500 · 0.45
        assert (moves[empty] == 0.0).all()
    overlap = (included[1:] * included[:-1]).sum(axis=1)
    expected = N * rate**2
    assert abs(overlap.mean() - expected) < 5.0 * overlap.std() / np.sqrt(count - 1)


def says_nothing(x):
    b = flat_prior(2000)
    with numpyro.plate("records", x.shape[0]):
        # Of records of ones; others say something, as a fit asks of made-up ones.
        numpyro.sample("x", dist.Normal(b[0], 1.0).mask(x < 0.0), obs=x)


def in_halves(*_):
    loc = jnp.concatenate([numpyro.param(name, jnp.zeros(1000)) for name in ("one", "two")])
    numpyro.sample("b", dist.Normal(loc, 1.0).to_event(1))


@pytest.mark.nightly(but=("feistel",))
@pytest.mark.parametrize("sampler", ["poisson", "feistel", "full"])
def test_a_step_has_the_stated_noise_and_no_two_steps_or_sites_the_same(sampler):
    """Records say nothing, so a step is noise: σ · C ÷ rate, whatever the size of its batch.

    Of 12,000 numbers: Kolmogorov–Smirnov, second moment within 5 standard errors; correlations of
    12 rows of 1,000 within 5: 66 pairs, false alarms below 1e-4.
    """
    batch = None if sampler == "full" else 8
    rate = 1.0 if batch is None else batch / N
    chosen = plan(
        steps=6, sampler=sampler, batch=batch, noise_multiplier=2.0, clip_norm=0.5, delta=1e-5
    )
    made = steps_of(says_nothing, in_halves, chosen, 6, np.ones(N, np.float32))
    noise = np.concatenate([np.diff(made[name], axis=0) for name in ("one", "two")])
    unit = noise / (2.0 * 0.5 / rate)
    assert unit.shape == (12, 1000)
    assert scipy.stats.kstest(unit.ravel(), "norm").pvalue > RARE
    assert abs((unit**2).mean() - 1.0) < 5.0 * np.sqrt(2.0 / unit.size)
    off = np.corrcoef(unit)[np.triu_indices(12, 1)]
    assert np.abs(off).max() < 5.0 / np.sqrt(1000)


def with_local(x):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", N, subsample_size=x.shape[0]):
        z = numpyro.sample("z", dist.Normal(w, 1.0))
        numpyro.sample("x", dist.Normal(z, 1.0), obs=x)


def with_local_guide(x):
    numpyro.sample("w", dist.Normal(numpyro.param("loc", 0.3), 0.2))
    slope, sd = numpyro.param("slope", 0.4), numpyro.param("sd", 0.5)
    with numpyro.plate("records", N, subsample_size=x.shape[0]):
        numpyro.sample("z", dist.Normal(slope * x, sd))


def watching():
    """An optimiser that stays where it is and keeps the gradient that it was given."""
    return optax.GradientTransformation(
        lambda params: jax.tree.map(jnp.zeros_like, params),
        lambda gradient, _state, _params=None: (jax.tree.map(jnp.zeros_like, gradient), gradient),
    )


@pytest.mark.nightly
def test_latents_of_each_record_are_scaled_with_their_records():
    """The mean gradient on batches is that of SVI on all records, within 5 standard errors.

    For 3 numbers: false alarms below 1e-5. The scale's holds the latents' own entropy, −N / sd:
    were it counted for empty places, or not scaled by the rate, it would be off by far more.
    """
    x, count = np.linspace(-1.0, 1.0, N).astype(np.float32), 6000
    found = []
    for fit in (
        DPSVI(with_local, with_local_guide, watching(), Trace_ELBO(), plan(steps=count, batch=10)),
        SVI(with_local, with_local_guide, watching(), Trace_ELBO()),
    ):
        start = fit.init(jax.random.key(2), x)

        def step(state, _, fit=fit):
            after, _ = fit.update(state, x)
            return after, flat(after.optim_state[1][1])

        _, gradients = jax.jit(lambda state, step=step: jax.lax.scan(step, state, length=count))(
            start
        )
        found.append(np.asarray(gradients, np.float64))
    means, errors = zip(
        *((of.mean(axis=0), of.std(axis=0) / np.sqrt(count)) for of in found), strict=True
    )
    assert (np.abs(means[0] - means[1]) < 5.0 * np.hypot(*errors)).all()
    # The test can see it: the errors are a few per cent of the entropy's part, 80.
    assert max(errors[0].max(), errors[1].max()) < 4.0


def test_a_mixture_draws_each_component_by_its_weight_and_round_its_location():
    """Counts by χ²; means within 5 standard errors: 6 numbers, false alarms below 1e-5."""
    count, weights = 6000, np.array([0.5, 0.3, 0.2])
    locations = np.array([[-5.0, -5.0], [0.0, 0.0], [5.0, 5.0]], np.float32)
    fixed = {
        "weights": jnp.asarray(weights, jnp.float32),
        "locations": jnp.asarray(locations),
        "variances": 0.01 * jnp.ones(3),
    }
    model = numpyro.handlers.condition(gaussian_mixture(3), fixed)
    # What is observed is drawn where it is not given: the model's own law of a record.
    with numpyro.handlers.trace() as sites, numpyro.handlers.seed(rng_seed=0):
        model(jnp.zeros((count, 2)))
    (law,) = [
        site["fn"] for name, site in sites.items() if site["type"] == "sample" and name not in fixed
    ]
    drawn = np.asarray(law.sample(jax.random.key(7)), np.float64)
    assert drawn.shape == (count, 2)
    nearest = np.square(drawn[:, None] - locations).sum(axis=2).argmin(axis=1)
    counts = np.bincount(nearest, minlength=3)
    assert scipy.stats.chisquare(counts, count * weights).pvalue > RARE
    for component, location in enumerate(locations):
        own = drawn[nearest == component]
        np.testing.assert_allclose(own.mean(axis=0), location, atol=5.0 * 0.1 / np.sqrt(len(own)))


def test_weights_off_the_simplex_are_refused_where_arguments_are_checked():
    fixed = {
        "weights": jnp.ones(3),
        "locations": jnp.zeros((3, 2)),
        "variances": jnp.ones(3),
    }
    model = numpyro.handlers.condition(gaussian_mixture(3), fixed)
    with (
        numpyro.validation_enabled(),
        numpyro.handlers.seed(rng_seed=0),
        pytest.raises(ValueError, match=r"invalid probs"),
    ):
        model(jnp.zeros((4, 2)))


def normal_mean(x):
    mean = numpyro.sample("mean", dist.Normal(0.0, 4.0).expand([2]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("x", dist.Normal(mean, 1.0).to_event(1), obs=x)


@pytest.mark.nightly
def test_the_mean_of_normal_records_has_its_closed_form_posterior():
    """Under noise, at a fixed seed: means to 0.015, sds to 20 %.

    Of two other seeds the largest errors were 0.006, a quarter of a posterior sd, and 13 %.
    """
    count = 2000
    x = np.random.default_rng(3).normal([1.0, -2.0], 1.0, size=(count, 2)).astype(np.float32)
    chosen = plan(
        max_records=count,
        steps=4000,
        sampler="full",
        noise_multiplier=80.0,
        clip_norm=4.0,
        delta=1e-6,
    )
    optim = numpyro.optim.Adam(optax.exponential_decay(0.05, 800, 0.4))
    guide = autoguide.AutoDiagonalNormal(normal_mean)
    fit = DPSVI(normal_mean, guide, optim, Trace_ELBO(), chosen, gradients="aligned")
    params = fit.run(jax.random.key(0), 4000, x, progress_bar=False).params
    precision = count + 1.0 / 16.0
    centre, sd = x.sum(axis=0, dtype=np.float64) / precision, precision**-0.5
    np.testing.assert_allclose(params["auto_loc"], centre, rtol=0.0, atol=0.015)
    np.testing.assert_allclose(params["auto_scale"], [sd, sd], rtol=0.2)
