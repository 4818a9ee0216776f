"""Perturbed updates: a client's whole change of the posterior, clipped and noised."""

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

    With ``unit`` "client": all that one client holds, at the price for that unit: the shift C
    under add_remove, 2C under substitute. Proof: the clipped change has norm C at most,
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
