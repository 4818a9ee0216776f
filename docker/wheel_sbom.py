"""Writes the bill of materials (CycloneDX) of a wheel beside it: wheel_sbom.py WHEEL LOCK

It lists what LOCK pins, with the hashes of every file that may be installed, for the very wheel.
"""

import email
import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

__all__ = ["main"]


def main(wheel: Path, lock: Path) -> None:
    """Writes WHEEL's name with ``.cdx.json`` for ``.whl``."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    listed = subprocess.run(
        [sys.executable, "-m", "cyclonedx_py", "requirements", "--output-reproducible", str(lock)],
        check=True,
        capture_output=True,
        text=True,
    )
    bill = json.loads(listed.stdout)
    purl = f"pkg:pypi/{metadata['Name']}@{metadata['Version']}"
    bill["metadata"]["component"] = {
        "type": "application",
        "bom-ref": purl,
        "name": metadata["Name"],
        "version": metadata["Version"],
        "description": metadata["Summary"],
        "licenses": [{"license": {"id": metadata["License-Expression"]}}],
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}],
    }
    text = json.dumps(bill, indent=2)
    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if fault is not None:
        sys.exit(f"the bill of {wheel.name} does not follow CycloneDX 1.6: {fault}")
    wheel.with_suffix(".cdx.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
