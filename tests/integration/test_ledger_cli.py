"""`fedvi ledger`: an auditor recomputes what was stated, and sees every change."""

import json
import random

import pytest
from click.testing import CliRunner

from fedvi.cli.main import main
from fedvi.experiment import recompute
from fedvi.privacy import accountants, events, statement
from fedvi.privacy import ledger as ledgers
from fedvi.privacy.accountants import pld
from fedvi.store.sqlite import SqliteClientStore

# Full batches, which have a price in closed form; sampled ones are priced in one test.
ROUND = events.Gaussian(10.0)
PLANNED = events.repeat(ROUND, 8)
HEADER = ledgers.Header(
    "heart",
    "ab12",
    "north",
    "record",
    "substitute",
    "message",
    True,
    planned=PLANNED,
    epsilon=4.0,
    delta=1e-5,
    accountant="pld",
    table_distance=1e-12,
    disjoint=True,
    max_records=100,
)
BUDGET = ledgers.Budget(4.0, 1e-5, pld("substitute"))


def book(count=3, header=HEADER):
    found = ledgers.open_ledger(header)
    for number in range(count):
        found = ledgers.spend(found, f"north/{number}#0", ROUND, BUDGET)
    found = ledgers.seal(found, "north/0#0", "d" * 64)
    return ledgers.mark_sent(found, "north/0#0")


def run(*arguments):
    return CliRunner().invoke(main, ["ledger", *map(str, arguments)], catch_exceptions=False)


def written(path, found):
    path.write_text("\n".join(ledgers.to_lines(found)) + "\n", encoding="ascii")
    return path


@pytest.fixture
def file(tmp_path):
    return written(tmp_path / "north.jsonl", book())


@pytest.mark.parametrize(
    "event",
    [ROUND, events.PoissonSampled(0.1, events.Gaussian(3.0), overflow=1e-12)],
    ids=["full", "poisson"],
)
def test_recomputing_from_the_file_gives_the_stated_epsilon(tmp_path, event):
    planned = events.repeat(event, 8)
    stated_in = ledgers.open_ledger(HEADER._replace(planned=planned))
    file = written(tmp_path / "north.jsonl", stated_in)
    result = run("verify", file, "--recompute", "--json")
    assert result.exit_code == 0
    prices = json.loads(result.stdout)["ledgers"][0]["prices"]
    relations = [pld(relation) for relation in events.RELATIONS]
    for claim in statement.claims(stated_in, planned, 1e-5, relations):
        found = [
            price["epsilon"]
            for price in prices
            if (price["part"], price["accountant"], price["relation"])
            == ("planned", "pld", claim.relation)
        ]
        assert found == [claim.epsilon]
    assert {price["accountant"] for price in prices} == set(accountants.__all__)
    stated = [price for price in prices if price["stated"]]
    assert {(p["accountant"], p["relation"], p["budget"]) for p in stated} == {
        ("pld", "substitute", 4.0)
    }


def test_the_tables_show_what_was_done_and_against_what_budget(file):
    shown = run("show", file)
    assert shown.exit_code == 0
    for text in ("Ledger of north", "Gaussian noise 10", "sent", "reserved", "pld"):
        assert text in shown.stdout
    assert "north/2#0" in shown.stdout
    assert "north/1#0" not in run("show", file, "--last", 1).stdout
    listed = json.loads(run("show", file, "--json").stdout)[0]["releases"]
    grown = [row["epsilon"]["substitute"] for row in listed]
    assert grown == sorted(grown)
    assert "4 kept" in run("verify", file, "--recompute").stdout


def test_every_changed_byte_is_detected(file):
    generator = random.Random(0)
    content = file.read_bytes()
    whole = ledgers.from_lines(content.decode().split("\n")[:-1])
    for _ in range(400):
        place = generator.randrange(len(content))
        changed = bytearray(content)
        changed[place] ^= generator.randrange(1, 256)
        file.write_bytes(changed)
        (found,) = recompute.read(file)
        assert found.ledger is None, place
        assert found.problem
    file.write_bytes(content)
    assert recompute.read(file)[0].ledger == whole


def test_a_cut_file_is_detected_wherever_it_is_cut_or_by_its_anchor(file):
    content = file.read_bytes()
    seen = ledgers.anchor(book())
    for end in range(0, len(content), 7):
        file.write_bytes(content[:end])
        (found,) = recompute.read(file)
        assert found.ledger is None or found.ledger != book()
    lines = content.splitlines(keepends=True)
    for count in range(1, len(lines)):
        file.write_bytes(b"".join(lines[:count]))  # whole in itself
        assert run("verify", file).exit_code == 0
        cut = run("verify", file, "--anchor", str(seen))
        assert cut.exit_code == 1
        assert "were seen before" in cut.stdout
    file.write_bytes(content[:-1])
    assert "cut off" in run("verify", file).stdout


def test_an_anchor_that_was_printed_is_accepted_and_a_fork_is_not(file):
    printed = run("verify", file).stdout.strip().rpartition(" ")[2]
    assert run("verify", file, "--anchor", printed).exit_code == 0
    written(file, ledgers.seal(book(), "north/1#0", "e" * 64))
    assert run("verify", file, "--anchor", printed).exit_code == 0
    written(file, book(4))
    forked = run("verify", file, "--anchor", printed)
    assert forked.exit_code == 1
    assert "was seen before" in forked.stdout
    for wrong in ("x", "1:ab", f"-1:{'0' * 64}"):
        assert run("verify", file, "--anchor", wrong).exit_code == 2


def test_a_client_s_store_is_read_and_not_written(tmp_path):
    folder = tmp_path / "state"
    store = SqliteClientStore(folder, HEADER)
    longer = ledgers.spend(store.ledger, "north/0#0", ROUND, BUDGET)
    store.reserve(longer, "north/0#0", b"s" * 32, b"t")
    # While the client runs.
    for path in (folder, folder / "ledger.sqlite", tmp_path):
        (found,) = recompute.read(path)
        assert found.ledger == longer
    store.close()
    result = run("verify", folder)
    assert result.exit_code == 0
    assert str(ledgers.anchor(longer)) in result.stdout.replace("\n", "")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "empty"),
        (b"\n", "no JSON"),
        (b"PK\x03\x04\xff", "plain ASCII"),
        (b"SQLite format 3\x00 and more", "is a database"),
        (b"name,age\nx,3\n", "no JSON"),
        (b"[1]\n", "expected an object"),
    ],
)
def test_what_is_no_ledger_is_named(tmp_path, content, expected):
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    for command in ("show", "verify"):
        result = run(command, path)
        assert result.exit_code == 1
        assert expected in result.stdout


def test_a_place_without_ledgers_is_a_wrong_command_line(tmp_path):
    assert run("show", tmp_path).exit_code == 2
    assert run("verify", tmp_path / "none").exit_code == 2


def test_an_event_of_a_later_version_is_refused_by_its_entry(file):
    file.write_text(file.read_text().replace('"kind":"gaussian"', '"kind":"laplace"'))
    result = run("verify", file)
    assert result.exit_code == 1
    assert "laplace" in result.stdout


def test_several_ledgers_of_one_site_are_priced_together_and_one_bad_one_is_told(tmp_path):
    written(tmp_path / "one.jsonl", book())
    written(tmp_path / "two.jsonl", book(header=HEADER._replace(study="lungs")))
    written(tmp_path / "south.jsonl", book(header=HEADER._replace(client="south")))
    life = ledgers.open_ledger(ledgers.lifetime_header("north", "record", "substitute"))
    written(tmp_path / "life.jsonl", life)
    found = json.loads(run("verify", tmp_path, "--recompute", "--json").stdout)
    total = [
        price
        for price in found["totals"]
        if (price["accountant"], price["relation"]) == ("pld", "substitute")
    ]
    assert [price["part"] for price in total] == ["all 2 ledgers of north"]
    assert total[0]["epsilon"] >= pld("substitute").epsilon(events.repeat(ROUND, 6), 1e-5)
    (tmp_path / "two.jsonl").write_bytes(b"")
    result = run("verify", tmp_path)
    assert result.exit_code == 1
    assert result.stdout.count(": whole") == 3
    assert result.stdout.count("NOT WHOLE") == 1


def test_a_ledger_without_protection_says_so(tmp_path):
    header = ledgers.Header(
        "heart", "ab12", "north", "record", "substitute", "message", protected=False
    )
    found = ledgers.spend(ledgers.open_ledger(header), "x", events.Unprotected("a factor"), None)
    path = written(tmp_path / "north.jsonl", found)
    assert "UNPROTECTED: a factor" in run("show", path).stdout
    assert "unprotected" in run("verify", path, "--recompute").stdout


def test_help_teaches():
    assert "fedvi simulate" in run("--help").stdout
    assert "anchor" in run("verify", "--help").stdout


def test_the_statement_is_computed_from_the_ledgers_alone(tmp_path):
    north = written(tmp_path / "north.jsonl", book())
    written(tmp_path / "south.jsonl", book(header=HEADER._replace(client="south")))
    text = run("show", tmp_path, "--statement").stdout
    for expected in ("north: epsilon", "all 2 clients: epsilon", "no record is at two clients"):
        assert expected in text
    claims = json.loads(run("show", north, "--statement", "--json").stdout)
    assert [claim["relation"] for claim in claims] == list(events.RELATIONS)
    assert claims[1]["epsilon"] <= 4.0
    assert sum(claims[1]["items"].values()) == pytest.approx(1e-5)
