"""What a report says of each site, of runs with very many of them."""

from types import SimpleNamespace
from typing import Any

import pytest

from fedvi.privacy import ledger
from fedvi.privacy.ledger import Header
from fedvi.report.contents import Round
from fedvi.results import reporting

SITES = 50
NAMES = tuple(f"c{index}" for index in range(SITES))


class Passes(tuple[Any, ...]):
    """Counts how often its entries were gone through."""

    times = 0

    def __iter__(self) -> Any:
        type(self).times += 1
        return super().__iter__()

    def __contains__(self, name: object) -> bool:
        type(self).times += 1
        return super().__contains__(name)

    def count(self, name: object) -> int:
        type(self).times += 1
        return super().count(name)


def update(version: int, clients: tuple[str, ...], **changes: tuple[str, ...]) -> Round:
    told = dict.fromkeys(("missing", "removed", "added"), ()) | changes
    parts = {name: Passes(found) for name, found in told.items()}
    measures = {"shift": None, "sd_ratio": None, "surprise": 0.0, "jitter": 0.0}
    return Round(version, version, Passes(clients), **parts, damping=1.0, **measures)


def test_the_rounds_are_gone_through_once_for_all_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Passes, "times", 0)
    rounds = [
        update(1, NAMES[1:], removed=("c0", "c4")),
        update(2, NAMES[1:4], missing=NAMES[4:], added=("c0",)),
        update(3, NAMES[:3]),
    ]
    public = SimpleNamespace(privacy=SimpleNamespace(records_public=True))
    rows = Passes({"client": name, "records": 10 + index} for index, name in enumerate(NAMES))
    run: Any = SimpleNamespace(study=public, result={"privacy": rows})
    header = Header("s", "0" * 64, "", "record", "substitute", "message", False)
    books = {name: ledger.open_ledger(header._replace(client=name)) for name in NAMES}
    found = reporting._sites(run, books, dict.fromkeys(NAMES, ()), rounds, {})
    assert Passes.times < SITES
    assert [site.name for site in found] == list(NAMES)
    assert [site.answers for site in found[:5]] == [1, 3, 3, 2, 1]
    assert [site.missed for site in found[:5]] == [0, 0, 0, 0, 1]
    assert [(site.added, site.removed) for site in found[:5]] == [
        (2, None),
        *[(None, None)] * 3,
        (None, 1),
    ]
    assert [site.records for site in found[:2]] == [10, 11]
