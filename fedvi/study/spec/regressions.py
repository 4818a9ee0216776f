"""Checks whether a formula's response fits a regression, and says what kind of ratio exp(coefficient) is.

Needs no JAX, so that a server can name a ratio too.
"""

import importlib

from fedvi import errors
from fedvi.data.formula import Design
from fedvi.models.outcomes.accepted import ACCEPTED, Accepted

__all__ = ["accepted", "check_response", "is_function", "ratio"]

_WORDS = {
    "binary": "binary",
    "count": "a count",
    "level": "a column of levels",
    "number": "a number",
    "several": "several numbers",
    "survival": "a survival time",
}


def accepted(kind: str) -> Accepted | None:
    """Returns the responses of a regression: a built-in one, or a study's own outcome, "module:Class".

    None for another model, such as a NumPyro function. A server does not import its module: by convention
    a function's name is in lower case.
    """
    module, colon, name = kind.partition(":")
    if not colon or not name[:1].isupper():
        return ACCEPTED.get(kind)
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception:  # the user's module may raise anything; the model's builder reports it
        return None
    said = getattr(found, "accepts", None)
    return said if isinstance(found, type) and isinstance(said, Accepted) else None


def is_function(kind: str) -> bool:
    """Whether a study names a NumPyro function, whose θ is on an unconstrained scale."""
    return ":" in kind and accepted(kind) is None


def ratio(kind: str) -> str:
    """Returns the kind of ratio that exp(coefficient) is: "odds", "rate", "hazard", or "" for none.

    >>> ratio("survival"), ratio("linear"), ratio("my_study.models:hospital")
    ('hazard', '', '')
    """
    found = accepted(kind)
    return found.ratio if found else ""


def check_response(kind: str, design: Design) -> None:
    """Refuses a formula whose response does not fit the regression.

    Args:
      kind: of the model. A NumPyro function takes any response, except an offset beside counts.
      design: of the formula.

    Raises:
      ConfigError: it does not fit; names the kinds that it would fit.
    """
    response, wanted = design.response, accepted(kind)
    of_trials = wanted is not None and wanted.trials
    if response.type == "counts" and design.offset is not None and not of_trials:
        raise errors.ConfigError(
            f"model.formula: an offset beside the response {response.text!r} of kind {kind!r}",
            'an offset is for one outcome: take it out, or use kind = "binomial"',
        )
    if wanted is None or _fits(wanted, design):
        return
    use = " or ".join(
        f'kind = "{name}"' for name in sorted(ACCEPTED) if _fits(ACCEPTED[name], design)
    )
    if of_trials and response.type in _OF_TRIALS:
        raise errors.ConfigError(
            f"model.formula: the response {response.text!r} is {_words(design)}, but kind {kind!r} "
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


# How to turn a similar response into a binomial one.
_OF_TRIALS = {
    "count": "write cbind({}, non_events), with a column of the trials that were no such event",
    "counts": "name two columns: the events, and the trials that were none",
    "several": 'declare {} with type = "count", and `bounds`',
}


def _fits(wanted: Accepted, design: Design) -> bool:
    """Whether a response fits a model."""
    response = design.response
    if wanted.trials and len(response.columns) != 2:
        return False
    return response.type in wanted.responses


def _words(design: Design) -> str:
    response = design.response
    return f"{len(response.columns)} counts" if response.type == "counts" else _WORDS[response.type]
