"""Rules by which sites agree on the one set of answers whose sum they unmask in a round. No JAX.

    set          the sites that answered in time, with the digest of each masked answer; named by the server
    signature    of one set a round; stored before it is sent, so that a site never signs another set
    certificate  T = ⌊(n + t)/2⌋ + 1 signatures of one set
    opening      only of a set with a certificate, and only once

Two certified sets in one round need 2T > n + t signatures. Of n sites at most t sign both sets and n − t
sign one, which is too few. So whatever the server says, at most one sum of a round is opened. These
functions are pure: they read no clock, key or network. That lets a test search every run of a small
consortium (tests/unit/privacy/test_agreement.py). The proof: docs/proofs/secure_sums.md.
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
    """The set of sites whose answers in one round are to be opened as a sum.

    Attributes:
      visit: the number of the round.
      clients: the sites, in the order of the study.
      digests: digests of their masked answers, hex, in the same order.
    """

    visit: int
    clients: tuple[str, ...]
    digests: tuple[str, ...]

    @property
    def text(self) -> str:
        """The canonical JSON of the set; no set has another text."""
        return json.dumps(self._asdict(), sort_keys=True, separators=(",", ":"))


class Terms(NamedTuple):
    """What all sites agreed on in advance; never taken from a later message of the server.

    Attributes:
      study_digest: of the study.
      set_up: digest of all sites and their keys, hex.
      clients: all sites, in the order of the study.
      colluding: t, how many sites may work with the server.
      least: k_min, the least number of answers in a sum that is opened.
      absent: the sites that the study began without: they have no keys, and are in no set.
    """

    study_digest: str
    set_up: str
    clients: tuple[str, ...]
    colluding: int
    least: int
    absent: tuple[str, ...] = ()

    @property
    def threshold(self) -> int:
        """T: how many sites must sign one set."""
        return threshold(len(self.clients), self.colluding)


class Turn(NamedTuple):
    """A site's state in a round; stored before any message that depends on it is sent.

    Attributes:
      visit: the number of the round.
      task: digest of the task that the site answered, hex.
      signed: the one set that the site signed or opened; empty before that.
      opened: whether the site opened its part.
    """

    visit: int
    task: str
    signed: str = ""
    opened: bool = False


def threshold(clients: int, colluding: int) -> int:
    """Returns T = ⌊(n + t)/2⌋ + 1: how many of n sites must sign a set if t of them may sign two.

    >>> [threshold(n, 1) for n in (3, 4, 5, 10, 20, 200)]
    [3, 3, 4, 6, 11, 101]
    """
    return (clients + colluding) // 2 + 1


def said(terms: Terms, task: str, text: str) -> bytes:
    """Returns the bytes that a site signs: the set, with the study, all keys and the answered task."""
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
      ProtocolError: ``text`` is not a set, or its sites are not sites of the study in study order, each
        once.
    """
    try:
        raw = json.loads(text)
        found = Named(raw["visit"], tuple(raw["clients"]), tuple(raw["digests"]))
        # Only the canonical text is accepted, so that no set has two texts.
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
    """Returns the site's state after signing a set; store it before the signature is sent.

    Args:
      terms: of the study.
      own: the name of the site.
      turn: its state now.
      sealed: digest of its answer of this round, from its ledger; None if there is none.
      text: of the set.

    Raises:
      ProtocolError: the site must not sign this set; the message gives the reason.
    """
    _checked(terms, own, turn, sealed, text)
    return turn._replace(signed=text)


def may_open(
    terms: Terms, own: str, turn: Turn, sealed: str | None, text: str, signers: Collection[str]
) -> Turn:
    """Returns the site's state after opening its part for a set.

    Args:
      terms, own, turn, sealed, text: as in ``may_sign``.
      signers: the sites whose signatures of this set, under this site's own task, were verified.

    Raises:
      ProtocolError: the site must not open its part for this set.
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
            "a set of another round opens nothing of this one",
        )
    if absent := set(found.clients) & set(terms.absent):
        raise errors.ProtocolError(
            f"the set of round {turn.visit} names {sorted(absent)[0]!r}, which this study began without",
            "no answer of that site can be masked, and it hides nobody's; " + _NOTHING,
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
            f"this site signed another set of round {turn.visit}: two sums of one round, if opened, "
            "could reveal the answer of a single site",
            _NOTHING,
        )
    return found
