"""Makes intervals for a `DPSVI` run that account for its noise, or says why there are none."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import autoguide
from numpyro.infer.svi import SVIRunResult
from scipy.special import ndtri

from fedvi import errors
from fedvi.inference import response
from fedvi.models.guided_terms import Guided
from fedvi.models.made_up import ONE
from fedvi.models.plates import numpyro_rules
from fedvi.privacy.spoken import Speaks, Summary, Table
from fedvi.typing import Key

__all__ = [
    "DPSVIRunResult",
    "Latents",
    "NoiseAware",
    "latents_of",
    "locations",
    "unlike_a_regression",
]

# With more latents, updating the sums would cost more than a step.
_MOST = 256
# Dimensions that are shorter than this share of the longest are rounding.
_ROUNDING = 1e-3
_GAUSSIAN = (
    autoguide.AutoNormal,
    autoguide.AutoDiagonalNormal,
    autoguide.AutoMultivariateNormal,
    autoguide.AutoLowRankMultivariateNormal,
)
_PARTS = "loc", "scale", "scale_tril", "cov_factor"
# The most rows of a summary.
_MOST_SHOWN = 30
_GUIDES_OWN = "intervals of the guide do not include the noise of the gradients"
_CLIPPED = "no interval accounts for clipping"


class Latents:
    """Maps the global latents of a model to and from one unconstrained vector [D].

    Args:
      transforms: name → map from the real numbers to the support.
      like: name → an unconstrained value, or its shape and dtype.
    """

    def __init__(self, transforms: Mapping[str, Any], like: Mapping[str, Any]) -> None:
        self.transforms = dict(transforms)
        self.shapes = {name: jnp.shape(like[name]) for name in sorted(like)}
        self.size = sum(int(np.prod(shape, dtype=int)) for shape in self.shapes.values())

    def flat(self, values: Mapping[str, Any]) -> Any:
        """Returns the vector [D] of unconstrained values."""
        return jnp.concatenate([jnp.ravel(values[name]) for name in self.shapes])

    def parted(self, vector: Any) -> dict[str, Any]:
        """Splits a vector into unconstrained values by name."""
        found, start = {}, 0
        for name, shape in self.shapes.items():
            stop = start + int(np.prod(shape, dtype=int))
            found[name] = vector[start:stop].reshape(shape)
            start = stop
        return found

    def constrained(self, vector: Any) -> dict[str, Any]:
        """Returns values in their supports."""
        with numpyro_rules():
            return {name: self.transforms[name](v) for name, v in self.parted(vector).items()}

    def log_prior(self, found: Guided, vector: Any) -> Any:
        """Returns the log density of the unconstrained vector before any record."""
        key = jax.random.key(0)
        values = self.parted(vector)
        with numpyro_rules():
            total = found.prior_at(self.constrained(vector), key)
            for name, value in values.items():
                there = self.transforms[name](value)
                total = total + jnp.sum(self.transforms[name].log_abs_det_jacobian(value, there))
            return total


class NoiseAware:
    """A noise-aware Gaussian posterior of the global latents; made by ``DPSVI.noise_aware``.

    Methods have the names of those of NumPyro's automatic guides. They return latents in their own
    supports, for ``Predictive(model, posterior_samples=…)``.

    Attributes:
      mean, covariance: of the unconstrained latents, names in alphabetical order; NumPy, [D] and [D, D].
      hidden: in how many of the D directions the noise exceeds the curvature of the log likelihood;
        intervals there rest mostly on the prior.
      remark: the caveats to print beside intervals.
    """

    def __init__(self, latents: Latents, told: response.Told) -> None:
        self.mean, self.covariance, self.hidden = told
        self._latents = latents
        hides = ""
        if self.hidden == latents.size:
            hides = (
                f"of no use: noise hides the curvature in all {latents.size} directions, so that this is "
                "about the prior; "
            )
        elif self.hidden:
            hides = (
                f"noise hides the curvature in {self.hidden} of {latents.size} directions, where "
                "intervals rest mostly on the prior; "
            )
        self.remark = f"{hides}{_CLIPPED}: use a clip norm that few gradients exceed"

    def sample(self, rng_key: Key, sample_shape: tuple[int, ...] = ()) -> dict[str, Any]:
        """Returns draws of the latents, with ``sample_shape`` in front."""
        root = np.linalg.cholesky(self.covariance)
        count = int(np.prod(sample_shape, dtype=int))
        noise = np.asarray(jax.random.normal(rng_key, (count, self._latents.size)), float)
        draws = jax.vmap(self._latents.constrained)(jnp.asarray(self.mean + noise @ root.T, float))
        return {name: v.reshape(*sample_shape, *v.shape[1:]) for name, v in draws.items()}

    def quantiles(self, quantiles: Sequence[float] | float) -> dict[str, Any]:
        """Returns quantiles of each latent's marginal, along the first axis if several are given.

        As in NumPyro's guides, quantiles of the unconstrained latents are mapped to the support. That is
        exact where the map is elementwise.
        """
        sds = np.sqrt(np.diagonal(self.covariance))
        points = [self.mean + float(ndtri(q)) * sds for q in np.atleast_1d(quantiles)]
        found = jax.vmap(self._latents.constrained)(jnp.asarray(np.stack(points), float))
        if np.ndim(quantiles):
            return found
        return {name: value[0] for name, value in found.items()}

    def median(self) -> dict[str, Any]:
        """Returns the median of each latent's marginal."""
        return self.quantiles(0.5)

    def intervals(self, level: float = 0.95) -> dict[str, Any]:
        """Returns the central interval of each latent: its ends along the first axis."""
        if not 0.0 < level < 1.0:
            raise errors.ConfigError(f"level is {level}, expected a number between 0 and 1")
        return self.quantiles([(1.0 - level) / 2.0, (1.0 + level) / 2.0])

    def rows(self) -> list[tuple[Any, ...]]:
        """Returns (name, median, lower, upper) of each number of each latent; the interval is of 95 %."""
        found = {
            name: np.asarray(value) for name, value in self.quantiles([0.5, 0.025, 0.975]).items()
        }
        return [
            (f"{name}[{', '.join(map(str, at))}]" if at else name, *value[(slice(None), *at)])
            for name, value in found.items()
            for at in np.ndindex(value.shape[1:])
        ]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._latents.size} latents, {self.hidden} hidden by noise)"

    def __str__(self) -> str:
        """Lists medians and 95 % intervals, one number a line, and the remark."""
        rows = self.rows()
        wide = max(6, *(len(row[0]) for row in rows))
        lines = [f"{'latent':{wide}} {'median':>10} {'2.5 %':>10} {'97.5 %':>10}"]
        lines += [
            f"{row[0]:{wide}}" + "".join(f" {number:10.4g}" for number in row[1:]) for row in rows
        ]
        return "\n".join([*lines, self.remark])


class DPSVIRunResult(SVIRunResult, Speaks):  # type: ignore[misc]
    """The result of `DPSVI.run`: NumPyro's ``SVIRunResult`` with noise-aware intervals.

    It unpacks into (params, state, losses) as NumPyro's does. The guide's own intervals, from ``params``,
    treat the noised optimum as exact; those of ``noise_aware()`` account for the noise.
    """

    _fit: Any = None

    @classmethod
    def of(cls, fit: Any, params: Any, state: Any, losses: Any) -> "DPSVIRunResult":
        """Returns the result of ``fit``, a `DPSVI`."""
        result = cls(params, state, losses)
        result._fit = fit
        return result

    def noise_aware(self) -> NoiseAware:
        """Returns the noise-aware Gaussian posterior of the latents; see ``DPSVI.noise_aware``.

        Raises:
          SolverError: there is none; the message gives the reason.
        """
        if self._fit is None:
            raise errors.SolverError(
                "this copy of a result has lost the fit that made it",
                "svi.noise_aware(result.state)",
            )
        found: NoiseAware = self._fit.noise_aware(self.state)
        return found

    def intervals(self, level: float = 0.95) -> dict[str, Any]:
        """Returns noise-aware central intervals of the latents; see ``NoiseAware.intervals``.

        Raises:
          SolverError: there are none; the message gives the reason.
        """
        return self.noise_aware().intervals(level)

    @property
    def remark(self) -> str:
        """The caveats on intervals of this run; empty where there was no noise, or in a copy."""
        if self._fit is None or not self._fit.privacy.mechanism.noise_multiplier:
            return ""
        try:
            found = self.noise_aware()
        except errors.SolverError as error:
            reason = str(error).split("\n", 1)[0]
            return f"{_GUIDES_OWN}, and no others are honest: {reason}"
        return f"{_GUIDES_OWN}, those of noise_aware() do; {found.remark}"

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings to print beside any number of this run; empty in a copy."""
        mark = "" if self._fit is None else self._fit.privacy.mark
        return tuple(filter(None, (mark, self.remark)))

    def summary(self) -> Summary:
        """Returns the latents with noise-aware 95 % intervals, or else the parameters' names and shapes.

        It computes ``noise_aware()``, which takes some seconds the first time.
        """
        lines = [] if self._fit is None else [self._fit.privacy.promised]
        try:
            rows = self.noise_aware().rows()
        except errors.SolverError:
            rows = None
        if rows is None:
            shapes = [(name, str(list(np.shape(value)))) for name, value in self.params.items()]
            table = Table(("parameter", "shape"), tuple(shapes[:_MOST_SHOWN]), (0, 1))
        else:
            cells = [(name, *(f"{number:.4g}" for number in numbers)) for name, *numbers in rows]
            table = Table(("latent", "median", "2.5 %", "97.5 %"), tuple(cells[:_MOST_SHOWN]))
        count = len(self.params if rows is None else rows)
        if count > _MOST_SHOWN:
            lines.append(f"the first {_MOST_SHOWN} of {count} are shown")
        return Summary(self._in_short, tuple(lines), (table,), self.warnings)

    @property
    def _in_short(self) -> str:
        losses = "withheld" if np.isnan(np.asarray(self.losses)).all() else "released"
        count = sum(int(np.prod(np.shape(value), dtype=int)) for value in self.params.values())
        steps = getattr(self.state, "step", len(self.losses))
        return f"{count} parameters after {steps} steps, losses {losses}"

    def __repr__(self) -> str:
        """Shows sizes and the remark, not the long arrays, nor the state, which holds keys."""
        remark = self.remark
        return f"{type(self).__name__}({self._in_short}{'; ' if remark else ''}{remark})"

    def __reduce__(self) -> Any:
        """Pickles the fields alone, without the fit, which holds secrets."""
        return type(self), tuple(self)


def latents_of(
    found: Guided,
    guide: Any,
    params: Mapping[str, Any],
    key: Key,
    *,
    clip: str,
    clipping: str,
    transforms: Mapping[str, Any] | None = None,
) -> Latents | str:
    """Returns the latents that can have noise-aware intervals, or the reason why there are none.

    Nothing here depends on records. ``unlike_a_regression`` checks whether the model is like a regression.

    Args:
      found: model and guide.
      guide: as the caller passed it.
      params: constrained parameters of both.
      key: any.
      clip, clipping: the options of the `DPSVI`.
      transforms: those of the global latents, if known already.
    """
    if type(guide) not in _GAUSSIAN:
        name = getattr(guide, "__name__", type(guide).__name__)
        return f"the guide {name} is not one of NumPyro's automatic Gaussian guides"
    if clip != "likelihood":
        return f"clip={clip!r} clips the prior together with the records"
    if clipping not in ("flat", "per_site"):
        return f"clipping={clipping!r} rescales every gradient, which moves the zero of their sum"
    if found.has_local:
        return "records have latents of their own"
    others = sorted(set(params) - _own(guide))
    if others:
        return f"the model has parameters beside its latents: {', '.join(others)}"
    try:
        known = found.global_transforms(params, key) if transforms is None else transforms
    except errors.ModelError as error:
        return str(error).split("\n", 1)[0]

    missing = sorted(set(known) - set(guide._init_locs))
    if missing:
        return f"the guide leaves out {', '.join(missing)}, drawn from the prior at each step"

    def real() -> dict[str, Any]:
        values = found.global_latents(params, key)
        with numpyro_rules():
            return {name: known[name].inv(values[name]) for name in known}

    latents = Latents(known, jax.eval_shape(real))
    if latents.size > _MOST:
        return f"there are {latents.size} latents, expected at most {_MOST}"
    return latents


def locations(guide: Any, latents: Latents, gradient: Mapping[str, Any]) -> Any:
    """Returns the gradient for the latents, [D], from the gradient for the guide's parameters.

    A Gaussian guide draws location + noise, so the gradient for its location equals that at the draw.
    """
    if isinstance(guide, autoguide.AutoNormal):
        return latents.flat(
            {name: gradient[f"{name}_{guide.prefix}_loc"] for name in latents.shapes}
        )
    return latents.flat(guide._unpack_latent(gradient[f"{guide.prefix}_loc"]))


def unlike_a_regression(found: Guided, latents: Latents) -> str:
    """Returns why a model is not like a regression, or "" if it is; uses no records.

    In a regression a record's outcome depends on θ through fixed linear predictors. So over all θ, the
    gradients of one made-up record span no more dimensions than the parameters of its outcome's
    distribution have at one θ: one, or one per class or parameter. In networks, and wherever latents are
    multiplied, each parameter of the outcome turns with θ, and spans several. Those of a mixture move
    together as one.
    """
    keys = jax.random.split(jax.random.key(0))
    row = [column[0] for column in found.layout.made_up(ONE)]

    def term(vector: Any) -> Any:
        return found.record_term_at(latents.constrained(vector), keys[1], row)

    def described(vector: Any) -> Any:
        return found.described_at(latents.constrained(vector), keys[1], row)

    def ways(vectors: np.ndarray) -> int:
        norms = np.linalg.norm(vectors, axis=1)
        usable = np.isfinite(norms) & (norms > 0.0)
        if not usable.any():
            return 0
        lengths = np.linalg.svd(vectors[usable] / norms[usable, None], compute_uv=False)
        return int((lengths > _ROUNDING * lengths[0]).sum())

    numbers, most = described(jnp.zeros(latents.size))
    places = jax.random.normal(keys[0], (2 * (len(numbers) + most) + 4, latents.size))
    if len(numbers):
        turns = jax.jit(jax.vmap(jax.jacrev(lambda vector: described(vector)[0])))(places)
        most += max(map(ways, np.asarray(turns, float)))
    spanned = ways(np.asarray(jax.jit(jax.vmap(jax.grad(term)))(places), float))
    if spanned <= most:
        return ""
    return (
        f"a record's gradients span {spanned} or more dimensions where {most} describe its outcome, as "
        "those of networks, of products of latents and of mixtures do, whose posterior is not Gaussian"
    )


def _own(guide: Any) -> set[str]:
    """Returns names of the parameters of an automatic Gaussian guide."""
    if isinstance(guide, autoguide.AutoNormal):
        return {f"{name}_{guide.prefix}_{part}" for name in guide._init_locs for part in _PARTS}
    return {f"{guide.prefix}_{part}" for part in _PARTS}
