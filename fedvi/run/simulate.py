"""Runs a whole federation in one process, with the workers, messages and coordinator of a deployment."""

import contextlib
import dataclasses
import functools
import heapq
import itertools
import math
import random as public_random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.client.fleet import Fleet
from fedvi.client.worker import Outcome, Visit, Worker
from fedvi.data.source import ArraySource, concatenate
from fedvi.expfam import tree
from fedvi.expfam.base import DenseGaussian
from fedvi.inference import prior_factor
from fedvi.inference.local_latents import takes_newton
from fedvi.inference.solvers import glm, gradient
from fedvi.inference.vips import VIPS
from fedvi.models.capabilities import SharesEffects
from fedvi.planning import advice
from fedvi.privacy import accountants, caveats, events, joint_claims, ledger, random, statement
from fedvi.privacy.descent import sgd
from fedvi.privacy.many_ledgers import Together
from fedvi.privacy.metrics import Private
from fedvi.privacy.spoken import up
from fedvi.run import loading, made_up
from fedvi.run.changes import Changes
from fedvi.run.site import client_worker, prior_worker, shard_of
from fedvi.run.whole_rounds import WholeRounds
from fedvi.server.coordinator import Coordinator
from fedvi.server.core import key_board, protocol
from fedvi.store.base import ClientStore
from fedvi.store.memory import MemoryClientStore, MemoryServerStore
from fedvi.store.sqlite import SqliteClientStore
from fedvi.study import build
from fedvi.study import policies as site_policies
from fedvi.study.build import PRIOR, Assembly
from fedvi.study.config import GivenParts, Study
from fedvi.transport.memory import MemoryLink
from fedvi.transport.signers import Signer, within_one_process
from fedvi.typing import SITE, Eta
from fedvi.updates.base import Shard, Standing, Task
from fedvi.updates.conjugate import ConjugateModel

__all__ = ["Clock", "Moment", "Result", "Site", "drive", "run", "simulate"]


class Moment(NamedTuple):
    """The public state of a simulation after a fold, for a progress display.

    Attributes:
      update: the server's record of the fold.
      rounds: the number of planned rounds.
      elapsed_seconds: real time since the start.
      simulated_seconds: time on the simulated clock.
      epsilon: the largest ε that any client has spent, in the study's relation; infinite without
        protection.
    """

    update: protocol.Update
    rounds: int
    elapsed_seconds: float
    simulated_seconds: float
    epsilon: float


@dataclasses.dataclass(frozen=True)
class Site:
    """One client's side of the result.

    Attributes:
      name: the client.
      records: how many records it holds, only if the study declares that public.
      releases: the number of answers it sent.
      numbers: the total number of scalars it sent.
      claims: the privacy cost of its records, by relation; empty without protection.
    """

    name: str
    records: int | None
    releases: int
    numbers: int
    claims: tuple[statement.Claim, ...]


@dataclasses.dataclass(frozen=True, repr=False)
class Result:
    """A fitted posterior and its privacy cost.

    Attributes:
      assembly: the study, built.
      posterior: η of the served q, float64.
      factors: worker → η_m.
      sites: per client.
      consortium: the claims for the whole federation.
      history: all folds.
      ledgers: client → its ledger.
      improper: whether Σ factors was improper at the end, so that q is a projection.
      pooled: η of the non-private fit to all shards pooled, if requested.
      residuals: worker (and "pooled") → distance, in posterior sds, from a deterministic solver's optimum
        at the last visit. It is computed from records, so only in studies without protection.
      elapsed_seconds: real time of the run, compilation included.
      standing: the server's last result from noisy factors; None if it just adds them up.
    """

    assembly: Assembly
    posterior: Eta
    factors: Mapping[str, Eta]
    sites: tuple[Site, ...]
    consortium: tuple[statement.Claim, ...]
    history: tuple[protocol.Update, ...]
    ledgers: Mapping[str, ledger.Ledger]
    improper: bool
    pooled: Eta | None
    residuals: Mapping[str, float]
    elapsed_seconds: float
    standing: Standing | None = None

    def __repr__(self) -> str:
        study, count = self.assembly.study, len(self.assembly.model.names)
        said = f"{count} coefficients from {len(self.sites)} clients in {len(self.history)} folds"
        prices = [f"ε ≤ {up(c.epsilon)} under {c.relation}" for c in self.consortium]
        price = ", ".join(dict.fromkeys(prices)) or "no protection"
        mark = f"; MARKED: {self.assembly.mark}" if self.assembly.mark else ""
        return f"{type(self).__name__}({study.study.name}: {said}; {price}{mark})"


def simulate(
    study: Study,
    base: str | Path | None = None,
    *,
    pooled: bool = False,
    on_moment: Callable[[Moment], None] | None = None,
    state: Path | None = None,
    policies: Mapping[str, Path] | None = None,
    life: Path | None = None,
    begin_life: bool = False,
    private_metrics: Path | None = None,
    on_warning: Callable[[str], None] | None = None,
    remove: Mapping[str, int] | None = None,
    add: Mapping[str, int] | None = None,
    cache: Path | None = None,
    on_pooled: Callable[[], None] | None = None,
    parts: GivenParts | None = None,
) -> Result:
    """Runs a study's federation in this process.

    Workers, coordinator and messages are those of a deployment; only the link, the stores and the
    clock are stand-ins. Declared latencies and the study's seed order the workers on a simulated
    clock, so that runs without noise, or with ``insecure_seed``, replay exactly; but for masked sums that
    lack a site, whose layers of noise follow from no seed.

    Args:
      study: from ``load_study``.
      base: the folder that the clients' data paths start from, as a rule the study file's; None: the
        working directory.
      pooled: fit the same model to all shards pooled, without privacy, for comparison. Only for
        data that may be pooled: the result then holds an unprotected posterior.
      on_moment: called after each fold.
      on_pooled: called before the pooled fit, if there is one; no moment follows.
      state: a new or empty folder for the clients' ledgers, ``state/CLIENT/ledger.sqlite``; None
        keeps them in memory, until the process ends.
      policies: client → the file of its own policy (``fedvi.client.policy``).
      life: the folder of the ledgers for life, one for each ``site`` in a policy's [life]; None: that of
        the environment variable FEDVI_LIFE, or ``$XDG_STATE_HOME/fedvi/life``, or
        ``~/.local/state/fedvi/life``. It does not follow from the policies' files.
      begin_life: begin a ledger for life, with nothing spent, even if the folder has one of another site.
      private_metrics, remove, add: see ``run``.
      cache: a folder for prepared records on disk, whatever their number; None: in memory, or in the
        system's folder for temporary files if they would take much memory.
      on_warning: called with each warning of `fedvi check`, before data are read; if a ledger for life is
        begun; and for a client of whose records at least 1 % count as zero, or that has more records than
        the study declares. The latter two are private: only for someone who may see all
        records. Left out, they are Python's warnings; None: no word is said.
      parts: the code from outside fedvi that the study names: name → the function or class itself, such as
        ``{"waiting": Waiting}``. A study file cannot import any.

    Raises:
      CodeRefused: the study names a plug-in, and neither passed nor allowed it.
      ConfigError: without ``base``, a client's file is not in the working directory.
      FedviError: before anything is computed, if the study or the data does not fit.
    """
    if parts is not None and isinstance(study, Study):
        study = study.with_parts(parts)
    files = policies or {}
    judged = site_policies.load(files, study)
    site_policies.check_code(judged, study)
    assembly = build.assemble(study)
    if base is None:
        _check_found(study)
    if on_warning is not None:
        for line in advice.doubts(assembly):
            on_warning(line)
    guards = site_policies.guards(
        judged, files, assembly, life=life, begin_life=begin_life, tell=on_warning
    )
    admit = {name: guard.admit for name, guard in guards.items()}
    disk = loading.Disk(cache, always=cache is not None)
    sources = loading.load_shards(assembly, Path(base or "."), disk=disk, tell=on_warning)
    result = run(
        assembly,
        sources,
        pooled=pooled,
        on_moment=on_moment,
        state=state,
        admit=admit,
        private_metrics=private_metrics,
        remove=remove,
        add=add,
        on_pooled=on_pooled,
    )
    spent = {name: guard.lifetime_spend() for name, guard in guards.items()}
    sites = tuple(_with_lifetime(site, spent.get(site.name)) for site in result.sites)
    return dataclasses.replace(result, sites=sites)


def _check_found(study: Study) -> None:
    """Refuses paths that start nowhere, where the caller said nothing of a folder."""
    for client in study.clients:
        if client.data is not None and not Path(client.data).exists():
            raise errors.ConfigError(
                f"clients: {client.name!r} has its data at {client.data!r}, and the working directory has "
                "no such file",
                'say where the paths start, often the folder of the study file: simulate(study, "FOLDER")',
            )


def run(
    assembly: Assembly,
    sources: Mapping[str, ArraySource],
    *,
    pooled: bool = False,
    on_moment: Callable[[Moment], None] | None = None,
    state: Path | None = None,
    admit: Mapping[str, Callable[[Task, events.Event, events.Event], None]] | None = None,
    private_metrics: Path | None = None,
    remove: Mapping[str, int] | None = None,
    add: Mapping[str, int] | None = None,
    on_pooled: Callable[[], None] | None = None,
) -> Result:
    """Runs a built study on records that are in memory; see ``simulate``.

    Args:
      assembly: from ``build.assemble``.
      sources: client → its records, laid out as the model wants them.
      pooled, on_moment, on_pooled, state: see ``simulate``.
      admit: client → the check that its ``Worker`` makes before a task is charged.
      private_metrics: a folder for each client's solver metrics, which depend on its records, as files
        ``CLIENT.jsonl`` that must not leave the client; None, the default, keeps nothing.
      remove: client → the number of complete rounds after which its factor is divided out, as by
        ``fedvi remove``; 0 is before the first task.
      add: client of the study → the number of complete rounds after which it joins, as by ``fedvi server
        --extend``; until then the run has only the others. If the run ends first, the change is not made;
        the result's history shows which were.

    Raises:
      ConfigError: if ``state`` is not empty; or a client cannot be removed or added.
      DataError: if a client has no source, or one exceeds the declared ``max_records``.
    """
    started = time.monotonic()
    study = assembly.study
    for name in assembly.clients:
        if name not in sources:
            raise errors.DataError(f"no records for client {name!r}")
    shards = {name: shard_of(assembly, name, sources[name]) for name in assembly.clients}
    clock = Clock()
    spec = assembly.spec
    changes = Changes(spec, remove or {}, add or {})
    with contextlib.ExitStack() as closing:
        stores = _stores(spec, state, closing)

        def on_update(update: protocol.Update) -> None:
            if on_moment is not None:
                spent = _spent(assembly, coordinator.state.ledgers)
                elapsed = time.monotonic() - started
                on_moment(Moment(update, assembly.schedule.rounds, elapsed, clock.now, spent))

        coordinator = Coordinator(changes.first, MemoryServerStore(), on_update, lambda: clock.now)
        link = MemoryLink(coordinator.handle)
        workers, signers = {}, dict[str, Signer]()
        if assembly.gather is not None and assembly.gather.bits is not None:
            signers = within_one_process(assembly.clients)
        if PRIOR in assembly.solvers:
            workers[PRIOR] = prior_worker(assembly, link)
        layout = made_up.layout_of(assembly)
        for name in assembly.clients:
            workers[name] = client_worker(
                assembly,
                name,
                link,
                stores[name],
                shards[name],
                admit=(admit or {}).get(name),
                metrics_folder=private_metrics,
                signer=signers.get(name),
                layout=layout,
            )
        drive(workers, coordinator, _latencies(study), study.study.seed, clock, changes)
    final = coordinator.state
    ledgers: Mapping[str, ledger.Ledger] = final.ledgers
    if not (isinstance(ledgers, Together) and len(ledgers) == len(assembly.clients)):
        ledgers = {name: stores[name].ledger for name in assembly.clients}
    sites = _sites(assembly, sources, ledgers)
    residuals = _residuals(study, workers)
    pooled_eta = None
    if pooled:
        if on_pooled is not None:
            on_pooled()
        pooled_eta, residuals["pooled"] = _pooled(assembly, sources)
        sites = tuple(_with_pooled_excluded(site) for site in sites)
    claims = [claim for site in sites for claim in site.claims]
    return Result(
        assembly=assembly,
        posterior=tree.to_numpy(protocol.reported(spec, final)),
        factors=final.factors,
        sites=sites,
        consortium=joint_claims.consortium(claims, study.privacy.disjoint) if claims else (),
        history=final.history,
        ledgers=ledgers,
        improper=final.standing is None and not assembly.family.is_proper(final.posterior),
        pooled=pooled_eta,
        residuals=residuals,
        elapsed_seconds=time.monotonic() - started,
        standing=final.standing,
    )


def _stores(
    spec: protocol.ServerSpec, state: Path | None, closing: contextlib.ExitStack
) -> dict[str, ClientStore]:
    """Opens every client's store."""
    if state is not None and state.exists() and (not state.is_dir() or any(state.iterdir())):
        raise errors.ConfigError(
            f"the state folder {state} is not empty, expected a new or empty one",
            "a simulation starts from the beginning: give a fresh folder, and keep this one, which "
            "is the record of what was spent",
        )
    if state is None:
        books = ledger.open_ledgers(spec.headers)
        return {name: MemoryClientStore(book) for name, book in books.items()}
    return {
        name: closing.enter_context(contextlib.closing(SqliteClientStore(state / name, header)))
        for name, header in spec.headers.items()
    }


class Clock:
    """The simulated clock, in seconds."""

    now = 0.0


def drive(
    workers: Mapping[str, Worker],
    coordinator: Coordinator,
    latencies: Mapping[str, Callable[[], float]],
    seed: int,
    clock: Clock,
    changes: Changes | None = None,
) -> None:
    """Lets the workers tick in the order of a simulated clock until all are done.

    A worker that solved a task sends its answer one latency later. A worker without a task sleeps until
    a fold, or until a client is skipped, as a long poll would. Ties are broken by a seeded order. The
    coordinator must use this clock, and ticks at its deadlines. ``changes`` of the participants are made
    as soon as they are due.
    """
    order = list(workers)
    public_random.Random(seed).shuffle(order)
    ticket = itertools.count()
    if changes is not None:
        changes.make(coordinator)
    absent = set() if changes is None else changes.absent
    queue = [(0.0, next(ticket), name) for name in order if name not in absent]
    heapq.heapify(queue)
    asleep: list[str] = []
    fleet = Fleet()
    whole = WholeRounds(workers, coordinator, fleet)
    # Visits that have begun are computed together, before any event other than another visit's start.
    begun: dict[str, Visit] = {}
    while queue or asleep:
        if not (asleep or begun) and (changes is None or changes.are_made):
            went = whole.go(queue, latencies, clock)
            if went is not None:
                if coordinator.state.status in protocol.OVER:
                    return
                queue = [(clock.now, next(ticket), name) for name in went]
        before = _standing(coordinator)
        if begun and (not queue or queue[0][0] > clock.now or queue[0][2] in begun):
            _end(workers, begun, fleet.computed(list(begun.values())))
        deadline = coordinator.next_deadline
        if deadline is not None and (not queue or deadline <= queue[0][0]):
            clock.now = deadline
            coordinator.tick()
        elif queue:
            clock.now, _, name = heapq.heappop(queue)
            outcome = workers[name].begin()
            delay = 0.0
            if isinstance(outcome, Visit):
                begun[name], delay = outcome, latencies[name]()
            if outcome == "idle":
                asleep.append(name)
            elif outcome != "done":
                heapq.heappush(queue, (clock.now + delay, next(ticket), name))
        else:
            raise errors.ProtocolError(
                f"the schedule stopped before its end: {', '.join(asleep)} wait for tasks that "
                "never come",
                "a schedule must offer a task to some client until it has finished",
            )
        for name in () if changes is None else changes.make(coordinator):
            heapq.heappush(queue, (clock.now, next(ticket), name))
        if _standing(coordinator) != before:
            for sleeper in asleep:
                heapq.heappush(queue, (clock.now, next(ticket), sleeper))
            asleep = []


def _end(
    workers: Mapping[str, Worker], begun: dict[str, Visit], outcomes: list[Outcome | Exception]
) -> None:
    for (name, visit), outcome in zip(begun.items(), outcomes, strict=True):
        workers[name].end(visit, outcome)
    begun.clear()


def _standing(coordinator: Coordinator) -> tuple[Any, ...]:
    """Returns the state whose change wakes a waiting client."""
    state = coordinator.state
    return state.version, state.status, *key_board.standing(state), state.turns


def _latencies(study: Study) -> dict[str, Callable[[], float]]:
    """Returns each worker's latency distribution; the prior's worker runs at the server, without delay."""
    jitter = study.simulation.latency_jitter

    @functools.cache
    def always(seconds: float) -> Callable[[], float]:
        return lambda: seconds

    def law(name: str, seconds: float) -> Callable[[], float]:
        if jitter == 0.0:  # a generator takes 2.5 KB, and there may be very many clients
            return always(seconds)
        generator = public_random.Random(f"{study.study.seed}/{name}")
        return lambda: seconds * generator.uniform(1.0 - jitter, 1.0 + jitter)

    laws = {client.name: law(client.name, client.latency_seconds) for client in study.clients}
    return {PRIOR: lambda: 0.0, **laws}


def _spent(assembly: Assembly, ledgers: Mapping[str, ledger.Ledger]) -> float:
    if assembly.budget is None:
        return float("inf")
    books = (ledgers.first,) if isinstance(ledgers, Together) else ledgers.values()
    costs = {ledger.spent(book) for book in books}
    accountant, delta = assembly.budget.accountant, assembly.budget.delta
    return max(accountant.epsilon(cost, delta) for cost in costs)


def _residuals(study: Study, workers: Mapping[str, Worker]) -> dict[str, float]:
    """Returns how far the local solvers were from convergence, in studies without privacy."""
    if study.privacy.private:
        return {}
    found = {name: worker.info.get("residual") for name, worker in workers.items()}
    return {
        # These records leave unprotected anyway.
        name: float(metric.reveal() if isinstance(metric, Private) else metric.value)
        for name, metric in found.items()
        if metric is not None
    }


def _with_lifetime(site: Site, spent: statement.LifetimeSpend | None) -> Site:
    claims = tuple(claim._replace(lifetime=spent) for claim in site.claims)
    return dataclasses.replace(site, claims=claims)


def _with_pooled_excluded(site: Site) -> Site:
    claims = tuple(
        claim._replace(exclusions=(*claim.exclusions, caveats.POOLED)) for claim in site.claims
    )
    return dataclasses.replace(site, claims=claims)


def _sites(
    assembly: Assembly,
    sources: Mapping[str, ArraySource],
    ledgers: Mapping[str, ledger.Ledger],
) -> tuple[Site, ...]:
    names = assembly.clients
    if not isinstance(ledgers, Together):
        return tuple(_site(assembly, name, sources[name].size, ledgers[name]) for name in names)
    first = _site(assembly, names[0], 0, ledgers.first)
    public = assembly.study.privacy.records_public
    return tuple(
        dataclasses.replace(
            first,
            name=name,
            records=sources[name].size if public else None,
            claims=tuple(claim._replace(client=name) for claim in first.claims),
        )
        for name in names
    )


def _site(assembly: Assembly, name: str, rows: int, book: ledger.Ledger) -> Site:
    privacy, promise = assembly.study.privacy, assembly.study.privacy.promise
    releases = sum(entry.kind == "sealed" for entry in book.entries)
    claims: tuple[statement.Claim, ...] = ()
    if promise is not None:
        factory = getattr(accountants, privacy.accountant)
        priced = [factory(relation) for relation in assembly.relations]
        claims = statement.claims(book, assembly.planned, promise.delta, priced)
    return Site(
        name=name,
        # All rows, valid or not: how many are valid depends on what they hold.
        records=rows if privacy.records_public else None,
        releases=releases,
        numbers=releases * assembly.solvers[name].number_count,
        claims=claims,
    )


def _pooled(assembly: Assembly, sources: Mapping[str, ArraySource]) -> tuple[Eta, float]:
    """Fits all records together without privacy, to compare the federation with.

    Returns its η, and how far in posterior sds the fit stopped from its optimum (0 if the solver does not
    report it).

    The whole consortium is one client here; the only other worker is the prior's, if there is one.
    """
    family, model = assembly.family, assembly.model
    if isinstance(model, ConjugateModel):
        return _pooled_statistics(assembly, model, sources), 0.0
    flat = [source.flat() for source in sources.values()]
    if isinstance(model, SharesEffects):
        shared: Any = model
        model = dataclasses.replace(shared, sites=len(flat))
        flat = [
            ArraySource({**source.records, SITE: np.full(source.size, index)}, source.valid)
            for index, source in enumerate(flat)
        ]
    together = concatenate(flat)
    records, mask = together.padded(together.size)
    if getattr(getattr(model, "surveyed", None), "learnt", False):
        regression: Any = model
        model = regression.with_noise(_residual_sd(regression, records, mask, assembly.prior.J))
    by_newton = takes_newton(model) and isinstance(family, DenseGaussian)
    solver = (glm if by_newton else gradient)(family, model)
    parties = [("pooled", solver, Shard(records, np.asarray(mask, bool)))]
    rounds, residual = 1, 0.0
    if PRIOR in assembly.solvers:
        parties.append((PRIOR, assembly.solvers[PRIOR], prior_factor.empty_shard()))
        rounds = 5
    root = random.insecure_root(assembly.study.study.seed)
    posterior = assembly.prior
    factors = {name: family.zeros() for name, _, _ in parties}
    for visit in range(rounds):
        for name, party, shard in parties:
            task = Task(f"{name}/{visit}", name, visit, 0, posterior, factors[name], 1.0)
            keys = functools.partial(root.key, "pooled", task.task_id)
            _, released, info = party.update(keys, party.init(posterior), task, shard)
            change = party.finish(released.value, task)
            factors[name] = tree.add(factors[name], change.delta)
            posterior = tree.add(posterior, change.delta)
            told = info.get("residual", residual)
            residual = float(told.reveal() if isinstance(told, Private) else told)
    return tree.to_numpy(posterior), residual


def _residual_sd(model: Any, records: Any, mask: Any, precision: np.ndarray) -> float:
    """Returns the sd of the residuals of all records pooled, at the mean for noise of that sd."""
    x, y = (np.asarray(records[name], np.float64)[np.asarray(mask, bool)] for name in ("x", "y"))
    if y.ndim > 1:
        y = y[:, 0] - y[:, 1]
    sd = float(model.noise_scale)
    for _ in range(20):
        residual = y - x @ np.linalg.solve(x.T @ x + sd**2 * precision, x.T @ y)
        sd = max(float(np.sqrt((residual**2).mean())), 1e-9)
    return sd


def _pooled_statistics(
    assembly: Assembly, model: ConjugateModel, sources: Mapping[str, ArraySource]
) -> Eta:
    """Fits a conjugate model to all records together, for as many rounds as the study, without noise."""
    together = concatenate(list(sources.values()))
    kept = together.take(np.flatnonzero(together.valid))
    plan = sgd(
        noise_multiplier=0.0,
        clip_norm=math.inf,
        steps=assembly.schedule.rounds,
        max_records=max(1, int(together.valid.sum())),
        sampler="full",
        float_noise=True,
    )
    return VIPS(model, plan).run(kept, progress_bar=False).posterior
