"""The page on the architecture: its picture follows the imports, and what it names is there."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

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
