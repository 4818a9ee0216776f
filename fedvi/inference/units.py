"""Treats all rows of a unit, such as a patient, as one record with one clipped term.

A private solver clips the contribution of one record. Where the privacy unit is a patient with several
rows, the solver gets a model whose record *is* the patient: the rows are added up first, and the sum is
clipped. Clipping each row would let a patient with k rows move the total k times as far.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Shaped

from fedvi import errors
from fedvi.models.base import Model, Record, Wrapped
from fedvi.typing import ROWS

__all__ = ["UnitModel", "filled", "of_rows", "unit_model"]


@dataclasses.dataclass(frozen=True)
class UnitModel(Wrapped):
    """``model`` with all rows of a unit as one record; everything but the likelihood is its own."""

    def log_likelihood(self, theta: Float[ArrayLike, " d"], record: Record) -> Float[Array, ""]:
        """Returns Σ_r log p(row_r | θ) over the valid rows of ONE unit.

        Guarantee: the result, and so its gradient, depends on this unit's rows alone. Any bound on
        the L2 norm of the gradient, such as a clip, therefore bounds what the whole unit can move.

        Args:
          theta: [D].
          record: arrays [R, …], and ``ROWS``, bool [R]: which rows are valid. Valid rows come first.

        Raises:
          ModelError: if the record has no ``ROWS``: it is one row, not a unit.
        """
        if ROWS not in record:
            raise errors.ModelError(
                "a record without its rows, expected all rows of one unit",
                "group the rows with `fedvi.data.by_unit`",
            )
        stands = jnp.asarray(record[ROWS], bool)
        rows = {
            name: filled(jnp.asarray(column), stands)
            for name, column in record.items()
            if name != ROWS
        }
        found = jax.vmap(lambda row: self.model.log_likelihood(theta, row))(rows)
        return jnp.where(stands, found, jnp.zeros_like(found)).sum()


def filled(column: Shaped[Array, "..."], stands: Bool[Array, "..."]) -> Shaped[Array, "..."]:
    """Returns a column of units in which padding repeats the unit's first row.

    Zeros could be outside a likelihood's support, and a gradient that is not finite passes through
    ``where``.

    Args:
      column: [R, …], or [B, R, …].
      stands: bool [R], or [B, R]: which rows are valid.
    """
    first = jnp.take(column, jnp.zeros(1, jnp.int32), axis=stands.ndim - 1)
    return jnp.where(
        stands.reshape(*stands.shape, *(1,) * (column.ndim - stands.ndim)), column, first
    )


def of_rows(model: Model) -> Model:
    """Returns the model of one row of a unit; any other model as it is."""
    return model.model if isinstance(model, UnitModel) else model


def unit_model(model: Model) -> UnitModel:
    """Returns ``model`` for records that are units of several rows, as from ``fedvi.data.by_unit``.

    >>> import jax.numpy as jnp
    >>> from fedvi.models import linear
    >>> model = linear(["slope"])
    >>> patient = {
    ...     "x": jnp.array([[1.0], [2.0], [0.0]]),
    ...     "y": jnp.array([1.0, 0.0, 0.0]),
    ...     ROWS: jnp.array([True, True, False]),
    ... }
    >>> rows = [{"x": patient["x"][r], "y": patient["y"][r]} for r in range(2)]
    >>> theta = jnp.array([0.5])
    >>> apart = sum(model.log_likelihood(theta, row) for row in rows)
    >>> bool(jnp.isclose(unit_model(model).log_likelihood(theta, patient), apart))
    True
    """
    return UnitModel(model)
