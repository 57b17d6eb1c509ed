"""Charts: where things are drawn, what they say on hovering, and that no words of a result become markup."""

import math
import re

import pytest

from vhydro.report.charts import Axis, Key, Panel, column_width, figure, legend, logarithmic, power, straight

SQUARE = Axis(0.0, 10.0, [(0.0, "0"), (5.0, "5"), (10.0, "10")])


def panel(**options) -> Panel:
    return Panel(SQUARE, SQUARE, **{"width": 100, "height": 100, "left": 10, "right": 10, **options})


def test_a_point_is_drawn_where_the_axes_say():
    chart = panel()
    inside = 100 - chart.top - chart.bottom
    assert (chart.across(0), chart.across(5), chart.across(10)) == (10, 50, 90)
    assert chart.down(0) == 100 - chart.bottom
    assert chart.down(2.5) == pytest.approx(100 - chart.bottom - inside / 4)
    assert chart.across(-3) == chart.across(0)  # what is outside is at the edge
    assert chart.across(99) == chart.across(10)


def test_logarithmic_axes_keep_ratios_and_have_few_ticks():
    axis = logarithmic([1e-12, 1e12], most=6)
    assert len(axis.ticks) <= 8
    assert axis.share(1e-6) - axis.share(1e-12) == pytest.approx(axis.share(1e6) - axis.share(1.0))
    assert 0 < axis.share(1e-12) < axis.share(1e12) < 1
    assert [power(n) for n in (-3, 0, 1, 12)] == ["10⁻³", "1", "10", "10¹²"]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.2, 7.9), (1e-9, 3e-9), (5.0, 5.0), (-1e6, -1.0)])
def test_round_ticks_lie_inside_and_are_neither_none_nor_many(low, high):
    axis = straight([low, high])
    assert all(axis.low <= value <= axis.high for value, _ in axis.ticks)
    assert 1 <= len(axis.ticks) <= 12


def test_a_missing_value_is_a_gap_and_not_a_zero():
    chart = panel().line([0, 1, 2, 3], [1.0, None, math.nan, 2.0], "#2563eb")
    (path,) = re.findall("<path class='line' d='([^']*)'", chart.svg())
    assert path.count("M") == 2
    assert "L" not in path
    assert len(re.findall("<circle", panel().dots([0, 1], [None, 3.0], "#2563eb").svg())) == 1


def test_dots_that_no_eye_could_tell_apart_are_drawn_once():
    text = panel().cloud([1.0, 1.0001, 9.0], [1.0, 1.0001, 9.0], "#2563eb").svg()
    assert text.count("h0") == 2


def test_words_of_results_are_text_everywhere():
    bad = "<a href='x'>'\"&"
    chart = (
        panel(title=bad).dots([1], [1], "#2563eb", tips=[bad]).words(1, 1, bad).box((0, 1), (0, 1), "#2563eb", tip=bad)
    )
    html = figure([chart.slanted(1, 1, bad).rule("x", 1, bad)], bad, keys=[Key(bad, "#2563eb", "circle")])
    assert "<a href" not in html
    assert html.count("&lt;a href=") == 9


def test_every_figure_has_words_for_those_who_do_not_see_it_and_every_colour_both_lights():
    html = figure([panel(title="left").line([0, 1], [0, 1], "#f2a33a"), panel(title="right")], "a line that rises")
    assert re.findall("role='img' aria-label='([^']*)'", html) == [
        "left: a line that rises",
        "right: a line that rises",
    ]
    assert "stroke='#f2a33a' style='stroke:light-dark(#" in html
    assert legend([Key("a", "#2563eb", "square", "2 2")]).count("aria-hidden='true'") == 1


def test_columns_fill_the_page():
    for columns in (1, 2, 3, 4):
        assert 1064 - columns < columns * column_width(columns) + 22 * (columns - 1) <= 1064


def test_a_wide_figure_can_be_scrolled_from_the_keyboard():
    assert "<div class='wide' tabindex='0'" in figure([panel(width=900)], "wide")
    assert "tabindex" not in figure([panel()], "narrow")


def test_a_phone_can_have_a_drawing_of_its_own():
    html = figure([panel(width=900)], "wide", narrow=[panel(width=300)])
    assert re.findall("<div class='(wide broad|panels narrow)'", html) == ["wide broad", "panels narrow"]
    assert "narrow" not in figure([panel()], "alone")
