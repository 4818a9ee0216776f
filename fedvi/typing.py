"""Defines types and reserved names that several packages share, such as η and keys."""

from typing import Any, Final

__all__ = [
    "IDS",
    "INTERCEPT",
    "LOG_SCALE",
    "PRIOR",
    "ROWS",
    "SITE",
    "Eta",
    "Key",
    "Records",
    "Theta",
]

Eta = Any
"""Natural (or mean) parameters of an exponential family: a pytree of float arrays."""

Theta = Any
"""A draw of θ: an array whose last axis has the model's size D."""

Records = dict[str, Any]
"""Named columns; every array's leading axis is the record, unless a docstring says "one record"."""

ROWS: Final = "[rows]"
"""The column present where a unit holds several rows: bool [unit, row], true for a real row.

All other arrays are then [unit, row, …]. No model argument or column may have this name.
"""

IDS: Final = "[ids]"
"""The column that identifies records where a shard is divided into parts: uint64 [record].

A keyed hash of the record's own identifier, so that it depends on no other record and on no position.
Records with the same identifier share it. Solvers that divide shards read it; no model ever sees it.
"""

SITE: Final = "[site]"
"""The column with each record's site, where records of several sites are pooled: integers from 0.

Only models with effects of sites read it, in a pooled fit.
"""

LOG_SCALE: Final = "log τ: "
"""Prefix of a coordinate that is the log of how much sites differ, see ``fedvi.models.site_effects``.

No column of a formula has this prefix.
"""

INTERCEPT: Final = "(Intercept)"
"""The coefficient of a column of ones, as in R."""

PRIOR: Final = "prior"
"""The worker of a prior that is not in the family. It lives in the server's own process: no client may
have its name, and no connection may use it.
"""

Key = Any
"""A JAX pseudo-random key."""
