"""Makes the model's prior: a member of the family of q, or a factor of its own."""

from typing import Any

from fedvi.expfam import tree
from fedvi.expfam.base import DenseGaussian, FactoredGaussian
from fedvi.inference import prior_factor
from fedvi.models.base import Model, diagonal_prior, gaussian_prior
from fedvi.typing import Eta
from fedvi.updates.base import LocalSolver
from fedvi.updates.conjugate import ConjugateModel

__all__ = ["prior_of"]


def prior_of(family: Any, model: Model | ConjugateModel) -> tuple[Eta, LocalSolver | None]:
    """Returns η_0, and a worker that refines the prior's factor if the prior is not in the family."""
    if isinstance(model, ConjugateModel):
        return tree.to_numpy(model.prior), None
    if isinstance(family, FactoredGaussian):
        alone = diagonal_prior(model)
        if alone is not None:
            return family.from_diagonal(*alone), None
        return prior_factor.base(family), prior_factor.prior_factor(family, model)
    exact = gaussian_prior(model)
    if exact is not None and isinstance(family, DenseGaussian):
        found = family.from_quadratic(*exact)
        if found is not None:
            return found, None
    return prior_factor.base(family), prior_factor.prior_factor(family, model)
