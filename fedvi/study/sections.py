"""The sections of a study file as values, each with what it checks by itself."""

from typing import Any, Literal, NamedTuple

import pydantic

from fedvi import errors
from fedvi.data.cells import is_separator
from fedvi.privacy import accountants
from fedvi.privacy.events import Relation

__all__ = [
    "DEEPEST",
    "LARGEST",
    "MOST_ROWS_PER_UNIT",
    "ROWS_PER_UNIT",
    "AggregationSection",
    "BaseSection",
    "ClientSection",
    "DataSection",
    "KindSection",
    "PriorSection",
    "PrivacySection",
    "Promise",
    "SimulationSection",
    "StudySection",
    "in_short",
]

# TOML integers have 64 bits; larger ones would fail wherever they are used.
LARGEST = 2**63 - 1

DEEPEST = 32

ROWS_PER_UNIT = 20
MOST_ROWS_PER_UNIT = 10**4

_PRIVATE_NOISE = "rounded_gaussian"

# Without a promise, noise serves comparisons only, so floats need no grid.
_OPEN_NOISE = "gaussian"

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class BaseSection(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        ser_json_inf_nan="strings",
    )


class StudySection(BaseSection):
    """``[study]``: its name, and the public seed (initialisation and simulated arrival; never noise)."""

    name: str = pydantic.Field(
        pattern=_NAME, max_length=64, description="Of the study; it becomes part of file names."
    )
    seed: int = pydantic.Field(
        default=0,
        ge=0,
        le=LARGEST,
        description="Public: initialisation and simulated arrival; never noise.",
    )


class KindSection(pydantic.BaseModel):
    """A section whose ``kind`` names a factory and whose other keys are its arguments."""

    model_config = pydantic.ConfigDict(extra="allow", frozen=True, strict=True)
    kind: str

    @property
    def arguments(self) -> dict[str, Any]:
        """The keys beside ``kind``."""
        return dict(self.model_extra or {})


class PriorSection(BaseSection):
    """``[prior]`` of the built-in models: N(0, scale²) for each coefficient."""

    scale: float = pydantic.Field(
        default=2.5,
        ge=1e-6,
        le=1e6,
        description="Prior sd of a coefficient; 2.5 suits coefficients on scaled columns.",
    )
    intercept_scale: float | None = pydantic.Field(
        default=None, ge=1e-6, le=1e6, description="That of the intercept; left out, it is scale."
    )


class Promise(NamedTuple):
    """A study's privacy guarantee."""

    epsilon: float
    delta: float
    unit: str
    relation: Relation


class PrivacySection(BaseSection):
    """``[privacy]``: the promise. ``protection = "none"`` must be said; then nothing else may be."""

    protection: Literal["dp", "none"] = pydantic.Field(
        default="dp", description="Whether anything is promised."
    )
    epsilon: float | None = pydantic.Field(
        default=None, gt=0.0, description="Largest privacy loss over the study; 1 is common."
    )
    delta: float | None = pydantic.Field(
        default=None, gt=0.0, lt=0.5, description="Far below 1 / number of records, such as 1e-5."
    )
    unit: Literal["record", "patient", "client"] | None = pydantic.Field(
        default=None,
        description="What is protected: a row, all rows of a patient, or all that a client holds.",
    )
    relation: Relation | None = pydantic.Field(
        default=None,
        description="What a neighbour is: one unit more or less, or another in the place of one.",
    )
    # "aggregate": the server is trusted, and publishes only sums over clients.
    view: Literal["message", "aggregate"] = pydantic.Field(
        default="message",
        description="Who the promise holds against: whoever sees every message, or sums alone.",
    )
    least_reporting: int | None = pydantic.Field(
        default=None, ge=1, description="Answers that a published sum needs, at least."
    )
    colluding: int | None = pydantic.Field(
        default=None, ge=0, description="Participants that may tell each other their own noise."
    )
    accountant: str = pydantic.Field(
        default="pld", description="What the promise is checked with; pld is the tightest."
    )
    mechanism: str = pydantic.Field(description="Where the noise comes from; best left out.")
    disjoint: bool = pydantic.Field(
        default=False, description="Declares that no unit stands at two sites."
    )
    records_public: bool = pydantic.Field(
        default=False, description="Declares that the number of records is published."
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _noise(cls, given: Any) -> Any:
        """Fills in the default mechanism. With `unit = "client"`, units are disjoint by definition."""
        if isinstance(given, dict) and given.get("unit") == "client":
            given = {"disjoint": True, **given}
        if not isinstance(given, dict) or "mechanism" in given:
            return given
        protected = given.get("protection", "dp") == "dp"
        return {**given, "mechanism": _PRIVATE_NOISE if protected else _OPEN_NOISE}

    @property
    def promise(self) -> Promise | None:
        """The promise; None in a study without protection."""
        if not (self.epsilon and self.delta and self.unit and self.relation):
            return None
        return Promise(self.epsilon, self.delta, self.unit, self.relation)

    @property
    def private(self) -> bool:
        """Whether the study promises anything."""
        return self.protection == "dp"

    @pydantic.model_validator(mode="after")
    def _complete(self) -> "PrivacySection":
        # No "module:function" here, since a budget is checked only against certified upper bounds.
        if self.accountant not in accountants.__all__:
            raise ValueError(
                f"privacy.accountant is {self.accountant!r}, which is not in fedvi.privacy.accountants"
                f"|{errors.did_you_mean(self.accountant, accountants.__all__)}"
            )
        self._check_view()
        named = {name: getattr(self, name) for name in ("epsilon", "delta", "unit", "relation")}
        if self.private:
            missing = [name for name, value in named.items() if value is None]
            if missing:
                raise ValueError(
                    f"privacy.{missing[0]} is missing|a private study names epsilon, delta, "
                    'unit ("record", "patient" or "client") and relation ("add_remove" or "substitute"); '
                    'a study without protection says so: protection = "none"'
                )
            if self.records_public and self.relation == "add_remove":
                raise ValueError(
                    'privacy.relation is "add_remove" beside records_public = true|a published '
                    "number of records shows whether one was added or removed: promise "
                    '"substitute", or leave records_public out'
                )
            self._check_whole_clients()
        else:
            given = [name for name, value in named.items() if value is not None]
            if given:
                raise ValueError(
                    f'privacy.{given[0]} is given beside protection = "none"|leave out one of the two'
                )
        return self

    def _check_whole_clients(self) -> None:
        if self.unit != "client":
            return
        # A client's number of records is a part of its data.
        if self.records_public:
            raise ValueError(
                'privacy.records_public is true beside privacy.unit = "client"|leave it out: how many '
                "records a client holds tells of the client, and is protected with them"
            )
        if not self.disjoint:
            raise ValueError(
                'privacy.disjoint is false beside privacy.unit = "client"|leave it out: each client is a '
                "unit of its own, and no other client"
            )

    def _check_view(self) -> None:
        if self.view == "message":
            for name in ("least_reporting", "colluding"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f'privacy.{name} is given beside view = "message"|it says how many answers a '
                        'sum over clients hides among: write view = "aggregate", or leave it out'
                    )
            return
        if not self.private:
            raise ValueError(
                'privacy.view is "aggregate" beside protection = "none"|leave out one of the two'
            )
        # Sums with other noise have another price, or none.
        if self.mechanism != _PRIVATE_NOISE:
            raise ValueError(
                f'privacy.mechanism is {in_short(self.mechanism)} beside view = "aggregate"|leave it out: '
                f'sums of "{_PRIVATE_NOISE}" noise are what that view is priced for'
            )


class AggregationSection(BaseSection):
    """``[aggregation]``: who adds answers up, under the view "aggregate"."""

    secure: bool = pydantic.Field(
        default=False,
        description="Whether answers are masked, so that the server sees their sum alone.",
    )


class DataSection(BaseSection):
    """``[data]``: how a client's file is read, and what each column may hold.

    ``unit_column`` names the column that says whose a row is, where the privacy unit is a patient.
    It is read as text, is no covariate, and never leaves. ``max_records`` then bounds the patients
    of a client, and ``max_rows_per_unit`` the rows of one patient that are used. ``id_column`` names
    the column that tells records apart where each is one row: for solvers that divide records into
    parts. It is read as text, is no covariate, and never leaves, as well.
    """

    columns: list[str] | None = pydantic.Field(
        default=None, description="Names of all columns, in order, of files without a header."
    )
    separator: str = pydantic.Field(default=",", description="One character between two cells.")
    max_records: int | None = pydantic.Field(
        default=None,
        ge=1,
        le=10**8,
        description="The most records (or patients) that any client may hold; of one with more, only the "
        "first are used in a private study.",
    )
    unit_column: str | None = pydantic.Field(
        default=None, description='Says whose a row is, with unit = "patient"; never leaves.'
    )
    id_column: str | None = pydantic.Field(
        default=None,
        description="Tells records apart, for solvers that divide them into parts; never leaves.",
    )
    max_rows_per_unit: int | None = pydantic.Field(
        default=None,
        ge=1,
        le=MOST_ROWS_PER_UNIT,
        description=f"Rows of one patient that are used; {ROWS_PER_UNIT} if left out.",
    )
    # Named so because BaseModel has an attribute `schema`.
    columns_schema: dict[str, dict[str, Any]] = pydantic.Field(
        default={}, alias="schema", description="What each column may hold, by its name."
    )

    @pydantic.field_validator("separator")
    @classmethod
    def _separates(cls, value: str) -> str:
        if not is_separator(value):
            raise ValueError(
                f"data.separator is {in_short(value)}, expected one character"
                '|use ",", ";" or "\\t"; blanks around a cell are taken off anyway'
            )
        return value

    @pydantic.model_validator(mode="after")
    def _units(self) -> "DataSection":
        if self.max_rows_per_unit is not None and self.unit_column is None:
            raise ValueError(
                "data.max_rows_per_unit is given without data.unit_column|name the column that says "
                "whose a row is, or leave max_rows_per_unit out: a record is then one row"
            )
        if self.id_column is not None and self.unit_column is not None:
            raise ValueError(
                "data.id_column is given beside data.unit_column|leave id_column out: where rows are "
                "grouped into units, the unit is what is told apart"
            )
        return self

    @property
    def identity_column(self) -> str | None:
        """The column that identifies records or units."""
        return self.unit_column or self.id_column

    @property
    def rows_per_unit(self) -> int:
        """The most rows of one unit that are used: a public bound on shapes."""
        return self.max_rows_per_unit or ROWS_PER_UNIT


class ClientSection(BaseSection):
    """``[[clients]]``: a site, its file (relative to the study file), its pace in simulation.

    ``added`` says that it joined a run that had begun without it: ``fedvi server --extend``.
    """

    name: str = pydantic.Field(
        pattern=_NAME, max_length=64, description="Of the site; its certificate says the same."
    )
    data: str | None = pydantic.Field(
        default=None, description="Its file, relative to the study file; read in simulation."
    )
    latency_seconds: float = pydantic.Field(
        default=1.0, ge=0.0, description="How long an answer takes in simulation."
    )
    expected_records: int | None = pydantic.Field(
        default=None,
        ge=1,
        le=10**8,
        description="How many it is believed to hold; for plans alone.",
    )
    added: bool = pydantic.Field(
        default=False, description="Joined a run that had begun without it."
    )

    @pydantic.field_validator("data")
    @classmethod
    def _path(cls, value: str | None) -> str | None:
        if value is not None and "\0" in value:
            raise ValueError(
                f"clients.data is {in_short(value)}, expected a path without the NUL character"
                "|write a backslash in a path twice, or use forward slashes"
            )
        return value


class SimulationSection(BaseSection):
    """``[simulation]``: what stands for the network; and seeded noise, which marks every number.

    ``latency_jitter`` multiplies each latency by a uniform factor in [1 − j, 1 + j], from the
    study's seed.
    """

    latency_jitter: float = pydantic.Field(
        default=0.0, ge=0.0, lt=1.0, description="Latencies vary by up to this share."
    )
    insecure_seed: int | None = pydantic.Field(
        default=None,
        ge=0,
        le=LARGEST,
        description="Noise from a seed: reproducible, and no guarantee.",
    )


def in_short(value: Any) -> str:
    """Writes a value for a message, truncated to fit a line."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # too many digits, or too deep
        return f"a very large {type(value).__name__}"
    return text if len(text) <= 100 else text[:100] + "…"
