"""What a local solver is: how one party improves a posterior, given a task from the server."""

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

if TYPE_CHECKING:  # a server reads this file, and needs no JAX
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
      task_id: names the task; the release made for it carries the same name in the ledger.
      client: who is to solve it.
      visit: how many of this client's answers were folded, or dropped, before; from 0.
      version: the server's version of ``posterior``.
      posterior: η of the broadcast q.
      factor: η of this client's own committed factor tₘ.
      damping: the step s that the server last applied to this client's answer; 0 if that was dropped.
      coordinates: those in which the answer is to be computed; None where there are none yet, or the
        solver has none.
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
      survey: sums over the client's columns, where the answer was about these alone: (Σ x, diag of Σ x²).
    """

    delta: Eta
    survey: GaussianEta | None = None


class Fold(NamedTuple):
    """What a fold of noisy answers left, for whoever makes a posterior of it.

    Attributes:
      prior: η_0.
      known: η_0 and the prior's own factor, where there is one: all that has no noise.
      posterior: ``known`` + Σ factors of the clients, as it is.
      factors: of each client that has answered at all.
      asked: client whose answer was folded now → the η that its task carried.
      damping: the step s with which they were.
      surveys: of the clients whose answer was one, see ``Change``.
    """

    prior: Eta
    known: Eta
    posterior: Eta
    factors: Mapping[str, Eta]
    asked: Mapping[str, Eta]
    damping: float
    surveys: Mapping[str, GaussianEta] = MappingProxyType({})


class Standing(NamedTuple):
    """What a server makes of factors that carry noise, from fold to fold; all of it was released.

    Attributes:
      handed_out: the proper η that the next tasks carry.
      reported: the proper η that is the answer so far.
      curvature: (the mean of the steps' θ, or zeros; the likelihood's precision with its noise): a mean
        over folds, or the last.
      sites: client → (the gradient that it sent last, and the θ that it is of), [D] each, as (h, J); of
        answers that are fresh statistics.
      folds: how many there were.
      squares: the noise's variance in units of that of one answer: what a mean over folds left of it,
        or what has accumulated.
      weights: client → (Σ w² of its answers that another has replaced, w of the one that stands), for a
        mean over folds.
      centres: client → the mean, as its factor is one of its answers, of the θ that these are about, [D].
      reference: the Gaussian that the prior's own factor made of the prior alone; None if there is none.
      coordinates: those that tasks carry, once they are known.
      gradient: (that of the log likelihood, with its noise, the θ that it is of), [D] both, as (h, J), for
        whom answers are gradients.
      surprise: how far gradients were from what those before them and the curvature foretold, as the
        largest change of a mean that follows from it, in posterior sds, and 0 where noise explains it; a
        mean over folds, of which the last weigh most.
      jitter: the largest change of a mean, in posterior sds, that noise alone makes in a round, but for
        one round in some hundred; 0 where nobody reckons it.
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
    coordinates: Coordinates | None = None
    gradient: GaussianEta | None = None
    surprise: float = 0.0
    jitter: float = 0.0


class Shard(NamedTuple):
    """One client's records at the study's common capacity, so that all clients share one compilation.

    Attributes:
      records: arrays [capacity, …], zero where no record stands; NumPy's, or what gives slices and rows
        as such and stays elsewhere itself.
      mask: bool [capacity], true where a record stands.
    """

    records: Records
    mask: np.ndarray

    def __repr__(self) -> str:
        # Reprs end in logs: names only.
        return f"Shard({', '.join(self.records)})"


class CleanState(NamedTuple):
    """What parts know and nobody else: un-noised functions of records. Never leaves the client.

    Task ``visit`` counts the answers of this client that the server is done with, so visit + 1 after an
    answer means that it was folded, with the s of ``task.damping``, or dropped, with s = 0; the same
    visit, that it never arrived, and it is forgotten. Any other count means that this state is not of
    this study's last answer (lost, or restored): every part begins anew from its share, 1/K, of the
    client's factor as the server has it; before the first answer from 1, for ``task.factor`` may then
    be a part of what others answered. Which of these applies depends on what is public alone.

    Attributes:
      visit: of the last answer, int64 []; −1 before the first.
      factors: η_mk of each part as committed before that answer, (h [K, D], J [K, …]), float64.
      proposed: the clipped clean change of each part in that answer, the same shapes.
    """

    visit: np.ndarray
    factors: GaussianEta
    proposed: GaussianEta


class LocalSolver(NamedTuple):
    """How a client answers a task; a pair of pure functions and their price.

    Attributes:
      name: the function that made it, for messages.
      init: η → state: arrays of numbers, kept by the client alone, keys as their ``key_data``. May
        be called before any task, since its answer is also the layout of a state that was stored.
      update: (key_of, state, task, shard) → (state, Released, info). ``key_of(purpose)`` derives a
        key for this task; ``info`` is about private data and never leaves the client.
      finish: (released value, task) → Change. Runs at the server in NumPy: post-processing. A
        function of a module that imports no JAX, or a ``functools.partial`` of one with keyword
        arguments that JSON can hold, so that a server can name it.
      cost: the event of one update, known before any record is read.
      number_count: how many numbers one released value holds.
      noised_count: how many one noised sum has, where that is not ``number_count``.
      streams: whether ``update`` reads a shard's records by slices and drawn rows alone where they are
        too many for memory, see ``blocks``.
      clip_norm: the L2 bound on one unit's contribution; None if nothing is clipped.
      mark: what is printed beside claims about its releases; empty if nothing needs saying.
      stand: (family, Fold, Standing before or None) → Standing, by the server after each fold; named
        as ``finish`` is. None: q is prior + Σ factors.
      survey: what its first answer is, where that is about columns alone; None if there is no such answer.
      renews: whether an answer is a fresh statistic that takes the place of the factor. It is folded
        as it is, s = 1: how far the posterior moves is up to ``stand``.
      adds_up: the shapes of an answer's arrays, by name, if their sum over clients is all that a server
        needs: then an answer depends on its records, the tasks so far and its own keys alone, and on no
        noise that its client drew before (a state, where there is one, holds none); ``finish`` is a
        function of its arrays that makes of the sum what one client with all records would have sent;
        and each array is noised whole numbers on the mechanism's grid. None: answers are folded one by
        one.
      update_many: ``update`` of many clients at once, bit for bit: (keys_of, states, tasks, shards) →
        (the states after, one Released, what is told). Arrays of the Released, and of what is told, have a
        first axis for clients. ``keys_of(purpose)`` is an array of their keys, and the shards are one whose
        columns, of single precision, and mask have a first axis for clients. None of the function: there is
        none; of its result: these are to be visited one by one.
      finish_many: ``finish`` of many answers that are no surveys, and whose tasks differ in client and
        factor alone, bit for bit: (released value, one of the tasks, factors) → delta, where arrays of the
        value, of the factors and of the delta have a first axis for clients. None: one by one.
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
            "tuple[list[Any], Released, dict[str, Any]] | None",
        ]
        | None
    ) = None
    finish_many: Callable[[dict[str, np.ndarray], Task, Any], Any] | None = None


def compiled_once(make: _Make) -> _Make:
    """Lets equal settings share what ``make`` returns, so that a second study compiles nothing.

    Settings that cannot be hashed, such as a model of one's own, are made anew.
    """
    cached = functools.lru_cache(maxsize=64)(make)

    @functools.wraps(make)
    def once(*settings: Any) -> Any:
        try:
            hash(settings)
        except TypeError:
            return make(*settings)
        return cached(*settings)

    # An audit that plants faults forgets what was made without them.
    once.cache_clear = cached.cache_clear  # type: ignore[attr-defined]
    return once  # type: ignore[return-value]


def cavity(task: Task) -> Eta:
    """Removes the client's own factor from the posterior: η₋ₘ = η − ηₘ, in float64.

    The result may be improper; local objectives here stay finite all the same.

    Source: Ashman et al. (2022), arXiv:2202.12275, the local step of PVI.
    """
    return tree.subtract(task.posterior, task.factor)


def check_gaussian(family: Any, solver: str, low_rank: bool = False) -> None:
    """Checks that natural parameters are (h, J), which Newton steps and clipped changes need.

    Args:
      family: of q.
      solver: its name, for messages.
      low_rank: whether the solver takes (h, d, K) too, as those by reparameterised gradients do.

    Raises:
      SolverError: the family is no full or diagonal Gaussian, nor a low-rank one where that will do.
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
      ProtocolError: if an array is missing, is one too many, or has another shape.
    """
    found = {name: array.shape for name, array in value.items()}
    if found != shapes:
        raise errors.ProtocolError(f"an answer holds arrays {found}, expected {shapes}")


def finish_natural(value: dict[str, np.ndarray], task: Task) -> Change:
    """Turns released natural parameters of a local optimum into Δη = η(q*) − η.

    Raises:
      ProtocolError: if the arrays are not those of the task's posterior, such as h and J.
    """
    before = task.posterior
    check_shapes(value, {name: leaf.shape for name, leaf in before._asdict().items()})
    return Change(tree.subtract(type(before)(**value), before))
