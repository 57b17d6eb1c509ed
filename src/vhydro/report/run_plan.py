"""The plan of a run on its page: the actions, what they are expected to cost, and what is proven of their risk."""

from collections.abc import Mapping
from html import escape
from typing import Any

from vhydro.report.charts import Panel, figure, straight
from vhydro.report.page import Score, scores_html, terms_html
from vhydro.report.words import number

WIDE = 521.0  # of two panels beside each other


def plan_html(plan: Mapping[str, Any]) -> str:
    """The plan: numbers, proof and a picture of every input."""
    proof = plan.get("proof")
    scores = [
        Score("expected cost", number("{:.3g}", plan["cost"])),
        Score("of the model’s own paths fail", f"{plan['risk']:.1%}"),
    ]
    if proof:
        words = "proven" if proof["certified"] else "<span class='wrong'>not proven</span>"
        scores.append(
            Score("chance of failure at most", number("{:.1%}", proof["bound"]), words, ours=bool(proof["certified"]))
        )
    return scores_html(scores) + _proof(proof) + _actions(plan)


def _proof(proof: Mapping[str, Any] | None) -> str:
    if not proof:
        return (
            "<p class='quiet'>Nothing was proven. <code>--delta 0.1</code> asks whether the plan fails with a chance "
            "of at most 10 %.</p>"
        )
    head = "Proven" if proof["certified"] else "Not proven"
    because = f", because {escape(str(proof['why']))}" if proof.get("why") else ""
    risk, margin, shift = (number("{:.3f}", proof[k]) for k in ("risk", "margin", "shift"))
    words = (
        f"<p><b>{head}</b> at confidence {1 - proof['beta']:.4g}, for {escape(str(proof['speaks_of']))}{because}. "
        f"{risk} of fresh particles failed, {margin} is left open by their number, {shift} by how far the model may be "
        f"from the truth ({escape(str(proof['how']))}).</p>"
    )
    assumes = {f"if ({i + 1})": str(a) for i, a in enumerate(proof.get("assumes", ()))}
    return words + (terms_html(assumes) if assumes else "")


def _actions(plan: Mapping[str, Any]) -> str:
    actions, names = plan.get("actions") or [], plan.get("inputs") or []
    if not actions:
        return ""
    dt = float(plan["dt"]) or 1.0
    panels = []
    for i, name in enumerate(names):
        values = [float(row[i]) for row in actions]
        times = [k * dt for k in range(len(values) + 1) for _ in (0, 1)][1:-1]
        held = [v for v in values for _ in (0, 1)]
        panel = Panel(
            straight([0.0, dt * len(values)], "s"),
            straight([*values, 0.0]),
            str(name),
            width=WIDE,
            height=190.0,
        )
        panels.append(panel.rule("y", 0.0).line(times, held, "#1d4ed8", name=str(name), width=2.0))
    of = (
        f"From where the log {escape(str(plan.get('log', '')))} ends, for the task {escape(str(plan.get('task', '')))}."
    )
    return figure(panels, "actions over time", caption=of)
