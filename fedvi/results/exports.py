"""Writes a posterior to files for other tools.

Nothing here reads a record: a file is a function of the posterior and a seed.
"""

import codecs
import contextlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedvi import __version__, errors
from fedvi.expfam.base import DenseGaussian
from fedvi.models.capabilities import Parameter, RunsForwards
from fedvi.report import arviz, spreadsheets, tables
from fedvi.results import draws as draws_of
from fedvi.results.finished import FREE, Finished, origin
from fedvi.study.spec.coefficients import in_file_units

__all__ = [
    "attributes",
    "beside",
    "write_arrays",
    "write_csv",
    "write_draws",
    "write_numpyro",
    "write_rows",
    "writing",
]

_SUFFIXES = (".csv", ".nc", ".npz")
_CALL_FIRST = (
    "the model's latents are not drawn in the order of the alphabet: before numpyro.infer.Predictive, call "
    "the guide once by itself, with numpyro.handlers.seed(rng_seed=0): guide(...), or NumPyro takes the "
    "parameters in another order"
)


def write_draws(run: Finished, parameters: dict[str, Parameter], seed: int, path: Path) -> None:
    """Writes draws in the format of ``path``'s suffix: .nc for ArviZ, .npz for NumPy, .csv for others.

    A .nc has the claim among its attributes; the others get a second file, named ``path`` plus ``.json``.

    Raises:
      ConfigError: the suffix is another one, the folder does not exist, or ArviZ is not installed.
    """
    suffix, count = path.suffix.lower(), len(next(iter(parameters.values())).values)
    if suffix not in _SUFFIXES:
        raise errors.ConfigError(
            f"--to {path}: the name ends in {suffix!r}, expected {', '.join(_SUFFIXES)}",
            "`.nc` is for ArviZ, `.npz` for NumPy, `.csv` for R and everything else",
        )
    values = {name: parameter.values for name, parameter in parameters.items()}
    if suffix == ".nc":
        axes = {name: parameter.axes for name, parameter in parameters.items()}
        data = arviz.from_draws(values, axes, attributes(run))
        with writing(path) as file:
            data.to_netcdf(file.name)
        return
    if suffix == ".npz":
        write_arrays(path, values)
    else:
        columns = draws_of.flat(parameters)
        write_rows(path, list(columns), np.stack(list(columns.values()), axis=1).tolist())
    shapes = {name: list(value.shape[1:]) for name, value in values.items()}
    axes_said = {
        name: [{"axis": axis, "labels": list(labels)} for axis, labels in parameter.axes]
        for name, parameter in parameters.items()
    }
    beside(path, run, {"draws": count, "seed": seed, "shapes": shapes, "axes": axes_said})


def write_numpyro(run: Finished, path: Path) -> tuple[str, str]:
    """Writes a Gaussian q as the parameters of one of NumPyro's automatic guides.

    ``auto_loc`` [D] with ``auto_scale_tril`` [D, D] for ``AutoMultivariateNormal``, or with ``auto_scale``
    [D] for ``AutoDiagonalNormal``; both over the model's unconstrained latents in the order in which it
    draws them. For a regression that is one latent, the coefficients in the order of the table, as they are
    fitted; beside the file stands how to tell them in the units of the study's files.

    NumPyro orders latents as they are drawn if the guide is first called by itself, or by ``SVI.init``,
    but alphabetically if it is first called by ``Predictive``, which maps. If the two orders differ, the
    guide must be called once before ``Predictive``; the returned text says so.

    Returns:
      The name of the guide; and what to do before ``Predictive``, or "".

    Raises:
      ConfigError: q is not a full or diagonal Gaussian, or the folder does not exist.
    """
    family = run.assembly.family
    if not isinstance(family, DenseGaussian):
        raise errors.ConfigError(
            f"--numpyro: the family is {type(family).__name__}, expected a full or diagonal Gaussian",
            "NumPyro's automatic guides are Gaussians; write draws with --to FILE.npz",
        )
    mean, root = map(np.asarray, family.location_root(run.posterior))
    full = family.correlated
    guide = "AutoMultivariateNormal" if full else "AutoDiagonalNormal"
    # NumPyro takes lower triangles with a positive diagonal; a root need not be one.
    scale = np.linalg.cholesky(root @ root.T) if full else root
    content = {"auto_loc": mean, "auto_scale_tril" if full else "auto_scale": scale}
    write_arrays(path, content)
    model = run.assembly.model
    is_own = isinstance(model, RunsForwards)
    latents = list(dict.fromkeys(name.split("[")[0] for name in model.names)) if is_own else []
    first = "" if latents == sorted(latents) else _CALL_FIRST
    known = in_file_units(run.assembly.study, model.names)
    said = {
        "guide": f"numpyro.infer.autoguide.{guide}",
        "prefix": "auto",
        "names": list(model.names),
        "model": run.assembly.study.model.kind,
        "latents": latents or ["coefficients"],
        "first": first,
        "told": "shift + factor * latent, in the units of the study's files",
        "shift": known.shift.tolist(),
        "factor": known.factor.tolist(),
    }
    beside(path, run, said)
    return guide, first


def attributes(run: Finished) -> dict[str, str | float]:
    """Returns the claim and its origin as numbers and texts, which every format can hold."""
    privacy = run.assembly.study.privacy
    promised = [claim for claim in run.claims if claim["relation"] == privacy.relation]
    claim: Mapping[str, Any] = promised[0] if promised else {}
    return {
        "fedvi_version": __version__,
        "study": run.name,
        "study_digest": run.digest,
        "privacy_epsilon": float(claim.get("epsilon", float("inf"))),
        "privacy_delta": float(claim.get("delta", 0.0)),
        "privacy_relation": str(claim.get("relation", "")),
        "privacy_unit": str(claim.get("unit", "")),
        "privacy_view": str(claim.get("view", "")),
        "privacy_accountant": str(claim.get("accountant", "")),
        "privacy_mark": run.mark,
        "privacy_claims": json.dumps([dict(each) for each in run.claims], ensure_ascii=False),
        "privacy_statement": run.claimed,
        "privacy_basis": run.basis,
    }


def beside(path: Path, run: Finished, content: Mapping[str, Any], cost: str = FREE) -> None:
    """Writes ``path`` plus ``.json``: the file's origin, its cost, and ``content``."""
    told = tables.plain({**origin(run), "cost": cost, **content})
    with writing(path.with_name(path.name + ".json")) as file:
        text = json.dumps(told, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        file.write(text.encode())


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays by name, as ``numpy.savez`` does."""
    content: dict[str, Any] = dict(arrays)
    with writing(path) as file:
        np.savez(file, **content)


def write_rows(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a CSV in UTF-8 with a header line; floats keep every bit."""
    with writing(path) as file:
        write_csv(file, [names])
        write_csv(file, rows)


def write_csv(file: IO[bytes], rows: Iterable[Sequence[Any]]) -> None:
    """Adds lines of CSV to a file that is open for bytes; None is an empty cell."""
    spreadsheets.write(codecs.getwriter("utf-8")(file), rows)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Any]:
    """Opens a binary file that replaces ``path`` only on success.

    Raises:
      ConfigError: the folder does not exist, or cannot be written.
    """
    try:
        made = tempfile.NamedTemporaryFile(  # noqa: SIM115
            dir=path.parent, prefix=f".{path.name}-", suffix=path.suffix, delete=False
        )
    except OSError as error:
        raise errors.ConfigError(
            f"{path} cannot be written: {error.strerror}", "does the folder exist?"
        ) from error
    try:
        with made:
            yield made
        # mkstemp makes files that only their owner can read; results get ordinary permissions.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(made.name, 0o666 & ~mask)
        os.replace(made.name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(made.name)
        raise
