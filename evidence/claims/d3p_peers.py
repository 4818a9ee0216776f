"""What a private step takes with fedvi, d3p, Opacus and jax-privacy, beside NumPyro's SVI."""

from evidence.base import Claim, of, said
from evidence.claims.d3p_samplers import told
from evidence.figures import Chart, Line

SETTING = {
    "cases": ["logistic", "vae"],
    "turns": 2,
    "logistic_parameters": 200,
    "vae_parameters": 688_884,
}
TITLES = {
    "logistic": "logistic regression",
    "vae": "autoencoder",
}
SVI, FEDVI = "SVI, NumPyro 0.22, Poisson", "fedvi, integer noise, Poisson"
# What the text and the figure name, of each case.
SHOWN = {
    "svi": dict.fromkeys(TITLES, SVI),
    "float": dict.fromkeys(TITLES, "fedvi, float noise, Poisson"),
    "alike": dict.fromkeys(TITLES, "fedvi, float noise, Feistel"),
    "d3p": dict.fromkeys(TITLES, "d3p, Feistel"),
    "ghost": {
        "logistic": "Opacus, ghost clipping, MAP",
        "vae": "Opacus, ghost clipping, Poisson",
    },
    "samples": {"logistic": "Opacus, grad samples, MAP", "vae": "Opacus, grad samples, Poisson"},
    "jax_privacy": {
        "logistic": "jax-privacy, fixed size, MAP",
        "vae": "jax-privacy, microbatches of 16",
    },
}


def does(case, candidate):
    """What a candidate does, in words."""
    options = candidate.options
    if "svi" in options:
        return "not private"
    if candidate.environment == "d3p":
        return "a gradient and a draw of latents a record; float noise"
    if candidate.environment == "opacus":
        how = "norms first, no gradient a record" if "ghost" in options else "a gradient a record"
        loss = "; a plain loss, no posterior" if case == "logistic" else ""
        return f"{how}; float noise{loss}"
    if candidate.environment == "jax_privacy":
        loss = "; a plain loss, no posterior" if case == "logistic" else ""
        return f"a gradient a record; float noise{loss}"
    noise = "float noise" if "float" in options else "integer noise"
    return f"{'aligned gradients' if 'aligned' in options else 'full gradients'}; {noise}"


def run(setting, seed):
    from evidence import turns

    for case in setting["cases"]:
        found = turns.timed(case, case, turns.rivals().CASES[case], setting["turns"])
        for candidate, (microseconds, clock) in found.items():
            yield {
                "case": case, "candidate": candidate.label, "does": does(case, candidate),
                "microseconds": microseconds, "clock": clock, "steps": candidate.steps,
            }  # fmt: skip


def ratios(rows, case, candidate, base):
    """How many times the base's step a candidate's takes, in each measurement."""
    ours, theirs = (
        of(rows, "microseconds", case=case, candidate=name) for name in (candidate, base)
    )
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def ran(rows):
    return {(row["case"], row["candidate"]) for row in rows}


def numbers(rows, setting):
    """Steps of each case ÷ fedvi's, under ``{case}_{name}``; ``…_fedvi`` is fedvi's own ÷ SVI's."""
    found = {}

    def tell(name, case, label, base):
        is_there = {(case, label), (case, base)} <= ran(rows)
        absent = "(left out)" if case in setting["cases"] else "(not run)"
        found[f"{case}_{name}"] = (
            said(ratios(rows, case, label, base), 2, spread=False) if is_there else absent
        )

    for short, names in SHOWN.items():
        for case, label in names.items():
            tell(short, case, label, FEDVI)
    for case in TITLES:
        tell("fedvi", case, FEDVI, SVI)
        tell("d3p_alike", case, SHOWN["d3p"][case], SHOWN["alike"][case])
    samples, theirs = (SHOWN[name]["logistic"] for name in ("samples", "d3p"))
    tell("ghost_float", "vae", SHOWN["ghost"]["vae"], SHOWN["float"]["vae"])
    tell("not_compiled", "logistic", samples, theirs)
    return found


def table(rows):
    lines = []
    for case, label in dict.fromkeys((row["case"], row["candidate"]) for row in rows):
        at = {"case": case, "candidate": label}
        what, steps = (
            next(row[k] for row in rows if (row["case"], row["candidate"]) == (case, label))
            for k in ("does", "steps")
        )
        took = told(of(rows, "microseconds", **at))
        against = (said(ratios(rows, case, label, base), 2) for base in (SVI, FEDVI))
        lines.append([TITLES[case], label, what, took, *against, f"{steps:,}"])
    return [
        "model",
        "step of",
        "what it does",
        "time",
        "÷ SVI",
        "÷ fedvi",
        "steps timed together",
    ], lines


def figure(rows):
    titles = {
        "svi": "NumPyro's SVI, not private",
        "float": "fedvi, float noise",
        "d3p": "d3p",
        "ghost": "Opacus, ghost clipping",
        "samples": "Opacus, a gradient of each record",
        "jax_privacy": "jax-privacy (network: microbatches)",
    }
    lines, cases = [], list(dict.fromkeys(row["case"] for row in rows))
    for short, title in titles.items():
        points = [
            (index, ratios(rows, case, SHOWN[short][case], FEDVI))
            for index, case in enumerate(cases)
            if (case, SHOWN[short][case]) in ran(rows)
        ]
        if points:
            lines.append(Line(title, points))
    return Chart(
        "time of one core; SVI is not private, float noise has no guarantee",
        "model, and its parameters",
        "time of a step ÷ fedvi's",
        lines,
        log_y=True,
        at=1.0,
        at_name="fedvi, integer noise",
        x_names=[f"{TITLES[case]}, {SETTING[f'{case}_parameters']:,}" for case in cases],
        apart=12.0,
    )


CLAIM = Claim(
    paper="d3p",
    title="A private step that is compiled as a whole is the fast one",
    source="Prediger et al. (2022), arXiv:2103.11648; d3p 0.2.0, Opacus 1.6.0 and jax-privacy 2.0.0, "
    "with what they need as pinned in `benchmarks/rivals`",
    says="d3p compiles a whole step, in which `vmap` forms a gradient of each record. On an "
    "autoencoder it is about ten times as fast as TensorFlow Privacy.",
    price="Time alone is measured, on a CPU, with each process held to one core, since other work "
    "shared them. Sizes, clip norm and noise are the same for all. The table has what differs: "
    "Poisson batches or batches of a fixed size, which cost more ε; integer noise, or float "
    "noise, which carries no guarantee; a posterior, or a plain loss.",
    finds="A step of fedvi (integer noise, Poisson batches) is the unit. In the autoencoder a "
    "step of d3p takes {vae_d3p}, of Opacus {vae_ghost} by ghost clipping and {vae_samples} with "
    "a gradient of each record, of jax-privacy {vae_jax_privacy} in microbatches, and of "
    "NumPyro's `SVI`, which is not private, {vae_svi}. Opacus has float noise: compared with "
    "fedvi's step with float noise, ghost clipping takes {vae_ghost_float} times as long. In the "
    "logistic regression d3p takes {logistic_d3p}, Opacus {logistic_ghost} and "
    "{logistic_samples}, jax-privacy {logistic_jax_privacy} and `SVI` {logistic_svi}; Opacus and "
    "jax-privacy fit a plain loss there. If fedvi, too, has float noise and batches of a fixed "
    "size, d3p takes {vae_d3p_alike} times as long in the autoencoder, and {logistic_d3p_alike} "
    "times in the regression.",
    verdict="corrected",
    why="Compiling pays in the small model, but in the network the gradients of each record take "
    "the time, compiled or not. Opacus, which is not compiled, takes {logistic_not_compiled} "
    "times as long as d3p in the regression, with the same gradients; in the network d3p is the "
    "slower of the two. fedvi, and Opacus by ghost clipping, find the norms first and form no "
    "such gradients. TensorFlow Privacy was not run, nor a GPU.",
    alt="Chart of the time of a step ÷ fedvi's, on a log scale, for two models: in the "
    "autoencoder d3p and gradients of each record are far above, ghost clipping is near fedvi's; "
    "NumPyro's SVI, which is not private, is below.",
    setting=SETTING,
    quick={"cases": ["logistic"], "turns": 1},
    run=run,
    numbers=numbers,
    table=table,
    figure=figure,
    by="cases",
    peers=("d3p", "opacus", "jax_privacy"),
    chosen="the peers' own, all that was tried is in the table; each seed is a measurement",
)
