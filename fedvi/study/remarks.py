"""Chooses the remarks under a table of coefficients.

Needs no JAX, so that a server can print them too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fedvi.data.schema import Number
from fedvi.expfam.base import DenseGaussian, FactoredGaussian, Gaussian, is_full
from fedvi.study import site_effects
from fedvi.study.config import Study
from fedvi.study.spec import conjugates, regressions
from fedvi.study.spec.coefficients import design_of
from fedvi.updates.abilities import ability

__all__ = ["of_intervals", "of_surveys", "remarks"]

_UNCONSTRAINED = (
    "coefficients are on the model's unconstrained scale: log σ for a positive σ, logit p for a p "
    "between 0 and 1; draws, `fedvi posterior --to`, are of σ and p themselves"
)

_MEAN_FIELD = (
    "q holds no correlations (family {}): where coefficients are correlated intervals are "
    "too narrow, each by √(1 − R²) of that coefficient on the others"
)
_LOW_RANK = (
    "q holds correlations along its directions alone (family {}): where coefficients "
    "are correlated otherwise intervals are too narrow"
)
_POLYA_GAMMA = (
    "by Pólya-Gamma latents intervals are narrower than exact ones, a quarter at log odds of 2"
)
_HOLDS_IT = "those of solver `site_release` include it"


def remarks(study: Study, family: Any, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the sentences under a table of coefficients.

    Args:
      study: the coefficients' study.
      family: of its posterior.
      rows: of the table, see ``fedvi.study.spec.coefficients``.
    """
    is_unconstrained = regressions.is_function(study) and isinstance(family, Gaussian)
    said = (
        site_effects.remark(study, rows),
        of_intervals(study, family),
        _UNCONSTRAINED if is_unconstrained else "",
    )
    return [line for line in said if line]


def _told_noise(study: Study, noise_scale: float) -> tuple[float, str]:
    """Returns the sd of records around their mean in the unit of the file, and that unit with the outcome.

    Args:
      study: of a linear regression.
      noise_scale: the sd in the unit of the model.
    """
    schema, design = design_of(study)
    name = design.response.columns[0]
    column = schema[name]
    if not isinstance(column, Number):
        return noise_scale, name
    return noise_scale * column.scale, f"{column.unit} of {name}" if column.unit else name


def of_surveys(
    study: Study, noise_scale: float | None, wider: Mapping[str, float] | None
) -> list[str]:
    """Returns the remarks on what a run's surveys told of outcomes and columns; or none.

    Args:
      study: of a regression.
      noise_scale: the sd of records around their mean, in the unit of the model.
      wider: coefficient → the sd of its prior in the unit of the file, where columns are much narrower than
        their bounds.
    """
    said = []
    if noise_scale is not None:
        value, unit = _told_noise(study, noise_scale)
        said += [
            f"the sd of a record around its mean is {value:.3g} ({unit}), by a release of this run"
        ]
    if wider:
        sds = ", ".join(f"{name} {sd:.3g}" for name, sd in wider.items())
        said += [
            f"priors have another sd than the study states: {sds}. A release of this run says that these "
            "columns fill a small part of their bounds, and the study names no other unit of them"
        ]
    return said


def of_intervals(study: Study, family: Any) -> str:
    """Returns remarks on how intervals differ from those of the exact posterior.

    There is none on a full Gaussian from `site_release`, or on the messages of `perturbed_update`,
    `local_averaging` and `virtual_clients`, which account for the noise (docs/proofs/noise_aware.md).

    Returns:
      One or more sentences without a full stop at the end; "" if there is none.
    """
    solver, private = ability(study.solver.kind), study.privacy.private
    if conjugates.model_of(study) is not None:
        return solver.unheld if private else ""
    said = []
    if isinstance(family, DenseGaussian) and not family.correlated:
        said.append(_MEAN_FIELD.format(study.family.kind))
    if isinstance(family, FactoredGaussian):
        said.append(_LOW_RANK.format(study.family.kind))
    of = regressions.of(study)
    if solver.of_statistics and of is not None and of.latents:
        said.append(_POLYA_GAMMA)
    if private and solver.unheld:
        # site_release refuses effects that stay at their site, and a family without correlations.
        could = site_effects.wanted(study) is None and is_full(family)
        said.append(solver.unheld + (f"; {_HOLDS_IT}" if could else ""))
    return ". ".join(one[0].upper() + one[1:] if at else one for at, one in enumerate(said))
