"""Writes the sections of a report in words, in order.

Every number is formatted by ``fedvi.report.tables``, so that the page, its Markdown and the terminal agree.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedvi.report import figures, tables
from fedvi.report.canvas import MOST_ROWS, MOST_SITES, Figure
from fedvi.report.contents import Coefficient, Contents, Topic
from fedvi.report.wording import (
    as_sentence,
    cells_of,
    claim_in_words,
    last_move_in_words,
    last_of,
    membership_in_words,
    moments_in_words,
    most_drawn,
    moves_of,
    plural,
    sites_in_words,
    some_of,
    source_of,
)
from fedvi.typing import INTERCEPT

__all__ = ["Section", "Table", "banner", "in_short", "sections"]

_NOTE = "note on the ratio"
# The letters of a line on a phone, and on half of a printed page.
_PHONE, _HALF = 42, 52
_WIDTH = "width ÷ without privacy"


class Table(NamedTuple):
    """A table of cells.

    Attributes:
      caption: shown above it.
      names: of the columns; the first column names the row.
      rows: cells, as texts.
      words: names of the columns that contain words; all others contain numbers.
    """

    caption: str
    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[str, ...]

    @property
    def letters(self) -> int:
        """How many letters its rows are wide, where words and names of columns are broken at blanks."""
        wide = 0
        for index, name in enumerate(self.names):
            cells = [row[index] for row in self.rows]
            pieces = [piece for cell in cells for piece in cell.split()]
            wide += 2 + max(map(len, (*name.split(), *(pieces if name in self.words else cells))))
        return wide

    @property
    def is_slim(self) -> bool:
        """Whether it fits a phone as a table; a wider one is shown row by row."""
        return self.letters <= _PHONE


class Section(NamedTuple):
    """One section of a report.

    Attributes:
      key: its address in the page.
      title: shown above it.
      lead: what is shown, and what to conclude: a paragraph each.
      figures: (caption, figure).
      tables: of its numbers.
      notes: shown below, one sentence each: what not to conclude.
    """

    key: str
    title: str
    lead: tuple[str, ...] = ()
    figures: tuple[tuple[str, Figure], ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_paired(self) -> bool:
        """Whether its figures stand beside its tables on paper."""
        fits = [table.letters <= _HALF for table in self.tables]
        return bool(self.figures and fits) and all(fits)


def banner(contents: Contents) -> tuple[str, ...]:
    """Returns the lines above everything: missing protection, marks, and warnings.

    Whether the run settled is among them only without a verdict, which says so just below.
    """
    found = []
    if not contents.protected:
        found.append(
            "NO PRIVACY PROTECTION: statistics without noise left every site (ε = ∞). No record has any "
            "guarantee."
        )
    if contents.mark:
        found.append(f"MARKED: {contents.mark}")
    moved = moves_of(contents.rounds)
    if not contents.verdict and len(moved) > 1 and not tables.has_settled(*moved[-1]):
        found.append(as_sentence(last_of(moved)))
    return (*found, *(as_sentence(line) for line in contents.warnings))


def in_short(contents: Contents) -> tuple[tuple[str, str], ...]:
    """Returns the facts at the top of a report, (what, value)."""
    folds = sum(bool(row.clients) for row in contents.rounds)
    done = max((row.rounds for row in contents.rounds), default=0)
    found = [
        *contents.plan,
        ("sites", sites_in_words(contents)),
        (
            "run",
            f"{done} rounds, {'' if folds == done else f'{folds} folds, '}by {source_of(contents)}",
        ),
    ]
    if moves_of(contents.rounds):
        found.append(("convergence", last_move_in_words(contents)))
    together = contents.consortium
    if together is None and len(contents.sites) == 1 and contents.statements:
        together = contents.statements[0]
    if together is not None:
        several = together is contents.consortium
        # Only where no unit is at two sites do all of them keep the promise to each.
        at = "each" if all(claim.promised is None for claim in together.claims) else "any"
        where = f"{at} of the {len(contents.sites)} sites" if several else together.site
        found += [
            (
                f"privacy, {tables.relation_words(claim.relation)}",
                f"ε {tables.bound(claim.epsilon)} at δ {tables.bound(claim.delta)} for one "
                f"{together.unit} at {where}, view {claim.view}",
            )
            for claim in together.claims
        ]
    return tuple(found)


def sections(contents: Contents) -> tuple[Section, ...]:
    """Returns all sections but the statements, in the order of a report."""
    found = (
        _posterior(contents),
        _prior(contents),
        _convergence(contents),
        _participation(contents),
        _influence(contents),
        _privacy(contents),
        _predictions(contents),
    )
    return tuple(section for section in found if section is not None)


def _posterior(contents: Contents) -> Section:
    kind = "coefficient" if contents.gaussian else "quantity"
    lead = [
        f"The posterior of {contents.size} "
        f"{kind if contents.size == 1 else plural(kind)} after the run. "
        + (
            "Given the model, the prior and what the sites released, each coefficient lies within its "
            "95 % interval with probability 0.95."
            if contents.gaussian
            else "The posterior is not Gaussian, so no interval is made of its mean and sd."
        )
    ]
    units = any(row.unit for row in contents.coefficients)
    # The exponentials are interval limits only for a Gaussian posterior.
    ratio = contents.ratio if contents.gaussian else ""
    noted = bool(ratio) and any(row.ratio_note for row in contents.coefficients)
    if ratio:
        lead.append(_ratio_in_words(contents, units))
        lead += [_notes_in_words(contents.coefficients)] if noted else []
    # Explanations of coefficients come before their numbers.
    lead += map(as_sentence, contents.remarks)
    drawn = most_drawn(contents)
    figure: tuple[tuple[str, Figure], ...] = ()
    if contents.gaussian and drawn:
        caption = "Means (points) and 95 % intervals (lines)" + some_of(contents, drawn)
        figure = ((caption, figures.forest(drawn, ratio)),)
    names = (kind, *(("unit",) if units else ()), "mean", "sd")
    names += ("95\N{NO-BREAK SPACE}% interval",) if contents.gaussian else ()
    names += (f"{ratio} ratio (95\N{NO-BREAK SPACE}%)",) if ratio else ()
    widths = dict(contents.widths)
    names += (_WIDTH,) if widths else ()
    names += (_NOTE,) if noted else ()
    rows = tuple(
        (
            row.shown,
            *((row.unit,) if units else ()),
            *(cells_of(row, ratio) if contents.gaussian else moments_in_words(contents, row)),
            *((tables.number(widths.get(row.name), 2),) if widths else ()),
            *((_note(row),) if noted else ()),
        )
        for row in contents.coefficients
    )
    table = Table(f"Posterior, by {kind}", names, rows, (kind, "unit", _NOTE))
    notes = []
    if contents.size > len(rows):
        notes.append(
            f"the first {len(rows)} of {contents.size} are listed; posterior.npz holds all"
        )
    if figure and len(drawn) < contents.size:
        notes.append(
            "the figure shows only the coefficients that are furthest from 0: others are in the table"
        )
    if contents.gaussian:
        notes.append(
            f"an interval that contains 0{' (a ratio of 1)' if ratio else ''} does not show that there is "
            f"no effect: the records{' and the noise' if contents.noised else ''} leave the direction open"
        )
        if widths:
            notes.append(
                f"“{_WIDTH}” compares an interval with the one that is expected without privacy: an "
                "estimate, from what the study declares and what was released"
            )
        notes.append(
            "these are associations within the model: they do not say what an intervention would do"
        )
    return Section(
        "posterior",
        "Posterior",
        tuple(lead),
        figure,
        (_topics(contents.topics), table) if contents.topics else (table,),
        tuple(map(as_sentence, notes)),
    )


def _ratio_in_words(contents: Contents, units: bool) -> str:
    said = (
        "A ratio, exp(coefficient), says by how much one more unit of a covariate multiplies the "
        f"{contents.ratio}, all other covariates held fixed. A level is compared with its reference level."
    )
    said += " The column “unit” says what one unit is." if units else ""
    if any(row.name.endswith(INTERCEPT) for row in contents.coefficients):
        curves = any("a part of the curve" in row.ratio_note for row in contents.coefficients)
        said += f" The intercept gives the {contents.ratio} of a reference record. There, " + (
            "a covariate with a unit has the number after “from”; every other is at 0 or its reference "
            "level"
            if units
            else "all covariates are at 0 or their reference levels"
        )
        said += ", and all columns of a curve are at 0." if curves else "."
    return said


def _notes_in_words(rows: Sequence[Coefficient]) -> str:
    """Explains the notes on ratios that occur."""
    noted = [row for row in rows if row.ratio_note]
    said = []
    if any("ratio of ratios" in row.ratio_note for row in noted):
        said.append(
            "An interaction has a ratio of ratios: by how much one more unit of one covariate multiplies "
            "the ratio of the other."
        )
    if any("where " in row.ratio_note for row in noted if row.ratio is not None):
        said.append(
            "A ratio whose note says “where” holds only there. Elsewhere the interactions multiply it."
        )
    if any(row.ratio is None for row in noted):
        said.append("A dash means that there is no ratio; the note says why.")
    if any("the curve" in row.ratio_note for row in noted):
        said.append("The parts of a curve change together: read them together, never one alone.")
    return " ".join(said)


def _note(row: Coefficient) -> str:
    return f"none: {row.ratio_note}" if row.ratio is None and row.ratio_note else row.ratio_note


def _topics(topics: Sequence[Topic]) -> Table:
    """Lists each topic's most probable words."""
    rows = tuple(
        (
            topic.name,
            ", ".join(
                f"{word} ({tables.number(share, 2)})"
                for word, share in zip(topic.words, topic.shares, strict=True)
            ),
        )
        for topic in topics
    )
    caption = "The most probable words of each topic (probability)"
    return Table(caption, ("topic", "words"), rows, ("topic", "words"))


def _prior(contents: Contents) -> Section:
    title = "Prior against posterior"
    known = [row for row in contents.coefficients if row.prior_sd]
    if contents.prior_note or not known:
        said = contents.prior_note or "there is no prior with a mean and an sd"
        return Section("prior", title, (as_sentence(f"Not shown: {said}"),))
    lead = (
        "If a posterior is about as wide as its prior, the records added little: it says what was believed "
        "of that coefficient before any record was seen.",
    )
    drawn = [row for row in most_drawn(contents) if row.prior_sd]
    figure: tuple[tuple[str, Figure], ...] = ()
    if contents.gaussian and drawn:
        caption = "Prior (dashed, open points) and posterior (solid)" + some_of(contents, drawn)
        figure = ((caption, figures.prior_and_posterior(drawn)),)
    rows = tuple(
        (
            row.shown,
            tables.number(row.prior_mean),
            tables.number(row.prior_sd),
            *moments_in_words(contents, row),
        )
        for row in known
    )
    kind = "coefficient" if contents.gaussian else "quantity"
    names = (kind, "prior mean", "prior sd", "posterior mean", "posterior sd")
    table = Table("Prior and posterior", names, rows, (kind,))
    return Section("prior", title, lead, figure, (table,))


def _convergence(contents: Contents) -> Section:
    title = "Convergence between rounds"
    if not moves_of(contents.rounds):
        return Section(
            "convergence", title, ("No round was completed: nothing is known of convergence.",)
        )
    lead = (
        as_sentence(last_move_in_words(contents)),
        "Each point is the largest move of any posterior mean over a round, in posterior standard "
        f"deviations. Below {tables.SETTLED:g}, or where noise explains the move, more rounds would change "
        "little for most purposes. The “gap” in a server's log is this move, or how far steps missed their "
        "aim if that is more.",
    )
    rows = tuple(
        (
            str(row.rounds),
            str(row.version),
            tables.number(row.shift, 3),
            tables.number(row.sd_ratio, 4),
            tables.number(row.damping, 3),
        )
        for row in contents.rounds
        if row.shift is not None
    )
    names = ("round", "version", "largest move, sds", "largest ratio of sds", "step")
    notes = [
        "“version” counts the changes of the posterior; “largest ratio of sds” is the largest factor by "
        "which a round changed an sd; “step” is the part of the answers that the server took",
        "a run that settled may still be wrong: this does not test the model, the prior, or what the noise "
        "hides",
    ]
    if any(row.damping < 1.0 for row in contents.rounds if row.clients):
        notes.append(
            "a step below 1 means that the server took only part of each answer, as when sites pull in "
            "opposite directions: small moves then say less"
        )
    return Section(
        "convergence",
        title,
        lead,
        (
            (
                "Largest move of a mean, by round",
                figures.convergence(contents.rounds, tables.SETTLED),
            ),
        ),
        (Table("Moves by round", names, rows, ()),),
        tuple(map(as_sentence, notes)),
    )


def _participation(contents: Contents) -> Section:
    public = any(site.records is not None for site in contents.sites)
    names = (
        *("site", "answers folded", "releases charged", "turns missed", "membership"),
        *(("records",) if public else ()),
    )
    rows = tuple(
        (
            site.name,
            str(site.answers),
            str(site.charged),
            str(site.missed),
            membership_in_words(site.added, site.removed),
            *((tables.number(site.records),) if public else ()),
        )
        for site in contents.sites
    )
    figure = figures.participation(contents.rounds, contents.sites)
    notes = [
        "a site is charged before its records are read, so it may be charged for more than was folded"
    ]
    if any(site.removed is not None and site.charged for site in contents.sites):
        notes.append(
            "the posterior no longer contains the factor of a removed site; what that site released was "
            "seen, and stays charged"
        )
    return Section(
        "participation",
        "Participation",
        (
            "How often each site answered, how many answers were folded into the posterior, and how many "
            "releases it was charged for.",
        ),
        () if figure is None else (("Answers by version of the posterior", figure),),
        (Table("Participation by site", names, rows, ("site", "membership")),),
        tuple(map(as_sentence, notes)),
    )


def _influence(contents: Contents) -> Section:
    title = "Influence of each site"
    known = [site for site in contents.sites if site.share is not None]
    moved = [site for site in contents.sites if site.shifts is not None]
    if not known and not moved:
        return Section("influence", title, (as_sentence(f"Not shown: {contents.influence_note}"),))
    lead = (
        "What each site contributed, computed from what it released: its share of the precision that the "
        "records added to the prior, and how far the means move if the site is left out.",
    )
    names = [row.shown for row in contents.coefficients]
    drawn: list[tuple[str, Figure]] = []
    if known and len(known) <= MOST_SITES:
        drawn.append(("Share of the likelihood's precision", figures.influence(known)))
    if moved and len(moved) <= 8 and len(names) <= MOST_ROWS:
        drawn.append(("Leave one site out: shift of each mean", figures.shifts(moved, names)))
    rows = []
    for site in contents.sites:
        far = None
        if site.shifts:
            values = [abs(value) for value in site.shifts]
            far = values.index(max(values))
        rows.append(
            (
                site.name,
                tables.share(site.share),
                "–" if far is None or not site.shifts else f"{site.shifts[far]:+.2f}",
                "–" if far is None else names[far],
            )
        )
    heads = ("site", "share of the information", "largest shift without it, sds", "of coefficient")
    reasons = dict.fromkeys(site.reason for site in contents.sites if site.reason)
    notes = [contents.influence_note, *(f"no shifts: {reason}" for reason in reasons)]
    return Section(
        "influence",
        title,
        lead,
        tuple(drawn),
        (Table("Influence by site", heads, tuple(rows), ("site", "of coefficient")),),
        tuple(map(as_sentence, filter(None, notes))),
    )


def _privacy(contents: Contents) -> Section:
    title = "Privacy spent"
    if not contents.protected:
        return Section(
            "privacy",
            title,
            (
                "The study promises no privacy: statistics without noise left every site, and ε is ∞ under "
                "both relations.",
            ),
        )
    lead = [
        "ε of each site, computed again from the verified ledgers; an upper bound at the study's δ. "
        "Add/remove hides whether one unit is in the data; substitute hides which of two units is. Both "
        "hold; the study sets a limit for one of them.",
    ]
    figure: tuple[tuple[str, Figure], ...] = ()
    if any(row.releases for row in contents.spending) and len(contents.spending) <= 2 * 6:
        caption = "ε by number of releases, and the promise (long dashes)"
        figure = ((caption, figures.spending(contents.spending)),)
    relations = list(dict.fromkeys(name for site in contents.sites for name, _, _ in site.stated))
    groups = {
        (row.relation, name): row.epsilon[-1] if row.epsilon else 0.0
        for row in contents.spending
        for name in row.sites
    }
    rows = []
    for site in contents.sites:
        stated = {relation: (epsilon, delta) for relation, epsilon, delta in site.stated}
        cells = [site.name, str(site.charged)]
        for relation in relations:
            cells.append(tables.bound(groups.get((relation, site.name))))
            cells.append(tables.bound(stated[relation][0]) if relation in stated else "–")
        cells.append(tables.bound(next((delta for _, _, delta in site.stated), None)))
        rows.append(tuple(cells))
    names = ["site", "releases"]
    for relation in map(tables.relation_words, relations):
        names += [f"ε {relation}, reserved", f"ε {relation}, stated"]
    # The two differ where a run stopped before its last round.
    reserved, stated_ = range(2, len(names), 2), range(3, len(names), 2)
    if all(row[a] == row[b] for row in rows for a, b in zip(reserved, stated_, strict=True)):
        names = [*names[:2], *(names[place].removesuffix(", stated") for place in stated_)]
        rows = [(*row[:2], *(row[place] for place in stated_), row[-1]) for row in rows]
    else:
        lead.append(
            "Quote the column “stated”: ε of all that was planned, which holds whenever the run stopped. "
            "“Reserved” is what the ledger was charged so far."
        )
    promised = next((row for row in contents.spending if row.promised is not None), None)
    notes = []
    if promised is not None:
        notes.append(
            f"the limit of each site is ε ≤ {promised.promised:g} under "
            f"{tables.relation_words(promised.relation)}"
        )
    if contents.consortium is not None:
        notes += [
            f"for {contents.consortium.site} together: {claim_in_words(claim)}"
            for claim in contents.consortium.claims
        ]
        own = {line for one in contents.statements for line in one.excluded}
        notes += [line for line in contents.consortium.excluded if line not in own and own]
    if contents.audit:
        notes.append(contents.audit)
    table = Table("ε by site", (*names, "δ"), tuple(rows), ("site",))
    return Section(
        "privacy", title, tuple(lead), figure, (table,), tuple(as_sentence(line) for line in notes)
    )


def _likelihood(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the rows of a model's main measure: for an outcome, or for whole records."""
    if "measure" in found:
        measures = {found["measure"]: found["value"], **found["beside"]}
        return [(str(name), tables.number(float(value))) for name, value in measures.items()]
    per = tables.DENSITY_PER.get(str(found.get("density_per", "")))
    name = "mean log-likelihood" + (f" ({per})" if per else "")
    return [(name, tables.number(float(found["mean_log_likelihood"])))]


def _predictions(contents: Contents) -> Section | None:
    found = contents.predictions
    if found is None:
        return None
    rows = [
        ("records used", str(found["rows"])),
        ("records that do not fit the schema", str(found["left_out"])),
        *_likelihood(found),
    ]
    figure: tuple[tuple[str, Figure], ...] = ()
    classes, numbers = found.get("classes"), found.get("numbers")
    shown: list[Table] = []
    if classes:
        rows += [
            ("accuracy", tables.share(float(classes["accuracy"]))),
            (
                "accuracy of always the most frequent class",
                tables.share(float(classes["majority"])),
            ),
            ("area under the ROC curve", tables.number(classes["auc"])),
            ("Brier score", tables.number(float(classes["brier"]))),
            ("calibration error", tables.number(float(classes["calibration_error"]), 3)),
        ]
        groups = classes["groups"]
        figure = (
            (
                "Calibration: bars are one standard error, had the predictions been right",
                figures.reliability(groups),
            ),
        )
        shown.append(
            Table(
                "Calibration, by tenths of the predicted probability",
                ("records", "predicted", "came true"),
                tuple(
                    (str(g["rows"]), f"{g['predicted']:.3f}", f"{g['observed']:.3f}")
                    for g in groups
                ),
                (),
            )
        )
    if numbers:
        rows += [
            ("root mean squared error", tables.number(float(numbers["rmse"]))),
            ("sd of the outcomes", tables.number(float(numbers["spread"]))),
            ("outcomes within 50 % intervals", tables.share(float(numbers["coverage_50"]))),
            ("outcomes within 95 % intervals", tables.share(float(numbers["coverage_95"]))),
        ]
    table = Table("Predictions", ("measure", "value"), tuple(rows), ("measure",))
    return Section(
        "predictions",
        "Predictions of public records",
        (
            f"The posterior's predictions compared with {contents.public_file}, read by the study's own "
            "schema.",
        ),
        figure,
        (table, *shown),
        (
            "These figures are not protected: the file must be public, or belong to whoever writes the "
            "report, and contain no record of any site.",
        ),
    )
