"""Perturbed updates: clips and noises a client's whole change of the posterior."""

from typing import Any

from fedvi import errors
from fedvi.inference.solvers import _clipped_changes
from fedvi.models.base import Model
from fedvi.privacy.base import Mechanism, Sampler
from fedvi.typing import IDS
from fedvi.updates.base import LocalSolver, Shard

__all__ = ["perturbed_update"]


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
    """Returns the solver that releases α·(clip(Δλ) + noise), the change to the client's local optimum.

    Δλ = η(q*) − η, where q* is the optimum of the client's objective. It is clipped to C in L2 over (h, J)
    in the prior's coordinates (``prior_frame``); the noise has std zC, where z is the mechanism's
    ``noise_multiplier``. The DP-PVI poster shares σ among M clients; each message then has z = σ / √M. The
    client's factor carries its own noise, as in the poster. With ``clean_factor``, the client instead
    remembers its factor without noise, and uses it for its cavity.

    Guarantee: for the view ``message``, and with ``clean_factor`` for ``aggregate``: one visit costs
    ``mechanism.event(shift)`` with the shift 2C under either relation. Unit: one record, or one
    patient. Proof: a record decides where in the ball of radius C the whole clipped change lies, so it
    moves the change by at most 2C, also where a record is only added or removed (``clipped_changes`` with
    one row). α, the way back to η, the factor and the cavity are post-processing of what was released; a
    clean factor is not, but given what was released it is the same for every noise, and whatever it
    holds, the change is clipped.

    With ``unit`` "client" the unit is all that one client holds. The shift is then C
    under add_remove, 2C under substitute. Proof: the clipped change has norm C at most,
    whatever the client holds, remembers or was sent, so two of them are 2C apart at most. A client
    without a usable record answers zero, at every visit and whatever its factor is: so a client with
    records and one without are C apart. That a client takes part is public, and no
    neighbour differs in it. The price at C does not cover one added record, which moves the
    change by 2C as above: neither unit's price holds for the other. Not claimed for a factor with noise:
    the price σ of the sum of M messages. Each message is seen, at σ / √M; and where only sums are seen,
    the noise that a factor keeps makes later answers depend on it, which costs more (docs/proofs/updates.md
    §6). A clean factor is a function of the client's records and of what was broadcast and committed, which
    is public, so that no answer depends on earlier noise in any other way, as docs/proofs/aggregate_view.md
    requires.

    Args:
      family: full or diagonal Gaussian over the model's θ.
      model: any model.
      sampler: ``full``.
      mechanism: one of ``fedvi.privacy.mechanisms``.
      clip_norm: C, the L2 bound on the change, in the prior's sds.
      alpha: α in (0, 1], the DP-PVI poster's damping, in addition to the server's.
      steps, draws, learning_rate: see ``local_averaging``.
      clean_factor: whether the client keeps its factor without noise, as a secret (``CleanState``). The
        view ``aggregate`` requires it.
      unit: the unit that the event protects: "record" (or a patient, whose rows form one) or "client".

    Source: docs/proofs/updates.md §5, and §6 (clean factors).
    """
    if not 0.0 < alpha <= 1.0:
        raise errors.SolverError(f"alpha is {alpha}, expected above 0 and at most 1")
    if unit not in ("record", "client"):
        raise errors.SolverError(
            f"unit is {unit!r}, expected 'record' or 'client'",
            "a patient, whose rows are one record, is a 'record' here",
        )
    return _clipped_changes.solver_of(
        "perturbed_update",
        family,
        model,
        _clipped_changes.fitter(family, model, steps, draws, learning_rate),
        sampler,
        mechanism,
        clip_norm,
        1,
        None if unit == "client" else (1, 1),
        weight=alpha,
        noise_sd=mechanism.noise_multiplier * clip_norm * alpha,
        divide=_undivided,
        clean=clean_factor,
    )


def _undivided(shard: Shard) -> list[Shard]:
    records = {name: column for name, column in shard.records.items() if name != IDS}
    return [Shard(records, shard.mask)]
