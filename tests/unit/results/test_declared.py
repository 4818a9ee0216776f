"""Claims about the table of declared columns: it follows from the study alone, in words."""

from typing import Any

from fedvi.report.contents import Declared
from fedvi.report.declared_section import declared_section
from fedvi.results.declared import declared
from fedvi.study.config import Study, parse_study
from tests.unit.planning.test_widths import raw_plan
from tests.unit.report.test_page import made

COLUMNS: dict[str, dict[str, Any]] = {
    "dead": {"type": "binary"},
    "age": {
        "type": "number",
        "column": "AGE_Y",
        "bounds": [18, 100],
        "center": 50,
        "scale": 10,
        "unit": "years",
        "missing": {"impute": 60},
        "missing_values": [999],
    },
    "score": {"type": "number", "bounds": [0, 10], "outside": "drop"},
    "male": {"type": "binary", "words": ["male", "female"], "missing": {"impute": False}},
    "stage": {"type": "level", "levels": ["I", "II", "III"], "missing": "indicator"},
    "unused": {"type": "number", "bounds": [0, 1]},
}


def study(**privacy: Any) -> Study:
    raw = raw_plan()
    raw["model"]["formula"] = "dead ~ age + I(score**2) + male + stage"
    raw["data"]["schema"] = COLUMNS
    if privacy:
        raw["privacy"] = privacy
        raw["solver"] = {"kind": "glm"}
    return parse_study(raw)


def test_each_column_of_the_formula_is_told_as_it_is_declared() -> None:
    zero = "the record counts as zero"
    assert declared(study()) == (
        Declared("dead", "yes or no", "yes (1) or no (0)", zero, "outcome"),
        Declared(
            "age (in files: AGE_Y)",
            "number",
            "18 to 100 years",
            "taken as 60; 999 means missing, too",
            "per 10 years from 50",
        ),
        Declared(
            "score", "number", f"0 to 10; of any other, {zero}", zero, "by the formula's function"
        ),
        Declared(
            "male", "yes or no", "male (1) or female (0)", "taken as female", "male against female"
        ),
        Declared("stage", "levels", "I, II, III", "has a coefficient of its own", "each against I"),
    )


def test_a_word_that_is_the_cell_is_not_said_twice() -> None:
    told = {"type": "binary", "true": ["Male"], "false": ["F"], "words": ["Male", "Female"]}
    raw = raw_plan()
    raw["model"]["formula"] = "dead ~ male"
    raw["data"]["schema"] = {"dead": COLUMNS["dead"], "male": told}
    assert declared(parse_study(raw))[1].values == "Male or Female (F)"


def test_without_a_promise_a_missing_cell_is_refused() -> None:
    rows = declared(study(protection="none"))
    assert rows[0].missing == "the site's file is refused"
    section = declared_section(made(declared=rows, protected=False))
    assert section is not None
    assert "A file with a cell of no declared value is refused" in section.lead[1]


def test_a_study_without_columns_or_formula_has_no_more_to_tell() -> None:
    assert declared_section(made()) is None
    rows = tuple(row._replace(enters="") for row in declared(study()))
    section = declared_section(made(declared=rows))
    assert section is not None
    assert "in the model" not in section.tables[0].names
    assert section.tables[0].rows[1][0] == "age (in files: AGE_Y)"
