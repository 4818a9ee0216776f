"""Runs a NumPyro model forwards: finds which columns it draws, and from which distributions.

A fedvi model observes a record's columns, ``numpyro.sample("y", …, obs=y)``. The same sites give the
distribution of y when the model runs forwards.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.distributions.distribution import validation_enabled

from fedvi import errors
from fedvi.models.capabilities import RunsForwards
from fedvi.models.plates import is_factor

__all__ = ["Outcome", "check_whole", "law", "outcomes", "sampled"]

# Number of made-up records used to find the column of each site.
_TRIED = 2


class Outcome(NamedTuple):
    """A column that the model draws.

    Attributes:
      site: its name in the model.
      column: its name in the record.
      first: whether the site is the first number of the column only, since an offset is the second.
    """

    site: str
    column: str
    first: bool = False


def outcomes(model: RunsForwards) -> tuple[Outcome, ...]:
    """Returns the columns that a model draws, in its order; the others are inputs.

    Raises:
      ModelError: a term of a record is not the law of a column, such as a ``numpyro.factor``; or a site
        depends on a column drawn after it.
    """
    with jax.enable_x64(True):
        records, others = _made_up(model, 0.5, 0), _made_up(model, 0.25, 1)
        random = np.random.default_rng(0)
        theta = jnp.asarray(random.uniform(-0.5, 0.5, model.size))
        same: dict[str, str] = {}
        order: list[str] = []

        # Compiled as a whole, which is faster than step by step.
        @jax.jit
        def observed(theta: Any, records: Any) -> Any:
            sites = _observed(model, theta, records)
            # A compiled function returns dicts in alphabetical order.
            order[:] = sites
            for name, site in sites.items():
                _refuse_factor(model, name, site)
                columns = [key for key in records if site["value"] is records[key]]
                same.update((name, column) for column in columns)
            return {name: site["value"] for name, site in sites.items()}

        values = observed(theta, records)
        found = [_outcome(model, name, values[name], same.get(name), records) for name in order]
        columns = [outcome.column for outcome in found]
        if len(set(columns)) < len(columns):
            raise errors.ModelError(
                f"model `{model.name}` draws `{max(columns, key=columns.count)}` twice, expected one "
                "site for each column"
            )

        @jax.jit
        def moved(theta: Any, records: Any, others: Any) -> Any:
            pairs = []
            for index, outcome in enumerate(found):
                later = records | {name: others[name] for name in columns[index:]}
                laws = (_observed(model, theta, at)[outcome.site]["fn"] for at in (records, later))
                pairs.append(tuple(each.log_prob(values[outcome.site]) for each in laws))
            return pairs

        pairs = moved(theta, records, others)
    for outcome, (before, after) in zip(found, pairs, strict=True):
        # With an offset, the law depends on its own column.
        if not outcome.first and not np.allclose(before, after, rtol=1e-9, equal_nan=True):
            raise errors.ModelError(
                f"model `{model.name}`: the law of `{outcome.site}` depends on a column that is "
                "drawn later, or on itself",
                "observe columns in an order in which each depends on earlier ones alone",
            )
    return tuple(found)


def law(
    model: RunsForwards, outcome: Outcome, latents: Mapping[str, Any], records: Mapping[str, Any]
) -> Any:
    """Returns the distribution of an outcome for each record, at given latents and other columns.

    Traceable by JAX.
    """
    return _traced(model, latents, records)[outcome.site]["fn"]


def check_whole(model: RunsForwards, site: str, law: str, is_density: bool, text: str) -> None:
    """Rejects a density where a probability is needed.

    Args:
      model: the model with the law.
      site: its name in the model.
      law: its class, for the message.
      is_density: whether it is continuous.
      text: the response, as in the formula.

    Raises:
      ModelError: it is a density.
    """
    if is_density:
        raise errors.ModelError(
            f"model `{model.name}`: the law of `{site}`, {law}, is continuous, expected a discrete "
            f"one, since `{text}` is binary or has levels",
            "take dist.Bernoulli or dist.Categorical",
        )


def sampled(
    model: RunsForwards,
    drawn: tuple[Outcome, ...],
    theta: np.ndarray,
    given: Mapping[str, np.ndarray],
    count: int,
    seed: np.random.SeedSequence,
) -> dict[str, np.ndarray]:
    """Draws all outcomes of ``count`` records at one θ, column after column.

    Args:
      model: any.
      drawn: its ``outcomes``.
      theta: [D].
      given: the columns that it does not draw, with a record axis; and columns with an outcome whose other
        numbers are inputs, such as an offset.
      count: of records.
      seed: of the draws.

    Returns:
      The records, outcomes in float64 or integers as the model has them.
    """
    with jax.enable_x64(True):
        latents = model.constrain(jnp.asarray(theta))
        records: dict[str, Any] = {
            name: jnp.zeros((count, *shape.shape), _kind(shape.dtype))
            for name, shape in model.record.items()
        }
        records |= {name: jnp.asarray(values) for name, values in given.items()}
        (state,) = seed.generate_state(1)
        key = jax.random.key(int(state))
        for place, outcome in enumerate(drawn):
            found = law(model, outcome, latents, records).sample(jax.random.fold_in(key, place))
            old = records[outcome.column]
            new = jnp.broadcast_to(found, old.shape[:1] if outcome.first else old.shape)
            new = new.astype(old.dtype)
            records[outcome.column] = old.at[:, 0].set(new) if outcome.first else new
        return {name: np.asarray(values) for name, values in records.items()}


def _refuse_factor(model: RunsForwards, name: str, site: Mapping[str, Any]) -> None:
    if is_factor(site):
        raise errors.ModelError(
            f"model `{model.name}`: `{name}` is a numpyro.factor of a record, expected a law to draw from",
            'write numpyro.sample("y", …, obs=y) with a distribution that can be sampled',
        )


def _outcome(
    model: RunsForwards, name: str, value: Any, column: str | None, records: Mapping[str, Any]
) -> Outcome:
    if column is not None:
        return Outcome(name, column)
    for other, array in records.items():
        # With an offset, y is (outcome, offset).
        first = array.ndim == 2 and value.shape == array.shape[:1]
        if first and np.array_equal(value, array[:, 0]):
            return Outcome(name, other, first=True)
    raise errors.ModelError(
        f"model `{model.name}`: what `{name}` observes is none of the columns {', '.join(records)}",
        "observe a column as it is: obs=y, and put transforms into the distribution",
    )


def _observed(model: RunsForwards, theta: Any, records: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: site
        for name, site in _traced(model, model.constrain(theta), records).items()
        if site["type"] == "sample"
        and site["is_observed"]
        and any(frame.name == model.plate for frame in site["cond_indep_stack"])
    }


def _traced(model: RunsForwards, latents: Mapping[str, Any], records: Mapping[str, Any]) -> Any:
    # Models that draw values they never use need a seed.
    seeded = handlers.seed(handlers.substitute(model.function, data=dict(latents)), rng_seed=0)
    # Columns that are not drawn yet are zeros, which need not be in the support of their laws.
    with validation_enabled(False), handlers.trace() as traced:
        seeded(**records)
    return traced


def _made_up(model: RunsForwards, scale: float, level: int) -> dict[str, Any]:
    """Returns records in which no two columns hold the same floats, and all integers are ``level``."""
    found: dict[str, Any] = {}
    for place, (name, shape) in enumerate(model.record.items(), start=1):
        size = (_TRIED, *shape.shape)
        if jnp.issubdtype(shape.dtype, jnp.floating):
            steps = 1e-3 * jnp.arange(1.0, float(np.prod(size)) + 1.0).reshape(size)
            found[name] = steps + scale / (1.0 + place)
        else:
            found[name] = jnp.full(size, level, shape.dtype)
    return found


def _kind(dtype: Any) -> Any:
    return jnp.float64 if jnp.issubdtype(dtype, jnp.floating) else dtype
