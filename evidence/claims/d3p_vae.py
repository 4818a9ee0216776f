"""An autoencoder of pictures by ε: d3p's network and settings, at the price of what is drawn."""

from evidence.base import DATA, Claim, number, of, said, script
from evidence.figures import Chart, Line

NAMES = {"mnist": "MNIST"}
# Of d3p's published logs: nats a test picture, without privacy and with noise of 1.5 clip norms.
READINGS = {"mnist": [99.6, 174.1]}
EPSILONS = [None, 0.5, 1.05, 2.0]
SETTING = {
    "fits": [["mnist", epsilon] for epsilon in EPSILONS],
    "delta": 1e-5,
    "epochs": 20,
    "batch": 128,
    "clip_norm": 10.0,
    "learning_rate": 1e-3,
    "pictures": 60_000,
    "their_noise": 1.5,
    "their_epsilon": 0.536,
    "at_their_noise": 1.05,
    "readings": READINGS,
}


def run(setting, seed):
    import jax.numpy as jnp
    import numpy as np

    vae = script("examples/one-table/vae.py")
    for name, epsilon in setting["fits"]:
        # Pixels are made 0 or 1 once, for all seeds: those differ in where a fit starts, and its noise.
        train, test = (
            vae.pictures(DATA / name, part, setting["pictures"], of_part).reshape(-1, 784)
            for of_part, part in enumerate(("train", "t10k"))
        )
        lit = (train.sum(axis=0) + 0.5) / (len(train) + 1.0)
        pixels = -(test * np.log(lit) + (1.0 - test) * np.log1p(-lit)).sum(axis=1).mean()
        yield {
            "data": name, "epsilon": epsilon, "pixels": float(pixels),
            **fitted(vae, jnp.asarray(train), jnp.asarray(test), epsilon, setting, seed),
        }  # fmt: skip


def fitted(vae, train, test, epsilon, setting, seed):
    """Nats a test picture of one fit; its noise, and what that costs by other rules."""
    import fedvi
    import jax
    import numpyro
    from numpyro.infer import Trace_ELBO

    model, guide = vae.dense_vae()
    optim = numpyro.optim.Adam(setting["learning_rate"])
    steps = round(setting["epochs"] * len(train) / setting["batch"])
    if epsilon is None:
        svi, state = vae.plain_fit(model, guide, optim, train, setting["batch"], steps, seed)
        nats = float(svi.evaluate(state, test)) / len(test)
        return {"noise": None, "stated": None, "fixed": None, "nats": nats}
    plan = fedvi.privacy.sgd(
        epsilon=epsilon, delta=setting["delta"], steps=steps, max_records=len(train),
        batch=setting["batch"], clip_norm=setting["clip_norm"], insecure_seed=seed,
    )  # fmt: skip
    svi = fedvi.DPSVI(model, guide, optim, Trace_ELBO(), plan)
    key = jax.random.key(seed)
    start = svi.init(key, train)
    result = svi.run(key, steps, train, init_state=start, progress_bar=False)
    # `reveal`, since the pictures of the test are nobody's secret here.
    nats = float(svi.evaluate(result.state, test).reveal()) / len(test)
    noise = plan.mechanism.noise_multiplier
    costs = prices(noise, steps, setting["batch"], len(train), setting["delta"])
    return {"noise": noise, **costs, "nats": nats}


def prices(noise, steps, batch, records, delta):
    """ε of the same noise as d3p states it, and for batches of a fixed size."""
    from fedvi.privacy import accountants
    from fedvi.privacy.events import Gaussian, PoissonSampled, WithoutReplacement, repeat

    inner = Gaussian(noise)
    poisson = repeat(PoissonSampled(batch / records, inner), steps)
    fixed = repeat(WithoutReplacement(batch, records, inner), steps)
    return {
        "stated": accountants.pld("add_remove").epsilon(poisson, delta),
        "fixed": accountants.pld("substitute").epsilon(fixed, delta),
    }


def slug(name, epsilon):
    name = name.replace("-", "_")
    return f"{name}_none" if epsilon is None else f"{name}_{EPSILONS.index(epsilon)}"


def numbers(rows, setting):
    found = {f"epsilon_{k}": f"{e:g}" for k, e in enumerate(EPSILONS) if e is not None}
    found["fits_each"] = f"{len({row['seed'] for row in rows})}"
    for name, (plain, private) in setting["readings"].items():
        at = name.replace("-", "_")
        found |= {f"{at}_theirs": f"{private:g}", f"{at}_theirs_none": f"{plain:g}"}
        ran = [epsilon for data, epsilon in setting["fits"] if data == name]
        for epsilon in EPSILONS:
            found[slug(name, epsilon)] = (
                said(of(rows, "nats", data=name, epsilon=epsilon), 4)
                if epsilon in ran
                else "(not run)"
            )
        found[f"{at}_pixels"] = said(of(rows, "pixels", data=name), 4) if ran else "(not run)"
        paired = {"data": name, "epsilon": setting["at_their_noise"]}
        if setting["at_their_noise"] in ran:
            ours = of(rows, "nats", **paired)
            found[f"{at}_behind"] = number(sum(ours) / len(ours) - private, 2)
            found |= {k: number(of(rows, k, **paired)[0]) for k in ("noise", "fixed", "stated")}
        else:
            found[f"{at}_behind"] = "(not run)"
    return found


def table(rows):
    lines = []
    for name, epsilon in dict.fromkeys((row["data"], row["epsilon"]) for row in rows):
        at = {"data": name, "epsilon": epsilon}
        nats = said(of(rows, "nats", **at), 4)
        if epsilon is None:
            reading = number(READINGS[name][0], 4)
            lines.append([NAMES[name], "not private", "–", "–", "–", nats, reading])
            continue
        prices = (number(of(rows, column, **at)[0]) for column in ("noise", "fixed", "stated"))
        reading = number(READINGS[name][1], 4) if epsilon == SETTING["at_their_noise"] else ""
        lines.append([NAMES[name], number(epsilon), *prices, nats, reading])
    heads = [
        "pictures", "ε: Poisson, substitute", "noise ÷ clip norm", "ε of fixed-size batches, substitute",
        "ε by d3p's rule, at our δ", "nats a test picture", "d3p's logs, at this noise",
    ]  # fmt: skip
    return heads, lines


def figure(rows):
    lines = []
    for name in dict.fromkeys(row["data"] for row in rows):
        epsilons = [
            e
            for e in dict.fromkeys(r["epsilon"] for r in rows if r["data"] == name)
            if e is not None
        ]
        at = [(e, of(rows, "nats", data=name, epsilon=e)) for e in epsilons]
        plain = of(rows, "nats", data=name, epsilon=None)
        level, pixels = (
            [(e, [sum(values) / len(values)]) for e in epsilons]
            for values in (plain, of(rows, "pixels", data=name))
        )
        theirs = [(SETTING["at_their_noise"], [READINGS[name][1]])]
        lines += [
            Line("fedvi", at),
            Line("d3p's logs, placed by their noise", theirs),
            Line("fedvi, not private", level, look=0, dash=1),
            Line("each pixel's own frequency, not private", pixels, look=6, dash=2),
        ]
    return Chart(
        f"{NAMES[name]}; substitute; every step is seen; dashed, dotted: not private",
        "ε",
        "nats a test picture (lower is better)",
        lines,
        log_x=True,
    )


CLAIM = Claim(
    paper="d3p",
    title="An autoencoder of pictures learns privately at small ε",
    source="Prediger et al. (2022), arXiv:2103.11648, Section 5.1; the logs that it published "
    "(PROBIC/d3p-paper-experiments; means of 20 runs)",
    says="With noise of 1.5 clip norms and 20 epochs of batches of 128 the logs have 174.1 nats a "
    "test picture of MNIST (lower is better), and 99.6 without privacy. They print ε = 0.536 at δ "
    "= 1/60,000.",
    price="The printed ε, {their_epsilon}, is for Poisson batches under add_remove. The batches "
    "had a fixed size: under substitute, with δ = {delta}, their noise costs {fixed}. fedvi's are "
    "Poisson batches under substitute, whose price by PLD is the ε below; view: every step is "
    "seen. There noise of {noise} clip norms, theirs within rounding, costs {at_their_noise}.",
    finds="Means of {fits_each} fits of {epochs} epochs, in nats a test picture of MNIST, are "
    "{mnist_none} without privacy, {mnist_3} at ε = {epsilon_3}, {mnist_2} at {epsilon_2} and "
    "{mnist_1} at {epsilon_1}. At d3p's noise that is {mnist_behind} nats more than in its logs. "
    "Each pixel's own frequency, without privacy, has {mnist_pixels}.",
    verdict="corrected",
    why="It learns what pictures look like from ε = {epsilon_2} on, nearly as well as d3p's logs "
    "say, but at {epsilon_1} no more than the frequencies of pixels. d3p's noise costs about "
    "twice the printed ε under substitute, and {fixed} as its batches were drawn.",
    alt="Line chart: nats a test picture of MNIST by ε, with the levels of fits that are not private and "
    "of pixels' frequencies, and d3p's reading at ε = {at_their_noise}; at {epsilon_1} the fit is at the "
    "frequencies' level.",
    setting=SETTING,
    quick={"fits": [["mnist", None], ["mnist", 1.05]], "epochs": 2, "pictures": 6_000},
    run=run,
    numbers=numbers,
    table=table,
    figure=figure,
    by="fits",
    files=tuple(
        f"{name}/{part}-images-idx3-ubyte.gz" for name in NAMES for part in ("train", "t10k")
    ),
    chosen="d3p's; clip norm and learning rate were tried on the last training pictures of MNIST, whose "
    "test pictures were not looked at",
)  # fmt: skip
