"""What a study file may say: sections, keys, defaults, and how mistakes in it are reported."""

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pydantic

from fedvi import errors
from fedvi.privacy import accountants
from fedvi.privacy.events import Relation

__all__ = [
    "ClientSection",
    "DataSection",
    "KindSection",
    "PriorSection",
    "PrivacySection",
    "Promise",
    "SimulationSection",
    "Study",
    "StudySection",
    "load_study",
    "parse_study",
]

# The name of the worker that owns a non-Gaussian prior; no client may take it.
RESERVED = ("prior",)


class _Section(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        ser_json_inf_nan="strings",
    )


class StudySection(_Section):
    """``[study]``: its name, and the public seed (initialisation and simulated arrival; never noise)."""

    name: str = pydantic.Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    seed: int = pydantic.Field(default=0, ge=0)


class KindSection(pydantic.BaseModel):
    """A section whose ``kind`` names a factory and whose other keys are its arguments."""

    model_config = pydantic.ConfigDict(extra="allow", frozen=True, strict=True)
    kind: str

    @property
    def arguments(self) -> dict[str, Any]:
        """The keys beside ``kind``."""
        return dict(self.model_extra or {})


class PriorSection(_Section):
    """``[prior]`` of the built-in models: N(0, scale²) for each coefficient."""

    scale: float = pydantic.Field(default=2.5, gt=0.0)
    intercept_scale: float | None = pydantic.Field(default=None, gt=0.0)


class Promise(NamedTuple):
    """A privacy guarantee as a study states it."""

    epsilon: float
    delta: float
    unit: str
    relation: Relation


class PrivacySection(_Section):
    """``[privacy]``: the promise. ``protection = "none"`` must be said; then nothing else may be."""

    protection: Literal["dp", "none"] = "dp"
    epsilon: float | None = pydantic.Field(default=None, gt=0.0)
    delta: float | None = pydantic.Field(default=None, gt=0.0, lt=1.0)
    unit: Literal["record"] | None = None
    relation: Relation | None = None
    accountant: str = "pld"
    mechanism: str = "gaussian"
    disjoint: bool = False
    records_public: bool = False

    @property
    def promise(self) -> Promise | None:
        """What is promised; None in a study without protection."""
        if not (self.epsilon and self.delta and self.unit and self.relation):
            return None
        return Promise(self.epsilon, self.delta, self.unit, self.relation)

    @property
    def private(self) -> bool:
        """Whether the study promises anything."""
        return self.protection == "dp"

    @pydantic.model_validator(mode="after")
    def _complete(self) -> "PrivacySection":
        # No "module:function" here: a budget is checked against certified upper bounds alone.
        if self.accountant not in accountants.__all__:
            raise ValueError(
                f"privacy.accountant is {self.accountant!r}, which is not in fedvi.privacy.accountants"
                f"|{errors.did_you_mean(self.accountant, accountants.__all__)}"
            )
        named = {name: getattr(self, name) for name in ("epsilon", "delta", "unit", "relation")}
        if self.private:
            missing = [name for name, value in named.items() if value is None]
            if missing:
                raise ValueError(
                    f"privacy.{missing[0]} is missing|a private study names epsilon, delta, "
                    'unit = "record" and relation ("add_remove" or "substitute"); '
                    'a study without protection says so: protection = "none"'
                )
            if self.records_public and self.relation == "add_remove":
                raise ValueError(
                    'privacy.relation is "add_remove" beside records_public = true|a published '
                    "number of records shows whether one was added or removed: promise "
                    '"substitute", or leave records_public out'
                )
        else:
            given = [name for name, value in named.items() if value is not None]
            if given:
                raise ValueError(
                    f'privacy.{given[0]} is given beside protection = "none"|leave out one of the two'
                )
        return self


class DataSection(_Section):
    """``[data]``: how a client's file is read, and what each column may hold."""

    columns: list[str] | None = None
    separator: str = ","
    max_records: int | None = pydantic.Field(default=None, ge=1)
    # Named so because BaseModel has an attribute called schema.
    columns_schema: dict[str, dict[str, Any]] = pydantic.Field(alias="schema")


class ClientSection(_Section):
    """``[[clients]]``: a site, its file (relative to the study file), its pace in simulation."""

    name: str = pydantic.Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    data: str | None = None
    latency_seconds: float = pydantic.Field(default=1.0, ge=0.0)


class SimulationSection(_Section):
    """``[simulation]``: what stands for the network; and seeded noise, which marks every number.

    ``latency_jitter`` multiplies each latency by a uniform factor in [1 − j, 1 + j], from the
    study's seed.
    """

    latency_jitter: float = pydantic.Field(default=0.0, ge=0.0, lt=1.0)
    insecure_seed: int | None = pydantic.Field(default=None, ge=0)


class Study(_Section):
    """A whole study, validated; both sides must agree on its ``digest``."""

    study: StudySection
    model: KindSection
    family: KindSection = KindSection(kind="full_gaussian")
    prior: PriorSection | None = None
    solver: KindSection
    schedule: KindSection
    privacy: PrivacySection
    data: DataSection
    clients: list[ClientSection] = pydantic.Field(min_length=1)
    simulation: SimulationSection = SimulationSection()

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> "Study":
        # Ledgers are files named after clients, and some file systems ignore case.
        names = [client.name.casefold() for client in self.clients]
        for client, name in zip(self.clients, names, strict=True):
            if names.count(name) > 1:
                raise ValueError(
                    f"clients: the name {client.name!r} stands twice|give every client its own "
                    "name; upper and lower case count as the same"
                )
            if name in RESERVED:
                raise ValueError(
                    f"clients: the name {client.name!r} is reserved|choose another name"
                )
        if self.privacy.private and self.data.max_records is None:
            raise ValueError(
                "data.max_records is missing|a private study declares the largest number of records "
                "at any client, as public knowledge: batches and the claim are sized for it"
            )
        return self

    @property
    def digest(self) -> str:
        """SHA-256 over everything that both sides must agree on: all but local paths and latencies."""
        content = self.as_dict()
        del content["simulation"]
        for client in content["clients"]:
            del client["data"], client["latency_seconds"]
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """Returns the tables with all defaults, as plain values for JSON; ``parse_study`` reads them.

        JSON has no infinity, which a ``clip_norm`` may be: the text "Infinity" stands for it.
        """
        return json.loads(self.model_dump_json(by_alias=True))


def load_study(path: str | Path) -> Study:
    """Reads and validates a study file.

    Raises:
      ConfigError: naming the section, the key, the value found and what would be right.
    """
    path = Path(path)
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise errors.ConfigError(
            f"no study file at {path}", "give the path of a .toml file"
        ) from None
    except OSError as error:
        raise errors.ConfigError(
            f"cannot read {path}: {error.strerror}", "is it a file that you may read?"
        ) from None
    except UnicodeDecodeError:
        raise errors.ConfigError(
            f"{path} is not a text file in UTF-8", "save it again in that encoding"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise errors.ConfigError(
            f"{path} is not valid TOML: {error}",
            'sections are written [section], keys are written key = value, texts "in quotes"',
        ) from None
    return parse_study(raw)


def parse_study(raw: dict[str, Any]) -> Study:
    """Validates the tables of a study file.

    Raises:
      ConfigError: naming the section, the key, the value found and what would be right.
    """
    try:
        return Study.model_validate(raw)
    except pydantic.ValidationError as failure:
        raise _explain(failure) from None


def _explain(failure: pydantic.ValidationError) -> errors.ConfigError:
    """Turns one problem that the validator found into one of ours."""
    problems = failure.errors()
    # A misspelt key is missing under its right name too: the unknown one says more.
    unknown = (problem for problem in problems if problem["type"] == "extra_forbidden")
    problem = next(unknown, problems[0])
    location, kind = problem["loc"], problem["type"]
    path = _path(location)
    if kind == "extra_forbidden":
        return errors.ConfigError(
            f"{path}: unknown key", errors.did_you_mean(str(location[-1]), _known(location))
        )
    if kind == "missing":
        return errors.ConfigError(f"{path} is missing", _add(str(location[-1]), location[:-1]))
    if kind == "value_error":
        message, _, hint = str(problem["ctx"]["error"]).partition("|")
        return errors.ConfigError(message, hint)
    if kind == "too_short":
        return errors.ConfigError(f"{path} is empty", _add(str(location[-1]), location[:-1]))
    expected = problem["msg"].removeprefix("Input should be ")
    hint = "write numbers, true and false without quotes, and texts in quotes"
    if kind == "string_pattern_mismatch":
        expected = "a letter or digit, then letters, digits, `.`, `_` or `-`"
        hint = "the name becomes part of file names"
    if kind == "literal_error":
        hint = errors.did_you_mean(str(problem["input"]), _choices(problem["ctx"]["expected"]))
    return errors.ConfigError(f"{path} is {problem['input']!r}, expected {expected}", hint)


def _path(location: tuple[Any, ...]) -> str:
    """Writes where something stands, as the study file would: clients[1].name."""
    return "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in location
    ).removeprefix(".")


def _choices(expected: str) -> list[str]:
    """Reads the words in quotes out of the validator's "'a', 'b' or 'c'"."""
    return expected.split("'")[1::2]


def _add(key: str, section: tuple[Any, ...]) -> str:
    """Says how a missing key or section is written."""
    if section:
        return f"add `{key} = …`" + (" under its [[clients]]" if section[0] == "clients" else "")
    return _SECTIONS.get(key, f"add a section [{key}]")


_SECTIONS = {
    "clients": "add a [[clients]] entry with a name for each site",
    "data": "add a [data.schema.NAME] section for each column that the model uses",
    "model": 'add a section [model] with kind = "logistic" and a formula',
    "privacy": "add a section [privacy] with epsilon, delta, unit and relation; a study without "
    'protection says so: protection = "none"',
    "schedule": 'add a section [schedule] with kind = "synchronous" and rounds',
    "solver": 'add a section [solver] with a kind, such as "dp_optimisation"',
    "study": "add a section [study] with a name",
}


def _known(location: tuple[Any, ...]) -> list[str]:
    """Lists the keys that the section at a location may have."""
    section: Any = Study
    for part in location[:-1]:
        if isinstance(part, int):
            continue
        field = next(f for n, f in section.model_fields.items() if (f.alias or n) == part)
        section = {
            "study": StudySection,
            "prior": PriorSection,
            "privacy": PrivacySection,
            "data": DataSection,
            "clients": ClientSection,
            "simulation": SimulationSection,
        }.get(part, field.annotation)
    return [field.alias or name for name, field in section.model_fields.items()]
