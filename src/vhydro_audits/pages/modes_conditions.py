"""The modes audit away from a clean log: ours beside the best peer by condition and family."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from vhydro.report.charts import figure
from vhydro.report.page import table_html
from vhydro_audits.pages import modes_figures as figures
from vhydro_audits.pages.frame import Claim
from vhydro_audits.pages.modes_figures import CONFIGURATION, place_of
from vhydro_audits.pages.results import Results
from vhydro_audits.pages.tables import Line, best_peer, mark
from vhydro_audits.spec import MODES, Metric

ARI, CHANGES = MODES.metric("ari"), MODES.metric("change_point_f1")


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
    more = {
        "The same as a picture": picture,
        "Change points in the same conditions": condition_table(condition_pairs(results, CHANGES.key), CHANGES),
    }
    return Claim("Away from a clean log", "Conditions", words, condition_table(pairs, ARI), more=more,
                 how="Peers have the same channels and the same absence of labels.")  # fmt: skip


def condition_pairs(results: Results, key: str = ARI.key) -> list[Pair]:
    """Every condition and family with a number of ours, clean logs first; none where there is no other condition."""
    families, conditions = results.present("family"), results.present("condition")
    metric, out = MODES.metric(key), []
    for condition in conditions if len(conditions) > 1 else []:
        for family in families:
            line = Line(condition, place_of(family, CONFIGURATION, condition))
            ours = results.number(line.place, MODES.ours, key)
            out += [] if ours is None else [Pair(condition, family, ours, best_peer(results, line, metric))]
    return out


def condition_table(pairs: Sequence[Pair], metric: Metric) -> str:
    """Conditions down, families across: our number, and below it the best peer’s and who is ahead."""
    families = [f for f in MODES.families if any(p.family == f for p in pairs)]
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
