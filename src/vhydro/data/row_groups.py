"""Parquet files: what they promise before they are read, and the rows of one episode without those of the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from vhydro.data.errors import DataError

FILES = 4  # whose layout is remembered: that of many row groups takes megabytes
HELD = 1 << 28  # bytes of row groups that are held for the next episode in them


def imported_pyarrow(folder: Path) -> tuple[Any, Any]:
    """pyarrow and its parquet module, or a `DataError` that says how to install them."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise DataError(
            folder, found="no pyarrow", expected="pyarrow, for LeRobot's parquet files",
            remedy="Run: pip install pyarrow",
        ) from None  # fmt: skip
    return pyarrow, pyarrow.parquet


@dataclass(frozen=True)
class Indexed:
    """The layout of a parquet file, as its footer tells it; `stamp` tells it from what was there before."""

    path: Path
    stamp: tuple[int, int]
    metadata: Any  # not asked for its `schema`, which would keep it in memory for good: they hold each other
    columns: tuple[str, ...]

    @cached_property
    def names(self) -> frozenset[str]:
        """Its columns."""
        return frozenset(self.columns)

    @cached_property
    def _leaves(self) -> list[str]:
        """Where every column of numbers or texts lies, such as `observation.state.list.element`."""
        if not self.metadata.num_row_groups:
            return []
        first = self.metadata.row_group(0)
        return [first.column(i).path_in_schema for i in range(self.metadata.num_columns)]

    @cached_property
    def _values(self) -> dict[str, int]:
        """How many numbers or texts every column holds."""
        counts: dict[str, int] = dict.fromkeys(self.names, 0)
        groups = [self.metadata.row_group(i) for i in range(self.metadata.num_row_groups)]
        for i, path in enumerate(self._leaves):
            name = column_of(path, self.names)
            counts[name] = counts.get(name, 0) + sum(max(g.num_rows, g.column(i).num_values) for g in groups)
        return counts

    def promised(self, keys: Sequence[str]) -> int:
        """How many numbers or texts these columns hold by what the file says before its contents."""
        return sum(self._values.get(key, 0) for key in dict.fromkeys(keys))

    @cached_property
    def _ends(self) -> np.ndarray | None:
        """The first and the last episode of every row group, (groups, 2); None where the file does not tell."""
        if "episode_index" not in self._leaves:
            return None
        place = self._leaves.index("episode_index")
        told = [self.metadata.row_group(i).column(place).statistics for i in range(self.metadata.num_row_groups)]
        if not all(t is not None and t.has_min_max for t in told):
            return None
        return np.array([(t.min, t.max) for t in told], np.int64).reshape(len(told), 2)

    def groups(self, episode: int) -> tuple[int, ...]:
        """The row groups that may hold rows of an episode."""
        if self._ends is None:
            return tuple(range(self.metadata.num_row_groups))
        return tuple(np.flatnonzero((self._ends[:, 0] <= episode) & (episode <= self._ends[:, 1])).tolist())


def column_of(path: str, names: frozenset[str]) -> str:
    """The column that a leaf such as `observation.state.list.element` belongs to: the longest name it begins with."""
    parts = path.split(".")
    heads = (".".join(parts[:i]) for i in range(len(parts), 0, -1))
    return next((head for head in heads if head in names), path)


def indexed_file(path: Path) -> Indexed:
    """The layout of a file; remembered, for a file of many episodes is asked for again and again."""
    if not path.is_file():
        raise FileNotFoundError("no plain file there")
    told = path.stat()
    return _indexed(path, (told.st_mtime_ns, told.st_size))


@lru_cache(FILES)
def _indexed(path: Path, stamp: tuple[int, int]) -> Indexed:
    _, parquet = imported_pyarrow(path)
    with parquet.ParquetFile(path) as opened:
        return Indexed(path, stamp, opened.metadata, tuple(opened.schema_arrow.names))


_last: dict[tuple, Any] = {}  # the row groups that were read last: one file's episodes are asked for in turn


def row_groups(file: Indexed, groups: tuple[int, ...], columns: tuple[str, ...]) -> Any:
    """These row groups as an arrow table."""
    key = file.path, file.stamp, groups, columns
    if key not in _last:
        _, parquet = imported_pyarrow(file.path)
        with parquet.ParquetFile(file.path, metadata=file.metadata, page_checksum_verification=True) as opened:
            table = opened.read_row_groups(list(groups), columns=list(columns))
        _last.clear()
        if table.nbytes > HELD:
            return table
        _last[key] = table
    return _last[key]
