"""Checks a compiled sum of clipped contributions on made-up records before any privacy is charged.

Proofs of sensitivity assume that a record's contribution is computed from its own row alone, and is the
same in whichever row it stands. No compiler promises that, and jaxlib 0.10.2 broke it: one record filled up
to 30 rows (SECURITY.md, FEDVI-2026-05). So every program that a release rests on first runs on made-up
records, in the sizes of the real ones.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedvi import errors
from fedvi.models import made_up
from fedvi.privacy.base import ROWS_TOGETHER

__all__ = ["Catalogue", "Finding", "Probe", "catalogue", "check", "probes", "whole_groups"]

# Sizes of odd numbers, and how many pairs of records of such numbers there are.
_SIZES, _ODD = (0.5, 1.0, 3.0, 1e2, 1e4, 1e6), 6
# At most so many pairs of records in the ranges on which models are tested (`made_up.other_pairs`).
_OTHERS = 8
# Numbers that a record may hold by mistake.
_BAD = (np.nan, np.inf, 3e38, -3e38, 1e-40, 0.0)
# In so many of the first columns one by one.
_SPOILT = 3
# A check that takes longer is given up.
_MOST_SECONDS = 1800.0
# Rows, from either end of a batch, in which records are tried; and how many rows anywhere.
_PLACES, _ANYWHERE = (1, 2, 7, 8, 31, 32, 63, 64), 12
# How many pairs of random halves are compared.
_HALVES = 6
# The share of the clip norm by which float sums of halves may differ, see `float_limit`.
_ROUNDING = 0.05


class Probe(NamedTuple):
    """Two made-up batches whose totals are compared.

    Attributes:
      choices: which record of the catalogue stands in each row, int32 [2, B].
      masks: which rows count, bool [2, B].
      same: "exactly", if both totals are equal where rows are computed alike and by themselves;
        "nearly", up to the rounding of float sums; or empty, if only their norms are looked at.
      about: what a difference would mean.
    """

    choices: np.ndarray
    masks: np.ndarray
    same: str
    about: str


class Finding(NamedTuple):
    """What a check has found.

    Attributes:
      probes: how many pairs of batches were compared.
      moved: the largest norm of one record's contribution, in units of the clip norm.
      seconds: how long it took, compilation included.
    """

    probes: int
    moved: float
    seconds: float


class Catalogue(NamedTuple):
    """Made-up records.

    Attributes:
      columns: for each column, its values in all records, [K, …].
      number: K.
      usual: how many of them, the first ones, hold numbers that models are tested on.
      finite: how many hold finite numbers; all others are the last ones.
    """

    columns: list[np.ndarray]
    number: int
    usual: int
    finite: int


def catalogue(
    shapes: Sequence[jax.ShapeDtypeStruct], valid: Sequence[Sequence[np.ndarray]] = ()
) -> Catalogue:
    """Makes up records: those that models are tested on, ones of very different sizes, and bad ones.

    Args:
      shapes: shape and dtype of each column of one record.
      valid: more records, as lists of columns, that are valid for the model.
    """
    random = np.random.default_rng(0)
    are_float = [bool(jnp.issubdtype(shape.dtype, jnp.floating)) for shape in shapes]
    records = [[made_up.placeholder(shape, made_up.ONE) for shape in shapes]]
    others = itertools.islice(made_up.other_pairs(shapes), _OTHERS)
    for pair in (made_up.usual_pair(shapes), *made_up.wider_pairs(shapes), *others):
        records += pair
    # In front, where none other is valid.
    records = [*map(list, valid), *records]
    usual = len(records)
    for _ in range(_ODD):
        # A size for each column, so that an ordinary row may have a far outcome, and the other way round.
        sizes = random.choice(_SIZES, len(shapes))
        one = [
            random.normal(size=shape.shape) * size
            if is_float
            else random.integers(0, 3, shape.shape)
            for shape, size, is_float in zip(shapes, sizes, are_float, strict=True)
        ]
        # And the same with the opposite of one column, for example of the outcome.
        flipped = random.integers(len(shapes)) if shapes else 0
        turned = [-part if at == flipped and are_float[at] else part for at, part in enumerate(one)]
        records += [one, turned]
    finite = len(records)
    ordinary = records[usual - 1]
    for bad in _BAD:
        # In all columns, and in one beside ordinary ones, since what overflows counts as zero.
        for spoilt in ({*range(len(shapes))}, *({at} for at in range(min(len(shapes), _SPOILT)))):
            records.append(
                [
                    np.full(shape.shape, bad) if at in spoilt and are_float[at] else part
                    for at, (shape, part) in enumerate(zip(shapes, ordinary, strict=True))
                ]
            )

    def cast(part: Any, shape: jax.ShapeDtypeStruct) -> np.ndarray:
        if jnp.issubdtype(shape.dtype, jnp.floating):
            most = float(jax.numpy.finfo(shape.dtype).max)  # type: ignore[no-untyped-call]
            part = np.asarray(part, np.float64)
            part = np.where(np.isfinite(part), np.clip(part, -most, most), part)
        return np.asarray(part, shape.dtype)

    columns = [
        np.stack([cast(record[place], shape) for record in records])
        for place, shape in enumerate(shapes)
    ]
    return Catalogue(columns, len(records), usual, finite)


def probes(rows: int, records: Catalogue) -> Iterator[Probe]:
    """Yields pairs of batches of ``rows`` rows of made-up records.

    - One record alone, in a row and in another: the same total. Rows are those that compiled programs
      treat apart: the first and last of a batch, of a group of 8 or 64 rows, and some between.
    - One record in every row, of which one half counts or the other.
    - Other records in the rows that do not count. For every pair of rows there is a batch in which one
      counts and the other does not, so that no row may be computed from another.
    """
    random = np.random.default_rng(0)
    inside = [place for place in _PLACES if place < rows]
    # From either end, and a few anywhere.
    ends = [rows - 1, *(rows - 1 - place for place in inside)]
    known = dict.fromkeys([*inside, *ends, rows // 2, rows // 3])
    chosen = [*known, *random.integers(0, rows, _ANYWHERE)]
    odd = range(records.usual, records.number)
    # Odd records first, then usual ones, each beside the same in the first row.
    for row, record in zip(chosen, itertools.cycle([*odd, *range(records.usual)]), strict=False):
        yield Probe(
            np.full((2, rows), record, np.int32),
            np.stack([np.arange(rows) == 0, np.arange(rows) == row]),
            "exactly",
            f"a record contributes otherwise in row {row:,} than in row 0",
        )
    # Every record alone, for its norm: odd ones in the middle and at the end, two at a time.
    for row, which in ((rows // 2, range(records.number)), (rows - 1, odd)):
        for one, other in itertools.zip_longest(which[::2], which[1::2], fillvalue=which[0]):
            yield Probe(
                np.repeat(np.array([[one], [other]], np.int32), rows, axis=1),
                np.stack([np.arange(rows) == row] * 2),
                "",
                "",
            )
    for _ in range(_HALVES if rows > 1 else 0):
        mixed = random.permutation(rows)
        masks = np.zeros((2, rows), bool)
        masks[0, mixed[: rows // 2]] = masks[1, mixed[rows // 2 : rows // 2 * 2]] = True
        yield Probe(
            np.full((2, rows), random.integers(records.usual), np.int32),
            masks,
            "nearly",
            "equal records contribute otherwise in some rows than in others",
        )
    for bit in range(max(rows - 1, 0).bit_length()):
        for side in (False, True):
            counts = (np.arange(rows) >> bit & 1).astype(bool) == side
            first = random.integers(0, records.usual, rows)
            # A sum with numbers that are not finite may be added up in another order.
            exact = side or bool(bit % 2)
            number = records.finite if exact else records.number
            others = (first + random.integers(1, number, rows)) % number
            yield Probe(
                np.stack([first, np.where(counts, first, others)]).astype(np.int32),
                np.stack([counts, counts]),
                "exactly" if exact else "nearly",
                "rows that do not count change the contributions of others",
            )


def whole_groups(rows: int, sampler: Any) -> int:
    """Returns the rows of a sampler's batch, if they are whole groups.

    Raises:
      PrivacyError: they are not, as of a sampler from outside whose ``draw`` does not end in ``filled``.
    """
    if rows % ROWS_TOGETHER:
        raise errors.PrivacyError(
            f"{type(sampler).__name__} draws batches of {rows} rows, expected a multiple of "
            f"{ROWS_TOGETHER}: rows left over are computed otherwise",
            "let its `draw` return fedvi.privacy.base.filled(Batch(…))",
        )
    return rows


def check(
    totals: Callable[[np.ndarray, np.ndarray], Any],
    rows: int,
    records: Catalogue,
    unit: float,
    subject: str,
) -> Finding:
    """Compares the totals of made-up batches, and refuses a program whose proof of sensitivity fails.

    Args:
      totals: (choices [2, B], masks [2, B]) of a `Probe` → trees of arrays [2, …] of whole numbers.
      rows: B.
      records: those that stand in the rows.
      unit: the clip norm in these whole numbers: the most that one record may contribute.
      subject: what is checked, for messages.

    Raises:
      PrivacyError: one record contributes more than a clip norm; or two totals differ that must not; or no
        made-up record contributes anything, so that nothing can be told.
    """
    begun, count, moved, silent = time.monotonic(), 0, 0.0, True
    for probe in probes(rows, records):
        if time.monotonic() - begun > _MOST_SECONDS:
            raise _refused(
                subject,
                f"it was not over after {_MOST_SECONDS:,.0f} s",
                "nothing was released. Use smaller batches, a smaller max_records or a smaller model",
            )
        # What is compiled is checked, also where a caller has switched compilation off.
        with jax.disable_jit(False):
            found = [
                np.asarray(leaf) for leaf in jax.tree.leaves(totals(probe.choices, probe.masks))
            ]
        first, second = (
            np.concatenate([leaf[side].astype(np.float64).ravel() for leaf in found])
            for side in (0, 1)
        )
        count, silent = count + 1, silent and not first.any()
        apart = float(np.linalg.norm(first - second)) / unit
        most = 0.0 if probe.same else math.inf
        if probe.same == "nearly":
            most = _ROUNDING + 2.0 * math.sqrt(first.size) / unit
        if apart > most:
            raise _refused(subject, f"{probe.about}, by {apart:.3g} clip norms")
        if probe.masks[0].sum() == 1:
            moved = max(moved, *(float(np.linalg.norm(side)) / unit for side in (first, second)))
            if moved > 1.0 + 1e-9:
                raise _refused(subject, f"one record contributes {moved:.4g} clip norms")
    if silent:
        raise _refused(
            subject,
            "no made-up record contributes anything, so that nothing can be checked",
            "the log likelihood must be finite, and depend on the parameters, for some records of "
            "small random numbers",
        )
    return Finding(count, moved, time.monotonic() - begun)


def _refused(subject: str, why: str, hint: str = "") -> errors.PrivacyError:

    return errors.PrivacyError(
        f"{subject} fails its check on made-up records: {why}",
        hint
        or "nothing was released. Either the compiler computes wrong values (this is jaxlib "
        f"{metadata.version('jaxlib')} on {jax.default_backend()}: try another version, or a CPU), or the "
        "model treats records by their place in the arrays. Please report it (SECURITY.md)",
    )
