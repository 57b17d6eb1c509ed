"""A page stands alone: its contents, its tables and its colours, in the light and in the dark."""

import re

import pytest

from vhydro.report.page import (
    DARK,
    NAMES,
    PAPER,
    Section,
    both,
    contrast,
    folded,
    page,
    table_html,
    toned,
)


def test_every_colour_has_one_for_the_dark():
    assert DARK.keys() == NAMES.keys()


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
    light, dark = re.findall("#[0-9a-f]{6}", both(colour))
    assert both(colour) == f"light-dark({light}, {dark})"
    assert contrast(light, PAPER) >= 3.0
    assert contrast(dark, DARK["paper"]) >= 4.5
    assert toned("#000000", PAPER) == "#000000"
    assert both("var(--ink)") == "var(--ink)"


def test_the_contents_lead_to_the_sections_that_have_a_name():
    text = page("t", [Section("A long claim", "<p>x</p>", "Short"), Section("Aside", "<p>y</p>")], answer="so")
    assert re.findall(r"<li><a href='#(\S+)'>(.*?)</a>", text) == [("short", "Short")]
    assert "<section id='short' aria-labelledby='short-title'><h2 id='short-title'>A long claim</h2>" in text
    assert "<section id='aside'" in text
    assert text.index("<h1>t</h1>") < text.index("<p class='lead'>so</p>") < text.index("A long claim</h2>")


def test_a_table_says_what_its_rows_and_columns_are():
    text = table_html(["", "a <b>b</b>"], [["one", "1"]], caption="Counts")
    assert "<caption><span>Counts</span></caption>" in text
    assert "<thead><tr><td></td><th scope='col'>a <b>b</b></th></tr></thead>" in text
    assert "<tr><th scope='row'>one</th><td>1</td></tr>" in text
