"""Turns a simulated run into plain values for tables and JSON, and writes the files of `--out`."""

import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedvi import errors
from fedvi.federation.fold import gap
from fedvi.planning import advice, widths
from fedvi.privacy import ledger, statement
from fedvi.report import tables
from fedvi.results import posterior as posteriors
from fedvi.results import result_json, run_record
from fedvi.results.baselines import Baseline
from fedvi.results.run_record import RunRecord
from fedvi.results.verdict import Verdict
from fedvi.run.simulate import Result, Site
from fedvi.study.spec.coefficients import in_file_units

__all__ = [
    "as_dict",
    "baseline_rows",
    "check_target",
    "privacy_rows",
    "record",
    "verdict_of",
    "write",
]


def record(result: Result) -> RunRecord:
    """Returns the releases of a simulated run."""
    assembly = result.assembly
    return RunRecord(
        study=assembly.study,
        clients=assembly.clients,
        names=assembly.model.names,
        units=assembly.units,
        family=assembly.family,
        stated=assembly.prior,
        posterior=result.posterior,
        factors=result.factors,
        history=result.history,
        standing=result.standing,
        stand=assembly.spec.stand,
        is_projected=result.improper,
        is_summed=assembly.gather is not None,
        mark=assembly.mark,
    )


def privacy_rows(result: Result) -> list[dict[str, Any]]:
    """Lists each client's releases, and their cost under each claimed relation."""
    rows = []
    for site in result.sites:
        view = site.claims[0].view if site.claims else "message"
        epsilon = {claim.relation: claim.epsilon for claim in site.claims if claim.view == view}
        if not site.claims:
            epsilon = {"add_remove": math.inf, "substitute": math.inf}
        rows.append(
            {
                "client": site.name,
                "records": site.records,
                "releases": site.releases,
                "numbers": site.numbers,
                "epsilon": epsilon,
                "delta": result.assembly.study.privacy.delta,
                "view": view,
                "lifetime": _lifetime(site),
                # A report uses it to recognise the ledger beside the result.
                "ledger": str(ledger.anchor(result.ledgers[site.name])),
            }
        )
    return rows


def _lifetime(site: Site) -> dict[str, Any] | None:
    """Returns what a site's policy charged over all studies; None if it has no such cap."""
    spent = site.claims[0].lifetime if site.claims else None
    return None if spent is None else spent._asdict()


def baseline_rows(result: Result, rivals: Sequence[Baseline]) -> list[dict[str, Any]]:
    """Lists baselines: their coefficients, and how far they are from the run's posterior.

    Returns:
      By baseline: name, note, mean and sd (lists by coordinate of θ, as they are told), mean_shift (the
      largest distance of a mean, in sds of the run's posterior) and sd_ratio.
    """
    family = result.assembly.family
    known = in_file_units(result.assembly.study, result.assembly.model.names)
    rows = []
    for rival in rivals:
        mean, sd = known.moments(*family.moments(rival.posterior))
        values = {"name": rival.name, "note": rival.note, "mean": mean.tolist(), "sd": sd.tolist()}
        rows.append(values | gap(family, rival.posterior, result.posterior)._asdict())
    return rows


def verdict_of(result: Result, advise: bool = False) -> Verdict:
    """Returns the verdict on a run; see ``fedvi.results.verdict``.

    Args:
      result: of the run.
      advise: whether to compute, if it is wanted, what would narrow intervals most: takes seconds.
    """
    found = run_record.verdict_of(record(result), widths.expectation(result.assembly))
    if advise and found.wants_help:
        changes = [(one.clients, one.removed) for one in result.history]
        present = run_record.took_part(result.assembly.clients, changes)
        found = found._replace(helps=advice.help_in_words(result.assembly, present))
    return found


def as_dict(
    result: Result, rivals: Sequence[Baseline] = (), verdict: Verdict | None = None
) -> dict[str, Any]:
    """Returns everything about a run that may be published, as plain values for JSON.

    Args:
      result: of the run.
      rivals: baselines to list beside it.
      verdict: on the run, if already computed.
    """
    run, verdict = record(result), verdict or verdict_of(result)
    warnings = advice.doubts(result.assembly)
    values = result_json.content(run, verdict, warnings, result.pooled) | {
        "prior": run_record.prior_rows(run),
        "privacy": privacy_rows(result),
        "consortium": [statement.as_dict(claim) for claim in result.consortium],
        "residuals": dict(result.residuals),
        "influence": run_record.influence_rows(run),
        "elapsed_seconds": round(result.elapsed_seconds, 3),
    }
    if rivals:
        values["baselines"] = baseline_rows(result, rivals)
    if result.pooled is not None:
        values["pooled"] = "pooled_mean and pooled_sd: fitted to all records without privacy"
    return tables.plain(values)


def check_target(directory: Path) -> None:
    """Refuses a target folder that is not empty; called before a run, so that no run is lost.

    Raises:
      ConfigError: if it exists and is not an empty folder, or its parent does not exist, or the place
        cannot be written.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise errors.ConfigError(
            f"--out {directory} exists and is not an empty folder", "name a new folder"
        )
    if not directory.parent.is_dir():
        raise errors.ConfigError(
            f"--out {directory}: the folder {directory.parent} does not exist", "make it first"
        )
    place = directory if directory.exists() else directory.parent
    if not os.access(place, os.W_OK | os.X_OK):
        raise errors.ConfigError(
            f"--out {directory}: the folder {place} cannot be written", "name another folder"
        )


def write(
    result: Result,
    directory: Path,
    rivals: Sequence[Baseline] = (),
    verdict: Verdict | None = None,
) -> None:
    """Writes the posterior (npz and JSON), the ledgers and the resolved study: all of them, or none.

    Files: ``posterior.npz`` and ``posterior.json`` (both mean, sd, h, J, names, mark),
    ``result.json``, ``study.json`` and ``ledger/CLIENT.jsonl``.

    Raises:
      ConfigError: see ``check_target``.
    """
    check_target(directory)
    # An empty folder is filled, not replaced: it may be a mounted volume or the current folder.
    given = directory.exists()
    scratch = Path(
        tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory if given else directory.parent)
    )
    try:
        assembly = result.assembly
        posteriors.write(
            scratch,
            assembly.family,
            result.posterior,
            assembly.model.names,
            assembly.mark,
            record(result).noise_scale,
        )
        posteriors.write_json(scratch / "result.json", as_dict(result, rivals, verdict))
        study = result.assembly.study.as_dict()
        noise = result.assembly.noise_multiplier
        if noise is not None:
            study["solver"]["noise_multiplier"] = noise
        posteriors.write_json(scratch / "study.json", study)
        (scratch / "ledger").mkdir()
        for name, book in result.ledgers.items():
            text = "\n".join(ledger.to_lines(book)) + "\n"
            (scratch / "ledger" / f"{name}.jsonl").write_text(text, encoding="utf-8")
        if given:
            for path in scratch.iterdir():
                path.rename(directory / path.name)
            scratch.rmdir()
        else:
            scratch.chmod(0o755)
            scratch.rename(directory)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
