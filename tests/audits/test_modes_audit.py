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
from vhydro_audits.modes import CHOSEN, FIXED, LABELS, Labels, ModesAuditConfig, groups, run_modes_audit, table, work
from vhydro_audits.modes_conditions import CLEAN, FEW, HIDDEN, NOISE, SLOW, Parts, changed, hidden, offered, thinned
from vhydro_audits.modes_paths import PEERS, VALIDATION, Logs, bridged, found_paths
from vhydro_audits.modes_theorem import modes_of, stretches
from vhydro_audits.spec import MODES
from vhydro_audits.summary import summary_rows


@pytest.fixture(scope="module")
def division():
    """The shipped logs of a task: without labels, and what they are scored against."""
    logs = sample("PushCube")
    parts = [list(part) for part in split(logs, seed=0).of(logs)]
    labels = Labels(parts[0], parts[1])
    truth = {VALIDATION: labels(parts[1]), CLEAN: labels(parts[2]), HIDDEN: labels(parts[2])}
    train, held, test = ([e.unlabelled() for e in part] for part in parts)
    view = contact_view(train)
    dark = [hidden(e, view, 0.5, 8, 0, i) for i, e in enumerate(test)]
    return Logs(train, held, {CLEAN: test, HIDDEN: dark}), truth


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
    return found_paths(*division[:1], 2, division[1], 0, ablations=True)


def test_the_grid_has_every_cell_once(tmp_path):
    config = ModesAuditConfig(seeds=2, data=tmp_path)
    cells = [tuple(c.values()) for g in groups(config) for c in g.cells]
    assert len(cells) == len(set(cells))
    tasks = [t for f in config.families for t in config.of(f)]
    assert {g.key["seed"] for g in groups(config)} == {100, 101}
    learned = [g.key["learned"] for g in groups(replace(config, seeds=1, tasks=("PushCube",)))]
    assert learned == [CLEAN, *NOISE, SLOW, FEW]
    assert SLOW not in [g.key["learned"] for g in groups(replace(config, family="sawyer"))]
    assert len({g.key["task"] for g in groups(config)}) == len(tasks)
    assert offered("maniskill", None, ()) == [CLEAN, "noise 2 mm"]


def test_a_group_has_a_record_for_every_cell(found, monkeypatch):
    monkeypatch.setattr(modes, "found_paths", lambda *_, **__: found)
    group = groups(ModesAuditConfig(family="maniskill", tasks=("PushCube",), seeds=1, conditions=(CLEAN,)))[0]
    records = work(group.key | {"seed": 0}, {"data": None, "burst": 8})
    names = [name for name in group.cells[0] if name != "seed"]
    assert {tuple(r[k] for k in names) for r in records} == {tuple(c[k] for k in names) for c in group.cells}
    by = {(r["condition"], r["method"], r["labels"], r["reading"]): r for r in records}
    assert by[CLEAN, "auto", "configuration", FIXED]["ari"] > 0.9
    assert by[CLEAN, "auto", "configuration", FIXED]["read"] == "touching"
    assert by[CLEAN, "hmm", "configuration", FIXED]["read"] == "modes"
    assert by[CLEAN, "simulator", "proxy", FIXED]["ari"] > 0.5
    assert all(by[c, "no-mode", name, CHOSEN]["ari"] == 0 for c in (CLEAN, HIDDEN) for name in LABELS)
    assert all(0 <= r["purity"] <= 1 and r["modes"] >= 1 for r in records)
    assert (CLEAN, "changes", "configuration", FIXED) not in by  # it is told how many changes there are
    rows = summary_rows(MODES, records)
    beside = [r for r in rows if r["published"]]
    assert {(r["labels"], r["condition"], r["reading"]) for r in beside} == {("proxy", CLEAN, FIXED)}
    assert {(r["method"], r["published"]["method"]) for r in beside} == {
        ("auto", "full"), ("no-support", "no-support"), ("no-mode", "no-mode"), ("hmm", "hmm")
    }  # fmt: skip
    assert "configuration" in table(rows)


def test_pictures_are_of_the_first_seed(found, monkeypatch):
    monkeypatch.setattr(modes, "found_paths", lambda *_, **__: found)
    monkeypatch.setattr(modes, "FIRST", 0)
    key = {"family": "maniskill", "task": "PushCube", "seed": 0, "learned": CLEAN}
    records = work(key, {"data": None, "burst": 8})
    _check_pictures({(r["condition"], r["method"], r["labels"]): r for r in records if r["reading"] == FIXED})


def _check_pictures(by):
    full = by[CLEAN, "auto", "configuration"]
    assert np.sum(full["confusion"]) == full["shown"]["rows"] == full["truth"]["rows"]
    assert full["classes"] == ["none", "hand+obj"]
    theorem = full["theorem"]
    assert theorem["held"] == theorem["conditions"] <= theorem["segments"] == len(theorem["points"]) > 0
    scored = by[CLEAN, "auto", "proxy"]
    assert sum(map(sum, scored["histogram"]["counts"].values())) == len(scored["score"]) == full["shown"]["rows"]
    assert len(scored["thresholds"]) == 2


def test_labels_reach_nothing_but_scores_and_the_count_that_changes_is_told(found, division, small):
    logs, truth = division
    random = np.random.default_rng(0)
    shuffled = {
        part: {name: [random.permutation(x) for x in own] for name, own in kinds.items()}
        for part, kinds in truth.items()
    }
    again = found_paths(logs, 2, shuffled, 0, ablations=False)
    assert {place[1] for place in again.paths} == {"auto", *PEERS}
    for place, read in again.paths.items():
        if place[1] != "changes":
            for name, paths in read.items():
                for one, other in zip(paths, found.paths[place][name], strict=True):
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


def test_conditions_change_what_they_say_and_nothing_else():
    log = sample("PushCube")[0].unlabelled()
    view, labels = contact_view([log]), {"configuration": [np.arange(log.steps + 1)]}
    parts = Parts([log] * 9, [log] * 3, [log], {"configuration": labels["configuration"] * 3}, labels)
    loud = changed("noise 5 mm", parts, view, 0)
    moved = loud.test[0].observations - log.observations
    mine = np.array([c.name in {n for names in view.bodies.values() for n in names} for c in log.channels])
    assert np.std(moved[:, mine]) == pytest.approx(5e-3, rel=0.1)
    assert not moved[:, ~mine].any()
    assert not (loud.train[0].observations == loud.train[1].observations)[:, mine].any()
    slow = changed(SLOW, parts, view, 0)
    assert slow.test[0].dt == pytest.approx(0.1)
    np.testing.assert_array_equal(slow.test[0].observations, log.observations[::2][: slow.test[0].steps + 1])
    assert len(slow.test_labels["configuration"][0]) == slow.test[0].steps + 1
    few = changed(FEW, parts, view, 0)
    assert [len(part) for part in few[:3]] == [4, 1, 1]
    assert len(few.held_labels["configuration"]) == 1


def test_thinned_rows_follow_the_last_command_before_them():
    log = sample("PushCube")[0].unlabelled()
    slow = thinned(log, 3)
    np.testing.assert_array_equal(slow.actions[0], log.actions[2])
    np.testing.assert_array_equal(slow.observations[1], log.observations[3])
    assert slow.steps == log.steps // 3


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
        if method == "changes" and place == CLEAN:
            free = np.bincount([p[0] for p in read["modes"]]).argmax()
            for path, contact in zip(read["modes"], read["contact"], strict=True):
                np.testing.assert_array_equal(contact, path != free)


def test_a_quick_run_is_small():
    small = groups(ModesAuditConfig(quick=True))
    assert {(g.key["task"], g.key["seed"]) for g in small} == {
        (task, seed) for task in ("PokeCube", "PickCube", "tower") for seed in (100, 101)
    }
