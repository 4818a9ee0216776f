"""What is said of topics before a run: the ratio follows the server's noise, and below 1 it warns."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fedvi.cli.main import main
from fedvi.data import bag_of_words
from fedvi.data.source import ArraySource
from fedvi.models.lda import LatentDirichlet
from fedvi.planning.plan import plan
from fedvi.planning.topics import topic_outlook
from fedvi.run.simulate import run
from fedvi.study.build import assemble
from fedvi.study.config import parse_study
from tests.studies import raw_study

TOPICS, WORDS, LENGTH, DOCUMENTS = 3, 12, 20.0, 200


def raw_topics(
    epsilon: float = 4.0,
    *,
    clients: int = 2,
    documents: int = DOCUMENTS,
    rounds: int = 4,
    privacy: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    **solver: Any,
) -> dict[str, Any]:
    sizes = {"topics": TOPICS, "vocabulary": WORDS, "length": LENGTH, "distinct": 8}
    promise = {"epsilon": epsilon, "delta": 1e-5, "unit": "record", "relation": "add_remove"}
    return {
        "study": {"name": "topics"},
        "model": {"kind": "latent_dirichlet", **sizes, **(model or {})},
        "solver": {"kind": "vips", "clip_norm": 0.5, **solver},
        "schedule": {"kind": "synchronous", "rounds": rounds},
        "privacy": promise | (privacy or {}),
        "data": {"max_records": documents},
        "clients": [{"name": f"c{index}"} for index in range(clients)],
        "simulation": {"insecure_seed": 1},
    }


def documents_of(clients: int) -> dict[str, ArraySource]:
    generator = np.random.default_rng(3)
    counts = generator.multinomial(20, np.full(WORDS, 1.0 / WORDS), size=(clients, 30))
    sources = {}
    for index, rows in enumerate(counts):
        owner, word = np.nonzero(rows)
        starts = np.searchsorted(owner, np.arange(len(rows) + 1))
        sources[f"c{index}"] = bag_of_words((starts, word, rows[owner, word]), WORDS, 8)
    return sources


def outlook(raw: dict[str, Any]) -> Any:
    return topic_outlook(assemble(parse_study(raw)))


@pytest.mark.nightly(but=("emphasis", "typical"))
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"averaging": 0.6},
        {"averaging": 1.0, "emphasis": 2.0, "clip_norm": 2.0},
        {
            "delay": 3.0,
            "sampler": {"kind": "poisson", "rate": 0.25},
            "noise_multiplier": 5.0,  # more than is asked for; to find that of batches takes long
        },
        {"typical": {"words": 9.0}},
        {"clients": 3, "privacy": {"view": "aggregate"}},
    ],
    ids=["plain", "averaging", "emphasis", "batches", "typical", "sums"],
)
def test_the_ratio_is_that_of_the_noise_that_the_server_is_told(
    changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []
    original = LatentDirichlet.posterior

    def posterior(self: LatentDirichlet, total: Any, noise: Any) -> Any:
        told.append(noise["words"])
        return original(self, total, noise)

    monkeypatch.setattr(LatentDirichlet, "posterior", posterior)
    raw = raw_topics(**changed)
    assembly = assemble(parse_study(raw))
    clients = len(assembly.clients)
    run(assembly, documents_of(clients))
    found = topic_outlook(assembly)
    assert found is not None
    kept = clients * DOCUMENTS * LENGTH * min(1.0, raw["solver"]["clip_norm"])
    # What is left of the noise after all rounds, and of all clients: the last that it is told.
    assert found.ratio == pytest.approx(kept / (TOPICS * WORDS * told[-1]), rel=1e-9)
    assert len(told) == raw["schedule"]["rounds"]


def test_sums_that_alone_are_seen_need_less_noise() -> None:
    single, summed = (
        outlook(raw_topics(clients=5, privacy={"view": view})) for view in ("message", "aggregate")
    )
    # Four honest noises of five: one client may collude.
    assert summed.ratio == pytest.approx(2.0 * single.ratio, rel=1e-3)


def test_a_large_vocabulary_of_few_documents_drowns() -> None:
    size = {"topics": 50, "vocabulary": 7_702, "length": 100.0, "distinct": 100}
    # About what the promise asks for; to find it takes long at this size.
    settings = {"averaging": 0.6, "clip_norm": 2.0, "noise_multiplier": 8.0}
    found = outlook(raw_topics(1.0, documents=200, model=size, **settings))
    assert found.ratio < 0.01
    (warning,) = found.warnings
    assert "the noise probably drowns the topics" in warning
    for help_ in (
        "a smaller public vocabulary, fewer topics, more documents, a larger ε",
        "averaging nearer to 1 than 0.6, or fewer rounds",
        "a clip_norm of 1 or less in the place of 2",
    ):
        assert help_ in warning
    # Two clients at least are in a sum with one that may collude: nothing would be gained.
    assert "aggregate" not in warning
    assert 'view = "aggregate"' in outlook(raw_topics(0.01, clients=3)).warnings[0]


def test_nothing_is_said_of_what_is_no_private_study_of_topics() -> None:
    assert outlook(raw_study(["c"], 2)) is None
    raw = raw_topics(noise_multiplier=0.0)
    raw["privacy"] = {"protection": "none"}
    assert outlook(raw) is None


@pytest.mark.parametrize("command", ["check", "privacy"])
@pytest.mark.parametrize(("epsilon", "drowns"), [(0.05, True), (8.0, False)])
def test_the_commands_print_the_ratio_and_warn_below_1(
    command: str, epsilon: float, drowns: bool, tmp_path: Path
) -> None:
    path = tmp_path / "study.json"
    path.write_text(json.dumps(raw_topics(epsilon)))
    done = CliRunner().invoke(main, [command, str(path)])
    assert done.exit_code == 0, done.output
    assert "signal to noise of an average cell of the topics' word table: " in done.stdout
    assert ("warning: the noise probably drowns the topics" in done.stdout) is drowns
    plain = json.loads(CliRunner().invoke(main, [command, str(path), "--json"]).stdout)
    assert (plain["topics"]["ratio"] < 1.0) is drowns
    assert bool(plain["topics"]["warnings"]) is drowns
    assert plain["topics"]["documents"] == 2 * DOCUMENTS
    assert plain["outlook"] is None


# Rounds of models whose statistics do not depend on the posterior


NETWORK = {
    "kind": "discrete_network",
    "variables": ["a", "b"],
    "levels": [2, 3],
    "parents": [[], ["a"]],
}
UNKNOWN = {
    "kind": "linear_unknown_noise",
    "coefficients": ["a"],
    "prior_scales": [3.0],
    "row_norm": 1.0,
}


def raw_rounds(rounds: int, model: dict[str, Any] = NETWORK, **solver: Any) -> dict[str, Any]:
    raw = raw_topics(1.0, rounds=rounds, privacy={"accountant": "rdp"}, **solver)
    return raw | {"model": model}


def of_rounds(raw: dict[str, Any]) -> str:
    return " ".join(line for line in plan(parse_study(raw)).warnings if "releases the same" in line)


@pytest.mark.parametrize("model", [NETWORK, UNKNOWN], ids=["network", "unknown noise"])
def test_rounds_that_release_the_same_sums_anew_are_warned_of(model: dict[str, Any]) -> None:
    assert of_rounds(raw_rounds(1, model)) == ""
    said = of_rounds(raw_rounds(5, model))
    assert f"no statistic of model.kind {model['kind']!r} depends on the posterior" in said
    assert said.endswith(
        "their mean says what one release of the whole budget does: write rounds = 1"
    )
    batches = {"sampler": {"kind": "poisson", "rate": 0.1}, "noise_multiplier": 5.0}
    assert 'rounds = 1 with sampler = "full"' in of_rounds(raw_rounds(5, model, **batches))
    # A topic model's depend on it; and without a promise rounds cost nothing.
    assert of_rounds(raw_topics()) == ""
    raw = raw_rounds(5, model, noise_multiplier=0.0)
    raw["privacy"] = {"protection": "none"}
    assert of_rounds(raw) == ""


def test_a_mean_that_forgets_is_noisier_than_one_release_by_what_is_said() -> None:
    once, often = (
        assemble(parse_study(raw_rounds(rounds, averaging=0.5))).noise_multiplier
        for rounds in (1, 5)
    )
    assert once is not None
    assert often is not None
    steps = [(1.0 + visit) ** -0.5 for visit in range(5)]
    weights = [
        step * math.prod(1.0 - later for later in steps[visit + 1 :])
        for visit, step in enumerate(steps)
    ]
    more = often * math.hypot(*weights) / once
    said = of_rounds(raw_rounds(5, averaging=0.5))
    assert f"about {more:.2g} times the noise" in said
    assert more > 1.1


@pytest.mark.nightly
def test_one_round_of_a_linear_model_is_not_warned_into_under_noise() -> None:
    """Its curvature is noisy, so that the first step is short: more rounds are nearer, at one promise."""
    generator = np.random.default_rng(5)
    theta, sources = generator.normal(size=4), {}
    for name in ("c0", "c1"):
        x = generator.normal(size=(500, 4))
        y = x @ theta + generator.normal(size=500)
        sources[name] = ArraySource({"x": x, "y": y}, np.ones(500, bool))
    away = []
    for rounds in (1, 20):
        raw = raw_study(["c0", "c1"], 4, solver={"kind": "vips", "clip_norm": 2.0})
        raw["schedule"] = {"kind": "synchronous", "rounds": rounds}
        raw["privacy"] = raw_topics(8.0)["privacy"]
        raw["data"]["max_records"] = 500
        raw["simulation"] = {"insecure_seed": 1}
        assert of_rounds(raw) == ""
        result = run(assemble(parse_study(raw)), sources, pooled=True)
        found, pooled = (
            result.assembly.family.moments(eta)[0] for eta in (result.posterior, result.pooled)
        )
        away.append(float(np.linalg.norm(found - pooled)))
    assert away[1] < 0.5 * away[0]


# Who is told of another solver


@pytest.mark.parametrize("model", ["topics", "logistic"])
def test_no_solver_is_named_that_does_not_take_the_model(model: str) -> None:
    raw = raw_topics()
    if model == "logistic":
        raw = raw_study(["c0", "c1"], 2, kind="logistic", solver=raw["solver"]) | {
            "privacy": raw["privacy"]
        }
        raw["data"]["max_records"] = DOCUMENTS
    (said,) = [line for line in plan(parse_study(raw)).warnings if "solver.kind is 'vips'" in line]
    assert "intervals leave out what the noise does" in said
    assert ("site_release" in said) == (model == "logistic")
