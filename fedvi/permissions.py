"""Refuses keys and states that other users of this machine can reach, by the rule that ssh has for keys."""

import os
import shlex
import stat
from pathlib import Path

from fedvi import errors

__all__ = ["check"]

# This user may read somebody else's file by its group, such as a Kubernetes secret that belongs to root.
_OWN, _FOREIGN = 0o077, 0o007


def check(path: Path, refusal: type[errors.FedviError] = errors.IdentityError) -> None:
    """Checks that only this user can reach a file or folder, or only its group if somebody else owns it.

    Args:
      path: of a file or folder that exists; a symbolic link is followed.
      refusal: the error to raise.

    Raises:
      FedviError: as ``refusal``; names the mode, the expected mode and the command that sets it.
      OSError: there is no such file.
    """
    found = path.stat()
    is_own = found.st_uid == os.geteuid()
    mode, forbidden = stat.S_IMODE(found.st_mode), _OWN if is_own else _FOREIGN
    if not mode & forbidden:
        return
    whose = "this user" if is_own else f"uid {found.st_uid}"
    who = "o" if not is_own else "go"
    hint = f"chmod {who}= {shlex.quote(str(path))}"
    inside = "name a new folder inside it, which fedvi makes private"
    if stat.S_ISDIR(found.st_mode):
        # A folder for everybody's files, such as /tmp, stays as it is.
        hint = inside if mode & stat.S_ISVTX else f"{hint}; or {inside}"
    raise refusal(
        f"{path} belongs to {whose} and has mode {mode:04o}, so that others can read or change it, "
        f"expected {mode & ~forbidden:04o}",
        hint,
    )
