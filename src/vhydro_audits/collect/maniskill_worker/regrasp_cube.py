"""RegraspCube: a cube is set down halfway, grasped anew across its other faces, and set down at the goal."""

import numpy as np
import sapien
import torch
from arm import DOWN, Arm, above
from mani_skill.envs.tasks import PickCubeEnv
from mani_skill.envs.utils import randomization
from mani_skill.utils.building import actors
from mani_skill.utils.registration import register_env
from mani_skill.utils.structs.pose import Pose

APART = 0.045  # m; half of what any two of start, halfway and goal are apart at least
LIFT = 0.08  # m, to carry and to let go of the cube
DROP = 0.002  # m above the table at which the cube is let go
SETTLE = 5  # steps at the end: success asks for a robot at rest


@register_env("RegraspCube-v1", max_episode_steps=300)
class RegraspCubeEnv(PickCubeEnv):
    """A task of our own on the scene of ManiSkill's PickCube, with another goal and another success.

    The cube starts at random on the table, turned at random. A place halfway and the goal lie on the table too, within
    10 cm of its middle along x and 15 cm along y, and at least 9 cm apart from each other and from the start.

    Success: the cube has rested free of the hand at the place halfway before, and now rests so at the goal, each
    within 2.5 cm. That it has rested is remembered by the environment and is no part of its state.
    """

    SUPPORTED_REWARD_MODES = ("sparse", "none")

    def _load_scene(self, options: dict):
        super()._load_scene(options)
        self.halfway_site = actors.build_sphere(
            self.scene, radius=self.goal_thresh, color=[1, 1, 0, 1], name="halfway_site", body_type="kinematic",
            add_collision=False, initial_pose=sapien.Pose(),
        )  # fmt: skip
        self._hidden_objects.append(self.halfway_site)

    def _initialize_episode(self, env_idx: torch.Tensor, options: dict):
        super()._initialize_episode(env_idx, options)
        sampler = randomization.UniformPlacementSampler([[-0.1, -0.15], [0.1, 0.15]], len(env_idx), self.device)
        for body in (self.cube, self.halfway_site, self.goal_site):
            place = torch.full((len(env_idx), 3), self.cube_half_size)
            place[:, :2] = sampler.sample(APART, 100)
            body.set_pose(Pose.create_from_pq(place, body.pose.q))
        self.was_halfway = torch.zeros(len(env_idx), dtype=torch.bool)

    def evaluate(self):
        is_grasped, is_robot_static = self.agent.is_grasping(self.cube), self.agent.is_static(0.2)
        rests = ~is_grasped & self.cube.is_static(1e-2, 0.5)
        self.was_halfway = self.was_halfway | (rests & self._cube_at(self.halfway_site))
        placed = rests & self._cube_at(self.goal_site)
        return {
            "success": self.was_halfway & placed & is_robot_static,
            "was_halfway": self.was_halfway,
            "is_obj_placed": placed,
            "is_robot_static": is_robot_static,
            "is_grasped": is_grasped,
        }

    def _cube_at(self, site) -> torch.Tensor:
        return torch.linalg.norm(self.cube.pose.p - site.pose.p, axis=1) <= self.goal_thresh


def solve(env, seed: int):
    """The answer of the last step: the cube is carried twice, grasped across one pair of faces and then the other."""
    env.reset(seed=seed)
    scene, arm = env.unwrapped, Arm(env)
    carry(arm, arm.reachable(grasp_poses(scene)[:2]), scene.halfway_site)
    return carry(arm, arm.reachable(grasp_poses(scene)[2:]), scene.goal_site)


def grasp_poses(scene) -> list[sapien.Pose]:
    """The four grasps of the cube from above, those that turn the wrist least first."""
    turned = scene.cube.pose.to_transformation_matrix()[0, :3, :2].numpy().T
    held = scene.agent.tcp.pose.to_transformation_matrix()[0, :3, 1].numpy()
    sides = [sign * (side * [1, 1, 0]) / np.linalg.norm(side[:2]) for side in turned for sign in (1, -1)]
    sides.sort(key=lambda side: -abs(side @ held))
    return [scene.agent.build_grasp_pose(DOWN, side, scene.cube.pose.sp.p) for side in sides]


def carry(arm: Arm, grasp: sapien.Pose, site):
    """The answer of the last step: the cube is taken, set down at the site, and left alone."""
    arm.go(above(grasp, LIFT))
    arm.go(grasp)
    arm.close_gripper()
    arm.go(above(grasp, LIFT))
    there = sapien.Pose(site.pose.sp.p + np.array([0, 0, DROP]), grasp.q)
    arm.go(above(there, LIFT))
    arm.go(there)
    arm.open_gripper()
    return arm.go(above(there, LIFT), settle=SETTLE)
