"""Guides and models for the contract over one record's move: add one here to have it tried with all others.

``select`` picks settings so that each pair of choices occurs: all combinations would take days.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.distributions.transforms import biject_to
from numpyro.infer import autoguide

__all__ = ["GUIDES", "MODELS", "REFUSED", "WIDTH", "Model", "linear_of", "refused", "select"]

WIDTH = 5
"""Columns of x, in all of these models."""
_OUTCOME = "y"


class Model(NamedTuple):
    """A model of (x, y), x [n, ``WIDTH``] and y [n].

    Attributes:
      fn: for NumPyro.
      latents: name of each global latent → its shape and support, for guides that are written by hand.
      is_local: whether each record has a latent too.
      has_params: whether it has parameters of its own.
    """

    fn: Callable[..., Any]
    latents: Mapping[str, tuple[tuple[int, ...], Any]]
    is_local: bool = False
    has_params: bool = False


_VECTOR, _NUMBER = (WIDTH,), ()


def linear_of(width: int) -> Callable[..., Any]:
    """Returns a linear regression on so many columns."""

    def model(x: Any, y: Any) -> None:
        b = numpyro.sample("b", dist.Normal(0.0, 2.5).expand([width]).to_event(1))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample(_OUTCOME, dist.Normal(x @ b, 1.0), obs=y)

    return model


def _scaled(x: Any, y: Any) -> None:
    b = numpyro.sample("b", dist.Normal(0.0, 2.5).expand([WIDTH]).to_event(1))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample(_OUTCOME, dist.Normal(x @ b, scale), obs=y)


def _hierarchical(x: Any, y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    b = numpyro.sample("b", dist.Normal(mean, spread).expand([WIDTH]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample(_OUTCOME, dist.Normal(x @ b, 1.0), obs=y)


def _tied(x: Any, y: Any) -> None:
    """A parameter that is used three times, as one of a dense layer too."""
    b = numpyro.sample("b", dist.Normal(0.0, 2.5).expand([WIDTH]).to_event(1))
    w = numpyro.param("w", jnp.linspace(0.1, 1.0, WIDTH))
    with numpyro.plate("records", x.shape[0]):
        place = jnp.tanh(x @ w) + (x * w) @ b + (w * w).sum()
        numpyro.sample(_OUTCOME, dist.Normal(place, 1.0), obs=y)


def _broadcast(x: Any, y: Any) -> None:
    """One number for all columns."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.5))
    level = numpyro.sample("level", dist.Normal(0.0, 2.5).expand([1]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample(_OUTCOME, dist.Normal((slope * x + level).sum(-1), 1.0), obs=y)


def _cholesky(x: Any, y: Any) -> None:
    factor = numpyro.sample("factor", dist.LKJCholesky(3, 1.0))
    scales = numpyro.sample("scales", dist.LogNormal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        seen = jnp.stack([x[..., 0], x[..., 1], y], axis=-1)
        place = dist.MultivariateNormal(jnp.zeros(3), scale_tril=scales[:, None] * factor)
        numpyro.sample(_OUTCOME, place, obs=seen)


def _network(x: Any, y: Any) -> None:
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    last = numpyro.sample("last", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    first = numpyro.param("first", jnp.sin(jnp.arange(3.0 * WIDTH)).reshape(WIDTH, 3))
    shift = numpyro.param("shift", jnp.zeros(3))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample(_OUTCOME, dist.Normal(jnp.tanh(x @ first + shift) @ last, scale), obs=y)


def _local(x: Any, y: Any) -> None:
    b = numpyro.sample("b", dist.Normal(0.0, 2.5).expand([WIDTH]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample(_OUTCOME, dist.Normal(x @ b + z, 1.0), obs=y)


_B = {"b": (_VECTOR, constraints.real_vector)}
_SCALE = (_NUMBER, constraints.positive)

MODELS = {
    "linear": Model(linear_of(WIDTH), _B),
    "scaled": Model(_scaled, {**_B, "scale": _SCALE}),
    "hierarchical": Model(
        _hierarchical, {"mean": (_NUMBER, constraints.real), "spread": _SCALE, **_B}
    ),
    "tied": Model(_tied, _B, has_params=True),
    "broadcast": Model(
        _broadcast,
        {"slope": (_NUMBER, constraints.real), "level": ((1,), constraints.real_vector)},
    ),
    "Cholesky factor": Model(
        _cholesky,
        {
            "factor": ((3, 3), constraints.corr_cholesky),
            "scales": ((3,), constraints.independent(constraints.positive, 1)),
        },
    ),
    "network": Model(
        _network, {"scale": _SCALE, "last": ((3,), constraints.real_vector)}, has_params=True
    ),
    "local latents": Model(_local, _B, is_local=True),
}


# Guides.


def _own(model: Model, with_triangle: bool) -> Callable[..., Any]:
    """A guide by hand: a Gaussian for each latent, with a triangle or without."""

    def guide(x: Any, y: Any) -> None:
        for name, (shape, support) in model.latents.items():
            to = biject_to(support)
            inner = tuple(to.inverse_shape(shape))
            loc = numpyro.param(f"{name}_loc", jnp.full(inner, 0.1))
            if with_triangle and len(inner) == 1:
                root = numpyro.param(
                    f"{name}_root",
                    0.1 * jnp.eye(inner[0]),
                    constraint=constraints.scaled_unit_lower_cholesky,
                )
                base = dist.MultivariateNormal(loc, scale_tril=root)
            else:
                scale = numpyro.param(
                    f"{name}_scale", jnp.full(inner, 0.1), constraint=constraints.positive
                )
                base = dist.Normal(loc, scale).to_event(len(inner))
            numpyro.sample(name, dist.TransformedDistribution(base, to))
        if model.is_local:
            gain = numpyro.param("gain", jnp.asarray(0.5))
            width = numpyro.param("width", jnp.asarray(0.7), constraint=constraints.positive)
            with numpyro.plate("records", x.shape[0]):
                # Amortised: the latent of a record follows from the record.
                numpyro.sample("z", dist.Normal(jnp.tanh(gain * y + x[..., 0]), width))

    return guide


class _Tempered(autoguide.AutoDiagonalNormal):
    """A guide class that fedvi has never seen: one more parameter, which all coordinates share."""

    def _get_posterior(self) -> Any:
        widest = numpyro.param("widest", jnp.asarray(1.5), constraint=constraints.positive)
        loc = numpyro.param("auto_loc", self._init_latent)
        scale = numpyro.param(
            "auto_scale", jnp.full(self.latent_dim, 0.1), constraint=constraints.positive
        )
        return dist.StudentT(4.0, loc, widest * scale)


def _listed(model: Model) -> Any:
    first = next(iter(model.latents))
    found = autoguide.AutoGuideList(model.fn)
    found.append(autoguide.AutoNormal(handlers.block(model.fn, hide=[first])))
    found.append(autoguide.AutoMultivariateNormal(handlers.block(model.fn, expose=[first])))
    return found


def _low_rank(rank: int | None) -> Callable[[Model], Any]:
    return lambda model: autoguide.AutoLowRankMultivariateNormal(model.fn, rank=rank)


def _of(kind: Any, **options: Any) -> Callable[[Model], Any]:
    return lambda model: kind(model.fn, **options)


REFUSED: dict[str, Callable[[Model], Any]] = {
    "AutoDelta": _of(autoguide.AutoDelta),
    "AutoLaplaceApproximation": _of(autoguide.AutoLaplaceApproximation),
    "AutoDAIS": _of(autoguide.AutoDAIS),
    "AutoSemiDAIS": lambda model: autoguide.AutoSemiDAIS(
        model.fn, model.fn, autoguide.AutoNormal(model.fn)
    ),
    "AutoSurrogateLikelihoodDAIS": lambda model: autoguide.AutoSurrogateLikelihoodDAIS(
        model.fn, model.fn
    ),
}
"""Guides that no model may be fitted with, by name."""

GUIDES: dict[str, Callable[[Model], Any]] = {
    "AutoNormal": _of(autoguide.AutoNormal),
    "AutoDiagonalNormal": _of(autoguide.AutoDiagonalNormal),
    "AutoMultivariateNormal": _of(autoguide.AutoMultivariateNormal),
    "AutoLowRankMultivariateNormal, rank 1": _low_rank(1),
    "AutoLowRankMultivariateNormal, rank 3": _low_rank(3),
    "AutoLowRankMultivariateNormal, rank D": _low_rank(WIDTH),
    "AutoBatchedMultivariateNormal": _of(autoguide.AutoBatchedMultivariateNormal, batch_ndim=0),
    "AutoBatchedLowRankMultivariateNormal": _of(
        autoguide.AutoBatchedLowRankMultivariateNormal, batch_ndim=0, rank=2
    ),
    "AutoIAFNormal": _of(autoguide.AutoIAFNormal, num_flows=1, hidden_dims=[8]),
    "AutoBNAFNormal": _of(autoguide.AutoBNAFNormal, num_flows=1, hidden_factors=[2]),
    "AutoGuideList": _listed,
    "by hand": lambda model: _own(model, False),
    "by hand, triangles": lambda model: _own(model, True),
    "of another class": _of(_Tempered),
    **REFUSED,
}
"""Name → a guide for a model."""


def refused(guide: str, model: str, gradients: str) -> bool:
    """Whether `DPSVI` must refuse a guide for a model."""
    chosen = MODELS[model]
    by_hand = guide.startswith("by hand")
    return (
        guide in REFUSED
        # Latents of records need a guide that reads them, and aligned gradients do not reach them.
        or (chosen.is_local and not by_hand)
        or (gradients == "aligned" and (chosen.is_local or chosen.has_params))
    )


def select(
    factors: Mapping[str, Sequence[Any]],
    is_possible: Callable[[dict[str, Any]], bool] = lambda chosen: True,
) -> Iterator[dict[str, Any]]:
    """Yields combinations of levels so that each pair of levels of two factors occurs in one; greedily.

    Args:
      factors: name → levels.
      is_possible: of a combination that need not be complete, whether some complete one has it.

    >>> found = list(select({"a": (1, 2), "b": (1, 2), "c": (1, 2)}))
    >>> len(found)
    4
    """
    names = list(factors)
    # In order, so that the same combinations come at each run.
    left = {
        ((one, a), (other, b)): None
        for one, other in itertools.combinations(names, 2)
        for a in factors[one]
        for b in factors[other]
        if is_possible({one: a, other: b})
    }
    while left:
        chosen = dict(next(iter(left)))
        for name in names:
            if name in chosen:
                continue

            def gained(level: Any, name: str = name, chosen: dict[str, Any] = chosen) -> int:
                pairs = (((other, chosen[other]), (name, level)) for other in chosen)
                return sum(pair in left or pair[::-1] in left for pair in pairs)

            levels = [level for level in factors[name] if is_possible({**chosen, name: level})]
            chosen[name] = max(levels, key=gained)
        for one, other in itertools.combinations(names, 2):
            left.pop(((one, chosen[one]), (other, chosen[other])), None)
        yield {name: chosen[name] for name in names}
