"""The public coordinates in which a whole change Δη is clipped, where the prior is N(0, I)."""

from typing import Any

from fedvi import errors
from fedvi.expfam.base import DenseGaussian
from fedvi.models.base import Model, gaussian_prior
from fedvi.updates.base import compiled_once
from fedvi.updates.whitened_changes import PriorFrame

__all__ = ["prior_frame"]


@compiled_once
def prior_frame(family: Any, model: Model) -> PriorFrame:
    """Returns the frame of a model's prior, or of N(0, I) where the prior is not in the family.

    Args:
      family: full or diagonal Gaussian over the model's θ.
      model: the model with the prior.

    Raises:
      SolverError: for another family.
    """
    if not isinstance(family, DenseGaussian):
        raise errors.SolverError(
            f"changes of {type(family).__name__} cannot be clipped, expected a Gaussian family",
            'use family kind "full_gaussian" or "diagonal_gaussian"; solver kind `dp_optimisation` takes '
            "low_rank_gaussian",
        )
    exact = gaussian_prior(model)
    eta = None if exact is None else family.from_quadratic(*exact)
    return PriorFrame(*family.location_root(family.isotropic(1.0) if eta is None else eta))
