"""A server keeps what its masked sums are computed from, and sites recompute the run from it."""

import contextlib
import functools
import json
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedvi import errors
from fedvi.federation.messages import Goodbye, Hello, Offer, Reply, Request
from fedvi.privacy import ledger as ledgers
from fedvi.privacy import masks
from fedvi.results import posterior as posteriors
from fedvi.run import server_plan
from fedvi.server.core import key_board, protocol
from fedvi.server.store import transcript
from fedvi.server.store.transcript import Recorder
from fedvi.store.sqlite import DATABASE, SqliteClientStore
from fedvi.study import build
from fedvi.study.config import parse_study
from fedvi.transport.memory import Link
from fedvi.transport.signers import Certified
from tests.commands import invoked as fedvi
from tests.integration.test_secure_sums import MISSING
from tests.integration.test_server_cli import server
from tests.masked import Consortium, Lying, raw, step_of
from tests.pki import authority_in, party
from tests.sites import assembled, sites_of, study_file, undisturbed

NAMES = ("north", "east", "south", "west")


class Gone(Exception):
    pass


@pytest.fixture(autouse=True, scope="module")
def _plans_made_once() -> Iterator[None]:
    """A plan takes a process with JAX, and all tests here are of two studies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_plan, "prepare", functools.cache(server_plan.prepare))
        yield


def played(
    root: Path,
    least: int | None = None,
    without: str = "",
    joins: bool = False,
    way: Callable[[Consortium, str, Link], Link] = lambda consortium, name, link: link,
) -> Path:
    """Plays a study; leaves it, its posterior, its transcript and the sites' stores in ``root``.

    It begins without a site, which ``joins`` in the second round or later.
    """
    # Where noise drowns the records, any mean of sums leaves the prior.
    clearer = {"epsilon": 200.0} if joins else {}
    study = raw(names=NAMES, least=least, rounds=4, privacy=clearer)
    (root / "study.json").write_text(json.dumps(study))
    assembly = build.assemble(parse_study(study))
    vouching = authority_in(root / "authority")
    signers: dict[str, Any] = {
        name: Certified(party(vouching, name, folder=root / f"tls-{name}")) for name in NAMES
    }
    record = Recorder(root / "transcript", assembly.spec, None)
    consortium = Consortium(assembly, signers, record=record)
    stores = {name: SqliteClientStore(root / name, assembly.header(name)) for name in NAMES}
    consortium.stores.update(stores)

    def wrapped(name: str) -> Callable[[Link], Link]:
        return lambda link: way(consortium, name, link)

    if without:
        consortium.coordinator.remove(without)
    workers = {name: consortium.worker(name, wrapped(name)) for name in NAMES if name != without}
    for _ in range(80):
        for worker in list(workers.values()):
            with contextlib.suppress(Gone):
                worker.tick()
        if joins and consortium.coordinator.state.version == 1:
            consortium.coordinator.admit(without)
        is_out = protocol.is_removed(consortium.coordinator.state, without)
        if joins and not is_out and without not in workers:
            workers[without] = consortium.worker(without, wrapped(without))
        consortium.now += 3.0
        consortium.coordinator.tick()
    state = consortium.coordinator.state
    assert state.status == "completed"
    for store in stores.values():
        store.close()
    posterior = protocol.reported(assembly.spec, state)
    posteriors.write(root, assembly.spec.family, posterior, assembly.model.names, "")
    return root


def gone_in_round_1(consortium: Consortium, name: str, link: Link) -> Link:
    """`west` is gone when it should sign the set of round 1; so it misses round 2, and then is back."""

    def request(asked: Request) -> Request:
        visit = consortium.coordinator.state.turns["south"]
        if name == "west" and visit == 1 and step_of(asked) == "sign":
            raise Gone
        return asked

    return Lying(link, request=request)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sums of four sites, of four of which one did not open, of three, and of four."""
    return played(tmp_path_factory.mktemp("missing"), 3, way=gone_in_round_1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All four sites must answer."""
    return played(tmp_path_factory.mktemp("whole"))


def verified(root: Path, name: str, transcript: Path | None = None) -> tuple[int, Any, str]:
    given = ["--study", root / "study.json", "--result", root / "posterior.npz"]
    given += ["--transcript", transcript or root / "transcript"]
    said, told = (
        fedvi("ledger", "verify", root / name, *given, *more) for more in ([], ["--json"])
    )
    assert said.exit_code == told.exit_code, told.output
    return said.exit_code, json.loads(told.stdout), " ".join(said.output.split())


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`west` joins after the first round or the second."""
    return played(tmp_path_factory.mktemp("joined"), 3, "west", joins=True)


@pytest.mark.parametrize("name", ["north", "west"])
def test_a_site_recomputes_the_run(run: Path, name: str) -> None:
    code, told, said = verified(run, name)
    assert code == 0, said
    assert told["transcript"].pop("digest") in said
    assert told["transcript"] == {"rounds": 4, "folded": 4, "done": True}
    counted = 4 if name == "north" else 3
    book = told["ledgers"][0]
    assert (book["in_transcript"], book["transcript_problem"]) == (counted, "")
    # `west` has no certificate of the sum that it did not open, and so no digest of that task.
    assert book["tasks_in_transcript"] == (4 if name == "north" else 2)
    assert book["sets_in_transcript"] == (4 if name == "north" else 2)
    unknown = "of 2 of 4 sums it has no digest of other sites' answers"
    assert (unknown in said) == (name == "west")
    assert "4 of its 4 rounds have a sum, recomputed from masked answers" in said
    assert "the last gives the posterior in" in said


@pytest.mark.parametrize("name", NAMES)
def test_so_it_does_where_all_must_answer(whole: Path, name: str) -> None:
    code, told, said = verified(whole, name)
    assert code == 0, said
    book = told["ledgers"][0]
    assert (book["in_transcript"], book["tasks_in_transcript"]) == (4, 4)
    assert "it was asked what the transcript says" in said
    assert "of 4 of 4 sums it has no digest of other sites' answers" in said


def test_rounds_that_were_given_up_are_followed(tmp_path: Path) -> None:
    # `west` answers round 2 and is gone before it opens, while `east` never answered: nobody has their key.
    def way(consortium: Consortium, name: str, link: Link) -> Link:
        def request(asked: Request) -> Request:
            if consortium.coordinator.state.turns["south"] == 2 and (
                name == "east" or (name == "west" and step_of(asked) == "open")
            ):
                raise Gone
            return asked

        return Lying(link, request=request)

    root = played(tmp_path, 3, way=way)
    code, told, said = verified(root, "north")
    assert code == 0, said
    assert (told["transcript"]["rounds"], told["transcript"]["folded"]) == (4, 3)
    assert "1 round was given up" in said
    assert "given up, as the transcript has it: 1 of the sums that it helped to open" in said
    book = told["ledgers"][0]
    assert (book["in_transcript"], book["given_up_in_transcript"]) == (3, 1)


@pytest.mark.nightly
def test_a_round_that_nobody_answered_is_followed(tmp_path: Path) -> None:
    # In round 1 each site is started again, one after another, and its turn is skipped at once.
    greetings: dict[str, Hello] = {}
    left: set[str] = set()

    def way(consortium: Consortium, name: str, link: Link) -> Link:
        def request(asked: Request) -> Request:
            if isinstance(asked, Hello):
                greetings[name] = asked
            return asked

        def reply(asked: Request, told: Reply) -> Reply:
            if not isinstance(told, Offer) or told.task.visit != 1 or name in left:
                return told
            left.add(name)
            anchor = ledgers.anchor(consortium.stores[name].ledger)
            link.handle(Goodbye(name, asked.session))
            link.handle(greetings[name]._replace(anchor=anchor))
            return link.handle(asked)

        return Lying(link, reply, request)

    root = played(tmp_path, 3, way=way)
    code, told, said = verified(root, "north")
    assert code == 0, said
    assert (told["transcript"]["rounds"], told["transcript"]["folded"]) == (4, 3)
    with np.load(root / "transcript" / "00001.npz") as file:
        assert json.loads(str(file["about"]))["sites"] == []


@pytest.mark.nightly(but=("west",))
@pytest.mark.parametrize("without", ["north", "west"])
def test_a_run_that_began_without_a_site_is_recomputed(tmp_path: Path, without: str) -> None:
    root = played(tmp_path, 3, without)
    for name in NAMES:
        code, told, said = verified(root, name)
        assert code == 0, said
        count = 0 if name == without else 4
        assert told["ledgers"][0]["in_transcript"] == count
        assert len(told["ledgers"][0]["certified"]) == count
    ca = ["--ca", root / "authority" / "ca.pem"]
    assert fedvi("ledger", "verify", root / "east", *ca).exit_code == 0


@pytest.mark.nightly(but=("west",))
@pytest.mark.parametrize("late", ["north", "west"])
def test_a_run_that_a_site_joined_is_recomputed(
    tmp_path: Path, late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = played(tmp_path, 3, late, joins=True)
    ca, rosters = ["--ca", root / "authority" / "ca.pem"], set()
    for name in NAMES:
        code, told, said = verified(root, name)
        assert code == 0, said
        book = told["ledgers"][0]
        assert book["in_transcript"] == len(book["certified"])
        assert book["in_transcript"] in ((2, 3) if name == late else (4,))
        done = fedvi("ledger", "verify", root / name, *ca, "--json")
        assert done.exit_code == 0, done.output
        rosters.add(json.loads(done.stdout)["ledgers"][0]["roster"])
    # Each has the roster of the last epoch, with all four sites.
    assert len(rosters) == 1
    # A check that did not begin means anew would not come to the same posterior.
    monkeypatch.setattr(key_board, "means_begun_anew", lambda spec, state: state)
    code, _, said = verified(root, "north")
    assert code == 1
    assert "holds another posterior than the folds of these sums give" in said


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            "DELETE FROM meta WHERE name = 'certificate/board/1'",
            "the certificates show 2 sets of keys, and 1 are kept",
        ),
        (
            "UPDATE meta SET value = (SELECT value FROM meta WHERE name = 'certificate/board') "
            "WHERE name = 'certificate/board/1'",
            "not of the epoch 1",
        ),
        (
            "UPDATE meta SET name = 'certificate/board/01' WHERE name = 'certificate/board/1'",
            "it holds keys of epoch '01'",
        ),
        (
            "UPDATE meta SET value = (SELECT value FROM meta WHERE name = 'certificate/0') "
            "WHERE name = 'certificate/3'",
            "the certificate of round 3: it is of round 0",
        ),
    ],
)
def test_evidence_of_two_epochs_that_was_changed_is_seen(
    joined: Path, tmp_path: Path, change: str, why: str
) -> None:
    shutil.copytree(joined / "north", tmp_path / "north")
    with contextlib.closing(sqlite3.connect(tmp_path / "north" / DATABASE)) as store:
        store.execute(change)
        store.commit()
    done = fedvi("ledger", "verify", tmp_path / "north")
    assert done.exit_code == 1
    assert why in " ".join(done.output.split())


def rewritten(root: Path, tmp_path: Path, visit: int, change: Callable[[Any], None]) -> Path:
    """Copies a transcript and changes one of its rounds."""
    folder = tmp_path / "transcript"
    shutil.copytree(root / "transcript", folder)
    path = folder / f"{visit:05d}.npz"
    with np.load(path) as file:
        content = {name: file[name] for name in file.files}
    change(content)
    np.savez(path, **content)
    return folder


def _other_answer(content: Any) -> None:
    """A lie that cancels: the sum stays, and two sites' answers are others."""
    own = json.loads(str(content["about"]))["sites"].index("north")
    content["words"] = content["words"].copy()
    content["words"][own, 0] += 1
    content["words"][own - 1, 0] -= 1


def _other_sum(content: Any) -> None:
    content["words"] = content["words"].copy()
    content["words"][1, 0] += 1 << 20


def _no_mask(content: Any) -> None:
    content["words"] = np.ones_like(content["words"])


def _other_task(content: Any) -> None:
    content["posterior/0"] = content["posterior/0"] * (1 + 1e-3)


def _other_keys(content: Any) -> None:
    """The sum stays: `east` opened its own secret, so that nobody needs this share of it."""
    content["opening/north"] = content["opening/north"].copy()
    content["opening/north"][32 + 60] ^= 1


def _without_north(content: Any) -> None:
    """The sum stays, and hides in the answers of others."""
    about, unsigned = json.loads(str(content["about"])), content["words"].view("<u4").copy()
    own = about["sites"].index("north")
    unsigned[own - 1] += unsigned[own]
    about["sites"].remove("north")
    content["words"] = np.delete(unsigned, own, axis=0).view("<i4")
    content["about"] = np.array(json.dumps(about))


def _made_up(content: Any) -> None:
    """A sum of all but `north`, of numbers and keys that the server made up."""
    about, sites = json.loads(str(content["about"])), NAMES[1:]
    length, words = content["words"].shape[1] - masks.GUARD, []
    for number, name in enumerate(sites):
        own, shared = bytes([number]) * 32, bytes([9 + number]) * 32
        words.append(masks.mask(np.full(length, 1_000), [own], [shared], 32).view("<i4"))
        content[f"opening/{name}"] = np.frombuffer(own + shared, np.uint8)
    content |= {"words": np.stack(words), "sealed": content["sealed"][: len(sites)]}
    content["about"] = np.array(json.dumps({**about, "sites": sites, "opened": sites}))


def _near_task(content: Any) -> None:
    """What another machine's arithmetic might give, and nothing that a site was asked."""
    content["posterior/0"] = content["posterior/0"] * (1 + 1e-12)


def _other_shape(content: Any) -> None:
    content["factor/0"] = np.zeros(7)


def _about(**changes: Any) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        about = json.loads(str(content["about"])) | changes
        content["about"] = np.array(json.dumps(about))

    return change


@pytest.mark.parametrize("study", ["run", "whole"])
@pytest.mark.parametrize(
    ("visit", "change", "why"),
    [
        (2, _other_answer, "the answer of round 2 is another than the one that the ledger sealed"),
        (2, _other_sum, "the task of round 3 is not what the folds of the rounds before it give"),
        (3, _other_sum, "posterior.npz holds another posterior than the folds of these sums give"),
        (1, _no_mask, "round 1: the masks of a round do not cancel"),
        (2, _other_task, "the task of round 2 is not what the folds of the rounds before it give"),
        (2, _near_task, "the task of round 2 is another than the one that this site answered"),
        (1, _other_shape, "the task of round 1 is not what the folds"),
        (1, _about(version=7), "the task of round 1 is not what the folds"),
        (1, _about(damping=0.5), "the task of round 1 is not what the folds"),
        (1, _about(is_folded=False), "the task of round 2 is not what the folds"),
    ],
)
def test_a_transcript_that_was_changed_is_seen(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    study: str,
    visit: int,
    change: Callable[[Any], None],
    why: str,
) -> None:
    root = request.getfixturevalue(study)
    code, _, said = verified(root, "north", rewritten(root, tmp_path, visit, change))
    assert code == 1
    assert why in said


@pytest.mark.parametrize(
    ("study", "visit", "change", "why"),
    [
        ("whole", 3, _without_north, "round 3: its sum holds 3 answers, expected 4 or more"),
        ("run", 3, _made_up, "the set of round 3 is another than the one that sites signed"),
        ("run", 1, _other_keys, "the keys of round 1 that it shows as this site's are others"),
    ],
)
def test_a_sum_without_what_this_site_sent_is_seen(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    study: str,
    visit: int,
    change: Callable[[Any], None],
    why: str,
) -> None:
    root = request.getfixturevalue(study)
    folder = rewritten(root, tmp_path, visit, change)
    done = fedvi(
        *("ledger", "verify", root / "north", "--study", root / "study.json"),
        *("--transcript", folder),
    )
    assert done.exit_code == 1
    assert why in " ".join(done.output.split())


@pytest.mark.nightly
def test_an_answer_that_a_site_never_sent_is_seen(tmp_path: Path) -> None:
    (tmp_path / "early").mkdir()

    def way(consortium: Consortium, name: str, link: Link) -> Link:
        def request(asked: Request) -> Request:
            # Its ledger as it was before it answered the last round.
            if name == "north" and consortium.coordinator.state.turns["south"] == 2:
                with (
                    contextlib.closing(sqlite3.connect(tmp_path / "north" / DATABASE)) as old,
                    contextlib.closing(sqlite3.connect(tmp_path / "early" / DATABASE)) as new,
                ):
                    old.backup(new)
            return asked

        return Lying(link, request=request)

    root = played(tmp_path, None, way=way)
    code, _, said = verified(root, "early")
    assert code == 1
    assert "round 3 shows an answer of this site, and its ledger sealed none" in said


def test_a_round_after_the_schedule_is_seen(whole: Path, tmp_path: Path) -> None:
    folder = rewritten(whole, tmp_path, 3, _about(visit=4))
    (folder / "00003.npz").rename(folder / "00004.npz")
    shutil.copy(whole / "transcript" / "00003.npz", folder)
    code, _, said = verified(whole, "north", folder)
    assert code == 1
    assert "there is a round 4, and the study's schedule was done before it" in said


def test_evidence_that_cannot_be_read_is_named(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole / "north", tmp_path / "north")
    with contextlib.closing(sqlite3.connect(tmp_path / "north" / DATABASE)) as store:
        # A text, and no hexadecimal one.
        kept = f"{'x' * 64}:{'x' * 64}"
        store.execute("UPDATE meta SET value = ? WHERE name GLOB '*/task/1'", [kept])
        store.commit()
    done = fedvi(
        *("ledger", "verify", tmp_path / "north", "--study", whole / "study.json"),
        *("--transcript", whole / "transcript"),
    )
    assert done.exit_code == 1
    assert "what it holds of the task of round 1 cannot be read" in " ".join(done.output.split())


def test_an_answer_that_only_another_site_has_is_seen_by_the_certificate(
    run: Path, tmp_path: Path
) -> None:
    def of_others(content: Any) -> None:
        content["words"] = content["words"].copy()
        sites = json.loads(str(content["about"]))["sites"]
        first, second, *_ = (at for at, name in enumerate(sites) if name != "north")
        content["words"][first, 0] += 1
        content["words"][second, 0] -= 1

    folder = rewritten(run, tmp_path, 1, of_others)
    code, _, said = verified(run, "north", folder)
    assert code == 1
    assert "the set of round 1 is another than the one that sites signed" in said


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_about(study="0" * 64), "is of round 1, study 000000000000"),
        (_about(visit=3), "is of round 3"),
        (_about(sites=["north", "elsewhere"]), "names sites that the study does not have"),
        (_about(sites=["north", "north"]), "names sites that the study does not have"),
        (lambda content: content.update(words=np.zeros((4, 9), "V0")), "dtype |V0"),
        (lambda content: content.update(words=content["words"].astype(complex)), "dtype <c16"),
        (
            lambda content: content.update({"factor/0": np.array(["1", "2"])}),
            "no round can be read",
        ),
        (_about(sites=5), "no round can be read"),
        (_about(opened=["nobody"]), "no round can be read"),
        (lambda content: content.pop("words"), "no round can be read"),
        (lambda content: content.pop("about"), "no round can be read"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    run: Path, tmp_path: Path, change: Callable[[Any], None], why: str
) -> None:
    folder = rewritten(run, tmp_path, 1, change)
    done = fedvi(
        "ledger", "verify", run / "north", "--study", run / "study.json", "--transcript", folder
    )
    assert done.exit_code == errors.ConfigError.exit_code
    assert why in " ".join(done.output.split())


def test_a_compressed_file_is_not_unpacked(run: Path, tmp_path: Path) -> None:
    folder = rewritten(run, tmp_path, 1, lambda content: None)
    np.savez_compressed(folder / "00001.npz", about=np.zeros(1_000_000))
    done = fedvi(
        "ledger", "verify", run / "north", "--study", run / "study.json", "--transcript", folder
    )
    assert done.exit_code == errors.ConfigError.exit_code
    assert "it is compressed, and no server writes it so" in " ".join(done.output.split())


def test_a_transcript_without_a_round_or_of_no_run_is_refused(run: Path, tmp_path: Path) -> None:
    folder = rewritten(run, tmp_path, 1, lambda content: None)
    (folder / "00001.npz").unlink()
    empty = tmp_path / "empty"
    empty.mkdir()
    for given, why in (
        (["--transcript", folder, "--study", run / "study.json"], "round 1 is missing"),
        (["--transcript", empty, "--study", run / "study.json"], "holds no round"),
        (["--transcript", folder], "--transcript is given alone"),
        (["--study", run / "study.json"], "--study is given alone"),
        (["--result", run / "posterior.npz"], "--result is given alone"),
    ):
        done = fedvi("ledger", "verify", run / "north", *given)
        assert done.exit_code == errors.ConfigError.exit_code
        assert why in " ".join(done.output.split())
    # The last round is gone: the site answered it.
    folder = rewritten(run, tmp_path / "last", 1, lambda content: None)
    (folder / "00003.npz").unlink()
    done = fedvi(
        "ledger", "verify", run / "north", "--study", run / "study.json", "--transcript", folder
    )
    assert done.exit_code == 1
    said = " ".join(done.output.split())
    assert "round 3 is not in it, and this site answered" in said
    assert "The study's schedule was not done then" in said


def test_several_ledgers_are_compared_each(run: Path, whole: Path, tmp_path: Path) -> None:
    given = ["--study", run / "study.json", "--transcript", run / "transcript"]
    for folder in ("north", "south"):
        (tmp_path / folder).mkdir()
        shutil.copy(run / folder / "ledger.sqlite", tmp_path / folder)
    done = fedvi("ledger", "verify", tmp_path, *given)
    assert done.exit_code == 0
    assert done.output.count("4 of 4 sums of the transcript hold this site's answer") == 2
    shutil.copy(whole / "north" / "ledger.sqlite", tmp_path / "south")
    done = fedvi("ledger", "verify", tmp_path, *given)
    assert done.exit_code == 1
    assert "THE TRANSCRIPT IS NOT OF THIS SITE'S RUN: the ledger is of study" in done.output


def test_what_cannot_be_recorded_is_refused(run: Path, tmp_path: Path) -> None:
    plain = build.assemble(parse_study(raw(names=NAMES, secure=False)))
    with pytest.raises(errors.ConfigError, match="the study's sums are not masked"):
        Recorder(tmp_path, plain.spec, None)
    spec = build.assemble(parse_study(raw(names=NAMES))).spec
    begun = protocol.initial_state(spec)
    begun = begun._replace(turns=dict.fromkeys(begun.turns, 2))
    with pytest.raises(errors.ConfigError, match="round 0 of the run is not in this transcript"):
        Recorder(tmp_path, spec, begun)
    folder = rewritten(run, tmp_path / "other", 1, lambda content: None)
    for state in (None, begun):
        with pytest.raises(errors.ConfigError, match="is there, and the run is at round"):
            Recorder(folder, spec, state)
    # The rest of a run is written into the folder of its beginning. The round that goes on may be there
    # if the server was killed before it saved its state, and may end otherwise.
    Recorder(folder, spec, begun._replace(turns=dict.fromkeys(begun.turns, 3)))
    assert sorted(path.stem for path in folder.iterdir()) == ["00000", "00001", "00002"]


@pytest.mark.nightly
def test_a_server_of_the_command_line_keeps_it_and_goes_on_with_it(
    tmp_path: Path,
) -> None:
    # With an intercept and a clip norm of its own choice, the first round is a survey of the columns.
    model = {**raw(names=NAMES)["model"], "kind": "linear", "formula": "y ~ x0 + x1"}
    solver = {"kind": "site_release", "clip_norm": "auto"}
    privacy = {**MISSING["privacy"], "epsilon": 200.0}
    sections = {"model": model, "solver": solver, "privacy": privacy}
    study = study_file(tmp_path, **MISSING | sections)
    declared = json.loads(study.read_text())
    declared["schedule"]["rounds"] = 5
    study.write_text(json.dumps(declared))
    assembly, state = assembled(study), tmp_path / "server"
    undisturbed(assembly, tmp_path)  # compiled before a deadline runs
    with (
        server(study, state, "--transcript", "--linger", "0") as process,
        sites_of(assembly, tmp_path, tmp_path / "sites") as sites,
    ):
        sites.start(process.listen)
        while not (state / "transcript" / "00000.npz").exists():
            time.sleep(0.01)
        # Killed, and started again with another port: clients are started again, too.
        process.end(-signal.SIGKILL, signal.SIGKILL)
    with (
        server(study, state, "--transcript", "--linger", "0") as process,
        sites_of(assembly, tmp_path, tmp_path / "sites") as sites,
    ):
        sites.start(process.listen)
        process.end(0)
    done = fedvi(
        *("ledger", "verify", tmp_path / "sites" / "north", "--study", study),
        *("--transcript", state / "transcript", "--result", state / "result" / "posterior.npz"),
    )
    assert done.exit_code == 0, done.output
    assert "5 of 5 sums of the transcript hold this site's answer" in " ".join(done.output.split())
    kept = [*transcript.read(state / "transcript", assembly.spec)]
    assert [found.task.coordinates is None for found in kept] == [True, *[False] * 4]


def test_the_command_line_refuses_a_transcript_of_open_answers(tmp_path: Path) -> None:
    study = study_file(tmp_path)
    done = fedvi("server", study, "--state", tmp_path / "server", "--transcript")
    assert done.exit_code == errors.ConfigError.exit_code
    assert "the study's sums are not masked" in " ".join(done.output.split())
