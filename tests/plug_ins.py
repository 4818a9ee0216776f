"""Installs plug-ins for tests: the metadata that pip would write, in a folder that is on `sys.path`."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvi import plugins

__all__ = ["allowing", "declare"]


def allowing(**objects: Any) -> contextlib.AbstractContextManager[None]:
    """Lets studies that are read within it name these objects, as a notebook passes them."""
    return plugins.allowing(plugins.OutsideCode(objects))


def declare(
    folder: Path, *, package: str = "plug_ins_of_a_test", **groups: Mapping[str, str]
) -> None:
    """Declares a package's entry points: `models={"waiting": "waiting:Waiting"}`, and so on."""
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = []
    for group, points in groups.items():
        lines += [f"[fedvi.{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
