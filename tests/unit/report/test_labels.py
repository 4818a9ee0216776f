"""Claims about labels: they are what people write, and no two coefficients share one."""

import pytest

from fedvi.report.labels import label, labels, relabelled
from fedvi.study.config import parse_study
from fedvi.study.spec.coefficients import comparisons, design_of
from tests.studies import raw_study


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("age[[0-10)]", "age 0 to 9"),
        ("age[[0, 10)]", "age 0 to 9"),
        ("age[(65, ∞)]", "age above 65"),
        ("bmi[[18.5, 25)]", "bmi 18.5 to under 25"),
        ("bmi[(25, 30]]", "bmi above 25 to 30"),
        ("diag_1[E909]", "diag 1 E909"),
        ("x[a:b]:y", "x a:b × y"),
        ("race[a [b]", "race a [b"),
        ("I(age**4)", "age to the power of 4"),
        ("poly(age)[2]", "age, polynomial, part 2"),
        ("poly(age)[2]:sex[m]", "age, polynomial, part 2 × sex m"),
        ("3: age", "3: age"),
        ("baseline (365, ∞)", "baseline above 365"),
        ("w 0", "w 0"),
    ],
)
def test_a_label_is_what_people_write(name: str, expected: str) -> None:
    assert label(name) == expected


def test_no_two_coefficients_share_a_label() -> None:
    names = ["a_b", "a[b]", "c[[0-10)]", "c[[0, 10)]", "d"]
    found = labels(names)
    assert len(set(found.values())) == len(names)
    assert found["d"] == "d"


def test_a_sentence_keeps_what_only_looks_like_a_name() -> None:
    people = labels(["sex", "sex[m]", "age_years", "age_years:sex[m]"])
    said = "sex[m], age_years:sex[m] and my_age_years are wide"
    assert relabelled(said, people) == "sex m, age years × sex m and my_age_years are wide"


def test_a_comparison_says_what_one_unit_is() -> None:
    raw = raw_study(["north"], 1)
    raw["model"] = {"kind": "logistic", "formula": "y ~ age * g + b + stay + sex + I(age**2)"}
    raw["data"]["schema"] = {
        "y": {"type": "binary"},
        "age": {
            "type": "number",
            "bounds": [0, 100],
            "center": 50,
            "scale": 10,
            "missing": "indicator",
            "unit": "years",
        },
        "stay": {"type": "count", "bounds": [0, 90], "unit": "days"},
        "sex": {"type": "binary", "words": ["male", "female"]},
        "g": {"type": "level", "levels": ["p", "q"]},
        "b": {"type": "binary", "true": ["m"], "false": ["f"]},
    }
    study = parse_study(raw)
    names = design_of(study)[1].names
    assert dict(zip(names, comparisons(study, names), strict=True)) == {
        "(Intercept)": "",
        "age": "10 years more",
        "age[missing]": "not recorded against recorded",
        "g[q]": "against p",
        "b": "m against f",
        "stay": "1 day more",
        "sex": "male against female",
        "I(age**2)": "",
        "age:g[q]": "",
    }
