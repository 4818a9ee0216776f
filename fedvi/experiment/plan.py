"""What `fedvi check` prints: what a study would release, how often, at what price; reads no data."""

import dataclasses
import math
from typing import Any

from fedvi.experiment.build import Assembly, assemble
from fedvi.experiment.config import Study
from fedvi.privacy import accountants, events

__all__ = ["Plan", "plan"]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The price and the traffic of a study, before it runs.

    Attributes:
      study: its name.
      digest: what every site must agree on.
      model: kind and dimension D.
      coefficients: the names of θ's coordinates.
      family: the kind of q.
      solver: the kind of local solver.
      schedule: kind and rounds.
      clients: their names.
      numbers_per_message: how many distinct numbers leave a client in one message.
      messages_per_client: how many messages, at most.
      steps_per_message: how many noised sums are behind one message; 0 without noise.
      clip_norm, noise_multiplier, noise_std: of one noised sum; None without noise.
      sampling_rate: the probability that a record is in a batch; None without noise.
      batch_capacity: static rows of a batch; None without noise.
      epsilon: relation → ε per client at ``delta``; infinite without protection. Where the number
        of records is published, only substitution leaves it unchanged and is priced.
      budget_epsilon, delta, relation, unit, accountant: the promise; None without protection.
      mark: printed beside every claim.
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
    sampling_rate: float | None
    batch_capacity: int | None
    epsilon: dict[str, float]
    budget_epsilon: float | None
    delta: float | None
    relation: str | None
    unit: str | None
    accountant: str
    mark: str

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON; an infinite ε becomes the string "inf"."""
        plain = dataclasses.asdict(self)
        plain["epsilon"] = {
            name: value if math.isfinite(value) else "inf" for name, value in self.epsilon.items()
        }
        return plain


def plan(study: Study | Assembly) -> Plan:
    """Returns what a study would do; reads no data file.

    Raises:
      FedviError: if the study cannot be carried out.
    """
    assembly = assemble(study) if isinstance(study, Study) else study
    study = assembly.study
    solver = assembly.solvers[assembly.clients[0]]
    noise, sampler = assembly.noise_multiplier, assembly.sampler
    steps = 0 if noise is None else sum(events.counts(solver.cost).values())
    promise = study.privacy.promise
    factory = getattr(accountants, study.privacy.accountant)
    epsilon: dict[str, float] = {}
    relations = ("substitute",) if study.privacy.records_public else events.RELATIONS
    for relation in relations:
        price = factory(relation).epsilon(assembly.planned, promise.delta) if promise else math.inf
        epsilon[relation] = price
    return Plan(
        study=study.study.name,
        digest=study.digest,
        model=f"{study.model.kind}, D = {assembly.model.size}",
        coefficients=assembly.model.names,
        family=study.family.kind,
        solver=study.solver.kind,
        schedule=f"{assembly.schedule.name}, {assembly.schedule.rounds} rounds",
        clients=assembly.clients,
        numbers_per_message=solver.number_count,
        messages_per_client=assembly.schedule.rounds,
        steps_per_message=steps,
        clip_norm=solver.clip_norm,
        noise_multiplier=noise,
        noise_std=noise * solver.clip_norm if noise and solver.clip_norm else None,
        sampling_rate=sampler and sampler.rate,
        batch_capacity=sampler and sampler.capacity,
        epsilon=epsilon,
        budget_epsilon=promise and promise.epsilon,
        delta=promise and promise.delta,
        relation=promise and promise.relation,
        unit=promise and promise.unit,
        accountant=study.privacy.accountant,
        mark=assembly.mark,
    )
