"""Claims about formats: one table gives the same records to the last bit, whatever file it comes in."""

import csv
import gzip
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedvi.data import delimited, tables
from fedvi.data.cells import Cells, Codes, Numbers, Wanted, as_texts
from fedvi.data.load import prepare_chunk, prepared
from fedvi.data.schema import parse_schema
from fedvi.data.source import ArraySource, concatenate
from fedvi.errors import ConfigError, DataError
from tests.tables import read_table

RAW: dict[str, dict[str, Any]] = {
    "age": {
        "type": "number",
        "bounds": [18, 100],
        "center": 50,
        "scale": 10,
        "missing_values": ["", -9],
    },
    "dose": {"type": "number", "bounds": [0, 5], "outside": "drop", "missing": "indicator"},
    "visits": {"type": "count", "bounds": [0, 20], "missing": {"impute": 1}},
    "stage": {"type": "level", "levels": ["one", "two"], "codes": {"1": "one", "2": "two"}},
    "site": {"type": "level", "levels": ["left", "right"], "missing": {"impute": "left"}},
    "sick": {"type": "binary"},
}
SCHEMA = parse_schema(RAW, private=True)
TEXT = "site"

numbers = st.one_of(
    st.none(),
    st.sampled_from(
        [-9.0, -0.0, 18.0, 100.0, 1.0, 2.0, 0.1, 2.5, float("inf"), float("-inf"), 1e300]
    ),
    st.floats(-10, 150, allow_nan=False),
    st.integers(-3, 25).map(float),
)
SOUND = {"age": 61.0, "dose": 0.5, "visits": 3.0, "stage": 2.0, "site": "left", "sick": 1.0}
texts = st.sampled_from([None, "left", "right", " right ", "up", "NA", "1"])
# One or two odd cells: of a record with more of them hardly one would count, and all would be zero.
odd = st.sampled_from(list(RAW)).flatmap(
    lambda name: st.tuples(st.just(name), texts if name == TEXT else numbers)
)
records = st.lists(odd, max_size=2).map(lambda cells: SOUND | dict(cells))


def written(folder: Path, table: list[dict[str, Any]], kind: str) -> Path:
    path = folder / f"north{kind}"
    columns = {name: [record[name] for record in table] for name in RAW}
    if kind in (".csv", ".csv.gz", ".tsv"):
        opened = gzip.open if kind.endswith(".gz") else open
        with opened(path, "wt", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="\t" if kind == ".tsv" else ",")
            writer.writerow(columns)
            for record in table:
                writer.writerow(
                    ["" if cell is None else cell if isinstance(cell, str) else repr(cell)
                     for cell in record.values()]
                )  # fmt: skip
    elif kind == ".parquet":
        found = pa.table(
            {
                name: pa.array(cells, pa.string() if name == TEXT else pa.float64())
                for name, cells in columns.items()
            }
        )
        pq.write_table(found, path, row_group_size=3)
    else:
        arrays = {
            name: np.array([cell or "" for cell in cells], "U8")
            if name == TEXT
            else np.array([np.nan if cell is None else cell for cell in cells], float)
            for name, cells in columns.items()
        }
        if kind == ".npz":
            np.savez(path, allow_pickle=False, **arrays)
        else:
            whole = np.zeros(len(table), [(name, array.dtype) for name, array in arrays.items()])
            for name, array in arrays.items():
                whole[name] = array
            np.save(path, whole)
    return path


def read(
    path: Path, rows: int = 1000, *, private: bool = True, schema: Any = SCHEMA
) -> ArraySource:
    wanted = Wanted(tuple(column.column for column in schema.values()), private=private, rows=rows)
    found = prepared(
        tables.chunks(path, wanted), schema, list(schema), None, private=private, where="north"
    )
    return concatenate(list(found))


def assert_same(one: ArraySource, other: ArraySource) -> None:
    assert list(one.records) == list(other.records)
    assert one.valid.tobytes() == other.valid.tobytes()
    for name, array in one.records.items():
        assert array.dtype == other.records[name].dtype
        assert array.tobytes() == other.records[name].tobytes(), name


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=st.lists(records, max_size=12), rows=st.integers(1, 13))
def test_one_table_gives_the_same_bits_in_every_format_and_in_chunks_of_any_length(
    tmp_path: Path, table: list[dict[str, Any]], rows: int
) -> None:
    plain = read(written(tmp_path, table, ".csv"))
    for kind in (".csv", ".csv.gz", ".tsv", ".parquet", ".npz", ".npy"):
        assert_same(read(written(tmp_path, table, kind), rows), plain)


EDGES = [
    *(
        -9.0,
        -0.0,
        0.0,
        0.1,
        0.5,
        1.0,
        2.0,
        2.5,
        5.0,
        17.9,
        18.0,
        100.0,
        100.1,
        1e22,
        1e300,
        -1e300,
        5e-324,
    ),
    *(float("inf"), float("-inf"), float(2**53 + 2)),
]
KINDS: dict[str, dict[str, Any]] = {
    **RAW,
    "imputed": {"type": "number", "bounds": [0.1, 18], "missing": {"impute": 0.3}, "center": 0.1},
    "dropped": {"type": "count", "bounds": [0, 5], "outside": "drop", "missing_values": [2]},
    "coded": {"type": "binary", "true": [0.1, 18], "false": [1e22], "missing": "indicator"},
}


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=20)
@given(more=st.lists(st.floats(allow_nan=False), max_size=10))
def test_a_number_is_judged_as_its_digits_are(name: str, more: list[float]) -> None:
    schema = parse_schema({name: KINDS[name]}, private=True)
    values = np.array(EDGES + more)

    def judged(cells: Cells) -> ArraySource:
        return prepare_chunk({name: cells}, schema, [name], private=True, where="north")

    assert_same(judged(Numbers(values)), judged([repr(value) for value in values.tolist()]))
    missing = judged(Numbers(np.array([np.nan]))), judged(Codes(np.array([-1]), ()))
    assert_same(*missing)
    if name not in ("stage", "site", "sick", "coded"):  # levels of texts may be called nan
        assert_same(missing[0], judged(["nan"]))


def test_types_of_parquet_mean_what_their_cells_say(tmp_path: Path) -> None:
    path, kind = tmp_path / "north.parquet", pa.decimal128(5, 2)
    table = pa.table(
        {
            "age": pa.array([Decimal("61.10"), Decimal("18.00"), Decimal("-9.00"), None], kind),
            "dose": pa.array([0.5, None, 1.0, 1.0], pa.float32()),
            "visits": pa.array([3, None, 20, 1], pa.int8()),
            "stage": pa.array([1, 2, 2, 1], pa.uint64()).dictionary_encode(),
            "site": pa.array(["right", None, "left", "left"]).dictionary_encode(),
            "sick": pa.array([True, False, True, True]),
        }
    )
    pq.write_table(table, path)
    text = tmp_path / "north.csv"
    text.write_text(
        "age,dose,visits,stage,site,sick\n61.10,0.5,3,1,right,1\n18,,,2,,0\n"
        "-9.00,1,20,2,left,1\n,1,1,1,left,1\n"
    )
    assert_same(read(path, 2), read(text))
    found = read(path)
    assert found.valid.tolist() == [True, True, False, False]
    assert found.records["dose_missing"].tolist() == [0.0, 1.0, 0.0, 0.0]
    assert found.records["visits"].tolist() == [3.0, 1.0, 0.0, 0.0]
    assert found.records["sick"].tolist() == [1.0, 0.0, 0.0, 0.0]


def test_a_column_without_any_value_is_missing_and_refuses_nobody(tmp_path: Path) -> None:
    path = tmp_path / "north.parquet"
    columns = {name: pa.nulls(2) for name in RAW}
    pq.write_table(pa.table(columns), path)
    assert read(path).valid.tolist() == [False, False]


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize(
    "kind", [pa.timestamp("s"), pa.date32(), pa.list_(pa.int8()), pa.binary(), pa.duration("s")]
)
def test_what_is_neither_number_nor_text_is_refused_by_name(
    tmp_path: Path, kind: Any, private: bool
) -> None:
    path = tmp_path / "north.parquet"
    pq.write_table(pa.table({"age": pa.nulls(2, kind)}), path)
    schema = parse_schema({"age": RAW["age"]}, private=private)
    with pytest.raises(DataError, match=r"column `age` holds .*, expected numbers or text"):
        read(path, private=private, schema=schema)


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    folder = tmp_path / "north"
    folder.mkdir()
    for name, age in (("b", 70.0), ("a", 60.0), ("_c", 10.0)):
        pq.write_table(pa.table({"age": [age]}), folder / f"{name}.parquet")
    schema = parse_schema({"age": RAW["age"]}, private=True)
    assert read(folder, schema=schema).records["age"].tolist() == [1.0, 2.0]
    assert tables.known_rows(folder) == 2
    with pytest.raises(DataError, match=r"no file in this folder ends in \.parquet"):
        read(tmp_path, schema=schema)


@pytest.mark.parametrize("private", [True, False])
def test_a_file_that_is_cut_off_or_overwritten_shows_none_of_its_bytes(
    tmp_path: Path, private: bool
) -> None:
    schema = parse_schema({"site": RAW["site"]}, private=private)
    path = tmp_path / "north.parquet"
    pq.write_table(
        pa.table({"site": ["secretly"] * 5000}), path, use_dictionary=False, compression="none"
    )
    sound = path.read_bytes()
    broken = bytearray(sound)
    broken[40:4000] = b"\xff" * 3960
    for content in (sound[: len(sound) // 2], b"secretly", b"", bytes(broken)):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"no whole Parquet file") as caught:
            read(path, private=private, schema=schema)
        chain: list[BaseException | None] = [caught.value]
        while chain[-1] is not None:
            chain.append(chain[-1].__cause__ or chain[-1].__context__)
        assert "secretly" not in "".join(map(str, chain))
    for kind in (".npz", ".npy"):
        path = tmp_path / f"north{kind}"
        path.write_bytes(sound)
        with pytest.raises(DataError, match=r"that NumPy can read"):
            read(path, private=private, schema=schema)
    path = tmp_path / "north.csv.gz"
    path.write_bytes(gzip.compress(b"site\n" + b"left\n" * 500)[:-9])
    with pytest.raises(DataError, match=r"no whole gzip file"):
        read(path, private=private, schema=schema)


@pytest.mark.parametrize("kind", [".csv", ".parquet", ".npz", ".npy"])
def test_a_missing_file_or_column_is_named_in_every_format(tmp_path: Path, kind: str) -> None:
    schema = parse_schema({"age": RAW["age"], "agee": RAW["age"]}, private=True)
    with pytest.raises(DataError, match=r"cannot be read"):
        read(tmp_path / f"absent{kind}", schema=schema)
    path = written(tmp_path, [dict.fromkeys(RAW, None)], kind)
    with pytest.raises(DataError, match=r"no column `agee`") as caught:
        read(path, schema=schema)
    assert "age" in caught.value.hint


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("kind", [".csv", ".csv.gz", ".npz"])
def test_a_text_that_is_no_utf_8_is_one_in_latin_1_and_refuses_nobody(
    tmp_path: Path, kind: str, private: bool
) -> None:
    texts = [
        "männlich".encode(),
        "männlich".encode("latin-1"),
        "ma\u0308nnlich".encode(),
        b"\x81\xff",
    ]
    raw = {"sex": {"type": "level", "levels": ["weiblich", "männlich"], "outside": "drop"}}
    path = tmp_path / f"north{kind}"
    if kind == ".npz":
        np.savez(path, allow_pickle=False, sex=np.array(texts))
    else:
        text = b"\n".join([b"sex", *texts])
        path.write_bytes(gzip.compress(text) if kind == ".csv.gz" else text)
    found = read(path, schema=parse_schema(raw, private=private), private=private)
    assert found.valid.tolist() == [True, True, True, False]
    assert found.records["sex"][:3].tolist() == [1, 1, 1]


@pytest.mark.parametrize("declared", ["größe", "gro\u0308ße"])
@pytest.mark.parametrize(
    "written", ["größe".encode(), "gro\u0308ße".encode(), "größe".encode("latin-1")]
)
def test_a_columns_name_is_found_however_its_letters_are_written(
    tmp_path: Path, written: bytes, declared: str
) -> None:
    path = tmp_path / "north.csv"
    path.write_bytes(written + b"\n170\n")
    raw = {"height": {"type": "number", "bounds": [100, 220], "column": declared}}
    schema = parse_schema(raw, private=True)
    assert read(path, schema=schema).valid.tolist() == [True]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_a_line_too_long_for_memory_counts_as_zero_and_the_rest_are_as_they_are(
    end: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delimited, "_LONGEST", 100)
    lines = [
        b"\xef\xbb\xbfa,b",
        b"1,x",
        b"2," + b"y" * 1000,
        b"3,z",
        b"",
        b"4," + b"v" * 90,
        b"5,w",
    ]
    for last in (end, b""):
        (tmp_path / "t.csv").write_bytes(end.join(lines) + last)
        # Pieces of every length: line ends and long lines are cut at every place.
        for piece in (1, 2, 7, 64, 1 << 20):
            monkeypatch.setattr(delimited, "_PIECE", piece)
            found = read_table(tmp_path / "t.csv", names=["a"], private=True)["a"]
            assert found == ["1", None, "3", "4", "5"]


@pytest.mark.parametrize("separator", ["", ", ", '"', "\n"])
@pytest.mark.parametrize("private", [True, False])
def test_what_cannot_separate_cells_is_refused(
    tmp_path: Path, separator: str, private: bool
) -> None:
    (tmp_path / "north.csv").write_text("age\n60\n")
    wanted = Wanted(("age",), separator=separator, private=private)
    with pytest.raises(ConfigError, match=r"separator is .*, expected one character"):
        list(tables.chunks(tmp_path / "north.csv", wanted))


def test_a_matrix_takes_its_names_from_the_study(tmp_path: Path) -> None:
    path = tmp_path / "north.npy"
    np.save(path, np.array([[60.0, 1.0], [70.0, 0.0]]))
    wanted = Wanted(("sick", "age"), columns=["age", "sick"], rows=1)
    found = list(tables.chunks(path, wanted))
    assert [chunk["age"].values.tolist() for chunk in found] == [[60.0], [70.0]]
    with pytest.raises(DataError, match=r"as many numbers a record as `data.columns` has names"):
        list(tables.chunks(path, wanted._replace(columns=["age", "sick", "dose"])))
    with pytest.raises(DataError, match=r"an array without named fields"):
        list(tables.chunks(path, wanted._replace(columns=None)))


def test_the_refused_record_is_counted_over_all_chunks_and_the_same_in_every_format(
    tmp_path: Path,
) -> None:
    schema = parse_schema(
        {"age": {"type": "number", "bounds": [18, 100], "outside": "refuse"}}, private=False
    )
    ages = [20.0] * 7 + [130.0, 140.0]
    pq.write_table(pa.table({"age": ages}), tmp_path / "north.parquet")
    np.savez(tmp_path / "north.npz", allow_pickle=False, age=np.array(ages))
    (tmp_path / "north.csv").write_text("age\n" + "\n".join(map(repr, ages)) + "\n")
    for kind in (".parquet", ".npz", ".csv"):
        with pytest.raises(
            DataError, match=r"^north: record 8: column `age` holds '130\.0', outside"
        ):
            read(tmp_path / f"north{kind}", 3, private=False, schema=schema)


def test_identities_are_the_same_text_in_every_format(tmp_path: Path) -> None:
    # 2⁵³ + 1 and 2⁵³ are one float64, and two patients.
    ids = [2**53, 2**53 + 1, 17]
    pq.write_table(pa.table({"id": ids}), tmp_path / "a.parquet")
    np.savez(tmp_path / "a.npz", allow_pickle=False, id=np.array(ids))
    (tmp_path / "a.csv").write_text("id\n" + "\n".join(map(str, ids)) + "\n")
    wanted = Wanted(("id",), as_text=frozenset({"id"}))
    for kind in (".csv", ".parquet", ".npz"):
        (table,) = tables.chunks(tmp_path / f"a{kind}", wanted)
        assert as_texts(table["id"]) == [str(value) for value in ids]


def test_without_the_extra_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    for name in ("pyarrow", "pyarrow.compute", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"the extra `parquet`") as caught:
        read(tmp_path / "north.parquet")
    assert caught.value.hint == "pip install 'fedvi[parquet]'"


@pytest.mark.parametrize(
    ("true", "false"),
    [(["1"], ["0"]), (["True"], ["False"]), (["TRUE", "yes"], ["FALSE", "no"]), (["y"], ["n"]),
     (["ja"], ["nein"]), (["T"], ["F"]), (["no"], ["yes"])],
)  # fmt: skip
@pytest.mark.parametrize("suffix", [".parquet", ".npz"])
def test_true_and_false_of_a_file_are_as_the_schema_spells_them(
    true: list[str], false: list[str], suffix: str, tmp_path: Path
) -> None:
    cells = [True, False, True, True]
    path = tmp_path / f"north{suffix}"
    if suffix == ".npz":
        np.savez(path, died=np.array(cells))
    else:
        pq.write_table(pa.table({"died": pa.array([*cells, None])}), path)
    levels = {"type": "level", "levels": [*false[:1], *true[:1]]}
    schema = parse_schema(
        {"died": {"type": "binary", "true": true, "false": false}, "as_level": levels | {"column": "died"}},
        private=True,
    )  # fmt: skip
    (table,) = tables.chunks(path, Wanted(("died",), private=True))
    found = prepare_chunk(table, schema, schema, private=True, where="north")
    # Where a study calls "no" true, a file's false is true.
    expected = [float(cell is (true != ["no"])) for cell in cells]
    assert found.records["died"].tolist()[:4] == expected
    assert found.records["as_level"].tolist()[:4] == expected
    assert found.valid.tolist() == [True] * 4 + [False] * (len(found.valid) - 4)


def test_true_and_false_of_a_file_that_no_word_of_the_schema_means_do_not_count(
    tmp_path: Path,
) -> None:
    path = tmp_path / "north.npz"
    np.savez(path, died=np.array([True, False]))
    raw = {"died": {"type": "binary", "true": ["dead"], "false": ["alive"]}}
    (table,) = tables.chunks(path, Wanted(("died",), private=True))
    found = prepare_chunk(
        table, parse_schema(raw, private=True), ["died"], private=True, where="north"
    )
    assert not found.valid.any()


COMPOSED, MARKED = "gr\u00f6\u00dfe", "gro\u0308\u00dfe"


@pytest.mark.parametrize("kind", [".csv", ".parquet", ".npz", ".npy"])
@pytest.mark.parametrize("held", [COMPOSED, MARKED])
@pytest.mark.parametrize("declared", [COMPOSED, MARKED])
@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
def test_a_columns_name_is_the_same_in_both_forms_of_its_letters(tmp_path, kind, held, declared):
    path = tmp_path / f"a{kind}"
    if kind == ".csv":
        path.write_text(f"{held}\n5\n")
    elif kind == ".parquet":
        pq.write_table(pa.table({held: [5.0]}), path)
    elif kind == ".npz":
        np.savez(path, **{held: np.array([5.0])})
    else:
        np.save(path, np.array([(5.0,)], [(held, "f8")]))
    (table,) = tables.chunks(path, Wanted((declared,), private=True))
    assert [float(text) for text in as_texts(table[declared])] == [5.0]
    raw = {"size": {"type": "number", "bounds": [0, 10], "column": declared}}
    schema = parse_schema(raw, private=True)
    wanted = Wanted((schema["size"].column,), private=True)
    (table,) = tables.chunks(path, wanted)
    assert prepare_chunk(table, schema, ["size"], private=True, where="a").valid.all()


@pytest.mark.parametrize("declared", [COMPOSED, MARKED])
def test_declared_names_are_the_same_in_both_forms(tmp_path, declared):
    (tmp_path / "a.csv").write_text("5\n")
    wanted = Wanted((MARKED,), columns=(declared,), private=True)
    assert list(tables.chunks(tmp_path / "a.csv", wanted)) == [{MARKED: ["5"]}]


@pytest.mark.parametrize("kind", [".parquet", ".npz"])
def test_two_columns_that_differ_in_the_form_of_their_letters_are_refused(tmp_path, kind):
    path, both = tmp_path / f"a{kind}", {COMPOSED: np.ones(1), MARKED: np.zeros(1)}
    if kind == ".npz":
        np.savez(path, **both)
    else:
        pq.write_table(pa.table(both), path)
    with pytest.raises(DataError, match="two columns are called"):
        list(tables.chunks(path, Wanted((COMPOSED,), private=True)))


@pytest.mark.parametrize("kind", [".csv", ".parquet", ".npz"])
def test_an_apostrophe_before_a_formula_counts_for_nothing_in_any_format(tmp_path, kind):
    raw = {
        "code": {"type": "level", "levels": ["a", "b"], "codes": {"'=x": "a", "-5a": "b"}},
        "dose": {"type": "number", "bounds": [-10, 10], "scale": 1},
    }
    schema = parse_schema(raw, private=True)
    cells = {"code": ["'=x", "=x", "''=x", "'-5a"], "dose": ["-5", "'-5", "''-5", "5"]}
    path = tmp_path / f"a{kind}"
    if kind == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([cells, *zip(*cells.values(), strict=True)])
    elif kind == ".npz":
        np.savez(path, **{name: np.array(column) for name, column in cells.items()})
    else:
        pq.write_table(pa.table(cells), path)
    (table,) = tables.chunks(path, Wanted(tuple(cells), private=True))
    found = prepare_chunk(table, schema, list(raw), private=True, where="a")
    assert found.valid.all()
    assert found.records["code"].tolist() == [0, 0, 0, 1]
    assert len(set(found.records["dose"][:3].tolist())) == 1


def test_codes_that_an_apostrophe_alone_tells_apart_are_refused():
    raw = {"code": {"type": "level", "levels": ["=x", "'=x"]}}
    with pytest.raises(ConfigError, match="is declared twice"):
        parse_schema(raw, private=True)
