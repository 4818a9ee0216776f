"""What a model may be able to do besides its likelihood: others ask for these, and name no model.

To be fitted, a model is a ``fedvi.models.base.Model`` or a ``fedvi.updates.conjugate.ConjugateModel``. All
that is here is optional, and a command that needs it says so where it is missing. Needs no JAX.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from fedvi.typing import Eta

__all__ = [
    "Arrays",
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
    "PredictsArrays",
    "Regression",
    "RunsForwards",
    "SharesEffects",
    "Tabular",
    "TellsLatents",
    "Topics",
    "at_draw",
]

Arrays = Mapping[str, np.ndarray]
"""Named arrays: the columns of records, or the parameters of one draw."""


class Parameter(NamedTuple):
    """One array among a model's parameters.

    Attributes:
      values: a draw on the first axis, [S, …].
      axes: the other axes: their names, and the labels along them.
    """

    values: np.ndarray
    axes: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Latents(NamedTuple):
    """How the latents of new records are told, at the posterior of the parameters.

    Attributes:
      what: they are, in words.
      labels: of the m numbers.
      values: records in the model's layout → [n, m].
    """

    what: str
    labels: tuple[str, ...]
    values: Callable[[Arrays], np.ndarray]


class Measure(NamedTuple):
    """How well records are predicted that nobody fitted.

    Attributes:
      name: of the measure, such as "mean log-likelihood".
      value: of the measure.
      draws: of θ; 0 where the integral has a closed form, or means stand for it.
      beside: further figures by name.
    """

    name: str
    value: float
    draws: int
    beside: tuple[tuple[str, float], ...] = ()


@runtime_checkable
class Named(Protocol):
    """A model whose θ is known by the names of its parameters."""

    def parameters(self, theta: np.ndarray) -> dict[str, Parameter]:
        """Cuts draws θ [S, D] into parameters by name. NumPy."""


@runtime_checkable
class Generates(Named, Protocol):
    """A model of whole records, run forwards."""

    def draw(self, at: Arrays, count: int, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Draws so many records, in the model's own layout, at ONE draw of its parameters. NumPy."""


@runtime_checkable
class GeneratesOutcomes(Named, Protocol):
    """A model of some arrays of a record given others, run forwards."""

    @property
    def inputs(self) -> Mapping[str, tuple[int, ...]]:
        """The arrays that it is given: name → shape of one record's."""

    def draw_outcomes(
        self, at: Arrays, given: Arrays, random: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Draws the other arrays at ONE draw of its parameters. NumPy."""


@runtime_checkable
class HasDensity(Named, Protocol):
    """A conjugate model of whole records with a likelihood that can be computed."""

    @property
    def family(self) -> Any:
        """The exponential family of q."""

    def log_density(self, at: Arrays, records: Arrays) -> np.ndarray:
        """Returns log p(record | θ) of each record, [n], at ONE draw of its parameters. NumPy."""


@runtime_checkable
class Measures(Protocol):
    """A model with a measure of its own, or an integral over q that needs no draws."""

    def measure(self, posterior: Eta, records: Arrays, draws: int, seed: int) -> Measure:
        """Holds q against records that were not fitted; ``draws`` and ``seed`` where draws are needed."""


@runtime_checkable
class TellsLatents(Protocol):
    """A model that tells the latents of new records."""

    def latents(self, posterior: Eta) -> Latents:
        """Returns how they are told at q."""


@runtime_checkable
class PredictsArrays(Protocol):
    """A model of one number of a record given its other arrays, with a predictive law in closed form.

    Attributes:
      predicted: of what the mean is one, in words; and why a mean may be no finite number.
    """

    predicted: ClassVar[tuple[str, str]]

    @property
    def inputs(self) -> Mapping[str, tuple[int, ...]]:
        """The arrays that it is given: name → shape of one record's."""

    def predict(
        self, posterior: Eta, arrays: Arrays, ends: tuple[float, float]
    ) -> tuple[np.ndarray, ...]:
        """Returns of each record the mean, its sd, its quantiles at ``ends``, and those of the outcome."""


@runtime_checkable
class Tabular(Protocol):
    """A model whose records are one row of numbers each."""

    @property
    def row(self) -> tuple[str, ...]:
        """The names of these numbers."""


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
        """Returns a mean cell of θ after ``records`` documents, in sds of the noise of one sum of all."""


def at_draw(parameters: Mapping[str, Parameter], index: int) -> dict[str, np.ndarray]:
    """Returns the parameters of one draw."""
    return {name: each.values[index] for name, each in parameters.items()}


@runtime_checkable
class HasOutcome(Protocol):
    """A model of an outcome given the columns x of a formula."""

    @property
    def outcome(self) -> Any:
        """How the outcome is distributed: what it can be asked stands in ``fedvi.models.outcomes.base``."""


@runtime_checkable
class Multiplies(Protocol):
    """A model of an outcome in which x is multiplied by something else than θ."""

    def multipliers(self, theta: Any) -> Any:
        """Returns what x is multiplied by at θ [D], [W]. JAX."""


@runtime_checkable
class Regression(Protocol):
    """A model of which a record is one row, or several, with a linear predictor xᵀθ each.

    ``fedvi.models.glm.GeneralisedLinearModel`` says what each member is.
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
    @property
    def noise_scale(self) -> float | None: ...
    def log_prior(self, theta: Any) -> Any: ...
    def log_likelihood(self, theta: Any, record: Mapping[str, Any]) -> Any: ...
    def constrain(self, theta: Any) -> dict[str, Any]: ...
    def log_density(self, linear_predictor: Any, y: Any) -> Any: ...
    def derivatives(self, linear_predictor: Any, y: Any) -> tuple[Any, Any, Any]: ...
    def steepest(self, linear_predictor: Any, y: Any) -> Any: ...
    def rows(self, x: Any, y: Any, mask: Any) -> tuple[Any, Any, Any]: ...


@runtime_checkable
class SharesEffects(Protocol):
    """A model whose records of one site share effects that nobody else sees; see ``SiteEffects``."""

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


@runtime_checkable
class RunsForwards(Protocol):
    """A function of NumPyro's, which says of every column what it is given and draws the others."""

    name: str
    function: Callable[..., Any]
    plate: str
    record: Mapping[str, Any]

    @property
    def size(self) -> int: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    def constrain(self, theta: Any) -> dict[str, Any]: ...
