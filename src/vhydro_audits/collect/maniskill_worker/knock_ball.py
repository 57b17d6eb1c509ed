"""KnockBall: the closed hand knocks a ball, which rolls on by itself and comes to rest."""

import numpy as np
import sapien
import torch
from arm import Arm, NoPath, above, heading, pointing_down
from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.utils.building import actors
from mani_skill.utils.registration import register_env
from mani_skill.utils.scene_builder.table import TableSceneBuilder
from mani_skill.utils.structs.pose import Pose
from mani_skill.utils.structs.types import SceneConfig, SimConfig

RADIUS = 0.025  # m
ORANGE = (1.0, 0.5, 0.0, 1.0)
DAMPING = 1.0  # 1/s, the rate at which a rolling ball loses speed
REST = 0.02  # m/s below which it stops
# PhysX lets bodies sleep that are slow for a while. Its own threshold stops balls that roll at 0.16 m/s.
SLEEP = 1e-4  # J/kg
FARTHER = 0.1  # m that the ball is to roll beyond where the hand went
TABLE = np.array([[-0.7, 0.46], [-1.18, 1.18]])  # m, along x and y
BASE = sapien.Pose([-0.615, 0, 0])  # of the robot, as in ManiSkill's tasks on this table
FINGER = 0.011  # m from the hand's axis to the face of the closed fingers
REACH = RADIUS + FINGER  # m between hand and ball where they touch
GAP = 0.04  # m between fingers and ball before the knock
HOVER = 0.08  # m above the start of the knock
HOLD = 3  # steps in which the hand comes to rest behind the ball, and after the knock
SETTLE = 50  # steps at the end, in which the ball rolls on and comes to rest


@register_env("KnockBall-v1", max_episode_steps=200)
class KnockBallEnv(BaseEnv):
    """A task of our own, on ManiSkill's table.

    A ball lies in front of the robot, anywhere in 10 cm by 24 cm. It is to be knocked along a line that leads away from
    the robot and is turned by up to 0.8 rad. How far the hand goes with it, 3 to 9 cm, and how fast, is drawn too.

    Success: the ball has rolled at least 10 cm farther along the line than the hand went, and is on the table.
    """

    SUPPORTED_ROBOTS = ("panda_wristcam",)
    SUPPORTED_REWARD_MODES = ("sparse", "none")

    def __init__(self, *args, robot_uids: str = "panda_wristcam", **options):
        super().__init__(*args, robot_uids=robot_uids, **options)

    @property
    def _default_sim_config(self):
        return SimConfig(scene_config=SceneConfig(sleep_threshold=SLEEP))

    def _load_agent(self, options: dict):
        super()._load_agent(options, BASE)

    def _load_scene(self, _options: dict):
        self.table_scene = TableSceneBuilder(env=self)
        self.table_scene.build()
        self.ball = actors.build_sphere(
            self.scene, radius=RADIUS, color=ORANGE, name="ball", initial_pose=sapien.Pose([0, 0, RADIUS])
        )
        self.ball.set_linear_damping(DAMPING)
        self.ball.set_angular_damping(DAMPING)

    def _initialize_episode(self, env_idx: torch.Tensor, _options: dict):
        self.table_scene.initialize(env_idx)
        draw = self._batched_episode_rng[int(env_idx[0])].uniform
        start = np.array([draw(-0.15, -0.05), draw(-0.12, 0.12), RADIUS])
        self.ball.set_pose(Pose.create_from_pq(p=start))
        self.along, self.push, self.share = heading(draw(-0.8, 0.8)), draw(0.03, 0.09), draw(2.0, 4.0)
        self._farthest = start @ self.along - REACH  # m along the line that the hand went, if at all

    def _after_control_step(self):
        """Stops a slow ball, as rolling friction does, which PhysX lacks."""
        if torch.linalg.norm(self.ball.linear_velocity) < REST:
            self.ball.set_linear_velocity(torch.zeros(3))
            self.ball.set_angular_velocity(torch.zeros(3))

    def evaluate(self):
        ball, hand = self.ball.pose.sp.p, self.agent.tcp.pose.sp.p
        if hand[2] < 2 * RADIUS:
            self._farthest = max(self._farthest, hand @ self.along)
        farther = ball @ self.along - self._farthest - REACH > FARTHER
        low, high = TABLE.T
        inside = np.all((low < ball[:2]) & (ball[:2] < high)) and ball[2] > 0
        return {"success": torch.tensor([bool(farther and inside)])}

    def _get_obs_extra(self, _info: dict):
        return {"tcp_pose": self.agent.tcp.pose.raw_pose, "ball_pose": self.ball.pose.raw_pose}


def solve(env, seed: int):
    """The answer of the last step: down behind the ball, on along the line, a sudden stop, and back."""
    env.reset(seed=seed)
    scene = env.unwrapped
    arm = Arm(env, share=scene.share)
    start, end, beyond = knock_poses(scene)
    arm.close_gripper()
    arm.go(above(start, HOVER))
    arm.go(start, settle=HOLD)
    knock(arm, end, beyond)
    return arm.go(start, settle=SETTLE)


def knock(arm: Arm, end: sapien.Pose, beyond: sapien.Pose) -> None:
    """Sets out for the pose beyond and stops at the end, where it is fastest: the ball cannot follow such a stop."""
    fast, slow = arm.path(beyond), arm.path(end)
    if fast is None or slow is None:
        raise NoPath
    stop, begin = slow["position"][-1], slow["position"][0]
    gone = np.linalg.norm(fast["position"] - begin, axis=1)
    before = fast["position"][gone < np.linalg.norm(stop - begin)]
    arm.follow_path({"position": np.vstack([before, stop])}, refine_steps=HOLD)


def knock_poses(scene) -> list[sapien.Pose]:
    """Where the closed hand begins, where it stops, and where it would come to rest if it slowed down from there."""
    along, ball = scene.along, scene.ball.pose.sp.p
    behind, run = REACH + GAP, GAP + scene.push
    across = np.array([-along[1], along[0], 0.0])
    return [pointing_down(scene, ball + (distance - behind) * along, across) for distance in (0, run, 2 * run)]
