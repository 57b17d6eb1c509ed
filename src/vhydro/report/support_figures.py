"""The support audit drawn: metrics and the gate against occlusion, certificates, coverage."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

from vhydro.report.laws_figures import diagonal, dressed, log_axis, panels
from vhydro.report.support_bars import BAND, above_bound
from vhydro.report.support_results import (
    COV90,
    ECE,
    ESS,
    HARDEST,
    LEVELS,
    NLL,
    NOMINAL,
    OURS,
    TWO_SIDED,
    WEIGHT_VARIANCE,
    Cell,
    Method,
    Metric,
    Place,
    Results,
)

DRAWN = (ESS, WEIGHT_VARIANCE, NLL, COV90, ECE)
MIXING = Metric("mixing", "λ spent", 0)
CERTIFIED = Metric("certified", "certified steps", 0)
PARETO = Metric("pareto_bad", "steps with k̂ above 0.7", 0)
LOST = Metric("lost", "hidden readings lost", -1)
REALISED = Metric("realised_variance", "realised variance", -1)
NLL_HIDDEN = Metric("nll_hidden", "NLL, hidden readings", -1)
COV90_HIDDEN = Metric("cov90_hidden", "Cov90, hidden readings", 0)
ECE_HIDDEN = Metric("ece_hidden", "ECE, hidden readings", -1)
GATE = (MIXING, CERTIFIED, PARETO, REALISED)
HIDDEN = (NLL_HIDDEN, COV90_HIDDEN, ECE_HIDDEN)
LOGARITHMIC, BENT, COVERAGES = (WEIGHT_VARIANCE, REALISED), (NLL, NLL_HIDDEN), (COV90, COV90_HIDDEN)
PAPER = "#9ca3af"
BROKEN = "#dc2626"
NLL_TICKS = (-30.0, -10.0, -3.0, -1.0, 0.0, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 1e4, 1e5)
NEAR_TICKS = tuple(0.5 * k for k in range(-5, 6))  # where all values are near 0
TALL = 205

WIDTHS = {OURS: 1.6, TWO_SIDED: 4.2}  # they share a filter: where they agree the narrow line lies on the wide one

Setting = tuple[str, str]  # a family and a regime


class Line(NamedTuple):
    """One metric of one method along the levels that were run, its standard errors, and the paper's numbers."""

    method: Method
    values: list[float | None]
    spreads: list[float | None]
    published: list[float | None]


# --- against occlusion --------------------------------------------------------------------------------------


def metric_figure(results: Results, regime: str) -> go.Figure:
    """The metrics of one regime against occlusion: a row of panels for each family, a line for each method."""
    settings = [(family, regime) for family in results.families if results.levels(family, regime)]
    return _grid_figure(results, settings, DRAWN)


def gate_figure(results: Results) -> go.Figure:
    """What the gate spends and what it buys against occlusion, a row for each family and regime."""
    return _grid_figure(results, _settings(results), GATE)


def hidden_figure(results: Results) -> go.Figure:
    """NLL, Cov90 and ECE of the hidden readings alone, a row for each family and regime."""
    return _grid_figure(results, _settings(results), HIDDEN)


def lost_figure(results: Results) -> go.Figure:
    """The share of hidden readings with no particle near, against occlusion; a panel for each family and regime."""
    settings = _settings(results)
    figure = panels(1, len(settings), [f"<b>{f}</b>, {r}" for f, r in settings], tall=TALL, horizontal_spacing=0.05)
    for j, setting in enumerate(settings, start=1):
        _occlusion_panel(figure, results, setting, LOST, 1, j)
    means = [p for p, task in results.rows if task is None]
    top = max((sum(results.number(p, key) or 0.0 for key in (LOST.key, f"{LOST.key}_sem")) for p in means), default=0.0)
    figure.update_yaxes(range=[-0.04 * (top or 1.0), 1.08 * (top or 1.0)])
    return dressed(figure, TALL + 50, left=46, bottom=30)


def _settings(results: Results) -> list[Setting]:
    return [(f, r) for f in results.families for r in results.regimes if results.levels(f, r)]


def _grid_figure(results: Results, settings: Sequence[Setting], metrics: Sequence[Metric]) -> go.Figure:
    titles = [
        f"<b>{family}, {regime}</b><br>{m.title}" if m is metrics[0] else m.title
        for family, regime in settings
        for m in metrics
    ]
    figure = panels(len(settings), len(metrics), titles, tall=TALL, gap=78, horizontal_spacing=0.24 / len(metrics))
    for i, setting in enumerate(settings, start=1):
        for j, metric in enumerate(metrics, start=1):
            _occlusion_panel(figure, results, setting, metric, i, j)
    return dressed(figure, TALL * len(settings) + 60, left=40, top=42, bottom=26)


def _occlusion_panel(figure: go.Figure, results: Results, setting: Setting, metric: Metric, i: int, j: int) -> None:
    levels = results.levels(*setting)
    lines = [_line(results, setting, method, metric) for method in results.methods]
    for line in lines:
        if any(v is not None for v in line.published):
            figure.add_trace(_theirs(line, metric, levels), row=i, col=j)
    for line in lines:
        if any(v is not None for v in line.values):
            figure.add_trace(_ours(line, metric, levels), row=i, col=j)
    drawn = [v for line in lines for v in (*line.values, *line.published) if v is not None]
    ticks = [f"{100 * level:g} %" if level in (0.0, 0.5, HARDEST) else "" for level in LEVELS]
    figure.update_xaxes(tickvals=LEVELS, ticktext=ticks, range=[-0.05, 0.95], tickangle=0, row=i, col=j)
    figure.update_yaxes(**_axis(metric, drawn), row=i, col=j)
    if metric in COVERAGES:
        band = {"y0": BAND[0], "y1": BAND[1], "x0": 0, "x1": 1, "xref": "x domain"}
        figure.add_shape(type="rect", **band, fillcolor="#dcebe4", line_width=0, layer="below", row=i, col=j)


def _axis(metric: Metric, values: Sequence[float]) -> dict:
    if metric in LOGARITHMIC:
        return log_axis([v for v in values if v > 0])
    if metric in BENT:
        low, high = (np.arcsinh(end(values, default=0.0)) for end in (min, max))
        ticks = NEAR_TICKS if max(high, -low) < NEAR_TICKS[-1] / 2 else NLL_TICKS
        ticks = [t for t in ticks if low - 0.6 <= np.arcsinh(t) <= high + 0.6]
        return {"tickvals": np.arcsinh(ticks), "ticktext": [f"{t:g}".replace("-", "−") for t in ticks]}
    if metric in (*COVERAGES, MIXING, CERTIFIED):
        return {"range": [-0.04, 1.05], "tickvals": [0, 0.5, 0.9 if metric in COVERAGES else 1]}
    return {"rangemode": "tozero"}


def _line(results: Results, setting: Setting, method: Method, metric: Metric) -> Line:
    rows = [results.rows.get((Place(*setting, level, method.key), None)) for level in results.levels(*setting)]
    values = [None if row is None else row.numbers.get(metric.key) for row in rows]
    spreads = [None if row is None else row.numbers.get(f"{metric.key}_sem") for row in rows]
    published = [row.published.get(metric.key) if row and row.published else None for row in rows]
    return Line(method, values, spreads, published)


def _ours(line: Line, metric: Metric, levels: Sequence[float]) -> go.Scatter:
    middles = [_place(metric, v) for v in line.values]
    pairs = [*zip(line.values, line.spreads, strict=True)]
    highs, lows = ([_place(metric, v, sign * (s or 0.0)) for v, s in pairs] for sign in (1, -1))
    error = {"type": "data", "symmetric": False, "width": 0, "thickness": 1.2}
    error |= {"array": _distances(highs, middles), "arrayminus": _distances(middles, lows)}
    return go.Scatter(
        x=levels, y=middles, error_y=error, mode="lines+markers", name=line.method.key, customdata=line.values,
        line={"color": line.method.colour, "width": WIDTHS.get(line.method.key, 1.8)},
        marker={"symbol": line.method.symbol, "size": 5.5},
        hovertemplate="%{x:.0%} hidden: %{customdata:.3g}<extra>%{fullData.name}</extra>",
    )  # fmt: skip


def _distances(highs: Sequence[float | None], lows: Sequence[float | None]) -> list[float]:
    pairs = zip(highs, lows, strict=True)
    return [0.0 if high is None or low is None else high - low for high, low in pairs]


def _theirs(line: Line, metric: Metric, levels: Sequence[float]) -> go.Scatter:
    return go.Scatter(
        x=levels, y=[_place(metric, v) for v in line.published], mode="lines+markers", customdata=line.published,
        name=f"paper, {line.method.key}", line={"color": PAPER, "width": 1.1, "dash": "dot"},
        marker={"size": 4, "color": line.method.colour, "opacity": 0.55},
        hovertemplate="%{x:.0%} hidden: %{customdata:.3g}<extra>%{fullData.name}</extra>",
    )  # fmt: skip


def _place(metric: Metric, value: float | None, shift: float = 0.0) -> float | None:
    """Where a value is drawn: NLL on a scale that is straight near 0 and logarithmic far from it."""
    if value is None:
        return None
    return float(np.arcsinh(value + shift)) if metric in BENT else value + shift


# --- certificates -------------------------------------------------------------------------------------------


def certificate_figure(results: Results) -> go.Figure:
    """Bound against realised variance, a dot for each cell; above the line the bound holds."""
    settings = _settings(results)
    figure = panels(1, len(settings), [f"<b>{f}</b>, {r}" for f, r in settings], tall=300, horizontal_spacing=0.05)
    there = [c for c in results.cells if _bounded(c)]
    realised = [c.numbers["bound_realised"] or 0.0 for c in there]
    bounds = [c.numbers["bound"] or 0.0 for c in there]
    for j, setting in enumerate(settings, start=1):
        if there:
            figure.add_trace(diagonal(min(realised) / 10, max(*realised, *bounds) * 10), row=1, col=j)
        cells = [c for c in there if c.place[:2] == setting]
        for trace in _certificates(results, cells):
            figure.add_trace(trace, row=1, col=j)
    across = log_axis(realised)
    few = {key: across[key][::-2] for key in ("tickvals", "ticktext")}  # side by side in a narrow panel
    figure.update_xaxes(**across | few, tickangle=0, title_text="realised variance")
    figure.update_yaxes(**log_axis([*bounds, *realised]))
    figure.update_yaxes(title_text="bound", col=1)
    return dressed(figure, 350, left=52)


def _bounded(cell: Cell) -> bool:
    return all((cell.numbers[key] or 0.0) > 0 for key in ("bound", "bound_realised"))


def _certificates(results: Results, cells: Sequence[Cell]) -> list[go.Scatter]:
    """Dots by method; a red cross is a cell above its bound beyond sampling error."""
    dots = {"size": 4, "opacity": 0.45}
    groups = [
        (m.key, dots | {"color": m.colour}, [c for c in cells if c.place.method == m.key]) for m in results.methods
    ]
    cross = {"symbol": "x", "size": 8, "color": BROKEN}
    groups.append(("above its bound", cross, [c for c in cells if above_bound(c)]))
    return [_bound_dots(some, name, marker) for name, marker, some in groups if some]


def _bound_dots(cells: Sequence[Cell], name: str, marker: dict) -> go.Scatter:
    x, y = (np.array([c.numbers[key] for c in cells], np.float32) for key in ("bound_realised", "bound"))
    hover = "realised %{x:.3g}, bound %{y:.3g}<extra>%{fullData.name}</extra>"
    return go.Scatter(x=x, y=y, mode="markers", name=name, marker=marker, hovertemplate=hover)


# --- coverage -----------------------------------------------------------------------------------------------


def reliability_figure(results: Results) -> go.Figure:
    """Empirical against nominal coverage at the hardest level; on the line a belief is as sure as it should be."""
    settings = _settings(results)
    figure = panels(1, len(settings), [f"<b>{f}</b>, {r}" for f, r in settings], tall=300, horizontal_spacing=0.05)
    for j, setting in enumerate(settings, start=1):
        figure.add_trace(diagonal(0.0, 1.0), row=1, col=j)
        for method in results.methods:
            if shares := mean_coverage(results, Place(*setting, HARDEST, method.key)):
                figure.add_trace(_coverage_line(method, shares), row=1, col=j)
    ticks = [0, 0.25, 0.5, 0.75, 1]
    figure.update_xaxes(range=[0, 1], tickvals=ticks, title_text="nominal")
    figure.update_yaxes(range=[0, 1.02], tickvals=ticks)
    figure.update_yaxes(title_text="empirical", col=1)
    return dressed(figure, 350, left=52)


def mean_coverage(results: Results, place: Place) -> list[float]:
    """The mean over cells of the share inside each nominal interval; empty where no cell has it."""
    found = [c.coverage for c in results.cells if c.place == place and c.coverage is not None]
    return [fmean(shares) for shares in zip(*found, strict=True)]


def _coverage_line(method: Method, shares: Sequence[float]) -> go.Scatter:
    return go.Scatter(
        x=NOMINAL, y=np.round(shares, 4), mode="lines+markers", name=method.key,
        line={"color": method.colour, "width": 3 if method.key == OURS else 1.6},
        marker={"symbol": method.symbol, "size": 4},
        hovertemplate="nominal %{x:.0%}: %{y:.1%}<extra>%{fullData.name}</extra>",
    )  # fmt: skip
