"""Tables to arrays with public bounds and declared levels; come here to see what `data` offers."""

from fedvi.data.arrays import checked_arrays, read_arrays
from fedvi.data.documents import bag_of_words, read_bag_of_words
from fedvi.data.formula import Design, parse_formula
from fedvi.data.ids import with_ids
from fedvi.data.load import prepare, prepare_columns, read_table
from fedvi.data.schema import Binary, Level, Number, Schema, parse_schema
from fedvi.data.source import ArraySource, concatenate
from fedvi.data.units import by_unit

__all__ = [
    "ArraySource",
    "Binary",
    "Design",
    "Level",
    "Number",
    "Schema",
    "bag_of_words",
    "by_unit",
    "checked_arrays",
    "concatenate",
    "parse_formula",
    "parse_schema",
    "prepare",
    "prepare_columns",
    "read_arrays",
    "read_bag_of_words",
    "read_table",
    "with_ids",
]
