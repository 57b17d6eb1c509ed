"""ToppleTower: the closed hand pushes the upper two cubes off a tower of three, and they fall."""

import numpy as np
import sapien
import torch
from arm import Arm, above, heading, pointing_down
from mani_skill.envs.tasks import StackPyramidEnv
from mani_skill.utils.registration import register_env
from mani_skill.utils.structs.pose import Pose
from transforms3d.euler import euler2quat

HALF = 0.02  # m, of a cube's side
FINGER = 0.011  # m from the hand's axis to the face of the closed fingers
GAP = 0.03  # m between fingers and tower before the push
HEIGHT = 0.065  # m of the hand: the fingertips, 9 mm lower, are at the middle cube
PUSH = 0.06  # m that the face of the tower is pushed
HOVER = 0.1  # m above the start of the push
SETTLE = 10  # steps at the end, in which the cubes come to rest


@register_env("ToppleTower-v1", max_episode_steps=200)
class ToppleTowerEnv(StackPyramidEnv):
    """A task of our own on the scene of ManiSkill's StackPyramid, with another start and another success.

    Three cubes stand on each other, A below, C on top, within 8 cm of the table's middle. The tower is turned by up to
    0.5 rad; each cube is shifted by up to 2 mm and turned by up to 0.1 rad from it.

    Success: all three lie on the table at rest, and the robot is at rest.
    """

    def _initialize_episode(self, env_idx: torch.Tensor, options: dict):
        super()._initialize_episode(env_idx, options)
        draw = self._batched_episode_rng[int(env_idx[0])].uniform
        angle, foot = draw(-0.5, 0.5), np.array([draw(-0.08, 0.08), draw(-0.08, 0.08), HALF])
        for level, cube in enumerate((self.cubeA, self.cubeB, self.cubeC)):
            place = foot + np.array([draw(-0.002, 0.002), draw(-0.002, 0.002), 2 * HALF * level])
            cube.set_pose(Pose.create_from_pq(p=place, q=euler2quat(0, 0, angle + draw(-0.1, 0.1))))

    def evaluate(self):
        cubes = (self.cubeA, self.cubeB, self.cubeC)
        low = [cube.pose.p[:, 2] < HALF + 5e-3 for cube in cubes]
        still = [cube.is_static(1e-2, 0.5) for cube in cubes]
        success = self.agent.is_static(0.2)
        for holds in (*low, *still):
            success = success & holds
        return {"success": success}


def solve(env, seed: int):
    """The answer of the last step: beside the middle cube, through it, and up."""
    env.reset(seed=seed)
    scene, arm = env.unwrapped, Arm(env)
    start, end = push_poses(scene)
    arm.close_gripper()
    arm.go(above(start, HOVER))
    arm.go(start)
    arm.go(end)
    return arm.go(above(end, HOVER), settle=SETTLE)


def push_poses(scene) -> list[sapien.Pose]:
    """Where the closed hand begins to push and where it ends, along the way the tower faces."""
    tower, turned = scene.cubeB.pose.sp.p, scene.cubeB.pose.to_transformation_matrix()[0].numpy()
    along = heading(np.arctan2(turned[1, 0], turned[0, 0]))
    across = np.array([-along[1], along[0], 0.0])
    places = [tower + distance * along for distance in (-HALF - FINGER - GAP, PUSH - HALF - FINGER)]
    return [pointing_down(scene, np.array([*place[:2], HEIGHT]), across) for place in places]
