"""Claims about the data and schemas in ``examples/``."""

import csv
import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedvi.data.formula import Design, parse_formula
from fedvi.data.schema import parse_schema
from fedvi.data.source import ArraySource, concatenate
from tests.tables import prepare, read_table

EXAMPLES = Path(__file__).parents[3] / "examples"
HEART = ["heart-disease/study-descent.toml", "heart-disease/study-nonprivate.toml"]
# Records and values of num from 0 to 4, as the README of the UCI files counts them. Budapest's
# processed file has merged 1 to 4 into 1.
HEART_CLIENTS = {
    "cleveland": (303, [164, 55, 36, 35, 13]),
    "budapest": (294, [188, 106, 0, 0, 0]),
    "switzerland": (123, [8, 48, 32, 30, 5]),
    "long-beach": (200, [51, 56, 41, 42, 10]),
}
# As published by UCI, and equal to what FLamby checks (by md5 there).
HEART_SHA256 = {
    "cleveland": "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
    "hungarian": "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
    "switzerland": "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
    "va": "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
}


def load(name: str) -> tuple[dict[str, Any], Design, dict[str, ArraySource]]:
    path = EXAMPLES / name
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    private = raw["privacy"].get("protection") != "none"
    schema = parse_schema(raw["data"]["schema"], private=private)
    design = parse_formula(raw["model"]["formula"], schema)
    sources = {}
    for client in raw["clients"]:
        table = read_table(
            path.parent / client["data"],
            columns=raw["data"].get("columns"),
            separator=raw["data"].get("separator", ","),
            names=[schema[column].column for column in design.columns],
        )
        sources[client["name"]] = prepare(
            table, schema, design, private=private, where=client["name"]
        )
    return raw, design, sources


@pytest.mark.parametrize(("name", "digest"), list(HEART_SHA256.items()))
def test_the_heart_files_are_those_of_uci(name: str, digest: str) -> None:
    path = EXAMPLES / "heart-disease" / "data" / f"processed.{name}.data"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("study", HEART)
def test_the_heart_study_keeps_every_record_and_label(study: str) -> None:
    raw, _, sources = load(study)
    assert list(sources) == list(HEART_CLIENTS)
    for name, source in sources.items():
        count, labels = HEART_CLIENTS[name]
        assert source.size == count <= raw["data"]["max_records"]
        assert source.valid.all()
        assert source.records["y"].sum() == sum(labels[1:])


@pytest.mark.parametrize(("file", "client"), list(zip(HEART_SHA256, HEART_CLIENTS, strict=True)))
def test_the_heart_files_hold_the_published_diagnoses(file: str, client: str) -> None:
    path = EXAMPLES / "heart-disease" / "data" / f"processed.{file}.data"
    raw, _, _ = load(HEART[0])
    cells = read_table(path, columns=raw["data"]["columns"], names=["num"])["num"]
    assert [cells.count(str(value)) for value in range(5)] == HEART_CLIENTS[client][1]


def test_the_heart_study_has_the_coefficients_of_its_readme() -> None:
    _, design, _ = load(HEART[0])
    assert dict(zip(design.names, design.units, strict=True)) == {
        "(Intercept)": "",
        "age": "per 10 from 55",
        "sex": "",
        "cp[atypical]": "",
        "cp[non-anginal]": "",
        "cp[asymptomatic]": "",
        "trestbps": "per 20 from 130",
        "chol": "per 50 from 240",
        "chol[missing]": "",
        "fbs": "",
        "restecg[st-t]": "",
        "restecg[hypertrophy]": "",
        "thalach": "per 25 from 140",
        "exang": "",
        "oldpeak": "per 1 from 1",
    }


def test_the_first_patient_of_cleveland_reads_as_in_the_file() -> None:
    # 63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0
    _, _, sources = load(HEART[0])
    x, y = (sources["cleveland"].records[name][0] for name in ("x", "y"))
    by_hand = [1, 0.8, 1, 0, 0, 0, 0.75, -0.14, 0, 1, 0, 1, 0.4, 0, 1.3]
    np.testing.assert_allclose(x, by_hand, rtol=1e-14)  # one float64 division each
    assert y == 0


def test_a_cholesterol_of_zero_is_missing() -> None:
    _, design, sources = load(HEART[0])
    index = design.names.index("chol[missing]")
    # All of Switzerland; Long Beach: 49 zeros and 7 question marks; Budapest: 23 question marks.
    counts = {name: source.records["x"][:, index].sum() for name, source in sources.items()}
    assert counts == {"cleveland": 0, "budapest": 23, "switzerland": 123, "long-beach": 56}
    chol = concatenate(list(sources.values())).records["x"][:, design.names.index("chol")]
    assert chol.min() > (80 - 240) / 50  # a zero that was taken for a value would be clipped to 80


def test_the_two_heart_studies_differ_in_privacy_alone() -> None:
    private, _, sources = load(HEART[0])
    plain, _, plain_sources = load(HEART[1])
    for table in ("model", "family", "prior", "data", "clients"):
        assert private[table] == plain[table]
    for name, source in sources.items():
        np.testing.assert_array_equal(source.records["x"], plain_sources[name].records["x"])


def test_the_trauma_design_is_the_file_digit_for_digit() -> None:
    _, design, sources = load("trauma/study.toml")
    assert design.names == ("(Intercept)", "sex", "age", "ISS", "GCS")
    assert design.units == ("",) * 5
    for name, source in sources.items():
        with open(EXAMPLES / "trauma" / "data" / f"{name}.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        x = [[1.0, *(float(row[column]) for column in design.names[1:])] for row in rows]
        np.testing.assert_array_equal(source.records["x"], x)
        np.testing.assert_array_equal(
            source.records["y"], [float(row["mortality"]) for row in rows]
        )
        assert {row["hospital"] for row in rows} == {name.removeprefix("hospital-")}


def test_the_trauma_hospitals_have_their_published_counts() -> None:
    _, _, sources = load("trauma/study.toml")
    assert [source.size for source in sources.values()] == [49, 106, 216]
    assert [source.records["y"].sum() for source in sources.values()] == [21, 42, 47]


def test_the_trauma_design_has_the_reference_s_pooled_mode(references: Path) -> None:
    reference = json.loads((references / "trauma.json").read_text(encoding="utf-8"))
    _, design, sources = load("trauma/study.toml")
    assert list(design.names) == reference["names"]
    records = concatenate(list(sources.values())).records
    x, y = records["x"].astype(np.float64), records["y"].astype(np.float64)
    mode = np.zeros(design.size)
    for _ in range(25):  # Newton's steps converge quadratically; 25 are many
        p = 1 / (1 + np.exp(-x @ mode))
        hessian = x.T @ (x * (p * (1 - p))[:, None]) + reference["prior_precision"] * np.eye(5)
        mode += np.linalg.solve(hessian, x.T @ (y - p) - reference["prior_precision"] * mode)
    # The data have 10 digits; what is left is the optimiser that made the reference.
    np.testing.assert_allclose(mode, reference["combined_map"], rtol=1e-7)
