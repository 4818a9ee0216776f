"""One-visit baselines for comparison: the Bayesian committee machine, "same" and "split"."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fedvi import errors
from fedvi.data.source import ArraySource
from fedvi.expfam import tree
from fedvi.expfam.base import DenseGaussian
from fedvi.run import loading, simulate
from fedvi.study import build
from fedvi.study.build import PRIOR, Assembly
from fedvi.study.config import Study, parse_study
from fedvi.typing import Eta
from fedvi.updates.base import Fold

__all__ = ["Baseline", "baselines", "bcm_same", "bcm_split", "check", "one_visit", "prior_shares"]


class Baseline(NamedTuple):
    """A posterior from one visit to each client, without exchange between clients.

    Attributes:
      name: "BCM same" or "BCM split".
      posterior: η, proper.
      note: how the prior was counted.
    """

    name: str
    posterior: Eta
    note: str


def check(study: Study) -> None:
    """Refuses studies whose budget baselines would spend twice.

    Each baseline visits every client once more. Its release would cost as much as a visit of the study, on
    records whose whole budget the study plans to spend, and the study's claims would not include it. Where
    noise is seeded nothing is promised, so each baseline may have the whole budget, as in a comparison of
    methods at equal ε.

    Raises:
      BudgetExceeded: the study promises privacy.
    """
    if study.privacy.private and study.simulation.insecure_seed is None:
        raise errors.BudgetExceeded(
            "each baseline visits every client once more, and the study's budget has no room for it",
            "compare on data that need no protection, with simulation.insecure_seed; or write a study "
            "of its own with rounds = 1, whose price adds to this one's",
        )


def baselines(study: Study, base: Path) -> tuple[Baseline, ...]:
    """Runs both committee machines on a study's clients, with its solver, family and prior.

    Args:
      study: from ``load_study``; its schedule is replaced. If it has no noise multiplier, one is
        calibrated to one visit.
      base: the folder that the clients' data paths are relative to.

    Raises:
      BudgetExceeded: see ``check``.
      ConfigError: see ``bcm_same``.
    """
    check(study)
    assembly = one_visit(study)
    sources = loading.load_shards(assembly, base)
    shares = prior_shares(assembly, sources)
    divided = (
        "each client counts the prior to the power of its share of the records"
        if study.privacy.records_public
        else "each client counts the prior to the power 1 / number of clients, for numbers of records "
        "are not public"
    )
    return (
        Baseline("BCM same", bcm_same(assembly, sources), "each client counts the whole prior"),
        Baseline("BCM split", bcm_split(assembly, sources, shares), divided),
    )


def one_visit(study: Study) -> Assembly:
    """Builds the study with one visit to every client, all at the prior, with full steps.

    Raises:
      ConfigError: the prior is not in the family, so that no power of it can be divided out; or q is
        not Gaussian.
    """
    raw = study.as_dict()
    raw["schedule"] = {"kind": "synchronous", "rounds": 1}
    assembly = build.assemble(parse_study(raw, study.parts))
    if not assembly.solvers[assembly.clients[0]].renews:
        # Fresh statistics are always taken whole, and damping them is refused.
        raw["schedule"]["damping"] = 1.0
        assembly = build.assemble(parse_study(raw, study.parts))
    if assembly.gather is not None:
        raise errors.ConfigError(
            'privacy.view is "aggregate": baselines need what each client answers, and sums over clients '
            "alone are published",
            "leave --baselines out",
        )
    gaussian = isinstance(assembly.family, DenseGaussian)
    if PRIOR in assembly.solvers or not gaussian:
        raise errors.ConfigError(
            "baselines divide by powers of the prior, which needs a Gaussian prior and a full or "
            f"diagonal Gaussian family; found family.kind {study.family.kind!r}"
            + (", and a prior that is not Gaussian" if PRIOR in assembly.solvers else ""),
            "leave --baselines out",
        )
    return assembly


def bcm_same(assembly: Assembly, sources: Mapping[str, ArraySource]) -> Eta:
    """Returns q = Π_m q_m / p_0^(M−1), where q_m is each client's own posterior after one visit.

    q_m = p_0 t_m, since the cavity of a first visit is the prior. So q = p_0 Π t_m, the result of one
    synchronous round with s = 1, and it is computed by such a round. An improper product is projected.

    Args:
      assembly: from ``one_visit``.
      sources: client → its records.

    Source: Tresp (2000), A Bayesian committee machine; docs/proofs/updates.md §3.
    """
    return simulate.run(assembly, sources).posterior


def bcm_split(
    assembly: Assembly, sources: Mapping[str, ArraySource], shares: Mapping[str, float]
) -> Eta:
    """Returns q = Π_m q_m, where each client's q_m counts the prior to the power of its share.

    Each client is run as a study of its own, with its own server, ledger and noise. An improper product is
    projected; ``LocalSolver.stand``, if the solver has it for noisy sums, is applied once, to the product.

    Args:
      assembly: from ``one_visit``.
      sources: client → its records.
      shares: client → its power of the prior; they sum to 1. A client of share 0 is left out.

    Source: Ashman et al. (2022), arXiv:2202.12275, BCM with a split prior; docs/proofs/updates.md §3.
    """
    family, prior, study = assembly.family, assembly.prior, assembly.study
    visited = tuple(name for name in assembly.clients if shares[name] > 0.0)
    product, factors, asked = prior, {}, {}
    for client in study.clients:
        name = client.name
        if name not in visited:
            continue
        alone = dataclasses.replace(
            assembly,
            study=study.model_copy(update={"clients": [client]}),
            solvers={name: assembly.solvers[name]},
            prior=tree.scale(prior, shares[name]),
        )
        asked[name] = alone.prior
        factors[name] = simulate.run(alone, {name: sources[name]}).factors[name]
        product = tree.add(product, factors[name])
    stand = assembly.solvers[assembly.clients[0]].stand
    if stand is not None:
        fold = Fold(prior, prior, product, factors=factors, asked=asked, damping=1.0)
        return stand(family, fold, None).reported
    return family.project(product, prior)


def prior_shares(assembly: Assembly, sources: Mapping[str, ArraySource]) -> dict[str, float]:
    """Returns client → N_m / N where numbers of records are public, and 1 / M otherwise."""
    names = assembly.clients
    if not assembly.study.privacy.records_public:
        return dict.fromkeys(names, 1.0 / len(names))
    total = sum(sources[name].size for name in names)
    return {name: sources[name].size / total for name in names}
