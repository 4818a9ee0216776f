"""fedvi: federated, differentially private variational inference; the public names live here."""

import importlib
import importlib.metadata
import os
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

# XLA of jaxlib 0.10 joins a product of matrices and a sum over its result in one program, and gives rows
# of a batch the numbers of other rows (SECURITY.md, FEDVI-2026-05). Empty, this flag keeps the two apart.
_APART = "--xla_cpu_experimental_ynn_fusion_type"


def _keep_apart() -> None:
    """Sets the flag, unless XLA has read its flags; `fedvi.inference.compiler` checks what came of it."""
    try:
        version = importlib.metadata.version("jaxlib")
    except importlib.metadata.PackageNotFoundError:
        return
    flags, bridge = os.environ.get("XLA_FLAGS", ""), sys.modules.get("jax._src.xla_bridge")
    has_begun = bridge is not None and bridge.backends_are_initialized()
    if version.startswith("0.10.") and _APART not in flags and not has_begun:
        os.environ["XLA_FLAGS"] = f"{flags} {_APART}=".strip()


_keep_apart()

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
