"""Claims about formulas and their design matrices."""

import formulaic
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvi.data.formula import parse_formula
from fedvi.data.schema import parse_schema
from fedvi.errors import ConfigError, DataError

SCHEMA = parse_schema(
    {
        "y": {"type": "binary"},
        "cost": {"type": "number", "bounds": [0, 10], "center": 0, "scale": 1},
        "age": {"type": "number", "bounds": [20, 80], "center": 50, "scale": 10},
        "sex": {"type": "binary"},
        "cp": {"type": "level", "levels": ["typical", "atypical", "none"]},
        "ecg": {"type": "level", "levels": ["n", "st", "lvh"], "missing": "indicator"},
        "chol": {"type": "number", "bounds": [100, 300], "missing": "indicator"},
    },
    private=True,
)
COLUMNS = {
    "age": np.array([1.0, -2.0, 0.5]),
    "cost": np.array([0.0, 3.0, 7.0]),
    "sex": np.array([0.0, 1.0, 1.0]),
    "cp": np.array([0, 1, 2], dtype=np.int32),
    "ecg": np.array([2, 0, 0], dtype=np.int32),
    "ecg_missing": np.array([0.0, 0.0, 1.0]),
    "chol": np.array([0.25, 0.0, -1.0]),
    "chol_missing": np.array([0.0, 1.0, 0.0]),
}


def names(text: str) -> tuple[str, ...]:
    return parse_formula(text, SCHEMA).names


def test_a_design_matrix_is_what_one_writes_by_hand() -> None:
    design = parse_formula("y ~ age * cp + chol + sex", SCHEMA)
    assert design.names == (
        "(Intercept)",
        "age",
        "cp[atypical]",
        "cp[none]",
        "chol",
        "chol[missing]",
        "sex",
        "age:cp[atypical]",
        "age:cp[none]",
    )
    by_hand = [
        [1.0, 1.0, 0.0, 0.0, 0.25, 0.0, 0.0, 0.0, 0.0],
        [1.0, -2.0, 1.0, 0.0, 0.0, 1.0, 1.0, -2.0, 0.0],
        [1.0, 0.5, 0.0, 1.0, -1.0, 0.0, 1.0, 0.0, 0.5],
    ]
    matrix = design.matrix(COLUMNS)
    assert matrix.dtype == np.float64
    np.testing.assert_array_equal(matrix, by_hand)  # products with 0 and 1 are exact


def test_brackets_may_stand_in_brackets() -> None:
    assert names("y ~ " + "(" * 50 + "age" + ")" * 50) == ("(Intercept)", "age")


def test_two_columns_of_levels_interact_with_the_first_varying_fastest() -> None:
    design = parse_formula("y ~ cp*ecg", SCHEMA)
    assert design.names[-4:] == (
        "cp[atypical]:ecg[st]",
        "cp[none]:ecg[st]",
        "cp[atypical]:ecg[lvh]",
        "cp[none]:ecg[lvh]",
    )
    columns = {
        "cp": np.array([1, 2, 1, 2, 0], dtype=np.int32),
        "ecg": np.array([1, 1, 2, 2, 1], dtype=np.int32),
        "ecg_missing": np.zeros(5),
    }
    np.testing.assert_array_equal(design.matrix(columns)[:, -4:], np.eye(5)[:, :4])


@pytest.mark.parametrize(
    "text",
    [
        "a", "g", "a*g", "g/a", "g + a:g", "a + a:g", "a:g", "g:a", "0 + g", "0 + g + h", "0 + a:g",
        "g:h", "0 + g:h", "g + g:h", "g*h", "g/h/a", "(g + h + a)**2", "g*h*a - a", "g*h*a - g - h",
        "b:g", "0 + b:g", "b*g", "g:a:b", "g:h:k", "g:h + a:g + k", "0 + g*h*k", "a + g:h:a",
        "g*I(a**2) - I(a**2)",
    ],
)  # fmt: skip
def test_the_columns_of_levels_are_those_of_formulaic(text: str) -> None:
    levels = {"g": ["g1", "g2", "g3"], "h": ["h1", "h2"], "k": ["k1", "k2", "k3"]}
    schema = parse_schema(
        {
            "y": {"type": "binary"},
            "a": {"type": "number", "bounds": [-9, 9], "center": 0, "scale": 1},
            "b": {"type": "binary"},
            **{name: {"type": "level", "levels": known} for name, known in levels.items()},
        },
        private=True,
    )
    rng = np.random.default_rng(3)
    columns: dict[str, np.ndarray] = {
        "a": rng.integers(-4, 5, 400).astype(float),
        "b": rng.integers(0, 2, 400).astype(float),
        **{name: rng.integers(0, len(known), 400) for name, known in levels.items()},
    }
    frame = {"a": columns["a"], "b": columns["b"]} | {
        name: pd.Categorical.from_codes(columns[name].tolist(), known)
        for name, known in levels.items()
    }
    matrix = parse_formula(f"y ~ {text}", schema).matrix(columns)
    theirs = np.asarray(formulaic.model_matrix(text, pd.DataFrame(frame)), float)
    # In any order: formulaic has another for the parts of a term.
    assert sorted(map(tuple, matrix.T)) == sorted(map(tuple, theirs.T))
    assert np.linalg.matrix_rank(matrix) == matrix.shape[1]


def test_a_level_is_named_whole_where_nothing_else_stands_for_its_first() -> None:
    assert names("y ~ 0 + cp") == ("cp[typical]", "cp[atypical]", "cp[none]")
    assert names("y ~ cp/age")[3:] == ("cp[typical]:age", "cp[atypical]:age", "cp[none]:age")
    # The baseline of a survival is an intercept that no formula takes away.
    schema = parse_schema(
        {
            "days": {"type": "number", "bounds": [1, 10]},
            "died": {"type": "binary"},
            "cp": {"type": "level", "levels": ["typical", "none"]},
        },
        private=True,
    )
    for text in ("Surv(days, died) ~ cp", "Surv(days, died) ~ 0 + cp"):
        assert parse_formula(text, schema).names == ("cp[none]",)


def test_the_response_comes_first_among_the_columns_used() -> None:
    design = parse_formula("y ~ chol + age:sex", SCHEMA)
    assert design.columns == ("y", "chol", "age", "sex")
    assert (design.response.text, design.response.type) == ("y", "binary")
    assert parse_formula("cost ~ age", SCHEMA).response.type == "number"


def test_units_say_what_a_coefficient_is_per() -> None:
    design = parse_formula("y ~ age * chol + sex + cost + cp", SCHEMA)
    units = dict(zip(design.names, design.units, strict=True))
    assert units == {
        "(Intercept)": "",
        "age": "per 10 from 50",
        "chol": "per 100 from 200",
        "chol[missing]": "",
        "sex": "",
        "cost": "",
        "cp[atypical]": "",
        "cp[none]": "",
        "age:chol": "per 10 from 50, per 100 from 200",
    }


@pytest.mark.parametrize("text", ["y ~ age - 1", "y ~ 0 + age", "y ~ -1 + age", "y~age+0"])
def test_the_intercept_can_be_left_out(text: str) -> None:
    assert names(text) == ("age",)


@pytest.mark.parametrize("text", ["y ~ age", "y ~ 1 + age", "y ~ age + 1", "y ~ age - 0"])
def test_the_intercept_is_there_otherwise(text: str) -> None:
    assert names(text) == ("(Intercept)", "age")


def test_an_intercept_alone_is_a_model() -> None:
    design = parse_formula("y ~ 1", SCHEMA)
    np.testing.assert_array_equal(design.matrix({"y": np.zeros(2)}), [[1.0], [1.0]])


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("y ~ age + age", "y ~ age"),
        ("y ~ age:sex + sex:age", "y ~ age:sex"),
        ("y ~ age:age", "y ~ age"),
        ("y ~ age*sex + sex", "y ~ age + sex + age:sex"),
        ("y ~ age:sex + age", "y ~ age + age:sex"),
        ("y ~ age*sex*cost", "y ~ age+sex+cost+age:sex+age:cost+sex:cost+age:sex:cost"),
        ("y ~ age*sex:cost", "y ~ age + sex:cost + age:sex:cost"),
        ("y ~ (age + sex)", "y ~ age + sex"),
        ("y ~ (age + sex + cost)**2", "y ~ age + sex + cost + age:sex + age:cost + sex:cost"),
        ("y ~ (age + sex)^2", "y ~ age*sex"),
        ("y ~ age/sex", "y ~ age + age:sex"),
        ("y ~ (age + sex)/cost", "y ~ age + sex + age:sex:cost"),
        ("y ~ (age + sex):cost", "y ~ age:cost + sex:cost"),
        ("y ~ age*sex*cost - age:sex:cost", "y ~ (age + sex + cost)**2"),
        ("y ~ age + sex - sex - 1", "y ~ 0 + age"),
        ("y ~ log (age)", "y ~ log(age) + log( age )"),
        (
            "y ~ bs(age,lower_bound=20,upper_bound=80.0)",
            "y ~ bs( age, upper_bound = 80, lower_bound = 20, degree = 3 )",
        ),
    ],
)
def test_a_term_counts_once_and_main_effects_come_first(text: str, same: str) -> None:
    assert parse_formula(text, SCHEMA) == parse_formula(same, SCHEMA)


def test_a_missing_indicator_is_there_once_and_without_a_main_effect_too() -> None:
    assert names("y ~ chol * age").count("chol[missing]") == 1
    assert names("y ~ chol:age + chol:sex") == (
        "(Intercept)",
        "chol:age",
        "chol:sex",
        "chol[missing]",
    )


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("y ~ .", "'.' in 'y ~ .'", "would change with the file"),
        ("y ~ scale(age)", "the call `scale(...)`", "declare public `center` and `scale`"),
        ("y ~ f(age)", "the call `f(...)` in", "has no functions but Surv and cbind"),
        ("log(cost) ~ age", "the call `log(...)` left of `~`", "write the transformed outcome"),
        ("y > 0 ~ age", "'>' in", 'type = "binary"'),
        ("y ~ agee", "`agee` is not declared", "did you mean `age`?"),
        ("y ~ age:agee", "`agee` is not declared", "did you mean `age`?"),
        ("Y ~ age", "`Y` is not declared", "known: `age`"),
        ("y ~ age + y", "the response `y` is also on the right", "take it out"),
        ("y ~ age:y", "the response `y` is also on the right", "take it out"),
        ("y ~ age - sex", "`- sex` in", "leave the term out"),
        ("y ~ 0 + age + 1", "an intercept and for none", "not both"),
        ("y ~ 0", "has no coefficient", "keep the intercept"),
        ("age", "expected one response", "response ~ term"),
        ("", "expected one response", "response ~ term"),
        ("~ age", "expected one response", "response ~ term"),
        ("y ~ age ~ sex", "expected one response", "response ~ term"),
        ("y + sex ~ age", "expected one response", "response ~ term"),
        ("y ~", "nothing after `~`", "response ~ term"),
        ("y ~ age +", "nothing after `+`", "response ~ term"),
        ("y ~ age + + sex", "nothing after `+`", "response ~ term"),
        ("y ~ age sex", "`age` and `sex` stand side by side", "response ~ term"),
        ("y ~ age:", "nothing after `:`", "response ~ term"),
        ("y ~ age*1", "'1' in", "response ~ term"),
        ("y ~ (age + sex", "a bracket in", "response ~ term"),
        ("y ~ age) + (sex", "a bracket in", "response ~ term"),
        ("y ~ f(age", "a bracket or a quote in", "response ~ term"),
        ("y ~ ()", "nothing after `(`", "response ~ term"),
        ("y ~ age + :sex", "'+:' in", "response ~ term"),
        ("y ~ (:sex)", "nothing after `(`", "response ~ term"),
        ("y ~ * sex", "nothing after `~`", "response ~ term"),
        ("y ~ [age]", "'[' in", "response ~ term"),
        ("y ~ 'age'", "\"'age'\" in", "response ~ term"),
        ("y ~ age^2", "`age^2` in", "I(age**2)"),
        ("y ~ age**2", "`age**2` in", "I(age**2)"),
        ("y ~ (age + sex)**1", "the power `1`", "interactions of two"),
        ("y ~ (age + sex)**sex", "the power `sex`", "interactions of two"),
        ("y ~ (age + sex)**(2)", "the power `(`", "interactions of two"),
        ("y ~ (age - 1)", "'1' in", "leaves out the intercept"),
        ("y ~ age %in% cp", "'in' in", "a:b for b within a"),
        ("y ~ age | cp", "'|' in", "site_effect"),
        ("y ~ -age", "`- age` in", "leave the term out"),
        ("y ~ age - age:sex", "`- age:sex` in", "leave the term out"),
        ("y ~ {age + 1}", "cannot be read", "a function is of one column"),
        ("y ~ age.sum()", "the call `age.sum(...)`", "has no functions"),
        ("y ~ age[0]", "`age[0]` in", "a function is of one column"),
        ("y ~ (age + sex + cost + chol + cp + ecg)**9", "10000 products", "write out"),
        ("y ~ 2", "'2' in", "response ~ term"),
        ("y ~ " + "(" * 2000 + "age" + ")" * 2000, "51 brackets in one another", "write out"),
        ("y ~ age\n~", "expected one response", "response ~ term"),
    ],
)
def test_what_is_no_formula_is_refused_with_a_hint(text: str, message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_formula(text, SCHEMA)
    assert error.value.message.startswith("model.formula: ")
    assert message in error.value.message
    assert hint in error.value.hint


@pytest.mark.parametrize("missing", ["indicator", {"impute": True}])
def test_a_response_is_never_made_up(missing: object) -> None:
    schema = parse_schema({"y": {"type": "binary", "missing": missing}}, private=True)
    with pytest.raises(ConfigError, match=r"^data\.schema\.y\.missing: the response") as error:
        parse_formula("y ~ 1", schema)
    assert '"drop"' in error.value.hint


def test_a_matrix_needs_all_columns_of_one_length() -> None:
    design = parse_formula("y ~ age + sex", SCHEMA)
    with pytest.raises(DataError, match="column `sex` is not among"):
        design.matrix({"age": np.zeros(2)})
    with pytest.raises(DataError, match="differ in length"):
        design.matrix({"age": np.zeros(2), "sex": np.zeros(1)})


PIECES = (
    "y", "age", "sex", "cp", "chol", "zz", "0", "1", "2", "1.5", " ", "~", "+", "-", ":", "*", "/",
    "**", "^", "(", ")", "[", "]", ",", ".", "|", "%in%", "`", "'", '"', "{", "}", "\\", "=", "\n",
    "log(", "bs(", "I(", "offset(", "Surv(", "cbind(", "knots=", "lambda", "µ", "\0", "I(age**2)",
    "poly(age, 2, raw=True)", "bs(age, knots=[50], lower_bound=20, upper_bound=80)",
)  # fmt: skip


@given(
    left=st.sampled_from(["y", "cost", "", "Surv(", "cp"]),
    right=st.lists(st.sampled_from(PIECES), max_size=8),
)
def test_any_text_is_a_formula_or_is_refused_in_a_sentence(left: str, right: list[str]) -> None:
    design, refused = None, None
    try:
        design = parse_formula(f"{left} ~ {' '.join(right)}", SCHEMA)
    except ConfigError as error:
        refused = error
    if design is not None:
        assert len(set(design.names)) == design.size == len(design.coefficients)
    else:
        assert refused is not None
        assert refused.hint
        # Neither formulaic's colours nor its arrows.
        assert "\x1b" not in refused.message
