"""What a robot log says of contact: responses, and what would drive each of them if something were in touch.

A thing is driven by the hand's displacement, a finger by the gap to its commanded width, a joint by the gap to its
target, the hand by its commanded displacement. A mode decides how strongly each responds: `z' = z + g_s u + noise`. A
thing that is held follows the hand, a finger on something stops short of its target, a loaded joint lags.

A cloth has no place of its own. Its touch point stands for it: how far the knot nearest the hand went, added up from
step to step. A cloth loads no arm, so that its logs are read without the servo, whose lags would only hide it.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from vhydro.episodes import Channel, Episode
from vhydro.robots import AXES, FINGER, bodies_of

Servo = Literal["joints", "hand", "none"]
COMMAND = "gripper.command"
KNOT = re.compile(r"(.+)\.v\d+")
MACHINE = {  # groups that are the robot's own, and what it means when they do less than they are told
    "gripper": "the fingers on something",
    "joints": "the arm under load",
    "end_effector": "the hand held back",
}


@dataclass(frozen=True)
class ContactView:
    """The responses and drives of logs like those it was made from; called with a log, it gives the log of them."""

    bodies: tuple[str, ...]
    opening: float = 0.0  # how wide a finger was ever open, in metres; 0: the log has no gripper that is commanded
    opens: float = 1.0  # the command that opens it: 1 or −1
    servo: Servo = "none"
    joints: tuple[str, ...] = ()  # with a target each
    knots: tuple[str, ...] = ()  # of the bodies that are cloths, named `CLOTH.v1`, `CLOTH.v2`, …

    @property
    def cloths(self) -> frozenset[str]:
        """The bodies that are cloths."""
        return frozenset(_cloth(k) for k in self.knots)

    @property
    def places(self) -> tuple[str, ...]:
        """What the log must show the places of: bodies, and the knots of those that are cloths."""
        return (*(b for b in self.bodies if b not in self.cloths), *self.knots)

    def __call__(self, episode: Episode) -> Episode:
        """The log of responses, with a drive for each as its inputs; only bodies may be hidden."""
        parts = [self._bodies(episode), self._gripper(episode), self._servo(episode)]
        channels, response, drive = ([p[i] for p in parts if p] for i in range(3))
        named = tuple(c for group in channels for c in group)
        driven = np.concatenate(drive, 1)
        if np.isnan(driven).any():
            raise ValueError(
                f"{episode.source or 'the log'} hides the hand, a finger or a joint at times; expected those to be "
                "seen: encoders are never in the dark. Hide bodies only."
            )
        return replace(
            episode,
            observations=np.concatenate(response, 1),
            channels=named,
            actions=driven,
            inputs=tuple(Channel(f"drive of {c.name}", c.group, c.unit) for c in named),
        )

    def _bodies(self, episode: Episode):
        hand = _place(episode, "tcp")
        cloths = {c: [k for k in self.knots if _cloth(k) == c] for c in self.cloths}
        places = [
            _touch_point(np.stack([_place(episode, k) for k in cloths[b]], 1), hand)
            if b in cloths
            else _place(episode, b)
            for b in self.bodies
        ]
        channels = [Channel(f"{b}.{a}", b, "m") for b in self.bodies for a in AXES]
        return channels, np.concatenate(places, 1), np.tile(np.diff(hand, axis=0), len(self.bodies))

    def _gripper(self, episode: Episode):
        if not self.opening:
            return None
        width = _width(episode)
        target = 0.5 * (1 + self.opens * _input(episode, COMMAND)) * self.opening
        return [Channel("gripper.opening", "gripper", "m")], width[:, None], (target - width[:-1])[:, None]

    def _servo(self, episode: Episode):
        if self.servo == "joints":
            place = _columns(episode, self.joints)
            target = np.stack([_input(episode, _target(j)) for j in self.joints], 1)
            return [Channel(j, "joints", "rad") for j in self.joints], place, target - place[:-1]
        if self.servo == "hand":
            asked = np.stack([_input(episode, f"tcp.d{a}") for a in AXES], 1)
            return [Channel(f"tcp.{a}", "end_effector", "m") for a in AXES], _place(episode, "tcp"), asked
        return None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def view_from_json(record: dict[str, Any]) -> ContactView:
    """The view that `as_json` wrote."""
    try:
        lists = {name: tuple(record.get(name, ())) for name in ("bodies", "joints", "knots")}
        return ContactView(**{**record, **lists})
    except (KeyError, TypeError) as error:
        raise ValueError(f"the view of a model is {record!r:.120}; expected what `vhydro learn` writes.") from error


def contact_view(episodes: Sequence[Episode]) -> ContactView:
    """The view of logs like these: their bodies, and of gripper, joints and hand what has a command of its own."""
    if not episodes:
        raise ValueError("no episodes given; expected at least one, to see what the logs hold.")
    first = episodes[0]
    names, commands = {c.name for c in first.channels}, {c.name for c in first.inputs}
    if missing := [f"tcp.{a}" for a in AXES if f"tcp.{a}" not in names]:
        raise ValueError(
            f"{first.source or 'the log'} does not show {', '.join(missing)}; expected the place of the hand, which "
            "carries things. Name its channels tcp.x, tcp.y and tcp.z."
        )
    joints = tuple(n for n in sorted(names) if n.startswith("arm.joint_") and _target(n) in commands)
    by_hand = all(f"tcp.d{a}" in commands for a in AXES)
    view = _with_bodies(first, "joints" if joints else "hand" if by_hand else "none", joints)
    if COMMAND not in commands or not any(FINGER.fullmatch(n) for n in names):
        return view
    if len(np.unique(np.concatenate([_input(e, COMMAND) for e in episodes]))) == 1:
        return view  # fingers that are never told to move say nothing of what is between them
    widest = max(float(_width(e).max()) for e in episodes)
    opening = [replace(view, opening=widest, opens=sign) for sign in (1.0, -1.0)]
    # The command that opens is the one under which fingers move towards their target.
    return max(opening, key=lambda v: _agreement(v, episodes)) if widest > 0 else view


def _with_bodies(first: Episode, servo: Servo, joints: tuple[str, ...]) -> ContactView:
    """The view of the log's bodies and cloths, and of what moves its arm."""
    shown = dict.fromkeys(c.name.rpartition(".")[0] for c in first.channels if c.group == "object")
    knots = tuple(name for name in shown if KNOT.fullmatch(name))
    if not knots:
        return ContactView(bodies_of(first), servo=servo, joints=joints)
    rigid = first.select([c.name for c in first.channels if c.name.rpartition(".")[0] not in knots])
    others = bodies_of(rigid) if any(c.group == "object" for c in rigid.channels) else ()
    return ContactView((*others, *dict.fromkeys(map(_cloth, knots))), knots=knots)


def _cloth(knot: str) -> str:
    return knot.rpartition(".")[0]


def _touch_point(knots: np.ndarray, hand: np.ndarray) -> np.ndarray:
    """How far the knot nearest the hand has gone, (rows, 3), from seen row to seen row; NaN where a cloth is hidden.

    Across rows in the dark it is the knot that was nearest before them.
    """
    out = np.full(hand.shape, np.nan)
    seen = np.flatnonzero(~np.isnan(knots).any((1, 2)))
    if len(seen):
        nearest = np.linalg.norm(knots[seen] - hand[seen, None], axis=2).argmin(1)[:-1]
        before, after = knots[seen[:-1]], knots[seen[1:]]
        steps = (after - before)[np.arange(len(nearest)), nearest]
        out[seen] = np.concatenate([np.zeros((1, 3)), np.cumsum(steps, 0)])
    return out


def _agreement(view: ContactView, episodes: Sequence[Episode]) -> float:
    pairs = [(np.diff(_width(e)), view._gripper(e)) for e in episodes]
    return float(sum(moved @ found[2][:, 0] for moved, found in pairs if found))


def _target(joint: str) -> str:
    return joint.replace("joint_", "joint_target_")


def _width(episode: Episode) -> np.ndarray:
    """How far a finger is from the middle, on average over the fingers."""
    fingers = [i for i, c in enumerate(episode.channels) if FINGER.fullmatch(c.name)]
    width = np.abs(episode.observations[:, fingers])
    if not fingers or np.isnan(width).any():
        raise ValueError(
            f"{episode.source or 'a log'} shows {len(fingers)} fingers{', not always' if fingers else ''}; expected "
            "those of the other logs in every row: encoders are never in the dark."
        )
    return width.mean(1)


def _columns(episode: Episode, names: Sequence[str]) -> np.ndarray:
    return episode.select(list(names)).observations.astype(np.float64)


def _place(episode: Episode, body: str) -> np.ndarray:
    return _columns(episode, [f"{body}.{a}" for a in AXES])


def _input(episode: Episode, name: str) -> np.ndarray:
    names = [c.name for c in episode.inputs]
    if name not in names:
        raise ValueError(f"{episode.source or 'the log'} has the inputs {names}; expected {name} among them.")
    return episode.actions[:, names.index(name)].astype(np.float64)
