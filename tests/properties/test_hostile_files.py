"""A hostile file is refused by an error of fedvi, or read; what is read shows no smaller spend.

Each case is one of ``FILES`` after one to three changes at random, with a seed of its own. Changes are
in ``_BYTES`` and ``_VALUES``. A file of JSON or lines is changed in its values as well, and where hashes
protect it, half of the cases compute them anew, as whoever owns the file could.
"""

import contextlib
import hashlib
import io
import json
import random
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from fedvi import errors
from fedvi.client import policy
from fedvi.data.source import ArraySource
from fedvi.privacy import accountants, certificates, events, ledger
from fedvi.results import finished, ledger_files, outcome, result_json
from fedvi.results import posterior as posteriors
from fedvi.run import server_plan
from fedvi.server.coordinator import Coordinator
from fedvi.server.store import schema
from fedvi.server.store.durable import SqliteServerStore
from fedvi.store import sqlite
from fedvi.store.sqlite import SqliteClientStore
from fedvi.study.config import load_study
from fedvi.transport import codec
from tests.states import make_spec, play
from tests.studies import raw_study, run_study

SEEDS = 325
"""Of each of the thirteen kinds, in the nightly tier: 4,225 hostile files."""

# Changes of bytes: (random, content) → content.

_BYTES: dict[str, Callable[[random.Random, bytearray], Any]] = {}


def _change(make: Any) -> Any:
    _BYTES[make.__name__] = make
    return make


def _places(draw: random.Random, content: bytearray) -> tuple[int, int]:
    start = draw.randrange(len(content))
    return start, min(len(content), start + draw.choice((1, 1, 2, 8, 64, 512)))


@_change
def cut(draw: random.Random, content: bytearray) -> None:
    del content[draw.randrange(len(content)) :]


@_change
def flip(draw: random.Random, content: bytearray) -> None:
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)


@_change
def overwrite(draw: random.Random, content: bytearray) -> None:
    start, end = _places(draw, content)
    content[start:end] = draw.randbytes(end - start)


@_change
def clear(draw: random.Random, content: bytearray) -> None:
    start, end = _places(draw, content)
    content[start:end] = bytes(end - start)


@_change
def drop(draw: random.Random, content: bytearray) -> None:
    start, end = _places(draw, content)
    del content[start:end]


@_change
def repeat(draw: random.Random, content: bytearray) -> None:
    start, end = _places(draw, content)
    content[start:start] = content[start:end] * draw.choice((1, 1, 50))


@_change
def digit(draw: random.Random, content: bytearray) -> None:
    """Another number in the place of one."""
    found = [match.start() for match in re.finditer(rb"[0-9]", content)]
    if found:
        content[draw.choice(found)] = draw.choice(b"0123456789")


@_change
def line(draw: random.Random, content: bytearray) -> None:
    """Takes out, doubles or swaps lines."""
    lines = bytes(content).split(b"\n")
    one, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    match draw.choice(("out", "twice", "swap")):
        case "out":
            del lines[one]
        case "twice":
            lines.insert(other, lines[one])
        case _:
            lines[one], lines[other] = lines[other], lines[one]
    content[:] = b"\n".join(lines)


# Changes of values: texts of JSON that stand in the place of one.

_VALUES = (
    *("null", "true", "false", "0", "1", "-1", "2", "0.5", "1e-300", "-0.0", "1e308", "1e999", "-1e999"),
    *("NaN", "Infinity", "-Infinity", str(2**31), str(2**63), str(-(2**200)), "9" * 5_000),
    *('""', '"x"', '"1"', '"inf"', '"\\ud800"', '"\\u0000"', json.dumps("é" * 10_000)),
    *("[]", "{}", "[[]]", "[null]", '{"": 0}', "[" * 60 + "]" * 60, "[" * 50_000 + "]" * 50_000),
    '{"kind": "composed", "events": [' * 40 + "]}" * 40,
    '{"kind": "gaussian", "noise_multiplier": 1e9, "add_remove": 1.0, "substitute": 2.0}',
)  # fmt: skip
_HOLE = "a hole at {} that a value fills"


def _slots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all parts of a value of JSON."""
    found = [path]
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            found += _slots(part, (*path, key))
    return found


def _reshaped(draw: random.Random, value: Any) -> str:
    """The text of a value of which a part was replaced, swapped, renamed, doubled or taken out."""
    value = json.loads(json.dumps(value))
    *_, last = path = draw.choice(_slots(value)[1:] or [("",)])
    if path == ("",):
        return draw.choice(_VALUES)
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    fill = draw.choice(_VALUES)
    match draw.choice(("fill", "fill", "fill", "swap", "rename", "double", "out")):
        case "swap":
            other = draw.choice([*holder] if isinstance(holder, dict) else range(len(holder)))
            holder[last], holder[other] = holder[other], holder[last]
        case "rename" if isinstance(holder, dict):
            new = draw.choice((f"{last}s", "", draw.choice([*holder])))
            holder[new] = holder.pop(last)
        case "double" if isinstance(holder, dict):
            # The same key twice: the readers of JSON take the last.
            holder[_HOLE] = 0
            text = json.dumps(value)
            return text.replace(json.dumps(_HOLE) + ": 0", f"{json.dumps(last)}: {fill}")
        case "out":
            del holder[last]
        case _:
            holder[last] = _HOLE
    return json.dumps(value).replace(json.dumps(_HOLE), fill)


# Hashes that are computed anew.


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _chained(lines: list[str]) -> list[str]:
    """Lines of a ledger with the hashes that belong to their contents, as far as they are objects."""
    found, before = [], ""
    for number, text in enumerate(lines):
        try:
            fields = json.loads(text)
            if number == 0:
                before = fields["hash"] = _sha256(_canonical(fields["header"]))
            else:
                fields["index"], fields["previous_hash"] = number - 1, before
                fields.pop("hash", None)
                before = fields["hash"] = _sha256(_canonical(fields))
            found.append(_canonical(fields))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            found.append(text)
    return found


def _ledger_lines(draw: random.Random, content: bytes) -> bytes:
    lines = content.decode().splitlines()
    number = draw.randrange(len(lines))
    lines[number] = _reshaped(draw, json.loads(lines[number]))
    if draw.random() < 0.3:
        del lines[draw.randrange(1, len(lines)) :]
    if draw.random() < 0.7:
        lines = _chained(lines)
    return "".join(f"{text}\n" for text in lines).encode()


def _json(draw: random.Random, content: bytes) -> bytes:
    return _reshaped(draw, json.loads(content)).encode()


def _plan(draw: random.Random, content: bytes) -> bytes:
    text = _reshaped(draw, json.loads(content))
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        raw = json.loads(text)
        raw["sha256"] = server_plan._sha256(raw)
        text = json.dumps(raw)
    return text.encode()


def _arrays(draw: random.Random, content: bytes) -> bytes:
    with np.load(io.BytesIO(content)) as file:
        found = {name: file[name] for name in file.files}
    name = draw.choice([*found])
    bad = (np.nan, np.inf, -1.0, 1e308, 0, "x", True, 2**62)
    match draw.choice(("out", "fill", "shape", "rename", "kind")):
        case "out":
            del found[name]
        case "fill":
            found[name] = np.full_like(found[name], draw.choice(bad[:5]), dtype=np.float64)
        case "shape":
            found[name] = np.stack([found[name]] * draw.choice((1, 2)))
        case "rename":
            found[draw.choice(("x", "mean"))] = found.pop(name)
        case _:
            found[name] = np.full(found[name].shape, draw.choice(bad))
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **found)
    return file.getvalue()


def _rows(draw: random.Random, content: bytes) -> bytes:
    """A database one value of which holds something else."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        # In memory there is no write-ahead log, which two bytes of the header ask for.
        connection.deserialize(content[:18] + b"\1\1" + content[20:])
        ask = connection.execute
        for (trigger,) in ask("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            ask(f"DROP TRIGGER {trigger}")
        columns = [
            (table, column)
            for (table,) in ask("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for _, column, *_ in ask(f"PRAGMA table_info({table})").fetchall()
            if ask(f"SELECT count(*) FROM {table}").fetchone()[0] and table != "sqlite_sequence"
        ]
        # Mostly what holds JSON.
        texts = [pair for pair in columns if pair[1] in ("line", "text", "form")]
        table, column = draw.choice(texts if draw.random() < 0.7 else columns)
        rows = [row for (row,) in ask(f"SELECT rowid FROM {table}").fetchall()]
        row = draw.choice(rows)
        (held,) = ask(f"SELECT {column} FROM {table} WHERE rowid = ?", (row,)).fetchone()
        new: Any = draw.choice(("", "x", -1, 2**62, 0.5, b"\xff", b"", "[" * 50_000))
        if isinstance(held, str) and draw.random() < 0.8:
            with contextlib.suppress(ValueError):
                new = _reshaped(draw, json.loads(held))
        with contextlib.suppress(sqlite3.Error):  # a constraint that holds
            ask(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (new, row))
        if draw.random() < 0.1:
            ask(f"DELETE FROM {table} WHERE rowid = ?", (draw.choice(rows),))
        if table == "chain" and draw.random() < 0.7:
            _chain_anew(connection)
        found = connection.serialize()
        return found[:18] + content[18:20] + found[20:]


def _chain_anew(connection: sqlite3.Connection) -> None:
    with contextlib.suppress(sqlite3.Error, TypeError):
        kept = connection.execute("SELECT rowid, line FROM chain ORDER BY rowid").fetchall()
        for (row, _), text in zip(kept, _chained([text for _, text in kept]), strict=True):
            connection.execute("UPDATE chain SET line = ? WHERE rowid = ?", (text, row))


# Files, and what is true of what is read of them.


class File(NamedTuple):
    """One kind of file.

    Attributes:
      path: of the file in the folder, which is whole but for this file.
      read: (folder) → what it says. Raises for what the reader refuses, and where a party that knows the
        original would.
      values: changes its values; None if only bytes can be changed.
      same: whether all that is read must be equal to what the original says.
    """

    path: str
    read: Callable[[Path], Any]
    values: Callable[[random.Random, bytes], bytes] | None = None
    same: bool = True


HEADER = ledger.Header("s", "d", "north", "record", "substitute", "message", True)
BUDGET = ledger.Budget(1.0, 1e-5, accountants.pld("substitute"))
SPEC = make_spec()
POLICY = """\
[run]
epsilon = 1.0
delta = 1e-5
noise_multiplier = 2.0
rounds = 10
[life]
epsilon = 2.0
delta = 1e-5
relation = "substitute"
[allow]
relations = ["substitute"]
views = ["message"]
models = ["linear"]
"""
CERTIFICATE = certificates.Certificate(
    certificates.Terms("d", "k", ("north", "south", "east"), 1, 2),
    *(0, "north/0", "x"),
    {"north": b"1", "south": b"2"},
    {"north": b"3", "south": b"4"},
)


def _books(path: Path) -> dict[str, ledger.Ledger]:
    found = {}
    for book in ledger_files.read(path):
        if book.ledger is None:
            raise errors.LedgerError(book.problem)
        found[book.ledger.header.client] = book.ledger
    return found


def _seen(found: dict[str, ledger.Ledger], kept: dict[str, ledger.Anchor]) -> dict[str, Any]:
    """What the ledgers cost, after a check by a party that saw their heads, as servers and sites do."""
    if missing := kept.keys() - found.keys():
        raise errors.LedgerError(f"no ledger of {missing}")
    for name, anchor in kept.items():
        ledger.check_anchor(found[name], anchor)
    return {name: (found[name].header, ledger.spent(found[name])) for name in kept}


def _client_store(folder: Path) -> SqliteClientStore:
    store = SqliteClientStore(folder / "client", HEADER)
    if not store.ledger.entries:
        for name, size in (("a", 3), ("b", 2), ("c", 0)):
            book = ledger.spend(store.ledger, name, events.Gaussian(40.0), BUDGET)
            store.reserve(book, name, bytes([size]) * 32, b"t" * 32)
            if size:
                store.note_inputs(name, b"d" * 32, b"s" * 32, b"f" * 32)
                sent = codec.Payload(
                    (codec.Tensor("h", "<f8", (size,), bytes(8 * size)),), "{}", "digest of " + name
                )
                store.seal(ledger.seal(store.ledger, name, sent.sha256), name, sent, b"state")
    return store


def _all_of_client(folder: Path, kept: dict[str, ledger.Anchor]) -> Any:
    """Reads a store as an auditor does, then as the site's own client, which goes on with it."""
    found = _seen({"north": sqlite.read_evidence(folder / "client")[0]}, kept)
    with contextlib.closing(_client_store(folder)) as store:
        ledger.check_anchor(store.ledger, kept["north"])
        store.pending(), store.unsent(), store.load_state(), store.load_keys(), store.freeze
    return found


def _all_of_server(folder: Path, kept: dict[str, ledger.Anchor]) -> Any:
    found = _seen(schema.read_ledgers(folder / "server"), kept)
    schema.read_state(folder / "server", SPEC.prior)
    with contextlib.closing(SqliteServerStore(folder / "server", SPEC)) as store:
        state = store.load()
        assert state is None or _seen(dict(state.ledgers), kept) == found
    return found


def _claims(folder: Path) -> Any:
    """What a run is said to have cost, and its mark; a smaller price is an error of the test."""
    run = finished.read(folder / "run")
    return run.claims, run.mark, run.digest


class Made(NamedTuple):
    folder: Path
    files: dict[str, File]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A folder with one whole file of each kind."""
    folder = tmp_path_factory.mktemp("whole")
    raw = raw_study(["north", "south"], 2, schedule={"kind": "sequential", "rounds": 2})
    raw |= {
        "solver": {"kind": "dp_optimisation", "steps": 2, "clip_norm": 1.0},
        "privacy": {"epsilon": 4.0, "delta": 1e-5, "unit": "record", "relation": "substitute"},
        "simulation": {"insecure_seed": 5},
    }
    raw["data"]["max_records"] = 20
    x = np.random.default_rng(0).normal(size=(20, 2))
    source = ArraySource({"x": x, "y": x.sum(1)}, np.ones(20, bool))
    run = run_study(raw, {"north": source, "south": source})
    outcome.write(run, folder / "run")
    (folder / "policy.toml").write_text(POLICY)
    _client_store(folder).close()
    with contextlib.closing(SqliteServerStore(folder / "server", SPEC)) as store:
        play(SPEC, Coordinator(SPEC, store))
    plan = server_plan.make(run.assembly)
    server_plan.keep(plan, folder)
    (folder / "certificate.json").write_bytes(CERTIFICATE.written())
    event = events.compose(events.repeat(events.PoissonSampled(0.1, events.Gaussian(2.0)), 5))
    (folder / "event.json").write_text(json.dumps(events.to_json(event)))

    def anchors(found: dict[str, ledger.Ledger]) -> dict[str, ledger.Anchor]:
        return {name: ledger.anchor(book) for name, book in found.items()}

    exported = anchors(_books(folder / "run"))
    client = anchors({"north": sqlite.read_ledger(folder / "client")})
    server = anchors(schema.read_ledgers(folder / "server"))
    family, names = run.assembly.family, run.assembly.model.names

    def posterior(folder: Path) -> Any:
        posteriors.read(folder / "run/posterior.npz", family, names)

    def price(folder: Path) -> Any:
        text = (folder / "event.json").read_text(encoding="utf-8", errors="replace")
        found = codec.event_from(text)
        for name in ("zcdp", "linear", "advanced", "rdp"):
            accountant = getattr(accountants, name)("substitute")
            assert not accountant.supports(found) or accountant.epsilon(found, 1e-5) >= 0

    return Made(
        folder,
        {
            "exported ledger": File(
                "run/ledger/north.jsonl",
                lambda at: _seen(_books(at / "run"), exported),
                _ledger_lines,
            ),
            "client's store": File(
                "client/ledger.sqlite", lambda at: _all_of_client(at, client), _rows
            ),
            "server's state": File(
                "server/state.sqlite", lambda at: _all_of_server(at, server), _rows
            ),
            "ledger of a run": File("run/ledger/south.jsonl", _claims, _ledger_lines),
            "result of a run": File("run/result.json", _claims, _json),
            "study of a run": File("run/study.json", _claims, _json),
            "posterior of a run": File("run/posterior.npz", posterior, _arrays, False),
            "result": File(
                "run/result.json", lambda at: result_json.read(at / "run/result.json"), _json, False
            ),
            "study": File(
                "run/study.json", lambda at: load_study(at / "run/study.json"), _json, False
            ),
            "policy": File(
                "policy.toml", lambda at: policy.load_policy(at / "policy.toml"), None, False
            ),
            "plan": File("plan.json", lambda at: server_plan.read(at / "plan.json"), _plan, False),
            "certificate": File(
                "certificate.json",
                lambda at: certificates.read((at / "certificate.json").read_bytes()),
                *(_json, False),
            ),
            "event": File("event.json", price, _json, False),
        },
    )


KINDS = (
    "exported ledger", "client's store", "server's state", "ledger of a run", "result of a run",
    "study of a run", "posterior of a run", "result", "study", "policy", "plan", "certificate", "event",
)  # fmt: skip


def hostile(draw: random.Random, whole: bytes, file: File) -> bytes:
    """Returns a changed file."""
    if file.values is not None and draw.random() < 0.6:
        return file.values(draw, whole)
    content = bytearray(whole)
    for _ in range(draw.randint(1, 3)):
        if content:
            _BYTES[draw.choice([*_BYTES])](draw, content)
    return bytes(content)


def tried(made: Made, kind: str, seeds: int) -> dict[str, int]:
    """Reads that many hostile files of one kind; returns how many were refused and how many were read."""
    file = made.files[kind]
    path, counts = made.folder / file.path, {"refused": 0, "read": 0}
    whole, expected = path.read_bytes(), file.read(made.folder)
    beside = [Path(f"{path}{end}") for end in ("-wal", "-shm")]
    try:
        for seed in range(seeds):
            path.write_bytes(hostile(random.Random(f"{kind} {seed}"), whole, file))
            try:
                found = file.read(made.folder)
            except errors.FedviError:
                counts["refused"] += 1
                continue
            except Exception as error:
                raise AssertionError(f"{kind}, seed {seed}: {error!r:.300}") from error
            finally:
                for other in beside:
                    other.unlink(missing_ok=True)
            counts["read"] += 1
            assert not file.same or found == expected, (kind, seed)
    finally:
        path.write_bytes(whole)
    return counts


def test_these_are_all_kinds(made: Made) -> None:
    assert (*made.files,) == KINDS
    assert len(KINDS) * SEEDS >= 4_200


@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_file_is_refused_in_words_or_read_without_a_smaller_spend(
    made: Made, kind: str
) -> None:
    counts = tried(made, kind, 30)
    assert counts["refused"] >= 5, counts


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_four_thousand_hostile_files_are_refused_or_read_without_a_smaller_spend(
    made: Made, kind: str
) -> None:
    counts = tried(made, kind, SEEDS)
    assert sum(counts.values()) == SEEDS
    assert counts["refused"] >= SEEDS // 5, counts


def test_a_cheaper_ledger_that_is_whole_in_itself_would_be_noticed(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut at a line, or with its hashes computed anew: only who saw its head can tell."""
    monkeypatch.setattr(ledger, "check_anchor", lambda *_: None)
    with pytest.raises(AssertionError, match="exported ledger"):
        tried(made, "exported ledger", 60)
