"""A LeRobot dataset with what goes on in every episode, in words: a copy with one column more, or one made anew."""

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from vhydro.data.assembly import translated
from vhydro.data.dataset import Dataset
from vhydro.data.errors import DataError
from vhydro.data.lerobot import LeRobot
from vhydro.data.lerobot_language import FEATURE, PERSISTENT, SUBTASK, Subtask, Subtasks, persistent_column
from vhydro.data.lerobot_meta import Place, layout
from vhydro.data.lerobot_write import write_lerobot
from vhydro.data.row_groups import imported_pyarrow, indexed_file, row_groups
from vhydro.data.uniform import move_folder, temporary_sibling
from vhydro.progress import counted

INFO = Path("meta") / "info.json"


def write_annotated(
    dataset: Dataset,
    folder: Path,
    subtasks: Subtasks,
    *,
    overwrite: bool = False,
    finish: Callable[[Path], None] = lambda _: None,
) -> Path:
    """The folder of a new LeRobot v3.0 dataset: every episode, and its subtasks as rows of `language_persistent`.

    Of a v3.0 dataset it is a copy, videos and all, with the column added; subtasks that it had are replaced, other
    rows of language stay. Whatever else is written anew, as `vhydro data convert` does. The logs stay as they are.
    `finish` may add files to the dataset before it takes its place.
    """
    if dataset.path.resolve().is_relative_to(folder.resolve()) or folder.resolve().is_relative_to(
        dataset.path.resolve()
    ):
        raise DataError(
            folder, found="the logs themselves, or a folder in or around them", expected="a place of its own",
            remedy="Give another --out.",
        )  # fmt: skip
    if not is_v30(dataset.path):
        return write_lerobot(dataset, folder, overwrite=overwrite, subtasks=subtasks, finish=finish)
    with temporary_sibling(folder, overwrite=overwrite) as temporary:
        made = temporary / "result"
        copy_annotated(dataset.path, made, subtasks)
        finish(made)
        move_folder(made, folder, temporary / "old")
    return folder


def is_v30(path: Path) -> bool:
    """Whether a folder is a LeRobot dataset of v3."""
    return path.is_dir() and LeRobot().recognises(path) and layout(path).version.startswith("v3.")


def copy_annotated(source: Path, made: Path, subtasks: Subtasks) -> None:
    """Copies a dataset, with the column added to its data files and to `info.json`."""
    by_file: dict[Path, list[tuple[int, Place]]] = {}
    for number, place in enumerate(layout(source).places):
        by_file.setdefault(place.file, []).append((number, place))
    for path in sorted(p for p in source.rglob("*") if p.is_file() and p not in by_file):
        target = made / path.relative_to(source)
        if not any(part.startswith(".") for part in target.relative_to(made).parts):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    for file, places in by_file.items():
        target = made / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        copy_file(file, target, places, subtasks)
    info = json.loads((source / INFO).read_text("utf-8"))
    info["features"][PERSISTENT] = FEATURE
    (made / INFO).write_text(json.dumps(info, indent=4), "utf-8")


def copy_file(file: Path, target: Path, places: list[tuple[int, Place]], subtasks: Subtasks) -> None:
    """Writes a data file again, a row group for each episode, with the column added."""
    _, parquet = imported_pyarrow(file)
    with ExitStack() as stack:
        writer: Any = None
        for number, place in counted(places, f"writing {file.name}"):
            words = subtasks(number)
            with translated(file, "a parquet file of the dataset"):
                table = annotated(file, place, words)
                if writer is None:
                    writer = stack.enter_context(parquet.ParquetWriter(target, table.schema, write_page_checksum=True))
                writer.write_table(table, row_group_size=max(table.num_rows, 1))


def annotated(file: Path, place: Place, subtasks: Sequence[Subtask]) -> Any:
    """The rows of an episode with every column, and that of its subtasks."""
    arrow, _ = imported_pyarrow(file)
    index = indexed_file(file)
    columns = index.columns
    rows = row_groups(index, index.groups(place.index), columns)
    table = rows.filter(arrow.compute.equal(rows.column("episode_index"), place.index))
    # What Hugging Face's library notes of the columns would not know this one.
    table = table.replace_schema_metadata(
        {k: v for k, v in (table.schema.metadata or {}).items() if k != b"huggingface"}
    )
    kept = [r for r in first_language(table) if r["style"] != SUBTASK]
    stamps = np.asarray(table.column("timestamp").to_numpy(), np.float32)
    column = persistent_column(arrow, subtasks, stamps, kept)
    if PERSISTENT in columns:
        return table.set_column(columns.index(PERSISTENT), PERSISTENT, column)
    return table.append_column(PERSISTENT, column)


def first_language(table: Any) -> list[dict]:
    """The rows of language that the episode has already: the same on every frame."""
    if PERSISTENT not in table.column_names or not table.num_rows:
        return []
    return table.column(PERSISTENT)[0].as_py() or []
