"""This package's own npz: all episodes of a dataset in one file that describes itself.

`observations` and `actions` lie one episode after another; `lengths` counts the observations of each. `vhydro.json`,
readable with any unzip, holds names, units, groups and info. It is plain numpy otherwise.
"""

import json
import shutil
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from vhydro.data.assembly import FORCES, Info, assembled, plain_channel, plain_info, translated
from vhydro.data.dataset import Dataset
from vhydro.data.errors import DataError
from vhydro.data.npz_archive import CHUNK, Archive
from vhydro.data.uniform import Kind, json_value, temporary_sibling
from vhydro.episodes import Channel, Contact, Episode
from vhydro.progress import counted

DESCRIPTION = "vhydro.json"
VERSION = 1


@dataclass
class Written:
    """What is gathered while episodes are written: the wide arrays on disk, the narrow ones in memory."""

    folder: Path
    kind: Kind | None = None
    names: list[str] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    dt: list[float] = field(default_factory=list)
    info: list[dict] = field(default_factory=list)
    narrow: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def add(self, dataset: Dataset, index: int) -> None:
        """Takes in one episode, which must be of the same kind as the first."""
        name = dataset.names[index]
        episode = dataset[index]
        self.kind = Kind.of(episode, name) if self.kind is None else self.kind.same(episode, name, dataset.path)
        for key, values in (("observations", episode.observations), ("actions", episode.actions)):
            with (self.folder / key).open("ab") as file:
                file.write(np.ascontiguousarray(values).tobytes())
        for key, values in narrow_arrays(episode).items():
            self.narrow.setdefault(key, []).append(np.asarray(values))
        self.names.append(name)
        self.lengths.append(episode.steps + 1)
        self.dt.append(float(episode.dt))
        self.info.append({k: json_value(v) for k, v in episode.info.items()})


def narrow_arrays(episode: Episode) -> dict[str, np.ndarray]:
    """Labels and contact forces by the key they have in the file."""
    arrays = {f"labels/{name}": values for name, values in episode.labels.items()}
    for i, contact in enumerate(episode.contacts):
        forces = {f"contacts/{i}/{force}": getattr(contact, force) for force in FORCES}
        arrays |= {key: values for key, values in forces.items() if values is not None}
    return arrays


def write_npz(dataset: Dataset, path: Path, *, overwrite: bool = False) -> Path:
    """The path of a self-described npz file with every episode; nothing is left behind if one cannot be read."""
    with temporary_sibling(path, overwrite=overwrite) as folder:
        written = Written(folder)
        for index in counted(range(len(dataset)), "writing episodes"):
            written.add(dataset, index)
        if written.kind is None:
            raise DataError(dataset.path, found="no episodes", expected="at least one")
        zip_arrays(written, written.kind, folder / "result")
        (folder / "result").replace(path)
    return path


def zip_arrays(written: Written, kind: Kind, target: Path) -> None:
    """Writes the archive, uncompressed so that it can be read in parts."""
    rows, episodes = sum(written.lengths), len(written.lengths)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED, allowZip64=True) as zipped:
        zipped.writestr(fixed(DESCRIPTION), json.dumps(native_description(written, kind), indent=1))
        add_raw(zipped, "observations", written.folder, kind.observations, (rows, len(kind.channels)))
        add_raw(zipped, "actions", written.folder, kind.actions, (rows - episodes, len(kind.inputs)))
        small = {"lengths": np.array(written.lengths, np.int64), "dt": np.array(written.dt, np.float64)}
        for key, values in (small | {k: np.concatenate(v) for k, v in written.narrow.items()}).items():
            with zipped.open(fixed(f"{key}.npy"), "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, values, allow_pickle=False)


def fixed(name: str) -> zipfile.ZipInfo:
    """A member with a fixed date, so that the same episodes give the same bytes."""
    return zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))


def add_raw(zipped: zipfile.ZipFile, key: str, folder: Path, dtype: np.dtype, shape: tuple[int, int]) -> None:
    """Adds an array whose bytes lie in a file."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    with zipped.open(fixed(f"{key}.npy"), "w", force_zip64=True) as stream, (folder / key).open("rb") as raw:
        np.lib.format.write_array_header_1_0(stream, header)
        shutil.copyfileobj(raw, stream, CHUNK)


def native_description(written: Written, kind: Kind) -> dict:
    return {
        "vhydro": VERSION,
        "channels": [asdict(c) for c in kind.channels],
        "inputs": [asdict(c) for c in kind.inputs],
        "labels": list(kind.labels),
        "contacts": [list(bodies) for bodies, _ in kind.contacts],
        "episodes": [{"name": n, "info": i} for n, i in zip(written.names, written.info, strict=True)],
    }


def native_dataset(form: str, archive: Archive) -> Dataset:
    """The episodes of a file written by `write_npz`."""
    file = archive.file
    with translated(file, "the description that `vhydro data convert` writes", key=DESCRIPTION):
        said = json.loads(archive.text(DESCRIPTION))
        if said["vhydro"] != VERSION:
            raise ValueError(f"version {said['vhydro']}")
        channels, inputs = (tuple(plain_channel(c) for c in said[k]) for k in ("channels", "inputs"))
        names = tuple(str(e["name"]) for e in said["episodes"])
        info = tuple(plain_info(e["info"]) for e in said["episodes"])
        labels = tuple(str(name) for name in said["labels"])
        contacts = tuple((str(a), str(b)) for a, b in said["contacts"])
    native = Native(archive, channels, inputs, names, info, labels, contacts)
    lengths = native.lengths
    if not len(names) or len(set(names)) != len(names) or lengths.dtype != np.int64 or lengths.min() < 1:
        raise DataError(file, key="lengths", found=f"{lengths[:5]}", expected="different episodes, each with a row")
    for key in ("observations", "actions", "dt", *native.narrow_keys):
        native.checked(key)
    return Dataset(form, file, names, native)


@dataclass(frozen=True)
class Native:
    """The episodes of a file written by `write_npz`, by number."""

    archive: Archive
    channels: tuple[Channel, ...]
    inputs: tuple[Channel, ...]
    names: tuple[str, ...]
    info: tuple[Info, ...]
    labels: tuple[str, ...]
    contacts: tuple[tuple[str, str], ...]

    def __call__(self, index: int) -> Episode:
        stop = int(self.lengths[: index + 1].sum())
        start = stop - int(self.lengths[index])
        narrow = {key: np.array(self.archive.array(key)[start:stop]) for key in self.narrow_keys}
        return assembled(
            self.archive.file,
            self.names[index],
            observations=np.array(self.archive.array("observations")[start:stop]),
            actions=np.array(self.archive.array("actions")[start - index : stop - index - 1]),
            dt=float(self.archive.array("dt")[index]),
            channels=self.channels,
            inputs=self.inputs,
            labels={name: narrow[f"labels/{name}"] for name in self.labels},
            contacts=[contact(bodies, i, narrow) for i, bodies in enumerate(self.contacts)],
            info=self.info[index],
        )

    @property
    def lengths(self) -> np.ndarray:
        return self.checked("lengths")

    @property
    def narrow_keys(self) -> list[str]:
        """The keys of labels and contact forces."""
        keys = [f"labels/{name}" for name in self.labels]
        keys += [f"contacts/{i}/{force}" for i in range(len(self.contacts)) for force in FORCES[:2]]
        tangential = (f"contacts/{i}/{FORCES[2]}" for i in range(len(self.contacts)))
        return keys + [key for key in tangential if key in self.archive.headers]

    def checked(self, key: str) -> np.ndarray:
        """An array of the layout, which must have the shape that follows from the others."""
        header = self.archive.headers.get(key)
        shape = (len(self.names),) if key in ("lengths", "dt") else self.shape(key)
        kinds = "biuf" if not key.startswith("labels/") else "biufU"
        if key in ("observations", "actions"):
            kinds = "f"
        if header is None or header.shape != shape or header.dtype.kind not in kinds:
            found = "nothing" if header is None else f"{header.dtype} {header.shape}"
            raise DataError(self.archive.file, key=key, found=found, expected=f"an array of shape {shape}")
        return self.archive.array(key)

    def shape(self, key: str) -> tuple[int, ...]:
        rows = int(self.lengths.sum())
        if key == "observations":
            return rows, len(self.channels)
        return (rows - len(self.names), len(self.inputs)) if key == "actions" else (rows,)


def contact(bodies: tuple[str, str], i: int, narrow: dict[str, np.ndarray]) -> Contact:
    peak, normal, tangential = (narrow.get(f"contacts/{i}/{force}") for force in FORCES)
    assert peak is not None
    assert normal is not None
    return Contact(bodies, peak, normal, tangential)
