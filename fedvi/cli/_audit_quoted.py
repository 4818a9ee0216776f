"""What a report and its statements quote of `fedvi audit STUDY.toml --json`."""

import json
from pathlib import Path
from typing import Any

from fedvi import errors

__all__ = ["quoted"]

_MAKE = "make it with `fedvi audit STUDY.toml --self-test --json > audit.json`, of the study that was run"


def quoted(path: Path, digest: str) -> str:
    """Returns an audit's outcome in a sentence or two.

    Args:
      path: of the JSON that an audit printed.

    Raises:
      ConfigError: the file is no audit, or that of another study.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        found, of = report["findings"], str(report["digest"])
        lines = _lines(report, found)
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise errors.ConfigError(
            f"no audit can be read at --audit {path}: {type(error).__name__}", _MAKE
        ) from error
    if of != digest:
        raise errors.ConfigError(
            f"--audit {path} is of a study with digest {of[:12]}, expected {digest[:12]}", _MAKE
        )
    return "; ".join(lines)


def _lines(report: dict[str, Any], found: list[dict[str, Any]]) -> list[str]:
    failed = [part["check"] for part in found if part["passed"] is False]
    unchecked = [part["check"] for part in found if part["passed"] is None]
    checks = sum(part["passed"] is not None for part in found)
    by = f"fedvi audit {report['fedvi']}"
    lines = [
        f"{by} FAILED: {', '.join(failed)}"
        if failed
        else f"{by} found nothing in {checks} checks, which proves nothing"
    ]
    if unchecked:
        lines.append(f"not checked: {', '.join(unchecked)}")
    tested = report.get("self_test")
    if tested is None:
        lines.append("no faults were planted to see whether it would find them")
        return lines
    planted = tested["found"] + len(tested["missed"])
    if not planted:
        lines.append("no fault could be planted, so that nothing is known of what it would find")
        return lines
    lines.append(
        f"of {planted} faults planted beforehand it found {tested['found']}"
        + (f" and missed {', '.join(tested['missed'])}" if tested["missed"] else "")
    )
    if tested["not_shown"]:
        lines.append(
            f"{len(tested['not_shown'])} more were not planted, by reason of study or time, or broke "
            "the study"
        )
    return lines
