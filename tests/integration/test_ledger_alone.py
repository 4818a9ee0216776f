"""One data holder, several processes: none starts again with a fresh budget, and an auditor can look."""

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from click.testing import CliRunner
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

import fedvi
from fedvi import errors, models, privacy
from fedvi.cli.main import main
from fedvi.privacy import ledger, statement
from fedvi.store.sqlite import read_ledger

pytestmark = pytest.mark.numpyro

X = np.linspace(-1.0, 1.0, 40, dtype=np.float32)


def model(x):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("x", dist.Normal(a, 1.0), obs=x)


def planned(folder, **settings):
    usual = {"epsilon": 1.0, "delta": 1e-5, "steps": 3, "batch": 10, "max_records": 50, "runs": 2}
    keeper = None if folder is None else fedvi.LedgerFolder(folder)
    return privacy.sgd(**(usual | settings), ledger=keeper)


def descent(folder, **settings):
    optim = numpyro.optim.Adam(0.1)
    return fedvi.DPSVI(model, AutoNormal(model), optim, Trace_ELBO(), planned(folder, **settings))


def vips(folder, **settings):
    plan = planned(folder, sampler="full", batch=None, **settings)
    return fedvi.VIPS(models.linear(["slope"], noise_scale=1.0), plan)


def start_descent(fit):
    return fit.run(jax.random.key(0), 3, X, progress_bar=False)


def start_vips(fit):
    return fit.run({"x": X[:, None], "y": X}, progress_bar=False)


KINDS = pytest.mark.parametrize(
    ("make", "start", "method"), [(descent, start_descent, "init"), (vips, start_vips, "run")]
)


@pytest.mark.nightly(but=("vips-start_vips-run",))
@KINDS
def test_a_process_that_died_in_its_run_has_spent_it(tmp_path, make, start, method):
    """It dies after the charge and before a record is read: the next has one run left of two."""
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_ledger_alone as test
from fedvi.privacy.runs import Runs
honest = Runs.charge
def dying(self, *what):
    honest(self, *what)
    os._exit(9)
Runs.charge = dying
test.{start.__name__}(test.{make.__name__}({str(tmp_path / "spent")!r}))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 9, ended.stderr
    fit = make(tmp_path / "spent")
    start(fit)
    assert ledger.reservations(fit.ledger) == 2
    with pytest.raises(
        errors.BudgetExceeded, match=rf"{method} would be run 3 of the ledger in .*spent, expected"
    ):
        start(make(tmp_path / "spent"))
    assert ledger.spent(read_ledger(tmp_path / "spent")) == ledger.spent(fit.ledger)


@pytest.mark.nightly(but=("vips-start_vips-run",))
@KINDS
def test_the_charge_is_on_the_disk_before_a_record_is_read(tmp_path, make, start, method):
    """What hands the records over finds the run in the file, and nothing else does so earlier."""
    fit = make(tmp_path / "spent")
    name = "_columns" if method == "init" else "_shard"
    honest, seen = getattr(fit, name), []

    def watched(*given):
        seen.append(ledger.reservations(read_ledger(tmp_path / "spent")))
        return honest(*given)

    setattr(fit, name, watched)
    start(fit)
    assert seen == [1]


@pytest.mark.nightly(but=("vips-start_vips-run",))
@KINDS
def test_another_plan_is_refused_before_anything_is_charged(tmp_path, make, start, method):
    fit = make(tmp_path / "spent")
    start(fit)
    mine = fit.ledger.header.study_digest
    for other in ({"runs": 3}, {"epsilon": 2.0}, {"insecure_seed": 1}):
        theirs = make(None, **other)
        start(theirs)
        digest = theirs.ledger.header.study_digest
        with pytest.raises(
            errors.LedgerError,
            match=rf"with digest {mine[:16]}, expected that of '\w+' with digest {digest[:16]}",
        ):
            start(make(tmp_path / "spent", **other))
    assert ledger.reservations(read_ledger(tmp_path / "spent")) == 1


def test_a_model_with_more_numbers_is_another_plan(tmp_path):
    start_descent(descent(tmp_path / "spent"))
    with pytest.raises(errors.LedgerError, match=r"'dpsvi' with digest \w+, expected that of 'vi"):
        vips(tmp_path / "spent")


def test_a_simulation_stays_marked(tmp_path):
    fit = descent(tmp_path / "spent", insecure_seed=1)
    first, second = (start_descent(fit).params for _ in range(2))
    assert read_ledger(tmp_path / "spent").header.note == "simulation: no guarantee"
    assert "MARK: simulation: no guarantee" in told(fit)
    # The number of a run is that of all processes, so the second draws other noise than the first.
    assert not np.array_equal(first["a_auto_loc"], second["a_auto_loc"])
    again = descent(tmp_path / "again", insecure_seed=1)
    np.testing.assert_array_equal(start_descent(again).params["a_auto_loc"], first["a_auto_loc"])
    other = descent(tmp_path / "again", insecure_seed=1)
    np.testing.assert_array_equal(start_descent(other).params["a_auto_loc"], second["a_auto_loc"])


def told(fit):
    plan, book = fit.privacy, fit.ledger
    claims = statement.claims(
        book, book.header.planned, plan.delta, [plan.accountant], kept=plan.kept
    )
    return statement.to_text(claims)


def test_the_statement_names_the_folder_and_the_promise_is_that_of_all_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit = descent("spent")
    start_descent(fit)
    assert "the ledger in spent counts the runs of all processes; a copy of it counts" in told(fit)
    assert "epsilon 0.99" in told(fit)
    assert "1 releases reserved" in told(fit)
    alone = descent(None)
    start_descent(alone)
    assert "runs of all processes" not in told(alone)


@pytest.mark.nightly
def test_the_command_line_reads_it(tmp_path):
    start_descent(descent(tmp_path / "spent"))
    shown = CliRunner().invoke(main, ["ledger", "show", str(tmp_path / "spent")])
    assert shown.exit_code == 0, shown.output
    assert "run/0" in shown.output
    assert "dpsvi" in shown.output
    checked = CliRunner().invoke(
        main, ["ledger", "verify", str(tmp_path / "spent"), "--recompute"], env={"COLUMNS": "200"}
    )
    assert checked.exit_code == 0, checked.output
    assert "whole" in checked.output
    assert "kept" in checked.output


@pytest.mark.nightly
def test_steps_under_jit_charge_nothing_and_init_under_a_trace_is_refused(tmp_path):
    fit = descent(tmp_path / "spent")
    state = fit.init(jax.random.key(0), X)
    jax.jit(fit.update)(state, X)
    assert ledger.reservations(read_ledger(tmp_path / "spent")) == 1
    with pytest.raises(errors.PrivacyError, match="under a JAX transformation"):
        jax.jit(lambda key: fit.init(key, X))(jax.random.key(0))
    assert ledger.reservations(read_ledger(tmp_path / "spent")) == 1
