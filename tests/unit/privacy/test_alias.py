"""The alias tables: exact integers against the law, and the file against its digest."""

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.stats

from fedvi import errors
from fedvi.privacy import noise_table, random
from fedvi.privacy.mechanisms import _alias
from tests import alias_tables

LAWS = tuple(alias_tables.LAWS)


def weights_of(table: np.ndarray) -> list[int]:
    """Adds up what each magnitude gets from its own column and as an alias, in whole numbers."""
    capacity = 2**63
    whole = [0] * table.shape[1]
    for column, (alias, high, low) in enumerate(table.T.tolist()):
        threshold = (high << 32) | low
        whole[column] += threshold
        whole[alias] += capacity - threshold
    return whole


def law_of(name: str, k: int) -> mpmath.mpf:
    """The law of |N| at k, by formulas other than the generator's."""
    with mpmath.workprec(300):
        if name == "rounded_gaussian":
            upper = mpmath.erfc((k + mpmath.mpf("0.5")) / 4096 / mpmath.sqrt(2))
            lower = mpmath.erfc((k - mpmath.mpf("0.5")) / 4096 / mpmath.sqrt(2))
            return 1 - upper if k == 0 else lower - upper
        whole = mpmath.jtheta(3, 0, mpmath.exp(-mpmath.mpf(1) / (2 * 256**2))) * 16
        # Σ exp(−k²/2σ²) is σ√(2π) up to exp(−2π²σ²): the theta function of σ = 256, times 16.
        return (1 if k == 0 else 2) * mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * 4096**2)) / whole


@pytest.mark.parametrize("name", LAWS)
def test_each_weight_is_within_one_unit_of_the_law_and_they_sum_to_one(name):
    weights = weights_of(noise_table.table(name))
    assert sum(weights) == 2**79
    for k in [*range(40), *range(40, 65536, 331), 65535]:
        with mpmath.workprec(300):
            assert abs(weights[k] - law_of(name, k) * 2**79) <= 1, k


def test_the_distance_that_is_stated_covers_rounding_and_tail():
    """With room for what no other price holds: a stride's error and a fixed-size batch's."""
    tail = mpmath.erfc(mpmath.mpf("65535.5") / 4096 / mpmath.sqrt(2))
    room = mpmath.exp(-5000) + mpmath.mpf(2) ** -69
    assert 65536 * mpmath.mpf(2) ** -79 / 2 + tail + room < noise_table.TABLE_DISTANCE


@pytest.mark.nightly
@pytest.mark.parametrize("name", LAWS)
def test_the_table_in_the_package_is_what_its_generator_makes(name):
    law = alias_tables.LAWS[name]()
    weights = alias_tables.weights(law)
    np.testing.assert_array_equal(alias_tables.make(weights), noise_table.table(name))
    with mpmath.workprec(300):
        scale = mpmath.mpf(2) ** 79
        distance = mpmath.fsum(abs(w / scale - p) for w, p in zip(weights, law, strict=True)) / 2
    assert distance < noise_table.TABLE_DISTANCE


def test_a_damaged_table_is_refused(monkeypatch):
    monkeypatch.setitem(noise_table._DIGESTS, "rounded_gaussian", "0" * 64)
    noise_table.table.cache_clear()
    try:
        with pytest.raises(errors.PrivacyError, match="SHA-256"):
            noise_table.table("rounded_gaussian")
    finally:
        noise_table.table.cache_clear()


def test_a_draw_uses_its_bits_as_the_proof_says(monkeypatch):
    """Known words give known integers: column, threshold in 63 bits, sign."""
    name = "rounded_gaussian"
    table = noise_table.table(name)
    column = next(
        i for i in range(60_000) if table[0][i] != i and all(b[i] % 2**16 > 0 for b in table[1:])
    )
    alias, high, low = (int(row[column]) for row in table)
    sign = 1 << 31
    # Sign and first 31 bits of u, and its last 32.
    cases = [
        (high, low - 1, column),
        (high, low, alias),
        (high | sign, low - 1, -column),
        (high | sign, low, -alias),
        (high - 1, 2**32 - 1, column),
        (high - 1 | sign, 2**32 - 1, -column),
    ]
    assert drawn_from(monkeypatch, name, cases) == [expected for _, _, expected in cases]
    # Away from the threshold the last bits are not asked for: here they would raise.
    clear = [(high - 2**16, None, column), (high + 2**16, None, alias)]
    clear += [(high + 2**16 | sign, None, -alias), (high - 2**16 | sign, None, -column)]
    assert drawn_from(monkeypatch, name, clear) == [expected for _, _, expected in clear]


def drawn_from(monkeypatch, name: str, cases: list) -> list[int]:
    """Draws with the words of each case: sign and first 31 bits, last 32 bits (None if not needed)."""
    table = noise_table.table(name)
    column = abs(cases[0][2])
    assert table[0][column] != column
    words = np.array([[column | case[0] >> 16 << 16 for case in cases]], np.uint32)
    asked = []

    def bits(key, shape, dtype):
        if shape == words.shape:
            return jnp.asarray(words)
        assert shape == (2, len(cases))
        asked.append(key)
        last = [[case[0] % 2**16 << 16 for case in cases], [case[1] for case in cases]]
        return jnp.asarray(np.array(last, np.uint32))

    class Alone:
        """A function that no ``vmap`` meets, and so is not traced."""

        def __init__(self, one):
            self.one = one

        def __call__(self, key):
            return self.one(key)

        def def_vmap(self, many):
            return many

    with monkeypatch.context() as patch, jax.disable_jit():
        patch.setattr(jax.custom_batching, "custom_vmap", Alone)
        patch.setattr(jax, "vmap", lambda one: lambda rows: jnp.stack([one(row) for row in rows]))
        patch.setattr(jax.random, "fold_in", lambda key, number: int(number))
        patch.setattr(jax.random, "bits", bits)
        found = _alias.draw.__wrapped__(name, random.insecure_root(0).key("a"), len(cases))
    assert asked == ([] if cases[0][1] is None else [0])
    return found.tolist()


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("count", [1, 9, 3000])
def test_draws_of_many_keys_are_those_of_each_alone(monkeypatch, count, ties):
    if ties:  # of one draw in 64, so that rows of some keys wait and others do not
        table = np.zeros((3, 2**16), np.uint32)
        table[0], table[1] = np.arange(2**16)[::-1], 2**14
        monkeypatch.setattr(_alias, "table", lambda law: table)
        bits = jax.random.bits

        def coarse(key, shape, dtype):
            drawn = bits(key, shape, dtype)
            further = shape == (2, -(-count // -(-count // 1024)))
            return drawn if further else drawn & jnp.uint32(2**31 | 63 << 16 | 2**16 - 1)

        monkeypatch.setattr(jax.random, "bits", coarse)
    keys = jax.random.split(random.insecure_root(6).key(), 50)

    def one(key):
        return _alias.draw.__wrapped__("rounded_gaussian", key, count)

    side_by_side = jax.jit(jax.vmap(one))(keys)
    np.testing.assert_array_equal(side_by_side, jax.jit(lambda k: jax.lax.map(one, k))(keys))


def test_a_tie_is_settled_with_bits_of_its_own(monkeypatch):
    """Where every draw ties, the last 48 bits give the law: 0 with probability 1/4, else ±1."""
    table = np.zeros((3, 2**16), np.uint32)
    table[0], table[1], table[2] = 1, 2**14, 0
    monkeypatch.setattr(_alias, "table", lambda law: table)
    bits = jax.random.bits

    def coarse(key, shape, dtype):
        drawn = bits(key, shape, dtype)
        # The column is 0, and the first 15 bits are the threshold's: every draw is a tie.
        return drawn if shape[0] == 2 else drawn >> 31 << 31

    monkeypatch.setattr(jax.random, "bits", coarse)
    noise = np.asarray(
        jax.jit(lambda key: _alias.draw.__wrapped__("", key, 4000))(random.insecure_root(5).key())
    )
    # Binomial(4000, 3/4) and a fair sign, within 5 standard deviations.
    changed = np.flatnonzero(noise)
    assert abs(changed.size - 3000) < 5 * math.sqrt(4000 * 3 / 16)
    assert abs(noise.sum()) < 5 * math.sqrt(3000)
    assert set(noise.tolist()) == {-1, 0, 1}


def words_of(key, count: int) -> tuple[np.ndarray, int]:
    """The words of draws, and how many draws stand in a row."""
    rows = -(-count // 1024)
    width = -(-count // rows)
    words = jax.random.bits(jax.random.split(key)[0], (rows, width), jnp.uint32)
    return np.asarray(words).ravel()[:count], width


def drawn_by_hand(key, table: np.ndarray, count: int) -> tuple[list[int], int]:
    """What a key draws, in whole numbers, all 63 bits compared at once; and how many draws tie."""
    rest, drawn, ties = jax.random.split(key)[1], [], 0
    words, width = words_of(key, count)
    for index, word in enumerate(words.tolist()):
        column = word & 0xFFFF
        alias, high, low = table[:, column].tolist()
        coin, threshold = (word >> 16 & 0x7FFF) << 48, high << 32 | low
        if coin >> 48 == threshold >> 48:
            ties += 1
            own = jax.random.fold_in(rest, index // width)
            middle, last = jax.random.bits(own, (2, width), jnp.uint32)[:, index % width].tolist()
            coin |= middle >> 16 << 32 | last
        magnitude = column if coin < threshold else alias
        drawn.append(-magnitude if word >> 31 else magnitude)
    return drawn, ties


@pytest.mark.parametrize("count", [1, 2, 171, 2051])
def test_a_key_draws_what_exact_arithmetic_on_its_bits_gives(count):
    key = random.insecure_root(8).key(count)
    expected, _ = drawn_by_hand(key, noise_table.table("discrete_gaussian"), count)
    assert _alias.draw("discrete_gaussian", key, count).tolist() == expected


def test_ties_of_each_row_are_settled_with_words_of_its_own(monkeypatch):
    count, key = 2051, random.insecure_root(8).key("rows")
    words, width = words_of(key, count)
    tied = [row * width + place for row in range(3) for place in range(8)]
    table = noise_table.table("rounded_gaussian").copy()
    columns = words[tied] & 0xFFFF
    table[0, columns] = 5
    table[1, columns] = (words[tied] >> 16 & 0x7FFF) << 16 | 2**15
    monkeypatch.setattr(_alias, "table", lambda law: table)
    expected, ties = drawn_by_hand(key, table, count)
    assert ties >= len(tied)
    found = jax.jit(lambda key: _alias.draw.__wrapped__("", key, count))(key)
    assert found.tolist() == expected


@pytest.mark.nightly
def test_ties_are_settled_alike_under_every_transformation(monkeypatch):
    """With keys of many ties and of none side by side, as a loop over all of them must keep apart."""
    count, keys = 61, jax.random.split(random.insecure_root(8).key("ties"), 3)
    table = noise_table.table("rounded_gaussian").copy()
    for number, tied in enumerate((range(0, 61, 5), range(7, 11))):
        words = words_of(keys[number], count)[0][tied]
        table[0, words & 0xFFFF] = 5
        table[1, words & 0xFFFF] = (words >> 16 & 0x7FFF) << 16 | 2**15
    monkeypatch.setattr(_alias, "table", lambda law: table)
    expected, ties = zip(*(drawn_by_hand(key, table, count) for key in keys), strict=True)
    assert ties == (13, 4, 0)

    def draw(key):
        return _alias.draw.__wrapped__("", key, count)

    def scanned(keys):
        return jax.lax.scan(lambda carry, key: (carry, draw(key)), 0, keys)[1]

    for transformed, wide in ((jax.vmap(draw), False), (jax.vmap(draw), True), (scanned, False)):
        with jax.enable_x64(wide):
            found = jax.jit(transformed)(keys)
        assert found.dtype == jnp.int32
        assert found.tolist() == list(expected)


@pytest.mark.parametrize("wide", [False, True])
def test_more_draws_than_int32_can_number_are_refused(wide):
    key = random.insecure_root(0).key()
    with jax.enable_x64(wide), pytest.raises(errors.PrivacyError, match=r"fewer than 2\^31"):
        jax.eval_shape(lambda key: _alias.draw("rounded_gaussian", key, 2**31), key)


def fits(noise: np.ndarray) -> bool:
    """χ² of draws against the exact law in 60 cells, and moments within 5 standard errors."""
    scaled = noise / 4096.0
    # Cell edges at half-integers, so that each cell's mass is exact for the rounded Gaussian.
    edges = np.round(4096 * scipy.stats.norm.ppf(np.arange(1, 60) / 60)) + 0.5
    expected = np.diff([0.0, *scipy.stats.norm.cdf(edges / 4096.0), 1.0]) * noise.size
    found = np.bincount(np.searchsorted(edges, noise), minlength=60)
    chi2 = ((found - expected) ** 2 / expected).sum()
    count = noise.size
    return bool(
        # p = 1e-6 a test; the seed is fixed.
        scipy.stats.chi2.sf(chi2, 59) > 1e-6
        and abs(scaled.mean()) < 5 / math.sqrt(count)
        and abs((scaled**2).mean() - 1) < 5 * math.sqrt(2 / count)
        and abs((scaled**4).mean() - 3) < 5 * math.sqrt(96 / count)
    )


@pytest.mark.parametrize("name", LAWS)
def test_draws_follow_the_law(name):
    noise = np.asarray(_alias.draw(name, random.insecure_root(3).key("noise"), 400_001))
    assert fits(noise)
    # Neighbours, and draws that stand far apart, are not correlated.
    half = 200_001
    for one, two in ((noise[:-1], noise[1:]), (noise[: half - 1], noise[half:])):
        assert abs(np.corrcoef(one, two)[0, 1]) < 5 / math.sqrt(one.size)
        assert abs(np.corrcoef(abs(one), abs(two))[0, 1]) < 5 / math.sqrt(one.size)


@pytest.mark.parametrize("factor", [0.0, 0.5, 0.8, 0.99])
def test_weaker_noise_is_told_from_the_law(factor):
    noise = np.asarray(_alias.draw("rounded_gaussian", random.insecure_root(3).key("n"), 400_001))
    assert not fits(np.round(factor * noise))
