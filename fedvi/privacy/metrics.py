"""Types of metrics, by who may see them.

A number is `Public` (it depends on no data), a `ReleasedMetric` (derived from a release, whose cost was
charged) or `Private` (it depends on data and was not released). Logs, the wire and reports accept the
first two. Only an explicit ``.reveal()`` gives a private value, for a file of the client's own.
"""

from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

from fedvi.errors import PrivacyError
from fedvi.privacy.events import Event

__all__ = ["Metric", "Private", "Public", "ReleasedMetric"]


class _Fixed:
    """Base class of immutable metrics."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise PrivacyError(
            f"a {type(self).__name__} cannot be changed: `{name}` was assigned",
            hint="make a new metric",
        )


class Public(_Fixed):
    """A number that depends on no data, but on the study, versions or counts of messages.

    >>> Public(3)
    Public(3)
    """

    __slots__ = ("value",)

    value: Any

    def __init__(self, value: Any) -> None:
        if isinstance(value, Private):
            raise PrivacyError(
                "a private metric was declared public",
                hint="release it through `privacy.release`, or leave it where it is",
            )
        object.__setattr__(self, "value", value)

    def __repr__(self) -> str:
        return f"Public({self.value!r})"


class ReleasedMetric(_Fixed):
    """A number computed from a released value, with the event of that release.

    Guarantee: costs nothing beside that event, since it is post-processing, if ``read`` closes over
    nothing computed from data.

    Args:
      released: a `fedvi.privacy.release.Released`.
      read: released value → number; the value itself by default.

    Raises:
      PrivacyError: ``released`` is anything else.
    """

    __slots__ = ("event", "value")

    value: Any
    event: Event

    def __init__(self, released: Any, read: Callable[[Any], Any] = lambda value: value) -> None:
        # Imported here, because it loads JAX; a caller that has a Released has loaded it already.
        from fedvi.privacy.release import Released

        if not isinstance(released, Released):
            raise PrivacyError(
                f"a metric was to be released from a {type(released).__name__}, expected a Released",
                hint="pass a bounded total through `privacy.release.release`; it is the only door",
            )
        object.__setattr__(self, "value", read(released.value))
        object.__setattr__(self, "event", released.event)

    def __repr__(self) -> str:
        return f"ReleasedMetric({self.value!r}, {self.event!r})"


class Private(_Fixed):
    """A number that depends on data and was not released: an ELBO, a norm, a clipped fraction.

    Every string form of it is "Private(…)", and it refuses to become a number, an array, JSON, a copy or
    a pickle. This prevents mistakes; Python cannot prevent deliberate access.

    >>> f"{Private(0.25)}"
    'Private(…)'
    >>> Private(0.25).reveal()
    0.25
    """

    __slots__ = ("__value",)

    def __init__(self, value: Any) -> None:
        object.__setattr__(self, "_Private__value", value)

    def reveal(self) -> Any:
        """Returns the value, for a file that stays with the client; grep for its callers."""
        return getattr(self, "_Private__value")  # noqa: B009 (set past `__setattr__`)

    def __repr__(self) -> str:
        return "Private(…)"

    def __str__(self) -> str:
        return repr(self)

    def __format__(self, form: str) -> str:
        # Ignores the format: an error would reveal the value's type and lose the log line.
        return repr(self)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise PrivacyError(
            "a private metric was used as a value",
            hint="it was computed from records, without noise: `.reveal()` returns the number, for "
            "whoever holds them",
        )

    __float__ = __int__ = __index__ = __complex__ = __bool__ = __round__ = _refuse
    __array__ = __iter__ = __len__ = __getitem__ = __reduce__ = __reduce_ex__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _refuse
    __rtruediv__ = __neg__ = __abs__ = _refuse
    __hash__ = object.__hash__


Metric: TypeAlias = Public | ReleasedMetric | Private
