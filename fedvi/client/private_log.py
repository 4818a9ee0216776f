"""Writes a solver's private diagnostics to a file of the client's own; off by default."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedvi import errors
from fedvi.privacy.metrics import Metric, Private

__all__ = ["private_log"]


def private_log(path: Path) -> Callable[[str, Mapping[str, Metric]], None]:
    """Returns a function for ``Worker`` that appends a release's name and metrics as a JSON line.

    Only the file's owner may read it. Its numbers depend on records and are charged to no budget, so it
    must not leave the client.

    Args:
      path: created if it does not exist; its folder must exist.

    Raises:
      ConfigError: the file cannot be written.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    try:
        os.close(os.open(path, flags, 0o600))
    except OSError as error:
        raise errors.ConfigError(
            f"private metrics cannot be kept in {path}: {error.strerror}",
            "name a file in a folder of the client's own",
        ) from None

    def append(release: str, metrics: Mapping[str, Metric]) -> None:
        plain = {name: _shown(metric) for name, metric in metrics.items()}
        line = json.dumps({"release": release, "private": plain}) + "\n"
        with os.fdopen(os.open(path, flags, 0o600), "a", encoding="utf-8") as file:
            file.write(line)

    return append


def _shown(metric: Metric) -> Any:
    value = metric.reveal() if isinstance(metric, Private) else metric.value
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
