"""The law of a real linear drive from half of its record, judged on the rest beside inverse-dynamics least squares.

python examples/emps_halves.py emps.npz
"""

import sys

import numpy as np

from vhydro.laws import LawsConfig, Problem, Recording, ShootingConfig, recover, table
from vhydro.library import Monomial
from vhydro_audits.baselines.inverse_dynamics import EDGE, inverse_dynamics, motion


def drive_law(q: np.ndarray, force: np.ndarray, dt: float):
    """The law of a drive, its modes the two directions of motion, by the weak form."""
    backward = motion(q, force, dt).velocity < 0
    recording = Recording(q[None, :, None], force[None, :-1, None], np.eye(2)[backward.astype(int)][None], dt)
    problem = Problem(
        ("q", "p"), ("m", "kg m/s"), ("force",), ("forward", "backward"), (Monomial((0, 2)), Monomial((1, 0))),
        dissipation=np.array([np.nan]), port=np.array([[0.0], [1.0]]),
    )  # fmt: skip
    return recover(recording, problem, LawsConfig(estimator="weak", shooting=ShootingConfig(bump=100)))


def force_error(law, q: np.ndarray, force: np.ndarray, dt: float) -> float:
    """Root mean square of the force that a law leaves over on a record, in N."""
    seen, inside = motion(q, force, dt), slice(EDGE, -EDGE)
    v, a, f = (x[inside, None] for x in seen)
    mass = 0.5 / law.energy(0)[Monomial((0, 2))].value
    moved = [law.acceleration(mode, q[inside, None], v, f) for mode in (0, 1)]
    off = mass * (np.where(v >= 0, *moved) - a)
    return float(np.sqrt(np.mean(off**2)))


if __name__ == "__main__":
    log = np.load(sys.argv[1])
    q, force, dt = log["qm"], float(log["gtau"]) * log["vir"], float(log["dt"])
    print(drive_law(q, force, dt), table(drive_law(q, force, dt)), inverse_dynamics(motion(q, force, dt)), sep="\n")
    halves = [slice(0, len(q) // 2), slice(len(q) // 2, None)]
    for fitted, left in (halves, halves[::-1]):
        ours = force_error(drive_law(q[fitted], force[fitted], dt), q[left], force[left], dt)
        least, seen = inverse_dynamics(motion(q[fitted], force[fitted], dt)), motion(q[left], force[left], dt)
        theirs = (least.force(seen.velocity, seen.acceleration) - seen.force)[EDGE:-EDGE]
        print(f"held-out half: {ours:.2f} N, inverse-dynamics least squares {np.sqrt(np.mean(theirs**2)):.2f} N")
