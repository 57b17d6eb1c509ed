"""Where the hand of a robot is, from MuJoCo's flat states and the model that comes with them: forward kinematics.

Differs from MuJoCo in nothing that is handled here, and handles only what it is certain of: defaults that move joints
or sites, frames, mocap bodies and global coordinates give no hand at all.
"""

import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple
from xml.etree.ElementTree import Element

import numpy as np

from vhydro.data.columns import POSE, Columns
from vhydro.data.mujoco_state import KINDS, model_root

SITE = re.compile(r"(?:(?P<machine>[a-z]+[0-9]+(?:_(?:left|right))?)_)?grip_site")  # where robosuite's grippers close
ORIENTATIONS = ("quat", "axisangle", "euler", "xyaxes", "zaxis")
MOVED = {"pos", "axis", "ref", "type", "fromto", *ORIENTATIONS}
IDENTITY = (1.0, 0.0, 0.0, 0.0)


class Move(NamedTuple):
    """A joint on the way to the hand, and where its numbers are in the positions of a state."""

    kind: str
    pos: np.ndarray
    axis: np.ndarray
    rest: float
    first: int


class Link(NamedTuple):
    """A body on the way, or the site at its end: where it is in what carries it, and the joints that move it."""

    pos: np.ndarray
    quat: np.ndarray
    moves: tuple[Move, ...]


class Hand(NamedTuple):
    """A hand by the name that its channels get, and the way to it from the world."""

    name: str
    chain: tuple[Link, ...]


def add_hands(columns: Columns, model: str, states: np.ndarray) -> bool:
    """Adds the place and the orientation of every hand of the model; whether there was one.

    `states` are (rows, numbers) without their time: positions, then velocities.
    """
    count = position_count(model)
    found = hands(model) if count and states.shape[1] >= count else ()
    for hand in found:
        columns.add(hand.name, places(hand, states.astype(np.float64)), POSE, "end_effector")
    return bool(found)


def position_count(model: str) -> int:
    """How many numbers of a state are positions; 0 where the model does not tell."""
    root = model_root(model)
    world = None if root is None else root.find("worldbody")
    return 0 if world is None else sum(len(KINDS[kind][0]) for _, _, kind in _joints(world))


@lru_cache(maxsize=8)  # demonstrations share models
def hands(model: str) -> tuple[Hand, ...]:
    """The hands of a model, the first of them named `tcp`; none if the text does not tell where they are."""
    root = model_root(model)
    if root is None or not _certain(root):
        return ()
    world = root.find("worldbody")
    sites = [] if world is None else _sites(world)
    found = []
    for site, way in sites:
        try:
            chain = _chain(root, site, way)
        except ValueError:
            return ()
        match = SITE.fullmatch(site.get("name", ""))
        machine = match["machine"] if match else None
        found.append(Hand("tcp" if not found else f"{machine or f'hand{len(found)}'}.tcp", chain))
    return tuple(found) if len({h.name for h in found}) == len(found) else ()


def _certain(root: Element) -> bool:
    """Whether nothing in the model moves things in a way that is not followed here."""
    defaults = [d for top in root.iterfind("default") for d in top.iter() if d.tag in ("joint", "site")]
    compiler = [c for c in root.iterfind("compiler") if c.get("coordinate", "local") != "local"]
    odd = any(MOVED & set(d.attrib) for d in defaults) or next(root.iter("frame"), None) is not None
    return not odd and not compiler and all(b.get("mocap", "false") == "false" for b in root.iter("body"))


def _joints(world: Element) -> list[tuple[Element, Element, str]]:
    """Body, joint and kind of every joint, in the order of the state."""
    found, waiting = [], [world]
    while waiting:
        body = waiting.pop()
        for part in body:
            if part.tag in ("joint", "freejoint"):
                found.append((body, part, "free" if part.tag == "freejoint" else part.get("type", "hinge")))
        waiting += reversed([p for p in body if p.tag == "body"])
    return found


def _sites(world: Element) -> list[tuple[Element, list[Element]]]:
    """The sites where grippers close, each with the bodies that lead to it."""
    found, waiting = [], [(world, [])]
    while waiting:
        body, way = waiting.pop()
        mine = [*way, body] if body is not world else []
        found += [(s, mine) for s in body if s.tag == "site" and SITE.fullmatch(s.get("name", ""))]
        waiting += [(p, mine) for p in reversed(body) if p.tag == "body"]
    return found


def _chain(root: Element, site: Element, way: list[Element]) -> tuple[Link, ...]:
    compiler: dict[str, str] = {}
    for part in root.iterfind("compiler"):
        compiler |= part.attrib
    unit = math.pi / 180 if compiler.get("angle", "degree") == "degree" else 1.0
    world = root.find("worldbody")
    assert world is not None
    moves: dict[int, list[Move]] = {}
    first = 0
    for body, joint, kind in _joints(world):
        rest = _numbers(joint, "ref", (0.0,))[0] * (unit if kind == "hinge" else 1.0)
        axis = _unit(np.array(_numbers(joint, "axis", (0.0, 0.0, 1.0))))
        move = Move(kind, np.array(_numbers(joint, "pos", (0.0, 0.0, 0.0))), axis, rest, first)
        moves.setdefault(id(body), []).append(move)
        first += len(KINDS[kind][0])
    sequence = compiler.get("eulerseq", "xyz")
    return tuple(
        Link(
            np.array(_numbers(part, "pos", (0.0, 0.0, 0.0))), _orientation(part, unit, sequence),
            tuple(moves.get(id(part), ())),
        )
        for part in (*way, site)
    )  # fmt: skip


def _numbers(part: Element, name: str, otherwise: tuple[float, ...]) -> tuple[float, ...]:
    text = part.get(name)
    values = otherwise if text is None else tuple(map(float, text.split()))
    if len(values) != len(otherwise) or not np.isfinite(values).all():
        raise ValueError(f"{name} {text!r}")
    return values


def _unit(vector: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(vector)
    if not length > 1e-10:
        raise ValueError("a direction of no length")
    return vector / length


def _orientation(part: Element, unit: float, sequence: str) -> np.ndarray:
    given = [name for name in ORIENTATIONS if name in part.attrib]
    if part.get("fromto") is not None or len(given) > 1:
        raise ValueError("an orientation told twice, or by two points")
    return FORMS[given[0]](part, unit, sequence) if given else np.array(IDENTITY)


def _quat(part: Element, _unit_of_angles: float, _sequence: str) -> np.ndarray:
    return _unit(np.array(_numbers(part, "quat", IDENTITY)))


def _axisangle(part: Element, unit: float, _sequence: str) -> np.ndarray:
    *axis, angle = _numbers(part, "axisangle", (0.0,) * 4)
    return turn(_unit(np.array(axis)), np.array([angle * unit]))[0]


def _euler(part: Element, unit: float, sequence: str) -> np.ndarray:
    """Turns about axes that move along (small letters) or stand still (capital ones), one after another."""
    if not re.fullmatch(r"[xyzXYZ]{3}", sequence):
        raise ValueError(f"eulerseq {sequence!r}")
    whole = np.array([IDENTITY])
    for letter, angle in zip(sequence, _numbers(part, "euler", (0.0,) * 3), strict=True):
        one = turn(np.eye(3)["xyz".index(letter.lower())], np.array([angle * unit]))
        whole = product(whole, one) if letter.islower() else product(one, whole)
    return whole[0]


def _xyaxes(part: Element, _unit_of_angles: float, _sequence: str) -> np.ndarray:
    values = np.array(_numbers(part, "xyaxes", (0.0,) * 6))
    x = _unit(values[:3])
    y = _unit(values[3:] - x * (x @ values[3:]))
    return from_matrix(np.stack([x, y, np.cross(x, y)], 1))


def _zaxis(part: Element, _unit_of_angles: float, _sequence: str) -> np.ndarray:
    """The least turn that brings z there."""
    z = _unit(np.array(_numbers(part, "zaxis", (0.0,) * 3)))
    across = np.cross([0.0, 0.0, 1.0], z)
    if np.linalg.norm(across) < 1e-10:
        return np.array(IDENTITY) if z[2] > 0 else np.array([0.0, 1.0, 0.0, 0.0])
    return turn(_unit(across), np.array([math.atan2(float(np.linalg.norm(across)), float(z[2]))]))[0]


FORMS: dict[str, Callable[[Element, float, str], np.ndarray]] = {
    "quat": _quat, "axisangle": _axisangle, "euler": _euler, "xyaxes": _xyaxes, "zaxis": _zaxis,
}  # fmt: skip


# --- the way, for every row at once -----------------------------------------------------------------------------------


def places(hand: Hand, states: np.ndarray) -> np.ndarray:
    """The place and the quaternion (w first) of a hand in every row: (rows, 7)."""
    rows = len(states)
    place, quat = np.zeros((rows, 3)), np.tile(IDENTITY, (rows, 1))
    for link in hand.chain:
        place, quat = place + rotated(quat, link.pos), product(quat, link.quat[None])
        for move in link.moves:
            place, quat = moved(place, quat, move, states)
    return np.concatenate([place, -quat if rows and quat[0, 0] < 0 else quat], 1)  # one sign, without jumps


def moved(place: np.ndarray, quat: np.ndarray, move: Move, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Place and orientation of a body after one of its joints."""
    values = states[:, move.first : move.first + len(KINDS[move.kind][0])]
    if move.kind == "free":
        return values[:, :3], normalised(values[:, 3:])
    if move.kind == "slide":
        return place + rotated(quat, move.axis) * (values - move.rest), quat
    anchor = place + rotated(quat, move.pos)
    local = normalised(values) if move.kind == "ball" else turn(move.axis, values[:, 0] - move.rest)
    quat = product(quat, local)
    return anchor - rotated(quat, move.pos), quat


def normalised(quat: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(quat, axis=1, keepdims=True)
    return np.where(length > 1e-10, quat / np.maximum(length, 1e-10), IDENTITY)


def turn(axis: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """The quaternions of turns about one axis: (rows, 4)."""
    return np.concatenate([np.cos(angle / 2)[:, None], np.sin(angle / 2)[:, None] * axis], 1)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The turn `b` followed by `a`, row by row."""
    aw, av, bw, bv = a[:, :1], a[:, 1:], b[:, :1], b[:, 1:]
    scalar = aw * bw - (av * bv).sum(1, keepdims=True)
    return np.concatenate([scalar, aw * bv + bw * av + np.cross(av, bv)], 1)


def rotated(quat: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """A vector turned by every quaternion: (rows, 3)."""
    w, v = quat[:, :1], quat[:, 1:]
    across = 2 * np.cross(v, vector[None])
    return vector + w * across + np.cross(v, across)


def from_matrix(matrix: np.ndarray) -> np.ndarray:
    """The quaternion of a rotation matrix."""
    from scipy.spatial.transform import Rotation

    return Rotation.from_matrix(matrix).as_quat()[[3, 0, 1, 2]]
