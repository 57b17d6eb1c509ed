"""Which topics of a ROS 2 bag are read, what their numbers are called, and the clock they are put on."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vhydro.data.assembly import likely_group
from vhydro.data.description import Block, Description, Part
from vhydro.data.errors import DataError
from vhydro.data.mcap_file import McapFile, Topic
from vhydro.data.options import ReadOptions
from vhydro.data.ros_messages import BY_NAME, READ, Quantity, refusal, short
from vhydro.episodes import Channel

COMMANDS = re.compile(r"(?<![a-z])(commands?|cmd|actions?|setpoints?)(?![a-z])", re.IGNORECASE)
SAID_LAST = re.compile(r"[/_]?(pose|point|wrench|twist|vel|state|stamped|data)$", re.IGNORECASE)
STATIC = "/tf_static"  # said once: of use only where it is asked for
NANOSECONDS = 1_000_000_000
ROBOT = ("joints", "end_effector", "gripper")
FRAMES = (  # groups of the frames that robots have in TF, by words in their names
    ("end_effector", re.compile(r"tool|flange|tcp|eef|(?<![a-z])ee(?![a-z])|hand(?!le)")),
    ("scene", re.compile(r"camera|optical|map|odom|world|table|base(?![a-z])|goal|target")),
    ("joints", re.compile(r"link|joint|forearm|upperarm|upper_arm|shoulder|elbow|wrist")),
)
SLOWEST = 4.5  # Hz; a slower topic does not set the clock, faster ones can all be seen in every row
COMMON_RATES = (
    1, 2, 4, 5, 8, 10, 12.5, 15, 20, 24, 25, 30, 40, 50, 60, 62.5, 75, 80, 90, 100, 120, 125, 144, 150, 200, 240, 250,
    300, 400, 500, 600, 800, 1000, 2000, 4000, 5000, 8000, 10000,
)  # fmt: skip
COMMON = 0.02  # a rate so near to a common one is meant to be that


@dataclass(frozen=True)
class Source:
    """A topic that is read: its channels in the file, and what its numbers are called."""

    topic: str
    channels: tuple[int, ...]
    type: str
    action: bool
    body: str  # before the names of its quantities; of types whose bodies have names, before those, if not empty
    rate: float  # Hz, as counted
    block: Block | None = None  # of a description

    def channel(self, quantity: Quantity) -> Channel:
        """The channel of one of its numbers."""
        body, name, unit = quantity
        whole = "/".join(filter(None, (self.body, body)))
        full = ".".join(filter(None, (whole, name))) if not name.isdigit() else f"{whole}_{name}"
        group = "action" if self.action else self.group(body)
        either = group == "gripper" and unit.startswith(("rad", "N m"))  # fingers turn or slide: nothing tells which
        return Channel(full or self.topic, group, "" if either else unit)

    def group(self, body: str = "") -> str:
        """The group of one of its bodies; without a body, that of the topic as a whole."""
        if self.type == "sensor_msgs/JointState":
            return likely_group(body, "joints") if body else "joints"
        if self.type in BY_NAME:
            frame = next((group for group, words in FRAMES if words.search(body.lower())), "object")
            return likely_group(body, frame) if frame == "object" else frame
        return likely_group(f"{self.topic}/{body}", "end_effector" if "Wrench" in self.type else "object")


def chosen_topics(
    file: McapFile, options: ReadOptions, said: Description | None
) -> tuple[tuple[Source, ...], list[str]]:
    """The topics that are read, and what was decided about them."""
    by_name: dict[str, list[int]] = {}
    for channel, topic in file.topics.items():
        by_name.setdefault(topic.name, []).append(channel)
    refused = {name: reason(file, channels) for name, channels in by_name.items()}
    blocks = described(said, file.path)
    names = wanted_names(file.path, options.topics or tuple(blocks), refused)
    actions = {n for n in names if (blocks[n][0] if n in blocks else COMMANDS.search(n) is not None)}
    if len(actions) == len(names) and not blocks:
        actions = set()
    bodies = topic_bodies(file, by_name, names, actions)
    sources = tuple(
        Source(n, tuple(by_name[n]), short(file.topics[by_name[n][0]].type), n in actions, bodies[n],
               counted_rate(file, by_name[n]), blocks.get(n, (False, None))[1])
        for n in names
    )  # fmt: skip
    return sources, topic_notes(sources, {n: w for n, w in refused.items() if n not in names})


def wanted_names(path: Path, named: Sequence[str], refused: Mapping[str, str]) -> list[str]:
    """The topics that were named, if all can be read; or all that can, where none was named."""
    for name in named:
        if refused.get(name, "no such topic"):
            raise DataError(
                path, key=name, found=refused.get(name) or "no such topic",
                expected=f"one of {listed(sorted(n for n, why in refused.items() if not why))}",
                remedy="Name others with --topics, or in NAME.channels.json beside the file.",
            )  # fmt: skip
    names = list(dict.fromkeys(named)) or sorted(n for n, why in refused.items() if not why and n != STATIC)
    if not names:
        found = listed([f"{n} ({why})" for n, why in sorted(refused.items())]) or "no topics"
        raise DataError(path, found=found, expected=f"topics of ROS 2 types such as {', '.join(list(READ)[:4])}")
    return names


def reason(file: McapFile, channels: Sequence[int]) -> str:
    """Why a topic is not read; nothing if it is."""
    kinds = {file.topics[c].type for c in channels}
    if len(kinds) > 1:
        return f"several types, {', '.join(sorted(kinds))}"
    why = next((w for w in (refusal(*_definition(file.topics[c])) for c in channels) if w), "")
    return why or ("" if any(c in file.counts for c in channels) else "no messages")


def _definition(topic: Topic) -> tuple[str, str, str, str]:
    return topic.type, topic.encoding, topic.schema_encoding, topic.schema


def described(said: Description | None, path: Path) -> dict[str, tuple[bool, Block]]:
    """For each topic of a description whether it is an action, and its block."""
    if said is None:
        return {}
    part = only_part(said, path)
    pairs = [(False, b) for b in part.observations] + [(True, b) for b in part.actions]
    return {b.reference.key: (action, b) for action, b in pairs}


def only_part(said: Description, path: Path) -> Part:
    part = said.parts[0]
    if len(said.parts) > 1 or part.time or part.labels or part.info_keys or part.lengths or part.trial or part.each:
        raise DataError(
            path, key=said.origin, found="episodes, labels, times or keys of single numbers",
            expected="dt, observations and actions by topic, and info, as a bag has nothing else",
        )  # fmt: skip
    blocks = (*part.observations, *part.actions)
    if isinstance(part.dt, str) or any(isinstance(b.scale, str) or b.reference.last is not None for b in blocks):
        found = "a key or columns of one instead of a number or a topic"
        raise DataError(path, key=said.origin, found=found, expected="numbers for dt and scale, whole topics as keys")
    return part


def topic_bodies(
    file: McapFile, by_name: Mapping[str, Sequence[int]], names: Sequence[str], actions: Collection[str]
) -> dict[str, str]:
    """What a topic's quantities are called after: `/cube/pose` is `cube`, one of several JointStates its whole name."""
    kinds = {n: short(file.topics[by_name[n][0]].type) for n in names}
    counts = Counter(kind for name, kind in kinds.items() if name not in actions)
    bodies = {}
    for name in names:
        plain = name.strip("/")
        if kinds[name] in BY_NAME:
            bodies[name] = plain if counts[kinds[name]] > 1 or name in actions else ""
        else:
            bodies[name] = SAID_LAST.sub("", SAID_LAST.sub("", plain)) or plain
    shared = Counter(bodies.values())
    return {n: b if not b or shared[b] == 1 else n.strip("/") for n, b in bodies.items()}


def counted_rate(file: McapFile, channels: Sequence[int]) -> float:
    """Messages per second between the first and the last."""
    counts = [file.counts[c] for c in channels if c in file.counts]
    lasts = (max(c.last for c in counts) - min(c.first for c in counts)) / NANOSECONDS
    return (sum(c.messages for c in counts) - 1) / lasts if lasts > 0 else 0.0


def topic_notes(sources: Sequence[Source], refused: Mapping[str, str]) -> list[str]:
    notes = [] if any(s.block for s in sources) else [
        "Which topics are commands was taken from their names: "
        + (listed([s.topic for s in sources if s.action]) or "none") + "."
    ]  # fmt: skip
    if any(s.type in BY_NAME[1:] for s in sources):
        notes.append("The place of a frame of TF is that in its parent frame.")
    left = [f"{n} ({why})" if why else n for n, why in sorted(refused.items())]
    return notes + ([f"Left out: {listed(left)}."] if left else [])


def listed(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def chosen_clock(
    file: McapFile, sources: Sequence[Source], options: ReadOptions, said: Description | None
) -> tuple[float, str]:
    """Seconds between rows, and where that comes from."""
    held = "a topic as fast as that keeps its value over a single missed row, others are hidden where no sample came"
    dt = options.dt or (said.parts[0].dt if said else None)
    if dt is not None:
        return float(dt), f"All topics on one clock of {1 / float(dt):.6g} Hz, as was asked for; {held}."
    observed = [s for s in sources if not s.action and s.rate > 0]
    quick = [s for s in observed if s.rate >= SLOWEST]
    if not observed:
        raise DataError(
            file.path, found="no topic with messages at two times", expected="a rate", remedy="Give one with --rate."
        )
    lead = min(quick, key=lambda s: s.rate) if quick else max(observed, key=lambda s: s.rate)
    rate = next((r for r in COMMON_RATES if abs(lead.rate / r - 1) < COMMON), float(f"{lead.rate:.3g}"))
    why = f"the slowest with at least {SLOWEST:g} Hz" if quick else "the fastest"
    rates = listed([f"{s.topic} {s.rate:.4g} Hz" for s in sources])
    note = f"All topics on one clock of {rate:g} Hz, that of {lead.topic}, {why} ({rates}); {held}."
    return 1 / rate, f"{note} Say another with --rate."
