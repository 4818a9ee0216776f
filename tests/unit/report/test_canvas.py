"""Claims about the axes of a report's figures."""

import math

from matplotlib.figure import Figure as Canvas

from fedvi.report import canvas


def test_a_narrow_scale_of_ratios_has_few_numbers_and_keeps_1() -> None:
    found: list[list[str]] = []

    def draw() -> canvas.Figure:
        axes = Canvas().subplots()
        axes.set_xlim(math.log(5e-5), math.log(500))
        canvas.ratio_axis(axes, "odds")
        (above,) = axes.child_axes
        found.append([text.get_text() for text in above.get_xticklabels()])
        return canvas.Figure("", "")

    canvas.drawn_twice(draw)()
    assert found == [
        ["0.0001", "0.001", "0.01", "0.1", "1", "10", "100"],
        ["0.0001", "0.01", "1", "100"],
    ]
