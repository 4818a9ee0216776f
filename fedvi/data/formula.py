"""The text `disease ~ age + sex` as a design matrix; come here to add something to the grammar."""

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from fedvi.data.response import Offset, Response, parse_offset, parse_response, schema_column
from fedvi.data.schema import Level, Number, Schema, indicator_name
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
      response: what the outcome of a record is.
      offset: what is added to the linear predictor with a coefficient of 1, or None.
      terms: the columns that each term multiplies, main effects first; () is the intercept.
      coefficients: for each coefficient the parts that it multiplies; () is the intercept.
      names: of the coefficients, such as "(Intercept)", "age", "cp[atypical]", "age:sex".
      units: of the coefficients, such as "per 10 from 50"; "" where nothing was scaled.
      columns: names in the schema that are used, those of the response first.
    """

    response: Response
    offset: Offset | None
    terms: tuple[tuple[str, ...], ...]
    coefficients: tuple[tuple[Part, ...], ...]
    names: tuple[str, ...]
    units: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def size(self) -> int:
        """D, the number of coefficients."""
        return len(self.names)

    def units_of(self, names: Iterable[str]) -> tuple[str, ...]:
        """Returns the unit of each coefficient, itself or as "level: coefficient"; "" for others."""
        units = dict(zip(self.names, self.units, strict=True))
        return tuple(
            units.get(name)
            or next((unit for own, unit in units.items() if name.endswith(f": {own}")), "")
            for name in names
        )

    @property
    def outcome_shape(self) -> tuple[int, ...]:
        """Of one record's y."""
        return self.response.shape if self.offset is None else (2,)

    def outcome(self, columns: Mapping[str, NDArray[np.generic]]) -> NDArray[np.float64]:
        """Returns y of columns from ``prepare_columns``: float64 [n], or [n, k] of several numbers.

        With an offset y is (outcome, offset).
        """
        y = self.response.outcome(columns)
        return y if self.offset is None else np.stack([y, self.offset.values(columns)], axis=1)

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

    The response is a column, ``Surv(time, event)`` or ``cbind(a, b)``, see ``fedvi.data.response``.
    ``offset(log(years))`` or ``offset(a)`` adds a known number to the linear predictor, in the unit of
    the file. A survival has no intercept: its baseline stands for it.

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
    left, right = _sides(text)
    right, offset = _take_offset(right, text, schema)
    is_call = left[1:2] == ["("] and left[0] in _RESPONSE_CALLS
    _check_tokens([*([] if is_call else left), "~", *right], text)
    if not (is_call or (len(left) == 1 and _is_name(left[0]))) or "~" in right:
        _refuse(f"{text!r}, expected one response, then `~`", _GRAMMAR)
    response = parse_response(left, text, schema)
    if offset is not None and response.type not in ("binary", "count", "number"):
        _refuse(
            f"an offset beside the response `{response.text}`",
            "an offset is for one number, count or binary column; take it out",
        )
    outcome = schema[response.columns[0]]
    if offset is not None and isinstance(outcome, Number) and outcome.scale != 1.0:
        _refuse(
            f"an offset beside `{response.text}`, which is used in units of {outcome.scale:g}",
            f"declare scale = 1 under [data.schema.{response.text}]: an offset is in the unit of the file",
        )
    terms = _terms(right, text, schema)
    if response.type == "survival":
        terms = tuple(term for term in terms if term)
    used = tuple(dict.fromkeys(name for term in terms for name in term))
    moved = () if offset is None else (offset.column,)
    for name in response.columns:
        if name in used or name in moved:
            _refuse(f"the response `{name}` is also on the right of {text!r}", "take it out there")

    blocks = [_block(term, schema) for term in terms]
    lone = [name for name in used if (name,) not in terms]
    blocks.extend(_indicator(name, schema) for name in lone)
    flat = [coefficient for block in blocks for coefficient in block]
    # A survival without covariates is its baseline.
    if not flat and response.type != "survival":
        _refuse(f"{text!r} has no coefficient", "add a term, or keep the intercept")
    coefficients, names, units = zip(*flat, strict=True) if flat else ((), (), ())
    return Design(
        response=response,
        offset=offset,
        terms=terms,
        coefficients=coefficients,
        names=names,
        units=units,
        columns=tuple(dict.fromkeys((*response.columns, *moved, *used))),
    )


_Term = tuple[str, ...]
_Coefficient = tuple[tuple[Part, ...], str, str]  # parts, name, unit

_TOKEN = re.compile(r"\s*([^\W\d_][\w.]*|\d+\.?\d*|\S)")
_INTERCEPT = "(Intercept)"
_RESPONSE_CALLS = ("Surv", "cbind")
_GRAMMAR = "a formula reads `response ~ term + term`, where a term is a, a:b or a*b"
_CONDITION = 'declare a column with type = "binary", and list the cells that are `true` and `false`'
_TOKEN_HINTS = {
    ".": "name the columns one by one; what `.` stands for would change with the file",
    **dict.fromkeys("<>=!", _CONDITION),
}


def _refuse(message: str, hint: str) -> NoReturn:
    raise ConfigError(f"model.formula: {message}", hint)


def _sides(text: str) -> tuple[list[str], list[str]]:
    """Returns the tokens before and after the first `~`."""
    tokens = _TOKEN.findall(text)
    if "~" not in tokens:
        _check_tokens(tokens, text)
        _refuse(f"{text!r}, expected one response, then `~`", _GRAMMAR)
    at = tokens.index("~")
    return tokens[:at], tokens[at + 1 :]


def _take_offset(tokens: list[str], text: str, schema: Schema) -> tuple[list[str], Offset | None]:
    """Takes ``+ offset(...)`` out of a right-hand side."""
    starts = [
        index for index, pair in enumerate(itertools.pairwise(tokens)) if pair == ("offset", "(")
    ]
    if not starts:
        return tokens, None
    if len(starts) > 1:
        _refuse(f"{text!r} has {len(starts)} offsets, expected one", "write their sum as a column")
    start = starts[0]
    logarithm = tokens[start + 2 : start + 4] == ["log", "("]
    opening = 4 if logarithm else 2
    stop = start + opening + 1
    closing = [")"] * (opening // 2)
    after = stop + len(closing)
    name = "".join(tokens[stop - 1 : stop])
    before, rest = tokens[:start], tokens[after:]
    if (
        not name
        or not _is_name(name)
        or tokens[stop:after] != closing
        or before[-1:] not in ([], ["+"])
        or rest[:1] not in ([], ["+"], ["-"])
    ):
        _refuse(f"the offset in {text!r}", "write `+ offset(log(years))` or `+ offset(shift)`")
    left = [*before[:-1], *rest] if before else rest[1:] if rest[:1] == ["+"] else rest
    return left or ["1"], parse_offset(name, logarithm, schema)


def _check_tokens(tokens: list[str], text: str) -> None:
    for name, after in itertools.pairwise(tokens):
        if after == "(" and _is_name(name):
            _refuse(
                f"the call `{name}(...)` in {text!r}",
                "a transform fitted to the data would tell about the records, so a formula has no "
                "functions but Surv and cbind left of `~` and offset right of it; declare public "
                "`center` and `scale` under [data.schema.NAME], or write the transformed column into "
                "the file",
            )
    for token in tokens:
        if not _is_name(token) and token not in {"~", "+", "-", ":", "*", "0", "1"}:
            _refuse(f"{token!r} in {text!r}", _TOKEN_HINTS.get(token, _GRAMMAR))


def _is_name(token: str) -> bool:
    return token[0].isalpha()


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
            schema_column(token, schema)
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
