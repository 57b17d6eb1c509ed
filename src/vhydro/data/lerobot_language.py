"""LeRobot's language columns: what goes on in an episode, in words, beside its frames.

A row of `language_persistent` holds from its time stamp until the next of its style; the list of an episode is the same
on every frame. LeRobot reads them from 0.6 on.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

PERSISTENT = "language_persistent"
SUBTASK = "subtask"  # the style of a stretch of an episode
FEATURE = {"dtype": "language", "shape": [1], "names": None}


class Subtask(NamedTuple):
    """What an episode is doing from this row on."""

    row: int
    words: str


Subtasks = Callable[[int], Sequence[Subtask]]  # of an episode, by its number


def persistent_fields(arrow: Any) -> list:
    """The arrow fields of a row of the column."""
    return [
        arrow.field("role", arrow.string(), nullable=False),
        arrow.field("content", arrow.string()),
        arrow.field("style", arrow.string()),
        arrow.field("timestamp", arrow.float32(), nullable=False),
        arrow.field("camera", arrow.string()),
        arrow.field("tool_calls", arrow.list_(arrow.json_())),
    ]


def persistent_column(arrow: Any, subtasks: Sequence[Subtask], stamps: np.ndarray, kept: Sequence[dict] = ()) -> Any:
    """The column of an episode with these time stamps; `kept` are rows of other styles."""
    mine = [
        {"role": "assistant", "content": s.words, "style": SUBTASK, "timestamp": float(stamps[s.row])} for s in subtasks
    ]
    rows = sorted([*kept, *mine], key=lambda r: r["timestamp"])
    fields = persistent_fields(arrow)
    every = arrow.array(np.tile(np.arange(len(rows)), len(stamps)))
    parts = [plain_array(arrow, [r.get(f.name) for r in rows], f.type).take(every) for f in fields]
    parts[-1] = as_json(arrow, parts[-1])
    struct = arrow.StructArray.from_arrays(parts, fields=fields)
    starts = arrow.array(np.arange(len(stamps) + 1, dtype=np.int32) * len(rows))
    return arrow.ListArray.from_arrays(starts, struct)


def plain_array(arrow: Any, values: list, kind: Any) -> Any:
    """An array of this type, with text in place of JSON, of which pyarrow can neither build nor take lists."""
    return arrow.array(values, arrow.list_(arrow.string()) if arrow.types.is_list(kind) else kind)


def as_json(arrow: Any, texts: Any) -> Any:
    """Lists of text as lists of JSON; null stays null."""
    items = arrow.ExtensionArray.from_storage(arrow.json_(), texts.flatten())
    lengths = [0 if n is None else n for n in arrow.compute.list_value_length(texts).to_pylist()]
    starts = arrow.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return arrow.ListArray.from_arrays(starts, items, mask=texts.is_null())
