"""Private Newton steps: a visit releases one noised sum of gradients and curvatures at the broadcast q."""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from fedvi import errors
from fedvi.expfam import matrices, tree
from fedvi.expfam.base import is_full
from fedvi.inference import weights
from fedvi.inference.block_sums import noised_in_blocks
from fedvi.inference.blocks import is_large, single_precision
from fedvi.inference.checked_visits import check_of, visits
from fedvi.inference.clipping import MOST_ROWS, predictor_blocks, predictor_limit
from fedvi.inference.column_sums import noised_column_sums, noised_sizes
from fedvi.inference.local_latents import local_problem, refuse_site_effects
from fedvi.inference.many_visits import by_posterior, mapped
from fedvi.inference.parallel_parts import added_on_devices
from fedvi.inference.predictor import has_predictor
from fedvi.inference.units import of_rows
from fedvi.inference.usable import told_units
from fedvi.models.base import Model
from fedvi.models.capabilities import PlausibleOutcomes
from fedvi.models.outcomes.base import TYPICAL_CURVATURE
from fedvi.privacy.base import Batch, Mechanism, Sampler, Shift
from fedvi.privacy.bounded import Bounded, clipped_sum_of_parts, float_sum
from fedvi.privacy.release import Released, release
from fedvi.typing import ROWS, Key
from fedvi.updates.base import LocalSolver, Shard, Task, compiled_once
from fedvi.updates.coordinates import (
    Coordinates,
    Foreseen,
    Survey,
    asked_for,
    length_for,
    no_coordinates,
    planned_survey,
    typical_norm,
)
from fedvi.updates.finish import finish_site, finish_sites
from fedvi.updates.limits import Sign, limit_of
from fedvi.updates.noise_aware import of_sites

__all__ = ["site_release"]

# How many numbers of contributions are in memory at a time: 16 MiB of float32.
_FORMED = 1 << 22
# Smaller norms count as this.
_LEAST = 1e-300
# The smallest normal number of float32, and one that no rounding makes infinite.
_TINY, _LARGE = 2.0**-126, 2.0**126


def site_release(
    family: Any,
    model: Model,
    sampler: Sampler,
    mechanism: Mechanism,
    clip_norm: float | Literal["auto"] = "auto",
    curvature_share: float = 0.2,
    floor: float = 1.0,
    nodes: int = 8,
    draws: int = 8,
    foreseen: Foreseen | None = None,
) -> LocalSolver:
    """Returns the solver that answers with its records' noised gradient and curvature at the broadcast q.

    Per record: g = E_q[∇ log p(y|θ)] and H = −E_q[∇² log p(y|θ)] form one vector (g, c·svec(H)). The
    off-diagonal entries of H are multiplied by √2, so that norms are those of the matrix. The vector is
    clipped to C, and all vectors are added. From the sum (G, H) the server makes the site (G + H m, H),
    which replaces the client's factor. It sums the sites of all clients and takes a Newton step that
    accounts for the noise (``noise_aware``). No client keeps anything from visit to visit. Visits share
    the budget: some ten average noise out and let steps settle, many more make each step noisier. With
    ``clip_norm`` a number, 20 to 50 do better where noise is large.

    *Coordinates.* For a GLM with an intercept, a multinomial, multivariate or survival model, and
    ``clip_norm`` "auto", the first answer is a survey of the columns, Σ x and Σ x². From it the server
    makes public coordinates x̃, in which columns are centred and of equal length (``coordinates``). g and H
    are computed, clipped and noised in these coordinates, so that a column with large values takes no more
    of C than its information is worth. There is no survey where it would not pay (``planned_survey``).

    *Weights.* Clipping a gradient biases it: it shortens the rare long ones more than the many that
    balance them. So a GLM's g and H are first multiplied by the weight min(1, C / longest), where
    ``longest`` is a length that (g, c·svec(H)) may well reach for some outcome (``steepest``). The weight
    depends on x and q but not on the outcome, so that at the true θ the mean of g is still 0. Vectors that
    are longer still are clipped. A unit of several rows, such as a patient, has one weight, for the
    longest sum that its rows may reach.
    A record of a multinomial or survival model has the weight C / longest of the vectors that it would
    have with its ``plausible`` outcomes, at the mean of q.

    *Spread.* The sd of xᵀθ under q is capped at 1, for each record of a GLM, a multinomial or a survival
    model. The mean curvature over a wider spread is nearly 0, and a Newton step by it overshoots the
    optimum back and forth.

    Guarantee: one visit costs ``sampler.event(mechanism.event(shift))``, shift C when a record is added
    or removed and 2C when it is substituted (`clipped_sum_of_parts`: every record's vector has a norm of
    C at most). It depends on the records, the broadcast q, the broadcast coordinates and its own keys
    alone, so that visits compose adaptively. Fresh statistics carry no noise from one visit into the next.

    Without noise and clipping the fixed point is the variational optimum of all records together, if no
    predictor has an sd above 1 there.

    The solver reaches it where the log likelihood is concave in θ. Where it is not (an unknown scale,
    Student-t errors, a mixture), eigenvalues of the curvature are replaced by their absolute values and no
    step is longer than a few sds of the prior. Steps then do not diverge, but they may wander, and the last
    move shows it.

    A prior that is not Gaussian is fitted at the current q. Where noise drives q, the first fit, to the
    prior alone, bounds how wide q and the report become.

    Args:
      family: full Gaussian over the model's θ. In a smaller family the step would have to guess
        correlations, and no interval could be trusted.
      model: a built-in GLM, whose expectations over q are one-dimensional integrals; or any other model
        with a twice differentiable, concave log likelihood, by ``draws`` draws of θ.
      sampler: one of ``fedvi.privacy.sampling``.
      mechanism: one of ``fedvi.privacy.mechanisms``.
      clip_norm: C, the L2 bound on what one record contributes; or "auto". In a GLM a contribution is at
        most ‖x‖·|y − mean|, and for a binary y at most ‖x‖. "auto" is 1 with a survey, whose coordinates
        are made for it. Without a survey it suits rows as long as the columns' declarations suggest. Both
        ways fewer records are weighed down where noise leaves little open (``length_for``). Without noise
        it is ∞.
      curvature_share: how much of C² a record's curvature takes if its gradient has norm C, that is,
        if ‖x‖ = C in a logistic model, where H is x xᵀ/4 at most: so c = (4 / C)·√(share / (1 − share)).
        A curvature has D² numbers and a gradient D, so most of C² belongs to the gradient. Where noise
        drowns the curvature (100 coefficients, small ε), 0.05 is better, and intervals rest on the prior.
      floor: κ ≥ 0: the noise of one step has a norm of at most about 1/κ, in units of θ; with a survey,
        of 1/(2κ), in units of the coefficients of columns of variance 1.
      nodes: Gauss–Hermite nodes per record, for a GLM. The sd of a predictor is capped at 1, where 8 are
        off by less than 1e-4 of the largest slope or curvature, and by 2 % in the weights of binary
        outcomes, which adds no bias. An outcome of your own that bends more sharply may need more.
      draws: Monte Carlo draws of θ, shared by all records, for any other model.
      foreseen: the public facts of the study from which "auto" follows; left out, those of a single visit.

    Raises:
      SolverError: an argument is out of its range, or the family is not a full Gaussian.

    Source: docs/proofs/updates.md §2; Khan and Rue (2023), arXiv:2107.04562, for the natural gradient;
    Künsch, Stefanski and Carroll (1989), JASA 84, for weights that leave a regression's score unbiased.
    """
    refuse_site_effects(model, "site_release")
    if not is_full(family):
        raise errors.SolverError(
            f"solver `site_release` needs the full Gaussian family, found {type(family).__name__}",
            'write family kind = "full_gaussian", or use solver kind `dp_optimisation`',
        )
    given, survey = cast(Any, clip_norm), None
    if isinstance(given, str) and given != "auto":
        raise errors.SolverError(f'clip_norm is {given!r}, expected a number, or "auto"')
    if clip_norm == "auto":
        clip_norm, survey = _auto(model, sampler, mechanism, foreseen or Foreseen())
    if not clip_norm > 0.0:
        raise errors.SolverError(f"clip_norm is {clip_norm}, expected a number above 0")
    if not 1e-6 <= curvature_share <= 1.0 - 1e-6:
        raise errors.SolverError(
            f"curvature_share is {curvature_share}, expected a number from 1e-6 to 1 - 1e-6",
            "0.2 suits up to about 20 coefficients, and 0.05 a hundred",
        )
    if not 0.0 <= floor < math.inf:
        raise errors.SolverError(f"floor is {floor}, expected a finite number of at least 0")
    if not 2 <= nodes <= 200:
        raise errors.SolverError(f"nodes is {nodes}, expected 2 to 200")
    if draws < 1:
        raise errors.SolverError(f"draws is {draws}, expected at least 1")
    # An unlimited C leaves nothing to weigh.
    unit = clip_norm if math.isfinite(clip_norm) else 1.0
    weight = 4.0 / unit * math.sqrt(curvature_share / (1.0 - curvature_share))
    streams = has_predictor(model)  # a unit of several rows has no single predictor
    shape = _shape(of_rows(model))
    summed = _compiled(family, model, sampler, mechanism, clip_norm, weight, nodes, draws, shape)
    plan = survey and survey["outcome"]
    surveyed = survey and noised_column_sums(
        cast(Any, of_rows(model)),
        sampler,
        mechanism,
        clip_norm,
        survey["constant"],
        survey["emphasis"],
        survey["unit"],
        plan and (plan["most"], plan["exposed"]),
        shape[0],
        tuple(survey["several"]),
        getattr(of_rows(model), "baselines", 0),
    )
    sized = None
    if plan and plan["sizes"]:
        sized = noised_sizes(
            cast(Any, of_rows(model)), sampler, mechanism, clip_norm, tuple(plan["sizes"])
        )
    # Where no exposures are surveyed, weights expect the largest.
    exposed = None if plan else (foreseen.exposed if foreseen is not None else None) or 0.0
    noise = mechanism.noise_multiplier * unit / sampler.rate
    local = local_problem(family, model)

    def units_of(task: Task, shard: Shard) -> dict[str, int]:
        if streams:  # all that are valid count, and no mean is needed
            return told_units(local, None, shard)
        # At a mean beyond float32 no record counts.
        with np.errstate(over="ignore"):
            mean = np.asarray(family.moments(task.posterior)[0], np.float32)
        return told_units(local, mean, shard)

    def update(
        key_of: Callable[[str], Key], state: Any, task: Task, shard: Shard
    ) -> tuple[Any, Released, dict[str, Any]]:
        sampling_key, guide_key, noise_key = (
            key_of(purpose) for purpose in ("sampling", "guide", "noise")
        )
        told = units_of(task, shard)
        valid = jnp.asarray(shard.mask)
        asked = asked_for(survey, task.coordinates)
        if surveyed and asked == "columns":
            return state, surveyed(sampling_key, noise_key, shard.records, valid), told
        given = _given(family, task, exposed, shape)
        if sized and asked == "sizes":
            where = (given[0], given[2][-1])
            return state, sized(sampling_key, noise_key, shard.records, valid, *where), told
        if streams and is_large(shard.mask):
            released = summed.by_blocks(sampling_key, noise_key, shard.records, valid, *given)
        else:
            records = single_precision(shard.records)
            released = summed.at_once(noise_key, sampling_key, records, valid, *given, guide_key)
        return state, released, told

    def update_many(
        keys_of: Callable[[str], Key], states: list[Any], tasks: list[Task], shards: Shard
    ) -> Callable[[], tuple[list[Any], Released, dict[str, Any]]] | None:
        asked = {asked_for(survey, task.coordinates) for task in tasks}
        if asked != {"step"} or (streams and is_large(shards.mask[0])):
            return None
        # Where records have a predictor, nothing is drawn from the guide.
        purposes = ("noise", "sampling") if streams else ("noise", "sampling", "guide")
        noise_keys, sampling_keys, *guide_keys = map(keys_of, purposes)
        given = by_posterior(functools.partial(_given, family, exposed=exposed, shape=shape), tasks)
        valid = jnp.asarray(shards.mask)
        call = summed.of_many(noise_keys, sampling_keys, shards.records, valid, *given, *guide_keys)
        if streams:
            counted = {"valid_units": np.count_nonzero(shards.mask, axis=1)}
            return lambda: (states, call(), counted)
        each = [
            units_of(task, Shard({name: c[site] for name, c in shards.records.items()}, mask))
            for site, (task, mask) in enumerate(zip(tasks, np.asarray(shards.mask), strict=True))
        ]
        told = {name: np.array([units[name] for units in each]) for name in each[0]}
        return lambda: (states, call(), told)

    told: dict[str, Any] = {
        "weight": weight,
        "rate": sampler.rate,
        "survey": survey,
    }
    return LocalSolver(
        name="site_release",
        init=lambda eta: (),
        update=update,
        finish=functools.partial(finish_site, **told),
        cost=sampler.event(mechanism.event(Shift(clip_norm, clip_norm, 2.0 * clip_norm))),
        number_count=family.number_count,
        clip_norm=clip_norm,
        mark=mechanism.mark,
        stand=functools.partial(
            of_sites,
            gradient_sd=noise,
            curvature_sd=noise / weight,
            rate=float(sampler.rate),
            # In units of the coefficient of a column of size 1; half that in the survey's coordinates.
            floor=floor * (2.0 * survey["length"] / math.sqrt(family.size) if survey else 1.0),
            survey=survey,
            vanishing=_vanishing(model, foreseen),
        ),
        survey=survey,
        update_many=update_many,
        finish_many=functools.partial(finish_sites, **told),
        renews=True,
        streams=streams,
        limit=limit_of(
            sampler.capacity,
            clip_norm,
            mechanism.noise_multiplier,
            family.number_count,
            # A survey's squares lie on the diagonal, so that the same holds for them.
            (Sign("curvature", family.size),) if _bends_down(model) else (),
        ),
        adds_up={"gradient": (family.size,), "curvature": (family.size * (family.size + 1) // 2,)},
        check=check_of(
            visits(
                site_release, family=family, model=model, clip_norm=given, curvature_share=curvature_share,
                floor=floor, nodes=nodes, draws=draws, foreseen=foreseen,
            ),
            sampler, mechanism, clip_norm, tree.to_numpy(family.isotropic(1.0)),
            # A survey has a program of its own, and so have sizes of slopes.
            _made_up_coordinates(family.size, survey),
        ),
    )  # fmt: skip


def _auto(
    model: Model, sampler: Sampler, mechanism: Mechanism, foreseen: Foreseen
) -> tuple[float, Survey | None]:
    """Returns the clip norm for "auto", and the survey if there is one."""
    noise, rate, names = mechanism.noise_multiplier, sampler.rate, model.names
    if noise == 0.0:
        return math.inf, None  # without noise, nothing needs a bound
    rows = of_rows(model)
    typical = getattr(rows, "typical_curvature", TYPICAL_CURVATURE)
    curvature = typical if foreseen.curvature is None else foreseen.curvature
    blocks = _blocks(rows)
    if blocks is not None:
        outcome = getattr(rows, "surveyed", None)
        baselines = getattr(rows, "baselines", 0)
        survey = planned_survey(names, foreseen, noise, rate, curvature, outcome, blocks, baselines)
        if survey is not None:
            return 1.0, survey
    length = length_for(len(names), foreseen, noise, rate, curvature)
    return typical_norm(names, foreseen) / length, None


def _blocks(rows: Any) -> tuple[float, ...] | None:
    """Returns the blocks of a survey, see ``Survey``; None if the model cannot be surveyed."""
    return (1.0,) if has_predictor(rows) else getattr(rows, "blocks", None)


def _shape(rows: Any) -> tuple[int, int]:
    """Returns how many blocks of coefficients a model has, and how many constant columns each."""
    return len(_blocks(rows) or (1.0,)), max(1, getattr(rows, "baselines", 0))


def _made_up_coordinates(size: int, survey: Survey | None) -> tuple[Coordinates | None, ...]:
    """Returns coordinates that ask for each kind of answer."""
    unknown = no_coordinates(size, survey)
    if survey is None:
        return (unknown,)
    if survey["outcome"] is None or not survey["outcome"]["sizes"]:
        return (None, unknown)
    return (None, unknown, unknown._replace(sizes=True))


def _vanishing(model: Model, foreseen: Foreseen | None) -> list[list[int]]:
    """Returns what is publicly known of a regression's columns, as plain lists for JSON."""
    if foreseen is None or not has_predictor(of_rows(model)):
        return []
    return [list(known) for known in foreseen.vanishing]


def _bends_down(model: Model) -> bool:
    """Whether b ≥ 0 is certain in every record's curvature b·x xᵀ; an outcome from elsewhere must say so.

    Where a record has several predictors, rounding may leave its curvature less than semidefinite.
    """
    rows = of_rows(model)
    outcome = getattr(rows, "outcome", None)
    return has_predictor(rows) and getattr(outcome, "concave", None) is True


def _given(
    family: Any, task: Task, exposed: float | None, shape: tuple[int, int]
) -> tuple[Any, Any, Any]:
    """Returns the mean and root of the broadcast q, and the coordinates of the answer.

    ``exposed`` is the offset that weights expect of every record; None: the one in the coordinates.
    ``shape`` is the model's, see ``_shape``.

    Raises:
      ProtocolError: if the coordinates have another number of columns than the model.
    """
    # A q beyond float32 is answered too: its records count as zero, and noise is added.
    with np.errstate(over="ignore"):
        mean, root = (np.asarray(part, np.float32) for part in family.location_root(task.posterior))
    at = task.coordinates
    if at is None:
        at = no_coordinates(family.size, None)._replace(blocks=shape[0], baselines=shape[1])
    if (len(at.centre), at.blocks, at.baselines) != (family.size, *shape):
        raise errors.ProtocolError(
            f"task {task.task_id} has coordinates of {len(at.centre)} columns in {at.blocks} blocks of "
            f"{at.baselines} constants, and the model has {family.size} in {shape[0]} of {shape[1]}"
        )
    level = at.level if exposed is None else exposed
    with np.errstate(over="ignore"):
        told = (
            *(np.float32(at.centre), np.float32(at.scale), np.int32(at.constant)),
            *(np.float32(at.spread), np.float32(level)),
        )
    return mean, root, told


@compiled_once
def _compiled(
    family: Any,
    model: Model,
    sampler: Sampler,
    mechanism: Mechanism,
    clip_norm: float,
    weight: float,
    nodes: int,
    draws: int,
    shape: tuple[int, int],
) -> "_Summed":
    """Returns the compiled sums, one for equal settings."""
    rows, columns, exact = matrices.triangle(family.size)
    twice = exact.astype(np.float32)
    scale = twice * np.float32(weight)
    in_closed_form, base = has_predictor(model), of_rows(model)
    in_units = not in_closed_form and has_predictor(base)
    outcomes = cast(PlausibleOutcomes, base) if isinstance(base, PlausibleOutcomes) else None

    def bounded_sum(
        sampling_key: Any,
        records: Any,
        valid: Any,
        mean: Any,
        root: Any,
        at: Any,
        guide_key: Any = None,
        *,
        add_up: Any = None,
    ) -> Bounded:
        batch = sampler.draw(sampling_key, valid)
        if in_closed_form and batch.mask.shape[0] <= MOST_ROWS:
            drawn = jax.tree.map(lambda column: column[batch.indices], records)
            found = weights.of_predictor(model, nodes, mean, root, at, drawn, weight, clip_norm)
            return _ghost_sum(*found, weight, (rows, columns, twice), clip_norm, batch, mechanism)
        away = jax.random.normal(guide_key, (draws, family.size), mean.dtype) @ root.T
        number = family.number_count
        if in_units:  # predictors at all nodes are in memory too
            number = max(number, nodes * records[ROWS].shape[1])
        # A multiple of 64, see `filled`.
        length = min(batch.mask.shape[0], max(64, _FORMED // number // 64 * 64))
        parts = -(-batch.mask.shape[0] // length)
        indices = jnp.pad(batch.indices, (0, parts * length - batch.mask.shape[0]))

        def inside(theta_like: Any) -> Any:
            width = family.size // shape[0]
            first = np.arange(family.size) // width * width
            centre, longer = (part.reshape(-1, *(1,) * (theta_like.ndim - 1)) for part in at[:2])
            constants = sum(theta_like[first + at[2] + each] for each in range(shape[1]))
            return longer * (theta_like - centre * constants)

        def vector(model: Model, thetas: Any, record: Any) -> tuple[Any, Any]:
            gradient, hessian = _of_draws(model, thetas, record)
            return inside(gradient), -inside(inside(hessian).T)[rows, columns] * scale

        def formed(record: Any) -> dict[str, Any]:
            narrow, kept = weights.narrow_and_kept(outcomes, mean, root, record, vector, clip_norm)
            thetas = mean[None, :] + narrow * away
            gradient, curvature = vector(model, thetas, record)
            return {"gradient": kept * gradient, "curvature": kept * curvature}

        def of_part(index: Any) -> Any:
            taken = jax.lax.dynamic_slice_in_dim(indices, index * length, length)
            drawn = jax.tree.map(lambda column: column[taken], records)
            if in_units:
                return weights.of_units(
                    base, nodes, mean, root, at, drawn, (rows, columns, scale), clip_norm
                )
            return jax.vmap(formed)(drawn)

        return clipped_sum_of_parts(of_part, parts, clip_norm, batch, mechanism, add_up)

    def noised(noise_key: Key, bounded: Bounded) -> Released:
        return release(noise_key, bounded, mechanism)

    @jax.jit
    def at_once(noise_key: Key, *arguments: Any) -> Released:
        return noised(noise_key, bounded_sum(*arguments, add_up=added_on_devices))

    # In float64, with 32-bit indices: 64-bit ones would differ with JAX's x64 mode on and off.
    triangle = rows.astype(np.int32), columns.astype(np.int32), exact

    def block_sum(
        mean: Any, root: Any, at: Any, drawn: Any, mask: Any, limit: float
    ) -> dict[str, Any]:
        found = weights.of_predictor(model, nodes, mean, root, at, drawn, weight, clip_norm)
        return _wide_sum(*found, weight, triangle, limit, mask)

    size = family.size + len(rows)
    by_blocks = noised_in_blocks(sampler, mechanism, clip_norm, size, block_sum)
    return _Summed(at_once, mapped(bounded_sum, noised), by_blocks)


class _Summed(NamedTuple):
    """The noised sum of a shard in memory, of many such shards, and of a large one in blocks of rows."""

    at_once: Callable[..., Released]
    of_many: Callable[..., Callable[[], Released]]
    by_blocks: Callable[..., Released]


def _ghost_sum(
    x: Any,
    slope: Any,
    bend: Any,
    weight: float,
    triangle: tuple[np.ndarray, np.ndarray, np.ndarray],
    clip_norm: float,
    batch: Batch,
    mechanism: Mechanism,
) -> Bounded:
    """Clips and adds (slope·x, c·bend·svec(x xᵀ)) of all records, without forming any of these vectors.

    Guarantee: that of `float_sum`, whose condition holds for every x, slope and bend: see "Gradients and
    curvatures of a linear predictor" in docs/proofs/float_sum.md. The whole vector of a record with a
    number that is not finite is zero.

    Args:
      x: [B, D]; slope, bend: [B]; all float32.
      weight: c.
      triangle: rows and columns of the lower triangle, and 1 or √2 for each entry.
      clip_norm, batch, mechanism: see `float_sum`.
    """
    rows, columns, twice = triangle
    count = batch.mask.shape[0]
    block, blocks, terms = predictor_blocks(count)
    limit = predictor_limit(count, x.shape[1] + len(rows), clip_norm, mechanism)
    limit *= 1.0 - 2.0**-20
    usable, x, slope, bend, square = _usable(x, slope, bend, batch.mask)
    with jax.enable_x64(True):
        first, second = slope.astype(jnp.float64), weight * bend.astype(jnp.float64)
        norm = jnp.sqrt(first**2 * square + (second * square) ** 2)
        kept = jnp.minimum(1.0, limit / jnp.maximum(norm, _LEAST))

        def weighed(part: Any) -> Any:
            found = jnp.where(usable, kept * part, jnp.zeros_like(part))
            found = jnp.where(jnp.abs(found) >= _TINY, found, jnp.zeros_like(found))
            # With an x near 0 a weight may overflow float32: 0 · ∞ would be NaN, and spoil the whole block.
            found = jnp.clip(found, -_LARGE, _LARGE)
            return jnp.pad(found.astype(jnp.float32), (0, blocks * block - count))

        slope, bend = weighed(first), weighed(second)
    x = jnp.pad(x, ((0, blocks * block - count), (0, 0)))

    def block_sum(index: Any) -> dict[str, Any]:
        taken, first, second = (
            jax.lax.dynamic_slice_in_dim(part, index * block, block) for part in (x, slope, bend)
        )
        # HIGHEST: on a GPU the default would round to TF32.
        product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
        products = product((second[:, None] * taken).T, taken)
        return {
            "gradient": product(first, taken),
            "curvature": products[rows, columns] * twice,
        }

    return float_sum(block_sum, blocks, terms, clip_norm, batch, mechanism)


def _wide_sum(
    x: Any,
    slope: Any,
    bend: Any,
    weight: float,
    triangle: tuple[np.ndarray, np.ndarray, np.ndarray],
    limit: float,
    mask: Any,
) -> dict[str, Any]:
    """Adds the same vectors as `_ghost_sum`, for one block in float64, as `float_sum_of` requires.

    A record's vector is a product of unchanged float32 numbers (below 2⁻¹²⁶ they are zero on every device)
    and a weight in float64. The relative error of its norm is below 2⁻⁴⁰, and the limit is lowered by that.
    Up to eight roundings of factors count as terms.

    Args:
      x, slope, bend, weight, triangle: see `_ghost_sum`; √2 in float64.
      limit: the norm that a record's vector is clipped to.
      mask: bool [B], the rows that count.
    """
    rows, columns, twice = triangle
    _, x, slope, bend, square = _usable(x, slope, bend, mask)
    with jax.enable_x64(True):
        wide = x.astype(jnp.float64)
        first, second = slope.astype(jnp.float64), weight * bend.astype(jnp.float64)
        norm = jnp.sqrt(first**2 * square + (second * square) ** 2)
        kept = jnp.minimum(1.0, limit / jnp.maximum(norm, _LEAST))
        product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
        products = product(((kept * second)[:, None] * wide).T, wide)
        return {
            "gradient": product(kept * first, wide),
            "curvature": products[rows, columns] * twice,
        }


def _usable(x: Any, slope: Any, bend: Any, mask: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Returns which rows count; x, slope and bend; and ‖x‖² in float64, with zeros in all other rows.

    Numbers below 2⁻¹²⁶ are zero too: some devices flush them and others do not, and a norm and a sum must
    see the same values.
    """

    def normal(part: Any) -> Any:
        return jnp.where(jnp.abs(part) < _TINY, jnp.zeros_like(part), part)

    def kept(part: Any, counts: Any) -> Any:
        return jnp.where(counts, part, jnp.zeros_like(part))

    x, slope, bend = map(normal, (x, slope, bend))
    with jax.enable_x64(True):
        wide = x.astype(jnp.float64)
        square = (wide * wide).sum(axis=1)
        # The square is finite if and only if every number is. A largest number would not tell: where
        # there are many, XLA's maximum over them loses a NaN.
        usable = mask & jnp.isfinite(square) & jnp.isfinite(slope) & jnp.isfinite(bend)
        square = kept(square, usable)
    return usable, kept(x, usable[:, None]), kept(slope, usable), kept(bend, usable), square


def _of_draws(model: Model, thetas: Any, record: Any) -> tuple[Any, Any]:
    """Returns gradient [D] and Hessian [D, D] of log p(record | θ), averaged over draws of θ [S, D]."""

    def likelihood(theta: Any) -> Any:
        return model.log_likelihood(theta, record)

    gradients, hessians = jax.vmap(jax.grad(likelihood)), jax.vmap(jax.hessian(likelihood))
    return gradients(thetas).mean(axis=0), hessians(thetas).mean(axis=0)
