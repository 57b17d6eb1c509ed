"""Gravity and restitution of a real cube, from 400 tosses filmed by motion capture.

Data: poses of the cube, nothing else. Given: its mass and its size. Impacts are found by themselves, along the heights
of its corners; the law of flight is that of its centre. (ContactNets, CoRL 2020.)

    python examples/cube_toss_law.py --path cube_tosses.npz
"""

from itertools import product
from pathlib import Path

import numpy as np
import tyro
from scipy.spatial.transform import Rotation

from vhydro.data import read
from vhydro.laws import LagrangeLaw, Problem, Recording
from vhydro.laws.impacts import ImpactLaw, impact_law

DATA = Path(__file__).parents[1] / ".." / "shared" / "data" / "real" / "cube_tosses.npz"


def tosses(path: Path) -> tuple[Recording, np.ndarray, dict]:
    """Heights of the centre and of all corners, shorter tosses padded, and what the file says about itself."""
    episodes = list(read(path))
    info, longest = dict(episodes[0].info), max(len(e.observations) for e in episodes)
    body = float(info["half_width"]) * np.array(list(product((-1, 1), repeat=3)))
    centre = np.full((len(episodes), longest, 1), np.nan)
    corners, there = np.full((len(episodes), longest, 8), np.nan), np.zeros((len(episodes), longest, 1))
    for i, episode in enumerate(episodes):
        pose = episode.observations
        up = Rotation.from_quat(pose[:, 3:7], scalar_first=True).as_matrix()[:, 2]
        centre[i, : len(pose), 0] = pose[:, 2]
        corners[i, : len(pose)] = pose[:, 2:3] + up @ body.T
        there[i, : len(pose)] = 1.0
    return Recording(centre, np.zeros((len(episodes), longest - 1, 0)), there, episodes[0].dt), corners, info


def cube_law(path: Path) -> tuple[ImpactLaw, dict]:
    """The law of flight and of impacts, and what the file says about itself."""
    recording, corners, info = tosses(path)
    known = np.array([float(info["mass"])])
    names = ("z", "p"), ("m", "kg m/s"), (), ("flight",)
    problem = Problem(*names, (), np.array([np.nan]), np.zeros((2, 0)), masses=known)
    return impact_law(recording, problem, points=corners), info


def main(path: Path = DATA) -> None:
    """Print the law of flight and of impacts."""
    law, info = cube_law(path)
    print(law)
    assert isinstance(law.flight, LagrangeLaw)
    weight = law.flight.terms(0)["V z"]
    print(f"gravity: {weight.value / float(info['mass']):.3f} ± {weight.error / float(info['mass']):.3f} m/s²")
    print(f"restitution that the authors report: {float(info['restitution_reported']):.3f}")


if __name__ == "__main__":
    tyro.cli(main)
