"""The site's half of secure sums: agrees on keys with all other sites, and masks each answer once.

    signed keys ─► all signed keys, identities checked ─► offers ─► a secret with each site
    answer ─► + masks that cancel in the sum over all sites ─► sealed, and sent by the worker
    if sites may be missing: the set of those that answered ─► signed once ─► opened (``opening``)

The server relays all messages, and sites trust none of them. What it can learn: docs/proofs/secure_sums.md.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedvi import errors
from fedvi.client import opening, signed_keys
from fedvi.client.held_keys import Held, ratcheted, read, text, written
from fedvi.federation.messages import (
    CLOSING,
    Done,
    Failure,
    Hello,
    KeyPart,
    NextTask,
    Offer,
    Payload,
    Reply,
    Request,
    Tensor,
    Wait,
)
from fedvi.federation.whole_numbers import LARGEST, MASKED, SHARES, whole
from fedvi.privacy import ledger as ledgers
from fedvi.privacy import masks, pairs, shares, top_up
from fedvi.privacy.agreement import Terms
from fedvi.privacy.ledger import Ledger
from fedvi.privacy.pairs import Keys, Member
from fedvi.privacy.sums import Sums
from fedvi.privacy.top_up import TopUp
from fedvi.store.base import TASK, ClientStore, board_of
from fedvi.transport import codec
from fedvi.transport.memory import Link
from fedvi.transport.signers import Signer
from fedvi.updates.base import Task

__all__ = ["Form", "MaskedLink", "Masking", "task_digest"]


class Form(NamedTuple):
    """The public format of a study's masked answers; but for the first two, the fields of a ``Gather``.

    Attributes:
      study_digest: of the study.
      clients: all sites, in the order of the study.
      shapes: of an answer's arrays, by name.
      step: of the grid that their numbers are on.
      bits: length of a masked word.
      sums: how many must answer, and how many may collude with the server.
      top_up: the layers of noise that make up for missing sites.
    """

    study_digest: str
    clients: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]
    step: float
    bits: int
    sums: Sums
    top_up: TopUp = top_up.NONE

    @property
    def opens(self) -> bool:
        """Whether a round may be summed without some sites, which takes the opening of masks."""
        return self.sums.least_reporting < len(self.clients)

    def terms(self, set_up: str) -> Terms:
        """Returns the terms that all sites agreed on; ``set_up`` is the digest of their keys."""
        least, colluding = self.sums.least_reporting, self.sums.colluding
        return Terms(self.study_digest, set_up, self.clients, colluding, least)


class Masking:
    """Masks the answers of one site.

    Guarantee: an answer is read only within a sum: of all sites of the roster or, where sites may drop
    out, of a set that enough of them signed, and each site signs one set a round. The keys are those that
    this site checked, and each visit's masks serve one task, whatever the server says, shows to other
    sites, repeats or leaves out. It rests on the store not being set back, and on what the proof assumes.

    Args:
      form: of the study's answers.
      signer: signs this site's keys and checks those of others.
      store: keeps the keys; its ledger tells which visits were answered.
      roster: digest of the sites that may take part, from this site's policy; None: pinned when first seen.
      tell: called once with the roster's digest, for a person to compare with that of other sites, and the
        sites that the study begins without.
    """

    def __init__(
        self,
        client: str,
        form: Form,
        signer: Signer,
        store: ClientStore,
        roster: str | None = None,
        tell: Callable[[str, Sequence[str]], None] | None = None,
    ) -> None:
        self._client, self._form, self._signer, self._store = client, form, signer, store
        self._pinned, self._tell = roster, tell or (lambda *_: None)
        self._own = form.clients.index(client)
        self._held: Held | None = None
        self._members: tuple[Member, ...] = ()
        self._stage = 1
        self._posted: set[int] = set()

    def forget(self) -> None:
        """Drops all key secrets from memory: the run is over, and the store has erased them."""
        self._held, self._members = None, ()

    def begin(self) -> None:
        """Makes the site post its parts again, since a restarted server may have lost them."""
        self._stage = 1
        self._posted.clear()

    def set_up(self, link: Link) -> Reply | None:
        """Advances the key exchange; returns None once it is done, else the reply for the worker.

        Raises:
          ProtocolError: the server offers a task too early, or shows keys that do not fit this study.
          IdentityError: keys are not signed by the site that they belong to.
          PolicyRefused: the roster is not the one that the site's policy names.
          PrivacyError: two sites were shown different keys, or keys are invalid.
        """
        renewed = False
        while self._stage <= 2:
            content = b"" if self._stage in self._posted else self._part(self._stage)
            epoch = self._held.epoch if self._held is not None else 0
            reply = link.handle(NextTask(self._client, part=KeyPart(self._stage, content, epoch)))
            self._posted.add(self._stage)
            if isinstance(reply, Done):
                return reply
            if self._held is None:
                raise errors.ProtocolError(
                    f"the keys of {self._client!r} are gone, and its ledger says that the study had begun",
                    "a run that was over, or whose state was lost, is begun again as a new study",
                )
            if not isinstance(reply, Wait):
                raise errors.ProtocolError(
                    f"the server answered with {type(reply).__name__} before the sites agreed on keys, "
                    "expected to be told to wait",
                    "a task that is answered without masks would show this site's answer; none left",
                )
            if reply.epoch and not renewed:
                self.renew(reply.epoch)
                renewed = True
                continue
            if not reply.parts:
                return reply
            if len(reply.parts) != len(self._form.clients):
                raise errors.ProtocolError(
                    f"the server shows keys of {len(reply.parts)} sites, expected those of the "
                    f"{len(self._form.clients)} of the study",
                    "the study file lists the sites that take part; no other site may",
                )
            if self._stage == 1:
                self._take_keys(reply.parts)
            else:
                self._take_offers(reply.parts)
            self._stage += 1
        return None

    def renew(self, epoch: int) -> None:
        """Begins to agree on keys anew, since a site joins; erases the keys so far.

        What this site masked with those, and did not open yet, it opens no more. A visit that was
        answered is answered, signed and opened no second time. Every site whose keys this one ever took
        must sign with the same key as then.

        Raises:
          ProtocolError: all sites must answer, so that none can join later; or the epoch is over.
        """
        held = self._held
        if held is None:  # `set_up` says that they are gone
            return
        if not self._form.opens:
            raise errors.ProtocolError(
                "the server asks for new keys, and in this study all sites answer in every round: none can "
                "join later",
                "no answer was masked, and none left",
            )
        if epoch <= held.epoch:
            raise errors.ProtocolError(
                f"the server asks for keys of epoch {epoch}, and this site has those of {held.epoch}",
                "was the server set back to an older state? Keys of the epochs before are erased",
            )
        self._make(epoch, held.known)
        self.begin()

    def check(self, task: Task) -> None:
        """Refuses a task whose mask was used: two answers under one mask would reveal their difference.

        Raises:
          ProtocolError: this visit or a later one was answered; or the task is not named after its visit,
            so that the ledger could not tell.
        """
        if task.task_id != f"{self._client}/{task.visit}":
            raise errors.ProtocolError(
                f"the task of visit {task.visit} is called {task.task_id!r}, expected "
                f"{f'{self._client}/{task.visit}'!r}",
                "by its name this site knows which masks were used; no answer was masked, and none left",
            )
        answered = _last_answered(self._store.ledger)
        if task.visit <= answered:
            raise errors.ProtocolError(
                f"task {task.task_id!r} asks for an answer of visit {task.visit}, and visit {answered} was "
                "answered: a mask serves one answer, and two behind it would show their difference",
                "the server was set back, or asks for more than it may; only the sealed answer is sent "
                "again",
            )

    def mask(self, task: Task, payload: Payload) -> Payload:
        """Adds this site's masks for a task to an answer.

        Raises:
          ProtocolError: the visit was answered, or keys are not agreed on.
          PrivacyError: the answer holds a number too large to be added up.
        """
        self.check(task)
        held = self._held
        if held is None or self._stage <= 2:
            raise errors.ProtocolError("an answer cannot be masked before the sites agreed on keys")
        value, _ = codec.decode(payload)
        numbers = whole(value, self._form.shapes, self._form.step)
        digest = task_digest(bytes.fromhex(held.set_up), self._form.study_digest, task)
        before_it, known = held, None
        sealed: list[bytes] = []
        held = ratcheted(held, task.visit)
        if self._form.opens:
            terms = self._terms(held)
            held, sealed = opening.begun(terms, self._client, held, task.visit, digest)
        elif self._signer.lasting:
            # There will be no certificate that says which task was answered.
            known = f"{TASK}{task.visit}", f"{held.set_up}:{digest.hex()}".encode()
        if held != before_it or known:
            # Save the keys before an answer masked with them is sealed, or it could not be opened.
            self._save(held, known)
        if sealed:
            layers = top_up.layer_keys(held.seed, range(len(self._form.top_up.layers)))
            numbers = numbers + self._form.top_up.total(layers, len(numbers))
        # In float64, which has room for all that is too large; as int64 it would pass for a small number.
        if np.abs(numbers).max(initial=0.0) * len(self._form.clients) >= LARGEST:
            raise errors.PrivacyError(
                f"the answer to task {task.task_id!r} holds numbers too large to be added up"
            )
        keys = {name: pairs.mask_key(secret, digest) for name, secret in held.secrets.items()}
        behind = [keys[name] for name in self._form.clients[self._own + 1 :] if name in keys]
        before = [keys[name] for name in self._form.clients[: self._own] if name in keys]
        behind += [top_up.self_mask_key(held.seed)] if sealed else []
        words = masks.mask(numbers.astype(np.int64), behind, before, self._form.bits)
        content = words.astype(f"<u{self._form.bits // 8}").tobytes()
        tensors = [Tensor(MASKED, f"<i{self._form.bits // 8}", words.shape, content)]
        if sealed:
            shape = (len(sealed), shares.SEALED_BYTES // 4)
            tensors.append(Tensor(SHARES, "<i4", shape, b"".join(sealed)))
        return Payload(tuple(tensors), payload.event, codec.digest(payload.event, tensors))

    def close(self, link: Link) -> Reply:
        """Asks for work, and first helps to open the sum of the round that this site answered last.

        Signatures and openings are stored before they leave.

        Raises:
          ProtocolError: the server names a set that this site must not sign, or open.
          PrivacyError: a share of another site is not what that site sealed.
        """
        part = KeyPart(CLOSING[0])
        for _ in range(3):
            reply = link.handle(NextTask(self._client, part=part))
            if not isinstance(reply, Wait) or not reply.parts:
                return reply
            held = self._held
            assert held is not None
            terms, sealed = self._terms(held), self._sealed(held)
            if len(reply.parts) == 1:
                named = reply.parts[0].decode(errors="replace")
                held, content = opening.signature(terms, self._client, held, sealed, named)
                part, certificate = KeyPart(CLOSING[0], content), None
            else:
                held, content, certificate = opening.opened(
                    terms, self._client, held, sealed, reply.parts, self._form.top_up
                )
                part = KeyPart(CLOSING[1], content)
            shown = certificate and (str(certificate.visit), certificate.written())
            self._save(held, shown)
        raise errors.ProtocolError(
            "the server asks again for what it was sent just now",
            "its state may be damaged: look into its log",
        )

    def _terms(self, held: Held) -> Terms:
        there = (self._client, *held.secrets)
        absent = tuple(name for name in self._form.clients if name not in there)
        return self._form.terms(held.set_up)._replace(absent=absent)

    def _sealed(self, held: Held) -> str | None:
        """Returns, from the ledger, the digest of this site's answer in its last round."""
        ledger, visit = self._store.ledger, held.turn and held.turn.visit
        found = (e.release_id for e in ledger.entries if e.kind == "sealed")
        last = next((name for name in reversed([*found]) if _visit_of(name) == visit), None)
        return last and ledgers.digest(ledger, last)

    @property
    def opens(self) -> bool:
        """Whether a round may be summed without some sites."""
        return self._form.opens

    def _part(self, stage: int) -> bytes:
        """Returns the part that this site posts: the same bytes at each call."""
        held = self._held or read(self._store.load_keys())
        if held is None and self._store.ledger.entries:
            # It had keys, and lost them. With new ones it would forget whose keys it took.
            return b""
        held = self._held = held or self._make(0, {})
        return held.signed if stage == 1 else held.offers

    def _make(self, epoch: int, known: Mapping[str, str]) -> Held:
        """Makes the keys of an epoch, in the place of any others."""
        keys, signing = pairs.new_keys(), b""
        if self._form.opens:
            signing = Ed25519PrivateKey.generate().private_bytes_raw()
        signed = self._signed(keys, signing, epoch)
        held = Held(keys, signed, signing=signing, epoch=epoch, known=known)
        # Save the keys before anybody sees them: another process of this site must not make new ones.
        self._save(held)
        return held

    def _signed(self, keys: Keys, signing: bytes, epoch: int) -> bytes:
        agreement, encapsulation = keys.public
        said: dict[str, str | int] = {
            "form": signed_keys.FORM,
            "study": self._form.study_digest,
            "client": self._client,
            "x25519": text(agreement),
            "mlkem768": text(encapsulation),
        }
        if signing:
            key = Ed25519PrivateKey.from_private_bytes(signing).public_key()
            said["ed25519"] = text(key.public_bytes_raw())
        if epoch:
            said["epoch"] = epoch
        content = json.dumps(said, sort_keys=True, separators=(",", ":"))
        signature = self._signer.sign(content.encode())
        return json.dumps({"content": content, "signature": text(signature)}).encode()

    def _take_keys(self, signed: Sequence[bytes]) -> None:
        """Checks all sites' keys, pins the roster, and makes the offers to the sites after this one."""
        held = self._held
        assert held is not None
        if signed[self._own] != held.signed:
            raise errors.ProtocolError(
                "the server shows other keys of this site than it made",
                "others would mask with keys that somebody else has; no answer was masked, and none left",
            )
        board = hashlib.sha256(
            b"".join(hashlib.sha256(part).digest() for part in signed)
        ).hexdigest()
        if held.board not in ("", board):
            raise errors.ProtocolError(
                f"the sites or their keys are others than those that this site agreed with: digest "
                f"{board[:12]}, expected {held.board[:12]}",
                "a roster stays what it is for a whole study; no answer was masked, and none left",
            )
        if held.board and held.keys is None:
            # The keys were checked before; the certificates may have expired since.
            self._check_roster(held.roster)
            return
        # An empty part is of a site that is not there; without some sites only `opens` can sum a round.
        there = zip(self._form.clients, signed, strict=True)
        self._members = tuple(self._member(*one) for one in there if one[1] or not self._form.opens)
        self._check_enough()
        self._check_known(held)
        set_up = pairs.set_up_digest(self._form.study_digest, self._members)
        roster = pairs.roster_digest(self._members)
        self._check_roster(roster)
        if held.set_up:
            return
        assert held.keys is not None
        own = next(m for m in self._members if m.name == self._client)
        keys, later = held.keys.opened(), self._form.clients[self._own + 1 :]
        made = {m.name: pairs.offer(keys, own, m, set_up) for m in self._members if m.name in later}
        offers = (made[n].content if n in made else bytes(pairs.OFFER_BYTES) for n in later)
        named = {member.name for member in self._members}
        self._tell(roster, [name for name in self._form.clients if name not in named])
        self._save(
            held._replace(
                board=board,
                offers=b"".join(offers) or b"\0",
                set_up=set_up.hex(),
                roster=roster,
                secrets={name: offered.secret for name, offered in made.items()},
                vouchers={m.name: m.ed25519 for m in self._members if m.ed25519},
                known={**held.known, **{m.name: m.identity for m in self._members}},
            ),
            (board_of(held.epoch), signed_keys.board([*signed])) if self._signer.lasting else None,
        )

    def _check_enough(self) -> None:
        terms, count = self._form.terms(""), len(self._members)
        least = max(terms.threshold, terms.least)
        if count < least:
            raise errors.ProtocolError(
                f"the server shows keys of {count} of {len(terms.clients)} sites, expected {least} or more",
                "with fewer no sum could be opened; no answer was masked, and none left",
            )

    def _check_known(self, held: Held) -> None:
        for member in self._members:
            if held.known.get(member.name, member.identity) != member.identity:
                raise errors.IdentityError(
                    f"the keys of {member.name!r} are signed with another key than those before",
                    "a site keeps its key for a whole study: has somebody else taken its name? No answer "
                    "was masked, and none left",
                )

    def _check_roster(self, roster: str) -> None:
        if self._pinned not in (None, roster):
            raise errors.PolicyRefused(
                f"the roster of this study has the digest {roster}, and the policy names {self._pinned}",
                "ask the other sites who takes part; then let whoever owns the data change allow.roster",
            )

    def _take_offers(self, offers: Sequence[bytes]) -> None:
        """Derives the secrets with the sites before this one, and erases the private keys."""
        held = self._held
        assert held is not None
        if held.keys is None:
            return
        members, set_up = {m.name: m for m in self._members}, bytes.fromhex(held.set_up)
        own, keys = members[self._client], held.keys.opened()
        shown = zip(self._form.clients[: self._own], offers[: self._own], strict=True)
        found = {
            name: pairs.accept(keys, own, members[name], set_up, content)
            for name, content in shown
            if name in members
        }
        self._save(held._replace(keys=None, secrets={**held.secrets, **found}))

    def _member(self, name: str, signed: bytes) -> Member:
        """Reads a site's keys and checks whose they are."""
        form, epoch = self._form, self._held.epoch if self._held is not None else 0
        return signed_keys.member(form.study_digest, name, signed, form.opens, self._signer, epoch)

    def _save(self, held: Held, kept: tuple[str, bytes] | None = None) -> None:
        self._store.save_keys(written(held), kept)
        self._held = held


class MaskedLink:
    """A link that blocks tasks until keys are agreed on, and tasks whose mask was used."""

    def __init__(self, link: Link, masking: Masking) -> None:
        self._link, self._masking = link, masking

    def handle(self, request: Request) -> Reply:
        """Passes a request on; completes the key exchange before it asks for a task.

        If a task is refused, the server hears that there will be no answer.

        Raises:
          FedviError: as in ``Masking.set_up``, ``Masking.close`` and ``Masking.check``, or from the link.
        """
        if isinstance(request, Hello):
            self._masking.begin()
        if not isinstance(request, NextTask):
            return self._link.handle(request)
        told = self._masking.set_up(self._link)
        if told is not None:
            return told
        opens = self._masking.opens
        reply = self._masking.close(self._link) if opens else self._link.handle(request)
        if isinstance(reply, Offer):
            try:
                self._masking.check(reply.task)
            except errors.FedviError:
                # The server must not wait in vain. The caller must see the original error.
                with contextlib.suppress(errors.FedviError, OSError):
                    self._link.handle(Failure(request.client, reply.task.task_id, "other"))
                raise
        if isinstance(reply, Wait) and reply.epoch:
            self._masking.renew(reply.epoch)
            return self._masking.set_up(self._link) or Wait()
        if isinstance(reply, Done) and not reply.resumable:
            self._masking.forget()
        return reply


def task_digest(set_up: bytes, study_digest: str, task: Task) -> bytes:
    """Returns a SHA-256 digest of all parts of a task that are common to the sites of a round.

    Different tasks have different digests. The digest leaves out the site and the task's name, so that
    all sites of a round compute the same one.
    """
    at = task.coordinates
    told = {
        "form": "fedvi task 2",
        "set_up": set_up.hex(),
        "study": study_digest,
        "visit": int(task.visit),
        "version": int(task.version),
        "damping": float(task.damping).hex(),
        "coordinates": at
        and {name: [float(x).hex() for x in np.ravel(part)] for name, part in at._asdict().items()},
    }
    tensors = (*codec.pack(task.posterior), *codec.pack(task.factor))
    return bytes.fromhex(codec.digest(json.dumps(told, sort_keys=True), tensors))


def _last_answered(ledger: Ledger) -> int:
    """Returns the last visit whose answer was sealed; −1 if there is none."""
    sealed = (entry.release_id for entry in ledger.entries if entry.kind == "sealed")
    return max(map(_visit_of, sealed), default=-1)


def _visit_of(release_id: str) -> int:
    return int(release_id.rpartition("#")[0].rpartition("/")[2])
