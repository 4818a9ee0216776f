"""The text `disease ~ age + sex` as a design matrix; come here to add something to the grammar."""

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from fedvi.data.schema import Binary, Impute, Level, Number, Schema, indicator_name
from fedvi.errors import ConfigError, DataError, did_you_mean

__all__ = ["Design", "Part", "parse_formula"]


@dataclass(frozen=True)
class Part:
    """What a coefficient multiplies: a prepared column, or 1 where it equals ``code``, else 0.

    Args:
      column: name in the prepared records.
      code: a level's index; None takes the column as it is.
    """

    column: str
    code: int | None = None


@dataclass(frozen=True)
class Design:
    """How prepared columns become the columns of a design matrix; public, it holds no data.

    Args:
      response: name of the response.
      response_type: "binary" (0 or 1) or "number" (scaled as its schema declares).
      terms: the columns that each term multiplies, main effects first; () is the intercept.
      coefficients: for each coefficient the parts that it multiplies; () is the intercept.
      names: of the coefficients, such as "(Intercept)", "age", "cp[atypical]", "age:sex".
      units: of the coefficients, such as "per 10 from 50"; "" where nothing was scaled.
      columns: names in the schema that are used, the response first.
    """

    response: str
    response_type: Literal["binary", "number"]
    terms: tuple[tuple[str, ...], ...]
    coefficients: tuple[tuple[Part, ...], ...]
    names: tuple[str, ...]
    units: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def size(self) -> int:
        """D, the number of coefficients."""
        return len(self.names)

    def matrix(self, columns: Mapping[str, NDArray[np.generic]]) -> NDArray[np.float64]:
        """Returns the design matrix, float64 [n, D], of columns from ``prepare_columns``.

        The response is not needed, but some column is, to tell n.
        """
        for name in sorted({part.column for parts in self.coefficients for part in parts}):
            if name not in columns:
                raise DataError(
                    f"column `{name}` is not among the prepared ones", did_you_mean(name, columns)
                )
        if len({values.shape for values in columns.values()}) != 1:
            raise DataError(
                "the prepared columns are none, or differ in length",
                "pass columns from one call of prepare_columns",
            )
        (count,) = next(iter(columns.values())).shape
        result = np.ones((count, self.size))
        for index, parts in enumerate(self.coefficients):
            for part in parts:
                values = columns[part.column]
                if part.code is not None:
                    values = values == part.code
                result[:, index] *= values.astype(np.float64)
        return result


def parse_formula(text: str, schema: Schema) -> Design:
    """Reads ``response ~ term + term`` against a schema.

    ``a:b`` is an interaction, ``a*b`` is a + b + a:b, and ``- 1`` or ``0 +`` leaves out the
    intercept. Interactions come after main effects, and a term given twice counts once, as in R.
    Unlike in R, a column of levels always leaves out its first level, also where the intercept or
    a main effect is left out. A column with missing = "indicator" brings one more coefficient,
    "chol[missing]", after its main effect, or at the end if it has none.

    Raises:
      ConfigError: the text is no such formula, or asks for a transform.

    >>> from fedvi.data.schema import parse_schema
    >>> schema = parse_schema(
    ...     {
    ...         "y": {"type": "binary"},
    ...         "age": {"type": "number", "bounds": [20, 80], "center": 50, "scale": 10},
    ...         "cp": {"type": "level", "levels": ["typical", "atypical"]},
    ...     },
    ...     private=True,
    ... )
    >>> design = parse_formula("y ~ age * cp", schema)
    >>> design.names
    ('(Intercept)', 'age', 'cp[atypical]', 'age:cp[atypical]')
    >>> design.units
    ('', 'per 10 from 50', '', 'per 10 from 50')
    """
    tokens = _tokens(text)
    response = _response(tokens, text, schema)
    terms = _terms(tokens[2:], text, schema)
    used = tuple(dict.fromkeys(name for term in terms for name in term))
    if response in used:
        _refuse(f"the response `{response}` is also on the right of {text!r}", "take it out there")

    blocks = [_block(term, schema) for term in terms]
    lone = [name for name in used if (name,) not in terms]
    blocks.extend(_indicator(name, schema) for name in lone)
    flat = [coefficient for block in blocks for coefficient in block]
    if not flat:
        _refuse(f"{text!r} has no coefficient", "add a term, or keep the intercept")
    coefficients, names, units = zip(*flat, strict=True)
    return Design(
        response=response,
        response_type="binary" if isinstance(schema[response], Binary) else "number",
        terms=terms,
        coefficients=coefficients,
        names=names,
        units=units,
        columns=(response, *used),
    )


_Term = tuple[str, ...]
_Coefficient = tuple[tuple[Part, ...], str, str]  # parts, name, unit

_TOKEN = re.compile(r"\s*([^\W\d_][\w.]*|\d+\.?\d*|\S)")
_INTERCEPT = "(Intercept)"
_GRAMMAR = "a formula reads `response ~ term + term`, where a term is a, a:b or a*b"
_CONDITION = 'declare a column with type = "binary", and list the cells that are `true` and `false`'
_TOKEN_HINTS = {
    ".": "name the columns one by one; what `.` stands for would change with the file",
    **dict.fromkeys("<>=!", _CONDITION),
}


def _refuse(message: str, hint: str) -> NoReturn:
    raise ConfigError(f"model.formula: {message}", hint)


def _tokens(text: str) -> list[str]:
    tokens = _TOKEN.findall(text)
    for name, after in itertools.pairwise(tokens):
        if after == "(" and _is_name(name):
            _refuse(
                f"the call `{name}(...)` in {text!r}",
                "a transform fitted to the data would tell about the records, so a formula has no "
                "functions; declare public `center` and `scale` under [data.schema.NAME], or write "
                "the transformed column into the file",
            )
    for token in tokens:
        if not _is_name(token) and token not in {"~", "+", "-", ":", "*", "0", "1"}:
            _refuse(f"{token!r} in {text!r}", _TOKEN_HINTS.get(token, _GRAMMAR))
    return tokens


def _is_name(token: str) -> bool:
    return token[0].isalpha()


def _response(tokens: list[str], text: str, schema: Schema) -> str:
    if tokens.count("~") != 1 or tokens[1:2] != ["~"] or not _is_name(tokens[0]):
        _refuse(
            f"{text!r}, expected one response, then `~`",
            _GRAMMAR,
        )
    name = tokens[0]
    column = _known(name, schema)
    if isinstance(column, Level):
        _refuse(
            f"the response `{name}` is a column of levels, expected a number or a binary column",
            f'declare [data.schema.{name}] with type = "binary" and the lists `true` and `false`',
        )
    if isinstance(column.missing, Impute) or column.missing == "indicator":
        raise ConfigError(
            f"data.schema.{name}.missing: the response `{name}` may not be made up",
            'use missing = "drop" for a response: the record counts as zero',
        )
    return name


def _known(name: str, schema: Schema) -> Number | Level | Binary:
    if name not in schema:
        _refuse(f"`{name}` is not declared under [data.schema]", did_you_mean(name, schema))
    return schema[name]


def _terms(tokens: list[str], text: str, schema: Schema) -> tuple[_Term, ...]:
    """The terms of a right-hand side without repetition, by the number of columns they multiply."""
    intercepts: set[bool] = set()
    terms: list[_Term] = []
    for sign, factors in _summands(tokens, text):
        if factors in (["0"], ["1"]):
            intercepts.add((factors == ["1"]) == (sign == "+"))
        elif sign == "-":
            _refuse(
                f"`- {''.join(factors)}` in {text!r}", "leave the term out; only `- 1` is known"
            )
        else:
            terms.extend(_expand(factors, text, schema))
    if len(intercepts) == 2:
        _refuse(f"{text!r} asks for an intercept and for none", "write `1 +` or `0 +`, not both")
    unique = {frozenset(term): term for term in reversed(terms)}
    ordered = sorted(unique.values(), key=lambda term: (len(term), terms.index(term)))
    return tuple(ordered) if intercepts == {False} else ((), *ordered)


def _summands(tokens: list[str], text: str) -> Iterable[tuple[str, list[str]]]:
    """Splits at + and -; checks that what is between has the form a:b*c."""
    signed = tokens if tokens and tokens[0] in "+-" else ["+", *tokens]
    starts = [index for index, token in enumerate(signed) if token in "+-"]
    for start, stop in zip(starts, [*starts[1:], len(signed)], strict=True):
        factors = signed[start + 1 : stop]
        operands, operators = factors[::2], factors[1::2]
        if (
            len(factors) % 2 == 0
            or any(operator not in ":*" for operator in operators)
            or any(not (_is_name(item) or factors in (["0"], ["1"])) for item in operands)
        ):
            found = f"`{''.join(factors)}`" if factors else "nothing"
            _refuse(f"{found} after `{signed[start]}` in {text!r}, expected a term", _GRAMMAR)
        yield signed[start], factors


def _expand(factors: list[str], text: str, schema: Schema) -> list[_Term]:
    """a*b:c becomes a, b:c, a:b:c; `:` binds closer than `*`."""
    groups: list[list[str]] = [[]]
    for token in factors:
        if token == "*":
            groups.append([])
        elif token != ":":
            _known(token, schema)
            groups[-1].append(token)
    return [
        tuple(dict.fromkeys(name for group in chosen for name in group))
        for count in range(1, len(groups) + 1)
        for chosen in itertools.combinations(groups, count)
    ]


def _block(term: _Term, schema: Schema) -> list[_Coefficient]:
    """The coefficients of one term; the levels of its first column vary fastest, as in R."""
    if not term:
        return [((), _INTERCEPT, "")]
    choices = [_main_effect(name, schema) for name in reversed(term)]
    block = []
    for chosen in itertools.product(*choices):
        parts, names, units = zip(*reversed(chosen), strict=True)
        block.append((parts, ":".join(names), ", ".join(unit for unit in units if unit)))
    return block + (_indicator(term[0], schema) if len(term) == 1 else [])


def _main_effect(name: str, schema: Schema) -> list[tuple[Part, str, str]]:
    column = schema[name]
    if isinstance(column, Level):
        return [
            (Part(name, code), f"{name}[{level}]", "")
            for code, level in enumerate(column.levels)
            if code > 0
        ]
    return [(Part(name), name, _unit(column) if isinstance(column, Number) else "")]


def _indicator(name: str, schema: Schema) -> list[_Coefficient]:
    if schema[name].missing != "indicator":
        return []
    return [((Part(indicator_name(name)),), f"{name}[missing]", "")]


def _unit(column: Number) -> str:
    if column.scale == 1 and column.center == 0:
        return ""
    return f"per {column.scale:.12g}" + (f" from {column.center:.12g}" if column.center else "")
