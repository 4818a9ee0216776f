"""Makes records up from what a study's schema says in public: for an audit, and for checks of programs."""

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fedvi import errors
from fedvi.data.schema import Binary, Code, Level, Number
from fedvi.report import spreadsheets
from fedvi.run import loading
from fedvi.study.build import Assembly
from fedvi.updates.base import Shard
from fedvi.updates.conjugate import FromFile

__all__ = ["corners", "layout_of", "shard_of"]

_RECORDS = 32
"""Synthetic records of the replay, and corners of the schema, at most."""

_Column: TypeAlias = Number | Level | Binary


def shard_of(assembly: Assembly, data: Path | None, seed: int) -> Shard:
    """Returns records for the replay, padded as a client pads its own.

    Args:
      data: a file to read them from; None: they are drawn evenly within the schema's bounds.

    Raises:
      DataError: fewer than 3 records are usable.
    """
    client = assembly.clients[0]
    if data is not None:
        source = loading.load_shard(assembly, client, data)
    else:
        generator = np.random.default_rng(seed)
        count = min(_RECORDS, assembly.study.data.max_records or _RECORDS)
        source = _loaded(assembly, count, generator, lambda column, _: _even(column, generator))
    shard = loading.with_capacity(assembly, {client: source})[client]
    if int(shard.mask.sum()) < 3:
        raise errors.DataError(
            "the replay has fewer than 3 usable records, expected 3 or more",
            "declare a larger data.max_records, or give --data with more records",
        )
    return shard


def layout_of(assembly: Assembly) -> Callable[[], Shard | None]:
    """Returns ``layout`` of a ``Worker``, which workers of one process may share: it is computed once.

    The shard has the form of every client's. It has no records and takes no memory, whatever the capacity.
    It is None where the study does not tell the form, or no records can be made up, for whatever reason:
    programs are then checked on the form of the records that are read.
    """
    return functools.cache(functools.partial(_layout, assembly))


def _layout(assembly: Assembly) -> Shard | None:
    capacity = loading.most_records(assembly)
    if capacity is None:
        return None
    generator = np.random.default_rng(0)
    try:
        source = _loaded(assembly, 1, generator, lambda column, _: _even(column, generator))
    except Exception:  # no room for a file, bounds beyond the integers, a model from outside
        return None

    def empty(column: Any) -> np.ndarray:
        return np.broadcast_to(np.zeros((), column.dtype), (capacity, *column.shape[1:]))

    records = {name: empty(column) for name, column in source.records.items()}
    return Shard(records, empty(source.valid))


def corners(assembly: Assembly, seed: int) -> dict[str, np.ndarray]:
    """Returns records at the corners of what the schema allows, as a solver sees them: [n, …] each.

    All numbers at their lowest, all at their highest, and mixtures of both; of levels each in turn, so
    that one which is rare in every file stands here as well; true and false, with any of them.
    """
    generator = np.random.default_rng(seed)
    corner = generator.integers(2, size=(_RECORDS, max(1, len(assembly.schema))))
    corner[0], corner[1] = 0, 1
    places = {name: place for place, name in enumerate(assembly.schema)}

    def cell(column: _Column, record: int) -> Code:
        place = next(p for n, p in places.items() if assembly.schema[n] is column)
        return _corner(column, record, bool(corner[record, place]))

    source = _loaded(assembly, _RECORDS, generator, cell)
    valid = np.flatnonzero(source.valid)
    found = {name: np.asarray(column)[valid] for name, column in source.records.items()}
    # As a solver gets them: on a device floats have 32 bits.
    return {
        name: column.astype(np.float32) if column.dtype == np.float64 else column
        for name, column in found.items()
    }


def _loaded(
    assembly: Assembly,
    count: int,
    generator: np.random.Generator,
    cell: Callable[[_Column, int], Code],
) -> Any:
    """Writes a file such as the study describes, cell by cell, and reads it as a client would."""
    with tempfile.TemporaryDirectory() as folder:
        path = _written(assembly, Path(folder), count, generator, cell)
        return loading.load_shard(assembly, assembly.clients[0], path)


def _written(
    assembly: Assembly,
    folder: Path,
    count: int,
    generator: np.random.Generator,
    cell: Callable[[_Column, int], Code],
) -> Path:
    study = assembly.study
    if isinstance(assembly.model, FromFile):
        path = folder / "synthetic.npz"
        records: dict[str, Any] = assembly.model.made_up(count, generator)
        np.savez(path, **records)
        return path
    path = folder / "synthetic.csv"
    cells: dict[str, list[str]] = {}
    for column in assembly.schema.values():
        cells[column.column] = [str(cell(column, record)) for record in range(count)]
    if study.data.identity_column is not None:
        cells[study.data.identity_column] = [f"unit {index}" for index in range(count)]
    names = list(study.data.columns or cells)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = ([cells.get(name, ["0"] * count)[row] for name in names] for row in range(count))
        header = [names] if study.data.columns is None else []
        spreadsheets.write(file, [*header, *rows], study.data.separator)
    return path


def _even(column: _Column, generator: np.random.Generator) -> Code:
    match column:
        case Number(whole=True):
            low, high = column.bounds
            return str(int(generator.integers(int(low), int(high) + 1)))
        case Number():
            return repr(float(generator.uniform(*column.bounds)))
    codes = _codes(column)
    return codes[int(generator.integers(len(codes)))]


def _corner(column: _Column, record: int, high: bool) -> Code:
    if isinstance(column, Number):
        value = column.bounds[high]
        return str(int(value)) if column.whole else repr(float(value))
    if isinstance(column, Binary):
        # Not in turn: each level is to meet both outcomes.
        return min(column.true if high else column.false, key=str)
    codes = _codes(column)
    # The first record of the lowest, the second of the highest, then each in turn.
    return codes[-1 if record == 1 else record % len(codes)]


def _codes(column: Level | Binary) -> list[Code]:
    if isinstance(column, Level):
        return [code for code, _ in column.codes]
    return sorted(column.true | column.false, key=str)
