"""CSV logs: a header line, then numbers; an empty cell or `nan` is hidden."""

import csv
import math
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vhydro.data.assembly import translated
from vhydro.data.automatic import guessed_description
from vhydro.data.dataset import Dataset
from vhydro.data.description import beside
from vhydro.data.errors import DataError
from vhydro.data.memory import REMEDY, allowance_of
from vhydro.data.options import DEFAULT, ReadOptions
from vhydro.data.tables import tabular_dataset

DELIMITERS = (",", ";", "\t")
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
LONGEST_NUMBER = 2000  # characters; the longest float written out has 1,077
HIDDEN = ("", "nan", "na", "null")
LONGEST_LINE = 1_000_000
TEXT_HEAD = 1 << 16


class Csv:
    """A text file of numbers with a header line."""

    name = "CSV"
    choices = ("rate",)

    def recognises(self, path: Path) -> bool:
        """Whether it is text with a header line and, unless its name says CSV, a line of numbers below."""
        if not path.is_file():  # a pipe would be waited on for ever
            return False
        try:
            with path.open("rb") as file:
                head = file.read(TEXT_HEAD)
            lines = head.decode("utf-8-sig", "ignore").splitlines()[:2]
        except OSError:
            return False
        if b"\0" in head or not lines:
            return False
        cells = [line.split(sniffed(lines[0])) for line in lines]
        if any(is_number(cell) for cell in cells[0]):
            return False
        if path.suffix.lower() in (".csv", ".tsv"):
            return True
        return len(lines) == 2 and len(cells[0]) == len(cells[1]) > 1 and any(is_number(cell) for cell in cells[1])

    def open(self, path: Path, options: ReadOptions = DEFAULT) -> Dataset:
        table = read_table(path)
        said = beside(path) or guessed_description(table, {}, options.dt)
        return tabular_dataset(self.name, table, said)


def sniffed(header: str) -> str:
    """The delimiter that the header line has most of."""
    return max(DELIMITERS, key=header.count)


def is_number(cell: str) -> bool:
    text = cell.strip()
    return len(text) <= LONGEST_NUMBER and NUMBER.fullmatch(text) is not None


@dataclass(frozen=True)
class Text:
    """The columns of a CSV file by name."""

    file: Path
    columns: dict[str, np.ndarray]
    shapes: dict[str, tuple[int, ...]]

    def dtype(self, key: str) -> np.dtype:
        return self.columns[key].dtype

    def array(self, key: str, episode: str = "") -> np.ndarray:  # noqa: ARG002 (errors of other tables name it)
        return self.columns[key]


def read_table(path: Path) -> Text:
    """The whole file: text cannot be read in parts."""
    with (
        translated(path, "text in UTF-8 with a header line and lines of numbers"),
        path.open(encoding="utf-8-sig", newline="") as file,
    ):
        delimiter = sniffed(file.readline(LONGEST_LINE))
        file.seek(0)
        lines = csv.reader(file, delimiter=delimiter, strict=True)
        header = header_names(path, next(lines, []))
        flat = array("d")
        most = allowance_of(path) // flat.itemsize
        for row in filled(lines):
            flat.extend(numbers(path, lines.line_num, row, header))
            if len(flat) > most:
                raise DataError(path, key=f"line {lines.line_num}", found=f"more than {most:,} numbers",
                                expected="a table that fits in memory", remedy=REMEDY)  # fmt: skip
    values = np.frombuffer(flat, np.float64) if len(flat) else np.zeros(0)
    if not len(values):
        raise DataError(path, found="a header and nothing below it", expected="lines of numbers")
    rows = np.ascontiguousarray(values.reshape(-1, len(header)).T)
    return Text(path, dict(zip(header, rows, strict=True)), dict.fromkeys(header, rows.shape[1:]))


def header_names(path: Path, cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    if not names or not all(names) or any(is_number(n) for n in names):
        raise DataError(path, key="line 1", found=f"{names[:6]}", expected="a header line with a name for each column")
    if len(set(names)) != len(names):
        raise DataError(path, key="line 1", found="a name twice", expected="columns with different names")
    return names


def filled(lines: Iterator[list[str]]) -> Iterator[list[str]]:
    """The lines that are not empty."""
    return (row for row in lines if row)


def numbers(path: Path, line: int, row: list[str], header: list[str]) -> Iterator[float]:
    """The numbers of a line."""
    if len(row) != len(header):
        raise DataError(
            path, key=f"line {line}", found=f"{len(row)} cells", expected=f"{len(header)}, as in the header"
        )
    for name, cell in zip(header, row, strict=True):
        text = cell.strip()
        if text.lower() in HIDDEN:
            yield math.nan
        elif is_number(text) and math.isfinite(value := float(text)):
            yield value
        else:
            raise DataError(
                path, key=f"line {line}, column {name}", found=repr(text[:40]),
                expected="a finite number, or an empty cell for a hidden value",
            )  # fmt: skip
