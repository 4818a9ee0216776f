"""Arithmetic on natural parameters, leaf by leaf; works on NumPy and on JAX arrays alike.

Multiplying densities adds natural parameters, dividing subtracts them, a power scales them. Trees
here are NamedTuples of arrays, possibly nested; walking them needs no JAX, so that a server that
only adds factors does not import it.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from fedvi.typing import Eta

__all__ = [
    "add",
    "equal",
    "is_finite",
    "leaves",
    "map_leaves",
    "scale",
    "subtract",
    "to_numpy",
    "total",
]


def map_leaves(fn: Callable[..., Any], *trees: Eta) -> Eta:
    """Applies ``fn`` to the corresponding leaves of trees of the same structure."""
    first = trees[0]
    if isinstance(first, tuple):
        mapped = [map_leaves(fn, *parts) for parts in zip(*trees, strict=True)]
        return type(first)(*mapped) if hasattr(first, "_fields") else tuple(mapped)
    return fn(*trees)


def leaves(tree: Eta) -> list[Any]:
    """Lists the arrays of a tree, in field order."""
    if isinstance(tree, tuple):
        return [leaf for part in tree for leaf in leaves(part)]
    return [tree]


def add(left: Eta, right: Eta) -> Eta:
    """Returns η of the product of two (unnormalised) densities: η + η′."""
    return map_leaves(lambda a, b: a + b, left, right)


def subtract(left: Eta, right: Eta) -> Eta:
    """Returns η of the quotient of two densities: η − η′."""
    return map_leaves(lambda a, b: a - b, left, right)


def scale(eta: Eta, factor: float) -> Eta:
    """Returns η of a density raised to a power: factor · η."""
    return map_leaves(lambda a: a * factor, eta)


def total(etas: Iterable[Eta], start: Eta) -> Eta:
    """Returns start + Σ η, added in the order given, so that the result is reproducible bit by bit."""
    result = start
    for eta in etas:
        result = add(result, eta)
    return result


def to_numpy(eta: Eta) -> Eta:
    """Copies a tree into read-only float64 NumPy arrays, the form at rest and on the wire."""

    def convert(leaf: Any) -> np.ndarray:
        array = np.array(leaf, dtype=np.float64)
        array.flags.writeable = False
        return array

    return map_leaves(convert, eta)


def is_finite(eta: Eta) -> bool:
    """Says whether every number of a tree of NumPy arrays is finite."""
    return all(bool(np.isfinite(leaf).all()) for leaf in leaves(eta))


def equal(left: Eta, right: Eta) -> bool:
    """Says whether two trees of NumPy arrays agree bit for bit."""
    return all(np.array_equal(a, b) for a, b in zip(leaves(left), leaves(right), strict=True))
