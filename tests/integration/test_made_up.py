"""Records that are made up from a schema: its corners, in all ways that they may meet, and their form."""

from pathlib import Path

import numpy as np
import pytest

from fedvi.run.made_up import corners, layout_of, shard_of
from fedvi.run.site import file_shard
from fedvi.study import build
from fedvi.study.config import load_study
from tests.audited import STUDIES, study, written


def test_each_level_meets_both_outcomes(tmp_path: Path):
    # Of two levels and two outcomes in turn, each level would meet one outcome alone.
    text = study(model="logistic").replace('["a", "b", "rare"]', '["a", "b"]')
    found = corners(build.assemble(load_study(written(tmp_path, text))), seed=0)
    level, outcome = found["x"][:, -1], found["y"]
    assert {(bool(one), bool(other)) for one, other in zip(level, outcome, strict=True)} == {
        (one, other) for one in (False, True) for other in (False, True)
    }
    assert np.isfinite(found["x"]).all()


def form(shard):
    """What programs are compiled for."""
    columns = {name: (part.shape, part.dtype) for name, part in shard.records.items()}
    return len(shard.mask), columns


PATIENTS = study(data_more='unit_column = "id"\nmax_rows_per_unit = 4').replace(
    '"record"', '"patient"'
)


@pytest.mark.parametrize("text", [*STUDIES.values(), PATIENTS], ids=[*STUDIES, "patients"])
def test_they_have_the_form_of_the_records_that_a_client_reads(tmp_path: Path, text: str):
    """So that a client finds a program that fails its check before it has charged anything."""
    assembly = build.assemble(load_study(written(tmp_path, text)))
    path = tmp_path / "c0.csv"
    path.write_text("id,x,z,y\n" + "7,0.25,a,1\n8,-1.5,rare,0\n8,,b,0\n9,1,a,1\n")
    read = form(file_shard(assembly, "c0", path)())
    assert form(layout_of(assembly)()) == form(shard_of(assembly, None, seed=0)) == read


@pytest.mark.parametrize("name", ["study", "study-sums", "study-descent"])
def test_so_they_have_for_the_hospitals_of_the_demo(examples: Path, name: str):
    folder = examples / "heart-disease"
    assembly = build.assemble(load_study(folder / f"{name}.toml"))
    client = assembly.study.clients[0]
    read = file_shard(assembly, client.name, folder / client.data)()
    assert form(layout_of(assembly)()) == form(read)


def test_a_layout_is_made_once_and_takes_no_memory_whatever_the_capacity(tmp_path: Path):
    text = study(max_records=100_000_000)
    layout = layout_of(build.assemble(load_study(written(tmp_path, text))))
    assert layout() is layout()
    assert all(not any(part.strides) for part in (*layout().records.values(), layout().mask))


def test_there_is_no_layout_where_no_records_can_be_made_up(tmp_path: Path):
    text = study().replace(
        'x = { type = "number", bounds = [-2, 2]', 'x = { type = "count", bounds = [0, 1e19]'
    )
    text = text.replace("1e19], center = 0, scale = 1", "1e19]")
    assert layout_of(build.assemble(load_study(written(tmp_path, text))))() is None
