"""The noise of a sum: how clients share it, and what of it is left for who looks at sums."""

import json
import math

import numpy as np
import pytest

from fedvi.privacy.accountants import pld
from fedvi.privacy.events import Gaussian, repeat
from fedvi.privacy.sums import Sums, in_sum


def share(noise_multiplier, clients, least_reporting=None):
    """The noise of each client of which so many add up to that of the sum."""
    return noise_multiplier / math.sqrt(least_reporting or clients)


@pytest.fixture(scope="module")
def client_level(references):
    return json.loads((references / "accounting.json").read_text(encoding="utf-8"))["client_level"]


@pytest.fixture(scope="module")
def feedback(references):
    path = references / "noise_feedback_counterexample.json"
    return json.loads(path.read_text(encoding="utf-8"))


def test_meets_the_client_level_vectors(client_level):
    for row in client_level:
        message = Gaussian(share(row["sigma"], row["M"]))
        event = in_sum(message, Sums(row["reporting"], row["colluding"]).honest)
        assert event.noise_multiplier == pytest.approx(row["sigma_effective"], rel=1e-12)
        rounds, delta = repeat(event, row["rounds"]), row["delta"]
        single = repeat(message, row["rounds"])
        # rtol 1e-9: the same closed form, by another root finder.
        found = [
            pld("add_remove").epsilon(rounds, delta),
            pld("substitute").epsilon(rounds, delta),
            pld("substitute").epsilon(single, delta),
        ]
        expected = [
            row["eps_aggregate_only"],
            row["eps_aggregate_substitute"],
            row["eps_server_sees_individual_messages_substitute"],
        ]
        np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("reporting", "colluding", "least"), [(8, 0, None), (8, 3, None), (5, 1, 4), (8, 7, 8)]
)
def test_the_noise_that_is_simulated_is_the_noise_that_is_stated(reporting, colluding, least):
    generator = np.random.default_rng(7)
    single = share(2.0, 8, least)
    noise = generator.normal(scale=single, size=(50_000, reporting))
    left = noise.sum(1) - noise[:, :colluding].sum(1)
    stated = in_sum(Gaussian(single), Sums(reporting, colluding).honest).noise_multiplier
    # 5 standard errors of a standard deviation, 1/√(2n) each.
    assert left.std() == pytest.approx(stated, rel=5 / math.sqrt(100_000))


def test_shares_that_count_on_few_answers_cover_every_number_from_there():
    for answers in range(4, 11):
        seen = in_sum(Gaussian(share(3.0, 10, least_reporting=4)), answers).noise_multiplier
        assert seen >= 3.0 * (1 - 1e-12)
    # Without a floor, who drops out is missed.
    seen = in_sum(Gaussian(share(3.0, 10)), 4).noise_multiplier
    assert seen == pytest.approx(3.0 * math.sqrt(0.4))


# Noise that is fed back.


def two_rounds(noise_multiplier, clients):
    """μ of the two published sums, in closed form.

    Client j sends ±1 and then ∓1. Every other client answers a·n in the second round, n its own
    noise of the first. The sums are jointly Gaussian; only their mean depends on the sign.
    """
    gain = math.sqrt(clients) / (5 * noise_multiplier)
    others = (clients - 1) / clients * noise_multiplier**2
    cross = gain * others
    covariance = np.array(
        [[noise_multiplier**2, cross], [cross, noise_multiplier**2 + gain**2 * others]]
    )
    apart = np.array([2.0, -2.0])
    return math.sqrt(apart @ np.linalg.solve(covariance, apart))


def test_the_noise_feedback_counterexample_is_reproduced(feedback):
    for row in feedback:
        assert two_rounds(row["sigma"], row["M"]) == pytest.approx(row["actual_mu"], rel=1e-9)
        assert row["claimed_mu"] == pytest.approx(2 * math.sqrt(2) / row["sigma"], rel=1e-12)


def test_a_simulation_of_noise_feedback_agrees_with_its_closed_form():
    noise_multiplier, clients, trials = 2.0, 100, 20_000
    generator = np.random.default_rng(11)
    own = generator.normal(scale=share(noise_multiplier, clients), size=(2, trials, clients))
    gain = math.sqrt(clients) / (5 * noise_multiplier)
    answers = gain * own[0, :, 1:]
    # An answer has deviation 0.2: the clip norm of 1 is five of them.
    assert (np.abs(answers) > 1).mean() < 1e-5
    sums = np.stack([own[0].sum(1), answers.sum(1) + own[1].sum(1)])
    apart = np.array([2.0, -2.0])
    simulated = math.sqrt(apart @ np.linalg.solve(np.cov(sums), apart))
    # 5 standard errors of √(1/variance), 1/√(2·20,000) each.
    assert simulated == pytest.approx(two_rounds(noise_multiplier, clients), rel=0.025)


def test_the_naive_claim_is_false_and_the_offered_one_covers(feedback):
    for row in feedback:
        sigma, clients = row["sigma"], row["M"]
        naive = in_sum(Gaussian(share(sigma, clients)), clients).noise_multiplier
        assert 2 * math.sqrt(2) / naive == pytest.approx(row["claimed_mu"], rel=1e-12)
        assert row["claimed_mu"] < row["actual_mu"]
        # What is offered where a client keeps a noised factor: the price of its messages.
        assert 2 * math.sqrt(2) / share(sigma, clients) >= row["actual_mu"]
