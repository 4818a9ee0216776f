"""JSON nested deeper than Python's stack: whoever sends it reads a sentence, and nothing else ends."""

import pytest

from fedvi import errors
from fedvi.client import signed_keys
from fedvi.privacy import agreement, certificates, ledger
from fedvi.run import server_plan
from fedvi.transport import codec, identity, roster

DEPTH = 30_000


def plan(text, folder):
    path = folder / "plan.json"
    path.write_text(text)
    return server_plan.read(path)


READERS = {
    "an event": lambda text, _: codec.event_from(text),
    "a set of sites": lambda text, _: agreement.named(("a", "b"), text),
    "keys": lambda text, _: signed_keys.member("d", "a", text.encode(), False, None),
    "a certificate of keys": lambda text, _: certificates.read(text.encode()),
    "a line of a ledger": lambda text, _: ledger.from_lines([text]),
    "a roster": lambda text, _: roster.from_json(text.encode()),
    "a signature": lambda text, _: identity.key_of(text.encode()),
    "a plan": plan,
}


@pytest.mark.parametrize("opens", ["[", '{"a":'])
@pytest.mark.parametrize("kind", READERS)
def test_json_nested_30000_deep_is_refused_in_words(kind, opens, tmp_path):
    for text in (opens * DEPTH, opens * DEPTH + "1" + {"[": "]"}.get(opens, "}") * DEPTH):
        with pytest.raises((errors.FedviError, ValueError)) as caught:
            READERS[kind](text, tmp_path)
        assert not isinstance(caught.value, RecursionError)
