"""The page of the modes audit: the numbers it must hold, the rivals it must not hide, the files it must refuse."""

import json
import re
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from vhydro.report.charts import Mark, Panel
from vhydro.report.timeline import COLOURS
from vhydro_audits.pages.modes import (
    headline,
    loss_words,
    read_modes,
    reading_table,
    task_lines,
    theorem_words,
    write_modes_page,
)
from vhydro_audits.pages.modes_conditions import condition_pairs, condition_table
from vhydro_audits.pages.modes_figures import (
    aligned,
    condition_panels,
    histogram_panels,
    place_of,
    sight_panels,
    summed_confusion,
    summed_counts,
    task_panels,
    theorem_panels,
    timeline_panel,
)
from vhydro_audits.pages.results import Results
from vhydro_audits.pages.results import read_results as read_any
from vhydro_audits.pages.tables import Line, folded_tables, metric_table
from vhydro_audits.spec import MODES

ARI = MODES.metric("ari")
KEYS = [m.key for m in MODES.methods if m.kind != "ceiling"]
CLEAN, HALF = MODES.known["condition"][:2]
FIXED, CHOSEN = MODES.known["reading"]
TASKS = {"maniskill": ("PushCube", "PokeCube")}
CLASSES = {"configuration": ["none", "hand+peg", "cube+peg, hand+peg"]}
REGIMES = ["free", "impact", "sustained"]
GOOD = {"mode_f1": 0.97, "ari": 0.95, "change_point_f1": 0.9, "purity": 0.98, "raw_ari": 0.8, "modes": 3.0}
WORSE = {"mode_f1": 0.7, "ari": 0.5, "change_point_f1": 0.4, "purity": 0.9, "raw_ari": 0.5, "modes": 3.0}
PAPER = {"mode_f1": 0.724, "ari": 0.647, "change_point_f1": 0.652, "purity": 0.919}
PUBLISHED = ("auto", "no-support", "hmm", "no-mode")


class Place(NamedTuple):
    """What a number is of."""

    family: str
    condition: str
    labels: str
    method: str
    reading: str


def read_results(folder: Path) -> Results:
    return read_any(MODES, folder)


def scores(p: Place) -> dict:
    dark = 0.05 if p.method == "auto" else 0.1
    numbers = dict.fromkeys(MODES.numbers, 0.5) | (GOOD if p.method in ("full", "auto", "particles") else WORSE)
    return numbers | {"ari": numbers["ari"] - (dark if p.condition == HALF else 0.0)}


def path(rng: np.random.Generator, runs: int = 6, values: int = 3) -> dict:
    starts = [0, *sorted(rng.choice(np.arange(1, 100), runs - 1, replace=False).tolist())]
    return {"rows": 100, "starts": starts, "values": rng.integers(0, values, runs).tolist()}


def theorem(rng: np.random.Generator) -> dict:
    points = []
    for k in range(20):
        bound = -float(rng.exponential(4))
        points.append([10, bound, bound - float(rng.exponential(3)), int(k < 15), 1, 0.02, 0.3, 0.1])
    return {"segments": 20, "conditions": 15, "held": 15, "points": points}


def extras(p: Place, seed: int, rng: np.random.Generator) -> dict:
    """What only our cells hold."""
    classes = CLASSES.get(p.labels, REGIMES)
    found: dict[str, Any] = {"words": ["nothing", "peg with the hand", "cube and peg with the hand"]}
    found |= {"classes": classes, "dt": 0.05, "truth": path(rng)} if seed == 0 else {"classes": classes}
    if p.labels == "configuration":
        found["theorem"] = theorem(rng)
    if p.labels == "proxy" and p.condition == CLEAN:
        edges = np.linspace(-2, 2, 41).round(3).tolist()
        counts = {name: np.histogram(rng.normal(k - 1, 0.5, 400), edges)[0].tolist() for k, name in enumerate(REGIMES)}
        found |= {"thresholds": [0.5, 4.0], "histogram": {"edges": edges, "counts": counts}}
        found |= {"score": np.exp(rng.normal(size=100)).round(4).tolist()} if seed == 0 else {}
    return found


def cell(p: Place, task: str, seed: int, rng: np.random.Generator) -> dict:
    out = {"experiment": "modes", "task": task, "seed": seed, "read": "modes" if seed else "contact"}
    out |= p._asdict() | scores(p) | {"confusion": [[90, 5, 5], [3, 40, 7], [0, 10, 60]]}
    out |= {"shown": path(rng)} if seed == 0 else {}
    return out | (extras(p, seed, rng) if (p.method, p.reading) == ("auto", FIXED) else {})


def row(p: Place, task: str | None) -> dict:
    beside = p.method in PUBLISHED and (p.labels, p.condition, p.reading) == ("proxy", CLEAN, FIXED)
    numbers = scores(p) | {f"{key}_sem": 0.01 for key in MODES.numbers}
    named = {} if task is None else {"task": task}
    return p._asdict() | numbers | named | {"seeds": 2, "published": PAPER if beside else None}


def written_folder(
    folder: Path, tasks=TASKS, methods=KEYS, conditions=(CLEAN, HALF), labels=MODES.known["labels"], seeds=2, **meta
) -> Path:
    rng = np.random.default_rng(7)
    places = [Place(*p) for p in product(tasks, conditions, labels, methods, (FIXED, CHOSEN))]
    places = [p for p in places if (p.method, p.reading) != ("changes", FIXED)]  # it is told the number of changes
    cells = [cell(p, task, seed, rng) for p in places for task in tasks[p.family] for seed in range(seeds)]
    rows = [row(p, task) for p in places for task in (None, *tasks[p.family])]
    about = {"commit": "abc1234", "device": "some device", "seconds": 1234.0, "seeds": seeds}
    about |= {"config": {"burst": 8, "data": "where/it/lies", "logs": {"PushCube": "f00"}}} | meta
    (folder / "cells.jsonl").write_text("".join(json.dumps(c) + "\n" for c in cells), "utf-8")  # read as it is
    (folder / "summary.json").write_text(json.dumps({"meta": about, "rows": rows}), "utf-8")
    return folder


def changed(folder: Path, where, **values) -> Path:
    """The folder with other numbers in the rows that `where` picks."""
    file = folder / "summary.json"
    summary = json.loads(file.read_text("utf-8"))
    picked = [r for r in summary["rows"] if where(r)]
    assert picked
    for r in picked:
        r.update(values)
    file.write_text(json.dumps(summary), "utf-8")
    return folder


def recorded(folder: Path, where, **values) -> Path:
    """The folder with other values in the cells that `where` picks; a value of None takes the name away."""
    file = folder / "cells.jsonl"
    cells = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    for c in filter(where, cells):
        c.update(values)
        for name in [name for name, value in values.items() if value is None]:
            del c[name]
    file.write_text("".join(json.dumps(c) + "\n" for c in cells), "utf-8")
    return folder


def of(**names):
    """Whether a record has these values; a task of None is a family's mean."""
    return lambda r: all(r.get(name) == value for name, value in names.items())


def marks(panels: list[Panel], kind: str, name: str) -> list[Mark]:
    """What was drawn under a name, over all panels."""
    return [mark for panel in panels for mark in panel.marks if (mark.kind, mark.name) == (kind, name)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written_folder(tmp_path)


def test_the_page_stands_alone_and_holds_its_parts_in_order(folder):
    before = {p.name for p in folder.iterdir()}
    text = write_modes_page(folder).read_text("utf-8")
    assert {p.name for p in folder.iterdir()} == before | {"index.html"}
    assert text.count("<script src") == 0
    parts = ("<h1>Contact modes", "id='timeline'", "<table", "One log of every task",
             "id='timeline-PushCube'", "id='timeline-PokeCube'", "id='confusions'", "With labels to choose",
             "How modes are read", "Away from a clean log", "id='tasks'",
             "id='proxy'", "id='scores'", "id='dark'", "Thm 2, measured", "id='theorem'", "What the words mean",
             "<footer>")  # fmt: skip
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert "abc1234 · some device · 1,234 s · 2 seeds · burst 8<" in text
    assert "where/it/lies" not in text


def test_a_run_with_hardly_anything_in_it_still_has_a_page(tmp_path):
    tasks = {"sawyer": ("tower",)}
    folder = written_folder(
        tmp_path, tasks, methods=["hmm"], conditions=(HALF,), labels=("regime",), seeds=1, config=None
    )
    names = ("read", "confusion", "shown", "mode_f1")
    recorded(folder, lambda c: True, **dict.fromkeys(names))
    text = write_modes_page(folder).read_text("utf-8")
    assert "Ours was not run in full sight." in text
    assert "This is a small run: in full the audit has 20 seeds and every task. 1 seed, 2 cells" in text
    assert "timeline-tower" not in text


def test_the_headline_has_the_best_peer_beside_ours_and_how_often_another_is_ahead(folder):
    words = headline(read_results(folder))
    assert "an ARI of 0.950 on maniskill (best peer, hmm: 0.500)" in words
    assert words.endswith("Another method is ahead in 0 of 24 comparisons by task.")


def test_the_loss_in_the_dark_stands_beside_that_of_every_method_with_something_to_lose(folder):
    dark = {"labels": "configuration", "condition": HALF, "task": None}
    changed(folder, of(method="no-mode", labels="configuration"), ari=0.0)
    changed(folder, of(method="slds", **dark), ari=0.47)
    words = loss_words(read_results(folder))
    assert words.startswith("When half is hidden, on maniskill auto loses 0.050 of its ARI (others slds 0.030 to ")
    assert "no-mode" not in words
    (pair,) = marks(sight_panels(read_results(folder)), "line", "slds")
    assert pair.x == (0.47, 0.5)


# --- other conditions ---------------------------------------------------------------------------------------


def test_every_condition_and_family_is_a_line_and_the_headline_is_of_clean_logs(tmp_path):
    conditions = (CLEAN, "noise 2 mm", "5 logs")
    tasks = TASKS | {"new": ("PushPair",)}
    folder = written_folder(tmp_path, tasks, methods=["auto", "hmm"], conditions=conditions, seeds=1)
    before = headline(read_modes(folder))
    changed(folder, of(condition="noise 2 mm", method="auto", family="maniskill"), ari=0.9)
    changed(folder, of(condition="5 logs", method="hmm", family="maniskill"), ari=0.99)
    changed(folder, of(condition="5 logs", method="hmm", family="new"), ari=None)
    results = read_modes(folder)
    assert headline(results) == before
    pairs = condition_pairs(results)
    table = condition_table(pairs, ARI)
    lines = {line.partition("</th>")[0].rpartition(">")[2]: line for line in table.split("<tr>")[2:]}
    assert [*lines] == [*conditions]
    assert "<b>0.900</b><br><span class='verdict good'>▲ better than hmm</span>" in lines["noise 2 mm"]
    assert "<b>0.950</b><br><span class='verdict wrong'>▼ worse than hmm" in lines["5 logs"]
    assert [pair.side for pair in pairs] == [1, 1, 1, 1, -1, None]
    (known, _) = condition_panels([(p.condition, p.family, p.ours, p.peer) for p in pairs], ARI)
    assert [m.x for m in known.marks if m.name == "gap"] == [(0.95, 0.5), (0.9, 0.5), (0.95, 0.99)]
    text = write_modes_page(folder).read_text("utf-8")
    assert "Away from a clean log" in text
    assert "level in 0 and behind in 1." in text


def test_what_labels_chose_is_a_table_of_its_own(folder):
    changed(folder, of(reading=CHOSEN, method="full", labels="configuration", condition=CLEAN), ari=0.77)
    results = read_modes(folder)
    assert results.number(place_of("maniskill", "configuration"), "full", "ari") == 0.95
    assert results.number(place_of("maniskill", "configuration", reading=CHOSEN), "full", "ari") == 0.77
    assert "0.770" in write_modes_page(folder).read_text("utf-8")


def test_a_task_where_a_peer_is_ahead_is_drawn_as_such(folder):
    place = {"labels": "configuration", "condition": CLEAN, "reading": FIXED}
    changed(folder, of(method="ar-hmm", task="PushCube", **place), ari=0.97)
    (panel,) = task_panels(read_results(folder), "configuration", [ARI])
    assert [m.x for m in panel.marks if m.name == "ar-hmm"] == [(0.97,)]
    gaps = [part for part in panel.parts if "class='line'" in part]
    assert [("#e11d48" in part) for part in gaps] == [True, False]


# --- the theorem --------------------------------------------------------------------------------------------


def test_one_segment_outside_its_bound_is_counted_and_a_red_cross(folder):
    assert "hold on 120 of 160 segments (75\u00a0%); there its bound holds on 120." in theorem_words(
        read_results(folder)
    )
    point = [10, -6.0, -2.0, 1, 0, 0.02, 0.01, 0.2]
    one = {"segments": 30, "conditions": 16, "held": 15, "points": [point]}
    recorded(
        folder,
        of(method="auto", reading=FIXED, labels="configuration", task="PushCube", seed=0, condition=CLEAN),
        theorem=one,
    )
    results = read_results(folder)
    words = theorem_words(results)
    assert "hold on 121 of 170 segments (71\u00a0%); there its bound holds on 120." in words
    assert "the transferred bound holds on 105 of 106" in words
    (cross,) = marks(theorem_panels(results), "dots", "does not hold")
    np.testing.assert_allclose([*cross.x, *cross.y], -np.log10([2, 6]), rtol=1e-6)  # of their numbers of zeros


def test_a_misassignment_of_nothing_is_drawn_at_the_edge(folder):
    points = [[10, None, None, 1, 1, None, None, None], [10, -300.0, -400.0, 1, 1, 0.0, 0.0, 0.0]]
    some = {"segments": 2, "conditions": 2, "held": 2, "points": points}
    recorded(folder, of(method="auto", reading=FIXED, labels="configuration"), theorem=some)
    (sound,) = marks(theorem_panels(read_results(folder)), "dots", "conditions hold")
    np.testing.assert_allclose([*sound.x, *sound.y], -np.log10([300, 300]), rtol=1e-6)
    assert sound.tips == ("16 segments: conditions hold",)


def test_every_task_where_a_rival_is_ahead_is_named(folder):
    place = {"labels": "configuration", "condition": CLEAN, "reading": FIXED}
    changed(folder, of(method="ar-hmm", task="PushCube", **place), ari=0.97)
    changed(folder, of(method="no-support", task="PokeCube", **place), ari=0.955)
    changed(folder, of(method="full", task="PokeCube", **place), ari=0.99)  # ours as well, and no rival
    results = read_results(folder)
    lines = task_lines(results, "configuration")
    table = folded_tables(results, lines, [ARI])
    assert "auto is ahead of all that are not ours in 2 of 4 lines, behind in 2<" in table
    assert (
        "Behind in PushCube (ar-hmm 0.970 against 0.950, beyond one SEM); "
        "PokeCube (no-support 0.955 against 0.950, within one SEM)." in table
    )
    assert "Another method is ahead in 2 of 24 comparisons by task." in headline(results)
    assert "<b>0.970</b>" in table
    assert "<b>0.990</b>" in table
    assert "<b>0.955</b>" not in table


def test_one_seed_has_no_standard_error_to_be_beyond(folder):
    changed(folder, of(method="slds", task="PushCube"), ari=0.99, ari_sem=None)
    results = read_results(folder)
    assert "(slds 0.990 against 0.950)" in folded_tables(results, task_lines(results, "proxy"), [ARI])


def test_the_paper_stands_beside_its_methods_and_labels_only(folder):
    results = read_results(folder)
    proxy = metric_table(results, ARI, [Line("all", place_of("maniskill", "proxy"))])
    assert proxy.count("<i>0.647</i>") == 4
    assert proxy.count("class='wrong'") == 3  # its three baselines are better than ours here
    assert "<i>" not in metric_table(results, ARI, [Line("all", place_of("maniskill", "configuration"))])
    tasks = metric_table(results, ARI, task_lines(results, "proxy"))
    assert tasks.count("<i>0.647</i>") == 2 * 4


def test_readings_are_counted_beside_the_modes_as_they_are(folder):
    recorded(folder, of(method="full", labels="proxy", condition=CLEAN, reading=CHOSEN), read="regime")
    line = reading_table(read_results(folder)).partition(">proxy, full</th>")[2].partition("</tr>")[0]
    assert line.startswith("<td>·</td><td>·</td><td>·</td><td>4</td><td>0.950<i>0.800</i></td>")


def test_modes_have_the_colour_of_the_class_that_most_of_their_rows_have(folder):
    swapped = [[1, 9, 0], [8, 1, 1], [0, 9, 1]]
    path = {"rows": 10, "starts": [0, 4, 6], "values": [0, 1, 2]}
    picked = of(method="hmm", labels="configuration", task="PushCube", seed=0, condition=CLEAN, reading=FIXED)
    recorded(folder, picked, confusion=swapped, shown=path)
    panel = timeline_panel(read_results(folder), "maniskill", "PushCube")
    assert panel is not None
    names = [*dict.fromkeys(m.name for m in panel.marks)]
    assert names[:3] == ["truth", "regime", "proxy"]
    assert [name.removesuffix(" (ours)") for name in names[3:]] == [key for key in KEYS if key != "no-mode"]
    drawn = [m for m in panel.marks if m.name == "hmm"]
    assert [m.x for m in drawn] == [pytest.approx(x) for x in ((0.0, 0.2), (0.2, 0.3), (0.3, 0.5))]
    assert [COLOURS[1] in p for p in panel.parts if "data-tip='hmm: mode" in p] == [True, False, True]


def test_confusions_are_summed_whatever_modes_and_classes_are_numbered(folder):
    picked = {"method": "auto", "labels": "configuration", "task": "PushCube"}
    picked |= {"condition": CLEAN, "reading": FIXED}
    names = CLASSES["configuration"]
    recorded(folder, of(seed=0, **picked), confusion=[[9, 1, 0], [0, 0, 5], [0, 7, 2], [0, 3, 0]])
    recorded(folder, of(seed=1, **picked), confusion=[[6, 0], [1, 4]], classes=[names[2], names[1], names[0]])
    found = summed_confusion(read_results(folder), "maniskill", "PushCube")
    assert found is not None
    classes, counts, seeds = found
    assert (classes, seeds) == (names, 2)
    assert counts.tolist() == [[9, 1, 0], [0, 11, 3], [0, 0, 11], [0, 3, 0]]


def test_a_mode_without_a_row_of_a_class_is_not_its_partner():
    assert aligned(np.array([[6.0, 0.0], [1.0, 0.0]])).tolist() == [[6, 0], [0, 0], [1, 0]]


def test_seeds_with_other_configurations_are_left_out_of_the_confusion(folder):
    picked = of(method="auto", reading=FIXED, labels="configuration", task="PushCube", seed=1)
    recorded(folder, picked, confusion=[[5, 0], [0, 5]], classes=["none", "hand+peg"])
    found = summed_confusion(read_results(folder), "maniskill", "PushCube")
    assert found is not None
    assert found[2] == 1


def test_histograms_with_other_edges_are_added_bin_by_bin():
    first = {"edges": [0.0, 1.0, 2.0], "counts": {"free": [4, 2]}}
    second = {"edges": [1.0, 3.0, 5.0], "counts": {"free": [6, 1]}}
    counts = summed_counts([first, second], "free", np.array([0.0, 1.0, 2.0, 5.0]))
    assert counts.tolist() == [4.0, 5.0, 4.0]
    assert summed_counts([first], "impact", np.array([0.0, 2.0])).tolist() == [0.0]


def test_histograms_are_drawn_as_shares_of_a_regime(folder):
    counts = {"free": [1, 3], "impact": [0, 0], "sustained": [2, 0]}
    recorded(
        folder,
        of(method="auto", reading=FIXED, task="PushCube"),
        histogram={"edges": [-1.0, 0.0, 1.0], "counts": counts},
    )
    lines = [m for m in histogram_panels(read_results(folder))[0].marks if m.kind == "line"]
    assert [(m.name, m.y) for m in lines] == [("free", (0.25, 0.25, 0.75, 0.75)), ("sustained", (1.0, 1.0, 0.0, 0.0))]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("method", "full-contact", "has the method 'full-contact'; expected one of auto, full"),
        ("labels", "colour", "has the labels 'colour'"),
        ("task", "tower", "has the task 'tower'; expected one of PushCube"),
        ("seed", None, "has no seed"),
        ("shown", {"rows": 5, "starts": [0, 7], "values": [1, 2]}, "has a path of 5 rows"),
        ("theorem", {"segments": 1, "conditions": 1, "held": 1, "points": [[1.0]]}, "expected 8 numbers each"),
    ],
)
def test_a_cell_that_would_be_left_out_or_misread_is_refused(folder, name, value, words):
    recorded(folder, of(method="hmm", labels="proxy"), **{name: value})
    with pytest.raises(ValueError, match=re.escape(words)):
        write_modes_page(folder)


def test_files_that_are_missing_broken_or_empty_are_refused(folder):
    summary = folder / "summary.json"
    changed(folder, of(method="hmm"), ari="0.5")
    with pytest.raises(ValueError, match="'0.5' as its ari; expected a number or null"):
        read_results(folder)
    summary.write_text('{"rows": []}', "utf-8")
    with pytest.raises(ValueError, match="and 0 rows; expected some"):
        read_results(folder)
    summary.write_text("{", "utf-8")
    with pytest.raises(ValueError, match="does not read as JSON"):
        read_results(folder)
    summary.unlink()
    with pytest.raises(ValueError, match="is not there; expected a file that the modes audit writes"):
        write_modes_page(folder)
    assert not (folder / "index.html").exists()
