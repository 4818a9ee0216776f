"""Pictures of weights: a file with one cell each, and errors in words."""

import numpy as np
import pytest

from fedvi import errors
from fedvi.report import plots


def test_pictures_are_drawn_side_by_side(tmp_path):
    imread = pytest.importorskip("matplotlib.image").imread

    arrays = np.zeros((3, 28, 28))
    arrays[1, :, 14:] = 2.0
    plots.pictures(arrays, "weights", tmp_path / "weights.png", columns=2)
    shades = np.unique(imread(tmp_path / "weights.png")[..., 0].round(2))
    # White paper and the largest weight, and the grey of zero.
    assert shades.max() == 1.0
    assert ((shades > 0.45) & (shades < 0.55)).any()
    plots.pictures(np.zeros((1, 4, 4)), "nothing", tmp_path / "none.svg")
    assert (tmp_path / "none.svg").read_text().startswith("<?xml")


def test_a_picture_needs_a_suffix_that_is_known(tmp_path):
    with pytest.raises(errors.ConfigError, match=r"ends in '\.txt'"):
        plots.pictures(np.zeros((1, 4, 4)), "weights", tmp_path / "weights.txt")


def test_no_picture_and_no_column_are_refused(tmp_path):
    with pytest.raises(errors.ConfigError, match=r"no picture to draw"):
        plots.pictures(np.zeros((0, 4, 4)), "weights", tmp_path / "w.svg")
    with pytest.raises(errors.ConfigError, match=r"columns is -1, expected at least 1"):
        plots.pictures(np.zeros((1, 4, 4)), "weights", tmp_path / "w.svg", columns=-1)
    assert not list(tmp_path.iterdir())
