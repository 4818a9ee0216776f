"""Writes the files of a report, each completely or not at all."""

import csv
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path

from fedvi import errors
from fedvi.report import contents as values
from fedvi.report import page, tables
from fedvi.report.contents import Contents

__all__ = ["FORMATS", "write"]

FORMATS = ("html", "md", "json", "csv")
"""The formats of a report."""

# File → the beginning that identifies a report, since the folder may contain other files of that name.
_BEGINNINGS = {
    "report.html": "<!DOCTYPE html>",
    "report.md": "# Report on ",
    "report.json": '{\n  "study": ',
    "coefficients.csv": "name,unit,mean,sd,",
    "rounds.csv": "version,rounds,clients,",
    "sites.csv": "site,answers,charged,",
    "shifts.csv": "without_site,coefficient,",
    "privacy.csv": "site,relation,epsilon,",
}
_OF_SITES = ("answers", "charged", "missed", "added", "removed", "records", "share")


def write(contents: Contents, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Writes a report; existing files are replaced as a whole.

    Files of an earlier report in formats not written now are removed, since they may be of another run. A
    file of the same name that is not a report stays.

    Files: ``report.html``, ``report.md``, ``report.json``, and as CSV ``coefficients.csv``,
    ``rounds.csv``, ``sites.csv``, ``shifts.csv`` and ``privacy.csv``.

    Args:
      folder: created if it does not exist.
      formats: of ``FORMATS``.

    Returns:
      The paths of all files.

    Raises:
      ConfigError: a file cannot be written, or a package is not installed.
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
        for name in _BEGINNINGS.keys() - texts:
            _remove(folder / name, _BEGINNINGS[name])
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
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([tables.inert(cell) for cell in row] for row in rows)
    return text.getvalue()


def _remove(path: Path, beginning: str) -> None:
    """Removes a file with this beginning."""
    if path.is_file():
        with path.open("rb") as file:
            known = file.read(len(beginning)) == beginning.encode()
        if known:
            path.unlink()


def _replace(path: Path, text: str) -> None:
    scratch = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        scratch.write_text(text, encoding="utf-8", newline="\n")
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)
