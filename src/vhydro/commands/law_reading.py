"""A law as the page of a run shows it: equations, constants with intervals, and how far it can be trusted."""

import re
from typing import Any

from vhydro.laws.constants import Constant, constants, is_identified
from vhydro.laws.lagrange_law import AnyLaw, LagrangeLaw
from vhydro.laws.law import Law
from vhydro.laws.writing import latex

HEAD = re.compile(r"&\\text\{(.*):\}", re.DOTALL)


def law_reading(law: AnyLaw) -> dict[str, Any]:
    """The law of every mode as lines of LaTeX, its constants with 95 % intervals, and how far it can be trusted."""
    shared, lines = _equations(law)
    modes = [
        {
            "name": name, "status": law.status(mode), "equations": lines[mode],
            "reasons": [reason for m, reason in law.problems if m == mode],
        }
        for mode, name in enumerate(law.modes)
    ]  # fmt: skip
    return {
        "estimator": law.estimator, "shared": shared, "modes": modes, "constants": _constants(law),
        "chi_square": law.chi_square, "notes": list(law.notes),
        "held_out": [{"seconds": h.seconds, "windows": h.windows, "excess": h.excess} for h in law.held_out],
    }  # fmt: skip


def _equations(law: AnyLaw) -> tuple[list[str], list[list[str]]]:
    """The lines of LaTeX that hold for all modes, and those of each."""
    body = latex(law).removeprefix("\\begin{align*}\n").removesuffix("\n\\end{align*}\n")
    shared: list[str] = []
    modes: list[list[str]] = []
    for line in body.split(" \\\\\n"):
        if HEAD.fullmatch(line):
            modes.append([])
        else:
            (modes[-1] if modes else shared).append(line.strip())
    return shared, modes


def _constants(law: AnyLaw) -> list[dict[str, Any]]:
    found = constants(law) if isinstance(law, Law) else _told_once(terms(law))
    return [
        {
            "name": name, "value": c.value, "low": c.interval[0], "high": c.interval[1], "unit": c.unit,
            "identified": is_identified(law, c),
        }
        for name, c in found.items()
    ]  # fmt: skip


def _told_once(found: dict[str, Constant]) -> dict[str, Constant]:
    """Without the terms that a mode shares with one before it."""
    first: dict[tuple, str] = {}
    for name, c in found.items():
        first.setdefault((name.rpartition(" of ")[0], c.value, c.error), name)
    return {name: found[name] for name in first.values()}


def terms(law: LagrangeLaw) -> dict[str, Constant]:
    """The terms of every mode with inertia that couples, by their names."""
    return {
        f"{name} of {law.modes[mode]}": Constant(n.value, n.error, "", (mode,))
        for mode in range(len(law.modes))
        for name, n in law.terms(mode).items()
    }
