"""Makes synthetic records from a posterior.

    θ ~ q,   then records ~ p(· | θ), one θ for each set

so that a set is what one θ could have produced, and several sets show what is not known of θ: an analysis
is done on each, and the answers are combined (``fedvi.report.combine``). A function of the posterior and a
seed: it costs nothing beside what was charged.

Source: Jälkö, Lagerspetz, Haukka, Tarkoma, Honkela and Kaski (2021), Privacy-preserving data sharing via
probabilistic modeling, Patterns 2(7); for several sets Räisä, Jälkö, Kaski and Honkela (2023), Noise-aware
statistical inference with differentially private synthetic data, AISTATS.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.special

from fedvi import data
from fedvi.data.schema import Binary, Column, Level
from fedvi.errors import ConfigError, DataError
from fedvi.experiment.build import Assembly
from fedvi.experiment.results import ancestral, generative, lines, new_records
from fedvi.experiment.results import draws as draws_of
from fedvi.expfam.gaussian import DiagonalGaussian, FullGaussian
from fedvi.inference.local_latents import local_problem
from fedvi.models.base import Model
from fedvi.models.conjugate import ConjugateModel
from fedvi.models.counts import NegativeBinomial
from fedvi.models.glm import Bernoulli, GeneralisedLinearModel, Normal, WithOffset
from fedvi.models.hazards import Intervals
from fedvi.models.multivariate import Outcomes
from fedvi.models.numpyro import NumPyroModel
from fedvi.models.site_effects import WithScales
from fedvi.models.softmax import Multinomial
from fedvi.models.trials import Binomial
from fedvi.typing import Eta

__all__ = ["Synthetic", "cells", "events_within", "synthesise"]

_TAKE_OUT = "a synthetic outcome needs all that it is drawn from: take the record out"
# A rate beyond which no count can be drawn, and a hazard at which nobody is left.
_LARGEST_RATE = 1e15


class Synthetic(NamedTuple):
    """One set of synthetic records.

    Attributes:
      columns: as a table of the study's file: column → cells, as text; None where records are arrays
        that are no table.
      arrays: in the model's own layout, as a .npz of the study's; None where records are a table that a
        formula reads.
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

    A model of whole records, such as a mixture or a network, writes whole records. A regression is of
    an outcome given other columns, and says nothing of these: they are taken from ``given``, a file that
    is public. Events out of trials are drawn anew for as many trials as a record of ``given`` has: it has
    both counts, and their sum stays. Where sites have effects, a set is of one site that nobody has seen.

    Args:
      assembly: the study, built.
      posterior: η of a proper q.
      records: how many a set has; None where ``given`` says so.
      sets: how many.
      seed: of all draws; public.
      given: a table with the columns that the model does not draw, or a .npz with the arrays.

    Raises:
      ConfigError: the model draws only some columns and ``given`` is missing, or the other way round; or
        it cannot be run forwards.
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
    """Returns family and η of what one set is drawn from: with the effects of a new site."""
    if not isinstance(assembly.family, FullGaussian | DiagonalGaussian):
        return assembly.family, posterior
    if isinstance(assembly.model, ConjugateModel) and not isinstance(assembly.model, Model):
        return assembly.family, posterior
    local = local_problem(assembly.family, assembly.model)
    return local.family, local.new_site(posterior)[1]


def _whole(assembly: Assembly) -> _Whole | None:
    """Returns how a model draws whole records; None for one that draws some columns given others."""
    model, schema = assembly.model, assembly.schema
    if isinstance(model, NumPyroModel):
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
    if not isinstance(model, ConjugateModel) or isinstance(model, Model):
        return None
    kind = generative.kind_of(model)
    if kind is None:
        raise ConfigError(
            f"model {type(model).__name__} does not say how a record is made from its parameters",
            "a model of the study's own is not run forwards; draw parameters with `fedvi posterior`",
        )
    if kind.records is None:
        return None
    make = kind.records

    def made(theta: np.ndarray, count: int, seed: np.random.SeedSequence) -> Synthetic:
        at = {name: each.values[0] for name, each in kind.parameters(model, theta).items()}
        arrays = make(model, at, count, np.random.default_rng(seed))
        return Synthetic(_table(model, schema, arrays), arrays)

    return made


def _table(
    model: Any, schema: Mapping[str, Column], arrays: Mapping[str, np.ndarray]
) -> dict[str, list[str]] | None:
    """Returns records that are one row of numbers as a table: of the study's file, or of the model."""
    names = generative.columns_of(model)
    if not names:
        return None
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

    Numbers are in the unit of the file and within their declared bounds, counts whole; of several cells
    that mean a level, or true, the first in order stands for all.

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
    """Returns how outcomes are drawn for the records of a public file."""
    model, design, schema = assembly.model, assembly.design, assembly.schema
    if isinstance(model, ConjugateModel) and not isinstance(model, Model):
        return _beside_arrays(model, given)
    drawn = ancestral.outcomes(model) if isinstance(model, NumPyroModel) else ()
    if design is not None:
        names = [name for name in design.columns if name not in design.response.columns]
        outcomes: Sequence[str] = design.response.columns
    else:
        outcomes = [outcome.column for outcome in drawn]
        names = [name for name in schema if name in model.record and name not in outcomes]
        if len(names) + len(outcomes) < len(model.record):
            absent = ", ".join(sorted({*model.record} - {*names, *outcomes}))
            raise ConfigError(f"the columns {absent} cannot be read from --given {given}")
    of_trials = assembly.study.model.kind == "binomial"
    # How many trials a record has is given, and only how they came out is drawn.
    table, columns = _read(assembly, [*outcomes, *names] if of_trials else names, given)
    trials = sum(columns[name] for name in outcomes) if of_trials else None
    x, offset = None, None
    if design is not None:
        x = design.matrix(columns)
        offset = None if design.offset is None else design.offset.values(columns)
    count = len(columns[""])

    def one(theta: np.ndarray, seed: np.random.SeedSequence) -> Synthetic:
        if isinstance(model, NumPyroModel):
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
            values = _drawn(assembly, theta, x, shift, trials, random)
        made = {
            schema[name].column: cells(schema[name], value)
            for name, value in zip(outcomes, values, strict=True)
        }
        return Synthetic({**table, **made}, None)

    return one


def _beside_arrays(model: Any, given: Path) -> _Conditional:
    """Returns how a conjugate regression draws its outcomes for the arrays of a public file."""
    kind = generative.kind_of(model)
    assert kind is not None
    draw = kind.outcomes
    assert draw is not None
    layout = lines.inputs(model)
    if given.suffix.lower() != ".npz":
        raise ConfigError(
            f"--given {given} is no .npz, expected one with {', '.join(layout)}",
            "write it with numpy.savez(path, name=array, …)",
        )

    def sound(records: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.all([np.isfinite(each).all(axis=1) for each in records.values()], axis=0)

    source = data.read_arrays(given, layout, sound, private=True, where="--given")
    if not source.size:
        raise DataError(f"--given {given} has no record", "is this the right file?")
    if not source.valid.all():
        raise DataError(
            f"{given}: record {int(np.argmin(source.valid)) + 1}: a number of it is not finite",
            _TAKE_OUT,
        )

    def one(theta: np.ndarray, seed: np.random.SeedSequence) -> Synthetic:
        at = {name: each.values[0] for name, each in kind.parameters(model, theta).items()}
        made = draw(model, at, source.records, np.random.default_rng(seed))
        return Synthetic(None, {**source.records, **made})

    return one


def _read(
    assembly: Assembly, names: Sequence[str], path: Path
) -> tuple[dict[str, list[str]], dict[str, np.ndarray]]:
    """Returns the cells and the prepared columns of a public file, in which every record fits."""
    read = list(new_records.parts(assembly.study, assembly.schema, names, path))
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
    trials: Any,
    random: np.random.Generator,
) -> list[np.ndarray]:
    """Draws the outcomes of a regression at one θ [1, W]: prepared values, one array a column.

    ``trials`` [n] are of a binomial regression alone; None of others.
    """
    local = local_problem(assembly.family, assembly.model)
    model: Any = local.model
    if isinstance(model, Multinomial):
        coefficients = theta.reshape(len(model.levels) - 1, len(model.columns))
        logits = np.concatenate([np.zeros((len(x), 1)), x @ coefficients.T], axis=1)
        # The largest of logits with Gumbel noise is a draw of the softmax.
        return [np.argmax(logits + random.gumbel(size=logits.shape), axis=1)]
    at = theta[0]
    if isinstance(model, WithScales):
        effects = draws_of.constrained(WithScales(model.effects, standard=True), theta)["effects"]
        at = np.concatenate([theta[0, : model.effects.size], effects[0]])
        model = model.effects.regression()
    if not isinstance(model, GeneralisedLinearModel):
        raise ConfigError(
            f"model.kind is {assembly.study.model.kind!r}, which draws no outcome of a record"
        )
    wide = local.records({"x": x})["x"]
    if isinstance(model.layout, Intervals):
        return _times(assembly, model.layout, at, wide, random)
    if isinstance(model.layout, Outcomes):
        means = x @ at.reshape(-1, x.shape[1]).T
        noise = random.standard_normal(means.shape) * np.array(model.layout.noise_scales)
        return list((means + noise).T)
    response = model.response
    law = response.response if isinstance(response, WithOffset) else response
    a = wide @ at + offset
    if isinstance(law, Bernoulli):
        return [(random.uniform(size=len(a)) < scipy.special.expit(a)).astype(np.float64)]
    if isinstance(law, Binomial):
        bounds = [assembly.schema[name].bounds for name in assembly.design.response.columns[:2]]
        events = events_within(trials, scipy.special.expit(a), bounds, random)
        return [events, trials - events]
    if isinstance(law, Normal):
        return [a + law.noise_scale * random.standard_normal(len(a))]
    rates = np.exp(np.minimum(a, math.log(_LARGEST_RATE)))
    if isinstance(law, NegativeBinomial):
        shape = 1.0 / law.dispersion
        rates = rates * random.gamma(shape, 1.0 / shape, len(a))
    return [random.poisson(rates).astype(np.float64)]


def events_within(
    trials: np.ndarray,
    chance: np.ndarray,
    bounds: Sequence[tuple[float | int, float | int]],
    random: np.random.Generator,
) -> np.ndarray:
    """Draws how many of a record's trials come out, given that both counts are within their bounds.

    So the number of trials stays, as clipping one count alone would not leave it.

    Args:
      trials: whole numbers [n].
      chance: of one trial, [n].
      bounds: of those that come out, and of the others.
      random: where draws come from.

    >>> random = np.random.default_rng(0)
    >>> events_within(np.full(3, 60.0), np.full(3, 0.5), [(0, 10), (0, 50)], random).tolist()
    [10.0, 10.0, 10.0]
    """
    from scipy.stats import binom

    (fewest, most), (fewest_others, most_others) = bounds
    low = np.maximum.reduce(
        [np.zeros_like(trials), trials - most_others, np.full_like(trials, fewest)]
    )
    high = np.minimum.reduce([trials, trials - fewest_others, np.full_like(trials, most)])
    before, until = binom.cdf(low - 1.0, trials, chance), binom.cdf(high, trials, chance)
    found = binom.ppf(before + random.uniform(size=len(trials)) * (until - before), trials, chance)
    # Where that has no mass that a float tells from 0, the bound that is nearest.
    return np.asarray(np.clip(np.nan_to_num(found), low, np.maximum(low, high)), np.float64)


def _times(
    assembly: Assembly,
    layout: Intervals,
    at: np.ndarray,
    x: np.ndarray,
    random: np.random.Generator,
) -> list[np.ndarray]:
    """Draws times until the event, censored at the end of follow-up: prepared times, and whether it came.

    The hazard is summed until it passes an exponential draw.
    """
    intervals = len(layout.cuts) + 1
    target = random.exponential(size=len(x)) * np.exp(-np.clip(x @ at[intervals:], -340.0, 340.0))
    hazards = np.exp(np.clip(at[:intervals], -340.0, 340.0))
    ends = [0.0, *layout.cuts, math.inf]
    time = np.full(len(x), math.inf)
    passed = np.zeros(len(x))
    for (low, high), hazard in zip(itertools.pairwise(ends), hazards, strict=True):
        within = low + (target - passed) / hazard
        here = np.isinf(time) & (within <= high)
        time = np.where(here, within, time)
        passed = passed + hazard * (high - low)
    column = assembly.schema[assembly.design.response.columns[0]]
    last = column.bounds[1]
    came = (time < last).astype(np.float64)
    return [(np.minimum(time, last) - column.center) / column.scale, came]
