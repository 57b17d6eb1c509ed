"""The support audit's bars: what was asked for, what was measured, and whether that is enough."""

from collections.abc import Sequence
from html import escape
from itertools import product
from typing import NamedTuple

from vhydro.report.laws_results import ABSENT, SPACE, written
from vhydro.report.page import table_html
from vhydro.report.support_results import (
    BEYOND,
    COV90,
    ECE,
    ESS,
    FAMILIES,
    HARDEST,
    LEVELS,
    METHODS,
    NLL,
    OURS,
    REGIMES,
    SEEDS,
    VARIANCE,
    Cell,
    Metric,
    Place,
    Results,
    merit,
    percent,
    shown,
)

BAND = (0.85, 0.95)
ASKED = {ESS: (0.30, float("inf")), VARIANCE: (0.0, 0.10), ECE: (0.0, 0.05), COV90: BAND}  # at the hardest level
SAMPLING_ERRORS = 3.0  # a cell may be above its bound by this many standard errors of its 32 draws
ROUNDING = 1e-12


class Bar(NamedTuple):
    """One thing asked for in one family and regime; `met` is None where it could not be decided."""

    measured: str
    met: bool | None
    note: str = ""


class Standing(NamedTuple):
    """The best support-safe method at the hardest level, and its bars in the order of `ASKED`."""

    method: str | None
    bars: list[Bar]


# --- decisions ----------------------------------------------------------------------------------------------


def limit(metric: Metric) -> str:
    """What is asked of a metric, as `≥ 0.3`."""
    low, high = ASKED[metric]
    if metric.good:
        return f"≥{SPACE}{low:g}" if metric.good > 0 else f"≤{SPACE}{high:g}"
    return f"{low:g} to {high:g}"


def within(metric: Metric, value: float | None) -> bool:
    """Whether the value reaches its bar; one without a number does not."""
    low, high = ASKED[metric]
    return value is not None and low <= value <= high


def best_safe(values: dict[str, dict[Metric, float | None]]) -> str | None:
    """The method that meets most of the four bars, among equals the one with the larger ESS/N, then the smaller ECE."""

    def rank(method: str) -> tuple[int, float, float]:
        numbers = values[method]
        ess, ece = numbers[ESS], numbers[ECE]
        met = sum(within(metric, numbers[metric]) for metric in ASKED)
        return met, -1.0 if ess is None else ess, -1.0 if ece is None else -ece

    there = [method for method, numbers in values.items() if any(v is not None for v in numbers.values())]
    return max(there, key=rank, default=None)


def standing(results: Results, family: str, regime: str) -> Standing:
    """One method for all four bars at the hardest level, and how it does."""
    places = {m.key: Place(family, regime, HARDEST, m.key) for m in METHODS if m.safe}
    values = {key: {metric: results.number(place, metric.key) for metric in ASKED} for key, place in places.items()}
    best = best_safe(values)
    if best is None:
        return Standing(None, [Bar(ABSENT, None)] * len(ASKED))
    return Standing(best, [Bar(shown(metric, v), within(metric, v)) for metric, v in values[best].items()])


def paper_best(results: Results, family: str) -> tuple[str, dict[Metric, float | None]] | None:
    """The paper's best support-safe method at the hardest level, by the rule that picks ours, and its numbers.

    None where a run lacks one of its methods: the best of the rest would pass for the paper's best.
    """
    safe = [m.key for m in METHODS if m.safe and m.key not in BEYOND]
    places = [(Place(family, regime, HARDEST, method), None) for regime in REGIMES for method in safe]
    rows = [results.rows[place] for place in places if place in results.rows]
    published = {row.place.method: row.published for row in rows if row.published}
    if len(published) < len(safe):
        return None
    values = {method: {metric: paper.get(metric.key) for metric in ASKED} for method, paper in published.items()}
    best = best_safe(values)
    return None if best is None else (best, values[best])


def uniform_bars(results: Results, family: str, regime: str) -> list[Bar]:
    """Ours at every level: Cov90 in its band, ECE small, NLL and ESS/N within one SEM of the best method."""
    fixed = [_everywhere(results, family, regime, metric) for metric in (COV90, ECE)]
    return [*fixed, *(_beside_best(results, family, regime, metric) for metric in (NLL, ESS))]


def _everywhere(results: Results, family: str, regime: str, metric: Metric) -> Bar:
    found = [results.number(Place(family, regime, level, OURS), metric.key) for level in LEVELS]
    values = [v for v in found if v is not None]
    if not values:
        return Bar(ABSENT, None)
    ends = [shown(metric, end(values)) for end in (min, max)]
    spread = f"{ends[0]} to {ends[1]}" if metric is COV90 else f"up to {ends[1]}"
    return Bar(spread, _all_met([within(metric, v) for v in values], len(values)), _levels_run(len(values)))


def _beside_best(results: Results, family: str, regime: str, metric: Metric) -> Bar:
    gaps = {level: _gap(results, Place(family, regime, level, OURS), metric) for level in LEVELS}
    run = {level: gap for level, gap in gaps.items() if gap is not None}
    if not run:
        return Bar(ABSENT, None)
    behind = {level: gap for level, gap in run.items() if gap[0] > gap[1] + ROUNDING}
    note = _levels_run(len(run))
    if behind:
        worst = max(behind, key=lambda level: behind[level][0])
        gap, allowed, best = behind[worst]
        note = f"{written(gap)} behind {best} at {percent(worst)} (SEM {written(allowed)}) {note}"
    met = _all_met([level not in behind for level in run], len(run))
    return Bar(f"{len(run) - len(behind)} of {len(run)} levels", met, note.strip())


def _gap(results: Results, ours: Place, metric: Metric) -> tuple[float, float, str] | None:
    """How far ours is behind the best method, that method's SEM and its name; None unless all methods have a number."""
    found = {m.key: results.number(ours._replace(method=m.key), metric.key) for m in METHODS}
    values = {method: value for method, value in found.items() if value is not None}
    if len(values) < len(METHODS):
        return None
    best = max(values, key=lambda method: (merit(metric, values[method]), method == OURS))
    spread = results.number(ours._replace(method=best), f"{metric.key}_sem")
    return merit(metric, values[best]) - merit(metric, values[OURS]), spread or 0.0, best


def _levels_run(count: int) -> str:
    return "" if count == len(LEVELS) else f"{count} of {len(LEVELS)} levels run"


def _all_met(met: Sequence[bool], run: int) -> bool | None:
    """False as soon as one fails; True only where every level was run."""
    return False if not all(met) else (True if run == len(LEVELS) else None)


def above_bound(cell: Cell) -> bool | None:
    """Whether the realised variance is above the bound beyond sampling error; None where a cell has no bound."""
    bound, realised = cell.numbers["bound"], cell.numbers["bound_realised"]
    if bound is None or realised is None:
        return None
    return realised > bound + SAMPLING_ERRORS * (cell.numbers["bound_realised_se"] or 0.0)


def bound_bar(results: Results, family: str, regime: str) -> Bar:
    """Whether no cell is above its bound beyond sampling error."""
    found = [above_bound(c) for c in results.cells if (c.place.family, c.place.regime) == (family, regime)]
    decided = [above for above in found if above is not None]
    if not decided:
        return Bar(ABSENT, None)
    return Bar(f"{sum(decided):,} of {len(decided):,} cells above", not any(decided))


def every_bar(results: Results) -> list[Bar]:
    """All bars of all families and regimes, run or not."""
    bars = []
    for family, regime in product(FAMILIES, REGIMES):
        bars += standing(results, family, regime).bars
        bars += [*uniform_bars(results, family, regime), bound_bar(results, family, regime)]
    return bars


# --- words and tables ---------------------------------------------------------------------------------------


def headline(results: Results) -> str:
    """Both families at the hardest level beside the paper's best, and how many bars are met: one sentence."""
    regimes, small = results.regimes, is_small(results)
    clauses = [_clause(results, family, regimes) for family in results.families]
    bars = every_bar(results)
    met, undecided = sum(bar.met is True for bar in bars), sum(bar.met is None for bar in bars)
    verdict = "every bar is met" if met == len(bars) else f"{met} of {len(bars)} bars are met"
    verdict += f", {undecided} were not run in full" if undecided else ""
    start = f"In this small run, at {percent(HARDEST)}" if small else f"At {percent(HARDEST)}"
    beside = " and in brackets the paper’s best" if any(paper_best(results, f) for f in results.families) else ""
    which = f"trained {' / '.join(regimes)}{beside}"
    return f"{start} occlusion the best support-safe method has, {which}, {'; '.join(clauses)}: {verdict}."


def is_small(results: Results) -> bool:
    """Whether the run is less than the audit in full."""
    return bool(results.meta["quick"]) or results.meta["seeds"] < SEEDS


def _clause(results: Results, family: str, regimes: Sequence[str]) -> str:
    ours = [standing(results, family, regime).bars for regime in regimes]
    paper = paper_best(results, family)
    parts = []
    for k, metric in enumerate(ASKED):
        values = f"{metric.title} {' / '.join(bars[k].measured for bars in ours)}"
        parts.append(values + (f" ({shown(metric, paper[1][metric])})" if paper else ""))
    return f"on {family} " + ", ".join(parts[:-1]) + " and " + parts[-1]


def hardest_table(results: Results) -> str:
    """The four bars at the hardest level: the best support-safe method of each family and regime, the paper's below."""
    body = []
    for family in FAMILIES:
        for regime in REGIMES:
            method, bars = standing(results, family, regime)
            body.append([f"{family}, {regime}", method or ABSENT, *(_marked(bar) for bar in bars), _verdict(bars)])
        if paper := paper_best(results, family):
            numbers = [_quiet(shown(m, v)) for m, v in paper[1].items()]
            body.append([_quiet(f"{family}, paper’s best"), _quiet(paper[0]), *numbers, ""])
    head = [f"at {percent(HARDEST)} occlusion", "best support-safe method", *(_asked(m) for m in ASKED), "met"]
    return table_html(head, body, kind="bars")


def uniform_table(results: Results) -> str:
    """The bars at every level and on every cell, a line for each family and regime."""
    body = []
    for family, regime in product(FAMILIES, REGIMES):
        bars = [*uniform_bars(results, family, regime), bound_bar(results, family, regime)]
        body.append([f"{family}, {regime}", *(_marked(bar) for bar in bars), _verdict(bars)])
    head = [f"{OURS}, at every level", _asked(COV90), _asked(ECE)]
    head += [f"{name} <small>within one SEM of the best</small>" for name in ("NLL", "ESS/N")]
    head += ["certificate <small>all methods, no cell above its bound</small>", "met"]
    return table_html(head, body, kind="bars uniform")


def _asked(metric: Metric) -> str:
    return f"{metric.title} <small>{limit(metric)}</small>"


def _marked(bar: Bar) -> str:
    text = f"<span class='no'>{escape(bar.measured)}</span>" if bar.met is False else escape(bar.measured)
    return text + (f"<br><small>{escape(bar.note)}</small>" if bar.note else "")


def _verdict(bars: Sequence[Bar]) -> str:
    if any(bar.met is False for bar in bars):
        return f"<b class='no'>no</b> <small>{sum(bar.met is True for bar in bars)} of {len(bars)}</small>"
    if all(bar.met for bar in bars):
        return "yes"
    return "not run" if all(bar.measured == ABSENT for bar in bars) else "not run in full"


def _quiet(text: str) -> str:
    return f"<span class='paper'>{text}</span>"
