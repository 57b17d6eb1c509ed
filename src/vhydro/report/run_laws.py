"""The law of a run on its page: equations as mathematics, constants with intervals, and a log it did not see."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from vhydro.report.charts import Key, Panel, figure, straight
from vhydro.report.mathml import mathml
from vhydro.report.page import table_html
from vhydro.report.run_episodes import swatch
from vhydro.report.words import number, plural

CONTACT = re.compile("as (.+), and where (.+), along (.+): (.+)")  # what a contact adds to a law of coupled inertia
UNITLESS = {"1": ""}
WIDE = 700.0  # so that its words can be read on a phone
STATUS = {
    "identified": ("good", "identified"),
    "at rest": ("good", "at rest"),
    "unidentified": ("wrong", "not identified"),
}


def laws_html(law: Mapping[str, Any]) -> str:
    """Everything that is known of a law."""
    cards = "".join(_mode(i, m) for i, m in enumerate(law["modes"]))
    shared = "".join(f"<div class='shared wide'>{mathml(line)}</div>" for line in law.get("shared", ()))
    return f"{shared}<div class='lawset'>{cards}</div>{_constants(law['constants'])}{_trust(law)}{_prediction(law)}"


def _mode(place: int, mode: Mapping[str, Any]) -> str:
    kind, words = STATUS[mode["status"]]
    label = escape(f"Equations of {mode['name']}", quote=True)
    lines = "".join(_line(str(line)) for line in mode["equations"])
    reasons = "".join(f"<p class='quiet'>{escape(str(r))}</p>" for r in mode["reasons"])
    return (
        f"<article class='law'><h3>{swatch(place)}{escape(mode['name'])}"
        f"<span class='badge {kind}'>{words}</span></h3>"
        f"<div class='wide' tabindex='0' role='group' aria-label='{label}'>{lines}</div>"
        f"{reasons}</article>"
    )


def _line(line: str) -> str:
    contact = CONTACT.fullmatch(line)
    if contact:
        where, along, force = (mathml(part) for part in contact.groups()[1:])
        words = f"As {escape(contact[1])}, and where {where}, along {along}:"
        return f"<p>{words}</p><div class='equation'>{force}</div>"
    return f"<p>{escape(line)}</p>" if line.startswith("as ") else f"<div class='equation'>{mathml(line)}</div>"


def _constants(constants: Sequence[Mapping[str, Any]]) -> str:
    if not constants:
        return "<p class='quiet'>No constant is determined.</p>"

    def interval(c: Mapping[str, Any]) -> str:
        if c.get("low") is None or c.get("high") is None:
            return "<i>no interval</i>"
        return f"{number('{:.5g}', c['low'])} to {number('{:.5g}', c['high'])}"

    rows = [
        [
            escape(str(c["name"])), number("{:.5g}", c["value"]), interval(c), _unit(c),
            "" if c["identified"] else "<span class='wrong'>not identified</span>",
        ]
        for c in constants
    ]  # fmt: skip
    return table_html(["constant", "value", "95 % interval", "unit", ""], rows)


def _unit(constant: Mapping[str, Any]) -> str:
    return escape(UNITLESS.get(constant["unit"], str(constant["unit"])))


def _trust(law: Mapping[str, Any]) -> str:
    """How far the law can be trusted, in words."""
    said = []
    if law.get("chi_square") is not None:
        said.append(f"Misfit over sensor noise: χ² = {law['chi_square']:.3f}; a true law has about 1.")
    for h in law.get("held_out", ()):
        said.append(
            f"Left alone for {h['seconds']:.3g} s in {plural(int(h['windows']), 'held-out window')}, nine in ten "
            f"deviate by at most {h['excess']:.3g} times what noise alone would leave."
        )
    return "".join(f"<p>{escape(s)}</p>" for s in [*said, *map(str, law.get("notes", ()))])


def _prediction(law: Mapping[str, Any]) -> str:
    found = law.get("prediction")
    if not found:
        return ""
    panels = [_panel(found, axis) for axis in range(len(found["names"]))]
    fitted = (
        f"a law that was fitted to the other {plural(int(found['others']), 'log')} only"
        if found["held_out"]
        else "the law, which was fitted to this log as well"
    )
    off = ", ".join(
        f"{name} by {number('{:.2g}', rms)}{f' {unit}' if unit else ''} of {number('{:.2g}', spread)}"
        for name, rms, spread, unit in zip(found["names"], found["rms"], found["spread"], found["units"], strict=True)
    )
    caption = (
        f"{escape(str(found['log']))}, second by second: each stretch starts from the smoothed state (a ring) and is "
        f"then left alone with the inputs, by {fitted}. RMS deviation: {escape(off)}, the log’s own spread."
    )
    keys = [
        Key("seen", "var(--quiet)", "circle"),
        Key("predicted", "#1d4ed8", dash=""),
        Key("start", "#1d4ed8", "ring"),
    ]
    title = "held-out log and prediction" if found["held_out"] else "log and prediction"
    return f"<h3>Does it predict?</h3>{figure(panels, title, keys=keys, caption=caption)}"


def _panel(found: Mapping[str, Any], axis: int) -> Panel:
    seen = [row[axis] for row in found["seen"]]
    course = [row[axis] for row in found["predicted"]]
    times = [i * found["dt"] for i in range(len(seen))]
    there = [v for v in (*seen, *course) if v is not None]
    unit = found["units"][axis]
    title = f"{found['names'][axis]}{f' ({unit})' if unit else ''}"
    panel = Panel(straight(times, "s"), straight(there), title, width=WIDE, height=230.0)
    known = [(t, v) for t, v in zip(times, seen, strict=True) if v is not None]
    panel.cloud([t for t, _ in known], [v for _, v in known], "var(--quiet)", name="seen", size=3.4, opacity=0.6)
    starts = [int(s) for s in found["starts"]]
    for first, end in zip(starts, [*starts[1:], len(course) - 1], strict=True):
        span = slice(first + (first > 0), end + 1)
        panel.line(times[span], course[span], "#1d4ed8", name="predicted", width=1.8)
    ends = [s for s in starts if course[s] is not None]
    return panel.dots(
        [times[s] for s in ends], [course[s] for s in ends], "#1d4ed8", name="start", symbol="ring", size=7.0
    )
