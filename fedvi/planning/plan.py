"""Plans a study for `fedvi check`: its releases, their number and their price; reads no data."""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from fedvi import errors
from fedvi.planning import width_tables
from fedvi.planning.priors import quarrels
from fedvi.planning.signals import given_clip_norm, noise_left
from fedvi.planning.widths import Widths, why_not, widths
from fedvi.privacy import events
from fedvi.privacy.spoken import Speaks, Summary, Table, facts, promised, up
from fedvi.study import site_effects
from fedvi.study.build import Assembly, assemble
from fedvi.study.config import GivenParts, Study
from fedvi.study.spec.coefficients import prior_words
from fedvi.updates.conjugate import ConjugateModel

__all__ = ["Plan", "plan", "rounds_in_vain"]

# From this ratio, a mean over rounds is reported as noisier than one release.
_NOISIER = 1.02
# The most names in a summary.
_MOST_NAMES = 12


@dataclasses.dataclass(frozen=True, repr=False)
class Plan(Speaks):
    """The price and traffic of a study, before it runs; and its intervals, see ``widths``.

    Attributes:
      study: its name.
      digest: must be the same at every site.
      model: kind and dimension D.
      coefficients: the names of θ's coordinates.
      family: the kind of q.
      solver: the kind of local solver.
      schedule: kind and rounds.
      clients: their names.
      numbers_per_message: number of distinct numbers in one message of a client.
      messages_per_client: at most.
      steps_per_message: number of noised sums behind one message; 0 without noise.
      clip_norm, noise_multiplier, noise_std: of one noised sum; None without noise.
      clip_norm_auto: whether the study lets the solver choose ``clip_norm``.
      survey: whether each client's first answer is only about its columns.
      sampling_rate: the probability that a unit is in a batch; None without noise.
      batch_capacity: static number of units in a batch; None without noise.
      rows_per_unit: the most rows of one unit that are used; None if a record is one row.
      epsilon: relation → ε per client at ``delta``; infinite without protection, None if the
        accountant has no price, as for batches of fixed size under add/remove. If the number of
        records is published, it has only substitution, which leaves that number unchanged.
      epsilon_rdp: the same by Rényi accounting, looser, for comparison; empty without protection.
      budget_epsilon, delta, relation, unit, accountant: the promise; None without protection.
      view: who sees what.
      mark: printed beside every claim.
      warnings: settings that are allowed but probably unintended, one sentence each.
      assembly: the study, built.
    """

    study: str
    digest: str
    model: str
    coefficients: tuple[str, ...]
    family: str
    solver: str
    schedule: str
    clients: tuple[str, ...]
    numbers_per_message: int
    messages_per_client: int
    steps_per_message: int
    clip_norm: float | None
    noise_multiplier: float | None
    noise_std: float | None
    clip_norm_auto: bool
    survey: bool
    sampling_rate: float | None
    batch_capacity: int | None
    rows_per_unit: int | None
    epsilon: dict[str, float | None]
    epsilon_rdp: dict[str, float | None]
    budget_epsilon: float | None
    delta: float | None
    relation: str | None
    unit: str | None
    accountant: str
    view: str
    mark: str
    warnings: tuple[str, ...]
    assembly: Assembly = dataclasses.field(compare=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.study}: {self._promise}; {self._traffic})"

    def widths(self) -> Widths:
        """Returns the expected width of each coefficient's interval, as `fedvi plan` prints it.

        Computed when first asked for, which takes seconds.

        Raises:
          ConfigError: they cannot be predicted: the posterior is no full Gaussian, the solver's intervals
            leave the noise out, or the model is no regression of one number, yes or no, or time.
        """
        if self._no_widths:
            hint = "`fedvi check` compares the private modes of such a study"
            raise errors.ConfigError(self._no_widths, hint)
        return self._widths

    @functools.cached_property
    def _no_widths(self) -> str:
        return why_not(self.assembly)

    @functools.cached_property
    def _widths(self) -> Widths:
        return widths(self.assembly)

    def summary(self) -> Summary:
        """Returns the price, the traffic, and the expected widths, if they can be predicted."""
        prices = [
            f"ε {up(price) if price is not None else '– (not offered)'} under {name.replace('_', '/')}"
            for name, price in self.epsilon.items()
        ]
        noise = ""
        if self.noise_multiplier is not None:
            clip = f"{self.clip_norm:.4g}" if self.clip_norm else "–"
            noise = f"sd {self.noise_multiplier:.4g} × clip norm {clip} on each sum"
        names = ", ".join(self.coefficients[:_MOST_NAMES])
        more = len(self.coefficients) - _MOST_NAMES
        rows = [
            ("promise", self._promise),
            ("cost per client", ", ".join(prices) if self.delta is not None else ""),
            ("leaves each client", self._traffic),
            ("noise", noise),
            ("model", self.model),
            ("prior sd of a coefficient", prior_words(self.assembly.study)),
            ("coefficients", names + (f", … and {more} more" if more > 0 else "")),
            ("solver, schedule", f"{self.solver}; {self.schedule}"),
            ("clients", f"{len(self.clients)}: {', '.join(self.clients[:_MOST_NAMES])}"),
            ("digest", f"{self.digest[:16]}… (every site must have the same)"),
        ]
        warnings = tuple(filter(None, (self.mark, *self.warnings, *quarrels(self.assembly))))
        expected: tuple[Table, ...] = ()
        lines: tuple[str, ...] = ()
        if not self._no_widths:
            found = self.widths()
            expected = (width_tables.table(found, width_tables.title(found)),)
            lines = width_tables.said_beside(found)
        return Summary(f"Plan of {self.study}", lines, (facts(rows), *expected), warnings)

    @property
    def _promise(self) -> str:
        return promised(self.budget_epsilon, self.delta, self.unit, self.relation, self.view)

    @property
    def _traffic(self) -> str:
        return f"at most {self.messages_per_client} messages of {self.numbers_per_message} numbers"

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON, without widths; an infinite ε becomes the string "inf"."""
        names = [field.name for field in dataclasses.fields(self) if field.name != "assembly"]
        plain = {name: getattr(self, name) for name in names}
        plain["warnings"] = list(self.warnings)
        for key in ("epsilon", "epsilon_rdp"):
            plain[key] = {
                name: "inf" if value is not None and math.isinf(value) else value
                for name, value in plain[key].items()
            }
        return plain


def plan(study: Study | Assembly, parts: GivenParts | None = None) -> Plan:
    """Returns the plan of a study; reads no data file.

    Args:
      study: from ``load_study``, or built.
      parts: of a study that is not built, the code from outside fedvi that it names: name → the function or
        class itself.

    Raises:
      FedviError: if the study cannot be carried out.
    """
    if isinstance(study, Study) and parts is not None:
        study = study.with_parts(parts)
    assembly = study if isinstance(study, Assembly) else assemble(study)
    study = assembly.study
    solver = assembly.solvers[assembly.clients[0]]
    noise, sampler = assembly.noise_multiplier, assembly.sampler
    steps = 0 if noise is None else sum(events.counts(solver.cost).values())
    promise = study.privacy.promise
    return Plan(
        study=study.study.name,
        digest=study.digest,
        model=f"{study.model.kind}, D = {assembly.family.size}" + site_effects.in_words(study),
        coefficients=assembly.model.names,
        family=_family(assembly),
        solver=study.solver.kind,
        schedule=f"{assembly.schedule.name}, {assembly.schedule.rounds} rounds",
        clients=assembly.clients,
        numbers_per_message=solver.number_count,
        messages_per_client=assembly.schedule.rounds,
        steps_per_message=steps,
        clip_norm=solver.clip_norm,
        noise_multiplier=noise,
        noise_std=noise * solver.clip_norm if noise and solver.clip_norm else None,
        clip_norm_auto=given_clip_norm(study.solver.kind, study.solver.arguments) == "auto",
        survey=solver.survey is not None,
        sampling_rate=sampler and sampler.rate,
        batch_capacity=sampler and sampler.capacity,
        rows_per_unit=study.data.rows_per_unit if assembly.grouped else None,
        epsilon=_prices(assembly, study.privacy.accountant),
        epsilon_rdp=_prices(assembly, "rdp") if promise else {},
        budget_epsilon=promise and promise.epsilon,
        delta=promise and promise.delta,
        relation=promise and promise.relation,
        unit=promise and promise.unit,
        accountant=study.privacy.accountant,
        view=study.privacy.view,
        mark=assembly.mark,
        warnings=(*assembly.warnings, *rounds_in_vain(assembly)),
        assembly=assembly,
    )


def _family(assembly: Assembly) -> str:
    """Returns the study's name of the family, or the class of a family that comes with the model."""
    conjugate = isinstance(assembly.model, ConjugateModel)
    return type(assembly.family).__name__ if conjugate else assembly.study.family.kind


def rounds_in_vain(assembly: Assembly) -> Iterator[str]:
    """Yields advice if answers do not depend on q, so that every round releases the same sums again.

    At one promise, each of J answers has √J times the noise of a single answer, over all records together;
    the running mean has √S of that. Does not apply to `linear`: its gradients are at the mean that was
    handed out, and with a noisy curvature the first step is short.
    """
    model, rounds = assembly.model, assembly.schedule.rounds
    if assembly.study.privacy.promise is None or rounds < 2 or assembly.sampler is None:
        return
    if not isinstance(model, ConjugateModel):
        return
    read = model.messages(model.start)
    if not isinstance(read, Mapping | tuple) or read:
        return
    said = (
        f"no statistic of model.kind {assembly.study.model.kind!r} depends on the posterior, so that each "
        f"of {rounds} rounds releases the same sums anew"
    )
    if assembly.sampler.rate < 1.0:
        yield f'{said}; rounds = 1 with sampler = "full" says about as much in one message'
        return
    more = math.sqrt(rounds * noise_left(rounds, assembly.study.solver.arguments))
    if more < _NOISIER:
        yield f"{said}, and their mean says what one release of the whole budget does: write rounds = 1"
        return
    yield (
        f"{said}, and their mean has about {more:.2g} times the noise of one release of the whole budget: "
        "write rounds = 1; or leave averaging and emphasis out"
    )


def _prices(assembly: Assembly, name: str) -> dict[str, float | None]:
    """Returns relation → ε of the whole plan by an accountant; None if it has no price."""
    privacy = assembly.study.privacy
    relations = ("substitute",) if privacy.records_public else events.RELATIONS
    if privacy.promise is None:
        return dict.fromkeys(relations, math.inf)
    prices: dict[str, float | None] = {}
    for relation in relations:
        accountant = assembly.accountant(name, relation)
        try:
            known = accountant.supports(assembly.planned)
            price = accountant.epsilon(assembly.planned, privacy.promise.delta) if known else None
        except errors.UnsupportedEvent:  # supported in kind, but outside its safe range
            price = None
        except errors.PrivacyError:  # no epsilon is finite
            price = math.inf
        prices[relation] = price
    return prices
