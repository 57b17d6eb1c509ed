"""Logs from files: one reader per format behind `read`."""

from vhydro.data.dataset import Dataset, Split, joined, split
from vhydro.data.errors import DataError
from vhydro.data.read import read
from vhydro.data.sample import sample
from vhydro.data.write import write

__all__ = ["DataError", "Dataset", "Split", "joined", "read", "sample", "split", "write"]
