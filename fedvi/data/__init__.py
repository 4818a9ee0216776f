"""Turns tables into arrays, with public bounds and declared levels."""

from fedvi.data.arrays import checked_arrays, read_arrays
from fedvi.data.cells import Table, Wanted, as_texts
from fedvi.data.documents import bag_of_words, read_bag_of_words
from fedvi.data.formula import parse_formula
from fedvi.data.ids import with_ids
from fedvi.data.load import prepare_columns, prepared
from fedvi.data.schema import parse_schema
from fedvi.data.source import ArraySource, concatenate
from fedvi.data.stored import store
from fedvi.data.tables import chunks, known_rows, why_broken
from fedvi.data.units import by_unit

__all__ = [
    "ArraySource",
    "Table",
    "Wanted",
    "as_texts",
    "bag_of_words",
    "by_unit",
    "checked_arrays",
    "chunks",
    "concatenate",
    "known_rows",
    "parse_formula",
    "parse_schema",
    "prepare_columns",
    "prepared",
    "read_arrays",
    "read_bag_of_words",
    "store",
    "why_broken",
    "with_ids",
]
