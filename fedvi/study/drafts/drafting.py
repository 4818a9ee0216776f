"""Drafts the study that `fedvi init` writes, with a reason beside each line.

Needs no JAX and reads no record. A value that nobody has stated is written so that every reader of a study
refuses it: a draft cannot run by accident. A value that was read from a file's records is marked.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedvi import errors, models, plugins
from fedvi.data.cells import TRUTHS
from fedvi.data.schema import LONGEST_WORD, as_number, is_printable
from fedvi.data.written import NAME, toml
from fedvi.data.written import key as written_key
from fedvi.models.outcomes.accepted import ACCEPTED, Accepted
from fedvi.report.contents import Z95
from fedvi.study import factories
from fedvi.study.kinds import BUILT_IN
from fedvi.study.sections import ROWS_PER_UNIT
from fedvi.study.spec import regressions
from fedvi.updates.abilities import SOLVERS, Ability

__all__ = [
    "PRIOR_SCALE",
    "Answers",
    "Draft",
    "default_delta",
    "draft",
    "is_own",
    "model_of",
    "offered",
    "outcomes",
    "prior_in_words",
    "response_types",
    "variables",
]


_THIN = (
    "# It has all columns of the file: take out what is no covariate, such as the name or number of a",
    "# patient or of a site, here and, with its table, below.",
)
_COMMENT_COLUMN = 34
# What the number of coefficients follows from.
_COEFFICIENTS = ("formula", "type", "levels", "missing")
_FOLLOWING = ("solver.clip_norm", "schedule.rounds")
_READ_FROM = "read from {}"
_MARKED = (
    "# What is marked `{}` follows from the records of that file: it is data, and no",
    "# privacy loss is charged for it. Replace it by what a protocol or a code book says.",
)
_LEVELS_READ = (
    "# {} {}: they are data, and no privacy loss is charged for them.",
    "# Replace them by those of the code book.",
)
PRIOR_SCALE = 2.5
"""The prior's sd that a draft has: for half the width of bounds, or about an sd, it leaves nearly all to
the records."""


@dataclasses.dataclass(frozen=True)
class Answers:
    """A person's choices for a study.

    Attributes:
      name: of the study.
      kind: of the model, one of ``ACCEPTED`` or a plug-in: an outcome of the user's own.
      formula: such as "disease ~ age + sex".
      clients: names of the sites.
      columns: name in the formula → table of ``[data.schema.NAME]``; keys missing in a table must still
        be stated.
      private: whether anything is promised; if not, the privacy fields are not used.
      epsilon, delta, relation, unit: the promise.
      disjoint: whether it is declared that no unit is at two sites.
      unit_column: the column with the patient, if the unit is a patient.
      max_rows_per_unit: the most rows of one patient that are used.
      max_records: the largest number of units of any client; None: must still be stated.
      solver: None for the recommended one.
      clip_norm: of the private solver.
      few_rounds: whether noise is so large beside all records that few rounds do better.
      prior_scale: the prior's sd of a coefficient, for one unit of its column.
      settings: keys of ``[model]`` that differ from their defaults.
      separator: of the sites' files.
      file_columns: names of all their columns, if their first lines do not have them.
      all_columns: whether the formula has all columns of a file, which a person must reduce.
      files: site → its file, relative to the study file; by default named after the site.
      of_file: paths of keys whose values follow from the records of a file, not from a person: ``levels``
        stands for ``codes``, too, and ``true`` for ``false`` and ``words``.
      source: the name of that file, for comments.
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
    disjoint: bool = False
    unit_column: str | None = None
    max_rows_per_unit: int = ROWS_PER_UNIT
    max_records: int | None = None
    solver: str | None = None
    clip_norm: float | str = 1.0
    few_rounds: bool = False
    prior_scale: float = PRIOR_SCALE
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    separator: str = ","
    file_columns: tuple[str, ...] = ()
    files: str = "{}.csv"
    all_columns: bool = False
    of_file: frozenset[str] = frozenset()
    source: str = "the file"

    @property
    def of(self) -> Accepted:
        """The responses that the model accepts.

        Raises:
          ConfigError: there is no such model.
        """
        return model_of(self.kind)

    @property
    def chosen_solver(self) -> str:
        """The named solver, or else the first one that supports the model."""
        if self.solver is not None:
            return self.solver
        return next(kind for kind in offered(self.private) if _takes(SOLVERS[kind], self.of))

    @property
    def rounds(self) -> int:
        """The most answers of each site."""
        able = SOLVERS[self.chosen_solver]
        return able.few_rounds if self.few_rounds else able.rounds

    @property
    def read(self) -> tuple[str, ...]:
        """Paths of the keys in the draft that follow from a file's records, in its order."""
        columns = [
            path
            for name in variables(self.formula)
            for key in ("type", "levels", "true", "missing", "missing_values")
            if (path := f"data.schema.{name}.{key}") in self.of_file
        ]
        found = [path for path in ("model.formula",) if path in self.of_file]
        # `fedvi init` computes these from the number of coefficients.
        if self.private and any(path.endswith(_COEFFICIENTS) for path in (*found, *columns)):
            found += ["solver.clip_norm"] * (self.clip_norm != "auto") + ["schedule.rounds"]
        if self.private:
            keys = ("privacy.unit", *(["data.unit_column"] * (self.unit == "patient")))
            found += [path for path in keys if path in self.of_file]
        return (*found, *columns)

    @property
    def mark(self) -> str:
        """What stands beside each of these keys."""
        return _READ_FROM.format(self.source)

    def why(self, path: str, why: str = "", more: str = "") -> str:
        """Returns a key's reason, with the mark if its value follows from a file's records."""
        if path not in self.read:
            return why
        before = "follows from what is " if path in _FOLLOWING else ""
        return "; ".join(filter(None, (why, before + self.mark + more)))


def model_of(kind: str) -> Accepted:
    """Returns the responses that a model accepts: a built-in one, or that of a plug-in.

    Raises:
      ConfigError: there is no such model, or it does not define its responses.
    """
    if plugins.is_address(kind):
        plugins.refuse_address("--kind", kind)
    parts = _allowed()
    found = regressions.accepted(kind, parts)
    if found is not None:
        return found
    if is_own(kind) and parts.knows("model", kind):
        factories.find("model", kind, models, parts=parts)  # raises if it is not allowed
        raise errors.ConfigError(
            f"{kind!r} does not say what it is of, expected a class with `accepts`",
            "an outcome of your own says so, see docs/add/model.md; of a NumPyro model, or of whole "
            "records, write study.toml by hand",
        )
    raise errors.ConfigError(
        f"{kind!r} is no kind of model, expected a built-in one or an outcome of your own",
        errors.did_you_mean(kind, ACCEPTED) + "; one of your own is a plug-in: docs/add/plug-in.md",
    )


def is_own(kind: str) -> bool:
    """Whether a kind of model is no built-in one."""
    return kind not in BUILT_IN["model"]


def _allowed() -> plugins.OutsideCode:
    return plugins.allowed() or plugins.NOTHING


def offered(private: bool) -> tuple[str, ...]:
    """Returns the solvers that need no other section, private or not, the preferred one first."""
    return tuple(kind for kind, each in SOLVERS.items() if each.rounds and each.private == private)


def _takes(solver: Ability, of: Accepted) -> bool:
    return (of.conjugate or not solver.conjugate) and (of.single or not solver.single)


class Draft(NamedTuple):
    """A drafted file.

    Attributes:
      text: of ``study.toml``.
      open: paths of keys that a person must still state; a text with such keys is refused.
      read: paths of keys that are marked, since their values follow from a file's records.
    """

    text: str
    open: tuple[str, ...]
    read: tuple[str, ...] = ()


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
        *(line.format(answers.mark) for line in (_MARKED if answers.read else ())),
        "",
        "[study]",
        _line("name", answers.name),
        _line("seed", 0, "public: initialisation and the order of arrival; never noise"),
        "",
        "[model]",
        _line("kind", answers.kind, f"of {answers.of.words or answers.of.needed}"),
        _line(
            "formula",
            answers.formula,
            answers.why("model.formula", more=", and so which columns are below"),
        ),
        *(_THIN if answers.all_columns else ()),
        *_settings(answers, missing),
        "",
        *_prior(answers),
        "",
        *_solver(answers),
        "",
        "[schedule]",
        _line("kind", "synchronous", "all sites at once, folded together"),
        *_rounds(answers),
        _line(
            "deadline_seconds", 86_400, "a day: a site that takes longer is skipped for that round"
        ),
        f"# quorum = {(len(answers.clients) + 1) // 2:<22} # a round waits for so many; left out, for half",
        "",
        *_privacy(answers),
        "",
        *_data(answers, missing),
    ]
    for name in variables(answers.formula):
        lines += ["", *_column(answers, name, missing)]
    lines += ["", "# The sites. `data` is read by `fedvi simulate`; `fedvi client` has --data."]
    for client in answers.clients:
        lines += [
            "[[clients]]",
            _line("name", client),
            _line("data", answers.files.format(client)),
            "",
        ]
    return Draft("\n".join(lines).rstrip() + "\n", tuple(missing), answers.read)


def _settings(answers: Answers, missing: list[str]) -> list[str]:
    known, given = answers.of.settings, answers.settings
    own: tuple[str, ...] = ()
    if is_own(answers.kind):
        found = factories.find("model", answers.kind, models, parts=_allowed())
        own = factories.parameters(found)
    for key in given:
        if key not in (*known, *own):
            raise errors.ConfigError(
                f"--setting {key} is no setting of kind {answers.kind!r}",
                errors.did_you_mean(key, [*known, *own]),
            )
    lines = []
    for key, (value, why) in known.items():
        if key == "noise_scale" and key not in given:
            value = _noise(value, answers)
            if not value or (isinstance(value, list) and not all(value)):
                missing.append("model.noise_scale")
                why = f"STATE ME: {why}"
        lines.append(_line(key, given.get(key, value), why))
    return lines + [_line(key, given[key]) for key in given if key not in known]


def _noise(part: float, answers: Answers) -> Any:
    """Returns a noise that is that part of what 1 is of each outcome; 0 where bounds are not stated yet."""
    found = [float(f"{part * each.scale:.4g}") for each in _outcomes(answers)]
    return found[0] if len(set(found)) == 1 else found


class Outcome(NamedTuple):
    """A numeric outcome whose coefficients are differences.

    Attributes:
      name: of its column.
      scale: what 1 is of it, in the unit of the file; 0.0 if its bounds are not stated yet.
      unit: of the file; may be empty.
      by_bounds: whether ``scale`` is half the width of its bounds.
    """

    name: str
    scale: float
    unit: str
    by_bounds: bool


def outcomes(
    kind: str, formula: str, columns: Mapping[str, Mapping[str, Any]]
) -> tuple[Outcome, ...]:
    """Returns the outcomes of a linear model, given what is stated of its columns; empty for any other."""
    if not model_of(kind).conjugate:
        return ()
    found = []
    for name, usual in response_types(kind, formula).items():
        table = columns.get(name, {})
        low, high = table.get("bounds") or (0.0, 0.0)
        whole = table.get("type", usual) != "number"
        scale = 1.0 if whole else float(table.get("scale", (high - low) / 2.0))
        by_bounds = "scale" not in table and not whole
        found.append(Outcome(name, scale, table.get("unit", ""), by_bounds))
    return tuple(found)


def _outcomes(answers: Answers) -> tuple[Outcome, ...]:
    return outcomes(answers.kind, answers.formula, answers.columns)


def _prior(answers: Answers) -> list[str]:
    scale, ratio = answers.prior_scale, answers.of.ratio
    said = prior_in_words(scale, ratio, _outcomes(answers))
    why = f"prior sd of a coefficient, for one unit of its column: {said}"
    lines = ["[prior]", _line("scale", scale, why)]
    if scale < PRIOR_SCALE and _has_intercept(answers):
        why = "of the intercept: how common the outcome is, is another question"
        lines.append(_line("intercept_scale", PRIOR_SCALE, why))
    return lines


def _has_intercept(answers: Answers) -> bool:
    """Whether a formula has an intercept: `0 +` leaves it out, and a baseline hazard replaces it."""
    if "survival" in answers.of.responses:
        return False
    right = re.sub(r"\"[^\"]*\"|'[^']*'", "''", answers.formula).partition("~")[2]
    while (outer := re.sub(r"\([^()]*\)", "", right)) != right:
        right = outer
    summands = re.findall(r"([-+]?)\s*([^-+]+)", right)
    return not any(term.strip() == ("1" if sign == "-" else "0") for sign, term in summands)


def prior_in_words(scale: float, ratio: str, outcomes: Sequence[Outcome] = ()) -> str:
    """Says what a prior's sd means for one unit of a column, such as "odds ratios of 0.14 to 7.1".

    Args:
      scale: the prior's sd.
      ratio: the kind of ratio that exp(coefficient) is; "" for a difference.
      outcomes: whose differences they are, so that they can be said in their units.

    >>> prior_in_words(1.0, "odds"), prior_in_words(2.5, "")
    ('odds ratios of 0.14 to 7.1', 'differences of -4.9 to 4.9')
    >>> prior_in_words(2.5, "", [Outcome("sbp", 80.0, "mmHg", True)])
    '2.5 half-widths of the bounds of sbp = 200 mmHg'
    """
    most = Z95 * scale
    if outcomes:
        said = []
        for name, one, unit, by_bounds in outcomes:
            what = (
                f"half-widths of the bounds of {name}" if by_bounds else f"times {one:g} of {name}"
            )
            same = f" = {_short(scale * one)} {unit}".rstrip() if one else ""
            said.append(f"{scale:g} {what}{same}")
        return ", ".join(said)
    if not ratio:
        return f"differences of {-most:.2g} to {most:.2g}"
    return f"{ratio} ratios of {math.exp(-most):.2g} to {_short(math.exp(min(most, 50.0)))}"


def _short(value: float) -> str:
    return f"{value:.2g}" if value < 100.0 else f"{float(f'{value:.3g}'):,.0f}"


def _solver(answers: Answers) -> list[str]:
    kind, private = answers.chosen_solver, answers.private
    if kind not in offered(private):
        raise errors.ConfigError(
            f"--solver is {kind!r}, expected one of {', '.join(offered(private))} "
            + ("in a private study" if private else "in a study that promises nothing"),
            "docs/modes.md says which suits what; the others need more than init asks for, and are "
            "written into study.toml by hand",
        )
    solver = SOLVERS[kind]
    lines = ["[solver]", _line("kind", kind, solver.words)]
    if not private:
        return lines
    how = "what suits" if answers.clip_norm != "auto" else "how it is found"
    longest = f"longest contribution of one {answers.unit}: `fedvi check` says {how}"
    return [
        *lines,
        _line("clip_norm", answers.clip_norm, answers.why("solver.clip_norm", longest)),
        *(_line(key, value, why) for key, (value, why) in solver.settings.items()),
        _line("sampler", "full", "every record in every sum"),
        "# noise_multiplier is left out: it is calibrated to [privacy]",
    ]


def _rounds(answers: Answers) -> list[str]:
    why = answers.why("schedule.rounds", "answers of each site, at most")
    lines = [_line("rounds", answers.rounds, why)]
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
        _line(
            "unit", answers.unit, answers.why("privacy.unit", f"protects {protected[answers.unit]}")
        ),
        _line("relation", answers.relation, meant[answers.relation]),
        _line(
            "disjoint",
            answers.disjoint,
            f"true: declared that no {answers.unit} stands at two sites",
        ),
    ]


def _data(answers: Answers, missing: list[str]) -> list[str]:
    lines = ["[data]", _line("separator", answers.separator)]
    if answers.file_columns:
        lines.append(f"columns = {toml(answers.file_columns)}")
    if answers.private or answers.max_records is not None:
        units = f"{answers.unit}s" if answers.private else "records"
        why = f"public upper bound on the {units} of any site"
        if answers.max_records is None:
            missing.append("data.max_records")
            why = f"STATE ME: a {why}"
        lines.append(_line("max_records", answers.max_records or 0, why))
    if answers.private and answers.unit == "patient":
        if answers.unit_column is None:
            missing.append("data.unit_column")
        else:
            why = answers.why("data.unit_column", "whose a row is; never leaves")
            lines.append(_line("unit_column", answers.unit_column, why))
        why = "rows of one patient that are used, at most: the first in the file"
        # A study may name no such bound before it names the column.
        key = ("# " if answers.unit_column is None else "") + "max_rows_per_unit"
        lines.append(_line(key, answers.max_rows_per_unit, why))
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


def _column(answers: Answers, name: str, missing: list[str]) -> list[str]:
    table, path = answers.columns.get(name, {}), f"data.schema.{name}"
    lines = [f"[data.schema.{written_key(name)}]"]
    if "column" in table:
        lines.append(_line("column", table["column"], "its name in the files"))
    kind = table.get("type", "")
    if not kind:
        missing.append(f"{path}.type")
        return [
            *lines,
            _line("type", "", 'STATE ME: "number", "count", "level" or "binary"'),
            "# bounds = [0, 1]                 # of a number or count: lowest and highest, in its unit",
            '# levels = ["a", "b"]             # of a level: the first is the reference',
            "# true = [1]                      # of a binary column: cells that mean true,",
            "# false = [0]                     # and false",
        ]
    why = answers.why(f"{path}.type", more=", and so which keys are below")
    lines.append(_line("type", kind, why))
    for key, what in (("levels", "Levels"), ("true", "Cells")):
        if f"{path}.{key}" in answers.read:
            lines += [line.format(what, answers.mark) for line in _LEVELS_READ]
    if kind in ("number", "count"):
        if "bounds" in table:
            lines.append(
                _line("bounds", table["bounds"], "lowest and highest, in the unit of the file")
            )
            if name in exposures(answers.formula):
                why = "an exposure that is clipped would make its rate wrong"
                lines.append(_line("outside", "drop", why))
        else:
            missing.append(f"{path}.bounds")
            lines.append(_line("bounds", [], "STATE ME: lowest and highest, not from the data"))
        lines += _unit(table)
        if "unit" not in table:
            lines.append(_line("# unit", "years", "what it is counted in, for tables and reports"))
    elif kind == "level":
        if "levels" in table:
            why = answers.why(f"{path}.levels", "the first is the reference")
            lines.append(_line("levels", table["levels"], why))
            if "codes" in table:
                why = answers.why(f"{path}.levels", "cells of the files, and what they mean")
                lines.append(_line("codes", table["codes"], why))
        else:
            missing.append(f"{path}.levels")
            lines.append(_line("levels", [], "STATE ME: all that may occur, the reference first"))
    else:
        lines += [
            _line(
                "true", table.get("true", [1]), answers.why(f"{path}.true", "cells that mean true")
            ),
            _line("false", table.get("false", [0]), answers.why(f"{path}.true")),
        ]
        if "words" not in table:
            said = _words(table)
            key = "words" if said else "# words"
            why = "what true and false mean, for reports"
            why = answers.why(f"{path}.true", why) if said else why
            lines.append(_line(key, said or ["yes", "no"], why))
    more = ("unit", "words", "missing", "missing_values")
    return lines + [
        _line(key, table[key], answers.why(f"{path}.{key}")) for key in more if key in table
    ]


def _words(table: Mapping[str, Any]) -> list[str]:
    """Returns words for true and false, of cells that are words; none of cells such as 1, 0, yes or no.

    >>> _words({"true": ["M", "m"], "false": ["f"]}), _words({"true": [2], "false": [1]})
    (['M', 'f'], [])
    """
    found = []
    for key in ("true", "false"):
        cells = {str(cell).casefold(): str(cell) for cell in reversed(table.get(key, ()))}
        found.append(" or ".join(cells[cell] for cell in reversed(cells)))
        if not cells or any(as_number(cell) is not None for cell in cells.values()):
            return []
    usual = tuple(text.casefold() for text in reversed(found)) in TRUTHS
    fit = all(len(text) <= LONGEST_WORD and all(map(is_printable, text)) for text in found)
    return found if fit and not usual and found[0] != found[1] else []


def _unit(table: Mapping[str, Any]) -> list[str]:
    """Writes what one unit of a number's coefficient is, if it was said."""
    if "scale" not in table:
        return []
    return [
        _line("center", table["center"], "the value that the intercept is for"),
        _line("scale", table["scale"], "the difference that the coefficient is for"),
    ]


def _line(key: str, value: Any, why: str = "") -> str:
    text = f"{key} = {toml(value)}"
    return f"{text:<{_COMMENT_COLUMN - 1}} # {why}" if why else text


def variables(formula: str) -> tuple[str, ...]:
    """Lists the columns in a formula, each once, the response first; quoted texts are ignored.

    >>> variables("Surv(time, event) ~ age + bs(iss, lower_bound=0) + age:sex")
    ('time', 'event', 'age', 'iss', 'sex')
    """
    text = re.sub(r"\"[^\"]*\"|'[^']*'", "''", formula)
    found = []
    for match in NAME.finditer(text):
        following = text[match.end() :].lstrip()
        preceding = text[: match.start()][-1:]
        # A function, an argument's name, a Python keyword, or the e of 1e5.
        if following[:1] in ("(", "=") or match[0] in ("True", "False") or preceding.isdigit():
            continue
        found.append(match[0])
    return tuple(dict.fromkeys(found))


def exposures(formula: str) -> tuple[str, ...]:
    """Lists the columns of a formula's offsets.

    >>> exposures("deaths ~ old + offset(log(pop))")
    ('pop',)
    """
    return tuple(
        name
        for term in re.findall(r"\boffset\s*\(([^()]*(?:\([^()]*\))?[^()]*)\)", formula)
        for name in variables(term)
    )


def response_types(kind: str, formula: str) -> dict[str, str]:
    """Returns the types that a model requires for the columns left of `~`.

    >>> response_types("survival", "Surv(time, event) ~ age")
    {'time': 'number', 'event': 'binary'}
    """
    types = model_of(kind).columns
    left = variables(formula.partition("~")[0])
    return {name: types[min(index, len(types) - 1)] for index, name in enumerate(left)}


def default_delta(max_records: int | None) -> float:
    """Returns a δ far below 1 / records: a power of ten at most a hundredth of it, and at most 1e-5.

    >>> default_delta(400), default_delta(2_000_000), default_delta(None)
    (1e-05, 1e-09, 1e-05)
    """
    most, delta = max_records or 1, 1e-5
    while delta * most > 1e-2:
        delta = float(f"{delta / 10:.0e}")
    return delta
