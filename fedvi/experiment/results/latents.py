"""Infers the latents of new records under a conjugate model: topics, components, factors."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.models.factor_statistics import FactorAnalysis
from fedvi.models.lda import LatentDirichlet, document_topics
from fedvi.models.mixture_statistics import GaussianMixture
from fedvi.typing import Eta

__all__ = ["Latents", "latents_of"]


class Latents(NamedTuple):
    """How the latents of new records are told, at the posterior of the parameters.

    Attributes:
      what: they are, in words.
      labels: of the m numbers.
      values: records in the model's layout → [n, m].
    """

    what: str
    labels: tuple[str, ...]
    values: Callable[[Mapping[str, np.ndarray]], np.ndarray]


def latents_of(model: Any, posterior: Eta) -> Latents:
    """Returns how a conjugate model tells the latents of new records.

    Raises:
      ConfigError: nothing is known of this model's.
    """
    if isinstance(model, LatentDirichlet):
        return Latents(
            "mean shares of topics of each document",
            tuple(f"topic {k + 1}" for k in range(model.topics)),
            lambda records: document_topics(model, posterior, records),
        )
    if isinstance(model, GaussianMixture):
        return Latents(
            "probability of each component",
            tuple(f"component {k + 1}" for k in range(model.components)),
            lambda records: model.responsibilities(posterior, records["x"]),
        )
    if isinstance(model, FactorAnalysis):
        return Latents(
            "mean of each factor",
            tuple(f"factor {k + 1}" for k in range(model.factors)),
            lambda records: model.scores(posterior, records["x"]),
        )
    raise errors.ConfigError(
        f"of model {type(model).__name__} neither an outcome nor latents of new records can be told",
        "`fedvi posterior` writes draws of its parameters; `fedvi synthesise` writes records of models of "
        "whole records",
    )
