"""How result pages draw: panels, quiet axes, logarithmic scales, and dots that no eye could tell apart drawn once."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from vhydro.report.page import FONT, HAIRLINE, INK, QUIET, SHADE
from vhydro_audits.spec import power_of_ten

SHARES = [[0.0, "#eef2f8"], [0.5, "#8bb4f7"], [1.0, "#1d4ed8"]]  # from never to always
BROKEN = "#e11d48"  # a bound that does not hold
PALE = "#aab4c4"
SAME = 0.01  # of a panel's width or height: dots nearer than this are one dot


def dressed(figure: go.Figure, height: int, *, left: int = 58, bottom: int = 46, top: int = 30) -> go.Figure:
    """The figure in the house's quiet dress: no frame, hairline axes, no legend."""
    figure.update_layout(
        height=height, showlegend=False, template="none", hovermode="closest", barmode="stack",
        font={"family": FONT, "size": 12, "color": QUIET}, margin={"l": left, "r": 14, "t": top, "b": bottom},
        hoverlabel={"bgcolor": INK, "font": {"color": "#fefefe"}},
    )  # fmt: skip
    quiet = {"zeroline": False, "ticks": "", "linecolor": HAIRLINE, "gridcolor": SHADE, "fixedrange": True}
    figure.update_xaxes(**quiet, title={"font": {"size": 12}, "standoff": 5})
    figure.update_yaxes(**quiet, title={"font": {"size": 12}, "standoff": 2})
    return figure


def panels(rows: int, columns: int, titles: Sequence[str], *, tall: int, gap: int = 62, **options) -> go.Figure:
    """A grid of panels `tall` pixels high from one to the next, `gap` of them between, titled at their left ends."""
    figure = make_subplots(rows, columns, subplot_titles=titles, vertical_spacing=gap / (tall * rows), **options)
    lefts = sorted({axis.domain[0] for axis in figure.select_xaxes()})
    for note in figure.layout.annotations:
        left = max(x for x in lefts if x <= note.x)
        note.update(x=left, xanchor="left", align="left", font={"size": 12.5, "color": INK}, yshift=2)
    for k in range(len(titles), rows * columns):
        figure.update_xaxes(visible=False, row=1 + k // columns, col=1 + k % columns)
        figure.update_yaxes(visible=False, row=1 + k // columns, col=1 + k % columns)
    return figure


def log_axis(values: Sequence[float], most: int = 6) -> dict:
    """A logarithmic axis around positive values, with about `most` ticks at most."""
    low, high = (float(np.log10(end(values))) if len(values) else 0.0 for end in (min, max))
    every = 1 + int((high - low) / most)
    ticks = [n for n in range(int(np.floor(low)), int(np.ceil(high)) + 1) if n % every == 0]
    room = 0.05 * (high - low) + 0.1
    words = [power_of_ten(n) for n in ticks]
    return {"type": "log", "range": [low - room, high + room], "tickvals": [10.0**n for n in ticks], "ticktext": words}


def diagonal(low: float, high: float) -> go.Scatter:
    """The line on which both coordinates are the same."""
    line = {"color": INK, "width": 1}
    return go.Scatter(x=[low, high], y=[low, high], mode="lines", line=line, hoverinfo="skip")


def level_line(figure: go.Figure, along: str, value: float, colour: str, *, row: int, col: int = 1) -> None:
    """Draws a dotted line across a panel, at a value of the axis `along` ("x" or "y")."""
    other = "y" if along == "x" else "x"
    ends = {f"{along}0": value, f"{along}1": value, f"{other}0": 0, f"{other}1": 1, f"{other}ref": f"{other} domain"}
    figure.add_shape(type="line", **ends, line={"color": colour, "width": 1, "dash": "dot"}, row=row, col=col)


def thinned(places: np.ndarray, same: float = SAME) -> tuple[np.ndarray, np.ndarray]:
    """Which points to draw so that none lies on another, and how many each stands for.

    `places` are (points, 2), on a scale on which a panel is 1 wide and 1 high.
    """
    if not len(places):
        return np.zeros(0, int), np.zeros(0, int)
    _, first, counts = np.unique(np.round(places / same), axis=0, return_index=True, return_counts=True)
    return first, counts


def log_dots(x: Sequence[float], y: Sequence[float], name: str, marker: dict, words: Sequence[str] = ()) -> go.Scatter:
    """Dots on logarithmic axes; of those that would lie on one another the first, with words of its own or a count."""
    points = np.column_stack([np.array(x, float), np.array(y, float)])
    logs = np.log10(points)
    first, counts = thinned(logs / np.maximum(np.ptp(logs, axis=0), 1.0) if len(logs) else logs)
    said = [words[k] for k in first] if words else [f"{n} cells" for n in counts]
    return go.Scatter(
        x=points[first, 0].astype("f4"), y=points[first, 1].astype("f4"), mode="markers", name=name, marker=marker,
        text=said, hovertemplate="%{text}<br>%{x:.3g}, %{y:.3g}<extra>%{fullData.name}</extra>",
    )  # fmt: skip
