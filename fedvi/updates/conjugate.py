"""The interface of conjugate-exponential models for the solver ``vips``.

A record's latents ℓ have the density p(y, ℓ | θ) = f · exp⟨n(θ), s(y, ℓ)⟩, and q is in the conjugate
family: a record adds E[s] to q's natural parameters, at the n̄ = E_q[n(θ)] of the q that was handed out.
A model defines these terms and their norms; the solver clips, sums and adds noise.

A model has two halves. The server's (``blocks``, ``prior``, ``start``, ``factor``, ``posterior``) is NumPy
in float64, and the module imports JAX within functions only, since a server reads it. The client's
(``messages``, ``expected``, ``square_norms``, ``sums``) is JAX, compiled by the solver.
"""

import dataclasses
import importlib
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

import numpy as np

from fedvi import errors
from fedvi.expfam.matrices import from_triangle, triangle
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
    "fields_of",
    "from_table",
    "is_own",
    "packed",
    "positive_part",
    "to_table",
    "tupled",
    "unpacked",
]


class Block(NamedTuple):
    """One array among a record's statistics.

    Attributes:
      name: its key.
      shape: of the array.
      typical: the Frobenius norm of a typical record's array; a public number. It sets how noise is
        divided between blocks, and no guarantee depends on it.
      share: the share of the squared clip norm for a typical record's array; blocks' shares add up to 1.
      symmetric: whether the last two axes are a symmetric matrix, of which the lower triangle is released.
        It must be symmetric bit for bit, so that its norm is that of the released numbers.
      positive: whether no record's array is negative: all its entries are at least 0, or, if it is
        symmetric, its eigenvalues. A server refuses sums that are more negative than noise can make them.
      total: the most that a record's entries add up to, where ``positive``; None if nothing bounds it.
    """

    name: str
    shape: tuple[int, ...]
    typical: float
    share: float
    symmetric: bool = False
    positive: bool = False
    total: float | None = None

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

    It must be a frozen dataclass of public numbers, strings and tuples of these, so that a server can
    rebuild it: one of fedvi's own by ``from_table``, another as the study says.
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
        """The public q at which the first tasks are answered; the prior, if that works.

        A mixture whose components all start equal would keep them equal.
        """

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of a record's statistics, in a fixed order."""

    @property
    def norm_error(self) -> float:
        """A bound on the relative error of √(Σ weights² · ``square_norms``), for any weights."""

    def messages(self, posterior: Eta) -> Any:
        """Returns what the local step needs of q: a tree of float32 NumPy arrays. NumPy, at the client."""

    def expected(self, messages: Any, records: Mapping[str, Any]) -> Any:
        """Returns the local posterior of each record's latents: a tree of float32 arrays [B, …]. JAX.

        A row must depend only on its record and the messages, bit for bit: loops run a fixed number of
        times, or do not change a record once it has converged.
        """

    def square_norms(self, messages: Any, local: Any, records: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the squared Frobenius norm of each block's array, [B] for each block. JAX, float64.

        It does not form the arrays. ``local``, ``messages`` and ``records`` are those of ``expected``, cast
        to float64, with zeros in rows that do not count. As in ``expected``, a row depends only on its
        record and the messages, bit for bit.
        """

    def sums(
        self, messages: Any, local: Any, records: Mapping[str, Any], weights: Any
    ) -> dict[str, Any]:
        """Returns Σ_n weights[n] · array_n for each block, in its shape. JAX, float64, as above.

        Each entry is one sum, or inner product, over the records, times numbers that are the same for all
        records; products have at most six factors.
        """

    def factor(self, sums: Mapping[str, np.ndarray], posterior: Eta) -> Eta:
        """Returns the natural parameters that sums over all records add to q. NumPy, at the server.

        Linear in ``sums``; ``posterior`` is the q that they were computed at.
        """

    def posterior(self, total: Eta, noise: Mapping[str, float]) -> Eta:
        """Returns the q given a noisy total of factors; it must be proper for any noise. NumPy.

        This is where the prior enters, with estimates of its own parameters, and so do constraints on the
        statistics, such as positivity or bounds.

        Args:
          total: Σ factors, a running mean of noisy ones.
          noise: block → standard deviation of the noise in one released number of the total, in the unit
            of the sums.
        """


@runtime_checkable
class FromFile(Protocol):
    """Further methods of a conjugate model that studies can name and clients read files for."""

    @property
    def layout(self) -> Mapping[str, tuple[int, ...]]:
        """The arrays of one record: name → shape."""

    def sound(self, records: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns for each record whether it is valid for the model: bool [N]. NumPy; records independent.

        Invalid records count as zero in a private study, and are rejected in one without protection.
        """

    def made_up(self, count: int, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns random valid records of all kinds, for an audit. NumPy."""


@runtime_checkable
class AnyWidth(Protocol):
    """Further methods of a conjugate model whose ``layout`` does not fix the width of records."""

    def layout_of(self, records: Mapping[str, np.ndarray]) -> Mapping[str, tuple[int, ...]]:
        """Returns the ``layout`` for records of this width. NumPy.

        It may use shapes only, because it is called before anything is charged.

        Raises:
          DataError: an array has another number of dimensions than the model's.
        """


@runtime_checkable
class Ragged(Protocol):
    """Further methods of a conjugate model whose records have unequal lengths, padded with zeros.

    The solver then processes records in groups of similar length, and cuts arrays [B, L] to the largest
    length that a group allows.
    """

    def lengths(self, records: Mapping[str, Any]) -> Any:
        """Returns how many of the L places each record uses: int32 [B]; with 0 it adds nothing. JAX."""

    def added(
        self,
        totals: Mapping[str, Any],
        messages: Any,
        local: Any,
        records: Mapping[str, Any],
        weights: Any,
    ) -> dict[str, Any]:
        """Adds a group of records to totals, in the blocks' shapes. JAX, as ``sums``."""

    def totalled(self, messages: Any, totals: Mapping[str, Any]) -> dict[str, Any]:
        """Turns the totals of all groups into the result of ``sums``, by numbers equal for all records."""


@runtime_checkable
class Centred(Protocol):
    """Further methods of a conjugate model whose factors are in θ − m instead of θ.

    m is the mean that was handed out. A running mean of such factors comes with a running mean of their m.
    """

    @property
    def centred(self) -> bool:
        """Whether factors are centred; if not, ``posterior`` is used, as for any other model."""

    def about(
        self, factors: Sequence[Eta], centres: Sequence[np.ndarray], noise: Mapping[str, float]
    ) -> Eta:
        """Returns the q given noisy factors; it must be proper for any noise. NumPy, at the server.

        Args:
          factors: for each client, a running mean of the results of ``factor``.
          centres: for each client, the running mean, with the same weights, of the mean of θ under q, [D].
          noise: as in ``posterior``, for the sum of all factors.
        """


@runtime_checkable
class StartsFrom(Protocol):
    """Further methods of a conjugate model whose first step must be shorter than 1.

    If a running mean starts at 0, the first step cannot be short: (ρh, ρJ) has the same mean as (h, J).
    """

    def first(self, sums: Mapping[str, np.ndarray], posterior: Eta) -> Eta:
        """Returns the start of a client's running mean, before its first answer; linear in ``sums``.

        For example what the same number of records would add if they agreed with ``start``. NumPy, at the
        server.
        """


def brings_family(model: Any) -> TypeGuard[ConjugateModel]:
    """Whether a model is a `ConjugateModel`: fitted by its statistics alone, in its own family."""
    return isinstance(model, ConjugateModel) and not hasattr(model, "log_likelihood")


_CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "DiscreteNetwork": "fedvi.models.network_statistics",
        "FactorAnalysis": "fedvi.models.factor_statistics",
        "GaussianMixture": "fedvi.models.mixture_statistics",
        "HiddenMarkov": "fedvi.models.markov_statistics",
        "LatentDirichlet": "fedvi.models.lda",
        "KnownNoise": "fedvi.models.regression_statistics",
        "PolyaGamma": "fedvi.models.regression_statistics",
        "SigmoidBeliefNetwork": "fedvi.models.sbn",
        "UnknownNoise": "fedvi.models.unknown_noise",
    }
)
"""fedvi's own conjugate models: class → module. A file names a class of these, and no other."""


def is_own(model: ConjugateModel) -> bool:
    """Whether a model is of one of fedvi's own classes, which a file may name."""
    return _CLASSES.get(type(model).__name__) == type(model).__module__


def fields_of(model: ConjugateModel) -> dict[str, Any]:
    """Returns the fields of a model, as JSON values.

    Raises:
      ModelError: the model is no dataclass, or JSON cannot represent a field.
    """
    kind: Any = type(model)
    if not dataclasses.is_dataclass(kind):
        raise errors.ModelError(
            f"{type(model).__name__} is no dataclass, whose fields a file could hold",
            "write a conjugate model as a frozen dataclass of public numbers",
        )
    return {
        field.name: _listed(getattr(model, field.name), field.name)
        for field in dataclasses.fields(kind)
    }


def to_table(model: ConjugateModel) -> dict[str, Any]:
    """Returns the class and the fields of one of fedvi's own models, as JSON values.

    Raises:
      ModelError: the model is of another class, or JSON cannot represent a field.
    """
    kind: Any = type(model)
    if not is_own(model):
        raise errors.ModelError(
            f"{kind.__name__} is no conjugate model of fedvi's own, which a file could name",
            "name it in a study: a server makes it from that",
        )
    return {"model": kind.__name__, "fields": fields_of(model)}


def from_table(table: Mapping[str, Any]) -> Any:
    """Rebuilds a model from the result of ``to_table``.

    Raises:
      ModelError: the table names no class of fedvi's own, or a field that the class has not.
    """
    name, fields = table.get("model"), table.get("fields")
    if isinstance(name, str):
        # Plans of 0.1.0 say the module as well, which must be the one that is listed here.
        module, _, last = name.rpartition(":")
        name = last if module in ("", _CLASSES.get(last)) else name
    if not isinstance(name, str) or name not in _CLASSES or not isinstance(fields, dict):
        raise errors.ModelError(
            f"the conjugate model is {name!r:.80}, expected one of {', '.join(_CLASSES)}",
            "it is no table that this version of fedvi wrote",
        )
    # The module follows from the list above, and not from the file.
    kind = getattr(importlib.import_module(_CLASSES[name]), name)
    unknown = sorted(fields.keys() - {field.name for field in dataclasses.fields(kind)})
    if unknown:
        raise errors.ModelError(
            f"{name} has no field {unknown[0]!r}", "was it written by another version of fedvi?"
        )
    return kind(**{field: tupled(value) for field, value in fields.items()})


def _listed(value: Any, name: str) -> Any:
    if isinstance(value, tuple):
        return [_listed(item, name) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise errors.ModelError(
        f"{name} is {type(value).__name__}, expected numbers, texts and tuples of these"
    )


def tupled(value: Any) -> Any:
    """Returns a list, and those in it, as tuples; other values as they are."""
    return tuple(map(tupled, value)) if isinstance(value, list) else value


def packed(array: Any, block: Block) -> Any:
    """Returns the released numbers of a block's array, flat: a triangle with off-diagonal entries × √2.

    So the L2 norm of the released numbers is the Frobenius norm of the array.
    """
    if not block.symmetric:
        return array.reshape(-1)
    rows, columns, scale = triangle(block.shape[-1])
    scale = scale.reshape([1] * (array.ndim - 2) + [-1])  # rank promotion is an error
    return (array[..., rows, columns] * scale).reshape(-1)


def unpacked(numbers: np.ndarray, block: Block) -> np.ndarray:
    """Returns the array of a block from its released numbers: NumPy, float64."""
    if not block.symmetric:
        return np.asarray(numbers, np.float64).reshape(block.shape)
    scale = triangle(block.shape[-1])[2]
    values = np.asarray(numbers, np.float64).reshape(*block.shape[:-2], len(scale))
    return from_triangle(values / scale, block.shape[-1])


def positive_part(matrix: np.ndarray, noise: float, ridge: float) -> np.ndarray:
    """Returns the nearest positive semidefinite matrices, plus a ridge if there is noise.

    Symmetric noise of standard deviation u in each number of ``packed`` has eigenvalues up to u·√(2D),
    the edge of Wigner's semicircle. Noise that the projection leaves would count as information, so
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
