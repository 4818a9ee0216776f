"""Certificates for tests: an authority and parties in folders, as `fedvi ca` and `enroll` make them."""

import datetime
from pathlib import Path

from fedvi.transport import authority, enrolment

__all__ = ["DAY", "NOW", "authority_in", "party"]

DAY = datetime.timedelta(days=1)
NOW = datetime.datetime.now(datetime.UTC).replace(microsecond=0)


def authority_in(folder: Path, name: str = "Trauma consortium", days: int = 3650, at=None) -> Path:
    """Makes an authority and returns its folder."""
    authority.create(folder, name, days, at)
    return folder


def party(
    root: Path,
    name: str,
    role: str = "client",
    hosts: tuple[str, ...] = (),
    days: int = 90,
    at: datetime.datetime | None = None,
    folder: Path | None = None,
) -> Path:
    """Enrols a party and returns its folder; it may hold an expired certificate, unlike a real one."""
    folder = folder or root.parent / name
    asked = enrolment.request(folder, name, role, hosts)
    issued = authority.sign(root, asked.path.read_bytes(), role=role, days=days, at=at)
    (folder / "cert.pem").write_bytes(issued.pem)
    (folder / "ca.pem").write_bytes((root / "ca.pem").read_bytes())
    return folder
