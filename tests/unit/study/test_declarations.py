"""How `fedvi init` reads what is said of levels."""

import pytest

from fedvi.study.drafts.declarations import cells_of, parse_column


@pytest.mark.parametrize(
    ("said", "levels", "codes"),
    [
        ("a=almond,c=very sharp", ["almond", "very sharp"], {"a": "almond", "c": "very sharp"}),
        ("a=other,f=foul,n=other", ["other", "foul"], {"a": "other", "f": "foul", "n": "other"}),
        ("a=almond,c", ["almond", "c"], {"a": "almond", "c": "c"}),
        # No cell and word, but levels as the file has them.
        ("<=5,>5", ["<=5", ">5"], None),
        ('"n=1","n=2"', ["n=1", "n=2"], None),
        ("a=a,c=c", ["a", "c"], None),
        ("I,I", ["I", "I"], None),  # which no study may have
    ],
)
def test_levels_may_have_words(said: str, levels: list[str], codes: dict[str, str] | None) -> None:
    name, table = parse_column(f"odor=level:{said}")
    assert (name, table["levels"], table.get("codes")) == ("odor", levels, codes)
    assert cells_of(table) >= set(codes or levels)
