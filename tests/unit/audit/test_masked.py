"""Claims about the audit of secure sums: it finds nothing in what ships, and each fault that is planted."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedvi.audit import published_sums as audit
from fedvi.client import masking, opening
from fedvi.privacy import agreement, masks, pairs, shares, top_up
from fedvi.server.core import openings, sum_rounds
from fedvi.study import build
from fedvi.study.config import parse_study
from tests.masked import assembled, raw


def found() -> dict[str, bool | None]:
    return {finding.check: finding.passed for finding in audit.check_sums(assembled().spec)}


@functools.cache
def with_four() -> build.Assembly:
    """Of four sites one may be missing."""
    names = ("north", "east", "south", "west")
    return build.assemble(parse_study(raw(names=names, least=3)))


def found_with_one_missing() -> dict[str, bool | None]:
    return {finding.check: finding.passed for finding in audit.check_sums(with_four().spec)}


def test_nothing_is_found_in_what_ships() -> None:
    checks = found()
    assert len(checks) == 6
    assert all(checks.values())


def test_nothing_is_found_where_sites_may_be_missing() -> None:
    checks = found_with_one_missing()
    assert len(checks) == 10
    assert all(checks.values())


def test_a_site_that_signs_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = agreement.may_sign
    monkeypatch.setattr(
        agreement,
        "may_sign",
        lambda terms, own, turn, sealed, text: honest(
            terms, own, turn._replace(signed=""), sealed, text
        ),
    )
    assert not found_with_one_missing()["a site signs one set of a round"]


def test_a_share_of_a_site_outside_the_set_that_is_opened_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def careless(
        terms: Any, own: str, held: Any, sealed: str, parts: tuple[bytes, ...], layers: Any
    ) -> tuple[Any, bytes, Any]:
        found = agreement.named(terms.clients, parts[0].decode())
        late = [name for name in terms.clients if name not in found.clients]
        given = zip(late, parts[1 + 2 * len(found.clients) :], strict=False)
        if not late:
            return honest(terms, own, held, sealed, parts, layers)
        task = bytes.fromhex(held.turn.task)
        opened = [
            shares.unseal(pairs.share_key(held.secrets[name], task, name), share, name)
            for name, share in given
        ]
        masked = [pairs.mask_key(held.secrets[name], task) for name in late]
        spare = top_up.layer_keys(held.seed, range(layers.kept(len(late)), len(layers.layers)))
        own_key = top_up.self_mask_key(held.seed)
        return held, b"".join((own_key, *masked, *(key for _, key in spare), *opened)), None

    honest = opening.opened
    monkeypatch.setattr(opening, "opened", careless)
    checks = found_with_one_missing()
    assert checks["a masked sum is the plain one"]
    assert not checks["nothing of a site outside the set is opened"]


@pytest.mark.parametrize("change", [-1, 1], ids=["too few", "too many"])
def test_layers_of_noise_that_do_not_make_up_for_the_missing_sites_are_found(
    monkeypatch: pytest.MonkeyPatch, change: int
) -> None:
    honest = top_up.TopUp.kept

    def other(layers: top_up.TopUp, missing: int) -> int:
        most = len(layers.layers)
        return min(max(honest(layers, missing) + change, 0), most) if most else 0

    assert found_with_one_missing()["a masked sum is the plain one"]
    monkeypatch.setattr(top_up.TopUp, "kept", other)
    assert not found_with_one_missing()["a masked sum is the plain one"]


def test_a_layer_of_less_noise_than_planned_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = top_up.drawn
    monkeypatch.setattr(top_up, "drawn", lambda *given: honest(*given) // 2)
    checks = found_with_one_missing()
    assert not checks["a mask is ChaCha20 under 256 bits of each pair and task"]


def test_a_plan_of_too_few_layers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    names = tuple("abcdefghij")
    assembly = build.assemble(parse_study(raw(names=names, least=6)))
    gather = assembly.gather
    assert gather is not None
    *layers, last = gather.top_up.layers
    weak = last._replace(divisors=tuple(c + 2 for c in last.divisors))
    for spoilt in ((*layers, weak), ()):
        other = gather._replace(top_up=gather.top_up._replace(layers=spoilt))
        checks = audit.check_sums(assembly.spec._replace(gather=other))
        failed = [finding.check for finding in checks if not finding.passed]
        assert failed == ["layers of noise make up for missing sites"]


@pytest.mark.parametrize(
    "more",
    [
        lambda terms, held: held.seed,
        lambda terms, held: shares.split(held.seed, terms.threshold, len(terms.clients))[0],
        lambda terms, held: top_up.layer_keys(held.seed, [0])[0][1],
    ],
    ids=["secret", "share", "layer"],
)
def test_an_opening_by_which_needed_noise_can_be_taken_off_is_found(
    monkeypatch: pytest.MonkeyPatch, more: Callable[[Any, Any], bytes]
) -> None:
    honest, post, lengths = opening.opened, openings.post, {}

    def careless(terms: Any, own: str, held: Any, *given: Any) -> tuple[Any, bytes, Any]:
        after, content, certificate = honest(terms, own, held, *given)
        lengths[own] = len(content)
        return after, content + more(terms, held), certificate

    def read(spec: Any, state: Any, client: str, part: Any) -> Any:
        # The server keeps the rest to itself, and goes on.
        content = part.content[: lengths.get(client)]
        return post(spec, state, client, part._replace(content=content))

    monkeypatch.setattr(opening, "opened", careless)
    monkeypatch.setattr(openings, "post", read)
    checks = found_with_one_missing()
    assert checks["a masked sum is the plain one"]
    assert not checks["the noise that a sum needs stays closed"]


@pytest.mark.parametrize("kept", [4, 0])
def test_a_self_mask_that_can_be_guessed_is_found(
    monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    honest = masks.mask

    def weak(numbers: np.ndarray, added: list[bytes], taken: list[bytes], bits: int) -> Any:
        *others, seed = added
        return honest(numbers, [*others, seed[:kept] + bytes(32 - kept)], taken, bits)

    monkeypatch.setattr(masks, "mask", weak)
    assert not found_with_one_missing()["a mask is ChaCha20 under 256 bits of each pair and task"]


def test_a_mask_of_32_bits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = pairs.mask_key
    monkeypatch.setattr(
        pairs, "mask_key", lambda secret, task: honest(secret, task)[:4] + bytes(28)
    )
    assert not found()["a mask is ChaCha20 under 256 bits of each pair and task"]


def test_a_mask_that_all_tasks_share_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = pairs.mask_key
    monkeypatch.setattr(pairs, "mask_key", lambda secret, task: honest(secret, bytes(32)))
    assert not found()["a mask is ChaCha20 under 256 bits of each pair and task"]


def test_a_mask_that_serves_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking.Masking, "check", lambda self, task: None)
    assert not found()["a mask is used once"]


def test_a_wrong_sign_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = masks.mask
    monkeypatch.setattr(
        masks,
        "mask",
        lambda numbers, added, taken, bits: honest(numbers, [*added, *taken], [], bits),
    )
    checks = found()
    assert not checks["a masked sum is the plain one"]
    assert not checks["a mask is ChaCha20 under 256 bits of each pair and task"]


def test_a_generator_that_is_not_chacha20_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def stream(key: bytes, nothing: bytes, unsigned: np.dtype) -> np.ndarray:
        generator = np.random.Generator(np.random.PCG64(int.from_bytes(key, "little")))
        return np.frombuffer(generator.bytes(len(nothing)), unsigned)

    monkeypatch.setattr(masks, "_stream", stream)
    checks = found()
    # It cancels as well as any: only who computes it anew can tell.
    assert checks["a masked sum is the plain one"]
    assert not checks["a mask is ChaCha20 under 256 bits of each pair and task"]


def test_sums_that_are_read_whether_or_not_masks_cancel_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = masks.mask

    def careless(
        numbers: np.ndarray, added: list[bytes], taken: list[bytes], bits: int
    ) -> np.ndarray:
        return honest(numbers, added[:-1] or added, taken, bits)

    monkeypatch.setattr(masks, "mask", careless)
    monkeypatch.setattr(sum_rounds.masks, "opened", functools.partial(unguarded))
    assert not found()["a masked sum is the plain one"]


def unguarded(masked: list[np.ndarray], bits: int, *left: Any) -> np.ndarray:
    whole = np.sum(masked, axis=0, dtype=f"u{bits // 8}")[: -masks.GUARD]
    return whole.view(f"i{bits // 8}").astype(np.int64)
