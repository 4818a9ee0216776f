"""Perturbed updates: a client's whole change of the posterior, clipped and noised."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fedvi import errors
from fedvi.expfam.gaussian import GaussianEta
from fedvi.inference.base import LocalSolver, Shard, Task
from fedvi.inference.noise_aware import of_changes
from fedvi.inference.prior_frame import prior_frame
from fedvi.inference.solvers import _parts
from fedvi.models.base import Model
from fedvi.privacy.base import Mechanism, Sampler
from fedvi.privacy.release import Released
from fedvi.typing import IDS, Key

__all__ = ["literal_update", "perturbed_update"]


def perturbed_update(
    family: Any,
    model: Model,
    sampler: Sampler,
    mechanism: Mechanism,
    clip_norm: float = 1.0,
    alpha: float = 1.0,
    steps: int | None = None,
    draws: int = 8,
    learning_rate: float = 0.1,
    clean_factor: bool = False,
    unit: str = "record",
) -> LocalSolver:
    """Returns the solver that releases α·(clip(Δλ) + noise) of the client's whole local optimum.

    Δλ = η(q*) − η, q* the optimum of the client's objective, clipped to C in L2 over (h, J) in the
    prior's coordinates (``prior_frame``); noise of std zC, z the mechanism's ``noise_multiplier``. The
    poster's σ shared by M clients is z = σ / √M: what one message holds. The client's factor carries
    its own noise, as the poster's does; or, with ``clean_factor``, the client remembers its own,
    without noise, and takes that for its cavity.

    Guarantee: for the view ``message``, and with ``clean_factor`` for ``aggregate``: one visit costs
    ``mechanism.event(shift)`` with the shift 2C under either relation. Unit: one record, or one
    patient. Proof: a record decides where in the ball of radius C the whole clipped change lies, so it
    moves by 2C at most, also where a record is only added or removed (``clipped_changes`` with one
    row). α, the way back to η, the factor and the cavity are post-processing of what was released; a
    clean factor is not, but given what was released it is the same for every noise, and whatever it
    holds, the change is clipped.

    With ``unit`` "client": all that one client holds, at ``view_event``'s price for that unit: the
    shift C under add_remove, 2C under substitute. Proof: the clipped change has norm C at most,
    whatever the client holds, remembers or was sent, so two of them are 2C apart at most. A client
    without a usable record says zero, at every visit and whatever its factor is: so one that is
    there and one that holds nothing are C apart. That a client takes part is public, and no
    neighbour differs in it. A price at C says nothing of one record that is added, which moves the
    change by 2C as above: the units' prices are not each other's. Not claimed of a factor with noise: the
    price σ of the sum of M messages. Each message is seen, at σ / √M; and where only sums are seen,
    the noise that a factor keeps makes later answers depend on it, which costs more (docs/proofs/updates.md
    §6). A clean factor is a function of the client's records and of what was broadcast and
    committed, which is public, so that no answer depends on earlier noise otherwise: what
    docs/proofs/aggregate_view.md asks for.

    Args:
      family: full or diagonal Gaussian over the model's θ.
      model: any model.
      sampler: ``full``.
      mechanism: one of ``fedvi.privacy.mechanisms``.
      clip_norm: C, the L2 bound on the change, in the prior's sds.
      alpha: α in (0, 1], the damping of the poster, beside the server's own.
      steps, draws, learning_rate: as of ``local_averaging``.
      clean_factor: whether the client's factor is without noise, and its own secret
        (``CleanState``). The view ``aggregate`` wants it.
      unit: "record" (which a patient's rows together may be) or "client": what the event prices.

    Source: docs/proofs/updates.md §5 and §6 (clean factors); the formula is ``literal_update``'s.
    """
    if not 0.0 < alpha <= 1.0:
        raise errors.SolverError(f"alpha is {alpha}, expected above 0 and at most 1")
    if unit not in ("record", "client"):
        raise errors.SolverError(
            f"unit is {unit!r}, expected 'record' or 'client'",
            "a patient, whose rows are one record, is a 'record' here",
        )
    whole = unit == "client"
    fit = _parts.fitter(family, model, steps, draws, learning_rate)
    frame = prior_frame(family, model)
    door = _parts.door(
        frame, family, sampler, mechanism, clip_norm, 1, None if whole else (1, 1), alpha
    )
    noise = mechanism.noise_multiplier * clip_norm * alpha

    def update(
        key_of: Callable[[str], Key], state: Any, task: Task, shard: Shard
    ) -> tuple[Any, Released, dict[str, Any]]:
        records = {name: column for name, column in shard.records.items() if name != IDS}
        own = _parts.keys_of_part(key_of, 0)
        if clean_factor:
            factors = _parts.committed(state, task, 1)
            task = task._replace(factor=GaussianEta(factors.h[0], factors.J[0]))
        change = _parts.change_of(fit, family, own, task, Shard(records, shard.mask))
        vectors = _parts.clipped(frame, [change], clip_norm)
        if whole:
            vectors = _parts.or_nothing(vectors, shard)
        released = door.leave(key_of("noise"), vectors)
        if clean_factor:
            state = _parts.proposed(task, factors, frame, vectors, alpha)
        return state, released, {"change_norm": float(np.linalg.norm(vectors))}

    return LocalSolver(
        name="perturbed_update",
        init=lambda eta: _parts.nothing_yet(family, 1) if clean_factor else (),
        update=update,
        finish=door.finish,
        cost=door.cost,
        number_count=family.number_count,
        clip_norm=clip_norm,
        mark=mechanism.mark,
        stand=functools.partial(of_changes, noise_sd=noise),
        adds_up=door.shapes if clean_factor else None,
    )


def literal_update(
    change: np.ndarray,
    clip_norm: float,
    sigma: float,
    clients: int,
    alpha: float,
    noise: np.ndarray,
) -> np.ndarray:
    """Returns the poster's Δλ̃ = α [Δλ / max(1, ‖Δλ‖ / C) + (σC / √M) z], literally.

    For comparisons, in whatever coordinates λ is given: it is a formula over floats, releases
    nothing and promises nothing. ``perturbed_update`` is the same in the prior's coordinates, with
    noise on a grid.

    Args:
      change: Δλ [d].
      clip_norm: C.
      sigma: σ, what the noise of the sum over all clients is named by.
      clients: M.
      alpha: α.
      noise: z [d], standard normal.

    >>> literal_update(np.array([3.0, 4.0]), 1.0, 2.0, 4, 0.5, np.array([1.0, 0.0])).round(
    ...     12
    ... ).tolist()
    [0.8, 0.4]

    Source: docs/proofs/updates.md §5.
    """
    scale = max(1.0, float(np.linalg.norm(change)) / clip_norm)
    return alpha * (change / scale + sigma * clip_norm / math.sqrt(clients) * noise)
