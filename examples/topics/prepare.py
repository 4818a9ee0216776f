"""Gives four families of newsgroups a file of word counts each, over a vocabulary that is public.

    python examples/topics/prepare.py --data FOLDER

FOLDER holds `bow_hoffman7702.npz`, the word counts of 20 Newsgroups, and `dictnostops.txt`, the words
themselves, one a line. Written are `clients/computers.npz` and its like, `test.npz` and `vocabulary.txt`.
"""

import argparse
from pathlib import Path

import numpy as np

from fedvi.data import bag_of_words

HERE = Path(__file__).resolve().parent
# Of a newsgroup's name, what comes before the first dot.
FAMILIES = {
    "computers": ("comp",),
    "leisure": ("rec", "misc"),
    "science": ("sci",),
    "society": ("alt", "soc", "talk"),
}
DISTINCT = 64  # different words of a document that are kept; as the study says


def chosen_words(words, documents, size):
    """Returns the words that most documents have, the most frequent first."""
    pairs = np.unique(np.stack([documents, words]), axis=1)
    frequency = np.bincount(pairs[1])
    return np.argsort(-frequency, kind="stable")[:size]


def main():
    """Reads, chooses words, shares out, writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--data", type=Path, default=HERE / "data", help="where the files are (default %(default)s)"
    )
    add("--out", type=Path, default=HERE, help="where to write (default: beside this script)")
    add("--words", type=int, default=500, help="of the vocabulary (default %(default)d)")
    add("--documents", type=int, help="at most, of each family")
    args = parser.parse_args()

    try:
        with np.load(args.data / "bow_hoffman7702.npz", allow_pickle=False) as stored:
            starts, word, count = (stored[name] for name in ("indptr", "indices", "counts"))
            group, is_test = stored["label_names"][stored["labels"]], stored["is_test"]
        known = (args.data / "dictnostops.txt").read_text(encoding="utf-8").split()
    except FileNotFoundError as error:
        raise SystemExit(f"no file at {error.filename}: see README.md for its origin") from None
    document = np.repeat(np.arange(len(starts) - 1), np.diff(starts))

    # The test half stands for texts that are public anyway: words chosen by looking at the documents
    # that shall be protected would be a release that nobody paid for.
    public = is_test[document]
    best = chosen_words(word[public], document[public], args.words)
    number = np.full(word.max() + 1, -1)
    number[best] = np.arange(len(best))
    in_vocabulary = number[word] >= 0
    word, count, document = (
        number[word][in_vocabulary],
        count[in_vocabulary],
        document[in_vocabulary],
    )

    def kept(rows):
        """Lays out the words of some documents."""
        mine = np.isin(document, rows)
        begin = np.searchsorted(document[mine], np.append(rows, rows[-1] + 1))
        source = bag_of_words((begin, word[mine], count[mine]), len(best), DISTINCT)
        return {"words": source.records["words"], "counts": source.records["counts"]}

    (args.out / "clients").mkdir(parents=True, exist_ok=True)
    for family, beginnings in FAMILIES.items():
        wanted = np.isin([name.split(".")[0] for name in group], beginnings) & ~is_test
        rows = np.flatnonzero(wanted)[: args.documents]
        found = kept(rows)
        np.savez_compressed(args.out / "clients" / f"{family}.npz", **found)
        print(
            f"{family:9} {len(rows):5,} documents, {found['counts'].sum() / len(rows):.0f} words each"
        )
    rows = np.flatnonzero(is_test)[: args.documents]
    np.savez_compressed(args.out / "test.npz", **kept(rows))
    (args.out / "vocabulary.txt").write_text("\n".join(known[i] for i in best) + "\n", "utf-8")
    print(f"{len(rows):,} documents for testing, {len(best):,} words")


if __name__ == "__main__":
    main()
