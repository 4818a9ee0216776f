"""Claims about `fedvi status` where a machine holds several runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedvi.cli import status as command
from fedvi.cli.main import main
from tests.pki import authority_in, party
from tests.servers import make_spec, running

RUN = {
    "study": "heart",
    "status": "running",
    "rounds": 3,
    "rounds_planned": 20,
    "stage": None,
    "server": "running",
    "clients": [{"name": "north", "silent": True}, {"name": "south", "silent": False}],
}


def test_several_runs_have_a_line_each_and_a_damaged_one_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("heart", "kidney"):
        folder = tmp_path / ".fedvi" / name / "server"
        folder.mkdir(parents=True)
        (folder / "state.sqlite").write_bytes(b"no database")
    ask = command._asked

    def asked(state: Path, *rest: Any) -> dict[str, Any]:
        return RUN if "heart" in str(state) else ask(state, *rest)

    monkeypatch.setattr(command, "_asked", asked)
    done = CliRunner().invoke(main, ["status"])
    assert done.exit_code == 0, done.output
    (line,) = (line for line in done.stdout.splitlines() if " heart " in line)
    assert "round 3 of 20" in line
    assert "north" in line
    assert "south" not in line
    assert "kidney" in done.stderr
    # Each can be copied, however narrow the terminal.
    for name in ("heart", "kidney"):
        assert f"\n  fedvi status .fedvi/{name}/server\n" in done.stdout
    told = json.loads(CliRunner().invoke(main, ["status", "--json"]).stdout)
    assert [sorted(run)[:1] for run in told.values()] == [["clients"], ["error"]]


@pytest.mark.parametrize("command", [["status"], ["watch", "--once"], ["health"]])
def test_an_end_without_tls_is_named_by_the_end_that_has_it(
    tmp_path: Path, command: list[str]
) -> None:
    root = authority_in(tmp_path / "ca")
    tls, spec = party(root, "server", "server", ("localhost",)), make_spec()
    for name in ("secured", "open"):
        (tmp_path / name).mkdir()
    place = tmp_path / "secured"
    with running(spec, place, tls=tls, roster=root / "roster.json", admin="127.0.0.1:0") as server:
        address = server.addresses.admin
        done = CliRunner().invoke(main, [*command, "--server", address])
    assert done.exit_code == 2, done.output
    assert f"the server at {address} speaks TLS alone, and --tls is not given" in done.stderr
    operator = str(party(root, "operator", "admin"))
    with running(spec, tmp_path / "open", admin="127.0.0.1:0") as server:
        address = server.addresses.admin.replace("127.0.0.1", "localhost")
        done = CliRunner().invoke(main, [*command, "--server", address, "--tls", operator])
    assert done.exit_code == 3, done.output
    assert "the server speaks no TLS on this port, and --tls is given" in done.stderr
