"""LeRobot v2.1 on disk: a parquet file for each episode and lists of JSON lines. Current LeRobot refuses it."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vhydro.data.lerobot_stats import stats
from vhydro.data.row_groups import imported_pyarrow

CHUNK = 1000  # episodes
DATA_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"


@dataclass
class FilesV21:
    """The files of a v2.1 dataset, while episodes are written."""

    folder: Path
    episodes: list[dict] = field(default_factory=list)
    told: list[dict] = field(default_factory=list)

    def add(self, index: int, table: Any, numbers: dict[str, np.ndarray], task: str) -> None:
        """Writes the table of one episode."""
        _, parquet = imported_pyarrow(self.folder)
        path = self.folder / DATA_PATH.format(episode_chunk=index // CHUNK, episode_index=index)
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(table, path, write_page_checksum=True)
        self.episodes.append({"episode_index": index, "tasks": [task], "length": table.num_rows})
        self.told.append({"episode_index": index, "stats": {k: stats(v) for k, v in numbers.items()}})

    def finish(self, tasks: dict[str, int]) -> dict[str, Any]:
        """Writes the lists of episodes and tasks; returns what `info.json` says of the files."""
        meta, count = self.folder / "meta", len(self.episodes)
        meta.mkdir()
        write_lines(meta / "episodes.jsonl", self.episodes)
        write_lines(meta / "episodes_stats.jsonl", self.told)
        write_lines(meta / "tasks.jsonl", [{"task_index": i, "task": t} for t, i in tasks.items()])
        return {
            "codebase_version": "v2.1", "total_videos": 0, "total_chunks": (count - 1) // CHUNK + 1,
            "chunks_size": CHUNK, "data_path": DATA_PATH, "video_path": None,
        }  # fmt: skip

    def close(self) -> None:
        """Nothing is open between episodes."""


def write_lines(path: Path, records: list[dict]) -> None:
    path.write_text("".join(json.dumps(r) + "\n" for r in records), "utf-8")
