"""Step rules of `schedule.damping`: how large a step the server takes along the clients' answers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.expfam import tree
from fedvi.expfam.base import blocks
from fedvi.typing import Eta

__all__ = ["Memory", "StepRule", "adaptive", "fixed"]


class Memory(NamedTuple):
    """A step rule's memory of one group of clients that are folded together.

    Attributes:
      damping: s of the last fold.
      update: Δη proposed at the last fold, before s; None before the first.
    """

    damping: float = 1.0
    update: Eta | None = None


class StepRule(NamedTuple):
    """``choose(family, served, posterior, update, memory, floor)`` returns the damping s ∈ (0, 1].

    ``served`` is the proper q that was handed out, ``posterior`` is the current prior + Σ factors.

    All its inputs have been released, so it is post-processing.
    """

    name: str
    choose: Callable[[Any, Eta, Eta, Eta, Memory, float], float]


def adaptive() -> StepRule:
    """Returns the rule that starts at s = 1 and lets successive updates decide.

    Close to the fixed point the answers are linear in the error e: they propose u = k·e and leave
    e ← (1 − s·k)·e. So r = ⟨u′, u⟩ / ‖u‖² of successive updates, in units of the posterior's sds,
    estimates 1 − s·k. Halving s leaves less of the error iff |(1 + r)/2| < |r|, that is r < −1/3;
    doubling does iff |2r − 1| < |r|, that is r > 1/3. Updates that oppose each other but shrink fast
    need no damping. M answers that each propose the whole error overshoot by k = M at most. So if |r| is
    above M, the update is not a reaction to the last one but new information, such as from a client that
    joined, and s stays. Independently of that, s is halved while q would be improper, down to the floor
    1/M, at which a synchronous update without noise is a convex combination of proper members.

    Source: docs/proofs/updates.md §3; the thresholds are derived above.
    """

    def choose(
        family: Any, served: Eta, posterior: Eta, update: Eta, memory: Memory, floor: float
    ) -> float:
        damping = memory.damping
        if memory.update is not None:
            size, product = _products(family, served, memory.update, update)
            ratio = product / size if abs(product) * floor <= size and size > 0.0 else 0.0
            if ratio < -1.0 / 3.0:
                damping *= 0.5
            elif ratio > 1.0 / 3.0:
                damping *= 2.0
        damping = float(np.clip(damping, floor, 1.0))
        while damping > floor and not _stays_proper(family, posterior, update, damping):
            damping = max(floor, 0.5 * damping)
        return damping

    return StepRule("adaptive", choose)


def fixed(damping: float) -> StepRule:
    """Returns the rule that always uses s = ``damping``, for comparisons; q may become improper.

    Raises:
      ConfigError: unless 0 < damping ≤ 1.
    """
    if not 0.0 < damping <= 1.0:
        raise errors.ConfigError(
            f"schedule.damping is {damping}, expected a number above 0 and at most 1",
            'leave it out, or write "adaptive", and the server chooses the step',
        )
    return StepRule(f"fixed({damping:g})", lambda *_: damping)


def _products(family: Any, served: Eta, before: Eta, after: Eta) -> tuple[float, float]:
    """Returns ‖u‖² and ⟨u′, u⟩ of successive updates, in units of the posterior's sds."""
    size = product = 0.0
    for eta, first, second in blocks(family, served, before, after):
        whitened = family.whiten(eta, first)
        size += float(whitened @ whitened)
        product += float(family.whiten(eta, second) @ whitened)
    return size, product


def _stays_proper(family: Any, posterior: Eta, update: Eta, damping: float) -> bool:
    return all(
        family.is_proper(tree.add_scaled(eta, change, damping))
        for eta, change in blocks(family, posterior, update)
    )
