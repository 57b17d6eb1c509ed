"""An arm at a table: what the four scenes have in common, and the forces that act in them."""

from typing import ClassVar

import mujoco
import numpy as np
import robosuite_models  # noqa: F401  (registers the VX300S)
from contacts import geom_sides, step_summary, substep_forces
from robosuite.controllers import load_composite_controller_config
from robosuite.environments.manipulation.manipulation_env import ManipulationEnv
from robosuite.models.arenas import TableArena
from robosuite.models.tasks import ManipulationTask
from robosuite.utils.observables import Observable, sensor
from robosuite.utils.transform_utils import convert_quat

CONTROL_RATE = 20  # Hz
TABLE_SIZE = (0.8, 0.8, 0.05)
TABLE_HEIGHT = 0.8
TABLE_FRICTION = (0.6, 5e-3, 1e-4)


class Tabletop(ManipulationEnv):
    """A scene. A subclass says what is on the table (`things`), how it begins (`arrange`), what counts (`achieved`)."""

    arm: ClassVar[str] = "Sawyer"
    table = TABLE_HEIGHT

    def __init__(self):
        self.objects = self.things()
        self.contact: dict[str, np.ndarray] = {}  # of the last step
        self._substeps: list[np.ndarray] = []
        super().__init__(
            robots=self.arm,
            controller_configs=load_composite_controller_config(controller="BASIC", robot=self.arm),
            initialization_noise="default",
            has_renderer=False,
            has_offscreen_renderer=False,
            use_camera_obs=False,
            renderer="mujoco",
            control_freq=CONTROL_RATE,
            ignore_done=True,
            hard_reset=False,
        )

    def things(self) -> list:
        """The objects on the table."""
        return []

    def arrange(self) -> None:
        """Puts everything at a random place."""
        raise NotImplementedError

    def achieved(self) -> bool:
        """Whether the task is done now."""
        raise NotImplementedError

    def facts(self) -> dict[str, str | list[float]]:
        """What else is worth knowing of an episode, at its end."""
        return {}

    def begin(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """The first observation of an episode drawn from this generator, and from nothing else."""
        self.rng = rng
        self.contact = {}
        return self._chosen(self.reset())

    def advance(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float]:
        """The observation after one action, and its reward; `contact` then holds the forces on the way."""
        self._substeps = []
        _, reward, _, _ = self.step(action)
        self.contact = step_summary(np.array(self._substeps))
        return self._chosen(self._get_observations(force_update=True)), reward

    def place(self, name: str) -> np.ndarray:
        return np.array(self.sim.data.get_body_xpos(self._roots[name]))

    def stable(self) -> bool:
        """Whether the solver has had nothing to complain of since the episode began."""
        return not np.any(self.sim.data._data.warning.number)

    def reward(self, action=None) -> float:  # noqa: ARG002  (robosuite gives it)
        return float(self.achieved())

    def _check_success(self) -> bool:
        return self.achieved()

    def _chosen(self, observation: dict) -> dict[str, np.ndarray]:
        """The observation without what only repeats it."""
        return {k: np.array(v) for k, v in observation.items() if not k.endswith(("-state", "_cos", "_sin"))}

    def _put(self, thing, x: float, y: float, yaw: float = 0.0) -> None:
        """Sets an object down, 2 mm above the table."""
        height = TABLE_HEIGHT - thing.bottom_offset[2] + 0.002
        turn = (np.cos(yaw / 2), 0, 0, np.sin(yaw / 2))
        self.sim.data.set_joint_qpos(thing.joints[0], np.array([x, y, height, *turn]))

    def _arena(self) -> TableArena:
        arena = TableArena(
            table_full_size=TABLE_SIZE, table_friction=TABLE_FRICTION, table_offset=np.array([0, 0, TABLE_HEIGHT])
        )
        arena.set_origin([0, 0, 0])
        return arena

    def _base(self) -> tuple[float, float, float]:
        """Where the arm stands."""
        return self.robots[0].robot_model.base_xpos_offset["table"](TABLE_SIZE[0])

    def _load_model(self) -> None:
        super()._load_model()
        robot = self.robots[0].robot_model
        robot.set_base_xpos(self._base())
        self._roots = {thing.name: thing.root_body for thing in self.objects}
        self.model = ManipulationTask(mujoco_arena=self._arena(), mujoco_robots=[robot], mujoco_objects=self.objects)

    def _setup_references(self) -> None:
        super()._setup_references()
        model = self.sim.model._model
        self._tune(model)
        self._sides = geom_sides(model, list(self._roots.values()))

    def _tune(self, model) -> None:
        """Corrects the model: Sawyer's pedestal touches its first link for ever, which jams joint 0."""
        for i in range(model.ngeom):
            if model.geom(i).name == "robot0_base_col" or model.geom(i).name.startswith("fixed_base0"):
                model.geom_contype[i] = model.geom_conaffinity[i] = 0

    def _setup_observables(self) -> dict:
        observables = super()._setup_observables()
        for name, root in self._roots.items():
            for quantity, read in self._sensors(name, root).items():
                full = f"{name}_{quantity}"
                observables[full] = Observable(name=full, sensor=read, sampling_rate=CONTROL_RATE)
        return observables

    def _sensors(self, name: str, root: str) -> dict:
        @sensor(modality="object")
        def pos(_):
            return self.place(name)

        @sensor(modality="object")
        def quat(_):
            return convert_quat(np.array(self.sim.data.get_body_xquat(root)), to="xyzw")

        return {"pos": pos, "quat": quat}

    def _reset_internal(self) -> None:
        super()._reset_internal()
        self.arrange()

    def _update_observables(self, force: bool = False) -> None:
        # robosuite calls this after every substep, when the solver's forces are those just applied. Observations are
        # taken by force at the end of a step, so that all of them are of one moment.
        if force:
            super()._update_observables(force=True)
        else:
            self._substeps.append(substep_forces(self.sim.data._data, self._sides))

    def _post_action(self, action):
        # A substep ends with new joint positions; bodies and sites follow only here.
        model, data = self.sim.model._model, self.sim.data._data
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_flex(model, data)
        return super()._post_action(action)
