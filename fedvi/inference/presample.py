"""Computes what steps take from their keys alone, for many steps in one call.

Random numbers are drawn by dozens of small operations, whatever their count; drawn for a thousand steps
at once they cost little more than for one.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
from jax.extend.core import JaxprEqn, Literal, Var

from fedvi.inference import programs

__all__ = ["Split", "split"]

# These may make many numbers out of few.
_RANDOM = "random_", "threefry"


class Split(NamedTuple):
    """A function of a key and of other things, as two.

    Attributes:
      ahead: key → a list of arrays.
      after: (that list, and the others) → what the function returns.
      size: how many numbers ``ahead`` returns.
    """

    ahead: Callable[[Any], list[Any]]
    after: Callable[..., Any]
    size: int


def split(function: Callable[..., Any], key: Any, *others: Any) -> Split:
    """Splits ``function(key, *others)`` into what follows from the key, and what else there is.

    Numbers that follow from the key, but are more than what they are made from, as by broadcasting, are
    left to the second part, so that fewer are kept.

    Args:
      function: of JAX; it returns a tree of arrays.
      key: a JAX key, or its shape and dtype.
      others: trees of arrays, or of their shapes and dtypes.
    """
    closed, tree = programs.flat(function, key, *others)
    program, consts = closed.jaxpr, closed.consts
    given = program.invars[: len(jax.tree.leaves(key))]
    rest = program.invars[len(given) :]
    fixed, random = set(program.constvars), set(given)
    # Equations of constants go into both parts; whichever does not need one drops it.
    first: list[JaxprEqn] = []
    second: list[JaxprEqn] = []
    for equation in program.eqns:
        read = set(programs.reads(equation))
        if read <= fixed:
            fixed.update(equation.outvars)
            first.append(equation)
            second.append(equation)
        elif read <= fixed | random and not _grows(equation, random):
            random.update(equation.outvars)
            first.append(equation)
        else:
            second.append(equation)
    kept: dict[Var, None] = {}
    for equation in second:
        kept.update((v, None) for v in programs.reads(equation) if v in random)
    kept.update((v, None) for v in program.outvars if not isinstance(v, Literal) and v in random)
    made = programs.part(program, [*program.constvars, *given], list(kept), first)
    left = programs.part(program, [*program.constvars, *kept, *rest], program.outvars, second)
    return Split(
        lambda key: made(*consts, *jax.tree.leaves(key)),
        lambda values, *others: jax.tree.unflatten(
            tree, left(*consts, *values, *jax.tree.leaves(others))
        ),
        _size(kept),
    )


def _grows(equation: JaxprEqn, random: set[Var]) -> bool:
    if equation.primitive.name.startswith(_RANDOM):
        return False
    return _size(equation.outvars) > _size(v for v in programs.reads(equation) if v in random)


def _size(variables: Iterable[Any]) -> int:
    return sum(math.prod(variable.aval.shape) for variable in variables)
