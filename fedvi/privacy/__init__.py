"""What leaves and what it costs: the one door between data and the world.

The names live in the modules (``fedvi.privacy.release``, ``.events``, ``.ledger``, …). Nothing is
imported here, so that accountants stay free of JAX; ``sgd`` and ``advice``, which users of
``fedvi.DPSVI`` need, are looked up when they are asked for.
"""

import importlib
from typing import Any

# Public name -> module that defines it.
_PUBLIC = {"advice": "fedvi.privacy.advising", "sgd": "fedvi.privacy.descent"}

__all__ = ["advice", "sgd"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'fedvi.privacy' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
