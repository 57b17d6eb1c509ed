"""The modes audit drawn: scores, confusions, what is lost in the dark, and the bound of Thm 2."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from scipy.optimize import linear_sum_assignment

from vhydro.report.laws_figures import diagonal, dressed, panels
from vhydro.report.laws_results import power_of_ten
from vhydro.report.modes_bars import theorems
from vhydro.report.modes_results import (
    ARI,
    BOUND,
    CONDITIONS,
    CONFIGURATION,
    HALF,
    HOLDS,
    LIT,
    OURS,
    PROXY,
    REALISED,
    REGIMES,
    SMALLEST,
    Cell,
    Histogram,
    Method,
    Place,
    Results,
)
from vhydro.report.page import INK
from vhydro.report.support_figures import BROKEN

NEARLY_ONE = -0.01  # a power of ten; what is beyond is drawn at the edge
SAME = 0.02  # on the drawn scale: dots nearer than this are one dot
PROBABILITIES = {"0.9": -0.046, "0.5": -0.301, "0.1": -1.0, "10⁻³": -3.0, "10⁻¹⁰": -10.0, "10⁻³⁰": -30.0}
PROBABILITIES |= {"10⁻¹⁰⁰": -100.0, "10⁻³⁰⁰": -300.0}
PALE, SOUND = "#b4c0d3", "#2563eb"
SHARES = [[0.0, "#f3f5f8"], [0.5, "#8bb4f7"], [1.0, "#1d4ed8"]]

# --- scores -------------------------------------------------------------------------------------------------


def histogram_figure(results: Results, columns: int = 4) -> go.Figure | None:
    """Test rows by their kinematic score, a line for each true regime and a panel for each task; the thresholds."""
    found = [(task, _scored(results, family, task)) for family in results.families for task in results.tasks(family)]
    drawn = [(task, cells) for task, cells in found if cells]
    if not drawn:
        return None
    rows = -(-len(drawn) // columns)
    figure = panels(rows, columns, [f"<b>{t}</b>" for t, _ in drawn], tall=185, horizontal_spacing=0.03)
    for k, (_, cells) in enumerate(drawn):
        _histogram_panel(figure, cells, 1 + k // columns, 1 + k % columns)
    _hide_unused(figure, len(drawn), rows, columns)
    figure.update_yaxes(showticklabels=False, rangemode="tozero", showgrid=False)
    return dressed(figure, 185 * rows + 50, left=12, bottom=26)


def _scored(results: Results, family: str, task: str) -> list[Cell]:
    """The task's cells with a histogram."""
    return [c for c in results.at(Place(family, LIT, PROXY, OURS), task) if c.histogram]


def _histogram_panel(figure: go.Figure, cells: Sequence[Cell], i: int, j: int) -> None:
    histograms = [c.histogram for c in cells if c.histogram]
    ends = [h.edges[k] for h in histograms for k in (0, -1)]
    edges = np.linspace(min(ends), max(ends), len(histograms[0].edges))
    for name, colour in REGIMES.items():
        counts = summed_counts(histograms, name, edges)
        if counts.sum():
            shares = np.append(counts / counts.sum(), 0.0).round(5)
            line = {"color": colour, "width": 1.6, "shape": "hv"}
            trace = go.Scatter(x=edges.round(4), y=shares, mode="lines", line=line, fill="tozeroy", name=name)
            fill = f"rgba({', '.join(str(int(colour[k : k + 2], 16)) for k in (1, 3, 5))}, 0.22)"
            trace.update(fillcolor=fill, hovertemplate="%{y:.1%} of its rows<extra>%{fullData.name}</extra>")
            figure.add_trace(trace, row=i, col=j)
    limits = np.array([c.thresholds for c in cells if len(c.thresholds) == 2])
    for value in np.log10(np.maximum(np.median(limits, axis=0), 10 ** edges[0])) if len(limits) else []:
        ends = {"x0": float(value), "x1": float(value), "y0": 0, "y1": 1, "yref": "y domain"}
        figure.add_shape(type="line", **ends, line={"color": INK, "width": 1, "dash": "dot"}, row=i, col=j)
    whole = list(range(int(np.ceil(edges[0])), int(np.floor(edges[-1])) + 1))
    ticks = whole[:: 1 + len(whole) // 6]
    figure.update_xaxes(tickvals=ticks, ticktext=[power_of_ten(n) for n in ticks], showgrid=False, row=i, col=j)


def summed_counts(histograms: Sequence[Histogram], name: str, edges: np.ndarray) -> np.ndarray:
    """The rows of one regime between common edges; what is in a bin is taken as spread evenly over it."""
    total = np.zeros(len(edges) - 1)
    for h in histograms:
        below = np.concatenate([[0.0], np.cumsum(h.counts.get(name) or [0] * (len(h.edges) - 1))])
        total += np.diff(np.interp(edges, h.edges, below))
    return total


def _hide_unused(figure: go.Figure, drawn: int, rows: int, columns: int) -> None:
    for k in range(drawn, rows * columns):
        i, j = 1 + k // columns, 1 + k % columns
        figure.update_xaxes(visible=False, row=i, col=j)
        figure.update_yaxes(visible=False, row=i, col=j)


# --- confusions ---------------------------------------------------------------------------------------------


def aligned(confusion: np.ndarray) -> np.ndarray:
    """The same counts with a row for each class, that of its partner mode, and a last row for modes without one.

    Numbers of modes mean nothing and differ between seeds. Partners are one to one, with most rows in common; a mode
    and a class without a row in common are none.
    """
    modes, classes = confusion.shape
    out = np.zeros((classes + 1, classes))
    rows, columns = linear_sum_assignment(confusion, maximize=True)
    shared = confusion[rows, columns] > 0
    rows, columns = rows[shared], columns[shared]
    out[columns] = confusion[rows]
    out[-1] = confusion[np.setdiff1d(np.arange(modes), rows)].sum(0)
    return out


def summed_confusion(results: Results, family: str, task: str) -> tuple[list[str], np.ndarray, int] | None:
    """The task's classes, its aligned counts over seeds with the same classes, and how many seeds those are."""
    cells = [c for c in results.at(Place(family, LIT, CONFIGURATION, OURS), task) if c.confusion is not None]
    named = [c for c in cells if c.classes]
    same = [c for c in named if sorted(c.classes) == sorted(named[0].classes)]
    if not same:
        return None
    classes = same[0].classes
    return classes, np.sum([aligned(_by_class(c, classes)) for c in same], axis=0), len(same)


def _by_class(cell: Cell, classes: Sequence[str]) -> np.ndarray:
    """The cell's counts with its classes in this order; 0 for those that its test logs do not have."""
    assert cell.confusion is not None
    missing = max(len(classes) - cell.confusion.shape[1], 0)
    return np.pad(cell.confusion, ((0, 0), (0, missing)))[:, [cell.classes.index(k) for k in classes]]


def confusion_figure(results: Results, columns: int = 3) -> go.Figure | None:
    """What the rows of every found mode truly were, a panel for each task; shares of the mode's rows."""
    found = [(t, summed_confusion(results, f, t)) for f in results.families for t in results.tasks(f)]
    drawn = [(task, some) for task, some in found if some is not None]
    if not drawn:
        return None
    lines = max(_broken(name).count("<br>") for _, (classes, _, _) in drawn for name in classes)
    rows, tall = -(-len(drawn) // columns), 64 + (27 + 9 * lines) * max(len(some[0]) + 1 for _, some in drawn)
    titles = [f"<b>{task}</b>, {seeds} seed{'s' * (seeds > 1)}" for task, (_, _, seeds) in drawn]
    figure = panels(rows, columns, titles, tall=tall, horizontal_spacing=0.16)
    for k, (_, (classes, counts, _)) in enumerate(drawn):
        _confusion_panel(figure, classes, counts, 1 + k // columns, 1 + k % columns)
    _hide_unused(figure, len(drawn), rows, columns)
    figure.update_layout(coloraxis={"colorscale": SHARES, "cmin": 0, "cmax": 1, "showscale": False})
    return dressed(figure, tall * rows + 40, left=150, bottom=26)


def _confusion_panel(figure: go.Figure, classes: Sequence[str], counts: np.ndarray, i: int, j: int) -> None:
    total = counts.sum(1)
    kept = [k for k in range(len(counts)) if total[k] or k < len(classes)]
    shares = np.divide(counts, total[:, None], out=np.full_like(counts, np.nan), where=total[:, None] > 0)[kept]
    names = [*(f"{_broken(name)} <b>{k}</b>" for k, name in enumerate(classes, start=1)), "other modes"]
    text = [["" if np.isnan(v) else f"{100 * v:.0f}" for v in line] for line in shares]
    hover = [[f"{n:,.0f} rows, truly {name}" for n, name in zip(counts[k], classes, strict=True)] for k in kept]
    heat = go.Heatmap(
        z=[[None if np.isnan(v) else round(v, 4) for v in line] for line in shares], text=text, customdata=hover,
        texttemplate="%{text}", coloraxis="coloraxis", xgap=1, ygap=1, hovertemplate="%{customdata}<extra></extra>",
    )  # fmt: skip
    figure.add_trace(heat, row=i, col=j)
    ticks = [*range(len(classes))]
    words = [f"<b>{k + 1}</b>" for k in ticks]
    figure.update_xaxes(tickvals=ticks, ticktext=words, tickangle=0, showgrid=False, row=i, col=j)
    lines = [*range(len(kept))]
    names = [names[k] for k in kept]
    figure.update_yaxes(tickvals=lines, ticktext=names, autorange="reversed", showgrid=False, row=i, col=j)


def _broken(name: str, most: int = 18) -> str:
    """A class's name in lines of about `most` characters."""
    lines = [""]
    for part in name.split(", "):
        if lines[-1] and len(lines[-1]) + len(part) > most:
            lines.append("")
        lines[-1] += f", {part}" if lines[-1] else part
    return ",<br>".join(lines)


# --- half in the dark ---------------------------------------------------------------------------------------


def dark_figure(results: Results) -> go.Figure:
    """ARI against configuration in full sight (full dot) and half hidden (open dot), a panel for each family."""
    families, methods = results.families, results.methods
    tall = 27 * len(methods) + 20
    titles = [f"<b>{family}</b>" for family in families]
    figure = panels(1, len(families), titles, tall=tall, gap=0, horizontal_spacing=0.04, shared_yaxes=True)
    for j, family in enumerate(families, start=1):
        for k, method in enumerate(methods):
            place = Place(family, LIT, CONFIGURATION, method.key)
            for trace in _dumbbell(results, place, method, k):
                figure.add_trace(trace, row=1, col=j)
    lines = {"tickvals": [*range(len(methods))], "range": [len(methods) - 0.5, -0.5], "showgrid": False}
    figure.update_yaxes(**lines)
    figure.update_yaxes(ticktext=[m.key for m in methods], col=1)
    figure.update_xaxes(range=[-0.06, 1.04], tickvals=[0, 0.25, 0.5, 0.75, 1])
    return dressed(figure, tall + 66, left=84, bottom=28)


def _dumbbell(results: Results, place: Place, method: Method, line: int) -> list[go.Scatter]:
    """A ring and, on top of it, a dot for each sight that was run, and the line between them."""
    values = {level: results.number(place._replace(occlusion=level), ARI.key) for level in (HALF, LIT)}
    fills = {HALF: ("#fff", 12), LIT: (method.colour, 6)}
    there = [(v, fills[level]) for level, v in values.items() if v is not None]
    spreads = [
        results.number(place._replace(occlusion=o), f"{ARI.key}_sem") for o, v in values.items() if v is not None
    ]
    if not there:
        return []
    x = [v for v, _ in there]
    colours, sizes = ([fill[k] for _, fill in there] for k in (0, 1))
    marks = {"size": sizes, "color": colours, "line": {"width": 2, "color": method.colour}, "opacity": 1}
    words = [f"ARI {v:.3f}" + ("" if s is None else f" ± {s:.2g}") for v, s in zip(x, spreads, strict=True)]
    return [
        go.Scatter(
            x=x, y=[line] * len(x), mode="lines+markers", marker=marks, line={"color": method.colour, "width": 2.4},
            name=method.key, customdata=words, hovertemplate="%{customdata}<extra>%{fullData.name}</extra>",
        )
    ]  # fmt: skip


# --- the theorem --------------------------------------------------------------------------------------------


def theorem_figure(results: Results) -> go.Figure | None:
    """The bound of Thm 2 against the realised misassignment of held-out segments; above the line it holds."""
    found = {f: [t.points for t in theorems(results, f)] for f in results.families}
    points = {family: np.concatenate(some) for family, some in found.items() if sum(map(len, some))}
    if not points:
        return None
    titles = [f"<b>{family}</b>, {len(some):,} segments" for family, some in points.items()]
    figure = panels(1, len(points), titles, tall=340, gap=0, horizontal_spacing=0.06)
    ends = drawn_at(np.array([SMALLEST, NEARLY_ONE])).tolist()
    for j, some in enumerate(points.values(), start=1):
        figure.add_trace(diagonal(*ends), row=1, col=j)
        met, holds = some[:, CONDITIONS] == 1, some[:, HOLDS] == 1
        groups = (("conditions fail", PALE, ~met), ("conditions hold", SOUND, met & holds))
        for name, colour, which in groups:
            figure.add_trace(_dots(some[which], name, {"color": colour, "size": 5, "opacity": 0.6}), row=1, col=j)
        cross = {"symbol": "x", "size": 8, "color": BROKEN}
        figure.add_trace(_dots(some[met & ~holds], "does not hold", cross), row=1, col=j)
    ticks = drawn_at(np.array([*PROBABILITIES.values()])).tolist()
    axis = {"range": [ends[0] - 0.12, ends[1] + 0.12], "tickvals": ticks, "ticktext": [*PROBABILITIES]}
    figure.update_xaxes(**axis, tickangle=0, title_text="realised misassignment")
    figure.update_yaxes(**axis)
    figure.update_yaxes(title_text="bound", col=1)
    return dressed(figure, 390, left=56)


def drawn_at(powers: np.ndarray) -> np.ndarray:
    """Where probabilities, given as powers of ten, are drawn: by the logarithm of their number of zeros."""
    return -np.log10(-np.clip(powers, SMALLEST, NEARLY_ONE))


def _dots(points: np.ndarray, name: str, marker: dict) -> go.Scatter:
    """One dot for all points that no eye could tell apart."""
    places = drawn_at(np.nan_to_num(points[:, [REALISED, BOUND]], nan=SMALLEST))
    grid, counts = np.unique(np.round(places / SAME), axis=0, return_counts=True)
    x, y = (grid.reshape(-1, 2) * SAME).round(2).T
    hover = "%{customdata} segments<extra>%{fullData.name}</extra>"
    return go.Scatter(
        x=x, y=y, mode="markers", name=name, marker=marker, customdata=counts, hovertemplate=hover
    )  # fmt: skip
