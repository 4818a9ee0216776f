"""Makes up records on which a NumPyro model is tested, and checks real ones against an example's shapes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedvi import errors

__all__ = [
    "ENOUGH",
    "ONE",
    "Pair",
    "cast_floats",
    "checked_record",
    "example_shapes",
    "listed",
    "other_pairs",
    "placeholder",
    "placeholders",
    "plate_line",
    "rows_in_words",
    "usual_pair",
    "wider_pairs",
]

# The kinds of made-up records; see placeholders.
ONE = "one"

_LOW = "low"

_HIGH = "high"

# Ranges of further made-up numbers; integers take their sizes. The first is that of _LOW and _HIGH.
_RANGES = np.array(
    [(0.1, 0.9), (-10, 10), (0, 10), (-10, 0), (10, 100), (100, 1e3), (1e3, 1e4), (-100, -10)]
)

# How many ranges every model is tested on, and how many pairs of integers after 0 and 1.
_WIDER, _COUNTED = 4, 8

# How many mixtures of ranges, by columns or by numbers, are tried if a term is finite in none of them.
_MIXTURES = 96

# How many pairs a term is compared on if it is not finite for the usual numbers: one may not be enough.
ENOUGH = 8

# The kinds of numbers that a record may hold.
_KINDS = (jnp.floating, jnp.integer, jnp.bool_)


def placeholders(shapes: Mapping[str, jax.ShapeDtypeStruct], kinds: list[str]) -> dict[str, Any]:
    """Makes up one record per kind: ``ONE`` has ones (0 for integers); the others differ in every number.

    Numbers of the others lie in (0, 1), which most supports contain, and no two are equal.
    """
    return {
        name: np.stack([placeholder(shape, kind) for kind in kinds])
        for name, shape in shapes.items()
    }


def placeholder(shape: jax.ShapeDtypeStruct, kind: str) -> Any:
    if not jnp.issubdtype(shape.dtype, jnp.floating):
        return np.full(shape.shape, kind == _HIGH, shape.dtype)
    if kind == ONE:
        return np.ones(shape.shape, shape.dtype)
    random = np.random.default_rng(1 if kind == _LOW else 2)
    low, high = (0.1, 0.4) if kind == _LOW else (0.5, 0.9)
    return random.uniform(low, high, size=shape.shape).astype(shape.dtype)


class Pair(NamedTuple):
    """Two made-up records that differ in every number, as lists of columns without the record axis."""

    first: list[Any]
    second: list[Any]


def usual_pair(shapes: Sequence[jax.ShapeDtypeStruct]) -> Pair:
    return Pair(*([placeholder(shape, kind) for shape in shapes] for kind in (_LOW, _HIGH)))


def wider_pairs(shapes: Sequence[jax.ShapeDtypeStruct]) -> Iterator[Pair]:
    """Yields pairs with floats up to 10 in size, then with larger integers, the rest as usual."""
    random = np.random.default_rng(3)
    first, second = usual_pair(shapes)
    floats = [jnp.issubdtype(shape.dtype, jnp.floating) for shape in shapes]
    for which in range(1, _WIDER) if any(floats) else ():
        yield _chosen(
            floats,
            Pair(first, second),
            [_within(shape, np.full(shape.shape, which), random) for shape in shapes],
        )
    integers = [jnp.issubdtype(shape.dtype, jnp.integer) for shape in shapes]
    counted = [(2 * k, 2 * k + 1) for k in range(1, _COUNTED + 1)]
    for pair in [*counted, (29, 99)] if any(integers) else ():
        numbers = [tuple(np.full(s.shape, size, s.dtype) for size in pair) for s in shapes]
        yield _chosen(integers, Pair(first, second), numbers)


def other_pairs(shapes: Sequence[jax.ShapeDtypeStruct]) -> Iterator[Pair]:
    """Yields pairs in other ranges: one for all, then mixed by columns and by numbers."""
    random = np.random.default_rng(4)

    def pair(ranges: Sequence[Any]) -> Pair:
        within = [_within(s, which, random) for s, which in zip(shapes, ranges, strict=True)]
        return _chosen([True] * len(shapes), usual_pair(shapes), within)

    for which in range(_WIDER, len(_RANGES)):
        yield pair([np.full(shape.shape, which) for shape in shapes])
    for trial in range(_MIXTURES):
        sizes = [shape.shape if trial % 2 else () for shape in shapes]
        # Most supports contain the usual range, so half of the numbers stay there.
        mixed = [
            random.integers(1, len(_RANGES), size) * random.integers(0, 2, size) for size in sizes
        ]
        yield pair([np.broadcast_to(w, s.shape) for w, s in zip(mixed, shapes, strict=True)])


def _within(shape: jax.ShapeDtypeStruct, which: Any, random: Any) -> tuple[Any, Any]:
    """Makes up two columns, in the lower and the upper half of a range for every number."""
    if jnp.issubdtype(shape.dtype, jnp.bool_):
        return np.zeros(shape.shape, bool), np.ones(shape.shape, bool)
    whole = jnp.issubdtype(shape.dtype, jnp.integer)
    if whole:
        # Levels and counts are not negative.
        which = np.where(_RANGES[which, 0] < 0.0, 0, which)
    low, high = np.moveaxis(_RANGES[which], -1, 0)
    middle = (low + high) / 2.0
    below, above = random.uniform(low, middle), random.uniform(middle, high)
    if whole:
        most = np.iinfo(shape.dtype).max
        below, above = np.minimum(np.floor(below), most), np.minimum(np.ceil(above), most)
    return np.asarray(below, shape.dtype), np.asarray(above, shape.dtype)


def _chosen(kept: Sequence[bool], usual: Pair, others: Sequence[tuple[Any, ...]]) -> Pair:
    pairs = [
        other if keep else (a, b) for keep, other, a, b in zip(kept, others, *usual, strict=True)
    ]
    return Pair([a for a, _ in pairs], [b for _, b in pairs])


def cast_floats(records: Mapping[str, Any], dtype: Any) -> dict[str, Any]:
    return {
        name: jnp.asarray(array, dtype)
        if jnp.issubdtype(array.dtype, jnp.floating)
        else jnp.asarray(array)
        for name, array in records.items()
    }


def example_shapes(example: Mapping[str, Any], label: str) -> dict[str, jax.ShapeDtypeStruct]:
    if not example:
        raise errors.ModelError(
            f"model `{label}`: example is empty, expected the arrays of one record by name",
            'write `{"x": np.zeros(3), "y": 0}`',
        )
    shapes = {}
    for name, value in example.items():
        dtype = value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype
        if not any(jnp.issubdtype(dtype, kind) for kind in _KINDS):
            raise errors.ModelError(
                f"model `{label}`: `{name}` of the example is {dtype}, "
                "expected floats, integers or booleans",
                "number the levels of a category from 0",
            )
        shapes[name] = jax.ShapeDtypeStruct(np.shape(value), dtype)
    return shapes


def checked_record(
    record: Mapping[str, Any],
    shapes: Mapping[str, jax.ShapeDtypeStruct],
    dtype: Any,
    label: str,
) -> dict[str, Array]:
    if set(record) != set(shapes):
        raise errors.ModelError(
            f"model `{label}`: the record has {listed(record)}, expected {listed(shapes)}",
            "give every argument of the model's example, and no others",
        )
    arrays = {}
    for name, expected in shapes.items():
        array = jnp.asarray(record[name])
        if array.shape != expected.shape:
            raise errors.ModelError(
                f"model `{label}`: `{name}` of the record has shape {array.shape}, "
                f"expected {expected.shape}",
                "give one record without the record axis; use jax.vmap over several",
            )
        if jnp.issubdtype(expected.dtype, jnp.floating):
            array = array.astype(dtype)
        elif not _is_same_kind(array.dtype, expected.dtype):
            raise errors.ModelError(
                f"model `{label}`: `{name}` of the record is {array.dtype}, "
                f"expected {expected.dtype}",
                "only numbers that the example declares as floating are converted",
            )
        arrays[name] = array
    return arrays


def _is_same_kind(a: Any, b: Any) -> bool:
    return any(jnp.issubdtype(a, kind) and jnp.issubdtype(b, kind) for kind in _KINDS)


def rows_in_words(shapes: Mapping[str, Any]) -> str:
    return f"{next(iter(shapes))}.shape[0]"


def plate_line(plate: str, shapes: Mapping[str, Any]) -> str:
    return f'with numpyro.plate("{plate}", {rows_in_words(shapes)}):'


def listed(names: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"
