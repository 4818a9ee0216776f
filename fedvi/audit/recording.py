"""Wraps a mechanism and a sampler to record their calls; the mechanism can also replay outputs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from fedvi.privacy import events
from fedvi.privacy.base import Batch, Mechanism, Sampler, Shift
from fedvi.typing import Key

__all__ = ["Call", "Layout", "Recorder", "SamplerRecorder"]


class Layout(NamedTuple):
    """The static properties of a release; if they differ on neighbouring data, control flow leaks.

    Attributes:
      leaves: (path, shape, dtype) of every array that enters the noise.
      clip_norm: the unit of noise and of shifts.
      step: the grid's spacing; None for a total in floating point.
      bound: the largest squared norm of one record's integers; 0 in floating point.
      noise_multiplier: as the mechanism states it.
    """

    leaves: tuple[tuple[str, tuple[int, ...], str], ...]
    clip_norm: float
    step: float | None
    bound: int
    noise_multiplier: float


class Call(NamedTuple):
    """One call of the noise mechanism. Computed from records: never leaves the audit.

    Attributes:
      layout: the static part.
      key: the raw words of the noise key.
      total: the input, flat: int64 on a grid, otherwise float64.
      output: the output, flat, in the same units.
    """

    layout: Layout
    key: bytes
    total: np.ndarray
    output: np.ndarray

    @property
    def residual(self) -> np.ndarray:
        """The noise, in clip norms, flat float64."""
        difference = (self.output - self.total).astype(np.float64)
        return difference * (self.layout.step or 1.0) / self.layout.clip_norm

    def leaf_residuals(self) -> list[np.ndarray]:
        """The noise of each array, flat, in clip norms."""
        sizes = [int(np.prod(shape, dtype=np.int64)) for _, shape, _ in self.layout.leaves]
        return np.split(self.residual, np.cumsum(sizes)[:-1])


class Recorder:
    """Wraps a mechanism: adds its noise, records total, key and output in order, and can replay outputs.

    Works inside ``jit`` and ``scan``, through ordered callbacks. Recorders are compared by identity, so a
    solver built with one is compiled anew, and all its runs report to that recorder.

    Args:
      inner: the mechanism under audit.
    """

    def __init__(self, inner: Mechanism) -> None:
        self._inner = inner
        self._calls: list[Call] = []
        self._script: Sequence[Call] = ()

    def __getattr__(self, name: str) -> Any:
        # Other attributes of the mechanism are passed through.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of the mechanism under audit."""
        return self._inner.noise_multiplier

    @property
    def mark(self) -> str:
        """The mark of the mechanism under audit."""
        return self._inner.mark

    def grid(self, clip_norm: float) -> Any:
        """Returns the grid of the mechanism under audit."""
        grid = getattr(self._inner, "grid", None)
        return None if grid is None else grid(clip_norm)

    def event(self, shift: Shift) -> events.Event:
        """Returns the event of the mechanism under audit."""
        return self._inner.event(shift)

    def start(self, script: Sequence[Call] = ()) -> None:
        """Begins a run; the outputs of ``script``, as far as they go, replace the noised ones."""
        self._calls = []
        self._script = script

    def stop(self) -> list[Call]:
        """Ends a run and returns its calls in order."""
        jax.effects_barrier()
        calls, self._calls, self._script = self._calls, [], ()
        return calls

    def perturb(self, key: Key, total: Any, clip_norm: float) -> Any:
        """Returns the noised total, or the script's output for this call."""
        noised = self._inner.perturb(key, total, clip_norm)
        grid = self.grid(clip_norm)
        paths = jax.tree_util.tree_leaves_with_path(total)
        layout = Layout(
            leaves=tuple(
                (jax.tree_util.keystr(path), tuple(leaf.shape), str(leaf.dtype))
                for path, leaf in paths
            ),
            clip_norm=clip_norm,
            step=None if grid is None else grid.step,
            bound=0 if grid is None else grid.bound,
            noise_multiplier=self._inner.noise_multiplier,
        )
        leaves, tree = jax.tree.flatten(noised)

        def note(words: Any, entered: Any, left: Any) -> Any:
            return self._note(layout, words, entered, left)

        shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
        entered = [leaf for _, leaf in paths]
        answer = io_callback(note, shapes, _words(key), entered, leaves, ordered=True)
        return jax.tree.unflatten(tree, answer)

    def _note(self, layout: Layout, words: Any, entered: Any, left: Any) -> Any:
        place = len(self._calls)
        call = Call(layout, np.asarray(words).tobytes(), _flat(entered), _flat(left))
        self._calls.append(call)
        arrays = [np.asarray(leaf) for leaf in left]
        if place >= len(self._script) or self._script[place].output.shape != call.output.shape:
            return arrays
        pieces, taken = [], 0
        for array in arrays:
            piece = self._script[place].output[taken : taken + array.size]
            # Convert back to the original dtype: float64 and int64 hold all values exactly.
            pieces.append(piece.astype(array.dtype).reshape(array.shape))
            taken += array.size
        return pieces


class SamplerRecorder:
    """Wraps a sampler, and records the key of every draw in order.

    Works inside ``jit`` and ``scan``; compared by identity, like ``Recorder``.

    Args:
      inner: the sampler under audit.
    """

    def __init__(self, inner: Sampler) -> None:
        self._inner = inner
        self._keys: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    @property
    def rate(self) -> float:
        """The rate of the sampler under audit."""
        return self._inner.rate

    @property
    def capacity(self) -> int:
        """The capacity of the sampler under audit."""
        return self._inner.capacity

    def event(self, inner: events.Event) -> events.Event:
        """Returns the event of the sampler under audit."""
        return self._inner.event(inner)

    def draw(self, key: Key, valid: Any) -> Batch:
        """Returns a batch of the sampler under audit, which names that sampler, not the recorder."""
        io_callback(self._note, None, _words(key), ordered=True)
        return self._inner.draw(key, valid)

    def stop(self) -> list[bytes]:
        """Returns the raw words of the keys since the last call, one entry per draw."""
        jax.effects_barrier()
        keys, self._keys = self._keys, []
        return keys

    def _note(self, words: Any) -> None:
        self._keys.append(np.asarray(words).tobytes())


def _words(key: Key) -> Any:
    """Returns the raw words of a key, typed or not."""
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(key) if typed else jnp.asarray(key)


def _flat(leaves: Any) -> np.ndarray:
    arrays = [np.asarray(leaf) for leaf in leaves]
    exact = all(np.issubdtype(array.dtype, np.integer) for array in arrays)
    kind = np.int64 if exact else np.float64
    return np.concatenate([array.astype(kind).ravel() for array in arrays])
