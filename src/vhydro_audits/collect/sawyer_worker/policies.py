"""Scripts that do the four tasks: each yields one command per control step and sees what came of it."""

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from scipy.spatial.transform import Rotation

METRES, RADIANS = 0.05, 0.5  # what an action of 1 asks of the controller
OPEN, CLOSED = -1.0, 1.0
# The controller is soft and leaves about a centimetre: commands overstate the way to go, and integrate what remains.
GAIN, INTEGRAL = 3.0, 0.25
TURN_GAIN = 2.0
JITTER = 0.03  # of a scripted hand, white
SWAY = np.array([0.24, 0.24, 0.24, 0.07, 0.07, 0.07])  # of a noisy one, smooth: enough to fail now and then
MEMORY = 0.9  # share of the sway that stays from step to step: half a second

GRIP_OBJECT, GRIP_TABLE, OBJECT_TABLE, OBJECT_OBJECT, GRIP_CLOTH = range(5)  # places in `contacts.PAIRS`


class Phase(IntEnum):
    """What the hand is about; `work` is grasping, pushing or dragging."""

    wait, reach, lower, work, lift, carry, place, release, retreat, rest = range(10)


class Command(NamedTuple):
    """What one step asks for: metres to move the tip by, the angle of the hand, open or closed."""

    move: np.ndarray
    yaw: float
    grip: float
    phase: Phase


Script = Iterator[Command]


class Hand:
    """What a script sees of the world, and what its commands mean as actions.

    `across` is the direction of the hand's x axis at yaw 0 (it points down); `tip` is how far its tip lies beyond the
    point that the controller moves.
    """

    def __init__(self, across: tuple[float, float, float] = (0, 1, 0), tip: float = 0.0):
        x, z = np.array(across, float), np.array([0, 0, -1.0])
        self._down = np.stack([x, np.cross(z, x), z], axis=1)
        self._tip = tip
        self.observation: dict[str, np.ndarray] = {}
        self.contact: dict[str, np.ndarray] = {}

    def see(self, observation: dict[str, np.ndarray], contact: dict[str, np.ndarray]) -> None:
        self.observation, self.contact = observation, contact

    def turned(self) -> np.ndarray:
        """The hand's orientation as a matrix."""
        return Rotation.from_quat(self.observation["robot0_eef_quat_site"]).as_matrix()

    def tip(self) -> np.ndarray:
        return self.observation["robot0_eef_pos"] + self._tip * self.turned()[:, 2]

    def place(self, name: str) -> np.ndarray:
        return self.observation[f"{name}_pos"]

    def yaw(self, name: str) -> float:
        """The angle of a square object, within ± 45°."""
        x, y, z, w = self.observation[f"{name}_quat"]
        angle = np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
        return float((angle + np.pi / 4) % (np.pi / 2) - np.pi / 4)

    def normal(self, *pairs: int) -> float:
        """Mean normal force of these pairs in the last step."""
        return float(self.contact["fn_mean"][list(pairs)].sum())

    def action(self, command: Command) -> np.ndarray:
        """The controller's seven numbers, each within ± 1."""
        wanted = Rotation.from_euler("z", command.yaw).as_matrix() @ self._down
        turn = Rotation.from_matrix(wanted @ self.turned().T).as_rotvec()
        parts = (command.move / METRES, TURN_GAIN * turn / RADIANS, [command.grip])
        return np.clip(np.concatenate(parts), -1, 1)


def disturbances(rng: np.random.Generator, policy: str) -> Iterator[np.ndarray]:
    """What is added to the six motions of every action."""
    sway = np.zeros(6)
    while True:
        white = rng.standard_normal(6)
        sway = MEMORY * sway + np.sqrt(1 - MEMORY**2) * SWAY * white
        yield sway if policy == "noisy" else JITTER * white * [1, 1, 1, 0, 0, 0]


def above(place: np.ndarray, height: float) -> np.ndarray:
    return place + np.array([0, 0, height])


def go(
    hand: Hand, goal: np.ndarray | Callable[[], np.ndarray], yaw: float, grip: float, phase: Phase, *,
    within: float = 0.006, steps: int = 60, speed: float = 1.0, until: Callable[[], bool] = lambda: False,
) -> Script:  # fmt: skip
    """To a place, which may move; ends when near enough, when `until` says so or when the steps are used up."""
    rest = np.zeros(3)
    for _ in range(steps):
        error = (goal() if callable(goal) else goal) - hand.tip()
        distance = np.linalg.norm(error)
        if distance < within:
            return
        if distance < 0.05:
            rest = np.clip(rest + INTEGRAL * error, -0.03, 0.03)
        yield Command(error / distance * min(GAIN * distance, speed * METRES) + rest, yaw, grip, phase)
        if until():
            return


def stay(hand: Hand, yaw: float, grip: float, phase: Phase, steps: int) -> Script:
    """Where it is, for some steps: the gripper opens or closes, things settle."""
    place, rest = hand.tip().copy(), np.zeros(3)
    for _ in range(steps):
        error = place - hand.tip()
        rest = np.clip(rest + 0.2 * error, -0.02, 0.02)
        yield Command(2 * error + rest, yaw, grip, phase)


def pick(hand: Hand, name: str, yaw: float, *, height: float = 0.0, lift: float) -> Script:
    """Takes an object at this height above its centre and lifts it."""
    place = hand.place(name).copy()
    yield from go(hand, above(place, 0.12), yaw, OPEN, Phase.reach, within=0.012)
    yield from go(hand, above(place, height), yaw, OPEN, Phase.lower, speed=0.6)
    yield from stay(hand, yaw, CLOSED, Phase.work, 12)
    yield from go(hand, above(place, lift), yaw, CLOSED, Phase.lift, within=0.015, speed=0.7)


def release(hand: Hand, yaw: float, steps: int = 10, rise: float = 0.12) -> Script:
    """Opens the hand and leaves upwards."""
    yield from stay(hand, yaw, OPEN, Phase.release, steps)
    yield from go(hand, above(hand.tip(), rise), yaw, OPEN, Phase.retreat, within=0.02)


def tower(hand: Hand, scene, rng: np.random.Generator) -> Script:  # noqa: ARG001
    for lower, upper, rise in (("base", "mid", 0.0475), ("mid", "top", 0.0425)):
        yield from pick(hand, upper, hand.yaw(upper), height=0.006, lift=0.16)
        yield from _stack(hand, lower, upper, rise)
    yield from stay(hand, 0.0, OPEN, Phase.rest, 5)


def _stack(hand: Hand, lower: str, upper: str, rise: float) -> Script:
    """Sets the cube in the hand on another, whose place is looked up once: the hand would hide it later."""
    place, yaw = hand.place(lower).copy(), hand.yaw(lower)

    def over(height: float) -> Callable[[], np.ndarray]:
        return lambda: above(place, height) + hand.tip() - hand.place(upper)

    yield from go(hand, over(rise + 0.07), yaw, CLOSED, Phase.carry, steps=90)
    yield from go(
        hand, over(rise - 0.002), yaw, CLOSED, Phase.place, within=0.003, speed=0.25, steps=50,
        until=lambda: hand.normal(OBJECT_OBJECT) > 2.0,
    )  # fmt: skip
    yield from release(hand, yaw)


def search(hand: Hand, scene, rng: np.random.Generator) -> Script:  # noqa: ARG001
    yield from (_push_away if scene.mode == "push" else _carry_away)(hand, scene.side)
    yield from pick(hand, "target", hand.yaw("target") if scene.mode == "push" else 0.0, height=0.004, lift=0.16)
    yield from stay(hand, 0.0, CLOSED, Phase.rest, 8)


def _push_away(hand: Hand, side: int) -> Script:
    """The closed hand pushes the blocker along x, past the target."""
    start = hand.place("blocker") + np.array([-0.09, side * 0.016, 0])
    low = above(start, -0.025)
    yield from go(hand, above(start, 0.10), 0.0, CLOSED, Phase.reach, within=0.012)
    yield from go(hand, low, 0.0, CLOSED, Phase.lower, within=0.008, speed=0.6)
    yield from go(hand, low + np.array([0.21, 0, 0]), 0.0, CLOSED, Phase.work, within=0.01, speed=0.3, steps=120)
    away = hand.tip() + np.array([-0.015, side * 0.01, 0.12])
    yield from go(hand, away, 0.0, CLOSED, Phase.lift, within=0.02)
    yield from stay(hand, 0.0, OPEN, Phase.lift, 4)


def _carry_away(hand: Hand, side: int) -> Script:
    """The blocker is taken and set down 14 cm aside."""
    start = hand.place("blocker").copy()
    yield from go(hand, above(start, 0.16), 0.0, OPEN, Phase.reach, within=0.012)
    yield from go(hand, above(start, 0.03), 0.0, OPEN, Phase.lower, speed=0.6)
    yield from stay(hand, 0.0, CLOSED, Phase.work, 12)
    yield from go(hand, above(hand.tip(), 0.05), 0.0, CLOSED, Phase.lift, within=0.012, speed=0.4)
    aside = np.array([start[0], start[1] + side * 0.14, hand.tip()[2]])
    yield from go(hand, aside, 0.0, CLOSED, Phase.carry, within=0.012, speed=0.6)
    yield from go(
        hand, above(hand.tip(), -0.048), 0.0, CLOSED, Phase.place, speed=0.3, steps=30,
        until=lambda: hand.normal(OBJECT_TABLE) > 14,
    )  # fmt: skip
    yield from release(hand, 0.0, steps=8, rise=0.14)


def bridge(hand: Hand, scene, rng: np.random.Generator) -> Script:  # noqa: ARG001
    yaw = hand.yaw("target")
    yield from pick(hand, "target", yaw, lift=0.16)
    container = hand.place("bin").copy()

    def inside() -> np.ndarray:
        return above(container, 0.045 + hand.tip()[2] - hand.place("target")[2])

    over = np.array([*container[:2], hand.tip()[2]])
    yield from go(hand, over, yaw, CLOSED, Phase.carry, within=0.015, steps=90)
    yield from go(
        hand, inside, yaw, CLOSED, Phase.place, within=0.012, speed=0.5, steps=50,
        until=lambda: hand.normal(OBJECT_OBJECT) > 3.0,
    )  # fmt: skip
    yield from release(hand, yaw)
    yield from stay(hand, yaw, OPEN, Phase.rest, 4)


def laundry(hand: Hand, scene, rng: np.random.Generator) -> Script:
    """Presses on the flat bands near the cloth's two loose sides and drags them outwards, each in turn."""
    last = scene.count - 1
    corners = [(1, 2), (last - 1, last - 2), (1, last - 2), (last - 1, 2)]
    if rng.random() < 0.5:
        corners = [corners[i] for i in (1, 0, 3, 2)]
    yield from stay(hand, scene.angle, CLOSED, Phase.wait, 2)
    for turn, (column, row) in enumerate(corners + corners[:2]):
        if turn >= len(corners) and scene.covered() > 0.93:
            break
        grid = scene.vertices().reshape(last + 1, last + 1, 3)
        start, goal = grid[column, row].copy(), _flat_place(grid, column, row, scene.spacing)
        yield from go(hand, np.array([*start[:2], scene.table + 0.06]), scene.angle, CLOSED, Phase.reach, within=0.004)
        yield from _press(hand, scene, start)
        yield from _drag(hand, scene, goal, force=6.0 + 4.0 * rng.random())
        yield from go(hand, above(hand.tip(), 0.07), scene.angle, CLOSED, Phase.lift, within=0.02, speed=0.6)
    yield from stay(hand, scene.angle, CLOSED, Phase.rest, 3)


def _flat_place(grid: np.ndarray, column: int, row: int, spacing: float) -> np.ndarray:
    """Where a vertex would lie on the table if its row were flat, measured from the row's middle."""
    outwards = (grid[-1] - grid[0])[:, :2].mean(0)
    columns = column - len(grid) // 2
    return grid[len(grid) // 2, row, :2] + outwards / np.linalg.norm(outwards) * columns * spacing


def _pressing(hand: Hand) -> float:
    return hand.normal(GRIP_TABLE, GRIP_CLOTH)


def _press(hand: Hand, scene, place: np.ndarray) -> Script:
    """Down on the cloth, slowly, until it pushes back."""
    for _ in range(80):
        error = place - hand.tip()
        down = -0.012 if hand.tip()[2] > scene.table + 0.03 else -0.006
        yield Command(np.array([*GAIN * error[:2], down]), scene.angle, CLOSED, Phase.lower)
        if _pressing(hand) > 1.5:
            return


def _drag(hand: Hand, scene, goal: np.ndarray, *, force: float) -> Script:
    """Along the table at about this force: a steady downward command with a slow trim."""
    felt, rest = _pressing(hand), np.zeros(2)
    for _ in range(60):
        error = goal - hand.tip()[:2]
        distance = np.linalg.norm(error)
        if distance < 0.005:
            return
        felt = 0.7 * felt + 0.3 * _pressing(hand)
        rest = np.clip(rest + 0.15 * error, -0.015, 0.015)
        down = np.clip(-0.006 - 0.0006 * (force - felt), -0.012, -0.001)
        along = error / distance * min(GAIN * distance, 0.015) + rest
        yield Command(np.array([*along, down]), scene.angle, CLOSED, Phase.work)


SCRIPTS = {"tower": tower, "laundry": laundry, "search": search, "bridge": bridge}
# The VX300S mounts its hand half a turn round, and its fingers reach beyond the controlled point.
HANDS = {"Sawyer": {}, "VX300S": {"across": (0, -1, 0), "tip": 0.055}}
