"""The E step of any model whose latents can be summed out, by derivatives of log Z.

With n̄ = E_q[n(θ)] and Z(n̄) = Σ_ℓ f·exp⟨n̄, s(y, ℓ)⟩ for a record y, the expected statistics of its
latents are ∂ log Z/∂n̄: whoever can write down log Z as a function of JAX has the E step.
"""

import abc
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedvi import errors
from fedvi.expfam import tree
from fedvi.typing import Eta
from fedvi.updates.conjugate import Block

__all__ = ["ByGradient", "expectations", "square_norms"]


def expectations(
    log_normaliser: Callable[[Any, Any, Any], Any], shared: Any, own: Any, records: Any
) -> Any:
    """Returns ∂ log Z/∂(shared, own) of each record: E[s], for the s that each number multiplies. JAX.

    Args:
      log_normaliser: (shared, own, record) → log Z, a scalar; a loop in it runs a fixed number of times.
      shared: a tree of floats, the same for all records.
      own: a tree of floats [B, …], a row a record: potentials that stand for themselves, where a gradient
        of ``shared`` would be a large and nearly empty array.
      records: a tree of arrays [B, …].

    Returns:
      Two trees like ``shared`` and ``own``, of arrays [B, …].

    Source: docs/proofs/updates.md §7; Wainwright and Jordan (2008), Graphical models, Proposition 3.1.
    """
    import jax

    slopes = jax.grad(log_normaliser, argnums=(0, 1))
    return jax.vmap(slopes, in_axes=(None, 0, 0))(shared, own, records)


def square_norms(formed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns each record's sum of squares, [B], of arrays [B, …] by name."""
    return {name: (leaf**2).reshape(leaf.shape[0], -1).sum(axis=1) for name, leaf in formed.items()}


class ByGradient(abc.ABC):
    """A conjugate model made of its family, its blocks and log Z; for statistics of few numbers.

    What a record adds is formed, [B, …] of each block. A model for which that is too much writes down
    ``expected``, ``square_norms`` and ``sums`` itself.

    A subclass is a frozen dataclass with ``names``, ``family``, ``prior``, ``start``, ``blocks`` and
    ``log_normaliser``. Its blocks are the arrays of the natural parameters, in order and in shape.
    """

    family: Any
    prior: Any
    blocks: tuple[Block, ...]

    @abc.abstractmethod
    def log_normaliser(self, messages: Mapping[str, Any], record: Mapping[str, Any]) -> Any:
        """Returns log Z of one record: a scalar. JAX.

        Args:
          messages: n̄ = E_q[T(θ)] by the name of the block.
          record: its rows of the arrays of records.
        """

    @property
    def norm_error(self) -> float:
        """That of sums of n squares in float64, of numbers that are taken as they are.

        No term is negative, and a root halves a relative error: at most γ_{n + 8}/2.
        """
        return (sum(math.prod(block.shape) for block in self.blocks) + 8) * 2.0**-53

    def messages(self, posterior: Eta) -> dict[str, np.ndarray]:
        """Returns n̄, the mean parameters of q, by the name of the block."""
        leaves = tree.leaves(self.family.mean(posterior))
        self._check(leaves)
        return {
            block.name: np.asarray(leaf, np.float32)
            for block, leaf in zip(self.blocks, leaves, strict=True)
        }

    def expected(self, messages: Any, records: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what each record adds to the natural parameters, [B, …] of each block."""

        def log_normaliser(shared: Any, _: Any, record: Any) -> Any:
            return self.log_normaliser(shared, record)

        found: dict[str, Any] = expectations(log_normaliser, messages, (), records)[0]
        return {
            # Of a symmetric block a triangle is released, twice where it is off the diagonal: it has the
            # norm of the whole only if both triangles are the same in every bit.
            block.name: 0.5 * (found[block.name] + found[block.name].swapaxes(-1, -2))
            if block.symmetric
            else found[block.name]
            for block in self.blocks
        }

    def square_norms(self, messages: Any, local: Any, records: Mapping[str, Any]) -> dict[str, Any]:
        """Returns sums of squares, [B] of each block."""
        return square_norms(local)

    def sums(
        self, messages: Any, local: Any, records: Mapping[str, Any], weights: Any
    ) -> dict[str, Any]:
        """Returns inner products of the weights and the records' numbers."""
        import jax.numpy as jnp

        return {name: jnp.tensordot(weights, leaf, axes=1) for name, leaf in local.items()}

    def factor(self, sums: Mapping[str, np.ndarray], posterior: Eta) -> Eta:
        """Returns the sums in the places of the natural parameters."""
        zeros = self.family.zeros()
        self._check(tree.leaves(zeros))
        left = iter([sums[block.name] for block in self.blocks])
        return tree.map_leaves(lambda _: next(left), zeros)

    def posterior(self, total: Eta, noise: Mapping[str, float]) -> Eta:
        """Returns prior + total, or the nearest proper member of the family.

        A model that knows more of its statistics, such as that counts are positive, says so in its own.
        """
        return self.family.project(tree.add(self.prior, total), self.prior)

    def _check(self, leaves: list[Any]) -> None:
        found = [np.shape(leaf) for leaf in leaves]
        wanted = [block.shape for block in self.blocks]
        if found != wanted:
            raise errors.ModelError(
                f"the blocks of {type(self).__name__} have shapes {wanted}, its natural parameters "
                f"{found}",
                "list one block for each array of family.zeros(), in order and of its shape",
            )
