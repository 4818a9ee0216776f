"""The scripts of `examples/one-table`, each run as a reader would, with small settings and a fixed seed.

And the figures of all examples.
"""

import base64
import gzip
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS = 300  # a busy machine; on a quiet one each takes about ten


@pytest.fixture
def run(examples, tmp_path):
    """Runs a script in an empty folder and returns what it printed."""

    def take(script, *options):
        done = subprocess.run(
            [sys.executable, examples / "one-table" / f"{script}.py", *map(str, options)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=SECONDS,
            env={**os.environ, "PYTHONWARNINGS": "error::UserWarning", "COLUMNS": "130"},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return take


def value(text, line, name):
    """Finds the number after a name on the line that begins so."""
    found = re.search(rf"^{re.escape(line)} .*?{re.escape(name)}\s+(-?[\d.]+)", text, re.MULTILINE)
    assert found, text
    return float(found[1])


def assert_stated(text, epsilon, relation="substitute", accountant="pld"):
    """The statement names sampler, relation and accountant, stays in budget, and is marked."""
    stated = re.search(
        r"self: epsilon ([\d.]+) at delta \S+, unit record, relation (\w+), view message, "
        r"accountant (\w+), 1 releases reserved",
        text,
    )
    assert stated, text
    assert 0.9 * epsilon < float(stated[1]) <= epsilon
    assert stated.group(2, 3) == (relation, accountant)
    assert re.search(r"steps on (Poisson|Feistel) batches at rate", text)
    assert "MARK: simulation: no guarantee" in text


@pytest.mark.nightly
def test_logistic_predicts_nearly_as_well_as_without_privacy(run):
    text = run("logistic", "--seed", 1, "--steps", 150, "--epsilon", 1)
    best = value(text, "true coefficients", "accuracy")
    assert best == pytest.approx(0.785, abs=0.01)
    for name in ("not private", "private, full", "private, aligned"):
        # 4,000 records held out: a standard error of 0.0065, but all predict the same ones.
        assert value(text, name, "accuracy") > best - 0.01, name
        assert value(text, name, "log-likelihood") > -0.50, name
    assert_stated(text, 1.0)


@pytest.mark.nightly
def test_logistic_takes_batches_of_a_fixed_size_at_their_own_price(run):
    poisson = run("logistic", "--seed", 1, "--steps", 20, "--records", 2_000)
    fixed = run("logistic", "--seed", 1, "--steps", 20, "--records", 2_000, "--sampler", "feistel")
    noise = [float(re.search(r"noise multiplier ([\d.]+)", text)[1]) for text in (poisson, fixed)]
    assert "20 steps on Feistel batches" in fixed
    assert noise[1] > 1.01 * noise[0]
    assert_stated(fixed, 1.0)


@pytest.mark.nightly
def test_mixture_finds_clusters_where_one_gaussian_would_not(run):
    text = run("mixture", "--seed", 1, "--steps", 60)
    name = "log predictive density"
    truth, single = (value(text, line, name) for line in ("true mixture", "one round Gaussian"))
    # The entropy of this mixture, by 10,000 points; sd 1 each.
    assert truth == pytest.approx(-3.655, abs=0.03)
    assert value(text, "not private", name) > truth - 0.02
    for line in ("private, full", "private, aligned"):
        assert value(text, line, name) > single + 0.25
    centres = np.array(re.findall(r"\(\s*(-?[\d.]+),\s+(-?[\d.]+)\)", text), float)
    for centre in 2.0 * np.array([[0, 0], [1, 1], [-1, -1], [-1, 1], [1, -1]]):
        assert np.linalg.norm(centres - centre, axis=1).min() < 0.7
    assert_stated(text, 1.0)


@pytest.mark.nightly
def test_hierarchical_ranks_as_well_as_without_privacy(run):
    text = run("hierarchical", "--seed", 1, "--epsilon", 8, "--steps", 100)
    plain = value(text, "not private", "AUC")
    assert plain == pytest.approx(0.82, abs=0.01)
    for name in ("private, full", "private, aligned"):
        assert value(text, name, "AUC") > plain - 0.03
    assert_stated(text, 8.0)


@pytest.mark.nightly
def test_abalone_prints_accuracies_and_prices(run, shared, tmp_path):
    data = shared / "data" / "abalone" / "abalone.data"
    settings = ("--epsilon", 0.3, "--clip-norm", 0.5, "--batch", 668, "--steps", 100)
    text = run("abalone", "--data", data, *settings, "--seed", 1, "--plot", "a.png")
    assert value(text, "not private:", "accuracy") > 0.76
    row = next(line for line in text.splitlines() if line.startswith("│     0.3"))
    cells = [float(cell) for cell in row.strip("│").split("│")]
    _, _, _, noise, plain, aligned, rdp, advanced, add_remove, moments, poster = cells
    assert min(plain, aligned) > 0.74
    # A tenth of noise more or less would be seen: sub-sampled Gaussians at small ε scale with it.
    assert noise == pytest.approx(28.5, rel=0.1)
    assert 0.3 < rdp < advanced
    assert add_remove < moments < poster
    assert add_remove < 0.3 / 2.0
    assert "historical, not a guarantee" in text
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert_stated(text, 0.3)


@pytest.mark.nightly
def test_abalone_leaves_out_a_price_that_is_not_finite(run, shared):
    data = shared / "data" / "abalone" / "abalone.data"
    settings = ("--epsilon", 2, "--clip-norm", 1, "--batch", 167, "--steps", 200, "--seed", 1)
    text = run("abalone", "--data", data, *settings)
    row = next(line for line in text.splitlines() if line.startswith("│       2"))
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[7] == "–"
    assert 2.0 < float(cells[6]) < 2.5
    assert_stated(text, 2.0)


def pictures(folder, count):
    """Writes made-up pictures, stripes of two kinds, as MNIST is packed."""
    random = np.random.default_rng(0)
    for part, size in (("train", count), ("t10k", count)):
        grey = np.zeros((size, 28, 28), np.uint8)
        upright = random.random(size) < 0.5
        grey[upright, :, 8:14] = 255
        grey[~upright, 8:14, :] = 255
        header = struct.pack(">iiii", 2051, size, 28, 28)
        path = folder / f"{part}-images-idx3-ubyte.gz"
        path.write_bytes(gzip.compress(header + grey.tobytes()))
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "count"), [("dense", "688,884"), ("convolutional", "50,345")])
def test_vae_learns_under_privacy(run, tmp_path, kind, count):
    settings = ("--records", 600, "--batch", 60, "--epochs", 3, "--learning-rate", 0.003)
    text = run(
        *("vae", "--data", pictures(tmp_path, 600), "--kind", kind, *settings),
        *("--epsilon", 10, "--delta", 1e-3, "--seed", 1),
    )
    assert f"{kind}: {count} parameters, 600 pictures, 30 steps" in text
    untrained, private = (
        float(re.search(rf"^{name}\s+([\d.]+) nats", text, re.MULTILINE)[1])
        for name in ("untrained", "private")
    )
    assert private < 0.8 * untrained
    assert_stated(text, 10.0)


@pytest.mark.nightly
def test_vae_reads_mnist(run, shared):
    settings = ("--records", 1_200, "--epochs", 1, "--epsilon", 8, "--seed", 1)
    text = run("vae", "--data", shared / "data" / "mnist", *settings)
    assert "688,884 parameters, 1,200 pictures, 9 steps" in text


@pytest.mark.nightly
def test_vae_takes_a_noise_and_can_leave_the_test_pictures_alone(run, tmp_path):
    folder = pictures(tmp_path, 600)
    (folder / "t10k-images-idx3-ubyte.gz").unlink()
    settings = ("--records", 600, "--batch", 60, "--epochs", 1, "--held-out", 120, "--seed", 1)
    text = run("vae", "--data", folder, *settings, "--noise-multiplier", 1.5, "--delta", 1e-3)
    assert "480 pictures, 8 steps" in text
    assert re.search(r"^private\s+[\d.]+ nats a held-out picture", text, re.MULTILINE)
    assert "noise multiplier 1.5\n" in text


@pytest.mark.nightly(but=("logistic", "mixture"))
@pytest.mark.parametrize("script", ["logistic", "mixture", "hierarchical", "abalone", "vae"])
def test_every_script_says_what_its_options_do(run, script):
    text = run(script, "--help")
    for option in ("--epsilon", "--delta", "--relation", "--sampler", "--seed"):
        assert option in text
    assert "there is no guarantee then" in " ".join(text.split())


def test_a_figure_is_taken_out_of_a_report_by_its_section(tmp_path):
    pictures = {name: f"<svg>{name}</svg>" for name in ("posterior", "beside")}
    sections = [
        f'<section aria-labelledby="{name}"><img class="broad" '
        f'src="data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"></section>'
        for name, svg in pictures.items()
    ]
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "report.html").write_text("".join(sections))
    words = [sys.executable, EXAMPLES / "figure.py", tmp_path]
    subprocess.run([*words, "beside", tmp_path / "out.svg"], check=True)
    assert (tmp_path / "out.svg").read_text() == pictures["beside"]
    done = subprocess.run([*words, "prior", "out.svg"], capture_output=True, text=True, check=False)
    assert "no figure in the section 'prior'" in done.stderr


@pytest.mark.parametrize(
    "readme", sorted(EXAMPLES.glob("*/README.md")), ids=lambda path: path.parent.name
)
def test_the_page_of_each_example_shows_a_figure(readme):
    figures = re.findall(r"!\[([^\]]+)\]\(([^)]+\.svg)\)", readme.read_text(encoding="utf-8"))
    assert figures
    for words, path in figures:
        assert len(words) > 40
        assert "<svg" in (readme.parent / path).read_text(encoding="utf-8")
