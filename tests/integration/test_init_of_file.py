"""Claims about `fedvi init --from`: what is declared stands whatever the file holds, the rest is marked."""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from fedvi.cli import init as command
from tests.commands import invoked as fedvi

ROWS = 72
MARK = "read from north.csv"


class Kind(NamedTuple):
    """One kind of column: what its cells are, how a person declares it, and what one record may hold.

    Attributes:
      cells: of record i.
      declared: as --column has it.
      odd: cells that one record may have instead.
    """

    cells: Callable[[int], str]
    declared: str
    odd: tuple[str, ...]


def _rare(often: str, rare: str, records: int) -> Callable[[int], str]:
    return lambda i: rare if i < records else often[i % len(often)]


KINDS = {
    "died": Kind(lambda i: "ny"[i // 3 % 2], "binary:y/n", ("", "Y", "perhaps")),
    "sex": Kind(lambda i: "mf"[i % 2], "binary:m/f", ("", "x", "F")),
    "arm": Kind(lambda i: str(i % 2), "binary:1/0", ("", "2", "nan")),
    "twice": Kind(_rare("AB", "C", 2), "level:A,B", ("", "A", "D", "nan")),
    "once": Kind(_rare("AB", "C", 1), "level:A,B", ("", "C", "A")),
    "grade": Kind(lambda i: str(i % 4), "level:0,1,2,3", ("", "4", "9", "-9")),
    "codes": Kind(lambda i: str(i % 6), "level:0,1,2,3,4,5", ("", "6", "unknown", "2.5")),
    "age": Kind(lambda i: str(20 + i % 60), "number:18..100", ("", "1000000", "unknown", "-9")),
    "weight": Kind(
        lambda i: "999" if i < 2 else f"{50 + i % 41}.5",
        "number:30..200",
        ("", "60", "999", "a lot"),
    ),
    "lactate": Kind(
        lambda i: "unknown" if i < 2 else f"{i % 13}.25", "number:0..30", ("1.5", "", "<0.5")
    ),
    "ward": Kind(lambda i: "north", "level:north,south", ("", "south")),
    "patient_id": Kind(lambda i: f"P{i}", "", ("P5", "")),
}


def tables() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Yields neighbours of one table, with what was changed; first the table itself."""
    rows = [{name: kind.cells(i) for name, kind in KINDS.items()} for i in range(ROWS)]
    yield "as it is", rows
    yield "one record more", [*rows, rows[-1] | {"patient_id": f"P{ROWS}"}]
    yield "one record less", rows[1:]
    for name, kind in KINDS.items():
        for cell in kind.odd:
            yield f"{name} of one record is {cell!r}", [rows[0] | {name: cell}, *rows[1:]]


TABLES = dict(tables())
SETTLED = {
    "--name": "trial",
    "--kind": "logistic",
    "--clients": "a,b",
    "--server": "example.org:7443",
    "--prior-scale": "1",
    "--protection": "dp",
    "--epsilon": "1",
    "--relation": "substitute",
    "--max-records": "900",
    "--delta": "1e-5",
}
FORMULA = "died ~ " + " + ".join(name for name in KINDS if name not in ("died", "patient_id"))
DECLARED = [
    *("--formula", FORMULA, "--unit", "patient", "--unit-column", "patient_id"),
    *("--max-rows-per-unit", "3"),
]
for _name, _kind in KINDS.items():
    if _kind.declared:
        DECLARED += ["--column", f"{_name}={_kind.declared}"]
    if _kind.declared.startswith("number"):
        DECLARED += ["--per", f"{_name}=10 from 30", "--missing-values", f"{_name}=999"]
    if _kind.declared and _name != "died":
        DECLARED += ["--missing", f"{_name}=drop"]
# What a person answers where there is no default.
ANSWERS = {
    "Formula": "died",
    "lowest and highest": "18..200",
    "different whole numbers": "level",
    "it is to be a yes or no": "binary:y/n",
    "nothing is suggested": "skip",
    "of which none is suggested": "skip",
}


@pytest.fixture
def drafted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, str]]:
    """Returns a function that drafts a study of a table, with Enter wherever there is a default."""
    asked: list[str] = []

    def prompt(words: str, default: str = "", **_: Any) -> str:
        asked.append(words)
        assert len(asked) < 200, asked[-5:]
        known = [answer for part, answer in ANSWERS.items() if part in words]
        return default or (known[0] if known else "")

    monkeypatch.setattr(command, "_on_terminal", lambda: True)
    monkeypatch.setattr(click, "prompt", prompt)

    def draft(rows: list[dict[str, str]], *flags: str) -> tuple[dict[str, str], str]:
        asked.clear()
        # The same name in another folder, since a file is looked at once.
        place = tmp_path / str(len([*tmp_path.iterdir()]))
        place.mkdir()
        lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
        (place / "north.csv").write_text("\n".join(lines) + "\n")
        settled = [item for pair in SETTLED.items() for item in pair]
        done = fedvi(
            "init", place / "study", "--from", place / "north.csv", *settled, "--disjoint", *flags
        )
        assert done.exit_code == 0, done.output
        assert ("--yes" in flags) != any("suggest types and levels" in words for words in asked)
        return {path.name: path.read_text() for path in (place / "study").iterdir()}, done.output

    return draft


@pytest.mark.parametrize("change", TABLES)
def test_no_record_moves_a_study_of_which_all_is_declared(
    drafted: Callable[..., tuple[Any, str]], change: str
) -> None:
    files, _ = drafted(TABLES["as it is"], *DECLARED)
    assert MARK not in "".join(files.values())
    assert drafted(TABLES[change], *DECLARED)[0] == files


def test_no_record_moves_a_study_where_nobody_is_asked(
    drafted: Callable[..., tuple[Any, str]],
) -> None:
    found = [drafted(rows, "--yes", "--response", "died") for rows in TABLES.values()]
    assert all(files == found[0][0] and MARK not in told for files, told in found)
    # With all declared, it is the study that a person is asked for, too.
    assert (
        drafted(TABLES["as it is"], *DECLARED, "--yes")[0]
        == drafted(TABLES["one record less"], *DECLARED)[0]
    )


class Line(NamedTuple):
    value: str
    is_marked: bool


def lines_of(text: str) -> dict[tuple[str, str], Line]:
    """Returns (section, key) → its line, without its reason."""
    found, section, tables_before = {}, "", 0
    for line in text.splitlines():
        if line.startswith("["):
            tables_before += line.startswith("[[")
            section = f"{line} {tables_before}" if line.startswith("[[") else line
        elif line and not line.startswith("#"):
            code, _, why = line.partition(" # ")
            key, _, value = code.partition(" = ")
            found[section, key] = Line(value.strip(), MARK in why)
    return found


def unmarked(one: Mapping[tuple[str, str], Line], two: Mapping[tuple[str, str], Line]) -> list[Any]:
    """Returns the lines of two drafts that differ, where they and what they follow from are not marked."""
    found = []
    for place in {**one, **two}:
        first, second = one.get(place), two.get(place)
        if first is not None and second is not None and first.value == second.value:
            continue
        section = place[0]
        types = [lines.get((section, "type")) for lines in (one, two)]
        if None in types and section.startswith("[data.schema."):  # another formula
            types = [lines["[model]", "formula"] for lines in (one, two)]
        elif section == "[data]":
            types = [lines["[privacy]", "unit"] for lines in (one, two)]
        follows = types[0] != types[1] and all(
            line is not None and line.is_marked for line in types
        )
        if not follows and not all(line.is_marked for line in (first, second) if line is not None):
            found.append((place, first, second))
    return found


@pytest.mark.parametrize("change", TABLES)
def test_every_line_that_a_record_moves_is_marked_as_read_from_the_file(
    drafted: Callable[..., tuple[Any, str]], change: str
) -> None:
    files, told = drafted(TABLES["as it is"])
    others, told_too = drafted(TABLES[change])
    for name in files:
        if name == "README.md":
            continue
        assert files[name] == others[name] or name in ("study.toml", "policy.toml"), name
        assert not unmarked(lines_of(files[name]), lines_of(others[name]))
    # The screen and the steps name each column and key that is marked, and no other.
    for drawn, said in ((files, told), (others, told_too)):
        sentence = next(line for line in said.splitlines() if line.startswith(MARK))
        marked = [place for place, line in lines_of(drawn["study.toml"]).items() if line.is_marked]
        for section, key in marked:
            column = section.removeprefix("[data.schema.").rstrip("]")
            assert (
                column if section.startswith("[data.s") else key.replace("_", " ")
            ) in sentence or (key == "unit_column" and "the column with the unit" in sentence)
            if key not in ("false", "words", "codes"):
                assert f"- `{section.strip('[]')}.{key}`" in drawn["README.md"]
        assert "no privacy loss is charged" in sentence
        assert "no privacy loss is charged" in drawn["README.md"].replace("\n", " ")


def test_a_study_says_which_of_its_keys_are_of_the_file_and_how_to_declare_them(
    drafted: Callable[..., tuple[Any, str]],
) -> None:
    files, told = drafted(TABLES["as it is"])
    study = files["study.toml"]
    assert f"# Levels {MARK}: they are data, and no privacy loss is charged for them." in study
    assert re.search(rf'levels = \["A", "B", "C"\] +# the first is the reference; {MARK}\n', study)
    assert re.search(rf"missing_values = \[999\] +# {MARK}\n", study)
    assert re.search(
        rf"rounds = \d+ +# answers, at most; follows from what is {MARK}\n", files["policy.toml"]
    )
    for said in (
        *("levels of twice, once, grade", "cells that mean true and false of died, sex, arm"),
        *("--column twice=level:FIRST,SECOND", "--column sex=binary:TRUE/FALSE"),
        *("--column age=TYPE:…", "--missing-values weight=CELL,…", "--formula"),
    ):
        assert said in told
    assert "--column twice=TYPE" not in told
    assert told.count(MARK) == 1


def test_levels_that_are_declared_stand_and_others_of_the_file_are_told_without_a_number(
    drafted: Callable[..., tuple[Any, str]],
) -> None:
    columns = [f"--column={name}={kind.declared}" for name, kind in KINDS.items() if kind.declared]
    formula = ["--formula", FORMULA, "--unit", "record"]
    files, told = drafted(TABLES["twice of one record is 'nan'"], *formula, *columns)
    schema = tomllib.loads(files["study.toml"])["data"]["schema"]
    assert schema["twice"]["levels"] == schema["once"]["levels"] == ["A", "B"]
    # No word for missing is added to levels that a person has declared.
    assert "missing_values" not in schema["twice"]
    lines = [line for line in told.splitlines() if "which you did not declare" in line]
    assert [line.partition(", which")[0] for line in lines] == [
        "twice: the file also has C, nan",
        "once: the file also has C",
    ]
    assert not re.search(r"\d", "".join(lines))
    # One record or two: the same is said.
    _, again = drafted(TABLES["as it is"], *formula, *columns)
    assert lines[1] in again


def test_an_answer_of_a_person_is_not_marked(
    drafted: Callable[..., tuple[Any, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = click.prompt

    def prompt(words: str, default: str = "", **more: Any) -> str:
        if words.startswith("twice: what"):
            return "level:B,A"
        if words.startswith("grade: words"):
            return "none,mild,severe,worst"
        return asked(words, default, **more)

    monkeypatch.setattr(click, "prompt", prompt)
    files, told = drafted(TABLES["as it is"], "--formula", "died ~ twice + grade")
    lines = lines_of(files["study.toml"])
    assert lines["[data.schema.twice]", "levels"] == ('["B", "A"]', False)
    assert not lines["[model]", "formula"].is_marked
    # A person's words for levels of the file do not make these a person's.
    assert lines["[data.schema.grade]", "codes"].is_marked
    assert "twice: the file also has C" in told.replace("  ", "")


@pytest.mark.parametrize("name", ["a\nb.csv", "\x1b[31m.csv", '"quoted" {0}.csv', "é.csv"])
def test_any_name_of_a_file_may_stand_in_a_comment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from fedvi.cli._of_file import name_shown
    from fedvi.study.drafts.drafting import Answers, draft

    answers = Answers(
        *("trial", "logistic", "y ~ stage", ("north",)),
        {"y": {"type": "binary"}, "stage": {"type": "level", "levels": ["A", "B"]}},
        max_records=900,
        of_file=frozenset({"data.schema.stage.levels"}),
        source=name_shown(tmp_path / name),
    )
    text = draft(answers).text
    assert tomllib.loads(text)["data"]["schema"]["stage"]["levels"] == ["A", "B"]
    assert ("read from the file" in text) != (name in text)
