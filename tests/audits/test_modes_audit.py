"""The modes audit: every cell once, the paper's rows beside the proxy's."""

from dataclasses import replace

import numpy as np
import pytest

from vhydro.audits.modes import (
    LABELS,
    LEVELS,
    METHODS,
    ModesAuditConfig,
    _bridged,
    _hidden,
    groups,
    run_modes_audit,
    summary_rows,
    table,
    work,
)
from vhydro.data.sample import sample
from vhydro.modes import learn
from vhydro.modes.view import contact_view


@pytest.fixture
def few_modes(monkeypatch):
    monkeypatch.setattr(learn, "MOST", 2)


def test_the_grid_has_every_cell_once():
    cells = [tuple(c.values()) for g in groups(ModesAuditConfig(seeds=2)) for c in g.cells]
    assert len(cells) == len(set(cells)) == 2 * 11 * len(LEVELS) * len(METHODS) * len(LABELS)


def test_a_group_has_a_record_for_every_cell(few_modes):
    pytest.importorskip("hmmlearn")
    pytest.importorskip("ruptures")
    (group,) = groups(ModesAuditConfig(family="maniskill", tasks=("PushCube",), seeds=1))
    records = work(group.key, {"data": None, "burst": 8})
    assert {tuple(r[k] for k in group.cells[0]) for r in records} == {tuple(c.values()) for c in group.cells}
    by = {(r["occlusion"], r["method"], r["labels"]): r for r in records}
    assert by[0.0, "full", "configuration"]["ari"] > 0.9
    assert all(by[level, "no-mode", name]["ari"] == 0 for level in LEVELS for name in LABELS)
    assert all(0 <= r["purity"] <= 1 and r["modes"] >= 1 for r in records)
    found = summary_rows(records)
    beside = [r for r in found if r["published"]]
    assert {(r["labels"], r["occlusion"]) for r in beside} == {("proxy", 0.0)}
    assert {r["published"]["method"] for r in beside} == {"full", "no-mode", "hmm"}
    assert "configuration" in table(found)


def test_hiding_takes_half_of_the_bodies_and_bridges_are_straight():
    log = sample("PushCube")[0]
    seen = contact_view([log])(log)
    dark = _hidden(seen, 0.5, 8, 0, 0)
    hidden = np.isnan(dark.observations)
    assert hidden[:, :3].mean() == pytest.approx(0.5, abs=0.05)
    assert not hidden[:, 3:].any()
    steps = np.arange(seen.steps + 1.0)[:, None]
    straight = _bridged(replace(dark, observations=np.where(hidden, np.nan, steps)))
    last = np.flatnonzero(~hidden[:, 0])[-1]
    np.testing.assert_allclose(straight.observations[: last + 1, 0], steps[: last + 1, 0])


def test_unknown_tasks_and_missing_logs_are_named(tmp_path):
    with pytest.raises(ValueError, match="no task tower in family maniskill; there are PushCube"):
        ModesAuditConfig(family="maniskill", tasks=("tower",))
    with pytest.raises(ValueError, match="seeds is 0"):
        ModesAuditConfig(seeds=0)
    with pytest.raises(ValueError, match="the shipped sample of laundry has too few logs"):
        run_modes_audit(ModesAuditConfig(out=tmp_path))
    with pytest.raises(RuntimeError, match=r"has neither PushCube-v1\.h5"):
        run_modes_audit(ModesAuditConfig(tasks=("PushCube",), seeds=1, data=tmp_path, out=tmp_path / "o", workers=0))
