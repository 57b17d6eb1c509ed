"""One run of two filters, drawn on a shared time axis."""

from collections.abc import Iterator
from itertools import groupby

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from vhydro.report.page import FONT, HAIRLINE, INK, QUIET, SHADE

COLOURS = ("#2563eb", "#d9480f")  # of the two filters
MODE_COLOURS = ("#d5d9df", "#0d9488", "#8b5cf6")
BOUND_RANGE = (-4.0, 1.5)  # log10; what is outside is drawn at the edge
BAND = 0.78  # height of one strip of mode probabilities; the rest is space
MODES, MIXING, BOUND, ESS = 3, 4, 5, 6  # panels, below the two clouds


def film_figure(film: dict, tolerance: float) -> go.Figure:
    """Both clouds of particles, the modes, λ, the bound and ESS."""
    titles = [
        *(f"{name}: position (m)" for name in film["sides"]),
        "probability of each mode",
        "λ, share of the model’s own prediction",
        "bound on a step’s relative variance (below the dashed line: certified)",
        "ESS/N of a step’s weights",
    ]
    figure = make_subplots(
        rows=6,
        shared_xaxes=True,
        vertical_spacing=0.042,
        row_heights=[0.25, 0.25, 0.16, 0.1, 0.13, 0.11],
        subplot_titles=titles,
    )
    time = np.arange(len(film["truth"])) * film["dt"]
    for panel, (name, colour) in enumerate(zip(film["sides"], COLOURS, strict=True), start=1):
        _cloud(figure, panel, film, time, film["sides"][name], colour)
        _gate(figure, name, time, film["sides"][name], colour)
    _modes(figure, film, time)
    _level(figure, BOUND, tolerance**2, INK, "dash")
    _shade(figure, film, time)
    _dress(figure, film, time)
    return figure


def _level(figure: go.Figure, panel: int, height: float, colour: str, dash: str) -> None:
    figure.add_shape(
        type="line", x0=0, x1=1, xref="x domain", y0=height, y1=height, row=panel, col=1,
        line={"color": colour, "width": 1, "dash": dash},
    )  # fmt: skip


def _cloud(figure: go.Figure, panel: int, film: dict, time: np.ndarray, side: dict, colour: str) -> None:
    points = np.asarray(side["points"])
    x = np.repeat(time, points.shape[1]).round(3)
    dots = {"size": 4, "color": colour, "opacity": 0.22}
    seen = {"size": 6, "color": INK, "line": {"color": "#fff", "width": 1}}
    hover = "%{x:.1f} s, %{y:.2f} m<extra>observed</extra>"
    line = {"color": INK, "width": 1.6}
    for trace in (
        go.Scatter(x=x, y=points.ravel(), mode="markers", marker=dots, hoverinfo="skip"),
        go.Scatter(x=time, y=film["truth"], mode="lines", line=line, hoverinfo="skip"),
        go.Scatter(x=time, y=film["seen"], mode="markers", marker=seen, hovertemplate=hover),
    ):
        figure.add_trace(trace, row=panel, col=1)
    for wall in (-film["wall"], film["wall"]):
        _level(figure, panel, wall, QUIET, "dot")
    for step in side["lost"]:
        truth = film["truth"][step]
        figure.add_annotation(
            x=time[step], y=truth, row=panel, col=1, text="<b>lost</b>", ax=0, ay=-36 if truth < 0 else 36,
            arrowhead=2, arrowwidth=1.4, font={"color": INK, "size": 12}, bgcolor="rgba(255,255,255,.8)",
        )  # fmt: skip


def _gate(figure: go.Figure, name: str, time: np.ndarray, side: dict, colour: str) -> None:
    low, high = (10**e for e in BOUND_RANGE)
    bound = np.clip(side["bound"], low, high)
    for panel, values in ((MIXING, side["mixing"]), (BOUND, bound), (ESS, side["step_ess"])):
        line = {"color": colour, "width": 1.6, "shape": "hvh" if panel == MIXING else "linear"}
        hover = f"%{{x:.1f}} s, %{{y:.3g}}<extra>{name}</extra>"
        trace = go.Scatter(x=time, y=values, mode="lines", line=line, hovertemplate=hover)
        figure.add_trace(trace, row=panel, col=1)


def _modes(figure: go.Figure, film: dict, time: np.ndarray) -> None:
    known = np.eye(len(film["modes"]))[film["mode"]]
    strips = {"true": known} | {name: np.asarray(side["mode"]) for name, side in film["sides"].items()}
    for level, posterior in enumerate(reversed(strips.values())):
        base = posterior.sum(1, keepdims=True) - np.cumsum(posterior, 1)  # the first mode, free, is on top
        for mode, colour in enumerate(MODE_COLOURS):
            y, bottom = BAND * posterior[:, mode], level + BAND * base[:, mode]
            fill = {"color": colour, "line": {"width": 0}}
            bar = go.Bar(x=time, y=y, base=bottom, width=1.02 * film["dt"], marker=fill, hoverinfo="skip")
            figure.add_trace(bar, row=MODES, col=1)
    middles = [level + BAND / 2 for level in range(len(strips))]
    figure.update_yaxes(tickvals=middles, ticktext=[*reversed(strips)], range=[-0.05, 2.85], row=MODES, col=1)


def dark_spans(seen: list[float | None]) -> Iterator[tuple[int, int]]:
    """The first and the last row of every span in which nothing was seen."""
    for dark, group in groupby(range(len(seen)), key=lambda t: seen[t] is None):
        rows = [*group]
        if dark:
            yield rows[0], rows[-1]


def _shade(figure: go.Figure, film: dict, time: np.ndarray) -> None:
    half = film["dt"] / 2
    for first, last in dark_spans(film["seen"]):
        for panel in (1, 2, MIXING, BOUND, ESS):
            figure.add_shape(
                type="rect", x0=time[first] - half, x1=time[last] + half, y0=0, y1=1, yref="y domain",
                fillcolor=SHADE, line_width=0, layer="below", row=panel, col=1,
            )  # fmt: skip


def _dress(figure: go.Figure, film: dict, time: np.ndarray) -> None:
    """Quiet axes, and titles at the left."""
    half = film["dt"] / 2
    reach = 1.1 * max(np.abs(v).max() for v in (film["truth"], *(s["points"] for s in film["sides"].values())))
    figure.update_annotations(
        selector={"xref": "paper"}, x=0, xanchor="left", font={"size": 12.5, "color": INK}, yshift=1
    )
    figure.update_xaxes(showgrid=False, zeroline=False, ticks="", range=[-half, time[-1] + half])
    figure.update_xaxes(title={"text": "time (s)", "font": {"size": 12.5}}, row=ESS, col=1)
    figure.update_yaxes(showgrid=False, zeroline=False, ticks="", linecolor=HAIRLINE, fixedrange=True)
    for panel in (1, 2):
        walls = [-film["wall"], 0, film["wall"]]
        figure.update_yaxes(range=[-reach, reach], tickvals=walls, row=panel, col=1)
    for panel in (MIXING, ESS):
        figure.update_yaxes(range=[-0.04, 1.06], tickvals=[0, 0.5, 1], row=panel, col=1)
    powers = {"tickvals": [1e-4, 1e-2, 1], "ticktext": ["10⁻⁴", "10⁻²", "1"]}
    figure.update_yaxes(type="log", range=[*BOUND_RANGE], **powers, row=BOUND, col=1)
    figure.update_layout(
        height=1080, showlegend=False, barmode="overlay", bargap=0, template="none", hovermode="closest",
        font={"family": FONT, "size": 12, "color": QUIET}, margin={"l": 76, "r": 14, "t": 26, "b": 46},
    )  # fmt: skip
