"""fedvi: federated, differentially private variational inference; the public names live here."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedvi import expfam, models, privacy, report
    from fedvi.errors import FedviError
    from fedvi.inference.svi import DPSVI
    from fedvi.inference.vips import VIPS
    from fedvi.planning.plan import plan
    from fedvi.results.simulation import simulate
    from fedvi.run.compiled import compilation_cache
    from fedvi.store.alone import LedgerFolder
    from fedvi.study.config import Study, load_study

__version__ = "0.1.0"

__all__ = [
    "DPSVI",
    "VIPS",
    "FedviError",
    "LedgerFolder",
    "Study",
    "__version__",
    "compilation_cache",
    "expfam",
    "load_study",
    "models",
    "plan",
    "privacy",
    "report",
    "simulate",
]

# Public name -> module that defines it. Imported on first use, so that `fedvi --help` needs no JAX.
_PUBLIC = {
    "DPSVI": "fedvi.inference.svi",
    "FedviError": "fedvi.errors",
    "LedgerFolder": "fedvi.store.alone",
    "VIPS": "fedvi.inference.vips",
    "Study": "fedvi.study.config",
    "compilation_cache": "fedvi.run.compiled",
    "load_study": "fedvi.study.config",
    "plan": "fedvi.planning.plan",
    "simulate": "fedvi.results.simulation",
}
_PACKAGES = ("expfam", "models", "privacy", "report")

# Hidden from type checkers, which read the imports above and would accept any name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _PACKAGES:
            return importlib.import_module(f"fedvi.{name}")
        if name not in _PUBLIC:
            message = f"module 'fedvi' has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=sys.modules[__name__])
        return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
