"""A page stands alone: its drawing library, its figures and its colours are in it."""

import gzip
import re
from base64 import b64decode

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from vhydro.report.page import DARK, INK, NAMES, figure_html, folded, page


def figure(name: str = "a") -> str:
    return figure_html(go.Figure(go.Scatter(y=[1, 2], name="</script><b>")).update_layout(height=123), name)


def test_the_library_is_in_the_page_once_and_whole():
    text = page("title", [figure("a"), figure("b")])
    (packed,) = re.findall(r"id='plotly'>([^<]*)<", text)
    assert gzip.decompress(b64decode(packed)).decode() == get_plotlyjs()
    assert "id='plotly'" not in page("title", ["<p>no figure</p>"])


def test_a_figure_cannot_end_its_script_and_keeps_its_height():
    text = figure()
    assert text.count("</script>") == 1
    assert "<b>" not in text
    assert "\\u003cb" in text
    assert "style='height:123px'" in text


def test_every_colour_has_one_for_the_dark_and_figures_follow():
    assert DARK.keys() == NAMES.keys()
    text = page("title", [])
    red, green, blue = (int(INK[k : k + 2], 16) for k in (1, 3, 5))
    assert f"[style*='stroke: rgb({red}, {green}, {blue})'] {{ stroke: var(--ink) !important; }}" in text


def test_titles_are_escaped_and_what_is_folded_can_be_opened():
    assert "<title>a &lt; b</title>" in page("a < b", [])
    assert folded("more", "<p>x</p>") == "<details><summary>more</summary><p>x</p></details>"
