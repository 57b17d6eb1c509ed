"""How result pages draw: a method's mark everywhere the same, and dots that no eye could tell apart drawn once."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from vhydro.report.charts import DASHES, SYMBOLS, Key, Panel, Symbol
from vhydro_audits.spec import Method, Spec

SHARES = ((238, 242, 248), (139, 180, 247), (29, 78, 216))  # colours from never over half to always
BROKEN = "#e11d48"  # a bound that does not hold
PALE = "#aab4c4"
PAPER = "#8b93a1"  # of the paper's own numbers
SAME = 0.01  # of a panel's width or height: dots nearer than this are one dot


class Look(NamedTuple):
    """How a method is drawn; told apart by its symbol as well as by its colour."""

    colour: str
    symbol: Symbol
    dash: str
    width: float


def look(spec: Spec, method: Method) -> Look:
    """The method's own look, with a symbol by its place in the spec."""
    place = [m.key for m in spec.methods].index(method.key)
    dash = DASHES.get(method.dash, "") or ("5 3" if method.kind == "peer" else "")
    return Look(method.colour, SYMBOLS[place % len(SYMBOLS)], dash, min(method.width, 2.8))


def method_keys(spec: Spec, methods: Iterable[Method], *, paper: bool = False) -> list[Key]:
    """The legend of methods, and of the paper's numbers."""
    keys = []
    for m in methods:
        drawn = look(spec, m)
        name = f"{m.name} (ours)" if m.kind == "ours" else m.name
        keys.append(Key(name, drawn.colour, drawn.symbol, drawn.dash, drawn.width))
    return keys + ([Key("the paper’s number", PAPER, "ring", "1 3", 1.4)] if paper else [])


def shade(share: float) -> str:
    """The colour of a share from 0 to 1."""
    k = 0 if share <= 0.5 else 1
    t = 2 * min(max(share, 0.0), 1.0) - k
    return "#" + "".join(f"{round(a + (b - a) * t):02x}" for a, b in zip(SHARES[k], SHARES[k + 1], strict=True))


def thinned(places: np.ndarray, same: float = SAME) -> tuple[np.ndarray, np.ndarray]:
    """Which points to draw so that none lies on another, and how many each stands for.

    `places` are (points, 2), on a scale on which a panel is 1 wide and 1 high.
    """
    if not len(places):
        return np.zeros(0, int), np.zeros(0, int)
    _, first, counts = np.unique(np.round(places / same), axis=0, return_index=True, return_counts=True)
    return first, counts


def log_dots(
    panel: Panel,
    x: Sequence[float],
    y: Sequence[float],
    name: str,
    colour: str,
    *,
    symbol: Symbol = "circle",
    size: float = 5,
    opacity: float = 0.6,
    words: Sequence[str] = (),
) -> None:
    """Draws dots on logarithmic axes; of those that would lie on one another the first, with its words or a count."""
    points = np.column_stack([np.array(x, float), np.array(y, float)])
    logs = np.log10(points)
    first, counts = thinned(logs / np.maximum(np.ptp(logs, axis=0), 1.0) if len(logs) else logs)
    said = [words[k] for k in first] if words else [f"{n} cell{'s' * bool(n != 1)}" for n in counts]
    tips = [f"{name}: {w}\n{points[k, 0]:.3g}, {points[k, 1]:.3g}" for k, w in zip(first, said, strict=True)]
    panel.dots(
        points[first, 0].tolist(), points[first, 1].tolist(), colour, name=name, symbol=symbol, size=size, tips=tips,
        opacity=opacity,
    )  # fmt: skip
