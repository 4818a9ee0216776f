"""Fingerprints the inputs of a release, and serialises the solver's private state.

Fingerprints tell whether a release that a crash interrupted would be recomputed from the same input.
They are HMACs under a secret that never leaves the site: a plain digest of records would be an
unprotected release of them.
"""

import functools
import hmac
import io
import math
from typing import Any

import jax
import numpy as np

from fedvi import errors
from fedvi.data.stored import StoredColumn

__all__ = ["fingerprint", "pack", "unpack"]

_NUMBERS = "biufc"


def fingerprint(secret: bytes, purpose: str, *values: Any) -> bytes:
    """Returns the HMAC-SHA256 of trees of arrays, texts and numbers.

    Two inputs have equal fingerprints only if they agree in structure, names, dtypes, shapes and
    bytes (up to a collision of SHA-256). The key is derived from the secret for this use alone: its
    label begins with "f", and the labels of noise keys begin with "s" or "i" (``privacy.random.key``).

    >>> fingerprint(b"k", "task", {"a": 1}) == fingerprint(b"k", "task", {"a": 1.0})
    False
    """
    key = hmac.digest(secret, b"fedvi fingerprint " + purpose.encode(), "sha256")
    hasher = hmac.new(key, digestmod="sha256")
    leaves, structure = jax.tree.flatten(values)
    whole, paths = _written(structure)
    _feed(hasher, whole)
    for path, leaf in zip(paths, leaves, strict=True):
        _feed(hasher, path)
        if isinstance(leaf, str | bool | int | float):
            _feed(hasher, type(leaf).__name__.encode())
            _feed(hasher, repr(leaf).encode())
        elif isinstance(leaf, bytes):
            _feed(hasher, b"bytes")
            _feed(hasher, leaf)
        elif isinstance(leaf, StoredColumn):
            # Gives the same digest as an array in memory.
            _feed(hasher, f"{leaf.dtype.str} {leaf.shape}".encode())
            hasher.update((leaf.dtype.itemsize * math.prod(leaf.shape)).to_bytes(8, "big"))
            for piece in leaf.pieces():
                hasher.update(piece.reshape(-1).view(np.uint8).data)
        else:
            array = np.ascontiguousarray(_numbers(leaf))
            _feed(hasher, f"{array.dtype.str} {np.shape(leaf)}".encode())
            _feed(hasher, array.reshape(-1).view(np.uint8).data)
    return hasher.digest()


def pack(state: Any) -> bytes | None:
    """Writes the arrays of a solver's private state as npz; returns None if it has none.

    Raises:
      SolverError: a leaf is not an array of numbers.
    """
    leaves = [_numbers(leaf) for leaf in jax.tree.leaves(state)]
    if not leaves:
        return None
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **{str(n): leaf for n, leaf in enumerate(leaves)})
    return file.getvalue()


def unpack(packed: bytes, like: Any) -> Any:
    """Reads the bytes of ``pack`` into the structure of ``like``, the solver's initial state.

    Raises:
      SolverError: the number of arrays differs from that of ``like``.
    """
    with np.load(io.BytesIO(packed), allow_pickle=False) as file:
        leaves = [file[str(number)] for number in range(len(file.files))]
    expected = len(jax.tree.leaves(like))
    if expected != len(leaves):
        raise errors.SolverError(
            f"the solver's stored state has {len(leaves)} arrays, expected {expected}",
            "it was stored by another version of the solver: use that one",
        )
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


@functools.lru_cache(maxsize=64)
def _written(structure: Any) -> tuple[bytes, list[bytes]]:
    """Returns the text of a tree's structure, and of the path to each leaf."""
    places = jax.tree.unflatten(structure, range(structure.num_leaves))
    leaves, _ = jax.tree_util.tree_flatten_with_path(places)
    return str(structure).encode(), [jax.tree_util.keystr(path).encode() for path, _ in leaves]


def _numbers(leaf: Any) -> np.ndarray:
    array = np.asarray(leaf)
    if array.dtype.kind not in _NUMBERS:
        # No value is shown: it may be a record's.
        raise errors.SolverError(
            f"private state or input has dtype {array.dtype}, expected numbers",
            "keep arrays of numbers alone, and keys as their `jax.random.key_data`",
        )
    return array


def _feed(hasher: hmac.HMAC, part: bytes | memoryview) -> None:
    # The length prefix makes the encoding unambiguous.
    hasher.update(len(part).to_bytes(8, "big"))
    hasher.update(part)
