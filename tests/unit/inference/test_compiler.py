"""The check of the compiler: its programs, what it refuses, and when a pass is kept."""

import re

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
import pytest

from fedvi import errors
from fedvi.inference import compiler
from fedvi.run import compiled

RFC_8439_KEY = np.frombuffer(bytes(range(32)), "<u4")
RFC_8439_NONCE = np.frombuffer(bytes.fromhex("000000090000004a00000000"), "<u4")
# RFC 8439, §2.3.2.
RFC_8439_BLOCK = bytes.fromhex(
    "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
    "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
)


@pytest.fixture(autouse=True)
def forgetful(monkeypatch):
    """Nothing that this process found before, or keeps, reaches a test."""
    monkeypatch.setattr(compiler, "_found", {})
    monkeypatch.setattr(compiler, "_keeper", None)
    monkeypatch.setattr(compiler, "KNOWN_WRONG", {})


def program(run=lambda x: x * 2.0, rows=100, **more):
    x = np.arange(1.0, rows + 1.0, dtype=np.float32)
    return compiler._Program("rows doubled", run, (x,), (2.0 * x.astype(float),), **more)


def swapped(x):
    """Doubles all rows, and gives row 7 the number of row 8."""
    return (x * 2.0).at[7].set(2.0 * x[8])


def few(monkeypatch, *programs):
    """Puts other programs in place of the battery; returns the list of checks made."""
    made = []

    def given():
        made.append(len(programs))
        return iter(programs)

    monkeypatch.setattr(compiler, "_programs", given)
    return made


def test_what_the_check_finds_here_is_what_is_known_of_this_compiler():
    """jaxlib up to 0.10 is wrong where a product is reduced at once; without ynn fusions all are right."""
    version = tuple(int(part) for part in jaxlib.version.__version__.split(".")[:2])
    right = version >= (0, 11) or bool(
        re.search(r"ynn_fusion_type=(\s|$)", compiler._key(compiler._device()))
    )
    found = compiler.faults()
    assert bool(found) is not right, found
    assert all(f.startswith("a matrix times each of 40,000 rows of 3, then ") for f in found)


def test_the_battery_has_few_programs_around_the_sizes_at_which_programs_are_split():
    programs = list(compiler._programs())
    assert 25 <= len(programs) <= 40
    assert len({one.name for one in programs}) == len(programs)
    for one in programs:
        if one.roundings:  # a relative error is bounded where no sum cancels
            assert all((array >= 0).all() for array in (*jax.tree.leaves(one.given), *one.right))
    largest = [max(array.size for array in one.right) for one in programs]
    assert min(largest) < 2**15 < 2**18 < max(largest)


def test_the_reference_for_chacha20_gives_the_block_of_the_rfc():
    found = compiler._by_numpy(RFC_8439_KEY, np.array([1], np.uint32), RFC_8439_NONCE)
    assert found.astype("<u4").tobytes() == RFC_8439_BLOCK


def test_a_row_with_the_numbers_of_another_row_is_found_and_named():
    (found,) = compiler._faults([program(), program(swapped)])
    assert found == "rows doubled: 1 row is wrong, the first is row 7"


@pytest.mark.parametrize("roundings", [0, 1000])
def test_nan_is_wrong(roundings):
    (found,) = compiler._faults([program(lambda x: x * jnp.float32(jnp.nan), roundings=roundings)])
    assert found == "rows doubled: 100 rows are wrong, the first is row 0"


def test_rounding_is_no_fault_and_more_than_rounding_is_one():
    def off(by):
        return program(lambda x: x * jnp.float32(2.0 + by), roundings=4)

    assert compiler._faults([off(2.0**-22)]) == ()
    assert len(compiler._faults([off(2.0**-19)])) == 1


def test_the_users_own_settings_do_not_change_the_check():
    seen = []

    def run(x):
        seen.append((isinstance(x, jax.core.Tracer), x.dtype))
        return x * 2.0

    with jax.disable_jit(), jax.enable_x64(True):
        assert compiler._faults([program(run)]) == ()
    assert seen == [(True, jnp.float32)]


def test_a_compiler_with_faults_is_refused_by_name(monkeypatch):
    made = few(monkeypatch, program(swapped))
    for _ in range(2):
        with pytest.raises(errors.PrivacyError, match="row 7") as caught:
            compiler.check()
    assert f"jaxlib {jaxlib.version.__version__} on cpu" in caught.value.message
    assert "pip install" in caught.value.hint
    assert made == [1], "compiled and compared once a process"


def test_a_release_known_to_be_wrong_is_refused_even_if_it_passes(monkeypatch):
    monkeypatch.undo()
    made = few(monkeypatch, program())
    monkeypatch.setattr(jaxlib.version, "__version__", "0.10.2")
    with pytest.raises(errors.PrivacyError, match=r"jaxlib 0\.10\.2 on cpu .* issue 39103"):
        compiler.check()
    assert made == []


def test_a_first_check_under_jit_is_refused_and_a_later_one_is_not(monkeypatch):
    few(monkeypatch, program())

    @jax.jit
    def step(x):
        compiler.check()
        return x

    with pytest.raises(errors.PrivacyError, match="under a JAX transformation"):
        step(1.0)
    compiler.check()
    step(1.0)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    before = jax.config.jax_compilation_cache_dir
    tmp_path.chmod(0o700)
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    compiled.keep_passes()
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)


def again(monkeypatch):
    """Checks as another process would."""
    monkeypatch.setattr(compiler, "_found", {})
    compiler.check()


def test_a_pass_is_kept_for_the_same_compiler_processor_and_flags(monkeypatch, folder):
    made = few(monkeypatch, program())
    again(monkeypatch)
    again(monkeypatch)
    assert len(made) == 1
    assert [file.name[:9] for file in folder.glob("*.ok")] == ["compiler-"]
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    again(monkeypatch)
    assert len(made) == 2
    monkeypatch.setattr(compiled, "_processors", lambda: "another machine")
    again(monkeypatch)
    assert len(made) == 3
    monkeypatch.setattr(jaxlib.version, "__version__", "0.11.99")
    again(monkeypatch)
    assert len(made) == 4
    monkeypatch.setattr(compiler, "_EDITION", 0)
    again(monkeypatch)
    assert len(made) == 5


@pytest.mark.parametrize("text", ["", "the compiler has passed", "\N{NULL}", "\udcff"])
def test_a_file_with_other_words_counts_as_nothing(monkeypatch, folder, text):
    made = few(monkeypatch, program())
    again(monkeypatch)
    (file,) = folder.glob("*.ok")
    file.write_bytes(text.encode(errors="surrogateescape"))
    again(monkeypatch)
    assert len(made) == 2


def test_a_pass_in_a_folder_that_others_may_write_to_counts_as_nothing(monkeypatch, folder):
    made = few(monkeypatch, program())
    again(monkeypatch)
    folder.chmod(0o777)
    again(monkeypatch)
    assert len(made) == 2
    folder.chmod(0o700)


def test_faults_are_never_kept(monkeypatch, folder):
    few(monkeypatch, program(swapped))
    with pytest.raises(errors.PrivacyError):
        again(monkeypatch)
    assert list(folder.glob("*.ok")) == []
    made = few(monkeypatch, program())
    again(monkeypatch)
    assert made == [1]
