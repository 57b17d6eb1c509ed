"""The pictures of a law on its page: drawn where the numbers are, marked where the law is, and small."""

import re
from dataclasses import replace

import numpy as np
import pytest

from laws_drawn import BETWEEN, COULOMB, PLACE, VISCOUS, bumped, known, two_bodies
from made_runs import HOSTILE, made_run
from vhydro.commands.law_friction import friction
from vhydro.commands.law_phase import phase
from vhydro.report.charts import Panel
from vhydro.report.run_files import read_run
from vhydro.report.run_friction import friction_html, friction_panel
from vhydro.report.run_laws import laws_html
from vhydro.report.run_page import run_page
from vhydro.report.run_phase import DOUBTFUL, mode_colour, phase_html, phase_panel
from vhydro.report.run_prediction import prediction_html


def modes_of(law, *unidentified: int) -> list[dict]:
    status = ["unidentified" if m in unidentified else "identified" for m in range(len(law.modes))]
    return [
        {"name": name, "status": s, "equations": [], "reasons": []} for name, s in zip(law.modes, status, strict=True)
    ]


def marks(panel: Panel, kind: str, name: str) -> list:
    return [m for m in panel.marks if (m.kind, m.name) == (kind, name)]


def paths(text: str, kind: str) -> list[np.ndarray]:
    """The points of every path of a kind."""
    found = re.findall(f"<path class='{kind}' d='([^']*)'", text)
    return [np.array(re.findall(r"(-?[\d.]+) (-?[\d.]+)", d), float) for d in found]


@pytest.mark.parametrize(("line", "slope", "jump"), [(0, VISCOUS, COULOMB), (1, 0.0, 0.0), (2, BETWEEN, 0.0)])
def test_the_friction_curve_is_drawn_through_the_laws_constants(line, slope, jump):
    law = two_bodies()
    one = friction(law, bumped()[2])[line]
    panel = friction_panel(one, modes_of(law))
    (curve,) = marks(panel, "line", "friction 0")
    v = np.array(curve.x)
    np.testing.assert_allclose(curve.y, slope * v + jump * np.sign(v), atol=1e-9)
    (drawn,) = paths(panel.svg(), "line")
    expected = [[panel.across(a), panel.down(b)] for a, b in zip(v, curve.y, strict=True)]
    np.testing.assert_allclose(drawn, expected, atol=0.06)  # rounded to a tenth of a pixel
    assert len(marks(panel, "dots", "median")[0].x) == len(one["medians"]["v"])


def test_a_portrait_shades_what_lies_behind_a_surface_in_the_modes_colour():
    law, _, tracks = known("puck")
    (one,) = phase(law, tracks)
    panel = phase_panel(one, modes_of(law))
    assert [m.x for m in panel.marks if m.kind == "rule"] == [(-1.0,), (1.0,)]
    (left,), (right,) = (marks(panel, "box", f"touching {m}") for m in (1, 2))
    assert left.x == (-1.0, one["low"][0])
    assert right.x == (1.0, one["high"][0])
    text = panel.svg()
    assert text.count("<rect") == 2
    for mode in (1, 2):
        assert f"style='fill:{mode_colour(mode)}'" in text
        (cloud,) = marks(panel, "cloud", f"seen {mode}")
        assert (np.abs(cloud.x) > 0.98).all()
    (heads,) = re.findall("<path class='arrowhead' d='([^']*)'", text)
    assert len(marks(panel, "line", "field")) == heads.count("z") == len(one["field"])
    (first,) = paths(text, "stream")
    (line, *_) = one["field"]
    drawn = [[panel.across(a), panel.down(b)] for a, b in zip(line["q"], line["v"], strict=True)]
    np.testing.assert_allclose(first[: len(drawn)], drawn, atol=0.06)
    assert [m.name for m in panel.marks if m.kind == "words"] == ["0", "1", "2"]


def test_what_is_not_identified_is_dashed_and_carries_its_mark():
    law, _, tracks = known("puck")
    portraits, frictions = phase(law, tracks), friction(law, tracks)
    for html, unmarked in (
        (phase_html(portraits, modes_of(law, 1)), phase_html(portraits, modes_of(law))),
        (friction_html(frictions, modes_of(law, 0)), friction_html(frictions, modes_of(law))),
    ):
        assert "not identified" in html
        assert f"stroke-dasharray='{DOUBTFUL}'" in html
        assert "not identified" not in unmarked
        assert f"stroke-dasharray='{DOUBTFUL}'" not in unmarked
    panel = phase_panel(portraits[0], modes_of(law, 1))
    dashed = marks(panel, "line", "doubtful field")
    assert "class='stream doubtful'" in panel.svg()
    assert "class='stream doubtful'" not in phase_panel(portraits[0], modes_of(law)).svg()
    assert len(dashed) == sum(line["mode"] == 1 for line in portraits[0]["field"])


def test_positions_without_units_have_no_brackets():
    law = replace(two_bodies(), units=("", "", "", ""))
    tracks = bumped()[2]
    html = phase_html(phase(law, tracks), modes_of(law)) + friction_html(friction(law, tracks), modes_of(law))
    titles = re.findall("<text class='title'[^>]*>([^<]*)<", html)
    assert len(titles) == 6
    assert not any("(" in title for title in titles)
    assert "friction along x1 = 0.4 v + 0.7 sign(v);" in html


def test_a_portrait_of_bodies_that_touch_says_where():
    law = two_bodies()
    html = phase_html(phase(law, bumped()[2]), modes_of(law))
    assert "velocity of x1 − x2 (m/s)" in html
    assert "Behind the dotted line a contact is on" in html
    (panel,) = (phase_panel(p, modes_of(law)) for p in phase(law, bumped()[2]) if p["name"] == "x1 − x2")
    assert [m.x for m in panel.marks if m.kind == "rule"] == [(PLACE,)]


def test_pictures_stay_small():
    law, _, tracks = known("puck")
    assert len(phase_html(phase(law, tracks), modes_of(law))) < 50_000
    assert len(friction_html(friction(law, tracks), modes_of(law))) < 40_000


def prediction(**more) -> dict:
    course = [[0.1 * i] for i in range(10)]
    return {
        "log": HOSTILE, "held_out": True, "others": 2, "dt": 0.5, "starts": [0, 5], "names": ["q"], "units": [""],
        "seen": course, "predicted": course, "rms": [0.01], "spread": [0.7],
    } | more  # fmt: skip


def test_a_whole_log_says_for_how_long_the_law_holds():
    whole = {"times": [0.5 * i for i in range(10)], "seen": [[0.0]] * 10, "predicted": [[0.0]] * 9 + [[None]]}
    whole |= {"holds": 1.5, "seconds": 5.0, "all": False, "told": True}
    modes = [{"name": "free", "status": "identified"}, {"name": "wall", "status": "identified"}]
    held_out = [{"seconds": 0.5, "windows": 9, "excess": 1.25}]
    html = prediction_html(prediction(whole=whole, lost=1, stretches=4), modes, held_out)
    assert "within a tenth of the log’s own spread for 1.5 s of 5 s" in html
    assert ">holds for 1.5 s</text>" in html
    assert "class='rule'" in html
    assert "1.25 times what noise alone would leave" in html
    assert "the modes are those of the log" in html
    assert "In 1 of 4 stretches" in html
    assert "not identified" not in html
    assert "<img" not in html
    to_the_end = prediction_html(prediction(whole=whole | {"all": True, "told": False}), modes, ())
    assert "to the end, for 5 s" in to_the_end
    assert "class='rule'" not in to_the_end
    marked = prediction_html(prediction(whole=whole), [modes[0], modes[1] | {"status": "unidentified"}], ())
    assert "The law is not identified in wall." in marked


def test_laws_of_older_runs_are_drawn_without_what_they_do_not_have():
    modes = [{"name": "free", "status": "identified", "equations": [], "reasons": []}]
    html = laws_html({"modes": modes, "constants": [], "prediction": prediction()})
    assert html.count("<figure") == 1
    assert "How does it move?" not in html
    assert "<figure" not in laws_html(
        {"modes": modes, "constants": [], "prediction": None, "phase": [], "friction": []}
    )


def test_the_law_is_offered_in_every_form_that_was_written(tmp_path):
    run = read_run(made_run(tmp_path / "run"))
    text = run_page(run, files=("law.txt", "law.tex", "law.json", "law.c", "law.py"))
    assert all(f"<a href='law.{kind}'>" in text for kind in ("txt", "tex", "json", "c", "py"))
    assert "a C function for a controller" in text
    assert "To take along" not in run_page(run)
