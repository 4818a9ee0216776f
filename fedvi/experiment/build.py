"""From a study to the pieces that run it; reads no data except in ``load_shards``."""

import dataclasses
import functools
import inspect
import math
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedvi import data, errors, models
from fedvi.client.policy import Request
from fedvi.data.schema import indicator_name
from fedvi.data.source import ArraySource
from fedvi.data.units import check_identities
from fedvi.experiment import conjugates, factories, parts, site_effects
from fedvi.experiment.config import KindSection, Study
from fedvi.experiment.parts import PRIOR
from fedvi.experiment.regressions import check_response
from fedvi.expfam import tree
from fedvi.expfam.gaussian import FullGaussian, GaussianEta
from fedvi.federation import damping
from fedvi.federation.progress import Patience, Schedule
from fedvi.inference import prior_factor
from fedvi.inference import solvers as solver_kinds
from fedvi.inference.base import CleanState, LocalSolver, Shard
from fedvi.inference.units import unit_model
from fedvi.models.base import Model, gaussian_prior
from fedvi.models.conjugate import ConjugateModel, FromFile
from fedvi.models.site_effects import site_effects as with_site_effects
from fedvi.privacy import accountants, calibrate, events, ledger, mechanisms, sampling
from fedvi.privacy.accountants import Accountant
from fedvi.privacy.itemised import with_tables
from fedvi.privacy.release import Mechanism, Sampler
from fedvi.privacy.statement import UNVETTED
from fedvi.privacy.sums import with_sums
from fedvi.server.protocol import ServerSpec
from fedvi.server.sums import Gather
from fedvi.typing import ROWS, Eta

__all__ = [
    "PRIOR",
    "Assembly",
    "Disk",
    "assemble",
    "load_shard",
    "load_shards",
    "sampler_kind",
    "with_capacity",
]

_CLIP_NORMS = (1e-15, 1e15)
_LARGEST_NOISE = 1e9
# Of a promise; calibration comes within a thousandth of it.
_SPENT = 0.98
_IN_MEMORY = 1 << 29
"""Bytes of prepared records that a client keeps in memory at most, if it has the choice."""
# Numbers of a message that nobody guesses: given the sum, each has more than 12.8 bits of noise.
_UNGUESSABLE = 10
# Steps of the grid that one noise may reach, and a batch that is filled up may add: with room.
_LARGEST_TAIL = 2.0**26
# A noise multiplier at which a mechanism takes as many draws for one number as it ever does.
_FINEST = 256.0


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
      schedule: who works when.
      patience: how long the server waits for a client.
      solvers: worker → how it answers; the prior's worker among them, if there is one.
      budget: what each client may spend; None without protection.
      noise_multiplier: of the mechanism, given or calibrated; None if the solver adds no noise.
      sampler: of the solver, or None.
      mark: printed beside every claim; empty if nothing needs saying.
      table_distance: total variation of the noise of one noised sum, over all of its coordinates,
        from the law that is priced; of all clients' noises, where sums over clients are; 0 where noise
        is not drawn from a table.
      warnings: what is permitted and probably not meant, one sentence each.
      remake: builds the solver with a changed mechanism and sampler, see ``solver_with``; None if it
        adds no noise.
      gather: how the server adds answers up, under the view "aggregate"; else None.
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

    @property
    def clients(self) -> tuple[str, ...]:
        """The data holders, in the order of the study."""
        return tuple(client.name for client in self.study.clients)

    @property
    def units(self) -> tuple[str, ...]:
        """The units of θ's coordinates, such as "per 10 from 50"; empty where nothing was scaled."""
        names, design = self.model.names, self.design
        # The coordinates of a NumPyro model are not the columns of its formula.
        if design is None or ":" in self.study.model.kind:
            return ("",) * len(names)
        return design.units_of(names)

    @property
    def planned(self) -> events.Event:
        """The largest event that one client can release over the whole study."""
        return events.repeat(self.solvers[self.clients[0]].cost, self.schedule.rounds)

    @property
    def relations(self) -> tuple[events.Relation, ...]:
        """The relations under which the plan is priced; a promised one is among them.

        Where the number of records is published, only substitution leaves it unchanged. Batches of
        fixed size have a price under substitution alone.
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
        """Returns one of ``accountants.__all__``, which here also pays for the noise's tables.

        It is told what messages cost, and prices what the study's view shows of them.
        """
        accountant = with_sums(getattr(accountants, name)(relation), self.study.sums)
        return with_tables(accountant, self.table_distance)

    @property
    def grouped(self) -> bool:
        """Whether a record is a unit of several rows: what a noisy solver clips as one.

        Solvers without noise clip nothing, and see one record a row.
        """
        return _grouped(self.study) and self.remake is not None

    @property
    def request(self) -> Request:
        """What the study asks of a client: what the client's own policy judges."""
        study, promise, noisy = self.study, self.study.privacy.promise, self.remake is not None
        return Request(
            model=study.model.kind,
            family=study.family.kind,
            schedule=study.schedule.kind,
            solver=study.solver.kind,
            sampler=sampler_kind(study) if noisy else "",
            mechanism=study.privacy.mechanism if noisy else "",
            accountant=study.privacy.accountant if promise else "",
            relation=promise.relation if promise else "substitute",
            view=study.privacy.view,
            unit=promise.unit if promise else "record",
            rounds=self.schedule.rounds,
            planned=self.planned,
            sums=study.sums,
            table_distance=self.table_distance,
            simulated=bool(self.solvers[self.clients[0]].mark)
            or study.simulation.insecure_seed is not None,
        )

    def solver_with(
        self,
        wrap: Callable[[Mechanism], Mechanism],
        watch: Callable[[Sampler], Sampler] | None = None,
    ) -> LocalSolver:
        """Builds the study's private solver anew, ``wrap`` around its mechanism, ``watch`` its sampler.

        For an audit, which looks at what enters the mechanism. What such a solver releases costs
        what the changed parts say, and is for nobody but the auditor.

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
            study_digest=study.origin_digest,
            client=client,
            unit=promise.unit if promise else "record",
            relation=promise.relation if promise else "substitute",
            view=study.privacy.view,
            protected=study.privacy.private,
            note=self.mark,
        )
        if study.sums is not None:
            header = header._replace(**study.sums._asdict())
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
        """What the server needs."""
        return ServerSpec(
            study_digest=self.study.digest,
            clients=tuple(self.solvers),
            family=self.family,
            prior=self.prior,
            schedule=self.schedule,
            step_rule=self.step_rule,
            finish={name: solver.finish for name, solver in self.solvers.items()},
            costs={name: solver.cost for name, solver in self.solvers.items()},
            patience=self.patience,
            headers={name: self.header(name) for name in self.clients},
            budget=self.budget,
            seeded_otherwise=self.study.digest_if_seeded_otherwise,
            stand=self.solvers[self.clients[0]].stand,
            renews=self.solvers[self.clients[0]].renews,
            gather=self.gather,
        )


def assemble(study: Study) -> Assembly:
    """Builds and checks everything but the data.

    Raises:
      ConfigError, ModelError, PrivacyError: naming what in the study cannot be carried out.
    """
    private = study.privacy.private
    schema = _schema(study)
    design, model = _model(study, schema)
    size = len(model.names)
    family = parts.family(study, size)
    _check_columns(study, schema, design)
    _check_ids(study)
    if family.size != size:
        raise errors.ConfigError(
            f"family.kind is {study.family.kind!r}, which makes a family of size {family.size}, "
            f"but the model has {size} coordinates",
            "a family's function is called with `size` and must keep to it",
        )
    schedule, step_rule, patience = parts.schedule(study)
    budget = parts.budget(study)
    made = _solver(study, family, model, schedule, budget)
    if made.solver.renews and "damping" in study.schedule.arguments:
        raise errors.ConfigError(
            f"schedule.damping is given beside solver.kind {study.solver.kind!r}, whose answers are "
            "fresh statistics: the server takes a Newton step from them",
            "leave damping out; solver.floor bounds what noise does to a step",
        )
    prior, owned = _prior(family, model)
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
    if private and _has_custom_code(study):
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
        warnings=(*_warnings(study), *_unspent(study, made), *_guessable(study, made.solver)),
        remake=made.remake,
        gather=_gather(study, family, made),
    )


def _unspent(study: Study, made: "_Made") -> Iterator[str]:
    """Yields what to promise where the noise that is calibrated to a promise cannot spend it."""
    promise, spent = study.privacy.promise, made.spent
    if promise is not None and spent is not None and spent < _SPENT * promise.epsilon:
        yield (
            f"privacy.epsilon is {promise.epsilon:g}, and this plan can spend no more than {spent:.3g} of "
            "it: with less noise, (1 + e^epsilon) times how far the tables of noise are off, and how often "
            f"batches overflow, is more than delta {promise.delta:g}; promise at most {spent:.3g}, or a "
            "larger delta"
        )


def _guessable(study: Study, solver: LocalSolver) -> Iterator[str]:
    """Yields what to do where a digest of a message tells the message, under the view "aggregate"."""
    if study.sums is not None and solver.number_count < _UNGUESSABLE:
        yield (
            f"a message holds {solver.number_count} numbers, fewer than {_UNGUESSABLE}, and may be guessed "
            "from its digest: under the view `aggregate`, publish neither a ledger nor the head of one, "
            "which result.json, a report and `fedvi status` print"
        )


def _gather(study: Study, family: Any, made: "_Made") -> Gather | None:
    """Returns how answers are added up; refuses a solver whose sums would not be all that is seen."""
    if study.sums is None:
        return None
    if made.solver.adds_up is None or made.step is None:
        if study.solver.kind == "perturbed_update":
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
    # Of whole numbers whose sum float64 may not hold, the server refuses the largest: by what records hold.
    most = 2.0 * (made.sampler.capacity + 1) * (made.solver.clip_norm or math.inf) / made.step
    if not (most + _LARGEST_TAIL) * len(study.clients) < 2.0**53:
        raise errors.ConfigError(
            f"sums over {len(study.clients)} clients of up to {made.sampler.capacity} records in a batch "
            'may be beyond 2**53 steps of the noise\'s grid, beside privacy.view = "aggregate"',
            "use smaller batches, or fewer clients",
        )
    return Gather(study.sums, made.step, dict(made.solver.adds_up))


def _schema(study: Study) -> Any:
    raw = study.data.columns_schema
    if not raw and conjugates.model_of(study) is not None:
        return {}  # its records are arrays, whose layout the model says
    return data.parse_schema(raw, private=study.privacy.private)


def _warnings(study: Study) -> tuple[str, ...]:
    promise, most = study.privacy.promise, study.data.max_records
    found = []
    # Publishing one unit of N at random, as it is, is (0, 1/N)-private.
    if promise is not None and most is not None and promise.delta * most >= 1.0:
        found.append(
            f"privacy.delta is {promise.delta:g}, not below 1 / data.max_records = {1.0 / most:.3g}: "
            f"to publish a {promise.unit} picked at random would keep such a promise. "
            f"Choose delta far below, such as {_power_of_ten_below(0.1 / most):g}"
        )
    if study.privacy.private and study.solver.kind == "vips":
        found.append(
            "solver.kind is 'vips', whose posterior takes noisy statistics for exact ones: its "
            "intervals leave out what the noise does. Those of 'site_release' hold it"
        )
    return (*found, *site_effects.warnings(study))


def _power_of_ten_below(value: float) -> float:
    return float(10.0 ** math.floor(math.log10(value)))


def _grouped(study: Study) -> bool:
    return study.data.unit_column is not None


def _divides(study: Study) -> bool:
    """Whether the solver divides records into parts by their ids; one that does takes ``parts``."""
    factory = factories.find("solver", study.solver.kind, solver_kinds)
    return "parts" in factories.parameters(factory) and not _by_place(study)


def _by_place(study: Study) -> bool:
    return study.solver.arguments.get("by_place", False) is True


def _check_ids(study: Study) -> None:
    """Refuses a solver that divides records by ids where there are none, and ids that nobody reads.

    By places, nothing is left of a claim about adding or removing a record: all parts may change.
    """
    if _by_place(study) and study.privacy.private and not study.privacy.records_public:
        raise errors.ConfigError(
            "solver.by_place is true without privacy.records_public, expected both: a record that is "
            "added or removed moves all that come after it",
            'name data.id_column instead; or promise relation = "substitute" alone, with '
            "records_public = true",
        )
    divides, column = _divides(study), study.data.id_column
    if divides and study.data.identity_column is None:
        raise errors.ConfigError(
            f"data.id_column is missing, which solver.kind {study.solver.kind!r} needs: records are "
            "divided into parts by what tells them apart",
            "name a column whose cells stay with a record whatever other records are there; or, where "
            "the number of records is public and a substituted record keeps the row, set "
            "solver.by_place = true",
        )
    if column is not None and not divides:
        raise errors.ConfigError(
            f"data.id_column is {column!r}, which solver.kind {study.solver.kind!r} has no use for",
            "leave it out: only solvers that divide records into parts by ids read it",
        )


def sampler_kind(study: Study) -> str:
    """Returns the kind of sampler that a study names; built-in, or "module:function"."""
    given = study.solver.arguments.get("sampler", "full")
    return str(given.get("kind", "")) if isinstance(given, dict) else str(given)


def _has_custom_code(study: Study) -> bool:
    """Says whether what a claim rests on comes from a "module:function"."""
    kinds = [study.family.kind, study.solver.kind, study.privacy.mechanism, sampler_kind(study)]
    if conjugates.model_of(study) is not None:
        kinds.append(study.model.kind)  # what is clipped has the norm that it says
    return any(":" in kind for kind in kinds)


def _check_columns(study: Study, schema: Any, design: Any) -> None:
    """Refuses `data.columns` that would name no column for something that is read, and a covariate
    that tells whose a record is."""
    declared, identity = study.data.columns, study.data.identity_column
    key = "unit_column" if study.data.id_column is None else "id_column"
    for name, column in schema.items():
        if column.column == identity:
            raise errors.ConfigError(
                f"data.{key} is {identity!r}, which [data.schema.{name}] declares too",
                "what says whose a row is may be no covariate; take it out of the schema",
            )
    if declared is None:
        return
    twice = [name for name in declared if declared.count(name) > 1]
    if twice:
        raise errors.ConfigError(
            f"data.columns: `{twice[0]}` is there twice, expected every column once",
            "give every column a name of its own, in the order of the file",
        )
    for name in _columns(design, study, schema):
        if name in schema and schema[name].column not in declared:
            wanted = schema[name].column
            raise errors.ConfigError(
                f"data.columns: no `{wanted}`, which the model needs",
                errors.did_you_mean(wanted, declared),
            )
    if identity is not None and identity not in declared:
        raise errors.ConfigError(
            f"data.columns: no `{identity}`, which data.{key} names",
            errors.did_you_mean(identity, declared),
        )


def _model(study: Study, schema: Any) -> tuple[Any, Model | ConjugateModel]:
    conjugate = conjugates.model_of(study)
    if conjugate is not None:
        return None, conjugate
    arguments = dict(study.model.arguments)
    text = arguments.pop("formula", None)
    effects = site_effects.wanted(study)
    for key in () if effects is None else site_effects.KEYS:
        del arguments[key]
    if not isinstance(text, str | None):
        raise errors.ConfigError(
            f"model.formula is {text!r}, expected a text",
            'write e.g. formula = "disease ~ age + sex"',
        )
    design = None if text is None else data.parse_formula(text, schema)
    section = KindSection(kind=study.model.kind, **arguments)
    factory = factories.find("model", study.model.kind, models)
    if ":" in study.model.kind:
        if study.prior is not None:
            raise errors.ConfigError(
                f"[prior] is given beside model.kind {study.model.kind!r}",
                "a NumPyro model states its own prior; remove the section [prior]",
            )
        if design is None:
            example = _example(_columns(None, study, schema), schema)
        else:
            example = {"x": np.zeros(design.size), "y": np.zeros(design.outcome_shape)}

        known = factories.parameters(factory)
        for name in arguments:
            if name not in known:
                raise errors.ConfigError(
                    f"model.{name}: unknown key for kind {study.model.kind!r}",
                    errors.did_you_mean(name, [item for item in known if item not in example]),
                )

        def function(**records: Any) -> Any:
            return factory(**records, **arguments)

        return design, models.numpyro_model(function, example, name=study.model.kind)
    if design is None:
        raise errors.ConfigError(
            f"model.formula is missing for kind {study.model.kind!r}",
            'write e.g. formula = "disease ~ age + sex"',
        )
    if study.model.kind == "numpyro_model":
        raise errors.ConfigError(
            "model.kind is 'numpyro_model'", 'name your function: kind = "my_study.models:hospital"'
        )
    check_response(study.model.kind, design)
    prior = study.prior.model_dump(exclude_none=True) if study.prior else {}
    supplied = {
        "names": design.names,
        "levels": design.response.levels,
        "offset": design.offset is not None,
        "outcomes": design.response.columns,
        **{f"prior_{k}" if k == "scale" else k: v for k, v in prior.items()},
    }
    made = factories.call("model", section, factory, supplied)
    return design, made if effects is None else _with_effects(made, effects)


def _with_effects(model: Model, effects: site_effects.Wanted) -> Model:
    try:
        return with_site_effects(model, effects.columns, effects.scale, effects.learnt)
    except errors.ModelError as error:
        raise errors.ConfigError(f"model.site_effect: {error.message}", error.hint) from error


def _sampler(study: Study, given: Any) -> Any:
    if study.data.max_records is None:
        raise errors.ConfigError(
            f"data.max_records is missing, which solver.kind {study.solver.kind!r} needs",
            "declare the largest number of records at any client (of patients, where "
            "data.unit_column is given): batches are sized for it",
        )
    section = {"kind": given} if isinstance(given, str) else given
    if not isinstance(section, dict) or not isinstance(section.get("kind"), str):
        raise errors.ConfigError(
            f"solver.sampler is {given!r}, expected a kind in quotes, or a table with a kind",
            'write sampler = "full", { kind = "poisson", rate = 0.1 } or '
            '{ kind = "feistel", batch = 128 }',
        )
    kind = KindSection(**section)
    factory = factories.find("solver.sampler", kind.kind, sampling)
    supplied = {"max_records": study.data.max_records}
    return factories.call("solver.sampler", kind, factory, supplied, Sampler)


class _Made(NamedTuple):
    """What ``_solver`` finds out; see the attributes of ``Assembly``."""

    solver: LocalSolver
    budget: ledger.Budget | None
    noise_multiplier: float | None = None
    sampler: Any = None
    table_distance: float = 0.0
    remake: Callable[..., LocalSolver] | None = None
    step: float | None = None
    # The ε of the whole study where the noise was calibrated.
    spent: float | None = None


def _solver(
    study: Study,
    family: Any,
    model: Model | ConjugateModel,
    schedule: Schedule,
    budget: ledger.Budget | None,
) -> _Made:
    """Builds the solver; calibrates its noise if the study leaves the noise multiplier out."""
    factory = factories.find("solver", study.solver.kind, solver_kinds)
    arguments = dict(study.solver.arguments)
    known = factories.parameters(factory)
    supplied: dict[str, Any] = {"family": family, "model": model}
    if "mechanism" not in known:
        solver = factories.call("solver", study.solver, factory, supplied, LocalSolver)
        # Priced, not asked for support: what is unprotected is supported, at an infinite price.
        if budget is not None and math.isinf(budget.accountant.epsilon(solver.cost, budget.delta)):
            raise errors.ConfigError(
                f"solver.kind is {study.solver.kind!r}, which releases without protection, "
                "but [privacy] promises differential privacy",
                'use a private solver such as "dp_optimisation", or protection = "none"',
            )
        return _Made(solver, budget)
    if _grouped(study):
        # The solver clips what one record contributes, so all rows of a patient are one record.
        supplied["model"] = unit_model(typing.cast(Model, model))
    noise = arguments.pop("noise_multiplier", None)
    sampler = _sampler(study, arguments.pop("sampler", "full"))
    if "clip_norm" in known:
        _check_clip_norm(arguments.get("clip_norm"), private=study.privacy.private)
    mechanism = factories.find("privacy", study.privacy.mechanism, mechanisms, "mechanism")
    noise_section = KindSection(kind=study.privacy.mechanism)
    section = KindSection(kind=study.solver.kind, **arguments)

    def noised_by(noise_multiplier: float) -> Mechanism:
        noise = {"noise_multiplier": noise_multiplier}
        found: Mechanism = factories.call(
            "privacy.mechanism", noise_section, mechanism, noise, Mechanism
        )
        return found

    def build(
        noise_multiplier: float,
        wrap: Callable[[Mechanism], Mechanism] | None = None,
        watch: Callable[[Sampler], Sampler] | None = None,
    ) -> LocalSolver:
        made = noised_by(noise_multiplier)
        if wrap is not None:
            made = wrap(made)
        picked = sampler if watch is None else watch(sampler)
        given = supplied | {"sampler": picked, "mechanism": made}
        return factories.call("solver", section, factory, given, LocalSolver)

    def total(noise_multiplier: float) -> events.Event:
        return events.repeat(build(noise_multiplier).cost, schedule.rounds)

    if noise is None and budget is None:
        raise errors.ConfigError(
            "solver.noise_multiplier is missing and there is no budget to calibrate it for",
            "give noise_multiplier, or a [privacy] section with epsilon and delta",
        )
    if noise is not None:
        _check_noise(noise)
    distance, spent = 0.0, None
    if budget is not None:
        # What is seen holds the noise of all clients that answered.
        noises = 1 if study.sums is None else len(study.clients)
        distance = noises * _table_distance(noised_by(_FINEST), build(1.0))
        accountant = with_tables(budget.accountant, distance)
        budget = dataclasses.replace(budget, accountant=accountant)
        _check_pairing(study, accountant, total(1.0))
        if noise is None:
            noise = calibrate.calibrate(total, accountant, budget.epsilon, budget.delta)
            spent = accountant.epsilon(total(noise), budget.delta)
        else:
            _check_price(float(noise), total, budget, schedule.rounds)
    chosen = float(noise)
    solver = build(chosen)
    grid = noised_by(chosen).grid(solver.clip_norm) if solver.clip_norm is not None else None
    return _Made(
        solver=solver,
        budget=budget,
        noise_multiplier=chosen,
        sampler=sampler,
        table_distance=distance,
        remake=functools.partial(build, chosen),
        step=None if grid is None else grid.step,
        spent=spent,
    )


def _table_distance(mechanism: Mechanism, solver: LocalSolver) -> float:
    """Bounds the total variation of one noised sum from the law that is priced.

    A mechanism that draws from a table says by ``distance`` how far one draw is from its law.
    A sum has a draw for each of its numbers, or for each entry of a square of which a triangle is
    used, which is less than twice as many. More may be noised than leave: what a site keeps to itself.
    """
    count = solver.number_count if solver.noised_count is None else solver.noised_count
    return 2 * count * float(getattr(mechanism, "distance", 0.0))


def _check_noise(noise: Any) -> None:
    if (
        isinstance(noise, bool)
        or not isinstance(noise, int | float)
        or not 0 <= noise <= _LARGEST_NOISE
    ):
        raise errors.ConfigError(
            f"solver.noise_multiplier is {noise!r}, expected a finite number of at least 0 and at "
            f"most {_LARGEST_NOISE:g}",
            "leave it out: it is then calibrated to the budget",
        )


def _check_pairing(study: Study, accountant: Any, planned: events.Event) -> None:
    """Refuses a sampler, mechanism, relation and accountant that no price belongs to."""
    if accountant.supports(planned):
        return
    privacy = study.privacy
    found = (
        f"solver.sampler is {sampler_kind(study)!r} and privacy.mechanism "
        f"{privacy.mechanism!r}, which accountant {privacy.accountant!r} cannot price under "
        f"relation {privacy.relation!r}"
    )
    other = "substitute" if privacy.relation == "add_remove" else "add_remove"
    if getattr(accountants, privacy.accountant)(other).supports(planned):
        sampled = next(iter(events.counts(planned)))
        rate = getattr(sampled, "rate", 0.1)
        raise errors.ConfigError(
            found,
            f'promise relation = "{other}", or use sampler = '
            f'{{ kind = "poisson", rate = {rate:.3g} }}',
        )
    able = [
        name
        for name in accountants.__all__
        if getattr(accountants, name)(privacy.relation).supports(planned)
    ]
    raise errors.ConfigError(
        found,
        "accountants that can: " + ", ".join(f"`{name}`" for name in able)
        if able
        else 'no accountant can; use mechanism = "rounded_gaussian" and the poisson sampler',
    )


def _check_price(
    noise: float, total: Callable[[float], events.Event], budget: ledger.Budget, rounds: int
) -> None:
    """Refuses noise that the accountant cannot price, or that costs more than the budget."""
    accountant, promised = (
        budget.accountant,
        f"delta {budget.delta:g}, {budget.accountant.relation}",
    )
    try:
        spent = accountant.epsilon(total(noise), budget.delta)
    except errors.PrivacyError as error:
        raise errors.ConfigError(
            f"solver.noise_multiplier is {noise:g}, which accountant {accountant.name!r} cannot "
            f"price: {error.message}",
            _enough(total, budget),
        ) from error
    if math.isinf(spent):
        raise errors.BudgetExceeded(
            f"{rounds} rounds at noise_multiplier {noise:g} have no finite epsilon by accountant "
            f"{accountant.name!r}, expected {budget.epsilon:g} or less ({promised})",
            _enough(total, budget),
        )
    if spent > budget.epsilon:
        raise errors.BudgetExceeded(
            f"{rounds} rounds at noise_multiplier {noise:g} spend epsilon {spent:.4g} "
            f"of {budget.epsilon:g} ({promised})",
            _enough(total, budget),
        )


def _enough(total: Callable[[float], events.Event], budget: ledger.Budget) -> str:
    """Says which noise the budget asks for."""
    try:
        least = calibrate.calibrate(total, budget.accountant, budget.epsilon, budget.delta)
    except errors.FedviError as error:
        return error.hint or error.message
    return f"{least:g} is enough; left out, noise_multiplier is calibrated to the budget"


def _check_clip_norm(given: Any, *, private: bool) -> None:
    """Refuses a clip norm at which float32 sums of clipped records would vanish or overflow."""
    if given == "Infinity":  # see Study.as_dict
        given = math.inf
    if isinstance(given, bool) or not isinstance(given, int | float):
        return
    low, high = _CLIP_NORMS
    if low <= given <= high or (given == math.inf and not private):
        return
    raise errors.ConfigError(
        f"solver.clip_norm is {given}, expected a number from {low:g} to {high:g}",
        "it bounds what one record contributes; 1 is a good start. Without protection it may be inf",
    )


def _prior(family: Any, model: Model | ConjugateModel) -> tuple[Eta, LocalSolver | None]:
    """Returns η_0, and the worker that refines the prior's factor if the prior is not in the family."""
    if isinstance(model, ConjugateModel):
        return tree.to_numpy(model.prior), None
    exact = gaussian_prior(model)
    if exact is not None:
        h, precision = exact
        if isinstance(family, FullGaussian):
            return GaussianEta(h, precision), None
        if np.array_equal(precision, np.diag(np.diagonal(precision))):
            return GaussianEta(h, np.diagonal(precision).copy()), None
    return prior_factor.base(family), prior_factor.prior_factor(family, model)


class Disk(NamedTuple):
    """Where prepared records may lie while they are worked on, in place of memory; see ``data.stored``.

    Attributes:
      folder: on whose disk; None: the system's own for what is temporary.
      always: whether they lie there however few they are.
    """

    folder: Path | None = None
    always: bool = False


def load_shards(
    assembly: Assembly,
    base: Path,
    *,
    disk: Disk | None = None,
    tell: Callable[[str], None] | None = None,
) -> dict[str, ArraySource]:
    """Reads every client's file; paths are relative to ``base``, the others as of ``load_shard``.

    Raises:
      ConfigError: if a client names no file.
      DataError: if a file does not fit the schema.
    """
    study = assembly.study
    shards = {}
    for client in study.clients:
        if client.data is None:
            raise errors.ConfigError(
                f"clients: {client.name!r} names no data file",
                'add data = "path.csv" to its [[clients]] entry',
            )
        path = base / client.data
        shards[client.name] = load_shard(assembly, client.name, path, disk=disk, tell=tell)
    return shards


def load_shard(
    assembly: Assembly,
    client: str,
    path: Path,
    *,
    disk: Disk | None = None,
    tell: Callable[[str], None] | None = None,
) -> ArraySource:
    """Reads one client's file and applies the schema.

    Args:
      assembly: the study, built.
      client: its name in the study.
      path: of a format of ``data.tables``.
      disk: where records may lie that would take more than 512 MiB of memory, where the solver goes
        through them block by block. What is computed is the same, to the last bit. None: in memory.
      tell: called with a sentence if most records count as zero, as by ``data.prepared``. Private: for
        the screen of whoever holds them.

    Raises:
      ConfigError: they are to lie on the disk always, and the study's solver cannot work on them there.
      DataError: the file is not there or lacks a column; in a study that promises nothing, also if
        it does not fit the schema, or a row does not say whose it is.
    """
    study, schema = assembly.study, assembly.schema
    stored = disk is not None and _is_stored(assembly, client, path, disk)
    if isinstance(assembly.model, FromFile):
        return _load_arrays(assembly, assembly.model, client, path, tell)
    names = _columns(assembly.design, study, schema)
    private, unit_column = study.privacy.private, study.data.unit_column
    identity = study.data.identity_column
    identities: list[str | None] = []

    def noted(tables: Iterable[data.Table]) -> Iterator[data.Table]:
        for table in tables:
            if identity is not None:
                identities.extend(data.as_texts(table[identity]))
            yield table

    tables = noted(data.chunks(path, _wanted(study, schema, names, identity)))
    chunks = data.prepared(
        tables, schema, names, assembly.design, private=private, where=client, tell=tell
    )
    if disk is not None and stored:
        return data.store(chunks, disk.folder, client)
    source = data.concatenate(list(chunks))
    if identity is None:
        return source
    if _divides(study):
        source = data.with_ids(source, identities, study.origin_digest)
    if unit_column is None:
        return source
    if not private:
        units = check_identities(identities, unit_column, client)
        if study.data.max_records is not None and units > study.data.max_records:
            raise errors.DataError(
                f"{client}: more units in `{unit_column}` than the study declares with "
                f"`data.max_records` = {study.data.max_records}",
                "declare a larger public bound, in the study file of everybody, and start again",
            )
    if not assembly.grouped:
        return source
    return data.by_unit(source, identities, study.data.rows_per_unit)


def _wanted(study: Study, schema: Any, names: tuple[str, ...], identity: str | None) -> data.Wanted:
    """Returns what is asked of a client's file."""
    columns = [schema[name].column for name in names]
    if identity is not None:
        columns.append(identity)
    return data.Wanted(
        names=tuple(dict.fromkeys(columns)),
        columns=study.data.columns,
        separator=study.data.separator,
        private=study.privacy.private,
        as_text=frozenset() if identity is None else frozenset({identity}),
    )


def _is_stored(assembly: Assembly, client: str, path: Path, disk: Disk) -> bool:
    """Says whether a client's records lie on the disk; what decides is public, or the size of the file."""
    study, design = assembly.study, assembly.design
    able = (
        assembly.solvers[client].streams
        and study.data.identity_column is None
        and not isinstance(assembly.model, FromFile)
    )
    if disk.always:
        if not able:
            raise errors.ConfigError(
                f"records cannot be worked on from the disk by solver.kind {study.solver.kind!r} in this "
                "study",
                "leave --cache out. Solvers that can are `site_release`, `dp_optimisation`, `glm` and "
                "`vips` (regressions), without data.unit_column and data.id_column",
            )
        return True
    if not able or not path.exists():
        return False
    rows = study.data.max_records or data.known_rows(path)
    if rows is None:  # of texts, whose digits take about as much room
        return path.stat().st_size > _IN_MEMORY
    numbers = len(assembly.schema)
    if design is not None:
        numbers = design.size + math.prod(design.outcome_shape)
    return rows * numbers * 8 > _IN_MEMORY


def _load_arrays(
    assembly: Assembly,
    model: FromFile,
    client: str,
    path: Path,
    tell: Callable[[str], None] | None,
) -> ArraySource:
    """Reads what a conjugate model calls a record: from a file of arrays; or from the columns of a table,
    in the order of the schema, where a record is one row of numbers."""
    study, schema, layout = assembly.study, assembly.schema, model.layout
    private = study.privacy.private
    if path.suffix.lower() == ".npz":
        return data.read_arrays(path, layout, model.sound, private=private, where=client)
    names = tuple(schema)
    if len(layout) != 1 or next(iter(layout.values())) != (len(names),):
        raise errors.DataError(
            f"{client}: {path.name} is no .npz, expected one with "
            + ", ".join(f"{name} [N{''.join(f', {n}' for n in s)}]" for name, s in layout.items()),
            "a table serves where a record is one row of numbers, as many as [data.schema] has columns",
        )
    tables = data.chunks(path, _wanted(study, schema, names, None))
    parts = data.prepared(tables, schema, names, None, private=private, where=client, tell=tell)
    columns = data.concatenate(list(parts))
    array = np.stack([columns.records[name] for name in names], axis=1)
    found = {next(iter(layout)): array}
    rows = data.checked_arrays(found, layout, model.sound, private=private, where=client)
    return ArraySource(rows.records, rows.valid & columns.valid)


def _columns(design: Any, study: Study, schema: Any) -> tuple[str, ...]:
    """Lists the schema's columns that a model reads: those of its formula, or its arguments."""
    if design is not None:
        return design.columns
    if conjugates.model_of(study) is not None:
        return tuple(schema)
    factory = factories.find("model", study.model.kind, models)
    # An indicator such as chol_missing comes with the column that it belongs to.
    indicators = {indicator_name(name): name for name in schema}
    wanted = [
        name
        for name, parameter in inspect.signature(factory).parameters.items()
        if name not in study.model.arguments
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        # An argument with a default is a column only if one is declared by its name.
        and (parameter.default is parameter.empty or name in schema or name in indicators)
    ]
    return tuple(dict.fromkeys(indicators.get(name, name) for name in wanted))


def _example(columns: tuple[str, ...], schema: Any) -> dict[str, np.ndarray]:
    """Returns one record of zeros in the dtypes that the columns will have."""
    table: dict[str, list[str]] = {schema[name].column: [] for name in columns if name in schema}
    empty = data.prepare_columns(table, schema, columns, private=True, where="[model]")
    return {
        name: np.zeros(column.shape[1:], column.dtype) for name, column in empty.records.items()
    }


def with_capacity(assembly: Assembly, sources: Mapping[str, ArraySource]) -> dict[str, Shard]:
    """Pads shards to a capacity, so that they share a compilation.

    The capacity is the declared largest number of records where batches or a claim are sized for
    it; otherwise the next power of two, so that what a client computes depends, to the last bit, on
    no other client's number of records. In a private study, records beyond the declared number are
    left out by their position, so that whether a client answers depends on no record. Replacing a
    record (or unit) then replaces at most one of those that are used; but removing one lets the
    next one in, so that a client with more than ``max_records`` has the price of ``substitute``
    under either relation.

    Raises:
      DataError: there are more records than declared, in a study that promises nothing; or records
        are not grouped into units as the study says.
    """
    study = assembly.study
    declared = study.data.max_records
    if _grouped(study) and not assembly.grouped:
        declared = None  # it counts units, but a record is a row here
    shards = {}
    for name, source in sources.items():
        if (ROWS in source.records) != assembly.grouped:
            raise errors.DataError(
                f"{name}: records are {'' if ROWS in source.records else 'not '}grouped into units, "
                f"expected {'units' if assembly.grouped else 'one row each'}",
                "group rows with `fedvi.data.by_unit` where the study names data.unit_column and "
                "its solver adds noise, and nowhere else",
            )
        capacity = declared or 1 << max(0, source.size - 1).bit_length()
        if study.privacy.private:
            source = source.first(capacity)
        records, mask = source.padded(capacity, where=name)
        shards[name] = Shard(records, np.asarray(mask, bool))
    return shards
