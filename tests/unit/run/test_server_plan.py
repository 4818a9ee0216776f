"""Claims about what a server must know of a study, and that it learns it without JAX."""

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedvi import errors, plugins
from fedvi.data.source import ArraySource
from fedvi.expfam import tree
from fedvi.run import server_plan
from fedvi.study import build
from fedvi.study.config import parse_study
from fedvi.updates.base import Change, Task
from tests.plug_ins import declare
from tests.studies import linear_regression, raw_study, run_study

PRIVATE: dict[str, Any] = {
    "solver": {"kind": "dp_optimisation", "steps": 2, "clip_norm": 1.0},
    "privacy": {"epsilon": 4.0, "delta": 1e-5, "unit": "record", "relation": "substitute"},
    "simulation": {"insecure_seed": 5},
}


def small_study(**sections: Any) -> dict[str, Any]:
    raw = raw_study(["north", "south"], 2, schedule={"kind": "sequential", "rounds": 2})
    raw["data"]["max_records"] = 20
    raw["prior"] = {"scale": 0.3}  # a precision that no shorter float holds
    return {**raw, **sections}


def sources() -> dict[str, ArraySource]:
    generator = np.random.default_rng(0)
    return {
        name: ArraySource(
            {"x": generator.normal(size=(20, 2)), "y": generator.normal(size=20)},
            np.ones(20, bool),
        )
        for name in ("north", "south")
    }


def kept(raw: dict[str, Any], folder: Path) -> server_plan.ServerPlan:
    """The plan of a study, written to a file and read again."""
    path = folder / server_plan.FILE
    plan = server_plan.make(build.assemble(parse_study(raw)))
    path.write_text(json.dumps(server_plan.to_json(plan)))
    return server_plan.read(path)


def check_equal_runs(
    raw: dict[str, Any],
    records: dict[str, ArraySource],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Runs a study with the server's part from the assembly, then from a plan that was a file."""
    expected = run_study(raw, records)
    spec = server_plan.to_spec(kept(raw, folder))
    monkeypatch.setattr(build.Assembly, "spec", property(lambda self: spec))
    found = run_study(raw, records)
    assert tree.equal(found.posterior, expected.posterior)
    for name, factor in expected.factors.items():
        assert tree.equal(found.factors[name], factor)
    assert found.history == expected.history
    assert {name: book.entries for name, book in found.ledgers.items()} == {
        name: book.entries for name, book in expected.ledgers.items()
    }


@pytest.mark.parametrize("kind", ["sequential", "synchronous", "asynchronous"])
@pytest.mark.parametrize("family", ["full_gaussian", "diagonal_gaussian"])
def test_a_plan_gives_the_run_of_its_study_bit_for_bit(
    kind: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, records = linear_regression()
    raw = raw_study(
        list(records), 5, family=family, schedule={"kind": kind, "rounds": 3, "damping": 0.5}
    )
    check_equal_runs(raw, records, tmp_path, monkeypatch)


@pytest.mark.nightly
def test_a_plan_gives_a_private_run_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_equal_runs(small_study(**PRIVATE), sources(), tmp_path, monkeypatch)


MODELS = """
import numpyro
import numpyro.distributions as dist


def noisy(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ b, sigma), obs=y)
"""


@pytest.mark.nightly
@pytest.mark.numpyro
def test_a_plan_gives_a_run_whose_prior_is_a_factor_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plan_test_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(tmp_path)
    raw = small_study(solver={"kind": "gradient", "steps": 20, "draws": 2})
    declare(tmp_path, models={"noisy": "plan_test_models:noisy"})
    raw["model"]["kind"] = "noisy"
    del raw["prior"]
    with plugins.allowing(plugins.OutsideCode(names={"noisy": None})):
        assert kept(raw, tmp_path).has_prior_worker
        check_equal_runs(raw, sources(), tmp_path, monkeypatch)


def test_a_spec_from_a_plan_says_what_the_assembly_says(tmp_path: Path) -> None:
    raw = small_study(**PRIVATE)
    raw["schedule"] |= {"deadline_seconds": 7, "quorum": 2, "tolerance": 0.01}
    expected = build.assemble(parse_study(raw)).spec
    found = server_plan.to_spec(kept(raw, tmp_path))
    assert tree.equal(found.prior, expected.prior)
    # Functions made twice differ; what they do is compared in the runs above.
    same = {"prior": None, "schedule": None, "step_rule": None}
    assert found._replace(**same) == expected._replace(**same)
    assert found.schedule[:2] == expected.schedule[:2]


def test_a_plan_tells_the_coefficients_as_a_simulation_does(tmp_path: Path) -> None:
    from fedvi.results import outcome

    result = run_study(small_study(), sources())
    plan, run = kept(small_study(), tmp_path), outcome.record(result)
    assert run._replace(names=plan.names, units=plan.units, study=plan.study).rows() == run.rows()


def closure() -> Callable[..., Change]:
    def finish(value: dict[str, np.ndarray], task: Task) -> Change:
        return Change(task.posterior)

    return finish


@pytest.mark.parametrize(
    "finish",
    [
        closure(),
        functools.partial(closure, np.zeros(1)),
        functools.partial(closure, at=np.zeros(1)),
        functools.partial(closure, at=(1, 2)),  # JSON has lists only
    ],
)
def test_a_finish_that_no_server_can_name_is_refused(
    finish: Callable[..., Change], monkeypatch: pytest.MonkeyPatch
) -> None:
    assembly = build.assemble(parse_study(small_study()))
    spec = assembly.spec._replace(finish={**assembly.spec.finish, "south": finish})
    monkeypatch.setattr(build.Assembly, "spec", property(lambda self: spec))
    with pytest.raises(errors.ConfigError, match=r"^the solver of 'south' has `finish` "):
        server_plan.make(assembly)


# Kept and computed again


def write_study(folder: Path, raw: dict[str, Any] | None = None) -> Path:
    path = folder / "study.json"
    path.write_text(json.dumps(raw or small_study()))
    return path


def prepared(study: Path, folder: Path) -> server_plan.ServerPlan:
    """What a server does: it prepares a plan, and keeps it once it has opened the folder."""
    plan = server_plan.prepare(study, folder)
    folder.mkdir(exist_ok=True)
    server_plan.keep(plan, folder)
    return plan


def refuse(*args: Any, **options: Any) -> None:
    raise AssertionError("another process was started")


@pytest.mark.nightly
def test_a_plan_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, folder = write_study(tmp_path), tmp_path / "server"
    first = prepared(path, folder)
    monkeypatch.setattr(subprocess, "run", refuse)
    second = prepared(path, folder)
    assert server_plan.to_json(second) == server_plan.to_json(first)
    # What leaves JAX out of the server is that another process computed it.
    assert server_plan.to_json(first) == server_plan.to_json(
        server_plan.make(build.assemble(parse_study(small_study())))
    )


@pytest.mark.nightly
@pytest.mark.parametrize("what", ["study", "software", "damage", "format"])
def test_a_plan_that_does_not_fit_is_computed_again(what: str, tmp_path: Path) -> None:
    path = write_study(tmp_path)
    folder = tmp_path / "server"
    expected = prepared(path, folder)
    text = (folder / server_plan.FILE).read_text()
    content = json.loads(text)
    if what == "study":
        raw = small_study()
        raw["prior"] = {"scale": 3.0}
        other = write_study(tmp_path, raw)
        assert prepared(other, folder).digest != expected.digest
        path = write_study(tmp_path)
    elif what == "damage":
        (folder / server_plan.FILE).write_text(text[: len(text) // 2])
    else:
        (folder / server_plan.FILE).write_text(json.dumps({**content, what: "0"}))
    found = prepared(path, folder)
    assert server_plan.to_json(found) == server_plan.to_json(expected)
    assert server_plan.read(folder / server_plan.FILE).software == expected.software


@pytest.mark.nightly
def test_a_study_that_cannot_be_carried_out_is_refused_in_its_own_words(tmp_path: Path) -> None:
    raw = small_study()
    raw["solver"] = {"kind": "exakt"}
    with pytest.raises(errors.ConfigError) as expected:
        build.assemble(parse_study(raw))
    with pytest.raises(errors.ConfigError) as found:
        server_plan.prepare(write_study(tmp_path, raw), tmp_path / "server")
    assert str(found.value) == str(expected.value)
    assert not (tmp_path / "server" / server_plan.FILE).exists()


def test_a_disk_without_room_to_work_in_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: Any) -> None:
        raise OSError(28, "No space left on device")

    study = write_study(tmp_path)
    monkeypatch.setattr(server_plan.tempfile, "TemporaryDirectory", full)
    with pytest.raises(errors.LedgerError, match="No space left"):
        server_plan.prepare(study, tmp_path / "server")


@pytest.mark.parametrize("change", [{"prior": [[0.0]]}, {"workers": [{}]}, {"digest": "ab"}])
def test_a_plan_that_was_changed_by_hand_is_no_plan(change: dict[str, Any], tmp_path: Path) -> None:
    content = server_plan.to_json(server_plan.make(build.assemble(parse_study(small_study()))))
    path = tmp_path / server_plan.FILE
    path.write_text(json.dumps({**content, **change}))
    with pytest.raises(errors.ConfigError, match=server_plan.FILE):
        server_plan.read(path)


@pytest.mark.nightly
def test_a_plan_of_which_one_number_changed_is_computed_again(tmp_path: Path) -> None:
    study = write_study(tmp_path, small_study())
    found = prepared(study, tmp_path / "server")
    path = tmp_path / "server" / server_plan.FILE
    content = json.loads(path.read_text())
    content["prior"][0] = [0.25, 0.0]
    path.write_text(json.dumps(content))
    with pytest.raises(errors.ConfigError, match="not what was written"):
        server_plan.read(path)
    again = server_plan.prepare(study, tmp_path / "server")
    assert tree.equal(again.prior, found.prior)


def test_a_large_prior_stands_in_files_beside_a_readable_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = server_plan.make(build.assemble(parse_study(small_study())))
    size = sum(leaf.nbytes > 16 for leaf in tree.leaves(plan.prior))
    monkeypatch.setattr(server_plan, "_INLINE_BYTES", 16)
    server_plan.keep(plan, tmp_path)
    found = server_plan.read(tmp_path / server_plan.FILE)
    assert server_plan.to_json(found) == server_plan.to_json(plan)
    assert tree.equal(found.prior, plan.prior)
    arrays = list((tmp_path / server_plan.ARRAYS).glob("??/*"))
    assert len(arrays) == size > 0
    content = json.loads((tmp_path / server_plan.FILE).read_text())
    assert [leaf["sha256"] for leaf in content["prior"] if isinstance(leaf, dict)] == [
        path.name for path in arrays
    ]
    # Those of a plan before it go.
    other = {**small_study(), "prior": {"scale": 3.0}}
    server_plan.keep(server_plan.make(build.assemble(parse_study(other))), tmp_path)
    assert not {path.name for path in arrays} & {
        path.name for path in (tmp_path / server_plan.ARRAYS).glob("??/*")
    }


@pytest.mark.parametrize("how", ["missing", "changed"])
def test_a_plan_whose_large_prior_is_damaged_is_refused(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_plan, "_INLINE_BYTES", 16)
    server_plan.keep(server_plan.make(build.assemble(parse_study(small_study()))), tmp_path)
    for path in (tmp_path / server_plan.ARRAYS).glob("??/*"):
        content = path.read_bytes()
        path.unlink()
        if how == "changed":
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(errors.ConfigError, match=r"plan\.json is not whole: .*(digest|read)"):
        server_plan.read(tmp_path / server_plan.FILE)


# No JAX

SERVER = """
import json
import sys

from pathlib import Path

import numpy as np

import fedvi.server.app
from fedvi.results import result_json, run_record
from fedvi.run import server_plan
from fedvi.federation.messages import Hello, NextTask, Payload, Submit, Tensor
from fedvi.privacy import ledger
from fedvi.server.coordinator import Coordinator
from fedvi.store.memory import MemoryServerStore
from fedvi.transport import codec

plan = server_plan.prepare(Path(sys.argv[1]), Path(sys.argv[2]))
spec = server_plan.to_spec(plan)
coordinator = Coordinator(spec, MemoryServerStore())
event = json.dumps(json.loads(Path(sys.argv[3]).read_text()), sort_keys=True, separators=(",", ":"))
for name in spec.clients:
    anchor = ledger.anchor(ledger.open_ledger(spec.headers[name]))
    coordinator.handle(Hello(name, spec.study_digest, anchor))
while coordinator.state.status == "running":
    for name in spec.clients:
        reply = coordinator.handle(NextTask(name))
        if not hasattr(reply, "task"):
            continue
        posterior = reply.task.posterior
        size = len(posterior.h)
        value = {"location": np.full(size, 0.1), "scale": np.zeros_like(posterior.J)}
        tensors = tuple(
            Tensor(key, "<f8", part.shape, part.tobytes()) for key, part in value.items()
        )
        payload = Payload(tensors, event, codec.digest(event, tensors))
        coordinator.handle(Submit(name, reply.task.task_id, payload))
run = run_record.of_server(plan, spec, coordinator.state)
rows = result_json.content(run, run_record.verdict_of(run, plan.expected), ())["coefficients"]
assert coordinator.state.status == "completed" and len(rows) == len(plan.names)
print([name for name in sys.modules if name.partition(".")[0] in ("jax", "jaxlib", "numpyro")])
"""


@pytest.mark.nightly
def test_a_server_runs_a_private_study_without_jax(tmp_path: Path) -> None:
    raw = small_study(**PRIVATE)
    path = write_study(tmp_path, raw)
    plan = server_plan.make(build.assemble(parse_study(raw)))
    event = tmp_path / "event.json"
    event.write_text(json.dumps(server_plan.to_json(plan)["workers"][0]["cost"]))
    done = subprocess.run(
        [sys.executable, "-c", SERVER, str(path), str(tmp_path / "server"), str(event)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["private", "sums"])
def test_a_plan_of_0_1_0_is_read_for_its_result_and_runs_no_server(
    name: str, tmp_path: Path
) -> None:
    golden = Path(__file__).parents[2] / "references" / f"plan_0.1.0_{name}.json"
    (tmp_path / server_plan.FILE).write_bytes(golden.read_bytes())
    plan = server_plan.read(tmp_path / server_plan.FILE)
    assert plan.clients == ("north", "south")
    assert server_plan.to_spec(plan).clients[:2] == ("north", "south")
    # It has no limits of answers: a server computes its plan again.
    assert not server_plan._fits(plan, plan.study)
    assert not plan.is_whole


def hostile_plan(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    plan = server_plan.make(build.assemble(parse_study(small_study(**PRIVATE))))
    content = server_plan.to_json(plan)
    change(content)
    path = folder / server_plan.FILE
    path.write_text(
        json.dumps({**content, "sha256": server_plan._sha256(content)}, indent=1), encoding="utf-8"
    )
    return path


@pytest.mark.parametrize(
    ("change", "said", "words"),
    [
        (
            lambda c: c["workers"][1]["finish"].update(function="os:system"),
            "names the function 'os:system'",
            '"os:system"',
        ),
        (
            lambda c: c["workers"][1]["finish"].update(arguments={"command": "id"}),
            "gives `command`",
            '"function"',
        ),
        (
            lambda c: c["study"]["solver"].update(kind="os:system"),
            "solver.kind is 'os:system'",
            '"os:system"',
        ),
    ],
)
def test_a_refused_plan_names_its_file_and_the_line(
    change: Callable[[dict[str, Any]], object], said: str, words: str, tmp_path: Path
) -> None:
    path = hostile_plan(tmp_path, change)
    lines = path.read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if words in text)
    with pytest.raises(errors.ConfigError, match=said) as caught:
        server_plan.read(path)
    assert f"({path}, line {line})" in str(caught.value)
