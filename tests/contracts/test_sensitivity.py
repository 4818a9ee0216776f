"""No table of records moves a total by more than is charged, on any way to a release."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from fedvi import errors
from fedvi.inference import solvers
from fedvi.inference.clipping import longest_part
from fedvi.inference.svi import DPSVI
from fedvi.privacy import events, mechanisms, release, sampling
from tests.sensitivity import CASES, Case, shift, worst

pytestmark = pytest.mark.numpyro

# Sums in floating point, which promise nothing, may round beyond.
_ROUNDING = {"DPSVI, floating point, 409": 1e-6}


@pytest.mark.parametrize("name", CASES)
def test_one_record_moves_what_is_released_by_at_most_what_is_charged(name):
    found = worst(CASES[name])
    assert found
    assert max(found.values()) <= 1.0 + _ROUNDING.get(name, 0.0), found
    # What is compared are tables as bad as they can be, or nearly so: none is near zero.
    assert min(found.values()) >= 0.4, found


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


@pytest.mark.parametrize("name", ["DPSVI, flat, 1,024", "DPSVI, per_site, 409"])
def test_a_batch_as_long_as_there_are_records_would_be_noticed(monkeypatch, name):
    """As batches of whole tables once were: their number set everybody's clip limit."""

    def batch(self, key, columns):
        rows = columns[0].shape[0]
        return release.Batch(jnp.arange(rows), jnp.ones(rows, bool), self.privacy.sampler)

    monkeypatch.setattr(DPSVI, "_batch", batch)
    planted = dataclasses.replace(CASES[name], relations=("add_remove",))
    with pytest.raises(errors.PrivacyError, match="expected at least the"):
        worst(planted)
    monkeypatch.setattr(release, "_check_rows", lambda rows, sampler: None)
    assert worst(planted)["add_remove"] > 1.01


def test_a_price_of_half_the_move_would_be_noticed():
    case: Case = CASES["site_release, 409"]
    cheap = dataclasses.replace(case, event=events.Gaussian(2.0, add_remove=0.5, substitute=1.0))
    assert shift(cheap.event, "substitute") == 1.0
    assert min(worst(cheap).values()) > 1.9


@pytest.mark.parametrize("rows", [0, 1, 15])
def test_no_sum_takes_a_batch_of_fewer_rows_than_its_sampler_draws(rows):
    mechanism, sampler = mechanisms.rounded_gaussian(1.0), sampling.full(16)
    batch = release.Batch(jnp.arange(rows), jnp.ones(rows, bool), sampler)
    short = f"a batch has {rows} rows, expected at least the 16"
    with pytest.raises(errors.PrivacyError, match=short):
        release.clipped_sum(jnp.ones((rows, 2)), 1.0, batch, mechanism)
    with pytest.raises(errors.PrivacyError, match=short):
        release.float_sum(lambda _: jnp.ones(2), 1, 16, 1.0, batch, mechanism)
    with pytest.raises(errors.PrivacyError, match=short):
        release.float_sum_of([np.ones(2)], 1, 16, 1.0, rows, sampler, mechanism)
