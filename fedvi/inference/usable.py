"""Tells the rows of a shard that a model takes: those whose log likelihood and its gradient are finite.

A row that is padding, or that a model does not take, must not reach a sum over rows: a product of 0 and NaN
is NaN, whatever is masked afterwards. So it is replaced before the model sees it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedvi import errors
from fedvi.inference.blocks import blocks_of, length_of, single_precision
from fedvi.inference.local_latents import Local
from fedvi.inference.predictor import has_predictor
from fedvi.models.base import Model
from fedvi.typing import IDS, Records
from fedvi.updates.base import Shard, compiled_once

__all__ = ["count_usable", "filled_rows", "refuse_rows", "told_units", "usable_rows"]

# How many rows are looked at together: their gradients are in memory.
_TOGETHER = 1024


@compiled_once
def usable_rows(model: Model) -> Callable[[Any, Records], Any]:
    """Returns a function (θ [D], records [N, …]) → bool [N]: is a row, and its gradient, finite at θ?

    A row outside of a distribution's support is not: see ``NumPyroModel.log_likelihood``.
    """

    def is_usable(theta: Any, record: Any) -> Any:
        value, slope = jax.value_and_grad(model.log_likelihood)(theta, record)
        return jnp.isfinite(value) & jnp.isfinite(slope).all()

    @jax.jit
    def usable(theta: Any, records: Any) -> Any:
        return jax.lax.map(lambda record: is_usable(theta, record), records, batch_size=_TOGETHER)

    found: Callable[[Any, Records], Any] = usable
    return found


def told_units(local: Local, theta: Any, shard: Shard) -> dict[str, int]:
    """Returns how many units of a shard are valid, and how many of them count at θ [W].

    Private: for the figures that a site sees alone.
    """
    told = {"valid_units": int(np.count_nonzero(shard.mask))}
    if not has_predictor(local.model):
        # Those of a regression are finite: its columns have bounds.
        told["counted_units"] = count_usable(local, theta, shard)
    return told


def count_usable(local: Local, theta: Any, shard: Shard) -> int:
    """Returns how many records of a shard are usable at θ [W]: private, for the site's own figures."""
    usable, found = usable_rows(local.model), 0
    # No model sees ids.
    shard = Shard({name: c for name, c in shard.records.items() if name != IDS}, shard.mask)
    rows = np.arange(len(shard.mask))
    for block in blocks_of(shard.records, rows, shard.mask, length_of(len(rows))):
        records = single_precision(local.records(block.records))
        found += int(np.count_nonzero(block.mask & np.asarray(usable(theta, records))))
    return found


def filled_rows(records: Records, keep: np.ndarray) -> Records:
    """Returns the records with the first row of ``keep`` in the place of each that is not kept.

    Args:
      records: arrays [N, …].
      keep: bool [N]; if none is true, all are the first row.
    """
    if keep.all():
        return records
    rows = np.where(keep, np.arange(len(keep)), np.argmax(keep))
    return {name: column[rows] for name, column in records.items()}


def refuse_rows(
    model: Model, theta: np.ndarray, records: Records, keep: np.ndarray, usable: np.ndarray
) -> None:
    """Rejects records that the model does not take; only for fits that promise nothing.

    Args:
      theta: where they were looked at.
      records: arrays [N, …].
      keep, usable: bool [N]: which rows hold a record, and which of these the model takes.

    Raises:
      DataError: there is one; the message has their number, and the values of the first.
    """
    wrong = np.flatnonzero(keep & ~usable)
    if not len(wrong):
        return
    first = {name: np.asarray(column[wrong[0]]) for name, column in records.items()}
    found = f"{len(wrong):,} of {np.count_nonzero(keep):,} records"
    outside: dict[str, str] = {}
    if hasattr(model, "unsupported"):
        outside = model.unsupported(theta, first)
    if outside:
        told = " and ".join(f"`{name}` is {value}" for name, value in outside.items())
        raise errors.DataError(
            f"{found} are outside of the model's support: in record {wrong[0] + 1} {told}, where the "
            "density is 0",
            "leave these records out or recode them (categories count from 0), or give the model an "
            "outcome that takes them, such as a mixture with a share of zeros",
        )
    held = ", ".join(
        f"{name} = {np.array2string(value, precision=6, threshold=8)}"
        for name, value in first.items()
    )
    raise errors.DataError(
        f"the log likelihood of {found}, or its gradient, is not finite at the posterior's mean; record "
        f"{wrong[0] + 1} has {held}",
        "in the model, scale columns to about 1 before an exponential, and keep what enters a logarithm or "
        "a root above 0 by the lower bound of its column",
    )
