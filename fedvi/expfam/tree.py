"""Arithmetic on natural parameters, leaf by leaf; works on NumPy and on JAX arrays alike.

Multiplying densities adds natural parameters, dividing subtracts them, a power scales them. Trees
here are NamedTuples of arrays, possibly nested; walking them needs no JAX, so that a server that
only adds factors does not import it.
"""

import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from fedvi.expfam import mapped_arrays
from fedvi.typing import Eta

__all__ = [
    "add",
    "add_scaled",
    "equal",
    "freeze",
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
    return map_leaves(lambda a, b: mapped_arrays.elementwise(operator.add, a, b), left, right)


def subtract(left: Eta, right: Eta) -> Eta:
    """Returns η of the quotient of two densities: η − η′."""
    return map_leaves(lambda a, b: mapped_arrays.elementwise(operator.sub, a, b), left, right)


def scale(eta: Eta, factor: float) -> Eta:
    """Returns η of a density raised to a power: factor · η."""
    return map_leaves(lambda a: mapped_arrays.elementwise(lambda piece: piece * factor, a), eta)


def add_scaled(left: Eta, right: Eta, factor: float) -> Eta:
    """Returns η + factor · η′, bit for bit as ``add`` and ``scale`` do, in the memory of one tree."""
    return map_leaves(_add_onto, scale(right, factor), left)


def total(etas: Iterable[Eta], start: Eta) -> Eta:
    """Returns start + Σ η, added in the order given, so that the result is reproducible bit by bit.

    The result is a new tree if there is anything to add, and needs the memory of one tree.
    """
    result = None
    for eta in etas:
        result = add(start, eta) if result is None else map_leaves(_add_onto, result, eta)
    return start if result is None else result


def to_numpy(eta: Eta) -> Eta:
    """Returns a tree as read-only float64 arrays in C order, the form at rest and on the wire.

    Read-only arrays that already have that form are shared; others are copied.
    """

    def convert(leaf: Any) -> np.ndarray:
        if _is_at_rest(leaf):
            return leaf
        array = np.array(leaf, dtype=np.float64, order="C")
        array.flags.writeable = False
        return array

    return map_leaves(convert, eta)


def freeze(eta: Eta) -> Eta:
    """Does the same as ``to_numpy`` for a tree that the caller gives up: it makes the arrays read-only."""
    for leaf in leaves(eta):
        if isinstance(leaf, np.ndarray) and leaf.base is None:
            leaf.flags.writeable = False
    return to_numpy(eta)


def is_finite(eta: Eta) -> bool:
    """Returns whether every number of a tree of NumPy arrays is finite."""
    return all(mapped_arrays.is_finite(leaf) for leaf in leaves(eta))


def equal(left: Eta, right: Eta) -> bool:
    """Returns whether two trees of NumPy arrays agree bit for bit."""
    return all(np.array_equal(a, b) for a, b in zip(leaves(left), leaves(right), strict=True))


def _add_onto(result: Any, other: Any) -> Any:
    """Adds to an array that the caller owns, in place where shape and dtype allow."""
    fits = all(isinstance(a, np.ndarray) and a.dtype == np.float64 for a in (result, other))
    if fits and result.shape == other.shape:
        for piece, others in mapped_arrays.windows(result, other):
            np.add(piece, others, out=piece)
        return result
    return result + other


def _is_at_rest(leaf: Any) -> bool:
    if not isinstance(leaf, np.ndarray) or leaf.dtype != np.float64 or not leaf.flags.c_contiguous:
        return False
    # A view is read-only, and its base may not be.
    array: Any = leaf
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    try:
        return array is None or memoryview(array).readonly
    except TypeError:  # memory that does not belong to Python, such as JAX's
        return False
