"""The one error of a file that cannot be read."""

from pathlib import Path

from vhydro.printable import printable

REMEDY = "Mend the file, or leave it out."


class DataError(ValueError):
    """What is wrong with a file: where, what was found, what was expected, what to do."""

    def __init__(self, file: Path | str, *, found: str, expected: str, remedy: str = REMEDY, episode="", key=""):
        self.file, self.episode, self.key = (printable(str(part)) for part in (file, episode, key))
        found, expected = printable(found), printable(expected)
        where = [self.file]
        where += [f"episode {self.episode}"] if self.episode else []
        where += [f"key {self.key}"] if self.key else []
        super().__init__(f"{', '.join(where)}: found {found}; expected {expected}. {remedy or REMEDY}")
