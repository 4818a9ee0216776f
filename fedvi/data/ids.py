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
    """Adds the column ``IDS``: for each record, the first 64 bits of BLAKE2b of its own identifier.

    The hash is keyed with a public label, so that parts have even sizes whatever the identifiers look
    like, and differ between studies. It needs no secret: a removed record changes only one part under
    every assignment that is a function of the record's own identifier, even one that everybody knows.
    Positions would not do: the records after a removed one move up, and all parts change.

    Identifiers are compared as text, without blanks around them. Records with the same identifier have the
    same hash, and so do all records without one: an unreadable line counts as an empty identifier. No
    record is refused for its identifier.

    Args:
      source: one record per row; before ``by_unit``, which keeps one hash per unit.
      identities: of each row.
      label: the study's, public; at most 64 bytes.

    Raises:
      DataError: the number of identifiers differs from the number of rows.

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
