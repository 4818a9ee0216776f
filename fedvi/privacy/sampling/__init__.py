"""Which records a step sees, and the accounting event that goes with it; one file a sampler."""

from fedvi.privacy.sampling.feistel import feistel
from fedvi.privacy.sampling.full import full
from fedvi.privacy.sampling.poisson import poisson

__all__ = ["feistel", "full", "poisson"]
