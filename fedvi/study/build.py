"""Builds the pieces that run a study; reads no data."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fedvi import errors
from fedvi.client.policy import Request
from fedvi.expfam import tree
from fedvi.federation import damping
from fedvi.federation.progress import Patience, Schedule
from fedvi.privacy import accountants, events, ledger, masks, top_up
from fedvi.privacy.accountants import Accountant
from fedvi.privacy.base import Mechanism, Sampler
from fedvi.privacy.caveats import UNVETTED
from fedvi.privacy.delta_parts import with_tables
from fedvi.privacy.sums import with_sums
from fedvi.server.core.protocol import ServerSpec
from fedvi.server.core.sum_rounds import Gather
from fedvi.study import modelling, noising, priors, site_effects
from fedvi.study.config import Study
from fedvi.study.implausible import implausible
from fedvi.study.rare_references import rare_references
from fedvi.study.spec import coefficients
from fedvi.study.spec import shared_parts as parts
from fedvi.study.spec.shared_parts import PRIOR
from fedvi.typing import Eta
from fedvi.updates.abilities import ability
from fedvi.updates.base import CleanState, LocalSolver
from fedvi.updates.conjugate import brings_family
from fedvi.updates.coordinates import ENOUGH_FOR_SIZES, MOST_COUNT_NOISE, Foreseen

__all__ = ["PRIOR", "Assembly", "assemble"]

# Share of the promised ε below which a study is warned; calibration comes within a thousandth of it.
_SPENT = 0.98
# Numbers in a message from which it cannot be guessed: given the sum, each has over 12.8 bits of noise.
_UNGUESSABLE = 10
# Room for grid steps that one noise value, or a padded batch, may add.
_LARGEST_TAIL = 2.0**26


@dataclasses.dataclass(frozen=True)
class Assembly:
    """Everything about a study that is known before any record is read.

    Attributes:
      study: as validated.
      schema: the declared columns.
      design: the formula's design, or None for a model that takes columns by name.
      model: a ``Model`` on the unconstrained θ, or a ``ConjugateModel``.
      family: of q.
      prior: η_0 in the family, proper.
      schedule: decides which clients work when.
      patience: how long the server waits for a client.
      solvers: worker → its solver; includes the prior's worker, if there is one.
      budget: what each client may spend; None without protection.
      noise_multiplier: of the mechanism, given or calibrated; None if the solver adds no noise.
      sampler: of the solver, or None.
      mark: printed beside every claim; empty if nothing needs saying.
      table_distance: total variation between the noise of one noised sum, over all of its coordinates,
        and the law that is priced; for sums over clients, of all clients' noises; 0 if noise is not
        drawn from a table.
      warnings: settings that are allowed but probably unintended, one sentence each.
      remake: builds the solver with a changed mechanism and sampler, see ``solver_with``; None if it
        adds no noise.
      gather: how the server sums answers, under the view "aggregate"; else None.
      columns: of the schema, that the model reads.
      by_ids: whether records are divided into parts by their identifiers.
    """

    study: Study
    schema: Any
    design: Any
    model: Any
    family: Any
    prior: Eta
    schedule: Schedule
    step_rule: damping.StepRule
    patience: Patience
    solvers: Mapping[str, LocalSolver]
    budget: ledger.Budget | None
    noise_multiplier: float | None
    sampler: Any
    mark: str
    table_distance: float = 0.0
    warnings: tuple[str, ...] = ()
    remake: Callable[..., LocalSolver] | None = None
    gather: Gather | None = None
    columns: tuple[str, ...] = ()
    by_ids: bool = False

    @functools.cached_property
    def clients(self) -> tuple[str, ...]:
        """The data holders, in the order of the study."""
        return tuple(client.name for client in self.study.clients)

    @property
    def units(self) -> tuple[str, ...]:
        """The units in which θ's coordinates are told, see ``fedvi.study.spec.coefficients``."""
        return coefficients.units_of(self.study, self.model.names)

    @functools.cached_property
    def digests(self) -> tuple[str, str]:
        """The study's ``digest`` and ``origin_digest``, cached since each reads all clients."""
        return self.study.digest, self.study.origin_digest

    @functools.cached_property
    def planned(self) -> events.Event:
        """The largest event that one client can release over the whole study."""
        return events.repeat(self.solvers[self.clients[0]].cost, self.schedule.rounds)

    @property
    def relations(self) -> tuple[events.Relation, ...]:
        """The relations under which the plan is priced, including the promised one.

        If the number of records is published, only substitution leaves it unchanged. Batches of
        fixed size have a price only under substitution.
        """
        privacy = self.study.privacy
        offered: tuple[events.Relation, ...] = (
            ("substitute",) if privacy.records_public else events.RELATIONS
        )
        return tuple(
            relation
            for relation in offered
            if self.accountant(privacy.accountant, relation).supports(self.planned)
        )

    def accountant(self, name: str, relation: events.Relation) -> Accountant:
        """Returns one of ``accountants.__all__``, whose price includes the noise's tables.

        It takes the events of messages, and prices what the study's view shows of them.
        """
        accountant = with_sums(getattr(accountants, name)(relation), self.study.sums)
        return with_tables(accountant, self.table_distance)

    @property
    def grouped(self) -> bool:
        """Whether a record is a unit of several rows, which a noisy solver clips as one.

        Solvers without noise clip nothing, and use one record per row.
        """
        return self.study.data.unit_column is not None and self.remake is not None

    @property
    def request(self) -> Request:
        """The study's request to a client, which the client's own policy checks."""
        study, promise = self.study, self.study.privacy.promise
        # Without noise there is no sampler and no mechanism, whatever the study says.
        without = {} if self.remake is not None else {"sampler": "", "mechanism": ""}
        return Request(
            **(study.kinds | without),
            accountant=study.privacy.accountant if promise else "",
            relation=promise.relation if promise else "substitute",
            view=study.privacy.view,
            unit=promise.unit if promise else "record",
            rounds=self.schedule.rounds,
            planned=self.planned,
            sums=study.sums,
            table_distance=self.table_distance,
            secure=study.aggregation.secure,
            simulated=bool(self.solvers[self.clients[0]].mark)
            or study.simulation.insecure_seed is not None,
            unprotected=not study.privacy.private,
        )

    def solver_with(
        self,
        wrap: Callable[[Mechanism], Mechanism],
        watch: Callable[[Sampler], Sampler] | None = None,
    ) -> LocalSolver:
        """Rebuilds the study's private solver, its mechanism wrapped by ``wrap``, its sampler by ``watch``.

        For an audit, which inspects the mechanism's input. The price of such a solver's releases follows
        from the changed parts, and only the auditor may see them.

        Raises:
          ConfigError: the solver adds no noise, or refuses the mechanism.
        """
        if self.remake is None:
            raise errors.ConfigError(
                f"solver.kind is {self.study.solver.kind!r}, which has no mechanism to look at",
                'use a private solver such as "dp_optimisation"',
            )
        return self.remake(wrap, watch)

    def header(self, client: str) -> ledger.Header:
        """Returns the header of a worker's ledger; the prior's reads no record and promises nothing."""
        study, promise = self.study, self.study.privacy.promise
        header = ledger.Header(
            study=study.study.name,
            study_digest=self.digests[1],
            client=client,
            unit=promise.unit if promise else "record",
            relation=promise.relation if promise else "substitute",
            view=study.privacy.view,
            protected=study.privacy.private,
            note=self.mark,
        )
        if study.sums is not None:
            header = header._replace(**study.sums._asdict(), secure=study.aggregation.secure)
        if promise is None or client == PRIOR:
            return header
        return header._replace(
            planned=self.planned,
            epsilon=promise.epsilon,
            delta=promise.delta,
            accountant=study.privacy.accountant,
            table_distance=self.table_distance,
            disjoint=study.privacy.disjoint,
            records_public=study.privacy.records_public,
            max_records=study.data.max_records,
            rows_per_unit=study.data.rows_per_unit if self.grouped else None,
        )

    @property
    def spec(self) -> ServerSpec:
        """The server's part of the study."""
        header = self.header(self.clients[0])
        return ServerSpec(
            study_digest=self.digests[0],
            clients=tuple(self.solvers),
            family=self.family,
            prior=self.prior,
            schedule=self.schedule,
            step_rule=self.step_rule,
            finish={name: solver.finish for name, solver in self.solvers.items()},
            costs={name: solver.cost for name, solver in self.solvers.items()},
            patience=self.patience,
            headers={name: header._replace(client=name) for name in self.clients},
            budget=self.budget,
            seeded_otherwise=self.study.digest_if_seeded_otherwise,
            stand=self.solvers[self.clients[0]].stand,
            renews=self.solvers[self.clients[0]].renews,
            # A limit counts on Gaussian noise; a plug-in's may have longer tails.
            limits={
                name: solver.limit
                for name, solver in self.solvers.items()
                if solver.limit is not None and not self.study.is_outside("mechanism")
            },
            gather=self.gather,
        )


def assemble(study: Study) -> Assembly:
    """Builds and checks everything but the data.

    Raises:
      CodeRefused, PolicyRefused: it names a plug-in that nobody allowed.
      ConfigError, ModelError, PrivacyError: name the part of the study that cannot be carried out.
    """
    if not isinstance(study, Study):
        raise errors.ConfigError(
            f"the study is {study!r:.80}, expected what `load_study` returns",
            "read a file with fedvi.load_study(path)",
        )
    study.check_code()
    private = study.privacy.private
    schema, (schedule, step_rule, patience), budget, _ = errors.all_of(
        lambda: modelling.schema_of(study),
        lambda: parts.schedule(study),
        lambda: parts.budget(study),
        lambda: modelling.check_ids(study),
    )
    design, model = modelling.model_of(study, schema)
    columns = modelling.columns_read(design, study, schema)
    modelling.check_columns(study, schema, columns)
    by_ids, norm = modelling.divides(study), modelling.typical_norm(design, schema)
    modelling.check_noise(study, model)
    curvature = modelling.declared_curvature(study, design, model)
    unseen = modelling.vanishing(design, schema, model.names)
    most, exposed = modelling.outcome_range(design, schema)
    wide = modelling.by_bounds(design, schema, model.names)
    several = modelling.several_ranges(design, schema)
    size = len(model.names)
    family = parts.family(study, size)
    if family.size != size:
        raise errors.ConfigError(
            f"family.kind is {study.family.kind!r}, which makes a family of size {family.size}, "
            f"but the model has {size} coordinates",
            "a family's function is called with `size` and must keep to it",
        )
    public = Foreseen(1, 1, 1, norm, curvature, unseen, most, exposed, wide, several)
    made = noising.solver_of(study, family, model, schedule, budget, public)
    if made.solver.renews and "damping" in study.schedule.arguments:
        raise errors.ConfigError(
            f"schedule.damping is given beside solver.kind {study.solver.kind!r}, whose answers are "
            "fresh statistics: the server takes a Newton step from them",
            "leave damping out; solver.floor bounds what noise does to a step",
        )
    prior, owned = priors.prior_of(family, model)
    if study.sums is not None and owned is not None:
        raise errors.ConfigError(
            f"model.kind is {study.model.kind!r}, whose prior is a factor of its own, beside "
            'privacy.view = "aggregate", expected a prior in the family of q',
            'give the coefficients normal priors, or promise view = "message"',
        )
    solvers: dict[str, LocalSolver] = {}
    if owned is not None:
        solvers[PRIOR] = owned
    solvers |= {client.name: made.solver for client in study.clients}
    marks = [made.solver.mark] if private else []
    if private and _has_custom_code(study, model):
        marks.append(UNVETTED)
    if private and study.simulation.insecure_seed is not None:
        marks.append("seeded noise: no guarantee")
    return Assembly(
        study=study,
        schema=schema,
        design=design,
        model=model,
        family=family,
        prior=prior,
        schedule=schedule,
        step_rule=step_rule,
        patience=patience,
        solvers=solvers,
        budget=made.budget,
        noise_multiplier=made.noise_multiplier,
        sampler=made.sampler,
        mark="; ".join(mark for mark in marks if mark),
        table_distance=made.table_distance,
        warnings=(
            *_warnings(study, model),
            *_clipped_exposure(schema, design),
            *implausible(study, norm),
            *(each.warning for each in rare_references(schema, study.data.columns_schema, design)),
            *_unspent(study, made),
            *_guessable(study, made.solver),
            *_unlearnt_noise(model, made.solver),
        ),
        remake=made.remake,
        gather=_gather(study, family, made, schedule),
        columns=columns,
        by_ids=by_ids,
    )


def _unspent(study: Study, made: noising.Made) -> Iterator[str]:
    """Yields advice if the calibrated noise cannot spend the promise."""
    promise, spent = study.privacy.promise, made.spent
    if promise is not None and spent is not None and spent < _SPENT * promise.epsilon:
        yield (
            f"privacy.epsilon is {promise.epsilon:g}, and this plan can spend no more than {spent:.3g} of "
            "it: with less noise, (1 + e^epsilon) times how far the tables of noise are off, and how often "
            f"batches overflow, is more than delta {promise.delta:g}; promise at most {spent:.3g}, or a "
            "larger delta"
        )


def _guessable(study: Study, solver: LocalSolver) -> Iterator[str]:
    """Yields advice if a message could be guessed from its digest, under the view "aggregate"."""
    masked = study.aggregation.secure
    if study.sums is not None and not masked and solver.number_count < _UNGUESSABLE:
        yield (
            f"a message holds {solver.number_count} numbers, fewer than {_UNGUESSABLE}, and may be guessed "
            "from its digest: under the view `aggregate`, publish neither a ledger nor the head of one, "
            "which result.json, a report and `fedvi status` print"
        )


def _gather(study: Study, family: Any, made: noising.Made, schedule: Schedule) -> Gather | None:
    """Returns how answers are summed; refuses a solver that would reveal more than their sums."""
    if study.sums is None:
        return None
    if made.solver.adds_up is None or made.step is None:
        if modelling.takes(study, "clean_factor"):
            hint = (
                "add clean_factor = true to [solver], which keeps the client's factor without noise"
            )
        else:
            hint = (
                'use "site_release", "vips", "virtual_clients", or "perturbed_update" with '
                'clean_factor = true; or promise view = "message"'
            )
        raise errors.ConfigError(
            f'solver.kind is {study.solver.kind!r} beside privacy.view = "aggregate", expected one that '
            "keeps no noise of its client's from answer to answer: such noise shows in what it answers "
            "next, which sums do not hide",
            hint,
        )
    state = made.solver.init(family.zeros())
    if tree.leaves(state) and not isinstance(state, CleanState):
        raise errors.ConfigError(
            f"solver.kind is {study.solver.kind!r}, which keeps something from visit to visit that is no "
            '`CleanState`, beside privacy.view = "aggregate"',
            "noise that a client keeps shows in what it answers next, which sums do not hide",
        )
    if made.solver.renews:
        _check_all_take_part(study)
    # If float64 cannot hold all sums exactly, the server would refuse the largest, depending on records.
    most = 2.0 * (made.sampler.capacity + 1) * (made.solver.clip_norm or math.inf) / made.step
    if not (most + _LARGEST_TAIL) * len(study.clients) < 2.0**53:
        raise errors.ConfigError(
            f"sums over {len(study.clients)} clients of up to {made.sampler.capacity} records in a batch "
            'may be beyond 2**53 steps of the noise\'s grid, beside privacy.view = "aggregate"',
            "use smaller batches, or fewer clients",
        )
    bits, layers = None, top_up.NONE
    if study.aggregation.secure:
        if study.sums.least_reporting < len(study.clients):
            _check_may_be_missing(study, state, schedule)
        # The noise of a run never comes near 64 of its standard deviations.
        tail = 64.0 * (made.noise_multiplier or 0.0) * (made.solver.clip_norm or 0.0) / made.step
        if made.noise_multiplier:
            layers = noising.layers_of(study, made.fineness)
            tail *= math.sqrt(layers.variance(len(layers.layers)))
        bits = masks.width((most + tail) * len(study.clients))
    return Gather(study.sums, made.step, dict(made.solver.adds_up), bits, layers)


def _check_may_be_missing(study: Study, state: Any, schedule: Schedule) -> None:
    """Refuses masked rounds that continue without a site, if sites might have different tasks.

    Their masks would not cancel.
    """
    where = f"privacy.least_reporting is {study.sums and study.sums.least_reporting} beside"
    if tree.leaves(state):
        raise errors.ConfigError(
            f"{where} aggregation.secure = true and solver.kind {study.solver.kind!r}, expected "
            f"{len(study.clients)}, all clients: a site that was missing would be asked otherwise than "
            "others",
            'leave least_reporting out, or use "site_release" or "vips"',
        )
    if not schedule.barrier:
        raise errors.ConfigError(
            f"{where} aggregation.secure = true and schedule.kind {study.schedule.kind!r}, expected rounds "
            "that all clients are asked in",
            'leave least_reporting out, or write kind = "synchronous"',
        )


def _check_all_take_part(study: Study) -> None:
    """Refuses stages over a part of the clients, if each sum replaces the previous one.

    The privacy promise would hold, but the other clients' answers would be lost.
    """
    clients = [client.name for client in study.clients]
    for index, stage in enumerate(study.schedule.arguments.get("stages", ())):
        over = stage.get("over")
        missing = [] if over is None else [name for name in clients if name not in over]
        if missing:
            raise errors.ConfigError(
                f"schedule.stages[{index}].over leaves out {', '.join(missing)} beside solver.kind "
                f'{study.solver.kind!r} and privacy.view = "aggregate", expected all clients: each sum '
                "takes the place of the one before, and would hold nothing of theirs",
                'leave `over` out; or use "virtual_clients", or "perturbed_update" with '
                "clean_factor = true, whose sums are changes",
            )


def _warnings(study: Study, model: Any) -> tuple[str, ...]:
    found = []
    if study.privacy.private and ability(study.solver.kind).of_statistics:
        # No other solver supports sums for a conjugate model.
        other = "" if brings_family(model) else ". Those of 'site_release' hold it"
        found.append(
            f"solver.kind is {study.solver.kind!r}, whose posterior takes noisy statistics for exact "
            f"ones: its intervals leave out what the noise does{other}"
        )
    parts, records = study.solver.arguments.get("parts"), study.data.max_records
    if isinstance(parts, int) and records is not None and parts > records:
        found.append(
            f"solver.parts is {parts} and data.max_records {records}: most parts hold one record or none"
        )
    return (*found, *site_effects.warnings(study))


def _clipped_exposure(schema: Any, design: Any) -> tuple[str, ...]:
    """Warns of an offset that is clipped: all events are counted, but not all of their exposure."""
    offset = None if design is None else design.offset
    if offset is None or schema[offset.column].outside != "clip":
        return ()
    return (
        f"data.schema.{offset.column} is an exposure, and values outside of its bounds are clipped, so "
        'that rates come out wrong: set outside = "drop", or widen `bounds`',
    )


def _unlearnt_noise(model: Any, solver: LocalSolver) -> tuple[str, ...]:
    """Warns of noise that is to be learnt where the plan cannot: too few rounds, or too much noise."""
    learnt = getattr(getattr(model, "surveyed", None), "learnt", False)
    if not learnt or (solver.survey is not None and solver.survey["outcome"] is not None):
        return ()
    return (
        'model.noise_scale is "learn", and this plan does not: half the largest outcome counts as the sd '
        "of a record around its mean, and intervals are wide. It takes an intercept and a covariate, "
        f"{ENOUGH_FOR_SIZES} rounds, and noise of one answer below {100.0 * MOST_COUNT_NOISE:g} % of the "
        "declared records; or state the sd",
    )


def _has_custom_code(study: Study, model: Any) -> bool:
    """Whether code that a claim depends on comes from outside fedvi."""
    sections = ["family", "solver", "mechanism", "sampler"]
    if brings_family(model) or ability(study.solver.kind).of_statistics:
        sections.append("model")  # it, or its outcome's form, defines the norm that is clipped
    return any(map(study.is_outside, sections))
