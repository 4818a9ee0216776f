"""A run that is over, read from its folder; come here to read more of what a run leaves behind."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedvi import __version__, errors
from fedvi.experiment import posterior as posteriors
from fedvi.experiment import server_plan
from fedvi.experiment.build import Assembly, assemble
from fedvi.experiment.config import Study, load_study
from fedvi.experiment.plan import plan
from fedvi.privacy.sums import of_messages
from fedvi.report import tables
from fedvi.typing import Eta

__all__ = ["FREE", "Finished", "origin", "read", "study_and_folder"]

FREE = (
    "made of the posterior alone, which was released and paid for: it costs nothing further, however "
    "often it is made (post-processing)"
)
"""What is said beside everything that is computed from a posterior and no record."""


class Finished(NamedTuple):
    """A finished run.

    Attributes:
      assembly: its study, built.
      posterior: η of a proper q, of whatever family.
      mark: that of the posterior; empty if nothing needs saying.
      digest: of the study as it was run.
      claims: what the consortium may claim, by relation: plain values, see ``statement.as_dict``. Of a
        server's folder those of the plan. Empty where nothing was protected.
    """

    assembly: Assembly
    posterior: Eta
    mark: str
    digest: str
    claims: tuple[Mapping[str, Any], ...]

    @property
    def name(self) -> str:
        """Of the study."""
        return self.assembly.study.study.name

    @property
    def title(self) -> str:
        """Its name, and the mark if there is one."""
        return self.name + (f" — {self.mark}" if self.mark else "")

    @property
    def claimed(self) -> str:
        """The claims in one line."""
        if not self.claims:
            return "no claim: what left the sites was not protected (epsilon is infinite)"
        first = self.claims[0]
        said = ", ".join(
            f"{tables.bound(float(claim['epsilon']))} ({claim['relation']})"
            for claim in self.claims
            # What single messages tell stands beside a claim for sums of them, in a statement.
            if claim["view"] == first["view"]
        )
        return (
            f"epsilon {said} at delta {tables.bound(float(first['delta']))} for one "
            f"{first['unit']}, view {first['view']}, accountant {first['accountant']}"
            + (f"; MARK: {self.mark}" if self.mark else "")
        )


def read(folder: Path) -> Finished:
    """Reads what `fedvi simulate --out` or a server left in a folder.

    Raises:
      ConfigError: it is not there, damaged, or does not belong together; or q is improper.
    """
    study, result = study_and_folder(folder)
    assembly = assemble(study)
    kept = posteriors.read(result / "posterior.npz", assembly.family, assembly.model.names)
    told = _told(result / "result.json")
    claims = (told.get("consortium") or _planned(assembly)) if study.privacy.private else ()
    digest = str(told.get("digest", study.digest))
    return Finished(assembly, kept.eta, kept.mark, digest, tuple(claims))


def study_and_folder(folder: Path) -> tuple[Study, Path]:
    """Returns the study of a run's folder, and the folder of its posterior.

    Raises:
      ConfigError: it is no such folder.
    """
    study_path, plan_path = folder / "study.json", folder / server_plan.FILE
    if study_path.is_file():
        return load_study(study_path), folder
    if plan_path.is_file():
        return server_plan.read(plan_path).study, folder / "result"
    raise errors.ConfigError(
        f"{folder} holds neither study.json nor {server_plan.FILE}, expected the folder of a run",
        "name the folder of `fedvi simulate --out`, or of a server's --state",
    )


def origin(run: Finished) -> dict[str, Any]:
    """Returns where a file came from and what that cost: plain values, for a file beside it."""
    return {
        "fedvi": __version__,
        "study": run.name,
        "digest": run.digest,
        "mark": run.mark,
        "protection": run.assembly.study.privacy.protection,
        "claims": [dict(claim) for claim in run.claims],
        "claimed": run.claimed,
    }


def _told(path: Path) -> Mapping[str, Any]:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise errors.ConfigError(f"{path} cannot be read: {error}", "has the run ended?") from error
    if not isinstance(told, dict):
        raise errors.ConfigError(f"{path} holds no result of a run, expected a table of JSON")
    return told


def _planned(assembly: Assembly) -> Sequence[Mapping[str, Any]]:
    """Returns what all sites may claim of the largest number of releases that the study allows."""
    privacy, prices = assembly.study.privacy, plan(assembly).epsilon
    # Whoever stands at several sites pays at each.
    times = 1 if privacy.disjoint else len(assembly.clients)
    if privacy.view == "aggregate" and not privacy.disjoint:
        # What messages cost: see `statement.consortium`.
        prices = {
            relation: price and _as_messages(assembly, relation)
            for relation, price in prices.items()
        }
    return [
        {
            "client": "all clients",
            "unit": privacy.unit,
            "relation": relation,
            "view": privacy.view,
            "epsilon": price * times,
            "delta": (privacy.delta or 0.0) * times,
            "accountant": privacy.accountant,
            "mark": assembly.mark,
        }
        for relation, price in prices.items()
        if price is not None
    ]


def _as_messages(assembly: Assembly, relation: Any) -> float:
    """Returns ε of the whole plan for whoever sees single messages."""
    privacy = assembly.study.privacy
    accountant = of_messages(assembly.accountant(privacy.accountant, relation))
    return accountant.epsilon(assembly.planned, privacy.delta or 0.0)
