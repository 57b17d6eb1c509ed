"""A body that falls and bounces without turning; its gravity and restitution are known."""

import numpy as np

from vhydro.episodes import Channel, Episode

GRAVITY, RESTITUTION, HALF, DT = 9.7, 0.6, 0.05, 0.005
NAMES = ("x", "y", "z", "qw", "qx", "qy", "qz")


def toss(height: float, seconds: float, noise: float, generator: np.random.Generator, turn=(1.0, 0, 0, 0)) -> Episode:
    """A body that falls from a height above the floor and bounces, without turning."""
    t = DT * np.arange(round(seconds / DT))
    z, begin, start, speed = np.zeros_like(t), 0.0, height, 0.0
    while begin < t[-1]:
        lasts = (speed + np.sqrt(speed**2 + 2 * GRAVITY * start)) / GRAVITY
        now = (t >= begin) & (t <= begin + lasts)
        own = t[now] - begin
        z[now] = start + speed * own - 0.5 * GRAVITY * own**2
        begin, start, speed = begin + lasts, 0.0, RESTITUTION * abs(speed - GRAVITY * lasts)
    place = np.column_stack([0.3 * t, 0 * t, z + HALF]) + noise * generator.standard_normal((len(t), 3))
    pose = np.column_stack([place, np.tile(turn, (len(t), 1))])
    channels = tuple(Channel(f"cube.{n}", unit="m" if len(n) == 1 else "") for n in NAMES)
    return Episode(pose, np.zeros((len(t) - 1, 0)), DT, channels)


def tosses(count: int) -> list[Episode]:
    """Drops from several heights, of several lengths."""
    generator = np.random.default_rng(0)
    heights = generator.uniform(0.6, 1.2, count)
    return [toss(height, 0.9 + 0.1 * (i % 3), 2e-4, generator) for i, height in enumerate(heights)]
