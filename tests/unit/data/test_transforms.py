"""Claims about functions in formulas: equal to formulaic's, with public constants alone, always finite."""

from typing import Any

import numpy as np
import pandas
import pytest
import scipy.interpolate
from formulaic import model_matrix
from hypothesis import given
from hypothesis import strategies as st

from fedvi.data.formula import Design, parse_formula
from fedvi.data.schema import parse_schema
from fedvi.errors import ConfigError, DataError
from tests.tables import prepare

RAW: dict[str, Any] = {
    "y": {"type": "binary"},
    "iss": {"type": "number", "bounds": [0, 75], "center": 20, "scale": 15},
    "age": {"type": "number", "bounds": [18, 100], "center": 50, "scale": 10},
    "lactate": {"type": "number", "bounds": [0.5, 20], "center": 0, "scale": 1},
    "shift": {"type": "number", "bounds": [-3, 3], "center": 0, "scale": 1},
    "stay": {"type": "number", "bounds": [1, 60], "center": 0, "scale": 1, "missing": "indicator"},
    "falls": {"type": "count", "bounds": [0, 20]},
    "sex": {"type": "binary"},
    "cp": {"type": "level", "levels": ["typical", "atypical", "none"]},
    **{name: {"type": "number", "bounds": [-3, 3], "center": 0, "scale": 1} for name in "abcd"},
}
SCHEMA = parse_schema(RAW, private=True)
BS = "bs(iss, knots=[9, 16, 25], lower_bound=0, upper_bound=75)"
CR = "cr(age, knots=[40, 60], lower_bound=18, upper_bound=100)"
GENERATOR = np.random.default_rng(0)
# Bounds and knots themselves are among the values.
ISS = np.r_[0.0, 9.0, 16.0, 25.0, 75.0, GENERATOR.uniform(0, 75, 200)]
AGE = np.r_[18.0, 40.0, 60.0, 100.0, 50.0, GENERATOR.uniform(18, 100, 200)]
FRAME = pandas.DataFrame(
    {
        "y": 0.0,
        "iss": ISS,
        "age": AGE,
        "lactate": np.linspace(0.5, 20, 205),
        "shift": np.linspace(-3, 3, 205),
        "sex": np.arange(205) % 2 * 1.0,
        "cp": pandas.Categorical(
            np.array(["typical", "atypical", "none"])[np.arange(205) % 3],
            categories=["typical", "atypical", "none"],
        ),
    }
)


def design_of(text: str) -> Design:
    return parse_formula(text, SCHEMA)


def matrix_of(text: str, frame: pandas.DataFrame = FRAME) -> np.ndarray:
    """The design matrix of cells as a file has them."""
    table = {name: [str(cell) for cell in frame[name]] for name in frame}
    source = prepare(table, SCHEMA, design_of(text), private=True, where="north")  # type: ignore[arg-type]
    assert source.valid.all()
    return np.asarray(source.records["x"])


@pytest.mark.parametrize(
    "text",
    [
        f"y ~ {BS}",
        "y ~ bs(iss, lower_bound=-5, upper_bound=80)",
        "y ~ bs(iss, knots=[20], degree=1, lower_bound=0, upper_bound=75)",
        "y ~ 0 + bs(iss, knots=[20, 30], degree=2, lower_bound=0, upper_bound=75, include_intercept=True)",
        f"y ~ {BS}*sex + cp",
        f"y ~ cp*{BS}",
        "y ~ log(lactate) + log2(lactate) + log10(lactate) + sqrt(iss) + exp(shift)",
        "y ~ (log(lactate) + sex + shift)**2",
        "y ~ I(shift**2) + I(shift**3) + poly(lactate, 3, raw=True)",
    ],
)
def test_a_design_is_formulaics_where_nothing_is_fitted(text: str) -> None:
    expected = model_matrix(text.partition("~")[2], FRAME, context={"sqrt": np.sqrt})
    # Names aside, of which formulaic's hold the whole call; float64 algebra of (value − center) / scale.
    np.testing.assert_allclose(matrix_of(text), expected.to_numpy(), rtol=1e-9, atol=1e-12)


def leaves(names: str) -> st.SearchStrategy[str]:
    return st.sampled_from([*names, *(f"log1p({name})" for name in "ab")])


FORMULAS = st.recursive(
    leaves("abcd"),
    lambda inner: st.one_of(
        st.builds("({}{}{})".format, inner, st.sampled_from([" + ", ":", "*", "/", " + "]), inner),
        st.builds("({})**{}".format, inner, st.sampled_from([2, 3])),
    ),
    max_leaves=6,
)
SMALL = pandas.DataFrame(
    {
        "y": 0.0,
        **{name: np.random.default_rng(ord(name)).uniform(-0.9, 3, 7) for name in "abcd"},
    }
)
POSITIVE = parse_schema(
    RAW | {name: RAW["shift"] | {"bounds": [-0.9, 3]} for name in "abcd"}, private=True
)


@given(text=FORMULAS, intercept=st.sampled_from(["", " - 1", " + 0", " + 1"]))
def test_any_formula_has_the_columns_that_formulaic_gives_it(text: str, intercept: str) -> None:
    expected = model_matrix(f"{text}{intercept}", SMALL, context={"log1p": np.log1p})
    design = parse_formula(f"y ~ {text}{intercept}", POSITIVE)
    found = design.matrix({name: SMALL[name].to_numpy() for name in "abcd"})
    shown = ["Intercept" if name == "(Intercept)" else name for name in design.names]
    # The factors of a product may be in another order.
    assert [set(name.split(":")) for name in shown] == [
        set(name.split(":")) for name in expected.columns
    ]
    np.testing.assert_allclose(found, expected.to_numpy(), rtol=1e-12)


def test_a_b_spline_is_that_of_scipy() -> None:
    knots = [0.0] * 4 + [9.0, 16.0, 25.0] + [75.0] * 4
    inside = FRAME[FRAME["iss"] < 75]
    expected = scipy.interpolate.BSpline.design_matrix(inside["iss"].to_numpy(), knots, 3).toarray()
    np.testing.assert_allclose(
        matrix_of(f"y ~ 0 + {BS}", inside), expected[:, 1:], rtol=1e-9, atol=1e-12
    )


def test_a_natural_spline_passes_through_its_coefficients_at_the_knots() -> None:
    design = design_of(f"y ~ {CR}")
    assert design.names == ("(Intercept)", "cr(age)[1]", "cr(age)[2]", "cr(age)[3]")
    _, basis = design.curve("age", [18, 40, 60, 100], SCHEMA)
    np.testing.assert_allclose(basis, np.eye(4)[:, 1:], atol=1e-12)
    grid = np.linspace(18, 100, 50)
    _, basis = design.curve("age", grid, SCHEMA)
    for coefficients in np.eye(3):
        expected = scipy.interpolate.CubicSpline(
            [18, 40, 60, 100], [0.0, *coefficients], bc_type="natural"
        )(grid)
        np.testing.assert_allclose(basis @ coefficients, expected, atol=1e-10)


def test_a_cyclic_spline_ends_where_it_began() -> None:
    text = "y ~ cc(iss, knots=[20, 40, 60], lower_bound=0, upper_bound=75)"
    _, basis = design_of(text).curve("iss", [0, 75, 20, 40, 60], SCHEMA)
    np.testing.assert_allclose(basis, [[0, 0, 0], [0, 0, 0], *np.eye(3).tolist()], atol=1e-12)


@pytest.mark.parametrize("knots", [[20, 40], [20, 40, 60]])
def test_a_cyclic_spline_is_the_smooth_curve_of_scipy(knots: list[float]) -> None:
    places = np.array([0.0, *knots, 75.0])
    values = np.vstack([np.eye(len(knots) + 1), np.eye(len(knots) + 1)[0]])
    wanted = scipy.interpolate.CubicSpline(places, values, bc_type="periodic")
    design = design_of(f"y ~ cc(iss, knots={knots}, lower_bound=0, upper_bound=75)")
    iss = np.linspace(0.0, 75.0, 200)
    np.testing.assert_allclose(design.curve("iss", iss, SCHEMA)[1], wanted(iss)[:, 1:], atol=1e-12)


def test_powers_are_of_the_scaled_value_and_say_so() -> None:
    design = design_of("y ~ age + I(age**2) + poly(iss, 2, raw=True) + I(lactate**2)")
    assert dict(zip(design.names, design.units, strict=True)) == {
        "(Intercept)": "",
        "age": "per 10 from 50",
        "I(age**2)": "per 10 from 50, power 2",
        "poly(iss)[1]": "per 15 from 20",
        "poly(iss)[2]": "per 15 from 20, power 2",
        "I(lactate**2)": "",
    }
    row = design.matrix(
        {"age": np.array([2.0]), "iss": np.array([-1.0]), "lactate": np.array([3.0])}
    )
    np.testing.assert_allclose(row, [[1.0, 2.0, 4.0, -1.0, 1.0, 9.0]], rtol=1e-12)


def test_names_are_short_and_terms_hold_all_constants() -> None:
    design = design_of(f"y ~ {BS}:sex")
    assert design.names == ("(Intercept)", *(f"bs(iss)[{i}]:sex" for i in range(1, 7)))
    assert design.terms == (
        (),
        ("bs(iss, knots=[9, 16, 25], lower_bound=0, upper_bound=75, degree=3)", "sex"),
    )
    assert design.columns == ("y", "iss", "sex")
    assert set(design.units) == {""}


@pytest.mark.parametrize("beyond", ["-20", "900"])
def test_values_beyond_the_bounds_are_taken_as_at_the_bound(beyond: str) -> None:
    table = {"y": ["1"] * 2, "iss": [beyond, "0" if beyond == "-20" else "75"]}
    source = prepare(table, SCHEMA, design_of(f"y ~ {BS} + sqrt(iss)"), private=True, where="n")
    np.testing.assert_array_equal(source.records["x"][0], source.records["x"][1])
    assert np.isfinite(source.records["x"]).all()


def test_a_record_that_does_not_count_and_a_missing_cell_stay_finite() -> None:
    # The centre of `stay` is 0, whose logarithm is none: a missing cell is taken as at the bound.
    design = design_of("y ~ log(stay) + log(lactate)")
    assert design.names == ("(Intercept)", "log(stay)", "log(lactate)", "stay[missing]")
    table = {"y": ["1", "1", "?"], "stay": ["?", "10", "x"], "lactate": ["2", "?", "x"]}
    source = prepare(table, SCHEMA, design, private=True, where="north")
    assert source.valid.tolist() == [True, False, False]
    np.testing.assert_allclose(
        source.records["x"], [[1, np.log(1), np.log(2), 1], [0] * 4, [0] * 4], rtol=1e-12
    )


def test_a_block_of_rows_has_the_bits_that_the_whole_has() -> None:
    design = design_of(f"y ~ {BS}*sex + {CR} + log(lactate) + exp(shift) + poly(age, 3, raw=True)")
    prepared = {
        name: (FRAME[name].to_numpy() - getattr(SCHEMA[name], "center", 0.0))
        / getattr(SCHEMA[name], "scale", 1.0)
        for name in ("iss", "age", "lactate", "shift", "sex")
    }
    whole = design.matrix(prepared)
    for start in range(0, 205, 13):
        part = {name: values[start : start + 13] for name, values in prepared.items()}
        np.testing.assert_array_equal(design.matrix(part), whole[start : start + 13])


def test_a_curve_is_of_the_terms_of_one_number_alone() -> None:
    design = design_of(f"y ~ age + sex + log(lactate) + {BS} + iss + age:iss + stay")
    indices, basis = design.curve("iss", [0.0, 35.0, 75.0, 500.0], SCHEMA)
    assert [design.names[i] for i in indices] == [
        *(f"bs(iss)[{i}]" for i in range(1, 7)),
        "iss",
    ]
    np.testing.assert_allclose(basis[:, -1], [-20 / 15, 1.0, 55 / 15, 55 / 15], rtol=1e-12)
    np.testing.assert_allclose(basis[0, :-1], 0.0)
    assert basis[2, 5] == basis[3, 5] == 1.0
    assert design.names[design.curve("stay", [3.0], SCHEMA)[0][0]] == "stay"
    assert design.curve("shift", [3.0], SCHEMA)[0] == ()
    with pytest.raises(DataError, match="`sex` is no number of the schema"):
        design.curve("sex", [1.0], SCHEMA)


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        ("scale(age)", "the call `scale(...)`", "declare public `center` and `scale`"),
        ("center(age)", "would be fitted to the data", "declare public `center` and `scale`"),
        ("standardize(age)", "would be fitted to the data", "declare public"),
        ("C(cp)", "the levels that the data happen to hold", "the first level is the reference"),
        ("C(cp, Sum)", "the levels that the data happen to hold", 'type = "level"'),
        ("ns(age, df=3)", "the call `ns(...)`", "write cr(x, knots="),
        ("poly(age, 2)", "orthogonal polynomials", "write poly(age, 2, raw=True)"),
        ("poly(age, 2, raw=False)", "orthogonal polynomials", "poly(age, 2, raw=True)"),
        ("poly(age, 0, raw=True)", "the degree 0 of poly(age)", "poly(age, 2, raw=True)"),
        ("poly(age, iss, raw=True)", "the degree iss of poly(age)", "poly(age, 2, raw=True)"),
        ("bs(iss, df=4)", "`df` in the call `bs(...)`", "lower_bound=0, upper_bound=75"),
        ("bs(iss, 4)", "`df` in the call `bs(...)`", "bs(iss, knots=[25, 50]"),
        ("bs(iss)", "has no lower_bound, and would take it from the data", "upper_bound=75"),
        ("bs(iss, knots=[9])", "has no lower_bound", "upper_bound=75"),
        ("bs(iss, knots=[9], lower_bound=0)", "has no upper_bound", "upper_bound=75"),
        ("bs(iss, lower_bound=0, upper_bound=age)", "upper_bound of bs(iss)", "write bs(iss"),
        ("bs(iss, lower_bound=1, upper_bound=75)", "the bounds [1, 75], expected", "widen them"),
        ("bs(iss, lower_bound=0, upper_bound=70)", "the bounds [0, 70], expected", "narrow"),
        (
            "bs(iss, knots=[20, 10], lower_bound=0, upper_bound=75)",
            "the knots [20, 10], expected numbers that rise",
            "such as bs(iss",
        ),
        ("bs(iss, knots=[0], lower_bound=0, upper_bound=75)", "numbers that rise", "such as"),
        ("bs(iss, knots=[75], lower_bound=0, upper_bound=75)", "numbers that rise", "such as"),
        ("bs(iss, knots=age, lower_bound=0, upper_bound=75)", "are no numbers", "write bs(iss"),
        ("bs(iss, knots=[1e999], lower_bound=0, upper_bound=75)", "are no numbers", "write"),
        ("bs(iss, degree=0, lower_bound=0, upper_bound=75)", "degree=0", "cubic"),
        ("bs(iss, degree=1.5, lower_bound=0, upper_bound=75)", "degree=1.5", "cubic"),
        (
            "bs(iss, include_intercept=1, lower_bound=0, upper_bound=75)",
            "include_intercept=1",
            "leave it out",
        ),
        ("bs(iss, konts=[3], lower_bound=0, upper_bound=75)", "`konts` in", "`knots`"),
        ("cr(iss, lower_bound=0, upper_bound=75)", "has 0 knots", "write cr(iss, knots="),
        (
            "cc(iss, knots=[9], lower_bound=0, upper_bound=75)",
            "at least two",
            "write cc(iss, knots=",
        ),
        ("bs(iss, lower_bound=0, lower_bound=-1, upper_bound=75)", "cannot be read", "one column"),
        (
            "cr(iss, knots=[3], lower_bound=0, upper_bound=75, constraints=None)",
            "`constraints` in",
            "0 at the lower bound",
        ),
        ("log(iss)", "data.schema.iss.bounds: the lowest is 0, expected", "such as 0.1"),
        ("log1p(shift)", "data.schema.shift.bounds: the lowest is -3", "the least"),
        ("sqrt(shift)", "the lowest is -3, expected a number of at least 0", "the least"),
        ("log(age, 2)", "2 arguments without a name", "log(age)"),
        ("log(age**2)", "is not of a column alone", "log(age)"),
        ("log(log(age))", "is not of a column alone", "log(age)"),
        ("log(age + iss)", "is not of a column alone", "into the file"),
        ("log()", "is not of a column alone", "log(age)"),
        ("log(cp)", "`cp` in `log(cp)` is no number", "each level but the first"),
        ("log(sex)", "`sex` in `log(sex)` is no number", "write its name alone"),
        ("log(agee)", "`agee` is not declared", "did you mean `age`?"),
        ("I(age)", "the power 1 in the call `I(...)`", "first power"),
        ("I(age**1)", "the power 1", "first power"),
        ("I(age**-1)", "the power -1", "I(age**2)"),
        ("I(age**99)", "the power 99", "I(age**2)"),
        ("I(age*iss)", "is not of a column alone", "I(age**2)"),
        ("np.log(age)", "the call `np.log(...)`", "did you mean `log`?"),
        ("hashed(cp)", "the call `hashed(...)`", "into the file"),
        ("log(class)", "`log(class)` in", "a word of Python"),
    ],
)
def test_what_would_be_fitted_or_is_not_known_is_refused(
    call: str, message: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as error:
        design_of(f"y ~ {call}")
    assert message in error.value.message
    assert hint in error.value.hint


def test_a_function_that_overflows_within_the_bounds_is_refused() -> None:
    schema = parse_schema(RAW | {"x": {"type": "number", "bounds": [0, 1000]}}, private=True)
    with pytest.raises(ConfigError, match="the highest is 1000, whose exp is no number"):
        parse_formula("y ~ exp(x)", schema)


def test_two_functions_of_a_kind_of_one_column_would_have_the_same_names() -> None:
    text = "y ~ bs(iss, lower_bound=0, upper_bound=75) + bs(iss, lower_bound=0, upper_bound=80)"
    with pytest.raises(ConfigError, match=r"would be called `bs\(iss\)\[1\]`"):
        design_of(text)


def test_the_names_of_a_function_in_the_error_are_those_that_formulas_know() -> None:
    with pytest.raises(ConfigError) as error:
        design_of("y ~ logg(age)")
    assert "did you mean `log`?" in error.value.hint


def test_a_count_and_its_functions_are_columns_too() -> None:
    design = design_of("y ~ falls + sqrt(falls) + I(falls**2)")
    row = design.matrix({"falls": np.array([4.0])})
    np.testing.assert_allclose(row, [[1.0, 4.0, 2.0, 16.0]], rtol=1e-12)
