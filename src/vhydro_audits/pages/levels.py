"""Metrics against a level (noise, occlusion): a line for each method with its spread, and the paper's dotted."""

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from vhydro.report.page import INK
from vhydro_audits.pages.drawing import dressed, level_line, log_axis, panels
from vhydro_audits.pages.results import Place, Results
from vhydro_audits.spec import Method, Metric, percent

PAPER = "#9ca3af"
TICKS = (-30.0, -10.0, -3.0, -1.0, 0.0, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 1e4, 1e5)
NEAR_TICKS = tuple(0.5 * k for k in range(-5, 6))  # where all values are near 0
TALL = 210


def level_figure(
    results: Results,
    rows: Mapping[str, Sequence[Place]],
    metrics: Sequence[Metric],
    along: str,
    *,
    paper: Sequence[str],
    log: bool = False,
) -> go.Figure:
    """A row of panels for each title in `rows`, a panel for each metric.

    `along` names the level, `paper` the methods whose published numbers are drawn.
    """
    titles = [f"<b>{title}</b><br>{m.title}" if m is metrics[0] else m.title for title in rows for m in metrics]
    figure = panels(len(rows), len(metrics), titles, tall=TALL, gap=78, horizontal_spacing=0.24 / len(metrics))
    for i, places in enumerate(rows.values(), start=1):
        for j, metric in enumerate(metrics, start=1):
            drawn = _lines(results, places, metric, paper)
            for line in drawn:
                hover = f"%{{x:.3p}} {along}: %{{customdata:.3g}}<extra>%{{fullData.name}}</extra>"
                figure.add_trace(line.update(x=[p[along] for p in places], hovertemplate=hover), row=i, col=j)
            values = [v for line in drawn for v in line.customdata or () if v is not None]
            figure.update_yaxes(**_axis(metric, values), row=i, col=j)
            if metric.target is not None:
                level_line(figure, "y", metric.target, INK, row=i, col=j)
    levels = results.present(along)
    ends = np.log10([levels[0], levels[-1]]) if log else np.array([levels[0], levels[-1]])
    room = 0.06 * float(np.ptp(ends)) + 0.02
    named = levels if len(levels) < 4 else [levels[0], levels[len(levels) // 2], levels[-1]]
    words = [percent(level) if level in named else "" for level in levels]
    across = {"tickvals": levels, "ticktext": words, "range": [ends[0] - room, ends[1] + room], "tickangle": 0}
    figure.update_xaxes(**across, type="log" if log else "linear")
    return dressed(figure, TALL * len(rows) + 60, left=40, top=42, bottom=26)


def _lines(results: Results, places: Sequence[Place], metric: Metric, paper: Sequence[str]) -> list[go.Scatter]:
    """The lines of a panel, the paper's below and ours on top; `customdata` are their values."""
    lines = []
    for number, draw, some in ((results.paper, _paper_line, paper), (results.number, _line, None)):
        for method in (m for m in reversed(results.methods) if some is None or m.key in some):
            values = [number(place, method.key, metric.key) for place in places]
            if any(v is not None for v in values):
                spreads = [results.number(place, method.key, f"{metric.key}_sem") or 0.0 for place in places]
                line = draw(method, metric, values, spreads)
                lines.append(line.update(y=[_scaled(metric, v) for v in values], customdata=values))
    return lines


def _axis(metric: Metric, values: Sequence[float]) -> dict:
    if metric.scale == "log":
        return log_axis([v for v in values if v > 0])
    if metric.scale == "bent":
        low, high = (np.arcsinh(end(values, default=0.0)) for end in (min, max))
        ticks = NEAR_TICKS if max(high, -low) < NEAR_TICKS[-1] / 2 else TICKS
        ticks = [t for t in ticks if low - 0.6 <= np.arcsinh(t) <= high + 0.6]
        return {"tickvals": np.arcsinh(ticks), "ticktext": [f"{t:g}".replace("-", "−") for t in ticks]}
    if metric.scale == "share":
        return {"range": [-0.04, 1.06], "tickvals": [0, 0.5, metric.target or 1]}
    return {"rangemode": "tozero"}


def _line(method: Method, metric: Metric, values: Sequence[float | None], spreads: Sequence[float]) -> go.Scatter:
    error = {"type": "data", "symmetric": False, "width": 0, "thickness": 1.2}
    for name, sign in (("array", 1), ("arrayminus", -1)):
        ends = [(_scaled(metric, v, sign * s), _scaled(metric, v)) for v, s in zip(values, spreads, strict=True)]
        error[name] = [0.0 if a is None or b is None else abs(a - b) for a, b in ends]
    return go.Scatter(
        mode="lines+markers", name=method.name, error_y=error if any(spreads) else None,
        line={"color": method.colour, "width": method.width, "dash": method.dash},
        marker={"symbol": method.symbol, "size": 7 if method.kind == "ours" else 5},
    )  # fmt: skip


def _paper_line(method: Method, *_) -> go.Scatter:
    line = {"color": PAPER, "width": 1.1, "dash": "dot"}
    marker = {"size": 4, "color": method.colour, "opacity": 0.55}
    return go.Scatter(mode="lines+markers", name=f"paper, {method.name}", line=line, marker=marker)


def _scaled(metric: Metric, value: float | None, shift: float = 0.0) -> float | None:
    """Where a value is drawn; on a bent scale straight near 0 and logarithmically far from it."""
    if value is None:
        return None
    return float(np.arcsinh(value + shift)) if metric.scale == "bent" else value + shift
