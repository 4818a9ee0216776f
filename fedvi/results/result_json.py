"""Writes and reads `result.json`, the stored result of a run."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from fedvi import __version__, errors
from fedvi.federation.fold import Gap
from fedvi.privacy import caveats
from fedvi.results.one_shot import estimated_gap
from fedvi.results.run_record import RunRecord
from fedvi.results.verdict import Verdict
from fedvi.server.core.state import Update
from fedvi.study import site_effects
from fedvi.study.config import Study, parse_study
from fedvi.typing import Eta

__all__ = ["content", "digests", "heads", "read", "told", "unknown_to_ledgers"]


# The fields of a fold that are written; its stage in a script is the server's own.
_TOLD = tuple(name for name in Update._fields if name not in ("gap", "stage"))


class _Part(pydantic.BaseModel):
    # A result of a later version may have more fields.
    model_config = pydantic.ConfigDict(extra="ignore")


class _Coefficient(_Part):
    name: str
    unit: str
    mean: float
    sd: float
    lower: float
    upper: float
    pooled_mean: float | None = None
    pooled_sd: float | None = None


class _Gap(_Part):
    mean_shift: float
    sd_ratio: float
    surprise: float = 0.0
    jitter: float = 0.0


class _Update(_Part):
    version: int
    rounds: int
    clients: list[str]
    missing: list[str] = []
    removed: list[str] = []
    added: list[str] = []
    damping: float
    gap: _Gap | None


class _Moments(_Part):
    mean: float
    sd: float


class _Lifetime(_Part):
    epsilon: float
    cap: float
    delta: float
    relation: str
    releases: int


class _Client(_Part):
    client: str
    epsilon: dict[str, float]
    records: int | None = None
    lifetime: _Lifetime | None = None
    ledger: str = ""


class _Claim(_Part):
    unit: str
    relation: str
    view: str
    epsilon: float
    delta: float
    accountant: str
    releases: int
    mark: str


class _Influence(_Part):
    client: str
    precision_share: float | None
    shift_in_sds: dict[str, float] | None
    reason: str
    alone: list[_Moments] | None = None


class _Verdict(_Part):
    effects: int
    stand_out: list[str]
    multiples: dict[str, float]
    records: int | None
    effective: int | None
    settled: bool | None
    alarms: list[str]
    helps: str
    rounds_left: int | None = None
    by_chance: list[str] = []
    as_declared: bool = True
    question: str = ""


class _Named(_Part):
    name: str
    ledger: str = ""


class _Result(_Part):
    digest: str
    mark: str
    status: str = ""
    fedvi: str = ""
    remark: str = ""
    projected: bool = False
    one_shot_gap: float | None = None
    warnings: list[str] = []
    verdict: _Verdict | None = None
    coefficients: list[_Coefficient]
    prior: list[_Moments] | None = None
    pooled: str | None = None
    noise_scale: float | None = None
    wider_priors: dict[str, float] | None = None
    history: list[_Update]
    privacy: list[_Client] = []
    clients: list[_Named] = []
    consortium: list[_Claim] = []
    influence: list[_Influence] | None = None

    @pydantic.model_validator(mode="after")
    def _are_of_one_posterior(self) -> "_Result":
        count = len(self.coefficients)
        if self.prior is not None and len(self.prior) != count:
            raise ValueError(f"{len(self.prior)} rows of the prior, expected {count}")
        fitted = [row for row in self.coefficients if None not in (row.pooled_mean, row.pooled_sd)]
        if self.pooled is not None and len(fitted) != count:
            raise ValueError(f"{len(fitted)} rows of the pooled fit, expected {count}")
        names = [row.name for row in self.coefficients]
        for row in self.influence or ():
            # The shifts may be of more coordinates than are listed.
            if row.shift_in_sds and list(row.shift_in_sds)[:count] != names:
                raise ValueError(f"the influence of {row.client!r} is of other coefficients")
            if row.alone is not None and len(row.alone) < count:
                raise ValueError(f"what {row.client!r} says alone is of other coefficients")
        return self


assert set(_Gap.model_fields) == set(Gap._fields)


def content(
    run: RunRecord, verdict: Verdict, warnings: Sequence[str], pooled: Eta | None = None
) -> dict[str, Any]:
    """Returns the part that every run's result has; a simulation and a server add their own.

    Args:
      run: a run that has ended.
      verdict: on the run.
      warnings: one sentence each, see ``fedvi.planning.advice.doubts``.
      pooled: η of another fit, to show beside the posterior.
    """
    study, rows = run.study, run.rows(pooled)
    said = site_effects.remark(study, rows)
    return {
        "fedvi": __version__,
        "study": study.study.name,
        "digest": study.digest,
        "protection": study.privacy.protection,
        "mark": run.mark,
        "verdict": verdict.as_dict(),
        "warnings": list(warnings),
        "coefficients": rows,
        **({"remark": said} if said else {}),
        **({} if run.noise_scale is None else {"noise_scale": run.noise_scale}),
        **({"wider_priors": run.wider_priors} if run.wider_priors else {}),
        "one_shot_gap": estimated_gap(run),
        "projected": run.is_projected,
        "history": [
            {name: getattr(update, name) for name in _TOLD}
            | {"gap": None if update.gap is None else update.gap._asdict()}
            for update in run.history
        ],
    }


def read(path: Path) -> dict[str, Any]:
    """Reads a result.

    Returns:
      The values of the file as they are: infinity is a text.

    Raises:
      ConfigError: it cannot be read, or is not a result.
    """
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise errors.ConfigError(f"{path} holds no result of a run, expected a table of JSON")
        _Result.model_validate(found)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise errors.ConfigError(
            f"no result of a run can be read at {path}: {where}: {first['msg'].lower()}",
            "the file was changed, or is of another version of fedvi",
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise errors.ConfigError(
            f"no result of a run can be read at {path}: {error}", "has the run ended?"
        ) from error
    return found


def digests(study: Study, result: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the digest of the study that the result belongs to, and that study's original digest.

    ``--out`` writes the calibrated noise into the study. So a kept study matches either as it is, or as
    its file was written, without that noise.

    Raises:
      ConfigError: the result is of another study.
    """
    raw = study.as_written()
    raw["solver"].pop("noise_multiplier", None)
    for version in (study, parse_study(raw, study.parts)):
        if version.digest == result["digest"]:
            return (version.digest, version.origin_digest)
    raise errors.ConfigError(
        f"the result is of the study {str(result['digest'])[:16]}…, and the study beside it is "
        f"{study.digest[:16]}…",
        "the folder holds files of two runs",
    )


def heads(result: Mapping[str, Any]) -> dict[str, str]:
    """Returns client → the head of its ledger at the end of the run, where the result has it."""
    rows = [*result.get("privacy", ()), *result.get("clients", ())]
    return {
        str(row.get("client", row.get("name"))): str(row["ledger"])
        for row in rows
        if "ledger" in row
    }


def told(result: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Returns client → relation → the ε stated in the result; empty for a server, which states none."""
    return {
        str(row["client"]): {name: float(value) for name, value in row["epsilon"].items()}
        for row in result.get("privacy", ())
    }


def unknown_to_ledgers(result: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the exclusions that no ledger knows, one line each."""
    return (caveats.POOLED,) if "pooled" in result else ()
