"""The NumPyro distribution of a member for which NumPyro has none: drawn and evaluated by its family."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions

from fedvi.expfam import tree
from fedvi.typing import Eta, Key

__all__ = ["ByFamily"]


class ByFamily(numpyro.distributions.Distribution):  # type: ignore[misc]
    """q as a NumPyro distribution with event shape [D], float32 unless x64 is enabled.

    For draws, densities and moments. NumPyro knows no bijection onto blocks of different supports, so
    that a sampler which needs one refuses a site with this prior: give each block a site of its own.
    """

    pytree_data_fields = ("eta",)
    pytree_aux_fields = ("family",)

    def __init__(self, family: Any, eta: Eta) -> None:
        self.family = family
        self.eta = tree.map_leaves(jnp.asarray, eta)
        super().__init__(event_shape=(family.size,))

    def sample(self, key: Key, sample_shape: tuple[int, ...] = ()) -> Any:
        """Draws θ, shape ``sample_shape + (D,)``."""
        return self.family.sample(key, self.eta, sample_shape)

    def log_prob(self, value: Any) -> Any:
        """Returns log q(θ) for θ of shape [..., D] on its support."""
        theta = jnp.reshape(value, (-1, self.family.size))
        statistics = jax.vmap(self.family.statistics)(theta)
        inner = jax.vmap(self.family.inner, in_axes=(None, 0))(self.eta, statistics)
        density = inner - self.family.log_partition(self.eta)
        return jnp.reshape(density, jnp.shape(value)[:-1])

    @property
    def mean(self) -> Any:
        """The mean of θ, [D]."""
        return self.family.moments(self.eta)[0]

    @property
    def variance(self) -> Any:
        """The variance of each coordinate of θ, [D]."""
        return self.family.moments(self.eta)[1] ** 2
