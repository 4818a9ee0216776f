"""How large an answer may be: what no honest site exceeds, and what no other may send."""

import math

import numpy as np
import pytest
import scipy.stats

from fedvi import errors
from fedvi.expfam.matrices import from_triangle, triangle
from fedvi.updates import limits
from fedvi.updates.limits import Limit, Sign, check, limit_of

# The probability with which one bound on noise may fail.
RARE = math.exp(-32.0)


@pytest.mark.parametrize("numbers", [1, 2, 5, 20, 351, 10_000, 1_000_000])
@pytest.mark.parametrize("answers", [1, 7])
def test_noise_alone_exceeds_a_bound_of_an_answer_almost_never(numbers, answers):
    # In units of the noise of one number; nothing is contributed, and C counts for nothing.
    limit = limit_of(0, 1.0, 1.0, numbers)
    most = limit.of_sum(answers) / limits._ROUNDING / math.sqrt(answers)
    assert scipy.stats.chi.sf(most, numbers) < RARE
    assert numbers * 2.0 * scipy.stats.norm.sf(limits._tail(numbers)) < RARE


@pytest.mark.parametrize("side", [1, 2, 10, 60])
def test_the_edge_of_a_noisy_matrix_is_where_its_bound_says(side):
    generator = np.random.default_rng(0)
    scale = triangle(side)[2]
    drawn = from_triangle(generator.normal(size=(2000, len(scale))) / scale, side)
    least = np.linalg.eigvalsh(drawn)[:, 0]
    # The mean is inside of the edge, and an eigenvalue scatters by less than one sd.
    assert -least.mean() < math.sqrt(2.0 * side)
    assert least.std() < 1.01
    assert -least.min() < math.sqrt(2.0 * side) + 4.0


def corner(limit, generator, shapes):
    """A sum of all records at the clip, in one direction of what may be summed, with its noise."""
    sizes = [math.prod(shape) for shape in shapes.values()]
    direction = np.abs(generator.normal(size=sum(sizes)))
    whole = limit.contributions * direction / np.linalg.norm(direction)
    noised = whole + limit.sd * generator.normal(size=sum(sizes))
    pieces = np.split(noised, np.cumsum(sizes)[:-1])
    return {name: piece.reshape(s) for (name, s), piece in zip(shapes.items(), pieces, strict=True)}


@pytest.mark.parametrize("noise", [0.5, 13.0, 200.0])
def test_a_sum_of_all_records_at_the_clip_with_its_noise_is_taken(noise):
    generator = np.random.default_rng(0)
    signs = (Sign("count", total=600.0 * math.sqrt(5)), Sign("table"))
    limit = limit_of(300, 2.0, noise, 20, signs)
    for _ in range(1000):
        check(limit, corner(limit, generator, {"count": (5,), "table": (3, 5)}), "an answer")


@pytest.mark.parametrize("noise", [0.5, 13.0, 200.0])
@pytest.mark.parametrize("rank", [0, 1, 4])
def test_curvatures_that_noise_alone_makes_negative_are_taken(noise, rank):
    generator = np.random.default_rng(0)
    rows, columns, scale = triangle(4)
    limit = limit_of(300, 1.0, noise, 14, (Sign("curvature", 4),))
    for _ in range(500):
        root = generator.normal(size=(4, rank))
        clean = (root @ root.T)[rows, columns] * scale
        clean *= 300.0 / max(1e-9, np.linalg.norm(clean)) if rank else 0.0
        noised = clean + noise * generator.normal(size=10)
        check(limit, {"gradient": noise * generator.normal(size=4), "curvature": noised}, "it")


@pytest.mark.parametrize("far", [1.01, 1e6, 1e200, 1e305])
@pytest.mark.parametrize("shape", [(5,), (5, 3), ()])
def test_what_is_larger_is_refused_and_the_message_shows_no_number_of_it(far, shape):
    limit = limit_of(300, 1.0, 26.0, 20)
    most = 1.001 * (300.0 + 26.0 * math.sqrt(64.0 + 2.0 * math.log(20)))
    value = {"first": np.zeros(shape), "second": np.full(shape, 1e-300)}
    value["first"].reshape(-1)[0] = -far * most
    with pytest.raises(errors.ImpossibleAnswer) as caught:
        check(limit, value, "the answer")
    said = str(caught.value)
    assert said.startswith(f"the answer is larger than {most:.6g} in a number of 'first', expected")
    assert f"{far * most:.4g}"[:4] not in said.replace(f"{most:.6g}", "")


def test_many_small_numbers_count_together():
    limit = Limit(10.0, 0.0, 100)
    check(limit, {"a": np.full(100, 0.99)}, "the answer")
    with pytest.raises(errors.ImpossibleAnswer, match=r"is longer than 10.01, expected"):
        check(limit, {"a": np.full(50, 1.1), "b": np.full(50, 1.1)}, "the answer")


def test_an_array_alone_has_less_room_than_all_together():
    # All together: 10 + √400 + 8 = 38; of one number less, and of four 10 + √4 + 8 = 20.
    limit = limit_of(10, 1.0, 1.0, 400)
    value = {"gradient": np.full(4, 10.5), "curvature": np.zeros(396)}
    with pytest.raises(errors.ImpossibleAnswer, match=r"is longer than 20.02 in 'gradient'"):
        check(limit, value, "the answer")
    check(limit, {**value, "gradient": np.full(4, 9.5)}, "the answer")


def test_a_number_may_have_a_bound_of_its_own():
    limit = Limit(math.sqrt(2) * 3.0, 0.0, 2, each=3.0)
    check(limit, {"location": np.array([3.0, -3.0])}, "the answer")
    with pytest.raises(errors.ImpossibleAnswer, match=r"larger than 3.003 in a number"):
        check(limit, {"location": np.array([3.2, 0.0])}, "the answer")


def test_counts_are_no_more_than_the_declared_records_and_not_below_noise():
    limit = limit_of(100, 5.0, 0.2, 4, (Sign("count", total=100.0),))
    check(limit, {"count": np.array([60.0, 0.0, -8.0, 40.0])}, "the answer")
    with pytest.raises(errors.ImpossibleAnswer, match=r"counts more than 116\.\d* in 'count'"):
        check(limit, {"count": np.full(4, 30.0)}, "the answer")
    with pytest.raises(errors.ImpossibleAnswer, match=r"is below -8\.\d* in a number of 'count'"):
        check(limit, {"count": np.array([10.0, 10.0, -9.5, 10.0])}, "the answer")


def test_a_curvature_bent_the_wrong_way_is_refused():
    rows, columns, scale = triangle(3)
    limit = limit_of(1000, 1.0, 1.0, 9, (Sign("curvature", 3),))
    for bent, refused in ((-9.0, False), (-13.0, True), (-500.0, True)):
        # Turned, so that no entry of the diagonal shows it.
        turn = np.linalg.qr(np.random.default_rng(4).normal(size=(3, 3)))[0]
        matrix = turn @ np.diag([bent, 50.0 - bent, 50.0 - bent]) @ turn.T
        assert matrix.diagonal().min() > 0.0
        value = {"curvature": matrix[rows, columns] * scale}
        if refused:
            with pytest.raises(errors.ImpossibleAnswer, match=r"has an eigenvalue below -11\."):
                check(limit, value, "the answer")
        else:
            check(limit, value, "the answer")


def test_of_many_matrices_each_is_looked_at():
    rows, columns, scale = triangle(2)
    limit = limit_of(1000, 1.0, 1.0, 9, (Sign("second", 2),))
    packed = np.tile((np.eye(2)[rows, columns] * scale), 3)
    check(limit, {"second": packed}, "the answer")
    packed[8] = -50.0
    with pytest.raises(errors.ImpossibleAnswer, match=r"eigenvalue below -\d.* in 'second'"):
        check(limit, {"second": packed}, "the answer")


def test_the_limit_of_a_sum_grows_as_contributions_and_as_the_root_of_noise():
    limit = Limit(3.0, 2.0, 4)
    assert limit.of_sum(4) == pytest.approx(1.001 * (12.0 + 2.0 * 2.0 * 10.0))
    assert limit.of_sum(4, 9.0) == pytest.approx(1.001 * (12.0 + 6.0 * 2.0 * 10.0))


def test_what_is_not_clipped_has_no_limit():
    assert limit_of(300, math.inf, 0.0, 20) is None


def test_an_answer_of_another_form_is_left_to_whoever_reads_it():
    limit = Limit(10.0, 0.0, 2, signs=(Sign("a"), Sign("b", 2)))
    check(limit, {}, "the answer")
    check(limit, {"a": np.zeros((0, 3)), "b": np.zeros(4)}, "the answer")
