"""Computes the noised sum of a visit block by block in float64, for shards of any size, on all devices."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax

from fedvi.inference.blocks import BLOCK, blocks_of, length_of, single_precision
from fedvi.inference.parallel_parts import compiled_calls, on_devices, thread_count
from fedvi.privacy.base import Mechanism, Sampler
from fedvi.privacy.bounded import float_limit, float_sum_of
from fedvi.privacy.release import Released, release
from fedvi.typing import ROWS

__all__ = ["noised_in_blocks"]

# Float64 roundings behind one term of a sum, besides the additions.
_ROUNDINGS = 8


def noised_in_blocks(
    sampler: Sampler,
    mechanism: Mechanism,
    clip_norm: float,
    size: int,
    block_sum: Callable[..., dict[str, Any]],
) -> Callable[..., Released]:
    """Returns a function ``(sampling key, noise key, records, valid, *given)`` → the noised sum of a batch.

    Guarantee: that of `float_sum_of`, if ``block_sum`` keeps its promise.

    Args:
      sampler, mechanism, clip_norm: those of the visit.
      size: how many numbers a record's vector has.
      block_sum: ``(*given, records, mask, limit)`` → the float64 sum of the vectors of a block's rows.
        It is compiled here, with ``limit`` a constant. It must clip each vector to norm ``limit``, with a
        relative error of at most 2⁻²⁰ in float64, and use at most eight roundings a term.
    """
    draw = jax.jit(sampler.draw)
    prepared = compiled_calls(jax.jit(block_sum, static_argnames="limit"))
    noised = jax.jit(lambda key, bounded: release(key, bounded, mechanism))

    def by_blocks(
        sampling_key: Any, noise_key: Any, records: Any, valid: Any, *given: Any
    ) -> Released:
        batch = draw(sampling_key, valid)
        count = batch.mask.shape[0]
        # A unit has as many rows as the study allows.
        together = records[ROWS].shape[1] if ROWS in records else 1
        length = length_of(count, max(BLOCK // together, 64))
        blocks, terms = -(-count // length), length + _ROUNDINGS
        limit = float_limit(clip_norm, terms, blocks, count, size, mechanism, double=True)
        limit *= 1.0 - 2.0**-20
        sums = on_devices(
            lambda block: prepared(
                *given, single_precision(block.records), block.mask, limit=limit
            ),
            blocks_of(records, batch.indices, batch.mask, length),
            min(thread_count(), blocks),
        )
        with contextlib.closing(sums):
            bounded = float_sum_of(sums, blocks, terms, clip_norm, count, sampler, mechanism)
        return noised(noise_key, bounded)

    return by_blocks
