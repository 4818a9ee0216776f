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

fedvi builds on DP-ADVI, VIPS, PVI and DP-PVI, and d3p. This page takes their claims one by one, and
then some of fedvi's own. Each says what the paper says, what its setting really costs, what fedvi
finds at that price, and a verdict:

- **reproduced**: the claim holds here as well;
- **corrected**: it holds at another price than the one that is stated, or only in part;
- **not reproduced**: it does not hold here, and why.

Every number that was measured comes from a result file in `evidence/results`, which names its
command, seeds, versions, commit and machine. A number after ± is the standard deviation over seeds.
`make evidence` runs what has no result yet, `make evidence QUICK=1` a cut version of all, and `make
evidence CHECK=1` fails where this page and the files disagree.

A price, ε at a δ, is by PLD unless said. It holds for one relation (`add_remove` a record, or
`substitute` one) and one view: whoever sees every message or step, or only the sum over sites. See
[views and relations](concepts/views-and-relations.md). Noise is told by its standard deviation ÷ the
clip norm, which others call the noise multiplier; where nothing is clipped, what bounds a record takes
the clip norm's place.
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
    heading = ""
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
        verdicts.append(f"| {claim.paper} | [{claim.title}](#{anchor}) | {claim.verdict} |")
    table = "| from | claim | verdict |\n|---|---|---|\n" + "\n".join(verdicts)
    last = ["## Not run yet\n\nNo verdict is given on these.\n\n" + "\n".join(missing)]
    made[""] = "\n\n".join([_HEAD.strip(), table, *sections, *(last if missing else [])]) + "\n"
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
    return "\n\n".join(
        [
            f"### {claim.title}",
            f"**The paper.** {claim.says} *Source: {claim.source}.*",
            f"**What its setting costs.** {claim.price.format(**filled)}",
            f"**What fedvi finds.** {claim.finds.format(**filled)}",
            f"![{alt}]({figure})",
            table,
            f"**Verdict: {claim.verdict}.** {claim.why.format(**filled)}",
            f"*[Result file](../evidence/results/{name}.json), by `{made['command']}`: {seeds}; settings: "
            f"{claim.chosen}; commit {made['commit']}, {made['machine']}, {seconds} s.*",
        ]
    )


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
