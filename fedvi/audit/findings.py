"""Defines an audit's result: one finding for each check, and the verdict over all of them."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

__all__ = [
    "Finding",
    "as_dict",
    "has_failed",
    "judged",
    "not_checked",
    "row",
    "unchecked",
    "verdict",
]

_WORDS = {True: "holds", False: "FAILS", None: "NOT CHECKED"}


class Finding(NamedTuple):
    """The outcome of one check.

    Attributes:
      layer: "price", "programs", "client", "sums", "worst", "one table", "replay", "sampler" or "profile".
      check: what was checked, in a few words.
      passed: whether it holds; None if there is no verdict, which is not a pass.
      figure: the measured numbers, as a line of text.
      meaning: the outcome's consequence for the claim, in words.
      numbers: the same figures for programs; JSON values.
    """

    layer: str
    check: str
    passed: bool | None
    figure: str
    meaning: str
    numbers: dict[str, Any] = {}  # noqa: RUF012 -- never written to


def judged(
    layer: str,
    check: str,
    passed: bool,
    figure: str,
    good: str,
    bad: str,
    numbers: Mapping[str, Any] = MappingProxyType({}),
) -> Finding:
    """Returns the finding of a check with a verdict; its meaning is ``good`` or ``bad``."""
    return Finding(layer, check, passed, figure, good if passed else bad, dict(numbers))


def not_checked(layer: str, check: str, why: str) -> Finding:
    """Returns the finding of a check that could not be made."""
    return Finding(layer, check, None, "not checked", why)


def has_failed(findings: Iterable[Finding]) -> bool:
    """Whether any check failed; a check without a verdict has not failed.

    >>> has_failed([Finding("replay", "keys", None, "", "")])
    False
    """
    return any(finding.passed is False for finding in findings)


def unchecked(findings: Iterable[Finding]) -> list[Finding]:
    """Lists the checks without a verdict.

    >>> [finding.check for finding in unchecked([Finding("replay", "keys", None, "", "")])]
    ['keys']
    """
    return [finding for finding in findings if finding.passed is None]


def verdict(finding: Finding) -> str:
    """Returns the verdict in a word or two."""
    return _WORDS[finding.passed]


def as_dict(finding: Finding) -> dict[str, Any]:
    """Returns a finding as JSON values."""
    return {**finding._asdict(), "verdict": verdict(finding)}


def row(finding: Finding) -> tuple[str, str, str, str, str]:
    """Returns a finding as the cells of a table."""
    return finding.layer, finding.check, finding.figure, verdict(finding), finding.meaning
