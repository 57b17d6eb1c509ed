"""The phase portraits of a law: what was recorded, by mode, over the way the law takes it."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from vhydro.report.charts import CHARACTER, Key, Mark, Number, Panel, figure, legend, straight
from vhydro.report.run_episodes import PATTERNS, swatch
from vhydro.report.words import listed, number, plural

WIDTH, HEIGHT = 420.0, 300.0
HEAD = 5.0  # pixels of an arrow's head
DOUBTFUL = "2 3"  # dashes of what a law says that is not identified
FIELD = "var(--accent)"


def phase_html(portraits: Sequence[Mapping[str, Any]], modes: Sequence[Mapping[str, Any]]) -> str:
    """The portraits as one figure, with the modes that occur in them; empty where there are none."""
    if not portraits:
        return ""
    panels = [phase_panel(one, modes) for one in portraits]
    doubtful = {i for i, m in enumerate(modes) if m["status"] == "unidentified"}
    kinds = {bool(line["mode"] in doubtful) for one in portraits for line in one["field"]}
    keys = [Key("where the law goes", FIELD, dash="", width=1.2)] * (False in kinds)
    keys += [Key("where a law goes that is not identified", FIELD, dash=DOUBTFUL, width=1.2)] * (True in kinds)
    present = sorted({int(m) for one in portraits for m in one["mode"]})
    said = mode_legend(present, modes) + legend(keys)
    return said + figure(panels, "velocity against position, by mode", caption=_caption(portraits))


def mode_colour(mode: int) -> str:
    """The colour that a mode has on the whole page, dark enough for a dot."""
    return f"var(--m{mode % PATTERNS})"


def mode_legend(present: Sequence[int], modes: Sequence[Mapping[str, Any]]) -> str:
    """The modes of a picture with their signs; one whose law is not identified has the mark of its card."""
    items = "".join(
        f"<li>{swatch(m)}{escape(str(modes[m]['name']))}"
        f"{'<b class=wrong>not identified</b>' if modes[m]['status'] == 'unidentified' else ''}</li>"
        for m in present
    )
    return f"<ul class='legend'>{items}</ul>"


def with_unit(words: str, unit: str) -> str:
    """`velocity (m/s)`; the words alone where no unit is known."""
    return f"{words} ({unit})" if unit else words


def clouds(panel: Panel, x: Sequence, y: Sequence, mode: Sequence, name: str, *, above: Number = 0) -> None:
    """The samples of every mode in its colour; of several each has its number in its midst, or so many pixels above."""
    of_mode = {m: [(a, b) for a, b, k in zip(x, y, mode, strict=True) if k == m] for m in sorted(set(mode))}
    for m, here in of_mode.items():
        across, up = ([point[k] for point in here] for k in (0, 1))
        panel.cloud(across, up, mode_colour(m), name=f"{name} {m}", size=3.2, opacity=0.75)
    for m, here in of_mode.items() if len(of_mode) > 1 else ():
        panel.words(*_middle(panel, here), str(m), anchor="middle", kind="number", shift=(0, -above))


def _middle(panel: Panel, points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The point in the midst of the others, as the page shows them: where a number does not float in the empty."""
    places = [(panel.across(a), panel.down(b)) for a, b in points]
    x, y = (sorted(p[k] for p in places)[len(places) // 2] for k in (0, 1))
    return min(zip(places, points, strict=True), key=lambda one: math.dist(one[0], (x, y)))[1]


def phase_panel(one: Mapping[str, Any], modes: Sequence[Mapping[str, Any]]) -> Panel:
    """One portrait: places where contacts are on, which way the law goes, and what was recorded."""
    (left, floor), (right, top) = one["low"], one["high"]
    across = straight((left, right), with_unit(one["name"], one["unit"]))._replace(low=left, high=right, grid=False)
    up = straight((floor, top), most=6)._replace(low=floor, high=top, grid=False)
    title = with_unit(f"velocity of {one['name']}", one["rate"])
    if len(one["modes"]) == 1 and len(modes) > 1:
        title += f", {modes[one['modes'][0]]['name']}"
    edge = 10 + CHARACTER * max((len(words) for _, words in up.ticks), default=0)
    panel = Panel(across, up, title, width=WIDTH, height=HEIGHT, left=edge)
    for surface in one["surfaces"]:
        side = right if surface["sign"] > 0 else left
        reach = (surface["place"], side)
        if left < surface["place"] < right:
            panel.box(
                reach, (floor, top), mode_colour(surface["mode"]), name=f"touching {surface['mode']}", opacity=0.13
            )
    doubtful = [modes[line["mode"]]["status"] == "unidentified" for line in one["field"]]
    for kind in (False, True):
        _streams(panel, [line for line, other in zip(one["field"], doubtful, strict=True) if other == kind], kind)
    clouds(panel, one["q"], one["v"], one["mode"], "seen")
    for surface in one["surfaces"]:
        if left < surface["place"] < right:
            panel.rule("x", surface["place"])
    return panel


def _streams(panel: Panel, lines: Sequence[Mapping[str, Any]], doubtful: bool) -> None:
    """Short streamlines, each with a head that says which way, as two paths."""
    if not lines:
        return
    courses, heads = [], []
    for line in lines:
        panel.marks.append(Mark("line", "doubtful field" if doubtful else "field", tuple(line["q"]), tuple(line["v"])))
        places = [(panel.across(a), panel.down(b)) for a, b in zip(line["q"], line["v"], strict=True)]
        courses.append("M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in places))
        heads.append(_head(*places[-2:]))
    kind = "stream doubtful" if doubtful else "stream"
    panel.parts.append(f"<path class='{kind}' d='{''.join(courses)}'/><path class='arrowhead' d='{''.join(heads)}'/>")


def _head(before: tuple[Number, Number], tip: tuple[Number, Number]) -> str:
    """A triangle at a tip."""
    turn = math.atan2(tip[1] - before[1], tip[0] - before[0])
    (a, b), (c, d) = [(tip[0] - HEAD * math.cos(turn + w), tip[1] - HEAD * math.sin(turn + w)) for w in (0.45, -0.45)]
    return f"M{a:.1f} {b:.1f}L{tip[0]:.1f} {tip[1]:.1f}L{c:.1f} {d:.1f}z"


def _caption(portraits: Sequence[Mapping[str, Any]]) -> str:
    held = list(dict.fromkeys(_value(h) for one in portraits for h in one["held"]))
    words = (
        "Every dot is a recorded sample, its velocity smoothed from positions as the law’s own were; what was hidden "
        "is left out. Arrows: which way the law goes on"
    )
    words += f", at the median of all else ({escape(listed(held))})" if 0 < len(held) <= 6 else ""
    words += "; where inputs differ, things cross the arrows."
    places = sum(len(one["surfaces"]) for one in portraits)
    if places:
        words += f" Behind the dotted {plural(places, 'line').split(' ', 1)[1]} a contact is on."
    if any(one["carried"] for one in portraits):
        words += " Velocities are those against what carries a position."
    return words


def _value(held: Mapping[str, Any]) -> str:
    unit = f" {held['unit']}" if held["unit"] else ""
    return f"{held['name']} = {number('{:.3g}', held['value'])}{unit}"
