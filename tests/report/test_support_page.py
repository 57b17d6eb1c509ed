"""The page of the support audit: the bars it must decide, the losses it must not hide, the files it must refuse."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from vhydro.report.support import write_support_page
from vhydro.report.support_bars import (
    above_bound,
    bound_bar,
    every_bar,
    hardest_table,
    headline,
    paper_best,
    standing,
    uniform_bars,
)
from vhydro.report.support_figures import certificate_figure, mean_coverage, metric_figure
from vhydro.report.support_film import reel_figure, reel_words, reels, spans
from vhydro.report.support_results import (
    COV90,
    ESS,
    FAMILIES,
    LEVELS,
    METHODS,
    METRICS,
    NLL,
    NOMINAL,
    NUMBERS,
    REGIMES,
    VARIANCE,
    Place,
    merit,
    read_results,
    shown,
)
from vhydro.report.support_tables import (
    best_of,
    block_table,
    caveats,
    contest_words,
    level_blocks,
    loss_words,
    task_blocks,
)

KEYS = [m.key for m in METHODS]
TASKS = {"contact": "PushCube-v1", "sawyer-bridge": "tower"}
GOOD = {"ess": 0.5, "relative_weight_variance": 1.0, "empirical_relative_variance": 0.016, "nll": 0.2}
GOOD |= {"ece": 0.02, "cov90": 0.9, "lost": 0.0, "bound": 0.04, "bound_realised": 0.03, "bound_realised_se": 0.001}
PAPER = {"ess": 0.141, "relative_weight_variance": 15.851, "empirical_relative_variance": 0.248, "nll": 0.161}
PAPER |= {"ece": 0.125, "cov90": 0.756}


def place(p: Place) -> dict:
    return {"family": p.family, "regime": p.regime, "occlusion": p.occlusion, "method": p.method}


def film(method: str) -> dict:
    seen, lost = [1, 1, 0, 0, 0, 1], 3 if method == "no-support" else None
    grid = [[0.1 * t, 0.1 * t + 0.05] for t in range(6)]
    return {"channel": "cube x", "dt": 0.1, "truth": [0.1 * t for t in range(6)], "seen": seen, "particles": grid,
            "weights": [[0.99, 0.01]] * 6, "contact": [0, 0, 1, 1, 0, 0], "lost_at": lost}  # fmt: skip


def cell(p: Place, seed: int, rng: np.random.Generator) -> dict:
    numbers = dict.fromkeys(NUMBERS, 0.5) | GOOD | {"nll": float(rng.normal(0.2, 0.01))}
    if p.method in ("no-support", "smooth"):
        numbers |= {"bound": None, "bound_realised": None, "bound_realised_se": None, "certified": None}
    filmed = seed == 0 and p.regime == "shift" and p.occlusion == 0.75
    return place(p) | numbers | {
        "experiment": "support", "task": TASKS[p.family], "seed": seed, "coverage": list(NOMINAL), "diverged": False,
        "film": film(p.method) if filmed and p.method in ("no-support", "adaptive", "two-sided") else None,
    }  # fmt: skip


def row(p: Place, task: str | None) -> dict:
    means = dict.fromkeys(NUMBERS, 0.5) | GOOD | {f"{key}_sem": 0.01 for key in NUMBERS}
    named = {} if task is None else {"task": {"tower": "SawyerTowerCreation"}.get(task, task)}
    published = PAPER | named if p.method in KEYS[:4] else None
    better = {"ess": 0.12, "ece": 0.2} if p.method != "conservative" else {}
    return place(p) | means | {
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


def traces(figure: go.Figure) -> Any:
    """What is drawn; of any type, for plotly's own annotations do not know it."""
    return figure.data


def test_the_page_stands_alone_and_holds_its_parts(tmp_path):
    folder = written_folder(tmp_path, regimes=("shift",))
    before = {p.name for p in folder.iterdir()}
    path = write_support_page(folder)
    assert {p.name for p in folder.iterdir()} == before | {"index.html"}
    text = path.read_text("utf-8")
    assert text.count("<script src") == 0
    assert text.count("plotly.js v") == 1
    figures = ("metrics-shift", "hidden", "gate", "certificate", "reliability", "lost", "film-2")
    assert all(f'id="{name}"' in text for name in figures)
    parts = ("The bars", "Does branch loss happen here?", "One occluded contact", "Task by task", "What the words mean")
    for expected in (
        *parts,
        "paper: SawyerTowerCreation",
        "abc1234",
        "some device",
        "1,234 s",
        "particles 64, sensor noise 0.1<",
    ):
        assert expected in text
    assert "where/it/lies" not in text
    assert "small run" not in text
    assert len(text) < 6e6


@pytest.mark.parametrize(
    "there",
    [
        {"families": ("contact",), "levels": (0.0, 0.75), "methods": ("no-support", "smooth")},
        {"families": ("sawyer-bridge",), "regimes": ("matched",), "levels": (0.9,), "methods": ("two-sided",)},
    ],
)
def test_a_small_run_has_a_page_that_says_so(tmp_path, there):
    text = write_support_page(written_folder(tmp_path, **there, quick=True, seeds=2)).read_text("utf-8")
    assert "In this small run" in text
    assert text.count("plotly.js v") == 1
    assert text.count('id="metrics-') == len(there.get("regimes", REGIMES))
    assert "This is a small run" in text
    assert "not run" in text
    assert "This run cannot say" in text


# --- bars ---------------------------------------------------------------------------------------------------


def test_every_bar_is_met_or_the_page_says_no(folder):
    words = headline(read_results(folder))
    assert words.endswith("every bar is met.")
    variance = "empirical relative variance 0.0160 / 0.0160 / 0.0160 (0.248)"
    assert f"on contact ESS/N 0.500 / 0.500 / 0.500 (0.141), {variance}" in words
    results = read_results(changed(folder, levels=(0.9,), regimes=("shift",), empirical_relative_variance=0.1001))
    assert [bar.met for bar in standing(results, "contact", "shift").bars] == [True, False, True, True]
    assert headline(results).endswith("52 of 54 bars are met.")
    assert "<span class='no'>0.100</span>" in hardest_table(results)


def test_the_best_support_safe_method_meets_most_bars_and_is_never_an_ablation(folder):
    changed(folder, levels=(0.9,), ece=0.06)
    changed(folder, methods=("conservative",), levels=(0.9,), ece=0.04, ess=0.31)
    results = read_results(changed(folder, methods=("no-support",), levels=(0.9,), ece=0.0, ess=0.99))
    assert standing(results, "contact", "matched").method == "conservative"
    found = paper_best(results, "contact")
    assert found is not None
    assert (found[0], found[1][ESS], found[1][COV90]) == ("conservative", 0.141, 0.756)


def test_a_run_without_one_of_the_papers_methods_does_not_call_another_its_best(tmp_path):
    results = read_results(written_folder(tmp_path, levels=(0.9,), methods=("adaptive", "two-sided")))
    assert paper_best(results, "contact") is None
    assert "paper’s best" not in headline(results) + hardest_table(results)


@pytest.mark.parametrize(("coverage", "met"), [(0.85, True), (0.849, False), (0.95, True), (0.951, False)])
def test_coverage_must_be_in_its_band_at_every_level(folder, coverage, met):
    results = read_results(changed(folder, methods=("two-sided+conformal",), levels=(0.25,), cov90=coverage))
    assert uniform_bars(results, "contact", "shift")[0].met is met


def test_ours_may_be_one_sem_of_the_best_behind_and_no_more(folder):
    results = read_results(changed(folder, methods=("smooth",), levels=(0.5,), nll=0.1901, ess=0.5099))
    assert [bar.met for bar in uniform_bars(results, "contact", "shift")] == [True] * 4
    results = read_results(changed(folder, methods=("smooth",), levels=(0.5,), nll=0.1, ess=0.6, nll_sem=None))
    *_, likelihood, ess = uniform_bars(results, "contact", "shift")
    assert likelihood[:2] == ess[:2] == ("4 of 5 levels", False)
    assert likelihood.note == "0.10 behind smooth at 50\u00a0% (SEM 0)"


def test_a_level_that_was_not_run_leaves_a_bar_undecided_unless_it_already_fails(tmp_path):
    folder = written_folder(tmp_path, levels=(0.5, 0.9))
    bars = every_bar(read_results(folder))
    assert not any(bar.met is False for bar in bars)
    assert sum(bar.met is None for bar in bars) == 24
    changed(folder, methods=("two-sided+conformal",), levels=(0.5,), ece=0.2)
    assert uniform_bars(read_results(folder), "contact", "matched")[1][:2] == ("up to 0.200", False)


def test_a_cell_above_its_bound_is_counted_beyond_sampling_error_only(folder):
    path = folder / "cells.jsonl"
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    lines[0] |= {"bound": 0.04, "bound_realised": 0.0429}
    lines[1] |= {"bound": 0.04, "bound_realised": 0.0431}
    path.write_text("\n".join(json.dumps(line) for line in lines), "utf-8")
    results = read_results(folder)
    assert [above_bound(c) for c in results.cells[:2]] == [False, True]
    assert bound_bar(results, "contact", "matched")[:2] == ("1 of 20 cells above", False)
    assert bound_bar(results, "contact", "shift").met
    crosses = [t for t in traces(certificate_figure(results)) if t.marker.symbol == "x"]
    assert [len(t.x) for t in crosses] == [1]


# --- tables and words ---------------------------------------------------------------------------------------


def test_a_loss_is_shown_as_plainly_as_a_win(folder):
    changed(folder, methods=("two-sided",), levels=(0.25,), ess=0.13, cov90=0.91)
    results = read_results(changed(folder, methods=("adaptive",), levels=(0.25,), ess=0.6))
    blocks = level_blocks(results, "contact", "matched")
    assert [block.name for block in blocks] == [f"{100 * level:g}\u00a0%" for level in LEVELS]
    assert best_of(blocks[1], ESS) == ["adaptive"]
    assert "two-sided" not in best_of(blocks[1], COV90)
    table = block_table(blocks, "occlusion")
    assert table.count(">0.130</td>") == table.count("<td class='no' title='± 0.01 (SEM)'>0.130</td>") == 1
    assert table.count("<b>0.600</b>") == 1
    assert contest_words(blocks) == "Behind the paper in 31 of 180 numbers: ESS/N 1 of 30, NLL 30 of 30."


def test_tasks_stand_beside_the_papers_tasks(folder):
    (block,) = task_blocks(read_results(folder), "sawyer-bridge", "shift")
    assert block.name == "tower<br><small>paper: SawyerTowerCreation</small>"
    assert [r.place.method for r in block.rows] == KEYS


def test_branch_loss_is_told_as_it_was_measured(folder):
    words = loss_words(read_results(folder))
    assert words.startswith("No: in shift at 75\u00a0% and 90\u00a0% occlusion, no-support and smooth do not collapse")
    assert "In lit, no-support in 0 of 4 cases and smooth in 0 of 4 cases collapse." in words
    assert words.endswith("No reading of any method was lost.")
    changed(folder, methods=("smooth",), regimes=("shift",), levels=(0.9,), nll=9.0, lost=0.25)
    words = loss_words(read_results(folder))
    assert words.startswith("In part")
    assert "collapse in 2 of 8" in words
    assert "at 90\u00a0% no-support 0.20, smooth 9.00, adaptive 0.20." in words
    assert "is 25 %: smooth on contact, shift, 90\u00a0% occlusion" in words
    changed(folder, methods=("smooth", "no-support"), regimes=("shift",), nll=9.0)
    assert loss_words(read_results(folder)).startswith("Yes")
    changed(folder, methods=("smooth", "no-support"), regimes=("shift",), nll_sem=4.0)
    assert loss_words(read_results(folder)).startswith("No")


def test_a_fit_that_diverged_is_counted_once(folder):
    assert " None of the 30 fits diverged in training. " in caveats(read_results(folder))
    path = folder / "cells.jsonl"
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for line in lines:
        diverged = line["regime"] == "lit" and line["method"] in ("smooth", "two-sided", "two-sided+conformal")
        line["diverged"] = diverged and line["family"] == "contact"
    path.write_text("\n".join(json.dumps(line) for line in lines), "utf-8")
    assert " 2 of the 30 fits diverged in training. " in caveats(read_results(folder))


def test_merit_and_digits():
    assert merit(ESS, 0.4) > merit(ESS, 0.3)
    assert merit(NLL, 0.4) < merit(NLL, 0.3)
    assert merit(COV90, 0.95) > merit(COV90, 0.8)
    assert [shown(NLL, -0.5), shown(ESS, None), shown(VARIANCE, 0.0040449)] == ["−0.50", "–", "0.00404"]


# --- figures ------------------------------------------------------------------------------------------------


def test_figures_hold_the_numbers(folder):
    results = read_results(changed(folder, methods=("smooth",), levels=(0.9,), nll=10.0, nll_sem=1.0))
    every = traces(metric_figure(results, "shift"))
    drawn = [t for t in every if t.name == "smooth" and t.customdata[-1] == 10.0]
    assert len(drawn) == len(FAMILIES)
    assert np.sinh(drawn[0].y[-1]) == pytest.approx(10.0)
    assert np.sinh(drawn[0].y[-1] + drawn[0].error_y.array[-1]) == pytest.approx(11.0)
    paper = next(t for t in every if t.name == "paper, conservative")
    assert tuple(paper.y) == (0.141,) * 5
    assert mean_coverage(results, Place("contact", "shift", 0.9, "smooth")) == pytest.approx(NOMINAL)


def test_the_film_marks_the_loss_the_contact_and_what_was_hidden(folder):
    contact, sawyer = reels(read_results(folder))
    assert (contact.task, sawyer.task) == ("PushCube-v1", "tower")
    assert "no-support loses it at 0.30 s; adaptive and two-sided do not lose it." in reel_words(contact)
    figure = reel_figure(contact)
    layout: Any = figure.layout
    assert [note.x for note in layout.annotations if "lost" in note.text] == [3]
    assert [(s.x0, s.x1) for s in layout.shapes] == [(1.5, 4.5), (1.5, 3.5)] * 3
    assert [len(t.y) for t in traces(figure)[:3]] == [6, 6, 6]  # pale particles, others, the truth
    assert [*spans(np.array([True, False, True, True]))] == [(0, 0), (2, 3)]


# --- files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cells.jsonl", "summary.json"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(ValueError, match=rf"{name} is not there; expected .* audit"):
        write_support_page(folder)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('{"family"', '{"family', "line 1 of .*cells.jsonl does not read as JSON"),
        ('"seed": 0, ', "", "line 1 of .*cells.jsonl has no seed; expected"),
        (', "diverged": false', "", "line 1 of .*cells.jsonl has no diverged; expected"),
        ('"diverged": false', '"diverged": 0', "has 0 as its diverged; expected true or false"),
        ('"method": "adaptive"', '"method": "adoptive"', "has the method 'adoptive'; expected one of adaptive"),
        ('"ess": 0.5', '"ess": "half"', "has 'half' as its ess; expected a number or null"),
        ('"coverage": [0.05, ', '"coverage": [', "has 18 coverages; expected 19"),
        ('"truth": [0.0, ', '"truth": [', "has the shapes .* expected one entry a step"),
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
    with pytest.raises(ValueError, match=r"the meta of .*summary.json has no device, seconds, seeds, config, quick"):
        read_results(folder)
    path.write_text(json.dumps({"rows": [{k: v for k, v in rows[0].items() if k != METRICS[0].key}]}), "utf-8")
    with pytest.raises(ValueError, match="has no commit"):
        read_results(folder)


def test_a_run_of_the_loss_setting_alone_has_a_page(tmp_path):
    folder = written_folder(tmp_path, regimes=("plain",), methods=("adaptive", "no-support", "two-sided"), seeds=5)
    text = write_support_page(folder).read_text("utf-8")
    assert "In plain, no-support in 0 of 4 cases collapses." in text
