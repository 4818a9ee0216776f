"""Checks the settings that all schedules share, such as `rounds` and `tolerance`."""

import math

from fedvi import errors

__all__ = ["check_count", "check_settings"]


def check_settings(rounds: int, tolerance: float | int) -> None:
    """Rejects settings with which a run could not begin, or its end would be meaningless.

    Raises:
      ConfigError: unless ``rounds`` ≥ 1 and ``tolerance`` is finite and not negative.
    """
    check_count("rounds", rounds, 1, "rounds are passes over all clients; ten are a good start")
    if not (math.isfinite(tolerance) and tolerance >= 0.0):
        raise errors.ConfigError(
            f"schedule.tolerance is {tolerance}, expected a finite number of at least 0",
            "it is in posterior sds, such as 0.01; leave it out, and all rounds are run",
        )


def check_count(name: str, value: int, least: int, hint: str) -> None:
    """Rejects a count that is too small.

    Raises:
      ConfigError: ``value`` is below ``least``.
    """
    if value < least:
        raise errors.ConfigError(f"schedule.{name} is {value}, expected at least {least}", hint)
