"""Flags that several commands have."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from fedvi import errors, plugins

if TYPE_CHECKING:
    from fedvi.client.policy import Policy

__all__ = [
    "FILE",
    "FOLDER",
    "allow_code_flag",
    "check_life_charged",
    "code_flags",
    "life_flags",
    "log_format_flag",
    "narrow",
    "plot_flag",
    "policy_of_site",
    "run_state_flag",
    "seed_flag",
]

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


def narrow(policy: Path) -> "Policy":
    """Reads a policy, and lets it decide which plug-ins this command may run: those that it lists.

    Raises:
      ConfigError: the file is no policy.
    """
    # Imports JAX, which most commands that take a policy do not need without one.
    from fedvi.client.policy import load_policy

    found = load_policy(policy)
    plugins.narrowed(found.code, str(policy))
    return found


def _allow(context: click.Context, option: click.Parameter, names: tuple[str, ...]) -> None:
    """Adds names to what the command may run; one that a policy rules, stays so."""
    before = plugins.allowed() or plugins.NOTHING
    if names and not before.policy:
        plugins.say(plugins.OutsideCode(before.given, {**before.names, **dict.fromkeys(names)}))


def _narrow(context: click.Context, option: click.Parameter, policy: Path | None) -> Path | None:
    if policy is not None:
        narrow(policy)
    return policy


_CODE = (
    "Run the installed plug-in of this name, if the study or result names it. May be repeated. A policy "
    "that is given decides alone."
)

allow_code_flag: _Flag = click.option(
    "--allow-code", multiple=True, metavar="NAME", expose_value=False, callback=_allow, help=_CODE
)


def policy_of_site(words: str) -> _Flag:
    """Returns ``--policy`` of a command that holds a study against it, which also decides on code."""
    return click.option("--policy", type=FILE, callback=_narrow, help=words)


def code_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--allow-code`` and ``--policy`` to a command that reads a study or a result.

    Nothing reaches the command itself: what may be named is said in the context of ``fedvi.plugins``,
    before any file is read.
    """
    policy = click.option(
        "--policy",
        type=FILE,
        expose_value=False,
        callback=_narrow,
        help="A site's own policy (TOML): only plug-ins that it lists are run.",
    )
    return allow_code_flag(policy(function))


def life_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--life`` and ``--begin-life`` to a command that charges the ledger for life."""
    place = click.option(
        "--life",
        type=FOLDER,
        envvar="FEDVI_LIFE",
        help="Folder (an absolute path) of the ledgers for life, which add up what a site spent over all "
        "studies, if its policy has a section [life]. Use one folder for all studies, and never restore it "
        "from a backup. "
        "[env: FEDVI_LIFE] [default: ~/.local/state/fedvi/life]",
    )
    begin = click.option(
        "--begin-life",
        is_flag=True,
        help="Begin a ledger for life, with nothing spent, even if the folder has one of another site.",
    )
    return place(begin(function))


def check_life_charged(has_cap: bool) -> None:
    """Refuses ``--life`` and ``--begin-life`` on a command line whose policies charge nothing for life.

    Args:
      has_cap: whether a policy has a section [life]. FEDVI_LIFE is for all studies, and may be set even so.

    Raises:
      ConfigError: names the flag.
    """
    context = click.get_current_context()
    for name in ("life", "begin_life"):
        if not has_cap and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise errors.ConfigError(
                f"--{name.replace('_', '-')} is given, and no policy has a section [life]: nothing would "
                "be charged for life",
                "write [life] in the file that --policy names, or leave the flag out",
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
