"""Keeps the programs that JAX compiled in tests, for the next run.

The folder outlives clones, so that a second run, or one of another clone, compiles next to nothing.
"""

import hashlib
import os
import platform
import shutil
import sys
from pathlib import Path

__all__ = ["folder"]

_ROOT = Path(__file__).resolve().parent.parent
_KEPT = 3


def folder() -> Path:
    """The folder for this lock, this Python and this processor.

    Programs are machine code: those of another processor may use instructions that this one lacks.
    Folders of other locks go, but for the newest few.
    """
    lock = (_ROOT / "requirements-dev.lock").read_bytes()
    key = hashlib.sha256(
        b"\0".join((lock, sys.version.encode(), platform.machine().encode(), _processor()))
    )
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "fedvi-tests")
    chosen = caches / key.hexdigest()[:16]
    chosen.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.utime(chosen)
    for old in sorted(caches.iterdir(), key=_used, reverse=True)[_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
    return chosen


def _used(folder: Path) -> float:
    """When a folder was last chosen; of one that another process has just removed, never."""
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _processor() -> bytes:
    """What the processor can do, as Linux says it; its name elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return platform.processor().encode()
    return b"\n".join(
        sorted({line for line in lines if line.startswith((b"flags", b"Features", b"model name"))})
    )
