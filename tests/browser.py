"""A real browser for the tests of pages: one for a module, closed at its end, and what a page must not do in it."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
)  # fmt: skip
LAPTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
AXE = Path(__file__).parents[1] / "node_modules" / "axe-core" / "axe.min.js"
GRAVE = ("serious", "critical")


def chromium() -> str:
    """The browser's program: the environment's CHROME, or the first of the usual names; skips where there is none."""
    found = os.environ.get("CHROME") or next((p for name in PROGRAMS if (p := shutil.which(name))), None)
    if not found:
        pytest.skip(f"no browser: none of {', '.join(PROGRAMS)} is installed and CHROME is not set")
    return found


@contextmanager
def started() -> Iterator[Any]:
    """A headless browser."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (it is in the dev extra)"
    )
    program = chromium()
    with playwright.sync_playwright() as run:
        browser = run.chromium.launch(executable_path=program, args=[*QUIET])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Any, path: Path, **options) -> Iterator[Any]:
    """A page in a window of its own; fails at the end if the page complained or fetched anything.

    `options` are those of a new window: `viewport`, `color_scheme`, …
    """
    context = browser.new_context(**{"viewport": LAPTOP, **options})
    said: list[str] = []
    page = context.new_page()
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on(
        "request", lambda r: None if r.url.startswith(("file:", "data:", "blob:")) else said.append(f"fetched {r.url}")
    )
    try:
        page.goto(path.as_uri())
        yield page
        assert not said, said
    finally:
        context.close()


def sideways(page: Any) -> int:
    """By how many pixels the page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


def unfold(page: Any) -> None:
    """Opens all that is folded."""
    page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")


def complaints(page: Any, rules: Sequence[str] = ()) -> list[str]:
    """What axe finds grave in the page as it is now, by all of its rules or some; skips where axe is not installed."""
    if not AXE.is_file():
        pytest.skip("no axe: `make node_modules/axe-core` installs it")
    page.evaluate(AXE.read_text("utf-8"))
    options = {"resultTypes": ["violations"]} | ({"runOnly": {"type": "rule", "values": [*rules]}} if rules else {})
    found = page.evaluate("options => axe.run(document, options)", options)
    return [
        f"{v['impact']}: {v['id']} ({len(v['nodes'])}), e.g. {v['nodes'][0]['html'][:160]}"
        for v in found["violations"]
        if v["impact"] in GRAVE
    ]
