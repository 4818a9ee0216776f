"""Compiled programs, kept on disk for the next process."""

import contextlib
import glob
import os
import re
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache as jax_cache

__all__ = ["SWITCH", "compilation_cache", "keep_programs"]

SWITCH = "FEDVI_COMPILATION_CACHE"  # a folder, or "off"; commands keep their programs by default
_MOST_BYTES = 512 * 2**20
_KEPT_SHARE = 0.75  # of it after old programs went, so that they do not go one by one
_FAILED = re.compile(
    r"Error (reading|writing) persistent compilation cache entry for '([^']*)': (.*)", re.DOTALL
)


def compilation_cache(folder: str | os.PathLike[str] | None = None) -> Path:
    """Lets JAX keep what it compiles, so that a later process which fits the same model starts at once.

    What is kept are programs, with the constants of model and guide: shapes, prior scales, arrays given to
    ``DPSVI`` as keywords. Records are arguments of these programs and are not in them, nor are keys:
    ``DPSVI`` refuses to draw any where they would be compiled in. Models that close over records keep them
    in memory and here; pass records as arguments.

    Programs that were not used for longest are removed where all take more than 512 MiB.

    Args:
      folder: where; left out, ``fedvi/jax`` in the user's folder of caches, which nobody else may read.

    Returns:
      The folder.

    Raises:
      OSError: it cannot be made, or is somebody else's, or others may write to it: who writes there runs
        code in this process.
    """
    chosen = _own_folder() if folder is None else Path(folder)
    chosen.mkdir(mode=0o700, parents=True, exist_ok=True)
    chosen = chosen.resolve()  # a link could lead elsewhere after it was looked at
    _check_own(chosen)
    _forget_oldest(chosen)
    jax.config.update("jax_compilation_cache_dir", str(chosen))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    # What was compiled before has fixed that there is no cache.
    jax_cache.reset_cache()
    return chosen


def keep_programs(tell: Callable[[str], object]) -> None:
    """Does what ``compilation_cache`` does, for a command that works without it as well.

    Nothing is done where the variable `SWITCH` is "off", or JAX was given a folder of its own. Where
    programs cannot be kept, for example on a full disk, that is told once and nothing is kept from then on;
    an entry that was not written whole, then or by a process that was killed, is removed.

    Args:
      tell: is given the sentence.
    """
    wanted = os.environ.get(SWITCH, "")
    if wanted.lower() in ("off", "0", "false", "no") or _given():
        return
    try:
        folder = compilation_cache(wanted or None)
    except (OSError, RuntimeError) as error:  # Path.home knows of no home
        tell(_sentence(error))
        return
    shown = warnings.showwarning

    def show(message: Any, *others: Any, **more: Any) -> None:
        failed = _FAILED.match(str(message))
        if failed is None:
            shown(message, *others, **more)
            return
        # Kept as it is, every later process would fail on it, since JAX writes no entry over another.
        for entry in folder.glob(f"{glob.escape(failed[2])}-*"):
            with contextlib.suppress(OSError):
                entry.unlink()
        if failed[1] == "writing":
            jax.config.update("jax_enable_compilation_cache", False)
            jax_cache.reset_cache()
            tell(_sentence(failed[3]))

    warnings.showwarning = show
    warnings.filterwarnings("always", message="Error (reading|writing) persistent compilation")


def _given() -> bool:
    """Whether JAX has a folder already, by its own variable or by who runs a command in his process."""
    return bool(jax.config.jax_compilation_cache_dir)  # type: ignore[attr-defined]


def _sentence(why: object) -> str:
    return f"compiled programs are not kept, and the next start takes longer: {why}"


def _own_folder() -> Path:
    """Makes the user's folder of fedvi's caches, private to him, and names the one within."""
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
            # They could put another folder in its place.
            raise PermissionError(f"others may write to {above}; `chmod o-w` it")


def _forget_oldest(folder: Path) -> None:
    """Removes what was not used for longest, until the rest fits."""
    entries = []
    for entry in folder.glob("*-cache"):
        with contextlib.suppress(OSError):  # another process may remove it now
            found = entry.stat()
            # Many disks note a reading once a day only, and some never.
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
