"""Finds tables that a model or guide takes from outside of its arguments, where no record is clipped."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from fedvi import errors

__all__ = ["check_captured"]

# Below so many records an array of their number is as likely a matrix of levels or knots.
_FEWEST = 32


def check_captured(program: ClosedJaxpr, rows: int, static: Mapping[str, Any]) -> None:
    """Rejects a program with a constant array that has one row a record, unless it was declared public.

    It sees arrays that enter the program. A number that Python or NumPy computed from records beforehand is
    like any other number, and passes.

    Args:
      program: the terms of a model and its guide.
      rows: the number of records.
      static: the keyword arguments of both, which hold no records.

    Raises:
      ModelError: there is such an array.
    """
    if rows < _FEWEST:
        return
    public = [np.asarray(leaf) for leaf in jax.tree.leaves(static) if np.ndim(leaf)]
    for array in _constants(program):
        shape = np.shape(array)
        if not shape or shape[0] != rows:
            continue
        if any(one.shape == shape and np.array_equal(one, array) for one in public):
            continue
        raise errors.ModelError(
            f"the model or its guide uses an array of shape {list(shape)} from outside of its arguments, "
            f"as long as the table of {rows} rows: what records it holds would be used without clipping",
            "pass records as arguments: svi.run(key, steps, x, y); an array that is public, as a keyword "
            "of DPSVI itself: DPSVI(model, guide, optim, loss, privacy, knots=knots)",
        )


def _constants(program: ClosedJaxpr) -> Iterator[Any]:
    """Yields the arrays that a program and the programs inside it hold."""
    yield from program.consts
    for equation in program.jaxpr.eqns:
        for leaf in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program):
            if isinstance(leaf, ClosedJaxpr):
                yield from _constants(leaf)
            elif isinstance(leaf, Jaxpr):
                yield from _constants(ClosedJaxpr(leaf, []))


def _is_program(leaf: Any) -> bool:
    return isinstance(leaf, ClosedJaxpr | Jaxpr)
