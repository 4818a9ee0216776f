"""Lists the posterior by coordinate, as plain values for tables and JSON; needs no JAX.

What is fitted does not depend on the unit of the file, and what is told is in it: see ``in_file_units``.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedvi.data.formula import Design, Part
from fedvi.data.schema import Binary, Level, Number, Schema, parse_schema
from fedvi.data.unit_words import counted, step_of
from fedvi.report.contents import UNRECORDED, Z95
from fedvi.report.labels import level_label
from fedvi.study.config import Study
from fedvi.study.spec import regressions
from fedvi.typing import LOG_SCALE, Eta

__all__ = [
    "MOST",
    "Reading",
    "Told",
    "coefficients",
    "comparisons",
    "design_of",
    "in_file_units",
    "known_noise",
    "of_moments",
    "outcome_scales",
    "outcome_unit",
    "outcome_words",
    "prior_words",
    "readings",
    "units_of",
]

MOST = 10_000
"""The most coordinates that are listed; a posterior's file has all of them in its arrays."""

_BASELINE = "baseline ("


class Told(NamedTuple):
    """A map from θ to what is told, in the units of the file: shift + factor · θ, by coordinate.

    Attributes:
      shift, factor: float64 [D].
    """

    shift: np.ndarray
    factor: np.ndarray

    def moments(self, mean: Any, sd: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns mean and sd as they are told, of the first coordinates of θ, [M] each."""
        shift, factor = self.shift[: len(mean)], self.factor[: len(mean)]
        return shift + factor * mean, factor * sd

    def draws(self, theta: np.ndarray) -> np.ndarray:
        """Returns draws of the first coordinates of θ, [S, M], as they are told."""
        return self.shift[: theta.shape[1]] + self.factor[: theta.shape[1]] * theta


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

    All are in the units of the file, see ``in_file_units``.

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


def in_file_units(study: Study, names: Sequence[str]) -> Told:
    """Returns how coordinates of θ are told in the units of the file; needs no data.

    - A linear model is fitted to (y − center) / scale: all is told times scale, the constant plus center,
      and the log of how far sites differ plus log scale.
    - Log hazards are fitted per follow-up, and told per unit of time: less log follow-up.
    - The constant beside an exposure is fitted per largest exposure, and told per unit of it, likewise.

    Everything else is told as it is. So is all of a NumPyro function, whose y is as the formula makes it,
    and whose θ has a meaning that only its author knows.

    Args:
      study: its formula and schema define the map.
      names: of the coordinates of θ.

    Raises:
      ConfigError: the formula or the schema is invalid.
    """
    shift, factor = np.zeros(len(names)), np.ones(len(names))
    if study.formula is None or regressions.is_function(study):
        return Told(shift, factor)
    schema, design = design_of(study)
    constant = {design.names[index] for index in design.constant}
    start = -math.log(design.offset.bound) if design.offset is not None else 0.0
    latest = design.response.latest
    for index, (name, column) in enumerate(
        zip(names, _outcomes(study, design, names), strict=True)
    ):
        center, scale = _scaled(column, schema)
        if name.startswith(LOG_SCALE):
            shift[index] = math.log(scale)
        elif name.startswith(_BASELINE) and latest is not None:
            shift[index] = -math.log(latest)
        else:
            factor[index] = scale
            if _of_outcome(name, design)[1] in constant:
                shift[index] = center + scale * start
    return Told(shift, factor)


def units_of(study: Study, names: Sequence[str]) -> tuple[str, ...]:
    """Returns the unit in which each coordinate of θ is told, such as "mmHg per 10 years from 50".

    It is empty where nothing was scaled and the study names no unit. Needs no data.

    Raises:
      ConfigError: the formula or the schema is invalid.
    """
    if study.formula is None or regressions.is_function(study):
        return ("",) * len(names)
    schema, design = design_of(study)
    constant = {design.names[index] for index in design.constant}
    found, exposure = [], design.offset
    for name, words, column in zip(
        names, design.units_of(names), _outcomes(study, design, names), strict=True
    ):
        if name.startswith(_BASELINE) and design.response.latest is not None:
            words = f"per {counted(schema, design.response.columns[0])}"
        elif (
            exposure is not None and exposure.logarithm and _of_outcome(name, design)[1] in constant
        ):
            words = f"per {counted(schema, exposure.column)}"
        if column and _is_in_units(schema[column]):
            before = counted(schema, column, many=True)
            center = _scaled(column, schema)[0]
            # Without a constant, the center is what a record has whose columns are all 0.
            if center and not constant and not name.startswith(LOG_SCALE):
                before += f" from {center:.12g}"
            words = f"{before} {words}".strip()
        found.append(words)
    return tuple(found)


def outcome_unit(study: Study) -> str:
    """Returns the unit of differences in a linear model's outcome, such as "mmHg".

    It is empty if there is none, or there are several outcomes.

    Raises:
      ConfigError: the formula or the schema is invalid.
    """
    if study.formula is None or len(design_of(study)[1].response.columns) > 1:
        return ""
    return units_of(study, (LOG_SCALE,))[0]


def outcome_scales(design: Design, schema: Schema) -> tuple[float, ...]:
    """Returns how many of the file's units 1 in a linear model is, for each outcome."""
    return tuple(_scaled(name, schema)[1] for name in design.response.columns)


def prior_words(study: Study) -> str:
    """Returns the prior's sd of a coefficient, for one unit of its column, in the unit of the outcome.

    Of several linear outcomes there is one for each. Without a prior in the study it is empty.

    Raises:
      ConfigError: the formula or the schema is invalid.
    """
    if study.prior is None:
        return ""
    scale, of = study.prior.scale, regressions.of(study)
    if study.formula is None or of is None or not of.conjugate:
        return f"{scale:g}"
    schema, design = design_of(study)
    found = [
        f"{scale * unit:.4g} {counted(schema, name, many=True)}"
        if _is_in_units(schema[name])
        else f"{scale:g}"
        for name, unit in zip(design.response.columns, outcome_scales(design, schema), strict=True)
    ]
    return ", ".join(dict.fromkeys(found))


def _outcomes(study: Study, design: Design, names: Sequence[str]) -> list[str]:
    """Returns the column in whose unit each coordinate is told: an outcome of a linear model, or ""."""
    of = regressions.of(study)
    if of is None or not of.conjugate:
        return [""] * len(names)
    return [_of_outcome(name, design)[0] for name in names]


def _of_outcome(name: str, design: Design) -> tuple[str, str]:
    """Returns the outcome and the coefficient of a name, such as "sbp: age" of several outcomes."""
    columns = design.response.columns
    if len(columns) > 1:
        for column in columns:
            if name.startswith(f"{column}: ") and name[len(column) + 2 :] in design.names:
                return column, name[len(column) + 2 :]
    return columns[0], name


def _scaled(name: str, schema: Schema) -> tuple[float, float]:
    """Returns center and scale of a number; 0 and 1 of any other column, and of none."""
    column = schema.get(name)
    return (column.center, column.scale) if isinstance(column, Number) else (0.0, 1.0)


def _is_in_units(column: Any) -> bool:
    """Whether a number has a unit to tell: it was scaled, or the study names its unit."""
    return isinstance(column, Number) and bool(
        column.unit or column.scale != 1.0 or column.center != 0.0
    )


def of_moments(
    mean: Any,
    sd: Any,
    names: Sequence[str],
    units: Sequence[str],
    study: Study,
    beside: tuple[Any, Any] | None = None,
) -> list[dict[str, Any]]:
    """Does the same as ``coefficients``, from mean and sd of each coordinate of θ, as stored in a file.

    Args:
      mean, sd: arrays by coordinate of θ.
      names, units, study: see ``coefficients``.
      beside: mean and sd of another fit, to show beside it.
    """
    ratio, names, units = regressions.ratio(study), names[:MOST], units[:MOST]
    read, known = readings(study, names), in_file_units(study, names)
    mean, sd = known.moments(mean[:MOST], sd[:MOST])
    beside = beside and known.moments(beside[0][:MOST], beside[1][:MOST])
    rows = []
    for index, (name, unit) in enumerate(zip(names, units, strict=True)):
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
    return schema, regressions.design(study, schema)


def known_noise(study: Study) -> tuple[float, ...]:
    """Returns the sds around outcomes that a study takes for known, each in units of its outcome's scale.

    Returns:
      One for each outcome; none if the run learns it, or the model has no such number.
    """
    given = study.model.arguments.get("noise_scale")
    if given == "learn" or study.formula is None or not regressions.states_noise(study):
        return ()
    schema, design = design_of(study)
    scales = outcome_scales(design, schema)
    noises = given if isinstance(given, list) else [given] * len(scales)
    return tuple(
        noise / scale if isinstance(noise, int | float) else 1.0
        for noise, scale in zip(noises, scales, strict=False)
    )


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
    return tuple(_reading(name, known, design.response.columns[0], schema) for name in names)


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


def _reading(name: str, known: dict[str, Reading], outcome: str, schema: Schema) -> Reading:
    if name.startswith(_BASELINE):
        return Reading(False, f"the log of the hazard per {counted(schema, outcome)}")
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
