"""PushPair: the closed hand pushes one cube into another, and both on to a goal."""

import numpy as np
import sapien
import torch
from arm import Arm, above, heading, pointing_down
from mani_skill.envs.tasks import StackCubeEnv
from mani_skill.utils.building import actors
from mani_skill.utils.registration import register_env
from mani_skill.utils.structs.pose import Pose
from transforms3d.euler import euler2quat

HALF = 0.02  # m, of a cube's side
PUSH = 0.08  # m that the second cube is to go
NEAR = 0.03  # m from the goal that is good enough
TOUCHING = 0.012  # m by which two cubes may be farther apart than their sides
FINGER = 0.011  # m from the hand's axis to the face of the closed fingers
GAP = 0.03  # m between fingers and cube, before and after
HOVER = 0.08  # m above the start of the push
SETTLE = 5  # steps at the end: success asks for a robot at rest


@register_env("PushPair-v1", max_episode_steps=200)
class PushPairEnv(StackCubeEnv):
    """A task of our own on the scene of ManiSkill's StackCube, with another start and another success.

    Two cubes lie one behind the other, 2 to 6 cm apart, along a line that leads away from the robot and is turned by
    up to 0.5 rad; each is off the line by up to 3 mm and turned from it by up to 0.1 rad. The goal is 8 cm behind the
    second cube. The robot can only reach it through the first one.

    Success: the second cube is within 3 cm of the goal and the first beside it, both flat and at rest, the hand away
    from them and at rest.
    """

    SUPPORTED_REWARD_MODES = ("sparse", "none")

    def _load_scene(self, options: dict):
        super()._load_scene(options)
        self.goal_region = actors.build_red_white_target(
            self.scene, radius=NEAR, thickness=1e-5, name="goal_region", add_collision=False, body_type="kinematic",
            initial_pose=sapien.Pose(p=[0, 0, 1e-3]),
        )  # fmt: skip

    def _initialize_episode(self, env_idx: torch.Tensor, options: dict):
        super()._initialize_episode(env_idx, options)
        draw = self._batched_episode_rng[int(env_idx[0])].uniform
        angle, apart = draw(-0.5, 0.5), 2 * HALF + draw(0.02, 0.06)
        first = np.array([draw(-0.12, -0.02), draw(-0.1, 0.1), HALF])
        along, across = heading(angle), heading(angle + np.pi / 2)
        for cube, distance in ((self.cubeA, 0.0), (self.cubeB, apart)):
            place = first + distance * along + draw(-0.003, 0.003) * across
            turn = euler2quat(0, 0, angle + draw(-0.1, 0.1))
            cube.set_pose(Pose.create_from_pq(p=place, q=turn))
        goal = np.array([*(first + (apart + PUSH) * along)[:2], 1e-3])
        self.goal_region.set_pose(Pose.create_from_pq(p=goal, q=euler2quat(0, np.pi / 2, 0)))

    def evaluate(self):
        first, second = self.cubeA.pose.p, self.cubeB.pose.p
        flat = (first[:, 2] < HALF + 5e-3) & (second[:, 2] < HALF + 5e-3)
        still = self.cubeA.is_static(1e-2, 0.5) & self.cubeB.is_static(1e-2, 0.5) & self.agent.is_static(0.2)
        there = torch.linalg.norm(second[:, :2] - self.goal_region.pose.p[:, :2], axis=1) < NEAR
        beside = torch.linalg.norm(second - first, axis=1) < 2 * HALF + TOUCHING
        away = torch.linalg.norm(self.agent.tcp.pose.p - first, axis=1) > HALF + FINGER + GAP / 2
        return {"success": flat & still & there & beside & away}


def solve(env, seed: int):
    """The answer of the last step: down behind the first cube, along the line of both, and back."""
    env.reset(seed=seed)
    scene, arm = env.unwrapped, Arm(env)
    start, end, back = push_poses(scene)
    arm.close_gripper()
    arm.go(above(start, HOVER))
    arm.go(start)
    arm.go(end)
    return arm.go(back, settle=SETTLE)


def push_poses(scene) -> list[sapien.Pose]:
    """Where the closed hand begins to push, where it ends, and where it goes back to."""
    first, second = scene.cubeA.pose.sp.p, scene.cubeB.pose.sp.p
    along = (second - first) / np.linalg.norm(second - first)
    reach = HALF + FINGER
    end = second + (PUSH - 2 * HALF - reach) * along
    places = (first - (reach + GAP) * along, end, end - GAP * along)
    across = np.array([-along[1], along[0], 0.0])
    return [pointing_down(scene, place, across) for place in places]
