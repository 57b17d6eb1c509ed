"""Parquet and Arrow (Feather) tables: columns of numbers, or of lists of equally many, read like those of CSV files."""

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vhydro.data.arrow_messages import unfolded_size
from vhydro.data.assembly import translated
from vhydro.data.automatic import guessed_description
from vhydro.data.dataset import Dataset
from vhydro.data.description import beside
from vhydro.data.errors import DataError
from vhydro.data.memory import REMEDY, allowance_of
from vhydro.data.options import DEFAULT, ReadOptions
from vhydro.data.row_groups import column_of
from vhydro.data.tables import tabular_dataset

PARQUET, ARROW, END = b"PAR1", b"ARROW1\0\0", b"ARROW1"
INDEX = re.compile(r"__index_level_\d+__")  # row numbers that pandas adds
EXPECTED = {"parquet": "a Parquet table", "arrow": "a table in Arrow's file format"}


class ArrowTables:
    """A Parquet file, or one in Arrow's file format, which is also Feather's."""

    name = "Parquet or Arrow table"
    choices = ("rate",)

    def recognises(self, path: Path) -> bool:
        try:
            return path.is_file() and form_of(path) != ""
        except OSError:
            return False

    def open(self, path: Path, options: ReadOptions = DEFAULT) -> Dataset:
        table = ArrowTable.of(path)
        said = beside(path) or guessed_description(table, {}, options.dt)
        return tabular_dataset(self.name, table, said)


def require_pyarrow(path: Path) -> None:
    try:
        import pyarrow.compute
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise DataError(
            path, found="no pyarrow", expected="pyarrow, to read Parquet and Arrow", remedy="Run: pip install pyarrow"
        ) from None


def form_of(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(len(ARROW))
    return "parquet" if head.startswith(PARQUET) else "arrow" if head == ARROW else ""


LEROBOT = {"episode_index", "frame_index", "task_index", "timestamp"}  # columns of every data file of a dataset


@dataclass
class ArrowTable:
    """The columns of a table by name, read together when the first is asked for."""

    file: Path
    form: str
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, np.dtype]
    loaded: dict[str, np.ndarray] = field(default_factory=dict)

    def __getstate__(self) -> dict:
        return self.__dict__ | {"loaded": {}}  # read again in another process

    @classmethod
    def of(cls, path: Path) -> "ArrowTable":
        require_pyarrow(path)
        form = form_of(path)
        with translated(path, EXPECTED[form]):
            rows, schema, widths = (parquet_layout if form == "parquet" else arrow_layout)(path)
            twice = [name for name, count in Counter(schema.names).items() if count > 1]
            if twice:
                raise ValueError(f"two columns named {twice[0]!r}")
        if set(schema.names) >= LEROBOT:
            raise DataError(
                path, found="a data file of a LeRobot dataset", expected="the whole dataset, with its folder meta",
                remedy="Give the dataset's folder. Where it has no meta, copy the whole dataset again.",
            )  # fmt: skip
        columns = {f.name: f.type for f in schema if not INDEX.fullmatch(f.name)}
        shapes = {name: (rows, widths[name]) if name in widths else (rows,) for name in columns}
        return cls(path, form, shapes, {name: dtype_of(kind) for name, kind in columns.items()})

    def dtype(self, key: str) -> np.dtype:
        return self.dtypes[key]

    def array(self, key: str, episode: str = "") -> np.ndarray:
        if not self.loaded:
            self.load(episode)
        if key not in self.loaded:
            raise DataError(self.file, episode=episode, key=key, found="no numbers", expected="a column of numbers")
        return self.loaded[key]

    def load(self, episode: str) -> None:
        """Reads every column of numbers."""
        keys = [key for key, dtype in self.dtypes.items() if dtype.kind in "biuf"]
        size = sum(math.prod(self.shapes[key]) * 8 for key in keys)
        if size > (most := allowance_of(self.file)):
            found = f"columns of {size // 8:,} numbers"
            raise DataError(
                self.file, episode=episode, found=found, expected=f"at most {most // 8:,} in this file", remedy=REMEDY
            )
        with translated(self.file, EXPECTED[self.form], episode=episode):
            table = (read_parquet if self.form == "parquet" else read_arrow)(self.file, keys)
        found = {}
        for key in keys:
            with translated(self.file, f"numbers of shape {self.shapes[key]}", episode=episode, key=key):
                found[key] = numbers(table.column(key)).reshape(self.shapes[key])
        self.loaded = found


def dtype_of(kind: Any) -> np.dtype:
    """The type that the numbers of a column have once they are read; that of an object where they are none."""
    import pyarrow as pa

    types = pa.types
    if types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind):
        return dtype_of(kind.value_type) if not types.is_nested(kind.value_type) else np.dtype(object)
    if types.is_timestamp(kind) or types.is_duration(kind):
        return np.dtype(np.float64)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return np.dtype(kind.to_pandas_dtype())
    return np.dtype(object)


def parquet_layout(path: Path) -> tuple[int, Any, dict[str, int]]:
    """Rows, schema, and for columns of lists how many numbers a row has; nothing but the metadata is read."""
    from pyarrow import parquet

    metadata = parquet.read_metadata(path)
    schema = metadata.schema.to_arrow_schema()
    names = frozenset(schema.names)
    lists = {f.name for f in schema if f.type.num_fields == 1}
    counts: Counter[str] = Counter()
    if lists:
        leaves = [(i, column_of(metadata.schema.column(i).path, names)) for i in range(metadata.num_columns)]
        for group in (metadata.row_group(i) for i in range(metadata.num_row_groups)):
            counts.update({name: group.column(i).num_values for i, name in leaves if name in lists})
    rows = metadata.num_rows
    return rows, schema, {name: counts[name] // rows if rows else 0 for name in lists}


def read_parquet(path: Path, keys: list[str]) -> Any:
    from pyarrow import parquet

    table = parquet.read_table(path, columns=keys, partitioning=None, page_checksum_verification=True)  # pyright: ignore[reportArgumentType]
    table.validate(full=True)
    return table


def arrow_layout(path: Path) -> tuple[int, Any, dict[str, int]]:
    """The same of an Arrow file, whose messages are walked through to see what they unfold to."""
    import pyarrow as pa

    with path.open("rb") as ended:
        ended.seek(max(0, path.stat().st_size - len(END)))
        if ended.read() != END:
            raise ValueError("no end, as of a file that was cut off")
    size, rows = unfolded_size(path, len(ARROW))
    if size > (most := allowance_of(path)):
        raise ValueError(f"columns that unfold to {size:,} bytes, where at most {most:,} are read; {REMEDY}")
    with pa.OSFile(str(path)) as file:
        file.seek(len(ARROW))
        with pa.ipc.open_stream(file) as reader:
            schema = reader.schema
            lists = [f.name for f in schema if f.type.num_fields == 1]
            fixed = {f.name: f.type.list_size for f in schema if pa.types.is_fixed_size_list(f.type)}
            first = reader.read_next_batch() if lists and rows else None
    if first is not None:
        first.validate(full=True)
    # Lists of any length are measured by the first of them; reading checks the rest.
    measured = {name: len(first.column(name)[0]) if first is not None and len(first) else 0 for name in lists}  # pyright: ignore[reportArgumentType]
    return rows, schema, measured | fixed


def read_arrow(path: Path, keys: list[str]) -> Any:
    import pyarrow as pa

    with pa.OSFile(str(path)) as file:
        file.seek(len(ARROW))
        with pa.ipc.open_stream(file, options=pa.ipc.IpcReadOptions(use_threads=False)) as reader:
            table = reader.read_all()
    table.validate(full=True)  # offsets are not checked otherwise
    return table.select(keys)


def numbers(column: Any) -> np.ndarray:
    """The numbers of a column, of lists one after another; null is NaN, times are seconds from the first."""
    import pyarrow as pa
    from pyarrow import compute

    flat = column.combine_chunks()
    if pa.types.is_fixed_size_list(flat.type) or pa.types.is_list(flat.type) or pa.types.is_large_list(flat.type):
        if flat.null_count or len(compute.call_function("list_value_length", [flat]).unique()) > 1:
            raise ValueError("rows of different or no length")
        flat = flat.flatten()
    if pa.types.is_timestamp(flat.type) or pa.types.is_duration(flat.type):
        return seconds(flat)
    if flat.null_count:
        flat = flat.cast(pa.float64())
    return np.asarray(flat.to_numpy(zero_copy_only=False))


def seconds(times: Any) -> np.ndarray:
    import pyarrow as pa
    from pyarrow import compute

    whole = times.cast(pa.int64())
    first = next((v.as_py() for v in whole if v.is_valid), 0)
    unit = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[times.type.unit]
    since = compute.call_function("subtract_checked", [whole, pa.scalar(first, pa.int64())]).cast(
        pa.float64(), safe=False
    )
    return np.asarray(since.to_numpy(zero_copy_only=False)) * unit
