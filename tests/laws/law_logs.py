"""Logs that several tests of laws share: a bouncing puck, and a mass on a spring whose motion is exact."""

from functools import cache

import numpy as np

from oracles.oscillator import DT, oscillator
from vhydro.lagrangian import Friction, Inertia, Lagrangian, Potential, Remainder, Shape
from vhydro.laws.lagrange_law import LagrangeLaw
from vhydro.laws.problem import Problem
from vhydro.laws.recording import Recording
from vhydro.library import Library, Monomial
from vhydro_audits.laws_truth import Trial, trial

KINETIC, LINE, SQUARE, CUBE = Monomial((0, 2)), Monomial((1, 0)), Monomial((2, 0)), Monomial((3, 0))


def swinging(noise: float = 0.0, seed: int = 0) -> Recording:
    """A mass on a spring, seen with noise given as a share of its spread."""
    states, forces = oscillator(4, 400, seed)
    q = states[..., :1]
    seen = q + noise * q.std() * np.random.default_rng(seed).standard_normal(q.shape)
    return Recording(seen, forces, np.ones((*q.shape[:2], 1)), DT)


def swing_problem(library: Library = (KINETIC, LINE, SQUARE, CUBE)) -> Problem:
    """The mass on a spring, with a force of known size and friction to be found."""
    names = ("q", "p"), ("m", "kg m/s"), ("force",), ("swings",)
    return Problem(*names, library, np.array([np.nan]), np.array([[0.0], [1.0]]))


@cache
def puck(seed: int = 0) -> Trial:
    """Six episodes of 2 s of the puck with 0.1 % noise on its position."""
    return trial("puck", seed, 0.001, 0.0, 0.0, episodes=6, steps=400, dt=0.005)


SPRINGS = (4.0, 3.0)  # N/m, halved: of the two positions of `coupled_law`


def coupled_law() -> LagrangeLaw:
    """Two positions that inertia couples, each on a spring and on a rough table; a force drives the first."""
    one, squares = Shape((0, 0)), [Shape((2, 0)), Shape((0, 2))]
    inertia = Inertia(0, 0, one), Inertia(1, 1, one), Inertia(0, 1, one)
    springs, rubs = tuple(map(Potential, squares)), (Friction("Coulomb", 0), Friction("Coulomb", 1))
    form = Lagrangian(
        2, 1, 0, inertia, springs, rubs, (), (None,) * 3, (None,) * 2, ((1.0,), (0.0,)), (1e-3, 1e-3), dry=(5, 6)
    )
    theta = np.array([1.0, 0.8, 0.3, *SPRINGS, 0.4, 0.6, 1.0, 0.0])
    names = ("x", "y", "v_x", "v_y"), ("m", "m", "m/s", "m/s"), ("force",), ("slides",)
    return LagrangeLaw(*names, form, theta, theta != 0, np.zeros((9, 9)), "given")


def van_der_pol(
    noise: float = 1e-3, *, mu: float = 1.2, seed: int = 0, episodes: int = 6, steps: int = 600
) -> Recording:
    """An oscillator that shakes itself: `v̇ = −x + mu (1 − x²) v + force`, seen with noise as a share of its spread."""
    flat, square = Shape((0,)), Shape((2,))
    terms = (Inertia(0, 0, flat),), (Potential(square),), ()
    given = (), (None,), (), ((1.0,),), (1e-3,)
    form = Lagrangian(1, 1, 0, *terms, *given, remainder=(Remainder(0, flat), Remainder(0, square)))
    names = ("x", "v_x"), ("m", "m/s"), ("force",), ("oscillates",)
    theta, every = np.array([1.0, 0.5, -mu, mu, 1.0]), np.ones(5, bool)
    law = LagrangeLaw(*names, form, theta, every, np.zeros((5, 5)), "given")
    generator = np.random.default_rng(seed)
    pushes = np.repeat(generator.uniform(-1, 1, (episodes, steps // 50, 1)), 50, 1)
    starts = generator.uniform(-2, 2, (episodes, 2))
    states = np.stack([law.simulate(z, a, 0.01) for z, a in zip(starts, pushes, strict=True)])
    x = states[..., :1]
    seen = x + noise * x.std() * generator.standard_normal(x.shape)
    return Recording(seen, pushes, np.ones((*x.shape[:2], 1)), 0.01)


def oscillator_problem() -> Problem:
    """What is told of `van_der_pol`: that the input is a force."""
    names = ("x", "p"), ("m", "kg m/s"), ("force",), ("oscillates",)
    return Problem(*names, (), np.array([np.nan]), np.array([[0.0], [1.0]]))
