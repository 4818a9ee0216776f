"""Stacks the natural parameters of many clients into one array per leaf, so that a fold is a few passes.

Results have the same bits as client by client: sums run one after the other in the order of names, and
elementwise arithmetic does not depend on a number's place.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeGuard

import numpy as np

from fedvi.expfam import tree
from fedvi.typing import Eta

__all__ = ["Alike", "Stacked", "added", "in_order", "is_alike", "is_stacked", "of_all", "total"]

# Rows added in one call: few enough to stay in the cache.
_ROWS = 64


class Stacked(Mapping[str, Any]):
    """A read-only mapping from names to trees, whose arrays are stacked along a first axis.

    >>> found = Stacked(("north", "south"), np.array([[1.0, 2.0], [3.0, 4.0]]))
    >>> found["south"], len(found)
    (array([3., 4.]), 2)

    Attributes:
      names: in the order of the arrays' first axis.
      etas: a tree of arrays [names, …].
    """

    __slots__ = ("_order", "_places", "etas", "names")

    def __init__(self, names: tuple[str, ...], etas: Eta, like: "Stacked | None" = None) -> None:
        self.names, self.etas = names, etas
        self._places: dict[str, int]
        self._order: list[int] | None
        if like is not None and like.names is names:
            self._places, self._order = like._places, like._order
            return
        self._places = {name: place for place, name in enumerate(names)}
        order = sorted(range(len(names)), key=names.__getitem__)
        # None where the arrays are in the order of names.
        self._order = None if order == list(range(len(names))) else order

    def __getitem__(self, name: str) -> Any:
        place = self._places[name]
        return tree.map_leaves(lambda leaf: leaf[place], self.etas)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"Stacked({len(self)} trees)"

    def with_etas(self, etas: Eta) -> "Stacked":
        """Returns other trees of the same names."""
        return Stacked(self.names, etas, self)

    def by_name(self) -> Eta:
        """Returns the trees' arrays in the order of names."""
        if self._order is None:
            return self.etas
        return tree.map_leaves(lambda leaf: leaf[self._order], self.etas)


class Alike(Mapping[str, Any]):
    """A mapping from names to one value that they share.

    >>> dict(Alike(("north", "south"), 1))
    {'north': 1, 'south': 1}
    """

    __slots__ = ("_known", "names", "value")

    def __init__(self, names: tuple[str, ...], value: Any, like: "Alike | None" = None) -> None:
        self.names, self.value = names, value
        self._known: frozenset[str] = frozenset(names) if like is None else like._known

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            raise KeyError(name)
        return self.value

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"Alike({len(self)} times {self.value!r})"

    def with_value(self, value: Any) -> "Alike":
        """Returns another value of the same names."""
        return Alike(self.names, value, self)


def is_stacked(etas: Mapping[str, Any]) -> TypeGuard[Stacked]:
    """Returns whether the trees of a mapping are stacked."""
    return isinstance(etas, Stacked)


def is_alike(values: Mapping[str, Any]) -> TypeGuard[Alike]:
    """Returns whether all entries of a mapping are known to be one value."""
    return isinstance(values, Alike)


def total(etas: Mapping[str, Eta], start: Eta) -> Eta:
    """Returns start + Σ η in the order of names, bit for bit as ``tree.total`` does."""
    if isinstance(etas, Stacked) and len(etas):
        return tree.map_leaves(in_order, start, etas.by_name())
    return tree.total((etas[name] for name in sorted(etas)), start)


def added(
    left: Mapping[str, Eta],
    right: Mapping[str, Eta],
    factor: float,
    keep: Callable[[Eta], Eta] = lambda eta: eta,
) -> Mapping[str, Eta]:
    """Returns left + factor · right for each name of ``right``, as ``tree.add_scaled``, read-only.

    Args:
      left: trees by name.
      right: trees for some of these names, in their order; for the same names where both are stacked.
      factor: one for all.
      keep: called with each result; returns an equal tree, which may be stored outside of memory.
    """
    if isinstance(left, Stacked) and isinstance(right, Stacked) and left.names is right.names:
        return right.with_etas(tree.freeze(tree.add_scaled(left.etas, right.etas, factor)))
    return {
        name: keep(tree.freeze(tree.add_scaled(left[name], eta, factor)))
        for name, eta in right.items()
    }


def of_all(names: tuple[str, ...], etas: Mapping[str, Eta]) -> Stacked:
    """Stacks the trees of some names; returns a mapping that is already stacked by them as it is."""
    if isinstance(etas, Stacked) and etas.names is names:
        return etas
    found = [etas[name] for name in names]
    return Stacked(names, tree.freeze(tree.map_leaves(lambda *leaves: np.stack(leaves), *found)))


def in_order(start: Any, rows: Any) -> Any:
    """Returns start + Σ rows, added one after the other along the first axis."""
    result = start + rows[0]
    # Along the first axis of a C-order array NumPy adds row by row, if rows have more than one number.
    # Along the last axis it would add in pairs.
    add = np.add.reduce if result.size > 1 else _last_of_running
    block = np.empty((_ROWS + 1, *np.shape(result)))
    for at in range(1, len(rows), _ROWS):
        part = rows[at : at + _ROWS]
        block[0], block[1 : len(part) + 1] = result, part
        result = add(block[: len(part) + 1], axis=0)
    return result


def _last_of_running(rows: np.ndarray, axis: int) -> Any:
    return np.add.accumulate(rows, axis=axis)[-1]
