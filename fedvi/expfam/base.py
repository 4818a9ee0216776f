"""The interface of an exponential family, and the functions that follow from A alone."""

from collections.abc import Iterator
from typing import Any, ClassVar, Protocol, TypeGuard, runtime_checkable

import numpy as np

from fedvi import errors
from fedvi.expfam import tree
from fedvi.expfam.mapped_arrays import evict
from fedvi.typing import Eta, Key, Theta

__all__ = [
    "PROJECTION_FRACTION",
    "ROUNDING_FRACTION",
    "SMALLEST",
    "DenseGaussian",
    "Derived",
    "ExponentialFamily",
    "FactoredGaussian",
    "Gaussian",
    "blocks",
    "check_layout",
    "check_size",
    "inner",
    "is_full",
]

PROJECTION_FRACTION = 1e-3
"""A projection keeps at least this fraction of the floor's precision, rate or concentration."""

ROUNDING_FRACTION = 1e-12
"""It also keeps this fraction of the largest number, times their count; less would be lost in rounding."""

SMALLEST = 1e-30
"""A proper precision or rate is larger; with sds beyond 1e15, products of finite numbers may overflow."""


@runtime_checkable
class ExponentialFamily(Protocol):
    """A static description of q(θ) = exp(⟨η, T(θ)⟩ − A(η)); η and μ are plain NamedTuples of arrays,
    or tuples of these.

    The density is with respect to Lebesgue measure on the space of θ (of the first D − 1 coordinates,
    on a simplex), with no other base measure: η = 0 is the factor 1, and q has the entropy A(η) − ⟨η, μ⟩.

    An instance holds sizes only and is hashable, so it may be a static argument of ``jax.jit``.
    Every method takes NumPy or JAX arrays and returns the same kind; none of them checks properness.
    Natural parameters form a vector space: a *factor* need not be proper, only q must be.
    """

    @property
    def size(self) -> int:
        """D, the dimension of θ."""

    @property
    def number_count(self) -> int:
        """How many distinct numbers one η holds: those of one message of a client."""

    def zeros(self) -> Eta:
        """Returns η = 0 in float64 NumPy: the factor 1, which carries no information."""

    def check(self, eta: Eta, name: str = "eta") -> None:
        """Raises FamilyError if the shapes of ``eta`` do not fit or a number is not finite."""

    def log_partition(self, eta: Eta) -> Any:
        """Returns A(η), finite for proper η only."""

    def mean(self, eta: Eta) -> Eta:
        """Returns the mean parameters μ = E[T(θ)] = ∇A(η)."""

    def statistics(self, theta: Theta) -> Eta:
        """Returns T(θ)."""

    def inner(self, eta: Eta, mu: Eta) -> Any:
        """Returns ⟨η, μ⟩."""

    def sample(self, key: Key, eta: Eta, shape: tuple[int, ...] = ()) -> Theta:
        """Draws θ ~ q, of shape ``shape + (D,)``."""

    def is_proper(self, eta: Eta) -> Any:
        """Returns whether ``eta`` belongs to a normalisable density."""

    def project(self, eta: Eta, floor: Eta) -> Eta:
        """Returns the nearest proper η, no flatter than a small fraction of the proper ``floor``."""

    def kl(self, eta_q: Eta, eta_p: Eta) -> Any:
        """Returns KL(q ‖ p) in nats."""

    def whiten(self, eta: Eta, change: Eta) -> Any:
        """Returns the change of η in units of q's sds: a vector v with ‖v‖² = changeᵀ ∇²A(η) change."""

    def moments(self, eta: Eta) -> tuple[Any, Any]:
        """Returns the mean [D] and the standard deviation [D] of θ under q."""


@runtime_checkable
class Gaussian(ExponentialFamily, Protocol):
    """A family of Gaussians over θ ∈ ℝᴰ."""

    def isotropic(self, scale: float, mean: float = 0.0) -> Any:
        """Returns η of N(mean, scale² I)."""

    def along(self, eta: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the mean and the sd of xᵀθ, [n] each, for rows of ``x`` [n, D], of NumPy arrays."""

    def trace(self, eta: Any, other: Any) -> Any:
        """Returns tr(P⁻¹P′) for the precisions of a proper η and of any other."""


@runtime_checkable
class DenseGaussian(Gaussian, Protocol):
    """A family of Gaussians that stores (h, J), with J the precision or its diagonal.

    Attributes:
      correlated: whether J is [D, D]; else it is [D].
    """

    correlated: ClassVar[bool]

    def location_root(self, eta: Any) -> tuple[Any, Any]:
        """Returns the mean [D] and a root of the covariance: lower [D, D], or the sds [D]."""

    def from_moments(self, mean: Any, covariance: Any) -> Any:
        """Returns η with this mean and covariance, [D, D] or [D]."""

    def from_quadratic(self, h: np.ndarray, precision: np.ndarray) -> Any:
        """Returns η of exp(hᵀθ − ½ θᵀJθ) with J [D, D]; None if it is not a member."""

    def padded(self, eta: Any, precision: np.ndarray) -> Any:
        """Returns η with further independent coordinates of mean 0 and these precisions appended."""

    def marginal(self, eta: Any, size: int) -> Any:
        """Returns the marginal η of the first ``size`` coordinates; the others must be proper."""


@runtime_checkable
class FactoredGaussian(Gaussian, Protocol):
    """A family of Gaussians whose precision is kept as parts of size D and r, and never formed."""

    rank: int

    def location(self, eta: Any) -> Any:
        """Returns the mean [D]."""

    def times(self, eta: Any, vector: Any) -> Any:
        """Returns P v, [D]."""

    def root_parts(self, eta: Any) -> Any:
        """Returns a root of the covariance of a proper member, as float64 NumPy arrays."""

    def from_diagonal(self, h: np.ndarray, precision: np.ndarray) -> Any:
        """Returns η of exp(hᵀθ − ½ Σ jθ²), both [D]."""

    def from_root(self, location: np.ndarray, scale: np.ndarray, inside: np.ndarray) -> Any:
        """Returns η of the member with this mean and root."""


def is_full(family: Any) -> TypeGuard[DenseGaussian]:
    """Returns whether a family is the full Gaussian one, with J [D, D]."""
    return isinstance(family, DenseGaussian) and family.correlated


def blocks(family: Any, *etas: Eta) -> Iterator[tuple[Eta, ...]]:
    """Splits natural parameters into matching pieces that the family's methods can take one by one.

    So computations on large parameters need little extra memory, and only one piece of a mapped file is
    in memory at a time. A family with independent coordinates defines its own ``blocks`` method; any
    other family has one piece.
    """
    own = getattr(family, "blocks", None)
    for pieces in [etas] if own is None else own(*etas):
        yield pieces
        for leaf in tree.leaves(pieces):
            evict(leaf)


def inner(eta: Eta, mu: Eta) -> Any:
    """Returns ⟨η, μ⟩, the sum over all leaves."""
    pairs = zip(tree.leaves(eta), tree.leaves(mu), strict=True)
    return sum((left * right).sum() for left, right in pairs)


class Derived:
    """Methods that follow from A and from the layout of η alone, for families to inherit."""

    def check(self: ExponentialFamily, eta: Any, name: str = "eta") -> None:
        """Raises FamilyError unless ``eta`` has the type and the shapes of ``zeros``, and is finite."""
        check_layout(eta, self.zeros(), name, self)

    def inner(self, eta: Eta, mu: Eta) -> Any:
        """Returns ⟨η, μ⟩."""
        return inner(eta, mu)

    def kl(self: ExponentialFamily, eta_q: Eta, eta_p: Eta) -> Any:
        """Returns KL(q ‖ p) = A(η_p) − A(η_q) − ⟨η_p − η_q, ∇A(η_q)⟩ in nats, both proper.

        For sharp densities this is a difference of large numbers, with the rounding error of A.
        """
        along = self.inner(tree.subtract(eta_p, eta_q), self.mean(eta_q))
        return self.log_partition(eta_p) - self.log_partition(eta_q) - along


def check_size(size: int) -> None:
    """Raises FamilyError unless θ has at least one coordinate."""
    if size < 1:
        raise errors.FamilyError(f"size is {size!r}, expected a whole number of at least 1")


def check_layout(eta: Any, like: Eta, name: str, family: Any) -> None:
    """Raises FamilyError unless ``eta`` is a NamedTuple like ``like``, of finite numbers.

    Args:
      eta: the value to check.
      like: a member of the family, with the expected type and shapes.
      name: the name of ``eta``, for messages.
      family: for messages.
    """
    if type(eta) is not type(like):
        wanted = f"{type(like).__name__}({', '.join(like._fields)})"
        raise errors.FamilyError(f"{name} is {type(eta).__name__}, expected {wanted}")
    for field, found, expected in zip(like._fields, eta, like, strict=True):
        if np.shape(found) != expected.shape:
            raise errors.FamilyError(
                f"{name}.{field} has shape {np.shape(found)}, expected {expected.shape}",
                f"the family is {family}; model, prior and factors must share its size",
            )
    if not tree.is_finite(eta):
        raise errors.FamilyError(f"{name} holds NaN or infinite numbers")
