"""Parts of a batch side by side: every row in one part, at most so many parts at a time, in their order."""

import threading
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvi.inference.parallel_parts import (
    PARTS,
    added_on_devices,
    compiled_calls,
    devices,
    on_devices,
    side_by_side,
    striped,
    thread_count,
)


@given(count=st.integers(1, 1000), parts=st.integers(1, 9), seed=st.integers(0, 3))
def test_every_row_is_in_one_part_and_no_filling_counts(count, parts, seed):
    generator = np.random.default_rng(seed)
    indices = generator.permutation(5000)[:count].astype(np.int32)
    mask = generator.random(count) < 0.7
    found = striped(indices, mask, parts)
    assert len(found) == parts
    length = 64 * -(-count // (64 * parts))  # whole groups of rows
    assert {(*rows.shape, *stands.shape) for rows, stands in found} == {(length,) * 2}
    kept = np.concatenate([rows[stands] for rows, stands in found])
    np.testing.assert_array_equal(np.sort(kept), np.sort(indices[mask]))
    assert sum(stands.sum() for _, stands in found) == mask.sum()


def test_rows_that_stand_in_an_order_are_spread_over_all_parts():
    parts = striped(np.arange(640, dtype=np.int32), np.ones(640, bool), 2)
    means = [rows[stands].mean() for rows, stands in parts]
    assert max(means) - min(means) <= 1.0


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_answers_come_in_order_and_few_parts_are_open(threads):
    taken, closed, most = 0, 0, 0

    def parts():
        nonlocal taken, most
        for index in range(20):
            taken += 1
            most = max(most, taken - closed)
            yield index

    def answer(index):
        time.sleep(0.001 * (index % 3))
        return index, threading.current_thread() is threading.main_thread()

    found = []
    for one in side_by_side(answer, parts(), threads):
        closed += 1
        found.append(one)
    assert found == [(index, threads == 1) for index in range(20)]
    assert most <= threads


def test_threads_are_computed_at_the_same_time():
    both = threading.Barrier(2, timeout=60.0)
    assert list(side_by_side(lambda _: both.wait() >= 0, range(4), 2)) == [True] * 4


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_part_has_the_precision_of_the_caller(threads, wide):
    """JAX's x64 mode is of a thread, and numbers would depend on how many threads there are."""
    with jax.enable_x64(wide):
        found = list(side_by_side(lambda _: jnp.zeros(1, float).dtype.itemsize, range(4), threads))
    assert found == [8 if wide else 4] * 4


@pytest.mark.parametrize("threads", [1, 2])
def test_what_a_part_raises_is_raised(threads):
    with pytest.raises(ZeroDivisionError):
        list(side_by_side(lambda part: 1 // part, [2, 1, 0, 5], threads))


def test_nothing_is_computed_of_no_parts():
    assert list(side_by_side(lambda part: part, [], 2)) == []


@pytest.mark.parametrize(
    ("processors", "threads"), [({0}, 1), ({0, 3}, 2), (set(range(64)), PARTS)]
)
def test_threads_are_the_processors_that_this_process_may_use(processors, threads, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: processors, raising=False)
    assert thread_count() == threads


@pytest.mark.parametrize(
    ("kind", "count", "threads"), [("gpu", 1, 2), ("gpu", 4, 8), ("cpu", 8, 8)]
)
def test_every_device_is_at_work(kind, count, threads, monkeypatch):
    found = [SimpleNamespace(platform=kind)] * count
    monkeypatch.setattr("fedvi.inference.parallel_parts.devices", lambda: found)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0}, raising=False)
    assert thread_count() == thread_count(most=None) == threads


def test_all_processors_may_be_asked_for(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert thread_count(most=None) == 64


def test_a_device_that_was_chosen_is_the_only_one_even_if_it_is_the_first(monkeypatch):
    (first,) = jax.local_devices()
    both = [first, SimpleNamespace(platform="cpu")]
    monkeypatch.setattr("jax.local_devices", lambda: both)
    assert devices() == both
    with jax.default_device(first):
        assert devices() == [first]


def test_arguments_that_jax_computes_with_differently_have_programs_of_their_own():
    prepared = compiled_calls(jax.jit(jnp.multiply))
    half = np.ones(3, np.float16)
    # Of a number without a type the product has the other's type.
    with jax.numpy_dtype_promotion("standard"):
        found = [prepared(half, scale)() for scale in (jnp.asarray(2.0), np.float32(2), 2.0, 3.0)]
    assert [str(result.dtype) for result in found] == ["float16", "float32", "float16", "float16"]
    assert [float(result[0]) for result in found] == [2.0, 2.0, 2.0, 3.0]


@pytest.mark.parametrize("wide", [False, True])
def test_parts_on_devices_are_compiled_once_and_in_this_thread(wide):
    threads, values = set(), [np.full(3, index, np.float32) for index in range(9)]

    def program(column, scale):
        threads.add(threading.get_ident())
        return (column * scale).astype(float)

    prepared = compiled_calls(jax.jit(program, static_argnames="scale"))
    with jax.enable_x64(wide):
        found = on_devices(lambda part: prepared(part, scale=2.0), values, 3)
        results = list(found)
    assert [float(result[0]) for result in results] == [2.0 * index for index in range(9)]
    assert {result.dtype.itemsize for result in results} == {8 if wide else 4}
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.int64])
def test_whole_numbers_of_parts_are_added_up(dtype):
    more = 2**40 if dtype == jnp.int64 else 0

    def total(index):
        with jax.enable_x64(dtype == jnp.int64):
            return jnp.stack([index, index**2]).astype(dtype) + jnp.asarray(more, dtype)

    found = np.asarray(jax.jit(lambda: added_on_devices(total, 7))())
    more *= 7
    np.testing.assert_array_equal(found, [21 + more, 91 + more])
    assert found.dtype == dtype


def test_floats_are_not_added_in_any_order():
    with pytest.raises(TypeError, match="float32"):
        added_on_devices(lambda index: jnp.zeros(2, jnp.float32), 3)


def test_without_affinity_all_processors_count(monkeypatch):
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert thread_count() == 1
