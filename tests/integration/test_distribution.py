"""`make dist`: the wheel, and the bill of materials beside it."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
sys.exit(str(JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read()) or 0) != "0")
"""


def run(*command: str, cwd: Path = ROOT, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=900.0, check=False
    )
    if check:
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.mark.nightly
def test_a_wheel_has_a_valid_bill_of_all_that_it_was_tested_with(tmp_path):
    probe = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(tmp_path / "p")]
    if shutil.which("make") is None or run(*probe, "click", check=False).returncode:
        pytest.skip("needs make and a package index")
    clone = tmp_path / "clone"
    clone.mkdir()
    for name in ("Makefile", "pyproject.toml", "README.md", "LICENSE", "requirements.lock"):
        shutil.copy(ROOT / name, clone)
    shutil.copy(ROOT / "requirements-build.lock", clone)
    for name in ("fedvi", "docker"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, clone / name, ignore=ignored)
    run("make", "dist", f"PYTHON={os.path.realpath(sys.executable)}", cwd=clone)

    (wheel,) = (clone / "dist").glob("*.whl")
    (path,) = (clone / "dist").glob("*.cdx.json")
    bill = json.loads(path.read_text(encoding="utf-8"))
    described = bill["metadata"]["component"]
    assert wheel.name.startswith(f"{described['name']}-{described['version']}-")
    (digest,) = described["hashes"]
    assert digest["content"] == hashlib.sha256(wheel.read_bytes()).hexdigest()

    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    entries = re.split(r"(?m)^(?=[^\s#])", lock)[1:]
    pinned = {}
    for entry in entries:
        name, version = re.match(r"([a-z0-9-]+)==(\S+)", entry).groups()
        pinned[name, version] = set(re.findall(r"--hash=sha256:(\w+)", entry))
    listed = {
        (part["name"], part["version"]): {
            found["content"]
            for reference in part["externalReferences"]
            for found in reference.get("hashes", [])
        }
        for part in bill["components"]
    }
    assert listed == pinned
    assert all(part["purl"].startswith("pkg:pypi/") for part in bill["components"])
    # The library's own validator takes it, and not a bill without its version.
    python = clone / ".venv-build" / "bin" / "python"
    run(str(python), "-c", VALIDATE, str(path))
    path.write_text(json.dumps({**bill, "specVersion": 16}))
    assert run(str(python), "-c", VALIDATE, str(path), check=False).returncode
