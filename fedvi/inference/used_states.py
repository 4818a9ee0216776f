"""Keeps which states of a `DPSVI` were used, also by steps inside a caller's own `jit`, `scan` or `vmap`.

A state has the key of its next step's noise. Two steps from one state would have the same noise on two
tables, and the difference of what they release would have none.
"""

import hashlib
import threading
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.experimental import io_callback

from fedvi import errors
from fedvi.inference import ratchet
from fedvi.inference.svi_steps import DPSVIState

__all__ = ["UsedStates"]

# The words of a key of ChaCha20.
_WORDS = 8


class UsedStates:
    """The states of one fit that were used, by digests of the keys of their next steps.

    Guarantee: of all steps from one state, in all threads of this process and under all transformations of
    JAX, at most one is taken. Proof: a step is taken only after ``use`` accepted its key, which it does
    once. Under a transformation a callback of the compiled program asks ``use`` at every execution, and
    the result depends on its answer. `vmap` would ask once for a key that all its steps share, so that is
    refused when it is traced.

    Args:
      fit: the mark of the states of this fit, uint32 [2].
      check_owner: raises in a process that does not own the fit.
    """

    def __init__(self, fit: np.ndarray, check_owner: Callable[[], None]) -> None:
        self._fit, self._check_owner = fit, check_owner
        self._digests: set[bytes] = set()
        self._lock = threading.Lock()

    def use(self, key: np.ndarray, fit: np.ndarray, step: int) -> None:
        """Records that a state is used.

        Args:
          key: the words of the key of its next step.
          fit: the state's mark.
          step: the number of steps before it, for the error message.

        Raises:
          PrivacyError: it is a state of another fit, or was used before.
        """
        if not np.array_equal(fit, self._fit):
            raise errors.PrivacyError(
                "the state belongs to another fit: that fit was charged for its steps, this one was not",
                "pass what `init`, `update` or `run` of this very object returned",
            )
        digest = hashlib.sha256(key.tobytes()).digest()
        with self._lock:
            if digest in self._digests or not key.any():
                raise errors.PrivacyError(
                    f"the state of step {step} was used before, and its noise with it",
                    "go on with the state that `update` or `run` returned",
                )
            self._digests.add(digest)

    def clear(self) -> None:
        """Forgets all states, for tests of the noise alone: what follows has no guarantee."""
        with self._lock:
            self._digests.clear()

    def guarded(
        self, state: DPSVIState, others: list[Any], steps: int, take: Callable[[], Any]
    ) -> tuple[DPSVIState, jax.Array]:
        """Takes a step of a traced state, which is recorded each time that the compiled program runs.

        Where no step is left, or a step was set back, the state is returned as it was, with a loss of NaN.
        So it is where ``use`` refuses and JAX has several devices, with a warning. On one device an error
        of ``use`` reaches the caller as a ``jax.errors.JaxRuntimeError`` with its message.

        Args:
          state: traced.
          others: arrays that the step also depends on.
          steps: how many steps are planned.
          take: computes the next state and the loss.

        Raises:
          PrivacyError: when traced: `vmap` maps over tables or parameters, with one state for all.
        """

        # Where one of several devices raises, XLA waits for it a minute and ends the process.
        is_alone = jax.device_count() == 1

        def ask(asked: Any) -> np.ndarray:
            # NumPy alone: a callback that waits for JAX may wait for itself.
            words = np.asarray(asked)
            key, fit, step = words[:_WORDS], words[_WORDS:-1], int(words[-1])
            if step >= steps or not key.any():
                return np.asarray(False)
            try:
                self._check_owner()
                self.use(key, fit, step)
            except errors.PrivacyError as refusal:
                if is_alone:
                    raise
                warnings.warn(f"no step was taken: {refusal}", stacklevel=1)
                return np.asarray(False)
            return np.asarray(True)

        @custom_vmap
        def is_first(asked: jax.Array, mapped: jax.Array) -> Any:
            return io_callback(ask, jax.ShapeDtypeStruct((), np.bool_), asked)

        @is_first.def_vmap
        def each(size: int, batched: Any, asked: jax.Array, mapped: jax.Array) -> Any:
            if not batched[0]:
                raise errors.PrivacyError(
                    f"vmap takes {size} steps from one state, expected a state for each: all of them would "
                    "have the same noise",
                    "map over the states, too; each `init` is a run of its own: "
                    "fedvi.privacy.sgd(runs=…)",
                )
            if not batched[1]:
                mapped = jnp.broadcast_to(mapped, (size,))
            return jax.lax.map(lambda one: is_first(*one), (asked, mapped)), True

        key = jax.random.key_data(ratchet.next_key(state.noise_key, state.step))
        step = jnp.asarray(state.step, jnp.uint32)[None]
        mapped = sum(
            (_nothing_of(leaf) for leaf in jax.tree.leaves((state, others))), jnp.zeros(())
        )
        first = is_first(jnp.concatenate([key, state.fit, step]), mapped)
        new, loss = take()
        kept = jax.tree.map(lambda after, before: jnp.where(first, after, before), new, state)
        return kept, jnp.where(first, loss, jnp.nan)


def _nothing_of(leaf: Any) -> jax.Array:
    """Returns zero, mapped over where the array is; it costs nothing."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return jnp.sum(jnp.ravel(leaf)[:0].astype(jnp.float32))
