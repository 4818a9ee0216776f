"""Scores a conjugate model's predictions of public records, by the model's own measure if it has one.

Not private: every figure is computed from the test records as they are.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.data.source import ArraySource
from fedvi.expfam.draws import thetas
from fedvi.models.capabilities import HasDensity, Measure, Measures, at_draw
from fedvi.models.forwards import LIKELIHOOD
from fedvi.report.tables import plain
from fedvi.typing import Eta

__all__ = ["HeldOut", "measure"]


class HeldOut(NamedTuple):
    """A posterior's predictions of whole records.

    Attributes:
      rows: how many records were used.
      left_out: how many count as zero by the schema or the model.
      measure: "mean log-likelihood", over records, of log ∫ p(record | θ) q(θ) dθ; "completion
        perplexity", of half of each document's words given the others; or "share of units that are read
        off right", of visible units given the same record's hidden ones.
      value: of the measure.
      draws: of θ; 0 if the integral has a closed form, or means are used instead.
      beside: further figures by name.
    """

    rows: int
    left_out: int
    measure: str
    value: float
    draws: int
    beside: tuple[tuple[str, float], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON, with infinity as a text."""
        found: dict[str, Any] = plain(self._asdict() | {"beside": dict(self.beside)})
        return found


def measure(
    model: Any, posterior: Eta, records: ArraySource, draws: int = 200, seed: int = 0
) -> HeldOut:
    """Scores a conjugate model on test records.

    The records must be public, or belong to the figures' readers, and must not be records that the
    posterior was fitted to.

    Args:
      model: conjugate.
      posterior: η of a proper q.
      records: laid out as the model wants them.
      draws: of θ, where they are needed.
      seed: of the draws, and of the halves of documents.

    Raises:
      ConfigError: the model has no known likelihood, or ``draws`` is below 1.
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
    found = _measured(model, posterior, kept, draws, seed)
    return HeldOut(rows, left_out, *found)


def _measured(
    model: Any, posterior: Eta, kept: Mapping[str, np.ndarray], draws: int, seed: int
) -> Measure:
    """Uses the model's own measure; otherwise averages the likelihood over draws."""
    if isinstance(model, Measures):
        return model.measure(posterior, kept, draws, seed)
    if not isinstance(model, HasDensity):
        raise errors.ConfigError(
            f"model {type(model).__name__} has no likelihood of a record that could be computed here",
            "`fedvi synthesise` writes records of it, which can be held against others",
        )
    theta = thetas(model.family, posterior, draws, seed)
    parameters = model.parameters(theta)
    total = np.full(len(next(iter(kept.values()))), -np.inf)
    for index in range(draws):
        total = np.logaddexp(total, model.log_density(at_draw(parameters, index), kept))
    return Measure(LIKELIHOOD, float(total.mean() - math.log(draws)), draws)
