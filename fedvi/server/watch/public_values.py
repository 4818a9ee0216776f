"""A run as plain values, and text that is safe to show; imports little, since commands use it too."""

from collections.abc import Mapping
from typing import Any

from fedvi import errors
from fedvi.federation.progress import StagePlace

__all__ = ["printable", "remarks", "run_as_dict", "span", "state_of", "where"]


# By how a client is let go; a server of an earlier version does not say, and a later one may say more.
_LET_GO = {
    None: "`fedvi remove --client {}` lets it go on without",
    "remove": "`fedvi remove --client {}` lets it go on without, for good",
    "remove_for_now": "`fedvi remove --client {}` lets it go on without, until `fedvi admit`",
    "revoke": "`fedvi ca revoke {} --ca FOLDER` lets later rounds go on without",
    "": "without it the run cannot go on",
}

# Seconds after which a client that has never called is worth a line.
_PATIENCE = 120.0


def run_as_dict(run: Any) -> dict[str, Any]:
    """Returns a run (an admin ``Run``) as plain values for JSON; unknown values are null.

    Its texts are the server's, whoever that is: each is one line without what steers a terminal.
    """
    said = errors.in_one_line

    def known(message: Any, field: str) -> Any:
        return getattr(message, field) if message.HasField(field) else None

    return {
        "server": "running",
        "study": said(run.study),
        "digest": said(run.study_digest),
        "fedvi": said(run.software),
        "status": said(run.status),
        "reason": said(run.reason),
        "tls": "mtls" if run.tls else "insecure",
        "schedule": said(run.schedule),
        "version": run.version,
        "rounds": run.rounds,
        "rounds_planned": run.rounds_planned,
        "stage": {
            field: said(value) if isinstance(value := getattr(run.stage, field), str) else value
            for field in StagePlace._fields
        }
        if run.HasField("stage")
        else None,
        "gap": known(run, "gap"),
        "damping": known(run, "damping"),
        "uptime_seconds": round(run.uptime_seconds, 3),
        "awaited": [said(name) for name in run.awaited],
        "deadline_seconds": known(run, "deadline_seconds"),
        "let_go": said(run.let_go) if run.HasField("let_go") else None,
        "epsilon_budget": known(run, "epsilon_budget"),
        "unpriced": None,
        "clients": [
            {
                "name": said(row.name),
                "state": said(row.state),
                "visits": row.visits,
                "turns": row.turns,
                "charged": row.charged,
                "task": said(row.task_id),
                "reason": said(row.reason),
                "seen_seconds": known(row, "seen_seconds"),
                "usual_seconds": known(row, "usual_seconds"),
                "silent": row.silent,
                "epsilon": known(row, "epsilon"),
                "delta": known(row, "delta"),
                "ledger": f"{row.ledger_count}:{said(row.ledger_hash)}" if row.ledger_hash else "",
            }
            for row in run.clients
        ],
    }


def where(run: Mapping[str, Any]) -> str:
    """Describes how far a run (from ``run_as_dict``) is; with a script, within its stage.

    >>> where({"rounds": 3, "rounds_planned": 4, "stage": None})
    'round 3 of 4'
    """
    if run["stage"] is not None:
        return StagePlace(**run["stage"]).words
    return f"round {run['rounds']} of {run['rounds_planned']}"


def state_of(row: Mapping[str, Any]) -> str:
    """Describes what a client (a row of ``run_as_dict``) is doing, and whether it is silent."""
    said = row["state"] + (f": {row['reason']}" if row["reason"] else "")
    return f"{said}, SILENT" if row["silent"] else said


def remarks(run: Mapping[str, Any]) -> list[str]:
    """Explains which clients are silent and what happens next, and charges without a folded answer."""
    return [*_silences(run), *_unfolded(run)]


def _silences(run: Mapping[str, Any]) -> list[str]:
    found = []
    for row in run["clients"]:
        seen, usual = row["seen_seconds"], row["usual_seconds"]
        if row["silent"]:
            since = "not heard of since the server started" if seen is None else f"for {span(seen)}"
            rhythm = (
                ""
                if usual is None
                else f", usually heard of every {span(max(usual, 1.0))} or more often"
            )
            found.append(f"{row['name']} is SILENT {since}{rhythm}; {_then(run, row['name'])}")
        elif row["state"] == "unseen" and (run["uptime_seconds"] or 0.0) > _PATIENCE:
            found.append(f"{row['name']} has not called yet; {_then(run, row['name'])}")
    return found


def _then(run: Mapping[str, Any], name: str) -> str:
    """Says what happens next if a client stays away."""
    left = run["deadline_seconds"]
    if name not in run["awaited"]:
        return "the run does not wait for it"
    if left is None:
        return "the run waits for it: " + _LET_GO.get(run["let_go"], _LET_GO[None]).format(name)
    if left == 0.0:
        return "its time is over, and the run waits for enough others to answer"
    return f"the run goes on without it in {span(left)}, if enough others have answered"


def _unfolded(run: Mapping[str, Any]) -> list[str]:
    """Explains each difference between charged releases and folded answers."""
    found = []
    for row in run["clients"]:
        under_way = row["state"] in ("working", "uploading", "answered")
        lost = row["charged"] - row["visits"] - under_way
        if row["charged"] and lost > 0:
            releases = f"{row['charged']} release{'s' if row['charged'] > 1 else ''}"
            answers = f"{row['visits']} answer{' was' if row['visits'] == 1 else 's were'}"
            one = lost == 1
            fates = [
                "did not arrive",
                "came too late",
                "was made anew" if one else "were made anew",
            ]
            if row["state"] == "away":  # it may have answered a round that is still open
                fates.append("waits for its round" if one else "wait for their round")
            found.append(
                f"{row['name']} was charged for {releases}, and {answers} folded: {lost} "
                f"{', '.join(fates[:-1])} or {fates[-1]}, and {'stays' if one else 'stay'} charged"
            )
    return found


def printable(text: str) -> str:
    """Replaces characters that control a terminal or change the writing direction.

    >>> printable("north\\x1b[2J left")
    'north\N{REPLACEMENT CHARACTER}[2J left'
    """
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def span(seconds: float) -> str:
    """Formats a duration for people.

    >>> span(5.2), span(200.0), span(8000.0)
    ('5 s', '3 min', '2.2 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
