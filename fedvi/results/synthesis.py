"""Makes synthetic records from a posterior.

    θ ~ q,   then records ~ p(· | θ), one θ for each set

so that each set is what one θ could have produced, and several sets show the uncertainty about θ: an
analysis is done on each, and the results are combined (``fedvi.report.combine``). Synthetic records are a
function of the posterior and a seed, so they cost no further privacy budget.

Source: Jälkö, Lagerspetz, Haukka, Tarkoma, Honkela and Kaski (2021), Privacy-preserving data sharing via
probabilistic modeling, Patterns 2(7); for several sets Räisä, Jälkö, Kaski and Honkela (2023), Noise-aware
statistical inference with differentially private synthetic data, AISTATS.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedvi import data
from fedvi.data.schema import Binary, Column, Level
from fedvi.errors import ConfigError, DataError
from fedvi.expfam.base import DenseGaussian
from fedvi.inference.local_latents import local_problem
from fedvi.models.capabilities import (
    Generates,
    GeneratesOutcomes,
    HasOutcome,
    RunsForwards,
    Tabular,
    at_draw,
)
from fedvi.models.outcomes.base import Draws, DrawsRows
from fedvi.results import ancestral, new_records
from fedvi.results import draws as draws_of
from fedvi.study.build import Assembly
from fedvi.typing import Eta
from fedvi.updates.conjugate import brings_family

__all__ = ["Synthetic", "cells", "synthesise"]

_TAKE_OUT = "a synthetic outcome needs all that it is drawn from: take the record out"


class Synthetic(NamedTuple):
    """One set of synthetic records.

    Attributes:
      columns: a table of the study's file: column → cells, as text; None where records are arrays that
        form no table.
      arrays: in the model's own layout, as in the study's .npz; None where records are a table read by a
        formula.
    """

    columns: dict[str, list[str]] | None
    arrays: dict[str, np.ndarray] | None


def synthesise(
    assembly: Assembly,
    posterior: Eta,
    records: int | None,
    sets: int = 1,
    seed: int = 0,
    given: Path | None = None,
) -> Iterator[Synthetic]:
    """Yields sets of synthetic records, each from a θ of its own.

    A model of whole records, such as a mixture or a network, generates whole records. A regression models
    an outcome given other columns, so these are taken from ``given``, a public file. For binomial outcomes,
    ``given`` has both counts: their sum stays, and the events among these trials are drawn anew. Where
    sites have effects, a set comes from one new site.

    Args:
      assembly: the study, built.
      posterior: η of a proper q.
      records: the number of records in a set; None where ``given`` determines it.
      sets: the number of sets.
      seed: of all draws; public.
      given: a table with the columns, or a .npz with the arrays, that the model does not draw.

    Raises:
      ConfigError: the model draws only some columns and ``given`` is missing, or the model draws whole
        records and ``given`` is present; or the model cannot be run forwards.
      DataError: a record of ``given`` does not fit the schema.
    """
    for name, value in (("sets", sets), ("records", records)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}, expected at least 1")
    whole = _whole(assembly)
    if whole is None and given is None:
        raise ConfigError(
            f"model.kind is {assembly.study.model.kind!r}, which draws some columns given others, and no "
            "file gives these",
            "name a public file with them: --given FILE; never one of records that need protection",
        )
    if whole is not None and given is not None:
        raise ConfigError(
            f"--given {given} is given, but model.kind {assembly.study.model.kind!r} draws whole records",
            "leave it out, and say how many: --records",
        )
    if given is not None and records is not None:
        raise ConfigError(
            f"{records} records are asked for beside --given {given}, which has as many as it has",
            "leave one of the two out",
        )
    if whole is not None and records is None:
        raise ConfigError("how many records a set has is not said", "say so: --records 1000")
    theta = draws_of.thetas(*_widened(assembly, posterior), sets, seed)
    seeds = np.random.SeedSequence(seed).spawn(sets)
    if whole is not None and records is not None:
        return (whole(theta[[index]], records, seeds[index]) for index in range(sets))
    assert given is not None
    drawn = _conditional(assembly, given)
    return (drawn(theta[[index]], seeds[index]) for index in range(sets))


_Whole = Callable[[np.ndarray, int, np.random.SeedSequence], Synthetic]
_Conditional = Callable[[np.ndarray, np.random.SeedSequence], Synthetic]


def _widened(assembly: Assembly, posterior: Eta) -> tuple[Any, Eta]:
    """Returns family and η to draw a set from, including the effects of a new site."""
    if not isinstance(assembly.family, DenseGaussian) or brings_family(assembly.model):
        return assembly.family, posterior
    local = local_problem(assembly.family, assembly.model)
    return local.family, local.new_site(posterior)[1]


def _whole(assembly: Assembly) -> _Whole | None:
    """Returns a sampler of whole records; None if the model draws some columns given others."""
    model, schema = assembly.model, assembly.schema
    if isinstance(model, RunsForwards):
        drawn = ancestral.outcomes(model)
        if assembly.design is not None or len(drawn) < len(model.record):
            return None

        def forwards(theta: np.ndarray, count: int, seed: np.random.SeedSequence) -> Synthetic:
            found = ancestral.sampled(model, drawn, theta[0], {}, count, seed)
            columns = {
                schema[name].column: cells(schema[name], values)
                for name, values in found.items()
                if name in schema
            }
            return Synthetic(columns, None)

        return forwards
    if not brings_family(model) or isinstance(model, GeneratesOutcomes):
        return None
    if not isinstance(model, Generates):
        raise ConfigError(
            f"model {type(model).__name__} does not say how a record is made from its parameters",
            "a model of the study's own is run forwards if it has `parameters` and `draw`, see "
            "fedvi.models.capabilities; draw parameters with `fedvi posterior`",
        )

    def made(theta: np.ndarray, count: int, seed: np.random.SeedSequence) -> Synthetic:
        at = at_draw(model.parameters(theta), 0)
        arrays = model.draw(at, count, np.random.default_rng(seed))
        return Synthetic(_table(model, schema, arrays), arrays)

    return made


def _table(
    model: Any, schema: Mapping[str, Column], arrays: Mapping[str, np.ndarray]
) -> dict[str, list[str]] | None:
    """Returns records of one row each as a table with the study's columns, or the model's names."""
    if not isinstance(model, Tabular):
        return None
    names = model.row
    (rows,) = arrays.values()
    if len(schema) == len(names):
        return {
            column.column: cells(column, values)
            for column, values in zip(schema.values(), rows.T, strict=True)
        }
    return {
        name: [_shown(value) for value in values]
        for name, values in zip(names, rows.T, strict=True)
    }


def cells(column: Column, values: np.ndarray) -> list[str]:
    """Returns prepared values as the study's file would write them.

    Numbers are in the unit of the file and clipped to their declared bounds; counts are rounded. Where
    several cells mean the same level or truth value, the first in order is written.

    >>> from fedvi.data.schema import parse_schema
    >>> raw = {"age": {"type": "number", "bounds": [18, 100], "center": 50, "scale": 10}}
    >>> cells(parse_schema(raw, private=True)["age"], np.array([1.0, 9.0]))
    ['60', '100']
    """
    if isinstance(column, Level):
        first: dict[int, Any] = {}
        for code, index in column.codes:
            first.setdefault(index, code)
        return [_shown(first[int(value)]) for value in values]
    if isinstance(column, Binary):
        codes = [min(each, key=str) for each in (column.false, column.true)]
        return [_shown(codes[int(value > 0.5)]) for value in values]
    told = np.clip(values * column.scale + column.center, *column.bounds)
    return [_shown(value) for value in (np.round(told) if column.whole else told)]


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _conditional(assembly: Assembly, given: Path) -> _Conditional:
    """Returns a sampler of outcomes for the records of a public file."""
    model, design, schema = assembly.model, assembly.design, assembly.schema
    if isinstance(model, GeneratesOutcomes):
        return _beside_arrays(model, given)
    drawn = ancestral.outcomes(model) if isinstance(model, RunsForwards) else ()
    if design is not None:
        names = [name for name in design.columns if name not in design.response.columns]
        outcomes: Sequence[str] = design.response.columns
    else:
        outcomes = [outcome.column for outcome in drawn]
        names = [name for name in schema if name in model.record and name not in outcomes]
        if len(names) + len(outcomes) < len(model.record):
            absent = ", ".join(sorted({*model.record} - {*names, *outcomes}))
            raise ConfigError(f"the columns {absent} cannot be read from --given {given}")
    law = model.outcome if isinstance(model, HasOutcome) else None
    # The number of trials is given; only the number of events is drawn.
    keeps_total = isinstance(law, Draws) and law.keeps_total
    table, columns = _read(assembly, [*outcomes, *names] if keeps_total else names, given)
    own = [columns[name] for name in outcomes] if keeps_total else []
    x, offset = None, None
    if design is not None:
        x = design.matrix(columns)
        offset = None if design.offset is None else design.offset.values(columns)
    count = len(columns[""])

    def one(theta: np.ndarray, seed: np.random.SeedSequence) -> Synthetic:
        if isinstance(model, RunsForwards):
            if x is None:
                passed: dict[str, np.ndarray] = {name: columns[name] for name in names}
            else:
                passed = {"x": x}
                if offset is not None:
                    passed["y"] = np.stack([np.zeros(count), offset], axis=1)
            found = ancestral.sampled(model, drawn, theta[0], passed, count, seed)
            values = [found["y"]] if design is not None else [found[name] for name in outcomes]
            if design is not None:
                y = values[0][:, 0] if offset is not None else values[0]
                values = [y] if y.ndim == 1 else list(y.T)
        else:
            assert x is not None
            random = np.random.default_rng(seed)
            shift = np.zeros(count) if offset is None else offset
            values = _drawn(assembly, theta, x, shift, own, random)
        made = {
            schema[name].column: cells(schema[name], value)
            for name, value in zip(outcomes, values, strict=True)
        }
        return Synthetic({**table, **made}, None)

    return one


def _beside_arrays(model: GeneratesOutcomes, given: Path) -> _Conditional:
    """Returns a sampler of a conjugate regression's outcomes for the arrays of a public file."""
    layout = model.inputs
    if given.suffix.lower() != ".npz":
        raise ConfigError(
            f"--given {given} is no .npz, expected one with {', '.join(layout)}",
            "write it with numpy.savez(path, name=array, …)",
        )
    finite = new_records.all_finite
    source = data.read_arrays(given, layout, finite, private=True, where="--given")
    if not source.size:
        raise DataError(f"--given {given} has no record", "is this the right file?")
    if not source.valid.all():
        raise DataError(
            f"{given}: record {int(np.argmin(source.valid)) + 1}: a number of it is not finite",
            _TAKE_OUT,
        )

    def one(theta: np.ndarray, seed: np.random.SeedSequence) -> Synthetic:
        at = at_draw(model.parameters(theta), 0)
        made = model.draw_outcomes(at, source.records, np.random.default_rng(seed))
        return Synthetic(None, {**source.records, **made})

    return one


def _read(
    assembly: Assembly, names: Sequence[str], path: Path
) -> tuple[dict[str, list[str]], dict[str, np.ndarray]]:
    """Returns the cells and prepared columns of a public file, every record of which must fit."""
    read = list(new_records.chunks(assembly.study, assembly.schema, names, path))
    for part in read:
        for index, reason in enumerate(part.reasons):
            if reason:
                raise DataError(f"{path}: record {part.first + index}: {reason}", _TAKE_OUT)
    kept = {
        name: [cell or "" for part in read for cell in part.cells[name]] for name in read[0].cells
    }
    columns = {
        name: np.concatenate([part.columns[name] for part in read]) for name in read[0].columns
    }
    columns[""] = np.zeros(sum(len(part.reasons) for part in read))
    return kept, columns


def _drawn(
    assembly: Assembly,
    theta: np.ndarray,
    x: np.ndarray,
    offset: np.ndarray,
    own: Sequence[np.ndarray],
    random: np.random.Generator,
) -> list[np.ndarray]:
    """Draws the outcomes of a regression at one θ [1, W]: prepared values, one array a column.

    ``own`` are the columns to be replaced, for an outcome that keeps their sum.
    """
    local = local_problem(assembly.family, assembly.model)
    model = local.site_model
    law = model.outcome if isinstance(model, HasOutcome) else None
    (at,) = draws_of.multipliers(model, theta)
    columns, wide = draws_of.outcome_columns(assembly), local.records({"x": x})["x"]
    if isinstance(law, Draws):
        return law.draw(wide @ at + offset, columns, random, own)
    if isinstance(law, DrawsRows):
        return law.draw_rows(at, wide, columns, random)
    raise ConfigError(
        f"model.kind is {assembly.study.model.kind!r}, which draws no outcome of a record"
    )
