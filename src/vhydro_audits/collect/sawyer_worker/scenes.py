"""The four scenes: what stands on the table, where it begins, and when the task is done."""

from typing import ClassVar

import mujoco
import numpy as np
from cloth import COUNT, SPACING, cloth_element, coverage, crumpled
from robosuite.models.arenas import TableArena
from robosuite.models.objects import BoxObject
from robosuite.models.objects.composite import Bin
from tabletop import TABLE_HEIGHT, Tabletop

OBJECT_FRICTION = (0.8, 5e-3, 1e-4)


def box(name: str, half: tuple[float, float, float], colour: tuple[float, float, float], density: float = 400.0):
    """A cuboid with these half lengths."""
    return BoxObject(
        name=name, size_min=half, size_max=half, rgba=(*colour, 1), density=density, friction=OBJECT_FRICTION
    )


class Tower(Tabletop):
    """Three cubes, to be stacked."""

    def things(self) -> list:
        return [
            box("base", (0.025,) * 3, (0, 1, 0)),
            box("mid", (0.0225,) * 3, (1, 0, 0)),
            box("top", (0.02,) * 3, (0, 0, 1)),
        ]

    def arrange(self) -> None:
        while True:
            places = self.rng.uniform([-0.12, -0.15], [0.08, 0.15], (3, 2))
            gaps = np.linalg.norm(places - np.roll(places, 1, axis=0), axis=1)
            if gaps.min() > 0.1:
                break
        for thing, (x, y) in zip(self.objects, places, strict=True):
            self._put(thing, x, y, self.rng.uniform(-0.4, 0.4))

    def achieved(self) -> bool:
        base, mid, top = (self.place(name) for name in ("base", "mid", "top"))
        heights = abs(mid[2] - base[2] - 0.0475) < 0.006 and abs(top[2] - mid[2] - 0.0425) < 0.006
        return bool(heights and np.linalg.norm(top[:2] - base[:2]) < 0.03)


class Search(Tabletop):
    """A target beside a tall blocker and two distractors: clear the blocker away, lift the target."""

    def things(self) -> list:
        return [
            box("target", (0.018, 0.018, 0.02), (1, 0, 0)),
            box("blocker", (0.02, 0.02, 0.055), (0.5, 0.5, 0.5), density=250.0),
            box("dist0", (0.02, 0.025, 0.03), (0, 0.5, 0.5)),
            box("dist1", (0.03, 0.02, 0.02), (0.5, 0.5, 0)),
        ]

    def arrange(self) -> None:
        rng = self.rng
        x, y = rng.uniform([-0.08, -0.08], [0.02, 0.08])
        self.side = int(rng.choice([-1, 1]))  # on which the blocker stands
        self.mode = str(rng.choice(["push", "pick"]))  # how it is cleared away
        target, blocker, first, second = self.objects
        self._put(target, x, y)
        self._put(blocker, x + rng.uniform(-0.008, 0.008), y + self.side * rng.uniform(0.040, 0.046))
        turns = rng.uniform(-0.5, 0.5, 2)
        self._put(first, x + rng.uniform(0.055, 0.08), y - self.side * rng.uniform(0, 0.03), turns[0])
        self._put(second, x + rng.uniform(-0.02, 0.02), y - self.side * rng.uniform(0.10, 0.12), turns[1])

    def achieved(self) -> bool:
        return bool(self.place("target")[2] > TABLE_HEIGHT + 0.09)

    def facts(self) -> dict[str, str | list[float]]:
        return {"mode": self.mode}


class Bridge(Tabletop):
    """A VX300S, the nearest to a WidowX: a target behind an occluder, to be put into a bin."""

    arm = "VX300S"
    torques: ClassVar = ((20,), (50,), (50,), (10,), (8,), (8,))  # N m

    def things(self) -> list:
        return [
            box("target", (0.018, 0.018, 0.025), (1, 0.4, 0)),
            Bin(name="bin", bin_size=(0.16, 0.16, 0.06), density=1000.0),
            box("occluder", (0.012, 0.05, 0.07), (0.3, 0.3, 0.8)),
        ]

    def arrange(self) -> None:
        rng = self.rng
        target, container, occluder = self.objects
        side = rng.choice([-1, 1])
        x, y = rng.uniform(-0.16, -0.08), side * rng.uniform(0.08, 0.13)
        self._put(target, x, y, rng.uniform(-0.3, 0.3))
        self._put(container, rng.uniform(-0.14, -0.10), -side * rng.uniform(0.09, 0.12))
        self._put(occluder, x + rng.uniform(0.07, 0.1), y + rng.uniform(-0.02, 0.02), rng.uniform(-0.2, 0.2))

    def achieved(self) -> bool:
        target, container = self.place("target"), self.place("bin")
        return bool(np.all(np.abs(target - container)[:2] < 0.075) and target[2] < TABLE_HEIGHT + 0.08)

    def _base(self) -> tuple[float, float, float]:
        return (-0.45, 0.0, TABLE_HEIGHT - 0.893)  # its plate level with the table

    def _tune(self, model) -> None:
        super()._tune(model)
        # As shipped its joints suit position servos: too stiff and too weak for commanded torques.
        robot = self.robots[0].robot_model
        joints = [model.joint(name).dofadr[0] for name in robot.arm_joints]
        model.dof_damping[joints] = 2.0
        model.dof_armature[joints] = 0.1
        actuators = [model.actuator(name).id for name in robot.arm_actuators]
        model.actuator_ctrlrange[actuators] = np.array(self.torques) * [-1, 1]


class Laundry(Tabletop):
    """A crumpled cloth, to be pressed and dragged flat. Slow; cloth–table forces come out 20–25 % too small."""

    count, spacing = COUNT, SPACING

    def arrange(self) -> None:
        points, self.angle = crumpled(self.rng)
        moved = points.copy()
        moved[:, :2] -= self._rest[:, :2]
        self.sim.data._data.qpos[self._cloth_joints] = moved

    def begin(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        observation = super().begin(rng)
        self._covered_first = self.covered()
        return observation

    def achieved(self) -> bool:
        return self.covered() > 0.9

    def facts(self) -> dict[str, str | list[float]]:
        return {"coverage": [self._covered_first, self.covered()]}

    def vertices(self) -> np.ndarray:
        return self.sim.data._data.flexvert_xpos.copy()

    def covered(self) -> float:
        """The share of its own area that the cloth covers."""
        return coverage(self.vertices(), self.sim.model._model.flex_elem.reshape(-1, 3))

    def _chosen(self, observation: dict) -> dict[str, np.ndarray]:
        return {**super()._chosen(observation), "cloth_vert": self.vertices()}

    def _arena(self) -> TableArena:
        arena = super()._arena()
        arena.worldbody.append(cloth_element(TABLE_HEIGHT))
        return arena

    def _setup_references(self) -> None:
        super()._setup_references()
        model = self.sim.model._model
        first = model.jnt_qposadr[model.body_jntadr[model.flex_vertbodyid]]
        self._cloth_joints = first[:, None] + np.arange(3)
        flat = mujoco.MjData(model)
        mujoco.mj_forward(model, flat)
        self._rest = flat.flexvert_xpos.copy()

    def _tune(self, model) -> None:
        super()._tune(model)
        model.opt.impratio, model.opt.iterations, model.opt.tolerance = 1.0, 30, 1e-7


FAMILIES = {"tower": Tower, "laundry": Laundry, "search": Search, "bridge": Bridge}
