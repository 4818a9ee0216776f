"""Reads a client's file into the records that its solver works on."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedvi import data, errors
from fedvi.data.source import ArraySource
from fedvi.data.units import check_identities
from fedvi.study.build import Assembly
from fedvi.study.config import Study
from fedvi.study.spec.coefficients import known_noise
from fedvi.typing import ROWS
from fedvi.updates.base import Shard
from fedvi.updates.conjugate import FromFile

__all__ = ["Disk", "load_shard", "load_shards", "most_records", "with_capacity"]

_IN_MEMORY = 1 << 29
"""The most bytes of prepared records that a client keeps in memory, if it has the choice."""


class Disk(NamedTuple):
    """Where prepared records are kept on disk instead of memory; see ``data.stored``.

    Attributes:
      folder: a folder on the disk to use; None: the system's folder for temporary files.
      always: whether records are kept there whatever their number.
    """

    folder: Path | None = None
    always: bool = False


def load_shards(
    assembly: Assembly,
    base: Path,
    *,
    disk: Disk | None = None,
    tell: Callable[[str], None] | None = None,
) -> dict[str, ArraySource]:
    """Reads every client's file, at a path relative to ``base``; other arguments as for ``load_shard``.

    Raises:
      ConfigError: if a client names no file.
      DataError: if a file does not fit the schema.
    """
    study = assembly.study
    shards = {}
    for client in study.clients:
        if client.data is None:
            raise errors.ConfigError(
                f"clients: {client.name!r} names no data file",
                'add data = "path.csv" to its [[clients]] entry',
            )
        path = base / client.data
        shards[client.name] = load_shard(assembly, client.name, path, disk=disk, tell=tell)
    return shards


def load_shard(
    assembly: Assembly,
    client: str,
    path: Path,
    *,
    disk: Disk | None = None,
    tell: Callable[[str], None] | None = None,
    whole: bool = False,
) -> ArraySource:
    """Reads one client's file and applies the schema.

    Args:
      assembly: the study, built.
      client: its name in the study.
      path: of a format of ``data.tables``.
      disk: for records that would take more than 512 MiB of memory, if the solver goes through them
        block by block. Results are the same, to the last bit. None: in memory.
      tell: called with a sentence if most records count as zero, as by ``data.prepared``, and if there
        are more than the study declares. Private: only for the screen of the records' owner.
      whole: see ``data.Wanted``; for public records of which nothing is released.

    Raises:
      ConfigError: ``disk.always`` is set, and the study's solver cannot work on records on disk.
      DataError: the file is missing or lacks a column; in a study without privacy, also if it does not
        fit the schema, or a row has no identifier.
    """
    source = _read(assembly, client, path, disk, tell, whole)
    most = most_records(assembly)
    if tell is not None and assembly.study.privacy.private and most and source.size > most:
        tell(
            f"{client}: more records than data.max_records, {most:,}: only the first of them are used. To "
            "use all, the study must declare more, for everybody, before it starts"
        )
    return source


def _read(
    assembly: Assembly,
    client: str,
    path: Path,
    disk: Disk | None,
    tell: Callable[[str], None] | None,
    whole: bool,
) -> ArraySource:
    study, schema = assembly.study, assembly.schema
    stored = disk is not None and _is_stored(assembly, client, path, disk)
    if isinstance(assembly.model, FromFile):
        return _load_arrays(assembly, assembly.model, client, path, tell)
    names = assembly.columns
    private, unit_column = study.privacy.private, study.data.unit_column
    identity = study.data.identity_column
    identities: list[str | None] = []

    def noted(tables: Iterable[data.Table]) -> Iterator[data.Table]:
        for table in tables:
            if identity is not None:
                identities.extend(data.as_texts(table[identity]))
            yield table

    wanted = _wanted(study, schema, names, identity, whole)
    chunks = data.prepared(
        noted(data.chunks(path, wanted)),
        schema,
        names,
        assembly.design,
        private=private,
        where=client,
        tell=tell,
        broken=lambda: data.why_broken(path, wanted),
        noise=known_noise(study),
    )
    if disk is not None and stored:
        return data.store(chunks, disk.folder, client)
    source = data.concatenate(list(chunks))
    if identity is None:
        return source
    if assembly.by_ids:
        source = data.with_ids(source, identities, study.origin_digest)
    if unit_column is None:
        return source
    if not private:
        units = check_identities(identities, unit_column, client)
        if study.data.max_records is not None and units > study.data.max_records:
            raise errors.DataError(
                f"{client}: more units in `{unit_column}` than the study declares with "
                f"`data.max_records` = {study.data.max_records}",
                "declare a larger public bound, in the study file of everybody, and start again",
            )
    if not assembly.grouped:
        return source
    return data.by_unit(source, identities, study.data.rows_per_unit)


def most_records(assembly: Assembly) -> int | None:
    """Returns the most records of a client that are used; None for all."""
    if assembly.study.data.unit_column is not None and not assembly.grouped:
        return None  # the study counts units, but a record is a row here
    return assembly.study.data.max_records


def _wanted(
    study: Study, schema: Any, names: tuple[str, ...], identity: str | None, whole: bool = False
) -> data.Wanted:
    """Returns the columns to read from a client's file."""
    columns = [schema[name].column for name in names]
    if identity is not None:
        columns.append(identity)
    return data.Wanted(
        names=tuple(dict.fromkeys(columns)),
        columns=study.data.columns,
        separator=study.data.separator,
        private=study.privacy.private,
        as_text=frozenset() if identity is None else frozenset({identity}),
        whole=whole,
    )


def _is_stored(assembly: Assembly, client: str, path: Path, disk: Disk) -> bool:
    """Whether a client's records are kept on disk; decided by public values or the file's size."""
    study, design = assembly.study, assembly.design
    able = (
        assembly.solvers[client].streams
        and study.data.identity_column is None
        and not isinstance(assembly.model, FromFile)
    )
    if disk.always:
        if not able:
            raise errors.ConfigError(
                f"records cannot be worked on from the disk by solver.kind {study.solver.kind!r} in this "
                "study",
                "leave --cache out. Solvers that can are `site_release`, `dp_optimisation`, `glm` and "
                "`vips` (regressions), without data.unit_column and data.id_column",
            )
        return True
    if not able or not path.exists():
        return False
    rows = study.data.max_records or data.known_rows(path)
    if rows is None:  # of text files, whose size is about that of the numbers in memory
        return path.stat().st_size > _IN_MEMORY
    numbers = len(assembly.schema)
    if design is not None:
        numbers = design.size + math.prod(design.outcome_shape)
    return rows * numbers * 8 > _IN_MEMORY


def _load_arrays(
    assembly: Assembly,
    model: FromFile,
    client: str,
    path: Path,
    tell: Callable[[str], None] | None,
) -> ArraySource:
    """Reads a conjugate model's records from a file of arrays, or from a table with one row of numbers per
    record, whose columns are in the order of the schema."""
    study, schema, layout = assembly.study, assembly.schema, model.layout
    private = study.privacy.private
    if path.suffix.lower() == ".npz":
        return data.read_arrays(path, layout, model.sound, private=private, where=client)
    names = tuple(schema)
    if len(layout) != 1 or next(iter(layout.values())) != (len(names),):
        raise errors.DataError(
            f"{client}: {path.name} is no .npz, expected one with "
            + ", ".join(f"{name} [N{''.join(f', {n}' for n in s)}]" for name, s in layout.items()),
            "a table serves where a record is one row of numbers, as many as [data.schema] has columns",
        )
    tables = data.chunks(path, _wanted(study, schema, names, None))
    parts = data.prepared(tables, schema, names, None, private=private, where=client, tell=tell)
    columns = data.concatenate(list(parts))
    array = np.stack([columns.records[name] for name in names], axis=1)
    found = {next(iter(layout)): array}
    rows = data.checked_arrays(found, layout, model.sound, private=private, where=client)
    return ArraySource(rows.records, rows.valid & columns.valid)


def with_capacity(assembly: Assembly, sources: Mapping[str, ArraySource]) -> dict[str, Shard]:
    """Pads shards to a capacity, so that they share a compilation.

    The capacity is the declared largest number of records where batches or a claim are sized for
    it; otherwise the next power of two, so that what a client computes depends, to the last bit, on
    no other client's number of records. In a private study, records beyond the declared number are
    left out by their position, so that whether a client answers depends on no record. Replacing a
    record (or unit) then replaces at most one of those that are used; but removing one lets the
    next one in, so that a client with more than ``max_records`` has the price of ``substitute``
    under either relation.

    Raises:
      DataError: there are more records than declared, in a study without privacy; or records
        are not grouped into units as the study says.
    """
    study, declared = assembly.study, most_records(assembly)
    shards = {}
    for name, source in sources.items():
        if (ROWS in source.records) != assembly.grouped:
            raise errors.DataError(
                f"{name}: records are {'' if ROWS in source.records else 'not '}grouped into units, "
                f"expected {'units' if assembly.grouped else 'one row each'}",
                "group rows with `fedvi.data.by_unit` where the study names data.unit_column and "
                "its solver adds noise, and nowhere else",
            )
        capacity = declared or 1 << max(0, source.size - 1).bit_length()
        if study.privacy.private:
            source = source.first(capacity)
        records, mask = source.padded(capacity, where=name)
        shards[name] = Shard(records, np.asarray(mask, bool))
    return shards
