"""Small ROS 2 bags, written by the format's own library, with contents a test can predict."""

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from vhydro.data.ros_messages import DEFINITIONS

START = 1_700_000_000_000_000_000  # ns
SECOND = 1_000_000_000
LINE = "=" * 80


def schema_text(kind: str) -> str:
    """The definition of a type as recorders write it: its own fields, then those of all it is made of."""
    order, waiting = [], [kind]
    while waiting:
        one = waiting.pop(0)
        if one not in order:
            order.append(one)
            fields = [f.split(" ")[0].removesuffix("[]") for f in DEFINITIONS[one].split(", ")]
            waiting += [f for f in fields if f in DEFINITIONS]
    texts = ["\n".join(DEFINITIONS[one].split(", ")) for one in order]
    first, *rest = [f"# {one}\n{text}\n" for one, text in zip(order, texts, strict=True)]
    return "".join([first, *(f"{LINE}\nMSG: {one}\n{text}" for one, text in zip(order[1:], rest, strict=True))])


class Recorder:
    """Writes messages with mcap_ros2; topics are registered when they are first used."""

    def __init__(self, path: Path, **options):
        from mcap_ros2.writer import Writer

        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("wb")
        self.writer = Writer(self.file, **options)
        self.schemas = {}

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *_) -> None:
        self.writer.finish()
        self.file.close()

    def write(self, topic: str, kind: str, message: dict, seconds: float, delay: float = 0.0) -> None:
        if kind not in self.schemas:
            package, name = kind.split("/")
            self.schemas[kind] = self.writer.register_msgdef(f"{package}/msg/{name}", schema_text(kind))
        time = START + round(seconds * SECOND)
        if DEFINITIONS[kind].startswith("std_msgs/Header"):
            message = {"header": header(time), **message}
        self.writer.write_message(topic, self.schemas[kind], message, log_time=time + round(delay * SECOND))


def header(time: int, frame: str = "world") -> dict:
    return {"stamp": {"sec": time // SECOND, "nanosec": time % SECOND}, "frame_id": frame}


def xyz(values: Sequence[float]) -> dict:
    return dict(zip("xyz", map(float, values), strict=True))


def pose(place: Sequence[float], turn: Sequence[float] = (1, 0, 0, 0)) -> dict:
    return {"position": xyz(place), "orientation": dict(zip("wxyz", map(float, turn), strict=True))}


def arm_bag(path: Path, seconds: float = 2.0, **options) -> Path:
    """Joints at 100 Hz, a hand at 50 Hz, a cube at 10 Hz and commands at 20 Hz; numbers tell their time."""
    with Recorder(path, **options) as bag:
        for i in range(round(100 * seconds)):
            t = i / 100
            names = ["shoulder", "elbow", "finger_1"]
            state = {"name": names, "position": [t, 10 + t, 0.04], "velocity": [1.0, 1.0, 0.0], "effort": []}
            bag.write("/joint_states", "sensor_msgs/JointState", state, t)
            if i % 2 == 0:
                bag.write("/tcp/pose", "geometry_msgs/PoseStamped", {"pose": pose([20 + t, 0, 0])}, t)
            if i % 10 == 0:
                bag.write("/cube/pose", "geometry_msgs/PoseStamped", {"pose": pose([30 + t, 0, 0], (0, 1, 0, 0))}, t)
            if i % 5 == 0:
                layout = {"dim": [], "data_offset": 0}
                command = {"layout": layout, "data": [40 + t, 50 + t]}
                bag.write("/arm/commands", "std_msgs/Float64MultiArray", command, t)
    return path


def bag_arm(folder: Path) -> Path:
    return arm_bag(folder / "arm.mcap", 0.4)


def bag_lz4(folder: Path) -> Path:
    """Small chunks, another compression, and every other type."""
    from mcap.writer import CompressionType

    path = folder / "run.mcap"
    with Recorder(path, chunk_size=600, compression=CompressionType.LZ4) as bag:
        for i in range(20):
            t = i / 20
            six = {"force": xyz([t, 1, 2]), "torque": xyz([3, 4, 5])}
            bag.write("/ft_sensor/wrench", "geometry_msgs/WrenchStamped", {"wrench": six}, t)
            bag.write("/cmd_vel", "geometry_msgs/Twist", {"linear": xyz([t, 0, 0]), "angular": xyz([0, 0, -t])}, t)
            bag.write("/temperature", "std_msgs/Float32", {"data": t}, t)
            place = {"translation": xyz([t, 2, 3]), "rotation": pose([0, 0, 0])["orientation"]}
            moved = {"header": header(START + round(t * SECOND)), "child_frame_id": "cup", "transform": place}
            bag.write("/tf", "tf2_msgs/TFMessage", {"transforms": [moved]}, t)
            bag.write("/marker", "geometry_msgs/PointStamped", {"point": xyz([t, t, t])}, t)
    return path


def bag_unindexed(folder: Path) -> Path:
    """Neither chunks nor a summary: only a pass over the file tells what is in it."""
    from mcap.writer import CompressionType, IndexType, Writer

    path = folder / "plain.mcap"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = Writer(
            file, use_chunking=False, index_types=IndexType.NONE, use_statistics=False, use_summary_offsets=False,
            repeat_channels=False, repeat_schemas=False, compression=CompressionType.NONE,
        )  # fmt: skip
        writer.start("ros2", "test")
        schema = writer.register_schema("std_msgs/msg/Float64", "ros2msg", schema_text("std_msgs/Float64").encode())
        topics = [writer.register_channel(t, "cdr", schema) for t in ("/angle", "/torque_command")]
        for i in range(30):
            for topic in topics:
                data = b"\0\1\0\0" + np.float64(i + topic).tobytes()
                writer.add_message(topic, START + i * SECOND // 10, data, START)
        writer.finish()
    return path


BUILDERS: dict[str, Callable[[Path], Path]] = (
    {"bag_arm": bag_arm, "bag_lz4": bag_lz4, "bag_unindexed": bag_unindexed}
    if importlib.util.find_spec("mcap_ros2")
    else {}
)
