"""Discrete Bayesian networks as a conjugate model: tables of counts, exact in one round."""

import dataclasses
import graphlib
import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedvi import errors
from fedvi.expfam.dirichlet import Dirichlet, DirichletEta
from fedvi.expfam.product import Product
from fedvi.models.arguments import check_positive
from fedvi.models.capabilities import Arrays, Measure, Parameter
from fedvi.models.forwards import LIKELIHOOD, levels_drawn, numbered
from fedvi.models.nonnegative import kept_sums
from fedvi.typing import Eta
from fedvi.updates.conjugate import Block

__all__ = ["DiscreteNetwork"]


@dataclasses.dataclass(frozen=True)
class DiscreteNetwork:
    """Variables with declared levels, each with a table of proportions given its parents.

    A record adds 1 to one cell of each table: a vector of norm √(number of tables), whatever its levels. No
    statistic depends on q, so one round is enough. Naive Bayes is a network in which the class
    is the parent of all other variables.

    Records are {"levels": int [N, number of variables]}, levels counted from 0. If a level is out of
    range, or is −1 for missing, the record adds nothing to the tables that need it.

    Attributes:
      variables: the names of the variables.
      levels: the number of levels of each variable, at least 2.
      parents: the names of each variable's parents; no variable may be its own ancestor.
      concentration: the concentration of the Dirichlet prior in each cell.

    >>> model = DiscreteNetwork(("rain", "wet"), (2, 3), ((), ("rain",)))
    >>> [(block.name, block.shape) for block in model.blocks]
    [('rain', (1, 2)), ('wet', (2, 3))]

    Source: Heckerman (1995), A tutorial on learning with Bayesian networks; docs/proofs/updates.md §7.
    """

    variables: tuple[str, ...]
    levels: tuple[int, ...]
    parents: tuple[tuple[str, ...], ...]
    concentration: float = 1.0

    def __post_init__(self) -> None:
        count = len(self.variables)
        if not count or len(set(self.variables)) < count:
            raise errors.ModelError(
                f"variables are {self.variables}, expected at least one, and no name twice"
            )
        if len(self.levels) != count or len(self.parents) != count:
            raise errors.ModelError(
                f"{count} variables, {len(self.levels)} numbers of levels and {len(self.parents)} lists "
                "of parents, expected as many of each"
            )
        for name, levels, parents in zip(self.variables, self.levels, self.parents, strict=True):
            if levels < 2:
                raise errors.ModelError(f"{name} has {levels} levels, expected at least 2")
            if len(set(parents)) < len(parents):
                raise errors.ModelError(f"{name} has parents {parents}, expected no name twice")
            for parent in parents:
                if parent not in self.variables:
                    raise errors.ModelError(
                        f"{name} has the parent {parent!r}, which is no variable",
                        errors.did_you_mean(parent, self.variables),
                    )
        order = graphlib.TopologicalSorter(dict(zip(self.variables, self.parents, strict=True)))
        try:
            order.prepare()
        except graphlib.CycleError as error:
            raise errors.ModelError(
                f"parents form a cycle: {' -> '.join(error.args[1])}",
                "a network orders its variables: leave one of these arrows out",
            ) from None
        check_positive(self, "concentration")

    @property
    def names(self) -> tuple[str, ...]:
        """The cells, table by table, such as "wet=1|rain=0"."""
        found = []
        for name, levels, parents in zip(self.variables, self.levels, self.parents, strict=True):
            counts = [range(self._levels_of(parent)) for parent in parents]
            for given in itertools.product(*counts):
                pairs = zip(parents, given, strict=True)
                condition = ",".join(f"{parent}={level}" for parent, level in pairs)
                found += [
                    f"{name}={level}" + (f"|{condition}" if condition else "")
                    for level in range(levels)
                ]
        return tuple(found)

    @property
    def family(self) -> Product:
        """Dirichlets for the rows of each table: [combinations of the parents' levels, own levels]."""
        return Product(tuple(Dirichlet(block.shape) for block in self.blocks))

    @property
    def prior(self) -> tuple[DirichletEta, ...]:
        """The same in each cell."""
        return tuple(
            part._replace(power=part.power + self.concentration - 1.0)
            for part in self.family.zeros()
        )

    @property
    def start(self) -> tuple[DirichletEta, ...]:
        """The prior."""
        return self.prior

    @property
    def blocks(self) -> tuple[Block, ...]:
        """One table per variable; each has norm 1."""
        share = 1.0 / len(self.variables)
        return tuple(
            Block(
                name,
                (math.prod(map(self._levels_of, parents)), levels),
                1.0,
                share,
                positive=True,
                total=1.0,
            )
            for name, levels, parents in zip(self.variables, self.levels, self.parents, strict=True)
        )

    @property
    def norm_error(self) -> float:
        """The error of a weighted sum over all tables in float64: norms are 0 or 1."""
        return (len(self.variables) + 16) * 2.0**-53

    @property
    def layout(self) -> Mapping[str, tuple[int, ...]]:
        """One level for each variable."""
        return {"levels": (len(self.variables),)}

    def sound(self, records: Arrays) -> np.ndarray:
        """Returns whether every level of a record is one of its variable's, or −1, missing: bool [N]."""
        levels = records["levels"]
        inside = (levels >= -1) & (levels < np.asarray(self.levels)) & (levels == np.floor(levels))
        return np.asarray(inside.all(axis=1))

    def made_up(self, count: int, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns records of all levels, a tenth of them missing."""
        shape = (count, len(self.variables))
        drawn = random.integers(0, np.asarray(self.levels), shape)
        missing = random.uniform(size=shape) < 0.1
        return {"levels": np.where(missing, -1, drawn).astype(np.int32)}

    def messages(self, posterior: Eta) -> dict[str, np.ndarray]:
        """Returns nothing: no statistic depends on q."""
        return {}

    def expected(self, messages: Any, records: Mapping[str, Any]) -> dict[str, Any]:
        """Returns whether the record has all levels that a table needs, 1 or 0: [B, tables]."""
        import jax.numpy as jnp

        levels = records["levels"]
        inside = (levels >= 0) & (levels < jnp.asarray(self.levels, levels.dtype)[None])
        inside = inside & (levels.astype(jnp.int32).astype(levels.dtype) == levels)
        known = [
            jnp.stack([inside[:, self._place(each)] for each in (name, *parents)]).all(axis=0)
            for name, parents in zip(self.variables, self.parents, strict=True)
        ]
        return {"known": jnp.stack(known, axis=1).astype(jnp.float32)}

    def square_norms(self, messages: Any, local: Any, records: Mapping[str, Any]) -> dict[str, Any]:
        """Returns 1, or 0 where a level is missing: [B] each."""
        known = local["known"] ** 2
        return {name: known[:, index] for index, name in enumerate(self.variables)}

    def sums(
        self, messages: Any, local: Any, records: Mapping[str, Any], weights: Any
    ) -> dict[str, Any]:
        """Returns the weights of the records in each cell, in the tables' shapes."""
        import jax.numpy as jnp

        levels = records["levels"].astype(jnp.int32)
        found = {}
        for index, block in enumerate(self.blocks):
            row = jnp.zeros_like(levels[:, 0])
            for parent in self.parents[index]:
                count = self._levels_of(parent)
                row = row * count + jnp.clip(levels[:, self._place(parent)], 0, count - 1)
            column = jnp.clip(levels[:, index], 0, self.levels[index] - 1)
            counted = weights * local["known"][:, index]
            found[block.name] = jnp.zeros(block.shape, counted.dtype).at[row, column].add(counted)
        return found

    def factor(self, sums: Arrays, posterior: Eta) -> Eta:
        """Returns the sums: counts are natural parameters."""
        return tuple(DirichletEta(sums[name]) for name in self.variables)

    def posterior(self, total: Eta, noise: Mapping[str, float]) -> Eta:
        """Returns prior + total, with the nearest counts of at least 0 that have the same sum."""
        return kept_sums(self.prior, total)

    def tables(self, posterior: Eta) -> dict[str, np.ndarray]:
        """Returns the expected proportions of each table, [rows, levels].

        Rows are in the order of the parents' levels, with the last parent's changing fastest.
        """
        concentrations = {
            name: part.power + 1.0 for name, part in zip(self.variables, posterior, strict=True)
        }
        return {
            name: alpha / alpha.sum(axis=1, keepdims=True) for name, alpha in concentrations.items()
        }

    def _place(self, name: str) -> int:
        return self.variables.index(name)

    def _levels_of(self, name: str) -> int:
        return self.levels[self._place(name)]

    @property
    def row(self) -> tuple[str, ...]:
        """The variables."""
        return self.variables

    def parameters(self, theta: np.ndarray) -> dict[str, Parameter]:
        """Returns each variable's table, by its name."""
        found = {}
        tables = zip(self.blocks, self.levels, self.family.split(theta), strict=True)
        for block, levels, part in tables:
            name = block.name
            axes = (f"{name}_given", numbered(block.shape[0])), (f"{name}_level", numbered(levels))
            found[name] = Parameter(part.reshape(-1, *block.shape), axes)
        return found

    def draw(self, at: Arrays, count: int, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Draws variable after variable, parents first."""
        found: dict[str, np.ndarray] = {}
        while len(found) < len(self.variables):
            for name, parents in zip(self.variables, self.parents, strict=True):
                if name in found or not all(parent in found for parent in parents):
                    continue
                row = np.zeros(count, np.int64)
                for parent in parents:
                    row = row * self._levels_of(parent) + found[parent]
                found[name] = levels_drawn(at[name][row], random)
        return {"levels": np.stack([found[name] for name in self.variables], axis=1)}

    def log_density(self, at: Arrays, records: Arrays) -> np.ndarray:
        """Returns log p(levels), [n]; tables that need a missing level add nothing, as in the fit."""
        levels = np.asarray(records["levels"], np.int64)
        logs = np.zeros(len(levels))
        for name, parents in zip(self.variables, self.parents, strict=True):
            own = levels[:, self._place(name)]
            known, row = own >= 0, np.zeros_like(own)
            for parent in parents:
                level = levels[:, self._place(parent)]
                known &= level >= 0
                row = row * self._levels_of(parent) + np.maximum(level, 0)
            logs += np.where(known, np.log(at[name][row, np.maximum(own, 0)]), 0.0)
        return logs

    def measure(self, posterior: Eta, records: Arrays, draws: int, seed: int) -> Measure:
        """Returns the mean log-likelihood: exact, since tables are independent and a record has one cell
        in each."""
        logs = self.log_density(self.tables(posterior), records)
        return Measure(LIKELIHOOD, float(logs.mean()), 0)
