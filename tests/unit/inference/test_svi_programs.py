"""The programs that `DPSVI` compiles: what they keep, form and draw; draws that are averaged."""

import jax
import numpy as np
import numpyro
import pytest
from autoencoders import dense_vae
from numpyro.infer import SVI, Trace_ELBO, autoguide

from fedvi.inference import per_record
from fedvi.inference import svi as descents
from fedvi.inference.svi import DPSVI
from tests.unit.inference.test_svi import N, assert_same, logistic, nothing, private, table

pytestmark = pytest.mark.numpyro


def fit(plan=None, draws=1, **options):
    guide = autoguide.AutoDiagonalNormal(logistic)
    loss = Trace_ELBO(num_particles=draws)
    return DPSVI(
        logistic, guide, numpyro.optim.Adam(0.05), loss, plan or private(insecure_seed=1), **options
    )


@pytest.mark.nightly
def test_a_progress_bar_changes_neither_parameters_nor_losses(monkeypatch, capsys):
    """Its chunks, here 2, 2, 2 and 1 of 7 steps, are other programs than one of 7."""
    monkeypatch.setattr(descents, "_MOST_TOGETHER", 2)
    bare, barred = (
        fit(loss_bound=2.0).run(jax.random.key(1), 7, *table(), progress_bar=shown)
        for shown in (False, True)
    )
    assert "7/7" in capsys.readouterr().err
    assert bare.losses.shape == barred.losses.shape == (7,)
    np.testing.assert_allclose(barred.losses, bare.losses, rtol=1e-5)
    assert_same(barred.params, bare.params, rtol=1e-5)
    assert int(barred.state.step) == 7


def scanned(ours, steps):
    """A descent's state and columns, ready for `_scan` of so many steps drawn together."""
    data = table()
    state = ours.init(jax.random.key(1), *data)
    columns = [jax.numpy.asarray(column) for column in data]
    ours._together(state, columns, False)
    return state, columns, steps, steps, False


def test_a_scan_takes_its_state_s_memory_for_the_next():
    ours = fit()
    given = scanned(ours, 4)
    text = ours._scan.lower(*given).as_text()
    leaves = len(jax.tree.leaves(given[0]))
    assert leaves > 4
    # But for keys: what is donated is what comes back in the same shape and type.
    assert text.count("tf.aliasing_output") + text.count("jax.buffer_donor") == leaves


def equations(program):
    for equation in program.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else [value]:
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


def draws(program):
    return [e for e in equations(program) if e.primitive.name.startswith(("random_", "threefry"))]


def test_steps_that_are_taken_together_draw_nothing_each():
    """All draws, of batches, noise and the guide, are made for all of them before."""
    ours = fit()
    state, columns, *static = scanned(ours, 4)
    program = jax.make_jaxpr(lambda s, c: ours._many_steps(s, c, *static))(state, columns).jaxpr
    carried = len(jax.tree.leaves(state.optim_state))
    steps = [
        equation.params["jaxpr"].jaxpr
        for equation in equations(program)
        if equation.primitive.name == "scan"
        and equation.params["num_carry"] == carried
        and equation.params["length"] == 4
    ]
    assert len(steps) == 1
    assert draws(program)
    assert not draws(steps[0])


@pytest.mark.nightly(but=("aligned",))
@pytest.mark.parametrize("kind", ["aligned", "dense"])
def test_gradients_of_dense_layers_are_not_formed(kind, monkeypatch):
    formed = []
    gradients = per_record.gradients

    def watched(*given):
        records = gradients(*given)
        formed.append((records.size, records.spared))
        return records

    monkeypatch.setattr(per_record, "gradients", watched)
    if kind == "aligned":
        ours, data = fit(gradients="aligned"), table()
        expected = (3, 3)
    else:
        model, guide = dense_vae(12, hidden=5, latent=3)
        ours = DPSVI(model, guide, numpyro.optim.Adam(0.01), Trace_ELBO(), private())
        data = ((np.random.default_rng(0).random((N, 12)) < 0.4).astype(np.float32),)
        kernels, biases = 12 * 5 + 2 * 5 * 3 + 3 * 5 + 5 * 12, 5 + 3 + 3 + 5 + 12
        expected = (kernels + biases, kernels)
    state = ours.init(jax.random.key(1), *data)
    ours._step.lower(state, [jax.numpy.asarray(column) for column in data], False)
    assert set(formed) == {expected}


@pytest.mark.nightly
@pytest.mark.parametrize("gradients", ["full", "aligned"])
def test_several_draws_are_averaged_but_aligned_gradients_take_one(gradients):
    """The aligned likelihood was taken at one draw, and prior and entropy at five others."""
    theirs = SVI(
        logistic,
        autoguide.AutoDiagonalNormal(logistic),
        numpyro.optim.Adam(0.05),
        Trace_ELBO(num_particles=5 if gradients == "full" else 1),
    )
    expected = theirs.run(jax.random.key(1), 3, *table(), progress_bar=False)
    ours = fit(nothing(), draws=5, gradients=gradients, loss_bound=1e4)
    found = ours.run(jax.random.key(1), 3, *table(), progress_bar=False)
    assert_same(found.params, expected.params, rtol=1e-4)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-4)
