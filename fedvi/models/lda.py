"""Latent Dirichlet allocation as a conjugate model."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedvi import errors
from fedvi.expfam.dirichlet import Dirichlet, DirichletEta, dirichlets
from fedvi.models.arguments import check_positive, check_whole
from fedvi.models.capabilities import Arrays, Latents, Measure, Parameter
from fedvi.models.document_steps import (
    extrapolated,
    inner_products,
    known_words,
    lengths_of,
    outer_products,
    relative_weights,
    sound_documents,
    topic_weights,
)
from fedvi.models.forwards import numbered, shares
from fedvi.models.length_classes import over_chunks
from fedvi.models.nonnegative import TIDY
from fedvi.models.topic_signal import signal_to_noise
from fedvi.updates.conjugate import Block

__all__ = [
    "LatentDirichlet",
    "completion_perplexity",
    "document_topics",
    "top_words",
]

# How many words' probabilities are computed at a time.
_PREDICTED_TOGETHER = 1 << 16
# float32 holds all whole numbers up to this one; a public bound.
_MOST_TIMES = 1 << 24
# Of concentrations: added to a count of words, a smaller one is lost in 32 bits.
_LEAST = 1e-6


@dataclasses.dataclass(frozen=True)
class LatentDirichlet:
    """Documents as mixtures of K topics, each a distribution over V words: q(β) is K Dirichlets.

    A record is a document: its distinct words in increasing order and the count of each,
    ``{"words": int32 [N, L], "counts": float32 [N, L]}``, padded with counts of 0; see
    ``fedvi.data.bag_of_words``. It adds φ_kv·n_v to the concentration of word v in topic k, with
    φ_kv ∝ exp E[log θ_k] · exp E[log β_kv]. A bounded number of coordinate steps, which always start at
    γ = 1, finds it, so no state of a document is kept. Empty documents add nothing; neither do documents
    with words that do not increase or are outside 0 … V − 1, or with negative or non-finite counts.

    Private fits: docs/guides/topics.md.

    Attributes:
      topics: K, at most V; with more topics, some would be mixtures of others.
      vocabulary: V, a public number, at least 2.
      length: how many words a typical document has; a public number.
      concentration: α of a document's Dirichlet over topics; left out, 1/K.
      topic_concentration: η of a topic's Dirichlet over words; left out, 1/K.
      iterations: the most coordinate steps for each document. Few steps learn better topics: on 20
        Newsgroups (K = 50) an epoch with 10 to 20 steps reaches a completion perplexity of 1,700, with 100
        steps 1,820, and with steps until convergence 1,900.
      tolerance: a document's steps end once the mean change of its γ is smaller; 0 takes all steps.
      accelerated: whether every second step is extrapolated, which converges in a third of the steps;
        false follows the published algorithm step by step.
      typical_norm: ‖s‖_F of a typical document; a public number. Left out: √length, the norm if all words
        differ and each belongs to one topic.
      tidy: how noisy concentrations are made valid: "simplex" takes the nearest non-negative ones with the
        sum ``mass``; "relu" sets negative ones to 0; "threshold" sets those below two standard
        deviations of the noise to 0. "relu" raises each empty cell by the noise, and so moves every topic
        towards the uniform one.
      mass: how many words there are in all documents (after clipping), if that is public; left out, the
        noisy sum.
      distinct: L, the most distinct words of a document, if a study names the model; at most V.
      seed: the seed of the random initial topics, which break the symmetry; at least 0.

    Raises:
      ModelError: a field is out of its range, or must be a whole number and is not.

    >>> model = LatentDirichlet(topics=2, vocabulary=5, length=100.0)
    >>> model.blocks[0].shape, model.blocks[0].typical
    ((5, 2), 10.0)

    Source: Blei, Ng and Jordan (2003); Hoffman, Blei and Bach (2010), algorithm 1; Park et al. (2020),
    JAIR 68, §4; docs/proofs/updates.md §9.
    """

    topics: int
    vocabulary: int
    length: float = 100.0
    concentration: float | None = None
    topic_concentration: float | None = None
    iterations: int = 20
    tolerance: float = 1e-3
    accelerated: bool = False
    typical_norm: float | None = None
    tidy: str = "simplex"
    mass: float | None = None
    distinct: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        whole = {"topics": 1, "vocabulary": 2, "iterations": 1, "seed": 0}
        if self.distinct is not None:
            whole["distinct"] = 1
        for name, least in whole.items():
            check_whole(name, getattr(self, name), least)
        if self.topics > self.vocabulary:
            raise errors.ModelError(
                f"topics is {self.topics}, expected at most the {self.vocabulary} words of vocabulary",
                "more topics than words are mixtures of each other: take fewer",
            )
        if self.distinct is not None and self.distinct > self.vocabulary:
            raise errors.ModelError(
                f"distinct is {self.distinct}, expected at most the {self.vocabulary} words of "
                "vocabulary",
                "no document has more distinct words than there are",
            )
        check_positive(
            self, "length", "concentration", "topic_concentration", "typical_norm", "mass"
        )
        for name in ("concentration", "topic_concentration"):
            found = getattr(self, name)
            if found is not None and not _LEAST <= found <= 1.0 / _LEAST:
                raise errors.ModelError(
                    f"{name} is {found:g}, expected a number from {_LEAST:g} to {1.0 / _LEAST:g}",
                    "outside of this range, 32-bit numbers lose what a document adds; left out, it is "
                    "1 / topics",
                )
        if not 0.0 <= self.tolerance < math.inf:
            raise errors.ModelError(f"tolerance is {self.tolerance}, expected at least 0")
        if self.tidy not in TIDY:
            known = ", ".join(map(repr, TIDY))
            raise errors.ModelError(f"tidy is {self.tidy!r}, expected one of {known}")
        if self.mass is not None and self.tidy != "simplex":
            raise errors.ModelError(f'mass is {self.mass}, which only tidy = "simplex" uses')

    @property
    def alpha(self) -> float:
        """The concentration of a document's topics."""
        return 1.0 / self.topics if self.concentration is None else self.concentration

    @property
    def eta(self) -> float:
        """The prior concentration of a topic's words."""
        found = self.topic_concentration
        return 1.0 / self.topics if found is None else found

    @property
    def names(self) -> tuple[str, ...]:
        """Each topic's words, by number."""
        return tuple(
            f"topic {topic}, word {word}"
            for topic in range(self.topics)
            for word in range(self.vocabulary)
        )

    @property
    def family(self) -> Dirichlet:
        """K Dirichlets over V words."""
        return dirichlets(self.topics, self.vocabulary)

    @property
    def prior(self) -> DirichletEta:
        """Dirichlet(η, …, η) for each topic."""
        return DirichletEta(np.full((self.topics, self.vocabulary), self.eta - 1.0))

    @property
    def start(self) -> DirichletEta:
        """Concentrations near 1, drawn from Gamma(100, 100), so that no two topics are alike."""
        shape = (self.topics, self.vocabulary)
        return DirichletEta(np.random.default_rng(self.seed).gamma(100.0, 0.01, shape) - 1.0)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Words of each topic, [V, K]."""
        typical = math.sqrt(self.length) if self.typical_norm is None else self.typical_norm
        return (Block("words", (self.vocabulary, self.topics), typical, 1.0, positive=True),)

    @property
    def norm_error(self) -> float:
        """(K + V + 16) u, u = 2⁻⁵³.

        Proof. ‖s‖² = Σ_l R_l² Σ_k e_k² b_lk² has terms that are not negative, so that the relative error
        of the computed sum is at most that of its worst term: at most K − 1 additions of the inner sum,
        L − 1 of the outer, where at most V terms are not 0 (words are distinct, else the document adds
        nothing) and zeros add without error, and five products. None underflows: each factor is 0
        or a float32 of at least 2⁻¹⁴⁹, so that a term is at least 2⁻⁸⁹⁴. Thus the error is below
        (1 + u)^(K + V + 3) − 1; a weight and the root add less than 8u, and the root halves the rest.
        """
        return (self.topics + self.vocabulary + 16) * 2.0**-53

    @property
    def layout(self) -> Mapping[str, tuple[int, ...]]:
        """Words and counts, [L] each, see ``fedvi.data.bag_of_words``; empty if ``distinct`` is None."""
        if self.distinct is None:
            return {}
        return {"words": (self.distinct,), "counts": (self.distinct,)}

    def sound(self, records: Arrays) -> np.ndarray:
        """Whether words are in the vocabulary, distinct and in order, and counts 0, 1, … 2²⁴: bool [N].

        Larger counts would be rounded by float32.
        """
        words, counts = np.asarray(records["words"]), np.asarray(records["counts"])
        width = max(counts.shape[1], 1)
        # Most places of most documents are empty: only the others are checked.
        at = np.flatnonzero(counts)
        word, count, row = (
            words.reshape(-1)[at],
            counts.reshape(-1)[at].astype(np.float64),
            at // width,
        )
        with np.errstate(invalid="ignore"):
            good = (count >= 0.0) & (count == np.floor(count)) & (count <= _MOST_TIMES)
            good &= self._knows(word)
        follows = np.zeros(at.size, bool)
        follows[1:] = (at[1:] == at[:-1] + 1) & (word[1:] > word[:-1])
        good &= follows | (at == row * width)
        found = np.ones(len(counts), bool)
        found[row[~good]] = False
        return found

    def layout_of(self, records: Arrays) -> Mapping[str, tuple[int, ...]]:
        """Returns ``layout``; if ``distinct`` is None, with the width of these records.

        Raises:
          DataError: words are not an array [N, L] with L at least 1.
        """
        if self.distinct is not None or "words" not in records:
            return dict.fromkeys(("words", "counts"), (self.distinct or self.vocabulary,))
        shape = records["words"].shape
        if len(shape) != 2 or not shape[1]:
            raise errors.DataError(
                f"records['words'] has shape {shape}, expected (documents, distinct words)",
                "make words and counts with fedvi.data.bag_of_words",
            )
        return {"words": shape[1:], "counts": shape[1:]}

    def _knows(self, words: np.ndarray) -> np.ndarray:
        inside = (words >= 0) & (words < self.vocabulary)
        return inside if words.dtype.kind in "biu" else inside & (words == np.floor(words))

    def made_up(self, count: int, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Documents of one word or more, up to ``distinct`` different ones, each up to 20 times."""
        width = self.distinct or self.vocabulary
        words = np.zeros((count, width), np.int64)
        counts = np.zeros(words.shape)
        for row in range(count):
            different = int(random.integers(1, width + 1))
            chosen = random.choice(self.vocabulary, size=different, replace=False)
            words[row, :different] = np.sort(chosen)
            counts[row, :different] = random.integers(1, 21, size=different)
        return {"words": words, "counts": counts}

    def messages(self, posterior: DirichletEta) -> dict[str, np.ndarray]:
        """Returns exp E[log β_kv] in units of each word's largest, so that no word underflows: [V, K]."""
        return {"weights": relative_weights(self.family.mean(posterior).power)}

    def lengths(self, records: Mapping[str, Any]) -> Any:
        """Returns how many places of each document hold words: int32 [B]."""
        return lengths_of(records["counts"])

    def expected(self, messages: Any, records: Mapping[str, Any]) -> dict[str, Any]:
        """Returns e_k ∝ exp E[log θ_k], [B, K], and R_l = n_l / Σ_k e_k b_lk, [B, L]."""
        known, words, counts = messages["weights"], *sound_documents(records, self.vocabulary)
        topics = topic_weights(self.settled(known, words, counts))
        return {"topics": topics, "rates": counts / inner_products(known[words], topics)}

    def settled(self, known: Any, words: Any, counts: Any) -> Any:
        """Returns γ of each document, [B, K], float32. JAX.

        Args:
          known: the "weights" of ``messages``, [V, K].
          words: [B, L].
          counts: [B, L], 0 where there is no word; NaN where the document does not count.
        """
        import jax
        import jax.numpy as jnp

        alpha, taken = jnp.float32(self.alpha), known[words]

        def stepped(before: Any) -> tuple[Any, Any]:
            weights = topic_weights(before)
            rate = counts / inner_products(taken, weights)
            after = alpha + weights * outer_products(taken, rate)
            return after, jnp.abs(after - before).mean(axis=1) >= self.tolerance

        def twice(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            done, zeroth, moving = state
            first, moved = stepped(zeroth)
            second, goes_on = stepped(first)
            has_second = moved & (done + 1 < self.iterations)
            found = second
            if self.accelerated:
                # Not after the last step: no further step could correct a bad extrapolation.
                ahead = goes_on & (done + 2 < self.iterations)
                further = extrapolated(zeroth, first, second, alpha)
                found = jnp.where(ahead[:, None], further, second)
            found = jnp.where(has_second[:, None], found, first)
            still = jnp.where(has_second, goes_on, moved)
            return done + 2, jnp.where(moving[:, None], found, zeroth), moving & still

        def unfinished(state: tuple[Any, Any, Any]) -> Any:
            done, _, moving = state
            return (done < self.iterations) & moving.any()

        count = counts.shape[0]
        first = jnp.ones((count, self.topics), jnp.float32)
        begun = (jnp.int32(0), first, jnp.ones(count, bool))
        return jax.lax.while_loop(unfinished, twice, begun)[1]

    def square_norms(self, messages: Any, local: Any, records: Mapping[str, Any]) -> dict[str, Any]:
        """Returns Σ_l R_l² Σ_k e_k² b_lk², [B]: the words of a document are distinct."""
        known, rates = messages["weights"], local["rates"]
        taken = known[known_words(records, rates)]
        inner = inner_products(taken * taken, local["topics"] ** 2)
        return {"words": (rates**2 * inner).sum(axis=1)}

    def sums(
        self, messages: Any, local: Any, records: Mapping[str, Any], weights: Any
    ) -> dict[str, Any]:
        """Returns b_vk · Σ_n w_n e_nk R_nv, [V, K]: each document adds to the rows of its words."""
        import jax.numpy as jnp

        begun = {"words": jnp.zeros_like(messages["weights"])}
        return self.totalled(messages, self.added(begun, messages, local, records, weights))

    def added(
        self,
        totals: Mapping[str, Any],
        messages: Any,
        local: Any,
        records: Mapping[str, Any],
        weights: Any,
    ) -> dict[str, Any]:
        """Returns the totals and Σ_n w_n e_nk R_nv, [V, K]."""
        rates, scaled = local["rates"], local["topics"] * weights[:, None]
        parts = rates[:, :, None] * scaled[:, None, :]
        return {"words": totals["words"].at[known_words(records, rates)].add(parts)}

    def totalled(self, messages: Any, totals: Mapping[str, Any]) -> dict[str, Any]:
        """Returns b_vk times the totals."""
        return {"words": messages["weights"] * totals["words"]}

    def factor(self, sums: Arrays, posterior: DirichletEta) -> DirichletEta:
        """Returns the sums [K, V], which are natural parameters."""
        return DirichletEta(np.ascontiguousarray(sums["words"].T))

    def posterior(self, total: DirichletEta, noise: Mapping[str, float]) -> DirichletEta:
        """Returns η + tidied total, which is proper because tidied totals are not negative."""
        spread = noise.get("words", 0.0)
        found = total.power
        if spread > 0.0 or (found < 0.0).any():
            found = TIDY[self.tidy](found, spread, self.mass)
        return DirichletEta(found + (self.eta - 1.0))

    def parameters(self, theta: np.ndarray) -> dict[str, Parameter]:
        """Returns "topics", each a distribution over words."""
        values = theta.reshape(-1, self.topics, self.vocabulary)
        axes = ("topic", numbered(self.topics, 1)), ("word", numbered(self.vocabulary))
        return {"topics": Parameter(values, axes)}

    def draw(self, at: Arrays, count: int, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Draws documents of the typical length, which is public: the model does not cover lengths."""
        length = max(1, round(self.length))
        mixed = random.dirichlet(np.full(self.topics, self.alpha), count)
        rows = [random.multinomial(length, shares(share @ at["topics"])) for share in mixed]
        width = self.distinct or max(1, *(int(np.count_nonzero(row)) for row in rows))
        words, counts = np.zeros((count, width), np.int32), np.zeros((count, width), np.float32)
        for place, row in enumerate(rows):
            (stand,) = np.nonzero(row)
            # As in ``fedvi.data.bag_of_words``: the most frequent words, ties by smaller numbers.
            kept = np.sort(stand[np.argsort(-row[stand], kind="stable")[:width]])
            words[place, : len(kept)], counts[place, : len(kept)] = kept, row[kept]
        return {"words": words, "counts": counts}

    def latents(self, posterior: DirichletEta) -> Latents:
        """Returns how to infer the mean shares of topics of each document."""
        return Latents(
            "mean shares of topics of each document",
            tuple(f"topic {k + 1}" for k in range(self.topics)),
            lambda records: document_topics(self, posterior, records),
        )

    def measure(self, posterior: DirichletEta, records: Arrays, draws: int, seed: int) -> Measure:
        """Returns the completion perplexity: that of half of each document's words given the others."""
        return Measure(
            "completion perplexity", completion_perplexity(self, posterior, records, seed), 0
        )

    def signal(
        self,
        records: int,
        rate: float,
        noise_multiplier: float,
        clip_norm: float,
        typical: float | None,
    ) -> float:
        """Returns ``topic_signal.signal_to_noise`` of one full sum; ``typical`` replaces typical_norm."""
        model = self if typical is None else dataclasses.replace(self, typical_norm=typical)
        return float(signal_to_noise(model, records, rate, 1, noise_multiplier, clip_norm).ratio)


def top_words(
    posterior: DirichletEta, words: Sequence[str], count: int = 10
) -> list[list[tuple[str, float]]]:
    """Returns each topic's words of largest mean probability, with that probability, in falling order.

    Args:
      posterior: q, [K, V].
      words: the vocabulary, V texts.
      count: how many words for each topic.

    Raises:
      ModelError: there are more or fewer words than V.
    """
    alpha = posterior.power + 1.0
    if len(words) != alpha.shape[1]:
        raise errors.ModelError(
            f"there are {len(words)} words, expected the vocabulary's {alpha.shape[1]}"
        )
    shares = alpha / alpha.sum(axis=1, keepdims=True)
    best = np.argsort(-shares, axis=1, kind="stable")[:, :count]
    return [
        [(words[word], float(row[word])) for word in chosen]
        for row, chosen in zip(shares, best.tolist(), strict=True)
    ]


def document_topics(
    model: LatentDirichlet, posterior: DirichletEta, documents: Mapping[str, Any]
) -> np.ndarray:
    """Returns the mean of q(θ_d), each document's shares of topics: [N, K], rows that sum to 1.

    Not private: a result depends on its document. Use it on public documents, or on your own.

    Args:
      model: the topic model.
      posterior: q of the topics.
      documents: records of the model, ``words`` and ``counts`` [N, L] with any L.

    Raises:
      DataError: ``words`` and ``counts`` are not two arrays of numbers of one shape [N, L].
      ModelError: a document is invalid: see ``LatentDirichlet``.
    """
    words, counts = _columns_of(documents)
    known = model.messages(posterior)["weights"]
    with np.errstate(invalid="ignore", over="ignore"):
        # Checked before the cast to int32 could wrap them.
        inside = np.where(model._knows(words), words, -1)
        taken = {"words": inside.astype(np.int32), "counts": counts.astype(np.float32)}
    gamma = np.asarray(_settled(model)(known, taken), np.float64)
    if not np.isfinite(gamma).all():
        raise _odd_document()
    return gamma / gamma.sum(axis=1, keepdims=True)


def completion_perplexity(
    model: LatentDirichlet, posterior: DirichletEta, documents: Mapping[str, Any], seed: int
) -> float:
    """Returns exp of minus the mean log probability of half of each document's words, given the others.

    It predicts unseen words from the topics' means alone. The other common perplexity, from the evidence
    bound over the words of a test set, falls with the size of the set.

    Args:
      model: the topic model.
      posterior: q of the topics.
      documents: held-out records, ``words`` and ``counts`` [N, L].
      seed: the seed of the split: each word goes to either half with probability ½; at least 0.

    Raises:
      DataError: ``words`` and ``counts`` are not two arrays of numbers of one shape [N, L].
      ModelError: a document is invalid, in either half; or no document has a word to predict.
    """
    words, counts = _columns_of(documents)
    if not model.sound({"words": words, "counts": counts}).all():
        raise _odd_document()
    whole = counts.astype(np.int64)
    # Padding may hold any number.
    words = np.where(whole > 0, words, 0).astype(np.int64)
    seen = np.random.default_rng(seed).binomial(whole, 0.5)
    hidden = whole - seen
    if not hidden.any():
        raise errors.ModelError("no document has a word to predict: give more documents")
    # Move unseen words to the end, where counts of 0 make them padding.
    order = np.argsort(seen == 0, axis=1, kind="stable")
    halves = {
        "words": np.take_along_axis(words, order, 1),
        "counts": np.take_along_axis(seen, order, 1).astype(np.float32),
    }
    shares = document_topics(model, posterior, halves)
    alpha = posterior.power + 1.0
    topics = np.ascontiguousarray((alpha / alpha.sum(axis=1, keepdims=True)).T)
    logs = 0.0
    rows, places = np.nonzero(hidden)
    for start in range(0, rows.size, _PREDICTED_TOGETHER):
        row, place = (each[start : start + _PREDICTED_TOGETHER] for each in (rows, places))
        chance = (shares[row] * topics[words[row, place]]).sum(axis=1)
        logs += float(hidden[row, place] @ np.log(chance))
    return math.exp(-logs / float(hidden.sum()))


def _columns_of(documents: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    for name in ("words", "counts"):
        if name not in documents:
            raise errors.DataError(
                f"documents hold no array {name!r}", errors.did_you_mean(name, documents)
            )
    words, counts = (np.asarray(documents[name]) for name in ("words", "counts"))
    numbers = all(column.dtype.kind in "biuf" for column in (words, counts))
    if words.ndim != 2 or words.shape != counts.shape or not words.shape[1] or not numbers:
        raise errors.DataError(
            f"words are {words.dtype} of shape {words.shape} and counts {counts.dtype} of shape "
            f"{counts.shape}, expected numbers of one shape (documents, distinct words)",
            "make them with fedvi.data.bag_of_words",
        )
    return words, counts


def _odd_document() -> errors.ModelError:
    # Does not name the document: test records may be confidential.
    return errors.ModelError(
        "a document's words do not increase, or are outside the vocabulary, or a count is not a whole "
        f"number from 0 to {_MOST_TIMES}",
        "make them with fedvi.data.bag_of_words",
    )


@functools.lru_cache(maxsize=16)
def _settled(model: LatentDirichlet) -> Callable[..., Any]:
    """Returns a compiled function for γ [N, K] of documents of any lengths."""
    import jax
    import jax.numpy as jnp

    @jax.jit
    def found(known: Any, records: Mapping[str, Any]) -> Any:
        def settled(rows: Any, size: int) -> Any:
            cut = {name: column[rows, :size] for name, column in records.items()}
            return model.settled(known, *sound_documents(cut, model.vocabulary))

        counts = records["counts"]
        empty = jnp.full((counts.shape[0], model.topics), model.alpha, jnp.float32)
        return over_chunks(settled, lengths_of(counts), counts.shape[1], empty)

    return found
