"""The interface of local solvers: tasks, changes, states, and how a client answers a task."""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from fedvi import errors
from fedvi.expfam import tree
from fedvi.expfam.base import DenseGaussian, FactoredGaussian
from fedvi.expfam.gaussian import GaussianEta
from fedvi.privacy import events
from fedvi.typing import Eta, Key, Records
from fedvi.updates.coordinates import Coordinates, Survey
from fedvi.updates.limits import Limit

if TYPE_CHECKING:  # a server imports this file without JAX
    from fedvi.privacy.release import Released

__all__ = [
    "Change",
    "CleanState",
    "Fold",
    "LocalSolver",
    "Shard",
    "Standing",
    "Task",
    "cavity",
    "check_gaussian",
    "check_shapes",
    "compiled_once",
    "finish_natural",
]

_Make = TypeVar("_Make", bound=Callable[..., Any])


class Task(NamedTuple):
    """All that a client needs for one visit; every array is float64 NumPy, and public.

    Attributes:
      task_id: the task's name; its release has the same name in the ledger.
      client: the client that solves it.
      visit: how many of this client's answers were folded, or dropped, before; from 0.
      version: the server's version of ``posterior``.
      posterior: η of the broadcast q.
      factor: η of this client's own committed factor tₘ; may be None for a solver that ``renews``.
      damping: the step s that the server last applied to this client's answer; 0 if that was dropped.
      coordinates: coordinates in which to compute the answer; None if there are none yet, or the solver
        uses none.
    """

    task_id: str
    client: str
    visit: int
    version: int
    posterior: Eta
    factor: Eta
    damping: float
    coordinates: Coordinates | None = None


class Change(NamedTuple):
    """An answer to be added: η_m ← η_m + s · delta, with s chosen by the server.

    Attributes:
      delta: as above.
      survey: if the answer was a survey of the client's columns, their sums: (Σ x, diag of Σ x²), as (h,
        J); if it counted sizes of slopes, the counts: D of them as h, and D on the diagonal of J.
      sized: the coordinates' ``spread`` when sizes of slopes were asked for; None if they were not counted.
    """

    delta: Eta
    survey: GaussianEta | None = None
    sized: float | None = None


class Fold(NamedTuple):
    """The result of folding noisy answers, from which ``LocalSolver.stand`` makes a posterior.

    Attributes:
      prior: η_0.
      known: η_0 plus the prior's own factor, if there is one: all parts without noise.
      posterior: ``known`` + Σ factors of the clients, unprocessed.
      factors: of each client that has answered at all.
      asked: client whose answer was folded now → the η that its task carried.
      damping: the step s of this fold.
      surveys: of the clients whose answer was a survey, see ``Change``.
      noise: the variance of the noise of one answer, in units of what its mechanism adds.
      sized: client in ``surveys`` that counted sizes of slopes → ``Change.sized``.
    """

    prior: Eta
    known: Eta
    posterior: Eta
    factors: Mapping[str, Eta]
    asked: Mapping[str, Eta]
    damping: float
    surveys: Mapping[str, GaussianEta] = MappingProxyType({})
    noise: float = 1.0
    sized: Mapping[str, float] = MappingProxyType({})


class Standing(NamedTuple):
    """The server's state for factors with noise, from fold to fold; computed from released values only.

    Attributes:
      handed_out: the proper η that the next tasks carry.
      reported: the proper η to report so far.
      curvature: (the mean of the steps' θ, or zeros; the likelihood's precision with its noise): a mean
        over folds, or the last.
      sites: client → (its latest gradient, and the θ at which it was computed), [D] each, as (h, J); if
        answers are fresh statistics.
      folds: how many there were.
      squares: the noise's variance in units of that of one answer: after averaging over folds, or as
        accumulated.
      weights: client → (Σ w² of its answers that were replaced, w of its current one), for a mean over
        folds.
      centres: client → the mean of the θ at which its answers were computed, with the same weights as
        those answers have in its factor, [D].
      reference: the Gaussian that the prior's own factor made of the prior alone; None if there is none.
      begun: the proper η from which the averaged steps began, if there are such steps.
      coordinates: the coordinates that tasks carry, once known.
      gradient: (the gradient of the log likelihood, with its noise, and its θ), [D] both, as (h, J); if
        answers are gradients.
      surprise: how far gradients differed from the prediction by earlier gradients and the curvature, as
        the largest resulting change of a mean, in posterior sds; 0 if noise explains it. A mean over
        folds, the latest weighing most.
      jitter: the largest change of a mean, in posterior sds, that noise alone makes in a round, except in
        about one round in a hundred; 0 if it is not computed.
      noise: the largest ``Fold.noise`` so far.
      prior: the prior in units of the columns' spread, once a survey has told it; None: the study's.
      steps: how many folds moved q, also those that a mean over folds has left out.
      clipped: what clipping takes from a mean over records of residuals, in the unit of the outcome; 0: as
        far as surveys tell, nothing.
    """

    handed_out: Eta
    reported: Eta
    curvature: Eta
    folds: int
    squares: float
    weights: Mapping[str, tuple[float, float]] = MappingProxyType({})
    sites: Mapping[str, GaussianEta] = MappingProxyType({})
    centres: Mapping[str, np.ndarray] = MappingProxyType({})
    reference: Eta | None = None
    begun: Eta | None = None
    coordinates: Coordinates | None = None
    gradient: GaussianEta | None = None
    surprise: float = 0.0
    jitter: float = 0.0
    noise: float = 1.0
    prior: Eta | None = None
    clipped: float = 0.0
    steps: int = 0


class Shard(NamedTuple):
    """One client's records at the study's common capacity, so that all clients share one compilation.

    Attributes:
      records: arrays [capacity, …], zero in rows without a record; NumPy arrays, or objects that return
        slices and rows as NumPy arrays while the data stay elsewhere.
      mask: bool [capacity], true in rows with a record.
    """

    records: Records
    mask: np.ndarray

    def __repr__(self) -> str:
        # Reprs end up in logs, so this shows names only.
        return f"Shard({', '.join(self.records)})"


class CleanState(NamedTuple):
    """The private state of a client's parts: functions of records without noise. Never leaves the client.

    Task ``visit`` counts the answers of this client that the server has processed. If it is one more than
    at the last answer, that answer was folded, with the s of ``task.damping``, or dropped, with s = 0. If
    it is the same, the answer never arrived and is discarded. Any other count means that this state does
    not belong to the study's last answer (it was lost, or restored): every part restarts from its share,
    1/K, of the client's factor at the server; before the first answer from 1, since ``task.factor`` may
    then be a part of what others answered. Which case applies depends on public values only.

    Attributes:
      visit: of the last answer, int64 []; −1 before the first.
      factors: η_mk of each part as committed before that answer, (h [K, D], J [K, …]), float64.
      proposed: the clipped clean change of each part in that answer, the same shapes.
    """

    visit: np.ndarray
    factors: GaussianEta
    proposed: GaussianEta


class LocalSolver(NamedTuple):
    """How a client answers a task: pure functions, their privacy cost and their properties.

    Attributes:
      name: the function that made it, for messages.
      init: η → state: arrays of numbers that only the client keeps, with keys as ``key_data``. May be
        called before any task, since its result also gives the layout of a stored state.
      update: (key_of, state, task, shard) → (state, Released, info). ``key_of(purpose)`` derives a
        key for this task; ``info`` is about private data and never leaves the client.
      finish: (released value, task) → Change. Runs at the server in NumPy, as post-processing. It must be
        a function of a module that does not import JAX, or a ``functools.partial`` of one with keyword
        arguments that JSON can represent, so that a server can look it up by name.
      cost: the event of one update, known before any record is read.
      number_count: how many numbers one released value holds.
      noised_count: how many numbers one noised sum has, if not ``number_count``.
      streams: whether ``update`` can read a shard that does not fit in memory by slices and drawn rows
        only, see ``blocks``.
      clip_norm: the L2 bound on one unit's contribution; None if nothing is clipped.
      mark: a warning printed beside claims about its releases; may be empty.
      stand: (family, Fold, earlier Standing or None) → Standing; the server calls it after each fold, and
        looks it up like ``finish``. None: q is prior + Σ factors.
      survey: the description of its first answer, if that is a survey of columns; else None.
      renews: whether an answer is a fresh statistic that replaces the factor. It is folded with s = 1;
        ``stand`` then decides how far the posterior moves. ``update`` does not read ``task.factor``, and
        gets None in its place from a client that masks nothing.
      adds_up: the shapes of an answer's arrays, by name, if a server needs only their sum over clients.
        Then an answer depends only on its records, the tasks so far and its own keys, and not on noise
        that its client drew before (a state, if any, holds none); ``finish`` turns the sum of arrays into
        what one client with all records would have sent; and each array is noised whole numbers on the
        mechanism's grid. None: answers are folded one by one.
      update_many: ``update`` of many clients at once, bit for bit: (keys_of, states, tasks, shards) → a
        function without arguments, which may be called in another thread and returns (new states, one
        Released, info). Arrays of the Released and of info have a first axis for clients.
        ``keys_of(purpose)`` is an array of the clients' keys. The shards are joined into one whose
        columns, in single precision, and mask have a first axis for clients. If it is None, or returns
        None, clients are visited one by one.
      finish_many: ``finish`` of many answers at once, bit for bit, if none is a survey and their tasks
        differ only in client and factor: (released value, one of the tasks, factors) → delta. Arrays of
        the value, the factors and the delta have a first axis for clients. None: one by one.
      check: called with a shard before anything is computed from it; raises PrivacyError where compiled
        programs do not keep what the proof of sensitivity assumes of them. It reads dtypes and shapes only,
        and checks each layout once. None: nothing is checked, and a study under a budget refuses the solver
        unless its mechanism promises nothing.
      limit: how large a released value may be, by public numbers alone: the server refuses a larger one.
        None: nothing bounds it.
    """

    name: str
    init: Callable[[Eta], Any]
    update: Callable[
        [Callable[[str], Key], Any, Task, Shard], tuple[Any, "Released", dict[str, Any]]
    ]
    finish: Callable[[dict[str, np.ndarray], Task], Change]
    cost: events.Event
    number_count: int
    clip_norm: float | None = None
    mark: str = ""
    stand: Callable[[Any, Fold, Standing | None], Standing] | None = None
    renews: bool = False
    noised_count: int | None = None
    streams: bool = False
    adds_up: Mapping[str, tuple[int, ...]] | None = None
    survey: Survey | None = None
    update_many: (
        Callable[
            [Callable[[str], Key], list[Any], list[Task], Shard],
            "Callable[[], tuple[list[Any], Released, dict[str, Any]]] | None",
        ]
        | None
    ) = None
    finish_many: Callable[[dict[str, np.ndarray], Task, Any], Any] | None = None
    check: Callable[[Shard], None] | None = None
    limit: Limit | None = None


def compiled_once(make: _Make) -> _Make:
    """Caches ``make`` by its settings, so that a second study with equal settings compiles nothing.

    If settings cannot be hashed, such as a user's own model, nothing is cached.
    """
    cached = functools.lru_cache(maxsize=64)(make)

    @functools.wraps(make)
    def once(*settings: Any) -> Any:
        try:
            hash(settings)
        except TypeError:
            return make(*settings)
        return cached(*settings)

    # An audit that plants faults must clear objects made without them.
    once.cache_clear = cached.cache_clear  # type: ignore[attr-defined]
    return once  # type: ignore[return-value]


def cavity(task: Task) -> Eta:
    """Removes the client's own factor from the posterior: η₋ₘ = η − ηₘ, in float64.

    The result may be improper; local objectives here stay finite nevertheless.

    Source: Ashman et al. (2022), arXiv:2202.12275, the local step of PVI.
    """
    return tree.subtract(task.posterior, task.factor)


def check_gaussian(family: Any, solver: str, low_rank: bool = False) -> None:
    """Checks that natural parameters are (h, J), which Newton steps and clipped changes need.

    Args:
      family: of q.
      solver: its name, for messages.
      low_rank: whether the solver also accepts (h, d, K), as solvers by reparameterised gradients do.

    Raises:
      SolverError: the family is not a full or diagonal Gaussian, nor an accepted low-rank one.
    """
    is_low_rank = isinstance(family, FactoredGaussian)
    if isinstance(family, DenseGaussian) or (low_rank and is_low_rank):
        return
    known = '"full_gaussian" or "diagonal_gaussian"'
    if low_rank:
        known = '"full_gaussian", "diagonal_gaussian" or "low_rank_gaussian"'
    hint = f"write kind = {known} under [family]"
    if is_low_rank:
        hint += "; solvers `gradient` and `dp_optimisation` take low_rank_gaussian"
    form = "" if low_rank else " in (h, J)"
    raise errors.SolverError(
        f"solver `{solver}` needs a Gaussian family{form}, found {type(family).__name__}", hint
    )


def check_shapes(value: dict[str, np.ndarray], shapes: dict[str, tuple[int, ...]]) -> None:
    """Checks the arrays of an answer before anything is computed from them.

    Raises:
      ProtocolError: if an array is missing, unexpected, or has another shape.
    """
    found = {name: array.shape for name, array in value.items()}
    if found != shapes:
        raise errors.ProtocolError(f"an answer holds arrays {found}, expected {shapes}")


def finish_natural(value: dict[str, np.ndarray], task: Task) -> Change:
    """Turns released natural parameters of a local optimum into Δη = η(q*) − η.

    Raises:
      ProtocolError: if the arrays differ from those of the task's posterior, such as h and J.
    """
    before = task.posterior
    check_shapes(value, {name: leaf.shape for name, leaf in before._asdict().items()})
    return Change(tree.subtract(type(before)(**value), before))
