"""Chooses the remark on its intervals that a table of coefficients must carry.

Needs no JAX, so that a server can say it too.
"""

from fedvi.study import conjugates, site_effects
from fedvi.study.config import Study

__all__ = ["remark"]

_MEAN_FIELD = (
    "q holds no correlations (family diagonal_gaussian): where coefficients are correlated intervals are "
    "too narrow, each by √(1 − R²) of that coefficient on the others"
)
_LOW_RANK = (
    "q holds correlations along its directions alone (family low_rank_gaussian): where coefficients "
    "are correlated otherwise intervals are too narrow"
)
_POLYA_GAMMA = (
    "by Pólya-Gamma latents intervals are narrower than exact ones, a quarter at log odds of 2"
)
# Of what noise leaves: by solver, for those whose reported q does not carry it.
_WITHOUT_NOISE = {
    "dp_optimisation": "intervals do not hold the noise of the descent: they are too wide where steps are "
    "mostly noise, and may be far too narrow elsewhere",
    "vips": "intervals do not hold the noise of the sums, and are too narrow where it is large",
}
_HOLDS_IT = "those of solver `site_release` do hold it"
_LATENT = ("logistic", "binomial", "negative_binomial")


def remark(study: Study) -> str:
    """Says under a table of coefficients how intervals differ from those of the exact posterior.

    That of a full Gaussian by `site_release`, and of what `perturbed_update`, `local_averaging` and
    `virtual_clients` send, is told the noise (docs/proofs/noise_aware.md): nothing is said of it.

    Args:
      study: whose posterior is a Gaussian, or not.

    Returns:
      One or more sentences without a full stop at the end; "" where there is nothing to say.
    """
    if conjugates.model_of(study) is not None:
        # Which `vips` alone takes.
        return _WITHOUT_NOISE["vips"] if study.privacy.private else ""
    kind, said = study.solver.kind, []
    if study.family.kind == "diagonal_gaussian":
        said.append(_MEAN_FIELD)
    if study.family.kind == "low_rank_gaussian":
        said.append(_LOW_RANK)
    if kind == "vips" and study.model.kind in _LATENT:
        said.append(_POLYA_GAMMA)
    if study.privacy.private and kind in _WITHOUT_NOISE:
        # Which refuses effects that stay at their site, and a family without correlations.
        could = site_effects.wanted(study) is None and study.family.kind == "full_gaussian"
        said.append(_WITHOUT_NOISE[kind] + (f"; {_HOLDS_IT}" if could else ""))
    return ". ".join(one[0].upper() + one[1:] if at else one for at, one in enumerate(said))
