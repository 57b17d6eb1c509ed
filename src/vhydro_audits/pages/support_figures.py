"""The support audit drawn: one contact in the dark, metrics and the gate against occlusion, certificates, coverage."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import fmean
from typing import NamedTuple

import numpy as np

from vhydro.report.charts import Axis, Key, Panel, column_width, logarithmic, straight
from vhydro_audits.pages.drawing import BROKEN, PALE, log_dots, look
from vhydro_audits.pages.levels import level_panels
from vhydro_audits.pages.results import Place, Record, Results
from vhydro_audits.spec import SUPPORT, Metric

LEVELS = SUPPORT.levels["occlusion"]
HARDEST = LEVELS[-1]
PLAIN = "plain"  # of few methods and tasks: it shows a loss and is in no comparison
NOMINAL = tuple(round(0.05 * k, 2) for k in range(1, 20))  # of the intervals whose coverage a cell holds
CALIBRATION = [SUPPORT.metric(k) for k in ("cov90", "ece", "nll")]
WEIGHTS = [SUPPORT.metric(k) for k in ("ess", "relative_weight_variance")]
HIDDEN = [SUPPORT.metric(k) for k in ("nll_hidden", "cov90_hidden", "ece_hidden", "lost")]
GATE = [SUPPORT.metric(k) for k in ("mixing", "certified", "pareto_bad", "realised_variance")]
SAMPLING_ERRORS = 3.0  # a cell may be above its bound by this many standard errors of its 32 draws
FILMED = ("no-support", "adaptive", "two-sided")
NEGLIGIBLE = 0.1  # of an equal share of the weight: such a particle is drawn pale
CONTACT = "#64748b"
HIDDEN_SPAN = "var(--shade)"
FILM_KEYS = (
    Key("hidden", "var(--hairline)", soft=True),
    Key("in contact", CONTACT),
    Key("truth", "var(--ink)", "", "", 2.0),
    Key("particle, in the method’s colour", "#2563eb", "circle"),
    Key("particle with hardly any weight", PALE, "circle"),
    Key("lost", BROKEN, "cross"),
)

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


def occlusion_panels(
    results: Results, settings: Sequence[Setting], metrics: Sequence[Metric], columns: int = 3
) -> list[Panel]:
    """Metrics against occlusion, a panel for each family, regime and metric."""
    rows = {f"{f}, {r}": [p for p in results.settings if (p["family"], p["regime"]) == (f, r)] for f, r in settings}
    paper = [m.key for m in SUPPORT.methods]
    return level_panels(results, rows, metrics, "occlusion", paper=paper, columns=columns)


# --- certificates ---------------------------------------------------------------------------------------------------


def above_bound(cell: Record) -> bool | None:
    """Whether the realised variance is above the bound beyond sampling error; None where a cell has no bound."""
    bound, realised = cell["bound"], cell["bound_realised"]
    if bound is None or realised is None:
        return None
    return realised > bound + SAMPLING_ERRORS * (cell["bound_realised_se"] or 0.0)


def certificate_panels(results: Results) -> list[Panel]:
    """Bound against realised variance, a dot for each cell and a panel for each family; above the line it holds."""
    there = [c for c in results.cells if (c["bound"] or 0.0) > 0 and (c["bound_realised"] or 0.0) > 0]
    realised, bounds = ([c[key] for c in there] for key in ("bound_realised", "bound"))
    panels = []
    for family in results.present("family"):
        across, up = logarithmic(realised, "realised variance", most=5), logarithmic([*bounds, *realised], most=5)
        panel = Panel(across, up, f"{family}: the bound, by the realised variance", width=column_width(2), height=300)
        cells = [c for c in there if c["family"] == family]
        for method in reversed(results.methods):
            some, drawn = [c for c in cells if c["method"] == method.key], look(SUPPORT, method)
            if some:
                log_dots(panel, [c["bound_realised"] for c in some], [c["bound"] for c in some], method.name,
                         drawn.colour, symbol=drawn.symbol, size=5)  # fmt: skip
        if broken := [c for c in cells if above_bound(c)]:
            log_dots(panel, [c["bound_realised"] for c in broken], [c["bound"] for c in broken], "above its bound",
                     BROKEN, symbol="cross", size=9, opacity=1)  # fmt: skip
        panels.append(panel.diagonal())
    return panels


# --- coverage -------------------------------------------------------------------------------------------------------


def reliability_panels(results: Results) -> list[Panel]:
    """Empirical against nominal coverage at the hardest level; on the line a belief is as sure as it should be."""
    ticks = [(0.0, "0"), (0.5, "0.5"), (1.0, "1")]
    panels = []
    for setting in settings_of(results):
        axes = Axis(0, 1, ticks, "nominal"), Axis(0, 1, ticks)
        panel = Panel(*axes, f"{', '.join(setting)}: share inside", width=column_width(3), height=240).diagonal()
        for method in reversed(results.methods):
            if shares := mean_coverage(results, place_of(*setting), method.key):
                drawn = look(SUPPORT, method)
                tips = [f"{method.name}\nnominal {n:.0%}: {v:.1%}" for n, v in zip(NOMINAL, shares, strict=True)]
                panel.line(NOMINAL, shares, drawn.colour, name=method.name, width=drawn.width, dash=drawn.dash)
                panel.dots(NOMINAL, shares, drawn.colour, name=method.name, symbol=drawn.symbol, size=4.5, tips=tips)
        panels.append(panel)
    return panels


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


def reel_panels(reel: Reel, methods: Sequence[str] = FILMED, *, columns: int = 3) -> list[Panel]:
    """The particles of each method on the same log, side by side."""
    colours = {m.key: m.colour for m in SUPPORT.methods}
    low, high = _reach([*reel.films.values()])
    dt, panels = reel.cell["film"]["dt"], []
    for method in (m for m in methods if m in reel.films):
        film = reel.films[method]
        seconds = straight([0.0, dt * (len(film.truth) - 1)], "time (s)", most=6, grid=False)
        seconds = seconds._replace(low=-0.5 * dt, high=dt * (len(film.truth) - 0.5))
        up = straight([low, high], most=4)._replace(low=low, high=high)
        title = f"{method}: {reel.cell['film']['channel']}"
        panels.append(
            _film_panel(
                Panel(seconds, up, title, width=column_width(columns), height=236 if columns < 4 else 200),
                film,
                dt,
                colours[method],
            )
        )
    return panels


def _reach(films: list[Film]) -> tuple[float, float]:
    """The truth and nearly all particles, with room; a far stray does not flatten the rest."""
    truth = np.concatenate([film.truth for film in films])
    clouds = np.concatenate([film.particles.ravel() for film in films])
    low = min(np.nanmin(truth), np.nanpercentile(clouds, 0.5))
    high = max(np.nanmax(truth), np.nanpercentile(clouds, 99.5))
    room = 0.12 * (high - low) or 1.0
    return float(low - room), float(high + room)


def _film_panel(panel: Panel, film: Film, dt: float, colour: str) -> Panel:
    for first, last in spans(film.hidden):
        panel.box(((first - 0.5) * dt, (last + 0.5) * dt), (panel.y.low, panel.y.high), HIDDEN_SPAN, name="hidden")
    foot = panel.y.low + 0.02 * (panel.y.high - panel.y.low)
    for first, last in spans(film.contact):
        span = ((first - 0.5) * dt, (last + 0.5) * dt)
        panel.stretch(
            span, foot, CONTACT, name="contact", tall=6, tip=f"in contact from {span[0]:.2f} s to {span[1]:.2f} s"
        )
    _clouds(panel, film, dt, colour)
    times = (dt * np.arange(len(film.truth))).tolist()
    panel.line(times, film.truth.tolist(), "var(--ink)", name="truth", width=1.7)
    if film.lost_at is not None:
        at, truth = dt * film.lost_at, float(film.truth[film.lost_at])
        above = truth < (panel.y.low + panel.y.high) / 2
        panel.dots([at], [truth], BROKEN, name="lost", symbol="cross", size=11, tips=[f"lost at {at:.2f} s"])
        panel.words(at, truth, "lost", anchor="middle", kind="title", shift=(0, -16 if above else 18))
    return panel


def _clouds(panel: Panel, film: Film, dt: float, colour: str) -> None:
    """Particles that carry weight in the method's colour, those that hardly do pale and below."""
    weights = film.weights
    steps = np.broadcast_to(dt * np.arange(len(weights))[:, None], weights.shape)
    heavy = weights >= NEGLIGIBLE * np.nansum(weights, axis=1, keepdims=True) / weights.shape[1]
    for name, paint, on in (("light", PALE, ~heavy), ("heavy", colour, heavy)):
        panel.cloud(steps[on].tolist(), film.particles[on].tolist(), paint, name=name, size=3.2, opacity=0.45)


def spans(values: np.ndarray) -> Iterator[tuple[int, int]]:
    """The first and the last step of every run of true values."""
    for true, group in groupby(range(len(values)), key=lambda step: bool(values[step])):
        steps = [*group]
        if true:
            yield steps[0], steps[-1]
