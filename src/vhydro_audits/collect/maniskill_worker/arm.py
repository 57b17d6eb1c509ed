"""The arm of our own motion plans: from pose to pose, or no plan at all."""

from collections.abc import Iterable

import numpy as np
import sapien
from mani_skill.examples.motionplanning.panda.motionplanner import PandaArmMotionPlanningSolver

SHARE = 0.75  # of the planner's speeds and accelerations
# Distances between the points of a path, in rad over all joints: the planner takes the first that leads to a path. It
# gives up, by bad luck, where hardly anything is left for the last point.
FINE = (0.02, 0.017)
COARSE = (0.1,)  # ManiSkill's own: the spline through such points overshoots the last by up to 7 mm
DOWN = np.array([0.0, 0.0, -1.0])


class NoPath(Exception):
    """The planner found no way to a pose."""


class Arm(PandaArmMotionPlanningSolver):
    """ManiSkill's planner for the Panda, moving in straight lines; its hand is open at first.

    `share` is how fast it moves: in every joint, the multiple of 1 rad/s and of 1 rad/s², which the robot can exceed.
    """

    def __init__(self, env, spacings: tuple[float, ...] = FINE, share: float = SHARE):
        super().__init__(
            env, vis=False, base_pose=env.unwrapped.agent.robot.pose, visualize_target_grasp_pose=False,
            print_env_info=False, joint_vel_limits=share, joint_acc_limits=share,
        )  # fmt: skip
        self._spacings = spacings

    def go(self, pose: sapien.Pose, *, settle: int = 0):
        """The answer of the last step; `settle` steps are added in which the arm comes to rest."""
        path = self.path(pose)
        if path is None:
            raise NoPath
        return self.follow_path(path, refine_steps=settle)

    def path(self, pose: sapien.Pose) -> dict | None:
        """Joint positions along a straight line to the pose, if there are any."""
        start, target = self.robot.get_qpos()[0].numpy(), np.concatenate([pose.p, pose.q])
        for spacing in self._spacings:
            path = self.planner.plan_screw(target, start, spacing, self.base_env.control_timestep)
            if path["status"] == "Success":
                return path
        return None

    def reachable(self, poses: Iterable[sapien.Pose]) -> sapien.Pose:
        """The first of the poses that a straight line leads to."""
        for pose in poses:
            if self.path(pose) is not None:
                return pose
        raise NoPath


def pointing_down(scene, place: np.ndarray, across: np.ndarray) -> sapien.Pose:
    """The hand at a place, its fingers downwards and opening along the horizontal direction `across`.

    Of the two such poses, which differ by half a turn, the one nearer to how the hand is held now.
    """
    held = scene.agent.tcp.pose.to_transformation_matrix()[0, :3, 1].numpy()
    return scene.agent.build_grasp_pose(DOWN, across if across @ held >= 0 else -across, place)


def above(pose: sapien.Pose, height: float) -> sapien.Pose:
    """The same pose, higher by this much."""
    return sapien.Pose(pose.p + np.array([0, 0, height]), pose.q)


def heading(angle: float) -> np.ndarray:
    """The horizontal unit vector at this angle from the x axis, which leads away from the robot."""
    return np.array([np.cos(angle), np.sin(angle), 0.0])
