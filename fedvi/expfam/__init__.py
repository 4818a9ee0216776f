"""Exponential families in natural parameters, which clients and server exchange."""

from fedvi.expfam.beta import beta
from fedvi.expfam.dirichlet import dirichlet
from fedvi.expfam.dirichlets import dirichlets
from fedvi.expfam.gamma import gamma
from fedvi.expfam.gaussian import diagonal_gaussian, full_gaussian
from fedvi.expfam.gaussian_rows import gaussian_rows
from fedvi.expfam.low_rank_gaussian import low_rank_gaussian
from fedvi.expfam.normal_gamma import normal_gamma
from fedvi.expfam.normal_gamma_rows import normal_gamma_rows
from fedvi.expfam.normal_wishart import normal_wishart
from fedvi.expfam.product import product

__all__ = [
    "beta",
    "diagonal_gaussian",
    "dirichlet",
    "dirichlets",
    "full_gaussian",
    "gamma",
    "gaussian_rows",
    "low_rank_gaussian",
    "normal_gamma",
    "normal_gamma_rows",
    "normal_wishart",
    "product",
]


def __dir__() -> list[str]:
    return sorted(__all__)
