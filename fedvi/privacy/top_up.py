"""Noise that makes up for missing sites, so that a sum has about the same noise whoever answers. No JAX.

    answer     x + base noise, for sums that all n sites answer, + layer 1 + … + layer L
    opening    of a sum without i sites: the keys of the layers that it no longer needs, which are taken off

Without layers every site would add noise for the fewest answers that may be summed, also where all answer.
Each layer has a key of its own. A layer whose key is not opened stays in the sum: less precise, and no
less private. Proof: docs/proofs/top_up.md. Source: XNoise (Jiang, Wang and Chen, Dordis, EuroSys 2024),
here with rounded Gaussians, and a few layers in place of one for each number of missing sites.
"""

import functools
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from fedvi import errors
from fedvi.privacy import noise_table

__all__ = ["KEY_BYTES", "NONE", "Layer", "TopUp", "drawn", "layer_keys", "planned", "self_mask_key"]

KEY_BYTES = 32
"""The length of a layer's key: 256 bits."""

# A sum without some sites may have this much more variance than it needs: it saves layers, whose noise a
# server draws anew for each site.
_WASTE = Fraction(11, 10)
_SPARE = Fraction(103, 100)  # the same, for what draws of these few widths add up to
_WIDEST_DIVISOR = 255  # 4,096 ÷ 255 = 16 steps, far above where a rounded Gaussian stops being one
_ODD = range(1, _WIDEST_DIVISOR + 1, 2)


class Layer(NamedTuple):
    """One layer of noise.

    Attributes:
      missing: how many sites may be missing if this layer and those before it stay in the sum.
      divisors: odd numbers c; the layer is the sum of one draw of std 4,096 / c steps for each.
    """

    missing: int
    divisors: tuple[int, ...]


class TopUp(NamedTuple):
    """The layers of a study's answers; public, and made of values that JSON can hold.

    Attributes:
      stride: what a step of a layer is in steps of the grid: the mechanism's fineness.
      layers: in order; sites that miss nothing keep none of them.
    """

    stride: int = 1
    layers: tuple[Layer, ...] = ()

    def kept(self, missing: int) -> int:
        """Returns how many layers stay in a sum without ``missing`` sites.

        Raises:
          ProtocolError: more sites are missing than the layers make up for.
        """
        if not self.layers or missing == 0:
            return 0
        for count, layer in enumerate(self.layers, 1):
            if missing <= layer.missing:
                return count
        raise errors.ProtocolError(
            f"{missing} sites are missing in a sum, expected at most {self.layers[-1].missing}"
        )

    def variance(self, kept: int) -> Fraction:
        """Returns the variance of one site's noise with so many layers, in units of its base noise's."""
        share = _share(self.stride)
        return 1 + sum(
            (share * _squares(layer.divisors) for layer in self.layers[:kept]), Fraction(0)
        )

    def total(self, keys: Iterable[tuple[int, bytes]], count: int) -> np.ndarray:
        """Draws layers and adds them up.

        Args:
          keys: (number of a layer, from 0; its key).
          count: how many numbers.

        Returns:
          [count], int64, in steps of the grid.
        """
        total = np.zeros(count, np.int64)
        for number, key in keys:
            total += drawn(key, self.layers[number].divisors, count)
        return self.stride * total

    def louder(self, clients: int, answered: int) -> float:
        """Returns the noise variance of a sum, in units of what all ``clients`` have without layers."""
        if not self.layers:
            return answered / clients
        return float(answered * self.variance(self.kept(clients - answered)) / clients)

    @property
    def draws(self) -> int:
        """How many draws from the noise table one number takes, over all layers."""
        return sum(len(layer.divisors) for layer in self.layers)


NONE = TopUp()
"""No layers: where all sites must answer, where there is no noise, and where a server is trusted."""


@functools.lru_cache(maxsize=64)
def planned(clients: int, colluding: int, least: int, fineness: int) -> TopUp:
    """Chooses the layers of a study.

    Guarantee: for each number i of missing sites, at most ``clients`` − ``least``, the noise of the
    clients − i − colluding honest answers in a sum, with the layers that ``kept`` leaves in, has at least
    the variance that the base noise of clients − colluding answers has.

    Args:
      clients: n.
      colluding: t, how many answers and noises an observer may know.
      least: k_min, above t.
      fineness: of the rounded Gaussian mechanism that draws the base noise.
    """
    honest = clients - colluding
    share = _share(fineness)
    layers: list[Layer] = []
    have, first = Fraction(1), 1
    while first <= clients - least:
        last = max(
            (
                i
                for i in range(first, clients - least + 1)
                if honest - first <= _WASTE * (honest - i)
            ),
            default=first,
        )
        needed = Fraction(honest, honest - last)
        divisors = _divisors((needed - have) / share, (_SPARE * needed - have) / share)
        have += share * _squares(divisors)
        layers.append(Layer(last, divisors))
        first = last + 1
    return TopUp(fineness, tuple(layers))


def drawn(key: bytes, divisors: Sequence[int], count: int) -> np.ndarray:
    """Draws one layer: the same numbers at every call, on every machine.

    Guarantee: if the key is uniform and known to nobody else, and ChaCha20 cannot be told from a random
    function, each number is the sum of independent rounded Gaussians of std 4,096 / c, c in ``divisors``,
    up to ``len(divisors)`` times ``TABLE_DISTANCE``. Proof: a table's draw is a rounded Gaussian of std
    4,096, and rounding that divided by an odd c rounds the Gaussian divided by c (docs/proofs/top_up.md).

    Args:
      key: 32 bytes, used for nothing else.
      divisors: of the layer, odd.
      count: how many numbers.

    Returns:
      [count], int64, in strides.
    """
    total = np.zeros(count, np.int64)
    packed, high, low = _packed()
    encryptor = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    for divisor in divisors:
        words = np.frombuffer(encryptor.update(bytes(4 * count)), "<u4")
        column = words & 0xFFFF
        entry = packed[column]
        coin, bar = words >> 16 & 0x7FFF, entry >> 16
        keeps = coin < bar
        # One draw in 2^15 is decided by the next 48 bits of the threshold.
        tied = np.flatnonzero(coin == bar)
        more = np.frombuffer(encryptor.update(bytes(8 * len(tied))), "<u4").reshape(-1, 2)
        at = column[tied]
        middle, bar_middle = more[:, 0] >> 16, high[at] & 0xFFFF
        keeps[tied] = (middle < bar_middle) | ((middle == bar_middle) & (more[:, 1] < low[at]))
        part = _divided(divisor)[np.where(keeps, column, entry & 0xFFFF)]
        np.negative(part, out=part, where=words >= 2**31)
        total += part
    return total


@functools.cache
def _packed() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the noise table, with an alias and the first 15 bits of its threshold in one word."""
    alias, high, low = noise_table.table("rounded_gaussian")
    return alias | (high >> 16) << 16, high, low


@functools.lru_cache(maxsize=64)
def _divided(divisor: int) -> np.ndarray:
    """Returns each magnitude of the noise table divided by an odd number and rounded, int32."""
    return ((np.arange(2**16) + divisor // 2) // divisor).astype(np.int32)


def layer_keys(secret: bytes, numbers: Iterable[int]) -> list[tuple[int, bytes]]:
    """Derives (number, key) of layers from a site's secret of a round."""
    return [
        (number, _derived(secret, b"fedvi layer 1" + number.to_bytes(4, "big")))
        for number in numbers
    ]


def self_mask_key(secret: bytes) -> bytes:
    """Derives the key of a site's self mask from its secret of a round."""
    return _derived(secret, b"fedvi self mask 1")


def _derived(secret: bytes, info: bytes) -> bytes:
    return HKDFExpand(hashes.SHA256(), KEY_BYTES, info).derive(secret)


def _share(fineness: int) -> Fraction:
    """Returns the part of the base noise's variance that one draw of std 4,096 in strides has."""
    return Fraction(fineness**2 * noise_table.SIGMA**2, noise_table.variance(fineness))


def _squares(divisors: Sequence[int]) -> Fraction:
    return sum((Fraction(1, c * c) for c in divisors), Fraction(0))


def _divisors(least: Fraction, most: Fraction) -> tuple[int, ...]:
    """Returns few odd numbers whose Σ 1/c² is at least ``least``, and at most ``most`` where seven can be.

    All but the last stay below ``least``, each as large a part of what is missing as can be.
    """
    found: list[int] = []
    while least > 0:
        last = max(c for c in _ODD if least * c * c <= 1 or c == 1)
        if least <= 1 and (Fraction(1, last * last) <= most or len(found) >= 6):
            return (*found, last)
        found.append(min(c for c in _ODD if least * c * c >= 1 or c == _ODD[-1]))
        square = Fraction(1, found[-1] ** 2)
        least, most = least - square, most - square
    return tuple(found)
