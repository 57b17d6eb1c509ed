"""One self-contained page: text, tables and figures that open without a network, in the light and in the dark."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import NamedTuple

from vhydro.report.files import staged, version

ASSETS = Path(__file__).with_name("assets")
PAPER_LINK = "https://arxiv.org/abs/2605.16398"
FONT = "-apple-system, 'Segoe UI', 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"
INK, QUIET, HAIRLINE, SHADE, PAPER = "#1c1f23", "#5c6572", "#e2e5ea", "#f3f4f6", "#ffffff"
WRONG, GOOD, ACCENT = "#b91c1c", "#166534", "#1d4ed8"
NAMES = {"ink": INK, "quiet": QUIET, "hairline": HAIRLINE, "shade": SHADE, "paper": PAPER}
NAMES |= {"wrong": WRONG, "good": GOOD, "accent": ACCENT}
DARK = {"ink": "#e8eaed", "quiet": "#a9b1bd", "hairline": "#3a414b", "shade": "#22272e", "paper": "#15181c"}
DARK |= {"wrong": "#ff8f86", "good": "#7fd69a", "accent": "#8ab4ff"}
# Before anything is drawn, so that a remembered choice does not flash.
REMEMBERED = (
    "try { const kept = localStorage.getItem('vhydro-theme'); "
    "if (kept) document.documentElement.dataset.theme = kept; } catch { /* nothing is remembered here */ }"
)


class Section(NamedTuple):
    """A part of a page: its title, its content as HTML, its name in the contents and its place in a link.

    Without a name it is not in the contents; without a place it gets one from its name or title.
    """

    title: str  # plain text
    content: str
    name: str = ""
    place: str = ""

    @property
    def id(self) -> str:
        return self.place or re.sub(r"[^a-z0-9]+", "-", (self.name or self.title).lower()).strip("-") or "part"


# --- colours --------------------------------------------------------------------------------------------------


def _rgb(colour: str) -> tuple[int, int, int]:
    red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return red, green, blue


def luminance(colour: str) -> float:
    """The relative luminance of `#rrggbb`, as WCAG defines it."""
    linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in (c / 255 for c in _rgb(colour))]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    """The contrast of two colours, from 1 to 21; text wants 4.5, a mark 3."""
    low, high = sorted(luminance(c) for c in (first, second))
    return (high + 0.05) / (low + 0.05)


@cache
def toned(colour: str, paper: str, least: float = 3.0) -> str:
    """The colour, moved towards black or white until its contrast with the paper is at least `least`."""
    towards = 0 if luminance(paper) > 0.5 else 255
    steps = (tuple(round(c + (towards - c) * step / 20) for c in _rgb(colour)) for step in range(21))
    mixed = ("#" + "".join(f"{c:02x}" for c in step) for step in steps)
    return next(candidate for candidate in mixed if contrast(candidate, paper) >= least)


@cache
def both(colour: str, light: float = 3.0, dark: float = 4.5) -> str:
    """A CSS colour that can be told from the paper in the light and in the dark; what is not `#rrggbb` stays.

    `light` and `dark` are the least contrasts there.
    """
    if not re.fullmatch("#[0-9a-fA-F]{6}", colour):
        return colour
    return f"light-dark({toned(colour, PAPER, light)}, {toned(colour, DARK['paper'], dark)})"


@cache
def _style() -> str:
    """The variables, light alone for browsers without `light-dark`, and the dress."""
    light = " ".join(f"--{name}: {colour};" for name, colour in NAMES.items())
    either = " ".join(f"--{name}: light-dark({colour}, {DARK[name]});" for name, colour in NAMES.items())
    return "\n".join(
        [
            f":root {{ {light} color-scheme: light; font: 16px/1.55 {FONT}; }}",
            f"@supports (color: light-dark(#000, #fff)) {{ :root {{ {either} color-scheme: light dark; }} }}",
            ":root[data-theme=light] { color-scheme: light; }",
            ":root[data-theme=dark] { color-scheme: dark; }",
            _asset("page.css"),
        ]
    )


@cache
def _asset(name: str) -> str:
    return (ASSETS / name).read_text("utf-8")


# --- the page ---------------------------------------------------------------------------------------------------


def page(
    title: str,
    sections: Sequence[str | Section],
    *,
    answer: str | None = None,
    kicker: str = "",
    intro: str = "",
    footer: str = "",
    home: str = "",
    style: str = "",
    script: str = "",
) -> str:
    """The whole document.

    `title` is plain text. `answer`, HTML, is the one line below it; without one the sections bring their own heading.
    `kicker` stands above the title, `intro` (HTML blocks) below the answer. A `Section` with a name is in the
    contents. `footer` (HTML) says how the page was made. `home` is the address of the page above this one. `style`
    and `script` are a page's own, after the shared ones.
    """
    parts = [s if isinstance(s, str) else _section(s) for s in sections]
    body = f"<main id='main' tabindex='-1'>{_top(title, answer, kicker, intro)}{''.join(parts)}</main>"
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><script>{REMEMBERED}</script>",
            f"<style>{_style()}{style}</style></head><body>",
            "<a class='skip' href='#main'>Skip to the content</a>",
            _head([s for s in sections if isinstance(s, Section) and s.name], home),
            body,
            "" if "<footer" in body else _footer(footer),
            f"<div id='tip' aria-hidden='true'></div><script>{_asset('page.js')}</script>",
            f"<script>{script}</script>" if script else "",
            "</body></html>\n",
        ]
    )


def _head(named: Sequence[Section], home: str) -> str:
    """The strip on top: the name of the house, the contents, and light or dark."""
    items = "".join(f"<li><a href='#{s.id}'>{escape(s.name)}</a></li>" for s in named)
    contents = f"<nav aria-label='Contents'><ul>{items}</ul></nav>" if items else "<div style='flex:1'></div>"
    brand = (
        f"<a class='brand' href='{escape(home, quote=True)}'>VHyDRO</a>"
        if home
        else "<span class='brand'>VHyDRO</span>"
    )
    button = "<button class='theme' type='button' aria-label='Dark colours'>Dark</button>"
    return f"<header class='head'><div>{brand}{contents}{button}</div></header>"


def _top(title: str, answer: str | None, kicker: str, intro: str) -> str:
    if answer is None:
        return ""
    above = f"<p class='kicker'>{kicker}</p>" if kicker else ""
    lead = f"<p class='lead'>{answer}</p>" if answer else ""
    return f"<header class='top'>{above}<h1>{escape(title)}</h1>{lead}{intro}</header>"


def _section(part: Section) -> str:
    heading = f"<h2 id='{part.id}-title'>{escape(part.title)}</h2>" if part.title else ""
    named = f" aria-labelledby='{part.id}-title'" if part.title else ""
    return f"<section id='{part.id}'{named}>{heading}{part.content}</section>"


def _footer(words: str) -> str:
    paper = f"<a href='{PAPER_LINK}'>the paper, arXiv:2605.16398</a>"
    said = f"<p>{words}</p>" if words else ""
    return f"<footer>{said}<p>Written by VHyDRO {escape(version())}, which follows {paper}.</p></footer>"


# --- its pieces -------------------------------------------------------------------------------------------------


def folded(title: str, content: str, *, place: str = "") -> str:
    """Content behind a line of HTML that opens it."""
    return f"<details{f' id={chr(39)}{place}{chr(39)}' if place else ''}><summary>{title}</summary>{content}</details>"


def folds(parts: Mapping[str, str]) -> str:
    """Several folded parts as one list; empty ones are left out."""
    return f"<div class='folds'>{''.join(folded(title, content) for title, content in parts.items() if content)}</div>"


class Score(NamedTuple):
    """A number beside others: whose it is, the number, and a few words (HTML) below it."""

    name: str
    number: str
    words: str = ""
    ours: bool = False


def scores_html(scores: Sequence[Score]) -> str:
    """Numbers side by side, ours set apart."""
    items = (
        f"<div{' class=ours' * s.ours}><dt>{escape(s.name)}</dt><dd><b>{escape(s.number)}</b>{s.words}</dd></div>"
        for s in scores
    )
    return f"<dl class='scores'>{''.join(items)}</dl>"


def terms_html(terms: Mapping[str, str]) -> str:
    """A definition list from plain text."""
    return f"<dl>{''.join(f'<dt>{escape(k)}</dt><dd>{escape(v)}</dd>' for k, v in terms.items())}</dl>"


def write_page(folder: Path, text: str) -> Path:
    """The path of the page, `folder/index.html`, which holds the text whole or is as it was before."""
    with staged(folder) as scratch:
        (scratch / "index.html").write_text(text, "utf-8")
    return folder / "index.html"


def table_html(head: Sequence[str], rows: Sequence[Sequence[str]], *, kind: str = "", caption: str = "") -> str:
    """A table from HTML cells; kind "text" aligns them to the left, "comparison" sets the last row apart.

    The first cell of a row is its heading. `caption` is plain text; without one the heads name the table to readers
    who do not see it.
    """
    if odd := [row for row in rows if row and len(row) != len(head)]:
        raise ValueError(f"a row has {len(odd[0])} cells, {odd[0][:3]} …; expected {len(head)}, one for every head.")
    heading = "".join(f"<th scope='col'>{h}</th>" if h else "<td></td>" for h in head)
    body = "".join(
        f"<tr><th scope='row'>{row[0]}</th>" + "".join(f"<td>{c}</td>" for c in row[1:]) + "</tr>"
        for row in rows
        if row
    )
    said = escape(caption or "Table of " + ", ".join(re.sub("<[^>]*>", " ", h) for h in head if h), quote=True)
    shown = f"<caption><span>{escape(caption)}</span></caption>" if caption else ""
    table = f"<table class='{kind}'>{shown}<thead><tr>{heading}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div class='wide' tabindex='0' role='group' aria-label='{said}'>{table}</div>"
