"""Divides one table among simulated clients, for benchmarks and tests."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int

from fedvi.errors import DataError

__all__ = ["balanced", "by_column", "skewed", "together"]


def balanced(
    generator: np.random.Generator, records: int, clients: int
) -> Int[np.ndarray, " records"]:
    """Returns for each record the index of its client: shares of equal size, drawn uniformly.

    Only for simulations, since it needs all records at once.

    Args:
      clients: their number; the sizes of their shares differ by at most 1.

    Raises:
      DataError: unless 1 ≤ ``clients`` ≤ ``records``.

    >>> np.bincount(balanced(np.random.default_rng(0), 7, 3)).tolist()
    [3, 2, 2]
    """
    if not 1 <= clients <= records:
        raise DataError(
            f"{clients} clients are to share {records} records, expected at least one record each"
        )
    return generator.permutation(np.arange(records) % clients)


def by_column(
    cells: Sequence[str], clients: int | None = None
) -> tuple[tuple[str, ...], Int[np.ndarray, " records"]]:
    """Returns the distinct cells of a column, in order of first occurrence, and each record's cell index.

    For instance hospitals, each a client. Cells are compared without blanks around them.

    Args:
      clients: the expected number of distinct cells; None for any.

    Raises:
      DataError: there is no record, a cell is empty, or the number of clients is wrong.

    >>> names, client = by_column(["north", "south ", "north"])
    >>> names, client.tolist()
    (('north', 'south'), [0, 1, 0])
    """
    known: dict[str, int] = {}
    client = np.array([known.setdefault(cell.strip(), len(known)) for cell in cells], np.intp)
    if "" in known or not known:
        empty = int((client == known.get("", -1)).sum())
        raise DataError(
            f"{empty} of {len(client)} records have nothing in the column that names their client or unit"
            if known
            else "there is no record to share out",
            "fill in the column, take these records out of the file, or split by another column",
        )
    if clients is not None and clients != len(known):
        raise DataError(
            f"{clients} clients are to share records of {len(known)} different ones",
            "leave the number of clients out, or split by another column",
        )
    return tuple(known), client


def together(cells: Sequence[str], share: Int[np.ndarray, " units"]) -> Int[np.ndarray, " records"]:
    """Returns for each record the client of its unit, so that no patient is at two clients.

    Args:
      cells: the unit of each record.
      share: the index of each unit's client, in the order of the units' first records.

    Raises:
      DataError: a cell is empty, or the number of shares differs from the number of units.

    >>> together(["a", "b", "a"], np.array([1, 0])).tolist()
    [1, 0, 1]
    """
    units, unit = by_column(cells)
    if len(share) != len(units):
        raise DataError(f"there are {len(share)} shares for {len(units)} units, expected one each")
    return np.asarray(share)[unit]


def skewed(
    generator: np.random.Generator,
    positive: Bool[np.ndarray, " records"],
    clients: int,
    size_skew: float | int,
    label_skew: float | int,
) -> Int[np.ndarray, " records"]:
    """Returns for each record the index of its client: half of the clients are small and differ in labels.

    The first M/2 of M clients hold ⌊(1 − ρ) N/M⌋ of N records each, a fraction b + (1 − b) κ of them
    negative, where b is the fraction of negatives among all N: κ = 0 leaves small clients unchanged,
    κ > 0 gives them fewer positives, κ < 0 more. The other M/2 clients share the rest equally, drawn
    uniformly.

    The Adult experiments of DP-PVI are (ρ, κ) = (0, 0), (0.75, 0.95) and (0.7, −3). Their code gives
    each large client ⌊(1 + ρ) N/M⌋ records and drops the few that rounding leaves over; here every
    record has a client.

    Only for simulations, since it needs all labels at once.

    Args:
      positive: of each record, whether its label is positive.
      clients: M, even.
      size_skew: ρ in [0, 1).
      label_skew: κ, such that b + (1 − b) κ is in [0, 1].

    Raises:
      DataError: ``clients`` is odd or below 2, ρ or κ is out of range, small clients would have no
        records, or there are too few positive or negative records for them.

    Source: Heikkilä et al. (2023), Differentially private partitioned variational inference, TMLR,
    §5.

    >>> positive = np.arange(80) % 4 == 0
    >>> client = skewed(np.random.default_rng(0), positive, 4, 0.5, -1)
    >>> np.bincount(client).tolist(), np.bincount(client[positive])[:2].tolist()
    ([10, 10, 30, 30], [5, 5])
    """
    records = len(positive)
    if clients < 2 or clients % 2 != 0:
        raise DataError(f"clients is {clients}, expected an even number: half of them are small")
    if not 0.0 <= size_skew < 1.0:
        raise DataError(f"size_skew is {size_skew}, expected a number from 0 to below 1")
    negative_part = float(np.mean(~positive)) if records else 0.0
    wanted = negative_part + (1.0 - negative_part) * label_skew
    if not 0.0 <= wanted <= 1.0:
        raise DataError(
            f"label_skew {label_skew} makes {wanted:.3g} of a small client's records negative, "
            "expected 0 to 1",
            f"{negative_part:.3g} of all records are negative",
        )
    small = int((1.0 - size_skew) * records / clients)
    if small < 1:
        raise DataError(
            f"size_skew {size_skew} leaves nothing of {records} records to each of {clients // 2} "
            "small clients"
        )
    # Rounded first, since a float product such as 0.8 × 5 may be just below the integer 4.
    negatives = int(np.floor(round(small * wanted, 9)))
    client = np.full(records, -1)
    for label, share in ((False, negatives), (True, small - negatives)):
        rows = generator.permutation(np.flatnonzero(positive == label))
        taken = share * (clients // 2)
        if taken > len(rows):
            kind = "positive" if label else "negative"
            raise DataError(
                f"small clients would hold {taken} {kind} records, and there are {len(rows)}",
                "bring size_skew or label_skew closer to 0",
            )
        client[rows[:taken]] = np.arange(taken) // max(share, 1)
    rest = np.flatnonzero(client < 0)
    client[rest] = clients // 2 + balanced(generator, len(rest), clients // 2)
    return client
