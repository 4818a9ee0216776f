"""The E step of any model whose latents can be summed out, by derivatives of log Z.

With n̄ = E_q[n(θ)] and Z(n̄) = Σ_ℓ f·exp⟨n̄, s(y, ℓ)⟩ for a record y, the expected statistics of its
latents are ∂ log Z/∂n̄. So a JAX function for log Z gives the E step.
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
    """Returns ∂ log Z/∂(shared, own) of each record: E[s] for the statistic s of each parameter. JAX.

    Args:
      log_normaliser: (shared, own, record) → log Z, a scalar; its loops run a fixed number of times.
      shared: a tree of floats, the same for all records.
      own: a tree of floats [B, …], one row per record: potentials to use where a gradient in ``shared``
        would be a large and nearly empty array.
      records: a tree of arrays [B, …].

    Returns:
      Two trees like ``shared`` and ``own``, of arrays [B, …].

    Source: docs/proofs/updates.md §7; Wainwright and Jordan (2008), Graphical models, Proposition 3.1.
    """
    import jax

    slopes = jax.grad(log_normaliser, argnums=(0, 1))
    return jax.vmap(slopes, in_axes=(None, 0, 0))(shared, own, records)


def square_norms(formed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns each record's sum of squares, [B], for each array [B, …], by name."""
    return {name: (leaf**2).reshape(leaf.shape[0], -1).sum(axis=1) for name, leaf in formed.items()}


class ByGradient(abc.ABC):
    """Base of a conjugate model defined by its family, its blocks and log Z; for small statistics.

    The statistics of all records are formed, [B, …] for each block. A model for which that is too large
    implements ``expected``, ``square_norms`` and ``sums`` itself.

    A subclass is a frozen dataclass with ``names``, ``family``, ``prior``, ``start``, ``blocks`` and
    ``log_normaliser``. Its blocks have the order and the shapes of the arrays of the natural parameters.
    """

    family: Any
    prior: Any
    blocks: tuple[Block, ...]

    @abc.abstractmethod
    def log_normaliser(self, messages: Mapping[str, Any], record: Mapping[str, Any]) -> Any:
        """Returns log Z of one record: a scalar. JAX.

        Args:
          messages: n̄ = E_q[T(θ)] by the name of the block.
          record: its row of each array of the records.
        """

    @property
    def norm_error(self) -> float:
        """The error of sums of n squares in float64, with inputs taken as exact.

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
        """Returns each record's addition to the natural parameters, [B, …] for each block."""

        def log_normaliser(shared: Any, _: Any, record: Any) -> Any:
            return self.log_normaliser(shared, record)

        found: dict[str, Any] = expectations(log_normaliser, messages, (), records)[0]
        return {
            # Only a triangle of a symmetric block is released, scaled off the diagonal. It has the norm of
            # the whole block only if both triangles agree in every bit.
            block.name: 0.5 * (found[block.name] + found[block.name].swapaxes(-1, -2))
            if block.symmetric
            else found[block.name]
            for block in self.blocks
        }

    def square_norms(self, messages: Any, local: Any, records: Mapping[str, Any]) -> dict[str, Any]:
        """Returns sums of squares, [B] for each block."""
        return square_norms(local)

    def sums(
        self, messages: Any, local: Any, records: Mapping[str, Any], weights: Any
    ) -> dict[str, Any]:
        """Returns inner products of the weights and the records' numbers."""
        import jax.numpy as jnp

        return {name: jnp.tensordot(weights, leaf, axes=1) for name, leaf in local.items()}

    def factor(self, sums: Mapping[str, np.ndarray], posterior: Eta) -> Eta:
        """Returns the sums as natural parameters."""
        zeros = self.family.zeros()
        self._check(tree.leaves(zeros))
        left = iter([sums[block.name] for block in self.blocks])
        return tree.map_leaves(lambda _: next(left), zeros)

    def posterior(self, total: Eta, noise: Mapping[str, float]) -> Eta:
        """Returns prior + total, or the nearest proper member of the family.

        A model overrides this if it knows more of its statistics, for example that counts are positive.
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
