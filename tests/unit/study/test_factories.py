"""Claims about how a kind becomes a call: every wrong name, key and type is named before a run."""

import hashlib
import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedvi import errors, expfam, models, plugins
from fedvi.federation import schedules
from fedvi.inference import solvers
from fedvi.privacy import mechanisms, sampling
from fedvi.privacy.base import Sampler
from fedvi.study import factories
from fedvi.study.sections import KindSection
from fedvi.updates.base import LocalSolver
from tests.plug_ins import declare

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


def test_an_object_that_was_passed_is_found_and_no_other() -> None:
    passed = plugins.OutsideCode({"mine": tool})
    assert factories.find("solver", "mine", solvers, parts=passed) is tool
    with pytest.raises(errors.ConfigError, match=r"no plug-in of that name is installed") as error:
        factories.find("solver", "yours", solvers, parts=passed)
    assert "docs/add/plug-in.md" in error.value.hint


def test_nothing_takes_the_place_of_a_built_in_kind() -> None:
    found = factories.find("solver", "glm", solvers, parts=plugins.OutsideCode({"glm": tool}))
    assert found is solvers.glm


@pytest.mark.parametrize("passed", [dict, SimpleNamespace])
def test_a_function_whose_arguments_cannot_be_known_is_refused(passed: Any) -> None:
    with pytest.raises(errors.ConfigError, match="cannot be known") as error:
        factories.find("solver", "mine", solvers, parts=plugins.OutsideCode({"mine": passed}))
    assert error.value.hint


def test_an_object_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match="which is int, expected a function or a class"):
        factories.find("solver", "mine", solvers, parts=plugins.OutsideCode({"mine": 3}))


def test_a_misspelt_kind_is_answered_with_the_nearest() -> None:
    with pytest.raises(errors.ConfigError) as error:
        factories.find("solver", "dp_optimization", solvers)
    assert error.value.hint.startswith("did you mean `dp_optimisation`? known: ")


@pytest.mark.parametrize("kind", [":f", "math:", "math:hypot", "a b:f", "os:system", "a:b:c"])
def test_a_kind_that_addresses_code_is_refused_without_an_import(kind: str) -> None:
    with pytest.raises(errors.CodeRefused, match="names code by module and attribute") as error:
        factories.find("model", kind, models)
    assert "--allow-code" in error.value.hint
    assert "docs/add/plug-in.md" in error.value.hint


PLUG_INS = {
    "mine": "fedvi_test_plug_in:mine",
    "absent": "fedvi_test_absent:f",
    "broken": "fedvi_test_broken:f",
    "raises": "fedvi_test_raises:f",
    "missing": "fedvi_test_plug_in:missing",
}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "fedvi_test_plug_in.py").write_text("def mine(family, model, steps=1): pass\n")
    (tmp_path / "fedvi_test_broken.py").write_text("def f(:\n")
    (tmp_path / "fedvi_test_raises.py").write_text("1 / 0\n")
    declare(tmp_path, solvers=PLUG_INS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fedvi_test_plug_in", raising=False)
    return tmp_path


def named(**names: str | None) -> plugins.OutsideCode:
    return plugins.OutsideCode(names=names)


def test_a_plug_in_is_imported_only_once_it_is_allowed(installed: Path) -> None:
    with pytest.raises(errors.CodeRefused, match="nobody allowed here") as error:
        factories.find("solver", "mine", solvers, parts=named(other=None))
    assert "solver.kind is 'mine', the installed plug-in fedvi_test_plug_in:mine" in str(
        error.value
    )
    assert "`--allow-code mine`" in error.value.hint
    assert "fedvi_test_plug_in" not in sys.modules
    found = factories.find("solver", "mine", solvers, parts=named(mine=None))
    assert found is sys.modules["fedvi_test_plug_in"].mine


def test_a_plug_in_is_one_of_its_own_section(installed: Path) -> None:
    with pytest.raises(errors.ConfigError, match="no plug-in of that name is installed"):
        factories.find("family", "mine", expfam, parts=named(mine=None))
    assert "fedvi_test_plug_in" not in sys.modules


def test_a_plug_in_of_another_file_than_was_allowed_is_refused_unread(installed: Path) -> None:
    digest = plugins.source_digest("fedvi_test_plug_in")
    assert digest == hashlib.sha256((installed / "fedvi_test_plug_in.py").read_bytes()).hexdigest()
    with pytest.raises(errors.PolicyRefused, match=f"SHA-256 {digest}, expected {'0' * 64}"):
        factories.find("solver", "mine", solvers, parts=named(mine="0" * 64))
    assert "fedvi_test_plug_in" not in sys.modules
    assert factories.find("solver", "mine", solvers, parts=named(mine=digest))


def test_two_plug_ins_of_one_name_are_refused(installed: Path) -> None:
    declare(installed, package="another", solvers={"mine": "fedvi_test_raises:mine"})
    with pytest.raises(errors.ConfigError, match="that of several installed plug-ins") as error:
        factories.find("solver", "mine", solvers, parts=named(mine=None))
    assert "fedvi_test_plug_in:mine" in error.value.message
    assert "fedvi_test_raises:mine" in error.value.message


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("absent", "ModuleNotFoundError"),
        ("broken", "SyntaxError"),
        ("raises", "ZeroDivisionError"),
        ("missing", "AttributeError"),
    ],
)
def test_a_plug_in_that_cannot_be_imported_is_named_with_the_reason(
    installed: Path, kind: str, reason: str
) -> None:
    with pytest.raises(errors.ConfigError, match=reason) as error:
        factories.find("solver", kind, solvers, parts=named(**{kind: None}))
    assert PLUG_INS[kind] in error.value.message
    assert error.value.hint


@pytest.mark.parametrize(
    ("section", "supplied", "missing"),
    [
        ("solver", {"family": "f", "model": "m"}, "family"),
        ("family", {"size": 3}, "size"),
        ("privacy.mechanism", {"noise_multiplier": 1.0}, "noise_multiplier"),
    ],
)
def test_code_that_takes_not_what_its_section_gives_is_not_called(
    section: str, supplied: dict[str, Any], missing: str
) -> None:
    def system(command: str = "id") -> None:
        raise AssertionError("it was called")

    given = KindSection(kind="system", command="id > PWNED")
    with pytest.raises(errors.ConfigError, match=f"takes no `{missing}`"):
        factories.call(section, given, system, supplied, outside=True)


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


def outside(factory: Any, expected: type | None = None, *, is_own: bool = False) -> Any:
    given = KindSection(kind="tool")
    return factories.call("schedule", given, factory, {}, expected, outside=not is_own)


@pytest.mark.parametrize("error", [TypeError("t"), ValueError("v"), KeyError("k"), OSError("o")])
def test_whatever_a_function_of_the_user_s_raises_is_a_mistake_in_the_study(
    error: Exception,
) -> None:
    def fails() -> Any:
        raise error

    with pytest.raises(errors.ConfigError, match=type(error).__name__) as refused:
        outside(fails)
    assert refused.value.message.startswith("[schedule]: kind 'tool' failed with ")
    assert refused.value.hint
    assert refused.value.__cause__ is error


def test_a_mistake_in_fedvi_itself_is_not_blamed_on_the_study() -> None:
    def fails() -> Any:
        raise KeyError("k")

    with pytest.raises(KeyError):
        outside(fails, is_own=True)


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
