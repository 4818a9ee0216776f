"""The claims, one file each; the page has them in this order."""

ALL = (
    "advi_abalone",
    "advi_compositions",
    "vips_compositions",
    "vips_not_private",
    "vips_logistic",
    "vips_topics",
    "vips_many_topics",
    "vips_belief",
    "pvi_schedules",
    "pvi_damping",
    "pvi_noise",
    "pvi_models",
    "pvi_adult",
    "pvi_aggregate",
    "d3p_step",
    "d3p_batches",
    "sums_price",
    "sums_adult",
    "coverage",
    "defaults",
    "intervals",
    "audit",
)

# Of the papers, or of this project, and without a script here.
NOT_YET = (
    "DP-ADVI and d3p: the mixture, the hierarchical regression and the autoencoder by ε (readings without "
    "result files stand in `examples/one-table`).",
    "d3p: a step beside d3p itself, Opacus and jax-privacy (`benchmarks/rivals.py`); samplers by the "
    "number of records.",
)
