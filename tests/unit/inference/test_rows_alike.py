"""The check before a charge runs what a run will run, and finds rows that are mixed up or treated apart."""

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpyro.infer import Trace_ELBO, autoguide

import fedvi
from fedvi import errors
from fedvi.inference import rows_alike, svi_steps

pytestmark = [pytest.mark.numpyro, pytest.mark.checks_rows]
SHAPES = [jax.ShapeDtypeStruct((3,), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)]
RECORDS = rows_alike.catalogue(SHAPES)
UNIT = 1000.0


def values(choices):
    """A whole number a record, up to the unit: what an honest program adds for it."""
    return np.linspace(-UNIT, UNIT, RECORDS.number).round().astype(np.int64)[choices]


def honest(choices, masks):
    return (values(choices) * masks).sum(axis=1)[:, None]


def shifted(choices, masks):
    """As jaxlib 0.10.2: a row's number is that of another row."""
    rows = np.arange(choices.shape[1])
    return (values(choices)[:, np.where(rows < 200, rows, rows % 31)] * masks).sum(axis=1)[:, None]


def left_over(choices, masks):
    """Rows beyond groups of eight are computed otherwise."""
    off = np.arange(choices.shape[1]) >= choices.shape[1] // 8 * 8
    return ((values(choices) - off) * masks).sum(axis=1)[:, None]


def counting(choices, masks):
    """Rows that do not count have a say."""
    return honest(choices, masks) + (values(choices) * ~masks).sum(axis=1)[:, None] // 500


def too_long(choices, masks):
    return honest(choices, masks) * 11 // 10


def silent(choices, masks):
    return np.zeros((2, 1), np.int64)


@pytest.mark.parametrize("one", [np.float16, np.float32, np.float64, np.int8, np.int64, np.bool_])
@pytest.mark.parametrize("other", [np.float16, np.float32, np.float64])
def test_records_of_any_dtypes_are_made_up_without_a_warning(one, other):
    valid = [[np.ones(2, other), np.ones((), one)]]
    shapes = [jax.ShapeDtypeStruct((2,), one), jax.ShapeDtypeStruct((), other)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = rows_alike.catalogue(shapes, valid)
    assert [column.dtype for column in made.columns] == [one, other]
    assert np.isfinite(made.columns[1][: made.finite].astype(float)).all()


def check(totals, rows):
    return rows_alike.check(totals, rows, RECORDS, UNIT, "the program")


@pytest.mark.parametrize("rows", [1, 2, 63, 64, 65, 409, 1000])
def test_a_program_that_adds_up_rows_passes(rows):
    found = check(honest, rows)
    assert found.probes >= (1 if rows == 1 else 8)
    assert 0.9 < found.moved <= 1.0


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (shifted, "row|rows that do not count"),
        (left_over, "a record contributes otherwise in row 408"),
        (counting, "one record contributes|rows that do not count change"),
        (too_long, r"one record contributes 1\.\d+ clip norms"),
        (silent, "no made-up record contributes anything"),
    ],
)
def test_a_program_that_breaks_an_assumption_is_refused(program, says):
    with pytest.raises(errors.PrivacyError, match=says):
        check(program, 409)


@given(groups=st.integers(1, 40), seed=st.integers(0, 2**32 - 1))
def test_a_row_that_gets_any_other_rows_number_is_found(groups, seed):
    """Of all pairs of rows of whole groups, whichever they are."""
    rows = 64 * groups
    reader, read = np.random.default_rng(seed).choice(rows, 2, replace=False)

    def mixed(choices, masks):
        found = values(choices)
        found[:, reader] = found[:, read]
        return (found * masks).sum(axis=1)[:, None]

    with pytest.raises(errors.PrivacyError, match="fails its check on made-up records"):
        check(mixed, rows)


def regression(x, y):
    b = numpyro.sample("b", dist.Normal(0, 2.5).expand([6]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)


def kernels(text, rows):
    """Computations that hold batches, without names, sizes of loops and other notes."""
    found = set()
    for block in text.split("\n\n"):
        plain = re.sub(r"metadata=\{[^}]*\}|backend_config=\{.*?\}(?=[ ,\n]|$)", "", block)
        plain = re.sub(r"%[\w.\-]+", "%", re.sub(r"param_[\d.]+", "p", plain))
        plain = re.sub(r"\b(2|40),(?=\d)", "T,", re.sub(r"\s+", " ", plain)).strip()
        if plain.startswith("%") and f"{rows}" in plain:
            found.add(plain)
    return found


@pytest.mark.nightly
def test_the_check_compiles_the_kernels_that_a_run_compiles(monkeypatch):
    """All that hold rows of a batch, but those that fetch rows of the table, shorter in the check."""
    rows, kept, jit = 1000, {}, jax.jit
    x = np.random.default_rng(0).normal(size=(rows, 6)).astype(np.float32)
    columns = [jnp.asarray(x), jnp.asarray(x[:, 0])]

    def keeping(function, *args, **kwargs):
        compiled = jit(function, *args, **kwargs)
        if function.__name__ != "totals":
            return compiled

        def call(*arguments):
            if "check" not in kept:
                kept["check"] = compiled.lower(*arguments).compile().as_text()
            return compiled(*arguments)

        return call

    plan = fedvi.privacy.sgd(
        epsilon=1.0, delta=1e-6, steps=40, max_records=rows, sampler="full", insecure_seed=1
    )
    guide = autoguide.AutoMultivariateNormal(regression)
    svi = fedvi.DPSVI(regression, guide, numpyro.optim.Adam(1e-3), Trace_ELBO(), plan)
    with monkeypatch.context() as patched:
        patched.setattr(svi_steps.jax, "jit", keeping)
        state = svi.init(jax.random.key(0), *columns)
    together = svi._together(state, columns, False)
    assert together >= 40
    kept["run"] = svi._scan.lower(state, columns, 40, 40, False).compile().as_text()
    checked, ran = (kernels(kept[which], 1024) for which in ("check", "run"))
    others = {
        one for one in ran - checked if not re.search(r"gather|iota|tuple|broadcast\(%\),", one)
    }
    assert others == set()
    assert len(ran & checked) >= 8
