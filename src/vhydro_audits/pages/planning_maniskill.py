"""What the page of the planning audit says of ManiSkill's tasks: predictions, success, and the risk of episodes."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from vhydro.report.charts import Key, Panel, column_width, figure, straight
from vhydro.report.page import table_html
from vhydro_audits.pages.frame import Claim
from vhydro_audits.spec import percent
from vhydro_audits.store import cells_file, read_cells

Row = dict[str, Any]
OURS = "ours"
HOW = (
    "Models are learned from a task’s own rollouts (a noisy script, and wandering around the bodies; no "
    "demonstrations) and tried on held-out ones of the script, and apart on those that wander, from the true state, "
    "given the commands alone. Errors are divided by each channel’s spread over the rollouts; channels that vary by "
    "less than 2 mm are left out. All methods see the same state and plan with the same cost and the same sampler."
)
RISK = (
    "A logistic regression of what the plan expects at that step, fitted to the policy’s episodes of all other seeds. "
    "The base rate is the best constant in hindsight. The paper’s failure rates are inferred from its table."
)
BODY, HAND = "#2563eb", "#d9480f"
KEYS = (
    Key("body to its end: what happened", "var(--ink)", "", "", 2.0),
    Key("hand to the body: what happened", HAND, "", "", 1.6),
    Key("what a plan believed of the body, 90 %", BODY),
    Key("and of the hand", HAND, "", "3 3", 1.2),
)


def films(folder: Path) -> list[Row]:
    """The episodes of ours with a film: of every task the first that succeeded and the first that failed."""
    found: dict[tuple, Row] = {}
    for path in sorted(folder.glob(f"*/episodes/{OURS}")):
        cells = [c for c in read_cells(path) if c.get("film")] if cells_file(path).is_file() else []
        for cell in sorted(cells, key=lambda c: (c["seed"], c["episode"])):
            found.setdefault((cell["task"], not cell["success"]), cell)
    return [found[key] for key in sorted(found)]


def film_claim(cells: Sequence[Row]) -> Claim:
    """What plans believed, and what happened, in single episodes."""
    drawn = figure([film_panel(c) for c in cells], "distances over an episode, with what plans believed",
                   keys=KEYS, name="episodes", caption="Every sixth plan is shown: the middle of its paths over the 16 "
                   "steps that it looks ahead, and for the body 90 % of them.")  # fmt: skip
    words = (
        "Of every task the first episode that succeeded and the first that failed: how far the body is from where it "
        "shall end, and the hand from where it grasps or pushes it."
    )
    return Claim("What the planner believed, and what happened", "Films", words, picture=drawn, how=HOW)


def film_panel(cell: Row) -> Panel:
    """One episode: two distances, and what some plans expected of them."""
    film = cell["film"]
    steps, most = len(film["away"]), 100 * max(*film["away"], *film["apart"])
    title = f"{cell['task']}: {'succeeded' if cell['success'] else 'failed'}, distances in cm"
    across, up = straight([0, steps], "step", most=6, grid=False), straight([0.0, most], "", zero=True, most=4)
    panel = Panel(across, up, title, width=column_width(2), height=230)
    for plan in film["plans"]:
        ahead = [plan["step"] + 1 + i for i in range(len(plan["away"][0]))]
        low, middle, high = ([100 * min(x, most / 100) for x in row] for row in plan["away"])
        panel.area(ahead, low, high, BODY, opacity=0.18)
        panel.line(ahead, middle, BODY, name="believed", width=1.2)
        hand = [100 * min(x, most / 100) for x in plan["apart"][1]]
        panel.line(ahead, hand, HAND, name="believed of the hand", width=1.0, dash="3 3")
    for name, colour in (("away", "var(--ink)"), ("apart", HAND)):
        panel.line(range(steps), [100 * x for x in film[name]], colour, name=name, width=1.8)
    return panel


def maniskill_claims(rows: Sequence[Row]) -> list[Claim]:
    """The claims of the part, none where it was not run."""
    played = [r for r in rows if r["success"] is not None]
    claims = [_prediction(rows)] if any(r["rmse_h16"] is not None for r in rows) else []
    return [*claims, *([_success(played), _risk(played)] if played else [])]


def _prediction(rows: Sequence[Row]) -> Claim:
    rows = [r for r in rows if r["rmse_h16"] is not None]
    tasks = list(dict.fromkeys(r["task"] for r in rows))
    least = {t: min((r for r in rows if r["task"] == t), key=lambda r: r["rmse_h16"])["method"] for t in tasks}
    best = [t for t in tasks if least[t] == OURS]
    found = f"The contact model has the least error 16 steps ahead on {len(best)} of {len(tasks)} tasks"
    others = [f"{escape(least[t])} on {escape(t)}" for t in tasks if t not in best]
    body = [
        [escape(r["task"]), escape(r["method"]), *(_number(r[k]) for k in ("rmse_h1", "rmse_h16", "rmse_mean16",
         "rmse_h16_hand", "rmse_h16_bodies", "rmse_h16_wandering", "coverage90_moving", "coverage90_resting")),
         _papers(r, "rmse")]
        for r in rows
    ]  # fmt: skip
    head = (
        "task",
        "model",
        "1 step",
        "16 steps",
        "mean",
        "hand, 16",
        "bodies, 16",
        "wandering, 16",
        "90 % band, moving",
        "resting",
        "paper",
    )
    numbers = table_html(head, body, kind="dense", caption="Standardised error open loop; the paper’s is of one step")
    return Claim("How well motion is predicted", "Prediction", "; ".join([found, *others]) + ".", numbers, how=HOW)


def _success(rows: Sequence[Row]) -> Claim:
    tasks = list(dict.fromkeys(r["task"] for r in rows))
    at = {(r["task"], r["method"]): r for r in rows}
    said = [
        f"{escape(t)} {percent(round(at[t, OURS]['success'], 3))} of {at[t, OURS]['episodes']}"
        for t in tasks if (t, OURS) in at
    ]  # fmt: skip
    body = [
        [escape(r["task"]), escape(r["method"]), percent(round(r["success"], 3)), str(r["episodes"]),
         _number(r["return"]), _number(r["return_dense"]), _number(r["safe_return"]), _papers(r, "return"),
         _papers(r, "safe_return")]
        for r in rows
    ]  # fmt: skip
    head = ("task", "method", "success", "episodes", "return", "dense units", "safe return", "paper: return", "safe")
    numbers = table_html(head, body, kind="dense", caption="Closed loop; success is the task’s flag at any step")
    found = f"Episodes that succeed: {', '.join(said)}." if said else "Only policies without a model were run."
    return Claim("How often plans succeed in the simulator", "Success", found, numbers, how=HOW)


def _risk(rows: Sequence[Row]) -> Claim:
    told = [r for r in rows if r["predicted_risk_t0"] is not None]
    held = [r for r in told if r["brier"] < r["brier_base_rate"]]
    body = [
        [escape(r["task"]), escape(r["method"]), _number(1 - r["success"]), _number(r["predicted_risk_t0"]),
         _number(r["predicted_risk_t5"]), *(f"{_number(r[k])}, {_number(r[f'{k}_t5'])}" for k in ("risk_gap", "ece",
         "brier", "auc")), _number(r["brier_base_rate"]), _papers(r, "risk_gap"), _papers(r, "ece")]
        for r in told
    ]  # fmt: skip
    head = ("task", "method", "failed", "risk at step 0", "at 5", "gap", "ECE", "Brier", "AUC", "base rate’s Brier",
            "paper: gap", "ECE")  # fmt: skip
    found = f"The risk told at the start is better than the base rate for {len(held)} of {len(told)} tasks and methods."
    numbers = table_html(head, body, kind="dense", caption="Risk of an episode; pairs are of steps 0 and 5")
    return Claim("What was told of the risk of an episode", "Risk", found, numbers, how=RISK)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}".replace("-", "−")


def _papers(row: Row, name: str) -> str:
    return _number((row["published"] or {}).get(name))
