"""The support audit in tables and words: every method beside the paper's, and whether branches are lost."""

from collections.abc import Sequence
from html import escape
from math import hypot
from typing import NamedTuple

from vhydro.report.page import table_html
from vhydro.report.support_bars import is_small
from vhydro.report.support_results import (
    ADAPTIVE,
    BEYOND,
    HARDEST,
    METHODS,
    METRICS,
    NLL,
    NO_SUPPORT,
    OURS,
    PLAIN,
    SEEDS,
    SMOOTH,
    TWO_SIDED,
    Metric,
    Place,
    Results,
    Row,
    merit,
    percent,
    shown,
)

SHARED = {OURS: TWO_SIDED}  # methods that run the fit of another
HARD_LEVELS = (0.75, 0.9)  # where the paper's no-support and smooth collapse
COLLAPSE = 1.0  # nats per channel above adaptive; the paper's smallest gap at the hard levels is 2.6
CERTAIN = 3.0  # standard errors of the difference


class Block(NamedTuple):
    """Rows that are compared with each other, one for each method, under one name."""

    name: str
    rows: list[Row]


def caveats(results: Results) -> str:
    """How large the run was, how many fits diverged, and whether every row of the paper's has ours beside it."""
    tasks = [f"{family}: {', '.join(results.tasks(family)) or 'no task of its own'}" for family in results.families]
    words = f"{results.meta['seeds']} seeds, {len(results.cells):,} cells; {'; '.join(tasks)}."
    if is_small(results):
        words = f"This is a small run: the audit in full has {SEEDS} seeds and every task, level and method. {words}"
    beside = [row for (_, task), row in results.rows.items() if task is None and row.published]
    lacking = sum(row.numbers[metric.key] is None for row in beside for metric in METRICS)
    gaps = f"{lacking} of their numbers are missing" if lacking else "none of their numbers is missing"
    return f"{words} {_diverged_words(results)} {len(beside)} rows stand beside one of the paper’s; {gaps}."


def _diverged_words(results: Results) -> str:
    """How many fits diverged in training; cells of one fit, whatever their level and intervals, count once."""
    fits = {
        (c.place.family, c.task, c.place.regime, SHARED.get(c.place.method, c.place.method), c.seed): c.diverged
        for c in results.cells
    }
    return f"{sum(fits.values()) or 'None'} of the {len(fits):,} fits diverged in training."


# --- every method beside the paper's ------------------------------------------------------------------------


def level_blocks(results: Results, family: str, regime: str) -> list[Block]:
    """A block for each occlusion level of one family and regime."""
    return [_block(results, percent(o), Place(family, regime, o, "")) for o in results.levels(family, regime)]


def task_blocks(results: Results, family: str, regime: str) -> list[Block]:
    """A block for each task at the hardest level, with the paper's name for it where that is another."""
    place = Place(family, regime, HARDEST, "")
    found = [_block(results, task, place, task) for task in results.tasks(family)]
    return [Block(_with_paper_name(b), b.rows) for b in found if b.rows]


def _block(results: Results, name: str, place: Place, task: str | None = None) -> Block:
    rows = [results.rows.get((place._replace(method=m.key), task)) for m in METHODS]
    return Block(escape(name), [row for row in rows if row is not None])


def _with_paper_name(block: Block) -> str:
    theirs = {row.published["task"] for row in block.rows if row.published and row.published.get("task")}
    other = sorted(name for name in theirs if name != block.name)
    return block.name + "".join(f"<br><small>paper: {escape(name)}</small>" for name in other)


def best_of(block: Block, metric: Metric) -> list[str]:
    """The methods of the block that are best in a metric; all of them where they are level."""
    values = {r.place.method: v for r in block.rows if (v := r.numbers[metric.key]) is not None}
    top = max((merit(metric, v) for v in values.values()), default=0.0)
    return [method for method, v in values.items() if merit(metric, v) == top]


def rival(block: Block, row: Row, metric: Metric) -> float | None:
    """The paper's number for the same method, or for a method it does not have its best of the block."""
    if row.place.method not in BEYOND:
        return None if row.published is None else row.published.get(metric.key)
    theirs = [r.published.get(metric.key) for r in block.rows if r.published]
    return max((v for v in theirs if v is not None), key=lambda v: merit(metric, v), default=None)


def behind(block: Block, row: Row, metric: Metric) -> bool | None:
    """Whether our number is worse than its rival of the paper; None without a contest."""
    ours, theirs = row.numbers[metric.key], rival(block, row, metric)
    return None if ours is None or theirs is None else merit(metric, ours) < merit(metric, theirs)


def contest_words(blocks: Sequence[Block]) -> str:
    """How often ours is behind the paper's number, and in which metrics."""
    found = [(m, behind(b, row, m)) for b in blocks for row in b.rows for m in METRICS]
    contests = [(metric, lost) for metric, lost in found if lost is not None]
    if not contests:
        return "The paper has no numbers to stand beside these."
    counts = {m: (sum(lost for k, lost in contests if k is m), sum(k is m for k, _ in contests)) for m in METRICS}
    worse = [f"{metric.title} {lost} of {of}" for metric, (lost, of) in counts.items() if lost]
    total = sum(lost for lost, _ in counts.values())
    return f"Behind the paper in {total} of {len(contests)} numbers" + (f": {', '.join(worse)}." if worse else ".")


def block_table(blocks: Sequence[Block], name: str, wide: int = 8) -> str:
    """A line for each method, block by block: our number, and the paper's next to it; names have `wide` % of it."""
    top = "".join(f"<th colspan='2'>{m.title}</th>" for m in METRICS)
    under = "<th>ours</th><th>paper</th>" * len(METRICS)
    head = f"<thead><tr><th rowspan='2'>{name}</th><th rowspan='2'>method</th>{top}</tr><tr>{under}</tr></thead>"
    widths = [f"{width}%" for width in (wide, 14, *[(86 - wide) / 2 / len(METRICS)] * 2 * len(METRICS))]
    columns = "".join(f"<col style='width:{width}'>" for width in widths)
    body = "".join(f"<tbody>{_lines(block)}</tbody>" for block in blocks)
    return f"<div class='wide'><table class='blocks'><colgroup>{columns}</colgroup>{head}{body}</table></div>"


def _lines(block: Block) -> str:
    best = {metric: best_of(block, metric) for metric in METRICS}
    lines = []
    for k, row in enumerate(block.rows):
        first = f"<th rowspan='{len(block.rows)}'>{block.name}</th>" if k == 0 else ""
        pairs = "".join(_pair(block, row, metric, row.place.method in best[metric]) for metric in METRICS)
        lines.append(f"<tr>{first}<td>{row.place.method}</td>{pairs}</tr>")
    return "".join(lines)


def _pair(block: Block, row: Row, metric: Metric, best: bool) -> str:
    spread, theirs = row.numbers.get(f"{metric.key}_sem"), (row.published or {}).get(metric.key)
    text = shown(metric, row.numbers[metric.key])
    text = f"<b>{text}</b>" if best else text
    mark = " class='no'" if behind(block, row, metric) else ""
    note = "" if spread is None else f" title='± {spread:.2g} (SEM)'"
    return f"<td{mark}{note}>{text}</td><td class='paper'>{'' if theirs is None else shown(metric, theirs)}</td>"


# --- branch loss --------------------------------------------------------------------------------------------


def collapses(results: Results, place: Place) -> bool | None:
    """Whether a method's NLL is far above adaptive's, beyond sampling error; None without both numbers."""
    rival_place = place._replace(method=ADAPTIVE)
    ours, theirs = results.number(place, NLL.key), results.number(rival_place, NLL.key)
    if ours is None or theirs is None:
        return None
    errors = [results.number(p, f"{NLL.key}_sem") or 0.0 for p in (place, rival_place)]
    return ours - theirs > max(COLLAPSE, CERTAIN * hypot(*errors))


def loss_words(results: Results) -> str:
    """Whether branch loss happens in this run: the ablations in each regime, and where most is lost."""
    decided = {place: verdict for place in _ablations(results) if (verdict := collapses(results, place)) is not None}
    shift = {p: v for p, v in decided.items() if p.regime == "shift"}
    families = [_family_words(results, [p for p in shift if p.family == family]) for family in results.families]
    others = [_regime_words(regime, decided) for regime in _every_regime(results) if regime != "shift"]
    return " ".join(word for word in (_verdict(shift), *families, *others, _most_lost(results)) if word)


def _every_regime(results: Results) -> list[str]:
    return [*dict.fromkeys((*results.regimes, PLAIN))]


def _regime_words(regime: str, decided: dict[Place, bool]) -> str:
    """How many of the ablations collapse in another regime, by method."""
    here = {place: verdict for place, verdict in decided.items() if place.regime == regime}
    methods = dict.fromkeys(place.method for place in here)
    counts = [(m, [verdict for place, verdict in here.items() if place.method == m]) for m in methods]
    words = " and ".join(f"{m} in {sum(found)} of {len(found)} cases" for m, found in counts)
    return f"In {regime}, {words} collapse{'s' if len(counts) == 1 else ''}." if words else ""


def _ablations(results: Results) -> list[Place]:
    families, regimes = results.families, _every_regime(results)
    return [Place(f, r, o, m) for f in families for r in regimes for o in HARD_LEVELS for m in (NO_SUPPORT, SMOOTH)]


def _verdict(decided: dict[Place, bool]) -> str:
    if not decided:
        return "This run cannot say: it has no NLL of adaptive beside no-support or smooth in shift at 75 or 90 %."
    levels = " and ".join(percent(level) for level in sorted({place.occlusion for place in decided}))
    methods = " and ".join(dict.fromkeys(place.method for place in decided))
    where = f"in shift at {levels} occlusion"
    if all(decided.values()):
        return f"Yes: {where}, {methods} collapse, as the paper’s do."
    if any(decided.values()):
        return (
            f"In part: {where}, {methods} collapse in {sum(decided.values())} of {len(decided)} of the paper’s cases."
        )
    return f"No: {where}, {methods} do not collapse on this data, unlike the paper’s."


def _family_words(results: Results, places: Sequence[Place]) -> str:
    """The NLL of the ablations and of adaptive at each level of one family."""
    parts = []
    for level in dict.fromkeys(place.occlusion for place in places):
        at = [place for place in places if place.occlusion == level]
        names = [*at, at[0]._replace(method=ADAPTIVE)]
        values = ", ".join(f"{p.method} {shown(NLL, results.number(p, NLL.key))}" for p in names)
        parts.append(f"at {percent(level)} {values}")
    return f"NLL on {places[0].family}: {'; '.join(parts)}." if places else ""


def _most_lost(results: Results) -> str:
    rows = {place: share for place, task in results.rows if task is None and (share := results.number(place, "lost"))}
    if not rows:
        return "No reading of any method was lost."
    worst = max(rows, key=lambda place: rows[place])
    where = f"{worst.method} on {worst.family}, {worst.regime}, {percent(worst.occlusion)} occlusion"
    return f"The largest share of hidden readings with no particle near is {100 * rows[worst]:.3g} %: {where}."


def loss_table(results: Results) -> str:
    """NLL and lost share of the ablations and of the gate at the hard levels, beside the paper's NLL."""
    methods = [m.key for m in results.methods if m.key in (ADAPTIVE, NO_SUPPORT, SMOOTH, TWO_SIDED)]
    regimes = _every_regime(results)
    places = [Place(f, r, o, "") for f in results.families for r in regimes for o in HARD_LEVELS]
    body = [_loss_line(results, place, methods) for place in places if place.occlusion in results.levels(*place[:2])]
    head = ["NLL <small>(paper’s), share lost; red: collapse</small>", *(escape(m) for m in methods)]
    return table_html(head, body, kind="bars") if body else ""


def _loss_line(results: Results, place: Place, methods: Sequence[str]) -> list[str]:
    line = [f"{place.family}, {place.regime}, {percent(place.occlusion)}"]
    for at in (place._replace(method=method) for method in methods):
        row, lost = results.rows.get((at, None)), results.number(at, "lost")
        paper = (row.published or {}).get(NLL.key) if row else None
        mark = " class='no'" if at.method in (NO_SUPPORT, SMOOTH) and collapses(results, at) else ""
        beside = "" if paper is None else f" <small>({shown(NLL, paper)})</small>"
        share = "" if lost is None else f" · {100 * lost:.2f} %"
        line.append(f"<span{mark}>{shown(NLL, results.number(at, NLL.key))}</span>{beside}{share}")
    return line
