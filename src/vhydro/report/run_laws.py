"""The law of a run on its page: equations as mathematics, constants with intervals, and pictures."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from vhydro.report.mathml import mathml
from vhydro.report.page import table_html
from vhydro.report.run_episodes import swatch
from vhydro.report.run_friction import friction_html
from vhydro.report.run_phase import phase_html
from vhydro.report.run_prediction import prediction_html
from vhydro.report.words import number, plural

CONTACT = re.compile("as (.+), and where (.+), along (.+): (.+)")  # what a contact adds to a law of coupled inertia
UNITLESS = {"1": ""}
STATUS = {
    "identified": ("good", "identified"),
    "at rest": ("good", "at rest"),
    "unidentified": ("wrong", "not identified"),
}


def laws_html(law: Mapping[str, Any]) -> str:
    """Everything that is known of a law."""
    cards = "".join(_mode(i, m) for i, m in enumerate(law["modes"]))
    shared = "".join(f"<div class='shared wide'>{mathml(line)}</div>" for line in law.get("shared", ()))
    numbers = f"{_constants(law['constants'])}{_trust(law)}"
    predicted = prediction_html(law.get("prediction"), law["modes"], law.get("held_out", ()))
    return f"{shared}<div class='lawset'>{cards}</div>{numbers}{predicted}{pictures_html(law)}"


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


def pictures_html(law: Mapping[str, Any]) -> str:
    """Portraits and friction, beside each other where both are of one position."""
    parts = {"How does it move?": "phase", "Where does friction show?": "friction"}
    drawn = {"phase": phase_html, "friction": friction_html}
    found = {title: drawn[key](law.get(key) or (), law["modes"]) for title, key in parts.items()}
    beside = all(len(law.get(key) or ()) == 1 for key in parts.values())
    blocks = [f"<div><h3>{title}</h3>{html}</div>" for title, html in found.items() if html]
    return f"<div class='{'cards' if beside else ''}'>{''.join(blocks)}</div>" if blocks else ""
