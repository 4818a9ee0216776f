"""Opens the folder of a finished run, of `fedvi simulate --out` or of a server; needs no JAX."""

from pathlib import Path
from typing import Any, NamedTuple

from fedvi import errors
from fedvi.results import result_json
from fedvi.run import server_plan
from fedvi.run.server_plan import ServerPlan
from fedvi.server.store import schema
from fedvi.study.config import Study, load_study

__all__ = ["RESULT", "RunFolder", "read", "study_of"]

RESULT = "result"
"""The name, within a server's folder, of the folder of its posterior."""


class RunFolder(NamedTuple):
    """What a folder holds, of either kind.

    Attributes:
      study: validated.
      digests: that its ledgers may carry; the study's own first.
      result: what the run wrote of itself, plain.
      posterior: where the posterior's file is.
      ledgers: where they stand.
      plan: of a server; None of a simulation.
    """

    study: Study
    digests: tuple[str, ...]
    result: dict[str, Any]
    posterior: Path
    ledgers: Path
    plan: ServerPlan | None


def read(folder: Path) -> RunFolder:
    """Reads what a run says of itself, but for its posterior, its ledgers and a server's state.

    Raises:
      ConfigError: something is not there, damaged, or does not belong together.
    """
    study, place, plan = _opened(folder)
    result = result_json.read(place / "result.json")
    digests = result_json.digests(study, result)
    ledgers = folder / ("ledger" if plan is None else schema.DATABASE)
    return RunFolder(study, digests, result, place / "posterior.npz", ledgers, plan)


def study_of(folder: Path) -> tuple[Study, Path]:
    """Returns the study of a run's folder, and where its posterior's file is.

    Raises:
      ConfigError: it is no such folder.
    """
    study, place, _ = _opened(folder)
    return study, place / "posterior.npz"


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
