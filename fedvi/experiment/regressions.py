"""What each built-in regression takes left of `~`, and what exp(coefficient) is; add a model's line here.

Needs no JAX, so that a server can name a ratio too.
"""

from typing import NamedTuple

from fedvi import errors
from fedvi.data.formula import Design

__all__ = ["KINDS", "check_response", "ratio"]


class _Regression(NamedTuple):
    """What a regression is of.

    Attributes:
      responses: kinds of response that it takes, see ``fedvi.data.response``.
      needed: the same in words.
      ratio: of what exp(coefficient) is one: "odds", "rate", "hazard", or "" where it is none.
    """

    responses: tuple[str, ...]
    needed: str
    ratio: str = ""


_COUNT = 'a count, a column of type = "count"'
_REGRESSIONS = {
    "linear": _Regression(("number", "count", "binary"), "a number"),
    "logistic": _Regression(("binary",), "a binary one", "odds"),
    "multinomial": _Regression(("level",), "a column of levels", "odds"),
    "multivariate_linear": _Regression(("several",), "several: cbind(a, b)"),
    "negative_binomial": _Regression(("count",), _COUNT, "rate"),
    "poisson": _Regression(("count",), _COUNT, "rate"),
    "survival": _Regression(("survival",), "a time and an event: Surv(time, event)", "hazard"),
}
KINDS = tuple(_REGRESSIONS)
"""Built-in models that a formula describes."""
_WORDS = {
    "binary": "binary",
    "count": "a count",
    "level": "a column of levels",
    "number": "a number",
    "several": "several numbers",
    "survival": "a survival time",
}


def ratio(kind: str) -> str:
    """Returns of what exp(coefficient) is a ratio: "odds", "rate", "hazard", or "" for none.

    >>> ratio("survival"), ratio("linear"), ratio("my_study.models:hospital")
    ('hazard', '', '')
    """
    found = _REGRESSIONS.get(kind)
    return found.ratio if found else ""


def check_response(kind: str, design: Design) -> None:
    """Refuses a formula whose response is not what a built-in model is of.

    Raises:
      ConfigError: it is not; names the kinds that it would fit.
    """
    wanted, response = _REGRESSIONS[kind], design.response
    if response.type in wanted.responses:
        return
    fitting = [name for name, other in _REGRESSIONS.items() if response.type in other.responses]
    use = " or ".join(f'kind = "{name}"' for name in fitting)
    single = len(response.columns) == 1 and wanted.responses[0] in ("binary", "count", "level")
    declare = f'declare data.schema.{response.text}.type = "{wanted.responses[0]}", or '
    raise errors.ConfigError(
        f"model.formula: the response {response.text!r} is {_WORDS[response.type]}, but kind {kind!r} "
        f"needs {wanted.needed}",
        f"{declare if single else ''}use {use}",
    )
