"""Shows which private mode suits a study, and which estimates would be lost in the noise."""

from fedvi.planning.advice import Outlook
from fedvi.planning.topics import TopicOutlook
from fedvi.report import tables

__all__ = ["show", "show_topics"]


def show(found: Outlook) -> None:
    """Prints a table of the modes, at most 80 columns wide, and in words what follows from it."""
    console = tables.console()
    number = tables.number
    names = ["mode", "noise", "clip norm", "coefficients", "curvature", "if only summed"]
    cells = []
    for mode in found.modes:
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
    lines += [f"{mode.solver}: {mode.note}" for mode in found.modes if mode.note]
    lines.append(
        "These are estimates, not promises: for columns of variance "
        f"{number(numbers.variance, 2)} (1 if standardised) that hardly go together, "
        f"{numbers.records} records at each of {numbers.clients} clients (fewer are lost sooner), "
        f"{number(numbers.curvature, 2)} of information a record, prior sd "
        f"{number(numbers.prior_sd, 3)}; where most columns are 0 or 1, rows are shorter, and smaller "
        "clip norms than those of the other modes do. Below 1 the signal is lost in the noise. The last "
        "column is what coefficients would have if only the sum of all answers were seen, where a mode "
        "allows it."
    )
    tables.say(lines)


def show_topics(found: TopicOutlook) -> None:
    """Prints how far topics stand out of the noise, and in words what follows from it."""
    number = tables.number
    lines = [f"signal to noise of a mean cell of topics and words: {number(found.ratio, 2)}"]
    lines += [f"warning: {line}" for line in found.warnings]
    lines.append(
        f"This is an estimate, not a promise: for {found.documents} documents of "
        f"{number(found.length, 3)} words at {found.clients} clients (fewer are lost sooner), "
        f"{found.topics} topics of {found.vocabulary} words, and the noise after {found.rounds} rounds. "
        "Below 1 a mean cell is lost in the noise. Cells are far from equal: frequent words of a topic "
        "stand out further, rare ones less."
    )
    tables.say(lines)
