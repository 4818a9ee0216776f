"""Claims about studies of conjugate models: from the file to a posterior, in one process and over gRPC."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import fedvi
from fedvi import errors, models, privacy
from fedvi.cli.main import main
from fedvi.expfam import tree
from fedvi.study import build
from fedvi.study.config import parse_study
from tests.plug_ins import declare
from tests.studies import CONJUGATE

MODULE = "fedvi_test_levels"
MODEL = '''
import dataclasses

import numpy as np

from fedvi.expfam.dirichlet import Dirichlet, DirichletEta
from fedvi.updates.conjugate import Block


@dataclasses.dataclass(frozen=True)
class Levels:
    """Shares of levels, of which a record has one."""

    levels: int
    norm_error = 0.0

    @property
    def names(self):
        return tuple(f"level {index}" for index in range(self.levels))

    @property
    def family(self):
        return Dirichlet((self.levels,))

    @property
    def prior(self):
        return self.family.from_parameters(np.ones(self.levels))

    @property
    def start(self):
        return self.prior

    @property
    def blocks(self):
        return (Block("counts", (self.levels,), 1.0, 1.0),)

    @property
    def layout(self):
        return {"level": ()}

    def sound(self, records):
        return (records["level"] >= 0) & (records["level"] < self.levels)

    def made_up(self, count, random):
        return {"level": random.integers(self.levels, size=count)}

    def messages(self, posterior):
        return {}

    def expected(self, messages, records):
        import jax

        return {"hot": jax.nn.one_hot(records["level"], self.levels)}

    def square_norms(self, messages, local, records):
        return {"counts": (local["hot"] ** 2).sum(axis=1)}

    def sums(self, messages, local, records, weights):
        return {"counts": weights @ local["hot"]}

    def factor(self, sums, posterior):
        return DirichletEta(sums["counts"])

    def posterior(self, total, noise):
        return DirichletEta(np.maximum(total.power, 0.0) + self.prior.power)
'''
OPEN = 'protection = "none"'
PROMISE = 'epsilon = 1.0\ndelta = 1e-5\nunit = "record"\nrelation = "substitute"'
ALLOWED = ["--allow-code", "levels"]
FEDVI = [sys.executable, "-c", "from fedvi.cli.main import main; main()", *ALLOWED]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the model, two clients' files, and a study that writes itself."""
    (tmp_path / f"{MODULE}.py").write_text(MODEL, encoding="utf-8")
    declare(tmp_path, models={"levels": f"{MODULE}:Levels"})
    monkeypatch.syspath_prepend(tmp_path)
    generator = np.random.default_rng(0)
    for name, size in (("north", 700), ("south", 500)):
        levels = generator.choice(3, size=size, p=[0.5, 0.3, 0.2])
        np.savez(tmp_path / f"{name}.npz", level=levels)
    yield tmp_path
    sys.modules.pop(MODULE, None)


def study(here: Path, privacy: str, more: str = "", solver: str = "", name: str = "study") -> Path:
    path = here / f"{name}.toml"
    path.write_text(
        f"""
[study]
name = "levels"
[model]
kind = "levels"
levels = 3
[solver]
kind = "vips"
clip_norm = {"inf" if privacy == OPEN else "1.0"}
{solver}
[schedule]
kind = "synchronous"
rounds = 2
[privacy]
{privacy}
[data]
max_records = 800
[[clients]]
name = "north"
data = "north.npz"
[[clients]]
name = "south"
data = "south.npz"
{more}
""",
        encoding="utf-8",
    )
    return path


def run(*arguments: object, code: int = 0) -> str:
    given = ["--allow-code", "levels", *(str(argument) for argument in arguments)]
    result = CliRunner().invoke(main, given)
    assert result.exit_code == code, result.output
    return result.output


def posterior(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "posterior.npz") as file:
        return {name: file[name] for name in file.files}


def counted(here: Path) -> np.ndarray:
    return sum(
        np.bincount(np.load(here / f"{name}.npz")["level"], minlength=3)
        for name in ("north", "south")
    )


def test_without_noise_the_federation_counts_all_records_exactly(here):
    path = study(here, OPEN, solver="noise_multiplier = 0.0\naveraging = 0.0")
    said = run("simulate", path, "--pooled", "--out", here / "out")
    assert "level 0" in said
    assert "coefficients are on" not in said
    found = posterior(here / "out")
    # Dirichlet(1 + counts), as powers.
    np.testing.assert_allclose(found["power"], counted(here), rtol=1e-6)
    rows = json.loads((here / "out" / "result.json").read_text())["coefficients"]
    assert [row["pooled_mean"] for row in rows] == pytest.approx(list(found["mean"]), rel=1e-6)


def test_a_plan_says_what_leaves_and_what_it_costs(here):
    said = json.loads(run("check", study(here, PROMISE), "--json"))
    assert said["numbers_per_message"] == 3
    assert said["epsilon"]["substitute"] <= 1.0
    assert said["family"] == "Dirichlet"
    assert said["mark"] == "custom code: claim not vetted"


def test_noise_moves_counts_by_what_was_planned(here):
    out = here / "out"
    run("simulate", study(here, PROMISE), "--out", out)
    solver = json.loads((out / "study.json").read_text())["solver"]
    away = posterior(out)["power"] - counted(here)
    # Two clients, and means of two answers each: variance σ². Six sds of three numbers.
    assert 0.0 < np.abs(away).max() < 6.0 * solver["noise_multiplier"]


@pytest.mark.nightly
def test_server_and_clients_over_grpc_get_what_a_simulation_gets(here):
    path = study(here, PROMISE, "[simulation]\ninsecure_seed = 7")
    run("simulate", path, "--out", here / "out")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), *sys.path])}
    server = subprocess.Popen(
        [
            *(*FEDVI, "server", str(path), "--state", str(here / "server")),
            *("--listen", "127.0.0.1:0", "--log-format", "json"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    clients = []
    try:
        address = listens(server)
        for name in ("north", "south"):
            command = [*FEDVI, "client", str(path), "--as", name, "--server", address]
            command += ["--state", str(here / name), "--allow-simulated-noise"]
            clients.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))
        assert [client.wait(120) for client in clients] == [0, 0]
        assert server.wait(60) == 0
    finally:
        for process in (server, *clients):
            if process.poll() is None:
                process.kill()
            process.wait()
        server.stderr.close()
    told, expected = posterior(here / "server" / "result"), posterior(here / "out")
    np.testing.assert_array_equal(told["power"], expected["power"])


def listens(server: "subprocess.Popen[str]") -> str:
    """Where a server says that clients can dial in."""
    assert server.stderr is not None
    said = []
    for line in server.stderr:
        said.append(line)
        if '"ready"' in line:
            return str(json.loads(line)["listen"])
    raise AssertionError("".join(said))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"more": '[family]\nkind = "diagonal_gaussian"'}, "family is given beside model.kind"),
        ({"more": "[prior]\nscale = 1.0"}, "prior is given beside model.kind"),
        ({"solver": "row_norm = 1.0"}, "row_norm is 1.0, which a Levels does not use"),
        ({"solver": "shares = { count = 1.0 }"}, "shares names 'count', which is no block"),
        ({"solver": "averaging = 2.0"}, "averaging is 2.0, expected a number from 0 to 1"),
    ],
)
def test_what_does_not_fit_a_conjugate_model_is_refused_in_words(here, changed, said):
    found = " ".join(run("check", study(here, PROMISE, **changed), code=2).split())
    assert said in found


def test_a_record_out_of_range_is_refused_or_counts_as_zero(here):
    np.savez(here / "north.npz", level=np.array([0, 1, 3]))
    open_study = study(here, OPEN, solver="noise_multiplier = 0.0")
    said = " ".join(run("simulate", open_study, code=2).split())
    assert "north: record 2, counted from 0, is none that the model knows" in said
    run("simulate", study(here, PROMISE))


def test_a_table_is_no_file_of_arrays(here):
    path = study(here, PROMISE)
    path.write_text(path.read_text().replace("north.npz", "north.csv"))
    (here / "north.csv").write_text("level\n0\n")
    said = " ".join(run("simulate", path, code=2).split())
    assert "north.csv is no .npz, expected one with level [N]" in said


def test_a_topic_model_of_a_study_says_how_long_a_document_may_be():
    settings = CONJUGATE["latent_dirichlet"]
    raw = {
        "study": {"name": "kinds"},
        "model": {"kind": "latent_dirichlet", "topics": 2, "vocabulary": 9},
        "solver": {"kind": "vips", "noise_multiplier": 0.0},
        "schedule": {"kind": "sequential", "rounds": 1},
        "privacy": {"protection": "none"},
        "data": {"max_records": 4},
        "clients": [{"name": "north"}],
    }
    with pytest.raises(errors.ConfigError, match=r"does not say how long a record is"):
        build.assemble(parse_study(raw))
    raw["model"]["distinct"] = settings["distinct"]
    model = build.assemble(parse_study(raw)).model
    # Alone, the records themselves say it.
    records = model.made_up(4, np.random.default_rng(0))
    alone = dataclasses.replace(model, distinct=None)
    exact = privacy.sgd(
        noise_multiplier=0, steps=2, max_records=4, sampler="full", clip_norm=np.inf
    )
    result = fedvi.VIPS(alone, exact).run(records, progress_bar=False)
    assert result.model.family.is_proper(result.posterior)


def test_every_kind_is_tried_here():
    assert tuple(CONJUGATE) == models.CONJUGATE


@pytest.mark.parametrize("kind", models.__all__)
def test_no_kind_is_the_name_of_a_module(kind):
    # Once imported, the module would stand where the factory is looked for.
    assert importlib.util.find_spec(f"fedvi.models.{kind}") is None


@pytest.mark.nightly(but=("discrete_network", "factor_analysis", "linear_unknown_noise"))
@pytest.mark.parametrize("kind", CONJUGATE)
def test_a_study_may_be_of_any_kind(kind, tmp_path):
    raw = {
        "study": {"name": "kinds"},
        "model": {"kind": kind, **CONJUGATE[kind]},
        "solver": {"kind": "vips"},
        "schedule": {"kind": "sequential", "rounds": 1},
        "privacy": {"epsilon": 1.0, "delta": 1e-5, "unit": "record", "relation": "add_remove"},
        "data": {"max_records": 64},
        "clients": [{"name": name, "data": f"{name}.npz"} for name in ("north", "south")],
    }
    parsed = parse_study(raw)
    model = build.assemble(parsed).model
    for index, client in enumerate(parsed.clients):
        records = model.made_up(50, np.random.default_rng(index))
        assert model.sound(records).all()
        assert {name: array.shape[1:] for name, array in records.items()} == dict(model.layout)
        np.savez(tmp_path / f"{client.name}.npz", **records)
    with pytest.warns(UserWarning, match=r"takes noisy statistics for exact"):
        result = fedvi.simulate(parsed, tmp_path)
    assert result.assembly.mark == ""
    assert model.family.is_proper(result.posterior)
    assert not tree.equal(result.posterior, tree.to_numpy(model.prior))
    assert [site.releases for site in result.sites] == [1, 1]
