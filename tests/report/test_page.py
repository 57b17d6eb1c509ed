"""A page stands alone: its drawing library, its figures and its colours are in it."""

import gzip
import re
from base64 import b64decode

import plotly.graph_objects as go
import pytest
from plotly.offline import get_plotlyjs

from vhydro.report.page import (
    DARK,
    INK,
    NAMES,
    PAPER,
    Section,
    both,
    contrast,
    figure_html,
    folded,
    page,
    table_html,
    toned,
)


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
    text = page("title", [figure()])
    red, green, blue = (int(INK[k : k + 2], 16) for k in (1, 3, 5))
    assert f"[style*='stroke: rgb({red}, {green}, {blue})'] {{ stroke: var(--ink) !important; }}" in text


def test_titles_are_escaped_and_what_is_folded_can_be_opened():
    assert "<title>a &lt; b</title>" in page("a < b", [])
    assert folded("more", "<p>x</p>") == "<details><summary>more</summary><p>x</p></details>"


@pytest.mark.parametrize("name", ["ink", "quiet", "wrong", "good", "accent"])
def test_words_can_be_read_on_the_paper_and_on_its_shade(name):
    for colours in (NAMES, DARK):
        assert contrast(colours[name], colours["paper"]) >= 4.5
        assert contrast(colours[name], colours["shade"]) >= 4.5


def test_contrast_is_that_of_the_standard():
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.005)  # the known lightest grey for text


@pytest.mark.parametrize("colour", ["#f2a33a", "#7fb2ff", "#9d174d", "#2563eb"])
def test_a_mark_can_be_told_from_the_paper_in_the_light_and_in_the_dark(colour):
    for paper in (PAPER, DARK["paper"]):
        assert contrast(toned(colour, paper), paper) >= 3.0
    assert both(colour) == f"light-dark({toned(colour, PAPER)}, {toned(colour, DARK['paper'])})"
    assert both("var(--ink)") == "var(--ink)"


def test_the_contents_lead_to_the_sections_that_have_a_name():
    text = page("t", [Section("A long claim", "<p>x</p>", "Short"), Section("Aside", "<p>y</p>")], answer="so")
    assert re.findall(r"<li><a href='#(\S+)'>(.*?)</a>", text) == [("short", "Short")]
    assert "<section id='short' aria-labelledby='short-title'><h2 id='short-title'>A long claim</h2>" in text
    assert "<section id='aside'" in text
    assert text.index("<h1>t</h1>") < text.index("<p class='lead'>so</p>") < text.index("A long claim</h2>")


def test_a_table_says_what_its_rows_and_columns_are():
    text = table_html(["", "a <b>b</b>"], [["one", "1"]], caption="Counts")
    assert "<caption>Counts</caption>" in text
    assert "<thead><tr><td></td><th scope='col'>a <b>b</b></th></tr></thead>" in text
    assert "<tr><th scope='row'>one</th><td>1</td></tr>" in text
