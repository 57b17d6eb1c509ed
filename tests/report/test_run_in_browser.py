"""The page of a run in a real browser: clicked, dragged, typed at, in the dark, on a phone, and with 200 logs."""

import re
import time

import pytest

from browser import PHONE, complaints, opened, sideways, started, unfold
from made_runs import made_run
from vhydro.report.run_page import write_run_page

READY = "#plot[data-ready='{}']"


@pytest.fixture(scope="module")
def browser():
    with started() as one:
        yield one


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a run of three logs with everything in it."""
    return write_run_page(made_run(tmp_path_factory.mktemp("run") / "my run", channels=8))


def shown(tab) -> str:
    tab.wait_for_selector(READY.format("0"))
    return tab.inner_text("#log-name")


def test_logs_are_chosen_by_clicks_and_keys(browser, page):
    with opened(browser, page) as tab:
        assert shown(tab) == "log 0"
        tab.click(".logs li:nth-child(2) button")
        tab.wait_for_selector(READY.format("1"))
        assert tab.inner_text("#log-name") == "log 1"
        tab.keyboard.press("n")
        tab.wait_for_selector(READY.format("2"))
        assert tab.inner_text("#log-name") == "</script><img src=x onerror=alert(1)>"
        assert tab.is_disabled("#after")
        tab.click("#before")
        tab.wait_for_selector(READY.format("1"))
        tab.keyboard.press("p")
        tab.wait_for_selector(READY.format("0"))
        assert tab.get_attribute(".logs li:nth-child(1) button", "aria-current") == "true"
        tab.keyboard.press("n")
        tab.wait_for_selector(READY.format("1"))
        tab.reload()  # the address remembers
        tab.wait_for_selector(READY.format("1"))


def test_a_segment_is_looked_at_closely_and_the_whole_again(browser, page):
    with opened(browser, page, reduced_motion="reduce") as tab:
        shown(tab)
        assert tab.locator(".cut").count() == 3
        wide = tab.locator(".cut.m1").bounding_box()["width"]
        tab.click(".cut.m1")
        assert tab.locator(".cut.m1").bounding_box()["width"] > 1.5 * wide
        tab.keyboard.press("Escape")
        assert tab.locator(".cut.m1").bounding_box()["width"] == pytest.approx(wide, abs=1)
        tab.click("#segments button >> nth=2")
        assert tab.locator(".cut.m0").count() == 0
        tab.click("#whole")
        assert tab.locator(".cut").count() == 3
        tab.locator(".row.channel svg").first.scroll_into_view_if_needed()
        box = tab.locator(".row.channel svg").first.bounding_box()
        tab.mouse.move(box["x"] + 100, box["y"] + 40)
        tab.mouse.down()
        tab.mouse.move(box["x"] + 250, box["y"] + 40, steps=4)
        tab.mouse.up()
        assert tab.locator(".cut.m2").count() == 0
        tab.locator(".row.channel svg").first.dblclick()
        assert tab.locator(".cut").count() == 3


def test_values_are_read_by_pointing_and_by_arrows(browser, page):
    with opened(browser, page, reduced_motion="reduce") as tab:
        shown(tab)
        tab.locator(".row.channel svg").first.scroll_into_view_if_needed()
        box = tab.locator(".row.channel svg").first.bounding_box()
        tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
        assert tab.inner_text("#cursor") == "3 s"
        said = tab.inner_text(".row.channel .label small >> nth=1")
        value, low, high = (float(x) for x in re.findall(r"-?[\d.]+(?:e-?\d+)?", said.replace("−", "-")))
        assert low < value < high
        tab.focus("#plot")
        tab.keyboard.press("ArrowRight")
        tab.keyboard.press("Shift+ArrowRight")
        assert tab.inner_text("#cursor") == "3.55 s"
        assert tab.inner_text("#spoken").startswith("3.55 s, 1: peg with the hand")


def test_channels_are_switched_on_by_group(browser, page):
    with opened(browser, page) as tab:
        shown(tab)
        assert tab.locator(".row.channel").count() == 6
        tab.click(".chips button >> nth=2")
        assert tab.locator(".row.channel").count() == 8
        tab.click(".chips button >> nth=0")
        assert tab.locator(".row.channel").count() == 5
        assert tab.locator("#areas path.truth").count() == 5  # what was hidden is drawn
        assert tab.locator("#areas path.fault[d^=M]").count() == 0  # the fault is of the first channel
        tab.click(".chips button >> nth=0")
        assert tab.locator("#areas path.fault[d^=M]").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_reads_on_a_phone_and_to_everyone(browser, page, scheme):
    with opened(browser, page, viewport=PHONE, color_scheme=scheme) as tab:
        shown(tab)
        assert all(cut.is_visible() for cut in tab.locator(".cut").all())  # however short
        unfold(tab)
        assert sideways(tab) <= 0
        assert tab.locator(".row.channel svg").first.bounding_box()["width"] > 330
        background = tab.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 200) == (scheme == "dark")
        assert complaints(tab) == []


def test_two_hundred_logs_open_at_once(browser, tmp_path):
    path = write_run_page(made_run(tmp_path / "run", episodes=200, rows=400, channels=14))
    assert path.stat().st_size < 5_000_000
    begun = time.perf_counter()
    with opened(browser, path) as tab:
        shown(tab)
        assert time.perf_counter() - begun < 3
        assert tab.locator(".logs li").count() == 200
        assert "1 of 200" in tab.inner_text("#log-said")
