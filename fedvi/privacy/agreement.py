"""Which sites' answers are opened in sum: each site signs one set a round, and opens what T signed. No JAX.

    set          who answered in time, and the digest of each masked answer; named by the server
    signature    of one set a round, kept before it is sent: a site never signs another
    certificate  T = ⌊(n + t)/2⌋ + 1 signatures of one set
    opening      only of a set with a certificate, and once

Two sets of one round with certificates need 2T > n + t signatures; of n sites t may sign both, and n − t
one: there are too few. So whatever the server says, no two sums of a round are opened. All of this is
computed from values, and nothing here reads a clock, a key or a network: so all courses of a small
consortium can be searched (tests/unit/privacy/test_agreement.py). The proof: docs/proofs/secure_sums.md.
"""

import json
from collections.abc import Collection, Sequence
from typing import NamedTuple

from fedvi import errors

__all__ = [
    "Named",
    "Terms",
    "Turn",
    "may_open",
    "may_sign",
    "named",
    "said",
    "threshold",
]

_NOTHING = "nothing of this round was opened by this site"


class Named(NamedTuple):
    """The sites whose answers of a round are to be opened in sum.

    Attributes:
      visit: of the round.
      clients: the sites, in the order of the study.
      digests: of their masked answers, hex, in the same order.
    """

    visit: int
    clients: tuple[str, ...]
    digests: tuple[str, ...]

    @property
    def text(self) -> str:
        """The only way to write it."""
        return json.dumps(self._asdict(), sort_keys=True, separators=(",", ":"))


class Terms(NamedTuple):
    """What all sites agreed on beforehand; never read from what a server says later.

    Attributes:
      study_digest: of the study.
      set_up: digest of all sites and their keys, hex.
      clients: all sites, in the order of the study.
      colluding: t, how many may work with the server.
      least: k_min, how many answers a sum that is opened must hold.
    """

    study_digest: str
    set_up: str
    clients: tuple[str, ...]
    colluding: int
    least: int

    @property
    def threshold(self) -> int:
        """T: how many must sign one set."""
        return threshold(len(self.clients), self.colluding)


class Turn(NamedTuple):
    """Where a site stands in a round; it is kept, before anything that follows of it leaves.

    Attributes:
      visit: of the round.
      task: digest of the task that it answered, hex.
      signed: the one set that it signed, or opened; empty before.
      opened: whether it opened its part.
    """

    visit: int
    task: str
    signed: str = ""
    opened: bool = False


def threshold(clients: int, colluding: int) -> int:
    """Returns T = ⌊(n + t)/2⌋ + 1: how many of n sites must sign a set, of whom t may sign two.

    >>> [threshold(n, 1) for n in (3, 4, 5, 10, 20, 200)]
    [3, 3, 4, 6, 11, 101]
    """
    return (clients + colluding) // 2 + 1


def said(terms: Terms, task: str, text: str) -> bytes:
    """Returns what is signed of a set: with the study, all keys, and the task that was answered."""
    whole = {
        "form": "fedvi set 1",
        "study": terms.study_digest,
        "set_up": terms.set_up,
        "task": task,
        "set": text,
    }
    return json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()


def named(clients: Sequence[str], text: str) -> Named:
    """Reads a set.

    Raises:
      ProtocolError: it is none, or it is of no sites of the study, in their order, each once.
    """
    try:
        raw = json.loads(text)
        found = Named(raw["visit"], tuple(raw["clients"]), tuple(raw["digests"]))
        # Read and written again it must be the same: no set has two texts.
        whole = found.text == text and len(found.clients) == len(found.digests)
        whole = whole and all(type(part) is str for part in (*found.clients, *found.digests))
    except (ValueError, KeyError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise errors.ProtocolError(
            "the set of sites whose answers are to be opened cannot be read",
            "do server and sites have the same version of fedvi?",
        )
    if found.clients != tuple(name for name in clients if name in found.clients):
        raise errors.ProtocolError(
            "the set of sites whose answers are to be opened names some that are not in the study, or "
            "twice, or in another order",
            _NOTHING,
        )
    return found


def may_sign(terms: Terms, own: str, turn: Turn, sealed: str | None, text: str) -> Turn:
    """Returns where a site stands once it has signed a set; to be stored before the signature leaves.

    Args:
      terms: of the study.
      own: the site.
      turn: where it stands.
      sealed: digest of the answer of this round that its ledger holds; None if there is none.
      text: of the set.

    Raises:
      ProtocolError: the site must not sign it; each reason has its own sentence.
    """
    _checked(terms, own, turn, sealed, text)
    return turn._replace(signed=text)


def may_open(
    terms: Terms, own: str, turn: Turn, sealed: str | None, text: str, signers: Collection[str]
) -> Turn:
    """Returns where a site stands once it has opened its part for a set.

    Args:
      terms, own, turn, sealed, text: as of ``may_sign``.
      signers: the sites whose signatures of this set, under this site's own task, were verified.

    Raises:
      ProtocolError: the site must open nothing for it.
    """
    found = _checked(terms, own, turn, sealed, text)
    count = len(set(signers) & set(found.clients))
    if count < terms.threshold:
        raise errors.ProtocolError(
            f"{count} of the sites in the set of round {turn.visit} signed it, expected {terms.threshold}: "
            "with fewer, another set of this round could be opened as well",
            _NOTHING,
        )
    return turn._replace(signed=text, opened=True)


def _checked(terms: Terms, own: str, turn: Turn, sealed: str | None, text: str) -> Named:
    found = named(terms.clients, text)
    if found.visit != turn.visit:
        raise errors.ProtocolError(
            f"the set of sites to be opened is of round {found.visit}, and this site's last answer is of "
            f"round {turn.visit}",
            "what belongs to another round opens nothing of this one",
        )
    if own not in found.clients:
        raise errors.ProtocolError(
            f"the set of round {turn.visit} does not hold {own!r}: a site that is not in a sum opens "
            "nothing of it",
            "an answer that came too late stays masked for good",
        )
    if sealed is None or found.digests[found.clients.index(own)] != sealed:
        raise errors.ProtocolError(
            f"the set of round {turn.visit} names another answer of {own!r} than its ledger holds",
            _NOTHING,
        )
    least = max(terms.threshold, terms.least)
    if len(found.clients) < least:
        raise errors.ProtocolError(
            f"the set of round {turn.visit} holds {len(found.clients)} sites, expected {least} or more: "
            "the sum of fewer hides less than was promised",
            _NOTHING,
        )
    if turn.signed not in ("", text):
        raise errors.ProtocolError(
            f"this site signed another set of round {turn.visit}: two sums of one round, opened both, "
            "would show what one site alone answered",
            _NOTHING,
        )
    return found
