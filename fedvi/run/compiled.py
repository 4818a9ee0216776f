"""Compiled programs, kept on disk for the next process."""

import os
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache as jax_cache

__all__ = ["compilation_cache"]


def compilation_cache(folder: str | os.PathLike[str] | None = None) -> Path:
    """Lets JAX keep what it compiles, so that a later process which fits the same model starts at once.

    What is kept are programs, with the constants of model and guide: shapes, prior scales, arrays given to
    ``DPSVI`` as keywords. Records are arguments of these programs and are not in them, nor are keys:
    ``DPSVI`` refuses to draw any where they would be compiled in. Models that close over records keep them
    in memory and here; pass records as arguments.

    Args:
      folder: where; left out, ``fedvi/jax`` in the user's folder of caches. Nobody else may read it.

    Returns:
      The folder.

    Raises:
      OSError: it cannot be made.
    """
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    chosen = Path(caches, "fedvi", "jax") if folder is None else Path(folder)
    chosen.mkdir(mode=0o700, parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(chosen))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    # What was compiled before has fixed that there is no cache.
    jax_cache.reset_cache()
    return chosen
