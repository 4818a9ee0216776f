"""Large arrays in windows: the same bits, and no page of a mapped file stays."""

import mmap
import operator
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from fedvi.expfam import diagonal_gaussian, tree
from fedvi.expfam.base import blocks
from fedvi.expfam.gaussian import GaussianEta
from fedvi.expfam.mapped_arrays import WINDOW, elementwise, evict, is_finite, windows
from fedvi.store import blobs
from fedvi.transport import bundle

SIZE = 1_000_003  # 8 MB in seven windows, the last of them cut short


@pytest.fixture
def mapped(tmp_path: Path) -> np.ndarray:
    """Numbers in a file."""
    numbers = np.random.default_rng(0).normal(size=SIZE)
    blobs.Blobs(tmp_path / "blobs").put({"ab" * 32: numbers.view(np.uint8)})
    return blobs.read(tmp_path / "blobs", "ab" * 32, 8 * SIZE).view(np.float64)


def resident(array: np.ndarray) -> int:
    """How many bytes of the map that holds an array are in this process's memory."""
    start = int(array.__array_interface__["data"][0])
    account = Path("/proc/self/smaps").read_text()
    for first, last, text in re.findall(
        r"^([0-9a-f]+)-([0-9a-f]+) (.*?)(?=^[0-9a-f]+-|\Z)", account, re.M | re.S
    ):
        if int(first, 16) <= start < int(last, 16):
            return int(re.search(r"^Rss:\s+(\d+) kB", text, re.M)[1]) << 10
    raise AssertionError("no map holds it")


def test_what_is_computed_in_windows_has_the_same_bits(mapped):
    other = np.random.default_rng(1).normal(size=SIZE)
    for function in (operator.add, operator.sub, np.maximum):
        expected = function(np.array(mapped), other)
        assert elementwise(function, mapped, other).tobytes() == expected.tobytes()
    scaled = tree.add_scaled((mapped,), (other,), 0.3)[0]
    assert scaled.tobytes() == (mapped + other * 0.3).tobytes()
    assert (
        tree.total([(mapped,), (other,)], (other,))[0].tobytes()
        == ((other + mapped) + other).tobytes()
    )


@pytest.mark.parametrize("shape", [(), (0,), (3,), (700, 700)])
def test_windows_cover_every_number_once(shape):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(np.float64)
    pieces = [piece for (piece,) in windows(array)]
    assert all(piece.nbytes <= WINDOW for piece in pieces)
    assert all(np.shares_memory(piece, array) for piece in pieces if array.size)
    np.testing.assert_array_equal(np.concatenate([p.ravel() for p in pieces]), array.ravel())


def test_a_number_that_is_not_finite_is_found_in_any_window():
    array = np.zeros(SIZE)
    assert is_finite(array)
    for place in (0, SIZE // 2, SIZE - 1):
        array[place] = np.nan
        assert not is_finite(array)
        array[place] = 0.0


@pytest.mark.nightly(only=("add", "total"))
@pytest.mark.skipif(sys.platform != "linux", reason="what is resident is read from /proc")
@pytest.mark.parametrize("what", ["add", "total", "finite", "proper", "blocks", "pieces", "digest"])
def test_what_was_read_of_a_mapped_file_leaves_the_memory(mapped, what):
    family = diagonal_gaussian(SIZE)
    eta = GaussianEta(mapped, mapped)
    tensors = bundle.of_eta(eta).tensors
    mapped.sum()
    assert resident(mapped) > 7 << 20
    evict(mapped)
    {
        "add": lambda: tree.add(eta, eta),
        "total": lambda: tree.total([eta, eta], eta),
        "finite": lambda: tree.is_finite(eta),
        "proper": lambda: family.is_proper(eta._replace(J=np.ones(SIZE))),
        "blocks": lambda: [pair.h.sum() + pair.J.sum() for (pair,) in blocks(family, eta)],
        "pieces": lambda: list(bundle.pieces(tensors, 5)),
        "digest": lambda: bundle.of_eta(eta),
    }[what]()
    assert resident(mapped) <= 1 << 20


def test_a_map_that_can_be_written_to_keeps_what_was_written(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(4 * WINDOW))
    with path.open("rb") as file:
        private = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)
    private[7] = 1
    evict(private)
    assert private[7] == 1
