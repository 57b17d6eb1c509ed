"""The timeline of logs that last a moment, or longer than anything."""

from xml.etree import ElementTree

import pytest

from vhydro.report.timeline import Stretch, timeline_svg


@pytest.mark.parametrize("seconds", [1e-9, 0.1, 30.0, 1e5, 1e10, 1e11, 3e15, 1e300])
def test_a_log_of_any_length_has_a_readable_axis(seconds):
    picture = ElementTree.fromstring(timeline_svg(["log"], [[Stretch(0.0, seconds, 0)]], ["free"]))
    ticks = [t.text or "" for t in picture.iter("{http://www.w3.org/2000/svg}text") if (t.text or "").endswith(" s")]
    assert 1 <= len(ticks) <= 11
