"""Turns a `kind` in a study into a function call: looks up names and checks arguments."""

import inspect
import math
import typing
from collections.abc import Callable
from types import ModuleType
from typing import Any

from fedvi import errors, plugins
from fedvi.study.sections import KindSection

__all__ = ["call", "find", "parameters"]


def find(
    section: str,
    kind: str,
    package: ModuleType,
    key: str = "kind",
    besides: tuple[str, ...] = (),
    parts: plugins.OutsideCode = plugins.NOTHING,
) -> Callable[..., Any]:
    """Finds what makes a kind: in a package's ``__all__``, or outside fedvi where that is allowed.

    Args:
      section, key: where the study has it, for messages.
      kind: the name.
      package: its ``__all__`` lists the kinds; its ``FUNCTIONS``, if there are any, further ones.
      besides: kinds that the caller handles itself, for the hint.
      parts: objects that were passed, and plug-ins that are allowed.

    Raises:
      ConfigError: there is none (the hint has the nearest name), or it cannot be imported; or its signature
        is unavailable, as for some functions that are not written in Python.
      CodeRefused, PolicyRefused: it is a plug-in that nobody allowed.
    """
    own = (*package.__all__, *getattr(package, "FUNCTIONS", ()))
    if kind in own:
        return getattr(package, kind)
    where = f"{section}.{key}"
    if plugins.is_address(kind):
        plugins.refuse_address(where, kind)
    found = parts.find(_choice(section, key), where, kind)
    if found is None:
        raise errors.ConfigError(
            f"{where} is {kind!r}, which is not in {package.__name__}, and no plug-in of that name is "
            "installed",
            errors.did_you_mean(kind, [*own, *besides])
            + "; code of your own is a plug-in: docs/add/plug-in.md",
        )
    return found


def _choice(section: str, key: str) -> str:
    """Returns which of ``plugins.GROUPS`` a key of a study chooses from."""
    if key == "mechanism":
        return key
    return section.rpartition(".")[2].partition("[")[0].replace("stages", "schedule")


def parameters(factory: Callable[..., Any]) -> tuple[str, ...]:
    """Lists the names of a factory's arguments, without ``*args`` and ``**kwargs``."""
    return tuple(_parameters(factory))


def _parameters(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    unnamed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found = inspect.signature(factory).parameters
    return {name: item for name, item in found.items() if item.kind not in unnamed}


def call(
    section: str,
    given: KindSection,
    factory: Callable[..., Any],
    supplied: dict[str, Any],
    expected: type | None = None,
    *,
    outside: bool = False,
) -> Any:
    """Calls a factory with the study's arguments and those that a study cannot give.

    Args:
      section: the section's name, for messages.
      given: kind and arguments from the study.
      factory: from ``find``.
      supplied: arguments from the builder (family, model, …); those that the factory does not take
        are left out.
      expected: a class, or a runtime-checkable protocol, that the result must belong to; None: any.
      outside: whether the factory is not fedvi's. It must then take all of ``supplied`` that has no
        other source, see ``_MUST_TAKE``, which is checked before it is called; and whatever it raises is
        a mistake in the study.

    Raises:
      ConfigError: for an unknown or missing argument, one of the wrong type, one that the factory
        refuses or fails on, or a result of the wrong type.
    """
    known = _parameters(factory)
    missing = [name for name in _MUST_TAKE if name in supplied and name not in known]
    if outside and missing:
        raise errors.ConfigError(
            f"[{section}]: kind {given.kind!r} takes no `{missing[0]}`, which every {section} is given",
            f"is it what makes a {section}? It was not called",
        )
    from_study = [name for name in known if name not in supplied]
    arguments = {name: value for name, value in supplied.items() if name in known}
    for name, value in given.arguments.items():
        if name in arguments:
            raise errors.ConfigError(
                f"{section}.{name}: not a key of a study, since it follows from the rest of it",
                f"leave it out; {_takes(given.kind, from_study)}",
            )
        if name not in from_study:
            raise errors.ConfigError(
                f"{section}.{name}: unknown key for kind {given.kind!r}",
                errors.did_you_mean(name, from_study)
                if from_study
                else _takes(given.kind, from_study),
            )
        arguments[name] = _checked(f"{section}.{name}", value, known[name])
    for name in from_study:
        if known[name].default is inspect.Parameter.empty and name not in given.arguments:
            raise errors.ConfigError(
                f"{section}.{name} is missing for kind {given.kind!r}", f"add `{name} = …`"
            )
    try:
        made = factory(**arguments)
        # Checked inside `try`: for a protocol, its properties are read, which may fail too.
        fits = expected is None or isinstance(made, expected)
    # While a study is built, these errors are mistakes in the study.
    except (errors.FamilyError, errors.PrivacyError, errors.SolverError) as error:
        hint = error.hint or _takes(given.kind, from_study)
        raise errors.ConfigError(f"[{section}]: {error.message}", hint) from error
    except errors.FedviError:
        raise
    except Exception as error:  # the user's function may raise anything
        if not outside and not isinstance(error, _BAD_ARGUMENTS):
            raise
        # No data is loaded while a study is assembled, so the error can be shown.
        raise errors.ConfigError(
            f"[{section}]: kind {given.kind!r} failed with {type(error).__name__}: {error}",
            "correct its arguments in the study; " + _takes(given.kind, from_study),
        ) from error
    if expected is not None and not fits:
        raise errors.ConfigError(
            f"[{section}]: kind {given.kind!r} returned {type(made).__name__}, expected what is a "
            f"{expected.__module__}.{expected.__name__}",
            f"does {given.kind!r} name the function that makes it?",
        )
    return made


# What only the builder knows, and no part can do without.
_MUST_TAKE = ("family", "model", "size", "noise_multiplier")

_BAD_ARGUMENTS = (TypeError, ValueError, ArithmeticError)


def _takes(kind: str, names: list[str]) -> str:
    return f"kind {kind!r} takes " + (", ".join(f"`{name}`" for name in names) or "no other key")


_CHECKED: dict[Any, tuple[tuple[type, ...], str, str]] = {
    int: ((int,), "a whole number", "write it without quotes and without a decimal point"),
    float: ((int, float), "a number", "write it without quotes; `inf` is a number too"),
    str: ((str,), "a text", "write it in quotes"),
    bool: ((bool,), "true or false", "write it without quotes"),
}


def _checked(path: str, value: Any, parameter: inspect.Parameter) -> Any:
    """Checks a plain annotated argument, so that a wrong type is reported before it is used."""
    # `float | None` is either absent or a float, since TOML has no None.
    kinds = set(typing.get_args(parameter.annotation)) - {type(None)} or {parameter.annotation}
    fixed = {kind for kind in kinds if typing.get_origin(kind) is typing.Literal}
    texts = [text for kind in fixed for text in typing.get_args(kind)]
    if isinstance(value, str) and value in texts:
        return value
    kinds -= fixed
    kind: Any = float if kinds == {float, int} else kinds.pop() if len(kinds) == 1 else None
    if kind not in _CHECKED:
        return value
    types, words, hint = _CHECKED[kind]
    if kind is float and value == "Infinity":  # see Study.as_dict
        return math.inf
    # A bool is an int to Python, and NaN a float.
    fits = isinstance(value, types) and (kind is bool or not isinstance(value, bool))
    if not fits or value != value:
        others = "".join(f', or "{text}"' for text in texts)
        raise errors.ConfigError(f"{path} is {value!r}, expected {words}{others}", hint)
    # A study may write 1 for 1.0; the factory gets a float.
    return float(value) if kind is float else value
