"""Applies a site's policy to a study: before its code is imported, and before each release."""

import contextlib
from collections.abc import Mapping
from pathlib import Path

from fedvi import errors
from fedvi.client.guard import Guard, Lifetime
from fedvi.client.policy import Policy, load_policy
from fedvi.store.sqlite import SqliteClientStore, read_ledger
from fedvi.study.build import Assembly
from fedvi.study.config import Study

__all__ = ["check_code", "guards", "load"]

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


def guards(
    policies: Mapping[str, Policy],
    folders: Mapping[str, Path],
    assembly: Assembly,
    closing: contextlib.ExitStack,
) -> dict[str, Guard]:
    """Returns each worker's check before it charges a release.

    Args:
      policies: client → its policy.
      folders: client → the folder of its ledger for life, if its policy has a section [life].
      assembly: the study, built.
      closing: closes the ledgers for life.

    Raises:
      PolicyRefused: a policy refuses the study; lists every reason.
    """
    made = {}
    for name, policy in policies.items():
        # All checks come before a ledger for life is opened.
        policy.check(assembly.request)
        lifetime = None
        if policy.life is not None:
            folder = folders[name]
            if (folder / "ledger.sqlite").exists():
                distance = read_ledger(folder).header.table_distance
            else:
                distance = max(_TABLE_DISTANCE, assembly.table_distance)
            keeper = SqliteClientStore(folder, policy.lifetime_header(distance))
            closing.callback(keeper.close)
            lifetime = Lifetime(policy, keeper)
        made[name] = Guard(policy, assembly.request, assembly.study.digest, lifetime)
    return made
