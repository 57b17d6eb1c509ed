"""The page of the laws audit: the numbers it must hold, the losses it must not hide, the files it must refuse."""

import gzip
import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from vhydro.report.charts import Mark, Panel, figure
from vhydro_audits.pages.laws import (
    headline,
    looseness,
    near_share,
    noise_words,
    theorem_words,
    trust_words,
    write_laws_page,
)
from vhydro_audits.pages.laws_figures import (
    bound_panels,
    heat_panels,
    overview_panels,
    parts_panel,
    regressions,
    scatter_panels,
    selection,
    setting_title,
    signed_log,
    strip_panels,
    trust_panel,
)
from vhydro_audits.pages.results import Place, Results, read_results
from vhydro_audits.pages.tables import Line, beside, beside_table, folded_tables, metric_table, standing
from vhydro_audits.spec import LAWS

EASY, HARD, FOUND = LAWS.pictured
F1, COEFFICIENTS, NRMSE, CONSTANTS = LAWS.metrics
VALUES = {  # support F1, coefficient error, vector-field NRMSE, constants error: one number in all settings
    "full": (0.9965, 0.0013, 0.00071, 0.00043),
    "lasso": (0.681, 3.9, 0.083, 0.29),
    "no-sparsity": (0.771, 0.851, 0.00052, 0.014),
    "no-ph": (None, None, 0.031, None),
    "sindy-weak-no-modes": (0.48, 5.5, 1.2, None),
}
PUBLISHED = {"support_f1": 0.978, "coefficient_error": 0.006, "vector_field_nrmse": 0.001}
PUBLISHED["physical_constant_error"] = 0.0014


def place(setting: Place, method: str) -> dict:
    return {"experiment": "laws", "family": "four", "method": method, **setting}


def metrics(method: str) -> dict:
    return {m.key: value for m, value in zip(LAWS.metrics, VALUES[method], strict=True)}


def regression(**change) -> dict:
    parts = {"nu_filtering": 1.0, "nu_derivative": 2.0, "nu_mode": 0.0, "nu_structure": 1.0}
    held = {"conditions": True, "holds": True, "support_condition": False, "support_recovered": False}
    return {"mode": "free", "columns": 5, "kappa": 0.4, "error": 0.01, "bound": 0.08} | parts | held | change


def cell(task: str, setting: Place, method: str, seed: int) -> dict:
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
        "modes_accuracy": 0.987 if setting["source"] == "filtered" else None,
        "theorem": theorem if method == "lasso" else None,
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    grid = list(product((EASY, HARD, FOUND), VALUES))
    cells = [cell(task, *point, seed) for task in ("puck", "block") for point in grid for seed in (0, 1)]
    rows = [place(*p) | metrics(p[1]) | {"published": PUBLISHED if p[1] == "full" else None} for p in grid]
    single = [row | {"task": "puck", "support_f1": 0.111} for row in rows]  # of one system: no part of the aggregate
    meta = {"commit": "abc1234", "device": "some device", "seconds": 4321.0, "seeds": 2, "config": {"episodes": 20}}
    text = "".join(json.dumps(c) + "\n" for c in cells)
    (tmp_path / "cells.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "summary.json").write_text(json.dumps({"meta": meta, "rows": rows + single}), "utf-8")
    return tmp_path


def read(folder: Path) -> Results:
    return read_results(LAWS, folder)


def lines(results: Results) -> list[Line]:
    return [Line(setting_title(p), p) for p in results.settings]


def marks(panels: list[Panel], kind: str, name: str) -> list[Mark]:
    """What was drawn under a name, over all panels."""
    return [mark for panel in panels for mark in panel.marks if (mark.kind, mark.name) == (kind, name)]


def changed(folder: Path, setting: Place, method: str, **values) -> Path:
    """The folder with other numbers in one aggregate row."""
    path = folder / "summary.json"
    summary = json.loads(path.read_text("utf-8"))
    for row in summary["rows"]:
        if row["method"] == method and "task" not in row and setting.items() <= row.items():
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
    figures = ("overview", "scatter-1", "supports", "constants", "precision", "trust", "bound", "parts")
    assert all(f"id='{name}'" in text for name in figures)
    for expected in ("0.997", "0.00130", "0.000710", "0.000430", "3.90", "abc1234", "some device", "4,321 s", "98.7 %"):
        assert expected in text
    assert "<pre tabindex='0'>H = 0.5001 p² &lt;</pre>" in text
    assert "0.111" not in text
    assert "This is a small run: in full the audit has 20 seeds" in text
    assert text.index("H = 0.5001 p²") < text.index("<table")


def test_without_equations_there_is_no_section_for_them(folder):
    assert "The equations, beside" not in write_laws_page(folder).read_text("utf-8")


def test_the_headline_has_the_worst_as_plainly_as_the_best(folder):
    words = headline(read(changed(folder, FOUND, "full", coefficient_error=0.0503)))
    assert "a coefficient error of 0.00130 and a support F1 of 0.997 at best (modes given, 0.1\u00a0% noise)" in words
    assert "a coefficient error of 0.0503 and a support F1 of 0.997 at worst (modes found, 1\u00a0% noise)." in words


def test_settings_where_the_paper_or_a_peer_is_better_are_counted_as_such(folder):
    words = noise_words(read(changed(folder, FOUND, "full", coefficient_error=7.0)))
    assert "support F1 is better than the best peer’s in 3 of 3 settings and the paper’s in 3 of 3" in words
    assert "coefficient error is better than the best peer’s in 2 of 3 settings and the paper’s in 2 of 3" in words


def test_a_coefficient_is_near_within_a_tenth_and_one_that_is_not_there_is_wrong(folder):
    results = read(folder)
    assert near_share(results, HARD, "full") == 0.0  # 1.25 for 1, and a term too many
    for found in results.at(HARD, "full"):
        found["terms"][0]["estimate"] = 1.09
    assert near_share(results, HARD, "full") == pytest.approx(4 / 6)
    assert near_share(results, HARD, "no-ph") is None


def test_beside_ours_stand_the_paper_the_best_peer_and_who_is_better_than_it(folder):
    results = read(folder)
    assert beside(results, Line("", EASY), NRMSE) == [
        "paper 0.00100",
        "SINDy weak, no modes 1.20",
        "no-sparsity 0.000520",
    ]
    table = beside_table(results, lines(results), LAWS.metrics)
    assert table.count("<b>0.997</b>") == 3
    assert "<b>0.000710</b>" not in table  # no-sparsity is ahead


def test_a_null_metric_is_a_dash_and_the_paper_stands_next_to_its_method(folder):
    table = metric_table(read(folder), F1, lines(read(folder)))
    body = [line.split("</td>") for line in table.split("<tr>")[2:]]
    assert table.count("<th scope='col'>") == len(VALUES)
    assert ["–" in line[3] for line in body] == [True] * 3  # no-pH
    assert [line[0].count("<i>0.978</i>") for line in body] == [1] * 3
    assert table.count("<i>") == 3


def test_a_loss_is_shown_as_plainly_as_a_win(folder):
    results = read(folder)
    first, *_ = lines(results)
    won, lost = standing(results, first, F1), standing(results, first, NRMSE)
    assert won is not None
    assert won.side == 1
    assert lost is not None
    assert (lost.side, lost.rival) == (-1, "no-sparsity")
    table = metric_table(results, NRMSE, lines(results))
    assert table.count("<b>0.000520</b>") == 3
    assert "<b>0.000710</b>" not in table
    folded = folded_tables(results, lines(results), LAWS.metrics)
    assert (
        "support F1</b>: full is ahead of all that are not ours in 3 of 3 lines; worse than the paper’s in 0 of 3"
        in folded
    )
    assert "full is ahead of all that are not ours in 0 of 3 lines, behind in 3" in folded
    assert "Behind in modes given, 0.1\u00a0% noise (no-sparsity 0.000520 against 0.000710);" in folded


def test_a_number_that_is_worse_than_the_papers_is_red(folder):
    results = read(changed(folder, HARD, "full", support_f1=0.97))
    table = metric_table(results, F1, lines(results))
    assert table.count("class='wrong'") == 1
    assert "<span class='wrong'><b>0.970</b></span><i>0.978</i>" in table


def test_level_is_not_ahead(folder):
    results = read(changed(folder, EASY, "lasso", coefficient_error=0.0013))
    found = standing(results, Line("", EASY), COEFFICIENTS)
    assert found is not None
    assert (found.side, found.rival) == (0, "lasso")
    assert metric_table(results, COEFFICIENTS, lines(results)).count("<b>0.00130</b>") == 4
    assert "in 2 of 3 lines, level in 1;" in folded_tables(results, lines(results), [COEFFICIENTS])


def test_a_mean_that_leaves_cells_out_is_marked(folder):
    changed(folder, EASY, "lasso", physical_constant_error_missing=3, physical_constant_error_sd=0.25)
    assert "<span title='± 0.25 (SD)'>0.290†</span>" in metric_table(read(folder), CONSTANTS, lines(read(folder)))


def test_the_theorem_is_counted(folder):
    entries = regressions(read(folder))
    words = theorem_words(entries)
    assert len(entries) == 24
    assert "hold in 12 of 24 (50 %) regressions; there its bound holds in 12 of 12 (100 %)." in words
    assert "8.0 times with 5 columns." in words
    assert "In 12 the bound is infinite" in words
    assert looseness(entries).startswith(
        "Where its conditions hold (12 of 24 (50 %) regressions), the bound holds in 12 of"
    )
    assert "it is loose: in the median 8.0 times the error with 5 columns." in looseness(entries)
    broken = [*entries[:-2], {**entries[-2], "holds": False}, entries[-1]]
    assert "bound holds in 11 of 12 (91.6 %)" in theorem_words(broken)
    assert [len(m.x) for m in marks(bound_panels(broken), "dots", "does not hold")] == [1]


def test_where_conditions_fail_with_a_bound_there_is_a_panel_and_else_none(folder):
    entries = regressions(read(folder))
    failing = [*entries, regression(conditions=False) | {"task": "puck", "setting": "some"}]
    titles = [[panel.title for panel in bound_panels(some)] for some in (entries, failing)]
    assert [any("conditions fail" in text for text in some) for some in titles] == [False, True]


def test_dots_that_lie_on_one_another_are_drawn_once_and_others_are_not_dropped(folder):
    entries = regressions(read(folder))
    far = [e | {"error": e["error"] * 10.0**k} for k, e in enumerate([e for e in entries if e["conditions"]][:5])]
    drawn = marks(bound_panels([*entries, *far]), "dots", "puck")[0]
    assert len(drawn.x) == 5
    assert [text.split("\n")[0] for text in drawn.tips] == ["puck: puck, free"] * 5


def test_parts_are_shares_of_their_sum(folder):
    panel = parts_panel(regressions(read(folder)))
    drawn = [m.x for m in panel.marks if m.kind == "stretch"]
    assert drawn == [(0.0, 0.25), (0.25, 0.75), (0.75, 0.75), (0.75, 1.0)] * 3
    assert [m.name for m in panel.marks if m.kind == "words"] == ["4.0"] * 3


def test_figures_hold_the_cells(folder):
    results = read(folder)
    terms = having_terms(results)
    _, shares = selection(terms)  # the true law, full, lasso, no-sparsity, SINDy; no-pH has no terms
    np.testing.assert_array_equal(np.array(shares, float), [[1, 0], [1, 0.5], [1, 0.5], [1, 1], [1, 0.5]])
    assert [m.tips[0] for m in marks(heat_panels(results, HARD)[:1], "box", "puck")][:2] == [
        "true law\nfree, p²: 100%",
        "true law\nfree, q⁴: 0%",
    ]
    dots = marks([p for place in (EASY, HARD, FOUND) for p in scatter_panels(results, place)], "dots", "full")
    assert len(dots) == 6
    found = np.array(sorted(zip(dots[0].x, dots[0].y, strict=True)), float)
    np.testing.assert_allclose(found, signed_log(np.array([[0.0, -0.5], [1.0, 1.25]])), atol=5e-4)
    strip = strip_panels(results, "physical_constant_error", log=True)
    assert [len(m.x) for m in marks(strip, "cloud", "full")] == [4, 4, 4]
    assert not marks(strip, "cloud", "no-pH")
    overview = overview_panels(results)
    line = next(m for m in marks(overview, "line", "lasso") if m.y[0] == 3.9)
    assert line.x == (EASY["noise"],)
    assert {m.name for p in overview for m in p.marks if m.name.startswith("paper")} == {"paper, full"}


def having_terms(results: Results, task: str = "puck") -> dict:
    methods = ("full", "lasso", "no-sparsity", "sindy-weak-no-modes")
    return {method: results.at(HARD, method, task) for method in methods}


def test_a_term_that_a_cell_does_not_list_was_not_selected_there(folder):
    results = read(folder)
    results.at(HARD, "full", "puck")[1]["terms"].append({"mode": "free", "term": "q", "true": 0.0, "estimate": 2.0})
    keys, shares = selection(having_terms(results))
    assert keys[-1] == ("free", "q")
    assert [line[-1] for line in shares[:3]] == [0.0, 0.5, 0.0]


def test_wrong_laws_are_counted_with_those_that_are_not_marked(folder):
    assert "12 of full’s 12 laws have wrong terms; 6 of these are not marked unidentified." in trust_words(read(folder))
    drawn = {m.name: m.x for m in trust_panel(read(folder)).marks}
    assert drawn == {"marked": (0.0, 0.5), "not marked": (0.5, 1.0)}


def test_signed_log_keeps_order_sign_and_edges():
    values = signed_log(np.array([-1e9, -1e4, -1.0, 0.0, 1e-3, 1.0, 1e4, 1e9]))
    np.testing.assert_allclose(values, -signed_log(-np.array([-1e9, -1e4, -1.0, 0.0, 1e-3, 1.0, 1e4, 1e9])))
    assert values[0] == values[1] < values[2] < values[3] == 0.0 < values[4] < values[5] < values[6] == values[7]


@pytest.mark.parametrize("name", ["cells.jsonl.gz", "summary.json"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(ValueError, match=rf"{name} is not there; expected a file that the laws audit writes"):
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
    if name == "cells.jsonl":
        (folder / "cells.jsonl.gz").unlink()
    (folder / name).write_text(text, "utf-8")
    with pytest.raises(ValueError, match=complaint):
        write_laws_page(folder)
    assert page.read_bytes() == before


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"no-ph"', '"no-phd"', "has the method 'no-phd'; expected one of full"),
        ('"noise": 0.05', '"noise": 0.07', r"has the noise 0.07; expected one of 0.001, 0.01, 0.05"),
        ('"status"', '"state"', "has no status; expected status, terms"),
    ],
)
def test_what_would_be_left_out_is_refused(folder, old, new, complaint):
    path = folder / "cells.jsonl.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(old.encode(), new.encode())))
    with pytest.raises(ValueError, match=complaint):
        write_laws_page(folder)


def test_labels_of_results_are_text_in_figures(folder):
    results = read(folder)
    for found in results.cells:
        for term in found["terms"]:
            term |= {"mode": "<a href='x'>free</a>", "term": "<b>p</b>"}
    drawn = figure([*heat_panels(results, HARD), *scatter_panels(results, HARD)], "terms")
    assert "<a href" not in drawn
    assert "<b>p" not in drawn
    assert "&lt;a href" in drawn
