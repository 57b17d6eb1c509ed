"""The laws audit drawn: errors against noise, coefficients, supports, and every cell's numbers by method."""

from collections.abc import Sequence
from statistics import fmean, median

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from vhydro.report.laws_results import BARS, FULL, METHODS, METRICS, PAPER, Method, Results, Row, Setting, power_of_ten
from vhydro.report.page import FONT, HAIRLINE, INK, QUIET, SHADE

LINEAR = 1e-3  # coefficients smaller than this are drawn on a straight scale, larger ones on a logarithmic one
LARGEST = 1e4  # and beyond this at the edge
SIDES = {"no-sparsity": 0.4, PAPER: -0.4, FULL: 0.0}  # beside each other, for true values are few; the last is on top
SCATTERED = [m for key in SIDES for m in METHODS if m.key == key]
ERRORS_DRAWN = (1e-6, 1e2)  # what is outside is drawn at the edge
SAME = 0.02  # dots nearer than this on the drawn scale are one dot: no eye could tell them apart


def dressed(figure: go.Figure, height: int, *, left: int = 58, bottom: int = 46, top: int = 30) -> go.Figure:
    """The figure in the house's quiet dress: no frame, hairline axes, no legend."""
    figure.update_layout(
        height=height, showlegend=False, template="none", hovermode="closest", barmode="stack",
        font={"family": FONT, "size": 12, "color": QUIET}, margin={"l": left, "r": 14, "t": top, "b": bottom},
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
    return figure


def log_axis(values: Sequence[float]) -> dict:
    """A logarithmic axis around positive values, with at most about six ticks."""
    low, high = (float(np.log10(end(values))) if len(values) else 0.0 for end in (min, max))
    every = 1 + int((high - low) / 6)
    ticks = [n for n in range(int(np.floor(low)), int(np.ceil(high)) + 1) if n % every == 0]
    room = 0.05 * (high - low) + 0.1
    words = [power_of_ten(n) for n in ticks]
    return {"type": "log", "range": [low - room, high + room], "tickvals": [10.0**n for n in ticks], "ticktext": words}


def diagonal(low: float, high: float) -> go.Scatter:
    """The line on which both coordinates are the same."""
    line = {"color": INK, "width": 1}
    return go.Scatter(x=[low, high], y=[low, high], mode="lines", line=line, hoverinfo="skip")


# --- error against noise ------------------------------------------------------------------------------------


def overview_figure(results: Results) -> go.Figure:
    """Every metric against the noise, a line per method; a row of panels for each end of what else was done."""
    kinds = _ends(results.settings)
    words = [f"{k.source}, {k.trouble.partition(', ')[2] or 'noise only'}" for k in kinds]
    titles = [f"<b>{word}</b><br>{m.title}" if m is METRICS[0] else m.title for word in words for m in METRICS]
    figure = panels(len(kinds), 4, titles, tall=215, gap=78, horizontal_spacing=0.048)
    for i, kind in enumerate(kinds, start=1):
        for j in range(1, 5):
            _noise_panel(figure, results, kind, i, j)
    return dressed(figure, 215 * len(kinds) + 60, left=36, top=42, bottom=26)


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
        values = [results.rows.get((s, method.key), {}).get(metric.key) for s in along]
        figure.add_trace(_noise_line(method, [s.noise for s in along], values), row=i, col=j)
    for bar in BARS:
        if bar.setting in along:
            figure.add_trace(_bar_mark(bar.setting.noise, bar.limits[j - 1]), row=i, col=j)
    noises = sorted({s.noise for s in results.settings})
    ends = [float(np.log10(noises[0])) - 0.2, float(np.log10(noises[-1])) + 0.2]
    words = [f"{100 * noise:g} %" for noise in noises]
    figure.update_xaxes(type="log", tickvals=noises, ticktext=words, range=ends, row=i, col=j)
    if metric.good > 0:
        figure.update_yaxes(range=[-0.03, 1.06], tickvals=[0, 0.5, 1], row=i, col=j)
    else:
        every = [row[metric.key] for row in results.rows.values() if row[metric.key]]
        figure.update_yaxes(**log_axis([*every, *(b.limits[j - 1] for b in BARS)]), row=i, col=j)


def _noise_line(method: Method, noises: Sequence[float], values: Sequence[float | None]) -> go.Scatter:
    wide = method.key == FULL
    return go.Scatter(
        x=noises, y=values, mode="lines+markers", name=method.title,
        line={"color": method.colour, "width": 3 if wide else 1.4, "dash": method.dash},
        marker={"symbol": method.symbol, "size": 7 if wide else 5},
        hovertemplate="%{x:.1%} noise: %{y:.3g}<extra>%{fullData.name}</extra>",
    )  # fmt: skip


def _bar_mark(noise: float, limit: float) -> go.Scatter:
    mark = {"symbol": "line-ew-open", "size": 18, "color": INK, "line": {"width": 2, "color": INK}}
    return go.Scatter(x=[noise], y=[limit], mode="markers", marker=mark, hovertemplate="%{y:.3g}<extra>bar</extra>")


# --- coefficients -------------------------------------------------------------------------------------------


def signed_log(values: np.ndarray) -> np.ndarray:
    """`±log₁₀(1 + |v| / LINEAR)`, with what is beyond `LARGEST` at the edge."""
    values = np.clip(values, -LARGEST, LARGEST)
    return np.sign(values) * np.log10(1.0 + np.abs(values) / LINEAR)


def scatter_figure(results: Results) -> go.Figure:
    """Estimated against true coefficients of every term, for each system in each setting shown."""
    tasks, settings = results.tasks, results.shown
    titles = [f"<b>{s.title}</b><br>{t}" if t == tasks[0] else t for s in settings for t in tasks]
    figure = panels(len(settings), len(tasks), titles, tall=270, gap=84, horizontal_spacing=0.045)
    edge = float(signed_log(np.array([LARGEST]))[0])
    for i, setting in enumerate(settings, start=1):
        for j, task in enumerate(tasks, start=1):
            figure.add_trace(diagonal(-edge, edge), row=i, col=j)
            for method in SCATTERED:
                cells = [c for c in results.at(setting, method.key) if c["task"] == task]
                figure.add_trace(_coefficients(method, cells), row=i, col=j)
    ticks = {"−100": -100.0, "−1": -1.0, "0": 0.0, "1": 1.0, "100": 100.0}
    places = signed_log(np.array([*ticks.values()])).tolist()
    axis = {"tickvals": places, "ticktext": [*ticks], "range": [-edge - 0.3, edge + 0.3]}
    figure.update_xaxes(**axis, tickangle=0)
    figure.update_yaxes(**axis)
    figure.update_xaxes(title_text="true", row=len(settings))
    figure.update_yaxes(title_text="estimate", col=1)
    return dressed(figure, 270 * len(settings) + 60, top=42)


def _coefficients(method: Method, cells: Sequence[Row]) -> go.Scatter:
    """One dot per term and seed; a term that is neither there nor found has none."""
    terms = [t for cell in cells for t in cell["terms"] if t["true"] or t["estimate"]]
    drawn = signed_log(np.array([[t["true"], t["estimate"]] for t in terms], float).reshape(-1, 2))
    _, first = np.unique(np.round(drawn / SAME), axis=0, return_index=True)
    shown = [terms[k] for k in first]
    words = [f"{t['mode']}, {t['term']}: {t['estimate']:.4g} (true {t['true']:.4g})" for t in shown]
    return go.Scatter(
        x=(drawn[first, 0] + SIDES[method.key]).round(3), y=drawn[first, 1].round(3), text=words,
        mode="markers", name=method.title, opacity=1.0 if method.key == FULL else 0.7,
        marker={"color": method.colour, "size": 7 if method.key == FULL else 5},
        hovertemplate="%{text}<extra>%{fullData.name}</extra>",
    )  # fmt: skip


# --- supports -----------------------------------------------------------------------------------------------


def heat_figure(results: Results, setting: Setting) -> go.Figure:
    """How often every method selects every term of every mode, below the terms that are there; a panel per system."""
    tasks, methods = results.tasks, results.methods("terms")
    tall = 17 * (len(methods) + 1) + 112
    figure = panels(len(tasks), 1, [f"<b>{t}</b>" for t in tasks], tall=tall, gap=112)
    figure.update_annotations(yshift=20)
    for i, task in enumerate(tasks, start=1):
        cells = {m.key: [c for c in results.at(setting, m.key) if c["task"] == task] for m in methods}
        _selection(figure, i, cells)
    names = ["<b>true law</b>", *(m.title for m in methods)]
    figure.update_yaxes(tickvals=[*range(len(names))], ticktext=names, autorange="reversed", showgrid=False)
    figure.update_xaxes(showgrid=False, tickangle=-45)
    scale = {"colorscale": [[0.0, "#f3f5f8"], [0.5, "#8bb4f7"], [1.0, "#1d4ed8"]], "cmin": 0, "cmax": 1}
    figure.update_layout(coloraxis={**scale, "showscale": False})
    return dressed(figure, tall * len(tasks) + 40, left=166, top=48, bottom=80)


def _selection(figure: go.Figure, panel: int, cells: dict[str, list[Row]]) -> None:
    found = [t for group in cells.values() for cell in group for t in cell["terms"]]
    true = {(t["mode"], t["term"]): t["true"] != 0 for t in found}
    keys = [key for mode in dict.fromkeys(mode for mode, _ in true) for key in true if key[0] == mode]
    shares = [[float(true[key]) for key in keys], *(_shares(group, keys) for group in cells.values())]
    names = ["true law", *cells]
    text = [[f"{name}<br>{mode}, {term}" for mode, term in keys] for name in names]
    heat = go.Heatmap(z=shares, text=text, coloraxis="coloraxis", xgap=1, ygap=1)
    heat.hovertemplate = "%{text}: %{z:.0%}<extra></extra>"
    figure.add_trace(heat, row=panel, col=1)
    labels = [f"<b>{term}</b>" if true[mode, term] else term for mode, term in keys]
    figure.update_xaxes(tickvals=[*range(len(keys))], ticktext=labels, row=panel, col=1)
    start = 0
    for mode in dict.fromkeys(mode for mode, _ in keys):
        figure.add_annotation(
            x=start - 0.5, y=1, yref="y domain", yanchor="bottom", xanchor="left", text=mode, showarrow=False,
            font={"size": 11.5}, row=panel, col=1,
        )  # fmt: skip
        start += sum(key[0] == mode for key in keys)
        if start < len(keys):
            gap = {"x0": start - 0.5, "x1": start - 0.5, "y0": 0, "y1": 1, "yref": "y domain"}
            figure.add_shape(type="line", **gap, line={"color": "#fff", "width": 6}, row=panel, col=1)


def _shares(cells: Sequence[Row], keys: Sequence[tuple[str, str]]) -> list[float | None]:
    """How often each term is selected in these cells, among which a term that a cell does not list is not selected."""
    picked = [{(t["mode"], t["term"]) for t in cell["terms"] if t["estimate"]} for cell in cells]
    return [fmean(key in some for some in picked) if picked else None for key in keys]


# --- every cell ---------------------------------------------------------------------------------------------


def strip_figure(results: Results, metric: str, *, log: bool) -> go.Figure:
    """The metric of every cell as a dot, a line of dots per method and a panel per setting; a tick is the median."""
    settings, methods = results.shown, results.methods(metric)
    titles = [f"<b>{s.title}</b>" for s in settings]
    tall = 26 * len(methods) + 20
    figure = panels(1, len(settings), titles, tall=tall, gap=0, horizontal_spacing=0.03, shared_yaxes=True)
    for j, setting in enumerate(settings, start=1):
        for place, method in enumerate(methods):
            values = [cell[metric] for cell in results.at(setting, method.key) if cell[metric] is not None]
            for trace in _strip(np.clip(values, *ERRORS_DRAWN) if log else np.array(values), place, method):
                figure.add_trace(trace, row=1, col=j)
    figure.update_yaxes(range=[len(methods) - 0.5, -0.5], tickvals=[*range(len(methods))], showgrid=False)
    figure.update_yaxes(ticktext=[m.title for m in methods], col=1)
    figure.update_xaxes(**(log_axis(ERRORS_DRAWN) if log else {"range": [-0.04, 1.04], "tickvals": [0, 0.5, 1]}))
    return dressed(figure, tall + 70, left=166, bottom=32)


def _strip(values: np.ndarray, place: int, method: Method) -> list[go.Scatter]:
    if not values.size:
        return []
    height = place + 0.3 * np.sin(2.4 * np.arange(values.size))  # spread over the line, the same each time
    dots = {"color": method.colour, "size": 5, "opacity": 0.4}
    tick = {"symbol": "line-ns-open", "size": 18, "color": INK, "line": {"width": 2, "color": INK}}
    hover = "%{x:.3g}<extra>%{fullData.name}</extra>"
    common = {"mode": "markers", "hovertemplate": hover}
    return [
        go.Scatter(x=values.round(8), y=height.round(2), marker=dots, name=method.title, **common),
        go.Scatter(x=[float(median(values))], y=[place], marker=tick, name=f"{method.title}, median", **common),
    ]
