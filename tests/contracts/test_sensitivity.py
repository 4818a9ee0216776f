"""No table of records moves a total by more than is charged, on any way to a release."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from fedvi import errors
from fedvi.inference import clipping, solvers
from fedvi.inference.clipping import _weights, longest_part
from fedvi.inference.svi_steps import Steps
from fedvi.privacy import base, events, mechanisms, sampling
from fedvi.privacy import bounded as bounds
from fedvi.updates.coordinates import Coordinates
from tests.sensitivity import CASES, Case, shift, worst

pytestmark = pytest.mark.numpyro

# Sums in floating point, which promise nothing, may round beyond.
_ROUNDING = {"DPSVI, floating point, 409": 1e-6}
# One of each way to a release, for the fast tier.
_QUICK = (
    "DPSVI, flat, 41,944 of, 100,000",
    "DPSVI, flat, with its loss, 409",
    "DPSVI, per_site, 409",
    "DPSVI, normalised, 409",
    "DPSVI, aligned, flat, 409",
    "VIPS, linear, 4,096",
    "site_release, 41,944",
    "site_release, Poisson, 409",
    "site_release, fixed size, 409",
    "site_release, discrete noise, 409",
    "site_release, in blocks, 4,096",
    "site_release, logistic, 409",
    "site_release, by draws, 409",
    "site_release, binomial, 409",
    "dp_optimisation, any model, 409",
    "local_averaging, 64",
    "virtual_clients, 64",
    "perturbed_update, 64",
    "perturbed_update, clients, 1",
    "vips, linear, 409",
    "vips, topics, 409",
)


@pytest.mark.nightly(but=_QUICK)
@pytest.mark.parametrize("name", CASES)
def test_one_record_moves_what_is_released_by_at_most_what_is_charged(name):
    found = worst(CASES[name])
    assert found
    assert max(found.values()) <= 1.0 + _ROUNDING.get(name, 0.0), found
    # What is compared are tables as bad as they can be, or nearly so: none is near zero.
    assert min(found.values()) >= 0.4, found


HOSTILE = {
    "huge": ([0.0, 3.0], [1.0, 1e30], 0),
    "beyond float32": ([0.0, 3.0], [1.0, 1e300], 0),
    "below normal": ([0.0, 3.0], [1.0, 1e-40], 0),
    "zero": ([0.0, 1.0], [0.0, 0.0], 0),
    "below zero": ([0.0, 1.0], [-1.0, -2.0], 0),
    "no number": ([0.0, np.nan], [1.0, 1.0], 0),
    "far": ([0.0, 1e38], [1.0, 1.0], 0),
    "of another column": ([0.0, 1.0], [1.0, 1.0], 1),
}


@pytest.mark.nightly(but=("site_release, after a survey, 409",))
@pytest.mark.parametrize(
    "name", ["site_release, after a survey, 409", "site_release, after a survey, in blocks, 4,096"]
)
def test_no_coordinates_that_a_server_can_send_make_a_record_move_more_than_is_charged(name):
    totals = CASES[name].totals()
    case, found = dataclasses.replace(CASES[name], totals=lambda: totals), {}
    for hostile, (centre, scale, constant) in HOSTILE.items():
        totals._at = Coordinates(np.array(centre), np.array(scale), constant)
        with np.errstate(over="ignore"):
            found[hostile] = max(worst(case).values())
    assert max(found.values()) <= 1.0, found
    # Not because no record was left.
    assert min(found[hostile] for hostile in ("huge", "below zero", "far")) >= 0.4, found


def test_every_listed_solver_that_adds_noise_is_among_the_cases():
    exact = {"exact", "glm", "gradient"}
    named = {name.split(",")[0] for name in CASES}
    assert set(solvers.__all__) - exact <= named
    assert {"DPSVI", "VIPS"} <= named


def test_cases_stand_on_both_sides_of_each_length_at_which_blocks_change():
    lengths = {case.records or case.capacity for case in CASES.values()}
    for rows in (41_944, 83_887):
        assert longest_part(rows) < longest_part(rows - 1)
        assert rows in lengths


@pytest.mark.nightly(but=("DPSVI, per_site, 409",))
@pytest.mark.parametrize("name", ["DPSVI, flat, 1,024", "DPSVI, per_site, 409"])
def test_a_batch_as_long_as_there_are_records_would_be_noticed(monkeypatch, name):
    """As batches of whole tables once were: their number set everybody's clip limit."""

    def batch(self, key, columns):
        rows = columns[0].shape[0]
        return base.Batch(jnp.arange(rows), jnp.ones(rows, bool), self.plan.sampler)

    monkeypatch.setattr(Steps, "batch", batch)
    planted = dataclasses.replace(CASES[name], relations=("add_remove",))
    with pytest.raises(errors.PrivacyError, match=r"expected \d+, which its sampler draws"):
        worst(planted)
    monkeypatch.setattr(bounds, "_check_rows", lambda rows, sampler: None)
    assert worst(planted)["add_remove"] > 1.01


def test_a_weight_that_depends_on_the_place_of_a_record_would_be_noticed(monkeypatch):
    """Equal records hide it: one that leaves moves the others up, and nothing changes."""

    def weights(records, limit, clipping):
        found = _weights(records, limit, clipping)
        return [weight * (1.0 - 0.3 * (jnp.arange(weight.size) % 2)) for weight in found]

    monkeypatch.setattr(clipping, "_weights", weights)
    assert worst(CASES["DPSVI, per_site, 409"])["add_remove"] > 10.0


def test_a_price_of_half_the_move_would_be_noticed():
    case: Case = CASES["site_release, 409"]
    cheap = dataclasses.replace(case, event=events.Gaussian(2.0, add_remove=0.5, substitute=1.0))
    assert shift(cheap.event, "substitute") == 1.0
    assert min(worst(cheap).values()) > 1.9


@pytest.mark.parametrize("rows", [0, 1, 15, 97])
def test_no_sum_takes_a_batch_of_another_size_than_its_sampler_draws(rows):
    mechanism, sampler = mechanisms.rounded_gaussian(1.0), sampling.full(16)
    batch = base.Batch(jnp.arange(rows), jnp.ones(rows, bool), sampler)
    short = f"a batch has {rows} rows, expected 16, which its sampler draws, to 96"
    with pytest.raises(errors.PrivacyError, match=short):
        bounds.clipped_sum(jnp.ones((rows, 2)), 1.0, batch, mechanism)
    with pytest.raises(errors.PrivacyError, match=short):
        bounds.float_sum(lambda _: jnp.ones(2), 1, 16, 1.0, batch, mechanism)
    with pytest.raises(errors.PrivacyError, match=short):
        bounds.float_sum_of([np.ones(2)], 1, 16, 1.0, rows, sampler, mechanism)
