"""Shows which private mode suits a study, and which estimates would be lost in the noise."""

from collections.abc import Sequence

from fedvi.planning.advice import Mode, Outlook
from fedvi.planning.topics import TopicOutlook
from fedvi.report import tables

__all__ = ["show", "show_topics"]

_NAMED = 6


def show(found: Outlook) -> None:
    """Prints a table of the modes, at most 80 columns wide, and what follows from it."""
    console = tables.console()
    number = tables.number
    names = ["mode", "noise", "clip norm", "coefficients", "curvature", "if only summed"]
    cells = []
    offered = [mode for mode in found.modes if mode.noise_multiplier is not None]
    for mode in offered:
        signal = mode.signal
        cells.append(
            [
                mode.solver + (" *" if mode.current else ""),
                number(mode.noise_multiplier, 3),
                mode.clip_norm if isinstance(mode.clip_norm, str) else number(mode.clip_norm, 3),
                number(signal and signal.coefficients, 2),
                number(signal and signal.curvature, 2),
                number(mode.summed, 2),
            ]
        )
    title = "Signal to noise of each mode at this promise (* is this study's)"
    console.print(tables.grid(names, cells, title, ("mode",)), crop=False)
    numbers = found.numbers
    lines = [f"warning: {line}" for line in found.warnings]
    lines.append(
        f"recommended: {found.reason}"
        if found.recommended
        else f"no recommendation: {found.reason}"
    )
    lines += _left_out([mode for mode in found.modes if mode not in offered])
    lines.append(
        "These ratios are estimates, not promises. Below 1 the noise is larger than the signal. The last "
        "column is the ratio of a coefficient if only the sum of all answers were seen, where a mode "
        f"allows that. Assumed: uncorrelated columns of variance {number(numbers.variance, 2)} (1 if "
        f"standardised), {numbers.records} records at each of {numbers.clients} clients (with fewer, the "
        f"ratios are lower), {number(numbers.curvature, 2)} of information a record, and a prior sd of "
        f"{number(numbers.prior_sd, 3)}. If most columns are 0 or 1, the other modes do better with "
        "smaller clip norms than these."
        + (
            f" The study does not say how {tables.some(found.guessed, _NAMED)} spread in its records: "
            "where most records are alike, the ratios are several times lower."
            if found.guessed
            else ""
        )
    )
    tables.say(lines)


def _left_out(modes: Sequence[Mode]) -> list[str]:
    """Says in few words why modes are not offered to a study; no line if all are."""
    why: dict[str, list[str]] = {}
    for mode in modes:
        reason = mode.note.removeprefix(f"solver `{mode.solver}` ").partition(", found")[0]
        why.setdefault(reason, []).append(mode.solver)
    told = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in why.items())
    return [f"left out, as this study stands: {told}"] if told else []


def show_topics(found: TopicOutlook) -> None:
    """Prints how far topics stand out of the noise, and what would help."""
    number = tables.number
    lines = [
        f"signal to noise of an average cell of the topics' word table: {number(found.ratio, 2)}"
    ]
    lines += [f"warning: {line}" for line in found.warnings]
    lines.append(
        f"This ratio is an estimate, not a promise, for {found.documents} documents of "
        f"{number(found.length, 3)} words at {found.clients} clients (with fewer, it is lower), "
        f"{found.topics} topics of {found.vocabulary} words, and the noise after {found.rounds} rounds. "
        "Below 1 an average cell is lost in the noise. Cells differ much: a topic's frequent words stand "
        "out further, its rare words less."
    )
    tables.say(lines)
