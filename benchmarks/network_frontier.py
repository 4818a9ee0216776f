"""What a network with one hidden layer of 50 can learn of Adult from ten clients at epsilon 2.

A sketch in NumPy, so that many settings can be looked at: each round every client releases one clipped,
noised sum of gradients over all of its records, at the price that its own relation has, and the server
steps along their sum. That is one release a round, and no local step goes astray; but without noise it is
undertrained as well, so that what fails here may still be had with more rounds or another prior. The
weights are those of `fedvi.models.bnn`: standard normal a priori, divided by the root of the units
before; each step takes them at one draw of sd 0.03. What is printed is judged on a fifth of the training
half, never on the test half.

    python benchmarks/network_frontier.py           # the settings named in README.md
"""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import adult

from fedvi.privacy import accountants
from fedvi.privacy.events import Gaussian, Repeated

CLIENTS, HIDDEN, EPSILON, DELTA, SD = 10, 50, 2.0, 1e-5, 0.03


class Setting(NamedTuple):
    """Rounds, clip norm, Adam or momentum, its rate, the prior's scale."""

    relation: str
    rounds: int
    clip: float
    adam: bool
    rate: float
    scale: float


SETTINGS = [
    Setting("add_remove", 60, 2.0, False, 2.0, 2.0),
    Setting("add_remove", 150, 1.0, True, 0.05, 1.0),
    Setting("add_remove", 150, 1.0, True, 0.05, 3.0),
    Setting("substitute", 150, 1.0, True, 0.05, 1.0),
    Setting("substitute", 150, 1.0, True, 0.05, 3.0),
]


def noise_for(relation: str, rounds: int) -> float:
    """Returns the least noise multiplier of one client's release."""
    accountant, low, high = accountants.pld(relation), 0.1, 5_000.0
    while high / low > 1.0 + 1e-9:
        middle = (low * high) ** 0.5
        if accountant.epsilon(Repeated(Gaussian(middle), rounds), DELTA) <= EPSILON:
            high = middle
        else:
            low = middle
    return high


def forward(theta, x, scale):
    """Returns weights of the output, hidden units and log odds."""
    size = x.shape[1]
    inner = theta[: size * HIDDEN].reshape(size, HIDDEN) * np.float32(scale / np.sqrt(size))
    bias = scale * theta[size * HIDDEN : (size + 1) * HIDDEN]
    outer = theta[(size + 1) * HIDDEN : -1] * np.float32(scale / np.sqrt(HIDDEN))
    hidden = np.tanh(x @ inner + bias)
    return outer, hidden, hidden @ outer + scale * theta[-1]


def clipped_sum(theta, x, y, setting: Setting):
    """Returns the sum of clipped gradients of log p(y | θ), by norms: none is formed."""
    scale = setting.scale
    first, second = scale / np.sqrt(x.shape[1]), scale / np.sqrt(HIDDEN)
    outer, hidden, odds = forward(theta, x, scale)
    slope = y - 1.0 / (1.0 + np.exp(-odds))
    signal = (slope[:, None] * outer) * (1.0 - hidden * hidden)
    squares = (signal**2).sum(axis=1) * ((x * x).sum(axis=1) * first**2 + scale**2)
    squares += slope**2 * ((hidden**2).sum(axis=1) * second**2 + scale**2)
    kept = np.minimum(1.0, setting.clip / np.sqrt(squares + 1e-20))
    signal, slope = signal * kept[:, None], slope * kept
    parts = (x.T @ signal * first).ravel(), scale * signal.sum(axis=0)
    return np.concatenate([*parts, hidden.T @ slope * second, [scale * slope.sum()]])


def learn(x, y, setting: Setting, noise: float):
    """Returns the mean of the second half of the iterates."""
    generator = np.random.default_rng(0)
    size = (x.shape[1] + 2) * HIDDEN + 1
    theta = np.zeros(size)
    theta[: x.shape[1] * HIDDEN] = 0.5 * generator.normal(size=x.shape[1] * HIDDEN)
    pace, energy, total = np.zeros(size), np.zeros(size), np.zeros(size)
    spread = np.sqrt(CLIENTS) * noise * setting.clip
    for step in range(setting.rounds):
        drawn = (theta + SD * generator.normal(size=size)).astype(np.float32)
        slope = clipped_sum(drawn, x, y, setting) + spread * generator.normal(size=size) - theta
        slope /= len(y)
        if setting.adam:
            pace, energy = 0.9 * pace + 0.1 * slope, 0.99 * energy + 0.01 * slope**2
            root = np.sqrt(energy / (1.0 - 0.99 ** (step + 1))) + 1e-8
            theta = theta + setting.rate * pace / (1.0 - 0.9 ** (step + 1)) / root
        else:
            pace = 0.8 * pace + slope
            theta = theta + setting.rate * pace
        if 2 * step >= setting.rounds:
            total += theta / (setting.rounds - (setting.rounds + 1) // 2)
    return total


def main() -> int:
    """Prints a line for each setting."""
    x, y = adult.design()
    x, y = x.astype(np.float32), y.astype(np.float32)
    train = np.random.default_rng(7).permutation(len(y))[: len(y) // 2]
    fit, judge = np.split(train, [len(train) * 4 // 5])
    for setting in SETTINGS:
        noise = noise_for(setting.relation, setting.rounds)
        theta, generator = learn(x[fit], y[fit], setting, noise), np.random.default_rng(1)
        draws = (theta + SD * generator.normal(size=len(theta)) for _ in range(10))
        odds = [forward(draw.astype(np.float32), x[judge], setting.scale)[2] for draw in draws]
        shares = (1.0 / (1.0 + np.exp(-np.array(odds)))).mean(axis=0)
        likelihood = np.log(np.where(y[judge] == 1.0, shares, 1.0 - shares)).mean()
        print(
            f"{setting}: noise {noise:.1f}, accuracy {np.mean((shares > 0.5) == y[judge]):.4f}, mean "
            f"log-likelihood {likelihood:.4f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
