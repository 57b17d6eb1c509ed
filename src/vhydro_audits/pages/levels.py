"""Metrics against a level (noise, occlusion): a line for each method with its spread, and the paper's dotted."""

import math
from collections.abc import Mapping, Sequence

from vhydro.report.charts import Axis, Panel, column_width, logarithmic, straight
from vhydro_audits.pages.drawing import PAPER, look
from vhydro_audits.pages.results import Place, Results
from vhydro_audits.spec import Method, Metric, percent

BENT_TICKS = (-30.0, -10.0, -3.0, -1.0, 0.0, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 1e4, 1e5)
NEAR_TICKS = tuple(0.5 * k for k in range(-5, 6))  # where all values are near 0
TALL = 196
TITLES = {"occlusion": "hidden", "noise": "noise"}  # of the levels


def level_panels(
    results: Results,
    rows: Mapping[str, Sequence[Place]],
    metrics: Sequence[Metric],
    along: str,
    *,
    paper: Sequence[str],
    log: bool = False,
    columns: int = 3,
    only: Sequence[str] = (),
) -> list[Panel]:
    """A panel for each title in `rows` and each metric.

    `along` names the level, `paper` the methods whose published numbers are drawn, `only` the methods if not all.
    """
    panels, methods = [], [m for m in results.methods if not only or m.key in only]
    for title, places in rows.items():
        for metric in metrics:
            x, y = (
                _across(results.present(along), along, log),
                _axis(metric, _values(results, places, metric, methods, paper)),
            )
            name = f"{metric.title} · {title}" if title else metric.title
            panel = Panel(x, y, name, width=column_width(columns), height=TALL)
            if metric.target is not None:
                panel.rule("y", metric.target)
            _lines(panel, results, places, metric, methods, paper)
            panels.append(panel)
    return panels


def _across(levels: Sequence[float], along: str, log: bool) -> Axis:
    ticks = [(level, percent(level)) for level in levels]
    title = TITLES[along]
    if log:
        return Axis(levels[0] / 1.5, levels[-1] * 1.5, ticks, title, math.log10, grid=False)
    room = 0.06 * (levels[-1] - levels[0]) + 0.02
    return Axis(levels[0] - room, levels[-1] + room, ticks, title, grid=False)


def _values(
    results: Results, places: Sequence[Place], metric: Metric, methods: Sequence[Method], paper: Sequence[str]
) -> list[float]:
    """Every number that a panel shows."""
    ours = [results.number(p, m.key, metric.key) for p in places for m in methods]
    theirs = [results.paper(p, m, metric.key) for p in places for m in paper]
    return [v for v in (*ours, *theirs) if v is not None]


def _axis(metric: Metric, values: Sequence[float]) -> Axis:
    if metric.scale == "log":
        return logarithmic(values, most=4)
    if metric.scale == "bent":
        low, high = (math.asinh(end(values, default=0.0)) for end in (min, max))
        ticks = NEAR_TICKS if max(high, -low) < NEAR_TICKS[-1] / 2 else BENT_TICKS
        low, high = low - 0.25, high + 0.25
        there = [(t, f"{t:g}".replace("-", "−")) for t in ticks if low <= math.asinh(t) <= high]
        return Axis(math.sinh(low), math.sinh(high), there, by=math.asinh)
    if metric.scale == "share":
        ticks = {0.0: "0", 0.5: "0.5", metric.target or 1.0: f"{metric.target or 1:g}"}
        return Axis(0.0, 1.04, [*ticks.items()])
    return straight(values, zero=True, most=4)


def _lines(
    panel: Panel, results: Results, places: Sequence[Place], metric: Metric, methods: Sequence[Method],
    paper: Sequence[str],
) -> None:  # fmt: skip
    """Draws the paper's below, and ours on top."""
    for method in (m for m in reversed(methods) if m.key in paper):
        theirs = [results.paper(p, method.key, metric.key) for p in places]
        if any(v is not None for v in theirs):
            name, levels = f"paper, {method.name}", _levels(panel, places)
            tips = [f"{name}\n{_where(panel, x)}: {metric.text(v)}" for x, v in zip(levels, theirs, strict=True)]
            panel.line(levels, theirs, PAPER, name=name, width=1.2, dash="1 3")
            panel.dots(levels, theirs, PAPER, name=name, symbol="ring", size=5, tips=tips)
    for method in reversed(methods):
        _line(panel, results, places, metric, method)


def _levels(panel: Panel, places: Sequence[Place]) -> list[float]:
    along = next(name for name, title in TITLES.items() if title == panel.x.title)
    return [p[along] for p in places]


def _where(panel: Panel, level: float) -> str:
    return f"{percent(level)} {panel.x.title}"


def _line(panel: Panel, results: Results, places: Sequence[Place], metric: Metric, method: Method) -> None:
    """Draws one method with its spread."""
    spec, levels = results.spec, _levels(panel, places)
    drawn, values = look(spec, method), [results.number(p, method.key, metric.key) for p in places]
    if all(v is None for v in values):
        return
    spreads = [results.number(p, method.key, f"{metric.key}_{spec.spread}") or 0.0 for p in places]
    near = [f" ± {s:.2g} {spec.spread.upper()}" if s else "" for s in spreads]
    tips = [
        f"{method.name}\n{_where(panel, x)}: {metric.text(v)}{n}" for x, v, n in zip(levels, values, near, strict=True)
    ]
    panel.line(levels, values, drawn.colour, name=method.name, width=drawn.width, dash=drawn.dash)
    for x, v, s in zip(levels, values, spreads, strict=True):
        if v is not None and s and spec.spread == "sem":
            panel.line([x, x], [v - s, v + s], drawn.colour, name=f"{method.name} ±", width=1.2)
    size = 7.5 if method.kind == "ours" else 6
    panel.dots(levels, values, drawn.colour, name=method.name, symbol=drawn.symbol, size=size, tips=tips)
