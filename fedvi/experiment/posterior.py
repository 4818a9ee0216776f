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
    """Writes ``posterior.npz`` and ``posterior.json``: mean, sd, η by field, names and mark in both.

    Of a Gaussian, η is h and J. A product of families has the number of the factor in front, such as
    ``1.power``.

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
        **_fields(posterior),
        "mark": np.array(mark),
    }
    np.savez(folder / "posterior.npz", **content)
    # As text a float64 comes back to the last bit.
    values = {name: value.tolist() for name, value in content.items()}
    write_json(folder / "posterior.json", plain(values))


def _fields(eta: Eta, prefix: str = "") -> dict[str, np.ndarray]:
    """Lists the arrays of η by the names of their fields, or their places in a product."""
    if not isinstance(eta, tuple):
        return {prefix.removesuffix("."): np.asarray(eta)}
    names = getattr(eta, "_fields", tuple(map(str, range(len(eta)))))
    found: dict[str, np.ndarray] = {}
    for name, part in zip(names, eta, strict=True):
        found |= _fields(part, f"{prefix}{name}.")
    return found


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
