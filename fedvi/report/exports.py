"""Writes the files of a report, each completely or not at all."""

import hashlib
import io
import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from fedvi import errors
from fedvi.report import contents as values
from fedvi.report import page, spreadsheets
from fedvi.report.contents import Contents

__all__ = ["FORMATS", "write"]

FORMATS = ("html", "md", "json", "csv")
"""The formats of a report."""

_NAMES = (
    *("report.html", "report.md", "report.json"),
    *("coefficients.csv", "rounds.csv", "sites.csv", "shifts.csv", "privacy.csv"),
)
# In a report's folder: the SHA-256 of each file that was written there, one a line.
_WRITTEN = ".fedvi-report"
_OF_SITES = ("answers", "charged", "missed", "added", "removed", "records", "share")


def write(contents: Contents, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Writes a report, in the place of one that was written there before.

    Files of an earlier report in formats not written now are removed, since they may be of another run. No
    file is lost that was changed since, or that is not of a report.

    Files: ``report.html``, ``report.md``, ``report.json``, and as CSV ``coefficients.csv``,
    ``rounds.csv``, ``sites.csv``, ``shifts.csv`` and ``privacy.csv``.

    Args:
      folder: created if it does not exist.
      formats: of ``FORMATS``.

    Returns:
      The paths of all files.

    Raises:
      ConfigError: a file cannot be written, or would be lost, or a package is not installed.
    """
    texts: dict[str, str] = {}
    if "html" in formats or "md" in formats:
        report = page.said(contents)
        if "html" in formats:
            texts["report.html"] = page.html(report)
        if "md" in formats:
            texts["report.md"] = page.markdown(report)
    if "json" in formats:
        plain = values.as_dict(contents)
        texts["report.json"] = json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False)
        texts["report.json"] += "\n"
    if "csv" in formats:
        texts |= _tables(contents)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        record = folder / _WRITTEN
        known = (
            set(record.read_bytes().decode("ascii", "replace").split())
            if record.exists()
            else set()
        )
        known |= {_digest(text.encode()) for text in texts.values()}
        for name in texts:
            _check_own(folder / name, known)
        _replace(record, "\n".join(sorted(known)) + "\n")
        for name in set(_NAMES) - texts.keys():
            path = folder / name
            if path.is_file() and _digest(path.read_bytes()) in known:
                path.unlink()
        for name, text in texts.items():
            _replace(folder / name, text)
    except OSError as error:
        raise errors.ConfigError(
            f"--out {folder} cannot be written: {error.strerror}", "name a folder of yours"
        ) from None
    return [folder / name for name in texts]


def _tables(contents: Contents) -> dict[str, str]:
    names = [row.name for row in contents.coefficients]
    found = {
        "coefficients.csv": _csv(values.Coefficient._fields, contents.coefficients),
        "rounds.csv": _csv(
            values.Round._fields,
            [
                [" ".join(cell) if isinstance(cell, tuple) else cell for cell in row]
                for row in contents.rounds
            ],
        ),
        "sites.csv": _csv(
            ["site", *_OF_SITES],
            [
                [site.name, *(getattr(site, field) for field in _OF_SITES)]
                for site in contents.sites
            ],
        ),
        "privacy.csv": _csv(
            ["site", "relation", "epsilon", "delta", "releases", "mark", "ledger_head"],
            [
                [site.name, relation, epsilon, delta, site.charged, contents.mark, site.head]
                for site in contents.sites
                for relation, epsilon, delta in site.stated
                or (("add_remove", float("inf"), None), ("substitute", float("inf"), None))
            ],
        ),
    }
    moved = [site for site in contents.sites if site.shifts is not None]
    if moved:
        found["shifts.csv"] = _csv(
            ["without_site", "coefficient", "shift_in_sds"],
            [
                [site.name, name, shift]
                for site in moved
                for name, shift in zip(names, site.shifts or (), strict=False)
            ],
        )
    return found


def _csv(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Writes rows as CSV; a missing value is an empty cell, and a float64 keeps every bit."""
    text = io.StringIO()
    spreadsheets.write(text, [names, *rows])
    return text.getvalue()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _check_own(path: Path, known: Collection[str]) -> None:
    """Refuses to replace what somebody else wrote, or changed."""
    if path.exists() and _digest(path.read_bytes()) not in known:
        raise errors.ConfigError(
            f"{path} is not as `fedvi report` left it, and is not overwritten",
            "it was changed or signed, is another file, or is from an earlier version: move it away, or "
            "give another --out",
        )


def _replace(path: Path, text: str) -> None:
    scratch = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        scratch.write_text(text, encoding="utf-8", newline="\n")
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)
