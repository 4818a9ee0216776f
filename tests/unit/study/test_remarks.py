"""What a table of coefficients says of its intervals, by family and solver."""

import pytest

from fedvi.study import remarks
from fedvi.study.config import parse_study
from fedvi.study.spec import shared_parts

PRIVATE = {"epsilon": 1.0, "delta": 1e-5, "unit": "record", "relation": "substitute"}


def study(solver, family="full_gaussian", *, private=True, **model):
    raw = {
        "study": {"name": "one"},
        "model": {"kind": "logistic", "formula": "y ~ a + b", **model},
        "family": {"kind": family},
        "solver": {"kind": solver},
        "schedule": {"kind": "synchronous", "rounds": 2},
        "privacy": PRIVATE if private else {"protection": "none"},
        "data": {
            "max_records": 100,
            "schema": {
                "y": {"type": "binary", "true": ["1"], "false": ["0"]},
                **{name: {"type": "number", "bounds": [-1, 1]} for name in "ab"},
            },
        },
        "clients": [{"name": "north"}, {"name": "south"}],
    }
    return parse_study(raw)


def remark(asked):
    return remarks.of_intervals(asked, shared_parts.family(asked, 20))


def test_an_interval_that_is_told_the_noise_needs_no_word():
    assert remark(study("site_release")) == ""
    assert remark(study("glm", private=False)) == ""


@pytest.mark.parametrize("solver", ["dp_optimisation", "vips"])
def test_one_that_is_not_is_told_and_the_solver_that_has_it(solver):
    said = remark(study(solver))
    assert "leave out the noise" in said
    assert "`site_release` include it" in said
    assert "leave out the noise" not in remark(study(solver, private=False))


def test_of_a_solver_of_the_study_nobody_knows_what_its_intervals_hold():
    assert "may leave its noise out" in remark(study("mine"))
    assert remark(study("mine", private=False)) == ""


def test_mean_field_says_that_correlations_are_lost():
    said = remark(study("glm", "diagonal_gaussian", private=False))
    assert "√(1 − R²)" in said
    both = remark(study("dp_optimisation", "diagonal_gaussian"))
    assert "√(1 − R²)" in both
    assert "leave out the noise" in both
    # Which refuses such a family.
    assert "site_release" not in both


def test_a_low_rank_family_says_which_correlations_it_has():
    said = remark(study("dp_optimisation", "low_rank_gaussian"))
    assert "along its directions alone" in said
    assert "site_release" not in said


def test_no_solver_is_named_that_refuses_effects_of_sites():
    told = study("dp_optimisation", site_effect="intercept", site_scale=0.5)
    assert "leave out the noise" in remark(told)
    assert "site_release" not in remark(told)


def test_latents_make_intervals_narrower_and_that_is_said():
    assert "Pólya-Gamma" in remark(study("vips", private=False))
    assert "Pólya-Gamma" not in remark(study("site_release"))


def test_a_posterior_that_is_no_gaussian_has_intervals_in_a_terminal_and_they_are_told():
    raw = {
        "study": {"name": "one"},
        "model": {
            "kind": "linear_unknown_noise",
            "coefficients": ["a"],
            "prior_scales": [1.0],
            "row_norm": 1.0,
        },
        "solver": {"kind": "vips"},
        "schedule": {"kind": "synchronous", "rounds": 2},
        "privacy": PRIVATE,
        "data": {"max_records": 100},
        "clients": [{"name": "north"}, {"name": "south"}],
    }
    assert "leave out the noise of the sums" in remark(parse_study(raw))
    raw["privacy"] = {"protection": "none"}
    assert remark(parse_study(raw)) == ""
