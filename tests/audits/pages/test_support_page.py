"""The page of the support audit: the numbers it must hold, the losses it must not hide, the files it must refuse."""

import json
import re
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from vhydro.report.charts import Mark, Panel
from vhydro_audits.pages.results import Results
from vhydro_audits.pages.results import read_results as read_any
from vhydro_audits.pages.support import (
    collapse_table,
    collapses,
    headline,
    loss_words,
    place_title,
    reel_words,
    write_support_page,
)
from vhydro_audits.pages.support_figures import (
    CALIBRATION,
    NOMINAL,
    above_bound,
    certificate_panels,
    mean_coverage,
    occlusion_panels,
    place_of,
    reel_panels,
    reels,
    spans,
)
from vhydro_audits.pages.tables import Line, claim_table, folded_tables, metric_table, paper_number
from vhydro_audits.spec import SUPPORT

FAMILIES, REGIMES, LEVELS = tuple(SUPPORT.families), ("matched", "shift", "lit"), SUPPORT.levels["occlusion"]
NLL, COV90, ECE, ESS = SUPPORT.metrics[:4]
PAPERS = ("adaptive", "conservative", "no-support", "smooth")


class Place(NamedTuple):
    """Which of the audit's settings and methods a number is of."""

    family: str
    regime: str
    occlusion: float
    method: str


def read_results(folder: Path) -> Results:
    return read_any(SUPPORT, folder)


def hardest(results: Results) -> list[Line]:
    return [Line(place_title(p), p) for p in results.settings if p["occlusion"] == 0.9]


KEYS = [m.key for m in SUPPORT.methods]
TASKS = {"contact": "PushCube", "sawyer-bridge": "tower"}
GOOD = {"ess": 0.5, "relative_weight_variance": 1.0, "empirical_relative_variance": 0.016, "nll": 0.2}
GOOD |= {"ece": 0.02, "cov90": 0.9, "lost": 0.0, "bound": 0.04, "bound_realised": 0.03, "bound_realised_se": 0.001}
PAPER = {"ess": 0.141, "relative_weight_variance": 15.851, "empirical_relative_variance": 0.248, "nll": 0.161}
PAPER |= {"ece": 0.125, "cov90": 0.756}


def film(method: str) -> dict:
    seen, lost = [1, 1, 0, 0, 0, 1], 3 if method == "no-support" else None
    grid = [[0.1 * t, 0.1 * t + 0.05] for t in range(6)]
    return {"channel": "cube x", "dt": 0.1, "truth": [0.1 * t for t in range(6)], "seen": seen, "particles": grid,
            "weights": [[0.99, 0.01]] * 6, "contact": [0, 0, 1, 1, 0, 0], "lost_at": lost}  # fmt: skip


def cell(p: Place, seed: int, rng: np.random.Generator) -> dict:
    numbers = dict.fromkeys(SUPPORT.numbers, 0.5) | GOOD | {"nll": float(rng.normal(0.2, 0.01))}
    if p.method in ("no-support", "smooth"):
        numbers |= {"bound": None, "bound_realised": None, "bound_realised_se": None, "certified": None}
    filmed = seed == 0 and p.regime == "shift" and p.occlusion == 0.75
    return p._asdict() | numbers | {
        "experiment": "support", "task": TASKS[p.family], "seed": seed, "coverage": list(NOMINAL),
        "film": film(p.method) if filmed and p.method in ("no-support", "adaptive", "two-sided") else None,
    }  # fmt: skip


def row(p: Place, task: str | None) -> dict:
    means = dict.fromkeys(SUPPORT.numbers, 0.5) | GOOD | {f"{key}_sem": 0.01 for key in SUPPORT.numbers}
    named = {} if task is None else {"task": {"tower": "SawyerTowerCreation"}.get(task, task)}
    published = PAPER | named if p.method in PAPERS else None
    better = {"ess": 0.12, "ece": 0.2} if p.method != "conservative" else {}
    return p._asdict() | means | {
        "experiment": "support" if task is None else "support-by-task", "seeds": 20,
        "published": published and published | better,
    } | ({} if task is None else {"task": task})  # fmt: skip


def written_folder(folder: Path, families=FAMILIES, regimes=REGIMES, levels=LEVELS, methods=KEYS, **meta) -> Path:
    rng, places = np.random.default_rng(7), [Place(*p) for p in product(families, regimes, levels, methods)]
    cells = [cell(p, 0, rng) for p in places]
    rows = [row(p, task) for p in places for task in (None, TASKS[p.family])]
    about = {"commit": "abc1234", "device": "some device", "seconds": 1234.0, "seeds": 20, "quick": False}
    about |= {
        "config": {"particles": 64, "sensor_noise": 0.1, "data": "where/it/lies", "logs": {"tower": "f00"}}
    } | meta
    (folder / "cells.jsonl").write_text("".join(json.dumps(c) + "\n" for c in cells), "utf-8")
    (folder / "summary.json").write_text(json.dumps({"meta": about, "rows": rows}), "utf-8")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written_folder(tmp_path)


def changed(folder: Path, methods=KEYS, levels=LEVELS, regimes=REGIMES, **values) -> Path:
    """The folder with other numbers in the aggregate rows of some methods, levels and regimes."""
    path = folder / "summary.json"
    summary = json.loads(path.read_text("utf-8"))
    for r in summary["rows"]:
        if r["method"] in methods and r["occlusion"] in levels and r["regime"] in regimes and "task" not in r:
            r.update(values)
    path.write_text(json.dumps(summary), "utf-8")
    return folder


def marks(panels: list[Panel], kind: str, name: str) -> list[Mark]:
    """What was drawn under a name, over all panels."""
    return [mark for panel in panels for mark in panel.marks if (mark.kind, mark.name) == (kind, name)]


def test_the_page_stands_alone_and_holds_its_parts(tmp_path):
    folder = written_folder(tmp_path, regimes=("shift",))
    before = {p.name for p in folder.iterdir()}
    path = write_support_page(folder)
    assert {p.name for p in folder.iterdir()} == before | {"index.html"}
    text = path.read_text("utf-8")
    assert text.count("<script src") == 0
    figures = ("film-1", "film-2", "metrics-shift", "reliability", "hidden", "certificate", "gate")
    places = [text.index(f"id='{name}'") for name in figures]
    assert places == sorted(places)
    assert places[0] < text.index("<table")
    expected = ("How often a contact is lost", "Task by task", "SawyerTowerCreation, shift", "What the words mean")
    for words in (*expected, "abc1234", "some device", "1,234 s", "particles 64, sensor noise 0.1<"):
        assert words in text
    assert "where/it/lies" not in text


@pytest.mark.parametrize(
    "there",
    [
        {"families": ("contact",), "levels": (0.0, 0.75), "methods": ("no-support", "smooth")},
        {"families": ("sawyer-bridge",), "regimes": ("matched",), "levels": (0.9,), "methods": ("two-sided",)},
    ],
)
def test_a_small_run_has_a_page_that_says_so(tmp_path, there):
    text = write_support_page(written_folder(tmp_path, **there, quick=True, seeds=2)).read_text("utf-8")
    assert text.count("id='metrics-") == len(there.get("regimes", REGIMES))
    assert "This is a small run" in text
    assert "This run cannot say" in text


def test_a_run_of_the_loss_setting_alone_has_a_page(tmp_path):
    folder = written_folder(tmp_path, regimes=("plain",), methods=("adaptive", "no-support", "two-sided"), seeds=5)
    text = write_support_page(folder).read_text("utf-8")
    assert "no-support collapses in 0 of 4 cases" in text


# --- numbers and words --------------------------------------------------------------------------------------


def test_the_headline_has_the_range_over_all_levels_and_the_papers_best(folder):
    changed(folder, methods=("two-sided+conformal",), levels=(0.25,), regimes=("lit",), cov90=0.871, ece=0.0312)
    words = headline(read_results(folder))
    assert "our 90\u00a0% intervals hold 87.1\u00a0% to 90.0\u00a0% of the true readings" in words
    assert "(the paper’s best with 90\u00a0% hidden: 75.6\u00a0%)" in words
    assert "of 120 cells with a certificate none is above its bound." in words


def test_a_claim_has_the_paper_and_the_best_of_the_others_beside_it_whoever_is_better(folder):
    changed(folder, methods=("adaptive",), levels=(0.9,), regimes=("shift",), ece=0.001)
    results = read_results(folder)
    lines = [Line("contact", place_of("contact", "shift"))]
    table = claim_table(results, lines, [ECE, COV90])
    assert (
        "<b>0.020</b> <small class='spread'>± 0.01</small></td><td>0.125</td><td>0.001 <small>adaptive</small>" in table
    )
    assert "▲ better than the paper</span>, <span class='verdict wrong'>▼ worse than adaptive" in table
    assert "= level with" in table  # Cov90 0.9 for all


def test_the_papers_best_is_that_of_the_metric_and_never_named_for_a_method_it_has(folder):
    results = read_results(folder)
    line = Line("", place_of("contact", "shift"))
    assert paper_number(results, line, "two-sided+conformal", ESS) == 0.141  # conservative's, its best
    assert paper_number(results, line, "adaptive", ESS) == 0.12
    assert paper_number(results, line, "two-sided+conformal", ECE) == 0.125


def test_a_loss_is_shown_as_plainly_as_a_win(folder):
    changed(folder, methods=("two-sided",), levels=(0.9,), regimes=("matched",), ess=0.13, cov90=0.91)
    results = read_results(changed(folder, methods=("adaptive",), levels=(0.9,), regimes=("matched",), ess=0.6))
    lines = [line for line in hardest(results) if line.place["regime"] == "matched"]
    table = metric_table(results, ESS, lines)
    assert table.count("<b>0.600</b>") == 2
    assert table.count("<span class='wrong' title='± 0.01 (SEM)'>0.130</span>") == 2
    assert table.count("<i>0.120</i>") == 2 * 3
    folded = folded_tables(results, lines, (ESS, NLL))
    assert "ESS/N</b>: two-sided+conformal is ahead of all that are not ours in 0 of 2 lines, behind in 2" in folded
    assert "worse than the paper’s in 2 of 12 numbers" in folded
    assert "worse than the paper’s in 12 of 12 numbers" in folded  # NLL 0.20 against 0.161
    assert "Behind in contact, matched, 90\u00a0% hidden (adaptive 0.600 against 0.500, beyond one SEM);" in folded
    assert "<b>0.910</b>" not in metric_table(results, COV90, lines)  # further from 0.9 than 0.900


def test_branch_loss_is_told_as_it_was_measured(folder):
    words = loss_words(read_results(folder))
    assert "no-support collapses in 0 of 12 cases and smooth collapses in 0 of 12 cases" in words
    assert words.endswith("No reading of any method was lost.")
    changed(folder, methods=("smooth",), regimes=("shift",), levels=(0.9,), nll=9.0, lost=0.25)
    results = read_results(folder)
    words = loss_words(results)
    assert "no-support collapses in 0 of 12 cases and smooth collapses in 2 of 12 cases" in words
    assert "is 25 %: smooth on contact, shift, 90\u00a0% hidden" in words
    found = re.findall(r"<th scope='row'>(\w+)(.*?)</tr>", collapse_table(results))
    assert {name: cells.count("2 of 4") for name, cells in found} == {"matched": 0, "shift": 1, "lit": 0, "the": 0}
    assert collapses(results, place_of("contact", "shift"), "smooth")
    changed(folder, methods=("smooth", "no-support"), regimes=("shift",), nll_sem=4.0)
    assert not collapses(read_results(folder), place_of("contact", "shift"), "smooth")


def test_a_cell_above_its_bound_is_counted_beyond_sampling_error_only(folder):
    path = folder / "cells.jsonl"
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    lines[0] |= {"bound": 0.04, "bound_realised": 0.0429}
    lines[1] |= {"bound": 0.04, "bound_realised": 0.0431}
    path.write_text("\n".join(json.dumps(line) for line in lines), "utf-8")
    results = read_results(folder)
    assert [above_bound(c) for c in results.cells[:2]] == [False, True]
    assert "of 120 cells with a certificate 1 is above its bound." in headline(results)
    assert [m.x for m in marks(certificate_panels(results), "dots", "above its bound")] == [(0.0431,)]


def test_figures_hold_the_numbers(folder):
    results = read_results(changed(folder, methods=("smooth",), levels=(0.9,), nll=10.0, nll_sem=1.0))
    panels = occlusion_panels(results, [(f, "shift") for f in FAMILIES], CALIBRATION)
    drawn = [m for m in marks(panels, "line", "smooth") if m.y[-1] == 10.0]
    assert [m.x for m in drawn] == [LEVELS] * len(FAMILIES)
    spread = [m.y for m in marks(panels, "line", "smooth ±") if m.x[0] == 0.9 and 11.0 in m.y]
    assert spread == [(9.0, 11.0)] * len(FAMILIES)
    paper = [m for m in marks(panels, "dots", "paper, conservative") if m.y[0] == 0.125]
    assert [m.y for m in paper] == [(0.125,) * 5] * len(FAMILIES)
    assert "smooth\n90\u00a0% hidden: 10.00 ± 1 SEM" in [t for m in marks(panels, "dots", "smooth") for t in m.tips]
    assert mean_coverage(results, place_of("contact", "shift"), "smooth") == pytest.approx(NOMINAL)


def test_the_film_marks_the_loss_the_contact_and_what_was_hidden(folder):
    contact, sawyer = reels(read_results(folder))
    assert (contact.cell["task"], sawyer.cell["task"]) == ("PushCube", "tower")
    assert "no-support loses it at 0.30 s; adaptive and two-sided do not lose it." in reel_words(contact)
    panels = reel_panels(contact)
    assert [m.x[0] for m in marks(panels, "dots", "lost")] == [pytest.approx(0.3)]
    assert [m.x for m in marks(panels, "box", "hidden")] == [pytest.approx((0.15, 0.45))] * 3
    assert [m.x for m in marks(panels, "stretch", "contact")] == [pytest.approx((0.15, 0.35))] * 3
    assert [len(m.y) for name in ("light", "heavy") for m in marks(panels[:1], "cloud", name)] == [6, 6]
    assert [*spans(np.array([True, False, True, True]))] == [(0, 0), (2, 3)]


# --- files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cells.jsonl", "summary.json"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(ValueError, match=rf"{name}(.gz)? is not there; expected a file that the support audit"):
        write_support_page(folder)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('{"family"', '{"family', "line 1 of .*cells.jsonl does not read as JSON"),
        ('"seed": 0, ', "", "record 1 of .*cells.jsonl has no seed; expected"),
        (
            '"method": "adaptive"',
            '"method": "adoptive"',
            r"has the method 'adoptive'; expected one of two-sided\+conformal",
        ),
        ('"ess": 0.5', '"ess": "half"', "has 'half' as its ess; expected a number or null"),
        ('"coverage": [0.05, ', '"coverage": [', "has 18 coverages; expected 19"),
        ('"truth": [0.0, ', '"truth": [', "has a film of lengths .* expected one entry a step"),
    ],
)
def test_a_damaged_line_is_refused_and_the_old_page_stays(folder, old, new, complaint):
    page, path = folder / "index.html", folder / "cells.jsonl"
    page.write_text("old", "utf-8")
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")
    with pytest.raises(ValueError, match=complaint):
        write_support_page(folder)
    assert page.read_text("utf-8") == "old"


def test_a_summary_without_rows_or_meta_is_refused(folder):
    path = folder / "summary.json"
    rows = json.loads(path.read_text("utf-8"))["rows"]
    path.write_text('{"meta": {}, "rows": []}', "utf-8")
    with pytest.raises(ValueError, match="holds 180 cells and 0 rows"):
        read_results(folder)
    path.write_text(json.dumps({"meta": {"commit": "a"}, "rows": rows}), "utf-8")
    with pytest.raises(ValueError, match=r"the meta of .*summary.json has no device, seconds, seeds, config"):
        read_results(folder)
