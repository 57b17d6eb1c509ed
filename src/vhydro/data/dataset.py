"""Datasets: episodes that are read when they are asked for, and their division into train, validation and test."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from vhydro.data.errors import DataError
from vhydro.data.memory import REMEDY
from vhydro.episodes import Episode
from vhydro.printable import printable


@contextmanager
def enough_memory(path: Path, episode: str = "") -> Iterator[None]:
    """Says which file it was that did not fit in memory."""
    try:
        yield
    except MemoryError:
        raise DataError(
            path, episode=episode, found="more than memory holds", expected="numbers that fit", remedy=REMEDY
        ) from None


@dataclass(frozen=True)
class Dataset:
    """Episodes of a file or folder, in order. Only what is asked for is read, so files may be larger than memory."""

    format: str
    path: Path
    names: tuple[str, ...]  # of the episodes, all different
    load: Callable[[int], Episode]
    notes: tuple[str, ...] = ()  # what a reader had to leave out or guess
    assumed_rate: str = ""  # the note that says so, where no episode tells its rate

    def __post_init__(self):
        names = tuple(map(printable, self.names))
        if len(set(names)) < len(set(self.names)):
            raise DataError(
                self.path, found="episodes whose names look the same once they can be printed",
                expected="names that differ in printable characters",
            )  # fmt: skip
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "notes", tuple(map(printable, self.notes)))

    def __repr__(self) -> str:
        return f"Dataset({len(self)} episodes, {self.format}, {printable(str(self.path))})"

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Episode:
        if not -len(self) <= index < len(self):
            raise IndexError(f"episode {index} of {len(self)} in {self.path}")
        return self._loaded(index % len(self))

    def __iter__(self) -> Iterator[Episode]:
        return (self._loaded(i) for i in range(len(self)))

    def _loaded(self, index: int) -> Episode:
        with enough_memory(self.path, self.names[index]):
            return self.load(index)

    def take(self, indices: Sequence[int]) -> "Dataset":
        """The episodes with these numbers, still unread."""
        chosen = [range(len(self))[i] for i in indices]
        names = tuple(self.names[i] for i in chosen)
        return replace(self, names=names, load=lambda i: self.load(chosen[i]))

    def named(self, names: Sequence[str]) -> "Dataset":
        """The episodes with these names, still unread."""
        place = {n: i for i, n in enumerate(self.names)}
        missing = [n for n in names if n not in place]
        if missing:
            raise ValueError(
                f"no episode {missing[:5]} in {self.path}; it has {len(self)} episodes, such as {list(self.names[:3])}."
            )
        return self.take([place[n] for n in names])

    def map(self, change: Callable[[Episode], Episode]) -> "Dataset":
        """Every episode changed when it is read: selected, occluded, labelled."""
        return replace(self, load=lambda i: change(self.load(i)))


def joined(parts: Sequence[Dataset], path: Path) -> Dataset:
    """Several datasets as one; an episode's name begins with its file."""
    places = [(part, i) for part in parts for i in range(len(part))]
    names = tuple(f"{part.path.relative_to(path)}:{part.names[i]}" for part, i in places)
    formats = ", ".join(dict.fromkeys(part.format for part in parts))
    notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    return Dataset(formats, path, names, lambda i: places[i][0].load(places[i][1]), notes)


@dataclass(frozen=True)
class Split:
    """Which episodes train, validate and test, by name; a plain record, to be stored with every result."""

    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]
    seed: int
    shares: tuple[float, float, float]

    def of(self, dataset: Dataset) -> tuple[Dataset, Dataset, Dataset]:
        """The three parts of a dataset."""
        return dataset.named(self.train), dataset.named(self.validation), dataset.named(self.test)

    def as_json(self) -> dict:
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict) -> "Split":
        parts = {k: tuple(record[k]) for k in ("train", "validation", "test")}
        return cls(**parts, seed=int(record["seed"]), shares=tuple(record["shares"]))


def split(dataset: Dataset, *, seed: int, shares: tuple[float, float, float] = (0.6, 0.2, 0.2)) -> Split:
    """The episodes divided at random by these shares; at least one in each part."""
    if len(dataset) < 3:
        raise ValueError(
            f"{dataset.path} has {len(dataset)} episodes; expected at least 3, one for each part. Give more."
        )
    if len(shares) != 3 or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-9:
        raise ValueError(f"shares are {shares}; expected three positive numbers that add up to 1.")
    order = np.random.default_rng(seed).permutation(len(dataset))
    count = len(dataset)
    last = max(1, round(shares[2] * count))
    middle = max(1, round(shares[1] * count))
    first = max(1, count - middle - last)
    middle = min(middle, count - first - 1)
    names = [dataset.names[i] for i in order]
    parts = (names[:first], names[first : first + middle], names[first + middle :])
    train, validation, test = (tuple(sorted(p)) for p in parts)
    return Split(train, validation, test, seed, shares)
