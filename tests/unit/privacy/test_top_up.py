"""Claims about noise that makes up for missing sites: its law, and that a sum never has too little."""

import itertools
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from hypothesis import given
from hypothesis import strategies as st

from fedvi import errors
from fedvi.privacy import noise_table, top_up
from fedvi.privacy.agreement import threshold


@st.composite
def consortia(draw: st.DrawFn) -> tuple[int, int, int, int]:
    clients = draw(st.integers(4, 60))
    colluding = draw(st.integers(0, 2))
    least = draw(st.integers(min(threshold(clients, colluding), clients), clients))
    return clients, colluding, least, 2 ** draw(st.integers(0, 8))


@given(consortia())
def test_a_sum_never_has_less_noise_than_that_of_all_sites(
    consortium: tuple[int, int, int, int],
) -> None:
    clients, colluding, least, fineness = consortium
    layers = top_up.planned(clients, colluding, least, fineness)
    assert layers.kept(0) == 0
    for missing in range(clients - least + 1):
        honest = clients - colluding - missing
        ratio = honest * layers.variance(layers.kept(missing)) / (clients - colluding)
        # Nor much more: a tenth for fewer layers, and a few hundredths for what few draws add up to.
        assert 1 <= ratio <= Fraction(116, 100)
    if least < clients:
        with pytest.raises(errors.ProtocolError, match="expected at most"):
            layers.kept(clients - least + 1)


def _variances(sizes: range) -> tuple[int, Fraction, Fraction]:
    """Every number of sites, colluders, least answers, missing sites and layers that stay, each fineness.

    Returns:
      how many; the least variance of the honest sites' noise ÷ what is claimed; and the largest, where
      no more layers stay than must.
    """
    cases, least_found, largest = 0, Fraction(10), Fraction(0)
    for clients, colluding in itertools.product(sizes, range(3)):
        floor = min(threshold(clients, colluding), clients)
        for least, fineness in itertools.product(
            range(floor, clients + 1), (2**power for power in range(9))
        ):
            layers = top_up.planned(clients, colluding, least, fineness)
            variances = [layers.variance(count) for count in range(len(layers.layers) + 1)]
            for missing in range(clients - least + 1):
                kept = layers.kept(missing)
                share = Fraction(clients - colluding - missing, clients - colluding)
                largest = max(largest, share * variances[kept])
                # A site that opens fewer layers than it may leaves more noise.
                least_found = min(least_found, *(share * part for part in variances[kept:]))
                cases += len(variances) - kept
    return cases, least_found, largest


def test_no_sum_of_up_to_twelve_sites_has_less_noise_whoever_is_missing() -> None:
    cases, least, largest = _variances(range(4, 13))
    assert cases > 4_000
    assert least == 1
    assert largest <= Fraction(116, 100)


@pytest.mark.nightly
def test_no_sum_of_up_to_forty_sites_has_less_noise_whoever_is_missing() -> None:
    """213,408 cases, in exact fractions."""
    cases, least, largest = _variances(range(4, 41))
    assert cases >= 161_943
    assert least == 1
    assert largest <= Fraction(116, 100)


def test_two_hundred_sites_need_few_layers_and_draws() -> None:
    layers = top_up.planned(200, 1, 101, 1)
    assert len(layers.layers) <= 8
    assert layers.draws <= 16


@pytest.mark.parametrize("divisor", [5, 19, 255])
def test_a_divided_draw_is_a_rounded_gaussian(divisor: int) -> None:
    # The law of what the table gives, divided and rounded, by magnitude.
    alias, high, low = noise_table.table("rounded_gaussian").astype(object)
    bars = [int(bar) for bar in high * 2**32 + low]
    weight = bars.copy()
    for other, bar in zip(alias.astype(int), bars, strict=True):
        weight[other] += 2**63 - bar
    divided = (np.arange(2**16) + divisor // 2) // divisor
    found: dict[int, int] = {}
    for magnitude, part in zip(divided.tolist(), weight, strict=True):
        found[magnitude] = found.get(magnitude, 0) + part
    with mpmath.workdps(40):
        sd, off = mpmath.mpf(4096) / divisor, mpmath.mpf(0)
        edges = [
            mpmath.erf((k + mpmath.mpf("0.5")) / sd / mpmath.sqrt(2)) for k in range(len(found))
        ]
        for k, (below, above) in enumerate(zip([mpmath.mpf(0), *edges], edges, strict=False)):
            off += abs(mpmath.mpf(found[k]) / 2**79 - (above - below))
    assert off / 2 < noise_table.TABLE_DISTANCE


def test_draws_are_those_of_the_table_bit_by_bit() -> None:
    key, count = bytes(range(32)), 300_000
    found = top_up.drawn(key, (1,), count)
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    words = np.frombuffer(stream.update(bytes(4 * count)), "<u4").tolist()
    alias, high, low = (row.tolist() for row in noise_table.table("rounded_gaussian"))
    ties = 0
    for word, number in zip(words, found.tolist(), strict=True):
        column, coin, sign = word & 0xFFFF, word >> 16 & 0x7FFF, word >> 31
        bar = high[column] << 32 | low[column]
        if coin == bar >> 48:
            ties += 1
            first, second = np.frombuffer(stream.update(bytes(8)), "<u4").tolist()
            keeps = (coin << 48 | first >> 16 << 32 | second) < bar
        else:
            keeps = coin << 48 < bar
        magnitude = column if keeps else alias[column]
        assert number == (-magnitude if sign else magnitude)
    assert ties >= 3


def test_layers_have_the_variance_that_is_planned() -> None:
    divisors, count = (3, 5, 17), 200_000
    found = top_up.drawn(bytes(32), divisors, count) / 4096
    variance = sum(1 / c**2 for c in divisors)
    z = ((found**2).mean() / variance - 1) * np.sqrt(count / 2)
    # Two-sided, one in a million; the key is fixed.
    assert abs(z) < 4.9
    assert abs(found.mean()) < 4.9 * np.sqrt(variance / count)


def test_keys_of_one_secret_have_nothing_in_common() -> None:
    secret = bytes(range(32))
    found = [top_up.self_mask_key(secret), *(key for _, key in top_up.layer_keys(secret, range(5)))]
    assert len({*found, secret}) == 7
    assert top_up.layer_keys(secret, [3]) == [(3, found[4])]
