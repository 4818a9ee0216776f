"""Differential privacy: clipping, noise, accounting and the ledger; everything a site sends passes here.

Import from the modules (``fedvi.privacy.release``, ``.events``, ``.ledger``, …). This package imports
nothing itself, so that accountants do not load JAX. ``sgd``, ``suggest``, ``advice`` and ``Descent``, which
users of ``fedvi.DPSVI`` need, are imported on first access.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedvi.privacy.advising import advice
    from fedvi.privacy.descent import Descent, sgd
    from fedvi.privacy.suggesting import suggest

__all__ = ["Descent", "advice", "sgd", "suggest"]

# Public name -> module that defines it.
_PUBLIC = {
    "Descent": "fedvi.privacy.descent",
    "advice": "fedvi.privacy.advising",
    "sgd": "fedvi.privacy.descent",
    "suggest": "fedvi.privacy.suggesting",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _PUBLIC:
            message = f"module 'fedvi.privacy' has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=sys.modules[__name__])
        return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
