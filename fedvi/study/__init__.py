"""Reads a study file and builds what it describes: the only package that knows concrete classes.

Which file to open:

- a study's content: `config` and its `sections`, with `factories` (a `kind` becomes a call),
  `regressions`, `conjugates`, `site_effects`, `policies`;
- what is built from it: `build`, from `modelling` (the model), `noising` (the solver and its noise) and
  `shared_parts` (all that needs no JAX); `coefficients` and `remarks` describe the fitted parameters;
- drafts of new studies: `drafts/`.
"""

__all__: list[str] = []
