"""The second count of prices: beside accountants that it shares no code with, and beside simulated sums."""

import inspect

import numpy as np
import pytest

from fedvi.audit import second_price
from fedvi.audit.second_price import Release
from fedvi.inference import solvers
from fedvi.privacy import accountants, events

NOISE = events.Gaussian(5.0)
ONE = Release(5.0, 1.0, 2.0)
ALONE = (1, 0)


@pytest.mark.parametrize("relation", events.RELATIONS)
def test_gaussian_releases_attain_what_the_tightest_accountant_states(relation):
    stated = accountants.pld(relation).epsilon(events.repeat(NOISE, 20), 1e-5)
    found = second_price.attained([ONE], 20, relation, 1e-5, ALONE)
    assert found == pytest.approx(stated, rel=1e-5)


@pytest.mark.parametrize("relation", events.RELATIONS)
@pytest.mark.parametrize(("rate", "noise", "visits"), [(0.1, 1.0, 20), (0.5, 3.0, 20)])
def test_poisson_batches_attain_what_the_tightest_accountant_states(relation, rate, noise, visits):
    event = events.repeat(events.PoissonSampled(rate, events.Gaussian(noise)), visits)
    stated = accountants.pld(relation).epsilon(event, 1e-5)
    found = second_price.attained([Release(noise, 1.0, 2.0, rate)], visits, relation, 1e-5, ALONE)
    # The grid of the second count, and that of the accountant, which rounds up.
    assert found == pytest.approx(stated, rel=second_price.TOLERANCE)


def test_batches_of_a_fixed_size_attain_more_than_poisson_batches_of_their_rate():
    fixed = Release(2.0, 1.0, 2.0, 0.1, fixed=True)
    poisson = fixed._replace(fixed=False)
    least = second_price.attained([fixed], 50, "substitute", 1e-5, ALONE)
    assert least > 1.2 * second_price.attained([poisson], 50, "substitute", 1e-5, ALONE)
    event = events.repeat(events.WithoutReplacement(20, 200, events.Gaussian(2.0)), 50)
    assert least <= accountants.pld("substitute").epsilon(event, 1e-5)


@pytest.mark.parametrize("name", ["rdp", "zcdp"])
def test_accountants_of_orders_state_the_best_of_all_orders_or_a_little_more(name):
    stated = getattr(accountants, name)("substitute").epsilon(events.repeat(NOISE, 20), 1e-5)
    found = second_price.by_orders([ONE], 20, "substitute", 1e-5, ALONE, amplified=name == "rdp")
    assert found <= stated <= 1.001 * found


def test_what_is_left_of_a_sum_is_what_is_left_of_simulated_noise():
    answers = 3.0 * np.random.default_rng(0).normal(size=(5, 200_000))
    left = answers.sum(axis=0) - answers[:2].sum(axis=0)
    # A standard error is 0.16 %: six of them leave one false alarm in 10⁹.
    assert second_price.left_in_sum(3.0, 5, 2) == pytest.approx(left.std(), rel=0.01)


def test_a_sum_with_known_answers_costs_more_than_one_without():
    alone = second_price.attained([ONE], 4, "substitute", 1e-5, (5, 0))
    assert second_price.attained([ONE], 4, "substitute", 1e-5, (5, 2)) > alone


def test_of_a_solver_that_nobody_described_nothing_is_said():
    assert second_price.planned("my:solver", {}, "record", 1.0, 1.0, False) is None


def test_a_record_turns_a_clients_answer_around_and_a_client_only_leaves():
    record = second_price.planned("perturbed_update", {}, "record", 1.0, 1.0, False)
    client = second_price.planned("perturbed_update", {}, "client", 1.0, 1.0, False)
    assert record == [Release(1.0, 2.0, 2.0)]
    assert client == [Release(1.0, 1.0, 2.0)]


@pytest.mark.parametrize(
    ("solver", "setting"),
    [("dp_optimisation", "steps"), ("local_averaging", "parts"), ("virtual_clients", "parts")],
)
def test_a_setting_that_a_study_leaves_out_is_counted_at_the_solvers_default(solver, setting):
    default = inspect.signature(getattr(solvers, solver)).parameters[setting].default
    left_out = second_price.planned(solver, {}, "record", 1.0, 1.0, False)
    given = second_price.planned(solver, {setting: default}, "record", 1.0, 1.0, False)
    other = second_price.planned(solver, {setting: 1}, "record", 1.0, 1.0, False)
    assert left_out == given != other
