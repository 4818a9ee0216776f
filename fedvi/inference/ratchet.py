"""Derives the secret keys of steps, many at a time, and erases past keys."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedvi.privacy import random
from fedvi.typing import Key

__all__ = ["next_key", "started", "taken"]

# The number of steps whose keys are made from one.
_EPOCH = 64


def started(key: Key) -> Key:
    """Returns the next epoch's key, followed by the keys of this epoch's steps.

    Args:
      key: a ChaCha20 key that is used for nothing else.
    """
    return jax.random.split(key, _EPOCH + 1)


def next_key(keys: Key, step: Any) -> Key:
    """Returns the key of the next step; all zeros if the step was taken before."""
    return keys[1 + step % _EPOCH]


def taken(keys: Key, step: Any, count: int) -> tuple[Key, Key]:
    """Returns the remaining keys after ``count`` steps, and the keys of these steps, [count].

    Guarantee: the remaining keys reveal nothing of any key that was taken. Proof: an epoch's keys and the
    key of the next epoch are separate outputs of a pseudo-random function of a key that is not kept, and
    those that were taken are overwritten.

    Args:
      keys: as returned by ``started`` or ``taken``.
      step: how many steps were taken before, int32.
      count: how many are taken now.
    """
    first = step % _EPOCH
    begun = (_EPOCH - 1 + count) // _EPOCH  # at most

    def begin(key: Key, _: None) -> tuple[Key, Key]:
        made = started(key)
        return made[0], made

    _, more = lax.scan(begin, keys[0], None, length=begun)
    epochs = jnp.concatenate([keys[None], more])
    steps = lax.dynamic_slice(epochs[:, 1:].reshape(-1), (first,), (count,))
    left = jax.random.key_data(epochs[(first + count) // _EPOCH])
    is_used = jnp.arange(-1, _EPOCH) < (first + count) % _EPOCH
    is_used = is_used.at[0].set(False)
    left = jnp.where(is_used[:, None], jnp.zeros_like(left), left)
    return jax.random.wrap_key_data(left, impl=random.chacha20), steps
