"""An epoch of online latent Dirichlet allocation: run_topics.py RIVAL FILE TOPICS EPOCH_BATCHES.

RIVAL is one of: scikit-learn, scikit-learn32 (float32), gensim, fedvi (whose steps are extrapolated),
fedvi-private, and of 20 steps scikit-learn-20 (float32), fedvi-20 and fedvi-20-private. FILE is an .npz
with a corpus in compressed rows. Each epoch begins anew, at random topics; the concentrations of the
last one are left beside FILE. All have prior concentrations 1/K, rates (1 + t)^-0.7, and documents that
take up to 100 steps, or 20, until the mean change of their concentrations is below 1e-3. Each uses the
cores that its process is held to, in its own way: fedvi by threads, the others by further processes.
"""

import functools
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import turns

STEPS, FEW, TOLERANCE, DECAY = 100, 20, 1e-3, 0.7
WIDTH = 1135  # distinct words of the longest document


def cores() -> int:
    """Returns how many this process is held to."""
    return len(os.sched_getaffinity(0))


def scikit_learn(
    corpus: Any, topics: int, batches: int, dtype: Any, steps: int = STEPS
) -> Callable[[], np.ndarray]:
    """Returns an epoch of `LatentDirichletAllocation.partial_fit`, which computes no bound."""
    import scipy.sparse
    from sklearn.decomposition import LatentDirichletAllocation

    starts, words, counts, vocabulary = corpus
    shape = (len(starts) - 1, vocabulary)
    matrix = scipy.sparse.csr_matrix((counts.astype(dtype), words, starts), shape)

    def epoch() -> np.ndarray:
        model = LatentDirichletAllocation(
            topics,
            learning_method="online",
            learning_decay=DECAY,
            learning_offset=1.0,
            batch_size=-(-shape[0] // batches),
            total_samples=shape[0],
            max_doc_update_iter=steps,
            mean_change_tol=TOLERANCE,
            random_state=0,
            n_jobs=cores(),
        )
        return model.partial_fit(matrix).components_

    return epoch


def gensim(corpus: Any, topics: int, batches: int) -> Callable[[], np.ndarray]:
    """Returns an epoch of `LdaModel`, or `LdaMulticore` on several cores; neither evaluates its bound."""
    from gensim.models import LdaModel, LdaMulticore

    starts, words, counts, vocabulary = corpus
    documents = [
        list(zip(words[begin:end].tolist(), counts[begin:end].tolist(), strict=True))
        for begin, end in itertools.pairwise(starts)
    ]
    names = {word: str(word) for word in range(vocabulary)}
    alone = cores() == 1
    kind = LdaModel if alone else functools.partial(LdaMulticore, workers=cores())

    def epoch() -> np.ndarray:
        model = kind(
            documents,
            num_topics=topics,
            id2word=names,
            chunksize=-(-len(documents) // batches),
            passes=1,
            alpha="symmetric",
            eta=1.0 / topics,
            decay=DECAY,
            offset=1.0,
            eval_every=None,
            iterations=STEPS,
            gamma_threshold=TOLERANCE,
            random_state=0,
        )
        return model.state.get_lambda()

    return epoch


def fedvi(
    corpus: Any, topics: int, batches: int, private: bool, steps: int = STEPS
) -> Callable[[], np.ndarray]:
    """Returns an epoch of `VIPS` on Poisson batches; with the noise of a private fit, or without."""
    from fedvi.data import bag_of_words
    from fedvi.inference.vips import VIPS
    from fedvi.models.lda import LatentDirichlet
    from fedvi.privacy import sgd

    starts, words, counts, vocabulary = corpus
    records = bag_of_words((starts, words, counts), vocabulary, WIDTH).records
    model = LatentDirichlet(
        topics,
        vocabulary,
        length=80.0,
        iterations=steps,
        tolerance=TOLERANCE,
        accelerated=steps == STEPS,
    )
    plan = sgd(
        steps=batches,
        max_records=len(starts) - 1,
        rate=1.0 / batches,
        relation="add_remove",
        runs=20,
        clip_norm=0.5 if private else np.inf,
        delta=1e-5,
        noise_multiplier=1.0 if private else 0,
    )
    holder = VIPS(model, plan, averaging=DECAY)
    return lambda: np.asarray(holder.run(dict(records), progress_bar=False).posterior.power) + 1.0


def main(rival: str, file: str, topics: int, batches: int) -> None:
    """Serves epochs of one candidate."""
    with np.load(file) as stored:
        corpus = (stored["indptr"], stored["indices"], stored["counts"], int(stored["vocabulary"]))
    make = {
        "scikit-learn": lambda: scikit_learn(corpus, topics, batches, np.float64),
        "scikit-learn32": lambda: scikit_learn(corpus, topics, batches, np.float32),
        "gensim": lambda: gensim(corpus, topics, batches),
        "fedvi": lambda: fedvi(corpus, topics, batches, private=False),
        "fedvi-private": lambda: fedvi(corpus, topics, batches, private=True),
        "scikit-learn-20": lambda: scikit_learn(corpus, topics, batches, np.float32, FEW),
        "fedvi-20": lambda: fedvi(corpus, topics, batches, private=False, steps=FEW),
        "fedvi-20-private": lambda: fedvi(corpus, topics, batches, private=True, steps=FEW),
    }
    epoch = make[rival]()

    def take(epochs: int) -> None:
        for _ in range(epochs):
            found = epoch()
        np.save(Path(file).with_name(f"{rival}-{topics}.npy"), found)

    turns.serve(take)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
