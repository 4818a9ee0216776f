"""Draws parameters from a posterior and gives them the names that people use.

Everything is a function of the posterior and a seed: it costs nothing beside what was charged.
"""

from typing import Any

import jax
import numpy as np

from fedvi import errors
from fedvi.experiment.build import Assembly
from fedvi.experiment.results import generative
from fedvi.experiment.results.generative import Parameter
from fedvi.expfam.gaussian import DiagonalGaussian, FullGaussian
from fedvi.expfam.low_rank_gaussian import LowRankGaussian
from fedvi.models.base import Model
from fedvi.models.conjugate import ConjugateModel
from fedvi.models.site_effects import SiteEffects
from fedvi.models.softmax import Multinomial
from fedvi.typing import Eta

__all__ = ["GAUSSIAN", "constrained", "flat", "line", "mean_root", "named", "thetas"]

GAUSSIAN = FullGaussian | DiagonalGaussian | LowRankGaussian
"""Of these, every linear predictor is normal."""

# Numbers that are drawn at most: 2 GB of float64.
_MOST = 250_000_000


def named(assembly: Assembly, posterior: Eta, count: int, seed: int) -> dict[str, Parameter]:
    """Draws from a posterior and cuts each draw into the model's parameters, in their own supports.

    Args:
      assembly: the study, built.
      posterior: η of a proper q.
      count: how many draws.
      seed: of the draws; public.

    Returns:
      By name, float64 with the draws on the first axis: "coefficients" of a regression, each site of a
      NumPyro model, and what a conjugate model has, such as "weights" and "means".

    Raises:
      ConfigError: there are too many numbers; or a model of one's own does not say what θ is.
    """
    model = assembly.model
    theta = thetas(assembly.family, posterior, count, seed)
    if isinstance(model, ConjugateModel) and not isinstance(model, Model):
        kind = generative.kind_of(model)
        if kind is None:
            # θ as it is: a class from outside says no more than the names of its coordinates.
            return {"theta": Parameter(theta, (("coordinate", tuple(model.names)),))}
        return kind.parameters(model, theta)
    if isinstance(model, Multinomial):
        axes = ("level", model.levels[1:]), ("coefficient", model.columns)
        shape = (-1, len(model.levels) - 1, len(model.columns))
        return {"coefficients": Parameter(theta.reshape(shape), axes)}
    values = constrained(model, theta)
    return {name: Parameter(value, _axes(model, name, value)) for name, value in values.items()}


def thetas(family: Any, posterior: Eta, count: int, seed: int) -> np.ndarray:
    """Draws θ ~ q, float64 [count, D]; the same for the same seed.

    Raises:
      ConfigError: ``count`` is below 1, or there would be too many numbers.
    """
    if count < 1:
        raise errors.ConfigError(f"draws is {count}, expected at least 1")
    if count * family.size > _MOST:
        raise errors.ConfigError(
            f"draws is {count}, of {family.size} numbers each: more than {_MOST:,} in all",
            f"ask for at most {max(1, _MOST // family.size)}, or take the means of the summary",
        )
    if isinstance(family, FullGaussian | DiagonalGaussian):
        mean, root = mean_root(family, posterior)
        noise = np.random.default_rng(seed).normal(size=(count, family.size))
        return mean + (noise @ root.T if root.ndim == 2 else noise * root)
    with jax.enable_x64(True):
        return np.array(family.sample(jax.random.key(seed), posterior, (count,)), np.float64)


def mean_root(family: Any, posterior: Eta) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mean [D] of a full Gaussian and a lower root of its covariance [D, D]; of a diagonal one,
    its sds [D]."""
    found = family.location_root if isinstance(family, FullGaussian) else family.moments
    mean, root = found(posterior)
    return np.asarray(mean), np.asarray(root)


def line(family: Any, posterior: Eta, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and sd of xᵀθ, [n] each, for each row of x [n, D]; q is one of ``GAUSSIAN``."""
    if isinstance(family, LowRankGaussian):
        return family.along(posterior, x)
    mean, root = mean_root(family, posterior)
    spread = x @ root if root.ndim == 2 else x * root
    return x @ mean, np.sqrt((spread**2).sum(axis=1))


def constrained(model: Model, theta: np.ndarray) -> dict[str, np.ndarray]:
    """Returns each latent in its own support, of θ [S, D]: float64 [S, …] by name."""
    order: list[str] = []

    def told(one: Any) -> Any:
        # What comes out of a compiled function is in the order of the alphabet.
        found = model.constrain(one)
        order[:] = found
        return found

    with jax.enable_x64(True):
        values = jax.jit(jax.vmap(told))(theta)
        return {name: np.array(values[name]) for name in order}


def flat(parameters: dict[str, Parameter]) -> dict[str, np.ndarray]:
    """Returns one column [S] for each number: "age", "b[0]", "means[1,height]".

    The coefficients of a regression are called as in its table.
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
    if name == "site_scale" and isinstance(model, SiteEffects):
        return (("effect", model.labels),)
    return tuple(
        (f"{name}_dim_{axis}", tuple(map(str, range(size))))
        for axis, size in enumerate(value.shape[1:])
    )
