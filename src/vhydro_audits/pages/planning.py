"""The page of the planning audit: what was proven of plans on known systems, and what happened to them."""

import json
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from vhydro.report.page import page, table_html, write_page
from vhydro_audits.pages.drawing import dressed
from vhydro_audits.pages.frame import section
from vhydro_audits.spec import percent, written
from vhydro_audits.store import read_cells

PARTS = {"model_risk": ("#2563eb", "fails in the model"), "margin": ("#7fb2ff", "margin"), "epsilon": ("#f2a33a", "ε")}
REAL = "#d9480f"
HEAD = ("task", "plans", "certified", "ε mean, worst", "margin", "bound", "really failed", "worst plan", "executions",
        "energy, bound (J)")  # fmt: skip
AGAIN = (
    "<code>make audit-planning</code> runs it again, <code>vhydro audit planning --quick --out quick</code> "
    "a small part. Laws are recovered from simulated positions, modes given; plans are executed open loop in the "
    "event-exact simulator, kicked every 2 ms, from starts drawn from the belief. Seeds 0 to 5 were for tuning."
)


def write_planning_page(folder: Path) -> Path:
    """The path of the page, `folder/index.html`, made from the audit's result files there."""
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    rows = [r for r in summary["rows"] if r.get("family") == "known-equations"]
    cells = [c for c in read_cells(folder) if c.get("family") == "known-equations"]
    certified, plans = sum(c["certified"] for c in cells), len(cells)
    broken = sum(not c["energy_holds"] for c in cells)
    lead = f"{certified} of {plans} plans on recovered laws are certified to fail with a chance of at most "
    lead += (
        f"{rows[0]['delta']:g}; executed {sum(r['executions'] for r in rows):,} times in the true systems, they fail "
    )
    lead += f"in {percent(round(max(r['realised_failure'] or 0.0 for r in rows), 3))} on the worst task."
    lead += " This is a small run." if summary["meta"].get("quick") else ""
    said = [
        "<h1>Plans whose risk is proven</h1>",
        f"<p class='lead'>{lead}</p>",
        section(
            "What was proven, and what happened",
            "Bars: the mean over plans of risk, margin and ε, all of which a proof adds up. Dots: the share of "
            "executions of certified plans that failed. The line is what is allowed.",
            bars(rows), "planning", legend={t: c for c, t in PARTS.values()} | {"really failed": REAL},
            below=table_html(HEAD, [line(r) for r in rows]),
        ),
        section(
            "Energy",
            f"The bound by one storage function {f'broke in {broken} ensembles' if broken else 'held everywhere'}. By "
            "the theorem’s own constants there is none: positions carry no dissipation, so r = 0 and C_E = ∞.",
        ),
        f"<h2>How it was run, and how to run it again</h2><p>{AGAIN}</p>",
        f"<p class='quiet'>Commit {summary['meta']['commit']}, {summary['meta']['device']}.</p>",
    ]  # fmt: skip
    return write_page(folder, page("VHyDRO: plans whose risk is proven", said))


def line(row: dict[str, Any]) -> list[str]:
    """A task as a line of the table."""
    return [
        row["task"], str(row["plans"]), percent(round(row["certified_share"], 3)),
        f"{row['epsilon']:.3f}, {row['epsilon_worst']:.3f}", f"{row['margin']:.3f}", f"{row['bound']:.3f}",
        *("–" if row[k] is None else f"{row[k]:.4f}" for k in ("realised_failure", "worst_plan")),
        f"{row['executions']:,}", f"{written(row['energy_end'])}, {written(row['energy_bound'])}",
    ]  # fmt: skip


def bars(rows: list[dict[str, Any]]) -> go.Figure:
    """The parts of the bound of every task, and what happened."""
    names = [r["task"] for r in rows]
    figure = go.Figure([
        go.Bar(x=[r[key] for r in rows], y=names, orientation="h", marker_color=colour, name=title)
        for key, (colour, title) in PARTS.items()
    ])  # fmt: skip
    real = [r["realised_failure"] for r in rows]
    figure.add_scatter(x=real, y=names, mode="markers", marker={"color": REAL, "size": 9}, name="really failed")
    figure.add_vline(x=rows[0]["delta"], line={"dash": "dash", "width": 1})
    figure.update_xaxes(title="chance of failure", range=[0, 1.1 * rows[0]["delta"]])
    figure.update_yaxes(autorange="reversed")
    return dressed(figure, 60 + 34 * len(rows), left=90)
