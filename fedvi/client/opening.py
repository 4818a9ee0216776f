"""A site's part in opening the sum of a round that some sites did not answer.

- *Mask*: c_u = y_u + layers of noise + stream(b_u) ± streams of all pairs. b_u and the keys of the layers
  are derived from one secret a round, which is split into shares, sealed one per site.
- *Sign*: only one set of answering sites in each round.
- *Open*, for a set with a certificate. If it holds all sites: the secret, and the shares of all others.
  Else: b_u, the pair keys with the sites outside, and the keys of the layers that the sum no longer needs.
  Then the keys of the round are erased.

Each function takes the keys held, and returns the keys to store before its other results may leave.
Which set may be signed and opened: ``fedvi.privacy.agreement``. Proof: docs/proofs/secure_sums.md.
"""

import hashlib
import itertools
import secrets
from collections.abc import Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedvi import errors
from fedvi.client.held_keys import Held, ratcheted
from fedvi.privacy import agreement, certificates, pairs, shares, top_up
from fedvi.privacy.agreement import Terms, Turn
from fedvi.privacy.certificates import Certificate
from fedvi.privacy.top_up import TopUp

__all__ = ["begun", "opened", "signature"]


def begun(terms: Terms, own: str, held: Held, visit: int, task: bytes) -> tuple[Held, list[bytes]]:
    """Draws a site's secret of a round, and splits it into shares for all other sites.

    Args:
      held: the site's keys, with the secrets of this visit.
      task: digest of the task.

    Returns:
      The keys to store, and a sealed share for each site, in the order of the study; zeros for itself, and
      for sites that the study began without.
    """
    seed = secrets.token_bytes(shares.SECRET_BYTES)
    made = shares.split(seed, terms.threshold, len(terms.clients))
    sealed = [
        shares.seal(pairs.share_key(held.secrets[other], task, own), share)
        if other in held.secrets
        else bytes(shares.SEALED_BYTES)
        for other, share in zip(terms.clients, made, strict=True)
    ]
    return held._replace(turn=Turn(visit, task.hex()), seed=seed, opening=b""), sealed


def signature(
    terms: Terms, own: str, held: Held, sealed: str | None, text: str
) -> tuple[Held, bytes]:
    """Signs a set.

    Args:
      terms, own: as in `begun`.
      held: the site's keys, with its turn.
      sealed: digest of its answer, from its ledger.
      text: of the set.

    Returns:
      The keys to store before the signature leaves, and the signature.

    Raises:
      ProtocolError: as in ``agreement.may_sign``.
    """
    turn = agreement.may_sign(terms, own, _turn(held), sealed, text)
    key = Ed25519PrivateKey.from_private_bytes(held.signing)
    return held._replace(turn=turn), key.sign(agreement.said(terms, turn.task, text))


def opened(
    terms: Terms,
    own: str,
    held: Held,
    sealed: str | None,
    parts: Sequence[bytes],
    layers: TopUp,
) -> tuple[Held, bytes, Certificate | None]:
    """Opens a site's part of a sum whose set has a certificate.

    Args:
      terms, own, held, sealed: as in `signature`.
      parts: the set; then, of each site in it, its signature or nothing; then, of each site in it, its
        share for this site.
      layers: of the study's answers.

    Returns:
      The keys to store before the opening leaves, without those of the round; the opening, the same bytes
      at each call; and the certificate, to be stored with the keys, None after the first call.

    Raises:
      ProtocolError: as in ``agreement.may_open``; or ``parts`` has shares of sites outside the set.
      PrivacyError: a share is not what the site in the set sealed for this task.
    """
    turn, text = _turn(held), parts[0].decode(errors="replace")
    if turn.opened:
        agreement.may_sign(terms, own, turn, sealed, text)
        return held, held.opening, None
    inside = agreement.named(terms.clients, text).clients
    if len(parts) != 1 + 2 * len(inside):
        raise errors.ProtocolError(
            f"the server shows {len(parts) - 1} signatures and shares for a set of {len(inside)} sites, "
            f"expected {2 * len(inside)}",
            "the share of a site outside the set would open what that site alone answered",
        )
    content = agreement.said(terms, turn.task, text)
    found = zip(inside, parts[1 : 1 + len(inside)], strict=True)
    valid = (
        (name, signed)
        for name, signed in found
        if certificates.is_signed(held.vouchers.get(name, b""), content, signed)
    )
    # Check only as many signatures as a certificate needs: with 200 sites this takes the longest.
    signatures = dict(itertools.islice(valid, terms.threshold))
    turn = agreement.may_open(terms, own, turn, sealed, text, signatures)
    keys = {name: held.vouchers[name] for name in signatures}
    task, given = bytes.fromhex(turn.task), dict(zip(inside, parts[1 + len(inside) :], strict=True))
    outside = [name for name in terms.clients if name not in inside]
    # Each share is looked at even if it is kept back: it shows that all in the set answered this task.
    unsealed = [
        shares.unseal(pairs.share_key(held.secrets[name], task, name), given[name], name)
        for name in inside
        if name != own
    ]
    if outside:
        # The secret would open the layers that the sum needs, so neither it nor a share of one leaves.
        unneeded = range(layers.kept(len(outside)), len(layers.layers))
        opening = b"".join(
            (
                top_up.self_mask_key(held.seed),
                *(pairs.mask_key(held.secrets[n], task) for n in outside if n in held.secrets),
                *(key for _, key in top_up.layer_keys(held.seed, unneeded)),
            )
        )
    else:
        opening = b"".join((held.seed, *unsealed))
    kept = hashlib.sha256(opening).hexdigest()
    certificate = Certificate(terms, turn.visit, turn.task, text, keys, signatures, kept)
    after = ratcheted(held, turn.visit + 1)
    return after._replace(turn=turn, seed=b"", opening=opening), opening, certificate


def _turn(held: Held) -> Turn:
    if held.turn is None:
        raise errors.ProtocolError(
            "the server names a set of sites to be opened, and this site has masked no answer yet",
            "nothing was opened",
        )
    return held.turn
