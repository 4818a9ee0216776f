"""`fedvi backup`: copies a server's state while the server runs."""

from pathlib import Path

import click

from fedvi.report import tables
from fedvi.server.store import backup as backups

__all__ = ["backup"]


@click.command()
@click.argument("state", type=click.Path(path_type=Path))
@click.option(
    "--to", required=True, type=click.Path(path_type=Path), help="New folder for the copy."
)
@click.option("--json", "as_json", is_flag=True, help="Print what was copied as JSON.")
def backup(state: Path, to: Path, as_json: bool) -> None:
    """Copy a server's state, and verify the copy. STATE may be in use: the server goes on.

    \b
      fedvi backup .fedvi/trauma/server --to backups/2026-03-01

    To restore, start the server with the copy as its --state. A client that went on since the copy was
    made refuses it, and says that the server was set back. The copy then still holds the posterior and
    the ledgers of its day, but the run cannot go on from it.

    Never copy or restore a client's state: it holds secrets that must be erased once they are used, and a
    copy forgets what was spent.

    Exit codes: 0 copied and verified; 2 STATE is no server's state, or --to is not empty; 5 STATE is
    damaged, or the disk is full.
    """
    found = backups.back_up(state, to)
    if as_json:
        content = {
            **found._asdict(),
            "folder": str(to),
            "anchors": {name: str(anchor) for name, anchor in found.anchors.items()},
        }
        tables.print_json(content)
        return
    where = (
        "nothing saved yet"
        if found.version is None
        else (f"version {found.version}, {found.rounds} rounds complete, {found.status}")
    )
    click.echo(f"{to}: {where}; {found.size / 1e6:.1f} MB, verified")
    for name, anchor in found.anchors.items():
        click.echo(f"  ledger of {name}: anchor {anchor}")
