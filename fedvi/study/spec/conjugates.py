"""Handles studies of conjugate models, which bring their own family, prior and start; needs no JAX."""

import functools
import json
from collections.abc import Callable
from typing import Any

from fedvi import errors, models
from fedvi.study import factories
from fedvi.study.config import Study
from fedvi.study.sections import KindSection
from fedvi.study.spec import regressions
from fedvi.updates.abilities import ability
from fedvi.updates.conjugate import ConjugateModel, FromFile, tupled

__all__ = ["model_of"]


def model_of(study: Study) -> Any:
    """Returns a study's conjugate model; None for other models.

    A class from outside fedvi is considered only if the solver is ``vips``, which supports no other models.

    Raises:
      ConfigError: the study sets something that the model decides, names another solver, or gives an
        argument that the model refuses.
    """
    kind, solver = study.model.kind, study.solver.kind
    takes = ability(solver).of_statistics
    outside = takes and regressions.is_function(study)
    if kind not in models.CONJUGATE and not outside:
        return None
    if not takes:
        raise errors.ConfigError(
            f"solver.kind is {solver!r}, which does not fit model.kind {kind!r}",
            'of a conjugate-exponential model only sums of expected statistics leave: kind = "vips"',
        )
    for section, given, why in (
        # The default in a study that names none; in a stored study it is written out.
        ("family", study.family != Study.model_fields["family"].default, "which the model brings"),
        ("prior", study.prior is not None, "which the model's own arguments say"),
        ("data.unit_column", study.data.unit_column, "and statistics are clipped record by record"),
        ("data.id_column", study.data.id_column, "which only solvers with parts read"),
    ):
        if given:
            raise errors.ConfigError(
                f"{section} is given beside model.kind {kind!r}, {why}", "leave it out"
            )
    factory = factories.find("model", kind, models, parts=study.parts)
    arguments = json.dumps(study.model.arguments, sort_keys=True)
    return _made(kind, factory, outside, arguments)


@functools.lru_cache(maxsize=8)
def _made(kind: str, factory: Callable[..., Any], outside: bool, arguments: str) -> Any:
    given = {name: tupled(value) for name, value in json.loads(arguments).items()}
    section = KindSection(kind=kind, **given)
    made = factories.call("model", section, factory, {}, ConjugateModel, outside=outside)
    if not isinstance(made, FromFile):
        raise errors.ConfigError(
            f"model.kind is {kind!r}, a {type(made).__name__} without `layout` and `sound`",
            "a model that reads a client's file says what a record is: see FromFile in "
            "fedvi.updates.conjugate",
        )
    if not made.layout:
        raise errors.ConfigError(
            f"[model]: kind {kind!r} does not say how long a record is",
            "of `latent_dirichlet` write distinct = …, the most distinct words of a document",
        )
    return made
