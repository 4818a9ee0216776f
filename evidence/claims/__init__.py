"""The claims, one file each; the page has them in this order."""

ALL = (
    "advi_abalone",
    "advi_mixture",
    "advi_compositions",
    "vips_compositions",
    "vips_not_private",
    "vips_logistic",
    "vips_topics",
    "vips_belief",
    "pvi_schedules",
    "pvi_damping",
    "pvi_noise",
    "pvi_models",
    "pvi_adult",
    "pvi_aggregate",
    "d3p_step",
    "d3p_peers",
    "d3p_samplers",
    "d3p_batches",
    "d3p_hierarchical",
    "d3p_vae",
    "sums_price",
    "sums_adult",
    "defaults",
    "intervals",
    "audit",
)

# Of the papers, or of this project, and without a script here.
NOT_YET = (
    "VIPS: topics of 400,000 documents (`benchmarks/topics.py --case simulation`); a cut stands above.",
    "Beyond the papers: worst coverage of default settings over simulated columns "
    "(`python -m evidence.coverage`).",
)
