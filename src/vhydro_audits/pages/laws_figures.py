"""The laws audit drawn: errors against noise, coefficients, supports, every cell by method, and the theorem's bound."""

from collections import defaultdict
from collections.abc import Sequence
from html import escape
from statistics import fmean, median

import numpy as np
import plotly.graph_objects as go

from vhydro.report.page import INK
from vhydro_audits.pages.drawing import BROKEN, SHARES, diagonal, dressed, log_axis, log_dots, panels, thinned
from vhydro_audits.pages.levels import level_figure
from vhydro_audits.pages.results import Place, Record, Results
from vhydro_audits.spec import LAWS, Method, percent, written

LINEAR = 1e-3  # coefficients smaller than this are drawn on a straight scale, larger ones on a logarithmic one
LARGEST = 1e4  # and beyond this at the edge
SIDES = {"no-sparsity": 0.4, "lasso": -0.4, "full": 0.0}  # beside each other: true values are few; the last is on top
SCATTERED = [m for key in SIDES for m in LAWS.methods if m.key == key]
ERRORS_DRAWN = (1e-6, 1e2)  # what is outside is drawn at the edge
TASK_COLOURS = dict(zip(LAWS.families["four"], ("#2563eb", "#0d9488", "#f2a33a", "#8b5cf6"), strict=True))
PARTS = {
    "nu_filtering": ("states", "#2563eb"),
    "nu_derivative": ("derivatives", "#7fb2ff"),
    "nu_mode": ("wrong mode", "#f2a33a"),
    "nu_structure": ("R and G", "#9ca3af"),
}


def trouble(place: Place) -> str:
    """`5 % noise, 20 % missing, 2 % of labels wrong`, without what is zero."""
    kinds = (("noise", "noise"), ("missing", "missing"), ("flips", "of labels wrong"))
    return ", ".join(f"{percent(place[key])} {word}" for key, word in kinds if place[key] or key == "noise")


def setting_title(place: Place) -> str:
    """Where modes came from, and what was done to the data."""
    return f"modes {'given' if place['source'] == 'given' else 'found'}, {trouble(place)}"


def pictured(results: Results) -> list[Place]:
    """The settings whose cells are drawn one by one, or where none of them was run the two ends."""
    there = results.settings
    return [p for p in LAWS.pictured if p in there] or list({str(p): p for p in (there[0], there[-1])}.values())


# --- error against noise --------------------------------------------------------------------------------------------


def overview_figure(results: Results) -> go.Figure:
    """Every metric against the noise, a row of panels for each end of what else was done."""
    rows = {}
    for end in _ends(results.settings):
        title = setting_title({**end, "noise": 0.0}).replace("0\u00a0% noise", "noise")
        rows[title] = [p for p in results.settings if {**p, "noise": 0.0} == end]
    return level_figure(results, rows, LAWS.metrics, "noise", paper=[LAWS.ours], log=True)


def _ends(settings: Sequence[Place]) -> list[Place]:
    """For each source its easiest and its hardest setting, noise aside."""
    ends = []
    for source in dict.fromkeys(p["source"] for p in settings):
        kinds = [{**p, "noise": 0.0} for p in settings if p["source"] == source]
        kinds.sort(key=lambda p: (p["missing"], p["flips"]))
        ends += [kinds[0]] + [kinds[-1]] * (kinds[-1] != kinds[0])
    return ends


# --- coefficients ---------------------------------------------------------------------------------------------------


def signed_log(values: np.ndarray) -> np.ndarray:
    """`±log₁₀(1 + |v| / LINEAR)`, with what is beyond `LARGEST` at the edge."""
    values = np.clip(values, -LARGEST, LARGEST)
    return np.sign(values) * np.log10(1.0 + np.abs(values) / LINEAR)


def scatter_figure(results: Results) -> go.Figure:
    """Estimated against true coefficients of every term, for each system in each setting that is pictured."""
    tasks, places = results.tasks(), pictured(results)
    titles = [f"<b>{setting_title(p)}</b><br>{t}" if t == tasks[0] else t for p in places for t in tasks]
    figure = panels(len(places), len(tasks), titles, tall=270, gap=84, horizontal_spacing=0.045)
    edge = float(signed_log(np.array([LARGEST]))[0])
    for i, place in enumerate(places, start=1):
        for j, task in enumerate(tasks, start=1):
            figure.add_trace(diagonal(-edge, edge), row=i, col=j)
            for method in SCATTERED:
                figure.add_trace(_coefficients(method, results.at(place, method.key, task), 2 * edge), row=i, col=j)
    ticks = {"−100": -100.0, "−1": -1.0, "0": 0.0, "1": 1.0, "100": 100.0}
    axis = {"tickvals": signed_log(np.array([*ticks.values()])).tolist(), "ticktext": [*ticks]}
    figure.update_xaxes(**axis, range=[-edge - 0.3, edge + 0.3], tickangle=0)
    figure.update_yaxes(**axis, range=[-edge - 0.3, edge + 0.3])
    figure.update_xaxes(title_text="true", row=len(places))
    figure.update_yaxes(title_text="estimate", col=1)
    return dressed(figure, 270 * len(places) + 60, top=42)


def _term(mode: str, term: str) -> str:
    """A term of a mode's law in words; plotly takes tags in a text for its own."""
    return escape(f"{mode}, {term}")


def _coefficients(method: Method, cells: Sequence[Record], scale: float) -> go.Scatter:
    """One dot per term and seed; a term that is neither there nor found has none."""
    terms = [t for cell in cells for t in cell["terms"] if t["true"] or t["estimate"]]
    drawn = signed_log(np.array([[t["true"], t["estimate"]] for t in terms], float).reshape(-1, 2))
    first, _ = thinned(drawn / scale)
    shown = [terms[k] for k in first]
    words = [f"{_term(t['mode'], t['term'])}: {t['estimate']:.4g} (true {t['true']:.4g})" for t in shown]
    ours = method.key == LAWS.ours
    return go.Scatter(
        x=(drawn[first, 0] + SIDES[method.key]).round(3), y=drawn[first, 1].round(3), text=words,
        mode="markers", name=method.name, opacity=1.0 if ours else 0.7,
        marker={"color": method.colour, "size": 7 if ours else 5},
        hovertemplate="%{text}<extra>%{fullData.name}</extra>",
    )  # fmt: skip


# --- supports -------------------------------------------------------------------------------------------------------


def having(results: Results, key: str) -> list[Method]:
    """The methods with at least one cell in which `key` is neither null nor empty."""
    there = {cell["method"] for cell in results.cells if cell[key] not in (None, [])}
    return [m for m in results.methods if m.key in there]


def heat_figure(results: Results, place: Place) -> go.Figure:
    """How often every method selects every term of every mode, below the terms that are there; a panel per system."""
    tasks, methods = results.tasks(), having(results, "terms")
    tall = 17 * (len(methods) + 1) + 132
    figure = panels(len(tasks), 1, [f"<b>{t}</b>" for t in tasks], tall=tall, gap=132)
    figure.update_annotations(yshift=20)
    for i, task in enumerate(tasks, start=1):
        _selection(figure, i, {m.name: results.at(place, m.key, task) for m in methods})
    names = ["<b>true law</b>", *(m.name for m in methods)]
    figure.update_yaxes(tickvals=[*range(len(names))], ticktext=names, autorange="reversed", showgrid=False)
    figure.update_xaxes(showgrid=False, tickangle=-45)
    figure.update_layout(coloraxis={"colorscale": SHARES, "cmin": 0, "cmax": 1, "showscale": False})
    return dressed(figure, tall * len(tasks) + 40, left=166, top=48, bottom=80)


def _selection(figure: go.Figure, panel: int, cells: dict[str, list[Record]]) -> None:
    found = [t for group in cells.values() for cell in group for t in cell["terms"]]
    true = {(t["mode"], t["term"]): t["true"] != 0 for t in found}
    modes = [*dict.fromkeys(mode for mode, _ in true)]
    keys = [key for mode in modes for key in true if key[0] == mode]
    shares = [[float(true[key]) for key in keys], *(_shares(group, keys) for group in cells.values())]
    text = [[f"{name}<br>{_term(mode, term)}" for mode, term in keys] for name in ("true law", *cells)]
    heat = go.Heatmap(z=shares, text=text, coloraxis="coloraxis", xgap=1, ygap=1)
    figure.add_trace(heat.update(hovertemplate="%{text}: %{z:.0%}<extra></extra>"), row=panel, col=1)
    labels = [f"<b>{escape(term)}</b>" if true[mode, term] else escape(term) for mode, term in keys]
    figure.update_xaxes(tickvals=[*range(len(keys))], ticktext=labels, row=panel, col=1)
    start = 0
    for mode in modes:
        figure.add_annotation(
            x=start - 0.5, y=1, yref="y domain", yanchor="bottom", xanchor="left", text=escape(mode), showarrow=False,
            font={"size": 11.5}, row=panel, col=1,
        )  # fmt: skip
        start += sum(key[0] == mode for key in keys)
        gap = {"x0": start - 0.5, "x1": start - 0.5, "y0": 0, "y1": 1, "yref": "y domain"}
        figure.add_shape(type="line", **gap, line={"color": "#ffffff", "width": 6}, row=panel, col=1)


def _shares(cells: Sequence[Record], keys: Sequence[tuple[str, str]]) -> list[float | None]:
    """How often each term is selected; a term that a cell does not list is not selected there."""
    picked = [{(t["mode"], t["term"]) for t in cell["terms"] if t["estimate"]} for cell in cells]
    return [fmean(key in some for some in picked) if picked else None for key in keys]


# --- every cell -----------------------------------------------------------------------------------------------------


def strip_figure(results: Results, metric: str, *, log: bool) -> go.Figure:
    """The metric of every cell as a dot, a line of dots per method and a panel per setting; a tick is the median."""
    places, methods = pictured(results), having(results, metric)
    tall = 26 * len(methods) + 20
    titles = [f"<b>{setting_title(p).replace(', ', ',<br>', 1)}</b>" for p in places]
    figure = panels(1, len(places), titles, tall=tall, gap=0, horizontal_spacing=0.03, shared_yaxes=True)
    for j, place in enumerate(places, start=1):
        for line, method in enumerate(methods):
            values = np.array([c[metric] for c in results.at(place, method.key) if c[metric] is not None], float)
            for trace in _strip(np.clip(values, *ERRORS_DRAWN) if log else values, line, method):
                figure.add_trace(trace, row=1, col=j)
    figure.update_yaxes(range=[len(methods) - 0.5, -0.5], tickvals=[*range(len(methods))], showgrid=False)
    figure.update_yaxes(ticktext=[m.name for m in methods], col=1)
    figure.update_xaxes(**(log_axis(ERRORS_DRAWN) if log else {"range": [-0.04, 1.04], "tickvals": [0, 0.5, 1]}))
    return dressed(figure, tall + 84, left=166, top=44, bottom=32)


def _strip(values: np.ndarray, line: int, method: Method) -> list[go.Scatter]:
    if not values.size:
        return []
    height = line + 0.3 * np.sin(2.4 * np.arange(values.size))  # spread over the line, the same each time
    dots = {"color": method.colour, "size": 5, "opacity": 0.4}
    tick = {"symbol": "line-ns-open", "size": 18, "color": INK, "line": {"width": 2, "color": INK}}
    common = {"mode": "markers", "hovertemplate": "%{x:.3g}<extra>%{fullData.name}</extra>"}
    return [
        go.Scatter(x=values.astype("f4"), y=height.astype("f4"), marker=dots, name=method.name, **common),
        go.Scatter(x=[float(median(values))], y=[line], marker=tick, name=f"{method.name}, median", **common),
    ]


# --- the theorem ----------------------------------------------------------------------------------------------------


def regressions(results: Results) -> list[Record]:
    """Every regression whose constants were measured, with its system and setting."""
    cells = [cell for cell in results.cells if cell["method"] == "lasso" and cell["theorem"]]
    return [{**entry, "task": c["task"], "setting": setting_title(c)} for c in cells for entry in c["theorem"]]


def bound_figure(entries: Sequence[Record]) -> go.Figure:
    """The bound against the true error, apart where the conditions hold and where they fail, and κ by columns."""
    drawn = [e for e in entries if e["bound"] and e["error"]]
    words = {True: "<b>conditions hold</b>: bound against error", False: "<b>conditions fail</b>: bound against error"}
    sides = [met for met in words if any(e["conditions"] is met for e in drawn)]
    last = len(sides) + 1
    titles = [*(words[met] for met in sides), "<b>κ</b> by columns"]
    figure = panels(1, last, titles, tall=380, gap=0, horizontal_spacing=0.075)
    errors = [e["error"] for e in drawn]
    for j, met in enumerate(sides, start=1):
        figure.add_trace(diagonal(min(errors) / 100, max(errors) * 100), row=1, col=j)
        some = [e for e in drawn if e["conditions"] is met]
        for name, colour in TASK_COLOURS.items():
            group = [e for e in some if e["task"] == name and (e["holds"] or not met)]
            figure.add_trace(_bounds(group, name, {"size": 5, "opacity": 0.5, "color": colour}), row=1, col=j)
        broken = [e for e in some if met and not e["holds"]]
        figure.add_trace(_bounds(broken, "does not hold", {"symbol": "x", "size": 8, "color": BROKEN}), row=1, col=j)
        figure.update_xaxes(**log_axis(errors), title_text="true error", row=1, col=j)
        figure.update_yaxes(**log_axis([*errors, *(e["bound"] for e in drawn)]), row=1, col=j)
    kappas = [e for e in entries if e["kappa"]]
    for step, (task, colour) in enumerate(TASK_COLOURS.items()):
        some = [e for e in kappas if e["task"] == task]
        side = 0.14 * (step - 1.5)  # beside each other, where systems have as many columns
        marker = {"size": 5, "opacity": 0.5, "color": colour}
        dots = log_dots([10 ** (e["columns"] + side) for e in some], [e["kappa"] for e in some], task, marker)
        dots.update(x=np.log10(np.array(dots.x, float)), hovertemplate="κ = %{y:.3g}<extra>%{fullData.name}</extra>")
        figure.add_trace(dots, row=1, col=last)
    figure.update_yaxes(**log_axis([e["kappa"] for e in kappas]), row=1, col=last)
    figure.update_xaxes(title_text="columns of the library", tickformat="d", row=1, col=last)
    return dressed(figure, 430, left=48)


def _bounds(entries: Sequence[Record], name: str, marker: dict) -> go.Scatter:
    words = [f"{escape(e['task'])}, {escape(e['mode'])}<br>{escape(e['setting'])}" for e in entries]
    return log_dots([e["error"] for e in entries], [e["bound"] for e in entries], name, marker, words)


def parts_figure(entries: Sequence[Record]) -> go.Figure:
    """The share of each part in ν, mean over regressions, a bar for each setting with the median sum at its end."""
    groups: dict[str, list[list[float]]] = defaultdict(list)
    for e in entries:
        parts = [e[name] for name in PARTS]
        if None not in parts and sum(parts):
            groups[e["setting"]].append(parts)
    names = [*groups]
    figure = go.Figure()
    for k, (name, colour) in enumerate(PARTS.values()):
        shares = [fmean(parts[k] / sum(parts) for parts in groups[s]) for s in names]
        bar = go.Bar(x=shares, y=names, orientation="h", name=name, marker={"color": colour, "line": {"width": 0}})
        figure.add_trace(bar.update(hovertemplate="%{x:.1%}<extra>%{fullData.name}</extra>"))
    totals = [written(median(sum(parts) for parts in groups[s]), 2) for s in names]
    label = go.Scatter(x=[1.01] * len(names), y=names, text=totals, mode="text", textposition="middle right")
    figure.add_trace(label.update(hoverinfo="skip", textfont={"color": INK, "size": 12}))
    figure.update_yaxes(autorange="reversed", showgrid=False)
    ticks = [0, 0.25, 0.5, 0.75, 1]
    figure.update_xaxes(range=[0, 1.1], tickvals=ticks, ticktext=[percent(t) for t in ticks], showgrid=False)
    figure.update_layout(bargap=0.3)
    return dressed(figure, 26 * len(names) + 60, left=330, top=8, bottom=30)
