"""Flags that several commands have."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

__all__ = ["FILE", "FOLDER", "log_format_flag", "plot_flag", "run_state_flag", "seed_flag"]

FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)

_Flag = Callable[[Callable[..., Any]], Callable[..., Any]]

log_format_flag: _Flag = click.option(
    "--log-format",
    type=click.Choice(["plain", "json"]),
    default="plain",
    show_default=True,
    help="Format of the lines on standard error.",
)

run_state_flag: _Flag = click.option(
    "--state",
    type=FOLDER,
    help="Folder of the run, as for `fedvi server`. [default: .fedvi/STUDY/server]",
)


def plot_flag(what: str) -> _Flag:
    """Returns ``--plot``, for a file that is drawn."""
    return click.option(
        "--plot",
        type=FILE,
        help=f"Draw {what} to this new file (.png, .svg, .pdf). Needs fedvi[report].",
    )


def seed_flag(what: str) -> _Flag:
    """Returns ``--seed``, for draws that are not secret."""
    seeds = click.IntRange(min=0)
    return click.option("--seed", type=seeds, default=0, show_default=True, help=f"Seed of {what}.")
