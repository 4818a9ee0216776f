"""Suggests all settings of a `fedvi.DPSVI` from public numbers: clip norm, steps, batch, learning rate."""

import dataclasses
import math
from typing import Any, NamedTuple

from fedvi import errors
from fedvi.privacy.descent import Descent, sgd

__all__ = ["FIRST_RATE", "STEPS", "Falling", "Suggestion", "suggest"]

# Chosen on three models and judged once on four others: evidence/README.md, `dpsvi_settings.py`.
STEPS, FIRST_RATE = 200, 0.1
# Larger batches take longer, and noise on the mean hardly falls.
_MOST_RECORDS = 20_000


@dataclasses.dataclass(frozen=True)
class Falling:
    """A learning rate that falls in a straight line to 0, for optimisers of NumPyro and optax.

    Noise moves the last parameters by about the last rate, so that no average of iterates is needed.

    Attributes:
      first: the rate of the first step.
      steps: T, after which it is 0.

    >>> rate = Falling(0.1, 200)
    >>> rate(0), rate(100), rate(200)
    (0.1, 0.05, 0.0)
    """

    first: float
    steps: int

    def __call__(self, step: Any) -> Any:
        """Returns the rate at a step; an array of JAX for one."""
        return self.first * (1.0 - step / self.steps)


class Suggestion(NamedTuple):
    """Settings of a `fedvi.DPSVI`; see ``suggest``.

    Attributes:
      plan: for ``DPSVI``; its ``steps`` are the number of steps for ``run``.
      learning_rate: for ``numpyro.optim.Adam``.
    """

    plan: Descent
    learning_rate: Falling


def suggest(
    *,
    max_records: int,
    latents: int,
    epsilon: float | int,
    delta: float | int,
    **more: Any,
) -> Suggestion:
    """Suggests clip norm, steps, batch and learning rate for a model whose columns are of size 1.

    Guarantee: that of the plan. All settings follow from these four public numbers, so that none is
    chosen by looking at records, which would cost budget.

    The rule: C = √latents, 200 steps on all records (of more than 20,000, on batches of 20,000 on average),
    and Adam's rate falling from 0.1 to 0. The length of a record's gradient grows with √latents where
    columns are of size 1, and 200 steps at these rates can cross the prior's width.

    It was chosen on a logistic regression, a linear regression and a network, and judged once on four other
    models and tables (evidence/README.md says by how much settings that are tuned on the records do
    better). Use it with ``gradients="aligned"``, an automatic Gaussian guide, and Adam.

    Start the guide of a network at ``init_loc_fn=numpyro.infer.init_to_median``: from NumPyro's own start,
    between −2 and 2, steps are used up on the way back. Where gradients of a record are much longer or
    shorter than √latents, as with columns in other units, scale the columns.

    Args:
      max_records: as for ``sgd``.
      latents: D, the number of unconstrained coordinates of the global latents.
      epsilon, delta: the budget, as for ``sgd``.
      more: other arguments of ``sgd``, such as ``relation``, ``runs`` and ``ledger``; and ``steps``,
        ``clip_norm`` and ``batch`` (or ``rate``, or ``sampler``) in place of those of the rule.

    Raises:
      ConfigError: ``latents`` is not an integer of at least 1, or as for ``sgd``.

    >>> plan, rate = suggest(max_records=5_000, latents=16, epsilon=1.0, delta=1e-6)
    >>> plan.clip_norm, plan.steps, rate.first
    (4.0, 200, 0.1)
    """
    if type(latents) is not int or latents < 1:
        raise errors.ConfigError(
            f"latents is {latents!r}, expected an integer of at least 1",
            "count the unconstrained coordinates of all latents outside of the record plate",
        )
    given = {"steps": STEPS, "clip_norm": math.sqrt(latents)} | more
    if not {"batch", "rate", "sampler"} & set(more):
        is_small = type(max_records) is int and max_records <= _MOST_RECORDS
        given |= {"sampler": "full"} if is_small else {"batch": _MOST_RECORDS}
    plan = sgd(max_records=max_records, epsilon=epsilon, delta=delta, **given)
    return Suggestion(plan, Falling(FIRST_RATE, plan.steps))
