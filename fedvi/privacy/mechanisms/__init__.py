"""Noise mechanisms, one file each; a study chooses one by its key `mechanism`."""

from fedvi.privacy.mechanisms.discrete_gaussian import discrete_gaussian
from fedvi.privacy.mechanisms.gaussian import gaussian
from fedvi.privacy.mechanisms.rounded_gaussian import rounded_gaussian

__all__ = ["discrete_gaussian", "gaussian", "rounded_gaussian"]
