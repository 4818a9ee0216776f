"""Symmetric blocks as vectors whose L2 norm is the Frobenius norm: clip and noise them so.

A symmetric matrix sent whole would get different noise above and below its diagonal, and its
off-diagonal entries would count twice towards the clip. As ``svec`` each entry stands once.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from fedvi import errors

__all__ = ["length", "svec", "unsvec"]


def length(size: int) -> int:
    """Returns how many numbers a symmetric [size, size] block has.

    >>> length(3)
    6
    """
    return size * (size + 1) // 2


def svec(matrix: Float[ArrayLike, "... d d"]) -> Float[Array, "... k"]:
    """Stacks the upper triangle by rows, off-diagonal entries times √2: ‖svec(A)‖₂ = ‖A‖_F.

    Only the upper triangle is read. Under isotropic noise of variance s² on svec, a diagonal entry
    gets variance s² and an off-diagonal one s² / 2, the same in both triangles: the law is
    unchanged by rotations of A.

    Raises:
      PrivacyError: if the last two axes differ.
    """
    array = jnp.asarray(matrix)
    if array.ndim < 2 or array.shape[-1] != array.shape[-2]:
        raise errors.PrivacyError(f"svec of an array of shape {array.shape}, expected [..., d, d]")
    rows, columns = np.triu_indices(array.shape[-1])
    scale = jnp.asarray(np.where(rows == columns, 1.0, math.sqrt(2.0)), array.dtype)
    return array[..., rows, columns] * scale.reshape((1,) * (array.ndim - 2) + scale.shape)


def unsvec(vector: Float[ArrayLike, "... k"]) -> Float[Array, "... d d"]:
    """Returns the symmetric matrices of ``svec``: post-processing of what was released.

    Raises:
      PrivacyError: if the last axis is not d(d + 1) / 2 long for any d.
    """
    array = jnp.asarray(vector)
    size = (math.isqrt(8 * array.shape[-1] + 1) - 1) // 2
    if length(size) != array.shape[-1]:
        raise errors.PrivacyError(
            f"unsvec of {array.shape[-1]} numbers, expected d(d + 1) / 2 for a whole d"
        )
    rows, columns = np.triu_indices(size)
    where = np.zeros((size, size), int)
    where[rows, columns] = where[columns, rows] = np.arange(rows.size)
    scale = jnp.asarray(np.where(np.eye(size, dtype=bool), 1.0, math.sqrt(0.5)), array.dtype)
    return array[..., where] * scale.reshape((1,) * (array.ndim - 1) + scale.shape)
