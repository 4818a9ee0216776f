"""What is kept of a run: plain values for tables and JSON, and the files of `--out`."""

import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedvi import __version__, errors
from fedvi.federation.fold import gap
from fedvi.privacy import ledger, statement
from fedvi.results import posterior as posteriors
from fedvi.results.baselines import Baseline
from fedvi.results.influence import curvature_noise, influence, left_out
from fedvi.results.one_shot import OneVisit, estimated_gap
from fedvi.run.simulate import Result, Site
from fedvi.study import shared_parts, site_effects
from fedvi.study.coefficients import MOST
from fedvi.study.coefficients import coefficients as rows_of

__all__ = [
    "as_dict",
    "baseline_rows",
    "check_target",
    "coefficients",
    "influence_rows",
    "prior_rows",
    "privacy_rows",
    "ratio",
    "write",
]

# Shifts by client and coefficient that a file holds at most.
_MOST_SHIFTS = 100_000


def coefficients(result: Result) -> list[dict[str, Any]]:
    """Lists the posterior by coordinate of θ; see ``fedvi.study.coefficients``."""
    assembly = result.assembly
    return rows_of(
        assembly.family,
        result.posterior,
        assembly.model.names,
        assembly.units,
        assembly.study,
        result.pooled,
    )


def ratio(result: Result) -> str:
    """Returns of what exp(coefficient) is a ratio, such as "odds"; "" where it is none."""
    return shared_parts.ratio(result.assembly.study)


def privacy_rows(result: Result) -> list[dict[str, Any]]:
    """Lists per client what left it and what that cost under each claimed relation."""
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
                # By it a report knows the ledger beside it again.
                "ledger": str(ledger.anchor(result.ledgers[site.name])),
            }
        )
    return rows


def _lifetime(site: Site) -> dict[str, Any] | None:
    """What a site's policy charged over all studies; None where it has no such cap."""
    spent = site.claims[0].lifetime if site.claims else None
    return None if spent is None else spent._asdict()


def influence_rows(result: Result) -> list[dict[str, Any]] | None:
    """Lists what each client contributed; see ``fedvi.results.influence``.

    Returns:
      By client: precision_share, shift_in_sds (coefficient → shift without the client; None with a
      reason) and reason. None for a family that has no such answer, where the list would be very long, or
      where nobody is to see what one client answered.
    """
    assembly = result.assembly
    names, clients = assembly.model.names, assembly.clients
    if assembly.gather is not None:
        return None  # factors are parts of a sum, and no client's
    if len(names) * len(clients) > _MOST_SHIFTS:
        return None
    stand, without = assembly.solvers[clients[0]].stand, None
    if stand is not None:
        without = left_out(
            *(assembly.family, stand, assembly.prior),
            *(result.factors, result.standing, result.history),
        )
    found = influence(
        assembly.family,
        assembly.prior,
        result.factors,
        clients,
        stand is not None,
        without,
        curvature_noise(stand),
    )
    if found is None:
        return None
    return [
        {
            "client": row.client,
            "precision_share": row.share,
            "shift_in_sds": row.shifts and dict(zip(names, row.shifts, strict=True)),
            "reason": row.reason,
        }
        for row in found
    ]


def prior_rows(result: Result) -> list[dict[str, float]] | None:
    """Lists mean and sd of the prior, for the coordinates that ``coefficients`` lists.

    Returns:
      None where the prior is no member of the family: it is then a factor of its own, which is refined
      beside the clients and told by no mean and sd.
    """
    assembly = result.assembly
    if shared_parts.PRIOR in assembly.solvers:
        return None
    mean, sd = assembly.family.moments(assembly.prior)
    listed = zip(mean[:MOST].tolist(), sd[:MOST].tolist(), strict=True)
    return [{"mean": middle, "sd": spread} for middle, spread in listed]


def baseline_rows(result: Result, rivals: Sequence[Baseline]) -> list[dict[str, Any]]:
    """Lists baselines beside a run: their coefficients, and how far they are from its posterior.

    Returns:
      By baseline: name, note, mean and sd (lists by coordinate of θ), mean_shift (the largest
      distance of a mean, in sds of the run's posterior) and sd_ratio.
    """
    family = result.assembly.family
    rows = []
    for rival in rivals:
        mean, sd = family.moments(rival.posterior)
        values = {"name": rival.name, "note": rival.note, "mean": mean.tolist(), "sd": sd.tolist()}
        rows.append(values | gap(family, rival.posterior, result.posterior)._asdict())
    return rows


def as_dict(result: Result, rivals: Sequence[Baseline] = ()) -> dict[str, Any]:
    """Returns everything about a run that may be published, as plain values for JSON.

    Args:
      result: of the run.
      rivals: baselines to stand beside it.
    """
    study, rows = result.assembly.study, coefficients(result)
    content = {
        "fedvi": __version__,
        "study": study.study.name,
        "digest": study.digest,
        "protection": study.privacy.protection,
        "mark": result.assembly.mark,
        "warnings": list(result.assembly.warnings),
        "coefficients": rows,
        "prior": prior_rows(result),
        "privacy": privacy_rows(result),
        "consortium": [statement.as_dict(claim) for claim in result.consortium],
        "projected": result.improper,
        "residuals": dict(result.residuals),
        "influence": influence_rows(result),
        "one_shot_gap": one_shot_gap(result),
        "history": [
            {
                "version": update.version,
                "clients": update.clients,
                "missing": update.missing,
                "removed": update.removed,
                "added": update.added,
                "given_up": update.given_up,
                "dropped": update.dropped,
                "staleness": update.staleness,
                "damping": update.damping,
                "rounds": update.rounds,
                "gap": None if update.gap is None else update.gap._asdict(),
            }
            for update in result.history
        ],
        "elapsed_seconds": round(result.elapsed_seconds, 3),
    }
    said = site_effects.remark(study, rows)
    if said:
        content["remark"] = said
    if rivals:
        content["baselines"] = baseline_rows(result, rivals)
    if result.pooled is not None:
        content["pooled"] = "pooled_mean and pooled_sd: fitted to all records without privacy"
    return posteriors.plain(content)


def one_shot_gap(result: Result) -> float | None:
    """Estimates how far more rounds would move the means of a run of one, see ``estimated_gap``."""
    built = result.assembly
    released = OneVisit(
        built.study, built.model.names, built.family, built.prior, result.factors, result.history
    )
    return estimated_gap(released)


def check_target(directory: Path) -> None:
    """Refuses a target folder that holds something; called before a run, so that none is lost.

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


def write(result: Result, directory: Path, rivals: Sequence[Baseline] = ()) -> None:
    """Writes the posterior (npz and JSON), the ledgers and the resolved study, all or nothing.

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
            scratch, assembly.family, result.posterior, assembly.model.names, assembly.mark
        )
        posteriors.write_json(scratch / "result.json", as_dict(result, rivals))
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
