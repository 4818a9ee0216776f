"""Clipped sums with a proved sensitivity to one privacy unit.

If the mechanism has a grid, contributions are clipped and rounded to whole multiples of its step, so that
the proofs apply exactly to what is sent, with no floating-point rounding.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedvi import errors
from fedvi.privacy.base import ROWS_TOGETHER, Batch, Grid, Mechanism, Sampler, Shift

__all__ = [
    "Bounded",
    "clipped_changes",
    "clipped_sum",
    "clipped_sum_of_parts",
    "float_limit",
    "float_sum",
    "float_sum_of",
    "zeros_like",
]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Bounded:
    """A total of bounded sensitivity, without noise yet; it must never be sent.

    Attributes:
      total: arrays without the record axis; whole numbers of steps if there is a grid.
      shift: the L2 sensitivity of ``total``, over all its leaves together.
      sampler: picked the records that were summed.
      grid: the grid of the mechanism that will noise the total; None for floats.
    """

    total: Any = dataclasses.field(repr=False)
    shift: Shift = dataclasses.field(metadata={"static": True})
    sampler: Sampler = dataclasses.field(metadata={"static": True})
    grid: Grid | None = dataclasses.field(default=None, metadata={"static": True})


def clipped_sum(
    contributions: Any, clip_norm: float, batch: Batch, mechanism: Mechanism
) -> Bounded:
    """Clips every record's contribution to an L2 ball and sums: Σₙ gₙ · min(1, C / ‖gₙ‖).

    Guarantee: for any two data sets differing in one record, and the same draws of the sampler for
    all other records, ‖total − total′‖₂ ≤ C when the record is added or removed and ≤ 2C when it is
    substituted, for every value of ``contributions`` including NaN and infinities (a record with
    any of them counts as zero). On a grid this is exact. Proof: a record counts only if the squared
    norm of its integers is at most ⌊K²⌋, K = C / g; the check is exact (``_within``), sums of
    integers are exact and cannot wrap (``_whole_total``), and all other summands are the same; so
    the total moves by at most K steps, or 2K. That the other summands are the same is an assumption
    about the compiled code that computes ``contributions``: that a record's gradient has the same float32
    value in every row of the batch, whatever the other rows hold (a record that is added or removed may
    move them). XLA does not guarantee it. ``fedvi.inference.rows_alike`` checks it on made-up records
    before a run is charged, which is no proof (docs/proofs/rounded_gaussian.md). In floating point the
    rounding of the sum is not covered, which is one reason why float noise is marked "simulation: no
    guarantee".

    On a grid the clip norm is reduced to C − (√d / 2 + K / 10⁶)·g, so that a clipped record still has
    norm at most C after float32 arithmetic and after each of its d entries is rounded to the nearest
    multiple of g. Otherwise the check would drop clipped records.

    Args:
      contributions: a tree of float arrays of one dtype, each [B, …]; the norm is over all leaves
        of a record.
      clip_norm: C > 0; ``inf`` switches clipping off, for comparisons without noise.
      batch: the rows that the contributions were computed from.
      mechanism: will noise the total; it defines the grid.

    Returns:
      The sum over unmasked records, in the leaves' shapes without the record axis.

    Raises:
      PrivacyError: if ``clip_norm`` is not positive, the grid is too coarse for d numbers, or the batch
        has fewer rows than its sampler's ``capacity``.
    """
    return clipped_sum_of_parts(lambda _: contributions, 1, clip_norm, batch, mechanism)


def clipped_sum_of_parts(
    contributions: Callable[[Any], Any],
    parts: int,
    clip_norm: float,
    batch: Batch,
    mechanism: Mechanism,
    add_up: Callable[[Callable[[Any], Any], int], Any] | None = None,
) -> Bounded:
    """Does what `clipped_sum` does, with only one part of the batch's contributions in memory at a time.

    Guarantee: that of `clipped_sum`, by the same proof: every record is clipped, rounded and checked by
    itself, and integers are added exactly, in whatever order.

    Args:
      contributions: index of a part → contributions of its rows, a tree of float arrays [rows, …]. Parts
        are consecutive and of equal length; the last may extend beyond the batch.
      parts: how many there are.
      clip_norm: C > 0; see `clipped_sum`.
      batch: the rows that are summed.
      mechanism: will noise the total.
      add_up: (total of a part, an array of integers; ``parts``) → the sum of the totals of all parts, each
        taken once; called where there is a grid and more than one part. Left out, they are added in
        sequence.

    Raises:
      PrivacyError: as `clipped_sum`; or the parts do not cover the batch.
    """
    if not clip_norm > 0.0:
        raise errors.PrivacyError(f"clip_norm is {clip_norm}, expected a positive number")
    grid, batch_rows = mechanism.grid(clip_norm), _row_count(batch)
    like = jax.eval_shape(lambda: contributions(0))
    rows = jax.tree.leaves(like)[0].shape[0]
    if parts < 1 or not (parts - 1) * rows < max(batch_rows, 1) <= parts * rows:
        raise errors.PrivacyError(
            f"{parts} parts of {rows} rows, expected as many as cover the {batch_rows} of the batch"
        )
    size = sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(like))
    limit = clip_norm if grid is None else _tightened(grid, size, mechanism, clip_norm)
    wide = grid is not None and _is_wide(_farthest(parts * rows, grid), grid)
    masks = jnp.pad(batch.mask, (0, parts * rows - batch_rows)).reshape(parts, rows)

    def total(index: Any) -> Any:
        flat = _flatten(contributions(index))
        return _clipped_total(flat, masks[index], limit, grid, wide)

    if parts == 1:
        vector = total(0)
    elif grid is not None and add_up is not None:
        vector = add_up(total, parts)
    else:

        def add(so_far: Any, index: Any) -> tuple[Any, None]:
            part = total(index)
            with jax.enable_x64(wide):
                return so_far + part, None

        empty = zeros_like(jax.eval_shape(total, 0))
        vector = jax.lax.scan(add, empty, jnp.arange(parts, dtype=jnp.int32))[0]
    shift = Shift(clip_norm, clip_norm, 2.0 * clip_norm)
    return Bounded(_split(vector, like), shift, batch.sampler, grid)


def _clipped_total(flat: Any, mask: Any, limit: float, grid: Grid | None, wide: bool) -> Any:
    """Clips rows [B, d] to ``limit``, in steps if there is a grid, and sums them: [d]."""
    usable = mask & jnp.isfinite(flat).all(axis=1)
    flat = jnp.where(usable[:, None], flat, jnp.zeros_like(flat))
    # Scaled by the largest entry first, since the square of 1e30 overflows float32.
    largest = jnp.abs(flat).max(axis=1, initial=0.0)
    unit = flat / jnp.where(largest > 0.0, largest, jnp.ones_like(largest))[:, None]
    norm = jnp.maximum(jnp.sqrt((unit * unit).sum(axis=1)), jnp.ones_like(largest))
    most = jnp.asarray(limit, flat.dtype) / norm
    if grid is None:
        return (unit * jnp.minimum(largest, most)[:, None]).sum(axis=0)
    steps = jnp.minimum(largest / jnp.asarray(grid.step, flat.dtype), most)
    integers = jnp.round(unit * steps[:, None]).astype(jnp.int32)
    integers = jnp.where(_within(integers, grid.bound)[:, None], integers, 0)
    return _whole_total(integers, wide)


def clipped_changes(
    changes: Any,
    clip_norm: float,
    batch: Batch,
    mechanism: Mechanism,
    add_remove: int,
    substitute: int,
) -> Bounded:
    """Clips changes, each fitted on many records, and sums: Σₖ Δₖ · min(1, C / ‖Δₖ‖).

    Here a row is not a record: any of the records that it was fitted on may turn it into any other vector.

    Guarantee: let at most ``add_remove`` rows of ``changes`` differ between two data sets of which
    one has a unit more, and at most ``substitute`` rows if one unit is another. Then
    ‖total − total′‖₂ ≤ 2C times that number, for every value of ``changes`` including NaN and
    infinities; exactly so on a grid. Proof: every summand of ``clipped_sum`` has norm C at most, on
    the grid too, whatever its row holds. So a row that differs moves the total by 2C at most, under
    either relation: the row is there before and after, and only what it says changes. Equal rows
    give equal summands, and the moves of several rows add up to no more than their norms do.

    Args:
      changes: a tree of float arrays, each [K, …].
      clip_norm: C, as in ``clipped_sum``.
      batch: K rows, and the sampler that picked the records in them.
      mechanism: as in ``clipped_sum``.
      add_remove, substitute: how many rows one unit changes; the caller must prove this.

    Raises:
      PrivacyError: as ``clipped_sum``; or a number of rows is not from 1 to K.
    """
    bounded = clipped_sum(changes, clip_norm, batch, mechanism)
    rows = min(_row_count(batch), batch.sampler.capacity)  # others fill the batch up
    if not (1 <= add_remove <= rows and 1 <= substitute <= rows):
        raise errors.PrivacyError(
            f"one unit changes {add_remove} or {substitute} of {rows} rows, expected 1 to {rows}"
        )
    shift = Shift(clip_norm, 2.0 * clip_norm * add_remove, 2.0 * clip_norm * substitute)
    return dataclasses.replace(bounded, shift=shift)


def float_limit(
    clip_norm: float,
    block: int,
    blocks: int,
    rows: int,
    size: int,
    mechanism: Mechanism,
    *,
    double: bool = False,
) -> float:
    """Returns the norm to clip rows to, so that one record moves their `float_sum` by at most C.

    That is C less the errors of float sums and of rounding to the grid; C itself without a grid.

    Args:
      clip_norm: C.
      block: b, the most terms in one block sum.
      blocks: the number of block sums; blocks · block ≥ rows.
      rows: B, the rows of the batch.
      size: d, the number of coordinates.
      mechanism: noises the sum.
      double: whether block sums are float64, as in `float_sum`.

    Raises:
      PrivacyError: if there are too few blocks; unless 2⁻⁷⁰·√d ≤ C and b·C·(1 + γ_b) < 2¹²⁸ (so that
        no block sum of such rows overflows, and underflow stays within the surplus); or if more than
        5 % of C is lost.
    """
    if block < 1 or blocks * block < rows:
        raise errors.PrivacyError(
            f"{blocks} blocks of {block} hold fewer than the {rows} rows of the batch"
        )
    grid = mechanism.grid(clip_norm)
    if grid is None:
        return clip_norm
    _check_float_range(clip_norm, block, size, double)
    surplus = _float_surplus(block, blocks, double) * rows
    rounding = math.sqrt(size) * grid.step / clip_norm
    limit = (1.0 - rounding) / (1.0 + surplus)
    if limit < 1.0 - _LARGEST_SURPLUS:
        raise errors.PrivacyError(
            f"the float sum of {rows} rows in blocks of {block}, {size} numbers each, takes "
            f"{1.0 - limit:.1%} of the clip norm, expected at most {_LARGEST_SURPLUS:.0%}: "
            f"{surplus:.1%} for the sum and {rounding:.1%} for the grid",
            "use shorter blocks, smaller batches, or a finer grid (`fineness` of the mechanism)",
        )
    return clip_norm * limit


def float_sum(
    block_sum: Callable[[Any], Any],
    blocks: int,
    block: int,
    clip_norm: float,
    batch: Batch,
    mechanism: Mechanism,
    *,
    double: bool = False,
    stacked: int = 1,
) -> Bounded:
    """Adds float sums of blocks of clipped contributions and rounds once; for norm-only clipping.

    Guarantee: if every block sum is a float32 sum, or inner product, of at most ``block`` terms
    c·g with ‖c·g‖₂ ≤ `float_limit` in exact arithmetic, added in any order in float32 without TF32
    (or all that in float64, if ``double``), and every block without records is zero, then
    ‖total − total′‖₂ ≤ C when a record is added or removed, and ≤ 2C when it is substituted. Proof:
    docs/proofs/float_sum.md. All B rows of the batch count, since a record that is removed may move
    the others to other blocks. As in `clipped_sum` it is assumed, and checked on made-up records, that a
    record's c·g has the same value in whichever row it stands, whatever the other rows hold. Without a grid
    the rounding of the sum of floats is not covered.

    Args:
      block_sum: index of a block → its sum, a tree of arrays; called in a loop, so that only one block's
        sum is in memory at a time.
      blocks: how many there are; blocks · block ≥ B.
      block: b, the most terms in one block sum.
      clip_norm: C.
      batch: the rows that are summed.
      mechanism: noises the sum.
      double: whether block sums are float64; ``block_sum`` is then traced with x64 enabled. Blocks may
        then have any length, at the cost of float64 arithmetic.
      stacked: how many block sums ``block_sum`` returns at a time. If more than one, ``index`` counts such
        stacks, each array has them along its first axis, and ``blocks`` is a multiple of ``stacked``.

    Raises:
      PrivacyError: as `float_limit`; block sums have another dtype; the batch has fewer rows than its
        sampler's ``capacity``.
    """
    with jax.enable_x64(double):
        like, rows = jax.eval_shape(block_sum, np.int32(0)), _row_count(batch)
    wanted = jnp.float64 if double else jnp.float32
    for leaf in jax.tree.leaves(like):
        if leaf.dtype != wanted:
            raise errors.PrivacyError(
                f"block sums have dtype {leaf.dtype}, expected {wanted.__name__}"
            )
    size = sum(leaf.size for leaf in jax.tree.leaves(like)) // stacked
    float_limit(clip_norm, block, blocks, rows, size, mechanism, double=double)
    shift = Shift(clip_norm, clip_norm, 2.0 * clip_norm)
    grid, calls = mechanism.grid(clip_norm), blocks // stacked
    if calls * stacked != blocks:
        raise errors.PrivacyError(
            f"{blocks} blocks in stacks of {stacked}, expected a multiple of {stacked}"
        )

    def together(leaf: Any) -> Any:
        return leaf.sum(axis=0) if stacked > 1 else leaf

    if grid is None:
        with jax.enable_x64(double):
            total = _added_up(block_sum, calls, like, together, double)
            total = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), total)
        return Bounded(total, shift, batch.sampler, None)
    # Clipped to a box so that no sum wraps; this moves no two totals further apart.
    farthest = _farthest(rows, grid) + math.isqrt(grid.bound) + 1
    wide = _is_wide(farthest, grid)

    def exact(leaf: Any) -> Any:
        finite = jnp.where(jnp.isfinite(leaf), leaf, jnp.zeros_like(leaf))
        return together(finite.astype(jnp.float64))

    def whole(leaf: Any) -> Any:
        boxed = jnp.clip(
            jnp.round(leaf / jnp.float64(grid.step)), -float(farthest), float(farthest)
        )
        return boxed.astype(jnp.int64 if wide else jnp.int32)

    with jax.enable_x64(True):
        total = jax.tree.map(whole, _added_up(block_sum, calls, like, exact, double))
    return Bounded(total, shift, batch.sampler, grid)


def float_sum_of(
    block_sums: Iterable[Any],
    blocks: int,
    block: int,
    clip_norm: float,
    rows: int,
    sampler: Sampler,
    mechanism: Mechanism,
) -> Bounded:
    """Does what `float_sum` does with ``double``, for block sums computed outside one compiled program.

    So records need not all be in memory, and blocks may be summed on several processors. Guarantee: that
    of `float_sum`, by the same proof, if every block sum is what is asked for there, each of ``blocks``
    disjoint blocks gives one at most, and those that give none are zero. Block sums are added
    sequentially, in float64.

    Args:
      block_sums: trees of float64 arrays, one or more.
      blocks: how many blocks the batch has; blocks · block ≥ rows.
      block: b, the most terms in one block sum.
      clip_norm: C.
      rows: B, the rows of the batch, at least the sampler's ``capacity``.
      sampler: picked the rows.
      mechanism: noises the sum.

    Raises:
      PrivacyError: as `float_limit`; block sums have another dtype, or there are none or more than
        ``blocks``; there are fewer rows than the sampler's ``capacity``.
    """
    _check_rows(rows, sampler)
    total, seen = None, 0
    for part in block_sums:
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(part)]
        for leaf in leaves:
            if leaf.dtype != np.float64:
                raise errors.PrivacyError(f"block sums have dtype {leaf.dtype}, expected float64")
        # As in `float_sum`: an entry that is not finite violates the contract, and counts as zero.
        leaves = [
            leaf if np.isfinite(leaf).all() else np.where(np.isfinite(leaf), leaf, 0.0)
            for leaf in leaves
        ]
        total = leaves if total is None else [a + b for a, b in zip(total, leaves, strict=True)]
        tree, seen = jax.tree.structure(part), seen + 1
    if total is None or seen > blocks:
        raise errors.PrivacyError(f"{seen} block sums, expected 1 to {blocks}")
    size = sum(leaf.size for leaf in total)
    float_limit(clip_norm, block, blocks, rows, size, mechanism, double=True)
    shift = Shift(clip_norm, clip_norm, 2.0 * clip_norm)
    grid = mechanism.grid(clip_norm)
    if grid is None:
        floats = [jnp.asarray(leaf.astype(np.float32)) for leaf in total]
        return Bounded(jax.tree.unflatten(tree, floats), shift, sampler, None)
    farthest = _farthest(rows, grid) + math.isqrt(grid.bound) + 1
    whole = np.int64 if _is_wide(farthest, grid) else np.int32
    boxed = [np.clip(np.round(leaf / grid.step), -farthest, farthest) for leaf in total]
    with jax.enable_x64(True):
        integers = [jnp.asarray(leaf.astype(whole)) for leaf in boxed]
    return Bounded(jax.tree.unflatten(tree, integers), shift, sampler, grid)


def zeros_like(like: Any) -> Any:
    """Returns zeros of the shape and dtype of ``like``, float64 included."""
    with jax.enable_x64(like.dtype.itemsize == 8):
        return jnp.zeros(like.shape, like.dtype)


def _added_up(
    block_sum: Callable[[Any], Any],
    blocks: int,
    like: Any,
    convert: Callable[[Any], Any],
    double: bool,
) -> Any:
    """Converts the block sums and adds them in sequence."""

    def converted(index: Any) -> Any:
        with jax.enable_x64(double):
            part = block_sum(index)
        return jax.tree.map(convert, part)

    if blocks == 1:
        return converted(np.int32(0))

    def add(total: Any, index: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, converted(index)), None

    start = jax.tree.map(lambda leaf: convert(jnp.zeros(leaf.shape, leaf.dtype)), like)
    return jax.lax.scan(add, start, jnp.arange(blocks, dtype=jnp.int32))[0]


def _row_count(batch: Batch) -> int:
    """Returns B, which must not depend on any record, because it sets the clip limit of all records."""
    rows: int = batch.mask.shape[0]
    _check_rows(rows, batch.sampler)
    return rows


def _check_rows(rows: int, sampler: Sampler) -> None:
    """Rejects a batch with fewer rows than its sampler draws, or with more padding than allowed.

    Kernels take rows in groups, so solvers pad with masked rows, to at most twice the batch plus 256.
    """
    least, most = sampler.capacity, 2 * sampler.capacity + _FILLED_UP
    if not least <= rows <= most:
        raise errors.PrivacyError(
            f"a batch has {rows} rows, expected {least}, which its sampler draws, to {most}: if the "
            "number of rows followed the number of records, one record could change how all others count",
            "pad the batch with masked rows" if rows < least else "draw it by the sampler",
        )


# A solver may pad a batch to twice its rows plus this number: four parts of whole groups.
_FILLED_UP = 4 * ROWS_TOGETHER

# The largest share of the clip norm that rounding may take, or of the shift that float sums may add.
_LARGEST_SURPLUS = 0.05


def _flatten(contributions: Any) -> Any:
    """Returns the leaves side by side, [B, d]."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(contributions)]
    return jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)


def _split(vector: Any, like: Any) -> Any:
    """Splits a vector [d] into the shapes of a tree of contributions, without their first axes."""
    leaves, tree = jax.tree.flatten(like)
    shapes = [leaf.shape[1:] for leaf in leaves]
    ends = np.cumsum([math.prod(shape) for shape in shapes]).tolist()
    parts = [
        vector[start:stop].reshape(shape)
        for start, stop, shape in zip([0, *ends[:-1]], ends, shapes, strict=True)
    ]
    return jax.tree.unflatten(tree, parts)


def _tightened(grid: Grid, size: int, mechanism: Mechanism, clip_norm: float) -> float:
    """Returns the clip norm in steps, reduced to leave room for rounding ``size`` coordinates."""
    radius = math.sqrt(grid.bound)
    room = math.sqrt(size) / 2.0
    if room > _LARGEST_SURPLUS * radius:
        width = clip_norm / grid.step  # the bound is its square, rounded down
        most = math.floor((2.0 * _LARGEST_SURPLUS * radius) ** 2)
        noise = mechanism.noise_multiplier
        # A thousandth less, since at the limit itself the rounded-down bound would fail the check.
        largest = 0.999 * noise * width * _LARGEST_SURPLUS / room
        raise errors.PrivacyError(
            f"noise_multiplier is {noise:g}, expected at most {largest:.4g} for {size} numbers on "
            f"a grid of {width:.4g} steps a clip norm: rounding to it takes {room / width:.1%} of "
            f"the clip norm, expected at most {_LARGEST_SURPLUS:.0%}; this grid carries at most "
            f"{most} numbers",
            "give the mechanism a finer grid (`fineness`), a smaller noise multiplier, or release "
            "fewer numbers",
        )
    # Reduced by another millionth, for the float32 arithmetic of clipping.
    return radius * (1.0 - 1e-6) - room


def _within(integers: Any, bound: int) -> Any:
    """Whether Σ xᵢ² ≤ bound for each row, exactly; int32 [B, d] → bool [B].

    Proof: the sum is taken in float64. While the true sum is at most 2⁵³, every square and every
    partial sum is a whole number up to 2⁵³ (no term is negative), so each is exact, in any order
    and with fused multiply-adds. If it is more, the computed sum is at least (1 − d·2⁻⁵³)·2⁵³,
    above 2⁵² for d < 2⁵². Bounds are below 2⁵²: a mechanism's grid refuses others.
    """
    with jax.enable_x64(True):
        wide = integers.astype(jnp.float64)
        return (wide * wide).sum(axis=1) <= jnp.float64(bound)


def _farthest(rows: int, grid: Grid) -> int:
    return rows * math.isqrt(grid.bound)


def _is_wide(farthest: int, grid: Grid) -> bool:
    """Whether the sum of ``grid.terms`` noised totals may reach 2³¹ and so needs int64."""
    reach = grid.terms * (farthest + grid.tail)
    if reach >= 2**63:
        raise errors.PrivacyError(
            f"{grid.terms} totals of up to {farthest + grid.tail} steps each may add up to 2**63 "
            "or more, expected less",
            "use fewer terms, smaller batches, or a coarser grid (`fineness` of the mechanism)",
        )
    return reach >= 2**31


def _whole_total(integers: Any, wide: bool) -> Any:
    """Sums rows whose squared norm is within the grid's bound: int32 [B, d] → int32 or int64 [d].

    No sum wraps: an entry is at most ⌊√bound⌋ in size, so |sum + noise| ≤ B·⌊√bound⌋ + tail, in any
    order, and the sum of ``terms`` such totals is at most ``terms`` times that. int64 is used if this
    reaches 2³¹; an error is raised if it reaches 2⁶³.
    """
    if not wide:
        return integers.sum(axis=0, dtype=jnp.int32)
    with jax.enable_x64(True):
        return integers.astype(jnp.int64).sum(axis=0)


def _check_float_range(clip_norm: float, block: int, size: int, double: bool) -> None:
    """Rejects clip norms at which block sums may overflow, or underflow beyond the error bound."""
    least = 2.0**-70 * math.sqrt(size)
    if not clip_norm >= least:
        raise errors.PrivacyError(
            f"clip_norm is {clip_norm}, expected at least {least:.3g} for a float sum of {size} "
            "numbers: below it float32 underflow may move the sum further than is counted",
            "measure the contributions in smaller units",
        )
    most = float(np.finfo(np.float32).max) / (block * (1.0 + _block_error(block, double)))
    if not clip_norm < most:
        raise errors.PrivacyError(
            f"clip_norm is {clip_norm}, expected below {most:.3g} for float32 sums of {block} rows: "
            "at it the sum of a block may overflow, and would be lost",
            "measure the contributions in larger units, or use shorter blocks",
        )


def _block_error(block: int, double: bool) -> float:
    """γ_b = b·u / (1 − b·u) of float32 or float64; infinite if the block is too long for a bound."""
    share = block * (2.0**-53 if double else 2.0**-24)
    return share / (1.0 - share) if share < 1.0 else math.inf


def _float_surplus(block: int, blocks: int, double: bool) -> float:
    """Returns twice the error of the float sum, in units of B·C; see docs/proofs/float_sum.md."""
    inner = _block_error(block, double)
    # At most blocks + 6 roundings: adding blocks, and dividing by the step, which is itself rounded.
    outer = (blocks + 6) * 2.0**-53 / (1.0 - (blocks + 6) * 2.0**-53)
    # Underflow loses at most 2⁻¹⁴⁹ per operation, which is within the margin of 1e-6.
    return 2.0 * (inner + outer * (1.0 + inner)) * (1.0 + 1e-6)
