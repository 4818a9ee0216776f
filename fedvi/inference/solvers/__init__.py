"""The local solvers: each file is one, named by `solver.kind`."""

from fedvi.inference.solvers.dp_optimisation import dp_optimisation
from fedvi.inference.solvers.exact import exact
from fedvi.inference.solvers.glm import glm
from fedvi.inference.solvers.gradient import gradient

__all__ = ["dp_optimisation", "exact", "glm", "gradient"]
