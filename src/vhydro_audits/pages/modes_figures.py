"""The modes audit drawn: logs with what every method makes of them, scores by task, confusions, the bound of Thm 2."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from vhydro.report.charts import Axis, Key, Number, Panel, column_width
from vhydro.report.timeline import COLOURS
from vhydro_audits.pages.drawing import BROKEN, PALE, PAPER, look, shade, thinned
from vhydro_audits.pages.results import Place, Record, Results
from vhydro_audits.pages.tables import Line, best_peer, paper_number
from vhydro_audits.spec import MODES, Method, Metric, power_of_ten

CONFIGURATION, PROXY, REGIME = MODES.known["labels"]
CLEAN, HALF = MODES.known["condition"][:2]
FIXED, CHOSEN = MODES.known["reading"]
REGIMES = {"free": "#b9c0cb", "impact": "#b8342a", "sustained": "#56606f"}
UNKNOWN = "var(--paper)"  # rows without a label, modes that no row has
STRIP = 21  # pixels
NAMES = 96  # pixels, of the methods' names
GAP = 0.4  # strips, between labels and methods
DECADES = 5.0  # of the score that are drawn; what is lower is at the edge
SOUND = "#2563eb"
SMALLEST, NEARLY_ONE = -300.0, -0.01  # powers of ten; what is beyond is drawn at the edge
PROBABILITIES = {"0.9": -0.046, "0.5": -0.301, "0.1": -1.0, "10⁻³": -3.0, "10⁻¹⁰": -10.0, "10⁻³⁰": -30.0}
PROBABILITIES |= {"10⁻¹⁰⁰": -100.0, "10⁻³⁰⁰": -300.0}
POINT = _, BOUND, REALISED, CONDITIONS, HOLDS, EPSILON, Q_BOUND, Q_REALISED = tuple(range(8))
SHARE_TICKS = [(0.0, "0"), (0.25, "0.25"), (0.5, "0.5"), (0.75, "0.75"), (1.0, "1")]


def place_of(family: str, labels: str, condition: str = CLEAN, reading: str = FIXED) -> Place:
    return {"family": family, "labels": labels, "condition": condition, "reading": reading}


def ours_at(results: Results, family: str, task: str, labels: str, key: str) -> list[Record]:
    """Our cells of clean logs that have `key`."""
    return [c for c in results.at(place_of(family, labels), MODES.ours, task) if c.get(key)]


# --- methods and tasks side by side ---------------------------------------------------------------------------------


def _lines_axis(names: Sequence[str]) -> Axis:
    """An axis of named lines, the first on top."""
    ticks = [(-float(k), name) for k, name in enumerate(names)]
    return Axis(-len(names) + 0.4, 0.6, ticks)


def _columns(results: Results) -> int:
    """Panels of families beside each other: all of them, if they are three or four."""
    return 4 if len(results.present("family")) == 4 else 3


def sight_panels(results: Results, labels: str = CONFIGURATION, metric: str = "ari") -> list[Panel]:
    """A metric in full sight (full mark) and half hidden (ring), a panel for each family, a line for each method."""
    methods, panels = [m for m in results.methods if m.kind != "ceiling" and m.key != "changes"], []
    axis = _lines_axis([f"{m.key} (ours)" if m.kind == "ours" else m.key for m in methods])
    for family in results.present("family"):
        tall = 24 * len(methods) + 52
        title = f"{MODES.metric(metric).title} · {family}"
        panel = Panel(
            Axis(-0.03, 1.03, SHARE_TICKS), axis, title, width=column_width(_columns(results)), height=tall, left=NAMES
        )
        for k, method in enumerate(methods):
            _dumbbell(panel, results, place_of(family, labels), method, k, MODES.metric(metric))
        panels.append(panel)
    return panels


def _dumbbell(panel: Panel, results: Results, place: Place, method: Method, line: int, metric: Metric) -> None:
    """A ring and, on top of it, a mark for each sight that was run, and the line between them; the paper's tick."""
    rows = {o: results.row({**place, "condition": o}, method.key) for o in (HALF, CLEAN)}
    there = {o: row[metric.key] for o, row in rows.items() if row is not None and row.get(metric.key) is not None}
    drawn = look(MODES, method)
    if len(there) == 2:
        panel.line([*there.values()], [-float(line)] * 2, drawn.colour, name=method.key, width=2.2)
    for o, value in there.items():
        spread = (rows[o] or {}).get(f"{metric.key}_sem")
        words = f"{method.key}, {'half hidden' if o == HALF else 'full sight'}: {metric.text(value)}"
        words += f" ± {spread:.2g}" if spread else ""
        symbol = "ring" if o == HALF else "circle"
        panel.dots([value], [-float(line)], drawn.colour, name=method.key, symbol=symbol, size=9, tips=[words])
    theirs = results.paper({**place, "condition": CLEAN}, method.key, metric.key)
    if theirs is not None:
        words = f"{method.key}, the paper’s: {metric.text(theirs)}"
        panel.dots([theirs], [-float(line)], PAPER, name="paper", symbol="tick", size=16, tips=[words])


SIGHT_KEYS = (
    Key("in full sight", SOUND, "circle"),
    Key("bodies hidden half of the time", SOUND, "ring"),
    Key("the paper’s number", PAPER, "tick"),
)


def task_panels(results: Results, labels: str, metrics: Sequence[Metric]) -> list[Panel]:
    """Ours, the best peer's and the paper's number on every task in full sight, a panel for each metric."""
    tasks = [(f, t) for f in results.present("family") for t in results.tasks(f)]
    panels = []
    for metric in metrics:
        axis, tall = _lines_axis([t for _, t in tasks]), 17 * len(tasks) + 52
        title = f"{metric.title} · {labels} labels"
        panel = Panel(Axis(-0.03, 1.03, SHARE_TICKS), axis, title, width=column_width(3), height=tall, left=112)
        for k, (family, task) in enumerate(tasks):
            _task_line(panel, results, Line(task, place_of(family, labels), task), metric, -float(k))
        panels.append(panel)
    return panels


def _task_line(panel: Panel, results: Results, line: Line, metric: Metric, at: Number) -> None:
    ours = results.number(line.place, MODES.ours, metric.key, line.task)
    if ours is None:
        return
    theirs = paper_number(results, line, MODES.ours, metric)
    if theirs is not None:
        words = f"{line.name}\nthe paper’s: {metric.text(theirs)}"
        panel.dots([theirs], [at], PAPER, name="paper", symbol="tick", size=15, tips=[words])
    _beside(panel, line.name, ours, best_peer(results, line, metric), metric, at)


def _beside(panel: Panel, name: str, ours: Number, peer: tuple[str, float] | None, metric: Metric, at: Number) -> None:
    """Draws our number, the best peer's and the line between them; red where the peer is ahead."""
    if peer is not None:
        behind = metric.merit(peer[1]) > metric.merit(ours)
        panel.line([ours, peer[1]], [at, at], BROKEN if behind else SOUND, name="gap", width=2)
        words = f"{name}\nbest peer, {peer[0]}: {metric.text(peer[1])}"
        panel.dots([peer[1]], [at], BROKEN if behind else PALE, name=peer[0], symbol="diamond", size=8, tips=[words])
    words = f"{name}\nours: {metric.text(ours)}"
    panel.dots([ours], [at], SOUND, name=MODES.ours, symbol="circle", size=8, tips=[words])


def condition_panels(pairs: Sequence[tuple[str, str, float, tuple[str, float] | None]], metric: Metric) -> list[Panel]:
    """Ours and the best peer in every condition, a panel for each family; pairs are condition, family, ours, peer."""
    conditions = [*dict.fromkeys(condition for condition, *_ in pairs)]
    left, panels = 16 + 6.3 * max(map(len, conditions), default=0), []
    for family in dict.fromkeys(family for _, family, *_ in pairs):
        panel = Panel(Axis(-0.03, 1.03, SHARE_TICKS), _lines_axis(conditions), f"{metric.title} · {family}",
                      width=column_width(3), height=24 * len(conditions) + 52, left=min(left, 150))  # fmt: skip
        for condition, other, ours, peer in pairs:
            if other == family:
                _beside(panel, condition, ours, peer, metric, -float(conditions.index(condition)))
        panels.append(panel)
    return panels


TASK_KEYS = (
    Key("ours", SOUND, "circle"),
    Key("best peer, behind ours", PALE, "diamond"),
    Key("best peer, ahead of ours", BROKEN, "diamond"),
    Key("the paper’s number", PAPER, "tick"),
)


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


def class_keys(classes: Sequence[str], *, regimes: bool = True) -> list[Key]:
    """The legend of a timeline."""
    keys = [Key(name, colour, soft=True) for name, colour in class_colours(classes).items()]
    regime = [Key(f"{name} (regime, proxy)", colour, soft=True) for name, colour in REGIMES.items()] if regimes else []
    return keys + regime


def timeline_panel(
    results: Results, family: str, task: str, *, width: Number = 1064, only: Sequence[str] = (), labels: bool = True
) -> Panel | None:
    """The first test log of the first seed: its labels and every method's modes; None without a path.

    `only` names the methods to be shown, if not all; without `labels` the contacts are the only truth.
    """
    truths, found = _truth_strips(results, family, task), _method_strips(results, family, task)
    truths = truths if labels else truths[:1]
    found = [s for s in found if not only or s.name.split(" ")[0] in only]
    strips = [*truths, *found]
    if not strips:
        return None
    places = [-(k + GAP * (k >= len(truths))) for k in range(len(strips))]
    dts = [c["dt"] for c in ours_at(results, family, task, CONFIGURATION, "dt")]
    dt, rows = dts[0] if dts else 1.0, max(strip.path["rows"] for strip in strips)
    up = Axis(places[-1] - 0.55, 0.55, [(p, s.name) for p, s in zip(places, strips, strict=True)], grid=False)
    tall = round(STRIP * (1.1 - places[-1])) + 66
    across = _seconds(dt * rows, "time (s)" if dts else "rows")
    panel = Panel(across, up, f"{task} ({family})", width=width, height=tall, left=NAMES)
    for place, strip in zip(places, strips, strict=True):
        _stretches(panel, strip, place, dt)
    return panel


def _seconds(length: Number, title: str) -> Axis:
    every = next((s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200) if length / s <= 10), length / 8)
    ticks = [(k * every, f"{k * every:g}") for k in range(int(length / every) + 1)]
    return Axis(0.0, length, ticks, title, grid=False)


def _truth_strips(results: Results, family: str, task: str) -> list[Strip]:
    strips = []
    for labels in (CONFIGURATION, REGIME, PROXY):
        for cell in ours_at(results, family, task, labels, "truth")[:1]:
            classes = cell.get("classes") or []
            colours = class_colours(classes) if labels == CONFIGURATION else REGIMES
            name = "truth" if labels == CONFIGURATION else labels
            words = classes or [*colours]
            strips.append(Strip(name, cell["truth"], [colours.get(w, COLOURS[0]) for w in words], words))
    return strips


def _method_strips(results: Results, family: str, task: str) -> list[Strip]:
    """Modes as they are read, each in the colour of the class that most of its rows have."""
    classes, strips = classes_of(results, family, task), []
    for method in (m for m in results.methods if m.key not in ("no-mode", "simulator")):
        reading = CHOSEN if method.key == "changes" else FIXED  # it is told the number of changes
        place = place_of(family, CONFIGURATION, reading=reading)
        for cell in [c for c in results.at(place, method.key, task) if c.get("shown")][:1]:
            nearest = np.array(cell["confusion"]).argmax(1).tolist() if cell.get("confusion") else []
            words = [f"mode {k}, mostly {classes[c] if c < len(classes) else c}" for k, c in enumerate(nearest)]
            name = f"{method.key} (ours)" if method.kind == "ours" else method.key
            strips.append(Strip(name, cell["shown"], [COLOURS[c % len(COLOURS)] for c in nearest], words))
    return strips


def _stretches(panel: Panel, strip: Strip, at: Number, dt: Number) -> None:
    values, starts = strip.path["values"], strip.path["starts"]
    for value, (first, last) in zip(values, pairwise([*starts, strip.path["rows"]]), strict=True):
        known = 0 <= value < len(strip.colours)
        colour = str(strip.colours[value]) if known else UNKNOWN
        words = strip.words[value] if known else "no label"
        tip = f"{strip.name}: {words}\n{dt * first:.2f} s to {dt * last:.2f} s"
        panel.stretch((dt * first, dt * last), at, colour, name=strip.name, tall=STRIP - 6, tip=tip, soft=True)


# --- scores ---------------------------------------------------------------------------------------------------------


def histogram_panels(results: Results) -> list[Panel]:
    """Test rows by their kinematic score, a line for each true regime and a panel for each task; the thresholds."""
    found = {t: ours_at(results, f, t, PROXY, "histogram") for f in results.present("family") for t in results.tasks(f)}
    return [_histogram_panel(task, cells) for task, cells in found.items() if cells]


def _histogram_panel(task: str, cells: Sequence[Record]) -> Panel:
    histograms = [c["histogram"] for c in cells]
    ends = [h["edges"][k] for h in histograms for k in (0, -1)]
    edges = np.linspace(min(ends), max(ends), len(histograms[0]["edges"]))
    counts = {name: summed_counts(histograms, name, edges) for name in REGIMES}
    shares = {name: np.append(c / c.sum(), 0.0) for name, c in counts.items() if c.sum()}
    whole = list(range(int(np.ceil(edges[0])), int(np.floor(edges[-1])) + 1))
    ticks = [(float(n), power_of_ten(n)) for n in whole[:: 1 + len(whole) // 6]]
    high = max((float(s.max()) for s in shares.values()), default=1.0)
    panel = Panel(Axis(float(edges[0]), float(edges[-1]), ticks, grid=False), Axis(0.0, 1.05 * high), task,
                  width=column_width(4), height=150)  # fmt: skip
    for name, some in shares.items():
        x, y = np.repeat(edges, 2)[1:-1].tolist(), np.repeat(some[:-1], 2).tolist()
        panel.area(x, [0.0] * len(x), y, REGIMES[name], opacity=0.25)
        panel.line(x, y, REGIMES[name], name=name, width=1.5, dash={"impact": "4 2"}.get(name, ""))
    limits = np.array([c["thresholds"] for c in cells if len(c.get("thresholds") or []) == 2])
    for value in np.log10(np.maximum(np.median(limits, axis=0), 10 ** edges[0])) if len(limits) else []:
        panel.rule("x", float(value))
    return panel


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


def confusion_panels(results: Results) -> list[Panel]:
    """What the rows of every found mode truly were, a panel for each task; shares of the mode's rows."""
    found = {t: summed_confusion(results, f, t) for f in results.present("family") for t in results.tasks(f)}
    return [_confusion_panel(task, *some) for task, some in found.items() if some is not None]


def _confusion_panel(task: str, classes: Sequence[str], counts: np.ndarray, seeds: int) -> Panel:
    kept = [k for k in range(len(counts)) if counts[k].any() or k < len(classes)]
    total = counts.sum(1, keepdims=True)
    shares = np.divide(counts, total, out=np.full_like(counts, np.nan), where=total > 0)
    names = [*(f"{_short(name)} {k}" for k, name in enumerate(classes, start=1)), "other modes"]
    up = _lines_axis([names[k] for k in kept])._replace(grid=False)
    across = Axis(-0.5, len(classes) - 0.5, [(float(k), str(k + 1)) for k in range(len(classes))], grid=False)
    title = f"{task}, {seeds} seed{'s' * (seeds > 1)}"
    panel = Panel(across, up, title, width=column_width(3), height=26 * len(kept) + 52, left=190)
    for line, k in enumerate(kept):
        for c, name in enumerate(classes):
            if not np.isnan(shares[k, c]):
                where = (c - 0.5, c + 0.5), (-line - 0.5, -line + 0.5)
                tip = f"{names[k]}: {counts[k, c]:,.0f} rows, truly {name}"
                panel.box(*where, shade(float(shares[k, c])), name=task, tip=tip, soft=True, gap=1)
                kind = "on" if shares[k, c] > 0.6 else "off"
                panel.words(c, -line, f"{100 * shares[k, c]:.0f}", anchor="middle", kind=kind)
    return panel


def _short(name: str, most: int = 27) -> str:
    """A class's name, its end cut where it is long."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


# --- the theorem ----------------------------------------------------------------------------------------------------


def theorems(results: Results, family: str | None = None) -> list[Record]:
    """Thm 2 in every cell that measured it, of one family or all."""
    return [c["theorem"] for c in results.cells if c.get("theorem") and family in (None, c["family"])]


def points_of(found: Sequence[Record]) -> np.ndarray:
    """The segments of some cells, (segments, 8) as `POINT` names them; NaN where there is no number."""
    return np.array([point for theorem in found for point in theorem["points"]], float).reshape(-1, len(POINT))


def theorem_panels(results: Results) -> list[Panel]:
    """The bound of Thm 2 against the realised misassignment of held-out segments; above the line it holds."""
    found = {f: points_of(theorems(results, f)) for f in results.present("family")}
    ends = drawn_at(np.array([SMALLEST, NEARLY_ONE])).tolist()
    ticks = [*zip(drawn_at(np.array([*PROBABILITIES.values()])).tolist(), PROBABILITIES, strict=True)]
    panels = []
    for family, some in found.items():
        if not len(some):
            continue
        axis = Axis(ends[0] - 0.12, ends[1] + 0.12, ticks)
        across = axis._replace(title="realised misassignment", ticks=ticks[::2])
        title = f"{family}: the bound, {len(some):,} segments"
        panel = Panel(across, axis, title, width=column_width(_columns(results)), height=260).diagonal()
        met, holds = some[:, CONDITIONS] == 1, some[:, HOLDS] == 1
        _segments(panel, some[~met], "conditions fail", PALE, "ring")
        _segments(panel, some[met & holds], "conditions hold", SOUND, "circle")
        _segments(panel, some[met & ~holds], "does not hold", BROKEN, "cross")
        panels.append(panel)
    return panels


THEOREM_KEYS = (
    Key("conditions hold", SOUND, "circle"),
    Key("conditions fail", PALE, "ring"),
    Key("conditions hold and the bound does not", BROKEN, "cross"),
)


def drawn_at(powers: np.ndarray) -> np.ndarray:
    """Where probabilities, given as powers of ten, are drawn: by the logarithm of their number of zeros."""
    return -np.log10(-np.clip(powers, SMALLEST, NEARLY_ONE))


def _segments(panel: Panel, points: np.ndarray, name: str, colour: str, symbol) -> None:
    if not len(points):
        return
    places = drawn_at(np.nan_to_num(points[:, [REALISED, BOUND]], nan=SMALLEST))
    first, counts = thinned(places / float(np.ptp(drawn_at(np.array([SMALLEST, NEARLY_ONE])))))
    x, y = places[first].reshape(-1, 2).T.tolist()
    tips = [f"{n} segment{'s' * (n != 1)}: {name}" for n in counts.tolist()]
    size = {"cross": 9.0}.get(symbol, 5.0)
    panel.dots(x, y, colour, name=name, symbol=symbol, size=size, tips=tips, opacity=0.75 if symbol != "cross" else 1)
