"""The modes audit in tables and words: every task with who is ahead, the paper's rows beside ours, and the readings."""

from collections import Counter
from collections.abc import Sequence
from html import escape
from math import hypot
from typing import NamedTuple

from vhydro.report.modes_results import (
    ARI,
    CHANGES,
    FURTHER,
    LIT,
    METHODS,
    METRICS,
    OURS,
    PROXY,
    READINGS,
    SIGHT,
    Metric,
    Place,
    Results,
    Row,
    shown,
)
from vhydro.report.support_results import percent

RIVALS = [m.key for m in METHODS if m.rival]
CONTESTED = (ARI, CHANGES)

# --- task by task -------------------------------------------------------------------------------------------


class Lead(NamedTuple):
    """The best rival on one task in one metric, where it is ahead of full (else None), and by how much."""

    task: str
    occlusion: float
    metric: Metric
    method: str | None = None
    theirs: float = 0.0
    ours: float = 0.0
    beyond: bool | None = None  # one standard error of the difference


def contests(results: Results, labels: str) -> list[Lead]:
    """Full against the best of its rivals, for each task, sight and metric with a number of both."""
    places = [(f, t, o, m) for m in CONTESTED for o in results.levels for f in results.families
              for t in results.tasks(f)]  # fmt: skip
    found = [_lead(results, Place(f, o, labels, OURS), t, m) for f, t, o, m in places]
    return [lead for lead in found if lead is not None]


def _lead(results: Results, place: Place, task: str, metric: Metric) -> Lead | None:
    ours = results.number(place, metric.key, task)
    others = {m: results.number(place._replace(method=m), metric.key, task) for m in RIVALS}
    values = {m: v for m, v in others.items() if v is not None}
    if ours is None or not values:
        return None
    best = max(values, key=lambda m: values[m])
    if values[best] <= ours:
        return Lead(task, place.occlusion, metric)
    errors = [results.number(place._replace(method=m), f"{metric.key}_sem", task) for m in (OURS, best)]
    known = [e for e in errors if e is not None]
    beyond = values[best] - ours > hypot(*known) if len(known) == len(errors) else None
    return Lead(task, place.occlusion, metric, best, values[best], ours, beyond)


def contest_words(results: Results, labels: str) -> str:
    """Where a rival is ahead of full, metric by metric, in full sight and half hidden; one sentence."""
    leads, parts = contests(results, labels), []
    for metric in CONTESTED:
        for level in results.levels:
            some = [lead for lead in leads if (lead.metric, lead.occlusion) == (metric, level)]
            behind = [lead for lead in some if lead.method is not None]
            where = f"{metric.title} {SIGHT.get(level, percent(level))}"
            if behind:
                parts.append(f"{where}, behind on {len(behind)} of {len(some)}: {', '.join(map(_lead_words, behind))}")
            elif some:
                parts.append(f"{where}, behind on none of {len(some)}")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else "No task has full beside another method."


def _lead_words(lead: Lead) -> str:
    sides = f"{lead.task} ({lead.method} {shown(lead.metric, lead.theirs)} against {shown(lead.metric, lead.ours)}"
    return sides + {None: "", True: ", beyond one SEM", False: ", within one SEM"}[lead.beyond] + ")"


def task_table(results: Results, labels: str) -> str:
    """ARI and change-point F1 of every method against one kind of label: a line for each task and sight."""
    methods = [m.key for m in results.methods]
    top = "".join(f"<th colspan='{len(methods)}'>{m.title}</th>" for m in CONTESTED)
    names = "".join(f"<th>{m.replace('-', '-<wbr>')}</th>" for m in methods)
    head = f"<tr><th rowspan='2'>task</th><th rowspan='2'>hidden</th>{top}</tr><tr>{names * len(CONTESTED)}</tr>"
    width = 2 + len(CONTESTED) * len(methods)
    body = []
    for family in results.families:
        body.append(f"<tbody class='family'><tr><th colspan='{width}'>{family}</th></tr></tbody>")
        body += [_task_lines(results, family, task, labels) for task in results.tasks(family)]
    return f"<div class='wide'><table class='blocks tasks'><thead>{head}</thead>{''.join(body)}</table></div>"


def _task_lines(results: Results, family: str, task: str, labels: str) -> str:
    lines = []
    for k, level in enumerate(results.levels):
        first = f"<th rowspan='{len(results.levels)}'>{escape(task)}</th>" if k == 0 else ""
        place = Place(family, level, labels, OURS)
        cells = "".join(_contest_cells(results, place, task, metric) for metric in CONTESTED)
        lines.append(f"<tr>{first}<td>{percent(level)}</td>{cells}</tr>")
    return f"<tbody>{''.join(lines)}</tbody>"


def _contest_cells(results: Results, place: Place, task: str, metric: Metric) -> str:
    """A cell for each method: the best bold, full red where a rival is ahead of it."""
    rows = {m.key: results.rows.get((place._replace(method=m.key), task)) for m in results.methods}
    lead = _lead(results, place, task, metric)
    best = _best([row for row in rows.values() if row is not None], metric)
    cells = []
    for method, row in rows.items():
        kinds = ["first"] * (not cells) + ["no"] * (method == OURS and lead is not None and lead.method is not None)
        cells.append(_number_cell(row, metric, bold=method in best, kind=" ".join(kinds)))
    return "".join(cells)


def _best(rows: Sequence[Row], metric: Metric) -> list[str]:
    """The methods that are best in a metric; all of them where they are level, none of one without a good end."""
    values = {row.place.method: metric.good * v for row in rows if (v := row.numbers.get(metric.key)) is not None}
    return [method for method, v in values.items() if metric.good and v == max(values.values())]


def _number_cell(row: Row | None, metric: Metric, *, bold: bool, kind: str = "") -> str:
    value, spread = (None, None) if row is None else map(row.numbers.get, (metric.key, f"{metric.key}_sem"))
    text = f"<b>{shown(metric, value)}</b>" if bold else shown(metric, value)
    note = "" if spread is None else f" title='± {spread:.2g} (SEM)'"
    mark = f" class='{kind}'" if kind else ""
    return f"<td{mark}{note}>{text}</td>"


# --- beside the paper ---------------------------------------------------------------------------------------


class Block(NamedTuple):
    """Rows that are compared with each other, one for each method, under one name."""

    name: str
    rows: list[Row]


def family_blocks(results: Results, labels: str, occlusion: float) -> list[Block]:
    """A block for each family, against one kind of label and in one sight."""
    return _filled([_block(results, f, Place(f, occlusion, labels, OURS)) for f in results.families])


def published_blocks(results: Results) -> list[Block]:
    """A block for each task that the paper has a row of."""
    places = [(Place(f, LIT, PROXY, OURS), t) for f in results.families for t in results.tasks(f)]
    blocks = _filled([_block(results, escape(task), place, task) for place, task in places])
    return [block for block in blocks if any(row.published for row in block.rows)]


def _block(results: Results, name: str, place: Place, task: str | None = None) -> Block:
    rows = [results.rows.get((place._replace(method=m.key), task)) for m in results.methods]
    return Block(name, [row for row in rows if row is not None])


def _filled(blocks: Sequence[Block]) -> list[Block]:
    return [block for block in blocks if block.rows]


def block_table(blocks: Sequence[Block]) -> str:
    """A line for each method, block by block; where the paper has rows its number stands next to ours."""
    beside = any(row.published for block in blocks for row in block.rows)
    over = "".join(f"<th{' colspan=2' if beside else ''}>{m.title}</th>" for m in METRICS)
    over += "".join(f"<th{' rowspan=2' if beside else ''}>{m.title}</th>" for m in FURTHER)
    under = f"<tr>{'<th>ours</th><th>paper</th>' * len(METRICS)}</tr>" if beside else ""
    span = " rowspan=2" if beside else ""
    head = f"<thead><tr><th{span}></th><th{span}>method</th>{over}</tr>{under}</thead>"
    body = "".join(f"<tbody>{_block_lines(block, beside)}</tbody>" for block in blocks)
    return f"<div class='wide'><table class='blocks'>{head}{body}</table></div>"


def _block_lines(block: Block, beside: bool) -> str:
    best = {metric: _best(block.rows, metric) for metric in (*METRICS, *FURTHER)}
    lines = []
    for k, row in enumerate(block.rows):
        first = f"<th rowspan='{len(block.rows)}'>{block.name}</th>" if k == 0 else ""
        cells = "".join(_pair(row, metric, row.place.method in best[metric], beside) for metric in METRICS)
        cells += "".join(_number_cell(row, m, bold=row.place.method in best[m]) for m in FURTHER)
        lines.append(f"<tr>{first}<td>{row.place.method}</td>{cells}</tr>")
    return "".join(lines)


def _pair(row: Row, metric: Metric, bold: bool, beside: bool) -> str:
    """Our number, red where it is worse than the paper's for the same method, and the paper's."""
    ours, theirs = row.numbers.get(metric.key), (row.published or {}).get(metric.key)
    worse = ours is not None and theirs is not None and ours < theirs
    cell = _number_cell(row, metric, bold=bold, kind="no" if worse else "")
    return cell + (f"<td class='paper'>{'' if theirs is None else shown(metric, theirs)}</td>" if beside else "")


# --- readings -----------------------------------------------------------------------------------------------


def reading_table(results: Results) -> str:
    """How often each reading was chosen, and the scores as read and of the modes as they are, in full sight."""
    pairs = [(family, metric) for family in results.families for metric in CONTESTED]
    top = "".join(f"<th colspan='2'>{f}<br>{m.title}</th>" for f, m in pairs)
    under = "<th>read</th><th>as is</th>" * len(pairs)
    chosen = "".join(f"<th rowspan='2'>{reading}</th>" for reading in READINGS)
    head = f"<thead><tr><th rowspan='2'></th><th rowspan='2'>method</th>{chosen}{top}</tr><tr>{under}</tr></thead>"
    body = "".join(f"<tbody>{_reading_lines(results, labels, pairs)}</tbody>" for labels in results.labels)
    return f"<div class='wide'><table class='blocks'>{head}{body}</table></div>"


def _reading_lines(results: Results, labels: str, pairs: Sequence[tuple[str, Metric]]) -> str:
    lines = []
    for k, method in enumerate(results.methods):
        first = f"<th rowspan='{len(results.methods)}'>{labels}</th>" if k == 0 else ""
        there = [c for c in results.cells if c.place[1:] == (LIT, labels, method.key)]
        counts = Counter(c.reading for c in there)
        cells = "".join(f"<td>{counts[reading] or '·'}</td>" for reading in READINGS)
        for family, metric in pairs:
            row = results.rows.get((Place(family, LIT, labels, method.key), None))
            raw = None if row is None else row.numbers.get(f"raw_{metric.key}")
            cells += _number_cell(row, metric, bold=False) + f"<td class='paper'>{shown(metric, raw)}</td>"
        lines.append(f"<tr>{first}<td>{method.key}</td>{cells}</tr>")
    return "".join(lines)
