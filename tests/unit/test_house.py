"""Claims about how the house is built: nobody asks which model, family or solver it has."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "fedvi"
# Whose classes may be named in a question only by the folder itself.
FOLDERS = ("expfam", "models", "inference/solvers")
# What is left: file → names. It shrinks, and what is gone must be taken out.
LEFT: dict[str, list[str]] = {}


def modules():
    return {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.rglob("*.py"))}


def is_abstract(node):
    """Whether a class is a protocol, which says what can be asked, or a plain tuple of arrays."""
    names = {getattr(base, "id", getattr(base, "attr", "")) for base in node.bases}
    return bool(names & {"Protocol", "NamedTuple"})


def concrete():
    """Returns "fedvi.models.glm:GeneralisedLinearModel" → "models", of every class of the folders."""
    found = {}
    for name, path in modules().items():
        folder = next((folder for folder in FOLDERS if name.startswith(folder + "/")), None)
        module = "fedvi." + name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for node in ast.parse(path.read_text()).body if folder else ():
            if isinstance(node, ast.ClassDef) and not is_abstract(node):
                found[f"{module}:{node.name}"] = folder
    return found


def asked(tree, folder_of, own):
    """Returns the concrete classes that a module asks for, with ``isinstance``, ``type`` or ``match``."""
    local, found = {}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                local[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    local[alias.asname] = alias.name

    def is_foreign(part):
        head, *rest = part.split(".")
        module, _, name = ".".join([local.get(head, head), *rest]).rpartition(".")
        return folder_of.get(f"{module}:{name}", own) != own

    def named(node):
        kinds = ast.Name, ast.Attribute
        return [ast.unparse(part) for part in ast.walk(node) if isinstance(part, kinds)]

    def foreign(parts):
        return [part.rpartition(".")[2] for part in parts if is_foreign(part)]

    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
            "isinstance",
            "issubclass",
        ):
            # A name may stand for several, as in `known = A | B`.
            parts = named(node.args[1])
            parts += [
                each
                for part in parts
                for set_ in ast.walk(tree)
                if isinstance(set_, ast.Assign)
                and any(getattr(target, "id", "") == part for target in set_.targets)
                for each in named(set_.value)
            ]
            found += foreign(parts)
        elif isinstance(node, ast.Compare) and any(
            isinstance(part, ast.Call) and getattr(part.func, "id", "") == "type"
            for part in (node.left, *node.comparators)
        ):
            found += foreign(named(node))
        elif isinstance(node, ast.MatchClass):
            found += foreign(named(node.cls))
        elif isinstance(node, ast.Dict):
            # A table by class, of which `table[type(model)]` asks.
            kinds = ast.Name, ast.Attribute
            keys = [ast.unparse(key) for key in node.keys if isinstance(key, kinds)]
            found += foreign(keys)
    return found


def test_nobody_asks_which_model_family_or_solver_it_has():
    folder_of, found = concrete(), {}
    for name, path in modules().items():
        own = next((folder for folder in FOLDERS if name.startswith(folder + "/")), "")
        names = asked(ast.parse(path.read_text()), folder_of, own)
        if names:
            found[name] = names
    assert found == LEFT, "ask what it can: fedvi.models.capabilities, fedvi.expfam.base"


@pytest.mark.parametrize(
    "text",
    [
        "isinstance(model, SiteEffects)",
        "isinstance(model, (int, SiteEffects | str))",
        "known = SiteEffects | int\nisinstance(model, known)",
        "type(model) is SiteEffects",
        "match model:\n    case SiteEffects():\n        pass",
        "{SiteEffects: 1}[type(model)]",
        "from fedvi.models import site_effects\nisinstance(model, site_effects.SiteEffects)",
        "import fedvi.models.site_effects as its\nisinstance(model, its.SiteEffects | None)",
        "import fedvi.models.site_effects\n{fedvi.models.site_effects.SiteEffects: 1}[type(model)]",
    ],
)
def test_a_question_for_a_class_is_seen_however_it_is_put(text):
    tree = ast.parse(f"from fedvi.models.site_effects import SiteEffects\n{text}")
    assert asked(tree, concrete(), "") == ["SiteEffects"]
    assert asked(tree, concrete(), "models") == []
