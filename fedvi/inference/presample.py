"""Splits a step so that all it computes from its key alone can be computed for many steps in one call.

Drawing random numbers takes dozens of small operations, whatever their count. Drawn for a thousand steps
at once, they cost little more than for one.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
from jax.extend.core import JaxprEqn, Literal, Var

from fedvi.inference import programs

__all__ = ["Split", "split"]

# Primitives that may make many numbers out of few.
_RANDOM = "random_", "threefry"


class Split(NamedTuple):
    """A function of a key and other arguments, split in two.

    Attributes:
      ahead: key → a list of arrays.
      after: ``(that list, *others)`` → the function's result.
      size: how many numbers ``ahead`` returns.
    """

    ahead: Callable[[Any], list[Any]]
    after: Callable[..., Any]
    size: int


def split(function: Callable[..., Any], key: Any, *others: Any) -> Split:
    """Splits ``function(key, *others)`` into a part that depends on the key alone, and the rest.

    An operation that enlarges its inputs, such as a broadcast, is left to the second part, so that fewer
    numbers are kept.

    Args:
      function: a JAX function that returns a tree of arrays.
      key: a JAX key, or its shape and dtype.
      others: trees of arrays, or of their shapes and dtypes.
    """
    closed, tree = programs.flat(function, key, *others)
    program, consts = closed.jaxpr, closed.consts
    given = program.invars[: len(jax.tree.leaves(key))]
    rest = program.invars[len(given) :]
    fixed, random = set(program.constvars), set(given)
    # Equations of constants go into both parts; a part drops those that it does not need.
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
