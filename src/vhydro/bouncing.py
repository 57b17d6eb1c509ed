"""Impacts that last less than a step: what meets a surface within a step leaves it again in the same step."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

Coordinates = Sequence[Any]  # one array for each: positions, then velocities or momenta


class Rebound(NamedTuple):
    """A surface that a position bounces off: `v ← −restitution v` at its place."""

    axis: int
    sign: float  # 1 where what is above the place is beyond the surface (a ceiling), −1 where what is below (a floor)
    place: Any
    restitution: Any
    slow: Any  # what would leave more slowly stays


def rebounded(surface: Rebound, light: Any, pushed: Sequence[Any], before: Coordinates, after: Coordinates, time):
    """Where a step ends that would end `after` if there were no surface: as it is, unless it meets the surface.

    `light` is what turns the coordinate of motion along the surface's axis into a velocity, `pushed` how the others
    follow an impulse that changes it by one. The acceleration counts as constant within the step. With a restitution of
    at most 1 no energy is won.
    """
    n, axis, sign = len(after) // 2, surface.axis, surface.sign
    speed, was = (sign * light * z[n + axis] for z in (after, before))
    rate = (speed - was) / time
    past = sign * (after[axis] - surface.place)
    squared = speed**2 - 2 * rate * past
    root = jnp.sqrt(jnp.where(squared > 1e-20, squared, 1e-20))
    total = speed + root
    since = jnp.clip(2 * past / jnp.where(total > 1e-12, total, 1e-12), 0.0, time)  # it met the surface so long ago
    hit = speed - rate * since
    meets = (past > 0) & (hit > -surface.slow)
    leaves = jnp.clip(surface.restitution, 0.0, 1.0) * hit
    rests = leaves <= jnp.maximum(surface.slow, 0.5 * rate * since)
    change = jnp.where(rests, 0.0, rate * since - leaves) - speed
    depth = jnp.where(rests, 0.0, (0.5 * rate * since - leaves) * since)
    out = list(after)
    for other, follows in enumerate(pushed):
        kick = sign * change / light * follows
        out[n + other] = out[n + other] + kick
        out[other] = out[other] + (0.0 if other == axis else light * kick * since)
    out[axis] = surface.place + sign * depth
    return [jnp.where(meets, x, y) for x, y in zip(out, after, strict=True)]
