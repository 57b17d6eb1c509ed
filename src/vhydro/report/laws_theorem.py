"""The recovery theorem as it was measured: its bound beside the true error, its constants, and the parts of ν."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, median

import plotly.graph_objects as go

from vhydro.report.laws_figures import diagonal, dressed, log_axis, panels
from vhydro.report.laws_results import PAPER, Results, Row, Setting, ordered, setting_of, written
from vhydro.report.page import INK

TASK_COLOURS = ("#2563eb", "#0d9488", "#f2a33a", "#8b5cf6", "#d9480f", "#6b7280")
BROKEN = "#dc2626"
PARTS = {
    "nu_filtering": ("ν_filt: states", "#2563eb"),
    "nu_derivative": ("ν_der: derivatives", "#7fb2ff"),
    "nu_mode": ("ν_mode: wrong mode", "#f2a33a"),
    "nu_structure": ("ν_pH: R and G", "#9ca3af"),
}


def regressions(results: Results) -> list[Row]:
    """Every regression whose constants were measured, with its system and setting."""
    cells = [cell for cell in results.cells if cell["method"] == PAPER and cell["theorem"]]
    return [{**entry, "task": c["task"], "setting": setting_of(c)} for c in cells for entry in c["theorem"]]


def task_colours(entries: Sequence[Row]) -> dict[str, str]:
    """A colour for every system."""
    tasks = dict.fromkeys(e["task"] for e in entries)
    return {task: TASK_COLOURS[i % len(TASK_COLOURS)] for i, task in enumerate(tasks)}


def theorem_words(entries: Sequence[Row]) -> str:
    """How often the conditions and the bound held, and how wide the bound was."""
    met = [e for e in entries if e["conditions"]]
    held, supports = sum(bool(e["holds"]) for e in met), [e for e in met if e["support_condition"]]
    ratios = defaultdict(list)
    for e in met:
        if e["bound"] is not None and e["error"]:
            ratios[e["columns"]].append(e["bound"] / e["error"])
    endless = sum(e["bound"] is None for e in entries)
    words = f"The theorem’s conditions hold in {_of(len(met), len(entries))} regressions"
    words += f"; there its bound holds in {_of(held, len(met))}." if met else "."
    if ratios:
        wide = ", ".join(f"{written(median(ratios[n]))} times with {n} columns" for n in sorted(ratios))
        words += f" Bound over true error, in the median: {wide}."
    recovered = sum(bool(e["support_recovered"]) for e in supports)
    words += f" The support condition holds in {_of(len(supports), len(entries))}"
    words += f"; there the support was recovered in {_of(recovered, len(supports))}." if supports else "."
    return words + (f" In {endless:,} the bound is infinite (κ is 0 up to rounding): not drawn." if endless else "")


def _of(part: int, whole: int) -> str:
    """`3 of 7 (42.8 %)`, rounded down: almost all is not all."""
    return f"{part:,} of {whole:,} ({1000 * part // whole / 10:g} %)"


def bound_figure(entries: Sequence[Row]) -> go.Figure:
    """The bound against the true error, apart where the conditions hold and where they fail, and κ by columns."""
    drawn = [e for e in entries if e["bound"] and e["error"]]
    words = {True: "<b>conditions hold</b>: bound against error", False: "<b>conditions fail</b>: bound against error"}
    sides = [met for met in words if any(e["conditions"] is met for e in drawn)]
    last = len(sides) + 1
    titles = [*(words[met] for met in sides), "<b>κ</b> by columns"]
    figure = panels(1, last, titles, tall=380, gap=0, horizontal_spacing=0.075)
    colours = task_colours(entries)
    bounds, errors = [e["bound"] for e in drawn], [e["error"] for e in drawn]
    for j, met in enumerate(sides, start=1):
        figure.add_trace(diagonal(min(errors) / 100, max(errors) * 100), row=1, col=j)
        for trace in _bounds([e for e in drawn if e["conditions"] is met], colours):
            figure.add_trace(trace, row=1, col=j)
        figure.update_xaxes(**log_axis(errors), title_text="true error", row=1, col=j)
        figure.update_yaxes(**log_axis([*bounds, *errors]), row=1, col=j)
    kappas = [e for e in entries if e["kappa"]]
    for step, (task, colour) in enumerate(colours.items()):
        some = [e for e in kappas if e["task"] == task]
        side = 0.14 * (step - (len(colours) - 1) / 2)  # beside each other, where systems have as many columns
        trace = _dots(some, [e["columns"] + side for e in some], [e["kappa"] for e in some], task, colour)
        figure.add_trace(trace, row=1, col=last)
    figure.update_yaxes(**log_axis([e["kappa"] for e in kappas]), row=1, col=last)
    figure.update_xaxes(title_text="columns of the library", tickformat="d", row=1, col=last)
    return dressed(figure, 430, left=48)


def _bounds(entries: Sequence[Row], colours: Mapping[str, str]) -> list[go.Scatter]:
    """Dots by system; a red cross is a bound that was promised and does not hold."""
    broken = [e for e in entries if e["conditions"] and not e["holds"]]
    sound = [e for e in entries if not (e["conditions"] and not e["holds"])]
    traces = [_bound_dots([e for e in sound if e["task"] == task], task, colours[task]) for task in colours]
    cross = {"symbol": "x", "size": 8, "opacity": 1}
    return [*traces, _bound_dots(broken, "does not hold", BROKEN).update(marker=cross)]


def _bound_dots(entries: Sequence[Row], name: str, colour: str) -> go.Scatter:
    return _dots(entries, [e["error"] for e in entries], [e["bound"] for e in entries], name, colour)


def _dots(entries: Sequence[Row], x: Sequence[float], y: Sequence[float], name: str, colour: str) -> go.Scatter:
    return go.Scatter(
        x=x, y=y, mode="markers", name=name, marker={"size": 5, "opacity": 0.4, "color": colour},
        text=[f"{e['task']}, {e['mode']}<br>{e['setting'].title}" for e in entries],
        hovertemplate="%{text}<br>%{x:.3g}, %{y:.3g}<extra>%{fullData.name}</extra>",
    )  # fmt: skip


def parts_figure(entries: Sequence[Row]) -> go.Figure:
    """The share of each part in ν, mean over regressions, a bar for each setting with the median sum at its end."""
    groups: dict[Setting, list[list[float]]] = defaultdict(list)
    for e in entries:
        parts = [e[name] for name in PARTS]
        if None not in parts and sum(parts):
            groups[e["setting"]].append(parts)
    settings = ordered(groups)
    names = [s.title for s in settings]
    figure = go.Figure()
    for k, (name, colour) in enumerate(PARTS.values()):
        shares = [fmean(parts[k] / sum(parts) for parts in groups[s]) for s in settings]
        bar = go.Bar(x=shares, y=names, orientation="h", name=name, marker={"color": colour, "line": {"width": 0}})
        figure.add_trace(bar.update(hovertemplate="%{x:.1%}<extra>%{fullData.name}</extra>"))
    totals = [written(median(sum(parts) for parts in groups[s])) for s in settings]
    label = go.Scatter(x=[1.01] * len(names), y=names, text=totals, mode="text", textposition="middle right")
    figure.add_trace(label.update(hoverinfo="skip", textfont={"color": INK, "size": 12}))
    figure.update_yaxes(autorange="reversed", showgrid=False)
    ticks = [0, 0.25, 0.5, 0.75, 1]
    figure.update_xaxes(range=[0, 1.1], tickvals=ticks, ticktext=[f"{100 * t:g} %" for t in ticks], showgrid=False)
    figure.update_layout(bargap=0.3)
    return dressed(figure, 26 * len(names) + 60, left=264, top=8, bottom=30)
