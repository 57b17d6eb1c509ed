"""ManiSkill's own demonstration of PlaceSphere, and a wait: it lets the sphere fall the last 2 cm into the bin."""

from arm import Arm
from mani_skill.examples.motionplanning.panda import solutions

SETTLE = 10  # steps with the hand open and still; without them more than half of the spheres are still rolling


def solve(env, seed: int):
    """The answer of the last step, or -1 where no path was found."""
    answer = solutions.solvePlaceSphere(env, seed=seed)
    return answer if isinstance(answer, int) else Arm(env).open_gripper(t=SETTLE)
