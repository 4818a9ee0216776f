"""Rejects optimisers, arguments, mutable state and modes of differentiation that `DPSVI` does not take."""

import operator
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import optim as optimisers

from fedvi import errors
from fedvi.models.guided_terms import Guided

__all__ = [
    "OUTSIDE",
    "check_gradients_serve",
    "check_key",
    "check_mode",
    "check_mutable",
    "check_optimiser",
    "checked_steps",
    "finite_records",
    "judge_records",
    "not_set_up",
    "not_started",
]

# At how many draws of the guide records are looked at, and how many rows at a time.
_DRAWS, _TOGETHER = 4, 1024
# With more parameters, gradients of so many rows would take more memory and time than a step.
_FEW = 2**14

# What to do where `init` is under a JAX transformation.
OUTSIDE = (
    "call `init` outside, pass its state in, and take steps by `update`; each start is a run of its own: "
    "fedvi.privacy.sgd(runs=…)"
)

# What Python says of a call whose arguments are not those of the function.
_WRONG_CALL = re.compile(
    r"\(\) (got an unexpected|got multiple|got some positional|missing|takes) "
)


def check_optimiser(optim: Any) -> None:
    if isinstance(optim, optimisers.Minimize):
        raise errors.ConfigError(
            "optim is Minimize, which steps by the value of the loss: that is not released",
            "use one that needs gradients alone, such as numpyro.optim.Adam",
        )


def check_gradients_serve(optim: Any, optim_state: Any, params: Any) -> None:
    """Rejects an optimiser that needs more than the gradient, before its first step would fail."""
    try:
        # A step is compiled, so the state is an argument here, too.
        jax.eval_shape(optim.get_params, optim_state)
    except TypeError as error:
        raise errors.ConfigError(
            f"optim cannot be compiled by JAX: {str(error).splitlines()[0]}",
            "use another one, such as numpyro.optim.Adam or optax.adam",
        ) from error
    try:
        jax.eval_shape(lambda: optim.update(params, optim_state, value=jnp.zeros(())))
    except TypeError as error:
        raise errors.ConfigError(
            f"optim cannot take a step with a gradient alone: {error}",
            "line searches evaluate the loss on records again, which is not released; use one that "
            "needs gradients alone, such as optax.adam",
        ) from error


def check_mode(forward: Any) -> None:
    if forward:
        raise errors.ConfigError(
            f"forward_mode_differentiation is {forward!r}, expected False",
            "the gradient of each record is taken in reverse; use jax.lax.scan in the model in place "
            "of while_loop",
        )


def check_mutable(mutable: Any) -> None:
    if mutable:
        raise errors.ModelError(
            f"mutable state in {', '.join(mutable)} would carry records from step to step without "
            "noise",
            "use layers without running statistics: LayerNorm or GroupNorm, no BatchNorm",
        )


def finite_records(found: Guided, params: Any, key: Any, columns: list[Any]) -> Any:
    """Returns whether each record's term, and its gradient, are finite at draws of the guide; bool [rows].

    The answer follows from the records. Of more than 16,384 parameters only terms are looked at.

    Args:
      params: constrained, and released or public.
      columns: of the table.
    """
    keys = jax.random.split(key, _DRAWS)
    few = sum(np.size(leaf) for leaf in jax.tree.leaves(params)) <= _FEW

    def is_finite(row: list[Any]) -> Any:
        def at(key: Any) -> Any:
            def term(params: Any) -> Any:
                return found.record_term(params, key, row, 0)

            # In reverse, as a step takes it: 0 · ∞ behind a `where` is NaN there alone.
            told = jax.value_and_grad(term)(params) if few else term(params)
            return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(told)]).all()

        return jax.vmap(at)(keys).all()

    return jax.lax.map(is_finite, columns, batch_size=_TOGETHER)


def judge_records(
    found: Guided,
    params: Any,
    key: Any,
    columns: list[Any],
    finite: Any,
    protected: bool,
    lost_before: int | None = None,
) -> int:
    """Says which records are lost: as an error where nothing is promised, else on the holder's own screen.

    No error or warning may follow from the records of a fit with a promise, so that it prints a line.

    Args:
      params, key: those of ``finite_records``.
      columns: as they were passed.
      finite: from ``finite_records``.
      protected: whether the fit has a promise.
      lost_before: at the end of a run, how many were lost at its start: told are more. None at the start.

    Returns:
      how many are lost; private to the holder.

    Raises:
      DataError: at the start of a fit that has no promise, a record is lost or a column is narrowed.
    """
    told = []
    narrowed = found.layout.narrowed(columns)
    if narrowed:
        told.append(
            f"{' and '.join(narrowed)} holds numbers that 32 bits do not hold: the model sees others"
        )
    lost, when = np.flatnonzero(~np.asarray(finite)), "start" if lost_before is None else "end"
    if len(lost) > (lost_before or 0):
        first = [jnp.asarray(column[lost[0] : lost[0] + 1]) for column in columns]
        outside = found.unsupported(params, key, first)
        why = (
            ", ".join(
                f"{name!r} is outside of the support of {kind}" for name, kind in outside.items()
            )
            or "the log density or its gradient overflows or is not a number"
        )
        told.append(
            f"{len(lost):,} of {len(finite):,} records are not finite at the {when} and count as zero; "
            f"in row {lost[0]} {why}"
        )
    if told and (protected or when == "end"):
        # Without a promise, too: an error at the end would lose the run.
        sys.stderr.write(f"Private, for the holder of the records alone: {'; '.join(told)}.\n")
    if protected or when == "end" or not told:
        return len(lost)
    raise errors.DataError(
        "; ".join(told),
        "number levels from 0 and label two classes 0 and 1; subtract a public origin in 64 bits and scale "
        "columns to about 1; hide missing outcomes by numpyro.handlers.mask",
    )


def check_key(rng_key: Any) -> None:
    """Rejects what is not one key of JAX."""
    expected = False
    # Records may stand in its place, and are not printed.
    found = repr(rng_key) if isinstance(rng_key, int) else f"a {type(rng_key).__name__}"
    if isinstance(rng_key, jax.Array | np.ndarray | np.generic):
        is_new = jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key)
        expected = rng_key.ndim == (0 if is_new else 1) and (is_new or rng_key.dtype == jnp.uint32)
        found = f"{rng_key.dtype}{list(rng_key.shape)}"
    if not expected:
        raise errors.ConfigError(
            f"rng_key is {found}, expected one key",
            "make it with jax.random.key(0), or take one of those that jax.random.split returns",
        )


def checked_steps(num_steps: Any) -> int:
    """Returns ``num_steps`` if it is a positive integer."""
    try:
        steps = operator.index(num_steps)
    except TypeError as error:
        # Records may stand in its place, and are not printed.
        told = repr(num_steps) if isinstance(num_steps, float) else f"a {type(num_steps).__name__}"
        raise errors.ConfigError(
            f"num_steps is {told}, expected an integer",
            "the order is that of numpyro's SVI: svi.run(rng_key, num_steps, x, y)",
        ) from error
    if steps < 1:
        raise errors.ConfigError(f"num_steps is {steps}, expected at least 1")
    return steps


def not_started(*_: Any) -> Any:
    """Stands for the map to constrained parameters, which is known from `init` on."""
    raise errors.SolverError(
        "there are no parameters before `init`",
        "call `init` or `run`; an object goes on with its own states only",
    )


def not_set_up(error: Exception) -> errors.ModelError:
    """Returns the error for a model and a guide that failed on a made-up record, with a way out."""
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, ImportError) and "discrete" in said:
        return errors.ModelError(
            "a latent of the model is discrete, expected continuous latents",
            "sum it out of the likelihood, for example with MixtureSameFamily; an outcome that is not "
            "passed is a latent, too",
        )
    hint = (
        "they are called with one record of ones, 0 for integers; terms outside of the record "
        "plate must be finite there, and no shape may be fixed to the size of the data set"
    )
    if isinstance(error, TypeError) and _WRONG_CALL.search(said):
        hint = (
            "both are called with the arguments that follow the key, in `run` the key and the number of "
            "steps, and with those keywords of DPSVI that are none of its options"
        )
    return errors.ModelError(f"model and guide cannot be set up on a made-up record: {said}", hint)
