"""`fedvi report --audit`: an audit is quoted where a promise is stated, and only that of the same study."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedvi import errors
from fedvi.cli._audit_quoted import quoted
from fedvi.report import sheets
from fedvi.report.contents import Contents, Statement

DIGEST = "ab" * 32


def audit(folder: Path, **changed: Any) -> Path:
    findings = [
        {"layer": "price", "check": "one", "passed": True},
        {"layer": "replay", "check": "two", "passed": True},
    ]
    path = folder / "audit.json"
    path.write_text(
        json.dumps({"fedvi": "0.1.0", "digest": DIGEST, "findings": findings} | changed)
    )
    return path


def test_what_was_found_and_planted_is_told(tmp_path: Path) -> None:
    planted = {"found": 30, "missed": [], "not_shown": ["a", "b"]}
    told = quoted(audit(tmp_path, self_test=planted), DIGEST)
    assert told == (
        "fedvi audit 0.1.0 found nothing in 2 checks, which proves nothing; of 30 faults planted "
        "beforehand it found 30; 2 more were not planted, by reason of study or time, or broke the study"
    )


def test_an_audit_without_a_self_test_says_so(tmp_path: Path) -> None:
    assert quoted(audit(tmp_path), DIGEST).endswith(
        "no faults were planted to see whether it would find them"
    )


def test_what_failed_was_missed_or_was_not_checked_is_named(tmp_path: Path) -> None:
    findings = [
        {"layer": "price", "check": "one", "passed": False},
        {"layer": "worst", "check": "two", "passed": None},
    ]
    planted = {"found": 1, "missed": ["a-fault"], "not_shown": []}
    told = quoted(audit(tmp_path, findings=findings, self_test=planted), DIGEST)
    assert "FAILED: one" in told
    assert "not checked: two" in told
    assert "of 2 faults planted beforehand it found 1 and missed a-fault" in told


def test_where_no_fault_was_tried_nothing_is_known(tmp_path: Path) -> None:
    planted = {"found": 0, "missed": [], "not_shown": ["a"]}
    told = quoted(audit(tmp_path, self_test=planted), DIGEST)
    assert told.endswith(
        "no fault could be planted, so that nothing is known of what it would find"
    )


def test_a_digest_that_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="of a study with digest 5"):
        quoted(audit(tmp_path, digest=5), DIGEST)


def test_the_audit_of_another_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="of a study with digest abab"):
        quoted(audit(tmp_path), "cd" * 32)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"study": "open", "findings": []}'])
def test_what_is_no_audit_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "audit.json"
    path.write_text(text)
    with pytest.raises(errors.ConfigError, match="no audit can be read"):
        quoted(path, DIGEST)


def test_a_statement_quotes_it_beside_its_claims() -> None:
    fields: dict[str, Any] = dict.fromkeys(Statement._fields, "")
    lists = ("claims", "facts", "exceeded", "declared", "assumed", "excluded")
    statement = Statement(**fields | dict.fromkeys(lists, ()) | {"protected": False})
    contents = Contents(**dict.fromkeys(Contents._fields, ""))._replace(
        audit="fedvi audit found nothing"
    )
    sheet = sheets._sheet(contents, statement, "key")
    assert ("audit", "fedvi audit found nothing") in sheet.facts
    plain = sheets._sheet(contents._replace(audit=""), statement, "key")
    assert "audit" not in dict(plain.facts)
