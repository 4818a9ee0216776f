"""Says what a run of the topic study found: each topic's words, predictions, and how much of it is noise.

    python examples/topics/show.py --run run

Perplexity is that of half the words of each test document, given the other half: lower is better. It
stands beside that of word frequencies alone, which know of no topics.
"""

import argparse
from pathlib import Path

import numpy as np

from fedvi.models.lda import completion_perplexity
from fedvi.planning.topics import topic_outlook
from fedvi.results import posterior
from fedvi.study import build
from fedvi.study.config import load_study

HERE = Path(__file__).resolve().parent


def frequencies(folder, size):
    """Returns how often each word stands in all clients' documents: not private, for comparison."""
    total = np.full(size, 0.5)
    for path in sorted((folder / "clients").glob("*.npz")):
        with np.load(path) as file:
            np.add.at(total, file["words"].ravel(), file["counts"].ravel())
    return total / total.sum()


def telling_words(q, words, count):
    """Returns each topic's words by their part of its divergence from all topics together.

    Not the most frequent ones: those of "article" and "writes" head every topic of newsgroups.
    """
    shares = (q.power + 1.0) / (q.power + 1.0).sum(axis=1, keepdims=True)
    part = shares * np.log(shares / shares.mean(axis=0))
    return [[words[word] for word in row] for row in np.argsort(-part, axis=1)[:, :count]]


def main():
    """Reads and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--run", type=Path, required=True, help="the folder of `fedvi simulate --out`")
    add("--data", type=Path, default=HERE, help="what prepare.py wrote (default: beside this)")
    add("--words", type=int, default=8, help="of each topic (default %(default)d)")
    args = parser.parse_args()

    assembly = build.assemble(load_study(args.run / "study.json"))
    model = assembly.model
    found = posterior.read(args.run / "posterior.npz", assembly.family, model.names).eta
    words = (args.data / "vocabulary.txt").read_text("utf-8").splitlines()
    for number, topic in enumerate(telling_words(found, words, args.words)):
        print(f"topic {number}: {' '.join(topic)}")

    with np.load(args.data / "test.npz") as file:
        unseen = {name: file[name] for name in ("words", "counts")}
    perplexity = completion_perplexity(model, found, unseen, seed=0)
    shares = frequencies(args.data, model.vocabulary)
    logs = (unseen["counts"] * np.log(shares[unseen["words"]])).sum() / unseen["counts"].sum()
    print(f"\nperplexity {perplexity:.0f}; of word frequencies alone {np.exp(-logs):.0f}")

    told = topic_outlook(assembly)
    if told is not None:
        print(f"signal to noise of a mean cell, were every client full: {told.ratio:.1f}")
        for warning in told.warnings:
            print(warning)


if __name__ == "__main__":
    main()
