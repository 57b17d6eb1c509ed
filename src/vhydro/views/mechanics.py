"""Positions that forces move: what a port-Hamiltonian law is found from."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from vhydro.episodes import Episode
from vhydro.units import in_si
from vhydro.views.view import looked_up, only

LENGTHS, FORCES = ("m", "rad"), ("N", "N m")
NONE, SCENE = "-", "scene"  # what belongs to the scene is no position that a force moves: a reference, a goal
# Names of rates of change, and of what pushes and of what is pushed where a log declares no units.
RATES = re.compile(r"(^|[._ ])(v|w|qd|dq|dx|omega)([._ \d]|$)|vel(ocity)?|speed|rate\b|_dot\b|accel", re.IGNORECASE)
PLACES = re.compile(r"(^|[._ ])(q|x|y|z|theta|phi|alpha)\d*$|pos(ition)?|angle|height|displacement", re.IGNORECASE)
PUSHES = re.compile(r"(^|[._ ])(u|f|tau)\d*$|force|torque|effort", re.IGNORECASE)
COMMANDED = re.compile(r"ref(erence)?\b|target|command|desired|setpoint", re.IGNORECASE)


@dataclass(frozen=True)
class MechanicsView:
    """Positions or angles, and the inputs that act on them; called with a log, the log of both in SI units."""

    positions: tuple[str, ...]  # channels that are positions or angles
    forces: tuple[str, ...] = ()  # inputs that are forces or torques, one for each position; "-" where there is none
    carried_by: tuple[str, ...] = ()  # inputs that are velocities of the frame a position is measured in; "-": none
    friction: tuple[float, ...] = ()  # known friction in N s/m, where no input is a force; nan: to be estimated
    masses: tuple[float, ...] = ()  # known masses in kg, or inertias in kg m²; nan: to be estimated

    kind: ClassVar[str] = "mechanics"
    example: ClassVar[str] = 'MechanicsView(positions=("angle",), forces=("torque",))'

    def __post_init__(self):
        n = len(self.positions)
        if not n:
            raise ValueError(f"no positions given; expected at least one. For example {self.example}.")
        for what, names in (("positions", self.positions), ("forces", self.forces)):
            twice = sorted({x for x in names if x != NONE and names.count(x) > 1})
            if twice:
                raise ValueError(f"{what} name {', '.join(twice)} more than once; expected each once. Leave one out.")
        for what in ("forces", "carried_by", "friction", "masses"):
            given = getattr(self, what)
            if given and len(given) != n:
                raise ValueError(
                    f"{len(given)} {what.replace('_', ' ')} for {n} positions; expected one for each, "
                    f"{'nan where unknown' if what in ('friction', 'masses') else 'a dash where there is none'}. "
                    f"Give {n}."
                )

    @property
    def channels(self) -> tuple[str, ...]:
        """The raw channels it needs."""
        return self.positions

    @property
    def inputs(self) -> tuple[str, ...]:
        """The raw inputs it needs."""
        return tuple(dict.fromkeys(name for name in (*self.forces, *self.carried_by) if name != NONE))

    def __call__(self, episode: Episode) -> Episode:
        """The log of the positions and of the inputs that act on them."""
        return only(looked_up(self, episode), self.positions, self.inputs)


def mechanics_view(episodes: Sequence[Episode]) -> MechanicsView:
    """The view of logs whose units say what is a position and what a force: one force for every position, in order.

    A log that declares no unit at all is read by names. What is called a velocity, a reference, a target or a command
    is no position, whatever its unit.
    """
    first = in_si(episodes[0])
    positions, forces = mechanics_parts(first)
    if not positions or len(forces) != len(positions):
        shown = ", ".join(f"{c.name} ({c.unit or 'no unit'})" for c in (*first.channels, *first.inputs))
        raise ValueError(
            f"the log shows {len(positions)} positions in m or rad and {len(forces)} forces in N or N m, among "
            f"{shown}; expected a force for every position. Say which is which: {MechanicsView.example}, "
            "or --positions angle --forces torque."
        )
    return MechanicsView(positions, forces)


def mechanics_parts(log: Episode) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The channels of a log in SI units that are positions or angles, and its inputs that are forces or torques."""
    measured = [c for c in log.channels if c.group != SCENE and not COMMANDED.search(c.name)]
    measured = [c for c in measured if not RATES.search(c.name)]
    if any(c.unit for c in (*log.channels, *log.inputs)):
        return (
            tuple(c.name for c in measured if c.unit in LENGTHS),
            tuple(c.name for c in log.inputs if c.unit in FORCES),
        )
    forces = [c.name for c in log.inputs if PUSHES.search(c.name) and not COMMANDED.search(c.name)]
    return tuple(c.name for c in measured if PLACES.search(c.name)), tuple(forces)
