"""Fixed-size batches: bijective at every size, Floyd's arithmetic, and what is refused."""

import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from fedvi import errors
from fedvi.privacy import accountants, events, random, sampling

feistel_module = sys.modules["fedvi.privacy.sampling.feistel"]


def key(*label):
    return random.insecure_root(0).key(*label)


def round_keys(*label):
    return jax.random.bits(key(*label), (feistel_module._ROUNDS, 2), jnp.uint32)


@pytest.mark.nightly(only=("9", "6"))
@pytest.mark.parametrize("bits", range(2, 10))
def test_every_domain_from_2_to_512_is_permuted(bits):
    # Unbalanced halves at odd numbers of bits; domains down to far below a power of two.
    sizes = jnp.arange(2, 2**bits + 1, dtype=jnp.uint32)
    start = jnp.arange(2**bits, dtype=jnp.uint32)

    def images(words, size):
        # Numbers beyond the domain stand for 0, so that all sizes have one shape.
        inside = jnp.where(start < size, start, np.uint32(0))
        return feistel_module._walk(words, inside, size, bits)

    found = np.asarray(jax.jit(jax.vmap(images, (None, 0)))(round_keys(bits), sizes))
    for size, row in zip(np.asarray(sizes), found, strict=True):
        assert (np.sort(row[:size]) == np.arange(size)).all()


@pytest.mark.parametrize("size", [2**14 + 1, 2**16, 99_999])
def test_a_large_domain_is_permuted_too(size):
    images = feistel_module._permuted(key(size), size, size)
    assert (np.sort(np.asarray(images)) == np.arange(size)).all()


def pair_statistic(rounds, draws):
    """χ² of the images of 0 and 1 under permutations of 64 numbers; 4,031 degrees of freedom."""
    words = jax.random.bits(key("pairs"), (draws, rounds, 2), jnp.uint32)
    start = jnp.arange(2, dtype=jnp.uint32)
    images = np.asarray(jax.vmap(lambda w: feistel_module._network(w, start, 6))(words))
    counts = np.bincount(images[:, 0].astype(int) * 64 + images[:, 1], minlength=4096)
    counts = counts.reshape(64, 64)[~np.eye(64, dtype=bool)]
    return ((counts - draws / 4032) ** 2 / (draws / 4032)).sum()


@pytest.mark.nightly
def test_two_numbers_go_anywhere_in_a_small_domain_and_would_not_with_few_rounds():
    limit = scipy.stats.chi2(4031).isf(1e-4)  # the seed is fixed
    assert feistel_module._ROUNDS >= 8
    assert pair_statistic(feistel_module._ROUNDS, 200_000) < limit
    for planted in (2, 3):
        assert pair_statistic(planted, 200_000) > 2 * limit


def test_each_input_bit_and_key_bit_changes_half_of_the_round_function():
    generator = np.random.default_rng(0)
    half = jnp.asarray(generator.integers(0, 2**12, 4000), jnp.uint32)
    words = jnp.asarray(generator.integers(0, 2**32, 2), jnp.uint32)
    before = np.asarray(feistel_module._mixed(half, words))

    def changed(other_half, other_words):
        difference = before ^ np.asarray(feistel_module._mixed(other_half, other_words))
        bits = np.unpackbits(difference.view(np.uint8).reshape(-1, 4), axis=1)
        return bits.mean(0, dtype=float)[-8:], bits.mean(dtype=float)

    for bit in range(12):
        _, share = changed(half ^ np.uint32(1 << bit), words)
        assert 0.45 < share < 0.55
    for bit in range(32):
        for which in (0, 1):
            flip = np.zeros(2, np.uint32)
            flip[which] = 1 << bit
            _, share = changed(half, words ^ jnp.asarray(flip))
            # The last key is followed by one multiplication and one shift only.
            assert share > (0.45 if which == 0 else 0.02)


@pytest.mark.nightly(only=("64-16384",))
@pytest.mark.parametrize(("batch", "size"), [(1, 1), (1, 7), (7, 7), (20, 30), (64, 2**14)])
def test_floyd_follows_its_words_as_exact_arithmetic_would(batch, size):
    pick = jax.jit(feistel_module._floyd, static_argnums=(1, 2))
    for number in range(5):
        secret = key("floyd", number)
        limbs = np.asarray(jax.random.bits(secret, (3, batch), jnp.uint32)).astype(object)
        expected = []
        for step, bound in enumerate(range(size - batch + 1, size + 1)):
            word = limbs[0, step] + (limbs[1, step] << 32) + (limbs[2, step] << 64)
            draw = (word * bound) >> 96
            expected.append(draw if draw not in expected else bound - 1)
        found = pick(secret, batch, size)
        assert found.tolist() == expected


@pytest.mark.parametrize("size", [1000, 20_000])
def test_slots_without_a_record_take_part_and_are_masked(size):
    sampler = sampling.feistel(100, size)
    valid = jnp.arange(size) % 4 == 0
    draw = jax.jit(sampler.draw)
    with_holes, whole = draw(key(), valid), draw(key(), jnp.ones(size, bool))
    assert (with_holes.indices == whole.indices).all()
    assert whole.mask.sum() == 100  # the rest of the batch fills it up to whole groups
    assert (with_holes.mask == whole.mask & valid[with_holes.indices]).all()


@pytest.mark.parametrize("size", range(1, 8))
def test_of_one_to_seven_slots_every_set_is_drawn_as_often_as_any_other(size):
    """Every size and batch: 8,000 draws each, distinct slots, and all sets equally likely."""
    draws, keys = 8_000, jax.random.split(key("small", size), 8_000)
    for batch in range(1, size + 1):
        sampler = sampling.feistel(batch, size)

        def drawn(secret, sampler=sampler):
            found = sampler.draw(secret, jnp.ones(sampler.max_records, bool))
            return (
                jnp.zeros(sampler.max_records, jnp.int32)
                .at[found.indices]
                .add(found.mask.astype(jnp.int32))
            )

        hits = np.asarray(jax.jit(jax.vmap(drawn))(keys))
        assert hits.max() == 1
        assert (hits.sum(1) == batch).all()
        codes = hits @ (2 ** np.arange(size))
        sets = [sum(2**slot for slot in one) for one in itertools.combinations(range(size), batch)]
        counts = np.array([(codes == code).sum() for code in sets])
        assert counts.sum() == draws
        if len(sets) > 1:
            # False alarm 1e-5 for each of 28, the keys are fixed.
            assert scipy.stats.chisquare(counts).pvalue > 1e-5, (batch, size)


@pytest.mark.parametrize("size", range(2, 8))
def test_the_permutation_of_few_numbers_is_one_for_a_thousand_keys(size):
    """Domains below 2³, where halves have one bit: the walk ends, and its images are distinct."""
    keys = jax.random.split(key("few", size), 1_000)
    permuted = jax.jit(jax.vmap(lambda secret: feistel_module._permuted(secret, size, size)))
    assert (np.sort(np.asarray(permuted(keys)), axis=1) == np.arange(size)).all()


def test_its_event_says_without_replacement_and_is_no_poisson():
    sampler = sampling.feistel(10, 1000)
    event = sampler.event(events.Gaussian(2.0))
    assert event == events.WithoutReplacement(10, 1000, events.Gaussian(2.0))
    assert sampler.rate == event.rate == 0.01
    accountant = accountants.pld("substitute")
    poisson = events.PoissonSampled(0.01, events.Gaussian(2.0))
    assert accountant.epsilon(event, 1e-5) > 1.5 * accountant.epsilon(poisson, 1e-5)


@pytest.mark.parametrize(
    ("batch", "size", "message"),
    [
        (0, 10, "batch is 0"),
        (11, 10, "batch is 11, expected at least 1 and at most max_records, 10"),
        (1, 0, "max_records is 0"),
        (1, 2**30 + 1, "max_records is 1073741825"),
    ],
)
def test_a_batch_that_cannot_be_is_refused(batch, size, message):
    with pytest.raises(errors.PrivacyError, match=message):
        sampling.feistel(batch, size)
