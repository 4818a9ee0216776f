"""``DPSVI``: NumPyro's ``SVI`` under differential privacy, with clipping, noise, batches and a ledger."""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import tqdm.auto as tqdm
from numpyro.infer import SVI

from fedvi import errors
from fedvi.inference import compiler, noise_told, presample, ratchet, response
from fedvi.inference.clipping import Clipping
from fedvi.inference.noise_told import DPSVIRunResult, Latents, NoiseAware
from fedvi.inference.parallel_parts import devices, is_wide
from fedvi.inference.rows_alike import Finding
from fedvi.inference.spoken import SpeaksOfRuns
from fedvi.inference.svi_checks import (
    OUTSIDE,
    check_gradients_serve,
    check_key,
    check_mode,
    check_mutable,
    check_optimiser,
    checked_steps,
    finite_records,
    judge_records,
    not_set_up,
    not_started,
)
from fedvi.inference.svi_steps import DPSVIState, Steps, size_of
from fedvi.inference.used_states import UsedStates
from fedvi.models import guided as parts
from fedvi.models.guided_terms import Guided
from fedvi.models.layout import layout
from fedvi.models.made_up import ONE
from fedvi.models.plates import numpyro_rules
from fedvi.privacy import ledger as ledgers
from fedvi.privacy import random
from fedvi.privacy.descent import Descent
from fedvi.privacy.metrics import Private
from fedvi.privacy.owned import Owned
from fedvi.privacy.runs import Runs

__all__ = ["DPSVI", "DPSVIState"]

Clip = Literal["likelihood", "elbo"]

Gradients = Literal["full", "aligned"]

# Batches and noise are drawn for many steps together: at most this many numbers, and this many steps.
_DRAWN_TOGETHER, _MOST_TOGETHER = 2**20, 1000

# How often a progress bar moves in a run.
_BAR_MOVES = 20


class DPSVI(SpeaksOfRuns, Owned, SVI):  # type: ignore[misc]
    """NumPyro's ``SVI`` under differential privacy: the same calls, on the whole table.

    ``update`` and ``run`` take all records; each step draws its batch inside, with the sampler of the
    plan. A step clips one gradient per record, noises the sum over the batch, divides it by the public
    sampling rate, and adds the exact gradient of the terms without records (prior and entropy of the
    global latents).

    Guarantee: with ``privacy`` from ``fedvi.privacy.sgd``, all parameters, optimiser states and losses
    that the first ``privacy.steps`` updates of ``privacy.runs`` calls of ``init`` return are together
    (epsilon, delta)-DP for ``privacy.relation`` on records, where a record is one row of all arrays. A
    state serves one step, and a second is refused. Runs are counted by this object, or, where ``privacy``
    has a ``ledger``, over all processes that use it. Proof: a step sees records only through
    ``release_with(…, clipped(…))``, whose price is the plan's ``step``; steps compose adaptively; the
    rest is post-processing. A record whose gradient is not finite, as where a NaN is not masked, or which
    is outside of the model's support, adds nothing; ``init`` says on the holder's own screen how many are
    not finite at the start. No size or program behind a step follows from the number of records
    (docs/proofs/float_sum.md). Draws of a record's own latents do not depend on other records.
    Parameters are initialised on made-up records. The draws of the guide follow from ``rng_key`` and
    may be public.

    What stands outside of the plate is taken as public: all that model and guide compute there, the
    arrays of ``static_kwargs``, ``init_params``, and the starting values of ``numpyro.param`` and
    ``init_to_value``. Compute none of it from the records. A constant array with one row a record is
    refused where there are 32 rows or more; a number, or an array of another length, cannot be told from a
    public one.

    The object holds the secret of its noise: it cannot be copied or pickled, and belongs to the process
    that made it.

    The guide's own intervals ignore the noise of the gradients. For models like a regression,
    ``noise_aware`` makes intervals that include it, from the released gradients.

    Losses are NaN, since they depend on records, unless ``loss_bound`` is given: each step then releases
    its loss with the gradient, within the same clip norm and at no further cost. Its noise has std
    10 · noise_multiplier · loss_bound ÷ sampling rate; average over steps to see a trend. ``evaluate``
    returns a ``Private``.

    Args:
      model, guide, optim, loss: as for ``SVI``; loss is ``Trace_ELBO`` or ``TraceMeanField_ELBO``. The
        guide may be any with a density: automatic, or written by hand.
      privacy: the plan, from ``fedvi.privacy.sgd``.
      plate: the name of the record plate; left out, the plate whose size follows the number of rows.
      clip: "likelihood" clips a record's likelihood terms alone; "elbo" clips them together with the
        record's share, 1 ÷ max_records, of prior and entropy, as the papers do.
      clipping: "flat" clips the norm over all parameters; "per_site" clips each parameter's to C / √sites;
        "automatic" rescales every gradient to C·g / (‖g‖ + 0.01); "normalised" to C·g / ‖g‖.
      gradients: "aligned" clips and noises the gradient for the unconstrained global latents alone,
        and pulls it back through the guide: D numbers, whatever the guide's size. Each step then uses one
        draw for all terms, whatever the loss's num_particles; "full" averages num_particles draws before
        clipping.
      loss_bound: the largest absolute loss of one record that counts in full, e.g. a few times log(levels)
        for a label; gradients are then clipped to about 0.995 C. Left out, losses are withheld.
      microbatch_size: how many records' gradients are formed at a time, where they must be formed: 1, or
        rounded up to a multiple of 64. Left out, as many as fit into a quarter of a GB. Gradients of dense
        layers are not formed.
      static_kwargs: for model and guide, as for ``SVI``; arrays among them hold no records.

    Raises:
      ModelError: model or guide cannot be split by records.
      ConfigError: an option has an unknown value.

    Source: Jälkö, Dikmen and Honkela (2017), arXiv:1610.08749; automatic clipping: Bu et al. (2023),
    arXiv:2206.07136.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        optim: Any,
        loss: Any,
        privacy: Descent,
        *,
        plate: str | None = None,
        clip: Clip = "likelihood",
        clipping: Clipping = "flat",
        gradients: Gradients = "full",
        loss_bound: float | int | None = None,
        microbatch_size: int | None = None,
        **static_kwargs: Any,
    ) -> None:
        for name, value, known in (
            ("clip", clip, get_args(Clip)),
            ("clipping", clipping, get_args(Clipping)),
            ("gradients", gradients, get_args(Gradients)),
        ):
            if value not in known:
                raise errors.ConfigError(
                    f"{name} is {value!r}, expected one of {', '.join(map(repr, known))}",
                    errors.did_you_mean(str(value), known),
                )
        if loss_bound is not None and not 0.0 < loss_bound < math.inf:
            raise errors.ConfigError(
                f"loss_bound is {loss_bound!r}, expected a positive number or None",
                "give the largest loss that a usual record has, or leave it out to withhold losses",
            )
        if microbatch_size is not None and (
            type(microbatch_size) is not int or microbatch_size < 1
        ):
            raise errors.ConfigError(
                f"microbatch_size is {microbatch_size!r}, expected an integer of at least 1, or None"
            )
        if not isinstance(privacy, Descent):
            raise errors.ConfigError(
                f"privacy is a {type(privacy).__name__}, expected a plan",
                "make it with fedvi.privacy.sgd(epsilon=…, delta=…, steps=…, batch=…, max_records=…)",
            )
        if clipping in ("automatic", "normalised") and not math.isfinite(privacy.clip_norm):
            raise errors.ConfigError(
                f"clip_norm is {privacy.clip_norm}, and clipping {clipping!r} scales gradients to it",
                "give a finite clip_norm, or clipping='flat'",
            )
        Owned.__init__(self)
        SVI.__init__(self, model, guide, optim, loss, **static_kwargs)
        self.constrain_fn = not_started
        check_optimiser(self.optim)
        self.privacy: Descent = privacy
        self._plate, self._clip, self._clipping = plate, clip, clipping
        self._gradients, self._is_aligned = gradients, gradients == "aligned"
        self._loss_bound = None if loss_bound is None else float(loss_bound)
        self._microbatch_size = microbatch_size
        seed = privacy.seed
        self._root = random.secure_root() if seed is None else random.insecure_root(seed)
        # Here and not at the first step, which may be traced.
        self._secret = self._root.secret("dpsvi")
        mark = random.key(self._secret, "fit")
        self._fit = np.asarray(jax.random.bits(mark, (2,), jnp.uint32))
        self._runs: Runs | None = None
        # What the last check before a charge has found, and what was checked.
        self._finding: Finding | None = None
        self._checked: set[Any] = set()
        self._guided: Guided | None = None
        # Shapes and dtypes of a state.
        self._state_like: Any = None
        self._transforms: dict[str, Any] = {}
        # The latents that can have noise-aware intervals, or the reason why there are none.
        self._latents_told: Latents | str = ""
        self._unlike: str | None = None
        # How many records were lost at the start of the last run; private.
        self._lost = 0
        self._like: Any = None
        # A step split into what follows from its key and the rest; one for stable steps, one for others.
        self._parted: dict[bool, presample.Split] = {}
        self._used = UsedStates(self._fit, self._check_owner)
        # Compiled per object: a cache of the class would keep the secrets of all objects.
        self._step = jax.jit(self._one_step, static_argnums=2, inline=True)
        self._finite = jax.jit(lambda *given: finite_records(self._taken_apart, *given))
        self._scan = jax.jit(self._many_steps, static_argnums=(2, 3, 4), donate_argnums=0)

    def _more_facts(self) -> list[tuple[str, str]]:
        losses = "withheld" if self._loss_bound is None else f"released, up to {self._loss_bound:g}"
        finding = self._finding
        checked = "before the first run is charged"
        if finding is not None:
            checked = (
                f"on {finding.probes} pairs of made-up batches, in {finding.seconds:.1f} s: a record adds "
                f"{finding.moved:.2f} clip norms at most, in whichever row"
            )
        return [
            ("checked", checked),
            ("clipped", f"{self._clip}, {self._clipping}; gradients {self._gradients}"),
            ("losses", losses),
        ]

    @property
    def ledger(self) -> ledgers.Ledger:
        """The charges until the last ``init`` of this object, one entry a run.

        Includes runs of other processes if the plan has a ledger file: ``fedvi.privacy.sgd(ledger=…)``.
        """
        if self._runs is None:
            raise errors.SolverError("there is no ledger before `init`", "call `init` or `run`")
        return self._runs.ledger

    def init(
        self, rng_key: Any, *args: Any, init_params: dict[str, Any] | None = None, **kwargs: Any
    ) -> DPSVIState:
        """Charges one run and returns its first state; parameters start as those of ``SVI``.

        What it returns follows from the shapes and dtypes of the records alone. It looks at the records
        once, at the start of the guide: those that are not finite there, outside of the support of the
        model, or not held by 32 bits, are told in one line on standard error. That line is private to the
        holder of the records: keep it out of what you share. Without a promise they are refused instead.

        Raises:
          BudgetExceeded: more runs were started than planned, by this process or, if the plan has a
            ledger file, by all processes.
          DataError: the plan has no noise, and records count as zero, or a column is not held by 32 bits.
          LedgerError: the ledger file is damaged, belongs to another plan, or cannot be written.
          ModelError: model or guide cannot be split by records; the arguments hold no records, or differ
            from those of the previous run.
          PrivacyError: under a JAX transformation.
        """
        random.refuse_a_trace("a run was charged", OUTSIDE)
        self._check_owner()
        check_key(rng_key)
        parts.check_choice(self.guide, self.loss)
        if self._guided is not None:
            # Another run on the same table reuses what was compiled.
            self._columns(args, kwargs)
        at = layout(args, kwargs)
        most = int(getattr(self.privacy.sampler, "max_records"))  # noqa: B009
        if at.rows > most:
            raise errors.PrivacyError(
                f"the table has {at.rows} rows, expected at most the {most} of max_records",
                "plan for as many as there may be: fedvi.privacy.sgd(max_records=…)",
            )
        made_up = at.call(at.made_up(ONE))
        try:
            with numpyro_rules(), parts.unseen(self.guide):
                started = super().init(rng_key, *made_up[0], init_params=init_params, **made_up[1])
        except errors.FedviError:
            raise
        except Exception as error:
            raise not_set_up(error) from error
        check_mutable(started.mutable_state)
        params = self.optim.get_params(started.optim_state)
        constrained = self.constrain_fn(params)
        if self._guided is None:
            check_gradients_serve(self.optim, started.optim_state, params)
            self._guided = parts.guided(
                self.model,
                self.guide,
                self.loss,
                constrained,
                rng_key,
                at,
                self._plate,
                self.static_kwargs,
                # θ is drawn once a step, and terms without records use that draw too.
                particles=1 if self._is_aligned else None,
            )
            if self._is_aligned:
                self._transforms = self._guided.global_transforms(constrained, rng_key)
            self._latents_told = noise_told.latents_of(
                self._guided,
                self.guide,
                constrained,
                rng_key,
                clip=self._clip,
                clipping=self._clipping,
                transforms=self._transforms if self._is_aligned else None,
            )
            if isinstance(self._latents_told, Latents):
                self._transforms = self._latents_told.transforms
        columns = at.take(args, kwargs)
        if not self.privacy.protected:
            self._lost = self._judge(constrained, rng_key, columns)
        run = self._charged(params, constrained, rng_key, columns)
        if self.privacy.protected:
            self._lost = self._judge(constrained, rng_key, columns)
        state = DPSVIState(
            started.optim_state,
            None,
            started.rng_key,
            jnp.zeros((), jnp.int32),
            ratchet.started(random.key(self._secret, "run", run)),
            jnp.asarray(self._fit),
            self._nothing_seen(),
        )
        like = jax.tree.map(_shape, state)
        if like != self._state_like:
            # Cached shapes and splits belong to parameters of other types.
            self._state_like, self._like, self._parted = like, None, {}
        return state

    def update(
        self,
        svi_state: DPSVIState,
        *args: Any,
        forward_mode_differentiation: bool = False,
        **kwargs: Any,
    ) -> tuple[DPSVIState, jax.Array]:
        """Takes one step on a batch of the given records; returns (state, loss).

        The loss is NaN unless ``loss_bound`` was given, and the released one otherwise.

        Args:
          svi_state: from ``init``, ``update`` or ``run``.
          args, kwargs: all records, as at ``init``; NumPy arrays of 64 bits are converted as JAX does.
            Arguments without records must equal those of ``init``, and are constants under ``jit``.
          forward_mode_differentiation: as for ``SVI``; only False.

        Raises:
          BudgetExceeded: all planned steps were taken. A traced call returns the state unchanged instead.
          ConfigError: forward mode is requested.
          ModelError: the arguments are not those of ``init``.
          PrivacyError: the state was used before, or belongs to another fit; or `vmap` takes several steps
            from one state. Under a transformation of JAX each execution asks this process whether the
            state was used, and a refusal is a ``jax.errors.JaxRuntimeError`` with the same message; where
            JAX has several devices, it is a warning, a loss of NaN and the unchanged state. So a traced
            step takes about a millisecond longer; ``run`` does not.
        """
        check_mode(forward_mode_differentiation)
        return self._updated(svi_state, False, args, kwargs)

    def stable_update(
        self,
        svi_state: DPSVIState,
        *args: Any,
        forward_mode_differentiation: bool = False,
        **kwargs: Any,
    ) -> tuple[DPSVIState, jax.Array]:
        """As ``update``, but keeps the old parameters if the noised step makes any of them not finite."""
        check_mode(forward_mode_differentiation)
        return self._updated(svi_state, True, args, kwargs)

    def run(
        self,
        rng_key: Any,
        num_steps: int,
        *args: Any,
        progress_bar: bool = True,
        stable_update: bool = False,
        forward_mode_differentiation: bool = False,
        init_state: DPSVIState | None = None,
        init_params: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> DPSVIRunResult:
        """Takes ``num_steps`` steps in compiled scans; arguments and result are those of ``SVI.run``.

        The result also has ``noise_aware()``, ``intervals()``, and a ``remark`` on how far to trust them.

        At its end it looks at the records once more, at the released parameters, and says on standard
        error, to the holder alone, if more records are not finite there than at the start: they count as
        zero. ``update`` does not look.

        It compiles by itself: do not call it under ``jit``, ``vmap`` or ``scan``. Call ``update`` there.

        Raises:
          BudgetExceeded: more steps than planned, or more runs.
          ConfigError: forward mode is requested, or no steps.
          PrivacyError: under a JAX transformation.
        """
        check_mode(forward_mode_differentiation)
        num_steps = checked_steps(num_steps)
        self._check_owner()
        if init_state is not None and self._guided is not None:
            self._check(init_state)
        if init_state is not None and isinstance(init_state.step, jax.core.Tracer):
            raise errors.PrivacyError(
                "run was called under a JAX transformation, expected outside of any",
                "it compiles by itself; inside a transformation use jax.lax.scan(lambda state, _: "
                "svi.update(state, x, y), state, length=steps)",
            )
        taken = 0 if init_state is None else int(init_state.step)
        if taken + num_steps > self.privacy.steps:
            raise errors.BudgetExceeded(
                f"num_steps is {num_steps} after {taken} steps, expected at most "
                f"{self.privacy.steps - taken} of the {self.privacy.steps} planned",
                "plan more steps: fedvi.privacy.sgd(steps=…)",
            )
        state = init_state
        if state is None:
            state = self.init(rng_key, *args, init_params=init_params, **kwargs)
        columns = [jnp.asarray(column) for column in self._columns(args, kwargs)]
        self._use(state)
        # The first scan would donate, and so delete, the caller's own state.
        state = jax.tree.map(jnp.copy, state)
        together = min(self._together(state, columns, stable_update), num_steps)
        # At most two sizes are compiled.
        chunk = max(num_steps // _BAR_MOVES, together) if progress_bar else num_steps
        losses = []
        with tqdm.tqdm(total=num_steps, disable=not progress_bar) as bar:
            for first in range(0, num_steps, chunk):
                count = min(chunk, num_steps - first)
                state, some = self._scan(state, columns, count, together, stable_update)
                losses.append(jax.block_until_ready(some))
                bar.update(count)
                if self._loss_bound is not None and progress_bar:
                    bar.set_postfix_str(f"loss of the last {count}: {float(some.mean()):.4f}")
        params = self.get_params(state)
        # Where a run has left the floats, its steps see no record: at its end as well as anywhere.
        self._judge(params, rng_key, columns, self._lost)
        return DPSVIRunResult.of(self, params, state, jnp.concatenate(losses))

    def noise_aware(self, svi_state: DPSVIState) -> NoiseAware:
        """Returns a Gaussian posterior of the latents that accounts for the noise of all steps so far.

        For models like a regression. It regresses the released gradients on the public points where they
        were taken, which gives the gradient and curvature of the log likelihood with their uncertainty
        (``response.told``). Marginals include the correlations that a mean-field guide leaves out. The
        effect of clipping shows in no release, and so in no interval: use a clip norm that few gradients
        exceed.

        Guarantee: it is a function of what the steps released and of what is public, and costs nothing.
        Proof: docs/proofs/descent_noise.md.

        Args:
          svi_state: from ``update`` or ``run`` (or ``result.state``).

        Raises:
          SolverError: there is no honest interval; the message gives the reason: a guide that is not an
            automatic Gaussian, records with latents of their own, learnt parameters, more than 256 latents,
            gradients that are rescaled or clipped with the prior, a network, a product of latents or a
            mixture, too few steps, a log likelihood or a prior that is not concave.
          PrivacyError: under a JAX transformation.
        """
        random.refuse_a_trace("intervals were asked for", "ask for them after the run")
        found, latents = self._taken_apart, self._latents_told
        self._check(svi_state)
        if self._unlike is None and isinstance(latents, Latents):
            self._unlike = noise_told.unlike_a_regression(found, latents)
        reason = latents if isinstance(latents, str) else self._unlike
        if reason or isinstance(latents, str):
            raise errors.SolverError(str(reason))
        plan, density = self.privacy, functools.partial(latents.log_prior, found)
        noise = plan.mechanism.noise_multiplier
        sd = plan.clip_norm * noise / plan.sampler.rate if noise else 0.0
        slope, bend = jax.jit(jax.grad(density)), jax.jit(jax.hessian(density))

        def prior(at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            there = jnp.asarray(at, float)
            return np.asarray(slope(there)), -np.asarray(bend(there))

        return NoiseAware(latents, response.told(svi_state.seen, sd, prior))

    def evaluate(self, svi_state: DPSVIState, *args: Any, **kwargs: Any) -> Private:
        """Returns the loss on the given records, as ``SVI`` computes it, wrapped as ``Private``.

        ``.reveal()`` returns the number, for public records or for your own eyes. Under ``jit``, call it
        inside, ``jax.jit(lambda state, x, y: svi.evaluate(state, x, y).reveal())``: a ``Private`` is not an
        array, so a compiled function cannot return it.
        """
        return Private(super().evaluate(svi_state, *args, **kwargs))

    def _judge(
        self, constrained: Any, key: Any, columns: list[Any], lost_before: int | None = None
    ) -> int:
        """Looks for records that are lost at the start, or the end, of a run; see `judge_records`."""
        finite = self._finite(constrained, key, [jnp.asarray(column) for column in columns])
        protected = self.privacy.protected
        return judge_records(
            self._taken_apart, constrained, key, columns, finite, protected, lost_before
        )

    def _check(self, state: Any) -> None:
        """Rejects a state whose structure or shapes differ from those of this object's states."""
        found, expected = jax.tree.map(_shape, state), self._state_like
        if type(state) is not DPSVIState or found != expected:
            differs = next(
                (f"{one}, expected {other}" for one, other in _leaves(found, expected)),
                f"{jax.tree.structure(state)}, expected {jax.tree.structure(expected)}",
            )
            raise errors.SolverError(
                f"the state is not one of this fit: {differs}",
                "pass what `init`, `update` or `run` of this very object returned; another optimiser, "
                "model or table has other states",
            )

    def _use(self, state: DPSVIState) -> None:
        """Rejects a used state: the same noise on other records would cancel in the difference."""
        random.refuse_a_trace(
            "a state was used that is a constant of the function, and its noise with it",
            "pass the state as an argument of the function that is transformed",
        )
        key = jax.random.key_data(ratchet.next_key(state.noise_key, state.step))
        self._used.use(np.asarray(key), np.asarray(state.fit), int(state.step))

    def _charged(self, params: Any, constrained: Any, key: Any, columns: list[Any]) -> int:
        if self._runs is None:
            numbers = self._numbers(params, constrained, key)
            self.privacy = self.privacy.fitted(numbers)
        self._check_rows(params, key, columns)
        if self._runs is None:
            self._runs = self.privacy.open_runs(numbers)
        return self._runs.charge(
            "init",
            "each run is paid for: plan them with fedvi.privacy.sgd(runs=…), or continue one "
            "with run(…, init_state=result.state)",
        )

    def _check_rows(self, params: Any, key: Any, columns: list[Any]) -> None:
        """Checks the compiler, and once the step that is compiled for these parameters and columns."""
        if not self.privacy.protected:
            return
        compiler.check()
        kind = (
            str(jax.tree.map(_shape, (params, columns))),
            str([getattr(column, "sharding", "") for column in columns]),
            str(jax.config.jax_default_matmul_precision),  # type: ignore[attr-defined]
            is_wide(),
            str(devices()),
        )
        if kind not in self._checked:
            self._finding = self._steps.checked(_moved(params), key, columns)
            self._checked.add(kind)

    def _numbers(self, params: Any, constrained: Any, key: Any) -> int:
        """Counts the numbers that a step releases."""
        if self._is_aligned:
            params = self._steps.latents(constrained, key)
        return size_of(params) + (self._loss_bound is not None)

    def _columns(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        at, known = layout(args, kwargs), self._taken_apart.layout
        if (at.tree, at.columns, at.rows) != (known.tree, known.columns, known.rows):
            raise errors.ModelError(
                f"the arguments are {at.describe()} with {at.rows} rows, expected those of `init`: "
                f"{known.describe()} with {known.rows} rows",
                "pass the whole table at every call: batches are drawn inside",
            )
        for new, old in zip(at.rest, known.rest, strict=True):
            if new is not old and not np.array_equal(new, old):
                raise errors.ModelError(
                    f"an argument that holds no records is {new!r}, expected {old!r} as at `init`",
                    "it must stay the same, and under jit be a constant instead of an argument: "
                    "jax.jit(lambda state, x, y: svi.update(state, x, y, beta=0.5)), or a keyword of "
                    "DPSVI itself",
                )
        return at.take(args, kwargs)

    @property
    def _taken_apart(self) -> Guided:
        if self._guided is None:
            raise errors.SolverError(
                "there is nothing to go on with before `init`",
                "state = svi.init(key, x, y); an object goes on with its own states only",
            )
        return self._guided

    def _updated(
        self, state: DPSVIState, stable: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[DPSVIState, jax.Array]:
        self._check_owner()
        columns = [jnp.asarray(column) for column in self._columns(args, kwargs)]
        self._check(state)
        take = functools.partial(self._step, state, columns, stable)
        if isinstance(state.step, jax.core.Tracer):
            if not self.privacy.protected:
                return take()
            return self._used.guarded(state, columns, self.privacy.steps, take)
        if int(state.step) >= self.privacy.steps:
            raise errors.BudgetExceeded(
                f"all {self.privacy.steps} planned steps were taken",
                "plan more steps: fedvi.privacy.sgd(steps=…)",
            )
        self._use(state)
        return take()

    @property
    def _steps(self) -> Steps:
        """The steps of this fit as pure functions."""
        return Steps(
            guided=self._taken_apart,
            guide=self.guide,
            optim=self.optim,
            constrain_fn=self.constrain_fn,
            plan=self.privacy,
            clip=self._clip,
            clipping=self._clipping,
            aligned=self._is_aligned,
            loss_bound=self._loss_bound,
            microbatch_size=self._microbatch_size,
            transforms=self._transforms,
            latents_told=self._latents_told,
            like=self._like,
        )

    def _known_steps(self, state: DPSVIState, columns: list[Any]) -> Steps:
        """``_steps`` with the shapes of what a step releases, which are traced once for all programs."""
        if self._like is None:
            self._like = self._steps.like_total(state, columns)
        return self._steps

    def _together(self, state: DPSVIState, columns: list[Any], stable: bool) -> int:
        """Splits a step into what can be drawn ahead and the rest; returns for how many steps to draw."""
        steps = self._known_steps(state, columns)
        if stable not in self._parted:
            self._parted[stable] = steps.parted(state, columns, stable)
        numbers = self.privacy.sampler.capacity, size_of(self._like), self._parted[stable].size
        return min(max(_DRAWN_TOGETHER // max(numbers), 1), _MOST_TOGETHER)

    def _one_step(
        self, state: DPSVIState, columns: list[Any], stable: bool
    ) -> tuple[DPSVIState, jax.Array]:
        return self._known_steps(state, columns).one(state, columns, stable)

    def _many_steps(self, state: Any, columns: Any, count: int, together: int, stable: bool) -> Any:
        return self._steps.many(state, columns, count, together, self._parted[stable])

    def _nothing_seen(self) -> Any:
        latents = self._latents_told
        return None if isinstance(latents, str) else response.nothing(latents.size)


def _moved(params: Any) -> Any:
    """Returns a public point near the initial parameters, where few entries of a gradient are zero."""
    random = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: leaf + jnp.asarray(0.1 * random.normal(size=leaf.shape), leaf.dtype), params
    )


def _shape(leaf: Any) -> tuple[Any, str]:
    return jnp.shape(leaf), str(jnp.result_type(leaf))


def _leaves(found: Any, expected: Any) -> Iterator[tuple[str, str]]:
    """Yields differences between two states' shapes, if their structures are the same."""
    pairs = [jax.tree.flatten_with_path(tree, is_leaf=_is_shape) for tree in (found, expected)]
    if str(pairs[0][1]) != str(pairs[1][1]):
        return
    for (path, one), (_, other) in zip(pairs[0][0], pairs[1][0], strict=True):
        if one != other:
            name = jax.tree_util.keystr(path)
            yield f"{name} is {one[1]}{list(one[0])}", f"{other[1]}{list(other[0])}"


def _is_shape(node: Any) -> bool:
    return isinstance(node, tuple) and len(node) == 2 and isinstance(node[1], str)
