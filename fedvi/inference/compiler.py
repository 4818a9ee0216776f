"""Checks that the compiler computes right numbers: programs that privacy bounds rest on, against NumPy.

jaxlib 0.10.2 gave some rows of a batch the gradients of other rows (jax-ml/jax issue 39103), so one record
moved a release by many times its bound, and no error was raised. To add a program to the check, see
`_programs`, and increase `_EDITION`.
"""

import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
from jax import lax

from fedvi import errors
from fedvi.privacy import random

__all__ = ["KNOWN_WRONG", "Keeper", "check", "faults", "keep_with"]

KNOWN_WRONG = {
    ("0.10.2", "cpu"): "jax-ml/jax issue 39103: rows of a batch get numbers of other rows"
}
"""(Version of jaxlib, platform) → why it is refused, whatever the check finds."""

_EDITION = 1
"""Version of the programs; a pass of another edition does not count."""

_HINT = (
    "jax and jaxlib 0.10.1 are right if fedvi is imported before JAX computes anything, or if the variable "
    "XLA_FLAGS is --xla_cpu_experimental_ynn_fusion_type= before Python starts; with Python 3.12 or later "
    "0.11.2 is right in any case: pip install 'jax==0.11.2' 'jaxlib==0.11.2'"
)
# Variables that change what XLA compiles, or where.
_FLAGS = ("JAX_", "XLA_", "CUDA_", "NVIDIA_", "ROCM_", "NPROC")
_NOT_FLAGS = ("JAX_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE")


class Keeper(Protocol):
    """Keeps for later processes which compilers have passed."""

    def known(self, key: str) -> bool:
        """Whether a pass is kept under ``key``."""
        ...

    def keep(self, key: str) -> None:
        """Keeps a pass under ``key``; never called for a compiler with faults."""
        ...


class _Program(NamedTuple):
    """A program, and what it computes.

    Attributes:
      name: completes the sentence "…: n rows are wrong".
      run: the program; jitted here.
      given: its arguments.
      right: the results in the order of the program's leaves.
      roundings: at least the number of roundings behind each result; 0 if the results are exact. No sum
        cancels, because no number given is negative, so each rounding adds a relative error of at most
        2⁻²⁴, or 2⁻⁵³ where ``is_double``.
      is_double: runs in float64.
      by_rows: the results' first axis is that of the rows.
      may_shorten: accelerators may round the factors of products to 10 bits.
    """

    name: str
    run: Callable[..., Any]
    given: tuple[Any, ...]
    right: tuple[np.ndarray, ...]
    roundings: int = 0
    is_double: bool = False
    by_rows: bool = True
    may_shorten: bool = False


_keeper: Keeper | None = None
_found: dict[str, tuple[str, ...]] = {}
_lock = threading.Lock()


def check() -> None:
    """Refuses to go on if the compiler of the default device computes wrong numbers.

    The programs run once a process and kind of device, and only if no pass was kept (`keep_with`).

    Raises:
      PrivacyError: names the version of jaxlib, the platform and what is wrong; or a first call was
        made under a JAX transformation.
    """
    device = _device()
    told = f"jax {jax.__version__} with jaxlib {jaxlib.version.__version__} on {device.platform}"
    known = KNOWN_WRONG.get((jaxlib.version.__version__, device.platform))
    if known is not None:
        raise errors.PrivacyError(f"{told} computes wrong numbers: {known}", _HINT)
    key = _key(device)
    found = _found.get(key)
    if found is None:
        random.refuse_a_trace("the compiler was checked", "call `compiler.check()` before `jit`")
        with _lock:
            found = _found[key] = _found[key] if key in _found else _checked(key)
    if found:
        listed = "".join(f"\n- {fault}" for fault in found)
        raise errors.PrivacyError(f"{told} computes wrong numbers:{listed}", _HINT)


def faults() -> tuple[str, ...]:
    """Compiles and runs all programs on the default device; returns a sentence for each that is wrong."""
    return _faults(_programs())


def keep_with(keeper: Keeper | None) -> None:
    """Sets where passes are kept; None keeps none."""
    global _keeper
    _keeper = keeper


def _checked(key: str) -> tuple[str, ...]:
    keeper = _keeper
    if keeper is not None and keeper.known(key):
        # What was kept is about the flags in the environment, which XLA may have read before they were set.
        return _faults(_fresh())
    found = faults()
    if keeper is not None and not found:
        keeper.keep(key)
    return found


def _key(device: Any) -> str:
    """Returns a text that differs where another compiler, device or flag may give another program."""
    flags = sorted(
        f"{name}={value}"
        for name, value in os.environ.items()
        if name.startswith(_FLAGS) and not name.startswith(_NOT_FLAGS)
    )
    return "\n".join(
        [
            f"edition {_EDITION}",
            f"jax {jax.__version__}",
            f"jaxlib {jaxlib.version.__version__}",
            f"{device.platform} {device.device_kind} {device.client.platform_version}",
            *flags,
        ]
    )


def _device() -> Any:
    chosen = jax.config.jax_default_device  # type: ignore[attr-defined]
    if chosen is None or isinstance(chosen, str):
        return jax.local_devices(backend=chosen)[0]
    return chosen


def _faults(programs: Iterable[_Program]) -> tuple[str, ...]:
    shortens = _device().platform != "cpu"
    return tuple(told for one in programs if (told := _fault(one, shortens)))


def _fault(program: _Program, shortens: bool) -> str:
    """Returns what is wrong with a program's results, or an empty text."""
    # As a caller's own settings would have it, arguments might be rounded, or nothing compiled.
    with (
        jax.enable_x64(program.is_double),
        jax.disable_jit(False),
        jax.default_matmul_precision("default"),
    ):
        try:
            made = jax.tree.leaves(jax.jit(program.run)(*program.given))
            got = [np.asarray(result) for result in made]
        except jax.errors.JaxRuntimeError as error:
            return f"{program.name}: cannot run: {str(error).splitlines()[0]}"
    most = program.roundings * 2.0 ** (-53 if program.is_double else -24)
    if shortens and program.may_shorten:
        most += program.roundings * 2.0**-10
    if [result.shape for result in got] != [right.shape for right in program.right]:
        return f"{program.name}: the results have wrong shapes"
    wrong = [_wrong(*pair, most) for pair in zip(got, program.right, strict=True)]
    if program.by_rows:
        wrong = [np.any([one.reshape(len(one), -1).any(axis=1) for one in wrong], axis=0)]
    every = np.concatenate([one.ravel() for one in wrong])
    if not every.any():
        return ""
    count, unit = int(every.sum()), "row" if program.by_rows else "number"
    are = f"{unit} is" if count == 1 else f"{unit}s are"
    return f"{program.name}: {count:,} {are} wrong, the first is {unit} {every.argmax():,}"


def _wrong(got: np.ndarray, right: np.ndarray, error: float) -> np.ndarray:
    if not error:
        return np.asarray(got != right)
    # Negated, so that NaN is wrong.
    return np.asarray(~(np.abs(got.astype(np.float64) - right) <= error * right))


def _fresh() -> Iterator[_Program]:
    """Yields a few programs that no cache holds, of those that were wrong most often."""
    rows = 40_000 + secrets.randbelow(1 << 12)
    yield from _matrix_then_reduction(np.random.default_rng(48), rows, 3)


def _programs() -> Iterator[_Program]:
    """Yields the programs.

    XLA for CPUs splits a program at 128 KiB of numbers, 2¹⁵ in float32, and its faults were there: so sizes
    lie around 2¹⁵ rows, and rows × numbers of a row between 2¹⁵ and 2²¹. They lie around 1,024 rows and
    2¹⁶ as well, fedvi's own blocks, with rows that fill vectors of 8 and 64 and rows that do not.
    """
    numbers = np.random.default_rng(48)
    for rows, size in ((40_000, 3), (1_025, 64), (65_537, 2)):
        yield from _matrix_then_reduction(numbers, rows, size)
    yield _matrix_in_double(numbers, 16_385, 3)
    for rows, size in ((1_024, 20), (4_001, 7)):
        yield _triangle_gradient(numbers, rows, size)
    yield _triangle_norm(numbers, 1_023, 30)
    for rows, size in ((32_769, 3), (1_025, 64)):
        yield _regression_gradient(numbers, rows, size)
    yield _network_gradient(numbers, 8_191, 20, 7)
    yield _outer_products(numbers, 1_023, 20)
    yield _packed_triangles(numbers, 1_025, 20)
    yield _filled_triangles(numbers, 1_025, 20)
    for rows, size in ((65_537, 7), (1_025, 64), (17, 2_049)):
        yield _norms(numbers, rows, size)
    yield _norms(numbers, 16_385, 3, is_double=True)
    yield _weighted_sum(numbers, 65_600, 7)
    yield _clipped_block_sums(numbers, 65_536, 7)
    yield _block_products(numbers, 32_704, 7)
    yield _whole_sums(numbers, 65_537, 7)
    yield _gathered(numbers, 65_537, 3)
    yield _chacha20(numbers, 32_769)


def _some(numbers: Any, *shape: int, double: bool = False) -> np.ndarray:
    """Returns numbers from 1 to 2, of 10 bits, which no accelerator rounds."""
    return (1.0 + numbers.integers(0, 1024, shape) / 1024).astype(np.float64 if double else "f4")


def _wide(*arrays: np.ndarray) -> list[np.ndarray]:
    return [array.astype(np.float64) for array in arrays]


def _matrix_then_reduction(numbers: Any, rows: int, size: int) -> Iterator[_Program]:
    x, matrix = _some(numbers, rows, size), _some(numbers, size, size)
    products = x.astype(np.float64) @ matrix.T.astype(np.float64)
    for what, reduced, right in (
        ("the sum of squares", lambda row: (row**2).sum(), (products**2).sum(axis=1)),
        ("a sum", jnp.sum, products.sum(axis=1)),
        ("the largest", jnp.max, products.max(axis=1)),
    ):

        def run(matrix: Any, x: Any, reduced: Callable[[Any], Any] = reduced) -> Any:
            return jax.vmap(lambda row: reduced(matrix @ row))(x)

        yield _Program(
            f"a matrix times each of {rows:,} rows of {size}, then {what}",
            run, (matrix, x), (right,), roundings=6 * size + 8, may_shorten=True,
        )  # fmt: skip


def _matrix_in_double(numbers: Any, rows: int, size: int) -> _Program:
    x, matrix = _some(numbers, rows, size, double=True), _some(numbers, size, size, double=True)
    return _Program(
        f"a float64 matrix times each of {rows:,} rows of {size}, then the sum of squares",
        lambda matrix, x: jax.vmap(lambda row: ((matrix @ row) ** 2).sum())(x),
        (matrix, x), (((x @ matrix.T) ** 2).sum(axis=1),),
        roundings=12 * size + 16, is_double=True,
    )  # fmt: skip


class _Guide(NamedTuple):
    """Gradients for a guide N(·, L·Lᵀ), L = diag(scale)·(I + strict triangle): program and results."""

    run: Callable[..., Any]
    given: tuple[Any, ...]
    right: tuple[np.ndarray, np.ndarray]


def _guide(numbers: Any, rows: int, size: int) -> _Guide:
    """Returns the gradients of (x·L·ε + y)² / 2 for one vector that holds triangle and scale.

    L is made as NumPyro's ``scaled_unit_lower_cholesky`` is.
    """
    count = size * (size - 1) // 2
    params, eps = _some(numbers, count + size), _some(numbers, size)
    x, y = _some(numbers, rows, size), _some(numbers, rows)
    row, column = np.tril_indices(size, -1)
    places = (row * size + column).astype(np.int32)

    def loss(params: Any, eps: Any, x: Any, y: Any) -> Any:
        flat = jnp.zeros(size * size, jnp.float32).at[places].add(params[:count])
        unit = flat.reshape(size, size) + jnp.eye(size, dtype=jnp.float32)
        lower = unit * params[count:, None]
        return 0.5 * (x @ (lower @ eps) + y) ** 2

    def run(params: Any, eps: Any, x: Any, y: Any) -> Any:
        return jax.vmap(jax.grad(loss), in_axes=(None, None, 0, 0))(params, eps, x, y)

    wide, eps64, x64, y64 = _wide(params, eps, x, y)
    unit, scale = np.eye(size), wide[count:]
    unit[row, column] = wide[:count]
    signal = (x64 @ (scale * (unit @ eps64)) + y64)[:, None] * x64
    of_triangle = (signal * scale)[:, row] * eps64[column]
    return _Guide(run, (params, eps, x, y), (of_triangle, signal * (unit @ eps64)))


def _triangle_gradient(numbers: Any, rows: int, size: int) -> _Program:
    guide = _guide(numbers, rows, size)
    return _Program(
        f"the gradients of {rows:,} records for a scaled Cholesky factor of {size}",
        guide.run, guide.given, (np.concatenate(guide.right, axis=1),),
        roundings=8 * size + 32, may_shorten=True,
    )  # fmt: skip


def _triangle_norm(numbers: Any, rows: int, size: int) -> _Program:
    guide = _guide(numbers, rows, size)
    squares = sum((part**2).sum(axis=1) for part in guide.right)
    return _Program(
        f"the norms of the gradients of {rows:,} records for a scaled Cholesky factor of {size}",
        lambda *given: jnp.sqrt((guide.run(*given) ** 2).sum(axis=1)),
        guide.given, (np.sqrt(squares),),
        roundings=size * size + 16 * size + 64, may_shorten=True,
    )  # fmt: skip


def _regression_gradient(numbers: Any, rows: int, size: int) -> _Program:
    params, x, y = _some(numbers, size), _some(numbers, rows, size), _some(numbers, rows)
    wide, x64, y64 = _wide(params, x, y)

    def loss(params: Any, x: Any, y: Any) -> Any:
        return 0.5 * (x @ params + y) ** 2

    return _Program(
        f"the gradients of {rows:,} records for a regression with {size} coefficients",
        lambda params, x, y: jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, x, y),
        (params, x, y), ((x64 @ wide + y64)[:, None] * x64,),
        roundings=2 * size + 8, may_shorten=True,
    )  # fmt: skip


def _network_gradient(numbers: Any, rows: int, size: int, hidden: int) -> _Program:
    """The loss is v·(x·W + b)², with one bias b for all hidden units."""
    x, first, last = (
        _some(numbers, rows, size),
        _some(numbers, size, hidden),
        _some(numbers, hidden),
    )
    bias = _some(numbers, 1)[0]
    x64, first64, last64, bias64 = _wide(x, first, last, bias)

    def loss(params: Any, x: Any) -> Any:
        first, bias, last = params
        return (x @ first + bias) ** 2 @ last

    inner = x64 @ first64 + bias64
    signal = 2.0 * inner * last64
    return _Program(
        f"the gradients of {rows:,} records for a network of {size}, {hidden} and 1 units",
        lambda params, x: jax.vmap(jax.grad(loss), in_axes=(None, 0))(params, x),
        ((first, bias, last), x),
        (x64[:, :, None] * signal[:, None, :], signal.sum(axis=1), inner**2),
        roundings=6 * (size + hidden) + 16, may_shorten=True,
    )  # fmt: skip


def _outer_products(numbers: Any, rows: int, size: int) -> _Program:
    x, y = _some(numbers, rows, size), _some(numbers, rows, size)
    x64, y64 = _wide(x, y)
    return _Program(
        f"{rows:,} outer products of {size} by {size}, and their lower triangles",
        lambda x, y: (jnp.einsum("bi,bj->bij", x, y), jnp.tril(x[:, :, None] * y[:, None, :])),
        (x, y), (x64[:, :, None] * y64[:, None, :], np.tril(x64[:, :, None] * y64[:, None, :])),
        roundings=2,
    )  # fmt: skip


def _packed_triangles(numbers: Any, rows: int, size: int) -> _Program:
    x, y = _some(numbers, rows, size), _some(numbers, rows, size)
    row, column = np.tril_indices(size)
    x64, y64 = _wide(x, y)
    return _Program(
        f"{rows:,} outer products of {size} by {size}, their triangles as vectors, and their sum",
        lambda x, y: (
            (packed := (x[:, :, None] * y[:, None, :])[:, row, column]), packed.sum(axis=1)
        ),
        (x, y), (x64[:, row] * y64[:, column], (x64[:, row] * y64[:, column]).sum(axis=1)),
        roundings=size * size,
    )  # fmt: skip


def _filled_triangles(numbers: Any, rows: int, size: int) -> _Program:
    row, column = np.tril_indices(size)
    packed = _some(numbers, rows, len(row))
    filled = np.zeros((rows, size, size))
    filled[:, row, column] = packed
    return _Program(
        f"{rows:,} vectors as triangles of {size}",
        lambda packed: jax.vmap(
            lambda one: jnp.zeros((size, size), jnp.float32).at[row, column].set(one)
        )(packed),
        (packed,), (filled,),
    )  # fmt: skip


def _norms(numbers: Any, rows: int, size: int, is_double: bool = False) -> _Program:
    x = _some(numbers, rows, size, double=is_double)
    return _Program(
        f"the norms of {rows:,} rows of {size}{' in float64' if is_double else ''}",
        lambda x: jnp.sqrt((x * x).sum(axis=1)),
        (x,), (np.sqrt((x.astype(np.float64) ** 2).sum(axis=1)),),
        roundings=size * (2 if is_double else 1) + 8, is_double=is_double,
    )  # fmt: skip


def _weighted_sum(numbers: Any, rows: int, size: int) -> _Program:
    x, weights = _some(numbers, rows, size), _some(numbers, rows)
    x64, weights64 = _wide(x, weights)
    return _Program(
        f"a weighted sum of {rows:,} rows of {size}",
        lambda weights, x: jnp.matmul(weights[:, None].T, x, precision=lax.Precision.HIGHEST),
        (weights, x), ((weights64 @ x64)[None],),
        roundings=rows, by_rows=False,
    )  # fmt: skip


def _clipped_block_sums(numbers: Any, rows: int, size: int) -> _Program:
    """Rows are clipped to norm 1 and added up block by block, as a solver adds up a batch."""
    block = 1_024
    x = _some(numbers, rows, size)
    x64 = x.astype(np.float64)

    def run(x: Any) -> Any:
        blocks = x.reshape(-1, block, size)
        weights = 1.0 / jnp.sqrt((blocks * blocks).sum(axis=2))

        def add(total: Any, at: Any) -> tuple[Any, Any]:
            product = jnp.matmul(
                weights[at][:, None].T, blocks[at], precision=lax.Precision.HIGHEST
            )
            return total + product[0], product[0]

        return lax.scan(add, jnp.zeros(size, jnp.float32), jnp.arange(len(blocks), dtype=jnp.int32))

    clipped = x64 / np.sqrt((x64**2).sum(axis=1, keepdims=True))
    sums = clipped.reshape(-1, block, size).sum(axis=1)
    return _Program(
        f"{rows:,} rows of {size}, clipped and added up in blocks of {block:,}",
        run, (x,), (sums.sum(axis=0), sums),
        roundings=block + rows // block + 2 * size + 16, by_rows=False,
    )  # fmt: skip


def _block_products(numbers: Any, rows: int, size: int) -> _Program:
    """Sums of outer products, one for each block of 64 rows."""
    x, y = _some(numbers, rows // 64, 64, size), _some(numbers, rows // 64, 64, size)
    x64, y64 = _wide(x, y)
    return _Program(
        f"the sums of outer products of {size} by {size} over {rows // 64:,} blocks of 64 rows",
        lambda x, y: jnp.einsum("nbi,nbj->nij", x, y, precision=lax.Precision.HIGHEST),
        (x, y), (x64.transpose(0, 2, 1) @ y64,),
        roundings=64 + 8,
    )  # fmt: skip


def _whole_sums(numbers: Any, rows: int, size: int) -> _Program:
    x = _some(numbers, rows, size)
    whole = np.rint(x * np.float32(64.0)).astype(np.int32)  # exact in float32
    return _Program(
        f"{rows:,} rows of {size}, rounded to whole numbers and added up",
        lambda x: (
            (made := jnp.rint(x * np.float32(64.0)).astype(jnp.int32)),
            made.sum(axis=0, dtype=jnp.int32),
        ),
        (x,), (whole, whole.sum(axis=0)),
        by_rows=False,
    )  # fmt: skip


def _gathered(numbers: Any, rows: int, size: int) -> _Program:
    x, at = _some(numbers, rows, size), numbers.integers(-9, rows + 9, rows).astype(np.int32)
    return _Program(
        f"{rows:,} rows of {size} gathered by their numbers",
        lambda x, at: jnp.take(x, at, axis=0, mode="clip"),
        (x, at), (x[np.clip(at, 0, rows - 1)],),
    )  # fmt: skip


def _chacha20(numbers: Any, blocks: int) -> _Program:
    words = numbers.integers(0, 2**32, 11).astype(np.uint32)
    counters = (np.arange(blocks) + 2**32 - 7).astype(np.uint32)
    return _Program(
        f"{blocks:,} blocks of ChaCha20",
        lambda key, counters, nonce: jax.vmap(random.block, in_axes=(None, 0, None))(
            key, counters, nonce
        ),
        (words[:8], counters, words[8:]), (_by_numpy(words[:8], counters, words[8:]),),
    )  # fmt: skip


def _by_numpy(key: np.ndarray, counters: np.ndarray, nonce: np.ndarray) -> np.ndarray:
    """Returns blocks of ChaCha20, uint32 [counters, 16]; word by word as in RFC 8439, §2.3."""
    constants = np.frombuffer(b"expand 32-byte k", "<u4")
    start = [np.full_like(counters, word) for word in (*constants, *key)]
    start += [counters, *(np.full_like(counters, word) for word in nonce)]
    state = [word.copy() for word in start]
    columns = [(i, i + 4, i + 8, i + 12) for i in range(4)]
    diagonals = [(i, (i + 1) % 4 + 4, (i + 2) % 4 + 8, (i + 3) % 4 + 12) for i in range(4)]
    for _ in range(10):
        for a, b, c, d in columns + diagonals:
            for into, other, turned, by in (
                (a, b, d, 16),
                (c, d, b, 12),
                (a, b, d, 8),
                (c, d, b, 7),
            ):
                state[into] += state[other]
                state[turned] ^= state[into]
                state[turned] = state[turned] << np.uint32(by) | state[turned] >> np.uint32(32 - by)
    return np.stack([new + old for new, old in zip(state, start, strict=True)], axis=1)
