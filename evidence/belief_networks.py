"""Sigmoid belief networks on binarised MNIST: what privacy takes, by composition, batch and size.

    python -m evidence.belief_networks --small                 a minute: 6,000 images, K = 20
    python -m evidence.belief_networks --hidden 50 100 --batch 400 800 1600 3200 --pictures FOLDER
    python -m evidence.belief_networks --memory                K = 200, 4,096 images a batch: largest RSS

One epoch each by Poisson sampling. Compositions are compared at one (ε, δ) for adding or removing an
image, at the noise that each asks for: `pld` for least, and it is the one that is charged. The
measure is the papers' pixel-wise prediction: hidden units of images that were held out are inferred from
all of their pixels, and the pixels are read off again.
"""

import argparse
import gzip
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fedvi.inference.vips import VIPS
from fedvi.models.sbn import SigmoidBeliefNetwork
from fedvi.privacy import accountants, historical, sgd
from fedvi.privacy.calibrate import calibrate
from fedvi.privacy.events import Event, Gaussian, PoissonSampled, repeat

MNIST = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "mnist"
COMPOSITIONS = ("linear", "advanced", "zcdp", "moments", "rdp", "pld")
DELTA = 1e-5
AVERAGING = 0.7


def images(name: str) -> np.ndarray:
    """Returns MNIST's images [N, 784], lit or not: int8."""
    with gzip.open(MNIST / f"{name}-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16)
    return (pixels.reshape(-1, 784) > 0).astype(np.int8)


def noise_for(composition: str, rate: float, rounds: int, epsilon: float) -> float:
    """Returns the noise multiplier that a composition asks for."""

    def event(noise: float) -> Event:
        return repeat(PoissonSampled(rate, Gaussian(noise)), rounds)

    if composition != "moments":
        accountant = getattr(accountants, composition)("add_remove")
        return calibrate(event, accountant, epsilon, DELTA)
    method, low, high = historical.moments("add_remove"), 0.3, 100.0
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (
            (low, middle) if method.epsilon(event(middle), DELTA) <= epsilon else (middle, high)
        )
    return high


def fitted(
    model: SigmoidBeliefNetwork,
    train: np.ndarray,
    batch: int,
    epochs: float,
    noise: float,
    clip_norm: float,
    seed: int,
    on_round: Callable[[int, Any], None] | None = None,
) -> tuple[Any, float]:
    """Returns q after some epochs, and the seconds of it."""
    plan = sgd(
        steps=round(epochs * len(train) / batch),
        max_records=len(train),
        noise_multiplier=noise,
        delta=DELTA,
        clip_norm=clip_norm if noise else np.inf,
        batch=batch,
        relation="add_remove",
        accountant="rdp",  # what it cost is known already; this one is quick
        insecure_seed=seed,
    )
    fit = VIPS(model, plan, averaging=AVERAGING, delay=delay_of(model), rows_together=1024)
    start = time.perf_counter()
    result = fit.run({"y": train}, progress_bar=False, on_round=on_round)
    return result.posterior, time.perf_counter() - start


def delay_of(model: SigmoidBeliefNetwork) -> float:
    """Returns τ0 at which the first step is 4 / K, half of the hidden units being on at first."""
    return max(1.0, (model.hidden / 4.0 + 0.5) ** (1.0 / AVERAGING))


def accuracy(model: SigmoidBeliefNetwork, posterior: Any, test: np.ndarray) -> float:
    """Returns the share of held-out pixels that are read off right from inferred hidden units."""
    return float(np.mean((model.reconstructed(posterior, test, 1024) > 0.5) == test))


def compare(arguments: argparse.Namespace, train: np.ndarray, test: np.ndarray) -> None:
    """Prints a row for each network, batch and composition."""
    lit = train.mean(axis=0) > 0.5
    print(f"always dark {np.mean(test == 0):.4f}; each pixel's majority {np.mean(test == lit):.4f}")
    print("| K | batch | composition | noise | accuracy | seconds |")
    print("|---|---|---|---|---|---|", flush=True)
    for hidden in arguments.hidden:
        model = SigmoidBeliefNetwork(784, hidden, shrinkage=arguments.shrinkage)
        for batch in arguments.batch:
            rate = batch / len(train)
            rounds = round(arguments.epochs * len(train) / batch)
            for name in arguments.compositions:
                noise = 0.0 if name == "none" else noise_for(name, rate, rounds, arguments.epsilon)
                q, seconds = fitted(
                    model, train, batch, arguments.epochs, noise, arguments.clip, arguments.seed
                )
                share = accuracy(model, q, test)
                print(
                    f"| {hidden} | {batch} | {name} | {noise:.3g} | {share:.4f} | {seconds:.0f} |",
                    flush=True,
                )
                if arguments.pictures is not None:
                    picture(model, q, arguments.pictures / f"weights-{hidden}-{batch}-{name}.png")


def picture(model: SigmoidBeliefNetwork, posterior: Any, path: Path) -> None:
    """Saves the weights of hidden units, one picture each, those that are on most often first."""
    from fedvi.report import plots

    rows = posterior[0].h / posterior[0].J
    weights = rows.reshape(model.visible, model.hidden + 1)[:, :-1].T
    order = np.argsort(-(posterior[1].h / posterior[1].J))[:50]
    path.parent.mkdir(parents=True, exist_ok=True)
    plots.pictures(weights[order].reshape(-1, 28, 28), path.stem, path)


def memory(train: np.ndarray) -> None:
    """Prints the largest resident set of a process that has taken two private rounds of 4,096 images."""
    model = SigmoidBeliefNetwork(784, 200)
    fitted(model, train, 4096, 2 * 4096 / len(train), 1.0, 1.0, 0)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"K = 200, diagonal covariance, 4,096 images a batch: {most:.2f} GiB at most")


def main() -> None:
    """Reads the options and runs a case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--hidden", type=int, nargs="+", default=[50])
    parser.add_argument("--batch", type=int, nargs="+", default=[400, 3200])
    parser.add_argument("--compositions", nargs="*", default=["none", *COMPOSITIONS])
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--shrinkage", action="store_true")
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--records", type=int, default=60_000)
    parser.add_argument("--held-out", type=int, default=2_000)
    parser.add_argument("--pictures", type=Path, help="a folder for pictures of the weights")
    arguments = parser.parse_args()
    if arguments.small:
        arguments.hidden, arguments.batch, arguments.records = [20], [400], 6_000
        arguments.held_out, arguments.compositions = 500, ["none", "linear", "zcdp", "pld"]
    train = images("train")[: arguments.records]
    if arguments.memory:
        memory(train)
    else:
        compare(arguments, train, images("t10k")[: arguments.held_out])


if __name__ == "__main__":
    main()
