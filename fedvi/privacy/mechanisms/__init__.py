"""Noise: each file is one mechanism; a new one is listed here and named by `mechanism` in a study."""

from fedvi.privacy.mechanisms.gaussian import gaussian

__all__ = ["gaussian"]
