"""A site's own door, by its command: what no policy allows, a cap that lasts, keys that are open."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedvi.cli.main import main
from fedvi.privacy import ledger
from fedvi.store.life import folder_name
from fedvi.store.sqlite import read_ledger
from tests.integration import test_client_cli
from tests.integration.test_client_cli import client, refusal, serve, write_study
from tests.pki import authority_in, party

POLICY = """
[run]
epsilon = 4.5
delta = 1e-5
[life]
site = "{site}"
epsilon = 6.0
delta = 1e-5
relation = "substitute"
[allow]
simulated_noise = true
"""


def opens(raw: dict[str, Any]) -> None:
    raw.update(privacy={"protection": "none"}, solver={"kind": "exact"}, simulation={})


@pytest.mark.parametrize(
    ("change", "flag", "key"),
    [
        (opens, "--allow-unprotected", 'protection = "none" in [privacy]'),
        (lambda raw: None, "--allow-simulated-noise", "insecure_seed = 3 in [simulation]"),
    ],
)
def test_without_a_policy_a_study_that_guarantees_nothing_is_answered_only_by_a_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, flag: str, key: str
) -> None:
    monkeypatch.setattr(test_client_cli, "ALLOWED", [])
    study = write_study(tmp_path, change)
    with serve(study) as server:
        address = server.addresses.listen
        said = refusal(client(study, address), code=5)
        assert said.startswith(
            f"{study} guarantees nothing, and no policy of this site allows it: "
        )
        assert key in said
        assert "un-noised statistics of the records would leave this site" in said
        assert flag in said
        # Nothing was opened, and the server heard nothing.
        assert not (tmp_path / "state").exists()
        assert server.app._coordinator.state.ledgers["north"].entries == ()
        assert client(study, address, flag).exit_code == 0


@pytest.mark.parametrize("flag", ["--allow-unprotected", "--allow-simulated-noise"])
def test_a_flag_beside_a_policy_is_refused(tmp_path: Path, flag: str) -> None:
    study, policy = write_study(tmp_path), tmp_path / "policy.toml"
    policy.write_text(POLICY.format(site="north"))
    said = refusal(client(study, "127.0.0.1:1", "--policy", policy, flag), code=2)
    assert f"{flag} is given beside --policy, which decides alone" in said
    assert f"= true under [allow] of {policy}" in said


@pytest.mark.parametrize("capless", [True, False])
@pytest.mark.parametrize("flags", [["--life", "/srv/life"], ["--begin-life"]])
def test_a_flag_for_life_without_a_cap_for_life_is_refused(
    tmp_path: Path, capless: bool, flags: list[str]
) -> None:
    study, policy = write_study(tmp_path), tmp_path / "policy.toml"
    policy.write_text(POLICY.partition("[life]")[0] + "[allow]\nsimulated_noise = true\n")
    given = ["--policy", policy] if capless else []
    said = refusal(client(study, "127.0.0.1:1", *given, *flags), code=2)
    assert f"{flags[0]} is given, and no policy has a section [life]" in said
    given = ["--policy", f"north={policy}"] if capless else []
    result = CliRunner().invoke(main, [str(item) for item in ("simulate", study, *given, *flags)])
    assert f"{flags[0]} is given, and no policy has a section [life]" in refusal(result, code=2)


def test_a_policy_that_is_copied_renamed_or_moved_goes_on_with_what_was_spent(
    tmp_path: Path, life: Path
) -> None:
    """The attack: a cap with room for one study, and a second one under a copy of the policy."""
    study, policy = write_study(tmp_path), tmp_path / "policy.toml"
    policy.write_text(POLICY.format(site="north"))
    with serve(study) as server:
        result = client(study, server.addresses.listen, "--policy", policy)
    assert result.exit_code == 0, result.output
    place = life / folder_name("north")
    spent = ledger.reservations(read_ledger(place))
    assert spent == 2
    moved = tmp_path / "elsewhere" / "other.toml"
    moved.parent.mkdir()
    shutil.copy(policy, moved)
    copied = tmp_path / "copy.toml"
    shutil.copy(policy, copied)
    for file in (policy, copied, moved):
        shutil.rmtree(tmp_path / "state")
        with serve(study) as server:
            result = client(study, server.addresses.listen, "--policy", file)
        assert "release" in refusal(result, code=5), result.output
        assert f"charges for life: {place}\n" in result.stderr
    renamed = tmp_path / "renamed.toml"
    renamed.write_text(POLICY.format(site="north hospital"))
    said = refusal(client(study, "127.0.0.1:1", "--policy", renamed), code=5)
    assert "no ledger for life of the site 'north hospital', but that of 'north'" in said


def test_a_key_or_a_state_that_others_can_read_is_refused(tmp_path: Path) -> None:
    study, root = write_study(tmp_path), authority_in(tmp_path / "ca")
    north = party(root, "north")
    (north / "key.pem").chmod(0o644)
    said = refusal(client(study, "localhost:1", "--tls", north), code=4)
    assert f"{north / 'key.pem'} belongs to this user and has mode 0644" in said
    assert "expected 0600" in said
    line = said.partition("hint: ")[2].strip()
    assert line == f"chmod go= {north / 'key.pem'}"
    subprocess.run(["sh", "-c", line], check=True)
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o755)
    said = refusal(client(study, "localhost:1", "--tls", north), code=5)
    assert f"{state} belongs to this user and has mode 0755" in said
    state.chmod(0o700)
    assert "belongs to this user" not in client(study, "localhost:1", "--tls", north).stderr
