"""Coverage where outcomes are rare, counts or times, levels are rare, or bounds far too wide."""

import dataclasses

from evidence.claims import coverage

CLAIM = dataclasses.replace(
    coverage.CLAIM,
    title="Intervals of default settings cover truths of rare events, counts, times and rare levels",
    says="A report counts the noise of its releases, and in which directions noise hides the "
    "records, so that every coefficient's interval covers as often as it promises, also where "
    "events or levels are rare, bounds are much too wide, or outcomes are counts or times.",
    price='Regression by `site_release` with `clip_norm = "auto"`, {rounds} rounds, {sites} sites, '
    "normal prior of sd {prior_sd} as `fedvi init` drafts it (but it drafts fewer rounds where noise "
    "is large); substitute a record, δ = {delta}, PLD; view: every message is seen. Logistic, but "
    "Poisson for counts and a constant hazard for times. Coefficients are drawn from a standard "
    "normal law anew in every simulation.",
    why="Every cell's worst coefficient is covered in {least} % or more; that of an oracle without "
    "noise in {oracle} % or more. Where noise hides nearly all curvature, intervals rest on the prior "
    "and cover more than they promise.",
    setting={**coverage.SETTING, "cells": coverage.grid(coverage.OTHERS)},
    seeds=(0,),
    quick={"cells": [["few events", 5, 200, 4.0], ["exposures", 5, 200, 4.0]], "simulations": 25},
)
