"""The local solvers, one a file, each named after its `solver.kind`."""

from fedvi.inference.solvers.dp_optimisation import dp_optimisation
from fedvi.inference.solvers.exact import exact
from fedvi.inference.solvers.glm import glm
from fedvi.inference.solvers.gradient import gradient
from fedvi.inference.solvers.local_averaging import local_averaging
from fedvi.inference.solvers.perturbed_update import perturbed_update
from fedvi.inference.solvers.site_release import site_release
from fedvi.inference.solvers.vips import vips
from fedvi.inference.solvers.virtual_clients import virtual_clients

__all__ = [
    "dp_optimisation",
    "exact",
    "glm",
    "gradient",
    "local_averaging",
    "perturbed_update",
    "site_release",
    "vips",
    "virtual_clients",
]
