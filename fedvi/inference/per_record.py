"""Computes the gradient of every record; for dense layers as a pair (input, signal), without forming it.

A dense layer's output is x·W. One record's gradient for W is the outer product of x and the signal, the
gradient at the output. So its norm is ‖x‖·‖signal‖, and a weighted sum over a batch is one product
of two matrices. Gradients of parameters that are used in any other way are formed, by ``vmap``.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Jaxpr, Literal

from fedvi.inference import programs

__all__ = ["Records", "gradients", "of_rows", "triangles"]

# At most this many squares are added in float32.
_SHORT = 2048
# The smallest normal number of float32.
_TINY = 2.0**-126
# A bound that rounding cannot take beyond the largest float32.
_LARGE = 2.0**126


class _Layer(NamedTuple):
    """A product x·W whose W is a parameter, and in which each record has one x.

    Attributes:
      side: the place of W among the operands, 0 or 1.
      inner, ours: the axes that are summed over, of x and of W, in the same order.
      shape: of W.
      out: shape and dtype of the product.
    """

    side: int
    inner: tuple[int, ...]
    ours: tuple[int, ...]
    shape: tuple[int, ...]
    out: Any

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes of W in the order of the outer product: those summed over, then the others."""
        return (*self.ours, *(axis for axis in range(len(self.shape)) if axis not in self.ours))


class _Formed(NamedTuple):
    """Gradients as they are: values [B, …]."""

    values: Any


class _Outer(NamedTuple):
    """Gradients as outer products: inputs [B, K], signals [B, M], laid out as ``layer`` says."""

    inputs: Any
    signals: Any
    layer: _Layer


class _Triangle(NamedTuple):
    """Gradients as lower triangles [K, K]: inputs_i·signals_j where j < i, and a diagonal; [B, K] each."""

    inputs: Any
    signals: Any
    diagonal: Any


class Records(NamedTuple):
    """The gradients of all records, with some leaves never formed; made by ``gradients``.

    Attributes:
      parts: one for each leaf of the parameters.
      tree: the structure of the parameters.
      losses: one for each record, [B].
    """

    parts: tuple[Any, ...]
    tree: Any
    losses: Any

    @property
    def size(self) -> int:
        """How many numbers one record's gradient has."""
        return sum(_size(part) for part in self.parts)

    @property
    def spared(self) -> int:
        """How many numbers of one record's gradient are not formed."""
        return sum(_size(part) for part in self.parts if not isinstance(part, _Formed))

    @property
    def is_single(self) -> bool:
        """Whether all of it is float32, as ``norms`` and ``block_sums`` assume."""
        # For layers, ``_layer`` has checked it.
        given = [
            array for part in self.parts if not isinstance(part, _Outer) for array in tuple(part)
        ]
        return all(array.dtype == jnp.float32 for array in given)

    @property
    def error(self) -> float:
        """The relative error of ``norms`` and of ``norm``, at most.

        Proof: n squares are added in float32 up to ``_SHORT``, in whatever order, else in float64, which
        adds less than 2⁻²⁴ for n < 2²⁸. Then follow a root, one product of two norms, and the same once
        more over the leaves. For a triangle, K squares of signals are added for each of K rows, then K
        products with squares of inputs, and K squares of the diagonal: at most 3K additions behind any
        term. Each operation adds at most 2⁻²⁴, and each root halves the error before it, so the sum of all
        counts, with 32 for single operations, is an upper bound. Underflow of squares and norms is
        compensated: each loses at most 2⁻¹²⁶, and twice that is added.
        """
        adds = max(_additions(part) for part in self.parts)
        return (adds + len(self.parts) + 32.0) * 2.0**-24

    def norms(self) -> list[jax.Array]:
        """Returns upper bounds of the L2 norm of each record's gradient for each leaf, float32 [B] a leaf.

        They are above the norms by less than ``error`` of them and 2⁻⁶² a root of a number, of a product
        in either factor. Where an entry is NaN or infinite, or a norm is above about 2⁶³, the bound is
        not finite.
        """
        return [_norm_of(part) for part in self.parts]

    def norm(self) -> jax.Array:
        """Returns upper bounds of the norm of each record's whole gradient, float32 [B]; see ``norms``."""
        return _norm(jnp.stack(self.norms(), axis=1))

    def beside(self, numbers: jax.Array) -> "Records":
        """Returns these gradients and one more number a record, [B]: sums become (gradients, number)."""
        return Records(
            (*self.parts, _Formed(numbers)),
            jax.tree_util.treedef_tuple((self.tree, jax.tree.structure(0))),
            self.losses,
        )

    def block_sums(self, weights: Sequence[jax.Array], block: int) -> Callable[[Any], Any]:
        """Returns a function from the index of a block to float32 sums over its records, a tree of arrays.

        Each number is one inner product of at most ``block`` terms w·g, ‖w·g‖ ≤ w·‖g‖ in exact
        arithmetic up to 2⁻²⁴. A leaf of a record counts as zero where its weight is zero or not
        finite, or where a scaled factor may not be finite. The caller gives the weight 0 where ``norm`` is
        not finite; then no record can make a sum infinite.

        Args:
          weights: one array for each leaf, float32 [B], not negative.
          block: how many records a block has; the last may have fewer.
        """
        factors = [
            _blocks(factor, block)
            for part, weight in zip(self.parts, weights, strict=True)
            for factors in _weighted(part, weight)
            for factor in factors
        ]

        # Where the bound is finite, all numbers are finite.
        unsound = ~jnp.isfinite(jnp.stack(self.norms(), axis=1)).all(axis=1)
        unsound = _blocks(unsound, block)

        def products(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
            return [_product(*pair) for pair in zip(first, second, strict=True)]

        def kept(first: Sequence[Any], second: Sequence[Any], counts: Sequence[Any]) -> list[Any]:
            left, right = (
                [_zero_unless(*row) for row in zip(counts, factor, strict=True)]
                for factor in (first, second)
            )
            return products(left, right)

        def of(index: Any) -> Any:
            at = [factor[index] for factor in factors]
            # 0 · NaN and 0 · ∞ are NaN; they cannot occur if all rows are finite.
            summed = lax.cond(
                unsound[index].any(),
                kept,
                lambda first, second, _: products(first, second),
                at[::3], at[1::3], at[2::3],
            )  # fmt: skip
            each = iter(summed)
            return jax.tree.unflatten(self.tree, [_summed(part, each) for part in self.parts])

        return of

    def formed(self) -> Any:
        """Forms all gradients: a tree of arrays [B, …]."""
        return jax.tree.unflatten(self.tree, [_formed(part) for part in self.parts])


def of_rows(losses: Any, *parts: Any) -> Records:
    """Returns the gradients of records as a tuple with one leaf for each part.

    Args:
      losses: [B].
      parts: for each leaf the values [B, …]; or `triangles`.
    """
    made = tuple(part if isinstance(part, _Triangle) else _Formed(part) for part in parts)
    return Records(made, jax.tree.structure((0,) * len(made)), losses)


def triangles(inputs: Any, signals: Any, diagonal: Any) -> Any:
    """Returns unformed gradients that are lower triangles [B, K, K], for `of_rows`.

    Args:
      inputs, signals: [B, K] each; row i and column j < i of a record has inputs_i · signals_j.
      diagonal: [B, K].
    """
    return _Triangle(inputs, signals, diagonal)


def gradients(loss: Callable[..., Any], params: Any, *records: Any) -> Records:
    """Returns the gradient of ``loss(params, *record)`` with respect to ``params`` for every record.

    Args:
      loss: the scalar loss of one record, differentiable by JAX.
      params: a tree of float arrays.
      records: trees of arrays with the records along the first axis.
    """
    leaves, tree = jax.tree.flatten(params)

    def of_leaves(leaves: list[Any], *record: Any) -> Any:
        return loss(jax.tree.unflatten(tree, leaves), *record)

    one = jax.tree.map(lambda column: jax.ShapeDtypeStruct(column.shape[1:], column.dtype), records)
    program, _ = programs.flat(of_leaves, leaves, *one)
    layers = _layers(program.jaxpr, len(leaves))
    formed = [None if index in layers else leaf for index, leaf in enumerate(leaves)]
    taps = {
        index: jnp.zeros(layer.out.shape, layer.out.dtype) for index, (_, layer) in layers.items()
    }
    at = {number: index for index, (number, _) in layers.items()}

    def tapped(taps: Any, formed: Any, *record: Any) -> Any:
        held: dict[int, Any] = {}

        def product(number: int, operands: list[Any], results: list[Any]) -> list[Any]:
            if number not in at:
                return results
            index = at[number]
            held[index] = operands[1 - layers[index][1].side]
            return [results[0] + taps[index]]

        given = [leaf if own is None else own for own, leaf in zip(formed, leaves, strict=True)]
        values = [*given, *jax.tree.leaves(record)]
        (value,) = programs.evaluated(program.jaxpr, program.consts, values, product)
        return value, held

    over = (None, None, *[0] * len(records))
    (losses, inputs), (signals, grown) = jax.vmap(
        jax.value_and_grad(tapped, argnums=(0, 1), has_aux=True), in_axes=over
    )(taps, formed, *records)
    parts = [
        _outer(inputs[index], signals[index], layers[index][1])
        if index in layers
        else _Formed(grown[index])
        for index in range(len(leaves))
    ]
    return Records(tuple(parts), tree, losses)


def _layers(program: Jaxpr, count: int) -> dict[int, tuple[int, _Layer]]:
    """Finds the parameters, the first ``count`` inputs, that are used once, in a dense layer."""
    leaf_of = {variable: leaf for leaf, variable in enumerate(program.invars[:count])}
    uses: list[list[Any]] = [[] for _ in range(count)]
    for number, equation in enumerate(program.eqns):
        held = [
            (side, leaf_of[operand])
            for side, operand in enumerate(equation.invars)
            if not isinstance(operand, Literal) and operand in leaf_of
        ]
        for side, leaf in held:
            layer = _layer(equation, side) if len(held) == 1 else None
            uses[leaf].append(None if layer is None else (number, layer))
    for result in program.outvars:
        # Returned as it is, so its gradient must be formed.
        if not isinstance(result, Literal) and result in leaf_of:
            uses[leaf_of[result]].append(None)
    return {
        leaf: found[0]
        for leaf, found in enumerate(uses)
        if len(found) == 1 and found[0] is not None
    }


def _layer(equation: Any, side: int) -> _Layer | None:
    """Returns the dense layer of an equation with its weights at ``side``; None if it is not one."""
    if equation.primitive.name != "dot_general" or len(equation.invars) != 2:
        return None
    axes, batch = equation.params["dimension_numbers"]
    other = equation.invars[1 - side].aval
    free = [size for axis, size in enumerate(other.shape) if axis not in axes[1 - side]]
    if any(batch) or math.prod(free) != 1:
        return None
    # Norms and sums are proved for float32; gradients of other types are formed.
    ends = (*equation.invars, *equation.outvars)
    if any(end.aval.dtype != jnp.float32 for end in ends):
        return None
    return _Layer(
        side,
        tuple(axes[1 - side]),
        tuple(axes[side]),
        tuple(equation.invars[side].aval.shape),
        equation.outvars[0].aval,
    )


def _size(part: Any) -> int:
    if isinstance(part, _Triangle):
        return int(part.inputs.shape[1] ** 2)
    shape = part.layer.shape if isinstance(part, _Outer) else part.values.shape[1:]
    return math.prod(shape)


def _additions(part: Any) -> int:
    """Returns the most float32 additions behind any term of a part's norm."""
    if isinstance(part, _Triangle):
        # Triangles never use float64.
        return 3 * int(part.inputs.shape[1])
    if isinstance(part, _Outer):
        return min(max(part.inputs.shape[1], part.signals.shape[1]), _SHORT)
    return min(math.prod(part.values.shape[1:]), _SHORT)


def _norm_of(part: Any) -> jax.Array:
    if isinstance(part, _Outer):
        return _norm(part.inputs) * _norm(part.signals)
    if isinstance(part, _Triangle):
        return _norm_of_triangle(part)
    return _norm(part.values.reshape(part.values.shape[0], -1))


def _norm_of_triangle(part: _Triangle) -> jax.Array:
    """Returns upper bounds of √(Σ_i x_i² Σ_{j<i} s_j² + Σ_i d_i²), [B]; see ``Records.norms``.

    Sums are in float32 for any K, as in `_additions`. A square may lose 2⁻¹²⁶ by underflow, and so may a
    product of two numbers that are each compensated; so the same is added once more for each.
    """
    size = part.inputs.shape[1]
    lost = jnp.float32(2.0 * _TINY)
    inputs, signals, diagonal = (array * array + lost for array in part)
    below = jnp.triu(jnp.ones((size, size), jnp.float32), 1)
    # HIGHEST: on a GPU the default would round to TF32. No term is negative.
    before = jnp.matmul(signals, below, precision=lax.Precision.HIGHEST)
    squares = (inputs * before).sum(axis=1) + diagonal.sum(axis=1)
    return jnp.sqrt(squares + size * lost)


def _formed(part: Any) -> Any:
    if isinstance(part, _Outer):
        return _laid_out(part.inputs[:, :, None] * part.signals[:, None, :], part.layer)
    if isinstance(part, _Triangle):
        return _filled(part.inputs[:, :, None] * part.signals[:, None, :], part.diagonal)
    return part.values


def _filled(products: Any, diagonal: Any) -> Any:
    """Returns lower triangles [..., K, K] of products, with ``diagonal`` [..., K] as their diagonal."""
    size = diagonal.shape[-1]
    row, column = (jnp.arange(size, dtype=jnp.int32)[at] for at in ((slice(None), None), (None,)))
    lower = jnp.where(row > column, products, jnp.zeros_like(products))
    return jnp.where(row == column, diagonal[..., None, :], lower)


def _summed(part: Any, products: Iterator[Any]) -> Any:
    """Returns the sum of a part's gradients from one product for each pair of factors of `_weighted`."""
    product = next(products)
    if isinstance(part, _Outer):
        return _laid_out(product[None], part.layer)[0]
    if isinstance(part, _Triangle):
        return _filled(product, next(products)[0])
    return product.reshape(part.values.shape[1:])


def _outer(inputs: Any, signals: Any, layer: _Layer) -> _Outer:
    rows = signals.shape[0]
    shared = tuple(axis + 1 for axis in layer.inner)
    alone = tuple(axis for axis in range(1, inputs.ndim) if axis not in shared)
    ordered = inputs.transpose(0, *shared, *alone)
    return _Outer(ordered.reshape(rows, -1), signals.reshape(rows, -1), layer)


def _laid_out(products: Any, layer: _Layer) -> Any:
    """Brings outer products [n, K, M] into the shape of the weights: [n, …]."""
    axes = layer.axes
    shape = [layer.shape[axis] for axis in axes]
    back = [1 + int(axis) for axis in np.argsort(axes)]
    return products.reshape(products.shape[0], *shape).transpose(0, *back)


def _norm(vectors: Any) -> jax.Array:
    """Returns upper bounds of the L2 norms [B] of vectors [B, n]; see ``Records.norms``."""
    if vectors.shape[1] <= _SHORT:
        squares = (vectors * vectors).sum(axis=1)
    else:
        with jax.enable_x64(True):
            wide = vectors.astype(jnp.float64)
            squares = (wide * wide).sum(axis=1).astype(jnp.float32)
    # Each square may have lost this much by underflow.
    return jnp.sqrt(squares + vectors.shape[1] * 2.0 * _TINY)


def _blocks(values: Any, block: int) -> Any:
    """Splits [B, …] into [blocks, block, …], filled up with zeros."""
    rows = values.shape[0]
    count = -(-rows // block)
    filled = jnp.pad(values, [(0, count * block - rows)] + [(0, 0)] * (values.ndim - 1))
    return filled.reshape(count, block, *values.shape[1:])


def _zero_unless(counts: Any, values: Any) -> Any:
    """Returns the rows of values [B, …] that count, and zeros for the others."""
    return jnp.where(counts.reshape(-1, *[1] * (values.ndim - 1)), values, jnp.zeros_like(values))


def _product(left: Any, right: Any) -> Any:
    """Returns leftᵀ·right in float32: [b, n] and [b, m] → [n, m]."""
    return jnp.matmul(left.T, right, precision=lax.Precision.HIGHEST)


def _weighted(part: Any, weight: Any) -> list[tuple[Any, Any, Any]]:
    """Returns both factors of each weighted sum, and which rows count; one factor is zero in other rows.

    In outer products the shorter factor is weighted; the other may not be finite in rows that do not count.
    """
    counts = (weight != 0.0) & jnp.isfinite(weight)
    if isinstance(part, _Formed):
        return [_plain(part.values.reshape(part.values.shape[0], -1), weight, counts)]
    of_inputs = part.inputs.shape[1] < part.signals.shape[1]
    shorter = part.inputs if of_inputs else part.signals
    scaled = shorter * weight[:, None]
    # Rounding to a denormal could increase them, and the other factor may be large: flush to zero.
    scaled = jnp.where(jnp.abs(scaled) < _TINY, jnp.zeros_like(scaled), scaled)
    # No number of a row exceeds its norm, so no scaled one is infinite.
    counts &= weight * _norm(shorter) < _LARGE
    scaled = _zero_unless(counts, scaled)
    product = (scaled, part.signals, counts) if of_inputs else (part.inputs, scaled, counts)
    if isinstance(part, _Triangle):
        return [product, _plain(part.diagonal, weight, counts)]
    return [product]


def _plain(values: Any, weight: Any, counts: Any) -> tuple[Any, Any, Any]:
    return _zero_unless(counts, weight)[:, None], values, counts
