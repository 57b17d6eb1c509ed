"""ROS 2 messages as named numbers: the usual types of joints, places, forces and plain numbers, read from their bytes.

A definition that comes with a bag is compared with the one known here and never followed, so that no file decides how
its bytes are read.
"""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from vhydro.data.columns import POSE, POSITION, SPIN, VELOCITY

WRENCH = (("fx", "N"), ("fy", "N"), ("fz", "N"), ("tx", "N m"), ("ty", "N m"), ("tz", "N m"))
ROS_POSE = [0, 1, 2, 6, 3, 4, 5]  # a quaternion of ROS has w last
MOST_NUMBERS = 10_000  # in a message
LONGEST_TEXT = 1 << 16
JOINT = (("position", "rad"), ("velocity", "rad/s"), ("effort", "N m"))
DEFINITIONS = {  # of the types below and of what they are made of
    "builtin_interfaces/Time": "int32 sec, uint32 nanosec",
    "std_msgs/Header": "builtin_interfaces/Time stamp, string frame_id",
    "std_msgs/Float32": "float32 data",
    "std_msgs/Float64": "float64 data",
    "std_msgs/MultiArrayDimension": "string label, uint32 size, uint32 stride",
    "std_msgs/MultiArrayLayout": "std_msgs/MultiArrayDimension[] dim, uint32 data_offset",
    "std_msgs/Float32MultiArray": "std_msgs/MultiArrayLayout layout, float32[] data",
    "std_msgs/Float64MultiArray": "std_msgs/MultiArrayLayout layout, float64[] data",
    "geometry_msgs/Point": "float64 x, float64 y, float64 z",
    "geometry_msgs/PointStamped": "std_msgs/Header header, geometry_msgs/Point point",
    "geometry_msgs/Vector3": "float64 x, float64 y, float64 z",
    "geometry_msgs/Quaternion": "float64 x, float64 y, float64 z, float64 w",
    "geometry_msgs/Pose": "geometry_msgs/Point position, geometry_msgs/Quaternion orientation",
    "geometry_msgs/PoseStamped": "std_msgs/Header header, geometry_msgs/Pose pose",
    "geometry_msgs/Twist": "geometry_msgs/Vector3 linear, geometry_msgs/Vector3 angular",
    "geometry_msgs/TwistStamped": "std_msgs/Header header, geometry_msgs/Twist twist",
    "geometry_msgs/Wrench": "geometry_msgs/Vector3 force, geometry_msgs/Vector3 torque",
    "geometry_msgs/WrenchStamped": "std_msgs/Header header, geometry_msgs/Wrench wrench",
    "geometry_msgs/Transform": "geometry_msgs/Vector3 translation, geometry_msgs/Quaternion rotation",
    "geometry_msgs/TransformStamped": (
        "std_msgs/Header header, string child_frame_id, geometry_msgs/Transform transform"
    ),
    "tf2_msgs/TFMessage": "geometry_msgs/TransformStamped[] transforms",
    "sensor_msgs/JointState": (
        "std_msgs/Header header, string[] name, float64[] position, float64[] velocity, float64[] effort"
    ),
}


class Cdr:
    """The bytes of a message, read one value after another; ValueError where they do not suffice."""

    def __init__(self, data: memoryview):
        if len(data) < 4 or data[0] != 0 or data[1] not in (0, 1):
            raise ValueError("a message that is not plain CDR")
        self.data, self.place = data[4:], 0
        self.order = "<" if data[1] else ">"
        self.frame = ""  # of the header read last

    def take(self, size: int, align: int) -> memoryview:
        start = self.place + -self.place % align
        self.place = start + size
        if self.place > len(self.data):
            raise ValueError(f"a message of {len(self.data)} bytes that ends too early")
        return self.data[start : self.place]

    def whole(self) -> int:
        """An unsigned whole number of 4 bytes."""
        return struct.unpack(f"{self.order}I", self.take(4, 4))[0]

    def count(self, most: int = MOST_NUMBERS) -> int:
        count = self.whole()
        if count > most:
            raise ValueError(f"a message with a list of {count:,}; at most {most:,} are read")
        return count

    def text(self) -> str:
        return bytes(self.take(self.count(LONGEST_TEXT), 1)).rstrip(b"\0").decode("utf-8", "replace")

    def numbers(self, count: int, size: int = 8) -> np.ndarray:
        """So many floats of 8 or 4 bytes."""
        if not count:
            return np.zeros(0)
        return np.frombuffer(self.take(count * size, size), f"{self.order}f{size}").astype(np.float64)

    def header(self) -> int:
        """The time of the message in ns."""
        seconds, rest = struct.unpack(f"{self.order}iI", self.take(8, 4))
        self.frame = self.text()
        return seconds * 1_000_000_000 + rest


Quantity = tuple[str, str, str]  # of a body (empty: that of the topic), its name and its unit


class Sample(NamedTuple):
    """The numbers of a message."""

    stamp: int | None  # ns, where the message has a header
    quantities: tuple[Quantity, ...]
    values: np.ndarray
    frames: tuple[str, ...] = ()  # in which the places are measured, where the message tells it for each body


def joints(cdr: Cdr) -> Sample:
    """Every joint by its name; a list that is empty says nothing of any of them."""
    stamp = cdr.header()
    names = tuple(cdr.text() for _ in range(cdr.count()))
    lists = [cdr.numbers(cdr.count()) for _ in JOINT]
    if odd := [len(x) for x in lists if len(x) not in (0, len(names))]:
        raise ValueError(f"{odd[0]} numbers for {len(names)} joints")
    told = tuple(len(values) > 0 for values in lists)
    return Sample(stamp, joint_quantities(names, told), np.concatenate(lists))


@lru_cache(maxsize=64)
def joint_quantities(names: tuple[str, ...], told: tuple[bool, ...]) -> tuple[Quantity, ...]:
    if not all(names) or len(set(names)) != len(names):
        raise ValueError(f"joints named {list(names)[:8]}, where every one needs a name of its own")
    return tuple((name, *quantity) for quantity, is_told in zip(JOINT, told, strict=True) if is_told for name in names)


def transforms(cdr: Cdr) -> Sample:
    """The place of every frame in its parent."""
    parts = [transform(cdr) for _ in range(cdr.count())]
    if not parts:
        return Sample(None, (), np.zeros(0))
    quantities, frames = tuple(q for p in parts for q in p.quantities), tuple(f for p in parts for f in p.frames)
    values = np.concatenate([p.values for p in parts])
    return Sample(max(p.stamp or 0 for p in parts), quantities, values, frames)


def transform(cdr: Cdr) -> Sample:
    stamp = cdr.header()
    parent, child = cdr.frame, cdr.text()
    return Sample(stamp, of_body(child, POSE), cdr.numbers(7)[ROS_POSE], (f"{child} in {parent}",))


@lru_cache(maxsize=64)
def of_body(body: str, quantities: tuple[tuple[str, str], ...]) -> tuple[Quantity, ...]:
    return tuple((body, *quantity) for quantity in quantities)


def scalar(size: int) -> Callable[[Cdr], Sample]:
    return lambda cdr: Sample(None, (("", "", ""),), cdr.numbers(1, size))


def listed(size: int) -> Callable[[Cdr], Sample]:
    def read(cdr: Cdr) -> Sample:
        for _ in range(cdr.count()):
            cdr.text()
            cdr.take(8, 4)
        skipped = cdr.whole()
        values = cdr.numbers(cdr.count(), size)[skipped:]
        return Sample(None, counted(len(values)), values)

    return read


@lru_cache(maxsize=64)
def counted(count: int) -> tuple[Quantity, ...]:
    return tuple(("", str(i + 1), "") for i in range(count))


def fixed(
    quantities: tuple[tuple[str, str], ...], order: Sequence[int] | None = None, *, stamped: bool
) -> Callable[[Cdr], Sample]:
    """A message of a header, if it has one, and as many numbers as quantities."""
    places = list(range(len(quantities))) if order is None else list(order)

    def read(cdr: Cdr) -> Sample:
        stamp = cdr.header() if stamped else None
        return Sample(stamp, of_body("", quantities), cdr.numbers(len(places))[places])

    return read


READ: dict[str, Callable[[Cdr], Sample]] = {
    "sensor_msgs/JointState": joints,
    "tf2_msgs/TFMessage": transforms,
    "geometry_msgs/TransformStamped": transform,
    "std_msgs/Float32": scalar(4),
    "std_msgs/Float64": scalar(8),
    "std_msgs/Float32MultiArray": listed(4),
    "std_msgs/Float64MultiArray": listed(8),
    **{
        f"geometry_msgs/{name}{'Stamped' if stamped else ''}": fixed(quantities, order, stamped=stamped)
        for name, quantities, order in (
            ("Point", POSITION, None), ("Pose", POSE, ROS_POSE), ("Twist", VELOCITY + SPIN, None),
            ("Wrench", WRENCH, None),
        )
        for stamped in (False, True)
    },
}  # fmt: skip
BY_NAME = ("sensor_msgs/JointState", "tf2_msgs/TFMessage", "geometry_msgs/TransformStamped")  # bodies tell their names


def short(name: str) -> str:
    """`sensor_msgs/JointState` of `sensor_msgs/msg/JointState`."""
    return "/".join((name.split("/")[0], name.split("/")[-1]))


@lru_cache(maxsize=256)
def refusal(name: str, encoding: str, schema_encoding: str, schema: str) -> str:
    """Why messages of a type cannot be read, or nothing if they can."""
    if short(name) not in READ or "/" not in name:
        return f"type {name or 'not told'}"
    if (encoding, schema_encoding) != ("cdr", "ros2msg"):
        return f"encoding {encoding or 'none'} by {schema_encoding or 'no'} definition, not cdr by ros2msg"
    told = definitions(short(name), schema)
    waiting, seen = [short(name)], set()
    while waiting:
        kind = waiting.pop()
        if kind in seen:
            continue
        seen.add(kind)
        known = tuple(tuple(f.split(" ")) for f in DEFINITIONS[kind].split(", "))
        if told.get(kind, known if kind == "builtin_interfaces/Time" else ()) != known:
            return f"another definition of {kind}"
        waiting += [t for t in (f[0].removesuffix("[]") for f in known) if t in DEFINITIONS]
    return ""


def definitions(name: str, schema: str) -> dict[str, tuple[tuple[str, str], ...]]:
    """The fields (type, name) of every type in a definition, which has one after another behind lines of `=`."""
    found: dict[str, list[tuple[str, str]]] = {name: []}
    current = name
    for line in schema.splitlines():
        words = line.partition("#")[0].split()
        if words[:1] == ["MSG:"] and len(words) == 2:
            current = short(words[1])
            found[current] = []
        elif len(words) >= 2 and "=" not in line.partition("#")[0]:
            found[current].append((qualified(words[0], current), words[1]))
    return {kind: tuple(fields) for kind, fields in found.items()}


def qualified(kind: str, inside: str) -> str:
    """A type with its package, which may be left out where it is that of the type it is used in."""
    base = kind.removesuffix("[]")
    if "/" in base:
        return short(base) + kind[len(base) :]
    if base == "Header":
        return f"std_msgs/Header{kind[len(base) :]}"
    own = f"{inside.split('/')[0]}/{base}"
    return own + kind[len(base) :] if own in DEFINITIONS else kind
