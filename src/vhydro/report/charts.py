"""Charts as plain SVG: small, sharp at any size, light and dark with their page, with values on hovering.

A figure is a row of panels that find their own columns, so that it reads on a phone as on a laptop.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Literal, NamedTuple

from vhydro.report.page import both

Symbol = Literal["", "circle", "square", "diamond", "triangle", "down", "cross", "plus", "ring", "tick"]
SYMBOLS: tuple[Symbol, ...] = ("circle", "diamond", "square", "triangle", "down", "plus", "cross")
DASHES = {"solid": "", "dot": "2 4", "dash": "6 4"}
TOP, BOTTOM = 26, 22  # room for the title and for the ticks
WIDE = 1064  # of a page's column on a laptop
CHARACTER = 6.3  # pixels of a tick's letter


class Axis(NamedTuple):
    """An axis from `low` to `high`: its ticks as values and words, and its title.

    `by` turns values into places on a straight scale, e.g. `math.log10`.
    """

    low: float
    high: float
    ticks: Sequence[tuple[float, str]] = ()
    title: str = ""
    by: Callable[[float], float] = float
    grid: bool = True

    def share(self, value: float) -> float:
        """How far along the axis a value is drawn; what is outside is at the edge."""
        low, high = self.by(self.low), self.by(self.high)
        share = (self.by(min(max(value, min(self.low, self.high)), max(self.low, self.high))) - low) / (high - low)
        return min(max(share, 0.0), 1.0)


def plain_number(value: float | int) -> str:
    return f"{value:.10g}".replace("-", "−")


def straight(values: Iterable[float], title: str = "", *, zero: bool = False, most: int = 5, **options) -> Axis:
    """An axis around values with about `most` round ticks."""
    there = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(there), max(there)
    low, high = (min(low, 0.0), max(high, 0.0)) if zero else (low, high)
    if high - low < 1e-12 * max(abs(low), abs(high), 1.0):
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * k for k in (1, 2, 2.5, 5, 10) if power * k >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    ticks = [(round(k * step, 12), plain_number(round(k * step, 12))) for k in range(first, last + 1)]
    room = 0.04 * (high - low)
    return Axis(low if zero and low == 0 else low - room, high + room, ticks, title, **options)


def logarithmic(values: Iterable[float], title: str = "", *, most: int = 6) -> Axis:
    """A logarithmic axis around positive values, with ticks at powers of ten."""
    there = [v for v in values if v > 0 and math.isfinite(v)] or [0.1, 1.0]
    low, high = math.log10(min(there)), math.log10(max(there))
    every = 1 + int((high - low) / most)
    powers = [n for n in range(math.floor(low), math.ceil(high) + 1) if n % every == 0]
    room = 0.05 * (high - low) + 0.1
    low, high = 10 ** (low - room), 10 ** (high + room)
    return Axis(low, high, [(10.0**n, power(n)) for n in powers if low <= 10.0**n <= high], title, math.log10)


def power(exponent: int) -> str:
    """`10⁻³`; 1 and 10 as they are."""
    if exponent in (0, 1):
        return str(10**exponent)
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _paint(colour: str, *, stroke: bool = False, soft: bool = False) -> str:
    """A colour as attributes; browsers without `light-dark` take the plain one. Soft: an area, told by its place."""
    name = "stroke" if stroke else "fill"
    if colour.startswith("var("):
        return f"style='{name}:{colour}'"
    return f"{name}='{colour}'" + ("" if soft else f" style='{name}:{both(colour)}'")


def _mark(symbol: Symbol, x: float, y: float, size: float) -> str:
    """The opening of a mark's element, without its colour."""
    r = size / 2
    if symbol in ("circle", "ring"):
        return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{r:.2g}'"
    path = {
        "square": f"M{x - r:.1f} {y - r:.1f}h{size:.1f}v{size:.1f}h{-size:.1f}z",
        "diamond": f"M{x:.1f} {y - 1.25 * r:.1f}l{1.25 * r:.1f} {1.25 * r:.1f}l{-1.25 * r:.1f} {1.25 * r:.1f}"
        f"l{-1.25 * r:.1f} {-1.25 * r:.1f}z",
        "triangle": f"M{x:.1f} {y - 1.2 * r:.1f}l{1.15 * r:.1f} {2 * r:.1f}h{-2.3 * r:.1f}z",
        "down": f"M{x:.1f} {y + 1.2 * r:.1f}l{1.15 * r:.1f} {-2 * r:.1f}h{-2.3 * r:.1f}z",
        "cross": f"M{x - r:.1f} {y - r:.1f}l{size:.1f} {size:.1f}m0 {-size:.1f}l{-size:.1f} {size:.1f}",
        "plus": f"M{x - 1.2 * r:.1f} {y:.1f}h{2.4 * r:.1f}M{x:.1f} {y - 1.2 * r:.1f}v{2.4 * r:.1f}",
        "tick": f"M{x:.1f} {y - r:.1f}v{size:.1f}",
    }[symbol]
    return f"<path d='{path}'"


def _open(symbol: Symbol) -> bool:
    """Whether a symbol is made of lines and has no inside."""
    return symbol in ("cross", "plus", "tick")


class Mark(NamedTuple):
    """What was drawn: its kind, whose it is, its values and its words."""

    kind: str
    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    tips: tuple[str, ...] = ()


class Panel:
    """One pair of axes and what is drawn in it, in the order in which it is drawn."""

    def __init__(
        self,
        x: Axis,
        y: Axis,
        title: str = "",
        *,
        width: float = 340,
        height: float = 210,
        left: float | None = None,
        right: float = 12,
    ):
        self.x, self.y, self.title, self.width, self.height = x, y, title, width, height
        longest = max((len(words) for _, words in y.ticks), default=0)
        self.left = 10 + CHARACTER * longest if left is None else left
        self.right, self.top = right, (TOP if title else 8)
        self.bottom = BOTTOM + (16 if x.title else 0) - (0 if x.ticks else 14)
        self.parts: list[str] = []
        self.marks: list[Mark] = []

    def _note(self, kind: str, name: str, x: Iterable, y: Iterable, tips: Sequence[str] = ()) -> None:
        self.marks.append(Mark(kind, name, tuple(map(float, x)), tuple(y), tuple(tips)))

    def across(self, value: float) -> float:
        return self.left + (self.width - self.left - self.right) * self.x.share(value)

    def down(self, value: float) -> float:
        return self.height - self.bottom - (self.height - self.top - self.bottom) * self.y.share(value)

    def line(
        self,
        x: Sequence[float],
        y: Sequence[float | None],
        colour: str,
        *,
        name: str = "",
        width: float = 1.8,
        dash: str = "",
        opacity: float = 1.0,
    ) -> "Panel":
        """A line through the points; a missing value is a gap."""
        self._note("line", name, x, y)
        path, pen = [], "M"
        for a, b in zip(x, y, strict=True):
            if b is None or not math.isfinite(b):
                pen = "M"
                continue
            path.append(f"{pen}{self.across(a):.1f} {self.down(b):.1f}")
            pen = "L"
        dashed = f" stroke-dasharray='{dash}'" if dash else ""
        faint = f" opacity='{opacity:g}'" if opacity < 1 else ""
        paint = _paint(colour, stroke=True)
        self.parts.append(f"<path class='line' d='{''.join(path)}' {paint} stroke-width='{width:g}'{dashed}{faint}/>")
        return self

    def dots(
        self,
        x: Sequence[float],
        y: Sequence[float | None],
        colour: str,
        *,
        name: str = "",
        symbol: Symbol = "circle",
        size: float = 6,
        tips: Sequence[str] = (),
        opacity: float = 1.0,
    ) -> "Panel":
        """Marks with words on hovering; a ring is hollow."""
        self._note("dots", name, x, y, tips)
        lined = _open(symbol) or symbol == "ring"
        paint = _paint(colour, stroke=lined) + (" stroke-width='2'" if lined else "")
        inside = " class='hollow'" if symbol == "ring" else " fill='none'" if lined else ""
        faint = f" opacity='{opacity:g}'" if opacity < 1 else ""
        marks = []
        for k, (a, b) in enumerate(zip(x, y, strict=True)):
            if b is not None and math.isfinite(b):
                tip = f" data-tip='{escape(tips[k], quote=True)}'" if tips else ""
                marks.append(f"{_mark(symbol, self.across(a), self.down(b), size)}{tip}/>")
        self.parts.append(f"<g {paint}{inside}{faint}>{''.join(marks)}</g>")
        return self

    def cloud(
        self,
        x: Sequence[float],
        y: Sequence[float],
        colour: str,
        *,
        name: str = "",
        size: float = 3,
        opacity: float = 0.5,
    ) -> "Panel":
        """Many dots as one path; those that no eye could tell apart are drawn once."""
        self._note("cloud", name, x, y)
        places = {(round(self.across(a)), round(self.down(b))) for a, b in zip(x, y, strict=True) if math.isfinite(b)}
        path = "".join(f"M{a} {b}h0" for a, b in sorted(places))
        self.parts.append(
            f"<path d='{path}' {_paint(colour, stroke=True)} stroke-width='{size:g}' stroke-linecap='round' "
            f"opacity='{opacity:g}'/>"
        )
        return self

    def area(
        self, x: Sequence[float], low: Sequence[float], high: Sequence[float], colour: str, *, opacity: float = 0.2
    ) -> "Panel":
        """What lies between two lines."""
        there = [*zip(x, high, strict=True), *reversed([*zip(x, low, strict=True)])]
        path = "L".join(f"{self.across(a):.1f} {self.down(b):.1f}" for a, b in there)
        self.parts.append(f"<path d='M{path}z' {_paint(colour)} opacity='{opacity:g}'/>")
        return self

    def box(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        colour: str,
        *,
        name: str = "",
        tip: str = "",
        opacity: float = 1.0,
        soft: bool = False,
        gap: float = 0.0,
    ) -> "Panel":
        """A filled rectangle, `gap` pixels smaller than its place; a soft one keeps a pale colour."""
        self._note("box", name, x, y, [tip])
        left, right = sorted(self.across(v) for v in x)
        top, low = sorted(self.down(v) for v in y)
        self._rectangle(left, top, right - left - gap, low - top - gap, _paint(colour, soft=soft), tip, opacity)
        return self

    def stretch(
        self,
        x: tuple[float, float],
        y: float,
        colour: str,
        *,
        name: str = "",
        tall: float = 14,
        tip: str = "",
        soft: bool = False,
    ) -> "Panel":
        """A horizontal stretch, `tall` pixels high around a value of the vertical axis."""
        self._note("stretch", name, x, [y], [tip])
        left, right = sorted(self.across(v) for v in x)
        self._rectangle(left, self.down(y) - tall / 2, right - left - 0.7, tall, _paint(colour, soft=soft), tip)
        return self

    def _rectangle(
        self, x: float, y: float, width: float, height: float, paint: str, tip: str, opacity: float = 1.0
    ) -> None:
        said = f" data-tip='{escape(tip, quote=True)}'" if tip else ""
        faint = f" opacity='{opacity:g}'" if opacity < 1 else ""
        size = f"width='{max(width, 0.4):.1f}' height='{max(height, 0.4):.1f}'"
        self.parts.append(f"<rect x='{x:.1f}' y='{y:.1f}' {size} {paint}{faint}{said}/>")

    def rule(self, along: Literal["x", "y"], value: float, words: str = "") -> "Panel":
        """A dotted line across, at a value of the axis `along`, with words at its end."""
        self._note("rule", along, [value], [])
        if along == "x":
            at = self.across(value)
            path, where = f"M{at:.1f} {self.top}V{self.height - self.bottom:.1f}", (at + 4, self.top + 9, "start")
        else:
            at = self.down(value)
            path, where = (
                f"M{self.left:.1f} {at:.1f}H{self.width - self.right:.1f}",
                (self.width - self.right, at - 4, "end"),
            )
        self.parts.append(f"<path class='rule' d='{path}'/>")
        if words:
            self.parts.append(
                f"<text x='{where[0]:.1f}' y='{where[1]:.1f}' text-anchor='{where[2]}'>{escape(words)}</text>"
            )
        return self

    def diagonal(self) -> "Panel":
        """The line on which both coordinates are the same."""
        low, high = max(self.x.low, self.y.low), min(self.x.high, self.y.high)
        return self.line([low, high], [low, high], "var(--quiet)", width=1)

    def words(
        self,
        x: float,
        y: float,
        text: str,
        *,
        anchor: str = "start",
        kind: str = "ink",
        shift: tuple[float, float] = (0, 0),
    ) -> "Panel":
        """Plain text at a place, moved by so many pixels."""
        self._note("words", text, [x], [y])
        a, b = self.across(x) + shift[0], self.down(y) + 4 + shift[1]
        self.parts.append(f"<text class='{kind}' x='{a:.1f}' y='{b:.1f}' text-anchor='{anchor}'>{escape(text)}</text>")
        return self

    def slanted(self, x: float, y: float, text: str, kind: str = "") -> "Panel":
        """A tick's words below a place, slanted so that many fit beside each other."""
        a, b = self.across(x) + 4, self.down(y) + 12
        self.parts.append(
            f"<text class='{kind}' x='{a:.1f}' y='{b:.1f}' text-anchor='end' transform='rotate(-45 {a:.1f} {b:.1f})'>"
            f"{escape(text)}</text>"
        )
        return self

    def svg(self, alt: str = "") -> str:
        """The drawing; `alt` says what is to be seen to those who do not see it."""
        size = f"viewBox='0 0 {self.width:g} {self.height:g}'"
        title = f"<text class='title' x='0' y='12'>{escape(self.title)}</text>" if self.title else ""
        said = escape(alt or self.title or "chart", quote=True)
        return (
            f"<svg {size} role='img' aria-label='{said}' style='max-width:{1.25 * self.width:.0f}px'>{title}"
            f"{self._axes()}{''.join(self.parts)}</svg>"
        )

    def _axes(self) -> str:
        floor, end = self.height - self.bottom, self.width - self.right
        out = []
        for value, words in self.y.ticks:
            at = self.down(value)
            out.append(f"<path class='grid' d='M{self.left:.1f} {at:.1f}H{end:.1f}'/>" if self.y.grid else "")
            out.append(f"<text x='{self.left - 6:.1f}' y='{at + 4:.1f}' text-anchor='end'>{escape(words)}</text>")
        for value, words in self.x.ticks:
            at = self.across(value)
            out.append(f"<path class='grid' d='M{at:.1f} {self.top}V{floor:.1f}'/>" if self.x.grid else "")
            out.append(f"<text x='{at:.1f}' y='{floor + 15:.1f}' text-anchor='middle'>{escape(words)}</text>")
        if self.x.ticks:
            out.append(f"<path class='axis' d='M{self.left:.1f} {floor:.1f}H{end:.1f}'/>")
        if self.x.title:
            middle = (self.left + end) / 2
            out.append(
                f"<text x='{middle:.1f}' y='{self.height - 4:.1f}' text-anchor='middle'>{escape(self.x.title)}</text>"
            )
        if self.y.title:
            out.append(
                f"<text x='{self.left:.1f}' y='{self.top - 4:.1f}'>{escape(self.y.title)}</text>" * (not self.title)
            )
        return "".join(out)


class Key(NamedTuple):
    """An entry of a legend: how it is drawn, as a line, a mark, both, or a square where it is neither."""

    name: str
    colour: str
    symbol: Symbol = ""
    dash: str | None = None  # of its line; None: no line
    width: float = 1.8
    soft: bool = False


def legend(keys: Sequence[Key]) -> str:
    """A line of marks with their names."""
    return f"<ul class='legend'>{''.join(f'<li>{_swatch(k)}{escape(k.name)}</li>' for k in keys)}</ul>"


def _swatch(key: Key) -> str:
    parts = []
    if key.dash is not None:
        dashed = f" stroke-dasharray='{key.dash}'" if key.dash else ""
        parts.append(f"<path d='M1 6H25' {_paint(key.colour, stroke=True)} stroke-width='{key.width:g}'{dashed}/>")
    if key.symbol:
        lined = _open(key.symbol) or key.symbol == "ring"
        inside = (
            " class='hollow' stroke-width='2'"
            if key.symbol == "ring"
            else " fill='none' stroke-width='2'"
            if lined
            else ""
        )
        parts.append(f"{_mark(key.symbol, 13, 6, 8)} {_paint(key.colour, stroke=lined)}{inside}/>")
    if not parts:
        parts.append(f"<rect x='7' y='0' width='12' height='12' rx='2' {_paint(key.colour, soft=key.soft)}/>")
    return f"<svg viewBox='0 0 26 12' aria-hidden='true'>{''.join(parts)}</svg>"


def column_width(columns: int) -> float:
    """The width of a panel of which so many stand beside each other on a laptop."""
    return math.floor((WIDE - 22 * (columns - 1)) / columns)


def figure(panels: Sequence[Panel], alt: str, *, keys: Sequence[Key] = (), caption: str = "", name: str = "") -> str:
    """A figure of panels beside each other, as many as fit; one that is wide scrolls by itself on a phone.

    `alt` says what is to be seen, `caption` is HTML.
    """
    above, below = legend(keys) if keys else "", f"<figcaption>{caption}</figcaption>" if caption else ""
    place = f" id='{name}'" if name else ""
    said = [p.svg(f"{p.title}: {alt}" if p.title else alt) for p in panels]
    least = max((p.width for p in panels), default=0)
    if least > 560:
        inside = "".join(f"<div class='wide' tabindex='0' role='group' aria-label='figure'>{s}</div>" for s in said)
    else:
        inside = f"<div class='panels' style='--least:{least - 6:g}px'>{''.join(f'<div>{s}</div>' for s in said)}</div>"
    return f"<figure{place}>{above}{inside}{below}</figure>"
