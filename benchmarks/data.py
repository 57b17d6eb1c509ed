"""Speed of the ManiSkill reader beside h5py alone, in one run, and of the simulated systems; writes results/data.json.

h5py loads exactly the datasets that the reader uses, each by `file[key][()]`, opening the files included; the reader
gives `Episode`s. They take turns, so that a busy moment of the machine falls on both. A system's 1,000 episodes are
timed after compilation, drawn anew each time.
"""

import argparse
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import h5py
import jax
import numpy as np

from vhydro.data import hdf5, read
from vhydro.systems import Block, Pendulum, Puck, Pushing, simulate

HERE = Path(__file__).parent
DATA = HERE / ".." / ".." / "shared" / "data"
BARS = {"maniskill_read_ratio": 2.0, "systems_seconds": 2.0}
EPISODES, STEPS, DT = 1000, 200, 0.005


def used_keys(paths: list[Path]) -> dict[Path, list[str]]:
    """The datasets that the reader reads of each file, told by itself."""
    found: dict[Path, list[str]] = {path: [] for path in paths}
    plain = hdf5.Group.numbers

    def noted(self, name, *shape, **options):
        found[self.file].append(f"{self.episode}/{self.path(name)}")
        return plain(self, name, *shape, **options)

    hdf5.Group.numbers = noted
    try:
        all_episodes(paths)
    finally:
        hdf5.Group.numbers = plain
    return found


def all_episodes(paths: list[Path]) -> int:
    return sum(episode.steps for path in paths for episode in read(path))


def all_datasets(keys: dict[Path, list[str]]) -> int:
    count = 0
    for path, names in keys.items():
        with h5py.File(path, "r") as file:
            for name in names:
                count += file[name][()].size
    return count


def seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def reading(folder: Path, runs: int) -> dict:
    """The reader's time over h5py's in the same turn, the median of all turns."""
    paths = sorted((folder / "maniskill").glob("*.h5"))
    if not paths:
        raise SystemExit(f"no ManiSkill files in {folder / 'maniskill'}; name their folder with --data.")
    keys = used_keys(paths)
    alone, ours = [], []
    for _ in range(runs):
        alone.append(seconds(lambda: all_datasets(keys)))
        ours.append(seconds(lambda: all_episodes(paths)))
    mine, peer = float(np.median(ours)), float(np.median(alone))
    ratios = [a / b for a, b in zip(ours, alone, strict=True)]
    print(f"{'h5py alone':24s} {peer:8.3f} s   {sum(map(len, keys.values()))} datasets of {len(paths)} files")
    print(f"{'episodes':24s} {mine:8.3f} s", flush=True)
    return {
        "maniskill_read_ratio": float(np.median(ratios)), "h5py_seconds": peer, "read_seconds": mine,
        "ratio_per_run": ratios, "files": len(paths),
        "datasets": sum(map(len, keys.values())),
    }  # fmt: skip


def simulating(runs: int) -> dict:
    """Median seconds for 1,000 episodes of each system, and the seconds of its first call, with compilation."""
    run, first = {}, {}
    for system in (Puck(), Block(), Pendulum(), Pushing()):
        name = type(system).__name__
        times = [
            seconds(lambda s=system, i=i: simulate(s, EPISODES, STEPS, DT, key=jax.random.key(i)))
            for i in range(runs + 1)
        ]
        first[name], run[name] = times[0], float(np.median(times[1:]))
        print(f"{name:24s} {run[name]:8.3f} s   first call {first[name]:.1f} s", flush=True)
    return {"systems_seconds": run, "first_call_seconds": first, "episodes": EPISODES, "steps": STEPS}


def commit() -> str:
    try:
        return subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True
        ).stdout.strip()
    except OSError:
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="folder that holds maniskill/*.h5")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "data.json")
    options = parser.parse_args()
    if options.runs < 5:
        raise SystemExit("a median of fewer than 5 runs says little; give --runs 5 or more.")
    results = reading(options.data, options.runs) | simulating(options.runs)
    results["meta"] = {
        "commit": commit(), "device": jax.devices()[0].device_kind, "cores": os.cpu_count(), "runs": options.runs,
        "jax": jax.__version__, "h5py": h5py.__version__, "hdf5": h5py.version.hdf5_version,
        "python": platform.python_version(), "date": datetime.now(UTC).date().isoformat(),
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    ratio, slowest = results["maniskill_read_ratio"], max(results["systems_seconds"].values())
    print(f"{'maniskill_read_ratio':24s} {ratio:8.3f}     bar {BARS['maniskill_read_ratio']}")
    print(f"{'slowest system':24s} {slowest:8.3f} s   bar {BARS['systems_seconds']}")


if __name__ == "__main__":
    main()
