"""Turns noisy sums of expected statistics into a posterior: NumPy alone, for every conjugate model."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedvi.expfam import tree
from fedvi.typing import Eta
from fedvi.updates.base import Change, Fold, Standing, Task, check_shapes
from fedvi.updates.conjugate import Centred, ConjugateModel, StartsFrom, unpacked
from fedvi.updates.running_means import squares_with, step_of

__all__ = ["broadcast", "finish_statistics", "stand_statistics"]


def broadcast(model: ConjugateModel, task: Task) -> Eta:
    """Returns the q at which a task is answered: before the first fold the model's public start.

    Before the first fold q equals the prior bit for bit. Version 0 does not identify that state: removing
    a client before any answer makes a new version.
    """
    return model.start if task.version == 0 else _handed_out(model, task.posterior)


def finish_statistics(
    value: dict[str, np.ndarray],
    task: Task,
    *,
    model: ConjugateModel,
    weights: Mapping[str, float],
    rate: float,
    averaging: float,
    delay: float,
    emphasis: float = 0.0,
) -> Change:
    """Turns noised sums over a batch into a step of the client's factor: ρ·(fresh factor − factor).

    So a factor is a running mean of fresh factors, each an unbiased estimate of the sum over all records
    (except for clipping), and its noise falls with every answer. The mean starts from zero records, or
    from the model's ``first``. Sums are divided by the public rate, never by the number of records.

    Args:
      value: the released numbers of each block, see ``conjugate.packed``, times the block's weight.
      task: the answered task.
      model: whose sums they are.
      weights: of each block.
      rate: the public share of records in a batch.
      averaging, delay, emphasis: κ, τ0 and γ, see ``step_of``.

    Raises:
      ProtocolError: if names or shapes of the arrays differ.

    Source: docs/proofs/updates.md §7; T is kept apart from the prior.
    """
    check_shapes(value, {block.name: (block.number_count,) for block in model.blocks})
    sums = {
        block.name: unpacked(value[block.name], block) / (weights[block.name] * rate)
        for block in model.blocks
    }
    posterior = broadcast(model, task)
    fresh = model.factor(sums, posterior)
    step = step_of(task.visit, averaging, delay, emphasis)
    if task.visit == 0 and step < 1.0 and isinstance(model, StartsFrom):
        first = model.first(sums, posterior)
        mixed = tree.add_scaled(tree.scale(first, 1.0 - step), fresh, step)
        return Change(tree.subtract(mixed, task.factor))
    moved = tree.subtract(fresh, task.factor)
    return Change(moved if step == 1.0 else tree.scale(moved, step))


def stand_statistics(
    family: Any,
    fold: Fold,
    before: Standing | None,
    *,
    model: ConjugateModel,
    noise: Mapping[str, float],
    averaging: float,
    delay: float,
    emphasis: float = 0.0,
) -> Standing:
    """Returns the model's q given Σ factors and the noise that is left in their running means.

    For each client ``Standing.weights`` holds (Σ of the squared weights of the answers in its factor, the
    number of answers); the first is the noise variance of a factor, in units of one answer's. For a
    centred model, ``Standing.centres`` holds for each client the running mean of the θ of its factor.

    Args:
      family: of q.
      fold: Σ factors is ``posterior`` − ``known``.
      before: the result of the previous fold.
      model: whose sums they are.
      noise: block → standard deviation of one number of one answer, in the unit of the sums.
      averaging, delay, emphasis: as in ``finish_statistics``.
    """
    kept = before.weights if before else {}
    # A client that was divided out has left neither a factor nor noise.
    weights = {name: kept.get(name, (0.0, 0.0)) for name in fold.factors}
    places = dict(before.centres) if before else {}
    centred = model if isinstance(model, Centred) and model.centred else None
    centres = {name: places[name] for name in fold.factors if name in places}
    for name, eta in fold.asked.items():
        squares, visits = weights[name]
        step = step_of(int(visits), averaging, delay, emphasis)
        weights[name] = (squares_with(step, squares), visits + 1.0)
        if centred is not None:
            at = model.start if before is None else _handed_out(model, eta)
            place = family.moments(at)[0]
            # A delayed mean starts from zero records, which have no θ, so weights add up to less than 1.
            gone = math.prod(
                1.0 - step_of(visit, averaging, delay, emphasis) for visit in range(int(visits) + 1)
            )
            last = centres.get(name, place)
            centres[name] = last + step / (1.0 - gone) * (place - last)
    squares = sum(left for left, _ in weights.values())
    left = {name: sd * math.sqrt(squares * fold.noise) for name, sd in noise.items()}
    if centred is not None and centres:
        factors = [fold.factors[name] for name in centres]
        found = centred.about(factors, list(centres.values()), left)
    else:
        found = model.posterior(tree.subtract(fold.posterior, fold.known), left)
    q = tree.freeze(family.project(found, fold.prior))
    return Standing(
        handed_out=q,
        reported=q,
        curvature=family.zeros(),
        folds=1 if before is None else before.folds + 1,
        squares=squares,
        weights=weights,
        centres=centres,
    )


def _handed_out(model: ConjugateModel, posterior: Eta) -> Eta:
    pairs = zip(tree.leaves(posterior), tree.leaves(model.prior), strict=True)
    return model.start if all(np.array_equal(one, other) for one, other in pairs) else posterior
