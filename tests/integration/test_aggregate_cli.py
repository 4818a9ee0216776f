"""Claims about a study whose server is trusted, end to end: its price, its refusals, real gRPC."""

import inspect
import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fedvi import errors
from fedvi.audit import profile as profiles
from fedvi.audit import trials as worst
from fedvi.data import bag_of_words
from fedvi.expfam import tree
from fedvi.inference import solvers
from fedvi.privacy import events, ledger, mechanisms, sampling
from fedvi.privacy.accountants import pld
from fedvi.privacy.sums import in_sum
from fedvi.results import finished, ledger_files
from fedvi.run import server_plan
from fedvi.server.core import protocol
from fedvi.study import build, factories
from fedvi.study.config import load_study, parse_study
from tests.commands import invoked as fedvi
from tests.servers import running
from tests.sites import assembled, sites_of, study_file, undisturbed, until
from tests.studies import raw_study, run_study, split

AGGREGATE = {
    "epsilon": 2.0,
    "delta": 1e-5,
    "unit": "record",
    "relation": "substitute",
    "view": "aggregate",
    "disjoint": True,
}
SOLVER = {"kind": "site_release", "clip_norm": 2.0}


def written(folder: Path, **sections: Any) -> Path:
    folder.mkdir(exist_ok=True)
    given: dict[str, Any] = {"privacy": AGGREGATE, "solver": SOLVER, **sections}
    return study_file(folder, **given)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("aggregate"))


@pytest.fixture(scope="module")
def run(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "out"
    done = fedvi("simulate", study, "--quiet", "--influence", "--out", folder)
    assert done.exit_code == 0, done.stderr
    (folder / "printed.txt").write_text(" ".join(done.stdout.split()))
    return folder


def changed(**privacy: Any) -> dict[str, Any]:
    return {**AGGREGATE, **privacy}


def test_each_client_adds_less_noise_and_sums_keep_the_promise(tmp_path: Path) -> None:
    sums = assembled(written(tmp_path / "sums"))
    single = assembled(written(tmp_path / "single", privacy=changed(view="message")))
    assert sums.noise_multiplier is not None
    # Two honest noises of three: one client may collude.
    assert sums.noise_multiplier == pytest.approx(single.noise_multiplier / np.sqrt(2), rel=1e-3)
    whole = in_sum(sums.planned, 2)
    assert pld("substitute").epsilon(whole, 1e-5) <= 2.0
    assert pld("substitute").epsilon(sums.planned, 1e-5) > 2.5


def test_both_prices_are_printed_and_kept(run: Path) -> None:
    printed = (run / "printed.txt").read_text()
    assert "view aggregate" in printed
    assert "view message" in printed
    assert "the server is trusted" in printed
    assert "sums over clients alone are published" in printed
    result = json.loads((run / "result.json").read_text())
    views = {(row["view"], row["relation"]): row["epsilon"] for row in result["consortium"]}
    assert views["aggregate", "substitute"] <= 2.0 < views["message", "substitute"]
    assert result["influence"] is None
    assert {row["view"] for row in result["privacy"]} == {"aggregate"}
    assert all(row["epsilon"]["substitute"] <= 2.0 for row in result["privacy"])


def test_a_ledger_alone_tells_what_sums_cost(run: Path) -> None:
    done = fedvi("ledger", "verify", run, "--recompute", "--json")
    assert done.exit_code == 0, done.output
    (book, *_) = ledger_files.read(run)
    assert book.ledger is not None
    assert ledger_files.excesses(book.ledger) == []
    stated = [price for price in ledger_files.prices(book.ledger) if price.stated]
    assert [price.part for price in stated] == ["planned", "reserved"]
    assert all(price.epsilon is not None and price.epsilon <= 2.0 for price in stated)
    # The same entries under the view `message` exceed what is promised.
    header = book.ledger.header
    seen = header._replace(view="message", least_reporting=None, colluding=None)
    assert ledger_files.excesses(book.ledger._replace(header=seen))


def test_commands_that_read_the_study_state_the_view(study: Path) -> None:
    checked = " ".join(fedvi("check", study).stdout.split())
    assert (
        "anybody who sees what is published, sums over clients; the server itself is trusted"
        in checked
    )
    found = json.loads(fedvi("privacy", study, "--json").stdout)
    assert found["view"] == "aggregate"
    views = {row["view"]: row["noise_multiplier"] for row in found["views"]}
    assert views["message"] == pytest.approx(views["aggregate"] * np.sqrt(2), rel=1e-9)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"schedule": {"kind": "asynchronous", "rounds": 2}}, r"schedule\.kind is 'asynchronous'"),
        ({"schedule": {"kind": "sequential", "rounds": 2}}, r"schedule\.kind is 'sequential'"),
        ({"privacy": changed(least_reporting=4)}, r"privacy\.least_reporting is 4"),
        ({"privacy": changed(least_reporting=1)}, r"privacy\.colluding is 1"),
        ({"privacy": changed(colluding=3)}, r"privacy\.colluding is 3"),
        ({"privacy": changed(view="message", colluding=1)}, r"privacy\.colluding is given"),
        ({"privacy": changed(mechanism="discrete_gaussian")}, r"privacy\.mechanism is"),
        ({"privacy": changed(mechanism="gaussian")}, r"privacy\.mechanism is"),
        ({"privacy": {"protection": "none", "view": "aggregate"}}, r"privacy\.view is"),
        (
            {"schedule": {"kind": "synchronous", "rounds": 2, "quorum": 2}},
            r"schedule\.quorum is 2, expected at least privacy\.least_reporting, 3",
        ),
        ({"solver": {"kind": "perturbed_update"}}, r"solver\.kind is 'perturbed_update'"),
        ({"solver": {"kind": "dp_optimisation"}}, r"solver\.kind is 'dp_optimisation'"),
    ],
)
def test_what_sums_do_not_hide_is_refused(
    tmp_path: Path, sections: dict[str, Any], message: str
) -> None:
    done = fedvi("check", written(tmp_path, **sections))
    assert done.exit_code == 2
    found = " ".join(done.stderr.split())
    assert re.search(message, found), found


def test_a_solver_that_keeps_its_own_noise_is_refused(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: answers that say they may be added up, of a client that remembers what it sent."""
    honest = solvers.site_release

    def remembers(*args: Any, **named: Any) -> Any:
        return honest(*args, **named)._replace(init=lambda eta: (np.zeros(3),))

    assembled(study)
    monkeypatch.setattr(factories, "find", _finding("site_release", remembers))
    with pytest.raises(errors.ConfigError, match="keeps something from visit to visit"):
        build.assemble(load_study(study))


def _finding(kind: str, other: Any) -> Any:
    original = factories.find

    def find(section: str, name: str, *rest: Any, **named: Any) -> Any:
        found = original(section, name, *rest, **named)
        if name != kind:
            return found
        other.__signature__ = inspect.signature(found)
        return other

    return find


def test_a_site_that_trusts_no_server_judges_single_messages(tmp_path: Path, study: Path) -> None:
    policy = tmp_path / "policy.toml"
    run_section = "[run]\nepsilon = 2.0\ndelta = 1e-5\n"

    def checked(text: str) -> str:
        policy.write_text(f"{run_section}[allow]\nsimulated_noise = true\n{text}")
        done = fedvi("check", study, "--policy", policy)
        return "" if done.exit_code == 0 else " ".join(done.output.split())

    refused = "for single messages: the server is not trusted"
    assert refused in checked("")
    assert refused in checked('views = ["aggregate", "message"]')
    assert refused in checked('views = ["message"]\ntrusts_server = true')
    assert checked("trusts_server = true") == ""
    assert checked('views = ["aggregate"]\ntrusts_server = true') == ""


def planned(assembly: build.Assembly) -> list[Any]:
    """What all clients claim of the plan alone, for the study's own view."""
    books = {name: ledger.open_ledger(assembly.header(name)) for name in assembly.clients}
    claims = finished._claims(assembly, books, {}, "plan")
    return [claim for claim in claims if claim["view"] == "aggregate"]


def test_all_clients_together_claim_what_messages_cost_unless_sites_are_disjoint(
    tmp_path: Path,
) -> None:
    joint = assembled(written(tmp_path / "joint", privacy=changed(disjoint=False)))
    for claimed in planned(joint):
        of_messages = events.repeat(joint.planned, len(joint.clients))
        price = pld(claimed["relation"]).epsilon(of_messages, 1e-5)
        assert claimed["view"] == "aggregate"
        assert claimed["epsilon"] == pytest.approx(price, rel=1e-6)
        assert claimed["delta"] == 1e-5
    apart = {row["relation"]: row for row in planned(assembled(written(tmp_path / "a")))}
    assert apart["substitute"]["epsilon"] <= 2.0


def test_messages_of_few_numbers_come_with_a_warning(tmp_path: Path) -> None:
    few = assembled(written(tmp_path / "few"))
    assert few.solvers[few.clients[0]].number_count < 10
    assert any("may be guessed from its digest" in line for line in few.warnings)
    single = assembled(written(tmp_path / "single", privacy=changed(view="message")))
    assert not any("guessed" in line for line in single.warnings)
    ten = few.solvers[few.clients[0]]._replace(number_count=10)
    assert list(build._guessable(few.study, ten)) == []


def test_sums_that_float64_may_not_hold_are_refused_before_a_record_is_read(tmp_path: Path) -> None:
    raw = load_study(written(tmp_path)).as_dict()
    raw["data"]["max_records"] = 10**8
    build.assemble(parse_study(raw))
    # Among so many, one client's noise is small, and its grid fine.
    raw["solver"]["noise_multiplier"] = 0.11
    wide = raw | {"clients": [{"name": f"site{index}"} for index in range(9_000)]}
    with pytest.raises(errors.ConfigError, match=r"beyond 2\*\*53 steps of the noise's grid"):
        build.assemble(parse_study(wide))


def test_a_servers_plan_keeps_how_answers_are_added_up(study: Path, tmp_path: Path) -> None:
    plan = server_plan.make(assembled(study))
    server_plan.keep(plan, tmp_path)
    again = server_plan.read(tmp_path / server_plan.FILE)
    assert again.gather == plan.gather == assembled(study).gather
    assert server_plan.to_spec(again).gather == plan.gather


def test_a_study_without_the_view_has_the_digest_that_it_always_had(tmp_path: Path) -> None:
    single = load_study(written(tmp_path, privacy=changed(view="message")))
    raw = single.as_dict()
    del raw["privacy"]["least_reporting"], raw["privacy"]["colluding"]
    assert parse_study(raw).digest == single.digest
    other = load_study(written(tmp_path, privacy=changed(colluding=0)))
    assert other.digest != load_study(written(tmp_path)).digest


@pytest.mark.parametrize("solver", ["site_release", "vips"])
def test_a_federation_over_grpc_computes_what_a_simulation_does(
    tmp_path: Path, solver: str
) -> None:
    study = written(tmp_path, solver={"kind": solver, "clip_norm": 2.0})
    assembly = assembled(study)
    expected = undisturbed(assembly, tmp_path)
    with (
        running(assembly.spec, tmp_path / "server") as server,
        sites_of(assembly, tmp_path, tmp_path / "sites") as sites,
    ):
        sites.start(server.addresses.listen)
        sites.join()
        state = until(server, lambda state: state.status in protocol.OVER)
    assert state.status == "completed"
    assert tree.equal(protocol.reported(assembly.spec, state), expected.posterior)
    for name in assembly.clients:
        assert state.ledgers[name] == sites.ledger(name) == expected.ledgers[name]
    first = next(iter(state.factors.values()))
    assert all(tree.equal(part, first) for part in state.factors.values())


def sums_of(noises: int, claimed: int) -> bool:
    """Profiles sums of some clients' noise at the price of more of them: True if nothing is found."""
    step = events.Gaussian(0.8)
    sampler, mechanism = sampling.full(1), mechanisms.rounded_gaussian(0.8)
    shipped = worst.in_sums(sampler, mechanism, 1.0, 1, noises)
    claim = in_sum(step, claimed)
    (pair, *_) = worst.worst_pairs(claim, "substitute", 1)
    key = jax.random.key(2)
    found = profiles.profile(shipped, pair, claim, pld("substitute"), 1e-5, key, 20_000)
    assert found.passed is not None
    return found.passed


@pytest.mark.nightly
def test_dropouts_of_forty_per_cent_at_full_credit_are_refuted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(profiles, "_FACTORS", (1.0,))
    assert sums_of(3, 3)
    assert not sums_of(3, 5)


@pytest.mark.nightly
def test_an_audit_of_the_study_finds_nothing_and_names_the_sums(study: Path) -> None:
    done = fedvi("audit", study, "--trials", "4000", "--json")
    found = json.loads(done.stdout)
    assert done.exit_code == 0, [f for f in found["findings"] if f["passed"] is False]
    layers = [finding["check"] for finding in found["findings"] if finding["layer"] == "sums"]
    assert len(layers) == 3
    profiled = [f["figure"] for f in found["findings"] if f["layer"] == "profile"]
    assert profiled
    assert all("in sums of 2 noises" in figure for figure in profiled)


@pytest.mark.nightly
def test_clean_factors_in_sums_tell_more_than_noisy_ones_in_messages() -> None:
    """24 clients, two visits, records that are made up; noise that is seeded."""
    generator = np.random.default_rng(0)
    x, clients = generator.normal(size=(12_000, 2)), 24
    y = x @ [0.6, -0.3] + generator.normal(size=12_000)
    sources = split(x, y, np.arange(12_000) % clients)
    optimum = np.linalg.solve(x.T @ x + np.eye(2), x.T @ y)

    def answer(**solver_and_view: Any) -> tuple[np.ndarray, np.ndarray]:
        view = solver_and_view.pop("view")
        raw = raw_study(
            list(sources),
            2,
            kind="linear",
            solver={"kind": "perturbed_update", "clip_norm": 1_000.0, **solver_and_view},
            schedule={"kind": "synchronous", "rounds": 2},
            privacy={**changed(view=view), "epsilon": 24.0},
        )
        raw["data"]["max_records"] = 600
        raw["simulation"] = {"insecure_seed": 0}
        result = run_study(raw, sources)
        return result.assembly.family.moments(result.posterior)

    mean, sd = answer(view="aggregate", clean_factor=True)
    # Two numbers: beyond 4 sds with a probability of 1e-4.
    assert (np.abs(mean - optimum) < 4.0 * sd).all()
    _, of_messages = answer(view="message")
    assert sd.mean() < 0.9 * of_messages.mean()


@pytest.mark.nightly
def test_the_sum_of_topics_has_the_noise_that_is_planned_and_no_client_a_part_of_its_own() -> None:
    """One round of 3 clients, 18 cells each: the sd of 18 numbers has a relative sd of 0.17."""
    generator = np.random.default_rng(2)
    sources = {}
    for name in ("c0", "c1", "c2"):
        rows = generator.multinomial(20, np.full(9, 1 / 9), size=300)
        owner, word = np.nonzero(rows)
        starts = np.searchsorted(owner, np.arange(301))
        sources[name] = bag_of_words((starts, word, rows[owner, word]), 9, 9)

    def answer(privacy: dict[str, Any], **solver: Any) -> Any:
        model = {"topics": 2, "vocabulary": 9, "length": 20.0, "distinct": 9}
        raw = {
            "study": {"name": "topics"},
            "model": {"kind": "latent_dirichlet", **model},
            "solver": {"kind": "vips", "clip_norm": 0.5, **solver},
            "schedule": {"kind": "synchronous", "rounds": 1},
            "privacy": privacy,
            "data": {"max_records": 300},
            "clients": [{"name": name} for name in sources],
            "simulation": {"insecure_seed": 0},
        }
        return run_study(raw, sources)

    def total(result: Any) -> np.ndarray:
        return sum(factor.power for factor in result.factors.values())

    summed = answer(AGGREGATE)
    exact = total(answer({"protection": "none"}, noise_multiplier=0.0))
    first, *others = summed.factors.values()
    assert all(tree.equal(factor, first) for factor in others)
    assert summed.assembly.family.is_proper(summed.posterior)
    # Each client's own, of √20 words, times C; three of them.
    planned = summed.assembly.noise_multiplier * 0.5 * np.sqrt(20.0) * np.sqrt(3.0)
    noise = total(summed) - exact
    assert 0.5 < noise.std() / planned < 1.5
    # So that what is looked at is no noise alone.
    assert exact.min() > 5.0 * planned
