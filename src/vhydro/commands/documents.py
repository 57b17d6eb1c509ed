"""What `--json` prints: one document for each verb, with keys that stay.

Every document has `verb` and `out`, where results were written or null. Paths are as they were given; numbers that are
not finite are null; times are in seconds, rows and modes are counted from 0.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from vhydro.commands.filter import FilterCommand
from vhydro.commands.fit import FitCommand
from vhydro.commands.inspect import InspectConfig, chosen_view
from vhydro.commands.law_reading import terms
from vhydro.commands.laws import LawsCommand
from vhydro.commands.plan import PlanCommand
from vhydro.commands.segment import BESIDE, SegmentCommand
from vhydro.data.inspection import Inspection, Quantity
from vhydro.fitted import Fitted
from vhydro.laws.constants import constants, is_identified
from vhydro.laws.files import any_document
from vhydro.laws.lagrange_law import AnyLaw
from vhydro.laws.law import Law
from vhydro.laws.writing import text
from vhydro.planning import Plan, Proof
from vhydro.views.needs import needs


def fit_document(config: FitCommand, fitted: Fitted) -> dict[str, Any]:
    """`model` is what other verbs take as MODEL; `modes` are the words of every mode, `report` the lines printed."""
    return {
        "verb": "fit", "out": config.out, "model": config.out, "view": fitted.view.kind, "modes": list(fitted.names),
        "dt": fitted.dt, "channels": [asdict(c) for c in fitted.channels],
        "inputs": [asdict(c) for c in fitted.inputs], "report": list(fitted.report),
    }  # fmt: skip


def filter_document(config: FilterCommand, _beliefs: Any) -> dict[str, Any]:
    """Of every log its rows, the share of certified steps, faults, and the log evidence, also a reading."""
    if config.to == "parquet":
        return _tables("filter", config.out)
    told = json.loads((config.out / "summary.json").read_text("utf-8"))
    keys = ("name", "rows", "certified", "faults", "log_evidence", "evidence_per_reading")
    logs = [{key: log[key] for key in keys} for log in told["logs"]]
    return {"verb": "filter", "out": config.out, "level": told["level"], "modes": told["modes"], "logs": logs}


def segment_document(config: SegmentCommand, _found: Any) -> dict[str, Any]:
    """Of every log its segments: rows `start` to `end` (not included), seconds, mode, words and confidence."""
    if config.to == "parquet":
        return _tables("segment", config.out)
    stem = BESIDE if config.to == "lerobot" else Path("segments")
    told = json.loads((config.out / stem.with_suffix(".json")).read_text("utf-8"))
    modes = told["modes"]
    logs = [
        {"name": log["name"], "segments": [{**s, "words": modes[s["mode"]]} for s in log["segments"]]}
        for log in told["episodes"]
    ]
    return {"verb": "segment", "out": config.out, "dt": told["dt"], "modes": modes, "logs": logs}


def laws_document(config: LawsCommand, law: AnyLaw | None) -> dict[str, Any]:
    """The law in words, its constants with 95 % intervals, what is doubtful, and all of it as law.json has it."""
    if law is None:
        assert config.out is not None
        return _tables("laws", config.out)
    doubtful = [{"mode": mode, "name": law.modes[mode], "why": why} for mode, why in law.problems]
    found = constants(law) if isinstance(law, Law) else terms(law)
    return {
        "verb": "laws", "out": config.out, "modes": list(law.modes), "text": text(law), "identified": not doubtful,
        "problems": doubtful, "law": any_document(law),
        "constants": [
            {
                "name": n, "value": c.value, "low": c.interval[0], "high": c.interval[1], "unit": c.unit,
                "identified": is_identified(law, c),
            }
            for n, c in found.items()
        ],
    }  # fmt: skip


def plan_document(config: PlanCommand, made: tuple[Plan, Proof | None]) -> dict[str, Any]:
    """The actions, a row of `inputs` for every step of `dt` seconds, what the model expects, and the proof or null."""
    plan, proof = made
    return {
        "verb": "plan", "out": config.out, "dt": plan.dt, "inputs": list(plan.inputs), "actions": plan.actions.tolist(),
        "cost": plan.cost, "risk": plan.risk, "proof": None if proof is None else asdict(proof),
    }  # fmt: skip


def inspect_document(config: InspectConfig, found: Inspection) -> dict[str, Any]:
    """What a log holds, what every view would need of it, and which one `fit` would take, or why none."""
    steps = found.steps
    return {
        "verb": "data inspect", "out": config.write, "path": found.dataset.path, "format": found.dataset.format,
        "episodes": list(found.dataset.names), "unreadable": found.unreadable,
        "successful": sum(found.successes) if found.successes else None,
        "steps": {"least": min(steps), "median": float(np.median(steps)), "most": max(steps), "all": sum(steps)}
        if steps else None,
        "rates": [{"hz": rate, "episodes": count} for rate, count in found.rates.most_common()],
        "channels": [_channel(q) for q in found.observations.values()],
        "inputs": [_channel(q) for q in found.actions.values()],
        "contacts": [
            {"bodies": name.split("__"), "touching": t.on / t.rows if t.rows else 0.0, "largest": t.peak}
            for name, t in found.contacts.items()
        ],
        "labels": {name: sorted(values, key=str) for name, values in found.labels.items()},
        "notes": list(found.dataset.notes), "problems": list(found.problems),
        "views": {kind: [n._asdict() for n in every] for kind, every in needs(found.first).items()}
        if found.first else {},
        "fit": _choice(config, found),
    }  # fmt: skip


def _choice(config: InspectConfig, found: Inspection) -> dict[str, Any]:
    try:
        view, why = chosen_view(config.naming, found.first)
    except (ValueError, IndexError) as error:
        return {"view": None, "why": str(error)}
    return {"view": view.kind, "why": why}


def _channel(q: Quantity) -> dict[str, Any]:
    seen = q.count > q.hidden
    return {
        "name": q.channel.name, "group": q.channel.group, "unit": q.channel.unit,
        "least": q.low if seen else None, "most": q.high if seen else None, "hidden": q.missing, "longest_gap": q.gap,
    }  # fmt: skip


def _tables(verb: str, out: Path) -> dict[str, Any]:
    """What Parquet holds: rows of every table, and how many logs were left out (they are in the table `problems`)."""
    told = json.loads((out / "run.json").read_text("utf-8"))
    return {"verb": verb, "out": out} | {key: told[key] for key in ("episodes", "rows", "problems")}
