"""Private posteriors are worth as much as the papers', at the ε that the papers' own noise really costs.

A paper's reading is compared with ours at *its* noise, priced anew: Poisson batches, `substitute`, PLD,
at its δ. That is the least that its noise can cost under `substitute`. The papers drew batches of a
fixed size, which costs more, and stated other numbers (`examples/one-table/README.md` has them all).

Seeds are fixed, so that these tests give the same answer every time. Bars lie at least two standard
errors of a mean below what more seeds gave; each test says how far.
"""

import importlib
import sys

import jax
import numpy as np
import optax
import pytest
from numpyro.infer import Trace_ELBO, init_to_feasible, init_to_value
from numpyro.infer.autoguide import AutoDiagonalNormal

import fedvi
from fedvi.privacy.accountants import pld
from fedvi.privacy.events import Gaussian, PoissonSampled, WithoutReplacement, repeat

pytestmark = pytest.mark.numpyro

RUNS = 6


@pytest.fixture
def script(examples, monkeypatch):
    """Imports a script of `examples/one-table`, as those import each other."""
    monkeypatch.syspath_prepend(examples / "one-table")
    yield importlib.import_module
    for name in ("abalone", "hierarchical", "mixture", "telling"):
        sys.modules.pop(name, None)


def descent(model, guide, learning_rate, gradients, epsilon, delta, **settings):
    """Returns a DPSVI of several runs, each of which alone costs ``epsilon`` at ``delta``."""
    usual = {"max_records": 2_000, **settings}
    single = fedvi.privacy.sgd(epsilon=epsilon, delta=delta, **usual)
    # What all runs cost together is nobody's concern here; a δ of 0.2 keeps it finite.
    plan = fedvi.privacy.sgd(
        noise_multiplier=single.mechanism.noise_multiplier,
        delta=0.2,
        runs=RUNS,
        insecure_seed=1,
        **usual,
    )
    assert pld("substitute").epsilon(plan.run, delta) <= epsilon
    optim = optax.adam(optax.cosine_decay_schedule(learning_rate, plan.steps))
    return fedvi.DPSVI(model, guide, optim, Trace_ELBO(), plan, gradients=gradients)


def over_runs(svi, score, *table):
    """Returns the scores of all runs of a plan."""
    found = [
        svi.run(jax.random.key(run), svi.privacy.steps, *table, progress_bar=False).params
        for run in range(RUNS)
    ]
    return np.array([float(score(params)) for params in found])


def assert_no_worse(aligned, plain):
    """The aligned option is as good as the plain one, but for three standard errors of both."""
    error = np.sqrt((aligned.var(ddof=1) + plain.var(ddof=1)) / len(plain))
    assert aligned.mean() >= plain.mean() - 3.0 * error


# Noise std ÷ the paper's sensitivity 2C, and the mean accuracy of ten runs, from what the authors of
# arXiv:1610.08749 published (DPBayes/DPVI-code, aba_advi_acc_sigmas.p): 1,000 steps, q = 0.05, δ = 1e-3.
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("sigma", "reading", "clip_norm"), [(29.964, 0.7487, 0.5), (3.549, 0.7603, 1.0)]
)
def test_abalone_is_classified_as_well_as_in_the_paper(script, shared, sigma, reading, clip_norm):
    """Ten other runs gave a mean 0.009 and 0.005 above the readings; six have an error of 0.002."""
    abalone = script("abalone")
    x, y = abalone.table(shared / "data" / "abalone" / "abalone.data")
    cut = int(0.8 * len(y))
    epsilon = pld("substitute").epsilon(
        repeat(PoissonSampled(0.05, Gaussian(2 * sigma)), 1_000), 1e-3
    )
    found = {}
    for gradients in ("full", "aligned"):
        svi = descent(
            *(abalone.model, abalone.guide(), clip_norm / 2.0, gradients, epsilon, 1e-3),
            steps=200,
            rate=0.2,
            max_records=cut,
            clip_norm=clip_norm,
        )
        found[gradients] = over_runs(
            svi, lambda params: abalone.accuracy(params, x[cut:], y[cut:]), x[:cut], y[:cut]
        )
        assert found[gradients].mean() >= reading, gradients
    assert_no_worse(found["aligned"], found["full"])


# Noise std ÷ 2C, and the mean over five runs of the log predictive density of a point, from what the
# authors of both papers published (PROBIC/d3p-paper-experiments, GMM/mog_preds_advi.p, with the noise
# of DPVI-code, mog.py): 1,000 steps, q = 0.003, δ = 1e-3, stated as ε = 0.1 and 1.
@pytest.mark.nightly
@pytest.mark.parametrize(("sigma", "reading", "bar"), [(2.0, -6.671, -4.15), (0.48, -4.695, -3.9)])
def test_the_mixture_predicts_better_than_in_the_paper(script, sigma, reading, bar):
    """``bar`` is a bar of our own: one Gaussian for everything gives −4.15, the true mixture −3.65."""
    mixture = script("mixture")
    x, test = mixture.points(2_000, 123), mixture.points(2_000, 124)
    model = mixture.gaussian_mixture(5, location_scale=2.0)
    epsilon = pld("substitute").epsilon(
        repeat(PoissonSampled(0.003, Gaussian(2 * sigma)), 1_000), 1e-3
    )
    found = {}
    for gradients in ("full", "aligned"):
        guide = AutoDiagonalNormal(model, init_loc_fn=init_to_value(values=mixture.start()))
        svi = descent(
            model, guide, 0.1, gradients, epsilon, 1e-3, steps=100, rate=0.2, clip_norm=1.0
        )
        found[gradients] = over_runs(
            svi,
            lambda params, guide=guide: mixture.predictive(model, guide, params, test, draws=50),
            x,
        )
        assert found[gradients].mean() > max(reading, bar), gradients
    assert_no_worse(found["aligned"], found["full"])


@pytest.mark.nightly
def test_the_hierarchical_model_ranks_as_well_as_with_the_papers_settings(script):
    """No number of the d3p paper's figure was to be had, so its settings were run with our own code.

    10,000 steps of batches of 10, Adam(1e-3), the share of the prior clipped with each record, clip norm
    1, noise for ε = 2 with `add_remove` at δ = 2e-3, less than its script takes: over eight runs an area
    of 0.8161 under the curve, standard error 0.0009. On its own batches, of a fixed size, that noise costs
    7.1 with `substitute`. At 7.1, eight other runs of ours gave 0.8200 and, aligned, 0.8170, standard
    error 0.0014 each.
    """
    hierarchical = script("hierarchical")
    train, (x, group, y), traits, _ = hierarchical.table(500)
    model = hierarchical.hierarchical_logistic(traits)
    guide = AutoDiagonalNormal(model, init_loc_fn=init_to_feasible)
    steps, batch, delta, reading = 10_000, 10, 2e-3, 0.8161

    def score(params):
        b = hierarchical.mean(guide, params, traits)
        return hierarchical.area((x * b[group]).sum(axis=1), y)

    noise = fedvi.privacy.sgd(
        epsilon=2.0, delta=delta, steps=steps, max_records=500, batch=batch, relation="add_remove"
    ).mechanism.noise_multiplier
    event = repeat(WithoutReplacement(batch, 500, Gaussian(noise)), steps)
    epsilon = pld("substitute").epsilon(event, delta)
    assert epsilon == pytest.approx(7.1, abs=0.1)
    found = {}
    for gradients in ("full", "aligned"):
        svi = descent(
            *(model, guide, 0.05, gradients, epsilon, delta),
            steps=200,
            rate=0.2,
            max_records=500,
            clip_norm=2.0,
        )
        found[gradients] = over_runs(svi, score, *train)
        # Less two standard errors of a mean of six runs.
        assert found[gradients].mean() >= reading - 0.003, gradients
    assert_no_worse(found["aligned"], found["full"])
