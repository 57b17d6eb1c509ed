"""One episode as arrays, and many of them as a robomimic-style HDF5 file."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
from contacts import PAIRS, contact_modes


class Recording:
    """What happened in one episode, step by step: row t is the observation before action t, and what it led to."""

    def __init__(self):
        self.rows: list[dict[str, np.ndarray]] = []

    def add(
        self, observation: dict, state: np.ndarray, action: np.ndarray, phase: int, *, reward: float, after: dict,
        contact: dict,
    ) -> None:  # fmt: skip
        row = {"actions": action, "states": state, "phase": np.int64(phase), "rewards": np.float32(reward)}
        row |= {f"obs/{name}": _single(value) for name, value in observation.items()}
        row |= {f"next_obs/{name}": _single(value) for name, value in after.items()}
        row |= {f"next_contact/{name}": _single(value) for name, value in contact.items()}
        self.rows.append(row)

    def __len__(self) -> int:
        return len(self.rows)

    def arrays(self) -> dict[str, np.ndarray]:
        """Every quantity with one row per action."""
        arrays = {name: np.stack([row[name] for row in self.rows]) for name in self.rows[0]}
        dones = np.zeros(len(self), np.int64)
        dones[-1] = 1
        return arrays | {"dones": dones, "contact_mode": contact_modes(arrays["next_contact/fn_mean"])}


def _single(value: np.ndarray) -> np.ndarray:
    return np.asarray(value, np.float32)


class EpisodeFile:
    """An open file to which episodes are added."""

    def __init__(self, file: h5py.File, attributes: dict):
        self._data = file.create_group("data")
        self._data.attrs.update(attributes)
        self._data.attrs["contact_pairs"] = list(PAIRS)
        self._data.attrs["total"] = 0
        self.count = 0

    def add(self, recording: Recording, attributes: dict) -> None:
        demo = self._data.create_group(f"demo_{self.count}")
        for name, values in recording.arrays().items():
            demo.create_dataset(name, data=values, compression="gzip", compression_opts=4)
        demo.attrs.update(attributes)
        demo.attrs["num_samples"] = len(recording)
        self._data.attrs["total"] += len(recording)
        self.count += 1


@contextmanager
def episode_file(path: Path, attributes: dict) -> Iterator[EpisodeFile]:
    """A file that has its name only once it is whole; whatever goes wrong, nothing half-written stays."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with h5py.File(unfinished, "w") as file:
            yield EpisodeFile(file, attributes)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def environment_record(**facts) -> str:
    """robomimic's `env_args`: what made the episodes, as JSON."""
    return json.dumps({"env_name": "Tabletop", "type": 1, **facts})
