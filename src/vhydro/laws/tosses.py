"""Bodies that nobody holds: their law of flight, and what they leave a surface with, from poses and a mass."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
from scipy.spatial.transform import Rotation

from vhydro.episodes import Episode
from vhydro.laws.constants import Constant
from vhydro.laws.impacts import ImpactLaw, impact_law
from vhydro.laws.mechanics import recorded
from vhydro.laws.recover import LawsConfig
from vhydro.views.body import BodyView, body_view
from vhydro.views.mechanics import MechanicsView
from vhydro.views.view import columns, looked_up


def toss_law(
    logs: Iterable[Episode],
    *,
    mass: float,
    half_sizes: float | Sequence[float] | None = None,
    view: BodyView | None = None,
    config: LawsConfig = LawsConfig(estimator="lagrange"),  # noqa: B008 — immutable
) -> ImpactLaw:
    """The law of flight of a body of known mass (kg) along the vertical, and of its impacts, found by themselves.

    `half_sizes` in m are those of a box along its own axes, or one for a cube: impacts are then those of its lowest
    corner, and its restitution is of that corner's speed. Without them impacts are those of its place. The logs may be
    of any lengths; the view is that of the only body they show, if not given.
    """
    every = list(logs)
    view = body_view(every) if view is None else view
    if not mass > 0:
        raise ValueError(f"mass is {mass:g}; expected a positive number of kilograms. Give the body's.")
    upright = MechanicsView((view.place[2],), masses=(float(mass),))
    recording, problem = recorded(every, upright)
    points = None if half_sizes is None else corner_heights(every, half_sizes, view)
    return impact_law(recording, problem, config, points=points)


def corner_heights(
    logs: Sequence[Episode], half_sizes: float | Sequence[float], view: BodyView | None = None
) -> np.ndarray:
    """The heights in m of the eight corners of a box: (logs, rows, corners), NaN where its pose is hidden and in the
    padding of shorter logs.
    """
    view = body_view(logs) if view is None else view
    sizes = np.broadcast_to(np.asarray(half_sizes, float), (3,))
    if not view.turn:
        raise ValueError(
            f"the body {view.name!r} has no orientation; expected a quaternion, to know where its corners are. Name "
            f"its four channels ({view.name}.qw, {view.name}.qx, …), or leave half_sizes out."
        )
    if not (sizes > 0).all():
        raise ValueError(f"half_sizes are {sizes.tolist()}; expected positive lengths in m, half of each edge.")
    corners = sizes * np.array(list(product((-1, 1), repeat=3)))
    heights = [_heights(looked_up(view, log), view, corners) for log in logs]
    out = np.full((len(heights), max(map(len, heights)), 8), np.nan)
    for own, row in zip(out, heights, strict=True):
        own[: len(row)] = row
    return out


def _heights(log: Episode, view: BodyView, corners: np.ndarray) -> np.ndarray:
    """The heights of a body's corners at every row of a log: (rows, corners)."""
    turn, height = columns(log, view.turn), columns(log, view.place[2:])
    seen = np.asarray(np.isfinite(turn).all(1))
    up = Rotation.from_quat(np.where(seen[:, None], turn, [1.0, 0.0, 0.0, 0.0]), scalar_first=True).as_matrix()[:, 2]
    return np.where(seen[:, None], height + up @ corners.T, np.nan)


def impact_constants(law: ImpactLaw) -> dict[str, Constant]:
    """How fast things at rest accelerate by themselves along each position; every surface's restitution and place."""
    out, n = {}, law.flight.positions
    for axis, name in enumerate(law.flight.coordinates[:n]):
        unit = law.flight.units[axis]
        out[f"acceleration along {name}"] = Constant(*at_rest(law, axis), f"{unit}/s²" if unit else "")
    return out | law.surfaces


def at_rest(law: ImpactLaw, axis: int) -> tuple[float, float]:
    """The acceleration at rest where things usually are, and its standard error, by the delta method.

    The error is NaN where that of a parameter it may hang on is not known.
    """
    flight, seen = law.flight, law.flight.circumstances
    n = flight.positions
    q = np.zeros((1, n)) if seen is None else np.array([seen.position_mean])
    still = q, np.zeros((1, n)), np.zeros((1, len(flight.inputs)))
    value = float(flight.acceleration(0, *still)[0, axis])
    estimated = flight.support & flight.form.free
    if np.isnan(np.diag(flight.covariance)[estimated]).any():
        return value, np.nan
    picked = np.flatnonzero(np.nan_to_num(np.diag(flight.covariance)) > 0)
    slopes = []
    for i in picked:
        step = 1e-3 * float(np.sqrt(flight.covariance[i, i]))
        theta = flight.theta.copy()
        theta[i] += step
        moved = replace(flight, theta=theta).acceleration(0, *still)[0, axis]
        slopes.append((float(moved) - value) / step)
    inner = flight.covariance[np.ix_(picked, picked)]
    return value, float(np.sqrt(max(np.array(slopes) @ inner @ np.array(slopes), 0.0))) if slopes else 0.0
