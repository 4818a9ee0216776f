"""Losses that `DPSVI` releases, and batches that it takes in parts."""

import jax
import numpy as np
import numpyro
import pytest
from numpyro.infer import SVI, Trace_ELBO, autoguide

from fedvi import errors
from fedvi.inference import per_record
from fedvi.inference import svi as descents
from fedvi.inference.svi import DPSVI
from tests.unit.inference.test_svi import STEPS, N, assert_same, logistic, nothing, private, table

pytestmark = pytest.mark.numpyro


def fit(plan, **options):
    guide = autoguide.AutoDiagonalNormal(logistic)
    return DPSVI(logistic, guide, numpyro.optim.Adam(0.05), Trace_ELBO(), plan, **options)


@pytest.mark.parametrize(
    "options",
    [{}, {"clip": "elbo"}, {"gradients": "aligned"}, {"microbatch_size": 7}],
    ids=["likelihood", "elbo", "aligned", "microbatches"],
)
def test_without_noise_and_clipping_losses_are_those_of_svi(options):
    theirs = SVI(
        logistic,
        autoguide.AutoDiagonalNormal(logistic),
        numpyro.optim.Adam(0.05),
        Trace_ELBO(),
    )
    expected = theirs.run(jax.random.key(1), STEPS, *table(), progress_bar=False)
    ours = fit(nothing(), loss_bound=1e4, **options)
    found = ours.run(jax.random.key(1), STEPS, *table(), progress_bar=False)
    assert_same(found.params, expected.params, rtol=1e-4)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-4)
    again = fit(nothing(), loss_bound=1e4, **options)
    state = again.init(jax.random.key(1), *table())
    np.testing.assert_allclose(again.update(state, *table())[1], expected.losses[0], rtol=1e-4)


def test_a_released_loss_is_noised_and_costs_no_more():
    plan = private(insecure_seed=1)
    ours = fit(plan, loss_bound=2.0)
    result = ours.run(jax.random.key(1), 50, *table(), progress_bar=False)
    assert np.isfinite(result.losses).all()
    assert ours.ledger.header.planned == fit(plan).privacy.run
    # The noise of a loss has std 10 · 4 · 2 ÷ (6 / 24) = 320, and that of the batch is far below.
    assert 200 < np.std(result.losses) < 450
    other = fit(private(insecure_seed=2), loss_bound=2.0)
    assert not np.allclose(
        other.run(jax.random.key(1), 50, *table(), progress_bar=False).losses, result.losses
    )
    _, loss = jax.jit(ours.update)(result.state, *table())
    assert np.isnan(loss), "no step was left"


def test_batches_are_taken_in_parts_where_gradients_would_fill_the_memory(monkeypatch):
    ends, seen = [], []
    gradients = per_record.gradients

    def watched(loss, at, rows, places):
        seen.append(places.shape[0])
        return gradients(loss, at, rows, places)

    monkeypatch.setattr(per_record, "gradients", watched)
    for most in (2**26, 5 * 6):
        monkeypatch.setattr(descents, "_FORMED_TOGETHER", most)
        seen.clear()
        ours = fit(nothing())
        ends.append(ours.run(jax.random.key(1), STEPS, *table(), progress_bar=False).params)
        # All rows to see how many numbers a record has, then what is formed.
        assert set(seen) == ({N} if most == 2**26 else {N, 5})
    assert_same(ends[1], ends[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"loss_bound": 0.0}, r"loss_bound is 0\.0, expected a positive number"),
        ({"loss_bound": float("inf")}, "loss_bound is inf"),
        ({"microbatch_size": 0}, "microbatch_size is 0, expected an integer of at least 1"),
        ({"microbatch_size": True}, "microbatch_size is True"),
    ],
)
def test_a_bound_and_a_size_are_positive(options, said):
    with pytest.raises(errors.ConfigError, match=said):
        fit(nothing(), **options)
