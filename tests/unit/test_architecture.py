"""The page on the architecture: its picture follows the imports, and what it names is there, and called."""

import importlib.util
import itertools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from fedvi.federation.messages import Submit
from fedvi.privacy import ledger
from fedvi.run import loading, site
from fedvi.server.coordinator import Coordinator
from fedvi.store.memory import MemoryClientStore, MemoryServerStore
from fedvi.study import build
from fedvi.study.config import load_study
from fedvi.transport.memory import MemoryLink

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"


@pytest.fixture(scope="module")
def rooms() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rooms", ROOT / "docs" / "rooms.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_file_and_function_that_the_page_names_is_there():
    text = PAGE.read_text()
    named = re.findall(r"`((?:fedvi|tests|docs|protos)/[\w/.]*)`(?: \(`(\w+)`\))?", text)
    assert len(named) > 40
    for path, function in named:
        assert (ROOT / path).exists(), path
        if function:
            assert f"def {function}(" in (ROOT / path).read_text(), (path, function)


def test_every_folder_of_the_package_stands_in_the_page():
    text = PAGE.read_text()
    for folder in (ROOT / "fedvi").iterdir():
        if (folder / "__init__.py").is_file():
            assert f"`fedvi/{folder.name}`" in text, folder.name


def test_the_picture_has_a_box_for_each_folder_and_its_arrows_go_down(rooms):
    found = rooms.read(ROOT)
    assert all(count > 0 for count in found.lines.values())
    height = {name: row for row, layer in enumerate(found.layers) for name in layer}
    for name, others in found.imports.items():
        for other in others:
            assert height[other] > height[name] or {name, other} == {"errors", "typing"}
    drawn = ElementTree.fromstring(rooms.svg(found))
    space = "{http://www.w3.org/2000/svg}"
    texts = [node.text for node in drawn.iter(f"{space}text")]
    assert set(found.lines) < set(texts)
    arrows = [node for node in drawn.iter(f"{space}path") if node.get("marker-end")]
    assert len(found.lines) - 1 <= len(arrows) < sum(map(len, found.imports.values()))


def test_an_arrow_is_left_out_where_a_chain_says_the_same(rooms, tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[[tool.importlinter.contracts]]\nlayers = ["(top)", "(middle)", "(low)"]\n'
    )
    for name, text in {
        "top": "from fedvi import low, middle\n",
        "middle": "import fedvi.low\nif TYPE_CHECKING:\n    from fedvi import top\n",
        "low": "",
    }.items():
        (tmp_path / "fedvi" / name).mkdir(parents=True)
        (tmp_path / "fedvi" / name / "__init__.py").write_text(text)
    found = rooms.read(tmp_path)
    assert found.imports == {"top": {"low", "middle"}, "middle": {"low"}, "low": set()}
    assert rooms.svg(found).count("marker-end=") == 2


# The two walks


def walk(title: str) -> list[tuple[str, str]]:
    """Returns the files and functions that a section of the page names, in its order."""
    section = PAGE.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"`(fedvi/[\w/.]*)` \(`(\w+)`\)", section)


def called(run: Callable[[], object], told: Callable[[Any, str, str], Any]) -> list[Any]:
    """Returns what ``told`` says of each call of a function of fedvi while something runs, but for None."""
    found = []

    def note(frame: Any, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(ROOT / "fedvi")):
            found.append(told(frame, Path(path).relative_to(ROOT).as_posix(), frame.f_code.co_name))

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return [each for each in found if each is not None]


def entered_once(names: list[str]) -> list[str]:
    """Returns the names without repetitions of one that nothing stands between; each must be there once."""
    entered = [name for name, _ in itertools.groupby(names)]
    assert len(set(entered)) == len(entered), entered
    return entered


def test_a_record_enters_no_room_twice_on_its_way_to_the_posterior(tmp_path):
    named = walk("The way of a record")
    rooms = entered_once([path.split("/")[1] for path, _ in named])
    assert rooms[0] == "data"
    assert rooms[-1] == "federation"
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "north.csv").write_text("y,x\n1,0.5\n0,-0.5\n1,1\n")
    assembly = build.assemble(load_study(tmp_path / "study.toml"))
    store = MemoryClientStore(ledger.open_ledger(assembly.header("north")))
    coordinator = Coordinator(assembly.spec, MemoryServerStore())

    def run() -> None:
        (source,) = loading.load_shards(assembly, tmp_path).values()
        shard = site.shard_of(assembly, "north", source)
        link = MemoryLink(coordinator.handle)
        worker = site.client_worker(assembly, "north", link, store, shard)
        while worker.tick() != "done":
            pass

    def told(frame: Any, path: str, name: str) -> tuple[str, str] | None:
        if name == "step" and not isinstance(frame.f_locals["request"], Submit):
            return None  # a greeting, or a question for a task
        return (path, name) if (path, name) in named else None

    assert list(dict.fromkeys(called(run, told))) == named
    assert coordinator.state.version == 1


def test_a_study_enters_no_file_twice_on_its_way_to_an_assembly(tmp_path):
    named = [path for path, _ in walk("From a study file to an assembly")]
    (tmp_path / "study.toml").write_text(STUDY)
    study = load_study(tmp_path / "study.toml")

    def told(frame: Any, path: str, _: str) -> str | None:
        asks = frame.f_back.f_code
        inside = path.startswith("fedvi/study/") and asks.co_filename == build.__file__
        return path if inside and asks.co_name == "assemble" and path in named[2:] else None

    assert entered_once(called(lambda: build.assemble(study), told)) == named[2:]
    assert named[:2] == ["fedvi/study/config.py", "fedvi/study/build.py"]


STUDY = """
[study]
name = "walk"
[model]
kind = "logistic"
formula = "y ~ x"
[solver]
kind = "site_release"
clip_norm = 0.98765  # as nobody else has it: what is compiled already is not called
noise_multiplier = 3.0
[schedule]
kind = "synchronous"
rounds = 1
[privacy]
epsilon = 5.0
delta = 1e-5
unit = "record"
relation = "substitute"
[data]
max_records = 4
[data.schema.y]
type = "binary"
[data.schema.x]
type = "number"
bounds = [-1, 1]
[[clients]]
name = "north"
data = "north.csv"
"""
