"""Laws and their recordings for the tests of pictures: simulated without noise, so that what is drawn is known."""

from dataclasses import replace
from functools import cache

import numpy as np

from vhydro.lagrangian import Friction, Inertia, Lagrangian, Potential, Shape, Surface, Touch
from vhydro.laws import LagrangeLaw, Law, Problem, Recording
from vhydro.laws.as_model import Circumstances
from vhydro.laws.tracks import Tracks, prepared
from vhydro_audits.laws_truth import Trial, problem_of, trial, true_law

DT = 0.004
VISCOUS, COULOMB, BETWEEN, PLACE = 0.4, 0.7, 0.3, 0.1
WAYS = {"block": ((1, 0, 1.0), (2, 0, -1.0))}


@cache
def known(task: str) -> tuple[Law, Trial, Tracks]:
    """The true law of one of the four systems, with which way its modes go, and a recording without noise."""
    law, log = true_law(task), trial(task, 0, 0.0, 0.0, 0.0, episodes=4, steps=400, dt=0.005)
    n = law.positions
    seen = Circumstances(0.005, *((1.0,) * n for _ in range(5)), directions=WAYS.get(task, ()))
    return replace(law, circumstances=seen), log, prepared(log.recording, problem_of(task))


def two_bodies() -> LagrangeLaw:
    """Two bodies on springs that touch where the first is ahead of the second, with three frictions."""

    def square(i: int, j: int) -> Shape:
        return Shape(tuple((k == i) + (k == j) for k in range(2)))

    one = Shape((0, 0))
    rubs = Friction("viscous", 0), Friction("Coulomb", 0), Friction("viscous", 0, 1)
    form = Lagrangian(
        2, 1, 0, (Inertia(0, 0, one), Inertia(1, 1, one)), (Potential(square(0, 0)), Potential(square(1, 1))), rubs,
        (Touch(1, Surface(0, "above", 1)),), (None, None), (None,) * 3, ((1.0,), (0.0,)), (1e-3, 1e-3), dry=(5,),
    )  # fmt: skip
    theta = np.array([1.2, 0.6, 6.0, 5.0, VISCOUS, COULOMB, BETWEEN, 1.0, 0.0, 300.0, 1.0, PLACE])
    names = ("x1", "x2", "v_1", "v_2"), ("m", "m", "m/s", "m/s"), ("force",), ("apart", "touching")
    parts = {"support": theta != 0, "covariance": np.zeros((len(theta), len(theta))), "estimator": "lagrange"}
    return LagrangeLaw(*names, form, theta, **parts)


@cache
def bumped() -> tuple[np.ndarray, np.ndarray, Tracks]:
    """States and forces of the two bodies, and their tracks, with a span of one position hidden."""
    law, random = two_bodies(), np.random.default_rng(0)
    forces = np.repeat(random.uniform(-8, 8, (3, 12, 1)), 100, 1)
    starts = random.normal(scale=[0.3, 0.3, 1.0, 1.0], size=(3, 4))
    states = np.stack([law.simulate(s, u, DT) for s, u in zip(starts, forces, strict=True)])
    positions = states[..., :2].copy()
    positions[0, 300:400, 1] = np.nan
    on = states[..., 0] - states[..., 1] > PLACE
    port = np.array([[0.0], [0.0], [1.0], [0.0]])
    problem = Problem(law.coordinates, law.units, law.inputs, law.modes, (), np.full(2, np.nan), port)
    return states, forces, prepared(Recording(positions, forces, np.eye(2)[on.astype(int)], DT), problem)
