"""Keeps commands from writing over what is there."""

from pathlib import Path

from fedvi import errors

__all__ = ["check_new", "with_origin"]


def check_new(option: str, *paths: Path | None) -> None:
    """Refuses a file to write that exists; what is None is not written.

    Raises:
      ConfigError: one is there.
    """
    for path in paths:
        if path is not None and path.exists():
            raise errors.ConfigError(
                f"{path} is there already, and is not overwritten", f"give another {option}"
            )


def with_origin(path: Path) -> tuple[Path, Path]:
    """Returns a file of results, and the file beside it that says what it was made of."""
    return path, path.with_name(path.name + ".json")
