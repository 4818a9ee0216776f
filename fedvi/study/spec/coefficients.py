"""Lists the posterior by coordinate, as plain values for tables and JSON; needs no JAX."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fedvi.data.formula import Design, Part, parse_formula
from fedvi.data.schema import Binary, Level, Number, Schema, parse_schema
from fedvi.data.unit_words import step_of
from fedvi.report.contents import UNRECORDED, Z95
from fedvi.report.labels import level_label
from fedvi.study.config import Study
from fedvi.study.spec import regressions
from fedvi.typing import LOG_SCALE, Eta

__all__ = [
    "MOST",
    "Reading",
    "coefficients",
    "comparisons",
    "design_of",
    "of_moments",
    "outcome_words",
    "readings",
]

MOST = 10_000
"""The most coordinates that are listed; a posterior's file has all of them in its arrays."""

_BASELINE = "baseline ("


class Reading(NamedTuple):
    """How to interpret exp(coefficient).

    Attributes:
      is_ratio: whether it is a ratio; an intercept's is not, but the value that ratios refer to.
      note: a note beside it, or why there is none; empty for a plain ratio: one unit more of the
        covariate, all others held fixed.
    """

    is_ratio: bool = True
    note: str = ""


def coefficients(
    family: Any,
    posterior: Eta,
    names: Sequence[str],
    units: Sequence[str],
    study: Study,
    pooled: Eta | None = None,
) -> list[dict[str, Any]]:
    """Lists the posterior of the first ``MOST`` coordinates of θ: mean, sd, 95 % interval, ratio, pooled.

    Args:
      family: of q.
      posterior: η of a proper q.
      names, units: of the coordinates of θ, which for a NumPyro model are the unconstrained ones.
      study: its model determines the kind of ratio that exp(coefficient) is, such as "odds". There are
        then "odds_ratio", "odds_lower", "odds_upper", None if it is not a ratio, and "odds_note", see
        ``readings``. The spread of sites, log τ, also has "scale", "scale_lower" and "scale_upper", the
        median and the 95 % interval of τ.
      pooled: η of another fit, to show beside it.
    """
    mean, sd = family.moments(posterior)
    beside = None if pooled is None else family.moments(pooled)
    return of_moments(mean, sd, names, units, study, beside)


def of_moments(
    mean: Any,
    sd: Any,
    names: Sequence[str],
    units: Sequence[str],
    study: Study,
    beside: tuple[Any, Any] | None = None,
) -> list[dict[str, Any]]:
    """Does the same as ``coefficients``, from mean and sd of each coordinate, as stored in a file.

    Args:
      mean, sd: arrays by coordinate of θ.
      names, units, study: see ``coefficients``.
      beside: mean and sd of another fit, to show beside it.
    """
    ratio = regressions.ratio(study)
    read = readings(study, names[:MOST])
    rows = []
    for index, (name, unit) in enumerate(zip(names[:MOST], units[:MOST], strict=True)):
        low, high = mean[index] - Z95 * sd[index], mean[index] + Z95 * sd[index]
        row = {
            "name": name,
            "unit": unit,
            "mean": float(mean[index]),
            "sd": float(sd[index]),
            "lower": float(low),
            "upper": float(high),
        }
        if ratio:
            row |= {
                f"{ratio}_{what}": _exp(value) if read[index].is_ratio else None
                for what, value in (("ratio", mean[index]), ("lower", low), ("upper", high))
            }
            row[f"{ratio}_note"] = read[index].note
        if name.startswith(LOG_SCALE):
            row |= {
                what: _exp(value)
                for what, value in (
                    ("scale", mean[index]),
                    ("scale_lower", low),
                    ("scale_upper", high),
                )
            }
        if beside is not None:
            row |= {"pooled_mean": float(beside[0][index]), "pooled_sd": float(beside[1][index])}
        rows.append(row)
    return rows


def design_of(study: Study) -> tuple[Schema, Design]:
    """Reads the schema and the formula of a study; needs no data.

    Raises:
      ConfigError: the formula or the schema is invalid.
    """
    schema = parse_schema(study.data.columns_schema, private=study.privacy.private)
    return schema, parse_formula(str(study.formula), schema)


def readings(study: Study, names: Sequence[str]) -> tuple[Reading, ...]:
    """Returns how to interpret each coefficient's exponential; needs no data.

    Some are not ratios; the note gives the reason: one of several columns of a function, such as a spline,
    or one of a column that is also in another function, since it cannot change alone; a baseline hazard;
    and log τ. An interaction is a ratio of ratios. A coefficient that is also part of an interaction is a
    ratio where the interaction's other covariates are 0, or at their reference levels.

    Args:
      study: its formula and schema define what each coefficient multiplies.
      names: of coefficients, possibly after a class, as "class: coefficient".

    Raises:
      ConfigError: the formula or the schema is invalid.
    """
    if not regressions.ratio(study) or study.formula is None:
        return (Reading(),) * len(names)
    schema, design = design_of(study)
    known = dict(zip(design.names, _of_design(design, schema), strict=True))
    return tuple(_reading(name, known, design.response.columns[0]) for name in names)


def comparisons(study: Study, names: Sequence[str]) -> tuple[str, ...]:
    """Returns the comparison that each coefficient makes, such as "10 more"; needs no data.

    Returns:
      One text per name; empty if a few words are not enough, as for an interaction or a curve.
    """
    if study.formula is None:
        return ("",) * len(names)
    schema, design = design_of(study)
    whole = {
        parts[0].column for parts in design.coefficients if len(parts) == 1 and parts[0].code == 0
    }
    known = {
        name: _compared(parts[0], schema, whole)
        for name, parts in zip(design.names, design.coefficients, strict=True)
        if len(parts) == 1
    }
    return tuple(known.get(_within(name, known), "") for name in names)


def outcome_words(study: Study) -> tuple[str, ...]:
    """Returns what a yes and a no of a study's outcome mean; empty if it does not say; needs no data.

    Yes and no themselves say nothing that the outcome's name does not.
    """
    schema, design = design_of(study)
    column = schema.get(design.response.text)
    words = column.words if isinstance(column, Binary) else None
    return () if words is None or words == ("yes", "no") else words


def _compared(part: Part, schema: Schema, whole: set[str]) -> str:
    """Describes one unit more of a part.

    Args:
      part: the only one of a coefficient.
      schema: of the columns.
      whole: columns with a coefficient for every level, and so without a reference level.
    """
    if part.transform is not None:
        return ""
    column = schema.get(part.column)
    if column is None:
        return UNRECORDED
    if isinstance(column, Level):
        return "" if part.column in whole else f"against {level_label(column.levels[0])}"
    if isinstance(column, Number):
        return f"{step_of(column)} more"
    if column.words is not None:
        return " against ".join(column.words)
    values = [*column.true, *column.false]
    if len(values) == 2 and not any(isinstance(value, bool | int | float) for value in values):
        return f"{values[0]} against {values[1]}"
    return "yes against no"


def _within(name: str, known: Mapping[str, Any]) -> str:
    """Returns the coefficient in a name that may begin with a class; empty if there is none.

    A level's name may look like the text after a class, so the longest match is the coefficient.
    """
    while name and name not in known:
        name = name.partition(": ")[2]
    return name


def _reading(name: str, known: dict[str, Reading], outcome: str) -> Reading:
    if name.startswith(_BASELINE):
        return Reading(False, f"the log of the hazard per unit of {outcome}")
    if name.startswith(LOG_SCALE):
        return Reading(False, "the log of how far sites differ")
    return known.get(_within(name, known), Reading())


def _of_design(design: Design, schema: Schema) -> Iterator[Reading]:
    """Yields how to interpret each coefficient of a design."""
    functions: dict[str, set[str]] = {}
    for parts in design.coefficients:
        for part in parts:
            functions.setdefault(part.column, set()).add(_function(part))
    products = [parts for parts in design.coefficients if len(parts) > 1]
    for parts in design.coefficients:
        curve = next((part for part in parts if _width(part) > 1), None)
        other = next((part for part in parts if len(functions[part.column]) > 1), None)
        if curve is not None:
            yield Reading(False, f"a part of the curve {_function(curve)}")
            continue
        if other is not None:
            rest = sorted(functions[other.column] - {_function(other)})
            yield Reading(False, f"{', '.join(rest)} changes with {_function(other)}")
            continue
        # A product's other factors must be 0 for the rest to be interpreted alone.
        around = [
            part
            for product in products
            if parts and set(product) > set(parts)
            for part in product
            if part not in parts
        ]
        fixed = dict.fromkeys(_zero(part, schema) for part in around)
        where = f"where {' and '.join(fixed)}" if fixed else ""
        said = ["a ratio of ratios"] if len(parts) > 1 else []
        yield Reading(True, ", ".join([*said, where] if where else said))


def _width(part: Part) -> int:
    return 1 if part.transform is None else len(part.transform.names)


def _function(part: Part) -> str:
    """Names a part's column, or its function, such as "bs(iss)"."""
    if part.transform is None:
        return part.column
    name = part.transform.names[part.index]
    return name.rpartition("[")[0] if _width(part) > 1 else name


def _zero(part: Part, schema: Schema) -> str:
    """Describes where a part is 0, such as "age is 50" or "cp is typical"."""
    column = schema.get(part.column)
    if part.transform is not None or column is None:
        return f"{_function(part)} is 0"
    if isinstance(column, Level):
        return f"{part.column} is {column.levels[0]}"
    if isinstance(column, Number):
        return f"{part.column} is {column.center:g}"
    return f"{part.column} is false"


def _exp(value: float) -> float:
    return math.exp(min(float(value), 700.0))
