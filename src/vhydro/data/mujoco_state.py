"""Names for MuJoCo's flat states: time, then the positions and the velocities of the joints of a model file."""

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple
from xml.etree import ElementTree

from vhydro.data.columns import POSITION, QUATERNION, SPIN, VELOCITY
from vhydro.episodes import Channel

LARGEST_MODEL = 1 << 24  # characters
PLAIN = {"joints": "arm", "gripper": "gripper"}
BASE = re.compile(r"mobilebase|base|torso|leg")  # what carries an arm
ROBOT = re.compile(r"(robot|mobilebase|base|torso|leg)[0-9]*_|(right|left)_j[0-9]+$")
GRIPPER = re.compile(r"gripper|finger", re.IGNORECASE)
FREE = (POSITION + QUATERNION, VELOCITY + SPIN)
BALL = (QUATERNION, SPIN)
HINGE = ((("angle", "rad"),), (("angular_velocity", "rad/s"),))
SLIDE = ((("offset", "m"),), (("speed", "m/s"),))
KINDS = {"free": FREE, "ball": BALL, "hinge": HINGE, "slide": SLIDE}


class Joint(NamedTuple):
    """A joint of a model: its name and its kind, a key of `KINDS`."""

    name: str
    kind: str


@lru_cache(maxsize=8)  # demonstrations share models
def model_root(model: str) -> ElementTree.Element | None:
    """The root of an MJCF model; None if the text does not tell its joints for certain."""
    # Without a document type nothing can be defined that expands, and models need none.
    if len(model) > LARGEST_MODEL or "<!DOCTYPE" in model or "<!ENTITY" in model:
        return None
    try:
        root = ElementTree.fromstring(model)
    except (ElementTree.ParseError, ValueError, LookupError):
        return None
    world = root.find("worldbody")
    # A default may change a joint's kind, an included file may add joints: neither is followed.
    unsure = any(next(root.iter(tag), None) is not None for tag in ("include", "replicate", "composite", "attach"))
    unsure = unsure or any("type" in j.attrib for d in root.iterfind("default") for j in d.iter("joint"))
    if world is None or unsure or any(j.kind not in KINDS for j in walk(world)):
        return None
    return root


def joints(model: str) -> list[Joint]:
    """The joints of an MJCF model in the order of its state; none if the text does not tell them for certain."""
    root = model_root(model)
    world = None if root is None else root.find("worldbody")
    return [] if world is None else list(walk(world))


def walk(world: ElementTree.Element) -> Iterator[Joint]:
    """The joints in MuJoCo's order: those of a body before those of the bodies in it."""
    waiting = [world]
    while waiting:
        body = waiting.pop()
        for i, part in enumerate(p for p in body if p.tag in ("joint", "freejoint")):
            kind = "free" if part.tag == "freejoint" else part.get("type", "hinge")
            yield Joint(part.get("name") or f"{body.get('name', 'body')}_{i + 1}", kind)
        waiting += reversed([p for p in body if p.tag == "body"])


def state_channels(model: str, width: int) -> list[Channel] | None:
    """Names of a state without its time, or None if the model does not account for every number of it."""
    found = joints(model)
    if not found or sum(len(x) for j in found for x in KINDS[j.kind]) != width:
        return None
    named = placed(found)
    channels = [
        Channel(f"{body}.{quantity}", group, unit)
        for half in (0, 1)
        for body, group, quantities in named
        for quantity, unit in quantities[half]
    ]
    return channels if len({c.name for c in channels}) == width else None


def group_of(joint: Joint) -> str:
    if joint.kind in ("free", "ball"):
        return "object"
    if GRIPPER.search(joint.name):
        return "gripper"
    return "joints" if ROBOT.match(joint.name) else "object"


def placed(found: list[Joint]) -> list[tuple[str, str, tuple]]:
    """The body, the group and the quantities (positions, velocities) of each joint.

    Joints of a robot or a gripper are numbered within their machine; the first arm and gripper have the plain names.
    """
    out, counts = [], Counter()
    first: dict[str, str] = {}
    for joint in found:
        group, mine = group_of(joint), machine(joint.name)
        if group == "object":
            body = re.sub(r"_?(joint|free)[0-9]*$", "", joint.name) if joint.kind == "free" else joint.name
            out.append((body or joint.name, group, KINDS[joint.kind]))
            continue
        if not BASE.match(mine):
            first.setdefault(group, mine)
        body = PLAIN[group] if mine == first.get(group) else mine
        counts[body, group] += 1
        out.append((body, group, numbered_joint(joint, group, counts[body, group])))
    return out


def numbered_joint(joint: Joint, group: str, place: int) -> tuple:
    name, unit = "finger" if group == "gripper" else "joint", "rad" if joint.kind == "hinge" else "m"
    return ((f"{name}_{place}", unit),), ((f"{name}_velocity_{place}", f"{unit}/s"),)


def machine(name: str) -> str:
    """`robot0`, `gripper1_right` and so on: what the joints of one machine have in common."""
    found = re.match(r"[A-Za-z]+[0-9]+(_(left|right))?(?=_)|(right|left)(?=_j[0-9])", name)
    return found.group() if found else ""
