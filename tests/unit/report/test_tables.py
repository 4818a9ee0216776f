"""Claims about the tables of a terminal: no number is lost or made to look smaller than it is."""

import io
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from fedvi.report import tables

COEFFICIENT = {
    "name": "restecg[hypertrophy]",
    "unit": "per level",
    "mean": -11.671,
    "sd": 0.24,
    "lower": -12.141,
    "upper": -11.201,
    "odds_ratio": 0.00123,
    "odds_lower": 0.12,
    "odds_upper": 123456.0,
    "pooled_mean": 1.2341,
    "pooled_sd": 0.567,
}
CLIENT = {
    "client": "university-hospital-of-the-north",
    "records": None,
    "releases": 10,
    "numbers": 1350,
    "epsilon": {"add_remove": 0.4711, "substitute": 0.9995},
    "delta": 1e-5,
    "view": "message",
}


def shown(table: Table, width: int) -> str:
    """What a console of a width prints."""
    file = io.StringIO()
    Console(file=file, width=width).print(table, crop=False)
    return file.getvalue()


def joined(text: str) -> str:
    """The text without blanks and line ends, so that a folded name reads as one."""
    return "".join(text.split())


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.012345, "0.01235"), (math.inf, "∞"), (None, "–"), (0.0, "0"), (1234567.0, "1.235e+06")],
)
def test_a_number_has_four_digits_and_what_is_none_a_sign(value: float, text: str) -> None:
    assert tables.number(value) == text


@given(st.floats(min_value=1e-9, max_value=1e9))
def test_a_printed_bound_is_never_below_the_bound(value: float) -> None:
    printed = float(tables.bound(value))
    # Four digits: rounding up adds less than one unit in the fourth, at most 1e-3 of the number.
    assert value <= printed <= value * (1 + 1.001e-3)


def test_a_bound_that_is_infinite_or_not_claimed_is_a_sign() -> None:
    assert (tables.bound(math.inf), tables.bound(None), tables.bound(0.0)) == ("∞", "–", "0")


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("ratio", ["odds", ""])
def test_no_terminal_crops_a_number_of_the_posterior(width: int, pooled: bool, ratio: str) -> None:
    text = shown(tables.coefficient_table([COEFFICIENT], "t", ratio, pooled, width), width)
    words = text.split()
    for number in ("-11.671", "0.240", "per", "level"):
        assert number in words
    for number in ("-12.14", "-11.20"):
        assert number in words
    assert "…" not in text
    for number in ("0.00123", "1.23e+05)"):
        assert (number in words) == bool(ratio)
    for number in ("1.234", "0.567"):
        assert (number in words) == pooled


def test_a_baseline_hazard_has_no_ratio() -> None:
    plain = {name: COEFFICIENT[name] for name in ("name", "unit", "mean", "sd", "lower", "upper")}
    ratios = {"hazard_ratio": 1.5, "hazard_lower": 1.2, "hazard_upper": 1.9}
    rows = [
        plain | {"name": "baseline (0, 90]"} | dict.fromkeys(ratios),
        plain | {"name": "age"} | ratios,
    ]
    text = shown(tables.coefficient_table(rows, "t", "hazard", False, 200), 200)
    assert "hazard ratio (95 %)" in text
    baseline, age = (line for line in text.splitlines() if "-11.671" in line)
    assert baseline.split()[-1] == "–"
    assert "1.5 (1.2 to 1.9)" in age


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_no_terminal_crops_what_a_client_paid(width: int) -> None:
    text = shown(tables.privacy_table([CLIENT], "t"), width)
    words = text.split()
    for word in ("10", "1350", "0.4711", "0.9995", "1e-05"):
        assert word in words
    assert "…" not in text
    assert joined("message") in joined(text)


def test_a_name_too_long_for_a_terminal_is_folded_not_cut() -> None:
    rows = [COEFFICIENT | {"name": "a" * 30 + "z"}]
    text = shown(tables.coefficient_table(rows, "t", "odds", False, 80), 80)
    assert text.count("a") >= 30
    assert "z" in text


@pytest.mark.parametrize("ratio", ["odds", ""])
def test_units_have_a_column_where_there_is_room_and_stand_under_names_elsewhere(
    ratio: str,
) -> None:
    def lines(width: int, **row: Any) -> list[str]:
        small = COEFFICIENT | {"odds_upper": 19.3}
        rows = [small | row, small | {"name": "sex", "unit": ""}]
        return shown(tables.coefficient_table(rows, "t", ratio, True, width), width).splitlines()

    (wide,) = [line for line in lines(140) if "hypertrophy" in line]
    assert "per level" in wide
    narrow = lines(80)
    assert max(map(len, narrow)) <= 80
    assert "unit" not in " ".join(narrow).split()
    at = next(index for index, line in enumerate(narrow) if "hypertrophy" in line)
    # The ratio and its interval stand below the coefficient's, whole, and each row is two lines.
    below = ["per level", *(["0.00123 (0.12 to 19.3)"] if ratio else [])]
    assert re.split(r" {2,}", narrow[at + 1].strip()) == below
    assert "sex" in narrow[at + 2]
    assert "per" not in " ".join(lines(80, unit="")).split()


def test_at_80_columns_no_interval_is_folded_and_the_names_give_way() -> None:
    rows = [
        COEFFICIENT
        | {"name": "chol", "unit": "per 50 mg/dl from 240", "mean": -2.81, "odds_ratio": 0.0602}
        | {"odds_lower": 0.0214, "odds_upper": 0.169},
        COEFFICIENT | {"name": "blood pressure at rest", "unit": "", "odds_upper": 0.169},
    ]
    lines = shown(tables.coefficient_table(rows, "t", "odds", False, 80), 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert any(
        line.strip().endswith("-12.14 to -11.20  0.0602 (0.0214 to 0.169)") for line in lines
    )
    assert "  per 50 mg/dl" in [line[1:].rstrip() for line in lines]


def test_brackets_of_a_name_are_no_markup() -> None:
    rows = [COEFFICIENT | {"name": "chol[red]", "unit": "[/]"}]
    assert "chol[red]" in shown(tables.coefficient_table(rows, "[bold]t", "", False, 200), 200)
    assert "a [b]" in shown(tables.plan_table([("what", "a [b]")], "[t]"), 80)


def test_numbers_of_records_have_a_column_where_they_are_public() -> None:
    assert "records" not in shown(tables.privacy_table([CLIENT], "t"), 200).split()
    words = shown(tables.privacy_table([CLIENT | {"records": 123}], "t"), 200).split()
    assert {"records", "123"} <= set(words)


@pytest.mark.parametrize("records", [None, 123])
def test_what_clients_paid_fits_80_columns_and_no_word_of_a_head_is_broken(
    records: int | None,
) -> None:
    rows = [CLIENT | {"client": name, "records": records} for name in ("cleveland", "switzerland")]
    lines = shown(tables.privacy_table(rows, "t"), 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert [sum(name in line for line in lines) for name in ("cleveland", "switzerland")] == [1, 1]
    heads = " ".join(lines[: next(k for k, line in enumerate(lines) if "─" in line)]).split()
    assert {"releases", "numbers", "sent", "subst."} <= set(heads)
    assert lines[-2].split()[-1] == "message"


def test_a_word_of_a_head_is_not_broken() -> None:
    table = tables.grid(["column", "unreadable"], [["a" * 80, "1"]], "t", ("column",))
    assert "unreadable" in shown(table, 40).split()


def test_a_relation_that_is_not_claimed_is_a_dash() -> None:
    row = CLIENT | {"epsilon": {"substitute": 0.9995}, "records": 7, "delta": None}
    assert shown(tables.privacy_table([row], "t"), 200).split().count("–") == 2


def test_a_ratio_that_needs_a_note_has_a_star_and_the_note_names_it() -> None:
    notes = ["", "where g is p", "where g is p", "a part of the curve bs(b)"]
    rows = [
        COEFFICIENT | {"name": f"x{index}", "odds_note": note} for index, note in enumerate(notes)
    ]
    rows[3] |= dict.fromkeys(("odds_ratio", "odds_lower", "odds_upper"))
    lines = shown(tables.coefficient_table(rows, "t", "odds", False, 120), 120).splitlines()
    assert [line.rstrip()[-1] for line in lines if " x" in line] == [")", "*", "*", "–"]
    assert tables.ratio_notes(rows, "odds") == [
        "* odds ratio of x1, x2: where g is p",
        "no odds ratio of x3: a part of the curve bs(b)",
    ]
    assert tables.ratio_notes(rows, "") == []
    many = [rows[1] | {"name": f"y{index}"} for index in range(9)]
    assert "y5 and 3 more: where" in tables.ratio_notes(many, "odds")[0]


def test_a_posterior_without_intervals_keeps_small_numbers() -> None:
    rows = [{"name": "topic 0, word [1]", "mean": 0.000281, "sd": 0.0000486}]
    text = shown(tables.moments_table(rows, "t"), 80)
    assert "word [1]" in text
    assert {"0.000281", "4.86e-05"} < set(text.split())
    assert "interval" not in text


def test_a_terminal_breaks_sentences_between_words_and_a_pipe_gets_them_whole(monkeypatch, capsys):
    said = "intervals are about twice as wide as without privacy " * 3 + "in/one/long-path" * 9
    monkeypatch.setenv("COLUMNS", "80")
    tables.say([said])
    assert capsys.readouterr().out == f"{said}\n"
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.setenv(name, "1")
    tables.say([said])
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 or " " not in line.strip() for line in lines)
    assert all(line.startswith("  ") for line in lines[1:])
    assert " ".join(line.strip() for line in lines) == said


def test_units_of_a_plan_go_under_long_names_where_the_terminal_is_narrow() -> None:
    names = (
        "coefficient",
        "unit",
        "± 95 %",
        "no noise",
        "times",
        "smallest odds ratio",
        "no noise",
    )
    numbers = ("≥ 0.34", "0.27", "1.3", "≥ 1.18", "1.14")
    rows = [
        ("numbedscategory[100 - 249]", "", *numbers),
        ("age", "per 10 years from 60", *numbers),
    ]
    wide = shown(tables.units_grid(names, rows, "Plan", 120), 120)
    assert "per 10 years from 60" in wide
    narrow = shown(tables.units_grid(names, rows, "Plan", 80), 80)
    assert "numbedscategory[100 - 249]" in narrow
    assert "unit" not in narrow
    assert re.search(r"age .*\n   per 10 years +\n   from 60", narrow)
    assert max(map(len, narrow.splitlines())) <= 80


def test_a_level_goes_under_its_column_where_both_are_too_long_for_the_terminal() -> None:
    row = COEFFICIENT | {"name": "workclass[Self-emp-not-inc]", "unit": "", "odds_upper": 19.3}
    text = shown(tables.coefficient_table([row], "t", "odds", True, 80), 80)
    assert re.search(r"\n workclass .*\n   \[Self-emp-not-inc\] ", text)
    assert max(map(len, text.splitlines())) <= 80
