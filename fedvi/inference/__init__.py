"""How one party improves a posterior: each file is one local solver, named by `solver.kind`."""

from fedvi.inference.dp_optimisation import dp_optimisation
from fedvi.inference.exact import exact
from fedvi.inference.glm import glm
from fedvi.inference.gradient import gradient

__all__ = ["dp_optimisation", "exact", "glm", "gradient"]
