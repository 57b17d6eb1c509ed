"""The modes audit drawn: logs with what every method makes of them, confusions, scores, and the bound of Thm 2."""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots
from scipy.optimize import linear_sum_assignment

from vhydro.report.page import INK
from vhydro.report.timeline import COLOURS
from vhydro_audits.pages.drawing import BROKEN, PALE, SHARES, diagonal, dressed, level_line, panels, thinned
from vhydro_audits.pages.results import Place, Record, Results
from vhydro_audits.spec import MODES, Method, power_of_ten

CONFIGURATION, PROXY, REGIME = MODES.known["labels"]
LIT, HALF = MODES.levels["occlusion"]
REGIMES = {"free": "#b9c0cb", "impact": "#b8342a", "sustained": "#56606f"}
UNKNOWN = "#ffffff"  # rows without a label, modes that no row has
STRIP, SCORE = 19, 62  # pixels
GAP = 0.4  # strips, between labels and methods
DECADES = 5.0  # of the score that are drawn; what is lower is at the edge
SOUND = "#2563eb"
SMALLEST, NEARLY_ONE = -300.0, -0.01  # powers of ten; what is beyond is drawn at the edge
PROBABILITIES = {"0.9": -0.046, "0.5": -0.301, "0.1": -1.0, "10⁻³": -3.0, "10⁻¹⁰": -10.0, "10⁻³⁰": -30.0}
PROBABILITIES |= {"10⁻¹⁰⁰": -100.0, "10⁻³⁰⁰": -300.0}
POINT = _, BOUND, REALISED, CONDITIONS, HOLDS, EPSILON, Q_BOUND, Q_REALISED = tuple(range(8))


def place_of(family: str, labels: str, occlusion: float = LIT) -> Place:
    return {"family": family, "labels": labels, "occlusion": occlusion}


def ours_at(results: Results, family: str, task: str, labels: str, key: str) -> list[Record]:
    """The cells of full in full sight that have `key`."""
    return [c for c in results.at(place_of(family, labels), MODES.ours, task) if c.get(key)]


# --- half in the dark -----------------------------------------------------------------------------------------------


def dark_figure(results: Results) -> go.Figure:
    """ARI against configuration in full sight (full dot) and half hidden (ring), a panel for each family."""
    families, methods = results.present("family"), results.methods
    tall = 27 * len(methods) + 20
    titles = [f"<b>{family}</b>" for family in families]
    figure = panels(1, len(families), titles, tall=tall, gap=0, horizontal_spacing=0.04, shared_yaxes=True)
    for j, family in enumerate(families, start=1):
        for k, method in enumerate(methods):
            figure.add_trace(_dumbbell(results, family, method, k), row=1, col=j)
    figure.update_yaxes(tickvals=[*range(len(methods))], range=[len(methods) - 0.5, -0.5], showgrid=False)
    figure.update_yaxes(ticktext=[f"<b>{m.key}</b>" if m.kind == "ours" else m.key for m in methods], col=1)
    figure.update_xaxes(range=[-0.06, 1.04], tickvals=[0, 0.25, 0.5, 0.75, 1])
    return dressed(figure, tall + 66, left=84, bottom=28)


def _dumbbell(results: Results, family: str, method: Method, line: int) -> go.Scatter:
    """A ring and, on top of it, a dot for each sight that was run, and the line between them."""
    rows = {o: results.row(place_of(family, CONFIGURATION, o), method.key) for o in (HALF, LIT)}
    there = {o: row for o, row in rows.items() if row is not None and row.get("ari") is not None}
    marks = {"size": [12 if o else 6 for o in there], "color": [UNKNOWN if o else method.colour for o in there]}
    marks |= {"line": {"width": 2, "color": method.colour}, "opacity": 1}
    words = [
        f"ARI {row['ari']:.3f}" + (f" ± {row['ari_sem']:.2g}" if row.get("ari_sem") else "") for row in there.values()
    ]
    return go.Scatter(
        x=[row["ari"] for row in there.values()], y=[line] * len(there), mode="lines+markers", marker=marks,
        line={"color": method.colour, "width": 2.4}, name=method.key, customdata=words,
        hovertemplate="%{customdata}<extra>%{fullData.name}</extra>",
    )  # fmt: skip


# --- one log --------------------------------------------------------------------------------------------------------


class Strip(NamedTuple):
    """A line of a timeline: a path by its runs, and for each of its values a colour and words."""

    name: str
    path: Record
    colours: Sequence[str]
    words: Sequence[str]


def classes_of(results: Results, family: str, task: str) -> list[str]:
    """The contact configurations of a task, in the order of the first seed's labels."""
    return next((c["classes"] for c in ours_at(results, family, task, CONFIGURATION, "classes")), [])


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
    dts = [c["dt"] for c in ours_at(results, family, task, CONFIGURATION, "dt")]
    dt = dts[0] if dts else 1.0
    tall = round(STRIP * (places[-1] + 1))
    figure = make_subplots(2, 1, shared_xaxes=True, row_heights=[SCORE, tall], vertical_spacing=8 / (SCORE + tall))
    for scored in ours_at(results, family, task, PROXY, "score")[:1]:
        _score_panel(figure, scored, dt)
    for place, strip in zip(places, strips, strict=True):
        figure.add_trace(_bars(strip, place, dt), row=2, col=1)
    figure.update_xaxes(range=[0, dt * max(strip.path["rows"] for strip in strips)], showgrid=False)
    figure.update_xaxes(ticksuffix=" s" if dts else " rows", row=2, col=1)
    lines = {"tickvals": places, "ticktext": [s.name for s in strips], "range": [places[-1] + 0.5, -0.5]}
    figure.update_yaxes(**lines, showgrid=False, row=2, col=1)
    return dressed(figure, SCORE + tall + 46, left=110, top=8, bottom=26).update_layout(barmode="overlay")


def _truth_strips(results: Results, family: str, task: str) -> list[Strip]:
    strips = []
    for labels in (CONFIGURATION, REGIME, PROXY):
        for cell in ours_at(results, family, task, labels, "truth")[:1]:
            classes = cell.get("classes") or []
            colours = class_colours(classes) if labels == CONFIGURATION else REGIMES
            name = "<b>truth</b>" if labels == CONFIGURATION else f"<b>{labels}</b>"
            words = classes or [*colours]
            strips.append(Strip(name, cell["truth"], [colours.get(w, COLOURS[0]) for w in words], words))
    return strips


def _method_strips(results: Results, family: str, task: str) -> list[Strip]:
    """Modes as they are read, each in the colour of the class that most of its rows have."""
    classes, strips = classes_of(results, family, task), []
    for method in (m.key for m in results.methods if m.key != "no-mode"):
        for cell in [c for c in results.at(place_of(family, CONFIGURATION), method, task) if c.get("shown")][:1]:
            nearest = np.array(cell["confusion"]).argmax(1).tolist() if cell.get("confusion") else []
            words = [f"{k}, mostly {classes[c] if c < len(classes) else c}" for k, c in enumerate(nearest)]
            strips.append(Strip(method, cell["shown"], [COLOURS[c % len(COLOURS)] for c in nearest], words))
    return strips


def _score_panel(figure: go.Figure, cell: Record, dt: float) -> None:
    thresholds = cell.get("thresholds") or []
    drawn = np.log10([v for v in (*cell["score"], *thresholds) if v] or [1.0])
    low, high = max(float(drawn.min()), float(drawn.max()) - DECADES), float(drawn.max())
    values = [None if v is None else max(v, 10**low) for v in cell["score"]]
    times = [round(dt * k, 4) for k in range(len(values))]
    line = go.Scatter(x=times, y=values, mode="lines", line={"color": INK, "width": 1.2}, name="score")
    figure.add_trace(line.update(hovertemplate="%{x:.2f} s: %{y:.3g}<extra>score</extra>"), row=1, col=1)
    for value in thresholds:
        level_line(figure, "y", max(value, 10**low), BROKEN, row=1)
    few = [n for n in range(int(np.floor(low)), int(np.ceil(high)) + 1) if n % (1 + int(high - low) // 3) == 0]
    ticks = {"tickvals": [10.0**n for n in few], "ticktext": [power_of_ten(n) for n in few]}
    figure.update_yaxes(type="log", range=[low - 0.1, high + 0.1], **ticks, title_text="score", row=1, col=1)


def _bars(strip: Strip, line: float | int, dt: float) -> go.Bar:
    values, starts = strip.path["values"], strip.path["starts"]
    colours = [strip.colours[v] if 0 <= v < len(strip.colours) else UNKNOWN for v in values]
    words = [escape(str(strip.words[v])) if 0 <= v < len(strip.words) else "no label" for v in values]
    return go.Bar(
        base=[round(dt * s, 4) for s in starts],
        x=[round(dt * (b - a), 4) for a, b in pairwise([*starts, strip.path["rows"]])],
        y=[line] * len(values), orientation="h", width=0.86, name=strip.name, customdata=words,
        marker={"color": colours, "line": {"color": UNKNOWN, "width": 0.7}},
        hovertemplate="from %{base:.2f} s, %{customdata}<extra>%{fullData.name}</extra>",
    )  # fmt: skip


# --- scores ---------------------------------------------------------------------------------------------------------


def histogram_figure(results: Results, columns: int = 4) -> go.Figure | None:
    """Test rows by their kinematic score, a line for each true regime and a panel for each task; the thresholds."""
    found = {t: ours_at(results, f, t, PROXY, "histogram") for f in results.present("family") for t in results.tasks(f)}
    drawn = {task: cells for task, cells in found.items() if cells}
    if not drawn:
        return None
    rows = -(-len(drawn) // columns)
    figure = panels(rows, columns, [f"<b>{t}</b>" for t in drawn], tall=185, horizontal_spacing=0.03)
    for k, cells in enumerate(drawn.values()):
        _histogram_panel(figure, cells, 1 + k // columns, 1 + k % columns)
    figure.update_yaxes(showticklabels=False, rangemode="tozero", showgrid=False)
    return dressed(figure, 185 * rows + 50, left=12, bottom=26)


def _histogram_panel(figure: go.Figure, cells: Sequence[Record], i: int, j: int) -> None:
    histograms = [c["histogram"] for c in cells]
    ends = [h["edges"][k] for h in histograms for k in (0, -1)]
    edges = np.linspace(min(ends), max(ends), len(histograms[0]["edges"]))
    for name, colour in REGIMES.items():
        counts = summed_counts(histograms, name, edges)
        if counts.sum():
            shares = np.append(counts / counts.sum(), 0.0).round(5)
            line = {"color": colour, "width": 1.6, "shape": "hv"}
            trace = go.Scatter(x=edges.round(4), y=shares, mode="lines", line=line, fill="tozeroy", name=name)
            fill = f"rgba({', '.join(str(int(colour[k : k + 2], 16)) for k in (1, 3, 5))}, 0.22)"
            trace.update(fillcolor=fill, hovertemplate="%{y:.1%} of its rows<extra>%{fullData.name}</extra>")
            figure.add_trace(trace, row=i, col=j)
    limits = np.array([c["thresholds"] for c in cells if len(c.get("thresholds") or []) == 2])
    for value in np.log10(np.maximum(np.median(limits, axis=0), 10 ** edges[0])) if len(limits) else []:
        level_line(figure, "x", float(value), INK, row=i, col=j)
    whole = list(range(int(np.ceil(edges[0])), int(np.floor(edges[-1])) + 1))
    ticks = whole[:: 1 + len(whole) // 6]
    figure.update_xaxes(tickvals=ticks, ticktext=[power_of_ten(n) for n in ticks], showgrid=False, row=i, col=j)


def summed_counts(histograms: Sequence[Mapping], name: str, edges: np.ndarray) -> np.ndarray:
    """The rows of one regime between common edges; what is in a bin is taken as spread evenly over it."""
    total = np.zeros(len(edges) - 1)
    for h in histograms:
        below = np.concatenate([[0.0], np.cumsum(h["counts"].get(name) or [0] * (len(h["edges"]) - 1))])
        total += np.diff(np.interp(edges, h["edges"], below))
    return total


# --- confusions -----------------------------------------------------------------------------------------------------


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
    named = [c for c in ours_at(results, family, task, CONFIGURATION, "confusion") if c.get("classes")]
    same = [c for c in named if sorted(c["classes"]) == sorted(named[0]["classes"])]
    if not same:
        return None
    classes = same[0]["classes"]
    return classes, np.sum([aligned(_by_class(c, classes)) for c in same], axis=0), len(same)


def _by_class(cell: Record, classes: Sequence[str]) -> np.ndarray:
    """The cell's counts with its classes in this order; 0 for those that its test logs do not have."""
    counts = np.array(cell["confusion"], float)
    counts = np.pad(counts, ((0, 0), (0, max(len(classes) - counts.shape[1], 0))))
    return counts[:, [cell["classes"].index(k) for k in classes]]


def confusion_figure(results: Results, columns: int = 3) -> go.Figure | None:
    """What the rows of every found mode truly were, a panel for each task; shares of the mode's rows."""
    found = {t: summed_confusion(results, f, t) for f in results.present("family") for t in results.tasks(f)}
    drawn = {task: some for task, some in found.items() if some is not None}
    if not drawn:
        return None
    lines = max(_broken(name).count("<br>") for classes, _, _ in drawn.values() for name in classes)
    tall = 64 + (27 + 9 * lines) * max(len(some[0]) + 1 for some in drawn.values())
    rows, titles = -(-len(drawn) // columns), [f"<b>{t}</b>, {n} seed{'s' * (n > 1)}" for t, (_, _, n) in drawn.items()]
    figure = panels(rows, columns, titles, tall=tall, horizontal_spacing=0.16)
    for k, (classes, counts, _) in enumerate(drawn.values()):
        _confusion_panel(figure, classes, counts, 1 + k // columns, 1 + k % columns)
    figure.update_layout(coloraxis={"colorscale": SHARES, "cmin": 0, "cmax": 1, "showscale": False})
    return dressed(figure, tall * rows + 40, left=150, bottom=26)


def _confusion_panel(figure: go.Figure, classes: Sequence[str], counts: np.ndarray, i: int, j: int) -> None:
    kept = [k for k in range(len(counts)) if counts[k].any() or k < len(classes)]
    total = counts.sum(1, keepdims=True)
    shares = np.divide(counts, total, out=np.full_like(counts, np.nan), where=total > 0)[kept]
    text = [["" if np.isnan(v) else f"{100 * v:.0f}" for v in line] for line in shares]
    hover = [[f"{n:,.0f} rows, truly {escape(name)}" for n, name in zip(counts[k], classes, strict=True)] for k in kept]
    heat = go.Heatmap(
        z=[[None if np.isnan(v) else round(v, 4) for v in line] for line in shares], text=text, customdata=hover,
        texttemplate="%{text}", coloraxis="coloraxis", xgap=1, ygap=1, hovertemplate="%{customdata}<extra></extra>",
    )  # fmt: skip
    figure.add_trace(heat, row=i, col=j)
    ticks = [*range(len(classes))]
    words = [f"<b>{k + 1}</b>" for k in ticks]
    figure.update_xaxes(tickvals=ticks, ticktext=words, tickangle=0, showgrid=False, row=i, col=j)
    names = [*(f"{_broken(name)} <b>{k}</b>" for k, name in enumerate(classes, start=1)), "other modes"]
    lines = {"tickvals": [*range(len(kept))], "ticktext": [names[k] for k in kept]}
    figure.update_yaxes(**lines, autorange="reversed", showgrid=False, row=i, col=j)


def _broken(name: str, most: int = 18) -> str:
    """A class's name in lines of about `most` characters."""
    lines = [""]
    for part in name.split(", "):
        if lines[-1] and len(lines[-1]) + len(part) > most:
            lines.append("")
        lines[-1] += f", {part}" if lines[-1] else part
    return ",<br>".join(map(escape, lines))


# --- the theorem ----------------------------------------------------------------------------------------------------


def theorems(results: Results, family: str | None = None) -> list[Record]:
    """Thm 2 in every cell that measured it, of one family or all."""
    return [c["theorem"] for c in results.cells if c.get("theorem") and family in (None, c["family"])]


def points_of(found: Sequence[Record]) -> np.ndarray:
    """The segments of some cells, (segments, 8) as `POINT` names them; NaN where there is no number."""
    return np.array([point for theorem in found for point in theorem["points"]], float).reshape(-1, len(POINT))


def theorem_figure(results: Results) -> go.Figure | None:
    """The bound of Thm 2 against the realised misassignment of held-out segments; above the line it holds."""
    found = {f: points_of(theorems(results, f)) for f in results.present("family")}
    points = {family: some for family, some in found.items() if len(some)}
    if not points:
        return None
    titles = [f"<b>{family}</b>, {len(some):,} segments" for family, some in points.items()]
    figure = panels(1, len(points), titles, tall=340, gap=0, horizontal_spacing=0.06)
    ends = drawn_at(np.array([SMALLEST, NEARLY_ONE])).tolist()
    for j, some in enumerate(points.values(), start=1):
        figure.add_trace(diagonal(*ends), row=1, col=j)
        met, holds = some[:, CONDITIONS] == 1, some[:, HOLDS] == 1
        dot, cross = {"size": 5, "opacity": 0.6}, {"symbol": "x", "size": 8, "color": BROKEN}
        groups = {"conditions fail": (dot | {"color": PALE}, ~met)}
        groups |= {"conditions hold": (dot | {"color": SOUND}, met & holds), "does not hold": (cross, met & ~holds)}
        for name, (marker, which) in groups.items():
            figure.add_trace(_segments(some[which], name, marker), row=1, col=j)
    ticks = drawn_at(np.array([*PROBABILITIES.values()])).tolist()
    axis = {"range": [ends[0] - 0.12, ends[1] + 0.12], "tickvals": ticks, "ticktext": [*PROBABILITIES]}
    figure.update_xaxes(**axis, tickangle=0, title_text="realised misassignment")
    figure.update_yaxes(**axis)
    figure.update_yaxes(title_text="bound", col=1)
    return dressed(figure, 390, left=56)


def drawn_at(powers: np.ndarray) -> np.ndarray:
    """Where probabilities, given as powers of ten, are drawn: by the logarithm of their number of zeros."""
    return -np.log10(-np.clip(powers, SMALLEST, NEARLY_ONE))


def _segments(points: np.ndarray, name: str, marker: dict) -> go.Scatter:
    places = drawn_at(np.nan_to_num(points[:, [REALISED, BOUND]], nan=SMALLEST))
    first, counts = thinned(places / float(np.ptp(drawn_at(np.array([SMALLEST, NEARLY_ONE])))))
    x, y = places[first].astype(np.float32).reshape(-1, 2).T
    hover = "%{customdata} segments<extra>%{fullData.name}</extra>"
    return go.Scatter(x=x, y=y, mode="markers", name=name, marker=marker, customdata=counts, hovertemplate=hover)
