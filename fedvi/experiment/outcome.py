"""What is kept of a run: plain values for tables and JSON, and the files of `--out`."""

import json
import math
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fedvi import __version__, errors
from fedvi.experiment.simulate import Result, Site
from fedvi.privacy import ledger, statement

__all__ = ["as_dict", "check_target", "coefficients", "has_odds", "privacy_rows", "write"]

# The 97.5 % point of the standard normal: intervals are central 95 % of a Gaussian marginal.
_Z95 = 1.959963984540054


def coefficients(result: Result) -> list[dict[str, Any]]:
    """Lists the posterior by coordinate of θ: mean, sd, 95 % interval, odds ratio, pooled fit.

    The coordinates of a NumPyro model are those of its unconstrained θ.
    """
    assembly = result.assembly
    mean, sd = assembly.family.moments(result.posterior)
    names, design = assembly.model.names, assembly.design
    # The coordinates of a NumPyro model are not the columns of its formula.
    units = design.units if design is not None and design.names == names else ("",) * len(names)
    rows = []
    for index, name in enumerate(names):
        low, high = mean[index] - _Z95 * sd[index], mean[index] + _Z95 * sd[index]
        row = {
            "name": name,
            "unit": units[index],
            "mean": float(mean[index]),
            "sd": float(sd[index]),
            "lower": float(low),
            "upper": float(high),
        }
        if has_odds(result):
            row |= {
                "odds_ratio": _exp(mean[index]),
                "odds_lower": _exp(low),
                "odds_upper": _exp(high),
            }
        if result.pooled is not None:
            pooled_mean, pooled_sd = assembly.family.moments(result.pooled)
            row |= {"pooled_mean": float(pooled_mean[index]), "pooled_sd": float(pooled_sd[index])}
        rows.append(row)
    return rows


def has_odds(result: Result) -> bool:
    """Says whether exp(coefficient) is an odds ratio."""
    return result.assembly.study.model.kind == "logistic"


def _exp(value: float) -> float:
    return math.exp(min(float(value), 700.0))


def privacy_rows(result: Result) -> list[dict[str, Any]]:
    """Lists per client what left it and what that cost under each claimed relation."""
    rows = []
    for site in result.sites:
        epsilon = {claim.relation: claim.epsilon for claim in site.claims}
        if not site.claims:
            epsilon = {"add_remove": math.inf, "substitute": math.inf}
        rows.append(
            {
                "client": site.name,
                "records": site.records,
                "releases": site.releases,
                "numbers": site.numbers,
                "epsilon": epsilon,
                "delta": result.assembly.study.privacy.delta,
                "view": site.claims[0].view if site.claims else "message",
                "lifetime": _lifetime(site),
            }
        )
    return rows


def _lifetime(site: Site) -> dict[str, Any] | None:
    """What a site's policy charged over all studies; None where it has no such cap."""
    spent = site.claims[0].lifetime if site.claims else None
    return None if spent is None else spent._asdict()


def as_dict(result: Result) -> dict[str, Any]:
    """Returns everything about a run that may be published, as plain values for JSON."""
    study = result.assembly.study
    content = {
        "fedvi": __version__,
        "study": study.study.name,
        "digest": study.digest,
        "protection": study.privacy.protection,
        "mark": result.assembly.mark,
        "coefficients": coefficients(result),
        "privacy": privacy_rows(result),
        "consortium": [statement.as_dict(claim) for claim in result.consortium],
        "projected": result.improper,
        "residuals": dict(result.residuals),
        "history": [
            {
                "version": update.version,
                "clients": update.clients,
                "staleness": update.staleness,
                "damping": update.damping,
                "rounds": update.rounds,
                "gap": None if update.gap is None else update.gap._asdict(),
            }
            for update in result.history
        ],
        "elapsed_seconds": round(result.elapsed_seconds, 3),
    }
    if result.pooled is not None:
        content["pooled"] = "pooled_mean and pooled_sd: fitted to all records without privacy"
    return _plain(content)


def _plain(value: Any) -> Any:
    """Replaces numbers that JSON cannot hold by texts: "inf", "nan"."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def check_target(directory: Path) -> None:
    """Refuses a target folder that holds something; called before a run, so that none is lost.

    Raises:
      ConfigError: if it exists and is not an empty folder, or its parent does not exist, or the place
        cannot be written.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise errors.ConfigError(
            f"--out {directory} exists and is not an empty folder", "name a new folder"
        )
    if not directory.parent.is_dir():
        raise errors.ConfigError(
            f"--out {directory}: the folder {directory.parent} does not exist", "make it first"
        )
    place = directory if directory.exists() else directory.parent
    if not os.access(place, os.W_OK | os.X_OK):
        raise errors.ConfigError(
            f"--out {directory}: the folder {place} cannot be written", "name another folder"
        )


def write(result: Result, directory: Path) -> None:
    """Writes the posterior (npz and JSON), the ledgers and the resolved study, all or nothing.

    Files: ``posterior.npz`` and ``posterior.json`` (both mean, sd, h, J, names, mark),
    ``result.json``, ``study.json`` and ``ledger/CLIENT.jsonl``.

    Raises:
      ConfigError: see ``check_target``.
    """
    check_target(directory)
    mean, sd = result.assembly.family.moments(result.posterior)
    # An empty folder is filled, not replaced: it may be a mounted volume or the current folder.
    given = directory.exists()
    scratch = Path(
        tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory if given else directory.parent)
    )
    try:
        posterior: dict[str, Any] = {
            "names": np.array(result.assembly.model.names),
            "mean": np.asarray(mean),
            "sd": np.asarray(sd),
            "h": np.asarray(result.posterior.h),
            "J": np.asarray(result.posterior.J),
            "mark": np.array(result.assembly.mark),
        }
        np.savez(scratch / "posterior.npz", **posterior)
        # As text a float64 comes back to the last bit.
        plain = {name: value.tolist() for name, value in posterior.items()}
        _write_json(scratch / "posterior.json", _plain(plain))
        _write_json(scratch / "result.json", as_dict(result))
        study = result.assembly.study.as_dict()
        noise = result.assembly.noise_multiplier
        if noise is not None:
            study["solver"]["noise_multiplier"] = noise
        _write_json(scratch / "study.json", study)
        (scratch / "ledger").mkdir()
        for name, book in result.ledgers.items():
            text = "\n".join(ledger.to_lines(book)) + "\n"
            (scratch / "ledger" / f"{name}.jsonl").write_text(text, encoding="utf-8")
        if given:
            for path in scratch.iterdir():
                path.rename(directory / path.name)
            scratch.rmdir()
        else:
            scratch.chmod(0o755)
            scratch.rename(directory)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    path.write_text(text, encoding="utf-8")
