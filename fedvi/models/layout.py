"""Finds the arguments of a call that hold records, and makes up records of the same shapes."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedvi import errors
from fedvi.models.made_up import placeholder

__all__ = ["Layout", "layout"]

# The step between neighbouring floats, in sds of a column, from which rounding would show.
_COARSE = 0.01


class Layout(NamedTuple):
    """The leaves of a call's arguments that have a record axis, and the shapes of their records.

    Attributes:
      tree: the structure of (args, kwargs).
      rest: each leaf that is not a record column, as it was passed; None for columns.
      columns: shape without the record axis and dtype of each column as JAX takes it, None elsewhere:
        float32 for NumPy's float64, unless JAX's 64 bits are enabled.
      rows: the length of the record axis.
    """

    tree: Any
    rest: tuple[Any, ...]
    columns: tuple[jax.ShapeDtypeStruct | None, ...]
    rows: int

    def take(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Returns the record columns of a call with this layout, in order."""
        leaves = jax.tree.leaves((args, dict(kwargs)), is_leaf=_is_none)
        return [
            leaf for leaf, column in zip(leaves, self.columns, strict=True) if column is not None
        ]

    def call(self, columns: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns (args, kwargs) with ``columns`` in place of the original ones."""
        left = iter(columns)
        leaves = [
            other if column is None else next(left)
            for other, column in zip(self.rest, self.columns, strict=True)
        ]
        return jax.tree.unflatten(self.tree, leaves)

    def describe(self) -> str:
        """Describes the arguments in words; by name if they were passed by name."""
        numbered = jax.tree.unflatten(self.tree, range(len(self.columns)))
        paths = [path for path, _ in jax.tree.flatten_with_path(numbered)[0]]
        return ", ".join(
            (f"{_name(path)} " if path[0].idx or len(path) > 2 else "")
            + (_kind(other) if column is None else _table(column))
            for path, column, other in zip(paths, self.columns, self.rest, strict=True)
        )

    def narrowed(self, columns: list[Any]) -> list[str]:
        """Names the columns with numbers that JAX's dtypes do not hold; it follows from the records.

        These are large integers, and floats that differ by less than a float of 32 bits can tell.

        Args:
          columns: as they were passed, from ``take``.
        """
        numbered = jax.tree.unflatten(self.tree, range(len(self.columns)))
        paths = [path for path, _ in jax.tree.flatten_with_path(numbered)[0]]
        names = [
            _name(path)
            for path, column in zip(paths, self.columns, strict=True)
            if column is not None
        ]
        kinds = [column.dtype for column in self.columns if column is not None]
        return [
            f"{name} ({column.dtype})"
            for name, column, kind in zip(names, columns, kinds, strict=True)
            if isinstance(column, np.ndarray)
            and column.dtype != kind
            and _is_narrowed(column, kind)
        ]

    def made_up(self, *kinds: str) -> list[Any]:
        """Returns columns of made-up records, one for each kind; see ``models.numpyro``."""
        return [
            jnp.asarray(np.stack([placeholder(column, kind) for kind in kinds]))
            for column in self.columns
            if column is not None
        ]


def layout(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Layout:
    """Finds the record columns among a call's arguments: every array of one dimension or more.

    Numbers, strings, None and arrays without an axis are public and passed on as they are.

    Args:
      args, kwargs: those of ``update`` or ``run``.

    Raises:
      ModelError: if there is no array, one holds no numbers, or two have record axes of different
        lengths.
    """
    given = (args, dict(kwargs))
    paths, tree = jax.tree.flatten_with_path(given, is_leaf=_is_none)
    rest: list[Any] = []
    columns: list[jax.ShapeDtypeStruct | None] = []
    rows, first = 0, ""
    for path, leaf in paths:
        name = _name(path)
        if not hasattr(leaf, "shape") or not leaf.shape:
            rest.append(leaf)
            columns.append(None)
            continue
        kind = _dtype(leaf, name)
        if not first:
            rows, first = leaf.shape[0], name
        if leaf.shape[0] != rows:
            raise errors.ModelError(
                f"{name} has {leaf.shape[0]} rows and {first} has {rows}, expected one row a record "
                "in every array",
                "pass an array that holds no records as a keyword of DPSVI itself, as for "
                "numpyro's SVI: DPSVI(model, guide, optim, loss, design=design)",
            )
        rest.append(None)
        columns.append(jax.ShapeDtypeStruct(leaf.shape[1:], kind))
    if not rows:
        raise errors.ModelError(
            "no argument holds records, expected an array with one row a record",
            "pass the whole table as arrays: svi.run(key, steps, x, y); a list is none, jnp.asarray "
            "makes one of it",
        )
    return Layout(tree, tuple(rest), tuple(columns), rows)


def _is_narrowed(column: np.ndarray, kind: Any) -> bool:
    with np.errstate(all="ignore"):
        held = column.astype(kind)
        if not jnp.issubdtype(kind, jnp.floating):
            return not np.array_equal(held, column)
        # NaN and infinities, of which NumPy would warn, say nothing of how coarse numbers become.
        usable = np.isfinite(column) & np.isfinite(held)
        lost = np.abs(held - column).max(axis=0, where=usable, initial=0.0)
        count = np.maximum(usable.sum(axis=0), 1)
        mean = column.sum(axis=0, where=usable) / count
        sd = np.sqrt(((column - mean) ** 2).sum(axis=0, where=usable) / count)
        least, most = (
            of(column, axis=0, where=usable, initial=sign * np.inf)
            for of, sign in ((np.min, 1.0), (np.max, -1.0))
        )
        return bool(((lost > _COARSE * sd) & (least < most)).any())


def _table(column: jax.ShapeDtypeStruct) -> str:
    return f"{column.dtype}[rows, {', '.join(map(str, column.shape))}]".replace(", ]", "]")


def _kind(leaf: Any) -> str:
    if leaf is None or isinstance(leaf, bool | str):
        return repr(leaf)
    return "a number" if not np.ndim(leaf) else "an array without records"


def _dtype(leaf: Any, name: str) -> Any:
    """Returns the dtype that JAX gives an array: under `jit` only that one is visible."""
    kind = getattr(leaf, "dtype", None)
    if isinstance(leaf, np.ma.MaskedArray):
        raise errors.ModelError(
            f"{name} is a masked array, expected an array of numbers alone",
            "pass x.filled(0.0) and, as a column of its own, ~x.mask for handlers.mask",
        )
    if kind is None:
        raise errors.ModelError(
            f"{name} is a {type(leaf).__name__}, expected an array with one row a record",
            "pass its columns as an array, by its .to_numpy() or jax.numpy.asarray",
        )
    try:
        is_taken = jnp.issubdtype(kind, jnp.number) or jnp.issubdtype(kind, jnp.bool_)
    except TypeError:  # a dtype of pandas
        is_taken = False
    if not is_taken:
        raise errors.ModelError(
            f"{name} holds {kind}, expected floats, integers or booleans",
            "number the levels of a category from 0, and hand over a column of pandas by "
            ".to_numpy(numpy.float32)",
        )
    return jax.dtypes.canonicalize_dtype(kind)


def _is_none(leaf: Any) -> bool:
    return leaf is None


def _name(path: tuple[Any, ...]) -> str:
    place, *inner = path
    if getattr(place, "idx", None) == 1:
        return f"`{inner[0].key}{jax.tree_util.keystr(tuple(inner[1:]))}`"
    return f"argument {inner[0].idx + 1}{jax.tree_util.keystr(tuple(inner[1:]))}"
