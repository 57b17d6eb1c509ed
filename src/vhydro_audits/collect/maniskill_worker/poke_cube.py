"""A motion-planned demonstration of PokeCube, for which ManiSkill ships none: grasp the peg, align it, poke."""

import numpy as np
import sapien
from arm import COARSE, Arm, pointing_down

BEHIND = 0.08  # m from the peg's middle back to the grasp: the head stays free to poke
ABOVE = 0.005  # m from the peg's axis up to the grasp
LIFT = 0.006  # m, so that the peg does not scrape along the table
GAP = 0.03  # m from the peg's head to the cube before the poke
POKE = 0.075  # m that the cube is pushed; the goal lies 0.1 m ahead with a radius of 0.05 m
SETTLE = 5  # steps at the end: success asks for a robot at rest


def solve(env, seed: int):
    """The answer of the last step."""
    env.reset(seed=seed)
    arm, grasp = Arm(env, COARSE), grasp_pose(env.unwrapped)
    arm.go(grasp * sapien.Pose([0, 0, -0.05]))
    arm.go(grasp)
    arm.close_gripper()
    *approach, poke = poke_poses(env.unwrapped, grasp)
    for pose in approach:
        arm.go(pose)
    return arm.go(poke, settle=SETTLE)


def grasp_pose(scene) -> sapien.Pose:
    """From above and behind the peg's middle, the wrist turned as little as possible."""
    return pointing_down(scene, scene.peg.pose.sp.p + np.array([-BEHIND, 0, ABOVE]), np.array([0, 1.0, 0]))


def poke_poses(scene, grasp: sapien.Pose) -> list[sapien.Pose]:
    """Where the hand goes with the peg: up, in front of the cube, and through to the goal."""
    peg, cube = scene.peg.pose.sp.p, scene.cube.pose.sp.p
    face = cube[0] - scene.cube_half_size
    heads = [(peg[0] + scene.peg_half_length, peg[1]), (face - GAP, cube[1]), (face + POKE, cube[1])]
    reach = scene.peg_half_length + BEHIND
    return [sapien.Pose([x - reach, y, grasp.p[2] + LIFT], grasp.q) for x, y in heads]
