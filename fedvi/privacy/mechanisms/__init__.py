"""Noise mechanisms: each file is one, listed here and named by `mechanism` in a study."""

from fedvi.privacy.mechanisms.discrete_gaussian import discrete_gaussian
from fedvi.privacy.mechanisms.gaussian import gaussian
from fedvi.privacy.mechanisms.rounded_gaussian import rounded_gaussian

__all__ = ["discrete_gaussian", "gaussian", "rounded_gaussian"]
