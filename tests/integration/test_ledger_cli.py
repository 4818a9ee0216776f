"""`fedvi ledger`: an auditor recomputes what was stated, and sees every change."""

import json
import math
import random

import pytest
from click.testing import CliRunner

from fedvi.cli.main import main
from fedvi.privacy import _chain, accountants, events, statement
from fedvi.privacy import ledger as ledgers
from fedvi.privacy.accountants import pld
from fedvi.privacy.filter import rdp_filter
from fedvi.report import tables
from fedvi.results import ledger_files
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
    assert "ε of north, study heart" in run("verify", file, "--recompute").stdout
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
        (found,) = ledger_files.read(file)
        assert found.ledger is None, place
        assert found.problem
    file.write_bytes(content)
    assert ledger_files.read(file)[0].ledger == whole


def test_a_cut_file_is_detected_wherever_it_is_cut_or_by_its_anchor(file):
    content = file.read_bytes()
    seen = ledgers.anchor(book())
    for end in range(0, len(content), 7):
        file.write_bytes(content[:end])
        (found,) = ledger_files.read(file)
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
    assert (
        "was seen before. Unless the anchor is of another site or run: two ledgers" in forked.stdout
    )
    for wrong in ("x", "1:ab", f"-1:{'0' * 64}"):
        assert run("verify", file, "--anchor", wrong).exit_code == 2


def test_a_client_s_store_is_read_and_not_written(tmp_path):
    folder = tmp_path / "state"
    store = SqliteClientStore(folder, HEADER)
    longer = ledgers.spend(store.ledger, "north/0#0", ROUND, BUDGET)
    store.reserve(longer, "north/0#0", b"s" * 32, b"t")
    # While the client runs.
    for path in (folder, folder / "ledger.sqlite", tmp_path):
        (found,) = ledger_files.read(path)
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


def test_each_ledger_is_priced_by_its_own_view_beside_others():
    # Sums of 199 noises hide more than messages do, and their tables are further off their law.
    seen = HEADER._replace(
        study="lungs",
        view="aggregate",
        least_reporting=101,
        colluding=1,
        secure=True,
        topped_up=200,
        table_distance=1e-10,
    )
    both = events.compose(
        events.repeat(events.Gaussian(10.0 * 199**0.5), 3), events.repeat(ROUND, 3)
    )
    for books in ([book(header=seen), book()], [book(), book(header=seen)]):
        priced = {
            (price.accountant, price.relation): price.epsilon
            for price in ledger_files.totals(books)
        }
        for relation in events.RELATIONS:
            assert priced["pld", relation] >= pld(relation).epsilon(both, 1e-5)


@pytest.mark.parametrize("private", [1, 2])
def test_all_studies_of_a_site_have_no_price_if_one_was_unprotected(private):
    studies = [book(header=HEADER._replace(study=f"study{n}")) for n in range(private)]
    header = ledgers.Header(
        "open", "ab12", "north", "record", "substitute", "message", protected=False
    )
    bare = ledgers.open_ledger(header)
    assert len(ledger_files.totals([*studies, bare])) == len(ledger_files.totals(studies))
    told = ledgers.spend(bare, "x", events.Unprotected("a factor"), None)
    priced = ledger_files.totals([*studies, told])
    assert priced
    for price in priced:
        assert price.part == f"all {private + 1} ledgers of north"
        assert price.epsilon is None or price.epsilon == math.inf


def test_studies_that_promise_to_other_units_are_added_apart_and_say_so():
    """No number of records a patient is known, so that both have no common price."""
    records = [book(header=HEADER._replace(study=f"study{n}")) for n in range(2)]
    patients = [book(header=HEADER._replace(study=f"new{n}", unit="patient")) for n in range(3)]
    parts = {price.part for price in ledger_files.totals([*records, *patients])}
    assert parts == {
        "all 2 ledgers of north for the unit record",
        "all 3 ledgers of north for the unit patient",
    }
    assert {price.part for price in ledger_files.totals(records)} == {"all 2 ledgers of north"}


def test_a_ledger_without_protection_says_so(tmp_path):
    header = ledgers.Header(
        "heart", "ab12", "north", "record", "substitute", "message", protected=False
    )
    found = ledgers.spend(ledgers.open_ledger(header), "x", events.Unprotected("a factor"), None)
    path = written(tmp_path / "north.jsonl", found)
    assert "UNPROTECTED: a factor" in run("show", path).stdout
    assert "unprotected" in run("verify", path, "--recompute").stdout


def flat(text):
    return " ".join(text.split())


def broken(path, count, event=ROUND, header=HEADER):
    """A ledger that something without a budget wrote: whole in itself."""
    found = ledgers.open_ledger(HEADER._replace(protected=False))
    for number in range(count):
        found = ledgers.spend(found, f"north/{number}#0", event, None)
    rows, previous = [], ledgers.anchor(ledgers.open_ledger(header)).hash
    for entry in found.entries:
        changed = entry._replace(previous_hash=previous, hash="")
        changed = changed._replace(hash=_chain._entry_hash(changed))
        rows.append(changed)
        previous = changed.hash
    return written(path, ledgers.Ledger(header, tuple(rows)))


def test_an_exceeded_promise_ends_with_its_own_exit_code(tmp_path):
    event = events.Gaussian(1.0)
    header = HEADER._replace(planned=events.repeat(event, 8))
    path = broken(tmp_path / "north.jsonl", 2, event, header)
    assert run("verify", path).exit_code == 0
    for more in ([], ["--json"], ["--delta", "0.5"]):
        result = run("verify", path, "--recompute", *more)
        assert result.exit_code == 5
        assert "what is planned exceeds the promise" in result.stdout
        assert "what is reserved exceeds the promise" in result.stdout
        assert "reserved exceeds the plan" not in result.stdout
    assert "4 EXCEEDED" in run("verify", path, "--recompute").stdout
    # At another δ there is nothing to hold against the promise.
    assert "4 EXCEEDED" not in run("verify", path, "--recompute", "--delta", "0.5").stdout
    (tmp_path / "bad.jsonl").write_bytes(b"")
    assert run("verify", tmp_path, "--recompute").exit_code == 5
    assert run("verify", tmp_path).exit_code == 1


@pytest.mark.parametrize(
    ("count", "event"), [(9, ROUND), (1, events.Gaussian(11.0))], ids=["more", "another"]
)
def test_reserving_more_than_was_planned_is_reported_within_the_promise(tmp_path, count, event):
    path = broken(tmp_path / "north.jsonl", count, event)
    result = run("verify", path, "--recompute")
    assert result.exit_code == 5
    assert "EXCEEDED: reserved exceeds the plan" in result.stdout
    assert "4 kept" in result.stdout
    found = json.loads(run("verify", path, "--recompute", "--json").stdout)
    assert found["ledgers"][0]["exceeded"] == ["reserved exceeds the plan"]
    kept = run("verify", broken(path, 8), "--recompute")
    assert kept.exit_code == 0
    assert "EXCEEDED" not in kept.stdout


# For life.

LIFE = ledgers.lifetime_header("clinic", "record", "substitute", 1e-15, epsilon=3.0, delta=1e-5)
CAP = rdp_filter(3.0, 1e-5 * (1 - ledgers.TABLES_SHARE), "substitute")


def test_what_is_spent_for_life_is_shown_by_the_filter_beside_the_cap(tmp_path):
    found = ledgers.open_ledger(LIFE)
    for number in range(3):
        found = ledgers.spend(found, f"ab12/{number}!0", events.Gaussian(20.0), CAP)
    spent = statement.lifetime_spend(found, CAP)
    assert 0 < spent.epsilon < 3.0
    path = written(tmp_path / "life.jsonl", found)
    for arguments in (
        ["show"],
        ["verify", "--recompute"],
        ["verify", "--recompute", "--delta", 0.1],
    ):
        result = run(arguments[0], path, *arguments[1:])
        assert result.exit_code == 0
        assert "by the filter" in result.stdout
        assert tables.bound(spent.epsilon) in result.stdout
        assert "clinic" in result.stdout
        for word in ("no promise", "pld", "zcdp"):
            assert word not in result.stdout
    (price,) = json.loads(run("verify", path, "--recompute", "--json").stdout)["ledgers"][0][
        "prices"
    ]
    assert (price["epsilon"], price["delta"], price["budget"]) == (spent.epsilon, 1e-5, 3.0)
    listed = json.loads(run("show", path, "--json").stdout)[0]["releases"]
    assert listed[-1]["epsilon"] == {"substitute": spent.epsilon}
    stated = run("show", path, "--statement").stdout
    assert "spent of 3, δ = 1e-05, by the filter" in stated
    assert "infinite" not in stated


def test_an_empty_ledger_for_life_has_spent_nothing_and_one_without_a_cap_says_so(tmp_path):
    path = written(tmp_path / "life.jsonl", ledgers.open_ledger(LIFE))
    assert "ε 0 spent of 3" in run("show", path).stdout
    bare = ledgers.lifetime_header("clinic", "record", "substitute")
    result = run("verify", written(path, ledgers.open_ledger(bare)), "--recompute")
    assert result.exit_code == 0
    assert "holds no cap" in result.stdout


def test_more_than_the_cap_for_life_ends_with_its_own_exit_code(tmp_path):
    path = broken(tmp_path / "life.jsonl", 50, header=LIFE)
    result = run("verify", path, "--recompute")
    assert result.exit_code == 5
    assert "spent for life exceeds the cap" in result.stdout


# An export beside its store.


def test_what_is_the_beginning_of_another_is_counted_once_and_says_so(tmp_path):
    longest = book(4)
    alone = written(tmp_path / "z.jsonl", longest)
    claimed = run("show", alone, "--statement").stdout
    beginning = ledgers.Ledger(longest.header, longest.entries[:2])
    for name, found in (("a", beginning), ("b", longest), ("c", ledgers.open_ledger(HEADER))):
        written(tmp_path / f"{name}.jsonl", found)
    result = run("verify", tmp_path, "--recompute")
    assert result.exit_code == 0
    assert flat(result.stdout).count("counted once: the beginning of") == 3
    assert result.stdout.count("b.jsonl, anchor") == 3  # the first of the longest
    assert result.stdout.count("ε of north, study heart") == 1
    assert "ε of all studies" not in result.stdout
    assert run("show", tmp_path, "--statement").stdout.endswith(claimed)
    assert run("show", tmp_path).stdout.count("Ledger of north") == 1
    found = json.loads(run("verify", tmp_path, "--recompute", "--json").stdout)
    assert found["totals"] == []
    assert [bool(row["part_of"]) for row in found["ledgers"]] == [True, False, True, True]


def test_a_fork_of_a_study_is_added(tmp_path):
    written(tmp_path / "a.jsonl", book(2))
    written(tmp_path / "b.jsonl", book(3))  # sealed after another entry
    result = run("verify", tmp_path, "--recompute")
    assert "counted once" not in result.stdout
    assert "ε of all studies of a site" in result.stdout


def test_an_export_beside_its_store_is_counted_once(tmp_path):
    store = SqliteClientStore(tmp_path / "north", HEADER)
    written(tmp_path / "north.jsonl", store.ledger)
    longer = ledgers.spend(store.ledger, "north/0#0", ROUND, BUDGET)
    store.reserve(longer, "north/0#0", b"s" * 32, b"t")
    exported, stored = ledger_files.read(tmp_path)
    store.close()
    assert exported.part_of == stored.path
    assert stored.part_of is None


def test_help_teaches():
    assert "fedvi simulate" in run("--help").stdout
    assert "anchor" in run("verify", "--help").stdout


def test_the_statement_is_computed_from_the_ledgers_alone(tmp_path):
    north = written(tmp_path / "north.jsonl", book())
    written(tmp_path / "south.jsonl", book(header=HEADER._replace(client="south")))
    text = run("show", tmp_path, "--statement").stdout
    for expected in ("north: epsilon", "all 2 clients: epsilon", "no record is at two sites"):
        assert expected in text
    claims = json.loads(run("show", north, "--statement", "--json").stdout)
    assert [claim["relation"] for claim in claims] == list(events.RELATIONS)
    assert claims[1]["epsilon"] <= 4.0
    assert sum(claims[1]["items"].values()) == pytest.approx(1e-5)
