"""NumPyro models that studies in tests name: of an outcome given columns, and of whole records."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from fedvi.models.made_up import ONE, placeholders
from fedvi.models.numpyro import NumPyroModel
from fedvi.models.plates import numpyro_rules, transform_of


def line(x: Any, y: Any) -> None:
    """The outcome is near a line; latents are not in the order of the alphabet."""
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ slopes, noise), obs=y)


def odds(x: Any, y: Any) -> None:
    """Logistic regression."""
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ b), obs=y)


def counted(x: Any, y: Any) -> None:
    """Counts with an offset."""
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ b + y[:, 1])), obs=y[:, 0])


def scattered(x: Any, y: Any) -> None:
    """Negative binomial regression with an offset, dispersion ½."""
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        law = dist.NegativeBinomial2(jnp.exp(x @ b + y[:, 1]), 2.0)
        numpyro.sample("y", law, obs=y[:, 0])


def zeroed(x: Any, y: Any) -> None:
    """Counts of which a third are zero whatever the rate."""
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        law = dist.ZeroInflatedPoisson(1.0 / 3.0, jnp.exp(x @ b + y[:, 1]))
        numpyro.sample("y", law, obs=y[:, 0])


def heavy(x: Any, y: Any) -> None:
    """An outcome whose law has no mean."""
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.StudentT(1.0, x @ b, 1.0), obs=y)


def wide(x: Any, y: Any) -> None:
    """An outcome whose law has a mean, and a variance only where a latent is above 2."""
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    tails = numpyro.sample("tails", dist.HalfNormal(1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.StudentT(1.0 + tails, x @ b, 1.0), obs=y)


def cut_off(x: Any, y: Any) -> None:
    """An outcome whose law does not know its mean."""
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        whole = dist.StudentT(5.0, x @ b, 1.0)
        numpyro.sample("y", dist.TruncatedDistribution(whole, low=-200.0), obs=y)


class Silent(dist.Normal):
    """A law that knows its density and moments, and of which nothing can be drawn."""

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
        raise NotImplementedError


def silent(x: Any, y: Any) -> None:
    """Linear regression with such a law."""
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", Silent(x @ b, 1.0), obs=y)


def ward(days: Any, kind: Any, age: Any) -> None:
    """Columns by name: a kind given age, then days given both. Age is given."""
    levels = numpyro.sample("levels", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    logits = jnp.stack([jnp.zeros_like(age), slope * age, -slope * age], axis=1)
    with numpyro.plate("records", age.shape[0]):
        numpyro.sample("kind", dist.Categorical(logits=logits), obs=kind)
        numpyro.sample("days", dist.Normal(levels[kind] + age, 0.5), obs=days)


def tangled(a: Any, b: Any) -> None:
    """Each column depends on the other: no order to draw them in."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", a.shape[0]):
        numpyro.sample("a", dist.Normal(slope * b, 1.0), obs=a)
        numpyro.sample("b", dist.Normal(slope * a, 1.0), obs=b)


def factored(a: Any) -> None:
    """A term that is no law."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", a.shape[0]):
        numpyro.factor("term", -((a - slope) ** 2))


def squared(a: Any) -> None:
    """What is observed is no column."""
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("records", a.shape[0]):
        numpyro.sample("a", dist.Exponential(scale), obs=a**2)


def clusters(age: Any, smokes: Any, ward: Any) -> None:
    """A mixture of two over a number, a binary column and three levels, summed out column by column.

    log Σₖ wₖ Πⱼ p(xⱼ | k) is the sum of log p(xⱼ | x₁ … xⱼ₋₁), a mixture whose weights are those of the
    components given the columns before: so that each column has a law, and can be drawn.
    """
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    centres = numpyro.sample("centres", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    rates = numpyro.sample("rates", dist.Beta(1.0, 1.0).expand([2]).to_event(1))
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(3)).expand([2]).to_event(1))
    with numpyro.plate("records", age.shape[0]):
        logits = jnp.broadcast_to(jnp.log(weights), (age.shape[0], 2))
        parts = dist.Normal(centres, 0.5).expand((age.shape[0], 2))
        mixture = dist.MixtureSameFamily(dist.Categorical(logits=logits), parts)
        numpyro.sample("age", mixture, obs=age)
        logits = logits + dist.Normal(centres, 0.5).log_prob(age[:, None])
        # A mixture of laws over levels is the law of the mean chances.
        smoking = jnp.matmul(jax.nn.softmax(logits), rates)
        numpyro.sample("smokes", dist.Bernoulli(smoking), obs=smokes)
        logits = logits + dist.Bernoulli(rates).log_prob(smokes[:, None])
        where = jnp.matmul(jax.nn.softmax(logits), shares)
        numpyro.sample("ward", dist.Categorical(where), obs=ward)


def unconstrained(model: NumPyroModel, values: Mapping[str, Any]) -> jax.Array:
    """Returns the θ that ``constrain`` maps to these values of all latents."""
    with numpyro_rules():
        run = model._run_at(jnp.zeros(model.size), placeholders(model._example, [ONE]))
        parts = (
            transform_of(run.sites[item.name]).inv(jnp.asarray(values[item.name]))
            for item in model._latents
        )
        return jnp.concatenate([jnp.ravel(part) for part in parts])
