"""Wraps any NumPyro model with one plate over the records as a fedvi model."""

import dataclasses
import itertools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Shaped
from numpyro.distributions import constraints

from fedvi import errors
from fedvi.models.base import Record
from fedvi.models.made_up import (
    ENOUGH,
    ONE,
    cast_floats,
    checked_record,
    example_shapes,
    other_pairs,
    placeholder,
    placeholders,
    plate_line,
    rows_in_words,
    usual_pair,
    wider_pairs,
)
from fedvi.models.plates import (
    SEED,
    Run,
    global_terms,
    is_bijectable,
    is_factor,
    is_inside,
    is_same,
    is_supported,
    kind_of,
    learnt_as,
    numpyro_rules,
    record_terms,
    records_supported,
    run_with,
    total_of,
    transform_of,
)

__all__ = ["NumPyroModel", "numpyro_model"]

# A bound from which a sum does not reach the largest float32.
_LARGE = 1e30


@dataclasses.dataclass(frozen=True)
class _Latent:
    """A global latent: its site, and the position of its unconstrained value in θ."""

    name: str
    shape: tuple[int, ...]
    constrained_shape: tuple[int, ...]
    start: int

    @property
    def stop(self) -> int:
        return self.start + int(np.prod(self.shape, dtype=int))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class NumPyroModel:
    """A NumPyro model split into the prior of its global latents and the terms of one record.

    θ holds the latents in the order of the trace, each mapped to ℝ by ``biject_to`` of its
    support and flattened. ``log_prior`` is everything outside the record plate, with the
    Jacobian, evaluated with placeholder records; ``log_likelihood`` is everything inside,
    evaluated with one record. A plate's own factor size / subsample size is removed;
    ``handlers.scale`` and ``handlers.mask`` are kept. The Jacobian itself is neither scaled nor
    masked, so that log p₀ is the scaled density of the constrained latent (as in NumPyro's
    ``SVI``; its ``potential_energy`` scales the Jacobian too). For a network whose parameters are all
    drawn from priors by ``random_flax_module`` or ``random_nnx_module``, the param site is a constant:
    the shapes of the parameters.

    A model equals only itself, so it can be a static argument of ``jax.jit``. Make one with
    ``numpyro_model``, which checks the model.
    """

    function: Callable[..., Any]
    plate: str
    name: str
    names: tuple[str, ...]
    _example: Mapping[str, jax.ShapeDtypeStruct]
    _latents: tuple[_Latent, ...]
    _constants: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"numpyro_model({self.name}, size={self.size}, plate={self.plate!r})"

    @property
    def size(self) -> int:
        """D, the number of unconstrained coordinates."""
        return len(self.names)

    @property
    def record(self) -> Mapping[str, jax.ShapeDtypeStruct]:
        """The model's arguments: name → shape and dtype for one record, without the record axis."""
        return self._example

    def log_prior(self, theta: Float[ArrayLike, " d"]) -> Float[Array, ""]:
        """Returns log p₀(θ), with the Jacobian of the transforms; it involves no record."""
        theta, dtype = self._checked_theta(theta)
        with numpyro_rules():
            run = self._run_at(theta, placeholders(self._example, [ONE]))
            terms = global_terms(run, self.plate, self._split(theta))
            return total_of(terms.values(), dtype)

    def log_likelihood(self, theta: Float[ArrayLike, " d"], record: Record) -> Float[Array, ""]:
        """Returns the sum of the terms of ONE record, given without the record axis.

        Floating records are cast to the dtype of θ. Where an observation is outside of its support, as a 0
        under Gamma, it is −∞, with a gradient of 0 or none: NumPyro's densities may be finite there.

        Raises:
          ModelError: the record's names, shapes or kinds of numbers differ from the example's.
        """
        theta, dtype = self._checked_theta(theta)
        arrays = checked_record(record, self._example, theta.dtype, self.name)
        with numpyro_rules():
            records = {name: array[jnp.newaxis] for name, array in arrays.items()}
            run = self._run_at(theta, records)
            total = total_of(record_terms(run, self.plate).values(), dtype)
            return jnp.where(records_supported(run, self.plate), total, -jnp.inf)

    def unsupported(self, theta: Float[ArrayLike, " d"], record: Record) -> dict[str, str]:
        """Returns value and distribution by site, for what ONE record has outside of its support.

        For messages, and so not to be compiled; arguments and errors as for ``log_likelihood``.
        """
        theta, _ = self._checked_theta(theta)
        arrays = checked_record(record, self._example, theta.dtype, self.name)
        with numpyro_rules():
            run = self._run_at(theta, {name: array[None] for name, array in arrays.items()})
            return {
                name: f"{np.asarray(site['value']).squeeze()} under {kind_of(site)}"
                for name, site in run.sites.items()
                if site["type"] == "sample"
                and site["is_observed"]
                and is_inside(site, self.plate)
                and not is_supported(site)
            }

    def constrain(self, theta: Float[ArrayLike, " d"]) -> dict[str, Shaped[Array, "..."]]:
        """Returns each global latent's value in its own support, by site name."""
        theta, dtype = self._checked_theta(theta)
        with numpyro_rules():
            run = self._run_at(theta, placeholders(self._example, [ONE]))
            return {
                item.name: jnp.asarray(run.sites[item.name]["value"]).astype(dtype)
                for item in self._latents
            }

    def _split(self, theta: Array) -> dict[str, Array]:
        """Splits θ into the unconstrained value of each latent."""
        return {
            item.name: theta[item.start : item.stop].reshape(item.shape) for item in self._latents
        }

    def _run_at(self, theta: Array, records: Mapping[str, Any]) -> "Run":
        values = self._split(theta)

        def value(site: dict[str, Any]) -> Any:
            # The transform is rebuilt from the running site: one kept from construction would have
            # bounds rounded to the dtype of that time.
            name = site["name"]
            return transform_of(site)(values[name]) if name in values else None

        records = cast_floats(records, theta.dtype)
        return run_with(self.function, records, value, self.plate, self._constants)

    def _checked_theta(self, theta: Any) -> tuple[Array, Any]:
        """Returns θ in the dtype to compute in, and the dtype of the result.

        NumPyro makes some constants in JAX's default dtype and then rejects floats of another (a
        Cholesky factor does), so a float32 θ is widened where float64 is the default.
        """
        array = jnp.asarray(theta)
        if array.shape != (self.size,) or not jnp.issubdtype(array.dtype, jnp.floating):
            raise errors.ModelError(
                f"theta is {array.dtype} of shape {array.shape}, expected floats of shape "
                f"({self.size},)",
                "one draw at a time: use jax.vmap over several",
            )
        return array.astype(jnp.result_type(float)), array.dtype


def numpyro_model(
    function: Callable[..., Any],
    example: Mapping[str, Any],
    plate: str = "records",
    name: str | None = None,
) -> NumPyroModel:
    """Makes a fedvi model from a NumPyro model and checks that it can be split by records.

    ``function`` is called as ``function(**records)``; every array has a leading record axis. The
    terms of a record are those inside ``numpyro.plate("records", x.shape[0])``; all else is the
    prior. A model that cannot be split without changing it is rejected: see Raises.

    Only shapes and dtypes of ``example`` are read, and the checks use made-up records, so nothing
    in the result depends on data.

    Args:
      function: a NumPyro model with keyword arguments.
      example: ONE record by name, without a record axis: arrays or ``jax.ShapeDtypeStruct``.
      plate: the name of the record plate.
      name: the model's name in error messages; by default the function's name.

    Raises:
      ModelError: no record plate, or one that does not follow the number of records; latents that
        are discrete, per record, drawn inside a scan or with a support that depends on another latent;
        observations or record-dependent terms outside the plate; parameters without a prior; mutable
        state; terms that mix records.

    >>> import numpyro
    >>> import numpyro.distributions as dist
    >>> def model(x, y):
    ...     b = numpyro.sample("b", dist.Normal(0.0, 2.5).expand([2]).to_event(1))
    ...     with numpyro.plate("records", x.shape[0]):
    ...         numpyro.sample("y", dist.Bernoulli(logits=x @ b), obs=y)
    >>> numpyro_model(model, {"x": np.zeros(2), "y": 0}).names
    ('b[0]', 'b[1]')
    """
    label = name if name is not None else str(getattr(function, "__name__", "model"))
    shapes = example_shapes(example, label)
    with numpyro_rules():
        site_draws: dict[str, Any] = {}
        one = _first_run(function, placeholders(shapes, [ONE]), plate, label, site_draws)
        _check_structure(one, plate, shapes, label)
        latents = _latents(one, site_draws, label)
        two = _first_run(function, placeholders(shapes, [ONE, ONE]), plate, label, {})
        _check_plate(two, plate, 2, shapes, label)
        _check_same_latents(two, latents, label)
        names = tuple(
            coordinate
            for item in latents
            for coordinate in _coordinates(item, one.sites[item.name]["fn"].support)
        )
        constants = {
            name: site["value"] for name, site in one.sites.items() if site["type"] == "param"
        }
    model = NumPyroModel(function, plate, label, names, shapes, latents, constants)
    _check_terms(model)
    return model


def _coordinates(latent: _Latent, support: Any) -> list[str]:
    """Names each unconstrained coordinate of a latent after the entry that it moves."""
    if not latent.shape:
        return [latent.name]
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    entries: list[tuple[int, ...]] = list(np.ndindex(*latent.shape[-1:]))
    # An unconstrained Cholesky factor is a vector: entries below the diagonal by rows, then the diagonal.
    if support is constraints.corr_cholesky or support is constraints.lower_cholesky:
        dimension = latent.constrained_shape[-1]
        entries = list(zip(*map(np.ndarray.tolist, np.tril_indices(dimension, -1)), strict=True))
        if support is constraints.lower_cholesky:
            entries += [(i, i) for i in range(dimension)]
    return [
        f"{latent.name}[{','.join(map(str, (*batch, *entry)))}]"
        for batch in np.ndindex(*latent.shape[:-1])
        for entry in entries
    ]


def _first_run(
    function: Callable[..., Any],
    records: dict[str, Any],
    plate: str,
    label: str,
    draws: dict[str, Any],
) -> Run:
    """Runs the model with arbitrary latents, and explains failures.

    Stores unconstrained values in ``draws``. Nothing is sampled, so improper priors work; NumPyro draws
    only sites that are rejected later.
    """
    random = np.random.default_rng(SEED)

    def draw(site: dict[str, Any]) -> Any:
        support = site["fn"].support
        if support.is_discrete or not is_bijectable(site) or is_inside(site, plate):
            return None
        transform = transform_of(site)
        shape = site["kwargs"]["sample_shape"] + transform.inverse_shape(site["fn"].shape())
        draws[site["name"]] = jnp.asarray(random.uniform(-0.5, 0.5, size=shape), float)
        return transform(draws[site["name"]])

    shapes = ", ".join(f"`{name}` {array.shape}" for name, array in records.items())
    try:
        return run_with(function, cast_floats(records, jnp.result_type(float)), draw, plate, {})
    except errors.ModelError as error:
        raise errors.ModelError(f"model `{label}`: {error.message}", error.hint) from error
    except Exception as error:
        raise errors.ModelError(
            f"model `{label}` fails on placeholder records with a leading record axis, {shapes}: "
            f"{type(error).__name__}: {error}",
            f"it is called as `{label}({', '.join(f'{name}={name}' for name in records)})`, "
            "with one record and with two; no shape may be fixed to the size of a data set, and no layer "
            "keep a state, as BatchNorm does",
        ) from error


def _check_structure(run: Run, plate: str, shapes: Mapping[str, Any], label: str) -> None:
    for name, site in run.sites.items():
        if site["type"] == "mutable":
            raise errors.ModelError(
                f"model `{label}`: `{name}` is a numpyro.mutable site, which would carry records from "
                "call to call; expected no state",
                "use layers without running statistics or keys of their own: LayerNorm or GroupNorm, "
                "no BatchNorm and no Dropout",
            )
        if site["type"] == "param" and (learnt := learnt_as(site)):
            raise errors.ModelError(
                f"model `{label}`: `{name}` is a numpyro.param site, and {learnt} no prior; expected "
                "a prior for all that is learnt",
                "give it a prior with numpyro.sample, or make it a constant; of a network give one to "
                'every parameter: `random_flax_module("net", module, dist.Normal(0.0, 1.0), …)` or '
                "random_nnx_module",
            )
    _check_plate(run, plate, 1, shapes, label)
    samples = {name: site for name, site in run.sites.items() if site["type"] == "sample"}
    for name, site in samples.items():
        inside = is_inside(site, plate)
        if inside and not site["is_observed"]:
            raise errors.ModelError(
                f"model `{label}`: `{name}` is a latent of each record (inside plate `{plate}`), "
                "expected only global latents",
                "marginalise it out of the record's likelihood (missing outcomes: use "
                "numpyro.handlers.mask); local latents come with DPSVI",
            )
        if not inside and site["is_observed"] and not is_factor(site):
            raise errors.ModelError(
                f"model `{label}`: `{name}` is observed outside plate `{plate}`, "
                "so its terms do not belong to single records",
                f"move it inside `{plate_line(plate, shapes)}`; a term of the prior without "
                "data is a numpyro.factor",
            )
    if not any(is_inside(site, plate) for site in samples.values()):
        raise errors.ModelError(
            f"model `{label}`: nothing is observed inside plate `{plate}`, "
            "expected the likelihood of a record",
            f'write `numpyro.sample("y", ..., obs=y)` inside `{plate_line(plate, shapes)}`',
        )


def _check_plate(run: Run, plate: str, count: int, shapes: Mapping[str, Any], label: str) -> None:
    if plate not in run.plates:
        found = ", ".join(f"`{name}` (size {made[0][0]})" for name, made in run.plates.items())
        rename = f', or name your own with `plate="{next(iter(run.plates))}"`' if found else ""
        raise errors.ModelError(
            f"model `{label}` has no plate `{plate}`, expected the terms of a record in one; "
            f"plates found: {found or 'none'}",
            f"put the observations inside `{plate_line(plate, shapes)}`{rename}",
        )
    sizes = sorted({size for size, _ in run.plates[plate]})
    if len(sizes) > 1:
        raise errors.ModelError(
            f"model `{label}`: plate `{plate}` is made with the sizes "
            f"{' and '.join(map(str, sizes))}, expected one size",
            f'write `numpyro.plate("{plate}", {rows_in_words(shapes)})` each time',
        )
    for size, subsample_size in run.plates[plate]:
        if subsample_size != count:
            # A size that follows the call is one or two made-up records here.
            told = "N" if size == count else size
            raise errors.ModelError(
                f"model `{label}`: plate `{plate}` holds {subsample_size} records when the model "
                f"is called with {count}; expected {count}, or a record would not count once",
                f'write `numpyro.plate("{plate}", {rows_in_words(shapes)})`, or '
                f'`numpyro.plate("{plate}", {told}, subsample_size={rows_in_words(shapes)})`',
            )
    for name, made in run.plates.items():
        for size, subsample_size in made:
            if name != plate and size != subsample_size:
                raise errors.ModelError(
                    f"model `{label}`: plate `{name}` draws {subsample_size} of {size} at random, "
                    f"expected subsampling in plate `{plate}` only",
                    f'write `numpyro.plate("{name}", {size})`',
                )


def _latents(run: Run, draws: Mapping[str, Any], label: str) -> tuple[_Latent, ...]:
    latents: list[_Latent] = []
    for name, site in run.sites.items():
        if site["type"] != "sample" or site["is_observed"]:
            continue
        if site["fn"].support.is_discrete:
            raise errors.ModelError(
                f"model `{label}`: the latent `{name}` is discrete ({kind_of(site)}), "
                "expected continuous global latents",
                "sum it out of the likelihood, for example with MixtureSameFamily",
            )
        if name not in draws:
            raise errors.ModelError(
                f"model `{label}`: the support of the latent `{name}` ({kind_of(site)}) has no map "
                "from real numbers",
                "reparameterise it, for example with "
                "numpyro.infer.reparam.ProjectedNormalReparam for directions",
            )
        shape = np.shape(draws[name])
        start = latents[-1].stop if latents else 0
        latents.append(_Latent(name, shape, np.shape(site["value"]), start))
    if not latents or latents[-1].stop == 0:
        raise errors.ModelError(
            f"model `{label}` has no global latents, expected at least one",
            'draw what is to be inferred outside the record plate: `numpyro.sample("b", ...)`',
        )
    return tuple(latents)


def _check_same_latents(run: Run, latents: tuple[_Latent, ...], label: str) -> None:
    found = {
        name: np.shape(site["value"])
        for name, site in run.sites.items()
        if site["type"] == "sample" and not site["is_observed"]
    }
    expected = {item.name: item.constrained_shape for item in latents}
    for name in [*found, *expected]:
        if found.get(name) != expected.get(name):
            raise errors.ModelError(
                f"model `{label}`: the latent `{name}` has shape {expected.get(name)} with one "
                f"record and {found.get(name)} with two, expected a shape that is the same",
                "a latent of each record cannot be global: marginalise it out (local latents come "
                "with DPSVI), or index a fixed number of groups by an integer argument",
            )


def _check_terms(model: NumPyroModel) -> None:
    """Evaluates the model at made-up points and rejects it unless it is a prior times terms of records.

    A best effort: it tries floats up to 10 in size and levels up to 17, and others where the likelihood is
    finite for none of these.
    """
    random = np.random.default_rng(SEED)
    here, there, probe = (
        jnp.asarray(random.uniform(-0.5, 0.5, size=model.size), float) for _ in range(3)
    )

    @jax.jit
    def terms(theta: Any, records: Any) -> Any:
        with numpyro_rules():
            run = model._run_at(theta, records)
            supports = {
                name: transform_of(run.sites[name])(value)
                for name, value in model._split(probe).items()
            }
            prior = global_terms(run, model.plate, model._split(theta))
            return supports, prior, total_of(record_terms(run, model.plate).values(), theta.dtype)

    def at(theta: Any, *records: list[Any]) -> Any:
        columns = [np.stack(values) for values in zip(*records, strict=True)]
        # On a GPU the default rounds to TF32, by more than `is_same` allows.
        with jax.default_matmul_precision("highest"):
            return jax.device_get(terms(theta, dict(zip(model._example, columns, strict=True))))

    shapes = list(model._example.values())
    ones = [placeholder(shape, ONE) for shape in shapes]
    first, second = usual_pair(shapes)
    try:
        supports, prior, _ = at(here, ones)
        moved, _, _ = at(there, ones)
        runs = [at(here, first), at(here, second), at(here, first, second)]
        record = {name: np.ones(s.shape, s.dtype) for name, s in model._example.items()}
        jax.eval_shape(jax.grad(model.log_likelihood), here, record)
        jax.eval_shape(jax.grad(model.log_prior), here)
    except Exception as error:
        raise errors.ModelError(
            f"model `{model.name}` cannot be compiled and differentiated by JAX: "
            f"{type(error).__name__}: {error}",
            "use jnp.where or jax.lax.cond instead of Python branches on latents or records, and "
            "jax.numpy instead of numpy",
        ) from error
    for name in supports:
        if not is_same(supports[name], moved[name]):
            raise errors.ModelError(
                f"model `{model.name}`: the support of `{name}` depends on another latent, "
                "expected a fixed support",
                "draw it on a fixed support and transform it: "
                f'`numpyro.deterministic("{name}", low + (high - low) * unit)`',
            )

    def check_prior(runs: list[Any]) -> None:
        for other_supports, other_prior, _ in runs:
            for name in prior:
                same = name not in supports or is_same(supports[name], other_supports[name])
                if not same or not is_same(prior[name], other_prior[name]):
                    raise errors.ModelError(
                        f"model `{model.name}`: the term `{name}` outside plate `{model.plate}` "
                        "depends on the records, or on how many there are; expected a prior "
                        "without data",
                        f"move it inside `{plate_line(model.plate, model._example)}`, or use "
                        "public constants",
                    )

    def check_sum(runs: list[Any]) -> bool:
        """Checks the sum; returns whether it was finite, as outcomes may lie outside their support."""
        low, high, both = (float(likelihood) for _, _, likelihood in runs)
        size = abs(low) + abs(high)
        known = abs(both) < _LARGE or size < _LARGE
        if known and not abs(both - low - high) <= 1e-4 * (1.0 + size):
            raise errors.ModelError(
                f"model `{model.name}`: two made-up records have the log likelihood {both:.6g} "
                f"together, but {low:.6g} and {high:.6g} alone; expected the sum",
                "a record's terms may use its own row only: no mean over records (standardise "
                "with public constants before), no record axis in .to_event, and one shape for an "
                "outcome and its distribution",
            )
        return bool(np.isfinite(both))

    check_prior(runs)
    for name, value in prior.items():
        if not np.isfinite(value):
            raise errors.ModelError(
                f"model `{model.name}`: the log density of `{name}` is {value} at an arbitrary "
                "point of its support, expected a finite number",
                "check the parameters of its distribution",
            )
    usual = check_sum(runs)
    compared = int(usual)
    for pair in itertools.chain(wider_pairs(shapes), () if usual else other_pairs(shapes)):
        if not usual and compared == ENOUGH:
            break
        runs = [at(here, pair.first), at(here, pair.second), at(here, *pair)]
        check_prior(runs)
        compared += check_sum(runs)
    if not compared:
        warnings.warn(
            f"model `{model.name}`: no made-up records were found at which its likelihood is finite: "
            "whether records are kept apart was not checked",
            stacklevel=3,
        )
