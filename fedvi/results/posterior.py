"""Writes and reads the files of a posterior, from `simulate --out` or a server; needs no JAX."""

import json
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.report.tables import plain
from fedvi.typing import Eta

__all__ = ["Kept", "arrays", "read", "write", "write_json"]


# Errors from reading a file that is truncated, or not a .npz.
_DAMAGED = (
    OSError,
    EOFError,
    KeyError,
    NotImplementedError,
    TypeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


class Kept(NamedTuple):
    """A posterior read from its file.

    Attributes:
      eta: of a proper q.
      mark: printed beside every claim; empty if nothing needs saying.
      noise_scale: the sd of residuals, in the unit of the model, if the run learnt it.
    """

    eta: Eta
    mark: str
    noise_scale: float | None = None


def write(
    folder: Path,
    family: Any,
    posterior: Eta,
    names: Sequence[str],
    mark: str,
    noise_scale: float | None = None,
) -> None:
    """Writes ``posterior.npz`` and ``posterior.json``: mean, sd, η by field, names and mark in both.

    For a Gaussian, η is h and J. For a product of families, the factor's number precedes the name, such as
    ``1.power``.

    Args:
      folder: an existing one.
      family: of q.
      posterior: η of a proper q.
      names: of the coordinates of θ.
      mark: printed beside every claim; empty if nothing needs saying.
      noise_scale: the sd of residuals, if the run learnt it.
    """
    mean, sd = family.moments(posterior)
    content: dict[str, Any] = {
        "names": np.array(names),
        "mean": np.asarray(mean),
        "sd": np.asarray(sd),
        **_fields(posterior),
        "mark": np.array(mark),
        **({} if noise_scale is None else {"noise_scale": np.array(noise_scale)}),
    }
    np.savez(folder / "posterior.npz", **content)
    # In this text form a float64 keeps every bit.
    values = {name: value.tolist() for name, value in content.items()}
    write_json(folder / "posterior.json", plain(values))


def arrays(
    path: Path, names: Sequence[str], what: str = "posterior", optional: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Reads these arrays of a posterior's file; those in ``optional`` if they are there.

    Raises:
      ConfigError: the file cannot be read, or lacks one.
    """
    try:
        # Opened here, since NumPy leaves a damaged file open.
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in names if name in file or name not in optional}
    except _DAMAGED as error:
        raise errors.ConfigError(
            f"no {what} can be read at {path}: {error}", "has the run ended?"
        ) from error


def read(path: Path, family: Any, names: Sequence[str]) -> Kept:
    """Reads back what ``write`` kept, of any family.

    Args:
      path: of ``posterior.npz``.
      family: of q, as the study says.
      names: of the coordinates of θ, as the study says.

    Raises:
      ConfigError: the file cannot be read, is of another study, or its q is improper.
    """
    expected = _fields(family.zeros())
    kept = arrays(
        path,
        ("names", "mark", "noise_scale", *expected),
        f"posterior of a {type(family).__name__}",
        optional=("noise_scale",),
    )
    found = [str(name) for name in np.atleast_1d(kept["names"]).tolist()]
    if found != list(names):
        raise errors.ConfigError(
            f"{path} is of the coefficients {', '.join(found[:20])}, but the study "
            f"beside it has {', '.join(list(names)[:20])}",
            "the folder holds files of two runs",
        )
    for name in expected:
        if kept[name].dtype.kind not in "fiu":
            raise errors.ConfigError(
                f"{path} holds {name} as {kept[name].dtype}, expected numbers",
                "the file was changed: make the posterior again, or fetch it from whoever ran the study",
            )
    eta = _filled(family.zeros(), kept)
    family.check(eta, str(path))
    # Sums of numbers near the largest float are infinite, and then of no proper posterior.
    with np.errstate(over="ignore", invalid="ignore"):
        is_proper = family.is_proper(eta)
    if not is_proper:
        raise errors.ConfigError(f"{path} holds a posterior that is improper")
    return Kept(eta, str(kept["mark"]), _noise_scale(path, kept))


def _noise_scale(path: Path, kept: dict[str, np.ndarray]) -> float | None:
    given = kept.get("noise_scale")
    if given is None:
        return None
    if given.shape != () or given.dtype.kind != "f" or not 0.0 < given < np.inf:
        raise errors.ConfigError(
            f"{path} holds a noise_scale that is no number above 0",
            "the file was changed: make the posterior again, or fetch it from whoever ran the study",
        )
    return float(given)


def _filled(eta: Eta, values: dict[str, np.ndarray], prefix: str = "") -> Eta:
    """Returns η with its arrays replaced by those of ``values``, named as by ``_fields``."""
    if not isinstance(eta, tuple):
        return values[prefix.removesuffix(".")]
    names = getattr(eta, "_fields", None)
    places = names or tuple(map(str, range(len(eta))))
    parts = [
        _filled(part, values, f"{prefix}{name}.") for name, part in zip(places, eta, strict=True)
    ]
    return type(eta)(*parts) if names else tuple(parts)


def _fields(eta: Eta, prefix: str = "") -> dict[str, np.ndarray]:
    """Returns the arrays of η by the names of their fields, or their positions in a product."""
    if not isinstance(eta, tuple):
        return {prefix.removesuffix("."): np.asarray(eta)}
    names = getattr(eta, "_fields", tuple(map(str, range(len(eta)))))
    found: dict[str, np.ndarray] = {}
    for name, part in zip(names, eta, strict=True):
        found |= _fields(part, f"{prefix}{name}.")
    return found


def write_json(path: Path, value: Any) -> None:
    """Writes plain values as a JSON file."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    path.write_text(text, encoding="utf-8")
