"""Claims about the dialogue of `fedvi init`, on a terminal: a way back, a review, nothing from the data."""

import codecs
import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

# A worker of pytest-xdist ignores SIGINT, and what it starts would, too. The program itself takes
# the signal up again: a function between fork and exec would fork a process that may run JAX.
START = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from fedvi.cli.main import main
main()
"""
# What a dialogue on a file's columns need not ask.
SETTLED = (
    *("--kind", "logistic", "--clients", "a,b", "--protection", "none", "--response", "died"),
    *("--column", "died=binary", "--server", "example.org:7443", "--name", "trial"),
    *("--prior-scale", "1"),
)
PROGRAM = [sys.executable, "-c", START, "init"]
ROWS = "".join(
    f"P{i % 30},{'' if i % 10 == 3 else 41 + i % 37},{'mf'[i % 2]},{['II', 'I', 'III'][i % 3]},"
    f"{'unknown' if i % 20 == 1 else f'{i % 13}.25'},{i % 3 // 2},note {i}\n"
    for i in range(90)
)
TEXT = "patient_id,age,sex,stage,lactate,died,note\n" + ROWS + "P1,91.125,m,IV,93.75,0,scribble\n"


class Terminal:
    """A program on a terminal, and what it has printed since the last text that was waited for."""

    def __init__(self, *arguments: object, columns: int) -> None:
        self.mine, theirs = pty.openpty()
        self.done = subprocess.Popen(
            [*PROGRAM, *map(str, arguments)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=os.environ | {"PYTHONUTF8": "1", "TERM": "dumb", "COLUMNS": str(columns)},
            start_new_session=True,
        )
        os.close(theirs)
        self.seen = self.printed = ""
        self.decode = codecs.getincrementaldecoder("utf-8")().decode  # a read may cut a character

    def until(self, text: str) -> str:
        """Reads on until a text was printed; returns what came up to it."""
        ends = time.monotonic() + 60
        while text not in self.seen:
            assert time.monotonic() < ends, (text, self.seen)
            if select.select([self.mine], [], [], 1)[0]:
                try:
                    read = os.read(self.mine, 65_536)
                except OSError:  # the program has ended
                    read = b""
                assert read, (text, self.seen)
                told = self.decode(read).replace("\r\n", "\n")
                self.seen += told
                self.printed += told
        before, _, self.seen = self.seen.partition(text)
        return before

    def say(self, question: str, answer: object) -> str:
        """Waits for a question and answers it; returns what came before the question."""
        before = self.until(question)
        self.until(": ")
        os.write(self.mine, f"{answer}\n".encode())
        return before


@contextlib.contextmanager
def terminal(*arguments: object, columns: int = 1_000) -> Iterator[Terminal]:
    opened = Terminal(*arguments, columns=columns)
    try:
        yield opened
    finally:
        opened.done.kill()
        opened.done.wait()
        os.close(opened.mine)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "north.csv"
    path.write_text(TEXT)
    return path


def test_a_dialogue_from_a_file_to_a_study(tmp_path: Path, file: Path) -> None:
    folder = tmp_path / "study"
    with terminal(folder, "--from", file) as asked:
        asked.say("Name of the study [study]", "trial")
        asked.say("What is inferred", "back")
        asked.say("Name of the study [trial]", "")  # what was said stands as the default
        asked.say("What is inferred", "")
        asked.say("Sites", "skip")
        assert "this cannot be left open" in asked.say("Sites", "north,south")
        asked.say("to suggest types and levels", "?")
        said = asked.say("to suggest types and levels", "")
        assert "written only if you confirm it" in said
        asked.say("patient_id looks like an identifier", "")
        asked.say("note looks like an identifier", "")
        asked.say("Formula", "died ~ age + patient_id")
        assert "Error: 'patient_id' is an identifier and explains nothing" in asked.say(
            "Formula", "died"
        )
        asked.say("Promise", "")
        asked.say("ε over", "2")
        # An identifier that repeats: a patient is offered, and whose a row is.
        asked.say("patient_id repeats", "")
        asked.say("Column that says whose a row is [patient_id]", "")
        asked.say("Rows of one patient that are used, at most [20]", "2")
        said = asked.say("Neighbouring relation", "")
        assert "some patients of the file have more rows" in said
        asked.say("Declare that no patient is at two sites", "yes")
        asked.say("bound on the patients of any site", "?")
        said = asked.say("bound on the patients of any site", "900")
        assert "of a site with more, only the first are used" in said
        asked.say("δ, far below", "")
        asked.say("Are cells of covariates missing at other sites", "")
        asked.say(
            "died: what it may hold, as it looks (YES/NO); confirm or correct [binary:1/0]", ""
        )
        asked.say(
            "age: what it may hold, as it looks; confirm or correct, or out [number]", "18..100"
        )
        asked.say("or STEP from START, such as 10 from 60 [half]", "10 years from 60")
        asked.say("age: about 10 % of its cells are missing", "impute 50")
        asked.say("or out [binary:m/f]", "binary:f/m")
        asked.say(
            "(the reference first); confirm or correct, or out [level:I,II,III]",
            "level:I,II,III,IV",
        )  # one record alone has IV
        asked.say("lactate: what it may hold", "")
        asked.say("lactate: lowest and highest", "skip")
        asked.say("lactate: about 10 % of its cells are missing (also unknown)", "indicator")
        asked.say("Prior sd of a coefficient, for one unit of its column (age per 10 years)", "")
        asked.say("Where sites will reach the server", "")
        review = asked.until("Enter writes the study")
        assert "died ~ age + sex + stage + lactate  (without patient_id, note)" in review
        assert "bounds lactate         STATE ME" in review
        assert not folder.exists()
        number = next(line.split()[0] for line in review.splitlines() if " epsilon " in line)
        os.write(asked.mine, number.encode() + b"\n")
        asked.say("ε over the whole study [2]", "0.5")
        assert "epsilon                0.5" in asked.say("Enter writes the study", "")
        asked.until("next: fedvi check")
    study = tomllib.loads((folder / "study.toml").read_text())
    assert study["model"]["formula"] == "died ~ age + sex + stage + lactate"
    assert study["privacy"]["unit"] == "patient"
    assert study["privacy"]["epsilon"] == 0.5
    assert study["privacy"]["disjoint"] is True
    assert study["data"]["unit_column"] == "patient_id"
    assert study["data"]["max_rows_per_unit"] == 2
    assert study["data"]["max_records"] == 900
    assert study["schedule"]["deadline_seconds"] == 86_400
    assert study["data"]["schema"] == {
        "died": {"type": "binary", "true": [1], "false": [0]},
        "age": {
            "type": "number",
            "bounds": [18, 100],
            "center": 60,
            "scale": 10,
            "unit": "years",
            "missing": {"impute": 50},
        },
        "sex": {"type": "binary", "true": ["f"], "false": ["m"], "words": ["f", "m"]},
        "stage": {"type": "level", "levels": ["I", "II", "III", "IV"]},
        "lactate": {
            "type": "number",
            "bounds": [],
            "missing": "indicator",
            "missing_values": ["unknown"],
        },
    }
    # No range of the file, and no cell of one record, was shown or written.
    told = asked.printed + (folder / "study.toml").read_text() + (folder / "README.md").read_text()
    assert not any(cell in told for cell in ("91.125", "93.75", "P1,", "scribble"))


def test_no_word_is_broken_on_a_terminal_of_80_columns(tmp_path: Path, file: Path) -> None:
    with terminal(tmp_path / "study", "--from", file, *SETTLED, columns=80) as asked:
        for question in (
            "to suggest types",
            "patient_id looks like",
            "note looks like",
            "Are cells",
        ):
            asked.say(question, "")
        asked.say("age: what it may hold", "?")
        asked.say("age: what it may hold", "18..x")
        asked.say("age: what it may hold", "18..100")
        asked.say("age: unit of its", "often")
        asked.until("Error: ")
        asked.until("age: unit of its")
    # Python's own prompt comes last in its line, and the answer after it. A path stays in one piece.
    lines = re.sub(r": .{0,7}$", "", asked.printed, flags=re.M).splitlines()
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= 80


def test_ctrl_c_leaves_nothing(tmp_path: Path, file: Path) -> None:
    with terminal(tmp_path / "study", "--from", file, "--clients", "a,b") as asked:
        asked.say("Name of the study", "back")
        assert "this is the first question" in asked.say("Name of the study", "")
        asked.until("What is inferred")
        # Python waits for a key if the signal comes just before it begins to: press again, then.
        for _ in range(30):
            asked.done.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                asked.done.wait(2)
                break
        assert asked.done.poll() == 130
    assert {path.name for path in tmp_path.iterdir()} == {"north.csv"}


def test_who_confirms_an_outcome_is_told_how_many_records_have_none(tmp_path: Path) -> None:
    file = tmp_path / "north.csv"
    file.write_text(
        "died,age\n" + "".join(f"{'yn'[i % 2] * (i % 5 > 0)},{41 + i % 37}\n" for i in range(100))
    )
    given = ["--kind", "logistic", "--clients", "a,b", "--protection", "none", "--name", "trial"]
    with terminal(tmp_path / "study", "--from", file, *given, "--response", "died") as asked:
        asked.say("to suggest types and levels", "")
        asked.say("Are cells of covariates missing", "")
        asked.until(
            "it looks (YES/NO); about 20 % of its cells are missing: these records are left out;"
        )


def test_numbers_that_often_mean_missing_are_asked_for(tmp_path: Path) -> None:
    rows = "".join(
        f"{999 if i % 9 == 4 else 41 + i % 37},{-9 if i % 9 == 2 else 80 + i % 90},{i % 9},{i % 2}\n"
        for i in range(90)
    )
    file = tmp_path / "north.csv"
    file.write_text("age,pressure,score,died\n" + rows + "41,80,99,0\n")
    with terminal(tmp_path / "study", "--from", file, *SETTLED) as asked:
        asked.say("to suggest types and levels", "")
        asked.say("Are cells of covariates missing", "")
        asked.say("age: what it may hold", "18..100")
        asked.say("age: unit of its coefficient", "")
        asked.say("age: 999 lies far beyond the other values. Missing (yes, no) [yes]", "?")
        assert "it is clipped to the" in asked.say("age: 999 lies far beyond", "")
        asked.say("age: about 10 % of its cells are missing (also 999)", "impute 50")
        asked.say("pressure: what it may hold", "20..300")
        asked.say("pressure: unit of its coefficient", "20")
        asked.say("pressure: -9 lies far beyond the other values", "no")
        # 99 is the score of one record alone: nothing is asked, and nothing said of it.
        asked.say("score: 10 different whole numbers", "0..10")
        asked.say("score: unit of its coefficient", "")
        asked.say("Enter writes the study", "")
        asked.until("next: fedvi check")
    schema = tomllib.loads((tmp_path / "study" / "study.toml").read_text())["data"]["schema"]
    assert schema["age"] == {
        "type": "number",
        "bounds": [18, 100],
        "missing": {"impute": 50},
        "missing_values": [999],
    }
    assert schema["pressure"] == {
        "type": "number",
        "bounds": [20, 300],
        "center": 160,
        "scale": 20,
    }
    assert schema["score"] == {"type": "number", "bounds": [0, 10]}
    assert "score: 99" not in asked.printed


def test_whole_numbers_of_few_kinds_are_asked_for_as_codes_or_as_numbers(tmp_path: Path) -> None:
    rows = "".join(f"P{i},{i % 7},{i % 4},{10 * (i % 12)},{i % 2}\n" for i in range(84))
    file = tmp_path / "north.csv"
    file.write_text(f"patient_id,education,vessels,dose,died\n{rows}")
    given = ["--kind", "logistic", "--clients", "a,b", "--response", "died", "--unit", "patient"]
    given += ["--column", "died=binary", "--server", "example.org:7443", "--name", "trial"]
    given += ["--epsilon", "1", "--relation", "substitute", "--max-records", "900"]
    given += ["--disjoint", "--delta", "1e-5", "--prior-scale", "1", "--protection", "dp"]
    with terminal(tmp_path / "study", "--from", file, *given) as asked:
        asked.say("to suggest types and levels", "")
        asked.say("patient_id looks like an identifier", "")
        asked.say("Column that says whose a row is [patient_id]", "")
        # Each patient has one row: how many are used, is no question.
        asked.say("Are cells of covariates missing", "")
        said = "education: 7 different whole numbers. Codes of a list (level), or amounts"
        asked.say(said, "")
        assert "there is no default" in asked.say("education: 7 different", "level")
        asked.say("education: all levels that may occur", "")
        asked.say("education: words for its levels 0, 1, 2, 3, 4, 5, 6, in this order", "")
        asked.say("vessels: 4 different whole numbers", "count:0..3")
        asked.say("dose: 12 different whole numbers", "number:0..200")
        asked.say("dose: unit of its coefficient", "")
        asked.say("Enter writes the study", "")
        asked.until("next: fedvi check")
    raw = tomllib.loads((tmp_path / "study" / "study.toml").read_text())
    assert raw["data"]["schema"]["education"]["levels"] == list("0123456")
    assert raw["data"]["schema"]["vessels"] == {"type": "count", "bounds": [0, 3]}
    assert raw["data"]["max_rows_per_unit"] == 20


def test_an_answer_that_no_study_may_have_is_refused_where_it_is_asked(
    tmp_path: Path, file: Path
) -> None:
    with terminal(tmp_path / "study", "--from", file, *SETTLED) as asked:
        asked.say("to suggest types and levels", "")
        asked.say("patient_id looks like an identifier", "")
        asked.say("note looks like an identifier", "")
        asked.say("Are cells of covariates missing", "")
        asked.say("age: what it may hold", "0..1e-323")
        said = asked.say("age: what it may hold", "9..1")
        assert "data.schema.age.bounds: [0, 1e-323], a width of 9.88131e-324, expected" in said
        said = asked.say("age: what it may hold", "number")
        assert "Error: the lowest, 9, is not below the highest, 1 (write 1..9)" in said
        asked.say("age: lowest and highest that it can be, LOW..HIGH, or out", "5..5")
        said = asked.say("age: lowest and highest", "18..100")
        assert "Error: the lowest, 5, is not below the highest, 5" in said
        asked.say("age: unit of its coefficient", "0 from 50")
        said = asked.say("age: unit of its coefficient", "10 from 15")
        assert "Error: '0 from 50' is no unit, expected STEP from START, a step above 0" in said
        said = asked.say("age: unit of its coefficient", "skip")
        assert "'10 from 15' starts outside of the bounds 18..100 (such as 10 from 60)" in said
        said = asked.say("age: unit of its coefficient", "half")
        assert "this cannot be left open" in said  # half is what leaving it out means
        asked.say("age: about 10 % of its cells are missing", "impute 500")
        said = asked.say("age: about 10 % of its cells are missing", "impute 50")
        assert "expected a number within the bounds [18, 100]" in said
        asked.say("sex: what it may hold", "0..110")  # meant for the next question
        said = asked.say("sex: unit of its coefficient", "back")
        assert "this file has cells of sex that are no numbers" in said
        asked.say("sex: what it may hold", "binary:male/f")
        said = asked.say("stage: what it may hold", "level:I,I")
        assert "no cell of the file is male. If that is a slip, correct sex with `back`" in said
        assert "expected two or more different names" in asked.say("stage: what", "back")
        asked.say("sex: what it may hold", "binary:m/f")
        assert "no cell" not in asked.say("stage: what it may hold", "level:II,III")
        said = asked.say("lactate: what it may hold", "back")
        assert "stage: the file also has I, IV, which you did not declare" in said
        asked.say("stage: what it may hold", "level:I,II,III,IV")
        assert "did not declare" not in asked.say("lactate: what it may hold", "back")
        asked.say("stage: what it may hold", "level:1,II,III,IV")
        # Of a bound that nobody knows: the column may still leave the formula.
        said = asked.say("lactate: what it may hold", "")
        assert "no cell of the file is 1. If" in said
        asked.say("lactate: lowest and highest", "out")
        review = asked.until("Enter writes the study")
        assert "died ~ age + sex + stage  (without patient_id, note, lactate)" in review
        os.write(asked.mine, b"\n")
        asked.until("next: fedvi check")
    study = tomllib.loads((tmp_path / "study" / "study.toml").read_text())
    assert study["model"]["formula"] == "died ~ age + sex + stage"
    assert "lactate" not in study["data"]["schema"]


def test_a_column_of_a_formula_that_was_given_is_not_left_out(tmp_path: Path) -> None:
    given = ["--kind", "logistic", "--clients", "a,b", "--protection", "none", "--name", "trial"]
    given += ["--prior-scale", "1"]
    given += ["--formula", "died ~ age", "--column", "died=binary", "--server", "example.org:7443"]
    with terminal(tmp_path / "study", *given) as asked:
        asked.say("A site's file on this machine", "")
        asked.say("Are cells of covariates missing", "")
        asked.say("age: what it may hold", "out")
        said = asked.say("age: what it may hold", "number")
        assert "age stands in the formula as you gave it (go back to the formula" in said
        asked.say("age: lowest and highest", "out")
        assert "age stands in the formula" in asked.say("age: lowest and highest", "18..100")
        asked.say("age: unit of its coefficient", "")
        asked.say("Enter writes the study", "")
        asked.until("next: fedvi check")


def test_without_a_flag_a_file_is_asked_for_and_so_are_rules_of_missing_cells(
    tmp_path: Path, file: Path
) -> None:
    given = ["--kind", "logistic", "--clients", "a,b", "--protection", "none", "--name", "trial"]
    given += ["--server", "example.org:7443"]
    with terminal(tmp_path / "study", *given) as asked:
        asked.say("A site's file on this machine", "~nosuchuser/x.csv")
        said = asked.say("A site's file on this machine", tmp_path / "nowhere.csv")
        assert "'~nosuchuser/x.csv', and this machine knows no such user" in said
        said = asked.say("A site's file on this machine", file)
        assert "nowhere.csv cannot be read" in said
        said = asked.say("to suggest types and levels", "no")
        assert "columns, from the first line of" in said
        asked.say("(? lists the columns)", "died ~ age + sex")
        asked.say("Are cells of covariates missing at any site", "yes")
        asked.say("died: what it may hold", "")
        asked.say("age: what it may hold", "18..100")
        asked.say("age: unit of its coefficient", "")
        # One answer is changed, and the file is neither read nor shown again.
        asked.say("age: numbers that mean missing, such as 999,-9 (no: none do) [no]", "back")
        asked.say("age: unit of its coefficient", "5 from 60")
        asked.say("age: numbers that mean missing", "yes")
        said = asked.say("age: numbers that mean missing", "999")
        assert "Error: 'yes' does not say which" in said
        asked.say("age: what a missing cell is (also 999)", "impute 50")
        asked.say("sex: what it may hold", "binary:m/f")
        asked.say("sex: what a missing cell is. drop, indicator, impute VALUE [drop]", "indicator")
        asked.say("Prior sd of a coefficient, for one unit of its column (age per 5)", "1e7")
        said = asked.say("Prior sd of a coefficient", "0.5")
        assert "Error: '1e7' is no number from 1e-06 to 1e+06 (such as 1," in said
        said = asked.say("Enter writes the study", "")
        assert "that says odds ratios of 0.38 to 2.7 (95 %) for one unit" in said
        asked.until("next: fedvi check")
    assert asked.printed.count("columns, from the first line of") == 1
    study = tomllib.loads((tmp_path / "study" / "study.toml").read_text())
    assert study["prior"] == {"scale": 0.5, "intercept_scale": 2.5}
    assert study["clients"][0]["data"] == "../a.csv"  # beside the file
    assert study["data"]["schema"]["age"] == {
        "type": "number",
        "bounds": [18, 100],
        "center": 60,
        "scale": 5,
        "missing": {"impute": 50},
        "missing_values": [999],
    }
    assert study["data"]["schema"]["sex"]["missing"] == "indicator"


def test_an_error_of_an_answer_names_no_flag(tmp_path: Path, file: Path) -> None:
    (tmp_path / "nameless.csv").write_text("41,m\n42,f\n")
    wrong: dict[str, tuple[object, str]] = {
        "Name of the study": ("my study", "'my study' is no name"),
        "What is inferred": ("logistc", "'logistc' is no kind of model, expected a built-in one"),
        "Sites": ("north,North", "the name 'north' stands twice"),
        "A site's file": (tmp_path / "nameless.csv", "nameless.csv does not begin with the names"),
        "to suggest types and levels": ("perhaps", "'perhaps' is none of yes, no"),
        "Formula": ("dead", "'dead' is no column of the file"),
        "Promise": ("privacy", "'privacy' is none of dp, none"),
        "ε over": ("0", "'0' is no number above 0"),
        "Unit (record": ("person", "'person' is none of record, patient"),
        "Neighbouring relation": ("swap", "'swap' is none of substitute, add_remove"),
        "at two sites": ("perhaps", "'perhaps' is none of yes, no"),
        "bound on the records": ("many", "'many' is no whole number above 0"),
        "δ, far below": ("1", "'1' is no number above 0 and below 0.5"),
        "Are cells": ("perhaps", "'perhaps' is none of yes, no"),
        "died: what": ("bool", "the type is 'bool', expected one of binary"),
        "age: what": ("18..x", "the type is '18..x', expected one of binary"),
        "age: lowest": ("18..x", "'18..x' is no range, expected LOW..HIGH, two numbers (such as"),
        "age: unit": ("often", "'often' is no unit, expected STEP from START"),
        "age: numbers": ("yes", "'yes' does not say which"),
        "age: what a missing cell is": ("impute x", "'impute x' is no rule, expected drop"),
        "Prior sd": ("none", "'none' is no number from 1e-06 to 1e+06"),
        "reach the server": ("example.org", "'example.org' is no HOST:PORT"),
    }
    right = {
        "Sites": "north,south",
        "A site's file": file,
        "to suggest types and levels": "no",
        "Formula": "died ~ age",
        "bound on the records": "900",
        "Are cells": "yes",
        "age: what": "number",
        "age: lowest": "18..100",
        "age: what a missing cell is": "drop",
    }
    with terminal(tmp_path / "study") as asked:
        for question, (answer, said) in wrong.items():
            asked.say(question, answer)
            told = asked.say(question, right.get(question, ""))
            error = next(line for line in told.splitlines() if line.startswith("Error: "))
            assert said in error
            # Names of columns are the one thing that a flag alone can give, where one begins again.
            error = error.replace("begin again with `fedvi init --columns", "")
            assert not re.search("(?<![a-z])--[a-z]", error), error
            assert "stated in the file" not in error
        asked.say("Enter writes the study", "")
        asked.until("next: fedvi check")


def test_the_prior_is_asked_for_with_the_unit_of_each_number(tmp_path: Path) -> None:
    """Of a response nothing is said: it has no coefficient."""
    given = ["--kind", "linear", "--clients", "a,b", "--protection", "none", "--name", "trial"]
    given += ["--formula", "los ~ age + bmi", "--column", "los=number:0..90"]
    given += ["--column", "age=number:18..100", "--column", "bmi=number:10..60"]
    given += ["--per", "bmi=5 from 25", "--server", "example.org:7443"]
    with terminal(tmp_path / "study", *given) as asked:
        asked.say("A site's file on this machine", "")
        asked.say("Are cells of covariates missing", "")
        asked.say("age: unit of its coefficient", "")
        asked.say(
            "Prior sd of a coefficient, for one unit of its column (age per 41, bmi per 5)", ""
        )
        assert "STATE ME" not in asked.until("Enter writes the study")


def test_codes_of_levels_get_words_for_tables(tmp_path: Path) -> None:
    rows = "".join(f"{'acfy'[i % 4]},{i % 5},{'nyu'[i % 3]},{i % 2}\n" for i in range(120))
    file = tmp_path / "north.csv"
    file.write_text("odor,ring,bruised,died\n" + rows)
    with terminal(tmp_path / "study", "--from", file, *SETTLED) as asked:
        asked.say("to suggest types and levels", "")
        asked.say("Are cells of covariates missing", "yes")
        asked.say("odor: what it may hold", "")
        asked.say("odor: words for its levels a, c, f, y, in this order", "?")
        said = asked.say("odor: words for its levels", "almond,sharp")
        assert "tables and reports have the words" in said
        said = asked.say("odor: words for its levels", "almond,sharp,foul,foul")
        assert (
            "Error: 'almond,sharp' is no list of 4 words, expected one for each of a, c, f, y"
            in said
        )
        asked.say("odor: what a missing cell is", "impute y")  # by its code
        # Said at once, with one level that no cell is; words are no cells of the file.
        asked.say(
            "ring: 5 different whole numbers", "level:0=none,1=one,2=two,3=more,4=more,5=more"
        )
        assert "no cell of the file is 5. If" in asked.say("ring: what a missing cell is", "")
        asked.say("bruised: what it may hold", "")
        asked.say("bruised: words for its levels n, u, y", "none")
        asked.say("bruised: what a missing cell is", "")
        asked.say("Enter writes the study", "")
        asked.until("next: fedvi check")
    schema = tomllib.loads((tmp_path / "study" / "study.toml").read_text())["data"]["schema"]
    assert schema["odor"] == {
        "type": "level",
        "levels": ["almond", "sharp", "foul"],
        "codes": {"a": "almond", "c": "sharp", "f": "foul", "y": "foul"},
        "missing": {"impute": "foul"},
    }
    assert schema["ring"]["levels"] == ["none", "one", "two", "more"]
    assert schema["ring"]["codes"]["4"] == "more"
    assert "codes" not in schema["bruised"]


def test_a_rare_reference_is_told_of_where_the_levels_are_confirmed(tmp_path: Path) -> None:
    bands = ["[0-10)"] * 2 + ["[10-20)"] * 48 + ["[20-30)"] * 50
    rows = "".join(f"{band},{41.5 + i % 37},{i % 2}\n" for i, band in enumerate(bands))
    file = tmp_path / "north.csv"
    file.write_text("band,age,died\n" + rows)
    with terminal(tmp_path / "study", "--from", file, *SETTLED) as asked:
        asked.say("to suggest types and levels", "Y")
        asked.say("Are cells of covariates missing", "n")
        asked.say("band: what it may hold", "")
        asked.until("few records of this file have [0-10)")
        asked.say("age: what it may hold", "back")
        asked.say("band: what it may hold", "level:[0-10),[10-20),[20-30),[90-100)")
        said = asked.say("age: what it may hold", "back").splitlines()
        assert ["no cell" in line or "few records" in line for line in said].count(True) == 2
        asked.say("band: what it may hold", "level:[10-20),[0-10),[20-30)")
        assert "few records" not in asked.say("age: what it may hold", "")
        asked.say("age: lowest and highest", "?")
        assert "nearest bound" in asked.say("age: lowest and highest", "number:18..100")
        asked.say("age: unit of its coefficient", "")
        asked.say("Enter writes the study", "")
        asked.until("next: fedvi check")
    schema = tomllib.loads((tmp_path / "study" / "study.toml").read_text())["data"]["schema"]
    assert schema["band"]["levels"][0] == "[10-20)"
    assert schema["age"]["bounds"] == [18, 100]


def test_lines_that_cannot_be_read_are_not_cells_of_another_level(tmp_path: Path) -> None:
    path = tmp_path / "torn.csv"
    lines = (f"{n % 2},{['I', 'II', 'III'][n % 3]}" + ",,7" * (n % 4 == 0) for n in range(60))
    path.write_text("\n".join(["died,stage", *lines, ""]))
    with terminal(tmp_path / "study", "--from", path, *SETTLED) as asked:
        asked.say("to suggest types and levels", "")
        asked.say("Are cells of covariates missing", "")
        asked.say("stage: what it may hold", "level:I,II,III")
        assert "did not declare" not in asked.until("Enter writes the study")
