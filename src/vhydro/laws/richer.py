"""Terms that a law is given only where the data insist: Stribeck friction, and what is not port-Hamiltonian.

They are tried where the law without them is not borne out, and kept where they pay for themselves by BIC and predict
held-out windows better, where these are asked for. A law that is borne out is never made richer.
"""

from dataclasses import replace

import jax
import numpy as np

from vhydro.lagrangian import Friction, Lagrangian, Remainder, Shape
from vhydro.laws.estimate import Estimate, ShootingConfig, shot
from vhydro.laws.lagrange_law import LagrangeLaw
from vhydro.laws.marks import MISSPECIFIED
from vhydro.laws.tracks import Tracks

SUSPECT = 1.15  # times what noise leaves in held-out windows: a law that leaves more may lack something
FIRST_SPEED = 0.1  # of a velocity's spread: where the search for a Stribeck friction's speed begins …
FIRST_SHARE = 0.3  # … and of the dry friction that there is: where that for its size does
BOUNDED = 0.25  # the most that the standard error of a speed may be of it
SEEN = 1e-3  # share of the samples in which energy is given, for that to be said


def is_borne_out(law: LagrangeLaw, found: Estimate, *, held_out: bool) -> bool:
    """Whether a law explains what it was fitted to and what it was not, so that nothing richer is called for.

    Without `held_out` nothing was predicted, and what it was fitted to is all there is to explain.
    """
    misfit = MISSPECIFIED + 3 * np.sqrt(2 / max(found.freedom, 1))
    explained = np.isnan(found.chi_square) or (found.chi_square <= misfit and not found.stopped_at)
    predicted = not held_out or (law.held_out and all(h.excess <= SUSPECT for h in law.held_out))
    return bool(explained and predicted)


def stribeck_estimate(found: Estimate, tracks: Tracks, config: ShootingConfig) -> Estimate | None:
    """The estimate that shooting reaches with Stribeck friction; None where it pays for none.

    The weak form has no part in it: smoothing bends small velocities most, and takes the kinks of plain dry friction
    for this one.
    """
    offered = offered_stribeck(found, tracks)
    if offered is None:
        return None
    form = offered.form
    assert isinstance(form, Lagrangian)
    with jax.enable_x64(True):
        richer = shot(form, tracks, offered.theta, offered.support, config)
    kept = [i for i in form.speeds if richer.support[i]]
    support = richer.support.copy()
    support[[*form.speeds.values()]] = [i in kept for i in form.speeds]
    found_it = kept and is_stribeck(richer, tracks) and is_better(richer, found)
    return richer._replace(support=support) if found_it else None


def is_stribeck(richer: Estimate, tracks: Tracks) -> bool:
    """Whether all friction takes energy, and Stribeck's fades within the velocities that were seen."""
    form, spread = richer.form, np.nanstd(tracks.smooth.velocity, axis=(0, 1))
    assert isinstance(form, Lagrangian)
    takes = all(richer.theta[i] >= 0 for i in form.of("friction") if richer.support[i])
    speeds = [(richer.theta[at], spread[form.entries[at].axis]) for i, at in form.speeds.items() if richer.support[i]]
    return takes and all(0 < speed < widest for speed, widest in speeds)


def offered_stribeck(found: Estimate, tracks: Tracks) -> Estimate | None:
    """The estimate with Stribeck friction along every position that has dry friction; None if none has."""
    form, theta, support = found.form, found.theta, found.support
    assert isinstance(form, Lagrangian)
    spread = np.nanstd(tracks.smooth.velocity, axis=(0, 1))
    for i in form.of("friction"):
        term = form.entries[i].term
        if not (isinstance(term, Friction) and term.kind == "Coulomb" and term.other is None and i in form.dry):
            continue
        if not (support[i] and theta[i] > 0):
            continue
        speed = FIRST_SPEED * float(spread[term.axis])
        friction = (*form.friction, Friction("Stribeck", term.axis, None, speed))
        place = len(form.inertia) + len(form.potential) + len(form.friction)
        form = replace(form, friction=friction, known_friction=(*form.known_friction, None), dry=(*form.dry, place))
        theta = np.insert(np.insert(theta, place, FIRST_SHARE * theta[i]), form.speeds[place], speed)
        support = np.insert(np.insert(support, place, True), form.speeds[place], True)
    return None if form is found.form else found._replace(form=form, theta=theta, support=support)


def is_better(richer: Estimate, plain: Estimate) -> bool:
    """Whether an estimate pays for its further parameters by BIC, through windows no shorter."""
    if richer.stopped_at > 0 and not 0 < plain.stopped_at <= richer.stopped_at:
        return False  # the misfit of shorter windows is smaller by itself
    if np.isnan(plain.chi_square) or np.isnan(richer.chi_square):
        return True  # of a law that was not fitted to positions held-out windows alone can tell
    number = min(richer.freedom, plain.freedom)
    gain = number * np.log(plain.chi_square / richer.chi_square)
    more = max(int(richer.support.sum()) - int(plain.support.sum()), 1)
    return bool(gain > more * (np.log(number) + 2 * np.log(max(richer.form.optional.sum(), 1))))


def vague_speeds(richer: Estimate) -> str:
    """Which speed of Stribeck friction the data do not bound, in words; empty where they bound all."""
    form, errors = richer.form, np.sqrt(np.diag(richer.covariance))
    assert isinstance(form, Lagrangian)
    for friction, i in form.speeds.items():
        speed, error = richer.theta[i], errors[i]
        if richer.support[friction] and not error <= BOUNDED * speed:
            return (
                f"its friction near a standstill: c sign(v) exp(−|v|/s) with c = {richer.theta[friction]:.2g} and "
                f"s = {speed:.2g} ± {error:.2g} fits better than none, and s is not bounded"
            )
    return ""


def remainder_candidates(positions: int) -> tuple[Remainder, ...]:
    """Forces along the velocity, of either sign, that depend on the position or on the speed."""
    axes = range(positions)

    def powers(axis: int, power: int) -> Shape:
        return Shape(tuple(power * (i == axis) for i in axes))

    every = [[Remainder(i, powers(i, k)) for k in (0, 1, 2)] + [Remainder(i, powers(i, 0), 3)] for i in axes]
    return tuple(term for own in every for term in own)


def with_remainder(form: Lagrangian) -> Lagrangian:
    """The form with a remainder on offer; in it a term linear in the velocity takes the place of viscous friction."""
    pairs = [
        (t, known)
        for t, known in zip(form.friction, form.known_friction, strict=True)
        if t.kind != "viscous" or t.other is not None or known is not None
    ]
    friction, known = tuple(t for t, _ in pairs), tuple(k for _, k in pairs)
    return replace(form, friction=friction, known_friction=known, remainder=remainder_candidates(form.positions))


def energy_given(law: LagrangeLaw, tracks: Tracks) -> tuple[float, list[tuple[float, float]]]:
    """The share of samples at which the remainder gives energy, and the span of every position there."""
    form, n = law.form, law.positions
    states = tracks.states.reshape(2 * n, -1)
    z = states[:, np.isfinite(states).all(0)]
    kept = [(law.theta[i], form.entries[i].term) for i in form.of("remainder") if law.support[i]]
    power = sum(-c * t.value(z[:n], z[n:]) * z[n + t.axis] for c, t in kept if isinstance(t, Remainder))
    gives = np.broadcast_to(power > 0, z[0].shape)
    spans = [(float(x[gives].min()), float(x[gives].max())) if gives.any() else (0.0, 0.0) for x in z[:n]]
    return float(gives.mean()), spans


def remainder_note(law: LagrangeLaw, tracks: Tracks) -> str:
    """What the remainder is, in words."""
    share, spans = energy_given(law, tracks)
    if share < SEEN:
        return "Friction that depends on where things are, or on how fast: it takes energy wherever it was seen."
    names = law.coordinates[: law.positions]
    where = ", ".join(f"{low:.3g} < {x} < {high:.3g}" for x, (low, high) in zip(names, spans, strict=True))
    return (
        f"Not port-Hamiltonian: it gives energy in {100 * share:.2g} % of the samples, where {where}. Nothing bounds "
        "its energy beyond what was seen."
    )
