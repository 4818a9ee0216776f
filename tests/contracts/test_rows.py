"""A program that treats rows differently is refused before anything is charged, whoever runs it."""

import dataclasses
import functools
import importlib
import inspect
import itertools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Trace_ELBO, autoguide

import fedvi
from fedvi import errors, expfam, models
from fedvi.client.worker import Worker
from fedvi.expfam import tree
from fedvi.federation.messages import Done, Noted, Offer, Welcome
from fedvi.inference import blocks, clipping, per_record, rows_alike, solvers, svi_steps, weights
from fedvi.inference.svi_steps import Steps
from fedvi.inference.vips import VIPS
from fedvi.privacy import accountants, base, bounded, ledger, mechanisms, random, sampling
from fedvi.store.memory import MemoryClientStore
from fedvi.updates.base import Shard, Task
from tests.guides import WIDTH, linear_of
from tests.sensitivity import CASES, triangle_case, worst_moves

pytestmark = [pytest.mark.numpyro, pytest.mark.checks_rows]

# Modules that have the names of their solvers.
site_release, vips = (
    importlib.import_module(f"fedvi.inference.solvers.{name}") for name in ("site_release", "vips")
)

ROWS = 200
SAID = "fails its check on made-up records"
# Compiled programs are kept by settings, and a planted fault with them: no two tests share a clip norm.
CLIPS = (1.0 + number / 128.0 for number in itertools.count(1))


# Faults, each (monkeypatch) → None.


def rows_that_repeat(patch):
    """As jaxlib 0.10.2 did: row r of the first leaf holds what row r mod 31 should."""

    def gradients(*args):
        found = real(*args)
        first = found.parts[0]
        repeated = jax.tree.map(lambda part: part[jnp.arange(part.shape[0]) % 31], first.values)
        return found._replace(parts=(first._replace(values=repeated), *found.parts[1:]))

    real = per_record.gradients
    patch.setattr(per_record, "gradients", gradients)


def weights_by_place(patch):
    def found(records, limit, kind):
        return [
            part * (1.0 - 0.3 * (jnp.arange(part.size) % 2)) for part in real(records, limit, kind)
        ]

    real = clipping._weights
    patch.setattr(clipping, "_weights", found)


def a_loose_clip(patch):
    """A tenth above C."""

    def found(records, limit, kind):
        return [1.1 * part for part in real(records, limit, kind)]

    real = clipping._weights
    patch.setattr(clipping, "_weights", found)


def masked_rows_that_leak(patch):
    """A hundredth of a row's gradient enters the row after it, whether it counts or not."""

    def gradients(*args):
        found = real(*args)
        first = found.parts[0]
        leaked = first.values + 0.01 * jnp.roll(jnp.nan_to_num(first.values), 1, axis=0)
        return found._replace(parts=(first._replace(values=leaked), *found.parts[1:]))

    real = per_record.gradients
    patch.setattr(per_record, "gradients", gradients)


def a_row_that_always_counts(patch):
    def clipped(parts, clip_norm, kind, batch, *rest):
        always = batch.mask | (jnp.arange(batch.mask.shape[0]) == 5)
        return real(parts, clip_norm, kind, dataclasses.replace(batch, mask=always), *rest)

    real = svi_steps.clipped
    patch.setattr(svi_steps, "clipped", clipped)


PLANTED = (
    rows_that_repeat,
    weights_by_place,
    a_loose_clip,
    masked_rows_that_leak,
    a_row_that_always_counts,
)


def table(rows=ROWS):
    draw = np.random.default_rng(3).normal
    return draw(size=(rows, WIDTH)).astype(np.float32), draw(size=rows).astype(np.float32)


def fit(model=linear_of(WIDTH), guide=autoguide.AutoNormal, clip_norm=1.0, **options):  # noqa: B008
    plan = fedvi.privacy.sgd(
        steps=1, max_records=ROWS, sampler="full", noise_multiplier=2.0, delta=1e-5,
        clip_norm=clip_norm, insecure_seed=1, accountant="zcdp",
    )  # fmt: skip
    return fedvi.DPSVI(model, guide(model), numpyro.optim.SGD(1e-3), Trace_ELBO(), plan, **options)


def assert_nothing_was_charged(svi):
    with pytest.raises(errors.SolverError, match="there is no ledger before `init`"):
        _ = svi.ledger


@pytest.mark.parametrize("planted", PLANTED, ids=lambda plant: plant.__name__)
def test_a_descent_on_a_program_with_a_fault_is_refused_before_it_is_charged(monkeypatch, planted):
    svi = fit()
    planted(monkeypatch)
    with pytest.raises(errors.PrivacyError, match=SAID):
        svi.init(jax.random.key(0), *table())
    assert_nothing_was_charged(svi)


@pytest.mark.nightly
@pytest.mark.parametrize("planted", PLANTED[:4], ids=lambda plant: plant.__name__)
@pytest.mark.parametrize(
    "options",
    [
        {"clipping": "per_site"},
        {"clipping": "normalised"},
        {"gradients": "aligned"},
        {"microbatch_size": 64},
        {"loss_bound": 10.0},
    ],
    ids=str,
)
def test_a_fault_is_seen_whatever_a_descent_is_set_to(monkeypatch, planted, options):
    svi = fit(**options)
    planted(monkeypatch)
    with pytest.raises(errors.PrivacyError, match=SAID):
        svi.init(jax.random.key(0), *table())
    assert_nothing_was_charged(svi)


@pytest.mark.nightly
def test_the_fault_of_the_compiler_planted_back_moves_more_than_is_charged_where_it_is_not_checked(
    monkeypatch,
):
    rows_that_repeat(monkeypatch)
    found = worst_moves(triangle_case(20, 409, "full", checked=False))
    assert found["substitute"].share > 1.2
    assert found["add_remove"].share > 2.0


def test_a_model_to_which_no_made_up_record_contributes_is_refused_and_told_why():
    def model(x, y):
        numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Normal(x.sum(-1), 1.0), obs=y)

    svi = fit(model)
    with pytest.raises(errors.PrivacyError, match="no made-up record contributes") as refused:
        svi.init(jax.random.key(0), *table())
    assert "hint: the log likelihood must be finite" in str(refused.value)
    assert_nothing_was_charged(svi)


def test_what_the_check_of_a_descent_finds_does_not_depend_on_the_records():
    found = []
    for fill in (0.0, np.nan):
        svi = fit()
        x, y = (np.full_like(column, fill) for column in table())
        svi.init(jax.random.key(0), x, y)
        found.append(svi._finding._replace(seconds=0.0))
    assert found[0] == found[1]
    assert 0.9 < found[0].moved <= 1.0


def test_a_descent_without_protection_is_not_checked(monkeypatch):
    monkeypatch.setattr(Steps, "checked", mock.Mock(side_effect=AssertionError))
    plan = fedvi.privacy.sgd(steps=1, max_records=ROWS, sampler="full", noise_multiplier=0.0)
    model = linear_of(WIDTH)
    svi = fedvi.DPSVI(
        model, autoguide.AutoNormal(model), numpyro.optim.SGD(1e-3), Trace_ELBO(), plan
    )
    svi.init(jax.random.key(0), *table())


# Batches are whole groups of rows.


@pytest.mark.parametrize("rows", [1, 2, 63, 64, 65, 409])
def test_a_batch_that_is_no_whole_group_of_rows_is_filled_up(rows):
    batch = base.Batch(jnp.arange(rows), jnp.ones(rows, bool), sampling.full(rows))
    found = base.filled(batch)
    assert found.mask.shape == found.indices.shape == (-(-rows // 64) * 64,)
    assert int(found.mask.sum()) == rows
    np.testing.assert_array_equal(found.indices[:rows], batch.indices)


@pytest.mark.parametrize("sampler", sampling.__all__)
def test_every_step_of_a_descent_has_whole_groups_of_rows(monkeypatch, sampler):
    size = {} if sampler == "full" else {"batch": 50}
    plan = fedvi.privacy.sgd(
        steps=1, max_records=ROWS, sampler=sampler, noise_multiplier=2.0, delta=1e-5, insecure_seed=1,
        accountant="zcdp", **size,
    )  # fmt: skip
    steps = Steps(*[None] * 4, plan, *[None] * 8)
    batch = steps.batch(jax.random.key(0), [jnp.zeros(ROWS)])
    assert batch.mask.shape[0] % base.ROWS_TOGETHER == 0


# Solvers and `VIPS`.

NAMES = ("a", "b")
FULL = expfam.full_gaussian(len(NAMES))
PRIVATE = [
    name
    for name in solvers.__all__
    if "mechanism" in inspect.signature(getattr(solvers, name)).parameters
]
LINEAR = models.linear(NAMES, noise_scale=1.0)


def shard(rows=ROWS):
    x = np.random.default_rng(4).normal(size=(rows, len(NAMES))).astype(np.float32)
    return Shard({"x": x, "y": x.sum(1)}, np.ones(rows, bool))


def solver(make, **options):
    return make(
        FULL, LINEAR, sampler=sampling.full(ROWS), mechanism=mechanisms.rounded_gaussian(2.0),
        clip_norm=next(CLIPS), **options,
    )  # fmt: skip


def _repeated(patch, module, name):
    """The first of what a function returns, [B, …], has in row r what row r mod 31 should have."""

    def found(*args):
        first, *rest = real(*args)
        return (first[jnp.arange(first.shape[0]) % 31], *rest)

    real = getattr(module, name)
    patch.setattr(module, name, found)


def _scaled(patch, module, name):
    def found(block_sum, *args, **options):
        def larger(index):
            return jax.tree.map(lambda part: part * 1.1, block_sum(index))

        return real(larger, *args, **options)

    real = getattr(module, name)
    patch.setattr(module, name, found)


def _filled(patch):
    def filled(batch, multiple):
        found = real(batch, multiple)
        rows = jnp.arange(found.mask.shape[0]) % 31
        return dataclasses.replace(found, indices=found.indices[rows])

    real = vips.filled
    patch.setattr(vips, "filled", filled)


def _parts(patch, change):
    """What the sum of whole changes does with its rows; before it clips them, or after."""
    real = bounded._clipped_total
    patch.setattr(bounded, "_clipped_total", lambda flat, *rest: change(real, flat, *rest))


def _parts_repeated(patch):
    _parts(patch, lambda real, flat, *rest: real(flat[jnp.arange(flat.shape[0]) % 3], *rest))


def _parts_loose(patch):
    _parts(patch, lambda real, *given: real(*given) * 11 // 10)


OF_SOLVERS = {
    "site_release, repeated": (
        solvers.site_release,
        lambda patch: _repeated(patch, weights, "of_predictor"),
    ),
    "site_release, loose": (
        solvers.site_release,
        lambda patch: _scaled(patch, site_release, "float_sum"),
    ),
    "vips, repeated": (solvers.vips, _filled),
    "vips, loose": (solvers.vips, lambda patch: _scaled(patch, vips, "float_sum")),
    "dp_optimisation, loose": (solvers.dp_optimisation, a_loose_clip),
    "dp_optimisation, by place": (solvers.dp_optimisation, weights_by_place),
    "local_averaging, repeated": (solvers.local_averaging, _parts_repeated),
    "virtual_clients, loose": (solvers.virtual_clients, _parts_loose),
    "perturbed_update, loose": (solvers.perturbed_update, _parts_loose),
}


@pytest.mark.parametrize("name", OF_SOLVERS)
def test_a_solver_on_a_program_with_a_fault_is_refused(monkeypatch, name):
    make, planted = OF_SOLVERS[name]
    made = solver(make)
    planted(monkeypatch)
    with pytest.raises(errors.PrivacyError, match=SAID):
        made.check(shard())


def test_a_run_of_vips_on_a_program_with_a_fault_is_refused_before_it_is_charged(monkeypatch):
    plan = fedvi.privacy.sgd(
        steps=1, max_records=ROWS, sampler="full", noise_multiplier=2.0, delta=1e-5,
        clip_norm=next(CLIPS), insecure_seed=1, accountant="zcdp",
    )  # fmt: skip
    fitted = VIPS(LINEAR, plan)
    _filled(monkeypatch)
    with pytest.raises(errors.PrivacyError, match=SAID):
        fitted.run(shard().records, progress_bar=False)
    assert not fitted.ledger.entries


class OneTask:
    """A server with one task."""

    def __init__(self):
        prior = tree.to_numpy(FULL.isotropic(1.0))
        self.task = Task("north/0", "north", 0, 0, prior, FULL.zeros(), 1.0)
        self.received = []

    def handle(self, request):
        self.received.append(type(request).__name__)
        kinds = {"Hello": Welcome(0), "NextTask": Offer(self.task), "Failure": Noted()}
        return kinds.get(type(request).__name__, Done("finished"))


@pytest.mark.parametrize("is_laid_out", [True, False])
def test_a_worker_sends_nothing_where_its_solver_fails_the_check(monkeypatch, is_laid_out):
    made, server = solver(solvers.site_release), OneTask()
    _scaled(monkeypatch, site_release, "float_sum")
    header = ledger.Header("s", "d", "north", "record", "substitute", "message", True)
    worker = Worker(
        client="north",
        study_digest="d",
        link=server,
        solver=made,
        shard=shard,
        root=random.secure_root(),
        store=MemoryClientStore(ledger.open_ledger(header)),
        budget=ledger.Budget(100.0, 1e-5, accountants.pld("substitute")),
        layout=shard if is_laid_out else lambda: None,
    )
    with pytest.raises(errors.PrivacyError, match=SAID):
        worker.tick()
    # Where the form of records is not known before they are read, which is after a charge, one release
    # stays charged; it is never sealed, so nothing was sent.
    charged = [] if is_laid_out else ["reserved"]
    assert [entry.kind for entry in worker.ledger.entries] == charged
    assert "Submit" not in server.received


# What passes.


@dataclasses.dataclass
class NotHashable:
    """A mechanism from outside, of a class without a hash."""

    inner: object
    noise_multiplier: float = 2.0
    mark: str = ""

    def __getattr__(self, name):
        return getattr(self.inner, name)


@pytest.mark.parametrize("clip_norm", [1e-15, 1e10])
def test_changes_pass_at_any_clip_norm_and_with_a_mechanism_without_a_hash(clip_norm):
    made = solvers.perturbed_update(
        FULL, LINEAR, sampler=sampling.full(ROWS), clip_norm=clip_norm,
        mechanism=NotHashable(mechanisms.rounded_gaussian(2.0)),
    )  # fmt: skip
    made.check(shard())


OF_SHARDS = tuple(name for name in CASES if name.split(",")[0] in PRIVATE)


@pytest.mark.nightly(
    but=("site_release, logistic, 409", "dp_optimisation, low rank, 409", "vips, topics, 409")
)
@pytest.mark.parametrize("name", OF_SHARDS)
def test_every_solver_with_each_model_passes_its_check(name):
    case = CASES[name]
    made = case.totals()
    most = 64 if made._large else blocks.MOST_ROWS
    with mock.patch.object(blocks, "MOST_ROWS", most):
        assert made._solver.check is not None
        made._solver.check(Shard(case.table(case.capacity), np.ones(case.capacity, bool)))


class Sealed:
    """A column whose values may not be read."""

    def __init__(self, column):
        self.shape, self.dtype, self.ndim = column.shape, column.dtype, column.ndim

    def __len__(self):
        return self.shape[0]

    def _read(self, *_, **__):
        raise AssertionError("a record was read")

    __getitem__ = __iter__ = __array__ = __jax_array__ = __array_interface__ = _read


@pytest.mark.parametrize("make", PRIVATE)
def test_a_check_reads_nothing_of_the_records_but_dtypes_and_shapes(make):
    given = shard()
    sealed = Shard(
        {name: Sealed(column) for name, column in given.records.items()}, Sealed(given.mask)
    )
    solver(getattr(solvers, make)).check(sealed)


def test_a_layout_that_was_checked_is_not_checked_again(monkeypatch):
    made = solver(solvers.site_release)
    made.check(shard())
    monkeypatch.setattr(rows_alike, "check", mock.Mock(side_effect=AssertionError("again")))
    made.check(shard())
    with pytest.raises(AssertionError, match="again"):
        solver(solvers.site_release).check(shard())


COLUMNS = (jax.ShapeDtypeStruct((2,), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32))


@pytest.mark.parametrize("rows", [1, 2, 64, 192, 1_000])
def test_rows_at_both_ends_are_tried_alone_and_every_pair_of_rows_is_told_apart(rows):
    records, alone = rows_alike.catalogue(COLUMNS), set()
    apart = np.eye(rows, dtype=bool)
    for probe in rows_alike.probes(rows, records):
        assert probe.choices.shape == probe.masks.shape == (2, rows)
        assert probe.choices.max() < records.number
        if probe.masks[0].sum() == probe.masks[1].sum() == 1:
            alone.add(int(probe.masks[1].argmax()))
        counts = probe.masks[0]
        if (probe.masks[0] == probe.masks[1]).all():
            apart |= counts[:, None] & ~counts[None, :]
    assert {min(1, rows - 1), rows // 2, rows - 1} <= alone
    assert apart.all()


@functools.lru_cache
def _compiled_sum():
    return jax.jit(lambda choice, mask: jnp.where(mask, choice + 1, 0).sum())


def test_a_sum_of_whole_numbers_passes_and_one_that_reads_a_neighbour_does_not():
    def totals(choices, masks):
        return np.stack([_compiled_sum()(*pair) for pair in zip(choices, masks, strict=True)])

    records = rows_alike.catalogue(COLUMNS)
    found = rows_alike.check(totals, 128, records, 200.0, "a sum")
    assert 0.0 < found.moved <= 1.0

    def wrong(choices, masks):
        return totals(choices, masks) + (choices[:, 70] % 2)

    with pytest.raises(errors.PrivacyError, match=f"a sum {SAID}: "):
        rows_alike.check(wrong, 128, records, 200.0, "a sum")
