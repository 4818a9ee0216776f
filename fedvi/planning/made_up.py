"""Makes up records for a plan, from a study's declarations of its columns."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy

from fedvi.data.expected import Expected, parse_expected
from fedvi.data.schema import Level, Number, Schema, indicator_name
from fedvi.errors import ConfigError, did_you_mean
from fedvi.models.capabilities import Regression
from fedvi.models.outcomes.base import Predicts
from fedvi.study.build import Assembly
from fedvi.study.spec import shared_parts

__all__ = [
    "TYPICAL_AUC",
    "MadeUp",
    "assumptions",
    "expected_of",
    "is_known",
    "made_up",
    "records_of",
    "silent",
    "spread_of",
    "stated",
]

TYPICAL_AUC = 0.75
"""The assumed AUC of a clinical model's covariates for a binary outcome, if a study states none."""

# The number of made-up records, enough for a precision of some per cent.
_ENOUGH = 4000
_SEED = 20
# The sd of a number, as a share of half the width of its bounds, which are wider than its values; and the
# frequency of a level, as a multiple of that of the level before. Chosen on six tables, see docs/plan.md.
_SPREAD, _RARER = 0.25, 0.7
# The share of missing cells in a column with an indicator, if a study states none.
_MISSING = 0.1
# The share of records with a true outcome, if a study states none; below half, to be cautious.
_SHARE = 0.2
# The share of subjects with an event, if a study states none.
_EVENTS = 0.25
_HALVINGS = 36
# A number whose mean is within this many sds of its lower bound is skewed.
_SKEWED = 2.0


class MadeUp(NamedTuple):
    """Made-up records, evaluated at made-up coefficients.

    A record has K rows, one if the model has no layout.

    Attributes:
      x: covariates, [N, K, D].
      slope: derivative of the log-likelihood in each row's predictor, [N, K].
      bend: minus its second derivative, [N, K].
      steepest: a large but plausible slope, [N, K]; None if the model does not give it.
      far: slopes and curvatures of the rows at J extreme outcomes, [J, K] both; None without such.
    """

    x: np.ndarray
    slope: np.ndarray
    bend: np.ndarray
    steepest: np.ndarray | None
    far: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def curvature(self) -> np.ndarray:
        """A record's average contribution to the precision of the coefficients, [D, D]."""
        rows = self.x.reshape(-1, self.x.shape[2])
        return np.asarray((rows * self.bend.reshape(-1, 1)).T @ rows / len(self.x))


def expected_of(assembly: Assembly, name: str) -> Expected:
    """Returns the study's prior expectations of a column."""
    return parse_expected(assembly.study.data.columns_schema[name], f"data.schema.{name}")


def records_of(assembly: Assembly) -> tuple[int, ...]:
    """Returns each client's assumed number of records, see ``shared_parts.records``."""
    return tuple(shared_parts.records(assembly.study).values())


def assumptions(assembly: Assembly) -> Iterator[str]:
    """Yields a plan's assumptions where the study states nothing."""
    study, design = assembly.study, assembly.design
    if any(client.expected_records is None for client in study.clients):
        yield (
            f"every site holds max_records, {study.data.max_records or 1000} (say clients.expected_records)"
        )
    if assembly.grouped:
        yield "every patient has one row"
    columns, unsaid = _covariates(assembly), _unsaid(assembly)
    yield from _spreads(assembly.schema, unsaid)
    outcome = expected_of(assembly, design.response.columns[-1])
    if design.response.type == "binary":
        if outcome.shares is None:
            yield f"{design.response.columns[0]} is true for {_SHARE:.0%} (say its expected.share)"
        if outcome.auc is None:
            yield f"covariates predict the outcome with an AUC of {TYPICAL_AUC:g} (say its expected.auc)"
    for name in _unsaid_outcome(assembly) if design.response.type == "count" else ():
        mean = spread_of(assembly.schema[name], outcome)[0]
        yield f"{name} has a mean of {mean:g}, as its bounds suggest (say its expected.mean)"
    if design.response.type == "survival" and outcome.shares is None:
        yield f"{_EVENTS:.0%} have the event (say the expected.share of {design.response.columns[1]})"
    if not any(expected_of(assembly, name).correlations for name in columns):
        yield "covariates are not correlated; otherwise intervals are wider (say expected.correlations)"


def stated(assembly: Assembly) -> frozenset[str]:
    """Returns the coefficients that need no assumption, as the study states their columns' spread."""
    design, unsaid = assembly.design, _unsaid(assembly)
    if _unsaid_outcome(assembly):
        return frozenset()
    return frozenset(
        name
        for name, parts in zip(design.names, design.coefficients, strict=True)
        if not any(part.column in unsaid for part in parts)
    )


def _spreads(schema: Schema, unsaid: Sequence[str]) -> Iterator[str]:
    """Yields what is assumed of covariates whose spread nobody states, by type."""
    numbers = [name for name in unsaid if isinstance(schema[name], Number)]
    several = [
        name
        for name in unsaid
        if isinstance(column := schema[name], Level) and len(column.levels) > 2
    ]
    evenly = [name for name in unsaid if name not in (*numbers, *several)]
    say = "(say data.schema.NAME.expected)"
    if numbers:
        yield f"{', '.join(numbers)}: as spread as bounds, or centre and scale, suggest {say}"
    if several:
        each = f"each level is {_RARER:g} times as frequent as the one before"
        yield f"{', '.join(several)}: {each} {say}"
    if evenly:
        yield f"{', '.join(evenly)}: half of the records have either value {say}"


def silent(assembly: Assembly) -> tuple[str, ...]:
    """Returns the columns whose spread the study does not state, the outcome first."""
    return (*_unsaid_outcome(assembly), *_unsaid(assembly))


def _covariates(assembly: Assembly) -> list[str]:
    named = dict.fromkeys(part.column for parts in assembly.design.coefficients for part in parts)
    return [name for name in named if name in assembly.schema]


def _unsaid(assembly: Assembly) -> tuple[str, ...]:
    """Returns the covariates whose spread the study does not state."""
    return tuple(
        name
        for name in _covariates(assembly)
        if not _is_stated(assembly.schema[name], expected_of(assembly, name))
    )


def _unsaid_outcome(assembly: Assembly) -> tuple[str, ...]:
    """Returns the column of an outcome whose share, or mean count, the study does not state."""
    response = assembly.design.response
    if response.type == "count":
        return tuple(n for n in response.columns[-1:] if expected_of(assembly, n).mean is None)
    asked = response.columns[-1:] if response.type in ("binary", "survival") else ()
    return tuple(name for name in asked if expected_of(assembly, name).shares is None)


def _is_stated(column: Any, expected: Expected) -> bool:
    if isinstance(column, Number):
        return expected.sd is not None
    return expected.shares is not None


def spread_of(column: Number, expected: Expected) -> tuple[float, float]:
    """Returns mean and sd of a number in the unit of the file: as stated, or as the bounds suggest."""
    low, high = column.bounds
    middle, half = (low + high) / 2.0, (high - low) / 2.0
    if column.whole:
        mean = middle / 2.0 + low / 2.0 if expected.mean is None else expected.mean
        return mean, math.sqrt(max(mean, 1.0)) if expected.sd is None else expected.sd
    # No number within bounds spreads by more than half their width.
    sd = _SPREAD * half if column.by_bounds else min(column.scale, half)
    centre = min(max(column.center, low), high)
    return (
        centre if expected.mean is None else expected.mean,
        sd if expected.sd is None else expected.sd,
    )


def made_up(assembly: Assembly) -> MadeUp:
    """Makes up records of a regression: independent columns, unless stated, and outcomes of modest effects.

    Args:
      assembly: of a model with a formula, whose outcome has a mean or is a time until an event.
    """
    random = np.random.default_rng(_SEED)
    model, design = assembly.model, assembly.design
    columns = _columns(assembly, random)
    x = design.matrix(columns)
    if model.layout is not None:
        return _of_times(assembly, x, random)
    theta = _effects(x)
    y, along = _outcomes(assembly, x @ theta, random)
    if design.offset is not None:
        y = np.stack([y, np.zeros(len(y))], axis=1)
    _, slope, bend = model.derivatives(along, y)
    steepest = model.steepest(along, y)
    return MadeUp(
        x[:, None, :],
        np.asarray(slope, np.float64)[:, None],
        -np.asarray(bend, np.float64)[:, None],
        None if steepest is None else np.asarray(steepest, np.float64)[:, None],
    )


def _columns(assembly: Assembly, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Draws prepared columns, in the form of ``prepare_columns``."""
    schema, design = assembly.schema, assembly.design
    wanted = list(dict.fromkeys(name for name in design.columns if name in schema))
    expected = {name: expected_of(assembly, name) for name in wanted}
    drawn = random.standard_normal((_ENOUGH, len(wanted))) @ _root(schema, expected).T
    found: dict[str, np.ndarray] = {}
    for name, place in zip(wanted, scipy.special.ndtr(drawn).T, strict=True):
        found |= _column(schema, name, expected[name], place, random.uniform(size=_ENOUGH))
    return found


def _root(schema: Schema, expected: Mapping[str, Expected]) -> np.ndarray:
    """Returns a root of the correlations of the normal variables behind the columns, [C, C].

    A correlation with a binary column is smaller than with the normal variable that was cut into it.

    Raises:
      ConfigError: a correlation is stated with levels, or with no column.
    """
    names = list(expected)
    whole = np.eye(len(names))
    for name, said in expected.items():
        for other, value in said.correlations.items():
            # A shorter formula is planned, too, and leaves out what it has no column of.
            if other in schema and other not in expected:
                continue
            if other not in expected or isinstance(schema[other], Level) or other == name:
                raise ConfigError(
                    f"data.schema.{name}.expected.correlations: {other!r}, expected another number or "
                    "binary column of the study",
                    did_you_mean(other, [column for column in names if column != name]),
                )
            cut = _cut(schema[name], said) * _cut(schema[other], expected[other])
            at = names.index(name), names.index(other)
            whole[at] = whole[at[::-1]] = min(max(value / cut, -0.98), 0.98)
    values, vectors = np.linalg.eigh(whole)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return np.asarray(root / np.linalg.norm(root, axis=1, keepdims=True))


def _cut(column: Any, expected: Expected) -> float:
    """Returns the factor by which dichotomising a normal variable shrinks a correlation; 1 for a number."""
    if isinstance(column, Number):
        return 1.0
    share = min(max((expected.shares or (0.5, 0.5))[1], 1e-3), 1.0 - 1e-3)
    height = math.exp(-0.5 * float(scipy.special.ndtri(share)) ** 2) / math.sqrt(2.0 * math.pi)
    return height / math.sqrt(share * (1.0 - share))


def _column(
    schema: Schema, name: str, expected: Expected, place: np.ndarray, absent: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns a column with values at these quantiles, from 0 to 1, of its distribution."""
    column = schema[name]
    if isinstance(column, Number):
        values = (_numbers(column, expected, place) - column.center) / column.scale
    else:
        count = len(column.levels) if isinstance(column, Level) else 2
        shares = expected.shares or _frequencies(count)
        values = np.searchsorted(np.cumsum(shares)[:-1], place).astype(np.float64)
    found = {name: values}
    if column.missing == "indicator":
        share = _MISSING if expected.missing is None else expected.missing
        absent = absent < share
        found = {
            name: np.where(absent, 0.0, values),
            indicator_name(name): absent.astype(np.float64),
        }
    if isinstance(column, Level):
        found[name] = found[name].astype(np.int32)
    return found


def _frequencies(count: int) -> tuple[float, ...]:
    """Returns assumed shares of levels, the reference first; of two, a half each.

    >>> [round(share, 2) for share in _frequencies(3)]
    [0.46, 0.32, 0.22]
    """
    parts = [1.0 if count == 2 else _RARER**place for place in range(count)]
    return tuple(part / sum(parts) for part in parts)


def _numbers(column: Number, expected: Expected, place: np.ndarray) -> np.ndarray:
    """Returns numbers in the unit of the file: normal, or skewed if the mean is near the lower bound."""
    low, high = column.bounds
    mean, sd = spread_of(column, expected)
    room = mean - low
    if 0.0 < room < _SKEWED * sd:
        drawn = low + scipy.special.gammaincinv((room / sd) ** 2, place) * sd**2 / room
    else:
        drawn = mean + sd * scipy.special.ndtri(place)
    return np.clip(np.round(drawn) if column.whole else drawn, low, high)


def _effects(x: np.ndarray) -> np.ndarray:
    """Returns coefficients of equal size per sd of their columns, for which xᵀθ has a variance of 1."""
    sd = x.std(axis=0)
    varied = sd > 0.0
    theta = np.where(varied, 1.0 / np.where(varied, sd, 1.0), 0.0)
    spread = float((x @ theta).std())
    return theta / spread if spread > 0.0 else theta


def _outcomes(
    assembly: Assembly, along: np.ndarray, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Returns outcomes, and their linear predictors.

    A binary outcome has the stated share and AUC. A count has the stated mean, and effects of half an sd.
    A number has known noise, and effects of one sd of it.
    """
    model, design = assembly.model, assembly.design
    outcome, response = model.outcome, design.response
    expected = expected_of(assembly, response.columns[0])
    column = assembly.schema[response.columns[0]]
    along = along - along.mean()
    if response.type == "binary":
        share = _SHARE if expected.shares is None else expected.shares[1]
        share = min(max(share, 1e-4), 1.0 - 1e-4)
        auc = TYPICAL_AUC if expected.auc is None else expected.auc

        def at(size: float) -> np.ndarray:
            return size * along + _shift(outcome, size * along, share)

        low, high = 0.0, 20.0
        for _ in range(_HALVINGS // 3):
            middle = (low + high) / 2.0
            low, high = (
                (middle, high)
                if _auc(outcome.mean(at(middle)), at(middle)) < auc
                else (low, middle)
            )
        along = at((low + high) / 2.0)
        return outcome.mean(along), along
    if isinstance(column, Number) and column.whole:
        mean, _ = spread_of(column, expected)
        along = 0.5 * along + _shift(outcome, 0.5 * along, max(mean, 1e-3))
        return outcome.mean(along), along
    noise = model.noise_scale or 1.0
    along = noise * along
    return along + noise * random.standard_normal(len(along)), along


def _shift(outcome: Predicts, along: np.ndarray, mean: float) -> float:
    """Returns the shift of the predictors for which outcomes have a given mean."""
    low, high = -40.0, 40.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if outcome.mean(along + middle).mean() < mean else (low, middle)
    return (low + high) / 2.0


def _auc(chance: np.ndarray, along: np.ndarray) -> float:
    """Returns the area under the ROC curve of outcomes with these probabilities."""
    order = np.argsort(along)
    true, false = chance[order], 1.0 - chance[order]
    below = np.cumsum(false) - 0.5 * false
    return float((true * below).sum() / max(true.sum() * false.sum(), 1e-300))


def _of_times(assembly: Assembly, x: np.ndarray, random: np.random.Generator) -> MadeUp:
    """Makes up subjects of a survival model, with a row per interval; effects hardly matter, and are 0."""
    model, response = assembly.model, assembly.design.response
    time, event = (expected_of(assembly, name) for name in response.columns)
    column = assembly.schema[response.columns[0]]
    last = column.bounds[1]
    mean = last / 2.0 if time.mean is None else time.mean
    share = _EVENTS if event.shares is None else event.shares[1]
    times = (
        np.minimum(random.exponential(mean, len(x)), last)
        if time.mean
        else random.uniform(0.0, last, len(x))
    )
    came = (random.uniform(size=len(x)) < share).astype(np.float64)
    y = np.stack([np.maximum(times, 1e-6 * last), came], axis=1)
    rows, outcomes, _ = (
        np.asarray(part, np.float64)
        for part in model.rows(jnp.asarray(x), jnp.asarray(y), jnp.ones(len(x), bool))
    )
    each = len(rows) // len(x)
    rows, outcomes = rows.reshape(len(x), each, -1), outcomes.reshape(len(x), each, -1)
    hazard = (outcomes[..., 0].sum(axis=0) + 0.5) / np.maximum(outcomes[..., 1].sum(axis=0), 1e-9)
    along = np.broadcast_to(np.log(hazard), (len(x), each))
    _, slope, bend = model.derivatives(along, outcomes)
    theta = jnp.asarray([*np.log(hazard), *np.zeros(model.size - each)])
    ends = model.plausible(theta, {"x": jnp.asarray(x[0]), "y": jnp.asarray(y[0])})
    far = jnp.stack(
        [model.layout.rows(*pair)[1] for pair in zip(ends["x"], ends["y"], strict=True)]
    )
    _, steep, sharp = model.derivatives(jnp.asarray(np.log(hazard))[None], far)
    return MadeUp(
        *(rows, np.asarray(slope, np.float64), -np.asarray(bend, np.float64), None),
        (np.asarray(steep, np.float64), -np.asarray(sharp, np.float64)),
    )


def is_known(assembly: Assembly) -> bool:
    """Says whether records can be made up: for a regression of one number, a binary outcome, or a time."""
    model, design = assembly.model, assembly.design
    outcome = getattr(model, "outcome", None)
    if design is None or not isinstance(model, Regression):
        return False
    if model.layout is not None:
        return bool(design.response.type == "survival")
    return design.response.type in ("binary", "count", "number") and isinstance(outcome, Predicts)
