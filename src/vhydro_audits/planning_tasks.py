"""What planners are asked for in ManiSkill's tasks: one cost for each, written once, the same for every method."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from vhydro.planning import Task
from vhydro_audits.collect.scripted import BODIES, goal_place, grip_place, holds, place, to_turn

AT_THE_END = 0.5  # weight of the last cost beside the mean of all: with 2 plans put off what they can do now
BOUND = 20.0
ACTIONS = {"tcp.dx": (-0.7, 0.7), "tcp.dy": (-0.7, 0.7), "tcp.dz": (-0.7, 0.7), "gripper.command": (-1.0, 1.0)}
TURNED, ABOVE = 0.15, 0.06  # rad from which fingers are across the body; m above it where they wait until they are
WIDE, GRIP = 0.04, 0.5  # m: fingers that are open; cost of their being open where they should not be, or closed


class PushCost(eqx.Module):
    """How far the cube is from the goal, and the hand from behind it."""

    goal: jax.Array

    def __call__(self, z, _mode, _a=None):
        cube, hand = _point(z, "cube"), _point(z, "tcp")
        away = jnp.hypot(cube[0] - self.goal[0], cube[1] - self.goal[1])
        behind = _length([hand[0] - cube[0] + 0.05, hand[1] - cube[1], hand[2] - 0.03])
        front = jnp.maximum(hand[0] - cube[0] + 0.02, 0.0)
        return jnp.minimum(10 * jnp.maximum(away - 0.06, 0.0) + 2 * behind + 4 * front, BOUND)


class CarryCost(eqx.Module):
    """Subgoals in one cost: above where the body is grasped, down to it, grasp, carry, be still there or let go."""

    goal: jax.Array  # of the body's middle: its next place, which moves on where a peg goes into its hole
    grip: jax.Array  # from the body's middle to where it is grasped
    wait: jax.Array  # how far above that the hand stays for now
    body: str = eqx.field(static=True)
    rests: bool = eqx.field(static=True)  # whether the robot shall be still at the goal
    release: bool = eqx.field(static=True)

    def __call__(self, z, _mode, _a=None):
        thing, hand = _point(z, self.body), _point(z, "tcp")
        away = _length([thing[i] - self.goal[i] for i in range(3)])
        gap = [hand[i] - thing[i] - self.grip[i] for i in range(3)]
        near, flat = _length(gap), jnp.hypot(*gap[:2])
        apart = _length([*gap[:2], gap[2] - self.wait])
        above = jnp.maximum(jnp.clip(3 * (flat - 0.02), 0.0, 0.06) + self.wait - gap[2], 0.0)  # down a funnel
        speed = _length([z[f"tcp.{x} step"] for x in "xyz"])
        still = jnp.where(away < 0.03, 8 * speed, 0.0) if self.rests else 0.0
        # Around the body it is better to have closed than not to be there, and not to be there than to come closed.
        around = jnp.clip((0.03 - near) / 0.015, 0.0, 1.0)
        wide = jnp.clip(z["opening"] / WIDE, 0.0, 1.0)
        grip = around * wide + (1 - around) * (2 - wide)
        if self.release:  # where it belongs it is better still to have opened, and to be closed no worse
            grip = jnp.where(away < 0.025, 6 * (1 - wide), 3 + grip)
        return jnp.minimum(10 * away + 5 * apart + 2 * above + still + GRIP * grip, BOUND)


def _point(z, body: str) -> list[Any]:
    return [z[f"{body}.{x}"] for x in "xyz"]


def _length(parts: list[Any]) -> Any:
    return jnp.sqrt(sum(p**2 for p in parts) + 1e-12)


def task_of(name: str, values) -> Task:
    """What is next to do in a task, by what is seen; the same for every method."""
    goal = jnp.asarray(goal_place(name, values))
    if name == "PushCube":
        cost = PushCost(goal)
    else:
        grip = grip_place(name, values) - place(values, BODIES[name][0])
        turns = abs(to_turn(name, values)) > TURNED and not holds(name, values)
        wait = jnp.asarray(ABOVE if turns else 0.0)
        cost = CarryCost(goal, jnp.asarray(grip), wait, BODIES[name][0], name == "PickCube", name == "StackCube")
    return Task(cost, bound=BOUND, actions=ACTIONS, final=cost, final_weight=AT_THE_END)
