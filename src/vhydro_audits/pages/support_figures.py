"""The support audit drawn: one contact in the dark, metrics and the gate against occlusion, certificates, coverage."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import fmean
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

from vhydro.report.page import INK, SHADE
from vhydro_audits.pages.drawing import BROKEN, PALE, diagonal, dressed, log_axis, log_dots, panels, thinned
from vhydro_audits.pages.levels import level_figure
from vhydro_audits.pages.results import Place, Record, Results
from vhydro_audits.spec import SUPPORT, Metric

LEVELS = SUPPORT.levels["occlusion"]
HARDEST = LEVELS[-1]
PLAIN = "plain"  # of few methods and tasks: it shows a loss and is in no comparison
NOMINAL = tuple(round(0.05 * k, 2) for k in range(1, 20))  # of the intervals whose coverage a cell holds
DRAWN = [SUPPORT.metric(k) for k in ("nll", "cov90", "ece", "ess", "relative_weight_variance")]
HIDDEN = [SUPPORT.metric(k) for k in ("nll_hidden", "cov90_hidden", "ece_hidden", "lost")]
GATE = [SUPPORT.metric(k) for k in ("mixing", "certified", "pareto_bad", "realised_variance")]
SAMPLING_ERRORS = 3.0  # a cell may be above its bound by this many standard errors of its 32 draws
FILMED = ("no-support", "adaptive", "two-sided")
NEGLIGIBLE = 0.1  # of an equal share of the weight: such a particle is drawn pale
PIXEL = 1 / 150  # of a film's panel
CONTACT = "#64748b"

Setting = tuple[str, str]  # a family and a regime


def place_of(family: str, regime: str, occlusion: float = HARDEST) -> Place:
    return {"family": family, "regime": regime, "occlusion": occlusion}


def regimes(results: Results) -> list[str]:
    """The regimes that are compared; the one that shows a loss where it alone was run."""
    return [r for r in results.present("regime") if r != PLAIN] or [PLAIN]


def settings_of(results: Results) -> list[Setting]:
    """Every family and regime that was run."""
    there = {(p["family"], p["regime"]) for p in results.settings}
    return [(f, r) for f in results.present("family") for r in regimes(results) if (f, r) in there]


def occlusion_figure(results: Results, settings: Sequence[Setting], metrics: Sequence[Metric]) -> go.Figure:
    """Metrics against occlusion, a row of panels for each family and regime."""
    rows = {f"{f}, {r}": [p for p in results.settings if (p["family"], p["regime"]) == (f, r)] for f, r in settings}
    return level_figure(results, rows, metrics, "occlusion", paper=[m.key for m in SUPPORT.methods])


# --- certificates ---------------------------------------------------------------------------------------------------


def above_bound(cell: Record) -> bool | None:
    """Whether the realised variance is above the bound beyond sampling error; None where a cell has no bound."""
    bound, realised = cell["bound"], cell["bound_realised"]
    if bound is None or realised is None:
        return None
    return realised > bound + SAMPLING_ERRORS * (cell["bound_realised_se"] or 0.0)


def certificate_figure(results: Results) -> go.Figure:
    """Bound against realised variance, a dot for each cell; above the line the bound holds."""
    settings = settings_of(results)
    figure = panels(1, len(settings), [f"<b>{f}</b><br>{r}" for f, r in settings], tall=300, horizontal_spacing=0.05)
    there = [c for c in results.cells if (c["bound"] or 0.0) > 0 and (c["bound_realised"] or 0.0) > 0]
    realised, bounds = ([c[key] for c in there] for key in ("bound_realised", "bound"))
    for j, setting in enumerate(settings, start=1):
        if there:
            figure.add_trace(diagonal(min(realised) / 10, max(*realised, *bounds) * 10), row=1, col=j)
        cells = [c for c in there if (c["family"], c["regime"]) == setting]
        groups = [(m.key, {"size": 4, "opacity": 0.6, "color": m.colour}, [c for c in cells if c["method"] == m.key])
                  for m in results.methods]  # fmt: skip
        groups += [
            ("above its bound", {"symbol": "x", "size": 8, "color": BROKEN}, [c for c in cells if above_bound(c)])
        ]
        for name, marker, some in groups:
            if some:
                dots = log_dots([c["bound_realised"] for c in some], [c["bound"] for c in some], name, marker)
                figure.add_trace(dots, row=1, col=j)
    figure.update_xaxes(**log_axis(realised, most=3), tickangle=0, title_text="realised variance")
    figure.update_yaxes(**log_axis([*bounds, *realised]))
    figure.update_yaxes(title_text="bound", col=1)
    return dressed(figure, 360, left=52, top=42)


# --- coverage -------------------------------------------------------------------------------------------------------


def reliability_figure(results: Results) -> go.Figure:
    """Empirical against nominal coverage at the hardest level; on the line a belief is as sure as it should be."""
    settings = settings_of(results)
    figure = panels(1, len(settings), [f"<b>{f}</b><br>{r}" for f, r in settings], tall=300, horizontal_spacing=0.05)
    for j, setting in enumerate(settings, start=1):
        figure.add_trace(diagonal(0.0, 1.0), row=1, col=j)
        for method in results.methods:
            if shares := mean_coverage(results, place_of(*setting), method.key):
                line = {"color": method.colour, "width": 3 if method.kind == "ours" else 1.6}
                marker, hover = {"symbol": method.symbol, "size": 4}, "nominal %{x:.0%}: %{y:.1%}"
                trace = go.Scatter(x=NOMINAL, y=np.round(shares, 4), mode="lines+markers", line=line, marker=marker)
                trace.update(name=method.key, hovertemplate=hover + "<extra>%{fullData.name}</extra>")
                figure.add_trace(trace, row=1, col=j)
    ticks = [0, 0.5, 1]
    figure.update_xaxes(range=[0, 1], tickvals=ticks, title_text="nominal")
    figure.update_yaxes(range=[0, 1.02], tickvals=ticks)
    figure.update_yaxes(title_text="empirical", col=1)
    return dressed(figure, 340, left=52, top=42)


def mean_coverage(results: Results, place: Place, method: str) -> list[float]:
    """The mean over cells of the share inside each nominal interval; empty where no cell has it."""
    found = [c["coverage"] for c in results.at(place, method) if c["coverage"] is not None]
    return [fmean(shares) for shares in zip(*found, strict=True)]


# --- one contact in the dark ----------------------------------------------------------------------------------------


class Film(NamedTuple):
    """One channel of one log, step by step: what was true and where the particles were."""

    truth: np.ndarray
    hidden: np.ndarray
    contact: np.ndarray
    particles: np.ndarray  # one row a step
    weights: np.ndarray
    lost_at: int | None


class Reel(NamedTuple):
    """The films of one task, seed and setting, by method, and the cell of the first."""

    cell: Record
    films: dict[str, Film]


def film_of(record: Record) -> Film:
    """A film as arrays."""
    truth, seen, contact, particles, weights = (
        np.array(record[name], float) for name in ("truth", "seen", "contact", "particles", "weights")
    )
    return Film(truth, seen == 0, contact == 1, particles, weights, record["lost_at"])


def reels(results: Results) -> list[Reel]:
    """For each family the task, seed and setting with the most of the methods to be shown."""
    found: dict[tuple, Reel] = {}
    for cell in results.cells:
        if cell["film"] is not None and cell["method"] in FILMED:
            names = ("family", "regime", "occlusion", "task", "seed")
            reel = found.setdefault((*(cell[n] for n in names), cell["film"]["channel"]), Reel(cell, {}))
            reel.films[cell["method"]] = film_of(cell["film"])
    families = [[r for r in found.values() if r.cell["family"] == family] for family in results.present("family")]
    return [max(some, key=lambda reel: len(reel.films)) for some in families if some]


def reel_figure(reel: Reel) -> go.Figure:
    """The particles of each method on the same log, one panel below the other."""
    colours = {m.key: m.colour for m in SUPPORT.methods}
    shown = [m for m in FILMED if m in reel.films]
    titles = [f"<b>{m}</b>: {reel.cell['film']['channel']}" for m in shown]
    figure, reach = panels(len(shown), 1, titles, tall=190, gap=34, shared_xaxes=True), _reach([*reel.films.values()])
    for panel, method in enumerate(shown, start=1):
        _film_panel(figure, panel, reel.films[method], colours[method], reach)
    figure.update_yaxes(range=reach, showgrid=False)
    figure.update_xaxes(**_seconds(reel.cell["film"]["dt"], len(reel.films[shown[0]].truth)), showgrid=False)
    figure.update_xaxes(title_text="time (s)", row=len(shown))
    return dressed(figure, 190 * len(shown) + 60, left=52)


def _reach(films: list[Film]) -> list[float]:
    """The truth and nearly all particles, with room; a far stray does not flatten the rest."""
    truth = np.concatenate([film.truth for film in films])
    clouds = np.concatenate([film.particles.ravel() for film in films])
    low = min(np.nanmin(truth), np.nanpercentile(clouds, 0.5))
    high = max(np.nanmax(truth), np.nanpercentile(clouds, 99.5))
    room = 0.12 * (high - low) or 1.0
    return [float(low - room), float(high + room)]


def _film_panel(figure: go.Figure, panel: int, film: Film, colour: str, reach: Sequence[float]) -> None:
    truth = go.Scatter(y=film.truth.astype(np.float32), mode="lines", line={"color": INK, "width": 1.6})
    for trace in (
        *_clouds(film, colour, reach[1] - reach[0]),
        truth.update(hovertemplate="%{y:.3g}<extra>truth</extra>"),
    ):
        figure.add_trace(trace, row=panel, col=1)
    for values, top, shade in ((film.hidden, 1.0, SHADE), (film.contact, 0.035, CONTACT)):
        for first, last in spans(values):  # a hidden span over the whole height, a contact along the bottom
            figure.add_shape(
                type="rect", x0=first - 0.5, x1=last + 0.5, y0=0, y1=top, yref="y domain", fillcolor=shade,
                line_width=0, layer="below", row=panel, col=1,
            )  # fmt: skip
    if film.lost_at is not None:
        truth_there = float(film.truth[film.lost_at])
        below = truth_there > (np.nanmin(film.truth) + np.nanmax(film.truth)) / 2
        figure.add_annotation(
            x=film.lost_at, y=truth_there, row=panel, col=1, text="<b>lost</b>", ax=0, ay=36 if below else -36,
            arrowhead=2, arrowwidth=1.4, arrowcolor=INK, font={"color": INK, "size": 12},
        )  # fmt: skip


def _clouds(film: Film, colour: str, tall: float) -> list[go.Scatter]:
    """Particles that carry weight in the method's colour, those that hardly do pale and below."""
    weights = film.weights
    steps = np.broadcast_to(np.arange(len(weights))[:, None], weights.shape)
    heavy = weights >= NEGLIGIBLE * np.nansum(weights, axis=1, keepdims=True) / weights.shape[1]
    traces = []
    for paint, on in ((PALE, ~heavy), (colour, heavy)):
        x, y = steps[on], film.particles[on]
        first, _ = thinned(np.column_stack([x, y / tall]), same=PIXEL)
        mark = {"size": 3.5, "color": paint, "opacity": 0.5}
        trace = go.Scatter(x=x[first].astype(np.uint16), y=y[first].astype(np.float32), mode="markers", marker=mark)
        traces.append(trace.update(hoverinfo="skip"))
    return traces


def _seconds(dt: float, steps: int) -> dict:
    """An axis of steps with about eight ticks in seconds."""
    length = dt * steps
    every = next((s for s in (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0) if length / s <= 10), length / 8)
    seconds = np.arange(0.0, length, every)
    return {"tickvals": seconds / dt, "ticktext": [f"{s:.3g}" for s in seconds], "range": [-0.5, steps - 0.5]}


def spans(values: np.ndarray) -> Iterator[tuple[int, int]]:
    """The first and the last step of every run of true values."""
    for true, group in groupby(range(len(values)), key=lambda step: bool(values[step])):
        steps = [*group]
        if true:
            yield steps[0], steps[-1]
