"""LeRobot v3.0 on disk: many episodes to a parquet file, a row group for each, and parquet tables that list them."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vhydro.data.lerobot_stats import Running, stats
from vhydro.data.row_groups import imported_pyarrow

CHUNK = 1000  # files
DATA_MB = 100  # of numbers in a data file, at most
IN_FILE = 500  # episodes in a data file, at most: a file says of every row group where each column lies
LISTED = 1000  # episodes of the list that are held before they are written
PATH = "chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DATA_PATH, EPISODES_PATH = f"data/{PATH}", f"meta/episodes/{PATH}"


@dataclass
class FilesV30:
    """The files of a v3.0 dataset, while episodes are written."""

    folder: Path
    frames: int = 0
    file: int = -1
    in_file: int = 0
    size: int = 0  # bytes of numbers in the file
    data: Any = None  # the writer of the file
    listing: Any = None  # the writer of the list of episodes
    listed: list[dict] = field(default_factory=list)
    running: dict[str, Running] = field(default_factory=dict)

    def add(self, index: int, table: Any, numbers: dict[str, np.ndarray], task: str) -> None:
        """Writes the table of one episode as a row group."""
        if self.data is None or self.in_file >= IN_FILE or self.size + table.nbytes > DATA_MB << 20:
            self._next_file(table.schema)
        assert self.data is not None
        self.data.write_table(table, row_group_size=max(table.num_rows, 1))
        self.in_file, self.size = self.in_file + 1, self.size + table.nbytes
        found = {key: stats(values, quantiles=True) for key, values in numbers.items()}
        for key, values in numbers.items():
            one = Running.of(values, found[key])
            if key in self.running:
                self.running[key].add(one)
            else:
                self.running[key] = one
        self._note(index, table.num_rows, task, found)

    def _next_file(self, schema: Any) -> None:
        _, parquet = imported_pyarrow(self.folder)
        self.close()
        self.file, self.in_file, self.size = self.file + 1, 0, 0
        path = self.folder / DATA_PATH.format(chunk_index=self.file // CHUNK, file_index=self.file % CHUNK)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.data = parquet.ParquetWriter(path, schema, write_page_checksum=True)

    def _note(self, index: int, rows: int, task: str, found: dict) -> None:
        """Adds an episode to the list."""
        place = {
            "episode_index": index, "tasks": [task], "length": rows,
            "data/chunk_index": self.file // CHUNK, "data/file_index": self.file % CHUNK,
            "dataset_from_index": self.frames, "dataset_to_index": self.frames + rows,
            "meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0,
        }  # fmt: skip
        told = {f"stats/{key}/{name}": values for key, of in found.items() for name, values in of.items()}
        self.listed.append(place | told)
        self.frames += rows
        if len(self.listed) >= LISTED:
            self._flush()

    def _flush(self) -> None:
        arrow, parquet = imported_pyarrow(self.folder)
        if not self.listed:
            return
        names = list(self.listed[0])
        schema = arrow.schema([(name, listed_type(arrow, name)) for name in names])
        table = arrow.table({name: [record[name] for record in self.listed] for name in names}, schema)
        if self.listing is None:
            path = self.folder / EPISODES_PATH.format(chunk_index=0, file_index=0)
            path.parent.mkdir(parents=True, exist_ok=True)
            self.listing = parquet.ParquetWriter(path, schema, write_page_checksum=True)
        self.listing.write_table(table)
        self.listed = []

    def finish(self, tasks: dict[str, int]) -> dict[str, Any]:
        """Writes the lists of episodes and tasks and the statistics; returns what `info.json` says of the files."""
        self._flush()
        self.close()
        self.listing.close()
        write_tasks(self.folder / "meta" / "tasks.parquet", tasks)
        every = {key: running.stats() for key, running in self.running.items()}
        (self.folder / "meta" / "stats.json").write_text(json.dumps(every, indent=4), "utf-8")
        return {
            "codebase_version": "v3.0", "chunks_size": CHUNK, "data_files_size_in_mb": DATA_MB,
            "video_files_size_in_mb": 200, "data_path": DATA_PATH, "video_path": None,
        }  # fmt: skip

    def close(self) -> None:
        """Ends the data file that is being written."""
        if self.data is not None:
            self.data.close()
            self.data = None


def listed_type(arrow: Any, name: str) -> Any:
    """The arrow type of a column of the list of episodes."""
    if name == "tasks":
        return arrow.list_(arrow.string())
    if not name.startswith("stats/"):
        return arrow.int64()
    return arrow.list_(arrow.int64() if name.endswith("/count") else arrow.float64())


def write_tasks(path: Path, tasks: dict[str, int]) -> None:
    """The table of tasks: LeRobot reads it with pandas, with the task's words as the index."""
    arrow, parquet = imported_pyarrow(path)
    kinds = {"task_index": ("int64", "int64"), "task": ("unicode", "object")}
    columns = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy, "metadata": None}
        for name, (kind, numpy) in kinds.items()
    ]
    told = {"index_columns": ["task"], "column_indexes": [], "columns": columns, "pandas_version": "2.0.0"}
    numbers, words = arrow.array(list(tasks.values()), arrow.int64()), arrow.array(list(tasks), arrow.string())
    table = arrow.table({"task_index": numbers, "task": words})
    parquet.write_table(table.replace_schema_metadata({"pandas": json.dumps(told)}), path, write_page_checksum=True)
