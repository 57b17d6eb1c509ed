"""The laws audit drawn: errors against noise, coefficients, supports, and every cell's error by method."""

from collections.abc import Sequence
from statistics import fmean, median

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from vhydro.report.laws_results import BARS, FULL, METRICS, PAPER, Method, Results, Setting
from vhydro.report.page import FONT, HAIRLINE, INK, QUIET, SHADE

LINEAR = 1e-3  # coefficients smaller than this are drawn on a straight scale, larger ones on a logarithmic one
LARGEST = 1e4  # and beyond this at the edge
SCATTERED = (PAPER, "no-sparsity", FULL)  # drawn in this order: the last is on top
SMALLEST_ERROR, LARGEST_ERROR = 1e-6, 1e2
POWERS = {n: f"10{str(n).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}" if n else "1" for n in range(-20, 21)}


def dressed(figure: go.Figure, height: int, *, left: int = 64, bottom: int = 50, top: int = 30) -> go.Figure:
    """The figure in the house's quiet dress: no frame, hairline axes, panel titles at the left."""
    figure.update_layout(
        height=height, showlegend=False, template="none", hovermode="closest", barmode="stack",
        font={"family": FONT, "size": 12, "color": QUIET}, margin={"l": left, "r": 14, "t": top, "b": bottom},
    )  # fmt: skip
    figure.update_xaxes(zeroline=False, ticks="", linecolor=HAIRLINE, gridcolor=SHADE, fixedrange=True)
    figure.update_yaxes(zeroline=False, ticks="", linecolor=HAIRLINE, gridcolor=SHADE, fixedrange=True)
    return figure


def titled(figure: go.Figure) -> go.Figure:
    """The figure with the titles of its panels at their left ends; before any other note is added to it."""
    domains = {axis.anchor: axis.domain for axis in figure.select_xaxes()}
    lefts = sorted({domain[0] for domain in domains.values()})
    for note in figure.layout.annotations:
        left = max(x for x in lefts if x <= note.x)
        note.update(x=left, xanchor="left", font={"size": 12.5, "color": INK})
    return figure


def log_axis(values: Sequence[float], *, every: int = 1) -> dict:
    """A logarithmic axis around positive values, with a tick at every so many powers of ten."""
    low, high = (np.log10(f(values)) if len(values) else 0.0 for f in (min, max))
    ticks = [n for n in range(int(np.floor(low)), int(np.ceil(high)) + 1) if n % every == 0]
    room = 0.05 * (high - low) + 0.1
    ends = [float(low - room), float(high + room)]
    return {"type": "log", "range": ends, "tickvals": [10.0**n for n in ticks], "ticktext": [POWERS[n] for n in ticks]}


# --- error against noise ------------------------------------------------------------------------------------


def overview_figure(results: Results) -> go.Figure:
    """Every metric against the noise, a line per method; a row of panels for each end of what else was done."""
    rows = _ends(results.settings)
    words = [Setting(s.source, 0.0, s.missing, s.flips).title.replace("0 % noise", "noise only", 1) for s in rows]
    names = [w.replace("noise only, ", "") for w in words]
    titles = [f"{m.title} — {name}" if column == 0 else m.title for name in names for column, m in enumerate(METRICS)]
    gap = 62 / (230 * len(rows))
    figure = titled(make_subplots(len(rows), 4, subplot_titles=titles, vertical_spacing=gap, horizontal_spacing=0.045))
    for i, kind in enumerate(rows, start=1):
        for j in range(1, 5):
            _noise_panel(figure, results, kind, i, j)
    return dressed(figure, 230 * len(rows) + 40)


def _ends(settings: Sequence[Setting]) -> list[Setting]:
    """For each source its easiest and its hardest setting, noise aside."""
    ends = []
    for source in dict.fromkeys(s.source for s in settings):
        kinds = sorted({s._replace(noise=0.0) for s in settings if s.source == source})
        ends += dict.fromkeys([kinds[0], kinds[-1]])
    return ends


def _noise_panel(figure: go.Figure, results: Results, kind: Setting, i: int, j: int) -> None:
    metric = METRICS[j - 1]
    along = [s for s in results.settings if s._replace(noise=0.0) == kind]
    for method in reversed(results.methods()):
        points = [(s.noise, results.rows.get((s, method.key), {}).get(metric.key)) for s in along]
        _noise_line(figure, method, [(x, y) for x, y in points if y is not None], i, j)
    for bar in BARS:
        if bar.setting in along:
            mark = {"symbol": "line-ew-open", "size": 17, "color": INK, "line": {"width": 2}}
            trace = go.Scatter(x=[bar.setting.noise], y=[bar.limits[j - 1]], marker=mark, mode="markers", name=bar.word)
            trace.hovertemplate = "%{y:.3g}<extra>bar: %{fullData.name}</extra>"
            figure.add_trace(trace, row=i, col=j)
    noises = sorted({s.noise for s in results.settings})
    ends = [float(np.log10(noises[0])) - 0.15, float(np.log10(noises[-1])) + 0.15]
    figure.update_xaxes(type="log", tickvals=noises, ticktext=[f"{100 * n:g} %" for n in noises], range=ends, row=i, col=j)
    if metric.good > 0:
        figure.update_yaxes(range=[-0.03, 1.06], tickvals=[0, 0.5, 1], row=i, col=j)
        return
    every = [row.get(metric.key) for row in results.rows.values()]
    figure.update_yaxes(**log_axis([*(v for v in every if v), *(b.limits[j - 1] for b in BARS)]), row=i, col=j)


def _noise_line(figure: go.Figure, method: Method, points: Sequence[tuple[float, float]], i: int, j: int) -> None:
    wide = method.key == FULL
    trace = go.Scatter(
        x=[x for x, _ in points], y=[y for _, y in points], mode="lines+markers", name=method.title,
        line={"color": method.colour, "width": 3 if wide else 1.5, "dash": method.dash},
        marker={"symbol": method.symbol, "size": 7 if wide else 5},
        hovertemplate="%{x:.1%} noise: %{y:.3g}<extra>%{fullData.name}</extra>",
    )  # fmt: skip
    figure.add_trace(trace, row=i, col=j)


# --- coefficients -------------------------------------------------------------------------------------------


def signed_log(value: np.ndarray | float) -> np.ndarray:
    """`±log₁₀(1 + |v| / LINEAR)`, with what is beyond `LARGEST` at the edge."""
    value = np.clip(value, -LARGEST, LARGEST)
    return np.sign(value) * np.log10(1.0 + np.abs(value) / LINEAR)


def scatter_figure(results: Results) -> go.Figure:
    """Estimated against true coefficients of every term, for each system in each setting shown."""
    tasks, settings = results.tasks, results.shown
    titles = [f"{task} — {s.title}" if column == 0 else task for s in settings for column, task in enumerate(tasks)]
    gap = 66 / (250 * len(settings))
    figure = make_subplots(len(settings), len(tasks), subplot_titles=titles, vertical_spacing=gap, horizontal_spacing=0.04)
    titled(figure)
    edge = float(signed_log(LARGEST))
    ticks = [-100.0, -1.0, -0.01, 0.0, 0.01, 1.0, 100.0]
    words = ["−100", "−1", "−.01", "0", ".01", "1", "100"]
    axis = {"tickvals": signed_log(np.array(ticks)).tolist(), "ticktext": words, "range": [-edge - 0.2, edge + 0.2]}
    for i, setting in enumerate(settings, start=1):
        for j, task in enumerate(tasks, start=1):
            figure.add_shape(
                type="line", x0=-edge, y0=-edge, x1=edge, y1=edge, line={"color": INK, "width": 1}, layer="below",
                row=i, col=j,
            )  # fmt: skip
            for method in SCATTERED:
                cells = [c for c in results.at(setting, method) if c["task"] == task]
                _scatter(figure, next(m for m in results_methods(method)), cells, i, j)
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    figure.update_xaxes(title={"text": "true", "font": {"size": 12}, "standoff": 4}, row=len(settings))
    figure.update_yaxes(title={"text": "estimate", "font": {"size": 12}, "standoff": 2}, col=1)
    return dressed(figure, 250 * len(settings) + 50)
