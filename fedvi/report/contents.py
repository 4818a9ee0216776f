"""Holds the contents of a run's report as plain values, for every format.

All of it was released, follows from releases, or was public before the run.
"""

from typing import Any, NamedTuple

from fedvi.data.schema import is_printable
from fedvi.report.tables import plain

__all__ = [
    "UNRECORDED",
    "Z95",
    "Claimed",
    "Coefficient",
    "Contents",
    "Declared",
    "Round",
    "Site",
    "Spending",
    "Statement",
    "as_dict",
    "printable",
]

Z95 = 1.959963984540054
"""The 97.5 % point of the standard normal: intervals are central 95 % of a Gaussian marginal."""

UNRECORDED = "not recorded against recorded"
"""The comparison made by an indicator of missing values."""


class Coefficient(NamedTuple):
    """One coordinate of the posterior.

    Attributes:
      name, unit: the unit is "" where nothing was scaled.
      mean, sd: of the posterior.
      lower, upper: mean ± ``Z95`` sd: the central 95 % where the posterior is Gaussian.
      ratio, ratio_lower, ratio_upper: exp of mean, lower and upper if these are ratios; else None.
      prior_mean, prior_sd: of the prior; None if it has none, or none was stored.
      ratio_note: a note on reading the ratio, or why there is none; or empty.
      label: a readable name; empty if that is ``name``.
      compared: the comparison, such as "10 more" or "against female"; or empty.
      pooled_mean, pooled_sd: of a fit to all records without privacy; None if there is none.
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
        """The readable name."""
        return self.label or self.name


class Declared(NamedTuple):
    """A column as the study declares it, in words.

    Attributes:
      column: a readable name.
      kind: "number", "count", "levels" or "yes or no".
      values: what it may be: bounds and unit, levels, or cells.
      missing: what a missing cell does.
      enters: its part in the formula; empty without one.
    """

    column: str
    kind: str
    values: str
    missing: str
    enters: str


class Round(NamedTuple):
    """One fold, or a change of the participants.

    Attributes:
      version: the resulting version.
      rounds: the number of complete rounds after it.
      clients: those whose answers were folded.
      missing: those whose turns were skipped since the previous fold.
      removed, added: those that left or joined for good.
      damping: the step.
      shift: the largest move of a mean over the round, in posterior sds; None within a round.
      sd_ratio: the change of the posterior's spread over the round; None within a round.
      surprise: by how much steps missed their targets, in posterior sds.
      jitter: the part of ``shift`` that noise alone explains, in posterior sds.
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
      words: the most probable ones, most probable first; by number if no vocabulary was given.
      shares: their mean probabilities.
    """

    name: str
    words: tuple[str, ...]
    shares: tuple[float, ...]


class Site(NamedTuple):
    """One site's part in the run.

    Attributes:
      name: the client.
      answers: number of folded answers.
      charged: number of releases that its ledger reserved.
      head: the head of its ledger, ENTRIES:HASH.
      stated: (relation, ε, δ) of its claims; empty without protection.
      missed: number of skipped turns.
      added, removed: the version at which it joined or was taken out; None if neither.
      records: their number; None unless the study declares it public.
      share: of the likelihood's precision; None if unknown.
      shifts: by coefficient, the shift of its mean in sds without the site; None if unknown.
      reason: why there are no shifts; or empty.
      alone: mean and sd by coefficient of the prior combined with only the site's own answers; None if
        unknown.
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
    """ε over releases, for sites whose ledgers cost the same.

    Attributes:
      sites: their names.
      relation: the neighbouring relation.
      releases: numbers of reserved releases.
      epsilon: of that many releases together; None where they have no price.
      stated: ε of the whole plan, which is what may be stated; None without a price.
      promised: the budget under this relation; None if the promise is under another relation.
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
      neighbours: the relation's meaning, in a sentence.
      epsilon, delta: upper bounds; ε is infinite without protection.
      promised: the study's promised ε under this relation; None if it promised none.
      parts: (what, how much): the parts of δ; empty if unknown.
      right: the largest probability of a correct guess between two neighbours at even odds, with the
        planned noise.
      by_epsilon: the same for ε and δ alone; at least as large.
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
    """The claims of one site, or of all together, with everything that a signature covers.

    Attributes:
      site: the client, or "all … sites".
      protected: whether anything is claimed.
      unit, view: what is protected, and from whom.
      accountant: used to compute the price.
      claims: one for each relation; empty without protection.
      facts: (what, value) of mechanism, noise and plan, in words.
      releases: number of releases that the ledger reserved.
      head: of the ledger, ENTRIES:HASH; empty for all sites together.
      mark: printed beside every number; empty if nothing needs saying.
      exceeded: where the ledger exceeds the promise, one line each.
      declared, assumed, excluded: declarations, assumptions and exclusions of the claim, one line each.
      lifetime: the site's spending over all studies, in words; or empty.
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
      status: of a server's run, such as "completed"; "" for a simulation.
      ran, written: the versions of fedvi that ran the study and wrote this.
      plan: (what, value): model, solver, schedule and promise, in words.
      protected: whether the study promises anything.
      mark: printed beside every number; empty if nothing needs saying.
      warnings: about the whole run, one sentence each.
      gaussian: whether the posterior is a Gaussian, so that the intervals are central 95 %.
      ratio: the kind of ratio that exp(coefficient) is, such as "odds"; "" for none.
      size: number of coordinates of the posterior; ``coefficients`` may have fewer.
      coefficients: of the posterior.
      topics: of a topic model; otherwise empty.
      remarks: explanations of coefficients, to be shown beside their table; one sentence each.
      prior_note: why there is no prior to show; or empty.
      rounds_planned: by the schedule; None if unknown.
      rounds: all folds and changes.
      one_shot_gap: estimated move of a mean, in sds, by more rounds after a single one; or None.
      sites: in the order of the study.
      influence_note: why no influence is shown, or a note on it; or empty.
      noised: whether factors carry noise.
      spending: ε over releases.
      statements: one for each requested site.
      consortium: of all sites together; None without protection, and for one site.
      predictions: the result of ``fedvi evaluate`` on a public file, plain; None if none was given.
      public_file: the name of that file; or empty.
      audit: the result of an audit of the study, in words; empty if none was given.
      verdict: the most important findings, in sentences; empty for a run of an earlier version.
      widths: (coefficient, its width as a multiple of that without privacy); empty if unknown.
      outcome: the outcome's name, such as "died"; empty if there is no formula.
      outcome_unit: the unit of differences in it, such as "mmHg"; empty if there are none.
      outcome_words: what a yes and a no of it mean, such as "within 30 days", "later or never"; empty if
        the study does not say.
      stand_out: names of the coefficients that stand out; None for a run of an earlier version.
      by_chance: names of those that may do so by chance, since so many are looked at.
      declared: the columns of the study; empty if it declares none.
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
    outcome_words: tuple[str, ...] = ()
    outcome_unit: str = ""
    stand_out: tuple[str, ...] | None = None
    by_chance: tuple[str, ...] = ()
    declared: tuple[Declared, ...] = ()


def printable(contents: Contents) -> Contents:
    """Returns a report without characters that control a terminal or that XML forbids.

    Line ends and tabs become blanks. Names in a NumPyro model and warnings may contain anything.
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
    """Returns a report as plain values for JSON; values beyond JSON become texts: "inf", "nan"."""
    found: dict[str, Any] = plain(contents)
    return found
