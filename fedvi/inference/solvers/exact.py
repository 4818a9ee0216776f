"""The exact solver for Gaussian likelihoods with known noise: one visit, no iteration."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedvi import errors
from fedvi.expfam.base import is_full
from fedvi.expfam.gaussian import GaussianEta
from fedvi.inference.local_latents import local_problem
from fedvi.models.base import Model
from fedvi.models.capabilities import Regression
from fedvi.privacy import events
from fedvi.privacy.release import Released, disclose
from fedvi.typing import Key
from fedvi.updates.base import LocalSolver, Shard, Task, cavity, check_gaussian, finish_natural

__all__ = ["exact"]

_WHAT = "exact natural parameters of the local optimum"


def exact(family: Any, model: Model) -> LocalSolver:
    """Returns the solver that answers with the local optimum of a linear model in closed form.

    With Λ = XᵀX/s² and b = Xᵀy/s² the likelihood is exp(bᵀθ − ½θᵀΛθ). The full family holds it
    exactly: t_m is the likelihood. In the diagonal family the optimum of the local objective is
    j = j_c + diag Λ, mean = (diag j_c + Λ)⁻¹ (h_c + b) (docs/proofs/updates.md §2).

    Site effects with a known τ are further coefficients, integrated out of the answer. In the full family
    t_m is then N(y; Xβ, s²I + Z diag(τ²) Zᵀ), and the posterior is that of the mixed model.

    Not private: what it releases is ``Unprotected``.

    Args:
      family: full or diagonal Gaussian over the model's θ.
      model: ``fedvi.models.linear``, without site effects or with a known τ.

    Raises:
      SolverError: for any other model.
    """
    check_gaussian(family, "exact")
    local = local_problem(family, model)
    joint = local.model
    if not (isinstance(joint, Regression) and joint.conjugate):
        raise errors.SolverError(
            "solver `exact` needs a linear model with known noise"
            + (" and a known site_scale" if local.effects else "")
            + f", found {model}",
            "use solver kind `glm` for generalised linear models, or `gradient` for any model",
        )
    noise_scale = float(joint.noise_scale or 1.0)

    @jax.jit
    def statistics(x: Any, y: Any, mask: Any) -> tuple[Any, Any]:
        x, y, mask = joint.rows(x, y, mask)
        weighted = x * (mask.astype(x.dtype) / noise_scale**2)[:, None]
        return weighted.T @ y, weighted.T @ x

    def update(
        key_of: Callable[[str], Key], state: Any, task: Task, shard: Shard
    ) -> tuple[Any, Released, dict[str, Any]]:
        records = local.records(shard.records)
        with jax.enable_x64(True):
            linear, precision = statistics(
                jnp.asarray(records["x"], jnp.float64),
                jnp.asarray(records["y"], jnp.float64),
                jnp.asarray(shard.mask),
            )
        b, lam = np.asarray(linear), np.asarray(precision)
        without = cavity(local.widen(task))
        if is_full(family):
            optimum = GaussianEta(without.h + b, without.J + lam)
        else:
            precision_q = without.J + np.diagonal(lam)
            mean = np.linalg.solve(np.diag(without.J) + lam, without.h + b)
            optimum = GaussianEta(precision_q * mean, precision_q)
        info = local.told(optimum)
        optimum = local.narrow(optimum)
        return state, disclose({"h": optimum.h, "J": optimum.J}, _WHAT), info

    return LocalSolver(
        name="exact",
        init=lambda eta: (),
        update=update,
        finish=finish_natural,
        cost=events.Unprotected(_WHAT),
        number_count=family.number_count,
    )
