"""Presents results to people: tables, plots, and the report of a run."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedvi.report import arviz, combine, plots

__all__ = ["arviz", "combine", "plots"]

# Imported on first use, since a report without figures does not need the extra packages.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            message = f"module 'fedvi.report' has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=sys.modules[__name__])
        return importlib.import_module(f"fedvi.report.{name}")


def __dir__() -> list[str]:
    return sorted(__all__)
