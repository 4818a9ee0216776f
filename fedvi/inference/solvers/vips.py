"""Private VB for conjugate-exponential models: one noised sum of expected sufficient statistics a visit."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedvi import errors
from fedvi.expfam import tree
from fedvi.expfam.base import is_full
from fedvi.inference.blocks import blocks_of, is_large, length_of, single_precision
from fedvi.inference.checked_visits import check_of, visits
from fedvi.inference.parallel_parts import PARTS, compiled_calls, on_devices, striped, thread_count
from fedvi.inference.units import UnitModel
from fedvi.models.base import Model
from fedvi.models.capabilities import Regression
from fedvi.models.length_classes import through_chunks
from fedvi.models.outcomes.base import GivenLatents
from fedvi.privacy.base import Mechanism, Sampler, Shift, filled
from fedvi.privacy.bounded import float_limit, float_sum, float_sum_of
from fedvi.privacy.release import Released, release
from fedvi.typing import Key
from fedvi.updates.base import LocalSolver, Shard, Task, compiled_once
from fedvi.updates.conjugate import Centred, ConjugateModel, Ragged, packed
from fedvi.updates.limits import Sign, limit_of
from fedvi.updates.statistics import broadcast, finish_statistics, stand_statistics

__all__ = ["conjugate_form", "vips"]

# Float64 roundings behind one term of a sum, besides the additions: factors of a term, the clip's
# weight, √2 and the block's weight.
_ROUNDINGS = 8
# The fewest ragged records of a part, where ``rows_together`` asks for fewer.
_FEWEST = 64
# Smaller norms count as this.
_LEAST = 1e-300
# The smallest normal number of float32.
_TINY = 2.0**-126
# The range of a block's weight. Its square stays far from the ends of float64's range, where a norm would
# miss a block that is summed all the same.
_WEIGHTS = (1e-30, 1e30)
# The largest relative error of a model's norms: C is lowered by that share.
_LARGEST_ERROR = 0.05


def vips(
    family: Any,
    model: Model | ConjugateModel,
    sampler: Sampler,
    mechanism: Mechanism,
    clip_norm: float = 1.0,
    averaging: float | None = None,
    delay: float = 1.0,
    emphasis: float | None = None,
    shares: Mapping[str, float] | None = None,
    typical: Mapping[str, float] | None = None,
    row_norm: float | None = None,
    learn_prior: str = "no",
    ridge: float = 0.5,
    rows_together: int = 4096,
) -> LocalSolver:
    """Returns the solver that answers with its records' noised sum of expected sufficient statistics at q.

    Per record, the statistics E[s] of all blocks form one vector. Blocks are weighted so that a typical
    record's vector has norm 1 and its blocks have the given shares. The vector is clipped to C, and the sum
    is noised once a visit. The server divides by the public rate, keeps a running mean of each client's
    sums, and adds the prior to the sum over clients. A client keeps nothing from visit to visit.

    For these models the cavity cancels: a client's factor *is* the sum of its expected statistics. So
    this is partitioned variational inference with one local step a visit, and M clients get the result
    of one client with all their records.

    Guarantee: one visit costs ``sampler.event(mechanism.event(shift))``, shift C when a record is added or
    removed and 2C when it is substituted (`float_sum` in float64: what a record adds is weights times
    arrays whose norm is known to ``model.norm_error``, and the limit is lowered by that). It depends on
    the records, the broadcast q and its own keys alone, so that visits compose adaptively.

    Args:
      family: that of q; for a regression, full Gaussian.
      model: a conjugate model, or a generalised linear model that has such a form: ``logistic``,
        ``binomial``, ``negative_binomial`` (all three by Pólya-Gamma latents) or ``linear``.
      sampler: one of ``fedvi.privacy.sampling``.
      mechanism: one of ``fedvi.privacy.mechanisms``.
      clip_norm: C, in units of a typical record's vector. Below 1, most records count alike. For a
        regression, use 2 to 3. There gradients are clipped, which are large where the model fits badly: at
        1 coefficients come out too large (by 30 % in the example of docs/expected-statistics.md),
        though the order of the predictions hardly changes.
      averaging: κ: the t-th answer of a client has the weight (delay + t − 1)^−κ in their running mean.
        At 1 all weigh the same, and J rounds together have about the noise of one; 0 keeps only the last
        answer. Left out: 1 where there is noise or a batch is less than all records, else 0. Between 0.5
        and 0.7 suits topic models, whose statistics change from round to round.
      emphasis: γ: at κ = 1, the t-th of T answers has a weight of about t^γ in their mean. Left out: 2
        where statistics are gradients, as in a regression, since early ones are far from the end; else 0.
      delay: τ0 ≥ 1; 1 where there are several topics. Models with a ``first`` take short first steps at
        larger values, and state which they need; other models forget part of the data.
      shares: for each block, how much of C² a typical record's array takes; left out, the model's.
      typical: for each block, the public norm of a typical record's array; left out, the model's.
      row_norm: for a regression, ‖x‖ of a typical record, a public number. Left out: √D.
      learn_prior: for a regression, whether precisions of the prior are learnt: "shared", "each" or "no".
      ridge: for a regression, what noise adds to the curvature, in units of its largest eigenvalue.
      rows_together: how many records are in memory at a time, besides their sums; for ragged records, on
        each processor.

    Raises:
      SolverError, ModelError: an argument is out of its range, or the model has no conjugate form.

    Source: Park, Foulds, Chaudhuri and Welling (2020), VIPS, JAIR 68; corrected as in
    docs/proofs/updates.md §7.
    """
    if not isinstance(model, ConjugateModel):
        model = conjugate_form(family, model, row_norm, learn_prior, ridge)
    elif row_norm is not None:
        raise errors.SolverError(
            f"row_norm is {row_norm}, which a {type(model).__name__} does not use",
            "leave it out; `typical` holds the norms of its blocks",
        )
    if model.family != family:
        raise errors.SolverError(
            f"solver `vips` needs the family {model.family} for this model, found {family}",
            'for a regression, write [family] kind = "full_gaussian"',
        )
    if not clip_norm > 0.0:
        raise errors.SolverError(f"clip_norm is {clip_norm}, expected a number above 0")
    if rows_together < 1:
        raise errors.SolverError(f"rows_together is {rows_together}, expected at least 1")
    if not 1.0 <= delay < math.inf:
        raise errors.SolverError(f"delay is {delay}, expected a number of at least 1")
    noisy = mechanism.noise_multiplier > 0.0 or sampler.rate < 1.0
    kappa = (1.0 if noisy else 0.0) if averaging is None else averaging
    if not 0.0 <= kappa <= 1.0:
        raise errors.SolverError(
            f"averaging is {kappa}, expected a number from 0 to 1",
            "1 averages all answers alike, and 0 keeps the last alone",
        )
    # A γ of 2 is worth its noise: 9/5 of the noise of equal weights.
    gamma = 2.0 if isinstance(model, Centred) and model.centred else 0.0
    gamma = gamma if emphasis is None else emphasis
    if not 0.0 <= gamma < math.inf:
        raise errors.SolverError(f"emphasis is {gamma}, expected a number of at least 0")
    if not 0.0 <= model.norm_error <= _LARGEST_ERROR:
        raise errors.SolverError(
            f"{type(model).__name__}.norm_error is {model.norm_error}, expected a number from 0 to "
            f"{_LARGEST_ERROR}: clipping is lowered by it",
            "compute square_norms in closed form, in the float64 that it is given",
        )
    weights = _weights(model, shares, typical)
    summed = _compiled(model, sampler, mechanism, clip_norm, tuple(weights.items()), rows_together)
    unit = clip_norm if math.isfinite(clip_norm) else 1.0
    one = mechanism.noise_multiplier * unit / sampler.rate

    def update(
        key_of: Callable[[str], Key], state: Any, task: Task, shard: Shard
    ) -> tuple[Any, Released, dict[str, Any]]:
        messages = model.messages(broadcast(model, task))
        keys = tuple(key_of(purpose) for purpose in ("sampling", "noise"))
        told = {"valid_units": int(np.count_nonzero(shard.mask))}
        valid = jnp.asarray(shard.mask)
        if is_large(shard.mask):
            return state, summed.by_blocks(keys, messages, shard.records, valid), told
        return state, summed.in_memory(keys, messages, single_precision(shard.records), valid), told

    count = sum(block.number_count for block in model.blocks)
    settings: dict[str, Any] = {
        "averaging": float(kappa),
        "delay": float(delay),
        "emphasis": float(gamma),
    }
    return LocalSolver(
        name="vips",
        init=lambda eta: (),
        update=update,
        finish=functools.partial(
            finish_statistics, model=model, weights=weights, rate=float(sampler.rate), **settings
        ),
        cost=sampler.event(mechanism.event(Shift(clip_norm, clip_norm, 2.0 * clip_norm))),
        number_count=count,
        clip_norm=clip_norm,
        mark=mechanism.mark,
        stand=functools.partial(
            stand_statistics,
            model=model,
            noise={name: float(one / weight) for name, weight in weights.items()},
            **settings,
        ),
        renews=True,
        streams=True,
        limit=limit_of(
            sampler.capacity,
            clip_norm,
            mechanism.noise_multiplier,
            count,
            tuple(
                Sign(
                    block.name,
                    block.shape[-1] if block.symmetric else 0,
                    None
                    if block.total is None
                    else sampler.capacity * weights[block.name] * block.total,
                )
                for block in model.blocks
                if block.positive
            ),
        ),
        adds_up={block.name: (block.number_count,) for block in model.blocks},
        check=check_of(
            visits(
                vips, family=family, model=model, clip_norm=clip_norm, averaging=averaging,
                emphasis=emphasis, delay=delay, shares=shares, typical=typical, rows_together=rows_together,
            ),
            sampler, mechanism, clip_norm, tree.to_numpy(model.prior), model=model,
        ),
    )  # fmt: skip


def conjugate_form(
    family: Any, model: Any, row_norm: float | None, learn_prior: str, ridge: float
) -> ConjugateModel:
    """Returns the conjugate form of a generalised linear model, which releases gradients.

    Raises:
      SolverError: the model has no such form.
    """
    if isinstance(model, UnitModel):
        raise errors.SolverError(
            "solver `vips` takes records of one row each, found units of several rows "
            "(data.unit_column)",
            "`site_release` and `dp_optimisation` add up the rows of a unit before they clip",
        )
    response = getattr(model, "response", None)
    if (
        not isinstance(model, Regression)
        or model.layout is not None
        or not isinstance(response, GivenLatents)
    ):
        raise errors.SolverError(
            f"solver `vips` needs a conjugate-exponential model, found {_called(model)}",
            "`logistic`, `binomial`, `negative_binomial` and `linear` regression without offset have that "
            "form, of records that are one row each; `site_release` takes any other likelihood",
        )
    if not is_full(family):
        raise errors.SolverError(
            f"solver `vips` needs the full Gaussian family for a regression, found "
            f"{type(family).__name__}",
            'write [family] kind = "full_gaussian"',
        )
    norm = math.sqrt(model.size) if row_norm is None else float(row_norm)
    return response.conjugate_form(
        coefficients=model.names,
        prior_scales=model.prior_scales,
        row_norm=norm,
        learn_prior=learn_prior,
        ridge=ridge,
    )


def _called(model: Any) -> str:
    response = getattr(model, "response", None)
    return type(model).__name__ + ("" if response is None else f" of {type(response).__name__}")


def _weights(
    model: ConjugateModel, shares: Mapping[str, float] | None, typical: Mapping[str, float] | None
) -> dict[str, float]:
    """Returns the weight of each block: √share / typical norm."""
    names = [block.name for block in model.blocks]
    for what, given in (("shares", shares), ("typical", typical)):
        for name, value in (given or {}).items():
            if name not in names:
                raise errors.SolverError(
                    f"{what} names {name!r}, which is no block of the model",
                    errors.did_you_mean(name, names),
                )
            if not 0.0 < value < math.inf:
                raise errors.SolverError(f"{what}.{name} is {value}, expected a number above 0")
    part = {block.name: block.share for block in model.blocks} | dict(shares or {})
    norms = {block.name: block.typical for block in model.blocks} | dict(typical or {})
    whole = sum(part.values())
    found = {name: math.sqrt(part[name] / whole) / norms[name] for name in names}
    for name, weight in found.items():
        if not _WEIGHTS[0] <= weight <= _WEIGHTS[1]:
            raise errors.SolverError(
                f"block {name!r} would be multiplied by {weight:g}, expected a number from "
                f"{_WEIGHTS[0]:g} to {_WEIGHTS[1]:g}",
                f"typical.{name} is {norms[name]:g}: give the norm of a typical record",
            )
    return found


@compiled_once
def _compiled(
    model: ConjugateModel,
    sampler: Sampler,
    mechanism: Mechanism,
    clip_norm: float,
    weights: tuple[tuple[str, float], ...],
    rows_together: int,
) -> "_Summed":
    """Returns the compiled sums, one for equal settings."""
    weigh, blocks = dict(weights), {block.name: block for block in model.blocks}
    size = sum(block.number_count for block in model.blocks)
    is_ragged = isinstance(model, Ragged)

    @jax.jit
    def summed(keys: Any, messages: Any, records: Any, valid: Any) -> Released:
        sampling_key, noise_key = keys
        batch = sampler.draw(sampling_key, valid)
        # Parts of equal length: a row's bits may depend on its position within XLA's groups of rows.
        length = length_of(batch.mask.shape[0], rows_together)
        batch = filled(batch, length)
        count = batch.mask.shape[0]
        parts, terms = count // length, length + _ROUNDINGS
        limit = float_limit(clip_norm, terms, parts, count, size, mechanism, double=True)
        limit *= 1.0 - model.norm_error - 2.0**-40

        def part_sum(index: Any) -> dict[str, Any]:
            with jax.enable_x64(False):
                taken, mask = (
                    jax.lax.dynamic_slice_in_dim(column, index * length, length)
                    for column in (batch.indices, batch.mask)
                )
            return sum_of(limit, messages, records, taken, mask)

        bounded = float_sum(part_sum, parts, terms, clip_norm, batch, mechanism, double=True)
        return release(noise_key, bounded, mechanism)

    def sum_of(limit: float, messages: Any, records: Any, rows: Any, mask: Any) -> dict[str, Any]:
        """Clips and adds up some rows of records in memory; traced with x64 enabled."""
        known = _double(messages)
        if isinstance(model, Ragged):
            sums = model.totalled(known, by_length(limit, messages, known, records, rows, mask))
        else:
            with jax.enable_x64(False):
                part = {name: column[rows] for name, column in records.items()}
            sums = model.sums(known, *clipped(limit, messages, known, part, mask))
        return {name: packed(sums[name], blocks[name]) * weigh[name] for name in blocks}

    def by_length(
        limit: float, messages: Any, known: Any, records: Any, rows: Any, mask: Any
    ) -> dict[str, Any]:
        """Returns the totals of a model of ragged records, see ``Ragged``."""
        assert isinstance(model, Ragged)
        with jax.enable_x64(False):
            lengths = model.lengths({name: column[rows] for name, column in records.items()})
            lengths = jnp.where(mask, lengths, jnp.zeros_like(lengths))

        def visit(totals: Any, chosen: Any, size: int, stands: Any) -> dict[str, Any]:
            with jax.enable_x64(False):
                at, usable = rows[chosen], mask[chosen] & stands
                part = {
                    name: column[at] if column.ndim < 2 else column[at, :size]
                    for name, column in records.items()
                }
            return model.added(totals, known, *clipped(limit, messages, known, part, usable))

        begun = {name: jnp.zeros(block.shape, jnp.float64) for name, block in blocks.items()}
        longest = max(column.shape[1] for column in records.values() if column.ndim > 1)
        found: dict[str, Any] = through_chunks(visit, lengths, longest, begun)
        return found

    def clipped(
        limit: float, messages: Any, known: Any, part: Any, mask: Any
    ) -> tuple[Any, Any, Any]:
        """Returns expected latents and records in float64, and the factor [B] that each is clipped by."""
        with jax.enable_x64(False):
            local = model.expected(messages, part)
            usable = mask & _finite((part, local))
            part, local = (_where(usable, columns) for columns in (part, local))
        wide, drawn = (_double(columns) for columns in (local, part))
        if not math.isfinite(limit):
            return wide, drawn, usable.astype(jnp.float64)
        squares = model.square_norms(known, wide, drawn)
        square = sum(weigh[name] ** 2 * found for name, found in squares.items())
        norm = jnp.sqrt(square)
        usable = usable & jnp.isfinite(norm)
        kept = jnp.minimum(1.0, limit / jnp.maximum(norm, _LEAST))
        kept = jnp.where(usable, kept, jnp.zeros_like(kept))
        # Where a norm overflowed, the numbers behind it may too, and 0 · ∞ is NaN.
        wide, drawn = (_where(usable, columns) for columns in (wide, drawn))
        return wide, drawn, kept

    draw = jax.jit(sampler.draw)
    noised = jax.jit(lambda key, bounded: release(key, bounded, mechanism))

    @functools.partial(jax.jit, static_argnames="limit")
    def rows_sum(messages: Any, records: Any, rows: Any, mask: Any, limit: float) -> dict[str, Any]:
        with jax.enable_x64(True):
            return sum_of(limit, messages, records, rows, mask)

    prepared = compiled_calls(rows_sum)

    def of_parts(
        noise_key: Any,
        parts: Iterable[Any],
        count: int,
        length: int,
        sum_part: Callable[[float, Any], Callable[[], dict[str, Any]]],
    ) -> Released:
        """Noises the sum of at most ``count`` disjoint parts of ``length`` rows."""
        terms, rows = length + _ROUNDINGS, count * length
        limit = float_limit(clip_norm, terms, count, rows, size, mechanism, double=True)
        limit *= 1.0 - model.norm_error - 2.0**-40
        sums = on_devices(functools.partial(sum_part, limit), parts, min(thread_count(), count))
        with contextlib.closing(sums):
            bounded = float_sum_of(sums, count, terms, clip_norm, rows, sampler, mechanism)
        return noised(noise_key, bounded)

    def in_parts(keys: Any, messages: Any, records: Any, valid: Any) -> Released:
        # Groups of rows of one length are small, so XLA runs them one by one on a single processor, even
        # two loops over them in one program.
        if jax.default_backend() != "cpu":
            return summed(keys, messages, records, valid)
        sampling_key, noise_key = keys
        batch = draw(sampling_key, valid)
        # Each part has sums of its own, so a part must have enough rows.
        count = max(PARTS, -(-batch.mask.shape[0] // max(rows_together, _FEWEST)))
        parts = striped(batch.indices, batch.mask, count)

        def sum_part(limit: float, part: Any) -> Callable[[], dict[str, Any]]:
            return prepared(messages, records, *part, limit=limit)

        return of_parts(noise_key, parts, count, len(parts[0][1]), sum_part)

    def by_blocks(keys: Any, messages: Any, records: Any, valid: Any) -> Released:
        sampling_key, noise_key = keys
        batch = draw(sampling_key, valid)
        rows = batch.mask.shape[0]
        most = min(rows_together, -(-rows // PARTS)) if is_ragged else rows_together
        length = length_of(rows, most)
        every = np.arange(length, dtype=np.int32)

        def sum_part(limit: float, block: Any) -> Callable[[], dict[str, Any]]:
            drawn = single_precision(block.records)
            return prepared(messages, drawn, every, block.mask, limit=limit)

        blocks = blocks_of(records, batch.indices, batch.mask, length)
        return of_parts(noise_key, blocks, -(-rows // length), length, sum_part)

    return _Summed(in_parts if is_ragged else summed, by_blocks, rows_sum)


class _Summed(NamedTuple):
    """The noised sum of a visit: at once for a shard in memory, or in blocks of rows for a large one.

    ``of_rows`` is the compiled sum of some rows. It has no noise and must not leave the client.
    """

    in_memory: Callable[..., Released]
    by_blocks: Callable[..., Released]
    of_rows: Any


def _finite(columns: Any) -> Any:
    """Returns whether all floats of a row are finite, bool [B]."""
    found = [
        jnp.isfinite(leaf).reshape(leaf.shape[0], -1).all(axis=1)
        for leaf in jax.tree.leaves(columns)
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    return functools.reduce(jnp.logical_and, found)


def _where(usable: Any, columns: Any) -> Any:
    """Returns the columns with zeros in rows that are not usable."""

    def zeroed(leaf: Any) -> Any:
        stands = usable.reshape(-1, *[1] * (leaf.ndim - 1))
        return jnp.where(stands, leaf, jnp.zeros_like(leaf))

    return jax.tree.map(zeroed, columns)


def _double(columns: Any) -> Any:
    """Returns floats as float64, and other numbers as they are.

    Floats below 2⁻¹²⁶ become zero, as on a CPU anyway, so that a norm and a sum see the same numbers
    whether or not a device flushes denormals.
    """

    def cast(leaf: Any) -> Any:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        wide = jnp.asarray(leaf).astype(jnp.float64)
        return jnp.where(jnp.abs(wide) < _TINY, jnp.zeros_like(wide), wide)

    return jax.tree.map(cast, columns)
