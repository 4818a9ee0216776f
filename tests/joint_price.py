"""The price of equal Gaussian releases of several sites as one sequence, from that of one site alone."""

import math

import scipy.optimize

from fedvi.privacy.accountants.closed_form import gaussian_epsilon

__all__ = ["joint_epsilon"]


def joint_epsilon(epsilon: float, delta: float, sites: int) -> float:
    """Returns ε of all sites: shift ÷ noise of a sequence of Gaussian sums is that of one, times √sites.

    >>> round(joint_epsilon(4.0, 1e-5, 4), 1)
    9.1
    """
    mu = scipy.optimize.brentq(lambda mu: gaussian_epsilon(mu, delta) - epsilon, 1e-3, 10.0)
    return gaussian_epsilon(math.sqrt(sites) * mu, delta)
