"""Makes docs/evidence.md and its figures of the result files, and checks that they still agree."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evidence import base, claims, figures, pictures
from evidence.base import Claim, Result

__all__ = ["PAGE", "RESULTS", "check", "numbers", "pages", "write"]

RESULTS = base.ROOT / "evidence" / "results"
PAGE = base.ROOT / "docs" / "evidence.md"

_HEAD = """# Evidence: the founding papers' claims, run again

fedvi builds on four lines of work. This page tests claims of their papers one by one, and then some of
fedvi's own, under "Beyond the papers".

- **DP-ADVI**: variational inference by noised gradients (Jälkö and others, 2017).
- **VIPS**: variational inference by noised expected statistics (Park and others, 2016 and 2020).
- **PVI and DP-PVI**: partitioned variational inference over several sites, or clients, and its private
  form (Bui and others, 2018; Ashman and others, 2022; Heikkilä and others, 2023).
- **d3p**: software for private variational inference with NumPyro (Prediger and others, 2022).

Each section has the claim, its setting and what that really costs, what fedvi finds at that price, and
a verdict:

- **reproduced**: the claim holds here as well;
- **corrected**: it holds at another price than the stated one, or only in part;
- **not reproduced**: it does not hold here.
"""

_TERMS = """## Terms

- **ε** is stated at a δ, by PLD (privacy loss distributions, the tightest method here) unless said. Other
  methods to compose steps are RDP, zCDP, the moments accountant of 2016, advanced composition (also
  called strong) and linear composition.
- **Relation**: ε holds if one record is added or removed (`add_remove`), or if one is replaced
  (`substitute`), which costs about twice as much.
- **View**: ε holds for somebody who sees every message or step, or who sees only sums over sites. See
  [views and relations](concepts/views-and-relations.md).
- **Batches**: a Poisson batch has each record with the same probability, its *rate*. A batch of a fixed
  size costs more; a Feistel network is a quick way to draw one.
- **Noise ÷ clip norm** is the standard deviation of the noise, which others call the noise multiplier.
  Where nothing is clipped, the bound of a record takes the place of the clip norm.
- **Gradients**: *plain* (or full) ones are clipped and noised for every parameter of the guide,
  *aligned* ones for the latents that all records share.
- **Pooled** is the fit to the records of all sites in one place, which is not private. KL is the
  Kullback–Leibler divergence from it, in nats; AUC is the area under the ROC curve.
- **±** is followed by the standard deviation over seeds.

Every measured number comes from a result file in `evidence/results`, which has its command, seeds,
versions, commit and machine. The line below each verdict says on which data the settings were chosen; a +
after a commit means that code differed from it. `make evidence` runs what has no result yet, `make
evidence QUICK=1` a cut version of all, and `make evidence CHECK=1` fails where page and files disagree.
"""


def numbers(claim: Claim, result: Result) -> Mapping[str, str]:
    """Returns every number that the claim's text may name, as it is written."""
    setting = {name: _told(value) for name, value in result.setting.items()}
    return {**setting, **claim.numbers(result.rows, result.setting)}


def pages(results: Path = RESULTS, folder: str = "evidence") -> dict[str, str]:
    """Returns the page, under "", and each figure under its claim's name.

    A claim without a result is named as not run.
    """
    made, verdicts, sections, missing = {}, [], [], []
    heading, counts = "", dict.fromkeys(base.VERDICTS, 0)
    for name in claims.ALL:
        claim = base.load(name)
        result = base.read(results / f"{name}.json")
        if result is None:
            missing.append(f"- {claim.title} ({claim.paper})")
            continue
        if claim.paper != heading:
            heading = claim.paper
            sections.append(f"## {heading}")
        filled = numbers(claim, result)
        alt = claim.alt.format(**filled)
        drawn = claim.figure(result.rows)
        is_chart = isinstance(drawn, figures.Chart)
        made[name] = figures.svg(drawn, alt) if is_chart else pictures.svg(drawn, alt)
        sections.append(_section(name, claim, result, filled, f"{folder}/{name}.svg"))
        anchor = _anchor(claim.title)
        short = _first(claim.why.format(**filled))
        counts[claim.verdict] += 1
        verdicts.append(
            f"| {claim.paper} | [{claim.title}](#{anchor}) | **{claim.verdict}**: {short} |"
        )
    table = "| from | claim | verdict |\n|---|---|---|\n" + "\n".join(verdicts)
    tally = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    last = ["## Not run yet\n\nNo verdict is given on these.\n\n" + "\n".join(missing)]
    table = f"Of {len(verdicts)} claims: {tally}.\n\n{table}"
    made[""] = (
        "\n\n".join([_HEAD.strip(), table, _TERMS.strip(), *sections, *(last if missing else [])])
        + "\n"
    )
    return made


def _section(
    name: str, claim: Claim, result: Result, filled: Mapping[str, str], figure: str
) -> str:
    heads, lines = claim.table(result.rows)
    rows = [heads, ["---"] * len(heads), *lines]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    count = len({row["seed"] for row in result.rows})
    seeds = "one seed" if count == 1 else f"{count} seeds"
    if len(claim.seeds) == 1:
        seeds = "nothing is drawn at random"
    made = result.made
    seconds = base.number(sum(result.seconds.values()), 3)
    alt = claim.alt.format(**filled)
    says = "The claim" if claim.paper == base.OWN else "The paper"
    return "\n\n".join(
        [
            f"### {claim.title}",
            f"**{says}.** {claim.says} *Source: {claim.source}.*",
            f"**Setting and price.** {claim.price.format(**filled)}",
            f"**What fedvi finds.** {claim.finds.format(**filled)}",
            f"![{alt}]({figure})",
            table,
            f"**Verdict: {claim.verdict}.** {claim.why.format(**filled)}",
            f"*[Result file](../evidence/results/{name}.json), by `{made['command']}`: {seeds}; settings: "
            f"{claim.chosen}; commit {made['commit']}, {made['machine']}, {seconds} s.*",
        ]
    )


def _first(text: str) -> str:
    """The first sentence, which says of itself why the verdict is what it is."""
    return text.split(". ")[0].removesuffix(".") + "."


def _anchor(title: str) -> str:
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def _told(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_told, value))
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}".replace("e-0", "e−") if isinstance(value, float) else str(value)


def write(page: Path = PAGE, results: Path = RESULTS) -> None:
    """Writes the page, and the figures into a folder of its name beside it."""
    made = pages(results, page.stem)
    folder = page.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    for stale in {path.stem for path in folder.glob("*.svg")} - set(made):
        (folder / f"{stale}.svg").unlink()
    page.write_text(made.pop(""), encoding="utf-8")
    for name, text in made.items():
        (folder / f"{name}.svg").write_text(text, encoding="utf-8")


def check(page: Path = PAGE, results: Path = RESULTS) -> list[str]:
    """Returns in what page and files disagree, and which files are stale."""
    wrong = []
    known = {path.stem for path in results.glob("*.json")}
    wrong += [f"{name}.json is of no claim" for name in sorted(known - set(claims.ALL))]
    for name in sorted(known & set(claims.ALL)):
        claim, result = base.load(name), base.read(results / f"{name}.json")
        assert result is not None
        if not result.fits(claim, claim.setting):
            wrong.append(
                f"{name}.json is of another setting or of other seeds than evidence/claims/{name}.py; "
                f"run: python -m evidence {name} --again"
            )
    if wrong:
        return wrong
    made = pages(results, page.stem)
    said = page.read_text(encoding="utf-8") if page.is_file() else ""
    differing = difflib.unified_diff(said.splitlines(), made.pop("").splitlines(), lineterm="", n=0)
    for line in list(differing)[2:]:
        if not line.startswith("@@"):
            what = "the page has" if line[0] == "-" else "the files say"
            wrong.append(f"{page.name}: {what}: {line[1:]}")
    for name, text in made.items():
        figure = page.with_suffix("") / f"{name}.svg"
        if not figure.is_file() or figure.read_text(encoding="utf-8") != text:
            wrong.append(f"{figure.name} is not what {name}.json draws")
    return wrong
