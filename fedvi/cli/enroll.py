"""`fedvi enroll`: a party's key and request, and later the certificate that came back."""

import sys
from pathlib import Path
from typing import Any

import click

from fedvi import errors
from fedvi.cli._flags import FILE, FOLDER
from fedvi.report import tables
from fedvi.transport import certificates, enrolment, identity

__all__ = ["enroll"]


@click.command()
@click.argument("name")
@click.option(
    "--dir",
    "folder",
    required=True,
    type=FOLDER,
    help="Folder for this party's key and certificates; other commands take it as --tls.",
)
@click.option(
    "--role",
    type=click.Choice(certificates.ROLES),
    help="client: a site; server; admin: an operator, who pauses and stops runs. [default: client]",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="For a server: a DNS name or IP address that clients dial. May be repeated.",
)
@click.option(
    "--keep-key", is_flag=True, help="Request a new certificate for the key that the folder has."
)
@click.option(
    "--certificate",
    type=FILE,
    help="Install this certificate, which came back from the coordinator.",
)
@click.option(
    "--ca", "authority", type=FILE, help="The authority's ca.pem; not needed if the folder has it."
)
@click.option(
    "--fingerprint",
    help="The SHA-256 that ca.pem must have; the coordinator sends it over a different channel. Needed the "
    "first time. On a terminal it may be left out: you then compare the fingerprint of ca.pem yourself.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
def enroll(
    name: str,
    folder: Path,
    role: str | None,
    hosts: tuple[str, ...],
    keep_key: bool,
    certificate: Path | None,
    authority: Path | None,
    fingerprint: str | None,
    as_json: bool,
) -> None:
    """Make the key of the party NAME and a request for a certificate; later, install the certificate.

    \b
      fedvi enroll north --dir tls  # then send tls/request.pem to the coordinator
      fedvi enroll north --dir tls --certificate north.pem --ca ca.pem \\
        --fingerprint HEX

    The key never leaves this folder. A client's NAME is that of its entry in the study.

    Get HEX from the coordinator over the telephone, not with ca.pem: whoever could replace ca.pem on its
    way could replace HEX too. Leave it out to renew a certificate under the authority that the folder
    trusts.
    """
    if certificate is None:
        if authority is not None or fingerprint is not None:
            raise errors.ConfigError(
                "--ca and --fingerprint were given without --certificate",
                "they are checked when the signed certificate is installed",
            )
        _tell_request(enrolment.request(folder, name, role or "client", hosts, keep_key), as_json)
        return
    if role is not None or hosts or keep_key:
        raise errors.ConfigError(
            "--role, --host and --keep-key are for a request, and --certificate installs what was signed",
            "leave them out, or make a new request without --certificate",
        )
    known = (folder / identity.AUTHORITY).exists()
    if fingerprint is None and not known and sys.stdin.isatty():
        fingerprint = _compared(authority or folder / identity.AUTHORITY)
    installed = enrolment.install(folder, name, certificate, authority, fingerprint)
    _tell_installed(installed, folder, as_json)


def _compared(authority: Path) -> str:
    """Returns the fingerprint of an authority, once the user has confirmed it.

    Raises:
      click.Abort: the user did not confirm it.
    """
    found = certificates.fingerprint(
        certificates.read(authority, "give the authority's ca.pem: --ca")
    )
    click.echo(f"the authority's fingerprint is\n  {found}", err=True)
    click.confirm(
        "Call the coordinator, and compare all 64 digits. Did they read the same to you?",
        abort=True,
        err=True,
    )
    return found


def _tell_request(made: enrolment.Request, as_json: bool) -> None:
    if as_json:
        content = {**made._asdict(), "path": str(made.path), "hosts": list(made.hosts)}
        tables.print_json(content)
        return
    click.echo(f"name     {made.name}")
    click.echo(f"role     {made.role}")
    if made.hosts:
        click.echo(f"hosts    {', '.join(made.hosts)}")
    click.echo(f"key      {made.key}")
    click.echo(f"send {made.path} to the coordinator, who compares the key's fingerprint with you")


def _tell_installed(installed: enrolment.Installed, folder: Path, as_json: bool) -> None:
    own = installed.identity
    content: dict[str, Any] = {
        "name": own.name,
        "role": own.role,
        "fingerprint": own.fingerprint,
        "not_after": own.not_after.isoformat(),
        "authority": installed.authority,
    }
    if as_json:
        tables.print_json(content)
    else:
        facts = {key: content[key] for key in ("name", "role", "fingerprint")}
        facts |= {"until": certificates.day(own.not_after), "authority": installed.authority}
        tables.say_facts(facts)
        click.echo(f"installed in {folder}; start with --tls {folder}")
    warning = identity.expiry_warning(own)
    if warning is not None:
        click.echo(f"warning: {warning}", err=True)
