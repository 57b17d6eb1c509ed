"""A motion-planned demonstration of PokeCube, for which ManiSkill ships none: grasp the peg, align it, poke."""

import numpy as np
import sapien
from mani_skill.examples.motionplanning.panda.motionplanner import PandaArmMotionPlanningSolver

BEHIND = 0.08  # m from the peg's middle back to the grasp: the head stays free to poke
ABOVE = 0.005  # m from the peg's axis up to the grasp
LIFT = 0.006  # m, so that the peg does not scrape along the table
GAP = 0.03  # m from the peg's head to the cube before the poke
POKE = 0.075  # m that the cube is pushed; the goal lies 0.1 m ahead with a radius of 0.05 m
SETTLE = 5  # steps at the end: success asks for a robot at rest
NO_PLAN = -1  # what ManiSkill's solvers return


def solve(env, seed: int):
    """The answer of the last step, or -1 where no path was found."""
    env.reset(seed=seed)
    scene = env.unwrapped
    arm = PandaArmMotionPlanningSolver(
        env, vis=False, base_pose=scene.agent.robot.pose, visualize_target_grasp_pose=False, print_env_info=False,
        joint_vel_limits=0.75, joint_acc_limits=0.75,
    )  # fmt: skip
    grasp = grasp_pose(scene)
    if NO_PLAN in (arm.move_to_pose_with_screw(p) for p in (grasp * sapien.Pose([0, 0, -0.05]), grasp)):
        return NO_PLAN
    arm.close_gripper()
    *approach, poke = poke_poses(scene, grasp)
    for pose in approach:
        if arm.move_to_pose_with_screw(pose) == NO_PLAN:
            return NO_PLAN
    return arm.move_to_pose_with_screw(poke, refine_steps=SETTLE)


def grasp_pose(scene) -> sapien.Pose:
    """From above and behind the peg's middle, the wrist turned as little as possible."""
    across = np.sign(scene.agent.tcp.pose.to_transformation_matrix()[0, 1, 1].item())
    middle = scene.peg.pose.sp.p + np.array([-BEHIND, 0, ABOVE])
    return scene.agent.build_grasp_pose(np.array([0, 0, -1.0]), np.array([0, across, 0]), middle)


def poke_poses(scene, grasp: sapien.Pose) -> list[sapien.Pose]:
    """Where the hand goes with the peg: up, in front of the cube, and through to the goal."""
    peg, cube = scene.peg.pose.sp.p, scene.cube.pose.sp.p
    face = cube[0] - scene.cube_half_size
    heads = [(peg[0] + scene.peg_half_length, peg[1]), (face - GAP, cube[1]), (face + POKE, cube[1])]
    reach = scene.peg_half_length + BEHIND
    return [sapien.Pose([x - reach, y, grasp.p[2] + LIFT], grasp.q) for x, y in heads]
