"""The one error of a file that cannot be read."""

from pathlib import Path


class DataError(ValueError):
    """What is wrong with a file: where, what was found, what was expected, what to do."""

    def __init__(self, file: Path | str, *, found: str, expected: str, remedy: str = "", episode="", key=""):
        self.file, self.episode, self.key = str(file), str(episode), str(key)
        where = [self.file]
        where += [f"episode {self.episode}"] if self.episode else []
        where += [f"key {self.key}"] if self.key else []
        super().__init__(f"{', '.join(where)}: found {found}; expected {expected}.{' ' + remedy if remedy else ''}")
