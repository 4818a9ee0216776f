"""`fedvi ca`: the consortium's certificate authority: who may take part, and who no longer."""

import datetime
from pathlib import Path
from typing import Any

import click

from fedvi import errors
from fedvi.cli._flags import FILE, FOLDER
from fedvi.report import tables
from fedvi.transport import authority, certificates, files
from fedvi.transport.roster import Listing

__all__ = ["ca"]

_folder = click.option(
    "--ca",
    "folder",
    required=True,
    type=FOLDER,
    help="The authority's folder, as `fedvi ca init` made it.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
_out = click.option("--out", type=FILE, help="New file for the certificate. [default: NAME.pem]")


@click.group()
def ca() -> None:
    """Sign, renew and revoke the certificates of a federation.

    \b
      fedvi ca init authority --name "Trauma consortium"
      fedvi ca sign request.pem --ca authority --name north --out north.pem
      fedvi ca list --ca authority
      fedvi ca revoke north --ca authority

    The coordinator keeps one authority. Each party makes its key with `fedvi enroll` and sends a
    request. `sign` writes a certificate and puts it on the roster, roster.json, the list of who is let
    in. Start the server with --roster authority/roster.json, which it reads again by itself, or copy
    the roster to the server's TLS folder after every change.
    """


@ca.command()
@click.argument("folder", type=FOLDER)
@click.option("--name", required=True, help='Whose authority it is, such as "Trauma consortium".')
@click.option("--days", default=3650, show_default=True, help="Days until its certificate expires.")
@_json
def init(folder: Path, name: str, days: int, as_json: bool) -> None:
    """Make an authority in FOLDER. Keep ca.key there, and give ca.pem to every party.

    \b
      fedvi ca init authority --name "Trauma consortium"

    Send the fingerprint over a different channel, so that each party can check what it got.
    """
    _tell_authority(authority.create(folder, name, days), as_json)


@ca.command()
@click.argument("request", type=FILE)
@_folder
@click.option("--name", help="Refuse a request with another name. [default: any name]")
@click.option(
    "--role",
    type=click.Choice(certificates.ROLES),
    default="client",
    show_default=True,
    help="Refuse a request for another role.",
)
@click.option("--days", default=90, show_default=True, help="Days until the certificate expires.")
@click.option(
    "--new-key", is_flag=True, help="Sign even if the roster has another key for this name."
)
@_out
@_json
def sign(
    request: Path,
    folder: Path,
    name: str | None,
    role: str,
    days: int,
    new_key: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Sign a party's REQUEST and put the certificate on the roster.

    \b
      fedvi ca sign request.pem --ca authority --name north --out north.pem

    Compare the key's fingerprint with what `fedvi enroll` printed at the site. A party that is on
    the roster may send a new request for the same key at any time: its certificate is renewed.
    """
    _check_out(out)
    issued = authority.sign(
        folder,
        files.read(request, "the request", "give the request.pem that `fedvi enroll` made"),
        name,
        role,
        days,
        new_key,
    )
    _tell_issued(issued, out, folder, as_json)


@ca.command()
@click.argument("name", required=False)
@_folder
@click.option(
    "--days", type=int, help="Days until it expires. [default: 90; 3650 for the authority]"
)
@_out
@_json
def renew(
    name: str | None, folder: Path, days: int | None, out: Path | None, as_json: bool
) -> None:
    """Make a certificate with new dates for the party NAME.

    \b
      fedvi ca renew north --ca authority --out north.pem

    Without NAME, it renews the authority's own certificate. The key stays, so nothing that was signed
    has to be signed again. The old certificate stays valid until it expires, so that there is time to
    install the new one.
    """
    if name is None:
        if out is not None:
            raise errors.ConfigError(
                "--out was given for the authority, whose certificate stays in its folder",
                "give the name of a party, or leave --out out",
            )
        _tell_authority(authority.renew_itself(folder, 3650 if days is None else days), as_json)
        return
    _check_out(out)
    issued = authority.renew(folder, name, 90 if days is None else days)
    _tell_issued(issued, out, folder, as_json)


@ca.command()
@click.argument("name")
@_folder
@click.option(
    "--fingerprint",
    help="Revoke only the certificate with this fingerprint. [default: all of NAME]",
)
@_json
def revoke(name: str, folder: Path, fingerprint: str | None, as_json: bool) -> None:
    """Take the party NAME off the roster, so that servers refuse it.

    \b
      fedvi ca revoke north --ca authority

    Copy roster.json to the server, unless the server reads this one. It then refuses NAME's next call.
    """
    count = authority.revoke(folder, name, fingerprint)
    if as_json:
        tables.print_json({"name": name, "revoked": count})
        return
    click.echo(f"revoked {count} certificate{'' if count == 1 else 's'} of {name}")
    click.echo(f"the server refuses {name} once it has {folder / 'roster.json'}")


@ca.command("list")
@_folder
@click.option("--json", "as_json", is_flag=True, help="Print the roster as JSON.")
def listing(folder: Path, as_json: bool) -> None:
    """Show who is on the roster, until when, and who was revoked.

    \b
      fedvi ca list --ca authority
    """
    own, members = authority.members(folder)
    at = certificates.now()
    rows = [
        {
            "name": name,
            "role": member.role,
            "state": _state(item, at),
            **item._asdict(),
        }
        for name, member in members.items()
        for item in member.certificates
    ]
    if as_json:
        tables.print_json({"authority": _described(own), "certificates": rows})
        return
    console = tables.console()
    title = f"Roster of {own.name}, until {certificates.day(own.not_after)}"
    names = ["name", "role", "state", "until", "certificate"]
    cells = [
        [
            row["name"],
            row["role"],
            row["state"],
            row["not_after"][:10],
            row["fingerprint"][:16] + "…",
        ]
        for row in rows
    ]
    console.print(tables.grid(names, cells, title, names), crop=False)
    click.echo(f"authority's fingerprint: {own.fingerprint}")


def _state(item: Listing, at: datetime.datetime) -> str:
    if item.revoked is not None:
        return "revoked"
    return "expired" if datetime.datetime.fromisoformat(item.not_after) < at else "active"


def _check_out(out: Path | None) -> None:
    """Refuses before signing: a certificate that is on the roster should be in somebody's hands."""
    if out is not None and out.exists():
        raise errors.ConfigError(f"{out} is there already, and is not overwritten")


def _tell_authority(made: authority.Created, as_json: bool) -> None:
    if as_json:
        tables.print_json(_described(made))
        return
    until = certificates.day(made.not_after)
    tables.say_facts({"authority": made.name, "fingerprint": made.fingerprint, "until": until})
    click.echo(
        f"give {made.path} to every party, and send the fingerprint over a different channel"
    )


def _tell_issued(issued: authority.Issued, out: Path | None, folder: Path, as_json: bool) -> None:
    path = out or Path(f"{issued.name}.pem")
    files.create(path, issued.pem, files.PUBLIC, "give --out; `fedvi ca renew` signs it once more")
    content: dict[str, Any] = {
        "name": issued.name,
        "role": issued.role,
        "hosts": list(issued.hosts),
        "key": issued.key,
        "fingerprint": issued.fingerprint,
        "not_after": issued.not_after.isoformat(),
        "certificate": str(path),
    }
    if as_json:
        tables.print_json(content)
        return
    facts = {key: content[key] for key in ("name", "role", "hosts", "key", "fingerprint")}
    facts |= {"hosts": ", ".join(issued.hosts), "until": certificates.day(issued.not_after)}
    tables.say_facts(facts)
    click.echo(f"return {path}, with {folder / 'ca.pem'}, to {issued.name}")


def _described(made: authority.Created) -> dict[str, Any]:
    return {
        "name": made.name,
        "fingerprint": made.fingerprint,
        "not_after": made.not_after.isoformat(),
        "certificate": str(made.path),
    }
