"""What a server makes of noisy sums of expected statistics: NumPy alone, for every conjugate model."""

import functools
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedvi.expfam import tree
from fedvi.inference.base import Change, Fold, Standing, Task, check_shapes
from fedvi.models.conjugate import ConjugateModel, from_table, unpacked
from fedvi.typing import Eta

__all__ = ["broadcast", "finish_statistics", "stand_statistics", "step_of"]


def broadcast(model: ConjugateModel, task: Task) -> Eta:
    """Returns the q that a task is answered at: the model's public start before the first fold."""
    return model.start if task.version == 0 else task.posterior


def step_of(visit: int, averaging: float, delay: float) -> float:
    """Returns ρ of an answer after ``visit`` earlier ones: (delay + visit)^−averaging, at most 1."""
    return float(min(1.0, (delay + visit) ** -averaging))


def finish_statistics(
    value: dict[str, np.ndarray],
    task: Task,
    *,
    model: Mapping[str, Any],
    weights: Mapping[str, float],
    rate: float,
    averaging: float,
    delay: float,
) -> Change:
    """Turns noised sums over a batch into a step of the client's factor: ρ·(fresh factor − factor).

    So a factor is a running mean of fresh ones, each an unbiased estimate of the sum over all records
    (what clipping takes aside), and its noise falls while it is renewed. Sums are divided by the public
    rate, never by the number of records.

    Args:
      value: of each block its released numbers, see ``conjugate.packed``, times the block's weight.
      task: what was answered.
      model: see ``conjugate.to_table``.
      weights: of each block.
      rate: the public share of records in a batch.
      averaging, delay: κ and τ0, see ``step_of``.

    Raises:
      ProtocolError: if the arrays are others, or of other shapes.

    Source: specs/vips.md §0 and §1; T is kept apart from the prior (§1).
    """
    made = _made(model)
    check_shapes(value, {block.name: (block.number_count,) for block in made.blocks})
    sums = {
        block.name: unpacked(value[block.name], block) / (weights[block.name] * rate)
        for block in made.blocks
    }
    fresh = made.factor(sums, broadcast(made, task))
    moved = tree.subtract(fresh, task.factor)
    step = step_of(task.visit, averaging, delay)
    return Change(moved if step == 1.0 else tree.scale(moved, step))


def stand_statistics(
    family: Any,
    fold: Fold,
    before: Standing | None,
    *,
    model: Mapping[str, Any],
    noise: Mapping[str, float],
    averaging: float,
    delay: float,
) -> Standing:
    """Returns the q that the model makes of Σ factors, told how much noise its running means have left.

    ``Standing.weights`` holds of each client (Σ of the squared weights of the answers in its factor, how
    many there were): the noise of a factor has that times the variance of one answer's.

    Args:
      family: of q.
      fold: Σ factors is ``posterior`` − ``known``.
      before: what this returned at the fold before.
      model: see ``conjugate.to_table``.
      noise: of each block, the standard deviation in one number of one answer, in the unit of the sums.
      averaging, delay: as of ``finish_statistics``.
    """
    weights = dict.fromkeys(fold.factors, (0.0, 0.0)) | dict(before.weights if before else {})
    for name in fold.asked:
        squares, visits = weights[name]
        step = step_of(int(visits), averaging, delay)
        weights[name] = ((1.0 - step) ** 2 * squares + step**2, visits + 1.0)
    squares = sum(left for left, _ in weights.values())
    left = {name: sd * math.sqrt(squares) for name, sd in noise.items()}
    found = _made(model).posterior(tree.subtract(fold.posterior, fold.known), left)
    q = tree.freeze(family.project(found, fold.prior))
    return Standing(
        handed_out=q,
        reported=q,
        curvature=family.zeros(),
        folds=1 if before is None else before.folds + 1,
        squares=squares,
        weights=weights,
    )


def _made(table: Mapping[str, Any]) -> ConjugateModel:
    return _made_once(json.dumps(table, sort_keys=True))


@functools.lru_cache(maxsize=16)
def _made_once(text: str) -> ConjugateModel:
    found: ConjugateModel = from_table(json.loads(text))
    return found
