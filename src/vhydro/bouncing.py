"""Impacts that last less than a step: what meets a surface within a step leaves it again in the same step."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from vhydro.lagrangian import Surface

Coordinates = Sequence[Any]  # one array for each: positions, then velocities or momenta


class Rebound(NamedTuple):
    """A surface that a position, or the difference of two, bounces off: `v ← −restitution v` at its place."""

    surface: Surface  # what is past its place is beyond it
    place: Any
    restitution: Any
    slow: Any  # what would leave more slowly stays


def rebounded(
    rebound: Rebound, light: Sequence[Any], pushed: Sequence[Any], before: Coordinates, after: Coordinates, time: Any
) -> list[Any]:
    """Where a step ends that would end `after` if there were no surface: as it is, unless it meets the surface.

    `light` is what turns each coordinate of motion into a velocity, `pushed` how all of them follow an impulse of one
    along the surface: between two bodies it is one on the first and minus one on the second. The acceleration counts as
    constant within the step. With a restitution of at most 1 no energy is won.
    """
    n, surface, sign = len(after) // 2, rebound.surface, rebound.surface.sign
    kicked = [x * p for x, p in zip(light, pushed, strict=True)]
    gives = surface.along(kicked)  # speed along the surface, for an impulse of one
    speed, was = (sign * surface.along([x * p for x, p in zip(light, z[n:], strict=True)]) for z in (after, before))
    rate = (speed - was) / time
    past = sign * (surface.along(after) - rebound.place)
    squared = speed**2 - 2 * rate * past
    root = jnp.sqrt(jnp.where(squared > 1e-20, squared, 1e-20))
    total = speed + root
    since = jnp.clip(2 * past / jnp.where(total > 1e-12, total, 1e-12), 0.0, time)  # it met the surface so long ago
    hit = speed - rate * since
    meets = (past > 0) & (hit > -rebound.slow)
    leaves = jnp.clip(rebound.restitution, 0.0, 1.0) * hit
    rests = leaves <= jnp.maximum(rebound.slow, 0.5 * rate * since)
    change = jnp.where(rests, 0.0, rate * since - leaves) - speed
    shift = jnp.where(rests, 0.0, (0.5 * rate * since - leaves) * since) - past
    # Both are shared as the impulse is, so that two bodies keep their momentum and the middle of their mass.
    places = [x + sign * shift * k / gives for x, k in zip(after[:n], kicked, strict=True)]
    motion = [x + sign * change * p / gives for x, p in zip(after[n:], pushed, strict=True)]
    return [jnp.where(meets, x, y) for x, y in zip([*places, *motion], after, strict=True)]
