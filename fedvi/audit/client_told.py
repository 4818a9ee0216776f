"""Records the behaviour of audited clients, and turns it into findings."""

import dataclasses
import itertools

import numpy as np
import scipy.stats

from fedvi.audit.findings import Finding, not_checked
from fedvi.audit.noise import FALSE_ALARM
from fedvi.audit.recording import Call

__all__ = [
    "COPY",
    "GONE",
    "HAND",
    "KEYS",
    "ONE",
    "OTHER",
    "PAID",
    "RECORDS",
    "SENT",
    "Release",
    "Told",
    "findings",
]


@dataclasses.dataclass
class Release:
    """A release that one tick of a client computed: its client and name, its secret and its noise."""

    name: str
    identity: tuple[int, str]
    secret: bytes
    calls: list[Call]


@dataclasses.dataclass
class Told:
    """Observations of the clients; problems by check, one sentence each."""

    releases: list[Release] = dataclasses.field(default_factory=list)
    problems: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    played: dict[str, int] = dataclasses.field(default_factory=dict)

    def expect(self, check: str, good: bool, problem: str) -> None:
        """Counts an observation of a check, and records the problem if it is not good."""
        self.played[check] = self.played.get(check, 0) + 1
        if not good:
            self.problems.setdefault(check, []).append(problem)


ONE = "one release has one message"
OTHER = "another task or state is another release"
RECORDS = "changed records are refused"
COPY = "a copied store draws other noise"
GONE = "a secret is gone once its release is sealed"
PAID = "records are read once they are paid for"
HAND = "files by hand are answered once"
SENT = "what is sent is what was sealed"
KEYS = "a key takes the whole of its secret"

_GOOD = {
    ONE: "a retry, and a client that was killed, send the same bytes for one charge",
    OTHER: "an interrupted release whose task or state changed is charged anew, with a secret of its own",
    RECORDS: "once a release was begun, records that changed are refused",
    COPY: "a server that saw more refuses a client that was set back; any other gets other noise",
    GONE: "neither the store nor its files hold the secret of a sealed release",
    PAID: "without budget no record is read, and every release is reserved before",
    SENT: "every message has a reservation and a digest in the ledger",
    KEYS: "every byte of a secret, and the purpose, changes every word of the key",
    HAND: "a task file that is read again gives the same answer, and old or strange ones are refused",
}
_BAD = {
    ONE: "one release is answered in two ways, or charged twice: the difference shows records",
    OTHER: "a release begun for one input continues with another under the same secret or charge",
    RECORDS: "a release is computed from other records than those before it",
    COPY: "a client that was set back uses a secret again",
    GONE: "whoever steals the store strips the noise off what was sent",
    PAID: "records are read before their release is paid for",
    SENT: "something is sent that the ledger does not know",
    KEYS: "a key can be guessed: it follows from a part of its secret, or is shorter than it seems",
    HAND: "a client by hand answers twice, or takes an old or a strange file",
}


def findings(told: Told, with_noise: bool) -> list[Finding]:
    """Returns a finding for each check; noise is judged only if it was recorded."""
    found = [
        Finding(
            "client",
            check,
            not told.problems.get(check) if told.played.get(check) else None,
            f"{told.played.get(check, 0)} times looked at, {len(told.problems.get(check, []))} problems"
            + (f": {told.problems[check][0]}" if told.problems.get(check) else ""),
            _BAD[check] if told.problems.get(check) else _GOOD[check],
            {"played": told.played.get(check, 0), "problems": told.problems.get(check, [])},
        )
        for check in _GOOD
    ]
    return [_noise(told.releases, with_noise), *found]


def _noise(releases: list[Release], with_noise: bool) -> Finding:
    name = "noise of two releases is independent"
    if not with_noise:
        return not_checked(
            "client",
            name,
            "this solver takes no mechanism, so that its noise cannot be seen at the client",
        )
    chances, worst, same, ratios = [1.0], "", "", []
    distinct = {release.secret: release for release in releases}
    pairs = list(itertools.combinations(distinct.values(), 2))
    for one, other in pairs:
        noise = [
            np.concatenate([call.residual / call.layout.noise_multiplier for call in r.calls])
            for r in (one, other)
        ]
        if noise[0].shape != noise[1].shape or not noise[0].size:
            continue
        # Numbers on a grid may be equal by chance: allow one step more in their differences.
        steps = [
            call.layout.step / (call.layout.clip_norm * call.layout.noise_multiplier)
            for call in one.calls
            if call.layout.step is not None
        ]
        for sign in (1.0, -1.0):
            # The difference and the sum of independent noises have twice the variance.
            apart = np.abs(noise[0] - sign * noise[1]) + max(steps, default=0.0)
            square = float((apart**2).sum() / 2.0)
            if sign > 0.0:
                ratios.append(np.sqrt(square / noise[0].size))
            chance = float(scipy.stats.chi2.cdf(square, noise[0].size))
            if chance < min(chances):
                worst = f"{one.name} and {other.name}"
            chances.append(chance)
    # Each secret and key belongs to one release of one client, however often that is recomputed.
    owners: dict[bytes, tuple[int, str]] = {}
    for release in releases:
        for held in (release.secret, *(call.key for call in release.calls)):
            if owners.setdefault(held, release.identity) != release.identity:
                same = f"{owners[held][1]} and {release.identity[1]}"
    chance = min(1.0, min(chances) * 2 * max(1, len(pairs)))
    passed = chance >= FALSE_ALARM and not same and bool(ratios)
    middle = float(np.median(ratios)) if ratios else float("nan")
    return Finding(
        "client",
        name,
        passed if ratios or same else None,
        f"{len(distinct)} releases, {len(pairs)} pairs: differences have {middle:.4g} × √2 stds "
        f"of the noise; corrected p {chance:.2g}",
        "two answers to one task differ by the noise of both"
        if passed
        else f"two releases share noise ({same or worst}): their difference shows records"
        if ratios or same
        else "no two releases with noise were seen",
        {"p_value": chance, "pairs": len(pairs), "ratio": middle},
    )
