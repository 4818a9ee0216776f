"""What a report needs of a kept `result.json`: come here when a result says more, or says it otherwise."""

import json
from pathlib import Path
from typing import Any

import pydantic

from fedvi import errors
from fedvi.federation.fold import Gap

__all__ = ["read"]


class _Part(pydantic.BaseModel):
    # A result of a later version says more.
    model_config = pydantic.ConfigDict(extra="ignore")


class _Coefficient(_Part):
    name: str
    unit: str
    mean: float
    sd: float
    lower: float
    upper: float


class _Gap(_Part):
    mean_shift: float
    sd_ratio: float


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


class _Influence(_Part):
    client: str
    precision_share: float | None
    shift_in_sds: dict[str, float] | None
    reason: str


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
    warnings: list[str] = []
    coefficients: list[_Coefficient]
    prior: list[_Moments] | None = None
    history: list[_Update]
    privacy: list[_Client] = []
    clients: list[_Named] = []
    influence: list[_Influence] | None = None

    @pydantic.model_validator(mode="after")
    def _are_of_one_posterior(self) -> "_Result":
        count = len(self.coefficients)
        if self.prior is not None and len(self.prior) != count:
            raise ValueError(f"{len(self.prior)} rows of the prior, expected {count}")
        names = [row.name for row in self.coefficients]
        for row in self.influence or ():
            # The shifts may be of more coordinates than are listed.
            if row.shift_in_sds and list(row.shift_in_sds)[:count] != names:
                raise ValueError(f"the influence of {row.client!r} is of other coefficients")
        return self


assert set(_Gap.model_fields) == set(Gap._fields)


def read(path: Path) -> dict[str, Any]:
    """Reads a result.

    Returns:
      The values of the file as they stand: infinity is a text.

    Raises:
      ConfigError: it cannot be read, or holds something else than a result does.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        _Result.model_validate(found)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise errors.ConfigError(
            f"no result of a run can be read at {path}: {where}: {first['msg'].lower()}",
            "the file was changed, or is of another version of fedvi",
        ) from None
    except (OSError, ValueError) as error:
        raise errors.ConfigError(
            f"no result of a run can be read at {path}: {error}", "has the run ended?"
        ) from error
    assert isinstance(found, dict)
    return found
