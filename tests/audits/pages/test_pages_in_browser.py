"""The audit pages in a real browser: clicks, hovering, light and dark, a phone, speed, and readers who do not see."""

import time
from pathlib import Path

import pytest
from committed import written_pages

from browser import PHONE, complaints, opened, sideways, started, unfold
from vhydro_audits.pages.frame import AUDITS

PAGES = ("", *AUDITS)
HEIGHT = 6000  # pixels of a folded page on a laptop
SECONDS, BYTES = 3.0, 5e6


@pytest.fixture(scope="module")
def browser():
    with started() as program:
        yield program


@pytest.fixture(scope="module")
def folder(browser, tmp_path_factory) -> Path:
    """The pages of the committed results."""
    return written_pages(tmp_path_factory.mktemp("pages"))[0]


def where(folder: Path, name: str) -> Path:
    return folder / name / "index.html"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_light_opens_at_once_and_is_not_long(browser, folder, name):
    path = where(folder, name)
    assert path.stat().st_size < BYTES
    start = time.perf_counter()
    with opened(browser, path) as page:
        page.wait_for_function("document.readyState === 'complete'")
        assert time.perf_counter() - start < SECONDS
        assert page.evaluate("document.documentElement.scrollHeight") < HEIGHT
        assert page.locator("h1").count() == 1
        first = page.locator("main figure, main .pair").first.bounding_box()
        assert first["y"] < 900  # the first picture begins on the first screen or just below


@pytest.mark.parametrize(
    ("name", "colours"),
    [*((name, "light") for name in PAGES), *((name, "dark") for name in ("", "laws", "planning"))],
)
def test_a_reader_who_does_not_see_colours_or_the_screen_is_served(browser, folder, name, colours):
    with opened(browser, where(folder, name), color_scheme=colours) as page:
        if name in ("", "planning"):
            unfold(page)  # of the large pages one fold is opened below
        assert complaints(page, ["color-contrast"] if colours == "dark" else []) == []


def test_what_is_folded_away_serves_the_same_reader(browser, folder):
    with opened(browser, where(folder, "laws")) as page:
        page.locator("summary", has_text="Tables of every method and setting").click()
        page.locator("summary", has_text="How often each term is selected").click()
        page.locator("summary", has_text="What the words mean").click()
        assert complaints(page) == []


@pytest.mark.parametrize("name", PAGES)
def test_a_phone_never_scrolls_sideways_whatever_is_open(browser, folder, name):
    with opened(browser, where(folder, name), viewport=PHONE, has_touch=True, is_mobile=True) as page:
        assert sideways(page) <= 0
        unfold(page)
        assert sideways(page) <= 0


@pytest.mark.parametrize("name", AUDITS)
def test_a_click_opens_and_closes_a_fold(browser, folder, name):
    with opened(browser, where(folder, name)) as page:
        fold = page.locator("section details").first
        inside = fold.locator(":scope > :not(summary)").first
        assert not inside.is_visible()
        fold.locator("summary").first.click()
        assert inside.is_visible()
        fold.locator("summary").first.click()
        assert not inside.is_visible()


def test_light_and_dark_are_chosen_with_a_click_and_remembered(browser, folder):
    with opened(browser, where(folder, "planning"), color_scheme="light") as page:
        paper = "getComputedStyle(document.documentElement).backgroundColor"
        ink = "getComputedStyle(document.querySelector('svg .title, svg text')).fill"
        light = page.evaluate(paper), page.evaluate(ink)
        page.get_by_role("button", name="Dark colours").click()
        dark = page.evaluate(paper), page.evaluate(ink)
        assert light[0] == "rgb(255, 255, 255)"
        assert light[0] != dark[0]
        assert light[1] != dark[1]  # what is drawn follows
        for _ in range(20):  # what a page stores reaches its next renderer later, on a busy machine much later
            page.wait_for_timeout(250)
            page.reload()
            if page.evaluate(paper) == dark[0]:
                break
        assert page.evaluate(paper) == dark[0]
        page.get_by_role("button", name="Light colours").click()
        assert page.evaluate(paper) == light[0]


def test_a_page_is_dark_where_the_reader_s_system_is(browser, folder):
    with opened(browser, where(folder, "modes"), color_scheme="dark") as page:
        assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(21, 24, 28)"


@pytest.mark.parametrize(
    ("name", "place", "words"),
    [
        ("support", "#metrics-shift circle[data-tip]", "hidden: "),
        ("modes", "#timeline rect[data-tip]", " s to "),
        ("laws", "#trust rect[data-tip]", "of 80 laws"),
        ("planning", "#planning rect[data-tip]", "fails in the model: "),
        ("", "article rect[data-tip]", "truth: "),
    ],
)
def test_hovering_shows_a_value(browser, folder, name, place, words):
    with opened(browser, where(folder, name), reduced_motion="reduce") as page:
        tip = page.locator("#tip")
        assert not tip.is_visible()
        page.locator(place).first.scroll_into_view_if_needed()
        page.evaluate("new Promise(done => setTimeout(done, 100))")  # it has scrolled
        page.locator(place).first.hover(force=True)
        assert tip.is_visible()
        assert words in tip.inner_text()
        page.mouse.move(2, 2)
        assert not tip.is_visible()


def test_the_contents_lead_to_a_section_and_say_where_one_is(browser, folder):
    with opened(browser, where(folder, "support"), reduced_motion="reduce") as page:
        page.get_by_role("navigation").get_by_role("link", name="Certificates").click()
        page.wait_for_function("document.querySelector('[aria-current]')?.textContent === 'Certificates'")
        assert 0 <= page.locator("#certificates").bounding_box()["y"] < 300


def test_the_index_leads_to_a_page_and_back(browser, folder):
    with opened(browser, where(folder, "")) as page:
        page.get_by_role("link", name="Plans whose risk is proven").click()
        page.wait_for_url("**/planning/index.html")
        page.get_by_role("link", name="VHyDRO", exact=True).click()
        page.wait_for_url(where(folder, "").as_uri())


def test_the_first_tab_skips_to_the_content(browser, folder):
    with opened(browser, where(folder, "planning")) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"


def test_a_printed_page_is_light_and_without_buttons(browser, folder):
    with opened(browser, where(folder, "planning"), color_scheme="dark") as page:
        page.emulate_media(media="print")
        assert not page.locator("header.head").is_visible()
        assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
