"""Rejects optimisers, mutable state and modes of differentiation that `DPSVI` does not support."""

from typing import Any

import jax
import jax.numpy as jnp
from numpyro import optim as optimisers

from fedvi import errors

__all__ = ["check_gradients_serve", "check_mode", "check_mutable", "check_optimiser"]


def check_optimiser(optim: Any) -> None:
    if isinstance(optim, optimisers.Minimize):
        raise errors.ConfigError(
            "optim is Minimize, which steps by the value of the loss: that is not released",
            "use one that needs gradients alone, such as numpyro.optim.Adam",
        )


def check_gradients_serve(optim: Any, optim_state: Any, params: Any) -> None:
    """Rejects an optimiser that needs more than the gradient, before its first step would fail."""
    try:
        jax.eval_shape(lambda: optim.update(params, optim_state, value=jnp.zeros(())))
    except TypeError as error:
        raise errors.ConfigError(
            f"optim cannot take a step with a gradient alone: {error}",
            "line searches evaluate the loss on records again, which is not released; use one that "
            "needs gradients alone, such as optax.adam",
        ) from error


def check_mode(forward: Any) -> None:
    if forward:
        raise errors.ConfigError(
            f"forward_mode_differentiation is {forward!r}, expected False",
            "the gradient of each record is taken in reverse; use jax.lax.scan in the model in place "
            "of while_loop",
        )


def check_mutable(mutable: Any) -> None:
    if mutable:
        raise errors.ModelError(
            f"mutable state in {', '.join(mutable)} would carry records from step to step without "
            "noise",
            "use layers without running statistics: LayerNorm or GroupNorm, no BatchNorm",
        )
