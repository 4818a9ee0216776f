"""What fixed-size batches really cost, beside the Poisson price that d3p states for them."""

from evidence.base import Claim, number, of
from evidence.figures import Chart, Line

SETTING = {
    "records": 100_000,
    "delta": 1e-5,
    "grid": [[0.01, 1.0, 1_000], [0.01, 2.0, 1_000], [0.02, 4.0, 500], [0.1, 4.0, 200]],
    "swept": [0.01, 1_000],
    "noises": [0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0],
}
NAMES = {
    "d3p": "stated by d3p: Poisson, add_remove",
    "substitute": "Poisson, substitute",
    "fixed": "fixed size, substitute: as drawn",
}


def run(setting, seed):
    from fedvi.privacy import accountants
    from fedvi.privacy.events import Gaussian, PoissonSampled, WithoutReplacement, repeat

    add_remove, substitute = (accountants.pld(r) for r in ("add_remove", "substitute"))
    rate, steps = setting["swept"]
    swept = [[rate, noise, steps] for noise in setting["noises"]]
    settings = {tuple(one) for one in (*setting["grid"], *swept)}
    for rate, noise, steps in sorted(settings):
        inner, size = Gaussian(noise), setting["records"]
        poisson = repeat(PoissonSampled(rate, inner), steps)
        fixed = repeat(WithoutReplacement(round(rate * size), size, inner), steps)
        found = {
            "d3p": add_remove.epsilon(poisson, setting["delta"]),
            "substitute": substitute.epsilon(poisson, setting["delta"]),
            "fixed": substitute.epsilon(fixed, setting["delta"]),
        }
        for price, epsilon in found.items():
            yield {
                "rate": rate, "noise": noise, "steps": steps, "price": price, "epsilon": epsilon,
            }  # fmt: skip


def numbers(rows, setting):
    rate, noise, steps = setting["grid"][0]
    at = {p: of(rows, "epsilon", rate=rate, noise=noise, steps=steps, price=p)[0] for p in NAMES}
    stated, alike, drawn = (of(rows, "epsilon", price=price) for price in NAMES)
    ratios, of_sampler = (
        [true / said for true, said in zip(drawn, base, strict=True)] for base in (stated, alike)
    )
    return {
        **{name: number(value) for name, value in at.items()},
        "noise": number(noise, 2),
        "rate": number(rate, 2),
        "steps": f"{steps:,}",
        "least": number(min(ratios), 2),
        "most": number(max(ratios), 2),
        "least_alike": number(min(of_sampler), 2),
        "most_alike": number(max(of_sampler), 2),
    }


def table(rows):
    keys = sorted({(row["rate"], row["noise"], row["steps"]) for row in rows})
    heads = ["rate", "noise ÷ clip norm", "steps", *NAMES.values()]
    return heads, [
        [
            number(rate, 2), number(noise, 2), f"{steps:,}",
            *(number(of(rows, "epsilon", rate=rate, noise=noise, steps=steps, price=p)[0]) for p in NAMES),
        ]
        for rate, noise, steps in keys
    ]  # fmt: skip


def figure(rows):
    rate, steps = SETTING["swept"]
    noises = sorted({r["noise"] for r in rows if r["rate"] == rate and r["steps"] == steps})
    lines = [
        Line(
            said,
            [(n, of(rows, "epsilon", rate=rate, steps=steps, noise=n, price=name)) for n in noises],
        )
        for name, said in NAMES.items()
    ]
    axis = f"noise ÷ clip norm; rate {rate}, {steps:,} steps"
    return Chart("every step is seen", axis, "ε of the same noise", lines, log_x=True, log_y=True)


CLAIM = Claim(
    paper="d3p",
    title="Fixed-size batches cost what Poisson batches cost",
    source="d3p 0.2.0: `DPSVI.get_epsilon`, `approximate_sigma` and its examples; Prediger et al. (2022), "
    "arXiv:2103.11648",
    says="Batches of a fixed size, drawn without replacement by a Feistel network, are fast. The "
    "ε that `DPSVI.get_epsilon` states for them is that of Poisson batches of the same rate, for "
    "adding or removing a record. (`approximate_sigma` takes them as Poisson batches, too, for "
    "substituting one.)",
    price="View: every step is seen; δ = {delta}, {records} records. A batch of a fixed size has "
    "no price for adding or removing a record, since one more record changes who else is drawn. "
    "Under substitute it has one, with a proof ([fixed size](proofs/fixed_size.md)).",
    finds="At rate {rate}, noise of {noise} clip norms and {steps} steps, ε = {d3p} is stated. "
    "Poisson batches cost {substitute} under substitute, and what was drawn costs {fixed}. Over "
    "the table, what was drawn costs {least} to {most} times what is stated, and {least_alike} to "
    "{most_alike} times what Poisson batches cost under the same relation.",
    verdict="not reproduced",
    why="Under the same relation batches of a fixed size cost {least_alike} to {most_alike} times "
    "the ε of Poisson batches. d3p states ε for adding or removing a record, so what was drawn "
    "costs {least} to {most} times that. fedvi's samplers report their own event, so that what is "
    "drawn is what is charged.",
    alt="Line chart: ε by noise; the line of fixed-size batches lies above both lines of Poisson "
    "batches, far above at little noise, and near that under substitute at much noise.",
    setting=SETTING,
    quick={"noises": [1.0, 2.0]},
    run=run,
    numbers=numbers,
    table=table,
    figure=figure,
    seeds=(0,),
    chosen="settings of d3p's examples and of usual descents",
)
