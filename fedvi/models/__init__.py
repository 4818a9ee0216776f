"""What is inferred; a new built-in model is one new file, its factory listed here."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedvi.models.counts import negative_binomial, poisson
    from fedvi.models.glm import linear, logistic
    from fedvi.models.hazards import survival
    from fedvi.models.multivariate import multivariate_linear
    from fedvi.models.numpyro import numpyro_model
    from fedvi.models.softmax import multinomial

__all__ = [
    "linear",
    "logistic",
    "multinomial",
    "multivariate_linear",
    "negative_binomial",
    "numpyro_model",
    "poisson",
    "survival",
]

# Factory -> module that defines it. Imported on first use, so that listing models needs no JAX.
_FACTORIES = {
    "linear": "fedvi.models.glm",
    "logistic": "fedvi.models.glm",
    "multinomial": "fedvi.models.softmax",
    "multivariate_linear": "fedvi.models.multivariate",
    "negative_binomial": "fedvi.models.counts",
    "numpyro_model": "fedvi.models.numpyro",
    "poisson": "fedvi.models.counts",
    "survival": "fedvi.models.hazards",
}


def __getattr__(name: str) -> Any:
    if name not in _FACTORIES:
        raise AttributeError(f"module 'fedvi.models' has no attribute {name!r}")
    return getattr(importlib.import_module(_FACTORIES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
