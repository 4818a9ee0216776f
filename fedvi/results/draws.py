"""Draws parameters from a posterior and labels them with readable names.

Draws are a function of the posterior and a seed, so they cost no further privacy budget.
"""

from typing import Any

import jax
import numpy as np

from fedvi.expfam.draws import thetas
from fedvi.models.base import Model
from fedvi.models.capabilities import HasOutcome, Multiplies, Named, Parameter, SharesEffects
from fedvi.models.outcomes.base import Columns
from fedvi.study.build import Assembly
from fedvi.study.spec.coefficients import in_file_units
from fedvi.typing import Eta
from fedvi.updates.conjugate import brings_family

__all__ = ["constrained", "flat", "multipliers", "named", "outcome_columns", "thetas"]


def named(assembly: Assembly, posterior: Eta, count: int, seed: int) -> dict[str, Parameter]:
    """Draws from a posterior and splits each draw into the model's parameters, in their own supports.

    Args:
      assembly: the study, built.
      posterior: η of a proper q.
      count: how many draws.
      seed: of the draws; public.

    Returns:
      By name, float64 with the draws on the first axis: "coefficients" of a regression, in the units of the
      file; each site of a NumPyro model; or a conjugate model's parameters, such as "weights" and "means".

    Raises:
      ConfigError: there are too many numbers; or the user's own model does not define θ.
    """
    model = assembly.model
    theta = thetas(assembly.family, posterior, count, seed)
    if isinstance(model, Named):
        return model.parameters(theta)
    if brings_family(model):
        # θ itself, since an external class names only its coordinates.
        return {"theta": Parameter(theta, (("coordinate", tuple(model.names)),))}
    if isinstance(model, HasOutcome):
        theta = in_file_units(assembly.study, assembly.model.names).draws(theta)
    values = constrained(model, theta)
    return {name: Parameter(value, _axes(model, name, value)) for name, value in values.items()}


def outcome_columns(assembly: Assembly) -> Columns:
    """Returns the declared columns of the outcome in a study's formula."""
    response = assembly.design.response
    found = [assembly.schema[name] for name in response.columns]
    return Columns(
        response.text,
        response.columns,
        tuple(getattr(column, "bounds", (0.0, 1.0)) for column in found),
        tuple(float(getattr(column, "center", 0.0)) for column in found),
        tuple(float(getattr(column, "scale", 1.0)) for column in found),
    )


def multipliers(model: Any, theta: np.ndarray) -> np.ndarray:
    """Returns the multipliers of x at draws θ [S, D]: θ itself, or as the model defines them, [S, W]."""
    if not isinstance(model, Multiplies):
        return theta
    with jax.enable_x64(True):
        return np.array(jax.jit(jax.vmap(model.multipliers))(theta))


def constrained(model: Model, theta: np.ndarray) -> dict[str, np.ndarray]:
    """Returns each latent in its own support, for θ [S, D]: float64 [S, …] by name."""
    order: list[str] = []

    def told(one: Any) -> Any:
        # A compiled function returns dicts in alphabetical order.
        found = model.constrain(one)
        order[:] = found
        return found

    with jax.enable_x64(True):
        values = jax.jit(jax.vmap(told))(theta)
        return {name: np.array(values[name]) for name in order}


def flat(parameters: dict[str, Parameter]) -> dict[str, np.ndarray]:
    """Returns one column [S] for each number: "age", "b[0]", "means[1,height]".

    Coefficients of a regression have the same names as in its table.
    """
    columns: dict[str, np.ndarray] = {}
    for name, (values, axes) in parameters.items():
        for place in np.ndindex(*values.shape[1:]):
            labels = [labels[index] for (_, labels), index in zip(axes, place, strict=True)]
            label = f"{name}[{','.join(labels)}]" if labels else name
            if name == "coefficients":
                label = ": ".join(labels)
            columns[label] = values[(slice(None), *place)]
    return columns


def _axes(model: Model, name: str, value: np.ndarray) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if name == "coefficients" and value.ndim == 2:
        return (("coefficient", tuple(model.names[: value.shape[1]])),)
    if name == "site_scale" and isinstance(model, SharesEffects):
        return (("effect", model.labels),)
    return tuple(
        (f"{name}_dim_{axis}", tuple(map(str, range(size))))
        for axis, size in enumerate(value.shape[1:])
    )
