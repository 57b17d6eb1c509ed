"""Forces between the bodies of a scene, from every physics substep of a control step.

PhysX reports normal impulses; friction is not among them.
"""

from collections.abc import Iterable, Mapping

import numpy as np

# Of each task: the bodies that are manipulated, and the attributes of the environment that hold them.
OBJECTS = {
    "PickCube": {"cube": "cube"},
    "PokeCube": {"cube": "cube", "peg": "peg"},
    "PullCube": {"obj": "obj"},
    "PushCube": {"obj": "obj"},
    "StackCube": {"cubeA": "cubeA", "cubeB": "cubeB"},
    "PullCubeTool": {"cube": "cube", "tool": "l_shape_tool"},
    "PegInsertionSide": {"peg": "peg", "box": "box"},
    "StackPyramid": {"cubeA": "cubeA", "cubeB": "cubeB", "cubeC": "cubeC"},
    "PlaceSphere": {"sphere": "obj", "bin": "bin"},
    "KnockBall": {"ball": "ball"},
    "PushPair": {"cubeA": "cubeA", "cubeB": "cubeB"},
    "RegraspCube": {"cube": "cube"},
    "ToppleTower": {"cubeA": "cubeA", "cubeB": "cubeB", "cubeC": "cubeC"},
}
GRIPPER = {"lfinger": "panda_leftfinger", "rfinger": "panda_rightfinger", "hand": "panda_hand"}

Pair = tuple[str, str]


def body_pairs(objects: Iterable[str]) -> tuple[Pair, ...]:
    """Every object with every other body, and the gripper's parts with the table.

    The gripper's parts among themselves are left out: closed fingers press on each other, which is not manipulation.
    """
    names = list(objects)
    others = [*GRIPPER, "table"]
    touching = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :] + others]
    return (*touching, *((part, "table") for part in GRIPPER))


def bodies(scene, task: str) -> dict[int, str]:
    """The names of a scene's bodies by their number; to be asked again after every reset, which may rebuild it."""
    links = scene.agent.robot.links_map
    holder = getattr(scene, "table_scene", None) or scene.scene_builder
    structs = {name: getattr(scene, attribute) for name, attribute in OBJECTS[task].items()}
    structs |= {name: links[link] for name, link in GRIPPER.items()}
    structs["table"] = holder.table
    return {struct._bodies[0].entity.per_scene_id: name for name, struct in structs.items()}


def pair_forces(contacts, names: Mapping[int, str], pairs: tuple[Pair, ...], timestep: float) -> np.ndarray:
    """The force on the first body of each pair, (pairs, 3) in newtons, of one substep."""
    place = {pair: (row, 1.0) for row, pair in enumerate(pairs)}
    place |= {(b, a): (row, -1.0) for row, (a, b) in enumerate(pairs)}
    forces = np.zeros((len(pairs), 3))
    for contact in contacts:
        first, second = (names.get(body.entity.per_scene_id) for body in contact.bodies)
        if (first, second) in place:
            row, sign = place[first, second]
            for point in contact.points:
                forces[row] += sign * np.asarray(point.impulse, np.float64) / timestep
    return forces


class StepForces:
    """Collects the substeps of each control step of one episode."""

    def __init__(self, pairs: tuple[Pair, ...]):
        self.pairs = pairs
        self._substeps: list[np.ndarray] = []
        self._steps: list[np.ndarray] = []

    def substep(self, forces: np.ndarray) -> None:
        self._substeps.append(forces)

    def end_step(self) -> None:
        self._steps.append(np.stack(self._substeps))
        self._substeps = []

    def arrays(self) -> dict[str, dict[str, np.ndarray]]:
        """By pair: `force` of the last substep, `force_mean` over substeps, `force_norm_max` the largest of them."""
        steps = np.stack(self._steps)  # (steps, substeps, pairs, 3)
        summaries = {
            "force": steps[:, -1],
            "force_mean": steps.mean(1),
            "force_norm_max": np.linalg.norm(steps, axis=-1).max(1),
        }
        return {
            f"{a}__{b}": {key: np.float32(values[:, row]) for key, values in summaries.items()}
            for row, (a, b) in enumerate(self.pairs)
        }
