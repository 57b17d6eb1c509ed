"""What the page of the planning audit says of ManiSkill's tasks: predictions, success, and the risk of episodes."""

from collections.abc import Sequence
from html import escape
from typing import Any

from vhydro.report.page import table_html
from vhydro_audits.pages.frame import Claim
from vhydro_audits.spec import percent

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
