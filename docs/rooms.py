"""Draws which folder of fedvi imports which, as SVG; the docs' build makes it from the code."""

import ast
import tomllib
from html import escape
from pathlib import Path
from typing import NamedTuple

__all__ = ["Rooms", "read", "svg"]

_WIDTH, _BOX, _HEIGHT, _GAP = 900, 148, 46, 52


class Rooms(NamedTuple):
    """The folders of a package.

    Attributes:
      lines: folder or file at the top of the package -> how many lines of Python it has.
      imports: the same -> what of the others it imports when it runs.
      layers: names that stand at one height, the highest first.
    """

    lines: dict[str, int]
    imports: dict[str, set[str]]
    layers: list[list[str]]


def read(root: Path) -> Rooms:
    """Reads the package and the layers of import-linter's first contract, without importing anything."""
    options = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    declared = options["tool"]["importlinter"]["contracts"][0]["layers"]
    layers = [
        [name.strip(" ()") for name in layer.replace(":", "|").split("|")] for layer in declared
    ]
    lines = {name: 0 for layer in layers for name in layer}
    imports: dict[str, set[str]] = {name: set() for name in lines}
    for path in sorted((root / "fedvi").rglob("*.py")):
        room = path.relative_to(root / "fedvi").parts[0].removesuffix(".py")
        if room not in lines or "_wire" in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        lines[room] += text.count("\n")
        imports[room] |= _imported(ast.parse(text)) & set(lines) - {room}
    return Rooms(lines, imports, layers)


def svg(rooms: Rooms) -> str:
    """Returns the picture: one box a folder; an arrow where no longer way says the same."""
    place = {}
    for row, layer in enumerate(rooms.layers):
        for column, name in enumerate(layer):
            x = _WIDTH * (column + 1) / (len(layer) + 1)
            place[name] = (x, 8 + row * (_HEIGHT + _GAP))
    height = 8 + len(rooms.layers) * (_HEIGHT + _GAP) - _GAP + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="14" text-anchor="middle">',
        "<title>Folders of fedvi; each imports those below it</title>",
        '<defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0L8 4L0 8z" fill="#667"/></marker></defs>',
    ]
    for upper, lower in _direct(rooms.imports):
        (x1, y1), (x2, y2) = place[upper], place[lower]
        # Two of one height stand side by side.
        start, end = ((x1, y1 + _HEIGHT), (x2, y2)) if y2 > y1 else ((x1, y1), (x2, y2 + _HEIGHT))
        if y1 == y2:
            side = 1 if x2 > x1 else -1
            start = (x1 + side * _BOX / 2, y1 + _HEIGHT / 2)
            end = (x2 - side * _BOX / 2, y2 + _HEIGHT / 2)
        parts.append(
            f'<path d="M{start[0]:g} {start[1]:g}L{end[0]:g} {end[1]:g}" stroke="#667" '
            'fill="none" marker-end="url(#a)"/>'
        )
    for name, (x, y) in place.items():
        parts += [
            f'<rect x="{x - _BOX / 2:g}" y="{y:g}" width="{_BOX}" height="{_HEIGHT}" rx="6" '
            'fill="#eef2f7" stroke="#334"/>',
            f'<text x="{x:g}" y="{y + 20:g}" fill="#112">{escape(name)}</text>',
            f'<text x="{x:g}" y="{y + 37:g}" font-size="11" fill="#445">{rooms.lines[name]:,} lines</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _imported(tree: ast.AST) -> set[str]:
    """Returns what is imported of fedvi, by the first name, unless for types alone."""
    found = set()
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            pending += node.orelse
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "fedvi":
            names = [f"fedvi.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            names = []
        found |= {name.split(".")[1] for name in names if name.startswith("fedvi.")}
        pending += ast.iter_child_nodes(node)
    return found


def _direct(imports: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Leaves out every import that a chain of others implies."""

    def reached(name: str) -> set[str]:
        found, pending = set(), list(imports[name])
        while pending:
            other = pending.pop()
            if other not in found:
                found.add(other)
                pending += imports[other]
        return found

    return [
        (name, other)
        for name in imports
        for other in sorted(imports[name])
        if not any(other in reached(between) for between in imports[name] - {other})
    ]
