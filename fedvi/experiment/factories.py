"""How a `kind` in a study becomes a function call: names looked up, arguments checked."""

import importlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from fedvi import errors
from fedvi.experiment.config import KindSection

__all__ = ["call", "find", "parameters"]


def find(section: str, kind: str, package: ModuleType) -> Callable[..., Any]:
    """Finds the function that a kind names: in a package's ``__all__``, or as "module:function".

    Raises:
      ConfigError: if there is none; names the nearest.
    """
    module_name, colon, name = kind.partition(":")
    if not colon:
        if kind not in package.__all__:
            raise errors.ConfigError(
                f"{section}.kind is {kind!r}, which is not in {package.__name__}",
                errors.did_you_mean(kind, package.__all__)
                + '; "my_package.my_module:my_function" reaches outside',
            )
        return getattr(package, kind)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise errors.ConfigError(
            f"{section}.kind is {kind!r}, but module {module_name!r} cannot be imported: {error}",
            "install it, or run where Python finds it",
        ) from None
    if not callable(getattr(module, name, None)):
        raise errors.ConfigError(
            f"{section}.kind is {kind!r}, but {module_name} has no function {name!r}",
            errors.did_you_mean(name, [n for n in vars(module) if not n.startswith("_")]),
        )
    return getattr(module, name)


def parameters(factory: Callable[..., Any]) -> tuple[str, ...]:
    """Lists the names of a factory's arguments."""
    return tuple(inspect.signature(factory).parameters)


def call(
    section: str, given: KindSection, factory: Callable[..., Any], supplied: dict[str, Any]
) -> Any:
    """Calls a factory with the study's arguments and those that the study cannot name.

    Args:
      section: the section's name, for messages.
      given: kind and arguments from the study.
      factory: what ``find`` found.
      supplied: arguments from the builder (family, model, …); those that the factory does not take
        are left out.

    Raises:
      ConfigError: for an unknown or missing argument, or one of the wrong type.
    """
    known = inspect.signature(factory).parameters
    from_study = [name for name in known if name not in supplied]
    for name, value in given.arguments.items():
        if name not in from_study:
            raise errors.ConfigError(
                f"{section}.{name}: unknown key for kind {given.kind!r}",
                errors.did_you_mean(name, from_study),
            )
        _check_type(f"{section}.{name}", value, known[name])
    arguments = {name: value for name, value in supplied.items() if name in known}
    for name in from_study:
        if known[name].default is inspect.Parameter.empty and name not in given.arguments:
            raise errors.ConfigError(
                f"{section}.{name} is missing for kind {given.kind!r}", f"add `{name} = …`"
            )
    return factory(**arguments, **given.arguments)


_CHECKED: dict[Any, tuple[tuple[type, ...], str]] = {
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a string"),
    bool: ((bool,), "true or false"),
}


def _check_type(path: str, value: Any, parameter: inspect.Parameter) -> None:
    """Checks a plain annotated argument, so that a wrong type is named before it is used."""
    if parameter.annotation not in _CHECKED:
        return
    types, words = _CHECKED[parameter.annotation]
    wrong_bool = isinstance(value, bool) and parameter.annotation is not bool
    if wrong_bool or not isinstance(value, types):
        raise errors.ConfigError(f"{path} is {value!r}, expected {words}")
