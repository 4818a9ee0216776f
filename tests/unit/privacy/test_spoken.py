"""Claims about what objects say of themselves: it fits a terminal, and is text wherever it is shown."""

import hashlib
from html.parser import HTMLParser

import pytest

import fedvi
from fedvi.privacy.spoken import Summary, Table, facts, up

LONG = Summary(
    "Study",
    ("a sentence that goes on and on " * 6,),
    (
        Table(
            ("coefficient", "unit", "mean"),
            (("age", "per 10 from 55 years of a life", "0.25"), ("sex <b>m</b>", "", "-12.5")),
            (0, 1),
        ),
        facts([("what", "so much " * 30), ("empty", "")]),
    ),
    ("MARKED & warned",),
)


@pytest.mark.parametrize("width", [50, 80, 200])
def test_a_summary_fits_its_terminal_and_breaks_no_number(width: int) -> None:
    text = LONG.text(width)
    assert max(map(len, text.splitlines())) <= width
    assert "-12.5" in text
    assert "empty" not in text
    # A warning comes before what it is of.
    assert text.index("warning: MARKED") < text.index("a sentence")


def test_numbers_stand_under_their_head_at_the_right() -> None:
    lines = LONG.text(200).splitlines()
    head = next(line for line in lines if line.startswith("coefficient"))
    (row,) = (line for line in lines if line.endswith("-12.5"))
    assert len(head) == len(row)


def test_in_a_notebook_names_are_text() -> None:
    class Tags(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.found: set[str] = set()

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.found.add(tag)

    seen = Tags()
    seen.feed(LONG._repr_html_())
    assert seen.found == {"p", "strong", "table", "thead", "tbody", "tr", "th", "td"}
    assert "sex &lt;b&gt;m&lt;/b&gt;" in LONG._repr_html_()


def test_an_upper_bound_is_rounded_up() -> None:
    assert [up(value) for value in (0.12341, 1.0, 3.99800001)] == ["0.1235", "1", "3.999"]


def test_a_plan_says_what_it_promises_and_its_repr_still_tells_any_two_apart() -> None:
    options = {"delta": 1e-5, "steps": 10, "sampler": "full", "max_records": 100}
    plan = fedvi.privacy.sgd(epsilon=1.0, **options)
    said = str(plan.summary())
    assert "ε ≤ 1 at δ = 1e-05 for one record under substitute" in said
    assert "clip norm" in said
    # Ledgers are known by the digest of it.
    other = fedvi.privacy.sgd(epsilon=1.001, **options)
    assert len({hashlib.sha256(repr(each).encode()).digest() for each in (plan, other)}) == 2
    assert repr(plan).startswith("Descent(sampler=")
    seeded = fedvi.privacy.sgd(epsilon=1.0, insecure_seed=3, **options)
    assert "warning: simulation: no guarantee" in str(seeded.summary())
    bare = fedvi.privacy.sgd(
        noise_multiplier=0, steps=1, sampler="full", max_records=9, clip_norm=1e9
    )
    assert "no protection" in str(bare.summary())
