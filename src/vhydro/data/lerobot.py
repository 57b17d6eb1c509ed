"""LeRobot datasets, v2.0 to v3.0: parquet tables of numbers with their meaning in `meta`."""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from vhydro.data.assembly import (
    DROPPED_NOTE,
    FORCES,
    REMEDY,
    Info,
    assembled,
    floats,
    likely_group,
    plain_channel,
    plain_info,
    translated,
)
from vhydro.data.columns import Columns
from vhydro.data.dataset import Dataset
from vhydro.data.errors import DataError
from vhydro.data.lerobot_meta import Feature, Layout, Place, layout
from vhydro.data.memory import allowance_of
from vhydro.data.row_groups import imported_pyarrow, indexed_file, row_groups
from vhydro.episodes import Channel, Contact, Episode

EXTRA = Path("meta") / "vhydro.json"
VERSION = 1
RATE_SPREAD = 0.1  # by which the steps of an episode may differ from the rate that is told for all
HEAD = 1 << 24  # bytes of info.json that are looked at to recognise it


class LeRobot:
    """A folder with `meta/info.json` and parquet files."""

    name = "LeRobot"

    def recognises(self, path: Path) -> bool:
        try:
            file = path / "meta" / "info.json"
            if not file.is_file():
                return False
            with file.open("rb") as opened:
                return b'"codebase_version"' in opened.read(HEAD)
        except OSError:
            return False

    def open(self, path: Path) -> Dataset:
        found = layout(path)
        if (path / EXTRA).is_file():
            return written_dataset(self.name, found)
        names = tuple(f"episode_{place.index:06d}" for place in found.places)
        skipped = [*found.left_out, *(f.key for f in found.features if not f.key.startswith(("observation", "action")))]
        notes = (f"Left out: {', '.join(skipped)}.",) if skipped else ()
        return Dataset(self.name, path, names, partial(foreign_episode, found, names), (DROPPED_NOTE, *notes))


def foreign_episode(found: Layout, names: tuple[str, ...], index: int) -> Episode:
    """An episode of someone else's dataset: every numeric observation and action."""
    place, name = found.places[index], names[index]
    observed, commanded = Columns(), Columns()
    wanted = [f for f in found.features if f.key.startswith(("observation", "action"))]
    values = episode_values(found, place, name, wanted)
    dotted = [n for f in wanted if not f.key.startswith("action") for n in f.names if "." in n]
    for feature in wanted:
        action = feature.key.startswith("action")
        own = len(set(dotted)) == len(dotted) and not action
        quantities = [(q, "") for q in quantity_names(feature, "action" if action else "", keep=own)]
        group = "action" if action else feature_group(feature)
        (commanded if action else observed).add("", floats(values[feature.key]), quantities, group)
    if not observed.values:
        raise DataError(place.file, episode=name, key="observation", found="no numbers", expected="observation.state")
    observed.channels = [Channel(c.name, likely_group(c.name, c.group), c.unit) for c in observed.channels]
    return assembled(
        place.file,
        name,
        observations=observed.array(),
        actions=commanded.array()[:-1] if commanded.values else np.zeros((place.length - 1, 0)),
        dt=1 / found.fps,
        channels=observed.channels,
        inputs=commanded.channels,
        info={"task": place.task, "lerobot_version": found.version},
    )


def quantity_names(feature: Feature, prefix: str, *, keep: bool) -> list[str]:
    """`state.shoulder`; a name with a point in it already says its body and can be kept where it is the only one."""
    tail = feature.key.removeprefix("observation.").removeprefix("action.")
    body = f"{prefix}.{tail}" if prefix and tail != prefix else tail
    return [n if keep and "." in n else f"{body}.{n}" for n in feature.names]


def feature_group(feature: Feature) -> str:
    return "object" if feature.key == "observation.environment_state" else "joints"


def episode_values(found: Layout, place: Place, name: str, features: list[Feature]) -> dict[str, np.ndarray]:
    """The numbers of an episode, (rows, width) for each feature."""
    keys = [f.key for f in features]
    table = episode_table(found, place, name, keys, sum(f.width for f in features))
    return {f.key: column_values(place, name, f, table.column(f.key)) for f in features}


def episode_table(found: Layout, place: Place, name: str, keys: list[str], width: int):
    """The rows of an episode as an arrow table, after its size was checked."""
    arrow, _ = imported_pyarrow(found.folder)
    expected = "a parquet file of the dataset"
    with translated(place.file, expected, episode=name):
        if place.length * max(width, 1) * 8 > (most := allowance_of(place.file)):
            raise ValueError(f"an episode of {place.length} rows")
        file = indexed_file(place.file)
        promised = file.promised(keys)
    for key in (*keys, "episode_index"):
        if key not in file.names:
            raise DataError(
                place.file, episode=name, key=key, found=f"columns {sorted(file.names)[:10]}", expected="this column"
            )
    if promised * 8 > most:
        what, expected = f"columns of {promised:,} values", f"at most {most // 8:,} in a file of this size"
        raise DataError(place.file, episode=name, found=what, expected=expected, remedy="Divide it into more files.")
    clock = ["timestamp"] if "timestamp" in file.names else []
    with translated(place.file, expected, episode=name):
        rows = row_groups(file, file.groups(place.index), (*dict.fromkeys([*keys, *clock, "episode_index"]),))
        table = rows.filter(arrow.compute.equal(rows.column("episode_index"), place.index))
    if table.num_rows != place.length:
        found_rows = f"{table.num_rows} rows"
        raise DataError(
            place.file, episode=name, key="length", found=found_rows, expected=f"{place.length}, as in meta"
        )
    if clock:
        refuse_other_rate(found, place, name, table.column("timestamp"))
    return table


def refuse_other_rate(found: Layout, place: Place, name: str, clock) -> None:
    """Raises where the time stamps of an episode contradict the rate that `info.json` tells for all."""
    with translated(place.file, "time stamps in seconds", episode=name, key="timestamp"):
        stamps = np.asarray(clock.to_numpy(), np.float64)
    if len(stamps) < 2 or not np.isfinite(stamps).all():
        return
    step = float(np.median(np.diff(stamps)))
    if abs(step * found.fps - 1) > RATE_SPREAD:
        told = f"steps of {step:.4g} s, and {found.fps:.4g} Hz in meta/info.json"
        raise DataError(place.file, episode=name, key="timestamp", found=told, expected="one rate", remedy=REMEDY)


def column_values(place: Place, name: str, feature: Feature, column) -> np.ndarray:
    """A column of numbers or of lists of numbers as (rows, width); null is hidden."""
    arrow, _ = imported_pyarrow(place.file)
    with translated(place.file, f"{feature.width} numbers in each row", episode=name, key=feature.key):
        flat = column.combine_chunks()
        if (
            arrow.types.is_list(flat.type)
            or arrow.types.is_large_list(flat.type)
            or arrow.types.is_fixed_size_list(flat.type)
        ):
            if flat.null_count or set(arrow.compute.list_value_length(flat).unique().to_pylist()) != {feature.width}:
                raise ValueError("rows of different or no length")
            flat = flat.flatten()
        numeric = (
            arrow.types.is_integer(flat.type) or arrow.types.is_floating(flat.type) or arrow.types.is_boolean(flat.type)
        )
        if not numeric or len(flat) != place.length * feature.width:
            raise ValueError(f"{len(flat)} values of type {flat.type}")
        return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(place.length, feature.width)


def written_dataset(form: str, found: Layout) -> Dataset:
    """The dataset that `write_lerobot` wrote, with everything the standard has no place for."""
    file = found.folder / EXTRA
    with translated(file, "the description that `vhydro data convert` writes"):
        said = json.loads(file.read_text("utf-8"))
        if said["vhydro"] != VERSION:
            raise ValueError(f"version {said['vhydro']}")
        written = Written(
            layout=found,
            channels=tuple(plain_channel(c) for c in said["channels"]),
            inputs=tuple(plain_channel(c) for c in said["inputs"]),
            action_type=np.dtype(str(said["actions"])),
            labels={str(k): str(v) for k, v in said["labels"].items()},
            contacts=tuple(contact_columns(c) for c in said["contacts"]),
            episodes=tuple((str(e["name"]), float(e["dt"]), plain_info(e["info"])) for e in said["episodes"]),
        )
    names = tuple(name for name, _, _ in written.episodes)
    if len(names) != len(found.places) or len(set(names)) != len(names):
        raise DataError(
            file, key="episodes", found=f"{len(names)}", expected=f"{len(found.places)} names, all different"
        )
    return Dataset(form, found.folder, names, written)


def contact_columns(record: dict) -> tuple[tuple[str, str], dict[str, str]]:
    """The bodies of a contact and the columns of its forces."""
    first, second = (str(body) for body in record["bodies"])
    columns = {str(force): str(column) for force, column in record["columns"].items()}
    if set(columns) not in (set(FORCES[:2]), set(FORCES)):
        raise ValueError(f"the forces {sorted(columns)}")
    return (first, second), columns


@dataclass(frozen=True)
class Written:
    """The episodes that `write_lerobot` wrote, by number."""

    layout: Layout
    channels: tuple[Channel, ...]
    inputs: tuple[Channel, ...]
    action_type: np.dtype
    labels: dict[str, str]  # the column of each
    contacts: tuple[tuple[tuple[str, str], dict[str, str]], ...]
    episodes: tuple[tuple[str, float, Info], ...]

    def __call__(self, index: int) -> Episode:
        (name, dt, info), place = self.episodes[index], self.layout.places[index]
        values = self.values(place, name)
        nothing = np.zeros((place.length, 0), self.action_type)
        forces = [Contact(bodies, **{f: values[c] for f, c in columns.items()}) for bodies, columns in self.contacts]
        return assembled(
            place.file,
            name,
            observations=floats(values["observation.state"]),
            actions=floats(values.get("action", nothing))[:-1],  # the last row is padding
            dt=dt,
            channels=self.channels,
            inputs=self.inputs,
            labels={label: values[column] for label, column in self.labels.items()},
            contacts=forces,
            info=info,
        )

    def values(self, place: Place, name: str) -> dict[str, np.ndarray]:
        """Wide columns as (rows, width), narrow ones as (rows,); text stays text."""
        wide = {"observation.state": len(self.channels)} | ({"action": len(self.inputs)} if self.inputs else {})
        narrow = [*self.labels.values(), *(c for _, columns in self.contacts for c in columns.values())]
        table = episode_table(self.layout, place, name, [*wide, *narrow], sum(wide.values()) + len(narrow))
        values = {k: column_values(place, name, Feature(k, ("",) * w), table.column(k)) for k, w in wide.items()}
        return values | {key: narrow_values(place, name, key, table.column(key)) for key in narrow}


def narrow_values(place: Place, name: str, key: str, column) -> np.ndarray:
    """One value in each row."""
    arrow, _ = imported_pyarrow(place.file)
    if arrow.types.is_string(column.type) and not column.null_count:
        return np.array(column.to_pylist(), dtype=str)
    return column_values(place, name, Feature(key, ("",)), column)[:, 0]
