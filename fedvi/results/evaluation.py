"""Measures how well a posterior predicts records that need no protection.

Not private: every figure is computed from the test records as they are.
"""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from fedvi import errors
from fedvi.data.source import ArraySource
from fedvi.expfam.base import Gaussian
from fedvi.inference.local_latents import local_problem
from fedvi.models.capabilities import HasOutcome, Regression, RunsForwards
from fedvi.models.outcomes.base import Predicts, Scatters, measured
from fedvi.report import tables
from fedvi.results import ancestral, held_out, result_json, run_folder
from fedvi.results import draws as draws_of
from fedvi.results import posterior as posteriors
from fedvi.results.finished import Finished
from fedvi.results.held_out import HeldOut
from fedvi.results.scores import (
    Classes,
    Numbers,
    area_under_curve,
    groups_of,
    summary,
    weighted_groups,
)
from fedvi.run import loading
from fedvi.study.build import Assembly, assemble
from fedvi.typing import Eta, Records
from fedvi.updates.conjugate import brings_family

__all__ = [
    "Evaluation",
    "evaluate",
    "held_against",
    "read_records",
    "read_run",
]

# Nodes of the expectation over one record's linear predictor: 1e-8 for a logistic one of sd 3.
_NODES = 64
# The most numbers in one evaluation of the likelihood.
_AT_ONCE = 1 << 20
# A count's law is summed up to at most this count, until at most this probability is left beyond.
_LARGEST_COUNT = 5000
_LEFT = 1e-6


class Evaluation(NamedTuple):
    """How well a posterior predicts test records.

    Attributes:
      rows: how many records were used.
      left_out: how many count as zero by the schema.
      outcome: "binary", "binomial", "level", "number", "count", or "other" if only the likelihood is known.
      mean_log_likelihood: mean over records of log ∫ p(y | x, θ) q(θ) dθ.
      density_per: the unit of that density: "file" if outcomes are in the file's units, "model" if the
        units of the model's terms are unknown; "" for a probability.
      error: its standard error from drawing θ; None if the integral was done by quadrature.
      draws: of θ; 0 for quadrature.
      classes: for "binary" and "level"; for "binomial", of its trials, or None if there is no trial.
      numbers: for "number" and "count"; for "binomial", of the number of events of records with trials.
        None if it would take too long, or is unknown.
    """

    rows: int
    left_out: int
    outcome: str
    mean_log_likelihood: float
    error: float | None
    draws: int
    classes: Classes | None = None
    numbers: Numbers | None = None
    density_per: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        found = self._asdict()
        if self.classes is not None:
            groups = [group._asdict() for group in self.classes.groups]
            found["classes"] = self.classes._asdict() | {"groups": groups}
        if self.numbers is not None:
            found["numbers"] = self.numbers._asdict()
        plain: dict[str, Any] = tables.plain(found)
        return plain


def read_run(folder: Path) -> Finished:
    """Reads the study and posterior of a finished run without its ledgers, so it makes no claims.

    Raises:
      ConfigError: a file is missing or damaged, or they do not belong together.
    """
    study, path = run_folder.study_of(folder)
    assembly = assemble(study)
    kept = posteriors.read(path, assembly.family, assembly.model.names)
    run_folder.check_told(study, result_json.read(path.with_name("result.json")), path)
    return Finished(assembly, kept.eta, kept.mark, study.digest, ())


def read_records(assembly: Assembly, path: Path) -> ArraySource:
    """Reads test records by the study's schema and formula, as a client would, but one unit per row.

    Raises:
      DataError: the file is missing or lacks a column; in a study without privacy, also if it does not
        fit the schema.
    """
    study = assembly.study
    # Test records need no unit or id column.
    nobody = study.data.model_copy(update={"unit_column": None, "id_column": None})
    by_row = dataclasses.replace(assembly, study=study.model_copy(update={"data": nobody}))
    return loading.load_shard(by_row, path.name, path)


def held_against(
    run: Finished, records: ArraySource, draws: int | None = None
) -> Evaluation | HeldOut:
    """Evaluates a run on test records: its outcome, or whole records if the model generates these.

    Args:
      run: a finished run.
      records: from ``read_records``; they must be public, see ``evaluate``.
      draws: of θ, where needed; None for 1,000, or 200 for whole records.

    Raises:
      ConfigError, DataError, ModelError: see ``evaluate`` and ``fedvi.results.held_out``.
    """
    model = run.assembly.model
    if brings_family(model):
        return held_out.measure(model, run.posterior, records, draws or 200)
    return evaluate(run.assembly, run.posterior, records, draws or 1000)


def evaluate(
    assembly: Assembly, posterior: Eta, records: ArraySource, draws: int = 1000, seed: int = 0
) -> Evaluation:
    """Evaluates a posterior's predictions on test records.

    The figures are computed from the records without protection, so these must be public, or belong to
    the figures' readers. They must not be records that the posterior was fitted to.

    With one linear predictor a per record, q makes a ~ N(xᵀm, xᵀSx), and integrals over θ are integrals
    over a, by Gauss–Hermite quadrature. Other models are averaged over draws of θ. Where sites have
    effects, each record is predicted as one of a new site, whose effects are drawn with θ.

    Args:
      assembly: the study, built; its family is a full or diagonal Gaussian.
      posterior: η of a proper q.
      records: from ``read_records``, or laid out as the model wants them.
      draws: of θ, where they are needed.
      seed: of the draws.

    Raises:
      ConfigError: q is not Gaussian, or ``draws`` is below 2.
      DataError: there is no record that counts.
      ModelError: the outcome is binary or has levels, and a NumPyro model's law is a density.
    """
    if not isinstance(assembly.family, Gaussian):
        raise errors.ConfigError(
            f"family is {type(assembly.family).__name__}, expected a Gaussian",
            "predictions are averaged over a Gaussian q",
        )
    if draws < 2:
        raise errors.ConfigError(f"draws is {draws}, expected 2 or more", "1000 are a good start")
    source = records.flat()
    kept = {name: column[source.valid] for name, column in source.records.items()}
    rows = int(source.valid.sum())
    if rows == 0:
        raise errors.DataError(
            "the test file has no record that counts",
            "do its cells fit the study's schema? A record that does not counts as zero",
        )
    local = local_problem(assembly.family, assembly.model)
    model, posterior = local.new_site(posterior)
    assembly = dataclasses.replace(assembly, model=model, family=local.family)
    kept = local.records(kept)
    predictive = _predictive(assembly, posterior, draws, seed)
    drawn = _drawn(assembly, posterior, kept)
    outcome, levels = _outcome(assembly)
    if outcome in ("binary", "level"):
        for law in drawn or ():
            text = assembly.design.response.text
            ancestral.check_whole(assembly.model, law.outcome.site, law.name, law.is_density, text)
    elif outcome == "count" and any(law.is_density for law in drawn or ()):
        outcome = "other"  # a density at whole numbers does not sum to 1
    per, unit = _unit_of_density(assembly, drawn)
    value, error = predictive.mean_log_density(kept)
    value -= unit
    classes = numbers = None
    if outcome in ("binary", "level"):
        classes = _classes(predictive, kept, levels)
    elif outcome == "number":
        numbers = _numbers(assembly, posterior, kept)
    elif outcome == "count":
        numbers = _counts(predictive, kept)
    elif outcome == "binomial":
        classes, numbers = _trials(predictive, kept)
    return Evaluation(
        rows=rows,
        left_out=source.size - rows,
        outcome=outcome,
        mean_log_likelihood=value,
        error=error,
        draws=predictive.draws,
        classes=classes,
        numbers=numbers,
        density_per=per,
    )


class _Predictive(NamedTuple):
    """A way to average over q.

    Attributes:
      log_density: records → log ∫ p(y | x, θ) q(θ) dθ of each.
      mean_log_density: records → the mean of that, and its standard error.
      draws: of θ; 0 for quadrature.
    """

    log_density: Callable[[Records], np.ndarray]
    mean_log_density: Callable[[Records], tuple[float, float | None]]
    draws: int


def _predictive(assembly: Assembly, posterior: Eta, draws: int, seed: int) -> _Predictive:
    model = assembly.model
    if isinstance(model, Regression) and model.layout is None:
        return _by_quadrature(model, assembly.family, posterior)
    return _by_draws(model, assembly.family, posterior, draws, seed)


def _by_quadrature(model: Regression, family: Any, posterior: Eta) -> _Predictive:
    points, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    shares = np.log(weights / weights.sum())

    def log_density(records: Records) -> np.ndarray:
        mean, sd = family.along(posterior, records["x"])
        predictor = mean[None, :] + points[:, None] * sd[None, :]
        with jax.enable_x64(True):
            found = np.asarray(model.log_density(predictor, np.asarray(records["y"])[None]))
        log_mean: np.ndarray = scipy.special.logsumexp(found + shares[:, None], axis=0)
        return log_mean

    def chunked(records: Records) -> np.ndarray:
        return _in_parts(log_density, records, _AT_ONCE // _NODES)

    return _Predictive(chunked, lambda records: (float(chunked(records).mean()), None), 0)


def _by_draws(model: Any, family: Any, posterior: Eta, draws: int, seed: int) -> _Predictive:
    thetas = draws_of.thetas(family, posterior, draws, seed)
    compiled = jax.jit(
        jax.vmap(jax.vmap(model.log_likelihood, in_axes=(None, 0)), in_axes=(0, None))
    )

    def table(records: Records) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(compiled(jnp.asarray(thetas), records))

    def log_density(records: Records) -> np.ndarray:
        log_mean: np.ndarray = scipy.special.logsumexp(table(records), axis=0) - math.log(draws)
        return log_mean

    part = max(1, _AT_ONCE // draws)

    def mean_log_density(records: Records) -> tuple[float, float | None]:
        total, count, influence = 0.0, len(next(iter(records.values()))), np.zeros(draws)
        for piece in _parts(records, part):
            found = table(piece)
            mean = scipy.special.logsumexp(found, axis=0) - math.log(draws)
            total += mean.sum()
            # To first order, a draw moves the log of a mean by its share of the mean.
            influence += np.exp(found - mean[None, :]).sum(axis=1)
        return total / count, float(np.std(influence / count, ddof=1) / math.sqrt(draws))

    return _Predictive(
        lambda records: _in_parts(log_density, records, part), mean_log_density, draws
    )


def _parts(records: Records, rows: int) -> list[dict[str, np.ndarray]]:
    """Splits records into chunks of at most ``rows`` rows."""
    count = len(next(iter(records.values())))
    return [
        {name: column[start : start + rows] for name, column in records.items()}
        for start in range(0, count, rows)
    ]


def _in_parts(function: Callable[[Records], np.ndarray], records: Records, rows: int) -> np.ndarray:
    return np.concatenate([function(piece) for piece in _parts(records, rows)])


def _outcome(assembly: Assembly) -> tuple[str, int]:
    """Returns the kind of outcome, and how many classes it has."""
    model, design = assembly.model, assembly.design
    if design is None:
        return "other", 0
    response, outcome = design.response, _law(model)
    # The figures of a number need an exactly normal predictor.
    if outcome is not None and (isinstance(model, Regression) or measured(outcome) != "number"):
        kind = measured(outcome)
    else:
        # A NumPyro model may have any law of a number; of a count, its probabilities are enough.
        kind = response.type if response.type in ("level", "binary", "count") else "other"
    return kind, _CLASSES.get(kind, len(response.levels) if kind == "level" else 0)


_CLASSES = {"binary": 2, "binomial": 2}


def _law(model: Any) -> Any:
    """Returns how a model's outcome is distributed; None if it does not say."""
    return model.outcome if isinstance(model, HasOutcome) else None


def _labels(y: np.ndarray) -> np.ndarray:
    """Returns the outcomes [n], without the offset column."""
    return y[:, 0] if y.ndim == 2 else y


def _with_outcome(records: Records, value: float) -> dict[str, np.ndarray]:
    """Returns the records with the same outcome for all; offsets stay."""
    y = np.array(records["y"], np.float64)
    if y.ndim == 2:
        y[:, 0] = value
    else:
        y[:] = value
    return {**records, "y": y}


def _classes(predictive: _Predictive, records: Records, levels: int) -> Classes:
    logs = np.stack(
        [predictive.log_density(_with_outcome(records, float(k))) for k in range(levels)], axis=1
    )
    probabilities = np.exp(logs)
    # Truncating is safe: no built-in column holds a fractional class.
    labels = _labels(records["y"]).astype(int)
    chosen = probabilities.argmax(axis=1)
    hit = np.eye(levels)[labels]
    if levels == 2:
        score, came_true = probabilities[:, 1], labels == 1
        brier = float(((score - came_true) ** 2).mean())
    else:
        score, came_true = probabilities.max(axis=1), chosen == labels
        brier = float(((probabilities - hit) ** 2).sum(axis=1).mean())
    groups = groups_of(score, came_true)
    off = sum(group.rows * abs(group.predicted - group.observed) for group in groups)
    return Classes(
        accuracy=float((chosen == labels).mean()),
        majority=float(hit.mean(axis=0).max()),
        auc=area_under_curve(score, came_true, ~came_true) if levels == 2 else None,
        brier=brier,
        calibration_error=off / len(labels),
        groups=groups,
    )


def _numbers(assembly: Assembly, posterior: Eta, records: Records) -> Numbers | None:
    """Predicts y by its law at a ~ N(xᵀm + offset, xᵀSx), exactly if y is normal; None without a law."""
    law = _law(assembly.model)
    if not isinstance(law, Predicts) or not isinstance(law, Scatters):
        return None
    mean, sd = assembly.family.along(posterior, records["x"])
    y, labels = records["y"], _labels(records["y"])
    if y.ndim == 2:
        mean = mean + y[:, 1]
    exact = getattr(law, "predictive_sd", None)
    if exact is not None:
        rank = scipy.special.ndtr((labels - mean) / exact(sd))
    else:
        points, weights = np.polynomial.hermite_e.hermegauss(_NODES)
        nodes, shares = law.mean(mean + points[:, None] * sd), weights / weights.sum()
        rank, mean = shares @ law.cdf(labels, nodes), shares @ nodes
    return summary(labels, mean, rank, rank, _unit(assembly))


def _counts(predictive: _Predictive, records: Records) -> Numbers | None:
    """Scores predictions of counts."""

    def mass(count: float) -> np.ndarray:
        return np.exp(predictive.log_density(_with_outcome(records, count)))

    return _added_up(mass, _labels(records["y"]), None)


def _added_up(
    mass: Callable[[float], np.ndarray], outcomes: np.ndarray, most: float | None
) -> Numbers | None:
    """Sums a predictive law over whole numbers from 0 to ``most``; None if there are too many.

    Without ``most``, it sums until nearly all of the probability is reached.
    """
    if (outcomes.max() if most is None else most) > _LARGEST_COUNT:
        return None
    below, up_to, mean, total = (np.zeros(len(outcomes)) for _ in range(4))
    for count in range(int(_LARGEST_COUNT if most is None else most) + 1):
        here = mass(float(count))
        below += np.where(outcomes > count, here, 0.0)
        up_to += np.where(outcomes >= count, here, 0.0)
        mean, total = mean + count * here, total + here
        if most is None and count >= outcomes.max() and (total > 1.0 - _LEFT).all():
            break
    else:
        if most is None:
            return None
    return summary(outcomes, mean, below, up_to, 1.0)


def _trials(predictive: _Predictive, records: Records) -> tuple[Classes | None, Numbers | None]:
    """Scores predictions of single trials, and of each record's number of events."""
    has = np.asarray(records["y"])[:, :2].sum(axis=1) > 0.0
    if not has.any():
        return None, None
    records = {name: np.asarray(column)[has] for name, column in records.items()}
    events, others = records["y"][:, 0], records["y"][:, 1]
    one = np.ones_like(events)
    chance = np.exp(predictive.log_density(_with_events(records, one, 0.0 * one)))
    trials = events + others
    count = float(trials.sum())
    chosen = chance > 0.5
    groups = weighted_groups(chance, trials, events)
    off = sum(group.rows * abs(group.predicted - group.observed) for group in groups)
    classes = Classes(
        accuracy=float(np.where(chosen, events, others).sum() / count),
        majority=float(max(events.sum(), others.sum()) / count),
        auc=area_under_curve(chance, events, others),
        brier=float((events * (1.0 - chance) ** 2 + others * chance**2).sum() / count),
        calibration_error=off / count,
        groups=groups,
    )
    return classes, _events(predictive, records)


def _events(predictive: _Predictive, records: Records) -> Numbers | None:
    """Scores predictions of the number of events, given the number of trials."""
    events = records["y"][:, 0]
    trials = events + records["y"][:, 1]

    def mass(count: float) -> np.ndarray:
        some = np.minimum(count, trials)
        found = np.exp(predictive.log_density(_with_events(records, some, trials - some)))
        return np.where(count <= trials, found, 0.0)

    return _added_up(mass, events, float(trials.max()))


def _with_events(records: Records, events: np.ndarray, others: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the same records with other counts, [n] each; offsets stay."""
    y = np.array(records["y"], np.float64)
    y[:, 0], y[:, 1] = events, others
    return {**records, "y": y}


def _unit(assembly: Assembly) -> float:
    """Returns how many of the file's units are 1 in the model."""
    column = assembly.schema[assembly.design.response.columns[0]]
    return float(getattr(column, "scale", 1.0))


class _Law(NamedTuple):
    """The distribution of a column that a NumPyro model draws.

    Attributes:
      outcome: the column.
      name: of the law's class.
      is_density: whether it is continuous.
    """

    outcome: ancestral.Outcome
    name: str
    is_density: bool


def _drawn(assembly: Assembly, posterior: Eta, records: Records) -> tuple[_Law, ...] | None:
    """Returns the laws of a NumPyro model's columns; None for other models, and if they are unknown."""
    model = assembly.model
    if not isinstance(model, RunsForwards):
        return None
    mean, _ = assembly.family.moments(posterior)
    some = {name: column[:1] for name, column in records.items()}
    try:
        outcomes = ancestral.outcomes(model)
        with jax.enable_x64(True):
            latents = model.constrain(jnp.asarray(mean))
            laws = [ancestral.law(model, outcome, latents, some) for outcome in outcomes]
    except errors.ModelError:  # for instance a factor, whose meaning only its author knows
        return None
    return tuple(
        _Law(outcome, type(law).__name__, not law.support.is_discrete)
        for outcome, law in zip(outcomes, laws, strict=True)
    )


def _unit_of_density(assembly: Assembly, drawn: tuple[_Law, ...] | None) -> tuple[str, float]:
    """Returns ``density_per``, and the log of how many of the file's units are one of the model's."""
    design = assembly.design
    response = None if design is None else design.response
    if response is not None and response.type == "survival":
        return "file", 0.0  # its times are as the file has them
    outcome = _law(assembly.model)
    if outcome is not None:
        dense = "number", "several", *(() if measured(outcome) == "binomial" else ("counts",))
        columns = response.columns if response and response.type in dense else ()
    elif drawn is None:
        return ("", 0.0) if response and response.type in ("binary", "level") else ("model", 0.0)
    elif response is not None:
        columns = response.columns if any(law.is_density for law in drawn) else ()
    else:
        columns = tuple(law.outcome.column for law in drawn if law.is_density)
    scales = [float(getattr(assembly.schema.get(name), "scale", 1.0)) for name in columns]
    return "file" if columns else "", math.fsum(map(math.log, scales))
