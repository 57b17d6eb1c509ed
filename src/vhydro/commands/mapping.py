"""What the channels of a log are: told by flags or by a small file, the same for every verb that reads logs."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from vhydro.data.dataset import Dataset
from vhydro.data.errors import DataError
from vhydro.episodes import Channel, Episode
from vhydro.units import si_unit
from vhydro.usage import UsageError, did_you_mean
from vhydro.views import KINDS, AnyView, BodyView, ContactView, MechanicsView, PlainView
from vhydro.views.contact import GRIP
from vhydro.views.mechanics import NONE
from vhydro.views.view import AXES, looked_up

LARGEST = 1 << 24  # bytes of a mapping file
IGNORED = ("about", "unused")  # what a draft says to whoever edits it
OF = {
    "positions": ("forces", "carried_by", "friction", "masses"),
    "hand": ("grip", "fingers", "joints", "targets", "moves"),
}
APART = "\x1f"  # between the channels of a body in a file, whose names may hold commas
REMEDY = "`vhydro data inspect LOGS --write FILE` drafts one."


@dataclass(frozen=True)
class Naming:
    """What channels and inputs of a log are. Whatever is not named is found by its usual name or its unit."""

    mapping: Path | None = None
    """A file that `vhydro data inspect LOGS --write FILE` drafted; flags go before what it says."""
    view: Literal["auto", "contact", "mechanics", "body", "plain"] = "auto"
    """auto: the first of the others that the log has everything for."""
    hand: tuple[str, ...] = ()
    """Channels of the hand's place along x, y and z, for the contact view."""
    body: tuple[str, ...] = ()
    """Bodies and the channels of their places, such as cup=cup_x,cup_y,cup_z; for the contact or the body view."""
    fingers: tuple[str, ...] = ()
    """Channels: how far each finger is from the middle; for the contact view, as the four that follow."""
    grip: str = ""
    """The input that opens and closes the fingers."""
    joints: tuple[str, ...] = ()
    """Channels of joints whose targets are inputs."""
    targets: tuple[str, ...] = ()
    """Inputs that say where these joints should go, one for each."""
    moves: tuple[str, ...] = ()
    """Inputs that tell the hand how far to go along x, y and z, where joints have no targets."""
    positions: tuple[str, ...] = ()
    """Channels that are positions or angles, for the mechanics view."""
    forces: tuple[str, ...] = ()
    """Inputs that are forces or torques, one for each position in order; `-` where there is none."""
    carried_by: tuple[str, ...] = ()
    """Inputs that are velocities of the frame a position is measured in, one for each; `-` where there is none."""
    friction: tuple[float, ...] = ()
    """Known friction along each position in N s/m, where no input is a force; nan where it is to be estimated."""
    masses: tuple[float, ...] = ()
    """Known mass along each position in kg, or inertia in kg m²; nan where it is to be estimated."""
    channels: tuple[str, ...] = ()
    """Channels as they are, for the plain view."""
    inputs: tuple[str, ...] = ()
    """Inputs as they are, for the plain view."""
    units: tuple[str, ...] = ()
    """Units of channels and inputs where the log tells none or another, such as pose/x=mm."""

    def __post_init__(self):
        for name, given in (("hand", self.hand), ("moves", self.moves)):  # x,y,z as for bodies means what x y z does
            if len(given) == 1 and given[0].count(",") == 2:
                object.__setattr__(self, name, tuple(given[0].split(",")))

    def chosen(self) -> str | AnyView:
        """The view that was named, or the name of a kind of view."""
        told = self.resolved()
        named = {
            "contact": (*told.hand, *told.fingers, *told.joints, *told.moves), "mechanics": told.positions,
            "plain": told.channels, "body": told.body if not told.hand else (),
        }  # fmt: skip
        told._refuse_orphans()
        meant = [kind for kind, names in named.items() if names]
        if told.view != "auto" and meant not in ([], [told.view]):
            raise self._error(
                f"--view {told.view} with channels of the {meant[0]} view; expected those of one view. Leave --view or "
                "the channels out."
            )
        if len(meant) > 1:
            raise self._error(
                f"channels of the {' and the '.join(meant)} view were named; expected those of one view. Leave the "
                "others out."
            )
        if not meant:
            return told.view
        try:
            return told._built(meant[0])
        except ValueError as error:
            raise self._error(str(error)) from None

    def _refuse_orphans(self) -> None:
        """Raises where something is told of channels that are not named: it would count for nothing."""
        for whose, names in OF.items():
            alone = [name for name in names if getattr(self, name) and not getattr(self, whose)]
            if alone:
                raise self._error(
                    f"--{alone[0].replace('_', '-')} without --{whose}; expected both, for one is told of the other. "
                    f"Name the channels with --{whose}."
                )

    def _error(self, words: str) -> ValueError:
        """What is wrong, with the command line or with the file that was named."""
        return UsageError(words) if self.mapping is None else ValueError(f"{self.mapping}: {words}")

    def applied(self, logs: Dataset, view: AnyView | None = None) -> Dataset:
        """The logs with the units that were told and, for a model's `view`, with what was named under its names."""
        changes: list[Callable[[Episode], Episode]] = []
        units = dict(map(_unit, self.resolved().units))
        if units:
            changes.append(lambda log: with_units(log, units))
        mine = self.chosen()
        if view is not None and mine not in ("auto", view.kind):
            channels, inputs = renames(mine, view)
            changes.append(lambda log: renamed(log, channels, inputs))
        for change in changes:
            logs = logs.map(change)
        return logs

    def usual(self, logs: Dataset) -> Dataset:
        """The logs with the units that were told, and what was named of contact under the usual names and groups."""
        view = self.chosen()
        logs = self.applied(logs)
        if not isinstance(view, ContactView):
            return logs
        target = usual_contact(view)
        channels, inputs = renames(view, target)
        groups = dict.fromkeys((n for names in target.bodies.values() for n in names), "object")
        groups |= dict.fromkeys(target.hand, "end_effector") | dict.fromkeys(target.fingers, "gripper")
        groups |= dict.fromkeys(target.joints, "joints")

        def change(log: Episode) -> Episode:
            log = renamed(looked_up(view, log), channels, inputs)
            return replace(log, channels=tuple(replace(c, group=groups.get(c.name, c.group)) for c in log.channels))

        return logs.map(change)

    def resolved(self) -> "Naming":
        """What the flags say and, where they say nothing, the file."""
        if self.mapping is None:
            return self
        told = read_mapping(self.mapping)
        own = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return replace(told, **(own | {"mapping": None}))

    def _built(self, kind: str) -> AnyView:
        if kind == "contact":
            return ContactView(
                self.hand, dict(map(_body, self.body)), self.fingers, self.grip, joints=self.joints,
                targets=self.targets, moves=self.moves,
            )  # fmt: skip
        if kind == "mechanics":
            return MechanicsView(self.positions, self.forces, self.carried_by, self.friction, self.masses)
        if kind == "plain":
            return PlainView(self.channels, self.inputs)
        if len(self.body) != 1:
            raise ValueError(
                f"{len(self.body)} bodies without a hand; expected one, or a hand. Name its channels with --hand X Y Z."
            )
        name, places = _body(self.body[0])
        return BodyView(places[:3], places[3:], name)


def _body(text: str) -> tuple[str, tuple[str, ...]]:
    name, _, channels = text.partition("=")
    if not name or not channels:
        raise UsageError(f"--body {text}; expected a name and its channels, such as --body cup=cup_x,cup_y,cup_z.")
    places = tuple(channels.split(APART if APART in channels else ","))
    if len(places) == 1:  # a prefix
        places = tuple(f"{places[0]}{a}" for a in AXES)
    return name, places


def _unit(text: str) -> tuple[str, str]:
    name, _, unit = text.rpartition("=")
    if not name:
        raise UsageError(f"--units {text}; expected a channel or input and its unit, such as --units pose/x=mm.")
    if si_unit(unit) is None:
        raise UsageError(
            f"--units {text}: nobody knows the unit {unit!r}; expected one such as m, mm, rad, deg, N, N m, m/s or s."
        )
    return name, unit


# --- the file ---------------------------------------------------------------------------------------------------------


def draft(view: AnyView, log: Episode) -> dict[str, Any]:
    """A mapping of a view as JSON has it, to be edited: what it reads, the units of that, and what it does not use."""
    if isinstance(view, ContactView):
        own = {"hand": view.hand, "body": dict(view.bodies), "fingers": view.fingers, "grip": view.grip}
        own |= {"joints": view.joints, "targets": view.targets, "moves": view.moves}
    elif isinstance(view, MechanicsView):
        own = {"positions": view.positions, "forces": view.forces, "carried_by": view.carried_by}
        own |= {"friction": view.friction}
    elif isinstance(view, BodyView):
        own = {"body": {view.name: (*view.place, *view.turn)}}
    else:
        own = {"channels": view.channels, "inputs": view.inputs}
    read = {*view.channels, *view.inputs}
    every = (*log.channels, *log.inputs)
    return {
        "about": f"{log.source}: {1 / log.dt:.6g} Hz. An empty unit is taken as SI. Names in `unused` are ignored.",
        "view": view.kind, **{k: v for k, v in own.items() if v},
        "units": {c.name: c.unit for c in every if c.name in read},
        "unused": [c.name for c in every if c.name not in read],
    }  # fmt: skip


def read_mapping(path: Path) -> Naming:
    """The naming in a mapping file; a `DataError` says what is wrong with it."""
    expected = "a mapping: a JSON object of " + ", ".join(f.name for f in fields(Naming) if f.name != "mapping")
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"{path.stat().st_size} bytes")
        record = json.loads(path.read_text("utf-8"))
        return _naming(record)
    except OSError as error:
        raise DataError(path, found=f"{error.strerror}", expected=expected, remedy=REMEDY) from None
    except (ValueError, RecursionError) as error:
        raise DataError(path, found=f"{error}"[:200], expected=expected, remedy=REMEDY) from None


def _naming(record: Any) -> Naming:
    if not isinstance(record, dict):
        raise ValueError(f"a {type(record).__name__}")
    known = {f.name: f for f in fields(Naming) if f.name != "mapping"}
    values = {}
    for key, value in record.items():
        if key in IGNORED:
            continue
        if key not in known:
            raise ValueError(f"the key {key!r}, which is none. {did_you_mean(str(key), known)}")
        values[key] = _value(key, value)
    return Naming(**values)


def _value(key: str, value: Any) -> Any:
    """The value of a key as the flag of the same name would have it."""
    if key in ("view", "grip"):
        if not isinstance(value, str):
            raise ValueError(f"{key} is no text")
        if key == "view" and value not in ("auto", *KINDS):
            raise ValueError(f"the view {value!r}, which is none. {did_you_mean(value, ('auto', *KINDS))}")
        return value
    if key == "body":
        if not isinstance(value, dict) or not all(_texts(v) for v in value.values()):
            raise ValueError("body is no object of bodies and the names of their channels")
        return tuple(f"{name}={APART.join(names)}" for name, names in value.items())
    if key == "units":
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise ValueError("units is no object of channels and their units")
        return tuple(f"{name}={unit}" for name, unit in value.items() if unit)
    if key == "friction":
        if not isinstance(value, list) or not all(v is None or type(v) in (int, float) for v in value):
            raise ValueError("friction is no list of numbers, null where it is to be estimated")
        return tuple(float("nan") if v is None else float(v) for v in value)
    if not _texts(value):
        raise ValueError(f"{key} is no list of names")
    return tuple(value)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) for v in value)


# --- what it does to a log --------------------------------------------------------------------------------------------


def with_units(log: Episode, units: Mapping[str, str]) -> Episode:
    """The log with these units of channels and inputs, whatever it says itself."""
    names = {c.name for c in (*log.channels, *log.inputs)}
    if missing := [n for n in units if n not in names]:
        raise ValueError(
            f"{log.source or 'the log'} has no {', '.join(missing[:5])} for --units; expected channels or inputs of "
            f"it. {did_you_mean(missing[0], sorted(names))}"
        )

    def told(channels: Sequence[Channel]) -> tuple[Channel, ...]:
        return tuple(replace(c, unit=units.get(c.name, c.unit)) for c in channels)

    return replace(log, channels=told(log.channels), inputs=told(log.inputs))


def usual_contact(view: ContactView) -> ContactView:
    """The view with the names under which `contact_view` finds everything."""
    joints = tuple(f"arm.joint_{i + 1}" for i in range(len(view.joints)))
    return ContactView(
        tuple(f"tcp.{a}" for a in AXES),
        {b: names if b in view.cloths else tuple(f"{b}.{a}" for a in AXES) for b, names in view.bodies.items()},
        tuple(f"gripper.finger_{i + 1}" for i in range(len(view.fingers))),
        GRIP if view.grip else "",
        joints=joints,
        targets=tuple(n.replace("joint_", "joint_target_") for n in joints),
        moves=tuple(f"tcp.d{a}" for a in AXES) if view.moves else (),
    )


def renames(mine: str | AnyView, model: AnyView) -> tuple[dict[str, str], dict[str, str]]:
    """The model's names of the channels and of the inputs that were named."""
    if isinstance(mine, str) or mine.kind != model.kind:
        kind = mine if isinstance(mine, str) else mine.kind
        raise ValueError(
            f"the {kind} view was named; expected the {model.kind} view, which the model was fitted with. Name its "
            "channels, or fit another model."
        )
    if isinstance(mine, ContactView) and isinstance(model, ContactView):
        if set(mine.bodies) != set(model.bodies):
            raise ValueError(
                f"the bodies {', '.join(mine.bodies)} were named; expected {', '.join(model.bodies)}, which the model "
                "was fitted with. Name the same with --body."
            )
        parts = [(mine.bodies[b], model.bodies[b], b) for b in model.bodies]
    else:
        parts = []
    names = ("hand", "fingers", "joints", "positions", "place", "turn") + (("channels",) * (mine.kind == "plain"))
    told = ("targets", "moves", "forces", "carried_by") + (("inputs",) * (mine.kind == "plain"))
    channels = _paired([*parts, *_both(mine, model, names)])
    grips = [(v.grip,) if isinstance(v, ContactView) and v.grip else () for v in (mine, model)]
    return channels, _paired([*([(*grips, "grip")] if all(grips) else []), *_both(mine, model, told)])


def _both(mine: AnyView, model: AnyView, names: Sequence[str]):
    return [(getattr(mine, n), getattr(model, n), n) for n in names if getattr(mine, n, ()) and hasattr(model, n)]


def _paired(parts) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for own, theirs, what in parts:
        if len(own) != len(theirs):
            raise ValueError(
                f"{len(own)} names of {what} ({', '.join(own)}); expected {len(theirs)} ({', '.join(theirs)}), as the "
                "model was fitted with. Name as many."
            )
        pairs |= {a: b for a, b in zip(own, theirs, strict=True) if NONE not in (a, b) and a != b}
    return pairs


def renamed(log: Episode, channels: Mapping[str, str], inputs: Mapping[str, str]) -> Episode:
    """The log with these names; what had one of the new names and was not named itself steps aside."""
    return replace(log, channels=_renamed(log.channels, channels), inputs=_renamed(log.inputs, inputs))


def _renamed(channels: Sequence[Channel], names: Mapping[str, str]) -> tuple[Channel, ...]:
    taken = set(names.values())
    return tuple(
        replace(c, name=names.get(c.name) or (f"{c.name} of the log" if c.name in taken else c.name)) for c in channels
    )
