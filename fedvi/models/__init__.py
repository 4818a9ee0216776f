"""Models: each file defines one, and this file lists their factories."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedvi.models.counts import binomial, negative_binomial, poisson
    from fedvi.models.factor_statistics import FactorAnalysis as factor_analysis
    from fedvi.models.glm import linear, logistic
    from fedvi.models.hazards import survival
    from fedvi.models.lda import LatentDirichlet as latent_dirichlet
    from fedvi.models.markov_statistics import HiddenMarkov as hidden_markov
    from fedvi.models.mixture_statistics import GaussianMixture as gaussian_mixture
    from fedvi.models.multivariate import multivariate_linear
    from fedvi.models.network_statistics import DiscreteNetwork as discrete_network
    from fedvi.models.numpyro import numpyro_model
    from fedvi.models.sbn import SigmoidBeliefNetwork as sigmoid_belief_network
    from fedvi.models.softmax import multinomial
    from fedvi.models.unknown_noise import UnknownNoise as linear_unknown_noise

__all__ = [
    "binomial",
    "discrete_network",
    "factor_analysis",
    "gaussian_mixture",
    "hidden_markov",
    "latent_dirichlet",
    "linear",
    "linear_unknown_noise",
    "logistic",
    "multinomial",
    "multivariate_linear",
    "negative_binomial",
    "numpyro_model",
    "poisson",
    "sigmoid_belief_network",
    "survival",
]

NAMED: tuple[str, ...] = tuple(name for name in __all__ if name != "numpyro_model")
"""Kinds of model that a study can name, beside ``FUNCTIONS`` and the models of plug-ins."""

# Kind -> NumPyro function. They are functions of the records, and no factories.
_FUNCTIONS = {
    "bnn_classification": "fedvi.models.bnn:classification",
    "bnn_regression": "fedvi.models.bnn:regression",
    "overdispersed_counts": "fedvi.models.overdispersed:negative_binomial",
}
FORMER = {address: name for name, address in _FUNCTIONS.items()}
FUNCTIONS: tuple[str, ...] = tuple(_FUNCTIONS)
"""NumPyro functions that a study can name; their θ is on an unconstrained scale."""

# Kind -> class. These modules do not import JAX, since servers load them.
_CONJUGATE = {
    "discrete_network": "fedvi.models.network_statistics:DiscreteNetwork",
    "factor_analysis": "fedvi.models.factor_statistics:FactorAnalysis",
    "gaussian_mixture": "fedvi.models.mixture_statistics:GaussianMixture",
    "hidden_markov": "fedvi.models.markov_statistics:HiddenMarkov",
    "latent_dirichlet": "fedvi.models.lda:LatentDirichlet",
    "linear_unknown_noise": "fedvi.models.unknown_noise:UnknownNoise",
    "sigmoid_belief_network": "fedvi.models.sbn:SigmoidBeliefNetwork",
}
CONJUGATE: tuple[str, ...] = tuple(_CONJUGATE)
"""Conjugate-exponential models: they have their own family, and ``vips`` fits them."""

# Factory -> module that defines it. Imported on first use, so that listing models needs no JAX.
_FACTORIES = {
    "binomial": "fedvi.models.counts",
    "linear": "fedvi.models.glm",
    "logistic": "fedvi.models.glm",
    "multinomial": "fedvi.models.softmax",
    "multivariate_linear": "fedvi.models.multivariate",
    "negative_binomial": "fedvi.models.counts",
    "numpyro_model": "fedvi.models.numpyro",
    "poisson": "fedvi.models.counts",
    "survival": "fedvi.models.hazards",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _CONJUGATE or name in _FUNCTIONS:
            module, _, kind = (_CONJUGATE | _FUNCTIONS)[name].partition(":")
            return getattr(importlib.import_module(module), kind)
        if name not in _FACTORIES:
            message = f"module 'fedvi.models' has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=sys.modules[__name__])
        return getattr(importlib.import_module(_FACTORIES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
