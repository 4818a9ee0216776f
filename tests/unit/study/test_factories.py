"""Claims about how a kind becomes a call: every wrong name, key and type is named before a run."""

import json
import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedvi import errors, expfam, models
from fedvi.federation import schedules
from fedvi.inference import solvers
from fedvi.privacy import mechanisms, sampling
from fedvi.privacy.base import Sampler
from fedvi.study import factories
from fedvi.study.sections import KindSection
from fedvi.updates.base import LocalSolver

PACKAGES = [models, expfam, solvers, schedules, mechanisms, sampling]


def tool(
    family: Any,
    width: float,
    steps: int = 3,
    name: str = "a",
    fast: bool = False,
    depth: float | None = None,
    sizes: list[int] | str = "",
) -> Any:
    """A factory that shows what it was called with."""
    if steps < 1:
        raise errors.SolverError(f"steps is {steps}, expected at least 1")
    return SimpleNamespace(**locals())


def call(**arguments: Any) -> Any:
    given = KindSection(kind="tool", **arguments)
    return factories.call("solver", given, tool, {"family": "f", "model": "m"})


def refusal(**arguments: Any) -> errors.ConfigError:
    with pytest.raises(errors.ConfigError) as error:
        call(**arguments)
    assert error.value.hint
    return error.value


# Finding


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_listed_kind_is_found(package: Any) -> None:
    for kind in package.__all__:
        assert factories.find("section", kind, package) is getattr(package, kind)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_an_unlisted_name_is_no_kind_though_the_package_has_it(package: Any) -> None:
    with pytest.raises(errors.ConfigError) as error:
        factories.find("section", "__name__", package)
    assert error.value.message.startswith("section.kind is '__name__', which is not in fedvi.")


def test_a_kind_may_name_a_function_of_any_module() -> None:
    assert factories.find("solver", "json:dumps", solvers) is json.dumps


@pytest.mark.parametrize("kind", ["builtins:dict", "types:SimpleNamespace"])
def test_a_function_whose_arguments_cannot_be_known_is_refused(kind: str) -> None:
    with pytest.raises(errors.ConfigError, match="cannot be known") as error:
        factories.find("solver", kind, solvers)
    assert error.value.hint


def test_a_misspelt_kind_is_answered_with_the_nearest() -> None:
    with pytest.raises(errors.ConfigError) as error:
        factories.find("solver", "dp_optimization", solvers)
    assert error.value.hint.startswith("did you mean `dp_optimisation`? known: ")


@pytest.mark.parametrize("kind", [":f", "math:", ".math:hypot", "a b:f", "math:hypot.x", "a:b:c"])
def test_what_names_no_function_is_refused_without_an_import(kind: str) -> None:
    with pytest.raises(errors.ConfigError, match="names no function of a module") as error:
        factories.find("model", kind, models)
    assert error.value.hint


def test_a_module_that_cannot_be_imported_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fedvi_test_broken.py").write_text("def f(:\n")
    (tmp_path / "fedvi_test_raises.py").write_text("1 / 0\n")
    for module, reason in [
        ("fedvi_test_absent", "ModuleNotFoundError"),
        ("fedvi_test_broken", "SyntaxError"),
        ("fedvi_test_raises", "ZeroDivisionError"),
    ]:
        with pytest.raises(errors.ConfigError, match=reason) as error:
            factories.find("model", f"{module}:f", models)
        assert "PYTHONPATH" in error.value.hint
        assert module not in sys.modules


def test_a_missing_function_is_answered_with_those_that_the_module_defines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    text = "from os.path import join\nhospitals = 3\ndef hospital(): pass\ndef _hidden(): pass\n"
    (tmp_path / "fedvi_test_functions.py").write_text(text)
    for name in ("hospitl", "hospitals"):
        with pytest.raises(errors.ConfigError, match=f"has no function '{name}'") as error:
            factories.find("model", f"fedvi_test_functions:{name}", models)
        assert error.value.hint == "did you mean `hospital`? known: `hospital`"


# Calling


def test_a_factory_gets_the_study_s_keys_and_only_what_it_takes_of_the_rest() -> None:
    assert call(width=2, steps=5) == tool("f", 2, steps=5)


def test_an_unknown_key_is_answered_with_the_nearest_of_the_study_s() -> None:
    error = refusal(width=1.0, stesp=3)
    assert error.message == "solver.stesp: unknown key for kind 'tool'"
    assert (
        error.hint
        == "did you mean `steps`? known: `depth`, `fast`, `name`, `sizes`, `steps`, `width`"
    )


def test_a_factory_without_keys_says_so() -> None:
    with pytest.raises(errors.ConfigError) as error:
        factories.call("family", KindSection(kind="k", a=1), lambda size: size, {"size": 2})
    assert error.value.hint == "kind 'k' takes no other key"


def test_what_follows_from_the_study_cannot_be_set_in_it() -> None:
    error = refusal(width=1.0, family="mine")
    assert error.message.startswith("solver.family: not a key of a study")


def test_a_missing_key_is_named() -> None:
    error = refusal()
    assert error.message == "solver.width is missing for kind 'tool'"
    assert error.hint == "add `width = …`"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("steps", 2.5, "a whole number"),
        ("steps", 2.0, "a whole number"),
        ("steps", True, "a whole number"),
        ("steps", "2", "a whole number"),
        ("width", "2", "a number"),
        ("width", True, "a number"),
        ("width", math.nan, "a number"),
        ("width", [1.0], "a number"),
        ("depth", "2", "a number"),
        ("depth", True, "a number"),
        ("name", 3, "a text"),
        ("fast", 1, "true or false"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_before_it_is_used(
    key: str, value: object, expected: str
) -> None:
    error = refusal(**{"width": 1.0, key: value})
    assert error.message == f"solver.{key} is {value!r}, expected {expected}"


def test_a_whole_number_is_a_number_and_infinity_too() -> None:
    assert repr(call(width=3).width) == "3.0"
    assert call(width=math.inf).width == math.inf
    assert call(width=1.0, depth=2).depth == 2
    # A resolved study is JSON, which writes infinity as a text.
    assert call(width="Infinity").width == math.inf


def test_a_value_that_the_factory_refuses_is_a_mistake_in_the_study() -> None:
    error = refusal(width=1.0, steps=0)
    assert error.message == "[solver]: steps is 0, expected at least 1"
    assert error.exit_code == 2
    assert "`steps`" in error.hint


@pytest.mark.parametrize("value", [[1, 2], "all"])
def test_an_argument_of_several_types_is_left_to_the_factory(value: Any) -> None:
    assert call(width=1.0, sizes=value).sizes == value


def outside(factory: Any, expected: type | None = None, kind: str = "lab:tool") -> Any:
    return factories.call("solver", KindSection(kind=kind), factory, {"family": 1}, expected)


@pytest.mark.parametrize("error", [TypeError("t"), ValueError("v"), KeyError("k"), OSError("o")])
def test_whatever_a_function_of_the_user_s_raises_is_a_mistake_in_the_study(
    error: Exception,
) -> None:
    def fails(family: Any) -> Any:
        raise error

    with pytest.raises(errors.ConfigError, match=type(error).__name__) as refused:
        outside(fails)
    assert refused.value.message.startswith("[solver]: kind 'lab:tool' failed with ")
    assert refused.value.hint
    assert refused.value.__cause__ is error


def test_a_mistake_in_fedvi_itself_is_not_blamed_on_the_study() -> None:
    def fails(family: Any) -> Any:
        raise KeyError("k")

    with pytest.raises(KeyError):
        outside(fails, kind="tool")


def test_an_answer_that_is_not_what_the_section_needs_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match="returned str, expected") as error:
        outside(os.getcwd, LocalSolver)
    assert "fedvi.updates.base.LocalSolver" in error.value.message
    assert error.value.hint


def test_an_answer_that_cannot_be_looked_at_is_refused() -> None:
    class Broken:
        capacity, draw, event = 1, len, len

        @property
        def rate(self) -> float:
            return 1 / 0

    def broken() -> Broken:
        return Broken()

    with pytest.raises(errors.ConfigError, match="failed with ZeroDivisionError") as error:
        outside(broken, Sampler)
    assert error.value.hint


def test_open_ended_arguments_are_no_keys_of_a_study() -> None:
    def open_ended(*args: Any, steps: int = 1, **kw: Any) -> int:
        return steps

    assert factories.parameters(open_ended) == ("steps",)
    assert outside(open_ended) == 1
