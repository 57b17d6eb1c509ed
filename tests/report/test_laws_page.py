"""The page of the laws audit: the numbers it must hold, the losses it must not hide, the files it must refuse."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from vhydro.report.laws import write_laws_page
from vhydro.report.laws_figures import heat_figure, log_axis, overview_figure, scatter_figure, signed_log, strip_figure
from vhydro.report.laws_results import BARS, COEFFICIENTS, F1, METRICS, Setting, read_results, standing, written
from vhydro.report.laws_tables import caveats, comparison_table, comparison_words, headline
from vhydro.report.laws_theorem import bound_figure, parts_figure, regressions, theorem_words

EASY, HARD, FILTERED = (bar.setting for bar in BARS)
VALUES = {  # support F1, coefficient error, vector-field NRMSE, constants error: one number in all settings
    "full": (0.9965, 0.0013, 0.00071, 0.00043),
    "lasso": (0.681, 3.9, 0.083, 0.29),
    "no-sparsity": (0.771, 0.851, 0.00052, 0.014),
    "no-ph": (None, None, 0.031, None),
    "sindy-weak-no-modes": (0.48, 5.5, 1.2, None),
}
PUBLISHED = {"support_f1": 0.978, "coefficient_error": 0.006, "vector_field_nrmse": 0.001}
PUBLISHED["physical_constant_error"] = 0.0014


def place(setting: Setting, method: str) -> dict:
    return {"experiment": "laws", "family": "known-equations", "method": method} | setting._asdict()


def metrics(method: str) -> dict:
    return {m.key: value for m, value in zip(METRICS, VALUES[method], strict=True)}


def regression(**change) -> dict:
    parts = {"nu_filtering": 1.0, "nu_derivative": 2.0, "nu_mode": 0.0, "nu_structure": 1.0}
    held = {"conditions": True, "holds": True, "support_condition": False, "support_recovered": False}
    return {"mode": "free", "columns": 5, "kappa": 0.4, "error": 0.01, "bound": 0.08} | parts | held | change


def cell(task: str, setting: Setting, method: str, seed: int) -> dict:
    found = 0.0 if method == "no-ph" else 1.25
    terms = [
        {"mode": "free", "term": "p²", "true": 1.0, "estimate": found},
        {"mode": "free", "term": "q⁴", "true": 0.0, "estimate": -0.5 if method == "no-sparsity" or seed else 0.0},
    ]
    theorem = [regression(), regression(conditions=False, holds=False, bound=None, kappa=None)]
    return {
        **place(setting, method), **metrics(method), "task": task, "seed": seed,
        "support_precision": None if method == "no-ph" else 0.5, "chi_square": None, "constants": [],
        "status": "identified" if seed else "free: 2 samples", "terms": [] if method == "no-ph" else terms,
        "modes_accuracy": 0.987 if setting.source == "filtered" else None,
        "theorem": theorem if method == "lasso" else None,
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    grid = list(product((EASY, HARD, FILTERED), VALUES))
    cells = [cell(task, *point, seed) for task in ("puck", "block") for point in grid for seed in (0, 1)]
    rows = [place(*p) | metrics(p[1]) | {"published": PUBLISHED if p[1] == "full" else None} for p in grid]
    wrong = [row | {"task": "puck", "support_f1": 0.111} for row in rows]  # of one system: no part of the aggregate
    meta = {"commit": "abc1234", "device": "some device", "seconds": 4321.0, "seeds": 2, "config": {"episodes": 20}}
    (tmp_path / "cells.jsonl").write_text("".join(json.dumps(c) + "\n" for c in cells), "utf-8")
    (tmp_path / "summary.json").write_text(json.dumps({"meta": meta, "rows": rows + wrong}), "utf-8")
    return tmp_path


def traces(figure: go.Figure) -> Any:
    """What is drawn; of any type, for plotly's own annotations do not know it."""
    return figure.data


def changed(folder: Path, setting: Setting, method: str, **values) -> Path:
    """The folder with other numbers in one aggregate row."""
    path = folder / "summary.json"
    summary = json.loads(path.read_text("utf-8"))
    for row in summary["rows"]:
        if row["method"] == method and "task" not in row and Setting(*(row[k] for k in Setting._fields)) == setting:
            row.update(values)
    path.write_text(json.dumps(summary), "utf-8")
    return folder


def test_the_page_stands_alone_and_holds_its_numbers(folder):
    equation = [{"task": "puck", "true": "H = 0.5 p²", "recovered": "H = 0.5001 p² <", "condition": "given, 0.1 %"}]
    (folder / "equations.json").write_text(json.dumps(equation), "utf-8")
    before = {p.name for p in folder.iterdir()}
    path = write_laws_page(folder)
    assert path == folder / "index.html"
    assert {p.name for p in folder.iterdir()} == before | {"index.html"}
    text = path.read_text("utf-8")
    assert text.count("<script src") == 0
    assert text.count("plotly.js v") == 1
    figures = ("overview", "scatter", "supports", "constants", "precision", "bound", "parts")
    assert all(f'id="{name}"' in text for name in figures)
    for expected in ("0.9965", "0.00130", "0.000710", "0.000430", "3.9", "abc1234", "some device", "4,321 s", "98.7 %"):
        assert expected in text
    assert "<pre>H = 0.5001 p² &lt;</pre>" in text
    assert "0.111" not in text


def test_without_equations_there_is_no_section_for_them(folder):
    assert "The equations" not in write_laws_page(folder).read_text("utf-8")


def test_every_bar_is_met_or_the_page_says_no(folder):
    assert headline(read_results(folder)).endswith("Every bar is met.")
    worse = read_results(changed(folder, FILTERED, "full", coefficient_error=0.0503))
    assert headline(worse).endswith("2 of 3 bars are met.")
    assert "filtered, 1\u00a0% noise) with support F1 0.997, coefficient error 0.050" in headline(worse)
    text = write_laws_page(folder).read_text("utf-8")
    assert "<span class='no'>0.0503</span> <small>≤ 0.05</small>" in text
    assert text.count("<b class='no'>no</b>") == 1


def test_a_bar_without_a_number_is_not_met(folder):
    assert headline(read_results(changed(folder, HARD, "full", support_f1=None))).endswith("2 of 3 bars are met.")


def test_a_null_metric_is_a_dash_and_the_paper_stands_below(folder):
    table = comparison_table(read_results(folder), F1)
    heads = table.count("<th>")
    lines = [line.split("</td>") for line in table.split("<tr>")[2:]]
    assert heads == 1 + len(VALUES)
    assert [line[4] for line in lines[:3]] == ["<td>–"] * 3  # no-pH
    assert "0.978" in lines[3][1]


def test_a_loss_is_shown_as_plainly_as_a_win(folder):
    results = read_results(folder)
    assert standing(results, EASY, F1) == (1, ["full"])
    assert standing(results, EASY, METRICS[2]) == (-1, ["no-sparsity"])
    table = comparison_table(results, METRICS[2])
    assert table.count("<span class='no'>0.00071</span>") == table.count("<b>0.00052</b>") == 3
    words = comparison_words(results)
    assert "ahead of every other method in 6 of 6 lines, level in 0 and behind in 0." in words
    assert (
        "Over all four metrics it is behind in 3: vector-field NRMSE, given, 0.1\u00a0% noise (no-sparsity);" in words
    )


def test_level_is_not_ahead(folder):
    results = read_results(changed(folder, EASY, "lasso", coefficient_error=0.0013))
    assert standing(results, EASY, COEFFICIENTS) == (0, ["full", "lasso"])
    assert "= <b>0.0013</b>" in comparison_table(results, COEFFICIENTS)
    assert "in 5 of 6 lines, level in 1 and behind in 0" in comparison_words(results)


def test_a_mean_that_leaves_cells_out_is_marked(folder):
    changed(folder, EASY, "lasso", physical_constant_error_missing=3, physical_constant_error_sd=0.25)
    assert "<span title='± 0.25'>0.29†</span>" in comparison_table(read_results(folder), METRICS[3])


def test_the_theorem_is_counted(folder):
    entries = regressions(read_results(folder))
    words = theorem_words(entries)
    assert len(entries) == 24
    assert "hold in 12 of 24 (50 %) regressions; there its bound holds in 12 of 12 (100 %)." in words
    assert "8.0 times with 5 columns." in words
    assert "In 12 the bound is infinite" in words
    broken = [*entries[:-2], {**entries[-2], "holds": False}, entries[-1]]
    assert "bound holds in 11 of 12 (91.6 %)" in theorem_words(broken)
    crosses = [t for t in traces(bound_figure(broken)) if t.marker.symbol == "x"]
    assert sum(len(t.x) for t in crosses) == 1


def test_where_conditions_fail_with_a_bound_there_is_a_panel_and_else_none(folder):
    entries = regressions(read_results(folder))
    failing = [*entries, regression(conditions=False) | {"task": "puck", "setting": EASY}]
    titles = [[note.text for note in bound_figure(some).layout.annotations] for some in (entries, failing)]
    assert [any("conditions fail" in text for text in some) for some in titles] == [False, True]


def test_parts_are_shares_of_their_sum(folder):
    *bars, totals = traces(parts_figure(regressions(read_results(folder))))
    assert [tuple(bar.x) for bar in bars] == [(0.25,) * 3, (0.5,) * 3, (0.0,) * 3, (0.25,) * 3]
    assert set(totals.text) == {"4.0"}


def test_figures_hold_the_cells(folder):
    results = read_results(folder)
    heat = traces(heat_figure(results, HARD))[0]
    shares = np.array(heat.z, float)  # the true law, full, lasso, no-sparsity, SINDy; no-pH has no terms
    np.testing.assert_array_equal(shares, [[1, 0], [1, 0.5], [1, 0.5], [1, 1], [1, 0.5]])
    dots = [t for t in traces(scatter_figure(results)) if t.name == "full"]
    assert len(dots) == 6
    found = np.array(sorted(zip(dots[0].x, dots[0].y, strict=True)), float)
    np.testing.assert_allclose(found, signed_log(np.array([[0.0, -0.5], [1.0, 1.25]])), atol=5e-4)
    strip = traces(strip_figure(results, "physical_constant_error", log=True))
    assert [len(t.x) for t in strip if t.name == "full"] == [4, 4, 4]
    assert not any(t.name.startswith("no-pH") for t in strip)
    line = next(t for t in traces(overview_figure(results)) if t.name == "lasso" and t.y[0] == 3.9)
    assert tuple(line.x) == (EASY.noise,)


def test_a_term_that_a_cell_does_not_list_was_not_selected_there(folder):
    results = read_results(folder)
    results.at(HARD, "full")[1]["terms"].append({"mode": "free", "term": "q", "true": 0.0, "estimate": 2.0})
    shares = np.array(traces(heat_figure(results, HARD))[0].z, float)
    np.testing.assert_array_equal(shares[:3, -1], [0, 0.5, 0])


def test_wrong_laws_are_counted_with_those_that_are_not_marked(folder):
    assert "12 of full’s 12 laws have wrong terms; 6 of these are not marked unidentified." in caveats(
        read_results(folder)
    )


def test_signed_log_keeps_order_sign_and_edges():
    values = signed_log(np.array([-1e9, -1e4, -1.0, 0.0, 1e-3, 1.0, 1e4, 1e9]))
    np.testing.assert_allclose(values, -signed_log(-np.array([-1e9, -1e4, -1.0, 0.0, 1e-3, 1.0, 1e4, 1e9])))
    assert values[0] == values[1] < values[2] < values[3] == 0.0 < values[4] < values[5] < values[6] == values[7]


def test_log_axis_has_few_ticks_however_far_apart_the_ends():
    axis = log_axis([1e-12, 1e12])
    assert len(axis["tickvals"]) <= 7
    assert axis["range"][0] < -12
    assert axis["range"][1] > 12


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (0.00021, "0.00021"),
        (3.94, "3.9"),
        (1234.5, "1234"),
        (6.3e-5, "6.3·10⁻⁵"),
        (2e7, "2.0·10⁷"),
    ],
)
def test_errors_are_written_to_two_digits(value, text):
    assert written(value) == text


@pytest.mark.parametrize("name", ["cells.jsonl", "summary.json"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(ValueError, match=rf"{name} is not there; expected .* audit"):
        write_laws_page(folder)


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("cells.jsonl", '{"task": "puck"', "does not read as JSON"),
        ("cells.jsonl", "\n", "holds 0 cells"),
        ("cells.jsonl", '{"task": "puck"}', "has no source, noise, missing"),
        ("summary.json", '{"meta": {}, "rows": []}', "and 0 rows"),
    ],
)
def test_a_damaged_file_is_refused_and_the_old_page_stays(folder, name, text, complaint):
    page = write_laws_page(folder)
    before = page.read_bytes()
    (folder / name).write_text(text, "utf-8")
    with pytest.raises(ValueError, match=complaint):
        write_laws_page(folder)
    assert page.read_bytes() == before


def test_an_unknown_method_is_refused_rather_than_left_out(folder):
    path = folder / "cells.jsonl"
    path.write_text(path.read_text("utf-8").replace('"no-ph"', '"no-phd"'), "utf-8")
    with pytest.raises(ValueError, match="has the method 'no-phd'; expected one of full"):
        write_laws_page(folder)
