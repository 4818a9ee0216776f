"""Builds a study's model, and lists the columns that it reads; reads no data."""

import inspect
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedvi import data, errors, models
from fedvi.data.expected import parse_expected
from fedvi.data.schema import Binary, Number, indicator_name
from fedvi.data.written import is_number
from fedvi.inference import solvers as solver_kinds
from fedvi.models.base import Model
from fedvi.models.glm import regression
from fedvi.models.outcomes.base import Response
from fedvi.models.site_effects import site_effects as with_site_effects
from fedvi.study import factories, site_effects
from fedvi.study.config import Study
from fedvi.study.sections import KindSection
from fedvi.study.spec import conjugates, regressions
from fedvi.study.spec.coefficients import outcome_scales
from fedvi.updates.conjugate import ConjugateModel

__all__ = [
    "by_bounds",
    "by_place",
    "check_columns",
    "check_ids",
    "check_noise",
    "columns_read",
    "declared_curvature",
    "divides",
    "model_of",
    "outcome_range",
    "schema_of",
    "several_ranges",
    "takes",
    "typical_norm",
    "vanishing",
]

# The mean square of a column that is scaled by its bounds to [-1, 1].
_WITHIN_BOUNDS = 0.35
# More products of columns would take a server minutes; using only some of them is valid.
_MOST_PRODUCTS = 1500


def schema_of(study: Study) -> Any:
    raw = study.data.columns_schema
    if not raw and conjugates.model_of(study) is not None:
        return {}  # its records are arrays with the model's layout
    return data.parse_schema(raw, private=study.privacy.private)


def takes(study: Study, argument: str) -> bool:
    """Whether the solver has an argument of this name, such as ``parts``."""
    return argument in factories.parameters(
        factories.find("solver", study.solver.kind, solver_kinds, parts=study.parts)
    )


def divides(study: Study) -> bool:
    """Whether the solver divides records into parts by their ids, which takes ``parts``."""
    return takes(study, "parts") and not by_place(study)


def by_place(study: Study) -> bool:
    return study.solver.arguments.get("by_place", False) is True


def check_ids(study: Study) -> None:
    """Refuses solvers that divide by ids without ids, and ids that no solver uses.

    Dividing by position gives no claim about adding or removing a record: all parts may change.
    """
    if by_place(study) and study.privacy.private and not study.privacy.records_public:
        raise errors.ConfigError(
            "solver.by_place is true without privacy.records_public, expected both: a record that is "
            "added or removed moves all that come after it",
            'name data.id_column instead; or promise relation = "substitute" alone, with '
            "records_public = true",
        )
    by_ids, column = divides(study), study.data.id_column
    if by_ids and study.data.identity_column is None:
        raise errors.ConfigError(
            f"data.id_column is missing, which solver.kind {study.solver.kind!r} needs: records are "
            "divided into parts by what tells them apart",
            "name a column whose cells stay with a record whatever other records are there; or, where "
            "the number of records is public and a substituted record keeps the row, set "
            "solver.by_place = true",
        )
    if column is not None and not by_ids:
        raise errors.ConfigError(
            f"data.id_column is {column!r}, which solver.kind {study.solver.kind!r} has no use for",
            "leave it out: only solvers that divide records into parts by ids read it",
        )


def check_columns(study: Study, schema: Any, columns: Sequence[str]) -> None:
    """Refuses `data.columns` that lack a name for a column that is read, and covariates that identify
    records or units."""
    declared, identity = study.data.columns, study.data.identity_column
    key = "unit_column" if study.data.id_column is None else "id_column"
    for name, column in schema.items():
        if column.column == identity:
            raise errors.ConfigError(
                f"data.{key} is {identity!r}, which [data.schema.{name}] declares too",
                "what says whose a row is may be no covariate; take it out of the formula and the schema",
            )
    if declared is None:
        return
    twice = [name for name in declared if declared.count(name) > 1]
    if twice:
        raise errors.ConfigError(
            f"data.columns: `{twice[0]}` is there twice, expected every column once",
            "give every column a name of its own, in the order of the file",
        )
    for name in columns:
        if name in schema and schema[name].column not in declared:
            wanted = schema[name].column
            raise errors.ConfigError(
                f"data.columns: no `{wanted}`, which the model needs",
                errors.did_you_mean(wanted, declared),
            )
    if identity is not None and identity not in declared:
        raise errors.ConfigError(
            f"data.columns: no `{identity}`, which data.{key} names",
            errors.did_you_mean(identity, declared),
        )


def model_of(study: Study, schema: Any) -> tuple[Any, Model | ConjugateModel]:
    conjugate = conjugates.model_of(study)
    if conjugate is not None:
        return None, conjugate
    arguments = dict(study.model.arguments)
    arguments.pop("formula", None)
    text = study.formula
    effects = site_effects.wanted(study)
    for key in () if effects is None else site_effects.KEYS:
        del arguments[key]
    design = None if text is None else regressions.design(study, schema)
    if design is not None:
        regressions.check_response(study.model.kind, design, study.parts)
    if study.model.kind in models.__all__ and study.model.kind not in models.NAMED:
        raise errors.ConfigError(
            f"model.kind is {study.model.kind!r}",
            "name your function, which is a plug-in: docs/add/plug-in.md",
        )
    if design is not None and "noise_scale" in arguments and regressions.states_noise(study):
        scales = outcome_scales(design, schema)
        arguments["noise_scale"] = _in_model_units(arguments["noise_scale"], scales)
    section = KindSection(kind=study.model.kind, **arguments)
    factory = factories.find("model", study.model.kind, models, parts=study.parts)
    if regressions.is_function(study):
        if isinstance(factory, type):
            raise errors.ConfigError(
                f"model.kind is {study.model.kind!r}, a class that does not say what it is of",
                "a regression's outcome says so with `accepts`, and as a plug-in it is one of "
                '`fedvi.outcomes`; a conjugate model goes with solver.kind = "vips"',
            )
        if study.prior is not None:
            raise errors.ConfigError(
                f"[prior] is given beside model.kind {study.model.kind!r}",
                "a NumPyro model states its own prior; remove the section [prior]",
            )
        if design is None:
            example = _example(columns_read(None, study, schema), schema)
        else:
            example = {"x": np.zeros(design.size), "y": np.zeros(design.outcome_shape)}

        known = factories.parameters(factory)
        for name in arguments:
            if name not in known:
                raise errors.ConfigError(
                    f"model.{name}: unknown key for kind {study.model.kind!r}",
                    errors.did_you_mean(name, [item for item in known if item not in example]),
                )

        def function(**records: Any) -> Any:
            return factory(**records, **arguments)

        return design, models.numpyro_model(function, example, name=study.model.kind)
    if design is None:
        raise errors.ConfigError(
            f"model.formula is missing for kind {study.model.kind!r}",
            'write e.g. formula = "disease ~ age + sex"',
        )
    outside = study.is_outside("model")
    prior = study.prior.model_dump(exclude_none=True) if study.prior else {}
    supplied = {
        "names": design.names,
        "levels": design.response.levels,
        "offset": design.offset is not None,
        "outcomes": design.response.columns,
        "follow_up": design.response.latest,
        "outcome_bound": outcome_range(design, schema)[0],
        **{f"prior_{k}" if k == "scale" else k: v for k, v in prior.items()},
    }
    if outside:
        response = factories.call("model", section, factory, {}, Response, outside=True)
        scale, wider = supplied.get("prior_scale", 2.5), supplied.get("intercept_scale")
        made: Model = regression(design.names, scale, wider, response, supplied["offset"])
    else:
        made = factories.call("model", section, factory, supplied)
    return design, made if effects is None else _with_effects(made, effects)


def _in_model_units(given: Any, scales: tuple[float, ...]) -> Any:
    """Divides a noise in the unit of the file, one for all outcomes or one for each, by their scales.

    What is no such number is returned as it is, so that the model refuses it in the study's own words.
    """
    noises = given if isinstance(given, list) else [given] * len(scales)
    if len(noises) != len(scales) or not all(map(is_number, noises)):
        return given
    found = [noise / scale for noise, scale in zip(noises, scales, strict=True)]
    return found if len(found) > 1 else found[0]


def _with_effects(model: Model, effects: site_effects.Wanted) -> Model:
    try:
        return with_site_effects(model, effects.columns, effects.scale, effects.learnt)
    except errors.ModelError as error:
        raise errors.ConfigError(f"model.site_effect: {error.message}", error.hint) from error


def check_noise(study: Study, model: Any) -> None:
    """Refuses noise to be learnt by a solver that cannot learn it."""
    if getattr(getattr(model, "surveyed", None), "learnt", False) and not takes(study, "foreseen"):
        raise errors.ConfigError(
            f'model.noise_scale is "learn", which solver.kind {study.solver.kind!r} cannot',
            'use solver kind "site_release", which releases the sizes of residuals; or state the sd of a '
            "record around its mean",
        )


def typical_norm(design: Any, schema: Any) -> float | None:
    """Returns a public guess of the root mean square of a row's length; None without a formula."""
    if design is None:
        return None
    squares = (
        math.prod(_typical_square(part, schema) for part in parts) for parts in design.coefficients
    )
    return math.sqrt(sum(squares))


def declared_curvature(study: Study, design: Any, model: Any) -> float | None:
    """Returns a typical record's curvature by the outcome's declared mean; None if that is not known."""
    told = getattr(model, "curvature_at", None)
    if design is None or told is None:
        return None
    name = design.response.columns[0]
    mean = parse_expected(study.data.columns_schema[name], f"data.schema.{name}").mean
    found = None if mean is None else told(mean)
    return found or None


def outcome_range(design: Any, schema: Any) -> tuple[float | None, float | None]:
    """Returns the largest size of an outcome, as the model sees it, and the largest offset, where declared.

    The first is None for several numbers, and the second without an offset.
    """
    if design is None or len(design.response.columns) != 1:
        return None, None
    column, offset = schema.get(design.response.columns[0]), design.offset
    most = 1.0
    if isinstance(column, Number):
        most = max(abs(bound - column.center) / column.scale for bound in column.bounds)
    if not 0.0 < most < math.inf:
        return None, None
    if offset is None:
        return most, None
    highest = schema[offset.column].bounds[1]
    return most, math.log(highest / offset.bound) if offset.logarithm else float(highest)


def several_ranges(design: Any, schema: Any) -> tuple[float, ...]:
    """Returns the largest size of each of several numbers that are the outcome; () of any other."""
    columns = [] if design is None or design.offset is not None else design.response.columns
    found = [schema.get(name) for name in columns]
    if len(found) < 2 or not all(isinstance(column, Number) for column in found):
        return ()
    most = [max(abs(end - each.center) / each.scale for end in each.bounds) for each in found]
    return tuple(most) if all(0.0 < each < math.inf for each in most) else ()


def vanishing(design: Any, schema: Any, names: Any) -> tuple[tuple[int, int, int], ...]:
    """Lists products of columns that are 0 in every record, for ``supported.vanishing_forms``.

    For a column of 0 and 1, x_i (x_i − 1); for two levels of a factor, x_i x_j. Only with the intercept,
    and if the model's coefficients are the design's; at most 1,500.
    """
    if design is None or tuple(names) != design.names or () not in design.coefficients:
        return ()
    parts, constant = design.coefficients, design.coefficients.index(())
    indicators = [(i, i, constant) for i, own in enumerate(parts) if _is_indicator(own, schema)]
    apart = (
        (i, j, -1) for i in range(len(parts)) for j in range(i) if _exclude(parts[i], parts[j])
    )
    return tuple(itertools.islice(itertools.chain(indicators, apart), _MOST_PRODUCTS))


def by_bounds(design: Any, schema: Any, names: Any) -> tuple[int, ...]:
    """Lists the coefficients of numbers themselves that no unit was declared for, but the bounds'.

    Only if the model's coefficients are the design's: with the intercept, once or for each outcome or
    level, those of the first; or after log hazards.
    """
    if design is None:
        return ()
    before = 0
    if design.response.type == "survival":
        before = len(names) - design.size
        if tuple(names[before:]) != design.names:
            return ()
    elif () not in design.coefficients or len(names) % design.size:
        return ()
    else:
        pairs = zip(names, design.names * (len(names) // design.size), strict=True)
        if not all(f": {name}".endswith(f": {own}") for name, own in pairs):
            return ()
    return tuple(
        before + index
        for index, parts in enumerate(design.coefficients)
        if len(parts) == 1
        and parts[0].transform is None
        and isinstance(column := schema.get(parts[0].column), Number)
        and column.by_bounds
    )


def _is_indicator(parts: Any, schema: Any) -> bool:
    # A column that is not in the schema indicates missing cells.
    return bool(parts) and all(
        part.transform is None
        and (part.code is not None or isinstance(schema.get(part.column), Binary | None))
        for part in parts
    )


def _exclude(first: Any, second: Any) -> bool:
    """Whether two coefficients are of different levels of one factor."""
    levels = {part.column: part.code for part in first if part.code is not None}
    return any(
        levels.get(part.column, part.code) != part.code for part in second if part.code is not None
    )


def _typical_square(part: Any, schema: Any) -> float:
    column = schema.get(part.column)
    if part.transform is not None or column is None:
        return 1.0
    if isinstance(column, Number):
        return _WITHIN_BOUNDS if column.by_bounds else 1.0
    return 1.0 / (2 if isinstance(column, Binary) else max(2, len(column.levels)))


def columns_read(design: Any, study: Study, schema: Any) -> tuple[str, ...]:
    """Lists the schema's columns that a model reads: those of its formula, or its arguments."""
    if design is not None:
        return design.columns
    if conjugates.model_of(study) is not None:
        return tuple(schema)
    factory = factories.find("model", study.model.kind, models, parts=study.parts)
    # An indicator such as chol_missing is read with its own column.
    indicators = {indicator_name(name): name for name in schema}
    wanted = [
        name
        for name, parameter in inspect.signature(factory).parameters.items()
        if name not in study.model.arguments
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        # An argument with a default is a column only if a column with its name is declared.
        and (parameter.default is parameter.empty or name in schema or name in indicators)
    ]
    return tuple(dict.fromkeys(indicators.get(name, name) for name in wanted))


def _example(columns: tuple[str, ...], schema: Any) -> dict[str, np.ndarray]:
    """Returns one record of zeros with the columns' later dtypes."""
    table: dict[str, list[str]] = {schema[name].column: [] for name in columns if name in schema}
    empty = data.prepare_columns(table, schema, columns, private=True, where="[model]")
    return {
        name: np.zeros(column.shape[1:], column.dtype) for name, column in empty.records.items()
    }
