"""Opens a finished run's folder, from `fedvi simulate --out` or a server; needs no JAX."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.results import posterior as posteriors
from fedvi.results import result_json
from fedvi.run import server_plan
from fedvi.run.server_plan import ServerPlan
from fedvi.server.store import schema
from fedvi.study.config import Study, load_study
from fedvi.study.spec.coefficients import MOST, in_file_units

__all__ = ["RESULT", "RunFolder", "check_told", "read", "study_of"]

RESULT = "result"
"""The name, within a server's folder, of the folder of its posterior."""

# Differences of this part are rounding.
_SAME = 1e-9


class RunFolder(NamedTuple):
    """The contents of a run's folder, of either kind.

    Attributes:
      study: validated.
      digests: those that its ledgers may carry; the study's own first.
      result: the content of the run's ``result.json``.
      posterior: path of the posterior's file.
      ledgers: path of the ledgers.
      plan: of a server; None for a simulation.
    """

    study: Study
    digests: tuple[str, ...]
    result: dict[str, Any]
    posterior: Path
    ledgers: Path
    plan: ServerPlan | None


def read(folder: Path) -> RunFolder:
    """Reads a run's study, result and plan, but not its posterior, ledgers and server state.

    Raises:
      ConfigError: a file is missing or damaged, or they do not belong together.
    """
    study, place, plan = _opened(folder)
    result = result_json.read(place / "result.json")
    digests = result_json.digests(study, result)
    ledgers = folder / ("ledger" if plan is None else schema.DATABASE)
    return RunFolder(study, digests, result, place / "posterior.npz", ledgers, plan)


def study_of(folder: Path) -> tuple[Study, Path]:
    """Returns the study of a run's folder, and the path of its posterior's file.

    Raises:
      ConfigError: the folder is not that of a run.
    """
    study, place, _ = _opened(folder)
    return study, place / "posterior.npz"


def check_told(study: Study, result: Mapping[str, Any], posterior: Path) -> None:
    """Compares a posterior, in the units of the file, with the means that its result lists.

    What earlier versions of fedvi fitted to times, linear outcomes and exposures had other units.

    Raises:
      ConfigError: they differ, or the posterior cannot be read.
    """
    found = posteriors.arrays(posterior, ("names", "mean", "sd"))
    names = [str(name) for name in np.atleast_1d(found["names"])[:MOST]]
    mean, sd = (np.atleast_1d(found[name])[:MOST] for name in ("mean", "sd"))
    told, spread = in_file_units(study, names).moments(mean, sd)
    rows = result["coefficients"]
    for name, here, wide, row in zip(names, told, spread, rows, strict=False):
        if abs(here - float(row["mean"])) > _SAME * (wide + abs(here)):
            raise errors.ConfigError(
                f"{posterior}: the mean of {name} is {here:.6g} in the units of the file, and result.json "
                f"says {float(row['mean']):.6g}",
                "the folder holds files of two runs, or is of a version of fedvi that fitted times, "
                "linear outcomes and exposures in other units: read it with that version, or run it again",
            )


def _opened(folder: Path) -> tuple[Study, Path, ServerPlan | None]:
    study_path, plan_path = folder / "study.json", folder / server_plan.FILE
    if study_path.is_file():
        return load_study(study_path), folder, None
    if plan_path.is_file():
        plan = server_plan.read(plan_path)
        return plan.study, folder / RESULT, plan
    raise errors.ConfigError(
        f"{folder} holds neither study.json nor {server_plan.FILE}, expected the folder of a run",
        "name the folder of `fedvi simulate --out`, or of a server's --state",
    )
