"""Holds the contents of a run's report as plain values, for every format.

All of it was released, follows from what was released, or was public before the run.
"""

from typing import Any, NamedTuple

from fedvi.data.schema import is_printable
from fedvi.report.tables import plain

__all__ = [
    "UNRECORDED",
    "Claimed",
    "Coefficient",
    "Contents",
    "Round",
    "Site",
    "Spending",
    "Statement",
    "as_dict",
    "printable",
]

UNRECORDED = "not recorded against recorded"
"""What an indicator of missing values compares."""


class Coefficient(NamedTuple):
    """One coordinate of the posterior.

    Attributes:
      name, unit: of it; the unit is "" where nothing was scaled.
      mean, sd: of the posterior.
      lower, upper: mean ± 1.96 sd: the central 95 % where the posterior is Gaussian.
      ratio, ratio_lower, ratio_upper: exp of mean, lower and upper where that is a ratio; else None.
      prior_mean, prior_sd: of the prior; None where it has none, or none was kept.
      ratio_note: what must be said beside the ratio, or why there is none; or empty.
      label: the name as people write it; empty where that is the name.
      compared: what is compared, such as "10 more" or "against female"; or empty.
      pooled_mean, pooled_sd: of a fit to all records without privacy; None where there is none.
    """

    name: str
    unit: str
    mean: float
    sd: float
    lower: float
    upper: float
    ratio: float | None = None
    ratio_lower: float | None = None
    ratio_upper: float | None = None
    prior_mean: float | None = None
    prior_sd: float | None = None
    ratio_note: str = ""
    label: str = ""
    compared: str = ""
    pooled_mean: float | None = None
    pooled_sd: float | None = None

    @property
    def shown(self) -> str:
        """The name for people."""
        return self.label or self.name


class Round(NamedTuple):
    """One fold, or a change of who takes part.

    Attributes:
      version: that it made.
      rounds: complete after it.
      clients: whose answers were folded.
      missing: whose turns were skipped since the fold before.
      removed, added: who left or joined for good.
      damping: the step.
      shift: the largest move of a mean over the round, in posterior sds; None within a round.
      sd_ratio: how far the spread of the posterior changed over the round; None within a round.
      surprise: by how much steps missed what they were to reach, in posterior sds.
      jitter: how much of ``shift`` noise alone explains, in posterior sds.
    """

    version: int
    rounds: int
    clients: tuple[str, ...]
    missing: tuple[str, ...]
    removed: tuple[str, ...]
    added: tuple[str, ...]
    damping: float
    shift: float | None
    sd_ratio: float | None
    surprise: float = 0.0
    jitter: float = 0.0


class Topic(NamedTuple):
    """A topic of documents.

    Attributes:
      name: such as "topic 3".
      words: the most probable ones, most probable first; by number where no vocabulary was given.
      shares: their mean probabilities.
    """

    name: str
    words: tuple[str, ...]
    shares: tuple[float, ...]


class Site(NamedTuple):
    """One site's part in the run.

    Attributes:
      name: the client.
      answers: how many were folded.
      charged: how many releases its ledger reserved.
      head: how far its ledger had come, ENTRIES:HASH.
      stated: (relation, ε, δ) that may be stated of it; empty without protection.
      missed: how many of its turns were skipped.
      added, removed: the version at which it joined or was taken out; None if neither.
      records: how many it holds; None unless the study says that this is public.
      share: of the likelihood's precision; None if unknown.
      shifts: by coefficient, how far its mean moves, in sds, without the site; None if unknown.
      reason: why there are no shifts; or empty.
      alone: mean and sd by coefficient of what the prior and the site's own answers say without the
        others; None if unknown.
    """

    name: str
    answers: int
    charged: int
    head: str
    stated: tuple[tuple[str, float, float], ...]
    missed: int
    added: int | None
    removed: int | None
    records: int | None
    share: float | None
    shifts: tuple[float, ...] | None
    reason: str
    alone: tuple[tuple[float, float], ...] | None = None


class Spending(NamedTuple):
    """ε as releases were added, of sites whose ledgers cost the same.

    Attributes:
      sites: whose.
      relation: the neighbouring relation.
      releases: after how many reserved releases.
      epsilon: of all of them together; None where they have no price.
      stated: ε of all that is planned, which is what may be stated; None without a price.
      promised: the budget under this relation; None where the promise is under another.
    """

    sites: tuple[str, ...]
    relation: str
    releases: tuple[int, ...]
    epsilon: tuple[float | None, ...]
    stated: float | None
    promised: float | None


class Claimed(NamedTuple):
    """A claim under one neighbouring relation.

    Attributes:
      relation: its name.
      view: who sees what, by name.
      neighbours: what it means, in a sentence.
      epsilon, delta: upper bounds; ε is infinite where nothing is protected.
      promised: the ε that the study promised under this relation; None where it promised none.
      parts: (what, how much): what δ is made of; empty if unknown.
      right: the largest probability of a right guess between two neighbours at even odds, with the noise
        that was planned.
      by_epsilon: what ε and δ alone would allow; at least as large.
    """

    relation: str
    view: str
    neighbours: str
    epsilon: float
    delta: float
    promised: float | None
    parts: tuple[tuple[str, float], ...]
    right: float
    by_epsilon: float


class Statement(NamedTuple):
    """What one site, or all of them together, may claim: all that a signature stands under.

    Attributes:
      site: the client, or "all … sites".
      protected: whether anything is claimed.
      unit, view: what is protected, and from whom.
      accountant: what computed the price.
      claims: one for each relation; empty without protection.
      facts: (what, value) of mechanism, noise and plan, in words.
      releases: how many the ledger reserved.
      head: of the ledger, ENTRIES:HASH; empty for all sites together.
      mark: printed beside every number; empty if nothing needs saying.
      exceeded: where the ledger exceeds what was promised, one line each.
      declared, assumed, excluded: what the claim rests on and what it leaves out, one line each.
      lifetime: what the site has spent over all studies, in words; or empty.
    """

    site: str
    protected: bool
    unit: str
    view: str
    accountant: str
    claims: tuple[Claimed, ...]
    facts: tuple[tuple[str, str], ...]
    releases: int
    head: str
    mark: str
    exceeded: tuple[str, ...]
    declared: tuple[str, ...]
    assumed: tuple[str, ...]
    excluded: tuple[str, ...]
    lifetime: str


class Contents(NamedTuple):
    """A report.

    Attributes:
      study, digest: its name, and the SHA-256 that all sites agreed on.
      source: "simulation" or "server".
      status: of a server's run, such as "completed"; "" of a simulation.
      ran, written: the versions of fedvi that ran the study and that wrote this.
      plan: (what, value): model, solver, schedule and promise, in words.
      protected: whether the study promises anything.
      mark: printed beside every number; empty if nothing needs saying.
      warnings: what must be said of the whole run, one sentence each.
      gaussian: whether the posterior is a Gaussian, so that the intervals are central 95 %.
      ratio: of what exp(coefficient) is a ratio, such as "odds"; "" for none.
      size: how many coordinates the posterior has; ``coefficients`` may hold fewer.
      coefficients: of the posterior.
      topics: of a topic model; empty of another.
      remarks: what coefficients are, where that needs saying: sentences beside their table.
      prior_note: why there is no prior to show; or empty.
      rounds_planned: by the schedule; None if unknown.
      rounds: all folds and changes.
      one_shot_gap: how far more rounds would move a mean, in sds, as estimated after one; or None.
      sites: in the order of the study.
      influence_note: why no influence is shown, or what must be said of it; or empty.
      noised: whether factors carry noise.
      spending: ε over releases.
      statements: one for each site that was asked for.
      consortium: of all sites together; None without protection, and for one site.
      predictions: what ``fedvi evaluate`` says of a public file, plain; None if none was given.
      public_file: the name of that file; or empty.
      audit: what an audit of the study found, in words; empty where none was given.
      verdict: what a reader needs first, in sentences; empty of a run of an earlier version.
      widths: (coefficient, its width as a multiple of that without privacy); empty if unknown.
      outcome: what the coefficients are about, such as "died"; empty where there is no formula.
      stand_out: the coefficients that do, by name; None of a run of an earlier version.
    """

    study: str
    digest: str
    source: str
    status: str
    ran: str
    written: str
    plan: tuple[tuple[str, str], ...]
    protected: bool
    mark: str
    warnings: tuple[str, ...]
    gaussian: bool
    ratio: str
    size: int
    coefficients: tuple[Coefficient, ...]
    topics: tuple[Topic, ...]
    remarks: tuple[str, ...]
    prior_note: str
    rounds_planned: int | None
    rounds: tuple[Round, ...]
    one_shot_gap: float | None
    sites: tuple[Site, ...]
    influence_note: str
    noised: bool
    spending: tuple[Spending, ...]
    statements: tuple[Statement, ...]
    consortium: Statement | None
    predictions: dict[str, Any] | None
    public_file: str
    audit: str = ""
    verdict: tuple[str, ...] = ()
    widths: tuple[tuple[str, float], ...] = ()
    outcome: str = ""
    stand_out: tuple[str, ...] | None = None


def printable(contents: Contents) -> Contents:
    """Returns a report whose texts hold nothing that steers a terminal, or that no XML may hold.

    Line ends and tabs become blanks; a NumPyro model's names, or a warning, may be anybody's.
    """
    found: Contents = _printable(contents)
    return found


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return "".join(
            " " if sign in "\t\n\r" else sign if is_printable(sign) else "\N{REPLACEMENT CHARACTER}"
            for sign in value
        )
    if isinstance(value, tuple):
        items = [_printable(item) for item in value]
        return type(value)(*items) if hasattr(value, "_asdict") else tuple(items)
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list) else value


def as_dict(contents: Contents) -> dict[str, Any]:
    """Returns a report as plain values for JSON; what JSON cannot hold as texts: "inf", "nan"."""
    found: dict[str, Any] = plain(contents)
    return found
