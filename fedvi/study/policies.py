"""Applies a site's policy to a study: before its code is imported, and before each release."""

from collections.abc import Callable, Mapping
from pathlib import Path

from fedvi import errors
from fedvi.client.guard import Guard, Lifetime
from fedvi.client.policy import Policy, load_policy
from fedvi.store.life import LifeLedger, place_of
from fedvi.study.build import Assembly
from fedvi.study.config import Study

__all__ = ["check_code", "check_without_policy", "guards", "load"]

# The largest distance of one noised sum of a later study from its exact law: 131,072 of our numbers. A
# ledger for life records it once, and refuses larger ones.
_TABLE_DISTANCE = 2.0**-46


def load(given: Mapping[str, Path], study: Study) -> dict[str, Policy]:
    """Reads the policies of a study's clients.

    Args:
      given: client → its policy file.
      study: names the clients.

    Raises:
      ConfigError: a client is not one of the study's, or a file is not a policy.
    """
    if not given:
        return {}
    names = [client.name for client in study.clients]
    for name in given:
        if name not in names:
            raise errors.ConfigError(
                f"--policy names client {name!r}, which the study does not have",
                errors.did_you_mean(name, names),
            )
    return {name: load_policy(path) for name, path in given.items()}


def check_code(policies: Mapping[str, Policy], study: Study) -> None:
    """Refuses a study's own code unless every policy allows it, before any of it is imported.

    Raises:
      PolicyRefused: names the section and the function.
    """
    if not policies:
        return
    outside = {
        what: kind
        for what, kind in study.kinds.items()
        # A name that nobody knows is refused as such, when the study is built.
        if study.is_outside(what) and study.parts.knows(what, kind)
    }
    for policy in policies.values():
        policy.check_code(outside)


def check_without_policy(
    assembly: Assembly, file: Path, *, unprotected: bool = False, simulated_noise: bool = False
) -> None:
    """Refuses a study that guarantees nothing, where no policy of the site says whether that is meant.

    Args:
      assembly: the study, built.
      file: of the study, for the error.
      unprotected: whether the site allows exact statistics of its records to leave, by name.
      simulated_noise: whether it allows noise from a known seed, or drawn in floating point.

    Raises:
      PolicyRefused: names each key of the study, what would leave the site, and how to allow it.
    """
    study, found = assembly.study, dict[str, str]()
    leaves = "un-noised statistics of the records would leave this site"
    if not (study.privacy.private or unprotected):
        found["unprotected"] = f'protection = "none" in [privacy]: {leaves}'
    if assembly.request.simulated and not simulated_noise:
        seed = study.simulation.insecure_seed
        found["simulated_noise"] = (
            f'mechanism = "{study.privacy.mechanism}" in [privacy]: its noise is drawn in floating '
            "point, and guarantees nothing for the statistics of the records that would leave this site"
            if seed is None
            else f"insecure_seed = {seed} in [simulation]: whoever has the file can take the noise off, "
            f"so that {leaves}"
        )
    if found:
        flags = " ".join("--allow-" + key.replace("_", "-") for key in found)
        raise errors.PolicyRefused(
            f"{file} guarantees nothing, and no policy of this site allows it: "
            + "; ".join(found.values()),
            hint=f"if the records are made up or public: {flags} answers this study; "
            f"{', '.join(f'{key} = true' for key in found)} under [allow] of a --policy allows all such "
            "studies",
        )


def guards(
    policies: Mapping[str, Policy],
    files: Mapping[str, Path],
    assembly: Assembly,
    *,
    life: Path | None = None,
    begin_life: bool = False,
    tell: Callable[[str], None] | None = None,
) -> dict[str, Guard]:
    """Returns each worker's check before it charges a release.

    Args:
      policies: client → its policy.
      files: client → the policy's file.
      assembly: the study, built.
      life: the folder of the ledgers for life, see ``place_of``.
      begin_life: whether a ledger for life may be begun in a folder that has another.
      tell: takes a warning if a ledger for life is begun.

    Raises:
      PolicyRefused: a policy refuses the study; lists every reason.
      ConfigError, LedgerError: a ledger for life cannot be opened, or may not be begun.
    """
    # All checks come before a ledger for life is opened.
    for policy in policies.values():
        policy.check(assembly.request)
    made = {}
    for name, policy in policies.items():
        lifetime = None
        if policy.life is not None:
            keeper = LifeLedger(
                place_of(life),
                policy.lifetime_header(max(_TABLE_DISTANCE, assembly.table_distance)),
                policy=files[name],
                begin=begin_life,
                tell=tell or (lambda line: None),
            )
            lifetime = Lifetime(policy, keeper)
        made[name] = Guard(policy, assembly.request, assembly.study.digest, lifetime)
    return made
