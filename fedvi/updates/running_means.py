"""Running means of noised answers and steps: how much each weighs, and how much noise they leave.

NumPy only, since servers use it.
"""

__all__ = ["LEFT_OUT", "OVER_STEPS", "squares_with", "step_of", "weight_of_newest"]

LEFT_OUT = 2
"""How many first steps, far from the optimum, the mean of a server's steps leaves out."""

# γ of ``step_of`` in that mean: its t-th step weighs about t, and slow early progress hardly counts.
_EMPHASIS = 1.0

OVER_STEPS = (1.0 + _EMPHASIS) ** 2 / (1.0 + 2.0 * _EMPHASIS)
"""4/3: the noise variance of the mean of T steps, times T, in units of one step's (``step_of``)."""


def step_of(visit: int, averaging: float, delay: float, emphasis: float = 0.0) -> float:
    """Returns ρ of an answer after ``visit`` earlier ones: ((1 + γ)/(τ0 + γ + visit))^κ, at most 1.

    With κ = τ0 = 1 the t-th of T answers has a weight w_t of about (1 + γ)·t^γ/T^(1 + γ) in their mean,
    whose noise variance is Σ w_t² ≈ (1 + γ)²/((1 + 2γ)·T) times that of one answer.

    Args:
      visit: from 0.
      averaging: κ.
      delay: τ0.
      emphasis: γ.

    Source: for γ > 0, Shamir and Zhang (2013), arXiv:1212.1824.
    """
    return float(min(1.0, ((1.0 + emphasis) / (delay + emphasis + visit)) ** averaging))


def squares_with(step: float, squares: float) -> float:
    """Returns the sum of squared weights in a running mean after a step, from that before it."""
    return (1.0 - step) ** 2 * squares + step**2


def weight_of_newest(count: int) -> float:
    """Returns the weight of the newest of T steps in their mean; 1 until ``LEFT_OUT`` are left out."""
    return step_of(max(0, count - 1 - LEFT_OUT), 1.0, 1.0, _EMPHASIS)
