"""What every reader does at the end: numbers become an `Episode`, and a failing library becomes one `DataError`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from vhydro.data.errors import DataError
from vhydro.episodes import Channel, Contact, Episode

GIBIBYTE = 1 << 30
FORCES = ("peak", "normal", "tangential")  # of a contact; the last may be missing
DROPPED_NOTE = "As many observations as actions: the last action of each episode, which leads nowhere, was dropped."
Info = dict[str, str | float | bool]


@contextmanager
def translated(file: Path, expected: str, *, episode="", key="", remedy="") -> Iterator[None]:
    """Turns whatever a library raises over damaged content into a `DataError` of this place."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # damaged bytes make libraries raise anything, MemoryError included
        found = f"{type(error).__name__}: {str(error).strip() or 'no details'}".replace("\n", " ")
        raise DataError(
            file, episode=episode, key=key, found=found[:300], expected=expected, remedy=remedy or REMEDY
        ) from None


REMEDY = "The file may be damaged: fetch or write it again."


def floats(values: np.ndarray) -> np.ndarray:
    """The numbers as floats: floats keep their precision and become native, everything else becomes float64."""
    if values.dtype.kind == "f" and values.dtype.itemsize in (2, 4, 8):
        return values.astype(values.dtype.newbyteorder("="), copy=False)
    return values.astype(np.float64)


def assembled(
    file: Path,
    name: str,
    *,
    observations: np.ndarray,
    actions: np.ndarray,
    dt: float,
    channels: Sequence[Channel],
    inputs: Sequence[Channel] = (),
    labels: Mapping[str, np.ndarray] | None = None,
    contacts: Sequence[Contact] = (),
    info: Mapping[str, str | float | bool] | None = None,
) -> Episode:
    """The episode, or a `DataError` that names the channel that is wrong."""
    for values, named, bad, wish in (
        (observations, channels, np.isinf(observations), "finite numbers, or NaN where a value was hidden"),
        (actions, inputs, ~np.isfinite(actions), "finite numbers: an action cannot be hidden"),
    ):
        if bad.any():
            row, column = np.argwhere(bad)[0]
            key = named[column].name if column < len(named) else f"action column {column}"
            raise DataError(file, episode=name, key=key, found=f"{values[row, column]} at row {row}", expected=wish)
    for contact in contacts:
        check_forces(file, name, contact, len(observations))
    try:
        return Episode(
            observations=observations,
            actions=actions,
            dt=dt,
            channels=tuple(channels),
            inputs=tuple(inputs),
            labels=dict(labels or {}),
            contacts=tuple(contacts),
            info=dict(info or {}),
            source=f"{file.name}:{name}",
        )
    except ValueError as error:
        raise DataError(file, episode=name, found=str(error), expected="arrays that fit together") from None


def check_forces(file: Path, name: str, contact: Contact, rows: int) -> None:
    """Raises unless the forces of a contact are finite numbers, a row for each observation, the first of them 0."""
    for values in (contact.peak, contact.normal, contact.tangential):
        if values is not None and (values.shape != (rows,) or not np.isfinite(values).all() or values[0] != 0):
            found = f"{values.dtype} {values.shape}, the first {values.ravel()[:1]}"
            expected = f"{rows} finite forces in newtons, the first of them 0"
            raise DataError(file, episode=name, key=f"contact {contact.name}", found=found, expected=expected)


def plain_info(record: Mapping) -> Info:
    """Facts as plain values: text, truth or float; ValueError for anything else."""
    info: Info = {}
    for name, value in record.items():
        value = value.item() if isinstance(value, np.generic) else value
        if not isinstance(value, str | float | bool | int):
            raise ValueError(f"{name} is a {type(value).__name__}, not a text, number or truth")
        info[str(name)] = float(value) if type(value) is int else value
    return info


def plain_channel(record: Mapping) -> Channel:
    """A channel from its JSON record; ValueError if that is none."""
    if (
        set(record) != {"name", "group", "unit"}
        or not all(isinstance(v, str) for v in record.values())
        or not record["name"]
    ):
        raise ValueError(f"{record!r} is no channel with a name, a group and a unit")
    return Channel(record["name"], record["group"], record["unit"])


GROUP_WORDS = (
    ("gripper", ("gripper", "finger")),
    ("joints", ("joint", "motor", "shoulder", "elbow", "wrist", "qpos", "qvel")),
    ("end_effector", ("eef", "ee_", "tcp", "cartesian", "end_effector")),
    ("scene", ("goal", "target")),
)


def likely_group(name: str, otherwise: str = "object") -> str:
    """The group that a name speaks of, where a format has no groups."""
    low = name.lower()
    return next((group for group, words in GROUP_WORDS if any(w in low for w in words)), otherwise)
