"""Fits the server's own factor t_0 for a prior that is not in the family; it touches no data."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from fedvi.inference.solvers.gradient import local_optimum
from fedvi.models.base import Model, Wrapped
from fedvi.privacy import events
from fedvi.privacy.release import Released, public
from fedvi.typing import Eta, Key
from fedvi.updates.base import LocalSolver, Shard, Task, finish_natural

__all__ = ["base", "empty_shard", "prior_factor"]


def base(family: Any) -> Eta:
    """Returns η of N(0, I), the proper base that t_0 multiplies: p0(θ) ≈ N(θ; 0, I) · t_0(θ)."""
    return family.isotropic(1.0)


def empty_shard() -> Shard:
    """Returns the shard of the worker that owns the prior: one empty record."""
    return Shard({"nothing": np.zeros(1)}, np.ones(1, bool))


def prior_factor(
    family: Any, model: Model, steps: int = 1000, draws: int = 8, learning_rate: float = 0.1
) -> LocalSolver:
    """Returns the solver that refines t_0 each round, with log p0 in place of a likelihood.

    A prior outside the family (half-normal scales, hierarchies, Jacobians of transforms) is not
    approximated once at the start: like a client's factor, its factor is refitted at the current q.

    Guarantee: costs nothing. What it sends is a function of the model and of the broadcast
    posterior, which was released.

    Args:
      family: full, diagonal or low-rank Gaussian over the model's θ.
      model: the model with the ``log_prior``.
      steps, draws, learning_rate: see ``gradient``.

    Source: docs/proofs/updates.md §4.
    """
    optimum = local_optimum(family, _Remainder(model), steps, draws, learning_rate)

    def update(
        key_of: Callable[[str], Key], state: Any, task: Task, shard: Shard
    ) -> tuple[Any, Released, dict[str, Any]]:
        value, info = optimum(key_of("guide"), task, shard)
        return state, public(value), info

    return LocalSolver(
        name="prior_factor",
        init=lambda eta: (),
        update=update,
        finish=finish_natural,
        cost=events.NOTHING,
        number_count=family.number_count,
    )


@dataclasses.dataclass(frozen=True)
class _Remainder(Wrapped):
    """log p0(θ) − log N(θ; 0, I), up to a constant, as the likelihood of one empty record."""

    def log_prior(self, theta: Any) -> Any:
        """Returns log N(θ; 0, I) up to a constant."""
        return -0.5 * (theta * theta).sum()

    def log_likelihood(self, theta: Any, record: Any) -> Any:
        """Returns log p0(θ) − log N(θ; 0, I), up to a constant; ``record`` is not used."""
        return self.model.log_prior(theta) - self.log_prior(theta)
