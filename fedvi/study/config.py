"""Parses a study file: sections, keys, defaults, and errors that name the line to correct."""

import collections
import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic

from fedvi import errors, plugins
from fedvi.data.line_numbers import line_of, with_lines
from fedvi.data.schema import parse_schema
from fedvi.privacy.agreement import threshold
from fedvi.privacy.spoken import Speaks, Summary, facts, promised
from fedvi.privacy.sums import Sums
from fedvi.study import kinds
from fedvi.study.sections import (
    DEEPEST,
    LARGEST,
    ROWS_PER_UNIT,
    AggregationSection,
    BaseSection,
    ClientSection,
    DataSection,
    KindSection,
    PriorSection,
    PrivacySection,
    SimulationSection,
    StudySection,
    in_short,
)
from fedvi.typing import PRIOR
from fedvi.updates.abilities import ability

# With two sites, each learns the other's answer from the sum; the keys of over 500 exceed 2 MB.
_FEWEST_MASKED, _MOST_MASKED = 3, 500

# The most sites in a summary.
_NAMED = 8

__all__ = ["GivenParts", "Study", "load_study", "located", "parse_study"]


GivenParts = Mapping[str, Any] | plugins.OutsideCode
"""Name → object, from Python; or plug-ins that are allowed, see ``fedvi.plugins``."""


class _Beside:
    """What a study carries and does not say: two studies are equal whatever stands here.

    Attributes:
      parts: the code from outside fedvi that it may use.
      path, text: of the file that it was read from; empty if it was no file.
    """

    def __init__(self, parts: plugins.OutsideCode, path: str = "", text: str = "") -> None:
        self.parts, self.path, self.text = parts, path, text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Beside)

    def __hash__(self) -> int:
        return 0


# Built-in models of which a mean says how much a typical record tells, see ``HasOutcome.curvature_at``.
_CURVED = frozenset({"poisson", "negative_binomial"})


class Study(Speaks, BaseSection):
    """A whole study, validated; both sides must agree on its ``digest``.

    Printed, it says in a few lines what is fitted, what is promised, and by whom; ``summary()`` says more.
    """

    study: StudySection
    model: KindSection
    family: KindSection = KindSection(kind="full_gaussian")
    prior: PriorSection | None = None
    solver: KindSection
    schedule: KindSection
    privacy: PrivacySection
    aggregation: AggregationSection = AggregationSection()
    data: DataSection
    clients: list[ClientSection] = pydantic.Field(min_length=1)
    simulation: SimulationSection = SimulationSection()
    _beside: _Beside = pydantic.PrivateAttr(default_factory=lambda: _Beside(plugins.NOTHING))

    @property
    def parts(self) -> plugins.OutsideCode:
        """The code from outside fedvi that the study may use: allowed plug-ins, and objects from Python."""
        return self._beside.parts

    def with_parts(self, parts: "GivenParts") -> "Study":
        """Returns the study with other code from outside fedvi, in the place of what it had.

        Args:
          parts: name that the study gives → the object: a function, or a class.

        Raises:
          ConfigError: a name is a built-in one, or no name.
        """
        changed = self.model_copy()
        beside = self._beside
        changed._beside = _Beside(_parts_of(parts), beside.path, beside.text)
        return changed

    def is_outside(self, what: str) -> bool:
        """Whether a choice, a key of ``kinds``, is of code from outside fedvi."""
        return self.kinds[what] not in kinds.BUILT_IN[what]

    def check_code(self) -> None:
        """Refuses plug-ins that the study names and nobody allowed; imports nothing.

        Raises:
          CodeRefused, PolicyRefused: names the file and the line, where they are known, the kind, and how
            to allow it.
        """
        try:
            kinds.check(self.kinds, self.parts)
        except (errors.CodeRefused, errors.PolicyRefused) as error:
            raise located(error, self._beside.path, self._beside.text) from None

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> "Study":
        # Ledgers are files named after clients, and some file systems ignore case.
        names = [client.name.casefold() for client in self.clients]
        times = collections.Counter(names)
        for client, name in zip(self.clients, names, strict=True):
            if times[name] > 1:
                raise ValueError(
                    f"clients: the name {client.name!r} stands twice|give every client its own "
                    "name; upper and lower case count as the same"
                )
            if name == PRIOR:
                raise ValueError(
                    f"clients: the name {client.name!r} is reserved|choose another name"
                )
        late = [client.added for client in self.clients]
        if all(late) or late != sorted(late):
            name = self.clients[0].name if all(late) else self.clients[late.index(True)].name
            raise ValueError(
                f"clients: {name!r} is marked `added`, and stands before one that is not, or alone|"
                "clients that joined later come after those that the study began with"
            )
        if self.privacy.private and self.data.max_records is None:
            raise ValueError(
                "data.max_records is missing|a private study declares the largest number of records "
                "at any client, as public knowledge: batches and the claim are sized for it. "
                'With unit = "patient" it counts patients, not rows'
            )
        if self.privacy.unit == "patient" and self.data.unit_column is None:
            raise ValueError(
                'data.unit_column is missing beside privacy.unit = "patient"|name the column that '
                'says whose a row is, such as unit_column = "patient_id"; if every patient has one '
                'row, promise unit = "record"'
            )
        if self.privacy.unit == "client":
            self._check_whole_clients()
        if self.privacy.unit == "record" and self.data.unit_column is not None:
            raise ValueError(
                f"data.unit_column is {in_short(self.data.unit_column)} beside "
                'privacy.unit = "record"|promise unit = "patient" to protect all rows of a patient '
                "together; or leave unit_column out, and every row is protected by itself"
            )
        self._check_sums()
        return self

    def _check_whole_clients(self) -> None:
        """Refuses solvers that do not protect a whole client: clipping must cover its whole answer."""
        if not ability(self.solver.kind).of_clients:
            raise ValueError(
                f'solver.kind is {in_short(self.solver.kind)} beside privacy.unit = "client"|use '
                '"perturbed_update", which clips the whole change of a client; other solvers clip what '
                "one record, or a part of the records, says"
            )
        if self.data.unit_column is not None:
            raise ValueError(
                f"data.unit_column is {in_short(self.data.unit_column)} beside "
                'privacy.unit = "client"|leave unit_column out: all rows of a client are protected '
                "together, whoever they are of"
            )

    def _check_sums(self) -> None:
        """Refuses the view "aggregate" if publications would reveal a single message."""
        sums, count = self.sums, len(self.clients)
        if self.aggregation.secure:
            self._check_secure(sums, count)
        if sums is None:
            return
        if any(client.added for client in self.clients):
            raise ValueError(
                'clients: one is marked `added` beside privacy.view = "aggregate"|start a new study: the '
                "noise of each client's share was fixed for the clients that it began with"
            )
        if sums.least_reporting > count:
            raise ValueError(
                f"privacy.least_reporting is {sums.least_reporting}, expected at most {count}, the number "
                "of clients|left out, it is all of them"
            )
        if sums.honest < 1:
            raise ValueError(
                f"privacy.colluding is {sums.colluding}, expected below least_reporting, "
                f"{sums.least_reporting}|a client's answer hides among those of others that work with "
                'nobody: declare fewer colluding clients, or promise view = "message"'
            )

    def _check_secure(self, sums: Sums | None, count: int) -> None:
        """Refuses masks that would hide nothing, or that would let two sums of a round be opened."""
        if sums is None:
            raise ValueError(
                'aggregation.secure is true beside privacy.view = "message"|write view = "aggregate" in '
                "[privacy], whose promise is for sums: masks keep the server from all but these"
            )
        if count < _FEWEST_MASKED:
            raise ValueError(
                f"aggregation.secure is true beside {count} clients, expected {_FEWEST_MASKED} or more|"
                "of two, each subtracts its own answer from the sum and has the other's: promise "
                'view = "message", or find a third site'
            )
        if count > _MOST_MASKED:
            raise ValueError(
                f"aggregation.secure is true beside {count} clients, expected {_MOST_MASKED} or fewer|each "
                "site agrees on a key with every other one, and the keys of more do not fit a message"
            )
        needed = threshold(count, sums.colluding)
        if sums.least_reporting < needed <= count:
            raise ValueError(
                f"privacy.least_reporting is {sums.least_reporting} beside aggregation.secure = true, "
                f"expected at least {needed}: of {count} clients, {sums.colluding} of whom may work with "
                "the server, so many must sign which sum is opened, or two could be"
            )
        if needed > count > sums.least_reporting:
            raise ValueError(
                f"privacy.least_reporting is {sums.least_reporting} beside aggregation.secure = true and "
                f"privacy.colluding = {sums.colluding}, expected {count}, all clients|leave it out: with "
                "so many that work with the server, no rule of signatures leaves one sum to be opened"
            )

    def __repr__(self) -> str:
        told = dict(self._told)
        solver, sites = f"{told['solver']}; {told['schedule']}", f"sites {told['sites']}"
        return "\n  ".join(
            [f"Study {self.study.name}", told["model"], told["promise"], sites, solver]
        )

    __str__ = __repr__

    def summary(self) -> Summary:
        """Returns what is fitted, what is promised, by whom, and the digest; reads no file."""
        return Summary(f"Study {self.study.name}", (), (facts(self._told),))

    @property
    def _told(self) -> list[tuple[str, str]]:
        names, promise = [client.name for client in self.clients], self.privacy.promise
        more = f", … and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        rounds = self.schedule.arguments.get("rounds")
        most = self.data.max_records
        epsilon, delta, unit, relation = promise or (None, None, None, None)
        return [
            ("model", self.model.kind + (f": {self.formula}" if self.formula else "")),
            ("promise", promised(epsilon, delta, unit, relation, self.privacy.view)),
            ("sites", f"{len(names)}: {', '.join(names[:_NAMED])}{more}"),
            ("records", "" if most is None else f"at most {most:,} at any site"),
            ("prior", "" if self.prior is None else f"sd {self.prior.scale:g} of a coefficient"),
            ("solver", self.solver.kind),
            ("schedule", self.schedule.kind + ("" if rounds is None else f", {rounds} rounds")),
            ("digest", f"{self.digest[:16]}… (every site must have the same)"),
        ]

    @property
    def sums(self) -> Sums | None:
        """How many answers a published sum needs; None if every message is assumed to be seen.

        By default all clients must answer, and every participant is assumed to know its own noise.
        """
        privacy = self.privacy
        if privacy.view == "message":
            return None
        least, colluding = privacy.least_reporting, privacy.colluding
        count = len(self.clients)
        least = count if least is None else least
        tops_up = self.aggregation.secure and least < count
        return Sums(least, 1 if colluding is None else colluding, count if tops_up else 0)

    @property
    def kinds(self) -> dict[str, str]:
        """The study's choice for each section: section → a name, built-in or of a part from outside."""
        sampler = self.solver.arguments.get("sampler", "full")
        return {
            "model": self.model.kind,
            "family": self.family.kind,
            "solver": self.solver.kind,
            "sampler": str(sampler.get("kind", "") if isinstance(sampler, dict) else sampler),
            "mechanism": self.privacy.mechanism,
            "schedule": self.schedule.kind,
        }

    @property
    def formula(self) -> str | None:
        """The model's formula, as written; None without one.

        Raises:
          ConfigError: it is not a text.
        """
        text = self.model.arguments.get("formula")
        if not isinstance(text, str | None):
            raise errors.ConfigError(
                f"model.formula is {text!r}, expected a text",
                'write e.g. formula = "disease ~ age + sex"',
            )
        return text

    @property
    def digest(self) -> str:
        """SHA-256 over everything that both sides must agree on: all but local paths and latencies.

        It covers only the presence of an ``insecure_seed``, since seeded noise protects nothing.
        """
        return self._digest(self.simulation.insecure_seed is not None)

    @property
    def digest_if_seeded_otherwise(self) -> str:
        """The digest with an ``insecure_seed`` if there is none, and without it if there is one."""
        return self._digest(self.simulation.insecure_seed is None)

    @property
    def earlier_digests(self) -> tuple[str, ...]:
        """The digests of this study before its ``added`` clients, the last first.

        A study with one of them differs only in those clients, since everything else is hashed.
        """
        seeded, count = self.simulation.insecure_seed is not None, len(self.clients)
        begun = sum(not client.added for client in self.clients)
        return tuple(self._digest(seeded, length) for length in range(count - 1, begun - 1, -1))

    @property
    def origin_digest(self) -> str:
        """The study's digest at the beginning, which its ledgers carry and keep when a client joins."""
        return (self.digest, *self.earlier_digests)[-1]

    def _digest(self, seeded: bool, length: int | None = None) -> str:
        content = self.as_dict()
        del content["simulation"]
        if seeded:
            content["insecure_seed"] = True
        # Absent if not set, so that existing studies keep their digests.
        for name in ("least_reporting", "colluding"):
            if content["privacy"][name] is None:
                del content["privacy"][name]
        if not self.aggregation.secure:
            del content["aggregation"]
        content["clients"] = content["clients"][:length]
        for client in content["clients"]:
            del client["data"], client["latency_seconds"], client["expected_records"]
            # Absent if not set, so that existing studies keep their digests.
            if not client["added"]:
                del client["added"]
        # Other expectations of the records do not change what is released.
        outcomes = self._surveyed_outcomes
        for name, column in content["data"]["schema"].items():
            expected = column.pop("expected", {})
            if name in outcomes and expected.get("mean"):
                column["expected"] = {"mean": float(expected["mean"])}
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    @property
    def _surveyed_outcomes(self) -> set[str]:
        """Columns left of `~` whose expected mean sets a solver's clip norm or its first answers.

        It gives the curvature of a typical count (``modelling.declared_curvature``), which "auto" goes by.
        """
        given = self.solver.arguments
        known = self.model.kind in _CURVED or self.is_outside("model")
        if (
            not (known and (self.solver.kind == "site_release" or self.is_outside("solver")))
            or given.get("clip_norm", "auto") != "auto"
            or given.get("noise_multiplier") == 0
        ):
            return set()
        return set(
            re.findall(r"[\w.]+", str(self.model.arguments.get("formula")).partition("~")[0])
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns the tables with all defaults, as plain values for JSON; ``parse_study`` reads them.

        JSON has no infinity, which a ``clip_norm`` may be: it becomes the text "Infinity".
        """
        return json.loads(self.model_dump_json(by_alias=True))

    def as_written(self) -> dict[str, Any]:
        """Returns ``as_dict`` without keys that are None, since TOML has no None."""
        return _without_none(self.as_dict())


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value


def load_study(path: str | Path, parts: GivenParts | None = None) -> Study:
    """Reads and validates a study file: TOML, or the resolved study written by ``--out`` (``.json``).

    Args:
      path: of the file.
      parts: the code from outside fedvi that the study may name: name → the function or class itself. A
        file cannot bring or import any.

    Raises:
      CodeRefused: it names code by module and attribute, or a plug-in that nobody allowed.
      ConfigError: names the section, the key, its value, the expected value, and the line if it is
        known; or all of these errors.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
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
    except ValueError:
        raise errors.ConfigError(
            f"no study file at {str(path)!r}", "give the path of a .toml file"
        ) from None
    raw = _read_json(path, text) if path.suffix == ".json" else _read_toml(path, text)
    try:
        study = parse_study(raw, parts)
    except (errors.CodeRefused, errors.PolicyRefused) as error:
        raise located(error, str(path), text) from None
    except errors.ConfigError as error:
        raise with_lines(error, text) from None
    study._beside.path, study._beside.text = str(path), text
    return study


def located(error: errors.FedviError, path: str, text: str, within: str = "") -> errors.FedviError:
    """Says in which file, and on which line, a name of code stands.

    Args:
      error: its message begins with the place in the study.
      text: of the file.
      within: the key under which the file holds the study; empty if it is the study.
    """
    if not path:
        return error
    line = line_of(f"{within}.{error.message}" if within else error.message, text)
    where = path if line is None else f"{path}, line {line}"
    return type(error)(f"{error.message} ({where})", error.hint)


def _parts_of(given: GivenParts) -> plugins.OutsideCode:
    if isinstance(given, plugins.OutsideCode):
        return given
    for name in given:
        owned = [what for what, own in kinds.BUILT_IN.items() if name in own]
        if owned or plugins.is_address(name) or not name:
            raise errors.ConfigError(
                f"parts names {name!r}, which is "
                + (f"fedvi's own {owned[0]}" if owned else "no name of a kind"),
                "choose another name, such as that of the class in lower case, and write it in the study",
            )
    return plugins.OutsideCode(dict(given))


def _read_toml(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise errors.ConfigError(
            f"{path} is not valid TOML: {error}",
            "sections are written [section], keys are written key = value and stand once, "
            'texts "in quotes"',
        ) from None
    except (ValueError, RecursionError):
        raise _beyond_reading(path) from None


def _read_json(path: Path, text: str) -> dict[str, Any]:
    try:
        raw = json.loads(text)
        # JSON may contain half a surrogate pair, which no file name, digest or table can hold.
        json.dumps(raw, ensure_ascii=False).encode()
    except (json.JSONDecodeError, UnicodeEncodeError) as error:
        raise errors.ConfigError(
            f"{path} is not valid JSON: {error}",
            "a .json study is the study.json that `fedvi simulate --out` keeps; others are .toml",
        ) from None
    except (ValueError, RecursionError):
        raise _beyond_reading(path) from None
    if not isinstance(raw, dict):
        raise errors.ConfigError(
            f"{path} holds {in_short(raw)}, expected a table of sections",
            "a .json study is the study.json that `fedvi simulate --out` keeps",
        )
    return raw


def _beyond_reading(path: Path) -> errors.ConfigError:
    return errors.ConfigError(
        f"{path} holds a number of too many digits, or is nested too deeply",
        f"whole numbers go up to {LARGEST}; no section of a study is deeper than four tables",
    )


def parse_study(raw: dict[str, Any], parts: GivenParts | None = None) -> Study:
    """Validates the tables of a study file.

    Args:
      raw: the tables.
      parts: the code from outside fedvi that the study may name, as for ``load_study``. Left out: what the
        running command allows, and outside a command nothing.

    Raises:
      CodeRefused: it names code by module and attribute, or a plug-in that was not allowed. Outside a
        command and without ``parts``, the latter is refused when the study is built, since objects may
        still be passed.
      ConfigError: names the section, the key, its value and the expected value; or all of these errors.
    """
    _check_values(raw)
    try:
        study = Study.model_validate(raw)
    except pydantic.ValidationError as failure:
        wrong = [_explain(problem) for problem in errors.worth_telling(failure.errors())]
        raise errors.as_one([*wrong, *_wrong_columns(raw)]) from None
    said = plugins.allowed() if parts is None else _parts_of(parts)
    if said is not None:
        study._beside = _Beside(said)
        study.check_code()
    return study


def _check_values(raw: dict[str, Any]) -> None:
    """Refuses numbers beyond 64 bits, tables nested too deep, and kinds that address code."""
    pending: list[tuple[tuple[Any, ...], Any]] = [((), raw)]
    while pending:
        location, value = pending.pop()
        if len(location) > DEEPEST:
            raise errors.ConfigError(
                f"{location[0]} is nested more than {DEEPEST} deep, expected a few tables",
                "no section of a study is deeper than four tables",
            )
        if isinstance(value, dict):
            pending += [((*location, key), item) for key, item in value.items()]
        elif isinstance(value, list):
            pending += [((*location, index), item) for index, item in enumerate(value)]
        elif isinstance(value, str) and _is_kind(location) and plugins.is_address(value):
            plugins.refuse_address(_path(location), value, kinds.FORMER.get(value, ""))
        elif isinstance(value, int) and abs(value) > LARGEST:
            raise errors.ConfigError(
                f"{_path(location)} is {in_short(value)}, expected at most {LARGEST} in size",
                "whole numbers have 64 bits; write a larger number with a decimal point",
            )


def _is_kind(location: tuple[Any, ...]) -> bool:
    """Whether what stands at a location names what is made there, or in a stage of a schedule."""
    return location[-1:] == ("kind",) or location in (
        ("privacy", "mechanism"),
        ("solver", "sampler"),
    )


def _wrong_columns(raw: dict[str, Any]) -> tuple[errors.ConfigError, ...]:
    """Returns what is wrong with the declared columns of a study that is refused for another reason."""
    section, privacy = raw.get("data"), raw.get("privacy")
    tables = section.get("schema") if isinstance(section, dict) else None
    if not isinstance(tables, dict) or not all(isinstance(one, dict) for one in tables.values()):
        return ()  # the validator says so
    private = not (isinstance(privacy, dict) and privacy.get("protection") == "none")
    try:
        if tables:
            parse_schema(tables, private=private)
    except errors.ConfigError as error:
        return (error,)
    return ()


def _explain(problem: Any) -> errors.ConfigError:
    """Turns one of the validator's problems into our error."""
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
    found = in_short(problem["input"])
    if kind in ("model_type", "model_attributes_type", "dict_type", "list_type"):
        hint = 'write a list in brackets: ["age", "sex"]' if location[-1] == "columns" else _TABLE
        return errors.ConfigError(f"{path} is {found}, expected {_table(location, kind)}", hint)
    expected = errors.in_words(problem["msg"])
    hint = _HINTS.get(path, "write numbers, true and false without quotes, and texts in quotes")
    if kind == "string_pattern_mismatch":
        expected = "a letter or digit, then letters, digits, `.`, `_` or `-`"
        hint = "the name becomes part of file names"
    if kind == "string_too_long":
        expected = f"at most {problem['ctx']['max_length']} characters"
        hint = "the name becomes part of file names"
    if kind == "literal_error":
        hint = errors.did_you_mean(str(problem["input"]), _choices(problem["ctx"]["expected"]))
    return errors.ConfigError(f"{path} is {found}, expected {expected}", hint)


def _table(location: tuple[Any, ...], kind: str) -> str:
    """Returns which table, or list, belongs at a location."""
    name = ".".join(part for part in location if isinstance(part, str))
    if location[0] == "clients":
        return f"a table [[{name}]]" + (" for each site" if kind == "list_type" else "")
    return "a list" if kind == "list_type" else f"a table [{name}]"


def _path(location: tuple[Any, ...]) -> str:
    """Writes a location as in the study file: clients[1].name."""
    return "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in location
    ).removeprefix(".")


def _choices(expected: str) -> list[str]:
    """Extracts the quoted words from the validator's "'a', 'b' or 'c'"."""
    return expected.split("'")[1::2]


def _add(key: str, section: tuple[Any, ...]) -> str:
    """Says how to write a missing key or section."""
    if section:
        return f"add `{key} = …`" + (" under its [[clients]]" if section[0] == "clients" else "")
    return _SECTIONS.get(key, f"add a section [{key}]")


_TABLE = "write a section's name in brackets on a line of its own, and its keys on the lines below"

_HINTS = {
    "privacy.epsilon": "epsilon is the largest privacy loss, above 0: 1 is a common promise. To promise "
    'nothing write protection = "none"',
    "privacy.delta": "delta is far below 1 / number of records, such as 1e-5",
    "data.max_records": "declare the largest number of records (of patients, with unit = "
    '"patient") at any client, at most 10^8',
    "data.max_rows_per_unit": "it bounds the rows of one patient that are used, at most 10^4; left out, "
    f"it is {ROWS_PER_UNIT}",
    "prior.scale": "it is the prior's sd of a coefficient; 2.5 suits coefficients on scaled columns",
    "prior.intercept_scale": "it is the prior's sd of the intercept; left out, it is `scale`",
}

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
    """Lists the keys that are allowed in the section at a location."""
    section: Any = Study
    for part in location[:-1]:
        if isinstance(part, int):
            continue
        field = next(f for n, f in section.model_fields.items() if (f.alias or n) == part)
        section = {
            "study": StudySection,
            "prior": PriorSection,
            "privacy": PrivacySection,
            "aggregation": AggregationSection,
            "data": DataSection,
            "clients": ClientSection,
            "simulation": SimulationSection,
        }.get(part, field.annotation)
    return [field.alias or name for name, field in section.model_fields.items()]
