"""A scripted policy for four ManiSkill tasks in hand displacements, with noise, wandering, and rollouts of both."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from vhydro.episodes import Channel, Episode
from vhydro_audits.collect.simulator import Simulator, SimulatorLostError

DT = 0.05  # s: every task is controlled at 20 Hz
EPISODES = {
    "PushCube": (360, 50),
    "PickCube": (360, 60),
    "StackCube": (280, 70),
    "PegInsertionSide": (200, 100),
}  # and steps
BODIES = {"PushCube": ("cube",), "PickCube": ("cube",), "StackCube": ("cubeA", "cubeB"), "PegInsertionSide": ("peg",)}
REACH = 0.04  # m: a displacement that asks for a full command
NOISE, RANDOM, BURST = 0.35, 0.25, 4  # standard deviation of the noise; share and length of random actions
WANDERS, AROUND = 3, 0.1  # one rollout in so many wanders; m around a body
BEHIND = 0.05  # m behind the middle of a peg, where it is grasped
BEFORE, ALIGNED, SLOWLY = 0.02, 0.003, 0.015  # m in front of a hole; m off its axis from which a peg goes in; m a step
STACKED = 0.045  # m from one cube's middle to the other's
TURN = 0.1  # rad: a turn that asks for a full command
HELD = 0.034  # m: fingers that are closer hold something, or nothing
INPUTS = (*(Channel(f"tcp.d{a}", "end_effector", "") for a in "xyz"), Channel("gripper.command", "gripper", ""))

Values = Mapping[str, float]


class Played(NamedTuple):
    """An episode, whether it ever succeeded, its rewards, and whether the simulator was lost in it."""

    episode: Episode | None
    success: bool
    rewards: tuple[float, ...]
    lost: bool


def place(values: Values, body: str) -> np.ndarray:
    return np.array([values[f"{body}.{a}"] for a in "xyz"])


def scripted(task: str, values: Values) -> np.ndarray:
    """The command (x, y, z of the hand and the gripper, each in [−1, 1]) that leads on from here."""
    target, grip = _pushing(values) if task == "PushCube" else _carrying(task, values)
    return np.append(np.clip((target - place(values, "tcp")) / REACH, -1, 1), grip)


def _pushing(values: Values) -> tuple[np.ndarray, float]:
    hand, cube = place(values, "tcp"), place(values, "cube")
    behind = cube + np.array([-0.08, 0.0, 0.01])
    if hand[0] > cube[0] - 0.045:
        return np.array([behind[0] - 0.03, behind[1], 0.12]), -1.0
    if abs(hand[1] - cube[1]) > 0.02 or hand[2] > 0.06:
        return behind, -1.0
    return np.array([values["goal.x"], cube[1], behind[2]]), -1.0


def _carrying(task: str, values: Values) -> tuple[np.ndarray, float]:
    hand, thing, body = place(values, "tcp"), grip_place(task, values), place(values, BODIES[task][0])
    goal, near = goal_place(task, values), np.linalg.norm(hand - thing)
    if holds(task, values):
        over = np.linalg.norm((goal - body)[:2])
        if task == "StackCube" and over < 0.015 and body[2] < goal[2] + 0.005:
            return hand, 1.0
        return goal + (hand - body), -1.0
    if np.linalg.norm((hand - thing)[:2]) > 0.015 and hand[2] < thing[2] + 0.14:
        up = 0.0 if near < 0.02 else 0.08
        return thing + np.array([0, 0, up]), 1.0
    return thing, (-1.0 if near < 0.015 else 1.0)


def turn(task: str, values: Values) -> float:
    """The turn of the hand that brings its fingers across the faces of what it is to grasp, the same for everybody."""
    return float(np.clip(-to_turn(task, values) / TURN, -1, 1))


def to_turn(task: str, values: Values) -> float:
    """The angle by which the hand has to turn, in radians.

    A peg that is held is turned towards its hole. What is held otherwise turns with the hand, and would for ever.
    """
    if task == "PushCube":
        return 0.0
    if holds(task, values):
        off = values["goal.yaw"] - values["peg.yaw"] if task == "PegInsertionSide" else 0.0
    else:
        off = values[f"{BODIES[task][0]}.yaw"] - values["tcp.yaw"]
    period = np.pi if task == "PegInsertionSide" else np.pi / 2
    return float((off + period / 2) % period - period / 2)


def holds(task: str, values: Values) -> bool:
    """Whether the fingers are around the body and no longer open."""
    return bool(np.linalg.norm(grip_place(task, values) - place(values, "tcp")) < 0.03) and (
        values["gripper.finger_1"] < HELD
    )


def grip_place(task: str, values: Values) -> np.ndarray:
    """Where the body is grasped: a peg behind its middle, so that its head is free."""
    body = BODIES[task][0]
    return place(values, body) - (BEHIND * along(values, body) if task == "PegInsertionSide" else 0.0)


def along(values: Values, body: str) -> np.ndarray:
    """The direction of a body's x axis, which lies flat."""
    return np.array([np.cos(values[f"{body}.yaw"]), np.sin(values[f"{body}.yaw"]), 0.0])


def goal_place(task: str, values: Values) -> np.ndarray:
    """Where the body shall come next.

    To its end; but a cube above the other until it is over it, and a peg in front of its hole until it is aligned, then
    slowly in.
    """
    end = end_place(task, values)
    if task == "StackCube" and np.linalg.norm((end - place(values, "cubeA"))[:2]) > 0.03:
        return end + np.array([0.0, 0.0, max(0.0, 0.06 - max(end[2] - 0.06, 0.0))])
    if task != "PegInsertionSide":
        return end
    way, deep = along(values, "goal"), values["peg.half_length"]  # of the hole's middle, too
    peg, head = place(values, "peg") - end, deep * (along(values, "peg") - way)
    aside = max(float(np.linalg.norm(off - (off @ way) * way)) for off in (peg, peg + head))
    done = float(peg @ way)  # negative, and zero where the head is in the hole's middle
    if aside > (ALIGNED if done < -deep else 2 * ALIGNED):
        return end + max(done - SLOWLY, -(deep + BEFORE)) * way
    return end + min(done + SLOWLY, 0.005) * way


def end_place(task: str, values: Values) -> np.ndarray:
    """Where the body shall be in the end: on the other cube, at the goal, with its head in the middle of the hole."""
    if task == "StackCube":
        return place(values, "cubeB") + np.array([0, 0, STACKED])
    deep = values["peg.half_length"] * along(values, "goal") if task == "PegInsertionSide" else 0.0
    return place(values, "goal") - deep


def whole_action(task: str, values: Values, command: np.ndarray) -> list[float]:
    """The seven numbers of `pd_ee_delta_pose`: a command of the hand, a turn about the vertical and the gripper."""
    return [*command[:3].tolist(), 0.0, 0.0, turn(task, values), float(command[3])]


class NoisyScripted:
    """The scripted policy with smooth noise and bursts of random actions; one object for one episode."""

    def __init__(self, task: str, seed: int, *, random: float = RANDOM):
        self._task, self._draw, self._random = task, np.random.default_rng([seed, 7]), random
        self._noise, self._left, self._held = np.zeros(3), 0, np.zeros(4)

    def __call__(self, values: Values) -> np.ndarray:
        self._noise = 0.7 * self._noise + np.sqrt(1 - 0.49) * NOISE * self._draw.normal(size=3)
        self._left -= 1
        if self._left <= 0 and self._draw.random() < self._random / BURST / (1 - self._random + self._random / BURST):
            self._left, self._held = BURST, np.append(self._draw.uniform(-1, 1, 3), self._draw.choice([-1.0, 1.0]))
        if self._left > 0:
            return self._held
        command = scripted(self._task, values)
        return np.append(np.clip(command[:3] + self._noise, -1, 1), command[3])


class Wandering:
    """A policy that goes from one random place around the bodies to the next, fingers as it happens.

    The scripted policy does right, or makes small mistakes: what happens where the hand comes from another side, a
    model learns here.
    """

    def __init__(self, task: str, seed: int):
        self._task, self._draw = task, np.random.default_rng([seed, 8])
        self._left, self._body, self._off, self._grip = 0, "", np.zeros(3), -1.0

    def __call__(self, values: Values) -> np.ndarray:
        self._left -= 1
        if self._left <= 0:
            self._left = int(self._draw.integers(3, 12))
            self._body = str(self._draw.choice(BODIES[self._task]))
            self._off = self._draw.uniform([-AROUND, -AROUND, -0.01], [AROUND, AROUND, AROUND])
            self._grip = float(self._draw.choice([-1.0, 1.0]))
        away = place(values, self._body) + self._off - place(values, "tcp")
        return np.append(np.clip(away / REACH + 0.2 * self._draw.normal(size=3), -1, 1), self._grip)


def channels(task: str) -> tuple[Channel, ...]:
    """What a rollout records."""
    bodies = [Channel(f"{b}.{a}", "object", "m") for b in BODIES[task] for a in "xyz"]
    fingers = [Channel(f"gripper.finger_{i}", "gripper", "m") for i in (1, 2)]
    return (*(Channel(f"tcp.{a}", "end_effector", "m") for a in "xyz"), *fingers, *bodies)


def play(simulator: Simulator, task: str, policy, seed: int, steps: int) -> Played:
    """One episode of a policy of values, all its steps, also after success; marked where the simulator was lost."""
    named = channels(task)
    rows, commands, rewards, success = [], [], [], False
    try:
        answer = simulator.reset(seed)
        rows.append([answer.values[c.name] for c in named])
        for _ in range(steps):
            command = np.asarray(policy(answer.values), float)
            answer = simulator.step(whole_action(task, answer.values, command))
            rows.append([answer.values[c.name] for c in named])
            commands.append(command)
            rewards.append(answer.reward)
            success = success or answer.success
    except SimulatorLostError:
        return Played(None, success, tuple(rewards), True)
    info = {"task": task, "seed": float(seed), "success": success}
    log = Episode(np.array(rows), np.array(commands), DT, named, INPUTS, info=info, source=f"{task} seed {seed}")
    return Played(log, success, tuple(rewards), False)


def own_rollouts(simulator: Simulator, task: str, first_seed: int = 20_000) -> list[Played]:
    """The rollouts that models are learned from: the noisy scripted policy and wandering, no demonstrations."""
    count, steps = EPISODES[task]
    policy = lambda s: (Wandering if s % WANDERS == 0 else NoisyScripted)(task, s)  # noqa: E731
    return [play(simulator, task, policy(s), s, steps) for s in range(first_seed, first_seed + count)]
