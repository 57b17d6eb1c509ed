"""The demo, whole, as a visitor runs it: two runs, their pages, and three sentences that their files bear out."""

import re
from contextlib import redirect_stdout
from io import StringIO

import pytest

from vhydro.demo import PUCK, SECOND, DemoConfig, found, run_demo
from vhydro.report.run_files import read_run
from vhydro.report.run_findings import in_the_dark

pytestmark = pytest.mark.computes


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """The folder of the demo, and what it printed."""
    out, said = tmp_path_factory.mktemp("demo") / "new" / "folder", StringIO()
    with redirect_stdout(said):
        run_demo(DemoConfig(out))
    return out, said.getvalue()


def test_it_ends_with_what_was_found_and_where_to_look(told):
    out, said = told
    sentences = found(read_run(out), read_run(out / SECOND))
    assert said.splitlines()[-5:-2] == sentences
    assert said.endswith(f" s. Open {out / 'index.html'}\n")
    assert "\x1b" not in said


def test_a_robot_is_followed_in_the_dark(told):
    run = read_run(told[0])
    dark = in_the_dark(run)
    assert dark.readings > 900
    assert dark.covered > 0.85  # of intervals of 90 %
    assert run.modes[0] == "nothing"
    assert [e.segments[0].mode for e in run.episodes] == [0, 0, 0]  # nothing is touched at first
    assert all(len(e.segments) >= 3 for e in run.episodes)


def test_a_puck_gives_away_its_law(told):
    run = read_run(told[0] / SECOND)
    assert {m["status"] for m in run.law["modes"]} == {"identified"}
    values = {c["name"]: c for c in run.law["constants"]}
    assert values["mass"]["value"] == pytest.approx(PUCK.mass, rel=0.01)
    walls = [c["value"] for name, c in values.items() if name.startswith("stiffness")]
    assert walls == pytest.approx([PUCK.stiffness] * 2, rel=0.05)
    shown = run.law["prediction"]
    assert shown["held_out"]
    assert shown["rms"][0] < 0.05 * shown["spread"][0]


def test_the_pages_are_linked_and_need_no_network(told):
    first, second = ((told[0] / place / "index.html").read_text("utf-8") for place in ("", SECOND))
    assert f"href='{SECOND}/index.html'" in first
    assert "href='../index.html'" in second
    assert "<math" in second
    for text in (first, second):
        assert text.endswith("</body></html>\n")
        assert not re.search(r"<script[^>]* src=|<link|@import|url\(http", text)


@pytest.mark.parametrize(("name", "value"), [("hide", 0.0), ("hide", 1.0), ("seed", -1)])
def test_bad_settings_are_named(name, value):
    with pytest.raises(ValueError, match=f"--{name} {value:g}; expected"):
        DemoConfig(**{name: value})
