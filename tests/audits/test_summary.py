"""Means, spreads and seeds against numbers worked by hand; the paper's rows beside ours."""

import json
from collections import Counter
from math import sqrt

import pytest

from vhydro_audits.grid import Results
from vhydro_audits.summary import meta, published, published_row, rows, write_summary

CELLS = [
    {"task": "puck", "method": "full", "seed": 0, "error": 1.0, "held": True},
    {"task": "puck", "method": "full", "seed": 1, "error": 2.0, "held": False},
    {"task": "puck", "method": "full", "seed": 2, "error": 6.0, "held": True},
    {"task": "block", "method": "full", "seed": 0, "error": 3.0, "held": None},
    {"task": "block", "method": "full", "seed": 1, "error": None, "held": None},
    {"task": "block", "method": "no-mode", "seed": 0, "error": None},
]


def test_means_and_spreads_by_hand():
    puck, block, ablated = rows(CELLS, ("task", "method"), ("error", "held"), "sd")
    variance = (2.0**2 + 1.0**2 + 3.0**2) / 2  # about the mean 3
    assert (puck["task"], puck["method"]) == ("puck", "full")
    assert (puck["seeds"], puck["error"], puck["held"]) == (3, 3.0, pytest.approx(2 / 3))
    assert puck["error_sd"] == pytest.approx(sqrt(variance))
    assert not any(name.endswith("_missing") for name in puck)
    assert (block["seeds"], block["error"], block["error_sd"], block["error_missing"]) == (2, 3.0, None, 1)
    assert (block["held"], block["held_missing"]) == (None, 2)
    assert (ablated["error"], ablated["error_missing"], ablated["held_missing"]) == (None, 1, 1)


def test_the_error_of_a_mean_over_tasks_counts_cells_and_its_seeds_are_distinct():
    (full, _) = rows(CELLS, ("method",), ("error",), "sem")
    variance = (2.0**2 + 1.0**2 + 3.0**2 + 0.0**2) / 3  # of 1, 2, 6, 3 about 3
    assert (full["seeds"], full["error"], full["error_missing"]) == (3, 3.0, 1)
    assert full["error_sem"] == pytest.approx(sqrt(variance / 4))
    assert "error_sd" not in full


def test_the_order_of_the_cells_changes_no_digit():
    cells = [{"task": "a", "seed": i, "x": 10.0 ** (i - 8) / 3} for i in range(16)]
    assert rows(cells, ("task",), ("x",)) == rows(cells[::-1], ("task",), ("x",))


@pytest.mark.parametrize(("by", "metric", "message"), [("family", "error", "no 'family'"), ("task", "eror", "'eror'")])
def test_names_that_no_cell_has_are_refused(by, metric, message):
    with pytest.raises(ValueError, match=message):
        rows(CELLS, (by,), (metric,))


def test_every_published_table_is_there():
    assert Counter(row["experiment"] for row in published()) == {
        "support": 40, "support-by-task": 32, "modes": 8, "modes-by-task": 32, "laws": 4, "planning": 4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("row", "metric", "value"),
    [
        ({"experiment": "laws", "family": "known-equations", "method": "full"}, "support_f1", 0.978),
        ({"experiment": "support", "family": "contact", "occlusion": 0.9, "method": "adaptive"}, "ess", 0.059),
        ({"experiment": "support", "family": "contact", "occlusion": 0.0, "method": "adaptive"}, "ece", 0.625),
    ],
)
def test_published_rows_are_found(row, metric, value):
    found = published_row({**row, "condition": "noise 1 %", "seeds": 20}, published())
    assert found is not None
    assert found["method"] == row["method"]
    assert found[metric] == value


@pytest.mark.parametrize(
    "row",
    [
        {"experiment": "laws", "family": "known-equations", "method": "two-sided"},
        {"experiment": "laws", "family": "known-equations", "method": "full", "task": "puck"},
        {"experiment": "support", "family": "contact", "method": "adaptive"},
    ],
)
def test_a_row_stands_beside_its_own_kind_only(row):
    assert published_row(row, published()) is None


def test_a_paper_row_without_a_method_stands_beside_every_method():
    row = {"experiment": "planning", "family": "maniskill", "task": "PushCube", "method": "ours"}
    found = published_row(row, published())
    assert found is not None
    assert found["task"] == "PushCube"


def test_the_summary_reads_back_with_where_it_comes_from(tmp_path):
    results = Results([], {"noise": 0.1}, 12.34, ("abc", "def-dirty"), ("cpu, 2 cores",))
    ours = [{"method": "full", "error": float("nan"), "published": None}]
    path = write_summary(tmp_path, meta(results, 20), ours)
    assert json.loads(path.read_text("utf-8")) == {
        "meta": {
            "commit": "abc, def-dirty",
            "device": "cpu, 2 cores",
            "seconds": 12.3,
            "seeds": 20,
            "config": {"noise": 0.1},
        },
        "rows": [{"method": "full", "error": None, "published": None}],
    }
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


def test_a_summary_that_does_not_say_where_it_comes_from_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no commit, device"):
        write_summary(tmp_path, {"seconds": 1.0, "seeds": 1, "config": {}}, [])
