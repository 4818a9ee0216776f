"""Checks whether a formula's response fits a regression, and says what kind of ratio exp(coefficient) is.

Needs no JAX, so that a server can name a ratio too.
"""

from fedvi import errors, plugins
from fedvi.data.formula import Design, parse_formula
from fedvi.data.schema import Schema
from fedvi.models.outcomes.accepted import ACCEPTED, Accepted
from fedvi.study import kinds
from fedvi.study.config import Study

__all__ = [
    "OF_PATIENTS",
    "accepted",
    "check_response",
    "design",
    "is_function",
    "of",
    "question",
    "ratio",
    "states_noise",
]

OF_PATIENTS = (
    "all rows of a patient count together, about as much as one row: where patients with many rows differ "
    "from those with few, the answer is another than that of a fit in which each row counts alike"
)
"""Says what a patient as the unit changes of the question."""

_WORDS = {
    "binary": "binary",
    "count": "a count",
    "level": "a column of levels",
    "number": "a number",
    "several": "several numbers",
    "survival": "a survival time",
}


def accepted(kind: str, parts: plugins.OutsideCode) -> Accepted | None:
    """Returns the responses of a regression: a built-in one, or an outcome from outside fedvi.

    None for another model, such as a NumPyro function; a plug-in that is one is not imported for this.

    Args:
      kind: of the model.
      parts: of the study.
    """
    if kind in kinds.BUILT_IN["model"]:
        return ACCEPTED.get(kind)
    found = parts.outcome(kind)
    said = getattr(found, "accepts", None)
    return said if isinstance(found, type) and isinstance(said, Accepted) else None


def of(study: Study) -> Accepted | None:
    """Returns ``accepted`` of a study's model."""
    return accepted(study.model.kind, study.parts)


def is_function(study: Study) -> bool:
    """Whether a study names a NumPyro function, whose θ is on an unconstrained scale."""
    kind = study.model.kind
    if not study.is_outside("model"):
        return kind in kinds.FUNCTIONS
    return study.parts.knows("model", kind) and of(study) is None


def design(study: Study, schema: Schema) -> Design:
    """Reads the formula of a study. Exposures are in units of their bound, but for a NumPyro function.

    Raises:
      ConfigError: the formula is invalid.
    """
    found = parse_formula(str(study.formula), schema)
    return found if is_function(study) else found.by_bound(schema)


def ratio(study: Study) -> str:
    """Returns the kind of ratio that exp(coefficient) is: "odds", "rate", "hazard", or "" for none."""
    found = of(study)
    return found.ratio if found else ""


def question(study: Study) -> str:
    """Says how the unit of protection changes what a regression answers; "" if it does not."""
    if not study.privacy.private or study.privacy.unit != "patient" or of(study) is None:
        return ""
    return OF_PATIENTS if study.data.rows_per_unit > 1 else ""


def states_noise(study: Study) -> bool:
    """Whether a study states the noise around its outcome, in the unit of the file."""
    found = of(study)
    return found is not None and "noise_scale" in found.settings and not study.is_outside("model")


def check_response(kind: str, design: Design, parts: plugins.OutsideCode) -> None:
    """Refuses a formula whose response does not fit the regression.

    Args:
      kind: of the model. A NumPyro function takes any response, except an offset beside counts.
      design: of the formula.
      parts: of the study.

    Raises:
      ConfigError: it does not fit; names the kinds that it would fit.
    """
    response, wanted = design.response, accepted(kind, parts)
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
