"""Products of families: q with independent blocks of θ, each in its own family.

q(θ) = ∏ₖ qₖ(θₖ) over consecutive pieces θₖ of a flat θ; η is the tuple of the blocks' η.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedvi import errors
from fedvi.expfam.base import ExponentialFamily
from fedvi.typing import Eta, Key, Theta

__all__ = ["Product", "product"]


@dataclasses.dataclass(frozen=True)
class Product:
    """Independent blocks, in the order of θ; blocks may be products themselves.

    >>> from fedvi.expfam import full_gaussian, gamma
    >>> family = Product((full_gaussian(2), gamma(1)))
    >>> family.size, [type(block).__name__ for block in family.zeros()]
    (3, ['GaussianEta', 'GammaEta'])
    """

    parts: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise errors.FamilyError("parts is empty, expected at least one family")
        for index, part in enumerate(self.parts):
            if not isinstance(part, ExponentialFamily):
                raise errors.FamilyError(
                    f"parts[{index}] is {part!r}, expected an exponential family",
                    "such as `fedvi.expfam.gamma(3)`",
                )

    @property
    def size(self) -> int:
        """The sum of the blocks' sizes."""
        return sum(part.size for part in self.parts)

    @property
    def number_count(self) -> int:
        """The sum of the blocks' counts."""
        return sum(part.number_count for part in self.parts)

    def split(self, theta: Theta) -> list[Theta]:
        """Splits θ [..., D] into the blocks' pieces."""
        ends = np.cumsum([part.size for part in self.parts]).tolist()
        return [
            theta[..., end - part.size : end] for part, end in zip(self.parts, ends, strict=True)
        ]

    def zeros(self) -> Eta:
        """Returns the factor 1."""
        return tuple(part.zeros() for part in self.parts)

    def check(self, eta: Any, name: str = "eta") -> None:
        """Raises FamilyError unless ``eta`` is a tuple with one valid member for each block."""
        if type(eta) is not tuple or len(eta) != len(self.parts):
            length = f" of {len(eta)}" if isinstance(eta, tuple) else ""
            raise errors.FamilyError(
                f"{name} is {type(eta).__name__}{length}, expected tuple of {len(self.parts)}",
                "one for each block of the product, in order",
            )
        for index, (part, block) in enumerate(zip(self.parts, eta, strict=True)):
            part.check(block, f"{name}.{index}")

    def log_partition(self, eta: Eta) -> Any:
        """Returns A(η), the sum of the blocks'."""
        return sum(part.log_partition(block) for part, block in self._with(eta))

    def mean(self, eta: Eta) -> Eta:
        """Returns the blocks' mean parameters."""
        return tuple(part.mean(block) for part, block in self._with(eta))

    def statistics(self, theta: Theta) -> Eta:
        """Returns the blocks' statistics of θ of shape [D]."""
        return tuple(part.statistics(piece) for part, piece in self._with(self.split(theta)))

    def inner(self, eta: Eta, mu: Eta) -> Any:
        """Returns ⟨η, μ⟩, the sum of the blocks'."""
        return sum(part.inner(*blocks) for part, *blocks in self._with(eta, mu))

    def sample(self, key: Key, eta: Eta, shape: tuple[int, ...] = ()) -> Theta:
        """Draws θ ~ q, shape ``shape + (D,)``; each block by a key of its own."""
        import jax

        keys = jax.random.split(key, len(self.parts))
        draws = [part.sample(own, block, shape) for part, own, block in self._with(keys, eta)]
        return jax.numpy.concatenate(draws, axis=-1)

    def is_proper(self, eta: Eta) -> bool:
        """Returns whether every block is proper (NumPy arrays only)."""
        return all(part.is_proper(block) for part, block in self._with(eta))

    def project(self, eta: Eta, floor: Eta) -> Eta:
        """Projects every block onto its floor's block; keeps proper blocks."""
        return tuple(part.project(*blocks) for part, *blocks in self._with(eta, floor))

    def kl(self, eta_q: Eta, eta_p: Eta) -> Any:
        """Returns KL(q ‖ p) in nats, the sum of the blocks'."""
        return sum(part.kl(*blocks) for part, *blocks in self._with(eta_q, eta_p))

    def whiten(self, eta: Eta, change: Eta) -> np.ndarray:
        """Returns the blocks' whitened changes, one after the other."""
        return np.concatenate([part.whiten(*blocks) for part, *blocks in self._with(eta, change)])

    def moments(self, eta: Eta) -> tuple[Any, Any]:
        """Returns the mean [D] and the standard deviation [D]."""
        moments = [part.moments(block) for part, block in self._with(eta)]
        xp = moments[0][0].__array_namespace__()
        means, sds = zip(*moments, strict=True)
        return xp.concatenate(means), xp.concatenate(sds)

    def _with(self, *values: Any) -> Iterator[tuple[Any, ...]]:
        return zip(self.parts, *values, strict=True)


def product(parts: Sequence[Any]) -> Product:
    """Returns the family of independent blocks over consecutive pieces of θ.

    Args:
      parts: families, at least one.

    Raises:
      FamilyError: ``parts`` is empty, or one is not a family.
    """
    return Product(tuple(parts))
