"""The steps of `DPSVI` as pure functions: a state and a table in, the next state and its loss out."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedvi import errors
from fedvi.inference import noise_told, per_record, presample, ratchet, response
from fedvi.inference.clipping import Parts, clipped, longest_part, loss_unit
from fedvi.inference.noise_told import Latents
from fedvi.inference.per_record import Records
from fedvi.models.guided_terms import Guided
from fedvi.models.plates import numpyro_rules
from fedvi.privacy.base import Batch
from fedvi.privacy.bounded import Bounded
from fedvi.privacy.descent import Descent
from fedvi.privacy.release import Noise, Released, decoded, drawn_ahead, post_process, release_with
from fedvi.typing import Key

__all__ = ["DPSVIState", "Steps", "size_of"]

# Of more numbers than these, the gradients of a batch are formed one microbatch after the other.
_FORMED_TOGETHER = 2**26


class DPSVIState(NamedTuple):
    """As NumPyro's ``SVIState``, and what says which noise comes next.

    Attributes:
      optim_state: the optimiser's.
      mutable_state: None; modules with running statistics are refused.
      rng_key: of the draws of the guide, which are public.
      step: how many steps were taken, int32.
      noise_key: keys of all noise and batches to come, secret until the last step. They do not tell
        what went before, so that whoever finds a state cannot take the noise off what was released;
        the `DPSVI` itself can make them all again, and is not to be kept.
      fit: a number of the `DPSVI` that it belongs to, which was charged for it; uint32 [2].
      seen: sums over the steps of what was released, for ``DPSVI.noise_aware``; None where there are no
        intervals that could be told the noise.
    """

    optim_state: Any
    mutable_state: None
    rng_key: Any
    step: Any
    noise_key: Any
    fit: Any
    seen: Any = None

    def __repr__(self) -> str:
        """Tells the step alone: keys of the noise to come are secret, and arrays are long."""
        return f"{type(self).__name__}(step={self.step}, …)"


@dataclasses.dataclass(frozen=True)
class Steps:
    """What a step follows from beside its state and the table; all of it is public.

    A step sees records only through ``release_with(…, bounded(…))``; see ``DPSVI`` for what that promises.

    Attributes:
      guided: the model and its guide, taken apart by the record plate.
      guide, optim, constrain_fn: as of ``SVI``.
      plan: what a step releases, and at what price.
      clip, clipping, loss_bound, microbatch_size: as of ``DPSVI``.
      aligned: whether gradients are for the global latents alone.
      transforms: latent → from its unconstrained value.
      latents_told: the latents whose intervals can be told the noise, or why there are none.
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
        """Parts a step into what follows from its key alone, and the rest."""
        drawn = jax.eval_shape(lambda key: self.drawn(key, columns), state.noise_key[0])

        def step(key: Any, optim_state: Any, columns: Any, drawn: Any) -> Any:
            return self.next(optim_state, key, columns, stable, *drawn)

        return presample.split(step, state.rng_key, state.optim_state, columns, drawn)

    def many(
        self, state: Any, columns: Any, count: int, together: int, parted: presample.Split
    ) -> tuple[DPSVIState, jax.Array]:
        """Takes steps that are left, drawing all that is random about several of them together."""

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

        # One size alone is compiled if there is one that goes in evenly.
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
        # An overwritten key, of a state whose step was set back, is known to anybody.
        is_left = (state.step < self.plan.steps) & jax.random.key_data(secrets[0]).any()
        return _where(is_left, new, state), jnp.where(is_left, loss, jnp.nan)

    def drawn(self, secret: Key, columns: list[Any]) -> tuple[Batch, Any, Noise]:
        """Draws all that is random about a step but the guide: batch, places, and noise.

        A place is what tells the draws of a record's own latents from those of the others. Were it the
        row, a record that leaves would change the draws of all after it: so places are independent
        secret words, which say nothing of who else is there. Coupled with the records in the proof, they
        leave every other record its draws.
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
        # As many slots as were declared: of how many records there are, no size may tell. Behind the
        # barrier it is a number of the mask, and no constant that a program could be compiled with.
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
        """Takes one step, whether or not one is left: that, and the next keys, is for the caller.

        Returns the optimiser's state, and beside it the loss and what was seen of θ.
        """
        params = self.optim.get_params(optim_state)
        released = self.released(params, step_key, columns, batch, places, noise)

        def climb(found: tuple[Any, jax.Array, Any]) -> tuple[Any, tuple[jax.Array, Any]]:
            gradient, loss, told = found
            # The value is for optimisers of optax that ask for one; NaN if it is not released.
            moved = self.optim.update(gradient, optim_state, value=loss)
            if not stable:
                return moved, (loss, told)
            finite = functools.reduce(
                jnp.logical_and, [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(moved)]
            )
            return _where(finite, moved, optim_state), (loss, told)

        # What leaves is the value of a Released whose event was charged by `init`.
        return post_process(climb, released).value

    def bounded(
        self, params: Any, step_key: Any, columns: list[Any], batch: Batch, places: Any
    ) -> Bounded:
        """Returns the clipped sum of the gradients of a batch."""
        plan = self.plan
        parts = self._parts(params, step_key, columns, batch.indices, places)
        return clipped(parts, plan.clip_norm, self.clipping, batch, plan.mechanism, self.loss_bound)

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
            # Only where all gradients, formed, are too many is it worth a look at which are.
            few = rows * size_of(at) <= _FORMED_TOGETHER
            size = rows if few else _fitting(gradients, indices, places)
        size = min(size, longest_part(rows)) if size < rows else rows
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
        """Returns the noised gradient of the loss with respect to the parameters, the loss, and what is
        told of θ: a public place and the noised gradient of the log likelihood there."""
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
            # The gradient is the mean over draws; where it is linear, that at their mean.
            keys = jax.random.split(step_key, found.particles)
            draws = jax.vmap(lambda key: latents.flat(self.latents(constrained, key)))(keys)
            place = draws.mean(axis=0)
        if self.aligned:
            return place, -latents.flat(mean)
        return place, -noise_told.locations(self.guide, latents, mean)

    @property
    def records(self) -> int:
        """How many records there may be, declared."""
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
    """Returns how many records' gradients may be formed at a time; all rows if that is not many numbers."""
    formed: list[int] = []

    def look(indices: Any, places: Any) -> None:
        records = gradients(indices, places)
        formed.append(max(records.size - records.spared, 1))

    jax.eval_shape(look, indices, places)
    return min(max(_FORMED_TOGETHER // formed[0], 1), indices.shape[0])


def _taken(column: Any, indices: Any) -> Any:
    """Returns rows of a table for the slots of a batch; slots beyond the table, which do not count, repeat
    its last row.

    The table's length ends here: behind the barrier nothing can be compiled together with it, so that a
    record's gradient is computed by the same program however many there are.
    """
    return jax.lax.optimization_barrier(column.at[indices].get(mode="clip"))


def _split(key: Any, _: None) -> tuple[Any, Any]:
    """Returns the key of the steps to come and that of a step, as NumPyro's ``SVI`` splits it."""
    keys = jax.random.split(key)
    return keys[0], keys[1]


def _seen(state: DPSVIState, told: Any) -> Any:
    """Adds what steps told to the sums of a state."""
    return None if told is None else response.added(state.seen, state.step, *told)


def size_of(tree: Any) -> int:
    """Returns how many numbers a tree of arrays holds."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _where(condition: Any, new: Any, old: Any) -> Any:
    return jax.tree.map(functools.partial(jnp.where, condition), new, old)
