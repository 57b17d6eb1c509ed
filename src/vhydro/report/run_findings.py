"""What a run found, in sentences and numbers that are computed from its files."""

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, log10
from typing import NamedTuple

import numpy as np

from vhydro.report.run_files import Run, RunEpisode
from vhydro.report.words import listed, number, plural

ASKED_FOR = ("mass", "stiffness", "friction", "restitution")  # constants, by how their names begin
MILLIMETRES = "m"  # the unit of channels whose errors are told in millimetres


class InTheDark(NamedTuple):
    """How readings that were hidden from the model compare with what it believed."""

    readings: int
    covered: float  # the share within the intervals
    error: float | None  # median, in metres; None where no channel is a length


def mode_shares(run: Run) -> list[float]:
    """The share of all rows that each mode has, by the segments or else by the filter."""
    counts = np.zeros(max(len(run.modes), 1))
    for episode in run.episodes:
        for mode, rows in mode_rows(episode):
            if mode < len(counts):
                counts[mode] += rows
    return (counts / max(counts.sum(), 1)).tolist()


def mode_rows(episode: RunEpisode) -> list[tuple[int, int]]:
    """The modes of a log in order, each with how many rows it lasts."""
    if episode.segments:
        return [(s.mode, s.end - s.start) for s in episode.segments]
    if "modes" not in episode.signals:
        return []
    path = episode.signals["modes"].argmax(1)
    edges = [0, *(np.flatnonzero(np.diff(path)) + 1).tolist(), len(path)]
    return [(int(path[a]), b - a) for a, b in pairwise(edges)]


def in_the_dark(run: Run) -> InTheDark | None:
    """How well hidden readings were filled in; None where none was hidden on purpose."""
    filtered = [e.signals for e in run.episodes if "hidden" in e.signals]
    known = [np.isfinite(s["hidden"]) for s in filtered]
    total = sum(int(k.sum()) for k in known)
    if not total:
        return None
    inside = sum(
        int(((s["low"] <= s["hidden"]) & (s["hidden"] <= s["high"]))[k].sum())
        for s, k in zip(filtered, known, strict=True)
    )
    lengths = [i for i, unit in enumerate(run.units) if unit == MILLIMETRES]
    errors = [np.abs(s["hidden"] - s["mean"])[:, lengths][k[:, lengths]] for s, k in zip(filtered, known, strict=True)]
    every = np.concatenate(errors) if errors else np.zeros(0)
    return InTheDark(total, inside / total, float(np.median(every)) if len(every) else None)


def certified_share(run: Run) -> float | None:
    """The share of all filtered rows that are certified."""
    rows = [e.signals["certified"] for e in run.episodes if "certified" in e.signals]
    return float(np.mean(np.concatenate(rows))) if rows else None


def certifies(run: Run) -> bool:
    """Whether the filter that was used can certify anything at all."""
    kinds = [e.signals["certificate"] for e in run.episodes if "certificate" in e.signals]
    return not kinds or any(k.any() for k in kinds)


def fault_count(run: Run) -> int:
    """Readings that were taken for sensor faults, and hidden."""
    return sum(int(e.signals["faults"].sum()) for e in run.episodes if "faults" in e.signals)


def found_modes(run: Run) -> str:
    """What modes the logs have."""
    if not run.modes:
        return ""
    if len(run.modes) == 1:
        return f"One mode explains the logs: {run.modes[0]}."
    words = listed([f"“{m}”" for m in run.modes])
    count = len(run.episodes)
    where = f" in {plural(count, 'log')}" if count else ""
    cuts = sum(len(e.segments) for e in run.episodes)
    if cuts:
        return f"Without labels, {plural(cuts, 'segment')} of {len(run.modes)} modes were found{where}: {words}."
    return f"Without labels, {len(run.modes)} modes were found{where}: {words}."


def found_beliefs(run: Run) -> str:
    """How sure the filter is, and how right it was in the dark."""
    certified = certified_share(run)
    if certified is None:
        return ""
    level = float((run.filtered or {}).get("level", 0.9))
    dark, faults = in_the_dark(run), fault_count(run)
    steps = f"{certified:.0%} of the steps are certified" if certifies(run) else "this filter certifies no step"
    blamed = f", and {plural(faults, 'reading')} {'was' if faults == 1 else 'were'} set aside as sensor faults" * bool(
        faults
    )
    if dark is None:
        return f"{steps[0].upper()}{steps[1:]}{blamed}."
    hide = float((run.filtered or {}).get("hide", 0))
    what = "what a camera sees" if (run.fit or {}).get("view") == "contact" else "the readings"
    error = "" if dark.error is None else f", with a median error of {dark.error * 1000:.2g} mm"
    return (
        f"With {hide:.0%} of {what} hidden, the {level:.0%} intervals hold {dark.covered:.0%} of the "
        f"{plural(dark.readings, 'hidden reading')}{error}; {steps}{blamed}."
    )


def found_law(run: Run) -> str:
    """What law holds, in its best known constants."""
    if run.law is None:
        return ""
    modes = run.law.get("modes", [])
    good = [m for m in modes if m.get("status") != "unidentified"]
    known = [c for c in run.law.get("constants", []) if c.get("identified") and c.get("low") is not None]
    shown = listed([f"{c['name']} {interval(c)}" for c in telling(known)]) if known else ""
    if not good:
        return "No law is identified: the logs do not tell the terms apart, and the page says why."
    share = "every mode" if len(good) == len(modes) else f"{len(good)} of {len(modes)} modes"
    return f"The law is identified in {share}{f': {shown}' if shown else ''}."


def telling(constants: Sequence[dict]) -> list[dict]:
    """At most three constants, those first that a person would ask for."""
    named = [next((c for c in constants if str(c["name"]).startswith(kind)), None) for kind in ASKED_FOR]
    first = [c for c in named if c is not None]
    return (first + [c for c in constants if c not in first])[:3]


def interval(constant: dict) -> str:
    """`1203 N/m (1198 to 1209)`: a value to the last digit that its interval leaves."""
    value, low, high = (float(constant[k]) for k in ("value", "low", "high"))
    decimals = max(ceil(-log10(high - low)), 0) if high > low else 4
    unit = f" {constant['unit']}" if constant.get("unit") not in (None, "", "1") else ""
    short, a, b = (number(f"{{:.{decimals}f}}", x) for x in (value, low, high))
    return f"{short}{unit} ({a} to {b})" if high > low else f"{short}{unit}"


def found_plan(run: Run) -> str:
    """What the plan risks."""
    if run.plan is None:
        return ""
    proof, steps = run.plan.get("proof"), len(run.plan.get("actions", []))
    if proof is None:
        risk = float(run.plan["risk"])
        return f"A plan of {plural(steps, 'step')} fails in {risk:.1%} of the model’s own paths; nothing is proven."
    if proof.get("certified"):
        return (
            f"A plan of {plural(steps, 'step')} is proven to fail with a chance of at most {float(proof['bound']):.1%}."
        )
    return f"A plan of {plural(steps, 'step')} was refused a proof: {proof.get('why') or 'its bound is too high'}."


def findings(run: Run) -> list[str]:
    """One sentence for each verb that left something in the folder."""
    return [s for s in (found_modes(run), found_beliefs(run), found_law(run), found_plan(run)) if s]
