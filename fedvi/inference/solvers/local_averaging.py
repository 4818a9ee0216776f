"""Local averaging: each part of a shard stands in for the whole shard, and the mean change is released."""

import functools
from typing import Any

from fedvi.inference.local_latents import refuse_site_effects
from fedvi.inference.solvers import _clipped_changes
from fedvi.inference.tempered import tempered
from fedvi.models.base import Model
from fedvi.privacy.base import Mechanism, Sampler
from fedvi.updates.base import LocalSolver

__all__ = ["local_averaging"]


def local_averaging(
    family: Any,
    model: Model,
    sampler: Sampler,
    mechanism: Mechanism,
    parts: int = 10,
    clip_norm: float = 1.0,
    by_place: bool = False,
    steps: int | None = None,
    draws: int = 8,
    learning_rate: float = 0.1,
) -> LocalSolver:
    """Returns the solver that releases (Σₖ clip(Δₖ) + noise) / K over K fixed parts of a shard.

    From the broadcast q, part k maximises K·E_q[log p(yₖ|θ)] + ⟨η − η_m, E_q[T]⟩ + H(q). Its own
    records count K times, so that it stands for the whole shard. Its Δₖ = η(q*ₖ) − η is
    clipped in L2 over (h, J) in the prior's coordinates (``prior_frame``). The mean's noise falls as
    1/K; its bias grows, since a part has only N/K records.

    Guarantee: unit: one record (or patient, where the study groups rows). One visit costs
    ``mechanism.event(shift)``; every record is in it, so nothing is gained by sampling. The shift of
    the sum is 2C when a unit is added or removed, and 4C when it is substituted by another with
    another id; with ``by_place`` 2C when it is substituted in its row, and 2CK when one is added or
    removed. Proof: part k's Δₖ is a function of its own records (``divided``), of the broadcast q
    and the client's factor η_m, which were released, and of its own randomness; so as many rows
    of the sum change as parts do (``moved_by_one``), each by 2C (``clipped_changes``). K is public,
    and so the division by it is post-processing, as are all later steps and the factor itself. A
    part whose fit fails counts as Δₖ = 0, so that whether and what a client answers reveals nothing
    else. The view is ``message``: every message has the full noise, and no noise is shared.

    Args:
      family: full or diagonal Gaussian over the model's θ.
      model: any model.
      sampler: ``full``.
      mechanism: one of ``fedvi.privacy.mechanisms``.
      parts: K, public and fixed for the whole study.
      clip_norm: C, the L2 bound on one part's change, in the prior's sds.
      by_place: whether rows, instead of ids, tell records apart. Only for the relation ``substitute``, and
        only if no row's place depends on another record, so not in a sorted file.
      steps: gradient steps in a part. Left out, generalised linear models are solved by Newton's
        method, and others in 1,000 steps.
      draws, learning_rate: those of the gradient steps, see ``gradient``.

    The duration of a visit depends on how hard its parts are to fit, and so on their records, unless
    ``steps`` is given. Give ``steps`` where deadlines or asynchrony make durations public.

    Source: docs/proofs/updates.md §5; Heikkilä et al. (2023), arXiv:2209.11595, "local averaging".
    """
    refuse_site_effects(model, "local_averaging")
    moved = _clipped_changes.moved_by_one(model, parts, by_place)
    return _clipped_changes.solver_of(
        "local_averaging",
        family,
        model,
        _clipped_changes.fitter(family, tempered(model, parts), steps, draws, learning_rate),
        sampler,
        mechanism,
        clip_norm,
        parts,
        moved,
        weight=1.0 / parts,
        noise_sd=mechanism.noise_multiplier * clip_norm / parts,
        divide=functools.partial(_clipped_changes.divided, parts=parts, by_place=by_place),
        clean=False,
    )
