"""Gives each record an identifier, so that parts of a shard do not depend on its order."""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedvi.data.source import ArraySource
from fedvi.errors import DataError
from fedvi.typing import IDS

__all__ = ["with_ids"]


def with_ids(source: ArraySource, identities: Sequence[str | None], label: str) -> ArraySource:
    """Adds the column ``IDS``: of each record, the first 64 bits of BLAKE2b of its own identifier.

    The hash is keyed with a public label, so that parts are even in size whatever identifiers look
    like, and others in another study. It needs no secret: that a removed record changes one part
    alone holds for every assignment that is a function of the record's own identifier, also for one
    that everybody knows. Positions would not do: whoever comes after a removed record moves up, and
    all parts change.

    Identifiers are compared as text, without blanks around them. Records that share one share their
    hash, and so do all that have none: an unreadable line counts as an empty identifier. No record
    is refused for its identifier.

    Args:
      source: one record a row; before ``by_unit``, which keeps one hash a unit.
      identities: of each row.
      label: public, of the study; at most 64 bytes.

    Raises:
      DataError: there is not one identifier for each row.

    >>> source = ArraySource({"y": np.array([1.0, 2.0])}, np.array([True, True]))
    >>> one, other = with_ids(source, ["a", "b"], "study").records[IDS]
    >>> [one, other] == list(with_ids(source, [" a", "b "], "study").records[IDS])
    True
    """
    if len(identities) != source.size:
        raise DataError(
            "identities: not as many as there are rows",
            "every row needs one, though it may be None",
        )
    hashed = {cell: _hashed(cell, label) for cell in dict.fromkeys(identities)}
    ids: NDArray[np.uint64] = np.array([hashed[cell] for cell in identities], np.uint64)
    return ArraySource({**source.records, IDS: ids}, source.valid)


def _hashed(identity: str | None, label: str) -> int:
    text = (identity or "").strip().encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=8, key=label.encode()).digest()
    return int.from_bytes(digest, "little")
