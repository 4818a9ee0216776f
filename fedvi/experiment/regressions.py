"""Lists the response of each built-in regression, and the meaning of exp(coefficient).

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
_TWO_COUNTS = 'two counts: cbind(events, non_events), both columns of type = "count"'
_REGRESSIONS = {
    "binomial": _Regression(("counts",), _TWO_COUNTS, "odds"),
    "linear": _Regression(("number", "count", "binary"), "a number"),
    "logistic": _Regression(("binary",), "a binary one", "odds"),
    "multinomial": _Regression(("level",), "a column of levels", "odds"),
    "multivariate_linear": _Regression(("several", "counts"), "several: cbind(a, b)"),
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

    Args:
      kind: of the model. One of the study's own takes what it likes, but for an offset beside counts.
      design: of the formula.

    Raises:
      ConfigError: it is not; names the kinds that it would fit.
    """
    response = design.response
    if response.type == "counts" and design.offset is not None and kind != "binomial":
        raise errors.ConfigError(
            f"model.formula: an offset beside the response {response.text!r} of kind {kind!r}",
            'an offset is for one outcome: take it out, or use kind = "binomial"',
        )
    if kind not in _REGRESSIONS or _fits(kind, design):
        return
    wanted = _REGRESSIONS[kind]
    use = " or ".join(f'kind = "{name}"' for name in KINDS if _fits(name, design))
    if kind == "binomial" and response.type in _OF_TRIALS:
        raise errors.ConfigError(
            f"model.formula: the response {response.text!r} is {_words(design)}, but kind 'binomial' "
            f"needs {wanted.needed}",
            f"{_OF_TRIALS[response.type].format(', '.join(response.columns))}; or use {use}",
        )
    single = len(response.columns) == 1 and wanted.responses[0] in ("binary", "count", "level")
    declare = f'declare data.schema.{response.text}.type = "{wanted.responses[0]}", or '
    raise errors.ConfigError(
        f"model.formula: the response {response.text!r} is {_words(design)}, but kind {kind!r} "
        f"needs {wanted.needed}",
        f"{declare if single else ''}use {use}",
    )


# What would make a binomial response of one that is nearly one.
_OF_TRIALS = {
    "count": "write cbind({}, non_events), with a column of the trials that were no such event",
    "counts": "name two columns: the events, and the trials that were none",
    "several": 'declare {} with type = "count", and `bounds`',
}


def _fits(kind: str, design: Design) -> bool:
    """Whether a response is what a model is of."""
    response = design.response
    if kind == "binomial" and len(response.columns) != 2:
        return False
    return response.type in _REGRESSIONS[kind].responses


def _words(design: Design) -> str:
    response = design.response
    return f"{len(response.columns)} counts" if response.type == "counts" else _WORDS[response.type]
