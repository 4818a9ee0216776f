"""Noise on the message beside noise on each data point, under three schedules, at one promise."""

import functools

from evidence.base import Claim, number, of, said
from evidence.figures import Chart, Line

MODES = {
    "perturbed_update": "on the message",
    "site_release": "on each data point (sites)",
    "dp_optimisation": "on each data point (descent)",
}
TITLES = {"linear-1": "linear, one coefficient (RMSE)"}
SEEDS = (0, 1, 2)
# By problem: of each seed, the posterior of all records together.
POOLED = {}
SETTING = {
    "problems": ["linear-1"],
    "epsilons": [1.0, 16.0],
    "delta": 1e-5,
    "modes": ["none", *MODES],
}
SCHEDULES = ("sequential", "synchronous", "asynchronous")
MEASURES = ("score", "kl", "error")


def run(setting, seed):
    for slug in setting["problems"]:
        for kind in setting["modes"]:
            if slug == "network" and kind == "site_release":
                continue  # it is for regressions
            for epsilon in [float("inf")] if kind == "none" else setting["epsilons"]:
                cell = cell_of(slug, kind, epsilon)
                for schedule, found in cell.outcomes.items():
                    yield {
                        "problem": slug,
                        "noise_on": kind,
                        "epsilon": cell.epsilon,
                        "add_remove": cell.add_remove,
                        "noise": float(cell.noise_multiplier or 0.0),
                        "schedule": schedule,
                        **dict(zip(MEASURES, found[seed], strict=True)),
                    }


@functools.cache
def cell_of(slug, kind, epsilon):
    """Runs all seeds of one mode at one ε: what is compiled for one serves the others."""
    from evidence import comparison

    problem = next(one for one in comparison.PROBLEMS if one.slug == slug)
    mode = next(one for one in comparison.MODES if (one.kind or "none") == kind)
    data = [comparison.simulated(problem, seed) for seed in SEEDS]
    return comparison.run(problem, mode, epsilon, data, POOLED.setdefault(slug, []))


def numbers(rows, setting):
    first, slug = setting["epsilons"][0], setting["problems"][0]
    last = setting["epsilons"][-1]
    found = {"first": number(first, 1), "last": number(last, 2)}
    for mode in MODES:
        at = {"problem": slug, "noise_on": mode, "schedule": "synchronous"}
        found[f"{mode}_kl"] = said(of(rows, "kl", epsilon=first, **at), 2)
        found[f"{mode}_kl_last"] = said(of(rows, "kl", epsilon=last, **at), 2)
        found[f"{mode}_rmse"] = said(of(rows, "score", epsilon=first, **at))
        found[f"{mode}_error"] = said(of(rows, "error", epsilon=first, **at), 2)
        prices = of(rows, "add_remove", epsilon=first, **at)
        found[f"{mode}_add_remove"] = number(prices[0])
        found[f"{mode}_noise"] = number(of(rows, "noise", epsilon=first, **at)[0])
    none = {"problem": slug, "noise_on": "none", "schedule": "synchronous"}
    found["none_rmse"] = said(of(rows, "score", **none))
    found["none_error"] = said(of(rows, "error", **none), 2)
    worst = max(
        value
        for schedule in SCHEDULES
        for value in of(rows, "kl", problem=slug, noise_on="none", schedule=schedule)
    )
    found["none_kl"] = number(abs(worst), 2)
    return found


def table(rows):
    lines = []
    for problem in dict.fromkeys(row["problem"] for row in rows):
        for mode, title in MODES.items():
            epsilons = dict.fromkeys(
                row["epsilon"] for row in rows
                if row["noise_on"] == mode and row["problem"] == problem
            )  # fmt: skip
            for epsilon in epsilons:
                at = {"problem": problem, "noise_on": mode, "epsilon": epsilon}
                price = number(of(rows, "add_remove", **at)[0])
                score = said(of(rows, "score", schedule="synchronous", **at))
                kl = [said(of(rows, "kl", schedule=name, **at), 2) for name in SCHEDULES]
                error = said(of(rows, "error", schedule="synchronous", **at), 2)
                model = TITLES.get(problem, problem)
                lines.append([model, title, number(epsilon, 2), price, score, *kl, error])
    heads = [
        "model", "noise", "ε", "ε under add_remove", "held out, synchronous",
        *(f"KL to pooled, {name}" for name in SCHEDULES), "largest error ÷ own sd, synchronous",
    ]  # fmt: skip
    return heads, lines


def figure(rows):
    slug = rows[0]["problem"]
    lines = []
    for look, (mode, title) in enumerate(MODES.items()):
        for dash, schedule in enumerate(SCHEDULES):
            given = [
                row for row in rows
                if (row["problem"], row["noise_on"], row["schedule"]) == (slug, mode, schedule)
            ]  # fmt: skip
            points = [
                (epsilon, [row["kl"] for row in given if row["epsilon"] == epsilon])
                for epsilon in dict.fromkeys(row["epsilon"] for row in given)
            ]
            if points:
                lines.append(Line(f"noise {title}, {schedule}", points, look=look, dash=dash))
    return Chart(
        "substitute; every message is seen",
        "ε",
        "KL to the pooled posterior, nats",
        lines,
        log_x=True,
        log_y=True,
    )


CLAIM = Claim(
    paper="PVI and DP-PVI",
    title="Noise can go on the message or on each data point, under any of three schedules",
    source="Sharma et al. (2019), arXiv:1911.10563; the DP-PVI poster; Heikkilä et al. (2023), "
    "arXiv:2209.11595",
    says="Noise may be added to a client's whole change (the poster), or to the gradients of its "
    "records. Clients are visited in turn, all at once, or drawn one after another. The papers' "
    "code calls the last asynchronous; here an asynchronous answer counts as soon as it is ready.",
    price="Substitute one record of a client; ε as in the table and δ = {delta}; view: every "
    "message is seen; the number of records is public. One record may change a whole message. So "
    "under add_remove noise on the message costs the same ({perturbed_update_add_remove} at ε = "
    "{first}), and noise on each data point about half ({site_release_add_remove}). The latter "
    "comes in two ways: `site_release` (sites) and `dp_optimisation` (descent).",
    finds="One coefficient, five clients, ε = {first}. The KL to the pooled posterior is "
    "{perturbed_update_kl} nats with noise on the message; with noise on each data point it is "
    "{site_release_kl} (sites) and {dp_optimisation_kl} (descent). The held-out RMSE is "
    "{perturbed_update_rmse}, {site_release_rmse} (sites), and {none_rmse} without noise. The "
    "posterior mean is {perturbed_update_error}, {site_release_error} and {dp_optimisation_error} "
    "of its own sds from the truth, and {none_error} without noise; intervals of the right width "
    "give about the latter. Without noise all schedules agree with the pooled fit to {none_kl} "
    "nats.",
    verdict="corrected",
    why="Both can be run under every schedule, but at the same promise to each record noise on "
    "the message leaves next to nothing of the data. Even at ε = {last} it is "
    "{perturbed_update_kl_last} nats from the pooled posterior, and noise on each data point "
    "(sites) {site_release_kl_last}. Schedules matter far less.",
    alt="Line chart: KL from the pooled posterior by ε; noise on the message stays in the "
    "thousands, noise on each data point is lower by orders of magnitude, under all schedules.",
    setting=SETTING,
    quick={"epsilons": [1.0]},
    run=run,
    numbers=numbers,
    table=table,
    figure=figure,
    by="modes",
    chosen="rules from public numbers, settled on a pilot with one other seed and smaller clients",
)
