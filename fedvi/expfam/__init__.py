"""Exponential families in natural parameters, which clients and server exchange."""

from fedvi.expfam.dirichlet import dirichlet, dirichlets
from fedvi.expfam.gamma import gamma
from fedvi.expfam.gaussian import diagonal_gaussian, full_gaussian
from fedvi.expfam.low_rank_gaussian import low_rank_gaussian
from fedvi.expfam.normal_gamma_rows import normal_gamma_rows
from fedvi.expfam.normal_wishart import normal_wishart
from fedvi.expfam.product import product

__all__ = [
    "diagonal_gaussian",
    "dirichlet",
    "dirichlets",
    "full_gaussian",
    "gamma",
    "low_rank_gaussian",
    "normal_gamma_rows",
    "normal_wishart",
    "product",
]


def __dir__() -> list[str]:
    return sorted(__all__)
