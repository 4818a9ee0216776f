"""Ledgers of versions that promised more than held are marked wherever they are read."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import fedvi
from fedvi import errors, privacy
from fedvi.cli.main import main
from fedvi.privacy import accountants, advisories, descent, events, ledger, statement
from fedvi.store.sqlite import read_ledger

PLAN = {"steps": 3, "max_records": 50, "epsilon": 1.0, "delta": 1e-5}


def header(**settings):
    usual = {"sampler": "full", "relation": "add_remove"}
    return privacy.sgd(**PLAN, **(usual | settings)).open_runs(4).ledger.header


def before(found: ledger.Header) -> ledger.Header:
    """As a version wrote it that knew no advisory."""
    return found._replace(fixed_sizes=False, rows_checked=False)


def unchecked(found: ledger.Header) -> ledger.Header:
    """As a version wrote it that knew FEDVI-2026-01 and none of the later ones."""
    return found._replace(rows_checked=False)


def charged(found: ledger.Header) -> ledger.Ledger:
    return ledger.charge(ledger.open_ledger(found), "run/0", found.planned)


def marks(found: ledger.Header) -> dict[str, str]:
    """The mark of a claim under each relation."""
    priced = [accountants.pld(relation) for relation in events.RELATIONS]
    claims = statement.claims(charged(found), found.planned, 1e-5, priced)
    return {claim.relation: claim.mark for claim in claims}


ROWS = advisories.UNCHECKED_ROWS
BOTH = f"{advisories.WHOLE_BATCHES}; {ROWS['add_remove']}"

KINDS = [
    {"sampler": "full"},
    {"sampler": "full", "relation": "substitute"},
    {"sampler": "poisson", "batch": 10},
    {"sampler": "feistel", "batch": 10, "relation": "substitute"},
    {"sampler": "feistel", "batch": 50, "relation": "substitute"},
]


@pytest.mark.parametrize("settings", KINDS)
def test_a_ledger_of_now_is_not_marked_and_says_that_rows_are_checked(settings):
    now = header(**settings)
    assert now.rows_checked
    assert now.fixed_sizes == (settings["sampler"] == "full")
    lines = ledger.to_lines(charged(now))
    assert '"rows_checked":true' in lines[0]
    read = ledger.from_lines(lines)
    assert read.header == now
    assert read.header.mark == ""


@pytest.mark.parametrize("settings", KINDS)
def test_a_ledger_from_before_rows_were_checked_is_marked_under_its_promise(settings):
    old = unchecked(header(**settings))
    lines = ledger.to_lines(charged(old))
    assert "rows_checked" not in lines[0]
    assert ledger.from_lines(lines).header.mark == ROWS[old.relation]


def test_claims_of_such_a_ledger_are_marked_under_both_relations():
    for relation in events.RELATIONS:
        assert marks(unchecked(header(relation=relation))) == ROWS


def test_a_ledger_from_before_all_advisories_has_the_marks_of_all():
    for relation in events.RELATIONS:
        assert marks(before(header(relation=relation))) == ROWS | {"add_remove": BOTH}


def test_what_moves_no_row_is_named_under_neither_relation_but_one():
    """A record that is replaced leaves all others in their rows, so batches of any size were right."""
    assert "FEDVI-2026-06" in ROWS["add_remove"]
    assert "FEDVI-2026-06" not in ROWS["substitute"]
    for mark in ROWS.values():
        assert "FEDVI-2026-05" in mark
        assert "FEDVI-2026-07" in mark


def test_the_numbers_of_all_marks_are_in_the_page_that_they_name():
    page = (Path(__file__).parents[3] / "SECURITY.md").read_text()
    for number in re.findall(
        r"FEDVI-\d+-\d+", " ".join((advisories.WHOLE_BATCHES, *ROWS.values()))
    ):
        assert f"### {number}:" in page


def test_vips_is_not_touched_and_written_as_before():
    plan = privacy.sgd(**PLAN, sampler="full", relation="add_remove")
    found = plan.open_runs(4, "vips").ledger.header
    assert not found.fixed_sizes
    assert not found.rows_checked
    assert found.mark == ""


def test_a_study_of_sites_is_not_taken_for_a_fit_alone_by_its_name():
    of_sites = before(header())._replace(client="north")
    assert marks(of_sites) == dict.fromkeys(events.RELATIONS, "")


def test_without_protection_there_is_nothing_to_mark():
    open_plan = {"steps": 3, "max_records": 50, "noise_multiplier": 0.0, "sampler": "full"}
    found = privacy.sgd(**open_plan).open_runs(4).ledger.header
    assert before(found).mark == ""


# First lines of ledgers as they were written at 5e395460, and before FEDVI-2026-01 was mended.
WRITTEN_BEFORE = [
    (
        '{"hash":"5a570d9138fbe8d65eb40da31806cd9590e8f52998c841c76c7d839b1553c061","header":{"accounta'
        'nt":"pld","client":"self","delta":1e-05,"disjoint":false,"epsilon":1.0,"fixed_sizes":true,"max'
        '_records":50,"note":"","planned":{"count":3,"inner":{"add_remove":1.0,"kind":"gaussian","noise'
        '_multiplier":6.465,"substitute":2.0},"kind":"repeated"},"protected":true,"records_public":fals'
        'e,"relation":"add_remove","rows_per_unit":null,"study":"dpsvi","study_digest":"1d277a4cbfb2fd0'
        '565e22338e4ed222e420b0afc48426bf9a0d5c767ae02fb09","table_distance":8.673617379884035e-19,"uni'
        't":"record","view":"message"}}'
    ),
    (
        '{"hash":"e6b326f42217c875c427b4dbf9d374ec551c24849711255179993bf5382c0014","header":{"accounta'
        'nt":"pld","client":"self","delta":1e-05,"disjoint":false,"epsilon":1.0,"max_records":50,"note"'
        ':"","planned":{"count":3,"inner":{"add_remove":1.0,"kind":"gaussian","noise_multiplier":6.465,'
        '"substitute":2.0},"kind":"repeated"},"protected":true,"records_public":false,"relation":"add_r'
        'emove","rows_per_unit":null,"study":"dpsvi","study_digest":"1d277a4cbfb2fd0565e22338e4ed222e42'
        '0b0afc48426bf9a0d5c767ae02fb09","table_distance":8.673617379884035e-19,"unit":"record","view":'
        '"message"}}'
    ),
]


@pytest.mark.parametrize(
    ("line", "mark"), [*zip(WRITTEN_BEFORE, [ROWS["add_remove"], BOTH], strict=True)]
)
def test_ledgers_of_earlier_versions_keep_their_bytes_and_hashes(line, mark):
    read = ledger.from_lines([line])
    assert ledger.to_lines(read) == [line]
    assert not read.header.rows_checked
    assert read.header.mark == mark


def test_the_command_line_says_it(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_text("\n".join(ledger.to_lines(charged(before(header())))) + "\n")
    for command in (["show"], ["verify"], ["verify", "--recompute"]):
        found = CliRunner().invoke(main, ["ledger", *command, str(path)])
        for number in ("01", "05", "06", "07"):
            assert f"FEDVI-2026-{number}" in found.output.replace("\n", " "), found.output


def kept_before(folder, monkeypatch, earlier, **settings):
    """Returns a plan of two runs whose ledger in ``folder`` an earlier version began."""
    usual = PLAN if "noise_multiplier" not in settings else {"steps": 3, "max_records": 50}
    plan = privacy.sgd(**usual, **settings, runs=2, ledger=fedvi.LedgerFolder(folder))
    made = descent.Header
    with monkeypatch.context() as patched:
        patched.setattr(descent, "Header", lambda **fields: earlier(made(**fields)))
        plan.open_runs(4).charge("init", "")
    return plan


@pytest.mark.parametrize("earlier", [before, unchecked])
@pytest.mark.parametrize("settings", KINDS)
def test_a_kept_ledger_from_before_is_not_continued(tmp_path, monkeypatch, settings, earlier):
    """It does not show whether its promise held, and a promise that may not hold gets no more runs."""
    plan = kept_before(tmp_path / "spent", monkeypatch, earlier, **settings)
    with pytest.raises(errors.LedgerError, match="is not continued: no guarantee") as caught:
        plan.open_runs(4)
    assert "add up the costs of both" in caught.value.hint
    assert ledger.reservations(read_ledger(tmp_path / "spent")) == 1


@pytest.mark.parametrize("earlier", [before, unchecked])
def test_a_kept_ledger_that_promises_nothing_is_continued(tmp_path, monkeypatch, earlier):
    settings = {"sampler": "full", "noise_multiplier": 0.0}
    plan = kept_before(tmp_path / "spent", monkeypatch, earlier, **settings)
    plan.open_runs(4).charge("init", "")
    found = read_ledger(tmp_path / "spent")
    assert ledger.reservations(found) == 2
    assert found.header == earlier(found.header)
    with pytest.raises(errors.BudgetExceeded):
        plan.open_runs(4).charge("init", "")


def test_a_kept_ledger_of_now_is_continued(tmp_path):
    plan = privacy.sgd(
        **PLAN, sampler="full", runs=2, ledger=fedvi.LedgerFolder(tmp_path / "spent")
    )
    for run in range(2):
        assert plan.open_runs(4).charge("init", "") == run
    assert plan.open_runs(4).ledger.header.rows_checked
    with pytest.raises(errors.BudgetExceeded):
        plan.open_runs(4).charge("init", "")
