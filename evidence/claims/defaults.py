"""What nobody changed: studies as `fedvi init --yes` drafts them, on eight tables."""

import pathlib
import tempfile

from evidence.base import Claim, number, of, said
from evidence.figures import Chart, Line

CHOSEN = ("adult", "breast-cancer", "heart")
VIEWS = {"message": "every message is seen", "aggregate": "only sums are seen"}
SETTING = {
    "tables": [*CHOSEN, "bank", "credit", "readmission", "eicu", "abalone"],
    "views": list(VIEWS),
    "epsilon": 1.0,
    "noises": 3,
}


def run(setting, seed):
    from evidence import defaults

    for name in setting["tables"]:
        table, pooled = defaults.TABLES[name](), None
        for view in setting["views"]:
            found = []
            with tempfile.TemporaryDirectory() as place:
                folder = pathlib.Path(place)
                raw = defaults.drafted(table, folder, seed, setting["epsilon"])
                raw["privacy"]["view"] = view
                base = defaults.base_rate(folder, raw, table.response)
                for noise in range(setting["noises"]):
                    # Noise that can be drawn again, as no study with records to protect may have it.
                    raw["simulation"] = {"insecure_seed": 100 * seed + noise}
                    one, best, pooled, size = defaults.outcome_of(
                        raw, folder, pooled, 100 * seed + noise
                    )
                    found.append(one._asdict())
            means = {key: sum(one[key] for one in found) / len(found) for key in found[0]}
            yield {
                "table": name, "view": view, "records": len(table.rows), "coefficients": size,
                **means, "worst": max(one["worst"] for one in found),
                "least_auc": min(one["auc"] for one in found),
                "pooled_auc": best[0], "pooled_likelihood": best[1],
                "base_likelihood": base,
            }  # fmt: skip


def gaps(rows, view, tables):
    """By table, means over seeds: what area and log likelihood lack of the pooled fit's."""
    found = {}
    for name in tables:
        at = {"table": name, "view": view}
        for short, column in (("auc", "auc"), ("likelihood", "likelihood")):
            pairs = zip(of(rows, f"pooled_{column}", **at), of(rows, column, **at), strict=True)
            lacks = [best - own for best, own in pairs]
            found.setdefault(short, []).append(sum(lacks) / len(lacks))
    return found


def numbers(rows, setting):
    found = {}
    judged = [name for name in setting["tables"] if name not in CHOSEN]
    found["judged"], found["level"] = f"{len(judged)}", "95"
    found["chosen"] = f"{len(setting['tables']) - len(judged)}"
    found["splits"] = f"{len({row['seed'] for row in rows})}"
    for view in setting["views"]:
        for group, tables in (("judged", judged), ("chosen", CHOSEN)):
            tables = [name for name in tables if name in setting["tables"]]
            for column, values in gaps(rows, view, tables).items():
                found[f"{view}_{group}_{column}"] = _range(values)
            given = [row for row in rows if row["table"] in tables and row["view"] == view]
            widths = [
                sum(values) / len(values)
                for values in (of(given, "width", table=name) for name in tables)
            ]
            found[f"{view}_{group}_width"] = _range(widths)
            shares = [
                100.0 * sum(values) / len(values)
                for values in (of(given, "covered", table=name) for name in tables)
            ]
            found[f"{view}_{group}_covered"] = _range(shares)
            found[f"{view}_{group}_least_auc"] = number(min(row["least_auc"] for row in given), 2)
            found[f"{view}_{group}_worst"] = number(max(row["worst"] for row in given), 2)
    pairs = [
        (row["auc"] > row["once_auc"], row["likelihood"] > row["once_likelihood"]) for row in rows
    ]
    found["pairs"] = f"{len(pairs)}"
    found["ahead_auc"], found["ahead_likelihood"] = (
        f"{sum(part)}" for part in zip(*pairs, strict=True)
    )
    ahead = [
        name
        for name in setting["tables"]
        if sum(of(rows, "once_auc", table=name)) > sum(of(rows, "auc", table=name))
    ]
    found["once_ahead"] = ", ".join(ahead) or "no table"
    found["once_most"] = number(max(row["once_auc"] - row["auc"] for row in rows), 2)
    found["below_base"] = f"{sum(row['likelihood'] < row['base_likelihood'] for row in rows)}"
    return found


def _range(values):
    low, high = (number(end, 2) for end in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def table(rows):
    lines = []
    for name in dict.fromkeys(row["table"] for row in rows):
        first = next(row for row in rows if row["table"] == name)
        use = "settings chosen on it" if name in CHOSEN else "not looked at"
        head = f"{name}: {first['records']:,} records, {first['coefficients']} coefficients; {use}"
        for view in dict.fromkeys(row["view"] for row in rows):
            at = {"table": name, "view": view}
            lines.append([head, VIEWS[view]])
            for column in ("auc", "likelihood"):
                lines[-1] += [
                    said(of(rows, f"{which}{column}", **at)) for which in ("", "once_", "pooled_")
                ]
            covered = 100.0 * sum(of(rows, "covered", **at)) / len(of(rows, "covered", **at))
            lines[-1] += [said(of(rows, "width", **at), 2), number(covered)]
            lines[-1] += [number(max(of(rows, "worst", **at)), 2)]
    heads = [
        "table", "view", "AUC", "AUC, one release", "AUC, pooled (not private)",
        "mean log-likelihood", "likelihood, one release", "likelihood, pooled (not private)",
        "interval width ÷ pooled", "pooled means covered, %", "farthest, own sds",
    ]  # fmt: skip
    return heads, lines


def figure(rows):
    names = sorted(
        dict.fromkeys(row["table"] for row in rows),
        key=lambda name: (
            of(rows, "records", table=name)[0] / of(rows, "coefficients", table=name)[0]
        ),
    )
    lines = []
    for view in dict.fromkeys(row["view"] for row in rows):
        points = []
        for k, name in enumerate(names):
            at = {"table": name, "view": view}
            both = zip(of(rows, "pooled_auc", **at), of(rows, "auc", **at), strict=True)
            points.append((k, [best - own for best, own in both]))
        lines.append(Line(VIEWS[view], points))
    return Chart(
        "substitute, ε = 1; pooled: not private; *: settings chosen on it",
        "tables, from few to many records a coefficient",
        "AUC below that of the pooled fit", lines, log_y=True, apart=10.0,
        x_names=[f"{name} *" if name in CHOSEN else name for name in names],
    )  # fmt: skip


CLAIM = Claim(
    paper="Beyond the papers",
    title="Settings that nobody tuned predict nearly as well as all records pooled",
    source="fedvi, [modes](modes.md)",
    says="A study that `fedvi init --yes` drafts needs no tuning: it predicts nearly as well as "
    "the pooled fit, and its intervals are wider by as much as noise hides.",
    price="Substitute a record, ε = {epsilon} and the δ that is drafted, PLD; view: every message "
    "is seen, or only sums, of which one site tells its share of the noise. Bounds and levels of "
    "columns are public. Four sites: hospitals and regions where a table has them, else records "
    "are dealt out. {splits} splits, {noises} draws of the noise for each.",
    finds="{judged} tables were not looked at when settings were chosen. Where every message is "
    "seen, their AUC is {message_judged_auc} below that of the pooled fit, which is not private, "
    "their mean log-likelihood {message_judged_likelihood} below, and intervals are "
    "{message_judged_width} times as wide. At {level} % these cover {message_judged_covered} % of "
    "the pooled means, by table; the farthest is {message_judged_worst} of its own sds away. "
    "Where only sums are seen, these numbers are {aggregate_judged_auc}, "
    "{aggregate_judged_likelihood}, {aggregate_judged_width}, {aggregate_judged_covered} and "
    "{aggregate_judged_worst}. On the {chosen} tables that settings were chosen on, the AUC is "
    "{message_chosen_auc} and {aggregate_chosen_auc} below. A baseline of ten lines releases "
    "moments once at the same price. In {ahead_auc} of {pairs} runs (table, view and split) its "
    "AUC is smaller, and in {ahead_likelihood} its likelihood; its mean AUC is larger on "
    "{once_ahead}, in one run by {once_most}. Predicting the rate of the training records (not "
    "private) has a larger likelihood in {below_base} of {pairs} runs.",
    verdict="corrected",
    why="It holds for tables of tens of thousands of records, not for those of about a thousand "
    "or fewer. There a single release ranks as well or better, though it has no intervals, and "
    "the study has the better likelihood in {ahead_likelihood} of all {pairs} runs. Where few patients die "
    "(eicu) and every message is seen, a single run may rank worse than a coin (the lowest AUC is "
    "{message_judged_least_auc}). Where noise hides most of the curvature the prior decides: "
    "intervals then miss coefficients several of its sds from zero, as on abalone.",
    alt="Chart: how far the AUC is below that of the pooled fit, for eight tables from few to "
    "many records a coefficient; most for the table where few patients die, least for those with "
    "tens of thousands of records, and smaller where only sums are seen.",
    setting=SETTING,
    quick={"tables": ["heart", "eicu"], "noises": 1},
    run=run,
    numbers=numbers,
    table=table,
    figure=figure,
    by="tables",
    files=(
        "adult/adult.data.gz", "breast-cancer-wisconsin/wdbc.data", "bank-marketing/bank-full.csv.gz",
        "credit-default/UCI_Credit_Card.csv.gz", "diabetes-130-us/diabetic_data.csv.gz",
        "eicu-demo/patient_joined.csv.gz", "abalone/abalone.data", "heart-disease",
    ),
    chosen="chosen on Adult, breast cancer and heart disease; the other five were not looked at for "
    "them",
)  # fmt: skip
