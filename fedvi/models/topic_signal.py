"""Estimates the signal-to-noise ratio of a private topic model from public numbers."""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedvi import errors

if TYPE_CHECKING:
    from fedvi.models.lda import LatentDirichlet

__all__ = ["SignalToNoise", "signal_to_noise"]


class SignalToNoise(NamedTuple):
    """How far topics stand out from the noise.

    Attributes:
      ratio: the mean concentration that documents add to a cell, over the noise's standard deviation.
      warning: a warning if the ratio is low; else empty.
    """

    ratio: float
    warning: str


def signal_to_noise(
    model: "LatentDirichlet",
    records: int,
    rate: float,
    rounds: int,
    noise_multiplier: float,
    clip_norm: float = 1.0,
    averaging: float = 0.6,
    delay: float = 1.0,
) -> SignalToNoise:
    """Estimates the signal-to-noise ratio of a private fit: N·L_eff / (K·V·sd of the noise).

    A typical document of ``length`` words and norm ``typical_norm`` keeps a share of min(1, ``clip_norm``)
    of its words when clipped. At a ratio below 1 the noise exceeds the mean cell of a topic; frequent words
    of a topic stand out further.

    Args:
      model: the topic model.
      records: N, a public number.
      rate: the share of documents in a batch, above 0 and at most 1.
      rounds: J, at least 1.
      noise_multiplier: σ; at 0 the ratio is infinite.
      clip_norm, averaging, delay: see the solver ``vips``.

    Raises:
      ConfigError: an argument is out of its range.

    >>> from fedvi.models.lda import LatentDirichlet
    >>> model = LatentDirichlet(topics=20, vocabulary=7_702, length=100.0)
    >>> found = signal_to_noise(model, 18_133, 0.1, 10, 1.2, clip_norm=0.5)
    >>> round(found.ratio, 2), found.warning[:21]
    (0.25, 'the noise exceeds the')

    Source: docs/proofs/updates.md §9.
    """
    whole: dict[str, Any] = {"records": records, "rounds": rounds}
    for name, count in whole.items():
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
            raise errors.ConfigError(f"{name} is {count!r}, expected a whole number of at least 1")
    for name, value, fits, wanted in (
        ("rate", rate, 0.0 < rate <= 1.0, "above 0 and at most 1"),
        ("noise_multiplier", noise_multiplier, 0.0 <= noise_multiplier < math.inf, "of at least 0"),
        ("averaging", averaging, 0.0 <= averaging <= 1.0, "from 0 to 1"),
        ("delay", delay, 1.0 <= delay < math.inf, "of at least 1"),
    ):
        if not fits:
            raise errors.ConfigError(f"{name} is {value}, expected a number {wanted}")
    if not (0.0 < clip_norm < math.inf or (clip_norm == math.inf and noise_multiplier == 0.0)):
        raise errors.ConfigError(
            f"clip_norm is {clip_norm}, expected a finite number above 0",
            "noise is in proportion to it",
        )
    squares = 0.0
    for visit in range(rounds):
        step = min(1.0, (delay + visit) ** -averaging)
        squares = (1.0 - step) ** 2 * squares + step**2
    kept = records * model.length * min(1.0, clip_norm)
    spread = noise_multiplier * clip_norm * model.blocks[0].typical * math.sqrt(squares) / rate
    cells = model.topics * model.vocabulary
    ratio = kept / (cells * spread) if spread > 0.0 else math.inf
    if ratio >= 1.0:
        return SignalToNoise(ratio, "")
    return SignalToNoise(
        ratio,
        f"the noise exceeds the mean cell of a topic {1.0 / ratio:.1f} times; expect less than word "
        "frequencies alone would tell: take a smaller public vocabulary, fewer topics, more "
        f"documents{', or a larger rate' if rate < 1.0 else ''}",
    )
