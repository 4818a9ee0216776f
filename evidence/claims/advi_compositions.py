"""The price of DP-ADVI's noise, by the composition of its poster and by later ones."""

from evidence.base import Claim, number, of
from evidence.figures import Chart, Line

NAMES = {
    "poster": "strong composition, as on the poster",
    "advanced": "strong composition, exact steps",
    "moments": "moments (2016; add_remove)",
    "rdp": "RDP",
    "pld": "PLD",
    "fixed": "PLD, fixed-size batches",
    "pld_add_remove": "PLD, add_remove",
}
SETTING = {
    "noise_multiplier": 7.098,
    "rate": 0.05,
    "records": 3_341,
    "batch": 167,
    "delta": 1e-3,
    "steps": [10, 20, 50, 100, 200, 500, 1_000],
}


def run(setting, seed):
    from fedvi.privacy import accountants, historical
    from fedvi.privacy.events import Gaussian, PoissonSampled, WithoutReplacement, repeat

    inner = Gaussian(setting["noise_multiplier"])
    poisson = PoissonSampled(setting["rate"], inner)
    fixed = WithoutReplacement(setting["batch"], setting["records"], inner)
    ways = {
        "poster": (historical.poster("substitute"), poisson),
        "advanced": (accountants.advanced("substitute"), poisson),
        "moments": (historical.moments("add_remove"), poisson),
        "rdp": (accountants.rdp("substitute"), poisson),
        "pld": (accountants.pld("substitute"), poisson),
        "fixed": (accountants.pld("substitute"), fixed),
        "pld_add_remove": (accountants.pld("add_remove"), poisson),
    }
    for steps in setting["steps"]:
        for name, (way, event) in ways.items():
            epsilon = way.epsilon(repeat(event, steps), setting["delta"])
            yield {"steps": steps, "composition": name, "epsilon": epsilon}


def numbers(rows, setting):
    last = setting["steps"][-1]
    at = {name: of(rows, "epsilon", steps=last, composition=name)[0] for name in NAMES}
    return {
        **{name: number(value) for name, value in at.items()},
        "last": f"{last:,}",
        "times": number(at["poster"] / at["pld"], 2),
    }


def table(rows):
    steps = sorted({row["steps"] for row in rows})
    return (
        ["ε after so many steps", *(f"{count:,}" for count in steps)],
        [
            [said, *(number(of(rows, "epsilon", steps=s, composition=name)[0]) for s in steps)]
            for name, said in NAMES.items()
        ],
    )


def figure(rows):
    steps = sorted({row["steps"] for row in rows})
    lines = [
        Line(said, [(s, of(rows, "epsilon", steps=s, composition=name)) for s in steps])
        for name, said in NAMES.items()
    ]
    return Chart(
        "substitute unless said; every step is seen",
        "steps",
        "ε of the same noise",
        lines,
        log_x=True,
        log_y=True,
    )


CLAIM = Claim(
    paper="DP-ADVI",
    title="Composition decides what DP-ADVI's noise is said to cost",
    source="Jälkö, Dikmen and Honkela (2017), arXiv:1610.08749, and its poster; Abadi et al. (2016), "
    "arXiv:1607.00133",
    says="The poster composes its steps by strong composition, with each step's ε from σ = √(2 "
    "ln(1.25/δ))/ε. The paper has the moments accountant beside it, which states far less ε for "
    "the same noise.",
    price="The noise is that of one of the paper's Abalone runs: {noise_multiplier} clip norms on "
    "{rate} of {records} records a step, δ = {delta}; view: every step is seen. Rows are for "
    "Poisson batches under substitute unless they say otherwise.",
    finds="After {last} steps strong composition as on the poster states ε = {poster}, strong "
    "composition of exact steps {advanced}, RDP {rdp} and PLD {pld}. So the poster states {times} "
    "times as much as PLD for the same noise. Batches of a fixed size, without replacement, cost "
    "{fixed}. Under add_remove the moments accountant states {moments}, and PLD {pld_add_remove}.",
    verdict="corrected",
    why="The order holds, since strong composition states far more than moments, but PLD states "
    "less than each of them under the same relation. An ε without its relation and sampler says "
    "little: by PLD alone the same noise costs anything from {pld_add_remove} (add_remove, "
    "Poisson batches) to {fixed} (substitute, batches of a fixed size).",
    alt="Line chart: ε by steps for seven compositions of the same noise; at {last} steps the "
    "poster's strong composition is at {poster}, PLD at {pld}.",
    setting=SETTING,
    quick={"steps": [10, 1_000]},
    run=run,
    numbers=numbers,
    table=table,
    figure=figure,
    seeds=(0,),
    chosen="the paper's own",
)
