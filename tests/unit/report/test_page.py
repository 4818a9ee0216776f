"""Claims about the page of a report: it says what it was given, and nothing that it was given runs."""

import csv
import math
import re
import xml.etree.ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fedvi import errors
from fedvi.report import (
    canvas,
    comparison,
    comparison_section,
    exports,
    figures,
    front,
    page,
    sections,
    sheets,
)
from fedvi.report import contents as values
from fedvi.report.canvas import Figure
from fedvi.report.contents import (
    Claimed,
    Coefficient,
    Contents,
    Round,
    Site,
    Spending,
    Statement,
    Topic,
)

HOSTILE = "</style><script>alert(1)</script><img src=http://example.org/x onerror=alert(2)>"
MARK = "simulation: no guarantee"


def made(**fields: Any) -> Contents:
    """A report on a small private run."""
    claims = tuple(
        Claimed(name, "message", "neighbours differ", epsilon, 1e-5, promised, (), 0.7, 0.9)
        for name, epsilon, promised in (("add_remove", 1.00001, None), ("substitute", 2.0, 2.0))
    )
    statement = Statement(
        site="north",
        protected=True,
        unit="patient",
        view="message: whoever sees every message",
        accountant="pld",
        claims=claims,
        facts=(("mechanism", "Gaussian noise"),),
        releases=2,
        head="6:ab12",
        mark="",
        exceeded=(),
        declared=("a declaration",),
        assumed=("an assumption",),
        excluded=("an exclusion",),
        lifetime="",
    )
    stated = tuple((claim.relation, claim.epsilon, claim.delta) for claim in claims)
    return Contents(
        study="heart",
        digest="ab" * 32,
        source="server",
        status="completed",
        ran="0.1.0",
        written="0.1.0",
        plan=(("model", "logistic: y ~ age"),),
        protected=True,
        mark="",
        warnings=(),
        gaussian=True,
        ratio="odds",
        size=2,
        coefficients=(
            Coefficient("(Intercept)", "", -1.5, 0.5, -2.48, -0.52, 0.22, 0.08, 0.59, 0.0, 2.5),
            Coefficient("age", "per 10 from 55", 0.1, 0.5, -0.88, 1.08, 1.1, 0.4, 2.9, 0.0, 2.5),
        ),
        topics=(),
        remarks=(),
        prior_note="",
        rounds_planned=2,
        rounds=(
            Round(1, 1, ("north", "south"), (), (), (), 1.0, 2.0, 1.5),
            Round(2, 2, ("north",), ("south",), (), (), 0.5, 0.04, 1.1),
        ),
        one_shot_gap=None,
        sites=(
            Site("north", 2, 2, "6:ab12", stated, 0, None, None, None, 0.75, (0.5, -0.2), ""),
            Site("south", 1, 1, "3:cd34", stated, 1, None, None, None, 0.25, None, "too noisy"),
        ),
        influence_note="first order",
        noised=True,
        spending=(
            Spending(("north",), "add_remove", (1, 2), (0.6, 1.00001), 1.00001, None),
            Spending(("north",), "substitute", (1, 2), (1.2, 2.0), 2.0, 2.0),
            Spending(("south",), "add_remove", (1,), (0.6,), 1.00001, None),
            Spending(("south",), "substitute", (1,), (1.2,), 2.0, 2.0),
        ),
        statements=(statement,),
        consortium=None,
        predictions=None,
        public_file="",
    )._replace(**fields)


def silent() -> tuple[Site, ...]:
    """The sites of ``made``, of whose shifts nothing is known."""
    return tuple(site._replace(shifts=None) for site in made().sites)


def html(contents: Contents) -> str:
    return page.html(page.said(contents))


class Elements(HTMLParser):
    """The elements of a page and their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def hostile() -> Contents:
    """Every text of a report is somebody's attempt."""
    plain = made()
    named = [row._replace(name=HOSTILE, unit=HOSTILE) for row in plain.coefficients]
    site = plain.sites[0]._replace(name=HOSTILE, reason=HOSTILE, head=HOSTILE)
    statement = plain.statements[0]._replace(
        **dict.fromkeys(("site", "unit", "view", "accountant", "head", "mark"), HOSTILE),
        facts=((HOSTILE, HOSTILE),),
        exceeded=(HOSTILE,),
        excluded=(HOSTILE,),
    )
    return plain._replace(
        **dict.fromkeys(("study", "digest", "mark", "influence_note", "public_file"), HOSTILE),
        plan=((HOSTILE, HOSTILE),),
        warnings=(HOSTILE,),
        remarks=(HOSTILE,),
        coefficients=tuple(named),
        rounds=(plain.rounds[0]._replace(clients=(HOSTILE,)),),
        sites=(site,),
        spending=(plain.spending[0]._replace(sites=(HOSTILE,)),),
        statements=(statement,),
    )


def test_no_text_of_a_study_becomes_an_element() -> None:
    known = {tag for tag, _ in Elements(html(made())).found}
    found = Elements(html(hostile())).found
    assert {tag for tag, _ in found} == known
    assert "script" not in known
    assert not any(name.startswith("on") for _, attributes in found for name in attributes)


def test_a_page_names_nothing_that_would_be_fetched() -> None:
    for text in map(html, (made(), hostile())):
        for tag, attributes in Elements(text).found:
            for name in ("src", "href", "action", "data", "srcset", "poster"):
                assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)
        policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
        assert policy is not None
        assert policy[1].startswith("default-src 'none'; ")
        style = text[text.index("<style>") : text.index("</style>")]
        assert "url(" not in style
        assert "@import" not in style


def test_no_line_ends_between_a_number_and_its_percent_sign() -> None:
    text = html(made(verdict=("leaving out about 83 % of the records",)))
    assert "about 83\N{NO-BREAK SPACE}% of the" in text
    assert not re.search(r"\d %", text)


def test_marks_and_missing_protection_are_where_nobody_overlooks_them() -> None:
    plain = made()
    marked = plain._replace(
        mark=MARK, statements=(plain.statements[0]._replace(mark=MARK, exceeded=("too much",)),)
    )
    text = html(marked)
    # Above, on the statement, and at the foot.
    assert text.count(f"MARKED: {MARK}") == 3
    assert "EXCEEDED: too much" in text
    assert "MARKED" not in html(plain)
    bare = plain._replace(protected=False, spending=())
    assert "NO PRIVACY PROTECTION" in html(bare)
    assert "NO PRIVACY PROTECTION" not in html(plain)


def test_a_claim_is_rounded_up_and_infinity_is_shown() -> None:
    plain = made()
    endless = plain.statements[0].claims[0]._replace(epsilon=math.inf, right=1.0)
    statement = plain.statements[0]._replace(claims=(endless, plain.statements[0].claims[1]))
    (sheet,) = sheets.sheets(plain._replace(statements=(statement,)))
    assert sheet.claims is not None
    assert [row[2] for row in sheet.claims.rows] == ["∞", "2"]
    (sheet,) = sheets.sheets(plain)
    assert sheet.claims is not None
    assert [row[2] for row in sheet.claims.rows] == ["1.001", "2"]
    assert [row[-1] for row in sheet.claims.rows] == ["none set", "2"]


def test_what_is_not_settled_is_said_at_the_top() -> None:
    plain = made()
    assert not sections.banner(plain)
    moving = plain.rounds[1]._replace(shift=0.7)
    (line,) = sections.banner(plain._replace(rounds=(plain.rounds[0], moving)))
    assert "NOT CONVERGED" in line
    # The only round moved it from the prior, however far.
    only = plain._replace(rounds=(plain.rounds[0]._replace(shift=7.0),))
    assert not sections.banner(only)
    assert (
        "the only round moved a mean by 7 posterior sd"
        in dict(sections.in_short(only))["convergence"]
    )
    estimated = only._replace(one_shot_gap=0.44)
    assert "about 0.4 posterior sds" in dict(sections.in_short(estimated))["convergence"]
    assert "about 0.4 posterior sds" in html(estimated)
    nothing = plain._replace(rounds=(plain.rounds[0]._replace(shift=None),))
    assert "No round was completed" in html(nothing)


def test_a_long_table_folds_and_loses_no_row() -> None:
    rows = tuple(
        made().coefficients[1]._replace(name=f"x{index}", mean=index / 100) for index in range(250)
    )
    text = html(made(coefficients=rows, size=250))
    names = re.findall(r'<th role="rowheader" scope="row" class="word">(x\d+)</th>', text)
    # In the table of the posterior, and in that of the prior.
    assert names == 2 * [f"x{index}" for index in range(250)]
    assert text.index("<details class") < text.index(">x40<")
    assert "the 24 of 250 that are furthest from 0" in text


def test_statements_of_many_sites_are_asked_for_by_name() -> None:
    assert "--statement SITE" in html(made(statements=()))
    assert "--statement SITE" not in html(made())


def test_tables_in_markdown_have_the_same_cells_in_every_row() -> None:
    named = made().coefficients[0]._replace(name="a|b_c*`d`")
    text = page.markdown(page.said(made(coefficients=(named, made().coefficients[1]))))
    widths: list[int] = []
    for line in text.splitlines():
        count = len(re.findall(r"(?<!\\)\|", line))
        if line.startswith("|"):
            widths.append(count)
        elif widths:
            assert len(set(widths)) == 1
            assert len(widths) > 2
            widths = []
    assert r"a\|b\_c\*\`d\`" in text


def test_a_posterior_that_is_no_gaussian_gets_no_interval() -> None:
    topics = (Topic("topic 0", ("night", "day"), (0.1, 0.05)),)
    found = sections.sections(made(topics=topics, gaussian=False, ratio=""))[0]
    assert [table.names for table in found.tables] == [
        ("topic", "words"),
        ("quantity", "unit", "mean", "sd"),
    ]
    small = made().coefficients[0]._replace(mean=0.000281, sd=0.0000486)
    (table,) = sections.sections(
        made(coefficients=(small,), sites=silent(), gaussian=False, ratio="")
    )[0].tables
    assert table.rows[0][-2:] == ("0.000281", "4.86e-05")
    assert found.tables[0].rows == (("topic 0", "night (0.1), day (0.05)"),)
    assert found.figures == ()


@pytest.mark.parametrize("name", ["=1+1", "+x", "-x", "@SUM(A1)", "\t=1"])
def test_no_text_of_a_study_is_a_formula_of_a_spreadsheet(tmp_path: Path, name: str) -> None:
    row = made().coefficients[0]._replace(name=name)
    exports.write(made(coefficients=(row,)), tmp_path, ["csv"])
    with (tmp_path / "coefficients.csv").open(encoding="utf-8", newline="") as file:
        (found,) = csv.DictReader(file)
    # Also after a tab, where a spreadsheet may begin a cell.
    assert found["name"] == ("'\t'=1" if name == "\t=1" else f"'{name}")
    assert float(found["mean"]) == row.mean < 0


def test_an_intercept_is_told_where_its_covariates_stand() -> None:
    said = " ".join(sections.sections(made())[0].lead)
    assert "multiplies the odds" in said
    # Age counts from 55: nobody is 0 years old.
    assert "a covariate with a unit has the number after “from”" in said
    rows = tuple(row._replace(unit="") for row in made().coefficients)
    assert "all covariates are at 0" in " ".join(sections.sections(made(coefficients=rows))[0].lead)


def test_json_holds_what_json_cannot_spell() -> None:
    plain = values.as_dict(made(spending=(Spending((), "substitute", (1,), (math.inf,), None, 1),)))
    assert plain["spending"][0]["epsilon"] == ["inf"]
    assert plain["coefficients"][0]["name"] == "(Intercept)"


def drawn() -> list[Figure]:
    contents = made()
    participation = figures.participation(contents.rounds, contents.sites)
    assert participation is not None
    return [
        figures.forest(contents.coefficients, "odds"),
        figures.forest(contents.coefficients, ""),
        figures.prior_and_posterior(contents.coefficients),
        figures.convergence(contents.rounds, 0.3),
        figures.influence(contents.sites),
        figures.shifts(contents.sites, ["(Intercept)", "age"]),
        figures.spending(contents.spending),
        participation,
        figures.reliability([{"rows": 10, "predicted": 0.2, "observed": 0.3}]),
    ]


def test_every_figure_is_whole_and_has_words() -> None:
    for figure in drawn():
        root = xml.etree.ElementTree.fromstring(figure.svg)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        for element in root.iter():
            for name, value in element.attrib.items():
                assert not value.startswith(("http:", "https:")), (name, value)
                if name.endswith("href"):
                    assert value.startswith("#")
        assert len(figure.told) > 40
        assert "nan" not in figure.told


def test_figures_are_the_same_bytes_again() -> None:
    first = drawn()
    canvas.forget_figures()
    assert drawn() == first


def test_figures_that_a_page_shows_twice_are_drawn_once() -> None:
    assert figures.forest(made().coefficients, "odds") is figures.forest(
        made().coefficients, "odds"
    )
    assert figures.forest(made().coefficients, "") != figures.forest(made().coefficients, "odds")


def test_a_figure_survives_numbers_at_the_edge() -> None:
    extreme = [
        Coefficient("a", "", 1e6, 1e3, 1e6 - 1960, 1e6 + 1960),
        Coefficient("$b$ %", "", -1e-9, 1e-12, -1.1e-9, -0.9e-9),
    ]
    assert "$b$ %" in figures.forest(extreme, "odds").svg
    still = made().rounds[0]
    for shift in (0.0, math.inf, 1e-300):
        assert figures.convergence([still._replace(shift=shift)], 0.3).svg
    unknown = Spending(("north",), "substitute", (1, 2), (None, math.inf), None, None)
    assert "∞" in figures.spending([unknown]).told
    assert figures.spending([unknown._replace(releases=(), epsilon=())]).svg


def test_what_cannot_be_told_apart_is_not_drawn() -> None:
    contents = made()
    assert figures.participation((), contents.sites) is None
    many = tuple(contents.sites[0]._replace(name=f"s{index}") for index in range(41))
    assert figures.participation(contents.rounds, many) is None


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    canvas.forget_figures()
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(errors.ConfigError, match=r"matplotlib") as caught:
        figures.forest(made().coefficients, "odds")
    assert "pip install 'fedvi[report]'" in (caught.value.hint or "")


# Ratios that are not of one unit more

NOTED = (
    Coefficient("a", "", 0.5, 0.1, 0.3, 0.7, 1.65, 1.35, 2.01, ratio_note="where g is p"),
    Coefficient("a:g[q]", "", 0.2, 0.1, 0.0, 0.4, 1.22, 1.0, 1.49, ratio_note="a ratio of ratios"),
    Coefficient("bs(b)[1]", "", 3.2, 0.1, 3.0, 3.4, ratio_note="a part of the curve bs(b)"),
)


def test_what_is_no_ratio_of_one_unit_more_says_what_it_is() -> None:
    section = sections.sections(made(coefficients=NOTED, size=3, sites=silent()))[0]
    (table,) = section.tables
    assert table.names[-1] == "note on the ratio"
    assert [row[-2:] for row in table.rows] == [
        ("1.65 (1.35 to 2.01)", "where g is p"),
        ("1.22 (1 to 1.49)", "a ratio of ratios"),
        ("–", "none: a part of the curve bs(b)"),
    ]
    said = " ".join(section.lead)
    for expected in ("multiplies the ratio of the other", "holds only there", "A dash means"):
        assert expected in said
    plain = sections.sections(made())[0]
    assert "note on the ratio" not in plain.tables[0].names
    assert "ratio of ratios" not in " ".join(plain.lead)
    # Of a posterior that is no Gaussian no interval is known, and none of a ratio.
    (table,) = sections.sections(made(coefficients=NOTED, size=3, sites=silent(), gaussian=False))[
        0
    ].tables
    assert table.names == ("quantity", "mean", "sd")
    assert {len(row) for row in table.rows} == {3}


def test_a_forest_puts_no_scale_of_ratios_over_what_has_none() -> None:
    def panels(rows: Any, ratio: str) -> list[str]:
        """By panel, what stands at its axes."""
        svg = xml.etree.ElementTree.fromstring(figures.forest(rows, ratio).svg)
        (drawn,) = (g for g in svg.iter() if g.get("id") == "figure_1")
        found = [g for g in drawn if g.get("id", "").startswith("axes_")]
        return [" ".join("".join(text.itertext()) for text in g.iter()) for g in found]

    above, below = panels(NOTED, "odds")
    assert "a:g[q]" in above
    assert "log odds ratio" in above
    assert "bs(b)[1]" not in above
    assert "bs(b)[1]" in below
    assert "no log odds ratio" in below
    (only,) = panels(NOTED[:2], "odds")
    assert "no log odds ratio" not in only
    assert len(panels(NOTED, "")) == 1
    # What is compared with nothing does not stand out.
    assert "bs(b)" not in figures.forest(NOTED, "odds").told


def test_every_file_of_numbers_has_the_notes(tmp_path: Path) -> None:
    exports.write(made(coefficients=NOTED, size=3, sites=silent()), tmp_path, ["csv", "md", "json"])
    with (tmp_path / "coefficients.csv").open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    assert [row["ratio_note"] for row in found] == [row.ratio_note for row in NOTED]
    assert found[2]["ratio"] == ""
    for name in ("report.md", "report.json"):
        assert "a part of the curve bs(b)" in (tmp_path / name).read_text(encoding="utf-8")


# Files of an earlier report, and characters that steer


def test_a_report_leaves_no_file_of_an_earlier_one_and_nobody_elses(tmp_path: Path) -> None:
    first = exports.write(made(), tmp_path)
    (tmp_path / "mine.csv").write_text("x\n")
    second = exports.write(made(sites=silent()), tmp_path)
    assert {path.name for path in first} - {path.name for path in second} == {"shifts.csv"}
    assert not (tmp_path / "shifts.csv").exists()
    exports.write(made(), tmp_path, ["json"])
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["mine.csv", "report.json"]
    # A table of somebody's own that has the name of ours.
    (tmp_path / "sites.csv").write_text("site,city\n")
    exports.write(made(), tmp_path, ["html"])
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == [
        "mine.csv",
        "report.html",
        "sites.csv",
    ]
    with pytest.raises(errors.ConfigError, match=r"sites\.csv is not as `fedvi report` left it"):
        exports.write(made(), tmp_path)
    assert (tmp_path / "sites.csv").read_text() == "site,city\n"
    assert not (tmp_path / "report.json").exists()  # nothing is written


def test_no_text_of_a_report_steers_a_terminal_or_the_direction_of_reading() -> None:
    steering = "\x1b[31mred\x07\u202e\nand\ufffe more"
    row = made().coefficients[1]._replace(name=steering)
    found = values.printable(
        made(coefficients=(row,), sites=silent(), warnings=(steering,), study=steering)
    )
    shown = "�[31mred�� and� more"
    assert (found.coefficients[0].name, found.warnings, found.study) == (shown, (shown,), shown)
    assert found.coefficients[0].mean == row.mean
    for text in (html(found), figures.forest(found.coefficients, "odds").svg):
        assert not set(text) & set("\x1b\x07\u202e\ufffe")
    xml.etree.ElementTree.fromstring(figures.forest(found.coefficients, "odds").svg)


def test_what_coefficients_are_is_said_before_their_numbers() -> None:
    found = sections.sections(made(remarks=("coefficients are on another scale",)))[0]
    assert "Coefficients are on another scale." in found.lead
    (line,) = sections.banner(made(warnings=("solver.kind is 'vips'",)))
    assert line == "solver.kind is 'vips'."


def test_the_label_of_settled_stands_where_the_curve_comes_from() -> None:
    first = made().rounds[0]
    rounds = [first._replace(rounds=k, version=k, shift=4.0 / 2**k) for k in range(1, 7)]
    found = re.search(r'x="([\d.]+)"[^>]*>settled: 0\.3 sd<', figures.convergence(rounds, 0.3).svg)
    assert found is not None
    # Of 518 points; the curve ends at the right, below the line.
    assert float(found[1]) < 100.0


@pytest.mark.parametrize(
    ("per", "words"), [("", ""), ("file", "unit of the file"), ("model", "units of the model")]
)
def test_a_likelihood_says_of_what_unit_it_is_a_density(per: str, words: str) -> None:
    predictions = {"rows": 3, "left_out": 0, "mean_log_likelihood": -2.5, "density_per": per}
    shown = made()._replace(predictions=predictions, public_file="test.csv")
    (found,) = [one for one in sections.sections(shown) if one.key == "predictions"]
    (name,) = [row[0] for row in found.tables[0].rows if row[1] == "-2.5"]
    assert name.startswith("mean log-likelihood")
    assert words in name
    assert ("(" in name) == bool(words)


# The first page, and what people read


def test_the_first_page_says_what_was_found_and_what_was_promised() -> None:
    age = made().coefficients[1]
    clear = age._replace(
        name="sex[m]", label="sex m", unit="", compared="against f", mean=0.9, lower=0.2
    )
    contents = made(
        outcome="died",
        coefficients=(made().coefficients[0], age._replace(compared="10 more"), clear),
        verdict=("1 of 2 effects stands out: sex m",),
        stand_out=("sex[m]",),
        sites=silent(),
    )
    found = front.front(contents)
    assert found.asked[0] == "What goes with died?"
    assert found.answer == ("1 of 2 effects stands out: sex m.",)
    assert found.effects is not None
    # What stands out comes first; an intercept is no effect.
    assert [row[:2] for row in found.effects.rows] == [("sex m", "against f"), ("age", "10 more")]
    assert [row[-1] for row in found.effects.rows] == ["higher odds", "open"]
    assert not any("“?”" in line for line in found.reading)
    doubtful = front.front(contents._replace(by_chance=("sex[m]",)))
    assert doubtful.effects is not None
    assert [row[-1] for row in doubtful.effects.rows] == ["higher odds?", "open"]
    assert any("“?”: of so many effects" in line for line in doubtful.reading)
    # One site was asked for and there is no statement of all: its own stands there, 0.7 at both relations.
    assert found.privacy[0].count("at most 70.0 % of") == 2
    assert "ε = 2 at δ = 1e-05 under substitute, where the study allows 2" in found.privacy[1]
    assert "Another run on the same records would spend as much again." in found.privacy[1]
    assert found.privacy[1].endswith("The last pages are statements to be signed.")
    simulated = front.front(contents._replace(source="simulation"))
    assert "to be signed" not in simulated.privacy[1]
    assert len(found.privacy) == 2
    own = contents.statements[0]
    of_all = own._replace(
        claims=tuple(one._replace(promised=None, epsilon=3.0) for one in own.claims)
    )
    twice = front.front(contents._replace(consortium=of_all)).privacy[2]
    assert twice.startswith("These figures are for a person who is at every site")
    assert (
        "For a person at one site, ε is at most 2 under substitute, where the study allows 2"
        in twice
    )
    said = html(contents)
    assert said.index("1 of 2 effects") < said.index("The study and its run")
    assert "sex[m]" not in page.markdown(page.said(contents))


def test_the_first_page_of_what_promises_nothing_says_so() -> None:
    (line,) = front.front(made(protected=False, spending=())).privacy
    assert line.startswith("Nothing was promised")
    assert "statistics without noise" in front.front(made(protected=False)).asked[-1]


def test_what_cannot_be_read_alone_is_on_no_first_page() -> None:
    found = front.front(made(coefficients=NOTED, size=3, sites=silent(), outcome="died"))
    assert found.effects is not None
    assert [row[:2] for row in found.effects.rows] == [
        ("a", "where g is p"),
        ("a:g[q]", "a ratio of ratios"),
    ]
    # Its curve is drawn where all coefficients are.
    assert not found.is_whole
    assert (
        page.said(made(coefficients=NOTED, size=3, sites=silent(), outcome="died"))
        .sections[0]
        .figures
    )
    assert front.front(made(gaussian=False, ratio="", outcome="died")).effects is None


def beside(**fields: Any) -> Contents:
    alone = ((-1.0, 0.9), (0.3, 0.8))
    sites = tuple(site._replace(alone=alone) for site in made().sites)
    return made(sites=sites)._replace(**fields)


def test_the_answer_stands_beside_each_site_and_the_pooled_fit() -> None:
    section = comparison_section.comparison_section(beside())
    assert section is not None
    ((_, figure),) = section.figures
    assert "north alone is about 1.8 times as wide" in figure.told
    assert "pooled" not in figure.svg + figure.told
    assert section.tables == ()
    pooled = tuple(row._replace(pooled_mean=-1.2, pooled_sd=0.25) for row in made().coefficients)
    both = comparison_section.comparison_section(beside(coefficients=pooled))
    assert both is not None
    ((_, figure),) = both.figures
    assert "2 to 2 times as wide as the pooled fit" in figure.told
    assert "pooled, NOT private" in figure.svg
    assert "NOT private" in " ".join(both.lead)
    assert both.tables[0].rows[0] == ("(Intercept)", "-1.500 (0.500)", "-1.200 (0.250)", "2")
    # Nothing to compare with, or no intervals.
    assert comparison_section.comparison_section(made()) is None
    assert comparison_section.comparison_section(beside(gaussian=False)) is None


def test_a_site_without_a_word_of_its_own_is_named() -> None:
    third = made().sites[0]._replace(name="east", alone=None)
    section = comparison_section.comparison_section(beside(sites=(*beside().sites, third)))
    assert section is not None
    assert "Nothing can be said of east alone." in section.notes


def test_a_table_is_slim_where_its_letters_fit_a_phone() -> None:
    numbers = sections.Table("c", ("round", "largest ratio"), (("1", "2.25"),), ())
    assert numbers.is_slim
    assert not numbers._replace(rows=(("1", "0." + "9" * 40),)).is_slim
    # Words are broken at blanks.
    assert numbers._replace(rows=(("1", "word " * 20),), words=("largest ratio",)).is_slim


def test_a_figure_has_a_narrow_twin_for_phones() -> None:
    for figure in (*drawn(), comparison.comparison(beside().coefficients, (0, 1), beside().sites)):
        sizes = [
            float(xml.etree.ElementTree.fromstring(svg).get("width", "").removesuffix("pt"))
            for svg in (figure.svg, figure.narrow)
        ]
        assert sizes[1] < 0.6 * sizes[0]
    text = html(made())
    assert text.count('<img class="narrow"') == text.count('<img class="broad"') > 3
