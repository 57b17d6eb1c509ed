"""One log of every task: its score, its labels, and what every method makes of it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from vhydro.report.laws_figures import dressed
from vhydro.report.laws_results import power_of_ten
from vhydro.report.modes_results import (
    CONFIGURATION,
    LIT,
    NO_MODE,
    OURS,
    PROXY,
    REGIME,
    REGIMES,
    Cell,
    Place,
    Results,
    Runs,
)
from vhydro.report.page import INK
from vhydro.report.support_figures import BROKEN
from vhydro.report.timeline import COLOURS

STRIP, SCORE = 19, 62  # pixels
DECADES = 5.0  # of the score that are drawn; what is lower is at the edge
GAP = 0.4  # strips, between labels and methods
UNKNOWN = "#ffffff"  # rows without a label, modes that no row has


class Strip(NamedTuple):
    """A line of a timeline: a path, and for each of its values a colour and words."""

    name: str
    path: Runs
    colours: Sequence[str]
    words: Sequence[str]


def classes_of(results: Results, family: str, task: str) -> list[str]:
    """The contact configurations of a task, in the order of the first seed's labels."""
    cells = results.at(Place(family, LIT, CONFIGURATION, OURS), task)
    return next((c.classes for c in cells if c.classes), [])


def class_colours(classes: Sequence[str]) -> dict[str, str]:
    """The colour of every configuration."""
    return {name: COLOURS[k % len(COLOURS)] for k, name in enumerate(classes)}


def timeline_figure(results: Results, family: str, task: str) -> go.Figure | None:
    """The first test log of the first seed: its score, its labels, and every method's modes; None without a path."""
    truths, found = _truth_strips(results, family, task), _method_strips(results, family, task)
    strips = [*truths, *found]
    if not strips:
        return None
    places = [k + GAP * (k >= len(truths)) for k in range(len(strips))]
    scored = next((c for c in results.at(Place(family, LIT, PROXY, OURS), task) if c.score), None)
    dts = [c.dt for c in results.at(Place(family, LIT, CONFIGURATION, OURS), task) if c.dt]
    dt = dts[0] if dts else 1.0
    tall = round(STRIP * (places[-1] + 1))
    figure = make_subplots(2, 1, shared_xaxes=True, row_heights=[SCORE, tall], vertical_spacing=8 / (SCORE + tall))
    if scored:
        _score_panel(figure, scored, dt)
    for place, strip in zip(places, strips, strict=True):
        figure.add_trace(_bars(strip, place, dt), row=2, col=1)
    end = dt * max(strip.path.rows for strip in strips)
    figure.update_xaxes(range=[0, end], showgrid=False)
    figure.update_xaxes(ticksuffix=" s" if dts else " rows", row=2, col=1)
    names = [strip.name for strip in strips]
    lines = {"tickvals": places, "ticktext": names, "range": [places[-1] + 0.5, -0.5], "showgrid": False}
    figure.update_yaxes(**lines, row=2, col=1)
    return dressed(figure, SCORE + tall + 46, left=110, top=8, bottom=26).update_layout(barmode="overlay")


def _truth_strips(results: Results, family: str, task: str) -> list[Strip]:
    strips = []
    for labels in (CONFIGURATION, REGIME, PROXY):
        for cell in results.at(Place(family, LIT, labels, OURS), task)[:1]:
            if cell.truth is not None:
                colours = class_colours(cell.classes) if labels == CONFIGURATION else REGIMES
                name = "<b>truth</b>" if labels == CONFIGURATION else f"<b>{labels}</b>"
                words = cell.classes or [*colours]
                strips.append(Strip(name, cell.truth, [colours.get(w, COLOURS[0]) for w in words], words))
    return strips


def _method_strips(results: Results, family: str, task: str) -> list[Strip]:
    classes, strips = classes_of(results, family, task), []
    for method in (m for m in results.methods if m.key != NO_MODE):
        for cell in results.at(Place(family, LIT, CONFIGURATION, method.key), task)[:1]:
            if cell.shown is not None:
                nearest = nearest_classes(cell)
                words = [f"{k}, mostly {classes[c] if c < len(classes) else c}" for k, c in enumerate(nearest)]
                strips.append(Strip(method.key, cell.shown, [COLOURS[c % len(COLOURS)] for c in nearest], words))
    return strips


def nearest_classes(cell: Cell) -> list[int]:
    """For each mode of the reading the class that most of its rows have."""
    return [] if cell.confusion is None else cell.confusion.argmax(1).tolist()


def _score_panel(figure: go.Figure, cell: Cell, dt: float) -> None:
    drawn = np.log10([v for v in (*cell.score, *cell.thresholds) if v] or [1.0])
    low, high = max(float(drawn.min()), float(drawn.max()) - DECADES), float(drawn.max())
    values = [None if v is None else max(v, 10**low) for v in cell.score]
    times = [round(dt * k, 4) for k in range(len(values))]
    line = go.Scatter(x=times, y=values, mode="lines", line={"color": INK, "width": 1.2}, name="score")
    figure.add_trace(line.update(hovertemplate="%{x:.2f} s: %{y:.3g}<extra>score</extra>"), row=1, col=1)
    for value in (max(threshold, 10**low) for threshold in cell.thresholds):
        ends = {"x0": 0, "x1": 1, "xref": "x domain", "y0": value, "y1": value}
        figure.add_shape(type="line", **ends, line={"color": BROKEN, "width": 1, "dash": "dot"}, row=1, col=1)
    few = [n for n in range(int(np.floor(low)), int(np.ceil(high)) + 1) if n % (1 + int(high - low) // 3) == 0]
    ticks = {"tickvals": [10.0**n for n in few], "ticktext": [power_of_ten(n) for n in few]}
    figure.update_yaxes(type="log", range=[low - 0.1, high + 0.1], **ticks, title_text="score", row=1, col=1)


def _bars(strip: Strip, line: float | int, dt: float) -> go.Bar:
    values = strip.path.values
    colours = [strip.colours[v] if 0 <= v < len(strip.colours) else UNKNOWN for v in values]
    words = [strip.words[v] if 0 <= v < len(strip.words) else "no label" for v in values]
    return go.Bar(
        base=[round(dt * s, 4) for s in strip.path.starts], x=[round(dt * n, 4) for n in strip.path.lengths],
        y=[line] * len(values), orientation="h", width=0.86, name=strip.name, customdata=words,
        marker={"color": colours, "line": {"color": "#fff", "width": 0.7}},
        hovertemplate="from %{base:.2f} s, %{customdata}<extra>%{fullData.name}</extra>",
    )  # fmt: skip
