"""How much noise a sum over sites needs: every message seen, or sums that nobody is trusted with."""

import math

from evidence.base import Claim, number, of
from evidence.figures import Chart, Line

NAMES = {
    "message": "every message is seen",
    "sums": "only sums, all must answer",
    "half": "only sums, half may be missing",
    "pooled": "one holder of all records",
}
SETTING = {
    "sites": [4, 10, 20, 50, 100, 200],
    "epsilon": 1.0,
    "delta": 1e-5,
    "rounds": 20,
    "colluding": 1,
}


def run(setting, seed):
    from fedvi.privacy import accountants, calibrate
    from fedvi.privacy.events import Gaussian, repeat
    from fedvi.privacy.sums import Sums, in_sum

    for relation in ("add_remove", "substitute"):
        accountant = accountants.pld(relation)
        for sites in setting["sites"]:
            least = {"message": None, "sums": sites, "half": max(2, sites // 2), "pooled": None}
            for view, answering in least.items():

                def event(noise, answering=answering):
                    one = Gaussian(noise)
                    if answering is not None:
                        one = in_sum(one, Sums(answering, setting["colluding"]).honest)
                    return repeat(one, setting["rounds"])

                noise = calibrate.calibrate(event, accountant, setting["epsilon"], setting["delta"])
                total = noise if view == "pooled" else noise * math.sqrt(sites)
                yield {
                    "relation": relation, "sites": sites, "view": view, "site_noise": noise,
                    "sum_noise": total,
                }  # fmt: skip


def numbers(rows, setting):
    def ratio(sites, view, column="sum_noise"):
        one, all_ = (
            of(rows, column, relation="substitute", sites=sites, view=v)[0]
            for v in ("message", view)
        )
        return number(one / all_, 3)

    def over(sites):
        """By how many per cent the noise of a sum is above that of one holder of all records."""
        alone = of(rows, "sum_noise", relation="substitute", sites=sites, view="pooled")[0]
        summed = of(rows, "sum_noise", relation="substitute", sites=sites, view="sums")[0]
        return number(100.0 * (summed / alone - 1.0), 2)

    few, ten, many = setting["sites"][0], 10, setting["sites"][-1]
    return {
        "few": f"{few}",
        "ten": f"{ten}",
        "many": f"{many}",
        "few_times": ratio(few, "sums"),
        "ten_times": ratio(ten, "sums"),
        "many_times": ratio(many, "sums"),
        "half_times": ratio(many, "half"),
        "few_half_times": ratio(few, "half"),
        "few_over": over(few),
        "over": over(many),
    }


def table(rows):
    sites = sorted({row["sites"] for row in rows})
    return (
        [
            "noise of the sum ÷ clip norm, by relation and view",
            *(f"{count} sites" for count in sites),
        ],
        [
            [
                f"{relation}, {said}",
                *(
                    number(of(rows, "sum_noise", relation=relation, sites=s, view=view)[0])
                    for s in sites
                ),
            ]
            for relation in ("add_remove", "substitute")
            for view, said in NAMES.items()
        ],
    )


def figure(rows):
    sites = sorted({row["sites"] for row in rows})
    lines = [
        Line(
            said,
            [(s, of(rows, "sum_noise", relation="substitute", sites=s, view=view)) for s in sites],
        )
        for view, said in NAMES.items()
    ]
    axis = "noise of the sum ÷ clip norm"
    return Chart(
        "substitute a record; ε = 1; one site may collude",
        "sites",
        axis,
        lines,
        log_x=True,
        log_y=True,
    )


CLAIM = Claim(
    paper="Beyond the papers",
    title="With masks a sum of many sites needs hardly more noise than one holder would add",
    source="fedvi; the price is proved in [aggregate view](proofs/aggregate_view.md), the "
    "protocol in [secure sums](proofs/secure_sums.md)",
    says="The DP-PVI papers reach this with a trusted aggregator. With masks that cancel, the "
    "server learns one noised sum a round and no answer of a site.",
    price="ε = {epsilon} and δ = {delta} for a record, {rounds} rounds of all records; "
    "{colluding} site may collude with the server. View: every message, or only sums. Where all "
    "must answer, a round is given up if a site is missing.",
    finds="Compared with the view of every message, the noise of the sum is {few_times} times "
    "smaller with {few} sites, {ten_times} times smaller with {ten} and {many_times} times "
    "smaller with {many}. It is {few_over} % above that of one holder of all records with {few} "
    "sites, since one of them may tell its share, and {over} % with {many}. Where half of {many} "
    "sites may be missing it is still {half_times} times smaller; with {few} sites masks then "
    "save nothing ({few_half_times}).",
    verdict="reproduced",
    why="With {many} sites the noise of a masked sum is {over} % above that of one holder of all "
    "records, with {few} sites {few_over} %. Each site adds only its share of the noise for a sum "
    "of all that answer honestly. Of few sites the one that may collude is a large part, so the "
    "saving is smaller. This holds for answers that are fresh in each round; those that keep "
    "their own noise are priced as messages (see the claim above that each client adds a share of "
    "the noise).",
    alt="Line chart: noise of the sum by the number of sites; it grows with the root of the sites "
    "where messages are seen; where only sums are it falls, as sites are added, to that of one holder.",
    setting=SETTING,
    quick={"sites": [4, 10, 200]},
    run=run,
    numbers=numbers,
    table=table,
    figure=figure,
    seeds=(0,),
)
