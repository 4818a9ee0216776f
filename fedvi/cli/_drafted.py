"""How `fedvi init` writes a study's folder: all files, or none."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvi import errors
from fedvi.study.drafts import drafting
from fedvi.study.drafts.drafting import Answers

__all__ = ["check_target", "files_of", "schemas_of", "write_all"]


def files_of(answers: Answers, drafted: drafting.Draft, server: str) -> dict[str, str]:
    from fedvi.study.drafts import starting

    schemas = schemas_of()
    files = {
        "study.toml": drafted.text,
        "study.schema.json": schemas["study"],
        "compose.coordinator.yaml": starting.coordinator_text(answers),
        "compose.site.yaml": starting.site_text(answers, server),
        "README.md": starting.steps_text(answers, server, drafted.open, drafted.read),
    }
    if answers.private:  # a policy admits no study that promises nothing
        files |= {
            "policy.toml": starting.policy_text(answers),
            "policy.schema.json": schemas["policy"],
        }
    return files


def schemas_of() -> dict[str, str]:
    from fedvi.study.drafts import json_schema

    return {
        "study": _json(json_schema.study_schema()),
        "policy": _json(json_schema.policy_schema()),
    }


def _json(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


_NAMES = (
    "study.toml",
    "study.schema.json",
    "policy.toml",
    "policy.schema.json",
    "compose.coordinator.yaml",
    "compose.site.yaml",
    "README.md",
)


def check_target(folder: Path) -> None:
    """Refuses, before anything is asked, a folder that holds one of the files or cannot be written."""
    if folder.exists() and not folder.is_dir():
        raise errors.ConfigError(f"{folder} is no folder", "name a new folder")
    there = [name for name in _NAMES if os.path.lexists(folder / name)]
    if there:
        raise errors.ConfigError(
            f"{folder} holds {', '.join(there)} already, and nothing is overwritten",
            "name a new folder, or move what is there",
        )
    if not folder.exists() and not folder.absolute().parent.is_dir():
        raise errors.ConfigError(
            f"{folder}: the folder {folder.absolute().parent} does not exist", "make it first"
        )


def write_all(folder: Path, files: Mapping[str, str]) -> None:
    """Writes all files or none, and none over another.

    Raises:
      ConfigError: one is there meanwhile, or the folder cannot be written.
    """
    done: list[Path] = []
    fresh = not folder.exists()
    try:
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".init-", dir=folder) as beside:
            for name, text in files.items():
                (Path(beside) / name).write_text(text, encoding="utf-8")
            for name in files:
                # Fails where a file is there, which `replace` would take the place of.
                os.link(Path(beside) / name, folder / name)
                done.append(folder / name)
    except BaseException as error:  # Ctrl-C too
        for path in done:
            path.unlink(missing_ok=True)
        if fresh and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        if not isinstance(error, OSError):
            raise
        raise errors.ConfigError(
            f"{folder} cannot be written: {error.strerror}; nothing was", "name another folder"
        ) from None
