"""The public coordinates in which a whole change Δη is clipped: those in which the prior is N(0, I)."""

from typing import Any

import numpy as np

from fedvi import errors
from fedvi.expfam.gaussian import DiagonalGaussian, FullGaussian, GaussianEta
from fedvi.inference.base import compiled_once
from fedvi.inference.whitened_changes import PriorFrame
from fedvi.models.base import Model, gaussian_prior

__all__ = ["prior_frame"]


@compiled_once
def prior_frame(family: Any, model: Model) -> PriorFrame:
    """Returns the frame of a model's prior; that of N(0, I) where the prior is not in the family.

    Args:
      family: full or diagonal Gaussian over the model's θ.
      model: whose prior it is.

    Raises:
      SolverError: for another family.
    """
    if not isinstance(family, FullGaussian | DiagonalGaussian):
        raise errors.SolverError(
            f"changes of {type(family).__name__} cannot be clipped, expected a Gaussian family",
            'use family kind "full_gaussian" or "diagonal_gaussian"; solver kind `dp_optimisation` takes '
            "low_rank_gaussian",
        )
    eta, exact = family.isotropic(1.0), gaussian_prior(model)
    if isinstance(family, FullGaussian):
        return PriorFrame(*family.location_root(eta if exact is None else GaussianEta(*exact)))
    if exact is not None and np.array_equal(exact[1], np.diag(np.diagonal(exact[1]))):
        eta = GaussianEta(exact[0], np.diagonal(exact[1]))
    return PriorFrame(*family.moments(eta))
