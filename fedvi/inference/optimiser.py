"""The optimiser of the gradient solvers: Adam with a rate that falls to zero along a cosine."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from fedvi import errors

__all__ = ["LONGEST_STEP", "Optimiser", "adam", "check_learning_rate"]


class Optimiser(NamedTuple):
    """``init(parameters) → state`` and ``ascend(gradient, state, parameters) → (parameters, state)``."""

    init: Callable[[Any], Any]
    ascend: Callable[[Any, Any, Any], tuple[Any, Any]]


LONGEST_STEP = 1.2
"""Bounds how far one step of ``adam`` moves a number, in learning rates. By the Cauchy–Schwarz inequality
it is at most (1 − b1)/√((1 − b2)(1 − b1²/b2)) = 1.165, with b1 = 0.9 and b2 = 0.95."""


def adam(learning_rate: float, steps: int) -> Optimiser:
    """Returns Adam for ``steps`` steps of ascent.

    Its b2 is 0.95: the first gradients, under a wide prior, are orders of magnitude larger than
    those near the optimum, and with 0.999 they would shrink every later step.

    Args:
      learning_rate: at the first step, in the unit of the parameters.
      steps: the number of steps over which it falls to zero.

    Source: Kingma and Ba (2015), arXiv:1412.6980; Loshchilov and Hutter (2017), arXiv:1608.03983.
    """
    import optax  # here, since pricing or checking a study builds no optimiser

    transform = optax.adam(optax.cosine_decay_schedule(learning_rate, steps), b2=0.95)

    def ascend(gradient: Any, state: Any, parameters: Any) -> tuple[Any, Any]:
        # Optax mixes dtypes, which is an error where fedvi's own code runs in tests.
        with jax.numpy_dtype_promotion("standard"):
            descent = jax.tree.map(jax.numpy.negative, gradient)
            updates, state = transform.update(descent, state, parameters)
            return optax.apply_updates(parameters, updates), state

    return Optimiser(transform.init, ascend)


def check_learning_rate(learning_rate: float) -> None:
    """Checks a learning rate, which is in posterior standard deviations.

    Raises:
      SolverError: unless it is above 0 and at most 10.
    """
    if not 0.0 < learning_rate <= 10.0:
        raise errors.SolverError(
            f"learning_rate is {learning_rate}, expected a number above 0 and at most 10",
            "it is the length of the first steps, in posterior standard deviations",
        )
