"""Finds code from outside fedvi by its name: an installed plug-in that is allowed, or a caller's object.

A file names code and never brings or addresses it: a kind in a study, a plan or a result is a built-in
name, or that of an entry point of an installed package (docs/add/plug-in.md). Such a package is imported
only after a policy or ``--allow-code`` named the entry point. From Python, one passes the object itself.

What is allowed travels with a study (``Study.parts``). ``allowed`` is for the moment at which a file is
read: a command reads studies in thirty places, some of them several calls deep, so it says once what it
allows, in a variable of its context that ends with the command. Only reading a file looks at that variable.
"""

import contextlib
import contextvars
import dataclasses
import hashlib
import importlib.machinery
import importlib.metadata
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from fedvi import errors

__all__ = [
    "COMMANDS",
    "GROUPS",
    "HOW_TO_ALLOW",
    "NOTHING",
    "OutsideCode",
    "allowed",
    "allowing",
    "installed",
    "is_address",
    "loaded",
    "narrowed",
    "refuse_address",
    "say",
    "source_digest",
]

GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "model": ("fedvi.models", "fedvi.outcomes"),
        "family": ("fedvi.families",),
        "solver": ("fedvi.solvers",),
        "schedule": ("fedvi.schedules",),
        "sampler": ("fedvi.samplers",),
        "mechanism": ("fedvi.mechanisms",),
    }
)
"""Choice of a study → the groups of entry points that may offer it."""

COMMANDS = "fedvi.commands"
"""The group of entry points for commands."""

HOW_TO_ALLOW = (
    "read its code, then allow it by its name: `--allow-code {0}`, or `[[allow.custom]]` with "
    'name = "{0}" in a policy; from Python pass the object: parts={{"{0}": …}}'
)


@dataclasses.dataclass(frozen=True)
class OutsideCode:
    """The code from outside fedvi that a study may use.

    Attributes:
      given: name → the object itself, from Python.
      names: names of plug-ins that are allowed → the SHA-256 of their module's file; None if any will do.
      policy: the policy that these names are from; "" if it was no policy.
    """

    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    names: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    policy: str = ""

    def knows(self, what: str, name: str) -> bool:
        """Whether a name is that of an object that was passed, or of a plug-in; imports nothing."""
        return name in self.given or installed(what, name) is not None

    def find(self, what: str, where: str, name: str) -> Callable[..., Any] | None:
        """Returns the object of a name; None if nothing outside fedvi has that name.

        Args:
          what: a key of ``GROUPS``.
          where: the study's key, such as "model.kind", for messages.
          name: which is no built-in one.

        Raises:
          CodeRefused: the plug-in is not allowed.
          ConfigError: two packages offer it, it cannot be imported, or its arguments are unknown.
          PolicyRefused: the policy does not list it, or lists another file.
        """
        if name in self.given:
            return _callable(where, name, self.given[name])
        entry = installed(what, name)
        if entry is None:
            return None
        self.check(what, where, name)
        return _callable(where, name, loaded(where, name, entry))

    def check(self, what: str, where: str, name: str) -> None:
        """Refuses an installed plug-in that is not allowed; imports nothing.

        Raises:
          CodeRefused, PolicyRefused: as ``find``.
        """
        entry = None if name in self.given else installed(what, name)
        if entry is None:
            return
        if name not in self.names:
            said = f"{where} is {name!r}, the installed plug-in {entry.value}, which "
            if self.policy:
                raise errors.PolicyRefused(
                    f"{said}is custom code that is not in [[allow.custom]] of {self.policy}",
                    "look at that code, then add it to [[allow.custom]] with its SHA-256",
                )
            raise errors.CodeRefused(
                f"{said}nobody allowed here: nothing of it was run", HOW_TO_ALLOW.format(name)
            )
        pinned = self.names[name]
        found = None if pinned is None else source_digest(entry.module)
        if found != pinned:
            raise errors.PolicyRefused(
                f"{where} is {name!r}, the installed plug-in {entry.value}, whose file has SHA-256 "
                f"{found or 'unknown: no file was found'}, expected {pinned} of {self.policy}",
                "look at that code again, then write its new SHA-256 in [[allow.custom]]",
            )

    def outcome(self, name: str) -> Any:
        """Returns a regression's outcome of this name, if it is one and may be used; None otherwise."""
        if name in self.given:
            return self.given[name]
        entry = installed("model", name)
        if entry is None or entry.group != "fedvi.outcomes":
            return None
        try:
            return self.find("model", "model.kind", name)
        except errors.FedviError:  # whoever builds the model says so
            return None


NOTHING = OutsideCode()
"""Nothing from outside fedvi."""

_ALLOWED: contextvars.ContextVar[OutsideCode | None] = contextvars.ContextVar(
    "fedvi_allowed_code", default=None
)


def allowed() -> OutsideCode | None:
    """Returns what the running command allows; None outside a command."""
    return _ALLOWED.get()


@contextlib.contextmanager
def allowing(parts: OutsideCode) -> Iterator[None]:
    """Says, for a command, what the files that it reads may name; takes it back at the end."""
    before = _ALLOWED.set(parts)
    try:
        yield
    finally:
        _ALLOWED.reset(before)


def say(parts: OutsideCode) -> None:
    """Says what may be named for the rest of the command, within ``allowing``."""
    _ALLOWED.set(parts)


def narrowed(names: Mapping[str, str | None], policy: str) -> None:
    """Says for the rest of the command that a policy decides: what it does not list is not run.

    With several policies, a name must stand in each; a flag adds nothing to what a policy lists.
    """
    before = _ALLOWED.get() or NOTHING
    if before.policy:
        common = {name: names[name] or before.names[name] for name in names if name in before.names}
        say(OutsideCode(before.given, common, f"{before.policy} and {policy}"))
    else:
        say(OutsideCode(before.given, dict(names), policy))


def loaded(where: str, name: str, entry: importlib.metadata.EntryPoint) -> Any:
    """Imports a plug-in that is allowed.

    Raises:
      ConfigError: it cannot be imported; names ``where`` it was asked for.
    """
    try:
        return entry.load()
    except Exception as error:  # the plug-in's module may raise anything
        raise errors.ConfigError(
            f"{where} is {name!r}, but the plug-in {entry.value} cannot be imported: "
            f"{type(error).__name__}: {error}",
            "install its package again, with what it needs",
        ) from error


def installed(what: str, name: str) -> importlib.metadata.EntryPoint | None:
    """Returns the entry point of a plug-in, read from the metadata of installed packages; imports none.

    Args:
      what: a key of ``GROUPS``, or ``COMMANDS``.

    Raises:
      ConfigError: two packages offer different code under one name.
    """
    groups = GROUPS.get(what, (what,))
    found = {
        (entry.group, entry.value): entry
        for group in groups
        for entry in importlib.metadata.entry_points(group=group, name=name)
    }
    if len(found) > 1:
        offered = ", ".join(sorted(value for _, value in found))
        raise errors.ConfigError(
            f"the name {name!r} is that of several installed plug-ins: {offered}",
            "uninstall all but one of these packages",
        )
    return next(iter(found.values()), None)


def is_address(kind: str) -> bool:
    """Whether a kind names code by module and attribute, which no file may do."""
    return ":" in kind


def refuse_address(where: str, kind: str, instead: str = "") -> NoReturn:
    """Refuses a kind that names code by module and attribute.

    Args:
      where: the key, for messages.
      kind: as written.
      instead: fedvi's own name for it; "" if there is none.

    Raises:
      CodeRefused: always.
    """
    if instead:
        raise errors.CodeRefused(
            f"{where} is {kind!r}, which names code by module and attribute: no file may",
            f'write "{instead}", which is fedvi\'s own name for it',
        )
    attribute = kind.partition(":")[2].rpartition(".")[2]
    name = attribute.lower() if attribute.isidentifier() else "mine"
    raise errors.CodeRefused(
        f"{where} is {kind!r}, which names code by module and attribute: no file may, and nothing was run",
        "write a built-in name; or make the code a plug-in (docs/add/plug-in.md), name it here, such as "
        f'"{name}", and allow it: `--allow-code {name}`, or `[[allow.custom]]` in a policy; from Python '
        f'pass the object: parts={{"{name}": …}}',
    )


def source_digest(module: str) -> str | None:
    """SHA-256 of a module's source file, found without running any of its code; None without one."""
    path: Any = None
    spec = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    try:
        return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()
    except OSError:
        return None


def _callable(where: str, name: str, found: Any) -> Callable[..., Any]:
    """Checks that an object can be called, with arguments that are known before it is."""
    if not callable(found):
        raise errors.ConfigError(
            f"{where} is {name!r}, which is {type(found).__name__}, expected a function or a class",
            "an entry point names what makes the part: module:function, or module:Class",
        )
    try:
        inspect.signature(found)
    except (TypeError, ValueError):
        raise errors.ConfigError(
            f"{where} is {name!r}, but the arguments of that code cannot be known",
            "name a function written in Python, or wrap it in one",
        ) from None
    made: Callable[..., Any] = found
    return made
