"""Splits a NumPyro model and its guide by the record plate into clipped and unclipped terms."""

import contextlib
import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.infer import Trace_ELBO, TraceMeanField_ELBO
from numpyro.infer.autoguide import (
    AutoDelta,
    AutoGuide,
    AutoGuideList,
    AutoLaplaceApproximation,
)
from numpyro.primitives import Messenger
from numpyro.util import check_model_guide_match

from fedvi import errors
from fedvi.models.captured import check_captured
from fedvi.models.guided_terms import Guided, is_sample
from fedvi.models.layout import Layout
from fedvi.models.made_up import (
    ENOUGH,
    ONE,
    Pair,
    other_pairs,
    usual_pair,
    wider_pairs,
)
from fedvi.models.plates import (
    density_of,
    is_factor,
    is_inside,
    is_same,
    kind_of,
    log_density,
    numpyro_rules,
    scaled_term,
)

__all__ = ["check_choice", "guided", "unseen"]


_ENCODER = (
    "write a guide that computes the latent's distribution from the record, as an encoder does"
)


def guided(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    loss: Any,
    params: Mapping[str, Any],
    key: Any,
    at: Layout,
    plate: str | None,
    static: Mapping[str, Any],
    particles: int | None = None,
) -> Guided:
    """Splits a model and its guide by records and checks the parts on made-up records.

    Nothing in the result depends on data: only shapes and dtypes of the arguments are read.

    Args:
      model, guide: NumPyro functions; an automatic guide has been set up.
      loss: ``Trace_ELBO`` or ``TraceMeanField_ELBO``.
      params: initial constrained parameters of both.
      key: any.
      at: the layout of the arguments.
      plate: the name of the record plate; None to find the one that follows the number of records.
      static: keyword arguments of both.
      particles: Monte Carlo draws to average; left out, as many as ``loss`` has.

    Raises:
      ModelError: if a split would change the model; the message gives the reason.
    """
    check_choice(guide, loss)
    analytic = isinstance(loss, TraceMeanField_ELBO)
    draws = loss.num_particles if particles is None else particles
    draft = Guided(model, guide, static, plate or "", at, draws, analytic)
    one = _first(draft, params, key, [ONE])
    _check_automatic(guide, one[1])
    _check_match(*one)
    two = _first(draft, params, key, [ONE, ONE])
    name = _record_plate(one, two, plate, at.rows)
    found = dataclasses.replace(draft, plate=name)
    found = dataclasses.replace(found, has_local=bool(_local_axes(found, params, key)))
    _check_size(found, two)
    _check_sites(found, one, two)
    _check_separate(found, params, key)
    _check_captured(found, params, key)
    return found


@contextlib.contextmanager
def unseen(guide: Any) -> Iterator[None]:
    """Sets up automatic guides as if nothing were observed in a plate of one record.

    They search for a start with a finite density, and that of a made-up record may not be finite: an
    outcome may lie outside of its support, or a covariate outside the domain of a root or a logarithm.
    The start does not depend on outcomes then.
    """
    found = list(_automatic(guide))
    models = [member.model for member in found]
    for member in found:
        member.model = _Unseen(member.model)
    try:
        yield
    finally:
        for member, model in zip(found, models, strict=True):
            member.model = model


def _automatic(guide: Any) -> Iterator[AutoGuide]:
    while isinstance(guide, Messenger):
        guide = guide.fn
    if isinstance(guide, AutoGuideList):
        for member in guide:
            yield from _automatic(member)
    if isinstance(guide, AutoGuide):
        yield guide


class _Unseen(Messenger):  # type: ignore[misc]
    """Masks observations in a plate of one record."""

    def process_message(self, message: dict[str, Any]) -> None:
        if (
            message["type"] == "sample"
            and message["is_observed"]
            and any(frame.size == 1 for frame in message["cond_indep_stack"])
        ):
            message["fn"] = message["fn"].mask(False)


def _first(draft: Guided, params: Mapping[str, Any], key: Any, kinds: list[str]) -> Any:
    columns = draft.layout.made_up(*kinds)
    try:
        return draft.traces(params, key, columns, 0)
    except errors.ModelError:
        raise
    except Exception as error:
        raise errors.ModelError(
            f"the model or its guide fails on {len(kinds)} made-up record(s): "
            f"{type(error).__name__}: {error}",
            "both are called with one record and with two; no shape may be fixed to the size of "
            "the data set, and the record plate is numpyro.plate(name, x.shape[0]) or "
            "numpyro.plate(name, N, subsample_size=x.shape[0])",
        ) from error


def check_choice(guide: Any, loss: Any) -> None:
    """Rejects guides and losses of the wrong kind, before either is called.

    Raises:
      ModelError: the guide has no density, or draws with all records; or the loss is no sum over records.
    """
    _check_loss(loss)
    _check_guide(guide)


def _check_loss(loss: Any) -> None:
    if isinstance(loss, type):
        raise errors.ModelError(
            f"loss is the class {loss.__name__}, expected an instance", f"write {loss.__name__}()"
        )
    if type(loss) not in (Trace_ELBO, TraceMeanField_ELBO):
        raise errors.ModelError(
            f"loss is {type(loss).__name__}, expected Trace_ELBO or TraceMeanField_ELBO",
            "only these are sums over records, so that one record's share can be clipped",
        )
    if getattr(loss, "multi_sample_guide", False) or not getattr(loss, "sum_sites", True):
        raise errors.ModelError(
            "loss has multi_sample_guide or sum_sites=False, expected their defaults"
        )


def _check_guide(guide: Any) -> None:
    if isinstance(guide, type):
        raise errors.ModelError(
            f"guide is the class {guide.__name__}, expected an instance",
            f"write {guide.__name__}(model)",
        )
    name = type(guide).__name__
    if isinstance(guide, AutoGuideList):
        for member in guide:
            _check_guide(member)
    if isinstance(guide, AutoDelta):
        raise errors.ModelError(
            f"guide is {name}, which has no density: its ELBO is no lower bound",
            "use AutoNormal or AutoDiagonalNormal; a point estimate alone has no uncertainty",
        )
    if isinstance(guide, AutoLaplaceApproximation):
        raise errors.ModelError(
            f"guide is {name}, whose covariance is computed from all records after the fit, "
            "without noise",
            "use AutoMultivariateNormal, which learns a covariance from noised gradients (right on jaxlib "
            "0.10.1 and from 0.11 on; wrong on 0.10.2, which fedvi refuses)",
        )
    if "DAIS" in name:
        raise errors.ModelError(
            f"guide is {name}, which draws with gradients of the model on all records",
            "use AutoNormal, AutoIAFNormal or AutoMultivariateNormal (right on jaxlib 0.10.1 and from "
            "0.11 on; wrong on 0.10.2, which fedvi refuses)",
        )


def _check_automatic(guide: Any, run: Any) -> None:
    """Rejects per-record latents: an automatic guide was set up with one record and cannot change."""
    for name, site in run.sites.items():
        frames = site["cond_indep_stack"] if site["type"] == "sample" else ()
        if isinstance(guide, AutoGuide) and any(frame.size == 1 for frame in frames):
            hint = _ENCODER
            if name.endswith("_unobserved"):
                hint = (
                    "obs_mask makes a latent of each missing outcome: leave those out by "
                    "`numpyro.handlers.mask(mask=…)` around the site instead"
                )
            raise errors.ModelError(
                f"{name!r} is a latent of each record and the guide is automatic: it would keep "
                "parameters for every single record",
                hint,
            )


def _record_plate(one: Any, two: Any, wanted: str | None, rows: int) -> str:
    for name, made in two[0].plates.items():
        size, subsample_size = made[0]
        # Of all records, whether their number is read from the arrays (two of them here) or written.
        if subsample_size != size and subsample_size != 2 and size in (2, rows):
            raise errors.ModelError(
                f"plate {name!r} draws {subsample_size} records at random, expected all of them",
                "batches are drawn inside: leave subsample_size out, "
                f'`with numpyro.plate("{name}", x.shape[0]):`',
            )

    def sizes(runs: Any) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for run in runs:
            for name, made in run.plates.items():
                found.setdefault(name, set()).update(subsample for _, subsample in made)
        return found

    first, second = sizes(one), sizes(two)
    follow = [name for name in first if first[name] == {1} and second.get(name) == {2}]
    if wanted is not None:
        if wanted not in follow:
            raise errors.ModelError(
                f"plate {wanted!r} does not follow the number of records; plates that do: "
                f"{', '.join(map(repr, follow)) or 'none'}",
                f'write `with numpyro.plate("{wanted}", x.shape[0]):`',
            )
        return wanted
    own = [name for name in one[0].plates if name in follow]
    if len(own) == 1 and len(follow) > 1:
        other = next(name for name in follow if name != own[0])
        raise errors.ModelError(
            f"{len(follow)} plates follow the number of records, {own[0]!r} in the model and "
            f"{other!r} in the guide; expected exactly one",
            f'use the model\'s name in the guide: `with numpyro.plate("{own[0]}", x.shape[0]):`',
        )
    if len(follow) != 1:
        others = ", ".join(map(repr, follow or first)) or "none"
        raise errors.ModelError(
            f"{len(follow)} plates follow the number of records, expected exactly one; plates: "
            f"{others}",
            'put the terms of a record inside one `with numpyro.plate("records", x.shape[0]):`, or '
            "`numpyro.plate(name, N, subsample_size=x.shape[0])`",
        )
    return follow[0]


def _check_size(found: Guided, two: Any) -> None:
    for run in two:
        for size, subsample_size in run.plates.get(found.plate, ()):
            if size not in (subsample_size, found.layout.rows):
                raise errors.ModelError(
                    f"plate {found.plate!r} has size {size} and the arrays have "
                    f"{found.layout.rows} rows, expected the same",
                    "pass all records: batches are drawn inside, and a record's weight follows from "
                    "the sampling rate",
                )


def _check_sites(found: Guided, one: Any, two: Any) -> None:
    observed = False
    for run, other, what in zip(one, two, ("model", "guide"), strict=True):
        for name, site in run.sites.items():
            kind, inside = site["type"], is_inside(site, found.plate)
            if kind == "mutable":
                raise errors.ModelError(
                    f"the {what} keeps mutable state in {name!r}, which would carry records from "
                    "step to step without noise",
                    "use layers without running statistics: LayerNorm or GroupNorm, no BatchNorm",
                )
            if kind == "plate" and name != found.plate:
                size, subsample_size = run.plates[name][0]
                if size != subsample_size:
                    raise errors.ModelError(
                        f"plate {name!r} draws {subsample_size} of {size} at random, expected "
                        f"subsampling in plate {found.plate!r} only",
                        f'write `numpyro.plate("{name}", {size})`',
                    )
            if kind == "param":
                _check_param(name, site, other.sites.get(name), inside, found.plate)
            if kind != "sample":
                continue
            if site["is_observed"] and not inside and not is_factor(site):
                raise errors.ModelError(
                    f"{name!r} is observed outside of plate {found.plate!r}, so that its terms "
                    "belong to no single record",
                    f"move it inside the plate {found.plate!r}; if its value is public, use "
                    "numpyro.factor, or handlers.substitute in place of handlers.condition",
                )
            if not site["is_observed"] and site["fn"].support.is_discrete:
                raise errors.ModelError(
                    f"the latent {name!r} is discrete, expected continuous latents",
                    "sum it out of the likelihood, for example with MixtureSameFamily",
                )
            if (
                what == "guide"
                and kind_of(site) == "Delta"
                and not isinstance(found.guide, AutoGuide)
            ):
                raise errors.ModelError(
                    f"the guide's {name!r} is a Delta, which has no density",
                    "draw it from a distribution, such as Normal with a learnt scale",
                )
            observed |= what == "model" and site["is_observed"] and inside
    if not observed:
        raise errors.ModelError(
            f"nothing is observed inside plate {found.plate!r}, expected the likelihood of a record"
        )


def _check_param(name: str, site: Any, other: Any, inside: bool, plate: str) -> None:
    shapes = [
        [jnp.shape(leaf) for leaf in jax.tree.leaves(_start_of(found))]
        for found in (site, other)
        if found is not None
    ]
    if inside and other is not None and shapes[0] == shapes[1]:
        raise errors.ModelError(
            f"the parameter {name!r} is made inside the plate {plate!r}, expected outside of it",
            "all records share it: move numpyro.param before the `with`",
        )
    if inside or other is None or shapes[0] != shapes[1]:
        raise errors.ModelError(
            f"the parameter {name!r} belongs to the plate {plate!r} or grows with the records: each "
            "record would have parameters of its own",
            "compute it from the record by parameters that all records share (amortisation)",
        )


def _start_of(site: Mapping[str, Any]) -> Any:
    """Returns what a param site would start from; its value was made for one record."""
    with numpyro_rules(), handlers.seed(rng_seed=0):
        start = site["fn"](*site["args"], **site["kwargs"])
    return site["value"] if start is None else start


def _check_match(model: Any, guide: Any) -> None:
    """Compares sites as ``Trace_ELBO`` does, and warns as it does of those that only one of both has."""
    # Not plates, which `_record_plate` compares.
    sites = [
        {name: site for name, site in run.sites.items() if site["type"] != "plate"}
        for run in (model, guide)
    ]
    try:
        check_model_guide_match(*sites)
    except ValueError as error:
        raise errors.ModelError(
            str(error), "draw the site with the same shape, and the same .to_event, in both"
        ) from error


def _check_separate(found: Guided, params: Mapping[str, Any], key: Any) -> None:
    """Rejects terms outside of the plate that use records, and records that use one another.

    It compares numbers at made-up records, so it is a best effort: it tries floats up to 10 in size and
    levels up to 17, and others where a term is finite for none of these. A dependence that shows only
    beyond these goes unnoticed, and each record is then treated as if it were the only one.
    """
    compare = _Compared(found, params, key)
    shapes = [column for column in found.layout.columns if column is not None]
    unusual = compare.unknown(usual_pair(shapes), alone=True)
    left = dict.fromkeys(unusual, ENOUGH)
    for pair in itertools.chain(wider_pairs(shapes), other_pairs(shapes) if left else ()):
        if unusual and not any(left.values()):
            break
        unknown = compare.unknown(pair, alone=bool(unusual))
        left.update({name: left[name] - 1 for name in left if left[name] and name not in unknown})
    unknown = {name for name, number in left.items() if number == ENOUGH}
    for name, value in compare.usual.items():
        if name in unknown and np.isnan(value):
            raise errors.ModelError(
                f"the term {name!r} outside of plate {found.plate!r} is nan, whatever the records",
                "move what uses records inside the plate, and check the start of the guide",
            )
    if unknown:
        warnings.warn(
            f"no made-up records were found at which {', '.join(sorted(unknown))} is finite: whether "
            "records are kept apart was not checked. Compare a step without noise and clipping with "
            "one of numpyro's SVI.",
            stacklevel=2,
        )


def _check_captured(found: Guided, params: Mapping[str, Any], key: Any) -> None:
    """Rejects a table from outside of the arguments, which the made-up records cannot stand for."""
    terms = jax.make_jaxpr(lambda *given: _separate_terms(found, *given))
    program = terms(dict(params), key, found.layout.made_up(ONE))
    check_captured(program, found.layout.rows, found.static)


class _Compared:
    """Compares the terms of made-up records together with their terms alone.

    Attributes:
      usual: the terms outside of the plate at the first pair.
    """

    def __init__(self, found: Guided, params: Mapping[str, Any], key: Any) -> None:
        self.usual: dict[str, Any] = {}
        self._found, self._params, self._key = found, params, key
        self._axes = _local_axes(found, params, key)
        # Parameters and key are arguments: as constants, each start would compile another program.
        self._terms = jax.jit(lambda *given: _separate_terms(found, *given))

    def unknown(self, pair: Pair, alone: bool) -> set[str]:
        """Rejects terms that mix the two records; returns the terms that were not finite."""
        first, second = pair
        here, there, swapped = (
            self._at(*rows) for rows in (pair, (first, first), (second, second))
        )
        self.usual = self.usual or here[0]
        for name, value in here[0].items():
            others = there[0], swapped[0], self.usual
            if not all(is_same(value, other[name]) for other in others):
                raise errors.ModelError(
                    f"the term {name!r} outside of plate {self._found.plate!r} depends on the "
                    "records",
                    "move it inside the plate, or use public constants",
                )
        for name, value in here[1].items():
            same = is_same(value[0], there[1][name][0])
            if not same or not is_same(value[1], swapped[1][name][1]):
                raise errors.ModelError(
                    f"the term {name!r} of a record changes when another record does",
                    "a record's terms may use its own row only: no mean over the batch, no "
                    "BatchNorm, no record axis in .to_event, no column [n, 1] beside a vector [n]",
                )
        if alone:
            self._compare_alone(pair, here)
        return {name for part in here[:2] for name, v in part.items() if not np.isfinite(v).all()}

    def _compare_alone(self, pair: Pair, here: Any) -> None:
        outside, each, local = here
        for name, value in local.items():
            if np.shape(value)[:1] != (2,):
                raise errors.ModelError(
                    f"{name!r} is a latent of each record and the guide draws {np.shape(value)} for two "
                    "records: it would keep parameters for every single record",
                    _ENCODER,
                )
        # A record keeps its own draws, so that its term may depend on nothing but the record.
        draws = [{name: value[rows] for name, value in local.items()} for rows in ([0], [1])]
        single = [self._at(row, draws=own) for row, own in zip(pair, draws, strict=True)]
        turned = {name: value[::-1] for name, value in local.items()}
        _, back, _ = self._at(*pair[::-1], draws=turned)
        for name in each:
            own = [alone[1][name][0] for alone in single]
            if not is_same(each[name], own) or not is_same(back[name], own[::-1]):
                raise errors.ModelError(
                    f"the term {name!r} of a record depends on its place or on how many records "
                    "there are",
                    "a step calls the model with one record at a time: pass what numbers the "
                    "records as a column, and weights as a column or through the plate",
                )
        for name, value in outside.items():
            if not all(is_same(value, alone[0][name]) for alone in single):
                raise errors.ModelError(
                    f"the term {name!r} outside of plate {self._found.plate!r} depends on how many "
                    "records there are",
                    "use a public constant, such as the largest number that there may be",
                )

    def _at(self, *records: list[Any], draws: Mapping[str, Any] | None = None) -> Any:
        given = {name: jnp.moveaxis(v, 0, self._axes[name]) for name, v in (draws or {}).items()}
        columns = [np.stack(values) for values in zip(*records, strict=True)]
        try:
            # On a GPU the default rounds to TF32, by more than `is_same` allows.
            with jax.default_matmul_precision("highest"):
                return jax.device_get(self._terms({**self._params, **given}, self._key, columns))
        except errors.FedviError:
            raise
        except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
            raise errors.ModelError(
                f"model and guide cannot be compiled by JAX: {type(error).__name__}: {error}",
                "use jnp.where or jax.lax.cond instead of Python branches on latents or records, "
                "and jax.numpy instead of numpy",
            ) from error
        except Exception as error:
            raise errors.ModelError(
                "the log density of the model or its guide fails on made-up records: "
                f"{type(error).__name__}: {error}",
                "they are called with one record and with two: pass every array with one row a record "
                "as an argument, and none by handlers.condition or from outside of the function",
            ) from error


def _separate_terms(found: Guided, params: dict[str, Any], key: Any, columns: list[Any]) -> Any:
    """Returns the terms outside of the plate, the terms of each record, and each record's own draws."""
    model, guide = found.traces(params, key, columns, 0)
    scale = found._scale(model, guide, inside=True)
    with numpyro_rules():
        sites = [
            (f"{what} {name}", site)
            for what, run in (("model", model), ("guide", guide))
            for name, site in run.sites.items()
            if site["type"] == "sample"
        ]
        outside = {
            name: log_density(site, 1.0) for name, site in sites if not is_inside(site, found.plate)
        }
        inside = [pair for pair in sites if is_inside(pair[1], found.plate)]
        each = {
            name: _by_record(site, found.plate, columns[0].shape[0], scale) for name, site in inside
        }
        local = {
            site["name"]: jnp.moveaxis(site["value"], _record_axis(site, found.plate), 0)
            for _, site in inside
            if not site["is_observed"]
        }
    return outside, each, local


def _by_record(site: dict[str, Any], plate: str, count: int, plate_scale: float) -> Any:
    """Sums a site's log density over all axes but the record plate's: [count]."""
    density = scaled_term(density_of(site), site, plate_scale)
    axis = _plate_axis(site, plate)
    if jnp.ndim(density) < -axis or density.shape[axis] != count:
        raise errors.ModelError(
            f"the density of {site['name']!r} has shape {jnp.shape(density)}, expected {count} "
            f"records along axis {axis}",
            "a record's terms must keep the record axis: none of it in .to_event",
        )
    return jnp.moveaxis(density, axis, 0).reshape(count, -1).sum(axis=1)


def _local_axes(found: Guided, params: Mapping[str, Any], key: Any) -> dict[str, int]:
    """Returns the record axis of each per-record latent."""
    model, guide = found.traces(params, key, found.layout.made_up(ONE), 0)
    return {
        name: _record_axis(site, found.plate)
        for run in (model, guide)
        for name, site in run.sites.items()
        if is_sample(site) and not site["is_observed"] and is_inside(site, found.plate)
    }


def _record_axis(site: dict[str, Any], plate: str) -> int:
    return _plate_axis(site, plate) - int(site["fn"].event_dim)


def _plate_axis(site: dict[str, Any], plate: str) -> int:
    return next(int(frame.dim) for frame in site["cond_indep_stack"] if frame.name == plate)
