"""Studies whose solver divides records into parts: ids on their way from a file, and the price."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedvi import errors
from fedvi.data import with_ids
from fedvi.privacy import accountants, events
from fedvi.run import loading, simulate
from fedvi.study import build
from fedvi.study.config import parse_study
from fedvi.typing import IDS
from tests.studies import raw_study

SIZE, ROWS = 2, 40


def study(relation: str = "add_remove", **solver: Any) -> dict[str, Any]:
    raw = raw_study(["north"], SIZE, kind="logistic", schedule={"kind": "synchronous", "rounds": 3})
    raw["solver"] = {"kind": "virtual_clients", "parts": 4, **solver}
    raw["privacy"] = {"epsilon": 2.0, "delta": 1e-5, "unit": "record", "relation": relation}
    raw["data"].update(max_records=64, id_column="case")
    return raw


def write(folder: Path, cases: list[str]) -> Path:
    generator = np.random.default_rng(0)
    path = folder / "north.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["case", "y", "x0", "x1"])
        for case in cases:
            writer.writerow([case, generator.integers(0, 2), *generator.normal(size=SIZE)])
    return path


def test_ids_come_from_the_column_and_keep_to_their_record(tmp_path: Path) -> None:
    assembly = build.assemble(parse_study(study()))
    cases = [f"case {index}" for index in range(ROWS)]
    whole = loading.load_shard(assembly, "north", write(tmp_path, cases))
    rest = loading.load_shard(assembly, "north", write(tmp_path, cases[7:]))
    assert np.array_equal(rest.records[IDS], whole.records[IDS][7:])
    expected = with_ids(whole, list(cases), assembly.study.digest)
    assert np.array_equal(whole.records[IDS], expected.records[IDS])
    shard = loading.with_capacity(assembly, {"north": whole})["north"]
    assert shard.records[IDS].dtype == np.uint64
    assert shard.records[IDS].shape == (64,)


def test_a_client_that_joins_later_divides_nobody_s_records_anew(tmp_path: Path) -> None:
    raw, path = study(), write(tmp_path, [f"case {index}" for index in range(ROWS)])
    begun = loading.load_shard(build.assemble(parse_study(raw)), "north", path)
    raw["clients"].append({"name": "west", "added": True})
    longer = loading.load_shard(build.assemble(parse_study(raw)), "north", path)
    assert np.array_equal(longer.records[IDS], begun.records[IDS])


@pytest.mark.parametrize(
    ("relation", "by_place"), [("add_remove", False), ("substitute", False), ("substitute", True)]
)
def test_a_plan_is_priced_at_what_one_record_can_move(relation: str, by_place: bool) -> None:
    raw = study(relation, noise_multiplier=20.0, by_place=by_place)
    raw["privacy"]["epsilon"] = 100.0
    if by_place:
        del raw["data"]["id_column"]
        raw["privacy"]["records_public"] = True
    assembly = build.assemble(parse_study(raw))
    # In clip norms. One that substitutes a record by ids leaves one part and enters another.
    shift = 2.0 if by_place or relation == "add_remove" else 4.0
    # Of the Gaussian mechanism with this shift and 3 visits, as of one with shift 1 and less noise.
    alone = events.Gaussian(20.0 / (shift * np.sqrt(3.0)), 1.0, 1.0)
    expected = accountants.pld(relation).epsilon(alone, 1e-5)
    found = accountants.pld(relation).epsilon(assembly.planned, 1e-5)
    assert assembly.relations == (("substitute",) if by_place else events.RELATIONS)
    assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.nightly(but=("virtual_clients",))
@pytest.mark.parametrize("kind", ["local_averaging", "virtual_clients", "perturbed_update"])
def test_a_private_study_runs_within_its_budget(kind: str, tmp_path: Path) -> None:
    raw = study(kind=kind)
    if kind == "perturbed_update":
        del raw["data"]["id_column"], raw["solver"]["parts"]
    raw["clients"][0]["data"] = "north.csv"
    write(tmp_path, [f"case {index}" for index in range(ROWS)])
    result = simulate.simulate(parse_study(raw), tmp_path, pooled=True)
    (site,) = result.sites
    promised = next(claim for claim in site.claims if claim.relation == "add_remove")
    assert 1.9 < promised.epsilon <= 2.0
    assert result.pooled is not None
    assert np.isfinite(result.posterior.h).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw["data"].pop("id_column"), r"data.id_column is missing, which solver.kind"),
        (lambda raw: raw["solver"].update(kind="perturbed_update"), r"has no use for"),
        (lambda raw: raw["solver"].update(by_place=True), r"without privacy.records_public"),
        (
            lambda raw: raw["solver"].update(sampler={"kind": "poisson", "rate": 0.1}),
            r"expected full",
        ),
        (lambda raw: raw["data"].update(columns=["y", "x0", "x1"]), r"data.id_column names"),
        (
            lambda raw: raw["data"]["schema"].update(case=dict(raw["data"]["schema"]["x0"])),
            r"data.id_column is 'case', which \[data.schema.case\] declares too",
        ),
        (
            lambda raw: (
                raw["data"].update(unit_column="who"),
                raw["privacy"].update(unit="patient"),
            ),
            r"data.id_column is given beside data.unit_column",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(change: Any, message: str) -> None:
    raw = study()
    change(raw)
    if raw["solver"]["kind"] == "perturbed_update":
        del raw["solver"]["parts"]
    with pytest.raises(errors.ConfigError, match=message):
        build.assemble(parse_study(raw))


def test_patients_are_divided_by_whose_rows_they_are(tmp_path: Path) -> None:
    raw = study()
    raw["data"].update(unit_column=raw["data"].pop("id_column"))
    raw["privacy"]["unit"] = "patient"
    assembly = build.assemble(parse_study(raw))
    path = write(tmp_path, ["a", "b", "a", "c", "b"])
    units = loading.load_shard(assembly, "north", path)
    expected = with_ids(units, ["a", "b", "c"], assembly.study.digest)
    assert np.array_equal(units.records[IDS], expected.records[IDS])
