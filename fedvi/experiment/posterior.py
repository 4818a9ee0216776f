"""The files of a posterior: what `simulate --out` and a server leave behind; needs no JAX."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedvi.typing import Eta

__all__ = ["plain", "write", "write_json"]


def write(folder: Path, family: Any, posterior: Eta, names: Sequence[str], mark: str) -> None:
    """Writes ``posterior.npz`` and ``posterior.json``: mean, sd, h, J, names and mark in both.

    Args:
      folder: exists.
      family: of q.
      posterior: η of a proper q.
      names: of the coordinates of θ.
      mark: printed beside every claim; empty if nothing needs saying.
    """
    mean, sd = family.moments(posterior)
    content: dict[str, Any] = {
        "names": np.array(names),
        "mean": np.asarray(mean),
        "sd": np.asarray(sd),
        "h": np.asarray(posterior.h),
        "J": np.asarray(posterior.J),
        "mark": np.array(mark),
    }
    np.savez(folder / "posterior.npz", **content)
    # As text a float64 comes back to the last bit.
    values = {name: value.tolist() for name, value in content.items()}
    write_json(folder / "posterior.json", plain(values))


def write_json(path: Path, value: Any) -> None:
    """Writes plain values as a file of JSON."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    path.write_text(text, encoding="utf-8")


def plain(value: Any) -> Any:
    """Replaces numbers that JSON cannot hold by texts: "inf", "nan"."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
