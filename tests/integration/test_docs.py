"""Every code block of the README and of docs/ runs, or says why it does not; and the site builds.

A page runs in a folder of its own, from top to bottom, beside the repository's examples. Python
blocks share one namespace; one whose first line is `# name.py` is also a module of that name.
Console blocks run in bash. A study in a TOML block is the page's `study.toml`; other TOML blocks
are parts of one, and are held against the studies' schema. A block after `<!-- not run: why -->`
is not run, but every option of fedvi in it must exist.
"""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import click
import jsonschema
import pytest

from fedvi.cli.main import main
from fedvi.results import outcome

ROOT = Path(__file__).parents[2]
# Pages that start from a finished run are run by a test of their own.
ELSEWHERE = {"results.md": "test_results_guide.py", "guides/r-users.md": "test_r_guide.py"}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SECONDS = 300  # for one command on a busy machine
KINDS = {"console", "python", "r", "text", "toml", "{image}", "{toctree}"}

_FENCE = re.compile(
    r"(?:^<!-- not run: (?P<why>[^\n]+) -->\n)?^```(?P<kind>\S*)[^\n]*\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_PROMPT = re.compile(r"^(?P<who>[\w-]*)\$ +(?P<command>.*)$")


class Block(NamedTuple):
    kind: str
    text: str
    why: str | None


def blocks_of(page: Path) -> list[Block]:
    found = _FENCE.finditer(page.read_text())
    return [Block(match["kind"], match["text"], match["why"]) for match in found]


def commands_of(text: str) -> list[tuple[str, str]]:
    """Returns (whose prompt, command) pairs; lines that end in a backslash go on in the next."""
    joined = re.sub(r"\\\n\s*", " ", text)
    matches = (_PROMPT.match(line) for line in joined.splitlines())
    return [(match["who"], match["command"]) for match in matches if match]


def check_options(command: str) -> None:
    """Every option of a fedvi command exists, and every word that should name a command does."""
    words = [word.removeprefix(".venv/bin/") for word in shlex.split(command, comments=True)]
    if "fedvi" not in words[:-1]:
        return
    words = words[words.index("fedvi") + 1 :]
    context = click.Context(main, info_name="fedvi")
    current: click.Command = main
    while isinstance(current, click.Group):
        assert words, command
        found = current.get_command(context, words[0])
        if found is None and current is not main and words[0].startswith("-"):
            break
        assert found is not None, f"{command}: there is no command {words[0]}"
        current, words = found, words[1:]
    known = {name for item in current.params for name in (*item.opts, *item.secondary_opts)}
    known |= {"-h", "--help", "--version"}
    for word in words:
        if word.startswith("-") and word != "-":
            assert word.split("=")[0] in known, f"{command}: there is no option {word}"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where a page runs: its commands, examples that it may write beside, and nothing else."""
    for name in ("examples", "docker"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(tmp_path):
            del sys.modules[name]


def run_python(block: Block, names: dict[str, object], folder: Path) -> None:
    first = re.match(r"# (\w+\.py)\n", block.text)
    if first:
        (folder / first[1]).write_text(block.text)
    exec(compile(block.text, "a block of the page", "exec"), names)


def run_console(block: Block, folder: Path) -> None:
    for who, command in commands_of(block.text):
        assert not who, f"{command}: a command of another machine; say why it is not run"
        command = command.replace(".venv/bin/fedvi", "fedvi")
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def check_toml(block: Block, folder: Path) -> None:
    content = tomllib.loads(block.text)
    if "study" in content and "model" in content:
        (folder / "study.toml").write_text(block.text)
        return
    schema = json.loads((ROOT / "docs" / "study.schema.json").read_text())
    kept = {
        key: value for key, value in schema.items() if key in ("$schema", "$defs", "definitions")
    }
    for section, value in content.items():
        assert section in schema["properties"], f"a study has no section [{section}]"
        part = dict(schema["properties"][section])
        jsonschema.validate(value, {**kept, **_without_required(part, schema)})


def _without_required(part: dict, schema: dict) -> dict:
    """A page may show some keys of a section, so that none is required."""
    while "$ref" in part:
        part = schema[part["$ref"].split("/")[1]][part["$ref"].rpartition("/")[2]]
    kept = {key: value for key, value in part.items() if key != "required"}
    for branch in ("then", "else"):
        if branch in kept:
            kept[branch] = _without_required(kept[branch], schema)
    if "allOf" in kept:
        kept["allOf"] = [_without_required(item, schema) for item in kept["allOf"]]
    return kept


def test_every_block_can_be_read_and_every_option_in_it_is_there(tmp_path):
    for page in PAGES:
        for block in blocks_of(page):
            assert block.kind in KINDS, f"{page}: {block.kind}"
            if block.kind == "console":
                for _, command in commands_of(block.text):
                    if block.why is not None or not set("&|;$") & set(command):
                        check_options(command)
            elif block.kind == "python":
                compile(block.text, str(page), "exec")
            elif block.kind == "toml" and block.why is None:
                check_toml(block, tmp_path)


@pytest.mark.nightly
@pytest.mark.numpyro
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run(page, folder):
    name = page.relative_to(ROOT).as_posix().removeprefix("docs/")
    if name in ELSEWHERE:
        assert f"docs/{name}" in (Path(__file__).parent / ELSEWHERE[name]).read_text()
        return
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks_of(page):
        assert block.kind in KINDS, f"a block of kind {block.kind!r}: name one of {sorted(KINDS)}"
        if block.why is not None:
            for _, command in commands_of(block.text):
                check_options(command)
        elif block.kind == "python":
            run_python(block, names, folder)
        elif block.kind == "console":
            run_console(block, folder)
        elif block.kind == "toml":
            check_toml(block, folder)
    if page.name == "own-model.md":
        # What is shown is worth showing: noise alone lies between the two, and its sd is stated.
        told = outcome.as_dict(names["result"])["coefficients"]
        assert len(told) == 4
        for row in told:
            assert abs(row["mean"] - row["pooled_mean"]) < 4.0 * row["sd"], row
            assert row["sd"] < 0.5, row


@pytest.fixture(scope="module")
def outputs():
    """The module by which the docs' build runs the examples of its pages."""
    spec = importlib.util.spec_from_file_location("outputs", ROOT / "docs" / "outputs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_mark_of_an_output_is_one_that_the_build_understands(outputs):
    for page in PAGES:
        found = outputs.blocks_of(page.read_text())
        assert len(found) == page.read_text().count("<!-- output"), page
        for block in found:
            assert block.kind in ("console", "python", "r", "toml"), (page, block.kind)
            for wish in block.wishes:
                assert re.fullmatch(r"all|none|\d+ lines( from .+)?|\S+ \| .+", wish), (page, wish)


def test_what_a_block_prints_stands_below_it(outputs, folder):
    page = (
        "Before.\n\n<!-- output: 1 lines from two -->\n```python\nfor word in ('one', 'two', 'three'):\n"
        "    print(word)\n```\n\n<!-- output: none -->\n```console\n$ fedvi --version\n```\n\nAfter.\n"
    )
    told = folder / "told.json"
    told.write_text(json.dumps({"told": outputs.run(page, "page")}))
    shown = outputs.shown(page, str(told), "")
    assert "print(word)\n```\n\n```{code-block} text\n:class: output\n\ntwo\n…\n```\n" in shown
    assert shown.endswith("$ fedvi --version\n```\n\nAfter.\n")
    with pytest.raises(RuntimeError, match=r"nothing\.toml"):
        outputs.run("<!-- output -->\n```console\n$ fedvi check nothing.toml\n```\n", "page")


@pytest.mark.parametrize(
    "command",
    ["fedvi simulate study.toml --pool", "fedvi simulat study.toml", "fedvi ledger verfy STATE"],
)
def test_a_command_that_is_not_run_and_not_there_is_found(command):
    with pytest.raises(AssertionError, match=r"there is no"):
        check_options(command)


def test_every_link_leads_to_a_file_and_every_page_is_in_a_table_of_contents():
    pages = [page for folder in ("docs", "examples") for page in (ROOT / folder).rglob("*.md")]
    for page in [*pages, *ROOT.glob("*.md")]:
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            assert ":" in link or (page.parent / link).exists(), (page, link)
    index, listed = ROOT / "docs" / "index.md", set()
    for tree in re.findall(r"```{toctree}\n(.*?)```", index.read_text(), re.DOTALL):
        for entry in re.findall(r"^(?!:)(\S+)$", tree, re.MULTILINE):
            if entry.startswith("notebooks/"):  # a page that the build makes of a notebook
                assert (ROOT / "examples" / f"{entry}.ipynb").exists(), entry
                continue
            found = set(index.parent.glob(f"{entry}.md"))
            assert found, entry
            listed |= found
    assert listed == {*index.parent.rglob("*.md")} - {index}


@pytest.mark.nightly
def test_the_site_builds_without_a_warning(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "sphinx",
            "-W",
            "--keep-going",
            "-q",
            "-b",
            "html",
            "docs",
            tmp_path,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=4 * SECONDS,  # the examples of the pages are run, too
    )
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "index.html").read_text()
    assert "What leaves a site" in text
    # Whoever reads the docs tells nobody.
    for page in (tmp_path / "index.html", tmp_path / "concepts" / "factors.html"):
        loaded = re.findall(
            r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"', page.read_text()
        )
        assert not loaded, loaded
