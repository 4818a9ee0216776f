"""Parses one call in a formula, such as `bs(age, knots=[40, 60])`, into a name and its arguments."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from fedvi.errors import ConfigError, did_you_mean

__all__ = ["Call", "Name", "Power", "Unreadable", "check_arguments", "parse_call", "refuse"]


class Name(NamedTuple):
    """The name of a column."""

    text: str

    def __str__(self) -> str:
        return self.text


class Power(NamedTuple):
    """A column to a whole power: ``age**2``."""

    base: Name
    exponent: int


class Unreadable(NamedTuple):
    """The text of an argument that a formula does not support."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Call:
    """A function with its arguments, which are names, powers, constants, tuples of numbers, or calls.

    Args:
      function: its name, possibly with dots.
      arguments: the unnamed ones, in order.
      keywords: the named ones.
    """

    function: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)


def parse_call(text: str) -> Call | None:
    """Reads ``function(argument, name=argument)``; None if it is not a readable call.

    Nothing is executed. Python's own grammar is used, so a list may have square or round brackets.

    >>> parse_call("bs(age, knots=[40, 60], lower_bound=-1)")
    Call(function='bs', arguments=(Name(text='age'),), keywords={'knots': (40, 60), 'lower_bound': -1})
    >>> parse_call("I(age**2)").arguments
    (Power(base=Name(text='age'), exponent=2),)
    >>> parse_call("bs(age") is None
    True
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
        return _call(node, text.strip()) if isinstance(node, ast.Call) else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def refuse(message: str, hint: str) -> NoReturn:
    """Raises an error about a formula."""
    raise ConfigError(f"model.formula: {message}", hint)


def check_arguments(
    call: Call, text: str, known: tuple[str, ...], places: int, example: str
) -> None:
    """Refuses unknown argument names, and more unnamed arguments than ``places``.

    Args:
      known: names of its arguments.
      places: how many of them may be unnamed.
      example: a correct call.

    Raises:
      ConfigError: there are such arguments.
    """
    if len(call.arguments) > places:
        refuse(
            f"`{call.function}` in {text!r} has {len(call.arguments)} arguments without a name, "
            f"expected {places}",
            f"name the others: {example}",
        )
    for key in call.keywords:
        if key not in known:
            refuse(
                f"`{key}` in the call `{call.function}(...)` of {text!r}", did_you_mean(key, known)
            )


def _call(node: ast.Call, text: str) -> Call | None:
    function = _name(node.func, text)
    names = [keyword.arg for keyword in node.keywords]
    if function is None or None in names or len(set(names)) < len(names):
        return None
    keywords = {str(keyword.arg): _value(keyword.value, text) for keyword in node.keywords}
    return Call(function.text, tuple(_value(item, text) for item in node.args), keywords)


def _name(node: ast.expr, text: str) -> Name | None:
    inner = node
    while isinstance(inner, ast.Attribute):
        inner = inner.value
    # Uses the text, not the node's name: Python rewrites some letters, such as the micro sign.
    return Name(_source(node, text)) if isinstance(inner, ast.Name) else None


def _value(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Call):
        return _call(node, text) or Unreadable(_source(node, text))
    if isinstance(node, (ast.List, ast.Tuple)):
        numbers = tuple(_constant(item) for item in node.elts)
        if all(isinstance(number, (int, float)) for number in numbers):
            return numbers
        return Unreadable(_source(node, text))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base, exponent = _name(node.left, text), _constant(node.right)
        if base is not None and type(exponent) is int:
            return Power(base, exponent)
        return Unreadable(_source(node, text))
    found = _constant(node)
    if found is _NO_CONSTANT:
        return _name(node, text) or Unreadable(_source(node, text))
    return found


_NO_CONSTANT = object()


def _constant(node: ast.expr) -> Any:
    """Returns a number with its sign, True, False or None; ``_NO_CONSTANT`` for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        found = _constant(node.operand)
        return -found if type(found) in (int, float) else _NO_CONSTANT
    if isinstance(node, ast.Constant) and (
        node.value is None or isinstance(node.value, (bool, int, float))
    ):
        return node.value
    return _NO_CONSTANT


def _source(node: ast.expr, text: str) -> str:
    return ast.get_source_segment(text, node) or ast.unparse(node)
