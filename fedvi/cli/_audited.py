"""Runs the layers of `fedvi audit` on an assembled study and collects their findings."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from fedvi import errors
from fedvi.audit import client as at_client
from fedvi.audit import extremes, neighbours, one_table, prices, replay, runs
from fedvi.audit.findings import Finding, judged, not_checked
from fedvi.audit.published_sums import check_sums
from fedvi.audit.recording import Recorder, SamplerRecorder
from fedvi.cli._audit_profile import profiled
from fedvi.expfam import tree
from fedvi.federation.damping import Memory
from fedvi.federation.fold import fold, posterior_of
from fedvi.privacy import events, ledger, random, sampling, statement
from fedvi.privacy.base import Mechanism, Sampler
from fedvi.privacy.sums import in_sum
from fedvi.run.made_up import corners, shard_of
from fedvi.study.build import Assembly
from fedvi.transport import codec
from fedvi.typing import Key
from fedvi.updates.base import Change, Fold, LocalSolver, Shard, Task
from fedvi.updates.coordinates import Coordinates, Survey, no_coordinates, of_sizes

__all__ = ["BROKE_OFF", "LAYERS", "Audited", "Settings", "promised"]

LAYERS = ("price", "programs", "client", "sums", "worst", "one table", "replay", "profile")
"""In the order in which they run: what is found soonest comes first."""

BROKE_OFF = "runs to its end"
"""What a layer's check is called that fails where a study's code raises: nothing saw the rest."""

_CLIMBS = 96
"""Changes of the worst records that are tried at each posterior."""

_SEARCHED = 180.0
"""Seconds that are spent on looking for bad records, at most."""

_FAR = 8.0
"""How far an extreme posterior is from the prior, in sds of the prior."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How an audit is run.

    Attributes:
      trials: on either side of a worst-case pair.
      data: a file of records for the replay; None: made up.
      seed: of all that an audit draws.
      one_table: whether ``DPSVI`` and ``VIPS`` are looked at, which no study runs.
      until: on ``time.monotonic``'s clock; None: as long as it takes.
    """

    trials: int = 40_000
    data: Path | None = None
    seed: int = 0
    one_table: bool = False
    until: float | None = None


class _Looked(NamedTuple):
    """A solver that was built with a mechanism and a sampler that write down what they do."""

    solver: LocalSolver
    recorder: Recorder
    sampler: SamplerRecorder | None
    mechanism: Mechanism


class Audited:
    """An assembled study, and the layers that look at it."""

    def __init__(self, assembly: Assembly, settings: Settings) -> None:
        self._assembly, self._settings = assembly, settings
        root = random.insecure_root(settings.seed)

        def keys(client: str, release: str) -> Callable[[str], Key]:
            secret = root.secret("audit", client, release)
            return lambda purpose: random.key(secret, purpose)

        self._keys: runs.Keys = keys

    def findings(self, order: Sequence[str] = LAYERS) -> Iterator[Finding]:
        """Yields what each layer finds; what no time was left for is said, and is no pass."""
        until = self._settings.until
        for layer in order:
            if until is not None and time.monotonic() > until:
                yield not_checked(layer, layer, "no time was left: give more --seconds")
                continue
            try:
                yield from getattr(self, "_" + layer.replace(" ", "_"))()
            except errors.FedviError:
                raise
            except Exception as error:
                # Never what it says, which may quote a record.
                yield Finding(
                    layer,
                    f"{layer} {BROKE_OFF}",
                    False,
                    type(error).__name__,
                    "the study's code raised an error that is none of fedvi's, on records that the schema "
                    "allows: the layer saw no more, and a client that falls silent tells of its records",
                )

    def _price(self) -> Iterator[Finding]:
        assembly = self._assembly
        yield promised(assembly)
        public = _public(assembly)
        if public is None:
            return
        client = assembly.clients[0]
        budget = assembly.budget
        assert budget is not None  # of a private study
        priced = [
            assembly.accountant(public.accountant, relation) for relation in assembly.relations
        ]
        book = ledger.open_ledger(assembly.header(client))
        looked = self._looked_at
        sums = assembly.study.sums
        cost = assembly.solvers[client].cost
        yield from prices.check_prices(
            public,
            cost,
            statement.claims(book, assembly.planned, budget.delta, priced),
            None if looked is None else looked.mechanism,
            None if sums is None else in_sum(cost, sums.honest),
            self._settings.seed,
        )

    def _programs(self) -> Iterator[Finding]:
        solver = self._assembly.solvers[self._assembly.clients[0]]
        if solver.check is None:
            return
        failed = ""
        try:
            solver.check(shard_of(self._assembly, None, self._settings.seed))
        except errors.PrivacyError as error:
            failed = error.message  # of made-up records
        yield judged(
            "programs",
            "rows are treated alike",
            not failed,
            failed or "the same bits in every row that was tried",
            "a made-up record contributes the same in whichever row it stands, and to no other row",
            "what one record adds depends on its row, or on other records: one record may move a sum "
            "further than is charged",
        )

    def _client(self) -> Iterator[Finding]:
        client = self._assembly.clients[0]
        # Made up, whatever the replay reads: what a client is played with is written to files.
        shard = shard_of(self._assembly, None, self._settings.seed)
        solver, recorder = self._assembly.solvers[client], None
        if self._small is not None:
            solver, recorder, slots = self._small
            shard = neighbours.first(shard, slots)
        yield from at_client.check_client(
            solver, recorder, self._task(client), shard, self._settings.seed
        )

    def _sums(self) -> Iterator[Finding]:
        if self._assembly.gather is not None:
            yield from check_sums(self._assembly.spec, self._settings.seed)

    def _one_table(self) -> Iterator[Finding]:
        if not self._settings.one_table:
            return
        solver, promise = self._assembly.solvers[self._assembly.clients[0]], self._assembly.budget
        assert promise is not None  # of a private study
        clip_norm = solver.clip_norm
        yield from one_table.check_one_table(
            one_table.Plan(
                self._assembly.noise_multiplier or 0.0,
                clip_norm if clip_norm is not None and math.isfinite(clip_norm) else 1.0,
                promise.accountant.relation,
            ),
            self._settings.seed,
        )

    def _worst(self) -> Iterator[Finding]:
        assembly = self._assembly
        rows = {} if self._small is None else corners(assembly, self._settings.seed)
        if self._small is None or not any(len(column) for column in rows.values()):
            yield not_checked(
                "worst",
                "worst records",
                "this solver takes no mechanism, so that what a record adds cannot be seen"
                if self._small is None
                else "no record at a corner of the schema counts: there is none to begin with",
            )
            return
        until = time.monotonic() + _SEARCHED
        if self._settings.until is not None:
            until = min(until, self._settings.until)
        yield from extremes.check_extremes(
            self._small,
            self._keys,
            self._posteriors(self._small.solver),
            rows,
            extremes.Search(_CLIMBS, until, self._settings.seed),
            own=self._of_rows(assembly.sampler.capacity),
        )

    def _replay(self) -> Iterator[Finding]:
        assembly = self._assembly
        for name, (shipped, clients) in _distinct(assembly).items():
            for finding in self._replayed(shipped, clients):
                yield finding._replace(check=f"{finding.check}{name}")

    def _profile(self) -> Iterator[Finding]:
        assembly, looked = self._assembly, self._looked_at
        if looked is None:
            yield not_checked(
                "profile", "profile", "this solver takes no mechanism whose noise could be tried"
            )
            return
        solver = assembly.solvers[assembly.clients[0]]
        # Threefry: in draws as small as a trial's it is far faster than ChaCha20, whose bits the replay
        # uses. Every function of the product takes either.
        key = jax.random.key(self._settings.seed)
        atoms = events.counts(assembly.planned)
        if len(atoms) != 1 or assembly.sampler is None or solver.clip_norm is None:
            yield not_checked(
                "profile",
                "profile",
                "this solver's releases are not equal steps of one sampler and one clip norm; the "
                "replay above still looked at each",
            )
            return
        ((step, planned),) = atoms.items()
        yield from profiled(
            assembly, looked.mechanism, solver.clip_norm, step, planned, self._settings.trials, key
        )

    @functools.cached_property
    def _shard(self) -> Shard:
        return shard_of(self._assembly, self._settings.data, self._settings.seed)

    @functools.cached_property
    def _looked_at(self) -> "_Looked | None":
        """The first client's solver, as it is looked at; None if it is not the one that is shipped."""
        return self._watched(*next(iter(_distinct(self._assembly).values())))

    @functools.cached_property
    def _small(self) -> extremes.Sized | None:
        """The same solver for few records, all of which are in every batch: what one of them adds is
        clipped and noised by the same code. None if the solver that ships is another one.
        """
        return None if self._looked_at is None else self._of_rows(extremes.SLOTS)

    def _of_rows(self, rows: int) -> extremes.Sized:
        """Builds the study's solver for so many records, all of which are in every batch."""
        recorders: list[Recorder] = []

        def wrap(mechanism: Mechanism) -> Recorder:
            recorders.append(Recorder(mechanism))
            return recorders[-1]

        solver = self._assembly.solver_with(wrap, lambda _: sampling.full(rows))
        return extremes.Sized(solver, recorders[-1], rows)

    def _task(self, client: str) -> Task:
        assembly = self._assembly
        return Task("audit", client, 0, 0, assembly.prior, assembly.family.zeros(), 1.0)

    def _posteriors(self, solver: LocalSolver) -> dict[str, Task]:
        """The prior, and posteriors far from it, sharp, and both; after a survey also other coordinates."""
        assembly, family = self._assembly, self._assembly.family
        task = self._task(assembly.clients[0])
        prior = assembly.prior
        found = {"the prior": task}
        moved = _moved_far(prior)
        candidates = {
            "sharp": tree.scale(prior, 1e4),
            "far": moved,
            "far and sharp": None if moved is None else tree.scale(moved, 1e4),
        }
        for name, posterior in candidates.items():
            if posterior is not None and family.is_proper(posterior):
                found[name] = task._replace(posterior=posterior)
        if len(found) == 1:
            # Of a family with other parameters: where an answer leads, and far along that way.
            change = tree.subtract(self._answered(task), prior)
            for name, factor in (("after an answer", 1.0), ("far along an answer", 1e3)):
                posterior = tree.add_scaled(prior, change, factor)
                if family.is_proper(posterior):
                    found[name] = task._replace(posterior=posterior)
        if solver.survey is None:
            return found
        size = family.size
        plain = no_coordinates(size, solver.survey)
        centre = np.full(size, 3.0)
        centre[plain.constants] = 0.0
        uneven = plain._replace(centre=centre, scale=np.geomspace(1e-2, 1e2, size))
        asked = {"uneven coordinates": uneven}
        plan = solver.survey["outcome"]
        if plan is not None and plan["sizes"]:
            asked |= {
                "a spread and a level of slopes": uneven._replace(spread=0.5, level=-1.0),
                "sizes of slopes": uneven._replace(sizes=True),
                "sizes of slopes far away": plain._replace(spread=0.5, sizes=True),
            }
        far = found.get("far", task)
        return {
            "the survey": task,
            **{name: task._replace(coordinates=plain) for name, task in found.items()},
            **{
                name: (far if name.endswith("away") else task)._replace(coordinates=at)
                for name, at in asked.items()
            },
        }

    def _answered(self, task: Task) -> Any:
        """Returns the posterior that one answer leads to."""
        solver = self._assembly.solvers[task.client]
        key_of = self._keys(task.client, task.task_id)
        _, released, _ = solver.update(key_of, solver.init(task.posterior), task, self._shard)
        value, _ = codec.decode(codec.encode(released))
        return _next(self._assembly, solver, task, solver.finish(value, task)).posterior

    def _watched(self, shipped: LocalSolver, clients: tuple[str, ...]) -> "_Looked | None":
        assembly = self._assembly
        if assembly.remake is None:
            return None
        recorders: list[Recorder] = []
        samplers: list[SamplerRecorder] = []
        seen: list[Mechanism] = []

        def wrap(mechanism: Mechanism) -> Recorder:
            seen.append(mechanism)
            recorders.append(Recorder(mechanism))
            return recorders[-1]

        def watch(sampler: Sampler) -> SamplerRecorder:
            samplers.append(SamplerRecorder(sampler))
            return samplers[-1]

        random_batches = assembly.sampler is not None and assembly.sampler.rate < 1.0
        solver = assembly.solver_with(wrap, watch if random_batches else None)
        alone = len(set(map(id, assembly.solvers.values()))) == 1
        task = self._task(clients[0])
        kinds = [task]
        if shipped.survey is not None:
            at = no_coordinates(assembly.family.size, shipped.survey)
            kinds.append(task._replace(coordinates=at))
        if not alone and not all(
            runs.same_answer(shipped, solver, self._keys, kind, self._shard) for kind in kinds
        ):
            return None
        return _Looked(solver, recorders[-1], samplers[-1] if samplers else None, seen[-1])

    def _replayed(self, shipped: LocalSolver, clients: tuple[str, ...]) -> list[Finding]:
        """Replays one solver; from outside, if it is not the one that the study builds with a mechanism."""
        assembly, task = self._assembly, self._task(clients[0])
        visits = assembly.schedule.rounds

        def advance(task: Task, answer: Change) -> Task:
            return _next(assembly, shipped, task, answer)

        looked = self._watched(shipped, clients)
        if looked is None:
            return replay.replay_without_mechanism(
                shipped, self._keys, task, self._shard, visits, advance
            )
        names = clients if len(clients) > 1 else (*clients, f"{clients[0]} again")
        return replay.replay(
            looked.solver,
            looked.recorder,
            self._keys,
            task,
            self._shard,
            names,
            visits,
            advance,
            looked.sampler,
            assembly.gather is not None,
            assembly.request.unit,
        )


def _public(assembly: Assembly) -> prices.Public | None:
    """Returns the study in plain numbers; None where nothing is promised."""
    study, budget = assembly.study, assembly.budget
    promise = study.privacy.promise
    if budget is None or promise is None:
        return None
    sampler: Any = assembly.sampler
    fixed = getattr(sampler, "batch", 0) if sampler is not None and sampler.rate < 1.0 else 0
    sums = study.sums
    custom = study.is_outside("solver") or study.is_outside("sampler")
    return prices.Public(
        solver=study.solver.kind if not custom else f"{study.solver.kind} (custom code)",
        settings=study.solver.arguments,
        unit=promise.unit,
        relation=promise.relation,
        view=study.privacy.view,
        visits=assembly.schedule.rounds,
        clients=len(study.clients),
        noise=assembly.noise_multiplier or 0.0,
        rate=1.0 if sampler is None else float(sampler.rate),
        fixed=bool(fixed),
        batch=fixed,
        slots=sampler.max_records if fixed else 0,
        least_reporting=1 if sums is None else sums.noises,
        colluding=0 if sums is None else sums.colluding,
        epsilon=promise.epsilon,
        delta=budget.delta,
        accountant=study.privacy.accountant,
    )


def _moved_far(prior: Any) -> Any:
    """Returns a Gaussian whose mean is far from the prior's, in its sds; None of another family."""
    fields = getattr(prior, "_fields", ())
    if "h" not in fields or not ({"J", "d"} & set(fields)):
        return None
    precision = np.asarray(prior.J if "J" in fields else prior.d)
    diagonal = np.diagonal(precision) if precision.ndim == 2 else precision
    signs = np.where(np.arange(len(diagonal)) % 2, -1.0, 1.0)
    mean = _FAR * signs / np.sqrt(diagonal)
    shifted = precision @ mean if precision.ndim == 2 else precision * mean
    return prior._replace(h=np.asarray(prior.h) + shifted)


def promised(assembly: Assembly) -> Finding:
    """Whether all that a client may release over the study costs no more than was promised."""
    budget = assembly.budget
    assert budget is not None  # of a private study

    def price(solver: LocalSolver) -> float:
        try:
            planned = events.repeat(solver.cost, assembly.schedule.rounds)
            return budget.accountant.epsilon(planned, budget.delta)
        except errors.PrivacyError:
            return math.inf  # an accountant that refuses to price it promises nothing

    spent = max(price(solver) for solver, _ in _distinct(assembly).values())
    passed = spent <= budget.epsilon
    return judged(
        "price",
        "the plan is within its promise",
        passed,
        f"{assembly.schedule.rounds} visits cost ε {spent:.4g} of {budget.epsilon:g}, by "
        f"{budget.accountant.name}",
        "what a client is charged over the whole study is no more than the ε that was promised",
        "the study spends more ε than it promises",
        {"epsilon": spent, "promised": budget.epsilon},
    )


def _distinct(assembly: Assembly) -> dict[str, tuple[LocalSolver, tuple[str, ...]]]:
    """The data holders' solvers, each once, with its clients; what a check is called after it."""
    groups: dict[int, list[str]] = {}
    for client in assembly.clients:
        groups.setdefault(id(assembly.solvers[client]), []).append(client)
    return {
        "" if len(groups) == 1 else f", {' '.join(clients)}": (
            assembly.solvers[clients[0]],
            tuple(clients),
        )
        for clients in groups.values()
    }


def _next(assembly: Assembly, solver: LocalSolver, task: Task, answer: Change) -> Task:
    """The client's next task as its server would make it, were it the only client that answers."""
    if answer.survey is not None and answer.sized is not None:
        noise: Any = solver.stand
        rescaled, _ = of_sizes(
            cast(Survey, solver.survey),
            cast(Coordinates, task.coordinates),
            np.concatenate([answer.survey.h, np.diagonal(answer.survey.J)]),
            noise.keywords["gradient_sd"],
        )
        return task._replace(version=task.version + 1, coordinates=rescaled)
    if answer.survey is not None and solver.stand is not None:
        prior, client = assembly.prior, task.client
        told = Fold(prior, prior, prior, {client: task.factor}, {client: task.posterior}, 1.0)
        told = told._replace(surveys={client: answer.survey})
        at = solver.stand(assembly.family, told, None).coordinates
        return task._replace(version=task.version + 1, coordinates=at)
    floor = 1.0 / len(assembly.clients)
    posterior, delta = task.posterior, answer.delta
    damping = assembly.step_rule.choose(
        assembly.family, posterior, posterior, delta, Memory(), floor
    )
    factors = fold({task.client: task.factor}, {task.client: answer.delta}, damping)
    moved = posterior_of(assembly.prior, factors)
    if not assembly.family.is_proper(moved):
        return task
    return task._replace(
        version=task.version + 1, posterior=moved, factor=factors[task.client], damping=damping
    )
