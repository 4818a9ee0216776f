"""The plot of topics, read back from its SVG."""

import pytest

from fedvi import errors
from fedvi.report.plots import topics

TOLD = [[("apple", 0.4), ("pear", 0.1)], [("moon", 0.3), ("sun", 0.2)], [("$b_c$", 0.9)]]


def test_every_topic_and_word_is_drawn(tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    path = tmp_path / "topics.svg"
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        topics(TOLD, "epsilon 1 per document", path, columns=2)
    text = path.read_text(encoding="utf-8")
    for wanted in ("apple", "pear", "moon", "sun", "$b_c$", "topic 2", "epsilon 1 per document"):
        assert wanted in text
    assert "topic 3" not in text


def test_nothing_to_draw_is_refused(tmp_path):
    for told in ([], [[("a", 1.0)], []]):
        with pytest.raises(errors.ConfigError, match=r"no topic to draw"):
            topics(told, "", tmp_path / "t.svg")
    with pytest.raises(errors.ConfigError, match=r"expected .png, .svg or .pdf"):
        topics(TOLD, "", tmp_path / "t.txt")
    with pytest.raises(errors.ConfigError, match=r"columns is 0, expected at least 1"):
        topics(TOLD, "", tmp_path / "t.svg", columns=0)
    assert not list(tmp_path.iterdir())
