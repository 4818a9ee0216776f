"""Claims about what is said of a study file with several mistakes, and in which lines they are."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from fedvi import errors
from fedvi.cli.main import main
from fedvi.data.line_numbers import with_lines
from fedvi.study.config import load_study
from tests.integration.test_wrong_inputs import SCHEDULE, STUDY


def said(folder: Path, changes: dict[str, str]) -> list[tuple[str, int | None]]:
    """What `fedvi check` finds wrong: the start of each sentence, and the line that it names."""
    text = STUDY
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = folder / "study.toml"
    path.write_text(text, encoding="utf-8")
    done = CliRunner().invoke(main, ["check", str(path)])
    assert done.exit_code == 2, done.output
    found = []
    for line in done.stderr.splitlines():
        if line.startswith(("- ", "error: ")) and not line.endswith("things are wrong:"):
            sentence, _, number = line.rstrip(")").partition(" (line ")
            start = sentence.removeprefix("error: ").removeprefix("- ").split()[0].rstrip(":")
            found.append((start, int(number) if number else None))
            if number and "missing" not in sentence:
                key = start.rpartition(".")[2]
                assert key in text.splitlines()[int(number) - 1]
    return found


def test_all_that_a_draft_leaves_open_is_named_at_once(tmp_path: Path) -> None:
    open_keys = {
        "max_records = 20": "max_records = 0",
        "bounds = [18, 100]": "bounds = []",
        'levels = ["low", "high"]': "levels = []",
    }
    assert said(tmp_path, open_keys) == [
        ("data.max_records", 21),
        ("data.schema.age.bounds", 26),
        ("data.schema.stage.levels", 29),
    ]


def test_columns_and_the_schedule_are_checked_together(tmp_path: Path) -> None:
    changes = {SCHEDULE: SCHEDULE + "\nquorum = 9", 'type = "number"': 'type = "numbr"'}
    assert said(tmp_path, changes) == [("data.schema.age.type", 26), ("schedule.quorum", 15)]


def test_a_misspelt_key_is_not_missing_too(tmp_path: Path) -> None:
    changes = {"[model]": "[modle]", "seed = 3": "sed = 3", "delta = 1e-5": "delta = 2"}
    assert said(tmp_path, changes) == [("study.sed", 3), ("privacy.delta", 17), ("modle", 4)]


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("model.formula: no such column", 3),
        ("model.kind is 'x'", 6),
        ("model.site is missing", 1),
        ("[model]: kind 'x' failed", 1),
        ("clients[1].name is 'b'", 10),
        ("clients: the name 'a' stands twice", None),
        ("prior.scale is 0", None),
        ("no study file", None),
    ],
)
def test_a_line_is_named_where_the_file_has_it(message: str, line: int | None) -> None:
    text = (
        '[model]\n# kind = 1\nformula = """\nkind = 2\n"""\nkind = \'x\'\n'
        "[[clients]]\nname = 'a'\n[[clients]]\nname = 'b'\n"
    )
    expected = message if line is None else f"{message} (line {line})"
    assert with_lines(errors.ConfigError(message), text).message == expected
    assert with_lines(errors.ConfigError(message), "no [toml").message == message


def test_the_errors_of_a_file_can_be_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(STUDY.replace("seed = 3", "seed = 'x'").replace("epsilon = 1.0", "epsilon = 0"))
    with pytest.raises(errors.ConfigError, match=r"^2 things are wrong:") as it:
        load_study(path)
    assert [one.message.split()[0] for one in it.value.each] == ["study.seed", "privacy.epsilon"]
