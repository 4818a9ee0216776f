"""Builds the design matrix for a formula such as `disease ~ age + sex`."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedvi.data.calls import refuse
from fedvi.data.grammar import parse_terms
from fedvi.data.response import Offset, Response, parse_response
from fedvi.data.schema import Level, Number, Schema, indicator_name
from fedvi.data.transforms import Transform
from fedvi.data.unit_words import unit_of
from fedvi.errors import DataError, did_you_mean
from fedvi.typing import INTERCEPT

__all__ = ["Design", "Part", "parse_formula"]


@dataclass(frozen=True)
class Part:
    """A factor of a coefficient's multiplier: a column, a function of it, or 1 where it equals ``code``.

    Args:
      column: name in the prepared records.
      code: a level's index; the part is then 1 at that level and otherwise 0.
      transform: functions of the column; without it, and without ``code``, the part is the column.
      index: which of the functions.
    """

    column: str
    code: int | None = None
    transform: Transform | None = None
    index: int = 0


@dataclass(frozen=True)
class Design:
    """A map from prepared columns to the columns of a design matrix; public, it holds no data.

    Args:
      response: the outcome of a record.
      offset: added to the linear predictor with a coefficient of 1, or None.
      terms: the factors of each term, main effects first: a column's name, or a call with all its
        constants; () is the intercept.
      coefficients: for each coefficient, the parts whose product it multiplies; () is the intercept.
      names: of the coefficients, such as "(Intercept)", "age", "cp[atypical]", "age:sex",
        "bs(iss)[1]".
      units: of the coefficients, such as "per 10 from 50"; "" where nothing was scaled.
      columns: used names of the schema, those of the response first.
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
        """Returns the unit of each coefficient, by name or as "level: coefficient"; "" if unknown."""
        units = dict(zip(self.names, self.units, strict=True))
        return tuple(
            units.get(name)
            or next((unit for own, unit in units.items() if name.endswith(f": {own}")), "")
            for name in names
        )

    @property
    def constant(self) -> tuple[int, ...]:
        """The coefficients whose columns add up to 1 in each record; () if there are no such.

        They are the intercept, or without it the coefficients of all levels of a column.
        """
        if () in self.coefficients:
            return (self.coefficients.index(()),)
        alone = {i: parts[0] for i, parts in enumerate(self.coefficients) if len(parts) == 1}
        whole = next((part.column for part in alone.values() if part.code == 0), None)
        return tuple(
            i for i, part in alone.items() if part.column == whole and part.code is not None
        )

    def by_bound(self, schema: Schema) -> "Design":
        """Returns the design with exposures, ``offset(log(NAME))``, in units of their upper bound.

        The constant is then the log rate of the largest exposure, and its prior does not depend on the
        unit of the file. Without a constant, nothing could make up for that: the design stays as it is.
        """
        offset = self.offset
        if offset is None or not offset.logarithm or not self.constant:
            return self
        column = schema[offset.column]
        assert isinstance(column, Number)
        return replace(self, offset=replace(offset, bound=column.bounds[1]))

    @property
    def outcome_shape(self) -> tuple[int, ...]:
        """The shape of one record's y."""
        shape = self.response.shape
        return shape if self.offset is None else (math.prod(shape) + 1,)

    @property
    def timed(self) -> tuple[str, ...]:
        """The columns to be passed to ``prepare_columns`` as ``timed``."""
        return self.response.timed

    def outcome(self, columns: Mapping[str, NDArray[np.generic]]) -> NDArray[np.float64]:
        """Returns y for columns from ``prepare_columns``: float64 [n], or [n, k] for several numbers.

        With an offset, y is (outcome, offset); several outcome numbers come before the offset. Numbers are
        scaled as their schema declares, times are in the unit of the file.
        """
        y = self.response.outcome(columns)
        return y if self.offset is None else np.column_stack([y, self.offset.values(columns)])

    def matrix(self, columns: Mapping[str, NDArray[np.generic]]) -> NDArray[np.float64]:
        """Returns the design matrix, float64 [n, D], for columns from ``prepare_columns``.

        The response is not needed, but at least one column is, to give n.
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
        return _products(self.coefficients, columns, count)

    def curve(
        self, column: str, values: ArrayLike, schema: Schema
    ) -> tuple[tuple[int, ...], NDArray[np.float64]]:
        """Evaluates one number's own terms over a grid, for instance to draw its effect.

        The effect at a value is the row times the coefficients, without other terms: interactions and the
        coefficient of a missing cell are left out. The result is public: it needs no data.

        Args:
          column: name of a number in the schema.
          values: g of them, in the unit of the file; values outside the bounds are clipped.

        Returns:
          The indices of the k coefficients of the column's own terms, and their multipliers,
          float64 [g, k].

        Raises:
          DataError: the schema has no number with that name.
        """
        declared = schema.get(column)
        if not isinstance(declared, Number):
            numbers = [name for name in schema if isinstance(schema[name], Number)]
            raise DataError(
                f"`{column}` is no number of the schema, and only numbers have a curve",
                did_you_mean(column, numbers),
            )
        indices = tuple(
            index
            for index, parts in enumerate(self.coefficients)
            if parts and all(part.column == column for part in parts)
        )
        raw = np.clip(np.asarray(values, np.float64).reshape(-1), *declared.bounds)
        prepared = {column: (raw - declared.center) / declared.scale}
        return indices, _products([self.coefficients[i] for i in indices], prepared, raw.size)


def parse_formula(text: str, schema: Schema) -> Design:
    """Reads ``response ~ term + term`` against a schema, by formulaic's grammar.

    The response is a column, ``Surv(time, event)`` or ``cbind(a, b)``, see ``fedvi.data.response``.
    ``offset(log(years))`` or ``offset(a)`` adds a known number to the linear predictor, in the unit of
    the file. A survival model has no intercept: its baseline replaces it.

    ``a:b`` is an interaction, ``a*b`` is a + b + a:b, ``a/b`` is a + a:b, ``(a + b + c)**2`` is all
    three and their interactions of two, ``a*b - a`` leaves a out, and ``- 1`` or ``0 +`` leaves out
    the intercept. Interactions come after main effects, and a term given twice counts once, as in R.
    A column of levels drops its first level if other terms already express it, and otherwise keeps all
    levels, as in formulaic: ``0 + g`` is a mean for each level, and ``a:g`` without ``a`` a slope for
    each. A binary column is a number, 0 or 1, and always has one column. A column with
    missing = "indicator" adds one coefficient, "chol[missing]", after its main effect, or at the end if it
    has none.

    Functions of a number have public constants: see ``fedvi.data.transforms``. If a cell is missing and
    has an indicator, a function is evaluated at the centre of its column.

    Raises:
      ConfigError: the text is not such a formula, or needs constants fitted to the data.

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
    sides = parse_terms(text, schema)
    response = parse_response(sides.response, text, schema)
    offset = sides.offset
    if offset is not None and response.type not in ("binary", "count", "counts", "number"):
        refuse(
            f"an offset beside the response `{response.text}`",
            "an offset is for one number, count or binary column, or two counts; take it out",
        )
    outcome = schema[response.columns[0]]
    if offset is not None and isinstance(outcome, Number) and outcome.scale != 1.0:
        refuse(
            f"an offset beside `{response.text}`, which is used in units of {outcome.scale:g}",
            f"declare scale = 1 under [data.schema.{response.text}]: an offset is in the unit of the file",
        )
    terms = sides.terms
    if response.type == "survival":
        terms = tuple(term for term in terms if term)
    used = tuple(dict.fromkeys(_column_of(factor) for term in terms for factor in term))
    moved = () if offset is None else (offset.column,)
    for name in response.columns:
        if name in used or name in moved:
            refuse(f"the response `{name}` is also on the right of {text!r}", "take it out there")

    # The products that the columns so far can express; the baseline of a survival is an intercept.
    spanned: set[frozenset[_Coded]] = {frozenset()} if response.type == "survival" else set()
    blocks = [_block(term, schema, spanned) for term in terms]
    lone = [name for name in used if (name,) not in terms]
    blocks.extend(_indicator(name, schema) for name in lone)
    flat = [coefficient for block in blocks for coefficient in block]
    # A survival without covariates has only its baseline.
    if not flat and response.type != "survival":
        refuse(f"{text!r} has no coefficient", "add a term, or keep the intercept")
    coefficients, names, units = zip(*flat, strict=True) if flat else ((), (), ())
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        refuse(
            f"two coefficients of {text!r} would be called `{twice[0]}`",
            "keep one of the two terms: a column can have one function of a kind",
        )
    return Design(
        response=response,
        offset=offset,
        terms=tuple(tuple(_text_of(factor) for factor in term) for term in terms),
        coefficients=coefficients,
        names=names,
        units=units,
        columns=tuple(dict.fromkeys((*response.columns, *moved, *used))),
    )


_Factor = str | Transform
_Term = tuple[_Factor, ...]
_Coefficient = tuple[tuple[Part, ...], str, str]  # parts, name, unit
_Coded = tuple[_Factor, bool]  # a factor, and whether it leaves out its first level


def _products(
    coefficients: Sequence[tuple[Part, ...]],
    columns: Mapping[str, NDArray[np.generic]],
    count: int,
) -> NDArray[np.float64]:
    """Multiplies the parts of each coefficient: float64 [count, number of coefficients]."""
    result = np.ones((count, len(coefficients)))
    bases: dict[Transform, NDArray[np.float64]] = {}
    for index, parts in enumerate(coefficients):
        for part in parts:
            values: NDArray[np.generic] = columns[part.column]
            if part.transform is not None:
                if part.transform not in bases:
                    bases[part.transform] = part.transform.values(values)
                values = bases[part.transform][:, part.index]
            elif part.code is not None:
                values = values == part.code
            result[:, index] *= values.astype(np.float64)
    return result


def _column_of(factor: _Factor) -> str:
    return factor if isinstance(factor, str) else factor.column


def _text_of(factor: _Factor) -> str:
    return factor if isinstance(factor, str) else factor.text


def _block(term: _Term, schema: Schema, spanned: set[frozenset[_Coded]]) -> list[_Coefficient]:
    """Returns the coefficients of one term; those of its first factor vary fastest, as in R.

    Args:
      spanned: the products that earlier terms can express; this term's are added.
    """
    block: list[_Coefficient] = []
    for coded in _coded(term, schema, spanned):
        choices = [_main_effect(*factor, schema) for factor in reversed(coded)]
        for chosen in itertools.product(*choices):
            parts, names, units = zip(*reversed(chosen), strict=True) if chosen else ((), (), ())
            name = ":".join(names) or INTERCEPT
            block.append((parts, name, ", ".join(unit for unit in units if unit)))
    alone = term[0] if len(term) == 1 else None
    return block + (_indicator(alone, schema) if isinstance(alone, str) else [])


def _coded(
    term: _Term, schema: Schema, spanned: set[frozenset[_Coded]]
) -> list[tuple[_Coded, ...]]:
    """Chooses the levels of a term's factors, so that no column is a combination of the others.

    All levels of g express the same as 1 and all but the first level of g. So a term expresses the products
    of any subset of its factors, each without its first level; those that earlier terms do not express
    are its own. As in formulaic (``FormulaMaterializer._get_scoped_terms``), and patsy before it.
    """
    choices: list[tuple[tuple[_Coded, ...], ...]] = [
        (((factor, True),), ()) if _is_level(factor, schema) else (((factor, False),),)
        for factor in term
    ]
    products = [tuple(itertools.chain(*chosen)) for chosen in itertools.product(*choices)]
    own = [product for product in products if frozenset(product) not in spanned]
    spanned.update(map(frozenset, own))
    return _joined(own)


def _joined(products: Sequence[tuple[_Coded, ...]]) -> list[tuple[_Coded, ...]]:
    """Merges a product, and the same times g without its first level, into one times all levels of g."""
    found: list[tuple[_Coded, ...]] = []
    for product in sorted(products, key=len):
        for smaller in found:
            more = set(product) - set(smaller)
            if len(smaller) + 1 == len(product) and len(more) == 1:
                (only,) = more
                if only[1]:
                    whole = tuple((f[0], False) if f == only else f for f in product)
                    found = _joined([*(old for old in found if old != smaller), whole])
                    break
        else:
            found.append(product)
    return found


def _is_level(factor: _Factor, schema: Schema) -> bool:
    return isinstance(factor, str) and isinstance(schema[factor], Level)


def _main_effect(
    factor: _Factor, without_first: bool, schema: Schema
) -> list[tuple[Part, str, str]]:
    if isinstance(factor, Transform):
        return [
            (Part(factor.column, transform=factor, index=index), name, unit)
            for index, (name, unit) in enumerate(zip(factor.names, factor.units, strict=True))
        ]
    column = schema[factor]
    if isinstance(column, Level):
        return [
            (Part(factor, code), f"{factor}[{level}]", "")
            for code, level in enumerate(column.levels)
            if code > 0 or not without_first
        ]
    return [(Part(factor), factor, unit_of(column) if isinstance(column, Number) else "")]


def _indicator(name: str, schema: Schema) -> list[_Coefficient]:
    if schema[name].missing != "indicator":
        return []
    return [((Part(indicator_name(name)),), f"{name}[missing]", "")]
