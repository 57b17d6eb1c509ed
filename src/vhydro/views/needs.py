"""What every view would need of a log and what the log shows of it, for a person who has to name the rest."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from vhydro.episodes import Episode
from vhydro.units import in_si
from vhydro.views.body import body_view
from vhydro.views.contact import contact_parts
from vhydro.views.mechanics import mechanics_parts
from vhydro.views.plain import changing
from vhydro.views.view import AXES

AXIS = re.compile(r"(.*?)([xyz])", re.IGNORECASE | re.DOTALL)


class Need(NamedTuple):
    """One thing a view reads: the names that were found and, where there are none, how to give them."""

    what: str
    found: tuple[str, ...]
    remedy: str = ""
    optional: bool = False


def needs(episodes: Sequence[Episode]) -> dict[str, list[Need]]:
    """What each kind of view needs of these logs, as `vhydro fit` would look for it."""
    first = in_si(episodes[0])
    return {
        "contact": _contact(first), "mechanics": _mechanics(first), "body": _body(first), "plain": _plain(episodes),
    }  # fmt: skip


def _contact(log: Episode) -> list[Need]:
    parts = contact_parts(log)
    free = [t for t in triples([c.name for c in log.channels]) if t != parts.hand]
    hand, cup = (_example(free, i) for i in (0, 0 if parts.hand else 1))
    fingers = (*parts.fingers, *([parts.grip] if parts.grip else []))
    return [
        Need("hand", parts.hand, f"name it with --hand {' '.join(hand)}"),
        Need("bodies", tuple(parts.bodies), f"name one with --body cup={','.join(cup)}"),
        Need("fingers", fingers, optional=True),
        Need("joints with targets", parts.joints, optional=True),
        Need("commanded hand", parts.moves, optional=True),
    ]


def _mechanics(log: Episode) -> list[Need]:
    positions, forces = mechanics_parts(log)
    one = (*positions, log.channels[0].name)[0]
    told = (*forces, *(c.name for c in log.inputs))[:1]
    remedy = f"name one for each position, such as --positions {one} --forces {''.join(told)}"
    if not told:
        remedy = f"the log has no inputs; known friction will do: --positions {one} --friction 0.1"
    elif forces and len(forces) != len(positions):
        remedy = f"there are {len(forces)} for {len(positions)} positions; {remedy}"
    return [
        Need("positions in m or rad", positions, f"name them with --positions {one}, or tell their --units"),
        Need("forces in N or N m", forces if len(forces) == len(positions) else (), remedy),
    ]


def _body(log: Episode) -> list[Need]:
    found = triples([c.name for c in log.channels])
    if log.inputs:
        return [Need("one free body", (), f"the log has inputs; if none acts on it, --body cube={_joined(found)}")]
    try:
        shown = body_view([log]).place
    except ValueError:
        shown = ()
    return [Need("one free body", shown, f"name it with --body cube={_joined(found)}")]


def _plain(episodes: Sequence[Episode]) -> list[Need]:
    channels, inputs = changing(episodes)
    return [
        Need("channels that change", channels, "none is ever seen to change; expected one"),
        Need("inputs that change", inputs, optional=True),
    ]


def triples(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Names that are the same but for x, y and z at their end: the places of things."""
    stems = dict.fromkeys(m[1] for n in names if (m := AXIS.fullmatch(n)))
    every = set(names)
    ways = [tuple(f"{s}{a}" for a in axes) for s in stems for axes in (AXES, tuple(map(str.upper, AXES)))]
    return [way for way in ways if every.issuperset(way)]


def _example(found: Sequence[tuple[str, ...]], i: int) -> tuple[str, ...]:
    return found[i] if i < len(found) else ("X", "Y", "Z")


def _joined(found: Sequence[tuple[str, ...]]) -> str:
    return ",".join(_example(found, 0))
