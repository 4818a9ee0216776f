"""Measures how well a conjugate model predicts records that need no protection.

Not private: every figure is computed from the test records as they are.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.special

from fedvi import errors
from fedvi.data.source import ArraySource
from fedvi.experiment.results import draws as draws_of
from fedvi.experiment.results import generative, lines
from fedvi.models.factor_statistics import FactorAnalysis
from fedvi.models.lda import LatentDirichlet, completion_perplexity
from fedvi.models.markov_statistics import HiddenMarkov
from fedvi.models.mixture_statistics import GaussianMixture
from fedvi.models.network_statistics import DiscreteNetwork
from fedvi.models.sbn import SigmoidBeliefNetwork
from fedvi.models.unknown_noise import UnknownNoise
from fedvi.typing import Eta

__all__ = ["HeldOut", "measure"]

_LOG_2PI = math.log(2.0 * math.pi)
_PERPLEXITY = "completion perplexity"
_LIKELIHOOD = "mean log-likelihood"
_RECONSTRUCTED = "share of units that are read off right"
_CONSTANT = "the same, were each unit always what it is most often"
_AT_LEAST = "mean log-likelihood, at least"
# Numbers of units that are in memory at a time.
_AT_ONCE = 1 << 22


class HeldOut(NamedTuple):
    """A posterior's predictions of whole records.

    Attributes:
      rows: how many records were used.
      left_out: how many the schema, or the model, lets count as zero.
      measure: "mean log-likelihood", over records, of log ∫ p(record | θ) q(θ) dθ; "completion
        perplexity", of half of each document's words given the others; or "share of units that are read
        off right", of visible units given the hidden ones that the same record says.
      value: of the measure.
      draws: of θ; 0 where the integral has a closed form, or means stand for it.
      beside: further figures by name.
    """

    rows: int
    left_out: int
    measure: str
    value: float
    draws: int
    beside: tuple[tuple[str, float], ...] = ()


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
    if isinstance(model, SigmoidBeliefNetwork):
        return _beliefs(model, posterior, kept["y"], left_out, draws, seed)
    if isinstance(model, DiscreteNetwork):
        # Exact: tables are independent, and a record has one cell of each.
        logs = _network(model, model.tables(posterior), kept)
        return HeldOut(rows, left_out, _LIKELIHOOD, float(logs.mean()), 0)
    if isinstance(model, UnknownNoise):
        logs = lines.log_density(model, posterior, kept)
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


def _beliefs(
    model: SigmoidBeliefNetwork,
    posterior: Eta,
    y: np.ndarray,
    left_out: int,
    draws: int,
    seed: int,
) -> HeldOut:
    """Measures how much of a record the hidden units keep, and bounds its likelihood.

    Source: Gan et al. (2015), AISTATS, and Park et al. (2020), JAIR 68, for the pixel-wise prediction.
    """
    chance = model.reconstructed(posterior, y)
    right = float(((chance > 0.5) == (y > 0.5)).mean())
    lit = (y > 0.5).mean(axis=0)
    constant = float(np.maximum(lit, 1.0 - lit).mean())
    least = float(_bound(model, posterior, y, draws, seed).mean())
    beside = ((_CONSTANT, constant), (_AT_LEAST, least))
    return HeldOut(len(y), left_out, _RECONSTRUCTED, right, draws, beside)


def _bound(
    model: SigmoidBeliefNetwork, posterior: Eta, y: np.ndarray, draws: int, seed: int
) -> np.ndarray:
    """Returns a lower bound on log ∫ p(y | θ) q(θ) dθ of each record, in expectation, [n].

    The log of the mean over draws of p(y, z | θ) / r(z), θ ~ q and z ~ r, with r the E step's law of the
    hidden units given y. The mean is right on average, so that its log is too low on average.

    Source: Burda, Grosse and Salakhutdinov (2016), arXiv:1509.00519, equation 8.
    """
    theta = draws_of.thetas(model.family, posterior, draws, seed)
    kind = generative.kind_of(model)
    assert kind is not None
    parameters = kind.parameters(model, theta)
    # Not the stream that θ came from, which begins with the same seed.
    random, messages = np.random.default_rng((seed, 1)), model.messages(posterior)
    expected = jax.jit(model.expected)
    together = max(1, _AT_ONCE // model.visible)
    found = []
    for start in range(0, len(y), together):
        part = y[start : start + together]
        # Float32 may round a probability to 1: no draw is then out of it.
        lit = np.asarray(expected(messages, {"y": part})["z"], np.float64)
        total = np.full(len(part), -np.inf)
        for index in range(draws):
            at = {name: each.values[index] for name, each in parameters.items()}
            z = (random.uniform(size=lit.shape) < lit).astype(np.float64)
            ratio = _bernoulli(at["hidden_biases"], z) - _log_chance(lit, z)
            along = z @ at["weights"].T + at["visible_biases"]
            total = np.logaddexp(total, ratio + _bernoulli(along, part))
        found.append(total - math.log(draws))
    return np.concatenate(found)


def _bernoulli(logits: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Returns Σ log p(unit) of units that are 0 or 1, at the log odds of 1, over the last axis."""
    return np.asarray(-np.logaddexp(0.0, np.where(units > 0.5, -logits, logits)).sum(axis=-1))


def _log_chance(lit: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Returns the same of units that were drawn with the probabilities ``lit``."""
    return np.asarray(np.log(np.where(units > 0.5, lit, 1.0 - lit)).sum(axis=-1))


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
}
