"""How many rows `vips` reads for a batch: those of the batch, in even parts."""

import dataclasses
from typing import ClassVar

import numpy as np
import pytest

from fedvi.inference.solvers import vips
from fedvi.models.regression_statistics import KnownNoise
from fedvi.privacy import mechanisms, sampling
from tests.vips import answer, first_task, shard_of


@dataclasses.dataclass(frozen=True)
class Watched(KnownNoise):
    """Writes down how many rows each part has, when it is traced."""

    rows: ClassVar[list[int]] = []

    def expected(self, messages, records):
        self.rows.append(records["y"].shape[0])
        return super().expected(messages, records)


@pytest.mark.nightly(only=("sampler0-4096-rows0", "sampler3-10-rows3"))
@pytest.mark.parametrize(
    ("sampler", "together", "rows"),
    [
        (sampling.poisson(0.01, 3000), 4096, {128}),
        (sampling.full(3000), 4096, {3008}),
        (sampling.full(3000), 2048, {1536}),
        (sampling.full(3000), 10, {64}),
    ],
)
def test_parts_are_even_and_a_batch_is_not_padded_to_all_records(sampler, together, rows):
    model = Watched(("a",), (1.0,), row_norm=1.0, ridge=together / 7.0)
    solver = vips(model.family, model, sampler, mechanisms.gaussian(0.0), rows_together=together)
    Watched.rows.clear()
    data = {"x": np.ones((3000, 1), np.float32), "y": np.ones(3000, np.float32)}
    value = answer(solver, first_task(solver), shard_of(data))
    assert set(Watched.rows) == rows
    assert value["h"][0] > 0.0
