"""DP-ADVI on a mixture of five Gaussians: predictive density by ε, beside the paper's readings."""

import functools

from evidence.base import Claim, number, of, said, script
from evidence.claims.d3p_vae import prices
from evidence.figures import Chart, Line

KINDS = {"full": "fedvi, plain gradients", "aligned": "fedvi, aligned gradients"}
# ε by PLD of the noise of each reading, and its mean log predictive density over five runs.
READINGS = {"0.079": -6.671, "0.176": -5.340, "0.5": -4.695, "1.07": -4.404, "2.49": -4.287}
SETTING = {
    "epsilons": [None, *map(float, READINGS)],
    "delta": 1e-3,
    "records": 2_000,
    "rate": 0.2,
    "steps": 100,
    "clip_norm": 1.0,
    "learning_rate": 0.1,
    "their_batch": 6,
    "their_steps": 1_000,
    "readings": READINGS,
}


def run(setting, seed):
    import fedvi
    import jax
    import numpy as np
    import optax
    from numpyro.infer import SVI, Trace_ELBO, init_to_value
    from numpyro.infer.autoguide import AutoDiagonalNormal

    mixture = script("examples/one-table/mixture.py")
    # Other points than the example's, on which settings were chosen.
    x, test = (
        mixture.points(count, 1_000 + 2 * seed + part)
        for part, count in enumerate((setting["records"], mixture.HELD_OUT))
    )
    clusters = mixture.CLUSTERS
    weights, variances = np.full(clusters, 1.0 / clusters), np.full(clusters, mixture.VARIANCE)
    model = mixture.gaussian_mixture(clusters, location_scale=2.0)
    key = jax.random.key(seed)
    levels = {
        "true": mixture.log_density(test, weights, mixture.CENTRES, variances).mean(),
        "one_gaussian": mixture.log_density(test, 1.0, np.zeros((1, 2)), test.var()).mean(),
    }
    for epsilon in setting["epsilons"]:
        for kind in ["none", "clipped"] if epsilon is None else KINDS:
            guide = AutoDiagonalNormal(model, init_loc_fn=init_to_value(values=mixture.start()))
            noise, steps, fixed = 0.0, 1_000, None
            if kind == "none":
                optim = optax.adam(optax.cosine_decay_schedule(0.05, steps))
                svi = SVI(model, guide, optim, Trace_ELBO())
            else:
                steps = setting["steps"]
                budget = {"noise_multiplier": 0.0} if epsilon is None else {"epsilon": epsilon}
                plan = fedvi.privacy.sgd(
                    delta=setting["delta"], steps=steps, rate=setting["rate"], insecure_seed=seed,
                    max_records=setting["records"], clip_norm=setting["clip_norm"], **budget,
                )  # fmt: skip
                noise = plan.mechanism.noise_multiplier
                if epsilon is not None:
                    names = ("delta", "their_batch", "their_steps", "records")
                    fixed = as_drawn(epsilon, *(setting[name] for name in names))
                optim = optax.adam(optax.cosine_decay_schedule(setting["learning_rate"], steps))
                gradients = "full" if kind == "clipped" else kind
                svi = fedvi.DPSVI(model, guide, optim, Trace_ELBO(), plan, gradients=gradients)
            result = svi.run(key, steps, x, progress_bar=False)
            density = mixture.predictive(model, guide, result.params, test)
            yield {
                "epsilon": epsilon, "kind": kind, "noise": noise, "fixed": fixed, "density": density,
                **levels,
            }  # fmt: skip


@functools.cache
def as_drawn(epsilon, delta, batch, steps, records):
    """ε of a reading's noise on batches of a fixed size, where ``epsilon`` is that on Poisson batches."""
    import fedvi

    plan = fedvi.privacy.sgd(
        epsilon=epsilon, delta=delta, steps=steps, batch=batch, max_records=records
    )
    return prices(plan.mechanism.noise_multiplier, steps, batch, records, delta)["fixed"]


def numbers(rows, setting):
    found = {"tables": f"{len({row['seed'] for row in rows})}"}
    found |= {name: said(of(rows, name)) for name in ("true", "one_gaussian")}
    found |= {kind: said(of(rows, "density", kind=kind)) for kind in ("none", "clipped")}
    for index, (epsilon, reading) in enumerate(setting["readings"].items()):
        found[f"epsilon_{index}"], found[f"theirs_{index}"] = epsilon, number(reading)
        is_run = float(epsilon) in setting["epsilons"]
        fixed = of(rows, "fixed", epsilon=float(epsilon)) if is_run else []
        found[f"fixed_{index}"] = number(fixed[0]) if is_run else "(not run)"
        for kind in KINDS:
            values = of(rows, "density", kind=kind, epsilon=float(epsilon)) if is_run else []
            found[f"{kind}_{index}"] = said(values) if values else "(not run)"
    return found


def table(rows):
    lines = []
    for epsilon in dict.fromkeys(row["epsilon"] for row in rows):
        if epsilon is None:
            none = said(of(rows, "density", kind="none"), 4)
            lines.append(["not private", "–", none, none, "–", "–"])
            clipped = said(of(rows, "density", kind="clipped"), 4)
            lines.append(["not private, clipped as fedvi's", "0", clipped, "–", "–", "–"])
            continue
        cells = [said(of(rows, "density", kind=kind, epsilon=epsilon), 4) for kind in KINDS]
        noise, fixed = (number(of(rows, k, epsilon=epsilon)[0]) for k in ("noise", "fixed"))
        reading = number(READINGS[f"{epsilon:g}"], 4)
        lines.append([number(epsilon), noise, *cells, reading, fixed])
    heads = ["ε", "noise ÷ clip norm", *KINDS.values(), "the paper, at this price"]
    return [*heads, "what the paper's batches cost without replacement"], lines


def figure(rows):
    epsilons = [e for e in dict.fromkeys(row["epsilon"] for row in rows) if e is not None]
    lines = [
        Line(title, [(e, of(rows, "density", kind=kind, epsilon=e)) for e in epsilons])
        for kind, title in KINDS.items()
    ]
    lines.append(
        Line("the paper's readings", [(e, [READINGS[f"{e:g}"]]) for e in epsilons], look=3)
    )
    one = of(rows, "one_gaussian")
    level = sum(one) / len(one)
    lines.append(
        Line("one Gaussian, not private", [(e, [level]) for e in epsilons], look=6, dash=2)
    )
    none = of(rows, "density", kind="none")
    return Chart(
        "substitute; every step is seen; dashed and dotted: not private",
        "ε",
        "mean log predictive density",
        lines,
        log_x=True,
        at=sum(none) / len(none),
        at_name="not private",
    )


CLAIM = Claim(
    paper="DP-ADVI",
    title="A mixture of Gaussians is fitted privately, and the better the larger ε is",
    source="Jälkö, Dikmen and Honkela (2017), arXiv:1610.08749; readings from the numbers that were "
    "published with d3p's experiments (means of five runs of 100 points held out; rate 0.003, 1,000 "
    "steps)",
    says="A mixture of five Gaussians in the plane is fitted to 2,000 points, with assignments "
    "summed out. The log predictive density of held-out points rises from −6.671 at ε = 0.1 to "
    "−4.287 at ε = 10, both stated by strong composition.",
    price="Each reading stands at the ε that its noise costs by PLD under substitute, as if its "
    "batches were Poisson; δ = {delta}; view: every step is seen. The stated ε of ten is "
    "{epsilon_4} by this count. In batches of a fixed size, as were drawn, the same noise costs "
    "{fixed_4} even without replacement. fedvi's fits draw Poisson batches, and spend the same ε "
    "in {steps} steps at rate {rate}.",
    finds="The mean log predictive density over {tables} tables is {none} without privacy. The "
    "true mixture has {true}, and one Gaussian for all points {one_gaussian}. Plain gradients "
    "have {full_4} at ε = {epsilon_4} (the paper {theirs_4}), {full_2} at {epsilon_2} "
    "({theirs_2}) and {full_0} at {epsilon_0} ({theirs_0}). Aligned gradients have {aligned_4}, "
    "{aligned_2} and {aligned_0}.",
    verdict="corrected",
    why="The mixture is fitted privately, and worst at the smallest ε, but from ε = {epsilon_2} "
    "on more ε does not help. The same {steps} clipped steps without noise have {clipped}: what "
    "is missing there is due to clipping and few steps, not to noise. The paper's readings do "
    "rise with ε, but stay below one Gaussian for all points: its fits did not find the mixture. "
    "At the same price fewer steps on larger batches find it.",
    alt="Line chart: log predictive density by ε; fedvi's two lines lie between the fit without "
    "privacy and one Gaussian, the paper's readings below one Gaussian at every ε.",
    setting=SETTING,
    quick={"epsilons": [None, 2.49]},
    run=run,
    numbers=numbers,
    table=table,
    figure=figure,
    by="epsilons",
    chosen="clip norm, steps and rate on the example's points, which are drawn from the same mixture; "
    "these are others",
)  # fmt: skip
