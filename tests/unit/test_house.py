"""Claims about how the house is built: nobody asks which model, family or solver it has, or its kind."""

import ast
import collections
import functools
from pathlib import Path

import pytest

from fedvi import expfam, models
from fedvi.federation import schedules
from fedvi.inference import solvers

ROOT = Path(__file__).parents[2] / "fedvi"
# Whose classes may be named in a question only by the folder itself.
FOLDERS = ("expfam", "models", "inference/solvers")
# What is left: file → names. It shrinks, and what is gone must be taken out.
LEFT: dict[str, list[str]] = {}


@functools.cache
def modules():
    """Returns the syntax tree of every module, by its path."""
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text())
        for path in sorted(ROOT.rglob("*.py"))
    }


def is_abstract(node):
    """Whether a class is a protocol, which says what can be asked, or a plain tuple of arrays."""
    names = {getattr(base, "id", getattr(base, "attr", "")) for base in node.bases}
    return bool(names & {"Protocol", "NamedTuple"})


def concrete():
    """Returns "fedvi.models.glm:GeneralisedLinearModel" → "models", of every class of the folders."""
    found = {}
    for name, tree in modules().items():
        folder = next((folder for folder in FOLDERS if name.startswith(folder + "/")), None)
        module = "fedvi." + name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for node in tree.body if folder else ():
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
    for name, tree in modules().items():
        own = next((folder for folder in FOLDERS if name.startswith(folder + "/")), "")
        names = asked(tree, folder_of, own)
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


# A kind is what a study calls a class of these: who asks for the word asks for the class.
OWNERS = {
    "models": (models.NAMED, ("models/",)),
    "families": (expfam.__all__, ("expfam/",)),
    "solvers": (solvers.__all__, ("inference/solvers/", "updates/abilities.py")),
    "schedules": ((*schedules.__all__, "scripted"), ("federation/",)),
}
# Words that are something else as well: how a response is measured, or a sampler, or composed.
ALSO = {"binomial", "linear", "poisson", "survival"}
NOISY = [kind for kind in solvers.__all__ if kind not in ("exact", "glm", "gradient")]
# What is left: file → (kinds, why). It shrinks, and what is gone must be taken out.
KINDS_LEFT = {
    "audit/second_price.py": (
        NOISY,
        "a second opinion, which asks nothing of what it checks",
    ),
    "planning/signals.py": (
        NOISY,
        "how strong the signal of each is",
    ),
    "study/spec/shared_parts.py": (
        ["scripted", "synchronous"],
        "a script is made of schedules, and the view of sums is proved of rounds alone",
    ),
    "study/config.py": (
        ["site_release"],
        "a digest builds no solver, and holds what this one alone takes of an expected mean",
    ),
    "planning/widths.py": (["gradient"], "the array of that name in an answer"),
}


def texts(node, given):
    """Returns the texts of a constant, of a tuple of them, or of a name that stands for one."""
    if isinstance(node, ast.Name):
        return [text for value in given.get(node.id, ()) for text in texts(value, given)]
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return [text for part in node.elts for text in texts(part, given)]
    if isinstance(node, ast.Starred):
        return texts(node.value, given)
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return [node.value] if is_text else []


def asked_kinds(tree, foreign):
    """Returns the kinds that a module compares with, matches, or has a table of."""
    found, given = [], {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            for target in node.targets:
                given.setdefault(getattr(target, "id", ""), []).append(node.value)
    for node in ast.walk(tree):
        words, plain = [], False
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            words = [text for side in sides for text in texts(side, given)]
            plain = bool(words) and any("kind" in ast.unparse(side).lower() for side in sides)
        elif isinstance(node, ast.MatchValue):
            words = texts(node.value, given)
        elif isinstance(node, ast.Dict):
            words = [text for key in node.keys if key for text in texts(key, given)]
            plain = len(words) == len(node.keys) and set(words) <= foreign
            words = words if plain else []
        found += [word for word in words if plain or word not in ALSO]
    return sorted(set(found) & foreign)


def test_nobody_asks_what_a_model_family_solver_or_schedule_is_called():
    found = {}
    for name, tree in modules().items():
        foreign = {
            kind
            for kinds, owners in OWNERS.values()
            for kind in kinds
            if not name.startswith(owners)
        }
        # Nothing below models can know of one: there these are words of its own.
        if name.startswith(("privacy/", "data/")):
            continue
        kinds = asked_kinds(tree, foreign)
        if kinds:
            found[name] = kinds
    assert found == {name: sorted(kinds) for name, (kinds, _) in KINDS_LEFT.items()}, (
        "ask what it can: fedvi.models.outcomes.accepted, fedvi.updates.abilities"
    )


@pytest.mark.parametrize(
    "text",
    [
        "study.solver.kind == 'vips'",
        "kind not in ('vips', other)",
        "SOME = ('vips',)\nkind in SOME",
        "SOME = ('vips',)\nMORE = (*SOME, other)\nkind in MORE",
        "match kind:\n    case 'vips' | 'other':\n        pass",
        "{'vips': 1}.get(kind)",
        "mode.solver != 'vips'",
    ],
)
def test_a_question_for_a_kind_is_seen_however_it_is_put(text):
    assert asked_kinds(ast.parse(text), {"vips"}) == ["vips"]
    assert asked_kinds(ast.parse(text), {"linear"}) == []


# Who reads the keys of a section whose `kind` says what they mean: all else is read of an assembly.
KEYS_LEFT = {
    "cli/_audited.py": "a second opinion is given what the study says, not what was made of it",
    "planning/advice.py": "what a mode would be with the keys that it has",
    "planning/plan.py": "whether a clip norm was left to fedvi, and how answers are averaged",
    "planning/scenarios.py": "a clip norm as it was written, which a lever takes back",
    "planning/topics.py": "how answers are averaged",
    "results/report_ledgers.py": "the clip norm as it was written, on a statement",
    "results/reporting.py": "the rounds as they were written: a schedule may be code, which no report runs",
}


def test_a_study_is_resolved_once_and_nobody_else_reads_its_arguments():
    found = set()
    for name, tree in modules().items():
        for node in ast.walk(tree):
            inner = getattr(node, "value", None)
            if isinstance(node, ast.Attribute) and node.attr == "arguments":
                section = getattr(inner, "attr", "")
                if section in ("family", "model", "schedule", "solver"):
                    found.add(name)
    assert {name for name in found if not name.startswith("study/")} == KEYS_LEFT.keys()


# Words that said nothing of what they named. Where one still names a file, a function or a class that
# others import, it says why: file or file:name → reason.
UNTOLD = (
    *(
        "desk",
        "teller",
        "happenings",
        "shown",
        "gate",
        "answering",
        "cells",
        "lanes",
        "ahead",
        "tidy",
    ),
    *(
        "windows",
        "parts",
        "itemised",
        "lines",
        "kept_result",
        "recompute",
        "sums",
        "stored",
        "by_hand",
    ),
)
NAMED = {
    "audit/by_hand.py": "of the guide 'by hand': files that people carry where no network is",
    "data/cells.py": "a table's cells, as people call them",
    "data/stored.py": "records that are stored on the disk; no other file of that name",
    "expfam/mapped_arrays.py:windows": "of a memory map, the field's word",
    "inference/clipping.py:Parts": "a batch in parts, of which one is in memory at a time",
    "inference/response.py:Sums": "sums over the steps of a descent",
    "privacy/delta_parts.py:Itemised": "a protocol: an accountant that itemises δ",
    "privacy/sums.py": "sums over clients, which is all that is published",
    "privacy/sums.py:Sums": "who must answer for such a sum",
    "results/synthesis.py:cells": "a table's cells, as people call them",
    "results/verdict.py:lines": "of the verdict, as it is printed",
    "server/core/key_board.py:parts": "key parts, as the protocol calls them",
    "server/core/openings.py:parts": "of signatures and openings, as the protocol calls them",
}


def test_a_word_that_explains_nothing_names_no_file_and_nothing_that_others_import():
    found = set()
    for name, tree in modules().items():
        if name.rpartition("/")[2].removesuffix(".py") in UNTOLD:
            found.add(name)
        found |= {
            f"{name}:{node.name}"
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name.lower() in UNTOLD
        }
    assert found == NAMED.keys()


# The size of things


def is_generated(name):
    return "/_wire/" in name


def test_no_room_has_more_lines_than_a_sixth_of_the_house():
    lines = {
        path.relative_to(ROOT).as_posix(): path.read_text().count("\n")
        for path in ROOT.rglob("*.py")
    }
    rooms = collections.Counter()
    for name, count in lines.items():
        rooms[name.partition("/")[0]] += 0 if is_generated(name) else count
    (largest, count), *_ = rooms.most_common()
    assert count <= rooms.total() / 6, largest


def imported(tree, known, inside):
    """Returns the modules that one imports; with ``inside`` also what its functions import when called."""
    found, pending = set(), [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.FunctionDef | ast.Lambda) and not inside:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in known else node.module)
        pending += ast.iter_child_nodes(node)
    return found & known


def circles(imports):
    """Returns the modules that lie on a circle: those that are left when ends are taken off.

    >>> sorted(circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}))
    ['b', 'c']
    """
    left = {name: set(others) for name, others in imports.items()}
    while True:
        used = {other for others in left.values() for other in others}
        ends = {name for name, others in left.items() if not others or name not in used}
        if not ends:
            return set(left)
        left = {name: others - ends for name, others in left.items() if name not in ends}


@pytest.mark.parametrize("inside", [False, True])
def test_no_module_imports_itself_by_way_of_others(inside):
    trees = {
        "fedvi." + name.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): tree
        for name, tree in modules().items()
    }
    imports = {name: imported(tree, trees.keys(), inside) - {name} for name, tree in trees.items()}
    assert sum(map(len, imports.values())) > 1000
    assert circles(imports) == set()


def test_a_circle_is_seen():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == {"b", "c"}
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == set()


def test_no_file_takes_what_is_another_files_own():
    found = set()
    for name, tree in modules().items():
        taken = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedvi"):
                taken |= {alias.asname or alias.name for alias in node.names}
                folder = ROOT.parent / node.module.replace(".", "/")
                found |= {
                    f"{name}:{alias.name}"
                    for alias in node.names
                    if is_own(alias.name) and not list(folder.glob(f"{alias.name}*"))
                }
        found |= {
            f"{name}:{node.attr}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and is_own(node.attr)
            and isinstance(node.value, ast.Name)
            and node.value.id in taken
        }
    assert not found


def is_own(name):
    """Whether a name is of one file only; what a named tuple has is everybody's, and so is `__…__`."""
    public = {"_asdict", "_field_defaults", "_fields", "_make", "_replace"}
    return name.startswith("_") and not name.startswith("__") and name not in public
