"""A ManiSkill task behind a loopback socket: resets and steps on request, in ManiSkill's own environment.

`python serve.py TASK PORT` connects to the port and answers one JSON line with another: `{"do": "reset", "seed": 3}`
or `{"do": "step", "action": […]}` with `{"values": {name: number}, "success": …, "reward": …}`. It imports nothing of
the package.
"""

import json
import logging
import math
import socket
import sys
from importlib import import_module

import rendering

# Of each task: the bodies, and the poses that say where they should go, as attributes of the environment.
BODIES = {
    "PushCube": {"cube": "obj"},
    "PickCube": {"cube": "cube"},
    "StackCube": {"cubeA": "cubeA", "cubeB": "cubeB"},
    "PegInsertionSide": {"peg": "peg"},
}
GOALS = {"PushCube": "goal_region", "PickCube": "goal_site", "PegInsertionSide": "box_hole_pose"}
CONTROL = "pd_ee_delta_pose"


class Task:
    """A task that gives its values by name after every reset and step."""

    def __init__(self, name: str):
        rendering.without_renderer()
        import torch

        torch.set_num_threads(1)
        import_module("mani_skill.envs")
        import gymnasium as gym

        logging.getLogger("mani_skill").setLevel(logging.ERROR)
        self._name = name
        self._env = gym.make(
            f"{name}-v1", obs_mode="state_dict", control_mode=CONTROL, reward_mode="normalized_dense",
            sim_backend="physx_cpu", render_backend="none", max_episode_steps=10_000,
        )  # fmt: skip

    def reset(self, seed: int) -> dict:
        self._env.reset(seed=seed)
        return self._answer(False, 0.0)

    def step(self, action: list) -> dict:
        import numpy as np

        _, reward, _, _, info = self._env.step(np.asarray(action, np.float32))
        return self._answer(bool(info["success"].item()), float(reward.item()))

    def _answer(self, success: bool, reward: float) -> dict:
        scene = self._env.unwrapped
        values = _pose("tcp", scene.agent.tcp.pose)
        fingers = scene.agent.robot.get_qpos()[0, -2:].tolist()
        values |= {"gripper.finger_1": fingers[0], "gripper.finger_2": fingers[1]}
        for body, attribute in BODIES[self._name].items():
            values |= _pose(body, getattr(scene, attribute).pose)
        if self._name in GOALS:
            goal = getattr(scene, GOALS[self._name])
            values |= _pose("goal", getattr(goal, "pose", goal))
        if self._name == "PegInsertionSide":
            values |= {
                "peg.half_length": float(scene.peg_half_sizes[0, 0]),
                "peg.radius": float(scene.peg_half_sizes[0, 2]),
            }
        return {"values": values, "success": success, "reward": reward}


def _pose(body: str, pose) -> dict:
    """The place of a body and how it is turned about the vertical."""
    x, y, z = pose.p[0].tolist()
    qw, qx, qy, qz = pose.q[0].tolist()
    yaw = math.atan2(2 * (qw * qz + qx * qy), 1 - 2 * (qy * qy + qz * qz))
    return {f"{body}.x": x, f"{body}.y": y, f"{body}.z": z, f"{body}.yaw": yaw}


def main() -> None:
    name, port = sys.argv[1], int(sys.argv[2])
    task = Task(name)
    with socket.create_connection(("127.0.0.1", port)) as link, link.makefile("rw", encoding="utf-8") as lines:
        for line in lines:
            asked = json.loads(line)
            answer = task.reset(asked["seed"]) if asked["do"] == "reset" else task.step(asked["action"])
            lines.write(json.dumps(answer) + "\n")
            lines.flush()


if __name__ == "__main__":
    main()
