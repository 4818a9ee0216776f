"""`fedvi report RUN`: a finished run as one page to read, to print and to sign."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedvi import errors
from fedvi.cli._audit_quoted import quoted
from fedvi.cli._flags import FILE, FOLDER, code_flags

if TYPE_CHECKING:
    from fedvi.report.contents import Contents

__all__ = ["report"]

_FORMATS = "html,md,json,csv"
# So many sites are printed at most.
_MOST_SITES = 40


@click.command()
@click.argument("run", type=FOLDER)
@click.option(
    "--out",
    type=FOLDER,
    help="Folder for the files. An earlier report is replaced. If one of its files was changed (signed, "
    "for example), or is not a report's, nothing is written. [default: RUN/report]",
)
@click.option(
    "--format",
    "formats",
    default=_FORMATS,
    show_default=True,
    metavar="LIST",
    help="Which files to write, separated by commas.",
)
@click.option(
    "--public",
    type=FILE,
    help="Also score predictions on this file, as `fedvi evaluate` does. It must be public, or yours, "
    "without a record of any site: what is shown of it is not protected.",
)
@click.option(
    "--draws",
    type=click.IntRange(min=2),
    help="Draws of θ for --public, where `fedvi evaluate` needs draws. [default: as there]",
)
@click.option(
    "--statement",
    "statements",
    multiple=True,
    metavar="SITE",
    help="Write the privacy statement of this site alone. May be repeated. [default: all sites, up to 20]",
)
@click.option(
    "--vocabulary",
    type=FILE,
    help="For a topic model: the words, one per line, in the order of their numbers. [default: words are "
    "shown by number]",
)
@click.option(
    "--audit",
    type=FILE,
    help="Quote this output of `fedvi audit STUDY --json`, in the report and on each statement.",
)
@click.option(
    "--pooled",
    is_flag=True,
    help="Also show the fit to all records pooled, which `fedvi simulate --pooled` made. It is NOT "
    "private: only for whoever may see it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, and no summary.")
@code_flags
def report(
    run: Path,
    out: Path | None,
    formats: str,
    public: Path | None,
    draws: int | None,
    statements: tuple[str, ...],
    vocabulary: Path | None,
    audit: Path | None,
    pooled: bool,
    as_json: bool,
) -> None:
    """Write a report on a finished run: one HTML page that loads nothing from elsewhere, the same as
    Markdown, and its numbers as JSON and CSV. HTML and Markdown need fedvi[report].

    RUN is the --out folder of `fedvi simulate`, or the --state folder of a server.

    The first page is for whoever reads nothing else: what was found, how sure it is, and what was
    promised to the records. Then come the posterior, each site beside the others, prior against
    posterior, convergence, who took part, what each site contributed, and ε over releases. The last
    pages are a privacy statement for each site, on a page of its own, to be signed unless the run was a
    simulation. All of it was released or is public, except for what --pooled and --public add. Ledgers
    are verified first, and every ε is recomputed from them: a run whose ledgers do not verify gets no
    report.

    \b
      fedvi report run
      fedvi report run --statement cleveland --format html --out for-cleveland

    Exit codes: 0 written; 2 RUN or the command line is wrong; 5 a ledger does not verify.
    """
    from fedvi.report import contents as values
    from fedvi.report import exports, tables
    from fedvi.results import reporting

    wanted = _wanted(formats)
    predictions = None if public is None else _predictions(run, public, draws)
    name = "" if public is None else public.name
    words = None if vocabulary is None else _words(vocabulary)
    contents = reporting.gather(run, statements, predictions, name, words, pooled)
    if audit is not None:
        contents = contents._replace(audit=quoted(audit, contents.digest))
    written = exports.write(contents, run / "report" if out is None else out, wanted)
    if as_json:
        tables.print_json(values.as_dict(contents))
        return
    _show(contents, written)


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise errors.ConfigError(
            f"no words can be read at --vocabulary {path}: {error}", "one word a line, in UTF-8"
        ) from error


def _wanted(formats: str) -> list[str]:
    known = _FORMATS.split(",")
    wanted = [name.strip() for name in formats.split(",")]
    for name in wanted:
        if name not in known:
            raise errors.ConfigError(
                f"--format names {name!r}, expected some of {', '.join(known)}",
                errors.did_you_mean(name, known),
            )
    return wanted


def _predictions(run: Path, public: Path, draws: int | None) -> dict[str, Any]:
    from fedvi.results import evaluation, public_files

    found = evaluation.read_run(run)
    public_files.check(found.assembly.study, run, public, "--public")
    records = evaluation.read_records(found.assembly, public)
    return evaluation.held_against(found, records, draws).as_dict()


def _show(contents: "Contents", written: list[Path]) -> None:
    """Prints a summary."""
    from fedvi.report import sections, tables, wording

    console = tables.console()
    tables.say((f"! {line}" for line in sections.banner(contents)), style="bold")
    tables.say(contents.verdict)
    rows = [wording.as_row(row, contents.ratio) for row in contents.coefficients]
    title = f"Posterior of {contents.study}" + (f" — {contents.mark}" if contents.mark else "")
    ratio = contents.ratio if contents.gaussian else ""
    if contents.gaussian:
        table = tables.coefficient_table(rows, title, ratio, False, console.width)
    else:
        table = tables.moments_table(rows, title)
    console.print(table, crop=False)
    tables.say((*tables.ratio_notes(rows, ratio), *contents.remarks))
    names = ["site", "answers", "charged", "share", "ε add/remove", "ε substitute"]
    cells = []
    for site in contents.sites[:_MOST_SITES]:
        stated = {relation: tables.bound(epsilon) for relation, epsilon, _ in site.stated}
        unknown = "–" if contents.protected else "∞"
        cells.append(
            [
                site.name,
                str(site.answers),
                str(site.charged),
                tables.share(site.share),
                *(stated.get(relation, unknown) for relation in ("add_remove", "substitute")),
            ]
        )
    more = len(contents.sites) - len(cells)
    title = "Sites" + (f": the first {len(cells)}, {more} more in sites.csv" if more else "")
    console.print(tables.grid(names, cells, title, ("site",)), crop=False)
    if contents.predictions is not None:
        found = next(s for s in sections.sections(contents) if s.key == "predictions")
        for shown in found.tables[:1]:
            console.print(
                tables.grid(shown.names, shown.rows, found.title, shown.words), crop=False
            )
        tables.say(found.notes[:1])
    tables.say(_lines(contents, written))


def _lines(contents: "Contents", written: list[Path]) -> Iterator[str]:
    from fedvi.report import wording

    if contents.consortium is not None:
        for claim in contents.consortium.claims:
            yield f"{contents.consortium.site}: {wording.claim_in_words(claim)}"
    count, simulated = len(contents.statements), contents.source == "simulation"
    what = "privacy statements, of a simulation" if simulated else "privacy statements to sign"
    yield f"ledgers verified: {len(contents.sites)}; {what}: {count}"
    if not count:
        yield "of so many sites, write a statement by name: --statement SITE"
    yield f"written to {written[0].parent}: {', '.join(path.name for path in written)}"
