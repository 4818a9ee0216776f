"""Claims about a report's first page: which effects it has, and how it names the outcome."""

from fedvi.report import front
from tests.unit.report.test_page import made


def test_the_outcome_is_named_by_what_a_yes_of_it_means() -> None:
    found = front.front(made(outcome="readmitted", outcome_words=("<30", ">30 or NO")))
    assert found.asked[0] == "What goes with readmitted (<30 against >30 or NO)?"
    assert found.reading[0].endswith("its prior are right, and if clipping changed little.")
    assert "higher odds of readmitted being “<30”, below 1" in found.reading[0]


def test_of_many_open_effects_those_furthest_from_0_are_shown_in_the_order_of_the_study() -> None:
    age = made().coefficients[1]
    wide = [
        age._replace(name=f"x{i}", label=f"x{i}", mean=0.1 * i, sd=1.0, lower=-2.0)
        for i in range(10)
    ]
    clear = age._replace(name="z", label="z", mean=-3.0, sd=1.0, lower=-5.0, upper=-1.0)
    shown = front.front(made(outcome="died", coefficients=(*wide, clear), stand_out=("z",))).effects
    assert shown is not None
    assert [row[0] for row in shown.rows] == ["z", "x3", "x4", "x5", "x6", "x7", "x8", "x9"]


def test_an_effect_that_noise_alone_moved_from_0_is_not_told_as_open() -> None:
    age = made().coefficients[1]
    moved = age._replace(name="x", label="x", mean=-4.0, sd=2.0, lower=-8.0, upper=-0.3)
    found = front.front(made(outcome="died", coefficients=(age, moved), stand_out=())).effects
    assert found is not None
    assert [row[0] for row in found.rows] == ["age"]
