"""Each attack of the table has its tests, and what no other test can look at is looked at here."""

import ast
import functools
from pathlib import Path

import pytest
import yaml

from tests.attacks import ATTACKS

ROOT = Path(__file__).parents[2]


@functools.cache
def found_in(path: str) -> frozenset[str]:
    """The names of the tests that pytest would collect from a file."""
    found = ast.parse((ROOT / path).read_text())
    bodies = [found.body, *(node.body for node in found.body if isinstance(node, ast.ClassDef))]
    functions = [node for body in bodies for node in body if isinstance(node, ast.FunctionDef)]
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_has_tests_that_are_there(attack):
    assert ATTACKS[attack]
    for name in ATTACKS[attack]:
        path, _, function = name.partition("::")
        assert Path(path).name.startswith("test_")
        assert function in found_in(path), name


@pytest.mark.parametrize("name", ["compose.yaml", "coordinator.yaml", "site.yaml"])
def test_containers_run_as_a_user_without_rights(name):
    services = yaml.safe_load((ROOT / "docker" / name).read_text())["services"]
    users = (line for line in (ROOT / "docker/Dockerfile").read_text().splitlines())
    assert [line for line in users if line.startswith("USER ")][-1] == "USER 10001:10001"
    for service, said in services.items():
        if said.get("user") == "0:0":
            # It makes the certificates of the demonstration, and ends.
            assert service == "certificates"
            continue
        assert "user" not in said
        assert not said.get("privileged")
        assert said["read_only"] is True
        assert said["cap_drop"] == ["ALL"]
        assert "cap_add" not in said
        assert said["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", ["server.yaml", "client.yaml"])
def test_pods_run_as_a_user_without_rights(name):
    seen = 0
    for document in yaml.safe_load_all((ROOT / "docker/kubernetes" / name).read_text()):
        if not (pod := document.get("spec", {}).get("template", {}).get("spec")):
            continue
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            allowed = container["securityContext"]
            assert allowed["allowPrivilegeEscalation"] is False
            assert allowed["readOnlyRootFilesystem"] is True
            assert allowed["capabilities"]["drop"] == ["ALL"]
            seen += 1
    assert seen
