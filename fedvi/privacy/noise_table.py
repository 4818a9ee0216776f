"""The alias tables that all integer noise is drawn from. No JAX."""

import functools
import hashlib
import importlib.resources
import io

import numpy as np
import numpy.typing as npt

from fedvi import errors

__all__ = ["SIGMA", "TABLE_DISTANCE", "table", "variance"]

SIGMA = 4096
"""σ of a table's law, in steps of the grid."""

TABLE_DISTANCE = 2.0**-63
"""Bound on the total variation between one table draw and its law; proof: docs/proofs/alias_table.md."""

_DIGESTS = {
    "rounded_gaussian": "91c6f294aa2b329148141dcd1ef216a0c5c17c1499e9703896143dfd8c710764",
    "discrete_gaussian": "de74e862263337d8f82c6080518e3de40661f4a980324cc3e1c26439cafd7c31",
}


@functools.cache
def table(law: str) -> npt.NDArray[np.uint32]:
    """Loads an alias table: uint32 [3, 2¹⁶], rows alias, threshold >> 32, threshold mod 2³².

    Raises:
      PrivacyError: if the file is not the one that the proof covers.
    """
    package = importlib.resources.files("fedvi.privacy")
    data = package.joinpath("mechanisms", f"{law}.npy").read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != _DIGESTS[law]:
        raise errors.PrivacyError(
            f"the noise table {law}.npy has SHA-256 {found}, expected {_DIGESTS[law]}",
            "the installation is damaged: install fedvi again",
        )
    loaded: npt.NDArray[np.uint32] = np.load(io.BytesIO(data), allow_pickle=False)
    loaded.setflags(write=False)
    return loaded


def variance(fineness: int) -> int:
    """Returns σ² of the noise in steps: SIGMA² for one draw, (1 + M²)·SIGMA² for a + M·b."""
    return SIGMA**2 * (1 if fineness == 1 else 1 + fineness**2)
