"""Optional abilities of a model, as protocols: other code asks for an ability, not for a certain model.

To be fitted, a model must be a ``fedvi.models.base.Model`` or a ``fedvi.updates.conjugate.ConjugateModel``.
A command that needs one of the abilities here reports an error if the model lacks it. Needs no JAX.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from fedvi.typing import Eta

__all__ = [
    "Arrays",
    "Concave",
    "Generates",
    "GeneratesOutcomes",
    "HasDensity",
    "HasOutcome",
    "Latents",
    "Measure",
    "Measures",
    "Multiplies",
    "Named",
    "Parameter",
    "PlausibleOutcomes",
    "PredictsArrays",
    "Regression",
    "RunsForwards",
    "SharesEffects",
    "Tabular",
    "TellsLatents",
    "Topics",
    "at_draw",
    "is_concave",
]

Arrays = Mapping[str, np.ndarray]
"""Named arrays: the columns of records, or the parameters of one draw."""


class Parameter(NamedTuple):
    """One array among a model's parameters.

    Attributes:
      values: draws along the first axis, [S, …].
      axes: the name of each other axis, and the labels along it.
    """

    values: np.ndarray
    axes: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Latents(NamedTuple):
    """Computes latents of new records, at the posterior of the parameters.

    Attributes:
      what: describes the latents in words.
      labels: one for each of the m numbers.
      values: records in the model's layout → [n, m].
    """

    what: str
    labels: tuple[str, ...]
    values: Callable[[Arrays], np.ndarray]


class Measure(NamedTuple):
    """How well a posterior predicts held-out records.

    Attributes:
      name: the name of the measure, such as "mean log-likelihood".
      value: its value.
      draws: draws of θ; 0 if the integral has a closed form, or posterior means are used instead.
      beside: further figures by name.
    """

    name: str
    value: float
    draws: int
    beside: tuple[tuple[str, float], ...] = ()


@runtime_checkable
class Named(Protocol):
    """A model whose θ consists of named parameters."""

    def parameters(self, theta: np.ndarray) -> dict[str, Parameter]:
        """Splits draws θ [S, D] into parameters by name. NumPy."""


@runtime_checkable
class Generates(Named, Protocol):
    """A model that can simulate whole records."""

    def draw(self, at: Arrays, count: int, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Draws ``count`` records in the model's own layout, at ONE draw of its parameters. NumPy."""


@runtime_checkable
class GeneratesOutcomes(Named, Protocol):
    """A model that can simulate some arrays of a record given the others."""

    @property
    def inputs(self) -> Mapping[str, tuple[int, ...]]:
        """The given arrays: name → shape for one record."""

    def draw_outcomes(
        self, at: Arrays, given: Arrays, random: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Draws the other arrays at ONE draw of its parameters. NumPy."""


@runtime_checkable
class HasDensity(Named, Protocol):
    """A conjugate model of whole records with a computable likelihood."""

    @property
    def family(self) -> Any:
        """The exponential family of q."""

    def log_density(self, at: Arrays, records: Arrays) -> np.ndarray:
        """Returns log p(record | θ) of each record, [n], at ONE draw of its parameters. NumPy."""


@runtime_checkable
class Measures(Protocol):
    """A model with a measure of its own, or an integral over q that needs no draws."""

    def measure(self, posterior: Eta, records: Arrays, draws: int, seed: int) -> Measure:
        """Evaluates q on held-out records, with ``draws`` and ``seed`` if it needs draws."""


@runtime_checkable
class TellsLatents(Protocol):
    """A model that can infer the latents of new records."""

    def latents(self, posterior: Eta) -> Latents:
        """Returns the inference of latents at q."""


@runtime_checkable
class PredictsArrays(Protocol):
    """A model of one number given the other arrays, with a closed-form predictive distribution.

    Attributes:
      predicted: what the mean is the mean of, in words; and why it may not be finite.
    """

    predicted: ClassVar[tuple[str, str]]

    @property
    def inputs(self) -> Mapping[str, tuple[int, ...]]:
        """The given arrays: name → shape for one record."""

    def predict(
        self, posterior: Eta, arrays: Arrays, ends: tuple[float, float]
    ) -> tuple[np.ndarray, ...]:
        """Returns for each record the mean, its sd, its quantiles at ``ends``, and those of the outcome."""


@runtime_checkable
class Tabular(Protocol):
    """A model whose records are rows of numbers."""

    @property
    def row(self) -> tuple[str, ...]:
        """The names of the numbers of a row."""


@runtime_checkable
class Topics(Protocol):
    """A model of documents by topics, each a distribution over words: θ is [topics, vocabulary]."""

    topics: int
    vocabulary: int
    length: float

    def signal(
        self,
        records: int,
        rate: float,
        noise_multiplier: float,
        clip_norm: float,
        typical: float | None,
    ) -> float:
        """Returns the mean cell of θ after ``records`` documents, in sds of the noise of one full sum."""


def at_draw(parameters: Mapping[str, Parameter], index: int) -> dict[str, np.ndarray]:
    """Returns the parameters of one draw."""
    return {name: each.values[index] for name, each in parameters.items()}


@runtime_checkable
class HasOutcome(Protocol):
    """A model of an outcome given the columns x of a formula."""

    @property
    def outcome(self) -> Any:
        """The distribution of the outcome; ``fedvi.models.outcomes.base`` lists its possible abilities."""


@runtime_checkable
class Multiplies(Protocol):
    """A model of an outcome whose linear predictor multiplies x by a function of θ."""

    def multipliers(self, theta: Any) -> Any:
        """Returns the multipliers of x at θ [D], [W]. JAX."""


@runtime_checkable
class Regression(Protocol):
    """A model whose records are one or several rows, each with a linear predictor xᵀθ.

    ``fedvi.models.glm.GeneralisedLinearModel`` documents the members.
    """

    names: tuple[str, ...]
    prior_scales: tuple[float, ...]
    response: Any
    layout: Any

    @property
    def size(self) -> int: ...
    @property
    def conjugate(self) -> bool: ...
    @property
    def typical_curvature(self) -> float: ...
    def curvature_at(self, mean: float) -> float | None: ...
    @property
    def noise_scale(self) -> float | None: ...
    def log_prior(self, theta: Any) -> Any: ...
    def log_likelihood(self, theta: Any, record: Mapping[str, Any]) -> Any: ...
    def constrain(self, theta: Any) -> dict[str, Any]: ...
    def log_density(self, linear_predictor: Any, y: Any) -> Any: ...
    def derivatives(self, linear_predictor: Any, y: Any) -> tuple[Any, Any, Any]: ...
    def steepest(self, linear_predictor: Any, y: Any) -> Any: ...
    def sharpest(self, linear_predictor: Any, y: Any) -> Any: ...
    def rows(self, x: Any, y: Any, mask: Any) -> tuple[Any, Any, Any]: ...


@runtime_checkable
class Concave(Protocol):
    """A model that says whether log p(record | θ) is concave in θ, which Newton steps need."""

    @property
    def concave(self) -> bool: ...


@runtime_checkable
class PlausibleOutcomes(Protocol):
    """A model that can say how far apart the outcomes of a record may be."""

    def designs(self, record: Mapping[str, Any]) -> Any:
        """Returns [k, D]: the linear predictors of ONE record are designs @ θ."""

    def plausible(self, theta: Any, record: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Returns J records like ``record``, with the most extreme outcomes that are plausible at θ.

        They depend on θ and on all of the record but its outcome. None if the model cannot say.
        """


@runtime_checkable
class SharesEffects(Protocol):
    """A model in which the records of a site share effects that stay at the site; see ``SiteEffects``."""

    base: Any
    labels: tuple[str, ...]
    scales: tuple[float, ...]
    learnt: bool
    sites: int

    @property
    def size(self) -> int: ...
    @property
    def effect_names(self) -> tuple[str, ...]: ...
    def joint(self) -> Any: ...
    def new_site(self) -> Any: ...
    def regression(self) -> Any: ...
    def widened(self, records: Mapping[str, Any]) -> dict[str, Any]: ...


def is_concave(model: Any) -> bool:
    """Whether log p(record | θ) is known to be concave in θ; False of a model that does not say."""
    base = model.base if isinstance(model, SharesEffects) else model
    return isinstance(base, Concave) and base.concave


@runtime_checkable
class RunsForwards(Protocol):
    """A NumPyro function, which can draw any columns given the others."""

    name: str
    function: Callable[..., Any]
    plate: str
    record: Mapping[str, Any]

    @property
    def size(self) -> int: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    def constrain(self, theta: Any) -> dict[str, Any]: ...
