"""What is inferred; a new built-in model is one new file, its factory listed here."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedvi.models.glm import linear, logistic
    from fedvi.models.numpyro import numpyro_model

__all__ = ["linear", "logistic", "numpyro_model"]

# Factory -> module that defines it. Imported on first use, so that listing models needs no JAX.
_FACTORIES = {
    "linear": "fedvi.models.glm",
    "logistic": "fedvi.models.glm",
    "numpyro_model": "fedvi.models.numpyro",
}


def __getattr__(name: str) -> Any:
    if name not in _FACTORIES:
        raise AttributeError(f"module 'fedvi.models' has no attribute {name!r}")
    return getattr(importlib.import_module(_FACTORIES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
