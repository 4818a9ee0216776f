"""From a study file to what it asks for: the only package that knows concrete classes.

Which file to open:

- what a study says: `config` and its `sections`, with `factories` (a `kind` becomes a call),
  `regressions`, `conjugates`, `site_effects`, `policies`;
- what is built of it: `build`, from `modelling` (the model), `noising` (the solver and its noise) and
  `shared_parts` (all that needs no JAX); `coefficients` and `remarks` tell what is fitted;
- how a study is begun: `drafts/`.
"""

__all__: list[str] = []
