"""What a server needs of a study: family, schedule, budget and the names of what is fitted; no JAX.

Which file to open: `shared_parts` makes the parts that both sides build, `conjugates` the models that
bring their own family, `regressions` says what a response may be, `coefficients` names what is fitted.
"""

__all__: list[str] = []
