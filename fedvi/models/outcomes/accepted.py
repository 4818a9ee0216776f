"""What each built-in regression takes left of `~`, and what exp(coefficient) is.

Needs no JAX, so that a server can name a ratio too. An outcome points at its line (``accepts``).
"""

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["ACCEPTED", "Accepted"]


class Accepted(NamedTuple):
    """What a regression is of.

    Attributes:
      responses: kinds of response that it takes, see ``fedvi.data.response``.
      needed: the same in words.
      columns: types of the columns left of `~`, in order; the last stands for all that follow.
      ratio: of what exp(coefficient) is one: "odds", "rate", "hazard", or "" where it is none.
      trials: whether its two columns count trials: the events, and those that were none.
    """

    responses: tuple[str, ...]
    needed: str
    columns: tuple[str, ...] = ()
    ratio: str = ""
    trials: bool = False


_COUNT = Accepted(("count",), 'a count, a column of type = "count"', ("count",), "rate")
_TWO_COUNTS = 'two counts: cbind(events, non_events), both columns of type = "count"'

ACCEPTED: Mapping[str, Accepted] = {
    "binomial": Accepted(("counts",), _TWO_COUNTS, ("count",), "odds", trials=True),
    "linear": Accepted(("number", "count", "binary"), "a number", ("number",)),
    "logistic": Accepted(("binary",), "a binary one", ("binary",), "odds"),
    "multinomial": Accepted(("level",), "a column of levels", ("level",), "odds"),
    "multivariate_linear": Accepted(("several", "counts"), "several: cbind(a, b)", ("number",)),
    "negative_binomial": _COUNT,
    "poisson": _COUNT,
    "survival": Accepted(
        ("survival",), "a time and an event: Surv(time, event)", ("number", "binary"), "hazard"
    ),
}
"""Built-in models that a formula describes."""
