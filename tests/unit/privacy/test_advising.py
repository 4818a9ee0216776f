"""What is advised of a plan, held against closed forms, drawn noise and plans that were made anew."""

import dataclasses
import math
import re

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

import fedvi
from fedvi import errors
from fedvi.privacy import advising, random, sampling
from fedvi.privacy.advising import advice, levers, power_bound, signal_to_noise
from fedvi.privacy.descent import sgd


def full(noise_multiplier=4.0, steps=1, relation="substitute", **more):
    given = {"max_records": 1000, "sampler": "full", "delta": 1e-5, "float_noise": True}
    return sgd(
        noise_multiplier=noise_multiplier, steps=steps, relation=relation, **{**given, **more}
    )


def sampled(**more):
    given = {
        "noise_multiplier": 2.0,
        "delta": 1e-6,
        "steps": 9,
        "batch": 100,
        "max_records": 20_000,
    }
    return sgd(**{**given, **more})


def distance(plan):
    """The μ of Gaussian releases of every record: steps of noise σ that a record moves by 1 or 2."""
    moved = 2.0 if plan.relation == "substitute" else 1.0
    return moved * math.sqrt(plan.steps) / plan.mechanism.noise_multiplier


def said(plan, **more):
    return " ".join(advice(plan, **more).split())


plans = {
    "noise": st.floats(1.0, 20.0),
    "steps": st.integers(1, 20),
    "relation": st.sampled_from(["substitute", "add_remove"]),
}


@given(**plans, rate=st.floats(1e-4, 0.5))
@settings(max_examples=30)
def test_the_power_bound_is_the_closed_form_of_gaussian_releases_or_little_above(
    noise, steps, relation, rate
):
    """Neyman and Pearson's test of N(0, 1) against N(μ, 1) has the power Φ(μ − Φ⁻¹(1 − α))."""
    plan = full(noise, steps, relation)
    exact = stats.norm.cdf(distance(plan) - stats.norm.isf(rate))
    bound = power_bound(plan, rate)
    # The tables' part of δ, and what lies between the ε that are looked at.
    assert exact <= bound <= 1.03 * exact + 1e-5


@given(**plans, rate=st.floats(0.0, 1.0))
@settings(max_examples=30)
def test_the_power_bound_is_between_guessing_and_what_one_epsilon_says(
    noise, steps, relation, rate
):
    plan = full(noise, steps, relation)
    bound = power_bound(plan, rate)
    stated = math.exp(plan.epsilon) * rate + plan.delta
    assert rate <= bound <= min(1.0, stated)


def test_a_plan_that_protects_nothing_lets_every_test_succeed():
    plan = sgd(noise_multiplier=0.0, steps=1, max_records=10, batch=5)
    assert power_bound(plan, 0.01) == 1.0
    assert "Nothing is promised" in said(plan)
    assert "There is no noise" in said(plan, numbers=3)
    assert levers(plan, 3) == ()


@pytest.mark.parametrize("relation", ["substitute", "add_remove"])
def test_numbers_that_bound_something_are_written_rounded_up(relation):
    plan = full(3.0, 7, relation)
    text = said(plan, numbers=4)
    for rate, percent in ((0.01, "1%"), (0.1, "10%")):
        found = re.search(rf"in at most ([\d.e+-]+)% of cases with false alarms in {percent}", text)
        assert found is not None
        exact = 100.0 * power_bound(plan, rate, 4)
        assert exact <= float(found[1]) <= 1.01 * exact
    found = re.search(r"by a factor of at most ([\d.e+-]+), except", text)
    assert found is not None
    assert math.exp(plan.epsilon) <= float(found[1]) <= 1.01 * math.exp(plan.epsilon)


def test_epsilon_is_said_under_both_relations():
    """Of the other one by the closed form, Balle and Wang (2018), arXiv:1805.06530, Theorem 8."""

    def excess(epsilon, mu, delta):
        here, there = stats.norm.cdf([mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu])
        return here - math.exp(epsilon) * there - delta

    for relation, other in (("substitute", "add_remove"), ("add_remove", "substitute")):
        plan = full(6.0, 4, relation)
        mu = distance(dataclasses.replace(plan, relation=other))
        exact = optimize.brentq(excess, 1e-3, 50.0, args=(mu, plan.delta))
        text = said(plan)
        assert f"under {relation}, by the accountant pld" in text
        found = re.search(rf"Under {other}, .*?, epsilon is ([\d.]+) at the same delta", text)
        assert found is not None
        assert exact <= float(found[1]) <= 1.01 * exact


def test_a_relation_without_a_price_is_said_to_have_none():
    plan = sampled(sampler="feistel", batch=4000)
    assert "Under add_remove this accountant has no price for batches of this kind" in said(plan)


def test_the_signal_to_noise_is_that_of_noise_that_is_drawn():
    plan, numbers = sampled(clip_norm=0.5), 40_000
    grid = plan.mechanism.grid(plan.clip_norm)
    key, zeros = random.insecure_root(0).key("noise"), jnp.zeros(numbers, jnp.int32)
    drawn = np.asarray(plan.mechanism.perturb(key, zeros, plan.clip_norm)) * grid.step
    # The root mean square of 40,000 normal numbers is off by 2 % with probability below 1e-7.
    length = float(np.linalg.norm(drawn)) / (plan.clip_norm * 100)
    assert 1.0 / signal_to_noise(plan, numbers) == pytest.approx(length, rel=0.02)


@given(
    noise=st.floats(0.5, 50.0),
    rate=st.floats(0.01, 0.9),
    numbers=st.integers(1, 10**6),
    records=st.integers(1, 5000),
)
@settings(max_examples=20)
def test_signal_to_noise_grows_with_the_batch_and_falls_with_noise_and_numbers(
    noise, rate, numbers, records
):
    # The price does not matter here, and closed forms are quick.
    plan = dataclasses.replace(full(noise), sampler=sampling.poisson(rate, 5000))
    found = signal_to_noise(plan, numbers, records)
    assert found == pytest.approx(rate * records / (noise * math.sqrt(numbers)))
    assert signal_to_noise(plan, 4 * numbers, records) == pytest.approx(found / 2)


def test_the_signal_drowns_where_it_is_below_the_noise_and_not_before():
    plan = full(
        2.0, 9, max_records=100
    )  # equal at 2,500 numbers; nine steps have thrice the signal
    assert signal_to_noise(plan, 2500) == 1.0
    once, never = (
        "WARNING: the signal drowns in a single step",
        "WARNING: the signal drowns even over",
    )
    assert "drowns" not in said(plan, numbers=2500)
    assert once in said(plan, numbers=2501)
    assert once in said(plan, numbers=9 * 2500)
    assert never in said(plan, numbers=9 * 2500 + 1)
    # Half the records are half the batch.
    assert once in said(plan, numbers=2500, records=50)
    assert "Give `numbers`" in said(plan)


@pytest.mark.parametrize(
    ("delta", "verdict"),
    [
        (0.99e-4, "This is small enough"),
        (1.01e-4, "NOTE: delta is borderline"),
        (0.99e-3, "NOTE: delta is borderline"),
        (1.01e-3, "WARNING: delta is too large"),
    ],
)
def test_delta_is_held_against_the_number_of_records(delta, verdict):
    assert verdict in said(full(delta=delta, max_records=1000))


def test_a_clip_norm_and_a_number_of_records_that_are_hardly_meant_are_warned_of():
    assert "WARNING: clip_norm is 1e+09; few gradients" in said(full(clip_norm=1e9))
    assert "WARNING: max_records is 3" in said(full(max_records=3, delta=1e-6))
    assert "clip_norm is" not in said(full(clip_norm=1000.0, max_records=10, delta=1e-6))
    assert "max_records is" not in said(full(clip_norm=1000.0, max_records=10, delta=1e-6))


def test_a_weak_guarantee_is_called_weak_where_a_test_is_right_more_often_than_not():
    # The closed form has the power one half at μ = Φ⁻¹(0.9).
    edge = 2.0 / stats.norm.ppf(0.9)
    assert "such a guarantee is weak" not in said(full(1.02 * edge))
    assert "such a guarantee is weak" in said(full(0.99 * edge))


def test_batch_and_passes_are_those_of_the_plan():
    text = said(sampled(steps=400, batch=500, noise_multiplier=0.0), records=10_000)
    assert "250 of 10000 records on average" in text
    assert "The 400 steps of a run pass over the data 10 times" in text


def test_a_lever_brings_what_it_says_at_the_price_of_the_plan():
    plan = sampled(noise_multiplier=2.5, steps=20, batch=2000)
    found = {lever.name: lever for lever in levers(plan, numbers=10, latents=5)}
    for name, changed, signal, epsilon in (
        ("twice the records a batch", {"batch": 4000}, 2.0, plan.epsilon),
        ("half the steps", {"steps": 10}, 1.0, plan.epsilon),
        ("twice the epsilon", {}, 1.0, 2.0 * plan.epsilon),
    ):
        lever = found[name]
        settings = {"noise_multiplier": 2.5, "steps": 20, "batch": 2000, **changed}
        # The noise that it says is needed.
        settings["noise_multiplier"] *= signal / lever.step
        other = sampled(**settings)
        assert other.epsilon == pytest.approx(epsilon, rel=0.02)
        gain = signal_to_noise(other, 10) / signal_to_noise(plan, 10)
        assert lever.step == pytest.approx(gain)
        assert lever.run == pytest.approx(gain * math.sqrt(other.steps / 20))
        assert lever.keeps is (name != "twice the epsilon")
    # Half the numbers, at the same noise multiplier.
    aligned = signal_to_noise(plan, 5) / signal_to_noise(plan, 10)
    assert found["aligned gradients"].run == pytest.approx(aligned)
    best = max((lever for lever in found.values() if lever.keeps), key=lambda lever: lever.run)
    words = f"that keep the promise, {best.name} helps most: {best.run:.3g}"
    assert words in said(plan, numbers=10, latents=5)


def test_a_lever_that_is_not_there_is_left_out():
    names = {lever.name for lever in levers(full(), numbers=5, latents=5)}
    # All records are in the batch, there is one step, and a guide of as many numbers as latents.
    assert names == {"twice the epsilon"}
    names = {lever.name for lever in levers(sampled(sampler="feistel", batch=10_001), 5, 5)}
    assert "twice the records a batch" not in names


def test_a_mark_is_repeated():
    assert "MARK: simulation: no guarantee" in said(full())
    assert "MARK" not in said(full(float_noise=False))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"numbers": 0}, r"numbers is 0, expected at least 1"),
        ({"latents": -1}, r"latents is -1"),
        ({"records": 1001}, r"records is 1001, expected at most max_records, 1000"),
    ],
)
def test_counts_that_cannot_be_are_refused(given, message):
    with pytest.raises(errors.ConfigError, match=message):
        advice(full(), **given)


def test_a_rate_that_is_none_is_refused():
    with pytest.raises(errors.ConfigError, match=r"false_positives is 1.5"):
        power_bound(full(), 1.5)


def test_it_is_found_where_users_look_for_it():
    assert fedvi.privacy.advice is advising.advice
    assert "advice" in fedvi.privacy.__all__


@pytest.mark.parametrize("latents", [1, 30])
def test_it_names_the_clip_norm_and_the_rates_that_are_suggested(latents):
    plan = full(max_records=500)
    found = fedvi.privacy.suggest(max_records=500, latents=latents, epsilon=1.0, delta=1e-6)
    text = " ".join(advice(plan, numbers=latents, latents=latents).split())
    rate = found.learning_rate
    assert (
        f"fedvi.privacy.suggest takes {found.plan.clip_norm:.3g}, with {rate.steps} steps" in text
    )
    assert f"fall from {rate(0):g} to {rate(rate.steps):g}" in text
    assert "the root of the number of latents" in advice(plan).replace("\n", " ")
