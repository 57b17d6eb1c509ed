"""A branch lost or kept, step by step: the particles of each method on one occluded contact."""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

from vhydro.report.laws_figures import dressed, panels
from vhydro.report.page import INK, SHADE
from vhydro.report.support_results import ADAPTIVE, METHODS, NO_SUPPORT, TWO_SIDED, Film, Place, Results

FILMED = (NO_SUPPORT, ADAPTIVE, TWO_SIDED)
NEGLIGIBLE = 0.1  # of an equal share of the weight: such a particle is drawn pale
CONTACT = "#475569"
PALE = "#c3c8d0"
TALL = 210


class Reel(NamedTuple):
    """The films of one task, seed and setting, by method."""

    place: Place  # of its first film
    task: str
    seed: int
    films: dict[str, Film]


def reels(results: Results) -> list[Reel]:
    """For each family the task, seed and setting with the most of the methods to be shown."""
    found: dict[tuple, Reel] = {}
    for cell in results.cells:
        if cell.film is not None and cell.place.method in FILMED:
            key = (*cell.place[:3], cell.task, cell.seed, cell.film.channel)
            found.setdefault(key, Reel(cell.place, cell.task, cell.seed, {})).films[cell.place.method] = cell.film
    families = [[reel for reel in found.values() if reel.place.family == family] for family in results.families]
    return [max(some, key=lambda reel: len(reel.films)) for some in families if some]


def reel_words(reel: Reel) -> str:
    """What is shown, and when each method lost the branch."""
    shown = [m for m in FILMED if m in reel.films]
    times = {m: reel.films[m].dt * step for m in shown if (step := reel.films[m].lost_at) is not None}
    lost, kept = [f"{m} loses it at {time:.2f} s" for m, time in times.items()], [m for m in shown if m not in times]
    words = "; ".join(
        lost + ([f"{' and '.join(kept)} {'do' if len(kept) > 1 else 'does'} not lose it"] if kept else [])
    )
    place = reel.place
    where = f"{place.family}, {reel.task}, {place.regime}, {100 * place.occlusion:g} % occlusion, seed {reel.seed}"
    return f"{where}: {words}."


def reel_figure(reel: Reel) -> go.Figure:
    """The particles of each method on the same episode, one panel below the other."""
    shown = [m for m in METHODS if m.key in reel.films]
    shown.sort(key=lambda m: FILMED.index(m.key))
    channel = next(iter(reel.films.values())).channel
    titles = [f"<b>{m.key}</b>: {channel}" for m in shown]
    figure = panels(len(shown), 1, titles, tall=TALL, gap=34, shared_xaxes=True)
    for panel, method in enumerate(shown, start=1):
        _panel(figure, panel, reel.films[method.key], method.colour)
    figure.update_yaxes(range=_reach([*reel.films.values()]), showgrid=False)
    figure.update_xaxes(showgrid=False)
    figure.update_xaxes(**_seconds(reel.films[shown[0].key]))
    figure.update_xaxes(title_text="time (s)", row=len(shown))
    return dressed(figure, TALL * len(shown) + 60, left=52)


def _reach(films: list[Film]) -> list[float]:
    """The truth and nearly all particles, with room; a far stray does not flatten the rest."""
    truth = np.concatenate([film.truth for film in films])
    clouds = np.concatenate([film.particles.ravel() for film in films])
    low = min(np.nanmin(truth), np.nanpercentile(clouds, 0.5))
    high = max(np.nanmax(truth), np.nanpercentile(clouds, 99.5))
    room = 0.12 * (high - low) or 1.0
    return [float(low - room), float(high + room)]


def _panel(figure: go.Figure, panel: int, film: Film, colour: str) -> None:
    for trace in (*_clouds(film, colour), _truth(film)):
        figure.add_trace(trace, row=panel, col=1)
    for kind, values in (("hidden", film.seen == 0), ("contact", film.contact == 1)):
        for first, last in spans(values):
            _strip(figure, panel, kind, first - 0.5, last + 0.5)
    if film.lost_at is not None:
        truth, reach = float(film.truth[film.lost_at]), film.truth
        below = truth > (np.nanmin(reach) + np.nanmax(reach)) / 2
        figure.add_annotation(
            x=film.lost_at, y=truth, row=panel, col=1, text="<b>lost</b>", ax=0, ay=36 if below else -36,
            arrowhead=2, arrowwidth=1.4, font={"color": INK, "size": 12}, bgcolor="rgba(255,255,255,.8)",
        )  # fmt: skip


def _clouds(film: Film, colour: str) -> list[go.Scatter]:
    """Particles that carry weight in the method's colour, those that hardly do pale and below."""
    weights = film.weights
    x = np.broadcast_to(np.arange(len(weights))[:, None], weights.shape)
    heavy = weights >= NEGLIGIBLE * np.nansum(weights, axis=1, keepdims=True) / weights.shape[1]
    groups = ((~heavy, PALE), (heavy, colour))
    return [_dots(x[chosen], film.particles[chosen], paint) for chosen, paint in groups]


def _dots(x: np.ndarray, y: np.ndarray, colour: str) -> go.Scatter:
    marker = {"size": 3.5, "color": colour, "opacity": 0.4}
    x, y = x.astype(np.uint16), y.astype(np.float32)  # as short as they can be: clouds are the page's largest part
    return go.Scatter(x=x, y=y, mode="markers", marker=marker, hoverinfo="skip")


def _truth(film: Film) -> go.Scatter:
    line = {"color": INK, "width": 1.6}
    return go.Scatter(y=film.truth.round(6), mode="lines", line=line, hovertemplate="%{y:.3g}<extra>truth</extra>")


def _seconds(film: Film) -> dict:
    """An axis of steps with about eight ticks in seconds."""
    length = film.dt * len(film.truth)
    every = next((s for s in (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0) if length / s <= 10), length / 8)
    seconds = np.arange(0.0, length, every)
    words = [f"{s:.3g}" for s in seconds]
    return {"tickvals": seconds / film.dt, "ticktext": words, "range": [-0.5, len(film.truth) - 0.5]}


def spans(values: np.ndarray) -> Iterator[tuple[int, int]]:
    """The first and the last step of every run of true values."""
    for true, group in groupby(range(len(values)), key=lambda step: bool(values[step])):
        steps = [*group]
        if true:
            yield steps[0], steps[-1]


def _strip(figure: go.Figure, panel: int, kind: str, start: float, end: float) -> None:
    """A hidden span over the whole height, a contact as a bar along the bottom."""
    top, colour = (1.0, SHADE) if kind == "hidden" else (0.035, CONTACT)
    figure.add_shape(
        type="rect", x0=start, x1=end, y0=0, y1=top, yref="y domain", fillcolor=colour, line_width=0, layer="below",
        row=panel, col=1,
    )  # fmt: skip
