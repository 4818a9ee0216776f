"""Immutable mappings that share unchanged entries, so that a request copies few of them.

States are immutable, so that a refused request leaves the previous state intact. Copying a dictionary of
all clients for each request would make a round quadratic in the number of clients.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, ItemsView, Iterator, Mapping, ValuesView
from typing import Any

from fedvi.expfam.stacked import is_alike

__all__ = [
    "Appended",
    "ByClient",
    "Same",
    "appended",
    "differences",
    "in_order",
    "members",
    "put",
    "put_all",
    "raised",
    "since",
    "without",
]

_BITS = 6
_WIDTH = 1 << _BITS
_ABSENT: Any = object()


class ByClient(Mapping[str, Any]):
    """A mapping over a fixed, ordered set of names, some possibly absent; a change copies 64 entries.

    >>> before = ByClient.of({"north": 1, "south": 2})
    >>> put(before, "south", 3), before
    (ByClient({'north': 1, 'south': 3}), ByClient({'north': 1, 'south': 2}))
    """

    __slots__ = ("_chunks", "_count", "_places")

    def __init__(
        self, places: Mapping[str, int], chunks: tuple[tuple[Any, ...], ...], count: int
    ) -> None:
        self._places, self._chunks, self._count = places, chunks, count

    @classmethod
    def of(cls, found: Mapping[str, Any], names: tuple[str, ...] = ()) -> ByClient:
        """Converts a mapping.

        Args:
          names: all names that may ever be keys, in order; further keys of ``found`` follow.
        """
        places = {name: place for place, name in enumerate(dict.fromkeys((*names, *found)))}
        flat = [found.get(name, _ABSENT) for name in places]
        chunks = tuple(tuple(flat[at : at + _WIDTH]) for at in range(0, len(flat), _WIDTH))
        return cls(places, chunks, len(found))

    def __getitem__(self, name: str) -> Any:
        place = self._places[name]
        value = self._chunks[place >> _BITS][place & (_WIDTH - 1)]
        if value is _ABSENT:
            raise KeyError(name)
        return value

    def __contains__(self, name: object) -> bool:
        place = self._places.get(name)  # type: ignore[call-overload]
        if place is None:
            return False
        return self._chunks[place >> _BITS][place & (_WIDTH - 1)] is not _ABSENT

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the entry of a name, or the default."""
        place = self._places.get(name)
        if place is None:
            return default
        value = self._chunks[place >> _BITS][place & (_WIDTH - 1)]
        return default if value is _ABSENT else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._places) if self._is_full else (name for name, _ in self._pairs())

    def __len__(self) -> int:
        return self._count

    def items(self) -> ItemsView[str, Any]:
        """Returns the pairs, in order."""
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        """Returns the entries, in order."""
        return _Values(self)

    def __repr__(self) -> str:
        return f"ByClient({dict(self._pairs())})"

    @property
    def _is_full(self) -> bool:
        return self._count == len(self._places)

    def _pairs(self) -> Iterator[tuple[str, Any]]:
        pairs = zip(self._places, itertools.chain.from_iterable(self._chunks), strict=True)
        # Of ten thousand clients, all of whom are there, a loop in Python takes a hundred times as long.
        return pairs if self._is_full else (pair for pair in pairs if pair[1] is not _ABSENT)

    def _entries(self) -> Iterator[Any]:
        entries = itertools.chain.from_iterable(self._chunks)
        return entries if self._is_full else (one for one in entries if one is not _ABSENT)

    def _with(self, found: Mapping[str, Any]) -> ByClient:
        """Returns the mapping with some entries replaced; ``_ABSENT`` removes one."""
        touched: dict[int, list[Any]] = {}
        count = self._count
        for name, value in found.items():
            place = self._places[name]
            if (chunk := touched.get(place >> _BITS)) is None:
                chunk = touched[place >> _BITS] = list(self._chunks[place >> _BITS])
            count += (value is not _ABSENT) - (chunk[place & (_WIDTH - 1)] is not _ABSENT)
            chunk[place & (_WIDTH - 1)] = value
        chunks = list(self._chunks)
        for at, chunk in touched.items():
            chunks[at] = tuple(chunk)
        return ByClient(self._places, tuple(chunks), count)

    def _changed(self, other: ByClient) -> Iterator[tuple[str, Any, Any]]:
        names = iter(self._places)
        for mine, others in zip(self._chunks, other._chunks, strict=True):
            here = list(itertools.islice(names, len(mine))) if mine is not others else ()
            if mine is others:
                next(itertools.islice(names, len(mine) - 1, None), None)
            for name, before, after in zip(here, mine, others, strict=False):
                if before is not after:
                    yield name, before, after


class _Items(ItemsView[str, Any]):
    _mapping: Any

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self._mapping._pairs())


class _Values(ValuesView[Any]):
    _mapping: Any

    def __iter__(self) -> Iterator[Any]:
        return iter(self._mapping._entries())


class Appended(Mapping[str, str]):
    """An append-only mapping, in order of insertion.

    A mapping and its extension share one list, of which each sees its own prefix. Extending the same
    mapping a second time copies the list.
    """

    __slots__ = ("_count", "_found", "_pairs")

    def __init__(self, found: Mapping[str, str]) -> None:
        self._pairs = list(found.items())
        self._found = {name: place for place, name in enumerate(found)}
        self._count = len(self._pairs)

    def plus(self, found: Mapping[str, str]) -> Appended:
        """Returns the mapping with entries added, under names that it does not hold."""
        base = self if len(self._pairs) == self._count else Appended(dict(self.since(0)))
        base._found.update(zip(found, range(self._count, self._count + len(found)), strict=True))
        base._pairs.extend(found.items())
        longer = Appended({})
        longer._pairs, longer._found = base._pairs, base._found
        longer._count = self._count + len(found)
        return longer

    def since(self, count: int) -> list[tuple[str, str]]:
        """Lists the entries after the first ``count``."""
        return self._pairs[count : self._count]

    def __getitem__(self, name: str) -> str:
        if name not in self:
            raise KeyError(name)
        return self._pairs[self._found[name]][1]

    def __contains__(self, name: object) -> bool:
        place = self._found.get(name)  # type: ignore[call-overload]
        return place is not None and place < self._count

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.since(0))

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"Appended({dict(self.since(0))})"


def members(names: tuple[str, ...]) -> frozenset[str]:
    """Returns the names as a set, cached for each tuple object."""
    return _members(Same(names))


class Same:
    """Wraps a value as a cache key compared by identity: what a run has one of, or a tuple of all names."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value


@functools.lru_cache(maxsize=16)
def _members(same: Same) -> frozenset[str]:
    return frozenset(same.value)


def put(mapping: Mapping[str, Any], name: str, value: Any) -> Mapping[str, Any]:
    """Returns a mapping with one entry added or replaced."""
    return put_all(mapping, {name: value})


def put_all(mapping: Mapping[str, Any], found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a mapping with entries added or replaced."""
    if isinstance(mapping, ByClient) and mapping._places.keys() >= found.keys():
        return mapping._with(found)
    return {**mapping, **found}


def raised(counts: Mapping[str, int], names: Collection[str]) -> Mapping[str, int]:
    """Returns counts with one more for each of some distinct names."""
    if is_alike(counts) and len(names) == len(counts):
        return counts.with_value(counts.value + 1)
    return put_all(counts, {name: counts[name] + 1 for name in names})


def appended(mapping: Mapping[str, str], found: Mapping[str, str]) -> Appended:
    """Returns an append-only mapping with entries added, under names that it does not hold."""
    grown = mapping if isinstance(mapping, Appended) else Appended(mapping)
    return grown.plus(found)


def in_order(mapping: Mapping[str, Any], names: tuple[str, ...]) -> tuple[Any, ...]:
    """Returns the entries of some names, in the order of the names."""
    if is_alike(mapping) and mapping.names is names:
        return (mapping.value,) * len(names)
    found = tuple(mapping.values()) if len(mapping) == len(names) else ()
    # The usual case: all clients, in the order of the study.
    if found and tuple(mapping) == names:
        return found
    return tuple(map(mapping.__getitem__, names))


def without(mapping: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Returns a mapping without one name."""
    if isinstance(mapping, ByClient):
        return mapping._with({name: _ABSENT}) if name in mapping else mapping
    return {other: value for other, value in mapping.items() if other != name}


def since(mapping: Mapping[str, str], count: int) -> list[tuple[str, str]]:
    """Lists the entries of an append-only mapping after the first ``count``."""
    if isinstance(mapping, Appended):
        return mapping.since(count)
    return list(itertools.islice(mapping.items(), count, None))


def differences(
    before: Mapping[str, Any], after: Mapping[str, Any], absent: Any = None
) -> Iterator[tuple[str, Any, Any]]:
    """Yields (name, old, new) for each entry that is no longer the same object.

    Args:
      before, after: two mappings; if one was derived from the other, shared parts are skipped.
      absent: stands for a missing entry.
    """
    both = isinstance(before, ByClient) and isinstance(after, ByClient)
    if both and before._places is after._places:  # type: ignore[attr-defined]
        for name, was, now in before._changed(after):  # type: ignore[attr-defined]
            yield name, absent if was is _ABSENT else was, absent if now is _ABSENT else now
        return
    for name in before:
        if name not in after:
            yield name, before[name], absent
    for name, value in after.items():
        was = before.get(name, absent)
        if was is not value or (was is absent and name not in before):
            yield name, was, value
