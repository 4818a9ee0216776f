"""Objects that hold a secret: each exists once, and belongs to the process that made it.

A copy would count its own runs, and draw the same noise for other records; the difference of the two
results would then have no noise.
"""

import os
import secrets
from typing import Any, ClassVar, NamedTuple, NoReturn

from fedvi import errors

__all__ = ["Owned", "Process", "Unique", "not_copied", "this_process"]


class Process(NamedTuple):
    """What tells this process from every other.

    The number alone does not: it is 1 in each container. Not seen is a snapshot of a whole virtual machine
    that is restored twice, since the kernel's own memory is restored with it.

    Attributes:
      number: the process id, which another process may have in another container, or later.
      token: 128 random bits; a forked process draws others.
      boot, namespace, started: Linux's boot id, the name of the namespace that counts processes, and when
        the process started, in ticks after the boot; they differ even where a process was forked behind
        Python's back, or restored from a file. Empty on systems without /proc.
    """

    number: int
    token: bytes
    boot: bytes
    namespace: str
    started: bytes


def this_process() -> Process:
    """Returns what identifies the calling process; takes about 30 µs."""
    return Process(
        os.getpid(),
        _token,
        _read("/proc/sys/kernel/random/boot_id"),
        _namespace(),
        _started(_read("/proc/self/stat")),
    )


class Unique:
    """Base class of objects that exist once: they are neither copied nor pickled, by any library.

    ``copy``, ``pickle``, ``cloudpickle``, ``dill``, ``joblib``, ``multiprocessing`` and those built on them
    all ask an object for ``__reduce_ex__``, also where they only meet it in a closure, a bound method or a
    jitted function. ``__setstate__`` refuses what an older version pickled.
    """

    # Why there is one only, and what to do; for the error message.
    _why: ClassVar[str] = "both would draw the same noise, and count separately"
    _instead: ClassVar[str] = (
        "make another object there; with sgd(ledger=fedvi.LedgerFolder(…)) both share one count"
    )

    def __copy__(self) -> NoReturn:
        raise self._refusal("copied")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise self._refusal("copied")

    def __reduce__(self) -> NoReturn:
        raise self._refusal("pickled")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise self._refusal("pickled")

    def __getstate__(self) -> NoReturn:
        raise self._refusal("pickled")

    def __setstate__(self, state: Any) -> NoReturn:
        raise self._refusal("unpickled")

    def _refusal(self, what: str) -> errors.PrivacyError:
        return errors.PrivacyError(
            f"a {type(self).__name__} was {what}: {self._why}", self._instead
        )


class Owned(Unique):
    """Base class of objects that also refuse use by any process but the one that made them."""

    # None where an object came about without `__init__`: no process owns it.
    _owner: Process | None = None

    def __init__(self) -> None:
        self._owner = this_process()

    def _check_owner(self) -> None:
        if this_process() != self._owner:
            raise self._refusal(
                "used by a process that was forked off, restored, or did not make it"
            )


def not_copied(holder: object) -> errors.PrivacyError:
    """Returns the error for a tuple with a secret that is copied or pickled, for its ``__reduce_ex__``."""
    return errors.PrivacyError(
        f"a {type(holder).__name__} was copied or pickled: it holds a secret that serves once",
        "leave it in the object that made it",
    )


def _drawn_anew() -> None:
    global _token
    _token = secrets.token_bytes(16)


_token = secrets.token_bytes(16)
# Where processes cannot be forked, there is nothing to draw anew.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drawn_anew)


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _started(stat: bytes) -> bytes:
    # Field 22; the name of the program, field 2, may contain spaces and parentheses.
    fields = stat.rpartition(b")")[2].split()
    return fields[19] if len(fields) > 19 else b""


def _read(path: str) -> bytes:
    """Returns the start of a small file; nothing if it cannot be read."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(file, 4096)
    except OSError:
        return b""
    finally:
        os.close(file)
