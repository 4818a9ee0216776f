"""Builds a server's part of a study without JAX: family, schedule, budget and names of coefficients.

Which file to open: `shared_parts` makes the parts that both sides build, `conjugates` the models that
bring their own family, `regressions` checks responses, `coefficients` describes the fitted coefficients.
"""

__all__: list[str] = []
