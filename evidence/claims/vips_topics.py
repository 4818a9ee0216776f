"""Topics of news by ε and batch size: completion perplexity, and the first words of topics."""

import functools
import gzip
import math
import re

from evidence.base import DATA, Claim, number, of, said
from evidence.figures import Chart, Line

SETTING = {
    "batches": [0.02, 0.1, 0.3],
    "epsilons": [0.5, 1.0, 4.0],
    "delta": 1e-4,
    "topics": 10,
    "vocabulary": 1_000,
    "length": 40,
    "distinct": 128,
    "clip_norm": 0.5,
    "averaging": 0.6,
    "held_out": 1_000,
    "documents": None,
}
CORPORA = ("20newsgroups", "reuters-21578")
AP = "ap-corpus"
WORDS = "onlineldavb-vocab/dictnostops.txt"
SHOWN, FIRST = 4, 7


@functools.cache
def corpus(vocabulary):
    """Documents in compressed rows over the words that are most frequent in AP's, and these words.

    AP's text is public and not learnt from: a vocabulary that is chosen by the records would be a release.
    """
    import numpy as np

    known = (DATA / WORDS).read_text().split()
    listed = (DATA / AP / "vocab.txt").read_text().split()
    lines = gzip.decompress((DATA / AP / "ap.dat.gz").read_bytes()).decode()
    times = np.zeros(len(listed))
    for word, count in re.findall(r"(\d+):(\d+)", lines):
        times[int(word)] += int(count)
    often = {word: times[index] for index, word in enumerate(listed)}
    rank = sorted(range(len(known)), key=lambda index: -often.get(known[index], 0.0))
    number_of = np.full(len(known), -1)
    number_of[np.sort(rank[:vocabulary])] = np.arange(vocabulary)
    rows, words, counts, total = [], [], [], 0
    for name in CORPORA:
        with np.load(DATA / name / "bow_hoffman7702.npz") as stored:
            row = np.repeat(np.arange(len(stored["indptr"]) - 1), np.diff(stored["indptr"]))
            word = number_of[stored["indices"]]
            rows.append(total + row[word >= 0])
            words.append(word[word >= 0])
            counts.append(stored["counts"][word >= 0])
            total += len(stored["indptr"]) - 1
    row, word, count = (np.concatenate(part) for part in (rows, words, counts))
    chosen = [known[index] for index in np.sort(rank[:vocabulary])]
    return np.searchsorted(row, np.arange(total + 1)), word, count, chosen


def split(setting, seed):
    """Records to learn from, records held out, and the perplexity of word frequencies."""
    import numpy as np
    from fedvi.data import bag_of_words

    starts, words, counts, _ = corpus(setting["vocabulary"])
    order = np.random.default_rng(seed).permutation(len(starts) - 1)
    held_out = setting["held_out"]
    last = None if setting["documents"] is None else held_out + setting["documents"]

    def taken(rows, distinct):
        entries = np.concatenate([np.arange(starts[row], starts[row + 1]) for row in rows])
        begins = np.concatenate([[0], np.cumsum(np.diff(starts)[rows])])
        given = begins, words[entries], counts[entries]
        seen = np.bincount(given[1], given[2], setting["vocabulary"])
        return bag_of_words(given, setting["vocabulary"], distinct).records, seen

    learnt, often = taken(order[held_out:last], setting["distinct"])
    unseen, later = taken(order[:held_out], 512)
    shares = (often + 0.5) / (often + 0.5).sum()
    return learnt, unseen, float(np.exp(-(later @ np.log(shares)) / later.sum()))


def run(setting, seed):
    import fedvi
    from fedvi.models.lda import LatentDirichlet, completion_perplexity, top_words
    from fedvi.models.topic_signal import signal_to_noise

    learnt, unseen, unigram = split(setting, seed)
    documents, names = len(learnt["words"]), corpus(setting["vocabulary"])[3]
    model = LatentDirichlet(
        setting["topics"], setting["vocabulary"], length=float(setting["length"])
    )
    for rate in setting["batches"]:
        for epsilon in [math.inf, *setting["epsilons"]]:
            is_private = math.isfinite(epsilon)
            clip_norm = setting["clip_norm"] if is_private else math.inf
            budget = (
                {"epsilon": epsilon, "delta": setting["delta"]}
                if is_private
                else {"noise_multiplier": 0}
            )
            rounds = round(1.0 / rate)
            plan = fedvi.privacy.sgd(
                steps=rounds, rate=rate, max_records=documents, relation="add_remove",
                clip_norm=clip_norm, insecure_seed=seed, **budget,
            )  # fmt: skip
            fit = fedvi.VIPS(model, plan, averaging=setting["averaging"])
            q = fit.run(dict(learnt), progress_bar=False).posterior
            noise = plan.mechanism.noise_multiplier
            told = signal_to_noise(
                model, documents, rate, rounds, noise, min(clip_norm, 1.0), setting["averaging"]
            )
            # Topics with most words first.
            order = sorted(range(model.topics), key=lambda k, q=q: -float(q.power[k].sum()))
            first = top_words(q, names, FIRST)
            yield {
                "rate": rate, "epsilon": epsilon, "noise": noise, "signal": told.ratio,
                "perplexity": completion_perplexity(model, q, unseen, seed=0), "unigram": unigram,
                "documents": documents,
                "words": "; ".join(" ".join(word for word, _ in first[k]) for k in order[:SHOWN])
                if seed == 0 else "",
            }  # fmt: skip


def numbers(rows, setting):
    def three(names, items):
        return zip(names, (items[0], items[len(items) // 2], items[-1]), strict=True)

    documents, found = rows[0]["documents"], {}
    found["count"] = f"{documents:,}"
    found["unigram"] = said(of(rows, "unigram", rate=setting["batches"][0], epsilon=None))
    for where, epsilon in three(("first", "second", "last"), setting["epsilons"]):
        found[where] = f"{epsilon:g}"
        for size, rate in three(("small", "middle", "large"), setting["batches"]):
            at = {"rate": rate, "epsilon": epsilon}
            found[f"{size}_batch"] = f"{round(rate * documents):,}"
            found[f"{size}_none"] = said(of(rows, "perplexity", rate=rate, epsilon=None))
            found[f"{size}_{where}"] = said(of(rows, "perplexity", **at))
            gains = [
                100.0 * (row["unigram"] - row["perplexity"]) / (row["unigram"] - none)
                for row, none in zip(
                    [row for row in rows if row["rate"] == rate and row["epsilon"] == epsilon],
                    of(rows, "perplexity", rate=rate, epsilon=None),
                    strict=True,
                )
            ]
            found[f"{size}_{where}_kept"] = said(gains, 2)
    for size, rate in three(("small", "middle", "large"), setting["batches"]):
        found[f"{size}_rounds"] = f"{round(1.0 / rate)}"
    return found


def table(rows):
    lines = []
    for rate in dict.fromkeys(row["rate"] for row in rows):
        for epsilon in dict.fromkeys(row["epsilon"] for row in rows):
            at = {"rate": rate, "epsilon": epsilon}
            given = [row for row in rows if row["rate"] == rate and row["epsilon"] == epsilon]
            told = ["not private", "–", "–"]
            if epsilon is not None:
                noise, signal = of(rows, "noise", **at)[0], of(rows, "signal", **at)[0]
                told = [f"{epsilon:g}", number(noise), number(signal, 2)]
            words = given[0]["words"].split("; ")
            lines.append(
                [
                    f"{round(rate * rows[0]['documents']):,}", *told,
                    said(of(rows, "perplexity", **at)), "<br>".join(words),
                ]
            )  # fmt: skip
    heads = [
        "documents a batch", "ε", "noise ÷ clip norm", "predicted signal ÷ noise", "perplexity",
        "first words of the largest topics, first seed",
    ]  # fmt: skip
    return heads, lines


def figure(rows):
    epsilons = [e for e in dict.fromkeys(row["epsilon"] for row in rows) if e is not None]
    lines = [
        Line(
            f"{round(rate * rows[0]['documents']):,} a batch",
            [(e, of(rows, "perplexity", rate=rate, epsilon=e)) for e in epsilons],
        )
        for rate in dict.fromkeys(row["rate"] for row in rows)
    ]
    for look, rate in enumerate(dict.fromkeys(row["rate"] for row in rows)):
        none = of(rows, "perplexity", rate=rate, epsilon=None)
        level = [(e, [sum(none) / len(none)]) for e in epsilons]
        name = f"{round(rate * rows[0]['documents']):,} a batch, not private"
        lines.append(Line(name, level, look=look, dash=1))
    unigram = of(rows, "unigram")
    return Chart(
        "add_remove a document; every round is seen; lower is better",
        "ε",
        "completion perplexity, held out", lines,
        log_x=True, at=sum(unigram) / len(unigram), at_name="word frequencies, not private", apart=5.0,
    )  # fmt: skip


CLAIM = Claim(
    paper="VIPS",
    title="Private topics can be read, and larger batches are better",
    source="Park et al. (2020), JAIR 68, §4 and table 1; the preprint (2016), arXiv:1611.00340, says that "
    "smaller batches are better, of rows that are not private",
    says="The journal version learns topics of 400,000 documents of Wikipedia in one epoch, "
    "priced by moments: perplexity falls with larger batches, and a table shows the first words "
    "of private topics beside those without privacy.",
    price="Add or remove one document, Poisson batches, one epoch whatever their size, δ = "
    "{delta}, PLD; view: every round is seen. This is a smaller setting than the paper's: {count} "
    "documents of news groups and of Reuters, {topics} topics, and {vocabulary} words. The words "
    "are those most frequent in AP's news, which are public and not among the records.",
    finds="Held-out completion perplexity (lower is better) is {unigram} with word frequencies "
    "alone. Topics from batches of {large_batch} have {large_none} without privacy, {large_last} "
    "at ε = {last}, {large_second} at {second} and {large_first} at {first}. In the same order "
    "those from batches of {middle_batch} have: {middle_none}, {middle_last}, {middle_second} and "
    "{middle_first}; from batches of {small_batch}: {small_none}, {small_last}, {small_second} "
    "and {small_first}.",
    verdict="corrected",
    why="Private topics can be read, and larger batches are better up to {middle_batch} "
    "documents. With {large_batch} an epoch has only {large_rounds} rounds, which costs more than "
    "the smaller noise gains. With batches of {middle_batch} private topics keep "
    "{middle_second_kept} % of what topics without privacy gain over word frequencies at ε = "
    "{second}, and {middle_last_kept} % at {last}.",
    alt="Line chart: held-out perplexity by ε for three batch sizes, each with its level without "
    "privacy; it falls with ε, and is highest for the smallest batches. Word frequencies alone "
    "are above all lines.",
    setting=SETTING,
    quick={"batches": [0.3], "epsilons": [4.0], "documents": 6_000},
    run=run,
    numbers=numbers,
    table=table,
    figure=figure,
    by="batches",
    files=(
        *(f"{name}/bow_hoffman7702.npz" for name in CORPORA), f"{AP}/ap.dat.gz", f"{AP}/vocab.txt",
        WORDS,
    ),
    chosen="clip norm and averaging on a made-up corpus and on 20 Newsgroups; one split was looked at "
    "to see that it ends",
)  # fmt: skip
