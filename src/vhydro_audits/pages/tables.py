"""The one table of all result pages: methods beside each other, the paper's number next to ours, line by line."""

from collections.abc import Sequence
from html import escape
from math import hypot
from typing import NamedTuple

from vhydro.report.page import Score, folded, table_html
from vhydro_audits.pages.results import Place, Results
from vhydro_audits.spec import Metric

NAMED = 6  # lines that are named in a sentence


class Line(NamedTuple):
    """A line of a table: its name, the place it is of, and a task or None for all."""

    name: str
    place: Place
    task: str | None = None


class Standing(NamedTuple):
    """Ours against the best rival in one line: 1 ahead, 0 level, −1 behind."""

    side: int
    rival: str
    theirs: float
    ours: float
    beyond: bool | None  # the difference exceeds one standard error of it; None where that is not known


def standing(results: Results, line: Line, metric: Metric) -> Standing | None:
    """How ours does in a line; None without two numbers to compare."""
    spec, place, task = results.spec, line.place, line.task
    ours, best = results.number(place, spec.ours, metric.key, task), results.best(place, metric, spec.rivals, task)
    if ours is None or best is None:
        return None
    gap = metric.merit(ours) - metric.merit(best[1])
    spreads = [results.number(place, m, f"{metric.key}_{spec.spread}", task) for m in (spec.ours, best[0])]
    known = [s for s in spreads if s is not None]
    beyond = abs(gap) > hypot(*known) if len(known) == 2 and spec.spread == "sem" else None
    return Standing((gap > 0) - (gap < 0), *best, ours, beyond)


def standing_words(results: Results, lines: Sequence[Line], metric: Metric) -> tuple[str, str]:
    """How often ours is ahead of all others, and where it is not: `PushCube (hmm 0.97 against 0.95, …)`."""
    found = [(line, s) for line in lines if (s := standing(results, line, metric))]
    if not found:
        return "", ""
    ahead, level, behind = (sum(s.side == side for _, s in found) for side in (1, 0, -1))
    words = f"{results.spec.ours} is ahead of all that are not ours in {ahead} of {len(found)} lines"
    words += f", level in {level}" * bool(level) + f", behind in {behind}" * bool(behind)
    lost = [f"{line.name} ({_against(metric, s)})" for line, s in found if s.side < 0]
    more = f"; and {len(lost) - NAMED} more" if len(lost) > NAMED else ""
    return words, f"Behind in {'; '.join(lost[:NAMED])}{more}." if lost else ""


def _against(metric: Metric, s: Standing) -> str:
    beyond = {None: "", True: ", beyond one SEM", False: ", within one SEM"}[s.beyond]
    return f"{s.rival} {metric.text(s.theirs)} against {metric.text(s.ours)}{beyond}"


def paper_number(results: Results, line: Line, method: str, metric: Metric) -> float | None:
    """The paper's number to compare with: for the same method, or its best where it has no such method."""
    same = results.paper(line.place, method, metric.key, line.task)
    if same is not None or any(results.paper(line.place, method, m.key, line.task) for m in results.spec.metrics):
        return same
    kind = next(m.kind for m in results.spec.methods if m.key == method)
    every = [m.key for m in results.spec.methods]
    best = results.best(line.place, metric, every, line.task, paper=True) if kind in ("ours", "variant") else None
    return None if best is None else best[1]


def is_worse(results: Results, line: Line, method: str, metric: Metric) -> bool | None:
    """Whether our number is worse than the paper's; None without both."""
    ours = results.number(line.place, method, metric.key, line.task)
    theirs = paper_number(results, line, method, metric)
    if ours is None or theirs is None or not metric.ranked:
        return None
    return metric.merit(ours) < metric.merit(theirs)


def metric_table(results: Results, metric: Metric, lines: Sequence[Line], kind: str = "dense") -> str:
    """One metric, a column for each method: the best of a line bold, what is worse than the paper's red."""
    head = ["", *(escape(m.name) for m in results.methods)]
    return table_html(head, [[escape(line.name), *_cells(results, metric, line)] for line in lines], kind=kind)


def _cells(results: Results, metric: Metric, line: Line) -> list[str]:
    methods = [m.key for m in results.methods]
    best = results.best(line.place, metric, methods, line.task)
    return [number_html(results, metric, line, m, best[1] if best else None) for m in methods]


def number_html(results: Results, metric: Metric, line: Line, method: str, best: float | None = None) -> str:
    """Our number with its spread on hovering, and the paper's for the same method next to it."""
    row = results.row(line.place, method, line.task) or {}
    value, spread, spec = row.get(metric.key), row.get(f"{metric.key}_{results.spec.spread}"), results.spec
    text = metric.text(value) + ("†" if row.get(f"{metric.key}_missing") and value is not None else "")
    if value is not None and best is not None and metric.merit(value) == metric.merit(best):
        text = f"<b>{text}</b>"
    mark = " class='wrong'" if is_worse(results, line, method, metric) else ""
    note = "" if spread is None else f" title='± {spread:.2g} ({spec.spread.upper()})'"
    theirs = results.paper(line.place, method, metric.key, line.task)
    return f"<span{mark}{note}>{text}</span>" + ("" if theirs is None else f"<i>{metric.text(theirs)}</i>")


def mark(better: float | int, whom: str) -> str:
    """`▲ better than hmm`: never by colour alone."""
    if better > 0:
        return f"<span class='verdict good'>▲ better than {escape(whom)}</span>"
    if better < 0:
        return f"<span class='verdict wrong'>▼ worse than {escape(whom)}</span>"
    return f"<span class='verdict'>= level with {escape(whom)}</span>"


def best_peer(results: Results, line: Line, metric: Metric) -> tuple[str, float] | None:
    """The best peer's name and number; where an audit has no peers, the best of all that are not ours."""
    spec = results.spec
    peers = [m.key for m in spec.methods if m.kind == "peer"] or spec.rivals
    found = results.best(line.place, metric, peers, line.task)
    return None if found is None else (next(m.name for m in spec.methods if m.key == found[0]), found[1])


def verdict(results: Results, line: Line, metric: Metric) -> str:
    """Ours against the paper's number and the best peer's, in words."""
    ours = results.number(line.place, results.spec.ours, metric.key, line.task)
    if ours is None or not metric.ranked:
        return ""
    theirs, peer = paper_number(results, line, results.spec.ours, metric), best_peer(results, line, metric)
    beside = [("the paper", theirs)] * (theirs is not None) + ([peer] if peer else [])
    gaps = [(whom, metric.merit(ours) - metric.merit(v)) for whom, v in beside if v is not None]
    sides = [(whom, (gap > 0) - (gap < 0)) for whom, gap in gaps]
    if len(sides) == 2 and sides[0][1] == sides[1][1]:
        return mark(sides[0][1], "both")
    return ", ".join(mark(side, whom) for whom, side in sides)


def scores_of(results: Results, line: Line, metric: Metric, what: str = "") -> list[Score]:
    """Ours, the paper's and the best peer's number beside each other."""
    ours = results.number(line.place, results.spec.ours, metric.key, line.task)
    theirs, peer = paper_number(results, line, results.spec.ours, metric), best_peer(results, line, metric)
    if ours is None:
        return []
    found = [Score(f"{what or metric.title}: ours", metric.text(ours), verdict(results, line, metric), True)]
    found += [Score("the paper’s", metric.text(theirs))] if theirs is not None else []
    kind = "best peer" if any(m.kind == "peer" for m in results.spec.methods) else "best of the others"
    return found + ([Score(f"{kind}: {peer[0]}", metric.text(peer[1]))] if peer else [])


def claim_table(results: Results, lines: Sequence[Line], metrics: Sequence[Metric], caption: str = "") -> str:
    """Line by line our number, the paper's, the best peer's, and whether ours is better or worse."""
    pairs = [(line, metric) for line in lines for metric in metrics]
    there = [(n, m) for n, m in pairs if results.number(n.place, results.spec.ours, m.key, n.task) is not None]
    if not there:
        return ""
    ours = next(m.name for m in results.spec.methods if m.key == results.spec.ours)
    peers = "best peer" if any(m.kind == "peer" for m in results.spec.methods) else "best of the others"
    published = any(paper_number(results, line, results.spec.ours, metric) is not None for line, metric in there)
    alone = len(lines) == 1
    body = [_claim(results, line, metric, alone, len(metrics) > 1, published) for line, metric in there]
    head = ["", f"ours<br>({escape(ours)})", *["paper"] * published, peers, "ours is"]
    title = [lines[0].name] * alone + [caption] * bool(caption)
    title += [] if published else ["the paper has no numbers of this kind"]
    return table_html(head, body, kind="claims", caption="; ".join(title))


def _claim(results: Results, line: Line, metric: Metric, alone: bool, several: bool, published: bool) -> list[str]:
    """One line of a table of claims."""
    spec = results.spec
    value = results.number(line.place, spec.ours, metric.key, line.task)
    theirs, peer = paper_number(results, line, spec.ours, metric), best_peer(results, line, metric)
    spread = results.number(line.place, spec.ours, f"{metric.key}_{spec.spread}", line.task)
    near = "" if spread is None else f" <small>± {spread:.2g}</small>"
    name = metric.title if alone else f"{line.name}, {metric.title}" if several else line.name
    beside = "–" if peer is None else f"{metric.text(peer[1])}<br><small>{escape(peer[0])}</small>"
    beside = beside.replace("<br>", " ") if peer and len(peer[0]) < 14 else beside
    paper = [metric.text(theirs)] * published
    return [escape(name), f"<b>{metric.text(value)}</b>{near}", *paper, beside, verdict(results, line, metric)]


def folded_tables(results: Results, lines: Sequence[Line], metrics: Sequence[Metric]) -> str:
    """A folded table for each metric; what opens it says how ours stands in it and against the paper."""
    parts = []
    for metric in metrics:
        words, behind = standing_words(results, lines, metric)
        found = [is_worse(results, line, m.key, metric) for line in lines for m in results.methods]
        beside = [worse for worse in found if worse is not None]
        against = f"worse than the paper’s in {sum(beside)} of {len(beside)} numbers" if beside else ""
        said = "; ".join(w for w in (words, against) if w)
        note = f"<p class='quiet'>{escape(behind)}</p>" if behind else ""
        title = f"<b>{metric.title}</b>" + (f": {escape(said)}" if said else "")
        parts.append(folded(title, note + metric_table(results, metric, lines)))
    return "".join(parts)


def beside_table(results: Results, lines: Sequence[Line], metrics: Sequence[Metric]) -> str:
    """Ours line by line; below each number the paper's, and the best of all other methods that were run."""
    head = [results.spec.ours, *(escape(m.title) for m in metrics)]
    body = [[escape(line.name), *(_beside(results, line, metric) for metric in metrics)] for line in lines]
    return table_html(head, body)


def _beside(results: Results, line: Line, metric: Metric) -> str:
    found, value = standing(results, line, metric), results.number(line.place, results.spec.ours, metric.key, line.task)
    text = metric.text(value)
    small = "".join(f"<br><small>{escape(note)}</small>" for note in beside(results, line, metric))
    return (f"<b>{text}</b>" if found and found.side >= 0 else text) + small


def beside(results: Results, line: Line, metric: Metric, *, rest: bool = True) -> list[str]:
    """What stands beside our number: the paper's, the best peer's, and the best of the rest where that is better."""
    theirs, spec = paper_number(results, line, results.spec.ours, metric), results.spec
    names = {m.key: m.name for m in spec.methods}
    peers = [m.key for m in spec.methods if m.kind == "peer"]
    found = [results.best(line.place, metric, some, line.task) for some in (peers, spec.rivals)[: 1 + rest]]
    notes = [f"{names[best[0]]} {metric.text(best[1])}" for best in found if best]
    return ([] if theirs is None else [f"paper {metric.text(theirs)}"]) + [*dict.fromkeys(notes)]
