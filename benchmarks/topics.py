"""Latent Dirichlet allocation: speed beside rivals, what privacy takes, memory, and a large simulation.

    python benchmarks/topics.py --set-up             makes the environment of scikit-learn and gensim, once
    python benchmarks/topics.py --case speed         an epoch of 20 Newsgroups, K = 50 and 100, in turns
    python benchmarks/topics.py --case speed --cores 0 1                     the same, on two cores each
    python benchmarks/topics.py --case private       completion perplexity by epsilon, composition, recipe
    python benchmarks/topics.py --case memory        V = 50,000, K = 100, 4,096 documents a batch
    python benchmarks/topics.py --case newsgroups    private topics of real documents, and when they drown

Candidates of `speed` are processes that are held to the same cores, one unless said, and take turns.
"""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent / ".benchmarks"
NEWS = HERE.parent.parent / "shared" / "data" / "20newsgroups" / "bow_hoffman7702.npz"
VOCABULARY = 7_702
HELD_OUT = 1_000
BATCHES = 9
RIVALS = (
    "fedvi",
    "fedvi-private",
    "fedvi-20",
    "fedvi-20-private",
    "scikit-learn",
    "scikit-learn32",
    "scikit-learn-20",
    "gensim",
)
DELTA = 1e-5


def newsgroups() -> tuple[Any, Any]:
    """Returns the documents to learn from and those held out, in compressed rows."""
    with np.load(NEWS) as stored:
        starts, words, counts = stored["indptr"], stored["indices"], stored["counts"]
    order = np.random.default_rng(0).permutation(len(starts) - 1)

    def taken(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        entries = np.concatenate([np.arange(starts[row], starts[row + 1]) for row in rows])
        sizes = np.diff(starts)[rows]
        return np.concatenate([[0], np.cumsum(sizes)]), words[entries], counts[entries]

    return taken(np.sort(order[HELD_OUT:])), taken(np.sort(order[:HELD_OUT]))


def synthetic(documents: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns a made-up corpus: V = 600, 100 words a document, 12 topics; and 1,000 more."""
    generator = np.random.default_rng(seed)
    topics = generator.dirichlet(np.full(600, 0.05), 12)
    shares = generator.dirichlet(np.full(12, 0.1), documents + 1_000) @ topics
    drawn = np.stack([generator.multinomial(100, row / row.sum()) for row in shares])
    return drawn[:documents], drawn[documents:]


def rows_of(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns a dense corpus in compressed rows."""
    row, word = np.nonzero(counts)
    starts = np.searchsorted(row, np.arange(len(counts) + 1))
    return starts, word, counts[row, word]


def unigram(counts: np.ndarray, unseen: np.ndarray) -> float:
    """Returns the perplexity of word frequencies."""
    frequencies = (counts + 0.5) / (counts + 0.5).sum()
    return float(np.exp(-(unseen @ np.log(frequencies)) / unseen.sum()))


def frequencies_of(corpus: Any, vocabulary: int) -> np.ndarray:
    """Returns how often each word occurs."""
    return np.bincount(corpus[1], corpus[2], vocabulary)


def set_up(python: str) -> None:
    """Makes the environment of the rivals, unless it stands."""
    wanted, home = HERE / "rivals" / "topics.txt", CACHE / "topics"
    done = home / wanted.name
    if done.exists() and done.read_text() == wanted.read_text():
        return
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run([python, "-m", "venv", home], check=True)
    install = [home / "bin" / "python", "-m", "pip", "install", "--no-deps", "-r", wanted]
    subprocess.run(install, check=True)
    shutil.copy(wanted, done)


def started(rival: str, file: Path, topics: int, cores: set[int]) -> Any:
    """Starts a candidate's process on some cores."""
    is_ours = rival.startswith("fedvi")
    python = sys.executable if is_ours else CACHE / "topics" / "bin" / "python"
    runner = HERE / "rivals" / "run_topics.py"
    one = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with (CACHE / f"log-topics-{rival}-{topics}").open("w") as complaints:
        return subprocess.Popen(
            [python, runner, rival, file, str(topics), str(BATCHES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            env={**os.environ, **one, "JAX_PLATFORMS": "cpu"},
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )


def speed(rounds: int, sizes: list[int], cores: set[int]) -> None:
    """Prints seconds of an epoch by the clock, on one core of the processor too, and ratios to fedvi's."""
    from fedvi.data import bag_of_words
    from fedvi.expfam.dirichlet import DirichletEta
    from fedvi.models.lda import LatentDirichlet, completion_perplexity

    alone = len(cores) == 1
    learnt, held_out = newsgroups()
    file = CACHE / "newsgroups.npz"
    np.savez(file, indptr=learnt[0], indices=learnt[1], counts=learnt[2], vocabulary=VOCABULARY)
    unseen = bag_of_words(held_out, VOCABULARY, 1135).records
    plain = unigram(frequencies_of(learnt, VOCABULARY), frequencies_of(held_out, VOCABULARY))
    for topics in sizes:
        print(
            f"\n{len(learnt[0]) - 1:,} documents, K = {topics}, {BATCHES} batches; cores {sorted(cores)}"
        )
        print(
            f"  load {os.getloadavg()[0]:.1f}; unigram perplexity {plain:.0f}; medians of {rounds}"
        )
        seconds: dict[str, list[list[float]]] = {rival: [] for rival in RIVALS}
        processes = {rival: started(rival, file, topics, cores) for rival in RIVALS}
        for turn in range(rounds + 1):  # the first is the warm-up
            for rival, process in processes.items():
                process.stdin.write("1\n")
                process.stdin.flush()
                answer = process.stdout.readline().split()
                if not answer:
                    raise RuntimeError(f"{rival} stopped: see its log in {CACHE.name}")
                if turn:
                    seconds[rival].append([float(number) for number in answer])
        for process in processes.values():
            process.stdin.close()
            process.wait()
        middle = {
            rival: [statistics.median(kind) for kind in zip(*values, strict=True)]
            for rival, values in seconds.items()
        }
        # What rivals do on several cores they do in processes of their own, which are not counted.
        heads = ("CPU, s", "CPU / fedvi") if alone else ("", "")
        print(
            f"  {'':16} {'clock, s':>9} {heads[0]:>8} {'clock / fedvi':>14} {heads[1]:>12}  perplexity"
        )
        for rival, (clock, processor) in middle.items():
            left = np.load(CACHE / f"{rival}-{topics}.npy").astype(np.float64)
            model = LatentDirichlet(topics, VOCABULARY, iterations=100, accelerated=True)
            found = completion_perplexity(model, DirichletEta(left - 1.0), unseen, seed=0)
            ratio, of_processor = (
                of / own for of, own in zip(middle[rival], middle["fedvi"], strict=True)
            )
            busy = f"{processor:8.2f}" if alone else f"{'':8}"
            compared = f"{of_processor:12.2f}" if alone else f"{'':12}"
            print(
                f"  {rival:16} {clock:9.2f} {busy} {ratio:14.2f} {compared}  {found:10.0f}",
                flush=True,
            )


def fitted(model: Any, records: Any, **plan: Any) -> tuple[Any, float]:
    """Returns q, and the noise multiplier that it was made with."""
    from fedvi.inference.vips import VIPS
    from fedvi.privacy import sgd

    options = {name: plan.pop(name) for name in ("averaging", "delay") if name in plan}
    count = len(records["words"])
    chosen = sgd(
        max_records=count, relation="add_remove", insecure_seed=plan.pop("seed", 0), **plan
    )
    result = VIPS(model, chosen, **options).run(dict(records), progress_bar=False)
    return result.posterior, chosen.mechanism.noise_multiplier


def by_moments(epsilon: float, rounds: int, rate: float) -> float:
    """Returns the noise multiplier that the moments accountant of the paper asks for, by bisection."""
    from fedvi.privacy.events import Gaussian, PoissonSampled, repeat
    from fedvi.privacy.historical import moments

    accountant = moments("add_remove")
    low, high = 0.3, 100.0
    while high / low > 1.0005:
        middle = (low * high) ** 0.5
        event = repeat(PoissonSampled(rate, Gaussian(middle)), rounds)
        low, high = (low, middle) if accountant.epsilon(event, DELTA) <= epsilon else (middle, high)
    return high


def private(documents: int, seeds: int) -> None:
    """Prints completion perplexity by composition, and by recipe, of the synthetic corpus."""
    from fedvi.data import bag_of_words
    from fedvi.models.lda import LatentDirichlet, completion_perplexity

    counts, unseen = synthetic(documents)
    records = bag_of_words(rows_of(counts), 600, 100).records
    others = bag_of_words(rows_of(unseen), 600, 100).records
    shared = {"steps": 10, "rate": 0.1}

    def measured(tidy: str, **plan: Any) -> tuple[str, float]:
        model = LatentDirichlet(12, 600, length=100.0, iterations=50, tidy=tidy)
        found, noise = [], 0.0
        for seed in range(seeds):
            q, noise = fitted(model, records, seed=seed, **shared, **plan)
            found.append(completion_perplexity(model, q, others, seed=0))
        spread = statistics.stdev(found) if seeds > 1 else 0.0
        return f"{statistics.fmean(found):6.1f} ± {spread:.1f}", noise

    plain = unigram(counts.sum(0), unseen.sum(0))
    print(f"{documents:,} documents, 10 rounds of a tenth; unigram {plain:.0f}, delta {DELTA:g}")
    base, _ = measured("simplex", noise_multiplier=0, clip_norm=np.inf, averaging=0.6)
    print(f"  not private {base}")
    print("\n  by composition: clip norm 0.5, averaging 0.6, simplex")
    for epsilon in (0.5, 1.0, 2.0, 4.0):
        for name in ("linear", "advanced", "zcdp", "moments", "rdp", "pld"):
            if name == "moments":
                noise = by_moments(epsilon, shared["steps"], shared["rate"])
                chosen: dict[str, Any] = {"noise_multiplier": noise, "delta": DELTA}
            else:
                chosen = {"epsilon": epsilon, "delta": DELTA, "accountant": name}
            found, noise = measured("simplex", clip_norm=0.5, averaging=0.6, **chosen)
            print(f"    epsilon {epsilon:g}, {name:9} sigma {noise:7.3f}  {found}", flush=True)
    print(
        "\n  by recipe, at the same sigma (PLD); 10 is no clipping, 1 the paper's, a tenth of that"
    )
    for epsilon in (1.0, 4.0):
        for label, clip_norm, averaging, tidy in (
            ("no clipping, last answer", 10.0, 0.0, "relu"),
            ("the paper's clip, last answer", 1.0, 0.0, "relu"),
            ("the paper's clip, averaged", 1.0, 0.6, "relu"),
            ("clipped to half, averaged", 0.5, 0.6, "relu"),
            ("clipped to half, averaged, simplex", 0.5, 0.6, "simplex"),
        ):
            plan = {"epsilon": epsilon, "delta": DELTA, "clip_norm": clip_norm}
            found, _ = measured(tidy, averaging=averaging, **plan)
            print(f"    epsilon {epsilon:g}, {label:36} {found}", flush=True)


def private_newsgroups() -> None:
    """Prints completion perplexity and signal-to-noise ratios of 20 Newsgroups."""
    from fedvi.data import bag_of_words
    from fedvi.models.lda import LatentDirichlet, completion_perplexity
    from fedvi.models.topic_signal import signal_to_noise

    learnt, held_out = newsgroups()
    records = bag_of_words(learnt, VOCABULARY, 256).records
    unseen = bag_of_words(held_out, VOCABULARY, 1135).records
    plain = unigram(frequencies_of(learnt, VOCABULARY), frequencies_of(held_out, VOCABULARY))
    model = LatentDirichlet(20, VOCABULARY, length=80.0, iterations=50)
    print(f"{len(learnt[0]) - 1:,} documents, K = 20, 10 rounds of a tenth; unigram {plain:.0f}")
    for epsilon in (None, 1.0, 4.0):
        budget = (
            {"noise_multiplier": 0} if epsilon is None else {"epsilon": epsilon, "delta": DELTA}
        )
        clip_norm = np.inf if epsilon is None else 0.5
        q, noise = fitted(
            model, records, steps=10, rate=0.1, clip_norm=clip_norm, averaging=0.6, **budget
        )
        told = signal_to_noise(model, len(learnt[0]) - 1, 0.1, 10, noise, min(clip_norm, 1.0), 0.6)
        found = completion_perplexity(model, q, unseen, seed=0)
        print(
            f"  epsilon {epsilon or 'none'}: perplexity {found:.0f}, signal/noise {told.ratio:.2f}",
            flush=True,
        )


def memory() -> None:
    """Prints the most memory that private rounds take: V = 50,000, K = 100, 4,096 documents a batch."""
    from fedvi.models.lda import LatentDirichlet

    generator = np.random.default_rng(0)
    documents, width = 8_192, 256
    steps = generator.integers(1, 50_000 // width, (documents, width))
    counts = generator.integers(1, 4, (documents, width)).astype(np.float32)
    counts[np.arange(width) >= generator.integers(20, width + 1, documents)[:, None]] = 0.0
    records = {"words": (np.cumsum(steps, axis=1) - 1).astype(np.int32), "counts": counts}
    model = LatentDirichlet(100, 50_000, length=250.0, iterations=20)
    began = time.perf_counter()
    fitted(
        model,
        records,
        steps=3,
        rate=0.5,
        noise_multiplier=1.0,
        delta=DELTA,
        clip_norm=0.5,
        averaging=0.6,
    )
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    seconds = time.perf_counter() - began
    print(
        f"most memory {most:.2f} GiB; 3 rounds of {documents // 2:,} documents in {seconds:.0f} s"
    )


def main() -> None:
    """Runs what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set-up", action="store_true", help="make the rivals' environment")
    parser.add_argument("--python", default="python3.11", help="makes it")
    cases = ("speed", "private", "memory", "newsgroups")
    parser.add_argument("--case", choices=cases, default="private")
    parser.add_argument("--rounds", type=int, default=3, help="turns of `speed`")
    parser.add_argument("--topics", type=int, nargs="+", default=[50, 100], help="K of `speed`")
    parser.add_argument(
        "--cores", type=int, nargs="+", default=[0], help="that candidates of `speed` are held to"
    )
    parser.add_argument("--documents", type=int, default=12_000, help="of `private` (12,000)")
    parser.add_argument("--seeds", type=int, default=3, help="of the noise, of `private`")
    chosen = parser.parse_args()
    CACHE.mkdir(exist_ok=True)
    if chosen.set_up:
        set_up(chosen.python)
    elif chosen.case == "speed":
        speed(chosen.rounds, chosen.topics, set(chosen.cores))
    elif chosen.case == "private":
        private(chosen.documents, chosen.seeds)
    elif chosen.case == "newsgroups":
        private_newsgroups()
    else:
        memory()


if __name__ == "__main__":
    main()
