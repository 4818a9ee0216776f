"""Claims about `fedvi data`: from a table to a study that runs, on real tables, by the real command."""

import csv
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from fedvi.data.splits import skewed
from tests.commands import invoked as fedvi

HEART = "heart-disease/study-descent.toml"
STUDY = """
[study]
name = "trauma-curve"
seed = 7
[model]
kind = "logistic"
formula = "{formula}"
[prior]
scale = 2.5
[solver]
kind = "glm"
[schedule]
kind = "sequential"
rounds = {rounds}
[privacy]
protection = "none"
"""
COLUMNS = """
[data.schema]
mortality = { type = "binary" }
sex = { type = "binary" }
age = { type = "number", bounds = [-4, 4] }
ISS = { type = "number", bounds = [-4, 4] }
GCS = { type = "number", bounds = [-4, 4] }
"""


def done(*arguments: object) -> Result:
    result = fedvi(*arguments)
    assert result.exit_code == 0, result.stderr
    return result


def refused(*arguments: object) -> str:
    result = fedvi(*arguments)
    assert result.exit_code == 2, result.output
    return result.stderr


@pytest.fixture(scope="module")
def trauma(examples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The three hospitals in one table, which says where a patient was."""
    path = tmp_path_factory.mktemp("trauma") / "all.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        for number in (1, 2, 3):
            with (examples / f"trauma/data/hospital-{number}.csv").open(encoding="utf-8") as shard:
                header, *rows = csv.reader(shard)
            if number == 1:
                writer.writerow(header)
            writer.writerows([f"hospital {number}", *row[1:]] for row in rows)
    return path


def rows_of(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.reader(file))


@pytest.fixture(scope="module")
def shards(trauma: Path) -> tuple[Path, list[dict[str, Any]]]:
    """The folder of `split --by hospital`, and the [[clients]] tables that it printed."""
    folder = trauma.parent / "shards"
    printed = done("data", "split", trauma, "--by", "hospital", "--out", folder).stdout
    return folder, tomllib.loads(printed)["clients"]


def test_a_split_by_a_column_gives_every_record_to_its_client(
    trauma: Path, shards: tuple[Path, list[dict[str, Any]]]
) -> None:
    folder, clients = shards
    assert [client["name"] for client in clients] == ["hospital-1", "hospital-2", "hospital-3"]
    header, *rows = rows_of(trauma)
    kept = [rows_of(Path(client["data"])) for client in clients]
    assert all(table[0] == header for table in kept)
    assert [len(table) - 1 for table in kept] == [49, 106, 216]
    # The file has the hospitals one after another.
    assert [row for table in kept for row in table[1:]] == rows
    assert sorted(path.name for path in folder.iterdir()) == [
        f"hospital-{number}.csv" for number in (1, 2, 3)
    ]


@pytest.mark.nightly
def test_a_table_becomes_a_study_with_a_curve_and_the_federation_finds_the_pooled_one(
    trauma: Path, shards: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    formula = (
        "mortality ~ sex + bs(ISS, knots=[0], lower_bound=-4, upper_bound=4) + GCS*age + I(age**2)"
    )
    tables = "".join(
        f'[[clients]]\nname = "{client["name"]}"\ndata = {json.dumps(client["data"])}\n'
        for client in shards[1]
    )
    study = tmp_path / "study.toml"
    study.write_text(STUDY.format(formula=formula, rounds=4) + COLUMNS + tables)
    found = json.loads(done("simulate", study, "--quiet", "--pooled", "--json").stdout)
    rows = {row["name"]: row for row in found["coefficients"]}
    splines = [f"bs(ISS)[{i}]" for i in range(1, 5)]
    assert list(rows) == ["(Intercept)", "sex", *splines, "GCS", "age", "I(age**2)", "GCS:age"]
    for row in rows.values():
        # Four passes of a schedule that reaches the pooled answer: see the README.
        assert row["mean"] == pytest.approx(row["pooled_mean"], abs=1e-3)
        assert row["sd"] == pytest.approx(row["pooled_sd"], rel=1e-3)
    # Who is hurt worse dies more often: the curve is that of something.
    assert rows["bs(ISS)[3]"]["mean"] > 0.0


def test_a_plan_shows_curves_readably_and_what_is_fitted_is_refused(
    examples: Path, tmp_path: Path
) -> None:
    text = (examples / "heart-disease/study-nonprivate.toml").read_text()
    old = text[text.index("formula = ") : text.index("[family]")]
    curve = "bs(age, knots=[50, 60], lower_bound=18, upper_bound=100)"
    study = tmp_path / "study.toml"
    study.write_text(text.replace(old, f'formula = "disease ~ {curve}:sex"\n'))
    shown = " ".join(done("check", study).stdout.split())
    assert "D = 6" in shown
    assert "(Intercept), bs(age)[1]:sex, bs(age)[2]:sex" in shown
    study.write_text(text.replace(old, 'formula = "disease ~ bs(age, df=4)"\n'))
    said = refused("check", study)
    assert "knots would be quantiles of the records" in said
    assert "such as bs(age, knots=[45.33, 72.67], lower_bound=18, upper_bound=100)" in said


def test_inspect_holds_a_hospitals_file_against_the_study(examples: Path) -> None:
    found = json.loads(
        done("data", "inspect", examples / HEART, "--as", "budapest", "--json").stdout
    )
    cells = [
        line.split(",")
        for line in (examples / "heart-disease/data/processed.hungarian.data").read_text().split()
    ]
    assert (found["rows"], found["private"]) == (len(cells), True)
    by_name = {column["name"]: column for column in found["columns"]}
    # The sixth column is fbs, the fifth chol, the third cp.
    assert by_name["fbs"]["counts"]["missing"] == sum(row[5] == "?" for row in cells) == 8
    assert by_name["chol"]["counts"]["missing"] == sum(row[4] in ("?", "0") for row in cells)
    assert by_name["cp"]["counts"] == {"fits": len(cells)}
    chol = [float(row[4]) for row in cells if row[4] not in ("?", "0")]
    assert (by_name["chol"]["low"], by_name["chol"]["high"]) == (min(chol), max(chol))
    assert by_name["chol"]["clipped"] == sum(value > 600 for value in chol) > 0
    assert found["counting"] == len(cells)


def test_inspect_says_loudly_that_it_is_private_and_writes_nothing(
    examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (
        (examples / HEART, "--as", "switzerland"),
        (examples / "trauma/data/hospital-1.csv",),
    ):
        text = done("data", "inspect", *arguments).stdout
        assert text.startswith("PRIVATE: computed from records as they are")
        assert "warning" in json.loads(done("data", "inspect", *arguments, "--json").stdout)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_fits_badly_is_described_and_not_refused(
    examples: Path, tmp_path: Path
) -> None:
    """Its exit code tells nothing of the records, so that no script can refuse by it."""
    path = tmp_path / "north.data"
    path.write_text("?,?,?,?,?,?,?,?,?,?,?,?,?,?\n999,x,9,1e9,5,5,5,5,5,5,5,5,5,7\nbroken\n")
    text = done("data", "inspect", examples / HEART, "--data", path).stdout
    assert "3 rows, of which 0 count (0.0 %)" in text
    assert "age: 1 outside the bounds: clipped, such as '999' (1)" in text
    assert "sex: 1 of no declared value: record counts as zero, such as 'x' (1)" in text


def test_a_cell_of_a_number_that_is_none_is_called_so(tmp_path: Path) -> None:
    path = tmp_path / "north.csv"
    path.write_text("lactate,falls,died\n" + "1.5,2,0\n2.5,3,1\n" * 20 + "<0.5,2.5,1\n<0.5,1,x\n")
    text = done("data", "inspect", path).stdout
    assert "lactate: no number, such as '<0.5' (2)" in text
    study = tmp_path / "study.toml"
    study.write_text("""
study.name = "one"
model = { kind = "logistic", formula = "died ~ lactate + falls" }
solver.kind = "glm"
schedule = { kind = "synchronous", rounds = 2 }
privacy.protection = "none"
clients = [{ name = "north" }]
[data.schema]
lactate = { type = "number", bounds = [0, 20] }
falls = { type = "count", bounds = [0, 20] }
died = { type = "binary" }
""")
    text = done("data", "inspect", study, "--data", path).stdout
    assert "lactate: 2 that are no number: refused, such as '<0.5' (2)" in text
    assert "falls: 1 that are no whole number: refused, such as '2.5' (1)" in text
    assert "died: 1 of no declared value: refused, such as 'x' (1)" in text


def test_a_file_of_which_most_records_do_not_count_is_told_on_the_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table
    for name, died in (("north", [True, False] * 100), ("south", ["TRUE", "False"] * 100)):
        pq.write_table(
            table({"died": died, "age": [50.0, 60.0] * 100}), tmp_path / f"{name}.parquet"
        )
    schema = """
[data]
max_records = 400
[data.schema.died]
type = "binary"
true = ["{}"]
false = ["{}"]
[data.schema.age]
type = "number"
bounds = [20, 80]
[[clients]]
name = "north"
data = "north.parquet"
[[clients]]
name = "south"
data = "south.parquet"
"""
    study = tmp_path / "study.toml"
    promise = "epsilon = 1.0\ndelta = 1e-5\nunit = 'record'\nrelation = 'substitute'"
    text = STUDY.format(formula="died ~ age", rounds=1).replace('protection = "none"', promise)
    text = text.replace('"glm"', '"site_release"\nclip_norm = 1.0\nsampler = "full"')
    study.write_text(text + schema.format("True", "False"))
    said = done("simulate", study, "--quiet").stderr
    # A file's own true is "True", so that some records count.
    assert "warning: south: at least one record in a hundred counts as zero" in said
    study.write_text(text + schema.format("t", "b"))
    result = done("simulate", study, "--quiet", "--json")
    lost = (
        "most of all because of the column `died`: cells are none of those that the schema declares"
    )
    assert f"warning: south: no record counts, {lost}" in result.stderr
    assert "south: no record" not in result.stdout
    shown = done("data", "inspect", study, "--as", "south").stdout
    assert f"warning: no record counts, {lost}" in shown
    # A client says it on its own screen, and not in a log that programs collect.
    from fedvi.cli.client import _on_screen
    from fedvi.run import site
    from fedvi.study import build
    from fedvi.study.config import load_study

    assert _on_screen("plain") is None  # no terminal is here
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert _on_screen("json") is None
    assembly = build.assemble(load_study(study))
    site.file_shard(assembly, "south", tmp_path / "south.parquet", tell=_on_screen("plain"))()
    assert f"warning: south: no record counts, {lost}" in capsys.readouterr().err


def test_rows_of_patients_are_counted_against_the_study(examples: Path, tmp_path: Path) -> None:
    text = (examples / HEART).read_text()
    text = text.replace('unit = "record"', 'unit = "patient"')
    text = text.replace(
        "max_records = 400", 'max_records = 2\nunit_column = "slope"\nmax_rows_per_unit = 2'
    )
    study = tmp_path / "study.toml"
    study.write_text(text)
    row = "63,1,1,145,233,1,2,150,0,2.3,{},0,6,0\n"
    (tmp_path / "a.data").write_text("".join(row.format(who) for who in "aaaab?c"))
    shown = done("data", "inspect", study, "--data", tmp_path / "a.data").stdout
    assert "7 rows, of which 4 count" in shown
    assert "3 units in `slope`: 2 with 1, 1 with 4" in shown
    assert "2 rows come after the first 2 of their unit" in shown
    assert "1 rows do not say whose they are" in shown
    assert "more units than the study declares with data.max_records = 2" in shown


def test_skewed_shares_are_those_of_the_experiments(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    labels = np.where(generator.random(800) < 0.25, ">50K", "<=50K")
    path = tmp_path / "adult.csv"
    path.write_text("n,income\n" + "".join(f"{i},{label}\n" for i, label in enumerate(labels)))
    arguments = ("--clients", 4, "--size-skew", 0.75, "--label-skew", 0.5, "--label", "income")
    printed = done(
        "data",
        "split",
        path,
        *arguments,
        "--positive",
        ">50K",
        "--seed",
        3,
        "--out",
        tmp_path / "s",
    )
    assert "for simulations and public data" in printed.stderr
    expected = skewed(np.random.default_rng(3), labels == ">50K", 4, 0.75, 0.5)
    for number, client in enumerate(tomllib.loads(printed.stdout)["clients"]):
        held = [int(row[0]) for row in rows_of(Path(client["data"]))[1:]]
        np.testing.assert_array_equal(held, np.flatnonzero(expected == number))


def test_a_large_public_table_is_described_and_shared_out(shared: Path, tmp_path: Path) -> None:
    path = shared / "data/adult/adult.data.gz"
    names = (
        "age,work,weight,education,years,marital,job,relation,race,sex,gain,loss,hours,country,pay"
    )
    found = json.loads(done("data", "inspect", path, "--columns", names, "--json").stdout)[
        "columns"
    ]
    kinds = {column["name"]: column["kind"] for column in found}
    numbers = {name for name, kind in kinds.items() if kind == "number"}
    assert numbers == {"age", "weight", "years", "gain", "loss", "hours"}
    assert (kinds["sex"], kinds["country"], found[0]["cells"]) == ("binary", "level", 32_561)
    assert {column["name"] for column in found if column["missing"]} == {"work", "job", "country"}
    printed = done(
        "data", "split", path, "--columns", names, "--clients", 10, "--size-skew", 0.75,
        "--label-skew", 0.95, "--label", "pay", "--positive", ">50K", "--out", tmp_path / "s",
    )  # fmt: skip
    shares = [rows_of(Path(client["data"])) for client in tomllib.loads(printed.stdout)["clients"]]
    assert sum(map(len, shares)) == 32_561
    # ⌊(1 − 0.75) · 32,561/10⌋ records; b + (1 − b) · 0.95 of them negative, b = 24,720/32,561.
    assert [len(share) for share in shares[:5]] == [814] * 5
    positive = [sum(row[-1] == ">50K" for row in share) for share in shares[:5]]
    assert positive == [814 - int(814 * (24_720 + 0.95 * 7_841) / 32_561)] * 5


def test_no_patient_stands_at_two_balanced_clients(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    path.write_text("patient;y\n" + "".join(f"p{i % 10};{i}\n" for i in range(60)))
    done(
        "data", "split", path, "--clients", 3, "--balanced", "--together", "patient",
        "--out", tmp_path / "s",
    )  # fmt: skip
    shares = [
        [line.split(";") for line in (tmp_path / f"s/client-{i}.csv").read_text().split()[1:]]
        for i in (1, 2, 3)
    ]
    held = [{patient for patient, _ in share} for share in shares]
    assert sorted(len(patients) for patients in held) == [3, 3, 4]
    assert len(set.union(*held)) == 10
    assert sorted(int(y) for share in shares for _, y in share) == list(range(60))


def test_a_file_without_header_is_named_by_flag_and_split_without_one(
    examples: Path, tmp_path: Path
) -> None:
    columns = ",".join(tomllib.loads((examples / HEART).read_text())["data"]["columns"])
    path = examples / "heart-disease/data/processed.va.data"
    assert "name them in their order: --columns" in refused("data", "inspect", path)
    shown = json.loads(done("data", "inspect", path, "--columns", columns, "--json").stdout)
    assert [column["name"] for column in shown["columns"]] == columns.split(",")
    done(
        "data", "split", path, "--columns", columns, "--clients", 2, "--balanced",
        "--out", tmp_path,
    )  # fmt: skip
    shares = [(tmp_path / f"client-{number}.csv").read_text().split() for number in (1, 2)]
    assert sorted(shares[0] + shares[1]) == sorted(path.read_text().split())
    given = ["--columns", columns, "--response", "num", "--clients", "va,nord", "--yes"]
    done("init", tmp_path / "study", "--from", path, *given)
    drafted = tomllib.loads((tmp_path / "study/study.toml").read_text())
    assert drafted["data"]["columns"] == columns.split(",")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("split", "{t}", "--out", "{o}"), "no way to split given, expected one of --by"),
        (("split", "{t}", "--out", "{o}", "--balanced", "--by", "sex"), "--by and --balanced given"),
        (("split", "{t}", "--out", "{o}", "--balanced"), "--clients is missing beside --balanced"),
        (("split", "{t}", "--out", "{o}", "--by", "sexx"), "did you mean `sex`?"),
        (("split", "{t}", "--out", "{o}", "--by", "sex", "--clients", "5"), "5 clients are to share"),
        (
            ("split", "{t}", "--out", "{o}", "--by", "sex", "--label", "sex"),
            "--label is given beside --by",
        ),
        (
            ("split", "{t}", "--out", "{o}", "--clients", "4", "--size-skew", "0.5", "--label-skew", "1"),
            "--label is missing beside --label-skew",
        ),
        (
            ("split", "{t}", "--out", "{o}", "--clients", "4", "--size-skew", "0.5", "--label-skew",
             "0.1", "--label", "hospital"),
            "no record has '1' in the column `hospital`",
        ),
        (("inspect", "{t}", "--as", "north"), "--as is given beside"),
        (("inspect", "{s}"), "--data is missing, and the study names no file without --as"),
        (("inspect", "{s}", "--as", "north"), "--as north is none of the study's clients"),
        (("inspect", "{s}", "--data", "{t}", "--columns", "a"), "--columns is given beside a study"),
        (("inspect", "{t}", "--separator", "ab"), "--separator is 'ab', expected one character"),
        (("inspect", "{o}/absent.csv"), "cannot be read: No such file or directory"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_in_a_sentence(
    arguments: tuple[str, ...], said: str, trauma: Path, examples: Path, tmp_path: Path
) -> None:
    places = {"t": trauma, "s": examples / HEART, "o": tmp_path / "out"}
    assert said in refused("data", *(argument.format(**places) for argument in arguments))
    assert not (tmp_path / "out").exists()


def test_a_first_line_that_is_a_record_is_not_shared_out_as_names(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("dead,II,north\nalive,I,south\n" * 3)
    options = ["--clients", 2, "--balanced", "--out", tmp_path / "out"]
    said = refused("data", "split", path, *options)
    assert "stand again further down" in said
    assert "--columns age,sex" in said
    assert "dead" not in said
    assert not (tmp_path / "out").exists()
    # Named by flag, all six lines are records.
    done("data", "split", path, "--columns", "died,stage,ward", *options)
    shares = [(tmp_path / f"out/client-{number}.csv").read_text().split() for number in (1, 2)]
    assert sorted(shares[0] + shares[1]) == sorted(path.read_text().split())


@pytest.mark.parametrize("command", ["inspect", "split"])
def test_a_line_of_numbers_between_blanks_is_no_name(command: str, tmp_path: Path) -> None:
    path = tmp_path / "t.data"
    path.write_text("41 1 132.5 -9\n63 0 120 0\n")
    options = ["--clients", 2, "--balanced", "--out", tmp_path / "o"] if command == "split" else []
    said = refused("data", command, path, *options)
    assert "1 of 1 are numbers, with blanks between them" in said
    assert "132.5" not in said


def test_the_entries_of_clients_that_a_split_prints_are_toml(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("site,y\nnorth,1\nsouth,0\n")
    out = tmp_path / "träume 🙂"
    printed = done("data", "split", path, "--by", "site", "--out", out).stdout
    paths = [client["data"] for client in tomllib.loads(printed)["clients"]]
    assert paths == [(out / f"{name}.csv").as_posix() for name in ("north", "south")]


def test_a_shard_that_is_there_is_not_overwritten_and_no_other_is_written(
    trauma: Path, tmp_path: Path
) -> None:
    (tmp_path / "hospital-2.csv").write_text("mine")
    said = refused("data", "split", trauma, "--by", "hospital", "--out", tmp_path)
    assert "hospital-2.csv is there already" in said
    assert [path.name for path in tmp_path.iterdir()] == ["hospital-2.csv"]


@pytest.mark.parametrize("command", ["inspect", "split"])
def test_help_teaches_by_examples(command: str) -> None:
    text = done("data", command, "--help").stdout
    assert text.count(f"fedvi data {command} ") >= 3
