"""Defines an audit's result: one finding a check, and the verdict over all of them."""

from collections.abc import Iterable
from typing import Any, NamedTuple

__all__ = ["Finding", "as_dict", "has_failed", "row", "unchecked", "verdict"]

_WORDS = {True: "holds", False: "FAILS", None: "NOT CHECKED"}


class Finding(NamedTuple):
    """The outcome of one check.

    Attributes:
      layer: "price", "client", "sums", "worst", "one table", "replay", "sampler", "profile" or "canaries".
      check: what was checked, in a few words.
      passed: whether it holds; None where there is no verdict, which is no pass.
      figure: the numbers that were found, as a line of text.
      meaning: in words, what the outcome says about the claim.
      numbers: the same figures for programs; JSON values.
    """

    layer: str
    check: str
    passed: bool | None
    figure: str
    meaning: str
    numbers: dict[str, Any] = {}  # noqa: RUF012 -- never written to


def has_failed(findings: Iterable[Finding]) -> bool:
    """Says whether any check failed; what is only reported does not count.

    >>> has_failed(
    ...     [Finding("replay", "keys", True, "", ""), Finding("canaries", "one", None, "", "")]
    ... )
    False
    """
    return any(finding.passed is False for finding in findings)


def unchecked(findings: Iterable[Finding]) -> list[Finding]:
    """Lists the checks that came to no verdict; canaries never do.

    >>> [finding.check for finding in unchecked([Finding("replay", "keys", None, "", "")])]
    ['keys']
    """
    return [f for f in findings if f.passed is None and f.layer != "canaries"]


def verdict(finding: Finding) -> str:
    """Returns the verdict in a word or two."""
    return "report only" if finding.layer == "canaries" else _WORDS[finding.passed]


def as_dict(finding: Finding) -> dict[str, Any]:
    """Returns a finding as JSON values."""
    return {**finding._asdict(), "verdict": verdict(finding)}


def row(finding: Finding) -> tuple[str, str, str, str, str]:
    """Returns a finding as the cells of a table."""
    return finding.layer, finding.check, finding.figure, verdict(finding), finding.meaning
