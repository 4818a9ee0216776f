"""The special functions of the families on positive numbers, on NumPy and JAX arrays alike.

All inversions are Newton's, vectorised, with a
fixed number of steps, so that they may stand in a compiled function; what is no mean parameter of any
member gives NaN or nonsense, never an endless loop.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = [
    "concentrations",
    "digamma",
    "excess",
    "gammaln",
    "log_less_digamma",
    "repeat",
    "shape_of_gap",
    "trigamma",
]

# Beyond it the asymptotic series are exact to float64, and differences are not.
_LARGE = 100.0


def gammaln(x: Any) -> Any:
    """Returns log Γ(x)."""
    return _special(x).gammaln(x)


def digamma(x: Any) -> Any:
    """Returns ψ(x) = (log Γ)′(x)."""
    return _special(x).digamma(x)


def trigamma(x: Any) -> Any:
    """Returns ψ′(x), which is the Hurwitz zeta function ζ(2, x)."""
    return _special(x).zeta(2.0, x)


def excess(x: Any) -> Any:
    """Returns ψ′(x) − 1/x > 0, to full relative precision."""
    xp = x.__array_namespace__()
    small, inverse = xp.minimum(x, _LARGE), 1.0 / x
    square = inverse * inverse
    series = square * (0.5 + inverse * (1.0 / 6.0 - square * (1.0 / 30.0 - square / 42.0)))
    return xp.where(x > _LARGE, series, trigamma(small) - 1.0 / small)


def log_less_digamma(x: Any) -> Any:
    """Returns log x − ψ(x) > 0, to full relative precision."""
    xp = x.__array_namespace__()
    small, inverse = xp.minimum(x, _LARGE), 1.0 / x
    square = inverse * inverse
    series = inverse * (0.5 + inverse / 12.0 - square * inverse * (1.0 / 120.0 - square / 252.0))
    return xp.where(x > _LARGE, series, xp.log(small) - digamma(small))


def shape_of_gap(gap: Any) -> Any:
    """Returns α with log α − ψ(α) = ``gap``: the shape of a gamma whose log E[θ] − E[log θ] that is.

    In logarithms of both, the function is nearly a line of slope −1, so that Newton's method from
    α = 1/(2·gap), exact for large α, needs three steps from any gap; four are taken.
    """
    xp = gap.__array_namespace__()

    def step(shape: Any) -> Any:
        found = log_less_digamma(shape)
        return shape * xp.exp(xp.log(found / gap) * found / (shape * excess(shape)))

    return repeat(xp, 4, step, 0.5 / gap)


def concentrations(expected_logs: Any) -> Any:
    """Returns α with ψ(αᵢ) − ψ(Σα) = E[log θᵢ]: the Dirichlets with these mean parameters.

    With S = Σα, each αᵢ = ψ⁻¹(ψ(S) + E[log θᵢ]), so that one number is sought: the root of
    log Σᵢ αᵢ(S) − log S, which is unique because ∇A is one to one, and falls through it. Newton's
    method in log S, with steps of at most 3, from what is exact for large S.

    Args:
      expected_logs: [K, n], n Dirichlets side by side.

    Returns:
      α [K, n]. Its relative precision is that of 1 − Σᵢ exp E[log θᵢ], which is K/(2S) or so.

    Source: Minka (2000), Estimating a Dirichlet distribution, §1, for αᵢ(S) and ψ⁻¹.
    """
    xp = expected_logs.__array_namespace__()
    count = expected_logs.shape[0]
    missing = xp.maximum(1.0 - xp.exp(expected_logs).sum(axis=0), 1e-17)

    def at(log_total: Any) -> Any:
        return _inverse_digamma(digamma(xp.exp(log_total))[None] + expected_logs)

    def step(log_total: Any) -> Any:
        alpha, total = at(log_total), xp.exp(log_total)
        found = alpha.sum(axis=0)
        slope = total * trigamma(total) * (1.0 / trigamma(alpha)).sum(axis=0) / found - 1.0
        distance = xp.log(found) - log_total
        # Where the slope is not negative the root is still on the side that the sign tells.
        full = xp.where(slope < 0.0, -distance / xp.minimum(slope, -1e-300), xp.sign(distance))
        return log_total + xp.clip(full, -3.0, 3.0)

    return at(repeat(xp, 12, step, xp.log(0.5 * (count - 1) / missing)))


def _inverse_digamma(value: Any) -> Any:
    """Returns x with ψ(x) = ``value``; five steps reach float64 from Minka's start, for every value."""
    xp = value.__array_namespace__()
    large = xp.exp(xp.clip(value, -2.22, 600.0)) + 0.5
    small = -1.0 / (xp.minimum(value, -2.0) + np.euler_gamma)
    x = xp.where(value >= -2.22, large, small)
    for _ in range(5):
        x = xp.maximum(x - (digamma(x) - value) / trigamma(x), 0.1 * x)
    return x


def repeat(xp: Any, times: int, step: Callable[[Any], Any], start: Any) -> Any:
    """Applies ``step`` a fixed number of times; compiled once with JAX, not once a step."""
    if xp is not np:
        import jax

        return jax.lax.fori_loop(0, times, lambda _, state: step(state), start)
    for _ in range(times):
        start = step(start)
    return start


def _special(x: Any) -> Any:
    """Returns the namespace of special functions that takes such an array."""
    if x.__array_namespace__() is np:
        import scipy.special

        return scipy.special
    import jax.scipy.special

    return jax.scipy.special
