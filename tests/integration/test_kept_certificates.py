"""Of each masked round a site keeps who signed the sum; `fedvi ledger verify` checks that."""

import base64
import contextlib
import json
import math
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedvi.cli.main import main
from fedvi.federation.messages import Reply, Request
from fedvi.privacy import agreement, certificates
from fedvi.privacy.agreement import Terms
from fedvi.store.sqlite import DATABASE, SqliteClientStore
from fedvi.study import build
from fedvi.study.config import parse_study
from fedvi.transport.memory import Link
from fedvi.transport.signers import Certified
from tests.masked import Consortium, Lying, raw
from tests.pki import authority_in, party

NAMES = ("north", "east", "south", "west")


class Gone(Exception):
    pass


def verify(folder: Path, *given: str) -> tuple[int, Any, str]:
    said, told = (
        CliRunner().invoke(
            main, ["ledger", "verify", str(folder), *given, *more], catch_exceptions=False
        )
        for more in ([], ["--json"])
    )
    return said.exit_code, json.loads(told.output)["ledgers"][0], " ".join(said.output.split())


def rewrite(source: Path, target: Path, name: str, change: Callable[[Any], None]) -> bytes:
    """Copies a store and changes one piece of its evidence; returns what it was."""
    (target / DATABASE).write_bytes((source / DATABASE).read_bytes())
    with contextlib.closing(sqlite3.connect(target / DATABASE)) as connection:
        where = f"WHERE name = 'certificate/{name}'"
        ((written,),) = connection.execute(f"SELECT value FROM meta {where}").fetchall()
        content = json.loads(written)
        change(content)
        changed = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        connection.execute(f"UPDATE meta SET value = ? {where}", (changed,))
        connection.commit()
    return bytes(written)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rounds over stores on disk; from the second on `west` is gone."""
    root = tmp_path_factory.mktemp("sites")
    assembly = build.assemble(parse_study(raw(names=NAMES, least=3, rounds=3)))
    vouching = authority_in(root / "authority")
    signers: dict[str, Any] = {
        name: Certified(party(vouching, name, folder=root / f"tls-{name}")) for name in NAMES
    }
    consortium = Consortium(assembly, signers)
    stores = {name: SqliteClientStore(root / name, assembly.header(name)) for name in NAMES}
    consortium.stores.update(stores)

    def gone_later(request: Request, reply: Reply) -> Reply:
        if consortium.coordinator.state.version > 0:
            raise Gone
        return reply

    def wrapped(link: Link) -> Link:
        return Lying(link, gone_later)

    workers = {name: consortium.worker(name) for name in NAMES[:3]}
    workers["west"] = consortium.worker("west", wrapped)
    for _ in range(60):
        for worker in workers.values():
            with contextlib.suppress(Gone):
                worker.tick()
        consortium.now += 3.0
        consortium.coordinator.tick()
    assert consortium.coordinator.state.status == "completed"
    for store in stores.values():
        store.close()
    return root


def test_each_round_has_a_certificate_which_outlives_the_keys(run: Path) -> None:
    code, told, said = verify(run / "north")
    assert code == 0
    inside = [*NAMES[:3]]
    assert told["certified"] == {"0": [*NAMES], "1": inside, "2": inside}
    assert "3 of 3 masked answers have a certificate: opened for the sum of 3 to 4 sites" in said
    # It says whose keys these are, if asked with the authority, and else what to compare.
    assert not told["roster_vouched"]
    assert f"sites of roster {told['roster']} signed: compare it" in said
    code, vouched, said = verify(run / "north", "--ca", str(run / "authority" / "ca.pem"))
    assert (code, vouched["roster_vouched"]) == (0, True)
    assert f"sites that the authority knows, of roster {told['roster']}" in said
    # Who was gone knows of the first round alone.
    assert verify(run / "west")[1]["certified"].keys() <= {"0"}


def _fewer(content: dict[str, Any]) -> None:
    name = next(iter(content["signatures"]))
    del content["signatures"][name], content["keys"][name]


def _forged(content: dict[str, Any]) -> None:
    first, second, *_ = content["signatures"]
    content["signatures"][first] = content["signatures"][second]


def _other_task(content: dict[str, Any]) -> None:
    content["task"] = "00" * 32


def _other_answer(content: dict[str, Any]) -> None:
    named = json.loads(content["named"])
    named["digests"][0] = "00" * 32
    content["named"] = json.dumps(named, sort_keys=True, separators=(",", ":"))


def _own_rules(content: dict[str, Any]) -> None:
    content["terms"] |= {"clients": ["north"], "colluding": 0, "least": 1}


def _one_key_for_all(content: dict[str, Any]) -> None:
    key = next(iter(content["keys"].values()))
    content["keys"] = dict.fromkeys(content["keys"], key)


def _other_keys(content: dict[str, Any]) -> None:
    secret = Ed25519PrivateKey.generate()
    name = next(iter(content["keys"]))
    said = agreement.said(
        Terms(**content["terms"] | {"clients": tuple(content["terms"]["clients"])}),
        content["task"],
        content["named"],
    )
    public = secret.public_key().public_bytes_raw()
    content["keys"][name] = base64.b64encode(public).decode()
    content["signatures"][name] = base64.b64encode(secret.sign(said)).decode()


def _odd(**changes: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        for name, value in changes.items():
            (content if name in content else content["terms"])[name] = value

    return change


def _other_round(content: dict[str, Any]) -> None:
    content["visit"] = 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_fewer, "2 of the sites in the set of round 1 signed it, expected 3"),
        (_forged, "2 of the sites in the set of round 1 signed it, expected 3"),
        (_other_task, "0 of the sites in the set of round 1 signed it, expected 3"),
        (_other_answer, "names another answer of 'north' than its ledger holds"),
        (_other_round, "it is of round 2"),
        (_own_rules, "it is for 1 answers or more and 0 who work with the server"),
        (
            _odd(clients=[*NAMES[:3], "home", "away"]),
            "it is of a study of 5 sites, and the ledger promises the noise of 4",
        ),
        (_one_key_for_all, "a certificate cannot be read"),
        (_other_keys, "it shows other sites, or other keys, than those before"),
        (_odd(visit=math.inf), "a certificate cannot be read"),
        (_odd(visit="1"), "a certificate cannot be read"),
        (_odd(least="3"), "a certificate cannot be read"),
        (_odd(least=math.nan), "a certificate cannot be read"),
        (_odd(colluding=-9), "a certificate cannot be read"),
        (_odd(clients=[["north"], "east"]), "a certificate cannot be read"),
        (_odd(named='{"clients":[["north"]],"digests":[""],"visit":1}'), "cannot be read"),
        (dict.clear, "a certificate cannot be read"),
    ],
)
def test_a_certificate_that_was_changed_is_seen(
    run: Path, tmp_path: Path, change: Callable[[Any], None], why: str
) -> None:
    written = rewrite(run / "north", tmp_path, "1", change)
    assert certificates.read(written).written() == written
    code, told, said = verify(tmp_path)
    assert code == 1
    # The ledger itself is as it was.
    assert told["whole"]
    assert "CERTIFICATES DO NOT HOLD: the certificate of round 1: " in said
    assert why in said


def _none_left(board: list[str]) -> None:
    board.clear()


def _signed_for_another(board: list[str]) -> None:
    board[0], board[1] = board[1], board[0]


def _keys_of_its_own(board: list[str]) -> None:
    part = json.loads(board[1])
    content = json.loads(part["content"])
    content["ed25519"] = base64.b64encode(bytes(32)).decode()
    part["content"] = json.dumps(content, sort_keys=True, separators=(",", ":"))
    board[1] = json.dumps(part)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_none_left, "there are 0, expected 4"),
        (_signed_for_another, "the keys shown as those of 'north' are not of the client 'north'"),
        (_keys_of_its_own, "the signature of 'east' is not of this file"),
    ],
)
def test_signed_keys_that_were_changed_are_seen(
    run: Path, tmp_path: Path, change: Callable[[Any], None], why: str
) -> None:
    rewrite(run / "north", tmp_path, "board", change)
    code, _, said = verify(tmp_path)
    assert code == 1
    assert "CERTIFICATES DO NOT HOLD: the keys that the sites signed: " in said
    assert why in said


def test_keys_that_another_authority_vouches_for_are_seen(run: Path, tmp_path: Path) -> None:
    other = authority_in(tmp_path / "other", "Somebody else")
    code, told, said = verify(run / "north", "--ca", str(other / "ca.pem"))
    assert (code, told["roster_vouched"]) == (1, False)
    assert "CERTIFICATES DO NOT HOLD: the keys that the sites signed: the keys of 'north'" in said


def test_signed_keys_of_other_sites_do_not_go_with_the_certificates(
    run: Path, tmp_path: Path
) -> None:
    # Everything is in order but for this: they are not the keys that the certificates rest on.
    def renewed(board: list[str]) -> None:
        part = json.loads(board[3])
        content = json.loads(part["content"])
        content["x25519"] = base64.b64encode(bytes(range(32))).decode()
        part["content"] = json.dumps(content, sort_keys=True, separators=(",", ":"))
        signature = Certified(run / "tls-west").sign(part["content"].encode())
        board[3] = json.dumps({**part, "signature": base64.b64encode(signature).decode()})

    rewrite(run / "north", tmp_path, "board", renewed)
    code, _, said = verify(tmp_path, "--ca", str(run / "authority" / "ca.pem"))
    assert code == 1
    assert "they are others than those that the certificates are of" in said


def test_without_the_signed_keys_it_is_said_that_they_are_not_known(
    run: Path, tmp_path: Path
) -> None:
    (tmp_path / DATABASE).write_bytes((run / "north" / DATABASE).read_bytes())
    with contextlib.closing(sqlite3.connect(tmp_path / DATABASE)) as connection:
        connection.execute("DELETE FROM meta WHERE name = 'certificate/board'")
        connection.commit()
    code, told, said = verify(tmp_path, "--ca", str(run / "authority" / "ca.pem"))
    assert (code, told["roster"], told["roster_vouched"]) == (0, "", False)
    assert "is not known any more" in said


def test_certificates_that_are_gone_are_counted_and_odd_rows_are_seen(
    run: Path, tmp_path: Path
) -> None:
    (tmp_path / DATABASE).write_bytes((run / "north" / DATABASE).read_bytes())
    with contextlib.closing(sqlite3.connect(tmp_path / DATABASE)) as connection:
        connection.execute("DELETE FROM meta WHERE name = 'certificate/1'")
        connection.commit()
        code, _, said = verify(tmp_path)
        assert code == 0
        assert "2 of 3 masked answers have a certificate" in said
        assert "1 without: their rounds were not opened here, or the certificate is gone" in said
        connection.execute("UPDATE meta SET name = 'certificate/x' WHERE name = 'certificate/2'")
        connection.commit()
    code, told, said = verify(tmp_path)
    assert code == 1
    assert told["whole"]
    assert "holds a certificate of round 'x'" in said
