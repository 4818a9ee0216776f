"""Types each number about a run by who may see it.

A number is `Public` (it depends on no data), a `ReleasedMetric` (it was paid for) or `Private` (it
depends on data and was not). Logs, the wire and reports take the first two. A private one can be
written to a file of the client's own, by naming it: ``.reveal()``.
"""

from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

from fedvi.errors import PrivacyError
from fedvi.privacy.events import Event

__all__ = ["Metric", "Private", "Public", "ReleasedMetric"]


class _Fixed:
    """A value that is set once and not again."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise PrivacyError(
            f"a {type(self).__name__} cannot be changed: `{name}` was assigned",
            hint="make a new metric",
        )


class Public(_Fixed):
    """A number that depends on no data: on the study, on versions and counts of messages.

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
    """A number read off something that was released, and the event that it cost.

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
        # Here, since whoever holds a Released has loaded JAX, and nobody else should have to.
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
    """A number that depends on data and was not paid for: an ELBO, a norm, a clipped fraction.

    It shows itself to nobody: its texts are all "Private(…)", and it refuses to become a number, an
    array, JSON, a copy or a pickle. Python cannot keep out code that means to look; this keeps out
    mistakes.

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
        # Whatever the form: an error would name the value's type and end a log line.
        return repr(self)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise PrivacyError(
            "a private metric was used as a value",
            hint="it stays where it was computed; call `.reveal()` for a file of the client's own",
        )

    __float__ = __int__ = __index__ = __complex__ = __bool__ = __round__ = _refuse
    __array__ = __iter__ = __len__ = __getitem__ = __reduce__ = __reduce_ex__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _refuse
    __rtruediv__ = __neg__ = __abs__ = _refuse
    __hash__ = object.__hash__


Metric: TypeAlias = Public | ReleasedMetric | Private
