"""The masses of privacy losses beside dp-accounting's own objects, bit for bit."""

import subprocess
import sys

import numpy as np
import pytest
from dp_accounting import privacy_accountant
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import example, given
from hypothesis import strategies as st

from fedvi.privacy.accountants import losses, masses

NEIGHBOURS = privacy_accountant.NeighboringRelation
RELATIONS = {"add_remove": NEIGHBOURS.ADD_OR_REMOVE_ONE, "substitute": NEIGHBOURS.REPLACE_ONE}
MOST = 60_000  # points; more are skipped, since dp-accounting inverts losses one at a time


def library(noise, rate, interval, relation):
    with np.errstate(all="ignore"):
        return privacy_loss_distribution.from_gaussian_mechanism(
            standard_deviation=noise,
            sampling_prob=rate,
            value_discretization_interval=interval,
            neighboring_relation=RELATIONS[relation],
        )


def assert_same(pair, theirs):
    assert (pair.add is pair.remove) == (theirs._pmf_add is theirs._pmf_remove)
    for own, pmf in zip(pair, (theirs._pmf_remove, theirs._pmf_add), strict=True):
        dense = pmf.to_dense_pmf()
        assert own.lowest == dense._lower_loss
        np.testing.assert_array_equal(own.at, dense._probs)
        assert own.infinite == dense._infinity_mass
        assert own.sparse == (dense is not pmf)
    for epsilon in (0.0, 0.01, 0.7, 9.0):
        with np.errstate(all="ignore"):
            assert pair.delta(epsilon) == theirs.get_delta_for_epsilon(epsilon)


rates = st.one_of(
    st.floats(-6.0, -1e-3).map(lambda power: 10**power),
    st.floats(-9.0, -1.0).map(lambda power: 1 - 10**power),
    st.sampled_from([0.01, 0.5]),
)


@given(
    noise=st.floats(-1.0, 2.5).map(lambda power: 10**power),
    rate=rates,
    relation=st.sampled_from(list(RELATIONS)),
    count=st.sampled_from([2, 3, 40, 999, 1_000, 5_000]),
    mu=st.sampled_from([0.0, 0.01, 0.5]),
    coarse=st.booleans(),
)
@example(noise=1.416, rate=0.01, relation="add_remove", count=1_000, mu=0.0, coarse=False)
@example(noise=300.0, rate=1e-6, relation="add_remove", count=2, mu=0.0, coarse=False)  # few points
@example(noise=0.8, rate=0.3, relation="substitute", count=40, mu=0.5, coarse=True)
def test_masses_are_dp_accountings_bit_for_bit(noise, rate, relation, count, mu, coarse):
    step = losses.Step("poisson", noise, rate)
    interval = losses.grid(((step, count),), mu, relation, 1e-2 if coarse else 1e-4)
    if interval is None:
        return
    once = masses.gaussian(noise, rate, interval, relation == "substitute")
    if len(once.remove.at) > MOST:
        return
    theirs = library(noise, rate, interval, relation)
    assert_same(once, theirs)
    if any((len(one.at) - 1) * count > 50 * MOST for one in once.different()):
        return
    if count >= 1_000:
        theirs = losses_dense(theirs)
    with np.errstate(all="ignore"):
        many, theirs = masses.repeated(once, count), theirs.self_compose(count)
    assert_same(many, theirs)
    if mu and len((bare := masses.gaussian(1 / mu, 1.0, interval)).remove.at) <= MOST:
        their_bare = library(1 / mu, 1.0, interval, "add_remove")
        assert_same(bare, their_bare)
        with np.errstate(all="ignore"):
            assert_same(masses.composed(many, bare), theirs.compose(their_bare))


def losses_dense(theirs):
    remove, add = theirs._pmf_remove, theirs._pmf_add
    return privacy_loss_distribution.PrivacyLossDistribution(
        remove.to_dense_pmf(), None if add is remove else add.to_dense_pmf()
    )


def test_a_handful_of_masses_is_multiplied_out_as_dp_accounting_does():
    few = masses.Masses(0.1, -1, np.array([0.25, 0.5, 0.25 - 1e-9]), 1e-9, sparse=True)
    pair = masses.Pair(few, few)
    theirs = privacy_loss_distribution.PrivacyLossDistribution(masses._library(few))
    assert_same(masses.repeated(pair, 4), theirs.self_compose(4))
    assert_same(masses.composed(pair, pair), theirs.compose(theirs))
    assert masses.repeated(pair, 4).remove.sparse


@given(noise=st.floats(0.3, 30.0), rate=st.floats(1e-4, 0.9), count=st.integers(2, 50))
def test_losses_rounded_down_never_cost_more_than_those_rounded_up(noise, rate, count):
    interval = losses.grid(((losses.Step("poisson", noise, rate), count),), 0.0, "add_remove", 1e-2)
    if interval is None:
        return
    with np.errstate(all="ignore"):
        up, down = (
            masses.gaussian(noise, rate, interval),
            masses.rounded_down(noise, rate, interval),
        )
        for epsilon in (0.0, 0.1, 1.0):
            assert down.delta(epsilon) <= up.delta(epsilon) + 1e-12
            above = masses.repeated(up, count).delta(epsilon)
            assert masses.repeated(down, count).delta(epsilon) <= above + 1e-12


@pytest.mark.parametrize(
    "deltas", [[0.5, 0.6], [1.5, 0.2], [0.2, -0.1], [float("nan"), 0.0]], ids=str
)
def test_a_profile_that_cannot_be_one_is_refused(deltas):
    with pytest.raises(ValueError, match="no privacy profile"):
        masses._chords(0.1, 0, np.array(deltas))


def test_calibration_loads_neither_jax_nor_the_libraries_that_take_half_a_second():
    script = """
import sys
from fedvi.privacy.accountants import pld
from fedvi.privacy.calibrate import calibrate
from fedvi.privacy.events import Gaussian, PoissonSampled, repeat
print(calibrate(lambda s: repeat(PoissonSampled(0.01, Gaussian(s)), 1000), pld("add_remove"), 1.0, 1e-5))
print([name for name in ("jax", "dp_accounting", "scipy.stats", "scipy.signal") if name in sys.modules])
"""
    found = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert found.stdout.split("\n")[:2] == ["1.416", "[]"]
