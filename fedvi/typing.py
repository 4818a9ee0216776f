"""Types that several packages share, such as η and keys."""

from typing import Any, Final

__all__ = ["IDS", "LOG_SCALE", "PRIOR", "ROWS", "SITE", "Eta", "Key", "Records", "Theta"]

Eta = Any
"""Natural (or mean) parameters of an exponential family: a pytree of float arrays."""

Theta = Any
"""A draw of θ: an array whose last axis has the model's size D."""

Records = dict[str, Any]
"""Named columns; every array's leading axis is the record, unless a docstring says "one record"."""

ROWS: Final = "[rows]"
"""The column that is there where a unit holds several rows: bool [unit, row], true where a row stands.

All other arrays are then [unit, row, …]. No argument of a model and no column can be called so.
"""

IDS: Final = "[ids]"
"""The column that says which record is which where a shard is divided into parts: uint64 [record].

A keyed hash of the record's own identifier, so that it depends on no other record and on no place.
Two records of one identifier share it. Solvers that divide read it; no model ever sees it.
"""

SITE: Final = "[site]"
"""The column that says from which site a record is, where those of several are together: integers from 0.

Read by models with effects of sites alone, in a fit that pools records.
"""

LOG_SCALE: Final = "log τ: "
"""What the name of a coordinate begins with that is the log of how far sites differ, see
``fedvi.models.site_effects``. No column of a formula begins so.
"""

PRIOR: Final = "prior"
"""The worker that owns a prior which is not in the family. It lives in the server's own process: no
client may take its name, and nobody dials in by it.
"""

Key = Any
"""A JAX pseudo-random key."""
