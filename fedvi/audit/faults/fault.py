"""Defines a planted fault: its name, its change of code, and the layer that should find it."""

from typing import NamedTuple

__all__ = ["NEEDS", "Fault"]


class Fault(NamedTuple):
    """One mistake, as a change of one function's text.

    Attributes:
      name: of the fault.
      says: its consequence, in a sentence.
      place: "module:function", or "module:Class.method", below ``fedvi``.
      right: text that occurs exactly once in the function.
      wrong: its replacement.
      layer: the audit layer that should find it, which runs first.
      needs: keys of ``NEEDS``: what a study must have for the mistake to matter.
    """

    name: str
    says: str
    place: str
    right: str
    wrong: str
    layer: str
    needs: tuple[str, ...] = ()


NEEDS = {
    "one table": "DPSVI and VIPS, which no study runs (--one-table looks at them)",
    "view aggregate": 'privacy.view = "aggregate"',
    "colluding": "clients that work with the observer (privacy.colluding above 0)",
    "late answers": "rounds that go on without an answer (least_reporting below the number of clients)",
    "visits": "two visits of each client, or more",
    "unit client": 'privacy.unit = "client"',
    "parts": "solver `local_averaging` or `virtual_clients`",
    "site_release": "solver `site_release`",
    "unweighed": "a model whose slopes no weight bounds, such as `linear`",
    "blocks": "so many declared records that a shard is added up block by block",
    "survey": 'a survey of the columns (`site_release` with an intercept and clip_norm "auto")',
    "dp_optimisation": "solver `dp_optimisation`",
    "vips": "solver `vips`",
    "low_rank_gaussian": 'family "low_rank_gaussian"',
    "predictor": "a generalised linear model in a Gaussian family of full or diagonal precision",
    "poisson": "the sampler `poisson`",
    "feistel": "the sampler `feistel`",
    "random batches": "batches that hold only some of the records",
    "rounded_gaussian": 'privacy.mechanism = "rounded_gaussian"',
    "rdp": "the accountant `rdp`",
}
"""Descriptions of what a study may lack; solvers, families and samplers have their names in study files."""
