"""What the parameters of each conjugate model are called, and how records are made from them.

A conjugate model needs one ``Kind`` to be exported by name and to make synthetic records. All
of it is NumPy, and a function of parameters that were released; no record of anybody is read.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.special

from fedvi import data
from fedvi.models.conjugate import ConjugateModel
from fedvi.models.factor_statistics import FactorAnalysis
from fedvi.models.lda import LatentDirichlet
from fedvi.models.markov_statistics import HiddenMarkov
from fedvi.models.mixture_statistics import GaussianMixture
from fedvi.models.network_statistics import DiscreteNetwork
from fedvi.models.sbn import SigmoidBeliefNetwork
from fedvi.models.unknown_noise import UnknownNoise

__all__ = ["Kind", "Parameter", "columns_of", "kind_of"]


class Parameter(NamedTuple):
    """One array among a model's parameters.

    Attributes:
      values: a draw on the first axis, [S, …].
      axes: the other axes: their names, and the labels along them.
    """

    values: np.ndarray
    axes: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Kind(NamedTuple):
    """How a conjugate model is read and run forwards.

    Attributes:
      parameters: (model, θ [S, D]) → its parameters by name.
      records: (model, parameters of ONE draw, how many, generator) → so many records, in the model's
        own layout; None for a regression, which says nothing of x.
      outcomes: of a regression: (model, parameters of ONE draw, the arrays that it is given, generator) →
        those that it draws.
    """

    parameters: Callable[[Any, np.ndarray], dict[str, Parameter]]
    records: (
        Callable[[Any, Mapping[str, np.ndarray], int, np.random.Generator], dict[str, np.ndarray]]
        | None
    )
    outcomes: (
        Callable[
            [Any, Mapping[str, np.ndarray], Mapping[str, np.ndarray], np.random.Generator],
            dict[str, np.ndarray],
        ]
        | None
    ) = None


def kind_of(model: ConjugateModel) -> Kind | None:
    """Returns how a conjugate model is read and run forwards; None for a class that is not known here."""
    return _KINDS.get(type(model))


def columns_of(model: Any) -> tuple[str, ...]:
    """Returns the names of the numbers of a record that is one row; () where a record is more than that."""
    if isinstance(model, DiscreteNetwork):
        return model.variables
    return model.columns if isinstance(model, GaussianMixture | FactorAnalysis) else ()


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


def _mixture(model: GaussianMixture, theta: np.ndarray) -> dict[str, Parameter]:
    weights, pairs = model.family.split(theta)
    count, d = model.components, len(model.columns)
    means, triangles = np.split(pairs, [count * d], axis=1)
    rows, columns = np.tril_indices(d)
    precisions = np.zeros((len(theta), count, d, d))
    precisions[..., rows, columns] = triangles.reshape(len(theta), count, -1)
    precisions[..., columns, rows] = precisions[..., rows, columns]
    component = ("component", tuple(str(k + 1) for k in range(count)))
    column, other = ("column", model.columns), ("other_column", model.columns)
    return {
        "weights": Parameter(weights, (component,)),
        "means": Parameter(means.reshape(-1, count, d), (component, column)),
        "precisions": Parameter(precisions, (component, column, other)),
    }


def _of_mixture(
    model: GaussianMixture, at: Mapping[str, np.ndarray], count: int, random: np.random.Generator
) -> dict[str, np.ndarray]:
    component = random.choice(model.components, count, p=_shares(at["weights"]))
    noise = random.standard_normal((count, len(model.columns)))
    x = np.empty_like(noise)
    for k in range(model.components):
        here = component == k
        # Λ = L Lᵀ, so that L⁻ᵀ·noise has covariance Λ⁻¹.
        root = np.linalg.cholesky(at["precisions"][k])
        x[here] = at["means"][k] + np.linalg.solve(root.T, noise[here].T).T
    return {"x": x}


def _network(model: DiscreteNetwork, theta: np.ndarray) -> dict[str, Parameter]:
    found = {}
    tables = zip(model.blocks, model.levels, model.family.split(theta), strict=True)
    for block, levels, part in tables:
        name = block.name
        axes = (f"{name}_given", _numbers(block.shape[0])), (f"{name}_level", _numbers(levels))
        found[name] = Parameter(part.reshape(-1, *block.shape), axes)
    return found


def _of_network(
    model: DiscreteNetwork, at: Mapping[str, np.ndarray], count: int, random: np.random.Generator
) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    while len(found) < len(model.variables):
        for name, parents in zip(model.variables, model.parents, strict=True):
            if name in found or not all(parent in found for parent in parents):
                continue
            row = np.zeros(count, np.int64)
            for parent in parents:
                row = row * model.levels[model.variables.index(parent)] + found[parent]
            found[name] = _drawn(at[name][row], random)
    return {"levels": np.stack([found[name] for name in model.variables], axis=1)}


def _chain(model: HiddenMarkov, theta: np.ndarray) -> dict[str, Parameter]:
    starts, moves, emissions = model.family.split(theta)
    count = model.states
    state = ("state", tuple(str(s + 1) for s in range(count)))
    following = ("next_state", state[1])
    return {
        "start": Parameter(starts, (state,)),
        "move": Parameter(moves.reshape(-1, count, count), (state, following)),
        "emit": Parameter(
            emissions.reshape(-1, count, model.symbols),
            (state, ("symbol", _numbers(model.symbols))),
        ),
    }


def _of_chain(
    model: HiddenMarkov, at: Mapping[str, np.ndarray], count: int, random: np.random.Generator
) -> dict[str, np.ndarray]:
    # The model is of symbols given lengths; the typical length is public.
    length = round(model.length if model.typical_length is None else model.typical_length)
    symbols = np.full((count, model.length), -1, np.int64)
    state = _drawn(np.tile(at["start"], (count, 1)), random)
    for step in range(length):
        symbols[:, step] = _drawn(at["emit"][state], random)
        state = _drawn(at["move"][state], random)
    return {"symbols": symbols, "length": np.full(count, length, np.int64)}


def _factors(model: FactorAnalysis, theta: np.ndarray) -> dict[str, Parameter]:
    family, count = model.family, len(model.columns)
    rows, precisions = np.split(theta, [family.groups * family.rows * family.columns], axis=1)
    rows = rows.reshape(-1, count, model.factors + 1)
    column = ("column", model.columns)
    factor = ("factor", tuple(str(k + 1) for k in range(model.factors)))
    return {
        "loadings": Parameter(rows[..., :-1], (column, factor)),
        "centres": Parameter(rows[..., -1], (column,)),
        "precisions": Parameter(np.broadcast_to(precisions, (len(theta), count)).copy(), (column,)),
    }


def _of_factors(
    model: FactorAnalysis, at: Mapping[str, np.ndarray], count: int, random: np.random.Generator
) -> dict[str, np.ndarray]:
    scores = random.standard_normal((count, model.factors))
    noise = random.standard_normal((count, len(model.columns))) / np.sqrt(at["precisions"])
    return {"x": scores @ at["loadings"].T + at["centres"] + noise}


def _topics(model: LatentDirichlet, theta: np.ndarray) -> dict[str, Parameter]:
    topic = ("topic", tuple(str(k + 1) for k in range(model.topics)))
    values = theta.reshape(-1, model.topics, model.vocabulary)
    return {"topics": Parameter(values, (topic, ("word", _numbers(model.vocabulary))))}


def _of_topics(
    model: LatentDirichlet, at: Mapping[str, np.ndarray], count: int, random: np.random.Generator
) -> dict[str, np.ndarray]:
    # The model is of words given how many there are; the typical number is public.
    length = max(1, round(model.length))
    shares = random.dirichlet(np.full(model.topics, model.alpha), count)
    rows = [random.multinomial(length, _shares(share @ at["topics"])) for share in shares]
    starts, words, counts = [0], [], []
    for row in rows:
        (stand,) = np.nonzero(row)
        starts.append(starts[-1] + len(stand))
        words.append(stand)
        counts.append(row[stand])
    width = max([model.distinct or 1, *(len(stand) for stand in words)])
    corpus = (np.array(starts), np.concatenate(words), np.concatenate(counts))
    return dict(data.bag_of_words(corpus, model.vocabulary, model.distinct or width).records)


def _beliefs(model: SigmoidBeliefNetwork, theta: np.ndarray) -> dict[str, Parameter]:
    rows, biases = model.family.split(theta)
    rows = rows.reshape(-1, model.visible, model.hidden + 1)
    visible, hidden = ("visible", _numbers(model.visible)), ("hidden", _numbers(model.hidden))
    return {
        "weights": Parameter(rows[..., :-1], (visible, hidden)),
        "visible_biases": Parameter(rows[..., -1], (visible,)),
        "hidden_biases": Parameter(biases, (hidden,)),
    }


def _of_beliefs(
    model: SigmoidBeliefNetwork,
    at: Mapping[str, np.ndarray],
    count: int,
    random: np.random.Generator,
) -> dict[str, np.ndarray]:
    lit = scipy.special.expit(at["hidden_biases"])
    hidden = random.uniform(size=(count, model.hidden)) < lit
    chance = scipy.special.expit(hidden @ at["weights"].T + at["visible_biases"])
    return {"y": (random.uniform(size=chance.shape) < chance).astype(np.int64)}


def _line(model: UnknownNoise, theta: np.ndarray) -> dict[str, Parameter]:
    return {
        "coefficients": Parameter(theta[:, :-1], (("coefficient", model.coefficients),)),
        "noise_precision": Parameter(theta[:, -1]),
    }


def _of_line(
    model: UnknownNoise,
    at: Mapping[str, np.ndarray],
    given: Mapping[str, np.ndarray],
    random: np.random.Generator,
) -> dict[str, np.ndarray]:
    centre = given["x"] @ at["coefficients"]
    return {"y": centre + random.standard_normal(len(centre)) / np.sqrt(at["noise_precision"])}


_KINDS: dict[type, Kind] = {
    DiscreteNetwork: Kind(_network, _of_network),
    FactorAnalysis: Kind(_factors, _of_factors),
    GaussianMixture: Kind(_mixture, _of_mixture),
    HiddenMarkov: Kind(_chain, _of_chain),
    LatentDirichlet: Kind(_topics, _of_topics),
    SigmoidBeliefNetwork: Kind(_beliefs, _of_beliefs),
    UnknownNoise: Kind(_line, None, _of_line),
}


def _shares(values: np.ndarray) -> np.ndarray:
    """Returns proportions that add up to 1 to the last bit, as generators want them."""
    return values / math.fsum(values)


def _drawn(proportions: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Draws one level from each row of proportions [n, L]."""
    ends = np.cumsum(proportions, axis=1)
    at = random.uniform(size=(len(ends), 1)) * ends[:, -1:]
    found: np.ndarray = (at >= ends).sum(axis=1)
    # A rounding may put it at the very end.
    return np.minimum(found, proportions.shape[1] - 1)
