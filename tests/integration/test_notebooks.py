"""The notebooks of `examples/notebooks`: run with small settings, and kept with what a full run printed."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NAMES = ("dp-vi", "federation")
# What makes a run short; each line must be in the notebook, so that nothing is shortened in vain.
SHORTER = {
    "dp-vi": {
        "RECORDS, STEPS = 10_000, 200": "RECORDS, STEPS = 2_000, 20",
        "plain.run(jax.random.key(0), 600,": "plain.run(jax.random.key(0), 50,",
        "RUNS = 3": "RUNS = 1",
        "for epsilon in (0.25, 1.0):": "for epsilon in (1.0,):",
        "steps = np.array([10, 50, 100, 200, 400])": "steps = np.array([10, 50])",
    },
    "federation": {"ROUNDS = 5": "ROUNDS = 2"},
}


@pytest.fixture
def folder(examples: Path) -> Path:
    return examples / "notebooks"


def shortened(folder, name):
    """Reads a notebook, makes its run short and empties its outputs."""
    notebook = nbformat.read(folder / f"{name}.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for long, short in SHORTER[name].items():
        having = [cell for cell in cells if long in cell.source]
        assert having, long
        for cell in having:
            cell.source = cell.source.replace(long, short)
    for cell in cells:
        cell.outputs, cell.execution_count = [], None
    return notebook


def printed(cells):
    return "".join(
        output.text for cell in cells for output in cell.get("outputs", []) if "text" in output
    )


def run(folder, name):
    notebook = shortened(folder, name)
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()  # raises where a cell does
    return printed(notebook.cells)


# nbclient and its kernel leave sockets and loops to be closed by their collector.
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_dp_vi_runs_and_states_its_price(folder):
    text = run(folder, "dp-vi")
    assert "unit record, relation add_remove, view message, accountant pld" in text
    assert "MARK: simulation: no guarantee" in text
    assert "root mean square" in text


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_federation_runs_and_reaches_the_pooled_posterior(folder):
    text = run(folder, "federation")
    distances = re.findall(r"(\S+) nats from the pooled posterior", text)
    assert len(distances) == 2
    # Two rounds from the prior, at four hospitals.
    assert all(float(distance) < 0.5 for distance in distances)
    assert re.search(r"cleveland +ε 3\.99\d at δ 1e-05 under substitute", text)
    assert "seeded noise: no guarantee" in text


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_kept_small_with_its_outputs_and_no_path(folder, name):
    path = folder / f"{name}.ipynb"
    assert path.stat().st_size < 300_000
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    figures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert 1 <= len(figures) <= 3
    raw = path.read_text(encoding="utf-8")
    assert not re.search(r'"[^"]*(/(home|root|tmp|Users)/|[A-Z]:\\\\Users)', raw)
    # Timings differ from run to run and would make every commit a change.
    assert "iopub" not in raw


def test_what_is_kept_is_what_the_text_says(folder):
    """The figures that the prose names stand in the outputs."""
    dp = printed(nbformat.read(folder / "dp-vi.ipynb", as_version=4).cells)
    sd = float(re.search(r"posterior sd without privacy +([\d.]+)", dp)[1])
    off = float(re.search(r"ε = 1 .*off by ([\d.]+)", dp)[1])
    assert 1.5 < off / sd < 2.6  # "about twice the posterior sd"
    fed = printed(nbformat.read(folder / "federation.ipynb", as_version=4).cells)
    assert all(float(kl) < 1e-6 for kl in re.findall(r"(\S+) nats from the pooled", fed))
    wider = [float(times) for times in re.findall(r"intervals ([\d.]+) × as wide", fed)]
    assert wider[0] > wider[1] > 1.0  # the stronger promise has the wider intervals
