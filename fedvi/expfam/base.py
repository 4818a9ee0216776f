"""What every exponential family offers; come here before adding one."""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from fedvi.expfam import tree
from fedvi.expfam.windows import release
from fedvi.typing import Eta, Key, Theta

__all__ = ["ExponentialFamily", "blocks"]


@runtime_checkable
class ExponentialFamily(Protocol):
    """A static description of q(θ) = exp(⟨η, T(θ)⟩ − A(η)); η and μ are plain NamedTuples of arrays.

    An instance holds sizes only and is hashable, so it may be a static argument of ``jax.jit``.
    Every method takes NumPy or JAX arrays and answers in kind; none of them checks properness.
    Natural parameters form a vector space: a *factor* need not be proper, only q must be.
    """

    @property
    def size(self) -> int:
        """D, the dimension of θ."""

    @property
    def number_count(self) -> int:
        """How many distinct numbers one η holds: what leaves a client in one message."""

    def zeros(self) -> Eta:
        """Returns η = 0 in float64 NumPy: the factor 1, which says nothing."""

    def check(self, eta: Eta, name: str = "eta") -> None:
        """Raises FamilyError if the shapes of ``eta`` do not fit or a number is not finite."""

    def log_partition(self, eta: Eta) -> Any:
        """Returns A(η), finite for proper η only."""

    def mean(self, eta: Eta) -> Eta:
        """Returns the mean parameters μ = E[T(θ)] = ∇A(η)."""

    def natural(self, mu: Eta) -> Eta:
        """Returns η of the member with mean parameters μ: the inverse of ``mean``."""

    def statistics(self, theta: Theta) -> Eta:
        """Returns T(θ)."""

    def inner(self, eta: Eta, mu: Eta) -> Any:
        """Returns ⟨η, μ⟩."""

    def sample(self, key: Key, eta: Eta, shape: tuple[int, ...] = ()) -> Theta:
        """Draws θ ~ q, of shape ``shape + (D,)``."""

    def is_proper(self, eta: Eta) -> Any:
        """Says whether ``eta`` belongs to a normalisable density."""

    def project(self, eta: Eta, floor: Eta) -> Eta:
        """Returns the nearest proper η, no flatter than a small fraction of the proper ``floor``."""

    def kl(self, eta_q: Eta, eta_p: Eta) -> Any:
        """Returns KL(q ‖ p) in nats."""

    def entropy(self, eta: Eta) -> Any:
        """Returns the differential entropy of q in nats."""

    def whiten(self, eta: Eta, change: Eta) -> Any:
        """Returns a vector v with ‖v‖² = changeᵀ ∇²A(η) change: a change of η in units of q's sds."""

    def moments(self, eta: Eta) -> tuple[Any, Any]:
        """Returns the mean [D] and the standard deviation [D] of θ under q."""

    def to_distribution(self, eta: Eta) -> Any:
        """Returns q as a NumPyro distribution with event shape [D]."""


def blocks(family: Any, *etas: Eta) -> Iterator[tuple[Eta, ...]]:
    """Cuts natural parameters alike into pieces that the family's methods can take one by one.

    So what is computed of large ones needs little memory of its own, and of what stands in mapped
    files one piece is in memory at a time. A family whose coordinates are independent says how, in a
    method ``blocks`` of its own; of any other there is one piece.
    """
    own = getattr(family, "blocks", None)
    for pieces in [etas] if own is None else own(*etas):
        yield pieces
        for leaf in tree.leaves(pieces):
            release(leaf)
