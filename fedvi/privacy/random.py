"""Secret randomness: where keys for noise, sampling and guides come from.

A client holds one 256-bit root from the operating system. Every key is derived from it under a label
(client, release, purpose), so that no key serves two purposes, and a release that is computed again
after a crash gets the same noise. Labels are public, the root never leaves.
"""

import dataclasses
import hashlib
import hmac
import os

import jax
import jax.numpy as jnp
import numpy as np

from fedvi.typing import Key

__all__ = ["Root", "insecure_root", "secure_root"]


@dataclasses.dataclass(frozen=True, repr=False)
class Root:
    """A secret that keys are derived from; its representation shows nothing of it.

    Attributes:
      secure: False if the secret is not from the operating system; claims are then marked.
    """

    _secret: bytes
    secure: bool

    def __repr__(self) -> str:
        return f"Root(secure={self.secure})"

    def key(self, *label: str | int) -> Key:
        """Derives the JAX key of a label: HMAC-SHA256(root, label).

        Two labels give the same key only if they are equal part by part (each part is prefixed by
        its length, so ("a", "bc") and ("ab", "c") differ). The key is built from raw words: a
        Python integer seed would be cut to 32 bits by JAX.
        """
        parts = [str(part).encode() for part in label]
        message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        digest = hmac.new(self._secret, message, hashlib.sha256).digest()
        return jax.random.wrap_key_data(jnp.asarray(np.frombuffer(digest[:8], dtype=np.uint32)))


def secure_root() -> Root:
    """Returns a root from the operating system's generator.

    Call it eagerly: under a JAX trace its bytes would become a constant of the compiled function.
    """
    return Root(os.urandom(32), secure=True)


def insecure_root(seed: int) -> Root:
    """Returns a root computed from a seed, for tests and replayed simulations only.

    Everything that it touches must be marked "simulation: no guarantee".
    """
    return Root(hashlib.sha256(f"fedvi insecure root {seed}".encode()).digest(), secure=False)
