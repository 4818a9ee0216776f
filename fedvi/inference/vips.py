"""``VIPS``: private variational Bayes for a conjugate-exponential model and a single data holder."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tqdm.auto as tqdm

from fedvi import errors
from fedvi.expfam import tree
from fedvi.inference.blocks import is_large, single_precision
from fedvi.inference.solvers import vips as solver_of
from fedvi.inference.solvers.vips import conjugate_form
from fedvi.inference.spoken import SpeaksOfRuns
from fedvi.models.capabilities import Regression
from fedvi.privacy import ledger as ledgers
from fedvi.privacy import random
from fedvi.privacy.caveats import UNVETTED
from fedvi.privacy.descent import Descent
from fedvi.privacy.owned import Owned
from fedvi.privacy.release import decoded
from fedvi.privacy.spoken import Summary, Table
from fedvi.typing import Eta, Records
from fedvi.updates.base import Fold, LocalSolver, Shard, Standing, Task
from fedvi.updates.conjugate import AnyWidth, ConjugateModel, FromFile

__all__ = ["VIPS", "VIPSResult"]

_ME = "self"
# The most rows of a summary.
_MOST_SHOWN = 30


class VIPSResult(NamedTuple):
    """The result of a run; all of it may be published.

    Attributes:
      model: the conjugate model, which makes predictions.
      posterior: natural parameters of q in ``model.family``.
      rounds: the number of releases.
    """

    model: Any
    posterior: Eta
    rounds: int

    @property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of every coordinate of θ, [D] each."""
        mean, sd = self.model.family.moments(self.posterior)
        return mean, sd

    def summary(self) -> Summary:
        """Returns mean and sd of the first coordinates of θ."""
        mean, sd = (np.asarray(part) for part in self.moments)
        rows = [
            (name, f"{m:.4g}", f"{s:.3g}")
            for name, m, s in zip(self.model.names[:_MOST_SHOWN], mean, sd, strict=False)
        ]
        more = len(mean) - len(rows)
        lines = (f"the first {len(rows)} of {len(mean)} numbers are shown",) if more else ()
        return Summary(self._in_short, lines, (Table(("quantity", "mean", "sd"), tuple(rows)),))

    @property
    def _in_short(self) -> str:
        return f"posterior of {type(self.model).__name__} after {self.rounds} rounds"

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._in_short})"


class VIPS(SpeaksOfRuns, Owned):
    """Private VB from perturbed expected sufficient statistics: one noised sum a round.

    It runs the federation's solver ``fedvi.inference.solvers.vips`` with one client, and the server's fold.

    Guarantee: with ``privacy`` from ``fedvi.privacy.sgd``, the results of ``privacy.runs`` runs of
    ``privacy.steps`` rounds are together (epsilon, delta)-DP for ``privacy.relation`` on
    records, where a record is one row of all arrays. A run is charged before a record is read. Runs are
    counted by this object, or, where ``privacy`` has a ``ledger``, over all processes that
    use it. A model from outside fedvi states the norms of its own statistics; ``mark`` then says
    that the model is unvetted.

    Args:
      model: a conjugate model such as ``fedvi.models.lda.LatentDirichlet``; or a regression:
        ``fedvi.models.logistic``, ``binomial``, ``negative_binomial`` or ``linear``.
      privacy: the plan; ``steps`` is the number of rounds, and ``clip_norm`` is in units of a typical
        record's statistics.
      options: keyword arguments of the solver: ``averaging``, ``delay``, ``emphasis``, ``shares``,
        ``typical``, ``rows_together``, and for a regression ``row_norm``, ``learn_prior``, ``ridge``.

    Raises:
      ConfigError: ``privacy`` is not a plan.
      SolverError: the model has no conjugate form, or an option is out of its range.
      LedgerError: the plan's ledger file is damaged, or belongs to another plan.

    >>> import numpy as np
    >>> from fedvi import models, privacy
    >>> x = np.linspace(-1.0, 1.0, 400)[:, None]
    >>> plan = privacy.sgd(
    ...     noise_multiplier=0, steps=5, max_records=400, sampler="full", clip_norm=np.inf
    ... )
    >>> fit = VIPS(models.linear(["slope"], noise_scale=1.0), plan)
    >>> result = fit.run({"x": x, "y": 2.0 * x[:, 0]}, progress_bar=False)
    >>> [round(float(number[0]), 3) for number in result.moments]
    [1.998, 0.086]
    """

    def __init__(self, model: Any, privacy: Descent, **options: Any) -> None:
        if not isinstance(privacy, Descent):
            raise errors.ConfigError(
                f"privacy is a {type(privacy).__name__}, expected a plan",
                "make it with fedvi.privacy.sgd(epsilon=…, delta=…, steps=…, max_records=…)",
            )
        if isinstance(model, Regression):
            from fedvi.expfam import full_gaussian

            of_regression = {name: options.pop(name) for name in _OF_REGRESSIONS if name in options}
            model = conjugate_form(
                full_gaussian(model.size), model, **(_OF_REGRESSIONS | of_regression)
            )
        if not isinstance(model, ConjugateModel):
            raise errors.SolverError(
                f"model is a {type(model).__name__}, expected a conjugate-exponential model",
                "for any other model use fedvi.DPSVI",
            )
        super().__init__()
        self.model: Any = model
        self._options = options
        numbers = sum(block.number_count for block in model.blocks)
        self.privacy = privacy.fitted(numbers)
        # Two threads get separate runs, with separate keys.
        self._runs = self.privacy.open_runs(numbers, "vips", self._custom)
        self._solver = self._made()
        seed = privacy.seed
        self._root = random.secure_root() if seed is None else random.insecure_root(seed)

    @property
    def ledger(self) -> ledgers.Ledger:
        """The charges until the last ``run`` of this object, one entry a run.

        Includes runs of other processes if the plan has a ledger file: ``fedvi.privacy.sgd(ledger=…)``.
        """
        return self._runs.ledger

    @property
    def mark(self) -> str:
        """The warning that every claim must carry; empty if there is none."""
        return self._runs.ledger.header.note

    def run(
        self,
        records: Records,
        *,
        progress_bar: bool = True,
        on_round: Callable[[int, Eta], None] | None = None,
    ) -> VIPSResult:
        """Charges one run, and takes all planned rounds over the records.

        Args:
          records: arrays [N, …] by name, as the model requires; N is at most ``max_records``, and
            private. All other sizes, such as the largest number of words of a document, are public.
          progress_bar: whether to show one.
          on_round: called with the number of rounds so far and the posterior, which may be published.

        Raises:
          BudgetExceeded: more runs were started than planned, by this process or, if the plan has a
            ledger file, by all processes.
          LedgerError: the ledger file is damaged or cannot be written.
          PrivacyError: there are more records than planned for.
          DataError: arrays are missing, hold no numbers, or have wrong lengths or shapes; nothing is
            charged then. Without protection, also a record that is invalid for the model; under privacy
            such a record counts as zero.
        """
        random.refuse_a_trace("a run was charged")
        self._check_owner()
        columns = self._columns(records)
        if self._solver.check is not None:
            most = int(getattr(self.privacy.sampler, "max_records"))  # noqa: B009
            shapes: Any = {
                name: jax.ShapeDtypeStruct((most, *column.shape[1:]), column.dtype)
                for name, column in columns.items()
            }
            self._solver.check(Shard(shapes, np.ones(most, bool)))
        run = self._runs.charge(
            "run", "each run is paid for: plan them with fedvi.privacy.sgd(runs=…)"
        )
        shard = self._shard(columns)
        solver, family, prior = self._solver, self.model.family, tree.to_numpy(self.model.prior)
        factor, posterior = family.zeros(), prior
        standing: Standing | None = None
        for visit in tqdm.trange(self.privacy.steps, disable=not progress_bar):
            task = Task(f"run/{run}/{visit}", _ME, visit, visit, posterior, factor, 1.0)
            # Keys of one release, not kept after it: a leaked object reveals no past noise.
            keys = functools.partial(random.key, self._root.secret("vips", run, visit))
            _, released, _ = solver.update(keys, solver.init(posterior), task, shard)
            value = {
                name: np.asarray(array, np.float64)
                for name, array in jax.device_get(decoded(released).value).items()
            }
            factor = tree.add(factor, solver.finish(value, task).delta)
            assert solver.stand is not None
            fold = Fold(prior, prior, tree.add(prior, factor), {_ME: factor}, {_ME: posterior}, 1.0)
            standing = solver.stand(family, fold, standing)
            posterior = standing.reported
            if on_round is not None:
                on_round(visit + 1, posterior)
        return VIPSResult(self.model, posterior, self.privacy.steps)

    @property
    def _custom(self) -> str:
        # The clip relies on the norms that the model states.
        known = type(self.model).__module__.partition(".")[0] == "fedvi"
        return "" if known or not self.privacy.protected else UNVETTED

    def _made(self) -> LocalSolver:
        plan = self.privacy
        return solver_of(
            self.model.family,
            self.model,
            plan.sampler,
            plan.mechanism,
            clip_norm=plan.clip_norm,
            **self._options,
        )

    def _columns(self, records: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Returns the records' arrays after checking names, lengths and shapes against the model."""
        sampler: Any = self.privacy.sampler
        columns = {name: np.asarray(column) for name, column in records.items()}
        sizes = {name: column.shape[0] if column.ndim else 0 for name, column in columns.items()}
        if not sizes or len(set(sizes.values())) > 1:
            raise errors.DataError(
                f"records have {sizes or 'no'} rows, expected arrays of one length, one row a record"
            )
        count = next(iter(sizes.values()))
        if count > sampler.max_records:
            raise errors.PrivacyError(
                f"there are {count} records, expected at most the {sampler.max_records} of max_records",
                "plan for as many as there may be: fedvi.privacy.sgd(max_records=…)",
            )
        for name, column in columns.items():
            if not any(jnp.issubdtype(column.dtype, kind) for kind in _NUMBERS):
                raise errors.DataError(
                    f"records[{name!r}] holds {column.dtype}, expected real numbers"
                )
        for name, shape in self._layout(columns).items():
            if name not in columns:
                raise errors.DataError(
                    f"records hold no array {name!r}, which the model needs",
                    errors.did_you_mean(name, columns),
                )
            if columns[name].shape[1:] != shape:
                raise errors.DataError(
                    f"records[{name!r}] has records of shape {columns[name].shape[1:]}, expected {shape}"
                )
        return columns

    def _layout(self, columns: Mapping[str, np.ndarray]) -> Mapping[str, tuple[int, ...]]:
        if isinstance(self.model, AnyWidth):
            return self.model.layout_of(columns)
        return self.model.layout if isinstance(self.model, FromFile) else {}

    def _shard(self, columns: dict[str, np.ndarray]) -> Shard:
        """Pads the records; invalid records are masked, or rejected without privacy."""
        sampler: Any = self.privacy.sampler
        count = next(iter(columns.values())).shape[0]
        room = sampler.max_records - count
        known = np.ones(count, bool)
        if isinstance(self.model, FromFile):
            known = np.asarray(self.model.sound(columns), bool)
        if not self.privacy.protected and not known.all():
            raise errors.DataError(
                f"record {int(np.argmin(known))}, counted from 0, is none that the model knows: a number "
                "is missing, out of range, or not whole where it is a label or a count",
                "correct it; under privacy it would count as zero",
            )
        padded = {
            name: np.pad(column, [(0, room)] + [(0, 0)] * (column.ndim - 1)) if room else column
            for name, column in columns.items()
        }
        mask = np.pad(known, (0, room))
        # Moved to the device once, not at every round.
        return Shard(padded if is_large(mask) else single_precision(padded), mask)


_NUMBERS = (np.bool_, np.integer, np.floating)
_OF_REGRESSIONS: dict[str, Any] = {"row_norm": None, "learn_prior": "no", "ridge": 0.5}
