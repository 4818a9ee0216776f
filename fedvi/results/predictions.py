"""Predictions for new records, with their uncertainty.

The mean and sd are over q: uncertainty about θ. An interval of an outcome has the outcome's own noise as
well. Only the new records are read, and they are not protected.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from numpyro import distributions as dist

from fedvi import errors
from fedvi.data.schema import Binary, Level, Number, Schema, indicator_name
from fedvi.expfam.base import Gaussian
from fedvi.inference.local_latents import local_problem
from fedvi.models.capabilities import HasOutcome, PredictsArrays, Regression, RunsForwards
from fedvi.models.outcomes.base import (
    MOST_EXPONENT,
    Columns,
    Expects,
    Predicts,
    Scatters,
    Several,
    quantile,
)
from fedvi.results import ancestral
from fedvi.results import draws as draws_of
from fedvi.study.build import Assembly
from fedvi.typing import Eta

__all__ = ["Forecast", "Predictor", "predictor"]

# Nodes of the expectation over one record's linear predictor: 1e-8 for a logistic one of sd 3.
_NODES = 64
# Where a count's own noise is this many times narrower than the uncertainty about its rate, those nodes
# are too far apart for quantiles; then this many nodes are used, evenly over ±8 sds: within 0.025 sd.
_APART, _CLOSE = 3.0, 320
# The most draws × records × outcomes computed at once.
_AT_ONCE = 1 << 20
_LARGEST_COUNT = 2.0**52


class Forecast(NamedTuple):
    """Predictions of m quantities for each of n records.

    Attributes:
      mean: [n, m], over q.
      sd: over q, [n, m].
      lower, upper: the central interval over q, [n, m].
      outcome_lower, outcome_upper: the central interval of a new outcome, [n, m]; None where there is none.
      outcome_error: the Monte Carlo standard error of these two, the larger of both, [n, m]; None where
        they were not computed from draws.
    """

    mean: np.ndarray
    sd: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    outcome_lower: np.ndarray | None = None
    outcome_upper: np.ndarray | None = None
    outcome_error: np.ndarray | None = None


class Predictor(NamedTuple):
    """Predicts new records.

    Attributes:
      what: the quantity whose mean is predicted, in words.
      labels: of the m quantities; "" if there is only one.
      needed: the schema's columns that a record must have; for a model whose records are arrays, the
        arrays' names.
      predict: prepared columns [n], or arrays, by name → ``Forecast``. Each row depends on its own record
        alone.
      draws: of θ; 0 where no draw was needed.
      unknown: why a mean of ``predict`` may not be finite; empty if it always is.
    """

    what: str
    labels: tuple[str, ...]
    needed: tuple[str, ...]
    predict: Callable[[Mapping[str, np.ndarray]], Forecast]
    draws: int
    unknown: str = ""


def predictor(
    assembly: Assembly, posterior: Eta, level: float, draws: int = 1000, seed: int = 0
) -> Predictor:
    """Returns a predictor of new records.

    With one linear predictor a per record, q makes a ~ N(xᵀm, xᵀSx), and everything is computed by
    quadrature or in closed form. Other models are averaged over draws of θ. Where sites have effects,
    each record is predicted as one of a new site.

    Args:
      assembly: the study, built.
      posterior: η of a proper q: a Gaussian, or that of a linear model with unknown noise.
      level: of the central intervals, between 0 and 1.
      draws: of θ, where they are needed.
      seed: of the draws.

    Raises:
      ConfigError: ``level`` is outside (0, 1), ``draws`` is below 2, or the study's model predicts no
        outcome.
    """
    if not 0.0 < level < 1.0:
        raise errors.ConfigError(f"level is {level:g}, expected a number between 0 and 1")
    if draws < 2:
        raise errors.ConfigError(f"draws is {draws}, expected 2 or more", "1000 are a good start")
    model = assembly.model
    if isinstance(model, PredictsArrays):
        return _of_arrays(model, posterior, level)
    if not isinstance(assembly.family, Gaussian):
        raise errors.ConfigError(
            f"the family is {type(assembly.family).__name__}, expected a Gaussian",
            "this model has no outcome to predict; `fedvi synthesise` writes records of it",
        )
    sure = _Sure(level, draws, seed)
    if isinstance(model, RunsForwards):
        return _of_numpyro(assembly, posterior, sure)
    local = local_problem(assembly.family, model)
    model, eta = local.new_site(posterior)
    wide = dataclasses.replace(assembly, model=model, family=local.family)
    outcome = model.outcome if isinstance(model, HasOutcome) else None
    if isinstance(outcome, Predicts):
        return _of_one(wide, outcome, eta, sure, local.records)
    if isinstance(outcome, Several):
        return _of_several(wide, outcome, eta, sure)
    if isinstance(outcome, Expects):
        return _of_draws(wide, outcome, eta, sure, local.records)
    raise errors.ConfigError(
        f"model.kind is {assembly.study.model.kind!r}, which predicts no outcome of a record"
    )


class _Sure(NamedTuple):
    """How intervals are computed."""

    level: float
    draws: int
    seed: int

    @property
    def ends(self) -> tuple[float, float]:
        """The lower and upper tail probabilities of an interval."""
        return (1.0 - self.level) / 2.0, (1.0 + self.level) / 2.0

    @property
    def width(self) -> float:
        """Half the width of a normal distribution's interval, in sds."""
        return float(scipy.special.ndtri(self.ends[1]))


_Widen = Callable[[dict[str, Any]], dict[str, Any]]


def _predicting(design: Any) -> tuple[str, ...]:
    """Returns the columns to the right of `~` in the formula."""
    return tuple(name for name in design.columns if name not in design.response.columns)


def _inputs(design: Any, columns: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns x [n, D] and the offset [n] of prepared columns; the column "" gives n."""
    x = design.matrix(columns)
    return x, np.zeros(len(x)) if design.offset is None else design.offset.values(columns)


def _of_one(assembly: Assembly, law: Predicts, eta: Eta, sure: _Sure, widen: _Widen) -> Predictor:
    """Predicts an outcome with one linear predictor."""
    design, columns_of = assembly.design, draws_of.outcome_columns(assembly)
    # The predictor is exactly normal if the multiplier of x is θ itself.
    drawn = not isinstance(assembly.model, Regression)
    thetas = _coefficients(assembly, eta, sure) if drawn else None
    what = law.what(columns_of)

    def predict(columns: Mapping[str, np.ndarray]) -> Forecast:
        x, offset = _inputs(design, columns)
        x = widen({"x": x})["x"]
        # The linear predictor at quadrature nodes or draws [S, n], with weights; and its mean and sd.
        if thetas is None:
            mean, sd = assembly.family.along(eta, x)
            points, weights = np.polynomial.hermite_e.hermegauss(_NODES)
            weights = weights / weights.sum()
            nodes = mean + points[:, None] * sd + offset
            ends = [mean + offset + sign * sure.width * sd for sign in (-1.0, 1.0)]
            line = mean + offset, sd
        else:
            nodes = thetas @ x.T + offset
            weights = np.full(len(nodes), 1.0 / len(nodes))
            ends = list(np.quantile(nodes, sure.ends, axis=0))
            line = None
        return _forecast(law, columns_of, nodes, weights, ends, line, sure)

    return Predictor(what, ("",), _predicting(design), predict, sure.draws if drawn else 0)


def _of_arrays(model: PredictsArrays, posterior: Eta, level: float) -> Predictor:
    """Predicts the outcome of a model whose records are arrays, by the model's own method."""
    ends = (1.0 - level) / 2.0, (1.0 + level) / 2.0

    def predict(arrays: Mapping[str, np.ndarray]) -> Forecast:
        told = model.predict(posterior, arrays, ends)
        return Forecast(*(each[:, None] for each in told))

    what, unknown = model.predicted
    return Predictor(what, ("",), tuple(model.inputs), predict, 0, unknown)


def _forecast(
    law: Predicts,
    columns: Columns,
    nodes: np.ndarray,
    weights: np.ndarray,
    ends: list[np.ndarray],
    line: tuple[np.ndarray, np.ndarray] | None,
    sure: _Sure,
) -> Forecast:
    """Makes a forecast of one outcome, whose mean must increase with the linear predictor.

    ``line`` is the mean and sd of the predictor where it is normal and the nodes are quadrature nodes.
    """
    is_number = law.measured == "number"
    unit, centre = (columns.scales[0], columns.centres[0]) if is_number else (1.0, 0.0)

    def told(a: np.ndarray) -> np.ndarray:
        return centre + unit * law.mean(a)

    values = told(nodes)
    mean = weights @ values
    sd = np.sqrt(np.maximum(weights @ (values - mean) ** 2, 0.0))
    lower, upper = map(told, ends)
    found = Forecast(*(each[:, None] for each in (mean, sd, lower, upper)))
    if not isinstance(law, Scatters):
        return found
    exact = getattr(law, "predictive_sd", None)
    if exact is not None and line is not None:
        apart = sure.width * exact(line[1], unit)
        new = [told(line[0]) - apart, told(line[0]) + apart]
    else:
        new = [quantile(law, values, weights, end, unit) for end in sure.ends]
        rough = np.zeros(len(mean), bool) if line is None else _is_rough(law, *line, sure)
        if line is not None and rough.any():
            points = np.linspace(-8.0, 8.0, _CLOSE)
            close = told(line[0][rough] + points[:, None] * line[1][rough])
            shares = scipy.special.softmax(-0.5 * points**2)
            for each, end in zip(new, sure.ends, strict=True):
                each[rough] = quantile(law, close, shares, end, unit)
    return found._replace(outcome_lower=new[0][:, None], outcome_upper=new[1][:, None])


def _is_rough(law: Any, mean: np.ndarray, sd: np.ndarray, sure: _Sure) -> np.ndarray:
    """Says for which outcomes the quadrature nodes are too far apart for quantiles, bool [n].

    The mean of such an outcome is about e^a, so its sd divided by its mean is the sd of its logarithm.
    """
    highest = law.mean(np.clip(mean + sure.width * sd, -MOST_EXPONENT, MOST_EXPONENT))
    return np.asarray(sd * highest > _APART * law.sd(highest))


def _coefficients(assembly: Assembly, eta: Eta, sure: _Sure) -> np.ndarray:
    """Draws the multipliers of x, [S, W], for a new site with effects of its own."""
    theta = draws_of.thetas(assembly.family, eta, sure.draws, sure.seed)
    return draws_of.multipliers(assembly.model, theta)


def _of_several(assembly: Assembly, several: Several, eta: Eta, sure: _Sure) -> Predictor:
    """Predicts several numbers, whose predictors are exactly normal."""
    design = assembly.design
    names = design.response.columns
    columns_of = [assembly.schema[name] for name in names]

    def predict(columns: Mapping[str, np.ndarray]) -> Forecast:
        x, _ = _inputs(design, columns)
        found = []
        for index, (column, noise) in enumerate(zip(columns_of, several.noise_scales, strict=True)):
            wide = np.zeros((len(x), len(names), x.shape[1]))
            wide[:, index] = x
            mean, sd = assembly.family.along(eta, wide.reshape(len(x), -1))
            centre, unit = column.center + column.scale * mean, column.scale * sd
            new = sure.width * column.scale * np.hypot(sd, noise)
            apart = sure.width * unit
            found.append((centre, unit, centre - apart, centre + apart, centre - new, centre + new))
        return Forecast(*(np.stack(each, axis=1) for each in zip(*found, strict=True)))

    what = "mean of each outcome, in the unit of the file"
    return Predictor(what, names, _predicting(design), predict, 0)


def _of_draws(
    assembly: Assembly, outcome: Expects, eta: Eta, sure: _Sure, widen: _Widen
) -> Predictor:
    """Predicts an outcome's quantities, averaged over draws of θ."""
    design, columns_of = assembly.design, draws_of.outcome_columns(assembly)
    thetas = _coefficients(assembly, eta, sure)
    what, labels = outcome.quantities(columns_of)

    def values(x: np.ndarray) -> np.ndarray:
        return outcome.expected(thetas, x, columns_of)

    def predict(columns: Mapping[str, np.ndarray]) -> Forecast:
        x, _ = _inputs(design, columns)
        return _averaged(values, widen({"x": x})["x"], len(labels), sure)

    return Predictor(what, labels, _predicting(design), predict, sure.draws)


def _averaged(
    values: Callable[[Any], np.ndarray],
    rows: Any,
    quantities: int,
    sure: _Sure,
    new: "_Drawn | None" = None,
) -> Forecast:
    """Averages values [S, n, m] over draws, a chunk of rows at a time; ``new`` draws outcomes."""
    together = max(1, _AT_ONCE // (sure.draws * quantities))
    columns = rows if isinstance(rows, dict) else {"x": rows}
    count = len(next(iter(columns.values())))
    found = []
    for start in range(0, count, together):
        piece = {name: column[start : start + together] for name, column in columns.items()}
        drawn = values(piece if isinstance(rows, dict) else piece["x"])
        low, high = np.quantile(drawn, sure.ends, axis=0)
        outcome = (None if new is None else new.interval(piece)) or []
        found.append((drawn.mean(axis=0), drawn.std(axis=0, ddof=1), low, high, *outcome))
    return Forecast(*(np.concatenate(each) for each in zip(*found, strict=True)))


def _of_numpyro(assembly: Assembly, posterior: Eta, sure: _Sure) -> Predictor:
    """Predicts the one column that a NumPyro model draws, from its distribution over draws of θ."""
    model, design = assembly.model, assembly.design
    drawn = ancestral.outcomes(model)
    if len(drawn) != 1 or len(drawn) == len(model.record):
        columns = ", ".join(f"`{outcome.column}`" for outcome in drawn)
        raise errors.ConfigError(
            f"model {model.name} draws {columns} of a record with {', '.join(model.record)}: it predicts "
            "no single outcome from others",
            "`fedvi synthesise` writes records of such a model",
        )
    (outcome,) = drawn
    what, labels, quantity = _quantity(assembly, outcome)
    column = _column(assembly, outcome)
    theta = draws_of.thetas(assembly.family, posterior, sure.draws, sure.seed)
    latents = draws_of.constrained(model, theta)

    where = f"model `{model.name}`: the law of `{outcome.site}`"

    @jax.jit
    def compiled(at: Any, records: Any) -> Any:
        law = ancestral.law(model, outcome, at, records)
        try:
            return quantity(law)
        except NotImplementedError:
            raise errors.ModelError(
                f"{where}, {type(law).__name__}, has no mean and variance in NumPyro",
                "take a law that has both, or write records of the model: `fedvi synthesise`",
            ) from None

    def values(records: dict[str, np.ndarray]) -> np.ndarray:
        with jax.enable_x64(True):
            each = jax.vmap(compiled, in_axes=(0, None))
            found: np.ndarray = np.asarray(each(latents, records))
        return found

    def records_of(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        count = len(next(iter(columns.values())))
        shape = model.record[outcome.column]
        kind = np.float64 if np.issubdtype(shape.dtype, np.floating) else shape.dtype
        empty = np.zeros((count, *shape.shape), kind)
        if design is None:
            given = {name: columns[name] for name in model.record if name != outcome.column}
            return {**given, outcome.column: empty}
        x, offset = _inputs(design, columns)
        if outcome.first:
            empty[:, 1] = offset
        return {"x": x, "y": empty}

    new = _Drawn(model, outcome, latents, sure, column) if isinstance(column, Number) else None

    def predict(columns: Mapping[str, np.ndarray]) -> Forecast:
        return _averaged(values, records_of(columns), len(labels), sure, new)

    needed = _predicting(design) if design is not None else _given(model, outcome, assembly.schema)
    unknown = f"{where} has no finite mean and variance in some draws of the posterior"
    return Predictor(what, labels, needed, predict, sure.draws, unknown)


class _Drawn:
    """Draws new outcomes of a NumPyro model, one at each θ, and returns their quantiles.

    Every record uses the same random numbers, so that its interval depends on no other record in the file.
    """

    def __init__(
        self,
        model: RunsForwards,
        outcome: ancestral.Outcome,
        latents: Mapping[str, np.ndarray],
        sure: _Sure,
        column: Number,
    ) -> None:
        self._sure, self._column, self._latents = sure, column, latents
        self._whole = self._rates = False

        def one(key: Any, at: Any, record: Mapping[str, Any]) -> Any:
            alone = {name: each[None] for name, each in record.items()}
            law = ancestral.law(model, outcome, at, alone)
            self._whole = bool(law.support.is_discrete)
            rate = _rate(law, key)
            self._rates = rate is not None
            drawn = law.sample(key) if rate is None else rate
            return jnp.broadcast_to(drawn, (1,))[0].astype(float)

        over_records = jax.vmap(one, in_axes=(None, None, 0))
        self._draw = jax.jit(jax.vmap(over_records, in_axes=(0, 0, None)))

    def interval(self, records: Mapping[str, np.ndarray]) -> list[np.ndarray] | None:
        """Returns both ends and their standard error, [n, 1] each; None if the law cannot be sampled."""
        try:
            with jax.enable_x64(True):
                keys = jax.random.split(jax.random.key(self._sure.seed), self._sure.draws)
                drawn = np.asarray(self._draw(keys, self._latents, records))
        except NotImplementedError:
            return None
        if self._rates:
            rates = np.clip(np.nan_to_num(drawn), 0.0, _LARGEST_COUNT)
            # A stream other than θ's, which begins with the same seed.
            seed = self._sure.seed, 1
            each = (np.random.default_rng(seed).poisson(rate) for rate in rates.T)
            drawn = np.stack(list(each), axis=1)
        # The quantile of S draws at p has a standard error of √(p(1 − p)/S) in probability.
        off = [math.sqrt(end * (1.0 - end) / self._sure.draws) for end in self._sure.ends]
        wanted = [
            min(max(end + sign * apart, 0.0), 1.0)
            for sign in (0.0, -1.0, 1.0)
            for end, apart in zip(self._sure.ends, off, strict=True)
        ]
        method: Any = "inverted_cdf" if self._whole else "linear"
        found = np.quantile(drawn, wanted, axis=0, method=method)[..., None]
        unit = self._column.scale
        error = 0.5 * unit * np.maximum(found[4] - found[2], found[5] - found[3])
        return [*(self._column.center + unit * found[:2]), error]


def _rate(law: Any, key: Any) -> Any:
    """Returns the rate of a count that is Poisson given its rate, or None.

    JAX draws all such counts in one loop, as long as the slowest of them needs. NumPy is about fifteen
    times faster.
    """
    if isinstance(law, dist.Poisson):
        return law.rate
    if isinstance(law, dist.GammaPoisson):
        return dist.Gamma(law.concentration, law.rate).sample(key)
    return None


def _given(model: RunsForwards, outcome: ancestral.Outcome, schema: Schema) -> tuple[str, ...]:
    """Returns the schema's columns that a model takes as input; an indicator counts as its own column."""
    indicators = {indicator_name(name): name for name in schema}
    names = [indicators.get(name, name) for name in model.record if name != outcome.column]
    return tuple(dict.fromkeys(names))


# Kinds that know the meaning of several columns left of `~`.
_OF_SEVERAL = {
    "counts": '"binomial" or "multivariate_linear"',
    "several": '"multivariate_linear"',
    "survival": '"survival"',
}


def _quantity(
    assembly: Assembly, outcome: ancestral.Outcome
) -> tuple[str, tuple[str, ...], Callable[[Any], Any]]:
    """Returns the predicted quantity in words, its labels, and law [n] → values [n, m].

    Values are NaN where a number's law has no finite mean and variance.

    Raises:
      ConfigError: the meaning of the response is unknown.
    """
    design = assembly.design
    text = outcome.column if design is None else design.response.text
    column = _column(assembly, outcome)
    if design is not None and design.response.type in ("counts", "several", "survival"):
        raise errors.ConfigError(
            f"the response {text} belongs to the study's own model, so that its meaning is unknown",
            "predict single columns, or take `kind` " + _OF_SEVERAL[design.response.type],
        )

    def check(law: Any) -> None:
        is_density = not law.support.is_discrete
        name = type(law).__name__
        ancestral.check_whole(assembly.model, outcome.site, name, is_density, text)

    if isinstance(column, Level):
        levels = range(len(column.levels))

        def chances(law: Any) -> Any:
            check(law)
            each = [jnp.exp(law.log_prob(jnp.full(law.batch_shape, k))) for k in levels]
            return jnp.stack(each, axis=-1)

        return f"probability of each level of {text}", column.levels, chances
    if isinstance(column, Binary):

        def chance(law: Any) -> Any:
            check(law)
            return jnp.exp(law.log_prob(jnp.ones(law.batch_shape)))[..., None]

        return f"probability that {text} is true", ("",), chance
    assert isinstance(column, Number)
    unit, centre = column.scale, column.center

    def mean(law: Any) -> Any:
        known = jnp.isfinite(law.mean) & jnp.isfinite(law.variance)
        return jnp.where(known, centre + unit * law.mean, jnp.nan)[..., None]

    return f"mean of {text}, in the unit of the file", ("",), mean


def _column(assembly: Assembly, outcome: ancestral.Outcome) -> Any:
    """Returns the declared column of an outcome, or the first of several."""
    design = assembly.design
    return assembly.schema[outcome.column if design is None else design.response.columns[0]]
