"""Converts draws to ArviZ objects, with their privacy cost. Needs the extra `report`."""

import importlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from numpyro.infer import Predictive

from fedvi import errors
from fedvi.inference.svi import DPSVI
from fedvi.privacy import statement

__all__ = ["from_draws", "inference_data"]

# Prefix of auxiliary sites of numpyro's automatic guides.
_OWN = "_auto_"
_RECORDS = (
    "drawn for the records that were passed: what was released is protected, these records are not"
)


def inference_data(
    key: Any,
    svi: DPSVI,
    params: Any,
    *args: Any,
    draws: int = 1000,
    prior: bool = False,
    predictive: bool = False,
    **kwargs: Any,
) -> Any:
    """Returns draws from a fitted guide as an ArviZ object, with the privacy statement as attributes.

    The group ``posterior`` has one chain of independent draws: convergence diagnostics do not apply.
    With ``prior`` there are ``prior`` and ``prior_predictive``, with ``predictive`` there is
    ``posterior_predictive``. The attributes ``privacy_epsilon``, ``privacy_delta``,
    ``privacy_relation``, ``privacy_unit``, ``privacy_accountant``, ``privacy_mark`` and
    ``privacy_statement`` are at the root and at the posterior.

    Guarantee: ``posterior`` and ``prior`` of global latents are functions of ``params`` and ``key``, so
    that they cost nothing beside what was charged. What is drawn for records, the predictive groups and
    latents of each record, is a function of these records too, and not protected against whoever
    sees it: pass records that are public, or your own to look at.

    Args:
      key: of the draws.
      svi: with a fitted guide; ``init`` was called.
      params: as returned by ``run`` or ``get_params``.
      args, kwargs: arguments of guide and model; without outcomes for the predictive groups. Automatic
        guides alone need none.
      prior: whether to draw from the prior as well.
      predictive: whether to draw outcomes as well.

    Returns:
      ``arviz.InferenceData``, or the ``xarray.DataTree`` that replaces it in ArviZ 1.

    Raises:
      ConfigError: ArviZ is not installed, or ``draws`` is below 1.
    """
    if draws < 1:
        raise errors.ConfigError(f"draws is {draws}, expected at least 1")
    arviz = _arviz()
    keys, kwargs = jax.random.split(key, 3), {**svi.static_kwargs, **kwargs}
    found = Predictive(svi.guide, params=params, num_samples=draws)(keys[0], *args, **kwargs)
    latents = {name: value for name, value in found.items() if not name.startswith(_OWN)}
    groups = {"posterior": latents}
    if predictive:
        # The model's parameters are needed besides the latents.
        drawn = Predictive(svi.model, posterior_samples=latents, params=params)
        groups["posterior_predictive"] = drawn(keys[1], *args, **kwargs)
    if prior:
        drawn = Predictive(svi.model, params=params, num_samples=draws)
        both = drawn(keys[2], *args, **kwargs)
        groups["prior"] = {name: both[name] for name in both if name in latents}
        groups["prior_predictive"] = {name: both[name] for name in both if name not in latents}
    # One chain.
    chains = {
        group: {name: np.asarray(value)[None] for name, value in values.items()}
        for group, values in groups.items()
        if values
    }
    data = _made(arviz, chains, _stated(svi))
    for group in ("posterior_predictive", "prior_predictive"):
        if group in chains:
            data[group].attrs["privacy_note"] = _RECORDS
    return data


def from_draws(
    values: Mapping[str, np.ndarray],
    axes: Mapping[str, Sequence[tuple[str, Sequence[str]]]],
    attributes: Mapping[str, str | float],
) -> Any:
    """Returns existing draws as an ArviZ object: one chain of independent draws.

    Args:
      values: parameter → its draws, [S, …].
      axes: parameter → its other axes: the name of each and the labels along it. Axes with the same name
        have the same labels.
      attributes: written at the root and at the posterior, such as the claim.

    Returns:
      ``arviz.InferenceData``, or the ``xarray.DataTree`` that replaces it in ArviZ 1.

    Raises:
      ConfigError: ArviZ is not installed.
    """
    arviz = _arviz()
    named = {
        "coords": {axis: list(labels) for each in axes.values() for axis, labels in each},
        "dims": {name: [axis for axis, _ in each] for name, each in axes.items()},
    }
    chains = {"posterior": {name: np.asarray(value)[None] for name, value in values.items()}}
    return _made(arviz, chains, attributes, **named)


def _made(arviz: Any, chains: Any, attributes: Mapping[str, Any], **named: Any) -> Any:
    is_tree = int(str(arviz.__version__).split(".")[0]) >= 1
    data = arviz.from_dict(chains, **named) if is_tree else arviz.from_dict(**chains, **named)
    data.attrs = {**data.attrs, **attributes}
    data["posterior"].attrs.update(attributes)
    return data


def _arviz() -> Any:
    try:
        with warnings.catch_warnings():
            # Before version 1, ArviZ announces that version once a day.
            warnings.simplefilter("ignore", FutureWarning)
            return importlib.import_module("arviz")
    except ImportError:
        raise errors.ConfigError(
            "draws for ArviZ need arviz, which is not installed", "pip install 'fedvi[report]'"
        ) from None


def _stated(svi: DPSVI) -> dict[str, Any]:
    """Returns the privacy statement as attributes that a file can hold: numbers and texts."""
    plan, header = svi.privacy, svi.ledger.header
    claims = (
        statement.claims(svi.ledger, header.planned, plan.delta, [plan.accountant], kept=plan.kept)
        if plan.protected and header.planned is not None
        else ()
    )
    return {
        "privacy_epsilon": claims[0].epsilon if claims else float("inf"),
        "privacy_delta": plan.delta,
        "privacy_relation": plan.relation,
        "privacy_unit": header.unit,
        "privacy_accountant": plan.accountant.name if claims else "",
        "privacy_mark": plan.mark,
        "privacy_statement": statement.to_text(claims),
    }
