"""Samplers: which records a step uses, and its accounting event; one file each."""

from fedvi.privacy.sampling.feistel import feistel
from fedvi.privacy.sampling.full import full
from fedvi.privacy.sampling.poisson import poisson

__all__ = ["feistel", "full", "poisson"]
