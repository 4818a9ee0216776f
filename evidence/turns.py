"""Candidates of `benchmarks/rivals.py`, which take turns, each held to one core."""

import functools
import statistics
from typing import Any

from evidence.base import script

__all__ = ["end", "rivals", "running", "timed"]

_running: dict[str, dict[Any, Any]] = {}


@functools.cache
def rivals() -> Any:
    """The script that starts candidates and times them."""
    return script("benchmarks/rivals.py")


def timed(
    name: str, case: str, candidates: list[Any], turns: int
) -> dict[Any, tuple[float, float]]:
    """Returns the median microseconds of a candidate's step: of the processor, and of the clock.

    Processes of one name serve all seeds of it, and end when the next name comes.
    """
    if name not in _running:
        end()
        _running[name] = rivals().opened(case, candidates, one_core=True)
    return {
        candidate: (
            1e6 * statistics.median(used for _, used in seconds),
            1e6 * statistics.median(clock for clock, _ in seconds),
        )
        for candidate, seconds in rivals().timed(running(), turns).items()
    }


def running() -> dict[Any, Any]:
    """The processes of the present name, by candidate."""
    return next(iter(_running.values()), {})


def end() -> None:
    """Ends them."""
    rivals().closed(running())
    _running.clear()
