"""Modes in other conditions (noise, rates, few logs): ours beside the best peer, from rows that name a condition."""

from collections.abc import Sequence
from html import escape
from statistics import fmean
from typing import NamedTuple

from vhydro.report.charts import figure
from vhydro.report.page import table_html
from vhydro_audits.pages import modes_figures as figures
from vhydro_audits.pages.frame import Claim
from vhydro_audits.pages.modes_figures import CONFIGURATION, LIT
from vhydro_audits.pages.results import Record, Results
from vhydro_audits.pages.tables import mark
from vhydro_audits.spec import MODES, Metric

ARI, CHANGES = MODES.metric("ari"), MODES.metric("change_point_f1")
CLEAN = (None, "", "clean")  # conditions that are none
AUTO = "auto"


class Pair(NamedTuple):
    """Ours and the best peer in one condition and family."""

    condition: str
    family: str
    ours: float
    peer: tuple[str, float] | None

    @property
    def side(self) -> int | None:
        """1 where ours is ahead, 0 level, −1 behind; None without a peer."""
        return None if self.peer is None else (self.ours > self.peer[1]) - (self.ours < self.peer[1])


def conditions_claim(results: Results) -> Claim | None:
    """Ours beside the best peer by condition and family, where rows of other conditions were written."""
    pairs = condition_pairs(results)
    if not pairs:
        return None
    sides = [pair.side for pair in pairs if pair.side is not None]
    words = (
        f"Under noise, other rates, few logs or a clumsy hand, ours is ahead of the best peer in {sides.count(1)} of "
        f"{len(sides)} pairs of condition and family, level in {sides.count(0)} and behind in {sides.count(-1)}."
    )
    panels = figures.condition_panels([(p.condition, p.family, p.ours, p.peer) for p in pairs], ARI)
    picture = figure(panels, "our ARI and the best peer’s in every condition", keys=figures.TASK_KEYS[:3],
                     name="by-condition")  # fmt: skip
    more = {"Change points in the same conditions": condition_table(condition_pairs(results, CHANGES.key), CHANGES)}
    return Claim("Away from a clean log", "Conditions", words, condition_table(pairs, ARI), picture, more,
                 "Peers have the same channels and the same absence of labels.")  # fmt: skip


def condition_pairs(results: Results, key: str = ARI.key) -> list[Pair]:
    """Every condition and family with a number of ours, clean logs first; none without another condition.

    Rows need a `condition`; families, methods and readings may be any. Ours is `auto` where a condition has it.
    """
    rows = [r for r in results.aside if r.get("condition") not in CLEAN and r.get(key) is not None]
    if any(r.get("labels") == CONFIGURATION for r in rows):
        rows = [r for r in rows if r.get("labels") == CONFIGURATION]
    if not rows:
        return []
    clean = [r | {"condition": "clean", "reading": None} for r in results.rows
             if r["labels"] == CONFIGURATION and r["occlusion"] == LIT and r.get(key) is not None]  # fmt: skip
    groups: dict[tuple[str, str], list[Record]] = {}
    for row in [*clean, *rows]:
        chosen = ", reading chosen by labels" if row.get("reading") == "validation" else ""
        groups.setdefault((f"{row['condition']}{chosen}", str(row.get("family", "all"))), []).append(row)
    found = [(*place, _ours_and_peer(some, key)) for place, some in groups.items()]
    pairs = [Pair(condition, family, *both) for condition, family, both in found if both is not None]
    names = [*MODES.families]
    return sorted(pairs, key=lambda p: names.index(p.family) if p.family in names else len(names))


def _ours_and_peer(rows: Sequence[Record], key: str) -> tuple[float, tuple[str, float] | None] | None:
    """Our number and the best peer's: the mean over all tasks or, where there is none, that of its tasks."""
    means: dict[str, float] = {}
    for method in dict.fromkeys(str(r.get("method")) for r in rows):
        mine = [r for r in rows if str(r.get("method")) == method]
        whole = [float(r[key]) for r in mine if r.get("task") is None]
        means[method] = whole[0] if whole else fmean(float(r[key]) for r in mine)
    own = {m.key for m in MODES.methods if m.kind != "peer"}
    peers = {m: v for m, v in means.items() if m not in own}
    ours = next((means[m] for m in (AUTO, MODES.ours) if m in means), None)
    best = max(peers, key=lambda m: peers[m]) if peers else None
    return None if ours is None else (ours, None if best is None else (best, peers[best]))


def condition_table(pairs: Sequence[Pair], metric: Metric) -> str:
    """Conditions down, families across: our number, and below it the best peer’s and who is ahead."""
    families = [*dict.fromkeys(p.family for p in pairs)]
    there = {(p.condition, p.family): p for p in pairs}
    body = [
        [escape(condition), *(_condition_cell(there.get((condition, family)), metric) for family in families)]
        for condition in dict.fromkeys(p.condition for p in pairs)
    ]
    caption = f"{metric.title}: ours, and below it the best peer"
    return table_html(["", *map(escape, families)], body, caption=caption) if body else ""


def _condition_cell(pair: Pair | None, metric: Metric) -> str:
    if pair is None:
        return "–"
    text = f"<b>{metric.text(pair.ours)}</b>"
    if pair.peer is None or pair.side is None:
        return text
    return f"{text}<br>{mark(pair.side, pair.peer[0])} <small>{metric.text(pair.peer[1])}</small>"
