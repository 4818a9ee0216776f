"""Runs the examples of the guides while the site is built, and puts what they print below them.

A code block is run if the line above it is one of these comments. The blocks of a page run from top to
bottom, in a folder of their own with a copy of the repository's examples.

    <!-- output -->                       show all that the block prints
    <!-- output: 12 lines -->             show the first of them
    <!-- output: 3 lines from Plan of --> show some, from the first that holds these words
    <!-- output: none -->                 run it, since a later block needs it; show nothing
    <!-- output: out.svg | What it shows. -->       show that picture, with this text in its place
    <!-- output: report.html#2 | What it shows. --> show the second picture of that page

Several are joined by ``;``. Outputs are kept in ``docs/outputs``, and made anew where the page's blocks,
the package or the examples have changed.
"""

import base64
import contextlib
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner

from fedvi.cli.main import main
from fedvi.report import tables

__all__ = ["Block", "blocks_of", "make", "run", "shown"]

_HERE = Path(__file__).parent
_KEPT = _HERE / "outputs"
_FENCE = re.compile(
    r"^<!-- output(?:: (?P<wish>[^\n]+))? -->\n(?P<fence>```(?P<kind>\w+)\n(?P<text>.*?)^```\n)",
    re.DOTALL | re.MULTILINE,
)
# Wide enough for a table of coefficients, and no wider than the page.
_COLUMNS = 104
_SECONDS = 300


class Block(NamedTuple):
    """A block that is run: its language, its text, and what of it is to be seen."""

    kind: str
    text: str
    wishes: tuple[str, ...]


def blocks_of(page: str) -> list[Block]:
    """Returns the blocks of a page that are run when the site is built."""
    return [
        Block(found["kind"], found["text"], tuple((found["wish"] or "all").split("; ")))
        for found in _FENCE.finditer(page)
    ]


def make() -> dict[str, str]:
    """Runs what has changed, two pages at a time, and returns for each page the file of its outputs."""
    _KEPT.mkdir(exist_ok=True)
    state = _state()
    pages = {
        str(path.relative_to(_HERE).with_suffix("")): blocks_of(path.read_text("utf-8"))
        for path in sorted(_HERE.rglob("*.md"))
    }
    pages = {name: blocks for name, blocks in pages.items() if blocks}
    files = {name: _KEPT / f"{name.replace('/', '-')}.json" for name in pages}
    for path in _KEPT.iterdir():
        if not any(path.name.startswith(f"{file.stem}.") for file in files.values()):
            path.unlink()

    keys = {
        name: hashlib.sha256(repr((state, blocks)).encode()).hexdigest()
        for name, blocks in pages.items()
    }
    due = [
        name
        for name, file in files.items()
        if not file.is_file() or json.loads(file.read_text("utf-8"))["key"] != keys[name]
    ]

    def bring(names: list[str]) -> None:
        """Runs some pages in one process, which imports and compiles once for all of them."""
        if not names:
            return
        command = [sys.executable, __file__, *(f"{name}={keys[name]}" for name in names)]
        # What was compiled is kept, so that a change of the package costs less than the first build.
        compiled = {
            "JAX_COMPILATION_CACHE_DIR": str(_HERE.parent / "build" / "jax"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
        }
        environment = {**compiled, **os.environ}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            raise RuntimeError(f"{names}\n{done.stdout}\n{done.stderr}")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(bring, (due[::2], due[1::2])))
    return {name: str(file) for name, file in files.items()}


def shown(page: str, file: str, up: str) -> str:
    """Returns the page with what its blocks printed; ``up`` leads from the page to docs/."""
    told = iter(json.loads(Path(file).read_text("utf-8"))["told"])

    def replaced(found: re.Match[str]) -> str:
        text = found["fence"]
        for kind, content in next(told):
            if kind == "text" and content:
                text += f"\n```{{code-block}} text\n:class: output\n\n{content}\n```\n"
            elif kind == "picture":
                name, alt = content
                text += f"\n```{{image}} {up}outputs/{name}\n:alt: {alt}\n:class: output\n```\n"
        return text

    return _FENCE.sub(replaced, page)


def _state() -> str:
    """A fingerprint of all that an output hangs on besides its page."""
    told = hashlib.sha256()
    for path in [Path(__file__), *sorted((_HERE.parent / "fedvi").rglob("*.py"))]:
        told.update(path.read_bytes())
    for path in sorted((_HERE.parent / "examples").rglob("*")):
        if path.suffix in {".toml", ".csv", ".data", ".py", ".R"}:
            told.update(path.read_bytes())
    return told.hexdigest()


def run(text: str, stem: str) -> list[list[tuple[str, object]]]:
    """Runs the blocks of a page in the working folder; returns what is to be seen below each.

    Raises:
      RuntimeError: a command fails.
    """
    names: dict[str, object] = {"__name__": "page"}
    told = []
    for block in blocks_of(text):
        if block.kind == "r" and not shutil.which("Rscript"):
            told.append([("text", "")])
            continue
        printed = _printed(block, names)
        told.append([_wish(wish, printed, f"{stem}.{len(told)}") for wish in block.wishes])
    return told


def _printed(block: Block, names: dict[str, object]) -> str:
    if block.kind == "toml":
        Path("study.toml").write_text(block.text, "utf-8")
        return ""
    if block.kind == "python":
        first = re.match(r"# (\w+\.py)\n", block.text)
        if first:
            Path(first[1]).write_text(block.text, "utf-8")
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(block.text, "a block of the page", "exec"), names)
        return out.getvalue()
    if block.kind == "r":
        # A later block goes on where an earlier one ended.
        Path("block.R").write_text(
            "if (file.exists('.RData')) load('.RData')\n" + block.text + "\nsave.image()\n", "utf-8"
        )
        return _bash("Rscript block.R")
    joined = re.sub(r"\\\n\s*", " ", block.text)
    commands = [line[2:] for line in joined.splitlines() if line.startswith("$ ")]
    return "\n".join(filter(None, (_command(command) for command in commands)))


def _command(command: str) -> str:
    """Runs a command in this process if it is one of fedvi's and nothing of the shell is in it."""
    words = shlex.split(command, comments=True)
    while words and words[0] == "PYTHONPATH=.":
        del words[0]
    if words[0] != "fedvi" or set("&|;$<>") & set(command):
        return _bash(command)
    done = CliRunner().invoke(main, words[1:])
    if done.exit_code:
        raise RuntimeError(f"{command}\n{done.output}") from done.exception
    return done.stdout


def _bash(command: str) -> str:
    done = subprocess.run(
        ["bash", "-ec", command],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{command}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def _wish(wish: str, printed: str, name: str) -> tuple[str, object]:
    if wish == "none":
        return "text", ""
    if wish == "all":
        return "text", _fitted(printed)
    some = re.fullmatch(r"(\d+) lines(?: from (.+))?", wish)
    if some:
        lines = _fitted(printed).splitlines()
        start = next((i for i, line in enumerate(lines) if (some[2] or "") in line), None)
        if start is None:
            raise RuntimeError(f"no line holds {some[2]!r}; printed was\n{printed}")
        end = start + int(some[1])
        return "text", "\n".join([*lines[start:end], *(["…"] if len(lines) > end else [])])
    path, _, alt = wish.partition(" | ")
    assert alt, f"{wish}: a picture needs a text in its place"
    path, _, number = path.partition("#")
    content = Path(path).read_bytes()
    if number:
        pictures = re.findall(rb'src="data:image/svg\+xml;base64,([^"]+)"', content)
        content = base64.b64decode(pictures[int(number) - 1])
    (_KEPT / f"{name}.svg").write_bytes(content)
    return "picture", (f"{name}.svg", alt)


def _fitted(text: str) -> str:
    """Breaks what is wider than the page, but for tables."""
    lines: list[str] = []
    for line in text.splitlines():
        line = line.rstrip()
        prose = len(line) > _COLUMNS and not re.search(r"\S {3,}\S|──", line)
        lines += textwrap.wrap(line, _COLUMNS, subsequent_indent="  ") if prose else [line]
    return "\n".join(lines).strip("\n")


def _main(pages: list[str]) -> None:
    os.environ["COLUMNS"] = str(_COLUMNS)
    tables.PLAIN_WIDTH = _COLUMNS
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    root = _HERE.parent
    for page in pages:
        name, _, key = page.partition("=")
        stem = name.replace("/", "-")
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(root / "examples", Path(folder, "examples"))
            os.chdir(folder)
            sys.path.insert(0, folder)
            told = run((_HERE / f"{name}.md").read_text("utf-8"), stem)
            sys.path.remove(folder)
            os.chdir(root)
        (_KEPT / f"{stem}.json").write_text(json.dumps({"key": key, "told": told}), "utf-8")


if __name__ == "__main__":
    _main(sys.argv[1:])
