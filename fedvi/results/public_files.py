"""Checks whether a file that is about to be read as public belongs to a site.

It catches mistakes, not intent: a copy with one line removed is not recognised.
"""

import contextlib
import filecmp
import os
from collections.abc import Iterator
from pathlib import Path

from fedvi import errors
from fedvi.study.config import Study

__all__ = ["check"]


def check(study: Study, run: Path, file: Path, called: str) -> None:
    """Refuses a site's own records where a file's figures or cells are shown without protection.

    A study does not say which folder it was in. So each `[[clients]].data` is looked for in the folder of
    the run, its parents, and the working directory; and in the parents of the file itself, if all sites'
    files are there. Without privacy there is nothing to refuse.

    Args:
      study: of the run.
      run: the folder of the run.
      file: the supposedly public file.
      called: the option or argument that named it, for errors.

    Raises:
      ConfigError: it is a site's file, a part of a site's folder, or has the same bytes as one of these.
    """
    if not study.privacy.private or not os.path.exists(file):
        return
    for name, data in _sites(study, run, file):
        parts = _parts(data)
        if any(os.path.samefile(file, part) for part in (data, *parts)):
            why = f"which is the file of {name!r}: `[[clients]].data` of the study names it"
        elif any(_same_bytes(file, part) for part in parts):
            why = f"which has the same bytes as the file of {name!r}, {data}"
        else:
            continue
        raise errors.ConfigError(
            f"{called} {file}: {why}. The run protects these records, and what is shown of this file is "
            "not protected",
            "name a file that is public, or your own, with no record of any site; rename it if it only has "
            "the name of a site's file",
        )


def _sites(study: Study, run: Path, file: Path) -> Iterator[tuple[str, Path]]:
    """Yields every client and its file, or its folder of files, at each place where it exists."""
    files = [(client.name, Path(client.data)) for client in study.clients if client.data]
    here = run.resolve()
    bases = dict.fromkeys([here, *here.parents, Path.cwd()])
    for base in bases:
        yield from ((name, base / path) for name, path in files if os.path.exists(base / path))
    for base in file.resolve().parents:
        if base not in bases and all(os.path.exists(base / path) for _, path in files):
            yield from ((name, base / path) for name, path in files)


def _parts(data: Path) -> list[Path]:
    """Returns the files of a site: one, or those of a folder of Parquet."""
    return sorted(data.glob("*.parquet")) if data.is_dir() else [data]


def _same_bytes(one: Path, other: Path) -> bool:
    with contextlib.suppress(OSError):  # an unreadable file cannot be compared
        size = one.stat().st_size
        return size == other.stat().st_size > 0 and filecmp.cmp(one, other, shallow=False)
    return False
