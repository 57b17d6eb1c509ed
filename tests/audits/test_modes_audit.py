"""The modes audit: every cell once, labels that reach nothing but scores, the paper's rows beside the proxy's."""

from dataclasses import replace

import numpy as np
import pytest

from vhydro.data.dataset import split
from vhydro.data.sample import sample
from vhydro.fitting import Refinement
from vhydro.learning import contact_modes
from vhydro.views.contact import ContactView, contact_view
from vhydro_audits import modes, modes_paths
from vhydro_audits.modes import LABELS, Labels, ModesAuditConfig, groups, run_modes_audit, table, work
from vhydro_audits.modes_paths import LEVELS, METHODS, VALIDATION, Logs, bridged, found_paths, hidden
from vhydro_audits.modes_theorem import modes_of, stretches
from vhydro_audits.spec import MODES
from vhydro_audits.summary import summary_rows


@pytest.fixture(scope="module")
def division():
    """The shipped logs of a task: without labels, and what they are scored against."""
    logs = sample("PushCube")
    parts = [list(part) for part in split(logs, seed=0).of(logs)]
    labels = Labels(parts[0], parts[1])
    truth = {VALIDATION: labels(parts[1]), "test": labels(parts[2])}
    return Logs(*([e.unlabelled() for e in part] for part in parts)), truth


@pytest.fixture(scope="module")
def small():
    """Little to try and little to train: the paths are of no worth, but they are paths."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contact_modes, "MOST", 2)
        patch.setattr(modes_paths, "REFINEMENT", Refinement(steps=2))
        patch.setattr(modes_paths, "GUIDE_STEPS", 2)
        yield


@pytest.fixture(scope="module")
def found(division, small):
    pytest.importorskip("hmmlearn")
    pytest.importorskip("ruptures")
    return found_paths(*division[:1], 2, division[1], seed=0, burst=8)


def test_the_grid_has_every_cell_once():
    cells = [tuple(c.values()) for g in groups(ModesAuditConfig(seeds=2)) for c in g.cells]
    assert len(cells) == len(set(cells)) == 2 * 11 * len(LEVELS) * len(METHODS) * len(LABELS)


def test_a_group_has_a_record_for_every_cell(found, monkeypatch):
    monkeypatch.setattr(modes, "found_paths", lambda *_: found)
    (group,) = groups(ModesAuditConfig(family="maniskill", tasks=("PushCube",), seeds=1))
    records = work(group.key, {"data": None, "burst": 8})
    assert {tuple(r[k] for k in group.cells[0]) for r in records} == {tuple(c.values()) for c in group.cells}
    by = {(r["occlusion"], r["method"], r["labels"]): r for r in records}
    assert by[0.0, "full", "configuration"]["ari"] > 0.9
    assert all(by[level, "no-mode", name]["ari"] == 0 for level in LEVELS for name in LABELS)
    assert all(0 <= r["purity"] <= 1 and r["modes"] >= 1 for r in records)
    _check_pictures(by)
    rows = summary_rows(MODES, records)
    beside = [r for r in rows if r["published"]]
    assert {(r["labels"], r["occlusion"]) for r in beside} == {("proxy", 0.0)}
    assert {r["published"]["method"] for r in beside} == {"full", "no-support", "no-mode", "hmm"}
    assert "configuration" in table(rows)


def _check_pictures(by):
    full = by[0.0, "full", "configuration"]
    assert np.sum(full["confusion"]) == full["shown"]["rows"] == full["truth"]["rows"]
    assert full["classes"] == ["none", "hand+obj"]
    theorem = full["theorem"]
    assert theorem["held"] == theorem["conditions"] <= theorem["segments"] == len(theorem["points"]) > 0
    scored = by[0.0, "full", "proxy"]
    assert sum(map(sum, scored["histogram"]["counts"].values())) == len(scored["score"]) == full["shown"]["rows"]
    assert len(scored["thresholds"]) == 2


def test_labels_reach_nothing_but_scores_and_the_count_that_changes_is_told(found, division, small):
    logs, truth = division
    random = np.random.default_rng(0)
    shuffled = {
        part: {name: [random.permutation(x) for x in own] for name, own in kinds.items()}
        for part, kinds in truth.items()
    }
    again = found_paths(logs, 2, shuffled, seed=0, burst=8)
    for place, read in found.paths.items():
        if place[1] != "changes":
            for name, paths in read.items():
                for one, other in zip(paths, again.paths[place][name], strict=True):
                    np.testing.assert_array_equal(one, other)


def test_hiding_takes_half_of_the_bodies_and_bridges_are_straight():
    log = sample("PushCube")[0]
    view = contact_view([log])
    dark = view(hidden(log, view, 0.5, 8, 0, 0)).observations
    assert np.isnan(dark[:, :3]).mean() == pytest.approx(0.5, abs=0.05)
    assert not np.isnan(dark[:, 3:]).any()
    steps = np.arange(log.steps + 1.0)[:, None]
    gaps = np.isnan(hidden(log, view, 0.5, 8, 0, 0).observations)
    straight = bridged(replace(log, observations=np.where(gaps, np.nan, steps)))
    last = np.flatnonzero(~gaps.any(1))[-1]
    np.testing.assert_allclose(straight.observations[: last + 1], np.broadcast_to(steps, gaps.shape)[: last + 1])


def test_a_cloth_is_hidden_with_all_its_knots():
    log = sample("laundry")[0]
    view = contact_view([log])
    assert [*view.bodies] == ["cloth"]
    dark = hidden(log, view, 0.5, 8, 0, 0)
    cloth = np.array([c.name.startswith("cloth.") for c in log.channels])
    gaps = np.isnan(dark.observations)
    assert gaps[:, cloth].any()
    assert (gaps[:, cloth].all(1) == gaps[:, cloth].any(1)).all()
    assert not gaps[:, ~cloth].any()
    assert isinstance(view, ContactView)


def test_segments_of_the_theorem_have_the_mode_of_their_class():
    labels = [np.array([0, 0, 1, 1, 1, 0]), np.array([1, 1])]
    assert modes_of([np.array([2, 2, 0, 0, 2, 2]), np.array([0, 0])], labels) == {0: 2}  # no mode stands for class 1
    mode_of = modes_of([np.array([2, 2, 0, 0, 0, 2]), np.array([0, 0])], labels)
    assert mode_of == {0: 2, 1: 0}
    rows = [(s.log, s.start, s.end, s.mode) for s in stretches(labels, mode_of)]
    assert rows == [(0, 0, 2, 2), (0, 2, 5, 0), (0, 5, 6, 2), (1, 0, 2, 0)]
    assert stretches([np.array([0])], mode_of) == []  # nothing predicts the first row


def test_unknown_tasks_and_missing_logs_are_named(tmp_path):
    with pytest.raises(ValueError, match="no task 'tower' in --family maniskill; expected PushCube"):
        ModesAuditConfig(family="maniskill", tasks=("tower",))
    with pytest.raises(ValueError, match="--seeds 0; expected at least 1"):
        ModesAuditConfig(seeds=0)
    with pytest.raises(ValueError, match="a full run needs --data FOLDER"):
        run_modes_audit(ModesAuditConfig(out=tmp_path))
    with pytest.raises(ValueError, match="too few logs of laundry to divide"):
        run_modes_audit(ModesAuditConfig(tasks=("laundry",), quick=True, out=tmp_path))
    with pytest.raises(ValueError, match="goes with neither --data nor --seeds"):
        ModesAuditConfig(quick=True, seeds=3)
    with pytest.raises(ValueError, match=r"has neither PushCube-v1\.h5"):
        run_modes_audit(ModesAuditConfig(tasks=("PushCube",), seeds=1, data=tmp_path, out=tmp_path / "o", workers=0))


def test_changes_are_read_by_where_their_own_logs_begin(found):
    for (place, method, _), read in found.paths.items():
        if method == "changes" and place == 0.0:
            free = np.bincount([p[0] for p in read["modes"]]).argmax()
            for path, contact in zip(read["modes"], read["contact"], strict=True):
                np.testing.assert_array_equal(contact, path != free)


def test_a_quick_run_is_small():
    small = groups(ModesAuditConfig(quick=True))
    assert {(g.key["task"], g.key["seed"]) for g in small} == {
        (task, seed) for task in ("PokeCube", "PickCube", "tower") for seed in (0, 1)
    }
