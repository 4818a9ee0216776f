"""Ledgers of versions that promised more than held are marked wherever they are read."""

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
    """As an earlier version wrote it."""
    return found._replace(fixed_sizes=False)


def charged(found: ledger.Header) -> ledger.Ledger:
    return ledger.charge(ledger.open_ledger(found), "run/0", found.planned)


def test_a_ledger_of_whole_batches_from_before_is_marked_and_one_from_now_is_not():
    now = header()
    assert now.fixed_sizes
    assert now.mark == ""
    lines = ledger.to_lines(charged(before(now)))
    assert "fixed_sizes" not in lines[0]
    read = ledger.from_lines(lines)
    assert read.header.mark == advisories.WHOLE_BATCHES
    again = ledger.from_lines(ledger.to_lines(charged(now)))
    assert again.header.mark == ""


@pytest.mark.parametrize(
    "settings",
    [
        {"sampler": "poisson", "batch": 10},
        {"sampler": "feistel", "batch": 10, "relation": "substitute"},
        {"sampler": "feistel", "batch": 50, "relation": "substitute"},
    ],
)
def test_sampled_batches_are_not_touched_and_written_as_before(settings):
    found = header(**settings)
    assert not found.fixed_sizes
    assert found.mark == ""


def test_vips_filled_its_batches_up_and_is_not_touched():
    plan = privacy.sgd(**PLAN, sampler="full", relation="add_remove")
    found = plan.open_runs(4, "vips").ledger.header
    assert not found.fixed_sizes
    assert found.mark == ""


def test_of_a_promise_under_substitute_the_other_relation_s_claim_is_marked():
    old = charged(before(header(relation="substitute")))
    priced = [accountants.pld(relation) for relation in events.RELATIONS]
    found = statement.claims(old, old.header.planned, 1e-5, priced)
    marks = {claim.relation: claim.mark for claim in found}
    assert marks == {"add_remove": advisories.WHOLE_BATCHES, "substitute": ""}


def test_the_command_line_says_it(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_text("\n".join(ledger.to_lines(charged(before(header())))) + "\n")
    for command in (["show"], ["verify"], ["verify", "--recompute"]):
        found = CliRunner().invoke(main, ["ledger", *command, str(path)])
        assert "FEDVI-2026-01" in found.output.replace("\n", " "), found.output


def kept_before(folder, monkeypatch, **settings):
    """Returns a plan of two runs whose ledger in ``folder`` an earlier version began."""
    plan = privacy.sgd(**PLAN, **settings, runs=2, ledger=fedvi.LedgerFolder(folder))
    made = descent.Header
    with monkeypatch.context() as earlier:
        earlier.setattr(descent, "Header", lambda **fields: before(made(**fields)))
        plan.open_runs(4).charge("init", "")
    return plan


def test_a_kept_ledger_from_before_is_not_continued(tmp_path, monkeypatch):
    plan = kept_before(tmp_path / "spent", monkeypatch, sampler="full", relation="add_remove")
    with pytest.raises(errors.LedgerError, match="is not continued: no guarantee under add_remove"):
        plan.open_runs(4)


@pytest.mark.parametrize("sampler", [{"sampler": "full"}, {"sampler": "feistel", "batch": 50}])
def test_a_kept_ledger_whose_promise_held_is_continued(tmp_path, monkeypatch, sampler):
    plan = kept_before(tmp_path / "spent", monkeypatch, relation="substitute", **sampler)
    plan.open_runs(4).charge("init", "")
    assert ledger.reservations(read_ledger(tmp_path / "spent")) == 2
    found = plan.open_runs(4).ledger
    assert found.header.mark == ""
    if sampler["sampler"] == "full":
        # What was released before is among what is claimed.
        (claim,) = statement.claims(
            found, found.header.planned, 1e-5, [accountants.pld("add_remove")]
        )
        assert claim.mark == advisories.WHOLE_BATCHES
    with pytest.raises(errors.PrivacyError):
        plan.open_runs(4).charge("init", "")
