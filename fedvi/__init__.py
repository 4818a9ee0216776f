"""fedvi: federated, differentially private variational inference; the public names live here."""

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name -> module that defines it. Imported on first use, so that `fedvi --help` needs no JAX.
_PUBLIC = {
    "DPSVI": "fedvi.inference.svi",
    "FedviError": "fedvi.errors",
    "LedgerFolder": "fedvi.store.alone",
    "VIPS": "fedvi.inference.vips",
    "Study": "fedvi.experiment.config",
    "compilation_cache": "fedvi.experiment.compiled",
    "load_study": "fedvi.experiment.config",
    "plan": "fedvi.experiment.plans.plan",
    "simulate": "fedvi.experiment.simulate",
}

__all__ = [
    "DPSVI",
    "VIPS",
    "FedviError",
    "LedgerFolder",
    "Study",
    "__version__",
    "compilation_cache",
    "load_study",
    "plan",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name == "privacy":  # so that `import fedvi` is enough for fedvi.privacy.sgd
        return importlib.import_module("fedvi.privacy")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'fedvi' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
