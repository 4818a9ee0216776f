"""Natural parameters, which clients and server exchange; a new family is one new file listed here."""

from fedvi.expfam.beta import beta
from fedvi.expfam.dirichlet import dirichlet
from fedvi.expfam.gamma import gamma
from fedvi.expfam.gaussian import diagonal_gaussian, full_gaussian
from fedvi.expfam.low_rank_gaussian import low_rank_gaussian
from fedvi.expfam.normal_gamma import normal_gamma
from fedvi.expfam.product import product

__all__ = [
    "beta",
    "diagonal_gaussian",
    "dirichlet",
    "full_gaussian",
    "gamma",
    "low_rank_gaussian",
    "normal_gamma",
    "product",
]
