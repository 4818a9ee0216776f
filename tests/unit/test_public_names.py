"""The public names: what a reader's editor lists, what is imported when, and what a type checker knows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedvi

ROOT = Path(__file__).resolve().parents[2]


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "package", ["fedvi", "fedvi.expfam", "fedvi.models", "fedvi.privacy", "fedvi.report"]
)
def test_dir_lists_what_is_public_and_no_more(package):
    module = sys.modules.get(package) or getattr(fedvi, package.removeprefix("fedvi."))
    assert dir(module) == sorted(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None, name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing


def test_a_misspelt_name_is_answered_with_the_one_that_is_meant():
    meant = {"DPSVY": "DPSVI", "privacy.advise": "advice", "models.logistics": "logistic"}
    for wrong, right in meant.items():
        done = run(f"import fedvi\nfedvi.{wrong}")
        assert f"Did you mean: '{right}'?" in done.stderr, done.stderr


def test_packages_come_with_the_first_import_and_jax_does_not():
    done = run(
        "import sys, fedvi\n"
        "for name in ('privacy', 'models', 'report'):\n"
        "    getattr(fedvi, name)\n"
        "assert 'fedvi.expfam' not in sys.modules, 'imported unasked'\n"
        "assert 'jax' not in sys.modules, 'jax'\n"
        "assert callable(fedvi.expfam.full_gaussian)\n"
        "assert callable(fedvi.privacy.sgd)\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
def test_a_type_checker_knows_every_public_name_and_refuses_a_misspelt_one(tmp_path):
    """`make lint` checks ``tests/typed_surface.py``; here mypy must also find what is wrong."""
    from mypy import api

    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "import fedvi\n"
        + "".join(f"fedvi.{name}\n" for name in fedvi.__all__)
        + "fedvi.DPSVY\n"
        + "reveal_type(fedvi.load_study)\n"
        + "reveal_type(fedvi.DPSVI)\n"
    )
    options = ["--config-file", str(ROOT / "pyproject.toml")]
    said, failed, code = api.run([*options, str(wrong)])
    assert not failed, failed
    assert code == 1
    errors = [line for line in said.splitlines() if " error: " in line]
    assert len(errors) == 1, said
    assert '"DPSVY"' in errors[0]
    assert 'def (path: str | pathlib.Path) -> fedvi.study.config.Study"' in said.replace(
        "builtins.", ""
    )
    assert "privacy: fedvi.privacy.descent.Descent" in said
