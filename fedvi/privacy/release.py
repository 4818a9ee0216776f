"""The one door: how contributions become something public, and the only maker of ``Released``.

    contributions ─► clipped_sum ─► Bounded ─► release ─► Released ─► post_process ─► Released

A ``Bounded`` remembers how far one privacy unit can move it and which sampler picked its records; a
``Released`` remembers the event that it cost. Only a ``Released`` can be encoded for the wire.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.flatten_util
import jax.numpy as jnp

from fedvi import errors
from fedvi.privacy import events
from fedvi.typing import Key

__all__ = [
    "Batch",
    "Bounded",
    "Mechanism",
    "Released",
    "Sampler",
    "Shift",
    "clipped_sum",
    "disclose",
    "post_process",
    "public",
    "release",
    "repeat",
]


class Shift(NamedTuple):
    """The largest L2 move of a total when one privacy unit changes, by relation.

    ``clip_norm`` is the unit of noise: a mechanism's noise has std noise_multiplier · clip_norm.
    """

    clip_norm: float
    add_remove: float
    substitute: float


@runtime_checkable
class Sampler(Protocol):
    """Picks the records of one step, and prices what a step on them costs."""

    @property
    def rate(self) -> float:
        """The probability that a record is in a batch; public."""

    @property
    def capacity(self) -> int:
        """The static number of rows of a batch; public."""

    def draw(self, key: Key, valid: Any) -> "Batch":
        """Draws a batch from the rows for which ``valid`` (bool, [capacity]) is true."""

    def event(self, inner: events.Event) -> events.Event:
        """Returns the event of running ``inner`` on one batch."""


@runtime_checkable
class Mechanism(Protocol):
    """Adds noise to a bounded total."""

    @property
    def noise_multiplier(self) -> float:
        """Noise std ÷ clip norm; public."""

    @property
    def mark(self) -> str:
        """Empty if the noise is what the accountant assumes; otherwise printed beside every claim."""

    def perturb(self, key: Key, total: Any, clip_norm: float) -> Any:
        """Returns the noised total."""

    def event(self, shift: Shift) -> events.Event:
        """Returns the event of one release of a total with this shift."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """Rows picked by a sampler: ``indices`` int [B], ``mask`` bool [B]; masked rows do not count."""

    indices: Any
    mask: Any
    sampler: Sampler = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Bounded:
    """A total whose dependence on any one unit is bounded, not yet noised: never leaves.

    Attributes:
      total: arrays without the record axis.
      shift: the largest move of ``total``, in L2 over all its leaves together.
      sampler: what picked the records that were summed.
    """

    total: Any = dataclasses.field(repr=False)
    shift: Shift = dataclasses.field(metadata={"static": True})
    sampler: Sampler = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_pytree_node_class
class Released:
    """A value that may leave, with the event that it cost.

    Made by ``release``, ``repeat``, ``post_process``, ``public`` and ``disclose`` alone. Python cannot
    keep out code that means to forge one; this keeps out mistakes, and a study with custom code
    is marked.
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


def clipped_sum(contributions: Any, clip_norm: float, batch: Batch) -> Bounded:
    """Clips every record's contribution to an L2 ball and adds: Σₙ gₙ · min(1, C / ‖gₙ‖).

    Guarantee: for any two data sets differing in one record, and the same draws of the sampler for
    all other records, ‖total − total′‖₂ ≤ C when the record is added or removed and ≤ 2C when it is
    substituted, in exact arithmetic, for every value of ``contributions`` including NaN and
    infinities (a record with any of them counts as zero). Proof: each summand lies in the ball of
    radius C, and the other summands are the same. Rounding of the float sum is not covered; that is
    one reason why float noise is marked "simulation: no guarantee".

    Args:
      contributions: a tree of float arrays, each [B, …]; the norm is over all leaves of a record.
      clip_norm: C > 0; ``inf`` switches clipping off, for comparisons without noise.
      batch: the rows that the contributions were computed from.

    Returns:
      The sum over unmasked records, the leaves' shapes without the record axis.

    Raises:
      PrivacyError: if ``clip_norm`` is not positive.
    """
    if not clip_norm > 0.0:
        raise errors.PrivacyError(f"clip_norm is {clip_norm}, expected a positive number")

    def clip_one(contribution: Any, keep: Any) -> Any:
        flat, unravel = jax.flatten_util.ravel_pytree(contribution)
        usable = keep & jnp.isfinite(flat).all()
        flat = jnp.where(usable, flat, jnp.zeros_like(flat))
        # Scaled by the largest entry first: the squares of 1e30 overflow in float32.
        largest = jnp.abs(flat).max()
        unit = flat / jnp.where(largest > 0.0, largest, jnp.ones_like(largest))
        norm = jnp.sqrt((unit * unit).sum())
        limit = jnp.asarray(clip_norm, flat.dtype) / jnp.maximum(norm, jnp.ones_like(norm))
        return unravel(unit * jnp.minimum(largest, limit))

    clipped = jax.vmap(clip_one)(contributions, batch.mask)
    total = jax.tree.map(lambda leaf: leaf.sum(axis=0), clipped)
    return Bounded(total, Shift(clip_norm, clip_norm, 2.0 * clip_norm), batch.sampler)


def release(key: Key, bounded: Bounded, mechanism: Mechanism) -> Released:
    """Noises a bounded total: the only way from data to something public.

    Guarantee: the result costs ``sampler.event(mechanism.event(shift))`` if ``key`` is fresh, secret
    and used for nothing else, and if the mechanism's noise is what it says (see its ``mark``).

    Args:
      key: from ``privacy.random`` with the purpose "noise".
      bounded: made by ``clipped_sum`` or another function that proves its shift.
      mechanism: one of ``fedvi.privacy.mechanisms``.
    """
    noised = mechanism.perturb(key, bounded.total, bounded.shift.clip_norm)
    return _released(noised, bounded.sampler.event(mechanism.event(bounded.shift)))


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


def post_process(fn: Callable[..., Any], released: Released, *more: Released) -> Released:
    """Applies a function that sees no data to released values; what they cost stays what it was.

    Guarantee: by the post-processing theorem, if ``fn`` closes over nothing computed from data.
    """
    everything = (released, *more)
    event = events.compose(*(r.event for r in everything)) if more else released.event
    return _released(fn(*(r.value for r in everything)), event)


def public(value: Any) -> Released:
    """Passes on a value behind which there are no records at all, such as a prior's factor.

    Guarantee: costs nothing, if ``value`` is computed from the model, the study and what was
    released, and from nothing else. Grep for its callers: each needs that argument.
    """
    return _released(value, events.NOTHING)


def disclose(value: Any, what: str) -> Released:
    """Releases a value as it is, without any protection: its event is ``Unprotected`` (ε = ∞).

    A ledger with a budget refuses it; only a study that says ``protection = "none"`` has none.

    Args:
      value: arrays.
      what: names the value in the ledger, e.g. "natural parameters of the local optimum".
    """
    return _released(value, events.Unprotected(what))


def _released(value: Any, event: events.Event) -> Released:
    instance = object.__new__(Released)
    object.__setattr__(instance, "value", value)
    object.__setattr__(instance, "event", event)
    return instance
