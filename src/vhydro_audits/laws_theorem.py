"""Theorem 3 measured on one log: κ, the score, the bound beside the true error, and what the score is made of."""

from typing import Any

import numpy as np

from vhydro import systems
from vhydro.laws.guards import labels
from vhydro.laws.law import Law
from vhydro.laws.problem import Problem
from vhydro.laws.theorem import ModeSamples, Structure, recovery_bound, residual_parts, score_parts
from vhydro.laws.tracks import Tracks
from vhydro.library import Library, Penetration, slope
from vhydro_audits.laws_truth import SYSTEMS

FEW = 2  # columns beside the true ones in the small library


def theorem_of(
    tracks: Tracks, problem: Problem, order: list[int], full: Law | None, task: str, truth: systems.Simulation
) -> list[dict[str, Any]]:
    """The theorem's numbers for every mode that moves, with the whole library and with a few columns.

    J, R and G are the plug-ins that the recovered law gives; a mode it does not have is left out.
    """
    if full is None:
        return []
    law = systems.law(SYSTEMS[task])
    out = []
    for mode, energy in enumerate(law.energies):
        own = order[mode]
        if not energy or own in full.form.resting or full.status(own) == "unidentified":
            continue
        samples = _samples(tracks, problem, full, own, law, truth)
        if len(samples.states) < 50:
            continue
        terms = (*problem.library, *(t for t in energy if isinstance(t, Penetration)))
        few = (*energy, *[t for t in terms if t not in energy][:FEW])
        for name, library in (("whole library", terms), ("few columns", few)):
            out += _measured(name, law.modes[mode], samples, library, full, own, law, mode)
    return out


def _samples(tracks: Tracks, problem: Problem, full: Law, own: int, law: systems.Law, truth) -> ModeSamples:
    n = problem.positions
    mass = np.array(
        [0.5 / next(c.value for t, c in full.energy(own).items() if _square(t, n + i, n)) for i in range(n)]
    )
    use = labels(tracks.modes) == own
    use[:, -1] = False
    use &= np.isfinite(tracks.smooth.acceleration).all(-1)
    actions = np.concatenate([tracks.actions, tracks.actions[:, -1:]], 1)[use]
    q = (tracks.smooth.position + tracks.carried)[use]
    v, acceleration = tracks.smooth.velocity[use], tracks.smooth.acceleration[use]
    carried = actions @ np.nan_to_num(problem.port[:n]).T
    states, modes = truth.states[use], truth.modes[use]
    rates = np.zeros_like(states)
    for m, energy in enumerate(law.energies):
        here = modes == m
        if here.any() and energy:
            rates[here] = np.stack(law.velocity(m, tuple(states[here].T), tuple(actions[here].T)), -1)
    return ModeSamples(
        np.concatenate([q, mass * v], -1),
        np.concatenate([v + carried, mass * acceleration], -1),
        actions,
        states,
        rates,
    )


def _square(term, index: int, n: int) -> bool:
    return getattr(term, "powers", None) == tuple(2 * (i == index) for i in range(2 * n))


def _measured(name: str, mode_name: str, samples: ModeSamples, library: Library, full: Law, own: int, law, mode: int):
    truth = np.array([law.energies[mode].get(t, 0.0) for t in library])
    size = samples.states.shape[1]

    def gradients(states: np.ndarray) -> np.ndarray:
        z = states.T
        return np.stack(
            [np.stack([np.broadcast_to(slope(t, i, z), z[0].shape) for t in library], -1) for i in range(size)], 1
        )

    n = size // 2
    resistance = np.diag([*[0.0] * n, *(r.value for r in full.dissipation(own))])
    canonical = law.interconnection[mode]
    port = np.array([[g.value for g in row] for row in full.port(own)])
    residual = residual_parts(
        samples,
        gradients,
        truth,
        estimated=Structure(canonical - resistance, port),
        true=Structure(canonical - law.dissipation[mode], law.port[mode]),
    )
    acting = np.sqrt(np.mean(residual.design**2, 0)) > 1e-12
    if not acting[truth != 0].all():
        return []
    parts = score_parts(residual._replace(design=residual.design[:, acting]))
    bound = recovery_bound(residual.design[:, acting], residual.target, truth[acting])
    return [
        {
            "mode": mode_name,
            "library": name,
            "columns": int(acting.sum()),
            "support_size": int((truth != 0).sum()),
            "kappa": bound.restricted.lower,
            "score": bound.score,
            "level": bound.level,
            "error": bound.error,
            "bound": bound.bound,
            "prediction_error": bound.prediction_error,
            "prediction_bound": bound.prediction_bound,
            "conditions": bool(bound.conditions),
            "holds": bool(bound.holds),
            "support_condition": bool(bound.support_condition),
            "support_recovered": bool(bound.support_recovered),
            "nu_filtering": parts.filtering,
            "nu_derivative": parts.derivative,
            "nu_mode": parts.mode,
            "nu_structure": parts.structure,
        }
    ]
