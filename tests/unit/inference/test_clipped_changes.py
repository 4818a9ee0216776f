"""Claims about how a shard is divided, and about the coordinates in which whole changes are clipped."""

import dataclasses
from functools import partial

import numpy as np
import pytest

from fedvi import errors, expfam, models
from fedvi.data import ArraySource, by_unit, with_ids
from fedvi.expfam import tree
from fedvi.expfam.gaussian import GaussianEta
from fedvi.inference import solvers
from fedvi.inference.prior_frame import prior_frame
from fedvi.inference.solvers import _clipped_changes
from fedvi.inference.tempered import tempered
from fedvi.inference.units import unit_model
from fedvi.privacy import random
from fedvi.typing import IDS, ROWS
from fedvi.updates.base import Shard, Task
from fedvi.updates.whitened_changes import from_vector, to_vector
from tests.studies import random_eta

PARTS = 4


def shard_of(ids, capacity=40, seed=0):
    """Records whose every column tells which record it is."""
    count = len(ids)
    place = np.arange(capacity)
    x = np.random.default_rng(seed).normal(size=(capacity, 2)) * (place < count)[:, None]
    padded = np.zeros(capacity, np.uint64)
    padded[:count] = ids
    return Shard({"x": x, "y": x[:, 0], IDS: padded}, place < count)


def rows_kept(shard, rows):
    """The shard of a file with these rows alone: they move up, as lines of a file do."""
    records = {}
    for name, column in shard.records.items():
        moved = np.zeros_like(column)
        moved[: len(rows)] = column[rows]
        records[name] = moved
    return Shard(records, np.arange(len(shard.mask)) < len(rows))


def is_same(one: Shard, other: Shard) -> bool:
    return np.array_equal(one.mask, other.mask) and all(
        np.array_equal(one.records[name], other.records[name]) for name in one.records
    )


def test_a_record_that_goes_changes_the_part_of_its_own_id_and_no_bit_of_another():
    ids = np.random.default_rng(1).integers(0, 2**64, size=30, dtype=np.uint64)
    shard = shard_of(ids)
    before = _clipped_changes.divided(shard, PARTS, by_place=False)
    assert sum(int(part.mask.sum()) for part in before) == 30
    for gone in range(30):
        rest = rows_kept(shard, np.delete(np.arange(30), gone))
        after = _clipped_changes.divided(rest, PARTS, by_place=False)
        own = int(ids[gone] % np.uint64(PARTS))
        changed = [part for part in range(PARTS) if not is_same(before[part], after[part])]
        assert changed == [own]


def test_a_part_that_is_too_full_loses_its_own_records_alone():
    ids = np.array([0] * 30 + [1, 2, 3], np.uint64)  # all 30 say that they are the same
    shard = shard_of(ids)
    parts = _clipped_changes.divided(shard, PARTS, by_place=False)
    room = _clipped_changes.part_capacity(40, PARTS)
    assert room < 40
    assert [int(part.mask.sum()) for part in parts] == [min(30, room), 1, 1, 1]
    # One that goes lets the next one in: still the same part alone.
    after = _clipped_changes.divided(rows_kept(shard, np.arange(1, 33)), PARTS, by_place=False)
    assert [is_same(a, b) for a, b in zip(parts, after, strict=True)] == [False, True, True, True]


def test_hashed_ids_leave_no_record_out():
    """At 20,000 records in 50 parts; a part overflows with a probability below 1e-7, 200 are tried."""
    label = "0" * 64
    empty = ArraySource({"y": np.zeros(20_000)}, np.ones(20_000, bool))
    for first in range(4):
        cells = [str(first * 20_000 + number) for number in range(20_000)]
        ids = with_ids(empty, cells, label).records[IDS]
        counts = np.bincount((ids % np.uint64(50)).astype(int), minlength=50)
        assert counts.max() <= _clipped_changes.part_capacity(20_000, 50)
        # Nor do they prefer a part: χ² of 49 degrees of freedom is below 120 but once in 1e7.
        assert ((counts - 400.0) ** 2 / 400.0).sum() < 120.0


def test_by_place_a_record_substituted_in_its_row_changes_its_part_alone():
    shard = shard_of(np.zeros(30, np.uint64))
    before = _clipped_changes.divided(shard, PARTS, by_place=True)
    for row in range(30):
        x = shard.records["x"].copy()
        x[row] += 1.0
        after = _clipped_changes.divided(
            Shard({**shard.records, "x": x}, shard.mask), PARTS, by_place=True
        )
        changed = [part for part in range(PARTS) if not is_same(before[part], after[part])]
        assert changed == [row % PARTS]


def test_no_part_shows_ids_and_records_without_any_are_refused():
    shard = shard_of(np.arange(10, dtype=np.uint64))
    parts = _clipped_changes.divided(shard, PARTS, by_place=False)
    assert all(set(part.records) == {"x", "y"} for part in parts)
    bare = Shard({"x": shard.records["x"]}, shard.mask)
    with pytest.raises(errors.SolverError, match="without ids"):
        _clipped_changes.divided(bare, PARTS, by_place=False)


def test_units_are_divided_whole():
    rows = ArraySource({"y": np.arange(1.0, 7.0)}, np.ones(6, bool))
    who = ["a", "b", "a", "c", "b", "a"]
    units = by_unit(with_ids(rows, who, "study"), who, 3)
    assert units.records[IDS].shape == (3,)
    alone = with_ids(ArraySource({"y": np.zeros(3)}, np.ones(3, bool)), ["a", "b", "c"], "study")
    assert np.array_equal(units.records[IDS], alone.records[IDS])
    records, mask = units.padded(8)
    for part in _clipped_changes.divided(Shard(records, mask), 2, by_place=False):
        assert part.records[ROWS].any(axis=1).tolist() == part.mask.tolist()
    with pytest.raises(errors.SolverError, match="by_place is true where a unit"):
        _clipped_changes.moved_by_one(unit_model(models.linear(["a"])), 2, by_place=True)


def test_an_id_follows_from_its_own_cell_alone():
    source = ArraySource({"y": np.zeros(4)}, np.ones(4, bool))
    ids = with_ids(source, ["a", "b", None, ""], "study").records[IDS]
    assert ids.dtype == np.uint64
    assert len(set(ids.tolist())) == 3  # unreadable counts as empty
    other = with_ids(source, ["x", "b", "y", "z"], "study").records[IDS]
    assert other[1] == ids[1]
    assert with_ids(source, ["a", "b", None, ""], "other").records[IDS][0] != ids[0]
    with pytest.raises(errors.DataError, match="not as many"):
        with_ids(source, ["a"], "study")


def test_a_fit_without_privacy_sees_no_ids():
    source = ArraySource({"y": np.zeros(2)}, np.ones(2, bool))
    assert set(with_ids(source, ["a", "b"], "study").flat().records) == {"y"}


@pytest.mark.parametrize("kind", ["full_gaussian", "diagonal_gaussian"])
def test_the_norm_in_the_priors_coordinates_does_not_depend_on_units(kind):
    """θ in other units, with the prior to match, is the same model: the same numbers are clipped."""
    size = 3
    family = getattr(expfam, kind)(size)
    units = np.array([1e3, 1e-2, 7.0])
    change = tree.subtract(random_eta(family, 1), random_eta(family, 2))
    names = tuple("abc")
    plain = models.linear(names, prior_scale=2.0)
    found = to_vector(prior_frame(family, plain), change)
    both = units[:, None] * units[None, :]
    scaled = GaussianEta(units * change.h, (both if change.J.ndim == 2 else units**2) * change.J)
    other = dataclasses.replace(plain, prior_scales=tuple(2.0 / units))
    again = to_vector(prior_frame(family, other), scaled)
    np.testing.assert_allclose(found, again, rtol=1e-9)
    back = from_vector(prior_frame(family, other), again)
    for left, right in zip(back, scaled, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-12)
    # Here a unit of θ is two prior sds: h × 2 and J × 4, each entry of the matrix counted.
    expected = np.sqrt((4 * change.h**2).sum() + (16 * change.J**2).sum())
    assert np.linalg.norm(found) == pytest.approx(expected, rel=1e-12)


@pytest.mark.nightly(but=("linear-diagonal_gaussian",))
@pytest.mark.parametrize("kind", ["full_gaussian", "diagonal_gaussian"])
@pytest.mark.parametrize("make", [models.logistic, models.linear])
def test_a_likelihood_to_the_power_of_three_is_that_of_records_thrice(kind, make):
    family, model = getattr(expfam, kind)(2), make(["a", "b"])
    generator = np.random.default_rng(3)
    x, y = generator.normal(size=(12, 2)), generator.integers(0, 2, 12).astype(float)
    task = Task("c/0", "c", 0, 0, family.isotropic(1.0), family.zeros(), 1.0)
    keys = partial(random.insecure_root(0).key, "test")
    optima = []
    for chosen, copies in ((tempered(model, 3), 1), (model, 3)):
        records = {"x": np.zeros((36, 2)), "y": np.zeros(36)}
        records["x"][: 12 * copies] = np.tile(x, (copies, 1))
        records["y"][: 12 * copies] = np.tile(y, copies)
        shard = Shard(records, np.arange(36) < 12 * copies)
        optima.append(solvers.glm(family, chosen).update(keys, (), task, shard)[1].value)
    for name in ("h", "J"):
        # Both stop within 1e-6 posterior sds.
        np.testing.assert_allclose(optima[0][name], optima[1][name], rtol=1e-5, atol=1e-5)
    wrapped = tempered(unit_model(model), 3)
    row = {"x": x[:1], "y": y[:1], ROWS: np.ones(1, bool)}
    theta = np.array([0.3, -0.2], np.float32)
    assert float(wrapped.log_likelihood(theta, row)) == pytest.approx(
        3 * float(model.log_likelihood(theta, {"x": x[0], "y": y[0]})), rel=1e-5
    )
