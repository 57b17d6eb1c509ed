"""A timeline picture: every log a bar, every segment a stretch of it in the colour of its mode."""

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from vhydro.printable import printable
from vhydro.report.page import FONT, HAIRLINE, INK, QUIET

COLOURS = ("#c9ced6", "#0f8b8d", "#e07a1f", "#3b6fd4", "#a0418f", "#6a994e", "#b8342a", "#8d6e3f")
WIDE, BAR, GAP, TOP, NAME = 960, 16, 8, 44, 150
MOST = 40  # logs in one picture


class Stretch(NamedTuple):
    """A segment: seconds of its start and end, its mode, and how sure the model is of it."""

    start: float
    end: float
    mode: int
    confidence: float | None = None


def timeline_svg(names: Sequence[str], logs: Sequence[Sequence[Stretch]], modes: Sequence[str]) -> str:
    """The picture of the first logs; a stretch that the model is less sure of is paler."""
    shown = list(zip(names, logs, strict=True))[:MOST]
    longest = max((s.end for _, log in shown for s in log), default=0.0) or 1.0
    scale = (WIDE - NAME - 20) / longest
    legend, tall = _legend(modes)
    bars = [_bar(name, log, tall + i * (BAR + GAP), scale) for i, (name, log) in enumerate(shown)]
    end = tall + len(shown) * (BAR + GAP)
    left = len(names) - len(shown)
    note = _text(NAME, end + 36, f"and {left} more logs", QUIET) if left else ""
    height = end + (50 if left else 30)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {height}" width="{WIDE}" height="{height}" '
        f'font-family="{escape(FONT, quote=True)}" font-size="12"><rect width="100%" height="100%" fill="#fff"/>'
        f"{legend}{''.join(bars)}{_axis(end, longest, scale)}{note}</svg>\n"
    )


def _bar(name: str, log: Sequence[Stretch], top: float | int, scale: float) -> str:
    label = name if len(name) <= 22 else f"…{name[-21:]}"
    out = [_text(NAME - 8, top + BAR - 4, label, INK, "end")]
    for s in log:
        sure = 1.0 if s.confidence is None else 0.35 + 0.65 * s.confidence
        out.append(
            f'<rect x="{NAME + s.start * scale:.1f}" y="{top}" width="{max((s.end - s.start) * scale, 0.5):.1f}" '
            f'height="{BAR}" fill="{COLOURS[s.mode % len(COLOURS)]}" fill-opacity="{sure:.2f}"/>'
        )
    return "".join(out)


def _legend(modes: Sequence[str]) -> tuple[str, int]:
    """A line for each mode, and where the bars begin."""
    lines = [
        f'<rect x="{NAME}" y="{12 + 18 * i}" width="11" height="11" rx="2" fill="{COLOURS[i % len(COLOURS)]}"/>'
        + _text(NAME + 18, 22 + 18 * i, f"{i}: {words}", INK)
        for i, words in enumerate(modes)
    ]
    return "".join(lines), TOP + 18 * (len(modes) - 1)


def _axis(top: float | int, longest: float, scale: float) -> str:
    steps = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 3600)
    step = next((s for s in steps if longest / s <= 10), 10.0 ** math.ceil(math.log10(longest / 10)))
    ticks = [k * step for k in range(int(longest / step) + 1)]
    line = f'<line x1="{NAME}" x2="{NAME + longest * scale:.1f}" y1="{top}" y2="{top}" stroke="{HAIRLINE}"/>'
    return line + "".join(_text(NAME + t * scale, top + 16, f"{t:g} s", QUIET, "middle") for t in ticks)


def _text(x: float | int, y: float | int, words: str, colour: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}">{escape(printable(words))}</text>'
