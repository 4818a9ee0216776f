"""Gathers what `fedvi report` shows from the folder of a run.

Reads only the run's releases and its ledgers, never a record: everything here may be shown.
"""

import collections
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedvi import __version__, errors
from fedvi.expfam.base import Gaussian
from fedvi.federation.fold import Gap
from fedvi.models.capabilities import Topics
from fedvi.privacy import ledger
from fedvi.privacy.ledger import Ledger
from fedvi.privacy.statement import Claim
from fedvi.report import contents, tables
from fedvi.report.contents import Coefficient, Contents, Round, Site, Topic
from fedvi.report.labels import labels, relabelled
from fedvi.results import posterior as posteriors
from fedvi.results import report_ledgers, result_json, run_folder, run_record
from fedvi.results import verdict as verdicts
from fedvi.results.declared import declared
from fedvi.results.run_folder import RunFolder
from fedvi.results.verdict import Verdict
from fedvi.run import server_plan
from fedvi.run.server_plan import ServerPlan
from fedvi.server.store import schema
from fedvi.study import remarks
from fedvi.study.config import Study
from fedvi.study.spec import conjugates, regressions, shared_parts
from fedvi.study.spec.coefficients import (
    MOST,
    Reading,
    comparisons,
    design_of,
    in_file_units,
    of_moments,
    outcome_unit,
    outcome_words,
    prior_words,
    readings,
)

__all__ = ["MOST_STATEMENTS", "gather"]

MOST_STATEMENTS = 20
"""With more sites than this, only the statements asked for are written."""

# The number of words listed for each topic.
_MOST_WORDS = 10
_CLASSES = (
    "odds are those of the class before the colon against “{first}”, the first level of {response}"
)
_PRIOR_APART = (
    "the prior is not in the family of the posterior: it is a factor of its own, refined along with the "
    "sites, and has no mean and sd"
)
_PRIOR_UNKNOWN = "the run was written by a version of fedvi that kept no prior"
_NO_HEADS = (
    "the result does not say how long each ledger was: whether one was cut since cannot be told from "
    "this folder, so that every site must compare the head with its own ledger"
)
_ONLY_PUBLISHED = (
    "the study's view is `{view}`: nothing is shown of one site's part in the posterior"
)
_POOLED = (
    "NOT PRIVATE: this report shows a pooled fit, which used the records of all sites as they are. Give it "
    "only to somebody who may see it"
)
_NONE = "this family of posteriors has no such measure, or sites and coefficients are too many"
_FIRST_ORDER = (
    "a shift is an estimate: it takes out what the site said, to first order, and leaves the others' "
    "answers as they were, though without the site they would have been different"
)
_NOISED = "noise can make a share negative, or larger than 100 %"


def gather(
    folder: Path,
    sites: Sequence[str] = (),
    predictions: Mapping[str, Any] | None = None,
    public_file: str = "",
    vocabulary: Sequence[str] | None = None,
    pooled: bool = False,
) -> Contents:
    """Reads a finished run, verifies its ledgers, and recomputes their prices.

    Args:
      folder: of ``fedvi simulate --out``, or a server's ``--state``.
      sites: whose statements are wanted; empty for all sites, if there are at most ``MOST_STATEMENTS``.
      predictions: ``Evaluation.as_dict()`` on records that are public.
      public_file: the name of their file.
      vocabulary: of a topic model, the words in the order of their numbers.
      pooled: show the pooled fit too, which is not private: only for readers who may see the records.

    Raises:
      ConfigError: the folder is not that of a finished run, its files do not belong together, a site is
        not a client of the study, or the vocabulary is not the model's.
      LedgerError: a ledger does not verify, or does not match the result.
    """
    run = run_folder.read(folder)
    study, result = run.study, run.result
    clients = tuple(client.name for client in study.clients)
    for name in sites:
        if name not in clients:
            raise errors.ConfigError(
                f"--statement names {name!r}, which is no client of the study",
                errors.did_you_mean(name, clients),
            )
    heads, more = result_json.heads(result), result_json.unknown_to_ledgers(result)
    books = report_ledgers.read(run.ledgers, clients, run.digests, heads)
    claims = report_ledgers.claims_of(books, more, result_json.told(result))
    together = report_ledgers.joined(claims, study.privacy.disjoint)
    report_ledgers.check_consortium(result.get("consortium", ()), together)
    lifetimes = _lifetimes(result)
    wanted = [name for name in clients if name in sites] if sites else list(clients)
    statements = [
        report_ledgers.state(study, books[name], claims[name], lifetimes.get(name, ""))
        for name in (wanted if sites or len(wanted) <= MOST_STATEMENTS else [])
    ]
    rounds = _rounds(result)
    coefficients, prior_note = _coefficients(run, folder)
    if pooled:
        coefficients = _with_pooled(coefficients, result)
    people = {row.name: row.shown for row in coefficients}
    means = _means(run, coefficients)
    family = shared_parts.family(study, len(means))
    factors, influence_note = _influence(run, folder)
    verdict = _verdict(run)
    found = Contents(
        study=study.study.name,
        digest=run.digests[0],
        source="simulation" if run.plan is None else "server",
        status=str(result.get("status", "")),
        ran=str(result.get("fedvi", "")),
        written=__version__,
        plan=tuple(_plan(study)),
        protected=study.privacy.private,
        mark=_mark(result, books),
        warnings=(*([_POOLED] if pooled else []), *_warnings(run, books)),
        gaussian=isinstance(family, Gaussian),
        ratio=regressions.ratio(study),
        size=len(means),
        coefficients=coefficients,
        topics=_topics(study, means, vocabulary),
        remarks=(
            *_remarks(study, family, result["coefficients"]),
            *remarks.of_surveys(study, result.get("noise_scale"), result.get("wider_priors")),
        ),
        prior_note=prior_note,
        rounds_planned=_whole(study.schedule.arguments.get("rounds")),
        rounds=rounds,
        one_shot_gap=_number(result.get("one_shot_gap")),
        sites=_sites(run, books, claims, rounds, factors),
        influence_note=influence_note,
        noised=study.privacy.private,
        spending=report_ledgers.spending(books, claims),
        statements=tuple(statements),
        consortium=report_ledgers.state_all(books, claims, study.privacy.disjoint),
        predictions=None if predictions is None else dict(predictions),
        public_file=public_file,
        verdict=() if verdict is None else _in_labels(verdict, people),
        widths=() if verdict is None else tuple(verdict.multiples.items()),
        outcome="" if study.formula is None else design_of(study)[1].response.text,
        outcome_words=() if study.formula is None else outcome_words(study),
        outcome_unit=outcome_unit(study),
        stand_out=None if verdict is None else verdict.stand_out,
        by_chance=() if verdict is None else verdict.by_chance,
        declared=declared(study),
    )
    return contents.printable(found)


def _verdict(run: RunFolder) -> Verdict | None:
    """Returns the run's verdict; for a server's run, adds what would help, which the server left out."""
    found = verdicts.from_dict(run.result.get("verdict"))
    if found is None or run.plan is None or not found.wants_help:
        return found
    # Imports JAX, which a report needs only here.
    from fedvi.planning import advice
    from fedvi.study.build import assemble

    clients = [client.name for client in run.study.clients]
    changes = [(one["clients"], one.get("removed", ())) for one in run.result["history"]]
    present = run_record.took_part(clients, changes)
    return found._replace(helps=advice.help_in_words(assemble(run.study), present))


def _in_labels(verdict: Verdict, people: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the verdict in sentences, with coefficients under their readable labels."""
    shown = verdict._replace(
        stand_out=tuple(people.get(name, name) for name in verdict.stand_out),
        by_chance=tuple(people.get(name, name) for name in verdict.by_chance),
        alarms=tuple(relabelled(line, people) for line in verdict.alarms),
    )
    return tuple(verdicts.lines(shown))


def _plan(study: Study) -> list[tuple[str, str]]:
    """Describes the study in words."""
    model = study.model.kind
    formula = study.formula
    schedule = study.schedule.kind.replace("_", " ")
    rounds = study.schedule.arguments.get("rounds")
    found = [("model", f"{model}: {formula}" if formula else model)]
    if conjugates.model_of(study) is None:
        found.append(("family of the posterior", study.family.kind.replace("_", " ")))
    if study.prior is not None:
        found.append(("prior sd of a coefficient", prior_words(study)))
    found.append(("solver", study.solver.kind))
    found.append(("schedule", f"{schedule}, {rounds} rounds" if rounds else schedule))
    promise = study.privacy.promise
    if promise is None:
        found.append(("promise", "none: un-noised statistics leave every site (ε = ∞)"))
    else:
        found.append(
            (
                "promise",
                f"ε ≤ {promise.epsilon:g}, δ = {promise.delta:g} for each {promise.unit}, relation "
                f"{promise.relation}, view {study.privacy.view}",
            )
        )
    return found


def _warnings(run: RunFolder, books: Mapping[str, Ledger]) -> list[str]:
    """Lists warnings that a reader must see before any number."""
    result, found = run.result, []
    status = str(result.get("status", "completed"))
    if status != "completed":
        found.append(
            f"the run is {status.replace('_', ' ')}: it ended before its schedule did, and the posterior "
            "is that so far"
        )
    if result.get("projected"):
        found.append(
            "the product of all factors was improper: the posterior shown is its projection"
        )
    if not result_json.heads(result):
        found.append(_NO_HEADS)
    said = result.get("warnings", ()) if run.plan is None else run.plan.warnings
    found += [str(line) for line in said]
    for name, book in books.items():
        found += [f"the ledger of {name}: {line}" for line in report_ledgers.excesses(book)]
    return found


def _mark(result: Mapping[str, Any], books: Mapping[str, Ledger]) -> str:
    """Returns the mark of the run, including every ledger's, whatever the result says."""
    noted = [book.header.mark for book in books.values()]
    return "; ".join(dict.fromkeys(filter(None, [str(result["mark"]), *noted])))


def _remarks(study: Study, family: Any, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    found = []
    of = regressions.of(study)
    if of is not None and "level" in of.responses:
        response = design_of(study)[1].response
        found.append(_CLASSES.format(response=response.text, first=response.levels[0]))
    # A report draws intervals only of Gaussian posteriors.
    return found + (remarks.remarks(study, family, rows) if isinstance(family, Gaussian) else [])


def _coefficients(run: RunFolder, folder: Path) -> tuple[tuple[Coefficient, ...], str]:
    """Returns the posterior's rows, and why they have no prior beside them."""
    rows, ratio = run.result["coefficients"], regressions.ratio(run.study)
    prior, note = _prior(run, folder, len(rows))
    names = [str(row["name"]) for row in rows]
    read = readings(run.study, names)
    compared, people = comparisons(run.study, names), labels(names)
    found = [
        _row(row, ratio, how)._replace(
            # Without a formula, brackets hold an index, not a level.
            label="" if run.study.formula is None else people[str(row["name"])],
            compared=said,
        )
        for row, how, said in zip(rows, read, compared, strict=True)
    ]
    if prior is not None:
        found = [
            row._replace(prior_mean=mean, prior_sd=sd)
            for row, mean, sd in zip(found, *prior, strict=True)
        ]
    return tuple(found), note


def _with_pooled(rows: Sequence[Coefficient], result: Mapping[str, Any]) -> tuple[Coefficient, ...]:
    """Puts the pooled, non-private fit beside the posterior."""
    if "pooled" not in result:
        raise errors.ConfigError(
            "--pooled is given, and the run holds no pooled fit",
            "only `fedvi simulate --pooled` makes one",
        )
    return tuple(
        row._replace(pooled_mean=_number(told["pooled_mean"]), pooled_sd=_number(told["pooled_sd"]))
        for row, told in zip(rows, result["coefficients"], strict=True)
    )


def _row(row: Mapping[str, Any], ratio: str, how: Reading) -> Coefficient:
    """Returns a row of the posterior, without its prior.

    The study decides how its ratio is read, since early versions wrote ratios for splines.
    """
    has = bool(ratio) and how.is_ratio
    exp = [_number(row.get(f"{ratio}_{key}")) for key in ("ratio", "lower", "upper")]
    return Coefficient(
        name=str(row["name"]),
        unit=str(row["unit"]),
        mean=float(row["mean"]),
        sd=float(row["sd"]),
        lower=float(row["lower"]),
        upper=float(row["upper"]),
        ratio=exp[0] if has else None,
        ratio_lower=exp[1] if has else None,
        ratio_upper=exp[2] if has else None,
        ratio_note=how.note if ratio else "",
    )


def _prior(
    run: RunFolder, folder: Path, count: int
) -> tuple[tuple[list[float], list[float]] | None, str]:
    """Returns mean and sd of the prior by coordinate, or None and why."""
    if run.plan is None:
        if "prior" not in run.result:
            return None, _PRIOR_UNKNOWN
        rows = run.result["prior"]
        if rows is None:
            return None, _PRIOR_APART
        return ([float(row["mean"]) for row in rows], [float(row["sd"]) for row in rows]), ""
    if run.plan.has_prior_worker:
        return None, _PRIOR_APART
    plan, state = run.plan, schema.read_state(folder, run.plan.prior)
    told = None if state is None or state.standing is None else state.standing.prior
    fitted = shared_parts.family(run.study, len(plan.names)).moments(
        plan.prior if told is None else told
    )
    mean, sd = in_file_units(run.study, plan.names).moments(*fitted)
    return (mean[:count].tolist(), sd[:count].tolist()), ""


def _means(run: RunFolder, coefficients: Sequence[Coefficient]) -> np.ndarray:
    """Reads the means of all coordinates from the posterior's file, which must match the result."""
    path = run.posterior
    found = posteriors.arrays(path, ("names", "mean", "sd"))
    names, mean, sd = map(np.atleast_1d, found.values())
    ratio, units = regressions.ratio(run.study), [row.unit for row in coefficients]
    read = readings(run.study, [row.name for row in coefficients])
    kept = []
    if len(units) == min(len(names), MOST):
        kept = of_moments(mean, sd, names[:MOST].tolist(), units, run.study)
    # Compared as text, so that NaN equals itself.
    if repr([_row(row, ratio, how) for row, how in zip(kept, read, strict=False)]) != repr(
        [Coefficient(*row[:9], ratio_note=row.ratio_note) for row in coefficients]
    ):
        raise errors.ConfigError(
            f"{path} is not the posterior that result.json lists",
            "the folder holds files of two runs",
        )
    return mean


def _topics(study: Study, means: np.ndarray, vocabulary: Sequence[str] | None) -> tuple[Topic, ...]:
    """Returns each topic's most probable words; empty unless the model has topics."""
    model = conjugates.model_of(study)
    if not isinstance(model, Topics):
        if vocabulary is not None:
            raise errors.ConfigError(
                f"--vocabulary is given, and model.kind is {study.model.kind!r}",
                'leave it out: only "latent_dirichlet" has topics of words',
            )
        return ()
    words = [str(number) for number in range(model.vocabulary)]
    if vocabulary is not None:
        if len(vocabulary) != model.vocabulary or len(set(vocabulary)) != len(vocabulary):
            raise errors.ConfigError(
                f"--vocabulary has {len(vocabulary):,} words, {len(set(vocabulary)):,} of them different, "
                f"expected the {model.vocabulary:,} of model.vocabulary, each once",
                "one word a line, in the order of their numbers in the documents",
            )
        words = list(vocabulary)
    found = []
    for number, shares in enumerate(means.reshape(model.topics, model.vocabulary)):
        best = np.argsort(-shares, kind="stable")[:_MOST_WORDS]
        told = tuple(float(shares[word]) for word in best)
        found.append(Topic(f"topic {number}", tuple(words[word] for word in best), told))
    return tuple(found)


def _rounds(result: Mapping[str, Any]) -> tuple[Round, ...]:
    found = []
    for update in result["history"]:
        gap = update["gap"]
        # Results of earlier versions lack some fields of a gap.
        known = (
            {} if gap is None else {name: float(gap[name]) for name in Gap._fields if name in gap}
        )
        moved = Gap(**known) if known else None
        found.append(
            Round(
                version=int(update["version"]),
                rounds=int(update["rounds"]),
                clients=tuple(name for name in update["clients"] if name != shared_parts.PRIOR),
                missing=tuple(
                    name for name in update.get("missing", ()) if name != shared_parts.PRIOR
                ),
                removed=tuple(update.get("removed", ())),
                added=tuple(update.get("added", ())),
                damping=float(update["damping"]),
                shift=None if moved is None else moved.mean_shift,
                sd_ratio=None if moved is None else moved.sd_ratio,
                surprise=0.0 if moved is None else moved.surprise,
                jitter=0.0 if moved is None else moved.jitter,
            )
        )
    return tuple(found)


def _sites(
    run: RunFolder,
    books: Mapping[str, Ledger],
    claims: Mapping[str, Sequence[Claim]],
    rounds: Sequence[Round],
    factors: Mapping[str, Mapping[str, Any]],
) -> tuple[Site, ...]:
    # Each in one pass: there may be very many sites.
    told = {str(row["client"]): row for row in run.result.get("privacy", ())}
    answers = collections.Counter(name for update in rounds for name in update.clients)
    missed = collections.Counter(name for update in rounds for name in update.missing)
    added, removed = _membership(rounds)
    public, found = run.study.privacy.records_public, []
    for name, book in books.items():
        part = factors.get(name, {})
        shifts = part.get("shift_in_sds")
        site = Site(
            name=name,
            answers=answers[name],
            charged=ledger.reservations(book),
            head=str(ledger.anchor(book)),
            stated=tuple(
                (claim.relation, claim.epsilon, claim.delta)
                for claim in claims[name]
                if claim.view == book.header.view
            ),
            missed=missed[name],
            added=added.get(name),
            removed=removed.get(name),
            records=_whole(told.get(name, {}).get("records")) if public else None,
            share=_number(part.get("precision_share")),
            shifts=None if not shifts else tuple(map(float, shifts.values()))[:MOST],
            reason=str(part.get("reason", "")),
            alone=_alone(part.get("alone")),
        )
        found.append(site)
    return tuple(found)


def _membership(rounds: Sequence[Round]) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the versions at which sites joined, and at which they left for good."""
    added: dict[str, int] = {}
    removed: dict[str, int] = {}
    for update in rounds:
        removed |= dict.fromkeys(update.removed, update.version)
        added |= dict.fromkeys(update.added, update.version)
        for name in update.added:
            # One that a study of masked sums began without was removed before it joined.
            removed.pop(name, None)
    return added, removed


def _alone(rows: Sequence[Mapping[str, Any]] | None) -> tuple[tuple[float, float], ...] | None:
    """Reads mean and sd by coefficient; None for a run of an earlier version."""
    if rows is None:
        return None
    return tuple((float(row["mean"]), float(row["sd"])) for row in rows[:MOST])


def _influence(run: RunFolder, folder: Path) -> tuple[dict[str, dict[str, Any]], str]:
    """Returns client → its contribution, and a note on all of them."""
    view = run.study.privacy.view
    if view != "message":
        return {}, _ONLY_PUBLISHED.format(view=view)
    rows = run.result.get("influence") if run.plan is None else _of_server(run.plan, folder)
    if not rows:
        return {}, _NONE
    notes = [_FIRST_ORDER] if any(row["shift_in_sds"] for row in rows) else []
    notes += [_NOISED] if run.study.privacy.private else []
    return {str(row["client"]): row for row in rows}, "; ".join(notes)


def _of_server(plan: ServerPlan, folder: Path) -> list[dict[str, Any]] | None:
    """Computes each client's contribution from the factors that a server keeps."""
    spec, state = server_plan.to_spec(plan), schema.read_state(folder, plan.prior)
    if state is None:
        return None
    return run_record.influence_rows(run_record.of_server(plan, spec, state))


def _lifetimes(result: Mapping[str, Any]) -> dict[str, str]:
    """Describes what each site has spent over all studies charged by its policy."""
    found = {}
    for row in result.get("privacy", ()):
        spent = row.get("lifetime")
        if spent:
            found[str(row["client"])] = (
                f"ε {tables.bound(float(spent['epsilon']))} of {float(spent['cap']):g} at "
                f"δ {tables.bound(float(spent['delta']))} under {spent['relation']}, "
                f"{spent['releases']} releases of all studies, as the run wrote it: the site's own "
                "ledger for life says whether it holds"
            )
    return found


def _number(value: Any) -> float | None:
    """Reads a number of a result, which holds infinity as text; None for NaN."""
    if value is None:
        return None
    found = float(value)
    return None if math.isnan(found) else found


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
