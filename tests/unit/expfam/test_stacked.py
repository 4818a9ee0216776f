"""Claims about trees that lie in one array: sums and moves have the bits of one tree at a time."""

import numpy as np
import pytest

from fedvi.expfam import stacked, tree
from fedvi.expfam.gaussian import GaussianEta


def _etas(names, size, seed=0):
    generator = np.random.default_rng(seed)
    scales = 10.0 ** generator.integers(-6, 6, size=(len(names), 1))
    h = generator.normal(size=(len(names), size)) * scales
    return GaussianEta(h, generator.normal(size=(len(names), size, size)) * scales[:, :, None])


@pytest.mark.parametrize("size", [1, 2, 5, 20])
@pytest.mark.parametrize("count", [1, 2, 65, 200])
def test_a_sum_is_that_of_one_tree_after_the_other(size, count):
    names = tuple(f"c{(7 * index) % 211}" for index in range(count))
    found = stacked.Stacked(names, _etas(names, size))
    start = GaussianEta(np.ones(size) / 3, np.eye(size) / 7)
    assert tree.equal(
        stacked.total(found, start), tree.total((found[name] for name in sorted(names)), start)
    )


@pytest.mark.parametrize("size", [1, 2, 5, 20])
def test_a_sum_does_not_depend_on_how_rows_lie_in_memory(size):
    generator = np.random.default_rng(1)
    row = generator.normal(size=size)
    for rows in (
        np.broadcast_to(row, (100, size)),
        np.asfortranarray(generator.normal(size=(100, size))),
    ):
        one_by_one = np.zeros(size)
        for each in rows:
            one_by_one = one_by_one + each
        assert np.array_equal(stacked.in_order(np.zeros(size), rows), one_by_one)


def test_a_move_is_that_of_one_tree_at_a_time():
    names = ("b", "a", "c")
    left = stacked.Stacked(names, _etas(names, 3))
    right = left.with_etas(_etas(names, 3, seed=1))
    moved = stacked.added(left, right, 0.3)
    apart = stacked.added(dict(left), dict(right), 0.3)
    assert isinstance(moved, stacked.Stacked)
    assert list(moved) == list(apart) == list(names)
    assert all(tree.equal(moved[name], apart[name]) for name in names)
    assert not any(leaf.flags.writeable for name in names for leaf in moved[name])


def test_names_that_are_not_there_are_no_keys():
    found = stacked.Stacked(("a",), np.zeros((1, 2)))
    shared = stacked.Alike(("a",), 1)
    for mapping in (found, shared):
        assert "b" not in mapping
        with pytest.raises(KeyError):
            mapping["b"]
