"""Keeps compiled programs on disk for later processes."""

import contextlib
import glob
import hashlib
import os
import platform
import re
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache as jax_cache

from fedvi.inference import compiler

__all__ = ["SWITCH", "compilation_cache", "keep_passes", "keep_programs"]

SWITCH = "FEDVI_COMPILATION_CACHE"  # a folder, or "off"; commands keep their programs by default
_MOST_BYTES = 512 * 2**20
_KEPT_SHARE = 0.75  # of _MOST_BYTES after a clean-up, so that programs are not removed one by one
_FAILED = re.compile(
    r"Error (reading|writing) persistent compilation cache entry for '([^']*)': (.*)", re.DOTALL
)


def compilation_cache(folder: str | os.PathLike[str] | None = None) -> Path:
    """Makes JAX store its compiled programs, so that a later process with the same model starts at once.

    Stored programs contain the constants of model and guide: shapes, prior scales, arrays passed to
    ``DPSVI`` as keywords. They do not contain records, which are their arguments. Nor do they contain keys:
    ``DPSVI`` refuses to draw keys where they would be compiled in. A model that closes over records keeps
    them in memory and in these files; pass records as arguments.

    If all programs take more than 512 MiB, the least recently used are removed.

    Args:
      folder: for the programs; by default ``fedvi/jax`` in the user's cache folder, private to the user.

    Returns:
      The folder.

    Raises:
      OSError: the folder cannot be made, belongs to another user, or others may write to it, which would
        let them run code in this process.
    """
    chosen = _own_folder() if folder is None else Path(folder)
    chosen.mkdir(mode=0o700, parents=True, exist_ok=True)
    chosen = chosen.resolve()  # a link could be redirected after the check
    _check_own(chosen)
    _forget_oldest(chosen)
    jax.config.update("jax_compilation_cache_dir", str(chosen))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    # An earlier compilation has fixed that there is no cache.
    jax_cache.reset_cache()
    keep_passes()
    return chosen


def keep_programs(tell: Callable[[str], object]) -> None:
    """Calls ``compilation_cache`` for a command that also works without it.

    Does nothing if the variable `SWITCH` is "off"; if JAX was given a folder of its own, only passes of
    `compiler.check` are kept, in that folder. If programs cannot
    be stored, for example on a full disk, ``tell`` is called once and nothing more is stored. An entry that
    was not fully written, then or by a killed process, is removed.

    Args:
      tell: called with a sentence.
    """
    wanted = os.environ.get(SWITCH, "")
    if wanted.lower() in ("off", "0", "false", "no"):
        return
    if _given():
        keep_passes()
        return
    try:
        folder = compilation_cache(wanted or None)
    except (OSError, RuntimeError) as error:  # Path.home found no home
        tell(_sentence(error))
        return
    shown = warnings.showwarning

    def show(message: Any, *others: Any, **more: Any) -> None:
        failed = _FAILED.match(str(message))
        if failed is None:
            shown(message, *others, **more)
            return
        # JAX does not overwrite an entry, so every later process would fail on this one.
        for entry in folder.glob(f"{glob.escape(failed[2])}-*"):
            with contextlib.suppress(OSError):
                entry.unlink()
        if failed[1] == "writing":
            jax.config.update("jax_enable_compilation_cache", False)
            jax_cache.reset_cache()
            tell(_sentence(failed[3]))

    warnings.showwarning = show
    warnings.filterwarnings("always", message="Error (reading|writing) persistent compilation")


def keep_passes() -> None:
    """Keeps passes of `compiler.check` beside the compiled programs, wherever JAX keeps these.

    A pass is a file named by a hash of the compiler's key and of this machine's processors. None is read
    from, or written to, a folder that others may write to.
    """
    compiler.keep_with(_Passes())


class _Passes:
    """The `compiler.Keeper` of `keep_passes`. What cannot be read or written counts as not kept."""

    def known(self, key: str) -> bool:
        file = _pass_file(key)
        try:
            return file is not None and file.read_text("utf-8") == _pass_text(key)
        except (OSError, ValueError):
            return False

    def keep(self, key: str) -> None:
        file = _pass_file(key)
        if file is None:
            return
        with contextlib.suppress(OSError):
            file.write_text(_pass_text(key), "utf-8")


def _pass_file(key: str) -> Path | None:
    folder = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if not folder:
        return None
    found = Path(folder).absolute()  # "gs://…" is no folder here, and is refused as missing
    try:
        _check_own(found)
    except OSError:
        return None
    return found / f"compiler-{hashlib.sha256(_pass_text(key).encode()).hexdigest()[:32]}.ok"


def _pass_text(key: str) -> str:
    return f"the compiler has passed fedvi's check\n{key}\n{_processors()}\n"


def _processors() -> str:
    """Returns what XLA's code for CPUs depends on: the processor, its features, and how many are usable."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    # Other lines, such as the frequency, change from call to call.
    told = {
        line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))
    }
    features = hashlib.sha256("\n".join(sorted(told)).encode()).hexdigest()
    return f"{platform.machine()} {platform.processor()} {usable} {features}"


def _given() -> bool:
    """Whether JAX has a folder already, from its own variable or from the calling program."""
    return bool(jax.config.jax_compilation_cache_dir)  # type: ignore[attr-defined]


def _sentence(why: object) -> str:
    return f"compiled programs are not kept, and the next start takes longer: {why}"


def _own_folder() -> Path:
    """Makes fedvi's cache folder, private to the user, and returns the path of JAX's within."""
    # A relative one is to be ignored (XDG Base Directory Specification).
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    own = Path(given if given.is_absolute() else Path.home() / ".cache", "fedvi")
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_own(own)
    return own / "jax"


def _check_own(folder: Path) -> None:
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise PermissionError(
            f"{folder} belongs to another user; a folder of your own can be named in {SWITCH}"
        )
    if stat.S_IMODE(found.st_mode) & 0o022:
        raise PermissionError(f"others may write to {folder}; `chmod go-w` it")
    for above in folder.absolute().parents:
        mode = above.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            # Others could put another folder in its place.
            raise PermissionError(f"others may write to {above}; `chmod o-w` it")


def _forget_oldest(folder: Path) -> None:
    """Removes the least recently used programs, until the rest fits."""
    entries = []
    for entry in folder.glob("*-cache"):
        with contextlib.suppress(OSError):  # another process may remove it now
            found = entry.stat()
            # Many disks update the access time only once a day, and some never.
            entries.append((max(found.st_atime, found.st_mtime), found.st_size, entry))
    left = sum(size for _, size, _ in entries)
    if left <= _MOST_BYTES:
        return
    for _, size, entry in sorted(entries):
        if left <= _KEPT_SHARE * _MOST_BYTES:
            break
        with contextlib.suppress(OSError):
            entry.unlink()
        left -= size
