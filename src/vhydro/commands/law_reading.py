"""A law as the page of a run shows it: equations, constants with intervals, and logs it was not fitted to."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from vhydro.episodes import Episode
from vhydro.fitted import Fitted
from vhydro.laws.constants import Constant, constants
from vhydro.laws.lagrange_law import AnyLaw, LagrangeLaw
from vhydro.laws.law import Law
from vhydro.laws.mechanics import mechanics_laws
from vhydro.laws.recover import LawsConfig
from vhydro.laws.writing import latex

WINDOW = 1.0  # s that a law is left alone with the inputs
MOST_ROWS = 1500  # of the log that is shown
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
    doubtful = [f" of {law.modes[mode]}" for mode, _ in law.problems]
    return [
        {
            "name": name, "value": c.value, "low": c.interval[0], "high": c.interval[1], "unit": c.unit,
            "identified": not any(of in name for of in doubtful),
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
        f"{name} of {law.modes[mode]}": Constant(n.value, n.error, "")
        for mode in range(len(law.modes))
        for name, n in law.terms(mode).items()
    }


def prediction(fitted: Fitted, logs: Sequence[Episode], law: AnyLaw, *, seed: int) -> dict | None:
    """The richest log second by second, each from its smoothed start, by a law that was fitted to the other logs.

    Of a single log the law is the one that was fitted to it. None where the law cannot be followed.
    """
    every = [fitted.see(log) for log in logs]
    beliefs = [fitted.smooth(log, seed=seed) for log in logs]
    paths = [np.asarray(b.path) for b in beliefs]
    shown = max(range(len(every)), key=lambda i: (len(set(paths[i])), np.count_nonzero(np.diff(paths[i]))))
    rest = [i for i in range(len(every)) if i != shown]
    held_out, own = len(every) > 1, law
    if held_out:
        config = LawsConfig(held_out=False)
        assert fitted.law is not None  # `Fitted.laws` has refused others
        others = fitted.view, [every[i] for i in rest], [beliefs[i] for i in rest], fitted.law, config
        try:
            own = mechanics_laws(*others, estimator=law.estimator)  # pyright: ignore[reportArgumentType]
        except ValueError:  # what is left does not determine a law
            held_out = False
    log, states, path = every[shown], np.asarray(beliefs[shown].mean, np.float64), paths[shown]
    rows = min(len(states), MOST_ROWS)
    starts = range(0, rows - 1, max(round(WINDOW / log.dt), 2))
    followed = np.full((rows, law.positions), np.nan)
    for first in starts:
        last = min(first + starts.step, rows - 1)
        course = own.simulate(states[first], log.actions[first:last], log.dt, mode=int(path[first]))
        followed[first : last + 1] = course[:, : law.positions]
    if not np.isfinite(followed).all():
        return None
    seen = np.where(log.observed, log.observations, np.nan)[:rows]
    return {
        "log": logs[shown].source or "one of the logs", "held_out": held_out, "others": len(every) - 1, "dt": log.dt,
        "starts": list(starts),
        "names": list(law.coordinates[: law.positions]), "units": list(law.units[: law.positions]),
        "seen": _numbers(seen), "predicted": _numbers(followed),
        "rms": _numbers(np.sqrt(np.nanmean((seen - followed) ** 2, 0))), "spread": _numbers(np.nanstd(seen, 0)),
    }  # fmt: skip


def _numbers(values: np.ndarray) -> list:
    """With as many digits as a picture shows; what was not seen is NaN."""
    return np.vectorize(lambda x: float(f"{x:.5g}"))(values).tolist()
