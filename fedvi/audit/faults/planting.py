"""Plants a fault in a function in memory, and removes it again; files do not change."""

import contextlib
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import jax

from fedvi.audit.faults.fault import Fault
from fedvi.errors import ConfigError

__all__ = ["planted"]


@contextlib.contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """Replaces the code of one function within the context.

    The function object stays the same, so that every reference to it has the fault. Compiled programs and
    caches are cleared on entry and exit: build the objects under test inside the context.

    Raises:
      ConfigError: the text to replace does not occur exactly once in the function.
    """
    function = _function(fault)
    right, wrong = function.__code__, _changed(fault, function)
    try:
        function.__code__ = wrong
        _forget()
        yield
    finally:
        function.__code__ = right
        _forget()


def _function(fault: Fault) -> FunctionType:
    module, _, name = fault.place.partition(":")
    found: Any = importlib.import_module(f"fedvi.{module}")
    for part in name.split("."):
        found = inspect.getattr_static(found, part)
    if isinstance(found, property):
        found = found.fget
    found = inspect.unwrap(getattr(found, "__func__", found))
    assert isinstance(found, FunctionType)
    return found


def _changed(fault: Fault, function: FunctionType) -> CodeType:
    """Compiles the function's source with the fault."""
    text = textwrap.dedent(inspect.getsource(function))
    count = text.count(fault.right)
    if count != 1:
        raise ConfigError(
            f"fault {fault.name!r}: {fault.place} has {fault.right!r} {count} times, expected once",
            "the code changed, and the list of faults must follow",
        )
    changed = text.replace(fault.right, fault.wrong)
    first = function.__code__.co_firstlineno
    whole = compile(
        "\n" * (first - 1) + changed, function.__code__.co_filename, "exec", dont_inherit=True
    )
    # Only the function's code is used; its decorators are not run again.
    (code,) = (
        constant
        for constant in whole.co_consts
        if isinstance(constant, CodeType) and constant.co_name == function.__name__
    )
    return code


def _forget() -> None:
    """Clears compiled programs and the caches of fedvi's functions."""
    jax.clear_caches()
    for name, module in list(sys.modules.items()):
        if not name.startswith("fedvi."):
            continue
        for value in list(vars(module).values()):
            clear = getattr(value, "cache_clear", None)
            if callable(clear):
                clear()
    calibrate = sys.modules.get("fedvi.privacy.calibrate")
    if calibrate is not None:
        calibrate._cache.clear()
    checked = sys.modules.get("fedvi.inference.checked_visits")
    if checked is not None:
        checked._passed.clear()
