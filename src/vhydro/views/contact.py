"""What a robot log says of contact: responses, and what would drive each of them if something were in touch.

A thing is driven by the hand's displacement, a finger by the gap to its commanded width, a joint by the gap to its
target, the hand by its commanded displacement. A mode decides how strongly each responds: `z' = z + g_s u + noise`. A
thing that is held follows the hand, a finger on something stops short of its target, a loaded joint lags.

A cloth has no place of its own. Its touch point stands for it: how far the knots near the hand went, added up from
step to step. Fingers drag a patch of it, so that its knots move alike and their mean is steadier than any of them. A
cloth loads no arm, so that its logs are read without the servo, whose lags would only hide it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from vhydro.episodes import Channel, Episode
from vhydro.units import in_si
from vhydro.views.view import AXES, columns, commands, looked_up

FINGER = re.compile(r"gripper\.finger_\d+")
KNOT = re.compile(r"(.+)\.v\d+")
GRIP = "gripper.command"
GAP = ".gap"  # ends the name of an input: how far the hand is from a cloth
MACHINE = {  # groups that are the robot's own, and what it means when they do less than they are told
    "gripper": "the fingers on something",
    "joints": "the arm under load",
    "end_effector": "the hand held back",
}
AT_REST = 0.01  # of the opening: fingers that move less in a row have settled
MOST_BODIES = 5
PATCH = 0.5  # of the distance between knots: by so much further from the hand than another, one counts e times less
AVERAGED = 8  # seen rows: over these a knot's place is averaged where the touch point goes on to it
REMEMBERED = 2 * AVERAGED + 1  # seen rows of a cloth that the next one is seen with
CLOSE = 0.025  # metres: gaps to a cloth far beyond it are all alike


@dataclass(frozen=True)
class ContactView:
    """A hand, the things it may touch, and what the robot was told; called with a log, the log of their responses."""

    hand: tuple[str, ...]  # channels of the hand's place: x, y, z
    bodies: Mapping[str, tuple[str, ...]]  # channels of every body's place; of a cloth those of each knot in turn
    fingers: tuple[str, ...] = ()  # channels: how far each finger is from the middle
    grip: str = ""  # the input that opens and closes them
    opening: float = 0.0  # how wide a finger opens, in metres; found in the logs where it is 0
    opens: float = 1.0  # the command that opens: 1 or −1
    joints: tuple[str, ...] = ()  # channels, each with …
    targets: tuple[str, ...] = ()  # … the input that says where it should go
    moves: tuple[str, ...] = ()  # inputs that tell the hand how far to go along x, y, z, where joints have no targets
    machine: bool = True  # whether fingers, joints and hand respond as well, or only say what happens to the bodies
    spacing: float = 0.0  # metres between the knots of a cloth; found in the logs where it is 0, as in older files

    kind: ClassVar[str] = "contact"
    example: ClassVar[str] = 'ContactView(hand=("ee_x", "ee_y", "ee_z"), bodies={"cup": ("cup_x", "cup_y", "cup_z")})'

    def __post_init__(self):
        for what, names in {"the hand": self.hand, **self.bodies}.items():
            if not names or len(names) % 3 or (what == "the hand" and len(names) != 3):
                raise ValueError(
                    f"{what} has the channels {names}; expected its place along x, y and z (of a cloth, that of every "
                    f"knot). For example {self.example}."
                )
        if not self.bodies:
            raise ValueError(f"no bodies given; expected at least one thing to touch. For example {self.example}.")
        if len(self.joints) != len(self.targets):
            raise ValueError(
                f"{len(self.joints)} joints with {len(self.targets)} targets; expected one for each. Name as many."
            )

    @property
    def channels(self) -> tuple[str, ...]:
        """The raw channels it needs."""
        return (*self.hand, *(c for names in self.bodies.values() for c in names), *self.fingers, *self.joints)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The raw inputs it needs."""
        return (*([self.grip] if self.grip else []), *self.targets, *self.moves)

    @property
    def cloths(self) -> frozenset[str]:
        """The bodies that are cloths."""
        return frozenset(body for body, names in self.bodies.items() if len(names) > 3)

    def __call__(self, episode: Episode) -> Episode:
        """The log of responses; its inputs are a drive for each, then what says when a contact may begin.

        Those last are where the hand is before the step; of a robot with fingers, how wide they are open after it and
        by how much wider than before; of a cloth, how far the hand is after it from where that lay at first. Only
        bodies may be hidden.
        """
        log = looked_up(self, episode)
        own = (self._gripper(log), self._servo(log)) if self.machine else ()
        parts = [p for p in (self._bodies(log), *own) if p is not None]
        named = tuple(c for group, _, _ in parts for c in group)
        about, values = self._circumstances(log)
        driven = np.concatenate([*(drive for _, _, drive in parts), values], 1)
        if np.isnan(driven).any():
            raise ValueError(
                f"{episode.source or 'the log'} hides the hand, a finger or a joint at times; expected those to be "
                "seen: encoders are never in the dark. Hide bodies only."
            )
        return replace(
            log,
            observations=np.concatenate([response for _, response, _ in parts], 1),
            channels=named,
            actions=driven,
            inputs=(*(Channel(f"drive of {c.name}", c.group, c.unit) for c in named), *about),
        )

    def _circumstances(self, log: Episode) -> tuple[list[Channel], np.ndarray]:
        """What a contact may depend on: the hand's place before the step, the opening, its change, gaps to cloths."""
        hand = columns(log, self.hand)
        channels, values = [Channel(f"hand.{a}", "end_effector", "m") for a in AXES], [hand[:-1]]
        if self.fingers:
            width = self.width(log)[:, None]
            channels += [Channel("opening", "gripper", "m"), Channel("opening.change", "gripper", "m")]
            values += [width[1:], np.diff(width, axis=0)]
        for cloth in sorted(self.cloths) if self.spacing else ():
            channels += [Channel(f"{cloth}{GAP}", cloth, "m")]
            values += [_gap(self._knots(log, cloth), hand, self.spacing)[:, None]]
        return channels, np.concatenate(values, 1)

    def _bodies(self, log: Episode):
        hand = columns(log, self.hand)
        places = [self._place(log, body, hand) for body in self.bodies]
        channels = [Channel(f"{b}.{a}", b, "m") for b in self.bodies for a in AXES]
        return channels, np.concatenate(places, 1), np.tile(np.diff(hand, axis=0), len(self.bodies))

    def _place(self, log: Episode, body: str, hand: np.ndarray) -> np.ndarray:
        if body in self.cloths:
            return _touch_point(self._knots(log, body), hand, self.spacing)
        return columns(log, self.bodies[body])

    def _knots(self, log: Episode, cloth: str) -> np.ndarray:
        return columns(log, self.bodies[cloth]).reshape(len(log.observations), -1, 3)

    def _gripper(self, log: Episode):
        if not self.opening or not self.grip:
            return None
        gap = self._finger_gap(log)[:, None]
        return [Channel("gripper.opening", "gripper", "m")], self.width(log)[:, None], gap

    def _finger_gap(self, log: Episode) -> np.ndarray:
        """How far the fingers have to go to where they are told to be."""
        target = 0.5 * (1 + self.opens * commands(log, [self.grip])[:, 0]) * self.opening
        return target - self.width(log)[:-1]

    def _servo(self, log: Episode):
        if self.joints:
            place = columns(log, self.joints)
            return [Channel(j, "joints", "rad") for j in self.joints], place, commands(log, self.targets) - place[:-1]
        if self.moves:
            named = [Channel(f"hand.{a}", "end_effector", "m") for a in AXES]
            return named, columns(log, self.hand), commands(log, self.moves)
        return None

    def width(self, log: Episode) -> np.ndarray:
        """How far a finger is from the middle, on average over the fingers."""
        width = np.abs(columns(log, self.fingers))
        if np.isnan(width).any():
            raise ValueError(
                f"{log.source or 'a log'} hides a finger at times; expected it in every row: encoders are never in "
                "the dark. Hide bodies only."
            )
        return width.mean(1)

    def fitted_to(self, episodes: Sequence[Episode]) -> "ContactView":
        """The view with what only logs say: how wide fingers open, which command does it, how fine a cloth is."""
        known = self.opening or not self.grip or not self.fingers
        spaced = self.spacing or not self.cloths
        if known and spaced:
            return self
        logs = [looked_up(self, e) for e in episodes]
        view = self if spaced else replace(self, spacing=self._spaced(logs))
        return view if known else view._opened(logs)

    def _spaced(self, logs: Sequence[Episode]) -> float:
        """How far a cloth's knots are from each other, where logs show it first."""
        each = [_spacing(knots) for e in logs for c in self.cloths if len(knots := _whole(self._knots(e, c)))]
        return float(np.median(each)) if each else 0.0

    def _opened(self, logs: Sequence[Episode]) -> "ContactView":
        if len(np.unique(np.concatenate([commands(e, [self.grip]) for e in logs]))) == 1:
            return self  # fingers that are never told to move say nothing of what is between them
        widest = max(float(self.width(e).max()) for e in logs)
        if not widest > 0:
            return self
        ways = [replace(self, opening=widest, opens=sign) for sign in (1.0, -1.0)]
        # The command that opens is the one under which fingers move towards their target.
        best = max(ways, key=lambda v: sum(float(np.diff(v.width(e)) @ v._finger_gap(e)) for e in logs))
        return replace(best, opening=best._settled(logs))

    def _settled(self, logs: Sequence[Episode]) -> float:
        """Where fingers come to rest when told to open: they may begin wider, or overshoot."""
        told = np.concatenate([self.opens * commands(e, [self.grip])[:, 0] > 0 for e in logs])
        widths = [self.width(e) for e in logs]
        step, width = np.concatenate([np.diff(w) for w in widths]), np.concatenate([w[1:] for w in widths])
        rest = width[told & (np.abs(step) < AT_REST * self.opening)]
        return float(np.median(rest)) if len(rest) else self.opening


class Parts(NamedTuple):
    """What a log with the usual names shows of contact; empty where it shows nothing of a kind."""

    hand: tuple[str, ...]
    bodies: dict[str, tuple[str, ...]]
    fingers: tuple[str, ...]
    grip: str
    joints: tuple[str, ...]
    targets: tuple[str, ...]
    moves: tuple[str, ...]


def contact_parts(log: Episode) -> Parts:
    """What the log shows under the usual names: `tcp.x`, `gripper.finger_1`, `arm.joint_1`, and bodies as objects."""
    names, told = {c.name for c in log.channels}, {c.name for c in log.inputs}
    hand = tuple(f"tcp.{a}" for a in AXES)
    bodies = _bodies_of(log)
    cloth = any(len(places) > 3 for places in bodies.values())
    joints = tuple(n for n in sorted(names) if n.startswith("arm.joint_") and _target(n) in told and not cloth)
    moves = tuple(f"tcp.d{a}" for a in AXES)
    by_hand = not joints and not cloth and all(m in told for m in moves)
    fingers = tuple(c.name for c in log.channels if FINGER.fullmatch(c.name))
    return Parts(
        hand if names.issuperset(hand) else (), bodies, fingers, GRIP if GRIP in told and fingers else "", joints,
        tuple(map(_target, joints)), moves if by_hand else (),
    )  # fmt: skip


def contact_view(episodes: Sequence[Episode]) -> ContactView:
    """The view of logs with the usual names: `tcp.x`, `gripper.finger_1`, `arm.joint_1`, and bodies as objects."""
    if not episodes:
        raise ValueError("no episodes given; expected at least one, to see what the logs hold.")
    first = in_si(episodes[0])
    parts = contact_parts(first)
    if not parts.hand:
        names = {c.name for c in first.channels}
        missing = [name for a in AXES if (name := f"tcp.{a}") not in names]
        raise ValueError(
            f"{first.source or 'the log'} does not show {', '.join(missing)}; expected the place of the hand, which "
            f"carries things. Name its channels tcp.x, tcp.y and tcp.z, or say which they are: {ContactView.example}, "
            "or --hand X Y Z."
        )
    if not parts.bodies:
        groups = sorted({c.group for c in first.channels})
        raise ValueError(
            f"the log shows no place of an object; its channels are of the groups {groups}. Expected `NAME.x`, "
            f"`NAME.y` and `NAME.z` of at least one body in the group `object`, or a view: {ContactView.example}, "
            "or --body cup=X,Y,Z."
        )
    return ContactView(**parts._asdict()).fitted_to(episodes)


def _target(joint: str) -> str:
    return joint.replace("joint_", "joint_target_")


def _bodies_of(log: Episode) -> dict[str, tuple[str, ...]]:
    """The bodies whose places the log shows, then its cloths, all knots of one together."""
    shown = dict.fromkeys(c.name.rpartition(".")[0] for c in log.channels if c.group == "object")
    names = {c.name for c in log.channels}
    places = {b: tuple(f"{b}.{a}" for a in AXES) for b in shown if b}
    whole = {b: p for b, p in places.items() if all(n in names for n in p)}
    cloths: dict[str, tuple[str, ...]] = {}
    for knot in [b for b in whole if KNOT.fullmatch(b)]:
        cloth = knot.rpartition(".")[0]
        cloths[cloth] = (*cloths.get(cloth, ()), *whole.pop(knot))
    return {b: whole[b] for b in _most_spread(log, whole)} | cloths


def _most_spread(log: Episode, bodies: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The bodies; of too many, those furthest from each other at first, chosen one after the other."""
    if len(bodies) <= MOST_BODIES:
        return list(bodies)
    points = np.nan_to_num(np.stack([columns(log, names)[0] for names in bodies.values()]))
    chosen = [int(np.argmax(np.linalg.norm(points - points.mean(0), axis=1)))]
    while len(chosen) < MOST_BODIES:
        away = np.min([np.linalg.norm(points - points[i], axis=1) for i in chosen], axis=0)
        chosen.append(int(np.argmax(away)))
    return [list(bodies)[i] for i in sorted(chosen)]


def _whole(knots: np.ndarray) -> np.ndarray:
    """The rows in which every knot is seen."""
    return knots[~np.isnan(knots).any((1, 2))]


def _spacing(knots: np.ndarray) -> float:
    """How far a knot is from the one next to it, by their mean places over some rows, in which noise averages out."""
    places = knots[:AVERAGED].mean(0)
    apart = np.linalg.norm(places[:, None] - places, axis=2)
    np.fill_diagonal(apart, np.inf)
    return float(np.median(apart.min(1)))


def _nearness(knots: np.ndarray, hand: np.ndarray, spacing: float) -> np.ndarray:
    """How much every knot counts where the hand is, (rows, knots); of knots whose spacing is unknown, the nearest."""
    apart = np.linalg.norm(knots - hand[:, None], axis=2)
    beyond = apart - apart.min(1, keepdims=True)
    counts = np.exp(-beyond / (PATCH * spacing)) if spacing else (beyond == 0).astype(float)
    return counts / counts.sum(1, keepdims=True)


def _touch_point(knots: np.ndarray, hand: np.ndarray, spacing: float) -> np.ndarray:
    """How far the knots near the hand have gone, (rows, 3), from seen row to seen row; NaN where a cloth is hidden.

    Across rows in the dark it is those that were near before them. Where the point goes on from knot to knot, both
    count by their mean over the last rows, lest their noise adds up. Which are near is told by rows before those: else
    knots whose noise is towards the hand would be preferred, and the point would drift.
    """
    out = np.full(hand.shape, np.nan)
    seen = np.flatnonzero(~np.isnan(knots).any((1, 2)))
    if len(seen):
        places = knots[seen]
        mean = _running_mean(places)
        near = _nearness(mean[np.maximum(np.arange(len(mean)) - AVERAGED, 0)], hand[seen], spacing)
        before = np.concatenate([near[:1], near[:-1]])
        gone = np.einsum("tk,tkd->td", near[:-1], places[1:] - mean[:-1])
        had = np.einsum("tk,tkd->td", before[:-1], places[:-1] - mean[:-1])
        out[seen] = np.concatenate([np.zeros((1, 3)), np.cumsum(gone - had, 0)])
    return out


def _running_mean(values: np.ndarray) -> np.ndarray:
    """The mean of every row and those before it, up to so many."""
    total = np.concatenate([np.zeros_like(values[:1]), np.cumsum(values, 0)])
    last = np.arange(1, len(total))
    first = np.maximum(last - AVERAGED, 0)
    return (total[last] - total[first]) / (last - first).reshape(-1, *(1,) * (values.ndim - 1))


def _gap(knots: np.ndarray, hand: np.ndarray, spacing: float) -> np.ndarray:
    """How far the hand is after every step from where the cloth lay when it was first seen, at most `CLOSE`.

    Where a cloth has gone since then is for a model to infer: in the dark no input may tell it.
    """
    out = np.full(len(hand) - 1, CLOSE)
    seen = np.flatnonzero(~np.isnan(knots).any((1, 2)))
    if len(seen):
        after = hand[1 + seen[0] :]
        lay = np.broadcast_to(knots[seen[0]], (len(after), *knots.shape[1:]))
        near = np.einsum("tk,tkd->td", _nearness(lay, after, spacing), lay)
        out[seen[0] :] = CLOSE * np.tanh(np.linalg.norm(after - near, axis=1) / CLOSE)
    return out
