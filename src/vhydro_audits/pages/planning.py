"""The page of the planning audit: what was proven of plans on known systems, and what happened to them."""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from vhydro.report.charts import Axis, Key, Number, Panel, figure, straight
from vhydro.report.page import Score, table_html
from vhydro_audits.pages.frame import AuditPage, Card, Claim, footer_words, write_shell
from vhydro_audits.pages.planning_maniskill import film_claim, films, maniskill_claims
from vhydro_audits.pages.tables import mark
from vhydro_audits.spec import percent, written
from vhydro_audits.store import read_cells
from vhydro_audits.summary import published

Row = dict[str, Any]
PARTS = {"model_risk": ("#2563eb", "fails in the model"), "margin": ("#7fb2ff", "margin"), "epsilon": ("#f2a33a", "ε")}
REAL = "#d9480f"
FAMILY = "known-equations"
HEAD = ("task", "plans", "certified", "ε mean, worst", "margin", "bound", "really failed", "worst plan", "executions",
        "energy, bound (J)")  # fmt: skip
COMMAND = "make audit-planning"
ABOUT = (
    "Laws are recovered from simulated positions, modes given; plans are executed open loop in the event-exact "
    "simulator, kicked every 2 ms, from starts drawn from the belief. Seeds 0 to 5 were for tuning. <code>vhydro audit "
    "planning --quick --out quick</code> runs a small part, <code>vhydro audit page planning</code> writes this page."
)
NOTE = (
    "<b>Other systems than the paper’s.</b> A proof is held against a truth: systems whose equations are known. "
    "No peer states a bound: the paper’s numbers are for orientation."
)
ABSENT = " Its four ManiSkill tasks are not in this run."
MEASURED = " Its four ManiSkill tasks stand below: measured, not proven."
WORDS = {
    "certified": "the bound on the chance of failure is at most what is allowed, at the stated confidence",
    "bound": "share that fails in the model + margin + ε",
    "margin": "what the number of particles leaves open (Clopper–Pearson)",
    "ε": "by how much the model may be wrong over the horizon: the total variation between its paths and the truth’s",
    "really failed": "share of executions of certified plans in the true system that failed",
    "risk gap": "distance between the predicted and the realised chance of failure",
}


def write_planning_page(folder: Path) -> Path:
    """The path of the page, `folder/index.html`, made from the audit's result files there."""
    return publish(folder)[0]


def publish(folder: Path) -> tuple[Path, Card]:
    """The path of the page that was written, and the audit's card for the index."""
    rows, cells, meta = read_planning(folder)
    said = planning_page(rows, cells, meta, read_maniskill(folder), films(folder / "maniskill"))
    seeds = f"{meta['seeds']} seed{'s' * (meta['seeds'] != 1)}, {len(cells):,} plans."
    size = f"This is a small run. {seeds}" if meta.get("quick") else seeds
    return write_shell(folder, said, size=size, words=WORDS, footer=footer_words(meta))


def read_planning(folder: Path) -> tuple[list[Row], list[Row], Row]:
    """The rows and cells of known systems, and where they come from."""
    path = folder / "summary.json"
    if not path.is_file():
        raise ValueError(
            f"{path} is not there; expected a file that the planning audit writes. Run the planning audit again for "
            "this folder, or give the folder of a finished one."
        )
    summary = json.loads(path.read_text("utf-8"))
    rows = [r for r in summary["rows"] if r.get("family") == FAMILY]
    return rows, [c for c in read_cells(folder) if c.get("family") == FAMILY], summary["meta"]


def read_maniskill(folder: Path) -> list[Row]:
    """The rows of ManiSkill's tasks; none where that part was not run."""
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    return [r for r in summary["rows"] if r.get("family") == "maniskill"]


def planning_page(
    rows: Sequence[Row], cells: Sequence[Row], meta: Row, maniskill: Sequence[Row] = (), filmed: Sequence[Row] = ()
) -> AuditPage:
    """All that the page says."""
    said = escape(headline(rows, cells)) + (" This is a small run." if meta.get("quick") else "")
    claims = [_proven(rows), _refused(rows), _energy(rows, cells), *maniskill_claims(maniskill)]
    claims += [film_claim(filmed)] if filmed else []
    note = NOTE + (MEASURED if maniskill else ABSENT)
    return AuditPage("Plans whose risk is proven", said, claims, _card(rows, said), note, ABOUT, WORDS, COMMAND)


def headline(rows: Sequence[Row], cells: Sequence[Row]) -> str:
    """How many plans are certified, and how often they really failed on the worst task."""
    worst = max(r["realised_failure"] or 0.0 for r in rows)
    return (
        f"{sum(c['certified'] for c in cells)} of {len(cells)} plans on recovered laws are certified to fail with a "
        f"chance of at most {rows[0]['delta']:g}; executed {sum(r['executions'] for r in rows):,} times in the true "
        f"systems, they fail in {percent(round(worst, 3))} on the worst task."
    )


def risk_gap(rows: Sequence[Row]) -> float | None:
    """The largest distance between predicted and realised failure of any task; None where nothing was executed."""
    real = [r for r in rows if r["realised_failure"] is not None]
    return max((abs(r["model_risk"] - r["realised_failure"]) for r in real), default=None)


def paper_gaps() -> list[float]:
    """The paper's risk gaps, task by task."""
    return sorted(r["risk_gap"] for r in published() if r["experiment"] == "planning" and r.get("risk_gap") is not None)


def _scores(rows: Sequence[Row]) -> list[Score]:
    gap, paper = risk_gap(rows), paper_gaps()
    if gap is None:
        return []
    words = mark((gap < paper[0]) - (gap > paper[0]), "the paper’s, on other tasks") if paper else ""
    scores = [Score("predicted against real risk, largest gap: ours", f"{gap:.3f}", words, True)]
    if paper:
        scores.append(Score("the paper’s, on other tasks", f"{paper[0]:.3f} to {paper[-1]:.3f}"))
    return [*scores, Score("best peer", "none", "no peer proves a bound")]


def _card(rows: Sequence[Row], answer: str) -> Card:
    picture = figure([risk_panel(rows, 430)], _alt(rows), keys=KEYS)
    return Card("planning", "Plans whose risk is proven", answer, _scores(rows), picture)


KEYS = (*(Key(title, colour) for colour, title in PARTS.values()), Key("really failed", REAL, "diamond"))


def _alt(rows: Sequence[Row]) -> str:
    return "the proven chance of failure of every task, below what is allowed, and how often plans really failed: " + (
        ", ".join(f"{r['task']} {r['bound']:.3f} proven, {r['realised_failure'] or 0:.3f} real" for r in rows)
    )


def _proven(rows: Sequence[Row]) -> Claim:
    above, certified = (sum(round(v) for v in some) for some in (
        [r.get("above_bound") or 0 for r in rows], [r["certified_share"] * r["plans"] for r in rows]))  # fmt: skip
    held = sum((r["realised_failure"] or 0.0) <= r["bound"] for r in rows)
    picture = figure(
        [risk_panel(rows)], _alt(rows), keys=KEYS, name="planning", narrow=[risk_panel(rows, 380)],
        caption="Mean over plans of risk, margin and ε, all of which a proof adds up; diamonds are the share of "
        "executions of certified plans that failed. The dotted line is what is allowed.",
    )  # fmt: skip
    words = (
        f"{held} of {len(rows)} tasks have a realised share of failures below the proven one; {above} of {certified} "
        "certified plans failed more often in their executions than their own bound says."
    )
    body = [
        [escape(r["task"]), f"<b>{r['bound']:.3f}</b>", _number(r["realised_failure"]), _number(r["worst_plan"])]
        for r in rows
    ]
    numbers = table_html(["", "proven, ours", "really failed", "worst plan"], body, kind="claims numbers",
                         caption="Chance of failure; the paper gives a predicted risk without a proof, no peer gives "
                         "one")  # fmt: skip
    every = table_html(HEAD, [line(r) for r in rows], kind="dense", caption="Every number")
    how = "Failures and executions are those of certified plans; everything else is the mean over all plans."
    return Claim("What was proven holds", "Proofs", words, numbers, picture, {"Every number": every}, how)


def _number(value: Number | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _refused(rows: Sequence[Row]) -> Claim:
    worst = min(rows, key=lambda r: r["certified_share"])
    words = (
        f"Not every plan can be certified: {escape(worst['task'])} has a proof for "
        f"{percent(round(worst['certified_share'], 3))} of its plans, for ε is {worst['epsilon']:.3f} on average and "
        f"{worst['epsilon_worst']:.3f} at worst. A plan without a proof is refused, with the reason."
    )
    names = [r["task"] for r in rows]
    up = Axis(-len(names) + 0.4, 0.6, [(-float(k), n) for k, n in enumerate(names)], grid=False)
    ticks = [(t, percent(t)) for t in (0, 0.25, 0.5, 0.75, 1)]
    panel = Panel(Axis(0, 1.02, ticks), up, "Plans with a proof", width=440, height=26 * len(rows) + 52)
    for k, r in enumerate(rows):
        tip = f"{r['task']}: {percent(round(r['certified_share'], 3))} of {r['plans']} plans"
        panel.stretch((0, r["certified_share"]), -k, PARTS["model_risk"][0], name=r["task"], tall=15, tip=tip)
    alt = "share of plans with a proof by task"
    return Claim("What cannot be proven is refused", "Refusals", words, picture=figure([panel], alt, name="certified"))


def _energy(rows: Sequence[Row], cells: Sequence[Row]) -> Claim:
    broken = sum(not c["energy_holds"] for c in cells)
    held = f"is broken in {broken} of {len(cells)} ensembles" if broken else f"holds in all {len(cells)} ensembles"
    words = (
        f"The bound by one storage function {held}. By the paper’s own constants there is none: positions carry no "
        "dissipation, so r = 0 and C_E = ∞."
    )
    body = [[escape(r["task"]), written(r["energy_end"]), f"<b>{written(r['energy_bound'])}</b>", "∞"] for r in rows]
    numbers = table_html(["", "true, mean", "bound, ours", "bound, the paper’s constants"], body, kind="claims numbers",
                         caption="Expected energy at the end of a plan (J)")  # fmt: skip
    return Claim("Energy stays bounded", "Energy", words, numbers, how="One storage function for all modes.")


def line(row: Row) -> list[str]:
    """A task as a line of the table."""
    return [
        escape(row["task"]), str(row["plans"]), percent(round(row["certified_share"], 3)),
        f"{row['epsilon']:.3f}, {row['epsilon_worst']:.3f}", f"{row['margin']:.3f}", f"{row['bound']:.3f}",
        *(_number(row[k]) for k in ("realised_failure", "worst_plan")),
        f"{row['executions']:,}", f"{written(row['energy_end'])}, {written(row['energy_bound'])}",
    ]  # fmt: skip


def risk_panel(rows: Sequence[Row], width: Number = 1064) -> Panel:
    """The parts of the bound of every task, and what happened."""
    delta, names = rows[0]["delta"], [r["task"] for r in rows]
    up = Axis(-len(names) + 0.4, 0.6, [(-float(k), n) for k, n in enumerate(names)], grid=False)
    across = straight([0.0, delta], "chance of failure", zero=True, most=4)._replace(high=1.12 * delta)
    panel = Panel(across, up, width=width, height=32 * len(rows) + 46, left=86)
    for k, r in enumerate(rows):
        start = 0.0
        for key, (colour, title) in PARTS.items():
            tip = f"{r['task']}, {title}: {r[key]:.4f}"
            panel.stretch((start, start + r[key]), -k, colour, name=key, tall=18, tip=tip)
            start += r[key]
        if r["realised_failure"] is not None:
            tip = f"{r['task']}, really failed: {r['realised_failure']:.4f}"
            panel.dots([r["realised_failure"]], [-k], REAL, name="real", symbol="diamond", size=10, tips=[tip])
    return panel.rule("x", delta, "allowed")
