"""Drafts the study that `fedvi init` writes, with a reason beside each line.

Needs no JAX and reads no record. What nobody has stated is left as a value that every reader of a study
refuses, so that a draft cannot run by accident.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedvi import errors
from fedvi.models.outcomes.accepted import ACCEPTED

__all__ = [
    "KINDS",
    "SOLVERS",
    "Answers",
    "Draft",
    "cells_of",
    "default_delta",
    "draft",
    "named",
    "parse_column",
    "parse_setting",
    "response_types",
    "variables",
]


class _Kind(NamedTuple):
    """A model that a study can be drafted for.

    Attributes:
      words: what it is, for a prompt.
      settings: keys of ``[model]`` besides the formula → (value, why).
      left: how the left side of `~` is written.
    """

    words: str
    settings: Mapping[str, tuple[Any, str]]
    left: str = "{}"


KINDS: Mapping[str, _Kind] = {
    "logistic": _Kind("a yes or no", {}),
    "linear": _Kind(
        "a number",
        {"noise_scale": (0.5, "known sd of a record around its mean, response scaled as below")},
    ),
    "binomial": _Kind("how many of so many: events and non-events", {}, "cbind({})"),
    "poisson": _Kind("a count", {}),
    "negative_binomial": _Kind(
        "a count that spreads more than a Poisson count",
        {"dispersion": (0.5, "known: the variance of a count is mean + dispersion × mean²")},
    ),
    "multinomial": _Kind("one of several levels", {}),
    "multivariate_linear": _Kind(
        "several numbers",
        {"noise_scale": (0.5, "known sd around the means, responses scaled as below; or one each")},
        "cbind({})",
    ),
    "survival": _Kind(
        "a time until an event",
        {"cuts": ([], "times at which the baseline hazard may jump; none: it is constant")},
        "Surv({})",
    ),
}
"""Built-in models of a formula, by their kind."""

SOLVERS: Mapping[bool, tuple[str, ...]] = {
    True: ("site_release", "dp_optimisation", "perturbed_update"),
    False: ("exact", "glm", "gradient"),
}
"""Whether a study is private → solvers that need nothing else of it, the recommended one first."""

_THIN = (
    "# It has all columns of the file: take out what is no covariate, such as the name or number of a",
    "# patient or of a site, here and, with its table, below.",
)
# Where a model is exact in closed form, nothing has to be iterated.
_CLOSED_FORM = ("linear", "multivariate_linear")
# Fresh sums average their noise out over rounds; noise on changes adds up.
_ROUNDS = {"site_release": 20, "dp_optimisation": 5, "perturbed_update": 5, "exact": 2}
_COMMENT_COLUMN = 34


@dataclasses.dataclass(frozen=True)
class Answers:
    """What a person has said of a study.

    Attributes:
      name: of the study.
      kind: of the model, one of ``KINDS``.
      formula: such as "disease ~ age + sex".
      clients: names of the sites.
      columns: name in the formula → table of ``[data.schema.NAME]``; what is missing in a table is
        left to be stated.
      private: whether anything is promised; without, the privacy fields are not used.
      epsilon, delta, relation, unit: the promise.
      unit_column: whose a row is, where the unit is a patient.
      max_records: the largest number of units of any client; None: to be stated.
      solver: None for the recommended one.
      clip_norm: of the private solver.
      settings: keys of ``[model]`` that differ from their defaults.
      separator: of the sites' files.
      all_columns: whether the formula was made of all columns of a file, which a person has to thin.
      files: where a site's file is, relative to the study file; {} stands for the site's name.
    """

    name: str
    kind: str
    formula: str
    clients: tuple[str, ...]
    columns: Mapping[str, Mapping[str, Any]]
    private: bool = True
    epsilon: float = 1.0
    delta: float = 1e-5
    relation: str = "substitute"
    unit: str = "record"
    unit_column: str | None = None
    max_records: int | None = None
    solver: str | None = None
    clip_norm: float | str = 1.0
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    separator: str = ","
    files: str = "{}.csv"
    all_columns: bool = False

    @property
    def chosen_solver(self) -> str:
        """The solver: the one that was named, or the recommended one."""
        if self.solver is not None:
            return self.solver
        if self.private:
            return SOLVERS[True][0]
        return "exact" if self.kind in _CLOSED_FORM else _OPEN.get(self.kind, "glm")

    @property
    def rounds(self) -> int:
        """How often each site answers, at most."""
        return _ROUNDS.get(self.chosen_solver, 10)


# Several linear predictors a record: no one-dimensional quadrature serves.
_OPEN = {"multinomial": "gradient"}


class Draft(NamedTuple):
    """A drafted file.

    Attributes:
      text: of ``study.toml``.
      open: keys that a person must still state, by their path; with any the text is refused.
    """

    text: str
    open: tuple[str, ...]


def draft(answers: Answers) -> Draft:
    """Writes a study file.

    >>> answers = Answers("trial", "logistic", "y ~ age", ("north",), {"y": {"type": "binary"}})
    >>> draft(answers).open
    ('data.max_records', 'data.schema.age.type')
    """
    missing: list[str] = []
    lines = [
        "#:schema ./study.schema.json",
        "# What all sites agree on, before any record is read. Every site must hold the same file:",
        "# `fedvi check study.toml` prints its digest, with the plan and its price.",
        "",
        "[study]",
        _line("name", answers.name),
        _line("seed", 0, "public: initialisation and the order of arrival; never noise"),
        "",
        "[model]",
        _line("kind", answers.kind, f"of {KINDS[answers.kind].words}"),
        _line("formula", answers.formula),
        *(_THIN if answers.all_columns else ()),
        *_settings(answers),
        "",
        "[prior]",
        _line("scale", 2.5, "prior sd of each coefficient, on columns scaled as below"),
        "",
        *_solver(answers),
        "",
        "[schedule]",
        _line("kind", "synchronous", "all sites at once, folded together"),
        *_rounds(answers),
        "# deadline_seconds = 86400        # skip a site that takes longer; left out, all are waited for",
        "",
        *_privacy(answers),
        "",
        *_data(answers, missing),
    ]
    for name in variables(answers.formula):
        lines += ["", *_column(name, answers.columns.get(name, {}), missing)]
    lines += ["", "# The sites. `data` is read by `fedvi simulate`; `fedvi client` has --data."]
    for client in answers.clients:
        lines += [
            "[[clients]]",
            _line("name", client),
            _line("data", answers.files.format(client)),
            "",
        ]
    return Draft("\n".join(lines).rstrip() + "\n", tuple(missing))


def _settings(answers: Answers) -> list[str]:
    known = KINDS[answers.kind].settings
    for key in answers.settings:
        if key not in known:
            raise errors.ConfigError(
                f"--setting {key} is no setting of kind {answers.kind!r}",
                errors.did_you_mean(key, known),
            )
    return [
        _line(key, answers.settings.get(key, value), why) for key, (value, why) in known.items()
    ]


def _solver(answers: Answers) -> list[str]:
    kind = answers.chosen_solver
    if kind not in SOLVERS[answers.private]:
        raise errors.ConfigError(
            f"--solver is {kind!r}, expected one of {', '.join(SOLVERS[answers.private])} "
            + ("in a private study" if answers.private else "in a study that promises nothing"),
            "docs/modes.md says which suits what; the others need more than init asks for, and are "
            "written into study.toml by hand",
        )
    lines = ["[solver]"]
    if not answers.private:
        why = {
            "exact": "closed form: one visit is enough",
            "glm": "deterministic: quadrature and Newton steps",
            "gradient": "any model, by reparameterised gradients",
        }
        return [*lines, _line("kind", kind, why[kind])]
    why = {
        "site_release": "a noised sum of gradients and curvatures: suits regressions",
        "dp_optimisation": "DP-SGD at each site",
        "perturbed_update": "the whole change of a site, clipped and noised once",
    }
    lines += [
        _line("kind", kind, why[kind]),
        _line(
            "clip_norm",
            answers.clip_norm,
            f"longest contribution of one {answers.unit}: `fedvi check` says what suits"
            if answers.clip_norm != "auto"
            else f"longest contribution of one {answers.unit}: `fedvi check` says how it is found",
        ),
    ]
    if kind == "dp_optimisation":
        lines.append(_line("steps", 50, "local steps of an answer"))
    return [
        *lines,
        _line("sampler", "full", "every record in every sum"),
        "# noise_multiplier is left out: it is calibrated to [privacy]",
    ]


def _rounds(answers: Answers) -> list[str]:
    lines = [_line("rounds", answers.rounds, "answers of each site, at most")]
    if not answers.private:
        lines.append(_line("tolerance", 0.01, "ends earlier, once no mean moves by more (in sds)"))
    return lines


def _privacy(answers: Answers) -> list[str]:
    lines = ["# The promise: change it with whoever owns the data, before anything is run."]
    if not answers.private:
        return [
            "# Nothing is promised: what leaves a site is not noised.",
            "[privacy]",
            _line("protection", "none"),
        ]
    meant = {
        "substitute": f"neighbours differ in one {answers.unit}'s values",
        "add_remove": f"neighbours differ in whether one {answers.unit} is there",
    }
    protected = {"record": "a row", "patient": "all rows of a patient together"}
    return [
        *lines,
        "[privacy]",
        _line("epsilon", answers.epsilon, "largest privacy loss over the whole study"),
        _line("delta", answers.delta, "far below 1 / max_records"),
        _line("unit", answers.unit, f"protects {protected[answers.unit]}"),
        _line("relation", answers.relation, meant[answers.relation]),
        _line("disjoint", False, f"true: declared that no {answers.unit} stands at two sites"),
    ]


def _data(answers: Answers, missing: list[str]) -> list[str]:
    lines = ["[data]", _line("separator", answers.separator)]
    if answers.private or answers.max_records is not None:
        units = f"{answers.unit}s" if answers.private else "records"
        why = f"public upper bound on the {units} of any site"
        if answers.max_records is None:
            missing.append("data.max_records")
            why = f"STATE IT: a {why}"
        lines.append(_line("max_records", answers.max_records or 0, why))
    if answers.private and answers.unit == "patient":
        if answers.unit_column is None:
            missing.append("data.unit_column")
        else:
            lines.append(_line("unit_column", answers.unit_column, "whose a row is; never leaves"))
        lines.append(
            "# max_rows_per_unit = 20           # rows of one patient that are used, at most"
        )
    rule = 'counts as zero ("drop")' if answers.private else 'is refused ("refuse")'
    return [
        *lines,
        "",
        "# Bounds and levels are public knowledge: from the protocol, a code book or clinical practice,",
        "# never from the files. Numbers are clipped to their bounds, and enter the model as",
        "# (value - center) / scale; left out, these are the middle of the bounds and half their width.",
        f"# A record with a missing cell {rule}, unless its column says otherwise:",
        '# missing = { impute = VALUE } or missing = "indicator".',
    ]


def _column(name: str, table: Mapping[str, Any], missing: list[str]) -> list[str]:
    path = f"data.schema.{name}"
    lines = [f"[data.schema.{_key(name)}]"]
    if "column" in table:
        lines.append(_line("column", table["column"], "its name in the files"))
    kind = table.get("type", "")
    if not kind:
        missing.append(f"{path}.type")
        return [
            *lines,
            _line("type", "", 'STATE IT: "number", "count", "level" or "binary"'),
            "# bounds = [0, 1]                 # of a number or count: lowest and highest, as in the file",
            '# levels = ["a", "b"]             # of a level: the first is the reference',
            "# true = [1]                      # of a binary column: cells that mean true,",
            "# false = [0]                     # and false",
        ]
    lines.append(_line("type", kind))
    if kind in ("number", "count"):
        if "bounds" in table:
            lines.append(_line("bounds", table["bounds"], "lowest and highest, as in the file"))
        else:
            missing.append(f"{path}.bounds")
            lines.append(_line("bounds", [], "STATE IT: lowest and highest, not from the data"))
    elif kind == "level":
        if "levels" in table:
            lines.append(_line("levels", table["levels"], "the first is the reference"))
        else:
            missing.append(f"{path}.levels")
            lines.append(_line("levels", [], "STATE IT: all that may occur, the reference first"))
    else:
        lines += [
            _line("true", table.get("true", [1]), "cells that mean true"),
            _line("false", table.get("false", [0])),
        ]
    return lines


def _line(key: str, value: Any, why: str = "") -> str:
    text = f"{key} = {_toml(value)}"
    return f"{text:<{_COMMENT_COLUMN - 1}} # {why}" if why else text


def _toml(value: Any) -> str:
    """Writes a plain value as TOML, whose texts are those of JSON but for the character DEL."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return re.sub(r"e([+-])0", r"e\1", repr(value))


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


_WORD = re.compile(r"[^\W\d_][\w.]*")


def variables(formula: str) -> tuple[str, ...]:
    """Lists the columns that a formula names, each once, the response first; texts are not parsed.

    >>> variables("Surv(time, event) ~ age + bs(iss, lower_bound=0) + age:sex")
    ('time', 'event', 'age', 'iss', 'sex')
    """
    text = re.sub(r"\"[^\"]*\"|'[^']*'", "''", formula)
    found = []
    for match in _WORD.finditer(text):
        following = text[match.end() :].lstrip()
        preceding = text[: match.start()][-1:]
        # A function, the name of an argument, a word of Python's, or the e of 1e5.
        if following[:1] in ("(", "=") or match[0] in ("True", "False") or preceding.isdigit():
            continue
        found.append(match[0])
    return tuple(dict.fromkeys(found))


def response_types(kind: str, formula: str) -> dict[str, str]:
    """Returns the types that a model asks of the columns left of `~`.

    >>> response_types("survival", "Surv(time, event) ~ age")
    {'time': 'number', 'event': 'binary'}
    """
    types = ACCEPTED[kind].columns
    left = variables(formula.partition("~")[0])
    return {name: types[min(index, len(types) - 1)] for index, name in enumerate(left)}


_TYPES = ("binary", "count", "level", "number")
_SPELLINGS = (
    "write NAME=number:LOW..HIGH, NAME=count:LOW..HIGH, NAME=level:FIRST,SECOND or "
    "NAME=binary:TRUE/FALSE; what follows the colon may be left out, and stated in the file"
)


def parse_column(text: str) -> tuple[str, dict[str, Any]]:
    """Reads a column as ``--column`` gives it; its bounds are checked with the schema.

    Raises:
      ConfigError: it has no name, no known type, or not what belongs to the type.

    >>> parse_column("age=number:18..100")
    ('age', {'type': 'number', 'bounds': [18, 100]})
    >>> parse_column("ill=binary:1,2,yes/0")
    ('ill', {'type': 'binary', 'true': [1, 2, 'yes'], 'false': [0]})
    """
    name, equals, rest = text.partition("=")
    kind, colon, detail = rest.strip().partition(":")
    name, kind = name.strip(), kind.strip()
    if not equals or not name:
        raise errors.ConfigError(f"--column is {text!r}, expected NAME=TYPE", _SPELLINGS)
    if kind not in _TYPES:
        raise errors.ConfigError(
            f"--column {name}: the type is {kind!r}, expected one of {', '.join(_TYPES)}",
            f"{errors.did_you_mean(kind, _TYPES)}; {_SPELLINGS}",
        )
    return name, {"type": kind} | (_detail(name, kind, detail) if colon else {})


def cells_of(table: Mapping[str, Any]) -> frozenset[str]:
    """Returns the cells that a record may have in a column, as far as they are listed: no names of columns.

    >>> sorted(cells_of({"type": "binary", "true": ["m", 1], "false": ["f"]}))
    ['1', 'f', 'm']
    """
    listed = (table.get(key, []) for key in ("true", "false", "levels"))
    return frozenset(str(cell) for cells in listed for cell in cells)


def _detail(name: str, kind: str, text: str) -> dict[str, Any]:
    if kind == "level":
        return {"levels": [item.strip() for item in text.split(",") if item.strip()]}
    parts = [item.strip() for item in text.split("/" if kind == "binary" else "..")]
    if kind == "binary" and len(parts) == 2 and all(parts):
        true, false = ([_cell(cell.strip()) for cell in part.split(",")] for part in parts)
        return {"true": true, "false": false}
    if kind != "binary" and len(parts) == 2:
        try:
            return {"bounds": [_number(part) for part in parts]}
        except ValueError:
            pass
    expected = "TRUE/FALSE, cells that mean it" if kind == "binary" else "LOW..HIGH, two numbers"
    raise errors.ConfigError(
        f"--column {name}: after {kind}: stands {text!r}, expected {expected}", _SPELLINGS
    )


def parse_setting(text: str) -> tuple[str, Any]:
    """Reads a key of ``[model]`` as ``--setting`` gives it: a number, or for ``cuts`` a list of them.

    Raises:
      ConfigError: it is not KEY=NUMBER.

    >>> parse_setting("cuts=30,90"), parse_setting("dispersion=0.5")
    (('cuts', [30, 90]), ('dispersion', 0.5))
    """
    key, equals, rest = text.partition("=")
    key = key.strip()
    try:
        numbers = [_number(item) for item in rest.split(",")]
    except ValueError:
        numbers = []
    if not equals or not key or not numbers:
        raise errors.ConfigError(
            f"--setting is {text!r}, expected KEY=NUMBER, or several numbers between commas",
            "write, for example, --setting cuts=30,90,365",
        )
    return key, numbers if key == "cuts" or len(numbers) > 1 else numbers[0]


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _cell(text: str) -> int | str:
    return int(text) if re.fullmatch(r"-?\d{1,9}", text) else text


def default_delta(max_records: int | None) -> float:
    """Returns a δ far below 1 / records: a power of ten at most a hundredth of it, and at most 1e-5.

    >>> default_delta(400), default_delta(2_000_000), default_delta(None)
    (1e-05, 1e-09, 1e-05)
    """
    most, delta = max_records or 1, 1e-5
    while delta * most > 1e-2:
        delta = float(f"{delta / 10:.0e}")
    return delta


def named(columns: Iterable[str]) -> dict[str, str]:
    """Gives each column of a file a name that can stand in a formula: name → what the file says.

    >>> named(["age", "Blood pressure", "2nd visit"])
    {'age': 'age', 'Blood_pressure': 'Blood pressure', 'x_2nd_visit': '2nd visit'}
    """
    found: dict[str, str] = {}
    for column in columns:
        plain = re.sub(r"[^\w.]+", "_", column).strip("_") or "x"
        base = plain if _WORD.fullmatch(plain) else f"x_{plain}"
        name, count = base, 1
        while name in found:
            count += 1
            name = f"{base}_{count}"
        found[name] = column
    return found
