"""Claims about sharing one table out over simulated clients: sizes, labels, and what is refused."""

import numpy as np
import pytest

from fedvi.data.splits import balanced, by_column, skewed, together
from fedvi.errors import DataError

# Adult's training half: 24,421 records, of which 0.239 are positive.
ADULT = np.random.default_rng(0).permutation(np.arange(24_421) < 5_842)


def test_balanced_shares_differ_by_at_most_one_record() -> None:
    client = balanced(np.random.default_rng(1), 24_421, 200)
    sizes = np.bincount(client, minlength=200)
    assert sizes.sum() == 24_421
    assert sizes.max() - sizes.min() == 1


@pytest.mark.parametrize(
    ("size_skew", "label_skew", "small", "positives"),
    [
        # ⌊(1 − ρ) N/M⌋ and, of these, what b + (1 − b) κ leaves positive: the sizes of
        # Adult's training records, where b = 1 − 5,842/24,421.
        (0.75, 0.95, 610, 8),
        (0.7, -3.0, 732, 701),
    ],
)
def test_small_clients_are_those_of_the_dppvi_paper(
    size_skew: float, label_skew: float, small: int, positives: int
) -> None:
    client = skewed(np.random.default_rng(2), ADULT, 10, size_skew, label_skew)
    sizes, labels = np.bincount(client), np.bincount(client[ADULT])
    np.testing.assert_array_equal(sizes[:5], [small] * 5)
    np.testing.assert_array_equal(labels[:5], [positives] * 5)
    assert sizes.sum() == len(ADULT)
    assert sizes[5:].max() - sizes[5:].min() <= 1
    # The large clients share what is left by chance: within 5 hypergeometric sds, at most
    # √(n p (1 − p)), of the mean; one of five is outside with probability below 1e-5.
    mean = labels[5:].mean()
    assert (np.abs(labels[5:] - mean) < 5.0 * np.sqrt(mean)).all()


def test_without_skew_small_clients_are_as_large_as_the_others_and_as_positive() -> None:
    client = skewed(np.random.default_rng(3), ADULT, 10, 0.0, 0.0)
    sizes, labels = np.bincount(client), np.bincount(client[ADULT])
    assert sizes.max() - sizes.min() <= 1
    np.testing.assert_allclose(labels[:5] / sizes[:5], ADULT.mean(), atol=1.0 / sizes.min())


def test_a_seed_decides_who_holds_what() -> None:
    def draw(seed: int) -> np.ndarray:
        return skewed(np.random.default_rng(seed), ADULT, 10, 0.7, -3.0)

    np.testing.assert_array_equal(draw(4), draw(4))
    assert (draw(4) != draw(5)).any()


@pytest.mark.parametrize(
    ("clients", "size_skew", "label_skew", "said"),
    [
        (9, 0.5, 0.0, r"clients is 9, expected an even number"),
        (10, 1.0, 0.0, r"size_skew is 1\.0, expected a number from 0 to below 1"),
        (10, 0.5, 1.5, r"label_skew 1\.5 makes 1\.12 of a small client's records negative"),
        (10, 0.0, -3.0, r"small clients would hold 11685 positive records, and there are 5842"),
        (20_000, 0.5, 0.0, r"leaves nothing of 24421 records"),
    ],
)
def test_a_skew_that_cannot_be_is_refused(
    clients: int, size_skew: float, label_skew: float, said: str
) -> None:
    with pytest.raises(DataError, match=said):
        skewed(np.random.default_rng(0), ADULT, clients, size_skew, label_skew)


@pytest.mark.parametrize("clients", [0, 8])
def test_every_balanced_client_holds_a_record(clients: int) -> None:
    with pytest.raises(DataError, match=f"{clients} clients are to share 7 records"):
        balanced(np.random.default_rng(0), 7, clients)


def test_a_column_names_the_clients_in_the_order_of_the_file() -> None:
    names, client = by_column(["south", " north", "south ", "east"])
    assert names == ("south", "north", "east")
    assert client.tolist() == [0, 1, 0, 2]


@pytest.mark.parametrize(
    ("cells", "clients", "said"),
    [
        (["north", ""], None, "1 of 2 records have nothing in the column"),
        ([], None, "there is no record"),
        (["north", "south"], 3, "3 clients are to share records of 2 different ones"),
    ],
)
def test_a_column_that_names_no_clients_is_refused(
    cells: list[str], clients: int | None, said: str
) -> None:
    with pytest.raises(DataError, match=said):
        by_column(cells, clients)


def test_no_patient_is_divided_between_clients() -> None:
    generator = np.random.default_rng(6)
    patients = [f"p{number}" for number in generator.integers(0, 50, 400)]
    units, unit = by_column(patients)
    client = together(patients, balanced(generator, len(units), 4))
    for number in range(len(units)):
        assert len(set(client[unit == number].tolist())) == 1
    assert set(client.tolist()) == {0, 1, 2, 3}
    with pytest.raises(DataError, match="3 shares for 50 units"):
        together(patients, np.zeros(3, np.intp))
