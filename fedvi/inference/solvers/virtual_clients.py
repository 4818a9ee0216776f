"""Virtual clients: parts of a shard keep factors without noise, and their noised sum is released."""

import functools
from typing import Any

from fedvi.inference.local_latents import refuse_site_effects
from fedvi.inference.solvers import _clipped_changes
from fedvi.models.base import Model
from fedvi.privacy.base import Mechanism, Sampler
from fedvi.updates.base import LocalSolver

__all__ = ["virtual_clients"]


def virtual_clients(
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
    """Returns the solver that releases Σₖ clip(Δₖ) + noise over K parts, which keep clean factors.

    Each part is a client of PVI. From the broadcast q it maximises E_q[log p(yₖ|θ)] +
    ⟨η − η_mk, E_q[T]⟩ + H(q), where η_mk is its own factor. It proposes Δₖ = η(q*ₖ) − η, clipped in
    L2 over (h, J) in the prior's coordinates (``prior_frame``). All parts start from the same q.
    Noise of std zC is added once to the sum, for any number of parts. If the server commits s times the
    sum, each part commits s times its own clean Δₖ at the next visit.

    Guarantee: unit: one record (or patient, where the study groups rows). One visit costs
    ``mechanism.event(shift)``. The shift is 2C when a unit is added or removed, and 4C when it is
    substituted by another with another id; with ``by_place`` 2C when it is substituted in its row,
    and 2CK when one is added or removed. T visits cost T times that, by adaptive composition. Proof,
    by induction over visits, given all that was released: part k's factor, and so its Δₖ, is a
    function of its own records, of what was released (the broadcast q, s, the counts of visits, the
    client's noisy factor) and of its own randomness, which is independent of all noise. At visit
    0 the factor is 1; later it is the one before plus s·Δₖ, or a share of what was released. So a
    unit changes as many rows of each sum as parts hold it (``divided``, ``moved_by_one``), each by
    2C (``clipped_changes``), and the noise is fresh. The client's clean total, Σ η_mk, must not be used
    for a cavity: every Δₖ would then depend on every record (2CK). Nor may parts keep their
    shares of the noise in their factors (docs/proofs/updates.md §6). For the views ``message`` and,
    since an answer depends on the client's own noise only through what was published,
    ``aggregate``: there, a lost state restarts from a part of a sum.

    ``CleanState`` describes what each part remembers, and when it commits.

    Args: see ``local_averaging``; here no record is counted K times.

    The duration of a visit depends on how hard its parts are to fit, and so on their records, unless
    ``steps`` is given. Give ``steps`` where deadlines or asynchrony make durations public.

    Source: docs/proofs/updates.md §5 and §6 (clean factors); Heikkilä et al. (2023), arXiv:2209.11595,
    "virtual PVI clients", which splits the noise over the parts and keeps it in their factors.
    """
    refuse_site_effects(model, "virtual_clients")
    moved = _clipped_changes.moved_by_one(model, parts, by_place)
    return _clipped_changes.solver_of(
        "virtual_clients",
        family,
        model,
        _clipped_changes.fitter(family, model, steps, draws, learning_rate),
        sampler,
        mechanism,
        clip_norm,
        parts,
        moved,
        weight=1.0,
        noise_sd=mechanism.noise_multiplier * clip_norm,
        divide=functools.partial(_clipped_changes.divided, parts=parts, by_place=by_place),
        clean=True,
    )
