"""Recomputes what older papers and tools would have claimed, for comparison only.

Historical, not a guarantee: a number from here may be below the true ε. So none of these methods is an
`Accountant`: they compute no δ, and no budget check accepts them. Use `pld` instead.

To add a method, add a file and one line here.
"""

from fedvi.privacy.historical.formulas import moments, poster, vips_two_step
from fedvi.privacy.historical.fourier import fourier
from fedvi.privacy.historical.releases import LABEL

__all__ = ["LABEL", "METHODS", "fourier", "moments", "poster", "vips_two_step"]

METHODS = {"fourier": fourier, "moments": moments, "poster": poster, "vips_two_step": vips_two_step}
