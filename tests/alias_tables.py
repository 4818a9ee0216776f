"""Makes the alias tables: ``python -m tests.alias_tables FOLDER`` writes them anew.

The tables of fedvi were made by this file; their digests stand in
``fedvi/privacy/mechanisms/_alias.py``. A table holds the law of |N| for a symmetric N on the integers.
It is exact for weights wₖ / 2⁷⁹ that sum to 1, each within 2⁻⁷⁹ of the law (docs/proofs/alias_table.md).
"""

import itertools
import sys
from collections.abc import Callable, Sequence

import mpmath  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt

__all__ = ["LAWS", "SCALE", "SIGMA", "SIZE", "make", "weights"]

SIGMA = 4096
"""σ of a table's law, in integers."""

SIZE = 2**16
"""Entries: magnitudes 0 to SIZE − 1, which is up to 16 σ."""

THRESHOLD_BITS = 63
SCALE = SIZE * 2**THRESHOLD_BITS
_PRECISION = 260


def rounded_law(count: int = SIZE) -> list[mpmath.mpf]:
    """Returns P[|round(Z)| = k] for k < count, Z ~ N(0, SIGMA²)."""
    with mpmath.workprec(_PRECISION):
        root = mpmath.sqrt(2) * SIGMA
        beyond = [mpmath.erfc(mpmath.mpf(2 * k + 1) / 2 / root) for k in range(count)]
        return [1 - beyond[0], *(a - b for a, b in itertools.pairwise(beyond))]


def discrete_law(count: int = SIZE) -> list[mpmath.mpf]:
    """Returns P[|X| = k] for k < count, P[X = k] ∝ exp(−k² / 2·SIGMA²) on the integers."""
    with mpmath.workprec(_PRECISION):
        # Poisson summation: Σ exp(−k²/2σ²) = σ√(2π)·(1 + 2·exp(−2π²σ²) + …), the rest below 2⁻²⁶⁰.
        whole = SIGMA * mpmath.sqrt(2 * mpmath.pi)
        masses = [mpmath.exp(-mpmath.mpf(k * k) / (2 * SIGMA**2)) / whole for k in range(count)]
        return [masses[0], *(2 * mass for mass in masses[1:])]


LAWS: dict[str, Callable[..., list[mpmath.mpf]]] = {
    "rounded_gaussian": rounded_law,
    "discrete_gaussian": discrete_law,
}


def weights(law: Sequence[mpmath.mpf]) -> list[int]:
    """Rounds SCALE · law down, then adds 1 to the largest remainders until the sum is SCALE."""
    with mpmath.workprec(_PRECISION):
        scaled = [mass * SCALE for mass in law]
        floors = [int(mpmath.floor(value)) for value in scaled]
        order = sorted(range(len(law)), key=lambda k: (floors[k] - scaled[k], k))
        for k in order[: SCALE - sum(floors)]:
            floors[k] += 1
    return floors


def make(whole: Sequence[int]) -> npt.NDArray[np.uint32]:
    """Returns the alias table of weights that sum to SCALE, uint32 [3, SIZE].

    Rows: alias, and the threshold's high 31 and low 32 bits. All SIZE columns are equally likely:
    column i gives i if 63 uniform bits are below its threshold, else its alias.
    """
    capacity = 2**THRESHOLD_BITS
    left, alias, threshold = list(whole), list(range(SIZE)), [0] * SIZE
    small = [i for i in range(SIZE) if left[i] < capacity]
    large = [i for i in range(SIZE) if left[i] >= capacity]
    while small:
        i, j = small.pop(), large[-1]
        threshold[i], alias[i] = left[i], j
        left[j] -= capacity - left[i]
        if left[j] < capacity:
            small.append(large.pop())
    # What is left holds exactly its own capacity: its alias is itself, so the threshold is idle.
    high = [t >> 32 for t in threshold]
    low = [t & 0xFFFFFFFF for t in threshold]
    return np.array([alias, high, low], np.uint32)


if __name__ == "__main__":
    for name, law in LAWS.items():
        np.save(f"{sys.argv[1]}/{name}.npy", make(weights(law())), allow_pickle=False)
