"""Splits a NumPyro model and its guide at the record plate into clipped and unclipped terms."""

import contextlib
import dataclasses
import itertools
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro import handlers
from numpyro.distributions.kl import kl_divergence
from numpyro.infer import Trace_ELBO, TraceMeanField_ELBO
from numpyro.infer.autoguide import (
    AutoDelta,
    AutoGuide,
    AutoGuideList,
    AutoLaplaceApproximation,
)
from numpyro.primitives import Messenger

from fedvi import errors
from fedvi.models import numpyro as split

__all__ = ["Guided", "Layout", "guided", "layout", "unseen"]


class Layout(NamedTuple):
    """Which leaves of a call's arguments have the record axis, and what each record holds.

    Attributes:
      tree: the structure of (args, kwargs).
      rest: each leaf that is no record column, as it was passed; None where a column is.
      columns: shape without the record axis and dtype of each column as JAX takes it, None elsewhere:
        float32 for NumPy's float64, unless JAX's 64 bits are enabled.
      rows: the length of the record axis.
    """

    tree: Any
    rest: tuple[Any, ...]
    columns: tuple[jax.ShapeDtypeStruct | None, ...]
    rows: int

    def take(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Returns the record columns of a call with this layout, in order."""
        leaves = jax.tree.leaves((args, dict(kwargs)), is_leaf=_is_none)
        return [
            leaf for leaf, column in zip(leaves, self.columns, strict=True) if column is not None
        ]

    def call(self, columns: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns (args, kwargs) with other columns in the places of the first."""
        left = iter(columns)
        leaves = [
            other if column is None else next(left)
            for other, column in zip(self.rest, self.columns, strict=True)
        ]
        return jax.tree.unflatten(self.tree, leaves)

    def describe(self) -> str:
        """Says in words what the arguments are; by name where they were passed by name."""
        numbered = jax.tree.unflatten(self.tree, range(len(self.columns)))
        paths = [path for path, _ in jax.tree.flatten_with_path(numbered)[0]]
        return ", ".join(
            (f"{_name(path)} " if path[0].idx or len(path) > 2 else "")
            + (_kind(other) if column is None else _table(column))
            for path, column, other in zip(paths, self.columns, self.rest, strict=True)
        )

    def made_up(self, *kinds: str) -> list[Any]:
        """Returns columns of made-up records, one for each kind; see ``models.numpyro``."""
        return [
            jnp.asarray(np.stack([split._placeholder(column, kind) for kind in kinds]))
            for column in self.columns
            if column is not None
        ]


def layout(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], public: Collection[str] = ()
) -> Layout:
    """Finds the record columns among a call's arguments: every array of one dimension or more.

    Numbers, strings, None and arrays without an axis are public and passed on as they are.

    Args:
      args, kwargs: as ``update`` or ``run`` were called.
      public: names of keyword arguments that hold no records.

    Raises:
      ModelError: if there is no array, one holds no numbers, or two have record axes of different
        lengths.
    """
    given = (args, dict(kwargs))
    paths, tree = jax.tree.flatten_with_path(given, is_leaf=_is_none)
    rest: list[Any] = []
    columns: list[jax.ShapeDtypeStruct | None] = []
    rows, first = 0, ""
    for path, leaf in paths:
        name = _name(path)
        if not hasattr(leaf, "shape") or not leaf.shape or _is_public(path, public):
            rest.append(leaf)
            columns.append(None)
            continue
        kind = _dtype(leaf, name)
        if not first:
            rows, first = leaf.shape[0], name
        if leaf.shape[0] != rows:
            raise errors.ModelError(
                f"{name} has {leaf.shape[0]} rows and {first} has {rows}, expected one row a record "
                "in every array",
                "pass an array that holds no records as a keyword of DPSVI itself, as for "
                "numpyro's SVI: DPSVI(model, guide, optim, loss, design=design)",
            )
        rest.append(None)
        columns.append(jax.ShapeDtypeStruct(leaf.shape[1:], kind))
    if not rows:
        raise errors.ModelError(
            "no argument holds records, expected an array with one row a record",
            "pass the whole table: svi.run(key, steps, x, y)",
        )
    return Layout(tree, tuple(rest), tuple(columns), rows)


@dataclasses.dataclass(frozen=True, eq=False)
class Guided:
    """The ELBO as a sum: terms outside of the record plate, and one term a record.

    Made by ``guided``, which checks that the sum is right.

    Attributes:
      model, guide: NumPyro functions.
      static: keyword arguments of both, which hold no records.
      plate: the name of the record plate.
      layout: where the records stand among the arguments.
      particles: Monte Carlo draws that are averaged.
      analytic: whether KL divergences are taken in closed form where there is one.
      has_local: whether records have latents of their own, drawn for each.
    """

    model: Callable[..., Any]
    guide: Callable[..., Any]
    static: Mapping[str, Any]
    plate: str
    layout: Layout
    particles: int
    analytic: bool
    has_local: bool = False

    def public_term(self, params: Mapping[str, Any], key: Any) -> Float[Array, ""]:
        """Returns the estimate of E_q[log p(θ) − log q(θ)] over all sites outside of the plate."""
        columns = self.layout.made_up(split._ONE)
        return self._mean(lambda one: self._terms(params, one, columns, 0, inside=False), key)

    def record_term(
        self, params: Mapping[str, Any], key: Any, row: list[Any], place: Any
    ) -> Float[Array, ""]:
        """Returns the estimate of one record's term: its likelihood, its local latents' log p − log q.

        The plate's own factor size ÷ subsample size is taken out. Global latents are those that
        ``public_term`` draws with the same key.

        Args:
          params: of model and guide, constrained.
          key: of this step.
          row: one record's columns, without the record axis.
          place: a word of its own, drawn without regard to other records: its local latents' key.
        """
        columns = [column[None] for column in row]
        return self._mean(lambda one: self._terms(params, one, columns, place, inside=True), key)

    def record_term_at(self, latents: Mapping[str, Any], key: Any, row: list[Any]) -> Any:
        """As ``record_term``, with the global latents' values given, in their own supports."""
        columns = [column[None] for column in row]
        args, kwargs = self.layout.call(columns)
        watch = split._Watch()
        model = handlers.substitute(handlers.seed(self.model, key), data=dict(latents))
        with split._numpyro_rules():
            with watch, handlers.trace() as sites, _Rows(self.plate, 1, 0):
                model(*args, **kwargs, **self.static)
            run = split._Run(sites, watch.plates)
            return split._total(
                split._record_terms(run, self.plate).values(), jnp.result_type(float)
            )

    def prior_at(self, latents: Mapping[str, Any], key: Any) -> Float[Array, ""]:
        """Returns log p of all sites outside of the plate at global latents in their own supports."""
        args, kwargs = self.layout.call(self.layout.made_up(split._ONE))
        model = handlers.substitute(handlers.seed(self.model, key), data=dict(latents))
        with split._numpyro_rules(), handlers.trace() as sites, _Rows(self.plate, 1, 0):
            model(*args, **kwargs, **self.static)
            total = jnp.zeros(())
            for site in sites.values():
                if _is_sample(site) and not split._is_inside(site, self.plate):
                    total = total + jnp.sum(_scaled(_log_prob(site), site, 1.0))
            return total

    def global_latents(self, params: Mapping[str, Any], key: Any) -> dict[str, Any]:
        """Returns the guide's draw of every global latent of the model, in its own support."""
        model, _ = self.traces(params, key, self.layout.made_up(split._ONE), 0)
        return {name: site["value"] for name, site in model.sites.items() if self._is_global(site)}

    def global_transforms(self, params: Mapping[str, Any], key: Any) -> dict[str, Any]:
        """Returns each global latent's map from the real numbers to its support.

        Raises:
          ModelError: if θ is not all that a record's term depends on, or a support moves.
        """
        columns = self.layout.made_up(split._ONE)
        keys = jax.random.split(key)
        (model, guide), (other, _) = (self.traces(params, one, columns, 0) for one in keys)
        for name, site in model.sites.items():
            if site["type"] == "param" and split._learnt(site):
                raise errors.ModelError(
                    f"the model has the parameter {name!r}, which aligned gradients do not reach",
                    "give it a prior with numpyro.sample, or use gradients='full'",
                )
        for name, site in {**guide.sites, **model.sites}.items():
            if _is_sample(site) and not site["is_observed"] and split._is_inside(site, self.plate):
                raise errors.ModelError(
                    f"{name!r} is a latent of each record, which aligned gradients do not reach",
                    "use gradients='full'",
                )
        transforms = {}
        for name, site in model.sites.items():
            if self._is_global(site):
                with split._numpyro_rules():
                    transforms[name] = split._transform(site)
                    real = transforms[name].inv(site["value"])
                    if not split._is_same(split._transform(other.sites[name])(real), site["value"]):
                        raise errors.ModelError(
                            f"the support of {name!r} depends on another latent, expected a fixed one"
                        )
        return transforms

    def _is_global(self, site: dict[str, Any]) -> bool:
        return (
            _is_sample(site) and not site["is_observed"] and not split._is_inside(site, self.plate)
        )

    def _mean(self, term: Callable[[Any], Any], key: Any) -> Any:
        if self.particles == 1:
            return term(key)
        return jax.vmap(term)(jax.random.split(key, self.particles)).mean()

    def _terms(
        self, params: Mapping[str, Any], key: Any, columns: list[Any], place: Any, inside: bool
    ) -> Any:
        model, guide = self.traces(params, key, columns, place)
        with split._numpyro_rules():
            total = jnp.zeros(())
            for name in dict.fromkeys([*model.sites, *guide.sites]):
                sites = [run.sites.get(name) for run in (model, guide)]
                ours, theirs = (site if _is_sample(site) else None for site in sites)
                known = ours if ours is not None else theirs
                if known is not None and split._is_inside(known, self.plate) is inside:
                    total = total + self._term(ours, theirs, self._scale(model, guide, inside))
            return total

    def _scale(self, model: Any, guide: Any, inside: bool) -> float:
        if not inside:
            return 1.0
        size, subsample_size = (model.plates.get(self.plate) or guide.plates[self.plate])[0]
        return float(size / subsample_size)

    def _term(self, ours: Any, theirs: Any, plate_scale: float) -> Any:
        if self.analytic and ours is not None and theirs is not None:
            try:
                divergence = kl_divergence(theirs["fn"], ours["fn"])
            except NotImplementedError:
                pass
            else:
                return -jnp.sum(_scaled(divergence, theirs, plate_scale))
        terms = jnp.zeros(())
        if ours is not None:
            terms = terms + jnp.sum(_scaled(_log_prob(ours), ours, plate_scale))
        if theirs is not None:
            terms = terms - jnp.sum(_scaled(_log_prob(theirs), theirs, plate_scale))
        return terms

    def traces(
        self, params: Mapping[str, Any], key: Any, columns: list[Any], place: Any
    ) -> tuple["split._Run", "split._Run"]:
        """Runs guide and model as ``Trace_ELBO`` does with the same key; returns (model, guide)."""
        args, kwargs = self.layout.call(columns)
        count = columns[0].shape[0]
        model_key, guide_key = jax.random.split(key)

        def run(function: Any) -> split._Run:
            watch = split._Watch()
            substituted = handlers.substitute(function, data=dict(params))
            with watch, handlers.trace() as sites, _Rows(self.plate, count, place):
                substituted(*args, **kwargs, **self.static)
            return split._Run(sites, watch.plates)

        with split._numpyro_rules():
            guide = run(handlers.seed(self.guide, guide_key))
            model = run(handlers.replay(handlers.seed(self.model, model_key), guide.sites))
        return model, guide


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
    """Takes a model and its guide apart and checks the parts on made-up records.

    Nothing in the result depends on data: only shapes and dtypes of the arguments are read.

    Args:
      model, guide: NumPyro functions; an automatic guide has been set up.
      loss: ``Trace_ELBO`` or ``TraceMeanField_ELBO``.
      params: of both, constrained, as they are initialised.
      key: any.
      at: of the arguments.
      plate: the name of the record plate; None to find the one that follows the records.
      static: keyword arguments of both.
      particles: Monte Carlo draws that are averaged; as many as ``loss`` has if left out.

    Raises:
      ModelError: for what cannot be split without changing the model, with the reason.
    """
    _check_loss(loss)
    _check_guide(guide)
    analytic = isinstance(loss, TraceMeanField_ELBO)
    draws = loss.num_particles if particles is None else particles
    draft = Guided(model, guide, static, plate or "", at, draws, analytic)
    one = _first(draft, params, key, [split._ONE])
    _check_automatic(guide, one[1])
    two = _first(draft, params, key, [split._ONE, split._ONE])
    name = _record_plate(one, two, plate)
    found = dataclasses.replace(draft, plate=name)
    found = dataclasses.replace(found, has_local=bool(_local_axes(found, params, key)))
    _check_size(found, two)
    _check_sites(found, one, two)
    _check_separate(found, params, key)
    return found


@contextlib.contextmanager
def unseen(guide: Any) -> Iterator[None]:
    """Sets up automatic guides as if nothing were observed in a plate of one record.

    They look for a start where the model's density is finite, which that of a made-up record need not
    be: an outcome may lie outside of its support, a covariate where a root or a logarithm has no value.
    Nothing of the start depends on outcomes then.
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
    """Lets what is observed in a plate of one record count for nothing."""

    def process_message(self, message: dict[str, Any]) -> None:
        if (
            message["type"] == "sample"
            and message["is_observed"]
            and any(frame.size == 1 for frame in message["cond_indep_stack"])
        ):
            message["fn"] = message["fn"].mask(False)


class _Rows(Messenger):  # type: ignore[misc]
    """Hands the record plate the rows that are there, and each record keys of its own."""

    def __init__(self, plate: str, count: int, place: Any) -> None:
        super().__init__()
        self._plate, self._count, self._place = plate, count, place

    def process_message(self, message: dict[str, Any]) -> None:
        # After `seed`, which has drawn a key where numpyro would: streams of keys stay the same.
        if message["type"] == "plate":
            size, subsample_size = split._plate_sizes(message)
            if subsample_size == self._count and size != subsample_size:
                message["value"] = jnp.arange(self._count)
        elif message["type"] == "sample" and split._is_inside(message, self._plate):
            key = message["kwargs"].get("rng_key")
            if message["value"] is None and key is not None:
                message["kwargs"]["rng_key"] = jax.random.fold_in(key, self._place)


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


def _check_loss(loss: Any) -> None:
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
            "use AutoMultivariateNormal, which learns a covariance from noised gradients",
        )
    if "DAIS" in name:
        raise errors.ModelError(
            f"guide is {name}, which draws with gradients of the model on all records",
            "use AutoNormal, AutoMultivariateNormal or AutoIAFNormal",
        )


def _check_automatic(guide: Any, run: Any) -> None:
    """Refuses latents of each record: an automatic guide was set up with one, and stays so."""
    for name, site in run.sites.items():
        frames = site["cond_indep_stack"] if site["type"] == "sample" else ()
        if isinstance(guide, AutoGuide) and any(frame.size == 1 for frame in frames):
            raise errors.ModelError(
                f"{name!r} is a latent of each record and the guide is automatic: it would keep "
                "parameters for every single record",
                "write a guide that computes the latent's distribution from the record, as an "
                "encoder does",
            )


def _record_plate(one: Any, two: Any, wanted: str | None) -> str:
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
            kind, inside = site["type"], split._is_inside(site, found.plate)
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
            if site["is_observed"] and not inside and not split._is_factor(site):
                raise errors.ModelError(
                    f"{name!r} is observed outside of plate {found.plate!r}, so that its terms "
                    "belong to no single record",
                    f"move it inside the plate {found.plate!r}",
                )
            if not site["is_observed"] and site["fn"].support.is_discrete:
                raise errors.ModelError(
                    f"the latent {name!r} is discrete, expected continuous latents",
                    "sum it out of the likelihood, for example with MixtureSameFamily",
                )
            if what == "guide" and split._kind(site) == "Delta" and not _is_auto(found.guide):
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
        [jnp.shape(leaf) for leaf in jax.tree.leaves(found["value"])]
        for found in (site, other)
        if found is not None
    ]
    if inside or other is None or shapes[0] != shapes[1]:
        raise errors.ModelError(
            f"the parameter {name!r} belongs to the plate {plate!r} or grows with the records: each "
            "record would have parameters of its own",
            "compute it from the record by parameters that all records share (amortisation)",
        )


def _check_separate(found: Guided, params: Mapping[str, Any], key: Any) -> None:
    """Refuses terms outside of the plate that use records, and records that use one another.

    It compares numbers at made-up records, so it is a best effort: it sees floats up to 10 in size and
    levels up to 17, and others where a term is finite for none of these. What shows beyond alone is
    taken as if each record were the only one.
    """
    compare = _Compared(found, params, key)
    shapes = [column for column in found.layout.columns if column is not None]
    unusual = compare.unknown(split._usual(shapes), alone=True)
    left = dict.fromkeys(unusual, split._ENOUGH)
    for pair in itertools.chain(split._wider(shapes), split._elsewhere(shapes) if left else ()):
        if unusual and not any(left.values()):
            break
        unknown = compare.unknown(pair, alone=bool(unusual))
        left.update({name: left[name] - 1 for name in left if left[name] and name not in unknown})
    unknown = {name for name, number in left.items() if number == split._ENOUGH}
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


class _Compared:
    """The terms of made-up records beside one another, and alone.

    Attributes:
      usual: the terms outside of the plate at the first pair.
    """

    def __init__(self, found: Guided, params: Mapping[str, Any], key: Any) -> None:
        self.usual: dict[str, Any] = {}
        self._found, self._params, self._key = found, params, key
        self._axes = _local_axes(found, params, key)
        # Parameters and key are arguments: as constants, other starts would compile another program.
        self._terms = jax.jit(lambda *given: _separate_terms(found, *given))

    def unknown(self, pair: split._Pair, alone: bool) -> set[str]:
        """Refuses what two records show to be mixed; returns the terms that were not finite."""
        first, second = pair
        here, there, swapped = (
            self._at(*rows) for rows in (pair, (first, first), (second, second))
        )
        self.usual = self.usual or here[0]
        for name, value in here[0].items():
            others = there[0], swapped[0], self.usual
            if not all(split._is_same(value, other[name]) for other in others):
                raise errors.ModelError(
                    f"the term {name!r} outside of plate {self._found.plate!r} depends on the "
                    "records",
                    "move it inside the plate, or use public constants",
                )
        for name, value in here[1].items():
            same = split._is_same(value[0], there[1][name][0])
            if not same or not split._is_same(value[1], swapped[1][name][1]):
                raise errors.ModelError(
                    f"the term {name!r} of a record changes when another record does",
                    "a record's terms may use its own row only: no mean over the batch, no "
                    "BatchNorm, no record axis in .to_event",
                )
        if alone:
            self._compare_alone(pair, here)
        return {name for part in here[:2] for name, v in part.items() if not np.isfinite(v).all()}

    def _compare_alone(self, pair: split._Pair, here: Any) -> None:
        outside, each, local = here
        # A record's own draws go with it, so that its term may depend on nothing but itself.
        draws = [{name: value[rows] for name, value in local.items()} for rows in ([0], [1])]
        single = [self._at(row, draws=own) for row, own in zip(pair, draws, strict=True)]
        turned = {name: value[::-1] for name, value in local.items()}
        _, back, _ = self._at(*pair[::-1], draws=turned)
        for name in each:
            own = [alone[1][name][0] for alone in single]
            if not split._is_same(each[name], own) or not split._is_same(back[name], own[::-1]):
                raise errors.ModelError(
                    f"the term {name!r} of a record depends on its place or on how many records "
                    "there are",
                    "a step calls the model with one record at a time: pass what numbers the "
                    "records as a column, and weights as a column or through the plate",
                )
        for name, value in outside.items():
            if not all(split._is_same(value, alone[0][name]) for alone in single):
                raise errors.ModelError(
                    f"the term {name!r} outside of plate {self._found.plate!r} depends on how many "
                    "records there are",
                    "use a public constant, such as the largest number that there may be",
                )

    def _at(self, *records: list[Any], draws: Mapping[str, Any] | None = None) -> Any:
        given = {name: jnp.moveaxis(v, 0, self._axes[name]) for name, v in (draws or {}).items()}
        columns = [np.stack(values) for values in zip(*records, strict=True)]
        try:
            return jax.device_get(self._terms({**self._params, **given}, self._key, columns))
        except errors.FedviError:
            raise
        except Exception as error:
            raise errors.ModelError(
                f"model and guide cannot be compiled by JAX: {type(error).__name__}: {error}",
                "use jnp.where or jax.lax.cond instead of Python branches on latents or records, "
                "and jax.numpy instead of numpy",
            ) from error


def _separate_terms(found: Guided, params: dict[str, Any], key: Any, columns: list[Any]) -> Any:
    """Returns the terms outside of the plate, those of each record, and each record's own draws."""
    model, guide = found.traces(params, key, columns, 0)
    scale = found._scale(model, guide, inside=True)
    with split._numpyro_rules():
        sites = [
            (f"{what} {name}", site)
            for what, run in (("model", model), ("guide", guide))
            for name, site in run.sites.items()
            if site["type"] == "sample"
        ]
        outside = {
            name: jnp.sum(_scaled(_log_prob(site), site, 1.0))
            for name, site in sites
            if not split._is_inside(site, found.plate)
        }
        inside = [pair for pair in sites if split._is_inside(pair[1], found.plate)]
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
    density = _scaled(_log_prob(site), site, plate_scale)
    axis = _plate_axis(site, plate)
    if jnp.ndim(density) < -axis or density.shape[axis] != count:
        raise errors.ModelError(
            f"the density of {site['name']!r} has shape {jnp.shape(density)}, expected {count} "
            f"records along axis {axis}",
            "a record's terms must keep the record axis: none of it in .to_event",
        )
    return jnp.moveaxis(density, axis, 0).reshape(count, -1).sum(axis=1)


def _local_axes(found: Guided, params: Mapping[str, Any], key: Any) -> dict[str, int]:
    """Returns the axis of each record's latents along which the records stand."""
    model, guide = found.traces(params, key, found.layout.made_up(split._ONE), 0)
    return {
        name: _record_axis(site, found.plate)
        for run in (model, guide)
        for name, site in run.sites.items()
        if _is_sample(site) and not site["is_observed"] and split._is_inside(site, found.plate)
    }


def _record_axis(site: dict[str, Any], plate: str) -> int:
    return _plate_axis(site, plate) - int(site["fn"].event_dim)


def _plate_axis(site: dict[str, Any], plate: str) -> int:
    return next(int(frame.dim) for frame in site["cond_indep_stack"] if frame.name == plate)


def _log_prob(site: dict[str, Any]) -> Any:
    if site["intermediates"]:
        return site["fn"].log_prob(site["value"], site["intermediates"])
    return site["fn"].log_prob(site["value"])


def _scaled(density: Any, site: dict[str, Any], plate_scale: float) -> Any:
    return density if site["scale"] is None else density * (site["scale"] / plate_scale)


def _is_sample(site: Any) -> bool:
    return site is not None and site["type"] == "sample"


def _is_auto(guide: Any) -> bool:
    return isinstance(guide, AutoGuide)


def _table(column: jax.ShapeDtypeStruct) -> str:
    return f"{column.dtype}[rows, {', '.join(map(str, column.shape))}]".replace(", ]", "]")


def _kind(leaf: Any) -> str:
    if leaf is None or isinstance(leaf, bool | str):
        return repr(leaf)
    return "a number" if not np.ndim(leaf) else "an array without records"


def _dtype(leaf: Any, name: str) -> Any:
    """Returns the type of an array as JAX takes it: under `jit` no other is seen."""
    kind = getattr(leaf, "dtype", None)
    if kind is None:
        raise errors.ModelError(
            f"{name} is a {type(leaf).__name__}, expected an array with one row a record",
            "pass its columns as an array, by its .to_numpy() or jax.numpy.asarray",
        )
    if not jnp.issubdtype(kind, jnp.number) and not jnp.issubdtype(kind, jnp.bool_):
        raise errors.ModelError(
            f"{name} holds {kind}, expected floats, integers or booleans",
            "number the levels of a category from 0",
        )
    return jax.dtypes.canonicalize_dtype(kind)


def _is_none(leaf: Any) -> bool:
    return leaf is None


def _is_public(path: tuple[Any, ...], public: Collection[str]) -> bool:
    return getattr(path[0], "idx", None) == 1 and getattr(path[1], "key", None) in public


def _name(path: tuple[Any, ...]) -> str:
    place, *inner = path
    if getattr(place, "idx", None) == 1:
        return f"`{inner[0].key}{jax.tree_util.keystr(tuple(inner[1:]))}`"
    return f"argument {inner[0].idx + 1}{jax.tree_util.keystr(tuple(inner[1:]))}"
