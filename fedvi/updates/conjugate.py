"""The interface that a conjugate-exponential model offers to ``vips``.

A record's latents ℓ have the density p(y, ℓ | θ) = f · exp⟨n(θ), s(y, ℓ)⟩, and q is in the conjugate
family: a record adds E[s] to q's natural parameters, at the n̄ = E_q[n(θ)] of the q that was handed out.
A model says what is added and how large that is; the solver clips, sums and noises.

A model has two halves. The server's (``blocks``, ``prior``, ``start``, ``factor``, ``posterior``) is NumPy
in float64, and the module imports JAX within functions only, since a server reads it. The client's
(``messages``, ``expected``, ``square_norms``, ``sums``) is JAX, compiled by the solver.
"""

import dataclasses
import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

import numpy as np

from fedvi import errors
from fedvi.typing import Eta

__all__ = [
    "AnyWidth",
    "Block",
    "Centred",
    "ConjugateModel",
    "FromFile",
    "Ragged",
    "StartsFrom",
    "brings_family",
    "from_table",
    "packed",
    "positive_part",
    "to_table",
    "unpacked",
]


class Block(NamedTuple):
    """One array among a record's statistics.

    Attributes:
      name: its key.
      shape: of the array.
      typical: the Frobenius norm that the array of a typical record has; a public number. It sets how
        noise is divided between blocks, and no guarantee rests on it.
      share: how much of the squared clip norm a typical record's array takes; blocks' shares add up to 1.
      symmetric: whether the last two axes are a symmetric matrix, of which the lower triangle is released.
        It is to be symmetric in every bit, or a norm would not be that of what is released.
    """

    name: str
    shape: tuple[int, ...]
    typical: float
    share: float
    symmetric: bool = False

    @property
    def number_count(self) -> int:
        """How many numbers are released."""
        if not self.symmetric:
            return math.prod(self.shape)
        side = self.shape[-1]
        return math.prod(self.shape[:-2]) * (side * (side + 1) // 2)


@runtime_checkable
class ConjugateModel(Protocol):
    """A model whose local optimum is a sum of expected sufficient statistics, one term a record.

    A frozen dataclass of public numbers, texts and tuples of these, so that a server can make it anew
    (``to_table``).
    """

    @property
    def names(self) -> tuple[str, ...]:
        """The coordinates of θ, for tables."""

    @property
    def family(self) -> Any:
        """The exponential family of q."""

    @property
    def prior(self) -> Eta:
        """η_0, proper."""

    @property
    def start(self) -> Eta:
        """The q that the first tasks are answered at: public, and the prior's where that will do.

        A mixture whose components all start alike would keep them alike.
        """

    @property
    def blocks(self) -> tuple[Block, ...]:
        """What a record's statistics are, in a fixed order."""

    @property
    def norm_error(self) -> float:
        """A bound on the relative error of √(Σ weights² · ``square_norms``), for any weights."""

    def messages(self, posterior: Eta) -> Any:
        """Returns what the local step reads of q: a tree of float32 NumPy arrays. NumPy, at the client."""

    def expected(self, messages: Any, records: Mapping[str, Any]) -> Any:
        """Returns what is known of each record's latents: a tree of float32 arrays [B, …]. JAX.

        What stands in a row must depend on that record and the messages alone, to the last bit: loops
        run a fixed number of times, or leave a record as it is once it has converged.
        """

    def square_norms(self, messages: Any, local: Any, records: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the squared Frobenius norm of each block's array, [B] for each block. JAX, float64.

        Without forming the arrays. ``local``, ``messages`` and ``records`` are what ``expected`` had, cast
        to float64, with zeros in rows that do not count. As in ``expected``, what stands in a row depends
        on that record and the messages alone, to the last bit.
        """

    def sums(
        self, messages: Any, local: Any, records: Mapping[str, Any], weights: Any
    ) -> dict[str, Any]:
        """Returns Σ_n weights[n] · array_n of each block, in its shape. JAX, float64, as above.

        Each entry is one sum, or inner product, over the records, times numbers that are the same for all
        of them; products of at most six factors.
        """

    def factor(self, sums: Mapping[str, np.ndarray], posterior: Eta) -> Eta:
        """Returns the natural parameters that sums over all records add to q. NumPy, at the server.

        Linear in ``sums``; ``posterior`` is the q that they were computed at.
        """

    def posterior(self, total: Eta, noise: Mapping[str, float]) -> Eta:
        """Returns the q that a noisy total of factors leaves: proper, whatever the noise. NumPy.

        Here the prior comes in, with what it learns of its own parameters, and so does what is known of
        every statistic: that it is positive, or between bounds.

        Args:
          total: Σ factors, a running mean of noisy ones.
          noise: of each block, the noise's standard deviation in one released number of the total, in
            the unit of the sums.
        """


@runtime_checkable
class FromFile(Protocol):
    """What a conjugate model says besides, if studies are to name it and clients to read files for it."""

    @property
    def layout(self) -> Mapping[str, tuple[int, ...]]:
        """The arrays that a record consists of: name → shape of one record's."""

    def sound(self, records: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns of each record whether the model knows such: bool [N]. NumPy, of one record at a time.

        Others count as zero in a private study, and are refused in one that promises nothing.
        """

    def made_up(self, count: int, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns records such as the model knows, of all kinds, drawn at random: for an audit. NumPy."""


@runtime_checkable
class AnyWidth(Protocol):
    """What a conjugate model says besides, if ``layout`` may leave open how wide records are."""

    def layout_of(self, records: Mapping[str, np.ndarray]) -> Mapping[str, tuple[int, ...]]:
        """Returns the arrays that records as wide as these consist of, as ``layout`` does. NumPy.

        Of shapes alone: it is asked before anything is charged.

        Raises:
          DataError: an array has another number of dimensions than the model's.
        """


@runtime_checkable
class Ragged(Protocol):
    """What a conjugate model says besides, if its records are of unequal length, filled up with zeros.

    The solver then visits records in groups of like length, and cuts arrays [B, L] to it: what the model
    is given is as long as the longest of a group can be.
    """

    def lengths(self, records: Mapping[str, Any]) -> Any:
        """Returns how many of the L places each record needs: int32 [B]; with 0 it adds nothing. JAX."""

    def added(
        self,
        totals: Mapping[str, Any],
        messages: Any,
        local: Any,
        records: Mapping[str, Any],
        weights: Any,
    ) -> dict[str, Any]:
        """Returns totals, in the blocks' shapes, to which a group of records is added. JAX, as ``sums``."""

    def totalled(self, messages: Any, totals: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what ``sums`` would, of totals of all groups: times numbers alike for all records."""


@runtime_checkable
class Centred(Protocol):
    """What a conjugate model says besides, if its factors are of θ − m and not of θ.

    With m the mean that was handed out. A running mean of such factors goes with one of their m.
    """

    @property
    def centred(self) -> bool:
        """Whether they are; if not, ``posterior`` makes q of their sum, as for any other model."""

    def about(
        self, factors: Sequence[Eta], centres: Sequence[np.ndarray], noise: Mapping[str, float]
    ) -> Eta:
        """Returns the q that noisy factors leave: proper, whatever the noise. NumPy, at the server.

        Args:
          factors: of each client, a running mean of what ``factor`` returned.
          centres: of each client the mean of θ under q, [D], in a running mean with the same weights.
          noise: as of ``posterior``, in the sum of all factors.
        """


@runtime_checkable
class StartsFrom(Protocol):
    """What a conjugate model says besides, if its first step must be shorter than 1.

    A running mean that starts at 0 has no short first step: (ρh, ρJ) has the mean of (h, J).
    """

    def first(self, sums: Mapping[str, np.ndarray], posterior: Eta) -> Eta:
        """Returns what a client's running mean starts from, before its first answer; linear in ``sums``.

        Such as what as many records would add that agreed with ``start``. NumPy, at the server.
        """


def brings_family(model: Any) -> TypeGuard[ConjugateModel]:
    """Whether a model is fitted by its statistics alone, in a family of its own."""
    return isinstance(model, ConjugateModel) and not hasattr(model, "log_likelihood")


def to_table(model: ConjugateModel) -> dict[str, Any]:
    """Returns the class's name and the fields of a model, as JSON holds them.

    Raises:
      ModelError: it is no dataclass of a module, or a field holds what JSON cannot.
    """
    kind: Any = type(model)
    if not hasattr(kind, "__dataclass_fields__") or "<locals>" in kind.__qualname__:
        raise errors.ModelError(
            f"{kind.__name__} is no dataclass of a module, which a server could make by name",
            "write a conjugate model as a frozen dataclass of public numbers",
        )
    fields = {field.name: getattr(model, field.name) for field in dataclasses.fields(kind)}
    return {
        "model": f"{kind.__module__}:{kind.__qualname__}",
        "fields": {name: _listed(value, name) for name, value in fields.items()},
    }


def from_table(table: Mapping[str, Any]) -> Any:
    """Makes the model again that ``to_table`` wrote down."""
    module, _, name = table["model"].partition(":")
    kind = getattr(importlib.import_module(module), name)
    return kind(**{field: _tupled(value) for field, value in table["fields"].items()})


def _listed(value: Any, name: str) -> Any:
    if isinstance(value, tuple):
        return [_listed(item, name) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise errors.ModelError(
        f"{name} is {type(value).__name__}, expected numbers, texts and tuples of these"
    )


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value)) if isinstance(value, list) else value


def packed(array: Any, block: Block) -> Any:
    """Returns the released numbers of a block's array, flat: a triangle with off-diagonal entries × √2.

    So the L2 norm of what is released is the Frobenius norm of the array.
    """
    if not block.symmetric:
        return array.reshape(-1)
    rows, columns, scale = _triangle(block)
    scale = scale.reshape([1] * (array.ndim - 2) + [-1])  # rank promotion is an error
    return (array[..., rows, columns] * scale).reshape(-1)


def unpacked(numbers: np.ndarray, block: Block) -> np.ndarray:
    """Returns the array of a block, from the numbers that were released of it: NumPy, float64."""
    if not block.symmetric:
        return np.asarray(numbers, np.float64).reshape(block.shape)
    rows, columns, scale = _triangle(block)
    values = np.asarray(numbers, np.float64).reshape(*block.shape[:-2], len(rows)) / scale
    array = np.zeros(block.shape)
    array[..., rows, columns] = values
    array[..., columns, rows] = values
    return array


def _triangle(block: Block) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, columns = np.tril_indices(block.shape[-1])
    return rows, columns, np.where(rows == columns, 1.0, math.sqrt(2.0))


def positive_part(matrix: np.ndarray, noise: float, ridge: float) -> np.ndarray:
    """Returns the nearest positive semidefinite matrices, with a ridge where there is noise.

    Symmetric noise of standard deviation u in each number of ``packed`` has eigenvalues up to u·√(2D),
    the edge of Wigner's semicircle. What is left of it after the projection would be believed: so
    ``ridge`` times the edge is added in all directions.

    Args:
      matrix: symmetric, [..., D, D].
      noise: u.
      ridge: at least 0.

    Source: docs/proofs/updates.md §7.
    """
    if noise == 0.0:
        return matrix
    values, vectors = np.linalg.eigh(matrix)
    edge = noise * math.sqrt(2.0 * matrix.shape[-1])
    lifted = np.maximum(values, 0.0) + ridge * edge
    return np.asarray((vectors * lifted[..., None, :]) @ np.swapaxes(vectors, -1, -2))
