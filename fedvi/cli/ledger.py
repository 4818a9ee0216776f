"""`fedvi ledger show|verify`: what a client spent, for whoever has to check it."""

import sys
from pathlib import Path
from typing import Any

import click

from fedvi import errors
from fedvi.cli._flags import code_flags
from fedvi.privacy import events, statement
from fedvi.privacy import ledger as ledgers
from fedvi.report import tables
from fedvi.results import kept_certificates, ledger_files, transcripts
from fedvi.results.kept_certificates import Certified
from fedvi.results.transcripts import Agreement, Replayed
from fedvi.run import server_plan

__all__ = ["ledger"]

_RELATION = {"add_remove": "add/remove", "substitute": "substitute"}


@click.group()
def ledger() -> None:
    """Show or verify what clients have spent, from the ledger alone.

    \b
      fedvi simulate study.toml --out run
      fedvi ledger show run
      fedvi ledger show run --statement
      fedvi ledger verify run --recompute

    A ledger is a chain of entries: each release is reserved (charged, before a record is read), then
    sealed (its noised bytes are fixed), then sent. It holds no data and no secret, so a site may hand
    it to an auditor.

    PATH is an exported ledger (.jsonl), a client's store (ledger.sqlite), a server's state with a ledger
    of each client (state.sqlite; state.sqlite/CLIENT for one of them), or a folder of these. It may be in
    use, and nothing is changed. An export beside its store is counted once.
    """


@ledger.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--last", default=20, show_default=True, help="List at most this many releases.")
@click.option(
    "--statement",
    "as_statement",
    is_flag=True,
    help="Print the privacy claim instead, recomputed, with its conditions and exclusions.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def show(path: Path, last: int, as_statement: bool, as_json: bool) -> None:
    """Print what each ledger promises, and each release with its ε.

    \b
      fedvi ledger show run
      fedvi ledger show .fedvi/trauma/north --last 5

    The running ε is for information only. The ε to state is that of all releases that the study plans,
    whenever it stops; `fedvi ledger verify --recompute` prints it. A damaged ledger is not shown, and
    the exit code is 1.
    """
    if last < 1:
        raise errors.ConfigError(f"--last is {last}, expected at least 1")
    books = ledger_files.read(path)
    if as_statement:
        _state(books, as_json)
        _leave(books)
        return
    rows = [(book, _listed(book, last)) for book in books]
    if as_json:
        content = [
            {
                **_described(book),
                "releases": [
                    {
                        "release_id": row.release_id,
                        "state": row.state,
                        "event": events.to_json(row.event),
                        "epsilon": row.epsilon,
                    }
                    for row in listed
                ],
            }
            for book, listed in rows
        ]
        tables.print_json(content)
    else:
        for book, listed in rows:
            _show(book, listed)
    _leave(books)


@ledger.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--recompute",
    "again",
    is_flag=True,
    help="Price what was planned and what was reserved, by every accountant.",
)
@click.option("--anchor", help="N:HASH that `verify` printed before: detects a rollback or a fork.")
@click.option("--delta", type=float, help="Price at this δ instead of the ledger's own.")
@click.option(
    "--ca",
    "authority",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The authority's ca.pem: check that it vouches for all sites of masked sums.",
)
@click.option(
    "--transcript",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The folder that `fedvi server --transcript` made: recompute all masked sums and folds, and hold "
    "them against what sites kept. Needs --study.",
)
@click.option(
    "--study",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The study file, for --transcript.",
)
@click.option(
    "--result",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The run's posterior.npz, to be held against --transcript.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@code_flags
def verify(
    path: Path,
    again: bool,
    anchor: str | None,
    delta: float | None,
    authority: Path | None,
    transcript: Path | None,
    study: Path | None,
    result: Path | None,
    as_json: bool,
) -> None:
    """Check that ledgers are whole, and with --recompute their prices.

    It recomputes every hash and every state, and prints an anchor: the number of entries and the last
    hash, N:HASH. Keep it: only an earlier anchor, given with --anchor, shows that entries are missing
    from the end.

    \b
      fedvi ledger verify run --recompute
      fedvi ledger verify .fedvi/trauma/north --anchor 12:HASH

    With --recompute, ε is computed from the ledger and nothing else, so that it can be held against
    a published statement. "stated" is the number of the promise. A ledger for life is priced by the
    filter that guards its cap, at the cap's δ: its releases were not planned together. If several
    ledgers of one site are given, they are also priced together: an upper bound if the studies were
    planned together; if later ones were chosen after seeing earlier results, the cap of the site's
    ledger for life holds.

    If sums are masked and sites may be missing, a site's store has a certificate of each round. Then it
    also checks the signatures of each sum that holds an answer of the site, by the keys that all sites
    signed, and with --ca that the authority vouches for these sites.

    \b
      fedvi ledger verify .fedvi/heart-disease/north --study study.toml \\
        --transcript transcript --result result/posterior.npz

    With --transcript it adds up the masked answers of each round, folds the sums as the server should
    have, and compares: the answers with ledgers and certificates, the tasks with those that sites
    answered, and the posterior with --result.

    Exit codes: 0 all ledgers are whole; 1 one is not, or a signature or the transcript is wrong; 5
    --recompute finds that a promise is exceeded, or that more is reserved than planned.
    """
    if delta is not None and not 0 < delta < 1:
        raise errors.ConfigError(f"--delta is {delta}, expected above 0 and below 1")
    books = ledger_files.read(path)
    if anchor is not None:
        books = [_anchored(books, anchor)]
    counted = _counted(books)
    whole = [found for _, found in counted]
    priced = {
        book.path: ledger_files.prices(found, delta)
        for book, found in counted
        if again and _has_price(found, delta)
    }
    exceeded = {book.path: ledger_files.excesses(found) for book, found in counted if again}
    vouching = None if authority is None else authority.read_bytes()
    certified = {
        book.path: None if book.ledger is None else kept_certificates.check(book.path, vouching)
        for book in books
    }
    totals = ledger_files.totals(whole, delta) if again else []
    replayed, wrong = None, ""
    try:
        replayed = _replayed(transcript, study, result)
    except errors.ProtocolError as error:
        wrong = error.message
    agreements = {
        book.path: None if replayed is None else transcripts.check(replayed, book.path)
        for book in books
    }
    if as_json:
        content: dict[str, Any] = {
            "ledgers": [
                {
                    **_described(book),
                    **_certified_as_dict(certified[book.path]),
                    **_agreement_as_dict(agreements[book.path]),
                    "prices": [p._asdict() for p in priced.get(book.path, [])],
                    "exceeded": exceeded.get(book.path, []),
                }
                for book in books
            ],
            "totals": [price._asdict() for price in totals],
            "transcript": replayed
            and {
                "digest": replayed.digest,
                "rounds": len(replayed.rounds),
                "folded": len(replayed.digests),
                "done": replayed.is_done,
            },
            "transcript_problem": wrong,
        }
        tables.print_json(content)
    else:
        for book in books:
            tables.say([_verdict(book), *_certified(certified[book.path])])
            tables.say(_agreed(agreements[book.path], replayed))
            if not again or book.ledger is None or book.part_of is not None:
                continue
            if priced.get(book.path):
                _price_table(priced[book.path], f"ε of {_name(book.ledger.header)}{_mark(book)}")
            else:
                tables.say(["  " + _without_price(book.ledger)])
            for line in exceeded.get(book.path, []):
                tables.say([f"  EXCEEDED: {line}"])
        if replayed is not None:
            tables.say(_recomputed(replayed, result))
        if wrong:
            tables.say([f"THE TRANSCRIPT DOES NOT HOLD: {wrong}"])
        if totals:
            _price_table(totals, "ε of all studies of a site, had they been planned together")
            for mark in dict.fromkeys(found.header.mark for found in whole if found.header.mark):
                tables.say([f"  MARK: {mark}"])
    if any(exceeded.values()):
        sys.exit(errors.PrivacyError.exit_code)
    if wrong or any(f and f.problem for f in (*certified.values(), *agreements.values())):
        sys.exit(1)
    _leave(books)


def _state(books: list[ledger_files.Book], as_json: bool) -> None:
    whole = [found for _, found in _counted(books)]
    claims = ledger_files.stated(whole)
    if as_json:
        tables.print_json([statement.as_dict(claim) for claim in claims])
        return
    for book in books:
        if book.ledger is None or book.part_of is not None:
            tables.say([_verdict(book)])
    for found in whole:
        if ledgers.is_lifetime(found.header):
            tables.say([f"{_name(found.header)}: {_spent_for_life(found)}; no claim on one study"])
    if claims or not all(ledgers.is_lifetime(found.header) for found in whole):
        click.echo(statement.to_text(claims), nl=False)


def _counted(books: list[ledger_files.Book]) -> list[tuple[ledger_files.Book, ledgers.Ledger]]:
    return [(book, book.ledger) for book in books if book.ledger is not None and not book.part_of]


def _name(header: ledgers.Header) -> str:
    if ledgers.is_lifetime(header):
        return f"{header.client}, all studies for life"
    return f"{header.client}, study {header.study}"


def _spent_for_life(found: ledgers.Ledger) -> str:
    spend = ledger_files.life(found)
    if spend is None:
        return "the header holds no cap for life: the site's policy does"
    return (
        f"ε {tables.bound(spend.epsilon)} spent of {spend.cap:g}, δ = {spend.delta:g}, "
        f"{ledger_files.BY_THE_FILTER}"
    )


def _listed(book: ledger_files.Book, last: int) -> list[ledger_files.Release]:
    if book.ledger is None or book.part_of is not None:
        return []
    return ledger_files.releases(book.ledger, last)


def _has_price(found: ledgers.Ledger, delta: float | None) -> bool:
    if ledgers.is_lifetime(found.header):
        return True
    return found.header.protected and (delta is not None or found.header.delta is not None)


def _without_price(found: ledgers.Ledger) -> str:
    if ledgers.is_lifetime(found.header):
        return _spent_for_life(found)
    how = "; give --delta" if found.header.protected else ", all of it is unprotected (ε = ∞)"
    return "no promise: nothing to price" + how


def _anchored(books: list[ledger_files.Book], text: str) -> ledger_files.Book:
    if len(books) != 1:
        raise errors.ConfigError(
            f"--anchor is of one ledger, and {len(books)} were given", "name the ledger's file"
        )
    count, _, digest = text.partition(":")
    if not (count.isascii() and count.isdigit() and len(count) < 16 and len(digest) == 64):
        raise errors.ConfigError(
            f"--anchor is {text!r:.100}, expected N:HASH", "as `fedvi ledger verify` printed it"
        )
    book = books[0]
    if book.ledger is None:
        return book
    try:
        ledgers.check_anchor(book.ledger, ledgers.Anchor(int(count), digest.lower()))
    except errors.LedgerError as error:
        why = f"{error.message}. Unless the anchor is of another site or run: {error.hint}"
        return ledger_files.Book(book.path, None, why)
    return book


def _described(book: ledger_files.Book) -> dict[str, Any]:
    if book.ledger is None:
        return {"path": str(book.path), "whole": False, "problem": book.problem}
    header = book.ledger.header._asdict()
    planned = book.ledger.header.planned
    header["planned"] = None if planned is None else events.to_json(planned)
    return {
        "path": str(book.path),
        "whole": True,
        "part_of": None if book.part_of is None else str(book.part_of),
        "header": header,
        "mark": book.ledger.header.mark,
        "anchor": str(ledgers.anchor(book.ledger)),
        "reserved": ledgers.reservations(book.ledger),
    }


def _mark(book: ledger_files.Book) -> str:
    return (
        ""
        if book.ledger is None or not book.ledger.header.mark
        else (f" — {book.ledger.header.mark}")
    )


def _verdict(book: ledger_files.Book) -> str:
    if book.ledger is None:
        return f"{book.path}: NOT WHOLE: {book.problem}"
    counted = f", counted once: the beginning of {book.part_of}" if book.part_of else ""
    return f"{book.path}: whole{counted}, anchor {ledgers.anchor(book.ledger)}{_mark(book)}"


def _certified(found: Certified | None) -> list[str]:
    """Says which of a site's masked answers were opened for a sum that enough sites had signed."""
    if found is None:
        return []
    if found.problem:
        return [f"  CERTIFICATES DO NOT HOLD: {found.problem}"]
    if not found.sets:
        # As it should be where all sites must answer.
        return (
            [f"  none of {found.sealed} masked answers has a certificate"] if found.sealed else []
        )
    sizes = [len(sites) for sites in found.sets.values()]
    sites = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    lacking = found.sealed - len(sizes)
    return [
        f"  {len(sizes)} of {found.sealed} masked answers have a certificate: opened for the sum of "
        f"{sites} sites, which enough sites signed. If no more sites work with the server than was "
        "promised, no other sum of these rounds was opened",
        f"  {_whose(found)}",
        *(
            [f"  {lacking} without: their rounds were not opened here, or the certificate is gone"]
            if lacking
            else []
        ),
    ]


def _replayed(transcript: Path | None, study: Path | None, result: Path | None) -> Replayed | None:
    """Recomputes a run from its transcript.

    Raises:
      ConfigError: the flags do not go together, or a file cannot be read.
      ProtocolError: the transcript contradicts itself, or the result.
    """
    if transcript is None or study is None:
        given = [
            name for name, value in (("--transcript", transcript), ("--study", study)) if value
        ]
        given += ["--result"] if result else []
        if given:
            raise errors.ConfigError(
                f"{given[0]} is given alone, expected --transcript and --study",
                "a transcript is replayed by the study's own rules",
            )
        return None
    plan = server_plan.prepare(study)
    spec = server_plan.to_spec(plan)
    replayed = transcripts.replay(spec, transcript)
    if result is not None:
        transcripts.check_result(spec, replayed, result, plan.names)
    return replayed


def _recomputed(replayed: Replayed, result: Path | None) -> list[str]:
    folded = len(replayed.digests)
    given_up = len(replayed.rounds) - folded
    also = ""
    if given_up:
        also += f" {given_up} {'round was' if given_up == 1 else 'rounds were'} given up."
    if not replayed.is_done:
        also += " The study's schedule was not done then."
    end = "" if result is None else f", and the last gives the posterior in {result}"
    return [
        f"transcript {replayed.digest}: {folded} of its {len(replayed.rounds)} rounds have a sum, "
        f"recomputed from masked answers; the folds give each round's task{end}.{also} Compare this digest "
        "with that of the other sites: a server may show each site another transcript"
    ]


def _agreed(found: Agreement | None, replayed: Replayed | None) -> list[str]:
    if replayed is None:
        return []
    if found is None:
        return ["  no masked answers are kept here: nothing to compare"]
    if found.problem:
        return [f"  THE TRANSCRIPT IS NOT OF THIS SITE'S RUN: {found.problem}"]
    lacking = found.answers - found.tasks
    sums = len(replayed.digests)
    more = []
    if found.sets < sums:
        more += [
            f"  of {sums - found.sets} of {sums} sums it has no digest of other sites' answers: only these "
            "sites can check them"
        ]
    if found.given_up:
        more += [
            f"  given up, as the transcript has it: {found.given_up} of the sums that it helped to open"
        ]
    return [
        f"  {found.answers} of {sums} sums of the transcript hold this site's answer as the ledger sealed "
        "it; "
        + (
            "it was asked what the transcript says"
            if not lacking
            else f"of {lacking} it kept no digest of what it was asked"
        ),
        *more,
    ]


def _agreement_as_dict(found: Agreement | None) -> dict[str, Any]:
    if found is None:
        return {}
    return {
        "in_transcript": found.answers,
        "tasks_in_transcript": found.tasks,
        "sets_in_transcript": found.sets,
        "given_up_in_transcript": found.given_up,
        "transcript_problem": found.problem,
    }


def _whose(found: Certified) -> str:
    """Says what is known of the keys that sets were signed with."""
    if not found.roster:
        return (
            "whose keys these are was checked when sites agreed on them, and is not known any more"
        )
    if found.is_vouched:
        return f"the keys are those of the sites that the authority knows, of roster {found.roster}"
    return (
        f"the keys are those that sites of roster {found.roster} signed: compare it with that of the other "
        "sites, or give --ca"
    )


def _certified_as_dict(found: Certified | None) -> dict[str, Any]:
    if found is None:
        return {}
    sets = {str(visit): list(sites) for visit, sites in found.sets.items()}
    return {
        "certified": sets,
        "sealed": found.sealed,
        "certificate_problem": found.problem,
        "roster": found.roster,
        "roster_vouched": found.is_vouched,
    }


def _show(book: ledger_files.Book, listed: list[ledger_files.Release]) -> None:
    if book.ledger is None or book.part_of is not None:
        tables.say([_verdict(book)])
        return
    header = book.ledger.header
    mark = _mark(book)
    rows = [
        ("study", f"{header.study}  {header.study_digest[:16]}"),
        ("unit, relation, view", f"{header.unit}, {_RELATION[header.relation]}, {header.view}"),
    ]
    if ledgers.is_lifetime(header):
        rows[0] = ("study", "all studies of this site, charged for life")
        rows.append(("for life", _spent_for_life(book.ledger)))
    elif header.epsilon is not None and header.delta is not None:
        rows.append(
            ("promise", f"ε ≤ {header.epsilon:g}, δ = {header.delta:g}, by {header.accountant}")
        )
    elif not header.protected:
        rows.append(("promise", "none: un-noised statistics may leave (ε = ∞)"))
    if header.planned is not None:
        rows.append(("planned", ledger_files.words(header.planned)))
    rows.append(("reserved", f"{ledgers.reservations(book.ledger)} releases"))
    rows.append(("anchor", str(ledgers.anchor(book.ledger))))
    console = tables.console()
    console.print(tables.plan_table(rows, f"Ledger of {header.client}{mark}"), crop=False)
    if listed:
        names = ["release", "state", "what was done", "ε add/remove so far", "ε substitute so far"]
        cells = [
            [
                row.release_id,
                row.state,
                ledger_files.words(row.event),
                tables.bound(row.epsilon.get("add_remove")),
                tables.bound(row.epsilon.get("substitute")),
            ]
            for row in listed
        ]
        by = f", ε {ledger_files.BY_THE_FILTER}" if ledgers.is_lifetime(header) else ""
        title = f"Last {len(listed)} releases of {header.client}{by}{mark}"
        console.print(tables.grid(names, cells, title, names[:3]), crop=False)


def _price_table(rows: list[ledger_files.Price], title: str) -> None:
    """One line for each relation and accountant, its parts side by side."""
    parts = list(dict.fromkeys(row.part for row in rows))
    lines: dict[tuple[str, str], dict[str, ledger_files.Price]] = {}
    for row in rows:
        lines.setdefault((row.relation, row.accountant), {})[row.part] = row
    names = ["relation", "accountant", *(f"ε {part}" for part in parts), "δ", "budget"]
    cells = []
    for (relation, accountant), found in lines.items():
        first = next(iter(found.values()))
        known = [row.epsilon for row in found.values()]
        kept = all(e is not None and e <= (first.budget or 0.0) for e in known)
        against = "–"
        if first.budget is not None:
            against = f"{first.budget:g} {'kept' if kept else 'EXCEEDED'}"
        epsilons = ["no price" if e is None else tables.bound(e) for e in known]
        stated = " (stated)" if first.stated else ""
        cells.append(
            [
                _RELATION[relation],
                accountant + stated,
                *epsilons,
                tables.bound(first.delta),
                against,
            ]
        )
    tables.console().print(tables.grid(names, cells, title, names[:2]), crop=False)


def _leave(books: list[ledger_files.Book]) -> None:
    if any(book.ledger is None for book in books):
        sys.exit(1)
