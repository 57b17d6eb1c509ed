"""The laws audit drawn: errors against noise, coefficients, supports, every cell by method, and the theorem's bound."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, median

import numpy as np

from vhydro.report.charts import Axis, Key, Panel, column_width, logarithmic
from vhydro_audits.pages.drawing import BROKEN, log_dots, look, shade, thinned
from vhydro_audits.pages.levels import level_panels
from vhydro_audits.pages.results import Place, Record, Results
from vhydro_audits.spec import LAWS, Method, Metric, percent, written

LINEAR = 1e-3  # coefficients smaller than this are drawn on a straight scale, larger ones on a logarithmic one
LARGEST = 1e4  # and beyond this at the edge
SIDES = {"no-sparsity": 0.4, "lasso": -0.4, "full": 0.0}  # beside each other: true values are few; the last is on top
SCATTERED = [m for key in SIDES for m in LAWS.methods if m.key == key]
ERRORS_DRAWN = (1e-6, 1e2)  # what is outside is drawn at the edge
TASK_COLOURS = dict(zip(LAWS.families["four"], ("#2563eb", "#0d9488", "#f2a33a", "#8b5cf6"), strict=True))
TASK_SYMBOLS = dict(zip(LAWS.families["four"], ("circle", "square", "diamond", "triangle"), strict=True))
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


def noise_rows(results: Results) -> dict[str, list[Place]]:
    """The settings along the noise, by what else was done: for each source its easiest and its hardest."""
    rows = {}
    for end in _ends(results.settings):
        title = setting_title({**end, "noise": 0.0}).replace("0\u00a0% noise", "").rstrip(", ").replace(", ,", ",")
        rows[title] = [p for p in results.settings if {**p, "noise": 0.0} == end]
    return rows


def overview_panels(
    results: Results, metrics: Sequence[Metric] = LAWS.metrics, rows: Mapping[str, Sequence[Place]] | None = None,
    columns: int = 4, only: Sequence[str] = (),
) -> list[Panel]:  # fmt: skip
    """Metrics against the noise, a panel for each metric and each end of what else was done."""
    rows = noise_rows(results) if rows is None else rows
    return level_panels(results, rows, metrics, "noise", paper=[LAWS.ours], log=True, columns=columns, only=only)


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


def scatter_panels(results: Results, place: Place) -> list[Panel]:
    """Estimated against true coefficients of every term in one setting, a panel for each system."""
    edge = float(signed_log(np.array([LARGEST]))[0])
    values = {"−100": -100.0, "−1": -1.0, "0": 0.0, "1": 1.0, "100": 100.0}
    ticks = [(float(signed_log(np.array([v]))[0]), words) for words, v in values.items()]
    panels = []
    for task in results.tasks():
        axis = Axis(-edge - 0.3, edge + 0.3, ticks)
        panel = Panel(axis._replace(title="true"), axis, f"{task}: estimate", width=column_width(4), height=262)
        panel.diagonal()
        for method in SCATTERED:
            _coefficients(panel, method, results.at(place, method.key, task), 2 * edge)
        panels.append(panel)
    return panels


def _coefficients(panel: Panel, method: Method, cells: Sequence[Record], scale: float) -> None:
    """One dot per term and seed; a term that is neither there nor found has none."""
    terms = [t for cell in cells for t in cell["terms"] if t["true"] or t["estimate"]]
    drawn = signed_log(np.array([[t["true"], t["estimate"]] for t in terms], float).reshape(-1, 2))
    first, _ = thinned(drawn / scale)
    tips = [
        f"{method.name}\n{t['mode']}, {t['term']}: {t['estimate']:.4g} (true {t['true']:.4g})"
        for t in (terms[k] for k in first)
    ]
    mine, ours = look(LAWS, method), method.key == LAWS.ours
    panel.dots(
        (drawn[first, 0] + SIDES[method.key]).tolist(), drawn[first, 1].tolist(), mine.colour, name=method.name,
        symbol=mine.symbol, size=7 if ours else 5, tips=tips, opacity=1.0 if ours else 0.75,
    )  # fmt: skip


# --- supports -------------------------------------------------------------------------------------------------------


def having(results: Results, key: str) -> list[Method]:
    """The methods with at least one cell in which `key` is neither null nor empty."""
    there = {cell["method"] for cell in results.cells if cell[key] not in (None, [])}
    return [m for m in results.methods if m.key in there]


def heat_panels(results: Results, place: Place) -> list[Panel]:
    """How often every method selects every term of every mode, below the terms that are there; a panel per system."""
    methods = having(results, "terms")
    groups = {task: {m.name: results.at(place, m.key, task) for m in methods} for task in results.tasks()}
    return [_selection(task, cells) for task, cells in groups.items()]


def selection(cells: Mapping[str, Sequence[Record]]) -> tuple[list[tuple[str, str]], list[list[float | None]]]:
    """The terms by mode, and how often each is selected: a line for the true law, then one for each method."""
    found = [t for group in cells.values() for cell in group for t in cell["terms"]]
    true = {(t["mode"], t["term"]): t["true"] != 0 for t in found}
    modes = [*dict.fromkeys(mode for mode, _ in true)]
    keys = [key for mode in modes for key in true if key[0] == mode]
    return keys, [[float(true[key]) for key in keys], *(_shares(group, keys) for group in cells.values())]


def _selection(task: str, cells: Mapping[str, Sequence[Record]]) -> Panel:
    keys, shares = selection(cells)
    names = ["true law", *cells]
    up = Axis(-len(names) + 0.5, 0.5, [(-float(k), name) for k, name in enumerate(names)], grid=False)
    across = Axis(-0.5, max(len(keys), 1) - 0.5, grid=False)
    panel = Panel(across, up, task, width=1064, height=19 * len(names) + 132, left=176)
    panel.top, panel.bottom = 44, 88
    for line, (name, some) in enumerate(zip(names, shares, strict=True)):
        for k, share in enumerate(some):
            if share is not None:
                where = (k - 0.5, k + 0.5), (-line - 0.5, -line + 0.5)
                tip = f"{name}\n{keys[k][0]}, {keys[k][1]}: {share:.0%}"
                panel.box(*where, shade(share), name=task, tip=tip, soft=True, gap=1)
    for k, (mode, term) in enumerate(keys):
        panel.slanted(k, panel.y.low, term, "ink" if shares[0][k] else "")
        if k == 0 or keys[k - 1][0] != mode:
            panel.words(k - 0.5, 0.5, mode, kind="ink", shift=(0, -9))
    return panel


def _shares(cells: Sequence[Record], keys: Sequence[tuple[str, str]]) -> list[float | None]:
    """How often each term is selected; a term that a cell does not list is not selected there."""
    picked = [{(t["mode"], t["term"]) for t in cell["terms"] if t["estimate"]} for cell in cells]
    return [fmean(key in some for some in picked) if picked else None for key in keys]


# --- every cell -----------------------------------------------------------------------------------------------------


def strip_panels(results: Results, metric: str, *, log: bool) -> list[Panel]:
    """The metric of every cell as a dot, a line of dots per method and a panel per setting; a tick is the median."""
    methods, panels = having(results, metric), []
    up = Axis(-len(methods) + 0.4, 0.6, [(-float(k), m.name) for k, m in enumerate(methods)], grid=False)
    across = logarithmic(ERRORS_DRAWN, most=5) if log else Axis(-0.04, 1.04, [(0, "0"), (0.5, "0.5"), (1, "1")])
    for place in pictured(results):
        panel = Panel(across, up, setting_title(place), width=column_width(3), height=23 * len(methods) + 52, left=150)
        for line, method in enumerate(methods):
            values = np.array([c[metric] for c in results.at(place, method.key) if c[metric] is not None], float)
            _strip(panel, np.clip(values, *ERRORS_DRAWN) if log else values, line, method)
        panels.append(panel)
    return panels


def _strip(panel: Panel, values: np.ndarray, line: int, method: Method) -> None:
    if not values.size:
        return
    height = -line + 0.28 * np.sin(2.4 * np.arange(values.size))  # spread over the line, the same each time
    middle = float(median(values))
    panel.cloud(values.tolist(), height.tolist(), method.colour, name=method.name, size=4.5, opacity=0.5)
    tip = f"{method.name}, median of {values.size}: {written(middle)}"
    panel.dots([middle], [-line], "var(--ink)", name=f"{method.name}, median", symbol="tick", size=17, tips=[tip])


def trust_panel(results: Results) -> Panel:
    """For each setting the share of our laws whose terms are wrong, by whether the law says so."""
    groups = {setting_title(p): results.at(p, LAWS.ours) for p in results.settings}
    groups = {title: cells for title, cells in groups.items() if cells}
    up = Axis(-len(groups) + 0.4, 0.6, [(-float(k), title) for k, title in enumerate(groups)], grid=False)
    wrong = {t: [c for c in cells if (c["support_f1"] or 1.0) < 1] for t, cells in groups.items()}
    largest = max((len(wrong[t]) / len(cells) for t, cells in groups.items()), default=0.0)
    ticks = [(t, percent(t)) for t in (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1) if t <= largest + 0.1]
    panel = Panel(Axis(0.0, max(1.1 * largest, 0.1), ticks), up, "Share of laws with a wrong term", width=1064,
                  height=22 * len(groups) + 52, left=330)  # fmt: skip
    for line, (title, cells) in enumerate(groups.items()):
        sure = sum(c["status"] == "identified" for c in wrong[title]) / len(cells)
        share = len(wrong[title]) / len(cells)
        for name, ends, colour in (
            ("marked", (0.0, share - sure), MARKED),
            ("not marked", (share - sure, share), BROKEN),
        ):
            if ends[1] > ends[0]:
                tip = f"{title}\nwrong and {name}: {ends[1] - ends[0]:.1%} of {len(cells)} laws"
                panel.stretch(ends, -line, colour, name=name, tall=14, tip=tip)
    return panel


MARKED = "#7f8a9b"
TRUST_KEYS = (Key("wrong, and marked as not identified", MARKED), Key("wrong, and not marked", BROKEN))


# --- the theorem ----------------------------------------------------------------------------------------------------


def regressions(results: Results) -> list[Record]:
    """Every regression whose constants were measured, with its system and setting."""
    cells = [cell for cell in results.cells if cell["method"] == "lasso" and cell["theorem"]]
    return [{**entry, "task": c["task"], "setting": setting_title(c)} for c in cells for entry in c["theorem"]]


def bound_panels(entries: Sequence[Record]) -> list[Panel]:
    """The bound against the true error, apart where the conditions hold and where they fail, and κ by columns."""
    drawn = [e for e in entries if e["bound"] and e["error"]]
    words = {True: "conditions hold: bound by error", False: "conditions fail: bound by error"}
    errors, bounds = [e["error"] for e in drawn], [e["bound"] for e in drawn]
    panels = []
    for met in (met for met in words if any(e["conditions"] is met for e in drawn)):
        axes = logarithmic(errors, "true error", most=4), logarithmic([*errors, *bounds], most=5)
        panel = Panel(*axes, words[met], width=column_width(3), height=320).diagonal()
        some = [e for e in drawn if e["conditions"] is met]
        for name, colour in TASK_COLOURS.items():
            _bounds(panel, [e for e in some if e["task"] == name and (e["holds"] or not met)], name, colour)
        if broken := [e for e in some if met and not e["holds"]]:
            _bounds(panel, broken, "does not hold", BROKEN)
        panels.append(panel)
    kappas = [e for e in entries if e["kappa"]]
    columns = sorted({e["columns"] for e in kappas})
    across = Axis(min(columns, default=0) - 0.7, max(columns, default=1) + 0.7, [(n, str(n)) for n in columns],
                  "columns of the library", grid=False)  # fmt: skip
    panel = Panel(across, logarithmic([e["kappa"] for e in kappas], most=5), "κ by columns", width=column_width(3),
                  height=320)  # fmt: skip
    for step, (task, colour) in enumerate(TASK_COLOURS.items()):
        some = [e for e in kappas if e["task"] == task]
        logs = np.array([[e["columns"] / 10, np.log10(e["kappa"]) / 10] for e in some]).reshape(-1, 2)
        first, counts = thinned(logs)
        side = 0.16 * (step - 1.5)  # beside each other, where systems have as many columns
        tips = [f"{task}: κ = {some[k]['kappa']:.3g} ({n})" for k, n in zip(first, counts, strict=True)]
        panel.dots([some[k]["columns"] + side for k in first], [some[k]["kappa"] for k in first], colour, name=task,
                   symbol=TASK_SYMBOLS[task], size=5, tips=tips, opacity=0.6)  # fmt: skip
    return [*panels, panel]


BOUND_KEYS = (*(Key(t, c, TASK_SYMBOLS[t]) for t, c in TASK_COLOURS.items()), Key("does not hold", BROKEN, "cross"))


def _bounds(panel: Panel, entries: Sequence[Record], name: str, colour: str) -> None:
    words = [f"{e['task']}, {e['mode']}\n{e['setting']}" for e in entries]
    broken = name not in TASK_SYMBOLS
    log_dots(
        panel, [e["error"] for e in entries], [e["bound"] for e in entries], name, colour, words=words,
        symbol=TASK_SYMBOLS.get(name, "cross"), size=9 if broken else 5, opacity=1.0 if broken else 0.55,
    )  # fmt: skip


def parts_of(entries: Sequence[Record]) -> dict[str, list[list[float]]]:
    """The parts of ν of every regression that has all of them, by setting."""
    groups: dict[str, list[list[float]]] = defaultdict(list)
    for e in entries:
        parts = [e[name] for name in PARTS]
        if None not in parts and sum(parts):
            groups[e["setting"]].append(parts)
    return groups


def parts_panel(entries: Sequence[Record]) -> Panel:
    """The share of each part in ν, mean over regressions, a line for each setting with the median sum at its end."""
    groups = parts_of(entries)
    names = [*groups]
    up = Axis(-len(names) + 0.4, 0.6, [(-float(k), n) for k, n in enumerate(names)], grid=False)
    ticks = [(t, percent(t)) for t in (0, 0.25, 0.5, 0.75, 1)]
    panel = Panel(Axis(0.0, 1.12, ticks), up, width=1064, height=24 * len(names) + 34, left=330)
    for line, parts in enumerate(groups.values()):
        start = 0.0
        for k, (name, colour) in enumerate(PARTS.values()):
            share = fmean(p[k] / sum(p) for p in parts)
            panel.stretch((start, start + share), -line, colour, name=name, tall=16, tip=f"{name}: {share:.1%}")
            start += share
        panel.words(1.01, -line, written(median(sum(p) for p in parts), 2))
    return panel
