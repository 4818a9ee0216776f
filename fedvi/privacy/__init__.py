"""What leaves and what it costs: the one door between data and the world.

The names live in the modules (``fedvi.privacy.release``, ``.events``, ``.ledger``, …). Nothing is
imported here, so that accountants stay free of JAX; ``sgd``, which users of ``fedvi.DPSVI`` need, is
looked up when it is asked for.
"""

import importlib
from typing import Any

__all__ = ["sgd"]


def __getattr__(name: str) -> Any:
    if name != "sgd":
        raise AttributeError(f"module 'fedvi.privacy' has no attribute {name!r}")
    return importlib.import_module("fedvi.privacy.descent").sgd
