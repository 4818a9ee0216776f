"""How well a conjugate model predicts records that nobody needs to protect; add a model's measure here.

Not private: every figure is computed from the test records as they are.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.special

from fedvi import errors
from fedvi.data.source import ArraySource
from fedvi.experiment import draws as draws_of
from fedvi.experiment import generative
from fedvi.models.factor_statistics import FactorAnalysis
from fedvi.models.lda import LatentDirichlet, completion_perplexity
from fedvi.models.markov_statistics import HiddenMarkov
from fedvi.models.mixture_statistics import GaussianMixture
from fedvi.models.network_statistics import DiscreteNetwork
from fedvi.models.unknown_noise import UnknownNoise
from fedvi.typing import Eta

__all__ = ["HeldOut", "measure"]

_LOG_2PI = math.log(2.0 * math.pi)
_PERPLEXITY = "completion perplexity"
_LIKELIHOOD = "mean log-likelihood"


class HeldOut(NamedTuple):
    """A posterior's predictions of whole records.

    Attributes:
      rows: how many records were used.
      left_out: how many the schema, or the model, lets count as zero.
      measure: "mean log-likelihood", over records, of log ∫ p(record | θ) q(θ) dθ; or "completion
        perplexity", of half of each document's words given the others.
      value: of the measure.
      draws: of θ; 0 where the integral has a closed form, or means stand for it.
    """

    rows: int
    left_out: int
    measure: str
    value: float
    draws: int


def measure(
    model: Any, posterior: Eta, records: ArraySource, draws: int = 200, seed: int = 0
) -> HeldOut:
    """Holds a conjugate model against test records.

    The records must be public, or belong to whoever reads the figures, and be none of those that the
    posterior was fitted to.

    Args:
      model: conjugate.
      posterior: η of a proper q.
      records: laid out as the model wants them.
      draws: of θ, where they are needed.
      seed: of the draws, and of the halves of documents.

    Raises:
      ConfigError: nothing is known of this model's likelihood, or ``draws`` is below 1.
      DataError: there is no record that counts.
    """
    kept = {name: column[records.valid] for name, column in records.records.items()}
    rows = int(records.valid.sum())
    if rows == 0:
        raise errors.DataError(
            "the test file has no record that counts",
            "does it fit what the study's [model] declares? A record that does not counts as zero",
        )
    left_out = records.size - rows
    if isinstance(model, LatentDirichlet):
        value = completion_perplexity(model, posterior, kept, seed)
        return HeldOut(rows, left_out, _PERPLEXITY, value, 0)
    if isinstance(model, DiscreteNetwork):
        # Exact: tables are independent, and a record has one cell of each.
        logs = _network(model, model.tables(posterior), kept)
        return HeldOut(rows, left_out, _LIKELIHOOD, float(logs.mean()), 0)
    log_density = _LOG_DENSITIES.get(type(model))
    kind = generative.kind_of(model)
    if log_density is None or kind is None:
        raise errors.ConfigError(
            f"model {type(model).__name__} has no likelihood of a record that could be computed here",
            "`fedvi synthesise` writes records of it, which can be held against others",
        )
    theta = draws_of.thetas(model.family, posterior, draws, seed)
    parameters = kind.parameters(model, theta)
    total = np.full(rows, -np.inf)
    for index in range(draws):
        at = {name: each.values[index] for name, each in parameters.items()}
        total = np.logaddexp(total, log_density(model, at, kept))
    return HeldOut(rows, left_out, _LIKELIHOOD, float(total.mean() - math.log(draws)), draws)


def _network(
    model: DiscreteNetwork, at: Mapping[str, np.ndarray], records: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Returns log p(levels) [n]; tables that need a missing level add nothing, as in the fit."""
    levels = np.asarray(records["levels"], np.int64)
    places = {name: index for index, name in enumerate(model.variables)}
    logs = np.zeros(len(levels))
    for name, parents in zip(model.variables, model.parents, strict=True):
        own = levels[:, places[name]]
        known, row = own >= 0, np.zeros_like(own)
        for parent in parents:
            level = levels[:, places[parent]]
            known &= level >= 0
            row = row * model.levels[places[parent]] + np.maximum(level, 0)
        logs += np.where(known, np.log(at[name][row, np.maximum(own, 0)]), 0.0)
    return logs


def _mixture(
    model: GaussianMixture, at: Mapping[str, np.ndarray], records: Mapping[str, np.ndarray]
) -> np.ndarray:
    scores = []
    for weight, mean, precision in zip(at["weights"], at["means"], at["precisions"], strict=True):
        root = np.linalg.cholesky(precision)
        apart = (records["x"] - mean) @ root
        constant = math.log(weight) + np.log(np.diag(root)).sum() - 0.5 * len(mean) * _LOG_2PI
        scores.append(constant - 0.5 * (apart**2).sum(axis=1))
    return np.asarray(scipy.special.logsumexp(scores, axis=0))


def _factors(
    model: FactorAnalysis, at: Mapping[str, np.ndarray], records: Mapping[str, np.ndarray]
) -> np.ndarray:
    covariance = at["loadings"] @ at["loadings"].T + np.diag(1.0 / at["precisions"])
    root = np.linalg.cholesky(covariance)
    apart = np.linalg.solve(root, (records["x"] - at["centres"]).T)
    constant = np.log(np.diag(root)).sum() + 0.5 * len(root) * _LOG_2PI
    return np.asarray(-0.5 * (apart**2).sum(axis=0) - constant)


def _line(
    model: UnknownNoise, at: Mapping[str, np.ndarray], records: Mapping[str, np.ndarray]
) -> np.ndarray:
    residual = records["y"] - records["x"] @ at["coefficients"]
    precision = at["noise_precision"]
    return np.asarray(0.5 * (np.log(precision) - _LOG_2PI - precision * residual**2))


def _chain(
    model: HiddenMarkov, at: Mapping[str, np.ndarray], records: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Returns the log probability of each sequence by the forward algorithm, scaled at each step."""
    symbols, length = records["symbols"].astype(np.int64), records["length"]
    logs = np.zeros(len(symbols))
    state = np.tile(at["start"], (len(symbols), 1))
    for step in range(model.length):
        now = symbols[:, step]
        seen = (now >= 0) & (now < model.symbols)
        chance = np.where(seen[:, None], at["emit"].T[np.where(seen, now, 0)], 1.0)
        joint = state * chance
        total = joint.sum(axis=1)
        stands = step < length
        logs += np.where(stands, np.log(total), 0.0)
        state = np.where(stands[:, None], (joint / total[:, None]) @ at["move"], state)
    return logs


_LOG_DENSITIES: dict[
    type, Callable[[Any, Mapping[str, np.ndarray], Mapping[str, np.ndarray]], np.ndarray]
] = {
    FactorAnalysis: _factors,
    GaussianMixture: _mixture,
    HiddenMarkov: _chain,
    UnknownNoise: _line,
}
