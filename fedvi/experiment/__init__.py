"""From a study file to a running federation: the only package that knows concrete classes.

Which file to open:

- what a study says: `config` and its `sections`, with `factories` (a `kind` becomes a call),
  `regressions`, `conjugates`, `site_effects`, `policies`;
- what is built of it: `build`, from `modelling` (the model), `noising` (the solver and its noise) and
  `parts` (all that needs no JAX); `loading` (records), `site` (a worker), `server_plan` (what a server
  reads), `compiled`;
- what runs: `simulate`, with `changes` (who leaves and joins), `extension`, `baselines`;
- what it leaves: `outcome`, `posterior`, `coefficients`, `influence`, `one_shot`;
- before a run `plans/` and `drafts/`, after it `results/`.
"""

__all__: list[str] = []
