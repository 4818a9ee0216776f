"""The page of evidence: it says what its result files say, its claims run, and what is absent is named."""

import base64
import dataclasses
import itertools
import json
import math
import os
import re
import shutil
import zlib
from pathlib import Path

import pytest

from evidence import __main__ as command
from evidence import alone, base, claims, page, pictures, turns, zoo
from evidence.figures import Chart, Line, svg

# Those that take seconds; the others need tables that a clone is without, or minutes.
FAST = (
    *("advi_compositions", "vips_compositions", "vips_not_private"),
    *("pvi_schedules", "pvi_aggregate", "d3p_batches", "sums_price"),
)


def test_the_page_says_what_its_result_files_say() -> None:
    assert page.check() == []


@pytest.mark.parametrize("name", claims.ALL)
def test_the_table_of_verdicts_has_the_first_sentence_of_each(name: str) -> None:
    if not (page.RESULTS / f"{name}.json").is_file():
        pytest.skip("not run yet")
    claim = base.load(name)
    text = page.PAGE.read_text(encoding="utf-8")
    ((verdict, short),) = re.findall(
        rf"^\| [^|]* \| \[{re.escape(claim.title)}\]\(#[^)]*\) \| \*\*(.*?)\*\*: (.*) \|$",
        text,
        re.MULTILINE,
    )
    assert verdict == claim.verdict
    assert f"**Verdict: {verdict}.** {short}" in text


@pytest.fixture
def copied(tmp_path: Path) -> tuple[Path, Path]:
    """A copy of the page with its figures, and of the result files."""
    written, results = tmp_path / "evidence.md", tmp_path / "results"
    shutil.copy(page.PAGE, written)
    shutil.copytree(page.PAGE.with_suffix(""), written.with_suffix(""))
    shutil.copytree(page.RESULTS, results)
    assert page.check(written, results) == []
    return written, results


def test_a_number_that_was_changed_on_the_page_is_found(copied: tuple[Path, Path]) -> None:
    written, results = copied
    claim, result = base.load("sums_price"), base.read(results / "sums_price.json")
    assert result is not None
    number = page.numbers(claim, result)["many_times"]
    text = written.read_text(encoding="utf-8")
    assert number in text
    written.write_text(text.replace(f"and {number} times", "and 99 times"), encoding="utf-8")
    wrong = page.check(written, results)
    assert any("the page has" in line and "99 times" in line for line in wrong)
    assert any("the files say" in line and number in line for line in wrong)


def test_a_number_that_was_changed_in_a_result_file_is_found(copied: tuple[Path, Path]) -> None:
    written, results = copied
    path = results / "sums_price.json"
    told = json.loads(path.read_text(encoding="utf-8"))
    told["rows"][0][-1] *= 2.0
    path.write_text(json.dumps(told), encoding="utf-8")
    assert any("the files say" in line for line in page.check(written, results))


def test_a_figure_that_was_drawn_from_other_numbers_is_found(copied: tuple[Path, Path]) -> None:
    written, results = copied
    figure = written.with_suffix("") / "sums_price.svg"
    figure.write_text(figure.read_text(encoding="utf-8").replace("200", "300"), encoding="utf-8")
    assert page.check(written, results) == ["sums_price.svg is not what sums_price.json draws"]


def test_a_result_of_another_setting_is_stale(copied: tuple[Path, Path]) -> None:
    written, results = copied
    path = results / "sums_price.json"
    told = json.loads(path.read_text(encoding="utf-8"))
    told["setting"]["rounds"] += 1
    path.write_text(json.dumps(told), encoding="utf-8")
    (wrong,) = page.check(written, results)
    assert "another setting" in wrong
    assert "python -m evidence sums_price --again" in wrong


def test_a_claim_whose_text_holds_a_number_of_its_own_is_refused() -> None:
    claim = base.load("sums_price")
    with pytest.raises(ValueError, match=r"finds of .* holds the number '4'"):
        dataclasses.replace(claim, finds="the noise is 4.2 times less")


@pytest.mark.parametrize("name", claims.ALL)
def test_every_claim_has_three_seeds_or_draws_nothing(name: str) -> None:
    claim = base.load(name)
    assert len(claim.seeds) == 1 or len(set(claim.seeds)) >= 3
    assert set(claim.quick) <= set(claim.setting)
    result = base.read(page.RESULTS / f"{name}.json")
    if result is not None and len(claim.seeds) == 1:
        assert {row["seed"] for row in result.rows} == set(claim.seeds)


def test_a_table_that_is_absent_is_named_and_the_rest_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ["advi_abalone", "sums_price"]
    assert (
        command.main([*chosen, "--quick", "--build", f"{tmp_path}", "--data", f"{tmp_path}"]) == 0
    )
    printed = capsys.readouterr().out
    assert "advi_abalone: left out: no table abalone/abalone.data" in printed
    assert (tmp_path / "quick" / "sums_price.json").is_file()
    made = (tmp_path / "evidence.md").read_text(encoding="utf-8")
    left = made[made.index("## Not run yet") :]
    assert base.load("advi_abalone").title in left
    assert base.load("sums_price").title not in left


def test_a_peer_that_is_not_installed_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = base.load("sums_price")
    beside = dataclasses.replace(claim, peers=("a_peer_that_is_not_there",))
    needing = dataclasses.replace(claim, modules=("a_peer_that_is_not_there",))
    given = {"sums_price": beside, "sums_adult": needing}
    monkeypatch.setattr(base, "load", lambda name: given.get(name, claim))
    assert command.main([*given, "--quick", "--build", f"{tmp_path}"]) == 0
    printed = capsys.readouterr().out
    assert "sums_price: left out of it: a_peer_that_is_not_there is not installed" in printed
    assert "sums_adult: left out: a_peer_that_is_not_there is not installed" in printed
    assert (tmp_path / "quick" / "sums_price.json").is_file()


def test_parts_of_a_seed_are_run_by_themselves(tmp_path: Path) -> None:
    claim = dataclasses.replace(
        base.load("sums_price"),
        run=lambda setting, seed: [{"value": item + seed} for item in setting["items"]],
        setting={"items": [10, 20]},
        quick={},
        seeds=(0, 1, 2),
        by="items",
    )
    result = base.run("claim", claim, tmp_path / "claim.json", False, "a machine")
    assert base.of(result.rows, "value") == [10, 11, 12, 20, 21, 22]
    assert result.fits(claim, claim.setting)
    assert not result.fits(claim, {"items": [10, 20, 30]})


def test_seeds_that_are_done_survive_a_stop(tmp_path: Path) -> None:
    ran = []

    def run(setting: base.Setting, seed: int) -> list[dict[str, float]]:
        if seed == 2 and len(ran) == 2:
            ran.append(-1)
            raise KeyboardInterrupt
        ran.append(seed)
        return [{"value": seed * setting["factor"]}]

    claim = dataclasses.replace(
        base.load("sums_price"), run=run, setting={"factor": 0.5}, quick={}, seeds=(0, 1, 2)
    )
    path = tmp_path / "claim.json"
    with pytest.raises(KeyboardInterrupt):
        base.run("claim", claim, path, False, "a machine")
    result = base.run("claim", claim, path, False, "a machine")
    assert ran == [0, 1, -1, 2]
    assert base.of(result.rows, "value") == [0.0, 0.5, 1.0]
    # Rows of another setting are of no use.
    other = dataclasses.replace(claim, setting={"factor": 2.0})
    assert base.of(base.run("claim", other, path, False, "a machine").rows, "value") == [0, 2, 4]


def test_seeds_of_a_part_share_processes_that_end_with_it(tmp_path: Path, monkeypatch) -> None:
    rivals = turns.rivals()
    monkeypatch.setattr(rivals, "CACHE", tmp_path)
    permuting = rivals.Candidate("permuted", "", ("numpy", "100"), 50, "samplers")
    absent = rivals.Candidate(
        "absent", "a_peer_that_is_not_there", ("numpy", "100"), 50, "samplers"
    )
    seen = []
    for name in ("first", "first", "second"):
        found = turns.timed(name, "8", [permuting, absent], 2)
        assert list(found) == [permuting]
        assert all(microseconds > 0.0 for microseconds in found[permuting])
        (process,) = turns.running().values()
        if hasattr(os, "sched_getaffinity"):
            assert len(os.sched_getaffinity(process.pid)) == 1
        seen.append(process)
    assert seen[0] is seen[1]
    assert seen[0].returncode == 0
    assert seen[2].poll() is None
    turns.end()
    assert seen[2].returncode == 0
    assert not turns.running()


def test_each_two_settings_of_two_factors_meet_in_a_cell_of_the_zoo() -> None:
    factors = {"kind": tuple(zoo.KINDS), **zoo.FACTORS}
    cells = [cell._asdict() for cell in zoo.design()]
    for one, other in itertools.combinations(factors, 2):
        met = {(cell[one], cell[other]) for cell in cells}
        assert met == set(itertools.product(factors[one], factors[other]))


@pytest.mark.parametrize("is_log", [False, True])
def test_a_figure_is_the_same_again_and_has_its_words(is_log: bool) -> None:
    lines = [Line("a < b", [(1.0, [1.0, 2.0]), (10.0, [3.0])]), Line("c", [(1.0, [0.5])], dash=1)]
    chart = Chart("", "x", "y & z", lines, log_x=is_log, log_y=is_log, at=1.0, at_name="level")
    drawn = svg(chart, "what is seen")
    assert drawn == svg(chart, "what is seen")
    for word in ("a &lt; b", "y &amp; z", "level", "<title>what is seen</title>"):
        assert word in drawn
    assert "nan" not in drawn


def test_names_at_the_axis_of_a_figure_are_written_and_their_points_not_joined() -> None:
    lines = [Line("a", [(0.0, [1.0]), (1.0, [2.0])]), Line("b", [(0.1, [3.0]), (1.1, [2.5])])]
    plain = svg(Chart("", "x", "y", lines), "seen")
    named = svg(Chart("", "x", "y", lines, x_names=["first", "second"]), "seen")
    for name in ("first", "second"):
        assert named.count(f">{name}</text>") == 1
    joins = [len(re.findall(r'fill="none" stroke="#', drawn)) for drawn in (plain, named)]
    assert joins == [2, 0]


def test_long_names_at_the_axis_of_a_figure_end_above_its_title() -> None:
    names = ["10, unbalanced-1", "200, a name that is longer"]
    drawn = svg(Chart("", "title", "y", [Line("a", [(0, [1.0]), (1, [2.0])])], x_names=names), "")
    (title,) = re.findall(r'y="(\d+)" text-anchor="middle"', drawn)
    places = re.findall(r'rotate\(-40 [\d.]+ (\d+)\)">([^<]*)<', drawn)
    assert len(places) == len(names)
    for start, name in places:
        # A letter of 14 pixels is about 7 wide; capitals of the title are 12 high.
        assert int(start) + 7.0 * len(name) * math.sin(math.radians(40)) < int(title) - 12


def test_pictures_keep_every_pixel_in_sixteen_levels_of_grey() -> None:
    levels = [(index % 16) / 15.0 for index in range(784)]
    drawn = pictures.svg(pictures.Pictures("", [("a < b", [pictures.packed(levels)])]), "seen")
    assert "a &lt; b" in drawn
    (code,) = re.findall(r"base64,([^\"]+)", drawn)
    png = base64.b64decode(code)
    start = png.index(b"IDAT")
    length = int.from_bytes(png[start - 4 : start], "big")
    raw = zlib.decompress(png[start + 4 : start + 4 + length])
    rows = [raw[15 * row + 1 : 15 * (row + 1)].hex() for row in range(28)]
    assert "".join(rows) == "".join(f"{index % 16:x}" for index in range(784))


@pytest.mark.nightly
def test_a_whole_run_is_timed_in_a_process_of_its_own() -> None:
    (what, seconds), *others = alone.seconds("svi", "mixture", 20).items()
    # It compiles, which takes far longer than twenty steps of some microseconds.
    assert what == "run"
    assert 0.1 < seconds < 300.0
    assert not others


@pytest.mark.nightly
def test_parts_run_by_several_processes_are_what_one_makes_of_them(tmp_path: Path) -> None:
    claim = base.load("pvi_aggregate")
    made = [
        base.run("pvi_aggregate", claim, tmp_path / f"{jobs}.json", False, "a machine", jobs)
        for jobs in (1, 2)
    ]
    assert made[0].rows == made[1].rows
    assert list(made[0].seconds) == list(made[1].seconds)


@pytest.mark.nightly
def test_the_claims_that_take_seconds_run_cut(tmp_path: Path) -> None:
    assert command.main([*FAST, "--quick", "--jobs", "2", "--build", f"{tmp_path}"]) == 0
    made = (tmp_path / "evidence.md").read_text(encoding="utf-8")
    for name in FAST:
        claim = base.load(name)
        assert f"### {claim.title}" in made
        assert f"**Verdict: {claim.verdict}.**" in made
        assert f"](evidence/{name}.svg)" in made
        assert (tmp_path / "evidence" / f"{name}.svg").is_file()
    assert not re.search(r"\{\w+\}|\bnan\b", made)

    rows = {name: base.read(tmp_path / "quick" / f"{name}.json") for name in FAST}
    assert all(rows.values())

    def of(name: str, column: str, **where: object) -> list[float]:
        return base.of(rows[name].rows, column, **where)  # type: ignore[union-attr]

    # Each verdict, of the numbers that the page is made of.
    assert of("advi_compositions", "epsilon", steps=1_000, composition="poster") > of(
        "advi_compositions", "epsilon", steps=1_000, composition="pld"
    )
    order = [
        of("vips_compositions", "epsilon", rounds=20, composition=c)[0]
        for c in ("pld", "rdp", "moments", "advanced", "zcdp")
    ]
    assert order == sorted(order)
    assert min(of("vips_not_private", "at_least")) > 1e6
    assert max(of("pvi_schedules", "kl", table="trauma", method="sequential", rounds=2)) < 1e-4
    assert min(of("pvi_schedules", "kl", table="trauma", method="bfi")) > 1.0
    aggregate = rows["pvi_aggregate"]
    assert aggregate is not None
    assert all(row["actual_mu"] > row["claimed_mu"] for row in aggregate.rows)
    fixed, stated = (of("d3p_batches", "epsilon", price=p) for p in ("fixed", "d3p"))
    assert all(a > 1.5 * b for a, b in zip(fixed, stated, strict=True))
    many = {"relation": "substitute", "sites": 200}
    assert (
        of("sums_price", "sum_noise", view="message", **many)[0]
        > 14.0 * (of("sums_price", "sum_noise", view="sums", **many)[0])
    )
