"""What the robot does: demonstrations that ManiSkill's motion planner solves, the same with noise, or random motion.

Each policy plays one episode of a seed on the recorder and returns whether it succeeded, or None where it has
nothing to play.
"""

import gymnasium as gym
import knock_ball
import numpy as np
import place_sphere
import poke_cube
import push_pair
import regrasp_cube
import sapien
import topple_tower
from arm import NoPath
from contacts import OBJECTS
from environment import Simulation
from mani_skill.examples.motionplanning.panda import solutions
from mani_skill.examples.motionplanning.panda.motionplanner import PandaArmMotionPlanningSolver
from motions import smooth_noise, smooth_path

SOLVERS = {
    "PickCube": solutions.solvePickCube,
    "PokeCube": poke_cube.solve,
    "PullCube": solutions.solvePullCube,
    "PushCube": solutions.solvePushCube,
    "StackCube": solutions.solveStackCube,
    "PullCubeTool": solutions.solvePullCubeTool,
    "PegInsertionSide": solutions.solvePegInsertionSide,
    "StackPyramid": solutions.solveStackPyramid,
    "PlaceSphere": place_sphere.solve,
    "KnockBall": knock_ball.solve,
    "PushPair": push_pair.solve,
    "RegraspCube": regrasp_cube.solve,
    "ToppleTower": topple_tower.solve,
}
ARM = 7  # joints; the last number of an action is the gripper
CORRELATION = 10.0  # steps, half a second
LEGS, LEG_STEPS = 5, 20  # of random motion
REST_SPREAD = 0.2  # rad about the rest pose
OBJECT_SPREAD = 0.03  # m about the object
LOWEST = 0.01  # m above the table


class Tape(gym.Wrapper):
    """Notes the actions that are played."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.actions: list[np.ndarray] = []

    def step(self, action):
        self.actions.append(np.asarray(action, np.float32))
        return self.env.step(action)


def solved(task: str, env: gym.Env, seed: int) -> bool | None:
    """Whether the planner's demonstration succeeds; None where it finds no path."""
    try:
        answer = SOLVERS[task](env, seed=seed)
    except NoPath:
        return None
    return None if isinstance(answer, int) else bool(answer[-1]["success"].item())


def play(env: gym.Env, actions: np.ndarray) -> bool:
    """Whether these actions end in success; the environment has been reset."""
    for action in actions:
        *_, info = env.step(action)
    return bool(info["success"].item())


def planned(simulation: Simulation, seed: int, _noise: float) -> bool | None:
    return solved(simulation.task, simulation.recorder, seed)


def noisy(simulation: Simulation, seed: int, noise: float) -> bool | None:
    """A successful demonstration's joint targets with smooth noise added, played from the same start."""
    tape = Tape(simulation.plain)
    if not solved(simulation.task, tape, seed):
        return None
    actions = np.stack(tape.actions)
    generator = np.random.default_rng([seed, 1])
    actions[:, :ARM] += smooth_noise(generator, len(actions), ARM, deviation=noise, correlation=CORRELATION)
    simulation.recorder.reset(seed=seed)
    return play(simulation.recorder, actions)


def random(simulation: Simulation, seed: int, _noise: float) -> bool:
    """Smooth motion between random poses, each near the rest pose or near an object."""
    generator = np.random.default_rng([seed, 2])
    simulation.recorder.reset(seed=seed)
    scene = simulation.plain.unwrapped
    start = scene.agent.robot.get_qpos()[0, :ARM].numpy().astype(np.float64)
    waypoints = [start, *(_waypoint(simulation, start, generator) for _ in range(LEGS))]
    arm = smooth_path(np.stack(waypoints), LEG_STEPS)
    gripper = np.repeat(generator.choice([-1.0, 1.0], LEGS), LEG_STEPS)
    return play(simulation.recorder, np.column_stack([arm, gripper]).astype(np.float32))


def _waypoint(simulation: Simulation, start: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Joint positions near the rest pose, or with the hand near an object where a path leads there."""
    near_rest = start + generator.normal(0.0, REST_SPREAD, ARM)
    scene = simulation.plain.unwrapped
    thing = getattr(scene, generator.choice(list(OBJECTS[simulation.task].values())))
    place = thing.pose.sp.p + generator.normal(0.0, OBJECT_SPREAD, 3)
    place[2] = max(place[2], LOWEST)
    if generator.random() < 0.3:
        return near_rest
    planner = PandaArmMotionPlanningSolver(
        simulation.plain, vis=False, base_pose=scene.agent.robot.pose, visualize_target_grasp_pose=False,
        print_env_info=False,
    )  # fmt: skip
    path = planner.move_to_pose_with_screw(sapien.Pose(place, scene.agent.tcp.pose.sp.q), dry_run=True)
    return near_rest if isinstance(path, int) else path["position"][-1]


POLICIES = {"planned": planned, "noisy": noisy, "random": random}
