"""The page's HTML: it says what the run is, escapes what came from outside, and draws ε to scale."""

import re
import sys
from html.parser import HTMLParser
from typing import Any

import pytest

from fedvi import errors
from fedvi.server.app import Settings
from fedvi.server.watch import page_html

HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J\u202e\n'{{ 7 * 7 }}"


class Outline(HTMLParser):
    """The elements of a page, and what they say."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, Any]]:
        return [attributes for name, attributes in self.tags if name == tag]


def client(name="north", **fields):
    return {
        "name": name,
        "state": "working",
        "visits": 1,
        "turns": 1,
        "charged": 2,
        "task": f"{name}/1",
        "reason": "",
        "seen_seconds": 3.0,
        "usual_seconds": 3.0,
        "silent": False,
        "epsilon": 0.25,
        "delta": 1e-5,
        "ledger": "2:ab",
        **fields,
    }


def run(**fields):
    """What `Contents` gathers, in the middle of a run."""
    return {
        "server": "running",
        "study": "heart",
        "digest": "ab12",
        "fedvi": "0.1.0",
        "status": "running",
        "reason": "",
        "tls": "mtls",
        "schedule": "synchronous",
        "version": 1,
        "rounds": 1,
        "rounds_planned": 4,
        "stage": None,
        "gap": 1.25,
        "damping": 0.5,
        "uptime_seconds": 300.0,
        "awaited": ["north"],
        "deadline_seconds": 60.0,
        "epsilon_budget": 1.0,
        "unpriced": None,
        "clients": [client("north"), client("south")],
        "time": 1_700_000_000.0,
        "promise": {
            "protected": True,
            "note": "",
            "unit": "record",
            "relation": "substitute",
            "view": "message",
            "epsilon": 1.0,
            "delta": 1e-5,
            "accountant": "pld",
        },
        "members": 2,
        "folds": [
            {
                "version": 1,
                "rounds": 1,
                "stage": None,
                "clients": ["north"],
                "missing": ["south"],
                "removed": [],
                "added": [],
                "given_up": [],
                "dropped": [],
                "damping": 0.5,
                "gap": 1.25,
            }
        ],
        "folds_earlier": 0,
        "spending": [{"clients": ["north", "south"], "points": [[1, 0.15], [2, 0.25]]}],
        "events": [
            {
                "number": 7,
                "time": 1_699_000_000.0,
                "kind": "joined",
                "client": "north",
                "text": "north joined",
            }
        ],
        **fields,
    }


def test_it_says_where_the_run_stands():
    found = Outline(page_html.render(run()))
    for text in (
        "running, round 1 of 4, version 1",
        "Waits for north, for 60 s more.",
        "mutual TLS",
        "all 2 clients: ε = 0.25.",
        "at most ε = 1, whenever it stops",
        "6 earlier lines",
        "2023-11-03",  # of another day
    ):
        assert text in found.text
    assert "2 ways" not in found.text


def test_it_names_the_stage_that_a_script_is_at():
    stage = {"number": 2, "stages": 3, "schedule": "synchronous", "round": 1, "rounds": 5}
    folds = [{**run()["folds"][0], "stage": stage}]
    text = page_html.render(run(schedule="scripted", stage=stage, folds=folds))
    found = Outline(text)
    assert "running, stage 2 of 3, synchronous, round 1 of 5, version 1" in found.text
    assert "<title>heart: stage 2 of 3, synchronous, round 1 of 5, running</title>" in text
    assert "stage 2: 1" in found.text


def test_what_came_from_outside_stays_text():
    hostile = run(
        study=HOSTILE,
        reason=HOSTILE,
        awaited=[HOSTILE],
        clients=[client(HOSTILE, reason=HOSTILE, state="away")],
        spending=[{"clients": [HOSTILE], "points": [[1, 0.5]]}],
        folds=[{**run()["folds"][0], "clients": [HOSTILE], "missing": [HOSTILE]}],
        events=[{**run()["events"][0], "text": HOSTILE, "kind": HOSTILE, "client": HOSTILE}],
    )
    text = page_html.render(hostile)
    found = Outline(text)
    assert found.all("script") == [{"src": "/page.js", "defer": None}]
    assert found.all("img") == []
    assert found.text.count("<script>alert(1)</script>") >= 7
    assert "{{ 7 * 7 }}" in found.text
    assert "\x1b" not in text
    assert "\u202e" not in text
    # No inline style, script or handler, which the page's own policy forbids.
    assert not [a for _, attributes in found.tags for a in attributes if a.startswith("on")]
    assert not [a for _, attributes in found.tags if "style" in attributes for a in attributes]


def test_nothing_is_fetched_from_elsewhere():
    found = Outline(page_html.render(run()))
    addresses = [
        value for _, attributes in found.tags for name, value in attributes.items()
        if name in ("src", "href", "srcset", "action", "data")
    ]  # fmt: skip
    assert sorted(addresses) == ["/page.css", "/page.js", "/run.json", "data:,"]


def test_a_study_without_protection_says_so_loudly():
    promise = {**run()["promise"], "protected": False, "epsilon": None, "delta": None}
    found = Outline(page_html.render(run(promise=promise, spending=[], epsilon_budget=None)))
    assert "Nothing is protected" in found.text
    assert "nothing is priced" in found.text
    noted = {**run()["promise"], "note": "simulation: no guarantee"}
    assert "simulation: no guarantee" in Outline(page_html.render(run(promise=noted))).text


@pytest.mark.parametrize(
    "fields",
    [
        {"clients": [], "folds": [], "events": [], "spending": [], "awaited": [], "promise": None},
        {"gap": None, "damping": None, "deadline_seconds": None, "rounds_planned": 0},
        {"clients": [client(epsilon=None, delta=None, seen_seconds=None)], "spending": []},
        {"clients": [client(epsilon=float("inf"))], "spending": [
            {"clients": ["north"], "points": [[1, float("inf")]]}]},
        {"status": "completed", "reason": "the schedule is done", "awaited": []},
    ],
)  # fmt: skip
def test_every_run_has_a_page(fields):
    text = page_html.render(run(**fields))
    found = Outline(text)
    assert len(found.all("h1")) == 1
    assert len(found.all("table")) == len(found.all("caption")) == 3
    assert "None" not in found.text
    assert not re.search(r"\b(inf|nan)\b", text)


def test_the_curves_end_where_the_numbers_are():
    plot = page_html._plot(run())
    bottom, top = plot.bottom, plot.budget_y
    (line,) = plot.lines
    assert line.end[1] == pytest.approx(bottom - 0.25 * (bottom - top), abs=0.1)
    assert line.end[0] == pytest.approx((plot.left + plot.right) / 2, abs=0.1)  # 2 of 4
    assert plot.ups[-1][0] == pytest.approx(plot.top)


def test_many_different_clients_are_counted_not_drawn():
    spending = [{"clients": [f"c{n}"], "points": [[1, n / 100]]} for n in range(1, 31)]
    found = Outline(page_html.render(run(spending=spending)))
    assert "a, c30: ε = 0.3. b, c29" in found.text
    assert "26 other courses below these" in found.text
    labels = [line.label for line in page_html._plot(run(spending=spending)).lines]
    gaps = [abs(a - b) for n, a in enumerate(labels) for b in labels[:n]]
    assert min(gaps) >= 15.0


def test_an_upper_bound_is_never_rounded_down():
    assert page_html._bound(0.471101) == "0.4712"
    assert page_html._bound(float("inf")) == "∞"
    assert page_html._bound(None) == "–"


def test_without_jinja2_a_server_with_a_page_does_not_begin(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    Settings(tmp_path, "test").check()
    with pytest.raises(errors.ConfigError, match=r"--page needs jinja2") as caught:
        Settings(tmp_path, "test", page="127.0.0.1:0").check()
    assert "pip install 'fedvi[report]'" in caught.value.hint
