"""``VIPS`` for one data holder: what is charged and when, what is marked, and that no key serves twice."""

import dataclasses
import math
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import fedvi
from fedvi import errors, models, privacy
from fedvi.models.lda import LatentDirichlet
from fedvi.models.regression_statistics import KnownNoise
from fedvi.privacy import random

MODEL = models.linear(["slope"], noise_scale=1.0)


def records(count=20):
    x = np.linspace(-1.0, 1.0, count)[:, None]
    return {"x": x, "y": 2.0 * x[:, 0]}


def planned(**settings):
    given = {"epsilon": 1.0, "delta": 1e-6, "steps": 3, "sampler": "full", "max_records": 30}
    return privacy.sgd(**(given | settings))


@dataclasses.dataclass(frozen=True)
class Mine(KnownNoise):
    """Written outside fedvi: nobody vetted its norms."""


MINE = Mine(("slope",), (2.5,), row_norm=1.0)


def test_a_model_from_elsewhere_is_marked_and_one_of_fedvi_is_not():
    assert fedvi.VIPS(MINE, planned()).mark == "custom code: claim not vetted"
    assert fedvi.VIPS(MODEL, planned()).mark == ""
    seeded = fedvi.VIPS(MINE, planned(insecure_seed=1))
    assert seeded.mark == "simulation: no guarantee; custom code: claim not vetted"
    assert seeded.ledger.header.note == seeded.mark


def test_nothing_is_claimed_without_noise_and_nothing_marked():
    exact = privacy.sgd(
        noise_multiplier=0, steps=1, max_records=30, sampler="full", clip_norm=math.inf
    )
    assert fedvi.VIPS(MINE, exact).mark == fedvi.VIPS(MODEL, exact).mark


def test_a_run_is_charged_once_in_full_whether_or_not_it_ends():
    fit = fedvi.VIPS(MODEL, planned(runs=2))

    def stop(rounds, posterior):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit.run(records(), progress_bar=False, on_round=stop)
    assert [entry.event for entry in fit.ledger.entries] == [fit.privacy.run]
    fit.run(records(), progress_bar=False)
    assert len(fit.ledger.entries) == 2
    with pytest.raises(errors.BudgetExceeded, match=r"3 times, expected at most 2"):
        fit.run(records(), progress_bar=False)
    assert len(fit.ledger.entries) == 2


@pytest.mark.parametrize("seed", [None, 5])
def test_no_key_serves_two_purposes_two_rounds_or_two_runs(monkeypatch, seed):
    seen, honest = [], random.key

    def watched(secret, *label):
        found = honest(secret, *label)
        seen.append(np.asarray(jax.random.key_data(found)).tobytes())
        return found

    monkeypatch.setattr(random, "key", watched)
    fit = fedvi.VIPS(MODEL, planned(runs=2, insecure_seed=seed))
    for _ in range(2):
        fit.run(records(), progress_bar=False)
    assert len(seen) == len(set(seen)) == 2 * 3 * 2


def test_rows_up_to_the_largest_number_of_records_count_for_nothing():
    found = []
    for most in (20, 30):
        plan = privacy.sgd(
            noise_multiplier=0, steps=1, max_records=most, sampler="full", clip_norm=math.inf
        )
        found.append(fedvi.VIPS(MODEL, plan).run(records(), progress_bar=False).posterior)
    np.testing.assert_allclose(found[0].J, found[1].J, rtol=1e-12)
    np.testing.assert_allclose(found[0].h, found[1].h, rtol=1e-12)


def test_more_records_than_planned_for_are_refused_before_anything_is_charged():
    fit = fedvi.VIPS(MODEL, planned())
    with pytest.raises(errors.PrivacyError, match=r"at most the 30 of max_records"):
        fit.run(records(31), progress_bar=False)
    assert not fit.ledger.entries


def test_a_record_that_the_model_does_not_know_counts_as_zero_or_is_refused():
    found = {"x": np.ones((4, 1)), "y": np.array([0.0, 1.0, 7.0, np.nan])}
    model = models.logistic(["slope"])
    exact = privacy.sgd(
        noise_multiplier=0, steps=3, max_records=4, sampler="full", clip_norm=math.inf
    )
    with pytest.raises(errors.DataError, match=r"record 2, counted from 0, is none that the model"):
        fedvi.VIPS(model, exact).run(found, progress_bar=False)
    fit = fedvi.VIPS(model, planned(insecure_seed=3))
    half = fedvi.VIPS(model, planned(insecure_seed=3))
    known = {name: column[:2] for name, column in found.items()}
    one, other = fit.run(found, progress_bar=False), half.run(known, progress_bar=False)
    np.testing.assert_array_equal(one.posterior.h, other.posterior.h)


# Of each family, an outcome that its likelihood has, and one between two of these.
OUTCOMES = {
    "logistic": (models.logistic(["slope"]), 1.0, 0.5),
    "binomial": (models.binomial(["slope"], typical_trials=4), (2.0, 1.0), (1.5, 1.5)),
    "half failures": (models.binomial(["slope"], typical_trials=4), (2.0, 1.0), (2.0, 0.5)),
    "negative binomial": (models.negative_binomial(["slope"], dispersion=0.5), 2.0, 2.5),
}


@pytest.mark.parametrize("family", OUTCOMES.values(), ids=OUTCOMES.keys())
def test_outcomes_that_are_not_whole_count_as_zero_or_are_refused(family):
    model, known, between = family
    found = {"x": np.ones((4, 1)), "y": np.array([known, known, between, between])}
    exact = privacy.sgd(
        noise_multiplier=0, steps=3, max_records=4, sampler="full", clip_norm=math.inf
    )
    with pytest.raises(errors.DataError, match=r"record 2, .* not whole where it is a label or a"):
        fedvi.VIPS(model, exact).run(found, progress_bar=False)
    half = {name: column[:2] for name, column in found.items()}
    fedvi.VIPS(model, exact).run(half, progress_bar=False)
    one, other = (
        fedvi.VIPS(model, planned(insecure_seed=3)).run(given, progress_bar=False).posterior
        for given in (found, half)
    )
    np.testing.assert_array_equal(one.h, other.h)
    np.testing.assert_array_equal(one.J, other.J)


TOPICS = LatentDirichlet(3, 5)
WORDS = np.array([[0, 2], [1, 4]])
ONES = np.ones((2, 2))


@pytest.mark.parametrize(
    ("model", "given", "said"),
    [
        (MODEL, {"x": np.ones((4, 1)), "z": np.ones(4)}, r"records hold no array 'y'"),
        (
            MODEL,
            {"x": np.ones((4, 2)), "y": np.ones(4)},
            r"records\['x'\] has records of shape \(2,\)",
        ),
        (
            MODEL,
            {"x": np.ones((4, 1)), "y": np.ones((4, 1))},
            r"records\['y'\] has records of shape",
        ),
        (
            MODEL,
            {"x": np.ones((1, 1)), "y": np.array(["1"])},
            r"records\['y'\] holds <U1, expected",
        ),
        (MODEL, {"x": np.ones((1, 1)), "y": np.array([None])}, r"records\['y'\] holds object"),
        (MODEL, {"x": np.ones((1, 1)) * 1j, "y": np.ones(1)}, r"records\['x'\] holds complex128"),
        (TOPICS, {"words": WORDS}, r"records hold no array 'counts'"),
        (TOPICS, {"counts": ONES}, r"records hold no array 'words'"),
        (TOPICS, {"words": WORDS[0], "counts": ONES[0]}, r"records\['words'\] has shape \(2,\)"),
        (TOPICS, {"words": WORDS, "counts": ONES[0]}, r"records\['counts'\] has records of shape"),
        (
            TOPICS,
            {"words": WORDS, "counts": np.ones((2, 3))},
            r"records\['counts'\] has records of shape \(3,\), expected \(2,\)",
        ),
        (TOPICS, {"words": WORDS[:, :0], "counts": ONES[:, :0]}, r"has shape \(2, 0\)"),
        (
            dataclasses.replace(TOPICS, distinct=4),
            {"words": WORDS, "counts": ONES},
            r"records\['words'\] has records of shape \(2,\), expected \(4,\)",
        ),
    ],
)
def test_tables_of_other_arrays_are_refused_before_a_run_is_charged(model, given, said):
    fit = fedvi.VIPS(model, planned())
    with pytest.raises(errors.DataError, match=said):
        fit.run(given, progress_bar=False)
    assert fit.ledger.entries == ()


@pytest.mark.nightly
def test_documents_of_any_one_width_are_taken_where_no_width_is_said():
    fit = fedvi.VIPS(TOPICS, planned(runs=2, steps=1))
    for width in (1, 2):
        fit.run({"words": WORDS[:, :width], "counts": ONES[:, :width]}, progress_bar=False)
    assert len(fit.ledger.entries) == 2


def test_the_program_of_the_docs_finds_the_coefficients():
    guide = Path(__file__).parents[3] / "docs" / "expected-statistics.md"
    (program,) = re.findall(r"```python\n(.*?)```", guide.read_text(), re.DOTALL)
    found = {}
    exec(program, found)
    # True ones 0.5 and 1; clipping adds 0.02, noise less than that: the largest of 8 runs was off by 0.03.
    np.testing.assert_allclose(found["mean"], [0.5, 1.0], atol=0.1)


def test_a_fit_and_its_result_say_what_they_are() -> None:
    x = np.linspace(-1.0, 1.0, 40)[:, None]
    plan = fedvi.privacy.sgd(
        epsilon=2.0, delta=1e-5, steps=2, max_records=40, sampler="full", insecure_seed=1
    )
    fit = fedvi.VIPS(fedvi.models.linear(["slope"], noise_scale=1.0), plan)
    assert "0 of 1 run charged" in repr(fit)
    result = fit.run({"x": x, "y": 2.0 * x[:, 0]}, progress_bar=False)
    assert f"{fit.privacy.promised}; 1 of 1 run charged" in repr(fit)
    assert "warning: simulation: no guarantee" in str(fit.summary())
    assert "after 2 rounds" in repr(result)
    mean, sd = (float(part[0]) for part in result.moments)
    (row,) = (line for line in str(result.summary()).splitlines() if line.startswith("slope"))
    assert row.split() == ["slope", f"{mean:.4g}", f"{sd:.3g}"]
    for said in (repr(fit), repr(result), result._repr_html_(), fit._repr_html_()):
        assert "rray" not in said
