"""How far one record moves what enters the noise, beside what is charged for it: every way to a release.

``CASES`` lists the ways: each takes tables made as bad as they can be, and gives totals in whole steps of
the grid. ``python -m tests.sensitivity`` prints the worst move ÷ charge of each.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from flax import linen
from numpyro.contrib.module import flax_module
from numpyro.infer import Trace_ELBO, autoguide

import fedvi
from fedvi import expfam, models
from fedvi.audit.recording import Recorder
from fedvi.expfam import tree
from fedvi.inference import blocks, compiler, solvers
from fedvi.inference.clipping import longest_part
from fedvi.inference.svi_steps import Steps
from fedvi.inference.units import unit_model
from fedvi.inference.vips import VIPS
from fedvi.models.lda import LatentDirichlet
from fedvi.privacy import events, mechanisms, random, sampling
from fedvi.privacy.base import Batch
from fedvi.privacy.sampling.feistel import Feistel
from fedvi.typing import IDS, ROWS
from fedvi.updates.base import Shard, Task
from fedvi.updates.coordinates import Coordinates, Foreseen
from tests import guides

__all__ = [
    "CASES",
    "CHOSEN",
    "FACTORS",
    "GUIDE_CASES",
    "TRIANGLE_CASES",
    "Case",
    "Move",
    "is_possible",
    "odd_rows",
    "places",
    "shift",
    "triangle_case",
    "unchecked",
    "wide_odd",
    "wide_table",
    "worst",
    "worst_moves",
]

NAMES = ("a", "b")
SIZE = len(NAMES)
CLIP = 1.0
# Coordinates, and outcomes, of the records that come and go.
_ODD = (0.0, 1.0, -1.0, 1e-45, 1e-38, 1e-30, 1e6, -1e19, 3e38, np.nan, np.inf)

Table = dict[str, np.ndarray]
Totals = Callable[[Table, np.ndarray], list[np.ndarray]]
"""Records at capacity, and which rows stand → what enters the noise of each release, in clip norms."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One way from records to a release.

    Attributes:
      name: what it is.
      totals: see ``Totals``; made when it is first asked for, and compiled then.
      event: of one release, whose shift is what is charged.
      table: a full table of ``capacity`` equal records, which are all clipped, and so all parallel.
      odd: other records to put in the place of one: tables of one row; the last one points the other way.
      capacity: how many slots there are.
      records: how many of them hold a record; None for all.
      by_slot: whether a key picks the slots that are read: then a record keeps its slot.
      holes: whether any slot may be empty, not the last ones alone.
      relations: those that are priced.
      blocks: lengths of parts in which its batches are processed, beside those of float sums.
      extreme: how many of ``odd``, from the end, are tried in every place; the others in three.
    """

    name: str
    totals: Callable[[], Totals]
    event: events.Event
    table: Callable[[int], Table]
    odd: Callable[[], list[Table]]
    capacity: int
    records: int | None = None
    by_slot: bool = False
    holes: bool = True
    relations: tuple[events.Relation, ...] = events.RELATIONS
    blocks: tuple[int, ...] = ()
    extreme: int = 2


def shift(event: events.Event, relation: events.Relation) -> float:
    """Returns the move that an event pays for, in clip norms."""
    while not isinstance(event, events.Gaussian | events.DiscreteGaussian):
        event = event.inner
    return float(getattr(event, relation))


def places(rows: int, *blocks: int) -> list[int]:
    """Returns the rows of a batch that a program may treat apart, in order.

    These are the first and last ones of the batch, of groups of 8, 32 and 64 rows, and of blocks, and one
    in the middle.

    Args:
      rows: of the batch.
      blocks: lengths of parts in which it is processed. Float sums have their own, which are included.
    """
    whole = -(-rows // 64) * 64
    known = {0, 1, 7, 8, 31, 32, 63, 64, rows // 2}
    known |= {rows - back for back in (65, 64, 9, 8, 2, 1)}
    for block in {longest_part(rows), longest_part(whole), *blocks}:
        # The first, second and last boundary: blocks between them are processed in one loop.
        for start in {block, 2 * block, (rows - 1) // block * block}:
            known |= {start - 1, start, start + 1}
    return sorted(place for place in known if 0 <= place < rows)


class Move(NamedTuple):
    """The largest move ÷ charge that was found, the row, and how the neighbour differed there."""

    share: float
    place: int
    how: str


def worst(case: Case) -> dict[str, float]:
    """Returns the largest move ÷ charge under each relation, over all neighbours that are tried."""
    return {relation: found.share for relation, found in worst_moves(case).items()}


def worst_moves(case: Case, totals: Totals | None = None) -> dict[str, Move]:
    """Returns the largest move ÷ charge under each relation, and where it was found.

    Args:
      case: what is tried.
      totals: of ``case``; made here if left out.
    """
    totals, count = totals or case.totals(), case.records or case.capacity
    slots = np.arange(case.capacity)
    full = slots < count
    table = {name: _cleared(column, full) for name, column in case.table(case.capacity).items()}
    found = dict.fromkeys(case.relations, Move(0.0, 0, ""))
    odd = case.odd()
    extreme = odd[-case.extreme :]

    def compare(
        relation: events.Relation, one: list[np.ndarray], other: list[np.ndarray], at: int, how: str
    ) -> None:
        charged = shift(case.event, relation)
        for a, b in zip(one, other, strict=True):
            share = float(np.linalg.norm(a - b)) / charged
            share = math.inf if math.isnan(share) else share
            if share > found[relation].share:
                found[relation] = Move(share, int(at), how)

    picked = getattr(totals, "picked", None)
    # Places are rows of a batch; in slots that a key picks, those of the slots in its rows.
    order = slots[:count] if picked is None else picked(count)
    tried = [int(order[place]) for place in places(len(order), *case.blocks)]
    if "substitute" in found:
        everywhere = {int(order[place]) for place in (0, len(order) // 2, -1)}
        with _replayed(totals, table, full) as whole:
            for place in tried:
                for row in odd if place in everywhere else extreme:
                    changed = {
                        name: _with(column, place, row[name]) for name, column in table.items()
                    }
                    compare("substitute", whole, totals(changed, full), place, "substituted")
    if "add_remove" not in found:
        return found
    if not case.by_slot:
        # Where all are equal it does not show who moves up as one leaves: here every second one is another.
        mixed = {name: _alternating(column, odd[-1][name], name) for name, column in table.items()}
        mixed = {name: _cleared(column, full) for name, column in mixed.items()}
        fewer = full & (slots != count - 1)
        bare = {name: _cleared(column, fewer) for name, column in mixed.items()}
        with _replayed(totals, bare, fewer) as less:
            first = {
                name: np.concatenate([odd[0][name], column[: count - 1], column[count:]])
                for name, column in bare.items()
            }
            compare("add_remove", less, totals(first, full), 0, "first of others")
        with _replayed(totals, mixed, full) as whole:
            for place in tried:
                # Those after it move up as it leaves.
                without = {name: _without(column, place, count) for name, column in mixed.items()}
                compare("add_remove", whole, totals(without, fewer), place, "left")
    elif isinstance(totals, _OfSteps):
        mixed = {name: _alternating(column, odd[-1][name], name) for name, column in table.items()}
        whole = totals.without(mixed, count, None)
        for place in tried:
            compare("add_remove", whole, totals.without(mixed, count, place), place, "left")
    # In slots that a key picks each record stays where it is, and some of those left are in the batch.
    gaps = tried if case.by_slot and case.holes else [count - 1]
    for gap in gaps:
        fewer = full & (slots != gap)
        bare = {name: _cleared(column, fewer) for name, column in table.items()}
        with _replayed(totals, bare, fewer) as less:
            few = gap not in (tried[0], tried[-1]) and len(gaps) > 1
            for row in [_row(table), *(extreme if few else odd)]:
                grown = {name: _with(column, gap, row[name]) for name, column in bare.items()}
                compare("add_remove", less, totals(grown, full), gap, "came")
            if not case.by_slot:
                # One that stood before all others, which move up as it leaves.
                for row in odd:
                    first = {
                        name: np.concatenate([row[name], column[:gap], column[gap + 1 :]])
                        for name, column in bare.items()
                    }
                    compare("add_remove", less, totals(first, full), 0, "first")
    return found


def odd_rows(seed: int = 0, count: int = 24) -> list[Table]:
    """Returns records of a regression whose numbers are huge, tiny, near 0, or none."""
    generator = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        x, y = generator.choice(_ODD, (1, SIZE)), generator.choice(_ODD, 1)
        rows.append({"x": x.astype(np.float32), "y": y.astype(np.float32)})
    straight = np.array([[3.0, 4.0]], np.float32)
    for sign in (1.0, -1.0):
        rows.append({"x": sign * straight, "y": np.array([0.0], np.float32)})
        rows.append({"x": sign * straight, "y": np.array([1e4], np.float32)})
    return rows


def _parallel(capacity: int) -> Table:
    x = np.tile(np.array([3.0, 4.0], np.float32), (capacity, 1))
    return {"x": x, "y": np.full(capacity, 1e4, np.float32)}


def _named(table: Callable[[int], Table]) -> Callable[[int], Table]:
    def with_ids(capacity: int) -> Table:
        return {**table(capacity), IDS: np.arange(capacity, dtype=np.uint64)}

    return with_ids


def _odd_named() -> list[Table]:
    rows = odd_rows(count=6)
    # That turn what all other records of a part say.
    for y in (1e7, -1e7):
        rows.append({"x": np.array([[3.0, 4.0]], np.float32), "y": np.array([y], np.float32)})
    return [{**row, IDS: np.array([2**40 + at], np.uint64)} for at, row in enumerate(rows)]


def _trials(capacity: int) -> Table:
    return {**_parallel(capacity), "y": np.tile(np.float32([1e4, 0.0]), (capacity, 1))}


def _odd_trials() -> list[Table]:
    """Records whose curvature, which grows with their trials, is beyond float32 beside x near 0."""
    return [
        {"x": np.array([x], np.float32), "y": np.array([y], np.float32)}
        for x in ([0.0, 0.0], [1e-30, 0.0], [1e-38, 1.0], [3.0, 4.0])
        for y in ([0.0, 3e38], [3e38, 3e38], [1.0, np.inf], [0.0, 1e4])
    ]


def _odd_counts() -> list[Table]:
    return [
        *({"x": row["x"], "y": row["y"][:, 0]} for row in _odd_trials()),
        *({"x": row["x"], "y": row["y"][:, 1]} for row in _odd_trials()),
        *odd_rows(count=0),
    ]


def _patients(capacity: int) -> Table:
    """Two rows each that point the same way, and odd numbers in a third that does not stand."""
    x = np.tile(np.float32([3, 4]), (capacity, 3, 1))
    y = np.full((capacity, 3), 1e4, np.float32)
    x[:, 2], y[:, 2] = np.nan, np.inf
    return {"x": x, "y": y, ROWS: np.tile([True, True, False], (capacity, 1))}


def _odd_patients() -> list[Table]:
    found = []
    for stands in ([1, 1, 0], [1, 0, 0], [0, 0, 0], [0, 1, 0], [1, 1, 1]):
        mask = np.array([stands], bool)
        for bad in (np.nan, np.inf, 1e30, 1e-45):
            x, y = np.full((1, 3, 2), bad, np.float32), np.full((1, 3), bad, np.float32)
            found.append({"x": x, "y": y, ROWS: mask})
            x, y = x.copy(), y.copy()
            x[mask], y[mask] = -np.float32([3, 4]), 1e4
            found.append({"x": x, "y": y, ROWS: mask})
    return found


def _levels(capacity: int) -> Table:
    return {"x": np.full((capacity, 1), 5, np.float32), "y": np.ones(capacity, np.float32)}


def _odd_levels() -> list[Table]:
    values = ((x, y) for x in (*_ODD, -5.0) for y in (0.0, 1.0, 7.0, np.nan))
    return [{"x": np.float32([[x]]), "y": np.float32([y])} for x, y in values]


def _times(capacity: int) -> Table:
    return {
        "x": np.full((capacity, 1), 5, np.float32),
        "y": np.tile(np.float32([1e4, 1.0]), (capacity, 1)),
    }


def _odd_times() -> list[Table]:
    values = ((x, t) for x in (*_ODD, -5.0) for t in (0.0, 1e-30, 1.0, 1e30, np.nan, np.inf))
    return [
        {"x": np.float32([[x]]), "y": np.float32([[t, d]])} for x, t in values for d in (0.0, 1.0)
    ]


def _documents(capacity: int) -> Table:
    words = np.tile(np.array([0, 1, 0, 0], np.int32), (capacity, 1))
    return {"words": words, "counts": np.tile(np.float32([900.0, 1.0, 0.0, 0.0]), (capacity, 1))}


def _odd_documents() -> list[Table]:
    counts = ([0, 0, 0, 0], [1, 0, 0, 0], [5e5, 5e5, 5e5, 5e5], [0, 0, 0, 3])
    words = np.array([[0, 1, 2, 3]], np.int32)
    return [{"words": words, "counts": np.array([row], np.float32)} for row in counts]


def _alternating(column: np.ndarray, other: np.ndarray, name: str) -> np.ndarray:
    changed = column.copy()
    if name != IDS:
        changed[::2] = other[0]
    return changed


def _row(table: Table) -> Table:
    return {name: column[:1] for name, column in table.items()}


def _with(column: np.ndarray, place: int, row: np.ndarray) -> np.ndarray:
    changed = column.copy()
    changed[place] = row[0]
    return changed


def _without(column: np.ndarray, place: int, count: int) -> np.ndarray:
    """Returns a column whose first ``count`` rows lack one, and end with a row of zeros."""
    gone = np.delete(column, place, axis=0)
    return np.insert(gone, count - 1, np.zeros_like(column[0]), axis=0)


def _cleared(column: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return np.where(mask.reshape(-1, *[1] * (column.ndim - 1)), column, np.zeros_like(column))


@contextlib.contextmanager
def _replayed(totals: Totals, table: Table, mask: np.ndarray) -> Iterator[list[np.ndarray]]:
    """Yields a table's totals; as long as it lasts, others are taken after the same released values."""
    first = totals(table, mask)
    with getattr(totals, "after", contextlib.nullcontext)():
        yield first


# Solvers, by the shard that a federated client gives them.


class _OfSolver:
    """Runs a solver whose mechanism writes down what enters it, always with the same keys.

    After a first run, releases of later ones have the first one's values, so that every step of a solver
    of several is compared at the same transcript.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        mechanism: Any,
        family: Any,
        posterior: Any,
        large: bool,
        at: Coordinates | None,
    ) -> None:
        self._recorder = Recorder(mechanism)
        self._solver = make(mechanism=self._recorder)
        self._family, self._posterior, self._large, self._at = family, posterior, large, at
        self._script: Any = ()

    def __call__(self, table: Table, mask: np.ndarray) -> list[np.ndarray]:
        family, posterior = self._family, self._posterior
        task = Task("c/0", "c", 0, 0, posterior, family.zeros(), 1.0, self._at)
        keys = functools.partial(random.insecure_root(0).key, "c", task.task_id)
        # A solver adds up blocks of rows above so many records.
        most = 64 if self._large else blocks.MOST_ROWS
        with mock.patch.object(blocks, "MOST_ROWS", most):
            self._recorder.start(self._script)
            self._solver.update(keys, self._solver.init(posterior), task, Shard(table, mask))
            self._calls = self._recorder.stop()
        return [call.total * (call.layout.step / CLIP) for call in self._calls]

    @contextlib.contextmanager
    def after(self) -> Iterator[None]:
        self._script = tuple(self._calls)
        yield
        self._script = ()


FULL = expfam.full_gaussian(SIZE)
LINEAR = models.linear(NAMES, noise_scale=1.0)
SURVEYED = models.linear(("(Intercept)", "b"), noise_scale=1.0)
# Columns far from even, which no survey would come to.
AT = Coordinates(np.array([0.0, 3.0]), np.array([0.5, 40.0]), 0)

_INTERCEPT = ("(Intercept)", "b")
OF_OUTCOMES: dict[str, dict[str, Any]] = {
    "noise": {
        "model": models.linear(_INTERCEPT, noise_scale="learn"),
        "foreseen": Foreseen(20, 1, 10**6, most=1.0),
    },
    "exposed": {
        "model": models.poisson(_INTERCEPT, offset=True),
        "foreseen": Foreseen(20, 1, 10**6, most=50.0, exposed=2.0),
        "table": _trials,
        "odd": _odd_trials,
    },
}


def _solver_case(
    name: str,
    make: Callable[..., Any],
    capacity: int,
    *,
    sampler: Any = None,
    mechanism: Any = None,
    family: Any = FULL,
    prior: Any = None,
    large: bool = False,
    table: Callable[[int], Table] = _parallel,
    odd: Callable[[], list[Table]] = odd_rows,
    at: Coordinates | None = None,
    **options: Any,
) -> Case:
    sampler = sampler or sampling.full(capacity)
    mechanism = mechanism or mechanisms.rounded_gaussian(2.0)
    posterior = tree.to_numpy(family.isotropic(1.0)) if prior is None else prior
    built = functools.partial(make, family, sampler=sampler, **{"clip_norm": CLIP, **options})
    return Case(
        f"{name}, {capacity:,}",
        lambda: _OfSolver(built, mechanism, family, posterior, large, at),
        built(mechanism=mechanism).cost,
        table,
        odd,
        capacity,
        by_slot=sampler.rate < 1.0,
        relations=("substitute",) if isinstance(sampler, Feistel) else events.RELATIONS,
    )  # fmt: skip


# DPSVI, by the bounded sum of one step.


def _regression(x: Any, y: Any) -> None:
    b = numpyro.sample("b", dist.Normal(0.0, 2.0).expand([SIZE]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)


class _Net(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        return linen.Dense(1)(jnp.tanh(linen.Dense(3)(x)))[..., 0]


def _network(x: Any, y: Any) -> None:
    net = flax_module("net", _Net(), input_shape=(1, SIZE))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(net(x), scale), obs=y)


class _OfSteps:
    """One step of a `DPSVI` that is given the records that stand, and no other rows."""

    def __init__(
        self,
        model: Any,
        plan: Any,
        guide: Callable[[Any], Any] = autoguide.AutoNormal,
        table: Callable[[int], Table] | None = None,
        checked: bool = True,
        **options: Any,
    ) -> None:
        self._made = functools.lru_cache(lambda rows: self._prepared(rows))
        self._model, self._plan, self._guide, self._options = model, plan, guide, options
        self._table, self._checked = table or _parallel, checked
        self._secret: Any = None

    def _prepared(self, rows: int) -> Any:
        optim = numpyro.optim.SGD(1.0)
        guide = self._guide(self._model)
        svi = fedvi.DPSVI(self._model, guide, optim, Trace_ELBO(), self._plan, **self._options)
        first = {name: column[:rows] for name, column in self._table(rows).items()}
        with contextlib.nullcontext() if self._checked else unchecked():
            state = svi.init(jax.random.key(0), *first.values())
        # Its sizes follow from the plan, not from the number of records.
        self._checked = False
        params = svi.optim.get_params(state.optim_state)
        steps: list[float] = []

        def total(secret: Any, columns: Any) -> Any:
            batch, places, _ = known.drawn(secret, columns)
            bounded = known.bounded(params, state.rng_key, columns, batch, places)
            steps.append(1.0 if bounded.grid is None else bounded.grid.step)
            return bounded.total, batch.indices, batch.mask, places

        def given(columns: Any, indices: Any, mask: Any, places: Any) -> Any:
            batch = Batch(indices, mask, self._plan.sampler)
            return known.bounded(params, state.rng_key, columns, batch, places).total

        columns = [jnp.asarray(column) for column in first.values()]
        known, compiled = svi._known_steps(state, columns), jax.jit(total)
        if self._secret is None:
            # One whose batch has the last record, so that it can leave.
            secrets = (jax.random.fold_in(state.noise_key[0], number) for number in range(100))
            self._secret = next(
                secret
                for secret in secrets
                if rows - 1 in _counting(*compiled(secret, columns)[1:3])
            )
        return compiled, steps, self._secret, jax.jit(given)

    def __call__(self, table: Table, mask: np.ndarray) -> list[np.ndarray]:
        rows = int(mask.sum())
        total, steps, secret, _ = self._made(rows)
        found, *_ = total(secret, [column[mask] for column in table.values()])
        return [_flat(found) * (steps[0] / CLIP)]

    def picked(self, rows: int) -> np.ndarray:
        """Returns the slots of a batch that count, in its order."""
        total, _, secret, _ = self._made(rows)
        _, *batch, _ = total(secret, [column[:rows] for column in self._table(rows).values()])
        return _counting(*batch)

    def without(self, table: Table, rows: int, slot: int | None) -> list[np.ndarray]:
        """Returns the sum of a batch of which one record has left the table; None for the batch itself.

        All others are drawn as before, as in the proof, and stand a slot and a row further up if they
        stood after it.
        """
        total, steps, secret, _ = self._made(rows)
        columns = [column[:rows] for column in table.values()]
        _, *drawn = total(secret, columns)
        indices, mask, places = map(np.asarray, drawn)
        if slot is not None:
            row = int(np.flatnonzero(mask & (indices == slot))[0])
            columns = [np.delete(column, slot, axis=0) for column in columns]
            indices = np.where(indices > slot, indices - 1, indices)
            indices, mask, places = (
                np.append(np.delete(part, row), np.zeros(1, part.dtype))
                for part in (indices, mask, places)
            )
        given = self._made(len(columns[0]))[3]
        return [_flat(given(columns, indices, mask, places)) * (steps[0] / CLIP)]


def _flat(total: Any) -> np.ndarray:
    leaves = jax.tree.leaves(total)
    return np.concatenate([np.asarray(leaf).astype(np.float64).ravel() for leaf in leaves])


def _counting(indices: Any, mask: Any) -> np.ndarray:
    return np.asarray(indices)[np.asarray(mask)]


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """As long as it lasts, `DPSVI.init` checks neither the compiler nor its compiled step."""
    with (
        mock.patch.object(Steps, "checked", return_value=None),
        mock.patch.object(compiler, "check"),
    ):
        yield


def _steps_case(
    name: str,
    capacity: int,
    model: Any = _regression,
    *,
    records: int | None = None,
    sampler: str = "full",
    batch: int | None = None,
    float_noise: bool = False,
    mechanism: Any = None,
    table: Callable[[int], Table] | None = None,
    odd: Callable[[], list[Table]] = odd_rows,
    relations: tuple[events.Relation, ...] = events.RELATIONS,
    accountant: str = "pld",
    keeps_slots: bool = False,
    **options: Any,
) -> Case:
    fixed = sampler == "feistel"
    size = {} if sampler == "full" else {"batch": batch or capacity // 2 or (1 if fixed else 0.5)}
    table = table or _parallel
    plan = fedvi.privacy.sgd(
        steps=1, max_records=capacity, sampler=sampler, noise_multiplier=2.0, delta=1e-5,
        clip_norm=CLIP, relation="substitute" if fixed else "add_remove", insecure_seed=1,
        float_noise=float_noise, accountant=accountant, **size,
    )  # fmt: skip
    if mechanism is not None:
        plan = dataclasses.replace(plan, mechanism=mechanism)
    part = options.get("microbatch_size")
    return Case(
        f"DPSVI, {name}, {capacity:,}",
        lambda: _OfSteps(model, plan, table=table, **options),
        plan.step,
        table,
        odd,
        capacity,
        records,
        # The draws of a record's own latents follow its slot: in the proof it keeps both.
        by_slot=sampler != "full" or keeps_slots,
        holes=False,
        relations=("substitute",) if fixed else relations,
        blocks=() if part is None else (-(-part // 64) * 64 if part > 1 else 1,),
    )


# Every guide that NumPyro ships, with models of every kind.


_AT = 1e4


def wide_table(width: int) -> Callable[[int], Table]:
    """Returns what makes a full table of equal records with so many columns, clipped and parallel."""

    def table(capacity: int) -> Table:
        x = np.tile(np.linspace(1.0, 2.0, width, dtype=np.float32), (capacity, 1))
        return {"x": x, "y": np.full(capacity, _AT, np.float32)}

    return table


def wide_odd(width: int) -> list[Table]:
    """Returns other records: far, tiny, close to the largest float, none; the last points the other way."""
    straight = wide_table(width)(1)["x"]
    turned = straight * np.where(np.arange(width) % 2, -1, 1).astype(np.float32)
    rows = [
        (straight, 0.0), (straight, 1e-40), (straight, np.nan), (straight, np.inf), (straight, 3e38),
        (straight, -3e38), (0.0 * straight, _AT), (1e-40 * straight, _AT), (np.nan * straight, 1.0),
        (straight * np.float32(1e38), 1.0), (straight * np.float32(1e6), -1.0), (turned, _AT),
        (turned * np.float32(1e6), 1.0), (-straight, _AT), (straight, -_AT),
    ]  # fmt: skip
    return [{"x": x.astype(np.float32), "y": np.float32([y])} for x, y in rows]


FACTORS: dict[str, tuple[Any, ...]] = {
    "guide": tuple(guides.GUIDES),
    "model": tuple(guides.MODELS),
    "gradients": ("full", "aligned"),
    "clipping": ("flat", "per_site", "automatic", "normalised"),
    "sampler": sampling.__all__,
    "mechanism": ("rounded", "discrete"),
    "relation": events.RELATIONS,
    # One, two, and one more or less than whole groups of rows.
    "rows": (200, 1, 2, 191, 192, 193),
    "microbatch_size": (None, 64, 1),
}


def is_possible(chosen: dict[str, Any]) -> bool:
    """Whether what has been chosen of ``FACTORS`` so far can be completed to a fit that is not refused."""
    guide, model = (
        chosen.get(name, other) for name, other in (("guide", "by hand"), ("model", "linear"))
    )
    return not (
        guides.refused(guide, model, chosen.get("gradients", "full"))
        # Batches of a fixed size have no price where a record comes.
        or (chosen.get("sampler") == "feistel" and chosen.get("relation") == "add_remove")
        # A table without a record is refused.
        or (chosen.get("rows") == 1 and chosen.get("relation") == "add_remove")
    )


def _said(chosen: dict[str, Any]) -> str:
    part = chosen["microbatch_size"]
    said = [str(chosen[name]) for name in FACTORS if name not in ("rows", "microbatch_size")]
    return "; ".join([*said, f"{chosen['rows']} rows", *([f"by {part}"] if part else [])])


def _guide_case(chosen: dict[str, Any]) -> Case:
    model, make = guides.MODELS[chosen["model"]], guides.GUIDES[chosen["guide"]]
    return _steps_case(
        _said(chosen),
        chosen["rows"],
        model.fn,
        guide=lambda _: make(model),
        sampler=chosen["sampler"],
        mechanism=mechanisms.discrete_gaussian(2.0) if chosen["mechanism"] == "discrete" else None,
        table=wide_table(guides.WIDTH),
        odd=lambda: wide_odd(guides.WIDTH),
        relations=(chosen["relation"],),
        # It knows a price for noise of either kind.
        accountant="zcdp",
        gradients=chosen["gradients"],
        clipping=chosen["clipping"],
        microbatch_size=chosen["microbatch_size"],
        checked=False,
        keeps_slots=model.is_local,
    )


# Full covariances of D latents: rows · D(D + 1) / 2 on both sides of 2¹⁵ and of 2²⁰.
_TRIANGLES = (
    (5, 4_000, "full"), (5, 8_000, "full"), (10, 1_000, "full"), (10, 8_000, "full"),
    (14, 300, "full"), (14, 2_200, "full"), (20, 409, "full"), (20, 4_000, "full"),
    (30, 300, "full"), (30, 2_200, "full"), (5, 8_000, "poisson"), (10, 8_000, "poisson"),
    (14, 3_000, "poisson"), (20, 3_000, "poisson"), (30, 5_000, "poisson"), (5, 8_000, "feistel"),
    (10, 4_000, "feistel"), (14, 3_000, "feistel"), (20, 1_000, "feistel"), (30, 3_000, "feistel"),
)  # fmt: skip


def triangle_case(width: int, rows: int, sampler: str, **options: Any) -> Case:
    """Returns a linear regression with a guide that has a full covariance."""
    batch = {"full": None, "poisson": rows // 5, "feistel": rows // 2}[sampler]
    straight = wide_table(width)(1)["x"]

    def odd() -> list[Table]:
        found = wide_odd(width)
        return [found[0], found[-4], *found[-2:]]

    def table(capacity: int) -> Table:
        # Ordinary records: where one fills the rows of others, all of them move.
        generator = np.random.default_rng(0)
        x = generator.normal(size=(capacity, width)).astype(np.float32)
        y = generator.normal(size=capacity).astype(np.float32)
        x[-1], y[-1] = straight, _AT
        return {"x": x, "y": y}

    return _steps_case(
        f"full covariance; {sampler}; D = {width}",
        rows,
        guides.linear_of(width),
        guide=autoguide.AutoMultivariateNormal,
        sampler=sampler,
        batch=batch,
        table=table,
        odd=odd,
        accountant="zcdp",
        **options,
    )


# `VIPS`, by its public call.


class _OfVips:
    def __init__(self, model: Any, plan: Any) -> None:
        self._recorder, self._model = Recorder(plan.mechanism), model
        self._plan = dataclasses.replace(plan, mechanism=self._recorder)

    def __call__(self, table: Table, mask: np.ndarray) -> list[np.ndarray]:
        fit = VIPS(self._model, self._plan)
        self._recorder.start()
        fit.run({name: column[mask] for name, column in table.items()}, progress_bar=False)
        return [call.total * (call.layout.step / CLIP) for call in self._recorder.stop()]


def _vips_case(
    name: str,
    capacity: int,
    model: Any,
    table: Callable[[int], Table] = _parallel,
    odd: Callable[[], list[Table]] = odd_rows,
) -> Case:
    plan = fedvi.privacy.sgd(
        steps=1, max_records=capacity, sampler="full", noise_multiplier=2.0, delta=1e-5,
        clip_norm=CLIP, relation="add_remove", insecure_seed=1,
    )  # fmt: skip
    return Case(
        f"VIPS, {name}, {capacity:,}",
        lambda: _OfVips(model, plan),
        plan.step,
        table,
        odd,
        capacity,
    )


TOPICS = LatentDirichlet(2, 4, length=9.0, distinct=4)
DISCRETE = mechanisms.discrete_gaussian(2.0)


def _every_case() -> list[Case]:
    release, descent = solvers.site_release, solvers.dp_optimisation
    logistic = models.logistic(NAMES)
    poisson, fixed = sampling.poisson(0.5, 409), sampling.feistel(200, 409)
    topics = {
        "family": TOPICS.family, "prior": tree.to_numpy(TOPICS.prior), "model": TOPICS,
        "table": _documents, "odd": _odd_documents,
    }  # fmt: skip
    parts = {"table": _named(_parallel), "odd": _odd_named}
    cases = [
        # Lengths at which blocks of a float sum become shorter, or are given up.
        *(_steps_case("flat", count) for count in (409, 1_024, 4_096, 41_944, 83_887, 170_000)),
        *(
            _steps_case(f"flat, {count:,} of", 100_000, records=count)
            for count in (409, 41_944, 83_887)
        ),
        _steps_case("flat, Poisson", 409, sampler="poisson"),
        _steps_case("flat, fixed size", 409, sampler="feistel"),
        _steps_case("aligned, Poisson", 409, sampler="poisson", gradients="aligned"),
        _steps_case("per_site, fixed size", 409, sampler="feistel", clipping="per_site"),
        _steps_case("normalised, microbatches", 4_096, microbatch_size=32, clipping="normalised"),
        _steps_case("flat, microbatches", 4_096, microbatch_size=32),
        _steps_case("flat, as the papers clip", 409, clip="elbo"),
        _steps_case("flat, with its loss", 409, loss_bound=10.0),
        *(_steps_case(kind, 409, clipping=kind) for kind in ("per_site", "automatic", "normalised")),
        *(
            _steps_case(f"aligned, {kind}", 409, gradients="aligned", clipping=kind)
            for kind in ("flat", "per_site", "automatic", "normalised")
        ),
        _steps_case("network, flat", 1_024, _network),
        _steps_case("network, normalised", 409, _network, clipping="normalised"),
        _steps_case("floating point", 409, float_noise=True),
        *(_vips_case("linear", count, LINEAR) for count in (409, 4_096)),
        _vips_case("topics", 409, TOPICS, table=_documents, odd=_odd_documents),
        _vips_case("logistic", 409, logistic),
        *(
            _solver_case("site_release", release, count, model=LINEAR)
            for count in (409, 1_024, 4_096, 41_944, 83_887)
        ),
        _solver_case("site_release, Poisson", release, 409, model=LINEAR, sampler=poisson),
        _solver_case("site_release, fixed size", release, 409, model=LINEAR, sampler=fixed),
        _solver_case("site_release, discrete noise", release, 409, model=LINEAR, mechanism=DISCRETE),
        _solver_case("site_release, in blocks", release, 4_096, model=LINEAR, large=True),
        _solver_case("site_release, logistic", release, 409, model=logistic),
        *(
            _solver_case(
                f"site_release, {label}", release, 409, model=model, curvature_share=0.999,
                table=table, odd=odd,
            )
            for label, model, table, odd in (
                ("binomial", models.binomial(NAMES), _trials, _odd_trials),
                ("negative binomial", models.negative_binomial(NAMES, 1.0), _parallel, _odd_counts),
            )
        ),
        *(
            _solver_case(
                f"site_release, {label}", release, count, model=SURVEYED, clip_norm="auto",
                foreseen=Foreseen(20, 1, 10**6), **more,
            )
            for label, count, more in (
                ("survey", 409, {}),
                ("survey", 41_944, {}),
                ("survey, Poisson", 409, {"sampler": poisson}),
                ("survey, discrete noise", 409, {"mechanism": DISCRETE}),
                ("after a survey", 409, {"at": AT}),
                ("after a survey, in blocks", 4_096, {"at": AT, "large": True}),
            )
        ),
        *(
            _solver_case(
                f"site_release, {label}", release, 409, clip_norm="auto", **OF_OUTCOMES[of], **more
            )
            for of, label, more in (
                ("noise", "survey of numbers", {}),
                ("noise", "sizes of residuals", {"at": AT._replace(sizes=True)}),
                ("noise", "sizes of residuals, in blocks", {"at": AT._replace(sizes=True), "large": True}),
                ("noise", "learnt noise", {"at": AT._replace(spread=1e-3)}),
                ("exposed", "survey of exposures", {}),
                ("exposed", "sizes of slopes", {"at": AT._replace(sizes=True, level=-3.0)}),
                ("exposed", "counts by exposure", {"at": AT._replace(spread=2.0, level=-3.0)}),
            )
        ),
        _solver_case("site_release, logistic after a survey", release, 409, model=logistic, at=AT),
        *(
            _solver_case(
                *(f"site_release, patients, {label}", release, 409),
                **{"model": model, "table": _patients, "odd": _odd_patients, **more},
            )
            for label, model, more in (
                ("linear", unit_model(LINEAR), {"at": AT}),
                ("counts", unit_model(models.negative_binomial(NAMES, 1.0)), {"curvature_share": 0.999}),
                ("survey", unit_model(SURVEYED), {"clip_norm": "auto", "foreseen": Foreseen(20, 1, 10**6)}),
            )
        ),
        _solver_case(
            "site_release, levels", release, 409, model=models.multinomial(NAMES[:1], ["u", "v", "w"]),
            table=_levels, odd=_odd_levels,
        ),
        _solver_case(
            *("site_release, times", release, 409),
            **{"model": models.survival(["a"], cuts=[]), "table": _times, "odd": _odd_times},
        ),
        _solver_case("site_release, by draws", release, 409, model=_Any(LINEAR), draws=2),
        *(
            _solver_case("dp_optimisation", descent, count, model=LINEAR, steps=2)
            for count in (409, 4_096)
        ),
        _solver_case("dp_optimisation", descent, 41_944, model=LINEAR),
        _solver_case("dp_optimisation, fixed size", descent, 409, model=LINEAR, steps=2, sampler=fixed),
        _solver_case("dp_optimisation, discrete noise", descent, 409, model=LINEAR, mechanism=DISCRETE),
        _solver_case("dp_optimisation, Poisson", descent, 409, model=LINEAR, steps=2, sampler=poisson),
        _solver_case("dp_optimisation, in blocks", descent, 4_096, model=LINEAR, steps=2, large=True),
        _solver_case("dp_optimisation, any model", descent, 409, model=_Any(LINEAR), steps=2),
        _solver_case(
            "dp_optimisation, low rank", descent, 409, model=LINEAR, steps=2,
            family=expfam.low_rank_gaussian(SIZE, rank=1),
        ),
        _solver_case("local_averaging", solvers.local_averaging, 64, model=LINEAR, **parts, parts=4),
        _solver_case("virtual_clients", solvers.virtual_clients, 64, model=LINEAR, **parts, parts=4),
        _solver_case("perturbed_update", solvers.perturbed_update, 64, model=LINEAR, **parts),
        _solver_case(
            "perturbed_update, clients", solvers.perturbed_update, 1, model=LINEAR, unit="client", **parts
        ),
        *(
            _solver_case("vips, linear", solvers.vips, count, model=LINEAR)
            for count in (409, 4_096, 41_944, 83_887)
        ),
        _solver_case("vips, linear, fixed size", solvers.vips, 409, model=LINEAR, sampler=fixed),
        _solver_case("vips, linear, discrete noise", solvers.vips, 409, model=LINEAR, mechanism=DISCRETE),
        _solver_case("vips, logistic, Poisson", solvers.vips, 409, model=logistic, sampler=poisson),
        _solver_case("vips, in blocks", solvers.vips, 4_096, model=LINEAR, large=True),
        _solver_case("vips, topics", solvers.vips, 409, **topics),
        _solver_case("vips, topics in blocks", solvers.vips, 4_096, large=True, **topics),
    ]  # fmt: skip
    return cases


@dataclasses.dataclass(frozen=True)
class _Any:
    """A model without what a solver could know of a generalised linear one."""

    inner: Any

    @property
    def size(self) -> int:
        return int(self.inner.size)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.inner.names)

    def log_prior(self, theta: Any) -> Any:
        return self.inner.log_prior(theta)

    def log_likelihood(self, theta: Any, record: Any) -> Any:
        return self.inner.log_likelihood(theta, record)

    def constrain(self, theta: Any) -> Any:
        return self.inner.constrain(theta)


CASES = {case.name: case for case in _every_case()}

CHOSEN = tuple(guides.select(FACTORS, is_possible))
GUIDE_CASES = {_said(chosen): functools.partial(_guide_case, chosen) for chosen in CHOSEN}
"""Guides and models: each pair of choices in ``FACTORS`` occurs, but for those that are refused."""

TRIANGLE_CASES = {
    f"{sampler}; D = {width}; {rows:,}": functools.partial(triangle_case, width, rows, sampler)
    for width, rows, sampler in _TRIANGLES
}
"""Full covariances, which one compiler computed wrongly; made when they are asked for, as those above."""


if __name__ == "__main__":
    import sys

    for label, one in {**TRIANGLE_CASES, **GUIDE_CASES, **CASES}.items():
        one = one if isinstance(one, Case) else one()
        moves = ", ".join(
            f"{name} {found.share:.4f} ({found.how}, row {found.place:,})"
            for name, found in worst_moves(one).items()
        )
        sys.stdout.write(f"{label:45} {moves}\n")
        sys.stdout.flush()
