"""How docs/ becomes a site: `make docs`.

Reference pages are made from the code's docstrings, outputs of the guides by running their examples
(`outputs.py`), and pages of notebooks from the notebooks with what they printed.
"""

import importlib
import pkgutil
import re
import shutil
import sys
from pathlib import Path

import click

import fedvi

_HERE = Path(__file__).parent
sys.path.insert(0, str(_HERE))

import notebooks  # noqa: E402
import outputs  # noqa: E402
import rooms  # noqa: E402

project = "fedvi"
author = "The fedvi authors"
copyright = "The fedvi authors"
release = version = fedvi.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
source_suffix = {".rst": "restructuredtext", ".md": "markdown", ".ipynb": "markdown"}
exclude_patterns = ["build", "outputs"]
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_title = f"fedvi {release}"
# One backtick is code in the docstrings of this project, as it is in Markdown.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_class_signature = "mixed"
# A type that a docstring writes short is looked for by its last name, and some names are used twice.
suppress_warnings = ["ref.python"]

_PACKAGES = (
    "models",
    "updates",
    "inference",
    "privacy",
    "expfam",
    "federation",
    "data",
    "study",
    "planning",
    "run",
    "results",
    "server",
    "client",
    "transport",
    "store",
    "audit",
    "report",
)


def _titled(text: str, line: str) -> str:
    return f"{text}\n{line * len(text)}\n\n"


def _reference(package: str) -> str:
    """One page a package: what its folder is for, then every module with its public names."""
    found = importlib.import_module(f"fedvi.{package}")
    page = _titled(f"fedvi.{package}", "=") + (found.__doc__ or "") + "\n\n"
    for module in pkgutil.walk_packages(found.__path__, f"fedvi.{package}."):
        if "._" in module.name:
            continue
        # What a package offers is told where it is defined.
        members = "" if module.ispkg else "   :members:\n"
        page += _titled(module.name, "-") + f".. automodule:: {module.name}\n{members}\n"
    return page


def _commands() -> str:
    """Every command with its own --help."""
    from fedvi.cli.main import main

    page = _titled("Commands", "=")
    root = click.Context(main, info_name="fedvi")
    pending = [(root, name) for name in main.list_commands(root)]
    while pending:
        parent, name = pending.pop(0)
        assert isinstance(parent.command, click.Group)
        command = parent.command.get_command(parent, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=parent, max_content_width=88)
        page += _titled(context.command_path, "-")
        page += "::\n\n" + re.sub(r"(?m)^(?=.)", "   ", command.get_help(context)) + "\n\n"
        if isinstance(command, click.Group):
            pending[:0] = [(context, inner) for inner in command.list_commands(context)]
    return page


def _picture() -> str:
    """Which folder imports which; ``architecture.md`` shows it."""
    return rooms.svg(rooms.read(_HERE.parent))


def _write_reference() -> None:
    pages = {f"{name}.rst": _reference(name) for name in _PACKAGES}
    pages |= {"commands.rst": _commands(), "rooms.svg": _picture()}
    # A page of a package that is gone, from an earlier build.
    for stale in {path.name for path in (_HERE / "reference").glob("*.rst")} - set(pages):
        (_HERE / "reference" / stale).unlink()
    for name, text in pages.items():
        path = _HERE / "reference" / name
        # Left alone if it is the same, so that a second build is quick.
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)


def _escape(
    app: object, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """|x| is a norm in our docstrings, and a substitution in reStructuredText."""
    for index, line in enumerate(lines):
        pieces = re.split(r"(``?[^`]*``?)", line)
        lines[index] = "".join(
            piece if piece.startswith("`") else piece.replace("|", r"\|") for piece in pieces
        )


def _skip(
    app: object, what: str, name: str, obj: object, skip: bool, options: object
) -> bool | None:
    """A field of a named tuple is told under its class already."""
    doc = getattr(obj, "__doc__", None)
    return True if isinstance(doc, str) and doc.startswith("Alias for field number") else None


def _examples(app: object) -> None:
    app.outputs = outputs.make()  # type: ignore[attr-defined]


def _changed(
    app: object, env: object, added: object, changed: object, removed: object
) -> list[str]:
    """Pages whose examples print something else than when they were read last."""
    return [name for name, file in app.outputs.items() if _is_newer(env, name, file)]  # type: ignore[attr-defined]


def _is_newer(env: object, name: str, file: str) -> bool:
    read = env.all_docs.get(name)  # type: ignore[attr-defined]
    return read is not None and Path(file).stat().st_mtime_ns > read * 1000


def _read(app: object, name: str, source: list[str]) -> None:
    """Puts in what the page's examples print; turns a notebook into a page."""
    if name.startswith("notebooks/"):
        source[0] = notebooks.page(source[0], _HERE / name)
    elif name in app.outputs:  # type: ignore[attr-defined]
        source[0] = outputs.shown(source[0], app.outputs[name], "../" * name.count("/"))  # type: ignore[attr-defined]
    # The site has pages of the notebooks; whoever reads the files themselves has the notebooks.
    source[0] = source[0].replace("../examples/notebooks/", "notebooks/")


def setup(app: object) -> None:
    _write_reference()
    shutil.copytree(
        _HERE.parent / "examples" / "notebooks", _HERE / "notebooks", dirs_exist_ok=True
    )
    app.connect("builder-inited", _examples)  # type: ignore[attr-defined]
    app.connect("env-get-outdated", _changed)  # type: ignore[attr-defined]
    app.connect("source-read", _read)  # type: ignore[attr-defined]
    app.connect("autodoc-process-docstring", _escape)  # type: ignore[attr-defined]
    app.connect("autodoc-skip-member", _skip)  # type: ignore[attr-defined]
