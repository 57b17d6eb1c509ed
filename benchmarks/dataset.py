"""A dataset larger than one would hold: many episodes segmented to Parquet in processes and on a local Ray cluster.

Episodes are cut from the shipped PokeCube sample, with noise and hidden bodies of their own, and written as LeRobot
v3.0. The run on Ray loses a worker on the way. Both must give the same rows; the largest resident memory of any process
is read every few seconds. Writes benchmarks/results/dataset.json.

    python benchmarks/dataset.py --episodes 20000
"""

import json
import os
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import tyro

import vhydro
from provenance import provenance
from vhydro.cli import main as command
from vhydro.data import sample
from vhydro.data.dataset import Dataset
from vhydro.data.lerobot_write import write_lerobot
from vhydro.episodes import Episode

OUT = Path(__file__).parent / "results" / "dataset.json"
ROWS, PERIOD, KILL_AFTER = 100, 2.0, 6  # rows of an episode; seconds; finished blocks before a worker is killed


@dataclass(frozen=True)
class Config:
    """What is run."""

    episodes: int = 20_000
    folder: Path | None = None
    """Where the dataset goes and stays; by default a folder that is removed."""


def made(fitted: vhydro.Fitted, count: int, path: Path) -> None:
    """Writes the dataset."""
    logs, names = list(sample("PokeCube")), [c.name for c in fitted.channels]

    def cut(number: int) -> Episode:
        random = np.random.default_rng(number)
        log = logs[number % len(logs)].unlabelled().select(names)
        first = random.integers(0, log.steps + 2 - ROWS)
        values = log.observations[first : first + ROWS] + 1e-4 * random.standard_normal((ROWS, len(names)))
        bodies = [c.name.startswith(("cube", "peg")) for c in log.channels]
        values[np.ix_(random.random(ROWS) < 0.1, bodies)] = np.nan
        return replace(log, observations=values.astype(np.float32), actions=log.actions[first : first + ROWS - 1])

    write_lerobot(Dataset("made", path, tuple(f"e{i:06d}" for i in range(count)), cut), path)


class Watch(threading.Thread):
    """The largest resident memory of this process and those it started, every so often."""

    def __init__(self, blocks: Path, kill: bool):
        super().__init__(daemon=True)
        self.blocks, self.kill, self.megabytes, self.killed, self.going = blocks, kill, [], None, True

    def run(self) -> None:
        while self.going:
            resident = {p: _resident(p) for p in _descendants(os.getpid())}
            self.megabytes.append(round(max(resident.values(), default=0) / 1e6))
            if self.kill and self.killed is None and len(list(self.blocks.glob("done/*.json"))) >= KILL_AFTER:
                workers = [p for p in resident if _title(p).startswith("ray::_asked")]
                if workers:
                    self.killed = _title(workers[0])
                    os.kill(workers[0], signal.SIGKILL)
            time.sleep(PERIOD)


def _descendants(root: int) -> list[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
    found = [root]
    for process in found:
        found += [p for p, parent in parents.items() if parent == process]
    return found


def _resident(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _title(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


def measured(model: Path, logs: Path, out: Path, *place: str, kill: bool = False) -> tuple[dict, list[dict]]:
    """Seconds and memory of one run, and its rows."""
    watch, start = Watch(out, kill), time.perf_counter()
    watch.start()
    command(["segment", str(model), str(logs), "--to", "parquet", "--out", str(out), *place])
    seconds, watch.going = time.perf_counter() - start, False
    rows = pq.read_table(out / "segments").to_pylist()
    half = len(watch.megabytes) // 2
    found = {"seconds": round(seconds, 1), "segments": len(rows), "largest_process_mb": max(watch.megabytes)}
    found |= {"first_half_mb": max(watch.megabytes[:half] or [0]), "second_half_mb": max(watch.megabytes[half:])}
    return found | ({"killed": watch.killed} if kill else {}), rows


def main(config: Config) -> None:
    """Both runs."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = config.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        fitted = vhydro.fit(list(sample("PokeCube")), modes=3, refine=False)
        fitted.save(folder / "model.vhydro")
        logs = folder / "logs"
        if not logs.exists():
            made(fitted, config.episodes, logs)
        here, rows = measured(folder / "model.vhydro", logs, Path(temporary) / "here")
        there, others = measured(folder / "model.vhydro", logs, Path(temporary) / "ray", "--on", "ray", kill=True)
    result = {"episodes": config.episodes, "rows": ROWS, "processes": here, "ray": there, "same_rows": rows == others}
    OUT.write_text(json.dumps(result | {"meta": provenance()}, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    sys.exit(0 if rows == others and there["killed"] else 1)


if __name__ == "__main__":
    main(tyro.cli(Config))
