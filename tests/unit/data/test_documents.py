"""Bags of words: what becomes of odd documents, and that it depends on each alone."""

import gzip

import jaxtyping
import numpy as np
import pytest
import scipy.sparse

from fedvi.data import bag_of_words, read_bag_of_words
from fedvi.errors import ConfigError, DataError

V = 12


def rows(*documents):
    """Compressed rows of documents that are lists of (word, count)."""
    sizes = [len(document) for document in documents]
    entries = [entry for document in documents for entry in document]
    words, counts = zip(*entries, strict=True) if entries else ((), ())
    return np.concatenate([[0], np.cumsum(sizes)]), np.array(words, int), np.array(counts, float)


def told(source):
    """What a source holds of each document: word → count; None where it is not valid."""
    arrays = source.records["words"], source.records["counts"], source.valid
    return [
        {int(w): float(c) for w, c in zip(word, count, strict=True) if c} if valid else None
        for word, count, valid in zip(*arrays, strict=True)
    ]


def test_words_rise_and_counts_of_one_word_are_added():
    source = bag_of_words(rows([(7, 1), (2, 3), (7, 2)], [], [(0, 5), (1, 0)]), V, 4)
    words, counts = source.records["words"], source.records["counts"]
    assert words.tolist() == [[2, 7, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert counts.tolist() == [[3, 3, 0, 0], [0, 0, 0, 0], [5, 0, 0, 0]]
    assert (words.dtype, counts.dtype) == (np.int32, np.float32)
    assert source.valid.all()


def test_a_sparse_matrix_is_what_its_rows_are():
    dense = np.random.default_rng(0).poisson(0.7, (20, V))
    for kind in (scipy.sparse.csr_matrix, scipy.sparse.coo_array, scipy.sparse.csc_matrix):
        found = told(bag_of_words(kind(dense), V, V))
        assert found == [{w: c for w, c in enumerate(row) if c} for row in dense.tolist()]
    with pytest.raises(DataError, match=r"the matrix has 12 columns, expected the vocabulary's 11"):
        bag_of_words(scipy.sparse.csr_matrix(dense), 11, V)


def test_the_last_word_of_the_largest_vocabulary_is_kept():
    source = bag_of_words(rows([(2**31 - 1, 1), (2**31, 1)]), 2**31, 2)
    assert source.records["words"].tolist() == [[2**31 - 1, 0]]


def test_a_longer_document_keeps_its_most_frequent_words():
    corpus = rows([(9, 2), (4, 1), (1, 1), (5, 7), (3, 1)], [(4, 1)])
    assert told(bag_of_words(corpus, V, 3)) == [{1: 1.0, 5: 7.0, 9: 2.0}, {4: 1.0}]
    assert bag_of_words(corpus, V, 3).records["words"][0].tolist() == [1, 5, 9]


def test_no_error_tells_of_a_document_where_records_are_private():
    odd = [
        [(V, 1), (3, 2)],
        [(-1, 4)],
        [(1, -1.0), (2, 1)],
        [(1, 0.5)],
        [(2, np.nan)],
        [(2, np.inf)],
        [(2, 1e39)],
        [(1, 1e308), (1, 1e308), (2, 1.0)],
        [(1, 2**24), (1, 1), (3, 1)],
    ]
    # Warnings are errors here.
    source = bag_of_words(rows(*odd, [(0, 1)]), V, 2)
    assert told(source) == [{3: 2.0}, {}, *[None] * 7, {0: 1.0}]
    assert np.isfinite(source.records["counts"]).all()


def test_counts_that_float32_holds_are_kept_to_the_last_one():
    most = 2**24
    (found,) = told(bag_of_words(rows([(1, most - 1), (1, 1), (2, most - 1)]), V, 2))
    assert found == {1: float(most), 2: float(most - 1)}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([(V, 1)], r"a word outside 0 to 11"),
        ([(-1, 1)], r"a word outside 0 to 11"),
        ([(1, -2)], r"a count is negative, fractional or no number"),
        ([(1, 0.25)], r"a count is negative, fractional or no number"),
        ([(1, np.nan)], r"a count is negative, fractional or no number"),
        ([(1, 2**24 + 2)], r"above 16777216"),
        ([(1, 2**24), (1, 1)], r"above 16777216"),
        ([(1, 1e308), (1, 1e308)], r"above 16777216"),
        ([(1, 1), (2, 1), (3, 1)], r"more than 2 distinct words"),
    ],
)
def test_odd_documents_are_refused_where_records_are_public(document, message):
    with pytest.raises(DataError, match=message):
        bag_of_words(rows([(0, 1)], document), V, 2, private=False)


def test_a_document_is_the_same_record_whatever_is_beside_it():
    generator = np.random.default_rng(0)
    documents = [
        [(int(w), int(generator.integers(1, 9))) for w in generator.permutation(V)[:n]]
        for n in generator.integers(0, V, 30)
    ]
    whole = told(bag_of_words(rows(*documents), V, 4))
    changed = told(bag_of_words(rows(*documents[:20], [(V, 1), (2, 0.5)]), V, 4))
    assert changed[:20] == whole[:20]


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        ("words", r"the corpus is a str, expected a sparse matrix or three arrays"),
        (([0, 1], [1], [1.0, 2.0]), r"do not fit: expected one count for each word"),
        (([0, 2], [1], [1.0]), r"starts is to rise from 0 to the number of entries"),
        (([0, 1, 0, 1], [1], [1.0]), r"starts is to rise"),
        (([0, 1], [1.5], [1.0]), r"starts and words are to be whole numbers"),
        (([0, 1], [1], ["1"]), r"counts hold <U1, expected numbers"),
        (([0, 1], [1], [1.0 + 0.0j]), r"counts hold complex128"),
        (scipy.sparse.coo_array(np.ones(V)), r"the matrix has 1 axes"),
    ],
)
def test_what_is_no_corpus_is_refused(corpus, message):
    with pytest.raises(DataError, match=message):
        bag_of_words(corpus, V, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary": 1}, r"vocabulary is 1, expected at least 2"),
        ({"distinct": 0}, r"distinct is 0, expected at least 1"),
        ({"vocabulary": 5.5}, r"vocabulary is 5\.5, expected a whole number of at least 2"),
        ({"vocabulary": None}, r"vocabulary is None, expected a whole number"),
        ({"vocabulary": 2**31 + 1}, r"vocabulary is 2147483649, expected at most 2147483648"),
        ({"distinct": 2.0}, r"distinct is 2\.0, expected a whole number"),
    ],
)
def test_options_out_of_range_are_refused(monkeypatch, options, message):
    # As at a user's, who has no checks of types at run time.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ConfigError, match=message):
        bag_of_words(rows([(0, 1)]), **{"vocabulary": V, "distinct": 3, **options})


def test_the_format_of_the_uci_repository_is_read(tmp_path):
    text = "3\n12\n4\n3 12 2\n1 1 5\n1 4 1\n3 2 1\n"
    plain, packed = tmp_path / "docword.txt", tmp_path / "docword.txt.gz"
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    for path in (plain, packed):
        corpus, vocabulary = read_bag_of_words(path)
        assert vocabulary == 12
        assert told(bag_of_words(corpus, vocabulary, 3)) == [
            {0: 5.0, 3: 1.0},
            {},
            {1: 1.0, 11: 2.0},
        ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"cannot be read as a bag of words: StopIteration"),
        ("1\n2\nthree\n", r"cannot be read as a bag of words: ValueError"),
        ("1\n2\n2\n1 1 1\n", r"another number of entries"),
        ("1\n2\n1\n2 1 1\n", r"a document beyond those"),
    ],
)
def test_other_files_are_refused(tmp_path, text, message):
    path = tmp_path / "docword.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_bag_of_words(path)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"FileNotFoundError"):
        read_bag_of_words(tmp_path / "none.txt")


def test_a_corpus_without_entries_is_read(tmp_path):
    path = tmp_path / "docword.txt"
    path.write_text("2\n5\n0\n")
    corpus, vocabulary = read_bag_of_words(path)
    assert told(bag_of_words(corpus, vocabulary, 3)) == [{}, {}]
