"""The special functions of the families on positive numbers, on NumPy and JAX arrays alike."""

from typing import Any

import numpy as np

__all__ = ["digamma", "excess", "gammaln", "trigamma"]

# Beyond this, the asymptotic series is exact to float64, and the plain difference is not.
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


def _special(x: Any) -> Any:
    """Returns the namespace of special functions for this kind of array."""
    if x.__array_namespace__() is np:
        import scipy.special

        return scipy.special
    import jax.scipy.special

    return jax.scipy.special
