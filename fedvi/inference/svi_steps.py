"""The steps of `DPSVI` as pure functions from a state and a table to the next state and its loss."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedvi import errors
from fedvi.inference import noise_told, per_record, presample, ratchet, response, rows_alike
from fedvi.inference.clipping import Parts, clipped, loss_unit
from fedvi.inference.noise_told import Latents
from fedvi.inference.per_record import Records
from fedvi.inference.rows_alike import Finding
from fedvi.models.guided_terms import Guided
from fedvi.models.plates import numpyro_rules
from fedvi.privacy.base import ROWS_TOGETHER, Batch
from fedvi.privacy.bounded import Bounded
from fedvi.privacy.descent import Descent
from fedvi.privacy.release import Noise, Released, decoded, drawn_ahead, post_process, release_with
from fedvi.typing import Key

__all__ = ["DPSVIState", "Steps", "size_of"]

# Above this many numbers, the gradients of a batch are formed one microbatch after the other.
_FORMED_TOGETHER = 2**26


class DPSVIState(NamedTuple):
    """NumPyro's ``SVIState``, with the keys of the noise to come.

    Attributes:
      optim_state: the optimiser's.
      mutable_state: None; modules with running statistics are rejected.
      rng_key: the key of the guide's draws, which are public.
      step: how many steps were taken, int32.
      noise_key: keys of all future noise and batches, secret until the last step. They do not reveal past
        keys, so a leaked state does not remove the noise from earlier releases. The `DPSVI` object can
        derive all keys again, so do not keep it.
      fit: identifies the `DPSVI` that was charged for this state; uint32 [2].
      seen: sums over the steps of what was released, for ``DPSVI.noise_aware``; None where there are no
        noise-aware intervals.
    """

    optim_state: Any
    mutable_state: None
    rng_key: Any
    step: Any
    noise_key: Any
    fit: Any
    seen: Any = None

    def __repr__(self) -> str:
        """Shows the step alone: keys of future noise are secret, and arrays are long."""
        return f"{type(self).__name__}(step={self.step}, …)"


@dataclasses.dataclass(frozen=True)
class Steps:
    """The public settings of a step, which a step needs besides its state and the table.

    A step sees records only through ``release_with(…, bounded(…))``; see ``DPSVI`` for the guarantee.

    Attributes:
      guided: the model and its guide, split by the record plate.
      guide, optim, constrain_fn: see ``SVI``.
      plan: what a step releases, and at what price.
      clip, clipping, loss_bound, microbatch_size: see ``DPSVI``.
      aligned: whether gradients are for the global latents alone.
      transforms: name of a latent → map from its unconstrained value.
      latents_told: the latents that can have noise-aware intervals, or the reason why there are none.
      like: shapes and dtypes of what a step releases, from ``like_total``; None before.
    """

    guided: Guided
    guide: Any
    optim: Any
    constrain_fn: Callable[[Any], Any]
    plan: Descent
    clip: str
    clipping: str
    aligned: bool
    loss_bound: float | None
    microbatch_size: int | None
    transforms: dict[str, Any]
    latents_told: Latents | str
    like: Any

    def like_total(self, state: DPSVIState, columns: list[Any]) -> Any:
        """Returns shapes and dtypes of what a step releases."""

        def total(key: Key, state: DPSVIState) -> Any:
            params, batch = self.optim.get_params(state.optim_state), self.batch(key, columns)
            places = self.places(key, columns)
            return self.bounded(params, state.rng_key, columns, batch, places).total

        return jax.eval_shape(total, state.noise_key[0], state)

    def parted(self, state: DPSVIState, columns: list[Any], stable: bool) -> presample.Split:
        """Splits a step into what follows from its key alone, and the rest."""
        drawn = jax.eval_shape(lambda key: self.drawn(key, columns), state.noise_key[0])

        def step(key: Any, optim_state: Any, columns: Any, drawn: Any) -> Any:
            return self.next(optim_state, key, columns, stable, *drawn)

        return presample.split(step, state.rng_key, state.optim_state, columns, drawn)

    def many(
        self, state: Any, columns: Any, count: int, together: int, parted: presample.Split
    ) -> tuple[DPSVIState, jax.Array]:
        """Takes ``count`` steps, drawing the random numbers of ``together`` of them at once."""

        def one(optim_state: Any, drawn: Any) -> Any:
            values, drawn = drawn
            return parted.after(values, optim_state, columns, drawn)

        def several(state: Any, number: int) -> tuple[Any, jax.Array]:
            noise_key, secrets = ratchet.taken(state.noise_key, state.step, number)
            rng_key, keys = jax.lax.scan(_split, state.rng_key, None, length=number)
            drawn = jax.vmap(lambda secret: self.drawn(secret, columns))(secrets)
            optim_state, (losses, told) = jax.lax.scan(
                one, state.optim_state, (jax.vmap(parted.ahead)(keys), drawn)
            )
            step, seen = state.step + number, _seen(state, told)
            return DPSVIState(optim_state, None, rng_key, step, noise_key, state.fit, seen), losses

        # A size that divides the count evenly, if there is one, needs only one compilation.
        together = next((n for n in range(together, together // 4, -1) if count % n == 0), together)
        whole, rest = divmod(count, together)
        if whole == 1:
            state, losses = several(state, together)
        else:
            state, losses = jax.lax.scan(
                lambda state, _: several(state, together), state, None, length=whole
            )
        if not rest:
            return state, losses.reshape(-1)
        state, last = several(state, rest)
        return state, jnp.concatenate([losses.reshape(-1), last])

    def one(
        self, state: DPSVIState, columns: list[Any], stable: bool
    ) -> tuple[DPSVIState, jax.Array]:
        """Takes one step if one is left; returns the state and the loss."""
        noise_key, secrets = ratchet.taken(state.noise_key, state.step, 1)
        rng_key, key = _split(state.rng_key, None)
        drawn = self.drawn(secrets[0], columns)
        optim_state, (loss, told) = self.next(state.optim_state, key, columns, stable, *drawn)
        seen = _seen(state, jax.tree.map(lambda part: part[None], told))
        new = DPSVIState(optim_state, None, rng_key, state.step + 1, noise_key, state.fit, seen)
        # A state whose step was set back has an overwritten key, which is public: take no step.
        is_left = (state.step < self.plan.steps) & jax.random.key_data(secrets[0]).any()
        return _where(is_left, new, state), jnp.where(is_left, loss, jnp.nan)

    def drawn(self, secret: Key, columns: list[Any]) -> tuple[Batch, Any, Noise]:
        """Draws everything random in a step except the guide: batch, places, and noise.

        A place seeds the draws of a record's own latents. If it were the row number, removing a record
        would change the draws of all records after it. So places are independent secret words, which do
        not depend on other records. The proof couples places with records, so that every other record
        keeps its draws.
        """
        plan, keys = self.plan, jax.random.split(secret, 3)
        noise = drawn_ahead(keys[1], self.like, plan.clip_norm, plan.mechanism)
        return self.batch(keys[0], columns), self.places(keys[2], columns), noise

    def places(self, key: Key, columns: list[Any]) -> Any:
        """Returns a secret word for each slot, or zeros where no record has latents of its own."""
        rows = jax.eval_shape(lambda: self.batch(key, columns)).mask.shape
        if not self.guided.has_local:
            return jnp.zeros(rows, jnp.uint32)
        return jax.random.bits(key, rows, jnp.uint32)

    def batch(self, key: Key, columns: list[Any]) -> Batch:
        """Draws which records a step sees."""
        # As many slots as declared: no size may reveal the number of records. Behind the barrier that
        # number is data of the mask, not a constant that could be compiled into a program.
        slots = jnp.arange(self.records, dtype=jnp.int32)
        valid = jax.lax.optimization_barrier(slots < columns[0].shape[0])
        return self.plan.sampler.draw(key, valid)

    def next(
        self,
        optim_state: Any,
        step_key: Any,
        columns: list[Any],
        stable: bool,
        batch: Batch,
        places: Any,
        noise: Noise,
    ) -> tuple[Any, tuple[jax.Array, Any]]:
        """Takes one step; the caller checks that one is left, and advances the keys.

        Returns the optimiser's state, and (the loss, what was seen of θ).
        """
        params = self.optim.get_params(optim_state)
        released = self.released(params, step_key, columns, batch, places, noise)

        def climb(found: tuple[Any, jax.Array, Any]) -> tuple[Any, tuple[jax.Array, Any]]:
            gradient, loss, told = found
            # Some optax optimisers take the value of the loss; NaN if it is not released.
            moved = self.optim.update(gradient, optim_state, value=loss)
            if not stable:
                return moved, (loss, told)
            finite = functools.reduce(
                jnp.logical_and, [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(moved)]
            )
            return _where(finite, moved, optim_state), (loss, told)

        # The value may leave: `init` charged the event of its Released.
        return post_process(climb, released).value

    def bounded(
        self, params: Any, step_key: Any, columns: list[Any], batch: Batch, places: Any
    ) -> Bounded:
        """Returns the clipped sum of the gradients of a batch.

        Barriers keep what is compiled here apart from the rest of a step, so that ``checked`` checks what
        a step runs.
        """
        plan = self.plan
        params = jax.tree.map(jax.lax.optimization_barrier, params)
        parts = self._parts(params, step_key, columns, batch.indices, places)
        found = clipped(
            parts, plan.clip_norm, self.clipping, batch, plan.mechanism, self.loss_bound
        )
        total = jax.tree.map(jax.lax.optimization_barrier, found.total)
        return dataclasses.replace(found, total=total)

    def checked(self, params: Any, step_key: Any, columns: Sequence[Any]) -> Finding | None:
        """Checks ``bounded`` on made-up records, in the sizes of the real ones; see `rows_alike`.

        Args:
          params: as in ``bounded``, at a public point.
          step_key: public.
          columns: of the table; only their dtypes and shapes are read.

        Returns:
          what was found; None for noise in floating point, which has no guarantee.

        Raises:
          PrivacyError: as `rows_alike.check`.
        """
        plan, grid = self.plan, self.plan.mechanism.grid(self.plan.clip_norm)
        if grid is None:
            return None
        shapes = [jax.ShapeDtypeStruct(c.shape[1:], jnp.asarray(c[:0]).dtype) for c in columns]
        made_up = rows_alike.catalogue(shapes)
        table = [jnp.asarray(column) for column in made_up.columns]
        words = jax.random.bits(jax.random.key(1), (made_up.number,), jnp.uint32)
        drawn = jax.eval_shape(plan.sampler.draw, jax.random.key(0), jnp.ones(self.records, bool))
        rows = rows_alike.whole_groups(drawn.mask.shape[0], plan.sampler)

        def total(key: Any, params: Any, table: Any, batch: Batch, places: Any) -> Any:
            return self.bounded(params, key, table, batch, places).total

        like = jax.ShapeDtypeStruct((rows,), jnp.uint32)
        apart = presample.split(total, step_key, params, table, drawn, like)

        # As the steps of a run are: in a loop, and with what follows from their keys drawn ahead.
        @jax.jit
        def totals(params: Any, table: Any, words: Any, keys: Any, choices: Any, masks: Any) -> Any:
            def one(params: Any, step: Any) -> Any:
                ahead, choice, mask = step
                batch = Batch(choice.astype(drawn.indices.dtype), mask, plan.sampler)
                found = apart.after(ahead, params, table, batch, words[choice])
                # Never so large; but a compiler that does not know it computes each step by itself.
                large = jnp.stack([leaf.max() for leaf in jax.tree.leaves(found)]).max() > 2**30
                return jax.tree.map(lambda leaf: jnp.where(large, 0.0, leaf), params), found

            return jax.lax.scan(one, params, (jax.vmap(apart.ahead)(keys), choices, masks))[1]

        keys = jnp.stack([step_key] * 2)
        return rows_alike.check(
            lambda *pair: totals(params, table, words, keys, *pair),
            rows,
            made_up,
            math.sqrt(grid.bound),
            "the compiled step",
        )

    def _parts(
        self, params: Any, step_key: Any, columns: list[Any], indices: Any, places: Any
    ) -> Parts:
        """Returns the gradients of the records of a batch, by microbatches."""
        found = self.guided
        at = self.latents(self.constrain_fn(params), step_key) if self.aligned else params

        def record_loss(at: Any, row: list[Any], place: Any) -> Any:
            if self.aligned:
                return -found.record_term_at(self._constrained(at), step_key, row)
            constrained = self.constrain_fn(at)
            loss = -found.record_term(constrained, step_key, row, place)
            if self.clip == "elbo":
                loss = loss - found.public_term(constrained, step_key) / self.records
            return loss

        def gradients(indices: Any, places: Any) -> Records:
            rows = [_taken(column, indices) for column in columns]
            return per_record.gradients(record_loss, at, rows, places)

        rows = indices.shape[0]
        size = self.microbatch_size
        if size is None:
            # Tracing which gradients are formed is only worth it where all of them would be too many.
            few = rows * size_of(at) <= _FORMED_TOGETHER
            size = rows if few else _fitting(gradients, indices, places)
        size = _in_groups(size, rows)
        count = -(-rows // size)
        if count == 1:
            return Parts(lambda _: gradients(indices, places), 1, rows)
        filled = (0, count * size - rows)
        by_part = [jnp.pad(column, filled).reshape(count, size) for column in (indices, places)]
        return Parts(lambda part: gradients(*(column[part] for column in by_part)), count, size)

    def released(
        self,
        params: Any,
        step_key: Any,
        columns: list[Any],
        batch: Batch,
        places: Any,
        noise: Noise,
    ) -> Released:
        """Returns the noised gradient of the loss in the parameters, the loss, and what was seen of θ: a
        public point and the noised gradient of the log likelihood there."""
        plan, found = self.plan, self.guided
        bounded = self.bounded(params, step_key, columns, batch, places)
        released = decoded(release_with(noise, bounded))
        if released.event != plan.step and plan.protected:
            raise errors.PrivacyError(f"a step costs {released.event}, {plan.step} was charged")

        def public(params: Any) -> Any:
            return -found.public_term(self.constrain_fn(params), step_key)

        def whole(total: Any) -> tuple[Any, jax.Array, Any]:
            loss = jnp.asarray(jnp.nan)
            if self.loss_bound is not None:
                total, loss = total
                loss = loss * (self.loss_bound / loss_unit(plan.clip_norm) / plan.sampler.rate)
            # Divided by the public rate, never by the realised size of the batch.
            mean = jax.tree.map(lambda part: part / plan.sampler.rate, total)
            told = self._told(mean, params, step_key)
            if self.aligned:
                _, pull_back = jax.vjp(
                    lambda params: self.latents(self.constrain_fn(params), step_key), params
                )
                (mean,) = pull_back(mean)
            if self.clip == "elbo":
                return mean, loss, told
            value, exact = jax.value_and_grad(public)(params)
            return jax.tree.map(jnp.add, mean, exact), loss + value, told

        return post_process(whole, released)

    def _told(self, mean: Any, params: Any, step_key: Any) -> tuple[Any, Any] | None:
        """Returns the latents' draw and the log likelihood's noised gradient there, [D] both."""
        latents, found = self.latents_told, self.guided
        if isinstance(latents, str):
            return None
        constrained = self.constrain_fn(params)
        if found.particles == 1:
            place = latents.flat(self.latents(constrained, step_key))
        else:
            # The gradient is a mean over draws; where it is linear in θ, it is that at their mean.
            keys = jax.random.split(step_key, found.particles)
            draws = jax.vmap(lambda key: latents.flat(self.latents(constrained, key)))(keys)
            place = draws.mean(axis=0)
        if self.aligned:
            return place, -latents.flat(mean)
        return place, -noise_told.locations(self.guide, latents, mean)

    @property
    def records(self) -> int:
        """The declared upper bound on the number of records."""
        return int(getattr(self.plan.sampler, "max_records"))  # noqa: B009

    def latents(self, constrained: Any, key: Any) -> dict[str, Any]:
        """The guide's draw of the global latents, unconstrained."""
        values = self.guided.global_latents(constrained, key)
        with numpyro_rules():
            return {name: self.transforms[name].inv(value) for name, value in values.items()}

    def _constrained(self, latents: dict[str, Any]) -> dict[str, Any]:
        with numpyro_rules():
            return {name: self.transforms[name](value) for name, value in latents.items()}


def _fitting(gradients: Callable[..., Records], indices: Any, places: Any) -> int:
    """Returns how many records' gradients may be formed at a time; all rows if they fit."""
    formed: list[int] = []

    def look(indices: Any, places: Any) -> None:
        records = gradients(indices, places)
        formed.append(max(records.size - records.spared, 1))

    jax.eval_shape(look, indices, places)
    most = max(_FORMED_TOGETHER // formed[0], 1)
    # Rounded down to whole groups; a group may take four times as much before rows are taken one by one.
    return most // ROWS_TOGETHER * ROWS_TOGETHER or (
        ROWS_TOGETHER if 4 * most >= ROWS_TOGETHER else 1
    )


def _in_groups(size: int, rows: int) -> int:
    """Returns about ``size`` rows: one, whole groups as in a batch (``privacy.base.filled``), or all."""
    if size == 1 or size >= rows:
        return min(size, rows)
    return min(-(-size // ROWS_TOGETHER) * ROWS_TOGETHER, rows)


def _taken(column: Any, indices: Any) -> Any:
    """Returns rows of a table for the slots of a batch; masked slots beyond the table repeat its last row.

    The barrier keeps the table's length out of the code compiled after it, so that a record's gradient is
    computed by the same program whatever the number of records.
    """
    return jax.lax.optimization_barrier(column.at[indices].get(mode="clip"))


def _split(key: Any, _: None) -> tuple[Any, Any]:
    """Returns the key of later steps and the key of this step, split as NumPyro's ``SVI`` does."""
    keys = jax.random.split(key)
    return keys[0], keys[1]


def _seen(state: DPSVIState, told: Any) -> Any:
    """Adds points and gradients of steps to the sums of a state."""
    return None if told is None else response.added(state.seen, state.step, *told)


def size_of(tree: Any) -> int:
    """Returns how many numbers a tree of arrays holds."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _where(condition: Any, new: Any, old: Any) -> Any:
    return jax.tree.map(functools.partial(jnp.where, condition), new, old)
