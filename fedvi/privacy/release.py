"""Adds noise to bounded totals and makes every ``Released``: the only way from data to the network.

    contributions ─► clipped_sum ─► Bounded ─► release ─► Released ─► post_process ─► Released

A ``Bounded`` carries its sensitivity and the sampler of its records. A ``Released`` carries the event
that it cost. Only a ``Released`` can be encoded for the wire.

If the mechanism has a grid, totals and released values are whole multiples of its step, so that the
proofs apply exactly to what is sent, with no floating-point rounding.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedvi import errors
from fedvi.privacy import events
from fedvi.privacy.base import Mechanism
from fedvi.privacy.bounded import Bounded, zeros_like
from fedvi.typing import Key

__all__ = [
    "Noise",
    "OnGrid",
    "Released",
    "decoded",
    "disclose",
    "drawn_ahead",
    "post_process",
    "public",
    "release",
    "release_with",
    "repeat",
    "repeat_outside",
]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OnGrid:
    """Released integers and their scale: the value is ``integers`` × ``step``.

    Attributes:
      integers: a tree of int32 arrays, or of int64 if sums may exceed int32.
      step: the public scale.
    """

    integers: Any
    step: float = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_pytree_node_class
class Released:
    """A value that may be sent, with the event that it cost.

    Made only by ``release``, ``release_with``, ``repeat``, ``post_process``, ``public`` and
    ``disclose``. This prevents mistakes. Python cannot prevent deliberate forgery, so the claims of a
    study with custom code carry a mark.
    """

    __slots__ = ("event", "value")

    value: Any
    event: events.Event

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise errors.PrivacyError(
            "a Released cannot be constructed",
            "pass a Bounded through `privacy.release.release`; it is the only door",
        )

    def __setattr__(self, name: str, value: Any) -> None:
        raise errors.PrivacyError(
            f"a Released cannot be changed: `{name}` was assigned", "use `post_process`"
        )

    def __repr__(self) -> str:
        return f"Released({self.value!r}, {self.event!r})"

    def tree_flatten(self) -> tuple[tuple[Any], events.Event]:
        """Splits into the value, which JAX may trace, and the event, which is static."""
        return (self.value,), self.event

    @classmethod
    def tree_unflatten(cls, event: events.Event, children: tuple[Any]) -> "Released":
        """Joins what ``tree_flatten`` split."""
        return _released(children[0], event)


def release(key: Key, bounded: Bounded, mechanism: Mechanism) -> Released:
    """Adds noise to a bounded total: the only way from data to something public.

    Guarantee: the result costs ``sampler.event(mechanism.event(shift))`` if ``key`` is fresh, secret
    and used for nothing else, and if the mechanism's noise is what it says (see its ``mark``).

    Args:
      key: from ``privacy.random`` with the purpose "noise".
      bounded: made by ``clipped_sum`` or another function that proves its shift.
      mechanism: one of ``fedvi.privacy.mechanisms``; the total must be on its grid.

    Returns:
      The noised total: an ``OnGrid`` if there is a grid (see ``decoded``), else floats.

    Raises:
      PrivacyError: if the total is on another grid.
    """
    _check_grid(mechanism, bounded)
    noised = mechanism.perturb(key, bounded.total, bounded.shift.clip_norm)
    return _noised(noised, bounded, mechanism)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Noise:
    """The noise of one release, drawn in advance: secret, and to be used once.

    Attributes:
      value: arrays with the shapes and dtypes of the total.
      mechanism: drew the noise.
      clip_norm: C that the noise is scaled to.
    """

    value: Any = dataclasses.field(repr=False)
    mechanism: Mechanism = dataclasses.field(metadata={"static": True})
    clip_norm: float = dataclasses.field(metadata={"static": True})


def drawn_ahead(key: Key, like: Any, clip_norm: float, mechanism: Mechanism) -> Noise:
    """Draws the noise of one release before its total exists, so that noise for many is drawn at once.

    Args:
      key: as in `release`.
      like: a tree with the shapes and dtypes of the total.
      clip_norm: C.
      mechanism: as in `release`.
    """
    nothing = jax.tree.map(zeros_like, like)
    return Noise(mechanism.perturb(key, nothing, clip_norm), mechanism, clip_norm)


def release_with(noise: Noise, bounded: Bounded) -> Released:
    """Does what `release` does, with noise that was drawn in advance.

    Guarantee: that of `release`, if ``noise`` is used for nothing else: a mechanism adds its noise
    (``Mechanism.perturb``), so that adding it later is the same release.

    Raises:
      PrivacyError: if the noise was drawn for another clip norm or another total.
    """
    total, mechanism = bounded.total, noise.mechanism
    if noise.clip_norm != bounded.shift.clip_norm:
        raise errors.PrivacyError(
            f"noise was drawn ahead for the clip norm {noise.clip_norm:g}, expected "
            f"{bounded.shift.clip_norm:g}"
        )
    if not _is_alike(noise.value, total):
        raise errors.PrivacyError(
            "noise was drawn ahead for a total of other shapes or dtypes, expected those of this one",
            "pass the shapes of `Bounded.total` to `drawn_ahead`",
        )
    _check_grid(mechanism, bounded)

    def added(part: Any, drawn: Any) -> Any:
        with jax.enable_x64(part.dtype.itemsize == 8):
            return part + drawn

    return _noised(jax.tree.map(added, total, noise.value), bounded, mechanism)


def decoded(released: Released) -> Released:
    """Converts each ``OnGrid`` to floats, integers × step; other values stay as they are.

    Guarantee: post-processing; it costs nothing. JAX arrays become float32, NumPy arrays float64.
    """
    return post_process(_decode, released)


def repeat(step: Callable[[Any, Any], Released], start: Any, inputs: Any) -> Released:
    """Runs adaptively chosen releases in one ``lax.scan``: each step may use all earlier ones.

    Guarantee: the final value costs ``Repeated(event of one step, number of steps)`` by adaptive
    composition, since a step sees data only through the ``Released`` that it returns. ``start`` must
    not depend on data except through earlier releases.

    Args:
      step: (value, input) → Released whose value has the tree, shapes and dtypes of ``start``.
      start: the first value.
      inputs: a tree of arrays with the step as leading axis, e.g. keys.
    """
    seen: list[events.Event] = []

    def body(value: Any, item: Any) -> tuple[Any, None]:
        released = step(value, item)
        seen.append(released.event)
        return released.value, None

    count = jax.tree.leaves(inputs)[0].shape[0]
    if count < 1:
        raise errors.PrivacyError(
            "repeat ran no step", "without a release there is nothing to send"
        )
    final, _ = jax.lax.scan(body, start, inputs)
    return _released(final, events.repeat(seen[0], count))


def repeat_outside(
    step: Callable[[Any, Any], Released], start: Any, inputs: Sequence[Any]
) -> Released:
    """Does what `repeat` does, in a Python loop instead of one compiled program.

    A step may then load data that do not fit in memory at once. Guarantee: that of `repeat`.

    Args:
      step, start: as in `repeat`.
      inputs: one for each step.
    """
    if not inputs:
        raise errors.PrivacyError(
            "repeat ran no step", "without a release there is nothing to send"
        )
    value: Any = start
    event: events.Event = events.NOTHING
    for count, item in enumerate(inputs):
        released = step(value, item)
        if count and released.event != event:
            raise errors.PrivacyError(
                f"step {count} of a repetition costs {released.event}, the one before it {event}",
                "all steps need one sampler, mechanism and clip norm",
            )
        value, event = released.value, released.event
    return _released(value, events.repeat(event, len(inputs)))


def post_process(fn: Callable[..., Any], released: Released, *more: Released) -> Released:
    """Applies a function that sees no data to released values; their cost does not change.

    Guarantee: by the post-processing theorem, if ``fn`` closes over nothing computed from data.
    """
    everything = (released, *more)
    event = events.compose(*(r.event for r in everything)) if more else released.event
    return _released(fn(*(r.value for r in everything)), event)


def public(value: Any) -> Released:
    """Makes a ``Released`` of a value that depends on no record, such as a prior's factor.

    Guarantee: costs nothing, if ``value`` is computed from the model, the study and what was
    released, and from nothing else. Grep for its callers: each needs that argument.
    """
    return _released(value, events.NOTHING)


def disclose(value: Any, what: str) -> Released:
    """Releases a value without any protection: its event is ``Unprotected`` (ε = ∞).

    A ledger with a budget refuses it. Only a study with ``protection = "none"`` has no budget.

    Args:
      value: arrays.
      what: names the value in the ledger, e.g. "natural parameters of the local optimum".
    """
    return _released(value, events.Unprotected(what))


def _check_grid(mechanism: Mechanism, bounded: Bounded) -> None:
    grid = mechanism.grid(bounded.shift.clip_norm)
    if grid != bounded.grid:
        raise errors.PrivacyError(
            f"the total is on the grid {bounded.grid}, expected {grid}",
            "pass the mechanism that releases a sum to what makes the sum as well",
        )


def _noised(noised: Any, bounded: Bounded, mechanism: Mechanism) -> Released:
    value = noised if bounded.grid is None else OnGrid(noised, bounded.grid.step)
    return _released(value, bounded.sampler.event(mechanism.event(bounded.shift)))


def _is_alike(one: Any, other: Any) -> bool:
    def shapes(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), tree)

    return bool(shapes(one) == shapes(other))


def _released(value: Any, event: events.Event) -> Released:
    instance = object.__new__(Released)
    object.__setattr__(instance, "value", value)
    object.__setattr__(instance, "event", event)
    return instance


def _decode(value: Any) -> Any:
    def one(node: Any) -> Any:
        if not isinstance(node, OnGrid):
            return node
        return jax.tree.map(lambda leaf: _scaled(leaf, node.step), node.integers)

    return jax.tree.map(one, value, is_leaf=lambda node: isinstance(node, OnGrid))


def _scaled(integers: Any, step: float) -> Any:
    if isinstance(integers, np.ndarray):
        return integers.astype(np.float64) * step
    return integers.astype(jnp.float32) * jnp.float32(step)
