"""Turns bags of words into arrays of a fixed, public width."""

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedvi.data.source import ArraySource
from fedvi.errors import ConfigError, DataError

__all__ = ["BagOfWords", "bag_of_words", "read_bag_of_words"]

# float32 is exact for integers up to this one; also the public bound on a word's count in a document.
_MOST_TIMES = 1 << 24
# Words are stored as int32.
_MOST_WORDS = 1 << 31


class BagOfWords(NamedTuple):
    """Documents in compressed rows: the entries of document i are ``starts[i]`` to ``starts[i + 1]``.

    Attributes:
      starts: [N + 1], integers.
      words: [number of entries], from 0.
      counts: [number of entries].
    """

    starts: NDArray[Any]
    words: NDArray[Any]
    counts: NDArray[Any]


def bag_of_words(
    corpus: Any,
    vocabulary: int,
    distinct: int,
    *,
    private: bool = True,
) -> ArraySource:
    """Lays each document's distinct words side by side: the records of ``fedvi.models.lda``.

    Each row depends on its own document alone, so that one document more or less is one record more or
    less. If a word has several entries in a document, their counts are added. Entries of count 0 are left
    out. A document without words stays, as a record that adds nothing.

    Args:
      corpus: a SciPy sparse matrix [N, V] of counts, or ``BagOfWords``, or its three arrays.
      vocabulary: V, public, at most 2³¹; words are numbered from 0.
      distinct: L, the most distinct words of a document that are kept; public.
      private: whether errors must not depend on a document. If so: of more than L distinct words, the L
        most frequent are kept, with ties broken by the smaller number; words outside 0 … V − 1 are
        left out; and a document counts as zero if a count is negative, fractional or not a number, or a
        word occurs more than 2²⁴ times. If not private, all of these are refused.

    Returns:
      ``words`` int32 [N, L], ascending, and ``counts`` float32 [N, L], 0 after the last word. All documents
      with correct counts are valid, with or without words.

    Raises:
      DataError: the arrays do not fit together or do not hold numbers; or, if not ``private``, a case
        listed there occurs. The message contains no number of a document.
      ConfigError: an argument is out of its range, or not an integer.

    >>> source = bag_of_words(([0, 2, 2], [4, 1], [1.0, 2.0]), vocabulary=5, distinct=3)
    >>> source.records["words"].tolist(), source.records["counts"].tolist()
    ([[1, 4, 0], [0, 0, 0]], [[2.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    """
    _check_option("vocabulary", vocabulary, 2, _MOST_WORDS)
    _check_option("distinct", distinct, 1)
    starts, words, counts = _entries(corpus, vocabulary)
    count = len(starts) - 1
    known = (words >= 0) & (words < vocabulary)
    whole = (counts >= 0.0) & (counts <= _MOST_TIMES) & (counts == np.floor(counts))
    if not private:
        _refuse_odd(known, whole, vocabulary)
    owner = np.repeat(np.arange(count), np.diff(starts))
    valid = np.bincount(owner[~whole], minlength=count) == 0
    kept = known & (counts > 0) & valid[owner]
    owner = owner[kept]
    # Sorted by document and then by word, without duplicate pairs.
    pairs, places = np.unique(owner * vocabulary + words[kept], return_inverse=True)
    numbers = np.asarray(np.bincount(places, counts[kept], pairs.size), np.float64)
    owner, word = np.divmod(pairs, vocabulary)
    few = numbers <= _MOST_TIMES
    if not private and not few.all():
        raise _odd_counts()
    # Valid entries can have an invalid sum.
    valid[owner[~few]] = False
    owner, word, numbers = (column[valid[owner]] for column in (owner, word, numbers))
    ends = np.searchsorted(owner, np.arange(count + 1))
    found = np.zeros((count, distinct), np.int32), np.zeros((count, distinct), np.float32)
    sizes = np.diff(ends)
    if not private and (sizes > distinct).any():
        raise DataError(
            f"a document has more than {distinct} distinct words", "give a larger `distinct`"
        )
    fits = (sizes <= distinct)[owner]
    place = np.arange(owner.size) - ends[owner]
    found[0][owner[fits], place[fits]] = word[fits]
    found[1][owner[fits], place[fits]] = numbers[fits]
    for row in np.flatnonzero(sizes > distinct):
        entries = slice(ends[row], ends[row + 1])
        # A stable sort of words in ascending order: with equal counts, the smaller word is first.
        first = np.sort(np.argsort(-numbers[entries], kind="stable")[:distinct])
        found[0][row], found[1][row] = word[entries][first], numbers[entries][first]
    return ArraySource({"words": found[0], "counts": found[1]}, valid)


def read_bag_of_words(path: Path | str) -> tuple[BagOfWords, int]:
    """Reads a file of the UCI repository's Bag of Words collection; also returns the vocabulary's size.

    It has three lines with the numbers of documents, words in the vocabulary, and entries; then a line
    ``document word count`` for each entry, with numbers from 1. A name that ends in .gz is unpacked.

    Raises:
      DataError: the file has another format, or another number of entries than its third line says.
    """
    name = Path(path)
    opened = gzip.open if name.suffix == ".gz" else open
    try:
        with opened(name, "rt", encoding="ascii") as lines:
            header = [int(next(lines)) for _ in range(3)]
            none = np.zeros((0, 3), np.int64)  # np.loadtxt warns of no lines
            table = np.loadtxt(lines, dtype=np.int64, ndmin=2) if header[2] else none
    except (OSError, ValueError, StopIteration) as error:
        raise DataError(
            f"{name} cannot be read as a bag of words: {type(error).__name__}",
            "expected three lines with one number each, and then lines of three numbers",
        ) from error
    count, vocabulary, entries = header
    if table.shape != (entries, 3):
        raise DataError(f"{name} holds another number of entries than its third line says")
    document = table[:, 0] - 1
    if entries and not (document.min() >= 0 and document.max() < count):
        raise DataError(f"{name} has an entry of a document beyond those of its first line")
    order = np.argsort(document, kind="stable")
    starts = np.searchsorted(document[order], np.arange(count + 1))
    return BagOfWords(starts, table[order, 1] - 1, table[order, 2]), vocabulary


def _check_option(name: str, value: int, least: int, most: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ConfigError(f"{name} is {value!r}, expected a whole number of at least {least}")
    if value < least:
        raise ConfigError(f"{name} is {value}, expected at least {least}")
    if most is not None and value > most:
        raise ConfigError(f"{name} is {value}, expected at most {most}")


def _entries(corpus: Any, vocabulary: int) -> BagOfWords:
    """Returns the checked corpus in compressed rows, with integer words and float64 counts."""
    if hasattr(corpus, "tocsr"):
        if len(corpus.shape) != 2:
            raise DataError(
                f"the matrix has {len(corpus.shape)} axes, expected documents and words"
            )
        if corpus.shape[1] != vocabulary:
            raise DataError(
                f"the matrix has {corpus.shape[1]} columns, expected the vocabulary's {vocabulary}"
            )
        rows = corpus.tocsr()
        corpus = BagOfWords(rows.indptr, rows.indices, rows.data)
    elif not isinstance(corpus, Sequence) or len(corpus) != 3:
        raise DataError(
            f"the corpus is a {type(corpus).__name__}, expected a sparse matrix or three arrays",
            "its rows' starts, words and counts: see fedvi.data.documents.BagOfWords",
        )
    starts, words, counts = map(np.asarray, corpus)
    if words.shape != counts.shape or words.ndim != 1 or starts.ndim != 1 or starts.size < 1:
        raise DataError("starts, words and counts do not fit: expected one count for each word")
    whole = [column.dtype.kind in "iu" or column.size == 0 for column in (starts, words)]
    if not all(whole):
        raise DataError("starts and words are to be whole numbers, in arrays of integers")
    if counts.dtype.kind not in "biuf" and counts.size:
        raise DataError(
            f"counts hold {counts.dtype}, expected numbers",
            "give how often words occur: 0, 1, 2, …",
        )
    starts, words = starts.astype(np.int64), words.astype(np.int64)
    if starts[0] != 0 or starts[-1] != words.size or (np.diff(starts) < 0).any():
        raise DataError("starts is to rise from 0 to the number of entries")
    return BagOfWords(starts, words, counts.astype(np.float64))


def _refuse_odd(known: NDArray[np.bool_], whole: NDArray[np.bool_], vocabulary: int) -> None:
    if not known.all():
        raise DataError(
            f"a document has a word outside 0 to {vocabulary - 1}, the vocabulary's numbers",
            "give the vocabulary that words were numbered by",
        )
    if not whole.all():
        raise _odd_counts()


def _odd_counts() -> DataError:
    return DataError(
        f"a count is negative, fractional or no number, or above {_MOST_TIMES}, expected 0, 1, 2, …",
        "give how often words occur, not weights such as tf-idf",
    )
