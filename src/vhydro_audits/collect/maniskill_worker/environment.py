"""A ManiSkill task on CPU physics that records itself and the forces in it."""

import logging
import sys
from importlib import import_module
from pathlib import Path

import contacts
import gymnasium as gym
import numpy as np
import recording
import rendering

# modules with tasks in them
REGISTERING = ("mani_skill.envs", "knock_ball", "push_pair", "regrasp_cube", "topple_tower")
STEPS = 1000  # demonstrations are longer than the tasks' own limits of 50 or 100


class ForceMeter(gym.Wrapper):
    """Reads the contact forces after every physics substep."""

    def __init__(self, env: gym.Env, task: str):
        super().__init__(env)
        self._task = task
        self._after_substep = self.unwrapped._after_simulation_step
        self.unwrapped._after_simulation_step = self._read

    def reset(self, **options):
        answer = self.env.reset(**options)
        self._names = contacts.bodies(self.unwrapped, self._task)
        self.forces = contacts.StepForces(contacts.body_pairs(contacts.OBJECTS[self._task]))
        return answer

    def step(self, action):
        answer = self.env.step(action)
        self.forces.end_step()
        return answer

    def _read(self) -> None:
        self._after_substep()
        px = self.unwrapped.scene.px
        self.forces.substep(contacts.pair_forces(px.get_contacts(), self._names, self.forces.pairs, px.timestep))


class Simulation:
    """The task without (`plain`) and with (`recorder`) recording, both on the same physics."""

    def __init__(self, task: str, stage: Path, source: str):
        from mani_skill.utils.wrappers.record import RecordEpisode

        self.task = task
        self.plain = ForceMeter(_environment(task), task)
        self.recorder = RecordEpisode(
            self.plain, output_dir=str(stage.parent), trajectory_name=stage.name, save_video=False,
            save_on_reset=False, source_type=source, source_desc="vhydro collect maniskill",
        )  # fmt: skip

    @property
    def control_freq(self) -> int:
        return int(self.plain.unwrapped.control_freq)

    def keep(self) -> int:
        """The length of the episode just played, which is written; others are dropped by the next reset."""
        self.recorder.flush_trajectory()
        # RecordEpisode has no public access to the episode that it has just written.
        episode = self.recorder._h5_file[f"traj_{self.recorder._episode_id}"]
        recording.write_contacts(episode, self.plain.forces.arrays())
        return len(episode["actions"])

    def close(self) -> None:
        self.recorder.close()


def _environment(task: str) -> gym.Env:
    """The task, its scene built anew at every reset: an episode then depends on its seed and actions alone."""
    rendering.without_renderer()
    import torch

    torch.set_num_threads(1)
    for module in REGISTERING:
        import_module(module)
    logging.getLogger("mani_skill").setLevel(logging.ERROR)
    return gym.make(
        f"{task}-v1", obs_mode="state_dict", control_mode="pd_joint_pos", reward_mode=_reward_mode(f"{task}-v1"),
        sim_backend="physx_cpu", render_backend="none", reconfiguration_freq=1, max_episode_steps=STEPS,
    )  # fmt: skip


def _reward_mode(name: str) -> str:
    """The richest reward that the task has."""
    from mani_skill.utils.registration import REGISTERED_ENVS

    offered = REGISTERED_ENVS[name].cls.SUPPORTED_REWARD_MODES
    return "normalized_dense" if "normalized_dense" in offered else "sparse"


def refuse_new_numpy() -> None:
    """Raises where the motion planner would crash."""
    if int(np.__version__.split(".")[0]) >= 2:
        raise ValueError(
            f"{sys.executable} has numpy {np.__version__}; mplib, ManiSkill's motion planner, crashes with numpy 2. "
            "Run `make maniskill`, which makes an environment with numpy 1.26, or name one with --python."
        )
