"""JAX programs as flat lists of equations, which can be read, split and evaluated in part."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

__all__ = ["bound", "evaluated", "flat", "part", "reads"]

_CALLS = ("jit", "pjit")


def flat(function: Callable[..., Any], *args: Any) -> tuple[ClosedJaxpr, Any]:
    """Traces a function; returns its program with nested calls inlined, and the tree of its result.

    Args:
      function: a JAX function.
      args: trees of arrays, or of their shapes.
    """
    nested, like = jax.make_jaxpr(function, return_shape=True)(*args)

    def inlined(*values: Any) -> list[Any]:
        return evaluated(nested.jaxpr, nested.consts, values)

    return jax.make_jaxpr(inlined)(*nested.in_avals), jax.tree.structure(like)


def reads(equation: JaxprEqn) -> list[Var]:
    """Returns the variables that an equation reads, each once."""
    return list(dict.fromkeys(v for v in equation.invars if not isinstance(v, Literal)))


def bound(program: Jaxpr, equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    """Evaluates one equation of a program on its operands, literals among them."""
    taken = {
        operand: value
        for operand, value in zip(equation.invars, operands, strict=True)
        if not isinstance(operand, Literal)
    }
    return part(program, list(taken), equation.outvars, [equation])(*taken.values())


def part(
    program: Jaxpr, inputs: Sequence[Any], outputs: Sequence[Any], equations: Sequence[JaxprEqn]
) -> Callable[..., list[Any]]:
    """Returns some equations of a program as a function of ``inputs``, their only free variables."""
    alone = program.replace(
        constvars=[], invars=list(inputs), outvars=list(outputs), eqns=list(equations)
    )
    return jaxpr_as_fun(ClosedJaxpr(alone, []))


def evaluated(
    program: Jaxpr,
    consts: Sequence[Any],
    values: Sequence[Any],
    replaced: Callable[[int, list[Any], list[Any]], list[Any]] | None = None,
) -> list[Any]:
    """Evaluates a program.

    Args:
      replaced: (number of an equation, operands, results) → its results; for a flat program.
    """
    known: dict[Var, Any] = dict(
        zip((*program.constvars, *program.invars), (*consts, *values), strict=True)
    )

    def read(operand: Any) -> Any:
        return operand.val if isinstance(operand, Literal) else known[operand]

    for number, equation in enumerate(program.eqns):
        operands = [read(operand) for operand in equation.invars]
        if equation.primitive.name in _CALLS:
            inside = equation.params["jaxpr"]
            results = evaluated(inside.jaxpr, inside.consts, operands)
        else:
            results = bound(program, equation, operands)
        if replaced is not None:
            results = replaced(number, operands, results)
        known.update(zip(equation.outvars, results, strict=True))
    return [read(result) for result in program.outvars]
