"""Products and parts of matrices, alone or stacked along leading axes; NumPy and JAX arrays alike."""

from typing import Any

__all__ = ["outer", "symmetric", "turned"]


def turned(matrices: Any) -> Any:
    """Returns the transposes."""
    return matrices.swapaxes(-1, -2)


def symmetric(matrices: Any) -> Any:
    """Returns half the sum of each matrix and its transpose."""
    return 0.5 * (matrices + turned(matrices))


def outer(left: Any, right: Any) -> Any:
    """Returns the outer products of vectors along the last axis."""
    return left[..., :, None] * right[..., None, :]
